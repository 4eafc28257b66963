//! The device type `cuda` over the fake driver: what it reports, and that memory, copies, streams, events and callbacks
//! do what the library promises.

use crate::cuda::*;
use millpond::runtime::{self, Caps, CopyKind, PoolId};
use millpond::{Code, DeviceState};
use std::sync::{Arc, mpsc};

const POOL: PoolId = PoolId::DEFAULT;

/// Writes a pattern through the device and reads it back.
fn round_trip(d: &DeviceState, at: u64, bytes: usize) {
    let out: Vec<u8> = (0..bytes).map(|i| (i / 7 % 251) as u8).collect();
    d.write(at, &out).unwrap();
    let mut back = vec![0; bytes];
    d.read(at, &mut back).unwrap();
    assert_eq!(out, back);
}

#[test]
fn what_a_device_tells() {
    let (fake, d) = one(&[("devices", "2"), ("driver", "12080")]);
    assert_eq!(runtime::device_count("cuda").unwrap(), 2);
    let info = d.info().unwrap();
    assert_eq!((info.type_name.as_str(), info.ordinal), ("cuda", 0));
    assert_eq!(info.memory.total, 64 * MIB);
    let work = Caps::PINNED | Caps::STREAMS | Caps::CALLBACKS;
    assert_eq!(info.caps, Caps::MAPPING | Caps::UNIFIED | Caps::EXPORT | Caps::RDMA | work);
    let why = d.lack(Caps::HOST_ACCESS).unwrap().unwrap();
    assert!(why.contains("by copies only"), "{why}");
    assert_eq!(d.lack(Caps::MAPPING).unwrap(), None);
    assert_eq!(d.lack(Caps::MAPPING | Caps::PINNED).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(info.versions.driver, 12080);
    assert!(info.versions.compute_capability >= 50, "{:?}", info.versions);
    assert_eq!(info.identity.name, "Fake CUDA device");
    assert_eq!(info.identity.pci_bus_id, "0000:01:00.0");
    let other = runtime::device("cuda", 1).unwrap().info().unwrap().identity;
    assert!(info.identity.uuid.is_some() && info.identity.uuid != other.uuid, "{other:?}");
    assert_ne!(info.identity.pci_bus_id, other.pci_bus_id);
    assert_eq!(runtime::absence("cuda").unwrap(), None);
    let e = runtime::device("cuda", 2).err().unwrap();
    assert_eq!(e.code(), Code::UnknownDevice);
    fake.end();
}

/// `lack`: why it does not map; empty if it does.
fn memory_works(settings: &[(&str, &str)], lack: &str) {
    let mapping = lack.is_empty();
    let (fake, d) = one(settings);
    assert_eq!(d.info().unwrap().caps.contains(Caps::MAPPING), mapping);
    let why = d.lack(Caps::MAPPING).unwrap();
    assert!(why.is_some() != mapping && why.is_none_or(|w| w.contains(lack)), "it should be: {lack}");
    let s = d.streams().create().unwrap();
    let mut blocks = Vec::new();
    for bytes in [1, 512, 5000, 300_000, 3 << 20, 9 << 20] {
        let at = d.memory().alloc(POOL, s, bytes).unwrap();
        round_trip(&d, at, bytes as usize);
        blocks.push(at);
    }
    assert!(fake.used(0) >= 12 * MIB);
    for at in blocks {
        d.memory().free(at, Some(s), None).unwrap();
    }
    d.memory().empty_cache(None).unwrap();
    assert_eq!(fake.used(0), 0);
    // All of the device can be had.
    let most = if mapping { 64 * MIB } else { 60 * MIB };
    let at = d.memory().alloc(POOL, s, most).unwrap();
    round_trip(&d, at + most - 4096, 4096);
    assert_eq!(d.memory().alloc(POOL, s, 8 * MIB).err().unwrap().code(), Code::OutOfMemory);
    d.memory().free(at, Some(s), None).unwrap();
    d.streams().destroy(s).unwrap();
    fake.end();
}

#[test]
fn memory_with_mapping() {
    memory_works(&[], "");
}

#[test]
fn memory_without_mapping() {
    memory_works(&[("no_vmm", "1")], "no virtual memory management");
}

#[test]
fn memory_with_granules_of_another_size_is_not_mapped() {
    memory_works(&[("granularity", "4M")], "do not divide 2 MiB");
}

#[test]
fn scattered_granules_make_one_block() {
    let (fake, d) = one(&[]);
    let s = d.streams().create().unwrap();
    // Every second granule is free; a block of 8 MiB must still fit.
    let blocks: Vec<u64> = (0..32).map(|_| d.memory().alloc(POOL, s, GRANULE).unwrap()).collect();
    for (i, at) in blocks.iter().enumerate() {
        fake.write(0, *at, &[i as u8; 16]).unwrap();
        if i % 2 == 0 {
            d.memory().free(*at, Some(s), None).unwrap();
        }
    }
    let big = d.memory().alloc(POOL, s, 8 * MIB).unwrap();
    round_trip(&d, big, 8 << 20);
    for (i, at) in blocks.iter().enumerate().filter(|(i, _)| i % 2 == 1) {
        assert_eq!(fake.read(0, *at, 16).unwrap(), [i as u8; 16], "a block beside lost its content");
    }
    d.memory().free(big, Some(s), None).unwrap();
    fake.end();
}

#[test]
fn registered_memory_is_copied_while_the_caller_goes_on() {
    let (fake, d) = one(&[]);
    let mut own = vec![7_u8; 1 << 20];
    let at = own.as_mut_ptr().expose_provenance() as u64;
    d.host_memory().register(at, 1 << 20).unwrap();
    assert_eq!(d.host_memory().register(at + 4096, 8).unwrap_err().code(), Code::Busy);
    assert_eq!(
        d.host_memory().register(0x1000, 4096).unwrap_err().code(),
        Code::InvalidArgument,
        "not mapped"
    );
    let s = d.streams().create().unwrap();
    let block = d.memory().alloc(POOL, s, 1 << 20).unwrap();
    fake.hold(true);
    // Not registered, this would wait for the stream.
    unsafe { d.copy_async(s, CopyKind::HostToDevice, block, at, 1 << 20) }.unwrap();
    assert!(!d.streams().query(s).unwrap());
    fake.hold(false);
    d.host_memory().unregister(at).unwrap();
    assert!(d.streams().query(s).unwrap(), "the end of the registration has waited");
    assert_eq!(d.host_memory().unregister(at).unwrap_err().code(), Code::UnknownPointer);
    let pinned = d.host_memory().alloc(MIB).unwrap();
    assert_eq!(
        d.host_memory().register(pinned + 8, 8).unwrap_err().code(),
        Code::Busy,
        "it is the library's own"
    );
    d.host_memory().free(pinned).unwrap();
    // The end of the device ends what is left.
    d.host_memory().register(at, 1 << 20).unwrap();
    fake.end();
}

#[test]
fn memory_that_is_registered_in_part_is_refused_or_has_been_read_when_the_call_returns() {
    let (fake, d) = one(&[]);
    let mut own = vec![7_u8; 1 << 20];
    let at = own.as_mut_ptr().expose_provenance() as u64;
    let s = d.streams().create().unwrap();
    let block = d.memory().alloc(POOL, s, 1 << 20).unwrap();
    for (from, bytes) in [(at, 4096), (at + (1 << 20) - 4096, 4096)] {
        d.host_memory().register(from, bytes).unwrap();
        // The fake driver refuses such a range; NVIDIA's documentation does not say what a real one does.
        match unsafe { d.copy_async(s, CopyKind::HostToDevice, block, at, 1 << 20) } {
            Ok(()) => assert!(d.streams().query(s).unwrap(), "it has waited for the stream"),
            Err(e) => assert_eq!(e.code(), Code::InvalidArgument),
        }
        d.host_memory().unregister(from).unwrap();
    }
    fake.end();
}

/// Whoever is told of a failure may free the source at once.
#[test]
fn nothing_reads_pageable_memory_when_a_copy_from_it_has_failed() {
    let (fake, d) = one(&[]);
    let mut source = vec![7_u8; 4096];
    let at = source.as_mut_ptr().expose_provenance() as u64;
    let s = d.streams().create().unwrap();
    let block = d.memory().alloc(POOL, s, 4096).unwrap();
    for name in ["cuStreamSynchronize", "cuStreamGetCaptureInfo_v2"] {
        fake.hold(true);
        fake.fail(name, 1, 999, false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(50));
                fake.hold(false);
            });
            let e = unsafe { d.copy_async(s, CopyKind::HostToDevice, block, at, 4096) }.unwrap_err();
            assert_eq!(e.code(), Code::Device, "{name}");
            assert!(d.streams().query(s).unwrap(), "{name}: the device may still read it");
        });
        fake.fail_clear();
    }
    fake.end();
}

#[test]
fn a_warm_pair_makes_no_driver_call() {
    for settings in [&[][..], &[("no_vmm", "1")]] {
        let (fake, d) = one(settings);
        let s = d.streams().create().unwrap();
        let pair = |bytes| {
            let at = d.memory().alloc(POOL, s, bytes).unwrap();
            d.memory().free(at, Some(s), None).unwrap();
        };
        let sizes = [100, 70_000, 3 << 20];
        sizes.iter().for_each(|&n| pair(n));
        fake.calls_reset();
        for _ in 0..100 {
            sizes.iter().for_each(|&n| pair(n));
        }
        assert_eq!(fake.all_calls(), 0, "{settings:?}\n{}", fake.log());
        fake.end();
    }
}

#[test]
fn copies_and_fills() {
    let (fake, d) = one(&[]);
    let s = d.streams().create().unwrap();
    let (a, b) = (d.memory().alloc(POOL, s, MIB).unwrap(), d.memory().alloc(POOL, s, MIB).unwrap());
    d.memset(a, 7, MIB).unwrap();
    d.memset_async(s, a + 10, 9, 5).unwrap();
    unsafe { d.copy_async(s, CopyKind::DeviceToDevice, b, a, MIB).unwrap() };
    let mut back = vec![0u8; MIB as usize];
    let to = back.as_mut_ptr().expose_provenance() as u64;
    unsafe { d.copy_async(s, CopyKind::DeviceToHost, to, b, MIB).unwrap() };
    d.streams().synchronize(s).unwrap();
    assert_eq!((back[9], back[10], back[14], back[15]), (7, 9, 9, 7));
    // Pageable memory has been read on return: what is written to it then does not arrive.
    let mut source = vec![3u8; 4096];
    let from = source.as_ptr().expose_provenance() as u64;
    d.streams().callback(s, Box::new(|_| std::thread::sleep(std::time::Duration::from_millis(50)))).unwrap();
    unsafe { d.copy_async(s, CopyKind::HostToDevice, a, from, 4096).unwrap() };
    source.fill(4);
    d.streams().synchronize(s).unwrap();
    assert_eq!(fake.read(0, a, 3).unwrap(), [3, 3, 3]);
    unsafe { d.copy(CopyKind::DeviceToDevice, b, a, 4096).unwrap() };
    assert_eq!(fake.read(0, b, 3).unwrap(), [3, 3, 3]);
    let e = unsafe { d.copy(CopyKind::HostToDevice, a + MIB - 1, from, 2) }.unwrap_err();
    assert_eq!(e.code(), Code::OutOfRange);
    let e = unsafe { d.copy(CopyKind::HostToDevice, from, a, 2) }.unwrap_err();
    assert_eq!(e.code(), Code::UnknownPointer, "a host address given as a device address");
    fake.end();
}

/// Handles are opaque: nothing but 0, 1, 2 and what stands for no stream is told apart by its number.
#[test]
fn streams_have_any_handles() {
    let (fake, d) = one(&[("low_handles", "1")]);
    let own = d.streams().create().unwrap();
    let theirs = fake.foreign_stream(0, 1);
    assert!(own.max(theirs) < 4096, "{own}, {theirs}");
    for s in [own, theirs] {
        let p = d.memory().alloc(POOL, s, MIB).unwrap();
        d.memset_async(s, p, 1, MIB).unwrap();
        d.memory().record_stream(p, own).unwrap();
        d.memory().record_stream(p, theirs).unwrap();
        d.memory().free(p, Some(s), None).unwrap();
        d.streams().synchronize(s).unwrap();
    }
    let p = d.memory().alloc(POOL, own, MIB).unwrap();
    // What stands for no stream does not come so far.
    for name in
        ["cuMemsetD8Async", "cuStreamSynchronize", "cuStreamQuery", "cuStreamGetCtx_v2", "cuStreamDestroy_v2"]
    {
        fake.fail(name, 1, 999, true);
    }
    let none = u64::MAX;
    let refused = [
        d.memory().alloc(POOL, none, MIB).unwrap_err(),
        d.memory().record_stream(p, none).unwrap_err(),
        d.memory().free(p, Some(none), None).unwrap_err(),
        d.memset_async(none, p, 1, MIB).unwrap_err(),
        d.streams().synchronize(none).unwrap_err(),
        d.streams().query(none).unwrap_err(),
        d.streams().destroy(none).unwrap_err(),
    ];
    assert!(refused.iter().all(|e| e.code() == Code::UnknownStream), "{refused:?}");
    fake.fail_clear();
    d.memory().free(p, None, None).unwrap();
    fake.foreign_stream_end(theirs);
    fake.end();
}

fn peers(settings: &[(&str, &str)], direct: bool) {
    let mut all = vec![("devices", "2")];
    all.extend_from_slice(settings);
    let (fake, d0) = one(&all);
    let d1 = runtime::device("cuda", 1).unwrap();
    let s = d0.streams().create().unwrap();
    let a = d0.memory().alloc(POOL, s, 5 * MIB).unwrap();
    let b = d1.memory().alloc(POOL, 0, 5 * MIB).unwrap();
    d0.memset(a, 42, 5 * MIB).unwrap();
    d0.copy_peer(&d1, b, a, 5 * MIB).unwrap();
    assert_eq!(fake.read(1, b + 5 * MIB - 3, 3).unwrap(), [42; 3]);
    d0.memset(a, 43, 5 * MIB).unwrap();
    d0.copy_peer_async(s, &d1, b, a, 5 * MIB).unwrap();
    d0.streams().synchronize(s).unwrap();
    assert_eq!(fake.read(1, b, 3).unwrap(), [43; 3]);
    assert_eq!(fake.calls("cuMemcpyPeerAsync") == 0, direct);
    // Memory that is mapped later is within reach too.
    let c = d1.memory().alloc(POOL, 0, 20 * MIB).unwrap();
    d0.copy_peer(&d1, c + 15 * MIB, a, 5 * MIB).unwrap();
    assert_eq!(fake.read(1, c + 20 * MIB - 1, 1).unwrap(), [43]);
    assert_eq!(fake.read(0, c + 20 * MIB - 1, 1).is_ok(), direct);
    fake.end();
}

#[test]
fn peer_copies_of_mapped_memory() {
    peers(&[], true);
}

#[test]
fn peer_copies_of_segments() {
    peers(&[("no_vmm", "1")], true);
}

#[test]
fn peer_copies_where_the_devices_do_not_reach_each_other() {
    peers(&[("no_peer", "1")], false);
}

/// Copies go the long way while access cannot be had, and directly once it can; `call` fails once.
fn peers_after_a_failure(call: &str) {
    let (fake, d0) = one(&[("devices", "2")]);
    runtime::set_default_options(Some("cuda"), None, "peer_access:off").unwrap();
    let d1 = runtime::device("cuda", 1).unwrap();
    let a = d0.memory().alloc(POOL, 0, 5 * MIB).unwrap();
    let b = d1.memory().alloc(POOL, 0, 5 * MIB).unwrap();
    d0.memset(a, 42, 5 * MIB).unwrap();
    fake.fail(call, 1, 2, false);
    d0.copy_peer(&d1, b, a, 5 * MIB).unwrap();
    assert_eq!(fake.read(1, b, 3).unwrap(), [42; 3]);
    assert_eq!(fake.calls("cuMemcpyPeerAsync"), 1, "{call} fails: the driver has another way");
    for round in 1..3 {
        d0.copy_peer(&d1, b, a, 5 * MIB).unwrap();
        assert_eq!(fake.calls("cuMemcpyPeerAsync"), 1, "round {round} after {call} failed once");
    }
    assert_eq!(fake.calls("cuDeviceCanAccessPeer"), 2, "what is certain is not asked again");
    fake.end();
}

#[test]
fn peer_copies_go_directly_once_they_can() {
    for call in ["cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess", "cuMemSetAccess"] {
        peers_after_a_failure(call);
    }
}

#[test]
fn host_and_managed_memory() {
    for threads in [0, 1, 4] {
        let fake = Fake::new(&[("capacity", "64M")], |_| {});
        let d = runtime::device("cuda", 0).unwrap();
        if threads > 0 {
            let with = format!("pinned_use_cuda_host_register:True,pinned_num_register_threads:{threads}");
            d.options().set(&with).unwrap();
        }
        let registered = u64::from(threads > 0);
        let p = d.host_memory().alloc(3 * MIB + 5).unwrap();
        assert_eq!(fake.calls("cuMemHostRegister_v2"), registered);
        assert_eq!(fake.calls("cuMemHostAlloc"), 1 - registered);
        unsafe { std::slice::from_raw_parts_mut(p as *mut u8, 3 << 20) }.fill(8);
        let a = d.memory().alloc(POOL, 0, MIB).unwrap();
        unsafe { d.copy(CopyKind::HostToDevice, a, p, MIB).unwrap() };
        assert_eq!(fake.read(0, a, 2).unwrap(), [8, 8]);
        let m = d.unified_memory().alloc(MIB).unwrap();
        d.memset(m, 1, MIB).unwrap();
        assert_eq!(unsafe { *(m as *const u8) }, 1);
        assert_eq!(d.host_memory().free(m).err().unwrap().code(), Code::UnknownPointer);
        assert_eq!(d.unified_memory().free(p).err().unwrap().code(), Code::UnknownPointer);
        d.host_memory().free(p).unwrap();
        assert_eq!(d.host_memory().free(p).err().unwrap().code(), Code::DoubleFree);
        d.unified_memory().free(m).unwrap();
        let _left = (d.host_memory().alloc(100).unwrap(), d.unified_memory().alloc(100).unwrap());
        fake.end();
    }
}

#[test]
fn streams_and_events() {
    let (fake, d) = one(&[]);
    let (s, t) = (d.streams().create().unwrap(), d.streams().create().unwrap());
    let e = d.events().create().unwrap();
    assert!(d.events().query(e).unwrap(), "an event is made as if completed");
    fake.hold(true);
    let a = d.memory().alloc(POOL, s, MIB).unwrap();
    d.memset_async(s, a, 5, MIB).unwrap();
    d.events().record(s, e).unwrap();
    d.streams().wait_event(t, e).unwrap();
    d.memset_async(t, a, 6, 10).unwrap();
    assert!(!d.events().query(e).unwrap());
    assert!(!d.streams().query(t).unwrap());
    fake.hold(false);
    d.streams().synchronize(t).unwrap();
    assert!(d.events().query(e).unwrap());
    assert_eq!(fake.read(0, a + 9, 2).unwrap(), [6, 5]);
    d.events().synchronize(e).unwrap();
    d.events().destroy(e).unwrap();
    for failed in [d.events().query(e).err(), d.events().destroy(e).err(), d.events().record(s, e).err()] {
        assert_eq!(failed.unwrap().code(), Code::UnknownEvent);
    }
    d.streams().destroy(s).unwrap();
    for failed in [d.streams().query(s).err(), d.streams().destroy(s).err(), d.memset_async(s, a, 1, 1).err()]
    {
        assert_eq!(failed.unwrap().code(), Code::UnknownStream);
    }
    assert_eq!(d.streams().destroy(0).err().unwrap().code(), Code::InvalidArgument);
    d.memory().free(a, None, None).unwrap();
    fake.end();
}

#[test]
fn callbacks_run_in_the_order_of_the_stream() {
    let (fake, d) = one(&[]);
    let s = d.streams().create().unwrap();
    let a = d.memory().alloc(POOL, s, MIB).unwrap();
    let (tell, told) = mpsc::channel();
    d.memset_async(s, a, 3, MIB).unwrap();
    let inner: Arc<DeviceState> = d.clone();
    let tx = tell.clone();
    d.streams()
        .callback(
            s,
            Box::new(move |status| {
                let refused = inner.streams().synchronize(0).err().map(|e| e.code());
                let refused_by_cuda = inner.events().create().err().map(|e| e.code());
                // Warm memory needs no driver, so it is there in a callback too.
                let warm =
                    inner.memory().alloc(POOL, s, 100).and_then(|p| inner.memory().free(p, Some(s), None));
                tx.send((status.is_ok(), refused, refused_by_cuda, warm.is_ok())).unwrap();
            }),
        )
        .unwrap();
    let first = d.memory().alloc(POOL, s, 100).unwrap();
    d.memory().free(first, Some(s), None).unwrap();
    d.streams().synchronize(s).unwrap();
    let not = Some(Code::NotPermitted);
    let (ok, a1, a2, _warm) = told.recv().unwrap();
    assert_eq!((ok, a1, a2), (true, not, not));
    // One that panics harms nobody.
    d.streams().callback(s, Box::new(|_| panic!("on purpose"))).unwrap();
    d.streams().callback(s, Box::new(move |_| tell.send((true, None, None, true)).unwrap())).unwrap();
    d.streams().synchronize(s).unwrap();
    assert!(told.recv().unwrap().0);
    fake.end();
}

#[test]
fn what_the_end_gives_back() {
    let (fake, d) = one(&[]);
    let s = d.streams().create().unwrap();
    let e = d.events().create().unwrap();
    d.memory().alloc(POOL, s, 5 * MIB).unwrap();
    d.memory().alloc_unordered(POOL, 100).unwrap();
    d.host_memory().alloc(100).unwrap();
    d.unified_memory().alloc(100).unwrap();
    d.events().record(s, e).unwrap();
    runtime::finalize().unwrap();
    assert_eq!(fake.leaks(), "");
    assert_eq!(d.streams().query(s).err().unwrap().code(), Code::NotInitialized);
    assert_eq!(d.memory().alloc(POOL, s, 1).err().unwrap().code(), Code::NotInitialized);
    // And it starts anew.
    fake.configure(|_| {});
    let again = runtime::device("cuda", 0).unwrap();
    let at = again.memory().alloc(POOL, 0, MIB).unwrap();
    round_trip(&again, at, 100);
    fake.end();
}
