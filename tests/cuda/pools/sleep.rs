//! Pools that sleep, and layouts that come back.

use super::*;

/// A pool with small blocks, a large one and a scattered one, all with content of their own.
pub(crate) fn full_pool(fake: &Fake, d: &DeviceState, s: u64, sparse: bool) -> (PoolId, Others) {
    let m = d.memory();
    let p = m.pools().create(24 * MIB).unwrap();
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

/// Large contents sleep in pinned memory: one copy of the driver's each way, and not by way of pageable memory.
#[test]
fn large_contents_sleep_in_pinned_memory() {
    let (fake, d) = one(&[]);
    let m = d.memory();
    let p = m.pools().create(0).unwrap();
    let bytes = 43 * MIB;
    let at = m.alloc(p, 0, bytes).unwrap();
    let mark = |i: u64| [i as u8, 255 - i as u8];
    let places: Vec<u64> = (0..43).flat_map(|i| [at + i * MIB, at + (i + 1) * MIB - 2]).collect();
    places.iter().enumerate().for_each(|(i, place)| fake.write(0, *place, &mark(i as u64)).unwrap());
    let check = |why: &str| {
        for (i, place) in places.iter().enumerate() {
            assert_eq!(fake.read(0, *place, 2).unwrap(), mark(i as u64), "at {}, {why}", place - at);
        }
    };
    let calls = |name: &str| fake.calls(name);
    let (out, back) = (calls("cuMemcpyDtoH_v2"), calls("cuMemcpyHtoD_v2"));
    let streams = calls("cuStreamCreate") + calls("cuStreamCreateWithPriority");
    d.pools().sleep(&[p], true).unwrap();
    assert_eq!((calls("cuMemcpyDtoHAsync_v2"), calls("cuMemcpyDtoH_v2") - out), (0, 1));
    assert_eq!((calls("cuMemHostRegister_v2"), calls("cuMemHostUnregister")), (1, 0));
    d.pools().wake(&[p]).unwrap();
    assert_eq!((calls("cuMemcpyHtoDAsync_v2"), calls("cuMemcpyHtoD_v2") - back), (0, 1));
    // One of our own might have the handle of a stream that has ended without notice.
    assert_eq!(calls("cuStreamCreate") + calls("cuStreamCreateWithPriority"), streams);
    assert_eq!(calls("cuMemHostUnregister"), 1, "the memory is given back");
    check("pinned");
    // Without pinned memory it works all the same.
    fake.fail("cuMemHostRegister_v2", 1, 2, true);
    d.pools().sleep(&[p], true).unwrap();
    d.pools().wake(&[p]).unwrap();
    check("pageable");
    fake.fail_clear();
    // What the driver refuses to take back is given back with the next wait for the device, or the next copy.
    for again in [true, false] {
        d.pools().sleep(&[p], true).unwrap();
        fake.fail("cuMemHostUnregister", 1, 1, false);
        d.pools().wake(&[p]).unwrap();
        check("refused");
        let before = calls("cuMemHostUnregister");
        if again {
            d.pools().sleep(&[p], true).unwrap();
            d.pools().wake(&[p]).unwrap();
        } else {
            m.empty_cache(None).unwrap();
        }
        assert_eq!(calls("cuMemHostUnregister") - before, 1 + u64::from(again));
    }
    m.free(at, Some(0), None).unwrap();
    m.pools().destroy(p).unwrap();
    fake.end();
}

/// Pools of two threads sleep and wake beside each other, and beside a third one that allocates.
#[test]
fn pools_of_several_threads_sleep_in_pinned_memory() {
    let fake = Fake::new(&[("capacity", "192M")], |_| {});
    let d = millpond::runtime::device("cuda", 0).unwrap();
    let m = d.memory();
    let mut content = [(); 2].map(|()| Others { sparse: true, ..Others::default() });
    let pools = content.each_mut().map(|content| {
        let p = m.pools().create(0).unwrap();
        content.put(&fake, m.alloc(p, 0, 40 * MIB).unwrap(), 40 * MIB);
        p
    });
    std::thread::scope(|scope| {
        for p in pools {
            let d = &d;
            scope.spawn(move || {
                for _ in 0..20 {
                    d.pools().sleep(&[p], true).unwrap();
                    d.pools().wake(&[p]).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for n in 0..200 {
                let at = m.alloc(PoolId::DEFAULT, 0, (n % 9 + 1) * MIB).unwrap();
                m.free(at, Some(0), None).unwrap();
            }
        });
    });
    for content in content {
        content.check(&fake);
        content.free(&d);
    }
    pools.iter().for_each(|&p| m.pools().destroy(p).unwrap());
    m.empty_cache(None).unwrap();
    assert_eq!(fake.used(0), 0);
    fake.end();
}

#[test]
fn memory_sleeps_and_wakes_at_its_addresses() {
    for save in [true, false] {
        let (fake, d) = one(&[]);
        let m = d.memory();
        let s = d.streams().create().unwrap();
        let (p, content) = full_pool(&fake, &d, s, false);
        assert_eq!(fake.used(0), 24 * MIB);
        d.pools().sleep(&[p], save).unwrap();
        assert_eq!(fake.used(0), 0, "the memory is the device's again");
        assert_eq!(m.pools().stats(p).unwrap().sleeping.current, 24 * MIB);
        assert!(
            fake.read(0, content.blocks[0].0, 1).is_err() || fake.read(0, content.blocks[5].0, 1).is_err()
        );
        assert_eq!(d.memset_async(s, content.blocks[0].0, 1, 1).unwrap_err().code(), Code::NotPermitted);
        // Others have all of the device meanwhile: a wake is not possible, and loses nothing.
        let mut others = Others::default();
        others.take_all(&fake, &d, POOL, s);
        assert_eq!(fake.used(0), 64 * MIB);
        assert_eq!(d.pools().wake(&[p]).unwrap_err().code(), Code::OutOfMemory);
        others.check(&fake);
        assert_eq!(m.pools().stats(p).unwrap().sleeping.current, 24 * MIB);
        others.free(&d); // idle memory is given back for the wake, and no more of it than is lacking
        d.pools().wake(&[p]).unwrap();
        let st = m.pools().stats(p).unwrap();
        assert_eq!((st.sleeping.current, st.reserved.current, fake.used(0)), (0, 24 * MIB, 64 * MIB));
        if save {
            content.check(&fake);
        }
        (0..content.blocks.len()).for_each(|i| content.fill(&fake, i)); // all can be written
        content.check(&fake);
        content.free(&d);
        m.pools().destroy(p).unwrap();
        fake.end();
    }
}

#[test]
fn a_pool_that_a_graph_keeps_may_sleep_between_replays() {
    for made in [Here, ElsewhereNonBlocking] {
        let (fake, d) = one(&[]);
        let m = d.memory();
        let s = stream(&fake, &d, made);
        let p = m.pools().create(0).unwrap();
        let c = m.captures().begin(p, s).unwrap();
        record(&fake, s, GLOBAL);
        let result = m.alloc(POOL, s, 2000).unwrap();
        work(&d, s, p, result, 1);
        let e = d.pools().sleep(&[p], true).unwrap_err();
        assert!(matches!(e.code(), Code::Busy | Code::NotPermitted), "{e}");
        let exec = graph(&fake, s);
        m.captures().end(c).unwrap();
        for round in 0..3 {
            replay(&fake, exec, s);
            check_result(&fake, result, 1);
            let (used, held) = (fake.used(0), reserved(&d, p));
            assert!(held > 9 * MIB);
            d.pools().sleep(&[p], round != 1).unwrap();
            assert_eq!(fake.used(0), used - held);
            let x = m.alloc(POOL, 0, 40 * MIB).unwrap();
            d.memset(x, 5, 40 * MIB).unwrap();
            m.free(x, Some(0), None).unwrap();
            d.pools().wake(&[p]).unwrap();
        }
        replay(&fake, exec, s);
        check_result(&fake, result, 1);
        graph_end(&fake, exec);
        m.free(result, Some(s), None).unwrap();
        m.captures().release(c).unwrap();
        m.pools().destroy(p).unwrap();
        stream_end(&fake, &d, made, s);
        fake.end();
    }
}

#[test]
fn a_layout_comes_back_between_replays() {
    for settings in [MAPPED, SEGMENTS] {
        let (fake, d) = one(settings);
        let m = d.memory();
        let s = d.streams().create().unwrap();
        let p = m.pools().create(0).unwrap();
        let capture = |value: u8| {
            let c = m.captures().begin(p, s).unwrap();
            record(&fake, s, GLOBAL);
            let result = m.alloc(POOL, s, 2000).unwrap();
            work(&d, s, p, result, value);
            let exec = graph(&fake, s);
            m.captures().end(c).unwrap();
            (c, exec, result)
        };
        let (c1, exec_1, result_1) = capture(1);
        let saved = m.checkpoints().make(p).unwrap();
        m.free(result_1, Some(s), None).unwrap();
        let (c2, exec_2, result_2) = capture(21);
        assert_eq!(result_1, result_2, "the second graph puts its result where the first one's was");
        let eager = m.alloc(p, s, 3 * MIB).unwrap();
        replay(&fake, exec_2, s);
        check_result(&fake, result_2, 21);
        let back = d.pools().restore(p, saved).unwrap();
        assert_eq!((back.freed(), back.live), (vec![(eager, 3 * MIB)], vec![]));
        replay(&fake, exec_1, s);
        check_result(&fake, result_1, 1);
        m.free(result_1, Some(s), None).unwrap();
        let back = d.pools().restore(p, saved).unwrap();
        assert_eq!((back.freed(), back.live), (vec![], vec![(result_1, 2000)]));
        // Not while the stream is captured: the capture stays whole.
        let c3 = m.captures().begin(p, s).unwrap();
        record(&fake, s, GLOBAL);
        assert_eq!(d.pools().restore(p, saved).unwrap_err().code(), Code::Busy);
        graph_end(&fake, graph(&fake, s));
        m.captures().end(c3).unwrap();
        [exec_1, exec_2].into_iter().for_each(|x| graph_end(&fake, x));
        m.free(result_1, Some(s), None).unwrap();
        [c1, c2, c3].into_iter().for_each(|c| m.captures().release(c).unwrap());
        m.checkpoints().destroy(saved).unwrap();
        m.pools().destroy(p).unwrap();
        fake.end();
    }
}
