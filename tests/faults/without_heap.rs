//! The host's heap ends in each operation: where the operation has needed more than before, step by step. Each run is a
//! process of its own, forked from one that has not opened a device, since what cannot say that the host has no memory
//! ends the process; then the test tells where.
//!
//! A call that fails says so (`OUT_OF_MEMORY`), the model holds, the same call succeeds once there is memory again, and
//! everything comes back. Then each call that the operation makes on the device is refused, where the heap has just what the
//! operation needs when all goes well: to take back what was begun must need no more. Of such a run only its end is looked at;
//! with `FAULTS_ALL=1` each call is refused once, too. And each call on the device succeeds and takes all of the host's memory
//! that is left, but for what the library keeps meanwhile (`base/room.rs`): then the same holds as where the heap ends by itself.
//!
//! `FAULTS_ONLY=word` runs some operations. `FAULTS_ONCE=1` refuses each single allocation instead,
//! which nothing promises: a call that has found that there is room counts on it.

use crate::api::{self, Outcome};
use crate::fault::{self, Way};
use crate::heap::{self, End};
use crate::kinds::Kind;
use crate::operations::{OPERATIONS, Operation};
use crate::world::World;
use millpond::capi::*;
use std::collections::VecDeque;
use std::io::{PipeReader, Read, Write};
use std::os::fd::IntoRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

/// \[B\] of the host's memory with which a call begins that makes one entry, and of which nothing is kept while the device is called.
const LITTLE: usize = 2000;

/// Where the child says what has come of its run.
static SAYS: AtomicI32 = AtomicI32::new(-1);
/// Where the program begins in memory.
static BASE: AtomicUsize = AtomicUsize::new(0);

fn say(text: &str) {
    let line = format!("{}\n", text.replace('\n', " "));
    unsafe { libc::write(SAYS.load(Relaxed), line.as_ptr().cast(), line.len()) };
}

/// Says where the process ends for lack of memory: addresses for addr2line.
extern "C" fn tell(signal: i32) {
    heap::disarm();
    let mut at = [null_mut(); 60];
    let count = unsafe { libc::backtrace(at.as_mut_ptr(), 60) } as usize;
    let base = BASE.load(Relaxed);
    let told: Vec<String> =
        at[..count].iter().map(|a| format!("{:#x}", a.addr().wrapping_sub(base))).collect();
    say(&format!("ended {signal} {}", told.join(" ")));
    unsafe { libc::_exit(1) };
}

/// What has come of one run.
#[derive(Default)]
struct Run {
    seen: usize,
    /// Calls on the device.
    calls: usize,
    steps: Vec<usize>,
    room: Option<usize>,
    code: u32,
    wrong: Vec<String>,
    ended: Option<String>,
}

/// What fails in a run: the heap, and a call on the device.
#[derive(Clone, Copy, Default)]
struct Due {
    end: Option<End>,
    call: Option<(usize, Way)>,
}

fn child(kind: &'static Kind, op: &Operation, Due { end: due, call }: Due, mut room: Option<usize>) {
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT, libc::SIGALRM] {
        unsafe { libc::signal(signal, tell as *const () as usize) };
    }
    unsafe { libc::alarm(20) };
    api::BEFORE_WORDS.set(heap::has_failed);
    let mut wrong = Vec::new();
    let done = catch_unwind(AssertUnwindSafe(|| {
        let mut w = World::new(kind);
        if let Err(e) = (op.prepare)(&mut w) {
            say(&format!("code {}", e.code));
            return;
        }
        fault::arm_unnamed(call);
        heap::arm(due);
        let mut answer: Outcome<()> = (op.act)(&mut w);
        let seen = heap::disarm();
        say(&format!("calls {}", fault::disarm_unnamed()));
        if call.is_some_and(|(_, way)| ![Way::Greedy, Way::Grasping].contains(&way)) {
            return;
        }
        say(&format!("seen {}", seen.count));
        seen.steps[..seen.step_count].iter().for_each(|step| say(&format!("step {step}")));
        if let Err(e) = &answer {
            say(&format!("code {}", e.code));
            if due.is_some() && e.code != MILLPOND_E_OUT_OF_MEMORY && e.code != op.code {
                wrong.push(format!("the answer is {}: {}", e.code, e.message));
            }
            // Where it is the request for device memory that has failed, the report says what was missing.
            let says = [" host ", "keep track", "the device refused"];
            if due.is_some() && op.code == 0 && !says.iter().any(|t| e.message.contains(t)) {
                wrong.push(format!("it says {:?}", e.message));
            }
            if !w.has_ended {
                w.check_ill(&mut wrong);
            }
            if due.is_some() && e.code == MILLPOND_E_OUT_OF_MEMORY && op.code == 0 {
                answer = (op.act)(&mut w);
                if let Err(e) = answer {
                    wrong.push(format!("again: the answer is {}: {}", e.code, e.message));
                }
            }
        }
        if !w.has_ended {
            w.check_well(&mut wrong);
        }
        w.end(&mut room, &mut wrong);
        say(&format!("room {}", room.unwrap_or(usize::MAX)));
    }));
    if done.is_err() {
        say("wrong a panic");
    }
    for w in wrong {
        say(&format!("wrong {w}"));
    }
}

/// A run that has begun.
struct Started {
    pid: i32,
    reader: PipeReader,
}

fn start(kind: &'static Kind, op: &Operation, due: Due, room: Option<usize>) -> Started {
    let (reader, writer) = std::io::pipe().unwrap();
    std::io::stdout().flush().unwrap();
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(reader);
        SAYS.store(writer.into_raw_fd(), Relaxed);
        child(kind, op, due, room);
        unsafe { libc::_exit(0) };
    }
    Started { pid, reader }
}

/// Waits until it is over.
fn end(Started { pid, mut reader }: Started) -> Run {
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    let mut status = 0;
    unsafe { libc::waitpid(pid, &mut status, 0) };
    let mut run = Run::default();
    for line in text.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "seen" => run.seen = rest.parse().unwrap(),
            "calls" => run.calls = rest.parse().unwrap(),
            "step" => run.steps.push(rest.parse().unwrap()),
            "room" => run.room = rest.parse().ok().filter(|n| *n != usize::MAX),
            "code" => run.code = rest.parse().unwrap(),
            "wrong" => run.wrong.push(rest.to_owned()),
            "ended" => run.ended = Some(rest.to_owned()),
            _ => run.wrong.push(line.to_owned()),
        }
    }
    if status != 0 && run.ended.is_none() {
        run.ended = Some(format!("status {status}"));
    }
    run
}

/// Runs of which so many are under way at a time: some wait for seconds, for work that a failing device never calls done.
#[derive(Default)]
struct Runs {
    under_way: VecDeque<(String, Started)>,
    wrong: Vec<String>,
}

impl Runs {
    const AT_A_TIME: usize = 4;

    fn add(&mut self, what: String, started: Started) {
        self.under_way.push_back((what, started));
        if self.under_way.len() == Self::AT_A_TIME {
            self.end_first();
        }
    }

    fn end_first(&mut self) {
        if let Some((what, started)) = self.under_way.pop_front() {
            self.look(&what, &end(started));
        }
    }

    fn look(&mut self, what: &str, run: &Run) {
        self.wrong.extend(run.ended.iter().map(|e| format!("{what}: ends: {e}")));
        self.wrong.extend(run.wrong.iter().map(|e| format!("{what}: {e}")));
    }
}

/// All operations on one kind.
pub fn all(kind: &'static Kind) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    BASE.store(usize::from_str_radix(maps.split('-').next().unwrap(), 16).unwrap(), Relaxed);
    let only = std::env::var("FAULTS_ONLY").ok();
    // A call that fails once is for the long run.
    let mut ways = vec![Way::Greedy, Way::Sticky];
    ways.extend(std::env::var_os("FAULTS_ALL").map(|_| Way::NoMemory));
    let (mut refusals, mut operations, mut calls) = (0, 0, 0);
    let mut runs = Runs::default();
    for op in OPERATIONS {
        if only.as_ref().is_some_and(|o| !op.name.contains(o.as_str())) {
            continue;
        }
        let plain = end(start(kind, op, Due::default(), None));
        if [MILLPOND_E_UNSUPPORTED, MILLPOND_E_INVALID_ARGUMENT].contains(&plain.code) {
            continue;
        }
        operations += 1;
        runs.look(&format!("{}: nothing", op.name), &plain);
        let ends: Vec<End> = match std::env::var_os("FAULTS_ONCE").is_some() {
            true => (1..=plain.seen).map(End::Once).collect(),
            false => plain.steps.iter().map(|step| End::After(step - 1)).collect(),
        };
        for end in ends {
            let due = Due { end: Some(end), call: None };
            runs.add(format!("{}: {end:?}", op.name), start(kind, op, due, plain.room));
            refusals += 1;
        }
        let end = End::After(plain.steps.last().copied().unwrap_or(0));
        for n in 1..=plain.calls {
            for way in ways.iter().copied() {
                let room = plain.room.filter(|_| way == Way::Greedy);
                let due = Due { end: Some(end), call: Some((n, way)) };
                runs.add(format!("{}: {end:?}, call {n} {way:?}", op.name), start(kind, op, due, room));
                calls += 1;
            }
        }
        // What the device has given then goes back to it, or later, where it does not take it.
        let gives = ["host_alloc", "unified_alloc"].iter().any(|name| op.name.starts_with(name));
        for n in (1..=plain.calls).filter(|_| gives) {
            for (end, way) in [(End::After(LITTLE), Way::Greedy), (end, Way::Grasping)] {
                let due = Due { end: Some(end), call: Some((n, way)) };
                runs.add(format!("{}: {end:?}, call {n} {way:?}", op.name), start(kind, op, due, plain.room));
                calls += 1;
            }
        }
    }
    while !runs.under_way.is_empty() {
        runs.end_first();
    }
    let wrong = runs.wrong;
    println!(
        "faults: {}: {operations} operations, {refusals} refusals of the heap, {calls} of the device with little heap",
        kind.name
    );
    for w in &wrong {
        println!("wrong: {w}");
    }
    assert!(wrong.is_empty(), "{} things are wrong", wrong.len());
}
