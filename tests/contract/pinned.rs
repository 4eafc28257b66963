//! Pinned memory that one thread gives back while another one needs it.

use crate::apart::*;
use crate::api::*;
use crate::held;
use millpond::Code;
use millpond::capi::*;
use std::ptr::null_mut;
use std::thread::JoinHandle;
use std::time::Duration;

const BYTES: usize = 40 * MIB;

fn pinned(d: Device) -> Outcome<usize> {
    let mut p = null_mut();
    outcome(unsafe { millpond_host_alloc(ptr(d.0), BYTES, &mut p) })?;
    Ok(p.expose_provenance())
}

fn end(d: Device, at: usize) {
    outcome(unsafe { millpond_host_free(ptr(d.0), ptr(at)) }).unwrap();
}

/// A thread that empties the cache, which has one block; it is stopped before the device gets that.
fn giver(d: Device) -> JoinHandle<()> {
    held::victim(move || outcome(unsafe { millpond_device_empty_host_cache(ptr(d.0)) }).unwrap())
}

/// While the giver stands there, another thread asks for as much.
fn asks_meanwhile(limit: &str, refuses: bool) {
    let (d, control) = held::host(256 * MIB, true);
    d.set_options(limit).unwrap();
    let p = pinned(d).unwrap();
    end(d, p);
    let hold = control.hold_before("host_free", 1);
    let gives = giver(d);
    hold.reached();
    if refuses {
        control.fail("host_alloc", 1, Code::OutOfMemory);
    }
    let asks = std::thread::spawn(move || pinned(d));
    std::thread::sleep(Duration::from_millis(50));
    hold.let_go();
    gives.join().unwrap();
    let q = asks.join().unwrap().expect("all memory is free");
    end(d, q);
}

#[test]
fn at_the_limit_memory_that_goes_back_is_waited_for() {
    apart(|| asks_meanwhile("pinned_limit_mb:64", false));
}

#[test]
fn a_device_that_refused_is_asked_again_when_memory_has_gone_back() {
    apart(|| asks_meanwhile("pinned_limit_mb:unlimited", true));
}

/// Threads that never have more at a time than the limit allows are never refused.
#[test]
fn a_limit_refuses_nobody_who_stays_below_it() {
    apart(|| {
        let d = host(256 * MIB, true);
        d.set_options("pinned_limit_mb:4").unwrap();
        std::thread::scope(|scope| {
            for t in 0..2 {
                scope.spawn(move || {
                    for i in 0..1000 {
                        let (bytes, mut p) = ((9 + (i * 7 + t * 3) % 20) * 64 * KIB, null_mut());
                        outcome(unsafe { millpond_host_alloc(ptr(d.0), bytes, &mut p) }).unwrap();
                        end(d, p.expose_provenance());
                    }
                });
            }
        });
    });
}
