//! The account is exact: each request that fails for lack of memory is counted once for the device and once for its
//! pool, whatever was missing; totals never restart from 0; and no request succeeds without memory.

use crate::apart::*;
use crate::api::*;
use crate::counted::Counted;
use crate::held::{self, victim};
use millpond::Code;
use millpond::capi::*;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const CAPACITY: usize = 64 * MIB;

// ---- requests that failed --------------------------------------------------------------------------------------

/// How often requests have failed, as the device and these pools tell.
fn failures(d: Device, pools: &[Pool]) -> (u64, Vec<u64>) {
    (d.stats().out_of_memory_count, pools.iter().map(|p| p.stats().out_of_memory_count).collect())
}

/// A request to the first of the pools fails for lack of memory: it is counted once, for that pool and the device.
#[track_caller]
fn counted_once(d: Device, pools: &[Pool], what: &str, request: impl FnOnce() -> Outcome<usize>) {
    let before = failures(d, pools);
    let answer = request();
    assert_eq!(code(answer), MILLPOND_E_OUT_OF_MEMORY, "{what}");
    let after = failures(d, pools);
    let of_pools: Vec<u64> = after.1.iter().zip(&before.1).map(|(a, b)| a - b).collect();
    let want: Vec<u64> = (0..pools.len()).map(|n| u64::from(n == 0)).collect();
    assert_eq!((after.0 - before.0, of_pools), (1, want), "{what}: of the device, of the pools");
}

/// Every way to fail that a device has, for requests with and without a stream.
fn every_way_to_fail(d: Device) {
    let (s, pool, default) = (d.stream(), d.pool(0), d.default_pool());
    let both = |what: &str| {
        counted_once(d, &[pool, default], &format!("{what}, of a pool"), || pool.alloc(CAPACITY / 2, s));
        counted_once(d, &[default, pool], &format!("{what}, without a stream"), || d.alloc(CAPACITY / 2));
    };
    for bytes in [CAPACITY + 1, CAPACITY * 1000, usize::MAX / 2, usize::MAX] {
        counted_once(d, &[pool, default], &format!("{bytes} bytes"), || pool.alloc(bytes, s));
        counted_once(d, &[default, pool], &format!("{bytes} bytes"), || d.alloc(bytes));
    }
    pool.set_limit(2 * MIB).unwrap();
    counted_once(d, &[pool, default], "the pool's limit", || pool.alloc(8 * MIB, s));
    counted_once(d, &[pool, default], "the pool's limit, small", || {
        let mut all = Vec::new();
        let last = loop {
            match pool.alloc(32 * KIB, s) {
                Ok(p) => all.push(p),
                Err(e) => break Err(e),
            }
        };
        all.into_iter().for_each(|p| pool.free(p, s).unwrap());
        last
    });
    pool.set_limit(0).unwrap();
    pool.empty_cache().unwrap();
    d.set_limit(4 * MIB).unwrap();
    both("the device's limit");
    d.set_limit(0).unwrap();
    let most = default.alloc(CAPACITY / 2 + 4 * MIB, NULL).unwrap();
    both("the device is full");
    default.free(most, NULL).unwrap();
    d.empty_cache().unwrap();

    // What fails for another reason is not counted.
    let before = failures(d, &[pool, default]);
    assert!(pool.alloc(512, Stream(0xdead0)).is_err() || d.stats().blocks.current == 1);
    assert_eq!(failures(d, &[pool, default]), before);
}

/// A device that maps.
#[test]
fn failed_requests_are_counted_once() {
    apart(|| every_way_to_fail(host(CAPACITY, true)));
}

/// A device that gives segments.
#[test]
fn failed_requests_in_segments_are_counted_once() {
    apart(|| every_way_to_fail(host(CAPACITY, false)));
}

/// A device that is not pooled.
#[test]
fn failed_requests_without_pooling_are_counted_once() {
    apart(|| every_way_to_fail(Counted { min_chunk: 1536, ..Counted::mapped(CAPACITY) }.open()));
}

/// The device has memory, and its calls fail.
#[test]
fn requests_that_the_device_refuses_are_counted_once() {
    apart(|| {
        for (mapping, names) in [(true, &["granules_create", "map"][..]), (false, &["alloc"])] {
            for name in names {
                let (d, control) = held::host(CAPACITY, mapping);
                let (s, pool, default) = (d.stream(), d.pool(0), d.default_pool());
                control.fail_all(name, Code::OutOfMemory);
                counted_once(d, &[pool, default], name, || pool.alloc(8 * MIB, s));
                counted_once(d, &[pool, default], name, || pool.alloc(512, s));
                counted_once(d, &[default, pool], name, || d.alloc(8 * MIB));
                control.mend();
            }
        }
    });
}

/// A request of a stream that is captured is one of the capture's pool.
#[test]
fn failed_requests_of_a_captured_stream_are_counted_for_its_pool() {
    apart(|| {
        let d = host(CAPACITY, true);
        let (s, pool, default) = (d.stream(), d.pool(16 * MIB), d.default_pool());
        let capture = pool.capture(s).unwrap();
        counted_once(d, &[pool, default], "the limit", || default.alloc(20 * MIB, s));
        counted_once(d, &[pool, default], "too large", || default.alloc(CAPACITY + 1, s));
        capture.release().unwrap();
    });
}

/// The failures of a pool that has ended stay counted for the device.
#[test]
fn failures_of_an_ended_pool_stay_counted() {
    apart(|| {
        let d = host(CAPACITY, true);
        let pool = d.pool(2 * MIB);
        counted_once(d, &[pool, d.default_pool()], "the limit", || pool.alloc(8 * MIB, NULL));
        pool.destroy().unwrap();
        assert_eq!(d.stats().out_of_memory_count, 1);
        assert_eq!(d.pool(0).stats().out_of_memory_count, 0, "a new pool starts from 0");
    });
}

/// What an out-of-memory callback does: frees a block, or nothing; and what it says.
struct Rescuer {
    block: AtomicU64,
    says: bool,
}

unsafe extern "C-unwind" fn rescue(data: *mut c_void, _: u64) -> bool {
    let r = unsafe { &*data.cast::<Rescuer>() };
    match r.block.swap(0, Relaxed) {
        0 => {}
        p => free(p as usize).unwrap(),
    }
    r.says
}

fn with_rescuer(d: Device, r: &Rescuer, body: impl FnOnce()) {
    let mut id = 0;
    let data = std::ptr::from_ref(r).cast_mut().cast();
    outcome(unsafe { millpond_device_add_oom_callback(ptr(d.0), Some(rescue), data, &mut id) }).unwrap();
    body();
    outcome(unsafe { millpond_device_remove_oom_callback(ptr(d.0), id) }).unwrap();
}

/// A request that a callback has rescued has not failed.
#[test]
fn a_request_that_a_callback_has_rescued_is_not_counted() {
    apart(|| {
        for (mapping, ordered) in [(true, true), (true, false), (false, true), (false, false)] {
            let d = host(CAPACITY, mapping);
            let (s, pool) = (d.stream(), d.default_pool());
            let cache = pool.alloc(CAPACITY, s).unwrap();
            let r = Rescuer { block: AtomicU64::new(cache as u64), says: true };
            with_rescuer(d, &r, || {
                let p = if ordered { pool.alloc(CAPACITY / 2, s) } else { d.alloc(CAPACITY / 2) };
                assert_eq!(r.block.load(Relaxed), 0, "the callback has run");
                free(p.unwrap()).unwrap();
            });
            assert_eq!(failures(d, &[pool]), (0, vec![0]), "mapping {mapping}, with a stream {ordered}");
        }
    });
}

/// One that a callback could not rescue has failed once, though it was tried twice.
#[test]
fn a_request_that_a_callback_could_not_rescue_is_counted_once() {
    apart(|| {
        let d = host(CAPACITY, true);
        let (s, pool, other) = (d.stream(), d.default_pool(), d.pool(0));
        other.alloc(CAPACITY, s).unwrap();
        for says in [true, false] {
            let r = Rescuer { block: AtomicU64::new(0), says };
            with_rescuer(d, &r, || {
                counted_once(d, &[pool, other], "of a stream", || pool.alloc(CAPACITY / 2, s));
                counted_once(d, &[pool, other], "without a stream", || d.alloc(CAPACITY / 2));
            });
        }
    });
}

// ---- sums of all that was ever allocated -----------------------------------------------------------------------

/// Large blocks, one after the other, until the sums are beyond what 64 bits hold: they stay at the most then.
fn sums_do_not_begin_again(d: Device, bytes: usize, goes_back: bool) {
    let pool = d.default_pool();
    let rounds = ((1u128 << 64) / bytes as u128) as u64 * 5 / 4;
    let mut last = 0;
    for round in 1..=rounds {
        let p = pool.alloc(bytes, NULL).unwrap();
        if round % 8192 == 0 || round == rounds {
            let want = (u128::from(round) * bytes as u128).min(u64::MAX.into()) as u64;
            for s in [d.stats(), pool.stats()] {
                let (r, a, v, b) = (s.requested_bytes, s.allocated_bytes, s.active_bytes, s.blocks);
                assert_eq!([r.total, a.total, v.total, b.total], [want, want, want, round], "round {round}");
                assert_eq!(
                    [r.current, a.current, v.current, b.current],
                    [bytes as u64, bytes as u64, bytes as u64, 1]
                );
                assert_eq!([r.peak, a.peak, v.peak, b.peak], [bytes as u64, bytes as u64, bytes as u64, 1]);
                assert!(s.reserved_bytes.total >= last);
                last = s.reserved_bytes.total;
            }
        }
        pool.free(p, NULL).unwrap();
    }
    let want = if goes_back { u64::MAX } else { bytes as u64 };
    assert_eq!(d.stats().reserved_bytes.total, want);
}

/// Blocks of 8 TiB.
#[test]
fn sums_of_very_large_blocks_do_not_begin_again() {
    apart_for(300, || sums_do_not_begin_again(Counted::mapped(8 * TIB).open(), 8 * TIB, false));
}

/// A device that is not pooled.
#[test]
fn sums_of_very_large_blocks_without_pooling_do_not_begin_again() {
    apart_for(300, || {
        let how = Counted { min_chunk: 1536, ..Counted::mapped(24 * TIB) };
        sums_do_not_begin_again(how.open(), 24 * TIB, true);
    });
}

/// What ended pools have had stays in the device's sum, and that stays at the most, too.
#[test]
fn sums_of_ended_pools_do_not_begin_again() {
    apart_for(300, || {
        let d = Counted::mapped(16 * TIB).open();
        let mut last = 0;
        for _ in 0..3 {
            let pool = d.pool(0);
            // Each pool for itself stays below what the library's own counters hold, 2^63 bytes.
            for _ in 0..425_000 {
                let p = pool.alloc(16 * TIB, NULL).unwrap();
                pool.free(p, NULL).unwrap();
            }
            pool.destroy().unwrap();
            let total = d.stats().allocated_bytes.total;
            assert!(total >= last, "{last}, then {total}");
            last = total;
        }
        assert_eq!(last, u64::MAX);
    });
}

// ---- the end of the library ------------------------------------------------------------------------------------

/// A request stands where it looks for its stream while the library ends. Neither it nor a later one with the same
/// handles is a success without memory.
#[test]
fn a_request_beside_the_end_of_the_library_is_no_success_without_memory() {
    apart(|| {
        let (d, control) = held::over(Counted::mapped(CAPACITY).kind());
        let (pool, s) = (d.default_pool(), d.stream());
        let state = millpond::runtime::device(held::NAME, 0).unwrap();
        let (warm, is_warm) = channel();
        let (go, may_go) = channel::<()>();
        let worker = victim(move || {
            // The thread has the heap for itself, and leaves a block; its granule has room for more.
            for _ in 0..1000 {
                pool.free(pool.alloc(64 * KIB, s).unwrap(), s).unwrap();
            }
            pool.alloc(64 * KIB, s).unwrap();
            warm.send(()).unwrap();
            may_go.recv().unwrap();
            let first = pool.alloc(64 * KIB, s);
            // A reader of statistics that goes on for a while, as a monitor does.
            (0..100_000).for_each(|_| _ = state.memory().stats());
            let later: Vec<_> = (0..3).map(|_| pool.alloc(64 * KIB, s)).collect();
            (first, later)
        });
        is_warm.recv().unwrap();
        // The next request of the stream looks the stream up.
        d.pool(0).capture(s).unwrap().release().unwrap();
        let looking = control.hold_before("stream_exists", 1);
        go.send(()).unwrap();
        looking.reached();
        let end = std::thread::spawn(|| outcome(millpond_finalize()));
        soon(LATE, || end.is_finished());
        looking.let_go();
        let (first, later) = worker.join().unwrap();
        within(10, "the end of the library", move || end.join().unwrap()).unwrap();
        assert!(!matches!(first, Ok(0)), "a success without memory");
        for answer in later {
            assert_eq!(code(answer), MILLPOND_E_NOT_INITIALIZED);
        }
    });
}

/// Threads ask for memory as fast as they can while the library ends and starts again.
#[test]
fn requests_beside_many_ends_of_the_library_are_no_successes_without_memory() {
    apart(|| {
        let (stop, wrong, served) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let all = Arc::new((stop, wrong, served));
        let ends = Instant::now() + lasting(Duration::from_secs(4));
        let workers: Vec<_> = (0..6)
            .map(|n| {
                let all = all.clone();
                std::thread::spawn(move || {
                    let (stop, wrong, served) = &*all;
                    while !stop.load(Relaxed) {
                        let Ok(d) = Device::get("host", 0) else { continue };
                        let Ok(s) = d.try_stream() else { continue };
                        let mut pool = std::ptr::null_mut();
                        let got = unsafe { millpond_device_get_default_pool(ptr(d.0), &mut pool) };
                        if got != C_Status::SUCCESS {
                            continue;
                        }
                        let pool = Pool(pool.expose_provenance());
                        for i in 0..20_000 {
                            match pool.alloc([512, 5000, 70_000, 600][(i + n) % 4], s) {
                                Ok(0) => _ = wrong.fetch_add(1, Relaxed),
                                Ok(p) if i % 64 != 0 => _ = pool.free(p, s), // some stay
                                Ok(_) => {}
                                Err(_) => break,
                            }
                            served.fetch_add(1, Relaxed);
                        }
                    }
                })
            })
            .collect();
        while Instant::now() < ends && all.1.load(Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(3));
            let _ = millpond_finalize();
        }
        all.0.store(true, Relaxed);
        workers.into_iter().for_each(|w| w.join().unwrap());
        let (wrong, served) = (all.1.load(Relaxed), all.2.load(Relaxed));
        assert!(served > 1000, "the test is about requests that are served");
        assert_eq!(wrong, 0, "successes without memory, of {served}");
    });
}
