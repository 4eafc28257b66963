//! Host and unified memory of a device: the sizes that a free needs, kept beside the device.

use crate::base::error::{Code, Error, Result};
use crate::fail;
use crate::runtime::device::DeviceState;
use crate::runtime::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// How many freed addresses are remembered to tell a double free from a foreign pointer.
const GRAVES: usize = 1 << 14;

#[derive(Default)]
struct Ranges {
    live: BTreeMap<u64, u64>,
    graves: BTreeSet<u64>,
}

/// Live ranges of one kind of memory: base and size in bytes.
#[derive(Default)]
pub(crate) struct Table(Mutex<Ranges>);

impl Table {
    fn put(&self, addr: u64, bytes: u64) {
        let mut t = lock(&self.0);
        t.graves.remove(&addr);
        t.live.insert(addr, bytes);
    }

    /// Removes the range that starts at `addr` and tells its size.
    fn take(&self, addr: u64, what: &str) -> Result<u64> {
        let mut t = lock(&self.0);
        if let Some(bytes) = t.live.remove(&addr) {
            if t.graves.len() >= GRAVES {
                t.graves.clear();
            }
            t.graves.insert(addr);
            return Ok(bytes);
        }
        if t.graves.contains(&addr) {
            fail!(Code::DoubleFree, "the {what} memory at {addr:#x} was freed before");
        }
        match t.live.range(..=addr).next_back() {
            Some((&base, &bytes)) if addr - base < bytes => {
                fail!(
                    Code::UnknownPointer,
                    "{addr:#x} lies inside the {what} memory at {base:#x}, not at its start"
                )
            }
            _ => fail!(Code::UnknownPointer, "{addr:#x} is not {what} memory of this device"),
        }
    }

    /// `None` when no live range holds `addr`; else whether `addr .. addr + bytes` lies in it.
    pub(crate) fn check(&self, addr: u64, bytes: u64) -> Option<Result<()>> {
        let t = lock(&self.0);
        let (&base, &size) = t.live.range(..=addr).next_back()?;
        let room = size.checked_sub(addr - base).filter(|&r| r != 0)?;
        Some(if bytes <= room {
            Ok(())
        } else {
            Err(Error::new(
                Code::OutOfRange,
                format!("{bytes} bytes at {addr:#x} pass the end of the block by {}", bytes - room),
            ))
        })
    }

    /// Live ranges.
    pub(crate) fn live(&self) -> usize {
        lock(&self.0).live.len()
    }

    /// Takes all ranges out.
    pub(crate) fn drain(&self) -> BTreeMap<u64, u64> {
        std::mem::take(&mut lock(&self.0).live)
    }
}

/// Refuses sizes that no address space holds, so that devices need not.
fn sane(bytes: u64, what: &str) -> Result<()> {
    if bytes > i64::MAX as u64 {
        fail!(Code::OutOfMemory, "{bytes} bytes of {what} memory are more than an address space has");
    }
    Ok(())
}

impl DeviceState {
    /// Host memory that copies to and from this device fast: page-locked where the limit allows.
    /// 0 bytes give address 0. The caller gives it back with [`host_free`](Self::host_free).
    pub fn host_alloc(&self, bytes: u64) -> Result<u64> {
        let _pass = self.enter()?;
        sane(bytes, "host")?;
        if bytes == 0 {
            return Ok(0);
        }
        let addr = self.device().host_alloc(bytes)?;
        self.pinned.put(addr, bytes);
        Ok(addr)
    }

    /// Gives back what [`host_alloc`](Self::host_alloc) returned; no queued work may still use it.
    /// Address 0 does nothing. Errors: `UnknownPointer`, `DoubleFree`.
    pub fn host_free(&self, addr: u64) -> Result<()> {
        let _pass = self.enter()?;
        if addr == 0 {
            return Ok(());
        }
        let bytes = self.pinned.take(addr, "host")?;
        self.device().host_free(addr, bytes).inspect_err(|_| self.pinned.put(addr, bytes))
    }

    /// Memory that host and device address alike. 0 bytes give address 0. `Unsupported` where the
    /// device has none. The caller gives it back with [`unified_free`](Self::unified_free).
    pub fn unified_alloc(&self, bytes: u64) -> Result<u64> {
        let _pass = self.enter()?;
        sane(bytes, "unified")?;
        if bytes == 0 {
            return Ok(0);
        }
        let addr = self.device().unified_alloc(bytes)?;
        self.unified.put(addr, bytes);
        Ok(addr)
    }

    /// Gives back what [`unified_alloc`](Self::unified_alloc) returned; no queued work may still use
    /// it. Address 0 does nothing. Errors: `UnknownPointer`, `DoubleFree`.
    pub fn unified_free(&self, addr: u64) -> Result<()> {
        let _pass = self.enter()?;
        if addr == 0 {
            return Ok(());
        }
        let bytes = self.unified.take(addr, "unified")?;
        self.device().unified_free(addr, bytes).inspect_err(|_| self.unified.put(addr, bytes))
    }

    /// Gives back all host and unified memory that is left. For the end of the device.
    pub(crate) fn close_pinned(&self) -> Result<()> {
        let mut first = Ok(());
        for (addr, bytes) in self.pinned.drain() {
            first = first.and(self.device().host_free(addr, bytes));
        }
        for (addr, bytes) in self.unified.drain() {
            first = first.and(self.device().unified_free(addr, bytes));
        }
        first
    }
}
