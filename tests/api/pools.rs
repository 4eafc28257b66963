//! Scopes, the end of uses and captures through the C API, on the host device, with and without mapping.

use crate::support::alone;
use crate::support::capi::*;
use millpond::capi::*;
use millpond::runtime;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::mpsc;

/// A device of the type `host`, fresh, and its default pool.
pub struct Host {
    pub device: *mut millpond_device,
    pub pool: *mut millpond_pool,
    _alone: std::sync::MutexGuard<'static, ()>,
}

pub fn host(mapping: bool) -> Host {
    let guard = alone();
    let _ = runtime::finalize();
    let options = millpond_host_options {
        struct_size: size_of::<millpond_host_options>(),
        device_count: 1,
        capacity_bytes: 256 << 20,
        disable_mapping: u32::from(!mapping),
    };
    ok(unsafe { millpond_host_configure(&options) });
    let (mut device, mut pool) = (null_mut(), null_mut());
    ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut device) });
    ok(unsafe { millpond_device_get_default_pool(device, &mut pool) });
    Host { device, pool, _alone: guard }
}

/// Runs on the device without and with mapping, and on `cpu`.
pub fn everywhere(test: impl Fn(Host)) {
    test(host(true));
    test(host(false));
    let mut cpu = host(true);
    ok(unsafe { millpond_device_get(c"cpu".as_ptr(), 0, &mut cpu.device) });
    ok(unsafe { millpond_device_get_default_pool(cpu.device, &mut cpu.pool) });
    test(cpu);
}

impl Host {
    pub fn new_pool(&self) -> *mut millpond_pool {
        let mut pool = null_mut();
        ok(unsafe { millpond_pool_create(self.device, null(), &mut pool) });
        pool
    }
    pub fn stream(&self) -> C_Stream {
        let mut stream = null_mut();
        ok(unsafe { millpond_stream_create(self.device, &mut stream) });
        stream
    }
}

pub fn pool_alloc(pool: *mut millpond_pool, bytes: usize, stream: C_Stream) -> *mut c_void {
    let mut p = null_mut();
    ok(unsafe { millpond_pool_alloc(pool, bytes, stream, &mut p) });
    p
}

pub fn device_alloc(device: *mut millpond_device, bytes: usize) -> *mut c_void {
    let mut p = null_mut();
    ok(unsafe { millpond_alloc(device, bytes, &mut p) });
    p
}

pub fn pool_of(p: *mut c_void) -> *mut millpond_pool {
    let mut info: millpond_block_info = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<millpond_block_info>();
    ok(unsafe { millpond_get_block(p, &mut info) });
    info.pool
}

pub fn free(p: *mut c_void) {
    ok(unsafe { millpond_free(p) });
}

/// A stream whose work does not go on before the gate is opened.
pub struct Gate(mpsc::Sender<()>);

impl Gate {
    pub fn new(device: *mut millpond_device, stream: C_Stream) -> Gate {
        unsafe extern "C-unwind" fn wait(data: *mut c_void, _: C_Status) {
            let gate = unsafe { Box::from_raw(data.cast::<mpsc::Receiver<()>>()) };
            let _ = gate.recv();
        }
        let (open, closed) = mpsc::channel();
        let data = Box::into_raw(Box::new(closed)).cast();
        ok(unsafe { millpond_stream_add_callback(device, stream, Some(wait), data) });
        Gate(open)
    }
    pub fn open(self) {
        self.0.send(()).unwrap();
    }
}

#[test]
fn a_scope_routes_the_default_pool_of_its_thread() {
    everywhere(|h| {
        let (a, b) = (h.new_pool(), h.new_pool());
        free(pool_alloc(h.pool, 1000, null_mut())); // the default pool is known to the hot path
        ok(unsafe { millpond_scope_begin(a) });
        for _ in 0..2 {
            let blocks = [pool_alloc(h.pool, 1000, null_mut()), device_alloc(h.device, 1000)];
            assert_eq!(blocks.map(pool_of), [a, a]);
            blocks.into_iter().for_each(free);
        }
        let named = pool_alloc(b, 1000, null_mut());
        assert_eq!(pool_of(named), b, "a request that names a pool gets that pool");
        free(named);
        let (device, default) = (h.device as usize, h.pool as usize);
        let elsewhere = std::thread::spawn(move || {
            let p = pool_alloc(default as *mut _, 1000, null_mut());
            let q = device_alloc(device as *mut _, 1000);
            let pools = [p, q].map(|x| pool_of(x) as usize);
            [p, q].into_iter().for_each(free);
            pools
        });
        assert_eq!(elsewhere.join().unwrap(), [default, default], "other threads are not concerned");
        ok(unsafe { millpond_scope_begin(b) });
        let inner = pool_alloc(h.pool, 1000, null_mut());
        ok(unsafe { millpond_scope_begin(h.pool) });
        let off = pool_alloc(h.pool, 1000, null_mut());
        assert_eq!([inner, off].map(pool_of), [b, h.pool]);
        [inner, off].into_iter().for_each(free);
        ok(unsafe { millpond_scope_end(h.pool) });
        ok(unsafe { millpond_scope_end(b) });
        let outer = pool_alloc(h.pool, 1000, null_mut());
        assert_eq!(pool_of(outer), a);
        ok(unsafe { millpond_scope_end(a) });
        for _ in 0..2 {
            let p = pool_alloc(h.pool, 1000, null_mut());
            assert_eq!(pool_of(p), h.pool);
            free(p);
        }
        free(outer);
        ok(unsafe { millpond_pool_destroy(a) });
        ok(unsafe { millpond_pool_destroy(b) });
    });
}

#[test]
fn a_released_pool_ends_after_its_last_block() {
    let run = |h: Host| {
        let stream = h.stream();
        let gone = |pool| {
            let mut stats: millpond_stats = unsafe { std::mem::zeroed() };
            stats.struct_size = size_of::<millpond_stats>();
            unsafe { millpond_pool_get_stats(pool, &mut stats) != C_Status::SUCCESS }
        };
        ok(unsafe { millpond_pool_release(null_mut()) });
        fails(unsafe { millpond_pool_release(h.pool) }, MILLPOND_E_INVALID_ARGUMENT);
        let empty = h.new_pool();
        ok(unsafe { millpond_pool_release(empty) });
        fails(unsafe { millpond_pool_release(empty) }, MILLPOND_E_INVALID_ARGUMENT);

        let pool = h.new_pool();
        let blocks = [100, 1 << 20, 5 << 20].map(|bytes| pool_alloc(pool, bytes, stream));
        ok(unsafe { millpond_scope_begin(pool) });
        for _ in 0..2 {
            ok(unsafe { millpond_pool_release(pool) });
            let mut p = null_mut();
            for bytes in [0, 100] {
                fails(unsafe { millpond_pool_alloc(pool, bytes, stream, &mut p) }, MILLPOND_E_NOT_PERMITTED);
            }
            fails(unsafe { millpond_scope_begin(pool) }, MILLPOND_E_NOT_PERMITTED);
            fails(unsafe { millpond_capture_begin(pool, stream, &mut null_mut()) }, MILLPOND_E_NOT_PERMITTED);
        }
        let scoped = device_alloc(h.device, 100); // the scope was there before
        assert_eq!(pool_of(scoped), pool);
        let [a, b, c] = blocks;
        assert_eq!(blocks.map(pool_of), [pool; 3]);
        ok(unsafe { millpond_pool_free(pool, a, stream) });
        fails(unsafe { millpond_pool_free(pool, a, stream) }, MILLPOND_E_DOUBLE_FREE);
        ok(unsafe { millpond_pool_free(pool, b, stream) });
        free(c);
        free(scoped);
        ok(unsafe { millpond_device_empty_cache(h.device) });
        assert!(!gone(pool), "a scope of it is open");
        ok(unsafe { millpond_scope_end(pool) });
        ok(unsafe { millpond_device_empty_cache(h.device) });
        assert!(gone(pool));
        ok(unsafe { millpond_stream_destroy(h.device, stream) });
        assert_eq!(device_stats(h.device).blocks.current, 0);

        // Others end when one is released; a thousand of them leave nothing.
        for _ in 0..1000 {
            let pool = h.new_pool();
            let p = pool_alloc(pool, 100, null_mut());
            ok(unsafe { millpond_pool_release(pool) });
            free(p);
        }
        let (last, p) = (h.new_pool(), h.new_pool());
        ok(unsafe { millpond_pool_release(last) });
        assert!(gone(last));
        let block = pool_alloc(p, 100, null_mut());
        ok(unsafe { millpond_pool_release(p) });
        ok(millpond_finalize()); // with the block in it
        fails(unsafe { millpond_pool_release(p) }, MILLPOND_E_NOT_INITIALIZED);
        let _ = block;
    };
    everywhere(run);
    let h = host(true);
    ok(millpond_finalize());
    ok(unsafe { millpond_set_default_options(null(), -1, c"backend:none".as_ptr()) });
    let (mut device, mut pool) = (null_mut(), null_mut());
    ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut device) });
    ok(unsafe { millpond_device_get_default_pool(device, &mut pool) });
    run(Host { device, pool, ..h });
}

#[test]
fn bad_uses_of_scopes_are_refused() {
    let h = host(true);
    let (a, b) = (h.new_pool(), h.new_pool());
    fails(unsafe { millpond_scope_end(a) }, MILLPOND_E_NOT_PERMITTED);
    fails(unsafe { millpond_scope_begin(null_mut()) }, MILLPOND_E_INVALID_ARGUMENT);
    ok(unsafe { millpond_scope_begin(a) });
    fails(unsafe { millpond_scope_end(b) }, MILLPOND_E_NOT_PERMITTED);
    fails(unsafe { millpond_pool_destroy(a) }, MILLPOND_E_BUSY);
    let handle = a as usize;
    std::thread::spawn(move || {
        fails(unsafe { millpond_scope_end(handle as *mut _) }, MILLPOND_E_NOT_PERMITTED);
        ok(unsafe { millpond_scope_begin(handle as *mut _) }); // ends with the thread
    })
    .join()
    .unwrap();
    ok(unsafe { millpond_scope_end(a) });
    ok(unsafe { millpond_pool_destroy(a) });
    fails(unsafe { millpond_scope_begin(a) }, MILLPOND_E_INVALID_ARGUMENT);
    ok(unsafe { millpond_scope_begin(b) });
    ok(millpond_finalize());
    fails(unsafe { millpond_scope_end(b) }, MILLPOND_E_NOT_INITIALIZED);
    let mut device = null_mut();
    ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut device) });
    free(device_alloc(device, 100)); // a scope of a device that has ended concerns nobody
}

#[test]
fn reuse_waits_for_the_end_of_a_use_and_not_for_the_free() {
    everywhere(|h| {
        for with_event in [false, true] {
            let (own, side) = (h.stream(), h.stream());
            let first = Gate::new(h.device, side);
            let p = pool_alloc(h.pool, 3 << 20, own);
            ok(unsafe { millpond_record_stream(p, side) });
            let mut event = null_mut();
            ok(unsafe { millpond_event_create(h.device, &mut event) });
            if with_event {
                ok(unsafe { millpond_event_record(h.device, side, event) });
            } else {
                ok(unsafe { millpond_record_end(p, side) });
            }
            let second = Gate::new(h.device, side); // later work, that does not use the block
            if with_event {
                ok(unsafe { millpond_record_end_at(p, side, event) });
            }
            ok(unsafe { millpond_pool_free(h.pool, p, own) });
            assert_ne!(device_stats(h.device).active_bytes.current, 0);
            let mut held = false;
            ok(unsafe { millpond_event_is_held(h.device, event, &mut held) });
            assert_eq!(held, with_event);
            if with_event {
                fails(unsafe { millpond_event_record(h.device, side, event) }, MILLPOND_E_BUSY);
                ok(unsafe { millpond_event_destroy(h.device, event) });
                fails(unsafe { millpond_event_destroy(h.device, event) }, MILLPOND_E_UNKNOWN_EVENT);
                fails(unsafe { millpond_event_query(h.device, event, &mut held) }, MILLPOND_E_UNKNOWN_EVENT);
            }
            first.open();
            let start = std::time::Instant::now();
            while device_stats(h.device).active_bytes.current != 0 {
                assert!(start.elapsed().as_secs() < 20, "the block waits for the free");
                std::thread::yield_now();
            }
            if with_event {
                fails(unsafe { millpond_event_query(h.device, event, &mut held) }, MILLPOND_E_UNKNOWN_EVENT);
                fails(unsafe { millpond_record_end_at(p, side, event) }, MILLPOND_E_UNKNOWN_POINTER);
            } else {
                ok(unsafe { millpond_event_destroy(h.device, event) });
            }
            second.open();
            for s in [own, side] {
                ok(unsafe { millpond_stream_destroy(h.device, s) });
            }
        }
    });
}

#[test]
fn bad_ends_of_uses_are_refused() {
    let h = host(true);
    let (own, side) = (h.stream(), h.stream());
    let p = pool_alloc(h.pool, 1000, own);
    let mut event = null_mut();
    ok(unsafe { millpond_event_create(h.device, &mut event) });
    fails(unsafe { millpond_record_end(null_mut(), side) }, MILLPOND_E_INVALID_ARGUMENT);
    fails(unsafe { millpond_record_end(p.wrapping_byte_add(512), side) }, MILLPOND_E_UNKNOWN_POINTER);
    fails(unsafe { millpond_record_end(p, 77 as C_Stream) }, MILLPOND_E_UNKNOWN_STREAM);
    fails(unsafe { millpond_record_end_at(p, side, null_mut()) }, MILLPOND_E_INVALID_ARGUMENT);
    fails(unsafe { millpond_record_end_at(p, side, side.cast()) }, MILLPOND_E_UNKNOWN_EVENT);
    fails(unsafe { millpond_record_end_at(p, own, side.cast()) }, MILLPOND_E_UNKNOWN_EVENT);
    ok(unsafe { millpond_record_end_at(p, side, event) }); // as if completed
    ok(unsafe { millpond_record_end(p, own) });
    ok(unsafe { millpond_event_destroy(h.device, event) });
    fails(unsafe { millpond_record_end_at(p, side, event) }, MILLPOND_E_UNKNOWN_EVENT);
    free(p);
    assert_eq!(device_stats(h.device).active_bytes.current, 0);
    fails(unsafe { millpond_record_end(p, side) }, MILLPOND_E_UNKNOWN_POINTER);
}

#[test]
fn a_captures_pool_serves_its_streams_and_stays() {
    everywhere(|h| {
        let (pool, stream, other) = (h.new_pool(), h.stream(), h.stream());
        free(pool_alloc(h.pool, 1 << 20, stream));
        let mut capture = null_mut();
        ok(unsafe { millpond_capture_begin(pool, stream, &mut capture) });
        fails(unsafe { millpond_capture_begin(pool, stream, &mut null_mut()) }, MILLPOND_E_BUSY);
        fails(unsafe { millpond_stream_destroy(h.device, stream) }, MILLPOND_E_BUSY);
        fails(unsafe { millpond_device_empty_cache(h.device) }, MILLPOND_E_BUSY);
        let p = pool_alloc(h.pool, 1 << 20, stream);
        let q = pool_alloc(h.pool, 1 << 20, other);
        assert_eq!([p, q].map(pool_of), [pool, h.pool]);
        ok(unsafe { millpond_pool_free(h.pool, p, stream) });
        assert_eq!(pool_alloc(pool, 1 << 20, stream), p, "reused in the order of the stream");
        ok(unsafe { millpond_capture_add_stream(capture, other) });
        let r = pool_alloc(h.pool, 1 << 20, other);
        assert_eq!(pool_of(r), pool);
        ok(unsafe { millpond_capture_end(capture) });
        fails(unsafe { millpond_capture_end(capture) }, MILLPOND_E_NOT_PERMITTED);
        fails(unsafe { millpond_capture_add_stream(capture, stream) }, MILLPOND_E_NOT_PERMITTED);
        let s = pool_alloc(h.pool, 1 << 20, stream);
        assert_eq!(pool_of(s), h.pool);
        [p, q, r, s].into_iter().for_each(free);
        ok(unsafe { millpond_device_empty_cache(h.device) });
        assert!(device_stats(h.device).reserved_bytes.current >= 2 << 20, "the graph's memory stays");
        fails(unsafe { millpond_pool_destroy(pool) }, MILLPOND_E_BUSY);
        ok(unsafe { millpond_capture_release(capture) });
        assert_eq!(device_stats(h.device).reserved_bytes.current, 0);
        fails(unsafe { millpond_capture_release(capture) }, MILLPOND_E_INVALID_ARGUMENT);
        ok(unsafe { millpond_pool_destroy(pool) });
        for s in [stream, other] {
            ok(unsafe { millpond_stream_destroy(h.device, s) });
        }
    });
}

#[test]
fn a_pool_is_kept_without_a_stream_and_let_go_without_a_wait() {
    let h = host(true);
    let pool = h.new_pool();
    let mut kept = null_mut();
    ok(unsafe { millpond_capture_keep(pool, &mut kept) });
    free(pool_alloc(pool, 20 << 20, null_mut()));
    ok(unsafe { millpond_device_empty_cache(h.device) });
    assert!(device_stats(h.device).reserved_bytes.current >= 20 << 20, "its memory is its own");
    fails(unsafe { millpond_pool_destroy(pool) }, MILLPOND_E_BUSY);
    fails(unsafe { millpond_capture_end(kept) }, MILLPOND_E_NOT_PERMITTED);
    ok(unsafe { millpond_capture_release_async(kept) });
    fails(unsafe { millpond_capture_release_async(kept) }, MILLPOND_E_INVALID_ARGUMENT);
    ok(unsafe { millpond_capture_release_async(null_mut()) });
    ok(unsafe { millpond_device_empty_cache(h.device) });
    assert_eq!(device_stats(h.device).reserved_bytes.current, 0);
    fails(unsafe { millpond_capture_keep(h.pool, &mut kept) }, MILLPOND_E_INVALID_ARGUMENT);
    fails(unsafe { millpond_capture_keep(pool, null_mut()) }, MILLPOND_E_INVALID_ARGUMENT);
    ok(unsafe { millpond_pool_destroy(pool) });
    fails(unsafe { millpond_capture_keep(pool, &mut kept) }, MILLPOND_E_INVALID_ARGUMENT);
}

#[test]
fn bad_captures_are_refused() {
    let h = host(true);
    let (pool, stream) = (h.new_pool(), h.stream());
    let mut c = null_mut();
    fails(unsafe { millpond_capture_begin(h.pool, stream, &mut c) }, MILLPOND_E_INVALID_ARGUMENT);
    fails(unsafe { millpond_capture_begin(pool, null_mut(), &mut c) }, MILLPOND_E_INVALID_ARGUMENT);
    fails(unsafe { millpond_capture_begin(pool, 77 as C_Stream, &mut c) }, MILLPOND_E_UNKNOWN_STREAM);
    fails(unsafe { millpond_capture_begin(pool, stream, null_mut()) }, MILLPOND_E_INVALID_ARGUMENT);
    fails(unsafe { millpond_capture_end(null_mut()) }, MILLPOND_E_INVALID_ARGUMENT);
    fails(unsafe { millpond_capture_end(pool.cast()) }, MILLPOND_E_INVALID_ARGUMENT);
    ok(unsafe { millpond_capture_release(null_mut()) });
    ok(unsafe { millpond_capture_begin(pool, stream, &mut c) });
    ok(unsafe { millpond_capture_release(c) }); // abandoned
    ok(unsafe { millpond_capture_begin(pool, stream, &mut c) });
    ok(millpond_finalize());
    fails(unsafe { millpond_capture_end(c) }, MILLPOND_E_NOT_INITIALIZED);
}

#[test]
fn a_layout_comes_back_with_its_content() {
    type Told = Vec<(usize, usize, bool)>;
    unsafe extern "C-unwind" fn tell(data: *mut c_void, ptr: *mut c_void, bytes: usize, live: bool) {
        unsafe { &mut *data.cast::<Told>() }.push((ptr.addr(), bytes, live));
    }
    everywhere(|h| {
        let (pool, stream) = (h.new_pool(), h.stream());
        let sizes = [100usize, 5000, 100_000, 3 << 20];
        let put = |p: *mut c_void, value: u8, bytes: usize| {
            ok(unsafe { millpond_memset(h.device, p, value, bytes) });
        };
        let old = sizes.map(|n| pool_alloc(pool, n, stream));
        let mut checkpoint = null_mut();
        ok(unsafe { millpond_pool_checkpoint(pool, &mut checkpoint) });
        for (i, (&p, &n)) in old.iter().zip(&sizes).enumerate() {
            put(p, i as u8 + 1, n);
            free(p);
        }
        let new = pool_alloc(pool, 7 << 20, stream);
        put(new, 99, 7 << 20);
        let mut told = Told::new();
        let data = (&raw mut told).cast();
        ok(unsafe { millpond_pool_restore(pool, checkpoint, Some(tell), data) });
        let mut want: Told = old.iter().zip(sizes).map(|(p, n)| (p.addr(), n, true)).collect();
        want.push((new.addr(), 7 << 20, false));
        told.sort_unstable();
        want.sort_unstable();
        assert_eq!(told, want);
        if !old.contains(&new) {
            fails(unsafe { millpond_free(new) }, MILLPOND_E_UNKNOWN_POINTER);
        }
        // Each is a block of its own again, and none overlaps another.
        for (i, (&p, &n)) in old.iter().zip(&sizes).enumerate() {
            put(p, i as u8 + 50, n);
        }
        for (i, (&p, &n)) in old.iter().zip(&sizes).enumerate() {
            let mut back = vec![0u8; n];
            let to = back.as_mut_ptr().cast();
            ok(unsafe { millpond_copy(h.device, MILLPOND_COPY_D2H, to, p, n) });
            assert!(back.iter().all(|&b| b == i as u8 + 50), "block {i}");
            free(p);
        }
        let other = h.new_pool();
        fails(
            unsafe { millpond_pool_restore(other, checkpoint, None, null_mut()) },
            MILLPOND_E_INVALID_ARGUMENT,
        );
        fails(unsafe { millpond_pool_restore(pool, null(), None, null_mut()) }, MILLPOND_E_INVALID_ARGUMENT);
        fails(unsafe { millpond_pool_checkpoint(pool, null_mut()) }, MILLPOND_E_INVALID_ARGUMENT);
        ok(unsafe { millpond_device_empty_cache(h.device) });
        fails(unsafe { millpond_pool_restore(pool, checkpoint, None, null_mut()) }, MILLPOND_E_NOT_PERMITTED);
        ok(unsafe { millpond_checkpoint_destroy(checkpoint) });
        fails(unsafe { millpond_checkpoint_destroy(checkpoint) }, MILLPOND_E_INVALID_ARGUMENT);
        fails(
            unsafe { millpond_pool_restore(pool, checkpoint, None, null_mut()) },
            MILLPOND_E_INVALID_ARGUMENT,
        );
        ok(unsafe { millpond_checkpoint_destroy(null_mut()) });
        assert_eq!(device_stats(h.device).blocks.current, 0);
        ok(unsafe { millpond_stream_destroy(h.device, stream) });
    });
}

fn pool_stats(pool: *mut millpond_pool) -> millpond_stats {
    let mut s: millpond_stats = unsafe { std::mem::zeroed() };
    s.struct_size = size_of::<millpond_stats>();
    ok(unsafe { millpond_pool_get_stats(pool, &mut s) });
    s
}

impl Host {
    fn pool_named(&self, name: &std::ffi::CStr) -> *mut millpond_pool {
        let options = millpond_pool_options {
            struct_size: size_of::<millpond_pool_options>(),
            limit_bytes: 0,
            name: name.as_ptr(),
            flags: 0,
        };
        let mut pool = null_mut();
        ok(unsafe { millpond_pool_create(self.device, &options, &mut pool) });
        pool
    }
    fn fill(&self, p: *mut c_void, value: u8, bytes: usize) {
        ok(unsafe { millpond_memset(self.device, p, value, bytes) });
    }
    fn holds(&self, p: *mut c_void, value: u8, bytes: usize) -> bool {
        let mut back = vec![!value; bytes];
        let to = back.as_mut_ptr().cast();
        ok(unsafe { millpond_copy(self.device, MILLPOND_COPY_D2H, to, p, bytes) });
        back.iter().all(|&b| b == value)
    }
    fn free_bytes(&self) -> u64 {
        let mut info: millpond_device_info = unsafe { std::mem::zeroed() };
        info.struct_size = size_of::<millpond_device_info>();
        ok(unsafe { millpond_device_get_info(self.device, &mut info) });
        info.free_bytes
    }
}

#[test]
fn sleep_gives_the_memory_back_and_wake_brings_it_with_its_content() {
    let h = host(true);
    const G: usize = 2 << 20;
    for flags in [MILLPOND_SLEEP_KEEP, 0] {
        let pool = h.new_pool();
        // A scattered block: the odd granules of 16, with no other memory to be had.
        let all: Vec<_> = (0..16).map(|_| pool_alloc(pool, G, null_mut())).collect();
        ok(unsafe { millpond_pool_set_limit(pool, 16 * G as u64) });
        let (odd, even): (Vec<_>, Vec<_>) = all.into_iter().partition(|p| (p.addr() / G) % 2 == 1);
        odd.into_iter().for_each(free);
        let scattered = pool_alloc(pool, 8 * G, null_mut());
        free(even[0]);
        let small = pool_alloc(pool, 100, null_mut());
        h.fill(scattered, 1, 8 * G);
        h.fill(even[1], 2, G);
        h.fill(small, 3, 100);
        let free_before = h.free_bytes();
        ok(unsafe { millpond_pool_sleep(pool, flags) });
        let s = pool_stats(pool);
        assert_eq!((s.reserved_bytes.current, s.sleeping_bytes.current), (0, 16 * G as u64));
        assert_eq!(h.free_bytes(), free_before + 16 * G as u64);
        fails(unsafe { millpond_pool_sleep(pool, 0) }, MILLPOND_E_NOT_PERMITTED);
        fails(unsafe { millpond_pool_alloc(pool, 1, null_mut(), &mut null_mut()) }, MILLPOND_E_NOT_PERMITTED);
        fails(unsafe { millpond_memset(h.device, small, 0, 100) }, MILLPOND_E_NOT_PERMITTED);
        free(even[2]);
        // Others may have the memory; then the wake fails, and nothing is lost.
        ok(unsafe { millpond_device_empty_cache(h.device) }); // what the last wake left cached would serve it
        let rest = pool_alloc(h.pool, h.free_bytes() as usize - 8 * G, null_mut());
        fails(unsafe { millpond_pool_wake(pool) }, MILLPOND_E_OUT_OF_MEMORY);
        h.fill(rest, 9, 100 * G);
        free(rest);
        ok(unsafe { millpond_pool_wake(pool) });
        fails(unsafe { millpond_pool_wake(pool) }, MILLPOND_E_NOT_PERMITTED);
        assert_eq!(pool_stats(pool).sleeping_bytes.current, 0);
        let kept = flags != 0;
        assert!(h.holds(scattered, u8::from(kept), 8 * G), "the scattered block, {flags}");
        assert!(h.holds(even[1], 2 * u8::from(kept), G));
        assert!(h.holds(small, 3 * u8::from(kept), 100));
        // The aliases are real: what is written through one address is there after another round.
        h.fill(scattered, 77, 8 * G);
        ok(unsafe { millpond_pool_sleep(pool, MILLPOND_SLEEP_KEEP) });
        ok(unsafe { millpond_pool_wake(pool) });
        assert!(h.holds(scattered, 77, 8 * G));
        [scattered, small].into_iter().chain(even[3..].iter().copied()).for_each(free);
        free(even[1]);
        ok(unsafe { millpond_pool_destroy(pool) });
    }
    assert_eq!(device_stats(h.device).blocks.current, 0);
}

#[test]
fn pools_sleep_by_name_and_bad_sleeps_are_refused() {
    let h = host(true);
    let (a, b, c) = (h.pool_named(c"weights"), h.pool_named(c"weights"), h.pool_named(c"cache"));
    let blocks = [a, b, c].map(|p| pool_alloc(p, 1000, null_mut()));
    let asleep = |p| pool_stats(p).sleeping_bytes.current != 0;
    ok(unsafe { millpond_device_sleep(h.device, c"weights".as_ptr(), MILLPOND_SLEEP_KEEP) });
    assert_eq!([a, b, c].map(asleep), [true, true, false]);
    ok(unsafe { millpond_device_wake(h.device, c"weights".as_ptr()) });
    assert_eq!([a, b, c].map(asleep), [false; 3]);
    fails(unsafe { millpond_device_wake(h.device, c"weights".as_ptr()) }, MILLPOND_E_NOT_PERMITTED);
    // One of them sleeps: none is put to sleep.
    ok(unsafe { millpond_pool_sleep(b, 0) });
    fails(unsafe { millpond_device_sleep(h.device, c"weights".as_ptr(), 0) }, MILLPOND_E_NOT_PERMITTED);
    assert_eq!([a, b, c].map(asleep), [false, true, false]);
    ok(unsafe { millpond_pool_wake(b) });
    fails(unsafe { millpond_device_sleep(h.device, c"none".as_ptr(), 0) }, MILLPOND_E_INVALID_ARGUMENT);
    fails(unsafe { millpond_device_sleep(h.device, null(), 0) }, MILLPOND_E_INVALID_ARGUMENT);
    fails(unsafe { millpond_pool_sleep(a, 2) }, MILLPOND_E_INVALID_ARGUMENT);
    fails(unsafe { millpond_pool_sleep(null_mut(), 0) }, MILLPOND_E_INVALID_ARGUMENT);
    let (pool, stream) = (h.new_pool(), h.stream());
    let mut capture = null_mut();
    ok(unsafe { millpond_capture_begin(pool, stream, &mut capture) });
    fails(unsafe { millpond_pool_sleep(a, 0) }, MILLPOND_E_BUSY);
    ok(unsafe { millpond_capture_release(capture) });
    ok(unsafe { millpond_pool_sleep(c, MILLPOND_SLEEP_KEEP) });
    blocks.into_iter().for_each(free);
    ok(unsafe { millpond_pool_destroy(c) }); // asleep, but without blocks
    ok(unsafe { millpond_stream_destroy(h.device, stream) });
    drop(h);
    let h = host(false);
    fails(unsafe { millpond_pool_sleep(h.new_pool(), 0) }, MILLPOND_E_UNSUPPORTED);
}
