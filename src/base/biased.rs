//! A lock that costs its usual owner no atomic operation.
//!
//! A thread that takes the lock again and again, with no other thread asking for it, becomes its *owner*: from then
//! on it enters with two plain stores and a few loads. Another thread that wants the lock first revokes the
//! ownership: it clears `owner`, makes the owner pass a memory barrier, and waits until it has left. An owner that is busy comes
//! to the lock itself, and says that it has passed one (`base/sync/answers.rs`). Only if it does not for a moment, every thread of
//! the process is interrupted for it (the `membarrier` system call of Linux), which costs microseconds. A lock that changes hands
//! often stops making owners: each revocation doubles the number of entries before the next owner is made.
//!
//! Why two threads are never inside together: the owner writes `INSIDE` in its seat and then reads `owner`; a thread
//! that revokes writes `owner` and then reads the seat. With a full barrier between the two steps on both sides, at
//! least one of them sees the other. The owner's side has only a compiler barrier; the system call acts as a full
//! barrier on the owner's processor too, wherever the owner was at that moment. Where the system call is missing,
//! no thread ever becomes owner, and this is a plain spin lock. Where it is refused later (a sandbox that was
//! set up after us), `barrier::heavy` falls back to another way, and no thread becomes owner any more.
//!
//! Whoever only looks (a reader of statistics) does not take the ownership away for good. An owner that has answered has it back when
//! the looker leaves. One that was interrupted may be idle: it is owner again when it comes, and until then nobody has to
//! interrupt it. Where owners are interrupted all the time, there is none for a millisecond at most.
//!
//! Each thread that was ever owner has a *seat* of its own in the lock, which no other thread writes. A thread whose
//! ownership was revoked may have been stopped between reading `owner` and storing `INSIDE`. When it goes on, it
//! notices and clears `INSIDE` in its own seat, which nobody reads by then, or has its ownership back and is inside. So
//! it never disturbs a later owner, however long it was stopped, even if it never runs again.
//!
//! The owner may leave a *fast path* open by which it enters without looking the lock up (`biased/seat.rs`).

use crate::base::boxed::try_box;
use crate::base::sync::{AtomicBool, AtomicPtr, Ordering, UnsafeCell, pause, set_flag, thread_token};
use crate::base::sync::{answers, waited};
use std::ops::{Deref, DerefMut};
#[cfg(not(loom))]
use std::time::{Duration, Instant};

#[cfg(all(target_os = "linux", not(loom), not(miri)))]
mod barrier;
#[cfg(not(all(target_os = "linux", not(loom), not(miri))))]
#[path = "biased/barrier_none.rs"]
mod barrier;
#[cfg(not(loom))]
pub(crate) mod fast_paths;
mod looks;
mod parts;
mod seat;

pub use looks::Looks;
pub use parts::{Biased, Name, OwnerGuard, Seat};
use parts::{Guarded, INSIDE};
pub use seat::{Entry, FastGuard, FastPath, Seated};

/// A thread that enters more often than this in a row becomes the owner; doubled by each revocation.
const STREAK: u32 = if cfg!(loom) { 1 } else { 32 };
/// The number of revocations after which that no longer doubles.
const MAX_LOSSES: u32 = if cfg!(loom) { 0 } else { 12 };

/// So many lookers in a row may interrupt an owner that comes back. With one more there is no owner until that time has passed since
/// the first: a reader in a tight loop would have the owner's processor interrupted all the time, at a higher price than that of
/// a lock without an owner.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 8 };
#[cfg(not(loom))]
const AGAIN: Duration = Duration::from_millis(1);

/// Holds a [`Biased`] lock until dropped.
#[derive(Debug)]
pub struct Guard<'a, T, W = ()> {
    lock: &'a Biased<T, W>,
    seat: Option<&'a Seat<T, W>>,  // set if the owner holds it: the owner's seat
    rest: bool,                    // clear the owner when this is dropped
    owner: Option<&'a Seat<T, W>>, // who was revoked, and is owner again when this is dropped
    name: Option<Name>,            // that one's fast path was open under it, and is again then
    answered: bool,                // that one was not interrupted
}

/// Makes the threads that are or were owners pass a full barrier. `answered`: see [`answers::ask`]. Returns whether none of them was
/// interrupted.
fn pass_barrier(answered: &dyn Fn(u64) -> bool) -> bool {
    let answered = answers::ask(answered);
    if !answered {
        barrier::heavy();
    }
    answered
}

impl<T, W> Guarded<T, W> {
    /// Counts a looker that has revoked the owner. Whether the owner may have its ownership back.
    fn may_give_back(&mut self, interrupted: bool) -> bool {
        if !self.was_looked_at_lately() {
            self.begin_to_count_looks();
        }
        self.looks += 1;
        self.interrupts += u32::from(interrupted);
        self.interrupts <= LOOKS
    }

    /// Whether lookers have interrupted owners too often for there to be one.
    fn is_interrupted_all_the_time(&self) -> bool {
        self.interrupts > LOOKS && !cfg!(loom) && self.was_looked_at_lately()
    }

    /// Whether lookers revoke the owner so often that one who need not look should give way.
    fn is_looked_at_all_the_time(&self) -> bool {
        self.looks > LOOKS && !cfg!(loom) && self.was_looked_at_lately()
    }

    #[cfg(not(loom))]
    fn was_looked_at_lately(&self) -> bool {
        self.looked.is_some_and(|began| began.elapsed() < AGAIN)
    }

    #[cfg(not(loom))]
    fn begin_to_count_looks(&mut self) {
        (self.looks, self.interrupts, self.looked) = (0, 0, Some(Instant::now()));
    }

    // A model has no time: all looks are of one moment.
    #[cfg(loom)]
    fn was_looked_at_lately(&self) -> bool {
        true
    }

    #[cfg(loom)]
    fn begin_to_count_looks(&mut self) {}
}

impl<T, W> Biased<T, W> {
    /// An open lock without an owner.
    pub fn new(value: T) -> Self {
        Biased {
            owner: AtomicPtr::new(std::ptr::null_mut()),
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(Guarded {
                last: 0,
                streak: 0,
                losses: 0,
                rested: 0,
                looks: 0,
                interrupts: 0,
                looked: None,
                seats: Vec::new(),
                value,
            }),
        }
    }

    /// Where the value is. Only the holder of the lock may follow the pointer; a model notes a read here.
    #[inline(always)]
    fn to_read(&self) -> *const Guarded<T, W> {
        #[cfg(not(loom))]
        return self.value.get();
        #[cfg(loom)]
        self.value.with(|p| p)
    }

    /// The same for a write.
    #[inline(always)]
    fn to_write(&self) -> *mut Guarded<T, W> {
        #[cfg(not(loom))]
        return self.value.get();
        #[cfg(loom)]
        self.value.with_mut(|p| p)
    }

    /// The seat that a pointer read from `owner` leads to.
    #[inline(always)]
    fn seat(&self, at: *mut Seat<T, W>) -> Option<&Seat<T, W>> {
        // SAFETY: null, or a box in `seats`, from which nothing is ever removed: it lives as long as the lock.
        unsafe { at.as_ref() }
    }

    /// Takes the lock if the calling thread is its owner, at the cost of a few plain instructions.
    #[inline(always)]
    pub fn enter(&self) -> Option<OwnerGuard<'_, T, W>> {
        // Acquire pairs with the Release in `make_owner`: the seat is fully initialised.
        let at = self.owner.load(Ordering::Acquire);
        let seat = self.seat(at)?;
        if seat.word.load(Ordering::Relaxed) != thread_token() {
            return None; // another thread is the owner, or this thread already holds the lock
        }
        seat.enter();
        barrier::light();
        // Acquire: with the Release of a looker that has given the ownership back since then. What earlier holders did is
        // visible: this thread became owner while it held `taken`, and only it and such lookers have held the lock since.
        if self.owner.load(Ordering::Acquire) == at {
            return Some(OwnerGuard { lock: self, seat });
        }
        seat.leave();
        None
    }

    /// Takes the lock, waiting for it if need be.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T, W> {
        match self.enter() {
            Some(g) => g.into(),
            None => self.take(),
        }
    }

    /// Takes the lock to read what it guards. Unlike [`lock`](Self::lock), it never makes the thread the owner, and an owner
    /// is owner again afterwards, unless there are many lookers. To look at several, see [`Looks`].
    pub fn look(&self) -> Guard<'_, T, W> {
        let mut guard = match self.enter() {
            Some(g) => return g.into(),
            None => self.take_plainly(),
        };
        guard.only_looks();
        guard
    }

    /// Closes the fast path into the lock, and waits for a thread that is inside. The owner stays the owner, and may open the
    /// fast path again if it is still allowed to (`OwnerGuard::open`).
    pub fn close_fast_path(&self) {
        match self.enter() {
            Some(mut own) => own.close_fast_path(),
            None => self.take_plainly().close_fast_path(),
        }
    }

    /// Takes the lock the usual way, and revokes its owner if it has one. The caller says what becomes of that.
    #[inline(never)]
    fn take_plainly(&self) -> Guard<'_, T, W> {
        let (mut guard, owner) = self.begin_to_take();
        if let Some(seat) = owner {
            waited::timed(|| {
                guard.answered = pass_barrier(&|number| seat.has_answered(number));
                guard.await_owner(seat);
            });
        }
        guard
    }

    /// The first half of `take_plainly`: the owner, if there is one, is owner no more and may still be inside. Before the guard is
    /// used or dropped, a heavy barrier and [`Guard::await_owner`] have to follow.
    fn begin_to_take(&self) -> (Guard<'_, T, W>, Option<&Seat<T, W>>) {
        // The Acquire in `set_flag` pairs with the Release in `Guard::drop` and in `make_owner`.
        let is_taken = || self.taken.load(Ordering::Relaxed) || set_flag(&self.taken);
        if is_taken() {
            waited::timed(|| {
                let mut round = 0;
                loop {
                    answers::answer();
                    pause(round);
                    round = round.saturating_add(1);
                    if !is_taken() {
                        break;
                    }
                }
            });
        }
        let mut guard =
            Guard { lock: self, seat: None, rest: false, owner: None, name: None, answered: false };
        // Acquire pairs with the Release of an owner that called `rest`: what it did under the lock is visible.
        let Some(seat) = self.seat(self.owner.load(Ordering::Acquire)) else { return (guard, None) };
        let me = thread_token();
        if seat.token() == me {
            // The calling thread holds the lock: as with any lock that is not reentrant, it deadlocks.
            Self::wait_until_out(seat);
            return (guard.make_owner(me), None);
        }
        guard.name = seat.shut();
        self.owner.store(std::ptr::null_mut(), Ordering::Relaxed);
        (guard, Some(seat))
    }

    /// As `take_plainly`, but counts the entry, and may make the calling thread the owner.
    #[inline(never)]
    fn take(&self) -> Guard<'_, T, W> {
        let mut guard = self.take_plainly();
        if guard.seat.is_some() {
            return guard;
        }
        guard.loses_owner();
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
            if rested || !g.is_interrupted_all_the_time() {
                return guard.make_owner(me);
            }
        }
        guard
    }

    /// Waits until the owner, or a former one, has left. The caller holds `taken`.
    #[cold]
    fn wait_until_out(seat: &Seat<T, W>) {
        let mut round = 0;
        // Acquire pairs with the owner's Release when it leaves: its writes are visible afterwards.
        while seat.word.load(Ordering::Acquire) & INSIDE != 0 {
            pause(round);
            round = round.saturating_add(1);
        }
    }
}

impl<'a, T, W> From<OwnerGuard<'a, T, W>> for Guard<'a, T, W> {
    fn from(g: OwnerGuard<'a, T, W>) -> Self {
        let (lock, seat) = (g.lock, g.seat);
        std::mem::forget(g);
        Guard { lock, seat: Some(seat), rest: false, owner: None, name: None, answered: false }
    }
}

impl<T, W> Deref for OwnerGuard<'_, T, W> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one, so nobody writes the value while this reference lives.
        unsafe { &(*self.lock.to_read()).value }
    }
}

impl<T, W> DerefMut for OwnerGuard<'_, T, W> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one, and `&mut self` makes this reference the only one of it.
        unsafe { &mut (*self.lock.to_write()).value }
    }
}

impl<T, W> Drop for OwnerGuard<'_, T, W> {
    #[inline(always)]
    fn drop(&mut self) {
        self.seat.leave();
    }
}

impl<'a, T, W> Guard<'a, T, W> {
    /// Makes the calling thread (`me` is its token) the owner. The thread holds `taken`; afterwards it holds the lock
    /// as owner instead, and `taken` is free for others to queue on. A thread that has no seat yet, while the heap has no
    /// room for one, goes on without.
    fn make_owner(mut self, me: u64) -> Self {
        let seats = &mut self.parts().seats;
        if seats.iter().all(|s| s.token() != me)
            && seats.try_reserve(1).is_ok()
            && let Some(seat) = try_box(Seat::new(me))
        {
            seats.push(seat);
        }
        let Some(seat) = seats.iter().find(|s| s.token() == me) else { return self };
        let seat: *const Seat<T, W> = &raw const **seat;
        // SAFETY: a box in `seats`, from which nothing is ever removed; the lock outlives `'a`.
        let seat: &'a Seat<T, W> = unsafe { &*seat };
        seat.enter();
        self.seat = Some(seat);
        // Release: a thread that reads the pointer finds the seat initialised.
        self.lock.owner.store(std::ptr::from_ref(seat).cast_mut(), Ordering::Release);
        // Release: the next thread that takes `taken` and then reads the seat finds it inside.
        self.lock.taken.store(false, Ordering::Release);
        self
    }

    /// The second half of `take_plainly`, after the barrier: waits until the owner that was revoked is out.
    fn await_owner(&mut self, seat: &'a Seat<T, W>) {
        Biased::wait_until_out(seat);
        // The owner may have opened it on its way out, and come in by it. Where it is not open the owner is out for good.
        while let Some(name) = seat.shut() {
            self.name = Some(name);
            barrier::heavy();
            Biased::wait_until_out(seat);
        }
        if seat.is_closed() {
            self.name = None; // by the owner, since it was shut
        }
        // One that has given the lock up meanwhile is to come through `lock`.
        self.owner = Some(seat).filter(|s| self.parts().rested != s.token());
    }

    /// The lock was taken to read only. An owner that was revoked is owner again afterwards: at once if it has answered, else when it
    /// comes again, unless owners are interrupted all the time.
    fn only_looks(&mut self) {
        // Without the barrier there are to be no owners any more: each revocation is dear then.
        if self.owner.is_some() && !barrier::works() {
            self.loses_owner();
        }
        let Some(seat) = self.owner else { return };
        let interrupted = !self.answered;
        let may = self.parts().may_give_back(interrupted);
        if interrupted {
            // It may be idle: if it comes again it is owner again, and until then nobody else interrupts it.
            self.owner = None;
            self.parts().rested = if may { seat.token() } else { 0 };
            self.parts().streak = 0;
        }
    }

    /// Who was revoked has lost its ownership for good.
    fn loses_owner(&mut self) {
        if self.owner.take().is_some() {
            let g = self.parts();
            g.losses = (g.losses + 1).min(MAX_LOSSES);
            g.streak = 0;
        }
    }

    /// Clears the owner when this guard is dropped, so that the next entry of any thread goes through
    /// [`Biased::lock`]. If that thread is the former owner, it becomes owner again at once.
    pub fn rest(&mut self) {
        self.rest = self.seat.is_some();
        self.close_fast_path();
        let owner = self.seat.or(self.owner.take()).map(Seat::token);
        if let Some(token) = owner {
            self.parts().rested = token;
        }
    }

    /// Closes the fast path: that of the calling thread if it is the owner, or that of the owner who was revoked.
    pub fn close_fast_path(&mut self) {
        self.name = None;
        if let Some(seat) = self.seat {
            seat.close();
        }
    }

    #[inline(always)]
    fn parts(&mut self) -> &mut Guarded<T, W> {
        // SAFETY: this guard is the only one, and `&mut self` makes this reference the only one of it.
        unsafe { &mut *self.lock.to_write() }
    }
}

impl<T, W> Deref for Guard<'_, T, W> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one, so nobody writes the value while this reference lives.
        unsafe { &(*self.lock.to_read()).value }
    }
}

impl<T, W> DerefMut for Guard<'_, T, W> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.parts().value
    }
}

impl<T, W> Drop for Guard<'_, T, W> {
    #[inline(always)]
    fn drop(&mut self) {
        let Some(seat) = self.seat else {
            if let Some(owner) = self.owner {
                // Release pairs with both loads in `enter`: the owner finds what was done here.
                self.lock.owner.store(std::ptr::from_ref(owner).cast_mut(), Ordering::Release);
                if let Some(name) = self.name {
                    owner.reopen(name);
                }
            }
            // Release pairs with the Acquire in `set_flag`.
            return self.lock.taken.store(false, Ordering::Release);
        };
        if self.rest {
            // Nothing under the lock is touched from here on. Release pairs with the Acquire in `take_plainly`: a
            // thread that finds no owner does not wait for this seat.
            self.lock.owner.store(std::ptr::null_mut(), Ordering::Release);
        }
        seat.leave();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
