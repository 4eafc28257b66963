//! The segments of a device: pieces of memory that were taken from it with one call each.

use super::super::super::types::COMMONS;
use super::super::super::units::{Extent, GranuleRun, granule_bytes};
use crate::base::error::{Code, Error};
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

/// A segment, and whether it is on its way back to the device.
struct Entry {
    segment: Segment,
    leaving: bool,
}

/// All segments, by their first granule. Those that are on their way back to the device are in nobody's sight, but keep their
/// place: neither that they go nor that the device refuses them may need memory of the host.
#[derive(Default)]
pub(crate) struct Segments {
    all: Map<u32, Entry>,
    last_serial: u64,
    /// The end of the device takes them out.
    ended: bool,
}

impl Segments {
    pub(super) fn enter(&mut self, part: Extent, bytes: u64, pool: u32, oversize: bool) {
        self.last_serial += 1;
        let segment = Segment { part, bytes, serial: self.last_serial, pool, oversize };
        self.all.insert(part.touched().first, Entry { segment, leaving: false });
    }

    /// A segment is about to go back to the device, and no thread finds it any more. Followed by [`keep`](Self::keep) or by
    /// `Growth::segment_gone`.
    pub(crate) fn take(&mut self, first: u32) -> Option<Segment> {
        let entry = self.all.get_mut(&first).filter(|e| !e.leaving)?;
        entry.leaving = true;
        Some(entry.segment)
    }

    /// Why a segment is not there that a heap still has: the device ends beside a call that began before.
    pub(crate) fn missing(&self) -> Error {
        match self.ended {
            true => Error::new(Code::NotInitialized, "the device was finalised"),
            false => Error::new(Code::Internal, "a segment is missing"),
        }
    }

    /// A segment that was taken is there again: the device refused to take it back.
    pub(crate) fn keep(&mut self, segment: Segment) {
        if let Some(entry) = self.all.get_mut(&segment.part.touched().first) {
            entry.leaving = false;
        }
    }

    /// Ends the leaving of a segment. Returns it as it is now: the pool that it was given to may have ended since.
    pub(super) fn end_leaving(&mut self, segment: Segment) -> Segment {
        self.all.remove(&segment.part.touched().first).map_or(segment, |e| e.segment)
    }

    /// Removes one segment, whichever, at the end of all. None may be in transit that the device has taken back already.
    pub(crate) fn pop(&mut self) -> Option<Segment> {
        self.ended = true;
        let first = *self.all.first_key_value()?.0;
        self.all.remove(&first).map(|e| e.segment)
    }

    /// Makes the segments that were given to a pool count for the commons: the pool has ended. Returns how many they are,
    /// and how many of them are oversize.
    pub(super) fn leave_pool(&mut self, pool: u32) -> (u64, u64) {
        let all = self.all.values_mut().map(|e| &mut e.segment);
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
        self.all.values().filter(|e| !e.leaving).map(|e| &e.segment)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// The segment that contains this granule.
    pub(crate) fn of(&self, granule: u32) -> Option<&Segment> {
        let (_, Entry { segment, leaving }) = self.all.range(..=granule).next_back()?;
        (!leaving && granule < segment.part.touched().end()).then_some(segment)
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
