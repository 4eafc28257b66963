//! One host device as the rest of the library sees it: each call passes the gate, checks its
//! arguments, and hands on to the noun that does the work.
//!
//! Stream 0 is like CUDA's legacy default stream: work on it first waits for all work queued on the
//! device, then runs on the calling thread and is complete on return. Blocking copies and fills are
//! work on stream 0. Inside a callback of any host stream, calls that could wait give `NotPermitted`.

use super::copy;
use super::event::Event;
use super::memory::Kind;
use super::options::GRANULE;
use super::process;
use super::shared::{Shared, State, unknown_stream};
use super::stream::{Point, Stream, Work};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::lock;
use crate::device::share::{Exported, Imported};
use crate::device::{
    Caps, CopyKind, Device, EventId, HostWish, MemoryInfo, Sizes, StreamCallback, StreamId, Versions,
};
use crate::fail;
use std::any::Any;
use std::sync::Arc;

/// Requests are rounded up to this; a multiple of the alignment that copies and kernels want.
const MIN_CHUNK: u64 = 512;
/// [B] what is taken from the system at once where granules cannot be mapped: few calls for small blocks,
/// and little that lies idle. It is committed only as it is touched.
const SEGMENT: u64 = 64 << 20;
/// Without mapping, a block of more than this part of the capacity is not kept when it is freed: one such
/// block would lock up much of the device for requests of other sizes.
const MAX_CHUNK_PART: u64 = 4;
/// Of this crate, as `major * 10000 + minor * 100 + patch`.
const VERSION: u64 = number(env!("CARGO_PKG_VERSION_MAJOR")) * 10000
    + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
    + number(env!("CARGO_PKG_VERSION_PATCH"));

const fn number(text: &str) -> u64 {
    let (digits, mut value, mut i) = (text.as_bytes(), 0, 0);
    while i < digits.len() {
        value = value * 10 + (digits[i] - b'0') as u64;
        i += 1;
    }
    value
}

/// One device of a host type.
pub(super) struct HostDevice {
    pub(super) shared: Arc<Shared>,
    pub(super) ordinal: usize,
}

impl HostDevice {
    fn state(&self) -> &State {
        &self.shared.devices[self.ordinal]
    }

    /// The state of the device that a peer copy goes to.
    fn peer(&self, to: &dyn Device) -> Result<&State> {
        let other = (to as &dyn Any).downcast_ref::<HostDevice>();
        match other.filter(|d| Arc::ptr_eq(&d.shared, &self.shared)) {
            Some(d) => Ok(&self.shared.devices[d.ordinal]),
            None => Err(Error::new(Code::InvalidArgument, "a peer copy to a device of another type")),
        }
    }

    /// An event of any device of the type: what a stream may wait for.
    fn any_event(&self, event: EventId) -> Result<Arc<Event>> {
        let found = lock(&self.shared.events).get(event).map(Arc::clone);
        found.ok_or_else(|| Error::new(Code::UnknownEvent, format!("event {event:#x} is not a live event")))
    }

    /// An event of this device.
    fn event(&self, event: EventId) -> Result<Arc<Event>> {
        let found = self.any_event(event)?;
        if found.ordinal() != self.ordinal {
            let (own, other) = (self.ordinal, found.ordinal());
            fail!(Code::UnknownEvent, "event {event:#x} is one of device {other}, not of device {own}");
        }
        Ok(found)
    }

    /// Runs work as stream 0 does. `also`: another device that must have come to rest.
    fn run_now(&self, work: Work, also: Option<&State>) -> Result<()> {
        process::check_may_block()?;
        self.state().drain();
        if let Some(other) = also {
            other.drain();
        }
        work.run(&self.shared.panics);
        Ok(())
    }

    /// Queues work, or runs it at once on stream 0. The point, where there is one, includes the work.
    fn queue(&self, stream: StreamId, work: Work) -> Result<Option<Point>> {
        if stream == 0 {
            return self.run_now(work, None).map(|()| None);
        }
        push(&self.state().stream(stream)?, stream, work).map(Some)
    }

    /// Checks a stream that is given nothing to do.
    fn check_stream(&self, stream: StreamId) -> Result<()> {
        if stream == 0 { Ok(()) } else { self.state().stream(stream).map(drop) }
    }

    /// Queues a copy from pageable host memory, which has been read on return: from a staging buffer
    /// where it fits, else by waiting until the stream has done it.
    fn upload(&self, stream: StreamId, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let target = self.state().stream(stream)?;
        // In a callback nothing can be waited for, so there the limit gives way.
        let force = process::in_callback();
        // SAFETY: the caller of `copy_async` guarantees a readable source.
        if let Some(from) = unsafe { self.state().staging.stage(src, bytes, force) } {
            return push(&target, stream, Work::Unstage { dst, from }).map(drop);
        }
        if force {
            return Err(Error::new(Code::OutOfMemory, "no host memory to stage a copy in a callback"));
        }
        push(&target, stream, Work::Move { dst, src, bytes })?.wait();
        Ok(())
    }

    fn take_back(&self, kind: Kind, addr: u64, bytes: u64) -> Result<()> {
        // Queued copies may still read or write it, and would end the process when it is gone.
        let _pass = self.shared.enter_blocking()?;
        self.shared.blocks.check(self.ordinal, kind, addr, bytes)?;
        self.shared.devices.iter().for_each(State::drain);
        self.shared.blocks.free(&self.state().budget, kind, addr, bytes)
    }

    fn mapping(&self) -> Result<&super::mapping::Mapping> {
        let none = || Error::new(Code::Unsupported, "this host device cannot map memory");
        self.state().mapping.as_ref().ok_or_else(none)
    }
}

fn push(target: &Arc<Stream>, id: StreamId, work: Work) -> Result<Point> {
    target.push(work)?.ok_or_else(|| unknown_stream(id))
}

fn check_ends(dst: u64, src: u64, bytes: u64) -> Result<()> {
    copy::check_end(dst, bytes)?;
    copy::check_end(src, bytes)
}

impl Device for HostDevice {
    fn ordinal(&self) -> usize {
        self.ordinal
    }

    fn caps(&self) -> Caps {
        let mut caps = Caps::HOST_ACCESS | Caps::UNIFIED | Caps::PINNED | Caps::STREAMS | Caps::CALLBACKS;
        caps.set(Caps::MAPPING, self.state().mapping.is_some());
        caps
    }

    fn sizes(&self) -> Sizes {
        let all = self.shared.options.capacity;
        // With mapping memory comes by the granule, whatever these say.
        let mapping = self.state().mapping.is_some();
        let segment = if mapping { all } else { SEGMENT.min(all) };
        Sizes {
            min_chunk: MIN_CHUNK,
            max_chunk: if mapping { all } else { segment.max(all / MAX_CHUNK_PART / GRANULE * GRANULE) },
            max_alloc: all,
            padding: 0,
            init_alloc: segment,
            realloc: segment,
        }
    }

    fn segments_grow(&self) -> bool {
        true
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let _pass = self.shared.enter()?;
        let budget = &self.state().budget;
        Ok(MemoryInfo { total: budget.capacity(), free: budget.free() })
    }

    fn versions(&self) -> Versions {
        Versions { compute_capability: 0, runtime: VERSION, driver: VERSION }
    }

    fn set_current(&self) -> Result<()> {
        self.shared.enter().map(drop)
    }

    fn synchronize(&self) -> Result<()> {
        let _pass = self.shared.enter_blocking()?;
        self.state().drain();
        Ok(())
    }

    fn alloc(&self, bytes: u64) -> Result<u64> {
        let _pass = self.shared.enter()?;
        if !bytes.is_multiple_of(MIN_CHUNK) {
            fail!(Code::InvalidArgument, "{bytes} bytes asked for: not a multiple of {MIN_CHUNK}");
        }
        self.shared.blocks.alloc(&self.state().budget, Kind::Device, bytes)
    }

    fn free(&self, addr: u64, bytes: u64) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.shared.blocks.free(&self.state().budget, Kind::Device, addr, bytes)
    }

    fn host_alloc(&self, bytes: u64) -> Result<u64> {
        let _pass = self.shared.enter()?;
        self.shared.blocks.alloc(&self.state().budget, Kind::Pinned, bytes)
    }

    fn host_alloc_as(&self, bytes: u64, wish: HostWish) -> Result<u64> {
        let _pass = self.shared.enter()?;
        let threads = if wish.register { wish.threads.max(1) } else { 0 };
        self.shared.blocks.alloc_touched(&self.state().budget, Kind::Pinned, bytes, threads)
    }

    /// Waits for all work queued on the type's devices, which may still use the memory.
    fn host_free(&self, addr: u64, bytes: u64) -> Result<()> {
        self.take_back(Kind::Pinned, addr, bytes)
    }

    fn unified_alloc(&self, bytes: u64) -> Result<u64> {
        let _pass = self.shared.enter()?;
        self.shared.blocks.alloc(&self.state().budget, Kind::Unified, bytes)
    }

    /// Waits for all work queued on the type's devices, which may still use the memory.
    fn unified_free(&self, addr: u64, bytes: u64) -> Result<()> {
        self.take_back(Kind::Unified, addr, bytes)
    }

    fn copy(&self, _kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let _pass = self.shared.enter_blocking()?;
        if bytes == 0 {
            return Ok(());
        }
        check_ends(dst, src, bytes)?;
        self.run_now(Work::Move { dst, src, bytes }, None)
    }

    fn copy_async(&self, stream: StreamId, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let _pass = self.shared.enter()?;
        if bytes == 0 {
            return self.check_stream(stream);
        }
        check_ends(dst, src, bytes)?;
        let pageable = kind == CopyKind::HostToDevice && !self.shared.blocks.stays_readable(src, bytes);
        if pageable && stream != 0 {
            return self.upload(stream, dst, src, bytes);
        }
        self.queue(stream, Work::Move { dst, src, bytes }).map(drop)
    }

    fn copy_peer(&self, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let _pass = self.shared.enter_blocking()?;
        let peer = self.peer(to)?;
        if bytes == 0 {
            return Ok(());
        }
        check_ends(dst, src, bytes)?;
        self.run_now(Work::Move { dst, src, bytes }, Some(peer))
    }

    fn copy_peer_async(
        &self,
        stream: StreamId,
        to: &dyn Device,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.peer(to)?;
        if bytes == 0 {
            return self.check_stream(stream);
        }
        check_ends(dst, src, bytes)?;
        self.queue(stream, Work::Move { dst, src, bytes }).map(drop)
    }

    /// As `copy_peer_async`: the processor does it, whichever device's thread that is.
    fn copy_from_peer_async(
        &self,
        stream: StreamId,
        from: &dyn Device,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()> {
        self.copy_peer_async(stream, from, dst, src, bytes)
    }

    fn memset(&self, dst: u64, value: u8, bytes: u64) -> Result<()> {
        let _pass = self.shared.enter_blocking()?;
        if bytes == 0 {
            return Ok(());
        }
        copy::check_end(dst, bytes)?;
        self.run_now(Work::Fill { dst, value, bytes }, None)
    }

    fn memset_async(&self, stream: StreamId, dst: u64, value: u8, bytes: u64) -> Result<()> {
        let _pass = self.shared.enter()?;
        if bytes == 0 {
            return self.check_stream(stream);
        }
        copy::check_end(dst, bytes)?;
        self.queue(stream, Work::Fill { dst, value, bytes }).map(drop)
    }

    fn stream_create(&self) -> Result<StreamId> {
        let _pass = self.shared.enter()?;
        self.state().add_stream(Arc::clone(&self.shared.panics))
    }

    /// Returns at once; what is queued still completes, and then the stream's thread ends.
    fn stream_destroy(&self, stream: StreamId) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.state().remove_stream(stream)
    }

    fn stream_exists(&self, stream: StreamId) -> bool {
        self.shared.enter().is_ok_and(|_pass| self.check_stream(stream).is_ok())
    }

    fn stream_query(&self, stream: StreamId) -> Result<bool> {
        let _pass = self.shared.enter()?;
        if stream == 0 {
            return Ok(self.state().pending().is_empty());
        }
        Ok(self.state().stream(stream)?.point().done())
    }

    fn stream_synchronize(&self, stream: StreamId) -> Result<()> {
        let _pass = self.shared.enter_blocking()?;
        if stream == 0 {
            self.state().drain();
        } else {
            self.state().stream(stream)?.point().wait();
        }
        Ok(())
    }

    /// On stream 0 the wait holds for the next work on stream 0; this call itself never blocks.
    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<()> {
        let _pass = self.shared.enter()?;
        let points = self.any_event(event)?.pending();
        if points.is_empty() {
            return self.check_stream(stream);
        }
        if stream == 0 {
            self.state().default_wait(points);
            return Ok(());
        }
        self.queue(stream, Work::Wait(points)).map(drop)
    }

    fn stream_callback(&self, stream: StreamId, callback: StreamCallback) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.queue(stream, Work::Call(callback)).map(drop)
    }

    fn event_create(&self) -> Result<EventId> {
        let _pass = self.shared.enter()?;
        lock(&self.shared.events).insert(Arc::new(Event::new(self.ordinal)))
    }

    fn event_destroy(&self, event: EventId) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.event(event)?;
        let gone = lock(&self.shared.events).remove(event);
        match gone {
            Some(_) => Ok(()),
            None => fail!(Code::UnknownEvent, "event {event:#x} is not a live event"),
        }
    }

    /// On stream 0 it completes at once, unless stream 0 was told to wait for an event: the work on stream 0 is
    /// complete whenever a call returns.
    fn event_record(&self, stream: StreamId, event: EventId) -> Result<()> {
        let _pass = self.shared.enter()?;
        let event = self.event(event)?;
        match stream {
            0 => event.record_all(self.state().default_pending()),
            _ => {
                let point = self.state().stream(stream)?.point();
                event.record(point);
            }
        }
        Ok(())
    }

    fn event_query(&self, event: EventId) -> Result<bool> {
        let _pass = self.shared.enter()?;
        Ok(self.event(event)?.is_done())
    }

    fn event_synchronize(&self, event: EventId) -> Result<()> {
        let _pass = self.shared.enter_blocking()?;
        self.event(event)?.pending().iter().for_each(Point::wait);
        Ok(())
    }

    fn share_granules(&self, granules: &[(u64, u64)], fabric: bool) -> Result<Exported> {
        let _pass = self.shared.enter()?;
        if fabric {
            self.check_fabric(granules)?; // there are none
        }
        self.mapping()?.share(granules)
    }

    fn open_shared(&self, memory: &Imported<'_>) -> Result<u64> {
        let _pass = self.shared.enter()?;
        self.mapping()?.open(memory)
    }

    fn close_shared(&self, addr: u64) -> Result<()> {
        let _pass = self.shared.enter_blocking()?;
        let mapping = self.mapping()?;
        self.shared.devices.iter().for_each(State::drain);
        mapping.close(addr)
    }

    fn can_admit(&self, peer: &dyn Device) -> Result<bool> {
        let _pass = self.shared.enter()?;
        Ok(self.peer(peer).is_ok()) // they all have the processor's memory
    }

    /// A quarter of what Linux allows a process (`vm.max_map_count`, 65530 by default).
    fn most_mappings(&self) -> u64 {
        16_000
    }
    fn granule_numbers(&self) -> Result<u64> {
        Ok(self.mapping()?.numbers())
    }

    fn map_window(&self, bytes: u64) -> Result<u64> {
        let _pass = self.shared.enter()?;
        self.mapping()?.open_window(bytes)
    }

    /// Waits for all work queued on the type's devices, which may still use the memory.
    fn map_close(&self) -> Result<()> {
        let _pass = self.shared.enter_blocking()?;
        let mapping = self.mapping()?;
        self.shared.devices.iter().for_each(State::drain);
        mapping.close_window(&self.state().budget)
    }

    fn granules_create(&self, first: u64, count: u64) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.mapping()?.create(&self.state().budget, first, count)
    }

    fn granules_release(&self, first: u64, count: u64) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.mapping()?.release(&self.state().budget, first, count)
    }

    fn map(&self, offset: u64, first: u64, count: u64) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.mapping()?.map(offset, first, count)
    }

    fn unmap(&self, offset: u64, bytes: u64) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.mapping()?.unmap(offset, bytes)
    }
}
