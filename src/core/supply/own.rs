//! Segments as large as requests need them: how much may be stuck in partly used ones, and how idle ones make room for
//! a new one.

use super::super::ground::Ground;
use super::super::heap::Source;
use super::super::state::growth::{Parts, Segment};
use super::super::units::LARGE_SHIFT;
use super::Search;
use crate::base::sync::{Ordering::Relaxed, lock};

impl Ground {
    /// Updates what can be had from the device, and what of it was needed at most: a part of the rest may be stuck in
    /// partly used segments.
    pub(super) fn note_stuck(&self) {
        if self.config.source() != Source::OwnSegments {
            return;
        }
        let limit = match self.limit.load(Relaxed) {
            0 => u64::MAX,
            limit => limit,
        };
        let most = self.config.max_alloc.min(limit).min(self.refused_at.load(Relaxed));
        let peak = lock(&self.ledger).device.peaks.allocated();
        self.stuck.update(most >> LARGE_SHIFT, peak >> LARGE_SHIFT);
    }
}

impl Search<'_> {
    /// Whether so many bytes more may be stuck in a segment that is larger than the request.
    pub(super) fn may_be_stuck(&self, bytes: u64) -> bool {
        self.ground.stuck.allows(bytes >> LARGE_SHIFT)
    }

    /// Gives idle segments back to the device, so that one of the request's size can be had, if that is enough. Waits
    /// for the device.
    pub(super) fn swap_segments(&mut self, missing: u64) -> bool {
        let (ground, req) = (self.ground, self.req);
        if ground.config.source() != Source::OwnSegments || !req.is_large() {
            return false;
        }
        let heaps = ground.heaps_in(None);
        let idle: u64 =
            heaps.into_iter().map(|x| ground.look(x).whole_segments()).sum::<u64>() << LARGE_SHIFT;
        let (room, _) = ground.allowed(&ground.growing(), req.heap.pool());
        let room = room
            .min(ground.refused_at.load(Relaxed).saturating_sub(ground.growing().device.reserved.current));
        if idle == 0 || idle + room < req.charged || ground.order.sync_device().is_err() {
            return false;
        }
        ground.poll_all();
        let (mut taken, transit) = {
            let mut g = ground.growing();
            let taken = ground.take_all_free(&mut g, ground.heaps_in(None));
            (ground.keep_whole(&g, taken), g.begin_transit(Parts::Any))
        };
        let mut grown = false;
        // As few bytes as are needed; all, if the device cannot make use of what it has got.
        for wanted in [req.charged.saturating_sub(room), u64::MAX] {
            let mut any = false;
            let released = ground.give_segments_back(&mut taken, wanted, &mut any);
            grown = any && self.note_refusal(|s| s.grow(missing));
            if grown || released.is_err() {
                break;
            }
        }
        let mut g = ground.growing();
        ground.return_all(&g, taken);
        transit.end(&mut g);
        grown
    }
}

/// The next segment to give back for `wanted` bytes: the smallest that is enough, otherwise the largest. `idle` is
/// sorted by size.
pub(super) fn next_back(idle: &mut Vec<Segment>, wanted: u64) -> Option<Segment> {
    let enough = idle.partition_point(|s| s.bytes < wanted);
    let last = idle.len().checked_sub(1)?;
    Some(idle.remove(enough.min(last)))
}
