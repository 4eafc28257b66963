//! Capture and graphs: what joins, what is refused, what a replay does.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use CUstreamCaptureMode_enum::{
    CU_STREAM_CAPTURE_MODE_GLOBAL as GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED as RELAXED,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as THREAD_LOCAL,
};
use CUstreamCaptureStatus_enum::{
    CU_STREAM_CAPTURE_STATUS_ACTIVE as ACTIVE, CU_STREAM_CAPTURE_STATUS_INVALIDATED as INVALIDATED,
    CU_STREAM_CAPTURE_STATUS_NONE as NONE,
};

const NON_BLOCKING: u32 = 1;

fn begin(stream: CUstream, mode: CUstreamCaptureMode) {
    ok(unsafe { cuStreamBeginCapture_v2(stream, mode) });
}

#[track_caller]
fn end(stream: CUstream) -> CUgraph {
    let mut graph = null_mut();
    ok(unsafe { cuStreamEndCapture(stream, &mut graph) });
    assert!(!graph.is_null());
    graph
}

#[track_caller]
fn end_fails(stream: CUstream, code: CUresult) {
    let mut graph = 8 as CUgraph;
    no(unsafe { cuStreamEndCapture(stream, &mut graph) }, code);
    assert!(graph.is_null());
}

#[track_caller]
fn status(stream: CUstream) -> CUstreamCaptureStatus {
    let mut status = NONE;
    ok(unsafe { cuStreamIsCapturing(stream, &mut status) });
    status
}

fn instantiate(graph: CUgraph) -> CUgraphExec {
    let mut executable = null_mut();
    ok(unsafe { cuGraphInstantiateWithFlags(&mut executable, graph, 0) });
    executable
}

/// Sets this thread's capture mode and gives the one before.
fn exchange(mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    let mut mode = mode;
    ok(unsafe { cuThreadExchangeStreamCaptureMode(&mut mode) });
    mode
}

unsafe extern "C" fn add_one(counter: *mut c_void) {
    unsafe { &*counter.cast::<AtomicU32>() }.fetch_add(1, SeqCst);
}

#[test]
fn a_graph_replays_what_was_captured() {
    let fake = Fake::new(&[]);
    let (from, to, stream) = (alloc(64), alloc(64), stream(NON_BLOCKING));
    upload(from, &[1; 64]);
    upload(to, &[2; 64]);
    let counter = AtomicU32::new(0);
    begin(stream, GLOBAL);
    assert_eq!(status(stream), ACTIVE);
    ok(unsafe { cuMemcpyDtoDAsync_v2(to, from, 32, stream) });
    ok(unsafe { cuMemsetD8Async(to + 32, 3, 16, stream) });
    ok(unsafe { cuLaunchHostFunc(stream, Some(add_one), (&raw const counter).cast_mut().cast()) });
    let graph = end(stream);
    assert_eq!(status(stream), NONE);
    assert_eq!(download(to, 64), [2; 64], "capture runs nothing");
    let mut count = 0;
    ok(unsafe { cuGraphGetNodes(graph, null_mut(), &mut count) });
    assert_eq!(count, 3);
    let executable = instantiate(graph);
    ok(unsafe { cuGraphDestroy(graph) });
    for round in 1..=3 {
        upload(from, &[10 + round; 64]);
        ok(unsafe { cuGraphLaunch(executable, stream) });
        ok(unsafe { cuStreamSynchronize(stream) });
        let bytes = download(to, 64);
        assert_eq!((bytes[31], bytes[32], bytes[63]), (10 + round, 3, 2));
        assert_eq!(counter.load(SeqCst), round.into());
    }
    ok(unsafe { cuGraphExecDestroy(executable) });
    no(unsafe { cuGraphLaunch(executable, stream) }, CUDA_ERROR_INVALID_VALUE);
    no(unsafe { cuGraphDestroy(graph) }, CUDA_ERROR_INVALID_VALUE);
    ok(unsafe { cuStreamDestroy_v2(stream) });
    ok(unsafe { cuDevicePrimaryCtxRelease_v2(0) });
    assert_eq!(fake.leaks(), "");
}

unsafe extern "C" fn wait_for_flag(flag: *mut c_void) {
    while unsafe { &*flag.cast::<AtomicU32>() }.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn launches_of_one_graph_follow_each_other() {
    let _fake = Fake::new(&[]);
    let (first, second, at) = (stream(NON_BLOCKING), stream(NON_BLOCKING), alloc(64));
    begin(first, GLOBAL);
    ok(unsafe { cuMemsetD8Async(at, 3, 16, first) });
    let graph = end(first);
    let executable = instantiate(graph);
    let flag = AtomicU32::new(0);
    ok(unsafe { cuLaunchHostFunc(first, Some(wait_for_flag), (&raw const flag).cast_mut().cast()) });
    ok(unsafe { cuGraphLaunch(executable, first) });
    ok(unsafe { cuGraphLaunch(executable, second) });
    std::thread::sleep(std::time::Duration::from_millis(30));
    no(unsafe { cuStreamQuery(second) }, CUDA_ERROR_NOT_READY);
    flag.store(1, SeqCst);
    ok(unsafe { cuStreamSynchronize(second) });
    ok(unsafe { cuGraphExecDestroy(executable) });
    ok(unsafe { cuGraphDestroy(graph) });
}

#[test]
fn streams_join_by_events_and_must_be_joined_back() {
    let _fake = Fake::new(&[]);
    let (first, second, at) = (stream(NON_BLOCKING), stream(NON_BLOCKING), alloc(64));
    let (fork, join) = (event(2), event(2));
    begin(first, RELAXED);
    ok(unsafe { cuEventRecord(fork, first) });
    assert_eq!(status(second), NONE);
    ok(unsafe { cuStreamWaitEvent(second, fork, 0) });
    assert_eq!(status(second), ACTIVE);
    ok(unsafe { cuMemsetD8Async(at, 1, 64, second) });
    no(unsafe { cuEventQuery(fork) }, CUDA_ERROR_CAPTURED_EVENT);
    ok(unsafe { cuEventRecord(join, second) });
    ok(unsafe { cuStreamWaitEvent(first, join, 0) });
    let (mut state, mut id, mut graph, mut nodes, mut count) = (NONE, 0, null_mut(), std::ptr::null(), 9);
    ok(unsafe { cuStreamGetCaptureInfo_v2(first, &mut state, &mut id, &mut graph, &mut nodes, &mut count) });
    assert_eq!((state, count), (ACTIVE, 1));
    let mut other = 0;
    ok(unsafe {
        cuStreamGetCaptureInfo_v2(second, &mut state, &mut other, null_mut(), null_mut(), null_mut())
    });
    assert_eq!(id, other);
    assert_eq!(end(first), graph);
    assert_eq!(status(second), NONE);
    // The event stands for a node of a graph that is finished, until it is recorded again.
    no(unsafe { cuStreamWaitEvent(first, join, 0) }, CUDA_ERROR_INVALID_VALUE);
    ok(unsafe { cuEventRecord(join, first) });
    ok(unsafe { cuEventSynchronize(join) });
    ok(unsafe { cuGraphDestroy(graph) });

    begin(first, RELAXED);
    ok(unsafe { cuEventRecord(fork, first) });
    ok(unsafe { cuStreamWaitEvent(second, fork, 0) });
    ok(unsafe { cuMemsetD8Async(at, 1, 64, second) });
    end_fails(first, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    assert_eq!((status(first), status(second)), (NONE, NONE));

    begin(first, RELAXED);
    ok(unsafe { cuEventRecord(fork, first) });
    ok(unsafe { cuStreamWaitEvent(second, fork, 0) });
    end_fails(second, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    end_fails(first, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

#[test]
fn two_captures_do_not_mix() {
    let _fake = Fake::new(&[]);
    let (first, second, event) = (stream(NON_BLOCKING), stream(NON_BLOCKING), event(2));
    begin(first, RELAXED);
    begin(second, RELAXED);
    ok(unsafe { cuEventRecord(event, first) });
    no(unsafe { cuStreamWaitEvent(second, event, 0) }, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    end_fails(first, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    end_fails(second, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

#[test]
fn an_event_from_outside_is_no_part_of_a_capture() {
    let _fake = Fake::new(&[]);
    let (first, event) = (stream(NON_BLOCKING), event(2));
    begin(first, RELAXED);
    ok(unsafe { cuStreamWaitEvent(first, event, 0) });
    assert_eq!(status(first), ACTIVE);
    ok(unsafe { cuGraphDestroy(end(first)) });
    ok(unsafe { cuEventRecord(event, first) });
    begin(first, RELAXED);
    no(unsafe { cuStreamWaitEvent(first, event, 0) }, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    assert_eq!(status(first), INVALIDATED);
    no(unsafe { cuEventRecord(event, first) }, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    end_fails(first, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

#[test]
fn waiting_for_a_capture_invalidates_it() {
    let _fake = Fake::new(&[]);
    let stream = stream(NON_BLOCKING);
    let calls: [&dyn Fn() -> CUresult; 4] = [
        &|| unsafe { cuStreamSynchronize(stream) },
        &|| unsafe { cuStreamQuery(stream) },
        &|| unsafe { cuCtxSynchronize() },
        &|| unsafe { cuStreamAddCallback(stream, Some(never), null_mut(), 0) },
    ];
    for call in calls {
        begin(stream, RELAXED);
        no(call(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        assert_eq!(status(stream), INVALIDATED);
        end_fails(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        ok(unsafe { cuStreamSynchronize(stream) });
    }
}

unsafe extern "C" fn never(_stream: CUstream, _status: CUresult, _data: *mut c_void) {}

#[test]
fn unsafe_calls_depend_on_the_modes() {
    let _fake = Fake::new(&[]);
    let (capturing, other, done) = (stream(NON_BLOCKING), stream(NON_BLOCKING), event(2));
    let (mut at, mut host) = (0, null_mut());
    ok(unsafe { cuEventRecord(done, other) });
    let (spare, other_spare) = (alloc(64), alloc(64));
    let (mut pooled, mut managed, mut pool_at, mut pool) = (0, 0, 0, null_mut());
    ok(unsafe { cuMemAllocAsync(&mut pooled, 64, other) });
    ok(unsafe { cuMemAllocManaged(&mut managed, 64, 1) });
    ok(unsafe { cuDeviceGetDefaultMemPool(&mut pool, 0) });
    let advice = CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY;
    type Call<'a> = (&'a str, Box<dyn FnMut() -> CUresult + 'a>);
    let mut calls: Vec<Call<'_>> = vec![
        ("cuMemAlloc", Box::new(|| unsafe { cuMemAlloc_v2(&mut at, 64) })),
        ("cuMemFree", Box::new(|| unsafe { cuMemFree_v2(spare) })),
        ("cuMemHostAlloc", Box::new(|| unsafe { cuMemHostAlloc(&mut host, 64, 0) })),
        ("cuEventQuery", Box::new(|| unsafe { cuEventQuery(done) })),
        ("cuMemCreate", Box::new(|| unsafe { cuMemCreate(&mut 0, GRANULE, &prop(0), 0) })),
        ("cuMemsetD8", Box::new(|| unsafe { cuMemsetD8_v2(other_spare, 0, 1) })),
        // A card was seen to treat these alike, though they are queued on another stream, or touch none.
        ("cuMemAllocAsync", Box::new(|| unsafe { cuMemAllocAsync(&mut pool_at, 64, other) })),
        ("cuMemFreeAsync", Box::new(|| unsafe { cuMemFreeAsync(pooled, other) })),
        ("cuMemPoolTrimTo", Box::new(|| unsafe { cuMemPoolTrimTo(pool, 0) })),
        ("cuMemAdvise", Box::new(|| unsafe { cuMemAdvise(managed, 64, advice, 0) })),
    ];
    for (name, call) in &mut calls {
        for mode in [GLOBAL, THREAD_LOCAL] {
            begin(capturing, mode);
            assert_eq!(call(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "{name}");
            end_fails(capturing, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
    }
    // A relaxed capture, or a relaxed thread, allows them.
    begin(capturing, RELAXED);
    assert_eq!(calls[0].1(), CUDA_SUCCESS);
    ok(unsafe { cuGraphDestroy(end(capturing)) });
    begin(capturing, GLOBAL);
    assert_eq!(exchange(RELAXED), GLOBAL);
    for (name, call) in &mut calls {
        assert_eq!(call(), CUDA_SUCCESS, "{name}");
    }
    assert_eq!(exchange(GLOBAL), RELAXED);
    ok(unsafe { cuGraphDestroy(end(capturing)) });
}

#[test]
fn a_captured_event_stands_for_no_work() {
    let _fake = Fake::new(&[]);
    let (capturing, other, mark) = (stream(NON_BLOCKING), stream(NON_BLOCKING), event(2));
    begin(capturing, RELAXED);
    ok(unsafe { cuEventRecord(mark, capturing) });
    no(unsafe { cuEventQuery(mark) }, CUDA_ERROR_CAPTURED_EVENT);
    assert_eq!(status(capturing), ACTIVE);
    // To wait for it on the host ends the capture.
    no(unsafe { cuEventSynchronize(mark) }, CUDA_ERROR_INVALID_VALUE);
    end_fails(capturing, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(capturing, RELAXED);
    ok(unsafe { cuEventRecord(mark, capturing) });
    let graph = end(capturing);
    for gone in [false, true] {
        no(unsafe { cuEventQuery(mark) }, CUDA_ERROR_INVALID_VALUE);
        no(unsafe { cuEventSynchronize(mark) }, CUDA_ERROR_INVALID_VALUE);
        no(unsafe { cuStreamWaitEvent(other, mark, 0) }, CUDA_ERROR_INVALID_VALUE);
        if !gone {
            ok(unsafe { cuGraphDestroy(graph) });
        }
    }
    ok(unsafe { cuEventRecord(mark, other) });
    ok(unsafe { cuEventSynchronize(mark) });
}

#[test]
fn another_thread_is_bound_by_a_global_capture_only() {
    let fake = Fake::new(&[]);
    let context = fake.primary(0) as usize;
    let capturing = stream(NON_BLOCKING);
    let on_another_thread = |mode: CUstreamCaptureMode| {
        std::thread::spawn(move || {
            ok(unsafe { cuCtxSetCurrent(context as CUcontext) });
            exchange(mode);
            unsafe { cuMemAlloc_v2(&mut 0, 64) }
        })
        .join()
        .unwrap()
    };
    begin(capturing, THREAD_LOCAL);
    ok(on_another_thread(GLOBAL));
    ok(unsafe { cuGraphDestroy(end(capturing)) });
    begin(capturing, GLOBAL);
    ok(on_another_thread(THREAD_LOCAL));
    no(on_another_thread(GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_fails(capturing, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    // Nor may another thread end it.
    begin(capturing, GLOBAL);
    let address = capturing as usize;
    std::thread::spawn(move || {
        ok(unsafe { cuCtxSetCurrent(context as CUcontext) });
        let result = unsafe { cuStreamEndCapture(address as CUstream, &mut null_mut()) };
        no(result, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    })
    .join()
    .unwrap();
    ok(unsafe { cuGraphDestroy(end(capturing)) });
}

#[test]
fn the_legacy_stream_beside_a_capture() {
    let _fake = Fake::new(&[]);
    let (blocking, free, at) = (stream(0), stream(NON_BLOCKING), alloc(64));
    no(unsafe { cuStreamBeginCapture_v2(null_mut(), RELAXED) }, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    begin(blocking, RELAXED);
    no(unsafe { cuStreamIsCapturing(null_mut(), &mut { NONE }) }, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    assert_eq!(status(blocking), ACTIVE);
    no(unsafe { cuMemsetD8Async(at, 0, 64, null_mut()) }, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    end_fails(blocking, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    // The capture of a non-blocking stream has nothing to do with it.
    begin(free, RELAXED);
    ok(unsafe { cuMemsetD8Async(at, 5, 64, null_mut()) });
    ok(unsafe { cuGraphDestroy(end(free)) });
    assert_eq!(download(at, 1), [5]);
}

#[test]
fn what_is_no_capture_cannot_be_ended() {
    let fake = Fake::new(&[]);
    let first = stream(NON_BLOCKING);
    no(unsafe { cuStreamEndCapture(first, &mut null_mut()) }, CUDA_ERROR_ILLEGAL_STATE);
    begin(first, RELAXED);
    no(unsafe { cuStreamBeginCapture_v2(first, RELAXED) }, CUDA_ERROR_ILLEGAL_STATE);
    // A stream that is destroyed takes its capture along.
    ok(unsafe { cuStreamDestroy_v2(first) });
    ok(unsafe { cuCtxSynchronize() });
    assert!(!fake.leaks().contains("graph"));
}

#[test]
fn user_objects_live_as_long_as_their_last_graph() {
    let _fake = Fake::new(&[]);
    let (stream, at) = (stream(NON_BLOCKING), alloc(64));
    let (gone, mut object) = (AtomicU32::new(0), null_mut());
    let data = (&raw const gone).cast_mut().cast();
    no(unsafe { cuUserObjectCreate(&mut object, data, Some(add_one), 1, 0) }, CUDA_ERROR_INVALID_VALUE);
    no(unsafe { cuUserObjectCreate(&mut object, data, Some(add_one), 0, 1) }, CUDA_ERROR_INVALID_VALUE);
    ok(unsafe { cuUserObjectCreate(&mut object, data, Some(add_one), 1, 1) });
    begin(stream, RELAXED);
    ok(unsafe { cuMemsetD8Async(at, 1, 64, stream) });
    let (mut state, mut graph) = (NONE, null_mut());
    ok(unsafe {
        cuStreamGetCaptureInfo_v2(stream, &mut state, null_mut(), &mut graph, null_mut(), null_mut())
    });
    no(unsafe { cuGraphRetainUserObject(graph, object, 2, 1) }, CUDA_ERROR_INVALID_VALUE);
    ok(unsafe { cuGraphRetainUserObject(graph, object, 1, 1) });
    no(unsafe { cuGraphDestroy(graph) }, CUDA_ERROR_INVALID_VALUE);
    graph = end(stream);
    let executable = instantiate(graph);
    ok(unsafe { cuGraphDestroy(graph) });
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(gone.load(SeqCst), 0);
    ok(unsafe { cuGraphLaunch(executable, stream) });
    ok(unsafe { cuGraphExecDestroy(executable) });
    for _ in 0..1000 {
        if gone.load(SeqCst) == 1 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert_eq!(gone.load(SeqCst), 1);
    no(unsafe { cuUserObjectRetain(object, 1) }, CUDA_ERROR_INVALID_VALUE);
    // An abandoned capture lets go, too.
    ok(unsafe { cuUserObjectCreate(&mut object, data, Some(add_one), 1, 1) });
    begin(stream, RELAXED);
    ok(unsafe {
        cuStreamGetCaptureInfo_v2(stream, &mut state, null_mut(), &mut graph, null_mut(), null_mut())
    });
    ok(unsafe { cuGraphRetainUserObject(graph, object, 1, 1) });
    no(unsafe { cuStreamSynchronize(stream) }, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_fails(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    for _ in 0..1000 {
        if gone.load(SeqCst) == 2 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert_eq!(gone.load(SeqCst), 2);
}

#[test]
fn memory_allocated_in_a_capture_is_the_graphs() {
    let fake = Fake::new(&[]);
    let (stream, target) = (stream(NON_BLOCKING), alloc(64));
    let before = fake.used(0);
    begin(stream, GLOBAL);
    let mut at = 0;
    ok(unsafe { cuMemAllocAsync(&mut at, 1 << 20, stream) });
    ok(unsafe { cuMemsetD8Async(at, 9, 64, stream) });
    ok(unsafe { cuMemcpyDtoDAsync_v2(target, at, 64, stream) });
    ok(unsafe { cuMemFreeAsync(at, stream) });
    let graph = end(stream);
    let executable = instantiate(graph);
    ok(unsafe { cuGraphDestroy(graph) });
    ok(unsafe { cuGraphLaunch(executable, stream) });
    ok(unsafe { cuStreamSynchronize(stream) });
    assert_eq!(download(target, 64), [9; 64]);
    assert!(fake.used(0) > before);
    ok(unsafe { cuGraphExecDestroy(executable) });
    ok(unsafe { cuCtxSynchronize() });
    assert_eq!(fake.used(0), before);
}
