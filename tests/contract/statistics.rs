//! Statistics in full: by PyTorch's names, exact with their peaks in each class of memory, whole under load, and as text
//! that others can read.

use crate::apart::*;
use crate::api::*;
use crate::held;
use millpond::Code;
use millpond::capi::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

#[path = "statistics/model.rs"]
mod model;
#[path = "statistics/names.rs"]
mod names;
#[path = "statistics/text.rs"]
pub mod text;

fn empty() -> millpond_memory_stats {
    let mut s: millpond_memory_stats = unsafe { std::mem::zeroed() };
    s.struct_size = size_of::<millpond_memory_stats>();
    s
}

/// The statistics of a device, or of a pool.
fn read(d: Device, pool: Option<Pool>) -> millpond_memory_stats {
    let mut s = empty();
    outcome(match pool {
        None => unsafe { millpond_device_get_memory_stats(ptr(d.0), &mut s) },
        Some(p) => unsafe { millpond_pool_get_memory_stats(ptr(p.0), &mut s) },
    })
    .unwrap();
    s
}

fn find(s: &millpond_memory_stats, name: &str) -> Outcome<u64> {
    let (name, mut value) = (CString::new(name).unwrap(), 0);
    outcome(unsafe { millpond_memory_stats_find(s, name.as_ptr(), &mut value) })?;
    Ok(value)
}

fn reset_accumulated(d: Device, pool: Option<Pool>) {
    outcome(match pool {
        None => unsafe { millpond_device_reset_accumulated(ptr(d.0)) },
        Some(p) => unsafe { millpond_pool_reset_accumulated(ptr(p.0)) },
    })
    .unwrap();
}

pub fn reset_peaks(d: Device, pool: Option<Pool>) {
    outcome(match pool {
        None => unsafe { millpond_device_reset_peaks(ptr(d.0)) },
        Some(p) => unsafe { millpond_pool_reset_peaks(ptr(p.0)) },
    })
    .unwrap();
}

/// Bytes of granules.
fn granules(n: usize) -> u64 {
    (n * 2 * MIB) as u64
}

// ---- whole under load ------------------------------------------------------------------------------------------

/// What does not fit together in one reading.
fn inconsistent(s: &millpond_memory_stats) -> Option<String> {
    let counted = [
        ("allocation", &s.allocation),
        ("active", &s.active),
        ("allocated_bytes", &s.allocated_bytes),
        ("active_bytes", &s.active_bytes),
        ("requested_bytes", &s.requested_bytes),
    ];
    for (name, q) in counted {
        let sum = |of: fn(&millpond_flow) -> u64| of(&q.large_pool) + of(&q.small_pool) == of(&q.all);
        if !sum(|f| f.current) || !sum(|f| f.allocated) || !sum(|f| f.freed) {
            return Some(format!("{name}: the classes are not all: {q:?}"));
        }
        if q.all.peak > q.large_pool.peak + q.small_pool.peak {
            return Some(format!("{name}: the peak of all is above those of the classes together: {q:?}"));
        }
    }
    let taken = [
        ("segment", &s.segment),
        ("reserved_bytes", &s.reserved_bytes),
        ("inactive_split", &s.inactive_split),
        ("inactive_split_bytes", &s.inactive_split_bytes),
    ];
    for (name, q) in taken {
        if q.large_pool.current + q.small_pool.current != q.all.current {
            return Some(format!("{name}: the classes are not all: {q:?}"));
        }
    }
    for (name, q) in counted.into_iter().chain(taken) {
        for f in [q.all, q.large_pool, q.small_pool] {
            if f.current > f.peak || f.allocated - f.freed != f.current {
                return Some(format!("{name}: {f:?}"));
            }
        }
    }
    let (live, active) = (&s.allocated_bytes.all, &s.active_bytes.all);
    (live.current > active.current || live.peak > active.peak).then(|| format!("{live:?} above {active:?}"))
}

fn under_load(mapping: bool) {
    const THREADS: usize = 8;
    let d = host(512 * MIB, mapping);
    let pools = [d.default_pool(), d.pool(0)];
    let (stop, made) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 2]);
    let mut wrong = None;
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let (stop, made) = (&stop, &made);
            s.spawn(move || {
                let stream = d.stream();
                let (mut live, mut n) = (Vec::new(), t);
                while !stop.load(Relaxed) {
                    n = n.wrapping_mul(0x9E37_79B1).wrapping_add(77);
                    let large = n >> 9 & 1;
                    let bytes = [1 + (n >> 12 & 0xefff), 70_000 + (n >> 12 & 0xf_ffff)][large];
                    live.push((pools[n >> 10 & 1].alloc(bytes, stream).unwrap(), pools[n >> 10 & 1]));
                    made[large].fetch_add(1, Relaxed);
                    if live.len() > 20 {
                        let (at, pool) = live.swap_remove(n >> 20 & 15);
                        pool.free(at, stream).unwrap();
                    }
                }
                live.into_iter().for_each(|(at, pool)| pool.free(at, stream).unwrap());
            });
        }
        let loaded = || made.iter().all(|n| n.load(Relaxed) > 5000);
        for n in 0.. {
            if n > 1500 && loaded() {
                break;
            }
            let seen = read(d, [None, Some(pools[0]), Some(pools[1])][n % 3]);
            wrong = inconsistent(&seen);
            if wrong.is_some() {
                break;
            }
        }
        stop.store(true, Relaxed);
    });
    assert_eq!(wrong, None);
    let s = read(d, None);
    assert_eq!((s.allocation.all.current, s.active_bytes.all.current), (0, 0));
    let [small, large] = made.map(|n| n.load(Relaxed));
    assert!(small > 1000 && large > 1000, "a load: {small}, {large}");
    assert_eq!((s.allocation.small_pool.allocated, s.allocation.large_pool.allocated), (small, large));
}

#[test]
fn every_reading_under_load_fits_together() {
    apart_for(180, || under_load(true));
}

#[test]
fn every_reading_under_load_fits_together_in_segments() {
    apart_for(180, || under_load(false));
}

// ---- how free memory lies --------------------------------------------------------------------------------------

/// Holes of 3 MiB between blocks of 5; the largest request of each pool is had as it is told, and not much more.
fn largest_is_true(d: Device, pool: Pool, label: &str) {
    let s = d.stream();
    let all: Vec<usize> =
        (0..40).map(|n| pool.alloc(if n % 2 == 0 { 3 * MIB } else { 5 * MIB }, s).unwrap()).collect();
    for at in all.iter().step_by(2) {
        pool.free(*at, s).unwrap();
    }
    let told = read(d, Some(pool));
    assert!(told.largest_cached_bytes <= told.largest_free_bytes, "{label}");
    let more = told.largest_free_bytes as usize + 4 * MIB;
    assert_eq!(code(pool.alloc(more, s)), MILLPOND_E_OUT_OF_MEMORY, "{label}");
    let told = read(d, Some(pool)); // the search may have given something back
    let (cached, most) = (told.largest_cached_bytes as usize, told.largest_free_bytes as usize);
    // Of what is there already: nothing comes from the device.
    let reserved = d.stats().reserved_bytes.current;
    let at = pool.alloc(cached, s).unwrap_or_else(|e| panic!("{label}: cached {cached}: {}", e.message));
    assert_eq!(d.stats().reserved_bytes.current, reserved, "{label}: {cached} bytes are there");
    pool.free(at, s).unwrap();
    let at = pool.alloc(most, s).unwrap_or_else(|e| panic!("{label}: {most}: {}", e.message));
    pool.free(at, s).unwrap();
    for at in all.iter().skip(1).step_by(2) {
        pool.free(*at, s).unwrap();
    }
}

#[test]
fn the_largest_request_that_is_told_can_be_had_and_not_much_more() {
    apart(|| {
        for (mapping, options) in [(true, ""), (false, ""), (true, "scatter:off")] {
            let d = host(256 * MIB, mapping);
            if !options.is_empty() {
                d.set_options(options).unwrap();
            }
            let told = (read(d, None), read(d, Some(d.default_pool())));
            assert_eq!(told.0.largest_free_bytes, told.1.largest_free_bytes);
            largest_is_true(d, d.default_pool(), &format!("mapping {mapping}, {options}"));
        }
        let d = host(256 * MIB, true);
        largest_is_true(d, d.contiguous_pool(), "a contiguous pool");
    });
}

/// Free granules that another stream, or another pool, has: in one piece only as they lie there.
#[test]
fn what_others_have_serves_in_one_piece_as_it_lies() {
    apart(|| {
        for options in ["", "scatter:off"] {
            let d = host(64 * MIB, true);
            if !options.is_empty() {
                d.set_options(options).unwrap();
            }
            let (pool, s, other, t) = (d.pool(0), d.stream(), d.pool(0), d.stream());
            let all: Vec<usize> = (0..32).map(|_| pool.alloc(2 * MIB, s).unwrap()).collect();
            // One run of 3 granules, and 9 that lie apart.
            let go: Vec<usize> = (0..3).chain((10..28).step_by(2)).collect();
            go.iter().for_each(|&n| pool.free(all[n], s).unwrap());
            let told = read(d, Some(other));
            let cached = if options.is_empty() { granules(12) } else { granules(3) };
            assert_eq!(told.largest_cached_bytes, cached, "{options}");
            let at = other.alloc(told.largest_cached_bytes as usize, t).unwrap();
            other.free(at, t).unwrap();
        }
        let d = host(64 * MIB, true);
        let (pool, s, own) = (d.pool(0), d.stream(), d.contiguous_pool());
        let at = pool.alloc(16 * MIB, s).unwrap();
        pool.free(at, s).unwrap();
        assert_eq!(read(d, Some(own)).largest_cached_bytes, 0, "what others have lies in other allocations");
    });
}

#[test]
fn a_limit_bounds_the_largest_request() {
    apart(|| {
        for mapping in [true, false] {
            let d = host(256 * MIB, mapping);
            let (pool, s) = (d.pool(20 * MIB), d.stream());
            let at = pool.alloc(4 * MIB, s).unwrap();
            let told = read(d, Some(pool)).largest_free_bytes as usize;
            assert!((12 * MIB..=16 * MIB).contains(&told), "{mapping}: {told}");
            let rest = pool.alloc(told, s).unwrap();
            pool.free(rest, s).unwrap();
            pool.free(at, s).unwrap();
        }
    });
}

#[test]
fn free_memory_beside_blocks_is_inactive_and_whole_granules_are_releasable() {
    apart(|| {
        let d = host(256 * MIB, true);
        let (pool, s) = (d.default_pool(), d.stream());
        let big = pool.alloc(8 * MIB, s).unwrap();
        let half = pool.alloc(MIB, s).unwrap();
        let told = read(d, None);
        assert_eq!(told.inactive_split_bytes.large_pool.current, MIB as u64);
        assert_eq!((told.inactive_split.large_pool.current, told.releasable_bytes), (1, 0));
        pool.free(big, s).unwrap();
        let told = read(d, None);
        assert_eq!((told.releasable_bytes, told.free_bytes), (8 * MIB as u64, 9 * MIB as u64));
        assert_eq!(told.largest_cached_bytes, 8 * MIB as u64, "four granules");
        let small = pool.alloc(512, s).unwrap();
        let told = read(d, None);
        // One granule is a chunk now.
        assert_eq!(told.reserved_bytes.small_pool.current, granules(1));
        assert_eq!(told.segment.small_pool.current, 1);
        assert_eq!(told.inactive_split_bytes.small_pool.current, granules(1) - 512);
        assert_eq!(told.inactive_split.small_pool.current, 1);
        pool.free(small, s).unwrap();
        d.empty_cache().unwrap();
        let told = read(d, None);
        assert_eq!(told.reserved_bytes.small_pool.current, 0);
        assert_eq!(told.reserved_bytes.small_pool.peak, granules(1));
        assert_eq!(told.reserved_bytes.all.current, granules(1));
        assert_eq!(told.inactive_split.small_pool.peak, 1, "that a reading has seen");
        pool.free(half, s).unwrap();
    });
}

#[test]
fn memory_that_sleeps_is_reserved_in_no_class() {
    apart(|| {
        let d = host(256 * MIB, true);
        let (pool, s) = (d.pool(0), d.stream());
        let blocks =
            [pool.alloc(100, s).unwrap(), pool.alloc(30 * KIB, s).unwrap(), pool.alloc(5 * MIB, s).unwrap()];
        let before = read(d, None).reserved_bytes;
        assert_eq!(before.small_pool.current, granules(2));
        d.synchronize().unwrap();
        pool.sleep(false).unwrap();
        let asleep = read(d, None);
        assert_eq!((asleep.reserved_bytes.all.current, asleep.reserved_bytes.small_pool.current), (0, 0));
        assert_eq!(asleep.reserved_bytes.large_pool.current, 0);
        assert_eq!(inconsistent(&asleep), None);
        pool.wake().unwrap();
        let after = read(d, None).reserved_bytes;
        assert_eq!(after.all.current, before.all.current);
        assert_eq!(after.small_pool.current, before.small_pool.current);
        assert_eq!(after.large_pool.peak, before.large_pool.peak, "sleeping is no peak");
        blocks.into_iter().for_each(|at| pool.free(at, s).unwrap());
    });
}

// ---- events ----------------------------------------------------------------------------------------------------

#[test]
fn refusals_waits_and_calls_are_counted_where_they_happen() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (own, s) = (d.pool(4 * MIB), d.stream());
        let told = read(d, None);
        assert_eq!((told.num_device_alloc, told.num_alloc_retries, told.num_ooms), (0, 0, 0));
        let at = own.alloc(3 * MIB, s).unwrap();
        let told = read(d, None);
        assert!(told.num_device_alloc > 0);
        assert_eq!((told.num_device_free, told.num_alloc_retries), (0, 0));
        code(own.alloc(3 * MIB, s));
        for told in [read(d, None), read(d, Some(own))] {
            assert_eq!(told.num_ooms, 1);
            assert!(told.num_alloc_retries >= 1);
        }
        assert_eq!(read(d, Some(d.default_pool())).num_alloc_retries, 0);
        own.free(at, s).unwrap();
        d.empty_cache().unwrap();
        let told = read(d, None);
        assert!(told.num_device_free > 0 && told.num_sync_all_streams > 0);
        assert_eq!(told.num_device_alloc + told.num_device_free, d.stats().driver_calls);
        d.set_options("throw_on_cudamalloc_oom:true").unwrap();
        assert_eq!(read(d, None).num_oom_rejections, 0);
        let mut all = Vec::new();
        while let Ok(at) = d.default_pool().alloc(6 * MIB, s) {
            all.push(at);
        }
        all.into_iter().for_each(|at| d.default_pool().free(at, s).unwrap());
        reset_accumulated(d, None);
        let told = read(d, None);
        assert_eq!((told.num_ooms, told.num_alloc_retries, told.num_device_alloc), (0, 0, 0));
        assert_eq!(d.stats().out_of_memory_count, 2, "the account goes on");
    });
}

/// Calls that the device refuses are calls of the account, and bring nothing, pooled or not.
#[test]
fn calls_that_fail_bring_nothing() {
    apart(|| {
        for (options, call) in [
            ("", "granules_create"),
            ("", "map"),
            ("expandable_segments:false", "alloc"),
            ("backend:none", "alloc"),
        ] {
            let (d, control) = held::host_with(64 * MIB, options.is_empty(), options);
            let (pool, s) = (d.default_pool(), d.stream());
            control.fail_all(call, Code::OutOfMemory);
            code(pool.alloc(3 * MIB, s));
            control.mend();
            let (told, calls) = (read(d, None), d.stats().driver_calls);
            let brought = told.num_device_alloc;
            assert_eq!(brought, told.num_device_free, "{options} {call}");
            assert_eq!(brought != 0, call == "map", "{options} {call}: what is created is given back");
            assert!(calls > 2 * brought, "{options} {call}: {calls}");
            let at = pool.alloc(3 * MIB, s).unwrap();
            assert!(read(d, None).num_device_alloc > brought);
            pool.free(at, s).unwrap();
        }
    });
}

#[test]
fn oversize_blocks_and_segments_are_counted_while_they_live() {
    apart(|| {
        let d = host(512 * MIB, false);
        let (pool, s) = (d.default_pool(), d.stream());
        assert_eq!(read(d, None).max_split_size, u64::MAX);
        d.set_options("max_split_size_mb:32").unwrap();
        let blocks =
            [pool.alloc(40 * MIB, s).unwrap(), pool.alloc(33 * MIB, s).unwrap(), pool.alloc(MIB, s).unwrap()];
        let told = read(d, None);
        assert_eq!(told.max_split_size, 32 << 20);
        assert_eq!((told.oversize_allocations.current, told.oversize_allocations.peak), (2, 2));
        assert!(told.oversize_segments.current >= 1);
        // A change of the option does not change what is counted already.
        d.set_options("max_split_size_mb:100").unwrap();
        pool.free(blocks[0], s).unwrap();
        assert_eq!(read(d, None).oversize_allocations.current, 1);
        pool.free(blocks[1], s).unwrap();
        pool.free(blocks[2], s).unwrap();
        d.empty_cache().unwrap();
        let told = read(d, Some(pool));
        let want = millpond_flow { current: 0, peak: 2, allocated: 2, freed: 2 };
        assert_eq!(told.oversize_allocations, want);
        assert_eq!(told.oversize_segments.current, 0);
        reset_peaks(d, Some(pool));
        assert_eq!(read(d, Some(pool)).oversize_allocations.peak, 0);
    });
}

// ---- streams ---------------------------------------------------------------------------------------------------

/// What each stream has, `room` of them at most, and how many there are.
fn list_streams(d: Device, pool: Option<Pool>, room: usize) -> (Vec<millpond_stream_stats>, usize) {
    let pool = pool.map_or(null(), |p| ptr::<millpond_pool>(p.0).cast_const());
    let mut all: Vec<millpond_stream_stats> = Vec::with_capacity(room.max(1));
    let (mut count, size) = (0, size_of::<millpond_stream_stats>());
    let to = all.as_mut_ptr();
    outcome(unsafe { millpond_device_list_stream_stats(ptr(d.0), pool, to, size, room, &mut count) })
        .unwrap();
    unsafe { all.set_len(count.min(room)) };
    (all, count)
}

#[test]
fn each_stream_is_told_what_it_has() {
    apart(|| {
        let d = host(256 * MIB, true);
        let (pool, s, t) = (d.pool(0), d.stream(), d.stream());
        let gate = d.gate(t);
        let a = pool.alloc(MIB, s).unwrap();
        let b = pool.alloc(1000, t).unwrap();
        let c = pool.alloc(3 * MIB, s).unwrap();
        record_stream(c, t).unwrap();
        pool.free(c, s).unwrap();
        let other = d.default_pool().alloc(500, s).unwrap();
        assert_eq!(list_streams(d, None, 0).1, 2);
        let (all, count) = list_streams(d, Some(pool), 10);
        assert_eq!(count, 2);
        let of = |stream: Stream| *all.iter().find(|r| r.stream.addr() == stream.0).unwrap();
        assert_eq!((of(s).block_count, of(s).requested_bytes, of(s).waiting_count), (1, MIB as u64, 1));
        assert_eq!((of(t).block_count, of(t).requested_bytes, of(t).has_stream), (1, 1000, 1));
        assert_eq!(of(s).waiting_bytes, 3 * MIB as u64);
        gate.open();
        for (at, on) in [(a, s), (b, t)] {
            pool.free(at, on).unwrap();
        }
        d.default_pool().free(other, s).unwrap();
    });
}

// ---- pinned memory ---------------------------------------------------------------------------------------------

fn host_stats(d: Device) -> millpond_host_memory_stats {
    let mut s: millpond_host_memory_stats = unsafe { std::mem::zeroed() };
    s.struct_size = size_of::<millpond_host_memory_stats>();
    outcome(unsafe { millpond_device_get_host_memory_stats(ptr(d.0), &mut s) }).unwrap();
    s
}

#[test]
fn pinned_memory_is_counted_by_piece_and_by_use() {
    apart(|| {
        let d = host(64 * MIB, true);
        let take = |bytes: usize| {
            let mut at = null_mut();
            outcome(unsafe { millpond_host_alloc(ptr(d.0), bytes, &mut at) }).unwrap();
            at
        };
        let (big, one, two) = (take(3 * MIB), take(100), take(100));
        let s = host_stats(d);
        assert_eq!((s.active_requests.current, s.allocations.current), (3, 2), "small ones share a slab");
        assert_eq!((s.num_host_alloc, s.host_alloc_time.count, s.num_host_free), (2, 2, 0));
        assert!(
            s.host_alloc_time.min <= s.host_alloc_time.avg && s.host_alloc_time.avg <= s.host_alloc_time.max
        );
        for at in [big, one, two] {
            outcome(unsafe { millpond_host_free(ptr(d.0), at) }).unwrap();
        }
        let s = host_stats(d);
        assert_eq!((s.active_requests.current, s.active_bytes.current), (0, 0));
        assert_eq!((s.active_requests.peak, s.allocations.current), (3, 2));
        assert_eq!(s.cached_bytes, s.allocated_bytes.current);
        outcome(unsafe { millpond_device_empty_host_cache(ptr(d.0)) }).unwrap();
        let s = host_stats(d);
        assert_eq!((s.allocations.current, s.num_host_free, s.host_free_time.count), (0, 2, 2));
        outcome(unsafe { millpond_device_reset_host_accumulated(ptr(d.0)) }).unwrap();
        let s = host_stats(d);
        assert_eq!((s.allocations.allocated, s.num_host_alloc, s.host_alloc_time.count), (0, 0, 0));
        assert_eq!(s.allocations.peak, 2);
    });
}
