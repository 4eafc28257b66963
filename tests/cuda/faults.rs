//! Makes each driver call of the device type `cuda` fail, one after the other: the error names the call, or the library
//! recovers; nothing is lost, and everything works afterwards.

use crate::apart::apart_for;
use crate::cuda::*;
use millpond::runtime::{self, CopyKind, PoolId, StreamKind};
use millpond::{Code, Error, Result};
use std::collections::BTreeSet;

const POOL: PoolId = PoolId::DEFAULT;
/// CUDA_ERROR_LAUNCH_FAILED, here as an ordinary failure; and CUDA_ERROR_OUT_OF_MEMORY.
const FAILED: u32 = 719;
const NO_MEMORY: u32 = 2;
/// [s] that a test may take on a machine that does much else.
const LONGEST: u64 = 900;

/// Uses everything once; the first failure ends it, with what it has left to the end of the library.
fn program() -> Result<()> {
    let d = runtime::device("cuda", 0)?;
    let peer = runtime::device("cuda", 1)?;
    d.info()?;
    let s = d.streams().create()?;
    let t = d.streams().create()?;
    let e = d.events().create()?;
    let a = d.memory().alloc(POOL, s, 5 * MIB)?;
    let b = d.memory().alloc(POOL, s, 5000)?;
    d.memset(a, 1, MIB)?;
    d.memset_async(s, a, 2, MIB)?;
    let mut bytes = vec![0u8; 4096];
    d.write(a, &bytes)?;
    d.read(a, &mut bytes)?;
    let host = bytes.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: `bytes` outlives the stream's work, which is waited for below or has failed.
    unsafe {
        d.copy(CopyKind::DeviceToDevice, a, a + MIB, 4096)?;
        d.copy_async(s, CopyKind::DeviceToDevice, a, a + MIB, 4096)?;
        d.copy_async(s, CopyKind::HostToDevice, a, host, 4096)?;
        let down = d.copy_async(s, CopyKind::DeviceToHost, host, a, 4096);
        d.streams().synchronize(s).or(Ok(()))?;
        down?;
    }
    d.streams().query(s)?;
    d.events().record(s, e)?;
    d.events().query(e)?;
    d.streams().wait_event(t, e)?;
    d.events().synchronize(e)?;
    d.streams().callback(t, Box::new(|_| {}))?;
    d.streams().synchronize(t)?;
    let c = peer.memory().alloc(POOL, 0, 5 * MIB)?;
    d.copy_peer(&peer, c, a, MIB)?;
    d.copy_peer_async(s, &peer, c, a, MIB)?;
    let h = d.host_memory().alloc(MIB)?;
    d.host_memory().free(h)?;
    // Memory of its own each time: where the end of a registration fails, it stays.
    let own = Box::leak(Box::new([0_u8; 4096])).as_mut_ptr().expose_provenance() as u64;
    d.host_memory().register(own, 4096)?;
    d.host_memory().unregister(own)?;
    let apart =
        d.streams().create_with(StreamKind { priority: d.streams().priorities()?.1, non_blocking: true })?;
    d.streams().destroy(apart)?;
    let m = d.unified_memory().alloc(MIB)?;
    d.unified_memory().free(m)?;
    d.memory().record_stream(b, t)?;
    d.memory().free(b, Some(s), None)?;
    d.memory().free(a, Some(s), None)?;
    let u = d.memory().alloc_unordered(POOL, 3 * MIB)?;
    d.memory().free(u, None, None)?;
    // Scattered granules, shown together and taken apart again.
    let many: Vec<u64> = (0..10).map(|_| d.memory().alloc(POOL, s, GRANULE)).collect::<Result<_>>()?;
    for x in many.iter().step_by(2) {
        d.memory().free(*x, Some(s), None)?;
    }
    let big = d.memory().alloc(POOL, s, 4 * GRANULE)?;
    d.memset(big, 5, 4 * GRANULE)?;
    d.memory().free(big, Some(s), None)?;
    d.memory().empty_cache(None)?;
    for x in many.iter().skip(1).step_by(2) {
        d.memory().free(*x, Some(s), None)?;
    }
    d.streams().destroy(s)?;
    d.events().destroy(e)?;
    d.synchronize()?;
    peer.memory().free(c, None, None)?;
    d.memory().empty_cache(None)
}

/// The functions that a whole life of the library calls, and how often.
fn calls_of(fake: &Fake) -> Vec<(String, u64)> {
    let names: BTreeSet<String> = fake
        .log()
        .lines()
        .filter_map(|l| l.split('(').next().map(str::to_owned))
        .filter(|n| n.starts_with("cu"))
        .collect();
    names.into_iter().map(|n| (n.clone(), fake.calls(&n))).collect()
}

/// A fake driver, and a library with these options.
fn start(settings: &[(&str, &str)], options: &str) -> Fake {
    let fake = Fake::new(settings, |_| {});
    runtime::set_default_options(Some("cuda"), None, options).unwrap();
    fake
}

fn every_call_fails(settings: &[(&str, &str)], options: &str) {
    let mut all = vec![("capacity", "256M"), ("devices", "2"), ("keep_log", "1")];
    all.extend_from_slice(settings);
    let calls = {
        let fake = start(&all, options);
        fake.calls_reset();
        program().unwrap();
        runtime::finalize().unwrap();
        let calls = calls_of(&fake);
        fake.end_quietly();
        calls
    };
    assert!(calls.len() > 30, "{calls:?}");
    let mut seen = 0;
    for (name, count) in &calls {
        // The first few, and the last: what comes between is more of the same.
        for nth in (1..=*count).filter(|n| *n <= 6 || n == count) {
            for code in [FAILED, NO_MEMORY] {
                let fake = start(&all, options);
                fake.fail(name, nth, code, false);
                let result = program();
                check(name, nth, result, &mut seen);
                fake.fail_clear();
                // Whatever it was, the library is whole: the same program runs again in the same life.
                if let Err(e) = program() {
                    // Only a start that failed is final until the next one.
                    assert!(name == "cuInit" || name == "cuDeviceGetCount", "{name} {nth} {code}: {e}");
                }
                let _ = runtime::finalize();
                assert_eq!(fake.leaks(), "", "{name}, call {nth}, failed with {code}");
                fake.end_quietly();
            }
        }
    }
    assert!(seen > 60, "only {seen} failures came out");
    // And at the end of the library, where everything that is left goes back. What the driver would not
    // take is not asked for twice, and is all that is left.
    for (name, count) in &calls {
        for nth in (1..=*count).rev().take(2) {
            let fake = start(&all, options);
            program().unwrap();
            let made = fake.calls(name);
            let d = runtime::device("cuda", 0).unwrap();
            let _left = (
                d.memory().alloc(POOL, 0, 3 * MIB),
                d.host_memory().alloc(100),
                d.unified_memory().alloc(100),
                d.events().create(),
            );
            fake.fail(name, 1, FAILED, false);
            let ended = runtime::finalize();
            if let Err(e) = &ended {
                assert!(e.message().contains(name.as_str()), "{name}: {e}");
            } else {
                assert_eq!(fake.leaks(), "", "{name} at the end, after {made} calls, {nth}");
            }
            fake.fail_clear();
            assert!(fake.leaks().lines().count() <= 2, "{name} at the end:\n{}", fake.leaks());
            fake.end_quietly();
        }
    }
}

#[track_caller]
fn check(name: &str, nth: u64, result: Result<()>, seen: &mut u32) {
    // A call whose failure is made good is fine; one that comes out must say what failed.
    let Err(e) = result else { return };
    *seen += 1;
    let says = |e: &Error| e.message().contains(name);
    assert!(says(&e), "call {nth} of {name} failed, and the library said: {e}");
    assert!(!matches!(e.code(), Code::Internal), "{e}");
}

#[test]
fn every_call_of_a_program_with_mapping() {
    apart_for(LONGEST, || every_call_fails(&[], ""));
}

#[test]
fn every_call_of_a_program_without_mapping() {
    apart_for(LONGEST, || every_call_fails(&[("no_vmm", "1")], ""));
}

#[test]
fn every_call_of_a_program_with_an_old_driver() {
    let options = "pinned_use_cuda_host_register:True,pinned_num_register_threads:2";
    apart_for(LONGEST, || every_call_fails(&[("driver", "11040"), ("no_peer", "1")], options));
}

/// Lets the device go on after a moment, while `body` runs.
fn going_on_later(fake: &Fake, body: impl FnOnce()) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            fake.hold(false);
        });
        body();
    });
}

/// A driver that has an event for the whole device, and one that has none, but checks handles.
const DRIVERS: [&[(&str, &str)]; 2] = [&[], &[("driver", "11040"), ("ended", "refuse")]];

#[test]
fn a_block_recorded_on_a_stream_that_ended_without_a_word_waits_for_its_work() {
    for settings in DRIVERS {
        let (fake, d) = one(settings);
        let m = d.memory();
        let (s, t) = (fake.foreign_stream(0, 1), d.streams().create().unwrap());
        let b = m.alloc(POOL, t, 3 * MIB).unwrap();
        m.record_stream(b, s).unwrap();
        fake.hold(true);
        d.memset_async(s, b, 9, 3 * MIB).unwrap();
        fake.foreign_stream_end(s);
        going_on_later(&fake, || {
            m.free(b, Some(t), None).unwrap();
            let c = m.alloc(POOL, t, 3 * MIB).unwrap();
            fake.write(0, c, &vec![7; 3 << 20]).unwrap();
            while fake.read(0, b, 1) != Ok(vec![9]) && c != b {
                std::thread::yield_now();
            }
            d.synchronize().unwrap();
            assert!(fake.read(0, c, 3 << 20).unwrap() == vec![7; 3 << 20], "overwritten by old work");
            m.free(c, Some(t), None).unwrap();
        });
        // It comes back.
        let all: Vec<u64> = (0..).map_while(|_| m.alloc(POOL, t, 3 * MIB).ok()).collect();
        assert!(all.contains(&b));
        fake.end();
    }
}

#[test]
fn memory_of_a_stream_that_ended_without_a_word_serves_others_after_its_work() {
    for (settings, late_forget) in DRIVERS.into_iter().flat_map(|s| [(s, false), (s, true)]) {
        // What comes too late names the stream: only a driver that checks survives it.
        let refuse: &[_] = if late_forget { &[("ended", "refuse")] } else { &[] };
        let (fake, d) = one(&[settings, refuse].concat());
        let m = d.memory();
        let (s, t) = (fake.foreign_stream(0, 1), d.streams().create().unwrap());
        let all: Vec<u64> = (0..).map_while(|_| m.alloc(POOL, s, 3 * MIB).ok()).collect();
        assert!(all.len() >= 20);
        fake.hold(true);
        for &b in &all {
            d.memset_async(s, b, 9, 3 * MIB).unwrap();
            m.free(b, Some(s), None).unwrap();
        }
        fake.foreign_stream_end(s);
        fake.calls_reset();
        going_on_later(&fake, || {
            if late_forget {
                d.streams().forget(s).unwrap();
            }
            let c = m.alloc(POOL, t, 40 * MIB).unwrap_or_else(|e| panic!("{settings:?} {late_forget}: {e}"));
            d.memset_async(t, c, 7, 40 * MIB).unwrap();
            if settings.is_empty() {
                assert_eq!(fake.calls("cuCtxSynchronize"), 0, "the host waited");
            }
            d.streams().synchronize(t).unwrap();
            d.synchronize().unwrap();
            assert!(fake.read(0, c, 40 << 20).unwrap() == vec![7; 40 << 20], "overwritten by old work");
            m.free(c, Some(t), None).unwrap();
        });
        m.empty_cache(None).unwrap();
        assert_eq!(fake.used(0), 0);
        fake.end();
    }
}

#[test]
fn without_a_pool_the_device_is_waited_for_where_a_stream_ended_without_a_word() {
    for backend in ["backend:none", "backend:cudaMallocAsync"] {
        let fake = Fake::new(&[("capacity", "64M")], |_| {});
        runtime::set_default_options(Some("cuda"), None, backend).unwrap();
        let d = runtime::device("cuda", 0).unwrap();
        let m = d.memory();
        let (s, r) = (fake.foreign_stream(0, 1), fake.foreign_stream(0, 1));
        let [a, b] = [s, 0].map(|home| m.alloc(POOL, home, 3 * MIB).unwrap());
        m.record_stream(a, r).unwrap();
        m.record_stream(b, r).unwrap();
        fake.hold(true);
        for x in [a, b] {
            d.memset_async(r, x, 9, 3 * MIB).unwrap();
        }
        d.memset_async(s, a, 8, MIB).unwrap();
        fake.foreign_stream_end(s);
        fake.foreign_stream_end(r);
        going_on_later(&fake, || {
            m.free(a, None, None).unwrap();
            m.free(b, None, None).unwrap();
        });
        // Work on memory that was gone would have failed the device.
        d.synchronize().unwrap();
        assert_eq!(m.live_blocks(), 0);
        m.empty_cache(None).unwrap();
        assert_eq!(fake.used(0), 0, "{backend}");
        fake.end();
    }
}
