//! [B] of our own host memory: at the opening of a device, by live block, and when blocks of 2 MiB fill the device.
//! Measured as what the process holds (`RssAnon`); the host device's memory is not among it, as nothing touches it.

use super::{Job, say};
use crate::subject;
use crate::tools::Rng;
use anyhow::{Context, Result};

const BLOCKS: usize = 1_000_000;
const CAPACITY: u64 = 80 << 30;

fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).context("no RssAnon")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? * 1024)
}

pub(super) fn run(job: &Job) -> Result<()> {
    // Written now, so that it does not count later.
    let mut blocks = vec![(std::ptr::dangling_mut::<std::ffi::c_void>(), 1u64); BLOCKS];
    let before = resident()?;
    let s = subject::open(&job.subject, 1, CAPACITY)?;
    let p = s.alloc(4096, 0);
    let open = resident()?;
    say("device", open.saturating_sub(before) as f64);
    s.free(p, 4096, 0);
    if job.point == "full" {
        let mut n = 0usize;
        let mut p = std::ptr::null_mut();
        while (s.alloc)(2 << 20, 0, &mut p) == 0 && n < BLOCKS {
            blocks[n] = (p, 2 << 20);
            n += 1;
        }
        say("blocks", n as f64);
        say("percent_of_device", 100.0 * resident()?.saturating_sub(before) as f64 / CAPACITY as f64);
        return Ok(());
    }
    let mut r = Rng::new(1);
    for b in &mut blocks {
        let bytes = r.log_uniform(512.0, 65536.0);
        *b = (s.alloc(bytes, 0), bytes);
    }
    say("block", resident()?.saturating_sub(open) as f64 / BLOCKS as f64);
    Ok(())
}
