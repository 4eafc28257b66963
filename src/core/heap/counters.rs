//! The counters of a heap: charged bytes, requested bytes and blocks, both of everything that was ever allocated in it
//! and of what is live now.
//!
//! The hot path adds to `total` at an allocation and to `bound` at a free, and checks whether `total` has passed
//! `bound`. Everything else follows from these two: `bound - total` is how much may still be allocated before the peaks
//! must be checked (`ledger`), and `ceiling` minus that is what is allocated. Both words may wrap; their difference
//! never does.

use crate::base::sync::Word;

/// How many times in a row the ledger must see no change before a heap rests. Once would be enough for the sums; but
/// then the heaps of a program whose streams take turns would be settled at each turn.
const LOOKS_UNTIL_REST: u32 = 16;

/// Charged bytes, requested bytes, blocks.
pub(crate) type Triple = [i64; 3];

/// The counters of a heap; see the head of this file.
#[derive(Default)]
pub(crate) struct Counters {
    total: [Word; 3],
    bound: [Word; 3],
    /// The maximum that may be allocated at one time.
    ceiling: Triple,
    /// The maximum that was allocated here whenever somebody checked.
    peak: Triple,
    /// [B] charged bytes of freed blocks that wait.
    waiting: i64,
    /// The value of `total` when it was last folded, and the sum of all that was folded.
    folded_at: Triple,
    folded: [u128; 3],
    /// What the ledger saw at its last visit.
    pub seen: Seen,
    /// For how many visits in a row it has been the same.
    unchanged: u32,
}

/// What a heap contributes to the sums of its pool and device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub now: Triple,
    pub total: [u128; 3],
    pub waiting: i64,
    /// The heap rests, and this is in the ledger's sums of resting heaps.
    pub rests: bool,
}

impl Counters {
    /// [triple] what is currently allocated.
    pub(crate) fn current(&self) -> Triple {
        std::array::from_fn(|d| self.ceiling[d] - self.bound[d].get().wrapping_sub(self.total[d].get()))
    }

    /// [B] charged bytes of freed blocks that wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.max(0) as u64
    }

    /// Lets the heap allocate `room` more than it has now before it must ask.
    pub(crate) fn set_room(&mut self, room: Triple) {
        let now = self.current();
        for d in 0..3 {
            self.bound[d].set(self.total[d].get().wrapping_add(room[d]));
            self.ceiling[d] = now[d] + room[d];
        }
    }

    /// The totals of everything that was ever allocated.
    pub(crate) fn totals(&mut self) -> [u128; 3] {
        for d in 0..3 {
            let total = self.total[d].get();
            self.folded[d] += u128::from(total.wrapping_sub(self.folded_at[d]) as u64);
            self.folded_at[d] = total;
        }
        self.folded
    }

    /// The heap serves no pool from now on: returns its totals, which restart from 0.
    pub(crate) fn take_totals(&mut self) -> [u128; 3] {
        let totals = self.totals();
        *self = Counters::default();
        totals
    }

    /// A visit of the ledger: returns what the heap contributes to the sums now, and whether that has been the same for
    /// so long that the heap may rest.
    pub(crate) fn look(&mut self) -> (Seen, bool) {
        let now = Seen { now: self.current(), total: self.totals(), waiting: self.waiting, rests: false };
        self.unchanged = if now == self.seen { self.unchanged + 1 } else { 0 };
        self.seen = now;
        (now, self.unchanged >= LOOKS_UNTIL_REST)
    }

    /// Raises the heap's own peak to what is allocated now.
    pub(crate) fn note_peak(&mut self) {
        let now = self.current();
        for (peak, now) in self.peak.iter_mut().zip(now) {
            *peak = now.max(*peak);
        }
    }

    /// How far the heap is below its own peak.
    pub(crate) fn need(&self) -> Triple {
        let now = self.current();
        std::array::from_fn(|d| (self.peak[d] - now[d]).max(0))
    }

    /// Counts an allocated block. `true`: the peaks must be checked.
    #[inline(always)]
    pub(crate) fn count_in(&mut self, charged: u64, requested: u64) -> bool {
        let all =
            [self.total[0].add(charged as i64), self.total[1].add(requested as i64), self.total[2].add(1)];
        let left = |d: usize| self.bound[d].get().wrapping_sub(all[d]);
        (left(0) | left(1) | left(2)) < 0
    }

    /// Whether more is allocated than the ceilings allow, so that the peaks must be checked.
    pub(crate) fn over(&self) -> bool {
        (0..3).any(|d| self.bound[d].get().wrapping_sub(self.total[d].get()) < 0)
    }

    /// Counts a freed block.
    #[inline(always)]
    pub(crate) fn count_out(&mut self, charged: u64, requested: u64) {
        self.bound[0].add(charged as i64);
        self.bound[1].add(requested as i64);
        self.bound[2].add(1);
    }

    /// Counts a freed block that stays active until it stops waiting: the ceiling decreases with it.
    pub(crate) fn count_out_to_wait(&mut self, charged: u64, requested: u64) {
        self.ceiling[0] -= charged as i64;
        self.bound[1].add(requested as i64);
        self.bound[2].add(1);
        self.waiting += charged as i64;
    }

    /// A block waits no longer.
    pub(crate) fn count_back(&mut self, charged: u64) {
        self.waiting -= charged as i64;
        self.ceiling[0] += charged as i64;
        self.bound[0].add(charged as i64);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sums_hold_when_the_words_wrap() {
        let mut c = Counters::default();
        let huge = 1u64 << 62;
        let mut wrapped = 0;
        for _ in 0..9 {
            c.set_room([huge as i64, 10, 10]);
            assert!(!c.count_in(huge, 1));
            assert_eq!(c.current(), [huge as i64, 1, 1]);
            assert!(c.count_in(1, 1), "past the ceiling");
            c.count_out(1, 1);
            c.count_out(huge, 1);
            assert_eq!(c.current(), [0; 3]);
            wrapped += u128::from(huge) + 1;
            assert_eq!(c.totals(), [wrapped, c.totals()[1], c.totals()[2]]);
        }
        assert!(wrapped > u128::from(u64::MAX));
    }

    #[test]
    fn a_block_that_waits_is_not_allocated_and_gives_no_room() {
        let mut c = Counters::default();
        c.set_room([100, 100, 100]);
        assert!(!c.count_in(100, 90));
        c.count_out_to_wait(100, 90);
        assert_eq!((c.current(), c.waiting), ([0; 3], 100));
        assert!(c.count_in(1, 1), "what waits may not be allocated again");
        c.count_out(1, 1);
        c.count_back(100);
        assert_eq!((c.current(), c.waiting), ([0; 3], 0));
        assert!(!c.count_in(100, 90));
    }
}
