//! Memory with hooks (`watch/hooks.rs`): the way of a request and of a free when the program's own code is told of them.
//!
//! A block is told of after it was given, and before its caller has it; its free before anybody else can have it. So
//! for each address allocations and frees come in turn. A free that fails after that is told of, too.

use super::pooled::Block;
use super::state::{How, Marks, Memory};
use crate::base::error::Result;
use crate::core::{BlockInfo, Restored};
use crate::runtime::memory::handle_cache;
use crate::runtime::watch::hooks::{BlockEvent, BlockEventKind, Hook, Hooks};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Memory {
    /// From now on `hook` is called for each block of the device that is allocated or freed, on the thread that does it
    /// and with no lock held; calls that are under way may go untold. It may allocate and free, of which no hook is
    /// told. A panic ends the hook's call only. Hooks end with the device, and are not told of blocks that end with it.
    /// Returns the number to remove it with.
    pub fn add_hook(&self, hook: impl Fn(&BlockEvent) + Send + Sync + 'static) -> Result<u64> {
        self.add_hook_of(Arc::new(hook), true)
    }

    /// The same; `owned`: what it uses ends with it.
    pub(crate) fn add_hook_of(&self, hook: Arc<Hook>, owned: bool) -> Result<u64> {
        let id = self.hooks.add(hook, owned)?;
        self.marks.fetch_or(Marks::HOOKED.bits(), Relaxed);
        // From here on calls must come by this file.
        if let How::Pooled(p) = &self.how {
            handle_cache::bypass_all(p);
        }
        Ok(id)
    }

    /// Removes a hook; waits for threads that are in it, except where it is called from within a hook, an out-of-memory
    /// callback or a stream callback: it is dropped by the last thread that leaves it. `InvalidArgument` for a number that
    /// is none.
    pub fn remove_hook(&self, id: u64) -> Result<()> {
        if self.hooks.remove(id)? {
            return Ok(());
        }
        self.marks.fetch_and(!Marks::HOOKED.bits(), Relaxed);
        if self.hooks.any() {
            self.marks.fetch_or(Marks::HOOKED.bits(), Relaxed); // one has come meanwhile
        }
        Ok(())
    }

    /// Its hooks.
    pub(crate) fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    /// The block at `addr` was just allocated.
    #[cold]
    pub(super) fn hook_alloc(&self, addr: u64) {
        if let Ok(block) = self.block(addr)
            && block.base == addr
        {
            self.hooks.tell(&BlockEvent::of(BlockEventKind::Alloc, &block));
        }
    }

    /// A free, which is told before it is done.
    #[cold]
    pub(super) fn free_hooked(
        &self,
        block: Block,
        size: Option<u64>,
        free: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let told = self.named(&block).and_then(|addr| self.block(addr).ok().filter(|b| b.base == addr));
        let right = |b: &BlockInfo| size.is_none_or(|s| s == b.requested);
        let Some(told) = told.filter(right) else { return free() };
        self.hook_free(&told);
        free().inspect_err(|_| self.hook_free_failed(&told))
    }

    /// A block is about to be freed.
    pub(super) fn hook_free(&self, block: &BlockInfo) {
        self.hooks.tell(&BlockEvent::of(BlockEventKind::Free, block));
    }

    /// That free has failed.
    pub(super) fn hook_free_failed(&self, block: &BlockInfo) {
        self.hooks.tell(&BlockEvent::of(BlockEventKind::FreeFailed, block));
    }

    /// The address of a block that is to be freed.
    fn named(&self, block: &Block) -> Option<u64> {
        match (block, &self.how) {
            (Block::At(addr), _) => Some(*addr),
            (Block::Missed { offset, .. }, How::Pooled(p)) => p.places.address(*offset).ok(),
            (Block::Missed { .. }, How::Unpooled(_)) => None,
        }
    }

    /// Blocks have come and gone by a restore.
    pub(super) fn hook_restored(&self, done: &Restored) {
        if !self.hooks.any() {
            return;
        }
        for freed in &done.freed {
            self.hooks.tell(&BlockEvent::of(BlockEventKind::Free, &freed.block));
        }
        done.live.iter().for_each(|&(addr, _)| self.hook_alloc(addr));
    }
}
