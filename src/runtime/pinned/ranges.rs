//! Live ranges of host memory by address, and the freed ones that are remembered to tell a double free from a
//! foreign pointer.

use crate::base::error::{Code, Result};
use crate::base::ordered::{Map, Set};
use crate::core::past_end;
use crate::fail;

/// How many freed addresses are remembered.
const GRAVES: usize = 1 << 14;

/// Ranges, each with its size in bytes and something that is known of it.
#[derive(Debug)]
pub(crate) struct Ranges<V> {
    live: Map<u64, (u64, V)>,
    graves: Set<u64>,
}

impl<V> Default for Ranges<V> {
    fn default() -> Self {
        Ranges { live: Map::new(), graves: Set::new() }
    }
}

impl<V> Ranges<V> {
    pub(crate) fn put(&mut self, addr: u64, bytes: u64, known: V) {
        self.graves.remove(&addr);
        self.live.insert(addr, (bytes, known));
    }

    /// Makes room for one more range. `false`: the host has no memory for it.
    pub(crate) fn make_room(&mut self) -> bool {
        self.live.make_room()
    }

    /// The same for the end of one at `addr`.
    pub(crate) fn make_grave(&mut self, addr: u64) -> bool {
        self.graves.make_room(&addr)
    }

    /// Removes the range that starts at `addr`.
    pub(crate) fn take(&mut self, addr: u64, what: &str) -> Result<(u64, V)> {
        if let Some(range) = self.live.remove(&addr) {
            if self.graves.len() >= GRAVES {
                self.graves.clear();
            }
            self.graves.insert(addr);
            return Ok(range);
        }
        if self.graves.contains(&addr) {
            fail!(Code::DoubleFree, "the {what} memory at {addr:#x} was freed before");
        }
        match self.live.range(..=addr).next_back() {
            Some((&base, (bytes, _))) if addr - base < *bytes => {
                fail!(
                    Code::UnknownPointer,
                    "{addr:#x} lies inside the {what} memory at {base:#x}, not at its start"
                )
            }
            _ => fail!(Code::UnknownPointer, "{addr:#x} is not {what} memory of this device"),
        }
    }

    /// What is known of the range that holds `addr`.
    pub(crate) fn holder(&mut self, addr: u64) -> Option<&mut V> {
        let (&base, (bytes, known)) = self.live.last_mut(..=addr)?;
        (addr - base < *bytes).then_some(known)
    }

    /// `None` when no live range holds `addr`; else whether `addr .. addr + bytes` lies in it.
    pub(crate) fn check(&self, addr: u64, bytes: u64) -> Option<Result<()>> {
        let (&base, &(size, _)) = self.live.range(..=addr).next_back()?;
        let room = size.checked_sub(addr - base).filter(|&r| r != 0)?;
        Some(if bytes <= room { Ok(()) } else { Err(past_end(addr, bytes, room)) })
    }

    pub(crate) fn len(&self) -> usize {
        self.live.len()
    }

    /// All of them: address, size and what is known.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64, &V)> {
        self.live.iter().map(|(&addr, (bytes, known))| (addr, *bytes, known))
    }
}
