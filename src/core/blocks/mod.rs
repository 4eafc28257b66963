//! Single blocks: how they end their lives and become free, their tags, and what the tuning changes for them
//! ([`Blocks`]); and freed blocks that wait before they are free ([`WaitingBlocks`]).
//!
//! Who changes a block holds the lock of its heap, which the methods take as an argument.

use super::backing::{Backing, Completed};
use super::desc::{Id, Maps, kind};
use super::ground::{Ground, Growing};
use super::heap::{Heap, HeapState, LockedHeap};
use super::shape::Class;
use super::state::tags::Tags;
use super::state::tuned::Tuned;
use super::types::{BlockInfo, Freeing, PoolId, RETIRED};
use crate::base::sync::Lock;
use std::ops::DerefMut;

mod gained;
mod released;
mod tags;
mod tuning;
mod waiting;

pub(crate) use gained::{gained, gained_so_far};
pub(crate) use released::ReleasedPools;
pub(crate) use tuning::{give_up_whole, tune};
pub(crate) use waiting::WaitingBlocks;

/// What acts on single blocks, with the parts of the ground that it needs.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a> {
    maps: &'a Maps,
    backing: &'a dyn Backing,
    tuned: &'a Tuned,
    tags: &'a Lock<Tags>,
}

/// Makes the ids that heaps have in stock available to all. What was freed is merged for that, but in a pool that sleeps: the
/// account has no chunks of it that could become granules.
pub(crate) fn collect_ids(g: &Growing<'_>) {
    let ground = g.ground;
    for heap in ground.heaps().all() {
        let mut h = ground.look(heap);
        if !ground.pools().sleeps(PoolId(heap.pool())) {
            Blocks::of(ground).drain(&mut h);
            h.flush();
        }
        h.give_ids_up();
    }
}

impl<'a> Blocks<'a> {
    pub(crate) fn of(ground: &'a Ground) -> Blocks<'a> {
        Blocks { maps: &ground.maps, backing: &*ground.backing, tuned: &ground.tuned, tags: ground.tags() }
    }

    /// Makes a block reusable whose life has ended and for which nothing is waited.
    pub(crate) fn reuse<G: DerefMut<Target = HeapState>>(self, h: &mut LockedHeap<'_, G>, id: Id) {
        if self.stays_whole(id) {
            return h.put_whole(id);
        }
        let d = self.maps.desc(id);
        d.set_kind(kind::FREED);
        h.shelve(id, d, d.state());
    }

    /// Takes over what other threads have freed.
    pub(crate) fn drain<G: DerefMut<Target = HeapState>>(self, h: &mut LockedHeap<'_, G>) {
        h.take_remote(|h, id| {
            let (class, bytes) = (Class::of(self.maps.desc(id).tier_bits()), self.maps.desc(id).requested());
            h.counters.count_out(class, self.maps.shape.charged_of(bytes), bytes);
            self.reuse(h, id);
        });
    }

    /// Reports to the backing that the wait of a freed block is over. To be called before any thread can get the block.
    pub(crate) fn report_completed(self, heap: &Heap, id: Id) {
        self.backing.free_completed(self.completed(heap, id));
    }

    /// What is reported of a freed block whose wait is over.
    fn completed(self, heap: &Heap, id: Id) -> Completed {
        Completed {
            offset: self.maps.offset(id),
            charged: self.maps.charge(id),
            requested: self.maps.desc(id).requested(),
            stream: heap.last_stream(),
            ended: heap.stream() == RETIRED,
            pool: heap.pool(),
        }
    }

    /// What is reported of the free of a block that only its own stream has used.
    pub(crate) fn freeing(self, heap: &Heap, id: Id) -> Freeing {
        let Completed { offset, charged, requested, stream, ended, pool } = self.completed(heap, id);
        let block = BlockInfo { base: offset, size: charged, requested, stream, pool: PoolId(pool) };
        Freeing { block, ended, at_once: true }
    }
}
