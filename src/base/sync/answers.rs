//! A barrier that interrupts nobody: a thread that waits for a lock says so, and that it has passed a full barrier.
//!
//! Whoever takes a lock away from its owner (`base/biased.rs`) closes it first, and must then know that the owner has passed a
//! full barrier. The system call that makes all threads pass one interrupts each processor on which the process runs: 2 to
//! 20 µs. But an owner that is busy comes to the closed lock within a fraction of that, and waits for it. While it waits it
//! *answers*: it notes the number of the last question that it has read. So whoever needs the barrier asks, looks for
//! the answers for a moment, and makes the system call only if one is missing.
//!
//! Why an answer is as good as a barrier: the lock was closed before the question was numbered (Release), and the owner reads that
//! number (Acquire) before it answers, so that whatever it reads afterwards is closed. It answers with Release, so that whoever
//! reads the answer (Acquire) sees what the owner did before; among that, whether it is inside.
//!
//! A thread that is about to sleep answers all questions to come, and passes a real barrier when it goes on.
//!
//! Threads are told apart by their tokens. A thread that has ended may leave its token to a new one, and its record with that: it
//! does nothing any more for which anybody would need a barrier.

use super::token::thread_token;
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::atomic::AtomicU64 as PlainU64;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The number of records, and of places where the record of one thread may be. A thread that finds no place never answers.
const RECORDS: usize = if cfg!(loom) { 2 } else { 256 };
const PLACES: usize = if cfg!(loom) { 2 } else { 8 };

/// The most times that one looks for the answers, up to some 7 µs; and how often that is halved at most.
const MOST: u32 = if cfg!(loom) { 1 } else { 128 };
const HALVINGS: u32 = if cfg!(loom) { 0 } else { 3 };

/// How often a thread that waits for a lock answers before it sleeps.
#[cfg(not(loom))]
const WAITS: u32 = 32;

/// The answer of a thread that sleeps.
const TO_ALL: u64 = u64::MAX;

/// What a thread has answered. On a cache line of its own: the thread writes it while others read it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Answers {
    /// The token of the thread; 0: this is nobody's yet. No model looks into this: it only says whose answers these are, and those
    /// of another thread are never here.
    token: PlainU64,
    /// The number of the last question that it has answered.
    last: AtomicU64,
}

/// All questions and answers of the process.
struct All {
    /// The number of the last question.
    asked: AtomicU64,
    /// One looks for the answers `MOST` times, halved as often as this says: once more for each question that is not answered by
    /// then, and once less for each that is. Where the owners are mostly busy elsewhere, waiting for them would be in vain.
    halvings: AtomicU32,
    records: [Answers; RECORDS],
}

#[cfg(not(loom))]
static ALL: All = All {
    asked: AtomicU64::new(0),
    halvings: AtomicU32::new(0),
    records: [const { Answers { token: PlainU64::new(0), last: AtomicU64::new(0) } }; RECORDS],
};
#[cfg(loom)]
loom::lazy_static! {
    static ref ALL: All = All {
        asked: AtomicU64::new(0),
        halvings: AtomicU32::new(u32::BITS - 1),
        records: std::array::from_fn(|_| Answers::default()),
    };
}

/// Where the record of a thread may be.
fn places(token: u64) -> impl Iterator<Item = &'static Answers> {
    let first = (token.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize;
    (first..first + PLACES).map(|i| &ALL.records[i % RECORDS])
}

impl Answers {
    /// The record of the thread that has this token; it is made if there is none. `None`: there is no room for it.
    pub fn of(token: u64) -> Option<&'static Answers> {
        places(token).find(|a| {
            let claimed = a.token.compare_exchange(0, token, Ordering::Relaxed, Ordering::Relaxed);
            claimed.is_ok() || claimed == Err(token)
        })
    }

    /// That of the calling thread, if it has one.
    #[inline(never)]
    fn mine() -> Option<&'static Answers> {
        let me = thread_token();
        places(me).find(|a| a.token.load(Ordering::Relaxed) == me)
    }

    /// Whether that question is answered.
    pub fn has(&self, number: u64) -> bool {
        // Acquire: see the head of this file.
        self.last.load(Ordering::Acquire) >= number
    }
}

/// The calling thread, which waits for a lock, answers the last question.
#[cold]
#[inline(never)]
pub fn answer() {
    // Acquire, and Release: see the head of this file.
    let asked = ALL.asked.load(Ordering::Acquire);
    if let Some(mine) = Answers::mine()
        && mine.last.load(Ordering::Relaxed) != asked
    {
        mine.last.store(asked, Ordering::Release);
    }
}

/// What a thread does that has found a lock taken, before it tries again: it answers. `false`: it has done so often enough, and had
/// better sleep.
#[cfg(not(loom))]
#[cold]
#[inline(never)]
pub(crate) fn before_another_try(tries: &mut u32) -> bool {
    answer();
    std::hint::spin_loop();
    *tries += 1;
    *tries <= WAITS
}

/// Runs `sleep`, in which the calling thread waits for a lock and cannot answer.
#[cold]
#[inline(never)]
pub fn asleep(sleep: &mut dyn FnMut()) {
    let mine = begin_to_sleep();
    sleep();
    wake_up(mine);
}

/// The calling thread is about to wait for a lock, and cannot answer. [`wake_up`] has to follow.
#[cold]
#[inline(never)]
pub(super) fn begin_to_sleep() -> Option<&'static Answers> {
    let mine = Answers::mine();
    if let Some(mine) = mine {
        mine.last.store(TO_ALL, Ordering::Release);
    }
    mine
}

/// The calling thread goes on.
#[cold]
#[inline(never)]
pub(super) fn wake_up(mine: Option<&Answers>) {
    if let Some(mine) = mine {
        mine.last.store(0, Ordering::Relaxed);
        // With that in `ask`: either whoever asks finds the answer above gone, or this thread finds closed what was closed
        // before the question.
        fence(Ordering::SeqCst);
    }
}

/// From now on the model asks. Most do not: that would take ten times as long, and the fence in it hides that another is missing.
#[cfg(loom)]
pub fn begin_to_ask() {
    ALL.halvings.store(0, Ordering::Relaxed);
}

/// Asks. `answered` says whether all threads of whom a barrier is needed have answered the question of that number. `true`: each
/// has passed a full barrier since. `false`: one has not answered in time.
#[cold]
#[inline(never)]
pub fn ask(answered: &dyn Fn(u64) -> bool) -> bool {
    // Relaxed: it costs time only, if another thread has changed it meanwhile.
    let halvings = ALL.halvings.load(Ordering::Relaxed);
    if cfg!(loom) && MOST >> halvings == 0 {
        return false;
    }
    // Release: see the head of this file.
    let number = ALL.asked.fetch_add(1, Ordering::AcqRel) + 1;
    fence(Ordering::SeqCst); // with that in `asleep`
    for _ in 0..MOST >> halvings {
        #[cfg(not(loom))]
        std::hint::spin_loop();
        #[cfg(loom)]
        loom::thread::yield_now();
        if answered(number) {
            if halvings > 0 {
                ALL.halvings.store(halvings - 1, Ordering::Relaxed);
            }
            return true;
        }
    }
    if halvings < HALVINGS {
        ALL.halvings.store(halvings + 1, Ordering::Relaxed);
    }
    false
}
