//! What gives memory back, or brings back what was there before, where there are few descriptors or none left.

use super::random::Random;
use super::refits::{self, pick};
use super::scarce::scarce_program;
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

/// Three heaps with free blocks that must be cut: before two free granules of each, half a granule is free whose start is
/// used. There are no more descriptors, or, with `some`, those that two small blocks leave when they are merged.
fn to_be_cut(ids: u64, some: bool) -> (Bench, PoolId) {
    let mut b = with_ids(100, ids);
    let p = b.pool(false);
    for _ in 0..8 {
        b.alloc(p, Some(1), G).unwrap();
    }
    b.pond.sleep().begin(p, false).unwrap();
    let mut free = Vec::new();
    for stream in 1..4 {
        for _ in 0..4 {
            for bytes in [G / 2, 5 * G / 2, G] {
                let i = b.alloc(PoolId::DEFAULT, Some(stream), bytes).unwrap();
                free.extend((bytes > G).then_some(b.live[i].offset));
            }
        }
    }
    let mut small = Vec::new();
    while let Ok(i) = b.alloc(PoolId::DEFAULT, Some(9), 100) {
        small.push(b.live[i].offset);
    }
    free.extend(small.into_iter().take(if some { 2 } else { 0 }));
    for at in free {
        let i = b.live.iter().position(|x| x.offset == at).unwrap();
        b.free(i, None);
    }
    b.rest();
    (b, p)
}

/// One heap takes all descriptors that are left to cut its first block: the others, and its own next one, get those back.
#[test]
fn what_one_heap_needs_to_cut_serves_the_next_one() {
    for (ids, some) in (60..70).flat_map(|n| [(n, false), (n, true)]) {
        let b = to_be_cut(ids, some).0;
        let before = b.taken();
        let told = b.pond.empty_cache(None);
        let given = before - b.taken();
        match told {
            Ok(()) => assert_eq!(given, 24, "{ids}"),
            Err(e) => {
                assert!(!some, "{ids}: {e}");
                assert_eq!((e.code(), given), (Code::OutOfMemory, 0), "{ids}: {e}");
                assert!(e.message().contains("more blocks"), "{ids}: {e}");
            }
        }
        b.finish();
    }
}

/// The same where a pool that wakes needs four of these blocks.
#[test]
fn what_one_block_needs_to_be_cut_serves_the_next_one_when_a_pool_wakes() {
    for (ids, limited) in (60..70).flat_map(|n| [(n, false), (n, true)]) {
        let (mut b, p) = to_be_cut(ids, true);
        let before = b.taken();
        match limited {
            true => b.limit(None, before * G),
            false => b.world.lock().unwrap().capacity = before * G,
        }
        b.pond.sleep().wake(p).unwrap_or_else(|e| panic!("{ids} descriptors, limited: {limited}: {e}"));
        assert_eq!(b.taken(), if limited { before } else { before - 16 });
        b.finish();
    }
}

/// The same where a request needs memory in one piece, of which the device has none: several of these blocks go back for it.
#[test]
fn what_one_block_needs_to_be_cut_serves_the_next_one_for_a_request_in_one_piece() {
    for (ids, limited) in (60..70).flat_map(|n| [(n, false), (n, true)]) {
        let mut b = to_be_cut(ids, true).0;
        // And those that the request itself takes.
        for _ in 0..3 {
            let i = b.live.iter().rposition(|x| x.stream == Some(9)).unwrap();
            b.free(i, None);
        }
        b.rest();
        let (before, pool) = (b.taken(), b.pool(true));
        match limited {
            true => b.limit(None, before * G),
            false => b.world.lock().unwrap().capacity = before * G,
        }
        b.alloc(pool, Some(1), 16 * G)
            .unwrap_or_else(|e| panic!("{ids} descriptors, limited: {limited}: {e}"));
        assert_eq!(b.taken(), before);
        b.finish();
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

/// A restore needs descriptors that heaps of another pool have in stock.
#[test]
fn a_restore_finds_the_descriptors_that_others_do_not_use() {
    for ids in 120..124 {
        let mut b = with_ids(200, ids);
        let p = b.pool(false);
        for _ in 0..8 {
            b.alloc(p, Some(1), G).unwrap();
        }
        let saved = b.checkpoint(p);
        while let Some(i) = b.live.iter().position(|x| x.pool == p) {
            b.free(i, None);
        }
        b.use_up(&[PoolId::DEFAULT], 1); // side by side: freed, they are one
        while !b.live.is_empty() {
            b.free(0, None);
        }
        b.rest();
        b.try_restore(&saved).unwrap_or_else(|e| panic!("{ids} descriptors: {e}"));
        b.pond.checkpoints().destroy(saved.id).unwrap();
        b.finish();
    }
}

/// A restore needs one descriptor for each block that lies elsewhere now, and one for what is free behind them: those of
/// the blocks that it frees serve, too.
#[test]
fn a_restore_needs_few_more_descriptors_than_it_frees() {
    for (n, (then, now)) in [(8, 0), (8, 4), (4, 8), (8, 8), (40, 40)].into_iter().enumerate() {
        let mut b = with_ids(200, 100);
        let p = b.pool(false);
        let fill =
            |b: &mut Bench, count| (0..count).for_each(|_| _ = b.alloc(p, Some(1), 80 / count * G).unwrap());
        fill(&mut b, then);
        let saved = b.checkpoint(p);
        while !b.live.is_empty() {
            b.free(0, None);
        }
        if now > 0 {
            // Half a granule is in front of all that it has now.
            b.alloc(p, Some(1), G / 2).unwrap();
            fill(&mut b, now);
        }
        b.use_up(&[PoolId::DEFAULT], 1);
        // Side by side: one keeps its descriptor.
        let spare = if now >= then { 3 } else { then - now + 3 };
        for _ in 0..=spare {
            let i = b.live.iter().rposition(|x| x.pool == PoolId::DEFAULT).unwrap();
            b.free(i, None);
        }
        b.rest();
        b.try_restore(&saved).unwrap_or_else(|e| panic!("case {n}: {e}"));
        b.pond.checkpoints().destroy(saved.id).unwrap();
        b.finish();
    }
}

/// Memory of another stream, which must be cut, where the request's own heap has all descriptors that are left.
#[test]
fn a_request_cuts_what_another_heap_has_with_descriptors_of_its_own() {
    let mut b = with_ids(9, 60);
    b.alloc(PoolId::DEFAULT, Some(2), G / 4).unwrap();
    let at: Vec<u64> = [G / 2, 5 * G / 2, 5 * G]
        .map(|bytes| b.alloc(PoolId::DEFAULT, Some(1), bytes).map(|i| b.live[i].offset).unwrap())
        .to_vec();
    let i = b.live.iter().position(|x| x.offset == at[1]).unwrap();
    b.free(i, None);
    let ground = b.pond.ground();
    let heap = |stream| ground.pools().live(PoolId::DEFAULT).unwrap().heap_of(stream).unwrap();
    ground.lock(heap(1)).flush();
    ground.lock(heap(1)).give_ids_up();
    assert!(!ground.lock(heap(2)).stock(60), "it has all");
    b.alloc(PoolId::DEFAULT, Some(2), 2 * G).unwrap();
    b.finish();
}

/// A block that gets shorter needs one for what it gives away.
#[test]
fn a_block_gets_shorter_with_the_last_descriptor() {
    let mut b = with_ids(9, 20);
    let i = b.alloc(PoolId::DEFAULT, Some(1), 3 * G).unwrap();
    let ground = b.pond.ground();
    let heap = ground.pools().live(PoolId::DEFAULT).unwrap().heap_of(1).unwrap();
    let mut h = ground.lock(heap);
    let mut ids: Vec<_> = std::iter::from_fn(|| h.take_id()).collect();
    h.put_id(ids.pop().unwrap());
    drop(h);
    b.resize(i, G).unwrap();
    let size = b.pond.block(b.live[0].offset).unwrap().size;
    ids.into_iter().for_each(|id| b.pond.ground().lock(heap).put_id(id));
    assert_eq!(size, G);
    b.finish();
}

/// Chunks of a sleeping pool whose blocks are freed stay chunks for the account until the pool wakes.
#[test]
fn a_search_for_descriptors_leaves_the_account_of_a_sleeping_pool_alone() {
    let mut b = with_ids(100, 40);
    let p = b.pool(false);
    for bytes in [100, 5000, G] {
        b.alloc(p, Some(1), bytes).unwrap();
    }
    let reserved = |b: &Bench| b.pond.ground().maps.reserved.counters(Some(p.0)).map(|c| c.current);
    let before = reserved(&b);
    b.pond.sleep().begin(p, false).unwrap();
    assert_eq!(reserved(&b), [0; 2]);
    b.free(0, None);
    b.free(0, None);
    b.use_up(&[PoolId::DEFAULT], 2);
    assert_eq!(reserved(&b), [0; 2]);
    b.make_holes();
    b.pond.sleep().wake(p).unwrap();
    assert_eq!(reserved(&b), before);
    b.finish();
}

/// Random programs of three pools, one of which sleeps at times.
#[test]
fn programs_with_few_descriptors_get_all_memory_back_with_one_call() {
    let mut refused = [0; 2]; // requests, and calls that give memory back
    for seed in 1..=part_of(400) as u64 {
        let mut r = Random(seed * 1_000_003);
        let (granules, ids) = (20 + r.below(60), 20 + r.below(200));
        let mut b = with_ids(granules, ids);
        let pools = [PoolId::DEFAULT, b.pool(false), b.pool(false)];
        let (small, halves) = (r.below(3), r.below(4));
        for _ in 0..300 {
            let (pool, stream) = (pools[r.below(3) as usize], 1 + r.below(3));
            match r.below(20) {
                0..=9 => {
                    let bytes = match r.below(8) {
                        n if n < small => 100 + r.below(20_000),
                        n if n < small + halves => G / 4 + r.below(3 * G),
                        _ => (1 + r.below(4)) * G,
                    };
                    match b.pond.sleep().is_on(pool) {
                        true => {}
                        false => refused[0] += usize::from(b.alloc(pool, Some(stream), bytes).is_err()),
                    }
                }
                10..=16 if !b.live.is_empty() => {
                    let i = r.below(b.live.len() as u64) as usize;
                    b.free(i, (r.below(8) == 0).then_some(stream));
                }
                17 if r.below(3) == 0 && !b.pond.sleep().is_on(pools[1]) => {
                    b.sleep(pools[1], r.below(2) == 0, true);
                }
                17 => b.wake(pools[1]),
                18 if r.below(4) == 0 => {
                    b.rest();
                    let keeps = b.granules_taken();
                    match b.pond.empty_cache(None) {
                        Ok(()) => assert_eq!(b.taken(), keeps, "seed {seed}"),
                        Err(e) => {
                            assert_eq!(e.code(), Code::OutOfMemory, "seed {seed}: {e}");
                            refused[1] += 1;
                        }
                    }
                }
                18 if !b.live.is_empty() => {
                    let i = r.below(b.live.len() as u64) as usize;
                    let bytes = (b.live[i].bytes / 2).max(1);
                    let _ = b.resize(i, bytes);
                }
                _ => {}
            }
            b.pond.ground().check();
            let s = b.pond.stats(None).unwrap();
            assert_eq!(s.requested.current, b.requested, "seed {seed}");
            assert_eq!(s.reserved.current, b.taken() * G, "seed {seed}");
        }
        if b.pond.sleep().is_on(pools[1]) {
            // All that others have may go.
            while let Some(i) = b.live.iter().position(|x| x.pool != pools[1]) {
                b.free(i, None);
            }
            b.rest();
            b.pond.sleep().wake(pools[1]).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        while !b.live.is_empty() {
            b.free(0, None);
        }
        b.rest();
        if r.below(2) == 0 {
            b.pond.pool_destroy(pools[1]).unwrap();
            b.pond.pool_destroy(pools[2]).unwrap();
            b.pond.ground().check();
        }
        b.finish();
    }
    assert!(refused[0] > 100, "{refused:?}");
}

/// The same with all that may happen to blocks, on all kinds of devices.
#[test]
fn random_programs_with_few_descriptors() {
    for seed in 1..=part_of(80) as u64 {
        let mut r = Random(seed * 1_000_003);
        let (granules, n) = (20 + r.below(50), 200 + r.below(300));
        let most_blocks = 64 + 20 + r.below(150);
        let mapping = r.below(4) > 0;
        let tie = pick(&mut r, &[0, 0, 2, 5, 8]);
        let growing = r.below(2) == 0;
        let few = Config { most_blocks, tie, tie_growth: 2, growing, ..config(mapping, granules * G) };
        let contiguous = [0, 1].map(|_| r.below(10) == 0);
        let ops = scarce_program(&mut r, n, granules);
        run_on(Bench::new(few), contiguous, ops);
    }
}

/// The same where blocks are scattered over holes.
#[test]
fn random_programs_over_holes_with_few_descriptors() {
    for seed in 1..=part_of(32) as u64 {
        let mut r = Random(seed * 1_000_003);
        let b = refits::with_holes_and(&mut r, |r, pins| 3 * pins + 60 + r.below(90));
        let n = 300 + r.below(600);
        let ops = refits::program(&mut r, n);
        run_on(b, [false; 2], ops);
    }
}
