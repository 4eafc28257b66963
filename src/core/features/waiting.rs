//! Freed blocks that wait: how they start waiting, and when they become reusable.
//!
//! A free that must wait puts its block on the list of its heap, and then makes a fence on each stream concerned, with
//! no lock held. The block is no longer allocated but still active. It becomes reusable when all its fences are passed;
//! every request that runs short checks for that, and every statistic does.

use super::super::desc::{DIRECT, Id, OVERSIZE, USES, kind};
use super::super::ground::Ground;
use super::super::heap::{Heap, LockedHeap, Ready, Use, Waiting};
use super::super::order::{Fence, Stream, Waits};
use super::super::shape::Class;
use super::super::state::growth::Parts;
use super::super::supply::gained;
use super::super::types::{PoolId, UNORDERED};
use super::super::units::Extent;
use crate::base::error::{Code, Error, Result};
use crate::base::sort;
use crate::base::sync::pause;
use std::sync::Arc;

/// The number of rounds of queries, at least 50 us each, after which the oldest block is waited for: a plugin's answer
/// "not yet" may also mean that it cannot tell, and then it never changes.
const MOST_ASKED: u32 = 20_000;

/// The outcome for freed blocks whose wait is over.
struct Returned {
    /// Whether there were any.
    any: bool,
    /// Whether the device took back the caller's own block.
    own: Result<()>,
    /// Whether the device took back the others.
    others: Result<()>,
}

impl Ground {
    /// Continues the free of a block that other streams have used, or whose memory goes back to the device. `was` is
    /// the state that it had while live.
    pub(crate) fn free_after(
        &self,
        mut h: LockedHeap<'_>,
        id: Id,
        was: u32,
        other: Option<Arc<Stream>>,
    ) -> Result<()> {
        let heap = h.heap;
        let d = self.maps.desc(id);
        let (bytes, charged, direct) = (d.requested(), self.charge(id), was & DIRECT != 0);
        let uses = h.uses.remove(&id).unwrap_or_default();
        let exports = h.exports.remove(&id).unwrap_or_default();
        // Out of `allocated`, still in `active`.
        let class = Class::of(d.tier_bits());
        h.counters.count_out_to_wait(class, charged, bytes);
        self.untag(id, was, true);
        let ticket = h.waiting.begin(id, exports, direct);
        let own = h.stream.clone();
        self.waiting.lock().insert(heap.index);
        drop(h);

        let mut waits = Waits::default();
        // All of the device's own streams, one by one or together.
        let unordered = heap.stream() == UNORDERED;
        if unordered {
            self.order.add_all(&mut waits);
        }
        // Device memory must not be released while work of the block's own stream may use it.
        if let Some(own) = own.filter(|_| direct && !unordered) {
            self.order.add(&own, &mut waits);
        }
        let mut seen = None;
        if let Some(stream) = other {
            // A fence that is made now covers what the stream did before.
            self.order.add(&stream, &mut waits);
            seen = Some(stream.serial);
        }
        for u in &uses {
            match &u.ended {
                _ if seen == Some(u.stream.serial) => {}
                Some(fence) if fence.ask() => {}
                Some(fence) => waits.push(fence.clone()),
                None => self.order.add(&u.stream, &mut waits),
            }
        }
        let over = waits.is_over();
        self.lock(heap).waiting.known(ticket, waits);
        if !over {
            return Ok(());
        }
        let Err(e) = self.take_ripe(heap, Some(ticket)).own else { return Ok(()) };
        // The device refused to take it: it is the caller's again.
        let mut h = self.lock(heap);
        h.waiting.finish(ticket);
        h.counters.count_back(class, charged);
        h.counters.count_in(class, charged, bytes);
        if !uses.is_empty() {
            h.uses.insert(id, uses);
        }
        d.set_state(kind::LIVE | was & !kind::MASK | USES | DIRECT);
        if was & OVERSIZE != 0 {
            self.maps.reserved.oversize_begins(heap.pool());
        }
        self.retag(id, was);
        Err(Error::new(e.code(), format!("the device refused to take a block back: {e}")))
    }

    /// A block that waits for nothing any more becomes reusable. How many bytes that are.
    fn ripen(&self, h: &mut LockedHeap<'_>, w: &Waiting) -> u64 {
        let (class, charged) = (Class::of(self.maps.desc(w.id).tier_bits()), self.charge(w.id));
        self.backing.free_completed(self.completed(h.heap, w.id)); // before anybody can have it again
        h.counters.count_back(class, charged);
        self.untag_waiting(w.id);
        self.reuse(h, w.id);
        charged
    }

    /// Gives a freed block that is a segment of its own back to the device or, if its pool must stay as it is, makes it
    /// ordinary free memory. On failure nothing has changed.
    fn release_direct(&self, heap: &'static Heap, w: &Waiting) -> Result<()> {
        self.check_reentry()?;
        let d = self.maps.desc(w.id);
        let (charged, part) = (self.charge(w.id), Extent::new(d.off(), d.units()));
        let (segment, transit) = {
            let mut g = self.growing();
            if self.is_pinned(heap) {
                let mut h = self.lock(heap);
                h.waiting.finish(w.ticket);
                self.ripen(&mut h, w);
                return Ok(());
            }
            let Some(segment) = g.take_segment(part.touched().first) else {
                return Err(Error::new(Code::Internal, "a segment is missing"));
            };
            (segment, g.begin_transit(Parts::Of(heap.pool(), heap.pool())))
        };
        // Before its address can be another segment's.
        self.backing.free_completed(self.completed(heap, w.id));
        let done = self.release_segment(&segment);
        let mut g = self.growing();
        match &done {
            Ok(()) => {
                let mut h = self.lock(heap);
                h.waiting.finish(w.ticket);
                self.untag_waiting(w.id);
                let gone = h.take_direct(w.id);
                h.put_id(gone.id);
                h.counters.count_back(Class::Large, charged);
                drop(h);
                self.forget_segment(&mut g, segment, heap.pool());
                gained(charged);
            }
            Err(_) => g.keep_segment(segment),
        }
        transit.end(&mut g);
        done
    }

    /// Makes freed blocks of a heap whose wait is over reusable. Waits for nothing. Returns whether there were any.
    pub(crate) fn poll(&self, heap: &'static Heap) -> bool {
        let (mut fronts, mut owing) = {
            let mut h = self.look(heap);
            if h.waiting.is_empty() {
                self.waiting.lock().remove(&heap.index);
                return false;
            }
            (h.waiting.fronts(), h.waiting.owing())
        };
        self.order.settle_all(owing.iter_mut().map(|o| &mut o.1));
        if !owing.is_empty() {
            let mut h = self.look(heap);
            for (ticket, waits) in owing {
                h.waiting.known(ticket, waits);
            }
            fronts = h.waiting.fronts();
        }
        loop {
            fronts.retain(Fence::ask);
            if fronts.is_empty() {
                break;
            }
            // The next fences behind those that are passed.
            let passed: Vec<u64> = fronts.iter().map(Fence::stream_serial).collect();
            fronts = self.look(heap).waiting.fronts();
            fronts.retain(|f| passed.contains(&f.stream_serial()));
        }
        self.take_ripe(heap, None).any
    }

    /// Makes the freed blocks of a heap reusable that are known to wait for nothing. A segment that the device refuses
    /// is offered again the next time; a refusal of `own` is left to the caller.
    fn take_ripe(&self, heap: &'static Heap, own: Option<u64>) -> Returned {
        let Ready { blocks, segments } = {
            let mut h = self.look(heap);
            let ready = h.waiting.take_ready();
            if !ready.blocks.is_empty() {
                h.wake();
            }
            gained(ready.blocks.iter().map(|w| self.ripen(&mut h, w)).sum());
            ready
        };
        let mut back =
            Returned { any: !blocks.is_empty() || !segments.is_empty(), own: Ok(()), others: Ok(()) };
        for w in &segments {
            match self.release_direct(heap, w) {
                Err(e) if Some(w.ticket) == own => back.own = Err(e),
                Err(e) => {
                    self.lock(heap).waiting.known(w.ticket, Waits::default());
                    back.others = Err(e);
                }
                Ok(()) => {}
            }
        }
        back
    }

    /// The heaps in which freed blocks wait.
    fn waiting_heaps(&self) -> Vec<&'static Heap> {
        let all = self.waiting.lock();
        all.iter().filter_map(|&i| self.heap(i)).collect()
    }

    /// `poll` for every heap, and for the pools whose captures were released. Returns whether anything became reusable.
    pub(crate) fn poll_all(&self) -> bool {
        let mut any = self.poll_released();
        for heap in self.waiting_heaps() {
            any |= self.poll(heap);
        }
        any
    }

    /// Waits on the host until a freed block of the device, or of a pool, becomes reusable, whichever is first.
    /// `false`: none waits for streams that can be waited for.
    pub(crate) fn wait_for_one(&self, pool: Option<u32>) -> bool {
        if self.order.check_wait().is_err() {
            return false;
        }
        let wanted = |heap: &&'static Heap| pool.is_none_or(|p| heap.pool() == p);
        let mut round = 0;
        loop {
            let heaps: Vec<_> = self.waiting_heaps().into_iter().filter(wanted).collect();
            let fences: Vec<_> = heaps
                .iter()
                .flat_map(|&x| self.look(x).waiting.open_fences().into_iter().map(move |f| (x, f)))
                .collect();
            let several = fences.iter().any(|(_, f)| f.stream_serial() != fences[0].1.stream_serial());
            if !several {
                return self.wait_in_turn(heaps);
            }
            match self.ask_until_passed(&fences, &mut round) {
                Some(heap) if self.poll(heap) => return true,
                Some(_) => {} // its block waits for other streams too
                None => return self.wait_in_turn(heaps),
            }
        }
    }

    /// Queries several fences, each with the heap that waits for it, until one is passed. `None`: one cannot be
    /// queried, or none is passed within a second or more.
    fn ask_until_passed(&self, fences: &[(&'static Heap, Fence)], round: &mut u32) -> Option<&'static Heap> {
        while *round < MOST_ASKED {
            for (heap, fence) in fences {
                if fence.try_ask()? {
                    return Some(heap);
                }
            }
            pause(*round);
            *round += 1;
        }
        None
    }

    /// Waits for one block after the other, in the order of their frees, until one becomes reusable.
    fn wait_in_turn(&self, heaps: Vec<&'static Heap>) -> bool {
        let open = |heap: &'static Heap| {
            let first = self.look(heap).waiting.first_open()?;
            Some((first.serial(), heap, first))
        };
        let mut first: Vec<_> = heaps.into_iter().filter_map(open).collect();
        sort::by_key(&mut first, |f| f.0);
        for (_, heap, mut waits) in first {
            if self.order.sync_waits(&mut waits).is_ok() && self.poll(heap) {
                return true;
            }
        }
        false
    }

    /// If no block of a pool becomes reusable by itself: waits for each of its freed blocks, and gives back segments
    /// that wait for nothing. Fails with the reason if that is impossible.
    pub(crate) fn bring_back(&self, pool: PoolId) -> Result<()> {
        for heap in self.heaps_of(pool.0) {
            let open = self.look(heap).waiting.first_open();
            if let Some(mut waits) = open {
                self.order.sync_waits(&mut waits)?;
            }
            self.take_ripe(heap, None).others?;
        }
        Ok(())
    }

    /// Whether freed blocks of a pool still wait, for streams or because others use them.
    pub(crate) fn has_waiting(&self, pool: u32) -> bool {
        self.heaps_of(pool).into_iter().any(|x| !self.look(x).waiting.is_empty())
    }

    /// The device ends: nobody will free the blocks that are still live.
    pub(crate) fn forget_uses(&self) {
        for heap in self.all_heaps() {
            let mut h = self.lock(heap);
            let (uses, exports) = (std::mem::take(&mut h.uses), std::mem::take(&mut h.exports));
            let waiting = std::mem::take(&mut h.waiting);
            h.stream = None;
            drop(h);
            let uses: Vec<Use> = uses.into_values().flatten().collect();
            drop((uses, exports, waiting));
        }
        for pool in self.all_pools() {
            pool.forget_released();
        }
    }
}
