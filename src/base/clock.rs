//! The time of events that come by the million: the processor's own counter where the system itself keeps time by it,
//! else the system's monotonic clock. Reading the counter takes a few nanoseconds and no call.
//!
//! A reading is in *ticks*, whatever they are. Whoever wants to know when that was, in nanoseconds of the monotonic
//! clock, compares two moments of which both are known ([`Span`]).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Whether ticks are those of the processor's counter. Decided once, before the first reading.
static COUNTER: AtomicBool = AtomicBool::new(false);
static START: OnceLock<Moment> = OnceLock::new();

/// The ticks of now, after [`start`].
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if COUNTER.load(Relaxed) {
        return counter();
    }
    monotonic()
}

/// Whether ticks are the processor's own count, after [`start`].
pub(crate) fn counts() -> bool {
    COUNTER.load(Relaxed)
}

/// The ticks of now where they are the processor's own [count](counts).
#[inline(always)]
pub(crate) fn counted() -> u64 {
    #[cfg(target_arch = "x86_64")]
    return counter();
    #[cfg(not(target_arch = "x86_64"))]
    monotonic() // nobody comes here
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: every x86-64 has the instruction; it has no effect.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// [ns] of the system's monotonic clock.
#[inline(never)]
pub(crate) fn monotonic() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is ours; this clock is on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Whether the counter goes at one rate, and alike on all processors: then Linux itself keeps time by it.
#[cfg(target_arch = "x86_64")]
fn has_counter() -> bool {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    std::fs::read_to_string(SOURCE).is_ok_and(|s| s.trim() == "tsc")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_counter() -> bool {
    false
}

/// To be called before the first reading: decides what ticks are.
pub(crate) fn start() -> Moment {
    *START.get_or_init(|| {
        COUNTER.store(has_counter(), Relaxed);
        Moment::now()
    })
}

/// The length of a tick in ns, times 2^32. The first call in a process measures it, which may take a sleep of 2 ms.
pub(crate) fn rate() -> u64 {
    static RATE: OnceLock<u64> = OnceLock::new();
    const LONG_ENOUGH: u64 = 2_000_000; // [ns] for a result that is exact to a ten-thousandth
    *RATE.get_or_init(|| {
        let from = start();
        if !COUNTER.load(Relaxed) {
            return 1 << 32;
        }
        let since = monotonic().saturating_sub(from.ns);
        std::thread::sleep(Duration::from_nanos(LONG_ENOUGH.saturating_sub(since)));
        let to = Moment::now();
        let ticks = u128::from(to.ticks.saturating_sub(from.ticks)).max(1);
        ((u128::from(to.ns.saturating_sub(from.ns)) << 32) / ticks) as u64
    })
}

/// [ns] of so many ticks, at that rate.
#[inline]
pub(crate) fn ns_of(ticks: u64, rate: u64) -> u64 {
    ((u128::from(ticks) * u128::from(rate)) >> 32) as u64
}

/// One moment, as both clocks show it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    ticks: u64,
    ns: u64,
}

impl Moment {
    pub(crate) fn now() -> Moment {
        // The quickest of three tries: the others may have been interrupted.
        let one = || {
            let (before, ns, after) = (ticks(), monotonic(), ticks());
            (after.wrapping_sub(before), Moment { ticks: before.midpoint(after), ns })
        };
        let tries = [one(), one(), one()];
        tries.into_iter().min_by_key(|t| t.0).map_or(tries[0].1, |t| t.1)
    }
}

/// The time from one moment to a later one. Ticks are taken to be of equal length in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    from: Moment,
    to: Moment,
}

impl Span {
    pub(crate) fn new(from: Moment, to: Moment) -> Span {
        Span { from, to }
    }

    /// From the first call of [`start`] to now.
    pub(crate) fn all() -> Span {
        Span::new(start(), Moment::now())
    }

    /// What the monotonic clock showed, in ns, at a reading that lies in the span or near it.
    pub(crate) fn ns_at(&self, ticks: u64) -> u64 {
        let ns = i128::from(self.to.ns.saturating_sub(self.from.ns));
        let all = i128::from(self.to.ticks.saturating_sub(self.from.ticks)).max(1);
        let since = i128::from(ticks) - i128::from(self.from.ticks);
        u64::try_from(i128::from(self.from.ns) + since * ns / all).unwrap_or(0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_reading_is_when_it_was() {
        // The thread may lose the processor anywhere: what is known is what the clock showed before and after.
        let read = || (monotonic(), ticks(), monotonic());
        let moment = || {
            let before = monotonic();
            (Moment::now(), monotonic() - before)
        };
        start();
        let (from, took_from) = moment();
        let readings: Vec<_> = (0..50)
            .map(|_| {
                std::thread::sleep(Duration::from_micros(200));
                read()
            })
            .collect();
        let (to, took_to) = moment();
        let (span, off) = (Span::new(from, to), took_from.max(took_to) + 20_000);
        for (before, at, after) in readings {
            let ns = span.ns_at(at);
            assert!(before.saturating_sub(off) <= ns && ns <= after + off, "{before} {ns} {after}, {off}");
        }
        let first = read();
        std::thread::sleep(Duration::from_millis(5));
        let last = read();
        let ns = ns_of(last.1 - first.1, rate());
        let (least, most) = (last.0 - first.2, last.2 - first.0);
        let off = most / 50;
        assert!(
            least - off <= ns && ns <= most + off,
            "{ns} ns by the counter, {least} to {most} by the clock"
        );
        let (a, b) = (Moment { ticks: 100, ns: 1000 }, Moment { ticks: 300, ns: 1100 });
        assert_eq!([100, 200, 300, 400, 0].map(|t| Span::new(a, b).ns_at(t)), [1000, 1050, 1100, 1150, 950]);
    }
}
