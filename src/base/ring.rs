//! The last so many records of many threads, of a fixed number of words each: who writes waits for nobody, and the
//! oldest go. What happened just before the trouble is what is looked for, so the newest are worth more.
//!
//! A record has a *position*, a number that never comes again. A reader takes records by their positions and may look
//! at any; nothing is taken away by reading. Each slot says of which position its words are (`2 * position + 2`), or
//! that somebody writes one (`2 * position + 1`). A writer that finds another one in its slot, who was stopped for a
//! whole round, gives its record up: then that position is never there. So of the positions below [`head`](Ring::head)
//! a reader has got or missed each one, and what was dropped is exactly what it has missed.

use super::error::Result;
#[cfg(not(loom))]
use super::mapped_array::MappedArray;
use super::sync::{AtomicU64, Ordering, Padded, fence};

/// Loom's atomics are more than their bits.
#[cfg(loom)]
type Slots = Box<[AtomicU64]>;
#[cfg(not(loom))]
type Slots = MappedArray<AtomicU64>;

#[cfg(loom)]
fn zeros(count: usize) -> Result<Slots> {
    Ok((0..count).map(|_| AtomicU64::new(0)).collect())
}
#[cfg(not(loom))]
fn zeros(count: usize) -> Result<Slots> {
    MappedArray::new(count)
}

/// See the file's head.
pub struct Ring {
    slots: Slots,
    /// Words of a slot: those of a record, and one before them.
    stride: usize,
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

impl Ring {
    /// A ring of `slots` (at least 2, rounded up to a power of two) records of `words` words.
    pub fn new(slots: usize, words: usize) -> Result<Ring> {
        let count = slots.max(2).checked_next_power_of_two().unwrap_or(usize::MAX);
        let array = zeros(count.saturating_mul(words + 1))?;
        Ok(Ring { slots: array, stride: words + 1, mask: count as u64 - 1, head: Padded(AtomicU64::new(0)) })
    }

    /// How many records it has at most.
    pub fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// The position of the next record: so many were ever written.
    pub fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    fn slot(&self, position: u64) -> &[AtomicU64] {
        let at = (position & self.mask) as usize * self.stride;
        &self.slots[at..at + self.stride]
    }

    /// Writes a record of up to so many words. Never waits, never allocates.
    #[inline(always)]
    pub fn push<const N: usize>(&self, record: &[u64; N], more: &[u64]) {
        if N >= self.stride {
            return; // there is no room for such a record
        }
        self.put(self.claim(), record, more);
    }

    /// The first step of `push`: the position is this record's, and readers wait for it.
    #[inline(always)]
    pub(crate) fn claim(&self) -> u64 {
        self.head.fetch_add(1, Ordering::Relaxed)
    }

    /// The second step. The record has less words than a slot.
    #[inline(always)]
    pub(crate) fn put<const N: usize>(&self, position: u64, record: &[u64; N], more: &[u64]) {
        let at = (position & self.mask) as usize * self.stride;
        // To the end of the ring: no more is written than there are words.
        let Some((state, words)) = self.slots.get(at..).and_then(<[_]>::split_first) else { return };
        let Some((first, rest)) = words.split_first_chunk::<N>() else { return };
        let busy = 2 * position + 1;
        let was = state.load(Ordering::Relaxed);
        if was & 1 != 0 || was > busy {
            return; // another one is here, or was: this record is given up
        }
        // Acquire: with the Release below of who wrote here last, so that its words do not come after ours. Where it
        // fails, another one has come here.
        if state.compare_exchange(was, busy, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return;
        }
        // Release: who sees one of the words sees that somebody writes; pairs with the fence in `read`.
        fence(Ordering::Release);
        for n in 0..N {
            first[n].store(record[n], Ordering::Relaxed);
        }
        rest.iter()
            .zip(more)
            .take(self.stride.saturating_sub(N + 1))
            .for_each(|(to, &from)| to.store(from, Ordering::Relaxed));
        // Release: who sees that it is whole sees the words.
        state.store(busy + 1, Ordering::Release);
    }

    /// Copies the record of that position, if it is there; as many words as there is room for.
    pub fn read(&self, position: u64, into: &mut [u64]) -> Seen {
        let [state, words @ ..] = self.slot(position) else { return Seen::Gone };
        let whole = 2 * position + 2;
        // Acquire: with the Release at the end of `push`.
        let before = state.load(Ordering::Acquire);
        if before != whole {
            return if before < whole { Seen::NotYet } else { Seen::Gone };
        }
        into.iter_mut().zip(words).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        // Acquire: a word of a later writer was read only if that is seen below; pairs with the fence in `push`.
        fence(Ordering::Acquire);
        if state.load(Ordering::Relaxed) == whole { Seen::Whole } else { Seen::Gone }
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
