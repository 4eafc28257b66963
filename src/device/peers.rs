//! The facet of devices that exchange memory with others of their type.

use super::{Device, StreamId};
use crate::base::error::Result;

/// Copies between devices of one type, and access to each other's memory. The caller has checked that `to`, `from` and
/// `peer` are open devices of the same type; they may be this one.
pub trait Peers: Send + Sync {
    /// Copies from this device to `to`, and returns when the bytes have arrived.
    fn copy(&self, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()>;
    /// Queues a copy from this device to `to` on a stream of this device.
    fn copy_async(&self, stream: StreamId, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()>;
    /// Queues a copy from `from` to this device on a stream of this device. `Unsupported` if only streams of the source
    /// device can make such copies.
    fn copy_from_async(
        &self,
        stream: StreamId,
        from: &dyn Device,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()>;
    /// Whether work on `peer` could be given access to this device's memory, at its address here.
    fn can_admit(&self, peer: &dyn Device) -> Result<bool>;
    /// Gives work on `peer` access to all memory of this device, at its address here, from now on. `Unsupported` if
    /// that is not possible.
    fn admit(&self, peer: &dyn Device) -> Result<()>;
    /// As `admit`, without anybody's wish: no later request may fail because of it. What does not go without a price of
    /// that kind is left to `admit`.
    fn invite(&self, peer: &dyn Device) -> Result<()>;
}
