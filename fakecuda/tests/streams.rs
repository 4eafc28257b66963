//! Streams and events: order, waits, the default streams, host callbacks, work that outlives its memory.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

const NON_BLOCKING: u32 = 1;
const LEGACY: CUstream = 1 as CUstream;
const PER_THREAD: CUstream = 2 as CUstream;

/// A host function that waits until its flag is set: the stream stays busy.
unsafe extern "C" fn wait_for_flag(flag: *mut c_void) {
    let flag = unsafe { &*flag.cast::<AtomicBool>() };
    while !flag.load(SeqCst) {
        std::thread::yield_now();
    }
}

unsafe extern "C" fn add_one(counter: *mut c_void) {
    unsafe { &*counter.cast::<AtomicU32>() }.fetch_add(1, SeqCst);
}

fn block(stream: CUstream, flag: &AtomicBool) {
    ok(unsafe { cuLaunchHostFunc(stream, Some(wait_for_flag), (&raw const *flag).cast_mut().cast()) });
}

fn count(stream: CUstream, counter: &AtomicU32) {
    ok(unsafe { cuLaunchHostFunc(stream, Some(add_one), (&raw const *counter).cast_mut().cast()) });
}

/// A moment in which work could run that should not.
fn a_while() {
    std::thread::sleep(Duration::from_millis(30));
}

#[test]
fn work_of_a_stream_runs_in_order() {
    let _fake = Fake::new(&[]);
    let (at, stream) = (alloc(4096), stream(NON_BLOCKING));
    let (one, mut two) = ([1_u8; 64], [0_u8; 64]);
    for value in 0..100 {
        ok(unsafe { cuMemsetD8Async(at, value, 64, stream) });
    }
    ok(unsafe { cuMemcpyHtoDAsync_v2(at + 32, one.as_ptr().cast(), 32, stream) });
    ok(unsafe { cuMemcpyDtoHAsync_v2(two.as_mut_ptr().cast(), at, 64, stream) });
    ok(unsafe { cuStreamSynchronize(stream) });
    assert_eq!((two[0], two[31], two[32], two[63]), (99, 99, 1, 1));
    ok(unsafe { cuMemsetD32Async(at, 0x0102_0304, 4, stream) });
    ok(unsafe { cuMemsetD16Async(at + 16, 0x0506, 2, stream) });
    ok(unsafe { cuStreamSynchronize(stream) });
    assert_eq!(download(at + 12, 8), [4, 3, 2, 1, 6, 5, 6, 5]);
}

#[test]
fn a_copy_to_pageable_memory_returns_when_it_is_done() {
    let fake = Fake::new(&[]);
    let (at, stream) = (alloc(64), stream(NON_BLOCKING));
    let (mut bytes, mut pinned) = ([0_u8; 64], null_mut());
    ok(unsafe { cuMemHostAlloc(&mut pinned, 64, 0) });
    fake.hold(true);
    ok(unsafe { cuMemsetD8Async(at, 7, 64, stream) });
    ok(unsafe { cuMemcpyDtoHAsync_v2(pinned, at, 64, stream) });
    no(unsafe { cuStreamQuery(stream) }, CUDA_ERROR_NOT_READY);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            a_while();
            fake.hold(false);
        });
        ok(unsafe { cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), at, 64, stream) });
    });
    assert_eq!(bytes, [7; 64]);
    ok(unsafe { cuStreamQuery(stream) });
}

#[test]
fn held_work_is_in_flight() {
    let fake = Fake::new(&[]);
    let (at, stream, event) = (alloc(64), stream(NON_BLOCKING), event(0));
    upload(at, &[7; 64]);
    fake.hold(true);
    ok(unsafe { cuMemsetD8Async(at, 1, 64, stream) });
    ok(unsafe { cuEventRecord(event, stream) });
    a_while();
    no(unsafe { cuStreamQuery(stream) }, CUDA_ERROR_NOT_READY);
    no(unsafe { cuEventQuery(event) }, CUDA_ERROR_NOT_READY);
    assert_eq!(fake.read(0, at, 1), Ok(vec![7]));
    fake.hold(false);
    ok(unsafe { cuEventSynchronize(event) });
    ok(unsafe { cuStreamQuery(stream) });
    assert_eq!(fake.read(0, at, 1), Ok(vec![1]));
}

#[test]
fn an_event_holds_another_stream_back() {
    let _fake = Fake::new(&[]);
    let (first, second) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
    let (flag, counter, event) = (AtomicBool::new(false), AtomicU32::new(0), event(0));
    // Never recorded: complete, and no wait.
    ok(unsafe { cuEventQuery(event) });
    ok(unsafe { cuStreamWaitEvent(second, event, 0) });
    count(second, &counter);
    ok(unsafe { cuStreamSynchronize(second) });
    assert_eq!(counter.load(SeqCst), 1);
    block(first, &flag);
    ok(unsafe { cuEventRecord(event, first) });
    ok(unsafe { cuStreamWaitEvent(second, event, 0) });
    count(second, &counter);
    a_while();
    assert_eq!(counter.load(SeqCst), 1);
    // The wait is for the record that was there; a newer one of the same event changes nothing.
    ok(unsafe { cuEventRecord(event, second) });
    ok(unsafe { cuEventDestroy_v2(event) });
    flag.store(true, SeqCst);
    ok(unsafe { cuStreamSynchronize(second) });
    assert_eq!(counter.load(SeqCst), 2);
    ok(unsafe { cuStreamDestroy_v2(first) });
    ok(unsafe { cuStreamDestroy_v2(second) });
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let _fake = Fake::new(&[]);
    let (blocking, free) = (stream(0), stream(NON_BLOCKING));
    let (flag, legacy, others, aside) =
        (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    block(blocking, &flag);
    count(null_mut(), &legacy);
    let other = stream(0);
    count(other, &others);
    count(PER_THREAD, &others);
    count(free, &aside);
    ok(unsafe { cuStreamSynchronize(free) });
    a_while();
    assert_eq!(aside.load(SeqCst), 1, "a non-blocking stream takes no part");
    assert_eq!(legacy.load(SeqCst), 0, "the legacy stream waits for the blocking one");
    assert_eq!(others.load(SeqCst), 0, "other blocking streams wait for the legacy one");
    no(unsafe { cuStreamQuery(LEGACY) }, CUDA_ERROR_NOT_READY);
    flag.store(true, SeqCst);
    ok(unsafe { cuCtxSynchronize() });
    assert_eq!((legacy.load(SeqCst), others.load(SeqCst)), (1, 2));
}

#[test]
fn two_blocking_streams_do_not_wait_for_each_other() {
    let _fake = Fake::new(&[]);
    let (first, second) = (stream(0), stream(0));
    let (flag, counter) = (AtomicBool::new(false), AtomicU32::new(0));
    block(first, &flag);
    count(second, &counter);
    ok(unsafe { cuStreamSynchronize(second) });
    assert_eq!(counter.load(SeqCst), 1);
    // But waiting for the legacy stream waits for both.
    let waiter = std::thread::spawn({
        let mut context = null_mut();
        ok(unsafe { cuCtxGetCurrent(&mut context) });
        let context = context as usize;
        move || {
            ok(unsafe { cuCtxSetCurrent(context as CUcontext) });
            ok(unsafe { cuStreamSynchronize(null_mut()) });
        }
    });
    a_while();
    assert!(!waiter.is_finished());
    flag.store(true, SeqCst);
    waiter.join().unwrap();
}

#[test]
fn each_thread_has_its_own_default_stream() {
    let _fake = Fake::new(&[]);
    let mut mine = 0;
    ok(unsafe { cuStreamGetId(PER_THREAD, &mut mine) });
    let mut context = null_mut();
    ok(unsafe { cuCtxGetCurrent(&mut context) });
    let context = context as usize;
    let other = std::thread::spawn(move || {
        let mut id = 0;
        no(unsafe { cuStreamGetId(PER_THREAD, &mut id) }, CUDA_ERROR_INVALID_CONTEXT);
        ok(unsafe { cuCtxSetCurrent(context as CUcontext) });
        ok(unsafe { cuStreamGetId(PER_THREAD, &mut id) });
        id
    });
    assert_ne!(other.join().unwrap(), mine);
    let (mut legacy, mut null) = (0, 0);
    ok(unsafe { cuStreamGetId(LEGACY, &mut legacy) });
    ok(unsafe { cuStreamGetId(null_mut(), &mut null) });
    assert_eq!(legacy, null);
}

#[test]
fn a_destroyed_stream_finishes_and_its_handle_is_gone() {
    let fake = Fake::new(&[("ended", "refuse")]);
    let stream = stream(NON_BLOCKING);
    let (flag, counter) = (AtomicBool::new(false), AtomicU32::new(0));
    block(stream, &flag);
    count(stream, &counter);
    ok(unsafe { cuStreamDestroy_v2(stream) });
    no(unsafe { cuStreamSynchronize(stream) }, CUDA_ERROR_INVALID_HANDLE);
    no(unsafe { cuStreamDestroy_v2(stream) }, CUDA_ERROR_INVALID_HANDLE);
    assert!(fake.leaks().contains("destroyed, still busy"));
    flag.store(true, SeqCst);
    ok(unsafe { cuCtxSynchronize() });
    assert_eq!(counter.load(SeqCst), 1);
    no(unsafe { cuStreamDestroy_v2(LEGACY) }, CUDA_ERROR_INVALID_HANDLE);
    no(unsafe { cuStreamDestroy_v2(null_mut()) }, CUDA_ERROR_INVALID_HANDLE);
}

unsafe extern "C" fn call_the_driver(result: *mut c_void) {
    let code = unsafe { cuCtxSynchronize() } as u32;
    unsafe { &*result.cast::<AtomicU32>() }.store(code, SeqCst);
}

#[test]
fn a_host_function_may_not_call_the_driver() {
    let _fake = Fake::new(&[]);
    let stream = stream(NON_BLOCKING);
    let code = AtomicU32::new(0);
    ok(unsafe { cuLaunchHostFunc(stream, Some(call_the_driver), (&raw const code).cast_mut().cast()) });
    ok(unsafe { cuStreamSynchronize(stream) });
    assert_eq!(code.load(SeqCst), 800);
    no(unsafe { cuLaunchHostFunc(stream, None, null_mut()) }, CUDA_ERROR_INVALID_VALUE);
}

unsafe extern "C" fn keep_status(_stream: CUstream, status: CUresult, to: *mut c_void) {
    unsafe { &*to.cast::<AtomicU32>() }.store(status as u32, SeqCst);
}

#[test]
fn memory_that_goes_away_under_work_is_a_sticky_error() {
    let fake = Fake::new(&[]);
    let (mut at, mut handle, stream) = (0, 0, stream(NON_BLOCKING));
    ok(unsafe { cuMemAddressReserve(&mut at, GRANULE, 0, 0, 0) });
    ok(unsafe { cuMemCreate(&mut handle, GRANULE, &prop(0), 0) });
    ok(unsafe { cuMemMap(at, GRANULE, 0, handle, 0) });
    ok(unsafe { cuMemSetAccess(at, GRANULE, &access(0), 1) });
    fake.hold(true);
    ok(unsafe { cuMemsetD8Async(at, 1, GRANULE, stream) });
    let status = AtomicU32::new(0);
    ok(unsafe { cuStreamAddCallback(stream, Some(keep_status), (&raw const status).cast_mut().cast(), 0) });
    ok(unsafe { cuMemUnmap(at, GRANULE) });
    fake.hold(false);
    no(unsafe { cuStreamSynchronize(stream) }, CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(status.load(SeqCst), 700);
    no(unsafe { cuMemAlloc_v2(&mut at, 1) }, CUDA_ERROR_ILLEGAL_ADDRESS);
    no(unsafe { cuCtxSynchronize() }, CUDA_ERROR_ILLEGAL_ADDRESS);
    // What touches no context goes on.
    ok(unsafe { cuDeviceGetCount(&mut 0) });
}

#[test]
fn freeing_memory_waits_for_the_work_on_it() {
    let _fake = Fake::new(&[]);
    let (at, stream) = (alloc(MIB), stream(NON_BLOCKING));
    let (flag, counter) = (AtomicBool::new(false), AtomicU32::new(0));
    block(stream, &flag);
    ok(unsafe { cuMemsetD8Async(at, 1, MIB, stream) });
    count(stream, &counter);
    let releaser = std::thread::scope(|scope| {
        scope.spawn(|| {
            a_while();
            flag.store(true, SeqCst);
        });
        let begin = Instant::now();
        ok(unsafe { cuMemFree_v2(at) });
        begin.elapsed()
    });
    assert!(releaser >= Duration::from_millis(25));
    assert_eq!(counter.load(SeqCst), 1);
    ok(unsafe { cuCtxSynchronize() });
}

#[test]
fn an_event_can_stand_for_a_whole_context() {
    let fake = Fake::new(&[("devices", "2")]);
    let (first, second, third) = (stream(NON_BLOCKING), stream(NON_BLOCKING), stream(NON_BLOCKING));
    let (flags, counter, all) = ([const { AtomicBool::new(false) }; 2], AtomicU32::new(0), event(2));
    block(first, &flags[0]);
    block(second, &flags[1]);
    ok(unsafe { cuCtxRecordEvent(null_mut(), all) });
    ok(unsafe { cuStreamWaitEvent(third, all, 0) });
    count(third, &counter);
    flags[0].store(true, SeqCst);
    a_while();
    no(unsafe { cuEventQuery(all) }, CUDA_ERROR_NOT_READY);
    assert_eq!(counter.load(SeqCst), 0);
    flags[1].store(true, SeqCst);
    ok(unsafe { cuEventSynchronize(all) });
    ok(unsafe { cuCtxWaitEvent(null_mut(), all) });
    ok(unsafe { cuStreamSynchronize(third) });
    assert_eq!(counter.load(SeqCst), 1);
    no(unsafe { cuCtxRecordEvent(fake.primary(1), all) }, CUDA_ERROR_INVALID_HANDLE);
    let mode = CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
    ok(unsafe { cuStreamBeginCapture_v2(first, mode) });
    no(unsafe { cuCtxRecordEvent(null_mut(), all) }, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let result = unsafe { cuStreamEndCapture(first, &mut null_mut()) };
    no(result, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

#[test]
fn events_measure_and_refuse_to() {
    let _fake = Fake::new(&[("ended", "refuse")]);
    let stream = stream(NON_BLOCKING);
    let (start, end, silent) = (event(0), event(0), event(2));
    let mut time = 0.0;
    no(unsafe { cuEventElapsedTime(&mut time, start, end) }, CUDA_ERROR_INVALID_HANDLE);
    let flag = AtomicBool::new(false);
    ok(unsafe { cuEventRecord(start, stream) });
    block(stream, &flag);
    ok(unsafe { cuEventRecord(end, stream) });
    no(unsafe { cuEventElapsedTime(&mut time, start, end) }, CUDA_ERROR_NOT_READY);
    a_while();
    flag.store(true, SeqCst);
    ok(unsafe { cuEventSynchronize(end) });
    ok(unsafe { cuEventElapsedTime(&mut time, start, end) });
    assert!((25.0..5000.0).contains(&time), "{time}");
    ok(unsafe { cuEventRecord(silent, stream) });
    no(unsafe { cuEventElapsedTime(&mut time, start, silent) }, CUDA_ERROR_INVALID_HANDLE);
    ok(unsafe { cuEventDestroy_v2(end) });
    no(unsafe { cuEventDestroy_v2(end) }, CUDA_ERROR_INVALID_HANDLE);
    no(unsafe { cuEventRecord(end, stream) }, CUDA_ERROR_INVALID_HANDLE);
    no(unsafe { cuEventQuery(end) }, CUDA_ERROR_INVALID_HANDLE);
    no(unsafe { cuStreamWaitEvent(stream, end, 0) }, CUDA_ERROR_INVALID_HANDLE);
    let mut bad = null_mut();
    no(unsafe { cuEventCreate(&mut bad, 64) }, CUDA_ERROR_INVALID_VALUE);
    no(unsafe { cuEventCreate(&mut bad, 4) }, CUDA_ERROR_INVALID_VALUE);
    no(unsafe { cuStreamCreate(&mut bad.cast(), 2) }, CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn streams_and_events_of_another_device() {
    let fake = Fake::new(&[("devices", "2")]);
    let (here, event_here) = (stream(NON_BLOCKING), event(0));
    let second = fake.primary(1);
    ok(unsafe { cuCtxPushCurrent_v2(second) });
    let (there, event_there) = (stream(NON_BLOCKING), event(0));
    no(unsafe { cuEventRecord(event_here, there) }, CUDA_ERROR_INVALID_HANDLE);
    ok(unsafe { cuEventRecord(event_there, there) });
    // Waiting across devices is allowed; a kernel, which memset is, is not.
    ok(unsafe { cuStreamWaitEvent(here, event_there, 0) });
    ok(unsafe { cuEventSynchronize(event_there) });
    let at = alloc(64);
    no(unsafe { cuMemsetD8Async(at, 1, 64, here) }, CUDA_ERROR_INVALID_HANDLE);
    ok(unsafe { cuMemsetD8Async(at, 1, 64, there) });
    let (mut context, mut device) = (null_mut(), -1);
    ok(unsafe { cuStreamGetCtx(there, &mut context) });
    assert_eq!(context, second);
    let (mut again, mut green) = (null_mut(), std::ptr::dangling_mut());
    ok(unsafe { cuStreamGetCtx_v2(there, &mut again, &mut green) });
    assert_eq!((again, green), (second, null_mut()));
    // The special handles stand for streams of the current context.
    ok(unsafe { cuStreamGetCtx_v2(null_mut(), &mut again, &mut green) });
    assert_eq!(again, second);
    ok(unsafe { cuStreamGetDevice(here, &mut device) });
    assert_eq!(device, 0);
    ok(unsafe { cuCtxPopCurrent_v2(&mut context) });
    assert_eq!(context, second);
}

/// The per-thread default stream is local to the thread ("Stream synchronization behavior" in the driver API): what one
/// thread records or waits for there says nothing of another's.
#[test]
fn an_event_in_one_threads_own_stream_says_nothing_of_anothers() {
    let fake = Fake::new(&[]);
    let context = fake.primary(0) as usize;
    let (flag, counter) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|threads| {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (flag, counter) = (&flag, &counter);
        threads.spawn(move || {
            ok(unsafe { cuCtxSetCurrent(context as CUcontext) });
            block(PER_THREAD, flag);
            count(PER_THREAD, counter);
            tell.send(()).unwrap();
            ended.recv().unwrap();
            ok(unsafe { cuStreamSynchronize(PER_THREAD) });
        });
        told.recv().unwrap();
        let (own, legacy) = (event(2), event(2));
        ok(unsafe { cuEventRecord(own, PER_THREAD) });
        ok(unsafe { cuEventQuery(own) });
        ok(unsafe { cuStreamSynchronize(PER_THREAD) });
        // The legacy stream waits for those of all threads.
        ok(unsafe { cuEventRecord(legacy, LEGACY) });
        no(unsafe { cuEventQuery(legacy) }, CUDA_ERROR_NOT_READY);
        assert_eq!(counter.load(SeqCst), 0);
        flag.store(true, SeqCst);
        ok(unsafe { cuEventSynchronize(legacy) });
        assert_eq!(counter.load(SeqCst), 1);
        end.send(()).unwrap();
    });
}

/// Pinned memory goes when its own context has come to rest; work of another device that still uses it fails there.
#[test]
fn work_on_pinned_memory_that_has_gone_fails() {
    let fake = Fake::new(&[("devices", "2")]);
    let mut pinned = null_mut();
    ok(unsafe { cuMemHostAlloc(&mut pinned, 4096, 1) });
    let second = fake.primary(1);
    ok(unsafe { cuCtxPushCurrent_v2(second) });
    let (flag, there, at) = (AtomicBool::new(false), stream(NON_BLOCKING), alloc(4096));
    block(there, &flag);
    ok(unsafe { cuMemcpyHtoDAsync_v2(at, pinned, 4096, there) });
    ok(unsafe { cuCtxPopCurrent_v2(&mut null_mut()) });
    ok(unsafe { cuMemFreeHost(pinned) });
    flag.store(true, SeqCst);
    no(unsafe { cuStreamSynchronize(there) }, CUDA_ERROR_ILLEGAL_ADDRESS);
}

#[test]
fn a_thread_without_a_context_is_refused() {
    let _fake = Fake::new(&[]);
    let stream = stream(NON_BLOCKING) as usize;
    std::thread::spawn(move || {
        let stream = stream as CUstream;
        no(unsafe { cuStreamSynchronize(stream) }, CUDA_ERROR_INVALID_CONTEXT);
        no(unsafe { cuMemAlloc_v2(&mut 0, 1) }, CUDA_ERROR_INVALID_CONTEXT);
        no(unsafe { cuCtxSynchronize() }, CUDA_ERROR_INVALID_CONTEXT);
        no(unsafe { cuCtxGetDevice(&mut 0) }, CUDA_ERROR_INVALID_CONTEXT);
        let mut context = 8 as CUcontext;
        ok(unsafe { cuCtxGetCurrent(&mut context) });
        assert!(context.is_null());
        no(unsafe { cuCtxPopCurrent_v2(&mut context) }, CUDA_ERROR_INVALID_CONTEXT);
        no(unsafe { cuCtxSetCurrent(64 as CUcontext) }, CUDA_ERROR_INVALID_CONTEXT);
    })
    .join()
    .unwrap();
}

/// Who waits runs work, but calls no host functions. One that becomes ready by it is called, though the threads that call them have
/// gone meanwhile: they stay for 200 ms.
#[test]
fn a_host_function_behind_what_the_waiting_thread_runs_is_called() {
    unsafe extern "C" fn takes_long(_: *mut c_void) {
        std::thread::sleep(Duration::from_millis(600));
    }
    let fake = Fake::new(&[]);
    let (s, mut context) = (stream(NON_BLOCKING), null_mut());
    ok(unsafe { cuCtxGetCurrent(&mut context) });
    let called: &AtomicU32 = Box::leak(Box::default());
    let stays = fake.kernel(s, &[], &[], STAYS);
    while !fake.kernel_stays(s, stays) {
        std::thread::yield_now();
    }
    fake.launch(s, takes_long);
    count(s, called);
    let (context, waited_for) = (context as usize, s as usize);
    let waiter = std::thread::spawn(move || {
        ok(unsafe { cuCtxSetCurrent(context as CUcontext) });
        ok(unsafe { cuStreamSynchronize(waited_for as CUstream) });
    });
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(fake.kernel_end(s, stays), 0);
    let begun = Instant::now();
    while !waiter.is_finished() {
        assert!(begun.elapsed() < Duration::from_secs(5), "nobody calls the host function");
        a_while();
    }
    waiter.join().unwrap();
    assert_eq!(called.load(SeqCst), 1);
}
