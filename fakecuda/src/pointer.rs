//! What is known about an address.

use std::ffi::{c_uint, c_void};

use cudarc::driver::sys::{CUdeviceptr, CUpointer_attribute};

use crate::code::*;
use crate::gate::{exports, get, put};
use crate::space::{self, Kind, Range};
use crate::world::{Answer, World};

/// The memory behind an address: the range, and the device whose memory it is.
fn known(world: &World, at: u64) -> Option<(&Range, i32, bool)> {
    let range = space::find(world, at)?;
    if range.kind != Kind::Reserved {
        return Some((range, range.device, true));
    }
    let mapped = range.mapping(at).and_then(|(_, mapping)| world.blocks.get(&mapping.block));
    Some((range, mapped.map_or(-1, |block| block.device), mapped.is_some()))
}

fn attribute(world: &World, data: *mut c_void, which: u32, at: u64) -> Answer {
    let (range, device, mapped) = known(world, at).ok_or(INVALID_VALUE)?;
    let host = range.kind.is_host();
    let (start, size) = match range.kind {
        Kind::Pool(_) => crate::pool::allocation(world, at).ok_or(INVALID_VALUE)?,
        _ => (range.start, range.size),
    };
    // Addresses without memory have their range and nothing else. The range attributes answer for the reservation,
    // mapped or not, unlike cuMemGetAddressRange: the tests of NVIDIA's DALI (dali/core/mm/cu_vm_test.cc) say so.
    if !mapped && !matches!(which, 11..=12) {
        return Err(INVALID_VALUE);
    }
    match which {
        1 => put(data.cast(), range.context), // 0 for mapped memory, which belongs to no context
        2 => put(data.cast::<u32>(), if host { 1 } else { 2 }),
        3 => put(data.cast(), at),
        4 if host || range.kind == Kind::Managed => put(data.cast(), at),
        4 | 5 => Err(INVALID_VALUE),
        6 => put(data.cast::<c_uint>(), 0),
        // An id stands for one mapping: two addresses of one handle have two, as a card was seen to answer.
        7 if range.kind == Kind::Reserved => {
            put(data.cast(), range.mapping(at).map(|(_, mapping)| mapping.id).ok_or(INVALID_VALUE)?)
        }
        7 => put(data.cast(), range.serial),
        8 => put(data.cast::<c_uint>(), u32::from(range.kind == Kind::Managed)),
        9 => put(data.cast(), device),
        10 => put(data.cast::<c_uint>(), u32::from(range.kind == Kind::Alloc)),
        11 => put(data.cast(), start),
        12 => put(data.cast(), size),
        13 => put(data.cast::<c_uint>(), u32::from(mapped)),
        14 => {
            let mapping = range.mapping(at).filter(|_| range.kind == Kind::Reserved);
            let block = mapping.and_then(|(_, mapping)| world.blocks.get(&mapping.block));
            put(data.cast::<u64>(), block.map_or(0, |block| block.handle_types.into()))
        }
        15 => put(data.cast::<c_uint>(), u32::from(range.kind == Kind::Alloc)),
        16 => {
            let (_, current) = world.current()?;
            let flags = range.maps.range(..=at).next_back().map(|(_, mapping)| mapping.access.get(&current));
            put(data.cast::<c_uint>(), flags.map_or(3, |flags| flags.copied().unwrap_or(0)))
        }
        17 => match range.kind {
            Kind::Pool(pool) => put(data.cast(), pool),
            _ => put(data.cast(), 0_u64),
        },
        _ => Err(INVALID_VALUE),
    }
}

exports! {
    4000 Normal fn cuPointerGetAttribute(data: *mut c_void, which: u32 as CUpointer_attribute, at: CUdeviceptr) |w| {
        w.current()?;
        attribute(w, data, which, at)
    }

    7000 Normal fn cuPointerGetAttributes(
        count: c_uint,
        which: *mut CUpointer_attribute,
        data: *mut *mut c_void,
        at: CUdeviceptr,
    ) |w| {
        w.current()?;
        // Unlike the single form, this one does not fail for an address that it does not know.
        for index in 0..count as usize {
            let which = get(which.cast::<u32>().wrapping_add(index))?;
            let to = get(data.wrapping_add(index))?;
            if !(1..=17).contains(&which) || to.is_null() {
                return Err(INVALID_VALUE);
            }
            if attribute(w, to, which, at).is_err() {
                match which {
                    9 => put(to.cast::<i32>(), -2)?, // "set to -2 if the pointer is not known"
                    2 | 6 | 8 | 10 | 13 | 15 | 16 => put(to.cast::<u32>(), 0)?,
                    _ => put(to.cast::<u64>(), 0)?,
                }
            }
        }
        OK
    }
}
