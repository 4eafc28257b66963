//! What the statistics tell of free memory holds: what is told to be had is had, and what is told to go back goes back.

use super::random::Random;
use super::*;

const MIB: u64 = 1 << 20;
const ALL: u64 = 96 * MIB;

/// The kinds of device.
const SOURCES: [Source; 3] = [Source::Granules, Source::Segments, Source::OwnSegments];

fn bench_of(source: Source, init_alloc: u64) -> Bench {
    let mapping = source == Source::Granules;
    let sizes = Config { init_alloc, realloc: 8 * MIB, numbers: 4096, ..config(mapping, ALL) };
    Bench::new(Config { growing: source == Source::OwnSegments, ..sizes })
}

/// In whatever state two pools with limits and two streams have left the device.
#[test]
fn what_is_told_of_free_memory_holds() {
    let mut wrong = Vec::new();
    for round in 0..part_of(300) as u64 {
        for source in SOURCES {
            let mut b = bench_of(source, (1 + round % 3) * 8 * MIB);
            let pools = [PoolId::DEFAULT, b.pond.pool_create(0, false).unwrap()];
            let mut random = Random(round * 7919 + 5);
            for step in 0..40 {
                let pool = pools[random.below(2) as usize];
                let what = random.below(14);
                let is_wrong = match what {
                    0 => {
                        let limit = [0, 20, 40, 60][random.below(4) as usize] * MIB + random.below(3) * 8192;
                        b.pond.pool_set_limit(pool, limit).unwrap();
                        None
                    }
                    1 => {
                        let limit = [0, 40, 60, 90][random.below(4) as usize] * MIB + random.below(2) * 8192;
                        b.pond.set_limit(limit);
                        None
                    }
                    2..=5 if !b.live.is_empty() => {
                        let i = random.below(b.live.len() as u64) as usize;
                        b.free(i, None);
                        None
                    }
                    6..=8 => had(&mut b, pool),
                    9 => gone(&mut b, Some(pool).filter(|_| random.below(2) == 0)),
                    _ => {
                        let bytes = match what {
                            10 => 1 + random.below(100 << 10),
                            _ => (1 + random.below(80)) * MIB / 4 + random.below(3),
                        };
                        _ = b.alloc(pool, Some(random.below(2)), bytes);
                        None
                    }
                };
                wrong.extend(
                    is_wrong.map(|e| format!("{source:?}, round {round}, step {step}, {pool:?}: {e}")),
                );
            }
            b.finish();
        }
    }
    assert!(wrong.is_empty(), "{} are wrong: {:#?}", wrong.len(), &wrong[..wrong.len().min(8)]);
}

/// A request as large as can be had is served on one of the streams: whoever has the largest free piece.
fn had(b: &mut Bench, pool: PoolId) -> Option<String> {
    for stream in [0, 1] {
        let told = told(b, Some(pool)).largest_free_bytes;
        if told == 0 {
            return None;
        }
        match b.alloc(pool, Some(stream), told) {
            Ok(i) => {
                b.free(i, None);
                return None;
            }
            Err(e) if stream == 1 => return Some(format!("{told} were told: {e}")),
            Err(_) => {}
        }
    }
    None
}

/// What is told to go back goes back; some more may, since blocks that were freed are merged for it.
fn gone(b: &mut Bench, pool: Option<PoolId>) -> Option<String> {
    let told = told(b, pool).releasable_bytes;
    let before = reserved(b);
    b.pond.empty_cache(pool).unwrap();
    let gone = before - reserved(b);
    (gone < told).then(|| format!("{told} were told to go back, {gone} have (of {pool:?})"))
}

fn reserved(b: &Bench) -> u64 {
    b.pond.stats(None).unwrap().reserved.current
}

fn told(b: &Bench, pool: Option<PoolId>) -> crate::core::types::MemoryStats {
    let free = {
        let w = b.world.lock().unwrap();
        w.capacity - w.taken
    };
    b.pond.statistics().full(pool, free).unwrap()
}

/// Small blocks that were freed, and wait on the lists of their sizes, are in nobody's way: their chunks go back, and serve
/// large requests.
#[test]
fn chunks_without_a_live_block_are_told_to_be_free() {
    for stream in [0, 1] {
        let mut b = bench_of(Source::Granules, 8 * MIB);
        for _ in 0..3000 {
            b.alloc(PoolId::DEFAULT, Some(0), 1000).unwrap();
            b.alloc(PoolId::DEFAULT, Some(0), 3000).unwrap();
        }
        assert_eq!(told(&b, None).releasable_bytes, 0, "each chunk has live blocks");
        while !b.live.is_empty() {
            b.free(0, None);
        }
        let (m, held) = (told(&b, None), reserved(&b));
        let split = (m.inactive_split.all.current, m.inactive_split_bytes.all.current);
        let whole = (m.free_bytes, m.releasable_bytes, m.largest_cached_bytes);
        assert_eq!((whole, split), ((held, held, held), (0, 0)));
        // On the own stream, and on another one.
        b.pond.set_limit(held);
        b.alloc(PoolId::DEFAULT, Some(stream), held).unwrap();
        b.free(0, None);
        assert_eq!(gone(&mut b, None), None);
        b.finish();
    }
}

/// On segments, and while granules are tied, such chunks count as in use: what is told is less than there is.
#[test]
fn on_segments_and_among_ties_such_chunks_are_told_as_a_lower_bound() {
    let tied = Config { init_alloc: 8 * MIB, realloc: 8 * MIB, tie: 4, tie_growth: 1, ..config(true, ALL) };
    for source in SOURCES {
        let mut b = if source == Source::Granules { Bench::new(tied) } else { bench_of(source, 8 * MIB) };
        // Much at once, which comes in ties.
        b.alloc(PoolId::DEFAULT, Some(0), 32 * MIB).unwrap();
        for _ in 0..3000 {
            b.alloc(PoolId::DEFAULT, Some(0), 1000).unwrap();
        }
        while !b.live.is_empty() {
            b.free(0, None);
        }
        let (m, held) = (told(&b, None), reserved(&b));
        assert!(m.free_bytes == held && m.releasable_bytes < held, "{source:?}: {m:?}");
        assert!(m.largest_cached_bytes < held && m.inactive_split_bytes.all.current > 0, "{source:?}: {m:?}");
        b.pond.empty_cache(None).unwrap();
        assert_eq!(reserved(&b), 0, "{source:?}: all of it goes back");
        b.finish();
    }
}

/// A free piece that is too small for a large request serves nobody: small requests need a chunk, which is a granule.
#[test]
fn a_piece_below_the_large_tier_is_not_told_to_be_had() {
    for source in SOURCES {
        let mut b = bench_of(source, 8 * MIB);
        b.pond.set_limit(8 * MIB);
        b.alloc(PoolId::DEFAULT, Some(0), 8 * MIB - (32 << 10)).unwrap();
        let m = told(&b, Some(PoolId::DEFAULT));
        assert_eq!((m.largest_cached_bytes, m.largest_free_bytes), (0, 0), "{source:?}");
        b.alloc(PoolId::DEFAULT, Some(0), 32 << 10).unwrap_err();
        b.finish();
    }
}

/// A request beyond the max chunk gets a segment of its own, and none of what is cached.
#[test]
fn what_is_cached_serves_no_request_beyond_the_max_chunk() {
    let sizes = Config { max_chunk: 4 * MIB, init_alloc: 24 * MIB, ..config(false, ALL) };
    let mut b = Bench::new(sizes);
    b.pond.set_limit(24 * MIB);
    b.alloc(PoolId::DEFAULT, Some(0), MIB).unwrap();
    let m = told(&b, Some(PoolId::DEFAULT));
    assert_eq!((m.largest_cached_bytes, m.largest_free_bytes), (4 * MIB, 4 * MIB));
    b.alloc(PoolId::DEFAULT, Some(0), 4 * MIB + 512).unwrap_err();
    b.alloc(PoolId::DEFAULT, Some(0), 4 * MIB).unwrap();
    b.finish();
}

/// A segment that is free in the heaps of two pools goes back with the caches of both, and with neither alone.
#[test]
fn what_two_pools_have_of_a_segment_goes_back_with_neither_alone() {
    for source in [Source::Segments, Source::OwnSegments] {
        let sizes = Config { init_alloc: 40 * MIB, ..config(false, 1024 * MIB) };
        let mut b = Bench::new(Config { growing: source == Source::OwnSegments, ..sizes });
        let p = b.pond.pool_create(0, false).unwrap();
        let all = b.alloc(PoolId::DEFAULT, Some(0), 40 * MIB).unwrap();
        b.free(all, None);
        b.alloc(PoolId::DEFAULT, Some(0), 8 * MIB).unwrap();
        b.pond.set_limit(40 * MIB);
        b.alloc(p, Some(0), 20 * MIB).expect("a part of the idle segment");
        b.free(1, None);
        b.free(0, None);
        assert_eq!(reserved(&b), 40 * MIB);
        for pool in [PoolId::DEFAULT, p] {
            let m = told(&b, Some(pool));
            let split = m.inactive_split_bytes.all.current;
            assert_eq!((m.releasable_bytes, m.largest_free_bytes), (0, 40 * MIB), "{source:?}, {pool:?}");
            assert_eq!(split, m.free_bytes, "what cannot go back is a part of something");
        }
        assert_eq!(told(&b, None).releasable_bytes, 40 * MIB);
        b.pond.empty_cache(Some(PoolId::DEFAULT)).unwrap();
        assert_eq!(reserved(&b), 40 * MIB);
        b.pond.empty_cache(None).unwrap();
        assert_eq!(reserved(&b), 0);
        b.finish();
    }
}
