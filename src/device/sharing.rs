//! The facet of devices whose memory other processes can use: what a device says of such memory, and gets from there.
//! The bytes may come from anywhere: a device trusts none of them.

use crate::base::error::{Code, Result};
use crate::fail;
use std::os::fd::{BorrowedFd, OwnedFd};

/// How memory is shared. The numbers are sent between processes: never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SharedKind {
    /// Pieces of one sealed memory file.
    HostFile = 1,
    /// A file descriptor of the CUDA driver for each granule.
    CudaGranules = 2,
    /// `cuIpcGetMemHandle` of a whole segment.
    CudaSegment = 3,
    /// A fabric handle of the CUDA driver for each granule: also for other machines.
    CudaFabric = 4,
}

impl SharedKind {
    /// The kind of a number.
    pub fn of(number: u32) -> Option<SharedKind> {
        use SharedKind::{CudaFabric, CudaGranules, CudaSegment, HostFile};
        [HostFile, CudaGranules, CudaSegment, CudaFabric].into_iter().find(|k| *k as u32 == number)
    }
}

/// A run of memory, in the order of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which of the descriptors, or of the fabric handles, has it.
    pub fd: u32,
    /// Where it starts there, in bytes.
    pub offset: u64,
    /// Its length, in bytes.
    pub bytes: u64,
}

/// Memory that can be opened elsewhere. It stays as long as somebody has it open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared<F> {
    /// How.
    pub kind: SharedKind,
    /// Which device it lies on; zeros where any of the type can open it.
    pub identity: [u8; 16],
    /// Its runs. Empty with a handle.
    pub pieces: Vec<Piece>,
    /// The driver's own handle; zeros without one.
    pub handle: [u8; 64],
    /// Fabric handles. Empty with any other kind.
    pub fabric: Vec<[u8; 64]>,
    /// The descriptors.
    pub fds: Vec<F>,
}

/// From [`Sharing::granules`], [`Sharing::segment`] and [`Fabric::granules`].
pub type Exported = Shared<OwnedFd>;
/// For [`Sharing::open`].
pub type Imported<'a> = Shared<BorrowedFd<'a>>;

/// A run of granules: the first, and how many.
pub type Run = (u64, u64);

/// Memory for other processes, and from them.
pub trait Sharing: Send + Sync {
    /// Whether each granule that is shared is a file descriptor of its own.
    fn by_granule(&self) -> bool;
    /// What another process needs to use these granules, in the order of addresses.
    fn granules(&self, granules: &[Run]) -> Result<Exported>;
    /// What another process needs to use memory of [`Device::alloc`](super::Device::alloc). `Unsupported` where only
    /// granules can be shared.
    fn segment(&self, addr: u64) -> Result<Exported>;
    /// Opens what a device of this type has shared, in this or another process: its address. Trusts nothing.
    fn open(&self, memory: &Imported<'_>) -> Result<u64>;
    /// Ends what `open` has opened. Waits for the device first.
    fn close(&self, addr: u64) -> Result<()>;
    /// Fabric handles, which reach processes of other machines.
    fn fabric(&self) -> Option<&dyn Fabric> {
        None
    }
}

/// Granules that go by handles and without descriptors.
pub trait Fabric: Send + Sync {
    /// From now on granules are made so that fabric handles can share them too, where device and driver have that, or
    /// are not.
    fn make(&self, on: bool);
    /// `Unsupported`, with the reason, unless fabric handles can share these granules.
    fn check(&self, granules: &[Run]) -> Result<()>;
    /// What another process needs to use these granules, in the order of addresses.
    fn granules(&self, granules: &[Run]) -> Result<Exported>;
}

impl<F> Shared<F> {
    /// The sum of the pieces, which must each be whole granules of a descriptor or handle that is there.
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
