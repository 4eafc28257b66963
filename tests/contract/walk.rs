//! A walk reports every block of a device as of one moment, even while other threads allocate and free.

use crate::apart::*;
use crate::api::*;
use millpond::capi::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const RECORD: usize = size_of::<millpond_block_record>();

/// The blocks of a device, or of one of its pools, by the array.
fn list(d: Device, pool: Option<Pool>, states: u32) -> Outcome<Vec<millpond_block_record>> {
    let pool = pool.map_or(null(), |p| ptr::<millpond_pool>(p.0).cast_const());
    let mut all: Vec<millpond_block_record> = Vec::with_capacity(64);
    loop {
        let mut count = 0;
        let room = all.capacity();
        let to = all.as_mut_ptr();
        outcome(unsafe {
            millpond_device_list_blocks(ptr(d.0), pool, states, to, RECORD, room, &mut count)
        })?;
        if count <= room {
            unsafe { all.set_len(count) };
            return Ok(all);
        }
        all.reserve(count);
    }
}

fn live(d: Device) -> Vec<millpond_block_record> {
    list(d, None, MILLPOND_BLOCK_LIVE).unwrap()
}

/// Threads that each have one of two blocks, and never both: a walk that is no single moment would see both, or more of
/// a pair than there can be.
fn under_load(d: Device) {
    const THREADS: usize = 8;
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut wrong = None;
    let pool = d.pool(0);
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let (stop, rounds) = (&stop, &rounds);
            s.spawn(move || {
                let stream = d.stream();
                // Of all tiers: small ones, large ones, and one that is scattered now and then.
                let sizes = [1000 + t, 40 * KIB + t, MIB + 4096 + t, 5 * MIB + t];
                while !stop.load(Relaxed) {
                    for &bytes in &sizes {
                        let p = pool.alloc(bytes, stream).unwrap();
                        pool.free(p, stream).unwrap();
                    }
                    rounds.fetch_add(1, Relaxed);
                }
            });
        }
        let mut walks = 0;
        while wrong.is_none() && (walks < 300 || rounds.load(Relaxed) < 2000) {
            walks += 1;
            wrong = one_moment(&live(d), THREADS);
        }
        stop.store(true, Relaxed);
    });
    assert_eq!(wrong, None);
    assert_eq!(live(d).len(), 0);
    pool.destroy().unwrap();
}

/// What cannot have been at one moment.
fn one_moment(seen: &[millpond_block_record], threads: usize) -> Option<String> {
    for t in 0..threads {
        let bytes = seen.iter().map(|r| r.requested_bytes);
        let of_thread: Vec<usize> = bytes.filter(|b| owner(*b) == t).collect();
        if of_thread.len() > 1 {
            return Some(format!("thread {t} has {of_thread:?} at one moment"));
        }
    }
    let apart = |w: &[millpond_block_record]| w[0].ptr.addr() + w[0].size_bytes <= w[1].ptr.addr();
    (!seen.windows(2).all(apart)).then(|| format!("blocks overlap: {seen:?}"))
}

/// Whose a block is: sizes differ by the thread's number.
fn owner(bytes: usize) -> usize {
    [1000, 40 * KIB, MIB + 4096, 5 * MIB]
        .iter()
        .filter_map(|s| bytes.checked_sub(*s))
        .find(|t| *t < 8)
        .unwrap()
}

#[test]
fn a_walk_under_load_is_one_moment() {
    apart(|| under_load(host(256 * MIB, true)));
}

#[test]
fn a_walk_under_load_is_one_moment_in_segments() {
    apart(|| under_load(host(256 * MIB, false)));
}

/// Blocks of every kind: with and without a stream, live, waiting and free, of two pools.
#[test]
fn a_walk_tells_whose_each_block_is() {
    apart(|| {
        for mapping in [true, false] {
            let d = host(256 * MIB, mapping);
            let (own, s, t) = (d.pool(0), d.stream(), d.stream());
            let a = own.alloc(1000, s).unwrap();
            let b = d.alloc(3 * MIB).unwrap();
            let gate = d.gate(t);
            let c = own.alloc(70_000, s).unwrap();
            record_stream(c, t).unwrap();
            own.free(c, s).unwrap();
            let all = list(d, None, MILLPOND_BLOCK_ANY).unwrap();
            let at = |p: usize| *all.iter().find(|r| r.ptr.addr() == p).unwrap();
            let told =
                |r: millpond_block_record| (r.requested_bytes, r.stream.addr(), r.pool.addr(), r.state);
            assert_eq!(told(at(a)), (1000, s.0, own.0, MILLPOND_BLOCK_LIVE));
            assert_eq!(told(at(b)), (3 * MIB, 0, d.default_pool().0, MILLPOND_BLOCK_LIVE));
            assert_eq!(told(at(c)), (70_000, s.0, own.0, MILLPOND_BLOCK_WAITING));
            for r in &all {
                assert_eq!((r.struct_size, r.segment.is_null()), (RECORD, mapping), "{r:?}");
                assert!(r.state != MILLPOND_BLOCK_FREE || r.requested_bytes == 0);
                assert!(mapping || (r.segment <= r.ptr));
            }
            let sum =
                |states| list(d, None, states).unwrap().iter().map(|r| r.size_bytes as u64).sum::<u64>();
            assert_eq!(sum(MILLPOND_BLOCK_LIVE), d.stats().allocated_bytes.current);
            assert_eq!(sum(MILLPOND_BLOCK_LIVE | MILLPOND_BLOCK_WAITING), d.stats().active_bytes.current);
            let ours = list(d, Some(own), MILLPOND_BLOCK_LIVE | MILLPOND_BLOCK_WAITING).unwrap();
            assert_eq!(ours.iter().map(|r| r.ptr.addr()).collect::<Vec<_>>(), {
                let mut both = vec![a, c];
                both.sort_unstable();
                both
            });
            gate.open();
            d.synchronize().unwrap();
            d.stats(); // which asks about what waits
            assert_eq!(list(d, None, MILLPOND_BLOCK_WAITING).unwrap().len(), 0);
            own.free(a, s).unwrap();
            free(b).unwrap();
            own.destroy().unwrap();
            assert!(list(d, None, MILLPOND_BLOCK_ANY).unwrap().iter().all(|r| r.pool.addr() != own.0));
        }
    });
}

/// Memory that is not pooled: each block is a piece of its own.
#[test]
fn a_walk_of_a_device_without_pooling() {
    apart(|| {
        let d = unpooled_host();
        let s = d.stream();
        let (a, b) = (d.default_pool().alloc(1000, s).unwrap(), d.alloc(5000).unwrap());
        let all = live(d);
        assert_eq!(all.len(), 2);
        for (p, bytes, stream) in [(a, 1000, s.0), (b, 5000, 0)] {
            let r = all.iter().find(|r| r.ptr.addr() == p).unwrap();
            assert_eq!((r.requested_bytes, r.stream.addr(), r.segment.addr()), (bytes, stream, p));
        }
        free(a).unwrap();
        free(b).unwrap();
        assert_eq!(live(d).len(), 0);
        millpond::runtime::set_default_options(Some("host"), None, "backend:native").unwrap();
    });
}

struct Seen {
    d: Device,
    addresses: Vec<usize>,
    most: usize,
}

/// A walk's callback that frees each block reported to it, until it has had enough.
unsafe extern "C-unwind" fn free_it(user_data: *mut c_void, record: *const millpond_block_record) -> bool {
    let (seen, r) = unsafe { (&mut *user_data.cast::<Seen>(), &*record) };
    seen.addresses.push(r.ptr.addr());
    free(r.ptr.addr()).unwrap();
    assert!(live(seen.d).iter().all(|other| other.ptr != r.ptr));
    seen.addresses.len() < seen.most
}

#[test]
fn a_callback_may_call_the_library_and_ends_the_walk() {
    apart(|| {
        let d = host(256 * MIB, true);
        let mut blocks: Vec<usize> = (0..10).map(|n| d.alloc(1000 * (n + 1)).unwrap()).collect();
        blocks.sort_unstable();
        let mut seen = Seen { d, addresses: vec![], most: 4 };
        let user_data = (&raw mut seen).cast();
        let walk = |callback| unsafe {
            millpond_device_walk_blocks(ptr(d.0), null(), MILLPOND_BLOCK_LIVE, callback, user_data)
        };
        outcome(walk(Some(free_it))).unwrap();
        assert_eq!(seen.addresses, blocks[..4], "by address");
        seen.most = usize::MAX;
        outcome(walk(Some(free_it))).unwrap();
        assert_eq!(seen.addresses, blocks);
    });
}

#[test]
fn bad_walks_are_refused_and_short_arrays_are_filled() {
    apart(|| {
        let d = host(256 * MIB, true);
        let other = Device::get("host", 1).unwrap();
        let blocks: Vec<usize> = (0..5).map(|_| d.alloc(1000).unwrap()).collect();
        let mut one = [unsafe { std::mem::zeroed::<millpond_block_record>() }; 3];
        let at = one.as_mut_ptr();
        let mut count = 77;
        let call = |device: usize, pool: usize, states, records, size, capacity, out| {
            outcome(unsafe {
                millpond_device_list_blocks(
                    ptr(device),
                    ptr::<millpond_pool>(pool).cast_const(),
                    states,
                    records,
                    size,
                    capacity,
                    out,
                )
            })
        };
        let bad = [
            call(0, 0, 7, at, RECORD, 3, &mut count),
            call(d.0, d.0, 7, at, RECORD, 3, &mut count),
            call(d.0, other.default_pool().0, 7, at, RECORD, 3, &mut count),
            call(d.0, 0, 0, at, RECORD, 3, &mut count),
            call(d.0, 0, 8, at, RECORD, 3, &mut count),
            call(d.0, 0, 7, null_mut(), RECORD, 3, &mut count),
            call(d.0, 0, 7, at.wrapping_byte_add(1), RECORD, 3, &mut count),
            call(d.0, 0, 7, at, 7, 3, &mut count),
            call(d.0, 0, 7, at, RECORD + 1, 3, &mut count),
            call(d.0, 0, 7, at, RECORD, 3, null_mut()),
            outcome(unsafe { millpond_device_walk_blocks(ptr(d.0), null(), 7, None, null_mut()) }),
        ];
        for (n, b) in bad.into_iter().enumerate() {
            assert_eq!(code(b), MILLPOND_E_INVALID_ARGUMENT, "{n}");
        }
        assert!(count == 77 && one.iter().all(|r| r.struct_size == 0), "nothing was written");

        call(d.0, 0, MILLPOND_BLOCK_LIVE, null_mut(), RECORD, 0, &mut count).unwrap();
        assert_eq!(count, 5);
        call(d.0, 0, MILLPOND_BLOCK_LIVE, at, RECORD, 2, &mut count).unwrap();
        assert_eq!((count, one[1].struct_size, one[2].struct_size), (5, RECORD, 0));
        // A caller with an older, shorter record.
        let mut short = [0usize; 6];
        call(d.0, 0, MILLPOND_BLOCK_LIVE, short.as_mut_ptr().cast(), 16, 3, &mut count).unwrap();
        assert_eq!((short[0], short[2], short[4]), (16, 16, 16));
        assert!([short[1], short[3], short[5]].iter().all(|p| blocks.contains(p)));
        blocks.into_iter().for_each(|b| free(b).unwrap());
    });
}

/// How long everybody waits for a walk: no longer than it takes to make the blocks, which is the reader's own work.
#[test]
fn a_walk_of_many_blocks_is_quick() {
    alone(60, || {
        const BLOCKS: usize = 200_000;
        let d = host(GIB, true);
        let (pool, s) = (d.pool(0), d.stream());
        let (made, blocks) =
            Cost::of(|| (0..BLOCKS).map(|_| pool.alloc(512, s).unwrap()).collect::<Vec<_>>());
        let mut count = 0;
        let walk = |records, capacity, count| unsafe {
            millpond_device_list_blocks(
                ptr(d.0),
                null(),
                MILLPOND_BLOCK_LIVE,
                records,
                RECORD,
                capacity,
                count,
            )
        };
        let (walked, done) = Cost::of(|| walk(null_mut(), 0, &mut count));
        outcome(done).unwrap();
        assert_eq!(count, blocks.len());
        assert!(walked.is_within(2.0, made), "made in {made:?}, walked in {walked:?}");
    });
}

/// Blocks side by side, each in its segment.
fn in_order(w: &[millpond_block_record]) -> bool {
    let end = w[0].ptr.addr() + w[0].size_bytes;
    let next = if w[0].segment == w[1].segment { w[1].ptr } else { w[1].segment };
    w[0].segment <= w[0].ptr && end <= next.addr() && next <= w[1].ptr
}

/// Where each block lies in a segment of its own that comes and goes with it: a walk fails for none of them, and tells
/// each where it was.
#[test]
fn a_walk_beside_segments_that_come_and_go() {
    apart(|| {
        let d = host(GIB, false);
        let (pool, s) = (d.default_pool(), d.stream());
        let stays = pool.alloc(1000, s).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for n in 0..2 {
                let stop = &stop;
                scope.spawn(move || {
                    let s = d.stream();
                    while !stop.load(Relaxed) {
                        for bytes in [300 * MIB, 257 * MIB + n * 4096] {
                            if let Ok(p) = pool.alloc(bytes, s) {
                                pool.free(p, s).unwrap();
                            }
                        }
                        if n == 1 {
                            d.empty_cache().unwrap();
                        }
                    }
                });
            }
            let until = std::time::Instant::now() + std::time::Duration::from_secs(3);
            let mut wrong = None;
            while wrong.is_none() && std::time::Instant::now() < until {
                wrong = match list(d, None, MILLPOND_BLOCK_ANY) {
                    Err(e) => Some(format!("{e:?}")),
                    Ok(all) => all.windows(2).find(|w| !in_order(w)).map(|w| format!("{w:?}")),
                };
            }
            stop.store(true, Relaxed);
            assert_eq!(wrong, None);
        });
        pool.free(stays, s).unwrap();
    });
}

fn addresses(all: &[millpond_block_record]) -> Vec<usize> {
    all.iter().map(|r| r.ptr.addr()).collect()
}

/// A walk while another thread's call is held on the device: it does not wait, and tells what lives.
#[test]
fn a_walk_waits_for_no_call_of_the_device() {
    apart(|| {
        let calls: [(bool, &[&str]); 2] =
            [(true, &["granules_create", "map", "unmap", "granules_release"]), (false, &["alloc", "free"])];
        for (mapping, names) in calls {
            for &name in names {
                let (d, control) = crate::held::host(GIB, mapping);
                let (pool, s) = (d.pool(0), d.stream());
                let mut mine: Vec<usize> =
                    [1000, 40 * KIB, 3 * MIB, 5 * MIB].map(|b| pool.alloc(b, s).unwrap()).to_vec();
                mine.sort_unstable();
                let hold = control.hold_before(name, 1);
                let other = crate::held::victim(move || {
                    let s = d.stream();
                    let blocks: Vec<usize> = (0..6).map(|_| pool.alloc(90 * MIB, s).unwrap()).collect();
                    for p in [0, 2, 4] {
                        pool.free(blocks[p], s).unwrap();
                    }
                    let wide = pool.alloc(250 * MIB, s).unwrap();
                    pool.free(wide, s).unwrap();
                    for p in [1, 3, 5] {
                        pool.free(blocks[p], s).unwrap();
                    }
                    pool.empty_cache().unwrap();
                });
                hold.reached();
                let (took, told) = timed(|| list(d, Some(pool), MILLPOND_BLOCK_ANY).unwrap());
                assert!(took < LATE, "{name}: {took:?}");
                let live: Vec<_> = told.iter().filter(|r| r.state == MILLPOND_BLOCK_LIVE).copied().collect();
                let live = addresses(&live);
                assert!(mine.iter().all(|p| live.contains(p)), "{name}: {mine:x?} of {live:x?}");
                let sum: usize =
                    told.iter().filter(|r| r.state == MILLPOND_BLOCK_LIVE).map(|r| r.size_bytes).sum();
                assert_eq!(sum as u64, pool.stats().allocated_bytes.current, "{name}");
                hold.let_go();
                other.join().unwrap();
                assert_eq!(addresses(&list(d, Some(pool), MILLPOND_BLOCK_LIVE).unwrap()), mine, "{name}");
                mine.into_iter().for_each(|p| pool.free(p, s).unwrap());
                pool.destroy().unwrap();
            }
        }
    });
}

/// In callbacks, of pools that sleep, are captured, restored or released, and of devices that have ended.
#[test]
fn a_walk_from_anywhere() {
    apart(|| {
        let d = host(256 * MIB, true);
        let (pool, s) = (d.pool(0), d.stream());
        let count = move |states| list(d, Some(pool), states).map(|all| all.len());
        let (a, b) = (pool.alloc(3 * MIB, s).unwrap(), pool.alloc(1000, s).unwrap());
        let (to, from) = std::sync::mpsc::channel();
        d.call(s, move || to.send(count(MILLPOND_BLOCK_LIVE).unwrap()).unwrap());
        assert_eq!(from.recv().unwrap(), 2);
        d.synchronize().unwrap();

        let point = pool.checkpoint();
        pool.free(a, s).unwrap();
        assert_eq!(count(MILLPOND_BLOCK_LIVE).unwrap(), 1);
        assert_eq!(pool.restore(point).unwrap(), [a]);
        assert_eq!(count(MILLPOND_BLOCK_LIVE).unwrap(), 2);

        let capture = pool.capture(s).unwrap();
        let c = d.default_pool().alloc(5000, s).unwrap();
        assert_eq!(count(MILLPOND_BLOCK_LIVE).unwrap(), 3, "what a capture has taken is of its pool");
        capture.end().unwrap();
        capture.release().unwrap();
        free(c).unwrap();

        pool.sleep(true).unwrap();
        assert_eq!(count(MILLPOND_BLOCK_LIVE).unwrap(), 2);
        assert_eq!(count(MILLPOND_BLOCK_FREE).unwrap(), 0);
        pool.wake().unwrap();
        assert!(count(MILLPOND_BLOCK_FREE).unwrap() > 0);

        pool.release().unwrap();
        assert_eq!(count(MILLPOND_BLOCK_LIVE).unwrap(), 2);
        assert!(live(d).iter().all(|r| r.pool.addr() == pool.0));
        free(a).unwrap();
        free(b).unwrap();
        d.empty_cache().unwrap();
        assert_eq!(code(count(MILLPOND_BLOCK_LIVE)), MILLPOND_E_INVALID_ARGUMENT);

        // A stream that has ended is not reported.
        let t = d.stream();
        let e = d.default_pool().alloc(1000, t).unwrap();
        d.end_stream(t).unwrap();
        assert_eq!(live(d)[0].stream.addr(), 0);
        free(e).unwrap();
        for _ in 0..1000 {
            let t = d.stream();
            let e = d.default_pool().alloc(100_000, t).unwrap();
            d.default_pool().free(e, t).unwrap();
            d.end_stream(t).unwrap();
        }
        assert_eq!(live(d).len(), 0);

        outcome(millpond_finalize()).unwrap();
        assert_eq!(code(list(d, None, MILLPOND_BLOCK_ANY)), MILLPOND_E_NOT_INITIALIZED);
    });
}

#[test]
fn an_exception_of_a_walk_ends_it() {
    unsafe extern "C-unwind" fn throws(user_data: *mut c_void, _: *const millpond_block_record) -> bool {
        unsafe { *user_data.cast::<u32>() += 1 };
        panic!("enough");
    }
    apart(|| {
        let d = host(256 * MIB, true);
        let blocks = [d.alloc(1000).unwrap(), d.alloc(2000).unwrap()];
        let mut calls = 0u32;
        let user_data = (&raw mut calls).cast();
        let ended = outcome(unsafe {
            millpond_device_walk_blocks(ptr(d.0), null(), MILLPOND_BLOCK_LIVE, Some(throws), user_data)
        });
        assert_eq!(code(ended), MILLPOND_E_SYSTEM, "the caller has not seen everything");
        assert_eq!((calls, live(d).len()), (1, 2));
        blocks.into_iter().for_each(|b| free(b).unwrap());
    });
}
