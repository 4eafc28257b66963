//! Memory back to the driver down to so many bytes, by each backend: what others see of it on the card.

use crate::cuda::*;
use millpond::Code;
use millpond::runtime::{self, PoolId};

const POOL: PoolId = PoolId::DEFAULT;

#[test]
fn others_get_what_is_trimmed() {
    for (mapping, backend) in [(true, "native"), (false, "native"), (true, "cudaMallocAsync")] {
        let fake = Fake::new(&[("capacity", "256M"), ("strict", "1")], |o| {
            o.mapping = mapping;
            o.release_threshold = u64::MAX;
        });
        runtime::set_default_options(Some("cuda"), None, &format!("backend:{backend}")).unwrap();
        let d = runtime::device("cuda", 0).unwrap();
        let m = d.memory();
        let s = d.streams().create().unwrap();
        let all: Vec<u64> = (0..8).map(|_| m.alloc(POOL, s, 16 * MIB).unwrap()).collect();
        d.write(all[0], b"kept").unwrap();
        all.iter().skip(1).for_each(|&at| m.free(at, Some(s), None).unwrap());
        let before = fake.used(0);
        assert!(before >= 128 * MIB, "{backend}");
        m.trim_to(None, m.stats().reserved.current).unwrap();
        assert_eq!(fake.used(0), before, "{backend}: nothing had to go");
        m.trim_to(None, 64 * MIB).unwrap();
        assert!(fake.used(0) <= 64 * MIB, "{backend}, mapping {mapping}: {}", fake.used(0));
        if mapping && backend == "native" {
            assert_eq!(fake.used(0), 64 * MIB);
        }
        // A budget, below what is in blocks.
        let above = m.settings().set_budget(4 * MIB).unwrap();
        assert_eq!(above, m.stats().reserved.current - 4 * MIB, "{backend}");
        assert!(above >= 12 * MIB, "{backend}");
        assert_eq!(m.alloc(POOL, s, 128 * MIB).unwrap_err().code(), Code::OutOfMemory);
        let mut kept = [0; 4];
        d.read(all[0], &mut kept).unwrap();
        assert_eq!(&kept, b"kept");
        m.free(all[0], Some(s), None).unwrap();
        assert_eq!(m.settings().set_budget(4 * MIB).unwrap(), 0, "{backend}");
        assert!(fake.used(0) <= 4 * MIB);
        assert_eq!(m.settings().set_budget(0).unwrap(), 0);
        fake.end();
    }
}

/// The memory of what sleeps is gone already.
#[test]
fn what_sleeps_raises_no_floor() {
    let fake = Fake::new(&[("capacity", "256M")], |_| {});
    runtime::set_default_options(Some("cuda"), None, "empty_cache_floor_mb:32").unwrap();
    let d = runtime::device("cuda", 0).unwrap();
    let m = d.memory();
    let s = d.streams().create().unwrap();
    let p = m.pools().create(0).unwrap();
    let asleep = m.alloc(p, s, 100 * MIB).unwrap();
    m.pools().sleep(p, false).unwrap();
    let all: Vec<u64> = (0..4).map(|_| m.alloc(POOL, s, 32 * MIB).unwrap()).collect();
    all.iter().for_each(|&at| m.free(at, Some(s), None).unwrap());
    assert_eq!(m.stats().reserved.current, 128 * MIB);
    m.empty_cache(None).unwrap();
    assert_eq!(m.stats().reserved.current, 32 * MIB);
    m.free(asleep, Some(s), None).unwrap();
    fake.end();
}

/// What an emptied cache keeps serves the next requests without the driver; all of it goes where the option says so.
#[test]
fn an_emptied_cache_keeps_a_floor() {
    for (mapping, backend) in [(true, "native"), (false, "native"), (true, "cudaMallocAsync")] {
        let fake = Fake::new(&[("capacity", "256M")], |o| {
            o.mapping = mapping;
            o.release_threshold = u64::MAX;
        });
        let options = format!("backend:{backend},empty_cache_floor_mb:32");
        runtime::set_default_options(Some("cuda"), None, &options).unwrap();
        let d = runtime::device("cuda", 0).unwrap();
        let m = d.memory();
        let s = d.streams().create().unwrap();
        let live = m.alloc(POOL, s, 16 * MIB).unwrap();
        let all: Vec<u64> = (0..8).map(|_| m.alloc(POOL, s, 8 * MIB).unwrap()).collect();
        all.iter().for_each(|&at| m.free(at, Some(s), None).unwrap());
        d.synchronize().unwrap();
        m.empty_cache(None).unwrap();
        let kept = fake.used(0);
        // A device that does not map gives whole segments back, of which each may hold all.
        let most = if mapping { 48 * MIB } else { 96 * MIB };
        // The driver trims its own pool in pieces of its own, and may go below what is to be kept by one.
        let least = if backend == "native" { 48 * MIB } else { 17 * MIB };
        assert!(kept >= least && kept <= most, "{backend}, mapping {mapping}: {kept}");
        fake.calls_reset();
        let again: Vec<u64> = (0..4).map(|_| m.alloc(POOL, s, 8 * MIB).unwrap()).collect();
        if backend == "native" {
            assert_eq!(fake.calls("cuMemCreate") + fake.calls("cuMemMap") + fake.calls("cuMemAlloc_v2"), 0);
        }
        assert!(backend != "native" || fake.used(0) == kept);
        again.iter().for_each(|&at| m.free(at, Some(s), None).unwrap());
        d.synchronize().unwrap();
        d.options().set("empty_cache_floor_mb:0").unwrap();
        m.empty_cache(None).unwrap();
        // The segment of the live block stays.
        assert!(
            fake.used(0) <= if mapping { 32 * MIB } else { 64 * MIB },
            "{backend}, mapping {mapping}: {}",
            fake.used(0)
        );
        m.free(live, Some(s), None).unwrap();
        fake.end();
    }
}

/// Under PyTorch it is a 32nd of the device unless told; elsewhere nothing is kept.
#[test]
fn under_pytorch_there_is_a_floor_by_default() {
    for (pytorch, left) in [(false, 0), (true, 8 * MIB)] {
        let fake = Fake::new(&[("capacity", "256M")], |_| {});
        if pytorch {
            runtime::set_pytorch_options(Some("cuda")).unwrap();
        }
        let d = runtime::device("cuda", 0).unwrap();
        let p = d.memory().alloc(POOL, 0, 64 * MIB).unwrap();
        d.memory().free(p, Some(0), None).unwrap();
        d.synchronize().unwrap();
        d.memory().empty_cache(None).unwrap();
        assert_eq!(fake.used(0), left);
        fake.end();
    }
}

#[test]
fn what_the_driver_refuses_stays() {
    for mapping in [true, false] {
        let fake = Fake::new(&[("capacity", "256M")], |o| o.mapping = mapping);
        let d = runtime::device("cuda", 0).unwrap();
        let m = d.memory();
        let all: Vec<u64> = (0..4).map(|_| m.alloc(POOL, 0, 16 * MIB).unwrap()).collect();
        all.into_iter().for_each(|at| m.free(at, Some(0), None).unwrap());
        fake.fail("cuCtxSynchronize", 1, 999, false);
        let before = (m.stats().reserved.current, fake.used(0));
        let e = m.settings().set_budget(8 * MIB).unwrap_err();
        assert_eq!(e.code(), Code::Device);
        assert_eq!((m.stats().reserved.current, fake.used(0)), before);
        assert_eq!(m.stats().limit, 8 * MIB, "the budget is in force");
        assert_eq!(m.settings().set_budget(8 * MIB).unwrap(), 0);
        assert!(fake.used(0) <= 8 * MIB);
        fake.end();
    }
}
