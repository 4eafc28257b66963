//! Plugins that call back into the library from within a callback. Each such call succeeds or gets a status, whatever
//! the thread is in the middle of; none of them hangs, and what was under way goes on.

use crate::apart::{apart_for, step};
use crate::client::*;
use crate::cuda::MIB;
use crate::slow::{self, Manner};
use millpond::capi::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// What the plugin does in one of its callbacks, once, with a device and its default pool; each of its calls may
/// succeed or be refused.
fn calls_back(callback: &'static str, what: impl Fn(Dev, Pool) + Send + Sync + 'static, act: impl Fn(Dev)) {
    slow::register(Manner::default(), |_| ()).unwrap();
    let d = device(slow::NAME, 0);
    let pool = d.pool();
    let kept = pool.alloc(MIB, 0).unwrap();
    let (armed, done) = (AtomicBool::new(true), Arc::new(AtomicBool::new(false)));
    let there = done.clone();
    slow::set_hook(Some(Arc::new(move |name| {
        if name == callback && armed.swap(false, SeqCst) {
            step("the plugin calls back");
            what(d, pool);
            there.store(true, SeqCst);
            step("it goes on");
        }
    })));
    act(d);
    assert!(done.load(SeqCst), "the plugin was not called, so the test shows nothing");
    slow::set_hook(None);
    // Everything works on.
    d.pool().free(kept, 0).unwrap();
    let p = d.pool().alloc(40 * MIB, 0).unwrap();
    d.memset(p, 1, 40 * MIB).unwrap();
    d.pool().free(p, 0).unwrap();
    assert_eq!(d.stats().unwrap().blocks.current, 0);
    unregister(slow::NAME).unwrap();
    assert_eq!((slow::held(), slow::faults()), (0, vec![]));
}

/// A request that reaches the plugin.
fn grow(d: Dev) {
    let p = d.pool().alloc(12 * MIB, 0).unwrap();
    d.pool().free(p, 0).unwrap();
}

/// A request from within `device_memory_allocate` is served, or gets a status.
#[test]
fn a_plugin_may_ask_for_memory_while_it_is_asked_for_memory() {
    apart_for(20, || {
        calls_back(
            "device_memory_allocate",
            |d, pool| {
                let _ = d.alloc(20 * MIB).map(|p| free(p).unwrap());
                let _ = pool.alloc(20 * MIB, 0).map(|p| pool.free(p, 0).unwrap());
            },
            grow,
        );
    });
}

/// Statistics from within `device_memory_allocate` succeed, or are refused with a status.
#[test]
fn a_plugin_may_ask_for_statistics_while_it_is_asked_for_memory() {
    apart_for(20, || {
        calls_back(
            "device_memory_allocate",
            |d, pool| {
                if let Ok(s) = d.stats() {
                    assert_eq!(s.blocks.current, 1);
                }
                let _ = pool.stats();
            },
            grow,
        );
    });
}

/// Another thread's statistics, and its requests that need nothing from the device, do not wait for a plugin that
/// takes its time in `device_memory_allocate`.
#[test]
fn other_threads_get_statistics_while_a_plugin_is_asked_for_memory() {
    apart_for(20, || {
        calls_back(
            "device_memory_allocate",
            |d, _| {
                let other = std::thread::spawn(move || d.stats().map(|s| s.blocks.current));
                let start = std::time::Instant::now();
                while !other.is_finished() {
                    assert!(start.elapsed() < Duration::from_secs(5), "the statistics wait for the plugin");
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(other.join().unwrap(), Ok(1));
            },
            grow,
        );
    });
}

/// Frees, look-ups, streams, and events from within `device_memory_allocate`.
#[test]
fn a_plugin_may_free_and_look_up_while_it_is_asked_for_memory() {
    apart_for(20, || {
        calls_back(
            "device_memory_allocate",
            |d, pool| {
                let small = pool.alloc(1000, 0); // there is room for it
                let _ = small.and_then(|p| {
                    block(p)?;
                    pool.free(p, 0)
                });
                let _ = d.ask();
                let _ = d.make_event().and_then(|e| d.event_end(e));
                let _ = free(0x1234);
            },
            grow,
        );
    });
}

/// Calls that give memory back or wait, from within `device_memory_allocate`.
#[test]
fn a_plugin_may_empty_the_cache_while_it_is_asked_for_memory() {
    apart_for(20, || {
        calls_back(
            "device_memory_allocate",
            |d, pool| {
                let _ = d.empty_cache();
                let _ = pool.empty_cache();
                let _ = d.make_pool().and_then(Pool::destroy);
            },
            grow,
        );
    });
}

/// The end of its own type from within `device_memory_allocate`: a status.
#[test]
fn a_plugin_may_not_end_itself_while_it_is_asked_for_memory() {
    apart_for(20, || {
        calls_back(
            "device_memory_allocate",
            |_, _| {
                // A block of it lives, and this thread is inside it.
                assert!(unregister(slow::NAME).is_err());
            },
            grow,
        );
    });
}

/// The end of the library from within `device_memory_allocate`: a status, and the library goes on.
#[test]
fn a_plugin_may_not_end_the_library_while_it_is_asked_for_memory() {
    apart_for(20, || {
        calls_back("device_memory_allocate", |_, _| assert!(said(millpond_finalize()).is_err()), grow);
    });
}

/// A request from within `device_memory_deallocate`.
#[test]
fn a_plugin_may_ask_for_memory_while_it_takes_memory_back() {
    apart_for(20, || {
        calls_back(
            "device_memory_deallocate",
            |d, pool| {
                let _ = d.alloc(20 * MIB).map(|p| free(p).unwrap());
                let _ = pool.alloc(20 * MIB, 0).map(|p| pool.free(p, 0).unwrap());
                let _ = d.stats();
            },
            |d| {
                grow(d);
                d.empty_cache().unwrap();
            },
        );
    });
}

/// A request from within `synchronize_device`, which comes before memory goes back.
#[test]
fn a_plugin_may_ask_for_memory_while_it_waits_for_the_device() {
    apart_for(20, || {
        calls_back(
            "synchronize_device",
            |d, pool| {
                let _ = d.alloc(20 * MIB).map(|p| free(p).unwrap());
                let _ = pool.alloc(20 * MIB, 0).map(|p| pool.free(p, 0).unwrap());
                let _ = d.stats();
            },
            |d| {
                grow(d);
                d.empty_cache().unwrap();
            },
        );
    });
}
