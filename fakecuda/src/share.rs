//! Memory between processes: file descriptors and fabric handles of what `cuMemCreate` made, and the older handles of
//! what `cuMemAlloc` made.
//!
//! An exported file descriptor is the block's own file in memory; its name says whose it is. The other handles name
//! the file by process and descriptor, so they are good while the exporter lives and keeps the memory. "Fabric" is
//! this machine: a device that the importer does not see stands for one of another machine.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{
    CUdeviceptr, CUipcMemHandle, CUmemAllocationHandleType, CUmemFabricHandle, CUmemGenericAllocationHandle,
    CUmemRangeHandleType,
};

use crate::code::*;
use crate::gate::{exports, get, put};
use crate::mapping::{self, FABRIC, FABRIC_SINCE, POSIX_FD, new_handle, plain_prop};
use crate::physical::{self, Arena};
use crate::space::{self, Kind, Side};
use crate::world::{Answer, World};

/// What an old handle says, in its 64 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
struct IpcHandle {
    magic: u64,
    process: i32,
    fd: i32,
    offset: u64, // [B] of the allocation's block in the file
    length: u64, // [B] of the block
    skip: u64,   // [B] from the block's start to the allocation
    size: u64,   // [B] of the allocation
    device: i32, // in the machine
    zero: i32,
    serial: u64, // of the allocation
}

/// What a fabric handle says, in its 64 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
struct FabricHandle {
    magic: u64,
    process: i32,
    fd: i32,
    file: (u64, u64), // its identity, as another may have the descriptor's number later
    size: u64,        // [B]
    device: i32,      // in the machine
    channel: i32,     // IMEX
    zeros: [u64; 2],
}

const FABRIC_MAGIC: u64 = 0x6661_6272_6963; // "fabric"
const _: () = assert!(size_of::<FabricHandle>() == size_of::<CUmemFabricHandle>());

const MAGIC: u64 = 0x6661_6b65_6375_6461; // "fakecuda"
const _: () = assert!(size_of::<IpcHandle>() == size_of::<CUipcMemHandle>());

/// The device number in a file's name; None: not a file of a fake driver.
fn device_of_file(fd: i32) -> Option<i32> {
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    let name = link.to_str()?.strip_prefix("/memfd:")?.strip_prefix(physical::FILE_NAME)?;
    name.split_whitespace().next()?.parse().ok()
}

/// Length and identity of a file.
fn stat(fd: i32) -> Option<(u64, (u64, u64))> {
    // SAFETY: all zeros is a value of this plain struct.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: writes the local.
    (unsafe { libc::fstat(fd, &mut about) } == 0)
        .then_some((about.st_size as u64, (about.st_dev, about.st_ino)))
}

fn ordinal_of(world: &World, index: i32) -> Result<i32, u32> {
    let found = world.devices.iter().position(|device| device.index == index);
    found.map(|ordinal| ordinal as i32).ok_or(INVALID_DEVICE)
}

fn fabric_handle(world: &World, block: u64) -> Result<FabricHandle, u32> {
    let channel = world.config.imex.ok_or(NOT_PERMITTED)?;
    let block = world.blocks.get(&block).ok_or(INVALID_VALUE)?;
    let (size, file) = stat(block.fd).ok_or(OPERATING_SYSTEM)?;
    let device = device_of_file(block.fd).ok_or(OPERATING_SYSTEM)?;
    block.file.iter().for_each(Arena::share);
    // SAFETY: getpid has no preconditions.
    let process = unsafe { libc::getpid() };
    Ok(FabricHandle {
        magic: FABRIC_MAGIC,
        process,
        fd: block.fd,
        file,
        size,
        device,
        channel,
        zeros: [0; 2],
    })
}

/// A handle for memory that a process of the same IMEX channel has exported.
fn import_fabric(world: &mut World, handle: &FabricHandle) -> Result<u64, u32> {
    let channel = world.config.imex.ok_or(NOT_PERMITTED)?;
    if handle.magic != FABRIC_MAGIC || handle.zeros != [0; 2] {
        return Err(INVALID_VALUE);
    }
    if handle.channel != channel {
        return Err(NOT_PERMITTED);
    }
    let path = std::ffi::CString::new(format!("/proc/{}/fd/{}", handle.process, handle.fd))
        .map_err(|_| INVALID_VALUE)?;
    // SAFETY: a string.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(INVALID_VALUE); // the exporter has ended
    }
    let same = stat(fd) == Some((handle.size, handle.file)) && device_of_file(fd) == Some(handle.device);
    let device = ordinal_of(world, handle.device).unwrap_or(-1);
    let made = if same { import(world, fd, device, FABRIC) } else { Err(INVALID_VALUE) };
    // SAFETY: just opened.
    unsafe { libc::close(fd) };
    made
}

/// A handle for an exported file: over the block that this process has of it already, or over a new one.
fn import(world: &mut World, fd: i32, device: i32, kind: u32) -> Result<u64, u32> {
    let (size, identity) = stat(fd).ok_or(INVALID_VALUE)?;
    let known = world
        .blocks
        .iter()
        .find(|(_, block)| block.file.is_some() && stat(block.fd).is_some_and(|(_, other)| other == identity))
        .map(|(key, _)| *key);
    let block = match known {
        Some(block) => {
            physical::hold(world, block)?;
            block
        }
        None => {
            // SAFETY: duplicates a descriptor that the caller keeps.
            let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
            if own < 0 {
                return Err(OPERATING_SYSTEM);
            }
            physical::import(world, device, own, 0, size, kind)?
        }
    };
    Ok(new_handle(world, block, size, plain_prop(device, kind)))
}

fn ipc_handle(world: &World, at: u64) -> Result<IpcHandle, u32> {
    let range = space::find(world, at).filter(|range| range.kind == Kind::Alloc).ok_or(INVALID_VALUE)?;
    let mapping = range.maps.get(&range.start).ok_or(INVALID_VALUE)?;
    let block = world.blocks.get(&mapping.block).ok_or(INVALID_VALUE)?;
    let owner = world.device(range.device)?;
    owner.arenas.iter().filter(|arena| arena.fd == block.fd).for_each(|arena| arena.share());
    Ok(IpcHandle {
        magic: MAGIC,
        // SAFETY: getpid has no preconditions.
        process: unsafe { libc::getpid() },
        fd: block.fd,
        offset: block.offset,
        length: block.size,
        skip: mapping.offset,
        size: range.size,
        device: owner.index,
        zero: 0,
        serial: range.serial,
    })
}

fn open(world: &mut World, handle: &IpcHandle) -> Result<u64, u32> {
    let (context, _) = world.current()?;
    if handle.magic != MAGIC || handle.zero != 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: getpid has no preconditions.
    if handle.process == unsafe { libc::getpid() } {
        return Err(INVALID_CONTEXT); // not in the process that exported it
    }
    let device = ordinal_of(world, handle.device)?;
    // Opened already: the same address, counted.
    let key = (u64::from(handle.process as u32) << 32) ^ handle.serial;
    let again =
        world.ranges.values().find(|range| range.kind == Kind::Imported(key)).map(|range| range.start);
    if let Some(start) = again {
        *world.opened.entry(start).or_default() += 1;
        return Ok(start);
    }
    let path = std::ffi::CString::new(format!("/proc/{}/fd/{}", handle.process, handle.fd))
        .map_err(|_| INVALID_VALUE)?;
    // SAFETY: a string.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(MAP_FAILED);
    }
    let fits = stat(fd)
        .is_some_and(|(size, _)| handle.offset.checked_add(handle.length).is_some_and(|end| end <= size));
    if device_of_file(fd) != Some(handle.device) || !fits {
        // SAFETY: just opened.
        unsafe { libc::close(fd) };
        return Err(INVALID_VALUE);
    }
    let block = physical::import(world, device, fd, handle.offset, handle.length, 0)?;
    let start = crate::memory::place(world, Kind::Imported(key), device, context, handle.size, block)
        .inspect_err(|_| physical::release(world, block))?;
    world.opened.insert(start, 1);
    Ok(start)
}

/// One more descriptor is handed out. Nobody tells when it is closed.
fn count_descriptor(world: &mut World) -> Answer {
    if world.handed_out >= world.config.most_fds {
        return Err(OPERATING_SYSTEM);
    }
    world.handed_out += 1;
    OK
}

/// A file that stands for a dma-buf: what the range has at this moment, since no file shows memory of several others.
fn dmabuf(world: &mut World, at: u64, size: u64) -> Result<c_int, u32> {
    // "Must be aligned to the host page size", both.
    if size == 0 || !at.is_multiple_of(physical::PAGE) || !size.is_multiple_of(physical::PAGE) {
        return Err(INVALID_VALUE);
    }
    let device = world.current()?.1;
    let range = space::find(world, at).ok_or(INVALID_VALUE)?;
    if range.kind.is_host() || range.kind == Kind::Managed {
        return Err(INVALID_VALUE);
    }
    let pieces = space::pieces(world, at, size, Side::Device(device), false)?;
    if world.config.one_dmabuf && pieces.len() > 1 {
        return Err(INVALID_VALUE);
    }
    count_descriptor(world)?;
    // SAFETY: a string; the descriptor is new.
    let fd = unsafe { libc::memfd_create(c"fakecuda-dma-buf".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(OPERATING_SYSTEM);
    }
    for (address, length) in pieces {
        // SAFETY: `pieces` vouches for the source; the descriptor is ours.
        let written = unsafe { libc::write(fd, address as *const c_void, length) };
        if written != length as isize {
            // SAFETY: ours, and nobody else knows it.
            unsafe { libc::close(fd) };
            return Err(OUT_OF_MEMORY);
        }
    }
    Ok(fd)
}

exports! {
    10020 Normal fn cuMemExportToShareableHandle(
        out: *mut c_void,
        handle: CUmemGenericAllocationHandle,
        kind: u32 as CUmemAllocationHandleType,
        flags: c_ulonglong,
    ) |w| {
        mapping::supported(w)?;
        let entry = w.handles.get(&handle).ok_or(INVALID_VALUE)?;
        // One kind, and only what was asked for when the memory was made.
        if flags != 0 || out.is_null() || !matches!(kind, POSIX_FD | FABRIC) || entry.prop.handle_types & kind == 0 {
            return Err(INVALID_VALUE);
        }
        if kind == FABRIC {
            return put(out.cast(), fabric_handle(w, entry.block)?);
        }
        if w.config.no_fd {
            return Err(NOT_SUPPORTED);
        }
        let block = w.blocks.get(&entry.block).ok_or(INVALID_VALUE)?;
        block.file.iter().for_each(Arena::share);
        let block = block.fd;
        count_descriptor(w)?;
        // SAFETY: duplicates a descriptor of ours.
        let fd = unsafe { libc::fcntl(block, libc::F_DUPFD_CLOEXEC, 0) };
        if fd < 0 {
            return Err(OPERATING_SYSTEM);
        }
        put(out.cast::<c_int>(), fd)
    }

    11070 Normal fn cuMemGetHandleForAddressRange(
        out: *mut c_void,
        at: CUdeviceptr,
        size: usize,
        kind: u32 as CUmemRangeHandleType,
        flags: c_ulonglong,
    ) |w| {
        const DMA_BUF_FD: u32 = 1;
        w.current()?;
        if out.is_null() || kind != DMA_BUF_FD || flags != 0 {
            return Err(INVALID_VALUE);
        }
        if w.config.no_dmabuf {
            return Err(NOT_SUPPORTED);
        }
        let fd = dmabuf(w, at, size as u64)?;
        put(out.cast::<c_int>(), fd)
    }

    10020 Normal fn cuMemImportFromShareableHandle(
        out: *mut CUmemGenericAllocationHandle,
        source: *mut c_void,
        kind: u32 as CUmemAllocationHandleType,
    ) |w| {
        mapping::supported(w)?;
        let is_new = kind == FABRIC && w.config.driver < FABRIC_SINCE;
        if !matches!(kind, POSIX_FD | FABRIC) || is_new || out.is_null() {
            return Err(INVALID_VALUE);
        }
        if kind == FABRIC {
            if !w.config.fabric {
                return Err(NOT_SUPPORTED);
            }
            let handle = import_fabric(w, &get(source.cast::<FabricHandle>())?)?;
            return put(out, handle);
        }
        if w.config.no_fd {
            return Err(NOT_SUPPORTED);
        }
        let fd = source as usize as c_int;
        let index = device_of_file(fd).ok_or(INVALID_VALUE)?;
        let device = ordinal_of(w, index)?;
        let handle = import(w, fd, device, POSIX_FD)?;
        put(out, handle)
    }

    4010 Normal fn cuIpcGetMemHandle(out: *mut CUipcMemHandle, at: CUdeviceptr) |w| {
        w.current()?;
        put(out.cast(), ipc_handle(w, at)?)
    }

    11000 Normal fn cuIpcOpenMemHandle_v2(out: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) |w| {
        if out.is_null() || flags != 1 {
            return Err(INVALID_VALUE); // "must be specified as CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS"
        }
        // SAFETY: the same size (checked above), and plain numbers for any bytes.
        let handle = unsafe { std::mem::transmute::<CUipcMemHandle, IpcHandle>(handle) };
        let start = open(w, &handle)?;
        put(out, start)
    }

    4010 Normal fn cuIpcCloseMemHandle(at: CUdeviceptr) |w| {
        let (context, _) = w.current()?;
        let count = w.opened.get_mut(&at).ok_or(INVALID_VALUE)?;
        *count -= 1;
        if *count == 0 {
            w.opened.remove(&at);
            crate::exec::drain_context(w, context);
            space::drop_range(w, at);
        }
        OK
    }
}
