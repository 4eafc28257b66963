//! Streams and events after their end: a call with such a handle ends the process, as on a card, unless the settings say
//! otherwise; and the handle comes again at once.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::ptr::null_mut;

type Call = (&'static str, fn(CUstream, CUevent) -> CUresult);

/// What is asked of an ended stream, or an ended event; the other one lives.
const CALLS: &[Call] = &[
    ("cuStreamQuery", |s, _| unsafe { cuStreamQuery(s) }),
    ("cuStreamSynchronize", |s, _| unsafe { cuStreamSynchronize(s) }),
    ("cuStreamGetId", |s, _| unsafe { cuStreamGetId(s, &mut 0) }),
    ("cuStreamGetCtx", |s, _| unsafe { cuStreamGetCtx(s, &mut null_mut()) }),
    ("cuStreamIsCapturing", |s, _| unsafe {
        cuStreamIsCapturing(s, &mut CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }),
    ("cuEventRecord", |s, e| unsafe { cuEventRecord(e, s) }),
    ("cuStreamWaitEvent", |s, e| unsafe { cuStreamWaitEvent(s, e, 0) }),
    ("cuStreamDestroy_v2", |s, _| unsafe { cuStreamDestroy_v2(s) }),
    ("cuMemFreeAsync", |s, _| unsafe { cuMemFreeAsync(1, s) }),
    ("cuEventQuery", |_, e| unsafe { cuEventQuery(e) }),
    ("cuEventSynchronize", |_, e| unsafe { cuEventSynchronize(e) }),
    ("cuEventDestroy_v2", |_, e| unsafe { cuEventDestroy_v2(e) }),
];

const FIRST_OF_EVENTS: usize = 9;

fn ended(number: usize) -> CUresult {
    let (stream, event) = (stream(1), event(2));
    if number < FIRST_OF_EVENTS {
        ok(unsafe { cuStreamDestroy_v2(stream) });
    } else {
        ok(unsafe { cuEventDestroy_v2(event) });
    }
    CALLS[number].1(stream, event)
}

#[test]
fn a_call_with_an_ended_handle_ends_the_process() {
    for (number, (name, _)) in CALLS.iter().enumerate() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "part_that_dies", "--ignored", "--test-threads=1", "--nocapture"]);
        command.env("FAKECUDA_TEST_PART", number.to_string()).stdin(Stdio::null());
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{name}: {text}");
        let what = if number < FIRST_OF_EVENTS { "stream" } else { "event" };
        assert!(text.contains(&format!("fakecuda: {name}: {what} 0x")), "{name}: {text}");
    }
}

#[test]
#[ignore = "a part"]
fn part_that_dies() {
    let Ok(number) = std::env::var("FAKECUDA_TEST_PART") else { return };
    let _fake = Fake::new(&[]);
    let _ = ended(number.parse().unwrap());
}

#[test]
fn a_driver_that_checks_refuses_the_handle() {
    for (number, (name, _)) in CALLS.iter().enumerate() {
        let _fake = Fake::new(&[("ended", "refuse")]);
        assert_eq!(ended(number), CUDA_ERROR_INVALID_HANDLE, "{name}");
    }
}

fn id_of(stream: CUstream) -> u64 {
    let mut id = 0;
    ok(unsafe { cuStreamGetId(stream, &mut id) });
    id
}

#[test]
fn handles_come_again_last_in_first_out_and_ids_do_not() {
    let _fake = Fake::new(&[]);
    let (a, b) = (stream(1), stream(1));
    let ids = [id_of(a), id_of(b)];
    ok(unsafe { cuStreamDestroy_v2(a) });
    ok(unsafe { cuStreamDestroy_v2(b) });
    let (c, d, e) = (stream(0), stream(1), stream(1));
    assert_eq!([c, d], [b, a]);
    assert!(e != a && e != b);
    assert!([id_of(c), id_of(d), id_of(e)].iter().all(|id| !ids.contains(id)));
    let first = event(2);
    ok(unsafe { cuEventDestroy_v2(first) });
    assert_eq!(event(2), first);
}

#[test]
fn the_work_of_an_ended_stream_is_not_that_of_its_successor() {
    let fake = Fake::new(&[]);
    let old = stream(1);
    let done = event(2);
    fake.hold(true);
    ok(unsafe { cuMemsetD8Async(alloc(64), 1, 64, old) });
    ok(unsafe { cuEventRecord(done, old) });
    ok(unsafe { cuStreamDestroy_v2(old) });
    let new = stream(1);
    assert_eq!(new, old);
    ok(unsafe { cuStreamQuery(new) });
    no(unsafe { cuEventQuery(done) }, CUDA_ERROR_NOT_READY);
    // A record that runs after the end of its event says nothing of the event that has the handle now.
    ok(unsafe { cuEventDestroy_v2(done) });
    let other = event(2);
    assert_eq!(other, done);
    ok(unsafe { cuEventQuery(other) });
    fake.hold(false);
    ok(unsafe { cuCtxSynchronize() });
}

#[test]
fn no_handle_comes_again_where_that_is_switched_off() {
    let _fake = Fake::new(&[("reuse", "0")]);
    let a = stream(1);
    ok(unsafe { cuStreamDestroy_v2(a) });
    assert_ne!(stream(1), a);
}
