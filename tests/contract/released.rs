//! Pools that end or are let go of while others use them by their handles.

use crate::apart::*;
use crate::api::*;
use millpond::capi::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

fn begin(pool: Pool) -> Outcome<()> {
    outcome(unsafe { millpond_scope_begin(ptr(pool.0)) })
}

fn end(pool: Pool) -> Outcome<()> {
    outcome(unsafe { millpond_scope_end(ptr(pool.0)) })
}

/// While a thread is in a scope of it, too: it would take no more requests, and nobody could end that.
#[test]
fn the_default_pool_is_not_released() {
    apart(|| {
        for backend in ["native", "none"] {
            let _ = millpond_finalize();
            millpond::runtime::set_default_options(Some("host"), None, &format!("backend:{backend}"))
                .unwrap();
            let d = Device::get("host", 0).unwrap();
            let (pool, s) = (d.default_pool(), d.stream());
            for inside in [false, true] {
                if inside {
                    begin(pool).unwrap();
                }
                let held = pool.alloc(1000, s).unwrap();
                assert_eq!(code(pool.destroy()), MILLPOND_E_INVALID_ARGUMENT, "{backend} {inside}");
                assert_eq!(code(pool.release()), MILLPOND_E_INVALID_ARGUMENT, "{backend} {inside}");
                let p = pool.alloc(1000, s).unwrap();
                pool.free(p, s).unwrap();
                pool.free(held, s).unwrap();
                begin(pool).unwrap();
                end(pool).unwrap();
            }
            end(pool).unwrap();
        }
    });
}

/// The pool of a block.
fn pool_of(at: usize) -> usize {
    let mut i: millpond_block_info = unsafe { std::mem::zeroed() };
    i.struct_size = size_of::<millpond_block_info>();
    outcome(unsafe { millpond_get_block(ptr(at), &mut i) }).unwrap();
    i.pool.addr()
}

/// Threads go on with the handle of a pool that has just ended, while others are made: each block is of the pool that
/// was named.
#[test]
fn the_handle_of_a_pool_that_ends_leads_to_no_other() {
    apart(|| {
        for mapping in [true, false] {
            let d = host(256 * MIB, mapping);
            let (stop, now) = (AtomicBool::new(false), AtomicUsize::new(d.pool(0).0));
            let streams = [d.stream(), d.stream()];
            let mut served = [0u64; 2];
            std::thread::scope(|s| {
                let threads = streams.map(|stream| {
                    let (stop, now) = (&stop, &now);
                    s.spawn(move || {
                        let mut served = 0;
                        while !stop.load(SeqCst) {
                            let pool = Pool(now.load(SeqCst));
                            for bytes in [1000, 2000, 50_000, 3 * MIB, 1000, 70 * MIB, 5 * MIB, 2000] {
                                let Ok(p) = pool.alloc(bytes, stream) else { break };
                                assert_eq!(pool_of(p), pool.0);
                                free(p).unwrap();
                                served += 1;
                            }
                        }
                        served
                    })
                });
                let until = std::time::Instant::now() + std::time::Duration::from_secs(2);
                while std::time::Instant::now() < until && !threads.iter().any(|t| t.is_finished()) {
                    let old = Pool(now.load(SeqCst));
                    if old.destroy().is_ok() {
                        now.store(d.pool(0).0, SeqCst);
                    }
                }
                stop.store(true, SeqCst);
                served = threads.map(|t| t.join().unwrap());
            });
            assert!(served.iter().all(|&n| n > 0), "{served:?}");
            Pool(now.load(SeqCst)).destroy().unwrap();
            d.empty_cache().unwrap();
            let s = d.stats();
            assert_eq!((s.active_bytes.current, s.reserved_bytes.current), (0, 0));
        }
    });
}
