//! Runs all operations on one kind of device: once with nothing failing, then once for each call and each way to fail.

use crate::api::Outcome;
use crate::fault::{WAYS, Way};
use crate::kinds::Kind;
use crate::known;
use crate::operations::{OPERATIONS, Operation};
use crate::world::World;
use millpond::capi::*;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// An operation with one call failing takes no longer.
const DEADLINE: Duration = Duration::from_secs(20);

/// What runs now, and since when.
static NOW: Mutex<Option<(String, Instant)>> = Mutex::new(None);

/// The same, for the handler of a crash: a pointer to a text that stays for ever.
static LAST: AtomicPtr<Vec<u8>> = AtomicPtr::new(null_mut());

/// Reports a crash too, with its cause.
fn tell_of_crashes() {
    extern "C" fn tell(signal: i32) {
        let text = unsafe { &*LAST.load(SeqCst) };
        unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        unsafe { libc::raise(signal) };
    }
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT] {
        unsafe { libc::signal(signal, tell as *const () as usize) };
    }
}

fn now(what: Option<String>) {
    if let Some(what) = &what {
        let text = Box::into_raw(Box::new(format!("\nwrong: {what}: crash\n").into_bytes()));
        LAST.store(text, SeqCst); // a few bytes each, for ever
    }
    *NOW.lock().unwrap_or_else(|e| e.into_inner()) = what.map(|what| (what, Instant::now()));
}

/// Reports an operation that hangs, and ends the process.
fn watch() {
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_millis(500));
            if let Some((what, since)) = &*NOW.lock().unwrap_or_else(|e| e.into_inner())
                && since.elapsed() > DEADLINE
            {
                eprintln!("faults: {what}: not done after {} s", DEADLINE.as_secs());
                std::process::abort();
            }
        }
    });
}

/// What has come of one run.
struct Run {
    calls: Vec<String>,
    wrong: Vec<String>,
    /// The code of its error.
    code: u32,
    room: Option<usize>,
}

thread_local! {
    static PANICKED: Cell<Option<String>> = const { Cell::new(None) };
}

fn one(kind: &'static Kind, op: &Operation, due: Option<(usize, Way)>, mut room: Option<usize>) -> Run {
    let what = format!("{}: {}: {due:?}", kind.name, op.name);
    if std::env::var_os("FAULTS_TALK").is_some() {
        eprintln!("{what}");
    }
    now(Some(what));
    let (mut calls, mut wrong, mut code) = (Vec::new(), Vec::new(), 0);
    let done = catch_unwind(AssertUnwindSafe(|| {
        let mut w = World::new(kind);
        let ready = (op.prepare)(&mut w);
        let answer: Outcome<()> = match ready {
            Ok(()) => {
                w.is_ill = due.is_some_and(|d| d.1 == Way::Sticky);
                w.o.arm(due);
                let answer = catch_unwind(AssertUnwindSafe(|| (op.act)(&mut w)));
                if !w.has_ended && answer.is_ok() {
                    w.check_ill(&mut wrong);
                }
                calls = w.o.heal();
                match answer {
                    Ok(answer) => answer,
                    Err(_) => {
                        wrong.push(format!("a panic: {}", PANICKED.take().unwrap_or_default()));
                        Ok(())
                    }
                }
            }
            Err(e) => {
                let refused = [MILLPOND_E_UNSUPPORTED, MILLPOND_E_INVALID_ARGUMENT];
                assert!(refused.contains(&e.code), "prepare: {}", e.message);
                Err(e)
            }
        };
        if let Err(e) = answer {
            code = e.code;
            if e.message.is_empty() {
                wrong.push("an error without a message".to_owned());
            }
            let fits = [MILLPOND_E_OUT_OF_MEMORY, MILLPOND_E_DEVICE, MILLPOND_E_SYSTEM, MILLPOND_E_BUSY];
            if due.is_some() && !fits.contains(&e.code) {
                wrong.push(format!("the answer is {}: {}", e.code, e.message));
            }
        }
        if !w.has_ended {
            w.check_well(&mut wrong);
        }
        w.end(&mut room, &mut wrong);
    }));
    if done.is_err() {
        wrong.push(format!("a panic: {}", PANICKED.take().unwrap_or_default()));
    }
    now(None);
    Run { calls, wrong, code, room }
}

/// The ways in which call k of n fails here. All three for the first call and the last, one in turn for those between.
/// Of a driver, where one operation makes a hundred calls, only the first and the last, in turn. `FAULTS_ALL=1`: all.
fn ways(kind: &Kind, k: usize, n: usize) -> Vec<Way> {
    if std::env::var_os("FAULTS_ALL").is_some() {
        return WAYS.to_vec();
    }
    let turn = vec![WAYS[k % WAYS.len()]];
    // Who waits for a stream that is held up asks for it again and again, as often as there is time.
    if k > 40 && k != n {
        return Vec::new();
    }
    match (kind.by_driver, k == 1 || k == n) {
        (false, true) => WAYS.to_vec(),
        (false, false) | (true, true) => turn,
        (true, false) => Vec::new(),
    }
}

/// All operations on one kind.
pub fn all(kind: &'static Kind) {
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string().replace('\n', " ");
        eprintln!("{text}");
        PANICKED.set(Some(text));
    }));
    watch();
    tell_of_crashes();
    let only = std::env::var("FAULTS_ONLY").ok();
    let only = only.as_deref().map(|o| o.split('/').collect::<Vec<_>>());
    let began = Instant::now();
    let (mut operations, mut skipped, mut tuples, mut errors) = (0, Vec::new(), 0, 0);
    let mut wrong = Vec::new();
    let mut seen = vec![false; known::KNOWN.len()];
    for op in OPERATIONS {
        if only.as_ref().is_some_and(|o| !op.name.contains(o[0])) {
            continue;
        }
        let plain = one(kind, op, None, None);
        if [MILLPOND_E_UNSUPPORTED, MILLPOND_E_INVALID_ARGUMENT].contains(&plain.code) {
            skipped.push(op.name);
            continue;
        }
        if plain.code != 0 && plain.code != op.code {
            wrong.push(format!("{}: nothing fails: the answer is {}", op.name, plain.code));
        }
        wrong.extend(plain.wrong.iter().map(|w| format!("{}: nothing fails: {w}", op.name)));
        operations += 1;
        for (k, call) in plain.calls.iter().enumerate() {
            for way in ways(kind, k + 1, plain.calls.len()) {
                let run = one(kind, op, Some((k + 1, way)), plain.room);
                tuples += 1;
                errors += usize::from(run.code != 0);
                for what in run.wrong {
                    match known::find(kind.name, op.name, call, &what) {
                        Some(i) => seen[i] = true,
                        None => {
                            let n = plain.calls.len();
                            wrong.push(format!(
                                "{}: call {} of {n}, {call}, {way:?}: {what}",
                                op.name,
                                k + 1
                            ));
                        }
                    }
                }
            }
        }
    }
    if only.is_none() {
        for (i, k) in known::KNOWN.iter().enumerate() {
            if k.kind == kind.name && !seen[i] {
                wrong.push(format!("this is not seen any more, delete it: {k:?}"));
            }
        }
    }
    println!(
        "\nfaults: {}: {operations} operations, {tuples} tuples of (operation, call, way to fail), {errors} errors came out, \
         {:.1} s; not there: {}",
        kind.name,
        began.elapsed().as_secs_f64(),
        skipped.join(", ")
    );
    for w in &wrong {
        println!("wrong: {w}");
    }
    if !wrong.is_empty() {
        println!("{} things are wrong", wrong.len());
        std::process::exit(1);
    }
}
