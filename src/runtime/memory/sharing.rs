//! A device's memory for others: who is told of its ranges, and blocks for other processes. `share/` has how those go
//! out.

use super::{Memory, unknown};
use crate::base::error::{Code, Result};
use crate::core::Pieces;
use crate::runtime::backing::segments::{Segment, SegmentCallback};
use crate::runtime::reentry::{self, InCall};
use crate::runtime::share::{Export, by_fabric, export_of};
use std::sync::Arc;

impl Memory {
    /// From now on `callback` is called for each range of addresses of the device that gets memory behind it, and,
    /// before it goes away, for each that loses it; at once for those that have memory now. On the thread of the
    /// call that needs the change, one at a time: what it calls here gets `NotPermitted`, but for
    /// what needs nothing from the device. A panic ends the callback only. Gives the number to remove it with.
    /// Callbacks end with the device, after everything was told as removed. `Unsupported` where the device is not
    /// pooled.
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

    /// Removes a callback; on return no thread is in it. `InvalidArgument` for a number that is none.
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
            // From here on the memory stays where it is; if what follows fails, the ticket that is dropped ends that.
            let (point, ticket) = p.supply.points.issue_ticket()?;
            p.pond.export(offset, point)?;
            let pieces = p.pond.pieces(offset)?;
            let segment = if p.maps { None } else { p.places.segment_of(offset) };
            let fabric = by_fabric(&*p.device, &pieces, p.maps, wish)?;
            export_of(&*p.device, &pieces, segment, fabric, ticket)
        };
        make().or_else(|e| {
            // What this one has left behind goes; and descriptors may be short because those of exports that are over
            // are still open here.
            p.pond.exported(None);
            if e.code() == Code::System { make() } else { Err(e) }
        })
    }

    /// Where the memory of the block is, whether the device maps, and whether it goes out by fabric handles.
    pub(crate) fn export_pieces(&self, addr: u64) -> Result<(Pieces, bool, bool)> {
        let p = self.pooled()?;
        let Some(offset) = p.places.offset(addr) else { return unknown(addr) };
        let pieces = p.pond.pieces(offset)?;
        let fabric = by_fabric(&*p.device, &pieces, p.maps, self.export_handle())?;
        Ok((pieces, p.maps, fabric))
    }

    /// See `DeviceState::poll_exports`.
    pub(crate) fn poll_exports(&self) -> Result<(u64, u64)> {
        let exported = self.pooled()?.pond.exported(None);
        Ok((exported.freed, exported.freed_bytes))
    }
}
