//! The free memory of one (pool, stream): freed blocks by size in front, bins behind, all under one lock that usually
//! only one thread wants.
//!
//! A heap owns whole granules. Blocks merge only inside what the heap owns, so no other lock is ever needed. Freed
//! blocks first wait unmerged, by size, since nearly every request asks for a size that was just freed; they are merged
//! before the heap asks for more memory.
//!
//! [`Heap`] is what any thread may read, [`HeapState`] what the lock guards, and [`LockedHeap`] the guard, whose
//! methods do all the work. The other files here add methods to it, one file for each tier or kind of work.

use super::aliases::Aliases;
use super::bins::{Bins, LargeBins, MediumBins, SmallBins};
use super::desc::{Found, GranuleUse, Id, Maps, OWNER_SHIFT, kind};
use super::order::{Fence, Stream};
use super::shape::{MEDIUM_SHIFT, SMALL_SHIFT, Served};
use super::tied::Tied;
use super::types::{RETIRED, UNORDERED};

use crate::base::biased::{Biased, Guard, Looks, OwnerGuard};
use crate::base::changed::Listed;
use crate::base::error::Result;
use crate::base::range_map::Memo;
use crate::base::remote::Remote;
use crate::base::ring::Ring;
use crate::base::sync::levels::HeldLock;
use crate::base::sync::{
    AtomicBool, AtomicU32, AtomicU64, Lock, Ordering::Relaxed, Ordering::SeqCst, Padded, thread_token,
};
use crate::locks;
use counters::Counters;
use quick::Quick;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

mod best_fit;
mod bins_of;
mod blocks;
#[cfg(test)]
mod check;
pub(crate) mod counters;
mod fast;
mod fine;
mod granules;
mod idle;
mod ids;
mod large;
mod live;
mod place;
mod quick;
mod refit;
mod scatter;
mod space;
mod stamp;
mod stuck;
#[cfg(test)]
mod tests;
mod waiting;
mod whole;

pub(crate) use best_fit::WORTH_MAPPING;
#[cfg(not(loom))] // for the table of fast paths, which no model has
pub(crate) use fast::HeapSeat;
pub(crate) use fast::{
    EnteredHeap, Fast, FastFreed, FreedNoted, HeapEntry, HeapPath, Noted, Reused, SeatedAtHeap,
};
pub(crate) use granules::FreeBlock;
pub(crate) use refit::Refit;
pub(crate) use scatter::{Runs, Scratch, Unscattered};
pub(crate) use space::Space;
pub(crate) use stamp::Stamp;
use stuck::Idle;
pub(crate) use stuck::Stuck;
pub(crate) use waiting::{Ready, Waiting, WaitingList};

/// The number of lists of freed small and medium blocks, one for each size (`shape::list_of`), rounded up to what a byte
/// can say, so that indexing needs no bounds check. Those beyond the last one are never touched.
const LISTS: usize = 256;
/// The first list of the medium tier, and one past the last.
const MEDIUM_LISTS: std::ops::Range<usize> = 16..32;

/// The number of users that look at a heap only if it may have changed: the ledger, and the search for free granules.
pub(crate) const LOOKERS: usize = 2;
/// The ledger, among the [`LOOKERS`].
pub(crate) const LEDGER: usize = 0;
/// The search for free granules, among the [`LOOKERS`].
pub(crate) const STOCK: usize = 1;

/// The use of a live block on a stream other than its own.
pub(crate) struct Use {
    pub stream: Arc<Stream>,
    /// Where it ended; `None`: it may go on until the free.
    pub ended: Option<Fence>,
    /// When that was last reported, as a serial number of the stream order.
    pub said: u64,
}

/// What the memory of a device comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Granules that can be mapped anywhere.
    Granules,
    /// Segments of given sizes.
    Segments,
    /// Segments as large as requests need them.
    OwnSegments,
}

/// What the lock guards.
pub(crate) struct HeapState {
    pub counters: Counters,
    /// Freed small and medium blocks, unmerged, by size, linked by `next`. Nearly every request asks for a size that
    /// was just freed; such a pair of calls touches nothing but the block's descriptor.
    lists: [Id; LISTS],
    /// The requests that these and `quick` serve.
    pub served: Served,
    /// [B] the units of the blocks in `lists`.
    units: [u64; LISTS],
    /// Freed large blocks, unmerged, by size.
    quick: Quick,
    /// XORed into the state of a freed block, this makes it live: its kind, the heap's number, and `USES` in a heap without
    /// a stream of its own.
    reviving: u32,
    /// XORed into the state of a plainly live block (no flag), this makes it a freed one.
    ending: u32,
    /// What the heap's granules have in common (`GranuleUse::has_live`).
    mark: u32,
    /// Other threads may free blocks of this heap at any time, so ending a block's life takes an exchange.
    shared: bool,
    /// It is on no change list; the next thread that locks it enters it there.
    rests: bool,
    /// The number of allocations until the remote list is checked again.
    pub countdown: u32,
    small: SmallBins,
    medium: MediumBins,
    large: LargeBins,
    /// What of the large tier is free; kept where `keeps_whole` says so.
    idle: Idle,
    /// Whole segments are cut sparingly (`idle.rs`).
    keeps_whole: bool,
    ids: Id,
    /// Granules that are chunks, and blocks in them: live, waiting and free ones.
    chunks: u64,
    pieces: u64,
    /// Granules owned.
    pub granules: u64,
    /// Requests that are continuing without the lock: they may hold memory of the heap, or bring some.
    pub requests: u32,
    /// Those of them that have taken pieces out of the heap for a block that is not live yet.
    pub in_hand: u32,
    /// Its blocks are not scattered.
    pub contiguous: bool,
    /// Whether much of the free memory lies in partly used granules, when last checked.
    pub ragged: bool,
    /// Whether an empty chunk is kept for the next small or medium request.
    empty: [bool; 2],
    /// The stream that orders reuse here, kept after its end; none in a heap without a stream, and in one that serves
    /// no stream.
    pub stream: Option<Arc<Stream>>,
    /// Live blocks may have been allocated for another stream, which has ended: the heap's own stream does not order
    /// them.
    pub inherited: bool,
    /// The streams on which live blocks were used, each once for a block.
    pub uses: HashMap<Id, Vec<Use>>,
    /// Freed blocks that still wait.
    pub waiting: WaitingList,
    /// Exports of live blocks, which may be used beyond their free.
    pub exports: HashMap<Id, Vec<Fence>>,
    /// Freed blocks that stay whole: units, offset in units, id; sorted.
    whole: Vec<(u32, u32, Id)>,
    /// The segments in which addresses were looked for on the fast path.
    segments: Memo,
}

/// See [`HeapState::reviving`].
fn reviving(index: u32, flags: u32) -> u32 {
    (kind::FREED ^ kind::LIVE) | flags | index << OWNER_SHIFT
}

impl HeapState {
    fn new(index: u32, source: Source) -> HeapState {
        HeapState {
            counters: Counters::default(),
            lists: [0; LISTS],
            served: Served::NONE,
            units: std::array::from_fn(|list| match list >= MEDIUM_LISTS.start {
                true => 1 << MEDIUM_SHIFT,
                false => 1 << SMALL_SHIFT,
            }),
            quick: Quick::new(source == Source::Granules),
            reviving: reviving(index, 0),
            ending: reviving(index, 0),
            mark: GranuleUse::mark(index),
            shared: false,
            rests: true,
            countdown: 0,
            small: Bins::new(),
            medium: Bins::new(),
            large: Bins::new(),
            idle: Idle::default(),
            keeps_whole: source == Source::OwnSegments,
            ids: 0,
            chunks: 0,
            pieces: 0,
            granules: 0,
            requests: 0,
            in_hand: 0,
            contiguous: false,
            ragged: false,
            empty: [false; 2],
            stream: None,
            inherited: false,
            uses: HashMap::new(),
            waiting: WaitingList::default(),
            exports: HashMap::new(),
            whole: Vec::new(),
            segments: Memo::default(),
        }
    }
}

/// Where the requests and frees of a fast path are noted, and what is the same in all of them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Notes {
    /// `None`: nowhere.
    pub ring: Option<&'static Ring>,
    pub pool: u64,
}

/// What a thread finds on its fast path into a heap.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub heap: &'static Heap,
    pub shared: Shared<'static>,
    /// The address of offset 0, for offsets below `span`.
    pub base: u64,
    pub span: u64,
    /// Where each request and each free is noted.
    pub notes: Notes,
}

/// What a request on the fast path needs now and then, beyond the heap.
pub(crate) trait Outside: Sync {
    /// The address of an offset that the pond has handed out.
    fn address(&self, offset: u64) -> Result<u64>;

    /// The same, if there are segments and it lies in one. Takes no lock.
    fn address_now(&self, offset: u64) -> Option<u64>;

    /// The offset of an address, if there are segments and it lies in one; `None` also where this could only be told after
    /// waiting. Called with the heap locked, so it takes no lock.
    fn offset_again(&self, memo: &mut Memo, address: u64) -> Option<u64>;

    /// Settles the accounts of a heap.
    fn settle(&self, heap: &'static Heap);

    /// Notes a request of `bytes` on `stream` that a fast path has served from a heap.
    fn note(&self, heap: &'static Heap, offset: u64, bytes: u64, stream: u64);
}

/// One heap.
pub(crate) struct Heap {
    state: Padded<Biased<HeapState, Way>>,
    /// Blocks freed by other threads: a list linked by `prev`, pushed by anyone, taken whole by the holder of the lock.
    remote: Padded<Remote>,
    /// The thread that allocated last. A hint: if it is wrong, that only costs time.
    allocates: Padded<AtomicU64>,
    /// Its number among the heaps of the device.
    pub index: u32,
    /// The pool, by id.
    pool: AtomicU32,
    /// The stream that orders reuse here; [`UNORDERED`](super::types::UNORDERED) or
    /// [`RETIRED`](super::types::RETIRED) for none.
    stream: AtomicU64,
    /// The same, but when it is retired the stream that it served last, whose work may still use the memory.
    last_stream: AtomicU64,
    /// Whether other threads may free blocks without the lock; set for good by the first thread that wants to.
    shared: AtomicBool,
    /// Its entries on the change lists.
    listed: Listed<LOOKERS>,
    /// What requests on a fast path need beyond the heap.
    outside: OnceLock<&'static dyn Outside>,
}

/// The change lists of heaps.
pub(crate) type Changed = crate::base::changed::Changed<LOOKERS>;

/// The descriptors, alias cache and change lists that all heaps of a device share.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    pub maps: &'a Maps,
    pub aliases: &'a Lock<Aliases, locks::Aliases>,
    pub changed: &'a Changed,
    pub stuck: &'a Stuck,
    pub tied: &'a Tied,
}

impl Heap {
    /// Its entries on the change lists.
    pub(crate) fn listed(&self) -> &Listed<LOOKERS> {
        &self.listed
    }

    pub(crate) fn new(index: u32, source: Source) -> Heap {
        Heap {
            state: Padded(Biased::new(HeapState::new(index, source))),
            remote: Padded(Remote::new()),
            allocates: Padded(AtomicU64::new(0)),
            index,
            pool: AtomicU32::new(u32::MAX),
            stream: AtomicU64::new(RETIRED),
            last_stream: AtomicU64::new(RETIRED),
            shared: AtomicBool::new(false),
            listed: Listed::default(),
            outside: OnceLock::new(),
        }
    }

    /// Sets what requests on its fast path need beyond it; always the same.
    pub(crate) fn set_outside(&self, outside: &'static dyn Outside) {
        let _ = self.outside.set(outside);
    }

    /// What was set; nothing as long as no thread had a fast path.
    pub(crate) fn outside(&self) -> Option<&'static dyn Outside> {
        self.outside.get().copied()
    }

    /// The id of its pool; [`NO_POOL`](super::types::NO_POOL) for none.
    #[inline(always)]
    pub(crate) fn pool(&self) -> u32 {
        self.pool.load(Relaxed)
    }

    /// The stream that it currently serves.
    #[inline(always)]
    pub(crate) fn stream(&self) -> u64 {
        self.stream.load(Relaxed)
    }

    /// The stream that it serves or, if that has ended, has served; `None` if its memory has no order.
    pub(crate) fn last_stream(&self) -> Option<u64> {
        Some(self.last_stream.load(Relaxed)).filter(|&s| s != UNORDERED && s != RETIRED)
    }

    /// Takes the lock if the calling thread owns it.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn enter<'a>(&'static self, shared: Shared<'a>) -> Option<OwnedHeap<'a>> {
        let held = HeldLock::new::<locks::Heap>(self.index);
        // A resting heap has no owner.
        Some(LockedHeap { heap: self, shared, state: self.state.enter()?, held })
    }

    /// Takes the lock.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn lock<'a>(&'static self, shared: Shared<'a>) -> LockedHeap<'a> {
        let held = HeldLock::new::<locks::Heap>(self.index);
        let mut h = LockedHeap { heap: self, shared, state: self.state.lock(), held };
        h.wake();
        h
    }

    /// Takes the lock only to read: a heap that rests goes on resting.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn look<'a>(&'static self, shared: Shared<'a>) -> LockedHeap<'a> {
        let held = HeldLock::new::<locks::Heap>(self.index);
        LockedHeap { heap: self, shared, state: self.state.look(), held }
    }

    /// Takes the lock for an allocation. Frees from other threads are sent to the calling thread from now on.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn lock_to_allocate<'a>(&'static self, shared: Shared<'a>) -> LockedHeap<'a> {
        let h = self.lock(shared);
        let token = thread_token();
        if self.allocates.load(Relaxed) != token {
            self.allocates.store(token, Relaxed);
        }
        h
    }

    /// Closes the fast path into the heap, and waits for a thread that is inside. The caller has seen to it that nobody
    /// opens it again under the name that it had. The calling thread holds no heap.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn close_fast_path(&self) {
        let _held = HeldLock::new::<locks::Heap>(self.index);
        self.state.close_fast_path();
    }

    /// Whether the calling thread allocated here last.
    #[inline(always)]
    pub(crate) fn is_this_threads(&self) -> bool {
        self.allocates.load(Relaxed) == thread_token()
    }

    /// Frees a block of the heap from a thread that does not allocate here, without the lock: one claim and one push;
    /// the next holder of the lock does the rest. `false`: the block is not plainly live, and nothing is done.
    pub(crate) fn free_remotely(&'static self, shared: Shared<'_>, f: Found<'_>, offset: u64) -> bool {
        if !self.shared.load(SeqCst) {
            // From here on, a thread that ends a block's life under the lock knows that others may do so without it.
            let mut h = self.lock(shared);
            h.state.shared = true;
            self.shared.store(true, SeqCst);
        }
        let d = f.desc;
        if !d.claim_remote() {
            return false;
        }
        // The descriptor may have been reused for another block between the lookup and the claim. Then the caller freed
        // twice, in two threads at once, and the other block stays live.
        if shared.maps.starts_at(f.id, offset) && shared.maps.granule_of(offset).heap() == self.index {
            self.remote.push(f.id, |next| d.set_prev(next));
            // SeqCst: see `LockedHeap::rest`.
            if !self.listed.is_known() {
                shared.changed.note(self.index, &self.listed);
            }
            return true;
        }
        d.unclaim_remote();
        false
    }
}

/// A heap whose lock is held until this is dropped.
pub(crate) struct LockedHeap<'a, G = Guard<'static, HeapState, Way>> {
    pub heap: &'static Heap,
    shared: Shared<'a>,
    state: G,
    held: HeldLock,
}

/// The same for the thread that owns the biased lock.
pub(crate) type OwnedHeap<'a> = LockedHeap<'a, OwnerGuard<'static, HeapState, Way>>;

impl<'a> From<OwnedHeap<'a>> for LockedHeap<'a> {
    fn from(h: OwnedHeap<'a>) -> Self {
        LockedHeap { heap: h.heap, shared: h.shared, state: h.state.into(), held: h.held }
    }
}

/// Heaps that are locked together, only to read: see [`Heap::look`]. Their owners are interrupted once for all of them.
#[derive(Default)]
pub(crate) struct LookedHeaps(Looks<'static, HeapState, Way, (&'static Heap, HeldLock)>);

impl LookedHeaps {
    /// Makes room for so many heaps in all. `false`: the host has no memory for it.
    pub(crate) fn make_room(&mut self, heaps: usize) -> bool {
        self.0.make_room(heaps)
    }

    /// Takes one more heap's lock.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn ask(&mut self, heap: &'static Heap) {
        let held = HeldLock::new::<locks::Heap>(heap.index);
        self.0.ask(&heap.state, (heap, held));
    }

    /// Adds all of them to a list, in the order of asking.
    pub(crate) fn take<'a>(&mut self, shared: Shared<'a>, into: &mut Vec<LockedHeap<'a>>) {
        into.extend(self.0.take().map(|(state, (heap, held))| LockedHeap { heap, shared, state, held }));
    }

    /// See [`Looks::crowded`].
    pub(crate) fn crowded(&self) -> bool {
        self.0.crowded()
    }
}

impl<G: Deref<Target = HeapState>> Deref for LockedHeap<'_, G> {
    type Target = HeapState;
    #[inline(always)]
    fn deref(&self) -> &HeapState {
        &self.state
    }
}

impl<G: DerefMut<Target = HeapState>> DerefMut for LockedHeap<'_, G> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut HeapState {
        &mut self.state
    }
}

impl LockedHeap<'_> {
    /// A looker has seen everything in this heap: the next change enters the heap on its list again. No thread owns the
    /// lock until then.
    pub(crate) fn rest(&mut self, looker: usize) {
        self.state.rests = true;
        self.state.rest();
        // SeqCst, here and in remote frees: either the freeing thread finds the bit cleared, or this one finds the
        // block.
        self.heap.listed.is_seen_by(looker);
        if !self.heap.remote.is_empty_now() {
            self.shared.changed.note(self.heap.index, &self.heap.listed);
        }
    }

    /// The heap, which was locked only to read, is changed after all.
    pub(crate) fn wake(&mut self) {
        if std::mem::take(&mut self.state.rests) {
            self.shared.changed.note(self.heap.index, &self.heap.listed);
        }
    }

    /// Makes the heap serve `stream` of a pool from now on.
    pub(crate) fn serve(&mut self, pool: u32, id: u64, stream: Option<Arc<Stream>>, live_flags: u32) {
        self.state.close_fast_path();
        self.state.served = self.maps().shape.served();
        self.state.reviving = reviving(self.heap.index, live_flags);
        self.state.counters.reset_highest();
        self.state.stream = stream;
        let before = self.heap.pool.swap(pool, Relaxed);
        self.heap.stream.store(id, Relaxed);
        self.heap.last_stream.store(id, Relaxed);
        if before != pool {
            // The search for free granules knows the heap by its pool, and forgot it together with the earlier pool.
            self.heap.listed.is_seen_by(STOCK);
            self.shared.changed.note(self.heap.index, &self.heap.listed);
        }
    }

    /// The device has ended: empties the heap.
    pub(crate) fn become_empty(&mut self, source: Source) {
        self.forget_stuck();
        self.state.close_fast_path();
        *self.state = HeapState { shared: self.state.shared, ..HeapState::new(self.heap.index, source) };
        self.heap.remote.take();
    }

    /// Sets the stream that the heap serves. If it serves none, `id` says why: [`RETIRED`](super::types::RETIRED) or
    /// [`UNORDERED`](super::types::UNORDERED).
    pub(crate) fn go_by(&mut self, id: u64) {
        self.state.close_fast_path();
        self.heap.stream.store(id, Relaxed);
    }
}

impl<'a, G: DerefMut<Target = HeapState>> LockedHeap<'a, G> {
    #[inline(always)]
    fn maps(&self) -> &'a Maps {
        self.shared.maps
    }

    /// The heap's number, as in granule records.
    #[inline(always)]
    fn me(&self) -> u32 {
        self.heap.index
    }
}
