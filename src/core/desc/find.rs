//! Finds the block that starts at an offset, or that contains it.

use super::super::shape::shift_of;
use super::super::units::{GRANULE, GRANULE_SHIFT, LARGE_SHIFT};
use super::{Desc, Found, GranuleUse, Id, Maps, UseRecord, use_of};
use crate::base::sync::Ordering::Relaxed;

impl Maps {
    /// The plainly live block (no flag) that starts at `offset`, if there is one and its granule's record is still `g`.
    /// The caller has locked the heap that `g` names.
    #[inline(always)]
    pub(crate) fn plainly_live(
        &self,
        record: UseRecord<'_>,
        g: GranuleUse,
        offset: u64,
    ) -> Option<(Id, Desc<'_>, u32)> {
        self.live_with(0, record, g, offset)
    }

    /// The same with these flags and no others.
    #[inline(always)]
    pub(crate) fn live_with(
        &self,
        flags: u32,
        record: UseRecord<'_>,
        g: GranuleUse,
        offset: u64,
    ) -> Option<(Id, Desc<'_>, u32)> {
        if record.now() != g {
            return None;
        }
        let unit = g.unit(offset);
        let id = self.at(g.entry(unit as u32));
        let d = self.desc(id);
        let state = d.state();
        if state != g.live_state() | flags || u64::from(d.off()) != unit {
            return None;
        }
        Some((id, d, state))
    }

    /// The plainly live block that starts at `offset` and belongs to the heap that has this [`mark`](GranuleUse::mark). The
    /// caller has locked that heap.
    #[inline(always)]
    pub(crate) fn live_of(&self, mark: u32, offset: u64) -> Option<(Id, Desc<'_>, u32)> {
        let g = self.granule_of(offset);
        let unit = g.unit(offset);
        let id = self.at(g.entry(unit as u32));
        let d = self.desc(id);
        let state = d.state();
        // The block says that it belongs to the heap, and so the granule does in which it lies, which is this one if it
        // starts here in the tier that the granule serves.
        if !g.has_live(mark, state) || u64::from(d.off()) != unit {
            return None;
        }
        Some((id, d, state))
    }

    /// Whether block `id` starts at `offset`, whatever its state.
    pub(crate) fn starts_at(&self, id: Id, offset: u64) -> bool {
        let d = self.desc(id);
        u64::from(d.off()) << shift_of(d.tier_bits()) == offset
    }

    /// The block that starts at `offset`, whatever its state, and its heap. `None`: no block starts there.
    #[inline(always)]
    pub(crate) fn find(&self, offset: u64) -> Option<Found<'_>> {
        let g = self.granule_of(offset);
        let unit = g.unit(offset);
        let id = self.at(g.entry(unit as u32));
        let desc = self.desc(id);
        // The entry may be stale, or the granule unowned (its use is 0): trust the entry only if the block says that it
        // starts here, in the tier that the granule serves.
        if u64::from(desc.off()) != unit || use_of::of_blocks(desc.tier_bits()) != g.use_() {
            return None;
        }
        Some(Found { id, heap: g.heap(), desc })
    }

    /// The block that contains `offset`, found by walking back to its start. A walk through a large block is
    /// remembered, so that addresses within a block of gigabytes are found one after the other in a few steps each.
    pub(crate) fn find_holding(&self, offset: u64) -> Option<Found<'_>> {
        let index = (offset >> GRANULE_SHIFT).min(u64::from(u32::MAX)) as u32;
        let g = self.granule(index);
        match g.use_() {
            use_of::SMALL | use_of::MEDIUM => {
                let shift = g.shift();
                let first = offset & !(GRANULE - 1);
                let mut at = offset >> shift << shift;
                loop {
                    if let Some(f) = self.holding_from(at, offset) {
                        return Some(f);
                    }
                    if at <= first {
                        return None;
                    }
                    at -= 1 << shift;
                }
            }
            use_of::LARGE => self.find_large_holding(offset, index),
            use_of::ALIAS | use_of::ALIAS_REST => {
                let id = if g.use_() == use_of::ALIAS { self.at(self.alias_entry(index)) } else { g.low() };
                self.holding_from(u64::from(self.desc(id).off()) << LARGE_SHIFT, offset)
            }
            _ => None,
        }
    }

    fn find_large_holding(&self, offset: u64, index: u32) -> Option<Found<'_>> {
        let shift = LARGE_SHIFT;
        let mut at = offset >> shift << shift;
        let mut granule = index;
        loop {
            let known = self.get(self.holders.get(granule as usize)?.load(Relaxed));
            if let Some(f) = known.and_then(|d| self.holding_from(u64::from(d.off()) << shift, offset)) {
                self.note_holder(index, f.id);
                return Some(f);
            }
            while at >> GRANULE_SHIFT == u64::from(granule) {
                if let Some(f) = self.holding_from(at, offset) {
                    if granule != index {
                        self.note_holder(index, f.id);
                    }
                    return Some(f);
                }
                at = at.checked_sub(1 << shift)?;
            }
            granule -= 1;
            if self.granule(granule).use_() != use_of::LARGE {
                return None;
            }
        }
    }

    fn note_holder(&self, granule: u32, id: Id) {
        if let Some(h) = self.holders.get(granule as usize) {
            h.store(id, Relaxed);
        }
    }

    /// The block that starts at `at`, if there is one and it contains `offset`. A stale entry may name a block that
    /// lies elsewhere, or ends before.
    fn holding_from(&self, at: u64, offset: u64) -> Option<Found<'_>> {
        let holds = |b: u64| at <= offset && offset - at < b;
        self.find(at).filter(|f| self.bytes(f.id).is_some_and(holds))
    }
}
