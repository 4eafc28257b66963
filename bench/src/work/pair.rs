//! Allocate and free one block of one size, over and over: what everything else is at least.

use super::{DEVICE, Job, say};
use crate::subject;
use crate::tools::batches;
use anyhow::Result;

pub(super) fn run(job: &Job) -> Result<()> {
    let bytes: u64 = job.point.parse()?;
    let s = subject::open(&job.subject, 1, DEVICE)?;
    let before = s.account().driver_calls;
    let mut at_first = None;
    let ns = batches(job.seconds, |k| {
        for _ in 0..k {
            let p = s.alloc(bytes, 0);
            s.free(p, bytes, 0);
        }
        at_first.get_or_insert_with(|| s.account().driver_calls);
    });
    say("ns", ns);
    say("driver_calls_warm", (s.account().driver_calls - at_first.unwrap_or(before)) as f64);
    Ok(())
}
