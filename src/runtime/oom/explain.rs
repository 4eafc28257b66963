//! Attaches the out-of-memory report to the error of a request, and adds what only the device knows.
//!
//! No lock is held here, and nothing is allocated on the device. If a part of the report cannot be had, the report says
//! so; the request still fails with its own error.

use crate::base::error::{Code, Error};
use crate::core::{OomMissing, OomReport, Order, PoolId};
use crate::device::{Device, MemoryInfo, StreamId};
use crate::runtime::backing::DeviceBacking;
use crate::runtime::entry::{reentry, tags};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A request that failed.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub pool: PoolId,
    pub stream: Option<StreamId>,
    pub bytes: u64,
}

impl Asked {
    /// Returns the error; if it is a lack of memory, with the report that `explain` makes and `complete` adds to.
    #[cold]
    pub(crate) fn explained(
        self,
        e: Error,
        complete: impl FnOnce(&mut OomReport),
        explain: impl FnOnce(&Error) -> OomReport,
    ) -> Error {
        if e.code() != Code::OutOfMemory || e.oom_report().is_some() {
            return e;
        }
        let made = catch_unwind(AssertUnwindSafe(|| explain(&e)));
        let mut report = made.unwrap_or_else(|_| self.least());
        complete(&mut report);
        carrying(report)
    }

    /// A report that has only the request.
    fn least(self) -> OomReport {
        let mut r = OomReport::default();
        (r.missing, r.pool, r.stream) = (OomMissing::ALL, self.pool, self.stream);
        (r.requested, r.rounded) = (self.bytes, self.bytes);
        r
    }
}

/// The out-of-memory error that carries this report.
pub(crate) fn carrying(report: OomReport) -> Error {
    Error::new(Code::OutOfMemory, report.line()).with(Arc::new(report))
}

/// Adds how much the device has free, if it can be asked now: not in its own callbacks, and not while one of its
/// streams is captured, since some calls would invalidate the capture.
pub(crate) fn ask_device(r: &mut OomReport, device: &dyn Device, supply: &DeviceBacking, order: &Order) {
    let may = reentry::may_block().is_ok() && !order.any_captured();
    let info = may.then(|| supply.call().and_then(|_call| device.memory_info()));
    match info.and_then(Result::ok).and_then(MemoryInfo::known) {
        Some(info) => r.device_free = info.free,
        _ => r.missing |= OomMissing::DEVICE_FREE,
    }
    if let Some((device, name)) = supply.owner() {
        (r.device, r.device_name) = (Some(*device), name.clone());
    }
    for h in &mut r.tags {
        h.name = tags::name(h.tag).unwrap_or_default().to_owned();
    }
    r.could_map = !r.maps && device.mapping().is_some();
}
