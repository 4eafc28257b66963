//! Ends where the host has no memory left: they have what is set aside for them, again and again, and as long as nothing is made
//! that fills it up.

use crate::apart::apart;
use crate::host_memory::{with_no_more_than, without_any};
use millpond::capi::*;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

#[track_caller]
fn ok(status: C_Status) {
    let text = || unsafe { CStr::from_ptr(millpond_last_error_message()) }.to_string_lossy().into_owned();
    assert_eq!(status, C_Status::SUCCESS, "{}", text());
}

#[derive(Clone, Copy)]
struct World(*mut millpond_device);

impl World {
    fn new() -> World {
        let mut device = null_mut();
        ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut device) });
        World(device)
    }

    fn stream(self) -> C_Stream {
        let mut stream = null_mut();
        ok(unsafe { millpond_stream_create(self.0, &mut stream) });
        stream
    }

    fn pinned(self) -> *mut c_void {
        let mut block = null_mut();
        ok(unsafe { millpond_host_alloc(self.0, 4096, &mut block) });
        block
    }

    /// A stream whose work does not end before `open`, and pinned blocks that it uses: the end of each keeps something.
    fn used(self, count: usize, open: &AtomicBool) -> Vec<*mut c_void> {
        let (stream, data) = (self.stream(), (&raw const *open).cast_mut().cast());
        ok(unsafe { millpond_stream_add_callback(self.0, stream, Some(wait), data) });
        let all: Vec<_> = (0..count).map(|_| self.pinned()).collect();
        all.iter().for_each(|&p| ok(unsafe { millpond_host_record_stream(self.0, p, stream) }));
        all
    }

    fn end_pinned(self, block: *mut c_void) -> C_Status {
        unsafe { millpond_host_free(self.0, block) }
    }

    fn end_stream(self, stream: C_Stream) -> C_Status {
        unsafe { millpond_stream_destroy(self.0, stream) }
    }
}

/// `host` is one device of 32 GiB.
fn large(mapping: bool) {
    let host = millpond_host_options {
        struct_size: size_of::<millpond_host_options>(),
        device_count: 1,
        capacity_bytes: 32 << 30,
        disable_mapping: u32::from(!mapping),
    };
    ok(unsafe { millpond_host_configure(&host) });
}

unsafe extern "C-unwind" fn wait(open: *mut c_void, _: C_Status) {
    while !unsafe { &*open.cast::<AtomicBool>() }.load(SeqCst) {
        std::thread::yield_now();
    }
}

#[test]
fn one_after_the_other_has_what_the_one_before_has_left() {
    apart(|| {
        let (w, open) = (World::new(), AtomicBool::new(false));
        let streams: Vec<_> = (0..8).map(|_| w.stream()).collect();
        let blocks = w.used(24, &open);
        // In the end one of the two has too little for a stream.
        for (&stream, three) in streams.iter().zip(blocks.chunks(3)) {
            three.iter().for_each(|&p| without_any(|| ok(w.end_pinned(p))));
            without_any(|| ok(w.end_stream(stream)));
        }
        // Enough to begin one, not to complete it.
        w.used(300, &open).into_iter().for_each(|p| with_no_more_than(1100, || ok(w.end_pinned(p))));
        open.store(true, SeqCst);
    });
}

#[test]
fn what_was_used_up_is_filled_up_by_the_next_call_that_finds_room() {
    apart(|| {
        let (w, open) = (World::new(), AtomicBool::new(false));
        let more = [w.pinned(), w.pinned()];
        for p in w.used(200, &open) {
            without_any(|| ok(w.end_pinned(p)));
            // This one has room for itself, and no more.
            with_no_more_than(3000, || ok(unsafe { millpond_host_record_stream(w.0, more[0], null_mut()) }));
            ok(unsafe { millpond_host_record_stream(w.0, more[1], null_mut()) });
        }
        let stream = w.stream();
        without_any(|| ok(w.end_stream(stream)));
        open.store(true, SeqCst);
    });
}

#[test]
fn two_threads_may_end_something_at_once_also_after_others_that_have_kept_some() {
    apart(|| {
        struct Other(*mut millpond_pool, AtomicBool);
        unsafe extern "C-unwind" fn end(other: *mut c_void, _: C_Status) {
            let Other(pool, ended) = unsafe { &*other.cast() };
            // The other thread waits for this one then.
            std::thread::sleep(std::time::Duration::from_millis(300));
            let done = without_any(|| unsafe { millpond_pool_release(*pool) });
            ended.store(done == C_Status::SUCCESS, SeqCst);
        }
        let (w, mut own, open) = (World::new(), vec![0_u8; 4096], AtomicBool::new(false));
        let (stream, own) = (w.stream(), own.as_mut_ptr().cast());
        ok(unsafe { millpond_host_register(w.0, own, 4096) });
        let mut other = Other(null_mut(), AtomicBool::new(false));
        ok(unsafe { millpond_pool_create(w.0, null(), &mut other.0) });
        for p in w.used(20, &open) {
            without_any(|| ok(w.end_pinned(p)));
            _ = w.pinned();
        }
        open.store(true, SeqCst);
        let data = (&raw const other).cast_mut().cast();
        ok(unsafe { millpond_stream_add_callback(w.0, stream, Some(end), data) });
        without_any(|| ok(unsafe { millpond_host_unregister(w.0, own) }));
        assert!(other.1.load(SeqCst));
    });
}

#[test]
fn the_library_ends_with_more_pinned_blocks_than_there_is_room_to_list() {
    apart(|| {
        let w = World::new();
        for n in 0..12_000 {
            let (mut pinned, mut unified) = (null_mut(), null_mut());
            ok(unsafe { millpond_host_alloc(w.0, 40_000, &mut pinned) });
            ok(unsafe { millpond_unified_alloc(w.0, 4096, &mut unified) });
            if n % 2 == 0 {
                ok(w.end_pinned(pinned));
            }
        }
        without_any(|| ok(millpond_finalize()));
    });
}

#[test]
fn the_library_ends_with_more_mapped_ranges_than_there_is_room_to_list() {
    apart(|| {
        large(true);
        let w = World::new();
        let streams = [w.stream(), w.stream()];
        let mut any = null_mut();
        for _ in 0..3000 {
            let mut pool = null_mut();
            ok(unsafe { millpond_pool_create(w.0, null(), &mut pool) });
            for stream in streams {
                ok(unsafe { millpond_pool_alloc(pool, 70_000, stream, &mut any) });
            }
            ok(unsafe { millpond_pool_checkpoint(pool, &mut null_mut()) });
        }
        without_any(|| ok(millpond_finalize()));
    });
}

/// Blocks that live, and as many pieces of free memory between them.
fn ends_with_blocks(mapping: bool, backend: &str) {
    large(mapping);
    millpond::runtime::set_default_options(Some("host"), None, backend).unwrap();
    let w = World::new();
    let stream = w.stream();
    let blocks: Vec<_> = (0..20_000)
        .map(|_| {
            let mut block = null_mut();
            ok(unsafe { millpond_alloc(w.0, 70_000, &mut block) });
            ok(unsafe { millpond_record_stream(block, stream) });
            block
        })
        .collect();
    blocks.iter().step_by(2).for_each(|&block| ok(unsafe { millpond_free(block) }));
    without_any(|| ok(millpond_finalize()));
}

#[test]
fn the_library_ends_with_more_blocks_than_there_is_room_to_list() {
    apart(|| ends_with_blocks(true, ""));
}

#[test]
fn the_library_ends_with_more_blocks_in_segments_than_there_is_room_to_list() {
    apart(|| ends_with_blocks(false, ""));
}

#[test]
fn the_library_ends_with_more_blocks_without_pools_than_there_is_room_to_list() {
    apart(|| ends_with_blocks(true, "backend:none"));
}
