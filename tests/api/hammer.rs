//! Eight threads, four streams each device, two devices: allocate, free and copy through the C API
//! as fast as they can, each block filled with its own pattern. No overlap, no leak, exact counters.
//! `MILLPOND_HAMMER_SECONDS` (default 2) makes it longer.

use crate::apart::apart_for;
use crate::random::Random;
use millpond::capi::*;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const THREADS: u64 = 8;
const STREAMS: usize = 4;

#[track_caller]
fn ok(status: C_Status) {
    let text = unsafe { CStr::from_ptr(millpond_last_error_message()) };
    assert_eq!(status, C_Status::SUCCESS, "{text:?}");
}

/// The devices, streams and pools as numbers, so that threads can share them.
struct Shared {
    devices: [usize; 2],
    pools: [usize; 2],
    streams: [[usize; STREAMS]; 2],
}

fn ptr<T>(n: usize) -> *mut T {
    std::ptr::without_provenance_mut(n)
}

/// A block that its thread holds: the byte that fills it, and how to free it.
struct Held {
    at: *mut c_void,
    bytes: usize,
    device: usize,
    stream: C_Stream,
    ordered: bool,
    fill: u8,
}

/// Reads the block back on its own stream and looks at each byte.
fn check(s: &Shared, h: &Held) {
    let mut back = vec![!h.fill; h.bytes];
    let device = ptr(s.devices[h.device]);
    ok(unsafe {
        millpond_copy_async(device, h.stream, MILLPOND_COPY_D2H, back.as_mut_ptr().cast(), h.at, h.bytes)
    });
    ok(unsafe { millpond_stream_synchronize(device, h.stream) });
    let wrong = back.iter().position(|&b| b != h.fill);
    assert_eq!(wrong, None, "byte {wrong:?} of {} is another block's", h.bytes);
}

fn release(s: &Shared, h: Held) {
    check(s, &h);
    if h.ordered {
        ok(unsafe { millpond_pool_free(ptr(s.pools[h.device]), h.at, h.stream) });
    } else {
        ok(unsafe { millpond_free_sized(h.at, h.bytes) });
    }
}

fn work(s: &Shared, seed: u64, until: Instant, rounds: &AtomicU64) {
    let mut r = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1);
    let mut held: Vec<Held> = Vec::new();
    while Instant::now() < until {
        if held.len() == 32 || !held.is_empty() && r.below(2) == 0 {
            let at = r.below(held.len());
            release(s, held.swap_remove(at));
            continue;
        }
        let device = r.below(2);
        let magnitude = 4 + r.below(15);
        let bytes = 1 + r.below(1 << magnitude);
        let ordered = r.below(4) != 0;
        let stream: C_Stream = ptr(s.streams[device][r.below(STREAMS)]);
        let mut at = null_mut();
        let got = if ordered {
            unsafe { millpond_pool_alloc(ptr(s.pools[device]), bytes, stream, &mut at) }
        } else {
            unsafe { millpond_alloc(ptr(s.devices[device]), bytes, &mut at) }
        };
        ok(got);
        let fill = r.below(256) as u8;
        ok(unsafe { millpond_memset_async(ptr(s.devices[device]), stream, at, fill, bytes) });
        held.push(Held { at, bytes, device, stream, ordered, fill });
        rounds.fetch_add(1, Relaxed);
    }
    held.into_iter().for_each(|h| release(s, h));
}

#[test]
fn eight_threads_on_two_devices() {
    let seconds = std::env::var("MILLPOND_HAMMER_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2);
    apart_for(seconds + 60, || hammer(seconds));
}

fn hammer(seconds: u64) {
    let mut s = Shared { devices: [0; 2], pools: [0; 2], streams: [[0; STREAMS]; 2] };
    for n in 0..2 {
        let (mut device, mut pool) = (null_mut(), null_mut());
        ok(unsafe { millpond_device_get(c"host".as_ptr(), n as i32, &mut device) });
        ok(unsafe { millpond_pool_create(device, null(), &mut pool) });
        (s.devices[n], s.pools[n]) = (device.addr(), pool.addr());
        for stream in &mut s.streams[n] {
            let mut made = null_mut();
            ok(unsafe { millpond_stream_create(device, &mut made) });
            *stream = made.addr();
        }
    }
    let (rounds, until) = (AtomicU64::new(0), Instant::now() + Duration::from_secs(seconds));
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let (s, rounds) = (&s, &rounds);
            scope.spawn(move || work(s, t, until, rounds));
        }
    });
    let mut blocks = 0;
    for n in 0..2 {
        let device = ptr(s.devices[n]);
        s.streams[n].iter().for_each(|&x| ok(unsafe { millpond_stream_destroy(device, ptr(x)) }));
        ok(unsafe { millpond_device_empty_cache(device) });
        let mut stats: millpond_stats = unsafe { std::mem::zeroed() };
        stats.struct_size = size_of::<millpond_stats>();
        ok(unsafe { millpond_device_get_stats(device, &mut stats) });
        for c in [stats.requested_bytes, stats.allocated_bytes, stats.active_bytes, stats.blocks] {
            assert_eq!(c.current, 0);
            assert!(c.peak > 0 && c.total >= c.peak);
        }
        blocks += stats.blocks.total;
        ok(unsafe { millpond_pool_destroy(ptr(s.pools[n])) });
    }
    assert_eq!(blocks, rounds.load(Relaxed), "each block is counted once");
    assert!(blocks > 100, "only {blocks} blocks in {seconds} s");
    ok(millpond_finalize());
}
