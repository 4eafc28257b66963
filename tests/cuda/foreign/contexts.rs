//! Work of streams in contexts of the program's own, which end without a word or in spite of the promise, and whose handles
//! come again.

use super::{CAPTURE, NON_BLOCKING, POOL, announced};
use crate::apart::apart;
use crate::cuda::*;
use millpond::Code;
use millpond::runtime::{self, DeviceState};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

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

    /// The stream stands still until something is sent.
    fn stands_still(&self) -> Sender<()> {
        extern "C" fn wait(go: *mut c_void) {
            // SAFETY: the box of below, for this one call.
            let _ = unsafe { Box::from_raw(go.cast::<Receiver<()>>()) }.recv();
        }
        let launch: extern "C" fn(u64, extern "C" fn(*mut c_void), *mut c_void) -> u32 =
            self.fake.driver("cuLaunchHostFunc");
        let (send, go) = channel();
        self.inside(|| launch(self.stream, wait, Box::into_raw(Box::new(go)).cast()));
        send
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

    /// The stream ends while its held work still writes the block, and a stream of the device's own context gets its handle.
    #[track_caller]
    fn gives_its_handle_on(&self, block: u64) -> u64 {
        self.fake.hold(true);
        self.write(block);
        self.end_stream();
        let same = self.fake.foreign_stream(0, NON_BLOCKING);
        assert_eq!(same, self.stream, "its handle comes again");
        same
    }

    /// The block of stream `t` is freed: it is not used again before the held work that writes it has ended, and then it is.
    #[track_caller]
    fn is_waited_for(&self, d: &DeviceState, t: u64, block: u64, what: bool) {
        d.memory().free(block, Some(t), None).unwrap();
        let other = d.memory().alloc(POOL, t, 3 * MIB).unwrap();
        assert_ne!(other, block, "a stream of another context still writes it");
        self.fake.hold(false);
        self.wait();
        d.synchronize().unwrap();
        assert_comes_back(d, t, block, what);
    }

    #[track_caller]
    fn destroy(self) {
        assert_eq!(self.fake.driver::<extern "C" fn(u64) -> u32>("cuCtxDestroy_v2")(self.context), 0);
    }
}

/// A blocking stream of such a context, which is captured.
struct Captured<'a>(&'a OtherContext<'a>, u64);

impl Captured<'_> {
    #[track_caller]
    fn begin<'a>(of: &'a OtherContext<'a>) -> Captured<'a> {
        let make: extern "C" fn(*mut u64, u32) -> u32 = of.fake.driver("cuStreamCreate");
        let begin: extern "C" fn(u64, u32) -> u32 = of.fake.driver("cuStreamBeginCapture_v2");
        let mut stream = 0;
        of.inside(|| make(&mut stream, 0));
        of.inside(|| begin(stream, CAPTURE));
        Captured(of, stream)
    }

    /// The capture has come to nothing bad; and the stream ends.
    #[track_caller]
    fn end(self) {
        let Captured(of, stream) = self;
        let end: extern "C" fn(u64, *mut u64) -> u32 = of.fake.driver("cuStreamEndCapture");
        let drop_graph: extern "C" fn(u64) -> u32 = of.fake.driver("cuGraphDestroy");
        let unmake: extern "C" fn(u64) -> u32 = of.fake.driver("cuStreamDestroy_v2");
        let mut graph = 0;
        of.inside(|| end(stream, &mut graph));
        of.inside(|| drop_graph(graph));
        of.inside(|| unmake(stream));
    }
}

/// Fails unless one of the blocks that the device still gives to stream `t` is `block`.
#[track_caller]
fn assert_comes_back(d: &DeviceState, t: u64, block: u64, what: bool) {
    let all: Vec<u64> = (0..).map_while(|_| d.memory().alloc(POOL, t, 3 * MIB).ok()).collect();
    assert!(all.contains(&block), "{what}: it never comes back");
}

/// Another context, and a block of stream `t` that its stream uses.
fn used_there<'a>(fake: &'a Fake, d: &DeviceState, t: u64) -> (OtherContext<'a>, u64) {
    let other = OtherContext::new(fake);
    let block = d.memory().alloc(POOL, t, 3 * MIB).unwrap();
    d.memory().record_stream(block, other.stream).unwrap();
    (other, block)
}

/// The library ends, and then the contexts; nothing is left.
#[track_caller]
fn all_end<'a>(fake: &Fake, device: Arc<DeviceState>, contexts: impl IntoIterator<Item = OtherContext<'a>>) {
    drop(device);
    runtime::finalize().unwrap();
    contexts.into_iter().for_each(OtherContext::destroy);
    assert_eq!(fake.leaks(), "");
}

/// A block that work of other contexts writes: of a stream that has ended, and of one in a third context that has its handle
/// now.
#[test]
fn work_of_other_contexts_is_waited_for_after_their_streams() {
    apart(|| {
        for again in [false, true] {
            let (fake, d) = one(&[]);
            let (m, t) = (d.memory(), d.streams().create().unwrap());
            let (other, b) = used_there(&fake, &d, t);
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
            all_end(&fake, d, [other].into_iter().chain(third));
        }
    });
}

/// The free names the stream that has the handle now, which has nothing to do; the earlier one's work goes on.
#[test]
fn a_free_that_names_a_stream_waits_for_those_that_had_its_handle_in_other_contexts() {
    apart(|| {
        let (fake, d) = one(&[]);
        let (m, t) = (d.memory(), d.streams().create().unwrap());
        let (other, b) = used_there(&fake, &d, t);
        let go_on = other.stands_still();
        other.write(b);
        other.end_stream();
        let next = OtherContext::new(&fake);
        assert_eq!(next.stream, other.stream, "its handle comes again");
        m.free(b, Some(next.stream), None).unwrap();
        assert_ne!(m.alloc(POOL, t, 3 * MIB).unwrap(), b, "a stream of another context still writes it");
        go_on.send(()).unwrap();
        other.wait();
        assert_comes_back(&d, t, b, true);
        all_end(&fake, d, [other, next]);
    });
}

/// Nobody can tell of the end of a stream in a context that is no device's, and the library does not give it to the driver later.
#[test]
fn a_stream_of_another_context_ends_in_spite_of_the_promise() {
    apart(|| {
        for promise in [false, true] {
            let (fake, d) = if promise { announced(&[]) } else { one(&[]) };
            let (m, t) = (d.memory(), d.streams().create().unwrap());
            let (other, b) = used_there(&fake, &d, t);
            fake.hold(true);
            other.write(b);
            assert_eq!(d.streams().forget(other.stream).unwrap_err().code(), Code::UnknownStream);
            other.end_stream();
            m.free(b, Some(t), None).unwrap();
            assert_ne!(m.alloc(POOL, t, 3 * MIB).unwrap(), b, "a stream of another context still writes it");
            fake.hold(false);
            other.wait();
            assert_comes_back(&d, t, b, promise);
            all_end(&fake, d, [other]);
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
            let (other, b) = used_there(&fake, &d, t);
            let same = other.gives_its_handle_on(b);
            let c = m.alloc(POOL, same, 3 * MIB).unwrap();
            m.free(c, Some(same), None).unwrap();
            d.streams().forget(same).unwrap();
            fake.foreign_stream_end(same);
            other.is_waited_for(&d, t, b, promise);
            all_end(&fake, d, [other]);
        }
    });
}

/// The same, where the other context could not be marked as that end was told: it is marked later.
#[test]
fn work_of_another_context_that_could_not_be_marked_is_waited_for_later() {
    apart(|| {
        let (fake, d) = announced(&[]);
        let t = d.streams().create().unwrap();
        let (other, b) = used_there(&fake, &d, t);
        let same = other.gives_its_handle_on(b);
        let captured = Captured::begin(&other);
        d.streams().forget(same).unwrap();
        fake.foreign_stream_end(same);
        captured.end();
        other.is_waited_for(&d, t, b, true);
        all_end(&fake, d, [other]);
    });
}

/// A mark among the work of a whole context would spoil the capture of a blocking stream there.
#[test]
fn work_of_another_context_is_not_marked_while_a_stream_there_is_captured() {
    apart(|| {
        for ends in [false, true] {
            let (fake, d) = one(&[]);
            let (m, t) = (d.memory(), d.streams().create().unwrap());
            let (other, b) = used_there(&fake, &d, t);
            if ends {
                other.end_stream();
            }
            let captured = Captured::begin(&other);
            m.free(b, Some(t), None).unwrap();
            assert_ne!(m.alloc(POOL, t, 3 * MIB).unwrap(), b, "nobody could ask whether it is still used");
            captured.end();
            other.wait();
            assert_comes_back(&d, t, b, ends);
            all_end(&fake, d, [other]);
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
