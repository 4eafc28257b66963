//! Devices in segments that end beside threads in requests and frees of segments of their own: the end succeeds, and the
//! device has all of its memory again, each segment once.

use crate::apart::*;
use crate::api::*;
use crate::counted::Counted;
use crate::observers::state;
use crate::random::Random;
use crate::seam::{Hook, SeamType};
use millpond::capi::*;
use millpond::runtime::DeviceState;
use millpond::{Error, Result, runtime};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::SeqCst};

/// Counts what the library has of the device, and what the device refused.
#[derive(Default)]
struct Book {
    bytes: AtomicI64,
    refused: AtomicUsize,
}

impl Hook for Book {
    fn pass<T>(&self, name: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        call().inspect_err(|_| _ = (name == "free").then(|| self.refused.fetch_add(1, SeqCst)))
    }
    fn done(&self, _: usize, name: &'static str, bytes: u64) {
        match name {
            "alloc" => _ = self.bytes.fetch_add(bytes as i64, SeqCst),
            "free" => _ = self.bytes.fetch_sub(bytes as i64, SeqCst),
            _ => {}
        }
    }
}

fn new_pool(d: Device) -> Outcome<Pool> {
    let mut pool = null_mut();
    outcome(unsafe { millpond_pool_create(ptr(d.0), null(), &mut pool) })?;
    Ok(Pool(pool.expose_provenance()))
}

fn snapshot(d: &DeviceState) -> Outcome<()> {
    let failed = |e: Error| Failed { code: e.code() as u32, message: e.to_string() };
    d.snapshot().map(drop).map_err(failed)
}

fn round(seed: u64) {
    let _ = runtime::finalize();
    let inner = Counted { max_chunk: MIB as u64, ..Counted::in_segments(256 * MIB, 4 * MIB) }.kind();
    let book = Arc::new(Book::default());
    runtime::register_type(Arc::new(SeamType { name: "booked", inner, hook: book.clone() })).unwrap();
    let d = Device::get("booked", 0).unwrap();
    let (pool, known) = (d.default_pool(), state(d));
    let inside = AtomicUsize::new(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        for t in 0..3 {
            let (inside, over) = (&inside, &over);
            s.spawn(move || {
                let mut r = Random((seed * 31 + t) | 1);
                inside.fetch_add(1, SeqCst);
                let may = |e: &Failed| {
                    let codes =
                        [MILLPOND_E_NOT_INITIALIZED, MILLPOND_E_UNKNOWN_POINTER, MILLPOND_E_OUT_OF_MEMORY];
                    assert!(codes.contains(&e.code), "seed {seed}: {e:?}");
                    e.code == MILLPOND_E_NOT_INITIALIZED
                };
                while !over.load(SeqCst) {
                    let bytes = match r.below(4) {
                        0 => 1 + r.below(MIB),
                        _ => 2 * MIB + r.below(6 * MIB),
                    };
                    let done = pool.alloc(bytes, NULL).and_then(|at| {
                        let found = if r.below(4) == 0 { block(at + bytes - 1).map(drop) } else { Ok(()) };
                        found.and(free(at))
                    });
                    let more = match r.below(24) {
                        0..3 => d.empty_cache(),
                        3 => new_pool(d).and_then(|own| {
                            let at = own.alloc(bytes, NULL);
                            let ended = own.release();
                            at.and_then(free).and(ended)
                        }),
                        4 => snapshot(known),
                        _ => Ok(()),
                    };
                    if [done, more].into_iter().any(|done| done.is_err_and(|e| may(&e))) {
                        break;
                    }
                }
            });
        }
        while inside.load(SeqCst) < 3 {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_micros(seed % 50 * 10));
        let ended = runtime::finalize();
        over.store(true, SeqCst);
        ended.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    });
    let left = (book.bytes.load(SeqCst), book.refused.load(SeqCst));
    assert_eq!(left, (0, 0), "seed {seed}: bytes that the device has not got again, and refusals");
}

#[test]
fn a_device_ends_beside_segments_that_come_and_go() {
    let all = std::env::var("ENDS_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(rounds(120));
    apart_for(300, || (1..=all as u64).for_each(round));
}
