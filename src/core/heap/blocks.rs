//! Blocks of all tiers in a heap: from the bins and back, freed and live. The heap's lock is held throughout.

use super::super::desc::{ALIAS, DIRECT, Desc, Id, OVERSIZE, TUNED, USES, kind};
use super::super::shape::{Class, Size, TIER_SHIFT, Tier, list_of};
use super::{HeapState, LockedHeap, MEDIUM_LISTS};
use std::ops::DerefMut;

impl<G: DerefMut<Target = HeapState>> LockedHeap<'_, G> {
    /// A block from the bins, not yet live; 0 if nothing that is already merged fits.
    pub(crate) fn fit(&mut self, size: Size) -> Id {
        if size.tier == Tier::Large {
            return self.fit_large(size.units);
        }
        self.fit_fine(size, false)
    }

    /// The same in a fine tier. Where whole segments matter, none is cut for a new chunk that had better be spared, unless
    /// `whole`.
    pub(crate) fn fit_fine(&mut self, size: Size, whole: bool) -> Id {
        let id = self.fine_alloc(size.tier, size.units);
        if id == 0 && self.make_chunk(size.tier, whole) { self.fine_alloc(size.tier, size.units) } else { id }
    }

    /// Merges one freed block, whatever its tier. The pieces of a scattered block become free, and its range of
    /// addresses idle.
    pub(crate) fn merge(&mut self, id: Id) {
        match self.maps().desc(id).tier_bits() {
            0 => self.fine_free(Tier::Small, id),
            1 => self.fine_free(Tier::Medium, id),
            2 => self.free_large(id),
            _ => {
                let maps = self.maps();
                let d = maps.desc(id);
                let mut piece = d.next();
                d.become_(kind::UNUSED, ALIAS); // the id stays with the range of addresses
                while piece != 0 {
                    let next = maps.desc(piece).next();
                    self.free_large(piece);
                    piece = next;
                }
                self.shared.aliases.lock().set_idle(d.aux());
            }
        }
    }

    /// Merges everything that was freed so far, and gives up empty chunks.
    pub(crate) fn flush(&mut self) {
        self.flush_large();
        self.flush_fine(Tier::Small);
        self.flush_fine(Tier::Medium);
        self.drop_empty_chunks();
        self.count_stuck();
    }

    /// Merges the freed blocks of a fine tier.
    pub(crate) fn flush_fine(&mut self, tier: Tier) {
        let lists = if tier == Tier::Small { 0..MEDIUM_LISTS.start } else { MEDIUM_LISTS };
        for i in lists {
            let mut id = std::mem::take(&mut self.state.lists[i]);
            while id != 0 {
                let next = self.maps().desc(id).next();
                self.fine_free(tier, id);
                id = next;
            }
        }
    }

    /// A freed block of exactly this size.
    #[inline]
    pub(crate) fn pop(&mut self, size: Size) -> Option<Id> {
        if size.tier == Tier::Large {
            return self.pop_large(size.units);
        }
        let list = list_of(size.units, (size.tier as u32) << TIER_SHIFT);
        let id = self.state.lists[usize::from(list)];
        if id == 0 {
            return None;
        }
        self.state.lists[usize::from(list)] = self.maps().desc(id).next();
        Some(id)
    }

    /// Ends the life of a block whose state was just read as `was`. `false`: another thread has freed it meanwhile.
    #[inline(always)]
    pub(crate) fn end_life(&self, d: Desc<'_>, was: u32, kind: u32) -> bool {
        d.end_life(was, kind, self.state.shared)
    }

    /// The same for a plainly live block, which is just freed.
    #[inline(always)]
    pub(crate) fn end_plain_life(&self, d: Desc<'_>, was: u32) -> bool {
        d.end_plain_life(was, self.state.ending, self.state.shared)
    }

    /// Puts a block that was just freed on the list of its size, unmerged. Its life has ended.
    #[inline(always)]
    pub(crate) fn shelve(&mut self, id: Id, d: Desc<'_>, was: u32) {
        if was & (2 << 4) != 0 {
            self.state.quick.push(d.units(), id, d);
            return;
        }
        let head = &mut self.state.lists[usize::from(list_of(d.units(), was))];
        d.set_next(*head);
        *head = id;
    }

    /// The same, and counts it out.
    #[inline(always)]
    pub(crate) fn shelve_counted(&mut self, id: Id, d: Desc<'_>, was: u32, charged: u64, bytes: u64) {
        // One look at the tier for both.
        let class = if was & (2 << 4) != 0 { Class::Large } else { Class::Small };
        match class {
            Class::Large => {
                self.state.counters.count_out(Class::Large, charged, bytes);
                self.state.quick.push(d.units(), id, d);
            }
            Class::Small => {
                self.state.counters.count_out(Class::Small, charged, bytes);
                // As `make_live` has noted it.
                let head = &mut self.state.lists[usize::from(d.aux() as u8)];
                d.set_next(*head);
                *head = id;
            }
        }
    }

    /// Takes over the blocks that other threads have freed; calls `each` for every one.
    pub(crate) fn take_remote(&mut self, mut each: impl FnMut(&mut Self, Id)) {
        if self.heap.remote.is_empty() {
            return;
        }
        let mut id = self.heap.remote.take();
        while id != 0 {
            let next = self.maps().desc(id).prev();
            each(self, id);
            id = next;
        }
    }

    /// Makes a block that `pop` returned live.
    #[inline(always)]
    pub(crate) fn revive(&self, d: Desc<'_>, requested: u64) {
        // The tier stays, and a freed block has no flags.
        debug_assert_eq!(d.state() & !(3 << 4), kind::FREED);
        d.flip_state(self.state.reviving);
        d.set_requested(requested);
    }

    /// The same for a block from the bins, whose tier bits are not set yet.
    pub(crate) fn make_live(&self, id: Id, tier_bits: u32, requested: u64) {
        let d = self.maps().desc(id);
        if tier_bits < Tier::Large as u32 {
            d.set_aux(list_of(d.units(), tier_bits << TIER_SHIFT).into());
        }
        let flags = self.state.reviving & !kind::MASK;
        d.set_state(kind::LIVE | tier_bits << TIER_SHIFT | flags);
        d.set_requested(requested);
    }

    /// Flags a live block so that its free takes the slow path.
    pub(crate) fn flag(&self, id: Id, flags: u32) {
        debug_assert_eq!(flags & !(USES | TUNED | DIRECT | OVERSIZE), 0);
        let d = self.maps().desc(id);
        d.set_state(d.state() | flags);
    }
}
