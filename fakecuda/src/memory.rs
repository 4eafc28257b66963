//! Device memory in one piece: `cuMemAlloc` and its like, and managed memory.

use std::collections::BTreeMap;
use std::ffi::c_uint;

use cudarc::driver::sys::CUdeviceptr;

use crate::code::*;
use crate::exec;
use crate::gate::{exports, put, put_optional};
use crate::physical;
use crate::space::{self, Kind, Mapping, READ_WRITE, Range};
use crate::sync::Guard;
use crate::world::World;

const LARGE: u64 = 1 << 20; // [B] from here on, allocations start at granules
const GRANULE: u64 = 2 << 20;
/// Small allocations start here in their first page: 512 is what callers may rely on, and no more is what they get.
const SMALL_START: u64 = 512;

/// Addresses with a block behind them, readable and writable by `device`.
pub(crate) fn place(
    world: &mut World,
    kind: Kind,
    device: i32,
    context: u64,
    size: u64,
    block: u64,
) -> Result<u64, u32> {
    let length = world.blocks.get(&block).ok_or(INVALID_VALUE)?.size;
    let (align, skip) = if length >= LARGE { (GRANULE, 0) } else { (physical::PAGE, SMALL_START) };
    let (base, system) = space::reserve(length, align, 0).ok_or(OUT_OF_MEMORY)?;
    if let Err(code) = space::show(world, base, length, block, 0, READ_WRITE) {
        // SAFETY: just reserved, and known to nobody.
        unsafe { libc::munmap(system.0 as *mut _, system.1) };
        return Err(code);
    }
    let start = base + skip;
    let access = BTreeMap::from([(device, READ_WRITE)]);
    let serial = world.new_handle();
    let maps =
        BTreeMap::from([(start, Mapping { size, block, offset: skip, id: serial, access, tables: 0 })]);
    world.ranges.insert(
        start,
        Range { start, size, kind, device, context, serial, maps, pages: BTreeMap::new(), system },
    );
    Ok(start)
}

/// Room for an allocation of `size`, with its skipped start.
pub(crate) fn room(size: u64) -> u64 {
    if size >= LARGE { size } else { size + SMALL_START }
}

fn alloc(world: &mut Guard, size: u64) -> Result<u64, u32> {
    let (context, device) = world.current()?;
    if size == 0 {
        return Err(INVALID_VALUE);
    }
    world.refuse_unsafe_in_capture()?;
    if size > world.device(device)?.capacity {
        return Err(OUT_OF_MEMORY);
    }
    let block = physical::create(world, device, room(size), 0)?;
    place(world, Kind::Alloc, device, context, size, block).inspect_err(|_| physical::release(world, block))
}

exports! {
    3020 Normal fn cuMemAlloc_v2(out: *mut CUdeviceptr, size: usize) |w| {
        if out.is_null() {
            return Err(INVALID_VALUE);
        }
        w.clock.touch(0, size as u64);
        let start = alloc(w, size as u64)?;
        put(out, start)
    }

    3020 Normal fn cuMemAllocPitch_v2(
        out: *mut CUdeviceptr,
        pitch_out: *mut usize,
        width: usize,
        height: usize,
        element: c_uint,
    ) |w| {
        if out.is_null() || pitch_out.is_null() || !matches!(element, 4 | 8 | 16) {
            return Err(INVALID_VALUE);
        }
        let pitch = physical::round_up(width as u64, 512).ok_or(INVALID_VALUE)?;
        let start = alloc(w, pitch.checked_mul(height as u64).ok_or(OUT_OF_MEMORY)?)?;
        put(pitch_out, pitch as usize)?;
        put(out, start)
    }

    3020 Normal fn cuMemFree_v2(at: CUdeviceptr) |w| {
        let (context, _) = w.current()?;
        if at == 0 {
            return OK;
        }
        if let Some((start, _)) = crate::pool::allocation(w, at) {
            w.refuse_unsafe_in_capture()?;
            return if start == at { crate::pool::free_now(w, at) } else { Err(INVALID_VALUE) };
        }
        let range = w.ranges.get(&at).ok_or(INVALID_VALUE)?;
        let (owner, size) = (range.context, range.size);
        if !matches!(range.kind, Kind::Alloc | Kind::Managed) {
            return Err(INVALID_VALUE);
        }
        w.refuse_unsafe_in_capture()?;
        // Implicitly synchronous, as documented for all but stream-ordered allocations.
        if !w.has_capture_in(owner) {
            exec::drain_context(w, owner);
        }
        if context != owner && !w.has_capture_in(context) {
            exec::drain_context(w, context);
        }
        w.clock.touch(0, size);
        space::drop_range(w, at);
        OK
    }

    3020 Normal fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |w| {
        let (_, device) = w.current()?;
        let device = w.device(device)?;
        put_optional(free, device.left() as usize);
        put_optional(total, device.capacity as usize);
        OK
    }

    3020 Normal fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, at: CUdeviceptr) |w| {
        w.current()?;
        let range = space::find(w, at).ok_or(NOT_FOUND)?;
        if range.kind.is_host() {
            return Err(NOT_FOUND);
        }
        let (start, length) = match range.kind {
            Kind::Pool(_) => crate::pool::allocation(w, at).ok_or(NOT_FOUND)?,
            // Not the reservation, and not what lies beside: the memory of one handle.
            Kind::Reserved => range.mapping(at).map(|(from, mapping)| (from, mapping.size)).ok_or(NOT_FOUND)?,
            _ => (range.start, range.size),
        };
        put_optional(base, start);
        put_optional(size, length as usize);
        OK
    }

    6000 Normal fn cuMemAllocManaged(out: *mut CUdeviceptr, size: usize, flags: c_uint) |w| {
        let (context, device) = w.current()?;
        // CU_MEM_ATTACH_GLOBAL or CU_MEM_ATTACH_HOST
        if out.is_null() || size == 0 || !matches!(flags, 1 | 2) {
            return Err(INVALID_VALUE);
        }
        w.refuse_unsafe_in_capture()?;
        let start = crate::host::pages(w, Kind::Managed, context, device, size as u64)?;
        put(out, start)
    }
}
