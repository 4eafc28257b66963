//! The mapping calls: addresses without memory, memory without addresses, and the two joined. Every rule of the
//! documentation that a caller can break is checked: granularity, whole mappings, whole reservations, one handle freed
//! once.

use std::collections::BTreeMap;
use std::ffi::{c_ulonglong, c_void};

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemLocation,
};

use crate::code::*;
use crate::gate::{exports, get, put};
use crate::physical;
use crate::space::{self, Kind, Mapping, Range};
use crate::sync::Guard;
use crate::world::{Answer, World};

/// What cuMemCreate and its like hand out.
pub(crate) struct Handle {
    pub(crate) block: u64,
    pub(crate) size: u64,
    pub(crate) holders: u32, // cuMemCreate, cuMemRetainAllocationHandle
    pub(crate) prop: Prop,
}

/// CUmemAllocationProp with plain numbers, which may have any value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Prop {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    win32: usize,
    compression: u8,
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// CUmemLocation with plain numbers.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

/// CUmemAccessDesc with plain numbers.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AccessDesc {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

const _: () = assert!(size_of::<Prop>() == size_of::<CUmemAllocationProp>());
const _: () = assert!(size_of::<Location>() == size_of::<CUmemLocation>());
const _: () = assert!(size_of::<AccessDesc>() == size_of::<CUmemAccessDesc>());

const PINNED: u32 = 1;
pub(crate) const DEVICE: u32 = 1;
pub(crate) const POSIX_FD: u32 = 1;
pub(crate) const FABRIC: u32 = 8;
/// The first driver that knows fabric handles.
pub(crate) const FABRIC_SINCE: i32 = 12030;

impl Location {
    /// The device that it names.
    pub(crate) fn device(self, world: &World) -> Result<i32, u32> {
        if self.kind != DEVICE {
            return Err(INVALID_VALUE);
        }
        world.device(self.id)?;
        Ok(self.id)
    }
}

/// The mapping calls exist, but the device may lack them.
pub(crate) fn supported(world: &World) -> Answer {
    if world.config.no_vmm { Err(NOT_SUPPORTED) } else { OK }
}

fn check_prop(world: &World, prop: &Prop) -> Result<i32, u32> {
    if prop.kind != PINNED || prop.reserved != [0; 4] || prop.compression > 1 || prop.rdma > 1 {
        return Err(INVALID_VALUE);
    }
    let device = prop.location.device(world)?;
    // A mask: memory may be made for several kinds of handles.
    let (config, types) = (&world.config, prop.handle_types);
    if types > 0xf || types & FABRIC != 0 && config.driver < FABRIC_SINCE {
        return Err(INVALID_VALUE);
    }
    if prop.rdma != 0 && !config.rdma {
        return Err(NOT_SUPPORTED);
    }
    let others = types & !(POSIX_FD | FABRIC); // of another system
    if others != 0 || types & POSIX_FD != 0 && config.no_fd || types & FABRIC != 0 && !config.fabric {
        return Err(NOT_SUPPORTED);
    }
    Ok(device)
}

fn is_granular(world: &World, value: u64) -> bool {
    value.is_multiple_of(world.config.granularity)
}

/// The mappings of `[start, start + size)`, if they fill it exactly and none is cut.
fn whole_mappings(range: &Range, start: u64, size: u64) -> Result<Vec<u64>, u32> {
    let end = start.checked_add(size).ok_or(INVALID_VALUE)?;
    let mut at = start;
    let mut found = Vec::new();
    while at < end {
        let mapping = range.maps.get(&at).ok_or(INVALID_VALUE)?;
        found.push(at);
        at += mapping.size;
    }
    if at == end && !found.is_empty() { Ok(found) } else { Err(INVALID_VALUE) }
}

fn reservation(world: &World, start: u64, size: u64) -> Result<&Range, u32> {
    let end = start.checked_add(size).ok_or(INVALID_VALUE)?;
    let range = space::find(world, start).ok_or(INVALID_VALUE)?;
    if range.kind != Kind::Reserved || end > range.end() || size == 0 {
        return Err(INVALID_VALUE);
    }
    Ok(range)
}

fn map(world: &mut Guard, at: u64, size: u64, offset: u64, handle: u64) -> Answer {
    let range = reservation(world, at, size)?;
    let entry = world.handles.get(&handle).ok_or(INVALID_VALUE)?;
    let end = offset.checked_add(size).filter(|end| *end <= entry.size).ok_or(INVALID_VALUE)?;
    if !is_granular(world, at) || !is_granular(world, size) || !is_granular(world, offset) {
        return Err(INVALID_VALUE);
    }
    // A handle is mapped as a whole. The documentation says of the offset that it "currently must be zero"; a card was seen
    // to refuse a part from the start, too.
    if offset != 0 || end != entry.size {
        return Err(NOT_SUPPORTED);
    }
    let taken =
        range.maps.range(..at + size).next_back().is_some_and(|(from, mapping)| from + mapping.size > at);
    if taken {
        return Err(INVALID_VALUE);
    }
    let (start, block) = (range.start, entry.block);
    world.clock.touch(1, size);
    physical::hold(world, block)?;
    let id = world.new_handle();
    if let Some(range) = world.ranges.get_mut(&start) {
        range.maps.insert(at, Mapping { size, block, offset, id, access: BTreeMap::new(), tables: 0 });
    }
    OK
}

fn unmap(world: &mut Guard, at: u64, size: u64) -> Answer {
    let range = reservation(world, at, size)?;
    let start = range.start;
    let found = whole_mappings(range, at, size)?;
    if world.config.one_unmap && found.len() > 1 {
        return Err(INVALID_VALUE);
    }
    world.clock.touch(found.len() as u64, size);
    space::hide(world, at, size);
    for one in found {
        let mapping = world.ranges.get_mut(&start).and_then(|range| range.maps.remove(&one));
        if let Some(mapping) = mapping {
            forget_tables(world, &mapping);
            physical::release(world, mapping.block);
        }
    }
    OK
}

/// The page tables of a mapping that goes take no memory any more.
pub(crate) fn forget_tables(world: &mut World, mapping: &Mapping) {
    if mapping.access.is_empty() {
        return;
    }
    world.open_mappings -= 1;
    let Some(device) = world.blocks.get(&mapping.block).map(|block| block.device) else { return };
    if let Ok(owner) = world.device_mut(device) {
        owner.give(mapping.tables);
    }
}

/// Makes the page tables of mappings that nobody had access to: all, or none.
fn make_tables(world: &mut World, start: u64, keys: &[u64]) -> Answer {
    let range = world.ranges.get(&start).ok_or(INVALID_VALUE)?;
    let first = keys.iter().filter(|key| range.maps[*key].access.is_empty());
    let fresh: Vec<(u64, u64)> = first.map(|key| (*key, range.maps[key].block)).collect();
    let bytes = world.config.table_bytes;
    if world.open_mappings + fresh.len() as u64 > world.config.most_mappings {
        return Err(OUT_OF_MEMORY);
    }
    for (done, (key, block)) in fresh.iter().enumerate() {
        let device = world.blocks.get(block).ok_or(INVALID_VALUE)?.device;
        // Memory that came from another process may lie on a device that this one does not see.
        let Ok(owner) = world.device_mut(device) else { continue };
        if bytes > owner.left() {
            for (key, block) in &fresh[..done] {
                let device = world.blocks.get(block).ok_or(INVALID_VALUE)?.device;
                let Ok(owner) = world.device_mut(device) else { continue };
                owner.give(bytes);
                if let Some(mapping) = world.ranges.get_mut(&start).and_then(|range| range.maps.get_mut(key))
                {
                    mapping.tables = 0;
                }
            }
            return Err(OUT_OF_MEMORY);
        }
        owner.take(bytes);
        if let Some(mapping) = world.ranges.get_mut(&start).and_then(|range| range.maps.get_mut(key)) {
            mapping.tables = bytes;
        }
    }
    world.open_mappings += fresh.len() as u64;
    OK
}

fn set_access(world: &mut Guard, at: u64, size: u64, list: &[AccessDesc]) -> Answer {
    let range = reservation(world, at, size)?;
    let start = range.start;
    let found = whole_mappings(range, at, size)?;
    if list.is_empty() {
        return Err(INVALID_VALUE);
    }
    for one in list {
        let device = one.location.device(world)?;
        if !matches!(one.flags, 0 | 1 | 3) {
            return Err(INVALID_VALUE);
        }
        for mapping in &found {
            let owner = world.blocks.get(&range.maps[mapping].block).ok_or(INVALID_VALUE)?.device;
            if world.config.apart(owner, device) {
                return Err(INVALID_DEVICE);
            }
        }
    }
    world.clock.touch(found.len() as u64, size);
    make_tables(world, start, &found)?;
    for key in found {
        let Some(mapping) = world.ranges.get_mut(&start).and_then(|range| range.maps.get_mut(&key)) else {
            return Err(INVALID_VALUE);
        };
        for one in list {
            mapping.access.insert(one.location.id, one.flags);
        }
        let most = mapping.access.values().copied().max().unwrap_or(0);
        let (size, block, offset) = (mapping.size, mapping.block, mapping.offset);
        space::show(world, key, size, block, offset, most)?;
    }
    OK
}

/// A new handle over a block that has one holder, which the handle becomes.
pub(crate) fn new_handle(world: &mut World, block: u64, size: u64, prop: Prop) -> u64 {
    let handle = world.new_handle();
    world.handles.insert(handle, Handle { block, size, holders: 1, prop });
    handle
}

/// The properties of memory that came from elsewhere.
pub(crate) fn plain_prop(device: i32, handle_types: u32) -> Prop {
    let location = Location { kind: DEVICE, id: device };
    Prop {
        kind: PINNED,
        handle_types,
        location,
        win32: 0,
        compression: 0,
        rdma: 0,
        usage: 0,
        reserved: [0; 4],
    }
}

exports! {
    10020 Normal fn cuMemGetAllocationGranularity(
        out: *mut usize,
        prop: *const CUmemAllocationProp,
        option: u32 as CUmemAllocationGranularity_flags,
    ) |w| {
        supported(w)?;
        check_prop(w, &get(prop.cast::<Prop>())?)?;
        if option > 1 {
            return Err(INVALID_VALUE);
        }
        put(out, w.config.granularity as usize)
    }

    10020 Normal fn cuMemAddressReserve(
        out: *mut CUdeviceptr,
        size: usize,
        alignment: usize,
        hint: CUdeviceptr,
        flags: c_ulonglong,
    ) |w| {
        supported(w)?;
        let granularity = w.config.granularity;
        let align = (alignment as u64).max(granularity);
        if out.is_null() || size == 0 || flags != 0 || !is_granular(w, size as u64) || !align.is_power_of_two() {
            return Err(INVALID_VALUE);
        }
        w.refuse_unsafe_in_capture()?;
        let size = size as u64;
        let (start, system) = space::reserve(size, align, hint).ok_or(OUT_OF_MEMORY)?;
        let serial = w.new_handle();
        let maps = BTreeMap::new();
        let range =
            Range { start, size, kind: Kind::Reserved, device: -1, context: 0, serial, maps, pages: BTreeMap::new(), system };
        w.ranges.insert(start, range);
        put(out, start)
    }

    10020 Normal fn cuMemAddressFree(at: CUdeviceptr, size: usize) |w| {
        supported(w)?;
        let range = w.ranges.get(&at).ok_or(INVALID_VALUE)?;
        if range.kind != Kind::Reserved || range.size != size as u64 || !range.maps.is_empty() {
            return Err(INVALID_VALUE);
        }
        w.refuse_unsafe_in_capture()?;
        space::drop_range(w, at);
        OK
    }

    10020 Normal fn cuMemCreate(
        out: *mut CUmemGenericAllocationHandle,
        size: usize,
        prop: *const CUmemAllocationProp,
        flags: c_ulonglong,
    ) |w| {
        supported(w)?;
        let prop = get(prop.cast::<Prop>())?;
        let device = check_prop(w, &prop)?;
        if out.is_null() || size == 0 || flags != 0 || !is_granular(w, size as u64) {
            return Err(INVALID_VALUE);
        }
        if prop.handle_types & FABRIC != 0 && w.config.imex.is_none() {
            return Err(NOT_PERMITTED); // no IMEX channel, whatever the device's attribute says
        }
        // As an attribute may promise what the machine, its container or another driver then refuses.
        match (w.config.refuse_rdma, w.config.refuse_fd) {
            (code @ 1.., _) if prop.rdma != 0 => return Err(code),
            (_, code @ 1..) if prop.handle_types & POSIX_FD != 0 => return Err(code),
            _ => {}
        }
        if w.handles.len() as u64 >= w.config.most_handles {
            return Err(OUT_OF_MEMORY);
        }
        w.refuse_unsafe_in_capture()?;
        w.clock.touch(0, size as u64);
        let block = physical::create(w, device, size as u64, prop.handle_types)?;
        let handle = new_handle(w, block, size as u64, prop);
        put(out, handle)
    }

    10020 Normal fn cuMemRelease(handle: CUmemGenericAllocationHandle) |w| {
        supported(w)?;
        let size = w.handles.get(&handle).ok_or(INVALID_VALUE)?.size;
        w.clock.touch(0, size);
        let entry = w.handles.get_mut(&handle).ok_or(INVALID_VALUE)?;
        entry.holders -= 1;
        if entry.holders == 0 {
            let block = entry.block;
            w.handles.remove(&handle);
            physical::release(w, block);
        }
        OK
    }

    10020 Normal fn cuMemMap(
        at: CUdeviceptr,
        size: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: c_ulonglong,
    ) |w| {
        supported(w)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        w.refuse_unsafe_in_capture()?;
        map(w, at, size as u64, offset as u64, handle)
    }

    10020 Normal fn cuMemUnmap(at: CUdeviceptr, size: usize) |w| {
        supported(w)?;
        w.refuse_unsafe_in_capture()?;
        unmap(w, at, size as u64)
    }

    10020 Normal fn cuMemSetAccess(
        at: CUdeviceptr,
        size: usize,
        list: *const CUmemAccessDesc,
        count: usize,
    ) |w| {
        supported(w)?;
        if list.is_null() || count > 64 {
            return Err(INVALID_VALUE);
        }
        w.refuse_unsafe_in_capture()?;
        let mut wanted = Vec::with_capacity(count);
        for index in 0..count {
            wanted.push(get(list.cast::<AccessDesc>().wrapping_add(index))?);
        }
        set_access(w, at, size as u64, &wanted)
    }

    10020 Normal fn cuMemGetAccess(out: *mut c_ulonglong, location: *const CUmemLocation, at: CUdeviceptr) |w| {
        supported(w)?;
        let device = get(location.cast::<Location>())?.device(w)?;
        let range = space::find(w, at).ok_or(INVALID_VALUE)?;
        let (_, mapping) = range.mapping(at).ok_or(INVALID_VALUE)?;
        put(out, c_ulonglong::from(mapping.access.get(&device).copied().unwrap_or(0)))
    }

    11000 Normal fn cuMemRetainAllocationHandle(out: *mut CUmemGenericAllocationHandle, at: *mut c_void) |w| {
        supported(w)?;
        let at = at as u64;
        let range = space::find(w, at).filter(|range| range.kind == Kind::Reserved).ok_or(INVALID_VALUE)?;
        let block = range.mapping(at).ok_or(INVALID_VALUE)?.1.block;
        let known = w.handles.iter().find(|(_, entry)| entry.block == block).map(|(handle, _)| *handle);
        if let Some(handle) = known {
            if let Some(entry) = w.handles.get_mut(&handle) {
                entry.holders += 1;
            }
            return put(out, handle);
        }
        // All handles were released while mappings hold the memory: a handle comes back to life.
        physical::hold(w, block)?;
        let entry = w.blocks.get(&block).ok_or(INVALID_VALUE)?;
        let (size, prop) = (entry.size, plain_prop(entry.device, entry.handle_types));
        let handle = new_handle(w, block, size, prop);
        put(out, handle)
    }

    10020 Normal fn cuMemGetAllocationPropertiesFromHandle(
        out: *mut CUmemAllocationProp,
        handle: CUmemGenericAllocationHandle,
    ) |w| {
        supported(w)?;
        put(out.cast(), w.handles.get(&handle).ok_or(INVALID_VALUE)?.prop)
    }
}
