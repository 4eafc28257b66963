//! Attaches the out-of-memory report to the error of a request, and adds what only the device knows.
//!
//! No lock is held here, and nothing is allocated, neither on the device nor on the host, which may have no memory left
//! either. If a part of the report cannot be had, the report says so; the request still fails with its own error.

use crate::base::error::{Code, Error, spare};
use crate::base::room::check_room;
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
        explain: impl FnOnce() -> OomReport,
    ) -> Error {
        if e.code() != Code::OutOfMemory || e.oom_report().is_some() {
            return e;
        }
        let made = catch_unwind(AssertUnwindSafe(explain));
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

/// Sees to it that some errors with a report are there before they are needed.
pub(crate) fn prepare() {
    spare::prepare(Code::OutOfMemory, OomReport::default);
}

/// The out-of-memory error that carries this report: one that was made beforehand, so that it takes no memory.
#[cold]
pub(crate) fn carrying(report: OomReport) -> Error {
    let spare = Error::spare().map(|mut e| {
        let done = e.edit(|r: &mut OomReport, line| {
            r.clone_from(&report);
            let _ = r.write_line(line); // what has no room is left out
        });
        (e, done)
    });
    match spare {
        Some((e, true)) => e,
        // There are none left: many threads have failed, each of which keeps its last one.
        _ => match check_room(2 * size_of::<OomReport>()) {
            Ok(()) => Error::new(Code::OutOfMemory, report.line()).with(Arc::new(report)),
            Err(without) => without,
        },
    }
}

/// Changes the report of an out-of-memory error, and its line with it. Nothing happens to another error.
#[cold]
pub(crate) fn with_report(mut e: Error, change: impl Fn(&mut OomReport)) -> Error {
    let done = e.edit(|r: &mut OomReport, line| {
        change(r);
        let _ = r.write_line(line);
    });
    // Somebody has a part of it.
    match e.oom_report().filter(|_| !done) {
        Some(report) => {
            let mut r = (*report).clone();
            change(&mut r);
            carrying(r)
        }
        None => e,
    }
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
        (r.device, r.device_name) = (Some(*device), name.as_str().into());
    }
    for h in r.tags.iter_mut() {
        h.name = tags::name(h.tag).unwrap_or_default().into();
    }
    r.could_map = r.pooled && !r.maps && device.mapping().is_some();
    r.headroom = if r.pooled { supply.headroom() } else { 0 };
}
