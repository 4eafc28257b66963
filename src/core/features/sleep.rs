//! Sleep and wake: the physical memory of a pool goes back to the device; its addresses and blocks stay.
//!
//! A sleeping pool neither gives nor takes memory: requests are refused, it is pinned, and the address ranges of its
//! granules are hidden. Its blocks may still be freed; that only changes bookkeeping. If a call to the device fails,
//! all earlier ones are undone; if that is impossible too (the device took memory and does not give it again), the pool
//! goes on sleeping, to be woken later. While its memory is taken away or brought back (`sleeping_memory.rs`), with no
//! lock held, the pool is *moving*: it counts as sleeping, and no other thread puts it to sleep or wakes it.

use super::super::aliases::Gone;
use super::super::blocks::WaitingBlocks;
use super::super::desc::use_of;
use super::super::ground::{Ground, Pool};
use super::super::heap::LockedHeap;
use super::super::order::Waits;
use super::super::state::pools::Sleep;
use super::super::state::sleeping::SleepingMemory;
use super::super::supply::{Ranges, Trim};
use super::super::types::PoolId;
use super::super::units::{GRANULE, GranuleRun};
use super::exports::ExportCalls;
use super::pool_heaps::PoolHeaps;
use super::sleeping_memory::{Failed, PhysicalMemory};
use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::base::sync::pause;
use crate::fail;

/// Sleep and wake; from [`Pond::sleep`](crate::core::Pond::sleep).
#[derive(Clone, Copy)]
pub struct SleepCalls<'a> {
    ground: &'a Ground,
}

/// A sleep that could not begin.
struct SleepFailed {
    error: Error,
    /// What sleeps all the same, since it could not be brought back.
    sleeping: Option<SleepingMemory>,
}

impl From<Error> for SleepFailed {
    fn from(error: Error) -> SleepFailed {
        SleepFailed { error, sleeping: None }
    }
}

impl<'a> SleepCalls<'a> {
    pub(crate) fn of(ground: &'a Ground) -> SleepCalls<'a> {
        SleepCalls { ground }
    }

    fn memory(self) -> PhysicalMemory<'a> {
        PhysicalMemory::of(self.ground)
    }

    /// Gives the pool's memory back to the device until `wake`. With `save` its contents are kept in host memory;
    /// without, they are lost. Waits for the device.
    pub fn begin(self, pool: PoolId, save: bool) -> Result<()> {
        let ground = self.ground;
        ground.check_reentry()?;
        if !ground.config.mapping {
            fail!(Code::Unsupported, "the device cannot take memory away from under addresses");
        }
        let p = ground.pools().live(pool)?;
        if p.sleeps() {
            fail!(Code::NotPermitted, "the pool sleeps already");
        }
        ground.check_host_room()?;
        // Free memory need not sleep. (In a pool that a graph keeps it must: nothing is trimmed there.)
        Trim::of(ground).all(Some(pool.0))?;
        ExportCalls::of(ground).check_all(pool)?;
        {
            let g = ground.growing();
            ground.pools().live(pool)?;
            p.start_to_move(&g, Sleep::Awake)?;
            drop(g.wait_for_transits_of(pool.0));
        }
        ground.evict_all(p);
        let (sleeping, result) = match self.fall_asleep(pool, save) {
            Ok(sleeping) => (Some(sleeping), Ok(())),
            Err(SleepFailed { error, sleeping: None }) => (None, Err(error)),
            Err(SleepFailed { error, sleeping }) => {
                let why = format!("{error}; what went to the device did not come back: wake the pool");
                (sleeping, Err(Error::new(error.code(), why)))
            }
        };
        let mut g = ground.growing();
        match sleeping {
            Some(mut sleeping) => {
                sleeping.chunks = self.chunks_in(&sleeping);
                g.account.fall_asleep(pool.0, sleeping.granules(), sleeping.chunks);
                ground.sleeping().insert(pool.0, sleeping);
                p.stop_moving(&g, Sleep::Sleeping);
            }
            None => p.stop_moving(&g, Sleep::Awake),
        }
        result
    }

    /// The number of chunks among the granules that sleep.
    fn chunks_in(self, sleeping: &SleepingMemory) -> u64 {
        let use_of = |granule: u32| self.ground.maps.granule(granule).use_();
        let is_chunk = |&granule: &u32| (use_of::SMALL..=use_of::MEDIUM).contains(&use_of(granule));
        sleeping.runs.iter().flat_map(|r| r.granules()).filter(is_chunk).count() as u64
    }

    /// Takes the memory away.
    fn fall_asleep(self, pool: PoolId, save: bool) -> Result<SleepingMemory, SleepFailed> {
        // Work that was queued before a free may still be on what is free now.
        self.ground.order.sync_device()?;
        self.wait_for_others(pool)?;
        // Others may have started to use blocks since the last check.
        ExportCalls::of(self.ground).check_all(pool)?;
        let mut round = 0;
        let (mut sleeping, leaving) = loop {
            if let Some(found) = self.what_sleeps(pool) {
                break found;
            }
            pause(round);
            round = round.saturating_add(1);
        };
        Ranges::of(self.ground).unmap(leaving)?;
        sleeping.saved = save;
        match self.memory().take_away(&mut sleeping) {
            Ok(()) => Ok(sleeping),
            Err(Failed { error, undone: true }) => Err(error.into()),
            Err(Failed { error, undone: false }) => Err(SleepFailed { error, sleeping: Some(sleeping) }),
        }
    }

    /// Waits for what streams of other devices do with memory of the pool, including unannounced use of blocks without
    /// a stream: a wait for this device does not cover them.
    fn wait_for_others(self, pool: PoolId) -> Result<()> {
        let order = &self.ground.order;
        let (mut uses, mut waits) = (Vec::new(), Waits::default());
        if !waits.make_room(1) {
            return Err(no_host_memory()); // for all streams together
        }
        for heap in self.ground.heaps_of(pool.0) {
            let h = self.ground.look(heap);
            for u in h.uses.values().flatten().filter(|u| u.stream.elsewhere) {
                match &u.ended {
                    Some(fence) => waits.push(fence.clone()),
                    None => uses.push(u.stream.clone()),
                }
            }
            h.waiting.owing()?.into_iter().for_each(|owed| waits.append(owed.1));
        }
        uses.iter().for_each(|s| order.add(s, &mut waits));
        order.add_all(&mut waits);
        order.sync_waits(&mut waits)
    }

    /// The granules that the pool's heaps own and the ranges where they are mapped; also idle ranges that contain
    /// other granules too. `None`: another thread is just unmapping such a range, which stays if the device refuses.
    fn what_sleeps(self, pool: PoolId) -> Option<(SleepingMemory, Vec<Gone>)> {
        let ground = self.ground;
        let g = ground.growing();
        let heaps = PoolHeaps::lock(ground, pool);
        let mut runs: Vec<GranuleRun> = Vec::new();
        for granule in g.room.occupied(ground.memory_granules()).into_iter().flat_map(GranuleRun::granules) {
            let u = ground.maps.granule(granule);
            if !(use_of::SMALL..=use_of::LARGE).contains(&u.use_()) || !heaps.contains_key(&u.heap()) {
                continue;
            }
            match runs.last_mut() {
                Some(r) if r.end() == granule => r.count += 1,
                _ => runs.push(GranuleRun::new(granule, 1)),
            }
        }
        // Each tie goes, and comes back, with one call.
        let runs = runs.into_iter().flat_map(|run| g.ties.cut(run)).map(|piece| piece.run).collect();
        let mut sleeping = SleepingMemory { runs, ..SleepingMemory::default() };
        let showing = ground.aliases().showing(|granule| sleeping.has(granule))?;
        sleeping.shown = showing.hide;
        Some((sleeping, showing.leave))
    }

    /// Brings the pool's memory back at the same addresses, all of it or none. If necessary, idle memory of other pools is
    /// given back for it: no more than a limit lacks, and none where it would refuse all the same.
    pub fn wake(self, pool: PoolId) -> Result<()> {
        let ground = self.ground;
        ground.check_reentry()?;
        ground.order.check_wait()?;
        ground.check_host_room()?;
        let p = ground.pools().live(pool)?;
        if ground.order.any_captured() {
            fail!(Code::Busy, "a stream of the device is being captured");
        }
        let sleeping = {
            let g = ground.growing();
            ground.pools().live(pool)?;
            p.start_to_move(&g, Sleep::Sleeping)?;
            ground.sleeping().remove(&pool.0).unwrap_or_default()
        };
        let mut done = self.try_to_wake(pool, &sleeping);
        // Twice: what a limit allows then the device may refuse.
        for _ in 0..2 {
            match &done {
                Err(e)
                    if e.code() == Code::OutOfMemory
                        && Trim::of(ground).for_refused(pool, sleeping.granules() * GRANULE, e) =>
                {
                    done = self.try_to_wake(pool, &sleeping);
                }
                _ => break,
            }
        }
        let mut g = ground.growing();
        match done {
            Ok(()) => {
                g.account.unclaim(pool.0, sleeping.granules() * GRANULE);
                g.account.wake_up(pool.0, sleeping.granules(), sleeping.chunks);
                p.stop_moving(&g, Sleep::Awake);
                Ok(())
            }
            Err(e) => {
                ground.sleeping().insert(pool.0, sleeping);
                p.stop_moving(&g, Sleep::Sleeping);
                Err(e)
            }
        }
    }

    /// Brings the memory back as far as the limits allow. On success it is still only claimed.
    fn try_to_wake(self, pool: PoolId, sleeping: &SleepingMemory) -> Result<()> {
        let bytes = sleeping.granules() * GRANULE;
        {
            let mut g = self.ground.growing();
            g.allowed(pool.0).check(bytes)?;
            g.account.claim(pool.0, bytes);
        }
        let back = self.memory().bring_back(sleeping);
        back.inspect_err(|_| self.ground.growing().account.unclaim(pool.0, bytes))
    }

    /// Whether the pool sleeps.
    pub fn is_on(self, pool: PoolId) -> bool {
        self.ground.pools().sleeps(pool)
    }

    /// Frees the granule numbers and addresses of a sleeping pool without blocks, which is about to end. Returns whether
    /// it slept.
    pub(super) fn discard(self, p: &Pool, pool: PoolId) -> Result<bool> {
        {
            let g = self.ground.growing();
            if !p.sleeps() {
                return Ok(false);
            }
            p.start_to_move(&g, Sleep::Sleeping)?;
        }
        let done = self.discard_moving(pool);
        let g = self.ground.growing();
        p.stop_moving(&g, if done.is_ok() { Sleep::Awake } else { Sleep::Sleeping });
        done.map(|()| true)
    }

    /// Makes a pool that could not end after [`discard`](Self::discard) sleep as before, though no memory of it is left.
    pub(super) fn sleep_on(self, p: &Pool, pool: PoolId) {
        {
            let g = self.ground.growing();
            if self.ground.pools().get(pool).is_none() || p.start_to_move(&g, Sleep::Awake).is_err() {
                return;
            }
        }
        self.ground.evict_all(p);
        let g = self.ground.growing();
        self.ground.sleeping().insert(pool.0, SleepingMemory::default());
        p.stop_moving(&g, Sleep::Sleeping);
    }

    fn discard_moving(self, pool: PoolId) -> Result<()> {
        let ground = self.ground;
        // The end of a pool waits for the device. If that is impossible, the pool goes on sleeping.
        ground.order.sync_device()?;
        ground.heaps_of(pool.0).into_iter().for_each(|x| _ = WaitingBlocks::of(ground).poll(x));
        // Has room for the runs of each heap before anything changes.
        let mut runs = Vec::new();
        // Once freed blocks are merged, all sleeping memory is free, unless blocks wait for a captured stream.
        {
            let heaps = PoolHeaps::lock(ground, pool);
            let is_free = |h: &LockedHeap<'_>| {
                runs.clear();
                h.free_runs(&mut runs).0 == h.granules
            };
            if !heaps.values().all(is_free) {
                fail!(Code::Busy, "freed blocks of the pool still wait for streams");
            }
        }
        let Some(a) = ground.sleeping().remove(&pool.0) else { return Ok(()) };
        let hidden: Vec<Gone> =
            a.shown.iter().filter_map(|s| ground.aliases().take_hidden(s.at.first)).collect();
        Ranges::of(ground).forget(&hidden);
        // After a sleep that failed half way, some granules are awake.
        let (mut awake, mut lots) = (Vec::new(), Vec::new());
        {
            let mut g = ground.growing();
            for h in PoolHeaps::lock(ground, pool).values_mut() {
                runs.clear();
                h.free_runs(&mut runs);
                for (run, id) in runs.drain(..) {
                    let Some(block) = h.take_part(id, run.extent()) else { continue };
                    h.put_id(block.id);
                    for piece in g.ties.cut(run) {
                        match piece.tie {
                            // All of it is the pool's, and goes with its first granule.
                            Some(tie) if tie.first == piece.run.first => lots.push(tie),
                            Some(_) => {}
                            None => {
                                lots.extend(piece.run.granules().map(|granule| GranuleRun::new(granule, 1)));
                            }
                        }
                    }
                }
            }
            for lot in lots {
                if a.has(lot.first) {
                    g.forget_granules(lot);
                } else {
                    g.account.release(pool.0, lot.bytes(), u64::from(lot.count));
                    awake.push(lot);
                }
            }
            g.account.end_sleep(pool.0, a.granules(), a.chunks);
        }
        for lot in awake {
            ground.backing.discard(lot.first, lot.count); // it refused once; nobody uses it
            ground.growing().forget_granules(lot);
        }
        if a.saved {
            self.memory().drop_saved(&a.runs);
        }
        Ok(())
    }
}
