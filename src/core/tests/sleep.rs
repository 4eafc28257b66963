//! Sleep and wake: the memory goes and comes back, blocks and what they hold stay.

use super::*;

impl Bench {
    /// Marks what the granules of a block hold.
    fn write(&self, i: usize, value: u64) {
        let mut w = self.world.lock().unwrap();
        for &(a, n) in &self.live[i].ranges {
            (a / G..(a + n).div_ceil(G)).for_each(|g| _ = w.content.insert(g as u32, value));
        }
    }
    fn holds(&self, i: usize) -> BTreeSet<u64> {
        let w = self.world.lock().unwrap();
        let granules = self.live[i].ranges.iter().flat_map(|&(a, n)| a / G..(a + n).div_ceil(G));
        granules.map(|g| w.content.get(&(g as u32)).copied().unwrap_or(0)).collect()
    }

    pub(super) fn sleep(&mut self, pool: PoolId, save: bool, mapping: bool) {
        let slept = self.pond.sleep().is_on(pool);
        let captured = !self.world.lock().unwrap().recording.is_empty();
        let reserved = self.pond.stats(Some(pool)).unwrap().reserved.current;
        let exported = self.any_exported();
        match self.pond.sleep().begin(pool, save) {
            Ok(()) => {
                assert!(mapping && !slept && !captured);
                let s = self.pond.stats(Some(pool)).unwrap();
                assert_eq!(s.reserved.current, 0);
                assert!(s.sleeping.current <= reserved);
            }
            Err(e) if !mapping => assert_eq!(e.code(), Code::Unsupported),
            Err(e) if slept => assert_eq!(e.code(), Code::NotPermitted),
            Err(e) => assert!((captured || exported) && e.code() == Code::Busy, "{e}"),
        }
    }

    pub(super) fn wake(&mut self, pool: PoolId) {
        let (slept, before) = (self.pond.sleep().is_on(pool), self.pond.stats(Some(pool)).unwrap());
        let captured = !self.world.lock().unwrap().recording.is_empty();
        let failing = self.world.lock().unwrap().fail_alias;
        match self.pond.sleep().wake(pool) {
            Ok(()) => {
                assert!(slept && !captured);
                let s = self.pond.stats(Some(pool)).unwrap();
                assert_eq!((s.sleeping.current, s.reserved.current), (0, before.sleeping.current));
                let w = self.world.lock().unwrap();
                for x in self.live.iter().filter(|x| x.pool == pool) {
                    assert_eq!(w.behind(x.offset, x.bytes), x.ranges, "the same memory at the same address");
                }
            }
            Err(e) if captured => assert_eq!(e.code(), Code::Busy),
            Err(e) if !slept => assert_eq!(e.code(), Code::NotPermitted),
            Err(e) => {
                assert!(failing || e.code() == Code::OutOfMemory, "{e}");
                let s = self.pond.stats(Some(pool)).unwrap();
                assert_eq!((s.sleeping, s.reserved.current), (before.sleeping, 0));
            }
        }
    }
}

/// A pool with a block in each tier, and a scattered one.
fn full(b: &mut Bench) -> PoolId {
    let p = b.pond.pool_create(0, false).unwrap();
    for _ in 0..8 {
        b.alloc(p, Some(0), G).unwrap();
    }
    for _ in 0..4 {
        let odd = b.live.iter().position(|x| (x.offset / G) % 2 == 1).unwrap();
        b.free(odd, None);
    }
    b.pond.set_limit(16 << 20); // no room but what is scattered
    b.alloc(p, Some(0), (7 << 20) + 100).unwrap();
    assert!(b.live.iter().any(|x| x.ranges.len() > 1 && x.offset >= 128 << 20), "none is scattered");
    b.pond.set_limit(0);
    for bytes in [100, 5000, 100_000] {
        b.alloc(p, Some(0), bytes).unwrap();
    }
    p
}

#[test]
fn memory_comes_back_with_what_it_held() {
    for save in [true, false] {
        let mut b = Bench::new(config(true, 64 << 20));
        let p = full(&mut b);
        (0..b.live.len()).filter(|&i| b.live[i].bytes > 100_000).for_each(|i| b.write(i, i as u64 + 1));
        b.sleep(p, save, true);
        assert_eq!(b.world.lock().unwrap().taken, 0);
        assert_eq!(b.pond.alloc(p, 0, 100).unwrap_err().code(), Code::NotPermitted);
        assert_eq!(b.pond.alloc(p, 5, 100).unwrap_err().code(), Code::NotPermitted);
        assert_eq!(
            b.pond.stats(None).unwrap().sleeping.current,
            b.pond.stats(Some(p)).unwrap().sleeping.current
        );
        // The device is free for others, and nothing of the pool is touched by them.
        let other = b.alloc(PoolId::DEFAULT, Some(0), 40 << 20).unwrap();
        b.free(other, None);
        b.pond.empty_cache(None).unwrap();
        let small = b.live.iter().position(|x| x.bytes == 5000).unwrap();
        b.free(small, None);
        b.wake(p);
        b.pond.ground().check();
        for i in (0..b.live.len()).filter(|&i| b.live[i].bytes > 100_000) {
            let held = b.holds(i);
            assert!(if save { !held.contains(&0) } else { held == BTreeSet::from([0]) }, "{held:?}");
        }
        b.alloc(p, Some(0), 100).unwrap();
        b.finish();
    }
}

#[test]
fn a_wake_that_cannot_be_changes_nothing() {
    let mut b = Bench::new(config(true, 64 << 20));
    let p = full(&mut b);
    let big = b.live.iter().position(|x| x.bytes > 7 << 20).unwrap();
    b.write(big, 7);
    b.sleep(p, true, true);
    let sleeping = b.pond.stats(None).unwrap().sleeping.current;
    let other = b.alloc(PoolId::DEFAULT, Some(0), 60 << 20).unwrap();
    assert_eq!(b.pond.sleep().wake(p).unwrap_err().code(), Code::OutOfMemory);
    b.free(other, None);
    b.world.lock().unwrap().fail_alias = true;
    assert_eq!(b.pond.sleep().wake(p).unwrap_err().code(), Code::Device);
    b.world.lock().unwrap().fail_alias = false;
    let s = b.pond.stats(None).unwrap();
    assert_eq!((s.sleeping.current, s.reserved.current), (sleeping, b.world.lock().unwrap().taken));
    b.wake(p); // what the other pool has idle is given back for it
    assert_eq!(b.holds(big), BTreeSet::from([7]));
    b.finish();
}

#[test]
fn a_sleep_that_cannot_be_changes_nothing() {
    let mut b = Bench::new(config(true, 64 << 20));
    let p = full(&mut b);
    b.world.lock().unwrap().fail_release = true;
    let big = b.live.iter().position(|x| x.bytes > 7 << 20).unwrap();
    b.write(big, 7);
    assert_eq!(b.pond.sleep().begin(p, true).unwrap_err().code(), Code::Device);
    b.world.lock().unwrap().fail_release = false;
    assert!(!b.pond.sleep().is_on(p) && b.world.lock().unwrap().saved.is_empty());
    assert_eq!(b.holds(big), BTreeSet::from([7]));
    let at = &b.live[big];
    assert_eq!(b.world.lock().unwrap().behind(at.offset, at.bytes), at.ranges);
    b.alloc(p, Some(0), 100).unwrap();
    b.finish();
}

#[test]
fn a_sleeping_pool_may_end() {
    let mut b = Bench::new(config(true, 64 << 20));
    let p = full(&mut b);
    b.sleep(p, true, true);
    assert_eq!(b.pond.pool_destroy(p).unwrap_err().code(), Code::Busy);
    assert_eq!(b.pond.captures().begin(p, 1).unwrap_err().code(), Code::NotPermitted);
    let saved = b.checkpoint(p);
    assert_eq!(b.try_restore(&saved).unwrap_err().code(), Code::NotPermitted);
    while !b.live.is_empty() {
        b.free(0, None);
    }
    b.pond.pool_destroy(p).unwrap();
    let s = b.pond.stats(None).unwrap();
    assert_eq!((s.sleeping.current, s.reserved.current), (0, 0));
    b.alloc(PoolId::DEFAULT, Some(0), 64 << 20).unwrap(); // all granule numbers are free again
    b.finish();
}

#[test]
fn a_sleeping_pool_that_cannot_end_sleeps_on() {
    let mut b = Bench::new(config(true, 64 << 20));
    let (p, graph) = (full(&mut b), b.pond.pool_create(0, false).unwrap());
    b.sleep(p, false, true);
    while !b.live.is_empty() {
        b.free(0, None);
    }
    // The device cannot be waited for.
    let capture = b.pond.captures().begin(graph, 3).unwrap();
    assert_eq!(b.pond.pool_destroy(p).unwrap_err().code(), Code::Busy);
    assert!(b.pond.sleep().is_on(p));
    assert_eq!(b.pond.alloc(p, 0, 100).unwrap_err().code(), Code::NotPermitted);
    b.pond.captures().end(capture).unwrap();
    b.pond.captures().release(capture).unwrap();
    b.pond.pool_destroy(p).unwrap();
    assert!(b.pond.stats(Some(p)).is_err());
    b.finish();
}

/// Caches are worth more than a wake that cannot be.
#[test]
fn a_pool_that_a_limit_keeps_asleep_empties_no_cache() {
    for of_pool in [false, true] {
        let mut b = Bench::new(config(true, 64 * G));
        let p = b.pool(false);
        b.alloc(p, Some(0), 16 * G).unwrap();
        b.sleep(p, true, true);
        b.alloc(PoolId::DEFAULT, Some(0), 8 * G).unwrap();
        for _ in 0..6 {
            b.alloc(PoolId::DEFAULT, Some(0), 2 * G).unwrap();
        }
        (0..6).for_each(|_| b.free(2, None)); // 8 live, 12 idle
        let reserved = |b: &Bench| b.pond.stats(None).unwrap().reserved.current / G;
        assert_eq!(reserved(&b), 20);
        let limit = |b: &Bench, granules: u64| match of_pool {
            true => b.pond.pool_set_limit(p, granules * G).unwrap(),
            false => b.pond.set_limit(granules * G),
        };
        limit(&b, if of_pool { 15 } else { 23 }); // all that is idle would not be enough
        assert_eq!(b.pond.sleep().wake(p).unwrap_err().code(), Code::OutOfMemory);
        assert_eq!(reserved(&b), 20, "of a pool: {of_pool}");
        limit(&b, if of_pool { 16 } else { 30 });
        b.wake(p);
        assert_eq!(reserved(&b), if of_pool { 36 } else { 30 }, "as little goes back as suffices");
        b.finish();
    }
}

/// On a card that others use, too, the device may refuse what the limit allows once enough has gone back for that.
#[test]
fn a_wake_that_a_limit_and_then_the_device_refuse_gives_back_what_both_lack() {
    let mut b = Bench::new(config(true, 64 * G));
    let p = b.pool(false);
    b.alloc(p, Some(0), 16 * G).unwrap();
    b.sleep(p, true, true);
    b.alloc(PoolId::DEFAULT, Some(0), 8 * G).unwrap();
    let idle = b.alloc(PoolId::DEFAULT, Some(0), 24 * G).unwrap();
    b.free(idle, None);
    b.pond.set_limit(40 * G); // lacks 8
    b.world.lock().unwrap().capacity = 36 * G; // lacks 12
    b.wake(p);
    assert!(!b.pond.sleep().is_on(p), "there was enough");
    b.world.lock().unwrap().capacity = 64 * G;
    b.finish();
}

/// What went back before the device refused to take more makes room for the memory that wakes up.
#[test]
fn a_pool_wakes_where_only_a_part_of_the_rest_could_go_back() {
    for nth in 1..12 {
        let mut b = Bench::new(config(true, 32 * G));
        let p = b.pool(false);
        b.alloc(p, Some(0), 8 * G).unwrap();
        b.sleep(p, true, true);
        for _ in 0..16 {
            b.alloc(PoolId::DEFAULT, Some(0), 2 * G).unwrap();
        }
        // Every other one, so that they go back one by one.
        let all: Vec<u64> = b.live[1..].iter().map(|x| x.offset / G).collect();
        all.into_iter().step_by(2).for_each(|granule| b.free_at(granule));
        b.world.lock().unwrap().fail_nth = nth;
        let woken = b.pond.sleep().wake(p);
        b.world.lock().unwrap().fail_nth = 0;
        let left = b.pond.stats(None).unwrap().reserved.current / G;
        let refused = b.world.lock().unwrap().failed_in == "release";
        assert!(woken.is_ok() || !refused || left > 24, "call {nth}, {left} granules are left: {woken:?}");
        if woken.is_err() {
            b.wake(p);
        }
        b.finish();
    }
}
