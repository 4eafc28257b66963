//! The observers of a device's memory, which receive its events (`event.rs`): histories, recordings, checkers of memory.
//!
//! Without an observer an allocation or a free takes no instruction more: the device's pools are found in the handle
//! cache, and that path does not know of events. With an observer the pools are not found there
//! (`memory/handle_cache.rs`), and every call comes by `memory/requests.rs` or its twin in `memory/watched.rs`.
//!
//! An event may be delivered with locks held, and from any thread. So an observer neither locks nor allocates nor calls
//! this library. Observers may come and go at any time; only calls that run at that moment may go unreported.

use super::event::{Event, Told, WORDS, thread_number};
use crate::base::clock;
use crate::base::ring::Ring;
use crate::base::slots::AtomicRef;
use crate::base::sync::pause;
use crate::base::sync::system::{Mutex, ReadGuard, RwLock, lock};
use crate::core::PoolId;
use crate::device::StreamId;
use crate::locks;
use crate::runtime::entry::{reentry, tags};
use crate::runtime::watch::latency::Latencies;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Who is told.
pub trait Observer: Send + Sync {
    /// Something has happened. Comes from any thread, with any lock of this library held: it may take a lock of its
    /// own, under which nothing of the library is called, but should neither lock nor allocate. It does not panic. Calls of
    /// the C API are refused within it, and so is who begins or ends to watch the memory, also by a history or a recording
    /// ([`Watchers::add`](crate::runtime::Watchers::add) and the like); other calls may wait for ever.
    fn saw(&self, told: &Told);

    /// Where events are written instead, if it wants nothing else of them. A thread that is on its way may still write
    /// there when the observer has left.
    fn ring(&self) -> Option<&'static Ring> {
        None
    }

    /// Whether it wants [`breathe`](Self::breathe) to be called.
    fn breathes(&self) -> bool {
        false
    }

    /// The thread has delivered an event, or has waited for the device, and holds no lock. An observer that must not lose
    /// events may wait here.
    fn breathe(&self) {}

    /// A request has failed for lack of memory; its event was delivered before. The thread holds no lock. The program may be
    /// about to end, so this is the time to write what is buffered, without a long wait.
    fn failed(&self) {}

    /// Whether it wants to know soon after a wait for the device which frees have completed.
    fn is_curious(&self) -> bool {
        false
    }

    /// The library itself is about to read or write all of a range, also what is free in it; or it has done so, and
    /// blocks that live there have contents. With the same locks as [`saw`](Self::saw).
    fn reaches(&self, _address: u64, _bytes: u64, _done: bool) {}

    /// A graph may use memory of the pool whenever it runs, from now on, whether it is freed or not.
    fn keeps(&self, _pool: PoolId) {}

    /// The stream has ended, though its work may still run. Another one may get its number after this.
    fn ended(&self, _stream: StreamId) {}

    /// The observer was removed: no more events follow.
    fn left(&self) {}
}

/// Threads that deliver events at the same time use different locks, as far as there are enough.
const STRIPES: usize = 8;

/// An observer in the list.
#[derive(Clone)]
struct Seat {
    ring: Option<&'static Ring>,
    observer: Arc<dyn Observer>,
}

type List = Vec<Seat>;

/// The observers of one device's memory. Each stripe has all of them.
#[derive(Default)]
pub(crate) struct Observers {
    any: AtomicBool,
    /// Where the only one who watches wants its events written, if it wants nothing else and each takes a line.
    quick: AtomicRef<Ring>,
    breathes: AtomicBool,
    curious: AtomicBool,
    /// How long calls take.
    pub latencies: Latencies,
    /// Held while the list changes.
    changing: Mutex<(), locks::Observers>,
    stripes: [Stripe; STRIPES],
}

#[derive(Default)]
#[repr(align(128))]
struct Stripe(RwLock<List, locks::Stripe>);

impl Observers {
    /// Whether there is any. Relaxed: a call that misses one ran before it was added.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Delivers an event to all observers; fills in the time and the thread.
    #[inline]
    pub(crate) fn tell(&self, event: Event) {
        if self.any() {
            self.tell_now(event);
        }
    }

    /// Where events of requests and frees are written at once, if nothing else is to be done with them.
    #[inline(always)]
    pub(crate) fn quick(&self) -> Option<&'static Ring> {
        self.quick.get()
    }

    /// Tells of a request or a free by its words.
    #[cold]
    #[inline(never)]
    pub(crate) fn tell_words(&self, words: [u64; WORDS]) {
        let told = Told(words);
        if let Some(list) = self.list(told.thread()) {
            tell_all(&list, &told);
        }
    }

    fn tell_now(&self, mut event: Event) {
        event.thread = thread_number();
        event.time = clock::ticks();
        event.tag = tags::current(); // pools are not found the quickest way while there are any
        let Some(list) = self.list(event.thread) else { return };
        tell_all(&list, &Told::new(&event));
    }

    /// Whether an observer wants to know soon which frees have completed.
    #[inline]
    pub(crate) fn curious(&self) -> bool {
        self.curious.load(Relaxed)
    }

    /// See [`Observer::reaches`].
    pub(crate) fn reaches(&self, address: u64, bytes: u64, done: bool) {
        if self.curious() {
            self.each(|o| o.reaches(address, bytes, done));
        }
    }

    /// See [`Observer::keeps`].
    pub(crate) fn keeps(&self, pool: PoolId) {
        if self.curious() {
            self.each(|o| o.keeps(pool));
        }
    }

    /// See [`Observer::ended`].
    pub(crate) fn ended(&self, stream: StreamId) {
        if self.curious() {
            self.each(|o| o.ended(stream));
        }
    }

    #[cold]
    fn each(&self, f: impl Fn(&dyn Observer)) {
        self.list(thread_number()).iter().flat_map(|list| list.iter()).for_each(|seat| f(&*seat.observer));
    }

    /// The caller holds no lock.
    #[inline]
    pub(crate) fn breathe(&self) {
        if self.breathes.load(Relaxed) {
            self.breathe_now();
        }
    }

    #[cold]
    fn breathe_now(&self) {
        // Whoever changes the list does not wait for those that breathe.
        self.all_now().iter().for_each(|seat| seat.observer.breathe());
    }

    /// Those who watch now, as far as the host has memory for the list.
    #[inline(never)]
    fn all_now(&self) -> List {
        let mut all = List::new();
        if let Some(list) = self.list(thread_number())
            && all.try_reserve_exact(list.len()).is_ok()
        {
            all.extend_from_slice(&list);
        }
        all
    }

    /// See [`Observer::failed`]. The caller holds no lock.
    #[cold]
    pub(crate) fn failed(&self) {
        if self.any() {
            // As in `breathe_now`.
            self.all_now().iter().for_each(|seat| seat.observer.failed());
        }
    }

    /// The observers, by the stripe of the thread of that number.
    #[inline(always)]
    fn list(&self, thread: u32) -> Option<ReadGuard<'_, List>> {
        let stripe = &self.stripes[thread as usize % STRIPES].0;
        stripe.try_read().or_else(|| list_soon(stripe))
    }

    /// Adds an observer.
    pub(crate) fn add(&self, observer: &Arc<dyn Observer>) {
        clock::start();
        let _turn = lock(&self.changing);
        let mut all = List::new();
        for s in &self.stripes {
            let seat = Seat { ring: observer.ring(), observer: observer.clone() };
            let mut list = s.0.write();
            list.push(seat);
            all = list.clone();
        }
        self.quick.set(only_ring(&all));
        self.breathes.fetch_or(observer.breathes(), Relaxed);
        self.curious.fetch_or(observer.is_curious(), Relaxed);
        self.any.store(true, SeqCst);
    }

    /// The device ends.
    pub(crate) fn remove_all(&self) {
        let _turn = lock(&self.changing);
        self.any.store(false, SeqCst);
        self.quick.set(None);
        self.curious.store(false, Relaxed);
        let mut all = List::new();
        for s in &self.stripes {
            all = std::mem::take(&mut *s.0.write());
        }
        all.iter().for_each(|seat| seat.observer.left());
    }

    /// Removes an observer. When this returns, no thread is in it. Returns whether others are left.
    pub(crate) fn remove(&self, observer: &Arc<dyn Observer>) -> bool {
        let _turn = lock(&self.changing);
        let (mut left, mut breathes, mut curious, mut ring) = (0, false, false, None);
        self.quick.set(None);
        for s in &self.stripes {
            let mut list = s.0.write();
            list.retain(|seat| !Arc::ptr_eq(&seat.observer, observer));
            left = list.len();
            breathes = list.iter().any(|seat| seat.observer.breathes());
            curious = list.iter().any(|seat| seat.observer.is_curious());
            ring = only_ring(&list);
        }
        observer.left();
        self.breathes.store(breathes, Relaxed);
        self.curious.store(curious, Relaxed);
        self.quick.set(ring);
        self.any.store(left != 0, SeqCst);
        left != 0
    }
}

/// The longest wait for who changes the list. That takes a moment, but the thread may have to be woken first.
const PATIENCE: Duration = Duration::from_millis(20);

/// Waits for a change of the list, but not for ever: the thread may hold the list itself, in an observer that called the
/// library.
#[cold]
#[inline(never)]
fn list_soon(stripe: &RwLock<List, locks::Stripe>) -> Option<ReadGuard<'_, List>> {
    let until = Instant::now() + PATIENCE;
    let mut round = 0;
    loop {
        pause(round);
        round = round.saturating_add(1);
        if let Some(list) = stripe.try_read() {
            return Some(list);
        }
        if Instant::now() >= until {
            return stripe.try_read_first();
        }
    }
}

/// The ring of the only one who watches, if events are simply written there.
fn only_ring(list: &[Seat]) -> Option<&'static Ring> {
    match list {
        [Seat { ring: Some(ring), observer }] if !observer.breathes() && ring.is_short() => Some(ring),
        _ => None,
    }
}

#[inline(always)] // an observer that unwinds the stack passes one frame less
fn tell_all(seats: &[Seat], told: &Told) {
    seats.iter().for_each(|seat| match seat.ring {
        Some(ring) => ring.push(&told.0, &[]),
        None => reentry::in_observer(|| seat.observer.saw(told)),
    });
}
