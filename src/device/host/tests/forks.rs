//! A forked child gets an error from every call, at once, whatever the parent was doing.

use super::*;
use crate::device::CopyKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// Forks, runs `child` there and returns its exit status. The child ends itself after 10 s.
fn in_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs only what the test wants to prove safe there, and leaves with _exit.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: sets a timer whose signal ends the process: a hang becomes a failure.
            unsafe { libc::alarm(10) };
            // Unwinding would end this thread, the only one, and the process with status 0.
            let code = catch_unwind(AssertUnwindSafe(child)).unwrap_or(99);
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
        pid => {
            assert!(pid > 0);
            let mut status = 0;
            // SAFETY: `status` is valid for writes.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1000 + libc::WTERMSIG(status) }
        }
    }
}

#[test]
fn every_call_of_a_child_is_refused_at_once() {
    let (host, a, b) = host();
    let (s, event) = (a.streams().create().unwrap(), a.streams().event_create().unwrap());
    let block = a.alloc(4096).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Threads that hold every lock as often as they can while we fork.
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let (t, e) = (a.streams().create().unwrap(), a.streams().event_create().unwrap());
                    let p = a.alloc(512).unwrap();
                    a.streams().event_record(s, e).unwrap();
                    a.memset_async(s, block, 1, 4096).unwrap();
                    a.streams().event_destroy(e).unwrap();
                    a.streams().destroy(t).unwrap();
                    a.free(p, 512).unwrap();
                    let _ = host.stats(0);
                }
            });
        }
        for _ in 0..30 {
            let code = in_child(|| {
                let calls = [
                    a.memory_info().map(drop),
                    a.set_current(),
                    a.synchronize(),
                    a.alloc(512).map(drop),
                    a.free(block, 4096),
                    a.host_alloc(512, PLAIN).map(drop),
                    a.host_free(block, 512),
                    a.unified().unwrap().alloc(512).map(drop),
                    a.unified().unwrap().free(block, 512),
                    a.copy(CopyKind::DeviceToDevice, block, block, 1),
                    a.copy_async(s, CopyKind::DeviceToDevice, block, block, 1),
                    a.peers().unwrap().copy(&*b, block, block, 1),
                    a.peers().unwrap().copy_async(s, &*b, block, block, 1),
                    a.memset(block, 1, 1),
                    a.memset_async(s, block, 1, 1),
                    a.streams().create().map(drop),
                    a.streams().destroy(s),
                    a.streams().query(s).map(drop),
                    a.streams().synchronize(s),
                    a.streams().wait_event(s, event),
                    a.streams().callback(s, Box::new(|_| ())),
                    a.streams().event_create().map(drop),
                    a.streams().event_destroy(event),
                    a.streams().event_record(s, event),
                    a.streams().event_query(event).map(drop),
                    a.streams().event_synchronize(event),
                    a.mapping().unwrap().open_window(GRANULE).map(drop),
                    a.mapping().unwrap().close_window(),
                    a.mapping().unwrap().create(0, 1),
                    a.mapping().unwrap().release(0, 1),
                    a.mapping().unwrap().map(0, 0, 1),
                    a.mapping().unwrap().unmap(0, GRANULE),
                    host.initialize(),
                    host.finalize(),
                    host.device_count().map(drop),
                    host.open(0).map(drop),
                    host.stats(0).map(drop),
                ];
                let bad = |r: &Result<()>| !matches!(r, Err(e) if e.code() == Code::NotPermitted);
                match calls.iter().position(bad) {
                    Some(at) => 100 + at as i32,
                    None => i32::from(a.streams().exists(s)),
                }
            });
            assert_eq!(code, 0);
        }
        stop.store(true, Ordering::Relaxed);
    });
    a.synchronize().unwrap(); // the parent never noticed
    host.finalize().unwrap();
}

#[test]
fn a_child_may_drop_everything_and_start_its_own_type() {
    let (host, a, b) = host();
    let s = a.streams().create().unwrap();
    let block = a.alloc(4096).unwrap();
    if a.caps().contains(crate::device::Caps::MAPPING) {
        let window = a.mapping().unwrap().open_window(GRANULE).unwrap();
        a.mapping().unwrap().create(0, 1).unwrap();
        a.mapping().unwrap().map(0, 0, 1).unwrap();
        bytes(window, 8).fill(1);
    }
    let before = host.stats(0).unwrap();
    let plug = Plug::new(&*a, s);
    let slot = Mutex::new(Some((host, a, b)));
    let code = in_child(|| {
        drop(slot.lock().unwrap().take());
        let own = HostType::new("own", HostOptions { device_count: 1, capacity: 4 * MIB, mapping: true });
        let works = own.initialize().and_then(|()| {
            let device = own.open(0)?;
            let s = device.streams().create()?;
            let p = device.alloc(512)?;
            device.memset_async(s, p, 5, 512)?;
            device.streams().synchronize(s)?;
            let right = bytes(p, 512) == [5; 512];
            own.finalize()?;
            Ok(right)
        });
        if works == Ok(true) { 0 } else { 2 }
    });
    assert_eq!(code, 0);
    let (host, a, _b) = slot.into_inner().unwrap().unwrap();
    assert_eq!(host.stats(0).unwrap(), before, "the child took nothing away from the parent");
    plug.open();
    a.streams().synchronize(s).unwrap();
    a.free(block, 4096).unwrap();
}
