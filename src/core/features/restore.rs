//! Restores a checkpoint: blocks allocated since are freed, and blocks freed since are live again, at the same
//! addresses.
//!
//! It is a transaction. First, with no lock held, it waits for everything that may use what will be freed, and orders
//! the streams between which memory will move. Then it takes the growth lock and all heaps of the pool, checks
//! everything again, and acquires whatever could run out or be refused (ids, table slots, the right to free). Only then
//! it changes the layout, which cannot fail. If the second check finds more to wait for, it starts again.

use super::super::desc::{ALIAS, DIRECT, Id, TAGGED, TUNED, USES, kind, use_of};
use super::super::ground::{Ground, Growing};
use super::super::heap::{Heap, HeapState, LockedHeap, Use};
use super::super::order::{Fence, Stream, Waits};
use super::super::shape::{Class, Tier, unit_shift};
use super::super::state::checkpoints::{Block, CheckpointId, Layout};
use super::super::state::pools::Sleep;
use super::super::supply::Terms;
use super::super::types::{Freeing, PoolId, RETIRED, UNORDERED};
use super::super::units::{Extent, LARGE_UNITS, LARGE_UNITS_SHIFT};
use super::checkpoint::{PoolHeaps, Restored};
use crate::base::error::{Code, Error, Result};
use crate::base::sort;
use crate::base::sync::lock;
use crate::fail;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::DerefMut;
use std::sync::Arc;

/// How often a restore starts again.
const TRIES: usize = 8;

/// A granule of the layout, or the end of a segment in it, that another heap of the pool owns now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Move {
    part: Extent,
    from: u32,
    to: u32,
}

/// What has been waited for since the restore began; nobody uses the pool meanwhile.
#[derive(Default)]
struct Ready {
    /// Streams, by serial number.
    streams: BTreeSet<u64>,
    /// The whole device.
    device: bool,
    /// Heaps whose streams were ordered: from, to.
    ordered: BTreeSet<(u32, u32)>,
}

/// What must still be waited for.
#[derive(Default)]
struct Missing {
    streams: Vec<Arc<Stream>>,
    fences: Vec<Fence>,
    device: bool,
    orders: BTreeSet<(u32, u32)>,
}

impl Missing {
    fn is_empty(&self) -> bool {
        self.streams.is_empty() && self.fences.is_empty() && !self.device && self.orders.is_empty()
    }
}

/// The difference between the pool and the layout.
struct Change<'a> {
    keep: BTreeSet<u64>,
    /// Of those that stay, blocks that had another tag: they were freed since, and others took their places.
    retag: Vec<&'a Block>,
    gone: Vec<Block>,
    new: Vec<&'a Block>,
    moves: Vec<Move>,
}

fn impossible<T>(why: &str) -> Result<T> {
    fail!(Code::NotPermitted, "the checkpoint cannot be restored: {why}")
}

impl Ground {
    /// Makes exactly those blocks of the pool live that were live at the checkpoint. The caller guarantees that nobody
    /// uses the pool meanwhile. Waits on the host for other streams' uses of what it frees. `place` translates an offset
    /// into an address: that may change as soon as a segment goes back to the device, so it is called while none can.
    /// `tell` hears of each block that is freed while nobody can take its memory.
    pub(crate) fn restore(
        &self,
        pool: PoolId,
        checkpoint: CheckpointId,
        place: impl Fn(u64) -> u64,
        tell: impl Fn(&Freeing),
    ) -> Result<Restored> {
        self.check_reentry()?;
        let Some(want) = lock(&self.checkpoints).all.get(&checkpoint).cloned() else {
            fail!(Code::InvalidArgument, "no such checkpoint, or it was destroyed");
        };
        if want.pool != pool || self.pool(pool).is_none() {
            fail!(Code::InvalidArgument, "the checkpoint is one of another pool");
        }
        let mut ready = Ready::default();
        for _ in 0..TRIES {
            if let Some(s) = want.streams.values().find(|s| s.0 != 0 && self.order.records(s.1)) {
                fail!(Code::Busy, "stream {:#x} is being captured", s.1);
            }
            self.wait_for_replays(pool)?;
            self.wait_until_reusable(pool)?;
            let Some(done) = self.try_restore(pool, &want, &mut ready, &place, &tell)? else { continue };
            self.poll_all(); // gives back the segments of freed blocks
            return Ok(done);
        }
        fail!(Code::Busy, "the pool was used while it was being restored")
    }

    /// Waits on the host until no freed block of the pool waits for streams.
    fn wait_until_reusable(&self, pool: PoolId) -> Result<()> {
        self.exported(Some(pool)); // polls, and checks whether others still use live blocks
        while self.wait_for_one(Some(pool.0)) {}
        let heaps = || self.heaps_of(pool.0).into_iter().map(|x| self.look(x));
        if heaps().any(|h| h.waiting.exported().next().is_some()) {
            fail!(Code::Busy, "freed blocks of the pool are exported, and others still use them");
        }
        if heaps().any(|h| !h.waiting.is_empty()) {
            fail!(Code::Busy, "freed blocks of the pool still wait for streams");
        }
        Ok(())
    }

    /// One attempt. `None`: something had to be waited for first; it was, and `ready` says so.
    fn try_restore(
        &self,
        pool: PoolId,
        want: &Layout,
        ready: &mut Ready,
        place: impl Fn(u64) -> u64,
        tell: impl Fn(&Freeing),
    ) -> Result<Option<Restored>> {
        let mut g = self.growing();
        while g.is_in_transit(Some(pool.0)) {
            g = g.wait_for_transit();
        }
        if self.live_pool(pool)?.sleep_state() != Sleep::Awake {
            fail!(Code::NotPermitted, "the pool sleeps");
        }
        self.check_streams(want)?;
        let mut heaps = self.lock_pool(pool);
        if heaps.values().any(|h| !h.waiting.is_empty()) {
            return Ok(None); // freed since the check above
        }
        let change = self.find_change(&g, pool, want, &heaps)?;
        let missing = self.find_missing(&heaps, &change, ready)?;
        if !missing.is_empty() {
            drop(heaps);
            drop(g);
            self.make_ready(missing, ready)?;
            return Ok(None);
        }
        let entries = self.check_change(&mut heaps, &change)?;
        let mut slots = self.take_slots(&change, want)?;
        if let Err(e) = self.claim_all(&change.gone) {
            self.give_slots(slots);
            return Err(e);
        }
        // From here on nothing can fail.
        let freed: Vec<Freeing> = change
            .gone
            .iter()
            .filter_map(|b| {
                let (h, f) = heaps.get(&b.heap).zip(self.maps.find(b.offset))?;
                let mut freed = self.freeing(h.heap, f.id);
                freed.block.base = place(b.offset);
                Some(freed)
            })
            .collect();
        freed.iter().for_each(tell);
        let live = change.new.iter().map(|b| (place(b.offset), b.requested)).collect();
        let dropped = self.free_all(&mut heaps, &change.gone);
        self.move_all(&mut heaps, &change.moves);
        self.place_all(&mut heaps, &change.new, &mut slots, &entries);
        self.give_slots(slots);
        for b in &change.retag {
            if let Some((h, f)) = heaps.get(&b.heap).zip(self.maps.find(b.offset)) {
                self.tag_instead(h, f.id, b.tag);
            }
        }
        let over: Vec<&'static Heap> = heaps.values().filter(|h| h.counters.over()).map(|h| h.heap).collect();
        drop(heaps);
        drop(g);
        over.into_iter().for_each(|x| self.settle(x));
        drop(dropped);
        Ok(Some(Restored { freed, live }))
    }

    /// Fails unless the heaps of the layout still serve the streams that they served then.
    fn check_streams(&self, want: &Layout) -> Result<()> {
        for (&heap, &(serial, stream)) in &want.streams {
            // A detached heap serves no stream, but may belong to a live one (`capture.rs`).
            let lives = |s: &Arc<Stream>| s.serial == serial && s.end().is_none();
            let same = self.heap(heap).filter(|x| x.pool() == want.pool.0).is_some_and(|x| {
                let h = self.look(x);
                h.stream.as_ref().map_or(serial == 0 && x.stream() == UNORDERED, lives)
            });
            if !same {
                fail!(Code::UnknownStream, "stream {stream:#x} of the checkpoint has ended");
            }
        }
        Ok(())
    }

    /// Finds what must change. Fails if that is impossible.
    fn find_change<'w>(
        &self,
        g: &Growing<'_>,
        pool: PoolId,
        want: &'w Layout,
        heaps: &PoolHeaps<'_>,
    ) -> Result<Change<'w>> {
        let at: HashMap<u64, &Block> = want.blocks.iter().map(|b| (b.offset, b)).collect();
        let (kept, gone): (Vec<Block>, Vec<Block>) =
            self.live_of(g, heaps).into_iter().partition(|b| at.get(&b.offset).is_some_and(|w| w.is(b)));
        let keep: BTreeSet<u64> = kept.iter().map(|b| b.offset).collect();
        let was = |b: &Block| at.get(&b.offset).copied().filter(|w| w.tag != b.tag);
        let retag = kept.iter().filter_map(was).collect();
        let new: Vec<&Block> = want.blocks.iter().filter(|b| !keep.contains(&b.offset)).collect();
        if new.iter().any(|b| b.direct) {
            return impossible("a block that was a segment of its own has gone back to the device");
        }
        for (&granule, &serial) in &want.segments {
            if g.segment_of(granule).is_none_or(|s| s.serial != serial) {
                return impossible("a segment of it went back to the device");
            }
        }
        let mut moves = BTreeMap::new();
        for b in &want.blocks {
            for granule in b.granules() {
                let owner = self.maps.granule(granule);
                let ours = (use_of::SMALL..=use_of::LARGE).contains(&owner.use_());
                if !ours || self.heap(owner.heap()).is_none_or(|x| x.pool() != pool.0) {
                    return impossible("memory of it has left the pool");
                }
                if owner.heap() != b.heap {
                    let off = granule << LARGE_UNITS_SHIFT;
                    let units = match g.segment_end(granule) {
                        Some(end) => LARGE_UNITS.min(end - off),
                        None => LARGE_UNITS,
                    };
                    moves.insert(
                        granule,
                        Move { part: Extent::new(off, units), from: owner.heap(), to: b.heap },
                    );
                }
            }
        }
        Ok(Change { keep, retag, gone, new, moves: moves.into_values().collect() })
    }

    /// Finds what must be waited for before the change.
    fn find_missing(&self, heaps: &PoolHeaps<'_>, change: &Change<'_>, ready: &Ready) -> Result<Missing> {
        let mut missing = Missing::default();
        for b in &change.gone {
            let Some((h, f)) = heaps.get(&b.heap).zip(self.maps.find(b.offset)) else { continue };
            missing.device |= h.heap.stream() == UNORDERED && !ready.device;
            for u in h.uses.get(&f.id).into_iter().flatten() {
                match &u.ended {
                    Some(fence) if fence.is_passed() => {}
                    Some(fence) => missing.fences.push(fence.clone()),
                    None if ready.streams.contains(&u.stream.serial) => {}
                    None => missing.streams.push(u.stream.clone()),
                }
            }
        }
        // A block whose stream has ended is ordered by no stream: it must be idle when it becomes live again.
        let inherits = |heap: &u32| heaps.get(heap).is_some_and(|h| h.inherited);
        let receivers = heaps.keys().copied().filter(&inherits);
        let givers = change.moves.iter().filter(|m| inherits(&m.to)).map(|m| m.from);
        for heap in receivers.chain(givers).collect::<BTreeSet<u32>>() {
            let stream = heaps.get(&heap).and_then(|h| h.stream.clone());
            missing.streams.extend(stream.filter(|s| !ready.streams.contains(&s.serial)));
        }
        let orders = change.moves.iter().map(|m| (m.from, m.to));
        missing.orders = orders.filter(|pair| !ready.ordered.contains(pair)).collect();
        Ok(missing)
    }

    fn make_ready(&self, missing: Missing, ready: &mut Ready) -> Result<()> {
        let mut waits = Waits::default();
        for stream in &missing.streams {
            if self.order.is_captured(stream.id) {
                fail!(Code::Busy, "stream {:#x} is being captured", stream.id);
            }
            self.order.add(stream, &mut waits);
        }
        missing.fences.into_iter().for_each(|f| waits.push(f));
        if missing.device {
            self.order.add_all(&mut waits);
        }
        self.order.sync_waits(&mut waits)?;
        ready.streams.extend(missing.streams.iter().map(|s| s.serial));
        ready.device |= missing.device;
        for (from, to) in missing.orders {
            let (Some(giver), Some(taker)) = (self.heap(from), self.heap(to)) else {
                return Err(Error::new(Code::Internal, "a heap is missing"));
            };
            let stream = self.look(giver).stream.clone();
            if taker.stream() == RETIRED {
                return impossible("memory of a stream that has ended has gone to another");
            }
            if !self.agree(giver.stream(), stream, taker, Terms::Wait) {
                fail!(Code::Busy, "memory cannot move between streams of the pool now");
            }
            ready.ordered.insert((from, to));
        }
        Ok(())
    }

    /// Acquires everything that the change needs besides table slots; returns the address ranges for scattered blocks.
    fn check_change(&self, heaps: &mut PoolHeaps<'_>, change: &Change<'_>) -> Result<HashMap<u64, u32>> {
        for b in &change.gone {
            let Some((h, f)) = heaps.get(&b.heap).zip(self.maps.find(b.offset)) else { continue };
            if h.exports.get(&f.id).is_some_and(|fences| fences.iter().any(|f| !f.is_passed())) {
                fail!(Code::Busy, "the restore would free a block that is exported and still used by others");
            }
        }
        let aliases = self.aliases.lock();
        let mut entries = HashMap::new();
        for b in change.new.iter().filter(|b| b.tier_bits == ALIAS) {
            match aliases.at(b.granule()) {
                Some((entry, pieces)) if *pieces == *b.pieces => entries.insert(b.offset, entry),
                _ => return impossible("addresses of a scattered block show something else now"),
            };
        }
        drop(aliases);
        for (&index, h) in heaps.iter_mut() {
            let placed = change.new.iter().filter(|b| b.heap == index);
            let carved: usize = placed.map(|b| 4 + 2 * b.pieces.len()).sum();
            let moved = change.moves.iter().filter(|m| m.from == index || m.to == index).count();
            if !h.stock((carved + 3 * moved + 2) as u32) {
                fail!(Code::OutOfMemory, "more blocks than the library can keep track of");
            }
        }
        Ok(entries)
    }

    /// Takes table slots for the chunks that must be made, by granule: those in which no block stays.
    fn take_slots(&self, change: &Change<'_>, want: &Layout) -> Result<BTreeMap<u32, (Tier, u32)>> {
        let fine = want.blocks.iter().filter(|b| b.is_fine());
        let stays: BTreeSet<u32> =
            fine.filter(|b| change.keep.contains(&b.offset)).map(Block::granule).collect();
        let mut slots = BTreeMap::new();
        for b in change.new.iter().filter(|b| b.is_fine() && !stays.contains(&b.granule())) {
            if slots.contains_key(&b.granule()) {
                continue;
            }
            let Some(slot) = self.maps.take_slot(b.tier()) else {
                self.give_slots(slots);
                fail!(Code::OutOfMemory, "more small blocks than the library can keep track of");
            };
            slots.insert(b.granule(), (b.tier(), slot));
        }
        Ok(slots)
    }

    fn give_slots(&self, slots: BTreeMap<u32, (Tier, u32)>) {
        slots.into_values().for_each(|(tier, slot)| self.maps.give_slot(tier, slot));
    }

    /// Acquires the right to free the blocks, in competition with frees from other threads. All or none.
    fn claim_all(&self, gone: &[Block]) -> Result<()> {
        for (i, b) in gone.iter().enumerate() {
            let d = self.maps.find(b.offset).map(|f| f.desc);
            // Blocks with flags are freed only under their heap's lock, which is held.
            if d.is_some_and(|d| d.state() & (USES | DIRECT | TUNED | TAGGED) != 0 || d.claim_remote()) {
                continue;
            }
            for b in &gone[..i] {
                if let Some(f) = self.maps.find(b.offset) {
                    f.desc.unclaim_remote();
                }
            }
            fail!(Code::Busy, "a block of the pool was freed while it was being restored");
        }
        Ok(())
    }

    /// Frees claimed blocks; segments of their own wait to go back to the device. The result must be dropped when no
    /// lock is held.
    fn free_all(&self, heaps: &mut PoolHeaps<'_>, gone: &[Block]) -> Vec<Use> {
        let mut dropped = Vec::new();
        for b in gone {
            let (Some(f), Some(h)) = (self.maps.find(b.offset), heaps.get_mut(&b.heap)) else {
                continue;
            };
            dropped.extend(h.uses.remove(&f.id).unwrap_or_default());
            h.exports.remove(&f.id); // nobody uses it any more
            let was = f.desc.state();
            self.end_oversize(h.heap.pool(), was);
            if b.direct {
                // The work of its own stream must still be waited for; for a block without a stream, all streams were.
                f.desc.set_kind(kind::WAITING);
                self.untag(f.id, was, true);
                h.counters.count_out_to_wait(Class::of(b.tier_bits), b.charged, b.requested);
                let ticket = h.waiting.begin(f.id, Vec::new(), true);
                let mut waits = Waits::default();
                if let Some(own) = &h.stream {
                    self.order.owe(own, &mut waits);
                }
                h.waiting.known(ticket, waits);
                self.waiting.lock().insert(b.heap);
                continue;
            }
            h.counters.count_out(Class::of(b.tier_bits), b.charged, b.requested);
            self.untag(f.id, was, false);
            h.merge(f.id);
        }
        heaps.values_mut().for_each(LockedHeap::flush); // turns empty chunks into granules
        dropped
    }

    /// Moves granules of the layout to the heaps that had them, from the highest down.
    fn move_all(&self, heaps: &mut PoolHeaps<'_>, moves: &[Move]) {
        for m in moves.iter().rev() {
            let taken = heaps.get_mut(&m.from).and_then(|h| {
                let mut free = Vec::new();
                h.free_list(&mut free);
                h.take_at(&free, m.part)
            });
            debug_assert!(taken.is_some(), "what is not kept is free");
            if let (Some(block), Some(h)) = (taken, heaps.get_mut(&m.to)) {
                h.give(block);
            }
        }
    }

    /// Makes the blocks live, each at its place.
    fn place_all(
        &self,
        heaps: &mut PoolHeaps<'_>,
        new: &[&Block],
        slots: &mut BTreeMap<u32, (Tier, u32)>,
        entries: &HashMap<u64, u32>,
    ) {
        for (&index, h) in heaps.iter_mut() {
            let mine = || new.iter().copied().filter(|b| b.heap == index);
            // What lies in the granules themselves, from the highest down: blocks (`false`) and chunks (`true`).
            let mut coarse: Vec<(Extent, bool)> = Vec::new();
            let mut fine: BTreeMap<u32, Vec<&Block>> = BTreeMap::new();
            for b in mine() {
                if !b.is_fine() {
                    coarse.extend(b.parts().into_iter().map(|p| (p, false)));
                    continue;
                }
                let chunk = fine.entry(b.granule()).or_default();
                if chunk.is_empty() && slots.contains_key(&b.granule()) {
                    coarse.extend(b.parts().into_iter().map(|p| (p, true)));
                }
                chunk.push(b);
            }
            sort::by_key(&mut coarse, |c| std::cmp::Reverse(c.0.off));
            let mut free = Vec::new();
            h.free_list(&mut free);
            let mut taken: HashMap<u32, Id> = HashMap::new(); // by offset
            for &(part, is_chunk) in &coarse {
                let Some(piece) = h.carve_at(&free, part) else { continue };
                let slot = if is_chunk { slots.remove(&part.touched().first) } else { None };
                match slot {
                    Some((tier, slot)) => h.chunk_from(piece, tier, slot),
                    None => _ = taken.insert(part.off, piece),
                }
            }
            for b in mine().filter(|b| !b.is_fine()) {
                let ids: Vec<Id> = b.parts().iter().filter_map(|p| taken.get(&p.off).copied()).collect();
                let id = match entries.get(&b.offset) {
                    None => ids.first().copied(),
                    Some(&entry) => self.show_again(h.heap, b, entry, &ids),
                };
                if let Some(id) = id {
                    self.revive_block(h, id, b);
                }
            }
            for (granule, mut blocks) in fine {
                sort::by_key(&mut blocks, |b| b.offset);
                let Some(tier) = blocks.first().map(|b| b.tier()) else { continue };
                let shift = unit_shift(tier);
                let parts: Vec<Extent> =
                    blocks.iter().map(|b| Extent::new((b.offset >> shift) as u32, b.units)).collect();
                let mut ids = Vec::new();
                h.fill_chunk(tier, granule, &parts, |n, id| ids.push((n, id)));
                for (n, id) in ids {
                    self.revive_block(h, id, blocks[n]);
                }
            }
            h.count_stuck();
        }
    }

    /// Makes a scattered block over pieces that were cut out, in a range where they are mapped already.
    fn show_again(&self, heap: &Heap, b: &Block, entry: u32, pieces: &[Id]) -> Option<Id> {
        let mut next = 0;
        for &piece in pieces.iter().rev() {
            let d = self.maps.desc(piece);
            d.become_(kind::EXTENT, Tier::Large as u32);
            d.set_next(next);
            next = piece;
        }
        let range = self.aliases.lock().take_index(entry)?;
        self.enter_alias(heap, range, b.units, next);
        Some(range.id)
    }

    fn revive_block<G: DerefMut<Target = HeapState>>(&self, h: &mut LockedHeap<'_, G>, id: Id, b: &Block) {
        h.make_live(id, b.tier_bits, b.requested);
        self.flag_tuned(h, id, b.charged);
        if b.tag != 0 {
            self.tag_live(h, id, b.tag);
        }
        h.counters.count_in(Class::of(b.tier_bits), b.charged, b.requested);
    }
}
