//! Blocks that more than one stream has used: what they wait for after the free, and when they come back.
//!
//! A free that must wait makes a mark on each stream concerned, with no lock held. The block is then
//! *pending*: no longer allocated, still active. It comes back when all its marks are passed.

use super::desc::{DIRECT, Id, kind};
use super::heap::{Heap, Inner, Mark, Pending};
use super::pond::Pond;
use super::pools::UNORDERED;
use super::shape::GRANULE_SHIFT;
use crate::base::biased::Guard;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::{Ordering, Ordering::Relaxed};
use crate::fail;

impl Pond {
    /// The live block at `offset` is also used by work on `stream`: its free will wait for what is queued
    /// there then. A block without a stream waits for all of them anyway.
    pub fn record_stream(&self, offset: u64, stream: u64) -> Result<()> {
        self.known(stream)?;
        let found = self.maps.find(offset).filter(|f| self.maps.desc(f.id).kind() == kind::LIVE);
        let Some((f, heap)) = found.and_then(|f| Some((f, self.heaps.get(f.heap as usize)?))) else {
            fail!(Code::UnknownPointer, "no live block starts at this address");
        };
        let mut h = heap.inner.lock();
        let d = self.maps.desc(f.id);
        if d.kind() != kind::LIVE || self.offset(f.id) != offset {
            fail!(Code::UnknownPointer, "the block was freed meanwhile");
        }
        let own = heap.stream.load(Relaxed);
        if stream == own || own == UNORDERED {
            return Ok(());
        }
        if !d.flag_uses() {
            fail!(Code::UnknownPointer, "the block was freed meanwhile");
        }
        let uses = h.uses.entry(f.id).or_default();
        if !uses.contains(&stream) {
            uses.push(stream);
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
        if let Some(s) = other
            && !uses.contains(&s)
        {
            uses.push(s);
        }
        if was & DIRECT != 0 {
            d.set_kind(kind::PENDING);
            let contract = self.charge(id);
            h.count_out(contract, bytes);
            drop(h);
            return self.free_direct(heap, id, contract);
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

        let mut marks = Vec::new();
        let mut failed = None;
        let mut note = |s: u64| match self.backing.mark(s) {
            Ok(m) => self.keep_unless_passed(m, &mut marks),
            Err(e) => failed = Some(e),
        };
        if heap.stream.load(Relaxed) == UNORDERED {
            self.backing.streams(&mut note);
        } else {
            uses.into_iter().for_each(note);
        }
        let mut h = heap.inner.lock();
        match failed {
            // A stream that cannot be marked has ended or is broken. The block is freed all the same, after
            // everything that can still run.
            Some(e) if e.code() != Code::UnknownStream => {
                drop(h);
                let _ = self.backing.sync_all();
                h = heap.inner.lock();
            }
            _ => {}
        }
        if marks.is_empty() {
            self.ripen(&mut h, id);
        } else {
            h.pending.push_back(Pending { id, marks });
        }
        Ok(())
    }

    fn keep_unless_passed(&self, m: Mark, marks: &mut Vec<Mark>) {
        match self.backing.passed(m) {
            Ok(true) => self.backing.forget(m),
            _ => marks.push(m),
        }
    }

    /// A pending block whose marks are passed becomes reusable. The heap is locked.
    fn ripen(&self, h: &mut Inner, id: Id) {
        let contract = self.charge(id) as i64;
        h.pending_bytes -= contract;
        h.ceiling[0] += contract;
        h.bound[0].add(contract);
        self.reuse(h, id);
    }

    /// Brings back pending blocks of a heap, oldest first, up to the first that still waits; with `wait`,
    /// waits on the host for each. `true` when any came back.
    pub(crate) fn poll(&self, heap: &Heap, wait: bool) -> bool {
        let mut any = false;
        loop {
            let Some(mut p) = heap.inner.lock().pending.pop_front() else { return any };
            while let Some(&m) = p.marks.last() {
                // A device that fell off runs nothing any more.
                let over = self.backing.passed(m).unwrap_or(true);
                if !over && !wait {
                    break;
                }
                if !over {
                    let _ = self.backing.sync(m);
                }
                self.backing.forget(m);
                p.marks.pop();
            }
            let mut h = heap.inner.lock();
            if !p.marks.is_empty() {
                h.pending.push_front(p);
                return any;
            }
            self.ripen(&mut h, p.id);
            any = true;
        }
    }

    /// `poll` for every heap.
    pub(crate) fn poll_all(&self, wait: bool) -> bool {
        let mut any = false;
        for i in 0..self.heap_count.load(Ordering::Acquire) as usize {
            if let Some(heap) = self.heaps.get(i)
                && !heap.inner.lock().pending.is_empty()
            {
                any |= self.poll(heap, wait);
            }
        }
        any
    }

    /// A block that is a segment of its own goes back to the device. Device memory must not go while work
    /// may use it, so this waits for the device, as the driver's own free does.
    fn free_direct(&self, heap: &Heap, id: Id, contract: u64) -> Result<()> {
        self.backing.sync_all()?;
        let mut growth = super::pond::lock(&self.growth);
        let offset = self.offset(id);
        let first = (offset >> GRANULE_SHIFT) as u32;
        {
            let mut h = heap.inner.lock();
            h.drop_direct(&self.maps, id, first);
        }
        growth.segment_gone(heap.pool.load(Relaxed), first, contract);
        let done = self.backing.segment_release(offset, contract);
        done.map_err(|e| Error::new(e.code(), format!("the device refused to take a block back: {e}")))
    }
}
