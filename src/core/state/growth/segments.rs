//! The segments of a device: pieces of memory that were taken from it with one call each.

use super::super::super::types::COMMONS;
use super::super::super::units::{Extent, GranuleRun, granule_bytes};
use crate::base::ordered::Map;

/// A piece of memory taken from the device with one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub part: Extent, // the part that is served
    pub bytes: u64,   // as requested from the device
    pub serial: u64,  // never reused
    pub pool: u32,    // that counts it in its number of segments
    pub oversize: bool,
}

impl Segment {
    /// [B] where it starts.
    pub(crate) fn offset(&self) -> u64 {
        granule_bytes(self.part.touched().first)
    }

    /// The granule numbers of a segment: one more than it has granules, so that segments that are not adjacent on the
    /// device do not appear adjacent.
    pub(crate) fn numbers_of(part: Extent) -> GranuleRun {
        let touched = part.touched();
        GranuleRun::new(touched.first, touched.count + 1)
    }
}

/// All segments, by their first granule.
#[derive(Default)]
pub(crate) struct Segments {
    present: Map<u32, Segment>,
    /// Those that are on their way back to the device.
    leaving: Map<u32, Segment>,
    last_serial: u64,
}

impl Segments {
    pub(super) fn enter(&mut self, part: Extent, bytes: u64, pool: u32, oversize: bool) {
        self.last_serial += 1;
        let serial = self.last_serial;
        self.present.insert(part.touched().first, Segment { part, bytes, serial, pool, oversize });
    }

    /// Removes a segment that is about to go back to the device, so that no thread finds it any more. Followed by
    /// [`keep`](Self::keep) or by `Growth::segment_gone`.
    pub(crate) fn take(&mut self, first: u32) -> Option<Segment> {
        let segment = self.present.remove(&first)?;
        self.leaving.insert(first, segment);
        Some(segment)
    }

    /// Enters a segment again that was taken: the device refused to take it back.
    pub(crate) fn keep(&mut self, segment: Segment) {
        let segment = self.end_leaving(segment);
        self.present.insert(segment.part.touched().first, segment);
    }

    /// Ends the leaving of a segment. Returns it as it is now: the pool that it was given to may have ended since.
    pub(super) fn end_leaving(&mut self, segment: Segment) -> Segment {
        self.leaving.remove(&segment.part.touched().first).unwrap_or(segment)
    }

    /// Makes the segments that were given to a pool count for the commons: the pool has ended. Returns how many they are,
    /// and how many of them are oversize.
    pub(super) fn leave_pool(&mut self, pool: u32) -> (u64, u64) {
        let all = self.present.values_mut().chain(self.leaving.values_mut());
        let (mut count, mut oversize) = (0, 0);
        for s in all.filter(|s| s.pool == pool) {
            s.pool = COMMONS;
            count += 1;
            oversize += u64::from(s.oversize);
        }
        (count, oversize)
    }

    /// All that are present, by their first granule.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.present.values()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.present.is_empty()
    }

    /// The segment that contains this granule.
    pub(crate) fn of(&self, granule: u32) -> Option<&Segment> {
        let (_, s) = self.present.range(..=granule).next_back()?;
        (granule < s.part.touched().end()).then_some(s)
    }

    /// [units] the end of this granule's segment.
    pub(crate) fn end_of(&self, granule: u32) -> Option<u32> {
        self.of(granule).map(|s| s.part.end())
    }

    /// [B] that a part of memory counts in the account of its pool. The end of a segment includes what the segment has
    /// beyond its last whole unit.
    pub(crate) fn bytes_of(&self, part: Extent) -> u64 {
        match self.of(part.touched().first) {
            Some(s) if s.part.end() == part.end() => s.bytes - Extent::new(0, part.off - s.part.off).bytes(),
            _ => part.bytes(),
        }
    }
}
