//! Checkpoints: recorded layouts of a pool, which say which blocks are live, with their place, size and stream.
//! `restore.rs` restores one.
//!
//! A graph that is replayed leaves its results where they were when it was captured. A program that goes back to an
//! earlier graph needs the allocator in the state of that time. A layout is recorded under the growth lock, with all heaps
//! of the pool locked.

use super::super::ground::Ground;
use super::super::order::Stream;
use super::super::state::checkpoints::{Block, CheckpointId, Layout, RecordedStream};
use super::super::types::{Freeing, PoolId};
use super::pool_heaps::PoolHeaps;
use super::restore::{Restore, Restored};
use crate::base::error::{Code, Result};
use crate::fail;
use std::sync::Arc;

/// Checkpoints; from [`Pond::checkpoints`](crate::core::Pond::checkpoints). Any thread may call anything.
#[derive(Clone, Copy)]
pub struct CheckpointCalls<'a> {
    ground: &'a Ground,
}

impl<'a> CheckpointCalls<'a> {
    pub(crate) fn of(ground: &'a Ground) -> CheckpointCalls<'a> {
        CheckpointCalls { ground }
    }

    /// Records which blocks of the pool are live now.
    pub fn make(self, pool: PoolId) -> Result<CheckpointId> {
        self.ground.check_host_room()?;
        let g = self.ground.growing();
        self.ground.pools().live(pool)?;
        let heaps = PoolHeaps::lock(self.ground, pool);
        let (blocks, _) = heaps.live_blocks(&g);
        let stream = |b: &Block| {
            let s = heaps.get(&b.heap)?.stream.as_ref();
            let recorded = |s: &Arc<Stream>| RecordedStream { serial: s.serial, id: s.id };
            Some((b.heap, s.map_or(RecordedStream::NONE, recorded)))
        };
        let segment = |granule: u32| Some((granule, g.segments.of(granule)?.serial));
        let layout = Layout {
            pool,
            streams: blocks.iter().filter_map(stream).collect(),
            segments: blocks.iter().flat_map(Block::granules).filter_map(segment).collect(),
            blocks,
        };
        drop(heaps);
        Ok(self.ground.checkpoints().add(layout))
    }

    /// Drops a checkpoint that is no longer needed.
    pub fn destroy(self, checkpoint: CheckpointId) -> Result<()> {
        match self.ground.checkpoints().all.remove(&checkpoint) {
            Some(_) => Ok(()),
            None => fail!(Code::InvalidArgument, "no such checkpoint, or it was destroyed"),
        }
    }

    /// Makes exactly those blocks of the pool live that were live at the checkpoint. The caller promises that nobody
    /// uses the pool meanwhile. Waits on the host for other streams' uses of the blocks that it frees. `place` converts
    /// the offsets in the answer; it is called while no segment can go back to the device, since its address may change
    /// then. `notify` is called for each block that is freed, with locks held, before its memory can be used again.
    pub fn restore(
        self,
        pool: PoolId,
        checkpoint: CheckpointId,
        place: impl Fn(u64) -> u64,
        notify: impl Fn(&Freeing),
    ) -> Result<Restored> {
        self.ground.check_reentry()?;
        self.ground.check_host_room()?;
        let Some(want) = self.ground.checkpoints().all.get(&checkpoint).cloned() else {
            fail!(Code::InvalidArgument, "no such checkpoint, or it was destroyed");
        };
        if want.pool != pool || self.ground.pools().get(pool).is_none() {
            fail!(Code::InvalidArgument, "the checkpoint is one of another pool");
        }
        Restore::of(self.ground, &want).run(place, notify)
    }
}
