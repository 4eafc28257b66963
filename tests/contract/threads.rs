//! A plugin in Rust whose streams are threads: work runs beside the caller, and the end of a stream waits for nothing.
//! Its memory and its copies are those of `fake`.

use crate::api::Device;
use crate::fake;
use millpond::capi::millpond_finalize;
use millpond::paddle::abi::*;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

type Work = Box<dyn FnOnce() + Send>;

/// One stream, live or ended.
#[derive(Default)]
struct Line {
    state: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    queued: u64,
    done: u64,
    closing: bool,
}

/// A place in a stream: its first so many pieces of work.
type Point = (Arc<Line>, u64);

#[derive(Default)]
struct World {
    streams: HashMap<usize, Arc<Line>>,
    all: Vec<Arc<Line>>, // ended ones, too
    events: HashMap<usize, Option<Point>>,
    handles: usize,
}

fn world() -> MutexGuard<'static, World> {
    static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
    WORLD.get_or_init(Mutex::default).lock().unwrap_or_else(|e| e.into_inner())
}

impl Line {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.state.lock().unwrap()
    }
    fn push(&self, work: Work) {
        let mut q = self.queue();
        q.work.push_back(work);
        q.queued += 1;
        self.changed.notify_all();
    }
    fn run(&self) {
        let mut q = self.queue();
        loop {
            match q.work.pop_front() {
                Some(work) => {
                    drop(q);
                    work();
                    q = self.queue();
                    q.done += 1;
                    self.changed.notify_all();
                }
                None if q.closing => return,
                None => q = self.changed.wait(q).unwrap(),
            }
        }
    }
    fn wait(&self, count: u64) {
        let mut q = self.queue();
        while q.done < count {
            q = self.changed.wait(q).unwrap();
        }
    }
    fn queued(&self) -> u64 {
        self.queue().queued
    }
}

fn line(stream: C_Stream) -> Arc<Line> {
    world().streams[&(stream as usize)].clone()
}

fn point(event: C_Event) -> Option<Point> {
    world().events[&(event as usize)].clone()
}

unsafe extern "C-unwind" fn create_stream(_: C_Device, out: *mut C_Stream) -> C_Status {
    let line = Arc::new(Line::default());
    let worker = line.clone();
    std::thread::spawn(move || worker.run());
    let mut w = world();
    w.handles += 16;
    let handle = w.handles;
    w.all.push(line.clone());
    w.streams.insert(handle, line);
    unsafe { *out = handle as C_Stream };
    C_Status::SUCCESS
}

unsafe extern "C-unwind" fn destroy_stream(_: C_Device, stream: C_Stream) -> C_Status {
    let line = world().streams.remove(&(stream as usize)).unwrap();
    line.queue().closing = true;
    line.changed.notify_all();
    C_Status::SUCCESS
}

unsafe extern "C-unwind" fn query_stream(_: C_Device, stream: C_Stream) -> C_Status {
    let line = line(stream);
    let q = line.queue();
    if q.done == q.queued { C_Status::SUCCESS } else { C_Status::WARNING }
}

unsafe extern "C-unwind" fn synchronize_stream(_: C_Device, stream: C_Stream) -> C_Status {
    let line = line(stream);
    let queued = line.queued();
    line.wait(queued);
    C_Status::SUCCESS
}

unsafe extern "C-unwind" fn synchronize_device(_: C_Device) -> C_Status {
    let all = world().all.clone();
    for line in all {
        let queued = line.queued();
        line.wait(queued);
    }
    C_Status::SUCCESS
}

unsafe extern "C-unwind" fn add_callback(
    _: C_Device,
    stream: C_Stream,
    callback: C_Callback,
    data: *mut c_void,
) -> C_Status {
    let (callback, data, handle) = (callback.unwrap(), data as usize, stream as usize);
    line(stream).push(Box::new(move || {
        let (mut device, mut status) = (C_Device_st { id: 0 }, C_Status::SUCCESS);
        unsafe { callback(&mut device, handle as C_Stream, data as *mut c_void, &mut status) };
    }));
    C_Status::SUCCESS
}

unsafe extern "C-unwind" fn create_event(_: C_Device, out: *mut C_Event) -> C_Status {
    let mut w = world();
    w.handles += 16;
    let handle = w.handles;
    w.events.insert(handle, None);
    unsafe { *out = handle as C_Event };
    C_Status::SUCCESS
}

unsafe extern "C-unwind" fn destroy_event(_: C_Device, event: C_Event) -> C_Status {
    world().events.remove(&(event as usize)).unwrap();
    C_Status::SUCCESS
}

unsafe extern "C-unwind" fn record_event(_: C_Device, stream: C_Stream, event: C_Event) -> C_Status {
    let line = line(stream);
    let queued = line.queued();
    *world().events.get_mut(&(event as usize)).unwrap() = Some((line, queued));
    C_Status::SUCCESS
}

unsafe extern "C-unwind" fn query_event(_: C_Device, event: C_Event) -> C_Status {
    match point(event) {
        Some((line, count)) if line.queue().done < count => C_Status::WARNING,
        _ => C_Status::SUCCESS,
    }
}

unsafe extern "C-unwind" fn synchronize_event(_: C_Device, event: C_Event) -> C_Status {
    if let Some((line, count)) = point(event) {
        line.wait(count);
    }
    C_Status::SUCCESS
}

unsafe extern "C-unwind" fn stream_wait_event(_: C_Device, stream: C_Stream, event: C_Event) -> C_Status {
    if let Some((from, count)) = point(event) {
        line(stream).push(Box::new(move || from.wait(count)));
    }
    C_Status::SUCCESS
}

unsafe extern "C-unwind" fn copy(
    _: C_Device,
    stream: C_Stream,
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
) -> C_Status {
    let (dst, src) = (dst as usize, src as usize);
    line(stream).push(Box::new(move || unsafe { (dst as *mut u8).copy_from(src as *const u8, size) }));
    C_Status::SUCCESS
}

/// The host's bytes are read at once.
unsafe extern "C-unwind" fn copy_h2d(
    _: C_Device,
    stream: C_Stream,
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
) -> C_Status {
    let (dst, bytes) = (dst as usize, unsafe { std::slice::from_raw_parts(src.cast::<u8>(), size) }.to_vec());
    line(stream).push(Box::new(move || unsafe { (dst as *mut u8).copy_from(bytes.as_ptr(), bytes.len()) }));
    C_Status::SUCCESS
}

/// Device 0 of the plugin, which has two of 32 MiB each, freshly registered under this name.
pub fn plugin(name: &str) -> Device {
    let _ = millpond_finalize();
    fake::register(name, |_, table| {
        table.create_stream = Some(create_stream);
        table.destroy_stream = Some(destroy_stream);
        table.query_stream = Some(query_stream);
        table.synchronize_stream = Some(synchronize_stream);
        table.synchronize_device = Some(synchronize_device);
        table.stream_add_callback = Some(add_callback);
        table.create_event = Some(create_event);
        table.destroy_event = Some(destroy_event);
        table.record_event = Some(record_event);
        table.query_event = Some(query_event);
        table.synchronize_event = Some(synchronize_event);
        table.stream_wait_event = Some(stream_wait_event);
        table.async_memory_copy_h2d = Some(copy_h2d);
        table.async_memory_copy_d2h = Some(copy);
        table.async_memory_copy_d2d = Some(copy);
    })
    .unwrap();
    Device::get(name, 0).unwrap()
}
