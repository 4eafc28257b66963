//! Segments that are as large as requests need: how large a new one is, and how much memory may be stuck in partly used
//! ones. `heap/idle.rs` explains what *stuck* means.

use super::super::blocks::Blocks;
use super::super::ground::{Ground, Growing};
use super::super::heap::{Heap, Source};
use super::super::units::{GRANULE, LARGE_SHIFT};
use crate::base::error::Code;

/// [B] A smaller request shares a segment with others.
const OWN_SEGMENT: u64 = 1 << 20;
/// [B] of a shared segment, where no larger one may be had.
const SHARED_SEGMENT: u64 = 20 << 20;
/// The maximum size of a shared segment, as a part of the device: 1 / this.
const SHARED_PART: u64 = 32;
/// The maximum size of a usual segment, as a part of the device: 1 / this.
const USUAL_PART: u64 = 16;

/// The segments of a pond, on a device whose segments are as large as requests need.
#[derive(Clone, Copy)]
pub(super) struct Segments<'a> {
    ground: &'a Ground,
}

impl<'a> Segments<'a> {
    pub(super) fn of(ground: &'a Ground) -> Segments<'a> {
        Segments { ground }
    }

    /// Updates how much the device can give: a part of the memory that the program has never needed may be stuck in partly
    /// used segments.
    pub(super) fn note_most(self) {
        let ground = self.ground;
        if ground.config.source() == Source::OwnSegments {
            // Where all segments have one size, one that goes back makes no room for a better one.
            let tuned = ground.tuned.get().segment != 0;
            ground.shared().stuck.set_most(if tuned { u64::MAX } else { self.most() >> LARGE_SHIFT });
        }
    }

    /// [B] that the device can give altogether, as far as is known.
    pub(super) fn most(self) -> u64 {
        let ground = self.ground;
        let limit = match ground.limit() {
            0 => u64::MAX,
            limit => limit,
        };
        ground.config.max_alloc.min(limit).min(ground.hints.refused_at())
    }

    /// [B] The size of a segment for a request that needs `least`: a usual one, of the device's size or as large as
    /// segments have `grown`, if its excess over the request may be stuck. Otherwise it has no excess; small requests
    /// share one.
    pub(super) fn own_size(self, least: u64, devices: u64, grown: u64) -> u64 {
        let most = self.most();
        let part = |n: u64| (most / n / GRANULE * GRANULE).max(GRANULE);
        let usual = devices.min(part(USUAL_PART)).max(grown).max(least);
        if (usual - least) >> LARGE_SHIFT <= self.ground.shared().stuck.room() {
            usual
        } else if least >= OWN_SEGMENT {
            least
        } else {
            part(SHARED_PART).min(SHARED_SEGMENT).max(least)
        }
    }

    /// [B] free in whole segments of those heaps whose memory can go back to the device.
    pub(super) fn free_whole(self, heaps: Vec<&'static Heap>) -> u64 {
        let idle = |x: &'static Heap| {
            let mut h = self.ground.look(x);
            Blocks::of(self.ground).drain(&mut h);
            h.flush_large();
            h.count_stuck();
            h.whole_segments()
        };
        heaps.into_iter().filter(|x| !self.ground.pools().is_pinned(x)).map(idle).sum::<u64>() << LARGE_SHIFT
    }

    /// Notes the device's answer when it was asked for a segment: `failed` is the error.
    pub(super) fn note_answer(self, g: &Growing<'_>, bytes: u64, failed: Option<Code>) {
        let hints = &self.ground.hints;
        let reserved = g.account.reserved();
        match failed {
            Some(Code::OutOfMemory) => hints.set_refused_at(reserved),
            // It has more than it seemed to have.
            None if reserved + bytes > hints.refused_at() => hints.forget_refusal(),
            _ => return,
        }
        self.note_most();
    }
}
