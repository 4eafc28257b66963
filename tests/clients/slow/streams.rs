//! Streams of the slow plugin, each with a thread that runs its work in order, and events: points in that work.

use super::{CHANGED, Job, Recorded, State, Stream, call, id, lock, put, wait};
use millpond::paddle::abi::*;
use std::ffi::c_void;

pub(super) fn submit(s: &mut State, stream: u64, job: Job) -> u64 {
    let Some(stream) = s.streams.get_mut(&stream) else { return 0 };
    stream.queue.push_back(job);
    stream.submitted += 1;
    CHANGED.notify_all();
    stream.submitted
}

/// A stream's thread.
pub(super) fn run(number: u64) {
    let mut s = lock();
    loop {
        let Some(stream) = s.streams.get_mut(&number) else { return };
        match stream.queue.pop_front() {
            Some(job) => {
                let latency = s.manner.latency;
                drop(s);
                job();
                std::thread::sleep(latency);
                s = lock();
                if let Some(stream) = s.streams.get_mut(&number) {
                    stream.completed += 1;
                }
                CHANGED.notify_all();
            }
            None if stream.ended => {
                s.streams.remove(&number);
                return CHANGED.notify_all();
            }
            None => s = wait(s),
        }
    }
}

/// Waits until `done`; a stream that is gone has done everything.
pub(super) fn wait_until(done: impl Fn(&State) -> bool) -> C_Status {
    let mut s = lock();
    while !done(&s) {
        s = wait(s);
    }
    C_Status::SUCCESS
}

pub(super) fn passed(s: &State, recorded: Recorded) -> bool {
    recorded.is_none_or(|(stream, n)| s.streams.get(&stream).is_none_or(|s| s.completed >= n))
}

pub(super) unsafe extern "C-unwind" fn create_stream(d: C_Device, out: *mut C_Stream) -> C_Status {
    call("create_stream", || {
        let mut s = lock();
        s.numbers += 1;
        let (number, handle) = (s.numbers, s.new_handle(d));
        s.streams.insert(number, Stream { device: id(d), ..Stream::default() });
        s.handles.insert(handle, number);
        std::thread::spawn(move || run(number));
        put(out, handle.1 as usize as C_Stream)
    })
}

pub(super) unsafe extern "C-unwind" fn destroy_stream(d: C_Device, stream: C_Stream) -> C_Status {
    call("destroy_stream", || {
        let mut s = lock();
        let Some(number) = s.stream(d, stream) else { return C_Status::ERROR };
        s.handles.remove(&(id(d), stream as usize as u64));
        if let Some(it) = s.streams.get_mut(&number) {
            it.ended = true;
        }
        CHANGED.notify_all();
        C_Status::SUCCESS
    })
}

pub(super) unsafe extern "C-unwind" fn query_stream(d: C_Device, stream: C_Stream) -> C_Status {
    call("query_stream", || {
        let mut s = lock();
        let Some(number) = s.stream(d, stream) else { return C_Status::ERROR };
        let done = s.streams.get(&number).is_none_or(|s| s.completed == s.submitted);
        if done { C_Status::SUCCESS } else { C_Status::WARNING }
    })
}

pub(super) unsafe extern "C-unwind" fn stream_add_callback(
    d: C_Device,
    stream: C_Stream,
    callback: C_Callback,
    user_data: *mut c_void,
) -> C_Status {
    call("stream_add_callback", || {
        let mut s = lock();
        let Some(number) = s.stream(d, stream) else { return C_Status::ERROR };
        let (device, handle, data) = (id(d), stream as usize, user_data as usize);
        let job = move || {
            let (mut device, mut status) = (C_Device_st { id: device }, C_Status::SUCCESS);
            // SAFETY: the host's callback, for one call with this data.
            unsafe { callback.unwrap()(&mut device, handle as C_Stream, data as *mut c_void, &mut status) }
        };
        submit(&mut s, number, Box::new(job));
        C_Status::SUCCESS
    })
}

pub(super) unsafe extern "C-unwind" fn synchronize_stream(d: C_Device, stream: C_Stream) -> C_Status {
    call("synchronize_stream", || {
        let mut s = lock();
        let Some(number) = s.stream(d, stream) else { return C_Status::ERROR };
        let n = s.streams.get(&number).map_or(0, |s| s.submitted);
        drop(s);
        wait_until(|s| passed(s, Some((number, n))))
    })
}

pub(super) unsafe extern "C-unwind" fn synchronize_device(d: C_Device) -> C_Status {
    call("synchronize_device", || {
        let all: Vec<(u64, u64)> =
            lock().streams.iter().filter(|s| s.1.device == id(d)).map(|(&n, s)| (n, s.submitted)).collect();
        wait_until(|s| all.iter().all(|&r| passed(s, Some(r))))
    })
}

pub(super) unsafe extern "C-unwind" fn create_event(d: C_Device, out: *mut C_Event) -> C_Status {
    call("create_event", || {
        let mut s = lock();
        let handle = s.new_handle(d);
        s.events.insert(handle, None);
        put(out, handle.1 as usize as C_Event)
    })
}

pub(super) unsafe extern "C-unwind" fn destroy_event(d: C_Device, event: C_Event) -> C_Status {
    call("destroy_event", || {
        let mut s = lock();
        if s.events.remove(&(id(d), event as usize as u64)).is_none() {
            s.fault(format!("device {} has no event {event:p} to destroy", id(d)));
            return C_Status::ERROR;
        }
        C_Status::SUCCESS
    })
}

/// What the event has recorded; `None`: there is no such event.
pub(super) fn recorded(d: C_Device, event: C_Event) -> Option<Recorded> {
    let mut s = lock();
    let found = s.events.get(&(id(d), event as usize as u64)).copied();
    if found.is_none() {
        s.fault(format!("device {} has no event {event:p}", id(d)));
    }
    found
}

pub(super) unsafe extern "C-unwind" fn record_event(
    d: C_Device,
    stream: C_Stream,
    event: C_Event,
) -> C_Status {
    call("record_event", || {
        if recorded(d, event).is_none() {
            return C_Status::ERROR;
        }
        let mut s = lock();
        let Some(number) = s.stream(d, stream) else { return C_Status::ERROR };
        let n = s.streams.get(&number).map_or(0, |s| s.submitted);
        s.events.insert((id(d), event as usize as u64), Some((number, n)));
        C_Status::SUCCESS
    })
}

pub(super) unsafe extern "C-unwind" fn query_event(d: C_Device, event: C_Event) -> C_Status {
    call("query_event", || match recorded(d, event) {
        Some(r) if passed(&lock(), r) => C_Status::SUCCESS,
        Some(_) => C_Status::WARNING,
        None => C_Status::ERROR,
    })
}

pub(super) unsafe extern "C-unwind" fn synchronize_event(d: C_Device, event: C_Event) -> C_Status {
    call("synchronize_event", || match recorded(d, event) {
        Some(r) => wait_until(|s| passed(s, r)),
        None => C_Status::ERROR,
    })
}

pub(super) unsafe extern "C-unwind" fn stream_wait_event(
    d: C_Device,
    stream: C_Stream,
    event: C_Event,
) -> C_Status {
    call("stream_wait_event", || {
        let Some(r) = recorded(d, event) else { return C_Status::ERROR };
        let mut s = lock();
        let Some(number) = s.stream(d, stream) else { return C_Status::ERROR };
        submit(&mut s, number, Box::new(move || _ = wait_until(|s| passed(s, r))));
        C_Status::SUCCESS
    })
}
