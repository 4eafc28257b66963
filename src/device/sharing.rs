//! The facet of devices that share memory with other processes: what a device exports for them, and what it imports.
//! Imported descriptions may have been made by anybody: a device trusts none of their bytes.

use super::mapping::Run;
use crate::base::error::{Code, Result};
use crate::fail;
use std::os::fd::{BorrowedFd, OwnedFd};

/// How memory is shared. The numbers are sent between processes: a number is never reused for another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SharedKind {
    /// Pieces of one sealed memory file.
    HostFile = 1,
    /// A file descriptor of the CUDA driver for each handle: for a granule, or for several.
    CudaGranules = 2,
    /// `cuIpcGetMemHandle` of a whole segment.
    CudaSegment = 3,
    /// A fabric handle of the CUDA driver for each handle, which also works on other machines.
    CudaFabric = 4,
}

impl SharedKind {
    /// The kind with this number.
    pub fn of(number: u32) -> Option<SharedKind> {
        use SharedKind::{CudaFabric, CudaGranules, CudaSegment, HostFile};
        [HostFile, CudaGranules, CudaSegment, CudaFabric].into_iter().find(|k| *k as u32 == number)
    }
}

/// A run of memory. Pieces are listed in the order of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The index of the descriptor, or of the fabric handle, that contains it.
    pub fd: u32,
    /// Its offset in there, in bytes.
    pub offset: u64,
    /// Its length, in bytes.
    pub bytes: u64,
}

/// Memory that another process can open. It exists as long as anybody has it open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared<F> {
    /// How it is shared.
    pub kind: SharedKind,
    /// The device that it lies on; zeros if any device of the type can open it.
    pub identity: [u8; 16],
    /// Its runs. Empty if there is a `handle`.
    pub pieces: Vec<Piece>,
    /// The driver's handle of a segment; zeros if there is none.
    pub handle: [u8; 64],
    /// Fabric handles. Empty for any other kind.
    pub fabric: Vec<[u8; 64]>,
    /// The descriptors.
    pub fds: Vec<F>,
}

/// Returned by [`Sharing::granules`], [`Sharing::segment`] and [`Fabric::granules`].
pub type Exported = Shared<OwnedFd>;
/// Passed to [`Sharing::open`].
pub type Imported<'a> = Shared<BorrowedFd<'a>>;

/// Exports memory to other processes and imports theirs.
pub trait Sharing: Send + Sync {
    /// Whether memory of the device can be exported. Without this it can only open what others have exported.
    fn exports(&self) -> bool;
    /// Whether other devices on the bus, such as network cards, reach pooled memory directly, as far as the driver tells.
    fn reached_by_bus(&self) -> bool;
    /// Whether each run of [`whole`](Self::whole) is a file descriptor of its own.
    fn by_granule(&self) -> bool;
    /// The runs in which memory with these granules goes to other processes, in the order of addresses: they may have
    /// more granules, since a handle goes as a whole. Also returns how many of those are in front.
    fn whole(&self, granules: &[Run]) -> Result<(u64, Vec<Run>)> {
        Ok((0, granules.to_vec()))
    }
    /// Exports these granules, as [`whole`](Self::whole) has them.
    fn granules(&self, granules: &[Run]) -> Result<Exported>;
    /// Exports a segment that [`Device::alloc`](super::Device::alloc) returned. `Unsupported` if only granules can be
    /// shared.
    fn segment(&self, addr: u64) -> Result<Exported>;
    /// dma-bufs, which drivers of other devices import.
    fn dma_bufs(&self) -> Option<&dyn DmaBufs> {
        None
    }
    /// Opens what a device of this type has exported, in this or another process; returns its address. Trusts nothing
    /// in it.
    fn open(&self, memory: &Imported<'_>) -> Result<u64>;
    /// Closes what `open` has opened. Waits for the device first.
    fn close(&self, addr: u64) -> Result<()>;
    /// Fabric handles, which reach processes on other machines.
    fn fabric(&self) -> Option<&dyn Fabric> {
        None
    }
}

/// Exports memory as dma-bufs.
pub trait DmaBufs: Send + Sync {
    /// A dma-buf of a range of addresses, whole pages of the host.
    fn export(&self, addr: u64, bytes: u64) -> Result<OwnedFd>;
}

/// Shares granules by fabric handles instead of descriptors.
pub trait Fabric: Send + Sync {
    /// Says whether granules that are made from now on should be shareable by fabric handles, provided that device and
    /// driver support it.
    fn make(&self, on: bool);
    /// Succeeds if these granules can be shared by fabric handles; otherwise `Unsupported`, with the reason.
    fn check(&self, granules: &[Run]) -> Result<()>;
    /// Exports these granules, as [`Sharing::whole`] has them.
    fn granules(&self, granules: &[Run]) -> Result<Exported>;
}

impl<F> Shared<F> {
    /// The total size of the pieces, after checking that each consists of whole granules of an existing descriptor or
    /// handle.
    pub fn check_pieces(&self, granule: u64) -> Result<u64> {
        let files = if self.kind == SharedKind::CudaFabric { self.fabric.len() } else { self.fds.len() };
        let mut sum = 0u64;
        for p in &self.pieces {
            let end = p.offset.checked_add(p.bytes).filter(|&e| e <= i64::MAX as u64);
            if p.bytes == 0 || !p.bytes.is_multiple_of(granule) || !p.offset.is_multiple_of(granule) {
                fail!(
                    Code::InvalidArgument,
                    "a piece of {} bytes at {}: not whole granules",
                    p.bytes,
                    p.offset
                );
            }
            if end.is_none() || p.fd as usize >= files {
                fail!(Code::InvalidArgument, "a piece lies past its file, or in none");
            }
            match sum.checked_add(p.bytes).filter(|&s| s <= i64::MAX as u64) {
                Some(s) => sum = s,
                None => fail!(Code::InvalidArgument, "the pieces are larger than the address space"),
            }
        }
        if sum == 0 {
            fail!(Code::InvalidArgument, "there are no pieces");
        }
        Ok(sum)
    }
}
