//! Blocks in ranges that were mapped for blocks with other ends, beside all that may happen to a block: sleep, checkpoints,
//! captures, exports, trims, the end of streams, and calls of the device that fail. The device has holes of granules and of
//! halves, and few sizes come again and again, whose ends differ.

use super::capture::Graphs;
use super::random::Random;
use super::*;

const UNIT: u64 = G / 128;

impl Bench {
    /// Whether the block lies in a range with other ends than the block had for which it was mapped.
    fn is_refitted(&self, i: usize) -> bool {
        self.pond.ground().aliases().is_refitted((self.live[i].offset / G) as u32)
    }

    fn free_offset(&mut self, offset: u64) {
        let i = self.live.iter().position(|x| x.offset == offset).unwrap();
        self.free(i, None);
    }

    /// Frees the nth scattered block, as far as there are any.
    pub(super) fn free_scattered(&mut self, nth: usize) {
        let window = u64::from(self.pond.ground().memory_granules()) * G;
        let all: Vec<usize> = (0..self.live.len()).filter(|&i| self.live[i].offset >= window).collect();
        if !all.is_empty() {
            self.free(all[nth % all.len()], None);
        }
    }

    /// Others use the nth block until stream 9 has done what is queued there.
    pub(super) fn export(&mut self, nth: usize) {
        let Some(i) = nth.checked_rem(self.live.len()) else { return };
        let b = &mut self.live[i];
        if self.pond.sleep().is_on(b.pool) || !self.world.lock().unwrap().recording.is_empty() {
            return;
        }
        let behind = {
            let mut w = self.world.lock().unwrap();
            let work = w.streams.entry(9).or_default();
            work.queued += 1;
            b.ended.push((9, work.queued));
            w.behind(b.offset, b.room)
        };
        // They are told its granules, in the order of its addresses, where the device maps.
        let told = self.pond.exports().pieces(b.offset).unwrap();
        assert_eq!(told.bytes, b.bytes);
        if self.pond.ground().config.mapping {
            assert_eq!(told.skip, b.offset % G);
            let told: Vec<u64> = told.granules.iter().flat_map(|run| run.granules()).map(u64::from).collect();
            let mut known: Vec<u64> = behind.iter().map(|r| r.0 / G).collect();
            known.truncate(told.len());
            assert_eq!(told, known, "{} B at {:#x}", b.bytes, b.offset);
        }
        let point = self.pond.ground().backing.mark(9, true).unwrap().unwrap();
        self.pond.exports().add(b.offset, point).unwrap();
    }

    /// Whether others use blocks.
    pub(super) fn any_exported(&self) -> bool {
        let all = self.pond.exports().all(None);
        all.live + all.freed > 0
    }
}

/// A device of which half is free, in holes of a granule or half of one.
fn with_holes(r: &mut Random) -> Bench {
    with_holes_and(r, |_, _| u64::MAX)
}

/// The same with so many descriptors, by how many blocks there are at first.
pub(super) fn with_holes_and(r: &mut Random, most_blocks: impl Fn(&mut Random, u64) -> u64) -> Bench {
    let (pins, plenty) = (6 + r.below(12), r.below(3) > 0);
    let granules = if plenty { 5 * pins } else { 2 * pins + r.below(4) };
    let most_pieces = [16_000, 40, 16][r.below(3) as usize];
    let most_blocks = most_blocks(r, pins);
    let mut b = Bench::new(Config { most_pieces, most_blocks, ..config(true, granules * G) });
    for _ in 0..2 * pins {
        let bytes = if r.below(3) == 0 { G / 2 } else { G };
        b.alloc(PoolId::DEFAULT, Some(0), bytes).unwrap();
    }
    let holes: Vec<u64> = b.live.iter().step_by(2).map(|x| x.offset).collect();
    holes.into_iter().for_each(|at| b.free_offset(at));
    b
}

pub(super) fn pick<T: Copy>(r: &mut Random, from: &[T]) -> T {
    from[r.below(from.len() as u64) as usize]
}

/// A program of so many operations.
pub(super) fn program(r: &mut Random, n: u64) -> Vec<Op> {
    let hard = r.below(3) > 0;
    let ends = [0, 1, 2, 3, 20, 40, 64, 100, 125, 126, 127];
    let mut sizes = Vec::new();
    for _ in 0..1 + r.below(2) {
        let whole = (1 + r.below(4)) * G;
        sizes.extend((0..3 + r.below(4)).map(|_| whole + pick(r, &ends) * UNIT));
    }
    let small: Vec<u64> = (0..3).map(|_| (10 + r.below(110)) * UNIT).collect();
    let (pools, streams) = (pick(r, &[1, 7, 8, 9]), pick(r, &[1, 8, 10]));
    let rare = 1 + r.below(10);
    let op = |r: &mut Random| {
        let big = |r: &mut Random| pick(r, &sizes) - r.below(2) * 100;
        let pool = |r: &mut Random| [0, 0, 0, 0, 0, 1, 1, 1, 2][r.below(pools) as usize];
        let stream = |r: &mut Random| [0, 0, 0, 0, 0, 0, 0, 0, 1, 2][r.below(streams) as usize];
        let at = |r: &mut Random| r.below(1000) as usize;
        let kinds = if r.below(rare) == 0 { 100 } else { 82 };
        match r.below(kinds) {
            0..36 => Op::Alloc { bytes: big(r), stream: stream(r), pool: pool(r) },
            36..43 => Op::Alloc { bytes: pick(r, &small), stream: stream(r), pool: pool(r) },
            43..75 => Op::FreeScattered { nth: at(r) },
            75..82 => Op::Free { at: at(r), on: None },
            82 => Op::Free { at: at(r), on: Some(r.below(3)) },
            83 => Op::Use { at: at(r), stream: r.below(3) },
            84 => Op::EndUse { at: at(r), stream: r.below(3), event: r.below(2) == 0 },
            85 => Op::Run { stream: r.below(3) },
            86 if hard => Op::Capture { stream: 1 + r.below(2) },
            87 => Op::EndCapture,
            88 => Op::Release,
            89 => Op::Checkpoint { pool: pool(r) },
            90 | 91 => Op::Restore { nth: at(r) },
            92 => Op::Sleep { save: r.below(2) == 0 },
            93 | 94 => Op::Wake,
            95 if r.below(4) == 0 => Op::EmptyCache,
            95 => Op::Trim { pool: None, keep: (12 + r.below(60)) * G },
            96 if r.below(3) == 0 => Op::EndStream { stream: r.below(3) },
            96 => Op::Resize { at: at(r), bytes: big(r) },
            97 if hard => Op::FailAlias(r.below(3) == 0),
            98 if hard && r.below(20) == 0 => Op::Tune(Tuning { max_split: 4 << 20, ..Tuning::default() }),
            99 if r.below(3) == 0 => Op::Export { at: at(r) },
            _ => Op::AllocUnordered { bytes: big(r) },
        }
    };
    (0..n).map(|_| op(r)).collect()
}

#[test]
fn random_programs_whose_ranges_serve_blocks_with_other_ends() {
    const PROGRAMS: usize = 32;
    let (mut refitted, programs) = (0, part_of(PROGRAMS));
    for seed in 1..=programs as u64 {
        let mut r = Random(seed * 1_000_003);
        let b = with_holes(&mut r);
        let n = 300 + r.below(600);
        let ops = program(&mut r, n);
        refitted += run_on(b, [false; 2], ops);
    }
    // Most programs have none, so a few say little.
    let enough = if programs < PROGRAMS { 0 } else { programs };
    assert!(refitted > enough, "{refitted} blocks");
}

/// The `nth` call of the device fails that the program makes. Whether it makes as many, and how many blocks were refitted
/// afterwards.
fn with_failure(seed: u64, nth: u32, full: bool) -> (bool, usize) {
    let mut r = Random(seed);
    let mut b = with_holes(&mut r);
    let pools = [PoolId::DEFAULT, b.pool(false), b.pool(false)];
    let [_, second, third] = pools;
    let n = 100 + r.below(100);
    let ops = program(&mut r, n);
    let (mut graphs, mut saved) = (Graphs::new(third), Vec::<Saved>::new());
    let world = b.world.clone();
    {
        let mut w = world.lock().unwrap();
        (w.fail_nth, w.fail_full) = (nth, full);
    }
    let fine = |e: Error| {
        let known = [Code::OutOfMemory, Code::NotPermitted, Code::Busy, Code::UnknownStream];
        let fails = e.code() == Code::Device && world.lock().unwrap().failed;
        assert!(known.contains(&e.code()) || fails, "{e}");
    };
    let mut before = None;
    for op in ops {
        // The model does not know what follows if these fail.
        let left = std::mem::take(&mut world.lock().unwrap().fail_nth);
        match op {
            Op::Capture { stream } if !b.pond.sleep().is_on(third) => graphs.begin(&mut b, stream),
            Op::EndCapture => graphs.end(&mut b),
            Op::Release => graphs.release(&mut b),
            _ => {}
        }
        world.lock().unwrap().fail_nth = left;
        match op {
            Op::Alloc { bytes, stream, pool } => {
                let served = if graphs.recording(stream) { third } else { pools[pool] };
                b.alloc_as(pools[pool], served, Some(stream), bytes).map_or_else(fine, |_| ());
            }
            Op::AllocUnordered { bytes } => {
                b.alloc(PoolId::DEFAULT, None, bytes).map_or_else(fine, |_| ());
            }
            Op::Free { at, on } if !b.live.is_empty() => {
                let at = at % b.live.len();
                b.free(at, on);
            }
            Op::FreeScattered { nth } => b.free_scattered(nth),
            Op::Run { stream } => {
                let mut w = world.lock().unwrap();
                let queued = w.streams.get(&stream).map_or(0, |s| s.queued);
                w.complete(stream, queued);
            }
            Op::Checkpoint { pool } => saved.push(b.checkpoint(pools[pool])),
            Op::Restore { nth } if !saved.is_empty() => {
                b.try_restore(&saved[nth % saved.len()]).unwrap_or_else(fine);
            }
            Op::Sleep { save } => b.pond.sleep().begin(second, save).unwrap_or_else(fine),
            Op::Wake => b.pond.sleep().wake(second).unwrap_or_else(fine),
            Op::EmptyCache => b.pond.empty_cache(None).unwrap_or_else(fine),
            Op::Trim { keep, .. } => b.pond.special().trim_to(None, keep).unwrap_or_else(fine),
            _ => {}
        }
        let left = std::mem::take(&mut world.lock().unwrap().fail_nth);
        if left == 0 {
            before.get_or_insert(b.refitted);
            b.check_walk(&pools);
        }
        b.pond.ground().check();
        graphs.check(&b);
        let s = b.pond.stats(None).unwrap();
        assert_eq!((s.requested.current, s.requested.peak), (b.requested, b.peak));
        assert_eq!(s.reserved.current, world.lock().unwrap().taken);
        let g = b.pond.ground().growing();
        assert_eq!(g.account.taken(0).device, g.account.reserved(), "nothing is claimed");
        assert!(!g.transits.has(None));
        drop(g);
        world.lock().unwrap().fail_nth = left;
    }
    world.lock().unwrap().fail_nth = 0;
    graphs.finish(&mut b);
    while b.pond.sleep().is_on(second) {
        match b.live.iter().position(|x| x.pool != second) {
            Some(i) => b.free(i, None),
            None => b.pond.sleep().wake(second).unwrap(),
        }
    }
    let after = b.refitted - before.unwrap_or(b.refitted);
    b.finish();
    (before.is_some(), after)
}

#[test]
fn each_call_of_the_device_fails_once() {
    // Programs that make few calls, and often have such blocks.
    let mut refitted = 0;
    for seed in [26, 56] {
        for full in [false, true] {
            for nth in 1.. {
                let (came, n) = with_failure(seed * 1_000_003, nth, full);
                refitted += n;
                if !came {
                    break;
                }
            }
        }
    }
    assert!(refitted > 300, "{refitted} blocks");
}

/// A range of two granules serves blocks that have from a few units to all that is free of the first, and of the last.
#[test]
fn only_the_block_that_is_in_a_range_now_is_known_there() {
    let mut b = Bench::new(config(true, 40 * G));
    let p = b.pool(false);
    // The end of granule 0 is free, and the start of granule 2.
    for units in [28, 100, 128, 123, 5] {
        b.alloc(p, Some(0), units * UNIT).unwrap();
    }
    b.free_offset(28 * UNIT);
    b.free_offset(2 * G);
    let code = |r: Result<()>| r.unwrap_err().code();
    let mut begun = BTreeSet::new();
    let mut range = None;
    let rounds = [(7, 150), (30, 130), (40, 183), (50, 131), (60, 163), (70, 140), (7, 150)];
    for (nth, (beside, units)) in rounds.into_iter().enumerate() {
        // Another one takes a part of the first granule.
        let beside = b.alloc(p, Some(0), beside * UNIT).unwrap();
        let beside = b.live[beside].offset;
        assert!(beside < G);
        // To the byte, and one less.
        let bytes = units * UNIT - nth as u64 % 2;
        let i = b.alloc(p, Some(0), bytes).unwrap();
        let at = b.live[i].offset;
        assert_eq!((at / G, b.live[i].ranges.len()), (*range.get_or_insert(at / G), 2), "{units} units");
        assert_eq!(b.is_refitted(i), nth > 0 && units != 150, "{units} units");
        for inside in [0, 1, UNIT, bytes / 2, bytes - 1] {
            assert_eq!(b.pond.block(at + inside).unwrap().base, at, "{inside} bytes into {units} units");
        }
        let end = at + units * UNIT;
        for outside in [at - 1, end] {
            assert_eq!(b.pond.block(outside).unwrap_err().code(), Code::UnknownPointer, "{units} units");
        }
        begun.insert(at);
        for &other in begun.iter().chain(&[at + 1, at - UNIT, end - UNIT, end]).filter(|&&x| x != at) {
            assert_eq!(code(b.pond.free(other, None, None)), Code::UnknownPointer, "{units} units");
            assert_eq!(code(b.pond.record_stream(other, 2)), Code::UnknownPointer, "{units} units");
        }
        assert_eq!(code(b.pond.free(at, None, Some(bytes + 1))), Code::WrongSize);
        b.check_walk(&[PoolId::DEFAULT, p]);
        b.export(i);
        b.world.lock().unwrap().complete(9, u64::MAX);
        assert!(!b.any_exported());
        // It comes back to where it was, after another one that begins or ends elsewhere.
        let saved = b.checkpoint(p);
        b.free(i, None);
        let i = b.alloc(p, Some(0), bytes - UNIT).unwrap();
        assert_eq!(b.live[i].offset / G, at / G);
        b.free(i, None);
        b.try_restore(&saved).unwrap();
        b.pond.checkpoints().destroy(saved.id).unwrap();
        assert_eq!(b.pond.block(at + bytes - 1).unwrap().base, at, "{units} units");
        b.check_walk(&[PoolId::DEFAULT, p]);
        b.free_offset(at);
        assert_eq!(code(b.pond.free(at, None, None)), Code::DoubleFree, "{units} units");
        b.free_offset(beside);
        b.pond.ground().check();
    }
    assert_eq!(begun.len(), 6, "{begun:?}");
    b.finish();
}

/// A program whose block is made of other pieces each time: of the granule in which it begins, a small block takes a part
/// that is never the same. When the device has given what was missing, all begins anew.
#[test]
fn where_memory_is_scarce_ends_differ_only_for_a_warm_size() {
    let mut b = Bench::new(config(true, 9 * G));
    let p = PoolId::DEFAULT;
    // Granule 0 has its first half free; of the others every other one is.
    for bytes in [G / 2, G / 2, G, G, G, G, G, G] {
        b.alloc(p, Some(0), bytes).unwrap();
    }
    b.free(0, None);
    for granule in [2, 4, 6] {
        b.free_at(granule);
    }
    let mut mapped = Vec::new();
    for round in 0..36 {
        if round == 20 {
            b.alloc(p, Some(0), 2 * G).unwrap(); // of the device: it may go on otherwise
        }
        let small = b.alloc(p, Some(0), (65 + round) * UNIT).unwrap();
        let small = b.live[small].offset;
        let calls = b.world.lock().unwrap().calls;
        let i = b.alloc(p, Some(0), 2 * G + 90 * UNIT).unwrap();
        mapped.push((b.world.lock().unwrap().calls > calls, b.is_refitted(i)));
        b.free(i, None);
        b.free_offset(small);
    }
    for (round, is) in mapped.iter().enumerate() {
        let warm = (16..20).contains(&round);
        assert_eq!(is, &(!warm, warm), "in round {round} of {mapped:?}");
    }
    b.finish();
}

/// A size that keeps being mapped gets memory in one piece: while that is no more than 1/80 of the peak after eight times, and
/// no more than 1/40 after 16; and where memory is plentiful no more than 1/8 after 128.
#[test]
fn a_size_that_keeps_being_mapped_gets_memory_in_one_piece() {
    let cases = [(160, 20, Some(16)), (400, 20, Some(8)), (100, 20, None), (100, 300, Some(128))];
    for (granules, more, times) in cases {
        let mut b = Bench::new(config(true, (granules + more) * G));
        let p = PoolId::DEFAULT;
        for _ in 0..granules {
            b.alloc(p, Some(0), G).unwrap();
        }
        for granule in (0..80).step_by(2) {
            b.free_at(granule);
        }
        let mut r = Random(7);
        let (mut mapped, mut grown, mut held) = (0, None, Vec::new());
        for _ in 0..times.unwrap_or(200) + 200 {
            let (calls, reserved) = {
                let w = b.world.lock().unwrap();
                (w.calls, w.taken)
            };
            let i = b.alloc(p, Some(0), 3 * G).unwrap();
            let at = b.live[i].offset;
            if b.world.lock().unwrap().taken > reserved {
                grown = Some(mapped);
                break;
            }
            mapped += u32::from(b.world.lock().unwrap().calls > calls);
            // Others of the holes are free in the next round.
            b.free_offset(at);
            while held.len() < 40 {
                let i = b.alloc(p, Some(0), G).unwrap();
                held.push(b.live[i].offset);
            }
            for _ in 0..12 {
                let at = held.swap_remove(r.below(held.len() as u64) as usize);
                b.free_offset(at);
            }
        }
        assert_eq!(grown, times, "of {granules} granules");
        assert!(mapped >= times.unwrap_or(30));
        b.finish();
    }
}
