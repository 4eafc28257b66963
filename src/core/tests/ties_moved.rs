//! Free granules of ties where memory is scarce: they serve whoever loose granules would serve, also where the device cannot
//! be waited for, and go back to the device no sooner, and no more of them, than is of use.

use super::ties::{sizes, with_ties};
use super::*;

/// A device of 64 granules, all in one pool's ties of 8 on stream 1, of which four are free and lie apart.
fn half_free(pool: impl FnOnce(&mut Bench) -> PoolId) -> (Bench, PoolId) {
    let mut b = with_ties(64, 8, 1);
    let p = pool(&mut b);
    for _ in 0..8 {
        b.alloc(p, Some(1), 8 * G).unwrap();
    }
    assert_eq!(sizes(&b)[..4], [8; 4]);
    for at in [0, 16 * G, 32 * G, 48 * G] {
        let i = b.live.iter().position(|x| x.offset == at).unwrap();
        b.free(i, None);
    }
    (b, p)
}

fn begin(b: &Bench, pool: PoolId, stream: u64) -> super::super::state::captures::CaptureId {
    let id = b.pond.captures().begin(pool, stream).unwrap();
    b.world.lock().unwrap().recording.insert(stream);
    id
}

fn end(b: &Bench, id: super::super::state::captures::CaptureId, stream: u64) {
    b.world.lock().unwrap().recording.remove(&stream);
    b.pond.captures().end(id).unwrap();
    b.pond.captures().release(id).unwrap();
}

/// Beside a capture the device cannot be waited for. Ties that are wholly free serve as loose granules do.
#[test]
fn free_ties_serve_others_beside_a_capture() {
    for (other, stream) in
        [(false, Some(1)), (false, Some(2)), (true, Some(1)), (true, Some(2)), (true, None)]
    {
        let (mut b, p) = half_free(|_| PoolId::DEFAULT);
        let q = if other { b.pool(false) } else { p };
        let graph = b.pool(false);
        let id = begin(&b, graph, 3);
        let i = b.alloc(q, stream, 15 * G + 100).expect("four times eight granules are free");
        assert!(b.pieces(i).len() > 1);
        b.check_ties();
        b.alloc(q, stream, 100).expect("a granule for small blocks");
        b.alloc(q, stream, 7 * G).expect("eight more");
        b.alloc(q, stream, 9 * G).unwrap_err();
        b.check_ties();
        end(&b, id, 3);
        b.finish();
    }
}

/// Beside a capture, too, a tie goes back to the device only after the work on it.
#[test]
fn a_tie_goes_back_after_the_work_of_its_stream() {
    let mut b = with_ties(64, 8, 1);
    for _ in 0..8 {
        b.alloc(PoolId::DEFAULT, Some(2), 8 * G).unwrap();
    }
    let i = b.live.iter().position(|x| x.offset == 0).unwrap();
    b.free(i, None);
    let (q, graph) = (b.pool(false), b.pool(false));
    let id = begin(&b, graph, 3);
    {
        let mut w = b.world.lock().unwrap();
        let q = w.streams[&2].queued;
        assert!(!w.passed(2, q));
        w.in_flight = (0..8).map(|granule| (granule, q)).collect();
    }
    let (waits, ties) = (b.pond.order().device_waits(), sizes(&b).len());
    b.alloc(q, Some(1), 100).expect("a granule");
    assert_eq!(sizes(&b).len(), ties - 1, "of a tie");
    assert_eq!(b.pond.order().device_waits(), waits);
    end(&b, id, 3);
    b.finish();
}

/// The request of a captured stream has what its own heap has, and what the device gives.
#[test]
fn free_ties_serve_a_captured_stream_of_their_own_heap() {
    let (mut b, p) = half_free(|b| b.pool(false));
    let id = begin(&b, p, 1);
    let i = b.alloc(p, Some(1), 20 * G).expect("four times eight granules are free");
    assert!(b.pieces(i).len() > 1);
    b.alloc(p, Some(1), 8 * G).expect("and eight more");
    b.check_ties();
    end(&b, id, 1);
    b.finish();
}

/// What the default stream has is free for it in another pool too, though nothing may be asked of it now.
#[test]
fn free_ties_of_a_stream_that_cannot_be_marked_serve_it_elsewhere() {
    let mut b = with_ties(64, 8, 1);
    for _ in 0..8 {
        b.alloc(PoolId::DEFAULT, Some(0), 8 * G).unwrap();
    }
    b.free(0, None);
    b.free(3, None);
    let (q, graph) = (b.pool(false), b.pool(false));
    let id = begin(&b, graph, 3);
    b.alloc(q, Some(0), 12 * G).expect("two ties");
    b.check_ties();
    end(&b, id, 3);
    b.finish();
}

/// A theft within a pool has left parts of a free tie in two heaps: together they serve another pool.
#[test]
fn the_parts_of_a_free_tie_are_joined_beside_a_capture() {
    let mut b = with_ties(64, 8, 1);
    for _ in 0..8 {
        b.alloc(PoolId::DEFAULT, Some(1), 8 * G).unwrap();
    }
    b.free_at(0);
    b.free_at(16);
    // They are shown together, which cannot end beside a capture: so they do not go back to the device there.
    let i = b.alloc(PoolId::DEFAULT, Some(1), 16 * G).expect("both");
    b.free(i, None);
    let i = b.alloc(PoolId::DEFAULT, Some(2), 3 * G).expect("in place, from the other heap");
    b.free(i, None);
    let (q, graph) = (b.pool(false), b.pool(false));
    let id = begin(&b, graph, 3);
    b.alloc(q, Some(1), 16 * G).expect("two ties");
    b.check_ties();
    end(&b, id, 3);
    b.finish();
}

/// Ties go back to the device beside a capture as long as no idle range shows them: such ones are chosen.
#[test]
fn ties_that_nothing_shows_go_back_beside_a_capture() {
    let mut b = with_ties(64, 8, 1);
    for _ in 0..8 {
        b.alloc(PoolId::DEFAULT, Some(1), 8 * G).unwrap();
    }
    b.free_at(0);
    b.free_at(16);
    let i = b.alloc(PoolId::DEFAULT, Some(1), 16 * G).expect("both");
    b.free(i, None);
    b.free_at(32);
    let graph = b.pool(false);
    let id = begin(&b, graph, 3);
    // No tie fits below the limit of this pool.
    let q = b.pool(false);
    b.pond.ground().pools().live(q).unwrap().set_limit(4 * G);
    b.alloc(q, Some(1), 3 * G).expect("granules of a tie that went back");
    b.check_ties();
    end(&b, id, 3);
    b.finish();
}

/// A limit may be lower than what is reserved: nothing goes back to the device that the limit would keep it from giving again.
#[test]
fn a_limit_below_what_is_reserved_takes_no_ties_apart() {
    let taken = |b: &Bench| b.world.lock().unwrap().taken / G;
    let mut b = with_ties(64, 8, 1);
    let q = b.pool(false);
    let i = b.alloc(q, Some(1), 16 * G).unwrap();
    b.alloc(PoolId::DEFAULT, Some(1), 40 * G).unwrap();
    b.free(i, None);
    b.pond.set_limit(40 * G);
    b.alloc(PoolId::DEFAULT, Some(2), 16 * G).expect("two ties are free");
    assert_eq!(taken(&b), 56);
    b.finish();

    // The same of blocks in one piece, by the limits of the device and of a pool.
    for of_pool in [false, true] {
        let mut b = with_ties(64, 8, 1);
        b.pond.tune(Tuning { in_one_piece: true, ..Tuning::default() });
        for _ in 0..4 {
            b.alloc(PoolId::DEFAULT, Some(1), 8 * G).unwrap();
        }
        b.free_at(0);
        b.free_at(16);
        match of_pool {
            true => b.pond.pool_set_limit(PoolId::DEFAULT, 24 * G).unwrap(),
            false => b.pond.set_limit(24 * G),
        }
        let told = b.pond.statistics().full(Some(PoolId::DEFAULT), 32 * G).unwrap().largest_free_bytes;
        b.alloc(PoolId::DEFAULT, Some(1), 9 * G).unwrap_err();
        assert_eq!((told / G, taken(&b)), (8, 32), "16 are in use");
        b.alloc(PoolId::DEFAULT, Some(1), 8 * G).expect("as it lies");
        b.finish();
    }
}

/// A block over whole ties is shown, hidden and shown again as one over granules is.
#[test]
fn a_block_over_ties_is_exported_sleeps_and_wakes() {
    let (mut b, p) = half_free(|b| b.pool(false));
    let id = begin(&b, p, 1);
    let i = b.alloc(p, Some(1), 12 * G).unwrap();
    assert_eq!(b.pieces(i).len(), 2);
    end(&b, id, 1);
    let at = b.live[i].offset;
    let pieces = b.pond.exports().pieces(at).unwrap();
    assert_eq!(pieces.granules.iter().map(|r| r.count).sum::<u32>(), 12);
    b.sleep(p, true, true);
    b.wake(p);
    b.check_ties();
    let i = b.live.iter().position(|x| x.offset == at).unwrap();
    assert_eq!(b.pieces(i).len(), 2);
    // The rest of the second tie serves in place, and the same pieces serve the same request again.
    b.alloc(p, Some(1), 4 * G).expect("what is left of a tie");
    b.free(i, None);
    let i = b.alloc(p, Some(1), 12 * G).unwrap();
    assert_eq!(b.live[i].offset, at);
    b.finish();
}

/// A request for more than there is takes no tie apart, and one that lacks little gives little back.
#[test]
fn ties_go_back_only_as_far_as_that_serves() {
    let (mut b, _) = half_free(|_| PoolId::DEFAULT);
    let q = b.pool(false);
    let before = sizes(&b);
    b.alloc(q, Some(2), 33 * G).unwrap_err();
    assert_eq!(sizes(&b), before, "32 granules are free");
    b.alloc(q, Some(2), 32 * G).unwrap();
    b.finish();

    let mut b = with_ties(64, 8, 1);
    for _ in 0..6 {
        b.alloc(PoolId::DEFAULT, Some(1), 8 * G).unwrap();
    }
    for at in [0, 16 * G] {
        let i = b.live.iter().position(|x| x.offset == at).unwrap();
        b.free(i, None);
    }
    let q = b.pool(false);
    b.alloc(q, Some(2), 18 * G).unwrap();
    let left = |at| b.pond.ground().growing().ties.of(at).is_some();
    assert!(left(0) || left(16), "16 granules of the device and one tie are enough");
    b.finish();
}

/// A request that must fail costs no other one its large handles; one that was served by whole ties ends them until memory is
/// plentiful again.
#[test]
fn a_request_that_fails_leaves_ties_on() {
    let ties_are_made = |b: &mut Bench| {
        let before = sizes(b).len();
        b.alloc(PoolId::DEFAULT, Some(1), 16 * G).unwrap();
        sizes(b).len() > before
    };
    let mut b = with_ties(64, 8, 1);
    b.alloc(PoolId::DEFAULT, Some(1), 8 * G).unwrap();
    let limited = b.pool(false);
    b.pond.pool_set_limit(limited, 4 * G).unwrap();
    b.alloc(limited, Some(2), 6 * G).unwrap_err();
    b.alloc(PoolId::DEFAULT, Some(2), 80 * G).unwrap_err();
    assert!(ties_are_made(&mut b));
    b.finish();

    let (mut b, _) = half_free(|_| PoolId::DEFAULT);
    let (q, graph) = (b.pool(false), b.pool(false));
    let id = begin(&b, graph, 3);
    b.alloc(q, Some(2), 15 * G).expect("whole ties");
    end(&b, id, 3);
    while !b.live.is_empty() {
        b.free(0, None);
    }
    b.pond.special().trim_to(None, 8 * G).unwrap();
    assert!(ties_are_made(&mut b), "most of the device is left");
    b.finish();
}

/// Granules in ties serve in place only: what is too small for the request stays where it is.
#[test]
fn theft_leaves_what_cannot_serve_in_place() {
    let mut b = with_ties(16, 8, 4);
    let loose: Vec<u64> = (0..8)
        .map(|_| {
            let i = b.alloc(PoolId::DEFAULT, Some(1), G).unwrap();
            b.live[i].offset
        })
        .collect();
    let i = b.alloc(PoolId::DEFAULT, Some(0), 8 * G).unwrap();
    let tied = b.live[i].offset;
    assert_eq!(sizes(&b), [8]);
    b.free(i, None);
    b.alloc(PoolId::DEFAULT, Some(0), 5 * G).unwrap();
    for at in [loose[0], loose[2], loose[4]] {
        let i = b.live.iter().position(|x| x.offset == at).unwrap();
        b.free(i, None);
    }
    // Stream 1 has three granules and lacks one; three more serve three granules in place, and no fourth.
    let owners = |b: &Bench| {
        let owner = |n| b.pond.ground().maps.granule((tied / G + n) as u32).heap();
        (5..8).map(owner).collect::<Vec<_>>()
    };
    let before = owners(&b);
    b.alloc(PoolId::DEFAULT, Some(1), 4 * G).unwrap_err();
    assert_eq!(owners(&b), before, "they are of no use there");
    b.alloc(PoolId::DEFAULT, Some(1), 2 * G).expect("of its own");
    b.alloc(PoolId::DEFAULT, Some(1), 3 * G).expect("in place, from the other stream");
    b.finish();
}

/// What a contiguous pool's own limit refuses, no memory of others would serve.
#[test]
fn a_contiguous_pool_at_its_limit_empties_no_cache() {
    let mut b = Bench::new(config(true, 256 << 20));
    let p = b.pool(true);
    let reserved = |b: &Bench, p| b.pond.stats(Some(p)).unwrap().reserved.current / G;
    let i = b.alloc(PoolId::DEFAULT, Some(0), 20 * G).unwrap();
    b.free(i, None);
    b.pond.pool_set_limit(p, 10 * G).unwrap();
    for _ in 0..5 {
        b.alloc(p, Some(0), 2 * G).unwrap();
    }
    // In ties of 4, 4 and 2; the last two are free.
    (2..5).for_each(|_| b.free(2, None));
    let waits = b.pond.order().device_waits();
    for _ in 0..3 {
        b.alloc(p, Some(0), 7 * G).unwrap_err();
        assert_eq!((reserved(&b, PoolId::DEFAULT), reserved(&b, p)), (20, 10), "nothing of it would serve");
    }
    assert_eq!(b.pond.order().device_waits(), waits);
    b.alloc(p, Some(0), 6 * G).expect("of what the pool has itself");
    assert_eq!((reserved(&b, PoolId::DEFAULT), reserved(&b, p)), (20, 10));
    b.finish();
}

/// The device's limit is what refuses: no more goes back than the request needs, and nothing if that is not enough.
#[test]
fn a_contiguous_pool_takes_from_others_what_it_needs() {
    let mut b = Bench::new(config(true, 64 << 20));
    let p = b.pool(true);
    let reserved = |b: &Bench, p| b.pond.stats(Some(p)).unwrap().reserved.current / G;
    b.alloc(p, Some(0), 8 * G).unwrap();
    let i = b.alloc(PoolId::DEFAULT, Some(0), 24 * G).unwrap();
    b.free(i, None);
    b.alloc(PoolId::DEFAULT, Some(0), 4 * G).unwrap();
    for _ in 0..2 {
        b.alloc(p, Some(0), 21 * G).unwrap_err();
        assert_eq!((reserved(&b, PoolId::DEFAULT), reserved(&b, p)), (24, 8));
    }
    b.alloc(p, Some(0), 9 * G).unwrap();
    assert_eq!((reserved(&b, PoolId::DEFAULT), reserved(&b, p)), (15, 17));
    b.finish();
}

/// The device has less than the limits allow: what they lack is not enough.
#[test]
fn a_contiguous_pool_takes_what_the_device_lacks_too() {
    let mut b = Bench::new(config(true, 128 << 20));
    let p = b.pool(true);
    b.world.lock().unwrap().capacity = 20 * G; // others have the rest
    let i = b.alloc(PoolId::DEFAULT, Some(0), 20 * G).unwrap();
    b.free(i, None);
    b.alloc(PoolId::DEFAULT, Some(0), 4 * G).unwrap();
    b.pond.set_limit(30 * G);
    b.alloc(p, Some(0), 12 * G).expect("16 granules are free");
    assert!(b.pond.stats(Some(PoolId::DEFAULT)).unwrap().reserved.current >= 4 * G);
    b.finish();
}

/// Granules go before ties, and of ties the smallest that is enough.
#[test]
fn a_trim_gives_back_as_little_as_suffices() {
    let mut b = with_ties(128, 8, 8);
    for n in [8, 8, 1, 1, 1, 8] {
        b.alloc(PoolId::DEFAULT, Some(0), n * G).unwrap();
    }
    assert_eq!(sizes(&b).iter().sum::<u32>(), 24);
    let count = |b: &Bench| b.pond.stats(None).unwrap().reserved.current / G;
    while !b.live.is_empty() {
        b.free(0, None);
    }
    for (keep, left, tied) in [(26, 26, 24), (24, 24, 24), (24, 24, 24), (21, 16, 16), (15, 8, 8), (0, 0, 0)]
    {
        b.pond.special().trim_to(None, keep * G).unwrap();
        assert_eq!((count(&b), sizes(&b).iter().sum::<u32>()), (left, tied), "{keep}");
    }
    // With what is loose, a small tie is enough: the loose granules that need not go stay.
    let mut c = with_ties(64, 8, 2);
    for n in [8, 4, 1, 1] {
        c.alloc(PoolId::DEFAULT, Some(0), n * G).unwrap();
    }
    assert_eq!(sizes(&c), [8, 4]);
    while !c.live.is_empty() {
        c.free(0, None);
    }
    c.pond.special().trim_to(None, 8 * G).unwrap();
    assert_eq!((count(&c), sizes(&c)), (8, vec![8]), "4 in the small tie, and two");
    b.finish();
    c.finish();
}

/// An ended device keeps no marks of ties.
#[test]
fn the_marks_of_ties_go_with_the_device() {
    let mut b = with_ties(64, 8, 1);
    b.alloc(PoolId::DEFAULT, Some(0), 8 * G).unwrap();
    let ground = b.pond.ground();
    assert!(ground.shared().tied.is_tied(0));
    b.pond.close().unwrap();
    b.pond.discard();
    assert!(!b.pond.ground().shared().tied.is_tied(0));
}

/// What a program does that fills a device with ties and frees in between.
#[derive(Clone, Debug)]
enum Crowd {
    Alloc { pool: usize, stream: u64, kib: u64 },
    Free(usize),
    Capture(bool),
}

fn crowd() -> impl Strategy<Value = Crowd> {
    prop_oneof![
        6 => (0usize..2, 1u64..3, 1u64..30 * 2048).prop_map(|(pool, stream, kib)| Crowd::Alloc { pool, stream, kib }),
        4 => (0usize..100).prop_map(Crowd::Free),
        1 => any::<bool>().prop_map(Crowd::Capture),
    ]
}

proptest! {
    #![proptest_config(random_programs())]
    /// No request fails while the free granules that are not in partly used ties suffice, beside captures either.
    #[test]
    fn free_granules_and_free_ties_are_never_refused(tie in 0u32..12, ops in prop::collection::vec(crowd(), 1..120)) {
        let mut b = with_ties(64, tie, 4);
        let pools = [PoolId::DEFAULT, b.pool(false)];
        let graph = b.pool(false);
        let mut open = None;
        for op in ops {
            match op {
                Crowd::Alloc { pool, stream, kib } => {
                    if let Err(e) = b.alloc(pools[pool], Some(stream), kib << 10) {
                        let free = 64 - b.granules_taken();
                        assert!((kib << 10).div_ceil(G) > free, "{e}, but {free} granules are free");
                    }
                }
                Crowd::Free(at) if !b.live.is_empty() => b.free(at % b.live.len(), None),
                Crowd::Capture(true) if open.is_none() => open = Some(begin(&b, graph, 3)),
                Crowd::Capture(false) if open.is_some() => end(&b, open.take().unwrap(), 3),
                _ => {}
            }
            b.pond.ground().check();
            b.check_ties();
        }
        if let Some(id) = open {
            end(&b, id, 3);
        }
        b.finish();
    }
}
