//! Out-of-memory handlers, and the ends of pools.

use crate::apart::*;
use crate::api::*;
use millpond::capi::*;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

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
