//! The backends that leave memory to the driver (`none`, `cudaMallocAsync`), during captures that only the driver knows
//! about, because a framework records a graph without announcing it to Millpond. Calls that would invalidate the
//! capture fail with BUSY or NOT_PERMITTED, as they do with Millpond's own pools, or are deferred; the capture ends
//! well.

use crate::apart::{apart_for, step};
use crate::client::*;
use crate::cuda::{Fake, MIB};
use crate::recording::*;
use millpond::capi::*;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const LATER: &[u32] = &[MILLPOND_E_BUSY, MILLPOND_E_NOT_PERMITTED];

fn open(backend: &str) -> (Fake, Dev) {
    let fake = cuda("1", &[]);
    default_options("cuda", &format!("backend:{backend}"));
    let d = device("cuda", 0);
    (fake, d)
}

/// A captured stream is to end, by its maker: here, or elsewhere with a word to us. It may have a block.
fn an_end(backend: &str, here: bool, used: bool) {
    let (fake, d) = open(backend);
    let s = if here { d.stream() } else { fake.foreign_stream(0, 1) };
    let p = used.then(|| d.pool().alloc(MIB, s).unwrap());
    record(&fake, s);
    if let Some(p) = p {
        d.memset_async(s, p, 1, MIB).unwrap();
    }
    let ended = if here { d.stream_end(s) } else { d.stream_forget(s) };
    refused(ended, &[MILLPOND_E_BUSY]);
    let exec = graph(&fake, s);
    assert_eq!(replay(&fake, exec, s), 0);
    graph_end(&fake, exec);
    // Not captured any more, it ends.
    if let Some(p) = p {
        d.pool().free(p, s).unwrap();
    }
    if here { d.stream_end(s) } else { d.stream_forget(s) }.unwrap();
}

/// `millpond_stream_destroy` of a stream that is captured is BUSY.
#[test]
fn a_captured_stream_does_not_end_without_a_pool() {
    apart_for(60, || an_end("none", true, false));
}

#[test]
fn a_captured_stream_with_a_block_does_not_end_without_a_pool() {
    apart_for(60, || an_end("none", true, true));
}

#[test]
fn a_captured_stream_does_not_end_beside_the_drivers_pool() {
    apart_for(60, || an_end("cudaMallocAsync", true, false));
}

#[test]
fn a_captured_stream_with_a_block_does_not_end_beside_the_drivers_pool() {
    apart_for(60, || an_end("cudaMallocAsync", true, true));
}

/// `millpond_stream_forget` of a stream that is captured is BUSY.
#[test]
fn a_captured_stream_of_a_framework_is_not_forgotten() {
    apart_for(60, || {
        for backend in ["none", "cudaMallocAsync"] {
            for used in [false, true] {
                step(&format!("{backend}, used: {used}"));
                an_end(backend, false, used);
                said(millpond_finalize()).unwrap();
            }
        }
    });
}

/// Millpond's own pools do so already.
#[test]
fn a_captured_stream_does_not_end_beside_our_pools() {
    apart_for(60, || {
        for (here, used) in [(true, false), (true, true), (false, true)] {
            an_end("native", here, used);
            said(millpond_finalize()).unwrap();
        }
    });
}

/// A block of the captured stream, or one that it uses, is freed in the capture: refused with the block as it was, or
/// done without harm to the capture.
fn a_free(backend: &str, own: bool) {
    let (fake, d) = open(backend);
    let (s, t) = (d.stream(), d.stream());
    let home = if own { s } else { t };
    let p = d.pool().alloc(MIB, home).unwrap();
    if !own {
        record_stream(p, s).unwrap();
    }
    d.stream_sync(home).unwrap();
    record(&fake, s);
    if backend == "none" {
        d.memset_async(s, p, 1, MIB).unwrap();
    }
    let freed = d.pool().free(p, home);
    if freed.is_err() {
        refused(freed.clone(), LATER);
        assert_eq!(block(p).unwrap().base.addr() as u64, p);
    }
    step("the capture ends");
    let exec = graph(&fake, s);
    if backend == "none" {
        // (With the driver's pool, what the free has become is the graph's.)
        assert_eq!(replay(&fake, exec, s), 0, "the graph's memory has gone");
    }
    graph_end(&fake, exec);
    if freed.is_err() {
        d.pool().free(p, home).unwrap();
    }
    // The other stream is not a part of the capture, nor was it drawn in.
    d.stream_sync(t).unwrap();
    d.stream_end(t).unwrap();
    d.stream_end(s).unwrap();
}

#[test]
fn a_free_of_a_captured_streams_block_leaves_the_capture_whole_without_a_pool() {
    apart_for(60, || a_free("none", true));
}

#[test]
fn a_free_of_a_block_that_a_captured_stream_uses_leaves_the_capture_whole_without_a_pool() {
    apart_for(60, || a_free("none", false));
}

#[test]
fn a_free_of_a_block_that_a_captured_stream_uses_leaves_the_capture_whole_beside_the_drivers_pool() {
    apart_for(60, || a_free("cudaMallocAsync", false));
}

/// A block without a stream, while a blocking stream is captured: served, or refused, without harm to the capture.
#[test]
fn a_block_without_a_stream_leaves_a_capture_whole_beside_the_drivers_pool() {
    apart_for(60, || {
        let (fake, d) = open("cudaMallocAsync");
        let s = d.stream();
        let before = d.alloc(MIB).unwrap();
        record(&fake, s);
        let p = d.alloc(MIB);
        if p.is_err() {
            refused(p.clone(), LATER);
        }
        let freed = free(before);
        if freed.is_err() {
            refused(freed.clone(), LATER);
        }
        let exec = graph(&fake, s);
        graph_end(&fake, exec);
        if let Ok(p) = p {
            free(p).unwrap();
        }
        if freed.is_err() {
            free(before).unwrap();
        }
    });
}

/// A block is freed in a callback of its stream, where the driver cannot be called: it is put off. Another stream,
/// which comes to its work soon, has used it.
fn put_off(d: Dev, pool: Pool, bytes: u64) {
    let (s, t) = (d.stream(), d.stream());
    let p = pool.alloc(bytes, s).unwrap();
    record_stream(p, t).unwrap();
    let gate = Gate::hold(d, t);
    let (tell, told) = channel();
    d.callback(s, move |_| tell.send(free(p)).unwrap()).unwrap();
    told.recv().unwrap().unwrap();
    gate.open_after(Duration::from_millis(300));
    std::mem::forget(gate);
}

/// A request that would have to fail waits for memory that is freed and only not yet the driver's again.
fn a_request_beside_a_free(backend: &str) {
    let (_fake, d) = open(backend);
    step("the device is full");
    put_off(d, d.pool(), 48 * MIB);
    free(d.pool().alloc(48 * MIB, 0).unwrap()).unwrap();
    step("the pool is full");
    let pool = d.new_pool();
    said(unsafe { millpond_pool_set_limit(pool.0, 4 * MIB) }).unwrap();
    put_off(d, pool, 3 * MIB);
    let start = Instant::now();
    refused(pool.alloc(5 * MIB, 0), &[MILLPOND_E_OUT_OF_MEMORY]);
    assert!(start.elapsed() < Duration::from_millis(200), "it waited in vain");
    free(pool.alloc(3 * MIB, 0).unwrap()).unwrap();
    pool.destroy().unwrap();
    assert_eq!(d.stats().unwrap().active_bytes.current, 0);
}

#[test]
fn a_request_waits_for_a_free_that_was_put_off_without_a_pool() {
    apart_for(60, || a_request_beside_a_free("none"));
}

#[test]
fn a_request_waits_for_a_free_that_was_put_off_beside_the_drivers_pool() {
    apart_for(60, || a_request_beside_a_free("cudaMallocAsync"));
}

/// A scope begins, and frees that were put off can be done by now.
#[test]
fn a_scope_begins_after_a_free_that_was_put_off() {
    apart_for(60, || {
        for backend in ["none", "cudaMallocAsync"] {
            let (_fake, d) = open(backend);
            let pool = d.new_pool();
            put_off(d, d.pool(), MIB);
            d.synchronize().unwrap();
            said(unsafe { millpond_scope_begin(pool.0) }).unwrap();
            said(unsafe { millpond_scope_end(pool.0) }).unwrap();
            pool.destroy().unwrap();
        }
    });
}
