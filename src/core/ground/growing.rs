//! The growth lock, as a guard: [`Growing`]. And memory in transit, which an operation owns while it holds no lock.

use super::super::desc::GranuleUse;
use super::super::state::growth::Growth;
use super::super::state::growth::segments::Segment;
use super::super::state::growth::transits::Parts;
use super::Ground;
use crate::base::sync::{MutexGuard, lock};
use crate::locks;
use std::cell::Cell;
use std::ops::{Deref, DerefMut};

/// The growth lock, held until this is dropped. Meanwhile nothing is waited for and no device is called. The methods of
/// this type, here and on the floors above, are what may be done under the lock.
pub(crate) struct Growing<'a> {
    pub ground: &'a Ground,
    state: MutexGuard<'a, Growth, locks::Growth>,
}

impl Deref for Growing<'_> {
    type Target = Growth;
    fn deref(&self) -> &Growth {
        &self.state
    }
}

impl DerefMut for Growing<'_> {
    fn deref_mut(&mut self) -> &mut Growth {
        &mut self.state
    }
}

impl<'a> Growing<'a> {
    /// Begins a transit: the operation owns memory until the result is ended or dropped.
    pub(crate) fn begin_transit(&mut self, parts: Parts) -> Transit<'a> {
        Transit { ground: self.ground, number: self.state.transits.begin(parts) }
    }

    /// Waits until another thread's operation has placed its memory; the lock is released meanwhile.
    pub(crate) fn wait_for_transit(self) -> Growing<'a> {
        let ground = self.ground;
        Growing { ground, state: ground.transit_ended.wait(self.state) }
    }

    /// Waits until no memory of the pool is in transit; the lock is released meanwhile.
    pub(crate) fn wait_for_transits_of(mut self, pool: u32) -> Growing<'a> {
        while self.transits.has(Some(pool)) {
            self = self.wait_for_transit();
        }
        self
    }

    /// Waits until no memory is in transit; the lock is released meanwhile.
    pub(crate) fn wait_for_all_transits(mut self) -> Growing<'a> {
        while self.transits.has(None) {
            self = self.wait_for_transit();
        }
        self
    }

    /// Forgets a segment that has gone back to the device and that no heap owns. Its bytes are released already.
    pub(crate) fn forget_segment(&mut self, segment: Segment) {
        for granule in segment.part.touched().granules() {
            self.ground.maps.set_granule(granule, GranuleUse::NONE);
        }
        self.segment_gone(segment);
    }
}

thread_local! {
    /// The number of this thread's operations that have had memory in transit, on any device. It has no destructor, so
    /// it works at thread exit too.
    static OWN_TRANSITS: Cell<u64> = const { Cell::new(0) };
}

/// How many transits had ended when a search for memory began: of all threads, and of the calling thread.
#[derive(Clone, Copy)]
pub(crate) struct Since {
    all: u64,
    own: u64,
}

/// How often a request that found nothing searches again because other threads had memory in transit meanwhile.
const MOST_ROUNDS: u32 = 1000;

/// Memory in transit, owned by one operation. To be ended under the growth lock, once all of it has been placed.
pub(crate) struct Transit<'a> {
    ground: &'a Ground,
    number: u64,
}

impl Transit<'_> {
    pub(crate) fn end(self, g: &mut Growing<'_>) {
        self.end_under(g);
        std::mem::forget(self);
    }

    fn end_under(&self, growth: &mut Growth) {
        growth.transits.end(self.number);
        OWN_TRANSITS.with(|n| n.set(n.get() + 1));
        self.ground.transit_ended.notify_all();
    }
}

impl Drop for Transit<'_> {
    fn drop(&mut self) {
        self.end_under(&mut lock(&self.ground.growth));
    }
}

impl Ground {
    /// The growth lock.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn growing(&self) -> Growing<'_> {
        Growing { ground: self, state: lock(&self.growth) }
    }

    /// How many transits have ended so far. To be called before a search for memory begins.
    pub(crate) fn transits_so_far(&self) -> Since {
        Since { all: self.growing().transits.ended(), own: OWN_TRANSITS.with(Cell::get) }
    }

    /// Whether a search that found nothing should be repeated, for the `round`th time: other threads have had memory in
    /// transit since it began. Waits for one that has some now.
    pub(crate) fn should_search_again(&self, since: Since, round: &mut u32) -> bool {
        *round += 1;
        if *round > MOST_ROUNDS {
            return false;
        }
        let g = self.growing();
        let own = OWN_TRANSITS.with(Cell::get) - since.own;
        if g.transits.ended() - since.all > own {
            return true;
        }
        let waits = g.transits.has(None) && self.backing.may_wait();
        if waits {
            drop(g.wait_for_transit());
        }
        waits
    }
}
