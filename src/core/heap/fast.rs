//! The first step of a request and of a free: a freed block of the same size is taken, or put back, under the lock of the
//! heap. It never panics, and calls nothing outside but what looks an address up in segments other than the first.
//!
//! A thread that allocates from a heap again and again enters it by its *fast path* (`base/biased/seat.rs`), which is
//! open under the caller's number for the pool and the stream. While it is open, the heap serves that stream of that
//! pool, and nothing but this step has to see the requests. A thread that changes either of these closes the fast path
//! in two steps. First it removes the pool or the heap from where threads look them up to open a fast path: the handle
//! cache, and the pool's cache of heaps. Then it calls [`Heap::close_fast_path`].

use super::super::desc::{Desc, GranuleUse, Id, UseRecord};
use super::super::shape::{Class, large_units};
use super::super::units::LARGE_SHIFT;
use super::{Heap, HeapState, LockedHeap, Notes, OwnedHeap, Way};
use crate::base::biased::{Entry, FastGuard, FastPath, Name, Seated};
use crate::base::range_map::Memo;
use crate::base::ring::Ring;
use crate::base::sync::levels::HeldLock;
use crate::locks;
use std::ops::DerefMut;

/// A thread's fast path into a heap.
pub(crate) type HeapPath = FastPath<'static, HeapState, Way>;

/// The thread's record in the heap's lock.
#[cfg(not(loom))] // for the table of fast paths, which no model has
pub(crate) type HeapSeat = crate::base::biased::Seat<HeapState, Way>;

/// A heap that the calling thread has entered by the fast path.
pub(crate) type EnteredHeap = LockedHeap<'static, FastGuard<'static, HeapState, Way>>;

/// A thread in its seat of a heap, to which it has a fast path that is not open under the name that it has tried.
pub(crate) struct SeatedAtHeap(Seated<'static, HeapState, Way>);

/// What a thread finds that tries to enter a heap by a fast path.
pub(crate) enum HeapEntry {
    Open(EnteredHeap),
    OtherName(SeatedAtHeap),
    /// The path is another thread's, or none.
    Elsewhere,
}

impl SeatedAtHeap {
    /// Enters the heap, if the fast path is open under this name.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn enter(self, name: Name) -> Option<EnteredHeap> {
        self.0.enter(name).map(EnteredHeap::of)
    }
}

/// The offset of a freed block that is live again.
#[derive(Clone, Copy)]
pub(crate) enum Reused {
    Block(u64),
    /// A ceiling of the heap was reached: [`Outside::settle`] is to be called once the lock is released.
    Full(u64),
}

/// The result of the first step of a request on the fast path.
pub(crate) enum Fast {
    /// The address of the block.
    Block(u64),
    /// The block is there, but [`Outside`] has more to do. Has the heap, and the name of the fast path.
    Almost(Reused, &'static Heap, Name),
    /// Nothing was done. Has the heap, and the name of the fast path.
    Missed(&'static Heap, Name),
}

/// The result of a free on the fast path. Where it is not done, nothing is, and this has the name of the fast path.
pub(crate) enum FastFreed {
    Done,
    /// The address is not near the one of offset 0: [`EnteredHeap::free_far`] comes next.
    Far(SeatedAtHeap),
    Missed(Name),
}

/// The same on a fast path on which frees are noted.
pub(crate) enum FreedNoted {
    Done,
    /// [`EnteredHeap::free_far_noted`] comes next.
    Far(SeatedAtHeap),
    Missed,
}

/// What a history notes of a request or a free.
#[derive(Clone, Copy)]
pub(crate) struct Noted {
    pub pool: u64,
    pub address: u64,
    /// [B] as charged, and as asked for.
    pub charged: u64,
    pub requested: u64,
}

impl EnteredHeap {
    /// Enters a heap by a fast path that is open under this name.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn by(path: HeapPath, name: Name) -> Option<EnteredHeap> {
        path.enter(name).map(EnteredHeap::of)
    }

    /// The same for a caller that has a second name.
    #[inline(always)]
    #[cfg_attr(loom, expect(dead_code, reason = "no model has the table of fast paths"))]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn by_or_stay(path: HeapPath, name: Name) -> HeapEntry {
        match path.enter_or_stay(name) {
            Entry::Open(state) => HeapEntry::Open(EnteredHeap::of(state)),
            Entry::OtherName(seated) => HeapEntry::OtherName(SeatedAtHeap(seated)),
            Entry::Elsewhere => HeapEntry::Elsewhere,
        }
    }

    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn of(state: FastGuard<'static, HeapState, Way>) -> EnteredHeap {
        let Way { heap, shared, .. } = state.way();
        let held = HeldLock::new::<locks::Heap>(heap.index);
        LockedHeap { heap, shared, state, held }
    }

    /// Takes a freed block of the same size. Misses for 0 bytes.
    #[inline(always)]
    pub(crate) fn alloc(mut self, bytes: u64) -> Fast {
        match self.reuse(bytes) {
            Some(block) => self.given(block),
            None => self.missed(),
        }
    }

    /// The same by a fast path on which requests are noted: `note` is called with a block whose address is known, inside the
    /// heap, so that nothing has to be kept for it.
    #[inline(always)]
    pub(crate) fn alloc_noted(mut self, requested: u64, note: impl FnOnce(&'static Ring, Noted)) -> Fast {
        let offset = match self.reuse(requested) {
            Some(Reused::Block(offset)) => offset,
            Some(full) => return self.given(full),
            None => return self.missed(),
        };
        let Way { base, span, notes: Notes { ring, pool }, .. } = self.state.way();
        if offset >= span {
            return self.given(Reused::Block(offset));
        }
        let (address, charged) = (base + offset, self.state.served.charged_of(requested));
        if let Some(ring) = ring {
            note(ring, Noted { pool, address, charged, requested });
        }
        Fast::Block(address)
    }

    /// Notes a block that [`alloc_noted`](Self::alloc_noted) has given, and that is not near: its address. `None`: nothing was
    /// done.
    pub(crate) fn note_far(
        self,
        (heap, offset): (&Heap, u64),
        requested: u64,
        note: impl FnOnce(&'static Ring, Noted),
    ) -> Option<u64> {
        let Notes { ring: Some(ring), pool } = self.state.way().notes else { return None };
        if !std::ptr::eq(self.heap, heap) {
            return None;
        }
        let address = self.heap.far_address(offset)?;
        note(ring, Noted { pool, address, charged: self.state.served.charged_of(requested), requested });
        Some(address)
    }

    /// The result of a step that has given a block.
    #[inline(always)]
    pub(super) fn given(self, block: Reused) -> Fast {
        let Way { base, span, .. } = self.state.way();
        match block {
            Reused::Block(offset) if offset < span => Fast::Block(base + offset),
            // Heap and name are read again here, so that the usual case need not keep them.
            _ => Fast::Almost(block, self.state.way().heap, self.state.name()),
        }
    }

    /// Completes a step that has given this block and reached a ceiling, where the other class has enough left: the address.
    /// `None`: [`Outside::settle`] has to be called, or this is not that heap.
    #[inline(always)]
    pub(crate) fn exchange(mut self, heap: &Heap, offset: u64) -> Option<u64> {
        if !std::ptr::eq(self.heap, heap) || !self.state.counters.exchange() {
            return None;
        }
        let Way { base, span, .. } = self.state.way();
        if offset < span { Some(base + offset) } else { self.heap.far_address(offset) }
    }

    /// Gives the heap's lock up, for a step that enters again.
    #[inline(always)]
    fn stay(self) -> SeatedAtHeap {
        SeatedAtHeap(self.state.stay())
    }

    /// The result of a step that has done nothing.
    #[inline(always)]
    pub(super) fn missed(self) -> Fast {
        Fast::Missed(self.state.way().heap, self.state.name())
    }

    /// Frees the block at this address, if the heap has a plainly live one (no flag) there.
    #[inline(always)]
    pub(crate) fn free(mut self, addr: u64) -> FastFreed {
        let Some(offset) = self.near(addr) else { return FastFreed::Far(self.stay()) };
        match self.end_at(offset, |_, _, _| ()) {
            true => FastFreed::Done,
            false => FastFreed::Missed(self.state.name()),
        }
    }

    /// The same in a segment that is not near. `false`: nothing was done.
    pub(crate) fn free_far(mut self, addr: u64) -> bool {
        match self.heap.far_offset(&mut self.state.segments, addr) {
            Some(offset) => self.end_at(offset, |_, _, _| ()),
            None => false,
        }
    }

    /// The same by a fast path on which frees are noted: `note` is called with the position of the event in the ring, inside
    /// the heap.
    #[inline(always)]
    pub(crate) fn free_noted(
        mut self,
        address: u64,
        note: impl FnOnce(&'static Ring, u64, Noted),
    ) -> FreedNoted {
        let Some(ring) = self.state.way().notes.ring else { return FreedNoted::Missed };
        let Some(offset) = self.near(address) else { return FreedNoted::Far(self.stay()) };
        match self.end_noted((address, offset), ring, note) {
            true => FreedNoted::Done,
            false => FreedNoted::Missed,
        }
    }

    /// The same in a segment that is not near. `false`: nothing was done.
    pub(crate) fn free_far_noted(
        mut self,
        address: u64,
        note: impl FnOnce(&'static Ring, u64, Noted),
    ) -> bool {
        let offset = self.heap.far_offset(&mut self.state.segments, address);
        match (self.state.way().notes.ring, offset) {
            (Some(ring), Some(offset)) => self.end_noted((address, offset), ring, note),
            _ => false,
        }
    }

    #[inline(always)]
    fn end_noted(
        &mut self,
        (address, offset): (u64, u64),
        ring: &'static Ring,
        note: impl FnOnce(&'static Ring, u64, Noted),
    ) -> bool {
        // The position is claimed before another thread can have the block, so that the events are in the right order.
        let mut claimed = None;
        self.end_at(offset, |_, charged, requested| claimed = Some((charged, requested, ring.claim())));
        let Some((charged, requested, position)) = claimed else { return false };
        let Notes { pool, .. } = self.state.way().notes;
        note(ring, position, Noted { pool, address, charged, requested });
        true
    }

    /// The offset of an address, if it is near the one of offset 0.
    #[inline(always)]
    fn near(&self, addr: u64) -> Option<u64> {
        let Way { base, span, .. } = self.state.way();
        let offset = addr.wrapping_sub(base);
        (offset < span).then_some(offset)
    }

    #[inline(always)]
    fn end_at(&mut self, offset: u64, tell: impl FnOnce(&Heap, u64, u64)) -> bool {
        match self.maps().live_of(self.state.mark, offset) {
            Some((id, d, was)) => self.end_of(id, d, was, tell),
            None => false,
        }
    }
}

impl Heap {
    /// The offset of an address in any segment.
    fn far_offset(&self, memo: &mut Memo, address: u64) -> Option<u64> {
        self.outside()?.offset_again(memo, address)
    }

    /// The address of an offset in any segment.
    #[inline]
    pub(crate) fn far_address(&self, offset: u64) -> Option<u64> {
        self.outside()?.address_now(offset)
    }
}

impl OwnedHeap<'static> {
    /// Opens the calling thread's fast path to the heap under this name, if `may` says that it may be open.
    pub(crate) fn open(&mut self, name: Name, way: Way, may: impl FnOnce() -> bool) -> Option<HeapPath> {
        self.state.open(name, way, may)
    }
}

impl<'a, G: DerefMut<Target = HeapState>> LockedHeap<'a, G> {
    /// Takes a freed block of the same size. `None` also for 0 bytes.
    #[inline(always)]
    pub(crate) fn reuse(&mut self, bytes: u64) -> Option<Reused> {
        // Each arm does everything, so that the address of the class's counters is a constant offset.
        let maps = self.maps();
        let charged = self.state.served.charged(bytes)?;
        if self.state.served.is_fine(charged) {
            let list = self.state.served.list(charged);
            let id = self.state.lists[list];
            if id == 0 {
                return None;
            }
            let d = maps.desc(id);
            self.state.lists[list] = d.next();
            self.revive(d, bytes);
            let offset = u64::from(d.off()) * self.state.units[list];
            if self.state.counters.count_in_quick(Class::Small, charged, bytes) {
                return Some(Reused::Full(offset));
            }
            return Some(Reused::Block(offset));
        }
        if bytes > self.state.served.largest() {
            return None;
        }
        let units = large_units(charged);
        let slot = self.state.quick.find(units)?;
        let d = maps.desc(self.state.quick.first(slot));
        self.state.quick.take_first(slot, units, d);
        self.revive(d, bytes);
        let offset = u64::from(d.off()) << LARGE_SHIFT; // of scattered blocks too
        if self.state.counters.count_in_quick(Class::Large, charged, bytes) {
            return Some(Reused::Full(offset));
        }
        Some(Reused::Block(offset))
    }

    /// Frees the block at `offset` if only its own stream has used it. `use_` is the use of its granule, as it was before
    /// the heap was locked. `false`: nothing was done. `tell` is called with the heap, the charge and the requested
    /// bytes before anybody can have the block again.
    #[inline(always)]
    pub(crate) fn free_plain(
        &mut self,
        (record, use_): (UseRecord<'_>, GranuleUse),
        offset: u64,
        tell: impl FnOnce(&Heap, u64, u64),
    ) -> bool {
        match self.maps().plainly_live(record, use_, offset) {
            Some((id, d, was)) => self.end_of(id, d, was, tell),
            None => false,
        }
    }

    /// Ends the life of a plainly live block, whose state is `was`, and puts it on the list of its size. `false`: another
    /// thread was first.
    #[inline(always)]
    fn end_of(&mut self, id: Id, d: Desc<'a>, was: u32, tell: impl FnOnce(&Heap, u64, u64)) -> bool {
        let bytes = d.requested();
        let ended = self.end_plain_life(d, was);
        if ended {
            let charged = self.state.served.charged_of(bytes);
            tell(self.heap, charged, bytes);
            self.shelve_counted(id, d, was, charged, bytes);
        }
        ended
    }
}
