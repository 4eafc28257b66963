//! Random programs that fill a device with ties, with everything that may come between: captures, sleep, limits, the end of
//! streams and pools, and calls of the device that fail, each once in the midst of what a request does, or until healed.

use super::capture::Graphs;
use super::ties::with_ties;
use super::*;

#[derive(Clone, Debug)]
enum Op {
    Alloc { pool: usize, stream: Option<u64>, kib: u64 },
    Aligned { pool: usize, stream: u64, kib: u64 },
    Free(usize, Option<u64>),
    FreeMany(usize),
    Use(usize, u64),
    Run(u64),
    Capture(u64),
    EndCapture,
    Release,
    Sleep(bool),
    Wake,
    EndStream(u64),
    NewPool,
    Trim(Option<usize>, u64),
    Empty(Option<usize>),
    Limit(u64),
    PoolLimit(usize, u64),
    Fail(u8, u32),
    Heal,
    Checkpoint(usize),
    Restore(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let kib = || prop_oneof![1 => 1u64..2048, 4 => (1u64..30).prop_map(|g| g * 2048), 4 => 1u64..30 * 2048];
    let stream = || prop_oneof![5 => (0u64..4).prop_map(Some), 1 => Just(None)];
    prop_oneof![
        20 => (0usize..4, stream(), kib()).prop_map(|(pool, stream, kib)| Op::Alloc { pool, stream, kib }),
        1 => (0usize..4, 0u64..4, kib()).prop_map(|(pool, stream, kib)| Op::Aligned { pool, stream, kib }),
        14 => (0usize..100, prop_oneof![5 => Just(None), 1 => (0u64..4).prop_map(Some)]).prop_map(|(a, b)| Op::Free(a, b)),
        1 => (1usize..6).prop_map(Op::FreeMany),
        1 => (0usize..100, 0u64..4).prop_map(|(a, s)| Op::Use(a, s)),
        2 => (0u64..4).prop_map(Op::Run),
        1 => (1u64..4).prop_map(Op::Capture),
        1 => Just(Op::EndCapture),
        1 => Just(Op::Release),
        1 => any::<bool>().prop_map(Op::Sleep),
        1 => Just(Op::Wake),
        1 => (1u64..4).prop_map(Op::EndStream),
        1 => Just(Op::NewPool),
        1 => (prop::option::of(0usize..4), 0u64..64).prop_map(|(p, k)| Op::Trim(p, k)),
        1 => prop::option::of(0usize..4).prop_map(Op::Empty),
        1 => (0u64..64).prop_map(Op::Limit),
        1 => (0usize..4, 0u64..40).prop_map(|(p, n)| Op::PoolLimit(p, n)),
        2 => (0u8..8, 1u32..12).prop_map(|(a, n)| Op::Fail(a, n)),
        2 => Just(Op::Heal),
        1 => (0usize..4).prop_map(Op::Checkpoint),
        1 => (0usize..9).prop_map(Op::Restore),
    ]
}

fn faults(b: &Bench) -> bool {
    let w = b.world.lock().unwrap();
    w.fail_nth > 0 || w.failed || w.fail_create || w.fail_release || w.fail_alias || w.fail_wait || w.mute
}

fn heal(b: &Bench) {
    let mut w = b.world.lock().unwrap();
    (w.fail_create, w.fail_release, w.fail_alias, w.fail_wait, w.mute, w.failed) = Default::default();
    w.fail_nth = 0;
}

fn run(tie: u32, growth: u32, one_piece: bool, contiguous: bool, ops: Vec<Op>) {
    let mut b = with_ties(64, tie, growth);
    b.pond.tune(Tuning { in_one_piece: one_piece, ..Tuning::default() });
    let mut pools = vec![PoolId::DEFAULT, b.pool(false), b.pool(false), b.pool(contiguous)];
    let mut graphs = Graphs::new(pools[2]);
    let mut limits = [0u64; 4];
    let mut limit = 0;
    let mut saved: Vec<Saved> = Vec::new();
    for op in ops {
        match op {
            Op::Alloc { pool, stream, kib } => {
                let captured = stream.is_some_and(|s| graphs.recording(s));
                let served = if captured { pools[2] } else { pools[pool] };
                let bytes = kib << 10;
                let r = b.alloc_as(pools[pool], served, stream, bytes);
                if let Err(e) = r {
                    let asleep = b.pond.sleep().is_on(served);
                    if asleep {
                        assert_eq!(e.code(), Code::NotPermitted);
                    }
                    let calm = !faults(&b)
                        && graphs.none()
                        && !one_piece
                        && limits.iter().all(|&n| n == 0)
                        && !b.contiguous.contains(&served)
                        && !pools.iter().any(|&p| b.pond.sleep().is_on(p));
                    if calm {
                        // What is reserved serves whatever the limit is.
                        let most = if limit == 0 { 64 } else { limit };
                        let reserved = b.world.lock().unwrap().taken / G;
                        let free = most.max(reserved) - b.granules_taken();
                        assert!(bytes.div_ceil(G) > free, "{e}, but {free} granules are free");
                    }
                }
            }
            Op::Aligned { pool, stream, kib } => {
                let served = if graphs.recording(stream) { pools[2] } else { pools[pool] };
                let _ = b.alloc_aligned(pools[pool], served, stream, kib << 10, 1 << 20);
            }
            Op::Free(at, on) if !b.live.is_empty() => {
                let at = at % b.live.len();
                b.free(at, on);
            }
            Op::FreeMany(nth) => {
                for i in (0..b.live.len()).rev().step_by(nth) {
                    b.free(i, None);
                }
            }
            Op::Use(at, stream) if !b.live.is_empty() => {
                let at = at % b.live.len();
                b.pond.record_stream(b.live[at].offset, stream).unwrap();
                if b.live[at].stream != Some(stream) || b.live[at].past.is_some() {
                    b.live[at].uses.push(stream);
                }
            }
            Op::Run(stream) => {
                let mut w = b.world.lock().unwrap();
                let q = w.streams.get(&stream).map_or(0, |s| s.queued);
                w.complete(stream, q);
            }
            Op::Capture(stream) if !faults(&b) && !b.pond.sleep().is_on(pools[2]) => {
                graphs.begin(&mut b, stream)
            }
            Op::EndCapture => graphs.end(&mut b),
            Op::Release => graphs.release(&mut b),
            Op::Sleep(save) if !faults(&b) => b.sleep(pools[1], save, true),
            Op::Sleep(save) => _ = b.pond.sleep().begin(pools[1], save),
            Op::Wake => _ = b.pond.sleep().wake(pools[1]),
            Op::EndStream(stream) if !graphs.recording(stream) => b.end_stream(stream),
            Op::NewPool => {
                let old = pools[3];
                if b.live.iter().all(|x| x.pool != old) && b.pond.pool_destroy(old).is_ok() {
                    b.contiguous.retain(|&p| p != old);
                    saved.retain(|s| s.pool != old);
                    pools[3] = b.pool(contiguous);
                    limits[3] = 0;
                }
            }
            Op::Trim(pool, keep) => _ = b.pond.special().trim_to(pool.map(|p| pools[p]), keep * G),
            Op::Empty(pool) => {
                let pool = pool.map(|p| pools[p]);
                let m = b.pond.statistics().full(pool, 0).unwrap();
                let before = b.pond.stats(pool).unwrap();
                let exact = !faults(&b) && before.active.current == before.allocated.current;
                if b.pond.empty_cache(pool).is_ok() && exact {
                    let after = b.pond.stats(pool).unwrap().reserved.current;
                    let (gone, told) = (before.reserved.current - after, m.releasable_bytes);
                    // Chunks of small blocks count as free once they are merged, and then all of their ties, of which large
                    // growth makes some of a quarter of the device's 64 granules.
                    let chunks = m.segment.small_pool.current * u64::from(tie.max(64 / 4)) * G;
                    assert!(told <= gone && gone <= told + chunks, "{pool:?}: {gone}, and {told} was told");
                }
            }
            Op::Limit(n) => {
                limit = if n < 40 { 0 } else { n };
                b.pond.set_limit(limit * G);
            }
            Op::PoolLimit(p, n) => {
                limits[p] = if n < 10 { 0 } else { n };
                b.pond.pool_set_limit(pools[p], limits[p] * G).unwrap();
            }
            Op::Fail(what, n) => {
                let mut w = b.world.lock().unwrap();
                match what {
                    0 => w.fail_create = true,
                    1 => w.fail_release = true,
                    2 => w.fail_alias = true,
                    3 => w.fail_wait = true,
                    _ => w.fail_nth = n,
                }
            }
            Op::Heal => heal(&b),
            Op::Checkpoint(p) if !faults(&b) => saved.push(b.checkpoint(pools[p])),
            Op::Restore(n) if !saved.is_empty() && !faults(&b) => {
                let n = n % saved.len();
                b.restore(&saved[n]);
            }
            _ => {}
        }
        b.pond.ground().check();
        graphs.check(&b);
        b.check_ties();
        if !faults(&b) && graphs.none() && !one_piece && b.live.len() % 7 == 3 {
            // What is told to be had can be had.
            let world = b.world.lock().unwrap().taken;
            let stats = b.pond.stats(None).unwrap();
            let quiet = stats.active.current == stats.allocated.current;
            let p = pools[b.live.len() % 3];
            if !b.pond.sleep().is_on(p) && quiet {
                let m = b.pond.statistics().full(Some(p), 64 * G - world).unwrap();
                if m.largest_free_bytes >= 2 * G
                    && m.largest_free_bytes.is_multiple_of(G)
                    && !b.contiguous.contains(&p)
                {
                    let i = b.alloc(p, Some(1), m.largest_free_bytes).unwrap_or_else(|e| {
                        panic!("{} cannot be had by {p:?}: {e}", m.largest_free_bytes / G)
                    });
                    b.free(i, None);
                    b.pond.ground().check();
                    b.check_ties();
                }
            }
        }
        let s = b.pond.stats(None).unwrap();
        assert_eq!((s.requested.current, s.requested.peak), (b.requested, b.peak));
        assert_eq!(s.reserved.current, b.world.lock().unwrap().taken);
        let mut all: Vec<PoolId> = pools.clone();
        all.sort_unstable();
        let sum: u64 = all.iter().map(|&p| b.pond.stats(Some(p)).unwrap().allocated.current).sum();
        assert_eq!(sum, s.allocated.current);
        let g = b.pond.ground().growing();
        assert_eq!(g.account.taken(0).device, g.account.reserved(), "nothing is claimed");
        for &p in &pools {
            assert_eq!(g.account.taken(p.0).pool, g.account.of(p.0).reserved.current, "nothing is claimed");
        }
        assert!(!g.transits.has(None));
    }
    heal(&b);
    graphs.finish(&mut b);
    b.pond.set_limit(0);
    for &p in &pools {
        b.pond.pool_set_limit(p, 0).unwrap();
    }
    for p in [pools[1]] {
        if b.pond.sleep().is_on(p) {
            while let Some(i) = b.live.iter().position(|x| x.pool != p) {
                b.free(i, None);
            }
            b.pond.sleep().wake(p).unwrap();
        }
    }
    b.finish();
}

proptest! {
    #![proptest_config(random_programs())]
    /// The books are right after each step, and what is told to be had can be had.
    #[test]
    fn what_may_come_between(
        tie in 2u32..20, growth in 1u32..40, one_piece in prop::bool::weighted(0.25),
        contiguous in prop::bool::weighted(0.2), ops in prop::collection::vec(op(), 1..200)
    ) {
        run(tie, growth, one_piece, contiguous, ops);
    }
}

/// With its own free part of a shared tie it cannot do anything without the rest, for which its limit leaves no room.
#[test]
fn a_pool_near_its_limit_is_told_what_it_can_have() {
    let alloc = |pool, stream, kib| Op::Alloc { pool, stream: Some(stream), kib };
    let ops = vec![
        alloc(0, 0, 2049),
        alloc(1, 0, 28673),
        alloc(0, 0, 2049),
        Op::Free(42, None),
        alloc(0, 0, 10240),
        alloc(1, 1, 1),
        alloc(0, 0, 10225),
        alloc(0, 0, 1),
        Op::PoolLimit(0, 14),
        Op::Free(0, None),
        Op::EndStream(1),
        alloc(3, 3, 17555),
        alloc(2, 3, 10614),
        Op::Limit(48),
        Op::Free(79, None),
        Op::FreeMany(5),
        Op::Free(11, None),
        Op::Free(38, None),
        Op::FreeMany(2),
        alloc(2, 0, 19260),
        alloc(1, 0, 52132),
    ];
    run(2, 15, false, false, ops);
}
