//! The free memory of one (pool, stream): freed blocks by size in front, bins behind, all under one lock that
//! nobody else wants.
//!
//! A heap owns whole granules. Blocks merge only inside what the heap owns, so no other lock is
//! ever needed. Freed blocks first wait unmerged, by size (large ones in four slots), since nearly every request
//! asks for a size that was just freed; they are merged before the heap asks for more memory.

use super::bins::Bins;
use super::desc::{ALIAS, Desc, GranuleUse, Id, Maps, kind};
use super::shape::{LARGE_UNITS, LARGE_UNITS_SHIFT, Tier};
use crate::base::biased::Biased;
use crate::base::remote::Remote;
use crate::base::sync::{AtomicU32, AtomicU64, Padded, Word};
use std::collections::{HashMap, VecDeque};

mod fine;
mod granules;
mod large;
mod whole;

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
    /// Freed blocks that stay whole: units, offset in units, id; in order.
    whole: Vec<(u32, u32, Id)>,
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
                whole: Vec::new(),
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
            let head = self.lists.get_mut(list_index(key))?;
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
        for (peak, now) in self.peak.iter_mut().zip(now) {
            *peak = now.max(*peak);
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
}
