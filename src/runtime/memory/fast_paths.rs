//! The fast paths of threads to the heaps that they used lately, by the caller's number for a pool and the stream.

use crate::base::biased::Name;
use crate::core::{EnteredHeap, HeapPath};

/// The table.
mod table {
    use crate::base::biased::Name;
    use crate::base::biased::fast_paths::FastPaths;
    use crate::core::{EnteredHeap, HeapEntry, HeapPath, HeapSeat, HeapState, Way};

    static NOBODYS: HeapSeat = HeapSeat::nobodys();
    static ALL: FastPaths<HeapState, Way> = FastPaths::new(&NOBODYS);

    /// What is in a slot of the table.
    #[derive(Clone, Copy)]
    pub(crate) struct Found(HeapPath);

    impl Found {
        #[inline(always)]
        pub(super) fn in_slot_of(name: Name) -> Found {
            Found(ALL.find(name))
        }

        /// Enters the heap, if the path is the calling thread's and open under this name.
        #[inline(always)]
        pub(crate) fn enter(self, name: Name) -> Option<EnteredHeap> {
            EnteredHeap::by(self.0, name)
        }

        /// The same for a caller that tries the [noted](super::noted) name next.
        #[inline(always)]
        pub(crate) fn enter_or_stay(self, name: Name) -> HeapEntry {
            EnteredHeap::by_or_stay(self.0, name)
        }
    }

    pub(super) fn put(name: Name, path: HeapPath) {
        ALL.put(name, path);
    }

    pub(super) fn clear() {
        ALL.clear();
    }
}

pub(crate) use table::Found;

/// The name of a fast path on which everything is noted, for a pool and a stream. It lies in the same slot. No caller has
/// such a number for anything.
#[inline(always)]
pub(crate) fn noted([number, stream]: Name) -> Name {
    const NOTED: u64 = 0x5E97_2C4D << 32;
    [number ^ NOTED, stream]
}

/// Enters the heap to which the calling thread has a fast path that is open under this name, if it used it lately.
#[inline(always)]
pub(crate) fn enter(name: Name) -> Option<EnteredHeap> {
    find(name).enter(name)
}

/// The fast path that the calling thread may have under this name, or under the one that [`noted`] makes of it.
#[inline(always)]
pub(crate) fn find(name: Name) -> Found {
    Found::in_slot_of(name)
}

/// Lets [`enter`] find the calling thread's fast path, which has been opened under this name.
pub(crate) fn remember(name: Name, path: HeapPath) {
    table::put(name, path);
}

/// From now on no thread finds a fast path before it has opened it again. May be called in a forked child.
pub(crate) fn forget_all() {
    table::clear();
}
