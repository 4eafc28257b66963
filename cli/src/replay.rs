//! The replay: a trace's allocations and frees through the C API, each call timed by itself, apart
//! from what is done with the memory.

use crate::api::{self, Device, Stats, Stream};
use crate::progress::Progress;
use crate::series::Series;
use crate::touch::{Check, Checked, Live, Touch, Toucher};
use crate::trace::{Event, Trace};
use crate::units;
use anyhow::{Context, Result};
use millpond::runtime::{MAX_TAG_NAME, Tag, TagScope};
use std::time::{Duration, Instant};

/// The most points of a curve in the picture.
const POINTS: u64 = 2000;
/// [B] A host device that is made for a replay gets twice what the traces hold at their peak, and at least this.
const LEAST_CAPACITY: u64 = 1 << 30;

/// [B] The largest host device that the library makes.
pub(crate) const MOST_HOST_BYTES: u64 = 16 << 40;
/// Times that have room before the replay begins: more passes than that let their list grow.
const MOST_RESERVED_TIMES: u64 = 1 << 26;

/// Exit status of a replay that ran out of memory.
pub(crate) const EXIT_OUT_OF_MEMORY: u8 = 3;

/// What to do with each trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) touch: Touch,
    pub(crate) check: Check,
    pub(crate) passes: u32,   // at least 1
    pub(crate) picture: bool, // whether curves are kept
    pub(crate) tags: bool,    // whether blocks get the tags that the trace tells, which slows requests down
}

/// The curves of the picture, in the order of [`Series`].
pub(crate) const ALLOCATED: usize = 0;
pub(crate) const ACTIVE: usize = 1;
pub(crate) const RESERVED: usize = 2;

/// Where and why a replay ran out of memory.
#[derive(Clone, Debug)]
pub(crate) struct Shortage {
    pub(crate) event: u64,      // index within the pass
    pub(crate) line: u32,       // of the trace file
    pub(crate) request: u64,    // [B]
    pub(crate) live: u64,       // [B] held by the program at that moment
    pub(crate) message: String, // the library's
}

/// Times of one kind of call, in nanoseconds, with the clock's own cost in each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub(crate) calls: u64,
    pub(crate) median: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
    pub(crate) mean: f64,
}

impl Times {
    /// Sorts `samples`.
    pub(crate) fn of(samples: &mut [u32]) -> Times {
        samples.sort_unstable();
        let Some(&max) = samples.last() else {
            return Times::default();
        };
        let at = |q: f64| f64::from(samples[((samples.len() - 1) as f64 * q).round() as usize]);
        let sum: u64 = samples.iter().map(|&s| u64::from(s)).sum();
        Times {
            calls: samples.len() as u64,
            median: at(0.5),
            p99: at(0.99),
            max: f64::from(max),
            mean: sum as f64 / samples.len() as f64,
        }
    }
}

/// What came of a replay.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) passes: u32,     // asked for
    pub(crate) operations: u64, // done, over all passes
    pub(crate) streams: u32,    // of the trace, that became streams of the device
    pub(crate) alloc: Times,
    pub(crate) free: Times,
    pub(crate) clock_ns: f64, // what reading the clock twice costs; it is within each time
    pub(crate) wall: Duration, // the replay with everything in it
    pub(crate) stats: Stats,  // after the last operation, before what is left is freed
    pub(crate) driver_calls: u64, // made by this replay
    pub(crate) modelled_ns: Option<u64>, // what they would cost on a card, over the fake CUDA driver
    pub(crate) out_of_memory: u64, // requests that the library refused for lack of memory
    pub(crate) checked: Option<Checked>, // with `--check`
    pub(crate) shortage: Option<Shortage>, // when it ended early
    pub(crate) series: Option<Series<3>>, // with a picture
}

impl Outcome {
    /// Peak reserved over the trace's peak of live bytes: 1.0 would be no waste at all.
    pub(crate) fn overhead(&self, trace: &Trace) -> f64 {
        self.stats.reserved.peak as f64 / trace.peak_live_bytes.max(1) as f64
    }
}

/// The capacity of a host device for these traces, where the user names none: memory is committed
/// only as it is touched, so that room costs nothing.
pub(crate) fn default_capacity(traces: &[Trace]) -> u64 {
    let peak = traces.iter().map(|t| t.peak_live_bytes).max().unwrap_or(0);
    peak.saturating_mul(2).clamp(LEAST_CAPACITY, MOST_HOST_BYTES).next_multiple_of(1 << 30)
}

/// The cost of timing nothing, in nanoseconds (median).
fn clock_cost() -> f64 {
    let mut samples = vec![0u32; 20_000];
    for s in &mut samples {
        let start = Instant::now();
        *s = nanos(start);
    }
    Times::of(&mut samples).median
}

#[inline]
fn nanos(start: Instant) -> u32 {
    u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX)
}

/// The state of a running replay.
struct Run<'a> {
    trace: &'a Trace,
    device: Device,
    streams: Vec<Stream>,    // by the trace's stream number
    live: Vec<Option<Live>>, // by block number
    live_bytes: u64,
    toucher: Toucher,
    alloc_ns: Vec<u32>,
    free_ns: Vec<u32>,
    series: Option<Series<3>>,
    operations: u64,
    tags: bool,
}

/// Replays a trace on a device that nothing else uses, and leaves it empty.
pub(crate) fn replay(
    trace: &Trace,
    device: Device,
    streams_supported: bool,
    plan: Plan,
    progress: &mut Progress,
) -> Result<Outcome> {
    device.empty_cache()?;
    device.reset_peaks()?;
    let before = device.stats()?;
    let total = trace.events.len() as u64 * u64::from(plan.passes);
    let mut streams = vec![Stream::DEFAULT; trace.streams as usize];
    if streams_supported {
        for s in streams.iter_mut().skip(1) {
            *s = device.stream_create()?;
        }
    }
    let times = (trace.allocs * u64::from(plan.passes)).min(MOST_RESERVED_TIMES) as usize;
    let mut run = Run {
        trace,
        device,
        streams,
        live: vec![None; trace.allocs as usize],
        live_bytes: 0,
        toucher: Toucher::new(device, plan.touch, plan.check),
        alloc_ns: Vec::with_capacity(times),
        free_ns: Vec::with_capacity(times),
        series: plan.picture.then(|| Series::new(total, POINTS)),
        operations: 0,
        tags: plan.tags,
    };
    let clock_ns = clock_cost();
    let modelled = crate::modelled::nanoseconds();
    let start = Instant::now();
    let mut shortage = None;
    for pass in 0..plan.passes {
        if pass > 0 {
            run.free_the_rest()?;
        }
        run.toucher.begin_pass(u64::from(pass));
        shortage = run.pass(progress)?;
        if shortage.is_some() {
            break;
        }
    }
    device.synchronize()?;
    let wall = start.elapsed();
    let stats = device.stats()?.since(&before);
    let modelled_ns = crate::modelled::nanoseconds().zip(modelled).map(|(now, then)| now - then);
    run.free_the_rest()?;
    let checked = run.toucher.settle()?;
    device.synchronize()?;
    if streams_supported {
        for &s in run.streams.iter().skip(1) {
            device.stream_destroy(s)?;
        }
    }
    progress.finish(run.operations);
    Ok(Outcome {
        passes: plan.passes,
        operations: run.operations,
        streams: if streams_supported { trace.streams } else { 1 },
        alloc: Times::of(&mut run.alloc_ns),
        free: Times::of(&mut run.free_ns),
        clock_ns,
        wall,
        stats,
        driver_calls: stats.driver_calls,
        modelled_ns,
        out_of_memory: stats.out_of_memory_count,
        checked: (plan.check != Check::None).then_some(checked),
        shortage,
        series: run.series,
    })
}

/// What is allocated gets this tag until the scope is dropped; "": none.
fn scope_of(tag: &str) -> Result<Option<TagScope>> {
    // A foreign file may tell names that none can have.
    let end = (0..=tag.len().min(MAX_TAG_NAME)).rev().find(|&n| tag.is_char_boundary(n)).unwrap_or(0);
    match &tag[..end] {
        "" => Ok(None),
        name => Ok(Some(Tag::new(name)?.scope()?)),
    }
}

impl Run<'_> {
    /// All events once. `Some` when memory ran out.
    fn pass(&mut self, progress: &mut Progress) -> Result<Option<Shortage>> {
        let device = self.device;
        let pool = device.default_pool()?;
        let trace = self.trace;
        let mut tags = trace.tags.iter().peekable();
        let mut tag = None;
        for (i, (&event, &line)) in trace.events.iter().zip(&trace.lines).enumerate() {
            while let Some((_, name)) = tags.next_if(|t| self.tags && u64::from(t.0) <= i as u64) {
                drop(tag.take());
                tag = scope_of(name)?;
            }
            let place = || format!("operation {i}, line {line} of {}", trace.name);
            match event {
                Event::Alloc { block, stream, bytes } => {
                    let stream = self.streams[stream as usize];
                    let start = Instant::now();
                    let result = pool.alloc(bytes, stream);
                    let ns = nanos(start);
                    let addr = match result {
                        Ok(addr) => addr,
                        Err(e) if e.is_out_of_memory() => {
                            return Ok(Some(Shortage {
                                event: i as u64,
                                line,
                                request: bytes,
                                live: self.live_bytes,
                                message: e.message().to_string(),
                            }));
                        }
                        Err(e) => return Err(e).with_context(place),
                    };
                    self.alloc_ns.push(ns);
                    let live = Live { addr, bytes, stream };
                    self.live[block as usize] = Some(live);
                    self.live_bytes += bytes;
                    self.toucher.born(block, live).with_context(place)?;
                }
                Event::Free { block } => {
                    let Some(live) = self.live[block as usize].take() else {
                        continue; // the parser lets no such trace through
                    };
                    self.toucher.dies(block, live).with_context(place)?;
                    let start = Instant::now();
                    let result = pool.free(live.addr, live.stream);
                    let ns = nanos(start);
                    result.with_context(place)?;
                    self.free_ns.push(ns);
                    self.live_bytes -= live.bytes;
                }
            }
            self.operations += 1;
            if let Some(series) = &mut self.series {
                let s = self.device.stats()?;
                series.push([s.allocated.current, s.active.current, s.reserved.current]);
            }
            if self.operations.is_multiple_of(512) {
                progress.at(self.operations);
            }
        }
        Ok(None)
    }

    /// Frees what the trace leaves alive; not timed and not counted as operations.
    fn free_the_rest(&mut self) -> Result<()> {
        let device = self.device;
        let pool = device.default_pool()?;
        for (block, live) in self.live.iter_mut().enumerate() {
            if let Some(live) = live.take() {
                self.toucher.dies(block as u32, live)?;
                pool.free(live.addr, live.stream)?;
            }
        }
        self.live_bytes = 0;
        Ok(())
    }
}

/// Whether the trace can fit at all; the message says what to do where it cannot.
pub(crate) fn check_room(trace: &Trace, info: &api::Info, device: &str, touch: Touch) -> Result<(), String> {
    let need = trace.peak_live_bytes;
    let capacity = if info.max_alloc > 0 { info.total.min(info.max_alloc) } else { info.total };
    if need > capacity {
        let advice = if need <= MOST_HOST_BYTES {
            let gib = (need.div_ceil(1 << 30) + 1).min(MOST_HOST_BYTES >> 30);
            format!(
                "Give the device more (--capacity {gib}GiB for the host device, whose memory is committed only as it \
                 is touched), or take a smaller trace."
            )
        } else {
            format!("Take a smaller trace: no host device has more than {}.", units::bytes(MOST_HOST_BYTES))
        };
        return Err(format!(
            "{} holds {} at its peak, but device {device} has only {}.\n{advice}",
            trace.name,
            units::bytes(need),
            units::bytes(capacity)
        ));
    }
    if touch == Touch::All
        && info.host_access()
        && let Some(available) = crate::machine::available_memory()
        && need > available
    {
        return Err(format!(
            "{} holds {} at its peak, and with `--touch all` each byte of it is written, but this machine has only \
             {} of memory available.\n\
             Use `--touch edges` (commits only the ends of each block), end other programs, or take a smaller trace.",
            trace.name,
            units::bytes(need),
            units::bytes(available)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        let mut samples: Vec<u32> = (1..=1000).rev().collect();
        let t = Times::of(&mut samples);
        assert_eq!((t.calls, t.median, t.p99, t.max, t.mean), (1000, 501.0, 990.0, 1000.0, 500.5));
        assert_eq!(Times::of(&mut []).calls, 0);
        assert_eq!(Times::of(&mut [7]).p99, 7.0);
    }

    #[test]
    fn capacity_has_room_for_the_largest() {
        let trace = |peak| Trace { peak_live_bytes: peak, ..Trace::default() };
        assert_eq!(default_capacity(&[trace(1)]), 1 << 30);
        assert_eq!(default_capacity(&[trace(1), trace(3 << 30)]), 6 << 30);
        assert_eq!(default_capacity(&[trace((3 << 30) + 1)]), 7 << 30);
        for huge in [9 << 40, 1 << 63, u64::MAX] {
            assert_eq!(default_capacity(&[trace(huge)]), MOST_HOST_BYTES);
        }
    }

    #[test]
    fn a_small_device_is_refused_with_advice() {
        let trace = Trace { name: "big".into(), peak_live_bytes: 5 << 30, ..Trace::default() };
        let mut info = api::Info { total: 4 << 30, max_alloc: 4 << 30, ..api::Info::default() };
        let e = check_room(&trace, &info, "host:0", Touch::Edges).unwrap_err();
        assert!(e.contains("5.00 GiB") && e.contains("4.00 GiB") && e.contains("--capacity 6GiB"), "{e}");
        info.total = 8 << 30;
        assert!(check_room(&trace, &info, "host:0", Touch::None).is_err(), "max_alloc bounds it too");
        info.max_alloc = 0;
        assert!(check_room(&trace, &info, "host:0", Touch::None).is_ok());
    }
}
