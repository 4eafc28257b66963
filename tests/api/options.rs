//! Options through the C API: each one's effect, on both kinds of device, and what is refused.

use crate::support::alone;
use crate::support::capi::*;
use millpond::capi::*;
use millpond::runtime;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};

const MIB: usize = 1 << 20;

/// Starts the library anew: two host devices of 256 MiB.
fn fresh(mapping: bool) {
    let _ = runtime::finalize();
    let options = millpond_host_options {
        struct_size: size_of::<millpond_host_options>(),
        device_count: 2,
        capacity_bytes: 256 << 20,
        disable_mapping: u32::from(!mapping),
    };
    ok(unsafe { millpond_host_configure(&options) });
}

/// Runs `test` on both kinds of device, each started anew with `defaults`.
fn on_both(defaults: &str, test: impl Fn(*mut millpond_device)) {
    let _alone = alone();
    for mapping in [true, false] {
        fresh(mapping);
        ok(set_default(None, -1, defaults));
        let d = host(0);
        let maps = if mapping && !defaults.contains("expandable_segments:False") { "True" } else { "False" };
        if !defaults.contains("backend:none") {
            assert_eq!(option(d, "expandable_segments"), maps);
        }
        test(d);
    }
    let _ = runtime::finalize();
}

fn host(ordinal: i32) -> *mut millpond_device {
    let mut d = null_mut();
    ok(unsafe { millpond_device_get(c"host".as_ptr(), ordinal, &mut d) });
    d
}

fn set_default(type_name: Option<&CStr>, ordinal: i32, text: &str) -> C_Status {
    let text = CString::new(text).unwrap();
    unsafe { millpond_set_default_options(type_name.map_or(null(), CStr::as_ptr), ordinal, text.as_ptr()) }
}

fn set(d: *mut millpond_device, text: &str) -> C_Status {
    let text = CString::new(text).unwrap();
    unsafe { millpond_device_set_options(d, text.as_ptr()) }
}

pub fn option(d: *mut millpond_device, key: &str) -> String {
    let key = CString::new(key).unwrap();
    let mut out = [0 as c_char; MILLPOND_OPTION_BYTES];
    ok(unsafe { millpond_device_get_option(d, key.as_ptr(), out.as_mut_ptr(), out.len()) });
    unsafe { CStr::from_ptr(out.as_ptr()) }.to_str().unwrap().to_owned()
}

fn options(d: *mut millpond_device) -> String {
    let mut out = [0 as c_char; MILLPOND_OPTIONS_BYTES];
    ok(unsafe { millpond_device_get_options(d, out.as_mut_ptr(), out.len()) });
    unsafe { CStr::from_ptr(out.as_ptr()) }.to_str().unwrap().to_owned()
}

fn source(d: *mut millpond_device, key: &CStr) -> String {
    let mut out = [0 as c_char; MILLPOND_OPTION_BYTES];
    ok(unsafe { millpond_device_get_option_source(d, key.as_ptr(), out.as_mut_ptr(), out.len()) });
    unsafe { CStr::from_ptr(out.as_ptr()) }.to_str().unwrap().to_owned()
}

fn pool(d: *mut millpond_device) -> *mut millpond_pool {
    let mut p = null_mut();
    ok(unsafe { millpond_device_get_default_pool(d, &mut p) });
    p
}

fn try_take(d: *mut millpond_device, bytes: usize) -> Result<*mut c_void, u32> {
    let mut p = null_mut();
    match unsafe { millpond_pool_alloc(pool(d), bytes, null_mut(), &mut p) } {
        C_Status::SUCCESS => Ok(p),
        _ => Err(code()),
    }
}

#[track_caller]
pub fn take(d: *mut millpond_device, bytes: usize) -> *mut c_void {
    try_take(d, bytes).unwrap_or_else(|e| panic!("{e}: {}", message()))
}

#[track_caller]
pub fn give(d: *mut millpond_device, p: *mut c_void) {
    ok(unsafe { millpond_pool_free(pool(d), p, null_mut()) });
}

fn size(p: *mut c_void) -> usize {
    let mut b: millpond_block_info = unsafe { std::mem::zeroed() };
    b.struct_size = size_of::<millpond_block_info>();
    ok(unsafe { millpond_get_block(p, &mut b) });
    b.size_bytes
}

/// Writes all of a block and reads it again, so that it is known to be memory.
fn touch(d: *mut millpond_device, p: *mut c_void, bytes: usize) {
    ok(unsafe { millpond_memset(d, p, 0x5a, bytes) });
    let mut back = vec![0u8; bytes];
    ok(unsafe { millpond_copy(d, MILLPOND_COPY_D2H, back.as_mut_ptr().cast(), p, bytes) });
    assert!(back.iter().all(|&b| b == 0x5a));
}

#[test]
fn each_option_says_where_it_is_from() {
    let _alone = alone();
    for mapping in [true, false] {
        fresh(mapping);
        ok(set_default(None, -1, "garbage_collection_threshold:0.5,expandable_segments:True"));
        let d = host(0);
        assert_eq!(source(d, c"garbage_collection_threshold"), "program");
        // A device that cannot map has segments, whatever was asked for.
        assert_eq!(source(d, c"expandable_segments"), if mapping { "program" } else { "device" });
        assert_eq!(source(d, c"max_split_size_mb"), "built in");
        ok(set(d, "max_split_size_mb:64"));
        assert_eq!(source(d, c"max_split_size_mb"), "program");
        let mut out = [0 as c_char; MILLPOND_OPTION_BYTES];
        let unknown =
            unsafe { millpond_device_get_option_source(d, c"backed".as_ptr(), out.as_mut_ptr(), out.len()) };
        fails(unknown, MILLPOND_E_INVALID_ARGUMENT);
    }
    let _ = runtime::finalize();
}

/// What a device lacks has a reason, what it has has none, and two capabilities at once are refused.
#[test]
fn what_a_device_lacks_has_a_reason() {
    let _alone = alone();
    for mapping in [true, false] {
        fresh(mapping);
        let d = host(0);
        let reason = |cap: u32, room: usize| {
            let mut out = [1 as c_char; 512];
            ok(unsafe { millpond_device_get_reason(d, cap, out.as_mut_ptr(), room) });
            unsafe { CStr::from_ptr(out.as_ptr()) }.to_str().unwrap().to_owned()
        };
        assert_eq!(reason(MILLPOND_CAP_MAPPING, 512).contains("MILLPOND_HOST_MAPPING=0"), !mapping);
        assert_eq!(reason(MILLPOND_CAP_MAPPING, 512).is_empty(), mapping);
        assert!(reason(MILLPOND_CAP_MAPPING, 8).len() < 8);
        assert_eq!(reason(MILLPOND_CAP_STREAMS, 512), "");
        let mut out = [0 as c_char; 8];
        for (cap, room) in [(0, 8), (3, 8), (1 << 20, 8), (1, 0)] {
            let asked = unsafe { millpond_device_get_reason(d, cap, out.as_mut_ptr(), room) };
            fails(asked, MILLPOND_E_INVALID_ARGUMENT);
        }
    }
    let _ = runtime::finalize();
}

#[test]
fn backend_none_passes_each_request_to_the_device() {
    on_both("backend:none", |d| {
        assert_eq!(option(d, "backend"), "none");
        for i in 1..4u64 {
            let p = take(d, 3 * MIB + 5);
            touch(d, p, 3 * MIB + 5);
            give(d, p);
            let s = device_stats(d);
            assert_eq!((s.reserved_bytes.current, s.driver_calls), (0, 2 * i));
        }
    });
    // The pond keeps what is freed.
    on_both("backend:native", |d| {
        give(d, take(d, 3 * MIB));
        let before = device_stats(d);
        assert!(before.reserved_bytes.current > 0);
        give(d, take(d, 3 * MIB));
        assert_eq!(device_stats(d).driver_calls, before.driver_calls);
    });
}

#[test]
fn a_backend_that_the_device_lacks_is_unsupported() {
    let _alone = alone();
    for mapping in [true, false] {
        fresh(mapping);
        ok(set_default(Some(c"host"), 1, "backend:cudaMallocAsync"));
        let mut d = null_mut();
        fails(unsafe { millpond_device_get(c"host".as_ptr(), 1, &mut d) }, MILLPOND_E_UNSUPPORTED);
        assert!(message().contains("cudaMallocAsync") && message().contains("native"), "{}", message());
        give(host(0), take(host(0), MIB));
        // The next try may find other defaults.
        ok(set_default(Some(c"host"), 1, "backend:none"));
        assert_eq!(option(host(1), "backend"), "none");
    }
}

#[test]
fn max_split_size_keeps_large_blocks_whole() {
    on_both("max_split_size_mb:32", |d| {
        assert_eq!(option(d, "max_split_size_mb"), "32");
        let kept = take(d, 60 * MIB);
        give(d, kept);
        let before = device_stats(d).reserved_bytes.current;
        let small = take(d, 10 * MIB);
        assert!(!(kept.addr()..kept.addr() + 60 * MIB).contains(&small.addr()));
        assert!(device_stats(d).reserved_bytes.current > before);
        // A request that is at most 20 MiB smaller gets all of it.
        let large = take(d, 41 * MIB);
        assert_eq!((large, size(large)), (kept, 60 * MIB));
        touch(d, large, 41 * MIB);
        fails(unsafe { millpond_free_sized(large, 60 * MIB) }, MILLPOND_E_WRONG_SIZE);
        ok(unsafe { millpond_free_sized(large, 41 * MIB) });
        // Without the option it is cut again.
        ok(set(d, "max_split_size_mb:unlimited"));
        let inside = take(d, 57 * MIB);
        assert_eq!((inside, size(inside)), (kept, 57 * MIB));
        give(d, inside);
        give(d, small);
        assert_eq!(device_stats(d).allocated_bytes.current, 0);
    });
}

#[test]
fn max_non_split_rounding_bounds_the_waste_of_whole_blocks() {
    on_both("max_split_size_mb:32,max_non_split_rounding_mb:5", |d| {
        let kept = take(d, 60 * MIB);
        give(d, kept);
        let p = take(d, 54 * MIB);
        assert_ne!(p, kept);
        assert_eq!(size(p), 54 * MIB);
        give(d, p);
        ok(set(d, "max_non_split_rounding_mb:0"));
        let p = take(d, 59 * MIB);
        assert_ne!(p, kept);
        let q = take(d, 60 * MIB);
        assert_eq!(q, kept);
        give(d, p);
        give(d, q);
    });
}

#[test]
fn roundup_makes_near_sizes_equal() {
    on_both("roundup_power2_divisions:4", |d| {
        assert_eq!(option(d, "roundup_power2_divisions"), "4");
        for (bytes, want) in [(9 * MIB, 10 * MIB), (17 * MIB, 20 * MIB), (1000, 1024), (40 * MIB, 40 * MIB)] {
            let p = take(d, bytes);
            assert_eq!(size(p), want);
            assert_eq!(device_stats(d).allocated_bytes.current, want as u64);
            assert_eq!(device_stats(d).requested_bytes.current, bytes as u64);
            touch(d, p, bytes);
            give(d, p);
        }
        // A list: an entry is for sizes from its MiB to twice that, the first also for all below.
        ok(set(d, "roundup_power2_divisions:[8:1,16:2,32:0,>:4]"));
        assert_eq!(option(d, "roundup_power2_divisions"), "[1:1,2:1,4:1,8:1,16:2,32:1,>:4]");
        for (bytes, want) in [(9, 9), (17, 24), (33, 33), (65, 80)] {
            let p = take(d, bytes * MIB);
            assert_eq!(size(p), want * MIB);
            give(d, p);
        }
        ok(set(d, "roundup_power2_divisions:0"));
        let p = take(d, 17 * MIB);
        assert_eq!(size(p), 17 * MIB);
        give(d, p);
    });
}

#[test]
fn collection_gives_unused_memory_back_before_more_is_taken() {
    on_both("garbage_collection_threshold:0.5,large_segment_size_mb:2", |d| {
        let mut other = null_mut();
        ok(unsafe { millpond_pool_create(d, null(), &mut other) });
        let mut idle = [null_mut(); 10];
        for p in &mut idle {
            ok(unsafe { millpond_pool_alloc(other, 10 * MIB, null_mut(), p) });
        }
        for p in idle {
            ok(unsafe { millpond_pool_free(other, p, null_mut()) });
        }
        let a = take(d, 20 * MIB);
        assert!(
            device_stats(d).reserved_bytes.current >= 120 << 20,
            "below half of 256 MiB nothing goes back"
        );
        let b = take(d, 40 * MIB);
        let s = device_stats(d).reserved_bytes;
        assert!(s.current <= 128 << 20 && s.peak <= 128 << 20, "{s:?}");
        // Off: idle memory of other pools is left alone while the device has more.
        ok(set(d, "garbage_collection_threshold:0"));
        let c = take(d, 60 * MIB);
        assert!(device_stats(d).reserved_bytes.current > 128 << 20);
        [a, b, c].into_iter().for_each(|p| give(d, p));
        ok(unsafe { millpond_pool_destroy(other) });
    });
}

#[test]
fn expandable_segments_off_means_segments() {
    for (text, merges) in [("expandable_segments:True", true), ("expandable_segments:False", false)] {
        let _alone = alone();
        fresh(true);
        ok(set_default(None, -1, text));
        let d = host(0);
        assert_eq!(option(d, "expandable_segments"), if merges { "True" } else { "False" });
        // Every other block of 4 MiB free, and more than the device's rest in sum.
        let all: Vec<_> = (0..48).map(|_| take(d, 4 * MIB)).collect();
        let segments = device_stats(d).segments.current;
        assert!(if merges { segments == 96 } else { segments < 24 }, "{segments} segments");
        all.iter().step_by(2).for_each(|&p| give(d, p));
        let large = try_take(d, 150 * MIB);
        assert_eq!(large.is_ok(), merges, "{}", message());
        if let Ok(p) = large {
            touch(d, p, 150 * MIB);
        }
        fails(
            set(d, &format!("expandable_segments:{}", if merges { "False" } else { "True" })),
            MILLPOND_E_BUSY,
        );
        assert!(message().starts_with("expandable_segments is "), "{}", message());
        ok(set(d, text)); // no change
        ok(millpond_finalize());
    }
}

#[test]
fn large_segment_size_is_what_is_taken_at_a_time() {
    on_both("large_segment_size_mb:20", |d| {
        let a = take(d, 3 * MIB);
        assert_eq!(device_stats(d).reserved_bytes.current, 20 << 20);
        let calls = device_stats(d).driver_calls;
        let b = take(d, 16 * MIB);
        assert_eq!(device_stats(d).driver_calls, calls, "it lies in the same segment");
        ok(set(d, "large_segment_size_mb:40"));
        let c = take(d, 5 * MIB);
        assert_eq!(device_stats(d).reserved_bytes.current, 60 << 20);
        [a, b, c].into_iter().for_each(|p| give(d, p));
    });
}

#[test]
fn the_fraction_bounds_what_is_reserved() {
    on_both("per_process_memory_fraction:0.25,large_segment_size_mb:2", |d| {
        assert_eq!(device_stats(d).limit_bytes, 64 << 20);
        let p = take(d, 60 * MIB);
        assert_eq!(try_take(d, 10 * MIB), Err(MILLPOND_E_OUT_OF_MEMORY));
        ok(set(d, "per_process_memory_fraction:0.5"));
        let q = take(d, 10 * MIB);
        // The lower of this and the program's own limit.
        ok(unsafe { millpond_device_set_limit(d, 200 << 20) });
        assert_eq!(device_stats(d).limit_bytes, 128 << 20);
        ok(unsafe { millpond_device_set_limit(d, 80 << 20) });
        assert_eq!(device_stats(d).limit_bytes, 80 << 20);
        assert_eq!(try_take(d, 30 * MIB), Err(MILLPOND_E_OUT_OF_MEMORY));
        ok(unsafe { millpond_device_set_limit(d, 0) });
        ok(set(d, "per_process_memory_fraction:1"));
        assert_eq!(device_stats(d).limit_bytes, 0);
        let r = take(d, 100 * MIB);
        [p, q, r].into_iter().for_each(|p| give(d, p));
        ok(unsafe { millpond_device_empty_cache(d) });
        ok(set(d, "per_process_memory_fraction:0"));
        assert_eq!(try_take(d, 1), Err(MILLPOND_E_OUT_OF_MEMORY));
    });
    on_both("per_process_memory_fraction:0.25,backend:none", |d| {
        let p = take(d, 60 * MIB);
        assert_eq!(try_take(d, 10 * MIB), Err(MILLPOND_E_OUT_OF_MEMORY));
        give(d, p);
    });
}

#[test]
fn throw_on_oom_spares_the_device_a_request_that_must_fail() {
    for backend in ["native", "none"] {
        on_both(&format!("backend:{backend},throw_on_cudamalloc_oom:True"), |d| {
            // Unified memory counts against the device, and the pond does not know of it.
            let mut u = null_mut();
            ok(unsafe { millpond_unified_alloc(d, 200 * MIB, &mut u) });
            let before = device_stats(d).driver_calls;
            assert_eq!(try_take(d, 60 * MIB), Err(MILLPOND_E_OUT_OF_MEMORY));
            assert!(message().contains("throw_on_cudamalloc_oom") || backend == "none", "{}", message());
            assert_eq!(device_stats(d).driver_calls, before);
            ok(set(d, "throw_on_cudamalloc_oom:False"));
            assert_eq!(try_take(d, 60 * MIB), Err(MILLPOND_E_OUT_OF_MEMORY));
            assert!(device_stats(d).driver_calls > before);
            ok(set(d, "throw_on_cudamalloc_oom:True"));
            ok(unsafe { millpond_unified_free(d, u) });
            give(d, take(d, 60 * MIB));
        });
    }
}

#[test]
fn options_without_effect_are_kept_and_told() {
    on_both("", |d| {
        for (key, value) in [
            ("release_lock_on_cudamalloc", "True"),
            ("graph_capture_record_stream_reuse", "True"),
            ("pinned_use_background_threads", "True"),
            ("pinned_free_catch_all", "True"),
            ("pinned_reserve_segment_size_mb", "256"),
        ] {
            assert_ne!(option(d, key), value);
            ok(set(d, &format!("{key}:{value}")));
            assert_eq!(option(d, key), value);
        }
        ok(set(d, "release_lock_on_hipmalloc:False"));
        assert_eq!(option(d, "release_lock_on_cudamalloc"), "False");
    });
}

#[test]
fn defaults_are_for_devices_that_come_later_and_the_last_one_wins() {
    let _alone = alone();
    fresh(true);
    let first = host(0);
    ok(set_default(Some(c"host"), -1, "max_split_size_mb:1,large_segment_size_mb:7"));
    ok(set_default(None, 1, "max_split_size_mb:2"));
    ok(set_default(Some(c"other"), -1, "max_split_size_mb:3"));
    ok(set_default(None, 5, "max_split_size_mb:4"));
    assert_eq!(option(first, "max_split_size_mb"), "unlimited", "it was open already");
    let second = host(1);
    assert_eq!(option(second, "max_split_size_mb"), "2");
    assert_eq!(option(second, "large_segment_size_mb"), "7");
    // The text of all options sets them all again.
    ok(set(second, "garbage_collection_threshold:0.25"));
    let all = options(second);
    assert!(all.contains(",garbage_collection_threshold:0.25,"), "{all}");
    ok(set(first, &all));
    assert_eq!(options(first), all);
    // The end of the library forgets them.
    fresh(true);
    assert_eq!(option(host(1), "max_split_size_mb"), "unlimited");
    ok(millpond_finalize());
}

#[test]
fn a_wrong_text_changes_nothing() {
    on_both("", |d| {
        let before = options(d);
        fails(set(d, "max_split_size_mb:64,garbage_colection_threshold:0.8"), MILLPOND_E_INVALID_ARGUMENT);
        let want = "options, column 22: there is no option \"garbage_colection_threshold\"; did you mean \
                    \"garbage_collection_threshold\"?";
        assert_eq!(message(), want);
        fails(set(d, "max_split_size_mb:64,backend:none"), MILLPOND_E_BUSY);
        fails(set(d, "max_split_size_mb:64,,"), MILLPOND_E_INVALID_ARGUMENT);
        assert_eq!(options(d), before);
        fails(set_default(None, -1, "max_split_size_mb:64,x:1"), MILLPOND_E_INVALID_ARGUMENT);
        fails(set_default(None, -2, ""), MILLPOND_E_INVALID_ARGUMENT);
        assert_eq!(option(host(1), "max_split_size_mb"), "unlimited");
    });
}

#[test]
fn bad_arguments() {
    on_both("", |d| {
        let mut out = [0 as c_char; MILLPOND_OPTION_BYTES];
        let (key, text) = (c"backend".as_ptr(), c"backend:native".as_ptr());
        let bad = MILLPOND_E_INVALID_ARGUMENT;
        fails(unsafe { millpond_set_default_options(null(), -1, null()) }, bad);
        fails(unsafe { millpond_device_set_options(d, null()) }, bad);
        fails(unsafe { millpond_device_set_options(null_mut(), text) }, bad);
        fails(unsafe { millpond_device_set_options(d, c"\xff".as_ptr()) }, bad);
        fails(unsafe { millpond_device_get_option(d, null(), out.as_mut_ptr(), out.len()) }, bad);
        fails(unsafe { millpond_device_get_option(d, key, null_mut(), out.len()) }, bad);
        fails(unsafe { millpond_device_get_option(d, key, out.as_mut_ptr(), 6) }, bad);
        ok(unsafe { millpond_device_get_option(d, key, out.as_mut_ptr(), 7) });
        fails(unsafe { millpond_device_get_option(d, c"backed".as_ptr(), out.as_mut_ptr(), out.len()) }, bad);
        assert!(message().ends_with("did you mean \"backend\"?"), "{}", message());
        fails(unsafe { millpond_device_get_options(d, null_mut(), 0) }, bad);
        fails(unsafe { millpond_device_get_options(d, out.as_mut_ptr(), 9) }, bad);
        // The longest texts that there are.
        let ones: Vec<String> = (0..15).map(|i| format!("{}:{}", 1 << i, 1 << (15 - i % 2))).collect();
        ok(set(d, &format!("roundup_power2_divisions:[{},>:32768]", ones.join(","))));
        ok(set(d, "max_split_size_mb:99999999999999999999999999"));
        let _ = (option(d, "roundup_power2_divisions"), options(d));
    });
    let _alone = alone();
    fresh(true);
    let d = host(0);
    ok(millpond_finalize());
    fails(unsafe { millpond_device_set_options(d, c"".as_ptr()) }, MILLPOND_E_NOT_INITIALIZED);
}

#[test]
fn options_change_while_threads_allocate() {
    let texts = [
        "max_split_size_mb:1,max_non_split_rounding_mb:1",
        "max_split_size_mb:unlimited,roundup_power2_divisions:8",
        "roundup_power2_divisions:[2:4],garbage_collection_threshold:0.05",
        "max_split_size_mb:3,garbage_collection_threshold:0.3,large_segment_size_mb:8",
        "roundup_power2_divisions:0,garbage_collection_threshold:0,large_segment_size_mb:default",
    ];
    on_both("", |d| {
        let device = d.expose_provenance();
        std::thread::scope(|s| {
            for seed in 1..5usize {
                s.spawn(move || {
                    let d = std::ptr::with_exposed_provenance_mut(device);
                    let mut stream = null_mut();
                    ok(unsafe { millpond_stream_create(d, &mut stream) });
                    let mut live: Vec<(*mut c_void, usize)> = Vec::new();
                    let mut x = seed * 0x9e37_79b9;
                    for _ in 0..3000 {
                        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed);
                        let bytes = 1 + (x >> 33) % (1 << (8 + (x >> 20) % 15));
                        let mut p = null_mut();
                        ok(unsafe { millpond_pool_alloc(pool(d), bytes, stream, &mut p) });
                        // The first and the last byte are the block's own.
                        unsafe { p.cast::<u8>().write(seed as u8) };
                        unsafe { p.cast::<u8>().add(bytes - 1).write(seed as u8) };
                        live.push((p, bytes));
                        if live.len() > 8 {
                            let (p, bytes) = live.swap_remove((x >> 40) % 8);
                            assert_eq!(unsafe { p.cast::<u8>().add(bytes - 1).read() }, seed as u8);
                            assert_eq!(unsafe { p.cast::<u8>().read() }, seed as u8);
                            ok(unsafe { millpond_pool_free(pool(d), p, stream) });
                        }
                    }
                    for (p, bytes) in live {
                        ok(unsafe { millpond_free_sized(p, bytes) });
                    }
                    ok(unsafe { millpond_stream_destroy(d, stream) });
                });
            }
            for i in 0..200 {
                ok(set(d, texts[i % texts.len()]));
                std::thread::yield_now();
            }
        });
        let s = device_stats(d);
        assert_eq!((s.requested_bytes.current, s.allocated_bytes.current, s.blocks.current), (0, 0, 0));
        ok(unsafe { millpond_device_empty_cache(d) });
        assert_eq!(device_stats(d).reserved_bytes.current, 0);
    });
}
