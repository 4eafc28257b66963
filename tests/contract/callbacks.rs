//! A stream callback may allocate and free, whatever other threads are just doing: also while one of them waits for
//! this very stream, for the whole device, or for memory. A request that would have to wait may fail, and no call in a
//! callback waits for ever.

use crate::apart::*;
use crate::api::*;
use crate::held::{self, Control};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const CAPACITY: usize = 64 * MIB;

/// A held device; a stream on which the callback is to run; and what the callback will use.
struct World {
    d: Device,
    control: Arc<Control>,
    /// The stream of the callback.
    s: Stream,
    /// Another one, which has no memory yet.
    other: Stream,
    /// A pool for the calls under test.
    pool: Pool,
    /// Blocks for the callback to free: without a stream, of the stream itself, and used elsewhere.
    blocks: [usize; 3],
}

/// Calls in which a thread may wait for one stream, or for all.
const STREAM_WAITS: [&str; 3] = ["event_synchronize", "synchronize", "stream_synchronize"];

fn world(mapping: bool) -> World {
    world_of(CAPACITY, mapping)
}

fn world_of(capacity: usize, mapping: bool) -> World {
    let (d, control) = held::host(capacity, mapping);
    let (s, other) = (d.stream(), d.stream());
    let default = d.default_pool();
    let blocks = [d.alloc(MIB), default.alloc(MIB, s), default.alloc(MIB, s)].map(Result::unwrap);
    record_stream(blocks[2], other).unwrap();
    World { d, control, s, other, pool: d.pool(0), blocks }
}

/// What the callback does, one after the other, with a word before each and one at the end.
fn use_everything(d: Device, other: Stream, blocks: [usize; 3], full: bool, tell: &Sender<&'static str>) {
    let say = |what| tell.send(what).unwrap();
    let pool = d.default_pool();
    say("a request of another stream");
    let p = pool.alloc(2 * MIB, other);
    say("a request without a stream");
    let q = d.alloc(5 * MIB);
    if !full {
        assert!(p.is_ok() && q.is_ok(), "there is memory: {p:?} {q:?}");
    }
    say("frees of blocks that were there");
    free(blocks[0]).unwrap();
    pool.free(blocks[1], NULL).unwrap();
    free(blocks[2]).unwrap();
    say("frees of its own blocks");
    p.into_iter().for_each(|p| pool.free(p, other).unwrap());
    q.into_iter().for_each(|q| free(q).unwrap());
    say("statistics");
    d.stats();
    say("done");
}

/// Queues a callback that stands until another thread is in `call`, which waits in one of the device's `waits`. Then
/// the callback goes on, and so must the other thread.
fn beside(
    w: &World,
    waits: &[&'static str],
    full: bool,
    call: impl FnOnce() -> Outcome<()> + Send + 'static,
) {
    let (d, other, blocks) = (w.d, w.other, w.blocks);
    let (tell, told): (Sender<&str>, Receiver<&str>) = channel();
    let gate = d.gate(w.s);
    d.call(w.s, move || use_everything(d, other, blocks, full, &tell));
    let before: u64 = waits.iter().map(|name| w.control.calls(name)).sum();
    let (end, ended) = channel();
    std::thread::spawn(move || end.send(call()));
    // Where it need not wait, so much the better.
    soon(LATE, || waits.iter().map(|name| w.control.calls(name)).sum::<u64>() > before);
    std::thread::sleep(LATE / 8);
    gate.open();

    let mut at = "nothing";
    loop {
        match told.recv_timeout(Duration::from_secs(5)) {
            Ok("done") => break,
            Ok(next) => at = next,
            Err(_) => panic!("the callback does not come back from: {at}"),
        }
    }
    let answer = ended.recv_timeout(Duration::from_secs(5)).expect("the other thread does not come back");
    answer.unwrap();
}

/// Beside `millpond_device_empty_cache`.
#[test]
fn a_callback_beside_emptying_the_cache() {
    apart(|| {
        let w = world(true);
        let d = w.d;
        beside(&w, &["synchronize"], false, move || d.empty_cache());
    });
}

/// The same where the device gives segments.
#[test]
fn a_callback_beside_emptying_the_cache_of_segments() {
    apart(|| {
        let w = world(false);
        let d = w.d;
        beside(&w, &["synchronize"], false, move || d.empty_cache());
    });
}

/// Beside the end of another pool.
#[test]
fn a_callback_beside_the_end_of_a_pool() {
    apart(|| {
        let w = world(true);
        let pool = w.pool;
        beside(&w, &["synchronize"], false, move || pool.destroy());
    });
}

/// Beside the sleep of another pool.
#[test]
fn a_callback_beside_the_sleep_of_a_pool() {
    apart(|| {
        let w = world(true);
        let pool = w.pool;
        pool.alloc(2 * MIB, NULL).unwrap();
        beside(&w, &["synchronize"], false, move || pool.sleep(true));
    });
}

/// Beside a wake that gives idle memory back first.
#[test]
fn a_callback_beside_the_wake_of_a_pool() {
    apart(|| {
        let w = world(true);
        let (d, pool) = (w.d, w.pool);
        pool.alloc(32 * MIB, NULL).unwrap();
        pool.sleep(false).unwrap();
        let idle = d.default_pool().alloc(48 * MIB, NULL).unwrap();
        d.default_pool().free(idle, NULL).unwrap();
        beside(&w, &["synchronize"], true, move || pool.wake());
    });
}

/// Beside the release of a capture.
#[test]
fn a_callback_beside_the_release_of_a_capture() {
    apart(|| {
        let w = world(true);
        let capture = w.pool.capture(w.d.stream()).unwrap();
        capture.end().unwrap();
        beside(&w, &["synchronize"], false, move || capture.release());
    });
}

/// Beside a request that waits for a freed block, since the device is full.
#[test]
fn a_callback_beside_a_request_that_waits_for_its_stream() {
    apart(|| {
        let w = world(true);
        let (d, s, a) = (w.d, w.s, w.d.stream());
        let pool = d.default_pool();
        let big = pool.alloc(48 * MIB, a).unwrap();
        record_stream(big, s).unwrap();
        // The free comes when the callback is queued.
        let call = move || {
            pool.free(big, a)?;
            pool.alloc(56 * MIB, a).map(|p| pool.free(p, a).unwrap())
        };
        beside(&w, &STREAM_WAITS, true, call);
    });
}

/// Beside a request without a stream that takes memory of the callback's stream.
#[test]
fn a_callback_beside_a_request_that_takes_its_streams_memory() {
    apart(|| {
        let w = world(true);
        let (d, s) = (w.d, w.s);
        let pool = d.default_pool();
        let big = pool.alloc(48 * MIB, s).unwrap();
        pool.free(big, s).unwrap();
        let call = move || d.alloc(40 * MIB).map(|p| free(p).unwrap());
        beside(&w, &STREAM_WAITS, true, call);
    });
}

/// Beside a request for which memory is given back, since more is reserved than the options want.
#[test]
fn a_callback_beside_the_collector() {
    apart(|| {
        let w = world(true);
        let (d, a) = (w.d, w.d.stream());
        d.set_limit(CAPACITY).unwrap();
        d.set_options("garbage_collection_threshold:0.2").unwrap();
        let pool = d.default_pool();
        let idle = w.pool.alloc(16 * MIB, NULL).unwrap();
        w.pool.free(idle, NULL).unwrap();
        let call = move || pool.alloc(20 * MIB, a).map(|p| pool.free(p, a).unwrap());
        beside(&w, &["synchronize"], false, call);
    });
}

/// Beside a request in a segment device that finds none large enough and gives idle ones back.
#[test]
fn a_callback_beside_a_request_that_gives_segments_back() {
    apart(|| {
        let w = world_of(256 * MIB, false);
        let pool = w.pool;
        let idle: Vec<usize> = (0..3).map(|_| pool.alloc(60 * MIB, NULL).unwrap()).collect();
        idle.into_iter().for_each(|p| pool.free(p, NULL).unwrap());
        beside(&w, &["synchronize"], true, move || pool.alloc(120 * MIB, NULL).map(drop));
    });
}

/// Beside the free of a block that is a segment of its own, which waits for the device.
#[test]
fn a_callback_beside_the_free_of_a_whole_segment() {
    apart(|| {
        let w = world_of(256 * MIB, false);
        let big = w.d.alloc(100 * MIB).unwrap();
        beside(&w, &["synchronize"], false, move || free(big));
    });
}

/// Beside a restore, which waits for streams that have used what it frees.
#[test]
fn a_callback_beside_a_restore() {
    apart(|| {
        let w = world(true);
        let (s, a, pool) = (w.s, w.d.stream(), w.pool);
        let kept = pool.checkpoint();
        let p = pool.alloc(2 * MIB, a).unwrap();
        record_stream(p, s).unwrap();
        beside(&w, &STREAM_WAITS, false, move || pool.restore(kept).map(drop));
    });
}

/// Beside a restore that brings memory back from the callback's stream to blocks without a stream.
#[test]
fn a_callback_beside_a_restore_that_moves_memory() {
    apart(|| {
        let w = world(true);
        let (d, s) = (w.d, w.s);
        let pool = d.default_pool();
        // Blocks of the checkpoint: all that is live, and one more, whose granule the stream has now.
        let p = d.alloc(2 * MIB).unwrap();
        let kept = pool.checkpoint();
        free(p).unwrap();
        let q = pool.alloc(2 * MIB, s).unwrap();
        assert!(overlap((p, 2 * MIB), (q, 2 * MIB)), "the test is about one granule");
        pool.free(q, s).unwrap();
        // The restore may be refused, since the callback uses the pool; it must not hang.
        beside(&w, &STREAM_WAITS, false, move || {
            let _ = pool.restore(kept);
            Ok(())
        });
    });
}

/// Beside the end of a stream whose blocks the callback's stream has used, and the other way round.
#[test]
fn a_callback_beside_the_end_of_its_stream() {
    apart(|| {
        let w = world(true);
        let (d, s, a) = (w.d, w.s, w.d.stream());
        let p = d.default_pool().alloc(MIB, a).unwrap();
        record_stream(p, s).unwrap();
        beside(&w, &STREAM_WAITS, false, move || d.end_stream(s));
    });
}

/// Beside the end of the library: the callback's calls fail, and nobody waits for ever.
#[test]
fn a_callback_beside_the_end_of_the_library() {
    apart(|| {
        let w = world(true);
        let (d, other, control) = (w.d, w.other, w.control.clone());
        let pool = d.default_pool();
        let (tell, told) = channel();
        let gate = d.gate(w.s);
        d.call(w.s, move || {
            let answers = (pool.alloc(2 * MIB, other).is_ok(), d.alloc(MIB).is_ok());
            let _ = tell.send(answers);
        });
        let before = control.calls("synchronize");
        let end = std::thread::spawn(|| outcome(millpond::capi::millpond_finalize()));
        until("the end waits for the device", || control.calls("synchronize") > before);
        gate.open();
        told.recv_timeout(Duration::from_secs(5)).expect("the callback does not come back");
        within(10, "the end of the library", move || end.join().unwrap()).unwrap();
    });
}
