//! The cache of pinned host memory: reuse that waits for streams, sizes, the cap, the account, and threads.

use crate::support::{Knobs, alone, test_type};
use millpond::device::HostWish;
use millpond::runtime::{self, CopyKind, DeviceState, HostOptions, PoolId, StreamId};
use millpond::{Code, Result};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// The library anew, with two host devices that map or do not.
fn host(mapping: bool) -> (Arc<DeviceState>, MutexGuard<'static, ()>) {
    let guard = alone();
    let _ = runtime::finalize();
    runtime::configure_host(HostOptions { device_count: 2, capacity: 256 << 20, mapping }).unwrap();
    (runtime::device("host", 0).unwrap(), guard)
}

/// The library anew, with a test device.
fn test_device() -> (Arc<DeviceState>, Arc<Knobs>, MutexGuard<'static, ()>) {
    let guard = alone();
    let _ = runtime::finalize();
    let (kind, knobs) = test_type("t");
    runtime::register_type(kind).unwrap();
    (runtime::device("t", 0).unwrap(), knobs, guard)
}

fn bytes_at<'a>(addr: u64, len: u64) -> &'a mut [u8] {
    unsafe {
        std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(addr as usize), len as usize)
    }
}

/// A stream that stands still until the sender is dropped or used.
fn blocked(d: &DeviceState) -> (StreamId, Sender<()>) {
    let stream = d.streams().create().unwrap();
    let (open, gate) = channel::<()>();
    let wait = move |_: Result<()>| {
        let _ = gate.recv();
    };
    d.streams().callback(stream, Box::new(wait)).unwrap();
    (stream, open)
}

fn upload(d: &DeviceState, stream: StreamId, dst: u64, src: u64, bytes: u64) {
    unsafe { d.copy_async(stream, CopyKind::HostToDevice, dst, src, bytes) }.unwrap();
}

#[test]
fn a_freed_source_is_not_used_again_before_its_copy_is_done() {
    for mapping in [true, false] {
        let (d, _alone) = host(mapping);
        let block = d.memory().alloc(PoolId::DEFAULT, 0, MIB).unwrap();
        let (stream, open) = blocked(&d);
        let first = d.host_memory().alloc(MIB).unwrap();
        bytes_at(first, MIB).fill(7);
        // From its middle: the block that holds the address counts.
        upload(&d, stream, block + 100, first + 100, MIB - 100);
        upload(&d, stream, block, first, 100);
        let start = Instant::now();
        d.host_memory().free(first).unwrap();
        assert!(start.elapsed() < Duration::from_secs(5), "the stream stands still, and the free came back");
        let s = d.host_memory().stats().unwrap();
        assert_eq!((s.pending, s.cached, s.blocks.current), (MIB, 0, 0));
        let second = d.host_memory().alloc(MIB).unwrap();
        assert_ne!(second, first);
        bytes_at(second, MIB).fill(9);
        drop(open);
        d.streams().synchronize(stream).unwrap();
        let mut got = vec![0; MIB as usize];
        d.read(block, &mut got).unwrap();
        assert!(got.iter().all(|&b| b == 7));
        assert_eq!(d.host_memory().alloc(MIB).unwrap(), first, "the stream has passed");
        assert_eq!(d.host_memory().stats().unwrap().reuses, 1);
        d.memory().free(block, None, None).unwrap();
    }
}

/// Each of the streams that use a block is waited for, whichever was named first.
#[test]
fn a_freed_block_waits_for_each_stream_that_uses_it() {
    let (d, _alone) = host(true);
    for swapped in [false, true] {
        let ((first, open_first), (second, open_second)) = (blocked(&d), blocked(&d));
        let block = d.host_memory().alloc(MIB).unwrap();
        let named = if swapped { [second, first] } else { [first, second] };
        named.iter().for_each(|s| d.host_memory().record_stream(block, *s).unwrap());
        d.host_memory().free(block).unwrap();
        drop(open_first);
        d.streams().synchronize(first).unwrap();
        assert_eq!(d.host_memory().stats().unwrap().pending, MIB, "the second stream stands still");
        drop(open_second);
        d.streams().synchronize(second).unwrap();
        assert_eq!(d.host_memory().stats().unwrap().pending, 0);
    }
}

#[test]
fn a_freed_destination_and_recorded_streams_are_waited_for() {
    let (d, _alone) = host(true);
    let other = runtime::device("host", 1).unwrap();
    let block = d.memory().alloc(PoolId::DEFAULT, 0, MIB).unwrap();
    let (stream, open) = blocked(&d);
    let (far, open_far) = blocked(&other);
    let target = d.host_memory().alloc(MIB).unwrap();
    unsafe { d.copy_async(stream, CopyKind::DeviceToHost, target, block, MIB) }.unwrap();
    let recorded = d.host_memory().alloc(MIB).unwrap();
    other.host_memory().record_stream(recorded + MIB - 1, far).unwrap();
    for addr in [target, recorded] {
        d.host_memory().free(addr).unwrap();
    }
    assert_eq!(d.host_memory().stats().unwrap().pending, 2 * MIB);
    drop(open);
    d.streams().synchronize(stream).unwrap();
    let s = d.host_memory().stats().unwrap();
    assert_eq!((s.pending, s.cached), (MIB, MIB), "one still waits for the other device");
    drop(open_far);
    other.streams().synchronize(far).unwrap();
    assert_eq!(d.host_memory().stats().unwrap().cached, 2 * MIB);
    // What no one uses is reusable at once.
    let a = d.host_memory().alloc(MIB).unwrap();
    d.host_memory().free(a).unwrap();
    assert_eq!(d.host_memory().alloc(MIB).unwrap(), a);
    for (addr, stream, code) in [
        (a + MIB, 0, Code::UnknownPointer),
        (a, 0x1234, Code::UnknownStream),
        (a - 1, 0, Code::UnknownPointer),
        (0, 0, Code::UnknownPointer),
    ] {
        assert_eq!(d.host_memory().record_stream(addr, stream).unwrap_err().code(), code);
    }
    d.host_memory().free(a).unwrap();
    assert_eq!(d.host_memory().record_stream(a, 0).unwrap_err().code(), Code::UnknownPointer);
}

#[test]
fn what_a_stream_that_has_ended_still_does_is_waited_for() {
    let (d, _alone) = host(true);
    let block = d.memory().alloc(PoolId::DEFAULT, 0, MIB).unwrap();
    let (stream, open) = blocked(&d);
    let pinned = d.host_memory().alloc(MIB).unwrap();
    bytes_at(pinned, MIB).fill(3);
    upload(&d, stream, block, pinned, MIB);
    d.streams().destroy(stream).unwrap();
    d.host_memory().free(pinned).unwrap();
    let s = d.host_memory().stats().unwrap();
    assert_eq!((s.pending, s.cached), (MIB, 0), "its work still reads the memory");
    let other = d.host_memory().alloc(MIB).unwrap();
    assert_ne!(other, pinned);
    drop(open);
    d.synchronize().unwrap();
    assert_eq!(d.host_memory().stats().unwrap().cached, MIB);
    let mut got = [0];
    d.read(block + MIB - 1, &mut got).unwrap();
    assert_eq!(got, [3]);
}

#[test]
fn small_blocks_share_what_is_taken_from_the_device() {
    let (d, _alone) = host(true);
    let all: Vec<u64> = (0..1000).map(|i| d.host_memory().alloc(1 + i % 128).unwrap()).collect();
    let s = d.host_memory().stats().unwrap();
    assert_eq!((s.driver_calls, s.reserved.current, s.blocks.current), (2, 128 << 10, 1000));
    assert!(s.allocated.current < s.requested.current + 64_000);
    for (i, &a) in all.iter().enumerate() {
        bytes_at(a, 1 + i as u64 % 128).fill(i as u8);
        assert_eq!(a % 64, 0);
    }
    for (i, &a) in all.iter().enumerate() {
        assert!(bytes_at(a, 1 + i as u64 % 128).iter().all(|&b| b == i as u8));
        d.host_memory().free(a).unwrap();
    }
    let kept = d.host_memory().alloc(64).unwrap();
    d.host_memory().empty_cache().unwrap();
    assert_eq!(d.host_memory().stats().unwrap().reserved.current, 64 << 10, "one slab has a live block");
    d.host_memory().free(kept).unwrap();
    d.host_memory().empty_cache().unwrap();
    let s = d.host_memory().stats().unwrap();
    assert_eq!((s.reserved.current, s.cached, s.reserved.peak), (0, 0, 128 << 10));
    d.host_memory().reset_peaks().unwrap();
    assert_eq!(d.host_memory().stats().unwrap().reserved.peak, 0);
}

#[test]
fn at_most_an_eighth_is_wasted_and_warm_requests_make_no_call() {
    let (d, _alone) = host(false);
    for bytes in [33_000, 70_001, MIB + 1, 9 * MIB / 8 + 1, 3 * MIB + 5] {
        let before = d.host_memory().stats().unwrap();
        let a = d.host_memory().alloc(bytes).unwrap();
        assert_eq!(a % 4096, 0);
        let s = d.host_memory().stats().unwrap();
        let taken = s.reserved.current - before.reserved.current;
        assert!(taken >= bytes && taken - bytes <= bytes / 8, "{bytes}: {taken}");
        d.host_memory().free(a).unwrap();
        for _ in 0..10 {
            let b = d.host_memory().alloc(taken).unwrap();
            assert_eq!(b, a);
            d.host_memory().free(b).unwrap();
        }
        let s = d.host_memory().stats().unwrap();
        assert_eq!((s.driver_calls, s.reuses), (before.driver_calls + 1, before.reuses + 10));
    }
    d.options().set("pinned_max_round_threshold_mb:1").unwrap();
    let before = d.host_memory().stats().unwrap().reserved.current;
    d.host_memory().alloc(5 * MIB + 1).unwrap();
    assert_eq!(d.host_memory().stats().unwrap().reserved.current - before, 5 * MIB + 4096);
}

#[test]
fn the_cap_bounds_what_is_cached() {
    let (d, _alone) = host(true);
    d.options().set("pinned_max_cached_size_mb:3").unwrap();
    let all: Vec<u64> = (0..4).map(|_| d.host_memory().alloc(MIB).unwrap()).collect();
    for a in all {
        d.host_memory().free(a).unwrap();
    }
    let s = d.host_memory().stats().unwrap();
    assert_eq!((s.cached, s.reserved.current), (3 * MIB, 3 * MIB));
    // One that is larger than the cap is never kept, and the others are.
    let large = d.host_memory().alloc(4 * MIB).unwrap();
    d.host_memory().free(large).unwrap();
    assert_eq!(d.host_memory().stats().unwrap().cached, 3 * MIB);
    // What still waits goes when it can, at a later call.
    d.options().set("pinned_max_cached_size_mb:0").unwrap();
    d.host_memory().empty_cache().unwrap();
    let (stream, open) = blocked(&d);
    let waits = d.host_memory().alloc(MIB).unwrap();
    d.host_memory().record_stream(waits, stream).unwrap();
    d.host_memory().free(waits).unwrap();
    let s = d.host_memory().stats().unwrap();
    assert_eq!((s.pending, s.cached, s.reserved.current), (MIB, 0, MIB));
    drop(open);
    d.streams().synchronize(stream).unwrap();
    let small = d.host_memory().alloc(10).unwrap();
    d.host_memory().free(small).unwrap();
    assert_eq!(d.host_memory().stats().unwrap().reserved.current, 0, "slabs as well");
}

#[test]
fn emptying_waits_for_what_is_in_flight() {
    let (d, _alone) = host(true);
    let (stream, open) = blocked(&d);
    let a = d.host_memory().alloc(MIB).unwrap();
    d.host_memory().record_stream(a, stream).unwrap();
    d.host_memory().free(a).unwrap();
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        drop(open);
    });
    d.host_memory().empty_cache().unwrap();
    let s = d.host_memory().stats().unwrap();
    assert_eq!((s.pending, s.cached, s.reserved.current), (0, 0, 0));
    opener.join().unwrap();
    // In a callback nothing can be waited for; a free can be made there.
    let (stream, b) = (d.streams().create().unwrap(), d.host_memory().alloc(MIB).unwrap());
    let (tell, told) = channel();
    let there = d.clone();
    let work = move |_: Result<()>| {
        tell.send((there.host_memory().free(b), there.host_memory().empty_cache().unwrap_err().code()))
            .unwrap();
    };
    d.streams().callback(stream, Box::new(work)).unwrap();
    assert_eq!(told.recv().unwrap(), (Ok(()), Code::NotPermitted));
    assert_eq!(d.host_memory().stats().unwrap().cached, MIB);
}

#[test]
fn wrong_frees_are_told_apart() {
    let (d, _alone) = host(true);
    let other = runtime::device("host", 1).unwrap();
    for bytes in [100, MIB] {
        let a = d.host_memory().alloc(bytes).unwrap();
        let code = |d: &DeviceState, addr| d.host_memory().free(addr).unwrap_err().code();
        assert_eq!(code(&d, a + 1), Code::UnknownPointer);
        assert_eq!(code(&other, a), Code::UnknownPointer);
        assert_eq!(d.host_memory().stats().unwrap().blocks.current, 1);
        d.host_memory().free(a).unwrap();
        assert_eq!(code(&d, a), Code::DoubleFree);
        let b = d.host_memory().alloc(bytes).unwrap();
        assert_eq!(a, b);
        d.host_memory().free(b).unwrap();
        assert_eq!(code(&d, b), Code::DoubleFree);
        d.host_memory().empty_cache().unwrap();
        assert_eq!(code(&d, b), Code::DoubleFree);
    }
    assert_eq!(d.host_memory().alloc(u64::MAX).unwrap_err().code(), Code::OutOfMemory);
    assert_eq!(d.host_memory().alloc(i64::MAX as u64).unwrap_err().code(), Code::OutOfMemory);
    assert_eq!((d.host_memory().alloc(0), d.host_memory().free(0)), (Ok(0), Ok(())));
    assert_eq!(d.host_memory().stats().unwrap().requested.current, 0);
}

#[test]
fn the_cache_gives_way_before_a_request_fails() {
    let (d, knobs, _alone) = test_device();
    knobs.host_limit.store(6 * MIB, SeqCst);
    let a = d.host_memory().alloc(4 * MIB).unwrap();
    d.host_memory().free(a).unwrap();
    let b = d.host_memory().alloc(5 * MIB).unwrap();
    assert_eq!(knobs.host_bytes.load(SeqCst), 5 * MIB);
    assert_eq!(d.host_memory().alloc(2 * MIB).unwrap_err().code(), Code::OutOfMemory);
    // What the device does not take back is not lost.
    d.host_memory().free(b).unwrap();
    knobs.fail_free.store(true, SeqCst);
    assert_eq!(d.host_memory().empty_cache().unwrap_err().code(), Code::Device);
    assert_eq!(d.host_memory().alloc(2 * MIB).unwrap_err().code(), Code::OutOfMemory);
    knobs.fail_free.store(false, SeqCst);
    let s = d.host_memory().stats().unwrap();
    assert_eq!((s.cached, s.reserved.current), (5 * MIB, 5 * MIB));
    assert_eq!(d.host_memory().alloc(5 * MIB).unwrap(), b);
    // A type ends when nothing is live, whatever is cached.
    assert_eq!(runtime::unregister_type("t").unwrap_err().code(), Code::Busy);
    d.host_memory().free(b).unwrap();
    runtime::unregister_type("t").unwrap();
    assert_eq!((knobs.host_bytes.load(SeqCst), knobs.live_bytes.load(SeqCst)), (0, 0));
}

#[test]
fn options_and_the_node_reach_the_device() {
    let (d, knobs, _alone) = test_device();
    let wish = |bytes| {
        let a = d.host_memory().alloc(bytes).unwrap();
        d.host_memory().free(a).unwrap();
        d.host_memory().empty_cache().unwrap();
        knobs.host_wish.lock().unwrap().take().unwrap()
    };
    assert_eq!(wish(MIB), HostWish { register: false, threads: 1 });
    d.options().set("pinned_use_cuda_host_register:True,pinned_num_register_threads:8").unwrap();
    assert_eq!(wish(MIB), HostWish { register: true, threads: 8 });
    assert_eq!(d.host_memory().stats().unwrap().numa_node, None);
    knobs.node_plus_one.store(1, SeqCst);
    assert_eq!(d.host_memory().stats().unwrap().numa_node, Some(0));
    wish(MIB);
    // The host device does as it is told: zeros, touched by threads, then locked.
    drop(_alone);
    let (h, _alone) = host(true);
    h.options().set("pinned_use_cuda_host_register:True,pinned_num_register_threads:4").unwrap();
    let a = h.host_memory().alloc(17 * MIB + 4097).unwrap();
    assert!(bytes_at(a, 17 * MIB + 4097).iter().all(|&b| b == 0));
    h.host_memory().free(a).unwrap();
}

#[test]
fn a_device_ends_with_blocks_in_flight() {
    let (d, _alone) = host(true);
    let other = runtime::device("host", 1).unwrap();
    let stream = other.streams().create().unwrap();
    let (a, b) = (d.host_memory().alloc(MIB).unwrap(), d.host_memory().alloc(50).unwrap());
    for addr in [a, b] {
        other.host_memory().record_stream(addr, stream).unwrap();
    }
    d.host_memory().free(a).unwrap();
    runtime::finalize().unwrap();
    assert_eq!(d.host_memory().free(b).unwrap_err().code(), Code::NotInitialized);
    assert_eq!(d.host_memory().stats().unwrap_err().code(), Code::NotInitialized);
}

#[test]
fn threads_streams_and_content() {
    for (mapping, cap) in [(true, "unlimited"), (false, "2")] {
        let (d, _alone) = host(mapping);
        d.options().set(&format!("pinned_max_cached_size_mb:{cap}")).unwrap();
        std::thread::scope(|s| {
            for seed in 1..=4u64 {
                let d = d.clone();
                s.spawn(move || {
                    let stream = d.streams().create().unwrap();
                    let block = d.memory().alloc(PoolId::DEFAULT, stream, 8 << 16).unwrap();
                    let mut x = seed;
                    for round in 0..150u64 {
                        let mut sent = Vec::new();
                        for slot in 0..8u64 {
                            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed);
                            let bytes = 1 + (x >> 33) % (1 << (4 + (x >> 20) % 13));
                            let mark = (seed * 50 + round + slot) as u8;
                            let pinned = d.host_memory().alloc(bytes).unwrap();
                            bytes_at(pinned, bytes).fill(mark);
                            upload(&d, stream, block + (slot << 16), pinned, bytes);
                            d.host_memory().free(pinned).unwrap(); // the copy is queued at best
                            sent.push((slot, bytes, mark));
                        }
                        // Back again into memory that is freed after the wait.
                        for (slot, bytes, mark) in sent {
                            let back = d.host_memory().alloc(bytes).unwrap();
                            let from = block + (slot << 16);
                            unsafe { d.copy_async(stream, CopyKind::DeviceToHost, back, from, bytes) }
                                .unwrap();
                            d.streams().synchronize(stream).unwrap();
                            assert!(
                                bytes_at(back, bytes).iter().all(|&b| b == mark),
                                "{seed} {round} {slot}"
                            );
                            d.host_memory().free(back).unwrap();
                        }
                    }
                    d.memory().free(block, None, None).unwrap();
                    d.streams().destroy(stream).unwrap();
                });
            }
        });
        let s = d.host_memory().stats().unwrap();
        assert_eq!((s.requested.current, s.allocated.current, s.blocks.current, s.pending), (0, 0, 0, 0));
        assert_eq!(s.blocks.total, 4 * 150 * 16);
        assert!(s.reuses > if cap == "2" { 1000 } else { 9000 }, "{s:?}");
        d.host_memory().empty_cache().unwrap();
        assert_eq!(d.host_memory().stats().unwrap().reserved.current, 0);
    }
}

/// Memory of the program.
fn own_memory() -> (Vec<u8>, u64) {
    let mut own = vec![7_u8; MIB as usize];
    let at = own.as_mut_ptr().expose_provenance() as u64;
    (own, at)
}

#[test]
fn registered_memory_is_read_when_the_stream_gets_there() {
    for registered in [true, false] {
        let (d, _alone) = host(true);
        let (_own, at) = own_memory();
        if registered {
            d.host_memory().register(at, MIB).unwrap();
        }
        let block = d.memory().alloc(PoolId::DEFAULT, 0, MIB).unwrap();
        let (stream, open) = blocked(&d);
        upload(&d, stream, block, at + 100, 1000);
        bytes_at(at, MIB).fill(9);
        drop(open);
        d.streams().synchronize(stream).unwrap();
        let mut got = [0; 1000];
        d.read(block, &mut got).unwrap();
        assert_eq!(got, [if registered { 9 } else { 7 }; 1000]);
        assert_eq!(d.host_memory().unregister(at).is_ok(), registered);
    }
}

#[test]
fn a_registration_ends_after_the_work_that_may_use_it() {
    let (d, _alone) = host(true);
    let (_own, at) = own_memory();
    d.host_memory().register(at, MIB).unwrap();
    let block = d.memory().alloc(PoolId::DEFAULT, 0, MIB).unwrap();
    let (stream, open) = blocked(&d);
    upload(&d, stream, block, at, MIB);
    let (ended, end) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            d.host_memory().unregister(at).unwrap();
            ended.send(()).unwrap();
        });
        assert!(end.recv_timeout(Duration::from_millis(50)).is_err(), "the copy has not begun");
        drop(open);
        end.recv_timeout(Duration::from_secs(20)).unwrap();
    });
    d.host_memory().register(at, MIB).unwrap();
}

#[test]
fn bad_registrations_are_refused() {
    let (d, _alone) = host(true);
    let other = runtime::device("host", 1).unwrap();
    let (_own, at) = own_memory();
    let code = |done: Result<()>| done.unwrap_err().code();
    assert_eq!(code(d.host_memory().register(0, 8)), Code::InvalidArgument);
    assert_eq!(code(d.host_memory().register(at, 0)), Code::InvalidArgument);
    assert_eq!(code(d.host_memory().register(at, u64::MAX)), Code::OutOfRange);
    d.host_memory().register(at + 1000, 1000).unwrap();
    for (from, bytes) in [(at, MIB), (at, 1001), (at + 1999, 1), (at + 1500, 10)] {
        assert_eq!(code(d.host_memory().register(from, bytes)), Code::Busy, "{bytes} bytes");
    }
    d.host_memory().register(at, 1000).unwrap();
    d.host_memory().register(at + 2000, 1000).unwrap();
    assert_eq!(code(d.host_memory().unregister(at + 1)), Code::UnknownPointer);
    assert_eq!(code(other.host_memory().unregister(at)), Code::UnknownPointer);
    let pinned = d.host_memory().alloc(MIB).unwrap();
    assert_eq!(code(d.host_memory().register(pinned + 8, 8)), Code::Busy);
    assert_eq!(code(d.host_memory().unregister(pinned)), Code::UnknownPointer);
    assert_eq!(code(d.host_memory().free(at)), Code::UnknownPointer);
    for from in [at, at + 1000, at + 2000] {
        d.host_memory().unregister(from).unwrap();
        assert_eq!(code(d.host_memory().unregister(from)), Code::UnknownPointer);
    }
}

/// The limit counts all that is taken from the device, gives back what is cached before it refuses, and waits for nothing.
#[test]
fn a_limit_of_pinned_memory_holds_and_refuses_at_once() {
    let (d, knobs, _alone) = test_device();
    d.options().set("pinned_limit_mb:4").unwrap();
    let first = d.host_memory().alloc(3 * MIB).unwrap();
    let calls = d.host_memory().stats().unwrap().driver_calls;
    let e = d.host_memory().alloc(2 * MIB).unwrap_err();
    assert_eq!(e.code(), Code::OutOfMemory);
    assert!(e.message().contains("pinned_limit_mb") && e.message().contains("3145728"), "{e}");
    assert_eq!(d.host_memory().stats().unwrap().driver_calls, calls, "the device was not asked");
    // What is cached in another size makes room.
    d.host_memory().free(first).unwrap();
    let second = d.host_memory().alloc(2 * MIB).unwrap();
    assert_eq!(knobs.host_bytes.load(SeqCst), 2 * MIB);
    // Small blocks lie in slabs, which count.
    let mut small = vec![];
    let e = loop {
        match d.host_memory().alloc(1000) {
            Ok(p) => small.push(p),
            Err(e) => break e,
        }
    };
    assert!(e.message().contains("pinned_limit_mb"), "{e}");
    assert!(small.len() > 1000 && d.host_memory().stats().unwrap().reserved.current <= 4 * MIB);
    // Raised and lowered while memory is live.
    d.options().set("pinned_limit_mb:8").unwrap();
    let third = d.host_memory().alloc(3 * MIB).unwrap();
    d.options().set("pinned_limit_mb:1").unwrap();
    assert_eq!(d.host_memory().alloc(MIB).unwrap_err().code(), Code::OutOfMemory);
    for p in small.into_iter().chain([second, third]) {
        d.host_memory().free(p).unwrap();
    }
    d.options().set("pinned_limit_mb:unlimited").unwrap();
    let much = d.host_memory().alloc(64 * MIB).unwrap();
    d.host_memory().free(much).unwrap();
}

#[test]
fn at_its_limit_pinned_memory_does_not_wait_for_streams() {
    let (d, _alone) = host(true);
    d.options().set("pinned_limit_mb:4").unwrap();
    let block = d.memory().alloc(PoolId::DEFAULT, 0, MIB).unwrap();
    let (stream, open) = blocked(&d);
    let source = d.host_memory().alloc(4 * MIB).unwrap();
    upload(&d, stream, block, source, MIB);
    d.host_memory().free(source).unwrap();
    let begun = Instant::now();
    assert_eq!(d.host_memory().alloc(MIB).unwrap_err().code(), Code::OutOfMemory);
    assert!(begun.elapsed() < Duration::from_secs(5), "it waited for a stream that stands still");
    drop(open);
    d.streams().synchronize(stream).unwrap();
    let again = d.host_memory().alloc(4 * MIB).unwrap();
    d.host_memory().free(again).unwrap();
}

#[test]
fn pinned_memory_may_be_asked_from_a_node() {
    let (d, _alone) = host(true);
    for node in ["0", "1023", "default"] {
        d.options().set(&format!("pinned_numa_node:{node}")).unwrap();
        let p = d.host_memory().alloc(MIB).unwrap();
        bytes_at(p, MIB).fill(1);
        d.host_memory().free(p).unwrap();
        d.host_memory().empty_cache().unwrap();
    }
}
