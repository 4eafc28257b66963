//! What lies at an address, on whichever device: for calls that name only a pointer.

use crate::base::boxed::try_push;
use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::base::inline::said;
use crate::base::sync::system::lock;
use crate::core::BlockInfo;
use crate::device::StreamId;
use crate::fail;
use crate::runtime::device::state::DeviceState;
use crate::runtime::device::table;
use crate::runtime::entry::fork;
use std::sync::Arc;

/// The open device whose memory (a live block, unified memory, or an import) contains `addr`; none if several devices,
/// with address spaces of their own, have it.
pub fn owner(addr: u64) -> Option<Arc<DeviceState>> {
    let has = |d: &&Arc<DeviceState>| {
        d.memory().block(addr).is_ok()
            || d.unified.check(addr, 0).is_some()
            || d.shared_memory().has_import(addr)
    };
    let mut all = table::open_devices().filter(has);
    let first = all.next()?;
    let another = table::own_addresses() && all.next().is_some();
    (!another).then(|| first.clone())
}

/// The kinds of memory, by the call that ends it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Block,
    Pinned,
    Unified,
    Import,
}

/// The error `e` of a call that found no memory of its kind at `addr`; if live memory of another kind is there, on any
/// device, it says so, and which call ends it.
#[cold]
#[inline(never)]
pub(crate) fn explained(addr: u64, wanted: Kind, e: Error) -> Error {
    if e.code() != Code::UnknownPointer {
        return e;
    }
    for d in table::open_devices() {
        let what = if wanted != Kind::Block && d.memory().block(addr).is_ok() {
            "in a block: millpond_free frees it"
        } else if wanted != Kind::Pinned && lock(&d.host.state).live.check(addr, 0).is_some() {
            "pinned host memory: millpond_host_free frees it"
        } else if wanted != Kind::Unified && d.unified.check(addr, 0).is_some() {
            "unified memory: millpond_unified_free frees it"
        } else if wanted != Kind::Import && d.imports.check(addr, 0).is_some() {
            "memory of another process: millpond_import_close gives it up"
        } else {
            continue;
        };
        return Error::formatted(Code::UnknownPointer, format_args!("{addr:#x} is {what}"));
    }
    e
}

/// A block, and its device.
pub type BlockOnDevice = (Arc<DeviceState>, BlockInfo);

/// `InvalidArgument`, with the names of the devices.
#[cold]
fn ambiguous<T>(addr: u64, all: &[BlockOnDevice]) -> Result<T> {
    // A free may come here, and the host have no memory.
    let names = said(|f| {
        all.iter().enumerate().try_for_each(|(n, (d, _))| {
            let and = if n == 0 { "" } else { " and " };
            write!(f, "{and}{}:{}", d.type_name(), d.ordinal())
        })
    });
    fail!(
        Code::InvalidArgument,
        "{names} each have a live block at {addr:#x}, as they have address spaces of their own: the pointer alone does not \
         tell which is meant, so use a call that names the pool or the device"
    );
}

/// The answer of a search for a block on all devices.
#[cold]
fn nowhere(addr: u64) -> Error {
    Error::formatted(Code::UnknownPointer, format_args!("no device has a live block at {addr:#x}"))
}

/// The blocks that contain `addr`, at most one for each device; usually one. An error if there is none.
pub fn holders(addr: u64) -> Result<Vec<BlockOnDevice>> {
    fork::check()?;
    if addr == 0 {
        return Err(Error::new(Code::InvalidArgument, "the pointer is NULL"));
    }
    let (mut all, mut worst) = (Vec::new(), None);
    for d in table::open_devices() {
        match d.memory().block(addr) {
            Ok(b) => {
                if !try_push(&mut all, (d.clone(), b)) {
                    return Err(no_host_memory());
                }
                if !table::own_addresses() {
                    break;
                }
            }
            Err(e) if e.code() == Code::DoubleFree => {
                worst = Some(Error::formatted(
                    Code::UnknownPointer,
                    format_args!("the block at {addr:#x} was freed"),
                ));
            }
            Err(e) if e.code() == Code::UnknownPointer => _ = worst.get_or_insert_with(|| nowhere(addr)),
            Err(e) => worst = worst.or(Some(e)),
        }
    }
    if all.is_empty() { Err(table::not_found(worst)) } else { Ok(all) }
}

/// The open device with the live block that contains `addr`, and the block. `InvalidArgument` if several devices have
/// one there.
pub fn holder(addr: u64) -> Result<(Arc<DeviceState>, BlockInfo)> {
    let mut all = holders(addr).map_err(|e| explained(addr, Kind::Block, e))?;
    match all.pop() {
        Some(only) if all.is_empty() => Ok(only),
        Some(last) => {
            all.push(last);
            ambiguous(addr, &all)
        }
        None => Err(table::not_found(None)),
    }
}

/// [`Memory::try_expand`](crate::runtime::Memory::try_expand) on the device that has the block.
pub fn try_expand(addr: u64, bytes: u64) -> Result<()> {
    fork::check()?;
    holder(addr)?.0.memory().try_expand(addr, bytes)
}

/// \[B\] that are there for the block that starts at `addr`; [`try_expand`] to so many succeeds.
pub fn usable_size(addr: u64) -> Result<u64> {
    let (device, block) = holder(addr)?;
    if block.base != addr {
        fail!(Code::UnknownPointer, "{addr:#x} lies inside a block, which begins at {:#x}", block.base);
    }
    Ok(block.size.saturating_sub(device.memory().settings().padding()))
}

/// The open device that is meant when `stream` uses the block that starts at `addr`: if several devices have a block
/// there, the one to which the stream belongs, if it belongs to one only.
pub fn user(addr: u64, stream: StreamId) -> Result<Arc<DeviceState>> {
    let mut all = holders(addr).map_err(|e| explained(addr, Kind::Block, e))?;
    let meant = |all: &[BlockOnDevice], is: &dyn Fn(&BlockOnDevice) -> bool| {
        let mut found = all.iter().filter(|h| is(h));
        found.next().filter(|_| found.next().is_none()).map(|h| h.0.clone())
    };
    if let Some(d) = meant(&all, &|_| true) {
        return Ok(d);
    }
    if all.iter().any(|(_, b)| b.base == addr) {
        all.retain(|(_, b)| b.base == addr);
    }
    // A device that accepts streams that were created elsewhere cannot tell that a stream is not its own.
    let takes =
        |h: &BlockOnDevice| h.0.device().external_streams().is_some() || h.0.streams().check(stream).is_ok();
    match meant(&all, &|_| true).or_else(|| meant(&all, &takes)) {
        Some(d) => Ok(d),
        None => ambiguous(addr, &all),
    }
}

/// Closes the import at `addr` of whichever device has it; see [`SharedMemory::close_import`](crate::runtime::SharedMemory::close_import).
pub fn import_close(addr: u64) -> Result<()> {
    fork::check()?;
    match table::open_devices().find(|d| d.shared_memory().has_import(addr)) {
        Some(d) => d.shared_memory().close_import(addr),
        None => {
            let e = Error::formatted(
                Code::UnknownPointer,
                format_args!("{addr:#x} is not the start of imported memory"),
            );
            Err(explained(addr, Kind::Import, table::not_found(Some(e))))
        }
    }
}

/// Frees a block of whichever device has it; `size` as in [`Memory::free`](crate::runtime::Memory::free).
/// Address 0 does nothing.
pub fn free(addr: u64, size: Option<u64>) -> Result<()> {
    fork::check()?;
    if addr == 0 {
        return Ok(());
    }
    if table::own_addresses()
        && let Ok(mut all) = holders(addr)
    {
        // A free names a block by its start.
        if all.iter().any(|(_, b)| b.base == addr) {
            all.retain(|(_, b)| b.base == addr);
            if all.len() > 1 {
                return ambiguous(addr, &all);
            }
        }
        if let Some((d, _)) = all.first() {
            return d.memory().free(addr, None, size);
        }
    }
    // Usually one device has the address, and its answer counts: the others know nothing of the address, or only that a
    // block was there before.
    let mut worst = None;
    for d in table::open_devices() {
        match d.memory().free_own(addr, size) {
            Some(Ok(())) => return Ok(()),
            Some(Err(e)) => keep_worst(e, &mut worst)?,
            None => {}
        }
    }
    free_unknown(addr, size, worst)
}

/// Keeps the answer of a device that does not have the block; another error is returned.
#[cold]
fn keep_worst(e: Error, worst: &mut Option<Error>) -> Result<()> {
    match e.code() {
        // A double free says more than an unknown pointer.
        Code::DoubleFree => *worst = Some(e),
        Code::UnknownPointer => _ = worst.get_or_insert(e),
        _ => return Err(e),
    }
    Ok(())
}

/// The answer to a free of an address at which no device has a live block. `worst` is that of the devices that have memory
/// there; if there is none, all are asked.
#[cold]
fn free_unknown(addr: u64, size: Option<u64>, mut worst: Option<Error>) -> Result<()> {
    if worst.is_none() {
        for d in table::open_devices() {
            match d.memory().free(addr, None, size) {
                Ok(()) => return Ok(()),
                Err(e) if e.code() == Code::UnknownPointer => _ = worst.get_or_insert_with(|| nowhere(addr)),
                Err(e) => keep_worst(e, &mut worst)?,
            }
        }
    }
    Err(explained(addr, Kind::Block, table::not_found(worst)))
}

/// The same for a block of this device.
pub fn device_free(device: &DeviceState, addr: u64) -> Result<()> {
    device.memory().free(addr, None, None).map_err(|e| explained(addr, Kind::Block, e))
}
