//! Events. An event that was never recorded is complete, as documented; one that is recorded again means the newest
//! record only.

use std::ffi::c_uint;
use std::time::Instant;

use cudarc::driver::sys::{CUcontext, CUevent, CUstream};

use crate::code::*;
use crate::exec::{self, Work};
use crate::gate::{exports, put};
use crate::names::Named;
use crate::sync::Guard;
use crate::world::{Answer, World};

pub(crate) struct Event {
    pub(crate) context: u64,
    pub(crate) flags: u32,
    pub(crate) recorded: Vec<(u64, u64)>, // (stream, seq): one, or all of a context
    pub(crate) record: u64,               // how often it was recorded
    pub(crate) time: Option<(u64, Instant)>, // of which record
    /// Recorded in a capture: which one, and the node that it stands for.
    pub(crate) captured: Option<(u64, Vec<usize>)>,
}

const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

/// The record of an event has run.
pub(crate) fn happened(world: &mut World, event: u64, record: u64) {
    if let Some(event) = world.events.get_mut(&event) {
        event.time = Some((record, exec::now()));
    }
}

fn record(world: &mut Guard, event: CUevent, stream: CUstream) -> Answer {
    let key = crate::stream::find(world, stream)?;
    let event = world.named(Named::Event, event as u64)?;
    let stream_context = world.streams.get(&key).ok_or(INVALID_HANDLE)?.context;
    let entry = world.events.get(&event).ok_or(INVALID_HANDLE)?;
    // An event and the stream it is recorded in must be of one context.
    if entry.context != stream_context {
        return Err(INVALID_HANDLE);
    }
    if world.capture_record(key, event)? {
        return OK;
    }
    let number = {
        let entry = world.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        entry.captured = None;
        entry.record += 1;
        entry.record
    };
    let seq = exec::submit(world, key, Vec::new(), Work::Event(event, number));
    if let Some(entry) = world.events.get_mut(&event) {
        entry.recorded = vec![(key, seq)];
    }
    OK
}

/// The context and the event by their numbers. Streams of a context that have a capture fail such calls, and lose it.
fn of_context(world: &mut Guard, context: CUcontext, event: CUevent) -> Result<(u64, u64), u32> {
    let context = if context.is_null() { world.current()?.0 } else { context as u64 };
    world.context(context)?;
    let event = world.named(Named::Event, event as u64)?;
    let entry = world.events.get(&event).ok_or(INVALID_HANDLE)?;
    if entry.context != context {
        return Err(INVALID_HANDLE);
    }
    if world.has_capture_in(context) {
        world.refuse_in_capture(context)?;
    }
    Ok((context, event))
}

/// An event that stands for work. One that was recorded in a capture stands for none: that is said while the capture goes on,
/// and afterwards it counts as bad input.
fn check(world: &World, event: u64) -> Result<&Event, u32> {
    let event = world.events.get(&event).ok_or(INVALID_HANDLE)?;
    match &event.captured {
        None => Ok(event),
        Some((capture, _)) if world.captures.contains_key(capture) => Err(CAPTURED_EVENT),
        Some(_) => Err(INVALID_VALUE),
    }
}

fn elapsed(world: &mut World, out: *mut f32, start: CUevent, end: CUevent) -> Answer {
    let start = world.named(Named::Event, start as u64)?;
    let end = world.named(Named::Event, end as u64)?;
    let (start, end) = (check(world, start)?, check(world, end)?);
    if (start.flags | end.flags) & DISABLE_TIMING != 0 || start.context != end.context {
        return Err(INVALID_HANDLE);
    }
    if start.record == 0 || end.record == 0 {
        return Err(INVALID_HANDLE);
    }
    let time = |event: &Event| match event.time {
        Some((record, time)) if record == event.record => Ok(time),
        _ => Err(NOT_READY),
    };
    let (start, end) = (time(start)?, time(end)?);
    let forward = end.saturating_duration_since(start).as_secs_f64();
    let backward = start.saturating_duration_since(end).as_secs_f64();
    put(out, ((forward - backward) * 1e3) as f32)
}

exports! {
    2000 Normal fn cuEventCreate(out: *mut CUevent, flags: c_uint) |w| {
        let (context, _) = w.current()?;
        if flags & !7 != 0 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) {
            return Err(INVALID_VALUE);
        }
        let number = w.new_handle();
        put(out, std::ptr::null_mut())?;
        put(out, w.name(Named::Event, number) as CUevent)?;
        w.events
            .insert(number, Event { context, flags, recorded: Vec::new(), record: 0, time: None, captured: None });
        OK
    }

    4000 Normal fn cuEventDestroy_v2(event: CUevent) |w| {
        w.current()?;
        // Work that waits for it has taken note of the stream's position and does not need it.
        let number = w.named(Named::Event, event as u64)?;
        w.unname(Named::Event, event as u64);
        w.events.remove(&number).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    2000 Normal fn cuEventRecord(event: CUevent, stream: CUstream) |w| {
        record(w, event, stream)
    }

    11010 Normal fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint) |w| {
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        record(w, event, stream)
    }

    2000 Normal fn cuEventQuery(event: CUevent) |w| {
        w.current()?;
        let event = w.named(Named::Event, event as u64)?;
        let recorded = check(w, event)?.recorded.clone();
        w.refuse_unsafe_in_capture()?;
        let complete = recorded.iter().all(|(stream, seq)| exec::has_run(w, *stream, *seq));
        if complete { exec::sticky(w) } else { Err(NOT_READY) }
    }

    2000 Normal fn cuEventSynchronize(event: CUevent) |w| {
        w.current()?;
        let event = w.named(Named::Event, event as u64)?;
        w.refuse_captured_event(event)?;
        let recorded = check(w, event)?.recorded.clone();
        w.refuse_unsafe_in_capture()?;
        for (stream, seq) in recorded {
            exec::wait_for(w, stream, seq);
        }
        exec::sticky(w)
    }

    2000 Normal fn cuEventElapsedTime(out: *mut f32, start: CUevent, end: CUevent) |w| {
        w.current()?;
        elapsed(w, out, start, end)
    }

    12050 Normal fn cuCtxRecordEvent(context: CUcontext, event: CUevent) |w| {
        let (context, event) = of_context(w, context, event)?;
        let busy = |stream: &crate::stream::Stream| stream.context == context && stream.completed < stream.submitted;
        let recorded: Vec<(u64, u64)> = w
            .streams
            .iter()
            .filter(|(_, stream)| busy(stream))
            .map(|(key, stream)| (*key, stream.submitted))
            .collect();
        if let Some(entry) = w.events.get_mut(&event) {
            entry.captured = None;
            entry.record += 1;
            entry.time = recorded.is_empty().then(|| (entry.record, exec::now()));
            entry.recorded = recorded;
        }
        OK
    }

    12050 Normal fn cuCtxWaitEvent(context: CUcontext, event: CUevent) |w| {
        let (context, event) = of_context(w, context, event)?;
        let recorded = check(w, event)?.recorded.clone();
        let all: Vec<u64> =
            w.streams.iter().filter(|(_, stream)| stream.context == context).map(|(key, _)| *key).collect();
        for key in all {
            exec::submit(w, key, recorded.clone(), Work::Nothing);
        }
        OK
    }
}
