//! Out-of-memory callbacks: when they are called, what they may do, and when the request is tried again.

use crate::support::capi::*;
use millpond::capi::*;
use millpond::runtime::{self, OomStep, PoolId};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MIB: usize = 1 << 20;

/// A cache of one block, as a framework keeps it, and what its callback has seen.
#[derive(Default)]
struct Cache {
    device: AtomicU64,
    block: AtomicU64,
    calls: Mutex<Vec<u64>>,
}

unsafe extern "C-unwind" fn drop_cache(data: *mut c_void, bytes: u64) -> bool {
    let cache = unsafe { &*data.cast::<Cache>() };
    cache.calls.lock().unwrap().push(bytes);
    // A request that fails in here calls nobody, and a small one works.
    let device = std::ptr::with_exposed_provenance_mut(cache.device.load(SeqCst) as usize);
    let mut p = null_mut();
    let failed = unsafe { millpond_alloc(device, 16 * MIB, &mut p) };
    assert_ne!(failed, C_Status::SUCCESS);
    let block = cache.block.swap(0, SeqCst);
    if block == 0 {
        return false;
    }
    unsafe { millpond_free(std::ptr::with_exposed_provenance_mut(block as usize)) == C_Status::SUCCESS }
}

fn cache(device: *mut millpond_device) -> (Box<Cache>, u64) {
    let c = Box::<Cache>::default();
    c.device.store(device.expose_provenance() as u64, SeqCst);
    let mut id = 0;
    let data = (&raw const *c).cast_mut().cast();
    ok(unsafe { millpond_device_add_oom_callback(device, Some(drop_cache), data, &mut id) });
    assert_ne!(id, 0);
    (c, id)
}

fn hold(c: &Cache, device: *mut millpond_device, bytes: usize) {
    let mut p = null_mut();
    ok(unsafe { millpond_alloc(device, bytes, &mut p) });
    c.block.store(p.expose_provenance() as u64, SeqCst);
}

#[test]
fn a_cache_is_dropped_and_the_request_works() {
    let f = fixture();
    let (c, id) = cache(f.device);
    ok(unsafe { millpond_device_set_limit(f.device, (8 * MIB) as u64) });
    let mut pool = null_mut();
    ok(unsafe { millpond_pool_create(f.device, null(), &mut pool) });
    // Stream-ordered, through the path of a pool that was used before and of one that was not, and
    // unordered.
    for _ in 0..2 {
        for p in [f.pool, pool] {
            hold(&c, f.device, 6 * MIB);
            let mut block = null_mut();
            ok(unsafe { millpond_pool_alloc(p, 5 * MIB, null_mut(), &mut block) });
            assert_eq!(std::mem::take(&mut *c.calls.lock().unwrap()), [5 << 20]);
            ok(unsafe { millpond_free(block) });
        }
    }
    hold(&c, f.device, 6 * MIB);
    let mut block = null_mut();
    ok(unsafe { millpond_alloc(f.device, 5 * MIB, &mut block) });
    assert_eq!(std::mem::take(&mut *c.calls.lock().unwrap()), [5 << 20]);
    // Nothing in the cache: one call, no success.
    fails(unsafe { millpond_alloc(f.device, 5 * MIB, &mut null_mut()) }, MILLPOND_E_OUT_OF_MEMORY);
    assert_eq!(c.calls.lock().unwrap().len(), 1);
    // Not a lack of memory: no call.
    fails(
        unsafe { millpond_pool_alloc(f.pool, 64, without(12345), &mut null_mut()) },
        MILLPOND_E_UNKNOWN_STREAM,
    );
    assert_eq!(c.calls.lock().unwrap().len(), 1);

    ok(unsafe { millpond_device_remove_oom_callback(f.device, id) });
    fails(unsafe { millpond_alloc(f.device, 5 * MIB, &mut null_mut()) }, MILLPOND_E_OUT_OF_MEMORY);
    assert_eq!(c.calls.lock().unwrap().len(), 1);
    ok(unsafe { millpond_free(block) });
}

fn without(stream: usize) -> C_Stream {
    std::ptr::without_provenance_mut(stream)
}

#[test]
fn bad_arguments_get_a_status() {
    let f = fixture();
    let mut id = 7;
    let none = null_mut();
    fails(
        unsafe { millpond_device_add_oom_callback(f.device, None, none, &mut id) },
        MILLPOND_E_INVALID_ARGUMENT,
    );
    fails(
        unsafe { millpond_device_add_oom_callback(f.device, Some(drop_cache), none, null_mut()) },
        MILLPOND_E_INVALID_ARGUMENT,
    );
    fails(
        unsafe { millpond_device_add_oom_callback(null_mut(), Some(drop_cache), none, &mut id) },
        MILLPOND_E_INVALID_ARGUMENT,
    );
    assert_eq!(id, 7);
    for bad in [0, 1, u64::MAX] {
        fails(unsafe { millpond_device_remove_oom_callback(f.device, bad) }, MILLPOND_E_INVALID_ARGUMENT);
    }
    let (_c, id) = cache(f.device);
    ok(unsafe { millpond_device_remove_oom_callback(f.device, id) });
    fails(unsafe { millpond_device_remove_oom_callback(f.device, id) }, MILLPOND_E_INVALID_ARGUMENT);
    // Those that are left end with the device.
    let (_c, id) = cache(f.device);
    ok(millpond_finalize());
    fails(unsafe { millpond_device_remove_oom_callback(f.device, id) }, MILLPOND_E_NOT_INITIALIZED);
}

#[test]
fn all_are_called_in_order_and_the_request_is_tried_once_more() {
    let f = fixture();
    let device = runtime::device("testdev", 0).unwrap();
    let memory = device.memory();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let note = |n: u32, answer: bool| {
        let calls = calls.clone();
        move |_| {
            calls.lock().unwrap().push(n);
            if n == 2 {
                panic!("a callback that panics frees nothing");
            }
            answer
        }
    };
    let ids: Vec<_> = [(1, true), (2, true), (3, false)]
        .map(|(n, a)| memory.oom_callbacks().add(note(n, a)).unwrap())
        .into();
    f.knobs.fail_alloc.store(true, SeqCst);
    let tries = memory.stats().out_of_memory_count;
    assert!(memory.alloc_unordered(PoolId::DEFAULT, 64).is_err());
    assert_eq!(*calls.lock().unwrap(), [1, 2, 3]);
    assert_eq!(memory.stats().out_of_memory_count, tries + 1, "requests are counted, not their attempts");
    // Nobody claims to have freed anything: no second attempt.
    memory.oom_callbacks().remove(ids[0]).unwrap();
    assert!(memory.alloc(PoolId::DEFAULT, 0, 64).is_err());
    assert_eq!(*calls.lock().unwrap(), [1, 2, 3, 2, 3]);
    assert_eq!(memory.stats().out_of_memory_count, tries + 2);
    // One that removes itself, and adds another, which has its turn at the next request.
    memory.oom_callbacks().remove(ids[1]).unwrap();
    memory.oom_callbacks().remove(ids[2]).unwrap();
    let (own, added) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (id, flag, again) = (own.clone(), added.clone(), device.clone());
    let id_of = memory
        .oom_callbacks()
        .add(move |_| {
            again.memory().oom_callbacks().remove(id.load(SeqCst)).unwrap();
            let flag = flag.clone();
            again.memory().oom_callbacks().add(move |_| !flag.swap(true, SeqCst)).unwrap();
            false
        })
        .unwrap();
    own.store(id_of, SeqCst);
    assert!(memory.alloc(PoolId::DEFAULT, 0, 64).is_err());
    assert!(!added.load(SeqCst));
    assert!(memory.alloc(PoolId::DEFAULT, 0, 64).is_err());
    assert!(added.load(SeqCst));
}

/// A callback that frees a little each time is called until that is enough, or nothing is left.
#[test]
fn callbacks_are_called_as_long_as_they_free_something() {
    let f = fixture();
    ok(unsafe { millpond_device_set_limit(f.device, (8 * MIB) as u64) });
    let device = runtime::device("testdev", 0).unwrap();
    let memory = device.memory();
    let hold = |n: usize| -> Vec<u64> {
        (0..n).map(|_| memory.alloc_unordered(PoolId::DEFAULT, MIB as u64).unwrap()).collect()
    };
    let held = Arc::new(Mutex::new(hold(7)));
    let (calls, tried) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (cache, counter, again) = (held.clone(), calls.clone(), device.clone());
    let id = memory
        .oom_callbacks()
        .add(move |_| {
            counter.fetch_add(1, SeqCst);
            let last = cache.lock().unwrap().pop();
            last.is_some_and(|p| again.memory().free(p, None, None).is_ok())
        })
        .unwrap();
    let block = memory.alloc_unordered(PoolId::DEFAULT, 5 * MIB as u64).unwrap();
    let left = held.lock().unwrap().len();
    assert!((2..=3).contains(&left), "{left} are left, and would have left room enough");
    assert_eq!(calls.load(SeqCst), 7 - left as u64);
    // All of it is not enough. The report tells of all rounds.
    let why = memory.alloc_unordered(PoolId::DEFAULT, 7 * MIB as u64).unwrap_err();
    tried.store(calls.load(SeqCst), SeqCst);
    assert!(held.lock().unwrap().is_empty());
    assert_eq!(tried.load(SeqCst), 8, "and once more without anything to free");
    let report = why.oom_report().unwrap();
    let callbacks = report.tried.iter().find(|t| t.step == OomStep::Callbacks).unwrap();
    assert_eq!((u64::from(callbacks.tries), u64::from(callbacks.helped)), (left as u64 + 1, left as u64));
    assert_eq!(callbacks.bytes, (left * MIB) as u64);
    memory.oom_callbacks().remove(id).unwrap();
    memory.free(block, None, None).unwrap();
}

/// A callback that frees only what it has allocated itself does not hold the request up.
#[test]
fn callbacks_that_free_nothing_end() {
    let f = fixture();
    ok(unsafe { millpond_device_set_limit(f.device, (8 * MIB) as u64) });
    let device = runtime::device("testdev", 0).unwrap();
    let memory = device.memory();
    let (calls, again) = (Arc::new(AtomicU64::new(0)), device.clone());
    let counter = calls.clone();
    memory
        .oom_callbacks()
        .add(move |_| {
            counter.fetch_add(1, SeqCst);
            let scratch = again.memory().alloc_unordered(PoolId::DEFAULT, 4096).unwrap();
            again.memory().free(scratch, None, None).is_ok()
        })
        .unwrap();
    let block = memory.alloc_unordered(PoolId::DEFAULT, 4 * MIB as u64).unwrap();
    assert!(memory.alloc_unordered(PoolId::DEFAULT, 7 * MIB as u64).is_err());
    assert!((2..20).contains(&calls.load(SeqCst)), "{} calls", calls.load(SeqCst));
    memory.free(block, None, None).unwrap();
}

/// What a callback or a hook of Rust holds may panic as it ends, within the request: that has its block all the same.
#[test]
fn a_panic_at_the_end_of_a_callback_costs_no_block() {
    struct Loud;
    impl Drop for Loud {
        fn drop(&mut self) {
            panic!("at its end");
        }
    }
    let f = fixture();
    let device = runtime::device("testdev", 0).unwrap();
    let memory = device.memory();
    let (id, again, loud) = (Arc::new(AtomicU64::new(0)), device.clone(), Loud);
    let own = id.clone();
    let added = memory.hooks().add(move |_| {
        let _ = (&loud, again.memory().hooks().remove(own.load(SeqCst)));
    });
    id.store(added.unwrap(), SeqCst);
    let block = memory.alloc_unordered(PoolId::DEFAULT, 64).unwrap();
    memory.free(block, None, None).unwrap();
    let (id, again, loud) = (Arc::new(AtomicU64::new(0)), device.clone(), Loud);
    let (own, knobs) = (id.clone(), f.knobs.clone());
    let added = memory.oom_callbacks().add(move |_| {
        let _ = (&loud, again.memory().oom_callbacks().remove(own.load(SeqCst)));
        knobs.fail_alloc.swap(false, SeqCst)
    });
    id.store(added.unwrap(), SeqCst);
    // One whose panic panics when it is dropped; and two that end together, with the device.
    memory.oom_callbacks().add(|_| std::panic::panic_any(Loud)).unwrap();
    for _ in 0..2 {
        let loud = Loud;
        memory.hooks().add(move |_| _ = &loud).unwrap();
    }
    memory.empty_cache(None).unwrap();
    f.knobs.fail_alloc.store(true, SeqCst);
    let block = memory.alloc_unordered(PoolId::DEFAULT, 64).unwrap();
    memory.free(block, None, None).unwrap();
}

#[test]
fn a_removal_waits_for_the_threads_inside() {
    let f = fixture();
    let device = runtime::device("testdev", 0).unwrap();
    let (entered, wait_entered) = channel();
    let left = Arc::new(AtomicBool::new(false));
    let leaving = left.clone();
    let id = device
        .memory()
        .oom_callbacks()
        .add(move |_| {
            entered.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(200));
            leaving.store(true, SeqCst);
            false
        })
        .unwrap();
    f.knobs.fail_alloc.store(true, SeqCst);
    std::thread::scope(|s| {
        s.spawn(|| assert!(device.memory().alloc(PoolId::DEFAULT, 0, 64).is_err()));
        wait_entered.recv().unwrap();
        // No lock is held meanwhile.
        let other = device.memory().oom_callbacks().add(|_| false).unwrap();
        device.memory().oom_callbacks().remove(other).unwrap();
        assert!(!left.load(SeqCst));
        device.memory().oom_callbacks().remove(id).unwrap();
        assert!(left.load(SeqCst), "it was still inside");
    });
}

#[test]
fn memory_without_pooling_calls_back_too() {
    let _alone = crate::support::alone();
    let _ = runtime::finalize();
    let (kind, knobs) = crate::support::test_type("unpooled");
    knobs.min_chunk.store(96, SeqCst);
    runtime::register_type(kind).unwrap();
    let device = runtime::device("unpooled", 0).unwrap();
    let (calls, failing) = (Arc::new(AtomicU64::new(0)), knobs.clone());
    let counter = calls.clone();
    device
        .memory()
        .oom_callbacks()
        .add(move |bytes| {
            counter.fetch_add(bytes, SeqCst);
            failing.fail_alloc.swap(false, SeqCst)
        })
        .unwrap();
    for stream in [Some(0), None] {
        knobs.fail_alloc.store(true, SeqCst);
        calls.store(0, SeqCst);
        let block = match stream {
            Some(s) => device.memory().alloc(PoolId::DEFAULT, s, 1000),
            None => device.memory().alloc_unordered(PoolId::DEFAULT, 1000),
        };
        let block = block.unwrap();
        assert_eq!(calls.load(SeqCst), 1000);
        device.memory().free(block, stream, None).unwrap();
    }
    assert_eq!(knobs.live_bytes.load(SeqCst), 0, "a device that is not pooled keeps nothing");
}

/// What a handler of one pool has seen.
#[derive(Default)]
struct Seen {
    pools: Mutex<Vec<usize>>,
    answer: AtomicBool,
}

unsafe extern "C-unwind" fn note(data: *mut c_void, report: *const millpond_oom_report) -> bool {
    let seen = unsafe { &*data.cast::<Seen>() };
    seen.pools.lock().unwrap().push(unsafe { (*report).pool }.addr());
    seen.answer.load(SeqCst)
}

/// The pool that should have served a request is asked, and no other.
#[test]
fn a_handler_of_a_pool_is_called_for_its_requests() {
    let f = fixture();
    ok(unsafe { millpond_device_set_limit(f.device, (8 * MIB) as u64) });
    let (mut a, mut b) = (null_mut(), null_mut());
    ok(unsafe { millpond_pool_create(f.device, null(), &mut a) });
    ok(unsafe { millpond_pool_create(f.device, null(), &mut b) });
    let (of_a, of_default, of_device) = (Seen::default(), Seen::default(), Seen::default());
    let data = |s: &Seen| (&raw const *s).cast_mut().cast();
    let (mut first, mut second, mut third) = (0, 0, 0);
    ok(unsafe { millpond_pool_add_oom_handler(a, Some(note), data(&of_a), &mut first) });
    ok(unsafe { millpond_pool_add_oom_handler(f.pool, Some(note), data(&of_default), &mut second) });
    ok(unsafe { millpond_device_add_oom_handler(f.device, Some(note), data(&of_device), &mut third) });
    assert!(first != 0 && second > first && third > second);
    let mut held = null_mut();
    ok(unsafe { millpond_pool_alloc(b, 6 * MIB, null_mut(), &mut held) });
    let too_much = |pool| {
        fails(
            unsafe { millpond_pool_alloc(pool, 5 * MIB, null_mut(), &mut null_mut()) },
            MILLPOND_E_OUT_OF_MEMORY,
        );
        [&of_a, &of_default, &of_device].map(|s| std::mem::take(&mut *s.pools.lock().unwrap()))
    };
    assert_eq!(too_much(a), [vec![a.addr()], vec![], vec![a.addr()]]);
    assert_eq!(too_much(b), [vec![], vec![], vec![b.addr()]]);
    assert_eq!(too_much(f.pool), [vec![], vec![f.pool.addr()], vec![f.pool.addr()]]);
    // A request that names no pool, in a scope of one.
    ok(unsafe { millpond_scope_begin(a) });
    assert_eq!(too_much(f.pool), [vec![a.addr()], vec![], vec![a.addr()]]);
    ok(unsafe { millpond_scope_end(a) });
    // Removed by its number, as those of the device.
    ok(unsafe { millpond_device_remove_oom_callback(f.device, second) });
    assert_eq!(too_much(f.pool)[1], [0usize; 0]);
    fails(unsafe { millpond_device_remove_oom_callback(f.device, second) }, MILLPOND_E_INVALID_ARGUMENT);
    // It ends with its pool: the number is nobody's then, and the pool takes no other.
    ok(unsafe { millpond_pool_destroy(a) });
    fails(unsafe { millpond_device_remove_oom_callback(f.device, first) }, MILLPOND_E_INVALID_ARGUMENT);
    let mut id = 7;
    fails(
        unsafe { millpond_pool_add_oom_handler(a, Some(note), data(&of_a), &mut id) },
        MILLPOND_E_INVALID_ARGUMENT,
    );
    fails(
        unsafe { millpond_pool_add_oom_handler(b, None, null_mut(), &mut id) },
        MILLPOND_E_INVALID_ARGUMENT,
    );
    assert_eq!(id, 7);
    // A released pool's handler ends when the pool does.
    ok(unsafe { millpond_pool_add_oom_handler(b, Some(note), data(&of_a), &mut id) });
    ok(unsafe { millpond_pool_release(b) });
    ok(unsafe { millpond_free(held) });
    ok(unsafe { millpond_device_empty_cache(f.device) });
    fails(unsafe { millpond_device_remove_oom_callback(f.device, id) }, MILLPOND_E_INVALID_ARGUMENT);
}
