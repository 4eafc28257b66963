//! Freed blocks that wait: how they start waiting, and when they become reusable.
//!
//! A free that must wait puts its block on the list of its heap, and then makes a fence on each stream concerned, with
//! no lock held. The block is no longer allocated but still active. It becomes reusable when all its fences are passed;
//! every request that finds no memory checks for that, and every statistic does.

use super::super::desc::{DIRECT, Id, USES, kind};
use super::super::ground::Ground;
use super::super::heap::{Heap, LockedHeap, Ready, Waiting};
use super::super::order::{Fence, Stream, Waits};
use super::super::shape::Class;
use super::super::state::growth::transits::Parts;
use super::super::types::{PoolId, UNORDERED};
use super::super::units::Extent;
use super::released::ReleasedPools;
use super::{Blocks, gained};
use crate::base::boxed::try_push;
use crate::base::error::{Error, Result, no_host_memory};
use crate::base::sort;
use crate::base::sync::pause;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long fences are queried before the oldest block is waited for instead. A plugin may answer "not yet" because it does
/// not know, and such an answer never changes. Nor does that of the tests' device, where nothing ends by itself.
const LONGEST_ASKED: Duration = Duration::from_millis(if cfg!(test) { 5 } else { 1000 });

/// The outcome for freed blocks whose wait is over.
struct Returned {
    /// Whether any became reusable or went back.
    any: bool,
    /// Whether the device took back the caller's own block.
    own: Result<()>,
    /// Whether the device took back the others, and all could be listed.
    others: Result<()>,
}

/// The freed blocks of a pond that wait; see the head of this file. No lock may be held while a method is called.
#[derive(Clone, Copy)]
pub(crate) struct WaitingBlocks<'a> {
    ground: &'a Ground,
    blocks: Blocks<'a>,
}

impl<'a> WaitingBlocks<'a> {
    pub(crate) fn of(ground: &'a Ground) -> WaitingBlocks<'a> {
        WaitingBlocks { ground, blocks: Blocks::of(ground) }
    }

    fn released(self) -> ReleasedPools<'a> {
        ReleasedPools::of(self.ground)
    }

    /// Makes room for a live block of a locked heap to wait in, and for its fences. `OutOfMemory` if the host has no memory
    /// for that.
    pub(crate) fn make_room(self, h: &mut LockedHeap<'_>, id: Id) -> Result<Waits> {
        let mut waits = Waits::default();
        // Beside those of its uses: its own stream's, that of the free, and all streams together.
        let fences = h.uses.get(&id).map_or(0, Vec::len) + 3;
        let has_room = h.waiting.make_room() && waits.make_room(fences);
        match has_room && self.ground.waiting_heaps().make_room(&h.heap.index) {
            true => Ok(waits),
            false => Err(no_host_memory()),
        }
    }

    /// Continues the free of a block that other streams have used, or whose memory goes back to the device. `was` is
    /// the state that it had while live; `other` is the stream of the free, if it is not the block's own; `waits` has
    /// [`room`](Self::make_room). If the device refuses to take it back, the block is live again, and the caller settles
    /// its heap.
    pub(crate) fn free(
        self,
        mut h: LockedHeap<'_>,
        id: Id,
        was: u32,
        other: Option<Arc<Stream>>,
        mut waits: Waits,
    ) -> Result<()> {
        let (ground, heap) = (self.ground, h.heap);
        let d = ground.maps.desc(id);
        let (bytes, charged, direct) = (d.requested(), ground.maps.charge(id), was & DIRECT != 0);
        let uses = h.uses.remove(&id).unwrap_or_default();
        let exports = h.exports.remove(&id).unwrap_or_default();
        // Out of `allocated`, still in `active`.
        let class = Class::of(d.tier_bits());
        h.counters.count_out_to_wait(class, charged, bytes);
        self.blocks.untag(&h, id, was, true);
        let ticket = h.waiting.begin(id, exports, direct);
        let own = h.stream.clone();
        ground.waiting_heaps().insert(heap.index);
        drop(h);

        let unordered = heap.stream() == UNORDERED;
        // Device memory must not be released while work of the block's own stream may use it.
        if let Some(own) = own.filter(|_| direct && !unordered) {
            ground.order.add(&own, &mut waits);
        }
        let mut seen = None;
        if let Some(stream) = other {
            // A fence that is made now covers what the stream did before.
            ground.order.add_named(&stream, &mut waits);
            seen = Some(stream.serial);
        }
        for u in &uses {
            match &u.ended {
                _ if seen == Some(u.stream.serial) => {}
                Some(fence) if fence.ask() => {}
                Some(fence) => waits.push(fence.clone()),
                None => ground.order.add(&u.stream, &mut waits),
            }
        }
        // All of the device's own streams, one by one or together. Last: the others have the room that was made.
        if unordered {
            ground.order.add_all(&mut waits);
        }
        let over = waits.is_over();
        ground.lock(heap).waiting.known(ticket, waits);
        if !over {
            return Ok(());
        }
        let Err(e) = self.return_ready(heap, Some(ticket)).own else { return Ok(()) };
        // The device refused to take it: it is the caller's again.
        let mut h = ground.lock(heap);
        h.waiting.finish(ticket);
        h.counters.count_again(class, charged, bytes);
        if !uses.is_empty() {
            h.uses.insert(id, uses);
        }
        d.set_state(kind::LIVE | was & !kind::MASK | USES | DIRECT);
        self.blocks.oversize_again(&h, was);
        self.blocks.tag_again(&h, id, was);
        Err(Error::formatted(e.code(), format_args!("the device refused to take a block back: {e}")))
    }

    /// Makes a freed block reusable, whose wait is over. Returns how many bytes it is charged.
    fn make_reusable(self, h: &mut LockedHeap<'_>, w: &Waiting) -> u64 {
        let maps = &self.ground.maps;
        let (d, charged) = (maps.desc(w.id), maps.charge(w.id));
        let (class, requested) = (Class::of(d.tier_bits()), d.requested());
        self.blocks.report_completed(h.heap, w.id);
        h.counters.count_back(class, charged, requested);
        self.blocks.untag_waiting(h, w.id);
        self.blocks.reuse(h, w.id);
        charged
    }

    /// Gives a freed block that is a segment of its own back to the device or, if its pool must stay as it is, makes it
    /// ordinary free memory. On failure nothing has changed.
    fn release_direct(self, heap: &'static Heap, w: &Waiting) -> Result<()> {
        let ground = self.ground;
        ground.check_reentry()?;
        let d = ground.maps.desc(w.id);
        let (charged, requested) = (ground.maps.charge(w.id), d.requested());
        let part = Extent::new(d.off(), d.units());
        let (segment, transit) = {
            let mut g = ground.growing();
            if ground.pools().is_pinned(heap) {
                let mut h = ground.lock(heap);
                h.waiting.finish(w.ticket);
                self.make_reusable(&mut h, w);
                return Ok(());
            }
            let Some(segment) = g.segments.take(part.touched().first) else {
                return Err(g.segments.missing());
            };
            (segment, g.begin_transit(Parts::Of(heap.pool(), heap.pool())))
        };
        // Before its address can be another segment's.
        self.blocks.report_completed(heap, w.id);
        let done = ground.release_segment(&segment);
        let mut g = ground.growing();
        match &done {
            Ok(()) => {
                let mut h = ground.lock(heap);
                h.waiting.finish(w.ticket);
                self.blocks.untag_waiting(&h, w.id);
                let gone = h.take_direct(w.id);
                h.put_id(gone.id);
                h.counters.count_back(Class::Large, charged, requested);
                drop(h);
                g.account.release(heap.pool(), segment.bytes, 0);
                g.forget_segment(segment);
                gained(charged);
            }
            Err(_) => g.segments.keep(segment),
        }
        transit.end(&mut g);
        done
    }

    /// Makes freed blocks of a heap whose wait is over reusable. Waits for nothing. Returns whether there were any.
    pub(crate) fn poll(self, heap: &'static Heap) -> bool {
        let ground = self.ground;
        let (mut fronts, mut owing) = {
            let mut h = ground.look(heap);
            if h.waiting.is_empty() {
                ground.waiting_heaps().remove(&heap.index);
                return false;
            }
            (h.waiting.fronts(), h.waiting.owing().unwrap_or_default())
        };
        ground.order.settle_all(owing.iter_mut().map(|o| &mut o.1), false);
        if !owing.is_empty() {
            let mut h = ground.look(heap);
            for (ticket, waits) in owing {
                h.waiting.settled(ticket, waits);
            }
            fronts = h.waiting.fronts();
        }
        loop {
            fronts.retain(Fence::ask);
            if fronts.is_empty() {
                break;
            }
            // The next fences behind those that are passed.
            let mut passed = Vec::new();
            if passed.try_reserve_exact(fronts.len()).is_err() {
                break;
            }
            passed.extend(fronts.iter().map(Fence::stream_serial));
            fronts = ground.look(heap).waiting.fronts();
            fronts.retain(|f| passed.contains(&f.stream_serial()));
        }
        self.return_ready(heap, None).any
    }

    /// Makes those freed blocks of a heap reusable that are known to wait for nothing. A segment that the device
    /// refuses to take is offered again the next time, except the one with the ticket `own`: the caller deals with it.
    fn return_ready(self, heap: &'static Heap, own: Option<u64>) -> Returned {
        let ready = {
            let mut h = self.ground.look(heap);
            let ready = h.waiting.take_ready();
            if !ready.blocks.is_empty() {
                h.wake();
                self.ground.hints.note_brought_back();
            }
            gained(ready.blocks.iter().map(|w| self.make_reusable(&mut h, w)).sum());
            ready
        };
        let Ready { blocks, segments, more } = &ready;
        let mut back = Returned {
            any: !blocks.is_empty(),
            own: Ok(()),
            others: if *more { Err(no_host_memory()) } else { Ok(()) },
        };
        for w in segments {
            match self.release_direct(heap, w) {
                Err(e) if Some(w.ticket) == own => back.own = Err(e),
                Err(e) => {
                    self.ground.lock(heap).waiting.known(w.ticket, Waits::default());
                    back.others = Err(e);
                }
                Ok(()) => back.any = true,
            }
        }
        back
    }

    /// The heaps in which freed blocks wait, as many as the host has memory to list.
    fn heaps(self) -> Vec<&'static Heap> {
        let (all, mut heaps) = (self.ground.waiting_heaps(), Vec::new());
        for heap in all.iter().filter_map(|i| self.ground.heaps().get(i)) {
            try_push(&mut heaps, heap);
        }
        heaps
    }

    /// Polls every heap, and the pools whose captures were released. Returns whether anything became reusable.
    pub(crate) fn poll_all(self) -> bool {
        let mut any = self.released().poll();
        for heap in self.heaps() {
            any |= self.poll(heap);
        }
        any
    }

    /// Waits on the host until freed memory becomes reusable: the first block that is ready or, if no block can be
    /// waited for, the memory of a released capture. `false`: there is nothing to wait for, and no other thread has brought
    /// blocks back meanwhile.
    pub(crate) fn wait_for_any(self) -> bool {
        let before = self.ground.hints.brought_back();
        let any = self.poll_all() || self.wait_for_one(None) || self.released().wait_for_any();
        any || self.ground.hints.brought_back() != before
    }

    /// Waits on the host until a freed block of the device, or of a pool, becomes reusable, whichever is first.
    /// `false`: none waits for streams that can be waited for.
    pub(crate) fn wait_for_one(self, pool: Option<u32>) -> bool {
        let ground = self.ground;
        if ground.order.check_wait().is_err() {
            return false;
        }
        let wanted = |heap: &&'static Heap| pool.is_none_or(|p| heap.pool() == p);
        let until = Instant::now() + LONGEST_ASKED;
        loop {
            let (mut heaps, mut fences) = (self.heaps(), Vec::new());
            heaps.retain(wanted);
            for &heap in &heaps {
                let open = ground.look(heap).waiting.open_fences();
                open.into_iter().for_each(|f| _ = try_push(&mut fences, (heap, f)));
            }
            let several = fences.iter().any(|(_, f)| f.stream_serial() != fences[0].1.stream_serial());
            if !several {
                return self.wait_in_turn(heaps);
            }
            match ask_until_passed(&fences, until) {
                Some(heap) if self.poll(heap) => return true,
                Some(_) => {} // its block waits for other streams too
                None => return self.wait_in_turn(heaps),
            }
        }
    }

    /// Takes one waiting block of each heap: the first whose fences are all made, or else the first. Waits for one
    /// after the other, in the order of their frees, until a block becomes reusable.
    fn wait_in_turn(self, heaps: Vec<&'static Heap>) -> bool {
        let open = |heap: &'static Heap| {
            let first = self.ground.look(heap).waiting.first_open().ok()??;
            Some((first.serial(), heap, first))
        };
        let mut first = Vec::new();
        heaps.into_iter().filter_map(open).for_each(|f| _ = try_push(&mut first, f));
        sort::by_key(&mut first, |f| f.0);
        for (_, heap, mut waits) in first {
            if self.ground.order.sync_waits(&mut waits).is_ok() && self.poll(heap) {
                return true;
            }
        }
        false
    }

    /// For each heap of a pool, waits for one of the blocks that still wait, and gives segments that wait for nothing
    /// back to the device. Fails with the reason if either is impossible. The caller has found that no block becomes
    /// reusable by itself.
    pub(crate) fn bring_back(self, pool: PoolId) -> Result<()> {
        for heap in self.ground.heaps_of(pool.0) {
            let open = self.ground.look(heap).waiting.first_open()?;
            if let Some(mut waits) = open {
                self.ground.order.sync_waits(&mut waits)?;
            }
            self.return_ready(heap, None).others?;
        }
        Ok(())
    }

    /// Whether freed blocks of a pool still wait, for streams or because others use them.
    pub(crate) fn has_any(self, pool: u32) -> bool {
        self.ground.heaps_of(pool).into_iter().any(|x| !self.ground.look(x).waiting.is_empty())
    }

    /// Forgets everything that is waited for: the device ends, and nobody will free the blocks that are still live.
    pub(crate) fn forget_all(self) {
        for heap in self.ground.heaps().all() {
            let mut h = self.ground.lock(heap);
            let (uses, exports) = (std::mem::take(&mut h.uses), std::mem::take(&mut h.exports));
            let waiting = std::mem::take(&mut h.waiting);
            h.stream = None;
            drop(h);
            drop((uses, exports, waiting));
        }
        for pool in self.ground.pools().all() {
            pool.forget_released();
        }
    }
}

/// Queries several fences, each with the heap that waits for it, until one is passed. `None`: one cannot be queried, or
/// none is passed by then.
fn ask_until_passed(fences: &[(&'static Heap, Fence)], until: Instant) -> Option<&'static Heap> {
    let mut round = 0;
    // Looked at before the fences: the caller comes again whatever they say, and must come to an end.
    while Instant::now() < until {
        for (heap, fence) in fences {
            if fence.try_ask()? {
                return Some(heap);
            }
        }
        pause(round);
        round += 1;
    }
    None
}
