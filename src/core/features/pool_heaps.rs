//! The heaps of a pool, all locked: for features that need the pool to stand still.

use super::super::blocks::Blocks;
use super::super::desc::{DIRECT, Id, kind};
use super::super::ground::{Ground, Growing};
use super::super::heap::LockedHeap;
use super::super::ledger::Ledger;
use super::super::state::checkpoints::Block;
use super::super::types::PoolId;
use super::super::units::Extent;
use crate::base::sync::MutexGuard;
use crate::locks;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

/// The locked heaps of a pool by number, in which everything is merged that was freed.
pub(super) struct PoolHeaps<'a> {
    heaps: BTreeMap<u32, LockedHeap<'a>>,
    /// Who holds several heaps holds the ledger.
    _ledger: MutexGuard<'a, Ledger, locks::Ledger>,
}

impl<'a> Deref for PoolHeaps<'a> {
    type Target = BTreeMap<u32, LockedHeap<'a>>;
    fn deref(&self) -> &Self::Target {
        &self.heaps
    }
}

impl DerefMut for PoolHeaps<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.heaps
    }
}

impl<'a> PoolHeaps<'a> {
    /// Locks all heaps of a pool, in the order of their numbers.
    pub(super) fn lock(ground: &'a Ground, pool: PoolId) -> PoolHeaps<'a> {
        let locked = |x| {
            let mut h = ground.lock(x);
            Blocks::of(ground).drain(&mut h);
            h.give_up_whole();
            h.flush();
            (x.index, h)
        };
        let all = ground.heaps_of(pool.0);
        let ledger = ground.ledger();
        PoolHeaps { heaps: all.into_iter().map(locked).collect(), _ledger: ledger }
    }

    /// The live blocks of the pool, and whether another thread has claimed a block to free it and has not put it on a list yet,
    /// or has done so since the heaps were locked.
    pub(super) fn live_blocks(&self, g: &Growing<'_>) -> (Vec<Block>, bool) {
        let maps = &g.ground.maps;
        let (mut blocks, mut claimed) = (Vec::new(), false);
        let mut note = |id: Id, heap: u32, pieces: &[Extent]| {
            let d = maps.desc(id);
            let kind = d.kind();
            claimed |= kind == kind::REMOTE;
            if kind == kind::LIVE {
                blocks.push(Block {
                    offset: maps.offset(id),
                    heap,
                    tier_bits: d.tier_bits(),
                    units: d.units(),
                    requested: d.requested(),
                    charged: maps.charge(id),
                    direct: d.state() & DIRECT != 0,
                    pieces: pieces.into(),
                    tag: Blocks::of(g.ground).tag_of(id),
                });
            }
        };
        g.each_block(|heap| self.heaps.get(&heap), |id, heap, pieces| note(id, heap, pieces));
        (blocks, claimed)
    }
}
