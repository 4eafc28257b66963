//! A device type in front of another one, which hands every call on after calling a hook. The hook alone decides what
//! happens to a call: it can hold it, make it fail, or count it.
//!
//! Calls have names here: those of `Device`, and of the facets with the facet before them where that would be unclear
//! (`stream_create`, `pool_alloc`, `granules_create`, `map_window`).

use millpond::Result;
use millpond::device::sharing::{DmaBufs, Exported, Fabric, Imported, Sharing};
use millpond::device::*;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What happens at each call.
pub trait Hook: Send + Sync + 'static {
    /// A call that can fail: the hook makes it, or does not.
    fn pass<T>(&self, _name: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        call()
    }
    /// A question, which cannot fail.
    fn look<T>(&self, _name: &'static str, call: impl FnOnce() -> T) -> T {
        call()
    }
    /// A call has succeeded that took or gave something back: so many bytes, or a stream or event.
    fn done(&self, _ordinal: usize, _name: &'static str, _what: u64) {}
    /// The sizes that the device shall tell.
    fn sizes(&self, own: Sizes) -> Sizes {
        own
    }
}

pub struct SeamType<H> {
    pub name: &'static str,
    pub inner: Arc<dyn DeviceType>,
    pub hook: Arc<H>,
}

struct Seam<H> {
    inner: Arc<dyn Device>,
    hook: Arc<H>,
}

impl<H: Hook> DeviceType for SeamType<H> {
    fn name(&self) -> &str {
        self.name
    }
    fn initialize(&self) -> Result<()> {
        self.inner.initialize()
    }
    fn finalize(&self) -> Result<()> {
        self.hook.pass("finalize", || self.inner.finalize())
    }
    fn device_count(&self) -> Result<usize> {
        self.inner.device_count()
    }
    fn wake(&self) {
        self.inner.wake();
    }
    fn open(&self, ordinal: usize) -> Result<Arc<dyn Device>> {
        let inner = self.hook.pass("open", || self.inner.open(ordinal))?;
        Ok(Arc::new(Seam { inner, hook: self.hook.clone() }))
    }
}

impl<H: Hook> Seam<H> {
    fn device(&self) -> &dyn Device {
        &*self.inner
    }
    fn in_unified(&self) -> &dyn Unified {
        self.inner.unified().unwrap()
    }
    fn in_registration(&self) -> &dyn Registration {
        self.inner.registration().unwrap()
    }
    fn in_streams(&self) -> &dyn Streams {
        self.inner.streams()
    }
    fn in_timing(&self) -> &dyn Timing {
        self.in_streams().timing().unwrap()
    }
    fn in_external(&self) -> &dyn ExternalStreams {
        self.inner.external_streams().unwrap()
    }
    fn in_pool(&self) -> &dyn DriverPool {
        self.inner.driver_pool().unwrap()
    }
    fn in_mapping(&self) -> &dyn Mapping {
        self.inner.mapping().unwrap()
    }
    fn in_together(&self) -> &dyn MapsTogether {
        self.in_mapping().together().unwrap()
    }
    fn in_sharing(&self) -> &dyn Sharing {
        self.inner.sharing().unwrap()
    }
    fn in_dma_bufs(&self) -> &dyn DmaBufs {
        self.in_sharing().dma_bufs().unwrap()
    }
    fn in_fabric(&self) -> &dyn Fabric {
        self.in_sharing().fabric().unwrap()
    }
    fn in_peers(&self) -> &dyn Peers {
        self.inner.peers().unwrap()
    }
}

/// Hands calls on: `name as method(arguments) -> answer`, and what is noted of a success, where anything is.
macro_rules! calls {
    ($at:ident; $($name:ident as $method:ident ( $($arg:ident : $type:ty),* ) -> $answer:ty
        $(, |$got:ident| $what:expr)? ;)*) => {$(
        fn $method(&self, $($arg: $type),*) -> Result<$answer> {
            let answer = self.hook.pass(stringify!($name), || self.$at().$method($($arg),*))?;
            $(
                let $got = &answer;
                self.hook.done(self.inner.ordinal(), stringify!($name), $what);
            )?
            Ok(answer)
        }
    )*};
}

macro_rules! questions {
    ($at:ident; $($name:ident as $method:ident ( $($arg:ident : $type:ty),* ) -> $answer:ty;)*) => {$(
        fn $method(&self, $($arg: $type),*) -> $answer {
            self.hook.look(stringify!($name), || self.$at().$method($($arg),*))
        }
    )*};
}

impl<H: Hook> Device for Seam<H> {
    questions! { device;
        ordinal as ordinal() -> usize;
        facts as facts() -> Facts;
        lack as lack(cap: Caps) -> String;
        versions as versions() -> Versions;
    }
    fn sizes(&self) -> Sizes {
        self.hook.sizes(self.hook.look("sizes", || self.inner.sizes()))
    }
    calls! { device;
        memory_info as memory_info() -> MemoryInfo;
        set_current as set_current() -> ();
        synchronize as synchronize() -> ();
        alloc as alloc(bytes: u64) -> u64, |_at| bytes;
        free as free(addr: u64, bytes: u64) -> (), |_done| bytes;
        host_alloc as host_alloc(bytes: u64, wish: HostWish) -> u64, |_at| bytes;
        host_free as host_free(addr: u64, bytes: u64) -> (), |_done| bytes;
        copy as copy(kind: CopyKind, dst: u64, src: u64, bytes: u64) -> ();
        copy_async as copy_async(stream: StreamId, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> ();
        memset as memset(dst: u64, value: u8, bytes: u64) -> ();
        memset_async as memset_async(stream: StreamId, dst: u64, value: u8, bytes: u64) -> ();
    }
    fn streams(&self) -> &dyn Streams {
        self
    }
    fn external_streams(&self) -> Option<&dyn ExternalStreams> {
        self.inner.external_streams().map(|_| self as _)
    }
    fn mapping(&self) -> Option<&dyn Mapping> {
        self.inner.mapping().map(|_| self as _)
    }
    fn unified(&self) -> Option<&dyn Unified> {
        self.inner.unified().map(|_| self as _)
    }
    fn registration(&self) -> Option<&dyn Registration> {
        self.inner.registration().map(|_| self as _)
    }
    fn driver_pool(&self) -> Option<&dyn DriverPool> {
        self.inner.driver_pool().map(|_| self as _)
    }
    fn sharing(&self) -> Option<&dyn Sharing> {
        self.inner.sharing().map(|_| self as _)
    }
    fn peers(&self) -> Option<&dyn Peers> {
        self.inner.peers().map(|_| self as _)
    }
}

impl<H: Hook> Unified for Seam<H> {
    calls! { in_unified;
        unified_alloc as alloc(bytes: u64) -> u64, |_at| bytes;
        unified_free as free(addr: u64, bytes: u64) -> (), |_done| bytes;
        unified_prefetch as prefetch(stream: StreamId, addr: u64, bytes: u64, place: UnifiedPlace) -> ();
        unified_advise as advise(addr: u64, bytes: u64, advice: Advice, place: UnifiedPlace) -> ();
    }
}

impl<H: Hook> Registration for Seam<H> {
    calls! { in_registration;
        host_register as register(addr: u64, bytes: u64) -> ();
        host_unregister as unregister(addr: u64) -> ();
    }
}

impl<H: Hook> Streams for Seam<H> {
    questions! { in_streams;
        stream_exists as exists(stream: StreamId) -> bool;
        streams_idle as idle() -> bool;
        recording_waits as recording_waits() -> bool;
        awaiting_waits as awaiting_waits() -> bool;
        streams_can_be_created as can_create() -> bool;
    }
    calls! { in_streams;
        stream_create as create() -> StreamId, |stream| *stream;
        stream_priorities as priorities() -> (i32, i32);
        stream_create_with as create_with(kind: StreamKind) -> StreamId, |stream| *stream;
        stream_destroy as destroy(stream: StreamId) -> (), |_done| stream;
        stream_query as query(stream: StreamId) -> bool;
        stream_synchronize as synchronize(stream: StreamId) -> ();
        stream_wait_event as wait_event(stream: StreamId, event: EventId) -> ();
        stream_callback as callback(stream: StreamId, callback: StreamCallback) -> ();
        event_create as event_create() -> EventId, |event| *event;
        event_destroy as event_destroy(event: EventId) -> (), |_done| event;
        event_record as event_record(stream: StreamId, event: EventId) -> ();
        event_query as event_query(event: EventId) -> bool;
        event_synchronize as event_synchronize(event: EventId) -> ();
    }
    fn timing(&self) -> Option<&dyn Timing> {
        self.in_streams().timing().map(|_| self as _)
    }
}

impl<H: Hook> Timing for Seam<H> {
    calls! { in_timing;
        event_create_timed as create_event() -> EventId, |event| *event;
        event_elapsed as elapsed(start: EventId, end: EventId) -> f32;
    }
}

impl<H: Hook> ExternalStreams for Seam<H> {
    questions! { in_external;
        is_default as is_default(stream: StreamId) -> bool;
        is_per_thread as is_per_thread(stream: StreamId) -> bool;
        stream_forgotten as forget(stream: StreamId) -> ();
        stream_watched as watch(stream: StreamId, captured: bool) -> ();
        streams_announced as set_announced(announced: bool) -> ();
        stream_lasts as lasts(stream: StreamId) -> bool;
        stream_lasts_elsewhere as lasts_elsewhere(stream: StreamId) -> bool;
        stream_created as note_created(stream: StreamId) -> ();
    }
    calls! { in_external;
        stream_owner as owner(stream: StreamId) -> Whose;
        event_record_theirs as record_theirs(stream: StreamId, event: EventId, named: bool) -> ();
        event_record_all as record_all(event: EventId, may_wait: bool) -> ();
        capture_id as capture_id(stream: StreamId) -> Option<u64>;
        any_captured as any_captured() -> bool;
    }
}

impl<H: Hook> DriverPool for Seam<H> {
    calls! { in_pool;
        pool_alloc as alloc(stream: StreamId, bytes: u64) -> u64;
        pool_free as free(addr: u64, stream: StreamId) -> ();
        pool_trim as trim(keep: u64) -> ();
        pool_stats as stats() -> DriverPoolStats;
    }
}

impl<H: Hook> Mapping for Seam<H> {
    questions! { in_mapping;
        granule_numbers as numbers() -> u64;
        most_mappings as most_mappings() -> u64;
        tie_sizes as tie_sizes() -> TieSizes;
    }
    calls! { in_mapping;
        map_window as open_window(bytes: u64) -> u64;
        map_close as close_window() -> (), |_done| 0;
        granules_create as create(first: u64, count: u64) -> (), |_done| count * GRANULE;
        granules_create as create_tied(first: u64, count: u64, each: u64) -> (), |_done| count * GRANULE;
        granules_release as release(first: u64, count: u64) -> (), |_done| count * GRANULE;
        map as map(offset: u64, first: u64, count: u64) -> ();
        unmap as unmap(offset: u64, bytes: u64) -> ();
    }
    fn together(&self) -> Option<&dyn MapsTogether> {
        self.in_mapping().together().map(|_| self as _)
    }
}

impl<H: Hook> MapsTogether for Seam<H> {
    calls! { in_together;
        map_runs as map_runs(offset: u64, runs: &[Run]) -> ();
    }
}

impl<H: Hook> Sharing for Seam<H> {
    questions! { in_sharing;
        shares_by_granule as by_granule() -> bool;
        exports as exports() -> bool;
        reached_by_bus as reached_by_bus() -> bool;
    }
    calls! { in_sharing;
        share_whole as whole(granules: &[Run]) -> (u64, Vec<Run>);
        share_granules as granules(granules: &[Run]) -> Exported;
        share_segment as segment(addr: u64) -> Exported;
        open_shared as open(memory: &Imported<'_>) -> u64;
        close_shared as close(addr: u64) -> ();
    }
    fn dma_bufs(&self) -> Option<&dyn DmaBufs> {
        self.in_sharing().dma_bufs().map(|_| self as _)
    }
    fn fabric(&self) -> Option<&dyn Fabric> {
        self.in_sharing().fabric().map(|_| self as _)
    }
}

impl<H: Hook> DmaBufs for Seam<H> {
    calls! { in_dma_bufs;
        share_dma_buf as export(addr: u64, bytes: u64) -> OwnedFd;
    }
}

impl<H: Hook> Fabric for Seam<H> {
    questions! { in_fabric;
        make_for_fabric as make(on: bool) -> ();
    }
    calls! { in_fabric;
        check_fabric as check(granules: &[Run]) -> ();
        share_granules as granules(granules: &[Run]) -> Exported;
    }
}

impl<H: Hook> Peers for Seam<H> {
    calls! { in_peers;
        copy_peer as copy(to: &dyn Device, dst: u64, src: u64, bytes: u64) -> ();
        copy_peer_async as copy_async(stream: StreamId, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> ();
        copy_from_peer_async as copy_from_async(
            stream: StreamId, from: &dyn Device, dst: u64, src: u64, bytes: u64
        ) -> ();
        can_admit as can_admit(peer: &dyn Device) -> bool;
        admit as admit(peer: &dyn Device) -> ();
        invite as invite(peer: &dyn Device) -> ();
    }
}
