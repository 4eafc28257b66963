//! Segment callbacks: each range of addresses with memory is reported before its first block is handed out and before
//! the range goes, whatever the device refuses; and what a callback must not do.

use crate::support::capi::*;
use millpond::capi::*;
use millpond::runtime;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::{null, null_mut, with_exposed_provenance_mut as at};
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;

const MIB: usize = 1 << 20;

/// What a communication library knows: the ranges that are there, and every call.
#[derive(Default)]
struct Book(Mutex<Said>);

#[derive(Default)]
struct Said {
    live: BTreeMap<usize, usize>,
    log: Vec<(u32, usize, usize)>,
}

impl Book {
    fn data(&self) -> *mut c_void {
        (&raw const *self).cast_mut().cast()
    }
    fn covers(&self, p: *mut c_void, bytes: usize) -> bool {
        let said = self.0.lock().unwrap();
        let (mut from, end) = (p.addr(), p.addr() + bytes);
        while from < end {
            match said.live.range(..=from).next_back() {
                Some((&a, &n)) if from < a + n => from = a + n,
                _ => return false,
            }
        }
        true
    }
    fn bytes(&self) -> usize {
        self.0.lock().unwrap().live.values().sum()
    }
    fn take_log(&self) -> Vec<(u32, usize, usize)> {
        std::mem::take(&mut self.0.lock().unwrap().log)
    }
}

unsafe extern "C-unwind" fn note(data: *mut c_void, event: u32, ptr: *mut c_void, bytes: usize) {
    let mut said = unsafe { &*data.cast::<Book>() }.0.lock().unwrap();
    let from = ptr.addr();
    said.log.push((event, from, bytes));
    let (a, n) = said.live.range(..from + bytes).next_back().map_or((0, 0), |(&a, &n)| (a, n));
    if event == MILLPOND_SEGMENT_ADDED {
        assert!(a + n <= from, "an overlap");
        said.live.insert(from, bytes);
    } else {
        assert!(a <= from && from + bytes <= a + n, "a removal of more than one range");
        said.live.remove(&a);
        if a < from {
            said.live.insert(a, from - a);
        }
        if from + bytes < a + n {
            said.live.insert(from + bytes, a + n - from - bytes);
        }
    }
}

fn listen(device: *mut millpond_device, book: &Book) -> u64 {
    let mut id = 0;
    ok(unsafe { millpond_device_add_segment_callback(device, Some(note), book.data(), &mut id) });
    assert_ne!(id, 0);
    id
}

/// Device 0 of the host, which maps.
fn host() -> (std::sync::MutexGuard<'static, ()>, *mut millpond_device, *mut millpond_pool) {
    let guard = crate::support::alone();
    let _ = runtime::finalize();
    let (mut device, mut pool) = (null_mut(), null_mut());
    ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut device) });
    ok(unsafe { millpond_device_get_default_pool(device, &mut pool) });
    (guard, device, pool)
}

fn take(pool: *mut millpond_pool, bytes: usize) -> *mut c_void {
    let mut p = null_mut();
    ok(unsafe { millpond_pool_alloc(pool, bytes, null_mut(), &mut p) });
    p
}

#[test]
fn every_block_lies_in_what_was_told() {
    let (_alone, device, pool) = host();
    let early = take(pool, 4 * MIB);
    let book = Book::default();
    let id = listen(device, &book);
    assert!(book.covers(early, 4 * MIB), "what was there before is told at once");
    ok(unsafe { millpond_device_set_limit(device, (12 * MIB) as u64) });
    let parts: Vec<_> = (0..4).map(|_| take(pool, 2 * MIB)).collect();
    parts.iter().for_each(|&p| assert!(book.covers(p, 2 * MIB)));
    // Two granules apart, shown side by side elsewhere.
    ok(unsafe { millpond_pool_free(pool, parts[0], null_mut()) });
    ok(unsafe { millpond_pool_free(pool, parts[2], null_mut()) });
    let scattered = take(pool, 4 * MIB);
    assert!(!parts.contains(&scattered) && book.covers(scattered, 4 * MIB));
    ok(unsafe { millpond_pool_free(pool, parts[1], null_mut()) });
    let small = take(pool, 100);
    assert!(book.covers(small, 100));
    for p in [scattered, small, early, parts[3]] {
        ok(unsafe { millpond_pool_free(pool, p, null_mut()) });
    }
    ok(unsafe { millpond_device_empty_cache(device) });
    assert_eq!(book.bytes(), 0, "everything went back");
    ok(unsafe { millpond_device_remove_segment_callback(device, id) });
    book.take_log();
    ok(unsafe { millpond_pool_free(pool, take(pool, MIB), null_mut()) });
    assert_eq!(book.take_log(), [], "nobody listens");
    fails(unsafe { millpond_device_remove_segment_callback(device, id) }, MILLPOND_E_INVALID_ARGUMENT);
}

#[test]
fn sleep_and_the_end_of_the_device_remove() {
    let (_alone, device, _) = host();
    let book = Book::default();
    listen(device, &book);
    let mut pool = null_mut();
    ok(unsafe { millpond_pool_create(device, null(), &mut pool) });
    let p = take(pool, 5 * MIB);
    assert!(book.covers(p, 5 * MIB));
    ok(unsafe { millpond_pool_sleep(pool, MILLPOND_SLEEP_KEEP) });
    assert_eq!(book.bytes(), 0);
    ok(unsafe { millpond_pool_wake(pool) });
    assert!(book.covers(p, 5 * MIB));
    ok(millpond_finalize());
    assert_eq!(book.bytes(), 0, "the end of the device takes all");
    fails(unsafe { millpond_device_remove_segment_callback(device, 1) }, MILLPOND_E_NOT_INITIALIZED);
}

#[test]
fn segments_of_a_device_that_does_not_map() {
    let f = fixture();
    let book = Book::default();
    listen(f.device, &book);
    let p = alloc(&f, 5000);
    assert!(book.covers(p, 5000));
    ok(unsafe { millpond_free(p) });
    let had = book.bytes();
    book.take_log();
    // The device refuses to take it back: gone, and there again.
    f.knobs.fail_free.store(true, SeqCst);
    assert_ne!(unsafe { millpond_device_empty_cache(f.device) }, C_Status::SUCCESS);
    let log = book.take_log();
    let events: Vec<u32> = log.iter().map(|l| l.0).collect();
    assert_eq!(events, [MILLPOND_SEGMENT_REMOVED, MILLPOND_SEGMENT_ADDED]);
    assert_eq!((log[0].1, log[0].2), (log[1].1, log[1].2));
    assert_eq!(book.bytes(), had);
    f.knobs.fail_free.store(false, SeqCst);
    ok(unsafe { millpond_device_empty_cache(f.device) });
    assert_eq!(book.bytes(), 0);
    // Memory that the device refuses is not reported.
    book.take_log();
    f.knobs.fail_alloc.store(true, SeqCst);
    fails(unsafe { millpond_alloc(f.device, 5000, &mut null_mut()) }, MILLPOND_E_OUT_OF_MEMORY);
    f.knobs.fail_alloc.store(false, SeqCst);
    assert_eq!(book.take_log(), []);
}

/// What `meddle` calls, and the codes that it got.
#[derive(Default)]
struct Meddler {
    device: usize,
    pool: usize,
    codes: Mutex<Vec<u32>>,
}

unsafe extern "C-unwind" fn meddle(data: *mut c_void, _: u32, ptr: *mut c_void, _: usize) {
    let m = unsafe { &*data.cast::<Meddler>() };
    let (device, pool) = (at(m.device), at(m.pool));
    let mut p = null_mut();
    // What a call gave: 0, or its code. (A failed assertion would be lost in here.)
    let got = |s: C_Status| if s == C_Status::SUCCESS { 0 } else { code() };
    let codes = unsafe {
        [
            got(millpond_alloc(device, 64 * MIB, &mut p)),
            got(millpond_pool_alloc(pool, 64 * MIB, null_mut(), &mut p)),
            got(millpond_free(ptr)),
            got(millpond_device_empty_cache(device)),
            got(millpond_device_synchronize(device)),
            got(millpond_device_remove_segment_callback(device, 1)),
            got(millpond_device_get(c"cpu".as_ptr(), 0, &mut null_mut())),
            got(millpond_finalize()),
        ]
    };
    m.codes.lock().unwrap().extend(codes);
    panic!("an exception");
}

#[test]
fn a_callback_that_calls_gets_a_status_and_a_panic_ends_in_it() {
    let (_alone, device, pool) = host();
    unsafe { libc::alarm(60) };
    let m = Meddler {
        device: device.expose_provenance(),
        pool: pool.expose_provenance(),
        codes: Mutex::default(),
    };
    let data = (&raw const m).cast_mut().cast();
    let mut id = 0;
    ok(unsafe { millpond_device_add_segment_callback(device, Some(meddle), data, &mut id) });
    let book = Book::default();
    listen(device, &book);
    let p = take(pool, 3 * MIB);
    assert!(book.covers(p, 3 * MIB), "the next one is told all the same");
    let codes = std::mem::take(&mut *m.codes.lock().unwrap());
    assert!(codes.len() >= 8 && codes.iter().all(|&c| c == MILLPOND_E_NOT_PERMITTED), "{codes:?}");
    // After it the thread is as before.
    ok(unsafe { millpond_pool_free(pool, p, null_mut()) });
    ok(unsafe { millpond_device_empty_cache(device) });
    ok(unsafe { millpond_device_remove_segment_callback(device, id) });
    unsafe { libc::alarm(0) };
}

#[test]
fn bad_arguments() {
    let (_alone, device, _) = host();
    let (mut id, data) = (7, null_mut());
    let add = millpond_device_add_segment_callback;
    fails(unsafe { add(device, None, data, &mut id) }, MILLPOND_E_INVALID_ARGUMENT);
    fails(unsafe { add(device, Some(note), data, null_mut()) }, MILLPOND_E_INVALID_ARGUMENT);
    fails(unsafe { add(null_mut(), Some(note), data, &mut id) }, MILLPOND_E_INVALID_ARGUMENT);
    assert_eq!(id, 7);
    for bad in [0, 1, u64::MAX] {
        fails(unsafe { millpond_device_remove_segment_callback(device, bad) }, MILLPOND_E_INVALID_ARGUMENT);
    }
}
