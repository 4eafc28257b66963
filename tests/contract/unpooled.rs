//! Races of two threads on devices without pooling: a freed block that one of them gives back to the device is not lost
//! for the other.

use crate::apart::*;
use crate::api::*;
use crate::held::{self, victim};
use millpond::capi::*;

const BYTES: usize = 48 * MIB;

fn open() -> (Device, std::sync::Arc<held::Control>) {
    held::host_with(64 * MIB, true, "backend:none")
}

/// A block of the pool that was freed in a callback, where the device cannot be waited for: it is put off.
fn put_off(d: Device, pool: Pool) {
    let s = d.stream();
    let p = pool.alloc(BYTES, s).unwrap();
    d.call(s, move || free(p).unwrap());
    d.stream_synchronize(s).unwrap();
}

/// A thread that looks at the account gives the block to the device; the pool's end waits for that.
#[test]
fn a_pool_ends_beside_a_thread_that_looks() {
    apart(|| {
        let (d, control) = open();
        let pool = d.pool(0);
        put_off(d, pool);
        let hold = control.hold_before("free", 1);
        let other = victim(move || d.stats());
        hold.reached();
        let end = std::thread::spawn(move || pool.destroy());
        std::thread::sleep(LATE / 2);
        hold.let_go();
        end.join().unwrap().unwrap();
        other.join().unwrap();
        assert_eq!(d.stats().reserved_bytes.current, 0);
    });
}

/// The same, and a request needs just that memory.
#[test]
fn a_request_beside_a_thread_that_looks() {
    apart(|| {
        let (d, control) = open();
        let pool = d.default_pool();
        put_off(d, pool);
        let hold = control.hold_before("free", 1);
        let other = victim(move || d.stats());
        hold.reached();
        let request = std::thread::spawn(move || pool.alloc(BYTES, NULL));
        std::thread::sleep(LATE / 2);
        hold.let_go();
        free(request.join().unwrap().unwrap()).unwrap();
        other.join().unwrap();
    });
}

/// The library ends while a thread is in the middle of a request or a free: the device has everything back.
fn ends_beside(call: &str, act: fn(Pool, Stream, usize) -> Outcome<()>) {
    let (d, control) = open();
    let (pool, s, t) = (d.default_pool(), d.stream(), d.stream());
    let p = pool.alloc(MIB, s).unwrap();
    record_stream(p, t).unwrap();
    let gate = d.gate(t);
    let hold = control.hold_after(call, 1);
    let other = victim(move || act(pool, s, p));
    hold.reached();
    let end = std::thread::spawn(|| outcome(millpond_finalize()));
    std::thread::sleep(LATE / 4);
    gate.open();
    hold.let_go();
    if let Err(e) = other.join().unwrap() {
        assert_eq!(e.code, MILLPOND_E_NOT_INITIALIZED);
    }
    end.join().unwrap().unwrap();
    assert_eq!(control.calls("alloc"), control.calls("free"), "{call}");
}

#[test]
fn the_end_of_the_library_beside_a_request_or_a_free_loses_nothing() {
    apart(|| {
        for _ in 0..5 {
            ends_beside("event_record", |pool, s, p| pool.free(p, s));
            ends_beside("alloc", |pool, s, _| pool.alloc(MIB, s).map(drop));
        }
    });
}
