//! What the library says when the host has no memory left: of mistakes, and where lists of its own grow. Who has no memory
//! for the words still gets the code; a list grows or the call says that it cannot, and no call ends the process.

use crate::apart::apart_for;
use crate::host_memory::{with_no_more_than, without_any};
use millpond::capi::*;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const MIB: usize = 1 << 20;

#[track_caller]
fn ok(status: C_Status) {
    let text = || unsafe { CStr::from_ptr(millpond_last_error_message()) }.to_string_lossy().into_owned();
    assert_eq!(status, C_Status::SUCCESS, "{}", text());
}

struct World {
    device: *mut millpond_device,
    pool: *mut millpond_pool,
    stream: C_Stream,
}

fn world(mapping: bool) -> World {
    let host = millpond_host_options {
        struct_size: size_of::<millpond_host_options>(),
        device_count: 1,
        capacity_bytes: 1 << 30,
        disable_mapping: u32::from(!mapping),
    };
    ok(unsafe { millpond_host_configure(&host) });
    let mut w = World { device: null_mut(), pool: null_mut(), stream: null_mut() };
    ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut w.device) });
    ok(unsafe { millpond_pool_create(w.device, null(), &mut w.pool) });
    ok(unsafe { millpond_stream_create(w.device, &mut w.stream) });
    w
}

fn alloc(w: &World, bytes: usize) -> *mut c_void {
    let mut block = null_mut();
    ok(unsafe { millpond_pool_alloc(w.pool, bytes, w.stream, &mut block) });
    block
}

/// A call that fails for lack of the host's memory, or for another reason, gets so little that no words fit.
#[track_caller]
fn is(code: u32, call: impl Fn() -> C_Status) {
    for bytes in [0, 64, 128, 192] {
        let got = with_no_more_than(bytes, &call);
        assert_ne!(got, C_Status::SUCCESS);
        let (is, refused) = (millpond_last_error_code(), MILLPOND_E_OUT_OF_MEMORY);
        assert!(is == code || is == refused, "{bytes} bytes: {is}, not {code}");
    }
    call();
    assert_eq!(millpond_last_error_code(), code);
}

fn mistakes(mapping: bool) {
    let w = world(mapping);
    let (block, gone) = (alloc(&w, MIB), alloc(&w, 3000));
    ok(unsafe { millpond_free(gone) });
    let bad = without_provenance_mut::<c_void>(0x12340);
    let (mut p, mut n, mut q, mut f) = (null_mut(), 0_usize, false, 0.0);
    let (p, n, q, f) = (&raw mut p, &raw mut n, &raw mut q, &raw mut f);
    let mut event = null_mut();
    ok(unsafe { millpond_event_create(w.device, &mut event) });
    let (d, s) = (w.device, w.stream);
    let (invalid, unknown) = (MILLPOND_E_INVALID_ARGUMENT, MILLPOND_E_UNKNOWN_POINTER);
    let (no_stream, no_event) = (MILLPOND_E_UNKNOWN_STREAM, MILLPOND_E_UNKNOWN_EVENT);
    let mut stats: millpond_stats = unsafe { std::mem::zeroed() };
    is(invalid, || unsafe { millpond_alloc(d, 100, null_mut()) });
    is(invalid, || unsafe { millpond_alloc(d, 100, without_provenance_mut(1)) });
    is(invalid, || unsafe { millpond_pool_alloc(w.pool, 100, s, null_mut()) });
    is(no_stream, || unsafe { millpond_pool_alloc(w.pool, 100, bad.cast(), p) });
    is(invalid, || unsafe { millpond_pool_alloc_batch(w.pool, null(), 3, s, null_mut()) });
    is(invalid, || unsafe { millpond_pool_free_batch(w.pool, null(), 3, s, null_mut()) });
    is(unknown, || unsafe { millpond_free(bad) });
    is(MILLPOND_E_DOUBLE_FREE, || unsafe { millpond_free(gone) });
    is(no_stream, || unsafe { millpond_pool_free(w.pool, block, bad.cast()) });
    is(invalid, || unsafe { millpond_get_usable_size(block, null_mut()) });
    is(unknown, || unsafe { millpond_get_usable_size(bad, n) });
    is(invalid, || unsafe { millpond_device_get_stats(d, null_mut()) });
    is(invalid, || unsafe { millpond_device_get_stats(d, (&raw const stats).cast_mut()) });
    is(no_stream, || unsafe { millpond_stream_query(d, bad.cast(), q) });
    is(no_stream, || unsafe { millpond_stream_synchronize(d, bad.cast()) });
    is(no_event, || unsafe { millpond_stream_wait_event(d, s, bad.cast()) });
    is(no_event, || unsafe { millpond_event_get_elapsed(d, bad.cast(), event, f) });
    is(no_event, || unsafe { millpond_event_destroy(d, bad.cast()) });
    is(no_event, || unsafe { millpond_event_record(d, s, bad.cast()) });
    is(no_stream, || unsafe { millpond_event_record(d, bad.cast(), event) });
    is(no_event, || unsafe { millpond_event_query(d, bad.cast(), q) });
    is(no_event, || unsafe { millpond_event_synchronize(d, bad.cast()) });
    is(MILLPOND_E_UNKNOWN_DEVICE, || {
        let mut text = [0; 100];
        unsafe { millpond_device_type_get_reason(c"hostess".as_ptr(), text.as_mut_ptr(), 100) }
    });
    stats.struct_size = size_of::<millpond_stats>();
    without_any(|| ok(unsafe { millpond_device_get_stats(d, &mut stats) }));
    assert_eq!(stats.blocks.current, 1);
    without_any(|| ok(unsafe { millpond_free(block) }));
    ok(millpond_finalize());
}

#[test]
fn mistakes_are_told_where_the_host_has_no_memory_for_the_words() {
    apart_for(60, || {
        mistakes(true);
        mistakes(false);
    });
}

/// Makes a call with more and more of the host's memory until it succeeds; returns how often it was refused.
#[track_caller]
fn with_little(mut call: impl FnMut() -> C_Status) -> usize {
    // What is checked beforehand are 1000 bytes, or 64 KiB; what a list needs may be more.
    let amounts = [0, 300, 1100, 2000, 4200, 5300, 8300, 17_000, 33_000, 66_000, 70_000, 133_000];
    let more = (18..27).map(|n| 1 << n);
    for (refused, bytes) in amounts.into_iter().chain(more).enumerate() {
        if with_no_more_than(bytes, &mut call) == C_Status::SUCCESS {
            return refused;
        }
        let said = unsafe { CStr::from_ptr(millpond_last_error_message()) }.to_string_lossy();
        assert_eq!(millpond_last_error_code(), MILLPOND_E_OUT_OF_MEMORY, "{bytes} bytes: {said}");
    }
    panic!("it never succeeds");
}

fn names(what: &str, count: usize) -> Vec<CString> {
    (0..count).map(|n| CString::new(format!("{what} {n}")).unwrap()).collect()
}

#[test]
fn tags_and_scopes_may_find_the_host_without_memory() {
    apart_for(60, || {
        let w = world(true);
        let mut blocks = Vec::new();
        for name in names("tag", 300) {
            with_little(|| unsafe { millpond_tag_push(name.as_ptr()) });
            let mut block = null_mut();
            // The block stays untagged where the host has no memory for the sums of a tag.
            with_little(|| unsafe { millpond_alloc(w.device, 3000, &mut block) });
            blocks.push(block);
            ok(millpond_tag_pop());
        }
        let mut count = 0;
        let size = size_of::<millpond_tag_stats>();
        let list = || unsafe { millpond_device_list_tags(w.device, null_mut(), size, 0, &mut count) };
        assert!(with_little(list) > 6 && count > 0 && count <= 300);
        for format in [MILLPOND_STATS_JSON, MILLPOND_STATS_PROMETHEUS] {
            let mut size = 0;
            let write = || unsafe { millpond_device_write_stats(w.device, format, null_mut(), 0, &mut size) };
            assert!(with_little(write) > 6);
        }
        let mut number = 0;
        ok(unsafe { millpond_tag_get_number(c"tag 7".as_ptr(), &mut number) });
        (0..300).for_each(|_| _ = with_little(|| millpond_tag_push_number(number)));
        (0..300).for_each(|_| ok(millpond_tag_pop()));
        let pools: Vec<_> = (0..100)
            .map(|_| {
                let mut pool = null_mut();
                ok(unsafe { millpond_pool_create(w.device, null(), &mut pool) });
                pool
            })
            .collect();
        let scopes: Vec<_> = pools.iter().cycle().take(600).collect();
        scopes.iter().for_each(|&&pool| _ = with_little(|| unsafe { millpond_scope_begin(pool) }));
        scopes.iter().rev().for_each(|&&pool| ok(unsafe { millpond_scope_end(pool) }));
        blocks.into_iter().for_each(|p| ok(unsafe { millpond_free(p) }));
        ok(millpond_finalize());
    });
}

unsafe extern "C-unwind" fn wait(data: *mut c_void, _: C_Status) {
    let open = unsafe { &*data.cast::<AtomicBool>() };
    while !open.load(SeqCst) {
        std::thread::yield_now();
    }
}

fn pinned(w: &World) -> millpond_host_stats {
    let mut stats: millpond_host_stats = unsafe { std::mem::zeroed() };
    stats.struct_size = size_of::<millpond_host_stats>();
    ok(unsafe { millpond_device_get_host_stats(w.device, &mut stats) });
    stats
}

#[test]
fn lists_of_pinned_blocks_may_find_the_host_without_memory() {
    apart_for(60, || {
        let (w, open) = (world(true), AtomicBool::new(false));
        let data = (&raw const open).cast_mut().cast();
        let count = 1300;
        for waits in [false, true] {
            open.store(false, SeqCst);
            let mut blocks = Vec::new();
            for n in 0..count {
                let mut block = null_mut();
                // Half of them of one size, whose list grows as they become free.
                let bytes = if n % 2 == 0 { 3000 } else { 100 + n * 64 };
                with_little(|| unsafe { millpond_host_alloc(w.device, bytes, &mut block) });
                blocks.push(block);
            }
            if waits {
                ok(unsafe { millpond_stream_add_callback(w.device, w.stream, Some(wait), data) });
            }
            for &block in &blocks {
                if waits {
                    with_little(|| unsafe { millpond_host_record_stream(w.device, block, w.stream) });
                }
                with_little(|| unsafe { millpond_host_free(w.device, block) });
            }
            let s = pinned(&w);
            assert_eq!((s.blocks.current, s.pending_bytes > 0), (0, waits));
            open.store(true, SeqCst);
            ok(unsafe { millpond_stream_synchronize(w.device, w.stream) });
            let mut few: millpond_host_stats = unsafe { std::mem::zeroed() };
            few.struct_size = size_of::<millpond_host_stats>();
            // Some cannot be listed yet.
            with_no_more_than(5000, || unsafe { millpond_device_get_host_stats(w.device, &mut few) });
            assert_eq!(pinned(&w).pending_bytes, 0);
        }
        ok(unsafe { millpond_device_empty_host_cache(w.device) });
        assert_eq!(pinned(&w).reserved_bytes.current, 0);
        ok(millpond_finalize());
    });
}

/// Once a list has thousands, it needs more to grow than each call looks for.
#[test]
fn a_long_list_of_unified_blocks_may_find_the_host_without_memory() {
    apart_for(60, || {
        let w = world(true);
        // The device has a list, too, which grows at other times then.
        let pinned: Vec<_> = (0..1000)
            .map(|_| {
                let mut block = null_mut();
                ok(unsafe { millpond_host_alloc(w.device, 100, &mut block) });
                block
            })
            .collect();
        let mut refused = Vec::new();
        let blocks: Vec<_> = (0..5000)
            .map(|_| {
                let mut block = null_mut();
                refused.push(with_little(|| unsafe { millpond_unified_alloc(w.device, 100, &mut block) }));
                block
            })
            .collect();
        let usual = refused[4000];
        // The device's list, and ours.
        assert!(refused.iter().filter(|&&n| n > usual).count() > 1, "a list has grown unseen");
        blocks.into_iter().for_each(|p| ok(unsafe { millpond_unified_free(w.device, p) }));
        pinned.into_iter().for_each(|p| ok(unsafe { millpond_host_free(w.device, p) }));
        ok(millpond_finalize());
    });
}

unsafe extern "C-unwind" fn hear(data: *mut c_void, _: *const millpond_history_event) -> bool {
    unsafe { *data.cast::<usize>() += 1 };
    true
}

#[test]
fn what_is_listed_or_named_may_find_the_host_without_memory() {
    apart_for(60, || {
        let w = world(true);
        let (mut all, mut value) = (memory_stats(), 0);
        let name = c"allocated_bytes.all.current".as_ptr();
        assert_eq!(without_any(|| millpond_memory_stats_name(0)), null::<c_char>());
        assert!(with_little(|| unsafe { millpond_memory_stats_find(&*all, name, &mut value) }) > 6);
        assert!(with_little(|| unsafe { millpond_device_reset_accumulated(w.device) }) > 0);
        assert!(with_little(|| unsafe { millpond_pool_reset_accumulated(w.pool) }) > 0);
        ok(unsafe { millpond_device_get_memory_stats(w.device, &mut *all) });
        let mut id = 0;
        let add = || unsafe { millpond_device_add_oom_handler(w.device, Some(ignore), null_mut(), &mut id) };
        assert!(with_little(add) > 0);
        let add = || unsafe { millpond_pool_add_oom_handler(w.pool, Some(ignore), null_mut(), &mut id) };
        assert!(with_little(add) > 0);
        for _ in 0..200 {
            let (mut stream, mut block) = (null_mut(), null_mut());
            ok(unsafe { millpond_stream_create(w.device, &mut stream) });
            ok(unsafe { millpond_pool_alloc(w.pool, 600, stream, &mut block) });
            ok(unsafe { millpond_free(block) });
        }
        let (mut count, size) = (0, size_of::<millpond_stream_stats>());
        let list = || unsafe {
            millpond_device_list_stream_stats(w.device, null(), null_mut(), size, 0, &mut count)
        };
        assert!(with_little(list) > 6 && count >= 200);
        ok(unsafe { millpond_device_history_start(w.device, null()) });
        (0..2000).for_each(|_| ok(unsafe { millpond_free(alloc(&w, 600)) }));
        let (mut heard, mut lost) = (0_usize, 0);
        let data = (&raw mut heard).cast();
        assert!(
            with_little(|| unsafe { millpond_device_history_read(w.device, Some(hear), data, &mut lost) })
                > 6
        );
        assert!(heard >= 4000);
        ok(unsafe { millpond_device_history_stop(w.device, &mut lost) });
        let path = std::env::temp_dir().join(format!("millpond-oom-lists-{}", std::process::id()));
        let text = CString::new(path.to_str().unwrap()).unwrap();
        ok(unsafe { millpond_device_record_start(w.device, text.as_ptr()) });
        (0..100).for_each(|_| {
            let mut block = null_mut();
            with_little(|| unsafe { millpond_pool_alloc(w.pool, 600, w.stream, &mut block) });
            without_any(|| ok(unsafe { millpond_free(block) }));
        });
        ok(unsafe { millpond_device_record_stop(w.device, &mut lost) });
        std::fs::remove_file(path).unwrap();
        ok(millpond_finalize());
    });
}

fn memory_stats() -> Box<millpond_memory_stats> {
    let mut all: Box<millpond_memory_stats> = Box::new(unsafe { std::mem::zeroed() });
    all.struct_size = size_of::<millpond_memory_stats>();
    all
}

unsafe extern "C-unwind" fn ignore(_: *mut c_void, _: *const millpond_oom_report) -> bool {
    false
}
