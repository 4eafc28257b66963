//! Room below the peaks that no heap was dealt. A heap that has used up its own takes some, and one that has far more than it
//! was dealt gives some back, without the ledger: where many threads stay close to the peak, they do so all the time.
//!
//! Whoever does holds the lock of a heap that the ledger deals to (`Counters::sharers`), and the ledger sets what is spare
//! while it holds the locks of all of those. So nothing that is taken is in transit then, and each part of the room is in one
//! place: a heap's, or here. A heap takes as much of what its pool has spare as of what the device has.

use super::heap::counters::{Grid, KINDS, grid};
use crate::base::sync::{AtomicI64, Ordering::Relaxed, Padded};

/// What is spare of a device, or of one of its pools.
#[derive(Debug, Default)]
pub(crate) struct Spare(Padded<Grid<AtomicI64>>);

impl Spare {
    /// The ledger has dealt anew. All heaps are locked that it deals to.
    pub(super) fn set(&self, spare: &Grid) {
        for k in KINDS {
            (0..3).for_each(|d| self.0[k][d].store(spare[k][d], Relaxed));
        }
    }

    fn get(&self, k: usize, d: usize) -> i64 {
        self.0[k][d].load(Relaxed)
    }

    /// Takes so much, if so much is there.
    fn take(&self, k: usize, d: usize, n: i64) -> bool {
        self.0[k][d].fetch_update(Relaxed, Relaxed, |now| (now >= n).then(|| now - n)).is_ok()
    }

    fn give(&self, k: usize, d: usize, n: i64) {
        self.0[k][d].fetch_add(n, Relaxed);
    }
}

/// What is spare for a heap, whose lock is held.
#[derive(Clone, Copy)]
pub(super) struct Spares<'a> {
    pub device: &'a Spare,
    pub pool: &'a Spare,
}

impl Spares<'_> {
    /// The heap has given room back.
    pub(super) fn give(self, given: &Grid) {
        for k in KINDS {
            for (d, &n) in given[k].iter().enumerate().filter(|&(_, &n)| n > 0) {
                self.device.give(k, d, n);
                self.pool.give(k, d, n);
            }
        }
    }

    /// Takes room for one of so many heaps, which has `room` left; negative: it has passed that, and lacks so much. It gets at
    /// least what it lacks, and where little is left, up to its share, an equal part of what is spare. So the next ones find as
    /// much, and all heaps seldom have to be locked. `None`: less is spare than it lacks.
    pub(super) fn take(self, heaps: i64, room: &Grid) -> Option<Grid> {
        let lacks = grid(|k, d| (-room[k][d]).max(0));
        let spare = grid(|k, d| self.device.get(k, d).min(self.pool.get(k, d)));
        if lacks.iter().flatten().zip(spare.iter().flatten()).any(|(lacks, spare)| lacks > spare) {
            return None;
        }
        let mut more = Grid::default();
        for k in KINDS {
            for d in 0..3 {
                let (lacks, share) = (lacks[k][d], spare[k][d] / heaps.max(2));
                let wants = if lacks > 0 {
                    lacks.max(share)
                } else if room[k][d] < share / 2 {
                    share - room[k][d]
                } else {
                    continue;
                };
                more[k][d] = match self.take_one(k, d, wants) {
                    true => wants,
                    false if lacks == 0 => 0,
                    false if self.take_one(k, d, lacks) => lacks,
                    false => {
                        self.give(&more);
                        return None;
                    }
                };
            }
        }
        Some(more)
    }

    /// Takes so much of one quantity.
    fn take_one(self, k: usize, d: usize, n: i64) -> bool {
        if !self.device.take(k, d, n) {
            return false;
        }
        let taken = self.pool.take(k, d, n);
        if !taken {
            self.device.give(k, d, n);
        }
        taken
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn spares(device: i64, pool: i64) -> [Spare; 2] {
        let all = [device, pool].map(|n| (n, Spare::default()));
        all.map(|(n, spare)| {
            spare.set(&grid(|_, _| n));
            spare
        })
    }

    fn left([device, pool]: &[Spare; 2]) -> [i64; 2] {
        [device.get(0, 0), pool.get(0, 0)]
    }

    #[test]
    fn a_heap_takes_what_it_lacks_or_its_share_of_both() {
        let all = spares(1000, 100);
        let spare = Spares { device: &all[0], pool: &all[1] };
        let lacks = |n: i64| grid(|k, d| if (k, d) == (0, 0) { -n } else { 1000 });
        assert_eq!(spare.take(4, &lacks(101)), None, "the pool has less");
        assert_eq!(left(&all), [1000, 100]);
        assert_eq!(spare.take(4, &lacks(5)).unwrap()[0], [25, 0, 0], "its share");
        assert_eq!(spare.take(4, &lacks(70)).unwrap()[0], [70, 0, 0], "what it lacks");
        assert_eq!(left(&all), [905, 5]);
        spare.give(&grid(|k, d| if (k, d) == (0, 0) { 95 } else { 0 }));
        assert_eq!(left(&all), [1000, 100]);
        assert_eq!(spare.take(4, &grid(|_, _| 12)).unwrap(), grid(|_, _| 0), "there is enough left of it");
        assert_eq!(spare.take(4, &grid(|_, _| 11)).unwrap(), grid(|_, _| 14), "little is left of it");
    }

    /// What one quantity lacks goes back with all that was taken of others.
    #[test]
    fn nothing_is_taken_where_another_quantity_is_gone() {
        let all = spares(100, 100);
        let spare = Spares { device: &all[0], pool: &all[1] };
        assert_eq!(spare.take(2, &[[-10; 3], [-10; 3], [-10, -10, -101]]), None);
        assert_eq!(left(&all), [100, 100]);
        assert!(!spare.take_one(2, 2, 101) && !spare.device.take(2, 2, 101));
        all[1].set(&grid(|_, _| 9));
        assert!(!spare.take_one(0, 0, 10), "the pool has less than the device");
        assert_eq!(left(&all), [100, 9]);
    }

    /// Threads take and give at the same moment: each part of the room is in one place, also where some quantities are taken when
    /// another turns out to be gone; and nothing is taken that is not there.
    #[test]
    fn room_is_in_one_place() {
        const ROOM: i64 = 10_000;
        let all = spares(ROOM, ROOM);
        let spare = Spares { device: &all[0], pool: &all[1] };
        let held = std::thread::scope(|s| {
            let threads = (1..=4).map(|me| {
                s.spawn(move || {
                    let mut held = Grid::default();
                    for turn in 0..20_000 {
                        let lacks = (turn * me * 7919) % 4001 + 1;
                        match spare.take(4, &grid(|_, _| -lacks)) {
                            Some(more) => held = grid(|k, d| held[k][d] + more[k][d]),
                            None => spare.give(&std::mem::take(&mut held)),
                        }
                        assert!(
                            spare.device.get(0, 0) >= 0 && spare.pool.get(0, 0) >= 0 && held[0][0] <= ROOM
                        );
                    }
                    held
                })
            });
            let held = threads.collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap());
            held.fold(Grid::<i64>::default(), |sum, held| grid(|k, d| sum[k][d] + held[k][d]))
        });
        for spare in &all {
            assert_eq!(grid(|k, d| spare.get(k, d)), grid(|k, d| ROOM - held[k][d]));
        }
    }
}
