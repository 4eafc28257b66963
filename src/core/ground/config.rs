//! The sizes of a device, and what follows from them: which tiers it has, and how many granule numbers it needs. Plain
//! data that never changes.

use super::super::heap::Source;
use super::super::shape::{Fine, MEDIUM_SHIFT, SMALL_SHIFT, Shape};
use super::super::units::{GRANULE_SHIFT, LARGE_UNITS_SHIFT, granule_bytes};
use crate::base::error::{Code, Result};
use crate::fail;

/// The device's sizes, all in bytes; see `device::Sizes` for their meaning.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Rounding and alignment of requests; a power of two.
    pub min_chunk: u64,
    /// Larger requests get a segment of their own. Ignored if the device maps.
    pub max_chunk: u64,
    /// The maximum that is taken from the device.
    pub max_alloc: u64,
    /// Added to each request.
    pub padding: u64,
    /// The size of the first segment.
    pub init_alloc: u64,
    /// The size of later segments.
    pub realloc: u64,
    /// Physical granules can be mapped at any address.
    pub mapping: bool,
    /// How many granule numbers there are; at least as many as `max_alloc` has granules.
    pub numbers: u64,
    /// Later segments grow with what is already reserved.
    pub growing: bool,
    /// Granules of addresses for scattered blocks, for each granule of memory; only where the device maps.
    pub window: u32,
    /// How many granules at most should be taken in one allocation while memory is plentiful, to spare calls; 0: none.
    /// Only where the device maps.
    pub tie: u32,
    /// How many granules must be asked for at once for that.
    pub tie_growth: u32,
    /// The maximum number of mapped pieces of scattered blocks at a time, including those of freed blocks.
    pub most_pieces: u64,
    /// The maximum number of blocks that are kept track of at a time, including free ones.
    pub most_blocks: u64,
}

/// The maximum number of granules: 32 TiB of memory. A large unit needs a 32-bit index also in the block table, where
/// the units of the large tier share the indices with those of the other tiers.
const MOST_GRANULES: u64 = 1 << 24;
/// The number of granules whose small units, and one past the last, still have 32-bit numbers.
const MOST_WITH_SMALL: u64 = (1u64 << (u32::BITS - (GRANULE_SHIFT - SMALL_SHIFT))) - 1;
/// The number of granules whose medium units, and one past the last, still have 32-bit numbers.
const MOST_WITH_MEDIUM: u64 = (1u64 << (u32::BITS - (GRANULE_SHIFT - MEDIUM_SHIFT))) - 1;
/// The number of granules whose large units have 32-bit numbers.
const MOST_WITH_LARGE: u64 = 1 << (u32::BITS - LARGE_UNITS_SHIFT);
/// The granule numbers that a device with segments has beyond twice its memory: segments leave gaps.
const SPARE_NUMBERS: u64 = 1 << 16;
/// The maximum number of granule numbers for segments that are smaller than a granule.
const MOST_FOR_SMALL_SEGMENTS: u64 = 1 << 22;
/// The minimum number of granules of addresses for scattered blocks.
const LEAST_WINDOW: u64 = 4096;

/// How many granule numbers a pond has: first those of memory, then those of addresses for scattered blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub memory: u32,
    pub window: u32,
}

impl Config {
    /// Whether segments may be smaller than a granule, because a plugin's init or realloc size is.
    fn has_small_segments(&self) -> bool {
        !self.mapping && self.init_alloc.min(self.realloc) < granule_bytes(1)
    }

    /// The pieces in which the device gives memory.
    pub(crate) fn source(&self) -> Source {
        match self.mapping {
            true => Source::Granules,
            false if self.growing => Source::OwnSegments,
            false => Source::Segments,
        }
    }

    /// The granule numbers that the pond needs. Fails if the device is too large or too small for a pool.
    pub(super) fn granule_numbers(&self) -> Result<Numbers> {
        let most = self.max_alloc >> GRANULE_SHIFT;
        let memory = if self.mapping {
            // Fewer spare numbers are better than no small blocks.
            most.max(self.numbers.min(MOST_WITH_SMALL))
        } else {
            // Each segment starts at a granule and keeps a gap; small ones waste offsets, not memory.
            let whole = most.saturating_mul(2).saturating_add(SPARE_NUMBERS).min(most.max(MOST_GRANULES));
            if self.has_small_segments() {
                let segments = self.max_alloc / self.init_alloc.min(self.realloc).max(1);
                whole.max(segments.saturating_mul(2).min(MOST_FOR_SMALL_SEGMENTS))
            } else {
                whole
            }
        };
        if memory == 0 || memory > MOST_GRANULES {
            fail!(Code::InvalidArgument, "a device of {} B cannot be pooled", self.max_alloc);
        }
        // The offsets of large and scattered blocks are counted in units of the large tier, in 32 bits.
        let window = (most * u64::from(self.window)).max(LEAST_WINDOW).min(MOST_WITH_LARGE - memory);
        Ok(Numbers { memory: memory as u32, window: if self.mapping { window as u32 } else { 0 } })
    }

    /// The rules of sizes. Fails if the device cannot be pooled.
    pub(super) fn shape(&self) -> Result<Shape> {
        let memory = u64::from(self.granule_numbers()?.memory);
        // The chunks of the fine tiers are whole granules.
        let chunks = !self.has_small_segments();
        let fine =
            Fine { small: chunks && memory <= MOST_WITH_SMALL, medium: chunks && memory <= MOST_WITH_MEDIUM };
        let shape = Shape::new(self.min_chunk, self.padding, self.max_alloc, fine)?;
        Ok(if self.mapping { shape } else { shape.with_max_chunk(self.max_chunk) })
    }

    /// The range of offsets that a pond of this configuration needs.
    pub(crate) fn span(&self) -> Result<AddressSpan> {
        self.shape()?; // fails if pooling is impossible
        let Numbers { memory, window } = self.granule_numbers()?;
        Ok(AddressSpan { memory: granule_bytes(memory), window: granule_bytes(window) })
    }
}

/// The range of offsets of a pond, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressSpan {
    /// For the memory itself.
    pub memory: u64,
    /// Behind it, the window in which scattered blocks are mapped.
    pub window: u64,
}
