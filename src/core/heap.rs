//! The free memory of one (pool, stream): freed blocks by size in front, bins behind, all under one lock that
//! nobody else wants.
//!
//! A heap owns whole granules. Blocks merge only inside what the heap owns, so no other lock is
//! ever needed. Freed blocks first wait unmerged, by size, since nearly every request
//! asks for a size that was just freed; they are merged before the heap asks for more memory.

use super::bins::Bins;
use super::desc::{ALIAS, Desc, GranuleUse, Id, Maps, kind};
use super::lend::Held;
use super::shape::{LARGE_UNITS, LARGE_UNITS_SHIFT, Tier, key_of, list_of};
use crate::base::biased::Biased;
use crate::base::remote::Remote;
use crate::base::sync::{AtomicU32, AtomicU64, Padded, Word};
use std::collections::{HashMap, VecDeque};

mod fine;
mod granules;
mod large;
mod place;
mod quick;
mod scatter;
mod whole;

use quick::Quick;
pub(crate) use scatter::Scratch;

/// Lists of freed small and medium blocks, one a size (`shape::list_of`), rounded up so that an index needs
/// no look at its bounds.
const LISTS: usize = 32;
/// Ids fetched from the device's counter at a time.
const ID_BATCH: u32 = 64;

/// A point in a stream's work that a freed block waits for; the meaning is the backing's.
pub type Mark = u64;

/// A freed block and what it waits for.
#[derive(Debug)]
pub(crate) struct Pending {
    pub id: Id,
    pub marks: Vec<Mark>,
    /// Streams that are to be marked as soon as they are not captured any more.
    pub later: Vec<u64>,
    /// Marks of others, which are not waited for (`lend.rs`).
    pub lent: Vec<Mark>,
}

/// A live block's use on another stream than its own.
#[derive(Debug)]
pub(crate) struct Use {
    pub stream: u64,
    /// Where it ended; `None`: it may go on until the free.
    pub ended: Option<Mark>,
}

/// What is counted: contract bytes, requested bytes, blocks.
pub(crate) type Triple = [i64; 3];

/// What the lock guards.
pub(crate) struct Inner {
    /// Sums of everything ever allocated here.
    pub total: [Word; 3],
    /// `total` may go so far before the peaks must be looked at (see `ledger`): what was freed so far, and the
    /// ceiling.
    pub bound: [Word; 3],
    /// What may be allocated at one time; `bound - total` is how much of it is left.
    pub ceiling: Triple,
    /// The most that was allocated here when anybody looked.
    pub peak: Triple,
    /// [B] contract bytes of freed blocks that wait for streams.
    pub pending_bytes: i64,
    /// Freed small and medium blocks, unmerged, by size: linked through `next`. Nearly every request asks for
    /// a size that was just freed, and such a pair touches nothing but the block's descriptor.
    pub lists: [Id; LISTS],
    /// Freed large blocks, unmerged, by size.
    quick: Quick,
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
    /// Whether much of what is free lies in granules that are partly used, when that was last asked.
    pub ragged: bool,
    /// Empty chunks kept for the next small or medium request, one a tier at most.
    empty: [bool; 2],
    /// Streams that live blocks were used on, each once a block.
    pub uses: HashMap<Id, Vec<Use>>,
    pub pending: VecDeque<Pending>,
    /// Marks of those that live blocks are lent to, and freed blocks that only such marks keep.
    pub lent: HashMap<Id, Vec<Mark>>,
    pub held: Vec<Held>,
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
    pub(crate) fn new(index: u32, mapping: bool) -> Heap {
        Heap {
            inner: Padded(Biased::new(Inner {
                total: Default::default(),
                bound: Default::default(),
                ceiling: [0; 3],
                peak: [0; 3],
                pending_bytes: 0,
                lists: [0; LISTS],
                quick: Quick::new(mapping),
                live_flags: 0,
                countdown: 0,
                small: Bins::new(),
                medium: Bins::new(),
                large: Bins::new(),
                ids: 0,
                granules: 0,
                ragged: false,
                empty: [false; 2],
                uses: HashMap::new(),
                pending: VecDeque::new(),
                lent: HashMap::new(),
                held: Vec::new(),
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
    /// Whether freed blocks wait for anything.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty() || !self.held.is_empty()
    }

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
    /// One id.
    #[inline]
    pub(crate) fn take_id(&mut self, maps: &Maps) -> Option<Id> {
        (self.ids != 0 || self.stock_ids(maps)).then(|| self.pop_id(maps))
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
            return self.fit_large(maps, units);
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
        if best.0 == 0 || !self.stock_ids(maps) {
            return 0;
        }
        self.large.remove(maps, best.0);
        self.cut(maps, best.0, units)
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

    /// A freed block of exactly the key's tier and size.
    #[inline]
    pub(crate) fn pop(&mut self, maps: &Maps, key: u32) -> Option<Id> {
        if key & 2 != 0 {
            return self.quick.pop(maps, key);
        }
        self.pop_fine(maps, list_of(key >> 2, key) as usize).map(|(id, _)| id)
    }

    /// A freed block of a fine tier's list.
    #[inline(always)]
    pub(crate) fn pop_fine<'a>(&mut self, maps: &'a Maps, list: usize) -> Option<(Id, Desc<'a>)> {
        let head = &mut self.lists[list % LISTS];
        let id = *head;
        if id == 0 {
            return None;
        }
        let d = maps.get(id)?;
        *head = d.next();
        Some((id, d))
    }

    /// A freed block, whose state that was, goes to the others of its size.
    #[inline(always)]
    pub(crate) fn retire(&mut self, id: Id, d: Desc<'_>, state: u32) {
        d.set_state(kind::QUICK | state & (3 << 4));
        if state & (2 << 4) != 0 {
            self.quick.push(key_of(Tier::Large, d.units()), id, d);
            return;
        }
        let head = &mut self.lists[list_of(d.units(), state >> 4) as usize % LISTS];
        d.set_next(*head);
        *head = id;
    }

    /// [triple] what is allocated now.
    pub(crate) fn current(&self) -> Triple {
        std::array::from_fn(|d| self.ceiling[d] - (self.bound[d].get() - self.total[d].get()))
    }

    /// Lets the heap allocate `room` more, beyond what it has now, before it must ask.
    pub(crate) fn set_room(&mut self, room: Triple) {
        let now = self.current();
        for d in 0..3 {
            self.bound[d].set(self.total[d].get() + room[d]);
            self.ceiling[d] = now[d] + room[d];
        }
    }

    /// The heap serves nobody from now on: its sums, which start again from 0.
    pub(crate) fn take_totals(&mut self) -> [u64; 3] {
        let totals = std::array::from_fn(|d| self.total[d].get() as u64);
        self.total.iter().chain(&self.bound).for_each(|w| w.set(0));
        self.ceiling = [0; 3];
        self.peak = [0; 3];
        totals
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
        let all =
            [self.total[0].add(contract as i64), self.total[1].add(requested as i64), self.total[2].add(1)];
        let left = [self.bound[0].get() - all[0], self.bound[1].get() - all[1], self.bound[2].get() - all[2]];
        (left[0] | left[1] | left[2]) < 0
    }
    /// Whether more is allocated than the ceilings allow: the peaks must be looked at.
    pub(crate) fn over(&self) -> bool {
        (0..3).any(|d| self.bound[d].get() < self.total[d].get())
    }
    /// Counts a block out.
    #[inline(always)]
    pub(crate) fn count_out(&mut self, contract: u64, requested: u64) {
        self.bound[0].add(contract as i64);
        self.bound[1].add(requested as i64);
        self.bound[2].add(1);
    }

    /// Makes a block that `pop` gave the caller's.
    #[inline(always)]
    pub(crate) fn make_live(&self, d: Desc<'_>, requested: u64) {
        // From QUICK to LIVE; the tier stays.
        d.set_state((d.state() ^ (kind::QUICK ^ kind::LIVE)) | self.live_flags);
        d.set_requested(requested);
    }
    /// As `make_live`, for a block fresh from the bins, whose tier bits are not set yet.
    pub(crate) fn make_live_as(&self, maps: &Maps, id: Id, tier_bits: u32, requested: u64) {
        let d = maps.desc(id);
        d.set_state(kind::LIVE | tier_bits << 4 | self.live_flags);
        d.set_requested(requested);
    }
}
