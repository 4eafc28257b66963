//! Work of streams in contexts of the program's own, which end without a word or in spite of the promise, and whose handles
//! come again.

use super::{NON_BLOCKING, POOL, announced};
use crate::apart::apart;
use crate::cuda::*;
use millpond::Code;
use millpond::runtime::{self, DeviceState};

/// A context of the program's own, and a stream in it.
struct OtherContext<'a> {
    fake: &'a Fake,
    context: u64,
    stream: u64,
}

impl OtherContext<'_> {
    fn new(fake: &Fake) -> OtherContext<'_> {
        let create: extern "C" fn(*mut u64, u32, i32) -> u32 = fake.driver("cuCtxCreate_v2");
        let pop: extern "C" fn(*mut u64) -> u32 = fake.driver("cuCtxPopCurrent_v2");
        let make: extern "C" fn(*mut u64, u32) -> u32 = fake.driver("cuStreamCreate");
        let (mut context, mut stream) = (0, 0);
        assert_eq!(create(&mut context, 0, 0), 0);
        assert_eq!(make(&mut stream, NON_BLOCKING), 0);
        assert_eq!(pop(&mut 0), 0);
        assert_ne!(context, 0);
        OtherContext { fake, context, stream }
    }

    /// Makes a call while the context is current.
    #[track_caller]
    fn inside(&self, call: impl FnOnce() -> u32) {
        let push: extern "C" fn(u64) -> u32 = self.fake.driver("cuCtxPushCurrent_v2");
        let pop: extern "C" fn(*mut u64) -> u32 = self.fake.driver("cuCtxPopCurrent_v2");
        assert_eq!((push(self.context), call(), pop(&mut 0)), (0, 0, 0));
    }

    /// Queues work on the stream that writes a block of 3 MiB.
    #[track_caller]
    fn write(&self, block: u64) {
        let fill: extern "C" fn(u64, u8, usize, u64) -> u32 = self.fake.driver("cuMemsetD8Async");
        self.inside(|| fill(block, 9, 3 << 20, self.stream));
    }

    /// The program destroys the stream.
    #[track_caller]
    fn end_stream(&self) {
        let end: extern "C" fn(u64) -> u32 = self.fake.driver("cuStreamDestroy_v2");
        self.inside(|| end(self.stream));
    }

    /// Waits for all work of the context.
    #[track_caller]
    fn wait(&self) {
        let wait: extern "C" fn() -> u32 = self.fake.driver("cuCtxSynchronize");
        self.inside(|| wait());
    }

    #[track_caller]
    fn destroy(self) {
        assert_eq!(self.fake.driver::<extern "C" fn(u64) -> u32>("cuCtxDestroy_v2")(self.context), 0);
    }
}

/// Fails unless one of the blocks that the device still gives to stream `t` is `block`.
#[track_caller]
fn assert_comes_back(d: &DeviceState, t: u64, block: u64, what: bool) {
    let all: Vec<u64> = (0..).map_while(|_| d.memory().alloc(POOL, t, 3 * MIB).ok()).collect();
    assert!(all.contains(&block), "{what}: it never comes back");
}

/// A block that work of other contexts writes: of a stream that has ended, and of one in a third context that has its handle
/// now.
#[test]
fn work_of_other_contexts_is_waited_for_after_their_streams() {
    apart(|| {
        for again in [false, true] {
            let (fake, d) = one(&[]);
            let (m, t) = (d.memory(), d.streams().create().unwrap());
            let other = OtherContext::new(&fake);
            let b = m.alloc(POOL, t, 3 * MIB).unwrap();
            m.record_stream(b, other.stream).unwrap();
            fake.hold(true);
            other.write(b);
            other.end_stream();
            let third = again.then(|| OtherContext::new(&fake));
            if let Some(third) = &third {
                assert_eq!(third.stream, other.stream, "its handle comes again");
                m.record_stream(b, third.stream).unwrap();
            }
            m.free(b, Some(t), None).unwrap();
            let c = m.alloc(POOL, t, 3 * MIB).unwrap();
            assert_ne!(c, b, "{again}: a stream of another context still writes it");
            fake.hold(false);
            d.synchronize().unwrap();
            other.wait();
            third.iter().for_each(OtherContext::wait);
            assert_comes_back(&d, t, b, again);
            drop(d);
            runtime::finalize().unwrap();
            other.destroy();
            third.into_iter().for_each(OtherContext::destroy);
            assert_eq!(fake.leaks(), "");
        }
    });
}

/// Nobody can tell of the end of a stream in a context that is no device's, and the library does not give it to the driver later.
#[test]
fn a_stream_of_another_context_ends_in_spite_of_the_promise() {
    apart(|| {
        for promise in [false, true] {
            let (fake, d) = if promise { announced(&[]) } else { one(&[]) };
            let (m, t) = (d.memory(), d.streams().create().unwrap());
            let other = OtherContext::new(&fake);
            let b = m.alloc(POOL, t, 3 * MIB).unwrap();
            m.record_stream(b, other.stream).unwrap();
            fake.hold(true);
            other.write(b);
            assert_eq!(d.streams().forget(other.stream).unwrap_err().code(), Code::UnknownStream);
            other.end_stream();
            m.free(b, Some(t), None).unwrap();
            assert_ne!(m.alloc(POOL, t, 3 * MIB).unwrap(), b, "a stream of another context still writes it");
            fake.hold(false);
            other.wait();
            assert_comes_back(&d, t, b, promise);
            drop(d);
            runtime::finalize().unwrap();
            other.destroy();
            assert_eq!(fake.leaks(), "");
        }
    });
}

/// A stream of another context has used a block, and ended; its handle is that of a stream of the device's own context, whose end
/// is told.
#[test]
fn work_of_another_context_is_waited_for_when_the_next_stream_with_that_handle_has_ended() {
    apart(|| {
        for promise in [false, true] {
            let (fake, d) = if promise { announced(&[]) } else { one(&[]) };
            let (m, t) = (d.memory(), d.streams().create().unwrap());
            let other = OtherContext::new(&fake);
            let b = m.alloc(POOL, t, 3 * MIB).unwrap();
            m.record_stream(b, other.stream).unwrap();
            fake.hold(true);
            other.write(b);
            other.end_stream();
            let same = fake.foreign_stream(0, NON_BLOCKING);
            assert_eq!(same, other.stream, "its handle comes again");
            let c = m.alloc(POOL, same, 3 * MIB).unwrap();
            m.free(c, Some(same), None).unwrap();
            d.streams().forget(same).unwrap();
            fake.foreign_stream_end(same);
            m.free(b, Some(t), None).unwrap();
            assert_ne!(m.alloc(POOL, t, 3 * MIB).unwrap(), b, "a stream of another context still writes it");
            fake.hold(false);
            other.wait();
            d.synchronize().unwrap();
            assert_comes_back(&d, t, b, promise);
            drop(d);
            runtime::finalize().unwrap();
            other.destroy();
            assert_eq!(fake.leaks(), "");
        }
    });
}

/// What was a stream of a context that has gone is one of another context now.
#[test]
fn a_context_that_has_gone_is_not_asked_for_a_stream_with_the_same_handle() {
    apart(|| {
        let (fake, d) = one(&[]);
        let (m, t) = (d.memory(), d.streams().create().unwrap());
        let mut before = None;
        for _ in 0..2 {
            let other = OtherContext::new(&fake);
            assert!(before.is_none_or(|s| s == other.stream), "its handle comes again");
            before = Some(other.stream);
            let b = m.alloc(POOL, t, 40 * MIB).unwrap();
            m.record_stream(b, other.stream).unwrap();
            m.free(b, Some(t), None).unwrap();
            d.synchronize().unwrap();
            let c = m.alloc(POOL, t, 40 * MIB).expect("no work is left");
            m.free(c, Some(t), None).unwrap();
            other.end_stream();
            other.destroy();
        }
        fake.end();
    });
}
