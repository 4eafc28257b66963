//! Makes random programs from a seed. It keeps track of the slots in use, so that most operations have something to do.
//! If an operation fails, this is wrong for a while, which does no harm.

use super::program::*;

/// A small generator of numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// What a kind of device wants of its programs.
#[derive(Clone, Copy, Default)]
pub struct Taste {
    pub cuda: bool,
    /// Parts of them come many times.
    pub repeats: bool,
    /// Blocks are small, as the device is.
    pub small: bool,
}

/// What a program leans to, so that not all are alike.
struct Bent {
    weights: Vec<u64>,
    sizes: u64,
    /// [2 MiB] the largest.
    most: u64,
    blocks: u64,
    streams: u64,
    /// Of four operations, so many go on with what the last ones were about.
    constant: u64,
}

/// Things that meddle with each other, by the first operation of each.
const THEMES: &[&[What]] = &[
    &[What::During, What::StreamEnd, What::EmptyCache, What::AllocAny],
    &[What::CaptureBegin, What::Sleep, What::EmptyCache],
    &[What::CaptureBegin, What::During, What::EmptyCache, What::StreamEnd],
    &[What::PoolNew, What::Sleep, What::Fail, What::EmptyCache],
    &[What::CheckpointNew, What::Sleep, What::During],
];

fn bend(r: &mut Random, taste: Taste) -> Bent {
    let mut weights: Vec<u64> = ALL.iter().map(|row| row.2).collect();
    let own = ALL.len() - OF_CUDA;
    let at = |what: What| ALL.iter().position(|row| row.0 == what).unwrap();
    // Most programs do without some features; some have much of one.
    let groups: &[&[What]] = &[
        &[What::CaptureBegin, What::CaptureEnd, What::Replay, What::ReplayOn, What::CaptureRelease],
        &[What::CheckpointNew, What::Restore],
        &[What::Sleep, What::Wake],
        &[What::Fail, What::Mend],
        &[What::During],
        &[What::Limit, What::PoolLimit],
        &[What::SetOption],
        &[What::PoolNew, What::PoolEnd, What::PoolRelease],
        &[What::ScopeBegin, What::ScopeEnd],
        &[What::Record, What::RecordEnd, What::RecordEndAt, What::EventRecord],
        &[What::Callback],
        &[What::StreamEnd, What::StreamNew],
        &[What::AllocAny],
        &[What::Step],
        &[What::EmptyCache, What::EmptyPool, What::TrimTo],
        &[What::Slow],
        &[What::Warm],
        &[What::History],
    ];
    let groups_of_cuda: &[&[What]] = &[
        &[What::Elsewhere],
        &[What::Foreign],
        &[What::ThreadStream],
        &[What::Vanish],
        &[What::AllocHost, What::Copy],
        &[What::Export, What::ExportEnd],
    ];
    let more = if taste.cuda { groups_of_cuda } else { &[] };
    let all: Vec<_> = groups.iter().chain(more).collect();
    // Some are about two to four things, and nothing else; of those, some about things that meddle with each other.
    let narrow = r.below(2) == 0;
    let theme = Some(THEMES[r.below(THEMES.len() as u64) as usize]).filter(|_| r.below(3) == 0);
    let about: Vec<u64> = (0..2 + r.below(3)).map(|_| r.below(all.len() as u64)).collect();
    for (n, group) in all.iter().enumerate() {
        let is_about = theme.map_or(about.contains(&(n as u64)), |theme| theme.contains(&group[0]));
        let by = match narrow {
            // Whatever is to meddle is not to be emptied away first.
            true if theme.is_some() && group[0] == What::EmptyCache => 4 * u64::from(is_about),
            true => 24 * u64::from(is_about),
            false => [0, 0, 2, 4, 4, 12][r.below(6) as usize],
        };
        group.iter().for_each(|&w| weights[at(w)] = weights[at(w)] * by / 4);
    }
    if !taste.cuda {
        weights[own..].fill(0);
    }
    if !taste.repeats {
        weights[at(What::Repeat)] = 0;
    }
    weights[at(What::StreamNew)] = weights[at(What::StreamNew)].max(60);
    weights[at(What::PoolNew)] = weights[at(What::PoolNew)].max(60);
    weights[at(What::Step)] = weights[at(What::Step)].max(20);
    let (blocks, streams) = (3 + r.below(BLOCKS - 2), 2 + r.below(STREAMS - 1));
    let most = if taste.small { 3 } else { 6 };
    let (mut sizes, mut streams) = (r.below(4), streams);
    if narrow && theme.is_some_and(|theme| theme.contains(&What::Sleep)) {
        sizes = 2; // what sleeps is granules
        weights[at(What::CaptureEnd)] *= 4; // nothing sleeps before
        streams = 1 + r.below(2); // of whose granules blocks are scattered
    }
    if taste.repeats {
        // Whole granules in few heaps, each of which has some numbers at hand.
        (sizes, streams, weights[at(What::PoolNew)]) = (2, 1 + r.below(2), 0);
    }
    Bent { weights, sizes, most, blocks, streams, constant: r.below(4) }
}

fn bytes(r: &mut Random, sizes: u64, most: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    let class = if r.below(4) == 0 { r.below(4) } else { sizes };
    match class {
        0 => 1 + r.below(2048),
        1 => 1 + r.below(600 << 10),
        2 => 2 * MIB * (1 + r.below(most)) - r.below(3) * 512 * r.below(2),
        _ => 1 + r.below(2 * most * MIB),
    }
}

/// What programs often do in a row, with one thing.
const HABITS: &[&[What]] = &[
    &[What::CaptureBegin, What::Alloc, What::Use, What::Free, What::CaptureEnd],
    &[What::CaptureBegin, What::Alloc, What::Use, What::CaptureEnd, What::ReplayOn],
    &[What::CaptureBegin, What::CaptureEnd],
    &[What::Alloc, What::Alloc, What::Alloc, What::Free],
    &[What::Alloc, What::Use, What::Free],
    &[What::Use, What::Free],
    &[What::Use, What::StreamEnd],
    &[What::CheckpointNew, What::Use, What::Free],
    &[What::Use, What::StreamEnd, What::Free],
    &[What::Free, What::Alloc],
    &[What::Free, What::AllocAny],
    &[What::Warm, What::Alloc, What::Use, What::Free],
    &[What::History, What::Warm, What::Free, What::History],
    &[What::Sleep, What::Free],
    &[What::Sleep, What::Free, What::EmptyCache, What::Wake],
    &[What::Sleep, What::Free, What::CaptureRelease, What::EmptyCache, What::Wake],
    &[What::CaptureRelease, What::EmptyCache],
    &[What::PoolNew, What::Alloc, What::CaptureBegin, What::CaptureEnd],
];

/// What waits for the device, once or more often.
const WAITERS: &[What] = &[
    What::EmptyCache,
    What::EmptyPool,
    What::TrimTo,
    What::PoolEnd,
    What::CaptureRelease,
    What::Sleep,
    What::Wake,
    What::Restore,
    What::AllocAny,
];

/// The wait for the device, among the calls.
const SYNC: u64 = 3;

/// What calls the device, more often than not.
const CALLERS: &[What] = &[
    What::EmptyCache,
    What::EmptyPool,
    What::TrimTo,
    What::Alloc,
    What::AllocAny,
    What::FreeOn,
    What::Free,
    What::PoolEnd,
    What::CaptureRelease,
    What::Sleep,
    What::Wake,
    What::Restore,
    What::StreamEnd,
    What::StreamNew,
];

/// What is in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Empty,
    Taken,
    /// Of a capture: it records.
    Recording,
    /// Of a pool.
    Asleep,
}

/// The slots of one sort, the one that was named last, and which pool and stream each has.
struct Slots(Vec<Slot>, usize, Vec<(usize, usize)>);

impl Slots {
    fn new(count: u64, first: Slot) -> Slots {
        let mut all = vec![Slot::Empty; count as usize];
        all[0] = first;
        let homes = vec![(0, 0); all.len()];
        Slots(all, 0, homes)
    }

    /// A slot in one of these states, if there is any; with `again` the one that was named last, if it is.
    fn find(&self, r: &mut Random, wanted: &[Slot], again: bool) -> Option<u64> {
        if again && wanted.contains(&self.0[self.1]) {
            return Some(self.1 as u64);
        }
        let all: Vec<usize> = (0..self.0.len()).filter(|&i| wanted.contains(&self.0[i])).collect();
        (!all.is_empty()).then(|| all[r.below(all.len() as u64) as usize] as u64)
    }
}

/// All of a program's slots, as far as they are known.
struct Account {
    blocks: Slots,
    streams: Slots,
    pools: Slots,
    events: Slots,
    captures: Slots,
    checkpoints: Slots,
    /// What the last request was for.
    bytes: u64,
}

impl Account {
    fn of(&mut self, arg: Arg) -> Option<&mut Slots> {
        Some(match arg {
            Arg::Block => &mut self.blocks,
            Arg::Stream => &mut self.streams,
            Arg::Pool => &mut self.pools,
            Arg::Event => &mut self.events,
            Arg::Capture => &mut self.captures,
            Arg::Checkpoint => &mut self.checkpoints,
            _ => return None,
        })
    }

    /// What an operation needs of a slot that it names, and what becomes of it.
    fn rule(what: What, arg: Arg) -> (&'static [Slot], Option<Slot>) {
        use Slot::{Asleep, Empty, Recording, Taken};
        match (what, arg) {
            (What::Warm, Arg::Block) => (&[Empty], None),
            (What::Alloc | What::AllocAny | What::AllocHost, Arg::Block)
            | (What::StreamNew | What::Foreign | What::ThreadStream, Arg::Stream)
            | (What::PoolNew, Arg::Pool)
            | (What::EventNew, Arg::Event)
            | (What::CheckpointNew, Arg::Checkpoint) => (&[Empty], Some(Taken)),
            (What::CaptureBegin, Arg::Capture) => (&[Empty], Some(Recording)),
            (What::CaptureEnd, Arg::Capture) => (&[Recording], Some(Taken)),
            (What::CaptureRelease, Arg::Capture) => (&[Taken, Taken, Recording], Some(Empty)),
            (What::Free | What::FreeOn | What::FreeTwice, Arg::Block)
            | (What::StreamEnd | What::Vanish, Arg::Stream)
            | (What::EventEnd, Arg::Event)
            | (What::CheckpointEnd, Arg::Checkpoint) => (&[Taken], Some(Empty)),
            (What::PoolEnd | What::PoolRelease, Arg::Pool) => (&[Taken, Asleep], Some(Empty)),
            (What::Sleep, Arg::Pool) => (&[Taken], Some(Asleep)),
            (What::Wake, Arg::Pool) => (&[Asleep], Some(Taken)),
            (What::Restore | What::EmptyPool | What::CheckpointNew, Arg::Pool) => (&[Taken, Asleep], None),
            (What::Callback, Arg::Block) => (&[Empty, Taken], None),
            _ => (&[Taken], None),
        }
    }

    /// An operation with numbers; `None` where it would have nothing to do.
    fn draw(
        &mut self,
        r: &mut Random,
        bent: &Bent,
        row: &(What, &str, u64, &[Arg]),
        habit: bool,
    ) -> Option<Op> {
        let what = row.0;
        let sloppy = r.below(16) == 0;
        let again = habit || r.below(4) < bent.constant;
        let mut n = [0; 5];
        let mut n_before = u64::MAX;
        for (n, &arg) in n.iter_mut().zip(row.3) {
            *n = match arg {
                Arg::Block | Arg::Stream | Arg::Pool | Arg::Event | Arg::Capture | Arg::Checkpoint => {
                    let slots = self.of(arg).unwrap();
                    let again = again && (habit || r.below(3) > 0);
                    let known = slots.find(r, Account::rule(what, arg).0, again);
                    match known {
                        Some(slot) if !sloppy => slot,
                        None if !sloppy => return None,
                        _ => r.below(slots.0.len() as u64),
                    }
                }
                Arg::Line => r.below(16),
                // As a rule of the size of another one, where it is about the same thing.
                Arg::Bytes if again && self.bytes > 0 && r.below(3) == 0 => self.bytes,
                Arg::Bytes => bytes(r, bent.sizes, bent.most),
                Arg::Limit => [0, 4, 8, 16, 32][r.below(5) as usize] << 20,
                Arg::Option => r.below(OPTIONS.len() as u64),
                // To keep what sleeps takes long.
                Arg::Flag if what == What::Sleep => u64::from(r.below(4) == 0),
                Arg::Flag => u64::from(r.below(4) > 0),
                Arg::Few if what == What::Repeat => 2 + r.below(10),
                // Device and call may see the beginning and the end of a wait, and some wait twice.
                Arg::Few if what == What::During && n_before == SYNC => {
                    [1, 2, 2, 3, 4, 4][r.below(6) as usize]
                }
                Arg::Few if n_before == CALLS.len() as u64 - 1 => {
                    let far = 1 + r.below(7);
                    1 + r.below(far)
                }
                Arg::Few => 1 + r.below(1 + r.0 % 4),
                Arg::Times => [3, 30, 300, 5000][r.below(4) as usize],
                // Any call, and further on: where it is held, or fails, depends on the operation.
                Arg::Call if what == What::During && r.below(4) == 0 => SYNC,
                Arg::Call if r.below(4) > 0 => CALLS.len() as u64 - 1,
                Arg::Call if r.below(2) > 0 => r.below(4), // those that ask, mark and wait
                Arg::Call => r.below(CALLS.len() as u64 - 1),
                Arg::Code => r.below(CODES.len() as u64),
            };
            n_before = if arg == Arg::Call { *n } else { u64::MAX };
        }
        for (&n, &arg) in n.iter().zip(row.3) {
            if arg == Arg::Bytes {
                self.bytes = n;
            }
            if let Some(slots) = self.of(arg) {
                slots.1 = n as usize;
                let fixed = n == 0 && matches!(arg, Arg::Stream | Arg::Pool);
                if let Some(now) = Account::rule(what, arg).1.filter(|&now| !fixed || now != Slot::Empty) {
                    slots.0[n as usize] = now;
                }
            }
        }
        self.go_on_with(what, n, row.3);
        Some(Op { what, n })
    }

    /// What comes next is as likely as not about the pool and the stream of the same block, capture or checkpoint.
    fn go_on_with(&mut self, what: What, n: [u64; 5], args: &[Arg]) {
        let home = (self.pools.1, self.streams.1);
        let makes = matches!(what, What::Alloc | What::CaptureBegin | What::CheckpointNew);
        let Some(&arg @ (Arg::Block | Arg::Capture | Arg::Checkpoint)) = args.first() else { return };
        let slots = self.of(arg).unwrap();
        if makes {
            slots.2[n[0] as usize] = home;
            return;
        }
        let (pool, stream) = slots.2[n[0] as usize];
        self.pools.1 = pool;
        if !args.contains(&Arg::Stream) {
            self.streams.1 = stream;
        }
    }
}

/// What comes many times: blocks come and go, and in the end it is mostly as before.
fn body(account: &mut Account, r: &mut Random, bent: &Bent) -> Program {
    let row = |what: What| ALL.iter().find(|row| row.0 == what).unwrap();
    let mut body = Program::new();
    let mut made = Vec::new();
    for _ in 0..2 + r.below(9) {
        let what = [What::Alloc, What::Alloc, What::Alloc, What::Free, What::Free, What::EmptyCache];
        let what = what[r.below(6) as usize];
        let Some(op) = account.draw(r, bent, row(what), false) else { continue };
        match op.what {
            What::Alloc => made.push(op.n[0]),
            What::Free => made.retain(|&b| b != op.n[0]),
            _ => {}
        }
        body.push(op);
    }
    for b in made.into_iter().filter(|_| r.below(8) > 0) {
        account.blocks.0[b as usize] = Slot::Empty;
        body.push(Op { what: What::Free, n: [b, 0, 0, 0, 0] });
    }
    body
}

/// A program of so many operations.
pub fn random(seed: u64, length: usize, taste: Taste) -> Program {
    let mut r = Random(seed);
    let bent = bend(&mut r, taste);
    let mut account = Account {
        blocks: Slots::new(bent.blocks, Slot::Empty),
        streams: Slots::new(bent.streams + 1, Slot::Taken),
        pools: Slots::new(POOLS, Slot::Taken),
        events: Slots::new(EVENTS, Slot::Empty),
        captures: Slots::new(CAPTURES, Slot::Empty),
        checkpoints: Slots::new(CHECKPOINTS, Slot::Empty),
        bytes: 0,
    };
    let draw = |account: &mut Account, r: &mut Random, weights: &[u64]| loop {
        let mut dart = r.below(weights.iter().sum());
        let row = ALL.iter().zip(weights).find(|(_, w)| {
            let hit = dart < **w;
            dart = dart.saturating_sub(**w);
            hit
        });
        if let Some(op) = account.draw(r, &bent, row.unwrap().0, false) {
            return op;
        }
    };
    let row = |what: What| ALL.iter().position(|row| row.0 == what).unwrap();
    // Now and then with another thing.
    let go_on = |account: &mut Account, r: &mut Random, what: What| {
        let same = r.below(8) > 0;
        account.draw(r, &bent, &ALL[row(what)], same)
    };
    let known = |habit: &&&[What]| habit.iter().all(|&w| bent.weights[row(w)] > 0);
    let habits: Vec<&[What]> = HABITS.iter().filter(known).copied().collect();
    // What runs beside a call that is held is as often a rare operation as a common one.
    let even: Vec<u64> = bent.weights.iter().map(|&w| u64::from(w > 0)).collect();
    // What is held there makes calls, as a rule.
    let mut callers = vec![0; ALL.len()];
    CALLERS.iter().for_each(|&w| callers[row(w)] = even[row(w)]);
    callers[row(What::Stats)] = 1;
    let mut waiters = vec![0; ALL.len()];
    WAITERS.iter().for_each(|&w| waiters[row(w)] = even[row(w)]);
    waiters[row(What::Stats)] = 1;
    let mut program = Program::new();
    while program.len() < length {
        if !habits.is_empty() && r.below(16) == 0 {
            let habit = habits[r.below(habits.len() as u64) as usize];
            program.extend(habit.iter().filter_map(|&w| go_on(&mut account, &mut r, w)));
            continue;
        }
        let op = draw(&mut account, &mut r, &bent.weights);
        program.push(op);
        if op.what == What::Repeat {
            let body = body(&mut account, &mut r, &bent);
            program.last_mut().unwrap().n[0] = body.len() as u64;
            program.extend(body);
        }
        if op.what != What::During {
            continue;
        }
        let waits = op.n[0] == SYNC;
        if !habits.is_empty() && r.below(if waits { 2 } else { 3 }) == 0 {
            let habit = habits[r.below(habits.len() as u64) as usize];
            let ops: Vec<Op> = habit.iter().filter_map(|&w| go_on(&mut account, &mut r, w)).collect();
            for op in ops {
                program.extend([op, Op { what: What::Also, n: [0; 5] }]);
            }
        }
        loop {
            let weights = if r.below(2) == 0 { &even } else { &bent.weights };
            let beside = draw(&mut account, &mut r, weights);
            program.push(beside);
            if r.below(2) == 0 {
                break;
            }
            program.push(Op { what: What::Also, n: [0; 5] });
        }
        let some = if waits { &waiters } else { &callers };
        let weights = if r.below(4) > 0 { some } else { &bent.weights };
        let held = draw(&mut account, &mut r, weights);
        program.push(held);
    }
    program
}
