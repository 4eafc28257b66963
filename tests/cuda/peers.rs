//! Access between devices that are open: what the library does by itself, over the fake driver.

use crate::cuda::{Fake, MIB};
use millpond::core::PoolId;
use millpond::runtime::{self, DeviceState};
use std::sync::Arc;

const POOL: PoolId = PoolId::DEFAULT;
const FOUR: [(&str, &str); 2] = [("capacity", "256M"), ("devices", "4")];

fn open(n: usize) -> Vec<Arc<DeviceState>> {
    (0..n).map(|i| runtime::device("cuda", i).unwrap()).collect()
}

/// A block of the device that is full of `byte`.
fn full(d: &DeviceState, bytes: u64, byte: u8) -> u64 {
    let p = d.memory().alloc(POOL, 0, bytes).unwrap();
    d.memset(p, byte, bytes).unwrap();
    p
}

/// Whether work on `reader` can use the last bytes of the block.
fn reads(fake: &Fake, reader: usize, p: u64, bytes: u64, byte: u8) -> bool {
    match fake.read(reader as i32, p + bytes - 3, 3) {
        Ok(seen) => {
            assert_eq!(seen, [byte; 3]);
            true
        }
        Err(_) => false,
    }
}

#[test]
fn open_devices_can_use_each_others_memory() {
    let fake = Fake::new(&FOUR, |_| {});
    let first = runtime::device("cuda", 0).unwrap();
    let early = full(&first, 5 * MIB, 9); // before the others are open
    let all = open(4);
    for (i, d) in all.iter().enumerate() {
        // Small, in one granule; larger than what is there; and large again, behind scattered ones.
        let held = [1000, 5 * MIB, 21 * MIB].map(|bytes| (bytes, full(d, bytes, i as u8 + 1)));
        for reader in 0..4 {
            for &(bytes, p) in &held {
                assert!(reads(&fake, reader, p, bytes, i as u8 + 1), "{bytes} bytes of {i} from {reader}");
            }
            assert!(reads(&fake, reader, early, 5 * MIB, 9));
        }
    }
    fake.end();
}

/// Which pairs of four devices reach each other: 0 and 1, 2 and 3, and 0 and 2.
const SOME: [(&str, &str); 3] = [("capacity", "256M"), ("devices", "4"), ("peers", "0-1,2-3,0-2")];

fn joined(one: usize, other: usize) -> bool {
    let pair = (one.min(other), one.max(other));
    one == other || matches!(pair, (0, 1) | (2, 3) | (0, 2))
}

/// Where some reach each other and some do not, each has what it can, whoever keeps the memory. Requests fail nowhere: for
/// devices that do not reach each other the driver may seem to open its own pool, and fail the pool's next request.
#[test]
fn devices_of_which_some_reach_each_other() {
    for backend in ["native", "cudaMallocAsync"] {
        let fake = Fake::new(&SOME, |_| {});
        runtime::set_default_options(Some("cuda"), None, &format!("backend:{backend}")).unwrap();
        let first = runtime::device("cuda", 0).unwrap();
        let early = full(&first, 3 * MIB, 9);
        let all = open(4);
        for (i, d) in all.iter().enumerate() {
            let p = full(d, 3 * MIB, i as u8 + 1);
            for reader in 0..4 {
                assert_eq!(
                    reads(&fake, reader, p, 3 * MIB, i as u8 + 1),
                    joined(i, reader),
                    "{backend} {i} {reader}"
                );
                assert_eq!(reads(&fake, reader, early, 3 * MIB, 9), joined(0, reader), "{backend} {reader}");
            }
            for (j, other) in all.iter().enumerate() {
                assert_eq!(d.peer_access().is_possible(other).unwrap(), joined(i, j));
                assert_eq!(d.peer_access().enable(other).is_ok(), joined(i, j), "{backend} {i} {j}");
                // A copy arrives by one way or the other.
                let q = full(other, 3 * MIB, 0);
                d.copy_peer(other, q, p, 3 * MIB).unwrap();
                assert!(reads(&fake, j, q, 3 * MIB, i as u8 + 1));
                other.memory().free(q, None, None).unwrap();
            }
            d.memory().free(p, None, None).unwrap();
        }
        first.memory().free(early, None, None).unwrap();
        fake.end();
    }
}

/// Memory of the driver's own pool is open to all by itself, whether the pool was there before or not; where the driver
/// refuses, no request fails for it, and who asks is told.
#[test]
fn memory_of_the_drivers_own_pool_too() {
    for refused in [false, true] {
        let fake = Fake::new(&FOUR, |_| {});
        runtime::set_default_options(Some("cuda"), None, "backend:cudaMallocAsync").unwrap();
        if refused {
            fake.fail("cuMemPoolSetAccess", 1, 101, true);
        }
        let first = runtime::device("cuda", 0).unwrap();
        let p = full(&first, 3 * MIB, 7);
        let second = runtime::device("cuda", 1).unwrap();
        let q = full(&second, 3 * MIB, 8);
        assert_eq!(reads(&fake, 1, p, 3 * MIB, 7), !refused);
        assert_eq!(reads(&fake, 0, q, 3 * MIB, 8), !refused);
        assert_eq!(first.peer_access().enable(&second).is_ok(), !refused);
        fake.fail_clear();
        first.peer_access().enable(&second).unwrap();
        assert!(reads(&fake, 1, p, 3 * MIB, 7));
        first.memory().free(p, None, None).unwrap();
        second.memory().free(q, None, None).unwrap();
        fake.end();
    }
}

/// Peer access that a framework has enabled, or that has outlived a device of the library, is no failure (704).
#[test]
fn access_that_is_on_already_is_no_failure() {
    let fake = Fake::new(&FOUR, |_| {});
    let mut contexts = [0; 2];
    let retain: extern "C" fn(*mut u64, i32) -> u32 = fake.driver("cuDevicePrimaryCtxRetain");
    let release: extern "C" fn(i32) -> u32 = fake.driver("cuDevicePrimaryCtxRelease_v2");
    fake.with_primary(0, || ());
    for (i, context) in contexts.iter_mut().enumerate() {
        assert_eq!(retain(context, i as i32), 0);
    }
    let enable: extern "C" fn(u64, u32) -> u32 = fake.driver("cuCtxEnablePeerAccess");
    fake.with_primary(0, || assert_eq!(enable(contexts[1], 0), 0));
    for _ in 0..2 {
        let all = open(2);
        let p = full(&all[0], 5 * MIB, 1);
        let q = full(&all[1], 5 * MIB, 2);
        assert!(reads(&fake, 1, p, 5 * MIB, 1) && reads(&fake, 0, q, 5 * MIB, 2));
        runtime::finalize().unwrap();
        fake.with_primary(1, || assert_eq!(enable(contexts[0], 0), 704, "it stays on with the contexts"));
        fake.configure(|_| {});
    }
    (0..2).for_each(|i| assert_eq!(release(i), 0));
    assert_eq!(fake.leaks(), "");
    fake.end_quietly();
}

/// Who was refused for lack of memory has its access again when memory goes back to the driver.
#[test]
fn a_guest_that_was_refused_is_invited_again() {
    let fake = Fake::new(&FOUR, |_| {});
    let all = open(2);
    for nth in [1, 3] {
        fake.fail("cuMemSetAccess", nth, 2, false); // for both devices, and then for the guest
    }
    let p = full(&all[0], 5 * MIB, 1);
    assert!(!reads(&fake, 1, p, 5 * MIB, 1));
    let q = full(&all[0], 21 * MIB, 2);
    assert!(!reads(&fake, 1, q, 21 * MIB, 2));
    all[0].memory().free(q, None, None).unwrap();
    all[0].memory().empty_cache(None).unwrap();
    assert!(reads(&fake, 1, p, 5 * MIB, 1));
    let q = full(&all[0], 40 * MIB, 3);
    assert!(reads(&fake, 1, q, 40 * MIB, 3));
    fake.end();
}

/// What nobody asked for fails no request, however late it is refused.
#[test]
fn a_refusal_later_costs_the_access_and_not_the_memory() {
    let fake = Fake::new(&FOUR, |_| {});
    let all = open(3);
    let before = full(&all[0], 5 * MIB, 1);
    let gap = full(&all[0], 40 * MIB, 5);
    // A failure that is none of theirs costs nothing.
    fake.fail("cuMemSetAccess", 1, 2, false);
    let between = full(&all[0], 3 * MIB, 6);
    assert!((0..3).all(|reader| reads(&fake, reader, between, 3 * MIB, 6)));
    // For all of them; then for each guest alone.
    for nth in [1, 3, 4] {
        fake.fail("cuMemSetAccess", nth, 2, false);
    }
    let after = full(&all[0], 21 * MIB, 2);
    fake.fail_clear();
    assert!(reads(&fake, 1, before, 5 * MIB, 1), "what was open stays so");
    assert!(!reads(&fake, 1, after, 21 * MIB, 2));
    let q = full(&all[1], 5 * MIB, 3);
    assert!(reads(&fake, 0, q, 5 * MIB, 3), "the other way round nothing was refused");
    // Who asks and is refused keeps what it had, of which there are two runs now.
    all[0].memory().free(gap, None, None).unwrap();
    fake.fail("cuMemSetAccess", 1, 2, true); // those that were refused are asked again, and are refused again
    all[0].memory().empty_cache(None).unwrap();
    fake.fail_clear();
    fake.fail("cuMemSetAccess", 2, 2, true);
    assert!(all[0].peer_access().enable(&all[1]).is_err());
    fake.fail_clear();
    assert!(reads(&fake, 1, before, 5 * MIB, 1));
    // A copy wants it, and gets it; so does a call.
    all[1].copy_peer(&all[0], after, q, 5 * MIB).unwrap();
    assert!(fake.read(1, after, 3).is_ok());
    all[0].peer_access().enable(&all[2]).unwrap();
    let last = full(&all[0], 40 * MIB, 4);
    assert!((0..3).all(|reader| reads(&fake, reader, last, 40 * MIB, 4)));
    // Who was asked for is not forgotten: that fails the request, as it says.
    fake.fail("cuMemSetAccess", 1, 2, true);
    assert!(all[0].memory().alloc(POOL, 0, 60 * MIB).is_err());
    fake.fail_clear();
    fake.end();
}

#[test]
fn an_option_keeps_devices_apart() {
    for only in [None, Some(1)] {
        let fake = Fake::new(&FOUR, |_| {});
        runtime::set_default_options(Some("cuda"), only, "peer_access:off").unwrap();
        let all = open(3);
        let p = full(&all[0], 5 * MIB, 1);
        assert!(!reads(&fake, 1, p, 5 * MIB, 1));
        assert_eq!(reads(&fake, 2, p, 5 * MIB, 1), only.is_some(), "both must want it");
        all[0].peer_access().enable(&all[1]).unwrap(); // a call still can
        assert!(reads(&fake, 1, p, 5 * MIB, 1));
        assert!(all[1].options().set("peer_access:on").is_err(), "fixed while open");
        fake.end();
    }
}

#[test]
fn devices_that_do_not_reach_each_other_are_opened_all_the_same() {
    let settings = [("capacity", "256M"), ("devices", "3"), ("no_peer", "1")];
    let fake = Fake::new(&settings, |_| {});
    let all = open(3);
    let p = full(&all[0], 5 * MIB, 1);
    assert!(!reads(&fake, 1, p, 5 * MIB, 1));
    assert_eq!(fake.calls("cuCtxEnablePeerAccess"), 0);
    fake.end();
}

/// What fails while a device is opened fails no call, and is made good by whoever needs it.
#[test]
fn a_refusal_while_a_device_is_opened_is_no_error() {
    for call in ["cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess", "cuMemSetAccess"] {
        for nth in 1..5 {
            let fake = Fake::new(&FOUR, |_| {});
            let first = runtime::device("cuda", 0).unwrap();
            let p = full(&first, 5 * MIB, 1);
            fake.fail(call, nth, 2, true);
            let second = runtime::device("cuda", 1).unwrap();
            fake.fail_clear();
            first.peer_access().enable(&second).unwrap();
            second.peer_access().enable(&first).unwrap();
            assert!(reads(&fake, 1, p, 5 * MIB, 1), "{call} {nth}");
            let q = full(&second, 5 * MIB, 2);
            assert!(reads(&fake, 0, q, 5 * MIB, 2), "{call} {nth}");
            for (d, p) in [(&first, p), (&second, q)] {
                d.memory().free(p, None, None).unwrap();
            }
            fake.end();
        }
    }
}

/// Devices that are opened at one time by several threads.
#[test]
fn devices_opened_by_threads_admit_each_other() {
    for _ in 0..10 {
        let fake = Fake::new(&FOUR, |_| {});
        std::thread::scope(|s| {
            for i in 0..4 {
                s.spawn(move || runtime::device("cuda", i).unwrap());
            }
        });
        for (i, d) in open(4).iter().enumerate() {
            let p = full(d, 5 * MIB, i as u8);
            assert!((0..4).all(|reader| reads(&fake, reader, p, 5 * MIB, i as u8)), "device {i}");
        }
        fake.end();
    }
}
