//! What a biased lock, its seats and the guard of its owner are made of: they refer to each other. `biased.rs` has what the
//! lock does, `seat.rs` what a seat does.

use crate::base::sync::answers::Answers;
use crate::base::sync::{AtomicBool, AtomicPtr, AtomicU64, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::time::Instant;

/// In the word of a [`Seat`]: the thread holds the lock as its owner.
pub(super) const INSIDE: u64 = 1;

/// A lock that is biased to one thread, its owner: see `biased.rs`.
#[derive(Debug)]
pub struct Biased<T, W = ()> {
    /// The seat of the owner; null: there is none. Changed only by the thread that holds `taken`, and by the owner itself
    /// in `Guard::rest`. What it points to lives as long as the lock.
    pub(super) owner: AtomicPtr<Seat<T, W>>,
    pub(super) taken: AtomicBool, // the lock is held the usual way, not by its owner
    pub(super) value: UnsafeCell<Guarded<T, W>>,
}

#[derive(Debug)]
pub(super) struct Guarded<T, W> {
    pub(super) last: u64,       // token of the last thread that took the lock the usual way
    pub(super) streak: u32,     // how often in a row that thread did
    pub(super) losses: u32,     // how often an owner was revoked
    pub(super) rested: u64,     // token of the owner that gave the lock up by `rest`; 0: none
    pub(super) looks: u32,      // how often an owner was revoked by one who only looks
    pub(super) interrupts: u32, // how often of these it was interrupted
    #[cfg_attr(loom, expect(dead_code, reason = "a model has no time"))]
    pub(super) looked: Option<Instant>, // when these began to be counted
    /// Of every thread that was ever owner. `owner` points to them: they must not move.
    pub(super) seats: Vec<Box<Seat<T, W>>>,
    pub(super) value: T,
}

// SAFETY: `value` is reached only through a guard, and at most one guard exists at a time: see `biased.rs`.
unsafe impl<T: Send, W: Send> Sync for Biased<T, W> {}
// SAFETY: the lock owns the value and the seats; moving it moves them.
unsafe impl<T: Send, W: Send> Send for Biased<T, W> {}

/// Holds a [`Biased`] lock on behalf of its owner until dropped.
#[derive(Debug)]
pub struct OwnerGuard<'a, T, W = ()> {
    pub(super) lock: &'a Biased<T, W>,
    pub(super) seat: &'a Seat<T, W>,
}

/// What a caller has for the thing that a lock guards.
pub type Name = [u64; 2];

/// The lock's record of a thread that is or was its owner. It has cache lines of its own, since the thread writes it at
/// each entry.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Seat<T, W = ()> {
    /// The token of the thread, which is even, or 0 of no thread; and `INSIDE` while the thread holds the lock as its
    /// owner. Only the thread writes it. One word, so that one comparison says both.
    pub(super) word: AtomicU64,
    /// The name under which the fast path is open; `CLOSED` or `SHUT` in the first number if it is not. The thread opens and
    /// closes it while it is inside; whoever takes the ownership away shuts it.
    pub(super) name: [AtomicU64; 2],
    /// What the thread finds on the fast path; has a value since that was first open. Only the thread uses it.
    pub(super) behind: UnsafeCell<MaybeUninit<Behind<T, W>>>,
    /// The token of the thread, for the others.
    pub(super) token: u64,
    /// What the thread has answered those who need a barrier of it; `None`: it answers nobody.
    pub(super) answers: Option<&'static Answers>,
}

/// What a thread finds on its fast path.
#[derive(Debug)]
pub(super) struct Behind<T, W> {
    /// The lock, as long as the fast path is open.
    pub(super) lock: NonNull<Biased<T, W>>,
    /// The name under which the fast path was opened last.
    pub(super) name: Name,
    /// What the owner left there.
    pub(super) way: W,
}

// SAFETY: what is no atomic is used by one thread alone, whose token the seat has; `W` goes to that thread with the seat.
unsafe impl<T, W: Send> Sync for Seat<T, W> {}
// SAFETY: as above.
unsafe impl<T, W: Send> Send for Seat<T, W> {}
