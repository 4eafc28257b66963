//! How long calls take, of one device: histograms, which the option `latency_histograms` switches on.
//!
//! While they are off, nothing looks at a clock, and a request that the first step serves is not an instruction longer: a
//! device's pools are in the cache of look-ups only then (`memory/handle_cache.rs`). Calls to the device, and waits, look at a
//! flag first.

use crate::base::clock;
use crate::base::histogram::{Durations, Histogram};
use crate::base::room::CALL_BYTES;
use crate::base::sync::{thread_token, waited};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};

/// What takes its time. The numbers stand in the C API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Latency {
    /// A request for memory of the device, whatever came of it, with everything that it waited for.
    Alloc = 1,
    /// A free.
    Free = 2,
    /// A call to the device that takes memory from it, or maps some.
    DeviceAlloc = 3,
    /// One that gives memory back, or unmaps it.
    DeviceFree = 4,
    /// One that makes, records or queries an event of the library's, or lets a stream wait for one.
    DeviceEvent = 5,
    /// A wait of the library, on the host, for an event, a stream or the device.
    EventWait = 6,
    /// What a request or a free has waited for locks of the library, or for what another thread does, all together. Those
    /// that waited for none are not counted.
    LockWait = 7,
}

impl Latency {
    /// All of them, in the order of their numbers.
    pub const ALL: [Latency; 7] = [
        Latency::Alloc,
        Latency::Free,
        Latency::DeviceAlloc,
        Latency::DeviceFree,
        Latency::DeviceEvent,
        Latency::EventWait,
        Latency::LockWait,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Latency::Alloc => "alloc",
            Latency::Free => "free",
            Latency::DeviceAlloc => "device_alloc",
            Latency::DeviceFree => "device_free",
            Latency::DeviceEvent => "device_event",
            Latency::EventWait => "event_wait",
            Latency::LockWait => "lock_wait",
        }
    }
}

struct Table {
    rate: u64, // of the clock
    of: [Histogram; Latency::ALL.len()],
}

/// \[B\] of the host's memory that they need when they are switched on for the first time, and some more.
pub(crate) const ROOM: usize = size_of::<Table>() + CALL_BYTES;

impl Table {
    fn of(&self, what: Latency) -> &Histogram {
        &self.of[what as usize - 1]
    }

    #[inline]
    fn add(&self, what: Latency, ticks: u64) {
        self.of(what).add(thread_token(), clock::ns_of(ticks, self.rate));
    }
}

/// The histograms of one device.
#[derive(Default)]
pub(crate) struct Latencies {
    on: AtomicBool,
    /// Made when they are first switched on.
    table: OnceLock<Box<Table>>,
}

/// Something that takes its time has begun.
pub(crate) struct Begun<'a> {
    table: &'a Table,
    ticks: u64,
    waited: u64,
}

impl Latencies {
    /// Whether they are on. Relaxed: who misses a change is a call that was under way.
    #[inline]
    pub(crate) fn on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Switches them on or off; whether that changed anything. What they have stays.
    pub(crate) fn switch(&self, on: bool) -> bool {
        if on {
            self.table.get_or_init(|| {
                let of = std::array::from_fn(|_| Histogram::new());
                Box::new(Table { rate: clock::rate(), of })
            });
        }
        let changed = self.on.swap(on, SeqCst) != on;
        if changed {
            waited::want(on);
        }
        changed
    }

    /// Something begins; `None` while they are off.
    #[inline]
    pub(crate) fn begin(&self) -> Option<Begun<'_>> {
        if !self.on() {
            return None;
        }
        let table = self.table.get()?;
        Some(Begun { table, waited: waited::so_far(), ticks: clock::ticks() })
    }

    /// Makes a call that is one of these.
    #[inline]
    pub(crate) fn timed<T>(&self, what: Latency, call: impl FnOnce() -> T) -> T {
        let begun = self.begin();
        let done = call();
        if let Some(begun) = begun {
            begun.table.add(what, clock::ticks().saturating_sub(begun.ticks));
        }
        done
    }

    /// The same for a request or a free, whose waits for locks are told, too.
    #[inline]
    pub(crate) fn timed_wholly<T>(&self, what: Latency, call: impl FnOnce() -> T) -> T {
        let begun = self.begin();
        let done = call();
        if let Some(begun) = begun {
            begun.end(what);
        }
        done
    }

    /// What they have; nothing, if they were never on.
    pub(crate) fn read(&self, what: Latency) -> Durations {
        self.table.get().map_or_else(Durations::default, |t| t.of(what).read())
    }

    /// Whether they were ever on.
    pub(crate) fn any(&self) -> bool {
        self.table.get().is_some()
    }

    /// They start again from nothing.
    pub(crate) fn clear(&self) {
        self.table.get().into_iter().flat_map(|t| &t.of).for_each(Histogram::clear);
    }
}

impl Drop for Latencies {
    fn drop(&mut self) {
        self.switch(false);
    }
}

impl Begun<'_> {
    /// A request or a free has ended.
    #[inline]
    pub(crate) fn end(self, what: Latency) {
        let now = clock::ticks();
        self.table.add(what, now.saturating_sub(self.ticks));
        let waited = waited::so_far().wrapping_sub(self.waited);
        if waited != 0 {
            self.table.add(Latency::LockWait, waited);
            // A request in which this one was made, by a callback, counts its own waits only.
            waited::back_to(self.waited);
        }
    }
}
