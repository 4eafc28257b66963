//! Sizes from 512 B to 64 MiB, as many of each power of two; 1 000 blocks live, random victims. First the throughput,
//! then each call timed; the null subject shows what the clock costs.

use super::{DEVICE, Job, say};
use crate::subject;
use crate::tools::{Rng, Ticks, batches, quantile};
use anyhow::Result;
use std::ffi::c_void;
use std::time::Instant;

const LIVE: usize = 1000;
const ROUND: usize = 1 << 16;
const CALLS: usize = 200_000;

pub(super) fn run(job: &Job) -> Result<()> {
    let s = subject::open(&job.subject, 1, DEVICE)?;
    let mut r = Rng::new(1);
    let sizes: Vec<u64> = (0..ROUND).map(|_| r.log_uniform(512.0, f64::from(64 << 20))).collect();
    let victim: Vec<usize> = (0..ROUND).map(|_| r.below(LIVE as u64) as usize).collect();
    let mut live: Vec<(*mut c_void, u64)> = sizes[..LIVE].iter().map(|&n| (s.alloc(n, 0), n)).collect();
    let mut at = LIVE;
    let mut step = |live: &mut Vec<(*mut c_void, u64)>| {
        let b = &mut live[victim[at % ROUND]];
        s.free(b.0, b.1, 0);
        b.1 = sizes[at % ROUND];
        b.0 = s.alloc(b.1, 0);
        at += 1;
    };
    let start = Instant::now();
    for i in 0..2 * ROUND {
        if i & 1023 == 0 && start.elapsed().as_secs_f64() > job.budget {
            break;
        }
        step(&mut live);
    }
    let pair = batches(job.seconds * 2.0, |k| (0..k).for_each(|_| step(&mut live)));
    say("ns_op", pair / 2.0);

    let ticks = Ticks::new();
    let (mut a, mut f) = (Vec::with_capacity(CALLS), Vec::with_capacity(CALLS));
    let start = Instant::now();
    for i in 0..CALLS {
        if i & 255 == 0 && start.elapsed().as_secs_f64() > 4.0 * job.seconds {
            break;
        }
        let b = &mut live[victim[at % ROUND]];
        let t0 = ticks.now();
        s.free(b.0, b.1, 0);
        let t1 = ticks.now();
        b.1 = sizes[at % ROUND];
        b.0 = s.alloc(b.1, 0);
        let t2 = ticks.now();
        at += 1;
        f.push(ticks.ns(t1 - t0));
        a.push(ticks.ns(t2 - t1));
    }
    for (name, q) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
        say(&format!("alloc_{name}"), quantile(&mut a, q));
        say(&format!("free_{name}"), quantile(&mut f, q));
    }
    let bytes: u64 = live.iter().map(|b| b.1).sum();
    let reserved = s.account().reserved;
    if reserved > 0 {
        say("reserved_over_live", reserved as f64 / bytes as f64);
    }
    Ok(())
}
