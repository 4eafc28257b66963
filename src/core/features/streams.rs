//! Uses of live blocks on streams other than their own, and the end of streams. No lock is held while a fence is made or
//! dropped.

use super::super::desc::{DIRECT, Id, USES};
use super::super::ground::Ground;
use super::super::heap::{LockedHeap, Use};
use super::super::order::Ending;
use super::super::types::{RETIRED, UNORDERED};
use crate::base::error::{Code, Result, no_host_memory};
use crate::fail;
use std::sync::Arc;

fn freed_meanwhile<T>() -> Result<T> {
    fail!(Code::UnknownPointer, "the block was freed meanwhile")
}

/// Makes room for one more use of a block, which then has a list of them, maybe an empty one.
fn make_room(h: &mut LockedHeap<'_>, id: Id) -> Result<()> {
    let has_room = match h.uses.get_mut(&id) {
        Some(uses) => uses.try_reserve(1).is_ok(),
        None => {
            let mut uses = Vec::new();
            let has_room = uses.try_reserve_exact(1).is_ok() && h.uses.try_reserve(1).is_ok();
            if has_room {
                h.uses.insert(id, uses);
            }
            has_room
        }
    };
    if has_room { Ok(()) } else { Err(no_host_memory()) }
}

/// The use of blocks by streams; see the head of this file.
#[derive(Clone, Copy)]
pub(crate) struct Uses<'a> {
    ground: &'a Ground,
}

impl<'a> Uses<'a> {
    pub(crate) fn of(ground: &'a Ground) -> Uses<'a> {
        Uses { ground }
    }

    /// Records that work on `stream` also uses the live block at `offset`: its free will wait for what is queued there
    /// by then. A block without a stream waits for all streams of its device anyway.
    pub(crate) fn record(self, offset: u64, stream: u64) -> Result<()> {
        let ground = self.ground;
        let stream = ground.order.user(stream)?;
        let (f, heap) = ground.live_block(offset)?;
        let own = heap.stream();
        if !stream.elsewhere && (stream.id == own || own == UNORDERED) {
            let h = ground.lock(heap);
            return if h.still_live(f.id, offset) { Ok(()) } else { freed_meanwhile() };
        }
        let mut h = ground.lock(heap);
        if !h.still_live(f.id, offset) || !f.desc.flag_uses() {
            return freed_meanwhile();
        }
        make_room(&mut h, f.id)?;
        let reported = ground.order.now();
        let uses = h.uses.entry(f.id).or_default();
        let replaced = match uses.iter_mut().find(|u| u.stream.serial == stream.serial) {
            Some(u) => {
                u.said = reported;
                u.ended.take() // it continues: the fence made at the free is later than this one
            }
            None => {
                uses.push(Use { stream, ended: None, said: reported });
                None
            }
        };
        drop(h);
        drop(replaced);
        Ok(())
    }

    /// Ends the use of the live block at `offset` by `stream`: after the free, its reuse waits for what is queued there
    /// *now* or, given an event, for that. Later work there needs a new `record`.
    pub(crate) fn end(self, offset: u64, stream: u64, event: Option<u64>) -> Result<()> {
        let ground = self.ground;
        let since = ground.order.now();
        let used = ground.order.user(stream)?;
        let (f, heap) = ground.live_block(offset)?;
        let own = heap.stream();
        // The arguments must be right even if there is nothing to wait for.
        let borrowed = event.map(|e| ground.order.borrow(e)).transpose()?;
        if !used.elsewhere && (stream == own || used.id == own || own == UNORDERED) {
            return Ok(());
        }
        let fence = match borrowed {
            // For a stream that differs on each thread the end is now: the default stream, which stands for it, has
            // other uses.
            Some(fence) if used.elsewhere || used.id == stream && !ground.order.is_captured(stream) => fence,
            _ => match ground.order.fence_of_named(&used) {
                Ok(fence) => fence,
                // No fence can be made now: the use continues until the free.
                Err(_) => return self.record(offset, stream),
            },
        };
        let fence = fence.filter(|f| !f.ask());
        let mut h = ground.lock(heap);
        if !h.still_live(f.id, offset) || !f.desc.flag_uses() {
            return freed_meanwhile();
        }
        if fence.is_some() {
            make_room(&mut h, f.id)?;
        }
        let mut none = Vec::new();
        let uses = h.uses.get_mut(&f.id).unwrap_or(&mut none);
        // This point is later in the same stream, so it covers the earlier one.
        let at = uses.iter().position(|u| u.stream.serial == used.serial);
        if at.is_some_and(|i| uses[i].said > since) {
            drop(h);
            drop(fence);
            return Ok(()); // another thread has recorded something later: this end counts as earlier
        }
        let replaced = at.map(|i| uses.swap_remove(i));
        if let Some(fence) = fence {
            uses.push(Use { stream: used, ended: Some(fence), said: ground.order.now() });
        } else if uses.is_empty() {
            h.uses.remove(&f.id);
            // The free of a block without a stream must check in any case: every stream of its device may use it.
            if own != UNORDERED && f.desc.state() & DIRECT == 0 && !h.exports.contains_key(&f.id) {
                // As if it had never been used elsewhere: its free can take the fast path again.
                f.desc.set_state(f.desc.state() & !USES);
            }
        }
        drop(h);
        drop(replaced);
        Ok(())
    }

    /// The stream has ended. Its live blocks stay valid; the free memory of its heaps goes to the next new stream, or
    /// to a heap that runs short.
    pub(crate) fn stream_ended(self, ending: Ending) {
        let ground = self.ground;
        let stream = ending.stream.clone();
        for pool in ground.pools().all() {
            let mut streams = pool.streams();
            let Some(&index) = streams.heaps.get(&stream.id) else { continue };
            let Some(heap) = ground.heaps().get(index) else { continue };
            let mut h = ground.lock(heap);
            if !h.stream.as_ref().is_some_and(|s| Arc::ptr_eq(s, &stream)) {
                continue; // it serves another stream with that id
            }
            h.go_by(RETIRED);
            drop(h);
            streams.heaps.remove(&stream.id);
            streams.orphans.push(index);
        }
        // Last: afterwards a new stream may get the id.
        ground.order.ended(ending);
    }
}
