//! Live blocks that get another size where they are.
//!
//! Any block may use what it is charged. One of the large tier may have more: the start of the free memory behind it,
//! which its heap has; and it gives the end of its own to the heap when it gets smaller. Both are right for the heap's
//! stream as an allocation and a free on it are. So a block whose heap has no stream of its own any more, or that
//! others use beside it, keeps its length. The heap is locked from the check of the block until it has its new size.

use super::super::account::Accounts;
use super::super::blocks::Blocks;
use super::super::desc::{DIRECT, TAGGED, TUNED, USES};
use super::super::ground::{Ground, Pool};
use super::super::heap::Heap;
use super::super::shape::{Class, Tier, large_units, shift_of, tier_bits_of};
use super::super::types::{PoolId, RETIRED, UNORDERED};
use super::frees::{LiveBlock, not_live};
use crate::base::error::{Code, Result};
use crate::base::sync::pause;
use crate::fail;

/// What the account has of a block.
#[derive(Clone, Copy)]
struct Counted {
    charged: u64,
    requested: u64,
}

/// Makes the live block at `offset` one of `bytes`, as if it had been asked for with that, at the same place.
/// `OutOfMemory`, and nothing has changed, if there is no room. The account sees a free and an allocation.
pub(crate) fn resize(ground: &Ground, offset: u64, bytes: u64) -> Result<()> {
    if bytes == 0 {
        fail!(Code::InvalidArgument, "a block cannot get a size of 0 bytes");
    }
    let mut round = 0;
    loop {
        let found = ground.maps.find(offset);
        let Some((f, heap)) = found.and_then(|f| Some((f, ground.heaps().get(f.heap)?))) else {
            return not_live(ground, offset, found);
        };
        if ground.pools().get(PoolId(heap.pool())).is_some_and(Pool::sleeps) {
            fail!(Code::NotPermitted, "the pool of the block sleeps");
        }
        let recorded = heap.stream() != UNORDERED && ground.order.records_later(heap.stream());
        let Some(live) = LiveBlock::lock(ground, f, heap, offset)? else {
            pause(round);
            round = round.saturating_add(1);
            continue;
        };
        // A block without a flag could be freed by another thread meanwhile, without the lock.
        let claimed = f.desc.claim_remote();
        if !claimed && f.desc.state() != live.was {
            continue;
        }
        let own = (!recorded).then_some(heap);
        let mut resizing = Resizing { ground, live };
        let before = resizing.counted();
        if let Err(e) = resizing.make_room(own, bytes) {
            if claimed {
                f.desc.unclaim_remote();
            }
            return Err(e);
        }
        let full = resizing.count(before, bytes);
        drop(resizing);
        if full {
            Accounts::of(ground).settle(heap);
        }
        return Ok(());
    }
}

/// A block that gets another size.
struct Resizing<'a> {
    ground: &'a Ground,
    live: LiveBlock<'a>,
}

impl Resizing<'_> {
    fn tier_bits(&self) -> u32 {
        tier_bits_of(self.live.was)
    }

    /// What the account has of the block, or will have.
    fn counted(&self) -> Counted {
        let d = self.live.found.desc;
        let charged = self.ground.maps.charge_of(self.tier_bits(), d.units(), d.requested());
        Counted { charged, requested: d.requested() }
    }

    /// Gives the block as many units as `bytes` need, if it has others. `own` is its heap, if that has memory for it.
    fn make_room(&mut self, own: Option<&Heap>, bytes: u64) -> Result<()> {
        let (ground, tier_bits) = (self.ground, self.tier_bits());
        let charged = self.counted().charged;
        let LiveBlock { h, found: f, was } = &mut self.live;
        let d = f.desc;
        let need =
            if bytes > ground.config.max_alloc { u64::MAX } else { ground.maps.shape.charged_of(bytes) };
        let has = u64::from(d.units()) << shift_of(tier_bits);
        if *was & DIRECT != 0 {
            // The segment may end before the block's last unit does, and its size stands nowhere else.
            return if need == charged { Ok(()) } else { no_room(has, need) };
        }
        let moves = own.is_some_and(|x| x.stream() != RETIRED)
            && tier_bits == Tier::Large as u32
            && !h.inherited
            && !h.exports.contains_key(&f.id)
            && ground.tuned.max_split() == 0;
        if need > has {
            let more = || large_units(need - has);
            // A graph may use what is free in a pool that is kept for it, whenever it is replayed.
            if !moves || need > ground.config.max_alloc || ground.pools().is_pinned(h.heap) {
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
        if moves && *was & USES == 0 && units < d.units() {
            h.shorten(f.id, units); // else it keeps its length
            h.count_stuck();
        }
        Ok(())
    }

    /// Counts the block, which has its new units, as one of `bytes`. `true`: the accounts must be settled.
    fn count(&mut self, before: Counted, bytes: u64) -> bool {
        let ground = self.ground;
        self.live.found.desc.set_requested(bytes);
        let now = self.counted().charged;
        let LiveBlock { h, found: f, was } = &mut self.live;
        let class = Class::of(tier_bits_of(*was));
        if *was & TAGGED != 0 {
            let Counted { charged, requested } = before;
            Blocks::of(ground).resize_tagged(h, f.id, (charged, requested), (now, bytes));
        }
        let tuned = ground.maps.shape.is_tuned(bytes, now);
        // From here on it is live again for others, too.
        f.desc.set_state(*was | if tuned { TUNED } else { 0 });
        h.counters.count_out(class, before.charged, before.requested);
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
