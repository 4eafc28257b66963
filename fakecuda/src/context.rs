//! Contexts: the primary one of each device, others that a caller makes, and the stack of current contexts that each
//! thread has. The end of a context takes its memory, streams and events along.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{c_int, c_uint, c_ulonglong};

use cudarc::driver::sys::CUcontext;

use crate::code::*;
use crate::exec;
use crate::gate::{exports, put, put_optional};
use crate::space::{self, Kind};
use crate::sync::Guard;
use crate::world::{Answer, World};

pub(crate) struct Context {
    pub(crate) device: i32,
    pub(crate) primary: bool,
    pub(crate) alive: bool,
    pub(crate) flags: u32,
    pub(crate) peers: HashSet<u64>, // contexts whose memory may be touched from here
}

thread_local! {
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn top() -> u64 {
    STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

impl World {
    /// The calling thread's context and its device.
    pub(crate) fn current(&self) -> Result<(u64, i32), u32> {
        let handle = top();
        let context = self.contexts.get(&handle).ok_or(INVALID_CONTEXT)?;
        if !context.alive {
            return Err(CONTEXT_IS_DESTROYED);
        }
        Ok((handle, context.device))
    }

    /// A context by its handle.
    pub(crate) fn context(&self, handle: u64) -> Result<&Context, u32> {
        let context = self.contexts.get(&handle).ok_or(INVALID_CONTEXT)?;
        if context.alive { Ok(context) } else { Err(CONTEXT_IS_DESTROYED) }
    }
}

pub(crate) fn new_primary(world: &mut World, device: i32) -> u64 {
    let handle = world.new_handle();
    let peers = HashSet::new();
    world.contexts.insert(handle, Context { device, primary: true, alive: false, flags: 0, peers });
    handle
}

/// Waits for a context's work, then takes away all that it owns. What the mapping calls made is nobody's and stays.
fn end(world: &mut Guard, handle: u64) {
    exec::drain_context(world, handle);
    let starts: Vec<u64> = world
        .ranges
        .values()
        .filter(|range| range.context == handle && range.kind != Kind::Reserved)
        .map(|range| range.start)
        .collect();
    for start in starts {
        space::drop_range(world, start);
    }
    world.streams.retain(|_, stream| stream.context != handle);
    world.events.retain(|_, event| event.context != handle);
    let World { streams, events, stream_names, event_names, .. } = &mut **world;
    stream_names.keep(|number| streams.contains_key(&number));
    event_names.keep(|number| events.contains_key(&number));
    world.forget_captures_without_origin();
    world.defaults.retain(|(context, _), _| *context != handle);
    let primary = world.contexts.get(&handle).is_some_and(|context| context.primary);
    if primary {
        let device = world.contexts[&handle].device;
        crate::pool::forget_chunks(world, device);
        if let Some(context) = world.contexts.get_mut(&handle) {
            context.alive = false;
            context.peers.clear();
        }
    } else {
        world.contexts.remove(&handle);
    }
    for context in world.contexts.values_mut() {
        context.peers.remove(&handle);
    }
}

const KNOWN_FLAGS: u32 = 0x1f; // scheduling, map host, local memory

fn flags_are_good(flags: u32) -> Answer {
    // Scheduling is a choice of one.
    if flags & !KNOWN_FLAGS != 0 || !matches!(flags & 7, 0 | 1 | 2 | 4) { Err(INVALID_VALUE) } else { OK }
}

exports! {
    7000 Normal fn cuDevicePrimaryCtxRetain(out: *mut CUcontext, device: c_int) |w| {
        let handle = w.device(device)?.primary;
        put(out, handle as CUcontext)?;
        w.device_mut(device)?.retained += 1;
        if let Some(context) = w.contexts.get_mut(&handle) {
            context.alive = true;
        }
        OK
    }

    11000 Query fn cuDevicePrimaryCtxRelease_v2(device: c_int) |w| {
        let owner = w.device_mut(device)?;
        if owner.retained == 0 {
            return Err(INVALID_CONTEXT);
        }
        owner.retained -= 1;
        let (last, handle) = (owner.retained == 0, owner.primary);
        if last {
            end(w, handle);
        }
        OK
    }

    11000 Query fn cuDevicePrimaryCtxReset_v2(device: c_int) |w| {
        let owner = w.device_mut(device)?;
        owner.retained = 0;
        let handle = owner.primary;
        end(w, handle);
        OK
    }

    7000 Query fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) |w| {
        let handle = w.device(device)?.primary;
        let context = w.contexts.get(&handle).ok_or(INVALID_DEVICE)?;
        put(flags, context.flags)?;
        put(active, c_int::from(context.alive))
    }

    11000 Query fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) |w| {
        flags_are_good(flags)?;
        let handle = w.device(device)?.primary;
        let context = w.contexts.get_mut(&handle).ok_or(INVALID_DEVICE)?;
        context.flags = flags;
        OK
    }

    3020 Normal fn cuCtxCreate_v2(out: *mut CUcontext, flags: c_uint, device: c_int) |w| {
        flags_are_good(flags)?;
        w.device(device)?;
        let handle = w.new_handle();
        put(out, handle as CUcontext)?;
        let peers = HashSet::new();
        w.contexts.insert(handle, Context { device, primary: false, alive: true, flags, peers });
        STACK.with_borrow_mut(|stack| stack.push(handle));
        OK
    }

    4000 Query fn cuCtxDestroy_v2(context: CUcontext) |w| {
        let handle = context as u64;
        if w.context(handle)?.primary {
            return Err(INVALID_CONTEXT);
        }
        end(w, handle);
        STACK.with_borrow_mut(|stack| {
            if stack.last() == Some(&handle) {
                stack.pop();
            }
        });
        OK
    }

    4000 Query fn cuCtxGetCurrent(out: *mut CUcontext) |_w| {
        put(out, top() as CUcontext)
    }

    4000 Query fn cuCtxSetCurrent(context: CUcontext) |w| {
        let handle = context as u64;
        if handle != 0 {
            w.context(handle)?;
        }
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            if handle != 0 {
                stack.push(handle);
            }
        });
        OK
    }

    4000 Query fn cuCtxPushCurrent_v2(context: CUcontext) |w| {
        w.context(context as u64)?;
        STACK.with_borrow_mut(|stack| stack.push(context as u64));
        OK
    }

    4000 Query fn cuCtxPopCurrent_v2(out: *mut CUcontext) |_w| {
        let handle = STACK.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        put_optional(out, handle as CUcontext);
        OK
    }

    2000 Query fn cuCtxGetDevice(device: *mut c_int) |w| {
        put(device, w.current()?.1)
    }

    7000 Query fn cuCtxGetFlags(flags: *mut c_uint) |w| {
        let (handle, _) = w.current()?;
        put(flags, w.context(handle)?.flags)
    }

    12000 Query fn cuCtxGetId(context: CUcontext, id: *mut c_ulonglong) |w| {
        let handle = if context.is_null() { w.current()?.0 } else { context as u64 };
        w.context(handle)?;
        put(id, handle)
    }

    3020 Query fn cuCtxGetApiVersion(context: CUcontext, version: *mut c_uint) |w| {
        if !context.is_null() {
            w.context(context as u64)?;
        }
        put(version, 3020)
    }

    2000 Normal fn cuCtxSynchronize() |w| {
        let (handle, _) = w.current()?;
        w.refuse_in_capture(handle)?;
        exec::drain_context(w, handle);
        exec::sticky(w)
    }

    5050 Query fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) |w| {
        w.current()?;
        put_optional(least, 0);
        put_optional(greatest, crate::stream::GREATEST_PRIORITY);
        OK
    }

    4000 Normal fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) |w| {
        let (handle, device) = w.current()?;
        let peer = peer as u64;
        let peer_device = w.context(peer)?.device;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if peer == handle || peer_device == device {
            return Err(INVALID_CONTEXT);
        }
        if w.config.apart(device, peer_device) {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        let context = w.contexts.get_mut(&handle).ok_or(INVALID_CONTEXT)?;
        if context.peers.insert(peer) { OK } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
    }

    4000 Normal fn cuCtxDisablePeerAccess(peer: CUcontext) |w| {
        let (handle, _) = w.current()?;
        w.context(peer as u64)?;
        let context = w.contexts.get_mut(&handle).ok_or(INVALID_CONTEXT)?;
        if context.peers.remove(&(peer as u64)) { OK } else { Err(PEER_ACCESS_NOT_ENABLED) }
    }
}
