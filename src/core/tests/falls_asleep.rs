//! A request is under way when its pool falls asleep: it brings no memory to the pool any more, neither from the device nor
//! from other pools.

use super::*;

const ALL: u64 = 16;

/// A pool with one block falls asleep in the nth call of the device that a request to it makes, which needs three granules
/// side by side; all others are in the default pool, those of even numbers in use. Whether it came to that.
fn asleep_in(nth: u32, streams: u64, in_one_piece: bool) -> bool {
    let world = Arc::new(Mutex::new(World { capacity: ALL * G, ..World::default() }));
    let pond = Arc::new(Pond::new(config(true, ALL * G), Arc::new(Sim(world.clone()))).unwrap());
    world.lock().unwrap().real = pond.ground().memory_granules();
    let queued = |stream| {
        let mut w = world.lock().unwrap();
        w.streams.entry(stream).or_default().queued += 1;
    };
    pond.tune(Tuning { in_one_piece, ..Tuning::default() });
    let pool = pond.pool_create(0, false).unwrap();
    let own = pond.alloc(pool, 1, G).unwrap();
    let mut others: Vec<u64> =
        (1..ALL).map(|n| pond.alloc(PoolId::DEFAULT, 10 + n % streams, G).unwrap()).collect();
    // One of them goes on waiting for those to whom it is exported.
    queued(9);
    let user = pond.order().user(9).unwrap();
    let fence = pond.order().fence(&user).unwrap().unwrap();
    let exported = others.remove(0);
    pond.exports().add_fence(exported, fence).unwrap();
    pond.free(exported, None, None).unwrap();
    (10..10 + streams).for_each(queued);
    let free: Vec<u64> = others.iter().copied().step_by(2).collect();
    others.retain(|at| !free.contains(at));
    free.into_iter().for_each(|at| pond.free(at, None, None).unwrap());

    let there = pond.clone();
    let sleep = move || {
        let done = there.sleep().begin(pool, true);
        assert!(done.is_ok(), "{done:?}");
    };
    world.lock().unwrap().meeting = Some((nth, Box::new(sleep)));
    let got = pond.alloc(pool, 1, 3 * G);
    let mut w = world.lock().unwrap();
    let came = w.meeting.take().is_none();
    let met = w.met.take();
    drop(w);
    if let Some(thread) = met {
        thread.join().unwrap();
    }
    if came {
        let s = pond.stats(Some(pool)).unwrap();
        let what = format!("call {nth}, {streams} streams: {got:?}");
        assert!(pond.sleep().is_on(pool), "{what}");
        assert_eq!(s.reserved.current, 0, "a pool that sleeps keeps no memory; {what}");
        others.drain(..).for_each(|at| pond.free(at, None, None).unwrap());
        pond.empty_cache(None).unwrap();
        pond.sleep().wake(pool).unwrap();
    }
    got.into_iter().chain([own]).chain(others).for_each(|at| pond.free(at, None, None).unwrap());
    let mut w = world.lock().unwrap();
    w.complete(9, 1);
    drop(w);
    pond.ground().backing.sync_all().unwrap();
    pond.empty_cache(None).unwrap();
    pond.ground().check();
    assert_eq!(world.lock().unwrap().taken, 0, "all comes back");
    came
}

#[test]
fn a_request_takes_nothing_for_a_pool_that_falls_asleep() {
    for (streams, in_one_piece) in [(1, true), (1, false), (6, false), (6, true)] {
        let mut met = 0;
        while asleep_in(met + 1, streams, in_one_piece) {
            met += 1;
        }
        assert!(met > 2, "{met} calls");
    }
}
