//! Time in the hands of a test: streams that run nothing but what the test lets run, or what somebody waits for; work
//! that is a function of the test; and what a test must know of order. `fakecuda.h` has the C declarations.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::exec::{self, Job, Work};
use crate::space::{self, Side};
use crate::sync::{Guard, lock};
use crate::world::World;

type Observer = unsafe extern "C" fn(*const c_char, usize) -> u32;

static OBSERVER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Tells the test of a call that begins; the code that it is to fail with.
pub(crate) fn tell(name: &'static str) -> Option<u32> {
    let to = OBSERVER.load(Ordering::Acquire);
    if to.is_null() {
        return None;
    }
    // SAFETY: only `fakecuda_observe` writes there, and what it writes is such a function or null.
    let to = unsafe { std::mem::transmute::<*mut c_void, Observer>(to) };
    // SAFETY: the C caller of fakecuda_observe promises that it may be called so.
    Some(unsafe { to(name.as_ptr().cast(), name.len()) }).filter(|code| *code != 0)
}

/// The jobs, by stream and number, that must have run before a stream's next one, with theirs.
fn before(world: &World, key: u64) -> Vec<(u64, u64)> {
    let Some(stream) = world.streams.get(&key) else { return Vec::new() };
    let mut all: Vec<(u64, u64)> = Vec::new();
    let mut open = exec::coupled(world, key);
    open.push((key, stream.submitted));
    while let Some((key, seq)) = open.pop() {
        match all.iter_mut().find(|known| known.0 == key) {
            Some(known) if known.1 >= seq => continue,
            Some(known) => known.1 = seq,
            None => all.push((key, seq)),
        }
        let Some(stream) = world.streams.get(&key) else { continue };
        open.extend(stream.queue.iter().filter(|job| job.seq <= seq).flat_map(|job| &job.after));
    }
    all
}

/// Lets a stream run up to this job, and others what that waits for.
pub(crate) fn allow(world: &mut Guard, key: u64, seq: u64) {
    let Some(stream) = world.streams.get_mut(&key).filter(|stream| stream.allowed < seq) else { return };
    stream.allowed = seq;
    let after: Vec<(u64, u64)> =
        stream.queue.iter().filter(|job| job.seq <= seq).flat_map(|job| job.after.iter().copied()).collect();
    for (key, seq) in after {
        allow(world, key, seq);
    }
    exec::kick(world);
}

/// With 1, a stream runs only what `fakecuda_stream_run` lets it run, and what somebody waits for.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_pace(on: c_int) {
    let mut world = lock();
    world.control.paced = on != 0;
    exec::kick(&mut world);
}

/// Tells a function of each driver call before it begins; what it returns, unless 0, is the call's failure.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_observe(observer: Option<Observer>) {
    let to = observer.map_or(std::ptr::null_mut(), |f| f as *mut c_void);
    OBSERVER.store(to, Ordering::Release);
}

/// Queues a function as a kernel: any thread runs it, also one that waits. Its number in the stream; 0: no stream.
///
/// # Safety
/// The function may be called with `data` from any thread until it has been.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_launch(
    stream: u64,
    kernel: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
) -> u64 {
    exec::submit(&mut lock(), stream, Vec::new(), Work::Kernel(kernel, data))
}

/// How many jobs a stream was given and how many have run. 0: it is gone; 1: it has ended, with work; 2: it is open.
///
/// # Safety
/// Both can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_stream_state(
    stream: u64,
    submitted: *mut u64,
    completed: *mut u64,
) -> c_int {
    let world = lock();
    let Some(stream) = world.streams.get(&stream) else { return 0 };
    // SAFETY: the caller's.
    unsafe { submitted.write(stream.submitted) };
    // SAFETY: the caller's.
    unsafe { completed.write(stream.completed) };
    if stream.destroyed { 1 } else { 2 }
}

/// What must have run before a stream's next job: pairs of a stream and a number. How many there are.
///
/// # Safety
/// `to` has room for `count` pairs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_stream_before(stream: u64, to: *mut [u64; 2], count: usize) -> usize {
    let all = before(&lock(), stream);
    for (i, (key, seq)) in all.iter().enumerate().take(count) {
        // SAFETY: the caller's, i < count.
        unsafe { to.add(i).write([*key, *seq]) };
    }
    all.len()
}

/// Runs a stream up to a job, and what that waits for; with 0, its next job, if that waits for nothing.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_stream_run(stream: u64, seq: u64) {
    let mut world = lock();
    let number = match (seq, world.streams.get(&stream).and_then(|stream| stream.queue.front())) {
        (0, None) => return,
        (0, Some(Job { after, .. })) if after.iter().any(|(key, seq)| !exec::has_run(&world, *key, *seq)) => {
            return;
        }
        (0, Some(job)) => job.seq,
        _ => seq,
    };
    exec::wait_for(&mut world, stream, number);
}

/// Where the bytes of device memory are, whatever addresses show them: pairs of a place and a length. How many; 0:
/// nothing stands behind.
///
/// # Safety
/// `to` has room for `count` pairs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_behind(
    device: c_int,
    from: u64,
    size: usize,
    to: *mut [u64; 2],
    count: usize,
) -> usize {
    let list = space::pieces(&lock(), from, size as u64, Side::Device(device), false).unwrap_or_default();
    for (i, (address, length)) in list.iter().enumerate().take(count) {
        // SAFETY: the caller's, i < count.
        unsafe { to.add(i).write([*address as u64, *length as u64]) };
    }
    list.len()
}
