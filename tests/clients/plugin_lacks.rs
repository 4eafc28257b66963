//! Stream callbacks of plugins that lack functions. What stands in for a missing function, and work on NULL, which is
//! Millpond's own on a plugin's device, may have to wait for a stream: in a callback of that stream such a call gets a
//! status, as every call there that waits. It does not wait for itself.

use crate::apart::{apart_for, step};
use crate::client::*;
use crate::cuda::MIB;
use crate::slow::{self, Manner};
use millpond::capi::*;
use millpond::paddle::abi::C_DeviceInterface;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Does something in a callback of the stream, with a block and an event that is recorded behind the callback. It
/// comes back, whatever it is told.
fn in_a_callback(
    less: fn(&mut C_DeviceInterface),
    act: impl FnOnce(Dev, u64, u64, u64) -> Said + Send + 'static,
) -> Said {
    slow::register(Manner::default(), less).unwrap();
    let d = device(slow::NAME, 0);
    let (s, e) = (d.stream(), d.event());
    let p = d.pool().alloc(MIB, s).unwrap();
    let (begin, begun) = channel::<()>();
    let (tell, told) = channel();
    d.callback(s, move |_| {
        begun.recv().unwrap();
        step("in the callback");
        tell.send(act(d, s, p, e)).unwrap();
    })
    .unwrap();
    let _ = d.event_record(s, e);
    begin.send(()).unwrap();
    let said = told.recv_timeout(Duration::from_secs(5)).expect("the call waits for itself");
    step("afterwards");
    d.stream_sync(s).unwrap();
    d.pool().free(p, s).unwrap();
    d.event_end(e).unwrap();
    d.stream_end(s).unwrap();
    unregister(slow::NAME).unwrap();
    assert_eq!((slow::held(), slow::faults()), (0, vec![]));
    said
}

#[test]
fn work_on_null_in_a_callback_is_refused() {
    apart_for(60, || {
        const NO: &[u32] = &[MILLPOND_E_NOT_PERMITTED];
        step("a fill");
        refused(in_a_callback(|_| (), |d, _, p, _| d.memset_async(0, p, 1, MIB)), NO);
        step("a copy");
        refused(
            in_a_callback(|_| (), |d, _, p, _| d.copy_async(0, MILLPOND_COPY_D2D, p, p + MIB / 2, MIB / 2)),
            NO,
        );
        step("a callback");
        refused(in_a_callback(|_| (), |d, _, _, _| d.callback(0, |_| ())), NO);
        step("a wait for an event");
        refused(
            in_a_callback(
                |_| (),
                |d, _, _, e| said(unsafe { millpond_stream_wait_event(d.0, stream(0), stream(e).cast()) }),
            ),
            NO,
        );
    });
}

#[test]
fn questions_in_a_callback_of_a_plugin_that_cannot_be_asked_come_back() {
    apart_for(60, || {
        step("a stream");
        let ask = |d: Dev, s, _, _| {
            let mut done = false;
            said(unsafe { millpond_stream_query(d.0, stream(s), &mut done) })
        };
        let _ = in_a_callback(|t| t.query_stream = None, ask);
        step("an event");
        let _ = in_a_callback(|t| t.query_event = None, |d, _, _, e| d.event_done(e).map(drop));
    });
}

#[test]
fn copies_in_a_callback_of_a_plugin_without_queued_ones_are_refused() {
    apart_for(60, || {
        let less = |t: &mut C_DeviceInterface| {
            t.async_memory_copy_h2d = None;
            t.async_memory_copy_d2h = None;
            t.async_memory_copy_d2d = None;
        };
        const NO: &[u32] = &[MILLPOND_E_NOT_PERMITTED];
        refused(in_a_callback(less, |d, s, p, _| d.memset_async(s, p, 1, MIB)), NO);
        refused(
            in_a_callback(less, |d, s, p, _| d.copy_async(s, MILLPOND_COPY_D2D, p, p + MIB / 2, MIB / 2)),
            NO,
        );
    });
}

/// A freed block waits for the stream that is in the callback; a request there looks whether it is over.
#[test]
fn a_request_in_a_callback_of_a_plugin_without_questions_comes_back() {
    apart_for(60, || {
        let _ = in_a_callback(
            |t| t.query_event = None,
            |d, s, _, _| {
                let a = d.stream();
                let q = d.pool().alloc(MIB, a)?;
                record_stream(q, s)?;
                free(q)?;
                let r = d.pool().alloc(MIB, a);
                let _ = d.stats();
                r.and_then(free)
            },
        );
    });
}

/// A plugin that calls a stream callback twice: the second call finds nothing.
#[test]
fn a_callback_that_a_plugin_calls_twice_runs_once() {
    use millpond::paddle::abi::*;
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C-unwind" fn twice(
        d: C_Device,
        s: C_Stream,
        callback: C_Callback,
        data: *mut c_void,
    ) -> C_Status {
        let mut status = C_Status::SUCCESS;
        for _ in 0..2 {
            unsafe { callback.unwrap()(d, s, data, &mut status) };
        }
        C_Status::SUCCESS
    }
    unsafe extern "C-unwind" fn both(
        d: C_Device,
        s: C_Stream,
        callback: C_Callback,
        data: *mut c_void,
    ) -> C_Status {
        let mut status = C_Status::SUCCESS;
        unsafe { callback.unwrap()(d, s, data, &mut status) };
        C_Status::FAILED
    }
    apart_for(60, || {
        for (f, runs) in [(twice as unsafe extern "C-unwind" fn(_, _, _, _) -> _, 1), (both, 1)] {
            RUNS.store(0, SeqCst);
            slow::register(Manner::default(), move |t| t.stream_add_callback = Some(f)).unwrap();
            let d = device(slow::NAME, 0);
            let s = d.stream();
            let _ = d.callback(s, |_| _ = RUNS.fetch_add(1, SeqCst));
            assert_eq!(RUNS.load(SeqCst), runs);
            d.stream_end(s).unwrap();
            unregister(slow::NAME).unwrap();
        }
    });
}
