//! The other backends of the device type `cuda`: the driver's own pool, and no pool at all.

use crate::cuda::*;
use millpond::Code;
use millpond::runtime::{self, DeviceState, PoolId, StreamKind};
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
    let s = d.streams().create().unwrap();
    let at = d.memory().alloc(POOL, s, 5 * MIB).unwrap();
    d.write(at, b"pool").unwrap();
    assert_eq!(fake.read(0, at, 4).unwrap(), b"pool");
    let granules = fake.calls("cuMemCreate") - fake.calls("cuMemRelease"); // one was tried
    assert_eq!(fake.calls("cuMemAlloc_v2") + granules, 0);
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
fn other_devices_use_the_drivers_pool() {
    for before in [false, true] {
        let fake = Fake::new(&[("capacity", "64M"), ("devices", "2")], |_| {});
        runtime::set_default_options(Some("cuda"), None, "backend:cudaMallocAsync").unwrap();
        let [near, far] = [0, 1].map(|i| runtime::device("cuda", i).unwrap());
        let early = before.then(|| near.memory().alloc(POOL, 0, 5 * MIB).unwrap());
        near.peer_access().enable(&far).unwrap();
        let late = near.memory().alloc(POOL, 0, 20 * MIB).unwrap();
        for at in early.into_iter().chain([late]) {
            near.write(at, b"near").unwrap();
            assert_eq!(fake.read(1, at, 4).unwrap(), b"near");
        }
        let there = far.memory().alloc(POOL, 0, 5 * MIB).unwrap();
        near.copy_peer(&far, there, late, 4).unwrap();
        assert_eq!(fake.read(1, there, 4).unwrap(), b"near");
        assert_eq!(fake.calls("cuMemcpyPeerAsync"), 0);
        fake.end();
    }
}

#[test]
fn a_threshold_gives_back_at_a_wait() {
    let (fake, d) = open("cudaMallocAsync", 0);
    let s = d.streams().create().unwrap();
    let at = d.memory().alloc(POOL, s, 5 * MIB).unwrap();
    d.memory().free(at, Some(s), None).unwrap();
    d.streams().synchronize(s).unwrap();
    assert_eq!(fake.used(0), 0);
    fake.end();
}

#[test]
fn a_free_to_the_drivers_pool_waits_on_the_device_only() {
    let (fake, d) = open("cudaMallocAsync", u64::MAX);
    let (s, t) = (d.streams().create().unwrap(), d.streams().create().unwrap());
    let at = d.memory().alloc(POOL, s, 40 * MIB).unwrap();
    d.streams().synchronize(s).unwrap();
    fake.hold(true);
    d.memset_async(t, at, 7, 40 * MIB).unwrap();
    d.memory().record_stream(at, t).unwrap();
    d.memory().free(at, Some(s), None).unwrap(); // returns, though `t` stands still
    assert!(!d.streams().query(t).unwrap());
    fake.hold(false);
    // The same memory, and the old work must be over before the new runs.
    let again = d.memory().alloc(POOL, s, 40 * MIB).unwrap();
    d.memset_async(s, again, 1, 40 * MIB).unwrap();
    d.streams().synchronize(s).unwrap();
    d.synchronize().unwrap();
    assert_eq!(fake.read(0, again + 40 * MIB - 1, 1).unwrap(), [1]);
    // The stream ends before its block.
    d.streams().destroy(s).unwrap();
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

/// A block is freed where the driver cannot be called; when it can, the block's stream has ended with work on the block, and NULL,
/// in whose order it goes back then, does not wait for such a stream by itself.
#[test]
fn a_block_goes_back_after_the_work_of_its_stream_that_ended_meanwhile() {
    let (fake, d) = open("cudaMallocAsync", u64::MAX);
    let m = d.memory();
    let s = d.streams().create_with(StreamKind { priority: 0, non_blocking: true }).unwrap();
    let u = d.streams().create_with(StreamKind { priority: 0, non_blocking: true }).unwrap();
    let (open_gate, gate) = std::sync::mpsc::channel::<()>();
    let at = m.alloc(POOL, s, MIB).unwrap();
    fake.launch_host(0, s, move || _ = gate.recv());
    d.memset_async(s, at, 7, MIB).unwrap();
    let (told, hear) = std::sync::mpsc::channel();
    let memory = d.clone();
    d.streams()
        .callback(u, Box::new(move |_| told.send(memory.memory().free(at, None, None).is_ok()).unwrap()))
        .unwrap();
    assert!(hear.recv().unwrap(), "it goes back later");
    d.streams().synchronize(u).unwrap();
    d.streams().destroy(s).unwrap();
    let other = m.alloc(POOL, u, 512).unwrap(); // what was put off is given back before
    // Longer than NULL takes for a free that waits for nothing.
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(!d.streams().query(0).unwrap(), "its memory went back before the work on it was done");
    drop(open_gate);
    d.synchronize().unwrap();
    m.free(other, Some(u), None).unwrap();
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
        let t = d.streams().create().unwrap();
        fake.calls_reset();
        fake.fail(name, 1, 719, false);
        let waits_on_the_host = ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"].contains(&name);
        let first = std::cell::Cell::new(true);
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
                let freed = d.memory().free(at, Some(0), None);
                let over = d.streams().query(t);
                let fine = !first.take() || !waits_on_the_host || over == Ok(true);
                assert!(fine, "{name}: freed under work that is queued");
                freed
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
        if waits_on_the_host {
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

#[test]
fn a_wrong_size_is_refused() {
    for backend in ["none", "cudaMallocAsync"] {
        let (fake, d) = open(backend, 0);
        let at = d.memory().alloc(POOL, 0, 5000).unwrap();
        for size in [0, 4999, 5001] {
            assert_eq!(
                d.memory().free(at, Some(0), Some(size)).unwrap_err().code(),
                Code::WrongSize,
                "{size}"
            );
        }
        d.memory().free(at, Some(0), Some(5000)).unwrap();
        fake.end();
    }
}

/// NULL, on which the driver's pool gets a block without a stream back, does not wait for non-blocking streams.
#[test]
fn a_block_without_a_stream_goes_to_the_drivers_pool_after_all_streams() {
    let (fake, d) = open("cudaMallocAsync", u64::MAX);
    let (s, t) = (fake.foreign_stream(0, 1), d.streams().create().unwrap());
    let at = d.memory().alloc_unordered(POOL, 40 * MIB).unwrap();
    let (open, gate) = std::sync::mpsc::channel::<()>();
    fake.launch_host(0, s, move || _ = gate.recv());
    d.memset_async(s, at, 9, 40 * MIB).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            drop(open);
        });
        d.memory().free(at, None, None).unwrap();
        let next = d.memory().alloc(POOL, t, 40 * MIB).unwrap();
        d.memset_async(t, next, 1, 40 * MIB).unwrap();
        d.streams().synchronize(t).unwrap();
        d.synchronize().unwrap();
        assert_eq!(
            fake.read(0, next, 1).unwrap(),
            [1],
            "overwritten by work that was queued before the free"
        );
        d.memory().free(next, Some(t), None).unwrap();
    });
    fake.foreign_stream_end(s);
    fake.end();
}

/// The NULL streams of two devices have one number, and pinned memory waits for both.
#[test]
fn pinned_memory_waits_for_the_same_number_on_each_device() {
    let fake = Fake::new(&[("devices", "2")], |_| {});
    let [near, far] = [0, 1].map(|n| runtime::device("cuda", n).unwrap());
    let block = near.host_memory().alloc(MIB).unwrap();
    let (open, gate) = std::sync::mpsc::channel::<()>();
    fake.launch_host(1, 0, move || _ = gate.recv());
    for d in [&near, &far] {
        d.host_memory().record_stream(block, 0).unwrap();
    }
    near.host_memory().free(block).unwrap();
    assert_eq!(near.host_memory().stats().unwrap().pending, MIB);
    drop(open);
    far.synchronize().unwrap();
    assert_eq!(near.host_memory().stats().unwrap().pending, 0);
    fake.end();
}
