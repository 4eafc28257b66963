//! Address ranges: every address that the driver has handed out or that was registered with it, and the memory behind
//! it. One table answers for all calls whether an address is known, whether it is mapped, and which device may touch
//! it.
//!
//! The driver itself never touches memory through the addresses that it hands out, but through `pieces`. In strict
//! mode those addresses cannot be touched at all; otherwise they show the same memory, so that a test may play kernel.

use std::collections::BTreeMap;

use crate::code::*;
use crate::managed::Page;
use crate::physical;
use crate::world::{Answer, World};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Alloc,         // cuMemAlloc
    Reserved,      // cuMemAddressReserve
    Pool(u64),     // a chunk of a pool, for cuMemAllocAsync
    Imported(u64), // cuIpcOpenMemHandle; the key of the exported memory
    Host(u32),     // cuMemHostAlloc, with its flags
    Registered(u32),
    Managed,
}

impl Kind {
    /// The memory is the host's own, at its own address.
    pub(crate) fn is_host(self) -> bool {
        matches!(self, Kind::Host(_) | Kind::Registered(_))
    }
}

/// Memory shown in a part of a range.
pub(crate) struct Mapping {
    pub(crate) size: u64,
    pub(crate) block: u64,
    pub(crate) offset: u64, // [B] in the block
    pub(crate) id: u64,     // the buffer id of its addresses
    /// By device; what is not in it has no access.
    pub(crate) access: BTreeMap<i32, u32>,
    pub(crate) tables: u64, // [B] of the block's device that its page tables take; they come with the first access
}

pub(crate) const READ: u32 = 1;
pub(crate) const READ_WRITE: u32 = 3;

pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) kind: Kind,
    pub(crate) device: i32,
    pub(crate) context: u64,
    pub(crate) serial: u64, // CU_POINTER_ATTRIBUTE_BUFFER_ID
    pub(crate) maps: BTreeMap<u64, Mapping>,
    pub(crate) pages: BTreeMap<u64, Page>, // of managed memory, as far as something is known
    pub(crate) system: (usize, usize), // what to give back to the system: address and length; 0, 0: nothing
}

impl Range {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.size
    }

    /// The mapping that shows an address, with its own first address.
    pub(crate) fn mapping(&self, at: u64) -> Option<(u64, &Mapping)> {
        let (from, mapping) = self.maps.range(..=at).next_back()?;
        (at < from + mapping.size).then_some((*from, mapping))
    }
}

/// The kind of address that a call expects.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// A host address: pageable, pinned, registered or managed.
    Host,
    /// A device address, touched from this device.
    Device(i32),
    /// Either kind, as found in the table.
    Any(i32),
}

/// Addresses for `size` bytes that nothing else in the process uses, untouchable. (address, system range)
pub(crate) fn reserve(size: u64, align: u64, hint: u64) -> Option<(u64, (usize, usize))> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    if hint != 0 && hint.is_multiple_of(align) {
        // SAFETY: never replaces a mapping (MAP_FIXED_NOREPLACE).
        let at = unsafe {
            libc::mmap(
                hint as *mut _,
                size as usize,
                libc::PROT_NONE,
                flags | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        if at != libc::MAP_FAILED {
            if at as u64 == hint {
                return Some((hint, (at as usize, size as usize)));
            }
            // SAFETY: just mapped; an old kernel took the hint as a mere hint.
            unsafe { libc::munmap(at, size as usize) };
        }
    }
    let align = align.max(physical::PAGE);
    // A page more: the address after the range is never in use, so that what runs over is found out.
    let length = size.checked_add(align)?.checked_add(physical::PAGE)?;
    // SAFETY: a new mapping where the kernel likes.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), usize::try_from(length).ok()?, libc::PROT_NONE, flags, -1, 0)
    };
    if at == libc::MAP_FAILED {
        return None;
    }
    let start = physical::round_up(at as u64, align)?;
    Some((start, (at as usize, length as usize)))
}

/// Shows a block at addresses of ours. `write`: may be touched; in strict mode it is not shown at all.
pub(crate) fn show(world: &World, at: u64, size: u64, block: u64, offset: u64, access: u32) -> Answer {
    if world.config.strict {
        return OK;
    }
    let protection = match access {
        READ => libc::PROT_READ,
        READ_WRITE => libc::PROT_READ | libc::PROT_WRITE,
        _ => libc::PROT_NONE,
    };
    let Some(block) = world.blocks.get(&block) else { return Err(INVALID_VALUE) };
    // SAFETY: the addresses lie in a range that the driver reserved, and the file part belongs to the block.
    let shown = unsafe {
        libc::mmap(
            at as *mut _,
            size as usize,
            protection,
            libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
            block.fd,
            (block.offset + offset) as libc::off_t,
        )
    };
    if shown == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { OK }
}

/// Unmaps a part of a range; the addresses stay ours.
pub(crate) fn hide(world: &World, at: u64, size: u64) {
    if world.config.strict {
        return;
    }
    // SAFETY: the addresses lie in a range that the driver reserved.
    unsafe {
        libc::mmap(
            at as *mut _,
            size as usize,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
}

/// The range that holds an address.
pub(crate) fn find(world: &World, address: u64) -> Option<&Range> {
    let (_, range) = world.ranges.range(..=address).next_back()?;
    (address < range.end()).then_some(range)
}

/// True if a part of these addresses belongs to a range.
pub(crate) fn overlaps(world: &World, start: u64, size: u64) -> bool {
    let end = start.saturating_add(size);
    world.ranges.range(..end).next_back().is_some_and(|(_, range)| range.end() > start)
}

/// Removes a range from the table and gives back all memory behind it.
pub(crate) fn drop_range(world: &mut World, start: u64) {
    let Some(range) = world.ranges.remove(&start) else { return };
    if range.system.1 != 0 {
        // SAFETY: reserved by the driver for this range, which nobody finds any more.
        unsafe { libc::munmap(range.system.0 as *mut _, range.system.1) };
    }
    for mapping in range.maps.into_values() {
        if range.kind == Kind::Reserved {
            crate::mapping::forget_tables(world, &mapping);
        }
        physical::release(world, mapping.block);
    }
}

/// As `pieces`, for a call that queues work: memory of a pool must also be allocated, in one piece.
pub(crate) fn check(world: &World, start: u64, size: u64, side: Side, write: bool) -> Answer {
    pieces(world, start, size, side, write)?;
    match find(world, start) {
        Some(range) if size > 0 && matches!(range.kind, Kind::Pool(_)) => {
            let (first, length) = crate::pool::allocation(world, start).ok_or(INVALID_VALUE)?;
            if start + size <= first + length { OK } else { Err(INVALID_VALUE) }
        }
        _ => OK,
    }
}

/// Where the bytes of an address range are for the driver itself: a list of (address, length).
///
/// INVALID_VALUE: not known, past the end of an allocation, of the wrong side, not mapped, or without access.
pub(crate) fn pieces(
    world: &World,
    start: u64,
    size: u64,
    side: Side,
    write: bool,
) -> Result<Vec<(usize, usize)>, u32> {
    if size == 0 {
        return Ok(Vec::new());
    }
    let end = start.checked_add(size).ok_or(INVALID_VALUE)?;
    let Some(range) = find(world, start) else {
        // Not ours: plain host memory, if the caller may name that, and if it does not run into ours.
        return match side {
            Side::Device(_) => Err(INVALID_VALUE),
            _ if start == 0 || overlaps(world, start, size) => Err(INVALID_VALUE),
            _ => Ok(vec![(start as usize, size as usize)]),
        };
    };
    if end > range.end() {
        return Err(INVALID_VALUE);
    }
    if range.kind.is_host() || range.kind == Kind::Managed {
        return Ok(vec![(start as usize, size as usize)]);
    }
    let device = match side {
        Side::Host => return Err(INVALID_VALUE),
        Side::Device(device) | Side::Any(device) => device,
    };
    let mut out = Vec::with_capacity(1);
    let mut at = start;
    while at < end {
        let (&from, mapping) = range.maps.range(..=at).next_back().ok_or(INVALID_VALUE)?;
        // Copies reach what cuMemAlloc gave on any device, with or without peer access (unified addressing).
        let open = matches!(range.kind, Kind::Alloc | Kind::Imported(_));
        if at >= from + mapping.size || !(open || may_touch(mapping, device, write)) {
            return Err(INVALID_VALUE);
        }
        let length = (from + mapping.size).min(end) - at;
        let block = world.blocks.get(&mapping.block).ok_or(INVALID_VALUE)?;
        out.push((block.base + (mapping.offset + at - from) as usize, length as usize));
        at += length;
    }
    Ok(out)
}

fn may_touch(mapping: &Mapping, device: i32, write: bool) -> bool {
    let wanted = if write { READ_WRITE } else { READ };
    mapping.access.get(&device).is_some_and(|access| access & wanted == wanted)
}
