//! The counters of a heap. For each class of memory, they count charged bytes, requested bytes and blocks: of
//! everything that was ever allocated, and of what is allocated now.
//!
//! The hot path changes two numbers. An allocation adds to `total`, and takes from `left` and checks whether that is
//! negative now. A free gives back to `left`. Everything else follows: `left` is how much may still be allocated before
//! the peaks must be checked (`ledger`), and `ceiling - left` is what is allocated. `total` may wrap; `left` never
//! does.
//!
//! The ledger says how much the heap may allocate of each class and of both together (`most`). The hot path checks only
//! the class of the block, so what both may have together is split between them (`deal`). A class that has used up its
//! part takes some of what the other has left. It does so at once (`take_more`), under the lock that the caller holds;
//! or, after the first step of a request, under the next lock (`take_more_of_all`). So the classes can take turns
//! without the ledger, as they do in a program that stays close to its peak. The ledger is asked when both together
//! have used up what they may have.
//!
//! What both together are dealt never exceeds the heap's own peak (`highest`) either, which is that of a stream in a pool.
//! So a heap that passes it takes more first, whatever the ledger has given it, and the peak is raised then: after what
//! other threads have freed is counted out, which the heap need not know yet.

use super::super::shape::Class;
use crate::base::sync::Word;

/// How many times in a row the ledger must see no change before a heap rests. Once would be enough for correct sums.
/// But if a program's streams take turns, its heaps would then be settled at each turn.
const LOOKS_UNTIL_REST: u32 = 16;

/// After how many exchanges between its classes a heap looks whether it has a surplus.
const EXCHANGES_PER_LOOK: u8 = 16;

/// So much room more than it was dealt a heap may always have.
const SURPLUS: Triple = [1 << 16, 1 << 16, 2];

/// Charged bytes, requested bytes, blocks.
pub(crate) type Triple = [i64; 3];

/// The classes by number, and both together.
pub(crate) const SMALL: usize = Class::Small as usize;
/// See [`SMALL`].
pub(crate) const LARGE: usize = Class::Large as usize;
/// See [`SMALL`].
pub(crate) const ALL: usize = 2;
/// The classes, and both together.
pub(crate) const KINDS: [usize; 3] = [SMALL, LARGE, ALL];

/// Something of each class, and of both together.
pub(crate) type Grid<T = i64> = [[T; 3]; 3];

/// What the hot path counts of one class.
#[derive(Default)]
struct Words {
    /// How much may still be allocated before the class must take more; negative: it must.
    left: [Word; 3],
    total: [Word; 3],
}

/// The counters of a heap; see the head of this file.
#[derive(Default)]
pub(crate) struct Counters {
    words: [Words; 2],
    /// The maximum of each class that may be allocated at one time before it must take more.
    ceiling: [Triple; 2],
    /// The maximum that may be allocated at one time before the ledger must be asked.
    most: Grid,
    /// How much more that may be once blocks that wait are reusable: what they had, as far as no peak is passed by it.
    returns: Grid,
    /// How far `most` was above what was allocated when the ledger changed it last.
    dealt: Grid,
    /// How many heaps were dealt room then; 0: this one was not.
    sharers: i64,
    /// How often the classes have exchanged room.
    exchanges: u8,
    /// The maximum that was allocated here whenever somebody checked.
    peak: Grid,
    /// The maximum that both classes together had since it was reset, or since the heap has served its stream. Exact.
    highest: Triple,
    /// Charged bytes, requested bytes and blocks that are freed and wait.
    waiting: [Triple; 2],
    /// The value of `total` when it was last folded, and the sum of all that was folded.
    folded_at: [Triple; 2],
    folded: [[u128; 3]; 2],
    /// What the ledger saw at its last visit.
    pub seen: Seen,
    /// For how many visits in a row it has been the same.
    unchanged: u32,
}

/// What a heap contributes to the sums of its pool and device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub now: Grid,
    pub total: Grid<u128>,
    pub waiting: Grid,
    /// The heap rests, and this is in the ledger's sums of resting heaps.
    pub rests: bool,
}

/// A grid of what `of` says of each class (or both) and quantity. Spelled out: where the compiler hardly inlines, as for the tests,
/// `array::from_fn` is a dozen calls for each number.
#[inline(always)]
pub(crate) fn grid<T>(of: impl Fn(usize, usize) -> T) -> Grid<T> {
    let row = |k| [of(k, 0), of(k, 1), of(k, 2)];
    [row(0), row(1), row(2)]
}

/// Two classes, and their sum.
fn with_sum<T: Copy + std::ops::Add<Output = T>>([small, large]: [[T; 3]; 2]) -> Grid<T> {
    [small, large, std::array::from_fn(|d| small[d] + large[d])]
}

/// Splits `free`, which both classes have together, and returns the part of each. If there is enough, each gets all
/// that it `wants`. If there is enough for what they need, each gets that and half of the rest. Otherwise the class
/// that needs less gets what it needs, but at most half, and the other gets what remains. The class that `asks` gets at
/// least half, or all that it wants.
fn split(free: i64, wants: [i64; 2], needs: [i64; 2], asks: Option<usize>) -> [i64; 2] {
    if wants[0].saturating_add(wants[1]) <= free {
        return wants;
    }
    let half = free / 2;
    let first = asks.unwrap_or(usize::from(needs[1] < needs[0]));
    let (need, other) = (needs[first].min(wants[first]), needs[1 - first].min(wants[1 - first]));
    let part = match need.saturating_add(other) {
        sum if sum <= free => need + (free - sum) / 2,
        _ => need.min(free - other.min(half)),
    };
    let part = if asks.is_some() { part.max(half) } else { part };
    // What one class does not want is the other's. Together they want more than there is, so nothing is left over.
    let part = part.min(wants[first]).max(free - wants[1 - first]);
    if first == 0 { [part, free - part] } else { [free - part, part] }
}

impl Counters {
    /// [grid] what is currently allocated.
    pub(crate) fn current(&self) -> Grid {
        let row = |c| [self.now(c, 0), self.now(c, 1), self.now(c, 2)];
        with_sum([row(0), row(1)])
    }

    /// What is currently allocated of a class, in one quantity.
    fn now(&self, c: usize, d: usize) -> i64 {
        self.ceiling[c][d] - self.words[c].left[d].get()
    }

    /// Whether nothing is allocated.
    pub(crate) fn is_empty(&self) -> bool {
        self.current() == Grid::<i64>::default()
    }

    /// Lets the heap allocate `room` more than it has now before it must ask, and `returns` more as its waiting blocks
    /// become reusable; `sharers`: how many heaps are dealt room.
    pub(crate) fn set_room(&mut self, room: Grid, returns: Grid, sharers: i64) {
        let now = self.current();
        self.note_highest();
        self.most = grid(|k, d| now[k][d] + room[k][d]);
        (self.dealt, self.returns, self.sharers) = (room, returns, sharers);
        (0..3).for_each(|d| self.deal([now[SMALL][d], now[LARGE][d]], d, None));
    }

    /// How far the heap could allocate before it must ask; negative: it has passed that.
    pub(crate) fn room(&self) -> Grid {
        let now = self.current();
        grid(|k, d| self.most[k][d] - now[k][d])
    }

    /// Lets the heap allocate so much more before it must ask. [`take_more_of_all`](Self::take_more_of_all) has to follow.
    pub(crate) fn add_room(&mut self, more: Grid) {
        self.most = grid(|k, d| self.most[k][d] + more[k][d]);
        let room = self.room();
        self.dealt = grid(|k, d| if more[k][d] > 0 { room[k][d] } else { self.dealt[k][d] });
    }

    /// How many heaps the ledger has dealt room with this one; 0: it has not dealt this one any.
    pub(crate) fn sharers(&self) -> i64 {
        self.sharers
    }

    /// Whether frees have left the heap far more room of anything than it was dealt, and others might need that.
    pub(crate) fn has_surplus(&self) -> bool {
        if self.sharers < 2 {
            return false;
        }
        let room = self.room();
        KINDS.into_iter().any(|k| (0..3).any(|d| self.is_surplus(&room, k, d)))
    }

    fn is_surplus(&self, room: &Grid, k: usize, d: usize) -> bool {
        room[k][d] > 2 * self.dealt[k][d] + SURPLUS[d]
    }

    /// Takes half of such room away from the heap, and returns how much.
    pub(crate) fn give_surplus(&mut self) -> Grid {
        let (room, now) = (self.room(), self.current());
        let given = grid(|k, d| if self.is_surplus(&room, k, d) { room[k][d] / 2 } else { 0 });
        self.most = grid(|k, d| self.most[k][d] - given[k][d]);
        self.dealt = grid(|k, d| if given[k][d] > 0 { given[k][d] } else { self.dealt[k][d] });
        (0..3).for_each(|d| self.deal([now[SMALL][d], now[LARGE][d]], d, None));
        given
    }

    /// Each class that has used up its part takes more, and the heap's own peak is raised: what has to follow
    /// [`count_in`](Self::count_in) and [`count_in_quick`](Self::count_in_quick), once what other threads have freed is
    /// counted out. `true`: the ledger must be asked.
    pub(crate) fn take_more_of_all(&mut self) -> bool {
        self.note_highest();
        self.take_more(Class::Small) || self.take_more(Class::Large)
    }

    /// A class has used up its part of some quantity, and takes more as far as `most` and `highest` allow. `true`: they
    /// do not.
    #[cold]
    #[inline(never)]
    fn take_more(&mut self, class: Class) -> bool {
        let c = class as usize;
        for d in 0..3 {
            let left = self.words[c].left[d].get();
            if left >= 0 || self.take_from_other(c, d, -left) {
                continue;
            }
            let now = [self.now(SMALL, d), self.now(LARGE, d)];
            let fits = now[SMALL] <= self.most[SMALL][d] && now[LARGE] <= self.most[LARGE][d];
            if !(fits && now[SMALL] + now[LARGE] <= self.most[ALL][d].min(self.highest[d])) {
                return true;
            }
            self.deal(now, d, Some(c));
        }
        false
    }

    /// Each class that has used up its part takes what it lacks from what the other has left. No peak can be passed by that, so
    /// nothing needs to be counted out before. `false`: it still lacks something, or the heap may have a surplus, which is looked
    /// at now and then only.
    #[inline(always)]
    pub(crate) fn exchange(&mut self) -> bool {
        for c in 0..2 {
            for d in 0..3 {
                let left = self.words[c].left[d].get();
                if left < 0 && !self.take_from_other(c, d, -left) {
                    return false;
                }
            }
        }
        self.exchanges = self.exchanges.wrapping_add(1);
        !self.exchanges.is_multiple_of(EXCHANGES_PER_LOOK) || !self.has_surplus()
    }

    /// A class takes what it lacks of a quantity from what the other has left, and half of the rest. `false`: that has less, or
    /// the class may not have so much.
    #[inline(always)]
    fn take_from_other(&mut self, c: usize, d: usize, lacks: i64) -> bool {
        let other = self.words[1 - c].left[d].get();
        let may = self.most[c][d] - self.ceiling[c][d];
        if other.min(may) < lacks {
            return false;
        }
        let part = (lacks + (other - lacks) / 2).min(may);
        for (class, n) in [(c, part), (1 - c, -part)] {
            self.words[class].left[d].add(n);
            self.ceiling[class][d] += n;
        }
        true
    }

    /// Splits what both classes may allocate of a quantity beyond what is allocated `now`. `asks`: the class that needs
    /// more, if one does.
    fn deal(&mut self, now: [i64; 2], d: usize, asks: Option<usize>) {
        let wants = std::array::from_fn(|c| self.most[c][d] - now[c]);
        let needs = std::array::from_fn(|c| (self.peak[c][d] - now[c]).max(0));
        let most = self.most[ALL][d].min(self.highest[d]);
        let parts = split(most - now[SMALL] - now[LARGE], wants, needs, asks);
        for (c, part) in parts.into_iter().enumerate() {
            self.words[c].left[d].set(part);
            self.ceiling[c][d] = now[c] + part;
        }
    }

    /// The totals of everything that was ever allocated.
    pub(crate) fn totals(&mut self) -> Grid<u128> {
        for c in 0..2 {
            for d in 0..3 {
                let total = self.words[c].total[d].get();
                self.folded[c][d] += u128::from(total.wrapping_sub(self.folded_at[c][d]) as u64);
                self.folded_at[c][d] = total;
            }
        }
        with_sum(self.folded)
    }

    /// The heap serves no pool from now on: returns its totals, which restart from 0.
    pub(crate) fn take_totals(&mut self) -> Grid<u128> {
        let totals = self.totals();
        *self = Counters::default();
        totals
    }

    /// Peaks of what both classes together had, of each quantity for itself. What other threads have freed is counted out.
    pub(crate) fn highest(&mut self) -> Triple {
        self.note_highest();
        self.highest
    }

    /// The peaks of [`highest`](Self::highest) are what is allocated now, which other threads have not freed.
    pub(crate) fn reset_highest(&mut self) {
        self.highest = self.current()[ALL];
        self.deal_again();
    }

    fn note_highest(&mut self) {
        let now = self.current()[ALL];
        (0..3).for_each(|d| self.highest[d] = self.highest[d].max(now[d]));
    }

    /// Deals again what exceeds the heap's own peak: also where a request has used up the part of its class and is not completed
    /// yet, since it may only exchange what both have.
    fn deal_again(&mut self) {
        for d in 0..3 {
            if self.ceiling[SMALL][d] + self.ceiling[LARGE][d] > self.highest[d] {
                self.deal([self.now(SMALL, d), self.now(LARGE, d)], d, None);
            }
        }
    }

    /// Charged bytes, requested bytes and number of the freed blocks that wait, of each class and of both.
    pub(crate) fn waiting(&self) -> Grid {
        with_sum(self.waiting)
    }

    /// A visit of the ledger. Returns what the heap contributes to the sums now, and whether this has been the same for
    /// so many visits that the heap may rest.
    pub(crate) fn look(&mut self) -> (Seen, bool) {
        let (now, total) = (self.current(), self.totals());
        let now = Seen { now, total, waiting: self.waiting(), rests: false };
        self.unchanged = if now == self.seen { self.unchanged + 1 } else { 0 };
        self.seen = now;
        (now, self.unchanged >= LOOKS_UNTIL_REST)
    }

    /// Raises the heap's own peak to what is allocated now.
    pub(crate) fn note_peak(&mut self) {
        let now = self.current();
        for (peak, now) in self.peak.iter_mut().flatten().zip(now.into_iter().flatten()) {
            *peak = now.max(*peak);
        }
    }

    /// How far the heap is below its own peaks.
    pub(crate) fn need(&self) -> Grid {
        let now = self.current();
        grid(|k, d| (self.peak[k][d] - now[k][d]).max(0))
    }

    /// Counts an allocated block. `true`: more is allocated than the heap may have, and it must be settled.
    #[inline(always)]
    pub(crate) fn count_in(&mut self, class: Class, charged: u64, requested: u64) -> bool {
        self.count_in_quick(class, charged, requested) && self.take_more(class)
    }

    /// The same, but `true` says only that the class has used up its part; the caller then calls
    /// [`take_more_of_all`](Self::take_more_of_all) under its next lock.
    #[inline(always)]
    pub(crate) fn count_in_quick(&mut self, class: Class, charged: u64, requested: u64) -> bool {
        if cfg!(millpond_no_counters) {
            return false; // for `bench/callgrind/count.sh` only: what the counters cost
        }
        let w = &mut self.words[class as usize];
        w.total[0].add(charged as i64);
        w.total[1].add(requested as i64);
        w.total[2].add(1);
        // The three are tested one after the other, each with one instruction and a jump. Testing them together would
        // cost as much again. After a test has failed, the rest is subtracted with `add`: were it the same operation as
        // in the tests, a compiler would do all three before the first test.
        let ([bytes, asked, blocks], rest) = (&mut w.left, (requested as i64).wrapping_neg());
        if bytes.take(charged as i64) {
            asked.add(rest);
            blocks.add(-1);
            return true;
        }
        if asked.take(requested as i64) {
            blocks.add(-1);
            return true;
        }
        blocks.take(1)
    }

    /// Whether more is allocated than the ceilings allow, so that the peaks must be checked.
    pub(crate) fn over(&self) -> bool {
        self.words.iter().any(|w| w.left.iter().any(|l| l.get() < 0))
    }

    /// Counts a freed block.
    #[inline(always)]
    pub(crate) fn count_out(&mut self, class: Class, charged: u64, requested: u64) {
        if cfg!(millpond_no_counters) {
            return; // as above
        }
        let w = &mut self.words[class as usize];
        w.left[0].add(charged as i64);
        w.left[1].add(requested as i64);
        w.left[2].add(1);
    }

    /// Counts a freed block that waits. It stays active until its wait is over, so the ceilings go down with it.
    pub(crate) fn count_out_to_wait(&mut self, class: Class, charged: u64, requested: u64) {
        let c = class as usize;
        for (d, n) in [charged as i64, requested as i64, 1].into_iter().enumerate() {
            self.waiting[c][d] += n;
            self.ceiling[c][d] -= n;
            for k in [c, ALL] {
                self.most[k][d] -= n;
                self.returns[k][d] += n;
            }
        }
    }

    /// A block waits no longer, and is live again: it was not freed after all. The heap must be settled.
    pub(crate) fn count_again(&mut self, class: Class, charged: u64, requested: u64) {
        self.count_back(class, charged, requested);
        let left = &mut self.words[class as usize].left;
        for (left, n) in left.iter_mut().zip([charged as i64, requested as i64, 1]) {
            left.add(-n);
        }
    }

    /// A block waits no longer. What it had may be allocated again, unless the ledger has seen it waiting and dealt with
    /// the room below the peaks of what is live.
    pub(crate) fn count_back(&mut self, class: Class, charged: u64, requested: u64) {
        let c = class as usize;
        for (d, n) in [charged as i64, requested as i64, 1].into_iter().enumerate() {
            self.waiting[c][d] -= n;
            let back = [c, ALL].map(|k| {
                let back = n.min(self.returns[k][d]);
                self.returns[k][d] -= back;
                self.most[k][d] += back;
                back
            });
            let part = back[0].min(back[1]);
            self.ceiling[c][d] += part;
            self.words[c].left[d].add(part);
        }
        self.deal_again();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
