//! Work in streams: what is queued, when it may run, and the threads that run it.
//!
//! A job runs when the one before it in its stream has run and everything it waits for in other streams has. A few
//! threads serve all streams; one is started when something is ready and none is idle, so a host callback that blocks
//! stops its own stream only. They end when there is nothing to do for a while. A thread that waits helps, but never
//! runs host callbacks.

use std::ffi::c_void;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUstream_st;

use crate::alias::{self, Grid, Way};
use crate::copy::Copy;
use crate::set::Set;
use crate::stream::Stream;
use crate::sync::{Condition, Guard, lock, wake_waiters, wake_worker};
use crate::world::{Answer, World};

const THREADS_MAX: usize = 128;
const IDLE: Duration = Duration::from_millis(200);

/// The threads that run jobs.
#[derive(Default)]
pub(crate) struct Executors {
    threads: usize,
    idle: usize,
}

#[derive(Clone)]
pub(crate) enum Work {
    Nothing,
    Event(u64, u64), // the event and which record of it
    Copy(Copy),
    Set(Set),
    Host(unsafe extern "C" fn(*mut c_void), *mut c_void),
    Callback(unsafe extern "C" fn(*mut CUstream_st, u32, *mut c_void), u64, *mut c_void),
    Many(Rc<[Step]>), // a graph; shared under the one lock only
    Grid(Grid),
    Give(u64),                                              // memory of a pool
    Kernel(unsafe extern "C" fn(*mut c_void), *mut c_void), // a test's
}

/// A node of a graph that runs.
pub(crate) struct Step {
    pub(crate) work: Work,
    /// The steps before it whose grids may still run when it begins: along programmatic edges.
    pub(crate) beside: Vec<usize>,
}

pub(crate) struct Job {
    pub(crate) seq: u64,
    pub(crate) after: Vec<(u64, u64)>, // (stream, seq) that must have run
    pub(crate) work: Work,
}

impl Work {
    fn has_callback(&self) -> bool {
        match self {
            Work::Host(..) | Work::Callback(..) => true,
            Work::Many(list) => list.iter().any(|step| step.work.has_callback()),
            _ => false,
        }
    }

    /// Whether it runs something of the program's, which may be long.
    fn gives_the_lock_up(&self) -> bool {
        match self {
            Work::Host(..) | Work::Callback(..) | Work::Kernel(..) => true,
            Work::Grid(grid) => grid.has_call(),
            Work::Many(list) => list.iter().any(|step| step.work.gives_the_lock_up()),
            _ => false,
        }
    }

    fn takes_no_time(&self) -> bool {
        matches!(self, Work::Nothing | Work::Event(..))
    }
}

/// True if a stream has run this job. A stream that is gone has run everything.
pub(crate) fn has_run(world: &World, stream: u64, seq: u64) -> bool {
    world.streams.get(&stream).is_none_or(|stream| stream.completed >= seq)
}

fn is_ready(world: &World, stream: &Stream) -> bool {
    !stream.running
        && stream
            .queue
            .front()
            .filter(|job| !world.control.paced || job.seq <= stream.allowed || job.work.takes_no_time())
            .is_some_and(|job| job.after.iter().all(|(stream, seq)| has_run(world, *stream, *seq)))
}

/// The jobs of other streams that the next one of a stream has to wait for in any case: the legacy stream's work waits
/// for all earlier work of blocking streams, and theirs for its.
pub(crate) fn coupled(world: &World, key: u64) -> Vec<(u64, u64)> {
    let Some(stream) = world.streams.get(&key) else { return Vec::new() };
    if stream.non_blocking && !stream.is_legacy {
        return Vec::new();
    }
    let couples = |other: &Stream| (other.is_legacy || stream.is_legacy) && !other.non_blocking;
    world
        .streams
        .iter()
        .filter(|(other_key, other)| **other_key != key && other.context == stream.context && couples(other))
        .filter(|(_, other)| other.completed < other.submitted)
        .map(|(key, other)| (*key, other.submitted))
        .collect()
}

/// Queues work and returns its number in the stream. `after` are waits besides the stream's own order.
pub(crate) fn submit(world: &mut Guard, key: u64, mut after: Vec<(u64, u64)>, work: Work) -> u64 {
    if !world.streams.contains_key(&key) {
        return 0;
    }
    after.extend(coupled(world, key));
    after.retain(|(stream, seq)| !has_run(world, *stream, *seq));
    let instant = work.takes_no_time() && after.is_empty() && !world.control.hold;
    let Some(stream) = world.streams.get_mut(&key) else { return 0 };
    stream.submitted += 1;
    let seq = stream.submitted;
    if instant && stream.queue.is_empty() && !stream.running {
        stream.completed = seq;
        if let Work::Event(event, record) = work {
            crate::event::happened(world, event, record);
        }
        return seq;
    }
    stream.queue.push_back(Job { seq, after, work });
    kick(world);
    seq
}

/// Makes sure that somebody looks for ready jobs.
pub(crate) fn kick(world: &mut World) {
    if world.control.hold || world.control.paced && !needs_a_thread(world) {
        return;
    }
    if world.executors.idle > 0 {
        wake_worker(world);
    } else if world.executors.threads < THREADS_MAX {
        let started = std::thread::Builder::new()
            .name("fakecuda".to_string())
            .stack_size(256 << 10)
            .spawn(executor)
            .is_ok();
        if started {
            world.executors.threads += 1;
        }
    }
}

/// Whether something is to run that who waits does not run.
fn needs_a_thread(world: &World) -> bool {
    let call = |stream: &Stream| stream.queue.front().is_some_and(|job| job.work.has_callback());
    !world.farewells.is_empty()
        || world.streams.values().any(|stream| call(stream) && is_ready(world, stream))
}

fn executor() {
    // A driver's thread takes no signals of the program.
    // SAFETY: a local set, and this thread's own mask.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
    let mut world = lock();
    loop {
        if run_one(&mut world, true) {
            continue;
        }
        world.executors.idle += 1;
        let woken = world.wait(Condition::Work, Some(IDLE));
        world.executors.idle -= 1;
        let nothing =
            world.destructors.is_empty() && !world.streams.values().any(|stream| is_ready(&world, stream));
        if !woken && nothing {
            world.executors.threads -= 1;
            return;
        }
    }
}

/// Before this thread does what may be long.
fn kick_for_others(world: &mut World) {
    if world.streams.values().any(|stream| is_ready(world, stream)) {
        kick(world);
    }
}

/// Runs one ready job of any stream. False: there is none.
fn run_one(world: &mut Guard, callbacks: bool) -> bool {
    if world.control.hold {
        return false;
    }
    if callbacks && let Some((destroy, data)) = crate::graph::next_destructor(world) {
        kick_for_others(world);
        // SAFETY: the C caller of cuUserObjectCreate promises that it may be called with this data.
        world.unlocked(|| crate::gate::as_callback(|| unsafe { destroy(data) }));
        return true;
    }
    let wanted = |stream: &Stream| {
        is_ready(world, stream)
            && (callbacks || !stream.queue.front().is_some_and(|job| job.work.has_callback()))
    };
    let Some(key) = world.streams.iter().find(|(_, stream)| wanted(stream)).map(|(key, _)| *key) else {
        return false;
    };
    let Some(stream) = world.streams.get_mut(&key) else { return false };
    let Some(job) = stream.queue.pop_front() else { return false };
    stream.running = true;
    if job.work.gives_the_lock_up() {
        kick_for_others(world);
    }
    match &job.work {
        // Its stream stands still until it is told to end.
        Work::Grid(grid) if grid.stays() && world.sticky.is_none() => {
            alias::arrive(world, key, job.seq, grid)
        }
        work => {
            run(world, key, work);
            finish(world, key, job.seq, callbacks);
        }
    }
    true
}

/// A grid that stayed has ended; `failed`: on memory that is not there.
pub(crate) fn ended(world: &mut Guard, key: u64, seq: u64, failed: bool) {
    if failed {
        illegal_address(world);
    }
    finish(world, key, seq, false);
    // Who says so runs nothing, and the threads that would have gone if there was nothing to do for a while.
    if world.executors.idle == 0 && world.streams.values().any(|stream| is_ready(world, stream)) {
        kick(world);
    }
}

/// A job has run. `goes_on`: this thread runs what is ready now.
fn finish(world: &mut World, key: u64, seq: u64, goes_on: bool) {
    if let Some(stream) = world.streams.get_mut(&key) {
        stream.completed = seq;
        stream.running = false;
        if stream.destroyed && stream.queue.is_empty() {
            world.streams.remove(&key);
        }
    }
    wake_waiters(world);
    if !world.farewells.is_empty() || world.control.paced {
        kick(world);
    } else if !goes_on
        && world.executors.idle > 0
        && world.streams.values().any(|stream| is_ready(world, stream))
    {
        wake_worker(world);
    }
}

/// Does the work. After a sticky error nothing runs any more, except that callbacks of `cuStreamAddCallback` are called
/// with the error.
fn run(world: &mut Guard, key: u64, work: &Work) {
    let failed = world.sticky;
    if !matches!(work, Work::Grid(grid) if grid.is_early()) && !work.takes_no_time() {
        overlap(world, key, Vec::new());
    }
    let result = match work {
        Work::Nothing => Ok(()),
        Work::Event(event, record) => {
            crate::event::happened(world, *event, *record);
            Ok(())
        }
        Work::Copy(copy) if failed.is_none() => crate::copy::run(world, copy),
        Work::Set(set) if failed.is_none() => crate::set::run(world, set),
        Work::Host(function, data) if failed.is_none() => {
            let (function, data) = (*function, *data);
            // SAFETY: the C caller of cuLaunchHostFunc promises that it may be called with this data.
            world.unlocked(|| crate::gate::as_callback(|| unsafe { function(data) }));
            Ok(())
        }
        Work::Callback(function, stream, data) => {
            let (function, stream, data) = (*function, *stream, *data);
            let status = failed.unwrap_or(0);
            world.unlocked(|| {
                // SAFETY: the C caller of cuStreamAddCallback promises that it may be called with this data.
                crate::gate::as_callback(|| unsafe { function(stream as *mut CUstream_st, status, data) });
            });
            Ok(())
        }
        Work::Many(list) => run_graph(world, key, list),
        Work::Grid(grid) if failed.is_none() => {
            let mut beside = overlap(world, key, Vec::new());
            alias::run(world, grid, &beside).map(|written| {
                beside.push(written);
                overlap(world, key, beside);
            })
        }
        Work::Kernel(function, data) => {
            let (function, data) = (*function, *data);
            // SAFETY: the C caller of fakecuda_launch promises that it may be called with this data.
            world.unlocked(|| unsafe { function(data) });
            Ok(())
        }
        Work::Give(at) => {
            crate::pool::given_back(world, *at);
            Ok(())
        }
        _ => Ok(()),
    };
    if result.is_err() {
        illegal_address(world);
    }
}

/// What a kernel or copy engine does on memory that is gone: an illegal address, and the end of everything.
fn illegal_address(world: &mut World) {
    world.sticky = Some(crate::code::ILLEGAL_ADDRESS);
    world.control.log_line("asynchronous work touched memory that is not there".to_string());
}

/// Sets what grids that may still run in a stream have written; returns what that was.
fn overlap(world: &mut World, key: u64, written: Vec<Vec<Way>>) -> Vec<Vec<Way>> {
    world.streams.get_mut(&key).map_or(Vec::new(), |stream| std::mem::replace(&mut stream.overlap, written))
}

fn run_graph(world: &mut Guard, key: u64, list: &[Step]) -> Answer {
    let mut written: Vec<Vec<Way>> = Vec::with_capacity(list.len());
    for Step { work, beside } in list {
        let mut own = Vec::new();
        match work {
            Work::Grid(grid) if world.sticky.is_none() => {
                let beside: Vec<Vec<Way>> = beside.iter().map(|step| written[*step].clone()).collect();
                own = alias::run(world, grid, &beside)?;
            }
            work => run(world, key, work),
        }
        written.push(own);
    }
    Ok(())
}

/// Waits until a stream has run this job; helps meanwhile. A moment at which pools give memory back, as documented.
pub(crate) fn wait_for(world: &mut Guard, stream: u64, seq: u64) {
    if world.control.paced {
        crate::pace::allow(world, stream, seq);
    }
    while !has_run(world, stream, seq) {
        if !run_one(world, false) {
            world.wait(Condition::Done, None);
        } else if world.executors.idle == 0 && needs_a_thread(world) {
            kick(world); // that may have taken so long that the threads have gone
        }
    }
    // What takes no time has run, too.
    while world.control.paced && run_one(world, false) {}
    crate::pool::trim_all(world);
}

/// Waits for all work that a context has now.
pub(crate) fn drain_context(world: &mut Guard, context: u64) {
    let all: Vec<(u64, u64)> = world
        .streams
        .iter()
        .filter(|(_, stream)| stream.context == context)
        .map(|(key, stream)| (*key, stream.submitted))
        .collect();
    for (key, seq) in all {
        wait_for(world, key, seq);
    }
    crate::pool::trim_all(world);
}

/// The sticky error, after work has been waited for.
pub(crate) fn sticky(world: &World) -> Answer {
    world.sticky.map_or(Ok(()), Err)
}

/// Now, for events.
pub(crate) fn now() -> Instant {
    Instant::now()
}
