//! What a card grants, whatever its attributes say: one granule is tried when a device is opened, with every property
//! that is wanted, and what was refused is given up with its reason.

use crate::cuda::*;
use millpond::Code;
use millpond::runtime::{Caps, DeviceState, PoolId};

/// A block can be had, written, and given back.
fn works(fake: &Fake, d: &DeviceState) {
    let at = d.memory().alloc(PoolId::DEFAULT, 0, 3 * MIB).unwrap();
    fake.write(0, at + 3 * MIB - 1, &[7]).unwrap();
    d.memory().free(at, Some(0), None).unwrap();
}

fn reason(d: &DeviceState, cap: Caps) -> String {
    d.lack(cap).unwrap().unwrap_or_default()
}

#[test]
fn all_that_the_attributes_promise_is_granted() {
    let (fake, d) = one(&[]);
    assert!(d.info().unwrap().caps.contains(Caps::MAPPING | Caps::EXPORT | Caps::RDMA));
    works(&fake, &d);
    let at = d.memory().alloc(PoolId::DEFAULT, 0, MIB).unwrap();
    assert_eq!(pointer_attribute(&fake, 14, at), 1, "made for descriptors");
    fake.end();
}

/// `cuPointerGetAttribute` for numbers.
fn pointer_attribute(fake: &Fake, which: u32, at: u64) -> u64 {
    let mut value = 0_u64;
    let ask: extern "C" fn(*mut u64, u32, u64) -> u32 = fake.driver("cuPointerGetAttribute");
    fake.with_primary(0, || assert_eq!(ask(&mut value, which, at), 0));
    value
}

#[test]
fn what_is_refused_is_given_up_and_nothing_else() {
    // (settings, what is lost, what stays)
    let all = [
        (vec![("refuse_rdma", "801")], Caps::RDMA, Caps::EXPORT),
        (vec![("refuse_fd", "800")], Caps::EXPORT, Caps::RDMA),
        (vec![("refuse_fd", "800"), ("refuse_rdma", "1")], Caps::RDMA | Caps::EXPORT, Caps::empty()),
        (vec![("rdma", "0")], Caps::RDMA, Caps::EXPORT),
        (vec![("no_fd", "1")], Caps::EXPORT, Caps::RDMA),
    ];
    for (settings, lost, stays) in all {
        let (fake, d) = one(&settings);
        let caps = d.info().unwrap().caps;
        assert!(caps.contains(Caps::MAPPING | stays) && !caps.intersects(lost), "{settings:?}: {caps:?}");
        for cap in lost.iter() {
            let (why, refused) = (reason(&d, cap), settings[0].0.starts_with("refuse"));
            assert_eq!(why.contains("refused"), refused, "{settings:?}: {why}");
            assert_eq!(why.contains("cuMemCreate: CUDA_ERROR_"), refused, "{settings:?}: {why}");
        }
        works(&fake, &d);
        if lost.contains(Caps::EXPORT) {
            let at = d.memory().alloc(PoolId::DEFAULT, 0, MIB).unwrap();
            let e = d.shared_memory().export(at).map(drop).unwrap_err();
            assert_eq!(e.code(), Code::Unsupported);
            assert!(e.message().contains(&reason(&d, Caps::EXPORT)), "{e}");
        }
        fake.end();
    }
}

#[test]
fn a_card_that_refuses_all_physical_memory_gives_segments() {
    let fake = Fake::new(&[("capacity", "64M"), ("fail", "cuMemCreate:1+:801")], |_| {});
    let d = millpond::runtime::device("cuda", 0).unwrap();
    let why = reason(&d, Caps::MAPPING);
    assert!(why.contains("refused a granule") && why.contains("CUDA_ERROR_NOT_SUPPORTED"), "{why}");
    works(&fake, &d);
    assert!(d.info().unwrap().caps.contains(Caps::EXPORT), "segments have handles of their own");
    fake.end();
}

#[test]
fn a_full_card_is_no_refusal() {
    let fake = Fake::new(&[("capacity", "64M")], |_| {});
    fake.with_primary(0, || {});
    assert_eq!(fake.take(0, 63 * MIB), 0);
    let d = millpond::runtime::device("cuda", 0).unwrap();
    assert!(d.info().unwrap().caps.contains(Caps::MAPPING | Caps::EXPORT | Caps::RDMA));
    assert_eq!(d.memory().alloc(PoolId::DEFAULT, 0, MIB).unwrap_err().code(), Code::OutOfMemory);
    fake.give(0, 63 * MIB);
    works(&fake, &d);
    fake.end();
}

/// A driver has room for about half a million mappings, of 2 MiB each: a window that could need more is not opened.
#[test]
fn the_window_of_a_large_card_is_smaller() {
    for (gib, times) in [(180, 6), (288, 4)] {
        let capacity = format!("{gib}G");
        let fake = Fake::new(&[("capacity", &capacity), ("strict", "1"), ("no_fd", "1")], |_| {});
        let d = millpond::runtime::device("cuda", 0).unwrap();
        works(&fake, &d);
        let window = format!("{} bytes, Reserved", times * gib * (1_u64 << 30));
        assert!(fake.leaks().contains(&window), "{gib}: {}", fake.leaks());
        fake.end();
    }
}
