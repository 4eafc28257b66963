//! Block descriptors and the maps that lead from an offset to one.
//!
//! A descriptor has 32 bytes and is named by a 32-bit id that is never 0. A granule's record says which heap owns the
//! granule and how its offsets are looked up. The table entries at the first and the last unit of each block hold the
//! block's id, so that both neighbours of a block are one load away. Entries inside a block are stale; a lookup
//! therefore trusts an entry only if the descriptor agrees.
//!
//! All words are atomics used `Relaxed`: they are written under the heap's lock, and read without it by frees from
//! other threads, which decide only by the compare-exchange on the state. Nothing here takes the lock of a heap; the
//! locks of the table slots and of the spare ids are held for moments only.

use super::shape::{
    MEDIUM_SHIFT, SMALL_SHIFT, Shape, TIER_MASK, TIER_SHIFT, Tier, shift_of, tier_bits_of, unit_shift,
};
use super::units::{GRANULE_SHIFT, LARGE_SHIFT, LARGE_UNITS, LARGE_UNITS_SHIFT, granule_bytes};
use crate::base::error::Result;
use crate::base::mapped_array::{MappedArray, Pair};
use crate::base::masked::MaskedArray;
use crate::base::sync::{AtomicU32, AtomicU64, Lock, Ordering::Relaxed};
use crate::locks;
use std::sync::{Arc, OnceLock};

mod charge;
mod find;
mod granule;
mod reserved;
mod state;

pub(crate) use granule::{GranuleUse, use_of};
pub(crate) use reserved::Reserved;
pub(crate) use state::{ALIAS, DIRECT, OVERSIZE, OWNER_SHIFT, TAGGED, TUNED, USES, free_state, kind};
use state::{CLAIM, PLAIN};

/// The number of a block's descriptor. 0: none.
pub(crate) type Id = u32;

/// The number of ids that a heap fetches at a time.
pub(crate) const ID_BATCH: u32 = 64;

/// A descriptor: 32 bytes, half a cache line. Six 32-bit words, which [`Desc`] gives their meaning, and a 64-bit one.
type Record = Pair<[AtomicU32; 6], AtomicU64>;

#[cfg(not(loom))] // whose atomics are more than their bits
const _: () = assert!(size_of::<Record>() == 32);

/// The words of a descriptor.
mod word {
    pub(super) const OFF: usize = 0;
    pub(super) const UNITS: usize = 1;
    pub(super) const STATE: usize = 2;
    pub(super) const NEXT: usize = 3;
    pub(super) const PREV: usize = 4;
    pub(super) const AUX: usize = 5;
}

/// A view of one descriptor.
#[derive(Clone, Copy)]
pub(crate) struct Desc<'a>(&'a Record);

macro_rules! word {
    ($get:ident, $set:ident, $i:expr, $doc:expr) => {
        #[doc = $doc]
        #[inline(always)]
        pub(crate) fn $get(self) -> u32 {
            self.0.first[$i].load(Relaxed)
        }
        #[doc = $doc]
        #[inline(always)]
        pub(crate) fn $set(self, v: u32) {
            self.0.first[$i].store(v, Relaxed);
        }
    };
}

impl<'a> Desc<'a> {
    word!(off, set_off, word::OFF, "Offset, in units of the tier.");
    word!(units, set_units, word::UNITS, "Size, in units of the tier.");
    word!(
        next,
        set_next,
        word::NEXT,
        "Next in its bin; of a scattered block, its first piece; of a piece, the next one."
    );
    word!(prev, set_prev, word::PREV, "Previous in its bin; on the remote list, the next one.");
    word!(
        aux,
        set_aux,
        word::AUX,
        "For a scattered block, its entry in the alias cache; for a free large block in the bins, 1 if it is a whole segment; for a small or medium block that is live or freed, the list of its size."
    );

    /// Kind, tier and flags.
    #[inline(always)]
    pub(crate) fn state(self) -> u32 {
        self.0.first[word::STATE].load(Relaxed)
    }
    /// Kind, tier and flags.
    #[inline(always)]
    pub(crate) fn set_state(self, v: u32) {
        #[cfg(not(loom))]
        self.0.first[word::STATE].store(v, Relaxed);
        // A store that races with the exchange of `claim_remote`, after a load that saw the value which that exchange
        // replaces, is ordered after it: nothing comes between the read and the write of an exchange. Loom knows this
        // only of two exchanges.
        #[cfg(loom)]
        self.0.first[word::STATE].swap(v, Relaxed);
    }

    /// Flips these bits of the state, with one instruction. The heap is locked and the block is not live, so no other thread
    /// changes the state: a free from another thread only claims live blocks.
    #[inline(always)]
    pub(crate) fn flip_state(self, bits: u32) {
        self.set_state(self.state() ^ bits);
    }

    /// [B] the size that was requested.
    #[inline(always)]
    pub(crate) fn requested(self) -> u64 {
        self.0.second.load(Relaxed)
    }
    #[inline(always)]
    pub(crate) fn set_requested(self, v: u64) {
        self.0.second.store(v, Relaxed);
    }
    #[inline(always)]
    pub(crate) fn kind(self) -> u32 {
        self.state() & kind::MASK
    }
    /// The tier bits: a [`Tier`] or [`ALIAS`].
    #[inline(always)]
    pub(crate) fn tier_bits(self) -> u32 {
        tier_bits_of(self.state())
    }
    /// Sets kind and tier, clears the flags.
    #[inline(always)]
    pub(crate) fn become_(self, kind: u32, tier_bits: u32) {
        self.set_state(kind | tier_bits << TIER_SHIFT);
    }
    /// Changes the kind, keeps the tier, clears the flags.
    #[inline(always)]
    pub(crate) fn set_kind(self, kind: u32) {
        self.set_state(kind | self.state() & TIER_MASK);
    }
    /// Flags a live block so that its free takes the slow path. `false`: it is no longer live.
    pub(crate) fn flag_uses(self) -> bool {
        self.flag_live(USES)
    }
    /// The same with other flags.
    pub(crate) fn flag_live(self, flags: u32) -> bool {
        let mut was = self.state();
        while was & kind::MASK == kind::LIVE {
            // The exchange decides between this and a free from another thread, which changes the state too.
            match self.0.first[word::STATE].compare_exchange(was, was | flags, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(now) => was = now,
            }
        }
        false
    }
    /// Ends the life of a block whose state, seen under its heap's lock, was `was`. If other threads free blocks of the
    /// heap (`shared`), an exchange decides between this and a concurrent free of the same block; `false`: the other
    /// was first.
    #[inline(always)]
    pub(crate) fn end_life(self, was: u32, kind: u32, shared: bool) -> bool {
        let to = kind | was & TIER_MASK;
        if shared {
            return self.0.first[word::STATE].compare_exchange(was, to, Relaxed, Relaxed).is_ok();
        }
        self.set_state(to);
        true
    }
    /// The same for a plainly live block (no flag) that is just freed: `ending` is what that changes.
    #[inline(always)]
    pub(crate) fn end_plain_life(self, was: u32, ending: u32, shared: bool) -> bool {
        if shared {
            return self.end_life(was, kind::FREED, shared);
        }
        // Computed from `was`, not from the state now: a double free may have claimed the block by an index that was
        // another heap's.
        self.set_state(was ^ ending);
        true
    }
    /// Claims a plainly live block (no flag) for a free from another thread. `false`: it was not plainly live, or another
    /// thread was first.
    #[inline]
    pub(crate) fn claim_remote(self) -> bool {
        let was = self.state();
        was & PLAIN == kind::LIVE
            // Nothing is published here; the Release is in the push on the remote list. The exchange only decides
            // between two frees of the same block.
            && self.0.first[word::STATE].compare_exchange(was, was ^ CLAIM, Relaxed, Relaxed).is_ok()
    }
    /// Undoes `claim_remote`. If the block's own heap has ended its life meanwhile, that stays.
    pub(crate) fn unclaim_remote(self) {
        let was = self.state();
        if was & kind::MASK == kind::REMOTE {
            let _ = self.0.first[word::STATE].compare_exchange(was, was ^ CLAIM, Relaxed, Relaxed);
        }
    }
}

/// All descriptors, for code that reads several: their base address is loaded once, and not again after each store.
#[derive(Clone, Copy)]
pub(crate) struct Descs<'a>(&'a MaskedArray<Record>);

impl<'a> Descs<'a> {
    #[inline(always)]
    pub(crate) fn of(self, id: Id) -> Desc<'a> {
        Desc(self.0.at(id))
    }
}

/// The ids at the units of the large tier; for the same reason.
#[derive(Clone, Copy)]
pub(crate) struct LargeTags<'a>(&'a MaskedArray<AtomicU32>);

impl LargeTags<'_> {
    #[inline(always)]
    pub(crate) fn at(self, unit: u32) -> Id {
        self.0.at(unit).load(Relaxed)
    }
    #[inline(always)]
    pub(crate) fn set(self, unit: u32, id: Id) {
        self.0.at(unit).store(id, Relaxed);
    }
    /// Enters a block at its first and its last unit.
    #[inline(always)]
    pub(crate) fn enter(self, off: u32, units: u32, id: Id) {
        self.set(off, id);
        self.set(off + units - 1, id);
    }
}

/// The result of [`Maps::find`]: a block, in whatever state.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    pub id: Id,
    pub heap: u32,
    pub desc: Desc<'a>,
}

/// Descriptors, granule records and tables of one device.
pub(crate) struct Maps {
    pub shape: Shape,
    descs: MaskedArray<Record>,
    most: u32,                        // ids are below this
    granules: MaskedArray<AtomicU64>, // one more than there are, so that a granule has a next one
    table: MaskedArray<AtomicU32>,
    /// For each granule, the large block that was last found to contain an address in it, though it starts before it.
    holders: MappedArray<AtomicU32>,
    /// The tags of blocks that have one, by id; made for the first.
    tags: OnceLock<MappedArray<AtomicU32>>,
    next_id: AtomicU32,
    /// Ids that heaps gave back: the first; `next` links to the others.
    spare_ids: Lock<Id, locks::SpareIds>,
    slots: [Lock<ChunkSlots, locks::TableSlots>; 2],
    real: u32, // granules of memory; those from here on are addresses only
    /// The bytes taken from the device, by class.
    pub reserved: Arc<Reserved>,
    alias_base: u32, // table index of the first alias granule
}

/// Free table slots of a fine tier; each chunk has one.
struct ChunkSlots {
    free: Vec<u32>, // has room for all that were ever used
    fresh: u32,     // the next slot that was never used
    end: u32,       // one past the last slot
    base: u32,      // table index of slot 0
    size: u32,      // entries in a slot
}

impl ChunkSlots {
    fn take(&mut self) -> Option<u32> {
        let slot = self.free.pop().or_else(|| {
            // The list is empty. Whoever gives a slot back cannot be told that the host has no memory for it.
            let mut has_room = || self.free.try_reserve(self.fresh as usize + 1).is_ok();
            (self.fresh < self.end && has_room()).then(|| {
                self.fresh += 1;
                self.fresh - 1
            })
        })?;
        Some(self.base + slot * self.size)
    }
    fn give(&mut self, index: u32) {
        self.free.push((index - self.base) / self.size);
    }
}

/// Where the use of one granule is recorded.
#[derive(Clone, Copy)]
pub(crate) struct UseRecord<'a>(&'a AtomicU64);

impl UseRecord<'_> {
    /// Its current use.
    #[inline(always)]
    pub(crate) fn now(self) -> GranuleUse {
        GranuleUse(self.0.load(Relaxed))
    }
}

impl Maps {
    /// Maps for `real` granules of memory, followed by `alias` granules of addresses only, with at most `most` blocks.
    pub(crate) fn new(shape: Shape, real: u32, alias: u32, most: u64) -> Result<Maps> {
        // One slot for each granule, so that a device can be full of blocks of one tier; on very large devices fewer,
        // as an index has 32 bits. Only what is touched costs memory.
        let small_slots = real.clamp(1, 1 << 17);
        let medium_slots = real.clamp(1, 1 << 18);
        let small_size = 1u32 << (GRANULE_SHIFT - SMALL_SHIFT);
        let medium_size = 1u32 << (GRANULE_SHIFT - MEDIUM_SHIFT);
        let large = u64::from(real) * u64::from(LARGE_UNITS);
        let aliases = u64::from(alias);
        let entries = aliases
            + large
            + u64::from(small_slots) * u64::from(small_size)
            + u64::from(medium_slots) * u64::from(medium_size);
        let capacity = granule_bytes(real);
        // Where the device maps, there are twice as many granule numbers as memory; so this is a block for each 512
        // bytes.
        let ids = (capacity / 1024 + (1 << 20)).min(1 << 28).min(most);
        let medium_base = large as u32 + small_slots * small_size;
        let slots = |base, size, end| Lock::new(ChunkSlots { free: Vec::new(), fresh: 0, end, base, size });
        Ok(Maps {
            reserved: Arc::new(Reserved::new()?),
            shape,
            descs: MaskedArray::new(ids as usize)?,
            most: ids as u32,
            granules: MaskedArray::new((u64::from(real) + u64::from(alias)) as usize + 1)?,
            table: MaskedArray::new(entries as usize)?,
            holders: MappedArray::new(real as usize)?,
            tags: OnceLock::new(),
            next_id: AtomicU32::new(ID_BATCH), // so that no two heaps share a cache line of fresh descriptors
            spare_ids: Lock::new(0),
            slots: [
                slots(large as u32, small_size, small_slots),
                slots(medium_base, medium_size, medium_slots),
            ],
            real,
            alias_base: (entries - aliases) as u32,
        })
    }

    /// Gives the memory of all tables back to the system; the tables are empty from now on. See `Pond::discard`.
    pub(crate) fn discard(&self) {
        self.descs.discard();
        self.granules.discard();
        self.table.discard();
        self.holders.discard();
        self.tags.get().into_iter().for_each(MappedArray::discard);
    }

    /// Notes the tag of a block. `false`: there is no memory of the host for tags.
    pub(crate) fn set_tag(&self, id: Id, tag: u16) -> bool {
        if self.tags.get().is_none() {
            let Ok(table) = MappedArray::new(self.most as usize) else { return false };
            let _ = self.tags.set(table); // another thread may have been first
        }
        let entry = self.tags.get().and_then(|t| t.get(id as usize));
        entry.map(|e| e.store(tag.into(), Relaxed)).is_some()
    }

    /// The tag that was noted last for a block.
    pub(crate) fn tag(&self, id: Id) -> u16 {
        let entry = self.tags.get().and_then(|t| t.get(id as usize));
        entry.map_or(0, |e| e.load(Relaxed) as u16)
    }

    #[inline(always)]
    pub(crate) fn desc(&self, id: Id) -> Desc<'_> {
        Desc(self.descs.at(id))
    }

    #[inline(always)]
    pub(crate) fn descs(&self) -> Descs<'_> {
        Descs(&self.descs)
    }

    #[inline(always)]
    pub(crate) fn large_tags(&self) -> LargeTags<'_> {
        LargeTags(&self.table)
    }

    /// The same for an id that may be out of range.
    #[inline(always)]
    pub(crate) fn get(&self, id: Id) -> Option<Desc<'_>> {
        (id < self.most).then(|| self.desc(id))
    }

    /// Takes up to `want` unused ids, as a list linked by `next`; returns the first, or 0 if none are left.
    pub(crate) fn take_ids(&self, want: u32) -> Id {
        {
            let mut spare = self.spare_ids.lock();
            let first = *spare;
            if first != 0 {
                let mut last = first;
                for _ in 1..want {
                    match self.desc(last).next() {
                        0 => break,
                        next => last = next,
                    }
                }
                *spare = self.desc(last).next();
                self.desc(last).set_next(0);
                return first;
            }
        }
        let first = self.next_id.fetch_add(want, Relaxed);
        let end = self.most;
        if first >= end {
            self.next_id.store(end, Relaxed);
            return 0;
        }
        let count = want.min(end - first);
        for id in first..first + count {
            let next = if id + 1 < first + count { id + 1 } else { 0 };
            self.desc(id).set_state(kind::UNUSED);
            self.desc(id).set_next(next);
        }
        first
    }

    /// Whether no id is left that was never handed out: one heap may have in stock what others need.
    pub(crate) fn ids_are_few(&self) -> bool {
        self.next_id.load(Relaxed) >= self.most
    }

    /// How many ids were ever handed out.
    pub(crate) fn ids_made(&self) -> u32 {
        self.next_id.load(Relaxed).min(self.most)
    }

    /// Gives a list of ids back, for use by any heap.
    pub(crate) fn give_ids(&self, first: Id) {
        if first == 0 {
            return;
        }
        let mut last = first;
        while self.desc(last).next() != 0 {
            last = self.desc(last).next();
        }
        let mut spare = self.spare_ids.lock();
        self.desc(last).set_next(*spare);
        *spare = first;
    }

    #[inline(always)]
    pub(crate) fn granule(&self, index: u32) -> GranuleUse {
        GranuleUse(self.granules.at(index).load(Relaxed))
    }
    #[inline]
    pub(crate) fn set_granule(&self, index: u32, to: GranuleUse) {
        self.granules.at(index).store(to.0, Relaxed);
    }

    /// The id at a unit of the large tier.
    #[inline(always)]
    pub(crate) fn large_at(&self, unit: u32) -> Id {
        self.table.at(unit).load(Relaxed)
    }
    #[inline(always)]
    pub(crate) fn set_large_at(&self, unit: u32, id: Id) {
        self.table.at(unit).store(id, Relaxed);
    }
    /// The id at entry `index` of the table (fine tiers).
    #[inline(always)]
    pub(crate) fn at(&self, index: u32) -> Id {
        self.table.at(index).load(Relaxed)
    }
    #[inline(always)]
    pub(crate) fn set_at(&self, index: u32, id: Id) {
        self.table.at(index).store(id, Relaxed);
    }

    /// Takes a table slot for a chunk of a fine tier.
    pub(crate) fn take_slot(&self, tier: Tier) -> Option<u32> {
        self.slots.get(tier as usize)?.lock().take()
    }
    pub(crate) fn give_slot(&self, tier: Tier, index: u32) {
        if let Some(s) = self.slots.get(tier as usize) {
            s.lock().give(index);
        }
    }

    /// The record of a granule of large blocks.
    pub(crate) fn large_use(&self, heap: u32) -> GranuleUse {
        GranuleUse::new(use_of::LARGE, LARGE_SHIFT, heap, 0) // the entries of the large tier come first in the table
    }

    /// The record of a granule that is a chunk with the table slot `slot`.
    pub(crate) fn chunk_use(&self, tier: Tier, heap: u32, granule: u32, slot: u32) -> GranuleUse {
        let shift = unit_shift(tier);
        let low = slot.wrapping_sub(granule << (GRANULE_SHIFT - shift));
        GranuleUse::new(use_of::of_blocks(tier as u32), shift, heap, low)
    }

    /// Enters a scattered block at the first granule of its addresses, of which it skips `head` units. That granule has
    /// a single table entry: the block's own start leads to it, and no other offset passes the check against the block.
    pub(crate) fn set_alias(&self, granule: u32, head: u32, heap: u32, id: Id) {
        let entry = self.alias_entry(granule);
        self.set_at(entry, id);
        let low = entry.wrapping_sub((granule << LARGE_UNITS_SHIFT) + head);
        self.set_granule(granule, GranuleUse::new(use_of::ALIAS, LARGE_SHIFT, heap, low));
    }

    fn alias_entry(&self, granule: u32) -> u32 {
        self.alias_base + (granule - self.real)
    }

    /// The record of the granule that contains `offset`.
    #[inline(always)]
    pub(crate) fn granule_of(&self, offset: u64) -> GranuleUse {
        self.record_of(offset).now()
    }

    /// Where the use of the granule at `offset` is recorded, to be read again under a lock. For an offset that the pond
    /// does not have it is that of another granule, which leads to no block that starts at this offset.
    #[inline(always)]
    pub(crate) fn record_of(&self, offset: u64) -> UseRecord<'_> {
        UseRecord(self.granules.at((offset >> GRANULE_SHIFT) as u32))
    }

    /// [B] the size of a block by its units; `None` for an unused id.
    pub(crate) fn bytes(&self, id: Id) -> Option<u64> {
        let d = self.desc(id);
        let shift = shift_of(d.tier_bits());
        (d.kind() != kind::UNUSED).then(|| u64::from(d.units()) << shift)
    }
}
