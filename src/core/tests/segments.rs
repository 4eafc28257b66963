//! Segments as large as requests need them.

use super::*;

const MIB: u64 = 1 << 20;

fn bench(capacity: u64) -> Bench {
    Bench::new(Config { growing: true, init_alloc: 8 * MIB, realloc: 8 * MIB, ..config(false, capacity) })
}

pub(super) fn reserved(b: &Bench) -> u64 {
    b.pond.stats(None).unwrap().reserved.current
}

/// Allocates, frees, and allocates less: what that takes from the device.
fn shrink(b: &mut Bench) {
    let i = b.alloc(PoolId::DEFAULT, Some(0), 40 * MIB).unwrap();
    b.free(i, None);
    b.alloc(PoolId::DEFAULT, Some(0), 30 * MIB).unwrap();
}

#[test]
fn a_whole_segment_is_cut_while_memory_is_plentiful() {
    let mut b = bench(1024 * MIB);
    shrink(&mut b);
    assert_eq!(reserved(&b), 40 * MIB);
    b.finish();
}

#[test]
fn a_whole_segment_goes_back_for_one_that_fits_while_memory_is_scarce() {
    let mut b = bench(64 * MIB);
    shrink(&mut b);
    assert_eq!(reserved(&b), 30 * MIB, "the segment of 40 MiB went back");
    // So there is room for what could not be had beside a cut segment.
    b.alloc(PoolId::DEFAULT, Some(0), 34 * MIB).unwrap();
    assert_eq!(reserved(&b), 64 * MIB);
    b.finish();
}

#[test]
fn a_whole_segment_stays_whole_for_what_asks_for_less_while_memory_is_scarce() {
    for (stream, bytes) in [(0, 4096), (0, MIB / 2), (1, 4096), (1, MIB / 2), (1, 2 * MIB)] {
        let mut b = bench(64 * MIB);
        idle(&mut b, PoolId::DEFAULT, 40 * MIB);
        b.alloc(PoolId::DEFAULT, Some(stream), bytes).unwrap();
        b.alloc(PoolId::DEFAULT, Some(0), 40 * MIB).unwrap_or_else(|e| panic!("{bytes} on {stream}: {e}"));
        b.finish();
    }
}

/// A small request for which a segment goes back costs the program no others.
#[test]
fn a_small_request_gives_back_one_segment() {
    for bytes in [4096, 20_000, MIB / 2] {
        let mut b = bench(64 * MIB);
        let all: Vec<_> =
            [36, 20, 8].map(|n| b.alloc(PoolId::DEFAULT, Some(0), n * MIB).unwrap()).into_iter().collect();
        for i in all.into_iter().rev() {
            b.free(i, None);
        }
        assert_eq!(reserved(&b), 64 * MIB);
        b.alloc(PoolId::DEFAULT, Some(1), bytes).unwrap();
        assert!(reserved(&b) >= 56 * MIB, "{bytes}: {} MiB are left", reserved(&b) / MIB);
        b.finish();
    }
}

/// Its parts leave the accounts of those that have them: nobody has it all in between.
#[test]
fn a_segment_that_two_pools_share_goes_back_without_a_new_peak() {
    let mut b = bench(40 * MIB);
    let pool = b.pond.pool_create(12 * MIB, false).unwrap();
    idle(&mut b, PoolId::DEFAULT, 40 * MIB);
    b.world.lock().unwrap().fail_release = true;
    let i = b.alloc(pool, Some(1), 10 * MIB).unwrap();
    b.world.lock().unwrap().fail_release = false;
    b.free(i, None);
    let peaks = |b: &Bench| [pool, PoolId::DEFAULT].map(|p| b.pond.stats(Some(p)).unwrap().reserved.peak);
    assert_eq!(peaks(&b), [10 * MIB, 40 * MIB]);
    b.pond.empty_cache(None).unwrap();
    assert_eq!((reserved(&b), peaks(&b)), (0, [10 * MIB, 40 * MIB]));
    b.finish();
}

#[test]
fn a_whole_segment_of_any_stream_is_cut_when_nothing_else_is_left() {
    for (stream, bytes) in [(0, 4096), (0, MIB / 2), (1, 4096), (1, MIB / 2), (1, 2 * MIB), (1, 30 * MIB)] {
        let mut b = bench(40 * MIB);
        idle(&mut b, PoolId::DEFAULT, 40 * MIB);
        b.world.lock().unwrap().fail_release = true;
        b.alloc(PoolId::DEFAULT, Some(stream), bytes).unwrap_or_else(|e| panic!("{bytes} on {stream}: {e}"));
        b.world.lock().unwrap().fail_release = false;
        b.finish();
    }
}

#[test]
fn a_whole_segment_is_cut_where_it_cannot_go_back() {
    let mut b = bench(64 * MIB);
    b.world.lock().unwrap().fail_release = true;
    shrink(&mut b);
    assert_eq!(reserved(&b), 40 * MIB);
    b.world.lock().unwrap().fail_release = false;
    b.finish();
}

#[test]
fn a_device_with_less_than_it_says_is_scarce_from_its_first_refusal() {
    let mut b = bench(1024 * MIB);
    b.world.lock().unwrap().capacity = 64 * MIB;
    let i = b.alloc(PoolId::DEFAULT, Some(0), 40 * MIB).unwrap();
    b.alloc(PoolId::DEFAULT, Some(0), 32 * MIB).unwrap_err();
    b.free(i, None);
    b.alloc(PoolId::DEFAULT, Some(0), 30 * MIB).unwrap();
    b.alloc(PoolId::DEFAULT, Some(0), 34 * MIB).expect("30 and 34 are 64");
    b.finish();
}

/// A program whose blocks grow by a little in each step, as key-value caches do, beside blocks that stay; the peak of
/// its live bytes.
fn growing(capacity: u64) -> Option<u64> {
    let mut b = bench(capacity);
    let (mut caches, mut peak) = ([None; 4], 0);
    for step in 0..40 {
        for (n, cache) in (0..).zip(&mut caches) {
            let bytes = (20 + step) * MIB / 4 + n * MIB / 16;
            let i = b.alloc(PoolId::DEFAULT, Some(0), bytes).ok()?;
            let before = cache.replace(b.live[i].offset);
            peak = peak.max(b.pond.stats(None).unwrap().allocated.current);
            if let Some(at) = before.and_then(|o| b.live.iter().position(|x| x.offset == o)) {
                b.free(at, None);
            }
        }
        if step % 8 == 0 {
            b.alloc(PoolId::DEFAULT, Some(0), 3 * MIB / 2).ok()?;
        }
    }
    b.finish();
    Some(peak)
}

#[test]
fn growing_blocks_fit_into_little_more_than_they_need() {
    let peak = growing(1 << 30).unwrap();
    growing(peak + peak / 20).expect("a twentieth more than it needs is enough");
}

/// A block of stream 0 that is freed and waits for work on stream 1.
fn waiting(b: &mut Bench, pool: PoolId, bytes: u64) {
    let i = b.alloc(pool, Some(0), bytes).unwrap();
    b.pond.record_stream(b.live[i].offset, 1).unwrap();
    b.live[i].uses.push(1);
    b.free(i, None);
}

/// An idle segment of that size.
pub(super) fn idle(b: &mut Bench, pool: PoolId, bytes: u64) {
    let i = b.alloc(pool, Some(0), bytes).unwrap();
    b.free(i, None);
}

/// A segment of 40 MiB, all free, in the heaps of two streams; the limit is that.
pub(super) fn free_in_two_heaps(b: &mut Bench) {
    idle(b, PoolId::DEFAULT, 40 * MIB);
    b.alloc(PoolId::DEFAULT, Some(0), 8 * MIB).unwrap();
    b.pond.set_limit(40 * MIB);
    b.alloc(PoolId::DEFAULT, Some(1), 20 * MIB).expect("a part of the idle segment");
    b.free(1, None);
    b.free(0, None);
}

#[test]
fn what_a_pools_own_limit_refuses_gives_nothing_back_of_others() {
    let mut b = bench(64 * MIB);
    let p = b.pond.pool_create(16 * MIB, false).unwrap();
    idle(&mut b, PoolId::DEFAULT, 40 * MIB);
    waiting(&mut b, p, 16 * MIB);
    b.alloc(p, Some(0), 16 * MIB).expect("the block that waited");
    assert_eq!(reserved(&b), 56 * MIB, "40 MiB of the default pool stay");
    b.finish();
}

#[test]
fn for_its_own_limit_a_pool_gives_its_own_segments_back() {
    let mut b = bench(64 * MIB);
    let p = b.pond.pool_create(16 * MIB, false).unwrap();
    idle(&mut b, PoolId::DEFAULT, 40 * MIB);
    let (i, j) = (b.alloc(p, Some(0), 8 * MIB).unwrap(), b.alloc(p, Some(0), 7 * MIB).unwrap());
    b.free(i.max(j), None);
    b.free(i.min(j), None);
    b.alloc(p, Some(0), 15 * MIB).unwrap();
    assert_eq!(reserved(&b), 55 * MIB, "40 MiB of the default pool stay");
    b.finish();
}

#[test]
fn what_a_graph_keeps_does_not_count_as_idle() {
    let mut b = bench(64 * MIB);
    let p = b.pond.pool_create(0, false).unwrap();
    let id = b.pond.captures().begin(p, 2).unwrap();
    idle(&mut b, p, 20 * MIB);
    b.pond.captures().end(id).unwrap();
    idle(&mut b, PoolId::DEFAULT, 10 * MIB);
    waiting(&mut b, PoolId::DEFAULT, 30 * MIB);
    assert_eq!(reserved(&b), 60 * MIB);
    b.alloc(PoolId::DEFAULT, Some(0), 30 * MIB).expect("the block that waited");
    assert_eq!(reserved(&b), 60 * MIB, "without the 20 MiB, 10 are not enough");
    b.pond.captures().release(id).unwrap();
    b.finish();
}

#[test]
fn nothing_goes_back_for_a_segment_that_is_still_too_large_by_its_rounding() {
    let mut b = bench(64 * MIB + 8192);
    idle(&mut b, PoolId::DEFAULT, 64 * MIB); // from now on nothing may be stuck
    b.pond.empty_cache(None).unwrap();
    idle(&mut b, PoolId::DEFAULT, 30 * MIB);
    waiting(&mut b, PoolId::DEFAULT, 34 * MIB);
    b.alloc(PoolId::DEFAULT, Some(0), 30 * MIB + 512).expect("the block that waited goes back for it");
    assert_eq!(reserved(&b), 60 * MIB + 16384);
    b.finish();
}

#[test]
fn a_request_for_which_nothing_can_go_back_holds_nothing() {
    let mut b = bench(64 * MIB);
    b.alloc(PoolId::DEFAULT, Some(0), 40 * MIB).unwrap();
    let ended = |b: &Bench| b.pond.ground().growing().transits.ended();
    let before = ended(&b);
    b.alloc(PoolId::DEFAULT, Some(0), 32 * MIB).unwrap_err();
    assert_eq!(ended(&b), before, "another thread's request would have waited for that");
    b.finish();
}

#[test]
fn a_limit_that_refuses_does_not_make_the_device_scarce() {
    let mut b = bench(1024 * MIB);
    let p = b.pond.pool_create(16 * MIB, false).unwrap();
    let i = b.alloc(PoolId::DEFAULT, Some(0), 40 * MIB).unwrap();
    b.alloc(p, Some(0), 20 * MIB).unwrap_err();
    b.free(i, None);
    // No more is reserved than at the refusal, so a wrong guess of what the device has would still stand.
    b.alloc(PoolId::DEFAULT, Some(0), 30 * MIB).unwrap();
    assert_eq!(reserved(&b), 40 * MIB, "the segment was cut");
    b.finish();
}

#[test]
fn blocks_of_one_size_share_segments_while_memory_is_plentiful() {
    let sizes = Config { init_alloc: 64 * MIB, realloc: 64 * MIB, ..config(false, 256 * MIB) };
    let mut b = Bench::new(Config { growing: true, ..sizes });
    for _ in 0..48 {
        b.alloc(PoolId::DEFAULT, Some(0), 4 * MIB).unwrap();
    }
    let s = b.pond.stats(None).unwrap();
    assert!(s.segments.current <= 24, "{} segments", s.segments.current);
    assert!(s.reserved.current <= 208 * MIB, "{} bytes", s.reserved.current);
    b.finish();
}

#[test]
fn a_small_block_takes_little_of_a_small_device() {
    let mut b = bench(64 * MIB);
    b.alloc(PoolId::DEFAULT, Some(0), 65536).unwrap();
    b.alloc(PoolId::DEFAULT, Some(0), 56 * MIB).unwrap();
    b.finish();
    let mut b = bench(64 * MIB);
    b.alloc(PoolId::DEFAULT, Some(0), 32 * MIB).unwrap();
    b.alloc(PoolId::DEFAULT, Some(0), 32 * MIB).expect("two halves are the whole");
    b.finish();
}

/// A limit of the device or of the pool is set below what is reserved, of which 32 MiB are in use and as many free.
#[test]
fn a_limit_below_what_is_reserved_empties_no_cache_in_vain() {
    for (of_pool, limit) in [(false, 44), (true, 44), (false, 52), (true, 52)] {
        let mut b = bench(256 * MIB);
        for _ in 0..4 {
            b.alloc(PoolId::DEFAULT, Some(0), 16 * MIB).unwrap();
        }
        b.free(0, None);
        b.free(0, None);
        match of_pool {
            true => b.pond.pool_set_limit(PoolId::DEFAULT, limit * MIB).unwrap(),
            false => b.pond.set_limit(limit * MIB),
        }
        let told =
            b.pond.statistics().full(Some(PoolId::DEFAULT), 192 * MIB).unwrap().largest_free_bytes / MIB;
        let got = b.alloc(PoolId::DEFAULT, Some(0), 20 * MIB);
        assert_eq!(
            (told, got.is_ok(), reserved(&b) / MIB),
            if limit < 52 { (16, false, 64) } else { (20, true, 52) }
        );
        b.finish();
    }
}

/// What is idle in another pool does not help against a pool's own limit.
#[test]
fn a_pool_at_its_limit_is_told_that_nothing_is_to_be_had() {
    let mut b = bench(256 * MIB);
    idle(&mut b, PoolId::DEFAULT, 100 * MIB);
    let pool = b.pool(false);
    b.pond.pool_set_limit(pool, 40 * MIB).unwrap();
    b.alloc(pool, Some(0), 40 * MIB).unwrap();
    let told = b.pond.statistics().full(Some(pool), 116 * MIB).unwrap().largest_free_bytes;
    assert_eq!(told, 0);
    b.alloc(pool, Some(0), 16 * MIB).unwrap_err();
    b.finish();
}

/// Segments of one size, of which two idle ones are not enough under the limit.
#[test]
fn a_limit_below_what_is_reserved_empties_no_cache_of_fixed_segments_in_vain() {
    let mut b = Bench::new(Config { init_alloc: 16 * MIB, realloc: 16 * MIB, ..config(false, 256 * MIB) });
    for _ in 0..4 {
        b.alloc(PoolId::DEFAULT, Some(0), 16 * MIB).unwrap();
    }
    b.free(0, None);
    b.free(0, None);
    b.pond.set_limit(44 * MIB);
    b.alloc(PoolId::DEFAULT, Some(0), 20 * MIB).unwrap_err();
    assert_eq!(reserved(&b), 64 * MIB);
    b.finish();
}

/// A segment whose free parts lie in the heaps of two streams makes room as well, under whatever limit.
#[test]
fn a_segment_that_is_free_in_two_heaps_goes_back() {
    for (limit, of_pool, bytes) in [(64, false, 60), (64, true, 60), (0, false, 240)] {
        let mut b = bench(256 * MIB);
        idle(&mut b, PoolId::DEFAULT, 40 * MIB);
        b.alloc(PoolId::DEFAULT, Some(0), 8 * MIB).unwrap();
        b.pond.set_limit(40 * MIB);
        b.alloc(PoolId::DEFAULT, Some(1), 20 * MIB).expect("a part of the idle segment");
        b.pond.set_limit(0);
        b.free(1, None);
        b.free(0, None);
        match of_pool {
            true => b.pond.pool_set_limit(PoolId::DEFAULT, limit * MIB).unwrap(),
            false => b.pond.set_limit(limit * MIB),
        }
        b.alloc(PoolId::DEFAULT, Some(0), bytes * MIB).expect("nothing is in use");
        b.finish();
    }
}

/// A pool's idle segment makes room under the pool's own limit, also where two heaps of the pool have parts of it; what
/// others have idle is no help, and stays.
#[test]
fn a_pools_own_limit_leaves_the_segments_of_others_alone() {
    for growing in [true, false] {
        let sizes = Config { init_alloc: 40 * MIB, realloc: 40 * MIB, ..config(false, 1024 * MIB) };
        let mut b = Bench::new(Config { growing, ..sizes });
        let p = b.pond.pool_create(0, false).unwrap();
        idle(&mut b, PoolId::DEFAULT, 100 * MIB);
        b.pond.pool_set_limit(p, 40 * MIB).unwrap();
        idle(&mut b, p, 40 * MIB);
        b.alloc(p, Some(0), 8 * MIB).unwrap();
        b.alloc(p, Some(1), 20 * MIB).expect("a part of the idle segment");
        b.free(1, None);
        b.free(0, None);
        b.pond.pool_set_limit(p, 60 * MIB).unwrap();
        assert_eq!(reserved(&b), 140 * MIB);
        b.alloc(p, Some(0), 60 * MIB).expect("nothing of the pool is in use");
        assert_eq!(reserved(&b), 160 * MIB, "100 MiB of the default pool stay; growing: {growing}");
        b.finish();
    }
}

/// Whatever two streams have done: if all is free, one block can have the device.
#[test]
fn all_of_a_device_that_is_free_can_be_one_block() {
    let mut seed = 12345u64;
    for round in 0..part_of(300) {
        let mut b = bench(64 * MIB);
        for _ in 0..30 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let r = seed >> 33;
            if r.is_multiple_of(3) && !b.live.is_empty() {
                let i = (r / 3) as usize % b.live.len();
                b.free(i, None);
            } else {
                let _ = b.alloc(PoolId::DEFAULT, Some(r / 7 % 2), (1 + r / 16 % 24) * MIB);
            }
        }
        while !b.live.is_empty() {
            b.free(b.live.len() - 1, None);
        }
        b.alloc(PoolId::DEFAULT, Some(0), 64 * MIB).unwrap_or_else(|e| panic!("round {round}: {e}"));
        b.finish();
    }
}

/// A segment that is free in the heaps of two streams can go back, and is told so; what a limit leaves beyond whole units
/// serves nobody.
#[test]
fn what_is_told_of_segments_counts_what_is_free_in_two_heaps_and_whole_units() {
    let mut b = bench(1024 * MIB);
    free_in_two_heaps(&mut b);
    b.pond.set_limit(60 * MIB + 8192);
    let m = b.pond.statistics().full(None, 984 * MIB).unwrap();
    assert_eq!((m.releasable_bytes, m.largest_free_bytes), (40 * MIB, 60 * MIB));
    b.alloc(PoolId::DEFAULT, Some(0), m.largest_free_bytes).unwrap();
    b.alloc(PoolId::DEFAULT, Some(0), 1).unwrap_err();
    assert_eq!(b.pond.statistics().full(None, 964 * MIB).unwrap().largest_free_bytes, 0);
    b.finish();
}

/// What another stream of the pool has serves, also where a run of others that the pool's limit forbids comes first.
#[test]
fn a_run_of_others_that_the_limit_forbids_hides_none_that_it_allows() {
    let mut b = Bench::new(Config { init_alloc: 23 * MIB, realloc: 23 * MIB, ..config(false, 96 * MIB) });
    let p = b.pond.pool_create(23 * MIB, false).unwrap();
    b.alloc(PoolId::DEFAULT, Some(0), MIB).unwrap();
    b.alloc(p, Some(1), MIB).unwrap();
    assert_eq!(reserved(&b), 46 * MIB);
    b.alloc(p, Some(0), 21 * MIB).expect("stream 1 has ten granules and a half in one run");
    b.finish();
}

/// A request beyond the max chunk, too: what a limit refuses all the same gives nothing back, and what a pool's own limit
/// refuses nothing of others.
#[test]
fn for_a_segment_of_its_own_nothing_goes_back_in_vain() {
    for growing in [true, false] {
        let sizes = Config { init_alloc: 16 * MIB, realloc: 16 * MIB, ..config(false, 256 * MIB) };
        let mut b = Bench::new(Config { growing, max_chunk: 16 * MIB, ..sizes });
        let p = b.pond.pool_create(40 * MIB, false).unwrap();
        let all: Vec<usize> = (0..3).map(|_| b.alloc(PoolId::DEFAULT, Some(0), 16 * MIB).unwrap()).collect();
        all.into_iter().rev().for_each(|i| b.free(i, None));
        b.alloc(p, Some(0), 44 * MIB).unwrap_err();
        assert_eq!(reserved(&b), 48 * MIB, "the pool never can have that; growing: {growing}");
        b.pond.set_limit(100 * MIB);
        let live = b.alloc(PoolId::DEFAULT, Some(1), 60 * MIB).expect("the idle ones go back for it");
        b.free(live, None);
        b.pond.set_limit(0);
        b.pond.ground().backing.sync_all().unwrap();
        idle(&mut b, PoolId::DEFAULT, 16 * MIB);
        idle(&mut b, p, 16 * MIB);
        let before = reserved(&b);
        assert_eq!(before, 32 * MIB);
        b.alloc(p, Some(0), 30 * MIB).expect("the pool's idle segment goes back for it");
        assert_eq!(reserved(&b), before + 14 * MIB, "of others nothing went; growing: {growing}");
        b.finish();
    }
}
