//! Replace a random one of N live blocks: 2N blocks of random size, every other one freed, so that N holes lie between
//! live blocks and cannot merge; then free a random live block and allocate one of another size. The null subject shows
//! what the cache misses of the test itself cost.

use super::{DEVICE, Job, say};
use crate::subject;
use crate::tools::{Rng, batches};
use anyhow::{Result, bail};
use std::ffi::c_void;
use std::time::Instant;

pub(super) fn run(job: &Job) -> Result<()> {
    let n: u64 = job.point.parse()?;
    let s = subject::open(&job.subject, 1, DEVICE)?;
    let mut r = Rng::new(1);
    let size = |r: &mut Rng| r.log_uniform(512.0, 65536.0);
    let start = Instant::now();
    let late = |i: u64| i & 255 == 0 && start.elapsed().as_secs_f64() > job.budget;
    let mut all: Vec<(*mut c_void, u64)> = Vec::with_capacity(2 * n as usize);
    for i in 0..2 * n {
        let bytes = size(&mut r);
        all.push((s.alloc(bytes, 0), bytes));
        if late(i) {
            bail!("not ready after {} s: {i} of {} blocks", job.budget, 2 * n);
        }
    }
    let mut live = Vec::with_capacity(n as usize);
    for (i, &(p, bytes)) in all.iter().enumerate() {
        if i & 1 == 1 {
            live.push((p, bytes));
        } else {
            s.free(p, bytes, 0);
        }
        if late(i as u64) {
            bail!("not ready after {} s", job.budget);
        }
    }
    drop(all);
    const MASK: usize = (1 << 16) - 1;
    let victim: Vec<u32> = (0..=MASK).map(|_| r.below(n) as u32).collect();
    let sizes: Vec<u32> = (0..=MASK).map(|_| size(&mut r) as u32).collect();
    let mut at = 0usize;
    let ns = batches(job.seconds, |k| {
        for _ in 0..k {
            let b = &mut live[victim[at & MASK] as usize];
            s.free(b.0, b.1, 0);
            b.1 = u64::from(sizes[at & MASK]);
            b.0 = s.alloc(b.1, 0);
            at += 1;
        }
    });
    say("ns", ns);
    Ok(())
}
