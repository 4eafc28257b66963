//! A thread that allocates on a stream again and again does so by a short way, which looks nothing up. Whatever changes
//! what such a request means, or wants to see each of them, closes that way: at once, and whichever thread does it.

use crate::apart::*;
use crate::api::*;
use crate::held;
use millpond::capi::*;
use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{TryRecvError, channel};

const SIZES: [usize; 3] = [1000, 50_000, 5 * MIB];

/// Warms the short way of the calling thread up: it owns the memory of the stream, and blocks of these sizes wait.
fn warm(pool: Pool, s: Stream) {
    for _ in 0..100 {
        for bytes in SIZES {
            let p = pool.alloc(bytes, s).unwrap();
            pool.free(p, s).unwrap();
        }
    }
}

/// What changes is changed by the thread that has the way, or by another one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Itself,
    Another,
}

impl By {
    fn does<T: Send>(self, change: impl FnOnce() -> T + Send) -> T {
        match self {
            By::Itself => change(),
            By::Another => std::thread::scope(|s| s.spawn(change).join().unwrap()),
        }
    }
}

/// A device with a history, beside which there is a short way of its own.
fn watched(mapping: bool) -> Device {
    let d = host(256 * MIB, mapping);
    outcome(unsafe { millpond_device_history_start(ptr(d.0), null()) }).unwrap();
    d
}

/// Runs the case for each, on memory that maps and in segments, with a history and without one.
fn each(case: impl Fn(Device, By)) {
    each_unwatched(&case);
    for mapping in [true, false] {
        [By::Itself, By::Another].into_iter().for_each(|by| case(watched(mapping), by));
    }
}

/// The same for what begins a history itself.
fn each_unwatched(case: impl Fn(Device, By)) {
    for mapping in [true, false] {
        [By::Itself, By::Another].into_iter().for_each(|by| case(host(256 * MIB, mapping), by));
    }
}

/// The same as `each` where only memory that maps can do it.
fn each_mapping(case: impl Fn(Device, By)) {
    for by in [By::Itself, By::Another] {
        case(host(256 * MIB, true), by);
        case(watched(true), by);
    }
}

/// What a walk tells of a live block.
#[track_caller]
fn record(d: Device, at: usize) -> millpond_block_record {
    const SIZE: usize = size_of::<millpond_block_record>();
    let mut all: Vec<millpond_block_record> = Vec::with_capacity(64);
    let (to, mut count) = (all.as_mut_ptr(), 0);
    let live = MILLPOND_BLOCK_LIVE;
    outcome(unsafe { millpond_device_list_blocks(ptr(d.0), null(), live, to, SIZE, 64, &mut count) })
        .unwrap();
    unsafe { all.set_len(count) };
    *all.iter().find(|r| r.ptr.expose_provenance() == at).expect("a live block")
}

/// Each size comes from this pool, and goes again.
#[track_caller]
fn come_from(d: Device, asked: Pool, s: Stream, want: Pool) {
    for bytes in SIZES {
        let p = asked.alloc(bytes, s).unwrap();
        assert_eq!(record(d, p).pool.expose_provenance(), want.0, "{bytes} bytes");
        asked.free(p, s).unwrap();
    }
}

/// Each size is refused with this code.
#[track_caller]
fn refused(pool: Pool, s: Stream, want: u32) {
    for bytes in SIZES {
        assert_eq!(code(pool.alloc(bytes, s)), want, "{bytes} bytes");
    }
}

#[test]
fn a_capture_takes_the_requests_of_its_stream() {
    apart(|| {
        each(|d, by| {
            let (s, of_graph) = (d.stream(), d.pool(0));
            let pool = d.default_pool();
            warm(pool, s);
            let c = by.does(|| of_graph.capture(s)).unwrap();
            come_from(d, pool, s, of_graph);
            by.does(|| c.end()).unwrap();
            come_from(d, pool, s, pool);
            by.does(|| c.release()).unwrap();
            come_from(d, pool, s, pool);
        });
    });
}

/// A pool whose captures were released gives nothing that a replay may still use, also to requests without a stream.
#[test]
fn memory_of_a_graph_that_may_run_serves_nobody() {
    apart(|| {
        each(|d, by| {
            let (s, other, pool) = (d.stream(), d.stream(), d.pool(0));
            let unordered = || {
                let mut p = null_mut();
                outcome(unsafe { millpond_pool_alloc_unordered(ptr(pool.0), 4 * MIB, &mut p) }).unwrap();
                p.expose_provenance()
            };
            for _ in 0..100 {
                free(unordered()).unwrap();
            }
            let c = pool.capture(s).unwrap();
            let p = pool.alloc(4 * MIB, s).unwrap();
            c.end().unwrap();
            pool.free(p, s).unwrap();
            for _ in 0..100 {
                free(unordered()).unwrap();
            }
            let free_now = unordered();
            free(free_now).unwrap();
            let held = d.gate(other); // a replay
            outcome(by.does(|| unsafe { millpond_capture_release_async(ptr(c.0)) })).unwrap();
            let got = (unordered(), 4 * MIB);
            assert!(!overlap(got, (free_now, 4 * MIB)) && !overlap(got, (p, 4 * MIB)));
            held.open();
        });
    });
}

#[test]
fn a_scope_serves_its_thread_from_its_pool() {
    apart(|| {
        each(|d, by| {
            let (s, pool, of_scope) = (d.stream(), d.default_pool(), d.pool(0));
            warm(pool, s);
            let scope = move || {
                outcome(unsafe { millpond_scope_begin(ptr(of_scope.0)) }).unwrap();
                come_from(d, pool, s, of_scope);
                outcome(unsafe { millpond_scope_end(ptr(of_scope.0)) }).unwrap();
            };
            by.does(scope);
            come_from(d, pool, s, pool);
        });
    });
}

#[test]
fn a_pool_that_sleeps_gives_nothing() {
    apart(|| {
        each_mapping(|d, by| {
            let (s, pool) = (d.stream(), d.pool(0));
            let live = pool.alloc(3 * MIB, s).unwrap();
            for keep in [true, false] {
                warm(pool, s);
                by.does(|| pool.sleep(keep)).unwrap();
                refused(pool, s, MILLPOND_E_NOT_PERMITTED);
                by.does(|| pool.wake()).unwrap();
                come_from(d, pool, s, pool);
            }
            pool.free(live, s).unwrap();
        });
    });
}

#[test]
fn a_pool_that_has_ended_gives_nothing() {
    apart(|| {
        each(|d, by| {
            let (s, pool, other) = (d.stream(), d.pool(0), d.pool(0));
            warm(pool, s);
            let p = other.alloc(1000, s).unwrap();
            by.does(|| pool.destroy()).unwrap();
            refused(pool, s, MILLPOND_E_INVALID_ARGUMENT);
            assert_eq!(code(pool.free(p, s)), MILLPOND_E_INVALID_ARGUMENT);
            // Nor does one that comes after it.
            for _ in 0..200 {
                let next = d.pool(0);
                warm(next, s);
                refused(pool, s, MILLPOND_E_INVALID_ARGUMENT);
                next.destroy().unwrap();
            }
            other.free(p, s).unwrap();
        });
    });
}

#[test]
fn a_pool_that_was_released_gives_nothing_and_takes_back() {
    apart(|| {
        each(|d, by| {
            let (s, pool) = (d.stream(), d.pool(0));
            let p = pool.alloc(1000, s).unwrap();
            warm(pool, s);
            by.does(|| pool.release()).unwrap();
            refused(pool, s, MILLPOND_E_NOT_PERMITTED);
            pool.free(p, s).unwrap();
        });
    });
}

#[test]
fn a_stream_that_has_ended_gives_and_takes_nothing() {
    apart(|| {
        each(|d, by| {
            let (s, pool) = (d.stream(), d.default_pool());
            let p = pool.alloc(1000, s).unwrap();
            warm(pool, s);
            by.does(|| d.end_stream(s)).unwrap();
            refused(pool, s, MILLPOND_E_UNKNOWN_STREAM);
            assert_eq!(code(pool.free(p, s)), MILLPOND_E_UNKNOWN_STREAM);
            free(p).unwrap();
        });
    });
}

#[test]
fn a_device_that_has_ended_gives_and_takes_nothing() {
    apart(|| {
        each(|d, by| {
            let (s, pool) = (d.stream(), d.default_pool());
            let p = pool.alloc(1000, s).unwrap();
            warm(pool, s);
            by.does(|| outcome(millpond_finalize())).unwrap();
            refused(pool, s, MILLPOND_E_NOT_INITIALIZED);
            assert_eq!(code(pool.free(p, s)), MILLPOND_E_NOT_INITIALIZED);
            let next = Device::get("host", 0).unwrap();
            warm(next.default_pool(), next.stream());
            refused(pool, s, MILLPOND_E_NOT_INITIALIZED);
        });
    });
}

#[test]
fn options_hold_for_the_next_request() {
    apart(|| {
        each(|d, by| {
            let (s, pool) = (d.stream(), d.default_pool());
            warm(pool, s);
            let charged = |bytes| {
                let p = pool.alloc(bytes, s).unwrap();
                let charged = record(d, p).size_bytes;
                pool.free(p, s).unwrap();
                charged
            };
            assert_eq!(SIZES.map(charged), [1024, 50_176, 5 * MIB]);
            by.does(|| d.set_options("roundup_power2_divisions:2")).unwrap();
            assert_eq!(SIZES.map(charged), [1024, 65_536, 6 * MIB]);
            by.does(|| d.set_options("roundup_power2_divisions:0")).unwrap();
            assert_eq!(SIZES.map(charged), [1024, 50_176, 5 * MIB]);
        });
    });
}

#[test]
fn a_forked_child_gets_nothing() {
    apart(|| {
        for mapping in [true, false] {
            let d = host(64 * MIB, mapping);
            let (s, pool) = (d.stream(), d.default_pool());
            let p = pool.alloc(1000, s).unwrap();
            warm(pool, s);
            let child = unsafe { libc::fork() };
            if child == 0 {
                let mut q = null_mut();
                let got = unsafe { millpond_pool_alloc(ptr(pool.0), 1000, ptr(s.0), &mut q) };
                let gone = unsafe { millpond_pool_free(ptr(pool.0), ptr(p), ptr(s.0)) };
                let refused = got != C_Status::SUCCESS && gone != C_Status::SUCCESS;
                unsafe { libc::_exit(i32::from(!refused)) };
            }
            let mut status = 0;
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child's calls were served");
            pool.free(p, s).unwrap();
        }
    });
}

#[test]
fn tags_are_given_from_the_next_request_on() {
    apart(|| {
        each(|d, by| {
            let (s, pool) = (d.stream(), d.default_pool());
            warm(pool, s);
            let tag_of = |bytes| {
                let p = pool.alloc(bytes, s).unwrap();
                let tag = record(d, p).tag;
                pool.free(p, s).unwrap();
                tag
            };
            let name = CString::new("weights").unwrap();
            by.does(|| {
                assert_eq!(SIZES.map(tag_of), [0; 3]);
                outcome(unsafe { millpond_tag_push(name.as_ptr()) }).unwrap();
                assert!(SIZES.map(tag_of).iter().all(|&t| t != 0));
                outcome(millpond_tag_pop()).unwrap();
                assert_eq!(SIZES.map(tag_of), [0; 3]);
            });
            assert_eq!(SIZES.map(tag_of), [0; 3]);
        });
    });
}

static HOOKED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C-unwind" fn hook(_: *mut c_void, _: *const millpond_block_event) {
    HOOKED.fetch_add(1, Relaxed);
}

#[test]
fn hooks_see_the_next_request() {
    apart(|| {
        each(|d, by| {
            let (s, pool) = (d.stream(), d.default_pool());
            warm(pool, s);
            let before = HOOKED.load(Relaxed);
            let id = by.does(|| {
                let mut id = 0;
                let added =
                    unsafe { millpond_device_add_hook(ptr(d.0), Some(hook), null_mut(), None, &mut id) };
                outcome(added).unwrap();
                id
            });
            come_from(d, pool, s, pool);
            assert_eq!(HOOKED.load(Relaxed) - before, 2 * SIZES.len());
            by.does(|| outcome(unsafe { millpond_device_remove_hook(ptr(d.0), id) })).unwrap();
            come_from(d, pool, s, pool);
            assert_eq!(HOOKED.load(Relaxed) - before, 2 * SIZES.len());
        });
    });
}

#[test]
fn histories_and_histograms_see_the_next_request() {
    apart(|| {
        each_unwatched(|d, by| {
            let (s, pool) = (d.stream(), d.default_pool());
            warm(pool, s);
            by.does(|| outcome(unsafe { millpond_device_history_start(ptr(d.0), null()) })).unwrap();
            come_from(d, pool, s, pool);
            unsafe extern "C-unwind" fn count(data: *mut c_void, _: *const millpond_history_event) -> bool {
                unsafe { *data.cast::<usize>() += 1 };
                true
            }
            let (mut events, mut dropped) = (0usize, 0);
            let to = (&raw mut events).cast();
            outcome(unsafe { millpond_device_history_read(ptr(d.0), Some(count), to, &mut dropped) })
                .unwrap();
            assert!(events >= 2 * SIZES.len(), "{events}");
            by.does(|| outcome(unsafe { millpond_device_history_stop(ptr(d.0), &mut 0) })).unwrap();
            warm(pool, s);
            by.does(|| d.set_options("latency_histograms:true")).unwrap();
            let timed = || {
                let mut all: millpond_latency = unsafe { std::mem::zeroed() };
                all.struct_size = size_of::<millpond_latency>();
                outcome(unsafe { millpond_device_get_latency(ptr(d.0), MILLPOND_LATENCY_ALLOC, &mut all) })
                    .unwrap();
                all.count
            };
            let before = timed();
            come_from(d, pool, s, pool);
            assert_eq!(timed() - before, SIZES.len() as u64);
        });
    });
}

/// How many events a history has kept of requests and frees, and of which blocks these are; and how many it has dropped.
fn told(d: Device) -> (Vec<(u32, usize)>, u64) {
    unsafe extern "C-unwind" fn take(data: *mut c_void, e: *const millpond_history_event) -> bool {
        let all = unsafe { &mut *data.cast::<Vec<(u32, usize)>>() };
        let e = unsafe { &*e };
        if matches!(e.kind, MILLPOND_HISTORY_ALLOC | MILLPOND_HISTORY_FREE_REQUESTED) {
            all.push((e.kind, e.ptr.expose_provenance()));
        }
        true
    }
    let (mut all, mut dropped) = (Vec::new(), 0);
    let to = (&raw mut all).cast();
    outcome(unsafe { millpond_device_history_read(ptr(d.0), Some(take), to, &mut dropped) }).unwrap();
    (all, dropped)
}

/// Threads that have short ways beside a history: it has each request and each free, of each block in turn. A recording that
/// begins meanwhile has all that comes after that, and one that ends takes nothing from the history.
#[test]
fn a_history_has_all_that_goes_the_short_way() {
    apart(|| {
        for mapping in [true, false] {
            let d = host(256 * MIB, mapping);
            let options = millpond_history_options {
                struct_size: size_of::<millpond_history_options>(),
                event_count: 1 << 16,
                ..unsafe { std::mem::zeroed() }
            };
            outcome(unsafe { millpond_device_history_start(ptr(d.0), &options) }).unwrap();
            let pool = d.default_pool();
            let streams = [d.stream(), d.stream()];
            let all = || {
                std::thread::scope(|scope| {
                    streams.iter().for_each(|&s| _ = scope.spawn(move || warm(pool, s)));
                });
            };
            let path = std::env::temp_dir().join(format!("millpond-short-way-{}.trace", std::process::id()));
            let name = CString::new(path.to_str().unwrap()).unwrap();
            all();
            outcome(unsafe { millpond_device_record_start(ptr(d.0), name.as_ptr()) }).unwrap();
            all();
            outcome(unsafe { millpond_device_record_stop(ptr(d.0), &mut 0) }).unwrap();
            all();
            let recorded = std::fs::read_to_string(&path).unwrap();
            let _ = std::fs::remove_file(&path);
            let lines = |kind: &str| recorded.lines().filter(|l| l.starts_with(kind)).count();
            let each = 2 * 100 * SIZES.len();
            assert_eq!((lines("a "), lines("f ")), (each, each));
            let (events, dropped) = told(d);
            assert_eq!((events.len(), dropped), (3 * 2 * each, 0));
            let mut live = std::collections::BTreeSet::new();
            for (kind, at) in events {
                let in_turn = if kind == MILLPOND_HISTORY_ALLOC { live.insert(at) } else { live.remove(&at) };
                assert!(in_turn, "{at:#x} twice");
            }
            assert!(live.is_empty());
        }
    });
}

/// The blocks of a checkpoint are live again after a restore, and nobody gets them a second time.
#[test]
fn a_restore_takes_its_blocks_out_of_what_waits() {
    apart(|| {
        each(|d, by| {
            let (s, pool) = (d.stream(), d.pool(0));
            let kept = SIZES.map(|bytes| (pool.alloc(bytes, s).unwrap(), bytes));
            let c = pool.checkpoint();
            kept.iter().for_each(|&(p, _)| pool.free(p, s).unwrap());
            warm(pool, s);
            let live = by.does(|| pool.restore(c)).unwrap();
            assert_eq!(live.len(), SIZES.len());
            let next = SIZES.map(|bytes| (pool.alloc(bytes, s).unwrap(), bytes));
            for a in next {
                assert!(kept.iter().all(|&b| !overlap(a, b)), "{a:?} is live already: {kept:?}");
            }
        });
    });
}

/// Threads that come and go leave no way behind that another thread could take by mistake.
#[test]
fn threads_that_end_leave_their_ways_behind() {
    apart(|| {
        let d = host(256 * MIB, true);
        let pool = d.default_pool();
        let streams = [d.stream(), d.stream()];
        for round in 0..50 {
            let blocks: Vec<_> = std::thread::scope(|scope| {
                let work = |i: usize| {
                    let s = streams[(i + round) % 2];
                    move || {
                        warm(pool, s);
                        SIZES.map(|bytes| (pool.alloc(bytes, s).unwrap(), bytes, s))
                    }
                };
                let all: Vec<_> = (0..2).map(|i| scope.spawn(work(i))).collect();
                all.into_iter().flat_map(|t| t.join().unwrap()).collect()
            });
            for (i, a) in blocks.iter().enumerate() {
                assert!(blocks[..i].iter().all(|b| !overlap((a.0, a.1), (b.0, b.1))), "{blocks:?}");
            }
            blocks.into_iter().for_each(|(p, _, s)| pool.free(p, s).unwrap());
        }
        assert_eq!(d.stats().allocated_bytes.current, 0);
    });
}

/// A thread that allocates by its short way all the time, while another does everything that closes it.
#[test]
fn changes_beside_a_thread_at_work() {
    apart_for(120, || {
        // Also where other blocks have the first segments.
        for (mapping, others) in [(true, 0), (false, 0), (false, 48)] {
            let d = host(256 * MIB, mapping);
            let (s, pool, of_graph) = (d.stream(), d.default_pool(), d.pool(0));
            (0..others).for_each(|_| _ = pool.alloc(MIB, s).unwrap());
            let (stop, stopped) = channel::<()>();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let mut stamp = 0u8;
                    while matches!(stopped.try_recv(), Err(TryRecvError::Empty)) {
                        stamp = stamp.wrapping_add(1);
                        let all = SIZES.map(|bytes| (pool.alloc(bytes, s).unwrap(), bytes));
                        for (i, &(p, bytes)) in all.iter().enumerate() {
                            poke(p, stamp ^ i as u8, bytes.min(4096));
                        }
                        for (i, &(p, bytes)) in all.iter().enumerate() {
                            assert_eq!(
                                filled(p, bytes.min(4096)),
                                Some(stamp ^ i as u8),
                                "a block is another's too"
                            );
                            pool.free(p, s).unwrap();
                        }
                    }
                });
                for _ in 0..300 {
                    let c = of_graph.capture(s).unwrap();
                    c.end().unwrap();
                    c.release().unwrap();
                    d.set_options("roundup_power2_divisions:2").unwrap();
                    outcome(unsafe { millpond_scope_begin(ptr(of_graph.0)) }).unwrap();
                    outcome(unsafe { millpond_scope_end(ptr(of_graph.0)) }).unwrap();
                    d.set_options("roundup_power2_divisions:0").unwrap();
                    let now = d.stats().allocated_bytes;
                    assert!(now.current <= now.peak);
                    d.empty_cache().unwrap();
                }
                drop(stop);
            });
            assert_eq!(d.stats().allocated_bytes.current, others * MIB as u64);
        }
    });
}

/// The first segment of a device goes back, and the next one lies elsewhere.
#[test]
fn the_first_segment_may_come_again_at_another_address() {
    apart(|| {
        let d = host(256 * MIB, false);
        let (s, pool) = (d.stream(), d.default_pool());
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..8 {
            warm(pool, s);
            let all = SIZES.map(|bytes| (pool.alloc(bytes, s).unwrap(), bytes));
            seen.insert(all[2].0);
            for (p, bytes) in all {
                assert_eq!(block(p).unwrap(), (p, bytes));
                poke(p, 7, bytes);
                pool.free(p, s).unwrap();
            }
            d.empty_cache().unwrap();
            assert_eq!(d.stats().reserved_bytes.current, 0);
            // Whatever address comes free next, the program takes it.
            let (taken, anyhow) = (16 * MIB, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
            let p = unsafe { libc::mmap(null_mut(), taken, libc::PROT_NONE, anyhow, -1, 0) };
            assert_ne!(p, libc::MAP_FAILED);
        }
        assert!(seen.len() > 1, "the segment was always at one address: {seen:x?}");
    });
}

/// The first segment of a device goes back, and others get its granule numbers before there is a first one again.
#[test]
fn the_first_segment_is_forgotten_when_it_goes() {
    apart(|| {
        let (d, control) = held::host(GIB, false);
        let (s, other, pool) = (d.stream(), d.stream(), d.default_pool());
        let first = pool.alloc(256 * MIB, s).unwrap();
        let kept = pool.alloc(1000, s).unwrap();
        for _ in 0..100 {
            let p = pool.alloc(2000, s).unwrap();
            pool.free(p, s).unwrap();
        }
        pool.free(first, s).unwrap();
        d.empty_cache().unwrap();
        assert_eq!(control.calls("free"), 1, "the first one has gone, the other one has a live block");
        // Another pool is about to get the next one.
        let hold = control.hold_before("alloc", 1);
        let of_other = d.pool(0);
        let takes = held::victim(move || of_other.alloc(4 * MIB, other).unwrap());
        hold.reached();
        for _ in 0..3 {
            let p = pool.alloc(70 * MIB, s).unwrap();
            assert_eq!(block(p).unwrap(), (p, 70 * MIB), "no block is there");
            pool.free(p, s).unwrap();
        }
        hold.let_go();
        takes.join().unwrap();
        pool.free(kept, s).unwrap();
    });
}
