//! A request that finds no memory takes none of the host's either, for its error, its report and the report's text: the
//! host may have none left at that moment.

use crate::apart::apart_for;
use crate::host_memory::{allocations, with_no_more_than, without_any};
use crate::pools::Gate;
use millpond::capi::*;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const MIB: usize = 1 << 20;

#[track_caller]
fn ok(status: C_Status) {
    let text = || unsafe { CStr::from_ptr(millpond_last_error_message()) }.to_string_lossy().into_owned();
    assert_eq!(status, C_Status::SUCCESS, "{}", text());
}

#[derive(Clone, Copy)]
struct World {
    device: *mut millpond_device,
    pools: [*mut millpond_pool; 2],
    streams: [C_Stream; 2],
}
// Handles, which any thread may use.
unsafe impl Send for World {}
unsafe impl Sync for World {}

/// A device full of blocks of two pools, on two streams, with tags; one block in three is freed, and one waits.
fn full(mapping: bool) -> (World, Vec<*mut c_void>) {
    let host = millpond_host_options {
        struct_size: size_of::<millpond_host_options>(),
        device_count: 1,
        capacity_bytes: 256 << 20,
        disable_mapping: u32::from(!mapping),
    };
    ok(unsafe { millpond_host_configure(&host) });
    let mut w = World { device: null_mut(), pools: [null_mut(); 2], streams: [null_mut(); 2] };
    ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut w.device) });
    for (pool, name) in
        w.pools.iter_mut().zip([c"weights", c"a cache with a long name, of which all is told"])
    {
        let (struct_size, name) = (size_of::<millpond_pool_options>(), name.as_ptr());
        let options = millpond_pool_options { struct_size, limit_bytes: 0, name, flags: 0 };
        ok(unsafe { millpond_pool_create(w.device, &options, pool) });
    }
    w.streams.iter_mut().for_each(|s| ok(unsafe { millpond_stream_create(w.device, s) }));
    let mut all = Vec::new();
    for n in 0.. {
        if n % 64 == 0 {
            ok(unsafe { millpond_tag_push([c"activations", c"kv_cache"][n / 64 % 2].as_ptr()) });
        }
        let mut block = null_mut();
        let (pool, stream) = (w.pools[n / 5 % 2], w.streams[n % 2]);
        let got = unsafe { millpond_pool_alloc(pool, MIB / 2 + n % 3 * MIB / 4, stream, &mut block) };
        if n % 64 == 63 {
            ok(millpond_tag_pop());
        }
        if got != C_Status::SUCCESS {
            break;
        }
        all.push(block);
    }
    while millpond_tag_pop() == C_Status::SUCCESS {}
    let go: Vec<_> = (0..all.len()).filter(|n| n % 3 == 0).collect();
    go.iter().for_each(|&n| ok(unsafe { millpond_free(all[n]) }));
    let kept = (0..all.len()).filter(|n| n % 3 != 0).map(|n| all[n]).collect();
    (w, kept)
}

/// A request that fails, its report, and the text of it.
struct Failure {
    report: Box<millpond_oom_report>,
    text: Vec<c_char>,
    size: usize,
}

impl Failure {
    fn room() -> Failure {
        let mut report: Box<millpond_oom_report> = Box::new(unsafe { std::mem::zeroed() });
        report.struct_size = size_of::<millpond_oom_report>();
        Failure { report, text: vec![0; 8192], size: 0 }
    }

    fn of(&mut self, w: World, pool: usize, bytes: usize) {
        let mut block = null_mut();
        let got = unsafe { millpond_pool_alloc(w.pools[pool], bytes, w.streams[0], &mut block) };
        let (code, text) = (unsafe { millpond_last_oom(&mut *self.report) }, self.text.as_mut_ptr());
        let told = unsafe { millpond_oom_report_text(&*self.report, text, self.text.len(), &mut self.size) };
        // Without words, which would take memory.
        assert!(got != C_Status::SUCCESS && code == C_Status::SUCCESS && told == C_Status::SUCCESS);
    }

    #[track_caller]
    fn is_told(&self, pool: &str) {
        let r = &self.report;
        assert_eq!(r.missing & !MILLPOND_OOM_MISSING_DEVICE_FREE, 0);
        assert_eq!((r.pool_count, r.stream_count, r.tag_count), (2, 2, 2));
        assert!(r.live_bytes > 100 << 20);
        let text = unsafe { CStr::from_ptr(self.text.as_ptr()) }.to_str().unwrap();
        assert_eq!(text.len() + 1, self.size);
        for part in ["asked for: ", "biggest pools:", "tag 'kv_cache'", "advice: ", pool] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let line = unsafe { CStr::from_ptr(millpond_last_error_message()) }.to_str().unwrap();
        assert!(line.contains(pool) && line.contains("no room for"), "{line}");
    }
}

static CALLS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C-unwind" fn hear(_: *mut c_void, report: *const millpond_oom_report) -> bool {
    CALLS.fetch_add(u64::from(unsafe { (*report).pool_count } == 2), Relaxed);
    false
}

fn costs_nothing(mapping: bool) {
    let (w, kept) = full(mapping);
    let mut f = Failure::room();
    // In segments a larger one is a segment of its own.
    let most = if mapping { 200 * MIB } else { 48 * MIB };
    // The first ones of this thread: lists of the search for memory get their length, and the thread its seats in locks.
    (0..200).for_each(|_| f.of(w, 0, most));
    for (pool, label) in [(0, "pool 'weights'"), (1, "pool 'a cache with a long name, of which all")] {
        let before = allocations();
        f.of(w, pool, most);
        // (In segments the search makes lists of what could go back, as long as the host has memory for them.)
        assert!(!mapping || allocations() == before, "{} allocations", allocations() - before);
        f.is_told(label);
        without_any(|| (0..100).for_each(|_| f.of(w, pool, most)));
        f.is_told(label);
    }
    // Threads that fail for the first time when there is nothing left, and have allocated before.
    std::thread::scope(|s| {
        for _ in 0..6 {
            s.spawn(move || {
                let (mut f, mut block) = (Failure::room(), null_mut());
                ok(unsafe { millpond_pool_alloc(w.pools[1], MIB / 2, w.streams[1], &mut block) });
                ok(unsafe { millpond_pool_free(w.pools[1], block, w.streams[1]) });
                without_any(|| f.of(w, 1, most));
                f.is_told("pool 'a cache");
            });
        }
    });
    // With a handler, and where a limit forbids it.
    let mut id = 0;
    ok(unsafe { millpond_device_add_oom_handler(w.device, Some(hear), null_mut(), &mut id) });
    ok(unsafe { millpond_pool_set_limit(w.pools[0], 150 << 20) });
    CALLS.store(0, Relaxed);
    f.of(w, 0, 140 * MIB);
    without_any(|| f.of(w, 0, 140 * MIB));
    f.is_told("the pool's limit is reached");
    assert_eq!(CALLS.load(Relaxed), 2);
    kept.into_iter().for_each(|p| ok(unsafe { millpond_free(p) }));
    ok(millpond_finalize());
}

/// Makes a call with more and more of the host's memory until it succeeds; returns how often it was refused.
fn with_little(mut call: impl FnMut() -> C_Status) -> usize {
    let amounts = (0..2048).step_by(16).chain((2048..1 << 20).step_by(2048));
    for (refused, bytes) in amounts.enumerate() {
        // No words before the thread has memory again.
        let got = with_no_more_than(bytes, &mut call);
        if got == C_Status::SUCCESS {
            return refused;
        }
        let said = unsafe { CStr::from_ptr(millpond_last_error_message()) }.to_string_lossy();
        assert_eq!(millpond_last_error_code(), MILLPOND_E_OUT_OF_MEMORY, "{bytes} bytes: {said}");
        assert!(said.contains("host"), "{bytes} bytes: {said}");
    }
    let said = unsafe { CStr::from_ptr(millpond_last_error_message()) }.to_string_lossy();
    panic!("it never succeeds: {said}");
}

fn stats_of(device: *mut millpond_device) -> millpond_stats {
    let mut stats: millpond_stats = unsafe { std::mem::zeroed() };
    stats.struct_size = size_of::<millpond_stats>();
    ok(unsafe { millpond_device_get_stats(device, &mut stats) });
    stats
}

fn new_streams_and_pools(mapping: bool) {
    let (w, kept) = full(mapping);
    kept.into_iter().for_each(|p| ok(unsafe { millpond_free(p) }));
    let before = stats_of(w.device).allocated_bytes.current;
    let mut blocks = Vec::new();
    let mut refused = 0;
    for round in 0..40 {
        // The lists of all heaps get longer now and then, not with each heap.
        let (mut stream, mut block) = (null_mut(), null_mut());
        ok(unsafe { millpond_stream_create(w.device, &mut stream) });
        let more =
            with_little(|| unsafe { millpond_pool_alloc(w.pools[round % 2], 1000, stream, &mut block) });
        assert!(more > 0, "round {round}: a heap needs memory of the host");
        refused += more;
        blocks.push(block);
        assert_eq!(stats_of(w.device).allocated_bytes.current - before, 1024 * blocks.len() as u64);
    }
    assert!(refused > 100);
    let mut pools = Vec::new();
    for _ in 0..100 {
        let mut pool = null_mut();
        let create = || unsafe { millpond_pool_create(w.device, std::ptr::null(), &mut pool) };
        with_little(create);
        pools.push(pool);
    }
    for (n, &pool) in pools.iter().enumerate() {
        let mut block = null_mut();
        let stream = w.streams[n % 2];
        with_little(|| unsafe { millpond_pool_alloc(pool, 1000, stream, &mut block) });
        ok(unsafe { millpond_free(block) });
        ok(unsafe { millpond_pool_destroy(pool) });
    }
    blocks.into_iter().for_each(|p| ok(unsafe { millpond_free(p) }));
    assert_eq!(stats_of(w.device).allocated_bytes.current, before);
    ok(millpond_finalize());
}

#[test]
fn a_stream_or_a_pool_that_the_host_has_no_room_for_is_refused() {
    apart_for(120, || {
        new_streams_and_pools(true);
        new_streams_and_pools(false);
    });
}

/// Frees of blocks that must wait for 12 other streams, whose work does not go on meanwhile.
fn frees_that_wait(mapping: bool) {
    let (w, kept) = full(mapping);
    kept.into_iter().for_each(|p| ok(unsafe { millpond_free(p) }));
    ok(unsafe { millpond_device_empty_cache(w.device) });
    let [before, held] =
        [stats_of(w.device).allocated_bytes.current, stats_of(w.device).active_bytes.current];
    let (mut others, mut gates) = (Vec::new(), Vec::new());
    for _ in 0..12 {
        let mut stream = null_mut();
        ok(unsafe { millpond_stream_create(w.device, &mut stream) });
        gates.push(Gate::new(w.device, stream));
        others.push(stream);
    }
    let (bytes, count) = (64 << 10, 700);
    let mut blocks = vec![null_mut(); count];
    for (n, block) in blocks.iter_mut().enumerate() {
        ok(match n % 10 {
            // The free of one without a stream waits for all of them.
            0 | 1 => unsafe { millpond_alloc(w.device, bytes, block) },
            _ => unsafe { millpond_pool_alloc(w.pools[n % 2], bytes, w.streams[n / 2 % 2], block) },
        });
    }
    let now = || stats_of(w.device).allocated_bytes.current;
    let (all, mut refused) = (now(), 0);
    for (n, &block) in blocks.iter().enumerate() {
        let (pool, other) = (w.pools[n % 2], others[n % 12]);
        let used = || unsafe { millpond_record_stream(block, other) };
        match n % 4 {
            0 => refused += with_little(used),
            1 => refused += with_little(|| unsafe { millpond_record_end(block, other) }),
            _ => {}
        }
        assert_eq!(now(), all - (bytes * n) as u64);
        refused += with_little(|| match n % 4 {
            _ if n % 10 < 2 => unsafe { millpond_free(block) },
            0 | 1 => unsafe { millpond_free(block) },
            _ => unsafe { millpond_pool_free(pool, block, other) },
        });
        assert_eq!(now(), all - (bytes * (n + 1)) as u64, "block {n}");
    }
    assert!(refused > 700, "{refused}");
    // All wait, whatever looks for memory. (A large one of segments is one of its own.)
    let active = || stats_of(w.device).active_bytes.current - held;
    assert_eq!(active(), (bytes * count) as u64);
    let mut f = Failure::room();
    without_any(|| (0..20).for_each(|_| f.of(w, 0, if mapping { 240 * MIB } else { 224 * MIB })));
    assert_eq!(active(), (bytes * count) as u64);
    gates.into_iter().for_each(Gate::open);
    others.iter().for_each(|&s| ok(unsafe { millpond_stream_synchronize(w.device, s) }));
    assert_eq!((now(), active()), (before, 0));
    ok(millpond_finalize());
}

#[test]
fn a_free_that_waits_may_find_the_host_without_memory() {
    apart_for(120, || {
        frees_that_wait(true);
        frees_that_wait(false);
    });
}

#[test]
fn captures_limits_and_statistics_may_find_the_host_without_memory() {
    apart_for(120, || {
        let (w, kept) = full(true);
        kept.into_iter().for_each(|p| ok(unsafe { millpond_free(p) }));
        let mut captures = Vec::new();
        for _ in 0..20 {
            let (mut stream, mut capture) = (null_mut(), null_mut());
            ok(unsafe { millpond_stream_create(w.device, &mut stream) });
            let begin = || unsafe { millpond_capture_begin(w.pools[0], stream, &mut capture) };
            assert!(with_little(begin) > 0);
            captures.push(capture);
        }
        without_any(|| ok(unsafe { millpond_device_set_limit(w.device, 100 << 20) }));
        let mut stats: Box<millpond_memory_stats> = Box::new(unsafe { std::mem::zeroed() });
        stats.struct_size = size_of::<millpond_memory_stats>();
        assert!(with_little(|| unsafe { millpond_device_get_memory_stats(w.device, &mut *stats) }) > 0);
        assert_eq!(stats.limit_bytes, 100 << 20);
        captures.into_iter().for_each(|c| ok(unsafe { millpond_capture_release(c) }));
        ok(millpond_finalize());
    });
}

#[test]
fn a_failing_request_takes_no_memory_of_the_host() {
    apart_for(120, || {
        costs_nothing(true);
        costs_nothing(false);
    });
}
