//! Granules in one physical allocation: pools whose blocks all lie so, and what becomes of their memory.

use super::*;

impl Bench {
    /// The pond knows the ties that the device has, and each belongs to one pool, or to none.
    pub(super) fn check_ties(&self) {
        let ground = self.pond.ground();
        let g = ground.growing();
        let w = self.world.lock().unwrap();
        for (&first, &n) in &w.ties {
            let tie = g.ties.of(first).expect("a tie that the pond knows");
            assert_eq!((tie.first, tie.count), (first, n));
            let pool_of = |granule| {
                let u = ground.maps.granule(granule);
                ground.heaps().get(u.heap()).map(|heap| heap.pool())
            };
            let owners: BTreeSet<Option<u32>> = tie.granules().map(pool_of).collect();
            assert_eq!(owners.len(), 1, "tie {first} of {n}: {owners:?}");
        }
    }

    /// The granules of live blocks, and those that lie in ties with them: what no request can have.
    pub(super) fn granules_taken(&self) -> u64 {
        let w = self.world.lock().unwrap();
        let mut all = BTreeSet::new();
        // What sleeps has no memory.
        let awake = self.live.iter().filter(|x| !self.pond.sleep().is_on(x.pool));
        // A scattered block that has become shorter keeps all that it had.
        for (a, n) in awake.flat_map(|x| w.behind(x.offset, x.room)) {
            for g in a / G..(a + n).div_ceil(G) {
                let (at, n) = w.tie_of(g as u32).unwrap_or((g as u32, 1));
                all.extend(at..at + n);
            }
        }
        all.len() as u64
    }

    /// Frees the block at that granule.
    pub(super) fn free_at(&mut self, granule: u64) {
        let i = self.live.iter().position(|x| x.offset == granule * G).unwrap();
        self.free(i, None);
    }

    /// The first granules of the ties of which a block has memory, or the granules themselves.
    pub(super) fn pieces(&self, i: usize) -> BTreeSet<u32> {
        let w = self.world.lock().unwrap();
        let granules = self.live[i].ranges.iter().flat_map(|&(a, n)| a / G..(a + n).div_ceil(G));
        granules.map(|g| w.tie_of(g as u32).map_or(g as u32, |t| t.0)).collect()
    }
}

#[test]
fn each_block_of_a_contiguous_pool_lies_in_one_piece() {
    let mut b = Bench::new(config(true, 512 << 20));
    let p = b.pool(true);
    let i = b.alloc(PoolId::DEFAULT, Some(0), 40 << 20).unwrap();
    assert_eq!(b.pieces(i).len(), 20);
    for bytes in [40 << 20, 100, 5000, 3 << 20, 15 << 20, 1 << 20, 15 << 20] {
        let i = b.alloc(p, Some(0), bytes).unwrap();
        assert_eq!(b.pieces(i).len(), 1);
    }
    // 40, and three shared ones of a 32th of the device.
    assert_eq!(b.pond.stats(Some(p)).unwrap().reserved.current, (40 + 3 * 16) << 20);
    b.finish();
}

/// Holes that other pools would put together serve nothing larger there; what is free goes back for it.
#[test]
fn a_contiguous_pool_is_not_scattered() {
    let mut b = Bench::new(config(true, 64 << 20));
    let p = b.pool(true);
    for _ in 0..32 {
        b.alloc(p, Some(0), G).unwrap();
    }
    for _ in 0..8 {
        b.free(0, None);
        b.free(1, None);
    }
    let e = b.alloc(p, Some(0), 48 << 20).unwrap_err();
    assert_eq!(e.code(), Code::OutOfMemory);
    let i = b.alloc(p, Some(0), 30 << 20).expect("16 granules are free, in ties of their own");
    assert_eq!(b.pieces(i).len(), 1);
    assert_eq!(b.world.lock().unwrap().calls, 32 + 16 + 1, "each tie went back");
    b.finish();
}

/// What a contiguous pool does not need serves others, and the reverse.
#[test]
fn memory_comes_and_goes_between_pools_as_whole_ties() {
    let mut b = Bench::new(config(true, 64 << 20));
    let p = b.pool(true);
    for (pool, other) in [(p, PoolId::DEFAULT), (PoolId::DEFAULT, p), (p, PoolId::DEFAULT)] {
        let i = b.alloc(pool, Some(0), 60 << 20).unwrap();
        b.alloc(other, Some(1), 3 << 20).unwrap();
        b.alloc(other, Some(0), 30 << 20).unwrap_err();
        b.free(i, None);
        let j = b.alloc(other, Some(0), 59 << 20).expect("all that is free");
        b.free(j, None);
        b.free(0, None);
    }
    b.finish();
}

#[test]
fn a_contiguous_pool_sleeps_and_wakes_in_the_same_pieces() {
    for half_way in [false, true] {
        let mut b = Bench::new(config(true, 256 << 20));
        let p = b.pool(true);
        for _ in 0..12 {
            b.alloc(p, Some(0), 3 << 20).unwrap();
        }
        for _ in 0..4 {
            b.free(2, None);
        }
        let before: Vec<BTreeSet<u32>> = (0..8).map(|i| b.pieces(i)).collect();
        if half_way {
            b.world.lock().unwrap().fail_release = true;
            b.pond.sleep().begin(p, true).unwrap_err();
            b.world.lock().unwrap().fail_release = false;
        }
        b.sleep(p, true, true);
        assert!(b.world.lock().unwrap().ties.is_empty());
        b.wake(p);
        b.check_ties();
        assert_eq!((0..8).map(|i| b.pieces(i)).collect::<Vec<_>>(), before);
        assert!(before.iter().all(|p| p.len() == 1));
        b.finish();
    }
}

#[test]
fn a_sleeping_contiguous_pool_without_blocks_ends() {
    let mut b = Bench::new(config(true, 256 << 20));
    let p = b.pool(true);
    b.alloc(p, Some(0), 30 << 20).unwrap();
    b.alloc(p, Some(1), 3 << 20).unwrap();
    b.sleep(p, false, true);
    b.free(0, None);
    b.free(0, None);
    b.pond.ground().backing.sync_all().unwrap();
    b.pond.pool_destroy(p).unwrap();
    let room = b.pond.ground().growing().room.longest();
    assert_eq!(room, b.pond.ground().memory_granules(), "all numbers are free again");
    assert!(b.pond.ground().growing().ties.is_empty());
    b.finish();
}

#[test]
fn a_limit_below_the_usual_size_is_used_to_the_end() {
    let mut b = Bench::new(config(true, 2 << 30));
    let p = b.pool(true);
    b.pond.pool_set_limit(p, 20 << 20).unwrap();
    b.alloc(p, Some(0), 5 << 20).unwrap();
    assert_eq!(b.pond.stats(Some(p)).unwrap().reserved.current, 20 << 20);
    b.alloc(p, Some(0), 15 << 20).unwrap();
    b.alloc(p, Some(0), 1 << 20).unwrap_err();
    b.finish();
}

/// A device of so many granules on which a tie has at most `tie`, from a growth on.
pub(super) fn with_ties(granules: u64, tie: u32, tie_growth: u32) -> Bench {
    Bench::new(Config { tie, tie_growth, ..config(true, granules * G) })
}

pub(super) fn sizes(b: &Bench) -> Vec<u32> {
    b.world.lock().unwrap().ties.values().copied().collect()
}

#[test]
fn ties_are_smaller_the_less_there_is_and_take_no_more_than_is_asked_for() {
    let mut b = with_ties(256, 32, 8);
    b.alloc(PoolId::DEFAULT, Some(0), 250 * G - 100).unwrap();
    assert_eq!(b.world.lock().unwrap().taken, 250 * G);
    let sizes = sizes(&b);
    assert_eq!((sizes[0], sizes[sizes.len() - 1]), (250 / 4, 2));
    assert!(sizes.iter().sum::<u32>() > 240, "{sizes:?}");
    assert!(sizes.len() < 30, "{sizes:?}");
    b.finish();
}

#[test]
fn large_growth_is_in_four_ties() {
    // While memory is plentiful. A tie has at most 512 granules.
    for (granules, want) in [(16, 8), (32, 8), (256, 64), (1024, 256), (5000, 512)] {
        let mut b = with_ties(20_000, 8, 8);
        b.alloc(PoolId::DEFAULT, Some(0), granules * G).unwrap();
        assert_eq!(sizes(&b)[0], want, "{granules}");
        assert_eq!(b.world.lock().unwrap().taken, granules * G);
        b.finish();
    }
}

#[test]
fn small_growth_is_by_granules() {
    let mut b = with_ties(256, 32, 8);
    // The growth from which on it is in ties, by how much is reserved.
    for (until, least) in [(32, 2), (64, 8), (128, 16), (256, 32)] {
        let before = sizes(&b).len();
        b.alloc(PoolId::DEFAULT, Some(0), (least - 1) * G).unwrap();
        assert_eq!(sizes(&b).len(), before);
        b.alloc(PoolId::DEFAULT, Some(0), least * G).unwrap();
        assert!(sizes(&b).len() > before, "{least} of {until}");
        while until < 256 && b.world.lock().unwrap().taken <= until * G {
            b.alloc(PoolId::DEFAULT, Some(0), G).unwrap();
        }
    }
    b.finish();
}

#[test]
fn growth_that_must_lie_in_one_piece_is_in_ties_too() {
    let mut b = with_ties(1024, 32, 32);
    b.pond.tune(Tuning { in_one_piece: true, ..Tuning::default() });
    let i = b.alloc(PoolId::DEFAULT, Some(0), 8 * G).unwrap();
    assert_eq!((sizes(&b), b.pieces(i).len()), (vec![8], 1));
    // Ties for a part of it would lie apart from the rest.
    let i = b.alloc(PoolId::DEFAULT, Some(0), 1016 * G).unwrap();
    assert_eq!((b.pieces(i).len(), sizes(&b).len()), (1016, 1));
    b.finish();
}

#[test]
fn free_ties_are_pieces_of_a_block_before_the_device_is_asked() {
    let mut b = with_ties(1024, 32, 32);
    for _ in 0..6 {
        b.alloc(PoolId::DEFAULT, Some(0), 8 * G).unwrap();
    }
    assert_eq!(sizes(&b), [8; 6]);
    b.free_at(0);
    b.free_at(16);
    let i = b.alloc(PoolId::DEFAULT, Some(0), 16 * G).unwrap();
    assert_eq!((b.pieces(i).len(), b.world.lock().unwrap().taken), (2, 48 * G));
    b.free(i, None);
    // What is missing comes as granules, which serve anywhere.
    let i = b.alloc(PoolId::DEFAULT, Some(0), 20 * G).unwrap();
    assert_eq!((b.pieces(i).len(), sizes(&b).len(), b.world.lock().unwrap().taken), (2 + 4, 6, 52 * G));
    b.free(i, None);
    // A tie is not cut for a small part of it.
    b.alloc(PoolId::DEFAULT, Some(0), 4 * G).unwrap();
    b.free_at(32);
    let i = b.alloc(PoolId::DEFAULT, Some(0), 18 * G).unwrap();
    assert_eq!((b.pieces(i).len(), b.world.lock().unwrap().taken), (2 + 2, 54 * G));
    b.finish();
}

/// Loose granules that a block does not need are nothing that remains of a tie.
#[test]
fn a_tie_and_some_of_the_loose_granules_are_a_block() {
    let mut b = with_ties(1024, 32, 256); // ties for growth of 16 and more
    b.alloc(PoolId::DEFAULT, Some(0), 6 * G).unwrap();
    b.alloc(PoolId::DEFAULT, Some(0), 3 * G).unwrap();
    b.alloc(PoolId::DEFAULT, Some(0), 20 * G).unwrap();
    b.alloc(PoolId::DEFAULT, Some(0), 3 * G).unwrap();
    assert_eq!(sizes(&b), [20]);
    b.free_at(9);
    b.free_at(0);
    let i = b.alloc(PoolId::DEFAULT, Some(0), 22 * G).unwrap();
    assert_eq!((b.pieces(i).len(), b.world.lock().unwrap().taken), (1 + 2, 32 * G));
    b.finish();
}

/// What is free in ties serves in place; for anything else wholly free ones are made granules again.
#[test]
fn free_ties_are_made_anew_as_granules_when_memory_is_scarce() {
    for stream in [0, 1] {
        let mut b = with_ties(64, 8, 1);
        for _ in 0..8 {
            b.alloc(PoolId::DEFAULT, Some(0), 8 * G).unwrap();
        }
        assert_eq!(sizes(&b)[..4], [8; 4]);
        let calls = b.world.lock().unwrap().calls;
        // Every other one: a block of two does not fit, and no tie can be shown elsewhere.
        [0, 16, 32, 48].into_iter().for_each(|at| b.free_at(at));
        b.alloc(PoolId::DEFAULT, Some(0), 7 * G).unwrap();
        assert_eq!(b.world.lock().unwrap().calls, calls, "it fits in place");
        let i = b.alloc(PoolId::DEFAULT, Some(stream), 16 * G).expect("three times eight granules are free");
        assert!(b.pieces(i).len() > 1);
        b.alloc(PoolId::DEFAULT, Some(stream), 8 * G).expect("and eight more");
        b.alloc(PoolId::DEFAULT, Some(0), G).expect("what is left of a tie");
        b.alloc(PoolId::DEFAULT, Some(0), 1).unwrap_err();
        b.finish();
    }
}

/// Where a restore has given a part of a tie to another heap of its pool, it goes back when both are free.
#[test]
fn a_tie_that_two_heaps_share_goes_back_as_one() {
    let mut b = with_ties(64, 8, 1);
    let i = b.alloc(PoolId::DEFAULT, Some(0), 8 * G).unwrap();
    b.free(i, None);
    b.alloc(PoolId::DEFAULT, Some(0), 2 * G).unwrap();
    b.pond.set_limit(8 * G);
    // The other stream has nothing but what the first one leaves.
    let j = b.alloc(PoolId::DEFAULT, Some(1), 3 * G).expect("in place, from the other heap");
    assert_eq!(b.pieces(j).len(), 1);
    b.pond.ground().backing.sync_all().unwrap();
    b.pond.empty_cache(None).unwrap();
    assert_eq!(b.world.lock().unwrap().taken, 8 * G, "a part of a tie does not go");
    b.free(0, None);
    b.free(0, None);
    b.pond.empty_cache(None).unwrap();
    assert_eq!(b.world.lock().unwrap().taken, 0);
    b.finish();
}

/// A device of 64 granules, all in one pool's ties, of which the first one (8 granules) is free, in parts in the heaps of
/// streams 1 and 2.
pub(super) fn with_a_shared_tie(tuning: Tuning) -> Bench {
    let mut b = with_ties(64, 8, 1);
    b.pond.tune(tuning);
    while b.world.lock().unwrap().taken < 64 * G {
        b.alloc(PoolId::DEFAULT, Some(1), 8 * G).unwrap();
    }
    assert_eq!(b.pond.ground().growing().ties.of(7).map(|t| (t.first, t.count)), Some((0, 8)));
    b.free_at(0);
    let i = b.alloc(PoolId::DEFAULT, Some(2), 3 * G).expect("in place, from the other heap");
    b.free(i, None);
    b
}

/// What is free of a tie in one heap and in another makes a whole, which goes back to the device and serves others.
#[test]
fn a_free_tie_of_two_heaps_is_told_as_free() {
    for in_one_piece in [false, true] {
        let mut b = with_a_shared_tie(Tuning { in_one_piece, ..Tuning::default() });
        let q = b.pool(false);
        let read = |p| b.pond.statistics().full(p, 0).unwrap();
        let (all, own, other) = (read(None), read(Some(PoolId::DEFAULT)), read(Some(q)));
        assert_eq!((all.releasable_bytes, own.releasable_bytes, other.releasable_bytes), (8 * G, 8 * G, 0));
        assert_eq!(all.free_bytes, 8 * G);
        let free = [all, own, other].map(|m| m.largest_free_bytes / G);
        assert_eq!(free, [8; 3], "{in_one_piece}");
        let i = b.alloc(q, Some(3), 8 * G).expect("as was told");
        b.free(i, None);
        // A part that is used is no part of what goes.
        let mut b = with_a_shared_tie(Tuning { in_one_piece, ..Tuning::default() });
        b.alloc(PoolId::DEFAULT, Some(2), G).unwrap();
        let m = b.pond.statistics().full(None, 0).unwrap();
        assert_eq!((m.releasable_bytes, m.free_bytes), (0, 7 * G));
        b.finish();
    }
}

/// Ties that are too small for a block in one piece stay where they are, and large handles go on.
#[test]
fn a_block_in_one_piece_takes_no_ties_that_do_not_serve_it() {
    let mut b = with_a_shared_tie(Tuning { in_one_piece: true, ..Tuning::default() });
    b.free_at(16);
    let q = b.pool(false);
    let reserved = |b: &Bench| b.pond.stats(Some(q)).unwrap().reserved.current / G;
    b.alloc(q, Some(3), 17 * G).unwrap_err();
    assert_eq!(reserved(&b), 0, "16 granules are free");
    b.alloc(q, Some(3), 12 * G).expect("16 granules go back for it");
    assert_eq!((reserved(&b), b.pond.ground().hints.ties_ended_at()), (12, 0));
    b.finish();

    // One that is large enough serves it.
    let mut b = with_a_shared_tie(Tuning { in_one_piece: true, ..Tuning::default() });
    let q = b.pool(false);
    let waits = b.pond.order().device_waits();
    let i = b.alloc(q, Some(3), 7 * G).expect("a tie");
    assert_eq!((b.pieces(i).len(), b.pond.order().device_waits()), (1, waits));
    b.finish();
}
