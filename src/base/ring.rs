//! A ring of the latest records of many threads, each of a fixed number of words. A writer waits for nobody, and overwrites the
//! oldest record: whoever looks for the cause of a failure wants what happened last.
//!
//! Each record has a *position*, a number that is never used again. A reader asks for records by position, in any order;
//! reading removes nothing. A slot says which position its words belong to (`position + 1`), or that a thread is writing
//! those of a position (`BUSY | position`). A writer that finds another writer in its slot, or a later position, was stopped
//! for a whole round: it drops its record, and that position never appears. So a reader has either got or missed each
//! position below [`head`](Ring::head), and the records that were dropped are exactly those that it has missed.
//!
//! A slot is a whole number of lines of eight words. A record of seven words takes one line, and its writer needs no
//! more than a few dozen instructions.
//!
//! Rings are never freed: who writes may have looked the ring up long ago. They are [lent](Lent), to one user after the
//! other. When one is given back its memory goes back to the system, except where a late writer is at work
//! ([`empty`](Ring::empty)); but positions go on: what such a writer still writes is of a position that the next user has
//! not, or one record among its own.

use super::error::Result;
#[cfg(not(loom))]
use super::mapped_array::MappedArray;
use super::sync::system::{Mutex, lock};
use super::sync::{AtomicU64, Ordering, Padded, fence};
use std::ops::{Deref, Range};

/// Words of a line, of which the first in a slot says whose the others are.
const LINE: usize = 8;
/// Words of a record that takes one line.
pub const SHORT: usize = LINE - 1;

type Line = [AtomicU64; LINE];

/// Of a slot: its words are being written.
const BUSY: u64 = 1 << 63;
/// Of a slot: its memory is about to go back to the system. A writer finds a later one in it, as it were.
const SHUT: u64 = u64::MAX;

/// Slots of a part of a ring whose memory goes back as a whole: so many lines of each are a number of whole pages.
const PART: usize = if cfg!(loom) { 1 } else { 1024 };

/// Loom's atomics are more than their bits.
#[cfg(loom)]
type Lines = Box<[Line]>;
#[cfg(not(loom))]
type Lines = MappedArray<Line>;

#[cfg(loom)]
fn zeros(count: usize) -> Result<Lines> {
    Ok((0..count).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect())
}
#[cfg(not(loom))]
fn zeros(count: usize) -> Result<Lines> {
    MappedArray::new(count)
}

/// The memory of some lines goes back to the system, and they are zero; `false`: they are as before.
#[cfg(loom)]
fn discard(lines: &Lines, some: Range<usize>) -> bool {
    // The first word of a slot last: on a machine all of a page changes at once.
    some.rev().flat_map(|n| lines[n].iter().rev()).for_each(|word| word.store(0, Ordering::Release));
    true
}
#[cfg(not(loom))]
fn discard(lines: &Lines, some: Range<usize>) -> bool {
    lines.discard_some(some)
}

/// See the file's head.
#[derive(Debug)]
pub struct Ring {
    lines: Lines,
    /// Lines of a slot.
    each: usize,
    mask: u64,
    head: Padded<AtomicU64>,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It is whole.
    Whole,
    /// It is being written, or was given up.
    NotYet,
    /// Newer ones have taken its place.
    Gone,
}

/// How many slots, and lines of a slot, hold so many records of so many words.
fn shape(slots: usize, words: usize) -> (usize, usize) {
    let count = slots.max(2).checked_next_power_of_two().unwrap_or(usize::MAX);
    (count, (words + 1).div_ceil(LINE))
}

/// The slot of that position becomes this writer's; `false`: another one is there, or was, and the record is given up.
#[inline(always)]
fn begin(state: &AtomicU64, position: u64) -> bool {
    let was = state.load(Ordering::Relaxed);
    // A later position, or one that is being written.
    if was > position {
        return false;
    }
    // Acquire: with the Release below of who wrote here last, so that its words do not come after ours. Where it
    // fails, another one has come here.
    if state.compare_exchange(was, BUSY | position, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return false;
    }
    // Release: who sees one of the words sees that somebody writes; pairs with the fence in `read`.
    fence(Ordering::Release);
    true
}

/// The record is whole.
#[inline(always)]
fn end(state: &AtomicU64, position: u64) {
    // Release: who sees that it is whole sees the words.
    state.store(position + 1, Ordering::Release);
}

impl Ring {
    /// A ring of `slots` (at least 2, rounded up to a power of two) records of `words` words.
    pub fn new(slots: usize, words: usize) -> Result<Ring> {
        let (count, each) = shape(slots, words);
        let lines = zeros(count.saturating_mul(each))?;
        Ok(Ring { lines, each, mask: count as u64 - 1, head: Padded(AtomicU64::new(0)) })
    }

    /// How many records it has at most.
    pub fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// Whether each record has a line, so that it takes [`push_short`](Self::push_short).
    pub fn is_short(&self) -> bool {
        self.each == 1
    }

    /// The position of the next record: so many were ever written.
    pub fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// The words of a slot.
    #[inline(always)]
    fn slot(&self, position: u64) -> Option<(&AtomicU64, &[AtomicU64])> {
        let at = (position & self.mask) as usize * self.each;
        self.lines.get(at..at + self.each)?.as_flattened().split_first()
    }

    /// Writes a record of up to so many words. Never waits, never allocates.
    #[inline(always)]
    pub fn push<const N: usize>(&self, record: &[u64; N], more: &[u64]) {
        self.put(self.claim(), record, more);
    }

    /// The same for a ring whose records have a line each.
    #[inline(always)]
    pub fn push_short(&self, record: &[u64; SHORT]) {
        self.put_short(self.claim(), record);
    }

    /// Its second step.
    #[inline(always)]
    pub(crate) fn put_short(&self, position: u64, record: &[u64; SHORT]) {
        // Without looking how many lines a slot has: in another ring this is the line of another slot.
        // SAFETY: `new` made at least `mask + 1` lines.
        let [state, words @ ..] = unsafe { self.lines.get_unchecked((position & self.mask) as usize) };
        if !begin(state, position) {
            return;
        }
        for n in 0..SHORT {
            words[n].store(record[n], Ordering::Relaxed);
        }
        end(state, position);
    }

    /// The first step of `push`: the position is this record's, and readers wait for it.
    #[inline(always)]
    pub(crate) fn claim(&self) -> u64 {
        self.head.fetch_add(1, Ordering::Relaxed)
    }

    /// The second step. As many words as there is room for.
    #[inline(always)]
    pub(crate) fn put<const N: usize>(&self, position: u64, record: &[u64; N], more: &[u64]) {
        let Some((state, words)) = self.slot(position) else { return };
        if !begin(state, position) {
            return;
        }
        words.iter().zip(record.iter().chain(more)).for_each(|(to, &from)| to.store(from, Ordering::Relaxed));
        end(state, position);
    }

    /// Copies the record of that position, if it is there; as many words as there is room for.
    pub fn read(&self, position: u64, into: &mut [u64]) -> Seen {
        let Some((state, words)) = self.slot(position) else { return Seen::Gone };
        let whole = position + 1;
        // Acquire: with the Release at the end of `push`.
        let before = state.load(Ordering::Acquire);
        if before != whole {
            // What is being written is of that position, or of one before it.
            let is_older = if before & BUSY != 0 { before & !BUSY <= position } else { before < whole };
            return if is_older { Seen::NotYet } else { Seen::Gone };
        }
        into.iter_mut().zip(words).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        // Acquire: a word of a later writer was read only if that is seen below; pairs with the fence in `push`.
        fence(Ordering::Acquire);
        if state.load(Ordering::Relaxed) == whole { Seen::Whole } else { Seen::Gone }
    }

    /// Gives the memory back to the system that the records from `since` on have taken. Its reader has gone. A writer may
    /// be at work still: if its slot were zero, another one could begin there before it has ended, and their words would
    /// mix. So each slot is shut first, and where one cannot be, its part stays as it is.
    pub fn empty(&self, since: u64) {
        let (slots, count) = (self.capacity() as usize, self.head().saturating_sub(since));
        let first = (since & self.mask) as usize;
        let used = |part: usize| {
            let ahead = (part * PART + slots - first) % slots; // of the part's first slot
            count > ahead as u64 || first / PART == part
        };
        let parts = slots.div_ceil(PART);
        let mut from = 0;
        for part in 0..=parts {
            if part < parts && used(part) && self.shut(part * PART..((part + 1) * PART).min(slots)) {
                continue;
            }
            self.empty_shut(from * PART..(part * PART).min(slots));
            from = part + 1;
        }
    }

    /// What the first word of a slot is, by its number.
    fn state(&self, slot: usize) -> Option<&AtomicU64> {
        self.lines.get(slot * self.each).map(|line| &line[0])
    }

    /// No writer begins in these slots from now on; `false`: one is at work in one of them, and all are as before but
    /// empty.
    fn shut(&self, slots: Range<usize>) -> bool {
        for n in slots.clone() {
            let Some(state) = self.state(n) else { return false };
            let was = state.load(Ordering::Relaxed);
            // Acquire: with the Release of who wrote here last, so that its words do not come after the zeros.
            if was & BUSY != 0
                || state.compare_exchange(was, SHUT, Ordering::Acquire, Ordering::Relaxed).is_err()
            {
                self.open(slots.start..n);
                return false;
            }
        }
        true
    }

    /// The same slots are zero, and writers may begin there again.
    fn empty_shut(&self, slots: Range<usize>) {
        let lines = slots.start * self.each..slots.end * self.each;
        if !slots.is_empty() && !discard(&self.lines, lines) {
            self.open(slots);
        }
    }

    /// Slots that were shut are empty.
    fn open(&self, slots: Range<usize>) {
        // Release: with the Acquire of who begins here next.
        slots.filter_map(|n| self.state(n)).for_each(|state| state.store(0, Ordering::Release));
    }
}

/// Rings that nobody has at the moment. They are found here, too, by who looks for leaks.
static SPARE: Mutex<Vec<&'static Ring>> = Mutex::new(Vec::new());

/// A ring for one user at a time; see the file's head.
#[derive(Debug)]
pub struct Lent {
    ring: &'static Ring,
    first: u64,
}

impl Lent {
    /// A ring as by [`Ring::new`]: one that was given back, or a new one.
    pub fn new(slots: usize, words: usize) -> Result<Lent> {
        let (count, each) = shape(slots, words);
        let mut spare = lock(&SPARE);
        let fits = |r: &&'static Ring| (r.capacity(), r.each) == (count as u64, each);
        let known = spare.iter().position(fits).map(|n| spare.swap_remove(n));
        drop(spare);
        let ring = match known {
            Some(ring) => ring,
            None => Box::leak(Box::new(Ring::new(slots, words)?)),
        };
        Ok(Lent { ring, first: ring.head() })
    }

    /// The position of the first record that is this user's.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The ring, for writers: it may be used for as long as the process lives.
    pub fn ring(&self) -> &'static Ring {
        self.ring
    }
}

impl Deref for Lent {
    type Target = Ring;
    fn deref(&self) -> &Ring {
        self.ring
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.ring.empty(self.first);
        lock(&SPARE).push(self.ring);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_and_every_record_is_whole() {
        let ring = Ring::new(1000, 3).unwrap();
        assert_eq!(ring.capacity(), 1024);
        let mut got = [0; 3];
        assert_eq!(ring.read(0, &mut got), Seen::NotYet);
        for n in 0..1500 {
            ring.push(&[n, n + 1], &[n + 2]);
        }
        assert_eq!(ring.head(), 1500);
        assert_eq!(ring.read(475, &mut got), Seen::Gone);
        for n in 476..1500 {
            assert_eq!(ring.read(n, &mut got), Seen::Whole);
            assert_eq!(got, [n, n + 1, n + 2]);
        }
        assert_eq!(ring.read(1500, &mut got), Seen::NotYet);
    }

    #[test]
    fn a_ring_is_lent_again_and_positions_go_on() {
        let (first, address) = {
            let lent = Lent::new(8, SHORT).unwrap();
            assert!(lent.is_short());
            (0..20).for_each(|n| lent.push_short(&[n; SHORT]));
            (lent.first() + 20, std::ptr::from_ref(lent.ring()))
        };
        let again = Lent::new(5, 3).unwrap(); // as many slots and lines
        assert_eq!((again.first(), std::ptr::from_ref(again.ring())), (first, address));
        let mut got = [0; SHORT];
        let old = (first - 8..first).map(|n| again.read(n, &mut got));
        assert!(old.into_iter().all(|seen| seen == Seen::NotYet), "its memory went back");
        // A writer that has looked the ring up before, and comes now.
        let late = again.ring();
        late.put(first - 1, &[7; SHORT], &[]);
        again.push_short(&[9; SHORT]);
        assert_eq!((again.read(first, &mut got), got), (Seen::Whole, [9; SHORT]));
        let long = Lent::new(8, SHORT + 1).unwrap();
        assert!(!long.is_short() && !std::ptr::eq(long.ring(), late));
        long.push(&[1; SHORT], &[2, 3, 4]);
        let mut got = [0; 12];
        assert_eq!(long.read(long.first(), &mut got), Seen::Whole);
        assert_eq!(got, [1, 1, 1, 1, 1, 1, 1, 2, 3, 4, 0, 0]);
    }

    /// It is stopped between two words while its ring goes to another user, whose writer comes to the same slot.
    #[test]
    fn a_late_writer_does_not_mix_its_words_with_those_of_the_next_user() {
        // Its slot is the first of its part, or there are some before it.
        for before in [0, 5] {
            let lent = Lent::new(16, SHORT).unwrap();
            (0..(16 + before - lent.head() % 16) % 16).for_each(|_| lent.push_short(&[5; SHORT]));
            let (ring, position) = (lent.ring(), lent.claim());
            let (state, words) = ring.slot(position).unwrap();
            assert!(begin(state, position));
            words[..3].iter().for_each(|w| w.store(7, Ordering::Relaxed));
            drop(lent);
            let again = Lent::new(16, SHORT).unwrap();
            assert!(std::ptr::eq(again.ring(), ring));
            (again.head()..position + 16).for_each(|_| again.push_short(&[9; SHORT]));
            let next = again.claim();
            let began = begin(state, next);
            if began {
                words.iter().for_each(|w| w.store(9, Ordering::Relaxed));
            }
            words[3..].iter().for_each(|w| w.store(7, Ordering::Relaxed));
            end(state, position);
            if began {
                end(state, next);
            }
            let mut got = [0; SHORT];
            let seen = again.read(next, &mut got);
            assert!(seen != Seen::Whole || got == [9; SHORT], "{got:?}");
            // The slot is lost for one record only, and no other one is.
            (0..16).for_each(|_| again.push_short(&[9; SHORT]));
            for position in next + 1..next + 17 {
                got = [0; SHORT];
                assert_eq!((again.read(position, &mut got), got), (Seen::Whole, [9; SHORT]));
            }
        }
    }

    #[test]
    fn what_threads_write_together_is_whole_or_not_there() {
        let ring = Ring::new(64, 4).unwrap();
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let ring = &ring;
                s.spawn(move || (0..20_000).for_each(|n| ring.push(&[t, n, t ^ n, !n], &[])));
            }
            let (mut at, mut whole, mut missed) = (0, 0u64, 0u64);
            let mut r = [0; 4];
            while at < 80_000 {
                match ring.read(at, &mut r) {
                    Seen::Whole => {
                        assert_eq!((r[2], r[3]), (r[0] ^ r[1], !r[1]));
                        whole += 1;
                    }
                    Seen::NotYet if ring.head() < (at + 64).min(80_000) => continue,
                    _ => missed += 1,
                }
                at += 1;
            }
            assert_eq!(whole + missed, ring.head());
        });
    }
}
