//! A pool's layout, kept and brought back: which blocks are live, where, of which size and stream.
//!
//! A graph that is replayed leaves its results where they were when it was captured. A program that goes back
//! to an earlier graph needs the allocator to think what it thought then. `restore` frees what has come since
//! and makes live again what has gone, at the same addresses.
//!
//! It is a transaction: first everything is looked at, and whatever can be missing is taken (waits, ids, table
//! slots, the right to free); then the layout is changed, which cannot fail any more. The growth lock is held
//! from the look to the end, so that no granule changes hands, and all heaps of the pool are locked while the
//! layout changes.

use super::aliases::granules_of;
use super::desc::{ALIAS, DIRECT, Id, ODD, USES, kind, use_of};
use super::heap::{Heap, Inner};
use super::pond::{Pond, lock};
use super::pools::{RETIRED, UNORDERED};
use super::shape::{GRANULE_SHIFT, LARGE_SHIFT, LARGE_UNITS, LARGE_UNITS_SHIFT, Tier};
use super::supply::{Growth, Terms};
use super::types::PoolId;
use crate::base::biased::Guard;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::{Ordering, Ordering::Relaxed};
use crate::fail;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Names a checkpoint of one device; never used again.
pub type CheckpointId = u64;

/// Blocks that a restore has freed, and those that it has made live: (place, bytes as asked for).
#[derive(Debug, Default)]
pub struct Restored {
    /// They were live and are not any more.
    pub freed: Vec<(u64, u64)>,
    /// They were not live (or were of another size) and are now.
    pub live: Vec<(u64, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    offset: u64,
    heap: u32,
    tier_bits: u32,
    units: u32,
    requested: u64,
    charge: u64, // [B] of its pool's account
    direct: bool,
    pieces: Box<[(u32, u32)]>, // of a scattered block: (offset, units)
}

struct Layout {
    pool: PoolId,
    streams: BTreeMap<u32, u64>, // of the heaps that blocks are in
    blocks: Vec<Block>,
    segments: BTreeMap<u32, u64>, // granule -> number of the segment that it lies in, where there are segments
}

/// All checkpoints of a device.
#[derive(Default)]
pub(crate) struct Checkpoints {
    all: BTreeMap<CheckpointId, Arc<Layout>>,
    last: CheckpointId,
}

/// A heap, its lock, and its number.
pub(crate) type Locked<'a> = BTreeMap<u32, (&'static Heap, Guard<'a, Inner>)>;

impl Block {
    fn tier(&self) -> Tier {
        match self.tier_bits {
            0 => Tier::Small,
            1 => Tier::Medium,
            _ => Tier::Large,
        }
    }
    /// Where it lies in the granules: itself, or its pieces, in units of the large tier. Of a fine block, its
    /// chunk.
    fn places(&self) -> Vec<(u32, u32)> {
        match self.tier_bits {
            ALIAS => self.pieces.to_vec(),
            0 | 1 => vec![((self.offset >> GRANULE_SHIFT << LARGE_UNITS_SHIFT) as u32, LARGE_UNITS)],
            _ => vec![((self.offset >> LARGE_SHIFT) as u32, self.units)],
        }
    }
    fn granules(&self) -> impl Iterator<Item = u32> {
        let runs = self.places().into_iter().map(granules_of);
        runs.flat_map(|(first, count)| first..first + count)
    }
}

fn impossible<T>(why: &str) -> Result<T> {
    fail!(Code::NotPermitted, "the checkpoint cannot be restored: {why}")
}

impl Pond {
    pub(crate) fn heaps_of(&self, pool: PoolId) -> impl Iterator<Item = &'static Heap> {
        (0..self.heap_count.load(Ordering::Acquire) as usize)
            .filter_map(|i| self.heaps.get(i))
            .filter(move |x| x.pool.load(Relaxed) == pool.0)
    }

    /// All heaps of a pool, locked in order, with everything merged that was freed.
    pub(crate) fn lock_pool(&self, pool: PoolId) -> Locked<'static> {
        self.heaps_of(pool)
            .map(|x| {
                let mut h = x.inner.lock();
                self.drain(x, &mut h);
                h.give_up_whole(&self.maps, x.index, |a| self.set_idle(a));
                self.flush(x, &mut h);
                (x.index, (x, h))
            })
            .collect()
    }

    /// The live blocks of a pool whose heaps are locked.
    fn live_of(&self, g: &Growth, heaps: &Locked<'_>) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut note = |id: Id, heap: u32, pieces: &[(u32, u32)]| {
            let d = self.maps.desc(id);
            if d.kind() == kind::LIVE {
                blocks.push(Block {
                    offset: self.offset(id),
                    heap,
                    tier_bits: d.tier_bits(),
                    units: d.units(),
                    requested: d.requested(),
                    charge: self.charge(id),
                    direct: d.state() & DIRECT != 0,
                    pieces: pieces.into(),
                });
            }
        };
        for (first, count) in g.occupied(self.real) {
            let mut unit = 0;
            for granule in first..first + count {
                let u = self.maps.granule(granule);
                if !heaps.contains_key(&u.heap()) {
                    continue;
                }
                match u.use_() {
                    use_of::LARGE => {
                        unit = unit.max(granule << LARGE_UNITS_SHIFT);
                        while unit < (granule + 1) << LARGE_UNITS_SHIFT {
                            let id = self.maps.large_at(unit);
                            let d = self.maps.desc(id);
                            if id == 0 || d.off() != unit || d.tier_bits() != Tier::Large as u32 {
                                break; // a segment ends inside this granule
                            }
                            note(id, u.heap(), &[]);
                            unit += d.units();
                        }
                    }
                    use_of::SMALL | use_of::MEDIUM => {
                        let mask = (1u32 << (GRANULE_SHIFT - u.shift())) - 1;
                        let mut at = 0;
                        while at <= mask {
                            let id = self.maps.at(u.low() + at);
                            note(id, u.heap(), &[]);
                            at += self.maps.desc(id).units().max(1);
                        }
                    }
                    _ => {}
                }
            }
        }
        self.aliases.lock().busy(|id, granule, pieces| {
            let heap = self.maps.granule(granule).heap();
            if heaps.contains_key(&heap) {
                note(id, heap, pieces);
            }
        });
        blocks
    }

    /// Notes which blocks of the pool are live now.
    pub fn checkpoint(&self, pool: PoolId) -> Result<CheckpointId> {
        let g = self.hold_growth()?;
        if self.pool(pool).is_none() {
            fail!(Code::InvalidArgument, "no such pool, or it was destroyed");
        }
        let blocks = self.live_of(&g, &self.lock_pool(pool));
        let stream = |b: &Block| Some((b.heap, self.heaps.get(b.heap as usize)?.stream.load(Relaxed)));
        let segment = |granule: u32| Some((granule, g.segment_of(granule)?.0));
        let layout = Layout {
            pool,
            streams: blocks.iter().filter_map(stream).collect(),
            segments: blocks.iter().flat_map(Block::granules).filter_map(segment).collect(),
            blocks,
        };
        drop(g);
        let mut c = lock(&self.checkpoints);
        c.last += 1;
        let id = c.last;
        c.all.insert(id, Arc::new(layout));
        Ok(id)
    }

    /// The heap of the block that was live at `offset` at the checkpoint.
    #[cfg(test)]
    pub(crate) fn heap_then(&self, checkpoint: CheckpointId, offset: u64) -> Option<u32> {
        let all = lock(&self.checkpoints);
        all.all.get(&checkpoint)?.blocks.iter().find(|b| b.offset == offset).map(|b| b.heap)
    }

    /// The checkpoint is not needed any more.
    pub fn checkpoint_destroy(&self, checkpoint: CheckpointId) -> Result<()> {
        match lock(&self.checkpoints).all.remove(&checkpoint) {
            Some(_) => Ok(()),
            None => fail!(Code::InvalidArgument, "no such checkpoint, or it was destroyed"),
        }
    }

    /// Makes exactly those blocks of the pool live that were at the checkpoint. The caller promises that
    /// nobody uses the pool meanwhile. Waits on the host for other streams' uses of what it frees. `place` says
    /// what the answer has for an offset.
    pub fn restore(
        &self,
        pool: PoolId,
        checkpoint: CheckpointId,
        place: impl Fn(u64) -> u64,
    ) -> Result<Restored> {
        let Some(want) = lock(&self.checkpoints).all.get(&checkpoint).cloned() else {
            fail!(Code::InvalidArgument, "no such checkpoint, or it was destroyed");
        };
        if want.pool != pool || self.pool(pool).is_none() {
            fail!(Code::InvalidArgument, "the checkpoint is one of another pool");
        }
        let at: HashMap<u64, &Block> = want.blocks.iter().map(|b| (b.offset, b)).collect();
        let waited = self.wait_for_uses(pool, &at)?;
        let g = self.hold_growth()?;
        if self.pool(pool).is_none_or(|p| p.asleep.load(Relaxed)) {
            fail!(Code::NotPermitted, "the pool sleeps");
        }
        let moves = self.find_moves(&g, pool, &want)?;
        let mut heaps = self.lock_pool(pool);
        let have = self.live_of(&g, &heaps);
        let keep: BTreeSet<u64> =
            have.iter().filter(|b| at.get(&b.offset) == Some(b)).map(|b| b.offset).collect();
        let gone: Vec<&Block> = have.iter().filter(|b| !keep.contains(&b.offset)).collect();
        let new: Vec<&Block> = want.blocks.iter().filter(|b| !keep.contains(&b.offset)).collect();
        let entries = self.check_restore(&mut heaps, &gone, &new, &moves, &waited)?;
        let mut slots = self.take_slots(&new, &keep, &want)?;
        if let Err(e) = self.claim_all(&gone) {
            self.give_slots(slots);
            return Err(e);
        }
        // From here on nothing fails.
        let marks = self.free_all(&mut heaps, &gone);
        for (granule, from, to, short) in moves.into_iter().rev() {
            if let Some((_, h)) = heaps.get_mut(&from) {
                let mut free = Vec::new();
                h.free_list(&self.maps, &mut free);
                h.take_granule(&self.maps, &free, granule, short);
            }
            if let Some((_, h)) = heaps.get_mut(&to) {
                h.give(&self.maps, to, granule, 1, short);
            }
        }
        self.place_all(&mut heaps, &new, &mut slots, entries);
        self.give_slots(slots);
        let full: Vec<&Heap> = heaps.values().filter(|(_, h)| h.over()).map(|(x, _)| *x).collect();
        drop(heaps);
        full.into_iter().for_each(|x| self.settle(x));
        drop(g);
        marks.into_iter().for_each(|m| self.backing.forget(m));
        let told = |blocks: &[&Block]| blocks.iter().map(|b| (place(b.offset), b.requested)).collect();
        let done = Restored { freed: told(&gone), live: told(&new) };
        for b in gone.iter().filter(|b| b.direct) {
            if let (Some(f), Some(heap)) = (self.maps.find(b.offset), self.heaps.get(b.heap as usize)) {
                self.free_direct_after(heap, f.id, b.charge); // for the caller it is freed
            }
        }
        self.free_direct_now();
        Ok(done)
    }

    /// Waits on the host for streams that use blocks which will be freed, and for blocks that were freed but
    /// wait for streams. The streams that were waited for.
    fn wait_for_uses(&self, pool: PoolId, at: &HashMap<u64, &Block>) -> Result<BTreeSet<u64>> {
        let mut streams = BTreeSet::new();
        for heap in self.heaps_of(pool) {
            self.poll(heap, true);
            let h = heap.inner.lock();
            let freed = h.uses.iter().filter(|(id, _)| !at.contains_key(&self.offset(**id)));
            streams.extend(freed.flat_map(|(_, uses)| uses).map(|u| u.stream));
            if heap.stream.load(Relaxed) == UNORDERED {
                drop(h);
                self.backing.streams(&mut |s| _ = streams.insert(s));
            }
        }
        for &s in &streams {
            // An end of use comes before the stream's end: this covers both.
            let Some(m) = self.point(s)? else { fail!(Code::Busy, "stream {s:#x} is being captured") };
            let synced = self.backing.sync(m);
            self.backing.forget(m);
            synced?;
        }
        Ok(streams)
    }

    /// Granules of the layout that another heap of the pool has now, in order: (granule, its heap, the heap of
    /// the layout, units that it lacks). Their heaps' streams have been ordered.
    fn find_moves(&self, g: &Growth, pool: PoolId, want: &Layout) -> Result<Vec<(u32, u32, u32, u32)>> {
        for (&heap, &stream) in &want.streams {
            let now = self.heaps.get(heap as usize).filter(|x| x.pool.load(Relaxed) == pool.0);
            if now.is_none_or(|x| x.stream.load(Relaxed) != stream) {
                fail!(Code::UnknownStream, "stream {stream:#x} of the checkpoint has ended");
            }
            if self.recording(stream) {
                fail!(Code::Busy, "stream {stream:#x} is being captured");
            }
        }
        for (&granule, &serial) in &want.segments {
            if g.segment_of(granule).is_none_or(|s| s.0 != serial) {
                return impossible("a segment of it went back to the device");
            }
        }
        let mut moves = BTreeMap::new();
        for b in &want.blocks {
            for granule in b.granules() {
                let owner = self.maps.granule(granule);
                let heap = self.heaps.get(owner.heap() as usize);
                let ours = |x: &&'static Heap| {
                    x.pool.load(Relaxed) == pool.0 && (use_of::SMALL..=use_of::LARGE).contains(&owner.use_())
                };
                let Some(from) = heap.filter(ours) else {
                    return impossible("memory of it has left the pool");
                };
                if from.index != b.heap {
                    let short = g.segment_of(granule).map_or(0, |s| s.1);
                    moves.insert(granule, (from.index, b.heap, short));
                }
            }
        }
        let pairs: BTreeSet<(u32, u32)> = moves.values().map(|m| (m.0, m.1)).collect();
        for (from, to) in pairs {
            let (Some(from), Some(to)) = (self.heaps.get(from as usize), self.heaps.get(to as usize)) else {
                return Err(Error::new(Code::Internal, "a heap is missing"));
            };
            if to.stream.load(Relaxed) == RETIRED {
                return impossible("memory of a stream that has ended has gone to another");
            }
            if !self.agree(from, to, Terms::Wait) {
                fail!(Code::Busy, "memory cannot move between streams of the pool now");
            }
        }
        Ok(moves.into_iter().map(|(granule, (from, to, short))| (granule, from, to, short)).collect())
    }

    /// Everything that the change needs beside table slots; the ranges of addresses for scattered blocks.
    fn check_restore(
        &self,
        heaps: &mut Locked<'_>,
        gone: &[&Block],
        new: &[&Block],
        moves: &[(u32, u32, u32, u32)],
        waited: &BTreeSet<u64>,
    ) -> Result<HashMap<u64, u32>> {
        if heaps.values().any(|(_, h)| !h.pending.is_empty()) {
            fail!(Code::Busy, "blocks of the pool wait for a stream that is captured");
        }
        if heaps.values().any(|(_, h)| !h.held.is_empty()) {
            fail!(Code::Busy, "freed blocks of the pool are exported, and others still use them");
        }
        for b in gone {
            let id = self.maps.find(b.offset).map_or(0, |f| f.id);
            if let Some(marks) = heaps.get_mut(&b.heap).and_then(|(_, h)| h.lent.get_mut(&id)) {
                self.drop_passed(marks);
                if !marks.is_empty() {
                    fail!(
                        Code::Busy,
                        "the restore would free a block that is exported and still used by others"
                    );
                }
            }
            let uses = heaps.get(&b.heap).and_then(|(_, h)| h.uses.get(&id));
            if uses.is_some_and(|u| u.iter().any(|u| !waited.contains(&u.stream))) {
                fail!(Code::Busy, "a block of the pool was used while it was being restored");
            }
        }
        if new.iter().any(|b| b.direct) {
            return impossible("a block that was a segment of its own has gone back to the device");
        }
        let aliases = self.aliases.lock();
        let mut entries = HashMap::new();
        for b in new.iter().filter(|b| b.tier_bits == ALIAS) {
            match aliases.at((b.offset >> GRANULE_SHIFT) as u32) {
                Some((entry, pieces)) if *pieces == *b.pieces => entries.insert(b.offset, entry),
                _ => return impossible("addresses of a scattered block show something else now"),
            };
        }
        drop(aliases);
        for (&index, (_, h)) in heaps.iter_mut() {
            let placed = new.iter().filter(|b| b.heap == index);
            let carved: usize = placed.map(|b| 4 + 2 * b.pieces.len()).sum();
            let moved = moves.iter().filter(|m| m.1 == index || m.2 == index).count();
            if !h.stock(&self.maps, (carved + 3 * moved + 2) as u32) {
                fail!(Code::OutOfMemory, "more blocks than the library can keep track of");
            }
        }
        Ok(entries)
    }

    /// Table slots for the chunks that must be made anew, by granule: those in which no block stays.
    fn take_slots(
        &self,
        new: &[&Block],
        keep: &BTreeSet<u64>,
        want: &Layout,
    ) -> Result<BTreeMap<u32, (Tier, u32)>> {
        let fine = |b: &&Block| b.tier_bits < 2;
        let granule = |b: &Block| (b.offset >> GRANULE_SHIFT) as u32;
        let stays: BTreeSet<u32> =
            want.blocks.iter().filter(fine).filter(|b| keep.contains(&b.offset)).map(granule).collect();
        let mut slots = BTreeMap::new();
        for b in new.iter().copied().filter(fine).filter(|b| !stays.contains(&granule(b))) {
            if slots.contains_key(&granule(b)) {
                continue;
            }
            let Some(slot) = self.maps.take_slot(b.tier()) else {
                self.give_slots(slots);
                fail!(Code::OutOfMemory, "more small blocks than the library can keep track of");
            };
            slots.insert(granule(b), (b.tier(), slot));
        }
        Ok(slots)
    }

    fn give_slots(&self, slots: BTreeMap<u32, (Tier, u32)>) {
        slots.into_values().for_each(|(tier, slot)| self.maps.give_slot(tier, slot));
    }

    /// Takes the right to free the blocks, against frees from other threads. All or none.
    fn claim_all(&self, gone: &[&Block]) -> Result<()> {
        for (i, b) in gone.iter().enumerate() {
            let d = self.maps.find(b.offset).map(|f| f.desc);
            // What has flags is freed under its heap's lock only, which is held.
            if d.is_some_and(|d| d.state() & (USES | DIRECT | ODD) != 0 || d.claim_remote()) {
                continue;
            }
            for b in &gone[..i] {
                if let Some(f) = self.maps.find(b.offset)
                    && f.desc.kind() == kind::REMOTE
                {
                    f.desc.set_kind(kind::LIVE);
                }
            }
            fail!(Code::Busy, "a block of the pool was freed while it was being restored");
        }
        Ok(())
    }

    /// Frees claimed blocks; but segments of their own stay, pending. The marks that nobody needs now.
    fn free_all(&self, heaps: &mut Locked<'_>, gone: &[&Block]) -> Vec<super::heap::Mark> {
        let mut marks = Vec::new();
        for b in gone {
            let (Some(f), Some((_, h))) = (self.maps.find(b.offset), heaps.get_mut(&b.heap)) else {
                continue;
            };
            let uses = h.uses.remove(&f.id).unwrap_or_default();
            h.lent.remove(&f.id); // nobody uses it any more
            marks.extend(uses.into_iter().filter_map(|u| u.ended));
            h.count_out(b.charge, b.requested);
            if b.direct {
                f.desc.set_kind(kind::PENDING);
                continue;
            }
            if let Some(entry) = h.merge(&self.maps, b.heap, f.id) {
                self.set_idle(entry);
            }
        }
        for (x, h) in heaps.values_mut() {
            self.flush(x, h); // chunks that have become empty are granules again
        }
        marks
    }

    /// Makes the blocks live, each at its place.
    fn place_all(
        &self,
        heaps: &mut Locked<'_>,
        new: &[&Block],
        slots: &mut BTreeMap<u32, (Tier, u32)>,
        entries: HashMap<u64, u32>,
    ) {
        for (&index, (heap, h)) in heaps.iter_mut() {
            let mine = || new.iter().filter(|b| b.heap == index);
            // What lies in the granules themselves, from the highest down: (offset, units, block or none).
            let mut coarse: Vec<(u32, u32, Option<u64>)> = Vec::new();
            let mut fine: BTreeMap<u32, Vec<&Block>> = BTreeMap::new();
            for b in mine() {
                if b.tier_bits < 2 {
                    let granule = (b.offset >> GRANULE_SHIFT) as u32;
                    let chunk = fine.entry(granule).or_default();
                    if chunk.is_empty() && slots.contains_key(&granule) {
                        coarse.push((granule << LARGE_UNITS_SHIFT, LARGE_UNITS, None));
                    }
                    chunk.push(b);
                } else {
                    coarse.extend(b.places().iter().map(|p| (p.0, p.1, Some(b.offset))));
                }
            }
            coarse.sort_unstable_by_key(|c| std::cmp::Reverse(c.0));
            let mut free = Vec::new();
            h.free_list(&self.maps, &mut free);
            let mut taken: HashMap<u32, Id> = HashMap::new(); // by offset
            for &(off, units, block) in &coarse {
                let Some(piece) = h.carve_at(&self.maps, &free, off, units) else { continue };
                match (block, slots.remove(&(off >> LARGE_UNITS_SHIFT)).filter(|_| block.is_none())) {
                    (None, Some((tier, slot))) => h.chunk_from(&self.maps, index, piece, tier, slot),
                    _ => _ = taken.insert(off, piece),
                }
            }
            for b in mine().filter(|b| b.tier_bits >= 2) {
                let ids = b.places().iter().filter_map(|p| taken.get(&p.0).copied()).collect::<Vec<Id>>();
                let id = match entries.get(&b.offset) {
                    None => ids.first().copied(),
                    Some(&entry) => self.show_again(heap, b, entry, &ids),
                };
                if let Some(id) = id {
                    self.revive_block(h, id, b);
                }
            }
            for (granule, mut blocks) in fine {
                blocks.sort_unstable_by_key(|b| b.offset);
                let Some(tier) = blocks.first().map(|b| b.tier()) else { continue };
                let shift = self.maps.shape.unit_shift(tier);
                let places: Vec<(u32, u32)> =
                    blocks.iter().map(|b| ((b.offset >> shift) as u32, b.units)).collect();
                let mut ids = Vec::new();
                h.fill_chunk(&self.maps, tier, granule, &places, |n, id| ids.push((n, id)));
                for (n, id) in ids {
                    self.revive_block(h, id, blocks[n]);
                }
            }
        }
    }

    /// A scattered block over pieces that were cut out, at addresses that show them already.
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

    fn revive_block(&self, h: &mut Inner, id: Id, b: &Block) {
        h.make_live_as(&self.maps, id, b.tier_bits, b.requested);
        self.flag_odd(id, b.charge);
        h.count_in(b.charge, b.requested);
    }
}
