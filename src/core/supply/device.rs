//! Taking memory from the device: granules if the device maps, otherwise segments.
//!
//! The growth lock is held before and after the call of the device, never during it. Meanwhile the bytes are claimed, so
//! that no other thread finds the same room below a limit, and count as memory in transit.

use super::super::blocks::gained;
use super::super::ground::{Ground, Growing};
use super::super::heap::{FreeBlock, Heap};
use super::super::state::growth::segments::Segment;
use super::super::state::growth::transits::Parts;
use super::super::types::PoolId;
use super::super::units::{Extent, GranuleRun, LARGE_UNITS, granule_bytes};
use super::limits::{self, TOO_MANY_BLOCKS, TOO_MANY_SEGMENTS};
use super::segments::Segments;
use crate::base::error::{Error, Result};

/// New granules that are to be taken from the device.
#[derive(Clone, Copy)]
pub(super) struct New {
    /// Their numbers.
    pub numbers: GranuleRun,
    /// The last number stays empty.
    pub apart: bool,
    /// The number of granules in each physical allocation. `None`: each granule has one of its own.
    pub tie: Option<u32>,
}

impl New {
    /// The granules that get memory.
    fn run(self) -> GranuleRun {
        GranuleRun::new(self.numbers.first, self.numbers.count - u32::from(self.apart))
    }
}

/// What takes memory from the device; see the head of this file.
#[derive(Clone, Copy)]
pub(super) struct DeviceMemory<'a> {
    ground: &'a Ground,
}

impl<'a> DeviceMemory<'a> {
    pub(super) fn of(ground: &'a Ground) -> DeviceMemory<'a> {
        DeviceMemory { ground }
    }

    /// Takes one segment of `bytes` from the device, of which `units` are served, and counts it. `give` hands it to its
    /// new owner.
    pub(super) fn take_segment<R>(
        self,
        heap: &Heap,
        bytes: u64,
        units: u32,
        give: impl FnOnce(Extent) -> R,
    ) -> Result<R> {
        let ground = self.ground;
        // Once the device has given the segment, what it is entered in could not say so.
        ground.check_room_to_take()?;
        let pool = heap.pool();
        let (part, transit) = {
            let mut g = ground.growing();
            g.allowed(pool).check(bytes)?;
            let count = Segment::numbers_of(Extent::new(0, units)).count;
            let Some(numbers) = g.room.take(count, None) else {
                return Err(limits::error(TOO_MANY_SEGMENTS));
            };
            g.account.claim(pool, bytes);
            (Extent::new(numbers.extent().off, units), g.begin_transit(Parts::Of(pool, pool)))
        };
        let done = ground.backing.segment(granule_bytes(part.touched().first), bytes);
        if part.touched().first == 0 {
            // So that threads learn its address.
            ground.heaps().all().for_each(Heap::close_fast_path);
        }
        let mut g = ground.growing();
        g.account.unclaim(pool, bytes);
        Segments::of(ground).note_answer(&g, bytes, done.as_ref().err().map(Error::code));
        let given = done.map(|()| {
            // There is nothing behind the end of a segment: clears what an earlier segment may have left in the table
            // there.
            for unit in part.end()..part.end().next_multiple_of(LARGE_UNITS) {
                ground.maps.set_large_at(unit, 0);
            }
            let max_split = ground.tuned.max_split();
            g.enter_segment(part, bytes, pool, max_split != 0 && bytes >= max_split);
            gained(bytes);
            give(part)
        });
        if given.is_err() {
            g.room.give(Segment::numbers_of(part));
        }
        transit.end(&mut g);
        given
    }

    /// Takes new granules for a heap: those that `choose` takes from the numbers without memory. Returns how many. The
    /// error of `choose` is the reason why there are none. `NotPermitted` if the pool sleeps, falls asleep or wakes.
    pub(super) fn take_granules(
        self,
        heap: &'static Heap,
        choose: impl FnOnce(&mut Growing<'_>) -> Result<New, &'static str>,
    ) -> Result<u32> {
        let ground = self.ground;
        let pool = heap.pool();
        let Some(id) = ground.look(heap).take_id() else {
            return Err(limits::error(TOO_MANY_BLOCKS));
        };
        let chosen = {
            let mut g = ground.growing();
            // In transit until the heap has it: a pool that falls asleep waits for that, and from then on gets nothing.
            let awake = ground.pools().check_awake(PoolId(pool));
            awake.and_then(|()| choose(&mut g).map_err(limits::error)).map(|new| {
                g.account.claim(pool, new.run().bytes());
                (new, g.begin_transit(Parts::Of(pool, pool)))
            })
        };
        let (new, transit) = chosen.inspect_err(|_| ground.look(heap).put_id(id))?;
        let run = new.run();
        let done = match new.tie {
            None => ground.backing.create(run.first, run.count),
            Some(each) => ground.backing.create_tied(run.first, run.count, each),
        };
        let mut g = ground.growing();
        g.account.unclaim(pool, run.bytes());
        match &done {
            Ok(()) => {
                if let Some(each) = new.tie {
                    for at in run.granules().step_by(each as usize) {
                        g.ties.enter(GranuleRun::new(at, each.min(run.end() - at)), new.apart);
                    }
                }
                g.account.hold(pool, run.bytes(), u64::from(run.count));
                gained(run.bytes());
                ground.lock(heap).give(FreeBlock { part: run.extent(), id });
            }
            Err(_) => {
                g.room.give(new.numbers);
                ground.look(heap).put_id(id);
            }
        }
        transit.end(&mut g);
        done.map(|()| run.count)
    }
}
