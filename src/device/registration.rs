//! The facet of devices that can register host memory of the caller.

#[cfg(doc)]
use super::Device;
use crate::base::error::Result;

/// Host memory of the caller that is made as fast to copy as that of [`Device::host_alloc`].
pub trait Registration: Send + Sync {
    /// Registers memory that the caller keeps until [`unregister`](Self::unregister). `Busy` if a part of it is
    /// registered or came from `host_alloc`.
    fn register(&self, addr: u64, bytes: u64) -> Result<()>;
    /// Ends the registration that begins at `addr`. Waits for the work that may still use it.
    fn unregister(&self, addr: u64) -> Result<()>;
}
