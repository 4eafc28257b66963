//! A device type that stands in front of another one, lets calls fail as `fault.rs` says, and keeps the book of what
//! the library has from the device. A call that is made to fail never reaches the device.

use crate::fault;
use millpond::device::*;
use millpond::{Error, Result};
use std::any::Any;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

/// What the library has from the devices of the type.
#[derive(Default)]
pub struct Book {
    /// [B] device memory of device 0.
    pub bytes: u64,
    /// [B] host and unified memory.
    pub host: u64,
    pub streams: BTreeSet<StreamId>,
    pub events: BTreeSet<EventId>,
}

pub type Shared = Arc<Mutex<Book>>;

pub fn look(book: &Shared) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(|e| e.into_inner())
}

/// The type's name.
pub const NAME: &str = "faulty";

pub struct FaultyType {
    pub inner: Arc<dyn DeviceType>,
    pub book: Shared,
    /// Instead of the device's own.
    pub sizes: Option<fn(Sizes) -> Sizes>,
}

struct Faulty {
    inner: Arc<dyn Device>,
    book: Shared,
    sizes: Option<fn(Sizes) -> Sizes>,
}

fn pass(name: &'static str) -> Result<()> {
    match fault::refused(name) {
        Some(way) => Err(Error::new(way.code(), format!("the test wants {name} to fail"))),
        None => Ok(()),
    }
}

impl DeviceType for FaultyType {
    fn name(&self) -> &str {
        NAME
    }
    fn initialize(&self) -> Result<()> {
        self.inner.initialize()
    }
    fn finalize(&self) -> Result<()> {
        self.inner.finalize()
    }
    fn device_count(&self) -> Result<usize> {
        self.inner.device_count()
    }
    fn wake(&self) {
        self.inner.wake();
    }
    fn open(&self, ordinal: usize) -> Result<Arc<dyn Device>> {
        pass("open")?;
        let inner = self.inner.open(ordinal)?;
        Ok(Arc::new(Faulty { inner, book: self.book.clone(), sizes: self.sizes }))
    }
}

impl Faulty {
    fn book(&self) -> MutexGuard<'_, Book> {
        look(&self.book)
    }

    fn add(&self, bytes: u64) {
        if self.inner.ordinal() == 0 {
            self.book().bytes += bytes;
        }
    }

    fn take_off(&self, bytes: u64) {
        if self.inner.ordinal() == 0 {
            self.book().bytes -= bytes;
        }
    }
}

/// The device behind another one of ours.
fn behind(peer: &dyn Device) -> &dyn Device {
    (peer as &dyn Any).downcast_ref::<Faulty>().map_or(peer, |h| &*h.inner)
}

/// Hands calls on that can fail, and writes down what has come of them.
macro_rules! calls {
    ($($name:ident ( $($arg:ident : $type:ty),* ) -> $answer:ty $(, $self:ident, $done:ident => $note:expr)? ;)*) => {$(
        fn $name(&self, $($arg: $type),*) -> Result<$answer> {
            pass(stringify!($name))?;
            let answer = self.inner.$name($($arg),*)?;
            $(let ($self, $done) = (self, &answer); $note;)?
            Ok(answer)
        }
    )*};
}

/// Hands questions on that cannot fail.
macro_rules! questions {
    ($($name:ident ( $($arg:ident : $type:ty),* ) -> $answer:ty;)*) => {$(
        fn $name(&self, $($arg: $type),*) -> $answer {
            self.inner.$name($($arg),*)
        }
    )*};
}

impl Device for Faulty {
    questions! {
        ordinal() -> usize;
        caps() -> Caps;
        segments_grow() -> bool;
        versions() -> Versions;
        numa_node() -> Option<u32>;
        stream_exists(stream: StreamId) -> bool;
        has_own_addresses() -> bool;
        has_foreign_streams() -> bool;
        is_default(stream: StreamId) -> bool;
        stream_forgotten(stream: StreamId) -> ();
        is_per_thread(stream: StreamId) -> bool;
        has_driver_pool() -> bool;
        shares_by_granule() -> bool;
        make_for_fabric(on: bool) -> ();
        granule() -> u64;
        most_mappings() -> u64;
    }
    fn sizes(&self) -> Sizes {
        let own = self.inner.sizes();
        self.sizes.map_or(own, |change| change(own))
    }
    calls! {
        memory_info() -> MemoryInfo;
        set_current() -> ();
        synchronize() -> ();
        alloc(bytes: u64) -> u64, me, _d => me.add(bytes);
        free(addr: u64, bytes: u64) -> (), me, _d => me.take_off(bytes);
        host_alloc(bytes: u64) -> u64, me, _d => me.book().host += bytes;
        host_alloc_as(bytes: u64, wish: HostWish) -> u64, me, _d => me.book().host += bytes;
        host_free(addr: u64, bytes: u64) -> (), me, _d => me.book().host -= bytes;
        unified_alloc(bytes: u64) -> u64, me, _d => me.book().host += bytes;
        unified_free(addr: u64, bytes: u64) -> (), me, _d => me.book().host -= bytes;
        copy(kind: CopyKind, dst: u64, src: u64, bytes: u64) -> ();
        copy_async(stream: StreamId, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> ();
        memset(dst: u64, value: u8, bytes: u64) -> ();
        memset_async(stream: StreamId, dst: u64, value: u8, bytes: u64) -> ();
        stream_create() -> StreamId, me, s => me.book().streams.insert(*s);
        stream_destroy(stream: StreamId) -> (), me, _d => me.book().streams.remove(&stream);
        stream_owner(stream: StreamId) -> Whose;
        stream_query(stream: StreamId) -> bool;
        stream_synchronize(stream: StreamId) -> ();
        stream_wait_event(stream: StreamId, event: EventId) -> ();
        stream_callback(stream: StreamId, callback: StreamCallback) -> ();
        event_create() -> EventId, me, e => me.book().events.insert(*e);
        event_destroy(event: EventId) -> (), me, _d => me.book().events.remove(&event);
        event_record(stream: StreamId, event: EventId) -> ();
        event_record_theirs(stream: StreamId, event: EventId) -> ();
        event_query(event: EventId) -> bool;
        event_synchronize(event: EventId) -> ();
        capture_id(stream: StreamId) -> Option<u64>;
        any_captured() -> bool;
        event_record_all(event: EventId) -> ();
        pool_alloc(stream: StreamId, bytes: u64) -> u64;
        pool_free(addr: u64, stream: StreamId) -> ();
        pool_trim(keep: u64) -> ();
        pool_stats() -> DriverPoolStats;
        check_fabric(granules: &[(u64, u64)]) -> ();
        share_granules(granules: &[(u64, u64)], fabric: bool) -> share::Exported;
        share_segment(addr: u64) -> share::Exported;
        open_shared(memory: &share::Imported<'_>) -> u64;
        close_shared(addr: u64) -> ();
        granule_numbers() -> u64;
        map_window(bytes: u64) -> u64;
        map_close() -> (), me, _d => if me.inner.ordinal() == 0 { me.book().bytes = 0 };
        granules_create(first: u64, count: u64) -> (), me, _d => me.add(count * me.inner.granule());
        granules_release(first: u64, count: u64) -> (), me, _d => me.take_off(count * me.inner.granule());
        map(offset: u64, first: u64, count: u64) -> ();
        unmap(offset: u64, bytes: u64) -> ();
    }
    fn copy_peer(&self, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()> {
        pass("copy_peer")?;
        self.inner.copy_peer(behind(to), dst, src, bytes)
    }
    fn copy_peer_async(
        &self,
        stream: StreamId,
        to: &dyn Device,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()> {
        pass("copy_peer_async")?;
        self.inner.copy_peer_async(stream, behind(to), dst, src, bytes)
    }
    fn copy_from_peer_async(
        &self,
        stream: StreamId,
        from: &dyn Device,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()> {
        pass("copy_from_peer_async")?;
        self.inner.copy_from_peer_async(stream, behind(from), dst, src, bytes)
    }
    fn can_admit(&self, peer: &dyn Device) -> Result<bool> {
        pass("can_admit")?;
        self.inner.can_admit(behind(peer))
    }
    fn admit(&self, peer: &dyn Device) -> Result<()> {
        pass("admit")?;
        self.inner.admit(behind(peer))
    }
}
