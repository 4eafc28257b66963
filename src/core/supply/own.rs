//! Segments as large as requests need them: how much may be stuck in partly used ones, and how idle ones make room for
//! a new one.

use super::super::ground::{Ground, Growing};
use super::super::heap::{Heap, Source};
use super::super::state::growth::Parts;
use super::super::units::{GRANULE, LARGE_SHIFT};
use super::Search;
use super::trim::Taken;
use crate::base::error::Code;
use crate::base::sort;
use crate::base::sync::Ordering::Relaxed;

/// [B] A request of less shares a segment with others.
const OWN_SEGMENT: u64 = 1 << 20;
/// [B] Such a segment, where no larger one may be had.
const SHARED_SEGMENT: u64 = 20 << 20;
/// The same on a small device, as a part of it.
const SHARED_PART: u64 = 32;
/// The size of a usual segment on a small device, as a part of it.
const USUAL_PART: u64 = 16;

/// How much must go back to the device before it can give a segment, in bytes.
pub(super) struct Lacks {
    /// Of the memory of the request's pool, for the limit of that pool.
    own: u64,
    /// Of anyone's.
    any: u64,
}

impl Ground {
    /// Notes what can be had from the device: a part of what of it was never needed may be stuck in partly used
    /// segments.
    pub(super) fn note_most(&self) {
        if self.config.source() == Source::OwnSegments {
            // Where all segments have one size, one that goes back makes no room for a better one.
            let tuned = self.tuned.get().segment != 0;
            self.stuck.set_most(if tuned { u64::MAX } else { self.most() >> LARGE_SHIFT });
        }
    }

    /// [B] What can be had from the device altogether, as far as is known.
    fn most(&self) -> u64 {
        let limit = match self.limit.load(Relaxed) {
            0 => u64::MAX,
            limit => limit,
        };
        self.config.max_alloc.min(limit).min(self.refused_at.load(Relaxed))
    }

    /// Notes what the device said when it was asked for a segment: `failed` is the error.
    pub(super) fn note_answer(&self, g: &Growing<'_>, bytes: u64, failed: Option<Code>) {
        let reserved = g.device.reserved.current;
        match failed {
            Some(Code::OutOfMemory) => self.refused_at.store(reserved, Relaxed),
            // It has more than it seemed to have.
            None if reserved + bytes > self.refused_at.load(Relaxed) => {
                self.refused_at.store(u64::MAX, Relaxed);
            }
            _ => return,
        }
        self.note_most();
    }

    /// The heaps among these whose memory can go back to the device, and what of it is free in whole segments [B].
    fn whole_segments(&self, heaps: Vec<&'static Heap>) -> u64 {
        let idle = |x: &'static Heap| {
            let mut h = self.look(x);
            self.drain(&mut h);
            h.flush_large();
            h.count_stuck();
            h.whole_segments()
        };
        heaps.into_iter().filter(|x| !self.is_pinned(x)).map(idle).sum::<u64>() << LARGE_SHIFT
    }
}

impl Search<'_> {
    /// [B] The size of a segment for a request that needs `least`: a usual one, of the device's size or as large as
    /// segments have `grown`, as long as what it has beyond the request may be stuck. Otherwise it has nothing beyond;
    /// small requests share one.
    pub(super) fn own_size(&self, least: u64, devices: u64, grown: u64) -> u64 {
        let most = self.ground.most();
        let part = |n: u64| (most / n / GRANULE * GRANULE).max(GRANULE);
        let usual = devices.min(part(USUAL_PART)).max(grown).max(least);
        if (usual - least) >> LARGE_SHIFT <= self.ground.stuck.room() {
            usual
        } else if least >= OWN_SEGMENT {
            least
        } else {
            part(SHARED_PART).min(SHARED_SEGMENT).max(least)
        }
    }

    /// Gives idle segments back to the device, so that one of the request's size can be had, if that is enough. Waits
    /// for the device.
    pub(super) fn swap_segments(&mut self, missing: u64) -> bool {
        let (ground, req) = (self.ground, self.req);
        if ground.config.source() != Source::OwnSegments || !req.is_large() {
            return false;
        }
        let Some(lacks) = self.lacks_for_segment() else { return false };
        let (mut taken, transit) = {
            let mut g = ground.growing();
            // Where only the pool's own limit refuses, nobody else has to wait.
            let heaps = match lacks.any {
                0 => ground.heaps_of(req.heap.pool()),
                _ => ground.heaps_in(None),
            };
            let taken = ground.take_all_free(&mut g, heaps);
            let taken = ground.keep_whole(&g, taken);
            if taken.is_empty() {
                return false;
            }
            (taken, g.begin_transit(Parts::Any))
        };
        let grown = self.swap_for(missing, &lacks, &mut taken);
        let mut g = ground.growing();
        ground.return_all(&g, taken);
        transit.end(&mut g);
        grown
    }

    /// What must go back so that the device can give a segment for the request; `None`: nothing that helps can.
    pub(super) fn lacks_for_segment(&self) -> Option<Lacks> {
        let (ground, pool) = (self.ground, self.req.heap.pool());
        let wanted = self.least_segment();
        let (own_room, room) = {
            let g = ground.growing();
            (ground.own_room(&g, pool), ground.most().saturating_sub(g.taken(pool).0))
        };
        let lacks = Lacks { own: wanted.saturating_sub(own_room), any: wanted.saturating_sub(room) };
        if lacks.own == 0 && lacks.any == 0 {
            return None;
        }
        // The memory of other pools is no help where the pool's own limit refuses.
        let own = || ground.whole_segments(ground.heaps_of(pool));
        let any = || ground.whole_segments(ground.heaps_in(None));
        let helps = (lacks.own == 0 || own() >= lacks.own) && (lacks.any == 0 || any() >= lacks.any);
        helps.then_some(lacks)
    }

    /// Gives as few bytes back as are needed; all, if the device cannot make use of what it has got. Then takes a
    /// segment.
    pub(super) fn swap_for(&mut self, missing: u64, lacks: &Lacks, taken: &mut Vec<Taken>) -> bool {
        let (ground, pool) = (self.ground, self.req.heap.pool());
        let mut any = false;
        let bytes = |taken: &[Taken]| taken.iter().map(|t| t.block.part.bytes()).sum::<u64>();
        let mut own: Vec<Taken> = taken.extract_if(.., |t| t.heap.pool() == pool).collect();
        let before = bytes(&own);
        let mut released = ground.give_segments_back(&mut own, lacks.own, &mut any);
        let gone = before - bytes(&own);
        taken.append(&mut own);
        sort::by_key(taken, |t| t.block.part.off);
        for wanted in [lacks.any.saturating_sub(gone), u64::MAX] {
            released = released.and_then(|()| ground.give_segments_back(taken, wanted, &mut any));
            if any && self.note_refusal(|s| s.grow(missing)) {
                return true;
            }
            if released.is_err() || lacks.any == 0 {
                break;
            }
        }
        false
    }
}
