//! Restores a checkpoint: blocks allocated since are freed, and blocks freed since are live again, at the same
//! addresses.
//!
//! It is a transaction. First, with no lock held, it waits for everything that may use what will be freed, and orders
//! the streams between which memory will move. Then it takes the growth lock and all heaps of the pool, checks
//! everything again, and acquires whatever could run out or be refused (ids, table slots, the right to free). Only then
//! it changes the layout (`rebuild.rs`), which cannot fail. If the second check finds more to wait for, it starts again.

use super::super::account::Accounts;
use super::super::aliases::show_the_same;
use super::super::blocks::{Blocks, ReleasedPools, WaitingBlocks, collect_ids};
use super::super::desc::{ALIAS, DIRECT, TAGGED, TUNED, USES, use_of};
use super::super::ground::{Ground, Growing};
use super::super::heap::Heap;
use super::super::order::{Fence, Stream, Waits};
use super::super::shape::Tier;
use super::super::state::checkpoints::{Block, Layout, RecordedStream};
use super::super::supply::{Giver, Terms, wait_for_giver};
use super::super::types::{Freeing, RETIRED, UNORDERED};
use super::super::units::{Extent, GRANULE, LARGE_UNITS, LARGE_UNITS_SHIFT};
use super::exports::ExportCalls;
use super::pool_heaps::PoolHeaps;
use super::rebuild::{Move, Rebuild, Slots};
use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::base::sync::give_way;
use crate::fail;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// How often a restore starts again.
const TRIES: usize = 8;

/// Two heaps of the pool: memory moves from one to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FromTo {
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
    /// Heaps whose streams were ordered.
    ordered: BTreeSet<FromTo>,
}

/// What must still be waited for.
#[derive(Default)]
struct Missing {
    streams: Vec<Arc<Stream>>,
    fences: Vec<Fence>,
    device: bool,
    orders: BTreeSet<FromTo>,
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

/// The blocks that a restore has freed, and those that it has made live.
#[derive(Debug, Default)]
pub struct Restored {
    /// They were live before and are not now.
    pub freed: Vec<Freeing>,
    /// They were not live before (or had another size) and are now: address, requested bytes.
    pub live: Vec<(u64, u64)>,
}

impl Restored {
    /// The freed ones: address, requested bytes.
    pub fn freed(&self) -> Vec<(u64, u64)> {
        self.freed.iter().map(|f| (f.block.base, f.block.requested)).collect()
    }
}

impl Change<'_> {
    /// How many ids a heap must have in stock: so many may be taken beyond those that it gets back before.
    fn ids_for(&self, heap: u32) -> u32 {
        let (mut starts, mut ends, mut chunks) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let new = || self.new.iter().filter(|b| b.heap == heap);
        new().for_each(|b| b.each_range(&mut |from, _| _ = starts.insert(from)));
        // Cut out, with what is free on both sides.
        let mut needs = 2 * self.moves.iter().filter(|m| m.from == heap).count();
        for b in new() {
            // A chunk is cut out, too, and is one free block at first.
            needs += if b.is_fine() && chunks.insert(u64::from(b.granule())) { 3 } else { 0 };
            // One for the block, and one for what is free behind it.
            b.each_range(&mut |_, to| needs += 1 + usize::from(!starts.contains(&to)));
        }
        // What is freed side by side becomes one free block; nothing in a chunk merges with what is outside.
        let gone = || self.gone.iter().filter(|b| b.heap == heap && !b.direct && b.tier_bits != ALIAS);
        let merges = |b: &Block, at: u64| !b.is_fine() || !at.is_multiple_of(GRANULE);
        gone().for_each(|b| b.each_range(&mut |_, to| _ = merges(b, to) && ends.insert(to)));
        let back = gone().filter(|b| merges(b, b.offset) && ends.contains(&b.offset)).count();
        needs.saturating_sub(back) as u32
    }
}

fn impossible<T>(why: &str) -> Result<T> {
    fail!(Code::NotPermitted, "the checkpoint cannot be restored: {why}")
}

/// The restore of one checkpoint.
#[derive(Clone, Copy)]
pub(super) struct Restore<'a> {
    ground: &'a Ground,
    want: &'a Layout,
}

impl<'a> Restore<'a> {
    pub(super) fn of(ground: &'a Ground, want: &'a Layout) -> Restore<'a> {
        Restore { ground, want }
    }

    /// See [`CheckpointCalls::restore`](super::CheckpointCalls::restore).
    pub(super) fn run(self, place: impl Fn(u64) -> u64, notify: impl Fn(&Freeing)) -> Result<Restored> {
        let ground = self.ground;
        let mut ready = Ready::default();
        for _ in 0..TRIES {
            if ground.maps.ids_are_few() {
                collect_ids(&ground.growing()); // it may need more than its own heaps have
            }
            let captured = |s: &&RecordedStream| s.serial != 0 && ground.order.records_later(s.id);
            if let Some(s) = self.want.streams.values().find(captured) {
                fail!(Code::Busy, "stream {:#x} is being captured", s.id);
            }
            ReleasedPools::of(ground).wait_for_replays(self.want.pool)?;
            self.wait_until_reusable()?;
            let Some(done) = self.attempt(&mut ready, &place, &notify)? else { continue };
            WaitingBlocks::of(ground).poll_all(); // gives back the segments of freed blocks
            return Ok(done);
        }
        fail!(Code::Busy, "the pool was used while it was being restored")
    }

    /// Waits on the host until no freed block of the pool waits for streams, but for those that another thread has in hand.
    fn wait_until_reusable(self) -> Result<()> {
        let (ground, pool) = (self.ground, self.want.pool);
        ExportCalls::of(ground).all(Some(pool)); // polls, and checks whether others still use live blocks
        let heaps = || ground.heaps_of(pool.0).into_iter().map(|x| ground.look(x));
        let count = || heaps().map(|h| h.waiting.still()).sum();
        let mut left: usize = count();
        loop {
            while WaitingBlocks::of(ground).wait_for_one(Some(pool.0)) {}
            // Another thread may have been the first to find that a wait is over.
            let before = std::mem::replace(&mut left, count());
            if left == before {
                break;
            }
        }
        if heaps().any(|h| h.waiting.exported().next().is_some()) {
            fail!(Code::Busy, "freed blocks of the pool are exported, and others still use them");
        }
        if left > 0 {
            fail!(Code::Busy, "freed blocks of the pool still wait for streams");
        }
        Ok(())
    }

    /// One attempt. `None`: something had to be waited for first; it was, and `ready` says so.
    fn attempt(
        self,
        ready: &mut Ready,
        place: impl Fn(u64) -> u64,
        notify: impl Fn(&Freeing),
    ) -> Result<Option<Restored>> {
        let (ground, pool) = (self.ground, self.want.pool);
        let blocks = Blocks::of(ground);
        let g = ground.growing().wait_for_transits_of(pool.0);
        ground.pools().live(pool)?.check_awake()?;
        self.check_streams(&g)?;
        let mut heaps = PoolHeaps::lock(ground, pool);
        let (live, claimed) = heaps.live_blocks(&g);
        // Another thread has freed a block since the check above, is freeing one, or is about to get one.
        if claimed || heaps.values().any(|h| !h.waiting.is_empty() || h.in_hand > 0) {
            drop(heaps);
            drop(g);
            give_way();
            return Ok(None);
        }
        let change = self.find_change(&g, live)?;
        let missing = self.find_missing(&heaps, &change, ready)?;
        if !missing.is_empty() {
            drop(heaps);
            drop(g);
            self.make_ready(missing, ready)?;
            return Ok(None);
        }
        let entries = self.check_change(&mut heaps, &change)?;
        let mut slots = self.take_slots(&change)?;
        if let Err(e) = self.claim_all(&heaps, &change.gone) {
            self.give_slots(slots);
            return Err(e);
        }
        // From here on nothing can fail.
        let found = |b: &Block, heaps: &PoolHeaps<'_>| {
            let f = ground.maps.find(b.offset)?;
            Some((heaps.get(&b.heap)?.heap, f.id))
        };
        let freeing = |b: &Block| {
            let (heap, id) = found(b, &heaps)?;
            let mut freed = blocks.freeing(heap, id);
            freed.block.base = place(b.offset);
            Some(freed)
        };
        let freed: Vec<Freeing> = change.gone.iter().filter_map(freeing).collect();
        freed.iter().for_each(notify);
        let live = change.new.iter().map(|b| (place(b.offset), b.requested)).collect();
        let mut rebuild = Rebuild::of(ground, &mut heaps);
        let dropped = rebuild.free_all(&change.gone);
        rebuild.move_all(&change.moves);
        rebuild.place_all(&change.new, &mut slots, &entries);
        self.give_slots(slots);
        for b in &change.retag {
            if let (Some(h), Some(f)) = (heaps.get(&b.heap), ground.maps.find(b.offset)) {
                blocks.retag(h, f.id, b.tag);
            }
        }
        let over: Vec<&'static Heap> = heaps.values().filter(|h| h.counters.over()).map(|h| h.heap).collect();
        drop(heaps);
        drop(g);
        over.into_iter().for_each(|x| Accounts::of(ground).settle(x));
        drop(dropped);
        Ok(Some(Restored { freed, live }))
    }

    /// Fails unless the heaps of the layout still serve the streams that they served then.
    fn check_streams(self, _: &Growing<'_>) -> Result<()> {
        for (&heap, &RecordedStream { serial, id }) in &self.want.streams {
            // A detached heap serves no stream, but may belong to a live one (`blocks/released.rs`).
            let lives = |s: &Arc<Stream>| s.serial == serial && s.end().is_none();
            let heap = self.ground.heaps().get(heap).filter(|x| x.pool() == self.want.pool.0);
            let same = heap.is_some_and(|x| {
                let h = self.ground.look(x);
                h.stream.as_ref().map_or(serial == 0 && x.stream() == UNORDERED, lives)
            });
            if !same {
                fail!(Code::UnknownStream, "stream {id:#x} of the checkpoint has ended");
            }
        }
        Ok(())
    }

    /// Finds what must change. Fails if that is impossible.
    fn find_change(self, g: &Growing<'_>, live: Vec<Block>) -> Result<Change<'a>> {
        let (ground, want) = (self.ground, self.want);
        let at: HashMap<u64, &Block> = want.blocks.iter().map(|b| (b.offset, b)).collect();
        let (kept, gone): (Vec<Block>, Vec<Block>) =
            live.into_iter().partition(|b| at.get(&b.offset).is_some_and(|w| w.is(b)));
        let keep: BTreeSet<u64> = kept.iter().map(|b| b.offset).collect();
        let was = |b: &Block| at.get(&b.offset).copied().filter(|w| w.tag != b.tag);
        let retag = kept.iter().filter_map(was).collect();
        let new: Vec<&Block> = want.blocks.iter().filter(|b| !keep.contains(&b.offset)).collect();
        if new.iter().any(|b| b.direct) {
            return impossible("a block that was a segment of its own has gone back to the device");
        }
        for (&granule, &serial) in &want.segments {
            if g.segments.of(granule).is_none_or(|s| s.serial != serial) {
                return impossible("a segment of it went back to the device");
            }
        }
        let mut moves = BTreeMap::new();
        for b in &want.blocks {
            for granule in b.granules() {
                let owner = ground.maps.granule(granule);
                let ours = (use_of::SMALL..=use_of::LARGE).contains(&owner.use_());
                if !ours || ground.heaps().get(owner.heap()).is_none_or(|x| x.pool() != want.pool.0) {
                    return impossible("memory of it has left the pool");
                }
                if owner.heap() != b.heap {
                    let off = granule << LARGE_UNITS_SHIFT;
                    let units = match g.segments.end_of(granule) {
                        Some(end) => LARGE_UNITS.min(end - off),
                        None => LARGE_UNITS,
                    };
                    let part = Extent::new(off, units);
                    moves.insert(granule, Move { part, from: owner.heap(), to: b.heap });
                }
            }
        }
        Ok(Change { keep, retag, gone, new, moves: moves.into_values().collect() })
    }

    /// Finds what must be waited for before the change.
    fn find_missing(self, heaps: &PoolHeaps<'_>, change: &Change<'_>, ready: &Ready) -> Result<Missing> {
        let mut missing = Missing::default();
        for b in &change.gone {
            let Some((h, f)) = heaps.get(&b.heap).zip(self.ground.maps.find(b.offset)) else { continue };
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
        let orders = change.moves.iter().map(|m| FromTo { from: m.from, to: m.to });
        missing.orders = orders.filter(|pair| !ready.ordered.contains(pair)).collect();
        Ok(missing)
    }

    /// Waits for what is missing, and notes that as ready.
    fn make_ready(self, missing: Missing, ready: &mut Ready) -> Result<()> {
        let ground = self.ground;
        let mut waits = Waits::default();
        if !waits.make_room(missing.streams.len() + missing.fences.len() + 1) {
            return Err(no_host_memory());
        }
        for stream in &missing.streams {
            if ground.order.is_captured_later(stream.id) {
                fail!(Code::Busy, "stream {:#x} is being captured", stream.id);
            }
            ground.order.add(stream, &mut waits);
        }
        missing.fences.into_iter().for_each(|f| waits.push(f));
        if missing.device {
            ground.order.add_all(&mut waits);
        }
        ground.order.sync_waits(&mut waits)?;
        ready.streams.extend(missing.streams.iter().map(|s| s.serial));
        ready.device |= missing.device;
        for pair in missing.orders {
            let (Some(from), Some(to)) = (ground.heaps().get(pair.from), ground.heaps().get(pair.to)) else {
                return Err(Error::new(Code::Internal, "a heap is missing"));
            };
            let giver = Giver { id: from.stream(), stream: ground.look(from).stream.clone() };
            if to.stream() == RETIRED {
                return impossible("memory of a stream that has ended has gone to another");
            }
            if !wait_for_giver(ground, giver, (to, false), Terms::Wait) {
                fail!(Code::Busy, "memory cannot move between streams of the pool now");
            }
            ready.ordered.insert(pair);
        }
        Ok(())
    }

    /// Acquires everything that the change needs besides table slots; returns the address ranges for scattered blocks, by
    /// offset.
    fn check_change(self, heaps: &mut PoolHeaps<'_>, change: &Change<'_>) -> Result<HashMap<u64, u32>> {
        for b in &change.gone {
            let Some((h, f)) = heaps.get(&b.heap).zip(self.ground.maps.find(b.offset)) else { continue };
            if h.exports.get(&f.id).is_some_and(|fences| fences.iter().any(|f| !f.is_passed())) {
                fail!(Code::Busy, "the restore would free a block that is exported and still used by others");
            }
        }
        let aliases = self.ground.aliases();
        let mut entries = HashMap::new();
        for b in change.new.iter().filter(|b| b.tier_bits == ALIAS) {
            match aliases.at(b.granule()) {
                Some((entry, pieces)) if show_the_same(pieces, &b.pieces) => entries.insert(b.offset, entry),
                _ => return impossible("addresses of a scattered block show something else now"),
            };
        }
        drop(aliases);
        for (&index, h) in heaps.iter_mut() {
            if !h.stock(change.ids_for(index)) {
                fail!(Code::OutOfMemory, "more blocks than the library can keep track of");
            }
        }
        Ok(entries)
    }

    /// Takes table slots for the chunks that must be made: those in which no block stays.
    fn take_slots(self, change: &Change<'_>) -> Result<Slots> {
        let fine = self.want.blocks.iter().filter(|b| b.is_fine());
        let stays: BTreeSet<u32> =
            fine.filter(|b| change.keep.contains(&b.offset)).map(Block::granule).collect();
        let mut slots = Slots::new();
        for b in change.new.iter().filter(|b| b.is_fine() && !stays.contains(&b.granule())) {
            if slots.contains_key(&b.granule()) {
                continue;
            }
            let Some(slot) = self.ground.maps.take_slot(b.tier()) else {
                self.give_slots(slots);
                fail!(Code::OutOfMemory, "more small blocks than the library can keep track of");
            };
            slots.insert(b.granule(), (b.tier(), slot));
        }
        Ok(slots)
    }

    fn give_slots(self, slots: Slots) {
        let give = |(tier, slot): (Tier, u32)| self.ground.maps.give_slot(tier, slot);
        slots.into_values().for_each(give);
    }

    /// Acquires the right to free the blocks, in competition with frees from other threads. All or none.
    fn claim_all(self, _: &PoolHeaps<'_>, gone: &[Block]) -> Result<()> {
        let maps = &self.ground.maps;
        for (i, b) in gone.iter().enumerate() {
            let d = maps.find(b.offset).map(|f| f.desc);
            // Blocks with flags are freed only under their heap's lock, which is held.
            if d.is_some_and(|d| d.state() & (USES | DIRECT | TUNED | TAGGED) != 0 || d.claim_remote()) {
                continue;
            }
            for b in &gone[..i] {
                if let Some(f) = maps.find(b.offset) {
                    f.desc.unclaim_remote();
                }
            }
            fail!(Code::Busy, "a block of the pool was freed while it was being restored");
        }
        Ok(())
    }
}
