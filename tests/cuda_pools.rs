//! Captures, sleep and restore on the device type `cuda`: real captures of the (fake) driver beside Millpond's
//! pools, replays whose results are read back, and memory that goes and comes back.
//!
//! The fake ends a capture for every call that the driver's documentation forbids in one, so a capture that
//! ends well says that none was made.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "every block is one call of the library under test")]
#![cfg(unix)]

mod cuda;
use cuda::*;
use millpond::runtime::{self, CopyKind, PoolId};
use millpond::{Code, DeviceState, Result};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const POOL: PoolId = PoolId::DEFAULT;
/// CU_STREAM_CAPTURE_MODE_*.
const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
/// Memory in granules that are mapped; and in segments of 64 MiB, of which each pool takes its own.
const MAPPED: &[(&str, &str)] = &[("driver", "12080")];
const SEGMENTS: &[(&str, &str)] = &[("no_vmm", "1"), ("capacity", "320M")];
/// A driver without `cuCtxRecordEvent`.
const OLD: &[(&str, &str)] = &[("driver", "11040")];

/// Who has made a stream that is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    Here,
    ElsewhereBlocking,
    ElsewhereNonBlocking,
}
use Made::*;

/// Everything under all drivers, for all streams that can be captured, in both modes.
fn everywhere(test: impl Fn(&'static [(&'static str, &'static str)], Made, u32)) {
    for settings in [MAPPED, SEGMENTS, OLD] {
        for made in [Here, ElsewhereBlocking, ElsewhereNonBlocking] {
            for mode in [GLOBAL, THREAD_LOCAL] {
                test(settings, made, mode);
            }
        }
    }
}

fn stream(fake: &Fake, d: &DeviceState, made: Made) -> u64 {
    match made {
        Here => d.stream_create().unwrap(),
        ElsewhereBlocking => fake.foreign_stream(0, 0),
        ElsewhereNonBlocking => fake.foreign_stream(0, 1),
    }
}

fn stream_end(fake: &Fake, d: &DeviceState, made: Made, s: u64) {
    if made == Here {
        d.stream_destroy(s).unwrap();
    } else {
        d.stream_forget(s).unwrap();
        fake.foreign_stream_end(s);
    }
}

/// Calls one of the driver's functions, as the framework that makes graphs does.
fn driver(fake: &Fake, call: impl FnOnce() -> u32) -> std::result::Result<(), u32> {
    let mut code = 0;
    fake.with_primary(0, || code = call());
    if code == 0 { Ok(()) } else { Err(code) }
}

fn record(fake: &Fake, s: u64, mode: u32) {
    let begin: extern "C" fn(u64, u32) -> u32 = fake.driver("cuStreamBeginCapture_v2");
    driver(fake, || begin(s, mode)).unwrap();
}

/// The graph, or why there is none.
fn recorded(fake: &Fake, s: u64) -> std::result::Result<u64, u32> {
    let end: extern "C" fn(u64, *mut u64) -> u32 = fake.driver("cuStreamEndCapture");
    let mut graph = 0;
    driver(fake, || end(s, &mut graph)).map(|()| graph)
}

/// Ends the capture, which must be valid, and makes it executable.
#[track_caller]
fn graph(fake: &Fake, s: u64) -> u64 {
    let graph =
        recorded(fake, s).unwrap_or_else(|code| panic!("the capture was disturbed: {code}\n{}", fake.log()));
    let make: extern "C" fn(*mut u64, u64, u64) -> u32 = fake.driver("cuGraphInstantiateWithFlags");
    let drop: extern "C" fn(u64) -> u32 = fake.driver("cuGraphDestroy");
    let mut exec = 0;
    driver(fake, || make(&mut exec, graph, 0)).unwrap();
    driver(fake, || drop(graph)).unwrap();
    exec
}

fn replay(fake: &Fake, exec: u64, s: u64) {
    let launch: extern "C" fn(u64, u64) -> u32 = fake.driver("cuGraphLaunch");
    let wait: extern "C" fn(u64) -> u32 = fake.driver("cuStreamSynchronize");
    driver(fake, || launch(exec, s)).unwrap();
    driver(fake, || wait(s)).unwrap();
}

fn graph_end(fake: &Fake, exec: u64) {
    let drop: extern "C" fn(u64) -> u32 = fake.driver("cuGraphExecDestroy");
    driver(fake, || drop(exec)).unwrap();
}

fn reserved(d: &DeviceState, p: PoolId) -> u64 {
    d.memory().pool_stats(p).unwrap().reserved.current
}

/// Blocks of others, and what they hold: everywhere, or (`sparse`) at a few places of each granule.
#[derive(Default)]
struct Others {
    blocks: Vec<(u64, usize, u8)>,
    sparse: bool,
}

impl Others {
    fn put(&mut self, fake: &Fake, at: u64, bytes: u64) {
        self.blocks.push((at, bytes as usize, 0x40 + (self.blocks.len() % 100) as u8));
        self.fill(fake, self.blocks.len() - 1);
    }
    /// The places of a block that are written and read: (address, bytes).
    fn places(&self, (at, bytes, _): (u64, usize, u8)) -> Vec<(u64, usize)> {
        if !self.sparse {
            return vec![(at, bytes)];
        }
        (0..bytes).step_by(512 << 10).map(|i| (at + i as u64, 64.min(bytes - i))).collect()
    }
    fn fill(&self, fake: &Fake, i: usize) {
        let block = self.blocks[i];
        for (at, bytes) in self.places(block) {
            fake.write(0, at, &vec![block.2; bytes]).unwrap();
        }
    }
    /// Takes all that the device still has.
    fn take_all(&mut self, fake: &Fake, d: &DeviceState, pool: PoolId, stream: u64) {
        while let Ok(at) = d.memory().alloc(pool, stream, GRANULE) {
            self.put(fake, at, GRANULE);
        }
    }
    #[track_caller]
    fn check(&self, fake: &Fake) {
        for &block in &self.blocks {
            for (at, bytes) in self.places(block) {
                let as_put = fake.read(0, at, bytes).unwrap() == vec![block.2; bytes];
                assert!(as_put, "memory of somebody else was written");
            }
        }
    }
    fn free(self, d: &DeviceState) {
        self.blocks.iter().for_each(|b| d.memory().free(b.0, None, None).unwrap());
    }
}

/// Work for a graph, in a pool's memory that comes and goes: `result` gets 1000 times `value`, then `value` + 1.
fn work(d: &DeviceState, s: u64, p: PoolId, result: u64, value: u8) -> Vec<u64> {
    let m = d.memory();
    let mut at = Vec::new();
    for (i, bytes) in [3 * MIB, 9 * MIB + 100].into_iter().enumerate() {
        let a = m.alloc(POOL, s, bytes).unwrap();
        assert_eq!(m.block(a).unwrap().pool, p, "a request of a captured stream");
        d.memset_async(s, a, value + i as u8, bytes).unwrap();
        let from = a + bytes - 1000;
        unsafe { d.copy_async(s, CopyKind::DeviceToDevice, result + i as u64 * 1000, from, 1000).unwrap() };
        m.free(a, Some(s), None).unwrap();
        at.push(a);
    }
    at
}

#[track_caller]
fn check_result(fake: &Fake, result: u64, value: u8) {
    let holds = fake.read(0, result, 2000).unwrap();
    assert!(
        holds[..1000].iter().all(|&b| b == value) && holds[1000..].iter().all(|&b| b == value + 1),
        "a replay"
    );
    fake.write(0, result, &[0; 2000]).unwrap();
}

#[test]
fn replays_find_their_memory() {
    everywhere(|settings, made, mode| {
        let (fake, d) = one(settings);
        let m = d.memory();
        let (s, t) = (stream(&fake, &d, made), d.stream_create().unwrap());
        let p = m.pool_create(0).unwrap();
        let mut others = Others::default();
        for (stream, bytes) in [(t, 3 * MIB), (s, 70_000), (0, 5000)] {
            others.put(&fake, m.alloc(POOL, stream, bytes).unwrap(), bytes);
        }
        let first = m.capture_begin(p, s).unwrap();
        record(&fake, s, mode);
        let result = m.alloc(POOL, s, 2000).unwrap();
        work(&d, s, p, result, 1);
        // Meanwhile others go on, here and on another thread, and take memory from the device.
        for bytes in [100, 70_000, 7 * MIB] {
            let (x, y) = (m.alloc(POOL, t, bytes).unwrap(), m.alloc_unordered(POOL, bytes).unwrap());
            std::thread::scope(|threads| {
                threads.spawn(|| m.alloc(POOL, t, bytes).and_then(|z| m.free(z, Some(t), None)).unwrap());
            });
            m.free(x, Some(t), None).unwrap();
            m.free(y, None, None).unwrap();
        }
        // What would end the capture is not tried.
        assert!(m.empty_cache(None).is_err());
        assert_eq!(d.synchronize().unwrap_err().code(), Code::NotPermitted);
        let mut bytes = [0; 16];
        let read = d.read(others.blocks[0].0, &mut bytes);
        assert_eq!(read.is_ok(), made == ElsewhereNonBlocking, "{read:?}");
        let _ = d.memset(others.blocks[0].0, others.blocks[0].2, 16);
        let _ = d.stream_synchronize(t);
        let exec = graph(&fake, s);
        m.capture_end(first).unwrap();

        // Everything that the device has is somebody else's now, but for what the graph needs.
        let q = m.pool_create(0).unwrap();
        others.take_all(&fake, &d, q, t);
        others.take_all(&fake, &d, POOL, s);
        for _ in 0..3 {
            replay(&fake, exec, s);
            check_result(&fake, result, 1);
            others.check(&fake);
        }
        // A second capture uses what the first one has freed.
        let before = reserved(&d, p);
        let second = m.capture_begin(p, s).unwrap();
        record(&fake, s, mode);
        let result_2 = m.alloc(POOL, s, 2000).unwrap();
        work(&d, s, p, result_2, 11);
        let exec_2 = graph(&fake, s);
        m.capture_end(second).unwrap();
        assert_eq!(reserved(&d, p), before, "captures share the pool's memory");
        for _ in 0..2 {
            replay(&fake, exec, s);
            replay(&fake, exec_2, s);
            check_result(&fake, result, 1);
            check_result(&fake, result_2, 11);
        }
        // Eager code may have it too.
        let eager = m.alloc(p, s, 3 * MIB).unwrap();
        m.free(eager, Some(s), None).unwrap();
        assert_eq!(reserved(&d, p), before);
        // With the last of the two graphs the memory goes.
        graph_end(&fake, exec);
        m.free(result, Some(s), None).unwrap();
        m.capture_release(first).unwrap();
        m.empty_cache(None).unwrap();
        replay(&fake, exec_2, s);
        check_result(&fake, result_2, 11);
        others.check(&fake);
        assert_eq!(m.pool_destroy(p).unwrap_err().code(), Code::Busy);
        graph_end(&fake, exec_2);
        m.free(result_2, Some(s), None).unwrap();
        let (used, held) = (fake.used(0), reserved(&d, p));
        assert!(held >= 12 * MIB);
        m.capture_release(second).unwrap();
        assert_eq!((reserved(&d, p), fake.used(0)), (0, used - held));
        others.check(&fake);
        others.free(&d);
        m.pool_destroy(p).unwrap();
        m.pool_destroy(q).unwrap();
        stream_end(&fake, &d, made, s);
        m.empty_cache(None).unwrap();
        assert_eq!(fake.used(0), 0);
        fake.end();
    });
}

#[test]
fn abandoned_captures_leave_nothing() {
    everywhere(|settings, made, mode| {
        for how in 0..4 {
            let (fake, d) = one(settings);
            let m = d.memory();
            let s = stream(&fake, &d, made);
            let p = m.pool_create(0).unwrap();
            let c = m.capture_begin(p, s).unwrap();
            let a = m.alloc(POOL, s, 3 * MIB).unwrap();
            if how > 0 {
                record(&fake, s, mode);
                d.memset_async(s, a, 1, MIB).unwrap();
            }
            if how > 1 {
                let query: extern "C" fn(u64) -> u32 = fake.driver("cuStreamQuery");
                assert!(driver(&fake, || query(s)).is_err(), "forbidden in a capture");
                assert!(d.memset_async(s, a, 1, MIB).is_err());
            }
            // Millpond's part goes on working.
            let b = m.alloc(POOL, s, 9 * MIB).unwrap();
            m.free(b, Some(s), None).unwrap();
            let u = m.alloc_unordered(POOL, 9 * MIB).unwrap();
            m.free(u, None, None).unwrap();
            match how {
                0 => {}
                1 => {
                    let exec = graph(&fake, s);
                    graph_end(&fake, exec);
                }
                2 => assert_eq!(recorded(&fake, s), Err(901)),
                // The library ends in the middle of it.
                _ => {
                    let _ = runtime::finalize(); // the context ends with it, and all its streams
                    assert_eq!(fake.leaks(), "");
                    fake.end_quietly();
                    continue;
                }
            }
            m.free(a, Some(s), None).unwrap();
            m.capture_release(c).unwrap();
            assert_eq!(reserved(&d, p), 0);
            m.pool_destroy(p).unwrap();
            stream_end(&fake, &d, made, s);
            fake.end();
        }
    });
}

/// How a block that is freed in a capture came to be used by which streams.
#[derive(Clone, Copy, Debug)]
enum Used {
    /// A block of `t` that the captured stream uses too.
    ByCaptured,
    /// It is freed with the captured stream named.
    FreedByCaptured,
    ByNull,
    ByLegacy,
    ByPerThread,
    /// By another stream, whose work is not over.
    ByBusy,
    /// A block without a stream.
    Unordered,
}

#[test]
fn frees_in_a_capture_disturb_nothing() {
    use Used::*;
    everywhere(|settings, made, mode| {
        let (fake, d) = one(settings);
        let m = d.memory();
        let s = stream(&fake, &d, made);
        let (t, u) = (d.stream_create().unwrap(), d.stream_create().unwrap());
        let p = m.pool_create(0).unwrap();
        for elsewhere in [false, true] {
            for used in [ByCaptured, FreedByCaptured, ByNull, ByLegacy, ByPerThread, ByBusy, Unordered] {
                let get = || match used {
                    Unordered => m.alloc_unordered(POOL, 3 * MIB).unwrap(),
                    _ => m.alloc(POOL, t, 3 * MIB).unwrap(),
                };
                let x = get();
                match used {
                    ByCaptured => m.record_stream(x, s).unwrap(),
                    ByNull => m.record_stream(x, 0).unwrap(),
                    ByLegacy => m.record_stream(x, 1).unwrap(),
                    ByPerThread => m.record_stream(x, 2).unwrap(),
                    ByBusy => {
                        m.record_stream(x, u).unwrap();
                        fake.hold(true);
                        d.memset_async(u, x, 1, 100).unwrap();
                    }
                    _ => {}
                }
                let c = m.capture_begin(p, s).unwrap();
                record(&fake, s, mode);
                d.memset_async(s, x, 1, 100).unwrap();
                let end = || match used {
                    FreedByCaptured => m.free(x, Some(s), None).unwrap(),
                    Unordered => m.free(x, None, None).unwrap(),
                    _ => m.free(x, Some(t), None).unwrap(),
                };
                if elsewhere {
                    std::thread::scope(|threads| _ = threads.spawn(end));
                } else {
                    end();
                }
                let y = get();
                // Work on NULL is no secret of a capture of a stream that does not know NULL.
                assert_ne!(x, y, "{used:?}: used again too early");
                m.free(y, Some(t).filter(|_| !matches!(used, Unordered)), None).unwrap();
                let exec = graph(&fake, s);
                m.capture_end(c).unwrap();
                if let ByBusy = used {
                    let y = get();
                    assert_ne!(x, y, "{used:?}: used again too early");
                    m.free(y, Some(t), None).unwrap();
                }
                fake.hold(false);
                d.stream_synchronize(u).unwrap();
                graph_end(&fake, exec);
                m.capture_release(c).unwrap();
                m.empty_cache(None).unwrap();
                let s = m.stats();
                assert_eq!((s.active.current, s.reserved.current), (0, 0), "{used:?}: the block came back");
            }
        }
        stream_end(&fake, &d, made, s);
        fake.end();
    });
}

#[test]
fn what_a_captured_stream_has_freed_is_given_to_nobody() {
    everywhere(|settings, made, mode| {
        let (fake, d) = one(settings);
        let m = d.memory();
        let (s, t) = (stream(&fake, &d, made), d.stream_create().unwrap());
        let p = m.pool_create(0).unwrap();
        let x = m.alloc(POOL, s, 6 * MIB).unwrap();
        fake.write(0, x, &vec![7; 6 << 20]).unwrap();
        let c = m.capture_begin(p, s).unwrap();
        record(&fake, s, mode);
        m.free(x, Some(s), None).unwrap();
        let mut others = Others::default();
        others.take_all(&fake, &d, POOL, t);
        let q = m.pool_create(0).unwrap();
        others.take_all(&fake, &d, q, 0);
        assert!(m.alloc_unordered(POOL, 6 * MIB).is_err());
        let as_put = fake.read(0, x, 6 << 20).unwrap() == vec![7; 6 << 20];
        assert!(as_put, "work of the captured stream may still use it");
        graph_end(&fake, graph(&fake, s));
        m.capture_release(c).unwrap();
        // Now it is memory like any other.
        let before = others.blocks.len();
        others.take_all(&fake, &d, POOL, t);
        assert!(others.blocks.len() > before);
        others.check(&fake);
        others.free(&d);
        stream_end(&fake, &d, made, s);
        fake.end();
    });
}

/// A callback that holds the stream up until the sender is used.
fn gate(d: &DeviceState, s: u64) -> mpsc::Sender<()> {
    let (open, closed) = mpsc::channel();
    d.stream_callback(s, Box::new(move |_| _ = closed.recv_timeout(Duration::from_secs(20)))).unwrap();
    open
}

#[test]
fn eager_requests_wait_for_blocks_beside_a_capture() {
    everywhere(|settings, made, mode| {
        let (fake, d) = one(settings);
        let m = d.memory();
        let s = stream(&fake, &d, made);
        let (t, u) = (d.stream_create().unwrap(), d.stream_create().unwrap());
        let p = m.pool_create(0).unwrap();
        let limit = 60 * MIB;
        let x = m.alloc(POOL, t, limit).unwrap();
        m.pool_set_limit(POOL, reserved(&d, POOL)).unwrap();
        m.record_stream(x, u).unwrap();
        let open = gate(&d, u);
        m.free(x, Some(t), None).unwrap();
        let c = m.capture_begin(p, s).unwrap();
        record(&fake, s, mode);
        let y = std::thread::scope(|threads| {
            threads.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                open.send(()).unwrap();
            });
            m.alloc(POOL, t, limit).unwrap() // waits for `u`
        });
        m.free(y, Some(t), None).unwrap();
        graph_end(&fake, graph(&fake, s));
        m.capture_release(c).unwrap();
        stream_end(&fake, &d, made, s);
        fake.end();
    });
}

#[test]
fn a_callback_gets_no_block_whose_work_is_not_over() {
    for settings in [MAPPED, SEGMENTS, OLD] {
        for unordered in [false, true] {
            let (fake, d) = one(settings);
            let m = d.memory();
            let (s, t) = (d.stream_create().unwrap(), d.stream_create().unwrap());
            let get = move |d: &DeviceState| match unordered {
                true => d.memory().alloc_unordered(POOL, 3 * MIB),
                false => d.memory().alloc(POOL, s, 3 * MIB),
            };
            let x = get(&d).unwrap();
            if !unordered {
                m.record_stream(x, t).unwrap();
            }
            let inner: Arc<DeviceState> = d.clone();
            let (tell, told) = mpsc::channel();
            fake.hold(true);
            d.stream_callback(
                t,
                Box::new(move |_| {
                    let _ = inner.memory().empty_cache(None);
                    tell.send(get(&inner)).unwrap();
                }),
            )
            .unwrap();
            d.memset_async(t, x, 9, 3 * MIB).unwrap();
            if !(unordered && settings == OLD) {
                m.free(x, Some(s).filter(|_| !unordered), None).unwrap();
            }
            fake.hold(false);
            let got: Result<u64> = told.recv().unwrap();
            // There may be none without asking the driver; but that one it must not be.
            assert_ne!(got.as_ref().ok(), Some(&x), "used again while its stream still works on it");
            d.stream_synchronize(t).unwrap();
            if unordered && settings == OLD {
                m.free(x, None, None).unwrap();
            }
            if let Ok(y) = got {
                m.free(y, None, None).unwrap();
            }
            m.empty_cache(None).unwrap();
            assert_eq!((m.stats().active.current, fake.used(0)), (0, 0), "the block came back");
            fake.end();
        }
    }
}

#[test]
fn a_callback_beside_a_capture_may_free() {
    everywhere(|settings, made, mode| {
        let (fake, d) = one(settings);
        let m = d.memory();
        let s = stream(&fake, &d, made);
        let (t, u) = (d.stream_create().unwrap(), d.stream_create().unwrap());
        let p = m.pool_create(0).unwrap();
        let x = m.alloc(POOL, t, 3 * MIB).unwrap();
        // (With an old driver, the free of a block without a stream waits for `u` on the host.)
        let y = if settings == OLD { 0 } else { m.alloc_unordered(POOL, 3 * MIB).unwrap() };
        let z = m.alloc(POOL, t, 3 * MIB).unwrap();
        m.record_stream(x, s).unwrap();
        m.record_stream(z, u).unwrap();
        let open = gate(&d, u); // `z` is in use until this is opened
        let c = m.capture_begin(p, s).unwrap();
        record(&fake, s, mode);
        let inner: Arc<DeviceState> = d.clone();
        let (tell, told) = mpsc::channel();
        d.stream_callback(
            t,
            Box::new(move |_| {
                let m = inner.memory();
                let freed = [m.free(x, Some(t), None), m.free(y, None, None), m.free(z, Some(t), None)];
                tell.send(freed.into_iter().all(|f| f.is_ok())).unwrap();
            }),
        )
        .unwrap();
        assert!(told.recv().unwrap());
        let after = [m.alloc(POOL, t, 3 * MIB).unwrap(), m.alloc(POOL, t, 3 * MIB).unwrap()];
        assert!(!after.contains(&x) && !after.contains(&z), "used again too early");
        assert_ne!(m.alloc_unordered(POOL, 3 * MIB).unwrap(), y);
        graph_end(&fake, graph(&fake, s));
        m.capture_end(c).unwrap();
        assert_ne!(m.alloc(POOL, t, 3 * MIB).unwrap(), z, "its stream still works on it");
        open.send(()).unwrap();
        d.synchronize().unwrap();
        m.capture_release(c).unwrap();
        let s = m.stats();
        assert_eq!(s.active.current, s.allocated.current, "all came back");
        fake.end();
    });
}

#[test]
fn a_capture_that_only_the_driver_knows_is_not_disturbed() {
    everywhere(|settings, made, mode| {
        let (fake, d) = one(settings);
        let m = d.memory();
        let (s, t) = (stream(&fake, &d, made), d.stream_create().unwrap());
        let kept = m.alloc(POOL, s, 3 * MIB).unwrap(); // the stream is known from here on
        let x = m.alloc(POOL, t, 3 * MIB).unwrap();
        let y = m.alloc_unordered(POOL, 3 * MIB).unwrap();
        let z = m.alloc(POOL, s, 3 * MIB).unwrap();
        fake.write(0, z, &vec![7; 3 << 20]).unwrap();
        m.record_stream(x, s).unwrap();
        record(&fake, s, mode);
        let grown = m.alloc(POOL, s, 12 * MIB).unwrap();
        d.memset_async(s, grown, 1, 12 * MIB).unwrap();
        m.free(x, Some(t), None).unwrap();
        m.free(y, None, None).unwrap();
        m.free(z, Some(s), None).unwrap();
        assert_ne!(m.alloc(POOL, t, 3 * MIB).unwrap(), x);
        assert_ne!(m.alloc_unordered(POOL, 3 * MIB).unwrap(), y);
        let mut others = Others::default();
        others.take_all(&fake, &d, POOL, t);
        assert_eq!(fake.read(0, z, 2).unwrap(), [7, 7], "what the captured stream has freed stays");
        assert!(m.empty_cache(None).is_err());
        assert_eq!(d.synchronize().unwrap_err().code(), Code::NotPermitted);
        let ended = if made == Here { d.stream_destroy(s) } else { d.stream_forget(s) };
        assert_eq!(ended.unwrap_err().code(), Code::Busy);
        let exec = graph(&fake, s);
        replay(&fake, exec, s);
        assert_eq!(fake.read(0, grown, 2).unwrap(), [1, 1]);
        others.check(&fake);
        graph_end(&fake, exec);
        m.free(kept, None, None).unwrap();
        stream_end(&fake, &d, made, s);
        d.synchronize().unwrap();
        m.empty_cache(None).unwrap();
        fake.end();
    });
}

#[test]
fn streams_that_cannot_be_captured_are_refused() {
    let (fake, d) = one(&[]);
    let m = d.memory();
    let p = m.pool_create(0).unwrap();
    for s in [0, 1, 2] {
        let e = m.capture_begin(p, s).unwrap_err();
        assert!(matches!(e.code(), Code::InvalidArgument | Code::Unsupported), "{s}: {e}");
    }
    let s = d.stream_create().unwrap();
    let c = m.capture_begin(p, s).unwrap();
    for other in [0, 1, 2, s] {
        assert!(m.capture_add(c, other).is_err(), "{other}");
    }
    m.capture_release(c).unwrap();
    m.pool_destroy(p).unwrap();
    fake.end();
}

#[test]
fn pinned_memory_that_a_capture_uses_comes_back() {
    let (fake, d) = one(&[]);
    let (s, p) = (d.stream_create().unwrap(), d.memory().pool_create(0).unwrap());
    let a = d.memory().alloc(POOL, s, MIB).unwrap();
    let h = d.host_alloc(MIB).unwrap();
    let c = d.memory().capture_begin(p, s).unwrap();
    record(&fake, s, GLOBAL);
    unsafe { d.copy_async(s, CopyKind::HostToDevice, a, h, MIB).unwrap() };
    d.host_free(h).unwrap();
    let again = d.host_alloc(MIB).unwrap();
    assert_ne!(again, h, "the captured copy has not run");
    d.host_free(again).unwrap();
    graph_end(&fake, graph(&fake, s));
    d.memory().capture_release(c).unwrap();
    fake.end();
}

/// A pool with small blocks, a large one and a scattered one, all with content of their own.
fn full_pool(fake: &Fake, d: &DeviceState, s: u64, sparse: bool) -> (PoolId, Others) {
    let m = d.memory();
    let p = m.pool_create(24 * MIB).unwrap();
    let singles: Vec<u64> = (0..12).map(|_| m.alloc(p, s, GRANULE).unwrap()).collect();
    let mut content = Others { sparse, ..Others::default() };
    for pair in singles.chunks(2).take(5) {
        content.put(fake, pair[0], GRANULE);
        m.free(pair[1], Some(s), None).unwrap();
    }
    m.free(singles[10], Some(s), None).unwrap();
    m.free(singles[11], Some(s), None).unwrap();
    content.put(fake, m.alloc(p, s, 10 * MIB + 5000).unwrap(), 10 * MIB + 5000);
    for bytes in [100, 70_000] {
        content.put(fake, m.alloc(p, s, bytes).unwrap(), bytes);
    }
    (p, content)
}

#[test]
fn memory_sleeps_and_wakes_at_its_addresses() {
    for save in [true, false] {
        let (fake, d) = one(&[]);
        let m = d.memory();
        let s = d.stream_create().unwrap();
        let (p, content) = full_pool(&fake, &d, s, false);
        assert_eq!(fake.used(0), 24 * MIB);
        d.pools_sleep(&[p], save).unwrap();
        assert_eq!(fake.used(0), 0, "the memory is the device's again");
        assert_eq!(m.pool_stats(p).unwrap().sleeping.current, 24 * MIB);
        assert!(
            fake.read(0, content.blocks[0].0, 1).is_err() || fake.read(0, content.blocks[5].0, 1).is_err()
        );
        assert_eq!(d.memset_async(s, content.blocks[0].0, 1, 1).unwrap_err().code(), Code::NotPermitted);
        // Others have all of the device meanwhile: a wake is not possible, and loses nothing.
        let mut others = Others::default();
        others.take_all(&fake, &d, POOL, s);
        assert_eq!(fake.used(0), 64 * MIB);
        assert_eq!(d.pools_wake(&[p]).unwrap_err().code(), Code::OutOfMemory);
        others.check(&fake);
        assert_eq!(m.pool_stats(p).unwrap().sleeping.current, 24 * MIB);
        others.free(&d); // idle memory is given back for the wake
        d.pools_wake(&[p]).unwrap();
        let st = m.pool_stats(p).unwrap();
        assert_eq!(
            (st.sleeping.current, st.reserved.current, fake.used(0)),
            (0, 24 * MIB, 64 * MIB - 40 * MIB)
        );
        if save {
            content.check(&fake);
        }
        (0..content.blocks.len()).for_each(|i| content.fill(&fake, i)); // all can be written
        content.check(&fake);
        content.free(&d);
        m.pool_destroy(p).unwrap();
        fake.end();
    }
}

#[test]
fn a_pool_that_a_graph_keeps_may_sleep_between_replays() {
    for made in [Here, ElsewhereNonBlocking] {
        let (fake, d) = one(&[]);
        let m = d.memory();
        let s = stream(&fake, &d, made);
        let p = m.pool_create(0).unwrap();
        let c = m.capture_begin(p, s).unwrap();
        record(&fake, s, GLOBAL);
        let result = m.alloc(POOL, s, 2000).unwrap();
        work(&d, s, p, result, 1);
        let e = d.pools_sleep(&[p], true).unwrap_err();
        assert!(matches!(e.code(), Code::Busy | Code::NotPermitted), "{e}");
        let exec = graph(&fake, s);
        m.capture_end(c).unwrap();
        for round in 0..3 {
            replay(&fake, exec, s);
            check_result(&fake, result, 1);
            let (used, held) = (fake.used(0), reserved(&d, p));
            assert!(held > 9 * MIB);
            d.pools_sleep(&[p], round != 1).unwrap();
            assert_eq!(fake.used(0), used - held);
            let x = m.alloc(POOL, 0, 40 * MIB).unwrap();
            d.memset(x, 5, 40 * MIB).unwrap();
            m.free(x, Some(0), None).unwrap();
            d.pools_wake(&[p]).unwrap();
        }
        replay(&fake, exec, s);
        check_result(&fake, result, 1);
        graph_end(&fake, exec);
        m.free(result, Some(s), None).unwrap();
        m.capture_release(c).unwrap();
        m.pool_destroy(p).unwrap();
        stream_end(&fake, &d, made, s);
        fake.end();
    }
}

#[test]
fn a_layout_comes_back_between_replays() {
    for settings in [MAPPED, SEGMENTS] {
        let (fake, d) = one(settings);
        let m = d.memory();
        let s = d.stream_create().unwrap();
        let p = m.pool_create(0).unwrap();
        let capture = |value: u8| {
            let c = m.capture_begin(p, s).unwrap();
            record(&fake, s, GLOBAL);
            let result = m.alloc(POOL, s, 2000).unwrap();
            work(&d, s, p, result, value);
            let exec = graph(&fake, s);
            m.capture_end(c).unwrap();
            (c, exec, result)
        };
        let (c1, exec_1, result_1) = capture(1);
        let saved = m.checkpoint(p).unwrap();
        m.free(result_1, Some(s), None).unwrap();
        let (c2, exec_2, result_2) = capture(21);
        assert_eq!(result_1, result_2, "the second graph puts its result where the first one's was");
        let eager = m.alloc(p, s, 3 * MIB).unwrap();
        replay(&fake, exec_2, s);
        check_result(&fake, result_2, 21);
        let back = d.restore(p, saved).unwrap();
        assert_eq!((back.freed, back.live), (vec![(eager, 3 * MIB)], vec![]));
        replay(&fake, exec_1, s);
        check_result(&fake, result_1, 1);
        m.free(result_1, Some(s), None).unwrap();
        let back = d.restore(p, saved).unwrap();
        assert_eq!((back.freed, back.live), (vec![], vec![(result_1, 2000)]));
        // Not while the stream is captured: the capture stays whole.
        let c3 = m.capture_begin(p, s).unwrap();
        record(&fake, s, GLOBAL);
        assert_eq!(d.restore(p, saved).unwrap_err().code(), Code::Busy);
        graph_end(&fake, graph(&fake, s));
        m.capture_end(c3).unwrap();
        [exec_1, exec_2].into_iter().for_each(|x| graph_end(&fake, x));
        m.free(result_1, Some(s), None).unwrap();
        [c1, c2, c3].into_iter().for_each(|c| m.capture_release(c).unwrap());
        m.checkpoint_destroy(saved).unwrap();
        m.pool_destroy(p).unwrap();
        fake.end();
    }
}

/// CUDA_ERROR_LAUNCH_FAILED, here as an ordinary failure; and CUDA_ERROR_OUT_OF_MEMORY.
const FAILED: u32 = 719;
const NO_MEMORY: u32 = 2;

/// Every call of the driver in `step` fails once: what it leaves is as it was, or as it should be.
fn step_fails(settings: &[(&str, &str)], step: impl Fn(&DeviceState, PoolId, u64) -> Result<()>) {
    let mut all = vec![("keep_log", "1")];
    all.extend_from_slice(settings);
    let mut seen = 0;
    for code in [FAILED, NO_MEMORY] {
        // The second code ends in the same places: some of them.
        for call in (0..).step_by(if code == FAILED { 1 } else { 7 }) {
            let (fake, d) = one(&all);
            let m = d.memory();
            let s = d.stream_create().unwrap();
            let (p, content) = full_pool(&fake, &d, s, true);
            // One that sleeps, for steps that wake.
            let (q, asleep) = {
                let q = m.pool_create(0).unwrap();
                let mut c = Others { sparse: true, ..Others::default() };
                c.put(&fake, m.alloc(q, s, 5 * MIB).unwrap(), 5 * MIB);
                (q, c)
            };
            d.pools_sleep(&[q], true).unwrap();
            fake.calls_reset();
            fake.fail("*", call + 1, code, false);
            let done = step(&d, p, s);
            let made = fake.all_calls();
            fake.fail_clear();
            if made <= call {
                done.unwrap();
                fake.end_quietly();
                assert!(call > 3, "too few calls to call this a test");
                break;
            }
            seen += u32::from(done.is_err());
            if m.pool_sleeps(p) {
                d.pools_wake(&[p]).unwrap_or_else(|e| panic!("call {call} ({code}): {done:?}, then {e}"));
            }
            content.check(&fake);
            d.pools_wake(&[q]).unwrap_or_else(|e| panic!("call {call} ({code}): {done:?}, then {e}"));
            asleep.check(&fake);
            // And the step can be done now.
            step(&d, p, s).unwrap_or_else(|e| panic!("call {call} ({code}): {done:?}, again: {e}"));
            if m.pool_sleeps(p) {
                d.pools_wake(&[p]).unwrap();
            }
            content.check(&fake);
            content.free(&d);
            asleep.free(&d);
            m.empty_cache(None).unwrap();
            assert_eq!((m.stats().reserved.current, fake.used(0)), (0, 0), "call {call} ({code}): {done:?}");
            fake.end();
        }
    }
    assert!(seen > 3, "only {seen} failures came out");
}

#[test]
fn every_call_of_a_sleep_may_fail() {
    step_fails(&[], |d, p, _| d.pools_sleep(&[p], true));
}

#[test]
fn every_call_of_a_wake_may_fail() {
    step_fails(&[], |d, p, _| {
        if !d.memory().pool_sleeps(p) {
            d.pools_sleep(&[p], true)?;
        }
        d.pools_wake(&[p])
    });
}

#[test]
fn every_call_of_a_capture_may_fail() {
    step_fails(&[], |d, _, s| {
        let m = d.memory();
        let p = m.pool_create(0)?;
        let t = d.stream_create()?;
        let c = m.capture_begin(p, s)?;
        let work = || {
            m.capture_add(c, t)?;
            let a = m.alloc(POOL, s, 3 * MIB)?;
            let b = m.alloc(POOL, t, 70_000);
            let x = m.alloc_unordered(POOL, 5000);
            let freed = x.and_then(|x| m.free(x, None, None)).and(m.free(a, Some(t), None));
            b.and_then(|b| m.free(b, Some(t), None)).and(freed)
        };
        let done = work();
        m.capture_end(c)?;
        m.capture_release(c)?;
        let ended = d.stream_destroy(t);
        done.and(ended).and(m.pool_destroy(p))
    });
}

#[test]
fn every_call_of_a_restore_may_fail() {
    step_fails(&[], |d, p, s| {
        let m = d.memory();
        let t = d.stream_create()?;
        let saved = m.checkpoint(p)?;
        let a = m.alloc(p, s, 70_000)?;
        let done = m.record_stream(a, t).and_then(|()| d.restore(p, saved)).map(drop);
        if done.is_err() {
            m.free(a, Some(s), None)?;
        }
        m.checkpoint_destroy(saved)?;
        done.and(d.stream_destroy(t))
    });
}
