//! Pinned and unified host memory of a device.
//!
//! Pinned memory is cached: taking it from the driver costs hundreds of microseconds. A request has a block of the
//! next size (`pinned/sizes.rs`). A freed block is used again when the streams that were noted to use it have
//! passed the point of its free; the free itself does not wait. Unified memory goes straight to the device.
//!
//! No lock is held while a device is called.

use crate::base::error::{Code, Error, Result};
use crate::base::numa;
use crate::base::room::{CALL_BYTES, check_room};
use crate::base::sync::system::lock;
use crate::core::Stream;
use crate::device::{HostWish, Registration, StreamId};
use crate::fail;
use crate::runtime::device::by_address::{Kind, explained};
use crate::runtime::device::state::DeviceState;
use crate::runtime::device::table;
use crate::runtime::entry::reentry::may_block;
use crate::runtime::pinned::cache::{HostStats, Span, Use, Waiting};
use crate::runtime::pinned::sizes::{self, span_of};
use crate::runtime::watch::event::EventKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Freed blocks that wait which a request looks at before it asks the device for memory.
const LOOK: usize = 64;
/// The same for a free: more than one, so that they become fewer.
const LOOK_AT_FREE: usize = 2;
/// How often a request that finds none looks again after memory has come back: others may take what comes.
const TRIES: u32 = 1000;

/// What `pinned_limit_mb` says of a block that is not taken yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// There is room for it.
    Enough,
    /// There will be, once other threads have given back what they are giving to the device.
    Soon,
    None,
}

/// Refuses sizes that no address space holds, so that devices need not.
pub(super) fn sane(bytes: u64, what: &str) -> Result<()> {
    if bytes > i64::MAX as u64 {
        fail!(Code::OutOfMemory, "{bytes} bytes of {what} memory are more than an address space has");
    }
    Ok(())
}

/// The pinned host memory of an open device. Get it with [`DeviceState::host_memory`].
#[derive(Clone, Copy)]
pub struct HostMemory<'a>(pub(super) &'a DeviceState);

impl DeviceState {
    /// The pinned host memory of the device.
    pub fn host_memory(&self) -> HostMemory<'_> {
        HostMemory(self)
    }
}

impl HostMemory<'_> {
    /// Host memory that copies to and from this device fast: page-locked where the limit allows, and near the
    /// device where that tells its NUMA node. 0 bytes give address 0. Aligned to 64 bytes; above 32 KiB, to a page.
    /// The content is left from before. The caller gives it back with [`free`](Self::free).
    pub fn alloc(&self, bytes: u64) -> Result<u64> {
        let _pass = self.0.enter()?;
        sane(bytes, "host")?;
        if bytes == 0 {
            return Ok(0);
        }
        let size = sizes::size_of(bytes, self.0.host.exact_above.load(Relaxed));
        if let Some(addr) = self.reuse(bytes, size)? {
            return Ok(addr);
        }
        if self.settle(LOOK)
            && let Some(addr) = self.reuse(bytes, size)?
        {
            return Ok(addr);
        }
        let mut limited = false;
        let mut got = self.take(bytes, size, &mut limited);
        let mut waited = false;
        for _ in 0..TRIES {
            if !matches!(&got, Err(e) if e.code() == Code::OutOfMemory) {
                break;
            }
            self.settle(usize::MAX);
            // Before it goes back to the device with what the cache holds in other sizes, which may be what is missing.
            if let Some(addr) = self.reuse(bytes, size)? {
                return Ok(addr);
            }
            // What was waited for may be the device's already.
            if self.shrink(0).0 || std::mem::take(&mut waited) {
                got = self.take(bytes, size, &mut limited);
                continue;
            }
            waited = match self.room(size) {
                Room::Enough if limited => true, // since another thread has given some back
                Room::Enough => self.wait_for_one(),
                Room::Soon => self.wait_for_hands() || self.room(size) == Room::Enough,
                Room::None => false, // at its limit no stream is waited for
            };
            if !waited {
                break;
            }
        }
        got
    }

    /// Frees memory of [`alloc`](Self::alloc). Work that was queued before may still use it if the library
    /// knows of it: copies by [`copy_async`](DeviceState::copy_async), and uses recorded by
    /// [`record_stream`](Self::record_stream). Does not wait for that work, or for anything else, unless
    /// `pinned_max_cached_size_mb` makes it give memory back to the device. Address 0 does nothing. Errors:
    /// `UnknownPointer`, `DoubleFree`.
    pub fn free(&self, addr: u64) -> Result<()> {
        let _pass = self.0.enter()?;
        if addr == 0 {
            return Ok(());
        }
        {
            let mut s = lock(&self.0.host.state);
            let mut waits = s.make_waits(addr)?;
            let ended = match s.end(addr) {
                Ok(ended) => ended,
                Err(e) => {
                    drop(s);
                    return Err(explained(addr, Kind::Pinned, e));
                }
            };
            let _hand = self.0.host.hand(s);
            self.add_waits(&ended.uses, &mut waits);
            let size = ended.size;
            let mut s = lock(&self.0.host.state);
            if !waits.is_empty() || !s.give(addr, size) {
                s.stats.pending += size;
                s.waiting.push_back(Waiting { addr, size, waits });
            }
        }
        self.settle(LOOK_AT_FREE);
        // What the device does not take back now stays for the next request.
        let _ = self.shrink(self.0.host.most_cached.load(Relaxed));
        Ok(())
    }

    /// The pinned memory that holds `addr`, of this device or of another one, is used by work on `stream`, of this
    /// device or another: after its free it is used again when that stream has passed what is queued there at the free.
    /// Errors: `UnknownPointer`, `UnknownStream`.
    pub fn record_stream(&self, addr: u64, stream: StreamId) -> Result<()> {
        let _pass = self.0.enter()?;
        let used_by = self.0.memory().order().user(stream)?;
        if !self.note_use(addr, used_by)? {
            fail!(Code::UnknownPointer, "no live pinned memory holds {addr:#x}");
        }
        Ok(())
    }

    /// Notes a use of whatever pinned memory holds `addr`, if any does.
    pub(crate) fn note(&self, addr: u64, stream: StreamId) -> Result<bool> {
        // One that is another stream on each thread is stood for by one that waits for all of them.
        let order = self.0.memory().order();
        self.note_use(addr, order.stream_or_all(order.ordered(stream)))
    }

    fn note_use(&self, addr: u64, stream: Arc<Stream>) -> Result<bool> {
        let by = Use { device: self.0.id(), stream };
        if lock(&self.0.host.state).note(addr, &by)? {
            return Ok(true);
        }
        // Pinned memory is good for all devices of a machine.
        for d in table::open_devices().filter(|d| d.id() != self.0.id()) {
            if lock(&d.host.state).note(addr, &by)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The account of the device's pinned host memory.
    pub fn stats(&self) -> Result<HostStats> {
        let _pass = self.0.enter()?;
        self.settle(usize::MAX);
        let mut stats = lock(&self.0.host.state).stats;
        stats.numa_node = self.0.device().facts().numa_node;
        Ok(stats)
    }

    /// The peaks of that account start again from the current values.
    pub fn reset_peaks(&self) -> Result<()> {
        let _pass = self.0.enter()?;
        let s = &mut *lock(&self.0.host.state);
        let (stats, more) = (&mut s.stats, &mut s.more);
        [&mut stats.requested, &mut stats.allocated, &mut stats.reserved, &mut stats.blocks]
            .into_iter()
            .chain([&mut more.segments, &mut more.active, &mut more.active_blocks])
            .for_each(crate::core::Counter::reset_peak);
        Ok(())
    }

    /// Pinned host memory that is freed goes back to the device, after a wait for the work that still uses it.
    /// Small blocks go when all around them are free. `NotPermitted` in a stream callback.
    pub fn empty_cache(&self) -> Result<()> {
        let _pass = self.0.enter()?;
        may_block()?;
        self.wait_in_turn(true);
        // What others look at meanwhile comes back to be waited for.
        while self.wait_for_hands() {
            self.wait_in_turn(true);
        }
        self.shrink(0).1.and(self.0.unified_memory().ask_again())
    }

    /// Registers host memory of the caller, `addr .. addr + bytes`, so that it is as fast to copy as that of
    /// [`alloc`](Self::alloc), and copies of it are really asynchronous. The caller keeps it until
    /// [`unregister`](Self::unregister). `Unsupported` where the device has no call for it; `Busy` if a part
    /// of it is registered already or came from `host_alloc`.
    pub fn register(&self, addr: u64, bytes: u64) -> Result<()> {
        let _pass = self.0.enter()?;
        if addr == 0 || bytes == 0 {
            fail!(Code::InvalidArgument, "there is no memory to register at {addr:#x} with size {bytes}");
        }
        if addr.checked_add(bytes).is_none() {
            fail!(Code::OutOfRange, "the range passes the end of the address space");
        }
        self.registration()?.register(addr, bytes)
    }

    /// Ends the registration that begins at `addr`, after a wait for the work that may still use it. `UnknownPointer`
    /// if none does; `NotPermitted` in a stream callback, and while a stream of the device is captured, from
    /// `capture_begin` on.
    pub fn unregister(&self, addr: u64) -> Result<()> {
        let _pass = self.0.enter()?;
        may_block()?;
        let registration = self.registration()?;
        let _waiting = self.0.memory().order().no_capture().map_err(|e| match e.code() {
            Code::Busy => Error::new(Code::NotPermitted, e.message().to_owned()),
            _ => e,
        })?;
        registration.unregister(addr)
    }

    fn registration(&self) -> Result<&dyn Registration> {
        let none = || Error::new(Code::Unsupported, "this device has no call that registers host memory");
        self.0.device().registration().ok_or_else(none)
    }

    fn reuse(&self, bytes: u64, size: u64) -> Result<Option<u64>> {
        let mut s = lock(&self.0.host.state);
        s.check_room_to_serve()?;
        let addr = s.serve(bytes, size);
        s.stats.reuses += u64::from(addr.is_some());
        Ok(addr)
    }

    /// Memory from the device: a block, or a slab of them. Sets whether the limit was what refused it.
    fn take(&self, bytes: u64, size: u64, limited: &mut bool) -> Result<u64> {
        let wish = HostWish {
            register: self.0.host.register.load(Relaxed),
            threads: self.0.host.threads.load(Relaxed) as u32,
        };
        let span = span_of(size);
        check_room(CALL_BYTES)?; // so that the device is not asked for what cannot be entered
        {
            let mut s = lock(&self.0.host.state);
            s.check_room_to_serve()?;
            let (taken, most) = (s.stats.reserved.current + s.taking, self.0.host.most.load(Relaxed));
            *limited = taken.saturating_add(span) > most;
            if *limited {
                fail!(
                    Code::OutOfMemory,
                    "no {bytes} B of pinned memory: {taken} are taken of the {most} that pinned_limit_mb allows"
                );
            }
            s.left.expect()?;
            s.taking += span;
            s.stats.driver_calls += 1;
        }
        let node = match self.0.host.node.load(Relaxed) {
            u64::MAX => self.0.device().facts().numa_node,
            node => u32::try_from(node).ok(),
        };
        let begun = Instant::now();
        let got = numa::near(node, || self.0.device().host_alloc(span, wish));
        let took = begun.elapsed();
        let mut s = lock(&self.0.host.state);
        s.taking -= span;
        let addr = got.inspect_err(|_| s.left.answered((0, 0), false))?;
        s.more.taking.add(took);
        if let Err(e) = s.check_room_to_enter(size) {
            // Others have taken the host's memory meanwhile.
            s.stats.driver_calls += 1;
            drop(s);
            let refused = self.0.device().host_free(addr, span).is_err();
            lock(&self.0.host.state).leave(addr, span, refused);
            return Err(e);
        }
        s.left.answered((addr, span), false);
        Ok(s.enter(addr, bytes, size))
    }

    /// Whether `pinned_limit_mb` lets a block of `size` be taken from the device.
    fn room(&self, size: u64) -> Room {
        let s = lock(&self.0.host.state);
        let (taken, most) = (s.stats.reserved.current + s.taking, self.0.host.most.load(Relaxed));
        match span_of(size) {
            span if taken.saturating_add(span) <= most => Room::Enough,
            span if taken.saturating_sub(s.giving).saturating_add(span) <= most => Room::Soon,
            _ => Room::None,
        }
    }

    /// Gives free memory back to the device until at most `most` bytes are cached, as far as whole blocks and
    /// slabs go, or the device refuses one. Whether any went, also where it has refused another.
    fn shrink(&self, most: u64) -> (bool, Result<()>) {
        let mut any = false;
        loop {
            let mut s = lock(&self.0.host.state);
            let Some(span @ Span { addr, bytes, .. }) = s.next_back(most) else { return (any, Ok(())) };
            s.tell(EventKind::SegmentFree, addr, bytes, bytes);
            s.giving += bytes;
            let _hand = self.0.host.hand(s);
            let begun = Instant::now();
            let given = self.0.device().host_free(addr, bytes);
            let took = begun.elapsed();
            let mut s = lock(&self.0.host.state);
            s.giving -= bytes;
            s.stats.driver_calls += 1;
            if given.is_err() && s.keep(span) {
                s.tell(EventKind::SegmentAlloc, addr, bytes, bytes);
                return (any, given);
            }
            s.let_go(span);
            s.stats.reserved.sub(bytes);
            s.more.segments.sub(1);
            s.more.giving.add(took);
            s.returns += 1;
            any = true;
        }
    }

    /// Gives back all host and unified memory that is left. For the end of the device, whose work is done.
    pub(crate) fn close(&self) -> Result<()> {
        let mut first = Ok(());
        let all = lock(&self.0.host.state).drain();
        for (addr, bytes) in all.pieces() {
            first = first.and(self.0.device().host_free(addr, bytes));
        }
        let unified = std::mem::take(&mut *lock(&self.0.unified.0));
        let live = unified.ranges.iter().map(|(addr, bytes, _)| (addr, bytes));
        for (addr, bytes) in live.chain(unified.left.iter()) {
            first = first.and(self.0.unified_memory().facet().and_then(|u| u.free(addr, bytes)));
        }
        first
    }
}
