//! Checkpoints: recorded layouts of a pool, which say which blocks are live, with their place, size and stream.
//! `restore.rs` restores one.
//!
//! A graph that is replayed leaves its results where they were when it was captured. A program that goes back to an
//! earlier graph needs the allocator in the state of that time.

use super::super::desc::{DIRECT, Id, kind};
use super::super::ground::{Ground, Growing};
use super::super::heap::LockedHeap;
use super::super::state::checkpoints::{Block, CheckpointId, Layout};
use super::super::types::{Freeing, PoolId};
use super::super::units::Extent;
use crate::base::error::{Code, Result};
use crate::base::sync::lock;
use crate::fail;
use std::collections::BTreeMap;

/// The blocks that a restore has freed, and those that it has made live.
#[derive(Debug, Default)]
pub struct Restored {
    /// They were live before and are not now.
    pub freed: Vec<Freeing>,
    /// They were not live before (or had another size) and are now: address, requested bytes.
    pub live: Vec<(u64, u64)>,
}

impl Restored {
    /// The freed ones: address, requested bytes.
    pub fn freed(&self) -> Vec<(u64, u64)> {
        self.freed.iter().map(|f| (f.block.base, f.block.requested)).collect()
    }
}

/// The locked heaps of a pool, by number.
pub(super) type PoolHeaps<'a> = BTreeMap<u32, LockedHeap<'a>>;

impl Ground {
    /// Locks all heaps of a pool in order, and merges everything that was freed.
    pub(super) fn lock_pool(&self, pool: PoolId) -> PoolHeaps<'_> {
        let locked = |x| {
            let mut h = self.lock(x);
            self.drain(&mut h);
            h.give_up_whole();
            h.flush();
            (x.index, h)
        };
        self.heaps_of(pool.0).into_iter().map(locked).collect()
    }

    /// The live blocks of a pool whose heaps are locked.
    pub(super) fn live_of(&self, g: &Growing<'_>, heaps: &PoolHeaps<'_>) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut note = |id: Id, heap: u32, pieces: &[Extent]| {
            let d = self.maps.desc(id);
            if d.kind() == kind::LIVE {
                blocks.push(Block {
                    offset: self.offset(id),
                    heap,
                    tier_bits: d.tier_bits(),
                    units: d.units(),
                    requested: d.requested(),
                    charged: self.charge(id),
                    direct: d.state() & DIRECT != 0,
                    pieces: pieces.into(),
                    tag: self.tag_of(id),
                });
            }
        };
        self.each_block(g, |heap| heaps.contains_key(&heap), |id, heap, pieces| note(id, heap, pieces));
        blocks
    }

    /// Records which blocks of the pool are live now.
    pub(crate) fn checkpoint(&self, pool: PoolId) -> Result<CheckpointId> {
        let g = self.growing();
        self.live_pool(pool)?;
        let heaps = self.lock_pool(pool);
        let blocks = self.live_of(&g, &heaps);
        let stream = |b: &Block| {
            let s = heaps.get(&b.heap)?.stream.as_ref();
            Some((b.heap, s.map_or((0, 0), |s| (s.serial, s.id))))
        };
        let segment = |granule: u32| Some((granule, g.segment_of(granule)?.serial));
        let layout = Layout {
            pool,
            streams: blocks.iter().filter_map(stream).collect(),
            segments: blocks.iter().flat_map(Block::granules).filter_map(segment).collect(),
            blocks,
        };
        drop(heaps);
        Ok(lock(&self.checkpoints).add(layout))
    }

    /// Drops a checkpoint.
    pub(crate) fn checkpoint_destroy(&self, checkpoint: CheckpointId) -> Result<()> {
        match lock(&self.checkpoints).all.remove(&checkpoint) {
            Some(_) => Ok(()),
            None => fail!(Code::InvalidArgument, "no such checkpoint, or it was destroyed"),
        }
    }
}
