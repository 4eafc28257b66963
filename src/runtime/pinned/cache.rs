//! What is known of one device's pinned host memory: live blocks, freed ones that wait for streams, freed ones
//! that can be used again, and the slabs in which small ones lie. Makes no call; who holds it under its lock makes
//! them after.

use super::left::Left;
use super::numbers::{HostMemoryStats, Times};
use super::ranges::Ranges;
use super::sizes::{SLAB_MAX, span_of};
use super::tags::TagSums;
use crate::base::boxed::{has_room as has_room_for, try_push};
use crate::base::error::{Result, no_host_memory};
use crate::base::ordered::Map;
use crate::core::Counter;
use crate::core::{Stream, Waits};
use crate::runtime::entry::tags;
use crate::runtime::watch::event::{Event, EventKind};
use crate::runtime::watch::observe::Observers;
use std::collections::VecDeque;
use std::sync::Arc;

/// \[B\] more than what comes from the device needs, beside the lists that make room themselves.
const ENTER_BYTES: usize = 16 << 10;

/// A stream of some device on which work has used a block.
#[derive(Clone)]
pub(crate) struct Use {
    pub device: u32,
    pub stream: Arc<Stream>,
}

impl Use {
    fn is(&self, other: &Use) -> bool {
        self.device == other.device && Arc::ptr_eq(&self.stream, &other.stream)
    }
}

/// A live block, beside its address and what was asked for.
pub(crate) struct Live {
    pub size: u64, // [B]
    pub uses: Vec<Use>,
    /// What it is for; 0: nobody said.
    pub tag: u16,
}

/// A freed block that streams may still use.
pub(crate) struct Waiting {
    pub addr: u64,
    pub size: u64, // [B]
    /// What must have passed, by device.
    pub waits: Vec<(u32, Waits)>,
}

/// Memory that is to go back to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub addr: u64,
    pub bytes: u64,
    /// [B] of the blocks in it; `bytes` for a block of its own. 0: it was never entered, and the device has refused it before.
    piece: u64,
    /// That of its slab; 0 for a block of its own.
    going: u64,
}

impl Span {
    /// How many blocks it has.
    fn blocks(self) -> usize {
        (self.bytes / self.piece) as usize
    }
}

#[derive(Debug)]
struct Slab {
    piece: u64, // [B]
    busy: u32,  // blocks that are live or wait
    /// The device was asked to take it back, and has not answered: a number of this one time. 0: it was not.
    going: u64,
}

/// Free blocks of one size. The list has room for those, too, that the device was asked to take back and has not answered for.
#[derive(Debug, Default)]
struct Shelf {
    addrs: Vec<u64>, // the last freed is used first
    going: usize,
}

impl Shelf {
    /// Enters the blocks of a slab, the last first, so that the first are used first. How many bytes these are.
    fn put(&mut self, addr: u64, bytes: u64, piece: u64) -> u64 {
        let count = bytes / piece;
        self.addrs.extend((0..count).rev().map(|i| addr + i * piece));
        count * piece
    }

    /// Makes room for so many blocks more. `false`: the host has no memory for it.
    fn make_room(&mut self, blocks: usize) -> bool {
        self.addrs.try_reserve(blocks + self.going).is_ok()
    }

    /// It has no block, and none may come back.
    fn is_done(&self) -> bool {
        self.addrs.is_empty() && self.going == 0
    }
}

/// The account of a device's pinned host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStats {
    /// Bytes in live blocks as they were asked for.
    pub requested: Counter,
    /// Bytes in live blocks after rounding.
    pub allocated: Counter,
    /// Bytes taken from the device.
    pub reserved: Counter,
    /// Live blocks.
    pub blocks: Counter,
    /// Bytes that are freed and can be used again.
    pub cached: u64,
    /// Bytes that are freed and still wait for a stream.
    pub pending: u64,
    /// Calls to the device for memory, and to give it back, so far.
    pub driver_calls: u64,
    /// Requests so far that were served without such a call.
    pub reuses: u64,
    /// The NUMA node from which memory is taken where it has room; `None` where the device tells none.
    pub numa_node: Option<u32>,
}

/// What is told only in full (`HostMemoryStats`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct More {
    /// Blocks of their own, and slabs.
    pub segments: Counter,
    /// [B] of blocks that are not free: live, waiting, or in somebody's hands.
    pub active: Counter,
    pub active_blocks: Counter,
    pub taking: Times,
    pub giving: Times,
}

/// See the file's head.
#[derive(Default)]
pub(crate) struct State {
    pub live: Ranges<Live>,
    pub waiting: VecDeque<Waiting>,
    /// Freed blocks that threads look at now, or give to the device.
    pub in_hand: u64,
    /// How often memory has become free, or the device's.
    pub returns: u64,
    pub stats: HostStats,
    /// \[B\] that threads are taking from the device now.
    pub taking: u64,
    /// \[B\] that threads are giving back to it now; part of what is reserved.
    pub giving: u64,
    pub observers: Arc<Observers>,
    pub tags: TagSums,
    pub more: More,
    /// The statistics in full at the last reset of what is accumulated.
    pub before: HostMemoryStats,
    free: Map<u64, Shelf>, // by size
    /// None overlaps another. What goes to the device stays until that has answered, or gives the addresses for something else.
    slabs: Map<u64, Slab>,
    /// How often slabs were to go.
    goings: u64,
    /// Reserved, but neither live nor free.
    pub left: Left,
}

impl State {
    /// A free block of exactly `size` becomes one of `bytes`.
    pub(crate) fn serve(&mut self, bytes: u64, size: u64) -> Option<u64> {
        let shelf = self.free.get_mut(&size)?;
        let addr = shelf.addrs.pop()?;
        if shelf.is_done() {
            self.free.remove(&size);
        }
        self.stats.cached -= size;
        if let Some(slab) = self.slab_of(addr, size) {
            slab.busy += 1;
        }
        self.enliven(addr, bytes, size);
        Some(addr)
    }

    /// Tells who watches.
    pub(crate) fn tell(&self, kind: EventKind, address: u64, requested: u64, bytes: u64) {
        self.observers.tell(Event { host: true, address, bytes, requested, ..Event::new(kind) });
    }

    fn enliven(&mut self, addr: u64, bytes: u64, size: u64) {
        let tag = tags::current();
        self.live.put(addr, bytes, Live { size, uses: Vec::new(), tag });
        self.tags.count_in(tag, bytes);
        self.tell(EventKind::Alloc, addr, bytes, size);
        self.stats.requested.add(bytes);
        self.stats.allocated.add(size);
        self.stats.blocks.add(1);
        self.more.active.add(size);
        self.more.active_blocks.add(1);
    }

    fn slab_of(&mut self, addr: u64, size: u64) -> Option<&mut Slab> {
        if size > SLAB_MAX {
            return None;
        }
        let (&start, slab) = self.slabs.last_mut(..=addr)?;
        (addr - start < span_of(size)).then_some(slab)
    }

    /// Enters memory that was taken for a block of `size`, and gives a block of `bytes` out of it.
    pub(crate) fn enter(&mut self, addr: u64, bytes: u64, size: u64) -> u64 {
        let span = span_of(size);
        self.tell(EventKind::SegmentAlloc, addr, span, span);
        self.more.segments.add(1);
        if size > SLAB_MAX {
            self.stats.reserved.add(size);
            self.enliven(addr, bytes, size);
            return addr;
        }
        self.stats.reserved.add(span);
        self.forget_gone(addr, span);
        self.slabs.insert(addr, Slab { piece: size, busy: 0, going: 0 });
        let shelf = self.free.entry(size).or_default();
        shelf.addrs.reserve((span / size) as usize + shelf.going);
        self.stats.cached += shelf.put(addr, span, size);
        // The slab has blocks of this size, and all are free.
        self.serve(bytes, size).unwrap_or(addr)
    }

    /// The device gave this range, which there is no room to enter, and was asked to take it back: it has, or has `refused`.
    pub(crate) fn leave(&mut self, addr: u64, bytes: u64, refused: bool) {
        self.left.answered((addr, bytes), refused);
        if refused {
            self.tell(EventKind::SegmentAlloc, addr, bytes, bytes);
            self.more.segments.add(1);
            self.stats.reserved.add(bytes);
        }
    }

    /// Ends a live block, which becomes nobody's: its size and who has used it.
    pub(crate) fn end(&mut self, addr: u64) -> Result<Live> {
        let (bytes, live) = self.live.take(addr, "host")?;
        self.tell(EventKind::FreeRequested, addr, bytes, live.size);
        self.tags.count_out(live.tag, bytes);
        self.stats.requested.sub(bytes);
        self.stats.allocated.sub(live.size);
        self.stats.blocks.sub(1);
        Ok(live)
    }

    /// `OutOfMemory` if the host has no memory for one more live block, with the calling thread's tag.
    pub(crate) fn check_room_to_serve(&mut self) -> Result<()> {
        let has_room =
            self.live.make_room() && self.slabs.make_room() && self.tags.make_room(tags::current());
        if has_room { Ok(()) } else { Err(no_host_memory()) }
    }

    /// The same for a block of `size` that comes from the device. To be asked under the lock under which [`enter`](Self::enter)
    /// follows: others may have taken what was there when the device was asked.
    pub(crate) fn check_room_to_enter(&mut self, size: u64) -> Result<()> {
        self.check_room_to_serve()?;
        let blocks = (span_of(size) / size) as usize;
        let has_room = size > SLAB_MAX
            || match self.free.get_mut(&size) {
                Some(shelf) => shelf.make_room(blocks),
                None => self.free.make_room(),
            };
        // Last, for what was not set aside: a new shelf, and what the trees of all four grow by.
        if has_room && has_room_for(ENTER_BYTES) { Ok(()) } else { Err(no_host_memory()) }
    }

    /// Room for the end of a block: a list of what it may have to wait for, with an entry for each of its uses, and a place
    /// among those that wait. `OutOfMemory` if the host has no memory for these.
    pub(crate) fn make_waits(&mut self, addr: u64) -> Result<Vec<(u32, Waits)>> {
        let mut all = Vec::new();
        // Those that threads have in hand may have to wait again.
        let mut has_room =
            self.live.make_grave(addr) && self.waiting.try_reserve(1 + self.in_hand as usize).is_ok();
        for by in self.live.holder(addr).map_or(&[][..], |live| &live.uses) {
            let mut waits = Waits::default();
            has_room = has_room && waits.make_room(1) && try_push(&mut all, (by.device, waits));
        }
        if has_room { Ok(all) } else { Err(no_host_memory()) }
    }

    /// A block that nobody uses any more can be used again. `false`: the host has no memory to list it, and it has to wait.
    pub(crate) fn give(&mut self, addr: u64, size: u64) -> bool {
        let has_room = match self.free.get_mut(&size) {
            Some(shelf) => shelf.make_room(1),
            None => self.free.make_room(),
        };
        if !has_room {
            return false;
        }
        self.tell(EventKind::FreeCompleted, addr, size, size);
        if let Some(slab) = self.slab_of(addr, size) {
            slab.busy -= 1;
        }
        self.free.entry(size).or_default().addrs.push(addr);
        self.stats.cached += size;
        self.more.active.sub(size);
        self.more.active_blocks.sub(1);
        self.returns += 1;
        true
    }

    /// The device has given these addresses, so it has taken back what it was asked to take there, though who asked does not
    /// know yet.
    fn forget_gone(&mut self, addr: u64, bytes: u64) {
        while let Some((&start, slab)) = self.slabs.last_mut(..addr + bytes)
            && slab.going != 0
            && start + span_of(slab.piece) > addr
        {
            self.slabs.remove(&start);
        }
    }

    /// The next range to give back to the device: cached memory while more than `most` bytes are cached, then what the device
    /// has refused before and nobody has. What must follow is as for [`idle`](Self::idle).
    pub(crate) fn next_back(&mut self, most: u64) -> Option<Span> {
        let idle = if self.stats.cached > most { self.idle() } else { None };
        idle.or_else(|| self.left.next().map(|(addr, bytes)| Span { addr, bytes, piece: 0, going: 0 }))
    }

    /// Free memory that can go back to the device: a block of its own, the largest first, or a slab of which
    /// everything is free. It is not free any more. [`keep`](Self::keep) or [`let_go`](Self::let_go) follows, and neither needs
    /// memory of the host.
    pub(crate) fn idle(&mut self) -> Option<Span> {
        let filled = |&(_, shelf): &(&u64, &Shelf)| !shelf.addrs.is_empty();
        if let Some((&size, _)) = self.free.range(SLAB_MAX + 1..).rev().find(filled) {
            let shelf = self.free.get_mut(&size)?;
            // The one that was freed first: the others are more likely to be in a processor's cache.
            let addr = shelf.addrs.remove(0);
            shelf.going += 1;
            self.stats.cached -= size;
            return Some(Span { addr, bytes: size, piece: size, going: 0 });
        }
        let (&addr, _) = self.slabs.iter().find(|(_, slab)| slab.busy == 0 && slab.going == 0)?;
        let slab = self.slabs.get_mut(&addr)?;
        self.goings += 1;
        slab.going = self.goings;
        let span = Span { addr, bytes: span_of(slab.piece), piece: slab.piece, going: slab.going };
        let shelf = self.free.get_mut(&span.piece)?;
        shelf.addrs.retain(|&a| a < addr || a - addr >= span.bytes);
        shelf.going += span.blocks();
        self.stats.cached -= span.blocks() as u64 * span.piece;
        Some(span)
    }

    /// Whether the slab is still the one that goes.
    fn goes(&self, s: Span) -> bool {
        s.going == 0 || self.slabs.get(&s.addr).is_some_and(|slab| slab.going == s.going)
    }

    /// The device would not take that back, and it is free again. `false`: it has given the same addresses for something else
    /// since then, and so has taken it all the same.
    pub(crate) fn keep(&mut self, s: Span) -> bool {
        if s.piece == 0 {
            self.left.answered((s.addr, s.bytes), true);
            return true;
        }
        if !self.goes(s) {
            return false;
        }
        if let Some(slab) = self.slabs.get_mut(&s.addr).filter(|_| s.going != 0) {
            slab.going = 0;
        }
        if let Some(shelf) = self.free.get_mut(&s.piece) {
            shelf.going -= s.blocks();
            self.stats.cached += shelf.put(s.addr, s.bytes, s.piece);
        }
        true
    }

    /// The device has taken that back.
    pub(crate) fn let_go(&mut self, s: Span) {
        if s.piece == 0 {
            self.left.answered((s.addr, s.bytes), false);
            return;
        }
        if s.going != 0 && self.goes(s) {
            self.slabs.remove(&s.addr);
        }
        if let Some(shelf) = self.free.get_mut(&s.piece) {
            shelf.going -= s.blocks();
            if shelf.is_done() {
                self.free.remove(&s.piece);
            }
        }
    }

    /// The block that holds `addr` is also used by a stream. `false`: no live block holds it. `OutOfMemory` if the host has no
    /// memory to note it.
    pub(crate) fn note(&mut self, addr: u64, by: &Use) -> Result<bool> {
        let Some(live) = self.live.holder(addr) else { return Ok(false) };
        if !live.uses.iter().any(|u| u.is(by)) && !try_push(&mut live.uses, by.clone()) {
            return Err(no_host_memory());
        }
        Ok(true)
    }

    /// Everything that was taken from the device, live or not; nothing is left. To be dropped without the lock, for what freed
    /// blocks have waited for.
    pub(crate) fn drain(&mut self) -> All {
        self.stats = HostStats::default();
        self.more = More::default();
        self.tags = TagSums::default();
        self.before = HostMemoryStats::default();
        let (slabs, live) = (std::mem::take(&mut self.slabs), std::mem::take(&mut self.live));
        let (waiting, free) = (std::mem::take(&mut self.waiting), std::mem::take(&mut self.free));
        All { slabs, live, waiting, free, left: std::mem::take(&mut self.left) }
    }
}

/// What [`State::drain`] has taken out: as it was, since the host may have no memory for another list.
pub(crate) struct All {
    slabs: Map<u64, Slab>,
    live: Ranges<Live>,
    waiting: VecDeque<Waiting>,
    free: Map<u64, Shelf>,
    left: Left,
}

impl All {
    /// Address and bytes of each piece, as the device has given it.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u64, u64)> {
        let slabs = self.slabs.iter().filter(|(_, s)| s.going == 0).map(|(&a, s)| (a, span_of(s.piece)));
        let live = self.live.iter().map(|(a, _, l)| (a, l.size));
        let waiting = self.waiting.iter().map(|w| (w.addr, w.size));
        let free = self.free.iter().flat_map(|(&size, shelf)| shelf.addrs.iter().map(move |&a| (a, size)));
        slabs
            .chain(live.chain(waiting).chain(free).filter(|&(_, size)| size > SLAB_MAX))
            .chain(self.left.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::super::sizes::size_of;
    use super::*;
    use proptest::prelude::*;

    /// A block of that size that is taken from the device, and freed.
    fn come_and_freed(s: &mut State, addr: u64, size: u64) {
        let block = s.enter(addr, size, size);
        let ended = s.end(block).unwrap();
        assert!(s.give(block, ended.size));
    }

    #[test]
    fn what_the_device_refuses_has_room_already() {
        let (mut s, size) = (State::default(), 2 * SLAB_MAX);
        come_and_freed(&mut s, size, size);
        let goes = s.idle().unwrap();
        assert_eq!((s.stats.cached, s.serve(size, size)), (0, None));
        let slots = s.free.get(&size).unwrap().addrs.capacity() as u64;
        (2..2 + slots).for_each(|n| come_and_freed(&mut s, n * size, size));
        let before = s.free.get(&size).unwrap().addrs.as_ptr();
        assert!(s.keep(goes));
        assert_eq!(s.free.get(&size).unwrap().addrs.as_ptr(), before, "its list has moved");
        assert_eq!((s.stats.cached, s.serve(size, size)), ((slots + 1) * size, Some(size)));
    }

    /// The device has taken two slabs back and given their addresses for a larger one, before it has said so to who asked.
    #[test]
    fn addresses_that_have_come_again_are_those_of_the_new_slab() {
        let (mut s, at, size) = (State::default(), 1 << 20, 4096);
        let span = span_of(size);
        [at, at + span].into_iter().for_each(|addr| come_and_freed(&mut s, addr, size));
        let going = [s.idle().unwrap(), s.idle().unwrap()];
        assert_eq!((s.idle(), span_of(2 * size)), (None, 2 * span));
        let mut live = vec![s.enter(at, 2 * size, 2 * size)];
        live.extend(std::iter::from_fn(|| s.serve(2 * size, 2 * size)));
        // A device that says that it has refused.
        assert!(!s.keep(going[1]));
        going.into_iter().for_each(|span| s.let_go(span));
        assert_eq!(s.idle(), None, "all of it is in use");
        for block in live {
            let ended = s.end(block).unwrap();
            assert!(s.give(block, ended.size));
        }
        let last = s.idle().unwrap();
        assert_eq!((last.addr, last.bytes, s.idle()), (at, 2 * span, None));
        s.let_go(last);
        assert!(s.free.is_empty() && s.slabs.is_empty());
    }

    proptest! {
        /// Random requests against a device that counts, takes its time, and gives the lowest addresses again as soon as it has
        /// them: blocks never overlap, and all of it can go back.
        #[test]
        fn blocks_do_not_overlap_and_all_goes_back(ops in prop::collection::vec((any::<bool>(), 0u32..20, any::<u64>()), 1..400)) {
            let mut s = State::default();
            let mut taken: Map<u64, u64> = Map::new();
            let mut live: Vec<(u64, u64)> = Vec::new();
            let mut going: Vec<(Span, bool)> = Vec::new();
            for (alloc, log, x) in ops {
                if alloc || live.is_empty() {
                    let bytes = 1 + x % (1 << log);
                    let size = size_of(bytes, u64::MAX);
                    let addr = s.serve(bytes, size).unwrap_or_else(|| {
                        let (span, mut at) = (span_of(size), 1u64 << 20);
                        while let Some((&a, &n)) = taken.range(..at + span).next_back().filter(|r| r.0 + r.1 > at) {
                            at = a + n;
                        }
                        taken.insert(at, span);
                        s.enter(at, bytes, size)
                    });
                    prop_assert!(taken.range(..=addr).next_back().is_some_and(|(&a, &n)| addr + bytes <= a + n));
                    prop_assert!(live.iter().all(|&(a, n)| addr + bytes <= a || a + n <= addr));
                    live.push((addr, bytes));
                } else {
                    let (addr, _) = live.swap_remove((x % live.len() as u64) as usize);
                    let ended = s.end(addr).unwrap();
                    if x & 1 == 0 {
                        s.give(addr, ended.size);
                    } else {
                        s.waiting.push_back(Waiting { addr, size: ended.size, waits: Vec::new() });
                    }
                }
                if x % 7 == 0 && let Some(w) = s.waiting.pop_front() {
                    s.give(w.addr, w.size);
                }
                if x % 5 == 0 && let Some(span) = s.idle() {
                    if x % 2 == 0 {
                        prop_assert_eq!(taken.remove(&span.addr), Some(span.bytes));
                    }
                    going.push((span, x % 2 == 0));
                }
                if x % 3 == 0 && !going.is_empty() {
                    match going.swap_remove((x % going.len() as u64) as usize) {
                        (span, true) => s.let_go(span),
                        (span, false) => {
                            // What comes back has room already.
                            let room = |s: &State| s.free.get(&span.piece).unwrap().addrs.capacity();
                            let (before, slabs) = (room(&s), s.slabs.len());
                            prop_assert!(s.keep(span));
                            prop_assert_eq!((room(&s), s.slabs.len()), (before, slabs));
                        }
                    }
                }
                let bytes: u64 = live.iter().map(|l| l.1).sum();
                prop_assert_eq!((s.stats.requested.current, s.stats.blocks.current), (bytes, live.len() as u64));
            }
            for (span, took) in going {
                if took { s.let_go(span) } else { prop_assert!(s.keep(span)) }
            }
            for (addr, _) in live.drain(..) {
                let size = s.end(addr).unwrap().size;
                s.give(addr, size);
            }
            while let Some(w) = s.waiting.pop_front() {
                s.give(w.addr, w.size);
            }
            while let Some(span) = s.idle() {
                prop_assert_eq!(taken.remove(&span.addr), Some(span.bytes));
                s.let_go(span);
            }
            prop_assert!(taken.is_empty() && s.free.is_empty() && s.slabs.is_empty());
            prop_assert_eq!((s.stats.cached, s.stats.allocated.current), (0, 0));
            prop_assert_eq!((s.more.active.current, s.more.active_blocks.current), (0, 0));
        }
    }
}
