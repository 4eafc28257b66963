//! Pools share segments, on devices that have them. When a pool ends, its part of a segment that others use is not
//! lost, and no pool gets it beyond its limit. The same holds when unused memory is given back.

use crate::apart::*;
use crate::api::*;
use millpond::capi::*;

/// What holds for each pool, always.
#[track_caller]
fn check(pools: &[Pool]) {
    for &p in pools {
        let s = p.stats();
        let (reserved, allocated, limit) =
            (s.reserved_bytes.current, s.allocated_bytes.current, s.limit_bytes);
        assert!(reserved >= allocated, "{reserved} bytes are charged for {allocated} in blocks");
        assert!(limit == 0 || reserved <= limit, "{reserved} bytes, and the limit is {limit}");
    }
}

/// A device that gives segments of 64 MiB, however little a request needs.
fn large_segments(capacity: usize) -> Device {
    let d = host(capacity, false);
    d.set_options("large_segment_size_mb:64").unwrap();
    d
}

/// A device of one segment: the pool that came first, and another one that has a part of it.
fn two_pools_in_a_segment() -> (Device, Pool, Pool, usize) {
    let d = large_segments(64 * MIB);
    let (first, second) = (d.pool(0), d.pool(0));
    let p = first.alloc(MIB, NULL).unwrap();
    let q = second.alloc(4 * MIB, NULL).unwrap();
    first.free(p, NULL).unwrap();
    check(&[first, second, d.default_pool()]);
    assert_eq!(d.stats().segments.current, 1, "they share it");
    (d, first, second, q)
}

/// What the pool that has ended leaves can be had by the others.
#[test]
fn what_an_ended_pool_leaves_in_a_segment_is_not_lost() {
    apart(|| {
        let (d, first, second, q) = two_pools_in_a_segment();
        first.destroy().unwrap();
        check(&[second, d.default_pool()]);
        let rest = second.alloc(48 * MIB, NULL).unwrap();
        check(&[second, d.default_pool()]);
        second.free(rest, NULL).unwrap();
        d.default_pool().alloc(48 * MIB, NULL).map(|p| free(p).unwrap()).unwrap();
        second.free(q, NULL).unwrap();
        second.destroy().unwrap();
        d.empty_cache().unwrap();
        assert_eq!(d.stats().reserved_bytes.current, 0);
    });
}

/// A new pool does not begin with it, and stays within its limit.
#[test]
fn a_new_pool_does_not_inherit_what_an_ended_one_has_left() {
    apart(|| {
        let (d, first, second, _) = two_pools_in_a_segment();
        first.destroy().unwrap();
        let next = d.pool(4 * MIB);
        assert_eq!(code(next.alloc(40 * MIB, NULL)), MILLPOND_E_OUT_OF_MEMORY);
        check(&[next, second, d.default_pool()]);
        let p = next.alloc(3 * MIB, NULL).unwrap();
        check(&[next, second, d.default_pool()]);
        assert_eq!(code(next.alloc(2 * MIB, NULL)), MILLPOND_E_OUT_OF_MEMORY);
        next.free(p, NULL).unwrap();
        next.destroy().unwrap();
    });
}

/// What a new pool has is charged to it.
#[test]
fn what_a_new_pool_has_is_charged_to_it() {
    apart(|| {
        let (d, first, second, _) = two_pools_in_a_segment();
        first.destroy().unwrap();
        let next = d.pool(0);
        next.alloc(8 * MIB, NULL).unwrap();
        check(&[next, second, d.default_pool()]);
        let sum: u64 =
            [next, second, d.default_pool()].iter().map(|p| p.stats().reserved_bytes.current).sum();
        assert!(sum <= d.stats().reserved_bytes.current);
    });
}

/// Pool after pool, each with a part of the segment: nothing is lost, however often.
#[test]
fn pools_that_come_and_go_in_a_shared_segment_lose_nothing() {
    apart(|| {
        let (d, first, second, _) = two_pools_in_a_segment();
        first.destroy().unwrap();
        for round in 0..50 {
            let next = d.pool(32 * MIB);
            let p = next.alloc(20 * MIB, NULL);
            let p = p.unwrap_or_else(|e| panic!("round {round}: {}", e.message));
            check(&[next, second, d.default_pool()]);
            next.free(p, NULL).unwrap();
            next.destroy().unwrap();
        }
    });
}

/// A pool of a small limit that was there first, and another one that leaves most of a large segment unused. `give`
/// gives unused memory back.
fn small_and_large(give: impl FnOnce(Device, Pool)) {
    let d = large_segments(256 * MIB);
    let (small, large) = (d.pool(4 * MIB), d.pool(0));
    let p = small.alloc(MIB, NULL).unwrap();
    let kept = large.alloc(MIB, NULL).unwrap();
    let most = large.alloc(60 * MIB, NULL).unwrap();
    large.free(most, NULL).unwrap();
    check(&[small, large, d.default_pool()]);
    let before = d.stats().reserved_bytes.current;
    give(d, large);
    check(&[small, d.default_pool()]);
    assert!(d.stats().reserved_bytes.current <= before);
    // The small pool gets no more than it may have, and what is unused serves the others.
    assert_eq!(code(small.alloc(8 * MIB, NULL)), MILLPOND_E_OUT_OF_MEMORY);
    check(&[small, d.default_pool()]);
    let q = d.default_pool().alloc(48 * MIB, NULL).unwrap();
    check(&[small, d.default_pool()]);
    d.default_pool().free(q, NULL).unwrap();
    small.free(p, NULL).unwrap();
    free(kept).unwrap();
}

/// The device's unused memory is given back.
#[test]
fn emptying_the_cache_keeps_to_the_limits_of_pools() {
    apart(|| small_and_large(|d, _| d.empty_cache().unwrap()));
}

/// That of the large pool is.
#[test]
fn emptying_a_pools_cache_keeps_to_the_limits_of_others() {
    apart(|| small_and_large(|_, large| large.empty_cache().unwrap()));
}

/// A request that finds no segment large enough gives idle ones back.
#[test]
fn a_request_that_gives_segments_back_keeps_to_the_limits_of_pools() {
    apart(|| small_and_large(|d, _| assert!(d.default_pool().alloc(250 * MIB, NULL).is_err())));
}

/// The large pool's last graph goes.
#[test]
fn the_release_of_a_capture_keeps_to_the_limits_of_other_pools() {
    apart(|| {
        small_and_large(|d, large| {
            let capture = large.capture(d.stream()).unwrap();
            capture.release().unwrap();
        });
    });
}

/// A pool with a limit ends, and one with a smaller limit has a part of the same segment.
#[test]
fn the_end_of_a_pool_keeps_to_the_limits_of_others() {
    apart(|| {
        let d = large_segments(64 * MIB);
        let (small, large) = (d.pool(4 * MIB), d.pool(0));
        // Both are in one segment: the large pool takes it, the small one gets a part.
        let s = d.stream();
        let first = small.alloc(64 * KIB, s).unwrap();
        small.free(first, s).unwrap();
        small.empty_cache().unwrap();
        let most = large.alloc(48 * MIB, NULL).unwrap();
        let p = small.alloc(MIB, s).unwrap();
        check(&[small, large, d.default_pool()]);
        large.free(most, NULL).unwrap();
        large.destroy().unwrap();
        check(&[small, d.default_pool()]);
        d.default_pool().alloc(48 * MIB, NULL).map(|p| free(p).unwrap()).unwrap();
        check(&[small, d.default_pool()]);
        small.free(p, s).unwrap();
    });
}

/// A pool without blocks keeps no part of a segment that others use, once it is told to give unused memory back; and
/// whoever needs that part gets it.
#[test]
fn an_emptied_pool_keeps_no_part_of_a_segment() {
    apart(|| {
        let (d, first, second, q) = two_pools_in_a_segment();
        first.empty_cache().unwrap();
        assert_eq!(first.stats().reserved_bytes.current, 0);
        check(&[first, second, d.default_pool()]);
        let rest = second.alloc(48 * MIB, NULL).unwrap();
        second.free(rest, NULL).unwrap();
        let p = first.alloc(MIB, NULL).unwrap();
        first.empty_cache().unwrap();
        check(&[first, second, d.default_pool()]);
        first.free(p, NULL).unwrap();
        second.free(q, NULL).unwrap();
        d.empty_cache().unwrap();
        assert_eq!(d.stats().reserved_bytes.current, 0);
    });
}
