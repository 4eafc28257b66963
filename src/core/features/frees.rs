//! Frees that need the slow path, and why an address cannot be freed.

use super::super::account::Accounts;
use super::super::blocks::{Blocks, WaitingBlocks};
use super::super::desc::{DIRECT, Found, USES, kind};
use super::super::ground::Ground;
use super::super::heap::{Heap, LockedHeap};
use super::super::shape::Class;
use super::super::types::UNORDERED;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::pause;
use crate::fail;

/// A live block whose heap is locked: nobody else ends its life, if it has a flag; if it has none, the exchange on its
/// state decides.
pub(super) struct LiveBlock<'a> {
    pub h: LockedHeap<'a>,
    pub found: Found<'a>,
    /// Its state when the heap was locked.
    pub was: u32,
}

impl<'a> LiveBlock<'a> {
    /// Locks the heap of a block that was found at `offset`. `None`: another thread is just freeing the block, and has not
    /// decided yet whether it may; the caller pauses and finds the block again. Fails if the block is not live.
    pub(super) fn lock(
        ground: &'a Ground,
        found: Found<'a>,
        heap: &'static Heap,
        offset: u64,
    ) -> Result<Option<LiveBlock<'a>>> {
        let mut h = ground.lock(heap);
        Blocks::of(ground).drain(&mut h);
        let was = found.desc.state();
        let here =
            ground.maps.starts_at(found.id, offset) && ground.maps.granule_of(offset).heap() == heap.index;
        match was & kind::MASK {
            kind::LIVE if here => Ok(Some(LiveBlock { h, found, was })),
            kind::REMOTE if here => Ok(None),
            _ => {
                drop(h);
                not_live(ground, offset, ground.maps.find(offset))
            }
        }
    }
}

/// The error for a free of `offset`, where no live block starts; `found` is the block that was found there.
#[cold]
#[inline(never)]
pub(super) fn not_live<T>(ground: &Ground, offset: u64, found: Option<Found<'_>>) -> Result<T> {
    let freed = |f: Found<'_>| matches!(f.desc.kind(), kind::FREED | kind::REMOTE | kind::WAITING);
    if found.is_some_and(freed) {
        return Err(Error::new(Code::DoubleFree, "the block at this address was freed before"));
    }
    if let Some(f) = ground.maps.find_holding(offset)
        && f.desc.kind() == kind::LIVE
    {
        let within = offset - ground.maps.offset(f.id);
        fail!(Code::UnknownPointer, "the address lies inside a block, at offset {within}");
    }
    fail!(Code::UnknownPointer, "no live block starts at this address (it may have been freed before)")
}

/// A free with all that it was asked for.
#[derive(Clone, Copy)]
pub(crate) struct Free {
    pub offset: u64,
    /// The stream of the free; `None`: the block's own, or all if it has none.
    pub stream: Option<u64>,
    /// The size that must have been asked for.
    pub size: Option<u64>,
}

impl Free {
    /// Frees the block in every case that the hot path does not handle. `found` is the block that was found at the offset.
    #[inline(never)]
    pub(crate) fn run<'a>(self, ground: &'a Ground, mut found: Option<Found<'a>>) -> Result<()> {
        let Free { offset, stream, size } = self;
        let blocks = Blocks::of(ground);
        let mut round = 0;
        loop {
            let Some((f, heap)) = found.and_then(|f| Some((f, ground.heaps().get(f.heap)?))) else {
                return not_live(ground, offset, found);
            };
            let unordered = heap.stream() == UNORDERED;
            let other = stream.filter(|&s| s != heap.stream()).map(|s| ground.order.user(s)).transpose()?;
            // A block without a stream waits for all of the device's own; if nothing runs there now, for none.
            let other = other.filter(|s| s.elsewhere || !unordered);
            let idle = unordered && other.is_none() && ground.order.is_idle();
            let Some(LiveBlock { mut h, was, .. }) = LiveBlock::lock(ground, f, heap, offset)? else {
                pause(round);
                round = round.saturating_add(1);
                found = ground.maps.find(offset);
                continue;
            };
            let bytes = f.desc.requested();
            if let Some(size) = size
                && size != bytes
            {
                fail!(Code::WrongSize, "the block was asked for with size {bytes}, not {size}");
            }
            let used = match idle && heap.stream() == UNORDERED {
                true => was & DIRECT != 0 || h.uses.contains_key(&f.id) || h.exports.contains_key(&f.id),
                false => was & (USES | DIRECT) != 0,
            };
            if other.is_some() || used {
                let waits = WaitingBlocks::of(ground).make_room(&mut h, f.id)?;
                if h.end_life(f.desc, was, kind::WAITING) {
                    blocks.end_oversize(&h, was);
                    let freed = WaitingBlocks::of(ground).free(h, f.id, was, other, waits);
                    // What is the caller's again counts at once: other blocks may have taken its place meanwhile.
                    return freed.inspect_err(|_| Accounts::of(ground).settle(heap));
                }
            } else if h.end_life(f.desc, was, kind::FREED) {
                let charged = ground.maps.charge(f.id);
                blocks.untag(&h, f.id, was, false);
                blocks.end_oversize(&h, was);
                h.counters.count_out(Class::of(f.desc.tier_bits()), charged, bytes);
                if was & USES != 0 {
                    blocks.report_completed(heap, f.id); // before anybody can have it again
                }
                blocks.reuse(&mut h, f.id);
                return Ok(());
            }
            // Another thread was first.
            drop(h);
            found = ground.maps.find(offset);
        }
    }
}
