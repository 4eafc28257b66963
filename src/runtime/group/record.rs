//! What stands in the file of a group: words of 64 bits in the byte order of the machine, each part with a sum behind it.
//!
//! Programs that do not trust each other's timing write parts of one file, so a reader may see half of a part. Its sum is
//! wrong then, and the reader takes it as not there; it looks again a moment later. Nothing that is read is an address or
//! an index: a wrong number makes at worst a wish that nobody has.

/// The most programs that a group has at a time.
pub(crate) const SLOTS: usize = 64;
/// \[B\] in front of the slots.
pub(super) const HEAD: usize = 64;
/// \[B\] of a slot: the member's record, the answer to its wish, and the last order to it.
pub(super) const SLOT: usize = 256;
/// \[B\] of the file.
pub(super) const FILE: usize = HEAD + SLOTS * SLOT;

const RECORD: usize = 24; // words
const NOTE: usize = 4; // words
/// Where the parts of a slot begin. [B]
pub(super) const ANSWER_AT: usize = RECORD * 8;
/// See [`ANSWER_AT`].
pub(super) const ORDER_AT: usize = ANSWER_AT + NOTE * 8;

/// \[B\] of a member's name, and of its device's.
pub(crate) const NAME: usize = 32;
/// See [`NAME`].
pub(crate) const DEVICE: usize = 24;

/// What a member says of itself. Only the member writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// Its number in the group, never used again; 0: nobody.
    pub id: u64,
    /// Its process, as it sees it itself.
    pub process: u64,
    /// Which card its device is.
    pub card: [u64; 2],
    /// \[B\] taken from the card.
    pub reserved: u64,
    /// \[B\] of these in blocks, and in freed blocks that still wait.
    pub active: u64,
    /// \[B\] that it was told to keep below by an order; 0: no bound.
    pub budget: u64,
    /// When it last looked for what others want, in ms of the system's monotonic clock; 0: never.
    pub looked: u64,
    /// What it wants, and of whom.
    pub wish: Wish,
    /// \[B\] that it has given back for others.
    pub given: u64,
    /// \[B\] that others have given back for it.
    pub received: u64,
    /// The number of the last order that it has followed.
    pub order: u64,
    pub name: [u8; NAME],
    pub device: [u8; DEVICE],
}

/// Memory that a member wants another one to give back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// The number of the other one; 0: it wants nothing.
    pub to: u64,
    pub bytes: u64,
    /// Counts the wishes of the member, from its own number times 2^32: no two members' wishes have the same one.
    pub number: u64,
}

/// The answer to the wish of the member in whose slot it stands, or an order to that member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Note {
    /// Of an answer: who gives it. Of an order: whom it is for.
    pub who: u64,
    /// Of an answer: the number of the wish. Of an order: its own.
    pub number: u64,
    /// Of an answer: what was given back. Of an order: the budget.
    pub bytes: u64,
}

/// A sum of words in which their order counts.
fn sum(words: &[u64]) -> u64 {
    words
        .iter()
        .fold(0x6d69_6c6c_706f_6e64, |s, w| (s ^ w).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23))
}

fn words<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let mut all = [0; N];
    let mut chunks = bytes.chunks_exact(8);
    for word in &mut all {
        *word = u64::from_ne_bytes(chunks.next()?.try_into().ok()?);
    }
    (all[N - 1] == sum(&all[..N - 1])).then_some(all)
}

fn bytes<const N: usize, const B: usize>(mut all: [u64; N]) -> [u8; B] {
    all[N - 1] = sum(&all[..N - 1]);
    let mut out = [0; B];
    for (to, word) in out.chunks_exact_mut(8).zip(all) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    out
}

fn text_words<const N: usize>(text: &[u8]) -> [u64; N] {
    let mut all = [0; N];
    for (word, chunk) in all.iter_mut().zip(text.chunks_exact(8)) {
        *word = chunk.try_into().map_or(0, u64::from_ne_bytes);
    }
    all
}

fn text<const B: usize>(words: &[u64]) -> [u8; B] {
    let mut out = [0; B];
    for (to, word) in out.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    out
}

/// As much of a text as fits into `B` bytes, cut between characters.
pub(crate) fn cut<const B: usize>(from: &str) -> [u8; B] {
    let mut out = [0; B];
    let end = (0..=from.len().min(B)).rev().find(|&end| from.is_char_boundary(end)).unwrap_or(0);
    out[..end].copy_from_slice(&from.as_bytes()[..end]);
    out
}

/// The text in such an array.
pub(crate) fn shown(from: &[u8]) -> &str {
    let end = from.iter().position(|&b| b == 0).unwrap_or(from.len());
    std::str::from_utf8(&from[..end]).unwrap_or("?")
}

impl Record {
    pub(super) fn read(slot: &[u8]) -> Option<Record> {
        // Most slots are empty, and need no sum.
        if slot.first_chunk::<8>()? == &[0; 8] {
            return None;
        }
        let w: [u64; RECORD] = words(slot)?;
        Some(Record {
            id: w[0],
            process: w[1],
            card: [w[2], w[3]],
            reserved: w[4],
            active: w[5],
            budget: w[6],
            looked: w[7],
            wish: Wish { to: w[8], bytes: w[9], number: w[10] },
            given: w[11],
            received: w[12],
            order: w[13],
            name: text(&w[14..18]),
            device: text(&w[18..21]),
        })
        .filter(|r| r.id != 0)
    }

    pub(super) fn written(&self) -> [u8; RECORD * 8] {
        let mut w = [0; RECORD];
        let first = [
            self.id,
            self.process,
            self.card[0],
            self.card[1],
            self.reserved,
            self.active,
            self.budget,
            self.looked,
            self.wish.to,
            self.wish.bytes,
            self.wish.number,
            self.given,
            self.received,
            self.order,
        ];
        w[..14].copy_from_slice(&first);
        w[14..18].copy_from_slice(&text_words::<4>(&self.name));
        w[18..21].copy_from_slice(&text_words::<3>(&self.device));
        bytes(w)
    }
}

impl Note {
    pub(super) fn read(part: &[u8]) -> Option<Note> {
        let [who, number, bytes, _] = words::<NOTE>(part)?;
        Some(Note { who, number, bytes })
    }

    pub(super) fn written(&self) -> [u8; NOTE * 8] {
        bytes([self.who, self.number, self.bytes, 0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_half_of_it_is_not() {
        let record = Record {
            id: 7,
            process: 4711,
            card: [1, 2],
            reserved: 3,
            active: 4,
            budget: 5,
            looked: 6,
            wish: Wish { to: 8, bytes: 9, number: 10 },
            given: 11,
            received: 12,
            order: 13,
            name: cut("a server"),
            device: cut("cuda:0"),
        };
        let written = record.written();
        assert_eq!(Record::read(&written), Some(record));
        assert_eq!((shown(&record.name), shown(&record.device)), ("a server", "cuda:0"));
        let other = Record { reserved: 1 << 40, active: 1 << 39, given: 99, ..record }.written();
        for half in (8..written.len()).step_by(8) {
            let torn = [&written[..half], &other[half..]].concat();
            let got = Record::read(&torn);
            assert!(torn == written || torn == other || got.is_none(), "torn at {half}: {got:?}");
        }
        assert_eq!(Record::read(&[0; RECORD * 8]), None);
    }

    #[test]
    fn names_are_cut_between_characters() {
        assert_eq!(shown(&cut::<NAME>("é".repeat(40).as_str())), "é".repeat(16));
        assert_eq!(shown(&cut::<DEVICE>(&format!("{}é", "a".repeat(23)))), "a".repeat(23));
        assert_eq!(shown(&cut::<NAME>("")), "");
    }
}
