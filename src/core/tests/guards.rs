//! Guards that random programs hardly ever need: each of these tests fails without one of them (`tests/mutants`).

use super::super::desc::kind;
use super::super::heap::{Heap, STOCK};
use super::super::types::POOL_SLOTS;
use super::*;

/// Something is queued on the stream.
fn queue(b: &Bench, stream: u64) {
    b.world.lock().unwrap().streams.entry(stream).or_default().queued += 1;
}

/// All that is queued on the stream gets done.
fn run(b: &Bench, stream: u64) {
    let mut w = b.world.lock().unwrap();
    let queued = w.streams[&stream].queued;
    w.complete(stream, queued);
}

#[test]
fn what_waits_counts_in_the_active_peak() {
    let mut b = Bench::new(config(true, 64 << 20));
    let used = b.alloc(PoolId::DEFAULT, Some(1), G).unwrap();
    b.pond.record_stream(b.live[used].offset, 2).unwrap();
    b.live[used].uses.push(2);
    b.free(used, None);
    assert_eq!(b.pond.stats(None).unwrap().active.current, G);
    let next = b.alloc(PoolId::DEFAULT, Some(1), G).unwrap();
    b.free(next, None);
    let s = b.pond.stats(None).unwrap();
    assert_eq!((s.active.peak, s.allocated.peak, s.active.current), (2 * G, G, G));
    b.pond.reset_peaks(None).unwrap();
    assert_eq!(b.pond.stats(None).unwrap().active.peak, G);
    b.peak = 0;
    b.finish();
}

#[test]
fn trimming_takes_what_has_waited_until_then() {
    for mapping in [true, false] {
        let mut b = Bench::new(config(mapping, 64 << 20));
        let used = b.alloc(PoolId::DEFAULT, Some(1), G).unwrap();
        b.pond.record_stream(b.live[used].offset, 2).unwrap();
        b.live[used].uses.push(2);
        b.free(used, None);
        b.pond.empty_cache(None).unwrap();
        assert_eq!(b.world.lock().unwrap().taken, 0, "{mapping}");
        b.finish();
    }
}

#[test]
fn streams_are_not_ordered_while_the_device_has_memory() {
    let mut b = Bench::new(config(true, 64 << 20));
    let first = b.alloc(PoolId::DEFAULT, Some(1), 8 * G).unwrap();
    b.free(first, None);
    queue(&b, 1);
    b.alloc(PoolId::DEFAULT, Some(2), 8 * G).unwrap();
    let waits = b.world.lock().unwrap().streams.get(&2).is_some_and(|s| !s.waits.is_empty());
    assert!(!waits, "the stream waits for another one");
    assert_eq!(b.world.lock().unwrap().taken, 16 * G);
    b.finish();
}

#[test]
fn a_free_that_comes_too_late_leaves_the_next_block_alone() {
    let pond = Bench::new(config(true, 64 << 20)).pond;
    let (one, other) =
        (pond.alloc(PoolId::DEFAULT, 1, 1000).unwrap(), pond.alloc(PoolId::DEFAULT, 1, 1000).unwrap());
    let g = pond.ground();
    let f = g.maps.find(one).unwrap();
    let heap = g.heaps().get(f.heap).unwrap();
    // As if the descriptor had gone to a block elsewhere between the look and the claim.
    assert!(!heap.free_remotely(g.shared(), f, other));
    assert_eq!(pond.stats(None).unwrap().blocks.current, 2);
    pond.free(one, None, None).unwrap();
    pond.free(other, None, None).unwrap();
    assert_eq!(pond.stats(None).unwrap().blocks.current, 0);
}

#[test]
fn a_large_block_that_another_thread_frees_is_counted_out_of_the_large_ones() {
    let pond = Bench::new(config(true, 64 << 20)).pond;
    let [_, _, large] = [61_440, 61_440, 70_000].map(|n| pond.alloc(PoolId::DEFAULT, 1, n).unwrap());
    let bytes = || {
        let s = pond.statistics().full(None, 0).unwrap().allocated_bytes;
        [s.small_pool.current, s.large_pool.current]
    };
    assert_eq!(bytes(), [2 * 61_440, 70_144]);
    std::thread::scope(|s| _ = s.spawn(|| pond.free(large, None, None).unwrap()));
    assert_eq!(bytes(), [2 * 61_440, 0]);
}

#[test]
fn a_device_that_never_says_that_it_is_done_is_waited_for() {
    let mut b = Bench::new(config(true, 64 << 20));
    for user in [2, 3] {
        queue(&b, user);
        let used = b.alloc(PoolId::DEFAULT, Some(1), 16 * G).unwrap();
        b.pond.record_stream(b.live[used].offset, user).unwrap();
        b.live[used].uses.push(user);
        b.world.lock().unwrap().mute = true;
        b.free(used, None);
        b.world.lock().unwrap().mute = false;
    }
    b.world.lock().unwrap().mute = true;
    b.alloc(PoolId::DEFAULT, Some(1), 16 * G).unwrap();
    b.world.lock().unwrap().mute = false;
    b.finish();
}

#[test]
fn a_segment_that_the_device_does_not_take_back_is_the_callers_again() {
    let pond = Bench::new(Config { max_chunk: 4 << 20, ..config(false, 64 << 20) });
    let (pond, world) = (&pond.pond, &pond.world);
    let sums = || {
        let s = pond.stats(None).unwrap();
        [s.requested, s.allocated, s.active, s.reserved, s.blocks].map(|c| c.current)
    };
    let block = pond.alloc(PoolId::DEFAULT, 1, 8 * G).unwrap();
    let live = [8 * G, 8 * G, 8 * G, 8 * G, 1];
    assert_eq!(sums(), live);
    world.lock().unwrap().fail_release = true;
    assert_eq!(pond.free(block, None, None).unwrap_err().code(), Code::Device);
    assert_eq!(sums(), live);
    world.lock().unwrap().fail_release = false;
    pond.free(block, None, None).unwrap();
    assert_eq!(sums(), [0; 5]);
    assert!(pond.free(block, None, None).is_err());
}

/// A block of a stream is used by another one; the use ends, and goes on with more work.
#[test]
fn a_use_that_goes_on_is_not_over_where_it_once_ended() {
    let mut b = Bench::new(config(true, 64 << 20));
    let used = b.alloc(PoolId::DEFAULT, Some(1), G).unwrap();
    let offset = b.live[used].offset;
    b.pond.record_stream(offset, 2).unwrap();
    queue(&b, 2);
    b.pond.end_use(offset, 2, None).unwrap();
    b.pond.record_stream(offset, 2).unwrap();
    run(&b, 2);
    queue(&b, 2);
    b.live[used].uses.push(2);
    b.free(used, None);
    assert_eq!(b.pond.stats(None).unwrap().active.current, G, "the work that was queued last is not over");
    run(&b, 2);
    assert_eq!(b.pond.stats(None).unwrap().active.current, 0);
    b.finish();
}

/// The peaks of bytes and of blocks are reached at different times: both are exact.
#[test]
fn the_peak_of_blocks_is_looked_at_below_the_peak_of_bytes() {
    let pond = Bench::new(config(true, 64 << 20)).pond;
    let large = pond.alloc(PoolId::DEFAULT, 1, 8 << 20).unwrap();
    pond.free(large, None, None).unwrap();
    assert_eq!(pond.stats(None).unwrap().blocks.peak, 1);
    let many: Vec<u64> = (0..10).map(|_| pond.alloc(PoolId::DEFAULT, 1, 512).unwrap()).collect();
    many.into_iter().for_each(|p| pond.free(p, None, None).unwrap());
    let s = pond.stats(None).unwrap();
    assert_eq!((s.blocks.peak, s.allocated.peak), (10, 8 << 20));
}

/// A heap rests, and others get the room below the peak: when it goes on, it asks.
#[test]
fn a_heap_that_rested_has_no_room_left_below_the_peak() {
    let pond = Bench::new(config(true, 64 << 20)).pond;
    let take = |stream: u64, n: usize| -> Vec<u64> {
        (0..n).map(|_| pond.alloc(PoolId::DEFAULT, stream, 1 << 20).unwrap()).collect()
    };
    let give = |all: Vec<u64>| all.into_iter().for_each(|p| pond.free(p, None, None).unwrap());
    give(take(1, 8));
    give(take(2, 1));
    for _ in 0..40 {
        give(take(2, 1)); // this one changes, the other comes to rest
        pond.stats(None).unwrap();
    }
    let second = take(2, 7);
    let first = take(1, 6);
    give(first);
    give(second);
    assert_eq!(pond.stats(None).unwrap().blocks.peak, 13);
}

/// What heaps of a pool had allocated stays in the device's sums when the pool ends, once; whether they rested or not.
#[test]
fn sums_stay_when_a_pool_ends() {
    for rests in [false, true] {
        let pond = Bench::new(config(true, 64 << 20)).pond;
        let own = pond.pool_create(0, false).unwrap();
        let block = pond.alloc(own, 1, 1 << 20).unwrap();
        pond.free(block, None, None).unwrap();
        let looks = if rests { 40 } else { 1 };
        let before = (0..looks).map(|_| pond.stats(None).unwrap()).last().unwrap();
        assert_eq!((before.blocks.total, before.allocated.total), (1, 1 << 20));
        pond.pool_destroy(own).unwrap();
        let after = pond.stats(None).unwrap();
        assert_eq!((after.blocks.total, after.allocated.total), (1, 1 << 20), "{rests}");
        assert_eq!(after.blocks.current, 0);
    }
}

/// A slot whose ids are used up stays unused, so that no name of a pool that ended comes to life again.
#[test]
fn no_id_of_a_pool_comes_twice() {
    let pond = Bench::new(config(true, 64 << 20)).pond;
    let spare = || pond.ground().ledger().spare_pools.len();
    pond.pool_forgotten(PoolId(u32::MAX - 2 * POOL_SLOTS + 6));
    assert_eq!(spare(), 1);
    pond.pool_forgotten(PoolId(u32::MAX - POOL_SLOTS + 6));
    assert_eq!(spare(), 1);
}

/// A pond that several threads have, and its device.
fn shared(config: Config) -> (Arc<Pond>, Arc<Mutex<World>>) {
    let Bench { pond, world, .. } = Bench::new(config);
    (Arc::new(pond), world)
}

/// Something is queued on the stream; what has been queued there by then.
fn queued(world: &Mutex<World>, stream: u64) -> u64 {
    let mut w = world.lock().unwrap();
    let st = w.streams.entry(stream).or_default();
    st.queued += 1;
    st.queued
}

/// A stream that cannot be made to wait for the one whose memory it gets is waited for on the host.
#[test]
fn memory_of_a_stream_goes_to_one_that_cannot_wait_when_its_work_is_over() {
    let mut b = Bench::new(config(true, 64 << 20));
    let used = b.alloc(PoolId::DEFAULT, Some(1), 64 << 20).unwrap();
    queue(&b, 1);
    b.free(used, None);
    b.world.lock().unwrap().fail_wait = true;
    let next = b.alloc(PoolId::DEFAULT, Some(2), 64 << 20).unwrap();
    b.free(next, None);
    b.finish();
}

/// What a pool leaves in a segment of others is anybody's: work that was queued while the pool was emptied is over.
#[test]
fn a_part_of_a_segment_that_becomes_nobodys_has_no_work_on_it() {
    let mut left = 0;
    for nth in 1..4 {
        let (pond, world) = shared(config(false, 8 << 20)); // one segment
        let own = pond.pool_create(0, false).unwrap();
        let stays = pond.alloc(PoolId::DEFAULT, 1, G).unwrap();
        let used = pond.alloc(own, 1, G).unwrap();
        let (there, device) = (pond.clone(), world.clone());
        let another = move || {
            queued(&device, 1);
            there.free(used, None, None).unwrap();
        };
        world.lock().unwrap().meanwhile.push_back((nth, Box::new(another)));
        let _ = pond.empty_cache(Some(own));
        let w = world.lock().unwrap();
        let (came, over) = (w.meanwhile.is_empty(), w.passed(1, 1));
        drop(w);
        if came && pond.stats(Some(own)).unwrap().reserved.current == 0 {
            left += 1;
            assert!(over, "{nth}: work is queued that uses the memory");
        }
        pond.free(stays, None, None).unwrap();
    }
    assert!(left > 0);
}

/// A run of segment memory that two heaps had goes to a third when what was queued meanwhile is over, too.
#[test]
fn a_run_of_two_heaps_has_no_work_on_it_when_it_goes_to_a_third() {
    let mut moved = 0;
    for nth in 1..6 {
        let (pond, world) = shared(Config { max_chunk: 8 << 20, ..config(false, 8 << 20) });
        let stays = pond.alloc(PoolId::DEFAULT, 1, G).unwrap();
        let used = [1, 1, 2].map(|stream| pond.alloc(PoolId::DEFAULT, stream, G).unwrap());
        let (there, device) = (pond.clone(), world.clone());
        let another = move || {
            [1, 2].into_iter().for_each(|s| _ = queued(&device, s));
            used.into_iter().for_each(|p| there.free(p, None, None).unwrap());
        };
        world.lock().unwrap().meanwhile.push_back((nth, Box::new(another)));
        let third = pond.alloc(PoolId::DEFAULT, 3, 3 * G);
        let w = world.lock().unwrap();
        if w.meanwhile.is_empty() && third.is_ok() {
            moved += 1;
            let waits = |s| w.streams.get(&3).is_some_and(|t| t.waits.contains_key(&s));
            assert!(
                [1, 2].into_iter().all(|s| w.passed(s, 1) || waits(s)),
                "{nth}: work is queued that uses it"
            );
        }
        drop(w);
        let _ = third.map(|p| pond.free(p, None, None).unwrap());
        pond.free(stays, None, None).unwrap();
    }
    assert!(moved > 0);
}

/// The fences of a block are being made when another thread looks for memory: it is not ready.
#[test]
fn a_block_whose_fences_are_being_made_is_not_ready() {
    let (pond, world) = shared(config(true, 64 << 20));
    let used = pond.alloc(PoolId::DEFAULT, 1, 64 << 20).unwrap();
    pond.record_stream(used, 2).unwrap();
    queued(&world, 2);
    let there = pond.clone();
    let look = move || assert_eq!(there.stats(None).unwrap().active.current, 64 << 20);
    world.lock().unwrap().amid = Some(("mark", Box::new(look)));
    pond.free(used, None, None).unwrap();
    assert!(world.lock().unwrap().amid.is_none());
    assert_eq!(pond.stats(None).unwrap().active.current, 64 << 20);
    world.lock().unwrap().complete(2, 1);
    assert_eq!(pond.stats(None).unwrap().active.current, 0);
}

/// A segment is on its way back to the device when a capture begins, which keeps what its pool has: not this one.
#[test]
fn a_segment_on_its_way_back_is_in_one_threads_hands() {
    let (pond, world) = shared(Config { max_chunk: 4 << 20, ..config(false, 64 << 20) });
    let own = pond.pool_create(0, false).unwrap();
    let block = pond.alloc(own, 1, 8 * G).unwrap();
    let there = pond.clone();
    let capture = move || {
        there.captures().begin(own, 5).unwrap();
        assert_eq!(there.stats(None).unwrap().blocks.current, 0);
    };
    world.lock().unwrap().amid = Some(("segment_release", Box::new(capture)));
    pond.free(block, None, None).unwrap();
    assert!(world.lock().unwrap().amid.is_none());
    let s = pond.stats(None).unwrap();
    assert_eq!((s.active.current, s.reserved.current, world.lock().unwrap().taken), (0, 0, 0));
    pond.ground().check();
}

/// Of the blocks that wait for one stream, the one that is ready first is waited for, not the last.
#[test]
fn a_wait_for_any_block_asks_for_the_first_of_each_stream() {
    let mut b = Bench::new(config(true, 64 << 20));
    (0..4).for_each(|_| _ = b.alloc(PoolId::DEFAULT, Some(1), 8 * G).unwrap());
    for user in [3, 3, 2, 2] {
        let last = b.live.len() - 1;
        b.pond.record_stream(b.live[last].offset, user).unwrap();
        b.live[last].uses.push(user);
        b.free(last, None);
    }
    b.alloc(PoolId::DEFAULT, Some(1), 8 * G).unwrap();
    let w = b.world.lock().unwrap();
    assert!(!w.passed(2, 2) && !w.passed(3, 2), "more was waited for than was needed");
    drop(w);
    b.finish();
}

/// A heap that was looked at in vain, or has not changed for long: a free by another thread tells who looks.
#[test]
fn a_free_by_another_thread_is_seen_in_a_heap_that_rests() {
    let (pond, _) = shared(config(true, 64 << 20));
    let mut all: Vec<u64> = (0..32).map(|_| pond.alloc(PoolId::DEFAULT, 1, G).unwrap()).collect();
    // The first such free takes the heap's lock, which tells everybody.
    for count in [1, 31] {
        let _ = pond.alloc(PoolId::DEFAULT, 2, 32 * G).unwrap_err();
        (0..40).for_each(|_| assert_eq!(pond.stats(None).unwrap().blocks.current, all.len() as u64));
        let (there, some) = (pond.clone(), all.split_off(all.len() - count));
        let frees = move || some.into_iter().for_each(|p| there.free(p, None, None).unwrap());
        std::thread::spawn(frees).join().unwrap();
        assert_eq!(pond.stats(None).unwrap().blocks.current, all.len() as u64);
    }
    let next = pond.alloc(PoolId::DEFAULT, 2, 32 * G).unwrap();
    pond.free(next, None, None).unwrap();
}

/// Another thread frees a block just when the heap was looked at and is put to rest: the next look finds it.
#[test]
fn a_free_while_a_heap_comes_to_rest_is_seen() {
    let (pond, _) = shared(config(true, 64 << 20));
    let [one, other] = [1000, 1000].map(|bytes| pond.alloc(PoolId::DEFAULT, 1, bytes).unwrap());
    let ground = pond.ground();
    let heap = ground.heaps().get(ground.maps.find(one).unwrap().heap).unwrap();
    let free = |p: u64| {
        let there = pond.clone();
        std::thread::spawn(move || there.free(p, None, None).unwrap()).join().unwrap();
    };
    let listed = || {
        let mut all = Vec::new();
        ground.shared().changed.take(STOCK, |i| ground.heaps().get(i).map(Heap::listed), &mut all);
        all.contains(&heap.index)
    };
    free(one); // from here on without the lock
    listed();
    let mut h = ground.lock(heap);
    free(other);
    h.rest(STOCK);
    drop(h);
    assert!(listed());
}

/// A block is claimed by a free of another thread, which finds out that it may not: a free that comes meanwhile waits.
#[test]
fn a_claim_that_is_taken_back_was_no_free() {
    let (pond, _) = shared(config(true, 64 << 20));
    let block = pond.alloc(PoolId::DEFAULT, 1, 1000).unwrap();
    let f = pond.ground().maps.find(block).unwrap();
    assert!(f.desc.claim_remote());
    let there = pond.clone();
    let second = std::thread::spawn(move || there.free(block, None, None));
    std::thread::sleep(std::time::Duration::from_millis(30));
    f.desc.unclaim_remote();
    second.join().unwrap().unwrap();
    assert_eq!(pond.stats(None).unwrap().blocks.current, 0);
}

/// Once other threads have freed blocks of a heap, its owner ends no block's life that another thread has claimed.
#[test]
fn the_owner_looks_for_claims_once_others_have_freed() {
    let (pond, _) = shared(config(true, 64 << 20));
    let [one, other] = [1000, 1000].map(|bytes| pond.alloc(PoolId::DEFAULT, 1, bytes).unwrap());
    let ground = pond.ground();
    let there = pond.clone();
    std::thread::spawn(move || there.free(one, None, None).unwrap()).join().unwrap();
    let f = ground.maps.find(other).unwrap();
    let h = ground.lock(ground.heaps().get(f.heap).unwrap());
    let was = f.desc.state();
    assert!(f.desc.claim_remote());
    assert!(!h.end_life(f.desc, was, kind::FREED), "both have ended it");
    f.desc.unclaim_remote();
    drop(h);
    pond.free(other, None, None).unwrap();
}

/// A double free by an index that was another heap's can claim a block of a heap that nobody else has freed into. The
/// owner's free decides then, and the block is as any freed one.
#[test]
fn a_late_claim_leaves_a_freed_block_as_it_is() {
    let (pond, _) = shared(config(true, 64 << 20));
    let block = pond.alloc(PoolId::DEFAULT, 1, 1000).unwrap();
    let ground = pond.ground();
    let f = ground.maps.find(block).unwrap();
    let h = ground.lock(ground.heaps().get(f.heap).unwrap());
    let was = f.desc.state();
    assert!(f.desc.claim_remote());
    assert!(f.desc.end_plain_life(was, kind::LIVE ^ kind::FREED, false));
    f.desc.unclaim_remote();
    assert_eq!(f.desc.kind(), kind::FREED);
    f.desc.set_state(was);
    drop(h);
    pond.free(block, None, None).unwrap();
}

/// The last use of a block by a stream has ended, and others still use what was exported: the block waits for them.
#[test]
fn an_exported_block_waits_for_others_when_its_last_use_has_ended() {
    let (pond, world) = shared(config(true, 64 << 20));
    let block = pond.alloc(PoolId::DEFAULT, 1, G).unwrap();
    queued(&world, 7);
    let others = pond.order().user(7).unwrap();
    let fence = pond.order().fence(&others).unwrap().unwrap();
    pond.exports().add_fence(block, fence).unwrap();
    pond.record_stream(block, 2).unwrap();
    pond.end_use(block, 2, None).unwrap();
    pond.free(block, None, None).unwrap();
    assert_eq!(pond.stats(None).unwrap().active.current, G);
    world.lock().unwrap().complete(7, 1);
    assert_eq!(pond.stats(None).unwrap().active.current, 0);
}

/// While a free asks the device about its stream, another thread frees the block, and its number goes to a block elsewhere.
#[test]
fn a_free_ends_no_block_that_begins_elsewhere() {
    let world = Arc::new(Mutex::new(World { capacity: 64 << 20, ..World::default() }));
    let pond = Arc::new(Pond::new(config(true, 64 << 20), Arc::new(Sim(world.clone()))).unwrap());
    world.lock().unwrap().real = pond.ground().memory_granules();
    let get = |pond: &Pond, bytes| pond.alloc(PoolId::DEFAULT, 1, bytes).unwrap();
    let number = |pond: &Pond, at| pond.ground().maps.find(at).unwrap().id;
    let [before, mine] = [(); 2].map(|()| get(&pond, G / 2));
    let was = number(&pond, mine);
    let others = Arc::new(Mutex::new(Vec::new()));
    let (there, made) = (pond.clone(), others.clone());
    let rival = move || {
        for at in [before, mine] {
            there.free(at, Some(1), None).unwrap();
        }
        // One block takes both places.
        let mut made = made.lock().unwrap();
        made.push(get(&there, G));
        while number(&there, *made.last().unwrap()) != was {
            made.push(get(&there, G / 16));
        }
        assert!(!made.contains(&mine));
    };
    world.lock().unwrap().amid = Some(("knows", Box::new(rival)));
    assert_eq!(pond.free(mine, Some(2), None).unwrap_err().code(), Code::UnknownPointer);
    for &at in others.lock().unwrap().iter() {
        pond.free(at, Some(1), None).unwrap();
    }
    assert_eq!(pond.stats(None).unwrap().allocated.current, 0);
}
