//! Sharing a device's memory: segment callbacks, and blocks that are exported to other processes. `share/` has the
//! format of exports.

use super::pooled::unknown;
use super::state::Memory;
use crate::base::error::{Code, Result};
use crate::core::Pieces;
use crate::runtime::backing::segments::{Segment, SegmentCallback};
use crate::runtime::entry::reentry::{self, InCall};
use crate::runtime::share::{Export, by_fabric, export_of, whole};
use std::sync::Arc;

impl Memory {
    /// Registers a callback that is called for each range of addresses of the device that gets memory and, before the
    /// memory goes away, for each that loses it; at once for ranges that have memory now. It runs on the thread of the
    /// call that needs the change, one at a time; calls that it makes here return `NotPermitted`, unless they need
    /// nothing from the device. A panic ends the callback only. Returns the number with which to remove it. Callbacks
    /// end with the device, after everything was reported as removed. `Unsupported` if the device is not pooled.
    pub fn add_segment_callback(
        &self,
        callback: impl Fn(Segment, u64, u64) + Send + Sync + 'static,
    ) -> Result<u64> {
        let callback: Arc<SegmentCallback> = Arc::new(callback);
        let p = self.pooled()?;
        reentry::check_segment_callback()?;
        let _in = InCall::new(&*p.supply);
        p.supply.segments.listen(callback)
    }

    /// Removes a callback; when this returns, no thread is in it. `InvalidArgument` if there is no callback with that
    /// number.
    pub fn remove_segment_callback(&self, id: u64) -> Result<()> {
        let p = self.pooled()?;
        reentry::check_segment_callback()?;
        p.supply.segments.leave(id)
    }

    /// See `DeviceState::export`.
    pub(crate) fn export(&self, addr: u64) -> Result<Export> {
        let p = self.pooled()?;
        let Some(offset) = p.places.offset(addr) else { return unknown(addr) };
        let wish = self.export_handle();
        let make = || {
            // From here on the memory stays where it is; if what follows fails, dropping the ticket ends that.
            let (point, ticket) = p.supply.points.issue_ticket()?;
            p.pond.exports().add(offset, point)?;
            let pieces = whole(&*p.device, p.pond.exports().pieces(offset)?)?;
            let segment = if p.maps { None } else { p.places.segment_of(offset) };
            let fabric = by_fabric(&*p.device, &pieces, p.maps, wish)?;
            export_of(&*p.device, &pieces, segment, fabric, ticket)
        };
        make().or_else(|e| {
            // Cleans up after the failed attempt. Descriptors may be short because those of finished exports are still
            // open here.
            p.pond.exports().all(None);
            if e.code() == Code::System { make() } else { Err(e) }
        })
    }

    /// Where the memory of the block is, whether the device maps, and whether it is exported by fabric handles.
    pub(crate) fn export_pieces(&self, addr: u64) -> Result<(Pieces, bool, bool)> {
        let p = self.pooled()?;
        let Some(offset) = p.places.offset(addr) else { return unknown(addr) };
        let pieces = whole(&*p.device, p.pond.exports().pieces(offset)?)?;
        let fabric = by_fabric(&*p.device, &pieces, p.maps, self.export_handle())?;
        Ok((pieces, p.maps, fabric))
    }

    /// See `DeviceState::poll_exports`.
    pub(crate) fn poll_exports(&self) -> Result<(u64, u64)> {
        let exported = self.pooled()?.pond.exports().all(None);
        Ok((exported.freed, exported.freed_bytes))
    }
}
