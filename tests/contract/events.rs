//! An event belongs to the device that made it, like a stream and a block. A call that names another device of the same
//! type does not know it: it says so, and the event is as it was. Only a stream may wait for an event of another
//! device.

use crate::apart::*;
use crate::api::*;
use crate::cuda::Fake;
use crate::threads;
use millpond::capi::*;
use std::ffi::c_void;

/// Events of the second device, in calls that name the first one.
fn events_of_another_device(d: [Device; 2]) {
    let [first, second] = d;
    let streams = d.map(Device::stream);
    for recorded in [false, true] {
        let e = second.event();
        if recorded {
            second.event_record(streams[1], e).unwrap();
            second.stream_synchronize(streams[1]).unwrap();
        }
        let is_whole = |after: &str| {
            let answer = second.event_query(e).map_err(|f| f.message);
            assert_eq!(answer, Ok(true), "the event of device 1, after {after}");
        };
        assert_eq!(first.event_query(e).map_err(|f| f.code), Err(MILLPOND_E_UNKNOWN_EVENT), "query");
        is_whole("a query");
        assert_eq!(
            first.event_synchronize(e).map_err(|f| f.code),
            Err(MILLPOND_E_UNKNOWN_EVENT),
            "synchronize"
        );
        is_whole("a wait");
        let record = code(first.event_record(streams[0], e));
        assert!(
            [MILLPOND_E_UNKNOWN_EVENT, MILLPOND_E_INVALID_ARGUMENT].contains(&record),
            "record: {record}"
        );
        let record = code(first.event_record(NULL, e));
        assert!(
            [MILLPOND_E_UNKNOWN_EVENT, MILLPOND_E_INVALID_ARGUMENT].contains(&record),
            "record: {record}"
        );
        is_whole("a record");
        assert_eq!(first.end_event(e).map_err(|f| f.code), Err(MILLPOND_E_UNKNOWN_EVENT), "destroy");
        is_whole("a destroy");
        second.event_record(streams[1], e).unwrap();
        second.end_event(e).unwrap();
        assert_eq!(code(second.event_query(e)), MILLPOND_E_UNKNOWN_EVENT, "destroyed");
    }
    d.iter().zip(streams).for_each(|(d, s)| d.end_stream(s).unwrap());
}

/// Streams of the second device, in calls that name the first one.
fn streams_of_another_device(d: [Device; 2]) {
    let [first, second] = d;
    let (s, pool) = (second.stream(), first.default_pool());
    let e = first.event();
    let p = pool.alloc(MIB, NULL).unwrap();
    let unknown = |what: &str, code: u32| assert_eq!(code, MILLPOND_E_UNKNOWN_STREAM, "{what}");
    unknown("a request", code(pool.alloc(MIB, s)));
    unknown("a free", code(pool.free(p, s)));
    unknown("a use", code(record_stream(p, s)));
    unknown("the end of a use", code(record_end(p, s)));
    unknown("a record", code(first.event_record(s, e)));
    unknown("a wait", code(first.stream_wait(s, e)));
    unknown("synchronize", code(first.stream_synchronize(s)));
    unknown("destroy", code(first.end_stream(s)));
    second.stream_synchronize(s).unwrap();
    pool.free(p, NULL).unwrap();
    assert_eq!(first.stats().blocks.current, 0);
}

fn two(name: &str) -> [Device; 2] {
    [0, 1].map(|n| Device::get(name, n).unwrap())
}

/// The devices of `host`.
#[test]
fn events_of_another_host_device_are_refused() {
    apart(|| {
        host(64 * MIB, true);
        events_of_another_device(two("host"));
    });
}

/// The devices of `cpu`.
#[test]
fn events_of_another_device_without_mapping_are_refused() {
    apart(|| {
        host(64 * MIB, false);
        events_of_another_device(two("host"));
    });
}

/// The devices of `cuda`, as far as the events were made here.
#[test]
fn events_of_another_cuda_device_are_refused() {
    apart(|| {
        let fake = Fake::new(&[("devices", "2"), ("capacity", "64M")], |_| {});
        events_of_another_device(two("cuda"));
        fake.end();
    });
}

/// The devices of a plugin.
#[test]
fn events_of_another_device_of_a_plugin_are_refused() {
    apart(|| {
        threads::plugin("threads");
        events_of_another_device(two("threads"));
    });
}

/// Streams, which are known by device already.
#[test]
fn streams_of_another_device_are_refused() {
    apart(|| {
        host(64 * MIB, true);
        streams_of_another_device(two("host"));
        threads::plugin("threads");
        streams_of_another_device(two("threads"));
        let fake = Fake::new(&[("devices", "2"), ("capacity", "64M")], |_| {});
        streams_of_another_device(two("cuda"));
        fake.end();
    });
}

/// A stream may wait for what an event of another device has recorded.
#[test]
fn a_stream_waits_for_an_event_of_another_device() {
    apart(|| {
        host(64 * MIB, true);
        let [first, second] = two("host");
        let (a, b) = (first.stream(), second.stream());
        let p = first.alloc(MIB).unwrap();
        poke(p, 0, MIB);
        let gate = second.gate(b);
        let e = second.event();
        second.event_record(b, e).unwrap();
        first.stream_wait(a, e).unwrap();
        second.end_event(e).unwrap(); // the wait holds
        first.fill(a, p, 0x11, MIB);
        std::thread::sleep(LATE / 4);
        assert_eq!(filled(p, MIB), Some(0), "the stream did not wait");
        gate.open();
        first.stream_synchronize(a).unwrap();
        assert_eq!(filled(p, MIB), Some(0x11));
    });
}

/// A use that ends at an event of another device: refused, or the block waits for it whatever becomes of the event.
#[test]
fn a_use_that_ends_at_an_event_of_another_device() {
    apart(|| {
        host(64 * MIB, true);
        let [first, second] = two("host");
        let (pool, a, other, b) = (first.default_pool(), first.stream(), first.stream(), second.stream());
        let p = pool.alloc(2 * MIB, a).unwrap();
        let gate = second.gate(b);
        second.call(b, move || poke(p, 0xAA, 2 * MIB));
        let e = second.event();
        second.event_record(b, e).unwrap();
        let ended = record_end_at(p, other, e);
        if let Err(f) = ended {
            assert_eq!(f.code, MILLPOND_E_UNKNOWN_EVENT, "{}", f.message);
            return;
        }
        gate.open_after(2 * LATE);
        second.end_event(e).unwrap();
        pool.free(p, a).unwrap();
        first.stats();
        let q = pool.alloc(2 * MIB, a).unwrap();
        first.fill(a, q, 0x11, 2 * MIB);
        std::thread::sleep(LATE / 4);
        gate.open();
        first.synchronize().unwrap();
        second.synchronize().unwrap();
        assert_eq!(filled(q, 2 * MIB), Some(0x11), "work before the event came after the next owner's");
    });
}

/// Blocks, which are known by device already: nothing is freed.
#[test]
fn blocks_of_another_device_are_refused() {
    apart(|| {
        for mapping in [true, false] {
            host(64 * MIB, mapping);
            let [first, second] = two("host");
            let p = second.default_pool().alloc(MIB, NULL).unwrap();
            first.alloc(MIB).unwrap();
            assert_eq!(code(first.default_pool().free(p, NULL)), MILLPOND_E_UNKNOWN_POINTER);
            assert_eq!(block(p).unwrap(), (p, MIB));
            second.default_pool().free(p, NULL).unwrap();
        }
    });
}

/// The number of an out-of-memory callback says which device it is on: no other device's is removed by mistake.
#[test]
fn a_callbacks_number_of_another_device_is_refused() {
    unsafe extern "C-unwind" fn note(data: *mut c_void, _: u64) -> bool {
        unsafe { *data.cast::<u32>() += 1 };
        false
    }
    apart(|| {
        host(64 * MIB, true);
        let devices = two("host");
        let (mut calls, mut ids) = ([0u32; 2], [0u64; 2]);
        for n in 0..2 {
            let data = (&raw mut calls[n]).cast();
            let add =
                unsafe { millpond_device_add_oom_callback(ptr(devices[n].0), Some(note), data, &mut ids[n]) };
            outcome(add).unwrap();
        }
        let remove = |d: Device, id| outcome(unsafe { millpond_device_remove_oom_callback(ptr(d.0), id) });
        assert_eq!(code(remove(devices[0], ids[1])), MILLPOND_E_INVALID_ARGUMENT);
        devices.iter().for_each(|d| assert!(d.alloc(128 * MIB).is_err() && d.alloc(64 * MIB).is_ok()));
        devices.iter().for_each(|d| assert!(d.alloc(MIB).is_err()));
        assert!(calls[0] > 0 && calls[1] > 0, "both are there: {calls:?}");
        remove(devices[0], ids[0]).unwrap();
        remove(devices[1], ids[1]).unwrap();
    });
}

/// The same for callbacks that are told of memory.
#[test]
fn a_segment_callbacks_number_of_another_device_is_refused() {
    unsafe extern "C-unwind" fn note(data: *mut c_void, _: u32, _: *mut c_void, _: usize) {
        unsafe { *data.cast::<u32>() += 1 };
    }
    apart(|| {
        host(64 * MIB, true);
        let devices = two("host");
        let (mut calls, mut ids) = ([0u32; 2], [0u64; 2]);
        for n in 0..2 {
            let data = (&raw mut calls[n]).cast();
            let d = ptr(devices[n].0);
            outcome(unsafe { millpond_device_add_segment_callback(d, Some(note), data, &mut ids[n]) })
                .unwrap();
        }
        let remove =
            |d: Device, id| outcome(unsafe { millpond_device_remove_segment_callback(ptr(d.0), id) });
        assert_eq!(code(remove(devices[0], ids[1])), MILLPOND_E_INVALID_ARGUMENT);
        assert_eq!(code(remove(devices[1], ids[0])), MILLPOND_E_INVALID_ARGUMENT);
        devices.iter().for_each(|d| _ = d.alloc(MIB).unwrap());
        assert!(calls[0] > 0 && calls[1] > 0, "both are there: {calls:?}");
        remove(devices[0], ids[0]).unwrap();
        remove(devices[1], ids[1]).unwrap();
    });
}

/// An event that a block waits for is destroyed later than the caller said. For streams of other devices it is gone at
/// once, too; and whether it is held does not depend on the device that is named.
#[test]
fn an_event_that_is_held_is_the_same_for_all_devices() {
    apart(|| {
        host(64 * MIB, true);
        let [first, second] = two("host");
        let (a, b, far) = (first.stream(), first.stream(), second.stream());
        let p = first.default_pool().alloc(MIB, a).unwrap();
        let gate = first.gate(b);
        let e = first.event();
        first.event_record(b, e).unwrap();
        record_end_at(p, b, e).unwrap();
        first.default_pool().free(p, a).unwrap();
        let held = |d: Device| {
            let mut held = false;
            outcome(unsafe { millpond_event_is_held(ptr(d.0), ptr(e.0), &mut held) }).unwrap();
            held
        };
        assert!(held(first) && held(second));
        second.stream_wait(far, e).unwrap();
        first.end_event(e).unwrap();
        assert_eq!(code(first.stream_wait(a, e)), MILLPOND_E_UNKNOWN_EVENT);
        assert_eq!(code(second.stream_wait(far, e)), MILLPOND_E_UNKNOWN_EVENT);
        gate.open();
        second.stream_synchronize(far).unwrap();
    });
}
