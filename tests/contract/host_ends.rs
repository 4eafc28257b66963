//! Pinned and unified memory while threads meet: the device ends with others inside, refuses to take memory back, and is asked
//! for sizes that nobody has.

use crate::apart::*;
use crate::api::*;
use crate::held;
use crate::tags::{stats, tagged};
use millpond::capi::*;
use millpond::{Code, runtime};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

fn pinned(d: Device, bytes: usize) -> Outcome<usize> {
    let mut p = null_mut();
    outcome(unsafe { millpond_host_alloc(ptr(d.0), bytes, &mut p) })?;
    Ok(p.expose_provenance())
}

fn unified(d: Device, bytes: usize) -> Outcome<usize> {
    let mut p = null_mut();
    outcome(unsafe { millpond_unified_alloc(ptr(d.0), bytes, &mut p) })?;
    Ok(p.expose_provenance())
}

fn end(d: Device, at: usize) -> Outcome<()> {
    outcome(unsafe { millpond_host_free(ptr(d.0), ptr(at)) })
}

fn end_unified(d: Device, at: usize) -> Outcome<()> {
    outcome(unsafe { millpond_unified_free(ptr(d.0), ptr(at)) })
}

#[test]
fn a_device_ends_while_threads_ask_for_host_memory() {
    apart_for(60, || {
        for round in 0..rounds(40) {
            let d = host(64 * MIB, true);
            let (over, inside) = (AtomicBool::new(false), AtomicUsize::new(0));
            let (over, inside) = (&over, &inside);
            std::thread::scope(|s| {
                for t in 0..3 {
                    s.spawn(move || {
                        inside.fetch_add(1, SeqCst);
                        let may = |e: Failed| {
                            // Before the end, or after it.
                            assert!(
                                [MILLPOND_E_NOT_INITIALIZED, MILLPOND_E_UNKNOWN_POINTER].contains(&e.code),
                                "{e:?}"
                            );
                        };
                        let mut n = t;
                        while !over.load(SeqCst) {
                            let bytes = [100, 5000, 300 * KIB, MIB][n % 4];
                            match (pinned(d, bytes), unified(d, bytes)) {
                                (Ok(p), u) => {
                                    let _ = end(d, p).map_err(may);
                                    let _ = u.and_then(|u| end_unified(d, u)).map_err(may);
                                }
                                (Err(e), u) => {
                                    may(e);
                                    let _ = u.and_then(|u| end_unified(d, u)).map_err(may);
                                }
                            }
                            if n % 16 == 0 {
                                let _ = outcome(unsafe { millpond_device_empty_host_cache(ptr(d.0)) })
                                    .map_err(may);
                            }
                            n += 1;
                        }
                    });
                }
                while inside.load(SeqCst) < 3 {
                    std::thread::yield_now();
                }
                std::thread::sleep(std::time::Duration::from_micros(100 * (round % 20) as u64));
                runtime::finalize().unwrap();
                over.store(true, SeqCst);
            });
        }
    });
}

/// Nothing has changed when the device has refused to take unified memory back, for the sums of its tag neither.
#[test]
fn unified_memory_whose_free_is_refused_counts_as_before() {
    apart(|| {
        let (d, control) = held::host(64 * MIB, true);
        let p = tagged("weights", || unified(d, MIB)).unwrap();
        let sums = || {
            let s = stats(d)["weights"];
            [s.unified_bytes, s.unified_blocks].map(|c| (c.current, c.peak, c.total))
        };
        let before = sums();
        control.fail("unified_free", 1, Code::Device);
        assert_eq!(code(end_unified(d, p)), MILLPOND_E_DEVICE);
        assert_eq!(sums(), before);
        end_unified(d, p).unwrap();
        assert_eq!(code(end_unified(d, p)), MILLPOND_E_DOUBLE_FREE);
    });
}

/// The same for a block of a device without pools: it is as if nobody had tried.
#[test]
fn a_block_whose_free_is_refused_counts_as_before() {
    apart(|| {
        let (d, control) = held::host_with(64 * MIB, true, "backend:none");
        let pool = d.default_pool();
        let p = tagged("weights", || pool.alloc(MIB, NULL)).unwrap();
        let sums = || {
            let (s, t) = (pool.stats(), stats(d)["weights"]);
            let counters = [s.requested_bytes, s.allocated_bytes, s.active_bytes, s.blocks];
            let of_tag = [t.requested_bytes, t.allocated_bytes, t.active_bytes, t.blocks];
            counters.into_iter().chain(of_tag).map(|c| (c.current, c.peak, c.total)).collect::<Vec<_>>()
        };
        let before = sums();
        control.fail("free", 1, Code::Device);
        assert_eq!(code(free(p)), MILLPOND_E_DEVICE);
        assert_eq!(sums(), before);
        free(p).unwrap();
        assert_eq!(d.stats().reserved_bytes.current, 0);
    });
}

/// A request gives back what the cache holds, and the device takes one block and refuses the next: what it has taken is enough.
#[test]
fn a_device_that_took_some_pinned_memory_back_is_asked_again() {
    apart(|| {
        let (d, control) = held::host(64 * MIB, true);
        for p in [3 * MIB, 2 * MIB].map(|bytes| pinned(d, bytes).unwrap()) {
            end(d, p).unwrap();
        }
        control.fail("host_alloc", 1, Code::OutOfMemory);
        control.fail("host_free", 2, Code::Device);
        let p = pinned(d, MIB).unwrap();
        assert_eq!(control.calls("host_free"), 2);
        end(d, p).unwrap();
    });
}

/// Sizes of 0, and those that no address space has.
#[test]
fn sizes_at_both_ends_are_refused_or_nothing() {
    apart(|| {
        let d = host(64 * MIB, true);
        assert_eq!((pinned(d, 0).unwrap(), unified(d, 0).unwrap()), (0, 0));
        end(d, 0).unwrap();
        end_unified(d, 0).unwrap();
        let pool = d.default_pool();
        for bytes in [usize::MAX, usize::MAX - 4095, 1 << 63, (1 << 63) - 1, (1 << 62) + 1, 1 << 48] {
            for got in
                [pinned(d, bytes), unified(d, bytes), pool.alloc(bytes, NULL), pool.alloc(bytes, d.stream())]
            {
                assert_eq!(code(got), MILLPOND_E_OUT_OF_MEMORY, "{bytes:#x}");
            }
            for align in [512, 1 << 12, 1 << 21] {
                let mut p = null_mut();
                let got = outcome(unsafe {
                    millpond_pool_alloc_aligned(ptr(pool.0), bytes, align, ptr(0), &mut p)
                });
                assert_eq!(code(got), MILLPOND_E_OUT_OF_MEMORY, "{bytes:#x} at {align:#x}");
                let zeroed =
                    outcome(unsafe { millpond_pool_alloc_zeroed(ptr(pool.0), bytes, ptr(0), &mut p) });
                assert_eq!(code(zeroed), MILLPOND_E_OUT_OF_MEMORY);
            }
            let sizes = [1000, bytes];
            let mut out = [null_mut(); 2];
            let batch = unsafe {
                millpond_pool_alloc_batch(ptr(pool.0), sizes.as_ptr(), 2, ptr(0), out.as_mut_ptr())
            };
            assert_eq!(code(outcome(batch)), MILLPOND_E_OUT_OF_MEMORY);
            assert_eq!(out, [null_mut(); 2]);
        }
        for align in [0, 3, 1 << 22, 1 << 63, usize::MAX] {
            let mut p = null_mut();
            for bytes in [0, 1, usize::MAX] {
                let got = outcome(unsafe {
                    millpond_pool_alloc_aligned(ptr(pool.0), bytes, align, ptr(0), &mut p)
                });
                assert_eq!(code(got), MILLPOND_E_INVALID_ARGUMENT, "{align:#x}");
            }
        }
        let s = d.stats();
        assert_eq!((s.blocks.current, s.allocated_bytes.current), (0, 0));
    });
}

/// The end of all devices waits for a call on the first one, which has ended for others; the second one has not ended long before.
#[test]
fn an_address_of_a_device_that_has_ended_before_others_is_not_unknown() {
    apart(|| {
        let (first, second) = (host(64 * MIB, true), Device::get("host", 1).unwrap());
        let (p, s) = (first.alloc(1000).unwrap(), first.stream());
        second.alloc(1000).unwrap();
        let gate = first.gate(s);
        std::thread::scope(|scope| {
            scope.spawn(|| first.stream_synchronize(s).unwrap());
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(50));
                outcome(millpond_finalize()).unwrap();
            });
            while first.try_stream().is_ok() {
                std::thread::yield_now();
            }
            let import_close = outcome(unsafe { millpond_import_close(ptr(p)) });
            let told = [free(p), free_sized(p, 1000), block(p).map(drop), import_close];
            gate.open();
            _ = told.map(|done| assert_eq!(done.unwrap_err().code, MILLPOND_E_NOT_INITIALIZED));
        });
    });
}
