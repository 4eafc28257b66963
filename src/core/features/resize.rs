//! Live blocks that get another size where they are.
//!
//! Any block may use what it is charged. One of the large tier may have more: the start of the free memory behind it,
//! which its heap has; and it gives the end of its own to the heap when it gets smaller. Both are right for the heap's
//! stream as an allocation and a free on it are. So a block whose heap has no stream of its own any more, or that
//! others use beside it, keeps its length.

use super::super::desc::{DIRECT, Found, TAGGED, TUNED, USES, kind};
use super::super::ground::Ground;
use super::super::heap::{Heap, LockedHeap};
use super::super::shape::{Class, Tier, large_units, shift_of};
use super::super::state::pools::{Pool, Sleep};
use super::super::types::{PoolId, RETIRED, UNORDERED};
use crate::base::error::{Code, Result};
use crate::base::sync::pause;
use crate::fail;

impl Ground {
    /// Makes the live block at `offset` one of `bytes`, as if it had been asked for with that, at the same place.
    /// `OutOfMemory`, and nothing has changed, if there is no room. The account sees a free and an allocation.
    pub(crate) fn resize(&self, offset: u64, bytes: u64) -> Result<()> {
        if bytes == 0 {
            fail!(Code::InvalidArgument, "a block cannot get a size of 0 bytes");
        }
        let mut round = 0;
        loop {
            let found = self.maps.find(offset);
            let Some((f, heap)) = found.and_then(|f| Some((f, self.heap(f.heap)?))) else {
                return self.not_live(offset);
            };
            let sleeps = |p: &Pool| p.sleep_state() != Sleep::Awake;
            if self.pool(PoolId(heap.pool())).is_some_and(sleeps) {
                fail!(Code::NotPermitted, "the pool of the block sleeps");
            }
            let recorded = heap.stream() != UNORDERED && self.order.records(heap.stream());
            let mut h = self.lock(heap);
            self.drain(&mut h);
            let was = f.desc.state();
            let here = self.maps.starts_at(f.id, offset) && self.maps.granule_of(offset).heap() == heap.index;
            if was & kind::MASK == kind::REMOTE && here {
                // Another thread is just freeing it, and has not decided yet whether it may.
                drop(h);
                pause(round);
                round = round.saturating_add(1);
                continue;
            }
            if was & kind::MASK != kind::LIVE || !here {
                drop(h);
                return self.not_live(offset);
            }
            // A block without a flag could be freed by another thread meanwhile, without the lock.
            let claimed = f.desc.claim_remote();
            if !claimed && f.desc.state() != was {
                continue;
            }
            let own = (!recorded).then_some(heap);
            let (old, charged) = (f.desc.requested(), self.charge_as(&f, was));
            let fits = self.make_room(&mut h, &f, was, own, bytes);
            if let Err(e) = fits {
                if claimed {
                    f.desc.unclaim_remote();
                }
                return Err(e);
            }
            let full = self.count_resized(&mut h, &f, (was, old, charged), bytes);
            drop(h);
            if full {
                self.settle(heap);
            }
            return Ok(());
        }
    }

    /// The charge of a block that was in this state.
    fn charge_as(&self, f: &Found<'_>, was: u32) -> u64 {
        self.charge_of(was >> 4 & 3, f.desc.units(), f.desc.requested())
    }

    /// Gives a block as many units as `bytes` need, if it has others. `own` is its heap, if that has memory for it.
    fn make_room(
        &self,
        h: &mut LockedHeap<'_>,
        f: &Found<'_>,
        was: u32,
        own: Option<&Heap>,
        bytes: u64,
    ) -> Result<()> {
        let (d, tier) = (f.desc, was >> 4 & 3);
        let need = if bytes > self.config.max_alloc { u64::MAX } else { self.maps.shape.charged_of(bytes) };
        let has = u64::from(d.units()) << shift_of(tier);
        if was & DIRECT != 0 {
            // The segment may end before the block's last unit does, and its size stands nowhere else.
            let same = need == self.charge_as(f, was);
            return if same { Ok(()) } else { no_room(has, need) };
        }
        let moves = own.is_some_and(|x| x.stream() != RETIRED)
            && tier == Tier::Large as u32
            && !h.inherited
            && !h.exports.contains_key(&f.id)
            && self.tuned.max_split() == 0;
        if need > has {
            let more = || large_units(need - has);
            // A graph may use what is free in a pool that is kept for it, whenever it is replayed.
            if !moves || need > self.config.max_alloc || self.is_pinned(h.heap) {
                return no_room(has, need);
            }
            // What waits unmerged may be what lies there.
            h.flush_large();
            let mut longer = h.lengthen(f.id, more());
            if !longer {
                h.flush();
                longer = h.lengthen(f.id, more());
            }
            h.count_stuck();
            return if longer { Ok(()) } else { no_room(has, need) };
        }
        let units = large_units(need);
        if moves && was & USES == 0 && units < d.units() {
            h.shorten(f.id, units); // else it keeps its length
            h.count_stuck();
        }
        Ok(())
    }

    /// Counts a block that has its new units as one of `bytes`; `before` is its state, what was asked for, and its
    /// charge. `true`: the accounts must be settled.
    fn count_resized(
        &self,
        h: &mut LockedHeap<'_>,
        f: &Found<'_>,
        before: (u32, u64, u64),
        bytes: u64,
    ) -> bool {
        let (was, old, charged) = before;
        let (d, class) = (f.desc, Class::of(was >> 4 & 3));
        d.set_requested(bytes);
        let now = self.charge_as(f, was);
        if was & TAGGED != 0 {
            let (tag, mut tags) = (self.maps.tag(f.id), self.tags.lock());
            tags.count_out(tag, charged, old, false);
            tags.count_in(tag, now, bytes);
        }
        let tuned = now != self.maps.shape.charged_of(bytes) || bytes > self.maps.shape.largest();
        // From here on it is live again for others, too.
        d.set_state(was | if tuned { TUNED } else { 0 });
        h.counters.count_out(class, charged, old);
        h.counters.count_in(class, now, bytes)
    }
}

#[cold]
fn no_room<T>(has: u64, need: u64) -> Result<T> {
    fail!(
        Code::OutOfMemory,
        "the block has room for {has} bytes where it is, and the {need} that it would need are not free there"
    )
}
