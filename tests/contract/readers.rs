//! What readers of memory cost those who allocate: walks, snapshots and statistics beside eight threads of requests.

use crate::apart::*;
use crate::api::*;
use millpond::capi::*;
use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const THREADS: usize = 8;

/// Threads that allocate and free, each on a stream of its own, while `read` runs: the longest pair of any, and how many
/// there were.
fn beside(d: Device, read: impl FnOnce()) -> (Duration, u64) {
    let pool = d.default_pool();
    let (stop, most, pairs) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let (stop, most, pairs) = (&stop, &most, &pairs);
            scope.spawn(move || {
                let s = d.stream();
                let size = [512, 20 * KIB, 300 * KIB][t % 3];
                pool.free(pool.alloc(size, s).unwrap(), s).unwrap();
                while !stop.load(Relaxed) {
                    let began = Instant::now();
                    pool.free(pool.alloc(size, s).unwrap(), s).unwrap();
                    most.fetch_max(began.elapsed().as_nanos() as u64, Relaxed);
                    pairs.fetch_add(1, Relaxed);
                    // Two processors have eight threads: one that has had its turn does not hold up the next.
                    std::thread::yield_now();
                }
            });
        }
        while pairs.load(Relaxed) < 1000 {
            std::thread::yield_now();
        }
        most.store(0, Relaxed);
        let before = pairs.load(Relaxed);
        read();
        pairs.fetch_sub(before, Relaxed);
        stop.store(true, Relaxed);
    });
    (Duration::from_nanos(most.load(Relaxed)), pairs.load(Relaxed))
}

/// The least of some tries: other programs use the machine, too, and only ever make one longer.
fn least(tries: usize, mut one: impl FnMut() -> Duration) -> Duration {
    (0..tries).map(|_| one()).min().unwrap()
}

unsafe extern "C-unwind" fn slowly(count: *mut c_void, _: *const millpond_block_record) -> bool {
    std::thread::sleep(Duration::from_millis(2));
    unsafe { *count.cast::<u32>() += 1 };
    true
}

unsafe extern "C-unwind" fn takes_slowly(count: *mut c_void, _: *const c_void, _: usize) -> bool {
    std::thread::sleep(Duration::from_millis(100));
    unsafe { *count.cast::<u32>() += 1 };
    true
}

/// A callback of a walk, and where a snapshot goes, may be as slow as they like: others only wait for the collecting.
#[test]
fn slow_readers_hold_up_nobody() {
    alone(120, || {
        let d = host(GIB, true);
        let s = d.stream();
        let kept: Vec<usize> = (0..300).map(|_| d.default_pool().alloc(600, s).unwrap()).collect();
        let mut count = 0u32;
        let user_data = (&raw mut count).cast::<c_void>();
        let longest = least(3, || {
            let (longest, pairs) = beside(d, || {
                let walk = unsafe {
                    millpond_device_walk_blocks(
                        ptr(d.0),
                        null(),
                        MILLPOND_BLOCK_LIVE,
                        Some(slowly),
                        user_data,
                    )
                };
                outcome(walk).unwrap();
            });
            assert!(pairs > 1000, "{pairs} pairs beside a walk of more than 0.6 s");
            longest
        });
        assert!(count >= 900 && longest < Duration::from_millis(200), "{count} blocks, {longest:?}");
        count = 0;
        let longest = least(3, || {
            beside(d, || {
                let sent = unsafe {
                    millpond_device_send_snapshot(
                        ptr(d.0),
                        MILLPOND_SNAPSHOT_JSON,
                        Some(takes_slowly),
                        user_data,
                    )
                };
                outcome(sent).unwrap();
            })
            .0
        });
        assert!(count >= 3 && longest < Duration::from_millis(90), "{count} pieces, {longest:?}");
        kept.into_iter().for_each(|p| d.default_pool().free(p, s).unwrap());
    });
}

/// Collecting 50 000 blocks takes 1 ms in a release build, and some twenty times as long in this one.
#[test]
fn collecting_blocks_holds_up_others_for_a_bounded_time() {
    alone(120, || {
        const BLOCKS: usize = 50_000;
        let d = host(GIB, true);
        let s = d.stream();
        let kept: Vec<usize> = (0..BLOCKS).map(|_| d.default_pool().alloc(512, s).unwrap()).collect();
        let file = CString::new("/dev/null").unwrap();
        let longest = least(5, || {
            beside(d, || {
                let mut count = 0;
                outcome(unsafe {
                    millpond_device_list_blocks(
                        ptr(d.0),
                        null(),
                        MILLPOND_BLOCK_ANY,
                        null_mut(),
                        size_of::<millpond_block_record>(),
                        0,
                        &mut count,
                    )
                })
                .unwrap();
                assert!(count >= BLOCKS);
                outcome(unsafe {
                    millpond_device_write_snapshot(ptr(d.0), MILLPOND_SNAPSHOT_JSON, file.as_ptr())
                })
                .unwrap();
            })
            .0
        });
        assert!(longest < Duration::from_millis(100), "{longest:?}");
        println!("longest pair beside walks and snapshots of {BLOCKS} blocks: {longest:?}");
        kept.into_iter().for_each(|p| d.default_pool().free(p, s).unwrap());
    });
}

/// Statistics that are read a thousand times a second hold up nobody for longer than a thread's turn, and leave most of
/// the processors' time to those who allocate.
#[test]
fn reading_statistics_holds_up_nobody() {
    alone(120, || {
        let d = host(GIB, true);
        let s = d.stream();
        let kept: Vec<usize> = (0..5000).map(|n| d.default_pool().alloc(512 + n, s).unwrap()).collect();
        const SPAN: Duration = Duration::from_millis(300);
        let (mut readings, mut best) = (0, 0.0f64);
        let longest = least(5, || {
            let (_, alone) = beside(d, || std::thread::sleep(SPAN));
            let (longest, pairs) = beside(d, || {
                let until = Instant::now() + SPAN;
                while Instant::now() < until {
                    let mut stats: millpond_memory_stats = unsafe { std::mem::zeroed() };
                    stats.struct_size = size_of_val(&stats);
                    outcome(unsafe { millpond_device_get_memory_stats(ptr(d.0), &mut stats) }).unwrap();
                    readings += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            best = best.max(pairs as f64 / alone as f64);
            longest
        });
        println!("longest pair beside {readings} readings: {longest:?}; {best:.2} of the pairs without");
        assert!(readings > 100 && longest < Duration::from_millis(100), "{readings} readings, {longest:?}");
        assert!(best > 0.25, "{best:.3} of the pairs without readings");
        kept.into_iter().for_each(|p| d.default_pool().free(p, s).unwrap());
    });
}
