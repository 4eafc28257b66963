//! The time and the order of the oracle's device: streams whose work runs when the program says so, events, and which
//! work precedes which.
//!
//! Time moves only by `step` and in a call that waits, which runs just what it waits for; so all other work runs as
//! late as possible. Each stream has a vector clock: for every stream, how many pieces of its work precede this
//! stream's next one. An event is a copy of a clock. From the clocks follows, for any memory and any stream, whether
//! unfinished work may touch the memory without being ordered before that stream's next work. Nothing here knows the
//! library.

use super::gpu;
use millpond::Code;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::thread::JoinHandle;

/// By stream: how many pieces of its work.
pub type Clock = Vec<u64>;
/// Bytes that the hardware has, from and how many, apart from the addresses that show them.
pub type Place = (u64, u64);

pub const GRANULE: u64 = 2 << 20;

pub enum Work {
    /// The program's: writes the tag at both ends, after a look that it is there already.
    Use {
        at: usize,
        bytes: usize,
        tag: u64,
        look: bool,
        check: bool,
    },
    Move {
        to: usize,
        from: usize,
        bytes: usize,
    },
    Fill {
        to: usize,
        value: u8,
        bytes: usize,
    },
    Wait(Clock),
    Call(Box<dyn FnOnce() + Send>),
}

pub struct Item {
    pub number: u64,
    pub work: Work,
    spans: Vec<(usize, usize)>,
    places: Vec<Place>,
}

#[derive(Default)]
pub struct Line {
    pub items: VecDeque<Item>,
    pub done: u64,
    pub running: u64,
    pub clock: Clock,
    pub handle: u64,
    pub alive: bool,
    pub captured: bool,
    /// On CUDA: how the driver knows it, and how much it was given; the device, and who has made it.
    pub key: u64,
    pub submitted: u64,
    pub device: i32,
    pub foreign: bool,
    /// The library has ended it, and may give it out again.
    pub ended: bool,
    /// It is the own default stream of a thread.
    pub thread: bool,
    /// Others have ended it and told nobody.
    pub vanished: bool,
    /// Who waits for it waits longest.
    pub slow: bool,
    /// It is no stream, but somebody else who has the memory.
    pub importer: bool,
}

impl Line {
    /// On CUDA: of a stream that is gone.
    pub const GONE: u64 = u64::MAX;

    pub fn queued(&self) -> u64 {
        if self.key != 0 { self.submitted } else { self.done + self.running + self.items.len() as u64 }
    }
}

/// How the device lies, for the test that the oracle sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lie {
    #[default]
    None,
    /// Every event is passed.
    Passed,
    /// A wait of a stream for an event is not made.
    NoWait,
    /// An event stands for all but the last piece of work.
    Short,
    /// A wait for an event on the host returns at once.
    NoSync,
}

pub struct Fault {
    pub call: String,
    pub left: u64,
    pub code: Code,
}

pub struct Hook {
    pub call: String,
    pub left: u64,
    pub body: Box<dyn FnOnce() + Send>,
    /// It must be through while a call that waits is held here.
    pub free: bool,
    /// It asks for a large block.
    pub large: bool,
    /// [B] the largest block that it asks for, and what the device has.
    pub bytes: u64,
    pub capacity: u64,
}

#[derive(Default)]
pub struct World {
    pub lines: Vec<Line>,
    pub events: HashMap<u64, Clock>,
    old_handles: Vec<u64>,
    handles: u64,
    /// Where the window of a device that maps begins, and which granule each of its granules shows.
    pub window: Option<(usize, Vec<Option<u64>>)>,
    pub segments: BTreeMap<usize, usize>,
    /// Granules in one piece, by the first: how many.
    pub ties: BTreeMap<u64, u64>,
    pub taken: u64,
    pub lie: Lie,
    /// Questions in a row, with no other call between.
    pub asked: u32,
    pub violation: Option<String>,
    /// Calls that were made to fail.
    pub failed: u64,
    pub calls: u64,
    pub faults: Vec<Fault>,
    pub hook: Option<Hook>,
    /// What runs meanwhile has itself begun to wait.
    pub other_waits: bool,
    pub held: Vec<JoinHandle<()>>,
    pub trace: bool,
    /// The driver has the streams, and tells of them.
    pub cuda: bool,
}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// The world, one for the process.
pub struct Held(MutexGuard<'static, Option<World>>);

impl std::ops::Deref for Held {
    type Target = World;
    fn deref(&self) -> &World {
        self.0.as_ref().unwrap()
    }
}
impl std::ops::DerefMut for Held {
    fn deref_mut(&mut self) -> &mut World {
        self.0.as_mut().unwrap()
    }
}

pub fn world() -> Held {
    let mut w = WORLD.lock().unwrap_or_else(|e| e.into_inner());
    let now = w.get_or_insert_with(World::default);
    if now.cuda {
        gpu::refresh(now);
    }
    Held(w)
}

/// Everything from new.
pub fn reset(lie: Lie) {
    let null = Line { alive: true, clock: vec![0], ..Line::default() };
    let trace = std::env::var_os("MILLPOND_ORACLE_TRACE").is_some();
    let fresh = World { lines: vec![null], handles: 0x1000, lie, trace, ..World::default() };
    *WORLD.lock().unwrap_or_else(|e| e.into_inner()) = Some(fresh);
}

fn at(clock: &[u64], line: usize) -> u64 {
    clock.get(line).copied().unwrap_or(0)
}

pub fn join(into: &mut Clock, other: &[u64]) {
    if into.len() < other.len() {
        into.resize(other.len(), 0);
    }
    into.iter_mut().zip(other).for_each(|(a, b)| *a = (*a).max(*b));
}

impl World {
    #[track_caller]
    pub fn violate(&mut self, what: impl Into<String>) {
        let what = what.into();
        if self.trace {
            eprintln!("  VIOLATION {what}");
        }
        self.violation.get_or_insert(what);
    }

    /// The line of a stream that the driver has made.
    pub fn adopt(&mut self, handle: u64, device: i32, key: u64, foreign: bool) -> usize {
        for old in self.lines.iter_mut().filter(|l| l.key == key) {
            (old.submitted, old.done) = (Line::GONE, Line::GONE);
        }
        let alive = true;
        self.lines.push(Line { handle, key, device, foreign, alive, ..Line::default() });
        self.lines.len() - 1
    }

    /// Whoever has memory of the device but none of its streams: a line that ends when he lets go.
    pub fn import(&mut self, at: usize, bytes: usize) -> usize {
        let places = self.places(at, bytes);
        let item = Item { number: 1, work: Work::Wait(Clock::new()), spans: vec![(at, bytes)], places };
        self.lines.push(Line { items: [item].into(), importer: true, ..Line::default() });
        self.lines.len() - 1
    }

    pub fn let_go(&mut self, line: usize) {
        self.lines[line].items.clear();
        self.lines[line].done = 1;
    }

    /// The streams that the library takes a stream for: the own default stream of a thread is that of all.
    pub fn meant(&self, line: usize) -> Vec<usize> {
        if !self.lines[line].thread {
            return vec![line];
        }
        (0..self.lines.len()).filter(|&n| self.lines[n].thread).collect()
    }

    /// All that is queued on the device.
    pub fn all(&self) -> Clock {
        self.lines.iter().map(|l| if l.device == 0 && !l.importer { l.queued() } else { 0 }).collect()
    }

    pub fn line_of(&self, handle: u64) -> Option<usize> {
        self.lines.iter().position(|l| l.alive && l.handle == handle)
    }

    fn handle(&mut self) -> u64 {
        self.old_handles.pop().unwrap_or_else(|| {
            self.handles += 16;
            self.handles
        })
    }

    /// Whether a run of granules has a part of a tie.
    pub fn cuts_a_tie(&self, first: u64, count: u64) -> bool {
        let met = self.ties.range(..first + count).filter(|t| t.0 + t.1 > first);
        met.into_iter().any(|(&at, &n)| at < first || at + n > first + count)
    }

    pub fn stream_create(&mut self) -> u64 {
        let handle = self.handle();
        self.lines.push(Line { handle, alive: true, ..Line::default() });
        handle
    }

    pub fn stream_destroy(&mut self, handle: u64) -> bool {
        let Some(line) = self.line_of(handle) else { return false };
        self.not_captured(line, "destroyed");
        self.lines[line].alive = false;
        self.old_handles.push(handle);
        true
    }

    pub fn event_create(&mut self) -> u64 {
        let handle = self.handle();
        self.events.insert(handle, Clock::new());
        handle
    }

    pub fn event_destroy(&mut self, event: u64) -> bool {
        let there = self.events.remove(&event).is_some();
        if there {
            self.old_handles.push(event);
        }
        there
    }

    pub fn not_captured(&mut self, line: usize, what: &str) {
        if self.lines[line].captured {
            self.violate(format!("a captured stream was {what}"));
        }
    }

    /// What comes before the next work of a stream.
    pub fn now(&self, line: usize) -> Clock {
        if self.cuda {
            return gpu::now(self, line);
        }
        let mut clock = self.lines[line].clock.clone();
        if clock.len() <= line {
            clock.resize(line + 1, 0);
        }
        clock[line] = self.lines[line].queued();
        clock
    }

    pub fn record(&mut self, line: usize, event: u64) -> bool {
        self.not_captured(line, "marked");
        let mut clock = self.now(line);
        if self.lie == Lie::Short {
            clock[line] = clock[line].saturating_sub(1);
        }
        self.events.insert(event, clock).is_some()
    }

    pub fn is_over(&self, clock: &[u64]) -> bool {
        clock.iter().zip(&self.lines).all(|(&c, l)| l.done >= c)
    }

    pub fn query(&self, event: u64) -> Option<bool> {
        let clock = self.events.get(&event)?;
        Some(self.lie == Lie::Passed || self.is_over(clock))
    }

    /// Whether unfinished work of a slow stream is among what a clock counts.
    pub fn is_held_up(&self, clock: &[u64]) -> bool {
        clock.iter().zip(&self.lines).any(|(&c, l)| l.slow && l.done < c)
    }

    /// What slow streams have to do next: by line, the number of the work.
    pub fn slow_left(&self) -> Vec<(usize, u64)> {
        let lines = self.lines.iter().enumerate().filter(|(_, l)| l.slow);
        lines.filter_map(|(n, l)| Some((n, l.items.front()?.number))).collect()
    }

    /// Whether a thread asks again and again, with no other call between: it waits.
    pub fn grows_impatient(&mut self) -> bool {
        const PATIENCE: u32 = 200;
        self.asked += 1;
        let impatient = self.asked > PATIENCE;
        if impatient {
            self.asked = 0;
        }
        impatient
    }

    pub fn wait(&mut self, line: usize, event: u64) -> bool {
        self.not_captured(line, "made to wait");
        let Some(clock) = self.events.get(&event).cloned() else { return false };
        if self.lie == Lie::NoWait || self.is_over(&clock) {
            return true;
        }
        join(&mut self.lines[line].clock, &clock);
        if line != 0 {
            self.queue(line, Work::Wait(clock));
        }
        true
    }

    /// Bytes of the hardware behind addresses.
    pub fn places(&self, at: usize, bytes: usize) -> Vec<Place> {
        if self.cuda {
            return gpu::behind(at, bytes);
        }
        let Some((base, shown)) = &self.window else { return vec![(at as u64, bytes as u64)] };
        let Some(mut off) = at.checked_sub(*base).map(|o| o as u64) else {
            return vec![(at as u64, bytes as u64)];
        };
        let end = off + bytes as u64;
        let mut all = Vec::new();
        while off < end {
            let part = (GRANULE - off % GRANULE).min(end - off);
            match shown.get((off / GRANULE) as usize) {
                Some(Some(g)) => all.push((1 << 60 | (g * GRANULE + off % GRANULE), part)),
                Some(None) => all.push((0, 0)),
                None => all.push((base.wrapping_add(off as usize) as u64, part)),
            }
            off += part;
        }
        all
    }

    pub fn queue(&mut self, line: usize, work: Work) {
        let spans = match work {
            Work::Use { at, bytes, .. } => vec![(at, bytes)],
            Work::Move { to, from, bytes } => vec![(to, bytes), (from, bytes)],
            Work::Fill { to, bytes, .. } => vec![(to, bytes)],
            Work::Wait(_) | Work::Call(_) => vec![],
        };
        let places: Vec<Place> = spans.iter().flat_map(|&(a, b)| self.places(a, b)).collect();
        if places.contains(&(0, 0)) {
            self.violate("work is queued on memory of a live block that nothing stands behind");
        }
        // CUDA refuses work of the legacy stream beside a capture; the model has it nevertheless.
        let is_refused = line == 0 && self.lines.iter().any(|line| line.captured);
        let l = &mut self.lines[line];
        let (mut number, mut work) = (l.queued() + 1, work);
        if l.key != 0 {
            let queued = std::mem::replace(&mut work, Work::Wait(Clock::new()));
            number = if is_refused { gpu::force(l.key, queued) } else { gpu::launch(l.key, queued) };
            l.submitted = number;
        }
        l.items.push_back(Item { number, work, spans, places });
    }

    /// Work that the driver has in the stream already.
    pub fn queued(&mut self, line: usize, spans: Vec<(usize, usize)>) {
        let places = spans.iter().flat_map(|&(a, b)| self.places(a, b)).collect();
        let l = &mut self.lines[line];
        let number = l.queued();
        l.items.push_back(Item { number, work: Work::Wait(Clock::new()), spans, places });
    }

    /// The first unfinished work on any of these places that is not ordered before work that comes after `clock`.
    pub fn unordered(&self, places: &[Place], clock: Option<&Clock>) -> Option<String> {
        for (n, line) in self.lines.iter().enumerate() {
            let before = clock.map_or(0, |c| at(c, n));
            for item in &line.items {
                let number = item.number;
                let touches =
                    item.places.iter().any(|a| places.iter().any(|b| a.0 < b.0 + b.1 && b.0 < a.0 + a.1));
                if touches && before < number {
                    let end = if line.alive { "" } else { ", which has ended," };
                    return Some(format!("work {number} of stream line {n}{end} ({} done)", line.done));
                }
            }
        }
        None
    }

    /// Memory is about to lose its address: no unfinished work may use it there.
    pub fn check_addresses(&mut self, at: usize, bytes: usize, what: &str) {
        let mut found = None;
        for (n, line) in self.lines.iter().enumerate() {
            for (i, item) in line.items.iter().enumerate() {
                if item.spans.iter().any(|s| s.0 < at + bytes && at < s.0 + s.1) {
                    let number = line.done + line.running + i as u64 + 1;
                    let end = if line.alive { "" } else { ", which has ended," };
                    found.get_or_insert(format!("work {number} of stream line {n}{end} still uses it"));
                }
            }
        }
        if let Some(text) = found {
            self.violate(format!("memory is {what}, and {text}"));
        }
    }

    pub fn touch(&mut self, work: Work) {
        match work {
            Work::Use { at, bytes, tag, look, check } => {
                if !check || bytes < 16 {
                    return;
                }
                for place in [at, at + bytes - 8] {
                    let p: *mut u64 = std::ptr::with_exposed_provenance_mut(place);
                    // The addresses are those of a block that the library gave, and what may not be mapped was told.
                    let seen = unsafe { p.read_unaligned() };
                    if look && seen != tag {
                        self.violate(format!("the work on the block of tag {tag:#x} finds {seen:#x}"));
                    }
                    unsafe { p.write_unaligned(tag) };
                }
            }
            Work::Move { to, from, bytes } => unsafe {
                let from: *const u8 = std::ptr::with_exposed_provenance(from);
                std::ptr::with_exposed_provenance_mut::<u8>(to).copy_from(from, bytes);
            },
            Work::Fill { to, value, bytes } => unsafe {
                std::ptr::with_exposed_provenance_mut::<u8>(to).write_bytes(value, bytes);
            },
            Work::Wait(_) | Work::Call(_) => {}
        }
    }

    /// A call fails the nth time from now.
    pub fn fail(&mut self, call: &str, nth: u64, code: Code) {
        self.faults.push(Fault { call: call.to_owned(), left: nth, code });
    }

    pub fn mend(&mut self) {
        self.faults.clear();
    }

    /// Runs `body` on another thread when the nth call of that name stands.
    pub fn hold(&mut self, hook: Hook) {
        self.hook = Some(hook);
    }

    /// What was to run and did not.
    pub fn take_hook(&mut self) -> Option<Box<dyn FnOnce() + Send>> {
        self.hook.take().map(|h| h.body)
    }

    pub fn take_held(&mut self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut self.held)
    }
}
