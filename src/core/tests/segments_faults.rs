//! Every device call fails once, on devices in segments: random programs are run again and again up to an operation in which
//! the first, the second, ... call of the device fails. Whatever fails, the books are right, nothing is handed out too early,
//! a request that failed succeeds once the device works, and in the end all memory is one block's.

use super::capture::Graphs;
use super::random::Random;
use super::segments::{free_in_two_heaps, reserved};
use super::*;

const MIB: u64 = 1 << 20;
const ALL: u64 = 64 * MIB;

#[derive(Clone, Debug)]
enum Op {
    Alloc { pool: usize, stream: Option<u64>, bytes: u64 },
    Free { at: usize, on: Option<u64> },
    Use { at: usize, stream: u64 },
    EndUse { at: usize, stream: u64, event: bool },
    Run(u64),
    Capture(u64),
    EndCapture,
    Release,
    EndStream(u64),
    NewPool,
    Trim(Option<usize>, u64),
    Limit(u64),
    PoolLimit(usize, u64),
    Collect(u64),
}

impl Random {
    fn size(&mut self) -> u64 {
        match self.below(8) {
            0 => 1 + self.below(60 << 10),
            1 => 1 + self.below(MIB),
            2 => (1 + self.below(32)) * 2 * MIB,
            _ => (1 + self.below(120)) * MIB / 4 + self.below(3),
        }
    }

    fn op(&mut self) -> Op {
        let some = |r: &mut Random| (r.below(6) > 0).then(|| r.below(3));
        match self.below(42) {
            0..14 => Op::Alloc { pool: self.below(4) as usize, stream: some(self), bytes: self.size() },
            14..24 => Op::Free {
                at: self.below(100) as usize,
                on: if self.below(5) > 0 { None } else { some(self) },
            },
            24 => Op::Use { at: self.below(100) as usize, stream: self.below(3) },
            25 => {
                Op::EndUse { at: self.below(100) as usize, stream: self.below(3), event: self.below(2) > 0 }
            }
            26..28 => Op::Run(self.below(3)),
            28 => Op::Capture(1 + self.below(2)),
            29..31 => Op::EndCapture,
            31..33 => Op::Release,
            33 => Op::EndStream(1 + self.below(2)),
            34 => Op::NewPool,
            35..37 => Op::Trim(
                (self.below(3) > 0).then(|| self.below(4) as usize),
                self.below(2) * self.below(48) * MIB,
            ),
            37..39 => Op::Limit([0, 0, 30, 44, 60][self.below(5) as usize] * MIB + self.below(2) * 8192),
            39..41 => Op::PoolLimit(self.below(4) as usize, [0, 0, 12, 24, 40][self.below(5) as usize] * MIB),
            _ => Op::Collect([0, 1, 20 * MIB, 40 * MIB][self.below(4) as usize]),
        }
    }
}

/// How a call fails.
#[derive(Clone, Copy, Debug)]
struct Way {
    full: bool,
    on: bool,
}

const WAYS: [Way; 3] =
    [Way { full: false, on: false }, Way { full: true, on: false }, Way { full: false, on: true }];

struct Player {
    b: Bench,
    pools: Vec<PoolId>,
    graphs: Graphs,
}

impl Player {
    fn new(seed: u64) -> Player {
        let growing = !seed.is_multiple_of(3);
        let init_alloc = [8, 16, 24][seed as usize / 3 % 3] * MIB;
        let max_chunk = if seed % 5 == 4 { 10 * MIB } else { ALL };
        let sizes = Config { init_alloc, realloc: 8 * MIB, max_chunk, ..config(false, ALL) };
        let b = Bench::new(Config { growing, ..sizes });
        b.world.lock().unwrap().is_impatient = true;
        if seed % 7 == 6 {
            b.world.lock().unwrap().capacity = 48 * MIB; // less than it says
        }
        let pools: Vec<PoolId> = [PoolId::DEFAULT]
            .into_iter()
            .chain((0..3).map(|_| b.pond.pool_create(0, false).unwrap()))
            .collect();
        let graphs = Graphs::new(pools[2]);
        Player { b, pools, graphs }
    }

    /// Does it; `Err` if the pond said so.
    fn play(&mut self, op: &Op) -> Result<()> {
        let Player { b, pools, graphs, .. } = self;
        match *op {
            Op::Alloc { pool, stream, bytes } => {
                let served = if stream.is_some_and(|s| graphs.recording(s)) { pools[2] } else { pools[pool] };
                b.alloc_as(pools[pool], served, stream, bytes).map(|_| ())
            }
            Op::Free { at, on } if !b.live.is_empty() => {
                let at = at % b.live.len();
                b.try_free(at, on)
            }
            Op::Use { at, stream } if !b.live.is_empty() => {
                let at = at % b.live.len();
                b.pond.record_stream(b.live[at].offset, stream)?;
                if b.live[at].stream != Some(stream) || b.live[at].past.is_some() {
                    b.live[at].uses.push(stream);
                }
                Ok(())
            }
            Op::EndUse { at, stream, event } if !b.live.is_empty() && !faulty(b) => {
                let at = at % b.live.len();
                b.end_use(at, stream, event);
                Ok(())
            }
            Op::Run(stream) => {
                let mut w = b.world.lock().unwrap();
                let q = w.streams.get(&stream).map_or(0, |s| s.queued);
                w.complete(stream, q);
                Ok(())
            }
            Op::Capture(stream) if !faulty(b) => {
                graphs.begin(b, stream);
                Ok(())
            }
            Op::EndCapture => {
                graphs.end(b);
                Ok(())
            }
            Op::Release => {
                graphs.release(b);
                Ok(())
            }
            Op::EndStream(stream) if !graphs.recording(stream) => {
                b.end_stream(stream);
                Ok(())
            }
            Op::NewPool => {
                let old = pools[3];
                if b.live.iter().any(|x| x.pool == old) {
                    return Ok(());
                }
                b.pond.pool_destroy(old)?;
                pools[3] = b.pond.pool_create(0, false)?;
                Ok(())
            }
            Op::Trim(pool, keep) => b.pond.special().trim_to(pool.map(|p| pools[p]), keep),
            Op::Limit(n) => {
                b.pond.set_limit(n);
                Ok(())
            }
            Op::PoolLimit(p, n) => b.pond.pool_set_limit(pools[p], n),
            Op::Collect(n) => {
                b.pond.tune(Tuning { collect_above: n, ..Tuning::default() });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The books are right.
    fn check(&mut self) {
        let b = &self.b;
        b.world.lock().unwrap().is_impatient = false; // so that nothing ends between two questions
        b.pond.ground().check();
        self.graphs.check(b);
        let s = b.pond.stats(None).unwrap();
        assert_eq!((s.requested.current, s.requested.peak), (b.requested, b.peak));
        assert_eq!(s.reserved.current, b.world.lock().unwrap().taken);
        let mut all = self.pools.clone();
        all.sort_unstable();
        let of = |p: &PoolId| b.pond.stats(Some(*p)).unwrap();
        assert_eq!(all.iter().map(|p| of(p).allocated.current).sum::<u64>(), s.allocated.current);
        assert_eq!(all.iter().map(|p| of(p).active.current).sum::<u64>(), s.active.current);
        b.check_walk(&self.pools);
        let g = b.pond.ground().growing();
        assert_eq!(g.account.taken(0).device, g.account.reserved(), "nothing is claimed");
        for &p in &self.pools {
            assert_eq!(g.account.taken(p.0).pool, g.account.of(p.0).reserved.current, "nothing is claimed");
        }
        assert!(!g.transits.has(None), "nothing is in transit");
        drop(g);
        b.world.lock().unwrap().is_impatient = true;
    }

    /// What fails heals.
    fn heal(&self) -> bool {
        let mut w = self.b.world.lock().unwrap();
        w.fail_nth = 0;
        w.fail_on = false;
        std::mem::take(&mut w.failed)
    }

    /// In the end all memory is there for one block.
    fn finish(mut self) {
        self.graphs.finish(&mut self.b);
        let mut b = self.b;
        b.pond.set_limit(0);
        b.pond.tune(Tuning::default());
        for &p in &self.pools {
            b.pond.pool_set_limit(p, 0).unwrap();
        }
        while !b.live.is_empty() {
            b.free(0, None);
        }
        let most = b.world.lock().unwrap().capacity;
        for (stream, pool) in [(0, 0), (5, 1)] {
            let i = b.alloc(self.pools[pool], Some(stream), most).expect("nothing is in use");
            b.free(i, None);
        }
        b.finish();
    }
}

fn faulty(b: &Bench) -> bool {
    let w = b.world.lock().unwrap();
    w.fail_nth > 0 || w.failed
}

impl Bench {
    /// As `free`; if the device refuses to take the block back, it stays.
    fn try_free(&mut self, i: usize, on: Option<u64>) -> Result<()> {
        let was = self.live[i].clone();
        let offset = self.leave(i, on);
        if let Err(e) = self.pond.free(offset, on, None) {
            self.taken.extend(was.ranges.iter().map(|&(a, n)| (a, a + n)));
            self.requested += was.bytes;
            self.live.push(was);
            return Err(e);
        }
        self.dirty.retain(|d| !self.world.lock().unwrap().passed(d.2, d.3));
        Ok(())
    }
}

/// Plays all of it, and the last one with the `nth` call failing. Returns whether that came about, and what it said.
fn run(seed: u64, ops: &[Op], fault: Option<(u32, Way)>, right: bool) -> (bool, Result<()>) {
    let mut p = Player::new(seed);
    let (last, before) = ops.split_last().unwrap();
    for op in before {
        _ = p.play(op);
    }
    if let Some((nth, way)) = fault {
        let mut w = p.b.world.lock().unwrap();
        (w.fail_nth, w.fail_full, w.fail_on) = (nth, way.full, way.on);
    }
    let said = p.play(last);
    let failed = p.heal();
    p.check();
    if right && said.is_err() {
        p.play(last).unwrap_or_else(|e| panic!("it fails once the device is well again: {e}"));
        p.check();
    }
    p.finish();
    (failed, said)
}

#[test]
fn each_call_fails_once() {
    for seed in 1..=part_of(24) as u64 {
        let mut r = Random(seed * 7919 + 1);
        let ops: Vec<Op> = (0..60).map(|_| r.op()).collect();
        // Memory is short only after some of them. An end of a use cannot fail here.
        let may_fail = |op: &Op| {
            !matches!(op, Op::EndUse { .. } | Op::Run(_) | Op::Limit(_) | Op::PoolLimit(..) | Op::Collect(_))
        };
        let tried = (20..=ops.len()).filter(|n| n % 4 == seed as usize % 4 && may_fail(&ops[n - 1]));
        for n in tried {
            let ops = &ops[..n];
            let (_, said) = run(seed, ops, None, false);
            for way in WAYS {
                for nth in 1.. {
                    let what = format!("seed {seed}, {n} operations, call {nth} {way:?}: {:?}", ops[n - 1]);
                    let done = std::panic::catch_unwind(|| run(seed, ops, Some((nth, way)), said.is_ok()));
                    let Ok((failed, _)) = done else { panic!("{what}") };
                    if !failed || nth > 60 {
                        break;
                    }
                }
            }
        }
    }
}

/// Where the device takes nothing back, adjacent free memory of two heaps serves all the same.
#[test]
fn what_two_heaps_have_side_by_side_serves_where_nothing_can_go_back() {
    for growing in [true, false] {
        let sizes = Config { init_alloc: 40 * MIB, realloc: 40 * MIB, ..config(false, 1024 * MIB) };
        let mut b = Bench::new(Config { growing, ..sizes });
        free_in_two_heaps(&mut b);
        b.world.lock().unwrap().fail_release = true;
        let got = b.alloc(PoolId::DEFAULT, Some(0), 40 * MIB);
        got.unwrap_or_else(|e| panic!("nothing is in use; growing: {growing}: {e}"));
        b.world.lock().unwrap().fail_release = false;
        b.finish();
    }
}

/// What went back before the device refused to take more makes room for a segment of its own.
#[test]
fn a_segment_of_its_own_is_taken_where_only_a_part_could_go_back() {
    for growing in [true, false] {
        for nth in 1..8 {
            let sizes = Config { init_alloc: 16 * MIB, realloc: 16 * MIB, ..config(false, 64 * MIB) };
            let mut b = Bench::new(Config { growing, max_chunk: 15 * MIB, ..sizes });
            for _ in 0..4 {
                b.alloc(PoolId::DEFAULT, Some(0), 15 * MIB).unwrap();
            }
            b.free(0, None);
            b.free(0, None);
            let before = reserved(&b);
            b.world.lock().unwrap().fail_nth = nth;
            let got = b.alloc(PoolId::DEFAULT, Some(0), 16 * MIB);
            b.world.lock().unwrap().fail_nth = 0;
            let room = reserved(&b) < before && b.world.lock().unwrap().failed_in != "segment";
            assert!(got.is_ok() || !room, "growing {growing}, call {nth}: {:?}", got.err());
            b.finish();
        }
    }
}

/// A freed block that was a segment of its own and that the device does not take back serves nobody. Who asks for memory
/// is told that there is none, however often the device refuses.
#[test]
fn a_segment_that_cannot_go_back_is_not_waited_for() {
    for growing in [true, false] {
        for bytes in [MIB, 10 * MIB, 20 * MIB] {
            let sizes = Config { growing, max_chunk: 16 * MIB, ..config(false, 64 * MIB) };
            let mut b = Bench::new(sizes);
            let i = b.alloc(PoolId::DEFAULT, Some(0), 30 * MIB).unwrap();
            b.alloc(PoolId::DEFAULT, Some(0), 34 * MIB).unwrap();
            b.pond.record_stream(b.live[i].offset, 1).unwrap();
            b.live[i].uses.push(1);
            b.free(i, None);
            b.world.lock().unwrap().fail_release = true;
            b.world.lock().unwrap().complete(1, u64::MAX);
            b.world.lock().unwrap().complete(0, u64::MAX);
            let (tell, told) = std::sync::mpsc::channel();
            let asking = std::thread::spawn(move || {
                let said = b.alloc(PoolId::DEFAULT, Some(2), bytes).map(drop);
                _ = tell.send(said);
                b
            });
            let said = told.recv_timeout(std::time::Duration::from_secs(10)).expect("the request comes back");
            said.expect_err("there is no memory");
            let b = asking.join().unwrap();
            b.world.lock().unwrap().fail_release = false;
            b.finish();
        }
    }
}
