//! Memset. On a GPU this is a kernel: it runs on the stream's device, which must be the current one, and may touch
//! another device's memory only as that device's peer.

use std::ffi::{c_uchar, c_uint, c_ushort};

use cudarc::driver::sys::{CUdeviceptr, CUstream};

use crate::code::*;
use crate::exec::Work;
use crate::gate::exports;
use crate::space::{self, Side};
use crate::sync::Guard;
use crate::world::Answer;

#[derive(Clone)]
pub(crate) struct Set {
    at: u64,
    device: i32,
    value: u32,
    width: u64, // [B] of one element: 1, 2 or 4
    count: u64,
}

pub(crate) fn run(world: &mut Guard, set: &Set) -> Answer {
    crate::alias::plain(world, "memset", None, [set.at, set.count * set.width]);
    let bytes = set.value.to_ne_bytes();
    let mut phase = 0; // an element may lie across two pieces
    for (address, length) in
        space::pieces(world, set.at, set.count * set.width, Side::Device(set.device), true)?
    {
        if set.width == 1 {
            // SAFETY: `pieces` vouches for the memory.
            unsafe { std::ptr::write_bytes(address as *mut u8, bytes[0], length) };
            continue;
        }
        for offset in 0..length {
            let byte = bytes[(phase + offset) % set.width as usize];
            // SAFETY: `pieces` vouches for the memory.
            unsafe { ((address + offset) as *mut u8).write(byte) };
        }
        phase += length;
    }
    OK
}

/// `wait` is no matter of the contract: a memset of device memory is asynchronous to the host in either form.
fn start(world: &mut Guard, stream: CUstream, at: u64, value: u32, width: u64, count: usize) -> Answer {
    let (context, device) = world.current()?;
    let key = crate::stream::find(world, stream)?;
    if world.streams.get(&key).ok_or(INVALID_HANDLE)?.context != context {
        return Err(INVALID_HANDLE);
    }
    if !at.is_multiple_of(width) {
        return Err(INVALID_VALUE);
    }
    let size = (count as u64).checked_mul(width).ok_or(INVALID_VALUE)?;
    space::check(world, at, size, Side::Device(device), true)?;
    if let Some(range) = space::find(world, at)
        && range.device != device
        && matches!(range.kind, space::Kind::Alloc)
        && !world.context(context)?.peers.contains(&range.context)
    {
        return Err(INVALID_VALUE);
    }
    if size > 0 {
        let set = Set { at, device, value, width, count: count as u64 };
        crate::stream::submit(world, key, Work::Set(set))?;
    }
    OK
}

const LEGACY: CUstream = std::ptr::null_mut();

exports! {
    3020 Normal fn cuMemsetD8_v2(at: CUdeviceptr, value: c_uchar, count: usize) |w| {
        w.refuse_unsafe_in_capture()?;
        start(w, LEGACY, at, value.into(), 1, count)
    }

    3020 Normal fn cuMemsetD16_v2(at: CUdeviceptr, value: c_ushort, count: usize) |w| {
        w.refuse_unsafe_in_capture()?;
        start(w, LEGACY, at, value.into(), 2, count)
    }

    3020 Normal fn cuMemsetD32_v2(at: CUdeviceptr, value: c_uint, count: usize) |w| {
        w.refuse_unsafe_in_capture()?;
        start(w, LEGACY, at, value, 4, count)
    }

    3020 Normal fn cuMemsetD8Async(at: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream) |w| {
        start(w, stream, at, value.into(), 1, count)
    }

    3020 Normal fn cuMemsetD16Async(at: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream) |w| {
        start(w, stream, at, value.into(), 2, count)
    }

    3020 Normal fn cuMemsetD32Async(at: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) |w| {
        start(w, stream, at, value, 4, count)
    }
}
