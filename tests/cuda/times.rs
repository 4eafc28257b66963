//! The time between events of the driver.

use crate::cuda::*;
use millpond::Code;
use millpond::runtime;

#[test]
fn events_with_and_without_a_time() {
    let fake = Fake::new(&[("strict", "1")], |_| {});
    let d = runtime::device("cuda", 0).unwrap();
    let s = d.streams().create().unwrap();
    let (start, end, plain) = (
        d.events().create_timed().unwrap(),
        d.events().create_timed().unwrap(),
        d.events().create().unwrap(),
    );
    assert_eq!(d.events().elapsed(start, end).unwrap_err().code(), Code::InvalidArgument);
    for e in [start, plain, end] {
        d.events().record(s, e).unwrap();
    }
    d.streams().synchronize(s).unwrap();
    assert!(d.events().elapsed(start, end).unwrap() >= 0.0);
    assert!(d.events().elapsed(end, start).unwrap() <= 0.0);
    assert_eq!(d.events().elapsed(start, plain).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(fake.calls("cuEventElapsedTime"), 2, "the driver is not asked what we know");
    // An ended handle serves again, for events of its kind, and has recorded nothing then.
    for e in [start, end, plain] {
        d.events().destroy(e).unwrap();
    }
    assert_eq!(d.events().elapsed(start, end).unwrap_err().code(), Code::UnknownEvent);
    let plain = d.events().create().unwrap();
    let again = d.events().create_timed().unwrap();
    assert_eq!(d.events().elapsed(again, again).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(d.events().elapsed(plain, plain).unwrap_err().code(), Code::InvalidArgument);
    d.events().record(0, again).unwrap();
    d.synchronize().unwrap();
    assert_eq!(d.events().elapsed(again, again).unwrap(), 0.0);
    fake.fail("cuEventElapsedTime", 1, 999, false);
    assert_eq!(d.events().elapsed(again, again).unwrap_err().code(), Code::Device);
    for e in [again, plain] {
        d.events().destroy(e).unwrap();
    }
    d.streams().destroy(s).unwrap();
    fake.end();
}

#[test]
fn blocks_and_hooks_on_a_card() {
    for mapping in [true, false] {
        let fake = Fake::new(&[("strict", "1")], |o| o.mapping = mapping);
        let d = runtime::device("cuda", 0).unwrap();
        let m = d.memory();
        let s = d.streams().create().unwrap();
        let seen = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let count = seen.clone();
        let id = m
            .hooks()
            .add(move |e| {
                count.fetch_add(e.requested, std::sync::atomic::Ordering::SeqCst);
            })
            .unwrap();
        for shift in [9, 12, 14, 16, 21] {
            let at = m.alloc_aligned(runtime::PoolId::DEFAULT, Some(s), 100_000, 1 << shift).unwrap();
            assert_eq!(at % (1 << shift), 0);
            d.write(at, b"kept").unwrap();
            let charged = m.block(at).unwrap().size;
            m.try_expand(at, charged).unwrap();
            assert_eq!(fake.read(0, at, 4).unwrap(), b"kept");
            m.free(at, Some(s), Some(charged)).unwrap_or_else(|e| panic!("{e}"));
        }
        m.hooks().remove(id).unwrap();
        let told = seen.load(std::sync::atomic::Ordering::SeqCst);
        assert!(told >= 4 * 5 * 100_000, "{told}");
        assert_eq!(m.stats().allocated.current, 0);
        d.streams().destroy(s).unwrap();
        fake.end();
    }
}
