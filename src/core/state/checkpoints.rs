//! Recorded layouts of pools: which blocks were live, with their offset, size and stream.

use super::super::desc::ALIAS;
use super::super::shape::{Tier, shift_of};
use super::super::types::PoolId;
use super::super::units::{
    Extent, GRANULE_SHIFT, LARGE_SHIFT, LARGE_UNITS, LARGE_UNITS_SHIFT, every_granule,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Names a checkpoint of one device; never reused.
pub type CheckpointId = u64;

/// A block that was live.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub offset: u64,
    pub heap: u32,
    pub tier_bits: u32,
    pub units: u32,
    pub requested: u64,
    pub charged: u64,          // [B] in its pool's account
    pub direct: bool,          // it is a segment of its own
    pub pieces: Box<[Extent]>, // of a scattered block
    pub tag: u16,
}

impl Block {
    /// Whether the other is the same block, whatever its tag.
    pub(crate) fn is(&self, other: &Block) -> bool {
        let all = |b: &Block| (b.offset, b.heap, b.tier_bits, b.units, b.requested, b.charged, b.direct);
        all(self) == all(other) && self.pieces == other.pieces
    }

    pub(crate) fn tier(&self) -> Tier {
        match self.tier_bits {
            0 => Tier::Small,
            1 => Tier::Medium,
            _ => Tier::Large,
        }
    }

    /// Whether it lies in a chunk.
    pub(crate) fn is_fine(&self) -> bool {
        self.tier_bits < Tier::Large as u32
    }

    /// The granule in which it starts.
    pub(crate) fn granule(&self) -> u32 {
        (self.offset >> GRANULE_SHIFT) as u32
    }

    /// The granules' units that it occupies: itself, or its pieces. For a fine block, its chunk.
    pub(crate) fn parts(&self) -> Vec<Extent> {
        match self.tier_bits {
            ALIAS => self.pieces.to_vec(),
            0 | 1 => vec![Extent::new(self.granule() << LARGE_UNITS_SHIFT, LARGE_UNITS)],
            _ => vec![Extent::new((self.offset >> LARGE_SHIFT) as u32, self.units)],
        }
    }

    /// Where it lies, in its chunk or in its pieces: from which byte, to which.
    pub(crate) fn each_range(&self, each: &mut dyn FnMut(u64, u64)) {
        if self.tier_bits == ALIAS {
            let at = |unit: u32| u64::from(unit) << LARGE_SHIFT;
            return self.pieces.iter().for_each(|p| each(at(p.off), at(p.end())));
        }
        each(self.offset, self.offset + (u64::from(self.units) << shift_of(self.tier_bits)));
    }

    pub(crate) fn granules(&self) -> Vec<u32> {
        every_granule(&self.parts()).collect()
    }
}

/// The stream of a heap when a checkpoint was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedStream {
    pub serial: u64, // among all streams ever used; 0: the heap had no stream
    pub id: u64,     // the caller's
}

impl RecordedStream {
    pub(crate) const NONE: RecordedStream = RecordedStream { serial: 0, id: 0 };
}

/// What a checkpoint has recorded.
pub(crate) struct Layout {
    pub pool: PoolId,
    /// The streams of the heaps that the blocks are in, by the number of the heap.
    pub streams: BTreeMap<u32, RecordedStream>,
    pub blocks: Vec<Block>,
    /// If there are segments: granule -> serial number of its segment.
    pub segments: BTreeMap<u32, u64>,
}

/// All checkpoints of a device.
#[derive(Default)]
pub(crate) struct Checkpoints {
    pub all: BTreeMap<CheckpointId, Arc<Layout>>,
    last: CheckpointId,
}

impl Checkpoints {
    pub(crate) fn add(&mut self, layout: Layout) -> CheckpointId {
        self.last += 1;
        self.all.insert(self.last, Arc::new(layout));
        self.last
    }
}
