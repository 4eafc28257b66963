//! Memory that is not mapped: blocks of the driver, page-locked host memory, managed memory.
//!
//! Every block is recorded, so that a foreign or stale address never reaches the driver (which would free whatever
//! block has the address now), and so that the end of the device can free what is left.

use super::driver::Driver;
use crate::base::error::{Code, Result};
use crate::base::ordered::Map;
use crate::base::pages::Pages;
use crate::base::sync::system::{Mutex, MutexGuard, lock};
use crate::fail;

/// How a block was allocated, and so how it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemHostAlloc`.
    Locked,
    /// Ordinary memory, locked by `cuMemHostRegister`.
    Registered,
    /// The same, but of the caller, who keeps it.
    Callers,
}

/// The blocks of one device.
pub(super) struct Blocks {
    driver: Driver,
    live: Mutex<Map<u64, (Kind, u64)>>,
}

impl Blocks {
    pub(super) fn new(driver: Driver) -> Blocks {
        Blocks { driver, live: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Map<u64, (Kind, u64)>> {
        lock(&self.live)
    }

    /// `threads`: how many threads touch the pages of registered memory.
    pub(super) fn alloc(&self, kind: Kind, bytes: u64, threads: usize) -> Result<u64> {
        if bytes == 0 || bytes > i64::MAX as u64 {
            fail!(Code::OutOfMemory, "{bytes} bytes asked for");
        }
        let addr = match kind {
            Kind::Device => self.driver.alloc(bytes)?,
            Kind::Managed => self.driver.managed_alloc(bytes)?,
            Kind::Locked => self.driver.host_alloc(bytes)?,
            Kind::Registered => self.register(bytes, threads)?,
            Kind::Callers => fail!(Code::Internal, "the caller's memory is not allocated"),
        };
        self.lock().insert(addr, (kind, bytes));
        Ok(addr)
    }

    /// Whether all these bytes lie in one of these blocks.
    pub(super) fn holds(&self, addr: u64, bytes: u64) -> bool {
        let live = self.lock();
        live.range(..=addr)
            .next_back()
            .is_some_and(|(base, b)| addr - base <= b.1 && bytes <= b.1 - (addr - base))
    }

    /// Frees a block, which must be of one of these kinds. If the driver refuses, the block stays as it is.
    pub(super) fn free(&self, kinds: &[Kind], addr: u64, bytes: u64) -> Result<()> {
        // Removed from the table first: as soon as the driver has the address back, another thread may get it.
        let (kind, size) = match self.lock().remove(&addr) {
            Some(b) if kinds.contains(&b.0) && b.1 == bytes => b,
            Some(other) => {
                self.lock().insert(addr, other);
                fail!(
                    Code::UnknownPointer,
                    "the block at {addr:#x} is another kind of memory, or not of {bytes} B"
                );
            }
            None => fail!(Code::UnknownPointer, "no block starts at {addr:#x}"),
        };
        self.give_back(kind, addr, size).inspect_err(|_| {
            self.lock().insert(addr, (kind, size));
        })
    }

    fn give_back(&self, kind: Kind, addr: u64, bytes: u64) -> Result<()> {
        match kind {
            Kind::Device | Kind::Managed => self.driver.free(addr),
            Kind::Locked => self.driver.host_free(addr),
            Kind::Callers => self.driver.host_unregister(addr),
            Kind::Registered => {
                self.driver.host_unregister(addr)?;
                // SAFETY: `register` gave it up to the table, which has just lost it, and the driver no longer uses it.
                drop(unsafe { Pages::again(addr, bytes) });
                Ok(())
            }
        }
    }

    /// Locks memory of the caller.
    pub(super) fn register_callers(&self, addr: u64, bytes: u64) -> Result<()> {
        {
            let live = self.lock();
            let before = live.range(..addr.saturating_add(bytes)).next_back();
            if let Some((&start, _)) = before.filter(|(start, b)| *start + b.1 > addr) {
                fail!(
                    Code::Busy,
                    "{bytes} B at {addr:#x} overlap memory at {start:#x} that is registered, or is the library's own"
                );
            }
        }
        // Entered only afterwards: of two that register the same memory, the driver refuses one.
        self.driver.host_register(addr, bytes)?;
        self.lock().insert(addr, (Kind::Callers, bytes));
        Ok(())
    }

    /// Unlocks memory of the caller.
    pub(super) fn unregister_callers(&self, addr: u64) -> Result<()> {
        let found = self.lock().get(&addr).copied();
        match found {
            Some((Kind::Callers, bytes)) => self.free(&[Kind::Callers], addr, bytes),
            _ => fail!(Code::UnknownPointer, "no registered memory begins at {addr:#x}"),
        }
    }

    /// Ordinary memory whose pages are touched by several threads and then locked. For large sizes this is much faster
    /// than the driver's own call, which touches them on one thread.
    fn register(&self, bytes: u64, threads: usize) -> Result<u64> {
        let mut pages = Pages::new(bytes)?;
        pages.touch(threads);
        self.driver.host_register(pages.address(), bytes)?;
        Ok(pages.leave()) // the table's from now on
    }

    /// Frees everything that is left, whatever the driver says. Returns the first failure.
    pub(super) fn clear(&self) -> Result<()> {
        let left = std::mem::take(&mut *self.lock());
        let mut first = Ok(());
        for (addr, (kind, bytes)) in left {
            let given = self.give_back(kind, addr, bytes);
            if first.is_ok() {
                first = given;
            }
        }
        first
    }
}
