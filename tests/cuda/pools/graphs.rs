//! Memory of graphs: captures, replays, and what goes on beside them.

use super::*;

#[test]
fn replays_find_their_memory() {
    on_streams(|fake, d, s, made, mode| {
        let (m, t) = (d.memory(), d.streams().create().unwrap());
        let p = m.pools().create(0).unwrap();
        let mut others = Others::default();
        for (stream, bytes) in [(t, 3 * MIB), (s, 70_000), (0, 5000)] {
            others.put(&fake, m.alloc(POOL, stream, bytes).unwrap(), bytes);
        }
        let first = m.captures().begin(p, s).unwrap();
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
        let _ = d.streams().synchronize(t);
        let exec = graph(&fake, s);
        m.captures().end(first).unwrap();

        // Everything that the device has is somebody else's now, but for what the graph needs.
        let q = m.pools().create(0).unwrap();
        others.take_all(&fake, &d, q, t);
        others.take_all(&fake, &d, POOL, s);
        for _ in 0..3 {
            replay(&fake, exec, s);
            check_result(&fake, result, 1);
            others.check(&fake);
        }
        // A second capture uses what the first one has freed.
        let before = reserved(&d, p);
        let second = m.captures().begin(p, s).unwrap();
        record(&fake, s, mode);
        let result_2 = m.alloc(POOL, s, 2000).unwrap();
        work(&d, s, p, result_2, 11);
        let exec_2 = graph(&fake, s);
        m.captures().end(second).unwrap();
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
        m.captures().release(first).unwrap();
        m.empty_cache(None).unwrap();
        replay(&fake, exec_2, s);
        check_result(&fake, result_2, 11);
        others.check(&fake);
        assert_eq!(m.pools().destroy(p).unwrap_err().code(), Code::Busy);
        graph_end(&fake, exec_2);
        m.free(result_2, Some(s), None).unwrap();
        let (used, held) = (fake.used(0), reserved(&d, p));
        assert!(held >= 12 * MIB);
        m.captures().release(second).unwrap();
        assert_eq!((reserved(&d, p), fake.used(0)), (0, used - held));
        others.check(&fake);
        others.free(&d);
        m.pools().destroy(p).unwrap();
        m.pools().destroy(q).unwrap();
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
            let p = m.pools().create(0).unwrap();
            let c = m.captures().begin(p, s).unwrap();
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
            m.captures().release(c).unwrap();
            assert_eq!(reserved(&d, p), 0);
            m.pools().destroy(p).unwrap();
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
    on_streams(|fake, d, s, made, mode| {
        let (m, t, u) = (d.memory(), d.streams().create().unwrap(), d.streams().create().unwrap());
        let p = m.pools().create(0).unwrap();
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
                let c = m.captures().begin(p, s).unwrap();
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
                m.captures().end(c).unwrap();
                if let ByBusy = used {
                    let y = get();
                    assert_ne!(x, y, "{used:?}: used again too early");
                    m.free(y, Some(t), None).unwrap();
                }
                fake.hold(false);
                d.streams().synchronize(u).unwrap();
                graph_end(&fake, exec);
                m.captures().release(c).unwrap();
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
    on_streams(|fake, d, s, made, mode| {
        let (m, t) = (d.memory(), d.streams().create().unwrap());
        let p = m.pools().create(0).unwrap();
        let x = m.alloc(POOL, s, 6 * MIB).unwrap();
        fake.write(0, x, &vec![7; 6 << 20]).unwrap();
        let c = m.captures().begin(p, s).unwrap();
        record(&fake, s, mode);
        m.free(x, Some(s), None).unwrap();
        let mut others = Others::default();
        others.take_all(&fake, &d, POOL, t);
        let q = m.pools().create(0).unwrap();
        others.take_all(&fake, &d, q, 0);
        assert!(m.alloc_unordered(POOL, 6 * MIB).is_err());
        let as_put = fake.read(0, x, 6 << 20).unwrap() == vec![7; 6 << 20];
        assert!(as_put, "work of the captured stream may still use it");
        graph_end(&fake, graph(&fake, s));
        m.captures().release(c).unwrap();
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
    d.streams().callback(s, Box::new(move |_| _ = closed.recv_timeout(Duration::from_secs(20)))).unwrap();
    open
}

#[test]
fn eager_requests_wait_for_blocks_beside_a_capture() {
    on_streams(|fake, d, s, made, mode| {
        let (m, t, u) = (d.memory(), d.streams().create().unwrap(), d.streams().create().unwrap());
        let p = m.pools().create(0).unwrap();
        let limit = 60 * MIB;
        let x = m.alloc(POOL, t, limit).unwrap();
        m.pools().set_limit(POOL, reserved(&d, POOL)).unwrap();
        m.record_stream(x, u).unwrap();
        let open = gate(&d, u);
        m.free(x, Some(t), None).unwrap();
        let c = m.captures().begin(p, s).unwrap();
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
        m.captures().release(c).unwrap();
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
            let (s, t) = (d.streams().create().unwrap(), d.streams().create().unwrap());
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
            d.streams()
                .callback(
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
            d.streams().synchronize(t).unwrap();
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
        let s = stream(&fake, &d, made);
        let (m, t, u) = (d.memory(), d.streams().create().unwrap(), d.streams().create().unwrap());
        let p = m.pools().create(0).unwrap();
        let x = m.alloc(POOL, t, 3 * MIB).unwrap();
        // (With an old driver, the free of a block without a stream waits for `u` on the host.)
        let y = if settings == OLD { 0 } else { m.alloc_unordered(POOL, 3 * MIB).unwrap() };
        let z = m.alloc(POOL, t, 3 * MIB).unwrap();
        m.record_stream(x, s).unwrap();
        m.record_stream(z, u).unwrap();
        let open = gate(&d, u); // `z` is in use until this is opened
        let c = m.captures().begin(p, s).unwrap();
        record(&fake, s, mode);
        let inner: Arc<DeviceState> = d.clone();
        let (tell, told) = mpsc::channel();
        d.streams()
            .callback(
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
        m.captures().end(c).unwrap();
        assert_ne!(m.alloc(POOL, t, 3 * MIB).unwrap(), z, "its stream still works on it");
        open.send(()).unwrap();
        d.synchronize().unwrap();
        m.captures().release(c).unwrap();
        let s = m.stats();
        assert_eq!(s.active.current, s.allocated.current, "all came back");
        fake.end();
    });
}

#[test]
fn a_capture_that_only_the_driver_knows_is_not_disturbed() {
    on_streams(|fake, d, s, made, mode| {
        // A stream that was created elsewhere is asked only if it cannot end without notice.
        d.options().set("streams_announced:on").unwrap();
        let (m, t) = (d.memory(), d.streams().create().unwrap());
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
        let ended = if made == Here { d.streams().destroy(s) } else { d.streams().forget(s) };
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
    let p = m.pools().create(0).unwrap();
    for s in [0, 1, 2] {
        let e = m.captures().begin(p, s).unwrap_err();
        assert!(matches!(e.code(), Code::InvalidArgument | Code::Unsupported), "{s}: {e}");
    }
    let s = d.streams().create().unwrap();
    let c = m.captures().begin(p, s).unwrap();
    for other in [0, 1, 2, s] {
        assert!(m.captures().add(c, other).is_err(), "{other}");
    }
    m.captures().release(c).unwrap();
    m.pools().destroy(p).unwrap();
    fake.end();
}

#[test]
fn pinned_memory_that_a_capture_uses_comes_back() {
    let (fake, d) = one(&[]);
    let (s, p) = (d.streams().create().unwrap(), d.memory().pools().create(0).unwrap());
    let a = d.memory().alloc(POOL, s, MIB).unwrap();
    let h = d.host_memory().alloc(MIB).unwrap();
    let c = d.memory().captures().begin(p, s).unwrap();
    record(&fake, s, GLOBAL);
    unsafe { d.copy_async(s, CopyKind::HostToDevice, a, h, MIB).unwrap() };
    d.host_memory().free(h).unwrap();
    let again = d.host_memory().alloc(MIB).unwrap();
    assert_ne!(again, h, "the captured copy has not run");
    d.host_memory().free(again).unwrap();
    graph_end(&fake, graph(&fake, s));
    d.memory().captures().release(c).unwrap();
    fake.end();
}
