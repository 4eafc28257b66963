//! One CUDA device as the rest of the library sees it.
//!
//! The NULL stream is CUDA's legacy default stream. Streams that are created here are blocking ones unless the caller
//! wants others, so that work on NULL waits for their work and theirs for it. Blocking copies and fills are work on NULL
//! after a wait for the context, since not all streams are ordered with NULL; they have arrived on return, even where the
//! driver's own call promises less.

use super::callbacks;
use super::card::Card;
use super::common::{CudaOptions, Family};
use super::context::Primary;
use super::driver::{Driver, Physical};
use super::granted::Granted;
use super::granules::Granules;
use super::mapping::Mapping;
use super::memory::{Blocks, Kind};
use super::peers::Peers;
use super::pool::Pool;
use super::sharing::{Reach, Sharing};
use crate::base::boxed::text_if_it_fits;
use crate::base::error::{Code, Error, Result};
use crate::device::{
    self, Caps, CopyKind, Device, DriverPool, ExternalStreams, Facts, GRANULE, HostWish, Identity,
    MemoryInfo, Registration, Sizes, StreamId, Streams, TieSizes, Unified, Versions,
};
use crate::fail;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use std::sync::Arc;

/// [B] requests are rounded up to this, the driver's own alignment.
const MIN_CHUNK: u64 = 512;
/// [B] what is taken from the driver at once where granules cannot be mapped.
const SEGMENT: u64 = 64 << 20;
/// Without mapping, a block above 1 / this of the device is not kept when it is freed.
const MAX_CHUNK_PART: u64 = 4;
/// The API version that this is written for, as the driver counts.
const API_VERSION: u64 = 12_080;

/// [B] what is left to the driver and its libraries by default on devices of at least `LARGE_CARD`: modules are loaded
/// when their first kernel is launched (lazy loading, the default since CUDA 12.2), cuBLAS takes workspaces (32 MiB on
/// Hopper, by its documentation), and the first `printf` or `malloc` of a kernel takes a heap.
const HEADROOM: u64 = 128 << 20;
const LARGE_CARD: u64 = 4 << 30; // [B]
/// [B] of the largest handles of mapped memory there, unless the options say otherwise; on smaller devices each granule has
/// its own. Measured: docs/decisions/large-handles.md.
const LARGE_HANDLE: u64 = 64 << 20;

/// One device.
pub(super) struct CudaDevice {
    pub(super) card: Arc<Card>,
    total: u64,
    versions: Versions,
    facts: Facts,
    pub(super) blocks: Blocks,
    has_managed: bool,
    pub(super) moves_managed: bool, // while host and device use it
    granules: Option<Arc<Granules>>,
    mapping: Option<Arc<Mapping>>,
    granted: Granted, // what kind of memory is mapped, and why no other
    pool: Option<Arc<Pool>>,
    sharing: Sharing,
    peers: Arc<Peers>,
}

/// The host's NUMA node nearest to the device. Drivers before 12.2 do not report it; the system may.
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
    /// Opens a device: retains its primary context, which creates one if the process has none yet.
    pub(super) fn open(
        driver: Driver,
        ordinal: usize,
        family: &Family,
        options: &CudaOptions,
    ) -> Result<CudaDevice> {
        let device = driver.device(ordinal)?;
        let number = |which| driver.attribute(device, which);
        // An attribute that an older driver does not know counts as absent.
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
            fabric: false, // determined when it is first wanted
            rdma: has(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?,
        };
        let no_mapping = if !options.mapping {
            "it is switched off (MILLPOND_CUDA_MAPPING=0)"
        } else if !has(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)? {
            "the driver has no virtual memory management for this device"
        } else {
            ""
        };
        let has_pool = has(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)?;
        let has_managed = has(Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)?;
        let concurrent = has(Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)?;
        let moves_managed = concurrent && driver.moves_managed();
        let rdma = has(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)?;
        // The last step that can fail, so nothing needs to be undone.
        let primary = Primary::retain(driver, device, family.born)?;
        let card = Arc::new(Card::new(primary, ordinal, family.makers.clone()));
        let promised = Granted::promised(physical, no_mapping);
        // A context that cannot be entered shows nothing of its memory; the first call will tell.
        let granted = match card.enter() {
            Ok(_in) => promised.tried(driver),
            Err(_) => promised,
        };
        let maps = granted.no_mapping.is_empty();
        let usual = if total >= LARGE_CARD { LARGE_HANDLE } else { 0 };
        let handle = options.tie.unwrap_or(usual).min(total);
        let growth = options.tie_growth.unwrap_or(4 * handle);
        let tie = TieSizes { most: (handle / GRANULE) as u32, request: (growth / GRANULE) as u32 };
        let granules = maps.then(|| Arc::new(Granules::new(driver, &granted, total)));
        let pool = has_pool.then(|| Arc::new(Pool::new(card.clone(), options.release_threshold)));
        let mapping = granules.clone().map(|g| Arc::new(Mapping::new(card.clone(), g, tie)));
        let reach = Reach {
            exportable: granted.physical.exportable,
            mapped_by_bus: granted.physical.rdma,
            segments_by_bus: rdma,
        };
        Ok(CudaDevice {
            total,
            versions,
            facts: Facts {
                identity: Identity {
                    name: driver.name(device).unwrap_or_default(),
                    uuid: driver.uuid(device).ok(),
                    pci_bus_id: driver.pci_bus_id(device).unwrap_or_default(),
                },
                numa_node: numa_node(driver, device),
                pinned: true,
                headroom: if total >= LARGE_CARD { HEADROOM } else { 0 },
                ..Facts::default()
            },
            blocks: Blocks::new(driver),
            has_managed,
            moves_managed,
            sharing: Sharing::new(card.clone(), granules.clone(), mapping.clone(), reach),
            mapping,
            granted,
            peers: Peers::new(card.clone(), granules.clone(), pool.clone(), family.siblings.clone()),
            pool,
            granules,
            card,
        })
    }

    /// Lets no further call in.
    pub(super) fn shut(&self) {
        self.card.primary.shut();
    }

    /// Gives everything back, after `shut`. Continues after a failure, and returns the first.
    pub(super) fn end(&self) -> Result<()> {
        let give_back = || {
            let ended = Error::new(Code::NotInitialized, "the device ended before the stream got there");
            callbacks::fail(self.card.number, &ended);
            let mut first = self.sharing.clear();
            first = first.and(self.blocks.clear());
            first = first.and(self.granules.as_ref().map_or(Ok(()), |g| g.close_window()));
            first = first.and(self.pool.as_ref().map_or(Ok(()), |p| p.clear()));
            first.and(self.card.handles.clear())
        };
        let primary = &self.card.primary;
        let given = primary.at_the_end(give_back);
        given.and(self.card.driver().primary_release(primary.device))
    }
}

impl Device for CudaDevice {
    fn ordinal(&self) -> usize {
        self.card.ordinal
    }

    fn facts(&self) -> Facts {
        // Who sets a limit does not read the texts.
        let Identity { name, uuid, pci_bus_id } = &self.facts.identity;
        let identity =
            Identity { name: text_if_it_fits(name), uuid: *uuid, pci_bus_id: text_if_it_fits(pci_bus_id) };
        Facts { identity, ..self.facts }
    }

    fn lack(&self, cap: Caps) -> String {
        let why = match cap {
            Caps::MAPPING if self.mapping.is_some() => {
                "the driver refused to reserve the window of addresses"
            }
            Caps::MAPPING => &self.granted.no_mapping,
            Caps::EXPORT => &self.granted.no_export,
            Caps::RDMA if self.mapping().is_some() => &self.granted.no_rdma,
            Caps::RDMA => "the device has no GPUDirect RDMA",
            Caps::HOST_ACCESS => "the host reaches the device's memory by copies only",
            Caps::UNIFIED => "the driver has no managed memory for this device",
            _ => "the driver has none",
        };
        why.to_owned()
    }

    fn sizes(&self) -> Sizes {
        // With mapping, memory is taken by the granule, whatever these sizes say.
        let mapping = self.mapping().is_some();
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
        let _in = self.card.enter()?;
        let (free, total) = self.card.driver().memory_info()?;
        Ok(MemoryInfo { total, free })
    }

    fn versions(&self) -> Versions {
        self.versions
    }

    /// The only call that changes the thread's current context for good: to the device's primary one.
    fn set_current(&self) -> Result<()> {
        drop(self.card.enter()?);
        self.card.driver().context_set(self.card.primary.context)
    }

    fn synchronize(&self) -> Result<()> {
        let _in = self.card.enter()?;
        self.card.rest()
    }

    fn alloc(&self, bytes: u64) -> Result<u64> {
        let _in = self.card.enter()?;
        if !bytes.is_multiple_of(MIN_CHUNK) {
            fail!(Code::InvalidArgument, "{bytes} bytes asked for: not a multiple of {MIN_CHUNK}");
        }
        self.blocks.alloc(Kind::Device, bytes, 0)
    }

    /// The driver's free waits for the device.
    fn free(&self, addr: u64, bytes: u64) -> Result<()> {
        let _in = self.card.enter()?;
        self.blocks.free(&[Kind::Device], addr, bytes)
    }

    fn host_alloc(&self, bytes: u64, wish: HostWish) -> Result<u64> {
        let _in = self.card.enter()?;
        let kind = if wish.register { Kind::Registered } else { Kind::Locked };
        self.blocks.alloc(kind, bytes, wish.threads.max(1) as usize)
    }

    fn host_free(&self, addr: u64, bytes: u64) -> Result<()> {
        let _in = self.card.enter()?;
        self.blocks.free(&[Kind::Locked, Kind::Registered], addr, bytes)
    }

    fn copy(&self, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        self.copy_now(kind, dst, src, bytes)
    }

    fn copy_async(&self, stream: StreamId, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        self.queue_copy(stream, kind, dst, src, bytes)
    }

    fn memset(&self, dst: u64, value: u8, bytes: u64) -> Result<()> {
        self.fill_now(dst, value, bytes)
    }

    fn memset_async(&self, stream: StreamId, dst: u64, value: u8, bytes: u64) -> Result<()> {
        self.queue_fill(stream, dst, value, bytes)
    }

    fn streams(&self) -> &dyn Streams {
        &*self.card
    }

    fn external_streams(&self) -> Option<&dyn ExternalStreams> {
        Some(&*self.card)
    }

    fn mapping(&self) -> Option<&dyn device::Mapping> {
        self.mapping.as_ref().filter(|m| m.works()).map(|m| &**m as _)
    }

    fn unified(&self) -> Option<&dyn Unified> {
        self.has_managed.then_some(self)
    }

    fn registration(&self) -> Option<&dyn Registration> {
        Some(self)
    }

    fn driver_pool(&self) -> Option<&dyn DriverPool> {
        self.pool.as_ref().map(|p| &**p as _)
    }

    fn sharing(&self) -> Option<&dyn device::Sharing> {
        Some(&self.sharing)
    }

    fn peers(&self) -> Option<&dyn device::Peers> {
        Some(&*self.peers)
    }
}
