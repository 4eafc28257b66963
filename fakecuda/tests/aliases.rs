//! Memory at two addresses: what the guide's rule on virtual aliasing allows is silent, and what it forbids is counted.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// One granule of memory at two addresses, and one beside it at a third.
struct Twice {
    a: CUdeviceptr,
    b: CUdeviceptr,
    other: CUdeviceptr,
}

fn twice(fake: &Fake) -> Twice {
    let (mut at, mut handles) = (0, [0; 2]);
    ok(unsafe { cuMemAddressReserve(&mut at, 3 * GRANULE, 0, 0, 0) });
    for handle in &mut handles {
        ok(unsafe { cuMemCreate(handle, GRANULE, &prop(0), 0) });
    }
    let place = |index: usize| at + (index * GRANULE) as u64;
    for (index, handle) in [handles[0], handles[0], handles[1]].into_iter().enumerate() {
        ok(unsafe { cuMemMap(place(index), GRANULE, 0, handle, 0) });
    }
    ok(unsafe { cuMemSetAccess(at, 3 * GRANULE, &access(0), 1) });
    assert_eq!(fake.aliases(), 0);
    Twice { a: place(0), b: place(1), other: place(2) }
}

#[test]
fn work_one_after_the_other_may_use_both_addresses() {
    let fake = Fake::new(&[]);
    let (m, s, t) = (twice(&fake), stream(1), stream(1));
    let done = event(2);
    fake.kernel(s, &[], &[m.a], 0);
    fake.kernel(s, &[m.b], &[], 0);
    ok(unsafe { cuMemsetD8Async(m.b, 1, GRANULE, s) });
    ok(unsafe { cuMemcpyDtoDAsync_v2(m.other, m.a, GRANULE, s) });
    ok(unsafe { cuEventRecord(done, s) });
    ok(unsafe { cuStreamWaitEvent(t, done, 0) });
    fake.kernel(t, &[m.b], &[m.other], 0);
    ok(unsafe { cuCtxSynchronize() });
    // Reads alone may come from both.
    fake.kernel(s, &[m.a, m.b], &[m.other], 0);
    ok(unsafe { cuCtxSynchronize() });
    assert_eq!(fake.aliases(), 0, "{}", fake.log());
}

#[test]
fn one_operation_that_writes_must_not_use_both() {
    let fake = Fake::new(&[("keep_log", "1")]);
    let (m, s) = (twice(&fake), stream(1));
    fake.kernel(s, &[m.b], &[m.a], 0);
    ok(unsafe { cuStreamSynchronize(s) });
    assert_eq!(fake.aliases(), 1);
    let at = format!("alias: one kernel uses two addresses: one memory at {:#x} and at {:#x}", m.a, m.b);
    assert!(fake.log().contains(&at), "{}", fake.log());
    fake.kernel(s, &[], &[m.a, m.b], 0);
    // Bytes side by side in one line of the caches count, and those of different lines do not.
    ok(unsafe { cuMemcpyDtoDAsync_v2(m.a, m.b + 64, 64, s) });
    ok(unsafe { cuStreamSynchronize(s) });
    assert_eq!(fake.aliases(), 3, "{}", fake.log());
    ok(unsafe { cuMemcpyDtoDAsync_v2(m.a, m.b + 128, 128, s) });
    ok(unsafe { cuMemcpyDtoDAsync_v2(m.a, m.b + (GRANULE / 2) as u64, GRANULE / 2, s) });
    ok(unsafe { cuStreamSynchronize(s) });
    assert_eq!(fake.aliases(), 3, "{}", fake.log());
}

#[test]
fn a_dependent_launch_must_not_use_the_other_address() {
    let fake = Fake::new(&[("keep_log", "1")]);
    let (m, s) = (twice(&fake), stream(1));
    fake.kernel(s, &[], &[m.a], 0);
    fake.kernel(s, &[m.a], &[m.other], EARLY); // the same address is what such launches are made for
    ok(unsafe { cuStreamSynchronize(s) });
    assert_eq!(fake.aliases(), 0);
    fake.kernel(s, &[], &[m.a], 0);
    fake.kernel(s, &[m.b], &[m.other], EARLY);
    ok(unsafe { cuStreamSynchronize(s) });
    assert_eq!(fake.aliases(), 1);
    assert!(fake.log().contains("alias: a kernel begins before the grid that has written is over"));
    // A chain of early launches may all be on the device with the first; events between them do not end it.
    let done = event(2);
    fake.kernel(s, &[], &[m.a], 0);
    fake.kernel(s, &[], &[m.other], EARLY);
    ok(unsafe { cuEventRecord(done, s) });
    fake.kernel(s, &[], &[m.b], EARLY);
    ok(unsafe { cuStreamSynchronize(s) });
    assert_eq!(fake.aliases(), 2, "{}", fake.log());
    // A copy is over before the next kernel begins, and a plain launch ends a chain.
    ok(unsafe { cuMemsetD8Async(m.a, 1, GRANULE, s) });
    fake.kernel(s, &[m.b], &[], EARLY);
    fake.kernel(s, &[], &[m.a], EARLY);
    fake.kernel(s, &[], &[m.other], 0);
    fake.kernel(s, &[m.b], &[], EARLY);
    ok(unsafe { cuStreamSynchronize(s) });
    assert_eq!(fake.aliases(), 2, "{}", fake.log());
}

#[test]
fn a_grid_that_stays_sees_what_was_written_meanwhile_at_its_own_address_only() {
    let fake = Fake::new(&[("keep_log", "1")]);
    let (m, s, t) = (twice(&fake), stream(1), stream(1));
    for (reads, found) in [(m.a, 0), (m.other, 0), (m.b, 1)] {
        let number = fake.kernel(s, &[reads], &[], STAYS);
        while !fake.kernel_stays(s, number) {
            std::thread::yield_now();
        }
        ok(unsafe { cuMemsetD8Async(m.a, 7, 512, t) });
        ok(unsafe { cuStreamSynchronize(t) });
        no(unsafe { cuStreamQuery(s) }, CUDA_ERROR_NOT_READY);
        assert_eq!(fake.kernel_end(s, number), 0);
        ok(unsafe { cuStreamSynchronize(s) });
        assert_eq!(fake.aliases(), found, "{}", fake.log());
        assert_eq!(fake.kernel_end(s, number), 400);
    }
}

#[test]
fn edges_of_a_graph_are_programmatic_where_the_launch_was() {
    let fake = Fake::new(&[]);
    let (m, s, t) = (twice(&fake), stream(1), stream(1));
    let (forked, joined) = (event(2), event(2));
    for (early, other_stream, found) in [(0, false, 0), (EARLY, false, 1), (EARLY, true, 0)] {
        let before = fake.aliases();
        ok(unsafe { cuStreamBeginCapture_v2(s, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) });
        if other_stream {
            // What comes by an event is a full edge.
            ok(unsafe { cuEventRecord(forked, s) });
            ok(unsafe { cuStreamWaitEvent(t, forked, 0) });
            fake.kernel(t, &[], &[m.a], 0);
            ok(unsafe { cuEventRecord(joined, t) });
            fake.kernel(s, &[], &[m.other], 0);
            ok(unsafe { cuStreamWaitEvent(s, joined, 0) });
        } else {
            fake.kernel(s, &[], &[m.a], 0);
        }
        fake.kernel(s, &[m.b], &[], early);
        assert_eq!(fake.try_kernel(s, &[m.b], &[], STAYS), Err(801));
        let (mut graph, mut executable) = (null_mut(), null_mut());
        ok(unsafe { cuStreamEndCapture(s, &mut graph) });
        ok(unsafe { cuGraphInstantiateWithFlags(&mut executable, graph, 0) });
        for _ in 0..2 {
            ok(unsafe { cuGraphLaunch(executable, s) });
        }
        ok(unsafe { cuStreamSynchronize(s) });
        assert_eq!(fake.aliases() - before, 2 * found);
        ok(unsafe { cuGraphExecDestroy(executable) });
        ok(unsafe { cuGraphDestroy(graph) });
    }
}

#[test]
fn a_kernel_needs_memory_and_access() {
    let fake = Fake::new(&[]);
    let (m, s) = (twice(&fake), stream(1));
    assert_eq!(fake.try_kernel(s, &[], &[m.a], 4), Err(1));
    assert_eq!(fake.kernel_end(s, 1), 400);
    fake.kernel(s, &[], &[m.other + GRANULE as u64], 0);
    no(unsafe { cuStreamSynchronize(s) }, CUDA_ERROR_ILLEGAL_ADDRESS);
}

/// What waits behind a grid begins when that ends, though the threads that run work have gone meanwhile: they stay for 200 ms.
#[test]
fn what_waits_behind_a_grid_that_stays_begins_when_it_ends() {
    unsafe extern "C" fn set(flag: *mut std::ffi::c_void) {
        unsafe { &*flag.cast::<std::sync::atomic::AtomicBool>() }.store(true, SeqCst);
    }
    let fake = Fake::new(&[]);
    let (m, s) = (twice(&fake), stream(1));
    let called = std::sync::atomic::AtomicBool::new(false);
    for call in [false, true] {
        let number = fake.kernel(s, &[m.a], &[], STAYS);
        while !fake.kernel_stays(s, number) {
            std::thread::yield_now();
        }
        match call {
            true => ok(unsafe { cuLaunchHostFunc(s, Some(set), (&raw const called).cast_mut().cast()) }),
            false => ok(unsafe { cuMemsetD8Async(m.b, 7, 512, s) }),
        }
        std::thread::sleep(Duration::from_millis(600));
        assert_eq!(fake.kernel_end(s, number), 0);
        let begun = Instant::now();
        while unsafe { cuStreamQuery(s) } == CUDA_ERROR_NOT_READY {
            assert!(begun.elapsed() < Duration::from_secs(5), "nobody runs what waits");
            std::thread::yield_now();
        }
    }
    assert!(called.load(SeqCst));
}
