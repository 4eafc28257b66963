//! Restores, sleep and requests beside a thread that does what it may at any time: it looks at freed blocks, and gives memory of
//! other pools back. It is in the midst of that at the worst moment.

use super::*;
use std::time::Duration;

/// A pond on a device of so many bytes that several threads use.
fn shared(config: Config) -> (Arc<Pond>, Arc<Mutex<World>>) {
    let world = Arc::new(Mutex::new(World { capacity: config.max_alloc, threads: true, ..World::default() }));
    let pond = Arc::new(Pond::new(config, Arc::new(Sim(world.clone()))).unwrap());
    world.lock().unwrap().real = pond.ground().memory_granules();
    (pond, world)
}

/// In the nth call of the device from now, another thread looks at freed blocks. What was queued first on stream 2 is over then.
fn looks_amid(nth: u32, pond: &Arc<Pond>, world: &Arc<Mutex<World>>) {
    let (device, other) = (world.clone(), pond.clone());
    let looks = move || {
        device.lock().unwrap().complete(2, 1);
        other.stats(None).unwrap();
    };
    world.lock().unwrap().meeting = Some((nth, Box::new(looks)));
}

fn end_meeting(world: &Mutex<World>) {
    let thread = world.lock().unwrap().met.take();
    thread.into_iter().for_each(|t| t.join().unwrap());
}

/// Frees a block that work on stream 2 uses.
fn free_used(pond: &Pond, world: &Mutex<World>, at: u64) {
    pond.record_stream(at, 2).unwrap();
    world.lock().unwrap().work(2);
    pond.free(at, None, None).unwrap();
}

/// Another thread that looks at freed blocks of the pool, as every request without memory does, may be quicker.
#[test]
fn a_restore_is_not_busy_because_another_thread_looks_at_freed_blocks() {
    for (mapping, nth) in [true, false].into_iter().flat_map(|m| (1..12).map(move |n| (m, n))) {
        let (pond, world) = shared(Config { max_chunk: 6 * G, ..config(mapping, 64 << 20) });
        let pool = pond.pool_create(0, false).unwrap();
        let kept = pond.alloc(pool, 1, G).unwrap();
        let checkpoint = pond.checkpoints().make(pool).unwrap();
        let gone = [G, 300, 7 * G].map(|bytes| pond.alloc(pool, 1, bytes).unwrap());
        gone.into_iter().for_each(|at| free_used(&pond, &world, at));
        looks_amid(nth, &pond, &world);
        let done = pond.checkpoints().restore(pool, checkpoint, |at| at, |_| ());
        assert!(done.is_ok_and(|d| d.freed.is_empty() && d.live.is_empty()), "mapping {mapping}, call {nth}");
        end_meeting(&world);
        assert_eq!(pond.block(kept).unwrap().base, kept);
        pond.ground().check();
    }
}

/// What is given back of another pool takes with it all addresses that no block needs: not those that a restore needs.
#[test]
fn a_restore_has_the_addresses_that_it_has_found() {
    let (pond, world) = shared(config(true, 8 * G));
    let pool = pond.pool_create(0, false).unwrap();
    let all: Vec<u64> = (0..6).map(|_| pond.alloc(pool, 1, G).unwrap()).collect();
    all.iter().step_by(2).for_each(|&at| pond.free(at, None, None).unwrap());
    pond.pool_set_limit(pool, 6 * G).unwrap();
    let scattered = pond.alloc(pool, 1, 3 * G).unwrap();
    assert!(!all.contains(&scattered));
    let checkpoint = pond.checkpoints().make(pool).unwrap();
    pond.free(scattered, None, None).unwrap();
    pond.alloc(pool, 1, 300).unwrap();
    let other = pond.alloc(PoolId::DEFAULT, 2, G).unwrap();
    pond.free(other, None, None).unwrap();
    // The other thread, here, waits for the device before it unmaps; the restore begins then.
    let (begun, begins) = std::sync::mpsc::channel();
    let (tell, told) = std::sync::mpsc::channel();
    let there = pond.clone();
    let restores = move || {
        let in_midst = move |_: &_| {
            _ = begun.send(());
            std::thread::sleep(Duration::from_millis(50)); // time to unmap them, if that is possible
        };
        _ = tell.send(there.checkpoints().restore(pool, checkpoint, |at| at, in_midst));
    };
    let starts = move || {
        std::thread::spawn(restores);
        begins.recv().unwrap();
    };
    world.lock().unwrap().meanwhile.push_back((2, Box::new(starts)));
    pond.empty_cache(Some(PoolId::DEFAULT)).unwrap();
    let done = told.recv().unwrap().unwrap();
    assert_eq!((done.freed.len(), done.live), (1, vec![(scattered, 3 * G)]));
    assert_eq!(pond.block(scattered).unwrap().requested, 3 * G);
    pond.ground().check();
    all.iter().skip(1).step_by(2).chain([&scattered]).for_each(|&at| pond.free(at, None, None).unwrap());
    pond.empty_cache(None).unwrap();
    assert_eq!(pond.stats(None).unwrap().reserved.current, 0);
}

/// A pool falls asleep while another thread unmaps a range of it. That range shows nothing of it any more.
#[test]
fn what_another_thread_unmaps_does_not_fall_asleep() {
    for fails in [false, true] {
        let (pond, world) = shared(config(true, 8 * G));
        let pool = pond.pool_create(6 * G, false).unwrap();
        let all: Vec<u64> = (0..6).map(|_| pond.alloc(pool, 1, G).unwrap()).collect();
        all.iter().step_by(2).for_each(|&at| pond.free(at, None, None).unwrap());
        let scattered = pond.alloc(pool, 1, 3 * G).unwrap();
        pond.free(scattered, None, None).unwrap();
        let again: Vec<u64> = (0..3).map(|_| pond.alloc(pool, 1, G).unwrap()).collect();
        let (begun, begins) = std::sync::mpsc::channel();
        let there = pond.clone();
        let sleeps = move || {
            let slept = there.sleep().begin(pool, false);
            _ = begun.send(());
            slept.unwrap();
        };
        let (tell, told) = std::sync::mpsc::channel();
        let device = world.clone();
        let starts = move || {
            tell.send(std::thread::spawn(sleeps)).unwrap();
            _ = begins.recv_timeout(Duration::from_millis(50)); // it may have to wait for this thread
            device.lock().unwrap().fail_nth = u32::from(fails);
        };
        world.lock().unwrap().meanwhile.push_back((3, Box::new(starts)));
        assert_eq!(pond.empty_cache(Some(PoolId::DEFAULT)).is_err(), fails);
        told.recv().unwrap().join().unwrap();
        pond.sleep().wake(pool).unwrap();
        again.iter().for_each(|&at| pond.free(at, None, None).unwrap());
        let at = pond.alloc(pool, 1, 3 * G).unwrap();
        assert!(world.lock().unwrap().is_there(at, 3 * G));
        pond.ground().check();
    }
}

/// What the other thread has found reusable may be what the request waits for, or not all that it needs.
#[test]
fn a_request_waits_on_though_another_thread_looks_at_freed_blocks() {
    let cases = |mapping| [1, 3].into_iter().flat_map(move |of| (1..16).map(move |nth| (mapping, of, nth)));
    for (mapping, of, nth) in [true, false].into_iter().flat_map(cases) {
        let (pond, world) = shared(Config { init_alloc: G, realloc: G, ..config(mapping, 4 * G) });
        let pool = pond.pool_create(0, false).unwrap();
        let all: Vec<u64> = (0..4).map(|_| pond.alloc(pool, of, G).unwrap()).collect();
        all.into_iter().for_each(|at| free_used(&pond, &world, at));
        looks_amid(nth, &pond, &world);
        let got = pond.alloc(pool, 1, 4 * G);
        assert!(got.is_ok(), "mapping {mapping}, of stream {of}, call {nth}: {got:?}");
        end_meeting(&world);
        pond.ground().check();
    }
}
