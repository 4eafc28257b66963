//! Deferred frees: frees that were impossible where they were requested, by a caller that cannot be told so, since the
//! deleter of a tensor returns no status. They are done by the next call on that memory that can. Until then the block
//! is live.
//!
//! Only addresses are kept here, and no device is called: `memory/requests.rs` frees the blocks.

use crate::base::boxed::try_push;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::{Mutex, lock};
use crate::runtime::entry::reentry;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The addresses of blocks that are still to be freed.
pub(crate) struct DeferredFrees {
    /// Whether there may be any. Relaxed: a thread that misses one leaves it to the next call.
    any: AtomicBool,
    blocks: Mutex<Vec<u64>>,
}

/// So many frees may be deferred without memory of the host for it.
const ROOM: usize = 256;

impl Default for DeferredFrees {
    fn default() -> Self {
        DeferredFrees { any: AtomicBool::new(false), blocks: Mutex::new(Vec::with_capacity(ROOM)) }
    }
}

/// Whether a free that failed with this error may succeed later.
fn may_pass(e: &Error) -> bool {
    !matches!(
        e.code(),
        Code::UnknownPointer | Code::DoubleFree | Code::InvalidArgument | Code::NotInitialized
    )
}

impl DeferredFrees {
    /// Frees the block at `addr` with `free`, now or later.
    pub(crate) fn free(&self, addr: u64, free: impl FnOnce(u64) -> Result<()>) {
        // In a segment callback memory is about to change, so no other memory may change.
        let done = reentry::check_segment_callback().and_then(|()| free(addr));
        if done.is_err_and(|e| may_pass(&e)) {
            // Where there is no memory to note more of them, the block stays live.
            try_push(&mut lock(&self.blocks), addr);
            self.any.store(true, Relaxed);
        }
    }

    /// Puts back what could not be freed, in the list that it was taken out with.
    fn put_back(&self, mut left: Vec<u64>) {
        let mut blocks = lock(&self.blocks);
        if left.try_reserve(blocks.len()).is_ok() {
            left.append(&mut blocks);
        }
        std::mem::swap(&mut *blocks, &mut left);
        for addr in left {
            try_push(&mut blocks, addr);
        }
        if !blocks.is_empty() {
            self.any.store(true, Relaxed);
        }
    }

    /// Whether there may be any.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Frees the deferred blocks with `free`, as far as that is possible here. Returns whether none is left.
    #[cold]
    pub(crate) fn settle(&self, mut free: impl FnMut(u64) -> Result<()>) -> bool {
        if reentry::check_segment_callback().is_err() {
            return !self.any();
        }
        // Taken out first: a free may call this again.
        let mut all = {
            let mut blocks = lock(&self.blocks);
            self.any.store(false, Relaxed);
            std::mem::take(&mut *blocks)
        };
        all.retain(|&addr| free(addr).is_err_and(|e| may_pass(&e)));
        let none_left = all.is_empty();
        self.put_back(all);
        none_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_kept_until_it_is_done_and_what_is_gone_is_not() {
        let kept = DeferredFrees::default();
        let fails = |code| move |_| Err(Error::new(code, "no"));
        kept.free(1, |_| Ok(()));
        kept.free(2, fails(Code::DoubleFree));
        assert!(!kept.any());
        kept.free(3, fails(Code::Device));
        reentry::in_segment_callback(|| {
            kept.free(4, |_| Ok(()));
            assert!(!kept.settle(|_| Ok(())));
        });
        let mut seen = Vec::new();
        let mut half = |addr| {
            seen.push(addr);
            if addr == 3 { fails(Code::Busy)(addr) } else { Ok(()) }
        };
        assert!(!kept.settle(&mut half) && kept.any());
        assert!(kept.settle(|addr| if addr == 3 { Ok(()) } else { fails(Code::Busy)(addr) }));
        assert!(!kept.any());
        assert_eq!(seen, [3, 4]);
    }
}
