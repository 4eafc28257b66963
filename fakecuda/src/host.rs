//! Host memory that devices know: pinned, registered. Under unified addressing (all that this driver offers) its device
//! address is its host address.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};

use cudarc::driver::sys::CUdeviceptr;

use crate::code::*;
use crate::exec;
use crate::gate::{exports, put};
use crate::physical::{PAGE, round_up};
use crate::space::{self, Kind, Range};
use crate::sync::Guard;
use crate::world::{Answer, World};

const ALLOC_FLAGS: u32 = 7; // portable, device map, write combined
const REGISTER_FLAGS: u32 = 0xf; // portable, device map, I/O memory, read only

fn insert(
    world: &mut World,
    kind: Kind,
    context: u64,
    device: i32,
    start: u64,
    size: u64,
    system: (usize, usize),
) {
    let serial = world.new_handle();
    let maps = BTreeMap::new();
    world.ranges.insert(
        start,
        Range { start, size, kind, device, context, serial, maps, pages: BTreeMap::new(), system },
    );
}

/// Pages of the host as a new range.
pub(crate) fn pages(world: &mut World, kind: Kind, context: u64, device: i32, size: u64) -> Result<u64, u32> {
    let length = round_up(size, PAGE).ok_or(OUT_OF_MEMORY)?;
    let (start, system) = space::reserve(length, PAGE, 0).ok_or(OUT_OF_MEMORY)?;
    // SAFETY: just reserved by us.
    if unsafe { libc::mprotect(start as *mut _, length as usize, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
        // SAFETY: just reserved by us, and known to nobody.
        unsafe { libc::munmap(system.0 as *mut _, system.1) };
        return Err(OUT_OF_MEMORY);
    }
    insert(world, kind, context, device, start, size, system);
    Ok(start)
}

fn alloc(world: &mut Guard, out: *mut *mut c_void, size: usize, flags: c_uint) -> Answer {
    let (context, device) = world.current()?;
    if out.is_null() || size == 0 || flags & !ALLOC_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    world.refuse_unsafe_in_capture()?;
    let start = pages(world, Kind::Host(flags), context, device, size as u64)?;
    put(out, start as *mut c_void)
}

/// True if every page of the range exists in this process.
fn is_mapped(start: u64, size: u64) -> bool {
    let first = start / PAGE * PAGE;
    let Some(end) = start.checked_add(size).and_then(|end| round_up(end, PAGE)) else { return false };
    let mut at = first;
    let mut resident = vec![0_u8; 1024];
    while at < end {
        let length = (end - at).min(1024 * PAGE);
        // SAFETY: asks the kernel about addresses; `resident` has a byte for each page.
        if unsafe { libc::mincore(at as *mut _, length as usize, resident.as_mut_ptr()) } != 0 {
            return false;
        }
        at += length;
    }
    true
}

/// The pinned or registered range that starts at or holds `at`.
fn host_range(world: &World, at: u64) -> Option<&Range> {
    space::find(world, at).filter(|range| range.kind.is_host())
}

exports! {
    4000 Normal fn cuMemHostAlloc(out: *mut *mut c_void, size: usize, flags: c_uint) |w| {
        alloc(w, out, size, flags)
    }

    3020 Normal fn cuMemAllocHost_v2(out: *mut *mut c_void, size: usize) |w| {
        alloc(w, out, size, 0)
    }

    2000 Normal fn cuMemFreeHost(at: *mut c_void) |w| {
        w.current()?;
        if at.is_null() {
            return OK;
        }
        let range = w.ranges.get(&(at as u64)).ok_or(INVALID_VALUE)?;
        let context = range.context;
        if !matches!(range.kind, Kind::Host(_)) {
            return Err(INVALID_VALUE);
        }
        w.refuse_unsafe_in_capture()?;
        if !w.has_capture_in(context) {
            exec::drain_context(w, context);
        }
        space::drop_range(w, at as u64);
        OK
    }

    6050 Normal fn cuMemHostRegister_v2(at: *mut c_void, size: usize, flags: c_uint) |w| {
        let (context, device) = w.current()?;
        let start = at as u64;
        if start == 0 || size == 0 || flags & !REGISTER_FLAGS != 0 || start.checked_add(size as u64).is_none() {
            return Err(INVALID_VALUE);
        }
        w.refuse_unsafe_in_capture()?;
        let hit = space::find(w, start).or_else(|| space::find(w, start + size as u64 - 1));
        match hit {
            Some(range) if range.kind.is_host() => return Err(HOST_MEMORY_ALREADY_REGISTERED),
            Some(_) => return Err(INVALID_VALUE),
            None if space::overlaps(w, start, size as u64) => return Err(HOST_MEMORY_ALREADY_REGISTERED),
            None => {}
        }
        if !is_mapped(start, size as u64) {
            return Err(INVALID_VALUE);
        }
        insert(w, Kind::Registered(flags), context, device, start, size as u64, (0, 0));
        OK
    }

    4000 Normal fn cuMemHostUnregister(at: *mut c_void) |w| {
        w.current()?;
        let range = w.ranges.get(&(at as u64)).ok_or(HOST_MEMORY_NOT_REGISTERED)?;
        let context = range.context;
        if !matches!(range.kind, Kind::Registered(_)) {
            return Err(INVALID_VALUE);
        }
        w.refuse_unsafe_in_capture()?;
        if !w.has_capture_in(context) {
            exec::drain_context(w, context);
        }
        space::drop_range(w, at as u64);
        OK
    }

    3020 Normal fn cuMemHostGetDevicePointer_v2(out: *mut CUdeviceptr, at: *mut c_void, flags: c_uint) |w| {
        w.current()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        host_range(w, at as u64).ok_or(INVALID_VALUE)?;
        put(out, at as u64)
    }

    2030 Normal fn cuMemHostGetFlags(out: *mut c_uint, at: *mut c_void) |w| {
        w.current()?;
        match host_range(w, at as u64).ok_or(INVALID_VALUE)?.kind {
            Kind::Host(flags) | Kind::Registered(flags) => put(out, flags),
            _ => Err(INVALID_VALUE),
        }
    }
}
