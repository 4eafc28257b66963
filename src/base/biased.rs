//! A lock that costs its usual owner no atomic operation.
//!
//! A thread that takes the lock again and again, with no other thread asking for it, becomes its *owner*: from then
//! on it enters with two plain stores and a few loads. Another thread that wants the lock first revokes the
//! ownership: it clears `owner`, makes every thread of the process pass a memory barrier (the `membarrier` system
//! call of Linux), and waits until the owner has left. That costs microseconds, so a lock that changes hands often
//! stops making owners: each revocation doubles the number of entries before the next owner is made.
//!
//! Why two threads are never inside together: the owner writes `INSIDE` in its seat and then reads `owner`; a thread
//! that revokes writes `owner` and then reads the seat. With a full barrier between the two steps on both sides, at
//! least one of them sees the other. The owner's side has only a compiler barrier; the system call acts as a full
//! barrier on the owner's processor too, wherever the owner was at that moment. Where the system call is missing,
//! no thread ever becomes owner, and this is a plain spin lock. Where it is refused later (a sandbox that was
//! set up after us), `barrier::heavy` falls back to another way, and no thread becomes owner any more.
//!
//! Each thread that was ever owner has a *seat* of its own in the lock, which no other thread writes. A thread whose
//! ownership was revoked may have been stopped between reading `owner` and storing `INSIDE`. When it goes on, it
//! notices and clears `INSIDE` in its own seat, which nobody reads by then. So it never disturbs a later owner,
//! however long it was stopped, even if it never runs again.

use crate::base::sync::waited;
use crate::base::sync::{
    AtomicBool, AtomicPtr, AtomicU64, Ordering, UnsafeCell, pause, set_flag, thread_token,
};
use std::ops::{Deref, DerefMut};

#[cfg(all(target_os = "linux", not(loom), not(miri)))]
mod barrier;
#[cfg(not(all(target_os = "linux", not(loom), not(miri))))]
#[path = "biased/barrier_none.rs"]
mod barrier;

/// A thread that enters more often than this in a row becomes the owner; doubled by each revocation.
const STREAK: u32 = if cfg!(loom) { 1 } else { 32 };
/// The number of revocations after which that no longer doubles.
const MAX_LOSSES: u32 = if cfg!(loom) { 0 } else { 12 };

/// The lock's record of a thread that is or was its owner. It has a cache line of its own, since the thread writes
/// it at each entry.
#[derive(Debug)]
#[repr(align(64))]
struct Seat {
    /// The token of the thread, which is even, or 0 of no thread; and `INSIDE` while the thread holds the lock as its
    /// owner. Only the thread writes it. One word, so that one compare says both.
    word: AtomicU64,
}

/// In the word of a [`Seat`]: the thread holds the lock as its owner.
const INSIDE: u64 = 1;

impl Seat {
    /// The token of the thread.
    fn token(&self) -> u64 {
        self.word.load(Ordering::Relaxed) & !INSIDE
    }

    /// Notes that the thread is inside. Only for the thread whose seat it is, and that is not.
    #[inline(always)]
    fn enter(&self, me: u64) {
        self.word.store(me + INSIDE, Ordering::Relaxed);
    }

    /// Notes that the thread has left. Only for the thread whose seat it is, and that is inside.
    #[inline(always)]
    fn leave(&self) {
        // Release pairs with the Acquire in `wait_until_out`.
        self.word.store(self.word.load(Ordering::Relaxed) - INSIDE, Ordering::Release);
    }
}

/// A lock that is biased to one thread, its owner: see the head of this file.
#[derive(Debug)]
pub struct Biased<T> {
    /// The seat of the owner, or `nobody`. Changed only by the thread that holds `taken`, and by the owner itself in
    /// [`Guard::rest`]. What it points to lives as long as the lock.
    owner: AtomicPtr<Seat>,
    taken: AtomicBool, // the lock is held the usual way, not by its owner
    value: UnsafeCell<Guarded<T>>,
}

#[derive(Debug)]
struct Guarded<T> {
    last: u64,   // token of the last thread that took the lock the usual way
    streak: u32, // how often in a row that thread did
    losses: u32, // how often an owner was revoked
    rested: u64, // token of the owner that gave the lock up by `rest`; 0: none
    #[expect(clippy::vec_box, reason = "the owner word points to them: they must not move")]
    seats: Vec<Box<Seat>>, // of every thread that was ever owner
    value: T,
}

// SAFETY: `value` is reached only through a guard, and at most one guard exists at a time: see the text.
unsafe impl<T: Send> Sync for Biased<T> {}
// SAFETY: the lock owns the value and the seats; moving it moves them.
unsafe impl<T: Send> Send for Biased<T> {}

/// Holds a [`Biased`] lock on behalf of its owner until dropped.
#[derive(Debug)]
pub struct OwnerGuard<'a, T> {
    lock: &'a Biased<T>,
    seat: &'a Seat,
}

/// Holds a [`Biased`] lock until dropped.
#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a Biased<T>,
    seat: Option<&'a Seat>, // set if the owner holds it: the owner's seat
    rest: bool,             // clear the owner when this is dropped
}

/// The seat of no thread.
fn nobody() -> *mut Seat {
    #[cfg(not(loom))]
    {
        static NOBODY: Seat = Seat { word: AtomicU64::new(0) };
        (&raw const NOBODY).cast_mut()
    }
    #[cfg(loom)]
    std::ptr::null_mut()
}

impl<T> Biased<T> {
    /// An open lock without an owner.
    pub fn new(value: T) -> Self {
        Biased {
            owner: AtomicPtr::new(nobody()),
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(Guarded {
                last: 0,
                streak: 0,
                losses: 0,
                rested: 0,
                seats: Vec::new(),
                value,
            }),
        }
    }

    /// The seat that a pointer read from `owner` leads to.
    #[inline(always)]
    fn seat(&self, at: *mut Seat) -> Option<&Seat> {
        #[cfg(loom)]
        if at.is_null() {
            return None;
        }
        // SAFETY: `nobody`, or a box in `seats`, from which nothing is ever removed: it lives as long as the lock.
        Some(unsafe { &*at })
    }

    /// Takes the lock if the calling thread is its owner, at the cost of a few plain instructions.
    #[inline(always)]
    pub fn enter(&self) -> Option<OwnerGuard<'_, T>> {
        // Acquire pairs with the Release in `make_owner`: the seat is fully initialised.
        let at = self.owner.load(Ordering::Acquire);
        let seat = self.seat(at)?;
        let me = thread_token();
        if seat.word.load(Ordering::Relaxed) != me {
            return None; // another thread is the owner, or this thread already holds the lock
        }
        seat.enter(me);
        barrier::light();
        if self.owner.load(Ordering::Relaxed) == at {
            // What earlier holders did is visible: this thread became owner while it held `taken`, and only it has
            // held the lock since.
            return Some(OwnerGuard { lock: self, seat });
        }
        seat.leave();
        None
    }

    /// Takes the lock, waiting for it if need be.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        match self.enter() {
            Some(g) => g.into(),
            None => self.take(),
        }
    }

    /// Takes the lock to read what it guards. Unlike [`lock`](Self::lock), it never makes the thread the owner.
    pub fn look(&self) -> Guard<'_, T> {
        match self.enter() {
            Some(g) => g.into(),
            None => self.take_plainly(),
        }
    }

    /// Takes the lock the usual way, and revokes its owner if it has one.
    #[inline(never)]
    fn take_plainly(&self) -> Guard<'_, T> {
        // The Acquire in `set_flag` pairs with the Release in `Guard::drop` and in `make_owner`.
        let is_taken = || self.taken.load(Ordering::Relaxed) || set_flag(&self.taken);
        if is_taken() {
            waited::timed(|| {
                let mut round = 0;
                loop {
                    pause(round);
                    round = round.saturating_add(1);
                    if !is_taken() {
                        break;
                    }
                }
            });
        }
        let mut guard = Guard { lock: self, seat: None, rest: false };
        // Acquire pairs with the Release of an owner that called `rest`: what it did under the lock is visible.
        let owner = self.seat(self.owner.load(Ordering::Acquire)).filter(|s| s.token() != 0);
        if let Some(seat) = owner {
            let me = thread_token();
            if seat.token() == me {
                // The calling thread holds the lock: as with any lock that is not reentrant, it deadlocks.
                Self::wait_until_out(seat);
                return guard.make_owner(me);
            }
            self.owner.store(nobody(), Ordering::Relaxed);
            waited::timed(|| {
                barrier::heavy();
                Self::wait_until_out(seat);
            });
            let g = guard.parts();
            g.losses = (g.losses + 1).min(MAX_LOSSES);
            g.streak = 0;
        }
        guard
    }

    /// As `take_plainly`, but counts the entry, and may make the calling thread the owner.
    #[inline(never)]
    fn take(&self) -> Guard<'_, T> {
        let mut guard = self.take_plainly();
        if guard.seat.is_some() {
            return guard;
        }
        let me = thread_token();
        let g = guard.parts();
        if g.last != me {
            g.last = me;
            g.streak = 0;
        }
        g.streak = g.streak.saturating_add(1);
        let rested = std::mem::take(&mut g.rested) == me;
        if (rested || g.streak > STREAK << g.losses) && barrier::works() {
            g.streak = 0;
            return guard.make_owner(me);
        }
        guard
    }

    /// Waits until the owner, or a former one, has left. The caller holds `taken`.
    #[cold]
    fn wait_until_out(seat: &Seat) {
        let mut round = 0;
        // Acquire pairs with the owner's Release when it leaves: its writes are visible afterwards.
        while seat.word.load(Ordering::Acquire) & INSIDE != 0 {
            pause(round);
            round = round.saturating_add(1);
        }
    }
}

impl<'a, T> From<OwnerGuard<'a, T>> for Guard<'a, T> {
    fn from(g: OwnerGuard<'a, T>) -> Self {
        let (lock, seat) = (g.lock, g.seat);
        std::mem::forget(g);
        Guard { lock, seat: Some(seat), rest: false }
    }
}

impl<T> Deref for OwnerGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        #[cfg(not(loom))]
        let p = self.lock.value.get();
        #[cfg(loom)]
        let p = self.lock.value.with(|p| p.cast_mut());
        // SAFETY: this guard is the only one, so nobody writes the value while this reference lives.
        unsafe { &(*p).value }
    }
}

impl<T> DerefMut for OwnerGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        #[cfg(not(loom))]
        let p = self.lock.value.get();
        #[cfg(loom)]
        let p = self.lock.value.with_mut(|p| p);
        // SAFETY: this guard is the only one, and `&mut self` makes this reference the only one of it.
        unsafe { &mut (*p).value }
    }
}

impl<T> Drop for OwnerGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.seat.leave();
    }
}

impl<'a, T> Guard<'a, T> {
    /// Makes the calling thread (`me` is its token) the owner. The thread holds `taken`; afterwards it holds the lock
    /// as owner instead, and `taken` is free for others to queue on.
    fn make_owner(mut self, me: u64) -> Self {
        let seats = &mut self.parts().seats;
        let at = seats.iter().position(|s| s.token() == me).unwrap_or_else(|| {
            seats.push(Box::new(Seat { word: AtomicU64::new(me) }));
            seats.len() - 1
        });
        let seat: *const Seat = &raw const *seats[at];
        // SAFETY: a box in `seats`, from which nothing is ever removed; the lock outlives `'a`.
        let seat: &'a Seat = unsafe { &*seat };
        seat.enter(me);
        self.seat = Some(seat);
        // Release: a thread that reads the pointer finds the seat initialised.
        self.lock.owner.store(std::ptr::from_ref(seat).cast_mut(), Ordering::Release);
        // Release: the next thread that takes `taken` and then reads the seat finds it inside.
        self.lock.taken.store(false, Ordering::Release);
        self
    }

    /// Clears the owner when this guard is dropped, so that the next entry of any thread goes through
    /// [`Biased::lock`]. If that thread is the former owner, it becomes owner again at once.
    pub fn rest(&mut self) {
        let owner = self.seat.map(Seat::token);
        self.rest = owner.is_some();
        if let Some(token) = owner {
            self.parts().rested = token;
        }
    }

    #[inline(always)]
    fn parts(&mut self) -> &mut Guarded<T> {
        #[cfg(not(loom))]
        let p = self.lock.value.get();
        #[cfg(loom)]
        let p = self.lock.value.with_mut(|p| p);
        // SAFETY: this guard is the only one, and `&mut self` makes this reference the only one of it.
        unsafe { &mut *p }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        #[cfg(not(loom))]
        let p = self.lock.value.get();
        #[cfg(loom)]
        let p = self.lock.value.with(|p| p.cast_mut());
        // SAFETY: this guard is the only one, so nobody writes the value while this reference lives.
        unsafe { &(*p).value }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.parts().value
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        let Some(seat) = self.seat else {
            // Release pairs with the Acquire in `set_flag`.
            return self.lock.taken.store(false, Ordering::Release);
        };
        if self.rest {
            // Nothing under the lock is touched from here on. Release pairs with the Acquire in `take_plainly`: a
            // thread that finds no owner does not wait for this seat.
            self.lock.owner.store(nobody(), Ordering::Release);
        }
        seat.leave();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn own<T>(l: &Biased<T>) {
        for _ in 0..=STREAK << MAX_LOSSES {
            drop(l.lock());
        }
    }

    #[test]
    fn a_lone_thread_becomes_owner_and_loses_it_to_another() {
        let l = Biased::new(0u64);
        assert!(l.enter().is_none());
        own(&l);
        assert_eq!(l.enter().is_some(), barrier::works());
        std::thread::scope(|s| {
            s.spawn(|| *l.lock() += 1);
        });
        assert!(l.enter().is_none());
        assert_eq!(*l.lock(), 1);
    }

    #[test]
    fn owner_and_others_exclude_each_other() {
        let l = Biased::new((0u64, 0u64));
        let turns = 200_000u64;
        std::thread::scope(|s| {
            s.spawn(|| {
                for i in 0..turns {
                    let mut g = l.lock();
                    g.0 += 1;
                    std::hint::black_box(i);
                    g.1 += 1;
                }
            });
            for _ in 0..2 {
                s.spawn(|| {
                    for i in 0..turns / 100 {
                        let mut g = l.lock();
                        assert_eq!(g.0, g.1);
                        g.0 += 1;
                        std::hint::black_box(i);
                        g.1 += 1;
                        drop(g);
                        if i % 16 == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        assert_eq!(*l.lock(), (turns + turns / 50, turns + turns / 50));
    }

    #[test]
    fn four_threads_take_turns_at_owning() {
        let l = Biased::new([0u64; 2]);
        // Long runs of one thread, so that there are owners, at other times than those of the other threads.
        let (rounds, run) = (40u64, 2_000u64);
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let l = &l;
                s.spawn(move || {
                    for round in 0..rounds {
                        for _ in 0..run / (1 + (t + round) % 4) {
                            let mut g = l.lock();
                            assert_eq!(g[0], g[1]);
                            g[0] += 1;
                            std::hint::black_box(&mut *g);
                            g[1] += 1;
                        }
                        if (t + round) % 2 == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        let each: u64 = (1..=4).map(|d| rounds / 4 * (run / d)).sum();
        assert_eq!(*l.lock(), [4 * each; 2]);
    }

    #[test]
    fn a_thread_that_lost_the_lock_and_stays_away_is_no_hindrance() {
        let l = Biased::new(());
        own(&l);
        let owns_there = || {
            std::thread::scope(|s| {
                let t = s.spawn(|| {
                    own(&l);
                    l.enter().is_some()
                });
                t.join().unwrap()
            })
        };
        // This thread lost the lock and may be on its way in, for all that the others know.
        for _ in 0..3 {
            assert_eq!(owns_there(), barrier::works());
        }
    }

    #[test]
    fn a_rested_lock_has_no_owner_until_the_next_entry() {
        let l = Biased::new(0u64);
        own(&l);
        let mut g = l.lock();
        g.rest();
        *g += 1;
        drop(g);
        assert!(l.enter().is_none());
        drop(l.lock());
        assert_eq!(l.enter().is_some(), barrier::works(), "its owner is it again at once");
        let mut g = l.lock();
        g.rest();
        drop(g);
        std::thread::scope(|s| {
            s.spawn(|| {
                *l.lock() += 1;
                assert!(l.enter().is_none(), "another thread has to come by more often");
            });
        });
        assert_eq!(*l.lock(), 2);
    }

    #[test]
    fn resting_and_taking_exclude_each_other() {
        let l = Biased::new([0u64; 2]);
        let turns = 20_000u64;
        std::thread::scope(|s| {
            for t in 0..2u64 {
                let l = &l;
                s.spawn(move || {
                    for i in 0..turns {
                        let mut g = l.lock();
                        assert_eq!(g[0], g[1]);
                        g[0] += 1;
                        std::hint::black_box(&mut *g);
                        g[1] += 1;
                        if (i + t) % 3 == 0 {
                            g.rest();
                        }
                        drop(g);
                        if i % 64 == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        assert_eq!(*l.lock(), [2 * turns; 2]);
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn the_barrier_without_the_call_leaves_the_thread_where_it_may_run() {
        let processors = || std::thread::available_parallelism().unwrap();
        let before = processors();
        barrier::heavy_as_if_refused();
        assert_eq!(processors(), before);
    }

    #[test]
    fn a_guard_of_the_owner_keeps_another_out() {
        let l = Biased::new(0u64);
        own(&l);
        let Some(mut g) = l.enter() else { return };
        std::thread::scope(|s| {
            let t = s.spawn(|| *l.lock());
            std::thread::sleep(std::time::Duration::from_millis(20));
            *g = 7;
            drop(g);
            assert_eq!(t.join().unwrap(), 7);
        });
    }
}
