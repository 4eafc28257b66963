//! What a heap counts: charged bytes, requested bytes and blocks, of everything that was ever allocated in it, and of
//! what is live now.
//!
//! The hot path adds to `total` at an allocation and to `bound` at a free, and looks whether `total` has passed
//! `bound`. The difference is all that it needs: `bound - total` is how much may still be allocated before the peaks
//! must be looked at (`ledger`), and `ceiling` less that is what is allocated. Both words may wrap; their difference
//! never does.

use crate::base::sync::Word;

/// How often in a row the ledger must see the same before a heap rests. Once would do for the sums; but a program whose
/// streams take turns would come by at each turn.
const LOOKS_UNTIL_REST: u32 = 16;

/// Charged bytes, requested bytes, blocks.
pub(crate) type Triple = [i64; 3];

/// See the file's head.
#[derive(Default)]
pub(crate) struct Counters {
    total: [Word; 3],
    bound: [Word; 3],
    /// What may be allocated at one time.
    ceiling: Triple,
    /// The most that was allocated here when anybody looked.
    peak: Triple,
    /// [B] charged bytes of freed blocks that wait.
    waiting: i64,
    /// `total` when it was last folded, and the sum of all that was folded.
    folded_at: Triple,
    folded: [u128; 3],
    /// What the ledger saw when it last looked.
    pub seen: Seen,
    /// How often in a row it saw the same.
    unchanged: u32,
}

/// What a heap adds to the sums of its pool and device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub now: Triple,
    pub total: [u128; 3],
    pub waiting: i64,
    /// The heap rests, and this is in the ledger's sums of resting heaps.
    pub rests: bool,
}

impl Counters {
    /// [triple] what is allocated now.
    pub(crate) fn current(&self) -> Triple {
        std::array::from_fn(|d| self.ceiling[d] - self.bound[d].get().wrapping_sub(self.total[d].get()))
    }

    /// Lets the heap allocate `room` more, beyond what it has now, before it must ask.
    pub(crate) fn set_room(&mut self, room: Triple) {
        let now = self.current();
        for d in 0..3 {
            self.bound[d].set(self.total[d].get().wrapping_add(room[d]));
            self.ceiling[d] = now[d] + room[d];
        }
    }

    /// Everything that was ever counted in.
    pub(crate) fn totals(&mut self) -> [u128; 3] {
        for d in 0..3 {
            let total = self.total[d].get();
            self.folded[d] += u128::from(total.wrapping_sub(self.folded_at[d]) as u64);
            self.folded_at[d] = total;
        }
        self.folded
    }

    /// The heap serves nobody from now on: its totals, which start again from 0.
    pub(crate) fn take_totals(&mut self) -> [u128; 3] {
        let totals = self.totals();
        *self = Counters::default();
        totals
    }

    /// The ledger looks: what the heap adds to its sums now, and whether that has been the same for so long that the
    /// heap may rest.
    pub(crate) fn look(&mut self) -> (Seen, bool) {
        let now = Seen { now: self.current(), total: self.totals(), waiting: self.waiting, rests: false };
        self.unchanged = if now == self.seen { self.unchanged + 1 } else { 0 };
        self.seen = now;
        (now, self.unchanged >= LOOKS_UNTIL_REST)
    }

    /// Remembers what is allocated now, if it was never more.
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

    /// Counts a block in. `true`: the peaks must be looked at.
    #[inline(always)]
    pub(crate) fn count_in(&mut self, charged: u64, requested: u64) -> bool {
        let all =
            [self.total[0].add(charged as i64), self.total[1].add(requested as i64), self.total[2].add(1)];
        let left = |d: usize| self.bound[d].get().wrapping_sub(all[d]);
        (left(0) | left(1) | left(2)) < 0
    }

    /// Whether more is allocated than the ceilings allow: the peaks must be looked at.
    pub(crate) fn over(&self) -> bool {
        (0..3).any(|d| self.bound[d].get().wrapping_sub(self.total[d].get()) < 0)
    }

    /// Counts a block out.
    #[inline(always)]
    pub(crate) fn count_out(&mut self, charged: u64, requested: u64) {
        self.bound[0].add(charged as i64);
        self.bound[1].add(requested as i64);
        self.bound[2].add(1);
    }

    /// Counts a block out that goes on being active until it stops waiting: the ceiling goes down with it.
    pub(crate) fn count_out_to_wait(&mut self, charged: u64, requested: u64) {
        self.ceiling[0] -= charged as i64;
        self.bound[1].add(requested as i64);
        self.bound[2].add(1);
        self.waiting += charged as i64;
    }

    /// A block waits no more.
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
