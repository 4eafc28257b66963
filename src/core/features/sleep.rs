//! Sleep and wake: the physical memory of a pool goes back to the device; its addresses and blocks stay.
//!
//! A sleeping pool neither gives nor takes memory: requests are refused, it is pinned, and the address ranges of its
//! granules are hidden. Its blocks may still be freed; that only changes bookkeeping. If a call to the device fails,
//! all earlier ones are undone; if that is impossible too (the device took memory and does not give it again), the pool
//! stays asleep, to be woken later. While its memory is taken away or brought back, with no lock held, the pool is
//! *moving*: it counts as asleep, and no other thread puts it to sleep or wakes it.

use super::super::aliases::{Gone, Shown};
use super::super::desc::use_of;
use super::super::ground::Ground;
use super::super::order::Waits;
use super::super::state::pools::{Pool, Sleep};
use super::super::state::sleeping::SleepingMemory;
use super::super::types::PoolId;
use super::super::units::{Extent, GRANULE, GranuleRun, granule_bytes};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::{Ordering::Relaxed, lock};
use crate::fail;

impl Ground {
    /// Changes the state from `from` (`Awake` or `Asleep`) to moving; `NotPermitted` if it is another. Growth is
    /// locked.
    fn start_to_move(&self, p: &Pool, from: Sleep) -> Result<()> {
        let mut sleep = lock(&p.sleep);
        match (*sleep, from) {
            (Sleep::Awake, Sleep::Awake) => {
                p.pins.fetch_add(1, Relaxed);
            }
            (Sleep::Asleep, Sleep::Asleep) => {}
            (Sleep::Moving, _) => fail!(Code::Busy, "another thread puts the pool to sleep, or wakes it"),
            (Sleep::Asleep, _) => fail!(Code::NotPermitted, "the pool sleeps already"),
            (Sleep::Awake, _) => fail!(Code::NotPermitted, "the pool does not sleep"),
        }
        *sleep = Sleep::Moving;
        Ok(())
    }

    /// Ends the moving state. Growth is locked.
    fn stop_moving(&self, p: &Pool, to: Sleep) {
        if to == Sleep::Awake {
            p.pins.fetch_sub(1, Relaxed);
        }
        *lock(&p.sleep) = to;
    }

    /// Gives the pool's memory back to the device until `wake`; with `save`, its contents are kept in host memory,
    /// otherwise they are lost. Waits for the device.
    pub(crate) fn sleep(&self, pool: PoolId, save: bool) -> Result<()> {
        self.check_reentry()?;
        if !self.config.mapping {
            fail!(Code::Unsupported, "the device cannot take memory away from under addresses");
        }
        let p = self.live_pool(pool)?;
        if p.sleep_state() != Sleep::Awake {
            fail!(Code::NotPermitted, "the pool sleeps already");
        }
        // Free memory need not sleep. (In a pool that a graph keeps it must: nothing is trimmed there.)
        self.trim(Some(pool.0))?;
        self.check_exports(pool, false)?;
        {
            let mut g = self.growing();
            self.live_pool(pool)?;
            self.start_to_move(p, Sleep::Awake)?;
            while g.is_in_transit(Some(pool.0)) {
                g = g.wait_for_transit();
            }
        }
        self.evict_all(p);
        let done = self.fall_asleep(pool, save);
        let mut g = self.growing();
        match done {
            Ok(mut asleep) => {
                asleep.chunks = self.chunks_in(&asleep);
                g.fall_asleep(pool.0, asleep.granules(), asleep.chunks);
                lock(&self.sleeping).insert(pool.0, asleep);
                self.stop_moving(p, Sleep::Asleep);
                Ok(())
            }
            Err((e, None)) => {
                self.stop_moving(p, Sleep::Awake);
                Err(e)
            }
            Err((e, Some(mut asleep))) => {
                asleep.chunks = self.chunks_in(&asleep);
                g.fall_asleep(pool.0, asleep.granules(), asleep.chunks);
                lock(&self.sleeping).insert(pool.0, asleep);
                self.stop_moving(p, Sleep::Asleep);
                let why = format!("{e}; what went to the device did not come back: wake the pool");
                Err(Error::new(e.code(), why))
            }
        }
    }

    /// Chunks among the granules that sleep.
    fn chunks_in(&self, asleep: &SleepingMemory) -> u64 {
        let is_chunk = |&g: &u32| (use_of::SMALL..=use_of::MEDIUM).contains(&self.maps.granule(g).use_());
        asleep.runs.iter().flat_map(|r| r.granules()).filter(is_chunk).count() as u64
    }

    /// Takes the memory away. On failure also returns what sleeps all the same, if anything.
    fn fall_asleep(
        &self,
        pool: PoolId,
        save: bool,
    ) -> Result<SleepingMemory, (Error, Option<SleepingMemory>)> {
        // Work that was queued before a free may still be on what is free now.
        self.order.sync_device().map_err(|e| (e, None))?;
        self.wait_for_others(pool).map_err(|e| (e, None))?;
        // Others may have started to use blocks since the last check.
        self.check_exports(pool, false).map_err(|e| (e, None))?;
        let (mut asleep, leaving) = self.what_sleeps(pool);
        self.unmap_ranges(leaving).map_err(|e| (e, None))?;
        asleep.saved = save;
        match self.lay_down(&mut asleep) {
            (Ok(()), _) => Ok(asleep),
            (Err(e), true) => Err((e, None)),
            (Err(e), false) => Err((e, Some(asleep))),
        }
    }

    /// Waits for what streams of other devices do with memory of the pool, including unannounced use of blocks without
    /// a stream: a wait for this device does not cover them.
    fn wait_for_others(&self, pool: PoolId) -> Result<()> {
        let (mut uses, mut waits) = (Vec::new(), Waits::default());
        for heap in self.heaps_of(pool.0) {
            let h = self.look(heap);
            for u in h.uses.values().flatten().filter(|u| u.stream.elsewhere) {
                match &u.ended {
                    Some(fence) => waits.push(fence.clone()),
                    None => uses.push(u.stream.clone()),
                }
            }
            h.waiting.owing().into_iter().for_each(|owed| waits.append(owed.1));
        }
        uses.iter().for_each(|s| self.order.add(s, &mut waits));
        self.order.add_all(&mut waits);
        self.order.sync_waits(&mut waits)
    }

    /// The granules that the pool's heaps own and the ranges where they are mapped; also idle ranges that contain
    /// other granules too.
    fn what_sleeps(&self, pool: PoolId) -> (SleepingMemory, Vec<Gone>) {
        let g = self.growing();
        let heaps = self.lock_pool(pool);
        let mut runs: Vec<GranuleRun> = Vec::new();
        for granule in g.occupied(self.real).into_iter().flat_map(GranuleRun::granules) {
            let u = self.maps.granule(granule);
            if !(use_of::SMALL..=use_of::LARGE).contains(&u.use_()) || !heaps.contains_key(&u.heap()) {
                continue;
            }
            match runs.last_mut() {
                Some(r) if r.end() == granule => r.count += 1,
                _ => runs.push(GranuleRun::new(granule, 1)),
            }
        }
        // Each tie goes, and comes back, with one call.
        let runs = runs.into_iter().flat_map(|run| g.cut_at_ties(run)).map(|piece| piece.0).collect();
        let mut asleep = SleepingMemory { runs, ..SleepingMemory::default() };
        let showing = self.aliases.lock().showing(|granule| asleep.has(granule));
        asleep.shown = showing.hide;
        (asleep, showing.leave)
    }

    /// Takes the memory away. On failure returns whether everything is as it was; if not, `a` says what sleeps.
    fn lay_down(&self, a: &mut SleepingMemory) -> (Result<()>, bool) {
        if a.saved {
            for (n, run) in a.runs.iter().enumerate() {
                if let Err(e) = self.backing.save(run.first, run.count) {
                    self.drop_saved(&a.runs[..n]);
                    return (Err(e), true);
                }
            }
        }
        let mut failed = None;
        let mut hidden = 0;
        for Shown { at, .. } in &a.shown {
            if let Err(e) = self.backing.unalias(at.offset(), at.bytes()) {
                failed = Some(e);
                break;
            }
            self.aliases.lock().set_hidden(at.first, true);
            hidden += 1;
        }
        let mut released = 0;
        let mut lost = false;
        for run in a.runs.iter().take_while(|_| failed.is_none()) {
            if let Err(e) = self.backing.release(run.first, run.count) {
                // Memory that the device took and had to give back is there, but empty.
                lost = a.saved && self.backing.load(run.first, run.count).is_err();
                failed = Some(e);
                break;
            }
            released += 1;
        }
        let Some(mut e) = failed else { return (Ok(()), true) };
        if lost {
            e = Error::new(e.code(), format!("{e}; some of what the pool held is lost"));
        }
        if a.saved {
            self.drop_saved(&a.runs[released..]);
        }
        a.runs.truncate(released);
        a.shown.truncate(hidden);
        let undone = self.raise(a).is_ok();
        (Err(e), undone)
    }

    fn drop_saved(&self, runs: &[GranuleRun]) {
        runs.iter().for_each(|run| self.backing.drop_saved(run.first, run.count));
    }

    /// Brings the memory back, with its contents, and maps it where it was mapped. All or nothing.
    fn raise(&self, a: &SleepingMemory) -> Result<()> {
        for (n, run) in a.runs.iter().enumerate() {
            let tied = self.growing().tie_of(run.first).is_some();
            let back = self.backing.create_again(run.first, run.count, tied).and_then(|()| match a.saved {
                true => self.backing.load(run.first, run.count).inspect_err(|_| {
                    self.backing.discard(run.first, run.count); // nobody has used it
                }),
                false => Ok(()),
            });
            if let Err(e) = back {
                self.put_back(a, n, 0);
                return Err(e);
            }
        }
        for (n, Shown { at, pieces }) in a.shown.iter().enumerate() {
            if let Err(e) = self.show_pieces(at.first, pieces) {
                self.put_back(a, a.runs.len(), n);
                return Err(e);
            }
        }
        if a.saved {
            self.drop_saved(&a.runs);
        }
        let mut aliases = self.aliases.lock();
        a.shown.iter().for_each(|s| aliases.set_hidden(s.at.first, false));
        Ok(())
    }

    /// Undoes the first `shown` ranges and the first `runs` runs of `raise`; nobody has used that memory.
    fn put_back(&self, a: &SleepingMemory, runs: usize, shown: usize) {
        for Shown { at, .. } in &a.shown[..shown] {
            self.backing.discard_view(at.offset(), at.bytes());
        }
        for run in &a.runs[..runs] {
            self.backing.discard(run.first, run.count);
        }
    }

    /// Maps pieces side by side from a granule of addresses on, all or none; of a tie in which the last one ends, all.
    pub(in crate::core) fn show_pieces(&self, granule: u32, pieces: &[Extent]) -> Result<()> {
        let runs: Vec<GranuleRun> =
            pieces.iter().map(|piece| self.tied.mapped_for(piece.touched())).collect();
        self.backing.alias_runs(granule_bytes(granule), &runs)
    }

    /// Brings the pool's memory back, at the same addresses. If necessary, idle memory of other pools is given back for
    /// it. All or nothing.
    pub(crate) fn wake(&self, pool: PoolId) -> Result<()> {
        self.check_reentry()?;
        self.order.check_wait()?;
        let p = self.live_pool(pool)?;
        if self.order.any_captured() {
            fail!(Code::Busy, "a stream of the device is being captured");
        }
        let asleep = {
            let _g = self.growing();
            self.live_pool(pool)?;
            self.start_to_move(p, Sleep::Asleep)?;
            lock(&self.sleeping).remove(&pool.0).unwrap_or_default()
        };
        let mut done = Err(Error::new(Code::OutOfMemory, ""));
        for trimmed in [false, true] {
            done = self.try_to_wake(pool, &asleep);
            let short = done.as_ref().is_err_and(|e| e.code() == Code::OutOfMemory);
            if !short || trimmed || !self.trim(None).unwrap_or(false) {
                break;
            }
        }
        let mut g = self.growing();
        match done {
            Ok(()) => {
                g.unclaim(pool.0, asleep.granules() * GRANULE);
                g.wake_up(pool.0, asleep.granules(), asleep.chunks, true);
                self.stop_moving(p, Sleep::Awake);
                Ok(())
            }
            Err(e) => {
                lock(&self.sleeping).insert(pool.0, asleep);
                self.stop_moving(p, Sleep::Asleep);
                Err(e)
            }
        }
    }

    /// Brings the memory back as far as the limits allow. On success it is still only claimed.
    fn try_to_wake(&self, pool: PoolId, asleep: &SleepingMemory) -> Result<()> {
        let bytes = asleep.granules() * GRANULE;
        {
            let mut g = self.growing();
            let (allowed, why) = self.allowed(&g, pool.0);
            if bytes > allowed {
                return Err(Error::new(Code::OutOfMemory, why));
            }
            g.claim(pool.0, bytes);
        }
        self.raise(asleep).inspect_err(|_| self.growing().unclaim(pool.0, bytes))
    }

    /// Whether the pool sleeps.
    pub(crate) fn sleeps(&self, pool: PoolId) -> bool {
        self.pool(pool).is_some_and(|p| p.sleep_state() != Sleep::Awake)
    }

    /// A sleeping pool without blocks is about to end: frees its granule numbers and addresses. Returns whether it
    /// slept.
    pub(in crate::core) fn discard_asleep(&self, p: &Pool, pool: PoolId) -> Result<bool> {
        {
            let _g = self.growing();
            if p.sleep_state() == Sleep::Awake {
                return Ok(false);
            }
            self.start_to_move(p, Sleep::Asleep)?;
        }
        let done = self.discard_moving(pool);
        let _g = self.growing();
        self.stop_moving(p, if done.is_ok() { Sleep::Awake } else { Sleep::Asleep });
        done.map(|()| true)
    }

    /// The pool could not end after `discard_asleep`: it sleeps as before, though no memory of it is left.
    pub(in crate::core) fn sleep_on(&self, p: &Pool, pool: PoolId) {
        {
            let _g = self.growing();
            if self.pool(pool).is_none() || self.start_to_move(p, Sleep::Awake).is_err() {
                return;
            }
        }
        self.evict_all(p);
        let _g = self.growing();
        lock(&self.sleeping).insert(pool.0, SleepingMemory::default());
        self.stop_moving(p, Sleep::Asleep);
    }

    fn discard_moving(&self, pool: PoolId) -> Result<()> {
        // The end of a pool waits for the device. If that is impossible, the pool stays asleep.
        self.order.sync_device()?;
        self.heaps_of(pool.0).into_iter().for_each(|x| _ = self.poll(x));
        // Once freed blocks are merged, all sleeping memory is free, unless blocks wait for a captured stream.
        {
            let heaps = self.lock_pool(pool);
            let is_free = |h: &super::super::heap::LockedHeap<'_>| h.free_runs(&mut Vec::new()) == h.granules;
            if !heaps.values().all(is_free) {
                fail!(Code::Busy, "freed blocks of the pool still wait for streams");
            }
        }
        let Some(a) = lock(&self.sleeping).remove(&pool.0) else { return Ok(()) };
        let hidden: Vec<Gone> =
            a.shown.iter().filter_map(|s| self.aliases.lock().take_hidden(s.at.first)).collect();
        self.forget_ranges(&hidden);
        // After a sleep that failed half way, some granules are awake.
        let (mut awake, mut lots) = (Vec::new(), Vec::new());
        {
            let mut g = self.growing();
            for mut h in self.lock_pool(pool).into_values() {
                let mut runs = Vec::new();
                h.free_runs(&mut runs);
                for (run, id) in runs {
                    let Some(block) = h.take_part(id, run.extent()) else { continue };
                    h.put_id(block.id);
                    for (piece, tie) in g.cut_at_ties(run) {
                        match tie {
                            // All of it is the pool's, and goes with its first granule.
                            Some(tie) if tie.first == piece.first => lots.push(tie),
                            Some(_) => {}
                            None => lots.extend(piece.granules().map(|granule| GranuleRun::new(granule, 1))),
                        }
                    }
                }
            }
            for lot in lots {
                if a.has(lot.first) {
                    let numbers = g.forget_tie(lot);
                    g.give_room(numbers);
                } else {
                    g.release(pool.0, lot.bytes(), u64::from(lot.count));
                    awake.push(lot);
                }
            }
            g.wake_up(pool.0, a.granules(), a.chunks, false);
        }
        for lot in awake {
            self.backing.discard(lot.first, lot.count); // it refused once; nobody uses it
            let mut g = self.growing();
            let numbers = g.forget_tie(lot);
            g.give_room(numbers);
        }
        if a.saved {
            self.drop_saved(&a.runs);
        }
        Ok(())
    }
}
