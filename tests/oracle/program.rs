//! Programs: lists of operations on numbered slots, written as text, and made smaller.
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
    Times,
    Call,
    Code,
}

pub const BLOCKS: u64 = 20;
pub const STREAMS: u64 = 6;
pub const POOLS: u64 = 3;
pub const EVENTS: u64 = 3;
pub const CAPTURES: u64 = 2;
pub const CHECKPOINTS: u64 = 2;

/// Calls of the device that can be held or made to fail; the last word stands for all of them.
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
    "any",
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
    /// Between those two: the next operation comes while that is held, too.
    Also "also" 0 [];
    /// The next operations come so often.
    Repeat "repeat" 4 [Few Times];
    /// A stream whose work takes its time: who waits for it waits longest.
    Slow "slow" 25 [Stream];
    /// The nth such call of the device fails.
    Fail "fail" 10 [Call Few Code];
    /// From here on nothing fails.
    Mend "mend" 5 [];
    /// The graph's work, on another stream than the one that was captured.
    ReplayOn "replay_on" 12 [Capture Stream];
    /// Of a pool or, with the flag, of all, down to that.
    TrimTo "trim_to" 10 [Pool Limit Flag];
    /// A block comes and goes at once, so often that the thread has a fast path there.
    Warm "warm" 8 [Block Pool Stream Bytes];
    /// A history begins, or the one that there is ends; with the flag it keeps few events.
    History "history" 8 [Flag];
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
}

/// How many of them only CUDA has.
pub const OF_CUDA: usize = 8;

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

    pub fn row(&self) -> &'static (What, &'static str, u64, &'static [Arg]) {
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
                Arg::Bytes | Arg::Limit | Arg::Flag | Arg::Few | Arg::Times => write!(f, "{n}"),
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

/// With what comes several times as often as it comes; each with its place in the program.
pub fn unrolled(program: &[Op]) -> Vec<(usize, Op)> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < program.len() {
        let op = program[at];
        at += 1;
        if op.what != What::Repeat {
            all.push((at - 1, op));
            continue;
        }
        let end = program.len().min(at + op.n[0] as usize);
        let part = (at..end).map(|i| (i, program[i])).filter(|p| p.1.what != What::Repeat);
        let part: Vec<_> = part.collect();
        (0..op.n[1]).for_each(|_| all.extend(&part));
        at = end;
    }
    all
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
                    Arg::Times => &[1, 10, 30, 100],
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
