//! Pinned or unified memory that nobody has and the device will not take back: the device had given it, the host then had no
//! memory to enter it into our tables, and the device refused to free it. It is offered to the device again whenever other
//! memory goes back, and when the device ends. Nothing here calls the device; the lists are part of what a lock guards.

use crate::base::error::{Result, no_host_memory};

/// See the file's head.
#[derive(Default)]
pub(crate) struct Left {
    all: Vec<(u64, u64)>, // address, [B]
    /// How many requests are under way that may end here. The list has room for all of them.
    expected: usize,
}

impl Left {
    /// Makes room for the memory of one request, before the device is asked for it. [`answered`](Self::answered) follows in any
    /// case. `OutOfMemory` if the host has no memory for that.
    pub(crate) fn expect(&mut self) -> Result<()> {
        self.all.try_reserve(self.expected + 1).map_err(|_| no_host_memory())?;
        self.expected += 1;
        Ok(())
    }

    /// The end of a request that was expected. Its memory stays here if the device has `refused` to take it back.
    pub(crate) fn answered(&mut self, (addr, bytes): (u64, u64), refused: bool) {
        self.expected -= 1;
        if refused {
            self.all.push((addr, bytes));
        }
    }

    /// Takes one range out, to offer it to the device again. [`answered`](Self::answered) follows.
    pub(crate) fn next(&mut self) -> Option<(u64, u64)> {
        let next = self.all.pop()?;
        self.expected += 1;
        Some(next)
    }

    /// The address and the bytes of each range.
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
