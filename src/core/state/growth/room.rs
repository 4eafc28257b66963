//! The granule numbers without memory.

use super::super::super::units::GranuleRun;
use crate::base::ordered::Map;
use crate::base::sort;

/// The runs of granule numbers without memory; adjacent ones are joined.
#[derive(Default)]
pub(crate) struct Room {
    runs: Map<u32, u32>, // first -> count
}

impl Room {
    pub(super) fn new(count: u32) -> Room {
        Room { runs: Map::from([(0, count)]) }
    }

    /// Takes the highest number: for chunks, which stay away from large blocks.
    pub(crate) fn take_top(&mut self) -> Option<GranuleRun> {
        let (&at, &n) = self.runs.last_key_value()?;
        if n == 1 {
            self.runs.remove(&at)
        } else {
            self.runs.insert(at, n - 1)
        };
        Some(GranuleRun::new(at + n - 1, 1))
    }

    /// Takes `count` consecutive numbers; a run directly after `after` is preferred.
    pub(crate) fn take(&mut self, count: u32, after: Option<u32>) -> Option<GranuleRun> {
        let at = after
            .filter(|a| self.runs.get(a).is_some_and(|&n| n >= count))
            .or_else(|| self.runs.iter().find(|r| *r.1 >= count).map(|r| *r.0))?;
        let n = self.runs.remove(&at)?;
        if n > count {
            self.runs.insert(at + count, n - count);
        }
        Some(GranuleRun::new(at, count))
    }

    /// Takes numbers back: they have no memory any more.
    pub(crate) fn give(&mut self, run: GranuleRun) {
        let GranuleRun { mut first, mut count } = run;
        if let Some((&f, &n)) = self.runs.range(..first).next_back()
            && f + n == first
        {
            self.runs.remove(&f);
            first = f;
            count += n;
        }
        count += self.runs.remove(&(first + count)).unwrap_or(0);
        self.runs.insert(first, count);
    }

    /// The length of the longest run.
    pub(crate) fn longest(&self) -> u32 {
        self.runs.values().copied().max().unwrap_or(0)
    }

    /// The length of the longest run if the numbers of `more` had no memory either.
    pub(super) fn longest_with(&self, more: impl Iterator<Item = GranuleRun>) -> u64 {
        let mut all: Vec<GranuleRun> = self.runs.iter().map(|(&at, &n)| GranuleRun::new(at, n)).collect();
        all.extend(more);
        sort::by_key(&mut all, |&r| r);
        let (mut longest, mut end, mut row) = (0, 0, 0);
        for run in all {
            row = if run.first == end { row + u64::from(run.count) } else { u64::from(run.count) };
            end = run.end();
            longest = longest.max(row);
        }
        longest
    }

    /// The runs of numbers below `end` that have memory.
    pub(crate) fn occupied(&self, end: u32) -> Vec<GranuleRun> {
        self.occupied_in(Vec::with_capacity(self.runs.len() + 1), end)
    }

    /// The same; `None`: the host has no memory for the list.
    pub(crate) fn try_occupied(&self, end: u32) -> Option<Vec<GranuleRun>> {
        let mut runs = Vec::new();
        runs.try_reserve_exact(self.runs.len() + 1).ok()?;
        Some(self.occupied_in(runs, end))
    }

    fn occupied_in(&self, mut runs: Vec<GranuleRun>, end: u32) -> Vec<GranuleRun> {
        let mut at = 0;
        for (&first, &count) in &self.runs {
            if first > at {
                runs.push(GranuleRun::new(at, first - at));
            }
            at = first + count;
        }
        if at < end {
            runs.push(GranuleRun::new(at, end - at));
        }
        runs
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn room_is_joined_and_taken_where_it_is_wanted() {
        let mut r = Room::new(10);
        let a = r.take(3, None).unwrap();
        let b = r.take(3, None).unwrap();
        assert_eq!(r.take_top(), Some(GranuleRun::new(9, 1)));
        r.give(a);
        assert_eq!(r.longest(), 3);
        assert_eq!(r.take(1, Some(6)), Some(GranuleRun::new(6, 1)));
        assert_eq!(r.occupied(10), [GranuleRun::new(3, 4), GranuleRun::new(9, 1)]);
        r.give(b);
        assert_eq!(r.longest(), 6);
    }
}
