//! Streams: their handles, the default streams, waiting and asking, host callbacks.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{CUcontext, CUevent, CUgreenCtx, CUhostFn, CUstream, CUstreamCallback};

use crate::alias::Way;
use crate::code::*;
use crate::exec::{self, Job, Work};
use crate::gate::{exports, put};
use crate::names::Named;
use crate::sync::Guard;
use crate::world::{Answer, World};

pub(crate) const GREATEST_PRIORITY: c_int = -5;
const NON_BLOCKING: u32 = 1;

pub(crate) struct Stream {
    pub(crate) context: u64,
    pub(crate) device: i32,
    pub(crate) non_blocking: bool,
    pub(crate) is_legacy: bool,
    pub(crate) is_default: bool, // legacy or a thread's: never destroyed
    pub(crate) priority: c_int,
    pub(crate) queue: VecDeque<Job>,
    pub(crate) submitted: u64,
    pub(crate) completed: u64,
    pub(crate) allowed: u64, // may run this far where a test sets the pace
    pub(crate) running: bool,
    pub(crate) destroyed: bool, // the handle is gone, its work goes on
    pub(crate) capture: Option<u64>,
    pub(crate) overlap: Vec<Vec<Way>>, // what grids that a dependent launch may run beside have written
}

thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

/// A number of this thread that no other thread ever has.
pub(crate) fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    THREAD.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

fn new_stream(context: u64, device: i32) -> Stream {
    Stream {
        context,
        device,
        non_blocking: false,
        is_legacy: false,
        is_default: false,
        priority: 0,
        queue: VecDeque::new(),
        submitted: 0,
        completed: 0,
        allowed: 0,
        running: false,
        destroyed: false,
        capture: None,
        overlap: Vec::new(),
    }
}

/// The number of the stream that a handle means: 0 and 1 are the legacy stream, 2 the thread's own.
pub(crate) fn find(world: &mut World, handle: CUstream) -> Result<u64, u32> {
    let (context, device) = world.current()?;
    let owner = match handle as u64 {
        0 | 1 => 0,
        2 => thread_number(),
        handle => return world.named(Named::Stream, handle),
    };
    if let Some(key) = world.defaults.get(&(context, owner)) {
        return Ok(*key);
    }
    let key = world.new_handle();
    let stream = Stream { is_legacy: owner == 0, is_default: true, ..new_stream(context, device) };
    world.streams.insert(key, stream);
    world.defaults.insert((context, owner), key);
    Ok(key)
}

fn create(world: &mut World, out: *mut CUstream, flags: c_uint, priority: c_int) -> Answer {
    let (context, device) = world.current()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(INVALID_VALUE);
    }
    let key = world.new_handle();
    put(out, std::ptr::null_mut())?;
    put(out, world.name(Named::Stream, key) as CUstream)?;
    let stream = Stream {
        non_blocking: flags & NON_BLOCKING != 0,
        priority: priority.clamp(GREATEST_PRIORITY, 0),
        ..new_stream(context, device)
    };
    world.streams.insert(key, stream);
    OK
}

/// Queues work that a caller gave, or puts it into the graph if the stream is being captured. None: captured.
pub(crate) fn submit(world: &mut Guard, key: u64, work: Work) -> Result<Option<u64>, u32> {
    if world.capture_node(key, &work)? {
        return Ok(None);
    }
    Ok(Some(exec::submit(world, key, Vec::new(), work)))
}

exports! {
    2000 Normal fn cuStreamCreate(out: *mut CUstream, flags: c_uint) |w| {
        create(w, out, flags, 0)
    }

    5050 Normal fn cuStreamCreateWithPriority(out: *mut CUstream, flags: c_uint, priority: c_int) |w| {
        create(w, out, flags, priority)
    }

    4000 Normal fn cuStreamDestroy_v2(stream: CUstream) |w| {
        if (stream as u64) <= 2 {
            return Err(INVALID_HANDLE);
        }
        let key = find(w, stream)?;
        w.unname(Named::Stream, stream as u64);
        w.capture_stream_destroyed(key);
        if let Some(stream) = w.streams.get_mut(&key) {
            stream.destroyed = true;
            if stream.queue.is_empty() && !stream.running {
                w.streams.remove(&key);
            }
        }
        OK
    }

    2000 Normal fn cuStreamQuery(stream: CUstream) |w| {
        let key = find(w, stream)?;
        w.refuse_stream_in_capture(key)?;
        let stream = w.streams.get(&key).ok_or(INVALID_HANDLE)?;
        let context = stream.context;
        // The legacy stream stands for all blocking streams.
        let stands_for = |other: &Stream| stream.is_legacy && other.context == context && !other.non_blocking;
        let busy = w.streams.iter().any(|(other_key, other)| {
            (*other_key == key || stands_for(other)) && other.completed < other.submitted
        });
        if busy { Err(NOT_READY) } else { exec::sticky(w) }
    }

    2000 Normal fn cuStreamSynchronize(stream: CUstream) |w| {
        let key = find(w, stream)?;
        w.refuse_stream_in_capture(key)?;
        let stream = w.streams.get(&key).ok_or(INVALID_HANDLE)?;
        let mut seq = stream.submitted;
        if stream.is_legacy {
            seq = exec::submit(w, key, Vec::new(), Work::Nothing);
        }
        exec::wait_for(w, key, seq);
        exec::sticky(w)
    }

    3020 Normal fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) |w| {
        let key = find(w, stream)?;
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        let event = w.named(Named::Event, event as u64)?;
        if w.capture_wait(key, event)? {
            return OK;
        }
        let recorded = w.events.get(&event).map_or(Vec::new(), |event| event.recorded.clone());
        if recorded.iter().any(|(other, seq)| !exec::has_run(w, *other, *seq)) {
            exec::submit(w, key, recorded, Work::Nothing);
        }
        OK
    }

    9020 Normal fn cuStreamGetCtx(stream: CUstream, out: *mut CUcontext) |w| {
        let key = find(w, stream)?;
        put(out, w.streams.get(&key).ok_or(INVALID_HANDLE)?.context as CUcontext)
    }

    // There are no green contexts here.
    12050 Normal fn cuStreamGetCtx_v2(stream: CUstream, out: *mut CUcontext, green: *mut CUgreenCtx) |w| {
        let key = find(w, stream)?;
        put(out, w.streams.get(&key).ok_or(INVALID_HANDLE)?.context as CUcontext)?;
        put(green, std::ptr::null_mut())
    }

    12080 Normal fn cuStreamGetDevice(stream: CUstream, out: *mut c_int) |w| {
        let key = find(w, stream)?;
        put(out, w.streams.get(&key).ok_or(INVALID_HANDLE)?.device)
    }

    5050 Normal fn cuStreamGetFlags(stream: CUstream, out: *mut c_uint) |w| {
        let key = find(w, stream)?;
        put(out, c_uint::from(w.streams.get(&key).ok_or(INVALID_HANDLE)?.non_blocking))
    }

    5050 Normal fn cuStreamGetPriority(stream: CUstream, out: *mut c_int) |w| {
        let key = find(w, stream)?;
        put(out, w.streams.get(&key).ok_or(INVALID_HANDLE)?.priority)
    }

    12000 Normal fn cuStreamGetId(stream: CUstream, out: *mut c_ulonglong) |w| {
        put(out, find(w, stream)?)
    }

    10000 Normal fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void) |w| {
        let key = find(w, stream)?;
        let function = function.ok_or(INVALID_VALUE)?;
        submit(w, key, Work::Host(function, data))?;
        OK
    }

    5000 Normal fn cuStreamAddCallback(
        stream: CUstream,
        function: CUstreamCallback,
        data: *mut c_void,
        flags: c_uint,
    ) |w| {
        let key = find(w, stream)?;
        let function = function.ok_or(INVALID_VALUE)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        w.refuse_stream_in_capture(key)?;
        // SAFETY: the same but for the status, which is an enumeration with the size of this number in C.
        let function = unsafe {
            std::mem::transmute::<
                unsafe extern "C" fn(CUstream, cudarc::driver::sys::CUresult, *mut c_void),
                unsafe extern "C" fn(CUstream, u32, *mut c_void),
            >(function)
        };
        exec::submit(w, key, Vec::new(), Work::Callback(function, stream as u64, data));
        OK
    }
}
