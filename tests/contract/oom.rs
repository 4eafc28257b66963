//! The out-of-memory report: the reason is right, the parts sum up to the account, and a program whose requests fail
//! again and again pays little for it.

use crate::apart::*;
use crate::api::*;
use crate::cuda::Fake;
use crate::held;
use millpond::Code;
use millpond::capi::*;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::Instant;

mod advice;

type Report = Box<millpond_oom_report>;

/// A report on its way to another thread.
struct Sent(Report);
// Its handles are names, which any thread may have.
unsafe impl Send for Sent {}

fn empty() -> Report {
    let mut r: Report = Box::new(unsafe { std::mem::zeroed() });
    r.struct_size = size_of::<millpond_oom_report>();
    r
}

/// The report of the calling thread's last request.
fn last(d: Device) -> Outcome<Report> {
    let mut r = empty();
    outcome(unsafe { millpond_device_last_oom(ptr(d.0), &mut *r) })?;
    Ok(r)
}

fn said(chars: &[c_char]) -> String {
    unsafe { CStr::from_ptr(chars.as_ptr()) }.to_str().unwrap().to_owned()
}

fn words(r: &millpond_oom_report) -> String {
    let mut size = 0;
    outcome(unsafe { millpond_oom_report_text(r, null_mut(), 0, &mut size) }).unwrap();
    let mut out = vec![0 as c_char; size];
    outcome(unsafe { millpond_oom_report_text(r, out.as_mut_ptr(), size, null_mut()) }).unwrap();
    let text = said(&out);
    assert_eq!(text.len() + 1, size);
    text
}

/// The failure of a request, and its report, which fits to the account. Nothing else happens on the device.
#[track_caller]
fn failure(d: Device, request: Outcome<usize>) -> (String, Report) {
    let e = request.unwrap_err();
    assert_eq!(e.code, MILLPOND_E_OUT_OF_MEMORY, "{}", e.message);
    let r = last(d).unwrap();
    let s = d.stats();
    assert_eq!(r.device.addr(), d.0);
    assert_eq!(r.missing & MILLPOND_OOM_MISSING_ALL, 0);
    assert_eq!(r.reserved_bytes, s.reserved_bytes.current);
    assert_eq!(r.sleeping_bytes, s.sleeping_bytes.current);
    if r.sleeping_bytes == 0 {
        assert_eq!(r.live_bytes, s.allocated_bytes.current);
        assert_eq!(r.live_bytes + r.waiting_bytes, s.active_bytes.current);
    }
    assert_eq!(parts(&r), r.reserved_bytes, "{r:?}");
    assert_eq!(r.moving_bytes, 0);
    let of =
        |all: &[millpond_oom_holder], n: u32| all[..n as usize].iter().map(|h| h.live_bytes).sum::<u64>();
    assert_eq!(of(&r.pools, r.pool_count), r.live_bytes);
    assert_eq!(of(&r.streams, r.stream_count), r.live_bytes);
    let waits: u64 = r.waits[..r.wait_count as usize].iter().map(|w| w.bytes).sum();
    assert_eq!(waits, r.waiting_bytes);
    (e.message, r)
}

fn parts(r: &millpond_oom_report) -> u64 {
    let free = r.free_here_bytes + r.free_other_streams_bytes + r.free_other_pools_bytes;
    r.live_bytes + r.waiting_bytes + free + r.moving_bytes
}

fn named(d: Device, name: &str, limit: usize) -> Pool {
    let name = CString::new(name).unwrap();
    let size = size_of::<millpond_pool_options>();
    let options =
        millpond_pool_options { struct_size: size, limit_bytes: limit as u64, name: name.as_ptr(), flags: 0 };
    let mut p = null_mut();
    outcome(unsafe { millpond_pool_create(ptr(d.0), &options, &mut p) }).unwrap();
    Pool(p.expose_provenance())
}

fn fill(pool: Pool, stream: Stream, bytes: usize) -> Vec<usize> {
    std::iter::from_fn(|| pool.alloc(bytes, stream).ok()).collect()
}

fn tried(r: &millpond_oom_report, step: u32) -> Option<millpond_oom_tried> {
    r.tried[..r.tried_count as usize].iter().find(|t| t.step == step).copied()
}

#[track_caller]
fn tells(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

/// A handler that counts its calls, and keeps the reason and the pool from the report.
#[derive(Default)]
struct Heard {
    calls: AtomicU64,
    reason: AtomicU64,
    pool: AtomicU64,
    frees: AtomicU64,
}

unsafe extern "C-unwind" fn hear(data: *mut c_void, r: *const millpond_oom_report) -> bool {
    let (heard, r) = unsafe { (&*data.cast::<Heard>(), &*r) };
    heard.calls.fetch_add(1, Relaxed);
    heard.reason.store(r.reason.into(), Relaxed);
    heard.pool.store(r.pool.addr() as u64, Relaxed);
    let block = heard.frees.swap(0, Relaxed) as usize;
    block != 0 && free(block).is_ok()
}

fn handler(d: Device) -> &'static Heard {
    let heard: &'static Heard = Box::leak(Box::default());
    let (data, mut id) = ((&raw const *heard).cast_mut().cast(), 0);
    outcome(unsafe { millpond_device_add_oom_handler(ptr(d.0), Some(hear), data, &mut id) }).unwrap();
    assert_ne!(id, 0);
    heard
}

#[test]
fn what_no_callback_can_cure() {
    apart(|| {
        for mapping in [true, false] {
            let d = host(64 * MIB, mapping);
            let (pool, small, s) = (named(d, "kv", 0), named(d, "small", 4 * MIB), d.stream());
            let heard = handler(d);
            let (line, r) = failure(d, pool.alloc(GIB, s));
            assert_eq!((r.reason, r.requested_bytes), (MILLPOND_OOM_LARGER_THAN_DEVICE, GIB as u64));
            tells(&line, &["no room for 1.0 GiB in pool 'kv'", "the device has no more than 64.0 MiB"]);
            tells(&words(&r), &["advice: no freeing helps"]);

            let (line, r) = failure(d, small.alloc(8 * MIB, s));
            assert_eq!((r.reason, r.pool.addr()), (MILLPOND_OOM_ABOVE_POOL_LIMIT, small.0));
            assert_eq!(r.pool_limit_bytes, 4 << 20);
            tells(&line, &["no room for 8.0 MiB in pool 'small' of ", "the pool's limit is 4.0 MiB"]);
            tells(&words(&r), &["raise the pool's limit to 8.0 MiB", "pool 'small'", "limit 4.0 MiB"]);
            assert_eq!(heard.calls.load(Relaxed), 0, "nobody could help");

            // A device's limit is the program's own, which it may raise in a callback.
            d.set_limit(6 * MIB).unwrap();
            let (line, r) = failure(d, pool.alloc(8 * MIB, s));
            assert_eq!((r.reason, r.device_limit_bytes), (MILLPOND_OOM_ABOVE_DEVICE_LIMIT, 6 << 20));
            tells(&line, &["the device's limit is 6.0 MiB"]);
            tells(&words(&r), &["millpond_device_set_limit"]);
            assert_eq!((heard.calls.load(Relaxed), heard.pool.load(Relaxed)), (1, pool.0 as u64));
        }
    });
}

#[test]
fn limits_that_are_reached() {
    apart(|| {
        for mapping in [true, false] {
            let d = host(64 * MIB, mapping);
            let (pool, small, s) = (named(d, "kv", 0), named(d, "small", 8 * MIB), d.stream());
            let heard = handler(d);
            let a = small.alloc(6 * MIB, s).unwrap();
            let (line, r) = failure(d, small.alloc(4 * MIB, s));
            assert_eq!(r.reason, MILLPOND_OOM_POOL_LIMIT);
            assert_eq!(heard.reason.load(Relaxed), u64::from(MILLPOND_OOM_POOL_LIMIT));
            tells(&line, &["the pool's limit is reached", "biggest holder: pool 'small', 6.0 MiB"]);
            tells(&words(&r), &["raise the pool's limit"]);
            // What the handler frees serves the request.
            heard.frees.store(a as u64, Relaxed);
            let b = small.alloc(4 * MIB, s).unwrap();

            d.set_limit(16 * MIB).unwrap();
            let c = pool.alloc(8 * MIB, s).unwrap();
            heard.frees.store(b as u64, Relaxed);
            let (line, r) = failure(d, pool.alloc(12 * MIB, s));
            assert_eq!(r.reason, MILLPOND_OOM_DEVICE_LIMIT);
            tells(&line, &["the device's limit is reached", "of 16.0 MiB reserved", "pool 'kv', 8.0 MiB"]);
            tells(&words(&r), &["per_process_memory_fraction", "the biggest holder is pool 'kv': 8.0 MiB"]);
            let called = tried(&r, MILLPOND_OOM_STEP_CALLBACKS).unwrap();
            // It freed too little, was called again, and had nothing left.
            assert_eq!((called.try_count, called.helped_count, called.bytes), (2, 1, 4 << 20));
            pool.free(c, s).unwrap();
        }
    });
}

#[test]
fn a_pool_at_its_own_limit_names_no_other() {
    apart(|| {
        for mapping in [true, false] {
            let d = host(64 * MIB, mapping);
            let (weights, small, s) = (named(d, "weights", 0), named(d, "small", 8 * MIB), d.stream());
            let none = named(d, "none", 2 * MIB);
            let _ = outcome(unsafe { millpond_tag_push(c"of_weights".as_ptr()) });
            weights.alloc(20 * MIB, d.stream()).unwrap();
            let _ = outcome(millpond_tag_pop());
            let (line, r) = failure(d, none.alloc(4 * MIB, s));
            assert_eq!(r.reason, MILLPOND_OOM_ABOVE_POOL_LIMIT);
            assert!(!line.contains("biggest holder"), "{line}");
            small.alloc(6 * MIB, s).unwrap();
            let (line, r) = failure(d, small.alloc(4 * MIB, s));
            assert_eq!(r.reason, MILLPOND_OOM_POOL_LIMIT);
            tells(&line, &["the pool's limit is reached", "biggest holder: pool 'small', 6.0 MiB"]);
            assert!(!line.contains("weights"), "{line}");
        }
    });
}

#[test]
fn a_device_that_is_full() {
    apart(|| {
        for mapping in [true, false] {
            let d = host(64 * MIB, mapping);
            let (weights, kv, s, t) = (named(d, "weights", 0), named(d, "kv", 0), d.stream(), d.stream());
            let all: Vec<_> = (0..20).map(|_| weights.alloc(2 * MIB, s).unwrap()).collect();
            let rest = fill(kv, t, 2 * MIB);
            assert!(rest.len() >= 10);
            let (line, r) = failure(d, kv.alloc(3 * MIB, t));
            assert_eq!(r.reason, MILLPOND_OOM_EXHAUSTED);
            tells(&line, &["the device is full", "biggest holder: pool 'weights', 40.0 MiB"]);
            assert_eq!(said(&r.pools[0].label), "pool 'weights'");
            assert_eq!((r.pools[0].pool.addr(), r.pools[0].block_count), (weights.0, 20));
            assert_eq!((r.streams[0].stream.addr(), r.streams[0].live_bytes), (s.0, 40 << 20));
            let device = tried(&r, MILLPOND_OOM_STEP_DEVICE).unwrap();
            assert_eq!((device.helped_count, device.bytes), (0, 0));
            assert!(tried(&r, MILLPOND_OOM_STEP_OTHERS_IDLE).is_some());
            tells(&words(&r), &["free blocks", "biggest pools:", "pool 'weights': 40.0 MiB in 20 blocks"]);
            all.into_iter().for_each(|p| weights.free(p, s).unwrap());
            rest.into_iter().for_each(|p| kv.free(p, t).unwrap());
        }
    });
}

/// Holes everywhere, none of them large enough.
fn holes(d: Device, pool: Pool, s: Stream) -> Vec<usize> {
    let mut all = fill(pool, s, MIB);
    all.sort_unstable();
    let (keep, go): (Vec<_>, Vec<_>) = all.iter().enumerate().partition(|(n, _)| n % 2 == 0);
    go.into_iter().for_each(|(_, &p)| pool.free(p, s).unwrap());
    d.synchronize().unwrap();
    keep.into_iter().map(|(_, &p)| p).collect()
}

#[test]
fn memory_in_pieces() {
    apart(|| {
        for (mapping, options, advice) in [
            (true, "", "free the small blocks between"),
            (false, "", "this device cannot map"),
            (true, "expandable_segments:False", "set expandable_segments:True"),
        ] {
            let _ = millpond_finalize();
            millpond::runtime::set_default_options(Some("host"), None, "expandable_segments:True").unwrap();
            if !options.is_empty() {
                millpond::runtime::set_default_options(Some("host"), None, options).unwrap();
            }
            let d = host(64 * MIB, mapping);
            // Segments of one block each would simply go back.
            d.set_options("large_segment_size_mb:64").unwrap();
            let (pool, s) = (d.pool(0), d.stream());
            let kept = holes(d, pool, s);
            let (line, r) = failure(d, pool.alloc(8 * MIB, s));
            assert_eq!(r.reason, MILLPOND_OOM_FRAGMENTED, "{options}");
            assert!(r.free_here_bytes >= 30 << 20);
            assert_eq!(r.largest_here_bytes, 1 << 20);
            assert_eq!(r.flags & MILLPOND_OOM_COULD_MAP != 0, !options.is_empty());
            tells(&line, &["enough is free, but not in one piece"]);
            tells(&words(&r), &[advice, "free here", "the largest that it could give: 1.0 MiB"]);
            kept.into_iter().for_each(|p| pool.free(p, s).unwrap());
        }
    });
}

/// A graph keeps what it has used: it is free, and nobody else may have it.
#[test]
fn memory_that_other_pools_keep() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (graph, pool, s, t) = (named(d, "graph", 0), d.pool(0), d.stream(), d.stream());
        let capture = graph.capture(s).unwrap();
        let p = graph.alloc(40 * MIB, s).unwrap();
        graph.free(p, s).unwrap();
        capture.end().unwrap();
        let (line, r) = failure(d, pool.alloc(32 * MIB, t));
        assert_eq!((r.reason, r.free_other_pools_bytes), (MILLPOND_OOM_FRAGMENTED, 40 << 20));
        assert_eq!(r.largest_elsewhere_bytes, 40 << 20);
        tells(&line, &["enough is free"]);
        tells(&words(&r), &["free in other pools: 40.0 MiB", "kept for graphs"]);
        capture.release().unwrap();
    });
}

#[test]
fn memory_that_waits_for_a_stream() {
    apart(|| {
        for mapping in [true, false] {
            let d = host(64 * MIB, mapping);
            let (pool, s, t, u) = (named(d, "kv", 0), d.stream(), d.stream(), d.stream());
            let p = pool.alloc(48 * MIB, s).unwrap();
            record_stream(p, t).unwrap();
            let gate = d.gate(t);
            pool.free(p, s).unwrap();
            // A callback of a stream can wait for nothing; elsewhere the request would wait and succeed.
            let (tell, told) = channel();
            d.call(u, move || {
                let e = pool.alloc(32 * MIB, s).unwrap_err();
                tell.send((e.message, Sent(last(d).unwrap()))).unwrap();
            });
            let (line, Sent(r)) = told.recv().unwrap();
            assert_eq!((r.reason, r.waiting_bytes), (MILLPOND_OOM_WAITING, 48 << 20), "{line}");
            assert_eq!((r.waiting_stream_count, r.wait_count), (1, 1));
            let w = r.waits[0];
            assert_eq!((w.waits_for, w.stream.addr()), (MILLPOND_OOM_WAITS_FOR_STREAM, t.0));
            assert_eq!((w.bytes, w.block_count), (48 << 20, 1));
            assert_eq!(r.missing, MILLPOND_OOM_MISSING_DEVICE_FREE, "a callback must not ask");
            let on = format!("waits for stream {:#x}", t.0);
            tells(&line, &["what is missing was freed, but waits", &format!("48.0 MiB {on}")]);
            tells(&words(&r), &[&on, "millpond_record_end", "the device could not be asked"]);
            assert_eq!(code(last(d)), MILLPOND_E_INVALID_ARGUMENT, "no request of this thread failed");
            gate.open();
            d.synchronize().unwrap();
        }
    });
}

#[test]
fn memory_that_others_use() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (pool, s) = (d.pool(0), d.stream());
        let p = pool.alloc(48 * MIB, s).unwrap();
        let (mut bytes, mut count) = (0, 0);
        outcome(unsafe { millpond_export_get_size(ptr(p), &mut bytes, &mut count) }).unwrap();
        let (mut handle, mut fds) = (vec![0u8; bytes], vec![-1; count]);
        let many = fds.as_mut_ptr();
        outcome(unsafe { millpond_export(ptr(p), handle.as_mut_ptr().cast(), bytes, many, count) }).unwrap();
        pool.free(p, s).unwrap();
        let (line, r) = failure(d, pool.alloc(32 * MIB, s));
        assert_eq!((r.reason, r.exported_bytes), (MILLPOND_OOM_WAITING, 48 << 20));
        assert_eq!(r.waits[0].waits_for, MILLPOND_OOM_WAITS_FOR_OTHERS);
        tells(&line, &["48.0 MiB waits for others who use it"]);
        tells(&words(&r), &["let them close it"]);
    });
}

#[test]
fn a_device_that_refuses() {
    apart(|| {
        for (mapping, call) in [(true, "granules_create"), (false, "alloc")] {
            let (d, control) = held::host(64 * MIB, mapping);
            let (pool, s) = (d.pool(0), d.stream());
            control.fail_all(call, Code::OutOfMemory);
            let (line, r) = failure(d, pool.alloc(8 * MIB, s));
            assert_eq!(r.reason, MILLPOND_OOM_DEVICE_REFUSED);
            assert!(!said(&r.device_said).is_empty());
            tells(&line, &["the device refused", &said(&r.device_said)]);
            tells(&words(&r), &["other users of the device", "free on the device, as it says: 64.0 MiB"]);
            // A device that cannot even tell what it has free: the report goes without.
            control.fail_all("memory_info", Code::Device);
            let (_, r) = failure(d, pool.alloc(8 * MIB, s));
            assert_eq!(
                (r.reason, r.missing),
                (MILLPOND_OOM_DEVICE_REFUSED, MILLPOND_OOM_MISSING_DEVICE_FREE)
            );
            control.mend();
            let p = pool.alloc(8 * MIB, s).unwrap();
            pool.free(p, s).unwrap();
        }
    });
}

#[test]
fn memory_of_pools_that_sleep() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (asleep, pool, s) = (named(d, "asleep", 0), named(d, "awake", 0), d.stream());
        let p = asleep.alloc(16 * MIB, s).unwrap();
        asleep.sleep(false).unwrap();
        let all = fill(pool, s, 2 * MIB);
        assert_eq!(all.len(), 32, "what sleeps is not held");
        let (line, r) = failure(d, pool.alloc(2 * MIB, s));
        assert_eq!((r.reason, r.sleeping_bytes), (MILLPOND_OOM_EXHAUSTED, 16 << 20));
        assert_eq!((r.live_bytes, r.pool_count), (64 << 20, 1));
        tells(&line, &["biggest holder: pool 'awake', 64.0 MiB"]);
        tells(&words(&r), &["of pools that sleep: 16.0 MiB"]);
        all.into_iter().for_each(|p| pool.free(p, s).unwrap());
        pool.empty_cache().unwrap();
        asleep.wake().unwrap();
        asleep.free(p, s).unwrap();
    });
}

#[test]
fn memory_that_is_not_pooled() {
    apart(|| {
        let d = unpooled_host();
        let (pool, small, s) = (named(d, "kv", 0), named(d, "small", 4 * MIB), d.stream());
        let heard = handler(d);
        let (_, r) = failure(d, pool.alloc(64 * TIB, s));
        assert_eq!((r.reason, r.flags & MILLPOND_OOM_POOLED), (MILLPOND_OOM_LARGER_THAN_DEVICE, 0));
        let (_, r) = failure(d, small.alloc(8 * MIB, s));
        assert_eq!(r.reason, MILLPOND_OOM_ABOVE_POOL_LIMIT);
        assert_eq!(heard.calls.load(Relaxed), 0);
        let a = small.alloc(3 * MIB, s).unwrap();
        let (line, r) = failure(d, small.alloc(2 * MIB, s));
        assert_eq!((r.reason, r.live_bytes), (MILLPOND_OOM_POOL_LIMIT, 3 << 20));
        tells(&line, &["in pool 'small'", "the pool's limit is reached: 3.0 MiB of 4.0 MiB"]);
        d.set_limit(4 * MIB).unwrap();
        let (line, r) = failure(d, pool.alloc(2 * MIB, s));
        assert_eq!(r.reason, MILLPOND_OOM_DEVICE_LIMIT);
        tells(&line, &["the device's limit is reached", "biggest holder: pool 'small', 3.0 MiB"]);
        tells(&words(&r), &["raise the device's limit"]);
        assert_eq!(heard.calls.load(Relaxed), 2);
        assert_ne!(r.flags & MILLPOND_OOM_COULD_POOL, 0);
        assert_eq!(r.flags & MILLPOND_OOM_COULD_MAP, 0, "mapping is of no use without pooling");
        small.free(a, s).unwrap();
        millpond::runtime::set_default_options(Some("host"), None, "backend:native").unwrap();
    });
}

#[test]
fn a_gpu_that_is_full() {
    apart(|| {
        for options in ["expandable_segments:True", "expandable_segments:False", "backend:cudaMallocAsync"] {
            let _fake = Fake::new(&[], |_| ());
            millpond::runtime::set_default_options(Some("cuda"), None, options).unwrap();
            let d = Device::get("cuda", 0).unwrap();
            let (pool, s) = (named(d, "weights", 0), d.stream());
            d.set_limit(64 * MIB).unwrap();
            let all = fill(pool, s, 4 * MIB);
            assert!(all.len() > 8, "{options}: {}", all.len());
            let (line, r) = failure(d, d.pool(0).alloc(8 * MIB, s));
            assert_eq!(r.reason, MILLPOND_OOM_DEVICE_LIMIT, "{options}");
            assert_eq!(r.missing, 0);
            assert!(r.device_free_bytes > 0);
            tells(&line, &["the device's limit is reached", "biggest holder: pool 'weights'"]);
            all.into_iter().for_each(|p| pool.free(p, s).unwrap());
            millpond::runtime::set_default_options(Some("cuda"), None, "backend:native").unwrap();
        }
    });
}

/// Each thread gets the report of its own request, all of one moment, while others allocate and free.
#[test]
fn threads_that_fail_at_once() {
    apart(|| {
        for mapping in [true, false] {
            let d = host(64 * MIB, mapping);
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let load: Vec<_> = (0..2usize)
                    .map(|n| {
                        let stop = &stop;
                        scope.spawn(move || {
                            let (pool, s) = (d.pool(0), d.stream());
                            while !stop.load(Relaxed) {
                                let held: Vec<_> =
                                    (0..8).filter_map(|i| pool.alloc(MIB * (i % 4 + 1), s).ok()).collect();
                                held.into_iter().for_each(|p| pool.free(p, s).unwrap());
                            }
                            let _ = n;
                        })
                    })
                    .collect();
                let failing: Vec<_> = (0..8usize)
                    .map(|n| {
                        scope.spawn(move || {
                            let (pool, s) = (named(d, &format!("p{n}"), 0), d.stream());
                            for round in 0..50 {
                                let bytes = 64 * MIB - (n * 50 + round) * 4096;
                                let Err(e) = pool.alloc(bytes, s).map(|p| pool.free(p, s).unwrap()) else {
                                    continue;
                                };
                                assert_eq!(e.code, MILLPOND_E_OUT_OF_MEMORY);
                                let r = last(d).unwrap();
                                assert_eq!((r.requested_bytes, r.pool.addr()), (bytes as u64, pool.0));
                                assert_eq!(parts(&r), r.reserved_bytes, "{r:?}");
                                tells(&e.message, &[&format!("in pool 'p{n}'")]);
                            }
                        })
                    })
                    .collect();
                failing.into_iter().for_each(|t| t.join().unwrap());
                stop.store(true, Relaxed);
                load.into_iter().for_each(|t| t.join().unwrap());
            });
        }
    });
}

/// A program that tries again and again, as frameworks do, with a million blocks.
#[test]
fn failing_with_a_million_blocks_costs_little() {
    alone(120, || {
        const BLOCKS: usize = 1 << 20;
        let d = host(GIB, true);
        let (pool, s) = (named(d, "weights", 0), d.stream());
        for _ in 0..BLOCKS {
            pool.alloc(512, s).unwrap();
        }
        // Half of them free, in no order: the bins are long.
        let (other, t) = (d.pool(0), d.stream());
        let start = Instant::now();
        const TIMES: u32 = 100;
        for _ in 0..TIMES {
            assert!(other.alloc(900 * MIB, t).is_err());
        }
        let each = start.elapsed() / TIMES;
        let (_, r) = failure(d, other.alloc(900 * MIB, t));
        assert_eq!(
            (r.pools[0].block_count, said(&r.pools[0].label)),
            (BLOCKS as u64, "pool 'weights'".into())
        );
        assert!(each.as_millis() < 20, "{each:?}");
    });
}

#[test]
fn bad_arguments() {
    apart(|| {
        let d = host(64 * MIB, true);
        let mut r = empty();
        let last_of =
            |d: *mut millpond_device, r: *mut millpond_oom_report| unsafe { millpond_device_last_oom(d, r) };
        assert_eq!(code(outcome(last_of(ptr(d.0), &mut *r))), MILLPOND_E_INVALID_ARGUMENT, "none yet");
        assert_eq!(code(outcome(last_of(null_mut(), &mut *r))), MILLPOND_E_INVALID_ARGUMENT);
        assert_eq!(code(outcome(last_of(ptr(d.0), null_mut()))), MILLPOND_E_INVALID_ARGUMENT);
        let (_, told) = failure(d, d.alloc(GIB));
        // As much as fits, and no more.
        r.struct_size = std::mem::offset_of!(millpond_oom_report, requested_bytes) + 8;
        r.rounded_bytes = 77;
        outcome(last_of(ptr(d.0), &mut *r)).unwrap();
        assert_eq!((r.requested_bytes, r.rounded_bytes), (GIB as u64, 77));
        // Another device has had none.
        let other = Device::get("host", 1).unwrap();
        assert_eq!(code(last(other)), MILLPOND_E_INVALID_ARGUMENT);
        let text = |r: *const millpond_oom_report, out: *mut c_char, n: usize| unsafe {
            outcome(millpond_oom_report_text(r, out, n, null_mut()))
        };
        assert_eq!(code(text(null(), null_mut(), 0)), MILLPOND_E_INVALID_ARGUMENT);
        assert_eq!(code(text(&*told, null_mut(), 9)), MILLPOND_E_INVALID_ARGUMENT);
        let mut short = [1 as c_char; 8];
        text(&*told, short.as_mut_ptr(), 8).unwrap();
        assert_eq!(said(&short), "out of ");
        // Numbers out of the air do no harm.
        let mut wild = told;
        (wild.reason, wild.pool_count, wild.tried_count) = (99, u32::MAX, u32::MAX);
        wild.pools.iter_mut().for_each(|h| h.label = [b'x' as c_char; MILLPOND_OOM_LABEL]);
        (wild.tried[0].step, wild.live_bytes, wild.waiting_bytes) = (77, u64::MAX, u64::MAX);
        wild.pools.iter_mut().for_each(|h| (h.live_bytes, h.waiting_bytes) = (u64::MAX, u64::MAX));
        assert!(!words(&wild).is_empty());
    });
}

/// PaddlePaddle's interface returns only a status, so the plugin writes the report where the setting says.
#[test]
fn a_plugin_writes_the_report() {
    use millpond::paddle::abi::{C_Device_st, C_DeviceInterface, CustomRuntimeParams};
    let file = std::env::temp_dir().join(format!("millpond-oom-{}", std::process::id()));
    let name = std::env::var("MILLPOND_PLUGIN_OOM_REPORT").unwrap_or(file.to_str().unwrap().to_owned());
    apart_with(&[("MILLPOND_PLUGIN_OOM_REPORT", &name), ("MILLPOND_HOST_CAPACITY", "64M")], || {
        let (mut table, mut params): (C_DeviceInterface, CustomRuntimeParams) = unsafe { std::mem::zeroed() };
        table.size = size_of_val(&table);
        params.size = size_of_val(&params);
        params.interface = &mut table;
        unsafe { millpond::paddle::init_plugin(&mut params) };
        assert_eq!(unsafe { table.initialize.unwrap()() }, C_Status::SUCCESS);
        let mut device = C_Device_st { id: 0 };
        for _ in 0..2 {
            let mut block = null_mut();
            let status = unsafe { table.device_memory_allocate.unwrap()(&mut device, &mut block, GIB) };
            assert_eq!((status, block.is_null()), (C_Status::SUCCESS, true));
        }
        let text = std::fs::read_to_string(&name).unwrap();
        assert_eq!(text.matches("out of memory: the device has no more than 64.0 MiB").count(), 2, "{text}");
        tells(&text, &["asked for: 1073741824 bytes", "without a stream", "advice: no freeing helps"]);
    });
    let _ = std::fs::remove_file(file);
}
