//! Host memory for the contents of what sleeps.

use crate::base::error::{Code, Result};
use crate::base::pages::Pages;
use crate::device::{Caps, CopyKind, Device, HostWish};
use crate::fail;

/// \[B\] Less is kept in pageable memory: locking its pages would cost more than the two copies gain.
const LEAST_PINNED: u64 = 32 << 20;

/// Host memory that holds the contents of a run of granules.
pub(super) enum Kept {
    /// The system's. With huge pages, since a run consists of whole granules: a copy that meets a page of 4 KiB for the first
    /// time spends most of its time in the system.
    Pageable(Pages),
    /// The device's, with its address and bytes. On an H200 a copy to it takes a quarter of the time of one to the system's
    /// memory (docs/measurements.md).
    Pinned(u64, u64),
}

impl Kept {
    /// Room for `bytes`: pinned, where the device has such memory and is the faster for it.
    pub(super) fn new(device: &dyn Device, bytes: u64) -> Result<Kept> {
        let caps = device.caps();
        if bytes >= LEAST_PINNED
            && caps.contains(Caps::PINNED | Caps::STREAMS)
            && !caps.contains(Caps::HOST_ACCESS)
        {
            // Pages of the system that are touched and then locked: less than the driver's own takes.
            let wish = HostWish { register: true, threads: 1 };
            if let Ok(at) = device.host_alloc(bytes, wish) {
                return Ok(Kept::Pinned(at, bytes));
            }
        }
        match Pages::new(bytes) {
            Ok(pages) => Ok(Kept::Pageable(pages)),
            Err(_) => fail!(Code::OutOfMemory, "no {bytes} bytes of host memory to keep what sleeps"),
        }
    }

    /// The copies are the device's blocking ones: a stream of its own might have the handle of one that has ended without
    /// notice, and nobody would know.
    pub(super) fn copy_from(&mut self, device: &dyn Device, addr: u64, bytes: u64) -> Result<()> {
        let to = match self {
            Kept::Pinned(at, _) => *at,
            Kept::Pageable(pages) => pages.address(),
        };
        device.copy(CopyKind::DeviceToHost, to, addr, bytes)
    }

    pub(super) fn copy_to(&self, device: &dyn Device, addr: u64, bytes: u64) -> Result<()> {
        let from = match self {
            Kept::Pinned(at, _) => *at,
            Kept::Pageable(pages) => pages.address(),
        };
        device.copy(CopyKind::HostToDevice, addr, from, bytes)
    }

    /// Gives the memory back; what the device refuses comes back.
    pub(super) fn end(self, device: &dyn Device) -> Option<Kept> {
        match self {
            Kept::Pinned(at, bytes) if device.host_free(at, bytes).is_err() => Some(self),
            _ => None,
        }
    }
}
