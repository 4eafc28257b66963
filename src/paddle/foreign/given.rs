//! The memory that a plugin has handed out. An impossible answer of the plugin is not believed.
//!
//! A piece must not be at address 0, must end within the address space, and must not overlap another piece that has not
//! been given back. A piece that fails this is refused, and not given back either: the plugin has named memory that it
//! does not own, and a free would take it from its owner. A piece that is merely less aligned than it should be is the
//! plugin's memory all the same.

use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::base::ordered::Map;
use crate::base::sync::system::Mutex;
use crate::runtime::lock;

/// A piece of memory, as the plugin knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub addr: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy)]
struct Given {
    piece: Piece,
    /// Where the part that the library uses begins.
    start: u64,
}

/// The pieces of one address space.
#[derive(Default)]
pub(super) struct Pieces(Mutex<Map<u64, Given>>); // by the address where the plugin's piece begins

impl Pieces {
    /// `OutOfMemory` if the host has no memory to enter one more piece.
    pub(super) fn make_room(&self) -> Result<()> {
        if lock(&self.0).make_room() { Ok(()) } else { Err(no_host_memory()) }
    }

    /// Enters a piece that the plugin has just handed out; the library uses it from `start` on.
    pub(super) fn enter(&self, piece: Piece, start: u64) -> Result<()> {
        let Piece { addr, bytes } = piece;
        let refused = |why: String| Err(Error::new(Code::Device, why));
        let Some(end) = addr.checked_add(bytes) else {
            return refused(format!("{bytes} bytes at {addr:#x} pass the end of all addresses"));
        };
        let mut all = lock(&self.0);
        let before = all.range(..end).next_back().map(|(_, g)| g.piece);
        if let Some(other) = before.filter(|b| b.addr + b.bytes > addr) {
            return refused(format!(
                "{bytes} bytes at {addr:#x} overlap the {} bytes at {:#x}, which it has given before and not got back",
                other.bytes, other.addr
            ));
        }
        all.insert(addr, Given { piece, start });
        Ok(())
    }

    /// Removes the piece that the library uses from `start` on, since it is about to be given back.
    pub(super) fn take(&self, start: u64) -> Option<Piece> {
        let mut all = lock(&self.0);
        let (&addr, given) = all.range(..=start).next_back()?;
        (given.start == start).then_some(())?;
        all.remove(&addr).map(|g| g.piece)
    }

    /// Enters a piece again that the plugin refused to take back.
    pub(super) fn put_back(&self, piece: Piece, start: u64) {
        // If the plugin is right, nobody else can have its address meanwhile; if it is not, the other piece stays
        // known.
        lock(&self.0).entry(piece.addr).or_insert(Given { piece, start });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn piece(addr: u64, bytes: u64) -> Piece {
        Piece { addr, bytes }
    }

    #[test]
    fn what_overlaps_or_wraps_is_refused_and_what_touches_is_not() {
        let all = Pieces::default();
        let enter = |addr, bytes| all.enter(piece(addr, bytes), addr);
        enter(100, 50).unwrap();
        for (addr, bytes) in [(100, 50), (100, 1), (149, 1), (99, 2), (90, 100), (120, 10), (0, 101)] {
            assert_eq!(enter(addr, bytes).unwrap_err().code(), Code::Device, "{addr} {bytes}");
        }
        enter(150, 10).unwrap();
        enter(90, 10).unwrap();
        assert!(enter(u64::MAX - 10, 20).is_err());
        assert!(enter(u64::MAX - 10, 11).is_err(), "the end itself is no address");
        assert_eq!(all.take(100), Some(piece(100, 50)));
        assert_eq!(all.take(100), None);
        enter(110, 10).unwrap();
        all.put_back(piece(100, 10), 100);
        assert!(enter(105, 1).is_err());
    }

    #[test]
    fn a_piece_is_found_by_where_its_use_begins() {
        let all = Pieces::default();
        all.enter(piece(104, 600), 512).unwrap();
        assert_eq!(all.take(104), None);
        assert_eq!(all.take(600), None);
        assert_eq!(all.take(512), Some(piece(104, 600)));
    }
}
