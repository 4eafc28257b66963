//! Physical memory: blocks that no address shows yet. A device's memory is a sparse file in memory, mapped whole once,
//! so that the driver reaches every byte without the addresses that it hands out; a block that may be exported has a
//! file of its own.
//!
//! Only what is touched costs memory, and a freed block gives its pages back. Capacity is counted here and nowhere
//! else, for every way to allocate.

use std::collections::BTreeMap;

use crate::code::*;
use crate::world::{Answer, World};

pub(crate) const PAGE: u64 = 4096;

const JUNK: u8 = 0xa5;

/// What the files of all fake drivers are called, with the device after it.
pub(crate) const FILE_NAME: &str = "fakecuda-device-";

/// A sparse file that holds many blocks.
pub(crate) struct Arena {
    pub(crate) fd: i32,
    pub(crate) base: usize,
    pub(crate) size: u64,
    free: BTreeMap<u64, u64>, // offset to length
}

/// Some memory of a device. It lives while a handle or a mapping holds it.
pub(crate) struct Block {
    pub(crate) device: i32,
    pub(crate) size: u64,
    pub(crate) fd: i32,
    pub(crate) offset: u64, // in the file
    pub(crate) base: usize, // where the driver sees it
    pub(crate) own_file: bool,
    pub(crate) handle_types: u32, // that it may be exported as
    pub(crate) charged: bool,     // counted against the capacity; an import is not
    pub(crate) holders: u32,      // handles and mappings
}

pub(crate) fn round_up(value: u64, to: u64) -> Option<u64> {
    value.checked_add(to - 1).map(|sum| sum / to * to)
}

/// The name says to other processes whose memory it is: the device's number in the machine.
fn memory_file(size: u64, device: i32) -> Option<i32> {
    let name = std::ffi::CString::new(format!("{FILE_NAME}{device}")).ok()?;
    // SAFETY: a string; the descriptor is new.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    // SAFETY: `fd` is ours.
    if unsafe { libc::ftruncate(fd, size as libc::off_t) } != 0 {
        // SAFETY: `fd` is ours.
        unsafe { libc::close(fd) };
        return None;
    }
    Some(fd)
}

fn map_file(fd: i32, size: u64) -> Option<usize> {
    // SAFETY: a new shared mapping at an address that the kernel chooses.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            fd,
            0,
        )
    };
    (base != libc::MAP_FAILED).then_some(base as usize)
}

impl Arena {
    fn new(size: u64, device: i32) -> Option<Arena> {
        let fd = memory_file(size, device)?;
        let Some(base) = map_file(fd, size) else {
            // SAFETY: `fd` is ours.
            unsafe { libc::close(fd) };
            return None;
        };
        Some(Arena { fd, base, size, free: BTreeMap::from([(0, size)]) })
    }

    fn take(&mut self, size: u64) -> Option<u64> {
        let (&offset, &length) = self.free.iter().find(|(_, length)| **length >= size)?;
        self.free.remove(&offset);
        if length > size {
            self.free.insert(offset + size, length - size);
        }
        Some(offset)
    }

    fn give(&mut self, mut offset: u64, mut size: u64) {
        // SAFETY: the file is the arena's and the part belongs to nobody now. Without success the pages just stay.
        unsafe {
            libc::fallocate(
                self.fd,
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                offset as libc::off_t,
                size as libc::off_t,
            )
        };
        if let Some((&before, &length)) = self.free.range(..offset).next_back()
            && before + length == offset
        {
            self.free.remove(&before);
            offset = before;
            size += length;
        }
        if let Some(length) = self.free.remove(&(offset + size)) {
            size += length;
        }
        self.free.insert(offset, size);
    }

    pub(crate) fn close(self) {
        // SAFETY: mapped by `new`; the world that used it is being thrown away.
        unsafe { libc::munmap(self.base as *mut _, self.size as usize) };
        // SAFETY: opened by `new`.
        unsafe { libc::close(self.fd) };
    }
}

/// Makes a block with one holder, which may be exported as one of these handles.
pub(crate) fn create(world: &mut World, device: i32, size: u64, handle_types: u32) -> Result<u64, u32> {
    let size = round_up(size, PAGE).ok_or(OUT_OF_MEMORY)?;
    let owner = world.device(device)?;
    if size > owner.capacity.saturating_sub(owner.used) {
        // Unused memory of pools serves other allocations of the process before one fails.
        crate::pool::give_up_unused(world, device);
    }
    let owner = world.device_mut(device)?;
    if size > owner.capacity.saturating_sub(owner.used) {
        return Err(OUT_OF_MEMORY);
    }
    let index = owner.index;
    let own_file = handle_types != 0;
    let block = if own_file {
        let fd = memory_file(size, index).ok_or(OUT_OF_MEMORY)?;
        let Some(base) = map_file(fd, size) else {
            // SAFETY: `fd` is ours.
            unsafe { libc::close(fd) };
            return Err(OUT_OF_MEMORY);
        };
        Block { device, size, fd, offset: 0, base, own_file, handle_types, charged: true, holders: 1 }
    } else {
        let (index, offset) = take_from_arenas(owner, size).ok_or(OUT_OF_MEMORY)?;
        let arena = &owner.arenas[index];
        let base = arena.base + offset as usize;
        Block { device, size, fd: arena.fd, offset, base, own_file, handle_types, charged: true, holders: 1 }
    };
    // What is left in memory from before is anything but zeros.
    // SAFETY: the block is new and at least a page.
    unsafe { std::ptr::write_bytes(block.base as *mut u8, JUNK, PAGE as usize) };
    owner.used += size;
    owner.used_peak = owner.used_peak.max(owner.used);
    let id = world.new_handle();
    world.blocks.insert(id, block);
    Ok(id)
}

fn take_from_arenas(owner: &mut crate::device::Device, size: u64) -> Option<(usize, u64)> {
    for (index, arena) in owner.arenas.iter_mut().enumerate() {
        if let Some(offset) = arena.take(size) {
            return Some((index, offset));
        }
    }
    // Either the first one, or the file is cut into pieces, which a GPU's pages never are: one more file.
    let length = if owner.arenas.is_empty() { owner.capacity } else { (owner.capacity / 4).max(size) };
    owner.arenas.push(Arena::new(round_up(length.max(size), PAGE)?, owner.index)?);
    let index = owner.arenas.len() - 1;
    owner.arenas[index].take(size).map(|offset| (index, offset))
}

/// Makes a block of a file that another process (or this one) has exported; the file is owned from here on.
/// `device` is -1 for one that this process does not see.
pub(crate) fn import(
    world: &mut World,
    device: i32,
    fd: i32,
    offset: u64,
    size: u64,
    handle_types: u32,
) -> Result<u64, u32> {
    // SAFETY: a new shared mapping of the file.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            fd,
            offset as libc::off_t,
        )
    };
    if base == libc::MAP_FAILED {
        // SAFETY: given to us.
        unsafe { libc::close(fd) };
        return Err(MAP_FAILED);
    }
    let id = world.new_handle();
    let base = base as usize;
    let (own_file, charged) = (true, false);
    let block = Block { device, size, fd, offset, base, own_file, handle_types, charged, holders: 1 };
    world.blocks.insert(id, block);
    Ok(id)
}

pub(crate) fn hold(world: &mut World, id: u64) -> Answer {
    world.blocks.get_mut(&id).ok_or(INVALID_VALUE)?.holders += 1;
    OK
}

/// One holder less; the last one frees the memory.
pub(crate) fn release(world: &mut World, id: u64) {
    let Some(block) = world.blocks.get_mut(&id) else { return };
    block.holders -= 1;
    if block.holders > 0 {
        return;
    }
    let Some(block) = world.blocks.remove(&id) else { return };
    if block.own_file {
        // SAFETY: mapped by `create` or `import`; no mapping holds it any more.
        unsafe { libc::munmap(block.base as *mut _, block.size as usize) };
        // SAFETY: the block's own.
        unsafe { libc::close(block.fd) };
    }
    if let Ok(owner) = world.device_mut(block.device) {
        if block.charged {
            owner.used -= block.size;
        }
        if !block.own_file
            && let Some(arena) = owner.arenas.iter_mut().find(|arena| arena.fd == block.fd)
        {
            arena.give(block.offset, block.size);
        }
    }
}
