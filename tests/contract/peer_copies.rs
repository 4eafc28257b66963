//! Copies between two devices of a type, on a stream of either. Blocks without a stream may be freed as soon as such a
//! copy is queued, also the one on the device whose stream it is not: memory is not handed out before the copy is over.

use crate::apart::*;
use crate::api::*;
use crate::cuda::Fake;
use crate::threads;
use millpond::capi::*;

const BYTES: usize = 2 * MIB;

/// How the test looks at memory, beside the library.
trait Eyes {
    fn write(&self, device: usize, at: usize, value: u8);
    fn read(&self, device: usize, at: usize) -> Option<u8>;
}

struct Direct;

impl Eyes for Direct {
    fn write(&self, _: usize, at: usize, value: u8) {
        poke(at, value, BYTES);
    }
    fn read(&self, _: usize, at: usize) -> Option<u8> {
        filled(at, BYTES)
    }
}

impl Eyes for Fake {
    fn write(&self, device: usize, at: usize, value: u8) {
        Fake::write(self, device as i32, at as u64, &vec![value; BYTES]).unwrap();
    }
    fn read(&self, device: usize, at: usize) -> Option<u8> {
        let bytes = Fake::read(self, device as i32, at as u64, BYTES).unwrap();
        bytes.iter().all(|b| *b == bytes[0]).then_some(bytes[0])
    }
}

fn copy_peer(to: (Device, usize), from: (Device, usize), stream: Stream) -> Outcome<()> {
    let (dst, src) = (ptr(to.1), ptr::<std::ffi::c_void>(from.1));
    outcome(unsafe { millpond_copy_peer_async(ptr(to.0.0), dst, ptr(from.0.0), ptr(stream.0), src, BYTES) })
}

fn two(name: &str) -> [Device; 2] {
    [0, 1].map(|n| Device::get(name, n).unwrap())
}

/// What becomes of the stream when the copy has been queued.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    Lives,
    Ends,
}

/// A copy from device 0 to device 1 on a stream of `of`; then the block on the other device is freed, and its memory
/// asked for.
fn freed_at_once(d: [Device; 2], eyes: &dyn Eyes, of: usize, then: Then) {
    let (a, b) = (d[0].alloc(BYTES).unwrap(), d[1].alloc(BYTES).unwrap());
    eyes.write(0, a, 7);
    eyes.write(1, b, 1);
    let s = d[of].stream();
    let gate = d[of].gate(s);
    gate.open_after(2 * LATE); // the calls may wait for the copy
    copy_peer((d[1], b), (d[0], a), s).unwrap();
    if then == Then::Ends {
        d[of].end_stream(s).unwrap();
    }
    let (other, freed) = if of == 0 { (1, b) } else { (0, a) };
    free(freed).unwrap();
    let next: Vec<usize> = (0..3).map(|_| d[other].alloc(BYTES).unwrap()).collect();
    next.iter().for_each(|&p| eyes.write(other, p, 9));
    gate.open();
    d[of].synchronize().unwrap();
    if other == 0 {
        assert_eq!(eyes.read(1, b), Some(7), "the copy has read the next owner's bytes");
    }
    for &p in &next {
        assert_eq!(eyes.read(other, p), Some(9), "the copy wrote into the next block");
        free(p).unwrap();
    }
    free(if of == 0 { a } else { b }).unwrap();
    for d in d {
        d.empty_cache().unwrap();
        assert_eq!(d.stats().active_bytes.current, 0);
    }
    if then == Then::Lives {
        d[of].end_stream(s).unwrap();
    }
}

fn all_ways(d: [Device; 2], eyes: &dyn Eyes) {
    for of in [0, 1] {
        for then in [Then::Lives, Then::Ends] {
            freed_at_once(d, eyes, of, then);
        }
    }
}

/// The devices of `host`.
#[test]
fn blocks_may_be_freed_when_a_copy_between_host_devices_is_queued() {
    apart(|| {
        host(8 * MIB, true);
        all_ways(two("host"), &Direct);
    });
}

/// Where memory comes in segments.
#[test]
fn blocks_may_be_freed_when_a_copy_between_devices_without_mapping_is_queued() {
    apart(|| {
        host(8 * MIB, false);
        all_ways(two("host"), &Direct);
    });
}

/// The devices of `cuda`, with and without a pool of ours.
#[test]
fn blocks_may_be_freed_when_a_copy_between_cuda_devices_is_queued() {
    apart(|| {
        for backend in ["native", "none"] {
            let fake = Fake::new(&[("devices", "2"), ("capacity", "64M")], |_| {});
            let status = unsafe {
                let text = std::ffi::CString::new(format!("backend:{backend}")).unwrap();
                millpond_set_default_options(std::ptr::null(), -1, text.as_ptr())
            };
            outcome(status).unwrap();
            all_ways(two("cuda"), &fake);
            fake.end();
        }
    });
}

/// A plugin that cannot queue such copies: they are made when the stream has got there.
#[test]
fn blocks_may_be_freed_when_a_copy_between_a_plugins_devices_is_made() {
    apart(|| {
        threads::plugin("threads");
        all_ways(two("threads"), &Direct);
    });
}

/// The devices end while a stream of one is at a copy from the other.
#[test]
fn the_end_of_the_library_waits_for_copies_between_devices() {
    apart(|| {
        for of in [0, 1] {
            host(8 * MIB, true);
            let d = two("host");
            let (a, b) = (d[0].alloc(BYTES).unwrap(), d[1].alloc(BYTES).unwrap());
            let s = d[of].stream();
            let gate = d[of].gate(s);
            copy_peer((d[1], b), (d[0], a), s).unwrap();
            free(if of == 0 { b } else { a }).unwrap();
            gate.open_after(LATE / 2);
            outcome(millpond_finalize()).unwrap();
        }
    });
}

/// Copies that are over leave nothing: the free of a block has nothing to wait for.
#[test]
fn copies_that_are_over_are_not_waited_for() {
    apart(|| {
        host(8 * MIB, true);
        let d = two("host");
        let (a, b) = (d[0].alloc(BYTES).unwrap(), d[1].alloc(BYTES).unwrap());
        let s = d[1].stream();
        for _ in 0..1000 {
            copy_peer((d[1], b), (d[0], a), s).unwrap();
        }
        d[1].stream_synchronize(s).unwrap();
        let gate = d[1].gate(s);
        free(a).unwrap();
        d[0].stats();
        let again: Vec<usize> = (0..4).map(|_| d[0].alloc(BYTES).unwrap()).collect();
        assert!(!gate.is_open() && again.contains(&a));
        gate.open();
    });
}

/// A stream of a third device, or of none, does not do.
#[test]
fn streams_of_neither_device_are_refused() {
    apart(|| {
        host(8 * MIB, true);
        let d = two("host");
        let (a, b) = (d[0].alloc(BYTES).unwrap(), d[1].alloc(BYTES).unwrap());
        let s = d[1].stream();
        d[1].end_stream(s).unwrap();
        assert_eq!(code(copy_peer((d[1], b), (d[0], a), s)), MILLPOND_E_UNKNOWN_STREAM);
        let cpu = Device::get("cpu", 0).unwrap();
        assert_eq!(code(copy_peer((d[1], b), (d[0], a), cpu.stream())), MILLPOND_E_UNKNOWN_STREAM);
    });
}
