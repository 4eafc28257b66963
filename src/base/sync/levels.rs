//! The order of the library's locks and, in debug builds, the check of it.
//!
//! Each lock has a *level*. The levels are listed here from the outermost lock to the innermost; a thread may take a
//! lock only if all locks that it holds have lower levels. Two locks of one level are never held together, except
//! heaps, which are taken in ascending order of their numbers. While a device, a plugin or a callback is called, the
//! thread holds no lock at all, or only [`SEGMENTS_TURN`], which keeps such calls in order. `docs/architecture.md` has
//! the same list for readers.

macro_rules! levels {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Number { $($name),+ }
        $($(#[doc = $doc])+ pub const $name: u8 = Number::$name as u8;)+
        /// The names of the levels, outermost first.
        pub const NAMES: &[&str] = &[$(stringify!($name)),+];
    };
}

levels! {
    /// The turn to call segment callbacks (`runtime/backing/segments.rs`). Held while they run, so that they are called
    /// in order.
    SEGMENTS_TURN,
    /// The device types that are registered.
    REGISTRY,
    /// The options of one device, and its limit.
    SETTINGS,
    /// The pools named by allocation scopes.
    SCOPES,
    /// Memory that is taken from a device, and memory in transit (`core/state/growth.rs`).
    GROWTH,
    /// The heaps of one pool, by stream.
    POOL_STREAMS,
    /// What the memory of one pool's released captures waits for.
    POOL_RELEASED,
    /// Live captures.
    CAPTURES,
    /// Checkpoints: the recorded layouts of pools.
    CHECKPOINTS,
    /// Which memory of the pools sleeps.
    SLEEPING,
    /// Sums and peaks of the device and its pools.
    LEDGER,
    /// One heap. Several are taken in ascending order of their numbers.
    HEAP,
    /// Which heaps contain freed blocks that wait.
    WAITING,
    /// The addresses of scattered blocks.
    ALIASES,
    /// Free slots in the tables of one tier.
    TABLE_SLOTS,
    /// Block ids that no heap holds.
    SPARE_IDS,
    /// Streams that have been used, and the fences that ended streams left behind.
    STREAMS,
    /// Which streams are being captured, and on which ones fences are being recorded.
    RECORDING,
    /// The fence that one ended stream left behind.
    STREAM_END,
    /// The driver that the type `cuda` has loaded.
    CUDA_TYPE,
    /// The streams of the host device.
    HOST_STREAMS,
    /// Whose turn it is to change who watches a device's memory (`runtime/watch/observe.rs`).
    OBSERVERS,
    /// Pools that were looked up recently (`runtime/memory/handle_cache.rs`).
    HANDLE_CACHE,
    /// Every other lock: no lock is taken while one of these is held.
    LEAF,
}

/// Records that the calling thread holds a lock, until dropped. Costs nothing in a release build.
#[derive(Debug)]
pub(crate) struct HeldLock {
    #[cfg(all(debug_assertions, not(loom)))]
    what: (u8, u32),
}

#[cfg(all(debug_assertions, not(loom)))]
mod check {
    use super::{HEAP, NAMES};
    use std::cell::RefCell;
    use std::panic::Location;

    thread_local! {
        /// The locks that this thread holds: the level, the number within the level, and where each was taken.
        static HELD: RefCell<Vec<(u8, u32, &'static Location<'static>)>> = const { RefCell::new(Vec::new()) };
    }

    fn name(level: u8) -> &'static str {
        NAMES.get(usize::from(level)).copied().unwrap_or("?")
    }

    #[track_caller]
    #[allow(clippy::panic, reason = "debug builds only")]
    pub(super) fn take((level, number): (u8, u32)) {
        let here = Location::caller();
        let wrong =
            |held: (u8, u32)| held.0 > level || held.0 == level && (level != HEAP || held.1 >= number);
        // A thread that is ending has no list any more.
        let _ = HELD.try_with(|all| {
            let worst = all.borrow().iter().copied().filter(|h| wrong((h.0, h.1))).max_by_key(|h| (h.0, h.1));
            if let Some((above, n, there)) = worst {
                panic!(
                    "{here}: {} {number} is locked while {} {n} is held since {there}",
                    name(level),
                    name(above)
                );
            }
            all.borrow_mut().push((level, number, here));
        });
    }

    pub(super) fn leave(what: (u8, u32)) {
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|h| (h.0, h.1) == what) {
                held.remove(at);
            }
        });
    }

    #[allow(clippy::panic, reason = "debug builds only")]
    pub(super) fn none_above(level: u8, doing: &str) {
        let _ = HELD.try_with(|held| {
            if let Some((above, n, there)) = held.borrow().iter().copied().find(|h| h.0 > level) {
                panic!("{doing} while {} {n} is held since {there}", name(above));
            }
        });
    }
}

impl HeldLock {
    /// Records that the calling thread is about to take lock `number` of a level.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn new(level: u8, number: u32) -> HeldLock {
        #[cfg(all(debug_assertions, not(loom)))]
        {
            check::take((level, number));
            HeldLock { what: (level, number) }
        }
        #[cfg(not(all(debug_assertions, not(loom))))]
        {
            let _ = (level, number);
            HeldLock {}
        }
    }
}

#[cfg(all(debug_assertions, not(loom)))]
impl Drop for HeldLock {
    fn drop(&mut self) {
        check::leave(self.what);
    }
}

/// In a debug build, checks that the calling thread holds no lock other than `SEGMENTS_TURN`.
#[inline(always)]
pub(crate) fn check_unlocked(doing: &str) {
    #[cfg(all(debug_assertions, not(loom)))]
    check::none_above(SEGMENTS_TURN, doing);
    #[cfg(not(all(debug_assertions, not(loom))))]
    let _ = doing;
}

#[cfg(all(test, debug_assertions, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_locked_out_of_order_is_found() {
        let caught = |f: fn()| std::panic::catch_unwind(f).is_err();
        assert!(!caught(|| {
            let _growth = HeldLock::new(GROWTH, 0);
            let _heaps = (HeldLock::new(HEAP, 3), HeldLock::new(HEAP, 7));
            let _leaf = HeldLock::new(LEAF, 0);
        }));
        assert!(caught(|| {
            let _heap = HeldLock::new(HEAP, 3);
            let _growth = HeldLock::new(GROWTH, 0);
        }));
        assert!(caught(|| {
            let _heaps = (HeldLock::new(HEAP, 7), HeldLock::new(HEAP, 3));
        }));
        assert!(caught(|| {
            let _two = (HeldLock::new(LEAF, 0), HeldLock::new(LEAF, 0));
        }));
        assert!(caught(|| {
            let _heap = HeldLock::new(HEAP, 0);
            check_unlocked("a call");
        }));
        assert!(!caught(|| {
            let _turn = HeldLock::new(SEGMENTS_TURN, 0);
            check_unlocked("a call");
        }));
        check_unlocked("what was held was given back");
    }
}
