//! Streams that a kernel's failure has ended. Their callbacks are called with the failure, once each, on whichever
//! thread finds it out. A callback may allocate and free; it gets a status there, and nobody waits for itself.
//! (docs/streams.md, "Callbacks"; docs/cuda.md, "Failures of the device")

use crate::apart::{apart_for, step};
use crate::client::*;
use crate::cuda::{Fake, GRANULE, MIB};
use millpond::capi::*;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// CUDA_ERROR_ILLEGAL_ADDRESS, which stays until the process ends.
const ILLEGAL_ADDRESS: u32 = 700;

struct Scene {
    d: Dev,
    /// A pool with free memory.
    pool: Pool,
    /// The only one of its pool, which has free memory too.
    graph: Capture,
    /// The status that the callback received, and the results of its calls.
    called: Receiver<(C_Status, Vec<Said<()>>)>,
}

/// A stream has a callback queued that asks for memory, behind work that takes a moment and then fails: the device with
/// it. After a failure the driver calls nobody back.
fn scene() -> Scene {
    let fake: &'static Fake = Box::leak(Box::new(cuda("1", &[]))); // until the process ends
    let d = device("cuda", 0);
    let (pool, fresh, s) = (d.new_pool(), d.new_pool(), d.stream());
    let p = pool.alloc(3 * GRANULE, s).unwrap();
    let kept = pool.alloc(3 * GRANULE, s).unwrap();
    pool.free(p, s).unwrap();
    let (kept_by_graph, t) = (d.new_pool(), d.stream());
    let graph = kept_by_graph.capture(t).unwrap();
    let p = kept_by_graph.alloc(3 * GRANULE, t).unwrap();
    kept_by_graph.free(p, t).unwrap();
    graph.end().unwrap();
    let (tell, called) = channel();
    fake.hold(true);
    d.callback(s, move |status| {
        let got = vec![
            fresh.alloc(5 * MIB, s).map(drop), // nobody has memory for that ready
            pool.alloc(1000, s).and_then(|p| pool.free(p, s)),
            d.alloc(3 * MIB).map(drop),
            pool.free(kept, s),
            d.stats().map(drop),
        ];
        tell.send((status, got)).unwrap();
    })
    .unwrap();
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_millis(300));
        fake.sticky(ILLEGAL_ADDRESS);
        fake.hold(false);
    });
    Scene { d, pool, graph, called }
}

/// `call` finds the failure out, while it waits for the work; all that is called returns.
fn finds_out(call: impl FnOnce(&Scene) -> Said) {
    let x = scene();
    step("the call that finds the failure");
    if let Err(e) = call(&x) {
        assert_eq!(e.code, MILLPOND_E_DEVICE, "{e:?}");
    }
    step("the end");
    let _ = said(millpond_finalize());
    let (status, got) = x.called.recv_timeout(Duration::from_secs(5)).expect("the callback was not called");
    assert_ne!(status, C_Status::SUCCESS, "{got:?}");
    assert!(x.called.recv_timeout(Duration::from_millis(50)).is_err(), "the callback was called again");
}

/// `millpond_device_empty_cache` finds it out.
#[test]
fn a_callback_may_allocate_when_emptying_the_cache_finds_the_failure() {
    apart_for(20, || finds_out(|x| x.d.empty_cache()));
}

/// `millpond_pool_empty_cache` finds it out.
#[test]
fn a_callback_may_allocate_when_emptying_a_pool_finds_the_failure() {
    apart_for(20, || finds_out(|x| x.pool.empty_cache()));
}

/// `millpond_pool_sleep` finds it out.
#[test]
fn a_callback_may_allocate_when_a_pool_that_goes_to_sleep_finds_the_failure() {
    apart_for(20, || finds_out(|x| x.pool.sleep()));
}

/// `millpond_pool_destroy` finds it out.
#[test]
fn a_callback_may_allocate_when_the_end_of_a_pool_finds_the_failure() {
    apart_for(20, || finds_out(|x| x.d.new_pool().destroy()));
}

/// `millpond_capture_release` finds it out.
#[test]
fn a_callback_may_allocate_when_the_end_of_a_graph_finds_the_failure() {
    apart_for(20, || finds_out(|x| x.graph.release()));
}

/// `millpond_device_synchronize` finds it out, with no lock held.
#[test]
fn a_callback_may_allocate_when_a_wait_for_the_device_finds_the_failure() {
    apart_for(20, || finds_out(|x| x.d.synchronize()));
}

/// Nobody finds it out before the end of the library.
#[test]
fn a_callback_may_allocate_when_the_end_of_the_library_finds_the_failure() {
    apart_for(20, || finds_out(|_| Ok(())));
}

/// A request that waits for streams under pressure finds it out.
#[test]
fn a_callback_may_allocate_when_a_request_finds_the_failure() {
    apart_for(20, || {
        finds_out(|x| {
            let s = x.d.stream();
            x.d.pool().alloc(64 * MIB, s).map(drop).or(Ok(())) // out of memory, too
        });
    });
}

/// After a failure that stays, a request says what is wrong, and not that there is too little memory. Our own pools
/// take frees; the other backends cannot, and the block stays as it was. The library ends, and says it too.
#[test]
fn requests_and_frees_after_a_failure() {
    apart_for(60, || {
        for backend in ["native", "none", "cudaMallocAsync"] {
            step(backend);
            let fake = cuda("1", &[]);
            default_options("cuda", &format!("backend:{backend}"));
            let d = device("cuda", 0);
            let (s, t) = (d.stream(), d.stream());
            let blocks = [d.pool().alloc(3 * MIB, s), d.alloc(3 * MIB), d.pool().alloc(3 * MIB, s)];
            let blocks = blocks.map(|p| p.unwrap());
            record_stream(blocks[2], t).unwrap();
            fake.sticky(ILLEGAL_ADDRESS);
            for p in blocks {
                match free(p) {
                    Ok(()) => refused(free(p), &[MILLPOND_E_DOUBLE_FREE]),
                    Err(e) => {
                        assert!(backend != "native" && e.code == MILLPOND_E_DEVICE, "{e:?}");
                        block(p).unwrap();
                    }
                }
            }
            let before = d.stats().unwrap().out_of_memory_count;
            for said in [d.pool().alloc(40 * MIB, s), d.alloc(40 * MIB)] {
                let e = said.unwrap_err();
                assert!(e.code == MILLPOND_E_DEVICE && e.message.contains("ILLEGAL_ADDRESS"), "{e:?}");
            }
            assert_eq!(d.stats().unwrap().out_of_memory_count, before);
            refused(said(millpond_finalize()), &[MILLPOND_E_DEVICE]);
        }
    });
}
