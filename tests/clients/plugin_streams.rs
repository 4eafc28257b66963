//! A plugin without `synchronize_device`, which may be left out. Work that is queued on a stream still completes after
//! the stream was destroyed, and it is work of the device like any other: whatever waits for the device waits for
//! it, and memory under it is given to nobody before.

use crate::apart::{apart_for, step};
use crate::client::*;
use crate::cuda::MIB;
use crate::slow::{self, Manner};
use millpond::capi::*;
use millpond::paddle::abi::C_DeviceInterface;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const STANDS: Duration = Duration::from_millis(800);
const BYTES: u64 = 2 * MIB;

struct Scene {
    d: Dev,
    pool: Pool,
    /// A block of the default pool that is not freed, in the same segment.
    _other: u64,
    start: Instant,
    _gate: Gate,
}

/// A stream has ended whose work, behind a gate that opens by itself, fills the block that `block` gives with 7s.
/// `before` comes between the queueing and the end.
fn ended_stream(block: impl Fn(Dev, u64) -> u64, before: impl Fn(Dev, u64, u64)) -> (Scene, u64) {
    ended_stream_without(|_| (), block, before)
}

/// The same, of a plugin that lacks more.
fn ended_stream_without(
    less: fn(&mut C_DeviceInterface),
    block: impl Fn(Dev, u64) -> u64,
    before: impl Fn(Dev, u64, u64),
) -> (Scene, u64) {
    let lacks = move |t: &mut C_DeviceInterface| {
        t.synchronize_device = None;
        less(t);
    };
    slow::register(Manner::default(), lacks).unwrap();
    let d = device(slow::NAME, 0);
    let (pool, a) = (d.pool(), d.stream());
    let p = block(d, a);
    let other = pool.alloc(BYTES, a).unwrap();
    let gate = Gate::hold(d, a);
    d.memset_async(a, p, 7, BYTES).unwrap();
    before(d, a, p);
    gate.open_after(STANDS);
    let start = Instant::now();
    d.stream_end(a).unwrap();
    (Scene { d, pool, _other: other, start, _gate: gate }, p)
}

impl Scene {
    /// Whether the ended stream's work is over, by the plugin's own account.
    #[track_caller]
    fn check_over(&self, what: &str) {
        assert!(!slow::busy(), "{what} returned after {:?}, and the work is not over", self.start.elapsed());
    }

    /// Somebody takes memory and fills it with 9s: it keeps them.
    #[track_caller]
    fn check_next_owner(&self, stream: Option<u64>) {
        step("the next owner");
        let q = match stream {
            Some(s) => self.pool.alloc(BYTES, s).unwrap(),
            None => self.d.alloc(BYTES).unwrap(),
        };
        let s = stream.unwrap_or_else(|| self.d.stream());
        self.d.memset_async(s, q, 9, BYTES).unwrap();
        self.d.stream_sync(s).unwrap();
        while slow::busy() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(
            self.d.read(q, 4).unwrap(),
            [9; 4],
            "work of a stream that has ended wrote into the next block"
        );
        assert_eq!(slow::faults(), [""; 0]);
    }
}

fn of_the_stream(d: Dev, a: u64) -> u64 {
    d.pool().alloc(BYTES, a).unwrap()
}

fn without_a_stream(d: Dev, _: u64) -> u64 {
    d.alloc(BYTES).unwrap()
}

/// A block was freed on the stream before that ended, and the cache is emptied: the next stream waits for that work.
#[test]
fn emptying_the_cache_does_not_lose_sight_of_a_stream_that_has_ended() {
    apart_for(60, || {
        let (x, _) = ended_stream(of_the_stream, |d, a, p| d.pool().free(p, a).unwrap());
        x.d.empty_cache().unwrap();
        x.check_next_owner(Some(x.d.stream()));
    });
}

/// The same without that call.
#[test]
fn the_next_stream_waits_for_one_that_has_ended() {
    apart_for(60, || {
        let (x, _) = ended_stream(of_the_stream, |d, a, p| d.pool().free(p, a).unwrap());
        x.check_next_owner(Some(x.d.stream()));
    });
}

/// A block without a stream is freed when the stream that uses it has ended.
#[test]
fn a_block_without_a_stream_waits_for_a_stream_that_has_ended() {
    apart_for(60, || {
        let (x, p) = ended_stream(without_a_stream, |_, _, _| ());
        free(p).unwrap();
        x.check_next_owner(None);
    });
}

/// Memory of a stream that has ended serves blocks without a stream only when its work is over.
#[test]
fn memory_of_a_stream_that_has_ended_is_idle_before_it_needs_no_stream() {
    apart_for(60, || {
        let (x, _) = ended_stream(of_the_stream, |d, a, p| d.pool().free(p, a).unwrap());
        x.d.empty_cache().unwrap();
        // More than is left in the plugin's segments beside that block.
        said(unsafe { millpond_pool_set_limit(x.pool.0, x.d.stats().unwrap().reserved_bytes.current) })
            .unwrap();
        x.check_next_owner(None);
    });
}

/// `millpond_device_synchronize` waits for all work that is queued on the device.
#[test]
fn waiting_for_the_device_includes_a_stream_that_has_ended() {
    apart_for(60, || {
        let (x, _) = ended_stream(of_the_stream, |_, _, _| ());
        x.d.synchronize().unwrap();
        x.check_over("millpond_device_synchronize");
    });
}

/// A blocking copy comes after all work that is queued on the device.
#[test]
fn a_blocking_copy_comes_after_the_work_of_a_stream_that_has_ended() {
    apart_for(60, || {
        let (x, p) = ended_stream(of_the_stream, |_, _, _| ());
        assert_eq!(x.d.read(p, 4).unwrap(), [7; 4]);
        x.check_over("millpond_copy");
    });
}

/// The plugin's devices and the plugin end when that work is over.
#[test]
fn unregistering_waits_for_the_work_of_a_stream_that_has_ended() {
    apart_for(60, || {
        let (x, p) = ended_stream(of_the_stream, |_, _, _| ());
        free(p).unwrap();
        free(x._other).unwrap();
        unregister(slow::NAME).unwrap();
        assert_eq!(slow::faults(), [""; 0]);
        x.check_over("millpond_device_type_unregister");
    });
}

/// The same at the end of the library.
#[test]
fn the_end_of_the_library_waits_for_the_work_of_a_stream_that_has_ended() {
    apart_for(60, || {
        let (x, _) = ended_stream(of_the_stream, |_, _, _| ());
        said(millpond_finalize()).unwrap();
        assert_eq!(slow::faults(), [""; 0]);
        x.check_over("millpond_finalize");
    });
}

/// A plugin that has less than that: no events, or only one of the two ways to ask for them.
#[test]
fn a_plugin_with_little_loses_sight_of_no_stream() {
    apart_for(60, || {
        let lacks: [fn(&mut C_DeviceInterface); 4] = [
            |t| t.create_event = None,
            |t| t.query_event = None,
            |t| t.synchronize_event = None,
            |t| t.stream_wait_event = None,
        ];
        for less in lacks {
            let (x, _) = ended_stream_without(less, of_the_stream, |d, a, p| d.pool().free(p, a).unwrap());
            x.d.synchronize().unwrap();
            x.check_over("millpond_device_synchronize");
            free(x._other).unwrap();
            unregister(slow::NAME).unwrap();
            assert_eq!(slow::faults(), [""; 0]);
        }
    });
}

/// Streams come and go for long, and the device is never waited for: what is kept of them does not become more and
/// more.
#[test]
fn what_is_kept_of_ended_streams_does_not_grow() {
    apart_for(60, || {
        for lacks in [|t: &mut C_DeviceInterface| t.query_event = None, |_: &mut C_DeviceInterface| ()] {
            slow::register(Manner::default(), move |t| {
                t.synchronize_device = None;
                lacks(t);
            })
            .unwrap();
            let d = device(slow::NAME, 0);
            let p = d.alloc(1000).unwrap();
            for n in 0..500 {
                let s = d.stream();
                d.memset_async(s, p, 1, 1000).unwrap();
                d.stream_end(s).unwrap();
                while n % 20 == 0 && slow::busy() {
                    std::thread::yield_now();
                }
            }
            assert!(slow::events() < 250, "{} events", slow::events());
            free(p).unwrap();
            unregister(slow::NAME).unwrap();
            assert_eq!(slow::faults(), [""; 0]);
        }
    });
}

/// One thread ends its stream while another waits for the device, and so for that stream: the plugin is not asked for a
/// stream that it has destroyed.
#[test]
fn a_stream_is_not_destroyed_under_a_thread_that_waits_for_the_device() {
    apart_for(60, || {
        slow::register(Manner::default(), |t| t.synchronize_device = None).unwrap();
        let (d, inside) = (device(slow::NAME, 0), Arc::new(AtomicBool::new(false)));
        let a = d.stream();
        let there = inside.clone();
        slow::set_hook(Some(Arc::new(move |name| {
            if name == "synchronize_stream" && !there.swap(true, SeqCst) {
                std::thread::sleep(STANDS / 4);
            }
        })));
        let waits = std::thread::spawn(move || d.synchronize());
        while !inside.load(SeqCst) {
            std::thread::yield_now();
        }
        d.stream_end(a).unwrap();
        assert_eq!(waits.join().unwrap(), Ok(()));
        slow::set_hook(None);
        assert_eq!(slow::faults(), [""; 0]);
        unregister(slow::NAME).unwrap();
    });
}
