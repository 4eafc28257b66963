//! Runs a program on a kind of device: each operation calls the C API, and the result is compared with the model. The
//! first difference ends the program.
//!
//! No lock of the oracle is held during a call of the library: an operation looks up what it may do, calls, and then
//! records the result. So one operation can run while another is held.

use super::apart::OPERATIONS;
use super::api::{self, Device, Failed};
use super::model::{Model, PoolOf};
use super::program::{BLOCKS, CALLS, CODES, Op, What, unrolled};
use super::random::Taste;
use super::time;
use super::world::{self, Hook, Lie, World, world};
use super::{device, gpu, plugin};
use millpond::Code;
use millpond::capi::*;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

/// A kind of device.
#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    pub maps: bool,
    /// Whether it takes from the device just what is reserved.
    pub exact: bool,
    pub capacity: usize,
    pub plugin: Option<plugin::Manner>,
    pub cuda: Option<gpu::Manner>,
    /// Where that is little: for how many blocks there are numbers.
    pub numbers: Option<u64>,
    /// Granules of a tie at most.
    pub tie: u64,
}

const MIB: usize = 1 << 20;
/// [B] Larger blocks may have to wait for memory that somebody else gives back or takes just now.
const LARGE: u64 = 1 << 20;

pub const KINDS: &[Kind] = &[
    Kind { name: "mapping", maps: true, capacity: 32 * MIB, ..PLAIN },
    Kind { name: "few_numbers", maps: true, capacity: 32 * MIB, numbers: Some(1000), ..PLAIN },
    Kind { name: "ties", maps: true, capacity: 32 * MIB, tie: 4, ..PLAIN },
    Kind { name: "small", maps: true, capacity: 14 * MIB, ..PLAIN },
    Kind { name: "segments", capacity: 48 * MIB, ..PLAIN },
    of("plugin", plugin::FULL),
    of(
        "odd_sizes",
        plugin::Manner {
            min_chunk: 3 << 8,
            max_chunk: 5 * MIB,
            init: 3 * MIB,
            realloc: 7 * MIB,
            padding: 64,
            ..plugin::FULL
        },
    ),
    of("no_events", plugin::Manner { events: false, ..plugin::FULL }),
    of("no_synchronize", plugin::Manner { synchronize: false, ..plugin::FULL }),
    of("no_queries", plugin::Manner { query: false, callbacks: false, ..plugin::FULL }),
    Kind { maps: true, ..cuda("cuda", ONE) },
    Kind { maps: true, ..cuda("cuda_two", gpu::Manner { devices: 2, ..ONE }) },
    // Without an event of all streams, and much else that is newer.
    Kind { maps: true, ..cuda("cuda_old", gpu::Manner { settings: OLD, ..ONE }) },
    Kind { maps: true, ..cuda("cuda_announced", ANNOUNCED) },
    Kind { maps: true, tie: 3, ..cuda("cuda_ties", ONE) },
    Kind { exact: false, ..cuda("cuda_unscattered", gpu::Manner { options: "scatter:off", ..ONE }) },
    cuda("cuda_segments", gpu::Manner { options: "expandable_segments:False", ..ONE }),
    Kind { exact: false, ..cuda("cuda_none", gpu::Manner { devices: 2, options: "backend:none", ..ONE }) },
    Kind {
        exact: false,
        ..cuda("cuda_async", gpu::Manner { devices: 2, options: "backend:cudaMallocAsync", ..ONE })
    },
];

const PLAIN: Kind =
    Kind { name: "", maps: false, exact: true, capacity: 0, plugin: None, cuda: None, numbers: None, tie: 0 };
/// A driver without an event for a whole context, which checks handles.
const OLD: &[(&str, &str)] = &[("driver", "12000"), ("ended", "refuse")];
const ONE: gpu::Manner = gpu::Manner { devices: 1, settings: &[], options: "" };

/// Each stream is marked by itself, whether or not it has ended without notice: a driver that checks refuses that.
const ANNOUNCED: gpu::Manner =
    gpu::Manner { devices: 1, settings: &[("ended", "refuse")], options: "streams_announced:on" };

const fn cuda(name: &'static str, manner: gpu::Manner) -> Kind {
    Kind { name, capacity: 48 * MIB, cuda: Some(manner), ..PLAIN }
}

const fn of(name: &'static str, manner: plugin::Manner) -> Kind {
    let exact = manner.min_chunk.is_power_of_two();
    Kind { name, exact, capacity: manner.capacity, plugin: Some(manner), ..PLAIN }
}

impl Kind {
    /// Whether somebody else keeps the memory.
    pub fn backend(&self) -> bool {
        self.cuda.is_some() && !self.exact
    }

    pub fn taste(&self) -> Taste {
        Taste { cuda: self.cuda.is_some(), repeats: self.numbers.is_some(), small: self.capacity < 16 * MIB }
    }

    fn start(&self, lie: Lie) -> Device {
        let _ = millpond_finalize();
        world::reset(lie);
        match (self.plugin, self.cuda) {
            (Some(manner), _) => plugin::register(manner),
            (_, Some(manner)) => gpu::register(manner, self.capacity, self.tie),
            _ => device::register(self.capacity, self.maps, self.numbers, self.tie),
        }
        let d = Device::get(if self.cuda.is_some() { "cuda" } else { "oracle" }, 0).unwrap();
        if self.cuda.is_some() {
            gpu::begin();
        }
        d
    }
}

thread_local! {
    /// The program's own thread, which has its scopes.
    pub static MAIN: Cell<bool> = const { Cell::new(false) };
    pub static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

pub struct Run {
    pub kind: Kind,
    pub d: Device,
    /// Where there is another: the second device.
    pub second: Option<Device>,
    pub m: Mutex<Model>,
    pub join: api::Event,
}

/// How a program failed.
#[derive(Clone, Debug)]
pub struct Failure {
    pub op: usize,
    pub text: String,
}

/// Runs it from new; how many operations were done.
pub fn run(kind: Kind, program: &[Op], lie: Lie) -> Result<u64, Failure> {
    MAIN.set(true);
    let fail = |op, text| Failure { op, text };
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let d = kind.start(lie);
        let mut m = Model { blocks: vec![None; BLOCKS as usize], ..Model::default() };
        m.streams[0] = Some(0);
        m.pools[0] = Some(PoolOf { pool: d.default_pool(), number: 0, bound: u64::MAX });
        m.bound = u64::MAX;
        let join = d.event();
        let two = kind.cuda.is_some_and(|c| c.devices > 1);
        let second = two.then(|| Device::get("cuda", 1).unwrap());
        Arc::new(Run { kind, d, second, m: Mutex::new(m), join })
    }));
    let r = caught.map_err(|e| fail(0, format!("the start: {}", said(&*e))))?;
    let (places, all): (Vec<usize>, Vec<Op>) = unrolled(program).into_iter().unzip();
    let mut i = 0;
    while i < all.len() {
        let before = places[i];
        let ops = &all[i..];
        i += 1;
        let trace = world().trace;
        if trace {
            eprintln!("{before}: {}", ops[0]);
        }
        if let Some((beside, held)) = held(ops) {
            i += 2 * beside.len();
            if trace {
                let beside: Vec<String> = beside.iter().map(ToString::to_string).collect();
                eprintln!("   {}, while this is held: {held}", beside.join(", "));
            }
            r.beside(ops[0], beside, held);
        } else if ops[0].what == What::Elsewhere && ops.len() > 1 {
            i += 1;
            gpu::elsewhere(|| r.guarded(ops[1]));
        } else {
            r.guarded(ops[0]);
        }
        r.m().done += 1;
        OPERATIONS.fetch_add(1, Relaxed);
        if let Some(text) = r.settle() {
            return Err(fail(before, text));
        }
    }
    r.finish();
    let text = r.settle();
    let done = r.m().done;
    match text {
        Some(text) => Err(fail(program.len(), text)),
        None => Ok(done),
    }
}

/// Where the first operation says so: those that come while another one is held, and that one.
fn held(ops: &[Op]) -> Option<(Vec<Op>, Op)> {
    let mut at = 1;
    while ops.get(at + 1).is_some_and(|op| op.what == What::Also) {
        at += 2;
    }
    let held = *ops.get(at + 1)?;
    let beside: Vec<Op> = ops[1..=at].iter().step_by(2).copied().collect();
    let parts = |op: &Op| matches!(op.what, What::During | What::Also);
    (ops[0].what == What::During && !parts(&held) && !beside.iter().any(parts)).then_some((beside, held))
}

pub fn said(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
}

impl Run {
    pub fn m(&self) -> MutexGuard<'_, Model> {
        self.m.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Threads that were let go on meanwhile end; what was found wrong.
    fn settle(&self) -> Option<String> {
        let mut late = false;
        let held = world().take_held(); // not to hold the world meanwhile
        for thread in held {
            let mut rounds = 0;
            while !thread.is_finished() && rounds < 20_000 {
                std::thread::sleep(std::time::Duration::from_micros(100));
                rounds += 1;
            }
            late |= !thread.is_finished();
        }
        if late {
            world().violate("a call never comes back");
        }
        world().violation.clone()
    }

    fn guarded(self: &Arc<Run>, op: Op) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.go(op))) {
            world().violate(format!("{op}: panics: {}", said(&*payload)));
        }
    }

    /// `second`, and while it is held in a call of the device, all of `first`.
    fn beside(self: &Arc<Run>, hold: Op, first: Vec<Op>, second: Op) {
        let me = self.clone();
        self.m().beside = true;
        const FREE: &[What] = &[What::Alloc, What::AllocAny, What::Free, What::FreeOn, What::Stats];
        let free = first.iter().all(|op| FREE.contains(&op.what));
        // Waits of its own would make it wait rightly.
        let free = free && self.kind.plugin.is_none_or(|p| p.events && p.query);
        let bytes = first.iter().map(|op| match op.what {
            What::Alloc => op.n[3],
            What::AllocAny => op.n[1],
            _ => 0,
        });
        let most = bytes.max().unwrap_or(0);
        // A limit makes memory as scarce as a small device.
        let bound = {
            let m = self.m();
            m.pools.iter().flatten().map(|p| p.bound).fold(m.bound, u64::min)
        };
        let late = first.clone();
        world().hold(Hook {
            call: CALLS[hold.n[0] as usize].to_owned(),
            left: hold.n[1],
            body: Box::new(move || first.into_iter().for_each(|op| me.guarded(op))),
            free,
            large: most > LARGE,
            bytes: most.next_multiple_of(world::GRANULE),
            // Where only few pieces can be shown, memory that is there may not be to be had.
            capacity: if self.kind.numbers.is_some() { 0 } else { bound.min(self.kind.capacity as u64) },
        });
        self.guarded(second);
        let left = world().take_hook();
        if left.is_some() {
            late.into_iter().for_each(|op| self.guarded(op));
        }
        let _ = self.settle();
        self.m().beside = false;
    }

    /// What a call said that failed: one of these codes, or what the program's faults explain.
    pub fn refused(&self, what: &str, e: &Failed, right: &[u32]) {
        let explained = self.m().faulty
            && matches!(e.code, MILLPOND_E_OUT_OF_MEMORY | MILLPOND_E_DEVICE | MILLPOND_E_SYSTEM);
        let callback = IN_CALLBACK.get() && e.code == MILLPOND_E_NOT_PERMITTED;
        if world().trace {
            eprintln!("    {what}: {} {}", e.code, e.message);
        }
        if !right.contains(&e.code) && !explained && !callback {
            world().violate(format!("{what} fails with code {}: {}", e.code, e.message));
        }
    }

    pub fn tell(&self, what: impl Into<String>) {
        world().violate(what);
    }

    pub fn go(self: &Arc<Run>, op: Op) {
        let [a, b, c, ..] = op.n;
        let (ax, bx) = (a as usize, b as usize);
        match op.what {
            What::Alloc => self.alloc(ax, bx, Some(c), op.n[3], op.n[4] > 0),
            What::AllocAny => self.alloc(ax, 0, None, b, c > 0),
            What::Free => self.free(ax, None, false),
            What::FreeOn => self.free(ax, Some(b), false),
            What::FreeTwice => self.free(ax, None, true),
            What::Record => self.record(ax, b, None),
            What::RecordEnd => self.record(ax, b, Some(None)),
            What::RecordEndAt => self.record(ax, b, Some(Some(c))),
            What::Use => self.use_block(ax, b),
            What::Host => self.host(ax),
            What::Step => {
                let line = ax % world().lines.len();
                (0..b).for_each(|_| time::step(line));
            }
            What::StepAll => {
                let all: Vec<u64> = world().lines.iter().map(|l| l.queued()).collect();
                time::run_clock(&all);
            }
            What::Callback => self.callback(ax, b, c),
            What::Fail => {
                self.m().faulty = true;
                let code = [Code::OutOfMemory, Code::Device, Code::System][c as usize % CODES.len()];
                world().fail(CALLS[ax], b, code);
            }
            What::Mend => world().mend(),
            What::During | What::Also | What::Repeat | What::Elsewhere => {}
            What::Slow => self.slow(a),
            What::Warm => self.warm(ax, bx, c, op.n[3]),
            What::History => self.history(a > 0),
            What::AllocHost => self.alloc_host(ax, b),
            What::Copy => self.copy(ax, bx, c),
            What::Export => self.export(ax),
            What::ExportEnd => self.export_end(),
            _ => self.other(op),
        }
    }
}

/// Whether a stream's next work comes after all that a clock counts.
pub fn after(w: &World, line: usize, clock: &[u64]) -> bool {
    let now = w.now(line);
    clock.iter().enumerate().all(|(n, &c)| w.lines[n].done >= c || now.get(n).is_some_and(|&x| x >= c))
}

pub fn remove<T: PartialEq>(list: &mut Vec<T>, one: &T) {
    if let Some(at) = list.iter().position(|x| x == one) {
        list.swap_remove(at);
    }
}
