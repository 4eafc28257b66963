//! The oracle's device written in Rust. Its memory and mappings are those of the host device, which are real; streams,
//! events and time are those of the world. Addresses that lose their memory are checked against the work still queued.

use super::time::{self, enter};
use super::world::{self, GRANULE, Lie, Work, world};
use millpond::device::host::HostType;
use millpond::device::*;
use millpond::{Code, Error, HostOptions, Result, runtime};
use std::sync::Arc;

pub const NAME: &str = "oracle";

struct Type(HostType, Option<u64>, u64);
struct Sim(Arc<dyn Device>, Option<u64>, u64);

/// Registers the type, with one device of so many bytes; with `numbers`, only so many blocks can be told apart, and few
/// pieces be shown. `tie`: granules of its ties at most.
pub fn register(capacity: usize, mapping: bool, numbers: Option<u64>, tie: u64) {
    let options = HostOptions { device_count: 1, capacity: capacity as u64, mapping };
    runtime::register_type(Arc::new(Type(HostType::new("behind", options), numbers, tie))).unwrap();
}

impl DeviceType for Type {
    fn name(&self) -> &str {
        NAME
    }
    fn initialize(&self) -> Result<()> {
        self.0.initialize()
    }
    fn finalize(&self) -> Result<()> {
        self.0.finalize()
    }
    fn device_count(&self) -> Result<usize> {
        self.0.device_count()
    }
    fn open(&self, ordinal: usize) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(Sim(self.0.open(ordinal)?, self.1, self.2)))
    }
}

fn go(call: &'static str) -> Result<()> {
    enter(call).map_err(|code| Error::new(code, format!("the program wants {call} to fail")))
}

fn line(stream: StreamId) -> Result<usize> {
    let found = world().line_of(stream);
    found.ok_or_else(|| {
        world().violate(format!("the device is asked about stream {stream:#x}, which has ended"));
        Error::new(Code::UnknownStream, "no such stream")
    })
}

fn known<T>(answer: Option<T>) -> Result<T> {
    answer.ok_or_else(|| {
        world().violate("the device is asked about an event that was destroyed");
        Error::new(Code::UnknownEvent, "no such event")
    })
}

impl Sim {
    fn queue(&self, stream: StreamId, work: Work) -> Result<()> {
        let line = line(stream)?;
        if line == 0 {
            time::run_all(true);
        }
        world().queue(line, work);
        if line == 0 {
            time::run_all(true);
        }
        Ok(())
    }
}

impl Sim {
    fn real(&self) -> &dyn Mapping {
        self.0.mapping().unwrap()
    }
}

impl Device for Sim {
    fn ordinal(&self) -> usize {
        self.0.ordinal()
    }
    fn facts(&self) -> Facts {
        let Facts { host_access, pinned, segments_grow, .. } = self.0.facts();
        let most_blocks = self.1.unwrap_or(u64::MAX);
        Facts { host_access, pinned, segments_grow, most_blocks, ..Facts::default() }
    }
    fn sizes(&self) -> Sizes {
        self.0.sizes()
    }
    fn memory_info(&self) -> Result<MemoryInfo> {
        self.0.memory_info()
    }
    fn versions(&self) -> Versions {
        self.0.versions()
    }
    fn synchronize(&self) -> Result<()> {
        go("sync")?;
        time::run_all(true);
        // The wait is over, and has not returned yet.
        go("sync")
    }
    fn alloc(&self, bytes: u64) -> Result<u64> {
        go("alloc")?;
        let at = self.0.alloc(bytes)?;
        let mut w = world();
        w.segments.insert(at as usize, bytes as usize);
        w.taken += bytes;
        Ok(at)
    }
    fn free(&self, addr: u64, bytes: u64) -> Result<()> {
        go("free")?;
        let mut w = world();
        w.check_addresses(addr as usize, bytes as usize, "given back to the device");
        w.taken -= bytes;
        w.segments.remove(&(addr as usize));
        drop(w);
        self.0.free(addr, bytes)
    }
    fn host_alloc(&self, bytes: u64, wish: HostWish) -> Result<u64> {
        self.0.host_alloc(bytes, wish)
    }
    fn host_free(&self, addr: u64, bytes: u64) -> Result<()> {
        self.0.host_free(addr, bytes)
    }
    fn copy(&self, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        go("copy")?;
        time::run_all(true);
        self.0.copy(kind, dst, src, bytes)
    }
    fn copy_async(&self, stream: StreamId, _: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        go("copy")?;
        self.queue(stream, Work::Move { to: dst as usize, from: src as usize, bytes: bytes as usize })
    }
    fn memset(&self, dst: u64, value: u8, bytes: u64) -> Result<()> {
        go("copy")?;
        time::run_all(true);
        self.0.memset(dst, value, bytes)
    }
    fn memset_async(&self, stream: StreamId, dst: u64, value: u8, bytes: u64) -> Result<()> {
        go("copy")?;
        self.queue(stream, Work::Fill { to: dst as usize, value, bytes: bytes as usize })
    }
    fn streams(&self) -> &dyn Streams {
        self
    }
    fn mapping(&self) -> Option<&dyn Mapping> {
        self.0.mapping().map(|_| self as _)
    }
    fn peers(&self) -> Option<&dyn Peers> {
        Some(self)
    }
}

impl Streams for Sim {
    fn create(&self) -> Result<StreamId> {
        go("stream_create")?;
        Ok(world().stream_create())
    }
    fn destroy(&self, stream: StreamId) -> Result<()> {
        go("stream_destroy")?;
        known(world().stream_destroy(stream).then_some(()))
    }
    fn exists(&self, stream: StreamId) -> bool {
        world().line_of(stream).is_some()
    }
    fn idle(&self) -> bool {
        let w = world();
        w.lie == Lie::Passed || w.lines.iter().all(|l| l.importer || l.done == l.queued())
    }
    fn query(&self, stream: StreamId) -> Result<bool> {
        go("stream_query")?;
        let line = line(stream)?;
        let w = world();
        Ok(w.lines[line].done == w.lines[line].queued())
    }
    fn synchronize(&self, stream: StreamId) -> Result<()> {
        go("sync_stream")?;
        let line = line(stream)?;
        if line == 0 {
            time::run_all(true);
        }
        world().not_captured(line, "waited for");
        let count = world().lines[line].queued();
        time::run_to(line, count);
        Ok(())
    }
    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<()> {
        go("wait")?;
        let line = line(stream)?;
        let done = world().wait(line, event);
        known(done.then_some(()))
    }
    fn callback(&self, stream: StreamId, callback: StreamCallback) -> Result<()> {
        go("callback")?;
        self.queue(stream, Work::Call(Box::new(move || callback(Ok(())))))
    }
    fn event_create(&self) -> Result<EventId> {
        go("event_create")?;
        Ok(world().event_create())
    }
    fn event_destroy(&self, event: EventId) -> Result<()> {
        go("event_destroy")?;
        let done = world().event_destroy(event);
        known(done.then_some(()))
    }
    fn event_record(&self, stream: StreamId, event: EventId) -> Result<()> {
        go("record")?;
        let line = line(stream)?;
        let done = world().record(line, event);
        known(done.then_some(()))
    }
    fn event_query(&self, event: EventId) -> Result<bool> {
        go("query")?;
        known(time::ask(event))
    }
    fn event_synchronize(&self, event: EventId) -> Result<()> {
        go("sync_event")?;
        let clock = world().events.get(&event).cloned();
        let clock = known(clock)?;
        if world().lie != world::Lie::NoSync {
            time::run_clock(&clock);
        }
        Ok(())
    }
}

impl Mapping for Sim {
    fn most_mappings(&self) -> u64 {
        if self.1.is_some() { 6 } else { u64::MAX }
    }
    fn numbers(&self) -> u64 {
        self.real().numbers()
    }
    fn open_window(&self, bytes: u64) -> Result<u64> {
        let base = self.real().open_window(bytes)?;
        let mut w = world();
        w.window = Some((base as usize, vec![None; (bytes / GRANULE) as usize]));
        w.ties.clear();
        Ok(base)
    }
    fn close_window(&self) -> Result<()> {
        world().window = None;
        self.real().close_window()
    }
    fn create(&self, first: u64, count: u64) -> Result<()> {
        go("create")?;
        self.real().create(first, count)?;
        world().taken += count * GRANULE;
        Ok(())
    }
    fn tie_sizes(&self) -> TieSizes {
        TieSizes { most: self.2 as u32, request: 2 }
    }
    fn create_tied(&self, first: u64, count: u64, each: u64) -> Result<()> {
        Mapping::create(self, first, count)?;
        let tie = |at| (at, each.min(first + count - at));
        world().ties.extend((first..first + count).step_by(each as usize).map(tie));
        Ok(())
    }
    fn release(&self, first: u64, count: u64) -> Result<()> {
        go("release")?;
        let mut w = world();
        if w.cuts_a_tie(first, count) {
            w.violate("a part of a tie goes back to the device");
        }
        if let Some(text) = w.unordered(&[(1 << 60 | (first * GRANULE), count * GRANULE)], None) {
            w.violate(format!("granules go back to the device before {text} on them"));
        }
        let shown = w.window.iter().flat_map(|x| &x.1);
        if shown.flatten().any(|g| (first..first + count).contains(g)) {
            w.violate("granules go back to the device that are still mapped");
        }
        drop(w);
        self.real().release(first, count)?;
        let mut w = world();
        w.taken -= count * GRANULE;
        w.ties.retain(|at, _| !(first..first + count).contains(at));
        Ok(())
    }
    fn map(&self, offset: u64, first: u64, count: u64) -> Result<()> {
        go("map")?;
        if world().cuts_a_tie(first, count) {
            world().violate("a part of a tie is mapped");
        }
        self.real().map(offset, first, count)?;
        if let Some((_, shown)) = &mut world().window {
            for i in 0..count {
                shown[(offset / GRANULE + i) as usize] = Some(first + i);
            }
        }
        Ok(())
    }
    fn unmap(&self, offset: u64, bytes: u64) -> Result<()> {
        go("unmap")?;
        let mut w = world();
        let base = w.window.as_ref().map_or(0, |x| x.0);
        w.check_addresses(base + offset as usize, bytes as usize, "unmapped");
        drop(w);
        self.real().unmap(offset, bytes)?;
        if let Some((_, shown)) = &mut world().window {
            for i in 0..bytes / GRANULE {
                shown[(offset / GRANULE + i) as usize] = None;
            }
        }
        Ok(())
    }
}

reaches_itself!(Sim);
