//! Blocks that begin at a multiple of more than all blocks do: a part of a free block of the large tier, cut out where it
//! has to begin. What is free on both sides stays free. Such a block is never scattered: its addresses would begin where
//! its first piece does.
//!
//! Where the device maps, granules lie at multiples of their size, so what is taken from it always contains such a
//! part. A segment lies where the device has put it, so more is asked for; and if blocks in it begin at no multiple of
//! what is wanted at all, the request fails rather than to take one segment after another.

use super::super::desc::Id;
use super::super::ground::Ground;
use super::super::heap::LockedHeap;
use super::super::shape::{Size, Tier, large_units};
use super::super::units::{Extent, LARGE_SHIFT};
use super::{Aligned, Request};
use crate::base::error::{Code, Result};
use crate::base::sync::Ordering::Relaxed;
use crate::fail;

const UNIT: u64 = 1 << LARGE_SHIFT;

impl Ground {
    /// Searches everywhere for a block that begins at a multiple of `to` bytes; `plain` is the request without that.
    pub(crate) fn search_aligned(&self, plain: &Request, to: u64) -> Result<u64> {
        let units = large_units(plain.charged);
        let beside = if self.config.mapping { 0 } else { (to / UNIT).saturating_sub(1) as u32 };
        let room = units.saturating_add(beside);
        let charged = u64::from(room) << LARGE_SHIFT;
        let mut h = plain.heap.lock_to_allocate(self.shared());
        plain.check_pool()?;
        if self.is_direct(charged) && !self.is_pinned(plain.heap) {
            let _asking = self.asking(&mut h);
            drop(h);
            let size = Size { tier: Tier::Large, units };
            let charged = self.charge_of(Tier::Large as u32, units, plain.bytes);
            return self.alloc_direct(&Request { size, charged, ..*plain });
        }
        if plain.bytes > self.maps.shape.largest() {
            h.counters.totals(); // reads the sums now: sizes like this could make them wrap more than once
        }
        let aligned = Aligned { to, units };
        let size = Size { tier: Tier::Large, units: room };
        let req = Request { size, charged, aligned: Some(aligned), ..*plain };
        let mut id = self.fit_aligned(&mut h, &req, aligned, false)?;
        let _asking = self.asking(&mut h);
        if id == 0 && !h.waiting.is_empty() {
            drop(h);
            self.poll(req.heap);
            h = self.lock(req.heap);
            id = self.fit_aligned(&mut h, &req, aligned, false)?;
        }
        if id != 0 {
            return Ok(self.finish_aligned(h, id, &req, aligned));
        }
        drop(h);
        self.refill(&req)
    }

    /// Makes a block that [`fit_aligned`](Self::fit_aligned) has cut live, and counts it; its offset.
    pub(super) fn finish_aligned(&self, h: LockedHeap<'_>, id: Id, req: &Request, to: Aligned) -> u64 {
        let large = Tier::Large as u32;
        let charged = self.charge_of(large, to.units, req.bytes);
        self.finish(h, id, large, &Request { charged, ..*req })
    }

    /// A block for the request, cut from what the heap has free, not yet live; 0 if nothing fits, or ids ran out.
    /// `fresh`: memory was just taken for it; `Unsupported` if blocks there are at no such addresses.
    pub(super) fn fit_aligned(
        &self,
        h: &mut LockedHeap<'_>,
        req: &Request,
        to: Aligned,
        fresh: bool,
    ) -> Result<Id> {
        self.drain(h);
        h.flush_large();
        let mut id = self.cut_aligned(h, req, to, false)?;
        if id == 0 {
            h.flush();
            id = self.cut_aligned(h, req, to, fresh)?;
        }
        h.count_stuck();
        Ok(id)
    }

    /// Cuts it from the smallest free block that has room for it.
    fn cut_aligned(&self, h: &mut LockedHeap<'_>, req: &Request, to: Aligned, fresh: bool) -> Result<Id> {
        let mut best: Option<(u32, Id, Extent)> = None;
        let mut beside = false;
        h.each_free(to.units, |id, free| {
            let address = self.backing.address(u64::from(free.off) << LARGE_SHIFT);
            let skipped = address.next_multiple_of(to.to) - address;
            let part = Extent::new(free.off + (skipped / UNIT) as u32, to.units);
            let fits = skipped.is_multiple_of(UNIT) && part.end() <= free.end();
            if fits && best.is_none_or(|b| free.units < b.0) {
                best = Some((free.units, id, part));
            }
            beside |= !skipped.is_multiple_of(UNIT) && free.units >= req.size.units;
        });
        match best {
            Some((_, id, part)) => Ok(h.carve(id, part).unwrap_or(0)),
            None if beside && (fresh || to.to >= self.misaligned.load(Relaxed)) => {
                self.misaligned.fetch_min(to.to, Relaxed); // or each such request would take another segment
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
