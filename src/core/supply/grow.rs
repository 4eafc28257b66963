//! How much memory a request takes from the device: as many granules as it lacks, or a segment of a suitable size.

use super::super::heap::FreeBlock;
use super::super::shape::Tier;
use super::super::units::{Extent, GRANULE, GRANULE_SHIFT, LARGE_SHIFT, granule_bytes};
use super::device::{DeviceMemory, New};
use super::limits::{self, NO_MORE, TOO_MANY_BLOCKS};
use super::search::Search;
use super::segments::Segments;
use crate::base::error::Result;

/// If segments may grow, a later one is 1 / this of what is reserved. Of the parts from a half to a sixteenth, this one
/// needed about the least memory on the traces.
const GROWTH_PART: u64 = 8;

impl Search<'_> {
    /// The granule after the last free one that the request's heap owns: the best place for it to grow.
    pub(super) fn end_of_heap(&self) -> Option<u32> {
        self.ground.look(self.req.heap).last_free_granule()
    }

    /// Takes memory from the device: that many granules, or a segment.
    pub(super) fn grow(&mut self, missing: u64) -> Result<()> {
        let (ground, req) = (self.ground, self.req);
        if !ground.config.mapping {
            return self.grow_segment();
        }
        if self.contiguous {
            return self.grow_tie(missing);
        }
        let in_one_piece = req.in_one_piece(ground);
        {
            let g = ground.growing();
            let allowed = g.allowed(req.heap.pool());
            if missing > allowed.bytes >> GRANULE_SHIFT {
                return Err(limits::error(allowed.why));
            }
            if in_one_piece && missing > u64::from(g.room.longest()) {
                return Err(limits::error(NO_MORE));
            }
        }
        // Ties are for a request whose heap has nothing yet; what another one lacks comes as loose granules, which fit
        // beside anything.
        let has_none = missing == req.granules() && req.aligned.is_none();
        let tied = if has_none { self.take_ties(missing as u32) } else { 0 };
        let mut left = missing as u32 - tied;
        while left > 0 {
            left -= self.take_granules(left)?;
        }
        Ok(())
    }

    /// Takes new granules, as many consecutive ones as there is room for, at most `most`; returns how many.
    fn take_granules(&self, most: u32) -> Result<u32> {
        let (ground, req) = (self.ground, self.req);
        let after = if req.is_large() { self.end_of_heap() } else { None };
        DeviceMemory::of(ground).take_granules(req.heap, |g| {
            let count = most.min(g.room.longest());
            let allowed = g.allowed(req.heap.pool());
            let numbers = match req.size.tier {
                _ if count == 0 => Err(NO_MORE),
                // Another thread may have split the run that was there when the request began.
                Tier::Large if count < most && req.in_one_piece(ground) => Err(NO_MORE),
                _ if granule_bytes(count) > allowed.bytes => Err(allowed.why),
                Tier::Large => g.room.take(count, after).ok_or(NO_MORE),
                _ => g.room.take_top().ok_or(NO_MORE),
            };
            numbers.map(|numbers| New { numbers, apart: false, tie: None })
        })
    }

    /// [B] The smallest segment that serves the request.
    pub(super) fn least_segment(&self) -> u64 {
        // A fine tier needs a whole granule for its chunk, a large request only its own units.
        let step = self.ground.maps.shape.segment_step();
        if self.req.is_large() { self.req.charged.next_multiple_of(step) } else { GRANULE }
    }

    /// Takes a new segment: of the init size at first, of the realloc size later, and never too small for the request.
    fn grow_segment(&mut self) -> Result<()> {
        let (ground, req) = (self.ground, self.req);
        let config = &ground.config;
        let chunk = ground.maps.shape.min_chunk();
        let least = self.least_segment();
        let (usual, allowed) = {
            let g = ground.growing();
            let tuned = ground.tuned.get().segment;
            // A block cannot lie across two segments: few large ones waste less than many small ones.
            let grown = g.account.reserved() / GROWTH_PART / GRANULE * GRANULE;
            let devices = if g.segments.is_empty() { config.init_alloc } else { config.realloc };
            let usual = match tuned {
                0 if config.growing => Segments::of(ground).own_size(least, devices, grown),
                0 => devices,
                tuned => tuned,
            };
            (usual, g.allowed(req.heap.pool()))
        };
        let most = usual.max(least).min(allowed.bytes) / chunk * chunk;
        let mut refused = limits::error(allowed.why);
        for bytes in [most.max(least), least] {
            if bytes > allowed.bytes {
                continue;
            }
            let Some(id) = ground.look(req.heap).take_id() else {
                return Err(limits::error(TOO_MANY_BLOCKS));
            };
            let give = |part: Extent| ground.lock(req.heap).give(FreeBlock { part, id });
            let units = (bytes >> LARGE_SHIFT) as u32;
            match DeviceMemory::of(ground).take_segment(req.heap, bytes, units, give) {
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
