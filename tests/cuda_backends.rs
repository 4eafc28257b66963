//! The other backends of the device type `cuda`: the driver's own pool, and no pool at all.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]
#![cfg(unix)]

mod cuda;
use cuda::*;
use millpond::Code;
use millpond::runtime::{self, DeviceState, PoolId};
use std::sync::Arc;

const POOL: PoolId = PoolId::DEFAULT;

fn open(backend: &str, threshold: u64) -> (Fake, Arc<DeviceState>) {
    let fake = Fake::new(&[("capacity", "64M")], |o| {
        o.release_threshold = threshold;
    });
    runtime::set_default_options(Some("cuda"), None, &format!("backend:{backend}")).unwrap();
    let device = runtime::device("cuda", 0).unwrap();
    (fake, device)
}

#[test]
fn memory_of_the_drivers_pool() {
    let (fake, d) = open("cudaMallocAsync", u64::MAX);
    let s = d.stream_create().unwrap();
    let at = d.memory().alloc(POOL, s, 5 * MIB).unwrap();
    d.write(at, b"pool").unwrap();
    assert_eq!(fake.read(0, at, 4).unwrap(), b"pool");
    assert_eq!(fake.calls("cuMemAlloc_v2") + fake.calls("cuMemCreate"), 0);
    assert_eq!(fake.calls("cuMemAllocFromPoolAsync"), 1);
    let stats = d.memory().stats();
    assert_eq!((stats.allocated.current, stats.blocks.current), (5 * MIB, 1));
    assert!(stats.reserved.current >= 5 * MIB);
    d.memory().free(at, Some(s), None).unwrap();
    assert_eq!(d.memory().free(at, Some(s), None).unwrap_err().code(), Code::DoubleFree);
    d.synchronize().unwrap();
    assert!(d.memory().stats().reserved.current >= 5 * MIB, "the pool keeps what was freed");
    d.memory().empty_cache(None).unwrap();
    assert_eq!((d.memory().stats().reserved.current, fake.used(0)), (0, 0));
    assert_eq!(d.memory().alloc(POOL, s, 100 * MIB).unwrap_err().code(), Code::OutOfMemory);
    // Left to the end.
    d.memory().alloc(POOL, s, MIB).unwrap();
    d.memory().alloc_unordered(POOL, MIB).unwrap();
    fake.end();
}

#[test]
fn a_threshold_gives_back_at_a_wait() {
    let (fake, d) = open("cudaMallocAsync", 0);
    let s = d.stream_create().unwrap();
    let at = d.memory().alloc(POOL, s, 5 * MIB).unwrap();
    d.memory().free(at, Some(s), None).unwrap();
    d.stream_synchronize(s).unwrap();
    assert_eq!(fake.used(0), 0);
    fake.end();
}

#[test]
fn a_free_to_the_drivers_pool_waits_on_the_device_only() {
    let (fake, d) = open("cudaMallocAsync", u64::MAX);
    let (s, t) = (d.stream_create().unwrap(), d.stream_create().unwrap());
    let at = d.memory().alloc(POOL, s, 40 * MIB).unwrap();
    d.stream_synchronize(s).unwrap();
    fake.hold(true);
    d.memset_async(t, at, 7, 40 * MIB).unwrap();
    d.memory().record_stream(at, t).unwrap();
    d.memory().free(at, Some(s), None).unwrap(); // returns, though `t` stands still
    assert!(!d.stream_query(t).unwrap());
    fake.hold(false);
    // The same memory, and the old work must be over before the new runs.
    let again = d.memory().alloc(POOL, s, 40 * MIB).unwrap();
    d.memset_async(s, again, 1, 40 * MIB).unwrap();
    d.stream_synchronize(s).unwrap();
    d.synchronize().unwrap();
    assert_eq!(fake.read(0, again + 40 * MIB - 1, 1).unwrap(), [1]);
    // The stream ends before its block.
    d.stream_destroy(s).unwrap();
    d.memory().free(again, None, None).unwrap();
    // Per-thread streams order nothing between threads.
    let p = d.memory().alloc(POOL, 2, MIB).unwrap();
    assert_eq!(d.memory().block(p).unwrap().stream, None);
    d.memory().free(p, Some(2), None).unwrap();
    fake.end();
}

#[test]
fn pass_through() {
    let (fake, d) = open("none", 0);
    for n in 1..4 {
        let at = d.memory().alloc(POOL, 0, MIB).unwrap();
        assert_eq!(fake.calls("cuMemAlloc_v2"), n);
        d.memory().free(at, Some(0), None).unwrap();
        assert_eq!((fake.calls("cuMemFree_v2"), fake.used(0)), (n, 0));
    }
    assert_eq!(d.memory().stats().driver_calls, 6);
    d.memory().alloc(POOL, 0, MIB).unwrap();
    fake.end();
}

#[test]
fn each_call_of_a_backend_fails_once() {
    let calls = [
        "cuMemPoolCreate",
        "cuMemPoolSetAttribute",
        "cuMemAllocFromPoolAsync",
        "cuStreamSynchronize",
        "cuMemFreeAsync",
        "cuMemPoolTrimTo",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuEventCreate",
        "cuMemPoolDestroy",
    ];
    for name in calls {
        let (fake, d) = open("cudaMallocAsync", u64::MAX);
        let t = d.stream_create().unwrap();
        fake.calls_reset();
        fake.fail(name, 1, 719, false);
        let program = || {
            let at = d.memory().alloc(POOL, 0, MIB)?;
            d.memory().record_stream(at, t)?;
            fake.hold(true);
            d.memset_async(t, at, 1, MIB)?;
            let freed = std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                    fake.hold(false);
                });
                d.memory().free(at, Some(0), None)
            });
            freed.inspect_err(|_| {
                d.memory().free(at, Some(0), None).unwrap(); // it is still there
            })?;
            let u = d.memory().alloc_unordered(POOL, MIB)?;
            d.memory().free(u, None, None)?;
            d.memory().empty_cache(None)
        };
        let result = program();
        let ended = if name == "cuMemPoolDestroy" { runtime::finalize() } else { program().and(result) };
        assert!(fake.calls(name) > 0);
        if ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"].contains(&name) {
            ended.unwrap(); // what cannot be ordered on the device is waited for on the host
        } else {
            let e = ended.expect_err(name);
            assert!(e.message().contains(name), "{name}: {e}");
        }
        assert_eq!(d.memory().live_blocks(), 0, "{name}");
        if name == "cuMemPoolDestroy" {
            fake.end_quietly();
        } else {
            fake.end();
        }
    }
}
