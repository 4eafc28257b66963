//! Host or unified memory that a device has given, for which the host had no memory to enter it, and that the device has refused
//! to take back. It is nobody's; the device is asked again with whatever else goes back to it, and at its end. Makes no call, and
//! is part of what a lock guards.

use crate::base::error::{Result, no_host_memory};

/// See the file's head.
#[derive(Default)]
pub(crate) struct Left {
    all: Vec<(u64, u64)>, // address, [B]
    /// How many more may come: the list has room for these.
    expected: usize,
}

impl Left {
    /// Makes room for one more, until it is [`answered`](Self::answered) what has come of it. `OutOfMemory` if the host has no
    /// memory for it.
    pub(crate) fn expect(&mut self) -> Result<()> {
        self.all.try_reserve(self.expected + 1).map_err(|_| no_host_memory())?;
        self.expected += 1;
        Ok(())
    }

    /// One that was expected is here if the device has refused to take it back.
    pub(crate) fn answered(&mut self, (addr, bytes): (u64, u64), refused: bool) {
        self.expected -= 1;
        if refused {
            self.all.push((addr, bytes));
        }
    }

    /// One that the device is asked for again: it is expected.
    pub(crate) fn next(&mut self) -> Option<(u64, u64)> {
        let next = self.all.pop()?;
        self.expected += 1;
        Some(next)
    }

    /// Address and bytes of each.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.all.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_has_room() {
        let mut left = Left::default();
        (0..9).for_each(|_| left.expect().unwrap());
        let room = left.all.capacity();
        (0..9).for_each(|n| left.answered((n, 1), n % 2 == 0));
        assert_eq!((left.all.len(), left.expected), (5, 0));
        assert_eq!(left.next(), Some((8, 1)));
        (0..room - 5).for_each(|_| left.expect().unwrap());
        (0..room - 5).for_each(|n| left.answered((n as u64, 1), true));
        left.answered((8, 1), true);
        assert_eq!((left.all.len(), left.all.capacity(), left.expected), (room, room, 0));
    }
}
