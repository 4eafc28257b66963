//! A device that only counts: it gives out addresses and granules of any size with no memory behind them, and all work
//! on it is done at once. So it can be as large as a test needs, and its streams cost nothing. It refuses what a real
//! device would refuse: more memory than it has, a granule that exists already, the release of one that is still
//! mapped.

use crate::api::Device as Handle;
use millpond::device::*;
use millpond::{Code, Error, Result, runtime};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// How the device is.
#[derive(Clone, Copy)]
pub struct Counted {
    /// [B]
    pub capacity: u64,
    pub mapping: bool,
    /// [B] the first segment and later ones.
    pub segment: u64,
    /// [B] larger blocks are segments of their own.
    pub max_chunk: u64,
    /// Pieces that may be shown at a time.
    pub mappings: u64,
    /// [B]
    pub min_chunk: u64,
    /// [B] on top of each request.
    pub padding: u64,
    /// Blocks that the library keeps track of at a time.
    pub most_blocks: u64,
    /// It gives the lowest addresses that are free, and no room between two blocks. Otherwise none comes again.
    pub lowest: bool,
}

impl Counted {
    /// A device that maps.
    pub fn mapped(capacity: usize) -> Counted {
        let capacity = capacity as u64;
        Counted {
            capacity,
            mapping: true,
            segment: capacity,
            max_chunk: capacity,
            mappings: 16_000,
            min_chunk: 512,
            padding: 0,
            most_blocks: u64::MAX,
            lowest: false,
        }
    }

    /// A device that gives segments.
    pub fn in_segments(capacity: usize, segment: usize) -> Counted {
        Counted { mapping: false, segment: segment as u64, ..Counted::mapped(capacity) }
    }

    pub fn kind(self) -> Arc<dyn DeviceType> {
        Arc::new(CountedType(self))
    }

    /// The device, freshly started.
    pub fn open(self) -> Handle {
        let _ = runtime::finalize();
        runtime::register_type(self.kind()).unwrap();
        Handle::get("counted", 0).unwrap()
    }
}

struct CountedType(Counted);

struct CountedDevice {
    how: Counted,
    ordinal: usize,
    state: Mutex<State>,
}

struct State {
    taken: u64,
    blocks: BTreeMap<u64, u64>,   // address -> bytes
    granules: BTreeMap<u64, u64>, // first -> count, as they were made
    shown: BTreeMap<u64, u64>,    // [granules of the window] first -> count, as they were mapped
    handles: u64,
}

/// Where the window lies. Nothing is there.
const WINDOW: u64 = 1 << 45;
/// Where segments lie, from here on.
const SEGMENTS: u64 = 1 << 46;
const GRANULE: u64 = 2 << 20;

fn wrong<T>(what: &'static str) -> Result<T> {
    Err(Error::new(Code::InvalidArgument, what))
}

/// Takes `first..first + count` out of runs, which must cover it.
fn cut(runs: &mut BTreeMap<u64, u64>, first: u64, count: u64) -> bool {
    if !covers(runs, first, count) {
        return false;
    }
    let (mut at, end) = (first, first + count);
    while let Some((&f, &n)) = runs.range(..=at).next_back().filter(|_| at < end) {
        runs.remove(&f);
        if f < at {
            runs.insert(f, at - f);
        }
        let stop = end.min(f + n);
        if stop < f + n {
            runs.insert(stop, f + n - stop);
        }
        at = stop;
    }
    true
}

/// Whether runs have all of `first..first + count`.
fn covers(runs: &BTreeMap<u64, u64>, first: u64, count: u64) -> bool {
    let (mut at, end) = (first, first + count);
    while at < end {
        match runs.range(..=at).next_back() {
            Some((&f, &n)) if f + n > at => at = f + n,
            _ => return false,
        }
    }
    true
}

fn overlaps(runs: &BTreeMap<u64, u64>, first: u64, count: u64) -> bool {
    runs.range(..first + count).next_back().is_some_and(|(&f, &n)| f + n > first)
}

impl DeviceType for CountedType {
    fn name(&self) -> &str {
        "counted"
    }
    fn initialize(&self) -> Result<()> {
        Ok(())
    }
    fn finalize(&self) -> Result<()> {
        Ok(())
    }
    fn device_count(&self) -> Result<usize> {
        Ok(1)
    }
    fn open(&self, ordinal: usize) -> Result<Arc<dyn Device>> {
        let state = State {
            taken: 0,
            blocks: BTreeMap::new(),
            granules: BTreeMap::new(),
            shown: BTreeMap::new(),
            handles: 0,
        };
        Ok(Arc::new(CountedDevice { how: self.0, ordinal, state: Mutex::new(state) }))
    }
}

impl CountedDevice {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn take(&self, s: &mut State, bytes: u64) -> Result<()> {
        match s.taken.checked_add(bytes).filter(|&n| n <= self.how.capacity) {
            Some(n) => {
                s.taken = n;
                Ok(())
            }
            None => Err(Error::new(Code::OutOfMemory, "the counted device is full")),
        }
    }
}

impl Device for CountedDevice {
    fn ordinal(&self) -> usize {
        self.ordinal
    }
    fn facts(&self) -> Facts {
        Facts { most_blocks: self.how.most_blocks, ..Facts::default() }
    }
    fn sizes(&self) -> Sizes {
        Sizes {
            min_chunk: self.how.min_chunk,
            max_chunk: self.how.max_chunk,
            max_alloc: self.how.capacity,
            padding: self.how.padding,
            init_alloc: self.how.segment,
            realloc: self.how.segment,
        }
    }
    fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(MemoryInfo { total: self.how.capacity, free: self.how.capacity - self.state().taken })
    }
    fn versions(&self) -> Versions {
        Versions::default()
    }
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
    fn alloc(&self, bytes: u64) -> Result<u64> {
        let s = &mut *self.state();
        self.take(s, bytes)?;
        let at = if self.how.lowest {
            let mut at = SEGMENTS;
            for (&next, &n) in &s.blocks {
                at = if next < at + bytes { next + n } else { break };
            }
            at
        } else {
            let end = s.blocks.last_key_value().map_or(SEGMENTS, |(at, n)| at + n);
            end.next_multiple_of(GRANULE) + GRANULE
        };
        s.blocks.insert(at, bytes);
        Ok(at)
    }
    fn free(&self, addr: u64, bytes: u64) -> Result<()> {
        let s = &mut *self.state();
        if s.blocks.remove(&addr) != Some(bytes) {
            return wrong("no such block");
        }
        s.taken -= bytes;
        Ok(())
    }
    fn host_alloc(&self, _: u64, _: HostWish) -> Result<u64> {
        Err(Error::new(Code::OutOfMemory, "the counted device has no host memory"))
    }
    fn host_free(&self, _: u64, _: u64) -> Result<()> {
        wrong("no such block")
    }
    fn copy(&self, _: CopyKind, _: u64, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
    fn copy_async(&self, _: StreamId, _: CopyKind, _: u64, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
    fn memset(&self, _: u64, _: u8, _: u64) -> Result<()> {
        Ok(())
    }
    fn memset_async(&self, _: StreamId, _: u64, _: u8, _: u64) -> Result<()> {
        Ok(())
    }
    fn streams(&self) -> &dyn Streams {
        self
    }
    fn mapping(&self) -> Option<&dyn Mapping> {
        self.how.mapping.then_some(self)
    }
    fn peers(&self) -> Option<&dyn Peers> {
        Some(self)
    }
}

impl Streams for CountedDevice {
    fn create(&self) -> Result<StreamId> {
        let mut s = self.state();
        s.handles += 16;
        Ok(s.handles)
    }
    fn destroy(&self, _: StreamId) -> Result<()> {
        Ok(())
    }
    fn exists(&self, _: StreamId) -> bool {
        true
    }

    done_at_once!();
}

impl Mapping for CountedDevice {
    fn numbers(&self) -> u64 {
        2 * self.how.capacity / GRANULE
    }
    fn most_mappings(&self) -> u64 {
        self.how.mappings
    }
    fn open_window(&self, _: u64) -> Result<u64> {
        Ok(WINDOW)
    }
    fn close_window(&self) -> Result<()> {
        let s = &mut *self.state();
        let present: u64 = std::mem::take(&mut s.granules).into_values().sum();
        s.taken -= present * GRANULE;
        s.shown.clear();
        Ok(())
    }
    fn create(&self, first: u64, count: u64) -> Result<()> {
        let s = &mut *self.state();
        if overlaps(&s.granules, first, count) {
            return wrong("a granule is there already");
        }
        self.take(s, count * GRANULE)?;
        s.granules.insert(first, count);
        Ok(())
    }
    fn release(&self, first: u64, count: u64) -> Result<()> {
        let s = &mut *self.state();
        if !cut(&mut s.granules, first, count) {
            return wrong("a granule is not there");
        }
        s.taken -= count * GRANULE;
        Ok(())
    }
    fn map(&self, offset: u64, first: u64, count: u64) -> Result<()> {
        let s = &mut *self.state();
        let at = offset / GRANULE;
        if overlaps(&s.shown, at, count) {
            return wrong("something is mapped there");
        }
        if !covers(&s.granules, first, count) {
            return wrong("a granule is not there");
        }
        s.shown.insert(at, count);
        Ok(())
    }
    fn unmap(&self, offset: u64, bytes: u64) -> Result<()> {
        if !cut(&mut self.state().shown, offset / GRANULE, bytes / GRANULE) {
            return wrong("nothing is mapped there");
        }
        Ok(())
    }
}

reaches_itself!(CountedDevice);
