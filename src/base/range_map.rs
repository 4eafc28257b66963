//! Ranges of numbers that lead to ranges of others, such as addresses to offsets. Anybody finds the range of a number without a
//! lock; the ranges change seldom.
//!
//! They lie in a row, in order, and a reader looks by halving; a change moves all that come after it. Whoever changes them makes
//! their version odd first and even again afterwards. A reader that finds it odd, or another one after its search, has read what
//! may be half of the old and half of the new, and throws that away.

use super::error::Result;
use super::mapped_array::MappedArray;
use super::sync::{AtomicU64, Ordering::*, fence};

/// How often a reader tries, while the ranges are changed beside it, before it says so.
const TRIES: u32 = if cfg!(loom) { 1 } else { 8 };

/// A range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// Its first number.
    pub from: u64,
    /// How many numbers it has.
    pub count: u64,
    /// Where its first number leads.
    pub to: u64,
}

/// The ranges are being changed, and a reader has tried long enough: whoever changes them must be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changing;

/// The number of ranges that a [`Memo`] has, and the numbers, as a power of two, for which it has one of them.
const MEMO: usize = if cfg!(loom) { 1 } else { 16 };
const MEMO_SHIFT: u32 = 21;

/// Ranges that were found lately. One is right as long as nothing has changed since.
#[derive(Debug, Default)]
pub struct Memo {
    seen: [Seen; MEMO],
}

/// A range, and the version in which it was found. At first it has no number.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    version: u64,
    range: Range,
}

/// The ranges; see the head of this file.
#[derive(Debug)]
pub struct RangeMap {
    version: AtomicU64, // odd: being changed
    len: AtomicU64,
    all: MappedArray<[AtomicU64; 3]>,
}

impl RangeMap {
    /// No range; there may be `most`. Fails when the address space (or its limit) is used up.
    pub fn new(most: usize) -> Result<RangeMap> {
        Ok(RangeMap { version: AtomicU64::new(0), len: AtomicU64::new(0), all: MappedArray::new(most)? })
    }

    /// The range that contains `at`. Takes no lock.
    #[inline]
    pub fn find(&self, at: u64) -> std::result::Result<Option<Range>, Changing> {
        self.find_in_version(at).map(|(_, found)| found)
    }

    /// The same for a user that looks again and again, and remembers in `memo` what it has found; in no other map's.
    #[inline]
    pub fn find_again(&self, memo: &mut Memo, at: u64) -> std::result::Result<Option<Range>, Changing> {
        let seen = &mut memo.seen[(at >> MEMO_SHIFT) as usize % MEMO];
        // Acquire: as in `find_in_version`.
        if seen.version == self.version.load(Acquire) && seen.range.contains(at) {
            return Ok(Some(seen.range));
        }
        let (version, found) = self.find_in_version(at)?;
        if let Some(range) = found {
            *seen = Seen { version, range };
        }
        Ok(found)
    }

    #[inline(never)]
    fn find_in_version(&self, at: u64) -> std::result::Result<(u64, Option<Range>), Changing> {
        for _ in 0..TRIES {
            // Acquire pairs with the Release at the end of a change: all of that change is seen.
            let version = self.version.load(Acquire);
            if version & 1 == 0 {
                let found = self.look(at);
                // Pairs with the fence in `change`: who has read anything of a later change also reads its version here.
                fence(Acquire);
                if self.version.load(Relaxed) == version {
                    return Ok((version, found));
                }
            }
            std::hint::spin_loop();
        }
        Err(Changing)
    }

    /// Adds a range that has no number of another one. `false`: there are as many as there may be. One thread at a time.
    pub fn insert(&self, new: Range) -> bool {
        let len = self.len();
        if len == self.all.len() {
            return false;
        }
        let at = self.up_to(new.from);
        self.change(|| {
            (at..len).rev().for_each(|i| self.set(i + 1, self.range(i)));
            self.set(at, new);
            self.len.store(len as u64 + 1, Relaxed);
        });
        true
    }

    /// Removes the range that begins at `from`. One thread at a time, and none that inserts.
    pub fn remove(&self, from: u64) -> Option<Range> {
        let len = self.len();
        let at = self.up_to(from).checked_sub(1)?;
        let gone = self.range(at);
        if gone.from != from {
            return None;
        }
        self.change(|| {
            (at + 1..len).for_each(|i| self.set(i - 1, self.range(i)));
            self.len.store(len as u64 - 1, Relaxed);
        });
        Some(gone)
    }

    fn change(&self, change: impl FnOnce()) {
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        fence(Release); // see `find`
        change();
        self.version.store(version.wrapping_add(2), Release);
    }

    fn len(&self) -> usize {
        (self.len.load(Relaxed) as usize).min(self.all.len())
    }

    /// What is there, if nothing is changed meanwhile.
    #[inline]
    fn look(&self, at: u64) -> Option<Range> {
        let found = self.range(self.up_to(at).checked_sub(1)?);
        found.contains(at).then_some(found)
    }

    /// How many ranges begin at `at` or before.
    #[inline]
    fn up_to(&self, at: u64) -> usize {
        let (mut first, mut count) = (0, self.len());
        while count > 1 {
            let half = count / 2;
            first = if self.begin(first + half) <= at { first + half } else { first };
            count -= half;
        }
        first + usize::from(count == 1 && self.begin(first) <= at)
    }

    #[inline]
    fn begin(&self, i: usize) -> u64 {
        self.all.get(i).map_or(0, |[from, ..]| from.load(Relaxed))
    }

    #[inline]
    fn range(&self, i: usize) -> Range {
        let [from, count, to] = self.all.get(i).map_or([0; 3], |r| r.each_ref().map(|v| v.load(Relaxed)));
        Range { from, count, to }
    }

    fn set(&self, i: usize, range: Range) {
        let values = [range.from, range.count, range.to];
        self.all
            .get(i)
            .into_iter()
            .flatten()
            .zip(values)
            .for_each(|(place, value)| place.store(value, Relaxed));
    }
}

impl Range {
    #[inline]
    fn contains(&self, at: u64) -> bool {
        at.wrapping_sub(self.from) < self.count
    }

    /// Where a number of the range leads.
    #[inline]
    pub fn leads(&self, at: u64) -> u64 {
        self.to.wrapping_add(at.wrapping_sub(self.from))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const fn range(from: u64, count: u64, to: u64) -> Range {
        Range { from, count, to }
    }

    #[test]
    fn every_number_leads_where_its_range_does_and_no_other_anywhere() {
        let (map, mut memo) = (RangeMap::new(200).unwrap(), Memo::default());
        let mut known: BTreeMap<u64, Range> = BTreeMap::new();
        let mut seed = 7u64;
        let mut next = |most: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % most
        };
        for step in 0..4000 {
            let from = next(300) * 100;
            match known.remove(&from) {
                Some(r) => assert_eq!(map.remove(from), Some(r)),
                None => {
                    let new = range(from, 1 + next(100), next(1 << 40));
                    assert_eq!(map.insert(new), known.len() < 200);
                    if known.len() < 200 {
                        known.insert(from, new);
                    }
                }
            }
            assert_eq!(map.len(), known.len());
            for _ in 0..if step % 100 == 0 { 3000 } else { 3 } {
                let at = next(30_100);
                let wanted =
                    known.range(..=at).next_back().map(|(_, &r)| r).filter(|r| at < r.from + r.count);
                assert_eq!(map.find(at), Ok(wanted), "{at}");
                assert_eq!(map.find_again(&mut memo, at), Ok(wanted), "{at}");
                assert!(wanted.is_none_or(|r| r.leads(at) == r.to + (at - r.from)));
            }
        }
    }

    #[test]
    fn the_highest_numbers_are_numbers() {
        let map = RangeMap::new(2).unwrap();
        assert_eq!(map.find(0), Ok(None));
        let (low, high) = (range(0, 1, 5), range(u64::MAX - 9, 10, 0));
        assert!(map.insert(high) && map.insert(low) && !map.insert(range(100, 1, 0)));
        assert_eq!([0, 1, u64::MAX - 10].map(|at| map.find(at)), [Ok(Some(low)), Ok(None), Ok(None)]);
        assert_eq!(map.find(u64::MAX).unwrap().map(|r| r.leads(u64::MAX)), Some(9));
        assert_eq!((map.remove(1), map.remove(0), map.find(0)), (None, Some(low), Ok(None)));
    }

    #[test]
    fn readers_find_what_stays_while_others_come_and_go() {
        let map = RangeMap::new(64).unwrap();
        (0..8).for_each(|n| assert!(map.insert(range(n * 1000, 10, n))));
        std::thread::scope(|s| {
            s.spawn(|| {
                for n in 0..30_000 {
                    let at = n % 40 * 200 + 100;
                    assert!(map.insert(range(at, 1, 77)));
                    assert_eq!(map.remove(at), Some(range(at, 1, 77)));
                }
            });
            let mut memo = Memo::default();
            for n in 0..200_000 {
                let at = n % 8 * 1000;
                let found = if n % 3 == 0 { map.find(at + 9) } else { map.find_again(&mut memo, at + 9) };
                assert!(matches!(found, Err(Changing) | Ok(Some(Range { count: 10, .. }))), "{found:?}");
                assert!(found.is_err() || found == Ok(Some(range(at, 10, n % 8))));
            }
        });
    }
}
