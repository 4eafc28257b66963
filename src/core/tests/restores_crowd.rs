//! Restores beside several threads, each of which does several things, now and then with calls of the device that fail:
//! in the restored pool, which is forbidden and must give no memory two owners all the same, or in other pools of the
//! device only, which is nobody's fault: then a restore does all or nothing, and is never busy.

use super::random::Random;
use super::restores_meet::{Act, Live, Party, act};
use super::*;
use std::cell::Cell;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// What else a thread may do.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Act(Act),
    FreeOn(usize, u64),
    Aligned(Option<u64>, u64),
    Squeeze(u64),
    Make,
    Pool,
    Tag(usize, u16),
    Limit(u64),
    OtherFree(usize),
    OtherSleep(bool),
    OtherCapture,
}

#[derive(Debug)]
struct Plan {
    seed: u64,
    mapping: bool,
    alone: bool,
    failing: u64,
    scale: u64,
    deeds: Vec<Vec<(u64, Deed)>>,
    restores: u64,
}

fn plan(seed: u64) -> Plan {
    let mut r = Random(seed * 6_700_417 + 3);
    let mapping = r.below(3) > 0;
    let alone = r.below(3) == 0;
    let failing = [0, 0, 0, 30, 100, 300][r.below(6) as usize];
    let scale = [1, 5, 20, 80, 200][r.below(5) as usize];
    let threads = 1 + r.below(3);
    let kinds = if r.below(3) == 0 { 1 + r.below(3) } else { 0 };
    let deeds = (0..threads)
        .map(|_| {
            let n = 1 + r.below(8);
            let few: Vec<Deed> = (0..kinds).map(|_| deed(&mut r, alone)).collect();
            (0..n)
                .map(|_| {
                    let what = match few.is_empty() {
                        true => deed(&mut r, alone),
                        false => few[r.below(few.len() as u64) as usize],
                    };
                    (r.below(scale + 1), what)
                })
                .collect()
        })
        .collect();
    Plan { seed, mapping, alone, failing, scale, deeds, restores: 1 + r.below(3) }
}

fn deed(r: &mut Random, alone: bool) -> Deed {
    let at = r.below(50) as usize;
    let stream = [Some(0), Some(1), Some(2), None][r.below(4) as usize];
    let bytes = 1 + r.below(5 * G);
    match (alone, r.below(24)) {
        (true, 0..=3) => Deed::Act(Act::Alloc(false, stream, bytes)),
        (true, 4..=8) => Deed::OtherFree(at),
        (true, 9..=11) => Deed::Act(Act::Trim(false)),
        (true, 12 | 13) => Deed::Act(Act::Told),
        (true, 14) => Deed::Act(Act::Run),
        (true, 15) => Deed::OtherSleep(r.below(2) == 0),
        (true, 16) => Deed::OtherCapture,
        (true, 17) => Deed::Limit(r.below(40) * G),
        (true, 18) => Deed::Pool,
        (true, _) => Deed::Squeeze([G / 2, G, 3 * G, 5 * G + 77][r.below(4) as usize]),
        (false, 0) => Deed::FreeOn(at, r.below(4)),
        (false, 1) => Deed::Aligned(stream, bytes),
        (false, 2) => Deed::Squeeze([G / 2, G, 3 * G, 5 * G + 77][r.below(4) as usize]),
        (false, 3) => Deed::Make,
        (false, 4) => Deed::Pool,
        (false, 5) => Deed::Tag(at, r.below(3) as u16),
        (false, 6) => Deed::Limit(r.below(40) * G),
        (false, 7) => Deed::OtherSleep(r.below(2) == 0),
        (false, 8) => Deed::OtherFree(at),
        (false, _) => Deed::Act(act(r)),
    }
}

impl Party {
    fn do_it(&self, deed: Deed) {
        let pond = &self.pond;
        match deed {
            Deed::Act(Act::EndStream) => {
                if let Ok(ending) = pond.order().ending(1) {
                    pond.stream_ended(ending);
                }
            }
            Deed::Act(a) => self.act(a),
            Deed::FreeOn(at, stream) => {
                let mut b = {
                    let mut live = self.live.lock().unwrap();
                    if live.is_empty() {
                        return;
                    }
                    let at = at % live.len();
                    live.swap_remove(at)
                };
                if pond.block(b.at).is_ok() {
                    b.uses.push(stream);
                    self.soil(&b, true);
                }
                if let Err(e) = pond.free(b.at, Some(stream), None) {
                    let codes = [Code::DoubleFree, Code::UnknownPointer, Code::Device, Code::UnknownStream];
                    assert!(codes.contains(&e.code()), "{e}");
                    if !codes[..2].contains(&e.code()) {
                        self.live.lock().unwrap().push(b);
                    }
                }
            }
            Deed::Aligned(stream, bytes) => {
                let got =
                    pond.special().alloc_aligned(self.pool, stream.unwrap_or(UNORDERED), bytes, 1 << 16);
                if let Ok(at) = got {
                    self.note(at, bytes, stream, self.pool);
                }
            }
            Deed::Squeeze(bytes) => {
                let all: Vec<u64> =
                    (0..60).map_while(|i| pond.alloc(PoolId::DEFAULT, i % 3, bytes).ok()).collect();
                for at in all {
                    self.free_surely(at);
                }
            }
            Deed::Make => {
                if let Ok(kept) = pond.checkpoints().make(self.pool) {
                    let was: Vec<_> = self.live.lock().unwrap().clone();
                    if let Ok(done) = pond.checkpoints().restore(self.pool, kept, |at| at, |_| ()) {
                        for (at, bytes) in done.live {
                            let b = was.iter().find(|b| b.at == at);
                            self.note(at, bytes, b.map_or(Some(0), |b| b.stream), self.pool);
                        }
                    }
                    pond.checkpoints().destroy(kept).unwrap();
                }
            }
            Deed::Pool => {
                let Ok(pool) = pond.pool_create(0, false) else { return };
                let a: Vec<u64> =
                    [3 * G, 5000, G].iter().filter_map(|&n| pond.alloc(pool, 2, n).ok()).collect();
                for at in a {
                    self.free_surely(at);
                }
                while let Err(e) = pond.pool_destroy(pool) {
                    assert!([Code::Device, Code::Busy, Code::NotPermitted].contains(&e.code()), "{e}");
                    std::thread::yield_now();
                }
            }
            Deed::Tag(at, tag) => {
                if let Some(b) = self.some(at) {
                    pond.tags().give(b.at, tag);
                }
            }
            Deed::Limit(bytes) => pond.pool_set_limit(PoolId::DEFAULT, bytes).unwrap(),
            Deed::OtherFree(at) => {
                let b = {
                    let mut live = self.live.lock().unwrap();
                    let others: Vec<usize> =
                        (0..live.len()).filter(|&i| live[i].pool == PoolId::DEFAULT).collect();
                    let Some(&i) = others.get(at % others.len().max(1)) else { return };
                    live.swap_remove(i)
                };
                self.soil(&b, false);
                self.free_surely(b.at);
            }
            Deed::OtherSleep(save) => {
                if pond.sleep().begin(PoolId::DEFAULT, save).is_ok() {
                    while let Err(e) = pond.sleep().wake(PoolId::DEFAULT) {
                        pond.pool_set_limit(PoolId::DEFAULT, 0).unwrap();
                        if e.code() == Code::OutOfMemory {
                            return;
                        }
                    }
                }
            }
            Deed::OtherCapture => {
                let Ok(pool) = pond.pool_create(0, false) else { return };
                if let Ok(id) = pond.captures().begin(pool, 6) {
                    self.world.lock().unwrap().recording.insert(6);
                    let got = pond.alloc(pool, 6, 3 * G);
                    self.world.lock().unwrap().recording.remove(&6);
                    while pond.captures().end(id).is_err() {}
                    while pond.captures().release(id).is_err() {}
                    if let Ok(at) = got {
                        self.free_surely(at);
                    }
                }
                while pond.pool_destroy(pool).is_err() {
                    std::thread::yield_now();
                }
            }
        }
    }

    fn free_surely(&self, at: u64) {
        while let Err(e) = self.pond.free(at, None, None) {
            // Another thread may have taken it for what was there before.
            if !self.alone && [Code::DoubleFree, Code::UnknownPointer].contains(&e.code()) {
                return;
            }
            assert_eq!(e.code(), Code::Device, "{e}");
        }
    }

    fn note(&self, at: u64, bytes: u64, stream: Option<u64>, pool: PoolId) {
        let b = Live { at, bytes, stream, pool, uses: vec![] };
        self.live.lock().unwrap().push(b);
    }
}

fn spin(us: u64) {
    let since = Instant::now();
    while since.elapsed() < Duration::from_micros(us) {
        std::hint::spin_loop();
    }
}

fn crowd(plan: &Plan) {
    let mut party = Party::new(plan.seed, plan.mapping, plan.failing > 0);
    (party.alone, party.crowded) = (plan.alone, true);
    let p = Arc::new(party);
    let before = p.check_owners();
    let key = |b: &Live| (b.at, b.bytes);
    let ours: BTreeSet<(u64, u64)> = before.iter().filter(|b| b.pool == p.pool).map(key).collect();
    let want: BTreeSet<(u64, u64)> = p.saved.iter().map(key).collect();
    let gone = |b: &&Live| b.pool == p.pool && !want.contains(&key(b));
    before.iter().filter(gone).for_each(|b| p.soil(b, true));
    {
        let mut w = p.world.lock().unwrap();
        w.fail_one_in = plan.failing;
        w.dice = plan.seed;
    }
    let barrier = Arc::new(Barrier::new(plan.deeds.len() + 1));
    let threads: Vec<_> = plan
        .deeds
        .iter()
        .cloned()
        .map(|deeds| {
            let (p, barrier) = (p.clone(), barrier.clone());
            std::thread::spawn(move || {
                barrier.wait();
                for (us, deed) in deeds {
                    spin(us);
                    p.do_it(deed);
                }
            })
        })
        .collect();
    barrier.wait();
    let mut r = Random(plan.seed);
    let orders = plan.deeds.iter().flatten().all(|d| {
        !matches!(
            d.1,
            Deed::Act(Act::Use(_) | Act::Restore | Act::EndStream | Act::Capture)
                | Deed::Make
                | Deed::FreeOn(..)
        )
    });
    for n in 0..plan.restores {
        spin(r.below(plan.scale + 1));
        let seen = Cell::new(0);
        let place = |at| {
            seen.set(p.dirty.lock().unwrap().len());
            at
        };
        let done = p.pond.checkpoints().restore(p.pool, p.kept, place, |_| ());
        match &done {
            Ok(done) => {
                if orders {
                    p.check_order_up_to(&done.live, seen.get());
                }
            }
            Err(e) => {
                let codes =
                    [Code::NotPermitted, Code::Busy, Code::OutOfMemory, Code::UnknownStream, Code::Device];
                assert!(codes.contains(&e.code()), "{e}");
                assert!(e.code() != Code::Device || plan.failing > 0, "{e}");
                let captures = plan.deeds.iter().flatten().any(|d| matches!(d.1, Deed::OtherCapture));
                assert!(!plan.alone || e.code() != Code::Busy || plan.failing > 0 || captures, "{e}");
            }
        }
        if plan.alone {
            let s = p.pond.stats(Some(p.pool)).unwrap();
            let blocks = s.blocks.current;
            match &done {
                Ok(_) => {
                    assert_eq!(blocks, want.len() as u64, "exactly the blocks of the checkpoint are live")
                }
                Err(e) if n == 0 => assert_eq!(blocks, ours.len() as u64, "{e}: nothing has changed"),
                _ => {}
            }
            for b in p.saved.iter().filter(|_| done.is_ok()) {
                assert_eq!(p.pond.block(b.at).map(|i| (i.base, i.requested)).ok(), Some(key(b)));
            }
        }
    }
    for t in threads {
        t.join().expect("another thread");
    }
    p.world.lock().unwrap().fail_one_in = 0;
    p.pond.pool_set_limit(PoolId::DEFAULT, 0).unwrap();
    // A pool that fell asleep, by half when a call failed, may lack memory.
    let asleep = |pool: &PoolId| p.pond.sleep().is_on(*pool) && p.pond.sleep().wake(*pool).is_err();
    while let Some(pool) = [p.pool, PoolId::DEFAULT].into_iter().find(asleep) {
        let others: Vec<u64> = p.live.lock().unwrap().iter().map(|b| b.at).collect();
        let gone = others.into_iter().find(|&at| {
            p.pond.block(at).is_ok_and(|i| i.pool != pool) && p.pond.free(at, None, None).is_ok()
        });
        if gone.is_none() {
            return; // what is awake has no blocks any more
        }
    }
    p.check_owners();
    p.world.lock().unwrap().complete(9, u64::MAX);
    let done = p.pond.checkpoints().restore(p.pool, p.kept, |at| at, |_| ());
    let after = p.check_owners();
    match done {
        Ok(_) => {
            let now: BTreeSet<(u64, u64)> = after.iter().filter(|b| b.pool == p.pool).map(key).collect();
            assert_eq!(now, want, "exactly these are live in the end");
        }
        Err(e) => assert!([Code::NotPermitted, Code::UnknownStream].contains(&e.code()), "in the end: {e}"),
    }
    p.end(after);
    let s = p.pond.stats(Some(p.pool)).unwrap();
    assert_eq!((s.active.current, s.allocated.current, s.reserved.current), (0, 0, 0));
}

#[test]
fn restores_beside_a_crowd() {
    for seed in 1..=part_of(240) as u64 {
        let plan = plan(seed);
        assert!(std::panic::catch_unwind(|| crowd(&plan)).is_ok(), "{plan:?}");
    }
}
