//! Sleep and wake: the physical memory of a pool goes back to the device, its addresses and blocks stay.
//!
//! A sleeping pool gives nothing and takes nothing: requests are refused, its granules are pinned, and ranges of
//! addresses that show them are hidden. Blocks of it may still be freed; that changes numbers only. All calls to
//! the device are undone when a later one fails; what cannot be undone (the device took memory and will not give
//! it again) leaves the pool asleep, to be woken later.

use super::aliases::{Gone, Pieces, granules_of};
use super::desc::{GranuleUse, use_of};
use super::pond::{Pond, lock};
use super::shape::GRANULE_SHIFT;
use super::supply::Growth;
use super::types::PoolId;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::Ordering::Relaxed;
use crate::fail;
use std::collections::BTreeSet;

/// What sleeps of a pool.
#[derive(Debug, Default)]
pub(crate) struct Asleep {
    runs: Vec<(u32, u32)>,          // granules: (first, count)
    shown: Vec<(u32, u32, Pieces)>, // ranges of addresses that show some of them: (first, count, pieces)
    saved: bool,                    // what they held is kept
}

fn granules(runs: &[(u32, u32)]) -> u64 {
    runs.iter().map(|r| u64::from(r.1)).sum()
}

fn bytes(granules: u32) -> u64 {
    u64::from(granules) << GRANULE_SHIFT
}

impl Pond {
    /// Gives the pool's memory back to the device until `wake`; with `save`, what it holds is kept in host
    /// memory, else it is lost. Waits for the device.
    pub fn sleep(&self, pool: PoolId, save: bool) -> Result<()> {
        if !self.config.mapping {
            fail!(Code::Unsupported, "the device cannot take memory away from under addresses");
        }
        let mut g = self.hold_growth()?;
        let Some(p) = self.pool(pool) else {
            fail!(Code::InvalidArgument, "no such pool, or it was destroyed");
        };
        if p.asleep.load(Relaxed) {
            fail!(Code::NotPermitted, "the pool sleeps already");
        }
        // What is free need not sleep. (Of a pool that a graph keeps, it must: nothing is trimmed there.)
        self.trim(&mut g, Some(pool))?;
        self.check_loans(pool, false)?;
        p.asleep.store(true, Relaxed);
        p.evict_all();
        let mut asleep = self.what_sleeps(&g, pool);
        asleep.saved = save;
        match self.lay_down(&mut asleep) {
            (Ok(()), _) => {
                g.fall_asleep(pool.0, granules(&asleep.runs));
                lock(&self.asleep).insert(pool.0, asleep);
                Ok(())
            }
            (Err(e), true) => {
                p.asleep.store(false, Relaxed);
                Err(e)
            }
            (Err(e), false) => {
                g.fall_asleep(pool.0, granules(&asleep.runs));
                lock(&self.asleep).insert(pool.0, asleep);
                Err(Error::new(
                    e.code(),
                    format!("{e}; what went to the device did not come back: wake the pool"),
                ))
            }
        }
    }

    /// The granules that the pool's heaps own, and what shows them.
    fn what_sleeps(&self, g: &Growth, pool: PoolId) -> Asleep {
        let heaps: BTreeSet<u32> = self.lock_pool(pool).into_keys().collect();
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for granule in g.occupied(self.real).into_iter().flat_map(|(first, n)| first..first + n) {
            let u = self.maps.granule(granule);
            if !(use_of::SMALL..=use_of::LARGE).contains(&u.use_()) || !heaps.contains(&u.heap()) {
                continue;
            }
            match runs.last_mut() {
                Some(r) if r.0 + r.1 == granule => r.1 += 1,
                _ => runs.push((granule, 1)),
            }
        }
        let sleeps = |granule: u32| {
            let at = runs.partition_point(|r| r.0 <= granule);
            at > 0 && granule < runs[at - 1].0 + runs[at - 1].1
        };
        let shown = self.aliases.lock().showing(sleeps);
        Asleep { runs, shown, saved: false }
    }

    /// Takes the memory away. On failure, whether all is as it was; if not, `a` says what sleeps.
    fn lay_down(&self, a: &mut Asleep) -> (Result<()>, bool) {
        if a.saved {
            for (n, &(first, count)) in a.runs.iter().enumerate() {
                if let Err(e) = self.backing.save(first, count) {
                    self.drop_saved(&a.runs[..n]);
                    return (Err(e), true);
                }
            }
        }
        let mut failed = None;
        let mut hidden = 0;
        for &(granule, count, _) in &a.shown {
            if let Err(e) = self.backing.unalias(bytes(granule), bytes(count)) {
                failed = Some(e);
                break;
            }
            self.aliases.lock().set_hidden(granule, true);
            hidden += 1;
        }
        let mut released = 0;
        let mut lost = false;
        for &(first, count) in a.runs.iter().take_while(|_| failed.is_none()) {
            if let Err(e) = self.backing.release(first, count) {
                // Memory that the device took and had to give again is there, but empty.
                lost = a.saved && self.backing.load(first, count).is_err();
                failed = Some(e);
                break;
            }
            released += 1;
        }
        let Some(mut e) = failed else { return (Ok(()), true) };
        if lost {
            e = Error::new(e.code(), format!("{e}; some of what the pool held is lost"));
        }
        self.drop_saved(&a.runs[released..]);
        a.runs.truncate(released);
        a.shown.truncate(hidden);
        let undone = self.raise(a).is_ok();
        (Err(e), undone)
    }

    fn drop_saved(&self, runs: &[(u32, u32)]) {
        runs.iter().for_each(|&(first, count)| self.backing.drop_saved(first, count));
    }

    /// Brings the memory back, with what it held, and shows it where it was shown. All or nothing.
    fn raise(&self, a: &Asleep) -> Result<()> {
        for (n, &(first, count)) in a.runs.iter().enumerate() {
            let back = self.backing.create(first, count).and_then(|()| match a.saved {
                true => self.backing.load(first, count).inspect_err(|_| {
                    let _ = self.backing.release(first, count); // nobody has used it
                }),
                false => Ok(()),
            });
            if let Err(e) = back {
                self.put_back(a, n, 0);
                return Err(e);
            }
        }
        for (n, (granule, _, pieces)) in a.shown.iter().enumerate() {
            if let Err(e) = self.show_pieces(*granule, pieces) {
                self.put_back(a, a.runs.len(), n);
                return Err(e);
            }
        }
        self.drop_saved(if a.saved { &a.runs } else { &[] });
        let mut aliases = self.aliases.lock();
        a.shown.iter().for_each(|s| aliases.set_hidden(s.0, false));
        Ok(())
    }

    /// Undoes the first `shown` ranges and the first `runs` of `raise`, whose memory nobody has used.
    fn put_back(&self, a: &Asleep, runs: usize, shown: usize) {
        for &(granule, count, _) in &a.shown[..shown] {
            let _ = self.backing.unalias(bytes(granule), bytes(count));
        }
        for &(first, count) in &a.runs[..runs] {
            let _ = self.backing.release(first, count);
        }
    }

    fn show_pieces(&self, granule: u32, pieces: &Pieces) -> Result<()> {
        let mut at = granule;
        for &piece in pieces.iter() {
            let (first, n) = granules_of(piece);
            if let Err(e) = self.backing.alias(bytes(at), first, n) {
                if at > granule {
                    let _ = self.backing.unalias(bytes(granule), bytes(at - granule));
                }
                return Err(e);
            }
            at += n;
        }
        Ok(())
    }

    /// Brings the pool's memory back, at the same addresses. Idle memory of others is given back for it, if it
    /// must be. All or nothing.
    pub fn wake(&self, pool: PoolId) -> Result<()> {
        let mut g = self.hold_growth()?;
        let Some(p) = self.pool(pool) else {
            fail!(Code::InvalidArgument, "no such pool, or it was destroyed");
        };
        if self.any_captured() {
            fail!(Code::Busy, "a stream of the device is being captured");
        }
        let Some(a) = lock(&self.asleep).remove(&pool.0) else {
            fail!(Code::NotPermitted, "the pool does not sleep");
        };
        let mut done = Err(Error::new(Code::OutOfMemory, ""));
        for trimmed in [false, true] {
            let (allowed, why) = self.allowed(&g, pool.0);
            done = match granules(&a.runs) << GRANULE_SHIFT <= allowed {
                true => self.raise(&a),
                false => Err(Error::new(Code::OutOfMemory, why)),
            };
            let short = done.as_ref().is_err_and(|e| e.code() == Code::OutOfMemory);
            if !short || trimmed || !self.trim(&mut g, None).unwrap_or(false) {
                break;
            }
        }
        match done {
            Ok(()) => {
                g.wake_up(pool.0, granules(&a.runs), true);
                p.asleep.store(false, Relaxed);
                Ok(())
            }
            Err(e) => {
                lock(&self.asleep).insert(pool.0, a);
                Err(e)
            }
        }
    }

    /// Whether the pool sleeps.
    pub fn sleeps(&self, pool: PoolId) -> bool {
        self.pool(pool).is_some_and(|p| p.asleep.load(Relaxed))
    }

    /// A sleeping pool without blocks is about to end: its granule numbers and addresses are free again.
    pub(crate) fn discard_asleep(&self, pool: PoolId) -> Result<()> {
        let mut g = self.hold_growth()?;
        if !self.sleeps(pool) {
            return Ok(());
        }
        // The end of a pool waits for the device. Where that cannot be, the pool sleeps on.
        self.sync_device()?;
        for heap in self.heaps_of(pool) {
            self.poll(heap, true);
        }
        // With what was freed merged, all that sleeps is free; but for what waits for a captured stream.
        let free = |h: &super::heap::Inner| h.free_runs(&self.maps, &mut Vec::new());
        let (mut owned, mut all_free) = (0, 0);
        for (_, h) in self.lock_pool(pool).values() {
            owned += h.granules;
            all_free += free(h);
        }
        if all_free != owned {
            fail!(Code::Busy, "freed blocks of the pool still wait for streams");
        }
        let Some(a) = lock(&self.asleep).remove(&pool.0) else { return Ok(()) };
        for (granule, count, pieces) in a.shown {
            let gone = self.aliases.lock().hidden_idle(granule);
            let Some(Gone { index, id, .. }) = gone else {
                // It shows memory of others too, which is busy.
                let _ = self.show_pieces(granule, &pieces);
                continue;
            };
            (granule..granule + count).for_each(|i| self.maps.set_granule(i, GranuleUse::NONE));
            if let Some(home) = self.heaps.get(0) {
                home.inner.lock().give_id(&self.maps, id);
            }
            self.aliases.lock().forget(index);
        }
        let asleep: u64 = granules(&a.runs);
        for heap in self.heaps_of(pool) {
            let mut h = heap.inner.lock();
            let mut runs = Vec::new();
            h.free_runs(&self.maps, &mut runs);
            for (count, first, id) in runs {
                if h.take_run(&self.maps, id, first, count) {
                    g.give_room(first, count);
                    // After a sleep that failed half way some are awake.
                    let sleeps = |at: u32| a.runs.iter().any(|r| (r.0..r.0 + r.1).contains(&at));
                    for granule in (first..first + count).filter(|&at| !sleeps(at)) {
                        g.release(pool.0, 1 << GRANULE_SHIFT, 1);
                        let _ = self.backing.release(granule, 1); // it refused once; nobody uses it
                    }
                }
            }
        }
        self.drop_saved(if a.saved { &a.runs } else { &[] });

        g.wake_up(pool.0, asleep, false);
        if let Some(p) = self.pool(pool) {
            p.asleep.store(false, Relaxed);
        }
        Ok(())
    }
}
