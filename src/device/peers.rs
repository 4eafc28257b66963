//! The facet of devices that exchange memory with others of their type.

use super::{Device, StreamId};
use crate::base::error::Result;

/// Copies between devices of one type, and access to each other's memory. `to`, `from` and `peer` are open devices of
/// the same type, as the caller has checked; they may be this one.
pub trait Peers: Send + Sync {
    /// Copies from this device to `to`, and returns when the bytes have arrived.
    fn copy(&self, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()>;
    /// Queues a copy from this device to `to` on a stream of this device.
    fn copy_async(&self, stream: StreamId, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()>;
    /// Queues a copy from `from` to this device on a stream of this device. `Unsupported` where only the source's
    /// streams make such copies.
    fn copy_from_async(
        &self,
        stream: StreamId,
        from: &dyn Device,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()>;
    /// Whether work on `peer` could use memory of this device at its address.
    fn can_admit(&self, peer: &dyn Device) -> Result<bool>;
    /// From now on work on `peer` may use all memory of this device at its address. `Unsupported` where it cannot.
    fn admit(&self, peer: &dyn Device) -> Result<()>;
}
