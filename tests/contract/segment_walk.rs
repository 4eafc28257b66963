//! A walk of segments reports all reserved memory once, where it is used, as of one moment; and where a scattered block's
//! memory lies.

use crate::apart::*;
use crate::api::*;
use millpond::capi::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const RECORD: usize = size_of::<millpond_segment_record>();

fn list(d: Device, pool: Option<Pool>) -> Outcome<Vec<millpond_segment_record>> {
    let pool = pool.map_or(null(), |p| ptr::<millpond_pool>(p.0).cast_const());
    let mut all: Vec<millpond_segment_record> = Vec::with_capacity(16);
    loop {
        let (mut count, room, to) = (0, all.capacity(), all.as_mut_ptr());
        outcome(unsafe { millpond_device_list_segments(ptr(d.0), pool, to, RECORD, room, &mut count) })?;
        if count <= room {
            unsafe { all.set_len(count) };
            return Ok(all);
        }
        all.reserve(count);
    }
}

/// The segments of the device, which do not overlap, and whose sizes are those of the account.
#[track_caller]
fn fits(d: Device) -> Vec<millpond_segment_record> {
    let all = list(d, None).unwrap();
    let apart = |w: &[millpond_segment_record]| w[0].ptr.addr() + w[0].size_bytes <= w[1].ptr.addr();
    assert!(all.windows(2).all(apart), "{all:?}");
    let mut homes: Vec<_> = all.iter().map(|s| (s.home.addr(), s.size_bytes)).collect();
    homes.sort_unstable();
    assert!(homes.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0), "memory is told once: {homes:?}");
    let sum: usize = all.iter().map(|s| s.size_bytes).sum();
    assert_eq!(sum as u64, d.stats().reserved_bytes.current);
    all
}

#[test]
fn segments_are_all_that_is_reserved() {
    apart(|| {
        for mapping in [true, false] {
            let d = host(256 * MIB, mapping);
            assert!(fits(d).is_empty());
            let (pool, other, s, t) = (d.pool(0), d.pool(0), d.stream(), d.stream());
            let a = pool.alloc(5 * MIB, s).unwrap();
            let b = pool.alloc(700, s).unwrap();
            let c = other.alloc(3 * MIB, t).unwrap();
            let e = d.alloc(100_000).unwrap();
            let all = fits(d);
            let of = |at: usize| {
                *all.iter().find(|s| (s.ptr.addr()..s.ptr.addr() + s.size_bytes).contains(&at)).unwrap()
            };
            let seen = |at| (of(at).pool.addr(), of(at).stream.addr(), of(at).kind);
            let kinds = match mapping {
                true => (MILLPOND_SEGMENT_KIND_LARGE, MILLPOND_SEGMENT_KIND_SMALL),
                false => (MILLPOND_SEGMENT_KIND_WHOLE, MILLPOND_SEGMENT_KIND_WHOLE),
            };
            assert_eq!(seen(a), (pool.0, s.0, kinds.0));
            assert_eq!(seen(b), (pool.0, s.0, kinds.1));
            assert_eq!(seen(c), (other.0, t.0, kinds.0));
            assert_eq!(seen(e), (d.default_pool().0, 0, kinds.0));
            assert!(all.iter().all(|s| s.home == s.ptr && s.struct_size == RECORD && s.reserved == 0));
            let own = list(d, Some(pool)).unwrap();
            assert!(!own.is_empty() && own.iter().all(|s| s.pool.addr() == pool.0));
            let sum: usize = own.iter().map(|s| s.size_bytes).sum();
            assert_eq!(sum as u64, pool.stats().reserved_bytes.current);
            // Memory of pools that sleep is not reserved.
            d.synchronize().unwrap();
            if mapping {
                pool.sleep(false).unwrap();
                assert!(list(d, Some(pool)).unwrap().is_empty());
                fits(d);
                pool.wake().unwrap();
            }
            [a, b].into_iter().for_each(|p| pool.free(p, s).unwrap());
            other.free(c, t).unwrap();
            free(e).unwrap();
            fits(d);
        }
    });
}

#[test]
fn a_scattered_block_is_told_piece_by_piece() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (pool, s) = (d.default_pool(), d.stream());
        let all: Vec<usize> = (0..32).map(|_| pool.alloc(2 * MIB, s).unwrap()).collect();
        let gone: Vec<usize> = all.iter().copied().step_by(2).collect();
        gone.iter().for_each(|&p| pool.free(p, s).unwrap());
        let wide = pool.alloc(20 * MIB, s).unwrap();
        let pieces: Vec<_> =
            fits(d).into_iter().filter(|s| s.kind == MILLPOND_SEGMENT_KIND_SCATTERED).collect();
        let places: Vec<_> = pieces.iter().map(|p| (p.ptr.addr(), p.size_bytes)).collect();
        assert_eq!(places, (0..10).map(|n| (wide + n * 2 * MIB, 2 * MIB)).collect::<Vec<_>>());
        assert!(pieces.iter().all(|p| gone.contains(&p.home.addr())), "in granules that were freed");
        // A byte that is written at one address is there at the other.
        for (n, p) in pieces.iter().enumerate() {
            unsafe { *p.ptr.cast::<u8>() = n as u8 + 1 };
            assert_eq!(unsafe { *p.home.cast::<u8>() }, n as u8 + 1);
        }
        // A freed block stays where it is until its memory is wanted for something else.
        pool.free(wide, s).unwrap();
        assert_eq!(fits(d).iter().filter(|s| s.kind == MILLPOND_SEGMENT_KIND_SCATTERED).count(), 10);
        d.empty_cache().unwrap();
        assert!(fits(d).iter().all(|s| s.kind != MILLPOND_SEGMENT_KIND_SCATTERED));
        all.iter().skip(1).step_by(2).for_each(|&p| pool.free(p, s).unwrap());
    });
}

/// Under load the sum is that of the moment, but for what is in the hands of other threads: never more than the device.
#[test]
fn segments_under_load_do_not_overlap() {
    apart_for(120, || {
        for mapping in [true, false] {
            let d = host(512 * MIB, mapping);
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for t in 0..4usize {
                    let stop = &stop;
                    scope.spawn(move || {
                        let (pool, s) = (d.pool(0), d.stream());
                        let mut held = Vec::new();
                        for n in t.. {
                            if stop.load(Relaxed) {
                                break;
                            }
                            held.push(pool.alloc([1000, 70_000, 3 * MIB, 9 * MIB][n % 4], s).unwrap());
                            if held.len() > 9 {
                                pool.free(held.swap_remove(n % 7), s).unwrap();
                            }
                            if n % 50 == 0 {
                                pool.empty_cache().unwrap();
                            }
                        }
                        held.into_iter().for_each(|p| pool.free(p, s).unwrap());
                    });
                }
                let done = std::panic::catch_unwind(|| {
                    for _ in 0..100 {
                        let all = list(d, None).unwrap();
                        let apart = |w: &[millpond_segment_record]| {
                            w[0].ptr.addr() + w[0].size_bytes <= w[1].ptr.addr()
                        };
                        assert!(all.windows(2).all(apart), "{all:?}");
                        assert!(all.iter().map(|s| s.size_bytes).sum::<usize>() <= 512 * MIB);
                    }
                });
                stop.store(true, Relaxed);
                done.unwrap();
            });
            d.synchronize().unwrap();
            fits(d);
        }
    });
}

#[test]
fn a_walk_ends_where_it_is_told_to_and_bad_arguments_are_refused() {
    unsafe extern "C-unwind" fn count(data: *mut c_void, s: *const millpond_segment_record) -> bool {
        let n = unsafe { &mut *data.cast::<u32>() };
        *n += u32::from(unsafe { (*s).size_bytes } > 0);
        *n < 2
    }
    unsafe extern "C-unwind" fn throws(_: *mut c_void, _: *const millpond_segment_record) -> bool {
        panic!("enough");
    }
    apart(|| {
        let d = host(256 * MIB, false);
        let (pool, s) = (d.pool(0), d.stream());
        let a = pool.alloc(MIB, s).unwrap();
        let b = d.default_pool().alloc(MIB, s).unwrap();
        let c = d.pool(0).alloc(MIB, s).unwrap();
        let mut calls = 0u32;
        let data = (&raw mut calls).cast();
        let walk =
            |call, data| outcome(unsafe { millpond_device_walk_segments(ptr(d.0), null(), call, data) });
        walk(Some(count), data).unwrap();
        assert_eq!((calls, fits(d).len()), (2, 3));
        assert_eq!(code(walk(Some(throws), null_mut())), MILLPOND_E_SYSTEM);
        assert_eq!(code(walk(None, null_mut())), MILLPOND_E_INVALID_ARGUMENT);
        let other = Device::get("host", 1).unwrap();
        assert_eq!(code(list(other, Some(pool))), MILLPOND_E_INVALID_ARGUMENT);
        let mut count = 0;
        let short =
            outcome(unsafe { millpond_device_list_segments(ptr(d.0), null(), null_mut(), 3, 0, &mut count) });
        assert_eq!((code(short), count), (MILLPOND_E_INVALID_ARGUMENT, 0));
        free(a).unwrap();
        free(b).unwrap();
        free(c).unwrap();
        pool.release().unwrap();
        d.empty_cache().unwrap();
        assert_eq!(code(list(d, Some(pool))), MILLPOND_E_INVALID_ARGUMENT);
        let d = unpooled_host();
        let p = d.alloc(5000).unwrap();
        assert_eq!(list(d, None).unwrap()[0].ptr.addr(), p);
        free(p).unwrap();
    });
}
