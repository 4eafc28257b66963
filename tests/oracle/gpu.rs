//! The oracle's device as CUDA: the fake driver, whose time is the world's. Streams run only what a step lets them run
//! or what a call waits for. The driver reports how far each stream has come and which work precedes which; the world
//! only records which memory each piece of work uses. Every call of the driver by the library goes through
//! `time::enter`, so that it can be held and made to fail.

use super::cuda::Fake;
use super::time;
use super::world::{Clock, Line, Place, Work, World, world};
use millpond::Code;
use millpond::capi::*;
use std::cell::Cell;
use std::ffi::{CString, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};

/// What the driver and the library are told.
#[derive(Clone, Copy)]
pub struct Manner {
    pub devices: usize,
    pub settings: &'static [(&'static str, &'static str)],
    pub options: &'static str,
}

type Pairs = [[u64; 2]; 256];

type Kernel = extern "C" fn(*mut c_void);
type Spans = *const [u64; 2];
type Launch = extern "C" fn(u64, Spans, usize, Spans, usize, u32, Kernel, *mut c_void, *mut u64) -> u32;

/// The fake's controls.
struct Controls {
    fake: Fake,
    pace: extern "C" fn(c_int),
    observe: extern "C" fn(Option<extern "C" fn(*const u8, usize) -> u32>),
    launch: extern "C" fn(u64, Kernel, *mut c_void) -> u64,
    kernel: Launch,
    aliases: extern "C" fn() -> u64,
    state: extern "C" fn(u64, *mut u64, *mut u64) -> c_int,
    before: extern "C" fn(u64, *mut [u64; 2], usize) -> usize,
    run: extern "C" fn(u64, u64),
    behind: extern "C" fn(c_int, u64, usize, *mut [u64; 2], usize) -> usize,
    read: extern "C" fn(c_int, u64, *mut c_void, usize) -> u32,
    write: extern "C" fn(c_int, u64, *const c_void, usize) -> u32,
    used: extern "C" fn(c_int) -> u64,
}

static CONTROLS: OnceLock<&'static Controls> = OnceLock::new();

/// Kernels are dependent launches, each beside the ones before it in its stream: no memory may be at two addresses then.
/// With the options of these kinds of device none is.
static EARLY: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread calls the driver itself.
    static OURS: Cell<bool> = const { Cell::new(false) };
    /// Which of the threads that have a default stream of their own it is.
    pub static THREAD: Cell<Option<usize>> = const { Cell::new(None) };
}

fn controls() -> &'static Controls {
    CONTROLS.get_or_init(|| {
        let fake = Fake::raw(&[]);
        Box::leak(Box::new(Controls {
            pace: fake.driver("fakecuda_pace"),
            observe: fake.driver("fakecuda_observe"),
            launch: fake.driver("fakecuda_launch"),
            kernel: fake.driver("fakecuda_kernel"),
            aliases: fake.driver("fakecuda_aliases"),
            state: fake.driver("fakecuda_stream_state"),
            before: fake.driver("fakecuda_stream_before"),
            run: fake.driver("fakecuda_stream_run"),
            behind: fake.driver("fakecuda_behind"),
            read: fake.driver("fakecuda_read"),
            write: fake.driver("fakecuda_write"),
            used: fake.driver("fakecuda_used"),
            fake,
        }))
    })
}

/// What the program's calls are called, and the driver's.
const CALLS: &[(&str, &str)] = &[
    ("cuEventRecord", "record"),
    ("cuCtxRecordEvent", "record"),
    ("cuEventQuery", "query"),
    ("cuStreamWaitEvent", "wait"),
    ("cuCtxSynchronize", "sync"),
    ("cuStreamSynchronize", "sync_stream"),
    ("cuEventSynchronize", "sync_event"),
    ("cuEventCreate", "event_create"),
    ("cuEventDestroy_v2", "event_destroy"),
    ("cuMemCreate", "create"),
    ("cuMemRelease", "release"),
    ("cuMemMap", "map"),
    ("cuMemSetAccess", "map"),
    ("cuMemUnmap", "unmap"),
    ("cuMemAlloc_v2", "alloc"),
    ("cuMemAllocFromPoolAsync", "alloc"),
    ("cuMemHostAlloc", "alloc"),
    ("cuMemFree_v2", "free"),
    ("cuMemFreeAsync", "free"),
    ("cuMemFreeHost", "free"),
    ("cuStreamCreate", "stream_create"),
    ("cuStreamDestroy_v2", "stream_destroy"),
    ("cuLaunchHostFunc", "callback"),
    ("cuMemcpyHtoDAsync_v2", "copy"),
    ("cuMemcpyDtoHAsync_v2", "copy"),
    ("cuMemcpyDtoDAsync_v2", "copy"),
];

extern "C" fn told(name: *const u8, length: usize) -> u32 {
    if OURS.get() {
        return 0;
    }
    let name = unsafe { std::slice::from_raw_parts(name, length) };
    let Some((_, call)) = CALLS.iter().find(|c| c.0.as_bytes() == name) else { return 0 };
    let failed = time::enter(call);
    // A caller that queries again and again, with no other call between, is waiting.
    if *call == "query" && world().grows_impatient() {
        let all: Clock = world().lines.iter().map(Line::queued).collect();
        let slow = world().is_held_up(&all);
        if !(slow && time::run_quick()) {
            time::run_clock(&all);
        }
    }
    match failed.err() {
        None => 0,
        Some(Code::OutOfMemory) => 2,
        Some(Code::System) => 304,
        Some(_) => 999,
    }
}

/// Runs it as calls of the program's own, with a device's primary context.
fn ourselves(device: i32, body: impl FnOnce(&Fake)) {
    let fake = &controls().fake;
    OURS.set(true);
    fake.with_primary(device, || body(fake));
    OURS.set(false);
}

pub fn register(manner: Manner, capacity: usize, tie: u64) {
    let c = controls();
    (c.observe)(None);
    let capacity = capacity.to_string();
    let devices = manner.devices.to_string();
    let mut settings = vec![("capacity", capacity.as_str()), ("devices", &devices)];
    settings.extend(manner.settings);
    c.fake.renew(&settings, |o| {
        (o.tie, o.tie_growth) = (Some(tie * super::cuda::GRANULE), Some(2 * super::cuda::GRANULE));
    });
    (c.pace)(1);
    let scatters = manner.options.is_empty() || manner.options == "streams_announced:on";
    EARLY.store(!scatters, Relaxed);
    let (name, options) = (CString::new("cuda").unwrap(), CString::new(manner.options).unwrap());
    let status = unsafe { millpond_set_default_options(name.as_ptr(), -1, options.as_ptr()) };
    assert_eq!(status, C_Status::SUCCESS);
    (c.observe)(Some(told));
}

/// The lines that are there from the start: the legacy stream, and the own default streams of the two threads.
pub fn begin() {
    THREAD.set(Some(0));
    let mut lines = vec![Line { key: key(0, 0), handle: 0, ..Line::default() }];
    let other = std::sync::Mutex::new(0);
    elsewhere(|| *other.lock().unwrap() = key(0, 2));
    for key in [key(0, 2), other.into_inner().unwrap()] {
        lines.push(Line { key, handle: 2, thread: true, ..Line::default() });
    }
    world().lines = lines;
    world().cuda = true;
}

/// How the driver knows a stream, and has told nobody.
pub fn key(device: i32, handle: u64) -> u64 {
    let mut key = 0_u64;
    ourselves(device, |fake| {
        let id: extern "C" fn(u64, *mut u64) -> u32 = fake.driver("cuStreamGetId");
        assert_eq!(id(handle, &mut key), 0);
    });
    key
}

/// Another thread, always the same, runs it meanwhile.
pub fn elsewhere(body: impl FnOnce() + Send) {
    type Body = Box<dyn FnOnce() + Send>;
    static OTHER: OnceLock<Sender<(Body, Sender<()>)>> = OnceLock::new();
    let other = OTHER.get_or_init(|| {
        let (give, take) = channel::<(Body, Sender<()>)>();
        std::thread::spawn(move || {
            THREAD.set(Some(1));
            take.iter().for_each(|(body, done)| {
                body();
                let _ = done.send(());
            });
        });
        give
    });
    let (done, wait) = channel();
    let body: Box<dyn FnOnce() + Send + '_> = Box::new(body);
    // It is waited for here.
    let body = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Body>(body) };
    other.send((body, done)).unwrap();
    let _ = wait.recv();
}

/// A framework's stream.
pub fn stream_create(device: i32, flags: u32) -> u64 {
    let mut stream = 0_u64;
    ourselves(device, |fake| {
        let create: extern "C" fn(*mut u64, u32) -> u32 = fake.driver("cuStreamCreate");
        assert_eq!(create(&mut stream, flags), 0);
    });
    stream
}

/// `told`: the library knows. Else no stream may have the handle after it: it would be taken for this one (docs/cuda.md).
pub fn stream_destroy(device: i32, handle: u64, told: bool) {
    ourselves(device, |fake| {
        let destroy: extern "C" fn(u64) -> u32 = fake.driver("cuStreamDestroy_v2");
        assert_eq!(fake.set("reuse", if told { "1" } else { "0" }), 0);
        assert_eq!(destroy(handle), 0);
        assert_eq!(fake.set("reuse", "1"), 0);
    });
}

pub fn capture_begin(handle: u64) {
    ourselves(0, |fake| {
        let begin: extern "C" fn(u64, u32) -> u32 = fake.driver("cuStreamBeginCapture_v2");
        assert_eq!(begin(handle, 0), 0);
    });
}

/// Whether nothing has ended the capture before.
pub fn capture_end(handle: u64) -> bool {
    let mut graph = 0_u64;
    ourselves(0, |fake| {
        let end: extern "C" fn(u64, *mut u64) -> u32 = fake.driver("cuStreamEndCapture");
        let destroy: extern "C" fn(u64) -> u32 = fake.driver("cuGraphDestroy");
        if end(handle, &mut graph) == 0 && graph != 0 {
            assert_eq!(destroy(graph), 0);
        }
    });
    graph != 0
}

/// The world as the driver has it now.
pub fn refresh(w: &mut World) {
    let c = controls();
    for line in w.lines.iter_mut().filter(|l| l.key != 0 && l.done != Line::GONE) {
        let (mut submitted, mut completed) = (0, 0);
        let state = (c.state)(line.key, &mut submitted, &mut completed);
        if state == 0 {
            (submitted, completed) = (Line::GONE, Line::GONE);
        }
        (line.submitted, line.done, line.alive) = (submitted, completed, state == 2 && !line.ended);
        line.items.retain(|item| item.number > completed);
    }
    w.taken = (c.used)(0);
}

/// What comes before a stream's next work.
pub fn now(w: &World, line: usize) -> Clock {
    let mut pairs: Pairs = [[0; 2]; 256];
    let count = (controls().before)(w.lines[line].key, pairs.as_mut_ptr(), pairs.len());
    assert!(count <= pairs.len());
    let mut clock = vec![0; w.lines.len()];
    for [key, seq] in &pairs[..count] {
        if let Some(at) = w.lines.iter().rposition(|l| l.key == *key) {
            clock[at] = *seq;
        }
    }
    clock
}

pub fn behind(at: usize, bytes: usize) -> Vec<Place> {
    let mut pairs: Pairs = [[0; 2]; 256];
    let count = (controls().behind)(0, at as u64, bytes, pairs.as_mut_ptr(), pairs.len());
    assert!(count <= pairs.len());
    let all: Vec<Place> = pairs[..count].iter().map(|p| (p[0], p[1])).collect();
    if all.is_empty() { vec![(0, 0)] } else { all }
}

/// Lets a stream run up to a number; 0: its next work, if that waits for nothing.
pub fn run(key: u64, number: u64) {
    (controls().run)(key, number);
}

/// Queues work; its number.
pub fn launch(key: u64, work: Work) -> u64 {
    let Work::Use { at, bytes: bytes @ 16.., check: true, .. } = work else { return force(key, work) };
    let (span, mut number) = ([at as u64, bytes as u64], 0);
    let all = &raw const span;
    let data = Box::into_raw(Box::new(work)).cast();
    let flags = EARLY.load(Relaxed).into();
    assert_eq!((controls().kernel)(key, all, 1, all, 1, flags, kernel, data, &mut number), 0);
    number
}

/// The same where a driver refuses a launch.
pub fn force(key: u64, work: Work) -> u64 {
    (controls().launch)(key, kernel, Box::into_raw(Box::new(work)).cast())
}

extern "C" fn kernel(data: *mut c_void) {
    let work = unsafe { Box::from_raw(data.cast::<Work>()) };
    if let Work::Use { at, bytes, tag, look, check: true } = *work {
        touch(at, bytes, tag, look);
    }
}

/// How often memory was used at two addresses where CUDA allows only one.
pub fn aliases() -> u64 {
    (controls().aliases)()
}

/// A kernel finds the tag at both ends of a block, and writes it.
fn touch(at: usize, bytes: usize, tag: u64, look: bool) {
    for place in [at, at + bytes.max(8) - 8] {
        let mut seen = 0_u64;
        let there = bytes >= 16 && (controls().read)(0, place as u64, (&raw mut seen).cast(), 8) == 0;
        if bytes >= 16 && !there {
            world().violate(format!("the work on the block of tag {tag:#x} finds no memory"));
        }
        if there && look && seen != tag {
            world().violate(format!("the work on the block of tag {tag:#x} finds {seen:#x}"));
        }
        if there {
            (controls().write)(0, place as u64, (&raw const tag).cast(), 8);
        }
    }
}
