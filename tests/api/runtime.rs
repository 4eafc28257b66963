//! Starting, opening and ending devices through the Rust API, and the account of a device's memory.

use crate::support::{INIT_ALLOC, Knobs, alone, test_type};
use millpond::runtime::{self, PoolId};
use millpond::{Code, Error};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Barrier};

/// A fresh type called "t".
fn fresh() -> (Arc<Knobs>, std::sync::MutexGuard<'static, ()>) {
    let guard = alone();
    let _ = runtime::finalize();
    let (kind, knobs) = test_type("t");
    runtime::register_type(kind).unwrap();
    (knobs, guard)
}

#[test]
fn many_threads_open_one_device() {
    let (knobs, _alone) = fresh();
    let start = Barrier::new(8);
    let states: Vec<_> = std::thread::scope(|s| {
        let all: Vec<_> = (0..8)
            .map(|_| {
                s.spawn(|| {
                    start.wait();
                    runtime::device("t", 1).unwrap()
                })
            })
            .collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(states.iter().all(|s| Arc::ptr_eq(s, &states[0])));
    assert_eq!(knobs.initialized.load(SeqCst), 1);
    assert!(Arc::ptr_eq(runtime::by_id(states[0].id()).unwrap(), &states[0]));
    assert_eq!((states[0].type_name(), states[0].ordinal()), ("t", 1));
}

#[test]
fn a_type_that_comes_back_from_its_start_gets_busy() {
    let _first = fresh();
    let (kind, knobs) = test_type("u");
    *knobs.on_initialize.lock().unwrap() = Some(Box::new(|| {
        let again = runtime::device("host", 0).map(|_| ());
        assert_eq!(again.unwrap_err().code(), Code::Busy);
        Ok(())
    }));
    runtime::register_type(kind).unwrap();
}

#[test]
fn a_type_that_does_not_start_is_not_there() {
    let _first = fresh();
    let (kind, knobs) = test_type("u");
    *knobs.on_initialize.lock().unwrap() = Some(Box::new(|| Err(Error::new(Code::Device, "no"))));
    assert_eq!(runtime::register_type(kind.clone()).unwrap_err().code(), Code::Device);
    assert_eq!(runtime::device("u", 0).err().unwrap().code(), Code::UnknownDevice);
    // A panic in its start does not leave the gate shut.
    *knobs.on_initialize.lock().unwrap() = Some(Box::new(|| panic!("a plugin's defect")));
    let panicked = std::panic::catch_unwind(|| runtime::register_type(kind.clone()));
    assert!(panicked.is_err());
    assert_eq!(runtime::type_names().unwrap(), ["cpu", "host", "cuda", "t"]);
}

#[test]
fn a_device_that_calls_back_does_not_hang_the_end() {
    let (knobs, _alone) = fresh();
    let d = runtime::device("t", 0).unwrap();
    *knobs.on_synchronize.lock().unwrap() = Some(Box::new(|| {
        // What is open can be had; what must go through the gate cannot.
        runtime::device("t", 0)?;
        for refused in
            [runtime::finalize(), runtime::device("t", 1).map(|_| ()), runtime::unregister_type("t")]
        {
            assert_eq!(refused.unwrap_err().code(), Code::NotPermitted);
        }
        Ok(())
    }));
    d.synchronize().unwrap();
    *knobs.on_synchronize.lock().unwrap() = None;
    runtime::finalize().unwrap();
}

#[test]
fn names_that_are_none() {
    let _first = fresh();
    for name in ["", "a name of thirty-two bytes, exact", "nul\0inside"] {
        let (kind, knobs) = test_type(name);
        assert_eq!(runtime::register_type(kind).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(knobs.initialized.load(SeqCst), 0);
    }
    let (kind, _) = test_type("host");
    assert_eq!(runtime::register_type(kind).unwrap_err().code(), Code::Busy);
}

#[test]
fn an_address_finds_its_device() {
    let (_knobs, _alone) = fresh();
    let (a, b) = (runtime::device("t", 0).unwrap(), runtime::device("host", 1).unwrap());
    let (p, q) = (
        a.memory().alloc(PoolId::DEFAULT, 0, 1000).unwrap(),
        b.memory().alloc_unordered(PoolId::DEFAULT, 1000).unwrap(),
    );
    let u = a.unified_memory().alloc(100).unwrap();
    for (addr, device) in [(p, &a), (p + 999, &a), (q + 1, &b), (u, &a), (u + 99, &a)] {
        assert!(Arc::ptr_eq(&runtime::owner(addr).unwrap(), device));
    }
    assert!(runtime::owner(1).is_none());
    assert_eq!(runtime::holder(q).unwrap().1.stream, None);
    assert_eq!(runtime::holder(p).unwrap().1.stream, Some(0));
    runtime::free(q, None).unwrap();
    runtime::free(p, Some(1000)).unwrap();
    assert_eq!(runtime::free(p, None).unwrap_err().code(), Code::DoubleFree);
    a.unified_memory().free(u).unwrap();
    assert!(runtime::owner(u).is_none());
}

#[test]
fn slices_go_there_and_back() {
    let (_knobs, _alone) = fresh();
    let d = runtime::device("host", 0).unwrap();
    let p = d.memory().alloc(PoolId::DEFAULT, 0, 256).unwrap();
    let from: Vec<u8> = (0..=255).collect();
    let mut to = vec![0; 256];
    d.write(p, &from).unwrap();
    d.read(p, &mut to).unwrap();
    assert_eq!(from, to);
    assert_eq!(d.write(p + 1, &from).unwrap_err().code(), Code::OutOfRange);
    assert_eq!(d.read(p + 256, &mut to).unwrap_err().code(), Code::OutOfRange);
    d.memory().free(p, Some(0), Some(256)).unwrap();
}

#[test]
fn failures_of_a_device_at_its_end_do_not_stop_the_end() {
    let (knobs, _alone) = fresh();
    let d = runtime::device("t", 0).unwrap();
    d.host_memory().alloc(64).unwrap();
    knobs.fail_free.store(true, SeqCst);
    assert_eq!(runtime::finalize().unwrap_err().code(), Code::Device);
    assert_eq!(knobs.finalized.load(SeqCst), 1);
    assert_eq!(runtime::finalize().unwrap_err().code(), Code::NotInitialized);
    assert_eq!(d.synchronize().unwrap_err().code(), Code::NotInitialized);
    assert_eq!(d.memory().alloc(PoolId::DEFAULT, 0, 64).unwrap_err().code(), Code::NotInitialized);
}

#[test]
fn a_handle_of_a_pool_serves_as_long_as_the_pool() {
    let _first = fresh();
    let d = runtime::device("t", 0).unwrap();
    let m = d.memory();
    let code = |r: millpond::Result<u64>| r.unwrap_err().code();
    assert_eq!(d.pool(PoolId(7)).err().map(|e| e.code()), Some(Code::InvalidArgument));
    let own = d.pool(m.pools().create(0).unwrap()).unwrap();
    for round in 0..3 {
        let a = own.alloc(0, 1000).unwrap();
        let b = own.alloc(0, 3 << 20).unwrap();
        assert_eq!(m.block(a).unwrap().pool, own.id(), "{round}");
        own.free(b, 0).unwrap();
        assert_eq!(own.free(b, 0).unwrap_err().code(), Code::DoubleFree);
        own.free(a, 0).unwrap();
    }
    assert_eq!((own.alloc(0, 0), own.free(0, 0)), (Ok(0), Ok(())));
    assert_eq!(code(own.alloc(0, 1 << 40)), Code::OutOfMemory);
    assert_eq!(m.pools().stats(own.id()).unwrap().blocks.total, 6);
    assert_eq!(own.device().id(), d.id());
    m.pools().destroy(own.id()).unwrap();
    // The next pool of the slot is another one.
    let next = m.pools().create(0).unwrap();
    assert_eq!(code(own.alloc(0, 1000)), Code::InvalidArgument);
    assert_eq!(m.pools().stats(next).unwrap().blocks.total, 0);
    let default = d.pool(PoolId::DEFAULT).unwrap();
    default.free(default.alloc(0, 1000).unwrap(), 0).unwrap();
    runtime::finalize().unwrap();
    assert_eq!(code(default.alloc(0, 1000)), Code::NotInitialized);
}

#[test]
fn a_handle_of_the_default_pool_is_routed_by_scopes() {
    let _first = fresh();
    let d = runtime::device("t", 0).unwrap();
    let (m, default) = (d.memory(), d.pool(PoolId::DEFAULT).unwrap());
    let pool_of = |addr| m.block(addr).unwrap().pool;
    let a = default.alloc(0, 1000).unwrap();
    default.free(a, 0).unwrap(); // found from here on
    let own = m.pools().create(0).unwrap();
    m.pools().begin_scope(own).unwrap();
    let b = default.alloc(0, 1000).unwrap();
    assert_eq!(pool_of(b), own);
    m.pools().end_scope(own).unwrap();
    let c = default.alloc(0, 1000).unwrap();
    assert_eq!(pool_of(c), PoolId::DEFAULT);
    [b, c].into_iter().for_each(|x| default.free(x, 0).unwrap());
}

#[test]
fn a_released_pool_takes_no_more_requests_and_ends_with_its_last_block() {
    let _first = fresh();
    let d = runtime::device("t", 0).unwrap();
    let (m, pool) = (d.memory(), d.memory().pools().create(0).unwrap());
    let own = d.pool(pool).unwrap();
    let a = own.alloc(0, 1000).unwrap();
    own.free(own.alloc(0, 1000).unwrap(), 0).unwrap(); // found from here on
    assert!(!m.pools().release(pool).unwrap());
    let refused: [millpond::Result<()>; 4] = [
        own.alloc(0, 1000).map(drop),
        m.alloc(pool, 0, 1000).map(drop),
        m.pools().begin_scope(pool),
        m.captures().begin(pool, 0).map(drop),
    ];
    assert_eq!(refused.map(|r| r.unwrap_err().code()), [Code::NotPermitted; 4]);
    assert_eq!(m.pools().end_released(), []);
    own.free(a, 0).unwrap();
    assert_eq!(m.pools().end_released(), [pool]);
    assert_eq!(own.alloc(0, 1000).unwrap_err().code(), Code::InvalidArgument);
    assert!(m.pools().release(m.pools().create(0).unwrap()).unwrap(), "an empty pool ends at once");
    assert_eq!(m.pools().release(PoolId::DEFAULT).unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn a_pool_has_its_name_and_its_number_until_it_ends() {
    let _first = fresh();
    let d = runtime::device("t", 0).unwrap();
    let (m, pools) = (d.memory(), d.memory().pools());
    let pool = pools.create(INIT_ALLOC).unwrap();
    let handle = d.pool(pool).unwrap();
    assert_eq!((pools.name(pool), pools.named("kv")), (None, vec![]));
    pools.set_name(pool, "kv").unwrap();
    assert_eq!((pools.name(pool).as_deref(), pools.named("kv")), (Some("kv"), vec![pool]));
    assert_eq!(pools.set_name(PoolId(12345), "no").unwrap_err().code(), Code::InvalidArgument);

    // Reports, errors and snapshots say the name.
    let report = m.alloc(pool, 0, 1 << 30).unwrap_err().oom_report().unwrap();
    assert_eq!(report.pool_name, "kv");
    assert!(report.pools.iter().any(|h| h.pool == Some(pool) && h.name == "kv") || report.pools.is_empty());
    let mut json = Vec::new();
    d.snapshot().unwrap().write(runtime::SnapshotFormat::Json, &mut json).unwrap();
    assert!(String::from_utf8(json).unwrap().contains("\"kv\""));

    // The number stands for the pool everywhere.
    let number = pools.number(pool).unwrap();
    assert_eq!((pools.number(pool).unwrap(), number >> 48), (number, 0));
    assert_eq!(pools.number_if_live(pool), Some(number));
    let found = runtime::PoolHandle::of_number(number).unwrap();
    assert_eq!((found.id(), found.device().id()), (pool, d.id()));
    let a = found.alloc(0, 1000).unwrap();
    let busy = pools.destroy(pool).unwrap_err();
    assert_eq!(busy.code(), Code::Busy);
    found.free(a, 0).unwrap();

    assert!(pools.release(pool).unwrap(), "nothing of it is left");
    assert_eq!((pools.name(pool), pools.named("kv"), pools.number_if_live(pool)), (None, vec![], None));
    assert_eq!(runtime::PoolHandle::of_number(number).err().unwrap().code(), Code::InvalidArgument);
    let e = handle.alloc(0, 1000).unwrap_err();
    assert_eq!((e.code(), e.message().contains("kv")), (Code::InvalidArgument, false));
    assert_ne!(pools.number(pools.create(0).unwrap()).unwrap(), number, "a number is used once");
}

#[test]
fn a_refused_request_says_the_name_of_its_pool() {
    let _first = fresh();
    let d = runtime::device("t", 0).unwrap();
    let (pools, pool) = (d.memory().pools(), d.memory().pools().create(0).unwrap());
    pools.set_name(pool, "kv").unwrap();
    let handle = d.pool(pool).unwrap();
    let a = handle.alloc(0, 1000).unwrap();
    assert!(!pools.release(pool).unwrap());
    let e = handle.alloc(0, 1000).unwrap_err();
    assert_eq!((e.code(), e.message().starts_with("pool \"kv\": ")), (Code::NotPermitted, true), "{e}");
    handle.free(a, 0).unwrap();
}
