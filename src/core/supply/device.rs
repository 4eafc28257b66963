//! Memory from the device: how much the limits allow; granules if the device maps, otherwise segments.

use super::super::ground::{Ground, Growing};
use super::super::heap::{FreeBlock, Heap};
use super::super::shape::Tier;
use super::super::state::growth::{Growth, Parts, Segment};
use super::super::types::{COMMONS, PoolId};
use super::super::units::{
    Extent, GRANULE, GRANULE_SHIFT, GranuleRun, LARGE_SHIFT, LARGE_UNITS, granule_bytes,
};
use super::{Request, Search, gained, ours};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::Ordering::Relaxed;
use crate::fail;

/// If segments may grow, a later one is 1 / this of what is reserved. Of the parts from a half to a sixteenth, this one
/// needed about the least memory on the traces.
const GROWTH_PART: u64 = 8;

/// Numbers for new granules.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub all: GranuleRun,
    /// The last one stays empty.
    pub apart: bool,
}

impl Numbers {
    /// Those that get memory.
    fn run(self) -> GranuleRun {
        GranuleRun::new(self.all.first, self.all.count - u32::from(self.apart))
    }
}

impl Ground {
    /// How many more bytes the limits allow a pool to take, and the reason why not more.
    pub(in crate::core) fn allowed(&self, g: &Growing<'_>, pool: u32) -> (u64, &'static str) {
        let device = self.limit.load(Relaxed);
        let (taken, _) = g.taken(pool);
        let mut room = (self.config.max_alloc.saturating_sub(taken), ours::NO_MORE);
        if device > 0 {
            let r = device.saturating_sub(taken);
            if r < room.0 {
                room = (r, ours::DEVICE_LIMIT);
            }
        }
        let own = self.own_room(g, pool);
        if own < room.0 {
            room = (own, ours::POOL_LIMIT);
        }
        room
    }

    /// How many more bytes the device's size and its limit allow all pools to take together.
    pub(super) fn device_room(&self, g: &Growing<'_>) -> u64 {
        let limit = match self.limit.load(Relaxed) {
            0 => u64::MAX,
            limit => limit,
        };
        self.config.max_alloc.min(limit).saturating_sub(g.taken(COMMONS).0)
    }

    /// How many more bytes the pool's own limit allows it to have, from the device or from other pools.
    pub(in crate::core) fn own_room(&self, g: &Growing<'_>, pool: u32) -> u64 {
        match self.pool(PoolId(pool)).map_or(0, |p| p.limit.load(Relaxed)) {
            0 => u64::MAX,
            limit => limit.saturating_sub(g.taken(pool).1),
        }
    }

    /// Whether granules were newly mapped together so often for blocks of this size that growing is better.
    pub(super) fn is_worn(&self, units: u32) -> bool {
        self.growing().mapped_anew.get(&units).is_some_and(|&n| n >= super::WORN)
    }

    /// The granule after the last free one that a heap owns: the best place for it to grow.
    pub(super) fn end_of(&self, heap: &'static Heap) -> Option<u32> {
        self.look(heap).last_free_granule()
    }

    /// Takes one segment of `bytes` from the device, of which `units` are served, and counts it. `give` hands it to its
    /// new owner.
    pub(super) fn take_segment<R>(
        &self,
        heap: &Heap,
        bytes: u64,
        units: u32,
        give: impl FnOnce(Extent) -> R,
    ) -> Result<R> {
        let pool = heap.pool();
        let (part, transit) = {
            let mut g = self.growing();
            let (allowed, why) = self.allowed(&g, pool);
            if bytes > allowed {
                return Err(Error::new(Code::OutOfMemory, why));
            }
            let count = Growth::numbers_of(Extent::new(0, units)).count;
            let Some(numbers) = g.take_room(count, None) else {
                fail!(Code::OutOfMemory, "{}", ours::TOO_MANY_SEGMENTS);
            };
            g.claim(pool, bytes);
            (Extent::new(numbers.extent().off, units), g.begin_transit(Parts::Of(pool, pool)))
        };
        let done = self.backing.segment(granule_bytes(part.touched().first), bytes);
        if part.touched().first == 0 {
            // So that threads learn its address.
            self.all_heaps().for_each(Heap::close_fast_path);
        }
        let mut g = self.growing();
        g.unclaim(pool, bytes);
        self.note_answer(&g, bytes, done.as_ref().err().map(Error::code));
        let given = done.map(|()| {
            // There is nothing behind the end of a segment: clears what an earlier segment may have left in the table
            // there.
            for unit in part.end()..part.end().next_multiple_of(LARGE_UNITS) {
                self.maps.set_large_at(unit, 0);
            }
            let max_split = self.tuned.max_split();
            g.enter_segment(part, bytes, pool, max_split != 0 && bytes >= max_split);
            gained(bytes);
            give(part)
        });
        if given.is_err() {
            g.give_room(Growth::numbers_of(part));
        }
        transit.end(&mut g);
        given
    }

    /// Gives a segment back to the device. Threads that know the address of the first one have forgotten it when this returns:
    /// from then on its granule numbers may be those of segments that lie elsewhere.
    pub(in crate::core) fn release_segment(&self, segment: &Segment) -> Result<()> {
        let done = self.backing.segment_release(segment.offset(), segment.bytes);
        if segment.part.touched().first == 0 {
            self.all_heaps().for_each(Heap::close_fast_path);
        }
        done
    }

    /// Takes new granules for a heap, as many consecutive ones as there is room for, at most `most`; returns how many.
    fn take_granules(&self, req: &Request, most: u32) -> Result<u32> {
        let after = if req.is_large() { self.end_of(req.heap) } else { None };
        self.bring(req.heap, |g| {
            let count = most.min(g.longest_room());
            let (allowed, why) = self.allowed(g, req.heap.pool());
            let run = match req.size.tier {
                _ if count == 0 => Err(ours::NO_MORE),
                // Another thread may have split the run that was there when the request began.
                Tier::Large if count < most && req.in_one_piece(self) => Err(ours::NO_MORE),
                _ if granule_bytes(count) > allowed => Err(why),
                Tier::Large => g.take_room(count, after).ok_or(ours::NO_MORE),
                _ => g.take_top().ok_or(ours::NO_MORE),
            };
            run.map(|all| (Numbers { all, apart: false }, 0))
        })
    }

    /// Takes new granules for a heap: those that `choose` takes from the numbers without memory, with the number of
    /// granules of each tie, 0: each for itself. Returns how many.
    pub(super) fn bring(
        &self,
        heap: &'static Heap,
        choose: impl FnOnce(&mut Growing<'_>) -> Result<(Numbers, u32), &'static str>,
    ) -> Result<u32> {
        let pool = heap.pool();
        let Some(id) = self.look(heap).take_id() else {
            fail!(Code::OutOfMemory, "{}", ours::TOO_MANY_BLOCKS);
        };
        let taken = {
            let mut g = self.growing();
            choose(&mut g).map(|(numbers, each)| {
                g.claim(pool, numbers.run().bytes());
                (numbers, each, g.begin_transit(Parts::Of(pool, pool)))
            })
        };
        let (numbers, each, transit) = match taken {
            Ok(taken) => taken,
            Err(why) => {
                self.look(heap).put_id(id);
                return Err(Error::new(Code::OutOfMemory, why));
            }
        };
        let run = numbers.run();
        let done = match each {
            0 => self.backing.create(run.first, run.count),
            each => self.backing.create_tied(run.first, run.count, each),
        };
        let mut g = self.growing();
        g.unclaim(pool, run.bytes());
        match &done {
            Ok(()) => {
                if each > 0 {
                    for at in run.granules().step_by(each as usize) {
                        g.enter_tie(GranuleRun::new(at, each.min(run.end() - at)), numbers.apart);
                    }
                }
                g.hold(pool, run.bytes(), u64::from(run.count));
                gained(run.bytes());
                self.lock(heap).give(FreeBlock { part: run.extent(), id });
            }
            Err(_) => {
                g.give_room(numbers.all);
                self.look(heap).put_id(id);
            }
        }
        transit.end(&mut g);
        done.map(|()| run.count)
    }
}

impl Search<'_> {
    /// Takes memory from the device: that many granules, or a segment.
    pub(super) fn grow(&mut self, missing: u64) -> Result<()> {
        let (ground, req) = (self.ground, self.req);
        if !ground.config.mapping {
            return self.grow_segment();
        }
        if self.contiguous {
            return self.grow_tie(missing);
        }
        let (allowed, why) = ground.allowed(&ground.growing(), req.heap.pool());
        if missing > allowed >> GRANULE_SHIFT {
            return Err(Error::new(Code::OutOfMemory, why));
        }
        if req.in_one_piece(ground) && missing > u64::from(ground.growing().longest_room()) {
            return Err(Error::new(Code::OutOfMemory, ours::NO_MORE));
        }
        // What lies in ties cannot be combined with what lies apart: they serve who has nothing yet, and may be in pieces.
        let tied = if missing == req.granules() && !req.in_one_piece(ground) {
            self.take_ties(missing as u32)
        } else {
            0
        };
        let mut left = missing as u32 - tied;
        while left > 0 {
            left -= ground.take_granules(req, left)?;
        }
        Ok(())
    }

    /// [B] The smallest segment that serves the request.
    pub(super) fn least_segment(&self) -> u64 {
        // A fine tier needs a whole granule for its chunk, a large request only its own units.
        let quantum = (1u64 << LARGE_SHIFT).max(self.ground.maps.shape.min_chunk());
        if self.req.is_large() { self.req.charged.next_multiple_of(quantum) } else { GRANULE }
    }

    /// Takes a new segment: of the init size at first, of the realloc size later, and never too small for the request.
    fn grow_segment(&mut self) -> Result<()> {
        let (ground, req) = (self.ground, self.req);
        let config = &ground.config;
        let chunk = ground.maps.shape.min_chunk();
        let least = self.least_segment();
        let (usual, allowed, why) = {
            let g = ground.growing();
            let tuned = ground.tuned.get().segment;
            // A block cannot lie across two segments: few large ones waste less than many small ones.
            let grown = g.device.reserved.current / GROWTH_PART / GRANULE * GRANULE;
            let devices = if g.has_segments() { config.realloc } else { config.init_alloc };
            let usual = match tuned {
                0 if config.growing => self.own_size(least, devices, grown),
                0 => devices,
                tuned => tuned,
            };
            let (allowed, why) = ground.allowed(&g, req.heap.pool());
            (usual, allowed, why)
        };
        let most = usual.max(least).min(allowed) / chunk * chunk;
        let mut refused = Error::new(Code::OutOfMemory, why);
        for bytes in [most.max(least), least] {
            if bytes > allowed {
                continue;
            }
            let Some(id) = ground.look(req.heap).take_id() else {
                fail!(Code::OutOfMemory, "{}", ours::TOO_MANY_BLOCKS);
            };
            let give = |part: Extent| ground.lock(req.heap).give(FreeBlock { part, id });
            match ground.take_segment(req.heap, bytes, (bytes >> LARGE_SHIFT) as u32, give) {
                Ok(()) => return Ok(()),
                Err(e) => {
                    ground.look(req.heap).put_id(id);
                    refused = e;
                }
            }
        }
        Err(refused)
    }
}
