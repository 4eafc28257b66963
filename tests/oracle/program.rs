//! Programs: lists of operations on numbered slots, made at random from a seed, written as text, and made smaller.
//!
//! An operation on a slot that is empty (or taken, where it needs an empty one) does nothing. So every part of a
//! program is a program, and a failing one is made smaller by leaving operations out.

use std::fmt::{self, Display, Write};
use std::str::FromStr;

/// What a number of an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arg {
    Block,
    Stream,
    /// Any stream that ever was, by its number.
    Line,
    Pool,
    Event,
    Capture,
    Checkpoint,
    Bytes,
    Limit,
    Option,
    Flag,
    Few,
    Call,
    Code,
}

pub const BLOCKS: u64 = 20;
pub const STREAMS: u64 = 6;
pub const POOLS: u64 = 3;
pub const EVENTS: u64 = 3;
pub const CAPTURES: u64 = 2;
pub const CHECKPOINTS: u64 = 2;

/// Calls of the device that can be held or made to fail.
pub const CALLS: &[&str] = &[
    "record",
    "query",
    "wait",
    "sync",
    "sync_stream",
    "sync_event",
    "event_create",
    "event_destroy",
    "create",
    "release",
    "map",
    "unmap",
    "alloc",
    "free",
    "stream_create",
    "stream_destroy",
    "callback",
    "copy",
];
pub const CODES: &[&str] = &["oom", "device", "system"];
pub const OPTIONS: &[&str] = &[
    "garbage_collection_threshold:0.5",
    "garbage_collection_threshold:0.0",
    "max_split_size_mb:21",
    "roundup_power2_divisions:4",
];

macro_rules! operations {
    ($($(#[$doc:meta])* $what:ident $name:literal $weight:literal [$($arg:ident)*];)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum What { $($(#[$doc])* $what),* }
        /// What there is, its name, how often it comes, and its numbers.
        pub const ALL: &[(What, &str, u64, &[Arg])] = &[$((What::$what, $name, $weight, &[$(Arg::$arg),*])),*];
    };
}

operations! {
    /// A block of a pool on a stream; with the flag, work writes it at once.
    Alloc "alloc" 260 [Block Pool Stream Bytes Flag];
    /// A block without a stream; with the flag, the host writes it at once.
    AllocAny "alloc_any" 110 [Block Bytes Flag];
    Free "free" 200 [Block];
    FreeOn "free_on" 100 [Block Stream];
    FreeTwice "free_twice" 8 [Block];
    Record "record" 40 [Block Stream];
    RecordEnd "record_end" 20 [Block Stream];
    RecordEndAt "record_end_at" 15 [Block Stream Event];
    /// Work on a block.
    Use "use" 260 [Block Stream];
    /// The host's work on a block without a stream.
    Host "host" 20 [Block];
    StreamNew "stream" 50 [Stream];
    StreamEnd "end_stream" 40 [Stream];
    StreamSync "sync" 10 [Stream];
    StreamQuery "query" 10 [Stream];
    EventNew "event" 10 [Event];
    EventRecord "event_record" 25 [Event Stream];
    EventWait "event_wait" 25 [Event Stream];
    EventSync "event_sync" 4 [Event];
    EventEnd "end_event" 8 [Event];
    DeviceSync "sync_device" 3 [];
    /// Time: one stream gets on, also one that has ended.
    Step "step" 220 [Line Few];
    StepAll "step_all" 6 [];
    EmptyCache "empty" 15 [];
    EmptyPool "empty_pool" 12 [Pool];
    PoolNew "pool" 12 [Pool];
    PoolEnd "end_pool" 10 [Pool];
    PoolRelease "release_pool" 4 [Pool];
    PoolLimit "limit_pool" 5 [Pool Limit];
    Limit "limit" 4 [Limit];
    SetOption "option" 4 [Option];
    ScopeBegin "scope" 5 [Pool];
    ScopeEnd "end_scope" 5 [];
    CaptureBegin "capture" 14 [Capture Pool Stream];
    CaptureEnd "end_capture" 14 [Capture];
    Replay "replay" 15 [Capture];
    CaptureRelease "release_capture" 10 [Capture];
    CheckpointNew "checkpoint" 8 [Checkpoint Pool];
    Restore "restore" 12 [Checkpoint];
    CheckpointEnd "end_checkpoint" 4 [Checkpoint];
    Sleep "sleep" 6 [Pool Flag];
    Wake "wake" 10 [Pool];
    Stats "stats" 25 [];
    /// A stream calls the host, which takes a block without a stream, or gives it back.
    Callback "callback" 8 [Block Stream Bytes];
    /// The next operation comes while the one after it is held in the nth such call of the device.
    During "during" 25 [Call Few];
    /// The nth such call of the device fails.
    Fail "fail" 10 [Call Few Code];
    /// From here on nothing fails.
    Mend "mend" 5 [];
    // From here on: of CUDA alone.
    /// The next operation is another thread's.
    Elsewhere "elsewhere" 60 [];
    /// A stream that a framework has made; with the first flag not blocking, without the second on another device.
    Foreign "foreign" 40 [Stream Flag Flag];
    /// The own default stream of whichever thread names it.
    ThreadStream "thread_stream" 12 [Stream];
    /// A framework ends its stream and tells nobody.
    Vanish "vanish" 6 [Stream];
    /// Pinned memory of the host.
    AllocHost "alloc_host" 80 [Block Bytes];
    /// An asynchronous copy from the second block to the first.
    Copy "copy" 60 [Block Block Stream];
    /// Others get a block, and let go of the oldest that they have.
    Export "export" 10 [Block];
    ExportEnd "end_export" 15 [];
    /// The graph's work, on another stream than the one that was captured.
    ReplayOn "replay_on" 12 [Capture Stream];
}

/// How many of them only CUDA has.
const OF_CUDA: usize = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Op {
    pub what: What,
    pub n: [u64; 5],
}

pub type Program = Vec<Op>;

impl Op {
    pub fn name(&self) -> &'static str {
        self.row().1
    }

    fn row(&self) -> &'static (What, &'static str, u64, &'static [Arg]) {
        ALL.iter().find(|r| r.0 == self.what).unwrap()
    }
}

impl Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = self.row();
        f.write_str(row.1)?;
        for (&n, arg) in self.n.iter().zip(row.3) {
            f.write_char(' ')?;
            match arg {
                Arg::Block => write!(f, "b{n}"),
                Arg::Stream => write!(f, "s{n}"),
                Arg::Line => write!(f, "line{n}"),
                Arg::Pool => write!(f, "p{n}"),
                Arg::Event => write!(f, "e{n}"),
                Arg::Capture => write!(f, "c{n}"),
                Arg::Checkpoint => write!(f, "k{n}"),
                Arg::Call => f.write_str(CALLS[n as usize]),
                Arg::Code => f.write_str(CODES[n as usize]),
                Arg::Option => f.write_str(OPTIONS[n as usize]),
                Arg::Bytes | Arg::Limit | Arg::Flag | Arg::Few => write!(f, "{n}"),
            }?;
        }
        Ok(())
    }
}

impl FromStr for Op {
    type Err = String;
    fn from_str(line: &str) -> Result<Op, String> {
        let mut words = line.split_whitespace();
        let name = words.next().ok_or("an empty line")?;
        let row = ALL.iter().find(|r| r.1 == name).ok_or_else(|| format!("no operation {name:?}"))?;
        let mut n = [0; 5];
        for (n, arg) in n.iter_mut().zip(row.3) {
            let word = words.next().ok_or_else(|| format!("{line:?} lacks a number"))?;
            let of = |list: &[&str]| list.iter().position(|x| *x == word).map(|i| i as u64);
            let number = || word.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok();
            *n = match arg {
                Arg::Call => of(CALLS),
                Arg::Code => of(CODES),
                Arg::Option => of(OPTIONS),
                _ => number(),
            }
            .ok_or_else(|| format!("{word:?} in {line:?}"))?;
        }
        Ok(Op { what: row.0, n })
    }
}

/// As a corpus has it.
pub fn to_text(program: &[Op]) -> String {
    program.iter().fold(String::new(), |mut text, op| {
        let _ = writeln!(text, "{op}");
        text
    })
}

/// What stands in a corpus file: the kind of device, and the program.
pub fn from_text(text: &str) -> Result<(String, Program), String> {
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    let (mut kind, mut program) = (String::new(), Program::new());
    for line in lines {
        match line.strip_prefix("device ") {
            Some(name) => kind = name.to_owned(),
            None => program.push(line.parse()?),
        }
    }
    Ok((kind, program))
}

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

/// What a program leans to, so that not all are alike.
struct Bent {
    weights: Vec<u64>,
    sizes: u64,
    blocks: u64,
    streams: u64,
}

fn bend(r: &mut Random, cuda: bool) -> Bent {
    let mut weights: Vec<u64> = ALL.iter().map(|row| row.2).collect();
    let own = ALL.len() - OF_CUDA;
    let mut set = |what: What, by: u64| {
        let at = ALL.iter().position(|row| row.0 == what).unwrap();
        weights[at] = weights[at] * by / 4;
    };
    // Most programs do without some features; some have much of one.
    let groups: &[&[What]] = &[
        &[What::CaptureBegin, What::CaptureEnd, What::Replay, What::CaptureRelease],
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
        &[What::EmptyCache, What::EmptyPool],
    ];
    let groups_of_cuda: &[&[What]] = &[
        &[What::Elsewhere],
        &[What::Foreign],
        &[What::ThreadStream],
        &[What::Vanish],
        &[What::AllocHost, What::Copy],
        &[What::Export, What::ExportEnd],
    ];
    let more = if cuda { groups_of_cuda } else { &[] };
    for group in groups.iter().chain(more) {
        let by = [0, 0, 2, 4, 4, 12][r.below(6) as usize];
        group.iter().for_each(|&w| set(w, by));
    }
    if !cuda {
        weights[own..].fill(0);
    }
    let at = |what| ALL.iter().position(|row| row.0 == what).unwrap();
    weights[at(What::StreamNew)] = weights[at(What::StreamNew)].max(20);
    weights[at(What::Step)] = weights[at(What::Step)].max(20);
    Bent { weights, sizes: r.below(4), blocks: 3 + r.below(BLOCKS - 2), streams: 2 + r.below(STREAMS - 1) }
}

fn bytes(r: &mut Random, sizes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    let class = if r.below(4) == 0 { r.below(4) } else { sizes };
    match class {
        0 => 1 + r.below(2048),
        1 => 1 + r.below(600 << 10),
        2 => 2 * MIB * (1 + r.below(6)) - r.below(3) * 512 * r.below(2),
        _ => 1 + r.below(12 * MIB),
    }
}

/// A program of so many operations.
pub fn random(seed: u64, length: usize, cuda: bool) -> Program {
    let mut r = Random(seed);
    let bent = bend(&mut r, cuda);
    let total: u64 = bent.weights.iter().sum();
    let mut one = || {
        let mut dart = r.below(total);
        let row = ALL.iter().zip(&bent.weights).find(|(_, w)| {
            let hit = dart < **w;
            dart = dart.saturating_sub(**w);
            hit
        });
        let row = row.unwrap().0;
        let mut n = [0; 5];
        for (n, arg) in n.iter_mut().zip(row.3) {
            *n = match arg {
                Arg::Block => r.below(bent.blocks),
                Arg::Stream => r.below(bent.streams + 1) % (bent.streams + 1),
                Arg::Line => r.below(16),
                Arg::Pool => r.below(POOLS),
                Arg::Event => r.below(EVENTS),
                Arg::Capture => r.below(CAPTURES),
                Arg::Checkpoint => r.below(CHECKPOINTS),
                Arg::Bytes => bytes(&mut r, bent.sizes),
                Arg::Limit => [0, 4, 8, 16, 32][r.below(5) as usize] << 20,
                Arg::Option => r.below(OPTIONS.len() as u64),
                Arg::Flag => u64::from(r.below(4) > 0),
                Arg::Few => 1 + r.below(1 + r.0 % 4),
                Arg::Call => r.below(CALLS.len() as u64),
                Arg::Code => r.below(CODES.len() as u64),
            };
        }
        Op { what: row.0, n }
    };
    (0..length).map(|_| one()).collect()
}

/// The smallest program that is found to fail still, by leaving out operations and making numbers small.
pub fn shrink(program: &[Op], mut fails: impl FnMut(&[Op]) -> bool) -> Program {
    let mut best = program.to_vec();
    loop {
        let before = best.clone();
        let mut part = (best.len() / 2).max(1);
        loop {
            let mut from = 0;
            while from < best.len() {
                let mut less = best.clone();
                less.drain(from..(from + part).min(best.len()));
                if fails(&less) {
                    best = less;
                } else {
                    from += part;
                }
            }
            if part == 1 {
                break;
            }
            part /= 2;
        }
        for i in 0..best.len() {
            for (k, arg) in best[i].row().3.iter().enumerate() {
                let tries: &[u64] = match arg {
                    Arg::Bytes => &[512, 1 << 20, 2 << 20, 4 << 20],
                    Arg::Call | Arg::Code | Arg::Option | Arg::Limit => &[],
                    Arg::Few => &[1],
                    _ => &[0, 1],
                };
                for &n in tries {
                    if best[i].n[k] == n {
                        break;
                    }
                    let mut less = best.clone();
                    less[i].n[k] = n;
                    if fails(&less) {
                        best = less;
                        break;
                    }
                }
            }
        }
        if best == before {
            return best;
        }
    }
}
