//! One CUDA device as the rest of the library sees it.
//!
//! The NULL stream is CUDA's legacy default stream. Streams that are made here are blocking ones, so that
//! work on NULL waits for theirs and they for it. Blocking copies and fills are work on NULL, and have
//! arrived on return, also where the driver's own call promises less.

use super::CudaOptions;
use super::context::Primary;
use super::driver::{Driver, Physical};
use super::mapping::{GRANULE, Mapping};
use super::memory::{Blocks, Kind};
use super::streams::{self, LEGACY, PER_THREAD, Streams};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::{Mutex, lock};
use crate::device::share::{Exported, Imported};
use crate::device::{
    Caps, CopyKind, Device, DriverPoolStats, EventId, HostWish, MemoryInfo, Sizes, StreamCallback, StreamId,
    Versions, Whose,
};
use crate::fail;
use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUmemPool_attribute as OfPool};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Requests are rounded up to this; what the driver itself aligns to.
const MIN_CHUNK: u64 = 512;
/// [B] what is taken from the driver at once where granules cannot be mapped.
const SEGMENT: u64 = 64 << 20;
/// Without mapping, a block of more than this part of the device is not kept when it is freed.
const MAX_CHUNK_PART: u64 = 4;
/// The version of the API that this is written for, as the driver counts.
const API_VERSION: u64 = 12_080;

/// One device.
pub(super) struct CudaDevice {
    primary: Primary,
    ordinal: usize,
    /// Tells its callbacks from those of other devices.
    number: usize,
    total: u64,
    versions: Versions,
    unified: bool,
    blocks: Blocks,
    streams: Streams,
    mapping: Option<Mapping>,
    /// The driver's pool, made when it is first needed; 0: none. And what it keeps.
    pool: Mutex<u64>,
    has_driver_pool: bool,
    numa_node: Option<u32>,
    release_threshold: u64,
    /// The driver would not reserve the window: the device gives segments instead.
    refused: AtomicBool,
    /// Segments of other processes that are open: address -> how often.
    foreign: Mutex<BTreeMap<u64, u32>>,
    /// Whether this device's context reaches another device's memory, by ordinal.
    reaches: Mutex<BTreeMap<usize, bool>>,
}

/// The NUMA node of the host that the device is nearest to. Drivers before 12.2 do not tell; the system may.
fn numa_node(driver: Driver, device: i32) -> Option<u32> {
    let number = |which| driver.attribute(device, which).ok();
    if let Some(node) = number(Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID) {
        return u32::try_from(node).ok();
    }
    let domain = number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
    let bus = number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
    let slot = number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
    let file = format!("/sys/bus/pci/devices/{domain:04x}:{bus:02x}:{slot:02x}.0/numa_node");
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

impl CudaDevice {
    /// Opens a device: retains its primary context, which makes one where the process has none yet.
    pub(super) fn open(
        driver: Driver,
        ordinal: usize,
        born: u64,
        makers: streams::Makers,
        options: &CudaOptions,
    ) -> Result<CudaDevice> {
        static NUMBER: AtomicUsize = AtomicUsize::new(1);
        let device = driver.device(ordinal)?;
        let number = |which| driver.attribute(device, which);
        // What an older driver does not know is as good as absent.
        let has = |which| match number(which) {
            Err(e) if e.code() == Code::InvalidArgument => Ok(false),
            other => other.map(|n| n != 0),
        };
        let major = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let total = driver.total_memory(device)?;
        let versions = Versions {
            compute_capability: u64::try_from(major * 10 + minor).unwrap_or(0),
            runtime: API_VERSION,
            driver: u64::try_from(driver.version()?).unwrap_or(0),
        };
        let physical = Physical {
            device,
            exportable: has(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?,
            fabric: false, // asked for when it is wanted
            rdma: has(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?,
        };
        let maps = options.mapping
            && has(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?
            && matches!(driver.granularity(&physical)?, g if g != 0 && GRANULE.is_multiple_of(g));
        let has_driver_pool = has(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)?;
        let unified = has(Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)?;
        Ok(CudaDevice {
            // The last step that can fail: nothing needs to be undone.
            primary: Primary::retain(driver, device, born)?,
            ordinal,
            number: NUMBER.fetch_add(1, Relaxed),
            total,
            versions,
            unified,
            blocks: Blocks::new(driver),
            streams: Streams::new(driver, ordinal, makers),
            mapping: maps.then(|| Mapping::new(driver, physical, total)),
            refused: AtomicBool::new(false),
            pool: Mutex::new(0),
            numa_node: numa_node(driver, device),
            has_driver_pool,
            release_threshold: options.release_threshold,
            foreign: Mutex::default(),
            reaches: Mutex::default(),
        })
    }

    pub(super) fn primary(&self) -> &Primary {
        &self.primary
    }

    pub(super) fn is(&self, other: &CudaDevice) -> bool {
        self.ordinal == other.ordinal
    }

    pub(super) fn foreign_segments(&self) -> &Mutex<BTreeMap<u64, u32>> {
        &self.foreign
    }

    pub(super) fn driver(&self) -> Driver {
        self.primary.driver
    }

    pub(super) fn mapping(&self) -> Result<&Mapping> {
        let none = || Error::new(Code::Unsupported, "this CUDA device cannot map memory");
        self.mapping.as_ref().ok_or_else(none)
    }

    /// No call comes in any more.
    pub(super) fn shut(&self) {
        self.primary.shut();
    }

    /// Gives everything back, after `shut`. Goes on after a failure, and returns the first.
    pub(super) fn end(&self) -> Result<()> {
        self.primary
            .at_the_end(|| {
                let mut first = Ok(());
                let mut note = |r: Result<()>| {
                    if first.is_ok() {
                        first = r;
                    }
                };
                let ended = Error::new(Code::NotInitialized, "the device ended before the stream got there");
                streams::fail_callbacks(self.number, &ended);
                note(self.close_foreign_segments());
                note(self.blocks.clear());
                if let Some(m) = &self.mapping {
                    note(m.close_window());
                }
                let pool = std::mem::take(&mut *lock(&self.pool));
                if pool != 0 {
                    note(self.driver().pool_destroy(pool));
                }
                note(self.streams.clear());
                first
            })
            .and(self.driver().primary_release(self.primary.device))
    }

    fn pool(&self) -> Result<u64> {
        let mut pool = lock(&self.pool);
        if *pool == 0 {
            *pool = self.driver().pool_create(self.primary.device, self.release_threshold)?;
        }
        Ok(*pool)
    }

    /// The device that a peer copy goes to.
    fn peer<'a>(&self, to: &'a dyn Device) -> Result<&'a CudaDevice> {
        let other = (to as &dyn Any).downcast_ref::<CudaDevice>();
        other.ok_or_else(|| Error::new(Code::InvalidArgument, "a peer copy to a device of another type"))
    }

    /// Whether this device's context, which is current, can use the other's memory directly. Tried once.
    pub(super) fn reach(&self, to: &CudaDevice) -> bool {
        let reaches = || lock(&self.reaches);
        if let Some(&known) = reaches().get(&to.ordinal) {
            return known;
        }
        let driver = self.driver();
        let can = driver.can_access_peer(self.primary.device, to.primary.device).unwrap_or(false)
            && driver.enable_peer(to.primary.context).is_ok()
            && to.mapping.as_ref().is_none_or(|m| m.admit(self.primary.device).is_ok());
        reaches().insert(to.ordinal, can);
        can
    }

    /// It does after all.
    pub(super) fn note_reach(&self, to: &CudaDevice) {
        lock(&self.reaches).insert(to.ordinal, true);
    }

    fn queue_peer(&self, stream: StreamId, to: &CudaDevice, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let driver = self.driver();
        if to.ordinal == self.ordinal || self.reach(to) {
            return driver.copy_within_async(dst, src, bytes, stream);
        }
        driver.copy_peer_async((dst, to.primary.context), (src, self.primary.context), bytes, stream)
    }

    /// As `queue_peer`, but on a stream of this device, which the bytes go to.
    fn queue_from_peer(
        &self,
        stream: StreamId,
        from: &CudaDevice,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()> {
        let driver = self.driver();
        if from.ordinal == self.ordinal || self.reach(from) {
            return driver.copy_within_async(dst, src, bytes, stream);
        }
        driver.copy_peer_async((dst, self.primary.context), (src, from.primary.context), bytes, stream)
    }

    /// Waits for the context. A stream that is captured makes that impossible, and the driver would end the
    /// capture for the attempt, so it is not tried.
    fn rest(&self) -> Result<()> {
        self.not_captured()?;
        self.driver().context_synchronize().inspect_err(|e| {
            if e.code() == Code::Device {
                streams::fail_callbacks(self.number, e);
            }
        })
    }

    fn not_captured(&self) -> Result<()> {
        match self.streams.captured()? {
            None => Ok(()),
            Some(0) => Err(Error::new(
                Code::NotPermitted,
                "a blocking stream is being captured: the device cannot be waited for",
            )),
            Some(s) => {
                fail!(Code::NotPermitted, "stream {s:#x} is being captured: the device cannot be waited for")
            }
        }
    }

    /// Work on NULL would end the capture of a blocking stream: it is refused before.
    fn null_is_free(&self) -> Result<()> {
        if self.streams.capture_id(0)?.is_some() {
            return Err(Error::new(
                Code::NotPermitted,
                "a blocking stream is being captured: nothing can be done on the default stream",
            ));
        }
        Ok(())
    }

    fn known(&self, stream: StreamId) -> Result<()> {
        if self.streams.exists(stream) {
            return Ok(());
        }
        fail!(Code::UnknownStream, "stream {stream:#x} is not a stream of this device, or was destroyed")
    }
}

impl Device for CudaDevice {
    fn ordinal(&self) -> usize {
        self.ordinal
    }

    fn caps(&self) -> Caps {
        let mut caps = Caps::PINNED | Caps::STREAMS | Caps::CALLBACKS;
        caps.set(Caps::MAPPING, self.mapping.is_some() && !self.refused.load(Relaxed));
        caps.set(Caps::UNIFIED, self.unified);
        caps
    }

    fn sizes(&self) -> Sizes {
        // With mapping memory comes by the granule, whatever these say.
        let mapping = self.caps().contains(Caps::MAPPING);
        let segment = if mapping { self.total } else { SEGMENT.min(self.total) };
        Sizes {
            min_chunk: MIN_CHUNK,
            max_chunk: if mapping {
                self.total
            } else {
                segment.max(self.total / MAX_CHUNK_PART / GRANULE * GRANULE)
            },
            max_alloc: self.total,
            padding: 0,
            init_alloc: segment,
            realloc: segment,
        }
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let _in = self.primary.enter()?;
        let (free, total) = self.driver().memory_info()?;
        Ok(MemoryInfo { total, free })
    }

    fn versions(&self) -> Versions {
        self.versions
    }

    /// The one call that changes the thread's current context, to the device's primary one.
    fn set_current(&self) -> Result<()> {
        drop(self.primary.enter()?);
        self.driver().context_set(self.primary.context)
    }

    fn synchronize(&self) -> Result<()> {
        let _in = self.primary.enter()?;
        self.rest()
    }

    fn alloc(&self, bytes: u64) -> Result<u64> {
        let _in = self.primary.enter()?;
        if !bytes.is_multiple_of(MIN_CHUNK) {
            fail!(Code::InvalidArgument, "{bytes} bytes asked for: not a multiple of {MIN_CHUNK}");
        }
        self.blocks.alloc(Kind::Device, bytes, 0)
    }

    /// The driver waits for the device in it.
    fn free(&self, addr: u64, bytes: u64) -> Result<()> {
        let _in = self.primary.enter()?;
        self.blocks.free(&[Kind::Device], addr, bytes)
    }

    fn host_alloc(&self, bytes: u64) -> Result<u64> {
        let _in = self.primary.enter()?;
        self.blocks.alloc(Kind::Locked, bytes, 0)
    }

    fn host_alloc_as(&self, bytes: u64, wish: HostWish) -> Result<u64> {
        if !wish.register {
            return self.host_alloc(bytes);
        }
        let _in = self.primary.enter()?;
        self.blocks.alloc(Kind::Registered, bytes, wish.threads.max(1) as usize)
    }

    fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }

    fn host_free(&self, addr: u64, bytes: u64) -> Result<()> {
        let _in = self.primary.enter()?;
        self.blocks.free(&[Kind::Locked, Kind::Registered], addr, bytes)
    }

    fn unified_alloc(&self, bytes: u64) -> Result<u64> {
        let _in = self.primary.enter()?;
        if !self.unified {
            return Err(Error::new(Code::Unsupported, "this CUDA device has no managed memory"));
        }
        self.blocks.alloc(Kind::Managed, bytes, 0)
    }

    /// The driver waits for the device in it.
    fn unified_free(&self, addr: u64, bytes: u64) -> Result<()> {
        let _in = self.primary.enter()?;
        self.blocks.free(&[Kind::Managed], addr, bytes)
    }

    fn copy(&self, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let _in = self.primary.enter()?;
        if bytes == 0 {
            return Ok(());
        }
        self.null_is_free()?;
        let driver = self.driver();
        match kind {
            CopyKind::HostToDevice => driver.copy_in(dst, src, bytes)?,
            CopyKind::DeviceToHost => return driver.copy_out(dst, src, bytes),
            CopyKind::DeviceToDevice => driver.copy_within(dst, src, bytes)?,
        }
        // The driver may return when the source has been read.
        driver.stream_synchronize(0)
    }

    fn copy_async(&self, stream: StreamId, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let _in = self.primary.enter()?;
        self.known(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        let driver = self.driver();
        match kind {
            CopyKind::DeviceToHost => driver.copy_out_async(dst, src, bytes, stream),
            CopyKind::DeviceToDevice => driver.copy_within_async(dst, src, bytes, stream),
            CopyKind::HostToDevice => {
                driver.copy_in_async(dst, src, bytes, stream)?;
                // The driver may read pageable memory later, or not; a captured copy reads it at each replay.
                let stays = self.blocks.holds(src) || driver.is_known(src);
                if stays || driver.capture_id(stream)?.is_some() {
                    return Ok(());
                }
                driver.stream_synchronize(stream)
            }
        }
    }

    fn copy_peer(&self, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let to = self.peer(to)?;
        let _there = to.primary.enter()?;
        if bytes == 0 {
            return Ok(());
        }
        to.null_is_free()?;
        self.driver().stream_synchronize(0)?; // of the context that is current: the other's
        let _in = self.primary.enter()?;
        self.null_is_free()?;
        self.queue_peer(0, to, dst, src, bytes)?;
        self.driver().stream_synchronize(0)
    }

    fn copy_peer_async(
        &self,
        stream: StreamId,
        to: &dyn Device,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()> {
        let to = self.peer(to)?;
        let _there = to.primary.enter()?;
        let _in = self.primary.enter()?;
        self.known(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        self.queue_peer(stream, to, dst, src, bytes)
    }

    fn copy_from_peer_async(
        &self,
        stream: StreamId,
        from: &dyn Device,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()> {
        let from = self.peer(from)?;
        let _there = from.primary.enter()?;
        let _in = self.primary.enter()?;
        self.known(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        self.queue_from_peer(stream, from, dst, src, bytes)
    }

    fn memset(&self, dst: u64, value: u8, bytes: u64) -> Result<()> {
        let _in = self.primary.enter()?;
        if bytes == 0 {
            return Ok(());
        }
        self.null_is_free()?;
        self.driver().fill(dst, value, bytes)?;
        self.driver().stream_synchronize(0)
    }

    fn memset_async(&self, stream: StreamId, dst: u64, value: u8, bytes: u64) -> Result<()> {
        let _in = self.primary.enter()?;
        self.known(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        self.driver().fill_async(dst, value, bytes, stream)
    }

    fn stream_create(&self) -> Result<StreamId> {
        let _in = self.primary.enter()?;
        self.streams.create()
    }

    fn stream_destroy(&self, stream: StreamId) -> Result<()> {
        let _in = self.primary.enter()?;
        self.streams.destroy(stream)
    }

    fn stream_exists(&self, stream: StreamId) -> bool {
        self.streams.exists(stream)
    }

    fn stream_query(&self, stream: StreamId) -> Result<bool> {
        let _in = self.primary.enter()?;
        self.known(stream)?;
        self.driver().stream_query(stream)
    }

    fn stream_synchronize(&self, stream: StreamId) -> Result<()> {
        let _in = self.primary.enter()?;
        self.known(stream)?;
        self.driver().stream_synchronize(stream)
    }

    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<()> {
        let _in = self.primary.enter()?;
        self.known(stream)?;
        self.streams.check_awaited(event)?;
        self.driver().stream_wait(stream, event)
    }

    fn stream_callback(&self, stream: StreamId, callback: StreamCallback) -> Result<()> {
        let _in = self.primary.enter()?;
        self.known(stream)?;
        streams::queue_callback(self.driver(), self.number, stream, callback)
    }

    fn event_create(&self) -> Result<EventId> {
        let _in = self.primary.enter()?;
        self.streams.event_create()
    }

    fn event_destroy(&self, event: EventId) -> Result<()> {
        let _in = self.primary.enter()?;
        self.streams.event_destroy(event)
    }

    fn event_record(&self, stream: StreamId, event: EventId) -> Result<()> {
        let _in = self.primary.enter()?;
        self.known(stream)?;
        self.streams.check_event(event)?;
        self.driver().event_record(event, stream).map_err(|e| {
            // The driver does not say which of both handles it refuses.
            let alive = || self.driver().stream_context(stream) == Ok(self.primary.context);
            if e.code() == Code::UnknownStream && alive() {
                let what = "is not one of this device's context, or has ended";
                return Error::new(Code::UnknownEvent, format!("event {event:#x} {what} ({e})"));
            }
            e
        })
    }

    fn event_query(&self, event: EventId) -> Result<bool> {
        let _in = self.primary.enter()?;
        self.streams.check_event(event)?;
        self.driver().event_query(event)
    }

    fn event_synchronize(&self, event: EventId) -> Result<()> {
        let _in = self.primary.enter()?;
        self.streams.check_event(event)?;
        self.driver().event_synchronize(event)
    }

    fn capture_id(&self, stream: StreamId) -> Result<Option<u64>> {
        let _in = self.primary.enter()?;
        self.known(stream)?;
        self.streams.capture_id(stream)
    }

    fn any_captured(&self) -> Result<bool> {
        let _in = self.primary.enter()?;
        Ok(self.streams.captured()?.is_some())
    }

    fn is_default(&self, stream: StreamId) -> bool {
        stream <= LEGACY
    }

    fn stream_forgotten(&self, stream: StreamId) {
        self.streams.forget(stream);
    }

    fn has_foreign_streams(&self) -> bool {
        true
    }

    fn stream_owner(&self, stream: StreamId) -> Result<Whose> {
        self.streams.owner(stream, &self.primary)
    }

    fn event_record_theirs(&self, stream: StreamId, event: EventId) -> Result<()> {
        let _in = self.primary.enter()?;
        self.streams.record_theirs(stream, event, self.primary.context)
    }

    fn is_per_thread(&self, stream: StreamId) -> bool {
        stream == PER_THREAD
    }

    fn event_record_all(&self, event: EventId) -> Result<()> {
        let _in = self.primary.enter()?;
        self.not_captured()?;
        if self.driver().records_contexts() {
            return self.driver().context_record(self.primary.context, event);
        }
        // The event may have been recorded before; that is over then too.
        self.rest()
    }

    fn has_driver_pool(&self) -> bool {
        self.has_driver_pool
    }

    fn pool_alloc(&self, stream: StreamId, bytes: u64) -> Result<u64> {
        let _in = self.primary.enter()?;
        self.known(stream)?;
        if self.is_default(stream) {
            self.null_is_free()?;
        }
        self.driver().pool_alloc(self.pool()?, stream, bytes)
    }

    fn pool_free(&self, addr: u64, stream: StreamId) -> Result<()> {
        let _in = self.primary.enter()?;
        if self.is_default(stream) {
            self.null_is_free()?;
        }
        self.driver().pool_free(addr, stream)
    }

    fn pool_trim(&self, keep: u64) -> Result<()> {
        let _in = self.primary.enter()?;
        self.driver().pool_trim(self.pool()?, keep)
    }

    fn pool_stats(&self) -> Result<DriverPoolStats> {
        let _in = self.primary.enter()?;
        let pool = self.pool()?;
        let number = |which| self.driver().pool_number(pool, which);
        Ok(DriverPoolStats {
            reserved: number(OfPool::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            reserved_peak: number(OfPool::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
            used: number(OfPool::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            used_peak: number(OfPool::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
        })
    }

    fn shares_by_granule(&self) -> bool {
        true
    }

    fn make_for_fabric(&self, on: bool) {
        if let Some(m) = &self.mapping {
            m.set_fabric(on);
        }
    }

    fn check_fabric(&self, granules: &[(u64, u64)]) -> Result<()> {
        let _in = self.primary.enter()?;
        self.mapping()?.check_fabric(granules)
    }

    fn share_granules(&self, granules: &[(u64, u64)], fabric: bool) -> Result<Exported> {
        let _in = self.primary.enter()?;
        if fabric { self.export_fabric(granules) } else { self.export_granules(granules) }
    }

    fn share_segment(&self, addr: u64) -> Result<Exported> {
        let _in = self.primary.enter()?;
        self.export_segment(addr)
    }

    fn open_shared(&self, memory: &Imported<'_>) -> Result<u64> {
        let _in = self.primary.enter()?;
        self.open_foreign(memory)
    }

    fn close_shared(&self, addr: u64) -> Result<()> {
        let _in = self.primary.enter()?;
        self.rest()?;
        self.close_foreign(addr)
    }

    fn can_admit(&self, peer: &dyn Device) -> Result<bool> {
        let _in = self.primary.enter()?;
        match self.peer(peer) {
            Ok(peer) => self.could_admit(peer),
            Err(_) => Ok(false),
        }
    }

    fn admit(&self, peer: &dyn Device) -> Result<()> {
        let peer = self.peer(peer)?;
        let _here = self.primary.enter()?;
        let _in = peer.primary.enter()?;
        self.admit_peer(peer)
    }

    fn granule_numbers(&self) -> Result<u64> {
        Ok(self.mapping()?.numbers())
    }

    fn map_window(&self, bytes: u64) -> Result<u64> {
        let _in = self.primary.enter()?;
        let opened = self.mapping()?.open_window(bytes);
        self.refused.store(opened.is_err(), Relaxed);
        opened
    }

    /// Waits for all work queued on the device, which may still use the memory. Completes on a failed
    /// device too.
    fn map_close(&self) -> Result<()> {
        let _in = self.primary.enter()?;
        let _ = self.rest();
        self.mapping()?.close_window()
    }

    fn granules_create(&self, first: u64, count: u64) -> Result<()> {
        let _in = self.primary.enter()?;
        self.mapping()?.create(first, count)
    }

    fn granules_release(&self, first: u64, count: u64) -> Result<()> {
        let _in = self.primary.enter()?;
        self.mapping()?.release(first, count)
    }

    fn map(&self, offset: u64, first: u64, count: u64) -> Result<()> {
        let _in = self.primary.enter()?;
        self.mapping()?.map(offset, first, count)
    }

    fn unmap(&self, offset: u64, bytes: u64) -> Result<()> {
        let _in = self.primary.enter()?;
        self.mapping()?.unmap(offset, bytes)
    }
}
