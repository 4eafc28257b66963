//! Which descriptors the blocks of a heap have.

use super::random::Random;
use super::*;

/// Two descriptors share a cache line. Where these are of two heaps, and two threads use them, each write of one makes the other
/// wait: two threads with random sizes took 113 ns a pair instead of 107.
#[test]
fn blocks_of_two_heaps_have_no_descriptors_side_by_side() {
    for (streams, busy) in [(2, false), (16, false), (16, true)] {
        let mut r = Random(5);
        let b = Bench::new(config(true, 1 << 30));
        let mut live = vec![[None::<u64>; 200]; streams];
        let mut users = BTreeMap::<u32, BTreeSet<usize>>::new(); // of each line
        let (mut blocks, mut beside) = (0, 0);
        for step in 0..300_000 {
            let stream = r.below(streams as u64) as usize;
            if busy {
                let mut world = b.world.lock().unwrap();
                let id = 1 + r.below(streams as u64);
                let queued = world.streams.get(&id).map_or(0, |s| s.queued);
                match r.below(2) {
                    0 => world.streams.entry(id).or_default().queued += 1,
                    _ => world.complete(id, queued),
                }
            }
            let place = &mut live[stream][r.below(200) as usize];
            if let Some(at) = place.take() {
                b.pond.free(at, None, None).unwrap();
            }
            let bytes = (512 << r.below(11)) + r.below(512);
            *place = Some(b.pond.alloc(PoolId::DEFAULT, 1 + stream as u64, bytes).unwrap());
            if step > 200_000 {
                let line = b.pond.ground().maps.find(place.unwrap()).unwrap().id / 2;
                let users = users.entry(line).or_default();
                users.insert(stream);
                blocks += 1;
                beside += usize::from(users.len() > 1);
            }
        }
        assert!(beside * 200 < blocks, "{streams} streams, busy: {busy}: {beside} of {blocks}");
    }
}

/// How many blocks there can be, until there are no more descriptors.
fn most_blocks(b: &Bench) -> usize {
    let get = |n: u64| b.pond.alloc(PoolId::DEFAULT, 1 + n % 4, 100).ok();
    let all: Vec<u64> = (0..).map_while(get).collect();
    all.iter().for_each(|&at| b.pond.free(at, None, None).unwrap());
    b.pond.ground().backing.sync_all().unwrap();
    b.pond.empty_cache(None).unwrap();
    all.len()
}

/// Streams of three pools take memory from each other all the time: from idle ones and, in the end or not, from busy ones.
/// Few descriptors are there, and at times none. Addresses that were freed are freed again meanwhile.
#[test]
fn descriptors_that_are_lent_are_neither_lost_nor_found_by_old_addresses() {
    let few = Config { most_blocks: 1500, ..config(true, 96 << 20) };
    let fresh = most_blocks(&Bench::new(few));
    for seed in 0..1 + part_of(16) as u64 / 8 {
        let mut r = Random(seed);
        let mut b = Bench::new(few);
        let mut pools = vec![PoolId::DEFAULT, b.pool(false), b.pool(false)];
        let (mut stale, mut refused) = (Vec::<u64>::new(), 0);
        for _ in 0..2500 {
            let (pool, stream) = (pools[r.below(3) as usize], 1 + r.below(4));
            match r.below(16) {
                0..=6 => {
                    let bytes = if r.below(3) == 0 { 100 + r.below(20_000) } else { G / 2 + r.below(6 * G) };
                    refused += usize::from(b.alloc(pool, Some(stream), bytes).is_err());
                }
                7 => (0..60).for_each(|_| _ = b.alloc(pool, Some(stream), 100).is_ok()),
                8..=11 if !b.live.is_empty() => {
                    for _ in 0..1 + r.below(12) * r.below(4) {
                        if b.live.is_empty() {
                            break;
                        }
                        let at = r.below(b.live.len() as u64) as usize;
                        let on = (r.below(3) == 0).then(|| 1 + r.below(4));
                        stale.push(b.live[at].offset);
                        b.free(at, on);
                    }
                }
                12 => {
                    let queued = b.world.lock().unwrap().streams.get(&stream).map_or(0, |s| s.queued);
                    b.world.lock().unwrap().complete(stream, queued);
                }
                13 if r.below(8) == 0 => b.end_stream(stream),
                14 if r.below(8) == 0 && b.pond.pool_destroy(pools[2]).is_ok() => {
                    b.pond.pool_forgotten(pools[2]);
                    pools[2] = b.pool(false);
                }
                _ => {
                    stale.retain(|&at| b.live.iter().all(|x| x.offset != at));
                    let Some(&at) = stale.get(r.below(stale.len().max(1) as u64) as usize) else { continue };
                    b.world.lock().unwrap().asked = 0; // no wait ends between the two statistics
                    let before = b.pond.stats(None).unwrap();
                    let code = b.pond.free(at, None, None).unwrap_err().code();
                    assert!(matches!(code, Code::DoubleFree | Code::UnknownPointer), "seed {seed}: {code:?}");
                    let after = b.pond.stats(None).unwrap();
                    assert_eq!((before.blocks, before.active), (after.blocks, after.active), "seed {seed}");
                }
            }
        }
        assert!(refused > 0, "seed {seed}");
        while !b.live.is_empty() {
            b.free(0, None);
        }
        b.pond.ground().backing.sync_all().unwrap();
        b.pond.stats(None).unwrap();
        pools.drain(1..).for_each(|p| b.pond.pool_destroy(p).unwrap());
        b.pond.empty_cache(None).unwrap();
        b.pond.ground().check();
        assert_eq!(most_blocks(&b), fresh, "seed {seed}: descriptors are lost");
        b.finish();
    }
}
