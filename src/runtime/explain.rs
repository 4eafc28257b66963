//! The report that the error of a request carries when there was no memory, and what only the device can tell of it.
//!
//! No lock is held here, and nothing is taken from the device. Whatever fails on the way leaves a report that says what
//! it lacks: the request fails all the same, and for the reason for which it did.

use crate::base::error::{Code, Error};
use crate::core::{OomMissing, OomReport, Order, PoolId};
use crate::device::{Device, StreamId};
use crate::runtime::backing::Supply;
use crate::runtime::{reentry, tags};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A request that failed.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub pool: PoolId,
    pub stream: Option<StreamId>,
    pub bytes: u64,
}

impl Asked {
    /// The same error, with the report that `explain` makes, if it is a lack of memory.
    #[cold]
    pub(super) fn explained(self, e: Error, explain: impl FnOnce(&Error) -> OomReport) -> Error {
        if e.code() != Code::OutOfMemory || e.oom_report().is_some() {
            return e;
        }
        let made = catch_unwind(AssertUnwindSafe(|| explain(&e)));
        carrying(made.unwrap_or_else(|_| self.least()))
    }

    /// A report that knows nothing but the request.
    fn least(self) -> OomReport {
        let mut r = OomReport::default();
        (r.missing, r.pool, r.stream) = (OomMissing::ALL, self.pool, self.stream);
        (r.requested, r.rounded) = (self.bytes, self.bytes);
        r
    }
}

/// The error of a request, with the report of why.
pub(super) fn carrying(report: OomReport) -> Error {
    Error::new(Code::OutOfMemory, report.line()).with(Arc::new(report))
}

/// Adds what the device says that it has free, where it can be asked now: not in its own callbacks, and not while one of
/// its streams is captured, which some calls would spoil.
pub(super) fn ask_device(r: &mut OomReport, device: &dyn Device, supply: &Supply, order: &Order) {
    let may = reentry::may_block().is_ok() && !order.any_captured();
    let info = may.then(|| supply.call().and_then(|_call| device.memory_info()));
    match info {
        Some(Ok(info)) => r.device_free = info.free,
        _ => r.missing |= OomMissing::DEVICE_FREE,
    }
    r.device = supply.owner();
    for h in &mut r.tags {
        h.name = tags::name(h.tag).unwrap_or_default().to_owned();
    }
    r.could_map = !r.maps && device.mapping().is_some();
}
