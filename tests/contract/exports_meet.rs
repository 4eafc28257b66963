//! Exports, imports and requests of many blocks while other threads free, trim, sleep and end pools: what somebody still has is
//! used by nobody else, and each call has done all or nothing.

use crate::apart::*;
use crate::api::*;
use crate::held::{self, victim};
use crate::observers::state;
use millpond::capi::*;
use millpond::runtime::Export;
use millpond::{Code, Result};
use std::os::fd::AsFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};

fn import(d: Device, e: &Export) -> Result<usize> {
    let fds: Vec<_> = e.fds.iter().map(AsFd::as_fd).collect();
    Ok(state(d).shared_memory().import(&e.info, &fds)? as usize)
}

fn close(d: Device, at: usize) {
    state(d).shared_memory().close_import(at as u64).unwrap();
}

/// Blocks are exported and freed at once; those who import them find what was in them, for as long as they like.
fn share(d: Device) {
    let pools = [d.default_pool(), d.pool(0)];
    let over = AtomicBool::new(false);
    let (send, get) = sync_channel::<(Export, u8, usize)>(6);
    let get = Mutex::new(get);
    let checked = AtomicU64::new(0);
    std::thread::scope(|s| {
        for t in 0..2 {
            let (send, over) = (send.clone(), &over);
            s.spawn(move || {
                let stream = d.stream();
                for n in t.. {
                    if over.load(SeqCst) {
                        return;
                    }
                    let bytes = [100, 70 * KIB, MIB, 3 * MIB + 5][n % 4];
                    let Ok(p) = pools[n / 4 % 2].alloc(bytes, stream) else { continue };
                    let value = (n % 200 + 1) as u8;
                    d.fill(stream, p, value, bytes);
                    d.stream_synchronize(stream).unwrap();
                    let export = state(d).shared_memory().export(p as u64);
                    free(p).unwrap();
                    match export {
                        Ok(e) => _ = send.send((e, value, bytes)),
                        Err(e) => assert!([Code::NotPermitted, Code::Busy].contains(&e.code()), "{e}"),
                    }
                }
            });
        }
        drop(send);
        for _ in 0..2 {
            let (get, checked) = (&get, &checked);
            s.spawn(move || {
                loop {
                    let Ok((e, value, bytes)) = get.lock().unwrap().recv() else { return };
                    let q = import(d, &e).unwrap();
                    drop(e);
                    for _ in 0..3 {
                        assert_eq!(filled(q, bytes), Some(value), "it is somebody else's");
                        std::thread::yield_now();
                    }
                    close(d, q);
                    checked.fetch_add(1, SeqCst);
                }
            });
        }
        let over = &over;
        let meddles = s.spawn(move || {
            let busy = |done: Outcome<()>| {
                let Err(e) = done else { return true };
                assert!(
                    [MILLPOND_E_BUSY, MILLPOND_E_NOT_PERMITTED, MILLPOND_E_OUT_OF_MEMORY].contains(&e.code),
                    "{e:?}"
                );
                false
            };
            while !over.load(SeqCst) {
                busy(d.empty_cache());
                let _ = state(d).shared_memory().poll_exports().unwrap();
                // Only what is empty: sleeping blocks cannot be filled.
                let own = d.pool(0);
                let p = own.alloc(3 * MIB, NULL);
                if own.sleep(true).is_ok() {
                    while !busy(own.wake()) {}
                }
                if let Ok(p) = p {
                    free(p).unwrap();
                }
                own.release().unwrap();
                std::thread::yield_now();
            }
        });
        std::thread::sleep(lasting(std::time::Duration::from_secs(4)));
        over.store(true, SeqCst);
        meddles.join().unwrap();
    });
    assert!(checked.load(SeqCst) > 20, "{checked:?}");
    d.synchronize().unwrap();
    assert_eq!(state(d).shared_memory().poll_exports().unwrap(), (0, 0));
    d.empty_cache().unwrap();
    let s = d.stats();
    assert_eq!((s.active_bytes.current, s.reserved_bytes.current), (0, 0));
    assert_eq!(d.room_for(2 * MIB), 32);
}

#[test]
fn what_others_import_is_theirs() {
    apart_for(60, || share(host(64 * MIB, true)));
}

fn batch(pool: Pool, sizes: &[usize], stream: Stream) -> Outcome<Vec<usize>> {
    let mut out = vec![null_mut(); sizes.len()];
    let (from, to) = (sizes.as_ptr(), out.as_mut_ptr());
    let done =
        outcome(unsafe { millpond_pool_alloc_batch(ptr(pool.0), from, sizes.len(), ptr(stream.0), to) });
    let got: Vec<usize> = out.iter().map(|p| p.expose_provenance()).collect();
    assert!(done.is_ok() || got.iter().all(|&p| p == 0), "nothing is told of a request that fails");
    done.map(|()| got)
}

/// In the midst of each call of the device that a batch makes another thread does something, or the call fails.
#[test]
fn a_batch_is_all_or_none_whoever_comes_between() {
    apart_for(120, || {
        let sizes = [MIB, 0, 5 * MIB, 300, 70 * KIB, 9 * MIB, 3 * MIB];
        for mapping in [true, false] {
            for name in [
                "granules_create",
                "granules_release",
                "map",
                "map_runs",
                "unmap",
                "alloc",
                "free",
                "event_record",
            ] {
                for (nth, what) in (1..4).flat_map(|n| (0..5).map(move |what| (n, what))) {
                    let (d, control) = held::host(32 * MIB, mapping);
                    let (pool, other) = (d.pool(0), d.pool(0));
                    let (a, b) = (d.stream(), d.stream());
                    let kept = other.alloc(2 * MIB, b).unwrap();
                    let used: Vec<_> = (0..3).map(|_| pool.alloc(2 * MIB, b).unwrap()).collect();
                    used.iter().step_by(2).for_each(|&p| pool.free(p, b).unwrap());
                    let hold = control.hold_before(name, nth);
                    if what == 0 {
                        control.fail(name, nth, [Code::Device, Code::OutOfMemory][nth as usize % 2]);
                    }
                    let done = Arc::new(AtomicBool::new(false));
                    let tell = done.clone();
                    let asks = victim(move || {
                        let got = batch(pool, &sizes, a);
                        tell.store(true, SeqCst);
                        got
                    });
                    soon(LATE * 5, || hold.is_reached() || done.load(SeqCst));
                    if hold.is_reached() {
                        let there = std::thread::spawn(move || match what {
                            1 => _ = d.empty_cache(),
                            2 => _ = pool.sleep(true).map(|()| pool.wake()),
                            3 => _ = other.free(kept, b).and_then(|()| other.destroy()),
                            4 => _ = pool.set_limit(4 * MIB),
                            _ => {}
                        });
                        soon(LATE / 20, || there.is_finished());
                        hold.let_go();
                        there.join().unwrap();
                    }
                    hold.let_go();
                    let got = asks.join().unwrap();
                    control.mend();
                    let live = pool.stats().blocks.current;
                    match got {
                        Ok(all) => {
                            assert_eq!((all[1], live), (0, 1 + sizes.len() as u64 - 1));
                            for (i, &p) in all.iter().enumerate().filter(|x| x.1 != &0) {
                                let others = all.iter().zip(&sizes).skip(i + 1).filter(|x| *x.0 != 0);
                                others.for_each(|(&q, &n)| assert!(!overlap((p, sizes[i]), (q, n))));
                                poke(p, 7, sizes[i]);
                            }
                            let array: Vec<_> = all.iter().map(|&p| ptr(p)).collect();
                            let mut count = 0;
                            let (from, n) = (array.as_ptr(), array.len());
                            outcome(unsafe {
                                millpond_pool_free_batch(ptr(pool.0), from, n, ptr(a.0), &mut count)
                            })
                            .unwrap();
                            assert_eq!(count, n);
                        }
                        Err(e) => {
                            assert_eq!(live, 1, "{name} {nth} {what}: {e:?}");
                        }
                    }
                    pool.free(used[1], b).unwrap();
                    let _ = other.free(kept, b);
                    d.synchronize().unwrap();
                    pool.set_limit(0).unwrap();
                    d.empty_cache().unwrap();
                    let s = d.stats();
                    assert_eq!(
                        (s.active_bytes.current, s.reserved_bytes.current),
                        (0, 0),
                        "{name} {nth} {what}"
                    );
                }
            }
        }
    });
}
