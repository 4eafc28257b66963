//! A thread's seat in a biased lock, and its *fast path* into the lock, which looks nothing up.
//!
//! The owner of a lock may open a fast path under a *name*: two numbers that a caller has for what the lock guards. From
//! then on the thread enters by comparing the name, and that comparison also says that it is still the owner: whoever
//! takes the ownership away closes the fast path first.
//!
//! Why the fast path never lets the thread in beside another: the thread writes `INSIDE` and then reads the name; who
//! closes the fast path writes the name and then, after the barrier, reads `INSIDE`. The owner opens it only while it is
//! inside, and may do so while another thread closes it. So who closes it looks at the name once more when the owner is
//! out, until it finds it closed: after that nobody can open it.
//!
//! What the owner has closed stays closed: another thread shuts the fast path, and opens it again only if it is still shut.

#[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
use super::barrier;
use super::parts::{Behind, INSIDE, Name, OwnerGuard, Seat};
use crate::base::sync::answers::Answers;
use crate::base::sync::{AtomicU64, Ordering, UnsafeCell, thread_token};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// The first number of the name while the fast path is closed. It is no address, no small number and no pattern of fill
/// bytes, so that no caller has it for anything.
const CLOSED: u64 = 0x8D7C_35F1_A96E_4B03;
/// The same where another thread has closed it, which may open it again.
const SHUT: u64 = CLOSED ^ 1;

/// What became of a thread that tried to enter by a fast path.
enum Entering {
    /// It is inside.
    Open,
    /// It is inside, but the fast path is not open under that name.
    OtherName,
    /// It is not inside: the seat is another thread's, or the thread is inside already.
    Elsewhere,
}

impl<T, W> Seat<T, W> {
    /// The seat of a thread.
    pub(super) fn new(token: u64) -> Self {
        Seat {
            word: AtomicU64::new(token),
            name: [AtomicU64::new(CLOSED), AtomicU64::new(0)],
            behind: UnsafeCell::new(MaybeUninit::uninit()),
            token,
            answers: Answers::of(token),
        }
    }

    /// The seat of no thread: no token is 0.
    #[cfg(not(loom))]
    pub(crate) const fn nobodys() -> Self {
        Seat {
            word: AtomicU64::new(0),
            name: [AtomicU64::new(CLOSED), AtomicU64::new(0)],
            behind: UnsafeCell::new(MaybeUninit::uninit()),
            token: 0,
            answers: None,
        }
    }

    /// The token of the thread.
    pub(super) fn token(&self) -> u64 {
        self.token
    }

    /// Whether the thread has answered that question.
    pub(super) fn has_answered(&self, number: u64) -> bool {
        self.answers.is_some_and(|a| a.has(number))
    }

    /// Notes that the thread is inside. Only for the thread whose seat it is, and that is not.
    #[inline(always)]
    pub(super) fn enter(&self) {
        // As in `leave`, one instruction with the memory itself.
        self.word.store(self.word.load(Ordering::Relaxed) + INSIDE, Ordering::Relaxed);
    }

    /// Notes that the thread has left. Only for the thread whose seat it is, and that is inside.
    #[inline(always)]
    pub(super) fn leave(&self) {
        // Release pairs with the Acquire in `Biased::wait_until_out`.
        self.word.store(self.word.load(Ordering::Relaxed) - INSIDE, Ordering::Release);
    }

    /// Enters by the fast path, if the seat is the calling thread's, which is not inside. It stays inside if the fast path is
    /// not open under this name.
    #[inline(always)]
    fn enter_by(&self, name: Name) -> Entering {
        let me = thread_token();
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        // As below; a compiler does not compare with an atomic in memory. This processor orders loads among
        // themselves as Acquire does.
        // SAFETY: `word` is the first word of the seat, as `repr(C)` has it.
        unsafe {
            std::arch::asm!(
                "cmp qword ptr [{seat}], {me}",
                "jne {not_mine}",
                "inc qword ptr [{seat}]",
                seat = in(reg) self,
                me = in(reg) me,
                not_mine = label { return Entering::Elsewhere },
                options(nostack),
            );
        }
        #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
        {
            if self.word.load(Ordering::Relaxed) != me {
                return Entering::Elsewhere;
            }
            self.enter();
            barrier::light();
        }
        match self.opened_under(name) {
            true => Entering::Open,
            false => Entering::OtherName,
        }
    }

    /// Whether the fast path is open under this name. Only for the thread whose seat it is, and that is inside.
    #[inline(always)]
    fn opened_under(&self, name: Name) -> bool {
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        {
            // As in `enter_by`. Not `readonly`: a compiler must not read what the lock guards before the name is compared.
            // SAFETY: `name` is the second and third word of the seat, as `repr(C)` has it.
            unsafe {
                std::arch::asm!(
                    "cmp qword ptr [{seat} + 8], {first}",
                    "jne {other}",
                    "cmp qword ptr [{seat} + 16], {second}",
                    "jne {other}",
                    seat = in(reg) self,
                    first = in(reg) name[0],
                    second = in(reg) name[1],
                    other = label { return false },
                    options(nostack),
                );
            }
            true
        }
        #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
        {
            // Acquire pairs with the Release in `reopen`.
            let first = self.name[0].load(Ordering::Acquire);
            first == name[0] && self.name[1].load(Ordering::Relaxed) == name[1]
        }
    }

    /// What the thread finds on the fast path.
    #[inline(always)]
    fn behind(&self) -> *mut MaybeUninit<Behind<T, W>> {
        #[cfg(not(loom))]
        return self.behind.get();
        #[cfg(loom)]
        self.behind.with_mut(|p| p)
    }

    /// Closes the fast path. Only for the thread whose seat it is, while it holds the lock.
    pub(super) fn close(&self) {
        // A swap, and with both orders, so that it and `shut` come one after the other in each thread's eyes.
        self.name[0].swap(CLOSED, Ordering::AcqRel);
    }

    /// Shuts the fast path of another thread. Returns whether it was open, and under which name. The caller makes sure that
    /// the thread finds it shut (see the head of this file).
    pub(super) fn shut(&self) -> Option<Name> {
        let mut first = self.name[0].load(Ordering::Relaxed);
        while first != CLOSED && first != SHUT {
            // The second number belongs to the first, or the thread changes both before it is out.
            let second = self.name[1].load(Ordering::Relaxed);
            match self.name[0].compare_exchange(first, SHUT, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some([first, second]),
                Err(now) => first = now,
            }
        }
        None
    }

    /// Whether the thread has closed the fast path, or never opened it.
    pub(super) fn is_closed(&self) -> bool {
        self.name[0].load(Ordering::Relaxed) == CLOSED
    }

    /// Opens the fast path again that [`shut`](Self::shut) has found open, unless its thread has closed it or opened it
    /// anew since then. The caller holds `taken`, so that nobody else shuts it.
    pub(super) fn reopen(&self, name: Name) {
        // The second number is still there: only the thread itself changes it. Release: with the Acquire in
        // `FastPath::enter`, the thread finds what was done under the lock.
        let _ = self.name[0].compare_exchange(SHUT, name[0], Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether the fast path is open under this name.
    fn is_open(&self, name: Name) -> bool {
        self.name[0].load(Ordering::Relaxed) == name[0] && self.name[1].load(Ordering::Relaxed) == name[1]
    }
}

/// The fast path of one thread into a lock. Others that use it do not get in. It lives as long as the lock stays where it
/// is.
#[derive(Debug)]
pub struct FastPath<'a, T, W>(&'a Seat<T, W>);

impl<T, W> Clone for FastPath<'_, T, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, W> Copy for FastPath<'_, T, W> {}

impl<'a, T, W> FastPath<'a, T, W> {
    /// The fast path of this seat.
    #[cfg(not(loom))] // for the table of fast paths, which no model has
    #[inline(always)]
    pub(super) fn of(seat: &'a Seat<T, W>) -> Self {
        FastPath(seat)
    }

    /// The seat that it is of.
    #[cfg(not(loom))] // likewise
    pub(super) fn seat(self) -> &'a Seat<T, W> {
        self.0
    }

    /// Takes the lock, if the fast path is the calling thread's own and open under this name. `None` also if the thread
    /// holds the lock already.
    #[inline(always)]
    pub fn enter(self, name: Name) -> Option<FastGuard<'a, T, W>> {
        match self.enter_or_stay(name) {
            Entry::Open(guard) => Some(guard),
            Entry::OtherName(_) | Entry::Elsewhere => None,
        }
    }

    /// The same for a caller that has a second name: where the fast path is not open under the first, the thread need not
    /// leave before it tries the second.
    #[inline(always)]
    pub fn enter_or_stay(self, name: Name) -> Entry<'a, T, W> {
        match self.0.enter_by(name) {
            Entering::Open => Entry::Open(FastGuard::of(self.0)),
            Entering::OtherName => Entry::OtherName(Seated(self.0)),
            Entering::Elsewhere => Entry::Elsewhere,
        }
    }
}

/// What [`FastPath::enter_or_stay`] finds.
#[derive(Debug)]
pub enum Entry<'a, T, W> {
    /// The lock is taken.
    Open(FastGuard<'a, T, W>),
    /// The fast path is the calling thread's own, but not open under this name.
    OtherName(Seated<'a, T, W>),
    /// It is another thread's, or the thread holds the lock already.
    Elsewhere,
}

/// The calling thread is in its seat, but does not have the lock: the fast path is not open under the name that it has
/// tried. It leaves when this is dropped. Others wait for it.
#[derive(Debug)]
pub struct Seated<'a, T, W>(&'a Seat<T, W>);

impl<'a, T, W> Seated<'a, T, W> {
    /// Takes the lock, if the fast path is open under this name.
    #[inline(always)]
    pub fn enter(self, name: Name) -> Option<FastGuard<'a, T, W>> {
        if !self.0.opened_under(name) {
            return None;
        }
        let seat = self.0;
        std::mem::forget(self); // the guard leaves
        Some(FastGuard::of(seat))
    }
}

impl<T, W> Drop for Seated<'_, T, W> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Holds a lock that its owner has entered by the fast path until dropped.
#[derive(Debug)]
pub struct FastGuard<'a, T, W>(OwnerGuard<'a, T, W>);

impl<'a, T, W> FastGuard<'a, T, W> {
    /// Of a thread that is inside by its fast path, which is open under the name that it has.
    #[inline(always)]
    fn of(seat: &'a Seat<T, W>) -> Self {
        // SAFETY: the fast path is open, so `open` has given this a value; and only this thread uses it.
        let lock = unsafe { (*seat.behind()).assume_init_ref().lock };
        // SAFETY: the lock has not moved since `open` has put this there: `'a` is a loan of it.
        FastGuard(OwnerGuard { lock: unsafe { lock.as_ref() }, seat })
    }
}

impl<'a, T, W> FastGuard<'a, T, W> {
    /// Gives the lock up, but stays in the seat: who enters again need not find it again.
    #[inline(always)]
    pub fn stay(self) -> Seated<'a, T, W> {
        let seat = self.0.seat;
        std::mem::forget(self); // `Seated` leaves
        Seated(seat)
    }
}

impl<T, W: Copy> FastGuard<'_, T, W> {
    /// What was left on the fast path when it was opened.
    #[inline(always)]
    pub fn way(&self) -> W {
        // SAFETY: the fast path is open, so `open` has given this a value; and only this thread uses it.
        unsafe { (*self.0.seat.behind()).assume_init_ref().way }
    }

    /// The name by which the thread has entered.
    #[inline(always)]
    pub fn name(&self) -> Name {
        // SAFETY: as above.
        unsafe { (*self.0.seat.behind()).assume_init_ref().name }
    }
}

impl<T, W> Deref for FastGuard<'_, T, W> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T, W> DerefMut for FastGuard<'_, T, W> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<'a, T, W> From<FastGuard<'a, T, W>> for OwnerGuard<'a, T, W> {
    fn from(g: FastGuard<'a, T, W>) -> Self {
        g.0
    }
}

impl<'a, T, W: Copy> OwnerGuard<'a, T, W> {
    /// Opens the calling thread's fast path into the lock under this name, and leaves `way` on it, if `may` says that it may
    /// be open. Whoever wants it to stay closed first makes `may` say no, and then calls `Biased::close_fast_path` or
    /// closes it while holding the lock: either that comes after this and closes it, or this comes after that and is told
    /// no.
    pub fn open(&mut self, name: Name, way: W, may: impl FnOnce() -> bool) -> Option<FastPath<'a, T, W>> {
        let seat = self.seat;
        if !seat.is_open(name) {
            if !may() {
                return None;
            }
            // Closed while it changes: others look at nothing but the first number.
            seat.close();
            let behind = Behind { lock: NonNull::from(self.lock), name, way };
            // SAFETY: only this thread uses it, and nobody has a reference to it: users get copies.
            unsafe { (*seat.behind()).write(behind) };
            seat.name[1].store(name[1], Ordering::Relaxed);
            // Release: with `shut`, as in `close`.
            seat.name[0].store(name[0], Ordering::Release);
        }
        Some(FastPath(seat))
    }
}

impl<T, W> OwnerGuard<'_, T, W> {
    /// Closes the calling thread's fast path into the lock.
    pub fn close_fast_path(&mut self) {
        self.seat.close();
    }
}
