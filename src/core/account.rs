//! The pond's account: statistics and peaks, exact at any moment.

use super::heap::Heap;
use super::ledger::{Sums, deal, share};
use super::pond::{Pond, lock};
use super::pools::{Ledger, Locked};
use super::types::{PoolId, Stats};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::Ordering::Relaxed;

impl Pond {
    /// Deals the ceilings anew after a heap has passed its own; raises the peaks if they must be.
    #[cold]
    #[inline(never)]
    pub(crate) fn settle(&self, heap: &Heap) {
        let mut ledger = lock(&self.ledger);
        self.with_all(&mut ledger, |ledger, all| {
            for (x, h) in all.iter_mut() {
                self.drain(x, h);
            }
            self.deal_all(ledger, all, Some(heap));
        });
    }

    /// Raises the peaks to the true sums and deals what is left below them: to each heap first what it once
    /// had and has not now, so that a program that repeats itself need not come back; `first` comes first.
    pub(crate) fn deal_all(&self, ledger: &mut Ledger, all: &mut [Locked], first: Option<&Heap>) {
        let mut sums = Sums::default();
        for (_, h) in all.iter_mut() {
            h.note_peak();
            sums.add(h);
        }
        let device = ledger.device.raise(&sums);
        for pool in ledger.pools.values_mut() {
            pool.sums = Sums::default();
        }
        for (x, h) in all.iter() {
            if let Some(p) = ledger.pools.get_mut(&x.pool.load(Relaxed)) {
                p.sums.add(h);
            }
        }
        for p in ledger.pools.values_mut() {
            p.below = p.peaks.raise(&p.sums);
        }
        let urgent =
            all.iter().find(|(x, _)| first.is_some_and(|f| f.index == x.index)).map(|(_, h)| h.need());
        for (x, h) in all.iter_mut() {
            let urgent = urgent.map(|n| (n, first.is_some_and(|f| f.index == x.index)));
            let share = match ledger.pools.get(&x.pool.load(Relaxed)) {
                Some(p) => std::array::from_fn(|d| {
                    let need = h.need()[d];
                    share(device[d], &sums, d, need, urgent).min(share(p.below[d], &p.sums, d, need, urgent))
                }),
                None => [0; 3],
            };
            deal(h, share);
        }
    }

    /// Runs `f` with every heap locked, in order of their index. The list is kept for the next time.
    pub(crate) fn with_all<R>(
        &self,
        ledger: &mut Ledger,
        f: impl FnOnce(&mut Ledger, &mut [Locked]) -> R,
    ) -> R {
        let n = self.heap_count.load(crate::base::sync::Ordering::Acquire) as usize;
        let mut all = std::mem::take(&mut ledger.scratch);
        all.extend((0..n).filter_map(|i| self.heaps.get(i)).map(|x| (x, x.inner.lock())));
        let result = f(ledger, &mut all);
        all.clear();
        ledger.scratch = all;
        result
    }

    /// The exact account of the device, or of one of its pools.
    pub fn stats(&self, pool: Option<PoolId>) -> Result<Stats> {
        self.poll_all(false);
        let growth = self.hold_growth()?;
        let mut ledger = lock(&self.ledger);
        self.with_all(&mut ledger, |ledger, all| {
            for (x, h) in all.iter_mut() {
                self.drain(x, h);
            }
            self.deal_all(ledger, all, None);
            let mut sums = Sums::default();
            for (x, h) in all.iter() {
                if pool.is_none_or(|p| p.0 == x.pool.load(Relaxed)) {
                    sums.add(h);
                }
            }
            let (peaks, gone, reserved, segments, sleeping, limit, ooms) = match pool {
                None => (
                    ledger.device,
                    ledger.gone,
                    growth.reserved,
                    growth.segments,
                    growth.sleeping,
                    self.limit.load(Relaxed),
                    self.oom_count.load(Relaxed),
                ),
                Some(p) => {
                    let entry = ledger.pools.get(&p.0).filter(|_| self.pool(p).is_some());
                    let Some(entry) = entry else {
                        return Err(Error::new(Code::InvalidArgument, "no such pool, or it was destroyed"));
                    };
                    let r = growth.pools.get(&p.0).copied().unwrap_or_default();
                    let limit = self.pool(p).map_or(0, |x| x.limit.load(Relaxed));
                    let ooms = self.pool(p).map_or(0, |x| x.oom_count.load(Relaxed));
                    (entry.peaks, [0; 3], r.reserved, r.segments, r.sleeping, limit, ooms)
                }
            };
            for (total, gone) in sums.total.iter_mut().zip(gone) {
                *total += gone;
            }
            let [allocated, requested, blocks, active] = peaks.counters(&sums);
            Ok(Stats {
                requested,
                allocated,
                active,
                reserved,
                blocks,
                segments,
                driver_calls: 0,
                out_of_memory_count: ooms,
                limit,
                sleeping,
            })
        })
    }

    /// Peaks start again from the current values, of the device or of one pool.
    pub fn reset_peaks(&self, pool: Option<PoolId>) -> Result<()> {
        let mut growth = self.hold_growth()?;
        let mut ledger = lock(&self.ledger);
        self.with_all(&mut ledger, |ledger, all| {
            for (x, h) in all.iter_mut() {
                self.drain(x, h);
            }
            self.deal_all(ledger, all, None);
            let mut sums = Sums::default();
            for (_, h) in all.iter() {
                sums.add(h);
            }
            let Ledger { device, pools, .. } = &mut *ledger;
            match pool {
                None => {
                    device.reset(&sums);
                    growth.reserved.reset_peak();
                    growth.segments.reset_peak();
                    growth.sleeping.reset_peak();
                }
                Some(p) => {
                    let Some(entry) = pools.get_mut(&p.0).filter(|_| self.pool(p).is_some()) else {
                        return Err(Error::new(Code::InvalidArgument, "no such pool, or it was destroyed"));
                    };
                    entry.peaks.reset(&entry.sums);
                    if let Some(r) = growth.pools.get_mut(&p.0) {
                        r.reserved.reset_peak();
                        r.segments.reset_peak();
                        r.sleeping.reset_peak();
                    }
                }
            }
            self.deal_all(ledger, all, None);
            Ok(())
        })
    }

    /// Live blocks of the device.
    pub fn live_blocks(&self) -> u64 {
        self.stats(None).map_or(0, |s| s.blocks.current)
    }

    /// Bounds `reserved` of the whole device, in bytes; 0: no bound.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }
}
