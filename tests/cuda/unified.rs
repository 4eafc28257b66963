//! Unified memory over the driver: pages go where the program says, by the right numbers and in the stream's order.

use crate::cuda::Fake;
use millpond::Code;
use millpond::runtime::{self, Advice, UnifiedPlace};
use std::ffi::{c_int, c_void};

const PAGE: u64 = 4096;
const PREFERRED: u32 = 2;
const PREFETCHED: u32 = 4;

/// What the driver says of a range: a number of a device, -1 the processor, -2 nowhere.
fn told(fake: &Fake, which: u32, at: u64, bytes: u64) -> c_int {
    let ask: extern "C" fn(*mut c_void, usize, u32, u64, usize) -> u32 =
        fake.driver("cuMemRangeGetAttribute");
    let mut found: c_int = 7;
    fake.with_primary(0, || assert_eq!(ask((&raw mut found).cast(), 4, which, at, bytes as usize), 0));
    found
}

#[test]
fn pages_go_where_the_program_says() {
    let fake = Fake::new(&[("devices", "2")], |_| {});
    let [a, b] = [0, 1].map(|n| runtime::device("cuda", n).unwrap());
    let (s, t) = (a.streams().create().unwrap(), b.streams().create().unwrap());
    let at = a.unified_memory().alloc(4 * PAGE).unwrap();
    a.unified_memory().prefetch(s, at, 4 * PAGE, UnifiedPlace::Device).unwrap();
    assert_eq!(told(&fake, PREFETCHED, at, 4 * PAGE), 0);
    // Another device of the type is asked for its own memory, on its own stream; the default stream will do.
    b.unified_memory().prefetch(t, at, PAGE, UnifiedPlace::Device).unwrap();
    a.unified_memory().prefetch(0, at + PAGE, PAGE, UnifiedPlace::Host).unwrap();
    assert_eq!([0, 1, 2].map(|n| told(&fake, PREFETCHED, at + n * PAGE, PAGE)), [1, -1, 0]);
    b.unified_memory().advise(at, PAGE, Advice::Preferred, UnifiedPlace::Device).unwrap();
    a.unified_memory().advise(at + PAGE, PAGE, Advice::Preferred, UnifiedPlace::Host).unwrap();
    assert_eq!([0, 1, 2].map(|n| told(&fake, PREFERRED, at + n * PAGE, PAGE)), [1, -1, -2]);
    a.unified_memory().advise(at, 4 * PAGE, Advice::UnsetPreferred, UnifiedPlace::Device).unwrap();
    assert_eq!(told(&fake, PREFERRED, at, 4 * PAGE), -2);
    for advice in Advice::ALL {
        a.unified_memory().advise(at, 1, advice, UnifiedPlace::Device).unwrap();
        a.unified_memory().advise(at, 1, advice, UnifiedPlace::Host).unwrap();
    }
    // What is not one live range of such memory never gets to the driver.
    fake.calls_reset();
    let block = a.memory().alloc_unordered(runtime::PoolId::DEFAULT, 64).unwrap();
    let pinned = a.host_memory().alloc(64).unwrap();
    fake.calls_reset();
    for (at, bytes, code) in [
        (at, 4 * PAGE + 1, Code::OutOfRange),
        (at + 4 * PAGE - 1, 2, Code::OutOfRange),
        (at + 4 * PAGE, 1, Code::UnknownPointer),
        (at, u64::MAX, Code::OutOfRange),
        (block, 64, Code::UnknownPointer),
        (pinned, 64, Code::UnknownPointer),
        (0, 1, Code::UnknownPointer),
    ] {
        assert_eq!(
            a.unified_memory().prefetch(s, at, bytes, UnifiedPlace::Device).unwrap_err().code(),
            code,
            "{at:#x}"
        );
        let advised = a.unified_memory().advise(at, bytes, Advice::ReadMostly, UnifiedPlace::Device);
        assert_eq!(advised.unwrap_err().code(), code, "{at:#x}");
    }
    let other = a.unified_memory().prefetch(t, at, 1, UnifiedPlace::Device).unwrap_err();
    assert_eq!(other.code(), Code::UnknownStream, "{other}");
    a.unified_memory().prefetch(s, at, 0, UnifiedPlace::Device).unwrap();
    assert_eq!(fake.calls("cuMemPrefetchAsync") + fake.calls("cuMemAdvise"), 0);
    a.unified_memory().free(at).unwrap();
    let late = a.unified_memory().prefetch(s, at, 1, UnifiedPlace::Host).unwrap_err();
    assert_eq!(late.code(), Code::UnknownPointer);
    a.memory().free(block, None, None).unwrap();
    a.host_memory().free(pinned).unwrap();
    drop((a, b));
    fake.end();
}

#[test]
fn a_device_that_cannot_move_it_says_so() {
    let fake = Fake::new(&[("no_concurrent", "1")], |_| {});
    let d = runtime::device("cuda", 0).unwrap();
    let at = d.unified_memory().alloc(100).unwrap();
    for place in [UnifiedPlace::Device, UnifiedPlace::Host] {
        let e = d.unified_memory().prefetch(0, at, 100, place).unwrap_err();
        assert_eq!(e.code(), Code::Unsupported, "{e}");
        let e = d.unified_memory().advise(at, 100, Advice::Preferred, place).unwrap_err();
        assert_eq!(e.code(), Code::Unsupported, "{e}");
    }
    d.write(at, &[3; 100]).unwrap();
    d.unified_memory().free(at).unwrap();
    drop(d);
    fake.end();
}

#[test]
fn what_the_driver_fails_with_is_passed_on() {
    let fake = Fake::new(&[], |_| {});
    let d = runtime::device("cuda", 0).unwrap();
    let at = d.unified_memory().alloc(100).unwrap();
    fake.fail("cuMemPrefetchAsync", 1, 2, false);
    let e = d.unified_memory().prefetch(0, at, 100, UnifiedPlace::Device).unwrap_err();
    assert!(e.message().contains("cuMemPrefetchAsync"), "{e}");
    d.unified_memory().prefetch(0, at, 100, UnifiedPlace::Device).unwrap();
    d.unified_memory().free(at).unwrap();
    drop(d);
    fake.end();
}

/// A graph has no prefetches, and advice counts as work on the default stream: both are refused where they would disturb a
/// capture, which lives on.
#[test]
fn a_capture_is_not_disturbed() {
    const GLOBAL: u32 = 0;
    let fake = Fake::new(&[], |_| {});
    let begin: extern "C" fn(u64, u32) -> u32 = fake.driver("cuStreamBeginCapture_v2");
    let end: extern "C" fn(u64, *mut u64) -> u32 = fake.driver("cuStreamEndCapture");
    let destroy: extern "C" fn(u64) -> u32 = fake.driver("cuGraphDestroy");
    let d = runtime::device("cuda", 0).unwrap();
    let s = d.streams().create().unwrap();
    let at = d.unified_memory().alloc(PAGE).unwrap();
    fake.with_primary(0, || assert_eq!(begin(s, GLOBAL), 0));
    let refused = d.unified_memory().prefetch(s, at, PAGE, UnifiedPlace::Device).unwrap_err();
    assert_eq!(refused.code(), Code::NotPermitted, "{refused}");
    let other = d.streams().create().unwrap();
    d.unified_memory().prefetch(other, at, PAGE, UnifiedPlace::Device).unwrap();
    let whole = |stream: u64| {
        let mut graph = 0;
        fake.with_primary(0, || {
            assert_eq!(end(stream, &mut graph), 0, "the capture is whole");
            assert_eq!(destroy(graph), 0);
        });
    };
    whole(s);
    // The default stream is ordered with blocking streams only; the library's own are none.
    let create: extern "C" fn(*mut u64, u32) -> u32 = fake.driver("cuStreamCreate");
    let end_of: extern "C" fn(u64) -> u32 = fake.driver("cuStreamDestroy_v2");
    let mut blocking = 0;
    fake.with_primary(0, || assert_eq!(create(&mut blocking, 0), 0));
    fake.with_primary(0, || assert_eq!(begin(blocking, GLOBAL), 0));
    let refused = d.unified_memory().advise(at, PAGE, Advice::ReadMostly, UnifiedPlace::Device).unwrap_err();
    assert_eq!(refused.code(), Code::NotPermitted, "{refused}");
    whole(blocking);
    fake.with_primary(0, || assert_eq!(end_of(blocking), 0));
    d.unified_memory().advise(at, PAGE, Advice::ReadMostly, UnifiedPlace::Device).unwrap();
    d.unified_memory().prefetch(s, at, PAGE, UnifiedPlace::Device).unwrap();
    d.unified_memory().free(at).unwrap();
    fake.end();
}
