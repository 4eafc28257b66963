//! Requests for which no block of just their size waits: best fit, and what is tried when nothing fits.

use super::super::desc::Id;
use super::super::heap::{Heap, Inner};
use super::super::shape::{LARGE_UNITS, Tier, of_key};
use super::super::supply::WORTH_MAPPING;
use super::{Got, Locate, Pond};
use crate::base::biased::Guard;
use crate::base::error::Result;
use crate::base::sync::Ordering::Relaxed;

/// Best fits between two looks at what other threads have freed.
const DRAIN_EVERY: u32 = 32;

impl Pond {
    /// A block of a heap.
    pub(crate) fn alloc_in(&self, heap: &'static Heap, bytes: u64) -> Result<u64> {
        let Some(contract) = self.maps.shape.contract(bytes) else {
            return self.alloc_tuned(heap, bytes);
        };
        let key = self.maps.shape.key(contract);
        let mut h = match heap.inner.enter() {
            Some(h) => h.into(),
            None => Self::lock_to_allocate(heap),
        };
        let Some(id) = h.pop(&self.maps, key) else {
            return self.alloc_miss(heap, h, key, contract, bytes);
        };
        let offset = self.offset(id);
        h.make_live(self.maps.desc(id), bytes);
        let full = h.count_in(contract, bytes);
        drop(h);
        if full {
            self.settle(heap);
        }
        Ok(offset)
    }

    /// A block cut from what is free in the heap, in the usual case: the calling thread owns the heap, and something
    /// fits. It needs nothing from the device and cannot fail, but for [`Got::Missed`].
    pub(crate) fn alloc_placed(&self, heap: &'static Heap, bytes: u64, to: &impl Locate) -> Got {
        let shape = &self.maps.shape;
        let Some(contract) = shape.contract(bytes) else { return Got::Missed(heap) };
        let (tier, units) = of_key(shape.key(contract));
        let Some(mut h) = heap.inner.enter() else { return Got::Missed(heap) };
        if h.countdown == 0 || self.is_direct(contract) {
            return Got::Missed(heap);
        }
        let id = self.place(heap, &mut h, tier, units);
        if id == 0 {
            return Got::Missed(heap);
        }
        h.make_live_as(&self.maps, id, tier as u32, bytes);
        let at = to.locate(u64::from(self.maps.desc(id).off()) << shape.unit_shift(tier));
        let full = h.count_in(contract, bytes);
        Got::Block(at, full.then_some(heap))
    }

    /// Whether a request is a segment of its own, as far as its size goes.
    #[inline]
    fn is_direct(&self, contract: u64) -> bool {
        contract > self.config.max_chunk && !self.config.mapping
    }

    /// A best fit, not yet live; 0 when there is none in what is merged already.
    #[inline]
    fn place(&self, heap: &Heap, h: &mut Inner, tier: Tier, units: u32) -> Id {
        h.countdown = h.countdown.saturating_sub(1);
        if tier != Tier::Large {
            return h.fit(&self.maps, heap.index, tier, units);
        }
        if h.must_merge(&self.maps, units) {
            self.flush_large(heap, h);
        }
        if h.ragged && self.is_spared(h, units) {
            return 0;
        }
        h.fit_large(&self.maps, units)
    }

    /// Whether a block is rather scattered than put where it fits best: memory is scarce, and much of what is free lies
    /// in granules that are partly used.
    #[cold]
    fn is_spared(&self, h: &Inner, units: u32) -> bool {
        units >= LARGE_UNITS && h.fit_cost(&self.maps, units).is_some_and(|c| c > WORTH_MAPPING)
    }

    #[inline(never)]
    pub(crate) fn flush_large(&self, heap: &Heap, h: &mut Inner) {
        h.flush_large(&self.maps, heap.index, |a| self.set_idle(a));
    }

    #[inline(never)]
    pub(crate) fn alloc_miss(
        &self,
        heap: &'static Heap,
        mut h: Guard<'static, Inner>,
        key: u32,
        contract: u64,
        bytes: u64,
    ) -> Result<u64> {
        let (tier, units) = of_key(key);
        if self.is_direct(contract) && !self.pinned(heap) {
            drop(h);
            return self.alloc_direct(heap, units, contract, bytes);
        }
        if h.countdown == 0 {
            h.countdown = DRAIN_EVERY;
            self.drain(heap, &mut h);
            h.note_ragged(&self.maps, self.most_ragged.load(Relaxed));
        }
        let mut id = self.place(heap, &mut h, tier, units);
        let all = self.merges_small_first();
        if id == 0 && h.ragged && tier == Tier::Large && self.is_spared(&h, units) {
            drop(h);
            return self.refill(heap, tier, units, contract, bytes);
        }
        if id == 0 {
            id = self.fit_merged(heap, &mut h, tier, units, all);
        }
        if id == 0 && h.has_pending() {
            drop(h);
            self.poll(heap, false);
            h = heap.inner.lock();
            id = self.fit_merged(heap, &mut h, tier, units, all);
        }
        if id == 0 {
            drop(h);
            return self.refill(heap, tier, units, contract, bytes);
        }
        Ok(self.finish(heap, h, id, tier as u32, contract, bytes))
    }

    /// Whether small blocks are merged before a large one is scattered. In a lone heap that maps this comes last:
    /// they are rarely what a large one lacks, and would all have to be cut anew. Where heaps take granules from
    /// one another, chunks that stay longer than they must keep a program from coming to rest.
    pub(crate) fn merges_small_first(&self) -> bool {
        !self.config.mapping || self.heap_count.load(Relaxed) > 1
    }

    /// A fit after everything of its tier that was freed so far is merged; with `all`, after everything is.
    pub(crate) fn fit_merged(&self, heap: &Heap, h: &mut Inner, tier: Tier, units: u32, all: bool) -> Id {
        self.drain(heap, h);
        if tier != Tier::Large {
            h.flush_fine(&self.maps, heap.index, tier);
        }
        self.flush_large(heap, h);
        let mut id = h.fit(&self.maps, heap.index, tier, units);
        if id == 0 && (all || tier != Tier::Large) {
            self.flush(heap, h); // small blocks may hold the last granule that is missing
            id = h.fit(&self.maps, heap.index, tier, units);
        }
        if id == 0 && tier == Tier::Large { h.fit_any(&self.maps, units) } else { id }
    }

    /// Merges the quick slots of a locked heap.
    pub(crate) fn flush(&self, heap: &Heap, h: &mut Inner) {
        h.flush(&self.maps, heap.index, |a| self.aliases.lock().set_idle(a));
    }

    /// Makes a block that was just taken live, and counts it.
    pub(crate) fn finish(
        &self,
        heap: &Heap,
        mut h: Guard<'_, Inner>,
        id: Id,
        tier_bits: u32,
        contract: u64,
        bytes: u64,
    ) -> u64 {
        h.make_live_as(&self.maps, id, tier_bits, bytes);
        self.flag_odd(id, contract);
        let full = h.count_in(contract, bytes);
        let offset = self.offset(id);
        drop(h);
        if full {
            self.settle(heap);
        }
        offset
    }
}
