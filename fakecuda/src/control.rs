//! The tests' controls: call counters, a log, injected faults, settings, leaks. `fakecuda.h` has the C declarations
//! with their contracts.
//!
//! None of these functions is counted, logged or refused, and none needs `cuInit`.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::io::Write as _;

use crate::space::{self, Side};
use crate::sync::{Condition, lock, wake_waiters};
use crate::world::World;

const LOG_LINES: usize = 10_000;

struct Fault {
    name: String, // "*": every function
    after: u64,   // calls that still pass
    every: bool,
    code: u32,
}

pub(crate) struct Control {
    calls: HashMap<&'static str, u64>,
    total: u64,
    log: VecDeque<String>,
    keep_log: bool,
    file: Option<std::fs::File>,
    faults: Vec<Fault>,
    /// Memory was used at two addresses where only one is allowed.
    pub(crate) aliases: u64,
    /// No stream runs anything while this is set.
    pub(crate) hold: bool,
    /// Streams run what they are let run, and what is waited for.
    pub(crate) paced: bool,
}

impl Control {
    pub(crate) fn new(log: Option<&str>) -> Control {
        let open = |path: &str| std::fs::OpenOptions::new().append(true).create(true).open(path).ok();
        Control {
            calls: HashMap::new(),
            total: 0,
            log: VecDeque::new(),
            keep_log: false,
            file: log.and_then(open),
            faults: Vec::new(),
            aliases: 0,
            hold: false,
            paced: false,
        }
    }

    /// Counts a call; Some: it is to fail with this code.
    pub(crate) fn count(&mut self, name: &'static str) -> Option<u32> {
        *self.calls.entry(name).or_default() += 1;
        self.total += 1;
        let mut code = None;
        self.faults.retain_mut(|fault| {
            if fault.name != "*" && fault.name != name {
                return true;
            }
            if fault.after > 0 {
                fault.after -= 1;
                return true;
            }
            code = code.or(Some(fault.code));
            fault.every
        });
        code
    }

    pub(crate) fn logs(&self) -> bool {
        self.keep_log || self.file.is_some()
    }

    pub(crate) fn log_call(&mut self, name: &str, arguments: &str, code: u32) {
        self.log_line(format!("{name}({}) = {code}", arguments.trim_end()));
    }

    pub(crate) fn log_line(&mut self, line: String) {
        if let Some(file) = &mut self.file {
            // Ignored: the program goes on without the log.
            let _ = writeln!(file, "{line}");
        }
        if self.keep_log {
            if self.log.len() == LOG_LINES {
                self.log.pop_front();
            }
            self.log.push_back(line);
        }
    }

    /// `name:nth:code` or `name:nth+:code`, many with commas between them.
    pub(crate) fn faults_from_text(&mut self, text: &str) -> bool {
        let mut good = true;
        for one in text.split(',').filter(|one| !one.trim().is_empty()) {
            let mut parts = one.trim().split(':');
            let (Some(name), Some(nth), Some(code), None) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                good = false;
                continue;
            };
            match (nth.trim_end_matches('+').parse::<u64>(), code.parse()) {
                (Ok(number @ 1..), Ok(code)) => self.add_fault(name, number, code, nth.ends_with('+')),
                _ => good = false,
            }
        }
        good
    }

    fn add_fault(&mut self, name: &str, nth: u64, code: u32, every: bool) {
        self.faults.push(Fault { name: name.to_string(), after: nth - 1, every, code });
    }
}

/// Everything that has not been released, one line each; empty if nothing is left.
fn leaks(world: &World) -> Vec<String> {
    let mut lines = Vec::new();
    for (id, handle) in &world.handles {
        lines.push(format!("handle {id:#x}: {} bytes, held {} times", handle.size, handle.holders));
    }
    let chunk = |range: &&space::Range| matches!(range.kind, space::Kind::Pool(_));
    for range in world.ranges.values().filter(|range| !chunk(range)) {
        lines.push(format!(
            "range {:#x}: {} bytes, {:?}, {} mappings",
            range.start,
            range.size,
            range.kind,
            range.maps.len()
        ));
    }
    for (id, used) in crate::pool::used(world) {
        lines.push(format!("pool {id:#x}: {used} bytes allocated"));
    }
    for id in world.graphs.keys() {
        lines.push(format!("graph {id:#x}"));
    }
    for id in world.executables.keys() {
        lines.push(format!("executable graph {id:#x}"));
    }
    for id in world.objects.keys() {
        lines.push(format!("user object {id:#x}"));
    }
    for (id, stream) in &world.streams {
        if !stream.is_default {
            let state = if stream.destroyed { "destroyed, still busy" } else { "open" };
            lines.push(format!("stream {id:#x}: {state}"));
        }
    }
    for id in world.events.keys() {
        lines.push(format!("event {id:#x}"));
    }
    for (ordinal, device) in world.devices.iter().enumerate() {
        if device.retained > 0 {
            lines.push(format!("primary context of device {ordinal}: retained {} times", device.retained));
        }
    }
    lines
}

fn text<'a>(from: *const c_char) -> Option<&'a str> {
    if from.is_null() {
        return None;
    }
    // SAFETY: the C caller promises a string that ends with a zero.
    unsafe { CStr::from_ptr(from) }.to_str().ok()
}

/// Copies text out with a terminating zero, cut to fit.
fn copy_out(from: &str, to: *mut c_char, size: usize) {
    if to.is_null() || size == 0 {
        return;
    }
    let length = from.len().min(size - 1);
    // SAFETY: the C caller promises `size` bytes at `to`; length + 1 <= size.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().cast(), to, length) };
    // SAFETY: as above.
    unsafe { to.add(length).write(0) };
}

/// The version of these functions. A library that exports this function is the fake, not a real driver.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_version() -> c_int {
    1
}

/// Changes a setting: 0, or -1 if it is not known or the value is bad.
///
/// # Safety
/// Both are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_set(name: *const c_char, value: *const c_char) -> c_int {
    let (Some(name), Some(value)) = (text(name), text(value)) else { return -1 };
    let mut world = lock();
    if name == "fail" {
        return if world.control.faults_from_text(value) { 0 } else { -1 };
    }
    if name == "costs" {
        return if world.clock.set(value).is_some() { 0 } else { -1 };
    }
    if name == "keep_log" {
        world.control.keep_log = value == "1";
        return 0;
    }
    if world.config.set(name, value).is_some() { 0 } else { -1 }
}

/// Makes the driver new: as after loading, with the settings of the environment.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_reset() {
    let mut world = lock();
    world.control.hold = false;
    for stream in world.streams.values_mut() {
        stream.queue.clear();
    }
    for (stream, _) in crate::alias::gone(&mut world) {
        if let Some(stream) = world.streams.get_mut(&stream) {
            stream.running = false;
        }
    }
    while world.streams.values().any(|stream| stream.running) {
        world.wait(Condition::Done, None);
    }
    let starts: Vec<u64> = world.ranges.keys().copied().collect();
    for start in starts {
        space::drop_range(&mut world, start);
    }
    let handles: Vec<u64> = world.handles.drain().map(|(_, handle)| handle.block).collect();
    for block in handles {
        crate::physical::release(&mut world, block);
    }
    for device in std::mem::take(&mut world.devices) {
        for arena in device.arenas {
            world.spare.put(device.index, arena);
        }
    }
    let executors = std::mem::take(&mut world.executors);
    let fresh = World::new();
    world.replace(fresh, executors);
    wake_waiters(&mut world);
}

/// Lets a call fail: the `nth` from now on (1: the next), and with `every` all after it, with `code`. `name` "*" means
/// every function. 0, or -1 if the input is bad.
///
/// # Safety
/// `name` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_fail(name: *const c_char, nth: u64, code: u32, every: c_int) -> c_int {
    let (Some(name), 1..) = (text(name), nth) else { return -1 };
    lock().control.add_fault(name, nth, code, every != 0);
    0
}

/// Forgets all faults that have not happened yet.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_fail_clear() {
    lock().control.faults.clear();
}

/// Sets the sticky error: every call that touches a context fails with it. 0 clears it.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_sticky(code: u32) {
    lock().sticky = (code != 0).then_some(code);
}

/// Calls of a function since the last reset of the counters, failed ones too. NULL: of all functions.
///
/// # Safety
/// `name` is a string or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_calls(name: *const c_char) -> u64 {
    let world = lock();
    match text(name) {
        Some(name) => world.control.calls.get(name).copied().unwrap_or(0),
        None => world.control.total,
    }
}

/// Sets all call counters to 0 and empties the log.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_calls_reset() {
    let mut world = lock();
    world.control.calls.clear();
    world.control.total = 0;
    world.control.log.clear();
}

/// The kept log (setting `keep_log`), a line for each call; returns the length of all of it.
///
/// # Safety
/// `to` has room for `size` bytes, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_log(to: *mut c_char, size: usize) -> usize {
    let all = lock().control.log.iter().fold(String::new(), |mut all, line| {
        let _ = writeln!(all, "{line}");
        all
    });
    copy_out(&all, to, size);
    all.len()
}

/// 1 if a function is to be treated as missing: not in this driver version, or named in the setting `missing`.
///
/// # Safety
/// `name` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_symbol_missing(name: *const c_char) -> c_int {
    let Some(name) = text(name) else { return 1 };
    let world = lock();
    match crate::driver::entry(name) {
        Some(entry) => c_int::from(world.config.lacks(entry.name, entry.since)),
        None => 1,
    }
}

/// How many things are not given back: handles, ranges, streams, events, primary contexts. The text names them.
///
/// # Safety
/// `to` has room for `size` bytes, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_leaks(to: *mut c_char, size: usize) -> usize {
    let lines = leaks(&lock());
    copy_out(&lines.join("\n"), to, size);
    lines.len()
}

/// With 1, no stream runs anything until 0: what is in flight stays in flight.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_hold(on: c_int) {
    let mut world = lock();
    world.control.hold = on != 0;
    crate::exec::kick(&mut world);
    wake_waiters(&mut world);
}

/// The modelled time of a function's calls, in nanoseconds since the last `fakecuda_reset`. NULL: of all functions.
///
/// # Safety
/// `name` is a string or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_modelled_ns(name: *const c_char) -> u64 {
    lock().clock.passed(text(name))
}

/// Physical bytes in use on a device.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_used(device: c_int) -> u64 {
    lock().device(device).map_or(0, |device| device.used)
}

/// Takes device memory as a module, a library or another process would: 0, or CUDA_ERROR_OUT_OF_MEMORY.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_take(device: c_int, bytes: u64) -> u32 {
    let mut world = lock();
    let Ok(owner) = world.device_mut(device) else { return crate::code::INVALID_DEVICE };
    if bytes > owner.left() {
        return crate::code::OUT_OF_MEMORY;
    }
    owner.take(bytes);
    owner.taken += bytes;
    0
}

/// Gives back what `fakecuda_take` has taken, or as much of it as there is.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_give(device: c_int, bytes: u64) {
    let mut world = lock();
    let Ok(owner) = world.device_mut(device) else { return };
    let bytes = bytes.min(owner.taken);
    owner.taken -= bytes;
    owner.give(bytes);
}

/// The highest `fakecuda_used` since the last reset.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_used_peak(device: c_int) -> u64 {
    lock().device(device).map_or(0, |device| device.used_peak)
}

/// Reads device memory as a kernel on `device` would: 0, or the error that the kernel would end with.
///
/// # Safety
/// `to` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_read(device: c_int, from: u64, to: *mut c_void, size: usize) -> u32 {
    let world = lock();
    match space::pieces(&world, from, size as u64, Side::Device(device), false) {
        Ok(list) => {
            let mut at = to.cast::<u8>();
            for (address, length) in list {
                // SAFETY: `pieces` vouches for the source, the caller for the target.
                unsafe { std::ptr::copy(address as *const u8, at, length) };
                // SAFETY: inside the caller's `size` bytes.
                at = unsafe { at.add(length) };
            }
            0
        }
        Err(_) => crate::code::ILLEGAL_ADDRESS,
    }
}

/// Writes device memory as a kernel on `device` would: 0, or the error that the kernel would end with.
///
/// # Safety
/// `from` has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_write(device: c_int, to: u64, from: *const c_void, size: usize) -> u32 {
    let world = lock();
    match space::pieces(&world, to, size as u64, Side::Device(device), true) {
        Ok(list) => {
            let mut at = from.cast::<u8>();
            for (address, length) in list {
                // SAFETY: `pieces` vouches for the target, the caller for the source.
                unsafe { std::ptr::copy(at, address as *mut u8, length) };
                // SAFETY: inside the caller's `size` bytes.
                at = unsafe { at.add(length) };
            }
            0
        }
        Err(_) => crate::code::ILLEGAL_ADDRESS,
    }
}
