//! Pinned memory comes back. Its cache may have to wait for streams before it uses a freed block again, but a program
//! that goes on does not need more and more of it: also where a stream has ended without a word, was captured at the
//! free, or could not be marked for a moment.

use crate::apart::apart_for;
use crate::client::*;
use crate::cuda::{Fake, MIB};
use crate::recording::*;
use millpond::capi::*;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const ROUNDS: usize = 200;
/// What a program that has one block of a MiB at a time may have taken in the end.
const ENOUGH: u64 = 16 * MIB;

struct Scene {
    fake: Fake,
    d: Dev,
    /// A block of device memory for copies.
    p: u64,
}

/// Rounds in each of which a block of 1 MiB is taken, used and freed, as `round` does.
fn rounds(mut round: impl FnMut(&Scene, u64)) {
    let fake = cuda("1", &[]);
    let d = device("cuda", 0);
    let scene = Scene { fake, d, p: d.alloc(MIB).unwrap() };
    for i in 0..ROUNDS {
        let h = d.host_alloc(MIB).unwrap_or_else(|e| panic!("in round {i}: {e:?}"));
        round(&scene, h);
        d.synchronize().unwrap(); // all is over, whatever the block was used for
    }
    let s = d.host_stats();
    assert_eq!(s.blocks.current, 0);
    assert!(
        s.reserved_bytes.peak <= ENOUGH,
        "{ROUNDS} rounds of 1 MiB took {} MiB; {} MiB of them still wait, though the device is at rest",
        s.reserved_bytes.peak / MIB,
        s.pending_bytes / MIB
    );
}

/// The stream of a copy was ended by its maker, who has not told.
#[test]
fn pinned_memory_comes_back_when_its_stream_has_ended_without_a_word() {
    apart_for(60, || {
        rounds(|x, h| {
            let s = x.fake.foreign_stream(0, 1);
            x.d.copy_async(s, MILLPOND_COPY_H2D, x.p, h, MIB).unwrap();
            assert_eq!(x.fake.stream_sync(0, s), 0);
            x.fake.foreign_stream_end(s);
            x.d.host_free(h).unwrap();
        });
    });
}

/// The copy was recorded into a graph, and the memory freed meanwhile; then the graph is gone.
#[test]
fn pinned_memory_comes_back_when_its_graph_has_gone() {
    apart_for(60, || {
        let mut s = 0;
        let mut pool = None;
        rounds(|x, h| {
            let pool = *pool.get_or_insert_with(|| x.d.new_pool());
            s = if s == 0 { x.d.stream() } else { s };
            let capture = pool.capture(s).unwrap();
            record(&x.fake, s);
            x.d.copy_async(s, MILLPOND_COPY_H2D, x.p, h, MIB).unwrap();
            x.d.host_free(h).unwrap();
            let exec = graph(&x.fake, s);
            capture.end().unwrap();
            assert_eq!(replay(&x.fake, exec, s), 0);
            graph_end(&x.fake, exec);
            capture.release().unwrap();
        });
    });
}

/// The same where only the driver knows of the capture.
#[test]
fn pinned_memory_comes_back_after_a_capture_that_only_the_driver_knew() {
    apart_for(60, || {
        let mut s = 0;
        rounds(|x, h| {
            s = if s == 0 { x.d.stream() } else { s };
            record(&x.fake, s);
            x.d.copy_async(s, MILLPOND_COPY_H2D, x.p, h, MIB).unwrap();
            x.d.host_free(h).unwrap();
            let exec = graph(&x.fake, s);
            assert_eq!(replay(&x.fake, exec, s), 0);
            graph_end(&x.fake, exec);
        });
    });
}

/// The memory was freed in a stream callback, where the driver cannot be asked.
#[test]
fn pinned_memory_comes_back_that_was_freed_in_a_stream_callback() {
    apart_for(60, || {
        let mut s = 0;
        rounds(|x, h| {
            s = if s == 0 { x.d.stream() } else { s };
            x.d.copy_async(s, MILLPOND_COPY_H2D, x.p, h, MIB).unwrap();
            let (tell, told) = channel();
            let d = x.d;
            d.callback(s, move |_| tell.send(d.host_free(h)).unwrap()).unwrap();
            told.recv().unwrap().unwrap();
        });
    });
}

/// The driver could not mark the stream at that moment: its events were used up.
#[test]
fn pinned_memory_comes_back_whose_stream_could_not_be_marked_at_once() {
    apart_for(60, || {
        let mut s = 0;
        rounds(|x, h| {
            s = if s == 0 { x.d.stream() } else { s };
            let gate = Gate::hold(x.d, s);
            x.d.copy_async(s, MILLPOND_COPY_H2D, x.p, h, MIB).unwrap();
            x.fake.fail("cuEventRecord", 1, 2, false); // CUDA_ERROR_OUT_OF_MEMORY
            x.d.host_free(h).unwrap();
            x.fake.fail_clear();
            gate.open();
        });
    });
}

/// What was used as it should be, for comparison.
#[test]
fn pinned_memory_comes_back() {
    apart_for(60, || {
        let mut s = 0;
        rounds(|x, h| {
            s = if s == 0 { x.d.stream() } else { s };
            x.d.copy_async(s, MILLPOND_COPY_H2D, x.p, h, MIB).unwrap();
            x.d.host_free(h).unwrap();
        });
    });
}

/// Two pinned blocks that are freed and wait: one for long, one for a moment.
fn two_that_wait(d: Dev, slow_first: bool) -> (Gate, Gate) {
    let (slow, quick) = (d.stream(), d.stream());
    let order = if slow_first { [slow, quick] } else { [quick, slow] };
    let blocks = order.map(|s| {
        let h = d.host_alloc(MIB).unwrap();
        d.host_record_stream(h, s).unwrap();
        h
    });
    let gates = (Gate::hold(d, slow), Gate::hold(d, quick));
    blocks.into_iter().for_each(|h| d.host_free(h).unwrap());
    gates
}

/// A request for which the driver has nothing waits for the block that is ready first, and has that: it does not go back
/// to the driver before.
#[test]
fn pinned_memory_that_is_ready_first_serves_a_request() {
    apart_for(60, || {
        for slow_first in [true, false] {
            let fake = cuda("1", &[]);
            let d = device("cuda", 0);
            let (slow, quick) = two_that_wait(d, slow_first);
            fake.fail("cuMemHostAlloc", 1, 2, true);
            quick.open_after(Duration::from_millis(200));
            slow.open_after(Duration::from_secs(8));
            let start = Instant::now();
            d.host_alloc(MIB).unwrap();
            assert!(start.elapsed() < Duration::from_secs(4), "it waited for {:?}", start.elapsed());
            fake.fail_clear();
        }
    });
}

/// One thread empties the cache, and waits for the slow stream. What is ready meanwhile serves another thread.
#[test]
fn pinned_memory_serves_beside_a_thread_that_empties_the_cache() {
    apart_for(60, || {
        let fake = cuda("1", &[]);
        let d = device("cuda", 0);
        let (slow, quick) = two_that_wait(d, true);
        let other = std::thread::spawn(move || d.empty_host_cache());
        std::thread::sleep(Duration::from_millis(300));
        fake.fail("cuMemHostAlloc", 1, 2, true);
        quick.open_after(Duration::from_millis(200));
        slow.open_after(Duration::from_secs(8));
        let start = Instant::now();
        let h = d.host_alloc(MIB).unwrap();
        assert!(start.elapsed() < Duration::from_secs(4), "it waited for {:?}", start.elapsed());
        fake.fail_clear();
        slow.open();
        other.join().unwrap().unwrap();
        d.host_free(h).unwrap();
        d.empty_host_cache().unwrap();
        assert_eq!(d.host_stats().reserved_bytes.current, 0);
    });
}
