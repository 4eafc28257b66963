//! Copies. What a call says of its two addresses is checked when it is called, and again when the copy runs: memory
//! that is gone by then is what an illegal address is on a GPU.

use std::ffi::c_void;
use std::rc::Rc;

use cudarc::driver::sys::{CUcontext, CUdeviceptr, CUstream};

use crate::code::*;
use crate::exec::{self, Work};
use crate::gate::exports;
use crate::space::{self, Side};
use crate::sync::Guard;
use crate::world::{Answer, World};

/// One copy of bytes in a line.
#[derive(Clone)]
pub(crate) struct Copy {
    to: u64,
    to_side: Side,
    from: u64,
    from_side: Side,
    size: u64,
    staged: Option<Rc<[u8]>>, // the source's bytes, taken when the copy was queued; shared under the one lock only
    pinned: [Option<(u64, u64)>; 2], // ends in the host's locked memory: (address, serial of its range)
}

impl Copy {
    fn new(to: u64, to_side: Side, from: u64, from_side: Side, size: usize) -> Copy {
        Copy { to, to_side, from, from_side, size: size as u64, staged: None, pinned: [None; 2] }
    }
}

const STEP: u64 = 8 << 20; // [B] copied while the lock is held

fn check(world: &World, copy: &Copy) -> Answer {
    space::check(world, copy.to, copy.size, copy.to_side, true)?;
    space::check(world, copy.from, copy.size, copy.from_side, false)
}

/// The locked memory of the host in which an address lies when the copy is queued.
fn pinned(world: &World, address: u64) -> Option<(u64, u64)> {
    space::find(world, address).filter(|range| range.kind.is_host()).map(|range| (address, range.serial))
}

/// Locked memory that was freed or unregistered since is gone for the device.
fn check_pinned(world: &World, copy: &Copy) -> Answer {
    let there = |&(address, serial): &(u64, u64)| {
        space::find(world, address).is_some_and(|range| range.serial == serial)
    };
    if copy.pinned.iter().flatten().all(there) { OK } else { Err(ILLEGAL_ADDRESS) }
}

/// Does the copy, in steps, with the lock given up between them.
pub(crate) fn run(world: &mut Guard, copy: &Copy) -> Answer {
    let read = copy.staged.is_none().then_some([copy.from, copy.size]);
    crate::alias::plain(world, "copy", read, [copy.to, copy.size]);
    let mut done = 0;
    while done < copy.size {
        let size = STEP.min(copy.size - done);
        step(world, copy, done, size)?;
        done += size;
        if done < copy.size {
            world.unlocked(|| ());
        }
    }
    OK
}

fn step(world: &World, copy: &Copy, offset: u64, size: u64) -> Answer {
    check_pinned(world, copy)?;
    let to = space::pieces(world, copy.to + offset, size, copy.to_side, true)?;
    let from = match &copy.staged {
        Some(bytes) => vec![(bytes.as_ptr() as usize + offset as usize, size as usize)],
        None => space::pieces(world, copy.from + offset, size, copy.from_side, false)?,
    };
    let (mut to, mut from) = (to.into_iter(), from.into_iter());
    let (mut target, mut source) = (to.next(), from.next());
    while let (Some((t, t_left)), Some((s, s_left))) = (target, source) {
        let length = t_left.min(s_left);
        // SAFETY: `pieces` vouches for device memory; host memory is the promise of the call that queued the copy.
        unsafe { std::ptr::copy(s as *const u8, t as *mut u8, length) };
        target = if t_left > length { Some((t + length, t_left - length)) } else { to.next() };
        source = if s_left > length { Some((s + length, s_left - length)) } else { from.next() };
    }
    OK
}

/// Queues a copy; `wait`: and waits for it.
fn start(world: &mut Guard, stream: CUstream, mut copy: Copy, wait: bool) -> Answer {
    let key = crate::stream::find(world, stream)?;
    check(world, &copy)?;
    if wait {
        // A synchronous copy is work in the legacy stream and a wait for it.
        world.refuse_unsafe_in_capture()?;
    }
    let both_host = is_host(world, copy.to, copy.to_side) && is_host(world, copy.from, copy.from_side);
    if copy.size == 0 {
        return OK;
    }
    copy.pinned = [pinned(world, copy.to), pinned(world, copy.from)];
    let to_pageable = space::find(world, copy.to).is_none();
    let from_pageable = space::find(world, copy.from).is_none();
    if world.config.staged && from_pageable && world.valid_capture(key)?.is_none() {
        // SAFETY: plain host memory, which the caller says is there.
        let bytes = unsafe { std::slice::from_raw_parts(copy.from as *const u8, copy.size as usize) };
        copy.staged = Some(bytes.into());
    }
    if let Some(seq) = crate::stream::submit(world, key, Work::Copy(copy))?
        && (wait || both_host || to_pageable)
    {
        // From host to host, and to pageable memory, every copy is synchronous, as documented.
        exec::wait_for(world, key, seq);
        return exec::sticky(world);
    }
    OK
}

fn is_host(world: &World, address: u64, side: Side) -> bool {
    side == Side::Host || space::find(world, address).is_none_or(|range| range.kind.is_host())
}

fn device_of(world: &World) -> Result<i32, u32> {
    world.current().map(|(_, device)| device)
}

/// The device whose engine does an asynchronous copy: the stream's, which may be another than the current one's.
fn device_of_stream(world: &mut Guard, stream: CUstream) -> Result<i32, u32> {
    let key = crate::stream::find(world, stream)?;
    Ok(world.streams.get(&key).ok_or(INVALID_HANDLE)?.device)
}

const LEGACY: CUstream = std::ptr::null_mut();

exports! {
    3020 Normal fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, size: usize) |w| {
        let device = device_of(w)?;
        let (to_side, from_side) = (Side::Device(device), Side::Host);
        start(w, LEGACY, Copy::new(to, to_side, from as u64, from_side, size), true)
    }

    3020 Normal fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, size: usize) |w| {
        let device = device_of(w)?;
        let (to_side, from_side) = (Side::Host, Side::Device(device));
        start(w, LEGACY, Copy::new(to as u64, to_side, from, from_side, size), true)
    }

    3020 Normal fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, size: usize) |w| {
        let side = Side::Device(device_of(w)?);
        start(w, LEGACY, Copy::new(to, side, from, side, size), true)
    }

    4000 Normal fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, size: usize) |w| {
        let side = Side::Any(device_of(w)?);
        start(w, LEGACY, Copy::new(to, side, from, side, size), true)
    }

    3020 Normal fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, size: usize, stream: CUstream) |w| {
        let device = device_of_stream(w, stream)?;
        let (to_side, from_side) = (Side::Device(device), Side::Host);
        start(w, stream, Copy::new(to, to_side, from as u64, from_side, size), false)
    }

    3020 Normal fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, size: usize, stream: CUstream) |w| {
        let device = device_of_stream(w, stream)?;
        let (to_side, from_side) = (Side::Host, Side::Device(device));
        start(w, stream, Copy::new(to as u64, to_side, from, from_side, size), false)
    }

    3020 Normal fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream) |w| {
        let side = Side::Device(device_of_stream(w, stream)?);
        start(w, stream, Copy::new(to, side, from, side, size), false)
    }

    4000 Normal fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream) |w| {
        let side = Side::Any(device_of_stream(w, stream)?);
        start(w, stream, Copy::new(to, side, from, side, size), false)
    }

    4000 Normal fn cuMemcpyPeer(
        to: CUdeviceptr,
        to_context: CUcontext,
        from: CUdeviceptr,
        from_context: CUcontext,
        size: usize,
    ) |w| {
        w.current()?;
        let to_side = Side::Device(w.context(to_context as u64)?.device);
        let from_side = Side::Device(w.context(from_context as u64)?.device);
        start(w, LEGACY, Copy::new(to, to_side, from, from_side, size), true)
    }

    4000 Normal fn cuMemcpyPeerAsync(
        to: CUdeviceptr,
        to_context: CUcontext,
        from: CUdeviceptr,
        from_context: CUcontext,
        size: usize,
        stream: CUstream,
    ) |w| {
        w.current()?;
        let to_side = Side::Device(w.context(to_context as u64)?.device);
        let from_side = Side::Device(w.context(from_context as u64)?.device);
        start(w, stream, Copy::new(to, to_side, from, from_side, size), false)
    }
}
