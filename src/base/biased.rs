//! A lock that costs its usual owner no atomic operation.
//!
//! A thread that takes the lock again and again, with nobody else asking, becomes its *owner*: from then
//! on it enters with two plain stores and two loads. Another thread that wants the lock takes the right
//! away first: it clears the owner, makes every thread of the process pass a memory barrier (the
//! `membarrier` system call of Linux), and waits until the owner is out. That costs microseconds, so a
//! lock that changes hands often stops making owners: each loss doubles how long it waits to make one.
//!
//! Why this excludes. The owner writes `inside`, then reads `owner`; who takes the right away writes
//! `owner`, then reads `inside`. With a full barrier between the two steps on both sides, at least one of
//! them sees the other. The owner's side has only a compiler barrier; the system call is a full barrier
//! on the owner's processor too, wherever the owner was at that moment. Where the call is missing,
//! nobody ever becomes owner, and this is a plain spin lock.
//!
//! `inside` belongs to one thread at a time, since it is set and cleared with plain stores. A thread that lost
//! the lock may have been stopped between its look at `owner` and its store to `inside`; when it goes on, it
//! finds out and clears `inside` again, which would let others in while a new owner is there. So as long as
//! that may come (until that thread has come by the usual way), nobody else becomes owner.

use crate::base::sync::{AtomicBool, AtomicU64, Ordering, UnsafeCell, pause, set_flag, thread_token};
use std::ops::{Deref, DerefMut};

/// Entries in a row by one thread that make it the owner, at first.
const STREAK: u32 = if cfg!(loom) { 1 } else { 32 };
/// The doubling of that stops here.
const MAX_LOSSES: u32 = if cfg!(loom) { 0 } else { 12 };

/// See the module's text.
#[derive(Debug)]
pub struct Biased<T> {
    owner: AtomicU64,   // token of the owner; 0: none. Changed only by who holds `taken`
    inside: AtomicBool, // the owner holds the lock
    taken: AtomicBool,  // somebody holds it the usual way
    value: UnsafeCell<Guarded<T>>,
}

#[derive(Debug)]
struct Guarded<T> {
    last: u64,   // who held it last the usual way
    streak: u32, // how often in a row
    losses: u32, // how often an owner lost it
    former: u64, // token of an owner that lost it and may not know yet; 0: none
    value: T,
}

// SAFETY: `value` is reached only through a guard, and at most one guard exists at a time: see the text.
unsafe impl<T: Send> Sync for Biased<T> {}
// SAFETY: the lock owns the value; moving it moves the value.
unsafe impl<T: Send> Send for Biased<T> {}

/// Holds a [`Biased`] lock for its owner until dropped.
#[derive(Debug)]
pub struct OwnerGuard<'a, T>(&'a Biased<T>);

/// Holds a [`Biased`] lock until dropped.
#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a Biased<T>,
    as_owner: bool,
}

impl<T> Biased<T> {
    /// An open lock without an owner.
    pub fn new(value: T) -> Self {
        Biased {
            owner: AtomicU64::new(0),
            inside: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(Guarded { last: 0, streak: 0, losses: 0, former: 0, value }),
        }
    }

    /// Takes the lock if the calling thread owns it, at the price of a few plain instructions.
    #[inline(always)]
    pub fn enter(&self) -> Option<OwnerGuard<'_, T>> {
        let me = thread_token();
        if self.owner.load(Ordering::Relaxed) != me || self.inside.load(Ordering::Relaxed) {
            return None; // not the owner's, or this very thread is inside already
        }
        self.inside.store(true, Ordering::Relaxed);
        barrier::light();
        if self.owner.load(Ordering::Relaxed) == me {
            // What earlier holders did is visible: this thread became owner while it held `taken`, and all
            // that came since was its own.
            return Some(OwnerGuard(self));
        }
        self.inside.store(false, Ordering::Release);
        None
    }

    /// Whether a thread other than the calling one is its owner.
    #[inline(always)]
    pub fn is_anothers(&self) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        owner != 0 && owner != thread_token()
    }

    /// Takes the lock, waiting for it if need be.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        match self.enter() {
            Some(g) => g.into(),
            None => self.take(),
        }
    }

    #[inline(never)]
    fn take(&self) -> Guard<'_, T> {
        let mut round = 0;
        // The Acquire in `set_flag` pairs with the Release in `Guard::drop` and in `of_owner`.
        while self.taken.load(Ordering::Relaxed) || set_flag(&self.taken) {
            pause(round);
            round = round.saturating_add(1);
        }
        let me = thread_token();
        let mut guard = Guard { lock: self, as_owner: false };
        match self.owner.load(Ordering::Relaxed) {
            0 => {}
            owner if owner == me => {
                // The calling thread is inside: as with any lock that is not reentrant, it waits for itself.
                self.wait_until_out();
                return guard.of_owner();
            }
            owner => {
                self.owner.store(0, Ordering::Relaxed);
                barrier::heavy();
                self.wait_until_out();
                let g = guard.parts();
                g.losses = (g.losses + 1).min(MAX_LOSSES);
                g.streak = 0;
                g.former = owner;
            }
        }
        let g = guard.parts();
        if g.former == me {
            g.former = 0; // here, it is not on its way in
        }
        if g.last != me {
            g.last = me;
            g.streak = 0;
        }
        g.streak = g.streak.saturating_add(1);
        if g.streak > STREAK << g.losses && g.former == 0 && barrier::works() {
            g.streak = 0;
            // Nobody else can be inside: `taken` is held, and there is no owner.
            self.owner.store(me, Ordering::Relaxed);
            return guard.of_owner();
        }
        guard
    }

    /// Waits until the owner, or whoever was, is out. `taken` is held.
    #[cold]
    fn wait_until_out(&self) {
        let mut round = 0;
        // Acquire pairs with the owner's Release when it leaves: its writes are visible then.
        while self.inside.load(Ordering::Acquire) {
            pause(round);
            round = round.saturating_add(1);
        }
    }
}

impl<'a, T> From<OwnerGuard<'a, T>> for Guard<'a, T> {
    fn from(g: OwnerGuard<'a, T>) -> Self {
        let lock = g.0;
        std::mem::forget(g);
        Guard { lock, as_owner: true }
    }
}

impl<T> Deref for OwnerGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        #[cfg(not(loom))]
        let p = self.0.value.get();
        #[cfg(loom)]
        let p = self.0.value.with(|p| p.cast_mut());
        // SAFETY: this guard is the only one, so nobody writes the value while this reference lives.
        unsafe { &(*p).value }
    }
}

impl<T> DerefMut for OwnerGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        #[cfg(not(loom))]
        let p = self.0.value.get();
        #[cfg(loom)]
        let p = self.0.value.with_mut(|p| p);
        // SAFETY: this guard is the only one, and `&mut self` makes this reference the only one of it.
        unsafe { &mut (*p).value }
    }
}

impl<T> Drop for OwnerGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release pairs with the Acquire in `wait_until_out`.
        self.0.inside.store(false, Ordering::Release);
    }
}

impl<T> Guard<'_, T> {
    /// The same hold as the owner's: `taken` is free for others to queue on.
    fn of_owner(mut self) -> Self {
        self.lock.inside.store(true, Ordering::Relaxed);
        self.as_owner = true;
        // Release: who takes `taken` next and then looks at `inside` finds it set.
        self.lock.taken.store(false, Ordering::Release);
        self
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
        // Release pairs with the Acquire in `set_flag`, or in `wait_until_out`.
        if self.as_owner {
            self.lock.inside.store(false, Ordering::Release);
        } else {
            self.lock.taken.store(false, Ordering::Release);
        }
    }
}

/// The two sides of an asymmetric barrier.
#[cfg(all(target_os = "linux", not(loom), not(miri)))]
mod barrier {
    use std::sync::OnceLock;
    use std::sync::atomic::{Ordering, compiler_fence};

    // From <linux/membarrier.h>.
    const PRIVATE_EXPEDITED: i32 = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

    fn membarrier(command: i32) -> bool {
        // SAFETY: the call takes three integers and touches no memory of the caller.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    /// The side that runs often: nothing but an order for the compiler.
    #[inline(always)]
    pub(super) fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    /// The side that runs seldom: a full barrier on every processor that runs a thread of this process.
    pub(super) fn heavy() {
        // A process that has registered is never refused; were it refused all the same, owners would not
        // be safe. Trying again is all that can be done, and is right: refusals pass.
        while !membarrier(PRIVATE_EXPEDITED) {
            std::thread::yield_now();
        }
    }

    /// Whether the system has the call, and lets this process use it.
    pub(super) fn works() -> bool {
        static WORKS: OnceLock<bool> = OnceLock::new();
        *WORKS.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED))
    }
}

/// Elsewhere there is no such call, and so no owner. Under loom both sides are full fences: the same
/// guarantee, which is what the model is about.
#[cfg(not(all(target_os = "linux", not(loom), not(miri))))]
mod barrier {
    use crate::base::sync::{Ordering, fence};

    #[inline(always)]
    pub(super) fn light() {
        fence(Ordering::SeqCst);
    }
    pub(super) fn heavy() {
        fence(Ordering::SeqCst);
    }
    pub(super) fn works() -> bool {
        cfg!(loom)
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
        assert!(!l.is_anothers());
        std::thread::scope(|s| {
            s.spawn(|| {
                assert_eq!(l.is_anothers(), barrier::works());
                *l.lock() += 1;
                assert!(!l.is_anothers());
            });
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
    fn a_former_owner_keeps_others_from_owning_until_it_comes_by() {
        let l = Biased::new(());
        own(&l);
        let there = || {
            std::thread::scope(|s| {
                let t = s.spawn(|| {
                    own(&l);
                    l.enter().is_some()
                });
                t.join().unwrap()
            })
        };
        assert!(!there(), "this thread might be on its way in");
        drop(l.lock());
        assert_eq!(there(), barrier::works());
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
