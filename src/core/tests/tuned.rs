//! What tuning does, on both kinds of device. That the account stays exact and nothing overlaps when it changes
//! while blocks live is shown by the random programs.

use super::*;

use crate::core::ground::PoolRef;
use crate::core::supply::Serving;

const MIB: u64 = 1 << 20;
const POOL: PoolId = PoolId::DEFAULT;

/// Any tuning that makes a difference on a device of some 100 MiB.
pub(super) fn tuning() -> impl Strategy<Value = Tuning> {
    let some = |values: &'static [u64]| prop::sample::select(values);
    let divisions = prop_oneof![Just(0), Just(0x3333), any::<u64>()];
    let max_split = some(&[0, 0, 512 << 10, MIB, 4 * MIB, 3 * MIB + 512]);
    let sizes =
        (some(&[0, MIB, 20 * MIB]), some(&[0, 0, 1, 20 * MIB, 60 * MIB]), some(&[0, 4 * MIB, 20 * MIB]));
    let whole = prop::bool::weighted(0.3);
    let all = (max_split, divisions, sizes, whole);
    all.prop_map(|(max_split, divisions, (max_round, collect_above, segment), in_one_piece)| Tuning {
        max_split,
        max_round,
        divisions,
        collect_above,
        segment,
        in_one_piece,
    })
}

fn bench(mapping: bool, t: Tuning) -> Bench {
    let b = Bench::new(config(mapping, 256 << 20));
    b.pond.tune(t);
    b
}

/// Allocates and frees at once; where the block was.
fn pass(b: &mut Bench, bytes: u64) -> u64 {
    let i = b.alloc(POOL, Some(0), bytes).unwrap();
    let at = b.live[i].offset;
    b.free(i, None);
    at
}

fn size(b: &Bench, i: usize) -> u64 {
    b.pond.block(b.live[i].offset).unwrap().size
}

fn reserved(b: &Bench) -> u64 {
    b.pond.stats(None).unwrap().reserved.current
}

#[test]
fn rounded_sizes_share_blocks_and_are_charged_so() {
    for mapping in [true, false] {
        let mut b = bench(mapping, Tuning { divisions: 0x2222_2222_2222_2222, ..Tuning::default() });
        let i = b.alloc(POOL, Some(0), 9 * MIB).unwrap();
        assert_eq!(size(&b, i), 10 * MIB);
        let s = b.pond.stats(None).unwrap();
        assert_eq!((s.requested.current, s.allocated.current), (9 * MIB, 10 * MIB));
        let at = b.live[i].offset;
        b.free(i, None);
        // Another size of the same part fits exactly; without rounding it would be cut out.
        let i = b.alloc(POOL, Some(0), 9 * MIB + 300_000).unwrap();
        assert_eq!((b.live[i].offset, size(&b, i)), (at, 10 * MIB));
        // Live blocks keep their charge when the rounding changes.
        b.pond.tune(Tuning::default());
        assert_eq!(size(&b, i), 10 * MIB);
        let j = b.alloc(POOL, Some(0), 9 * MIB).unwrap();
        assert_eq!(size(&b, j), 9 * MIB);
        b.free(j, None);
        b.free(0, None);
        b.finish();
    }
}

#[test]
fn a_rounded_request_that_no_device_could_serve_is_not_rounded() {
    for mapping in [true, false] {
        let mut b = Bench::new(config(mapping, 240 * MIB));
        b.pond.tune(Tuning { divisions: 0x1111_1111_1111_1111, ..Tuning::default() });
        let i = b.alloc(POOL, Some(0), 200 * MIB).unwrap();
        assert_eq!(size(&b, i), 200 * MIB);
        assert_eq!(b.alloc(POOL, Some(0), 241 * MIB).unwrap_err().code(), Code::OutOfMemory);
        b.free(0, None);
        b.finish();
    }
}

#[test]
fn large_blocks_stay_whole_and_serve_only_requests_of_about_their_size() {
    for mapping in [true, false] {
        let mut b = bench(mapping, Tuning { max_split: 30 * MIB, max_round: 10 * MIB, ..Tuning::default() });
        let whole = pass(&mut b, 64 * MIB);
        let before = reserved(&b);
        // A small one would be cut out of it, if it could be.
        let small = pass(&mut b, 8 * MIB);
        assert!(small >= whole + 64 * MIB || small + 8 * MIB <= whole, "{small:#x} lies in {whole:#x}");
        assert!(reserved(&b) > before);
        // Ten MiB more may be wasted, and no byte beyond.
        let i = b.alloc(POOL, Some(0), 54 * MIB).unwrap();
        assert_eq!((b.live[i].offset, size(&b, i)), (whole, 64 * MIB));
        assert_eq!(b.pond.stats(None).unwrap().allocated.current, 64 * MIB);
        b.free(i, None);
        let i = b.alloc(POOL, Some(0), 53 * MIB).unwrap();
        assert_ne!(b.live[i].offset, whole);
        assert_eq!(size(&b, i), 53 * MIB);
        b.free(i, None);
        let again = b.pond.free(whole, None, None).unwrap_err();
        assert_eq!(again.code(), Code::DoubleFree, "a kept block is not the caller's");
        // The smallest that fits is taken.
        let i = b.alloc(POOL, Some(0), 52 * MIB).unwrap();
        assert_eq!(size(&b, i), 53 * MIB);
        b.free(i, None);
        b.finish();
    }
}

#[test]
fn whole_blocks_are_given_up_before_a_request_fails() {
    for mapping in [true, false] {
        let mut b = bench(mapping, Tuning { max_split: 30 * MIB, max_round: 0, ..Tuning::default() });
        for _ in 0..3 {
            b.alloc(POOL, Some(0), 64 * MIB).unwrap();
        }
        while !b.live.is_empty() {
            b.free(0, None);
        }
        // 192 of 256 MiB are kept in blocks of 64: neither of these fits one of them, or the rest.
        b.alloc(POOL, Some(0), 100 * MIB).unwrap();
        b.alloc(POOL, Some(0), 20 * MIB).unwrap();
        b.free(0, None);
        b.free(0, None);
        b.finish();
    }
}

#[test]
fn whole_blocks_that_were_waited_for_are_given_up_too() {
    for mapping in [true, false] {
        let mut b = bench(mapping, Tuning { max_split: 30 * MIB, max_round: 0, ..Tuning::default() });
        for i in 0..4 {
            b.alloc(POOL, Some(0), 64 * MIB).unwrap();
            b.pond.record_stream(b.live[i].offset, 1).unwrap();
            b.live[i].uses.push(1);
        }
        while !b.live.is_empty() {
            b.free(0, None);
        }
        // All 256 MiB wait for stream 1, and come back in blocks of 64.
        b.alloc(POOL, Some(0), 100 * MIB).unwrap();
        b.finish();
    }
}

#[test]
fn whole_blocks_merge_when_they_need_not_be_whole_any_more() {
    for mapping in [true, false] {
        let mut b = bench(mapping, Tuning { max_split: 30 * MIB, ..Tuning::default() });
        let i = b.alloc(POOL, Some(0), 40 * MIB).unwrap();
        let kept = pass(&mut b, 64 * MIB);
        b.pond.tune(Tuning::default());
        let inside = pass(&mut b, 8 * MIB);
        assert!((kept..kept + 64 * MIB).contains(&inside));
        b.free(i, None); // was allocated to stay whole
        b.finish();
    }
}

#[test]
fn unused_memory_is_collected_above_the_threshold() {
    for mapping in [true, false] {
        let mut b =
            bench(mapping, Tuning { collect_above: 100 * MIB, segment: 2 * MIB, ..Tuning::default() });
        let other = b.pond.pool_create(0, false).unwrap();
        // 64 MiB lie idle in another pool, on a stream that has work queued.
        for _ in 0..8 {
            b.alloc(other, Some(1), 8 * MIB).unwrap();
        }
        while !b.live.is_empty() {
            b.free(0, None);
        }
        b.alloc(POOL, Some(0), 30 * MIB).unwrap();
        assert!(reserved(&b) >= 94 * MIB, "nothing goes back below the threshold");
        b.alloc(POOL, Some(0), 20 * MIB).unwrap();
        let now = reserved(&b);
        assert!((90 * MIB..=100 * MIB).contains(&now), "{now}: as much went back as was needed, not all");
        // Live memory is not touched, and the limit is the device's, not the threshold.
        b.alloc(POOL, Some(0), 120 * MIB).unwrap();
        assert!(reserved(&b) >= 170 * MIB);
        while !b.live.is_empty() {
            b.free(0, None);
        }
        b.finish();
    }
}

#[test]
fn the_device_is_asked_for_as_much_as_the_tuning_says() {
    for mapping in [true, false] {
        let mut b = bench(mapping, Tuning { segment: 40 * MIB, ..Tuning::default() });
        b.alloc(POOL, Some(0), 3 * MIB).unwrap();
        assert_eq!(reserved(&b), 40 * MIB);
        let calls = b.world.lock().unwrap().calls;
        b.alloc(POOL, Some(0), 30 * MIB).unwrap();
        assert_eq!(b.world.lock().unwrap().calls, calls);
        b.alloc(POOL, Some(0), 41 * MIB).unwrap();
        b.pond.tune(Tuning { segment: 6 * MIB, ..Tuning::default() });
        let before = reserved(&b);
        b.alloc(POOL, Some(0), 60 * MIB).unwrap();
        b.alloc(POOL, Some(0), 6 * MIB).unwrap();
        assert!(reserved(&b) > before);
        // Where the limit leaves less, the request alone is taken.
        b.pond.set_limit(reserved(&b) + 2 * MIB);
        b.pond.tune(Tuning { segment: 200 * MIB, ..Tuning::default() });
        while b.alloc(POOL, Some(0), 2 * MIB).is_ok() {}
        b.pond.set_limit(0);
        while !b.live.is_empty() {
            b.free(0, None);
        }
        b.finish();
    }
}

#[test]
fn without_scattering_a_block_needs_one_run() {
    let mut b = bench(true, Tuning { in_one_piece: true, ..Tuning::default() });
    let all = (0..128).map(|_| b.alloc(POOL, Some(0), 2 * MIB).unwrap()).collect::<Vec<_>>();
    assert_eq!(reserved(&b), 256 * MIB);
    // From the back, since the bench moves the last block to the place of a freed one.
    all.iter().rev().step_by(2).for_each(|i| b.free(*i, None));
    let i = b.alloc(POOL, Some(0), 100 * MIB).unwrap();
    assert_eq!(b.live[i].offset % (2 * MIB), 0);
    let shown = b.world.lock().unwrap().shown.clone();
    assert!(shown.iter().all(|(at, granule)| at == granule), "each granule at its own place only");
    b.free(i, None);
    assert_eq!(b.alloc(POOL, Some(0), 130 * MIB).unwrap_err().code(), Code::OutOfMemory);
    b.pond.tune(Tuning::default());
    b.alloc(POOL, Some(0), 128 * MIB).unwrap();
    while !b.live.is_empty() {
        b.free(0, None);
    }
    b.finish();
}

/// Another thread changes the tuning after a size has been rounded: the block is charged the same at its free.
#[test]
fn a_rounded_request_is_charged_the_same_whatever_becomes_of_the_tuning() {
    for mapping in [true, false] {
        let mut b = bench(mapping, Tuning { divisions: 0x2222_2222_2222_2222, ..Tuning::default() });
        let kept = b.alloc(POOL, Some(0), 260 << 10).unwrap(); // the next block is cut from the rest of its granule
        (0..1000).for_each(|_| _ = pass(&mut b, 300)); // this thread comes to own the heap
        let ground = b.pond.ground();
        let pool = PoolRef { place: ground.pools().live(POOL).unwrap(), id: POOL };
        let (heap, served) = ground.find_heap(pool, 0).unwrap();
        let request = ground.request(heap, served, 260 << 10).unwrap();
        b.pond.tune(Tuning { max_split: 64 * MIB, ..Tuning::default() }); // takes the heap from nobody
        assert!(ground.enter(heap).is_some());
        let at = Serving::of(ground, &request).search().unwrap();
        let allocated = |b: &Bench| b.pond.stats(None).unwrap().allocated.current >> 10;
        assert_eq!(allocated(&b), 640);
        b.pond.free(at, None, None).unwrap();
        assert_eq!(allocated(&b), 320);
        b.free(kept, None);
        b.finish();
    }
}
