//! Pools that graphs keep. From the begin of a capture to its release the pool keeps all its memory at its addresses:
//! nothing goes to other streams, to other pools or to the device, for each replay finds it there. Graphs are
//! replayed on any stream and beside each other, so two of different streams that share an address destroy each
//! other's data, though the program has done nothing wrong. (docs/pools.md, "Graph capture")

use crate::apart::{apart_for, step};
use crate::client::*;
use crate::cuda::{Fake, MIB};
use crate::recording::*;
use millpond::capi::*;

/// How the captured stream was made, and so ends.
#[derive(Clone, Copy)]
enum Made {
    Here,
    Elsewhere,
}

fn stream_of(fake: &Fake, d: Dev, made: Made) -> u64 {
    match made {
        Made::Here => d.stream(),
        Made::Elsewhere => fake.foreign_stream(0, 1),
    }
}

fn end_of(fake: &Fake, d: Dev, made: Made, s: u64) {
    match made {
        Made::Here => d.stream_end(s).unwrap(),
        Made::Elsewhere => {
            d.stream_forget(s).unwrap();
            fake.foreign_stream_end(s);
        }
    }
}

const WORK: u64 = 3 * MIB;

/// One graph is alive, its stream has ended, and another stream has used the pool since: the other's graph.
fn two_graphs(settings: &[(&str, &str)], made: Made) {
    let fake = cuda("1", settings);
    let d = device("cuda", 0);
    let pool = d.new_pool();
    let s = stream_of(&fake, d, made);
    let first = pool.capture(s).unwrap();
    record(&fake, s);
    let a = pool.alloc(WORK, s).unwrap();
    d.memset_async(s, a, 1, WORK).unwrap();
    pool.free(a, s).unwrap();
    let _exec = graph(&fake, s);
    first.end().unwrap();
    step("the stream of the first graph ends");
    end_of(&fake, d, made, s);

    let t = stream_of(&fake, d, made);
    // Eager work in the pool comes first, as a warm-up does.
    let warm = pool.alloc(WORK, t).unwrap();
    assert!(
        !overlap(a, WORK, warm, WORK),
        "eager work of another stream got memory of a graph that is alive"
    );
    pool.free(warm, t).unwrap();
    let second = pool.capture(t).unwrap();
    record(&fake, t);
    let b = pool.alloc(WORK, t).unwrap();
    d.memset_async(t, b, 2, WORK).unwrap();
    pool.free(b, t).unwrap();
    let _exec = graph(&fake, t);
    second.end().unwrap();
    assert!(!overlap(a, WORK, b, WORK), "two graphs of different streams have {a:#x} and {b:#x}");
}

/// Two graphs in one pool, of different streams, share no memory while both live: also when the first one's stream
/// had ended before the second one's was first seen.
#[test]
fn graphs_of_different_streams_share_no_memory_when_the_first_stream_has_ended() {
    apart_for(60, || {
        two_graphs(&[], Made::Here);
    });
}

/// The same for streams of the framework, which says that they end.
#[test]
fn graphs_of_different_streams_share_no_memory_when_a_framework_has_ended_the_first_stream() {
    apart_for(60, || two_graphs(&[], Made::Elsewhere));
}

/// The same on a device that gives segments.
#[test]
fn graphs_of_different_streams_share_no_memory_in_segments() {
    apart_for(60, || two_graphs(&[("no_vmm", "1"), ("capacity", "320M")], Made::Here));
}

/// When the memory of a block that is a segment of its own is taken and freed, beside a capture.
#[derive(Clone, Copy)]
enum Large {
    /// Taken before, freed in it.
    Before,
    /// Taken before, used in it, and freed when the capture has ended.
    BeforeAndAfter,
    /// Taken and freed in it.
    Within,
    /// Taken in it, and freed when the capture has ended: a result of the graph.
    Result,
}

fn large_block(when: Large) {
    let fake = cuda("1", &[("no_vmm", "1"), ("capacity", "320M")]);
    let d = device("cuda", 0);
    let pool = d.new_pool();
    let s = d.stream();
    let bytes = d.info().max_chunk_bytes + 4 * MIB;
    let mut x = 0;
    if matches!(when, Large::Before | Large::BeforeAndAfter) {
        x = pool.alloc(bytes, s).unwrap();
    }
    let capture = pool.capture(s).unwrap();
    record(&fake, s);
    if matches!(when, Large::Within | Large::Result) {
        x = pool.alloc(bytes, s).unwrap();
    }
    d.memset_async(s, x, 5, bytes).unwrap();
    if matches!(when, Large::Before | Large::Within) {
        pool.free(x, s).unwrap();
    }
    let exec = graph(&fake, s);
    capture.end().unwrap();
    if matches!(when, Large::Result | Large::BeforeAndAfter) {
        pool.free(x, s).unwrap();
    }
    // More than the device has beside the block.
    let other = d.pool().alloc(300 * MIB, d.stream());
    assert!(other.is_err(), "the graph's memory was given away");
    step("replay");
    assert_eq!(replay(&fake, exec, s), 0, "the replay did not find its memory");
    let holds = fake.read(0, x + bytes - 1, 1);
    assert_eq!(holds, Ok(vec![5]), "the memory that the graph uses has gone");
    // With the graph the memory goes.
    graph_end(&fake, exec);
    capture.release().unwrap();
    d.empty_cache().unwrap();
    assert_eq!((fake.used(0), pool.stats().unwrap().reserved_bytes.current), (0, 0));
}

/// A block above the max chunk that the pool had before the capture, and that is freed in it, stays for the replays.
#[test]
fn a_large_block_of_before_that_is_freed_in_a_capture_stays_for_its_graph() {
    apart_for(60, || large_block(Large::Before));
}

/// The same for one that is freed after the capture, while the graph is alive.
#[test]
fn a_large_block_of_before_that_is_freed_after_a_capture_stays_for_its_graph() {
    apart_for(60, || large_block(Large::BeforeAndAfter));
}

/// The same for one that was taken in the capture, too.
#[test]
fn a_large_block_that_is_taken_and_freed_in_a_capture_stays_for_its_graph() {
    apart_for(60, || large_block(Large::Within));
}

/// The same for a graph's result, freed while the graph is alive.
#[test]
fn a_large_result_that_is_freed_stays_for_its_graph() {
    apart_for(60, || large_block(Large::Result));
}

/// A framework's own non-blocking stream is captured, in the mode that forbids most, and Millpond was told. The device is
/// not waited for meanwhile, although the driver names no such capture by itself.
#[test]
fn the_device_is_not_waited_for_while_a_framework_records() {
    apart_for(60, || {
        let fake = cuda("1", &[]);
        let d = device("cuda", 0);
        let (pool, s) = (d.new_pool(), fake.foreign_stream(0, 1));
        let recording = pool.capture(s).unwrap();
        let begin: extern "C" fn(u64, u32) -> u32 = fake.driver("cuStreamBeginCapture_v2");
        assert_eq!(driver(&fake, || begin(s, 0)), 0);
        refused(d.synchronize(), &[MILLPOND_E_NOT_PERMITTED, MILLPOND_E_BUSY]);
        refused(d.empty_cache(), &[MILLPOND_E_NOT_PERMITTED, MILLPOND_E_BUSY]);
        let exec = graph(&fake, s);
        graph_end(&fake, exec);
        recording.end().unwrap();
        recording.release().unwrap();
        d.synchronize().unwrap();
    });
}
