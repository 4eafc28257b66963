//! The fast paths of threads to the heaps that they used lately, by the caller's number for a pool and the stream.

use crate::base::biased::Name;
#[cfg(not(loom))]
use crate::base::biased::fast_paths::FastPaths;
use crate::core::{EnteredHeap, HeapPath};
#[cfg(not(loom))]
use crate::core::{HeapSeat, HeapState, Way};

#[cfg(not(loom))]
static NOBODYS: HeapSeat = HeapSeat::nobodys();
#[cfg(not(loom))]
static FAST_PATHS: FastPaths<HeapState, Way> = FastPaths::new(&NOBODYS);

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
    #[cfg(not(loom))]
    return EnteredHeap::by(FAST_PATHS.find(name), name);
    // No model comes here.
    #[cfg(loom)]
    {
        let _ = name;
        None
    }
}

/// Lets [`enter`] find the calling thread's fast path, which has been opened under this name.
pub(crate) fn remember(name: Name, path: HeapPath) {
    #[cfg(not(loom))]
    FAST_PATHS.put(name, path);
    #[cfg(loom)]
    let _ = (name, path);
}

/// From now on no thread finds a fast path before it has opened it again. May be called in a forked child.
pub(crate) fn forget_all() {
    #[cfg(not(loom))]
    FAST_PATHS.clear();
}
