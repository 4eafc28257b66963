//! Streams that a framework created and destroyed without a word. A card's driver crashes on the handle of such a stream, and
//! gives it to the next stream at once; the fake driver does both. So the library must not pass it on in a call that does
//! not name it, unless the program has promised to tell (`streams_announced`).

use crate::apart::{apart, apart_told};
use crate::cuda::*;
use millpond::Code;
use millpond::runtime::{self, DeviceState, PoolId};
use std::sync::Arc;

mod contexts;
mod told;

const POOL: PoolId = PoolId::DEFAULT;
/// A driver without an event for a whole context: there the library counts on the promise, or on a driver that checks.
const OLD: &[(&str, &str)] = &[("driver", "11040")];
const BOTH: [&[(&str, &str)]; 2] = [&[], OLD];
const NON_BLOCKING: u32 = 1;

/// A device of 64 MiB, with the promise.
fn announced(settings: &[(&str, &str)]) -> (Fake, Arc<DeviceState>) {
    let (fake, d) = one(settings);
    d.options().set("streams_announced:on").unwrap();
    (fake, d)
}

/// While the body runs, the held work goes on after a moment.
fn going_on_later(fake: &Fake, body: impl FnOnce()) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            fake.hold(false);
        });
        body();
    });
}

#[test]
fn a_wait_for_the_device_asks_no_stream_that_has_ended() {
    apart(|| {
        let (fake, d) = one(&[]);
        let (m, s) = (d.memory(), fake.foreign_stream(0, NON_BLOCKING));
        let b = m.alloc(POOL, s, 40 * MIB).unwrap();
        // It was asked about captures.
        let p = m.pools().create(0).unwrap();
        m.captures().release(m.captures().begin(p, s).unwrap()).unwrap();
        fake.foreign_stream_end(s);
        d.synchronize().unwrap();
        m.free(b, None, None).unwrap();
        m.empty_cache(None).unwrap();
        d.memset(m.alloc(POOL, 0, MIB).unwrap(), 1, MIB).unwrap();
        fake.end();
    });
}

#[test]
fn a_block_of_an_ended_stream_changes_its_size() {
    apart(|| {
        let (fake, d) = one(&[]);
        let (m, s) = (d.memory(), fake.foreign_stream(0, NON_BLOCKING));
        let b = m.alloc(POOL, s, 40 * MIB).unwrap();
        fake.foreign_stream_end(s);
        m.try_expand(b, 30 * MIB).unwrap();
        m.try_expand(b, 38 * MIB).unwrap();
        fake.end();
    });
}

#[test]
fn a_checkpoint_of_ended_streams_is_restored() {
    apart(|| {
        let (fake, d) = one(&[]);
        let m = d.memory();
        let [s, t] = [0, 1].map(|_| fake.foreign_stream(0, NON_BLOCKING));
        let p = m.pools().create(0).unwrap();
        let kept = m.alloc(p, s, 5 * MIB).unwrap();
        let given = m.alloc(p, s, 9 * MIB).unwrap();
        let c = m.checkpoints().make(p).unwrap();
        m.free(given, Some(s), None).unwrap();
        // What the checkpoint has on one stream is on the other now, and must come back.
        let others: Vec<u64> = (0..).map_while(|_| m.alloc(p, t, 4 * MIB).ok()).collect();
        assert!(others.len() > 8);
        fake.foreign_stream_end(s);
        fake.foreign_stream_end(t);
        m.checkpoints().restore(p, c).unwrap();
        assert!(m.block(kept).is_ok() && m.block(given).is_ok());
        fake.end();
    });
}

/// The library itself is given the handle of a stream that has ended without a word. What that one has freed is not the new
/// one's before its work is done.
#[test]
fn a_stream_of_ours_with_the_handle_of_an_ended_one_does_not_take_its_memory() {
    apart(|| {
        for (settings, promise) in BOTH.into_iter().flat_map(|s| [(s, false), (s, true)]) {
            let (fake, d) = if promise { announced(settings) } else { one(settings) };
            let (m, s) = (d.memory(), fake.foreign_stream(0, NON_BLOCKING));
            let b = m.alloc(POOL, s, 3 * MIB).unwrap();
            fake.hold(true);
            d.memset_async(s, b, 9, 3 * MIB).unwrap();
            m.free(b, Some(s), None).unwrap();
            fake.foreign_stream_end(s);
            going_on_later(&fake, || {
                let ours = d.streams().create().unwrap();
                assert_eq!(ours, s, "its handle comes again");
                let c = m.alloc(POOL, ours, 3 * MIB).unwrap();
                d.memset_async(ours, c, 7, 3 * MIB).unwrap();
                d.streams().synchronize(ours).unwrap();
                d.synchronize().unwrap();
                assert!(fake.read(0, c, 3 << 20).unwrap() == vec![7; 3 << 20], "overwritten by old work");
                m.free(c, Some(ours), None).unwrap();
                d.streams().destroy(ours).unwrap();
            });
            m.empty_cache(None).unwrap();
            assert_eq!(fake.used(0), 0);
            fake.end();
        }
    });
}

/// The same on the fast path, with another heap that knows the ended stream: requests of both streams look alike.
#[test]
fn a_fast_path_of_an_ended_stream_is_not_one_of_a_stream_of_ours() {
    apart(|| {
        for promise in [false, true] {
            let (fake, d) = if promise { announced(&[]) } else { one(&[]) };
            let (pool, s) = (d.pool(POOL).unwrap(), fake.foreign_stream(0, NON_BLOCKING));
            for _ in 0..10_000 {
                let at = pool.alloc(s, 4096).unwrap();
                pool.free(at, s).unwrap();
            }
            let b = pool.alloc(s, 4096).unwrap();
            fake.hold(true);
            d.memset_async(s, b, 9, 4096).unwrap();
            pool.free(b, s).unwrap();
            fake.foreign_stream_end(s);
            going_on_later(&fake, || {
                let ours = d.streams().create().unwrap();
                assert_eq!(ours, s, "its handle comes again");
                let c = pool.alloc(ours, 4096).unwrap();
                d.memset_async(ours, c, 7, 4096).unwrap();
                d.streams().synchronize(ours).unwrap();
                d.synchronize().unwrap();
                assert!(fake.read(0, c, 4096).unwrap() == vec![7; 4096], "overwritten by old work");
                pool.free(c, ours).unwrap();
                d.streams().destroy(ours).unwrap();
            });
            fake.end();
        }
    });
}

/// What is known of a stream that was created elsewhere does not outlive it in a stream of ours with its handle: when ours is
/// really destroyed, nobody asks for the handle any more.
#[test]
fn a_handle_that_was_ours_last_is_not_asked_about_captures() {
    apart(|| {
        let (fake, d) = announced(&[]);
        let (m, s) = (d.memory(), fake.foreign_stream(0, NON_BLOCKING));
        let p = m.pools().create(0).unwrap();
        m.captures().release(m.captures().begin(p, s).unwrap()).unwrap();
        let b = m.alloc(POOL, s, 40 * MIB).unwrap();
        m.try_expand(b, 30 * MIB).unwrap(); // it was asked about captures
        fake.foreign_stream_end(s);
        let ours = d.streams().create().unwrap();
        assert_eq!(ours, s);
        // So many ended streams are kept that it is destroyed.
        let all: Vec<u64> = (0..1100).map(|_| d.streams().create().unwrap()).collect();
        d.streams().destroy(ours).unwrap();
        all.into_iter().for_each(|s| d.streams().destroy(s).unwrap());
        d.synchronize().unwrap();
        fake.end();
    });
}

#[test]
fn a_block_of_the_drivers_pool_is_freed_after_its_stream() {
    apart(|| {
        let fake = Fake::new(&[("capacity", "64M")], |_| {});
        runtime::set_default_options(Some("cuda"), None, "backend:cudaMallocAsync").unwrap();
        let d = runtime::device("cuda", 0).unwrap();
        let (m, s) = (d.memory(), fake.foreign_stream(0, NON_BLOCKING));
        let [a, b] = [3, 5].map(|n| m.alloc(POOL, s, n * MIB).unwrap());
        fake.hold(true);
        d.memset_async(s, a, 8, MIB).unwrap();
        d.memset_async(s, b, 8, MIB).unwrap();
        // The call names the stream: the free is queued there.
        m.free(b, Some(s), None).unwrap();
        fake.foreign_stream_end(s);
        going_on_later(&fake, || m.free(a, None, None).unwrap());
        d.synchronize().unwrap();
        assert_eq!(m.live_blocks(), 0);
        m.empty_cache(None).unwrap();
        assert_eq!(fake.used(0), 0);
        fake.end();
    });
}

/// With the promise, each stream counts by itself: what is free on an idle one is taken while others work.
#[test]
fn with_the_promise_an_idle_stream_is_found_idle() {
    apart(|| {
        for promise in [true, false] {
            let (fake, d) = if promise { announced(&[]) } else { one(&[]) };
            let m = d.memory();
            let [idle, busy, taker] = [0; 3].map(|_| fake.foreign_stream(0, NON_BLOCKING));
            let b = m.alloc(POOL, idle, 20 * MIB).unwrap();
            m.free(b, Some(idle), None).unwrap();
            let w = m.alloc(POOL, busy, 2 * MIB).unwrap();
            let (wait, go) = std::sync::mpsc::channel::<()>();
            fake.launch_host(0, busy, move || _ = go.recv());
            d.memset_async(busy, w, 1, MIB).unwrap();
            let before = m.stats().reserved.current;
            let c = m.alloc(POOL, taker, 16 * MIB).unwrap();
            let grown = m.stats().reserved.current - before;
            assert_eq!(grown == 0, promise, "{grown} bytes more");
            // At the end of the memory it is taken either way, and the taker waits for it on the device.
            let rest: Vec<u64> = (0..).map_while(|_| m.alloc(POOL, taker, 4 * MIB).ok()).collect();
            let all = 4 * MIB * rest.len() as u64 + 18 * MIB;
            assert!(all > 60 * MIB, "{all}");
            wait.send(()).unwrap();
            for x in rest.into_iter().chain([c]) {
                m.free(x, Some(taker), None).unwrap();
            }
            fake.end();
        }
    });
}

#[test]
fn a_free_or_the_end_of_a_use_that_names_the_stream_waits_for_that_one_alone() {
    apart(|| {
        let (fake, d) = one(&[]);
        let m = d.memory();
        let [own, used, busy] = [0; 3].map(|_| fake.foreign_stream(0, NON_BLOCKING));
        let w = m.alloc(POOL, busy, 2 * MIB).unwrap();
        let b = m.alloc(POOL, own, 3 * MIB).unwrap();
        let c = m.alloc(POOL, own, 3 * MIB).unwrap();
        let (wait, go) = std::sync::mpsc::channel::<()>();
        fake.launch_host(0, busy, move || _ = go.recv());
        d.memset_async(busy, w, 1, MIB).unwrap();
        m.record_end(b, used, None).unwrap();
        m.free(b, Some(own), None).unwrap();
        m.free(c, Some(used), None).unwrap();
        let again: Vec<u64> = (0..2).map(|_| m.alloc(POOL, own, 3 * MIB).unwrap()).collect();
        assert!(again.contains(&b) && again.contains(&c), "they wait for a stream that has not used them");
        wait.send(()).unwrap();
        fake.end();
    });
}

/// A block that waits for all streams, as the call did not name the one that has used it, keeps no other one waiting that
/// waits for that stream alone.
#[test]
fn a_wait_for_one_stream_does_not_stand_behind_a_wait_for_all() {
    apart(|| {
        let (fake, d) = one(&[]);
        let m = d.memory();
        let [own, used, busy] = [0; 3].map(|_| fake.foreign_stream(0, NON_BLOCKING));
        let [all, one] = [0; 2].map(|_| m.alloc(POOL, own, 3 * MIB).unwrap());
        let channels = [used, busy].map(|stream| {
            let (wait, go) = std::sync::mpsc::channel::<()>();
            fake.launch_host(0, stream, move || _ = go.recv());
            wait
        });
        m.record_stream(all, used).unwrap();
        m.free(all, Some(own), None).unwrap();
        m.free(one, Some(used), None).unwrap();
        let next = m.alloc(POOL, own, 3 * MIB).unwrap();
        assert!(next != all && next != one);
        channels[0].send(()).unwrap();
        d.streams().synchronize(used).unwrap();
        assert_eq!(m.alloc(POOL, own, 3 * MIB).unwrap(), one);
        assert_ne!(m.alloc(POOL, own, 3 * MIB).unwrap(), all, "it may still be used");
        channels[1].send(()).unwrap();
        fake.end();
    });
}

const CAPTURE: u32 = 0;

/// A capture of a non-blocking stream of which the library was not told: with the promise it asks the stream. Without, it knows
/// of the captures of blocking streams, which the driver tells of the default stream.
#[test]
fn captures_that_only_the_driver_knows_are_found_as_far_as_it_tells() {
    apart(|| {
        for (promise, flags) in [(true, NON_BLOCKING), (true, 0), (false, 0)] {
            let (fake, d) = if promise { announced(&[]) } else { one(&[]) };
            let (m, s) = (d.memory(), fake.foreign_stream(0, flags));
            let b = m.alloc(POOL, s, 40 * MIB).unwrap();
            let begin: extern "C" fn(u64, u32) -> u32 = fake.driver("cuStreamBeginCapture_v2");
            let end: extern "C" fn(u64, *mut u64) -> u32 = fake.driver("cuStreamEndCapture");
            let drop_graph: extern "C" fn(u64) -> u32 = fake.driver("cuGraphDestroy");
            fake.with_primary(0, || assert_eq!(begin(s, CAPTURE), 0));
            assert_eq!(d.synchronize().unwrap_err().code(), Code::NotPermitted, "{promise} {flags}");
            let mut graph = 0;
            fake.with_primary(0, || assert_eq!((end(s, &mut graph), drop_graph(graph)), (0, 0)));
            d.synchronize().unwrap();
            m.free(b, Some(s), None).unwrap();
            d.streams().forget(s).unwrap();
            fake.foreign_stream_end(s);
            fake.end();
        }
    });
}

/// What the promise is worth: a program of several foreign streams, each with steps of its own, which compute while the others
/// allocate. Reserved bytes, waits of the host, and driver calls for events, with it and without.
#[test]
fn what_the_promise_is_worth() {
    apart_told(120, "foreign streams", || {
        println!(); // the test's name stands on the line
        for streams in [2, 4, 8] {
            for promise in [true, false] {
                let fake = Fake::new(&[("capacity", "4G")], |_| {});
                let d = runtime::device("cuda", 0).unwrap();
                d.options()
                    .set(if promise { "streams_announced:on" } else { "streams_announced:off" })
                    .unwrap();
                let m = d.memory();
                let all: Vec<u64> = (0..streams).map(|_| fake.foreign_stream(0, NON_BLOCKING)).collect();
                fake.calls_reset();
                let mut random = 1_u64;
                let mut held: Vec<Vec<u64>> = vec![Vec::new(); streams];
                let mut open: Vec<Option<std::sync::mpsc::Sender<()>>> = (0..streams).map(|_| None).collect();
                for _ in 0..4000 {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let (i, what) = ((random >> 40) as usize % streams, (random >> 20) % 16);
                    let s = all[i];
                    match what {
                        // Its work so far is done, and more is queued, or none.
                        0 => open[i] = None,
                        1 => {
                            let (wait, go) = std::sync::mpsc::channel::<()>();
                            fake.launch_host(0, s, move || _ = go.recv());
                            open[i] = Some(wait);
                        }
                        2..=8 if held[i].len() < 24 => {
                            held[i].push(m.alloc(POOL, s, ((random >> 8) % 12 + 1) * MIB / 2).unwrap());
                        }
                        _ if !held[i].is_empty() => {
                            let at = (random >> 9) as usize % held[i].len();
                            m.free(held[i].swap_remove(at), Some(s), None).unwrap();
                        }
                        _ => {}
                    }
                }
                let stats = m.stats();
                println!(
                    "foreign streams {streams}, announced {promise}: reserved at most {} MiB of {} MiB held at most; \
                     cuEventRecord {}, cuCtxRecordEvent {}, cuStreamWaitEvent {}, cuCtxSynchronize {}",
                    stats.reserved.peak / MIB,
                    stats.allocated.peak / MIB,
                    fake.calls("cuEventRecord"),
                    fake.calls("cuCtxRecordEvent"),
                    fake.calls("cuStreamWaitEvent"),
                    fake.calls("cuCtxSynchronize"),
                );
                assert_eq!(fake.calls("cuCtxSynchronize"), 0, "the host waited");
                open.clear();
                fake.end_quietly();
            }
        }
    });
}
