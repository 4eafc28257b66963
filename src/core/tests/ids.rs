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
