//! Sharing a device's memory: segment callbacks, and blocks that are exported to other processes. `share/` has the
//! format of exports.

use super::state::Memory;
use crate::base::error::{Code, Result};
use crate::core::Pieces;
use crate::runtime::backing::segments::{Segment, SegmentCallback};
use crate::runtime::entry::reentry::{self, InCall};
use crate::runtime::share::{Export, by_fabric, export_of, whole};
use std::sync::Arc;

/// Callbacks for ranges of addresses that get memory or lose it. Get it with [`Memory::segment_callbacks`].
#[derive(Clone, Copy)]
pub struct SegmentCallbacks<'a>(&'a Memory);

/// Blocks of one device that are exported to other processes.
#[derive(Clone, Copy)]
pub(crate) struct Exports<'a>(&'a Memory);

impl Memory {
    /// Callbacks for ranges of addresses that get memory or lose it.
    pub fn segment_callbacks(&self) -> SegmentCallbacks<'_> {
        SegmentCallbacks(self)
    }

    /// Blocks that are exported to other processes.
    pub(crate) fn exports(&self) -> Exports<'_> {
        Exports(self)
    }
}

impl SegmentCallbacks<'_> {
    /// Registers a callback that is called for each range of addresses of the device that gets memory and, before the
    /// memory goes away, for each that loses it; at once for ranges that have memory now. It runs on the thread of the
    /// call that needs the change, one at a time; calls that it makes here return `NotPermitted`, unless they need
    /// nothing from the device. A panic ends the callback only. Returns the number with which to remove it. Callbacks
    /// end with the device, after everything was reported as removed. `Unsupported` if the device is not pooled.
    pub fn add(&self, callback: impl Fn(Segment, u64, u64) + Send + Sync + 'static) -> Result<u64> {
        let callback: Arc<SegmentCallback> = Arc::new(callback);
        let p = self.0.pooled()?;
        reentry::check_segment_callback()?;
        let _in = InCall::new(&*p.supply);
        p.supply.segments.listen(callback)
    }

    /// Removes a callback; when this returns, no thread is in it. `InvalidArgument` if there is no callback with that
    /// number.
    pub fn remove(&self, id: u64) -> Result<()> {
        let p = self.0.pooled()?;
        reentry::check_segment_callback()?;
        p.supply.segments.leave(id)
    }
}

impl Exports<'_> {
    /// See `SharedMemory::export`.
    pub(crate) fn make(&self, addr: u64) -> Result<Export> {
        let p = self.0.pooled()?;
        let Some(offset) = p.places.offset(addr) else { return Err(p.unknown(addr)) };
        let wish = self.0.settings().export_handle();
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
    pub(crate) fn pieces(&self, addr: u64) -> Result<(Pieces, bool, bool)> {
        let p = self.0.pooled()?;
        let Some(offset) = p.places.offset(addr) else { return Err(p.unknown(addr)) };
        let pieces = whole(&*p.device, p.pond.exports().pieces(offset)?)?;
        let fabric = by_fabric(&*p.device, &pieces, p.maps, self.0.settings().export_handle())?;
        Ok((pieces, p.maps, fabric))
    }

    /// See `SharedMemory::poll_exports`.
    pub(crate) fn poll(&self) -> Result<(u64, u64)> {
        let exported = self.0.pooled()?.pond.exports().all(None);
        Ok((exported.freed, exported.freed_bytes))
    }
}
