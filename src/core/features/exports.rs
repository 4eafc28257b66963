//! Exported blocks: others outside this process may use their memory. The fence of an export is passed once nobody does
//! any more, which may be never.
//!
//! So nothing ever waits for such a fence. An exported block that is freed stays on the list of waiting blocks until
//! nobody uses it, and is checked now and then. Whatever would take the memory away from others (sleep, restore, the
//! end of the pool) is refused meanwhile.

use super::super::blocks::WaitingBlocks;
use super::super::desc::ALIAS;
use super::super::ground::{Ground, Pool};
use super::super::order::Fence;
use super::super::types::PoolId;
use super::super::units::{GRANULE, GranuleRun, granule_at};
use crate::base::error::{Code, Result};
use crate::fail;

/// Where the memory of a block is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    /// The requested bytes.
    pub bytes: u64,
    /// Bytes from the start of the first granule to the block.
    pub skip: u64,
    /// Its granules in the order of addresses. Empty if the device does not map.
    pub granules: Vec<GranuleRun>,
}

/// Blocks of a pool, or of the device, that others use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Freed ones.
    pub freed: u64,
    /// Their bytes after rounding.
    pub freed_bytes: u64,
    /// Live ones.
    pub live: u64,
}

/// Blocks used by other processes or devices; from [`Pond::exports`](crate::core::Pond::exports).
#[derive(Clone, Copy)]
pub struct ExportCalls<'a> {
    ground: &'a Ground,
}

impl<'a> ExportCalls<'a> {
    pub(crate) fn of(ground: &'a Ground) -> ExportCalls<'a> {
        ExportCalls { ground }
    }

    /// The pieces of memory behind the live block at `offset`. `NotPermitted` while its pool sleeps.
    pub fn pieces(self, offset: u64) -> Result<Pieces> {
        let ground = self.ground;
        let (f, heap) = ground.live_block(offset)?;
        let h = ground.look(heap);
        if !h.still_live(f.id, offset) {
            fail!(Code::UnknownPointer, "the block was freed meanwhile");
        }
        if ground.pools().get(PoolId(heap.pool())).is_some_and(Pool::sleeps) {
            fail!(Code::NotPermitted, "the pool of the block sleeps");
        }
        let (bytes, skip) = (f.desc.requested(), offset & (GRANULE - 1));
        if !ground.config.mapping {
            return Ok(Pieces { bytes, ..Pieces::default() });
        }
        let granules = if f.desc.tier_bits() == ALIAS {
            ground.aliases().pieces(f.desc.aux()).iter().map(|p| p.touched()).collect()
        } else {
            vec![GranuleRun::new(granule_at(offset), (skip + bytes).div_ceil(GRANULE) as u32)]
        };
        drop(h);
        Ok(Pieces { bytes, skip, granules })
    }

    /// Marks the live block at `offset` as used by others until `point`, which the backing has made, is passed.
    pub fn add(self, offset: u64, point: u64) -> Result<()> {
        self.add_fence(offset, self.ground.order.adopt(point))
    }

    /// The same with a fence.
    pub(crate) fn add_fence(self, offset: u64, fence: Fence) -> Result<()> {
        let ground = self.ground;
        let (f, heap) = ground.live_block(offset)?;
        let before = ground.look(heap).exports.get(&f.id).cloned().unwrap_or_default();
        // At powers of two: a block that is exported repeatedly keeps at most twice the exports in use, at constant
        // cost.
        if before.len().is_power_of_two() {
            before.iter().for_each(|f| _ = f.ask());
        }
        let mut h = ground.lock(heap);
        if !h.still_live(f.id, offset) || !f.desc.flag_uses() {
            fail!(Code::UnknownPointer, "the block was freed meanwhile");
        }
        let fences = h.exports.entry(f.id).or_default();
        fences.retain(|f| !f.is_passed());
        fences.push(fence);
        drop(h);
        Ok(())
    }

    /// The blocks that others still use, of all pools or of one.
    pub fn all(self, pool: Option<PoolId>) -> Exported {
        let ground = self.ground;
        let mut out = Exported::default();
        for heap in ground.heaps_in(pool) {
            WaitingBlocks::of(ground).poll(heap);
            let of_live: Vec<Fence> = ground.look(heap).exports.values().flatten().cloned().collect();
            of_live.iter().for_each(|f| _ = f.ask());
            let mut h = ground.look(heap);
            for w in h.waiting.exported() {
                out.freed += 1;
                out.freed_bytes += ground.maps.charge(w.id);
            }
            h.exports.retain(|_, fences| {
                fences.retain(|f| !f.is_passed());
                !fences.is_empty()
            });
            out.live += h.exports.len() as u64;
        }
        out
    }

    /// `Busy` while others use freed blocks of the pool.
    pub(super) fn check_freed(self, pool: PoolId) -> Result<()> {
        check(self.all(Some(pool)).freed)
    }

    /// `Busy` while others use blocks of the pool, live or freed.
    pub(super) fn check_all(self, pool: PoolId) -> Result<()> {
        let used = self.all(Some(pool));
        check(used.freed + used.live)
    }
}

fn check(used: u64) -> Result<()> {
    if used > 0 {
        fail!(Code::Busy, "exported blocks of the pool that others still use: {used}");
    }
    Ok(())
}
