//! What gives memory back, or brings back what was there before, where there are few descriptors or none left.

use super::*;

/// A device of so many granules with so many descriptors.
fn with_ids(granules: u64, ids: u64) -> Bench {
    Bench::new(Config { most_blocks: 64 + ids, ..config(true, granules * G) })
}

impl Bench {
    /// Blocks of a granule, on these streams in turn, until there are no more descriptors.
    fn use_up(&mut self, pools: &[PoolId], streams: u64) {
        let mut refused = 0;
        for n in 0.. {
            let pool = pools[n as usize % pools.len()];
            refused = if self.alloc(pool, Some(1 + n % streams), G).is_ok() { 0 } else { refused + 1 };
            if refused > pools.len() as u64 * streams {
                return;
            }
        }
    }

    /// Frees every second block.
    fn make_holes(&mut self) {
        let all: Vec<u64> = self.live.iter().step_by(2).map(|x| x.offset).collect();
        for at in all {
            let i = self.live.iter().position(|x| x.offset == at).unwrap();
            self.free(i, None);
        }
    }

    fn taken(&self) -> u64 {
        self.world.lock().unwrap().taken / G
    }

    /// All work is done, and nothing waits any more.
    fn rest(&self) {
        self.pond.ground().backing.sync_all().unwrap();
        self.pond.stats(None).unwrap();
    }
}

/// Whole granules in many heaps: nothing has to be cut.
#[test]
fn one_call_gives_whole_granules_back_without_descriptors() {
    for ids in 40..44 {
        for streams in 1..4 {
            let mut b = with_ids(200, ids);
            let pools = [PoolId::DEFAULT, b.pool(false)];
            b.use_up(&pools, streams);
            b.make_holes();
            b.rest();
            b.pond.empty_cache(None).unwrap();
            assert_eq!(b.taken(), b.live.len() as u64, "{ids} descriptors, {streams} streams");
            b.finish();
        }
    }
}

/// A pool ends: its memory goes back, or belongs to nobody and goes back later.
#[test]
fn the_end_of_a_pool_loses_no_memory_for_lack_of_descriptors() {
    for (ids, sleeps) in (30..34).flat_map(|n| [(n, false), (n, true)]) {
        let mut b = with_ids(100, ids);
        let p = b.pool(false);
        for _ in 0..4 {
            b.alloc(p, Some(1), G).unwrap();
            b.alloc(PoolId::DEFAULT, Some(1), G).unwrap();
        }
        if sleeps {
            b.pond.sleep().begin(p, false).unwrap();
        }
        b.use_up(&[PoolId::DEFAULT], 2);
        while let Some(i) = b.live.iter().position(|x| x.pool == p) {
            b.free(i, None);
        }
        b.pond.pool_destroy(p).unwrap();
        b.pond.ground().check();
        b.pond.empty_cache(None).unwrap();
        assert_eq!(b.taken(), b.live.len() as u64, "{ids} descriptors, asleep: {sleeps}");
        b.finish();
    }
}

/// What sleeps comes back although others have all descriptors, from memory that others do not use.
#[test]
fn a_pool_wakes_without_descriptors() {
    for (ids, limited) in (30..34).flat_map(|n| [(n, false), (n, true)]) {
        let mut b = with_ids(100, ids);
        let p = b.pool(false);
        for _ in 0..4 {
            b.alloc(p, Some(1), G).unwrap();
        }
        b.pond.sleep().begin(p, false).unwrap();
        b.use_up(&[PoolId::DEFAULT], 3);
        b.rest();
        let all = b.taken() * G;
        match limited {
            true => b.limit(None, all),
            false => b.world.lock().unwrap().capacity = all,
        }
        b.make_holes();
        b.rest();
        b.pond.sleep().wake(p).unwrap_or_else(|e| panic!("{ids} descriptors, limited: {limited}: {e}"));
        b.world.lock().unwrap().capacity = 100 * G;
        b.finish();
    }
}
