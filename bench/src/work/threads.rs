//! Threads with streams of their own, and a thread that frees what another one allocates.
//!
//! The machine may be shared, so a rate is taken from short bursts: all workers meet at a spinning barrier (so each one
//! has a processor), do a number of pairs, and the burst counts only if no worker was preempted or waited for a
//! processor meanwhile. Waiting for a lock is not held against a burst: it is what is measured. With more threads than
//! processors there are no undisturbed bursts; then the rate over windows of 20 ms is taken, the fastest eighth.

use super::{DEVICE, Job, say};
use crate::subject::{self, Subject};
use crate::tools::{Rng, Ticks, median, quantile};
use Ordering::{Acquire, Relaxed, Release};
use anyhow::{Context, Result, bail};
use std::ffi::c_void;
use std::io::{Read, Seek};
use std::mem::{size_of, zeroed};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const RING: usize = 1024;
const BYTES: u64 = 4096;

#[repr(align(128))]
#[derive(Default)]
struct Line<T>(T);

struct Barrier {
    arrived: Line<AtomicUsize>,
    round: Line<AtomicUsize>,
    of: usize,
}

impl Barrier {
    fn new(of: usize) -> Barrier {
        Barrier { arrived: Line::default(), round: Line::default(), of }
    }
    fn wait(&self) {
        let round = self.round.0.load(Acquire);
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.of {
            self.arrived.0.store(0, Relaxed);
            self.round.0.store(round + 1, Release);
        } else {
            while self.round.0.load(Acquire) == round {
                std::hint::spin_loop();
            }
        }
    }
}

/// What tells that a thread was disturbed.
struct Disturbed(Option<std::fs::File>);

impl Disturbed {
    fn new() -> Disturbed {
        Disturbed(std::fs::File::open("/proc/thread-self/schedstat").ok())
    }
    /// [ns] that the thread waited for a processor.
    fn delay(&mut self) -> u64 {
        let Some(f) = &mut self.0 else { return 0 };
        let mut text = [0u8; 96];
        let n = f.rewind().and_then(|()| f.read(&mut text)).unwrap_or(0);
        let text = std::str::from_utf8(&text[..n]).unwrap_or("");
        text.split_ascii_whitespace().nth(1).and_then(|w| w.parse().ok()).unwrap_or(0)
    }
    fn preempted() -> i64 {
        // SAFETY: zero is a value of a struct of integers.
        let mut usage: libc::rusage = unsafe { zeroed() };
        // SAFETY: the struct lives for the call.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
        usage.ru_nivcsw
    }
}

/// The processors that this process may use.
fn processors() -> Vec<usize> {
    // SAFETY: zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    // SAFETY: the set lives for the call and has the size that is told.
    unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    // SAFETY: the index is below the size of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&c| unsafe { libc::CPU_ISSET(c, &set) }).collect()
}

fn pin(cpu: usize) {
    // SAFETY: zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    // SAFETY: as in `processors`; a refusal only makes the figures worse.
    unsafe {
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Blocks on their way from the producer to the consumer.
struct Ring {
    slots: Vec<(AtomicPtr<c_void>, AtomicU64)>,
    head: Line<AtomicUsize>,
    tail: Line<AtomicUsize>,
}

/// One worker's state.
struct Worker<'a> {
    s: &'a Subject,
    ring: Option<&'a Ring>,
    index: usize,
    sizes: Vec<u64>,
    at: usize,
    seen: usize,
}

impl<'a> Worker<'a> {
    fn new(s: &'a Subject, ring: Option<&'a Ring>, index: usize) -> Worker<'a> {
        let mut r = Rng::new(977 + index as u64);
        let sizes = (0..4096).map(|_| r.log_uniform(512.0, 65536.0)).collect();
        Worker { s, ring, index, sizes, at: 0, seen: 0 }
    }

    fn run(&mut self, k: u64) {
        match self.ring {
            None => {
                for _ in 0..k {
                    let p = self.s.alloc(BYTES, self.index as u32);
                    self.s.free(p, BYTES, self.index as u32);
                }
            }
            Some(ring) if self.index == 0 => (0..k).for_each(|_| self.produce(ring)),
            Some(ring) => (0..k).for_each(|_| self.consume(ring)),
        }
    }

    fn produce(&mut self, ring: &Ring) {
        let mut spins = 0;
        while self.at - self.seen >= RING {
            self.seen = ring.tail.0.load(Acquire);
            pause(&mut spins);
        }
        let bytes = self.sizes[self.at & 4095];
        let p = self.s.alloc(bytes, 0);
        let slot = &ring.slots[self.at % RING];
        slot.0.store(p, Relaxed);
        slot.1.store(bytes, Relaxed);
        self.at += 1;
        ring.head.0.store(self.at, Release);
    }

    fn consume(&mut self, ring: &Ring) {
        let mut spins = 0;
        while self.seen == self.at {
            self.seen = ring.head.0.load(Acquire);
            pause(&mut spins);
        }
        let slot = &ring.slots[self.at % RING];
        self.s.free(slot.0.load(Relaxed), slot.1.load(Relaxed), 0);
        self.at += 1;
        ring.tail.0.store(self.at, Release);
    }
}

fn pause(spins: &mut u32) {
    *spins += 1;
    if *spins > 20_000 { thread::yield_now() } else { std::hint::spin_loop() }
}

pub(super) fn run(job: &Job) -> Result<()> {
    let hand_over = job.point == "hand-over";
    let threads: usize = if hand_over { 2 } else { job.point.parse().context("the number of threads")? };
    let s = subject::open(&job.subject, threads as u32, DEVICE)?;
    let ring = hand_over.then(|| Ring {
        slots: (0..RING).map(|_| (AtomicPtr::default(), AtomicU64::new(0))).collect(),
        head: Line::default(),
        tail: Line::default(),
    });
    let cpus = processors();
    if threads > cpus.len() {
        windows(&s, threads, job.seconds)
    } else {
        bursts(&s, ring.as_ref(), &cpus[..threads], job.seconds)
    }
}

fn windows(s: &Subject, threads: usize, seconds: f64) -> Result<()> {
    let stop = AtomicBool::new(false);
    let done: Vec<Line<AtomicU64>> = (0..threads).map(|_| Line::default()).collect();
    let total = || done.iter().map(|d| d.0.load(Relaxed)).sum::<u64>();
    let mut rates = Vec::new();
    thread::scope(|scope| {
        for (i, done) in done.iter().enumerate() {
            let stop = &stop;
            scope.spawn(move || {
                let mut w = Worker::new(s, None, i);
                while !stop.load(Relaxed) {
                    w.run(64);
                    done.0.fetch_add(64, Relaxed);
                }
            });
        }
        thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        let (mut then, mut count) = (start, total());
        while start.elapsed().as_secs_f64() < seconds * 2.0 {
            thread::sleep(Duration::from_millis(20));
            let (now, n) = (Instant::now(), total());
            rates.push((n - count) as f64 / (now - then).as_secs_f64() / 1e6);
            (then, count) = (now, n);
        }
        stop.store(true, Relaxed);
    });
    say("mpairs", quantile(&mut rates, 0.875));
    Ok(())
}

/// When a worker's part of a burst began and ended, and whether it was left alone.
#[derive(Default)]
struct Part {
    from: AtomicU64,
    to: AtomicU64,
    clean: AtomicBool,
}

fn bursts(s: &Subject, ring: Option<&Ring>, cpus: &[usize], seconds: f64) -> Result<()> {
    let threads = cpus.len();
    let barrier = Barrier::new(threads);
    let (stop, pairs) = (AtomicBool::new(false), AtomicU64::new(64));
    let parts: Vec<Line<Part>> = (0..threads).map(|_| Line::default()).collect();
    let ticks = Ticks::new();
    let mut rates = Vec::new();
    let shared = (&barrier, &stop, &pairs, &parts, &ticks);
    thread::scope(|scope| {
        for (i, &cpu) in cpus.iter().enumerate().skip(1) {
            scope.spawn(move || worker(shared, Worker::new(s, ring, i), cpu, |_| false));
        }
        let end = Instant::now() + Duration::from_secs_f64(seconds * 10.0);
        let mut calibrated = false;
        worker(shared, Worker::new(s, ring, 0), cpus[0], |k| {
            let of = |f: fn(&Part) -> &AtomicU64| parts.iter().map(move |p| f(&p.0).load(Relaxed));
            let (from, to) = (of(|p| &p.from).min().unwrap_or(0), of(|p| &p.to).max().unwrap_or(0));
            let ns = ticks.ns(to - from);
            if parts.iter().all(|p| p.0.clean.load(Relaxed)) {
                if calibrated {
                    let n = if ring.is_some() { k } else { k * threads as u64 };
                    rates.push(n as f64 / ns * 1e3);
                } else if ns < 250_000.0 {
                    pairs.store(k * 2, Relaxed);
                } else {
                    calibrated = true;
                }
            }
            rates.len() >= 200 || Instant::now() > end
        });
    });
    if rates.len() < 5 {
        bail!("no undisturbed burst");
    }
    say("mpairs", median(&rates));
    Ok(())
}

type Shared<'a> = (&'a Barrier, &'a AtomicBool, &'a AtomicU64, &'a Vec<Line<Part>>, &'a Ticks);

/// The rounds of one worker. The first one looks at each finished burst and tells when it is enough.
fn worker(shared: Shared<'_>, mut w: Worker<'_>, cpu: usize, mut enough: impl FnMut(u64) -> bool) {
    let (barrier, stop, pairs, parts, ticks) = shared;
    pin(cpu);
    let mut disturbed = Disturbed::new();
    let mine = &parts[w.index].0;
    for round in 0u64.. {
        barrier.wait(); // everybody is done with the last burst
        if w.index == 0 && round > 0 && enough(pairs.load(Relaxed)) {
            stop.store(true, Relaxed);
        }
        let (delay, preempted) = (disturbed.delay(), Disturbed::preempted());
        barrier.wait(); // everybody has a processor
        if stop.load(Relaxed) {
            return;
        }
        let k = pairs.load(Relaxed);
        let from = ticks.now();
        w.run(k);
        let to = ticks.now();
        mine.from.store(from, Relaxed);
        mine.to.store(to, Relaxed);
        let waited = (disturbed.delay() - delay) as f64;
        mine.clean.store(Disturbed::preempted() == preempted && waited < 0.02 * ticks.ns(to - from), Relaxed);
    }
}
