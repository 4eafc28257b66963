//! Programs written by hand: what is usual, what is at the edge, what is refused.

use super::random::Random;
use super::*;

#[test]
fn a_warm_program_makes_no_driver_call() {
    let mut b = Bench::new(config(true, 64 << 20));
    let sizes: Vec<u64> = (0..40).map(|i: u64| 1 + i * i * 1777 % (3 << 20)).collect();
    let mut calls = Vec::new();
    for _ in 0..4 {
        for (i, &s) in sizes.iter().enumerate() {
            b.alloc(PoolId::DEFAULT, Some(0), s).unwrap();
            if i % 3 == 2 {
                b.free(b.live.len() / 2, None);
            }
        }
        while !b.live.is_empty() {
            b.free(b.live.len() - 1, None);
        }
        calls.push(b.world.lock().unwrap().calls);
    }
    assert!(calls[0] > 0);
    assert_eq!(calls[2], calls[3]);
    b.finish();
}

/// Memory that another thread frees while the device is waited for may have work on it that is queued after.
#[test]
fn nothing_goes_back_that_was_freed_during_the_wait() {
    for (mapping, collected, nth) in
        [(true, false, 1), (true, false, 2), (false, false, 2), (true, true, 2), (false, true, 2)]
    {
        let world = Arc::new(Mutex::new(World { capacity: 256 << 20, ..World::default() }));
        let config = Config { realloc: G, init_alloc: G, ..config(mapping, 256 << 20) };
        let pond = Arc::new(Pond::new(config, Arc::new(Sim(world.clone()))).unwrap());
        world.lock().unwrap().real = pond.ground().memory_granules();
        let get = |stream, bytes| pond.alloc(PoolId::DEFAULT, stream, bytes).unwrap();
        let before = get(1, G);
        let parts: Vec<u64> = (0..6).map(|_| get(2, G)).collect();
        parts.iter().step_by(2).for_each(|&p| pond.free(p, Some(2), None).unwrap());
        // On a mapping device in the three holes, shown side by side.
        let during = get(2, if mapping { 3 * G } else { G });
        pond.free(before, Some(1), None).unwrap();
        let (there, device) = (pond.clone(), world.clone());
        world.lock().unwrap().meanwhile.push_back((
            nth,
            Box::new(move || {
                let mut w = device.lock().unwrap();
                let st = w.streams.entry(2).or_default();
                st.queued += 1;
                let queued = st.queued;
                w.in_flight = w.behind(during, G).iter().map(|r| ((r.0 / G) as u32, queued)).collect();
                drop(w);
                there.free(during, Some(2), None).unwrap();
            }),
        ));
        if collected {
            pond.tune(Tuning { collect_above: 1, ..Tuning::default() });
            get(3, 5 * G);
        } else {
            pond.empty_cache(None).unwrap();
        }
        assert!(world.lock().unwrap().meanwhile.is_empty(), "{mapping} {collected}: not so many waits");
        pond.tune(Tuning::default());
        pond.empty_cache(None).unwrap();
        let left = if collected { 8 * G } else { 3 * G };
        assert_eq!(world.lock().unwrap().taken, left, "{mapping} {collected}");
        pond.ground().check();
    }
}

#[test]
fn sizes_at_the_edges() {
    let cap = 64u64 << 20;
    let mut b = Bench::new(config(true, cap));
    for bytes in [1, 512, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, G - 1, G, G + 1, cap] {
        let i = b.alloc(PoolId::DEFAULT, Some(7), bytes).unwrap();
        assert_eq!(b.pond.block(b.live[i].offset + bytes - 1).unwrap().requested, bytes);
        b.free(i, None);
    }
    for bytes in [cap + 1, u64::MAX - 600, u64::MAX] {
        assert_eq!(b.pond.alloc(PoolId::DEFAULT, 7, bytes).unwrap_err().code(), Code::OutOfMemory);
    }
    b.finish();
}

#[test]
fn bad_frees_are_refused_and_lose_nothing() {
    let mut b = Bench::new(config(true, 64 << 20));
    for bytes in [100u64, 5000, 3 << 20] {
        let i = b.alloc(PoolId::DEFAULT, Some(0), bytes).unwrap();
        let at = b.live[i].offset;
        let code = |r: Result<()>| r.unwrap_err().code();
        assert_eq!(code(b.pond.free(at + 512, None, None)), Code::UnknownPointer);
        assert_eq!(code(b.pond.free(at + 1, None, None)), Code::UnknownPointer);
        assert_eq!(code(b.pond.free(u64::MAX, None, None)), Code::UnknownPointer);
        assert_eq!(code(b.pond.free(60 << 20, None, None)), Code::UnknownPointer);
        for wrong in [bytes + 1, bytes - 1, 1] {
            assert_eq!(code(b.pond.free(at, None, Some(wrong))), Code::WrongSize);
        }
        b.pond.free(at, None, Some(bytes)).unwrap();
        assert_eq!(code(b.pond.free(at, None, None)), Code::DoubleFree);
        let s = b.pond.stats(None).unwrap();
        assert_eq!((s.blocks.current, s.allocated.current), (0, 0));
        let gone = b.live.pop().unwrap();
        for (a, _) in b.world.lock().unwrap().behind(gone.offset, gone.bytes) {
            b.taken.remove(&a);
        }
        b.requested -= bytes;
    }
    b.finish();
}

#[test]
fn limits_hold_and_pools_come_and_go() {
    let mut b = Bench::new(config(true, 64 << 20));
    let p = b.pond.pool_create(4 << 20, false).unwrap();
    let i = b.alloc(p, Some(0), 3 << 20).unwrap();
    assert_eq!(b.alloc(p, Some(0), 3 << 20).unwrap_err().code(), Code::OutOfMemory);
    assert_eq!(b.pond.pool_destroy(p).unwrap_err().code(), Code::Busy);
    b.free(i, None);
    b.pond.pool_destroy(p).unwrap();
    assert_eq!(b.pond.alloc(p, 0, 1).unwrap_err().code(), Code::InvalidArgument);
    assert!(b.pond.stats(Some(p)).is_err());
    for _ in 0..1000 {
        let q = b.pond.pool_create(0, false).unwrap();
        assert_ne!(q, p);
        let i = b.alloc(q, Some(1), 1000).unwrap();
        b.free(i, None);
        b.pond.pool_destroy(q).unwrap();
        b.pond.pool_forgotten(q);
    }
    // Slots rest for a while, and are used again then.
    assert!(b.pond.ground().pools().all().count() < 80);
    b.pond.set_limit(6 << 20);
    b.alloc(PoolId::DEFAULT, Some(0), 5 << 20).unwrap();
    assert_eq!(b.alloc(PoolId::DEFAULT, Some(0), 3 << 20).unwrap_err().code(), Code::OutOfMemory);
    b.finish();
}

#[test]
fn streams_by_the_thousand_leave_nothing_behind() {
    let mut b = Bench::new(config(true, 64 << 20));
    for s in 10..10 + part_of(3000) as u64 {
        let i = b.alloc(PoolId::DEFAULT, Some(s), 3 << 20).unwrap();
        b.free(i, None);
        stream_ends(&b.pond, s);
    }
    assert!(b.pond.ground().heaps().count() <= 2);
    assert!(b.pond.stats(None).unwrap().reserved.peak <= 4 << 20);
    b.finish();
}

#[test]
fn a_large_plugin_chunk_and_padding_are_honoured() {
    let mut c = config(false, 256 << 20);
    (c.min_chunk, c.padding, c.init_alloc, c.realloc, c.max_chunk) =
        (1 << 20, 100, 16 << 20, 4 << 20, 8 << 20);
    let mut b = Bench::new(c);
    let i = b.alloc(PoolId::DEFAULT, Some(0), (1 << 20) - 100).unwrap();
    assert_eq!(b.pond.stats(None).unwrap().allocated.current, 1 << 20);
    assert_eq!(b.world.lock().unwrap().taken, 16 << 20, "the first segment has the init size");
    let j = b.alloc(PoolId::DEFAULT, Some(0), (1 << 20) - 99).unwrap();
    assert_eq!(b.pond.stats(None).unwrap().allocated.current, 3 << 20);
    assert_eq!((b.live[i].offset % (1 << 20), b.live[j].offset % (1 << 20)), (0, 0));
    let k = b.alloc(PoolId::DEFAULT, Some(0), 9 << 20).unwrap();
    assert_eq!(
        b.world.lock().unwrap().taken,
        26 << 20,
        "past the max chunk: exactly size + padding, rounded"
    );
    b.free(k, None);
    assert_eq!(b.world.lock().unwrap().taken, 26 << 20, "its stream may still use it");
    b.pond.ground().backing.sync_all().unwrap();
    b.pond.stats(None).unwrap();
    assert_eq!(b.world.lock().unwrap().taken, 16 << 20, "and given back when that is over");
    for _ in 0..14 {
        b.alloc(PoolId::DEFAULT, Some(0), 100).unwrap();
    }
    assert_eq!(b.world.lock().unwrap().taken, 20 << 20, "later segments have the realloc size");
    b.finish();
}

#[test]
fn threads_on_own_and_shared_streams_keep_the_books_exact() {
    let pond = Arc::new(Bench::new(config(true, 512 << 20)).pond);
    let (tx, rx) = std::sync::mpsc::sync_channel::<u64>(64);
    let owners = Mutex::new(BTreeMap::<u64, u64>::new());
    std::thread::scope(|s| {
        for t in 0..8u64 {
            let (pond, tx, owners) = (pond.clone(), tx.clone(), &owners);
            s.spawn(move || {
                let mut mine = Vec::new();
                let mut x = t * 77 + 1;
                for _ in 0..4000 {
                    x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let bytes = 1 + (x >> 33) % (1 << ((x >> 20) % 22));
                    {
                        let o = pond.alloc(PoolId::DEFAULT, t % 4, bytes).unwrap();
                        let mut own = owners.lock().unwrap();
                        if let Some((_, &end)) = own.range(..o + bytes).next_back() {
                            assert!(end <= o, "overlap");
                        }
                        own.insert(o, o + bytes);
                        drop(own);
                        mine.push(o);
                    }
                    if mine.len() > 40 {
                        let o = mine.swap_remove((x >> 40) as usize % mine.len());
                        if x & 4 == 0 {
                            tx.send(o).unwrap();
                        } else {
                            owners.lock().unwrap().remove(&o);
                            pond.free(o, None, None).unwrap();
                        }
                    }
                }
                for o in mine {
                    owners.lock().unwrap().remove(&o);
                    pond.free(o, None, None).unwrap();
                }
            });
        }
        drop(tx);
        for o in rx {
            owners.lock().unwrap().remove(&o);
            pond.free(o, None, None).unwrap();
        }
    });
    let s = pond.stats(None).unwrap();
    assert_eq!((s.blocks.current, s.allocated.current, s.requested.current), (0, 0, 0));
    assert_eq!(s.blocks.total, 32_000);
    pond.ground().check();
    pond.empty_cache(None).unwrap();
    assert_eq!(pond.stats(None).unwrap().reserved.current, 0);
}

/// A program that repeats itself, on `streams`, the first of which has most of its blocks: the driver calls of each of eight
/// passes, and the most that it reserved.
fn repeated(streams: u64, capacity: u64) -> (Vec<u64>, u64) {
    let mut b = Bench::new(config(true, capacity));
    let mut calls = Vec::new();
    for _ in 0..8 {
        let before = b.world.lock().unwrap().calls;
        let mut r = Random(1);
        for _ in 0..300 {
            let bytes = 1 + (40 << 10 << r.below(9)) * (1000 + r.below(1000)) / 1000;
            let stream = if r.below(4) == 0 { r.below(streams) } else { 0 };
            b.alloc(PoolId::DEFAULT, Some(stream), bytes).unwrap();
            while b.live.len() > 60 {
                b.free(r.below(b.live.len() as u64) as usize, None);
            }
        }
        while !b.live.is_empty() {
            b.free(b.live.len() - 1, None);
        }
        calls.push(b.world.lock().unwrap().calls - before);
    }
    let most = b.pond.ground().growing().account.device().reserved.peak;
    b.finish();
    (calls, most)
}

/// Memory is spared while it may be missing, which costs driver calls, and not for ever.
#[test]
fn a_program_comes_to_rest_on_a_device_a_tenth_larger_than_it_needs() {
    for streams in 1..=3 {
        let (_, needed) = repeated(streams, 8 << 30);
        let (calls, _) = repeated(streams, (needed * 11 / 10).next_multiple_of(G));
        assert!(calls[0] > 100, "{calls:?}");
        assert_eq!(calls[6..], [0, 0], "{streams} streams: {calls:?}");
    }
}
