//! The free memory of one (pool, stream): quick slots in front, bins behind, all under one lock that
//! nobody else wants.
//!
//! A heap owns whole granules. Blocks merge only inside what the heap owns, so no other lock is
//! ever needed. Freed blocks first sit in a few quick slots, unmerged, since nearly every request
//! asks for a size that was just freed; they are merged before the heap asks for more memory.

use super::bins::Bins;
use super::desc::{ALIAS, Desc, GranuleUse, Id, Maps, kind, use_of};
use super::shape::{GRANULE_SHIFT, LARGE_UNITS, LARGE_UNITS_SHIFT, Tier};
use crate::base::biased::Biased;
use crate::base::remote::Remote;
use crate::base::sync::{AtomicU32, AtomicU64, Padded, Word};
use std::collections::{HashMap, VecDeque};

/// Quick slots of a heap, for large blocks. What sits here unmerged is lost to other sizes. Large blocks are
/// merged before any other large block is placed, so that where it goes depends on nothing but what is
/// live: a program that repeats itself then finds the same places again, scattered granules included, and
/// makes no driver call (seen on the traces; with more slots, merged later, each step scatters anew).
const QUICK: usize = 4;
/// Lists of freed small and medium blocks, one a size: 8 small, 15 medium, and none at 0.
const LISTS: usize = 24;
/// Ids fetched from the device's counter at a time.
const ID_BATCH: u32 = 64;

/// A freed block that is not merged yet.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Quick {
    pub key: u32, // units << 2 | tier; 0: empty
    pub id: Id,
    pub offset: u64, // [B]
}

/// The quick slot of a large key.
#[inline(always)]
pub(crate) fn quick_index(key: u32) -> usize {
    (key.wrapping_mul(0x9E37_79B1) >> (32 - QUICK.trailing_zeros())) as usize
}

/// Whether a key is one of the large tier.
#[inline(always)]
pub(crate) fn is_large(key: u32) -> bool {
    key & 2 != 0
}

/// The list of a key of a fine tier.
#[inline(always)]
pub(crate) fn list_index(key: u32) -> usize {
    ((key >> 2) + ((key & 1) << 3)) as usize
}

/// A point in a stream's work that a freed block waits for; the meaning is the backing's.
pub type Mark = u64;

/// A freed block and what it waits for.
#[derive(Debug)]
pub(crate) struct Pending {
    pub id: Id,
    pub marks: Vec<Mark>,
}

/// What is counted: contract bytes, requested bytes, blocks.
pub(crate) type Triple = [i64; 3];

/// What the lock guards.
pub(crate) struct Inner {
    /// Sums of everything ever allocated here.
    pub total: [Word; 3],
    /// How much more may be allocated before the peaks must be looked at (see `ledger`).
    pub room: [Word; 3],
    /// `ceiling - room` is what is allocated now.
    pub ceiling: Triple,
    /// The most that was allocated here when anybody looked.
    pub peak: Triple,
    /// [B] contract bytes of freed blocks that wait for streams.
    pub pending_bytes: i64,
    /// Freed small and medium blocks, unmerged, by size: linked through `next`. Nearly every request asks for
    /// a size that was just freed, and such a pair touches nothing but the block's descriptor.
    pub lists: [Id; LISTS],
    pub quick: [Quick; QUICK],
    /// Flags of a block that becomes live: `USES` in a heap without a stream of its own.
    pub live_flags: u32,
    /// Allocations until the next look at the remote list.
    pub countdown: u32,
    small: Bins<10, 1>,
    medium: Bins<7, 1>,
    pub large: Bins<27, 16>,
    ids: Id,
    /// Granules owned.
    pub granules: u64,
    /// Empty chunks kept for the next small or medium request, one a tier at most.
    empty: [bool; 2],
    /// Streams that live blocks were used on.
    pub uses: HashMap<Id, Vec<u64>>,
    pub pending: VecDeque<Pending>,
}

/// One heap.
pub(crate) struct Heap {
    pub inner: Padded<Biased<Inner>>,
    /// Blocks freed by other threads: a list through `prev`, pushed by anyone, taken whole by the owner.
    pub remote: Padded<Remote>,
    /// The thread that allocated last. A hint: being wrong costs time only.
    pub owner: Padded<AtomicU64>,
    pub index: u32,
    /// The pool, by slot.
    pub pool: AtomicU32,
    /// The stream that orders reuse here.
    pub stream: AtomicU64,
}

impl Heap {
    pub(crate) fn new(index: u32) -> Heap {
        Heap {
            inner: Padded(Biased::new(Inner {
                total: Default::default(),
                room: Default::default(),
                ceiling: [0; 3],
                peak: [0; 3],
                pending_bytes: 0,
                lists: [0; LISTS],
                quick: [Quick::default(); QUICK],
                live_flags: 0,
                countdown: 0,
                small: Bins::new(),
                medium: Bins::new(),
                large: Bins::new(),
                ids: 0,
                granules: 0,
                empty: [false; 2],
                uses: HashMap::new(),
                pending: VecDeque::new(),
            })),
            remote: Padded(Remote::new()),
            owner: Padded(AtomicU64::new(0)),
            index,
            pool: AtomicU32::new(u32::MAX),
            stream: AtomicU64::new(u64::MAX),
        }
    }

    /// Hands a block in `REMOTE` state to the heap without its lock.
    pub(crate) fn push_remote(&self, maps: &Maps, id: Id) {
        let d = maps.desc(id);
        self.remote.push(id, |next| d.set_prev(next));
    }
}

impl Inner {
    // ---- ids ----------------------------------------------------------------------------------

    /// Makes sure that two ids are at hand.
    fn stock_ids(&mut self, maps: &Maps) -> bool {
        if self.ids != 0 && maps.desc(self.ids).next() != 0 {
            return true;
        }
        let Some((first, n)) = maps.fresh_ids(ID_BATCH) else {
            return false;
        };
        for id in (first..first + n).rev() {
            self.put_id(maps, id);
        }
        self.ids != 0 && maps.desc(self.ids).next() != 0
    }
    fn put_id(&mut self, maps: &Maps, id: Id) {
        let d = maps.desc(id);
        d.set_state(kind::UNUSED);
        d.set_next(self.ids);
        self.ids = id;
    }
    /// After `stock_ids`.
    fn pop_id(&mut self, maps: &Maps) -> Id {
        let id = self.ids;
        self.ids = maps.desc(id).next();
        id
    }
    /// One id, for a block of scattered granules.
    pub(crate) fn take_id(&mut self, maps: &Maps) -> Option<Id> {
        self.stock_ids(maps).then(|| self.pop_id(maps))
    }

    /// Gives an id back that no block uses.
    pub(crate) fn give_id(&mut self, maps: &Maps, id: Id) {
        self.put_id(maps, id);
    }

    /// Enters a block that is a whole segment at granule `first`.
    pub(crate) fn enter_direct(&mut self, maps: &Maps, me: u32, id: Id, first: u32, units: u32) {
        for g in first..first + units.div_ceil(LARGE_UNITS) {
            maps.set_granule(g, maps.large_use(g, me));
        }
        let d = maps.desc(id);
        d.set_off(first << LARGE_UNITS_SHIFT);
        d.set_units(units);
        Self::tag_large(maps, d.off(), units, id);
        self.granules += u64::from(units.div_ceil(LARGE_UNITS));
    }

    /// Removes it again.
    pub(crate) fn drop_direct(&mut self, maps: &Maps, id: Id, first: u32) {
        let count = maps.desc(id).units().div_ceil(LARGE_UNITS);
        for g in first..first + count {
            maps.set_granule(g, GranuleUse::NONE);
        }
        self.granules -= u64::from(count);
        self.put_id(maps, id);
    }

    // ---- the large tier -------------------------------------------------------------------------

    fn tag_large(maps: &Maps, off: u32, units: u32, id: Id) {
        maps.set_large_at(off, id);
        maps.set_large_at(off + units - 1, id);
    }

    /// Puts a free large block into the bins, as it is.
    fn shelve_large(&mut self, maps: &Maps, id: Id) {
        let d = maps.desc(id);
        d.become_(kind::FREE, Tier::Large as u32);
        Self::tag_large(maps, d.off(), d.units(), id);
        self.large.insert(maps, id);
    }

    /// Cuts `units` at `at` out of a free large block. What is left on either side stays free; the
    /// left rest keeps the block's id. `None`: out of ids, nothing changed.
    fn carve(&mut self, maps: &Maps, id: Id, at: u32, units: u32) -> Option<Id> {
        if !self.stock_ids(maps) {
            return None;
        }
        let d = maps.desc(id);
        let (off, end) = (d.off(), d.off() + d.units());
        self.large.remove(maps, id);
        let piece = if at > off { self.pop_id(maps) } else { id };
        if at > off {
            d.set_units(at - off);
            self.shelve_large(maps, id);
        }
        if at + units < end {
            let rest = self.pop_id(maps);
            let r = maps.desc(rest);
            r.set_off(at + units);
            r.set_units(end - at - units);
            self.shelve_large(maps, rest);
        }
        let p = maps.desc(piece);
        p.set_off(at);
        p.set_units(units);
        Self::tag_large(maps, at, units, piece);
        Some(piece)
    }

    /// Whether the unit lies in a granule of large blocks that this heap owns.
    #[inline]
    fn mine(&self, maps: &Maps, me: u32, unit: u32) -> bool {
        let g = maps.granule(unit >> LARGE_UNITS_SHIFT);
        g.use_() == use_of::LARGE && g.heap() == me
    }

    /// Merges a block with its free neighbours and puts it into the bins.
    pub(crate) fn free_large(&mut self, maps: &Maps, me: u32, id: Id) {
        let d = maps.desc(id);
        let (mut off, mut units) = (d.off(), d.units());
        let mut keep = id;
        if off > 0 && self.mine(maps, me, off - 1) {
            let left = maps.large_at(off - 1);
            let l = maps.desc(left);
            if left != 0 && l.state() == kind::FREE | (Tier::Large as u32) << 4 && l.off() + l.units() == off
            {
                self.large.remove(maps, left);
                off = l.off();
                units += l.units();
                self.put_id(maps, keep);
                keep = left;
            }
        }
        let end = off + units;
        if self.mine(maps, me, end) {
            let right = maps.large_at(end);
            let r = maps.desc(right);
            if right != 0 && r.state() == kind::FREE | (Tier::Large as u32) << 4 && r.off() == end {
                self.large.remove(maps, right);
                units += r.units();
                self.put_id(maps, right);
            }
        }
        let d = maps.desc(keep);
        d.set_off(off);
        d.set_units(units);
        self.shelve_large(maps, keep);
    }

    // ---- the fine tiers ---------------------------------------------------------------------------

    #[inline]
    fn fine_insert(&mut self, maps: &Maps, tier: Tier, id: Id) {
        if tier == Tier::Small { self.small.insert(maps, id) } else { self.medium.insert(maps, id) }
    }
    #[inline]
    fn fine_remove(&mut self, maps: &Maps, tier: Tier, id: Id) {
        if tier == Tier::Small { self.small.remove(maps, id) } else { self.medium.remove(maps, id) }
    }
    /// Units of a chunk of the tier, less one.
    #[inline]
    fn chunk_mask(maps: &Maps, tier: Tier) -> u32 {
        (1 << (GRANULE_SHIFT - maps.shape.unit_shift(tier))) - 1
    }
    fn tag_fine(maps: &Maps, base: u32, mask: u32, off: u32, units: u32, id: Id) {
        maps.set_at(base + (off & mask), id);
        maps.set_at(base + ((off + units - 1) & mask), id);
    }

    /// A block of a fine tier from the bins; 0 when none fits (or ids ran out).
    fn fine_alloc(&mut self, maps: &Maps, tier: Tier, units: u32) -> Id {
        let id =
            if tier == Tier::Small { self.small.find(maps, units) } else { self.medium.find(maps, units) };
        if id == 0 || !self.stock_ids(maps) {
            return 0;
        }
        let mask = Self::chunk_mask(maps, tier);
        let d = maps.desc(id);
        let (off, all) = (d.off(), d.units());
        self.fine_remove(maps, tier, id);
        if all == mask + 1 {
            self.empty[tier as usize] = false;
        }
        if all > units {
            let g = maps.granule(off >> (GRANULE_SHIFT - maps.shape.unit_shift(tier)));
            let rest = self.pop_id(maps);
            let r = maps.desc(rest);
            r.set_off(off + units);
            r.set_units(all - units);
            r.become_(kind::FREE, tier as u32);
            Self::tag_fine(maps, g.low(), mask, off + units, all - units, rest);
            self.fine_insert(maps, tier, rest);
            d.set_units(units);
            maps.set_at(g.low() + ((off + units - 1) & mask), id);
        }
        id
    }

    fn fine_free(&mut self, maps: &Maps, me: u32, tier: Tier, id: Id) {
        let mask = Self::chunk_mask(maps, tier);
        let d = maps.desc(id);
        let (mut off, mut units) = (d.off(), d.units());
        let granule = off >> (GRANULE_SHIFT - maps.shape.unit_shift(tier));
        let base = maps.granule(granule).low();
        let free = kind::FREE | (tier as u32) << 4;
        let mut keep = id;
        if off & mask != 0 {
            let left = maps.at(base + ((off - 1) & mask));
            let l = maps.desc(left);
            if left != 0 && l.state() == free && l.off() + l.units() == off {
                self.fine_remove(maps, tier, left);
                off = l.off();
                units += l.units();
                self.put_id(maps, keep);
                keep = left;
            }
        }
        let end = off + units;
        if end & mask != 0 {
            let right = maps.at(base + (end & mask));
            let r = maps.desc(right);
            if right != 0 && r.state() == free && r.off() == end {
                self.fine_remove(maps, tier, right);
                units += r.units();
                self.put_id(maps, right);
            }
        }
        if units == mask + 1 {
            if self.empty[tier as usize] {
                self.put_id(maps, keep);
                self.drop_chunk(maps, me, tier, granule);
                return;
            }
            self.empty[tier as usize] = true;
        }
        let d = maps.desc(keep);
        d.set_off(off);
        d.set_units(units);
        d.become_(kind::FREE, tier as u32);
        Self::tag_fine(maps, base, mask, off, units, keep);
        self.fine_insert(maps, tier, keep);
    }

    /// A chunk whose blocks are gone becomes a free large block again.
    fn drop_chunk(&mut self, maps: &Maps, me: u32, tier: Tier, granule: u32) {
        maps.give_slot(tier, maps.granule(granule).low());
        maps.set_granule(granule, maps.large_use(granule, me));
        let chunk = maps.large_at(granule << LARGE_UNITS_SHIFT);
        self.free_large(maps, me, chunk);
    }

    /// Gives back the empty chunks that are kept for later.
    fn drop_empty_chunks(&mut self, maps: &Maps, me: u32) {
        for tier in [Tier::Small, Tier::Medium] {
            if !std::mem::take(&mut self.empty[tier as usize]) {
                continue;
            }
            let whole = Self::chunk_mask(maps, tier) + 1;
            let id = if tier == Tier::Small {
                self.small.find(maps, whole)
            } else {
                self.medium.find(maps, whole)
            };
            if id == 0 {
                continue;
            }
            let granule = maps.desc(id).off() >> (GRANULE_SHIFT - maps.shape.unit_shift(tier));
            self.fine_remove(maps, tier, id);
            self.put_id(maps, id);
            self.drop_chunk(maps, me, tier, granule);
        }
    }

    /// Turns a free granule into a chunk of a fine tier.
    fn make_chunk(&mut self, maps: &Maps, me: u32, tier: Tier) -> bool {
        // The highest one there is: chunks come and go with the small blocks, and would shift the large ones,
        // which fill up from below.
        let mut at: Option<(Id, u32)> = None;
        self.large.walk(maps, LARGE_UNITS, |id| {
            let d = maps.desc(id);
            let end = (d.off() + d.units()) & !(LARGE_UNITS - 1);
            if end >= d.off() + LARGE_UNITS && at.is_none_or(|a| a.1 < end - LARGE_UNITS) {
                at = Some((id, end - LARGE_UNITS));
            }
            true
        });
        let Some((id, first)) = at else { return false };
        let Some(slot) = maps.take_slot(tier) else { return false };
        let Some(chunk) = self.carve(maps, id, first, LARGE_UNITS) else {
            maps.give_slot(tier, slot);
            return false;
        };
        if !self.stock_ids(maps) {
            self.free_large(maps, me, chunk);
            maps.give_slot(tier, slot);
            return false;
        }
        maps.desc(chunk).become_(kind::CHUNK, Tier::Large as u32);
        let granule = first >> LARGE_UNITS_SHIFT;
        maps.set_granule(granule, maps.chunk_use(tier, me, slot));
        let mask = Self::chunk_mask(maps, tier);
        let whole = self.pop_id(maps);
        let d = maps.desc(whole);
        d.set_off(granule << (GRANULE_SHIFT - maps.shape.unit_shift(tier)));
        d.set_units(mask + 1);
        d.become_(kind::FREE, tier as u32);
        Self::tag_fine(maps, slot, mask, d.off(), mask + 1, whole);
        self.fine_insert(maps, tier, whole);
        self.empty[tier as usize] = true;
        true
    }

    // ---- all tiers ----------------------------------------------------------------------------------

    /// A block from the bins, not yet live; 0 when nothing that is merged already fits.
    pub(crate) fn fit(&mut self, maps: &Maps, me: u32, tier: Tier, units: u32) -> Id {
        if tier == Tier::Large {
            let id = self.large.find(maps, units);
            if id == 0 {
                return 0;
            }
            return self.carve(maps, id, maps.desc(id).off(), units).unwrap_or(0);
        }
        let id = self.fine_alloc(maps, tier, units);
        if id == 0 && self.make_chunk(maps, me, tier) { self.fine_alloc(maps, tier, units) } else { id }
    }

    /// Like `fit` in the large tier, but looks at every free block.
    pub(crate) fn fit_any(&mut self, maps: &Maps, units: u32) -> Id {
        let mut best = (0, u32::MAX);
        self.large.walk(maps, units, |id| {
            let u = maps.desc(id).units();
            if u < best.1 {
                best = (id, u);
            }
            true
        });
        if best.0 == 0 {
            return 0;
        }
        self.carve(maps, best.0, maps.desc(best.0).off(), units).unwrap_or(0)
    }

    /// Merges one freed block, whatever its tier. Scattered blocks give up their pieces; the answer
    /// is the entry of the alias cache that is idle now, if it was one.
    pub(crate) fn merge(&mut self, maps: &Maps, me: u32, id: Id) -> Option<u32> {
        match maps.desc(id).tier_bits() {
            0 => self.fine_free(maps, me, Tier::Small, id),
            1 => self.fine_free(maps, me, Tier::Medium, id),
            2 => self.free_large(maps, me, id),
            _ => {
                let d = maps.desc(id);
                let mut piece = d.next();
                d.become_(kind::UNUSED, ALIAS); // the id stays with its addresses
                while piece != 0 {
                    let next = maps.desc(piece).next();
                    self.free_large(maps, me, piece);
                    piece = next;
                }
                return Some(d.aux());
            }
        }
        None
    }

    /// Merges everything that was freed so far, and gives up empty chunks. Calls `idle` for each entry of the
    /// alias cache that falls idle.
    pub(crate) fn flush(&mut self, maps: &Maps, me: u32, idle: impl FnMut(u32)) {
        self.flush_large(maps, me, idle);
        self.flush_fine(maps, me, Tier::Small);
        self.flush_fine(maps, me, Tier::Medium);
        self.drop_empty_chunks(maps, me);
    }

    /// Merges the freed blocks of a fine tier.
    pub(crate) fn flush_fine(&mut self, maps: &Maps, me: u32, tier: Tier) {
        let lists = if tier == Tier::Small { 1..9 } else { 9..LISTS };
        for i in lists {
            let mut id = std::mem::take(&mut self.lists[i]);
            while id != 0 {
                let next = maps.desc(id).next();
                self.fine_free(maps, me, tier, id);
                id = next;
            }
        }
    }

    /// Merges the large blocks that sit in quick slots.
    #[inline]
    pub(crate) fn flush_large(&mut self, maps: &Maps, me: u32, mut idle: impl FnMut(u32)) {
        for i in 0..QUICK {
            let q = std::mem::take(&mut self.quick[i]);
            if q.key != 0
                && let Some(a) = self.merge(maps, me, q.id)
            {
                idle(a);
            }
        }
    }

    /// A freed block of exactly this tier and size, and where it starts.
    #[inline(always)]
    pub(crate) fn pop(&mut self, maps: &Maps, key: u32) -> Option<(Id, u64)> {
        if is_large(key) {
            let q = &mut self.quick[quick_index(key)];
            if q.key != key {
                return None;
            }
            q.key = 0;
            return Some((q.id, q.offset));
        }
        let head = self.lists.get_mut(list_index(key))?;
        let id = *head;
        if id == 0 {
            return None;
        }
        let d = maps.desc(id);
        *head = d.next();
        Some((id, u64::from(d.off()) << maps.shape.shift_of(key & 3)))
    }

    /// A freed block goes to the list of its size, or to a quick slot, where the one it displaces is merged.
    #[inline(always)]
    pub(crate) fn retire(&mut self, maps: &Maps, me: u32, key: u32, id: Id, offset: u64) -> Option<u32> {
        let d = maps.desc(id);
        self.retire_desc(maps, me, key, id, d, d.state(), offset)
    }

    /// `retire` with the descriptor and its state at hand.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "the hot path has them all in registers")]
    pub(crate) fn retire_desc(
        &mut self,
        maps: &Maps,
        me: u32,
        key: u32,
        id: Id,
        d: Desc<'_>,
        state: u32,
        offset: u64,
    ) -> Option<u32> {
        d.set_state(kind::QUICK | state & (3 << 4));
        if !is_large(key) {
            let Some(head) = self.lists.get_mut(list_index(key)) else { return None };
            d.set_next(*head);
            *head = id;
            return None;
        }
        let old = std::mem::replace(&mut self.quick[quick_index(key)], Quick { key, id, offset });
        if old.key == 0 { None } else { self.displaced(maps, me, old.id) }
    }
    #[inline(never)]
    fn displaced(&mut self, maps: &Maps, me: u32, id: Id) -> Option<u32> {
        self.merge(maps, me, id)
    }

    /// [triple] what is allocated now.
    pub(crate) fn current(&self) -> Triple {
        std::array::from_fn(|d| self.ceiling[d] - self.room[d].get())
    }

    /// Remembers what is allocated now, if it was never more.
    pub(crate) fn note_peak(&mut self) {
        let now = self.current();
        for d in 0..3 {
            self.peak[d] = self.peak[d].max(now[d]);
        }
    }

    /// How far the heap is below its own peak.
    pub(crate) fn need(&self) -> Triple {
        let now = self.current();
        std::array::from_fn(|d| (self.peak[d] - now[d]).max(0))
    }

    /// Counts a block in. `true`: the peaks must be looked at.
    #[inline(always)]
    pub(crate) fn count_in(&mut self, contract: u64, requested: u64) -> bool {
        self.total[0].add(contract as i64);
        self.total[1].add(requested as i64);
        self.total[2].add(1);
        let left = [
            self.room[0].add(-(contract as i64)),
            self.room[1].add(-(requested as i64)),
            self.room[2].add(-1),
        ];
        (left[0] | left[1] | left[2]) < 0
    }
    /// Counts a block out.
    #[inline(always)]
    pub(crate) fn count_out(&mut self, contract: u64, requested: u64) {
        self.room[0].add(contract as i64);
        self.room[1].add(requested as i64);
        self.room[2].add(1);
    }

    /// Marks a block that was just taken as the caller's.
    #[inline(always)]
    pub(crate) fn make_live(&self, maps: &Maps, id: Id, requested: u64) {
        let d = maps.desc(id);
        d.set_state(kind::LIVE | self.live_flags | (d.state() & (3 << 4)));
        d.set_requested(requested);
    }
    /// As `make_live`, for a block fresh from the bins, whose tier bits are not set yet.
    pub(crate) fn make_live_as(&self, maps: &Maps, id: Id, tier_bits: u32, requested: u64) {
        let d = maps.desc(id);
        d.become_(kind::LIVE, tier_bits);
        d.set_state(d.state() | self.live_flags);
        d.set_requested(requested);
    }

    // ---- granules: given, taken, scattered -----------------------------------------------------------

    /// Takes over granules `first..first + count` and puts them into the bins, less `short` units at the end
    /// (a segment that ends inside its last granule). `false`: out of ids, nothing changed.
    pub(crate) fn give(&mut self, maps: &Maps, me: u32, first: u32, count: u32, short: u32) -> bool {
        let Some(id) = self.take_id(maps) else { return false };
        for g in first..first + count {
            maps.set_granule(g, maps.large_use(g, me));
        }
        self.granules += u64::from(count);
        let d = maps.desc(id);
        d.set_off(first << LARGE_UNITS_SHIFT);
        d.set_units((count << LARGE_UNITS_SHIFT) - short);
        self.free_large(maps, me, id);
        true
    }

    /// Free whole granules, as runs (count, first), in `into`; returns how many granules they are.
    pub(crate) fn free_runs(&self, maps: &Maps, into: &mut Vec<(u32, u32, Id)>) -> u64 {
        let mut sum = 0;
        self.large.walk(maps, LARGE_UNITS, |id| {
            let d = maps.desc(id);
            let first = d.off().div_ceil(LARGE_UNITS);
            let end = (d.off() + d.units()) >> LARGE_UNITS_SHIFT;
            if end > first {
                into.push((end - first, first, id));
                sum += u64::from(end - first);
            }
            true
        });
        sum
    }

    /// Takes `count` whole granules at `first` out of the free block `id`; they are nobody's then.
    pub(crate) fn take_run(&mut self, maps: &Maps, id: Id, first: u32, count: u32) -> bool {
        let Some(piece) = self.carve(maps, id, first << LARGE_UNITS_SHIFT, count << LARGE_UNITS_SHIFT) else {
            return false;
        };
        self.put_id(maps, piece);
        for g in first..first + count {
            maps.set_granule(g, GranuleUse::NONE);
        }
        self.granules -= u64::from(count);
        true
    }

    /// Takes all free granules, with the short last one of a segment where that is free too:
    /// (first, count, units that the last one lacks).
    pub(crate) fn take_all(&mut self, maps: &Maps) -> Vec<(u32, u32, u32)> {
        let mut found = Vec::new();
        self.large.walk(maps, 1, |id| {
            let d = maps.desc(id);
            let first = d.off().div_ceil(LARGE_UNITS);
            let end = d.off() + d.units();
            let lacks = end.next_multiple_of(LARGE_UNITS) - end;
            // Nothing was ever entered behind the end of a segment.
            let short = if lacks > 0 && maps.large_at(end) == 0 { lacks } else { 0 };
            let last = if short > 0 { end.div_ceil(LARGE_UNITS) } else { end >> LARGE_UNITS_SHIFT };
            if last > first {
                found.push((id, first, last - first, short));
            }
            true
        });
        let mut taken = Vec::with_capacity(found.len());
        for (id, first, count, short) in found {
            let Some(piece) =
                self.carve(maps, id, first << LARGE_UNITS_SHIFT, (count << LARGE_UNITS_SHIFT) - short)
            else {
                break;
            };
            self.put_id(maps, piece);
            for g in first..first + count {
                maps.set_granule(g, GranuleUse::NONE);
            }
            self.granules -= u64::from(count);
            taken.push((first, count, short));
        }
        taken
    }

    /// Takes the whole free block that covers a segment of `units` at `first`, if it does.
    pub(crate) fn take_segment(&mut self, maps: &Maps, me: u32, first: u32, units: u32) -> bool {
        let off = first << LARGE_UNITS_SHIFT;
        if !self.mine(maps, me, off) {
            return false;
        }
        let id = maps.large_at(off);
        let d = maps.desc(id);
        if id == 0
            || d.state() != kind::FREE | (Tier::Large as u32) << 4
            || d.off() != off
            || d.units() != units
        {
            return false;
        }
        self.large.remove(maps, id);
        self.put_id(maps, id);
        let granules = units.div_ceil(LARGE_UNITS);
        for g in first..first + granules {
            maps.set_granule(g, GranuleUse::NONE);
        }
        self.granules -= u64::from(granules);
        true
    }

    /// Finds free granules for a block of `units` that no single free block can hold: whole ones, and
    /// for the rest the start of a granule whose end is taken, if one fits. On success they are taken,
    /// linked through `next`, and listed in `pieces` as (offset, units) in address order; the answer is
    /// the first. `Err(n)`: `n` more whole granules are needed; nothing changed.
    pub(crate) fn scatter(
        &mut self,
        maps: &Maps,
        units: u32,
        runs: &mut Vec<(u32, u32, Id)>,
        pieces: &mut Vec<(u32, u32)>,
    ) -> Result<Id, u64> {
        runs.clear();
        pieces.clear();
        let (whole, rest) = (units >> LARGE_UNITS_SHIFT, units & (LARGE_UNITS - 1));
        let have = self.free_runs(maps, runs);
        let mut tail: Option<(u32, u32, Id)> = None; // (free units there, offset, block)
        if rest > 0 {
            self.large.walk(maps, rest, |id| {
                let d = maps.desc(id);
                let end = d.off() + d.units();
                let start = end & !(LARGE_UNITS - 1);
                let room = end & (LARGE_UNITS - 1);
                if start >= d.off() && room >= rest && tail.is_none_or(|t| (room, start) < (t.0, t.1)) {
                    tail = Some((room, start, id));
                }
                true
            });
        }
        let need = u64::from(whole) + u64::from(rest > 0 && tail.is_none());
        if have < need {
            return Err(need - have);
        }
        // The smallest runs first: the large ones stay whole for blocks that need no mapping.
        runs.sort_unstable_by_key(|r| (r.0, r.1));
        let tail_piece = match tail {
            Some((_, start, id)) => self.carve(maps, id, start, rest),
            None => None,
        };
        if tail.is_some() && tail_piece.is_none() {
            return Err(u64::MAX);
        }
        let mut last = 0;
        let mut first = 0;
        let mut left = whole;
        let mut rest_left = if tail.is_some() { 0 } else { rest };
        let mut link = |piece: Id, maps: &Maps| {
            let d = maps.desc(piece);
            d.become_(kind::EXTENT, Tier::Large as u32);
            d.set_next(0);
            if last == 0 {
                first = piece
            } else {
                maps.desc(last).set_next(piece)
            }
            last = piece;
            pieces.push((d.off(), d.units()));
        };
        for &(count, start, id) in runs.iter() {
            if left == 0 && rest_left == 0 {
                break;
            }
            let take = count.min(left);
            let mut n = take << LARGE_UNITS_SHIFT;
            left -= take;
            if left == 0 && rest_left > 0 && take < count {
                n += rest_left;
                rest_left = 0;
            }
            if n == 0 {
                continue;
            }
            match self.carve(maps, id, start << LARGE_UNITS_SHIFT, n) {
                Some(piece) => link(piece, maps),
                None => {
                    // Out of ids half way: what is taken is an odd block; it goes back below.
                    left = u32::MAX;
                    break;
                }
            }
        }
        if let Some(piece) = tail_piece {
            link(piece, maps);
        }
        if left != 0 || rest_left != 0 {
            self.unscatter(maps, first);
            return Err(u64::MAX);
        }
        Ok(first)
    }

    /// All free large blocks, by offset: (offset, units, id).
    pub(crate) fn free_list(&self, maps: &Maps, into: &mut Vec<(u32, u32, Id)>) {
        into.clear();
        self.large.walk(maps, 1, |id| {
            let d = maps.desc(id);
            into.push((d.off(), d.units(), id));
            true
        });
        into.sort_unstable();
    }

    /// Takes exactly these pieces, if `free` (a `free_list`) covers them all; the first of them, linked as by
    /// `scatter`. The list does not hold afterwards.
    pub(crate) fn take_pieces(
        &mut self,
        maps: &Maps,
        free: &[(u32, u32, Id)],
        pieces: &[(u32, u32)],
    ) -> Option<Id> {
        let holder = |off: u32, units: u32| {
            let i = free.partition_point(|f| f.0 <= off).checked_sub(1)?;
            let (start, all, id) = free[i];
            (off + units <= start + all).then_some(id)
        };
        if !pieces.iter().all(|&(off, units)| holder(off, units).is_some()) {
            return None;
        }
        // From the highest down: what is left in front of a piece keeps the block's id.
        let mut order: Vec<(u32, u32)> = pieces.to_vec();
        order.sort_unstable_by_key(|p| std::cmp::Reverse(p.0));
        let mut first = 0;
        for (off, units) in order {
            let piece = holder(off, units).and_then(|id| self.carve(maps, id, off, units));
            let Some(piece) = piece else {
                self.unscatter(maps, first);
                return None;
            };
            let d = maps.desc(piece);
            d.become_(kind::EXTENT, Tier::Large as u32);
            d.set_next(first);
            first = piece;
        }
        Some(first)
    }

    /// Gives the pieces of `scatter` back.
    pub(crate) fn unscatter(&mut self, maps: &Maps, first: Id) {
        let mut piece = first;
        while piece != 0 {
            let next = maps.desc(piece).next();
            let g = maps.granule(maps.desc(piece).off() >> LARGE_UNITS_SHIFT);
            self.free_large(maps, g.heap(), piece);
            piece = next;
        }
    }

    /// Walks all granules of this heap and checks what must always hold. For tests.
    #[cfg(test)]
    pub(crate) fn check(&self, maps: &Maps, me: u32, granules: u32) {
        let mut owned = 0;
        let mut unit = 0u32;
        let end = granules << LARGE_UNITS_SHIFT;
        let mut was_free = false;
        while unit < end {
            let g = maps.granule(unit >> LARGE_UNITS_SHIFT);
            if g.heap() != me || !(use_of::SMALL..=use_of::LARGE).contains(&g.use_()) {
                unit = (unit & !(LARGE_UNITS - 1)) + LARGE_UNITS;
                was_free = false;
                continue;
            }
            let id = maps.large_at(unit);
            if id == 0 {
                unit = (unit & !(LARGE_UNITS - 1)) + LARGE_UNITS; // a segment that ends inside this granule
                was_free = false;
                continue;
            }
            let d = maps.desc(id);
            assert!(d.off() == unit, "granule {} unit {unit}: no block starts here", unit >> 7);
            assert_eq!(maps.large_at(unit + d.units() - 1), id, "last tag of {id}");
            let free = d.kind() == kind::FREE;
            assert!(!(free && was_free), "two free neighbours at unit {unit}");
            assert_ne!(d.kind(), kind::UNUSED);
            if d.kind() == kind::CHUNK {
                self.check_chunk(maps, g, unit >> LARGE_UNITS_SHIFT);
            }
            was_free = free;
            let first_g = unit.div_ceil(LARGE_UNITS);
            unit += d.units();
            owned += u64::from(unit.div_ceil(LARGE_UNITS) - first_g);
        }
        assert_eq!(owned, self.granules, "granules owned");
    }
    #[cfg(test)]
    fn check_chunk(&self, maps: &Maps, g: GranuleUse, granule: u32) {
        let tier = if g.use_() == use_of::SMALL { Tier::Small } else { Tier::Medium };
        let mask = Self::chunk_mask(maps, tier);
        let base = granule << (GRANULE_SHIFT - maps.shape.unit_shift(tier));
        let (mut at, mut was_free) = (0, false);
        while at <= mask {
            let id = maps.at(g.low() + at);
            let d = maps.desc(id);
            assert!(id != 0 && d.off() == base + at, "chunk {granule} unit {at}");
            assert_eq!(maps.at(g.low() + at + d.units() - 1), id);
            let free = d.kind() == kind::FREE;
            assert!(!(free && was_free), "two free neighbours in chunk {granule} at {at}");
            was_free = free;
            at += d.units();
        }
        assert_eq!(at, mask + 1);
    }
}
