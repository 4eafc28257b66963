//! A device as the backing of a pond: which device calls bring memory, and how marks in streams are made
//! of events. Also the places: which address stands for which offset.

use crate::base::error::{Code, Error, Result};
#[cfg(feature = "capi")]
use crate::core::Locate;
use crate::core::{Backing, EVERY, Mark};
use crate::device::{CopyKind, Device, EventId, StreamId};
use crate::fail;
use crate::runtime::borrowed::Borrowed;
use crate::runtime::lock;
use crate::runtime::segments::Segments;
use crate::runtime::share::Tickets;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Where offsets lie. Reading the window, or the first segment, takes no lock.
#[derive(Default)]
pub(crate) struct Places {
    addr: AtomicU64,   // of the window or first segment
    len: AtomicU64,    // 0: none
    offset: AtomicU64, // that `addr` stands for
    more: RwLock<More>,
    ending: AtomicBool,
}

#[derive(Default)]
struct More {
    by_offset: BTreeMap<u64, (u64, u64)>, // offset -> (address, bytes)
    by_addr: BTreeMap<u64, (u64, u64)>,   // address -> (offset, bytes)
}

impl Places {
    /// From now on places may go while requests are under way. Relaxed: who misses a place has read what was stored
    /// after this, under the lock or by the length.
    pub(crate) fn end(&self) {
        self.ending.store(true, Relaxed);
    }

    /// The whole of the pond's offsets is one range of addresses.
    pub(crate) fn set_window(&self, addr: u64, bytes: u64) {
        self.addr.store(addr, Relaxed);
        self.offset.store(0, Relaxed);
        // Release pairs with the Acquire in the readers: who sees the length sees the rest.
        self.len.store(bytes, Ordering::Release);
    }

    /// The offset that an address in the window, or the first segment, stands for.
    #[inline(always)]
    pub(crate) fn near(&self, addr: u64) -> Option<u64> {
        let len = self.len.load(Ordering::Acquire);
        let within = addr.wrapping_sub(self.addr.load(Relaxed));
        (within < len).then(|| self.offset.load(Relaxed) + within)
    }

    /// The offset that an address stands for.
    #[inline(always)]
    pub(crate) fn offset(&self, addr: u64) -> Option<u64> {
        self.near(addr).or_else(|| self.offset_far(addr))
    }

    /// The segment that an offset lies in, where there are segments: its address, and the bytes from there.
    pub(crate) fn segment_of(&self, offset: u64) -> Option<(u64, u64)> {
        let more = self.more.read().unwrap_or_else(PoisonError::into_inner);
        let (&o, &(addr, bytes)) = more.by_offset.range(..=offset).next_back()?;
        (offset - o < bytes).then_some((addr, offset - o))
    }

    /// The address of an offset that the pond has handed out.
    #[inline(always)]
    pub(crate) fn address(&self, offset: u64) -> Result<u64> {
        let len = self.len.load(Ordering::Acquire);
        let within = offset.wrapping_sub(self.offset.load(Relaxed));
        if within < len { Ok(self.addr.load(Relaxed) + within) } else { self.address_far(offset) }
    }

    #[cold]
    fn offset_far(&self, addr: u64) -> Option<u64> {
        let more = self.more.read().unwrap_or_else(PoisonError::into_inner);
        let (&a, &(offset, bytes)) = more.by_addr.range(..=addr).next_back()?;
        (addr - a < bytes).then(|| offset + (addr - a))
    }

    #[cold]
    fn address_far(&self, offset: u64) -> Result<u64> {
        let more = self.more.read().unwrap_or_else(PoisonError::into_inner);
        match more.by_offset.range(..=offset).next_back() {
            Some((&o, &(addr, bytes))) if offset - o < bytes => Ok(addr + (offset - o)),
            // The device has ended while the request was under way.
            _ if self.ending.load(Relaxed) => {
                Err(Error::new(Code::NotInitialized, "the device was finalised"))
            }
            _ => Err(Error::new(Code::Internal, "a block lies in no segment")),
        }
    }

    fn add(&self, offset: u64, addr: u64, bytes: u64) {
        let mut more = self.more.write().unwrap_or_else(PoisonError::into_inner);
        more.by_offset.insert(offset, (addr, bytes));
        more.by_addr.insert(addr, (offset, bytes));
        if self.addr.load(Relaxed) == 0 {
            // The first segment ever is read without a lock. It is entered once, so that no reader can see
            // half of one segment and half of another.
            self.addr.store(addr, Relaxed);
            self.offset.store(offset, Relaxed);
            self.len.store(bytes, Ordering::Release);
        } else if self.addr.load(Relaxed) == addr
            && self.offset.load(Relaxed) == offset
            && self.len.load(Relaxed) == 0
        {
            self.len.store(bytes, Ordering::Release);
        }
    }

    /// The address of the segment at `offset`, which is none from now on.
    fn remove(&self, offset: u64) -> Option<u64> {
        let mut more = self.more.write().unwrap_or_else(PoisonError::into_inner);
        let (addr, _) = more.by_offset.remove(&offset)?;
        more.by_addr.remove(&addr);
        if self.addr.load(Relaxed) == addr {
            self.len.store(0, Relaxed);
        }
        Some(addr)
    }
}

/// `OutOfMemory` when the device says that it has fewer bytes free.
pub(crate) fn check_free(device: &dyn Device, bytes: u64) -> Result<()> {
    match device.memory_info() {
        Ok(m) if m.free < bytes => fail!(
            Code::OutOfMemory,
            "the device has {} bytes free, {bytes} are needed (throw_on_cudamalloc_oom)",
            m.free
        ),
        // A device that cannot tell is asked for the memory itself.
        _ => Ok(()),
    }
}

#[cfg(feature = "capi")]
impl Locate for Places {
    /// The address of a block, which lies in some segment for sure.
    #[inline(always)]
    fn locate(&self, offset: u64) -> u64 {
        let len = self.len.load(Ordering::Acquire);
        let within = offset.wrapping_sub(self.offset.load(Relaxed));
        if within < len { self.addr.load(Relaxed) + within } else { self.address_far(offset).unwrap_or(0) }
    }
}

/// The mark of a device without events: everything before it was waited for when it was made.
const DONE: Mark = 0;

/// One device, as a pond's backing.
pub(crate) struct Supply {
    device: Arc<dyn Device>,
    places: Arc<Places>,
    maps: bool,
    /// Whether the device is asked how much it has before it is asked for memory.
    careful: AtomicBool,
    calls: AtomicU64,
    events: Mutex<Vec<Mark>>, // spare ones, all our own
    borrowed: Borrowed,
    pub(crate) segments: Segments,
    pub(crate) tickets: Tickets,
    saved: Mutex<BTreeMap<u32, Vec<u8>>>, // contents of granules that sleep, by the first
    streams: Mutex<BTreeSet<StreamId>>,
}

impl Supply {
    pub(crate) fn new(device: Arc<dyn Device>, places: Arc<Places>, maps: bool) -> Supply {
        Supply {
            device,
            places,
            maps,
            careful: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            events: Mutex::default(),
            borrowed: Borrowed::default(),
            segments: Segments::default(),
            tickets: Tickets::default(),
            saved: Mutex::default(),
            streams: Mutex::new(BTreeSet::from([0])),
        }
    }

    /// Calls made to the device's memory management so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    fn call<T>(&self, result: Result<T>) -> Result<T> {
        self.calls.fetch_add(1, Relaxed);
        result
    }

    /// From now on requests that the device has no memory for do not reach it, or do.
    pub(crate) fn set_careful(&self, careful: bool) {
        self.careful.store(careful, Relaxed);
    }

    fn check_free(&self, bytes: u64) -> Result<()> {
        if self.careful.load(Relaxed) { check_free(&*self.device, bytes) } else { Ok(()) }
    }

    pub(crate) fn add_stream(&self, stream: StreamId) {
        lock(&self.streams).insert(stream);
    }

    pub(crate) fn drop_stream(&self, stream: StreamId) {
        lock(&self.streams).remove(&stream);
    }

    fn granule_at(&self, index: u32) -> u64 {
        u64::from(index) * self.device.granule()
    }

    /// [address] of an offset in the window, where the device maps.
    fn window_at(&self, offset: u64) -> u64 {
        self.places.addr.load(Relaxed) + offset
    }

    /// The event behind a mark; `None` when the mark is passed beyond doubt.
    fn event_of(&self, mark: Mark) -> Option<EventId> {
        match mark {
            DONE => None,
            m if Tickets::is_mark(m) => None, // never waited for
            m if Borrowed::is_mark(m) => self.borrowed.event(m),
            event => Some(event),
        }
    }

    /// Whether a freed block still waits for this event of the caller.
    pub(crate) fn holds_event(&self, event: EventId) -> Result<bool> {
        self.borrowed.holds(&*self.device, event)
    }

    /// Fails for an event that the caller has destroyed.
    pub(crate) fn check_event(&self, event: EventId) -> Result<()> {
        self.borrowed.check(event)
    }

    /// The caller destroys an event. `true`: it goes later, when no freed block waits for it.
    pub(crate) fn keep_event(&self, event: EventId) -> Result<bool> {
        self.borrowed.keep(&*self.device, event)
    }

    /// Everything goes back: spare events, and the window.
    pub(crate) fn close(&self) -> Result<()> {
        self.borrowed.close(&*self.device);
        lock(&self.saved).clear();
        for e in std::mem::take(&mut *lock(&self.events)) {
            let _ = self.device.event_destroy(e); // a device that is ending may have lost it already
        }
        if self.maps && self.places.len.load(Relaxed) != 0 {
            self.places.len.store(0, Relaxed);
            return self.device.map_close();
        }
        Ok(())
    }
}

impl Backing for Arc<Supply> {
    fn create(&self, first: u32, count: u32) -> Result<()> {
        let (f, n) = (u64::from(first), u64::from(count));
        self.check_free(self.granule_at(count))?;
        self.call(self.device.granules_create(f, n))?;
        self.call(self.device.map(self.granule_at(first), f, n)).inspect_err(|_| {
            let _ = self.call(self.device.granules_release(f, n)); // as if they had never been made
        })?;
        self.segments.added(self.window_at(self.granule_at(first)), self.granule_at(count));
        Ok(())
    }

    fn release(&self, first: u32, count: u32) -> Result<()> {
        let (f, n) = (u64::from(first), u64::from(count));
        let gone = self.segments.going(self.window_at(self.granule_at(first)), self.granule_at(count));
        let unmapped = self.call(self.device.unmap(self.granule_at(first), self.granule_at(count)));
        let mut there = unmapped.is_err();
        let done = unmapped.and_then(|()| {
            self.call(self.device.granules_release(f, n)).inspect_err(|_| {
                there = self.call(self.device.map(self.granule_at(first), f, n)).is_ok(); // still the pond's
            })
        });
        if there {
            self.segments.back(&gone);
        }
        done
    }

    fn alias(&self, offset: u64, first: u32, count: u32) -> Result<()> {
        self.call(self.device.map(offset, u64::from(first), u64::from(count)))?;
        self.segments.added(self.window_at(offset), self.granule_at(count));
        Ok(())
    }

    fn unalias(&self, offset: u64, bytes: u64) -> Result<()> {
        let gone = self.segments.going(self.window_at(offset), bytes);
        self.call(self.device.unmap(offset, bytes)).inspect_err(|_| self.segments.back(&gone))
    }

    fn save(&self, first: u32, count: u32) -> Result<()> {
        let (addr, bytes) = (self.places.address(self.granule_at(first))?, self.granule_at(count));
        let mut to = Vec::<u8>::new();
        if to.try_reserve_exact(bytes as usize).is_err() {
            fail!(Code::OutOfMemory, "no {bytes} bytes of host memory to keep what sleeps");
        }
        to.resize(bytes as usize, 0);
        let at = to.as_mut_ptr().expose_provenance() as u64;
        self.device.copy(CopyKind::DeviceToHost, at, addr, bytes)?;
        lock(&self.saved).insert(first, to);
        Ok(())
    }

    fn load(&self, first: u32, count: u32) -> Result<()> {
        let (addr, bytes) = (self.places.address(self.granule_at(first))?, self.granule_at(count));
        // Taken out meanwhile: no lock is held while the device copies.
        let Some(from) = lock(&self.saved).remove(&first) else {
            return Err(Error::new(Code::Internal, "what slept was not kept"));
        };
        let at = from.as_ptr().expose_provenance() as u64;
        let done = self.device.copy(CopyKind::HostToDevice, addr, at, bytes);
        lock(&self.saved).insert(first, from);
        done
    }

    fn drop_saved(&self, first: u32, _: u32) {
        lock(&self.saved).remove(&first);
    }

    fn segment(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check_free(bytes)?;
        let addr = self.call(self.device.alloc(bytes))?;
        if addr == 0 {
            fail!(Code::OutOfMemory, "the device has no {bytes} bytes in one piece");
        }
        self.places.add(offset, addr, bytes);
        self.segments.added(addr, bytes);
        Ok(())
    }

    fn segment_release(&self, offset: u64, bytes: u64) -> Result<()> {
        let Some(addr) = self.places.remove(offset) else {
            return Err(Error::new(Code::Internal, "a segment without an address"));
        };
        let gone = self.segments.going(addr, bytes);
        // Still the pond's when the device refuses.
        self.call(self.device.free(addr, bytes)).inspect_err(|_| {
            self.places.add(offset, addr, bytes);
            self.segments.back(&gone);
        })
    }

    fn mark(&self, stream: u64) -> Result<Mark> {
        let spare = lock(&self.events).pop();
        let event = match spare {
            Some(e) => e,
            None => match self.device.event_create() {
                Ok(e) => e,
                Err(e) if e.code() == Code::Unsupported => {
                    self.device.stream_synchronize(stream)?;
                    return Ok(DONE);
                }
                Err(e) => return Err(e),
            },
        };
        let recorded = match stream {
            EVERY => self.device.event_record_all(event),
            s => match self.device.event_record(s, event) {
                // Its maker has ended it without a word. What it has queued may still run, and nobody else can tell.
                Err(e) if e.code() == Code::UnknownStream && self.device.has_foreign_streams() => {
                    self.device.event_record_all(event)
                }
                other => other,
            },
        };
        recorded.inspect_err(|_| lock(&self.events).push(event))?;
        Ok(event)
    }

    fn borrow_event(&self, event: u64) -> Result<Mark> {
        Ok(self.borrowed.borrow(&*self.device, event)?.unwrap_or(DONE))
    }

    fn capturing(&self, stream: u64) -> bool {
        // A device that fails here fails at the call that follows, too.
        match stream {
            EVERY => self.device.any_captured().unwrap_or(false),
            s => matches!(self.device.capture_id(s), Ok(Some(_))),
        }
    }

    fn passed(&self, mark: Mark) -> Result<bool> {
        match mark {
            DONE => Ok(true),
            m if Tickets::is_mark(m) => Ok(self.tickets.passed(m)),
            m if Borrowed::is_mark(m) => self.borrowed.passed(&*self.device, m),
            event => self.device.event_query(event),
        }
    }

    fn wait(&self, stream: u64, mark: Mark) -> Result<()> {
        self.event_of(mark).map_or(Ok(()), |e| self.device.stream_wait_event(stream, e))
    }

    fn sync(&self, mark: Mark) -> Result<()> {
        self.event_of(mark).map_or(Ok(()), |e| self.device.event_synchronize(e))
    }

    fn forget(&self, mark: Mark) {
        match mark {
            DONE => {}
            m if Tickets::is_mark(m) => self.tickets.forget(m),
            m if Borrowed::is_mark(m) => self.borrowed.forget(&*self.device, m),
            event => lock(&self.events).push(event),
        }
    }

    fn sync_all(&self) -> Result<()> {
        self.device.synchronize()
    }

    fn knows(&self, stream: u64) -> bool {
        stream == 0 || stream != EVERY && self.device.stream_exists(stream)
    }

    fn is_default(&self, stream: u64) -> bool {
        self.device.is_default(stream)
    }

    fn ordered_by(&self, stream: u64) -> bool {
        !self.device.is_per_thread(stream)
    }

    fn streams(&self, each: &mut dyn FnMut(u64)) {
        if self.device.has_foreign_streams() {
            return each(EVERY);
        }
        let all: Vec<StreamId> = lock(&self.streams).iter().copied().collect();
        all.into_iter().for_each(each);
    }
}
