//! Blocks that more than one stream has used: what they wait for after the free, and when they come back.
//!
//! A free that must wait makes a mark on each stream concerned, with no lock held. The block is then
//! *pending*: no longer allocated, still active. It comes back when all its marks are passed.

use super::desc::{DIRECT, Id, USES, kind};
use super::heap::{Heap, Inner, Mark, Pending, Use};
use super::pond::Pond;
use super::pools::UNORDERED;
use super::shape::GRANULE_SHIFT;
use super::supply::Growth;
use crate::base::biased::Guard;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::{Ordering, Ordering::Relaxed};
use crate::fail;

/// Whether the device cannot be waited for now, but may be later.
fn not_now(e: &Error) -> bool {
    matches!(e.code(), Code::Busy | Code::NotPermitted)
}

impl Pond {
    /// The live block at `offset` and its heap.
    pub(crate) fn used_block(&self, offset: u64) -> Result<(Id, &'static Heap)> {
        let found = self.maps.find(offset).filter(|f| self.maps.desc(f.id).kind() == kind::LIVE);
        let Some((f, heap)) = found.and_then(|f| Some((f, self.heaps.get(f.heap as usize)?))) else {
            fail!(Code::UnknownPointer, "no live block starts at this address");
        };
        Ok((f.id, heap))
    }

    /// Whether the block that was found before is still live. The heap is locked.
    pub(crate) fn still_live(&self, id: Id, offset: u64) -> bool {
        self.maps.desc(id).kind() == kind::LIVE && self.offset(id) == offset
    }

    /// A stream that is each thread's own waits for the default one, and is waited for by it: that one is marked
    /// instead, as another thread may free the block.
    fn ordered(&self, stream: u64) -> u64 {
        if self.backing.ordered_by(stream) { stream } else { 0 }
    }

    /// The live block at `offset` is also used by work on `stream`: its free will wait for what is queued
    /// there then. A block without a stream waits for all of them anyway.
    pub fn record_stream(&self, offset: u64, stream: u64) -> Result<()> {
        self.known(stream)?;
        let (id, heap) = self.used_block(offset)?;
        let own = heap.stream.load(Relaxed);
        let mut h = heap.inner.lock();
        if !self.still_live(id, offset) {
            fail!(Code::UnknownPointer, "the block was freed meanwhile");
        }
        let stream = self.ordered(stream);
        if stream == own || own == UNORDERED {
            return Ok(());
        }
        if !self.maps.desc(id).flag_uses() {
            fail!(Code::UnknownPointer, "the block was freed meanwhile");
        }
        let uses = h.uses.entry(id).or_default();
        let old = match uses.iter_mut().find(|u| u.stream == stream) {
            Some(u) => u.ended.take(), // it goes on: the mark at the free comes later than this one
            None => {
                uses.push(Use { stream, ended: None });
                None
            }
        };
        drop(h);
        if let Some(m) = old {
            self.backing.forget(m);
        }
        Ok(())
    }

    /// What `stream` has done with the live block at `offset` so far ends here: after the free, its reuse waits
    /// for what is queued there *now*; or, given an event, for that. Later work there needs a new
    /// `record_stream`.
    pub fn end_use(&self, offset: u64, stream: u64, event: Option<u64>) -> Result<()> {
        self.known(stream)?;
        let (id, heap) = self.used_block(offset)?;
        let own = heap.stream.load(Relaxed);
        if stream == own || own == UNORDERED {
            return match event {
                // Nothing to wait for, but the arguments must be right.
                Some(e) => self.backing.borrow_event(e).map(|m| self.backing.forget(m)),
                None => Ok(()),
            };
        }
        let borrowed = event.map(|e| self.backing.borrow_event(e)).transpose()?;
        let as_given = self.ordered(stream) == stream;
        let stream = self.ordered(stream);
        let mark = match borrowed {
            Some(m) if as_given && !self.captured(stream) => Some(m),
            other => {
                // Of a stream that is each thread's own, the end is now: the default stream has uses of its own.
                other.into_iter().for_each(|m| self.backing.forget(m));
                if stream == own {
                    return Ok(());
                }
                self.point(stream)?
            }
        };
        let Some(mark) = mark else {
            return self.record_stream(offset, stream); // captured: the use ends with the capture
        };
        let over = self.backing.passed(mark).unwrap_or(false);
        let mut h = heap.inner.lock();
        let d = self.maps.desc(id);
        if !self.still_live(id, offset) || !d.flag_uses() {
            drop(h);
            self.backing.forget(mark);
            fail!(Code::UnknownPointer, "the block was freed meanwhile");
        }
        let uses = h.uses.entry(id).or_default();
        // A later point in the same stream: the earlier one is passed before.
        let at = uses.iter().position(|u| u.stream == stream);
        let old = at.and_then(|i| uses.swap_remove(i).ended);
        if !over {
            uses.push(Use { stream, ended: Some(mark) });
        } else if uses.is_empty() {
            h.uses.remove(&id);
            if d.state() & DIRECT == 0 && !h.lent.contains_key(&id) {
                // As if it had never been used elsewhere: its free need not look.
                d.set_state(d.state() & !USES);
            }
        }
        drop(h);
        for m in old.into_iter().chain(over.then_some(mark)) {
            self.backing.forget(m);
        }
        Ok(())
    }

    /// Frees a live block that other streams have used. The heap is locked.
    pub(crate) fn free_after(
        &self,
        heap: &Heap,
        mut h: Guard<'_, Inner>,
        id: Id,
        other: Option<u64>,
    ) -> Result<()> {
        let d = self.maps.desc(id);
        let was = d.state();
        let bytes = d.requested();
        let mut uses = h.uses.remove(&id).unwrap_or_default();
        let mut lent = h.lent.remove(&id).unwrap_or_default();
        if let Some(stream) = other {
            match uses.iter_mut().find(|u| u.stream == stream) {
                // From here on the stream is marked anew, at a later point.
                Some(u) => {
                    if let Some(m) = u.ended.take() {
                        self.backing.forget(m);
                    }
                }
                None => uses.push(Use { stream, ended: None }),
            }
        }
        if was & DIRECT != 0 {
            d.set_kind(kind::PENDING);
            drop(h);
            self.drop_passed(&mut lent);
            let done = if lent.is_empty() {
                self.free_direct(heap, id)
            } else {
                self.hold_direct(heap, id, lent); // before it goes, the device is waited for
                Ok(())
            };
            match &done {
                // The whole device was waited for, or will be.
                Ok(()) => uses.into_iter().filter_map(|u| u.ended).for_each(|m| self.backing.forget(m)),
                Err(_) => _ = heap.inner.lock().uses.insert(id, uses),
            }
            return done;
        }
        // Out of `allocated`, still in `active`: the ceiling goes down with the block, and comes back up
        // with it in `ripen`.
        let contract = self.charge(id) as i64;
        h.ceiling[0] -= contract;
        h.bound[1].add(bytes as i64);
        h.bound[2].add(1);
        h.pending_bytes += contract;
        d.set_kind(kind::PENDING);
        drop(h);

        self.drop_passed(&mut lent);
        let mut p = Pending { id, marks: Vec::new(), later: Vec::new(), lent };
        if heap.stream.load(Relaxed) == UNORDERED {
            self.backing.streams(&mut |s| self.note(s, &mut p));
        } else {
            for u in uses {
                match u.ended {
                    Some(m) => self.keep_unless_passed(m, &mut p.marks),
                    None => self.note(u.stream, &mut p),
                }
            }
        }
        let mut h = heap.inner.lock();
        if p.marks.is_empty() && p.later.is_empty() {
            self.end_wait(&mut h, p);
        } else {
            h.pending.push_back(p);
        }
        Ok(())
    }

    /// The block waits for what is queued on `stream` now, or, if that is captured, when it is not any more.
    fn note(&self, stream: u64, p: &mut Pending) {
        match self.point(stream) {
            Ok(Some(m)) => self.keep_unless_passed(m, &mut p.marks),
            Ok(None) => p.later.push(stream),
            Err(e) if e.code() == Code::UnknownStream => {} // it has ended
            // A stream that cannot be marked is broken: the block waits for everything that can still run.
            Err(_) => {
                if self.sync_device().is_err_and(|e| not_now(&e)) {
                    p.later.push(stream);
                }
            }
        }
    }

    fn keep_unless_passed(&self, m: Mark, marks: &mut Vec<Mark>) {
        match self.backing.passed(m) {
            Ok(true) => self.backing.forget(m),
            _ => marks.push(m),
        }
    }

    /// A pending block whose marks are passed becomes reusable. The heap is locked.
    pub(crate) fn ripen(&self, h: &mut Inner, id: Id) {
        let contract = self.charge(id) as i64;
        h.pending_bytes -= contract;
        h.ceiling[0] += contract;
        h.bound[0].add(contract);
        self.reuse(h, id);
    }

    /// Brings back held blocks of a heap, and pending ones, oldest first, up to the first that still waits; with
    /// `wait`, waits on the host for each pending one. `true` when any came back.
    pub(crate) fn poll(&self, heap: &Heap, wait: bool) -> bool {
        let mut any = self.poll_held(heap);
        loop {
            let Some(mut p) = heap.inner.lock().pending.pop_front() else { return any };
            self.note_later(&mut p);
            while let Some(&m) = p.marks.last() {
                // A device that fell off runs nothing any more; one that cannot be asked here may.
                let gone = |e: Error| !not_now(&e);
                let mut over = self.backing.passed(m).unwrap_or_else(gone);
                if !over && wait {
                    over = self.backing.sync(m).map_or_else(gone, |()| true);
                }
                if !over {
                    break;
                }
                self.backing.forget(m);
                p.marks.pop();
            }
            let mut h = heap.inner.lock();
            if !p.marks.is_empty() || !p.later.is_empty() {
                h.pending.push_front(p);
                return any;
            }
            any |= p.lent.is_empty();
            self.end_wait(&mut h, p);
        }
    }

    /// No stream keeps the block any more. The heap is locked.
    fn end_wait(&self, h: &mut Inner, p: Pending) {
        if p.lent.is_empty() { self.ripen(h, p.id) } else { self.hold(h, p.id, p.lent, false) }
    }

    /// `poll` for every heap.
    pub(crate) fn poll_all(&self, wait: bool) -> bool {
        let mut any = false;
        for i in 0..self.heap_count.load(Ordering::Acquire) as usize {
            if let Some(heap) = self.heaps.get(i)
                && heap.inner.lock().has_pending()
            {
                any |= self.poll(heap, wait);
            }
        }
        any
    }

    /// Marks streams that were captured when the block was freed, if they are not any more.
    fn note_later(&self, p: &mut Pending) {
        for stream in std::mem::take(&mut p.later) {
            self.note(stream, p);
        }
    }

    /// `note_later` for every pending block.
    pub(crate) fn mark_later(&self) {
        for i in 0..self.heap_count.load(Ordering::Acquire) as usize {
            let Some(heap) = self.heaps.get(i) else { continue };
            let count = heap.inner.lock().pending.iter().rposition(|p| !p.later.is_empty());
            // The queue goes round once, so that its order stays.
            let all = if count.is_some() { heap.inner.lock().pending.len() } else { 0 };
            for _ in 0..all {
                let Some(mut p) = heap.inner.lock().pending.pop_front() else { break };
                self.note_later(&mut p);
                heap.inner.lock().pending.push_back(p);
            }
        }
    }

    /// The device ends: nobody will free the blocks that are still live.
    pub(crate) fn forget_uses(&self) {
        for i in 0..self.heap_count.load(Ordering::Acquire) as usize {
            let Some(heap) = self.heaps.get(i) else { continue };
            let uses = std::mem::take(&mut heap.inner.lock().uses);
            uses.into_values().flatten().filter_map(|u| u.ended).for_each(|m| self.backing.forget(m));
        }
        self.forget_loans();
    }

    /// A freed block that is a segment of its own goes back to the device. Device memory must not go while work
    /// may use it, so this waits for the device, as the driver's own free does; where that cannot be now (a
    /// stream is captured, or this is a stream's callback), the memory goes later. When the device refuses, the
    /// block stays the caller's.
    fn free_direct(&self, heap: &Heap, id: Id) -> Result<()> {
        let (contract, bytes) = (self.charge(id), self.maps.desc(id).requested());
        let done = match self.sync_alone() {
            Err(e) if not_now(&e) => {
                heap.inner.lock().count_out(contract, bytes);
                self.free_direct_after(heap, id, contract);
                return Ok(());
            }
            Err(e) => Err(e),
            Ok(()) => {
                let mut g = super::pond::lock(&self.growth);
                self.backing.segment_release(self.offset(id), contract).map(|()| {
                    heap.inner.lock().count_out(contract, bytes);
                    self.drop_direct(&mut g, heap, id, contract);
                })
            }
        };
        done.map_err(|e| {
            let _h = heap.inner.lock();
            let d = self.maps.desc(id);
            d.set_kind(kind::LIVE);
            d.set_state(d.state() | USES | DIRECT);
            Error::new(e.code(), format!("the device refused to take a block back: {e}"))
        })
    }

    /// A block whose segment the device has taken back leaves the books. The growth lock is held.
    pub(crate) fn drop_direct(&self, g: &mut Growth, heap: &Heap, id: Id, contract: u64) {
        let first = (self.offset(id) >> GRANULE_SHIFT) as u32;
        heap.inner.lock().drop_direct(&self.maps, id, first);
        g.segment_gone(heap.pool.load(Relaxed), first, contract);
    }
}
