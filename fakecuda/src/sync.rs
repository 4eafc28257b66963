//! The one lock, with its two conditions, as raw pthread objects: thread sanitizers intercept those even in a library
//! that was built without them, and would report false races over Rust's own locks.
//!
//! `Guard` is the only way to the `World`. Waiting on it gives the lock up; so nothing that was looked up before a wait
//! may be used after it without looking again.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::world::World;

struct Shared {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    work: UnsafeCell<libc::pthread_cond_t>, // something became ready to run
    done: UnsafeCell<libc::pthread_cond_t>, // something has run
    world: UnsafeCell<Option<World>>,       // only under the mutex
    wake_worker: AtomicBool,                // when the lock is given up; changed under the mutex only
    wake_waiters: AtomicBool,
}

// SAFETY: the pthread objects are made for sharing, and `world` is reached through `Guard` only.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared {
    mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    work: UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER),
    done: UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER),
    world: UnsafeCell::new(None),
    wake_worker: AtomicBool::new(false),
    wake_waiters: AtomicBool::new(false),
};

/// Which condition to wait on.
#[derive(Clone, Copy)]
pub(crate) enum Condition {
    Work,
    Done,
}

impl Condition {
    fn raw(self) -> *mut libc::pthread_cond_t {
        match self {
            Condition::Work => SHARED.work.get(),
            Condition::Done => SHARED.done.get(),
        }
    }
}

/// What is to be woken.
struct Wakes {
    worker: bool,
    waiters: bool,
}

impl Wakes {
    /// Takes what was asked for under the lock, which the caller holds.
    fn take() -> Wakes {
        // A plain load, and a store where there is something: only who holds the mutex gets here.
        let take = |flag: &AtomicBool| flag.load(Relaxed) && flag.swap(false, Relaxed);
        Wakes { worker: take(&SHARED.wake_worker), waiters: take(&SHARED.wake_waiters) }
    }

    fn wake(self) {
        if self.worker {
            // SAFETY: a condition that lives as long as the library.
            unsafe { libc::pthread_cond_signal(Condition::Work.raw()) };
        }
        if self.waiters {
            // SAFETY: as above.
            unsafe { libc::pthread_cond_broadcast(Condition::Done.raw()) };
        }
    }
}

/// The held lock.
pub(crate) struct Guard(());

/// Takes the lock; the world is made on the first call, from the environment.
pub(crate) fn lock() -> Guard {
    // SAFETY: a mutex that lives as long as the library; no thread takes it twice (exports never call exports).
    unsafe { libc::pthread_mutex_lock(SHARED.mutex.get()) };
    let guard = Guard(());
    // SAFETY: the mutex is held.
    let world = unsafe { &mut *SHARED.world.get() };
    if world.is_none() {
        *world = Some(World::new());
    }
    guard
}

/// Wakes one of those that wait for work, when the lock is given up: who is woken sooner would wait for the lock. One is
/// enough, since who runs something without the lock wakes another one before.
pub(crate) fn wake_worker(_: &mut World) {
    SHARED.wake_worker.store(true, Relaxed);
}

/// Wakes all that wait for something to be done, when the lock is given up.
pub(crate) fn wake_waiters(_: &mut World) {
    SHARED.wake_waiters.store(true, Relaxed);
}

impl Guard {
    /// Gives the lock up until the condition is signalled, or `timeout` is over. True: signalled (or woken for
    /// nothing). The caller looks again in either case.
    pub(crate) fn wait(&mut self, condition: Condition, timeout: Option<Duration>) -> bool {
        Wakes::take().wake();
        let Some(timeout) = timeout else {
            // SAFETY: this thread holds the mutex.
            unsafe { libc::pthread_cond_wait(condition.raw(), SHARED.mutex.get()) };
            return true;
        };
        let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes the local.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut until) };
        let nanos = until.tv_nsec as u64 + timeout.subsec_nanos() as u64;
        until.tv_sec += (timeout.as_secs() + nanos / 1_000_000_000) as libc::time_t;
        until.tv_nsec = (nanos % 1_000_000_000) as libc::c_long;
        // SAFETY: this thread holds the mutex.
        unsafe { libc::pthread_cond_timedwait(condition.raw(), SHARED.mutex.get(), &until) == 0 }
    }

    /// Runs `work` without the lock.
    pub(crate) fn unlocked<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let wakes = Wakes::take();
        // SAFETY: this thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(SHARED.mutex.get()) };
        wakes.wake();
        let result = work();
        // SAFETY: as in `lock`.
        unsafe { libc::pthread_mutex_lock(SHARED.mutex.get()) };
        result
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let wakes = Wakes::take();
        // SAFETY: this thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(SHARED.mutex.get()) };
        wakes.wake();
    }
}

impl Deref for Guard {
    type Target = World;
    fn deref(&self) -> &World {
        // SAFETY: the mutex is held; `lock` has filled it.
        unsafe { (*SHARED.world.get()).as_ref().unwrap_unchecked() }
    }
}

impl DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut World {
        // SAFETY: the mutex is held, and `self` is borrowed exclusively; `lock` has filled it.
        unsafe { (*SHARED.world.get()).as_mut().unwrap_unchecked() }
    }
}
