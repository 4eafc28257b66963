//! Memory with hooks (`watch/hooks.rs`): the path of a request and of a free that the program's own code is told of.
//!
//! Hooks hear of a block after it was allocated and before the caller has it, and of its free before the memory can be
//! allocated again. So for each address, allocations and frees alternate. A free that fails after that is reported, too.

use super::marks::Mark;
use super::pooled::Block;
use super::state::{How, Memory};
use crate::base::error::Result;
use crate::core::{BlockInfo, Restored};
use crate::runtime::memory::handle_cache;
use crate::runtime::watch::hooks::{BlockEvent, BlockEventKind, Hook};
use std::sync::Arc;

/// The hooks of one device's memory. Get it with [`Memory::hooks`].
#[derive(Clone, Copy)]
pub struct MemoryHooks<'a>(&'a Memory);

impl Memory {
    /// Callbacks for each block that is allocated or freed.
    pub fn hooks(&self) -> MemoryHooks<'_> {
        MemoryHooks(self)
    }
}

impl MemoryHooks<'_> {
    /// From now on `hook` is called for each block of the device that is allocated or freed, on the thread that does it
    /// and with no lock held; calls that are under way may go untold. It may allocate and free, of which no hook is
    /// told. A panic ends the hook's call only. Hooks end with the device, and are not told of blocks that end with it.
    /// Returns the number to remove it with.
    pub fn add(&self, hook: impl Fn(&BlockEvent) + Send + Sync + 'static) -> Result<u64> {
        self.add_shared(Arc::new(hook), true)
    }

    /// The same; `owned`: what it uses ends with it.
    pub(crate) fn add_shared(&self, hook: Arc<Hook>, owned: bool) -> Result<u64> {
        let id = self.0.hooks.add(hook, owned)?;
        self.0.marks.set(Mark::Hooked);
        // From here on calls must come by this file.
        if let How::Pooled(p) = &self.0.how {
            handle_cache::bypass_all(p);
        }
        Ok(id)
    }

    /// Removes a hook; waits for threads that are in it, except where it is called from within a hook, an out-of-memory
    /// callback or a stream callback: it is dropped by the last thread that leaves it. `InvalidArgument` for a number that
    /// is none.
    pub fn remove(&self, id: u64) -> Result<()> {
        if self.0.hooks.remove(id)? {
            return Ok(());
        }
        self.0.marks.clear(Mark::Hooked);
        if self.any() {
            self.0.marks.set(Mark::Hooked); // one has come meanwhile
        }
        Ok(())
    }

    /// Whether there are any.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.0.hooks.any()
    }

    /// The block at `addr` was just allocated.
    #[cold]
    pub(super) fn allocated(&self, addr: u64) {
        if let Ok(block) = self.0.block(addr)
            && block.base == addr
        {
            self.0.hooks.tell(&BlockEvent::of(BlockEventKind::Alloc, &block));
        }
    }

    /// Calls the hooks, then `free`, which takes the block as it was looked up here.
    #[cold]
    pub(super) fn free(
        &self,
        mut block: Block,
        size: Option<u64>,
        free: impl FnOnce(Block) -> Result<()>,
    ) -> Result<()> {
        let found = match &self.0.how {
            How::Pooled(p) => block.located(p).ok().and_then(|(addr, offset)| {
                let found = p.pond.block(offset).ok().filter(|b| b.base == offset)?;
                if matches!(block, Block::At(_)) {
                    block = Block::Found { addr, offset };
                }
                Some(BlockInfo { base: addr, ..found })
            }),
            How::Unpooled(_) => match block {
                Block::At(addr) => self.0.block(addr).ok().filter(|b| b.base == addr),
                _ => None,
            },
        };
        let right = |b: &BlockInfo| size.is_none_or(|s| s == b.requested);
        let Some(told) = found.filter(right) else { return free(block) };
        self.freed(&told);
        free(block).inspect_err(|_| self.free_failed(&told))
    }

    /// A block is about to be freed.
    pub(super) fn freed(&self, block: &BlockInfo) {
        self.0.hooks.tell(&BlockEvent::of(BlockEventKind::Free, block));
    }

    /// That free has failed.
    pub(super) fn free_failed(&self, block: &BlockInfo) {
        self.0.hooks.tell(&BlockEvent::of(BlockEventKind::FreeFailed, block));
    }

    /// Blocks have come and gone by a restore.
    pub(super) fn restored(&self, done: &Restored) {
        if !self.any() {
            return;
        }
        for freed in &done.freed {
            self.0.hooks.tell(&BlockEvent::of(BlockEventKind::Free, &freed.block));
        }
        done.live.iter().for_each(|&(addr, _)| self.allocated(addr));
    }
}
