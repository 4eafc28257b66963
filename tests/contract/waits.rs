//! While one thread is inside a device call, or waits for work on the host, the others continue: requests and frees of
//! other streams and pools, including requests that need more memory from the device, and statistics.

use crate::apart::*;
use crate::api::*;
use crate::held::{self, Control, victim};
use millpond::capi::*;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

mod callbacks;
mod calls;

const CAPACITY: usize = 256 * MIB;

/// A held device with a pool beside the default one. The thread that will be held uses stream `a`; `b` of the same pool
/// and `c` of the other one have memory and some to spare, `fresh` ones have never asked.
#[derive(Clone)]
struct World {
    d: Device,
    control: Arc<Control>,
    pool: Pool,
    beside: Pool,
    a: Stream,
    b: Stream,
    c: Stream,
    fresh: [Stream; 2],
    live: [usize; 6],
}

fn world(mapping: bool) -> World {
    let (d, control) = held::host(CAPACITY, mapping);
    let (pool, beside) = (d.default_pool(), d.pool(0));
    let (a, b, c) = (d.stream(), d.stream(), d.stream());
    let fresh = [d.stream(), d.stream()];
    // Each has some memory of its own, most of it free.
    let warm = |take: &dyn Fn(usize) -> usize| {
        let (big, live) = (take(3 * MIB), [take(64 * KIB), take(64 * KIB)]);
        free(big).unwrap();
        live
    };
    let of_b = warm(&|n| pool.alloc(n, b).unwrap());
    let of_c = warm(&|n| beside.alloc(n, c).unwrap());
    let of_none = warm(&|n| d.alloc(n).unwrap());
    d.synchronize().unwrap();
    d.stats();
    let live = [of_b[0], of_b[1], of_c[0], of_c[1], of_none[0], of_none[1]];
    World { d, control, pool, beside, a, b, c, fresh, live }
}

type Work = (&'static str, Box<dyn FnOnce() + Send>);

/// What is served from what is there.
fn easy(w: &World) -> Vec<Work> {
    let World { d, pool, beside, b, c, live, .. } = w.clone();
    let pair = move |pool: Pool, bytes: usize, stream: Stream| {
        let p = pool.alloc(bytes, stream).unwrap();
        pool.free(p, stream).unwrap();
    };
    vec![
        ("the device's statistics", Box::new(move || _ = d.stats())),
        ("the pool's statistics", Box::new(move || _ = pool.stats())),
        ("the other pool's statistics", Box::new(move || _ = beside.stats())),
        ("a pair of another stream", Box::new(move || pair(pool, 64 * KIB, b))),
        ("a larger pair of another stream", Box::new(move || pair(pool, 512 * KIB, b))),
        ("a pair of the other pool", Box::new(move || pair(beside, 64 * KIB, c))),
        ("a larger pair of the other pool", Box::new(move || pair(beside, 512 * KIB, c))),
        ("a pair without a stream", Box::new(move || free(d.alloc(64 * KIB).unwrap()).unwrap())),
        ("a free of another stream", Box::new(move || pool.free(live[0], b).unwrap())),
        ("a free on another stream", Box::new(move || pool.free(live[1], c).unwrap())),
        ("a free of the other pool", Box::new(move || free(live[2]).unwrap())),
        (
            "a use on another stream",
            Box::new(move || {
                record_stream(live[3], b).unwrap();
                free(live[3]).unwrap();
            }),
        ),
        ("a free without a stream", Box::new(move || free(live[4]).unwrap())),
        ("a look at a block", Box::new(move || _ = block(live[5]).unwrap())),
    ]
}

/// What needs more memory of the device, or a heap.
fn growing(w: &World) -> Vec<Work> {
    let World { d, pool, beside, b, c, fresh, .. } = w.clone();
    vec![
        ("more memory for another stream", Box::new(move || _ = pool.alloc(8 * MIB, b).unwrap())),
        ("more memory for the other pool", Box::new(move || _ = beside.alloc(8 * MIB, c).unwrap())),
        ("more memory without a stream", Box::new(move || _ = d.alloc(8 * MIB).unwrap())),
        ("the first request of a stream", Box::new(move || _ = pool.alloc(64 * KIB, fresh[0]).unwrap())),
        (
            "the first request of a stream in the other pool",
            Box::new(move || _ = beside.alloc(64 * KIB, fresh[1]).unwrap()),
        ),
        ("a new stream", Box::new(move || d.end_stream(d.stream()).unwrap())),
    ]
}

/// Does all of it, each on a thread of its own, and tells what was not done in time.
fn late(all: Vec<Work>, limit: Duration) -> Vec<&'static str> {
    let (tell, told) = channel();
    let mut open: Vec<&str> = all.iter().map(|w| w.0).collect();
    for (what, work) in all {
        let tell = tell.clone();
        std::thread::spawn(move || {
            work();
            let _ = tell.send(what);
        });
    }
    let until = Instant::now() + limit;
    while !open.is_empty() {
        match told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(done) => open.retain(|&what| what != done),
            Err(_) => break,
        }
    }
    open
}

/// The parts of the test for what may be served while a call is held.
type Part = fn(&World) -> Vec<Work>;

/// Holds another thread in the nth call of this name that `act` makes; the others go on meanwhile.
fn while_held(call: &str, nth: u64, mapping: bool, part: Part, act: fn(World)) {
    let w = world(mapping);
    let hold = w.control.hold_before(call, nth);
    let v = w.clone();
    let other = victim(move || act(v));
    soon(Duration::from_secs(10), || hold.is_reached() || other.is_finished());
    if !hold.is_reached() {
        // It does without that call, which is as good.
        other.join().unwrap();
        return;
    }
    let waited = late(part(&w), Duration::from_secs(3));
    hold.let_go();
    other.join().unwrap();
    assert!(waited.is_empty(), "these wait for a thread that is in {call}: {waited:#?}");
}

/// Both parts.
fn all(w: &World) -> Vec<Work> {
    easy(w).into_iter().chain(growing(w)).collect()
}

// ---- what the other thread does ----------------------------------------------------------------------------------

fn grow(w: World) {
    w.pool.alloc(16 * MIB, w.a).unwrap();
}

fn grow_far(w: World) {
    w.beside.alloc(62 * MIB, w.a).unwrap();
}

fn give_back(w: World) {
    let pool = w.d.pool(0);
    let p = pool.alloc(48 * MIB, w.a).unwrap();
    pool.free(p, w.a).unwrap();
    pool.empty_cache().unwrap();
}

fn free_on_many(w: World) {
    let p = w.pool.alloc(MIB, w.a).unwrap();
    let streams: Vec<Stream> = (0..16).map(|_| w.d.stream()).collect();
    let gates: Vec<Gate> = streams.iter().map(|&s| w.d.gate(s)).collect();
    gates.iter().for_each(|g| g.open_after(3 * LATE));
    streams.iter().for_each(|&s| record_stream(p, s).unwrap());
    w.pool.free(p, w.a).unwrap();
}

fn end_used_stream(w: World) {
    w.pool.alloc(MIB, w.a).unwrap();
    w.d.end_stream(w.a).unwrap();
}

/// A stream takes over what an ended one has left.
fn take_over(w: World) {
    w.pool.alloc(MIB, w.a).unwrap();
    let gate = w.d.gate(w.a);
    w.d.end_stream(w.a).unwrap();
    let next = w.d.stream();
    w.pool.alloc(MIB, next).unwrap();
    gate.open();
}

/// Memory of a stream that is at work goes to a request without a stream.
fn take_from_a_stream(w: World) {
    let p = w.pool.alloc(CAPACITY - 64 * MIB, w.a).unwrap();
    let gate = w.d.gate(w.a);
    w.pool.free(p, w.a).unwrap();
    gate.open_after(4 * LATE);
    w.d.alloc(CAPACITY - 96 * MIB).unwrap();
}

/// A request waits for a freed block.
fn wait_for_a_block(w: World) {
    let p = w.pool.alloc(CAPACITY - 64 * MIB, w.a).unwrap();
    let gate = w.d.gate(w.c);
    record_stream(p, w.c).unwrap();
    w.pool.free(p, w.a).unwrap();
    gate.open_after(4 * LATE);
    w.pool.alloc(CAPACITY - 96 * MIB, w.a).unwrap();
}

fn sleep_and_wake(w: World) {
    let pool = w.d.pool(0);
    pool.alloc(4 * MIB, w.a).unwrap();
    pool.sleep(true).unwrap();
    pool.wake().unwrap();
}

/// A request that asks the device first how much it has.
fn grow_carefully(w: World) {
    w.d.set_options("throw_on_cudamalloc_oom:True").unwrap();
    w.pool.alloc(16 * MIB, w.a).unwrap();
}

/// Granules that lie apart are shown side by side.
fn scatter(w: World) {
    let pool = w.d.pool(8 * MIB);
    let all: Vec<usize> = (0..4).map(|_| pool.alloc(2 * MIB, w.a).unwrap()).collect();
    pool.free(all[0], w.a).unwrap();
    pool.free(all[2], w.a).unwrap();
    pool.alloc(4 * MIB, w.a).unwrap();
}

fn free_a_whole_segment(w: World) {
    free(w.d.alloc(100 * MIB).unwrap()).unwrap();
}

fn collect(w: World) {
    w.d.set_limit(CAPACITY).unwrap();
    w.d.set_options("garbage_collection_threshold:0.05").unwrap();
    w.pool.alloc(16 * MIB, w.a).unwrap();
}

fn end_a_pool(w: World) {
    let pool = w.d.pool(0);
    pool.alloc(MIB, w.a).map(|p| pool.free(p, w.a)).unwrap().unwrap();
    pool.destroy().unwrap();
}

fn look(w: World) {
    let p = w.pool.alloc(MIB, w.a).unwrap();
    let gate = w.d.gate(w.c);
    w.pool.free(p, w.c).unwrap();
    w.d.stats();
    gate.open();
}

/// Memory of a stream that is at work goes to another stream, which waits for it on the device.
fn take_on_the_device(w: World) {
    let p = w.pool.alloc(CAPACITY - 64 * MIB, w.a).unwrap();
    let (gate, next) = (w.d.gate(w.a), w.d.stream());
    w.pool.alloc(MIB, next).unwrap();
    w.pool.free(p, w.a).unwrap();
    gate.open_after(4 * LATE);
    w.pool.alloc(CAPACITY - 96 * MIB, next).unwrap();
}

/// Pinned memory.
fn take_host_memory(w: World) {
    let mut p = std::ptr::null_mut();
    outcome(unsafe { millpond_host_alloc(ptr(w.d.0), MIB, &mut p) }).unwrap();
    outcome(unsafe { millpond_host_free(ptr(w.d.0), p) }).unwrap();
}

/// A block for another process.
fn share(w: World) {
    let p = w.pool.alloc(MIB, w.a).unwrap();
    let (mut bytes, mut count) = (0, 0);
    outcome(unsafe { millpond_export_get_size(ptr(p), &mut bytes, &mut count) }).unwrap();
    let (mut info, mut fds) = (vec![0u8; bytes], vec![-1; count]);
    let (to, many) = (info.as_mut_ptr().cast(), fds.as_mut_ptr());
    outcome(unsafe { millpond_export(ptr(p), to, bytes, many, count) }).unwrap();
}
