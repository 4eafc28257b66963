//! How time moves: what happens before each call of the device, and which work a step, or a call that waits, runs.

use super::gpu;
use super::world::{Clock, Item, Line, Work, world};
use millpond::Code;
use std::sync::mpsc::channel;
use std::time::Duration;

/// A call that is not done by then is in a deadlock: it waits for another that waits for it.
const STUCK: Duration = Duration::from_millis(1000);

/// The library is in a call of the device: it is counted, held, and made to fail, as the program wants.
pub fn enter(call: &'static str) -> Result<(), Code> {
    if call != "query" {
        world().asked = 0;
    }
    let mut w = world();
    w.calls += 1;
    if call != "query" {
        w.asked = 0;
    }
    if w.trace {
        eprintln!("    device: {call}");
    }
    w.other_waits |= meanwhile() && call.starts_with("sync");
    let due = w.hook.as_mut().is_some_and(|h| {
        let mine = h.call == call || h.call == "any";
        h.left -= u64::from(mine);
        mine && h.left == 0
    });
    if due {
        let hook = w.hook.take().unwrap();
        w.other_waits = false;
        let trace = w.trace;
        drop(w);
        let (tell, told) = channel();
        if trace {
            eprintln!("    held in {call}: another thread goes on");
        }
        let thread = std::thread::spawn(move || {
            MEANWHILE.with(|m| m.set(true));
            (hook.body)();
            let _ = tell.send(());
        });
        let waits = hook.free && call.starts_with("sync");
        let limit = if waits { STUCK } else { Duration::from_millis(5) };
        let through = told.recv_timeout(limit).is_ok();
        if trace {
            eprintln!(
                "    held in {call}: {}",
                if through { "the other is done" } else { "the other waits for us" }
            );
        }
        w = world();
        w.held.push(thread);
        // There was nothing to be had but by waiting: then a large block, and where the device has no more any block,
        // may have to wait for what we hold.
        let scarce = hook.large && w.other_waits || hook.bytes > 0 && w.taken + hook.bytes > hook.capacity;
        if !through && waits && !scarce {
            w.violate(format!(
                "a call that waits ({call}) keeps a request, a free or a statistic from going on"
            ));
        }
    }
    let mut failed = None;
    for f in w.faults.iter_mut().filter(|f| (f.call == call || f.call == "any") && f.left > 0) {
        f.left -= 1;
        if f.left == 0 {
            failed.get_or_insert(f.code);
        }
    }
    if let Some(code) = failed {
        if w.trace {
            eprintln!("    device: {call} fails");
        }
        w.failed += 1;
        return Err(code);
    }
    Ok(())
}

/// Runs the first piece of work of a stream, if it waits for nothing. Otherwise: for what it waits.
fn run_one(line: usize) -> Result<bool, Clock> {
    let mut w = world();
    if w.lines[line].running > 0 {
        return Ok(false);
    }
    if let Some(Item { work: Work::Wait(clock), .. }) = w.lines[line].items.front()
        && !w.is_over(clock)
    {
        return Err(clock.clone());
    }
    let Some(item) = w.lines[line].items.pop_front() else { return Ok(false) };
    match item.work {
        Work::Call(body) => {
            w.lines[line].running = 1;
            drop(w);
            let (tell, told) = channel();
            let thread = std::thread::spawn(move || {
                body();
                let _ = tell.send(());
            });
            let through = told.recv_timeout(STUCK).is_ok();
            w = world();
            w.held.push(thread);
            if !through {
                w.violate("a callback of a stream does not come back while the stream is waited for");
            }
            w.lines[line].running = 0;
        }
        work => w.touch(work),
    }
    w.lines[line].done += 1;
    Ok(true)
}

/// Runs the first pieces of work of a stream, and what they wait for.
pub fn run_to(line: usize, count: u64) {
    let (key, done) = {
        let l = &world().lines[line];
        (l.key, l.done)
    };
    if key != 0 && done < count {
        return gpu::run(key, count);
    }
    loop {
        if world().lines[line].done >= count || world().lines[line].importer {
            return;
        }
        match run_one(line) {
            Ok(true) => {}
            Ok(false) => {
                // It runs on another thread.
                if world().violation.is_some() {
                    return;
                }
                std::thread::sleep(Duration::from_micros(50));
            }
            Err(clock) => run_clock(&clock),
        }
    }
}

/// Runs all that a clock counts.
pub fn run_clock(clock: &[u64]) {
    for (line, &count) in clock.iter().enumerate() {
        run_to(line, count);
    }
}

/// One piece of work, if it can run now.
pub fn step(line: usize) {
    let (key, over) = {
        let l = &world().lines[line];
        (l.key, l.importer || l.done == Line::GONE)
    };
    if key != 0 && !over {
        return gpu::run(key, 0);
    }
    if over {
        return;
    }
    let _ = run_one(line);
}

/// Runs everything that is queued on the device.
pub fn run_all(ended: bool) {
    let all: Clock = {
        let mut w = world();
        let any = w.lines.iter().any(|l| l.captured);
        if any {
            w.violate("the device is waited for while a stream is captured");
        }
        w.lines.iter().map(|l| if l.alive || ended { l.queued() } else { 0 }).collect()
    };
    if world().violation.is_none() {
        run_clock(&all);
    }
}

/// Lets all but the slow streams get on as far as they can; whether any did.
pub fn run_quick() -> bool {
    let mut any = false;
    loop {
        let quick: Vec<(usize, u64, u64)> = {
            let w = world();
            let able = |l: &&Line| !l.slow && !l.importer && l.done != Line::GONE && l.done < l.queued();
            let lines = w.lines.iter().enumerate();
            lines.filter(|(_, l)| able(l)).map(|(n, l)| (n, l.key, l.done)).collect()
        };
        let mut more = false;
        for (line, key, done) in quick {
            if key == 0 {
                more |= run_one(line) == Ok(true);
            } else {
                gpu::run(key, 0);
                more |= world().lines[line].done != done;
            }
        }
        if !more {
            return any;
        }
        any = true;
    }
}

/// Whether the event has passed. Time stands still, except for a caller that queries again and again: that is a wait.
pub fn ask(event: u64) -> Option<bool> {
    let over = world().query(event)?;
    if over || !world().grows_impatient() {
        return Some(over);
    }
    let clock = world().events.get(&event).cloned()?;
    let slow = world().is_held_up(&clock);
    if !(slow && run_quick()) {
        run_clock(&clock);
    }
    let w = world();
    Some(w.lie == super::world::Lie::Passed || w.is_over(&clock))
}

thread_local! {
    /// Whether this thread runs an operation while a call of the device is held.
    static MEANWHILE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether another thread is in a call of the device, which this operation runs beside.
pub fn meanwhile() -> bool {
    MEANWHILE.with(std::cell::Cell::get)
}
