//! Streams whose ends are told, or whose handles come again, while other threads are about to give them to the driver.

use super::{NON_BLOCKING, POOL, announced};
use crate::apart::{apart, apart_told};
use crate::cuda::*;
use millpond::runtime::{self, DeviceState};
use std::ffi::c_char;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

/// Threads whose streams come and go, some with a word and some without, hand memory to each other. Nobody's contents change.
#[test]
fn streams_come_and_go_in_several_threads() {
    apart_told(120, "foreign streams, threads", || {
        for promise in [false, true] {
            let (fake, d) = if promise { announced(&[]) } else { one(&[]) };
            let create: extern "C" fn(*mut u64, u32) -> u32 = fake.driver("cuStreamCreate");
            let push: extern "C" fn(u64) -> u32 = fake.driver("cuCtxPushCurrent_v2");
            let end: extern "C" fn(u64) -> u32 = fake.driver("cuStreamDestroy_v2");
            let fill: extern "C" fn(u64, u8, usize, u64) -> u32 = fake.driver("cuMemsetD8Async");
            let copy: extern "C" fn(*mut u8, u64, usize, u64) -> u32 = fake.driver("cuMemcpyDtoHAsync_v2");
            let wait: extern "C" fn(u64) -> u32 = fake.driver("cuStreamSynchronize");
            let mut context = 0;
            fake.with_primary(0, || context = fake.current());
            // The last block of each thread, for the next one.
            let given: [Mutex<Option<(u64, u64)>>; 3] = Default::default();
            std::thread::scope(|scope| {
                for t in 0..3_usize {
                    let (d, given) = (&d, &given);
                    scope.spawn(move || {
                        assert_eq!(push(context), 0);
                        let mut random = 77 + t as u64;
                        let mut next = |n: u64| {
                            random =
                                random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                            (random >> 33) % n
                        };
                        let m = d.memory();
                        for round in 0..100_u64 {
                            let ours = next(3) == 0;
                            let mut s = 0;
                            match ours {
                                true => s = d.streams().create().unwrap(),
                                false => assert_eq!(create(&mut s, NON_BLOCKING), 0),
                            }
                            let mut live: Vec<(u64, u64, u8)> = Vec::new();
                            for n in 0..6 {
                                let bytes = (next(5) + 1) * 512 * 1024;
                                let Ok(at) = m.alloc(POOL, s, bytes) else { continue };
                                let mark = (round as u8).wrapping_mul(31).wrapping_add(n * 3 + t as u8);
                                assert_eq!(fill(at, mark, bytes as usize, s), 0);
                                live.push((at, bytes, mark));
                                if next(2) == 0 && live.len() > 1 {
                                    let (at, ..) = live.swap_remove(0);
                                    let other = next(2) == 0;
                                    m.free(at, if other { None } else { Some(s) }, None).unwrap();
                                }
                            }
                            let mut seen = vec![0_u8; 4 << 20];
                            for &(at, bytes, mark) in &live {
                                assert_eq!(copy(seen.as_mut_ptr(), at, bytes as usize, s), 0);
                                assert_eq!(wait(s), 0);
                                assert!(seen[..bytes as usize].iter().all(|&x| x == mark), "{t} {round}");
                            }
                            // One block goes to the next thread with work on it; the others end here.
                            let keep = live.pop();
                            for (at, ..) in live {
                                m.free(at, Some(s), None).unwrap();
                            }
                            if let Some((at, bytes, _)) = keep {
                                assert_eq!(fill(at, 0xEE, bytes as usize, s), 0);
                                let before = given[t].lock().unwrap().replace((at, bytes));
                                if let Some((at, _)) = before {
                                    m.free(at, None, None).unwrap();
                                }
                            }
                            let taken = given[(t + 1) % 3].lock().unwrap().take();
                            if let Some((at, bytes)) = taken {
                                m.record_stream(at, s).unwrap();
                                assert_eq!(fill(at, 0xDD, bytes as usize, s), 0);
                                m.free(at, Some(s), None).unwrap();
                            }
                            if !promise {
                                // A stream of the program's own with the handle of one that ended is taken for that one.
                                assert_eq!(wait(s), 0);
                            }
                            match ours {
                                true => d.streams().destroy(s).unwrap(),
                                false if promise => {
                                    d.streams().forget(s).unwrap();
                                    assert_eq!(end(s), 0);
                                }
                                false => assert_eq!(end(s), 0),
                            }
                        }
                    });
                }
            });
            for at in given.iter().filter_map(|g| g.lock().unwrap().take()) {
                d.memory().free(at.0, None, None).unwrap();
            }
            d.synchronize().unwrap();
            d.memory().empty_cache(None).unwrap();
            assert_eq!((d.memory().live_blocks(), d.memory().stats().reserved.current), (0, 0), "{promise}");
            fake.end();
        }
    });
}

type Hook = Box<dyn FnOnce() + Send>;

/// What runs at the next call of that function, before the driver does anything.
static BEFORE_A_CALL: Mutex<Option<(&str, Hook)>> = Mutex::new(None);

/// The thread that it started.
static TAKER: Mutex<Option<std::thread::JoinHandle<()>>> = Mutex::new(None);

unsafe extern "C" fn before_a_call(name: *const c_char, length: usize) -> u32 {
    // SAFETY: the fake gives the name of a function and its length.
    let name = unsafe { std::slice::from_raw_parts(name.cast::<u8>(), length) };
    let found = BEFORE_A_CALL.lock().unwrap().take_if(|(wanted, _)| wanted.as_bytes() == name);
    if let Some((_, body)) = found {
        body();
    }
    0
}

/// Runs something before the first call of a function, from now on.
fn before(fake: &Fake, name: &'static str, body: impl FnOnce() + Send + 'static) {
    *BEFORE_A_CALL.lock().unwrap() = Some((name, Box::new(body)));
    observe(fake, Some(before_a_call));
}

fn observe(fake: &Fake, observer: Option<unsafe extern "C" fn(*const c_char, usize) -> u32>) {
    let observe: extern "C" fn(Option<unsafe extern "C" fn(*const c_char, usize) -> u32>) =
        fake.driver("fakecuda_observe");
    observe(observer);
}

/// What runs something at the nth call.
fn at_nth(name: &'static str, nth: u32, body: Hook) -> Hook {
    match nth {
        ..=1 => body,
        _ => Box::new(move || *BEFORE_A_CALL.lock().unwrap() = Some((name, at_nth(name, nth - 1, body)))),
    }
}

/// Before the next call of a function another thread tells that a stream ends, and ends it; it has half a second for that.
fn ended_before(fake: &Fake, d: &Arc<DeviceState>, name: &'static str, stream: u64) {
    ended_before_nth(fake, d, (name, 1), stream);
}

/// The same before the nth call from now on.
fn ended_before_nth(fake: &Fake, d: &Arc<DeviceState>, (name, nth): (&'static str, u32), stream: u64) {
    let push: extern "C" fn(u64) -> u32 = fake.driver("cuCtxPushCurrent_v2");
    let pop: extern "C" fn(*mut u64) -> u32 = fake.driver("cuCtxPopCurrent_v2");
    let end: extern "C" fn(u64) -> u32 = fake.driver("cuStreamDestroy_v2");
    let (mut context, device) = (0, d.clone());
    fake.with_primary(0, || context = fake.current());
    let tells = move || {
        let (told, hear) = channel();
        *TAKER.lock().unwrap() = Some(std::thread::spawn(move || {
            device.streams().forget(stream).unwrap();
            assert_eq!((push(context), end(stream), pop(&mut 0)), (0, 0, 0));
            let _ = told.send(()); // nobody hears it later
        }));
        let _ = hear.recv_timeout(std::time::Duration::from_millis(500)); // it may wait for this call
    };
    before(fake, name, at_nth(name, nth, Box::new(tells)));
}

/// The other thread was there, and is done; the turn is over.
fn ended_by_then(fake: Fake) {
    let taker = TAKER.lock().unwrap().take();
    assert!(taker.is_some(), "somebody was there in between");
    taker.unwrap().join().unwrap();
    observe(&fake, None);
    fake.end();
}

/// While the library learns that a stream of its own has the handle of one that has ended, another thread takes the memory of
/// that one.
#[test]
fn memory_of_an_ended_stream_is_taken_while_its_handle_comes_again() {
    apart(|| {
        let (fake, d) = one(&[]);
        let (m, t) = (d.memory(), d.streams().create().unwrap());
        let s = fake.foreign_stream(0, NON_BLOCKING);
        let (open, go) = channel::<()>();
        let b = m.alloc(POOL, s, 40 * MIB).unwrap();
        fake.launch_host(0, s, move || _ = go.recv());
        d.memset_async(s, b, 9, MIB).unwrap();
        m.free(b, Some(s), None).unwrap();
        fake.foreign_stream_end(s);
        let (other, early) = (d.clone(), Arc::new(AtomicBool::new(true)));
        let (seen, mut open) = (early.clone(), Some(open));
        before(&fake, "cuCtxRecordEvent", move || {
            let (told, hear) = channel();
            let taker = std::thread::spawn(move || {
                let at = other.memory().alloc(POOL, t, 40 * MIB).unwrap();
                other.memset_async(t, at, 1, MIB).unwrap();
                // Long enough for a fill that waits for nobody.
                std::thread::sleep(std::time::Duration::from_millis(50));
                let _ = told.send(other.streams().query(t).unwrap()); // nobody hears it later
            });
            // It may wait for the work on the host, or until the library has learnt of the end.
            seen.store(hear.recv_timeout(std::time::Duration::from_millis(500)).unwrap_or(false), Relaxed);
            drop(open.take());
            *TAKER.lock().unwrap() = Some(taker);
        });
        assert_eq!(d.streams().create().unwrap(), s, "its handle comes again");
        observe(&fake, None);
        TAKER.lock().unwrap().take().expect("somebody was there in between").join().unwrap();
        assert!(!early.load(Relaxed), "the memory was used before the work of the ended stream was done");
        d.synchronize().unwrap();
        fake.end();
    });
}

/// A program keeps its promise, while another thread waits for the device and asks the streams that it knows.
#[test]
fn nobody_asks_a_stream_when_its_end_has_been_told() {
    apart(|| {
        let (fake, d) = announced(&[]);
        let m = d.memory();
        let p = m.pools().create(0).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        d.synchronize().unwrap();
                    }
                });
            }
            for _ in 0..300 {
                let s = fake.foreign_stream(0, NON_BLOCKING);
                m.captures().release(m.captures().begin(p, s).unwrap()).unwrap(); // it is asked from now on
                d.streams().forget(s).unwrap();
                fake.foreign_stream_end(s);
            }
            stop.store(true, Relaxed);
        });
        m.pools().destroy(p).unwrap();
        fake.end();
    });
}

/// Who waits for the device asks the streams that it knows one after the other, and meanwhile the end of one is told.
#[test]
fn of_several_streams_one_is_not_asked_whose_end_is_told_meanwhile() {
    apart(|| {
        for (which, nth) in (0..2).flat_map(|which| (1..20).map(move |nth| (which, nth))) {
            let (fake, d) = announced(&[]);
            let m = d.memory();
            let streams = [0; 2].map(|_| fake.foreign_stream(0, NON_BLOCKING));
            for s in streams {
                let b = m.alloc(POOL, s, 20 * MIB).unwrap();
                m.try_expand(b, 15 * MIB).unwrap(); // it is asked from now on
            }
            ended_before_nth(&fake, &d, ("cuStreamGetCaptureInfo_v2", nth), streams[which]);
            d.synchronize().unwrap();
            if BEFORE_A_CALL.lock().unwrap().take().is_some() {
                assert!(nth > 3, "each of the two is asked, and the default stream");
                observe(&fake, None);
                fake.end();
                continue;
            }
            ended_by_then(fake);
        }
    });
}

/// The driver's pool takes a block back in the order of its stream, which the call does not name, while another thread tells of
/// the end of that stream.
#[test]
fn a_block_of_the_drivers_pool_is_freed_while_the_end_of_its_stream_is_told() {
    apart(|| {
        let fake = Fake::new(&[("capacity", "64M")], |_| {});
        runtime::set_default_options(Some("cuda"), None, "backend:cudaMallocAsync,streams_announced:on")
            .unwrap();
        let d = runtime::device("cuda", 0).unwrap();
        let (m, s) = (d.memory(), fake.foreign_stream(0, NON_BLOCKING));
        let [a, b] = [3, 5].map(|n| m.alloc(POOL, s, n * MIB).unwrap());
        ended_before(&fake, &d, "cuMemFreeAsync", s);
        m.free(a, None, None).unwrap();
        m.free(b, None, None).unwrap();
        m.empty_cache(None).unwrap();
        assert_eq!(fake.used(0), 0);
        ended_by_then(fake);
    });
}

/// A restore moves memory between streams, which the call does not name, while another thread tells of the end of one.
#[test]
fn a_checkpoint_is_restored_while_the_end_of_a_stream_is_told() {
    apart(|| {
        for (call, first) in
            [("cuEventRecord", true), ("cuEventRecord", false), ("cuStreamGetCaptureInfo_v2", true)]
        {
            let (fake, d) = announced(&[]);
            let m = d.memory();
            let [s, t] = [0, 1].map(|_| fake.foreign_stream(0, NON_BLOCKING));
            let p = m.pools().create(0).unwrap();
            let given = m.alloc(p, s, 9 * MIB).unwrap();
            let c = m.checkpoints().make(p).unwrap();
            m.free(given, Some(s), None).unwrap();
            // What the checkpoint has on one stream is on the other now, and must come back.
            let others: Vec<u64> = (0..).map_while(|_| m.alloc(p, t, 4 * MIB).ok()).collect();
            assert!(others.len() > 8);
            ended_before(&fake, &d, call, if first { s } else { t });
            let _ = m.checkpoints().restore(p, c); // whether it finds the stream or not
            ended_by_then(fake);
        }
    });
}

/// A block grows in place, for which its stream is asked about captures.
#[test]
fn a_block_changes_its_size_while_the_end_of_its_stream_is_told() {
    apart(|| {
        let (fake, d) = announced(&[]);
        let m = d.memory();
        let s = fake.foreign_stream(0, NON_BLOCKING);
        let b = m.alloc(POOL, s, 40 * MIB).unwrap();
        ended_before(&fake, &d, "cuStreamGetCaptureInfo_v2", s);
        m.try_expand(b, 30 * MIB).unwrap();
        // What is free behind it may be in nobody's hands while the stream ends.
        let _ = m.try_expand(b, 38 * MIB);
        if BEFORE_A_CALL.lock().unwrap().take().is_some() {
            *TAKER.lock().unwrap() = Some(std::thread::spawn(|| {})); // it was not asked
        }
        ended_by_then(fake);
    });
}

/// Two devices whose programs tell of the ends of streams; a stream of the first one, and a block of the second that it has
/// used.
fn used_by_another_device() -> (Fake, [Arc<DeviceState>; 2], u64, u64) {
    let fake = Fake::new(&[("capacity", "64M"), ("devices", "2")], |_| {});
    runtime::set_default_options(Some("cuda"), None, "streams_announced:on").unwrap();
    let [near, far] = [0, 1].map(|i| runtime::device("cuda", i).unwrap());
    let s = fake.foreign_stream(0, NON_BLOCKING);
    let b = far.memory().alloc(POOL, 0, 5 * MIB).unwrap();
    far.memory().record_stream(b, s).unwrap();
    (fake, [near, far], s, b)
}

/// The block is freed, and the next request has it.
#[track_caller]
fn assert_used_again(d: &DeviceState, block: u64) {
    d.memory().free(block, Some(0), None).unwrap();
    assert_eq!(d.memory().alloc(POOL, 0, 5 * MIB).unwrap(), block);
}

/// A stream of another device has used a block, which is freed while the end of the stream is told there.
#[test]
fn another_device_asks_a_stream_while_its_end_is_told() {
    apart(|| {
        for call in ["cuStreamGetCtx_v2", "cuStreamGetCaptureInfo_v2", "cuEventRecord"] {
            let (fake, [near, far], s, b) = used_by_another_device();
            ended_before(&fake, &near, call, s);
            assert_used_again(&far, b);
            ended_by_then(fake);
        }
    });
}

/// A stream of another device has used a block, and the driver refuses to mark its work as it ends.
#[test]
fn another_device_asks_no_stream_that_could_not_be_marked_as_it_ended() {
    apart(|| {
        let (fake, [near, far], s, b) = used_by_another_device();
        fake.fail("cuEventRecord", 1, 999, false);
        near.streams().forget(s).unwrap();
        fake.fail_clear();
        fake.foreign_stream_end(s);
        assert_used_again(&far, b);
        fake.end();
    });
}
