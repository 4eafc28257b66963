//! Out-of-memory handlers, and the ends of pools.

use crate::apart::*;
use crate::api::*;
use millpond::capi::*;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

struct Ends {
    d: Device,
    s: Stream,
    pool: Pool,
    held: usize,
    others: Vec<Pool>,
    calls: AtomicUsize,
}

unsafe extern "C-unwind" fn ends(data: *mut c_void, _: *const millpond_oom_report) -> bool {
    let e = unsafe { &*data.cast::<Ends>() };
    if e.calls.fetch_add(1, SeqCst) > 0 {
        return false;
    }
    e.pool.free(e.held, e.s).unwrap();
    e.pool.destroy().unwrap();
    e.others.iter().for_each(|p| p.destroy().unwrap());
    // The first of these gets its slot, and has what was asked for.
    for _ in 0..2 {
        let next = e.d.pool(0);
        for _ in 0..1000 {
            let p = next.alloc(3 * MIB, e.s).unwrap();
            next.free(p, e.s).unwrap();
        }
    }
    true
}

/// A pool that ends while a request to it is in the callbacks serves nothing, nor does one that comes after it.
#[test]
fn a_pool_that_ends_in_a_callback_serves_nothing() {
    apart(|| {
        let d = host(2 * GIB, true);
        let s = d.stream();
        // So many that its slot is used again at once.
        let others = (0..100).map(|_| d.pool(0)).collect();
        let pool = d.pool(4 * MIB);
        let held = pool.alloc(3 * MIB, s).unwrap();
        let e = Ends { d, s, pool, held, others, calls: AtomicUsize::new(0) };
        let (data, mut id) = ((&raw const e).cast_mut().cast(), 0);
        outcome(unsafe { millpond_device_add_oom_handler(ptr(d.0), Some(ends), data, &mut id) }).unwrap();
        let got = pool.alloc(3 * MIB, s);
        assert_eq!(code(got), MILLPOND_E_INVALID_ARGUMENT);
        assert!(e.calls.load(SeqCst) > 0);
    });
}

struct Stays {
    inside: Mutex<Sender<()>>,
    go: Mutex<Receiver<()>>,
}

unsafe extern "C-unwind" fn stays(data: *mut c_void, _: *const millpond_oom_report) -> bool {
    let s = unsafe { &*data.cast::<Stays>() };
    s.inside.lock().unwrap().send(()).unwrap();
    s.go.lock().unwrap().recv().unwrap();
    false
}

/// Whoever removes a handler may end what it uses, also if it has ended with its pool before.
#[test]
fn a_handler_that_has_ended_with_its_pool_is_waited_for() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (s, pool) = (d.stream(), d.pool(0));
        let full = d.default_pool().alloc(60 * MIB, s).unwrap();
        let (inside, is_inside) = channel();
        let (open, go) = channel();
        let it = Stays { inside: inside.into(), go: go.into() };
        let (data, mut id) = ((&raw const it).cast_mut().cast(), 0);
        outcome(unsafe { millpond_pool_add_oom_handler(ptr(pool.0), Some(stays), data, &mut id) }).unwrap();
        let remove = move || code(outcome(unsafe { millpond_device_remove_oom_callback(ptr(d.0), id) }));
        let asks = std::thread::spawn(move || code(pool.alloc(30 * MIB, s)));
        is_inside.recv().unwrap();
        pool.destroy().unwrap();
        let removes = std::thread::spawn(remove);
        std::thread::sleep(Duration::from_millis(100));
        assert!(!removes.is_finished(), "a thread is still in the handler");
        open.send(()).unwrap();
        assert_eq!(removes.join().unwrap(), MILLPOND_E_INVALID_ARGUMENT);
        assert_eq!(asks.join().unwrap(), MILLPOND_E_OUT_OF_MEMORY);
        assert_eq!(remove(), MILLPOND_E_INVALID_ARGUMENT);
        d.default_pool().free(full, s).unwrap();
    });
}
