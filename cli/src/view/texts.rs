//! The texts of a record that its file may name again and again: each is kept once, and all of them have a bound. A file may
//! name one long text a million times, each time with another number behind it.

use super::table::Table;
use crate::units;

/// [B] What a record keeps of such texts.
const MOST: usize = 64 << 20;
/// What stands for a text beyond that.
const LEFT_OUT: &str = "(left out)";

/// See the file's head.
#[derive(Clone, Debug)]
pub(crate) struct Texts {
    /// Callers, by their names.
    pub(crate) frames: Table<String>,
    bytes: usize,  // of all that count
    left_out: u64, // texts that had no room
}

impl Texts {
    pub(super) fn new() -> Texts {
        Texts { frames: Table::new(LEFT_OUT.to_owned()), bytes: 0, left_out: 0 }
    }

    /// Whether there is room for so many more bytes; where there is not, one text is left out.
    pub(super) fn has_room(&mut self, bytes: usize) -> bool {
        let fits = bytes <= MOST - self.bytes;
        self.left_out += u64::from(!fits);
        fits
    }

    /// The number of a caller of that name.
    pub(super) fn frame(&mut self, name: &str) -> u32 {
        if let Some(known) = self.frames.known(name) {
            return known;
        }
        if !self.has_room(name.len()) {
            return 0;
        }
        self.bytes += name.len();
        self.frames.number(name.to_owned())
    }

    /// The text of a mark.
    pub(super) fn of_mark(&mut self, text: &str) -> String {
        if !self.has_room(text.len()) {
            return LEFT_OUT.to_owned();
        }
        self.bytes += text.len();
        text.to_owned()
    }

    /// What whoever looks at the record must know of what had no room.
    pub(super) fn lacks(&self) -> Option<String> {
        (self.left_out > 0).then(|| {
            format!(
                "the names of callers and the texts of notes have more than {}: {} are left out",
                units::bytes(MOST as u64),
                units::count(self.left_out)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_count_once_and_have_a_bound() {
        let mut t = Texts::new();
        let half = "x".repeat(MOST / 2);
        let first = t.frame(&half);
        assert!(first > 0 && t.frame(&half) == first && t.frame("f") > first);
        assert_eq!((t.frame(&half[1..]) > 0, t.lacks()), (true, None));
        assert_eq!(t.of_mark("a"), LEFT_OUT);
        assert_eq!((t.frame("g"), t.frame(&half)), (0, first));
        assert!(t.lacks().unwrap().ends_with("more than 64.00 MiB: 2 are left out"), "{:?}", t.lacks());
    }
}
