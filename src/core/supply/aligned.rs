//! Over-aligned blocks, cut from a free large block at its first aligned offset. What is free on both sides stays free.
//! Such a block is never scattered: its addresses would begin where its first piece does.
//!
//! Where the device maps, granules lie at multiples of their size, so memory from the device always contains an aligned
//! part. A segment lies where the device has put it, so more is asked for; and if no unit in it is aligned at all, the
//! request fails rather than take one segment after another.

use super::super::blocks::{Blocks, WaitingBlocks};
use super::super::desc::Id;
use super::super::heap::LockedHeap;
use super::super::shape::{Size, Tier, large_units};
use super::super::units::{Extent, LARGE_SHIFT};
use super::request::{Aligned, Request};
use super::serve::Serving;
use crate::base::error::{Code, Result};
use crate::fail;

/// [B] of a unit of the large tier.
const UNIT: u64 = 1 << LARGE_SHIFT;

impl Serving<'_> {
    /// Searches everywhere for a block that begins at a multiple of `to` bytes; the request is one without that. Returns
    /// its offset.
    pub(crate) fn search_aligned(self, to: u64) -> Result<u64> {
        let (ground, plain) = (self.ground, self.req);
        let shape = &ground.maps.shape;
        let units = large_units(plain.charged);
        let beside = if ground.config.mapping { 0 } else { (to / UNIT).saturating_sub(1) as u32 };
        let room = units.saturating_add(beside);
        let mut h = plain.heap.lock_to_allocate(ground.shared());
        plain.check_pool(&h)?;
        let charged = u64::from(room) << LARGE_SHIFT;
        let aligned = Aligned { to, units };
        let size = Size { tier: Tier::Large, units: room };
        let req = Request { size, charged, aligned: Some(aligned), ..*plain };
        let mut serving = Serving::of(ground, &req);
        if serving.is_direct() && !ground.pools().is_pinned(plain.heap) {
            let _asking = self.asking(&mut h);
            drop(h);
            let charged = ground.maps.charge_of(Tier::Large as u32, units, plain.bytes);
            let size = Size { tier: Tier::Large, units };
            let req = Request { size, ..plain.charged_as(shape, charged) };
            return Serving::of(ground, &req).take_own_segment();
        }
        if plain.tuned {
            h.counters.totals(); // reads the sums now: sizes like this could make them wrap more than once
        }
        let mut id = serving.fit_aligned(&mut h, aligned, false)?;
        let _asking = self.asking(&mut h);
        if id == 0 && !h.waiting.is_empty() {
            drop(h);
            WaitingBlocks::of(ground).poll(req.heap);
            h = ground.lock(req.heap);
            id = serving.fit_aligned(&mut h, aligned, false)?;
        }
        if id != 0 {
            return Ok(serving.finish_aligned(h, id, aligned));
        }
        drop(h);
        serving.refill()
    }

    /// Makes a block that [`fit_aligned`](Self::fit_aligned) has cut live, and counts it; returns its offset.
    pub(super) fn finish_aligned(&self, h: LockedHeap<'_>, id: Id, to: Aligned) -> u64 {
        let maps = &self.ground.maps;
        let large = Tier::Large as u32;
        let charged = maps.charge_of(large, to.units, self.req.bytes);
        let req = self.req.charged_as(&maps.shape, charged);
        Serving { req: &req, ..*self }.finish(h, id, large)
    }

    /// A block for the request, cut from what the heap has free, not yet live; 0 if nothing fits, or ids ran out.
    /// `fresh`: memory was just taken for it; `Unsupported` if no unit of it is aligned.
    pub(super) fn fit_aligned(&mut self, h: &mut LockedHeap<'_>, to: Aligned, fresh: bool) -> Result<Id> {
        Blocks::of(self.ground).drain(h);
        h.flush_large();
        let mut id = self.cut_aligned(h, to, false)?;
        if id == 0 {
            h.flush();
            id = self.cut_aligned(h, to, fresh)?;
        }
        h.count_stuck();
        Ok(id)
    }

    /// Cuts it from the smallest free block that has room for it.
    fn cut_aligned(&self, h: &mut LockedHeap<'_>, to: Aligned, fresh: bool) -> Result<Id> {
        let ground = self.ground;
        let mut best: Option<(u32, Id, Extent)> = None;
        let mut misaligned = false;
        h.each_free(to.units, |id, free| {
            let address = ground.backing.address(u64::from(free.off) << LARGE_SHIFT);
            let skipped = address.next_multiple_of(to.to) - address;
            let part = Extent::new(free.off + (skipped / UNIT) as u32, to.units);
            let fits = skipped.is_multiple_of(UNIT) && part.end() <= free.end();
            if fits && best.is_none_or(|b| free.units < b.0) {
                best = Some((free.units, id, part));
            }
            misaligned |= !skipped.is_multiple_of(UNIT) && free.units >= self.req.size.units;
        });
        match best {
            Some((_, id, part)) => Ok(h.carve(id, part).unwrap_or(0)),
            None if misaligned && (fresh || to.to >= ground.hints.misaligned()) => {
                ground.hints.note_misaligned(to.to); // or each such request would take another segment
                fail!(
                    Code::Unsupported,
                    "no block of what the device gives begins at a multiple of {} bytes",
                    to.to
                )
            }
            None => Ok(0),
        }
    }
}
