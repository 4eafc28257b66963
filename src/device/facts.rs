//! What a device says of itself.

#[cfg(doc)]
use super::{Device, Sharing, Streams};

bitflags::bitflags! {
    /// What a device can do beyond the required calls, as users are told: the facets and the facts of a device say it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Caps: u32 {
        /// Physical granules are separate from addresses: [`Device::mapping`] is present.
        const MAPPING = 1;
        /// The host can read and write device memory at its device address: [`Facts::host_access`].
        const HOST_ACCESS = 1 << 1;
        /// [`Device::unified`] is present.
        const UNIFIED = 1 << 2;
        /// `host_alloc` returns page-locked memory (as far as the system's limit allows): [`Facts::pinned`].
        const PINNED = 1 << 3;
        /// Streams can be created: [`Streams::can_create`]. Without this all work runs on the default stream, and calls
        /// block until it is done.
        const STREAMS = 1 << 4;
        /// Stream callbacks work: on every device.
        const CALLBACKS = 1 << 5;
        /// Blocks can be shared with other processes: [`Sharing::exports`].
        const EXPORT = 1 << 6;
        /// The driver lets other devices on the bus, such as network cards, reach pooled memory directly:
        /// [`Sharing::reached_by_bus`].
        const RDMA = 1 << 7;
    }
}

/// The sizes that govern how memory is taken from the device. All in bytes; only `padding` may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Requests are rounded up to a multiple of this; addresses are aligned to it.
    pub min_chunk: u64,
    /// A request that takes more than this goes to the device directly and is not pooled.
    pub max_chunk: u64,
    /// The library never takes more than this from the device in total.
    pub max_alloc: u64,
    /// Added to each request before rounding.
    pub padding: u64,
    /// The size of the first chunk that is taken from the device.
    pub init_alloc: u64,
    /// The size of each later chunk.
    pub realloc: u64,
}

/// Total and free bytes of a device, as it reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes the device has; 0 if it does not say.
    pub total: u64,
    /// Bytes that could be taken from it now. Means nothing where `total` is 0.
    pub free: u64,
}

impl MemoryInfo {
    /// Of a device that does not say.
    pub const UNKNOWN: MemoryInfo = MemoryInfo { total: 0, free: 0 };

    /// Itself, if the device has said how much memory it has.
    pub fn known(self) -> Option<MemoryInfo> {
        (self.total != 0).then_some(self)
    }
}

/// The three version numbers that a custom runtime reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// Compute capability, `major * 10 + minor`.
    pub compute_capability: u64,
    /// Version of the runtime library.
    pub runtime: u64,
    /// Version of the driver.
    pub driver: u64,
}

/// Which device of the machine it is, as other libraries name it. Empty where it is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The product's name, for a person.
    pub name: String,
    /// The same in every process and after each start, unlike an ordinal.
    pub uuid: Option<[u8; 16]>,
    /// Its place on the PCI bus, as in `0000:3b:00.0`.
    pub pci_bus_id: String,
}

/// What a device is. It does not change while the device is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Which device of the machine it is, as far as the device knows it.
    pub identity: Identity,
    /// The NUMA node nearest to the device, if the device knows it.
    pub numa_node: Option<u32>,
    /// Whether the host can read and write device memory at its device address.
    pub host_access: bool,
    /// Whether [`Device::host_alloc`] returns page-locked memory, as far as the system's limit allows.
    pub pinned: bool,
    /// Whether [`Sizes::realloc`] is only the minimum size of a later segment, which may grow with what is already
    /// taken. A plugin's sizes are kept to the byte.
    pub segments_grow: bool,
    /// Whether an address of this device may also be an address of another device or of the host, with other memory
    /// there.
    pub own_addresses: bool,
    /// Whether its memory is the processor's, and all its work is done by threads of this process.
    pub is_processor: bool,
    /// The maximum number of blocks that the library keeps track of at a time, including free ones; each needs 32 bytes
    /// of host memory. More than about one for each 512 bytes of memory is of no use.
    pub most_blocks: u64,
    /// \[B\] of the device that are not taken unless an option says so: what its driver and its libraries need while a
    /// program runs.
    pub headroom: u64,
}

impl Default for Facts {
    /// A device of which nothing is known.
    fn default() -> Facts {
        Facts {
            identity: Identity::default(),
            numa_node: None,
            host_access: false,
            pinned: false,
            segments_grow: false,
            own_addresses: false,
            is_processor: false,
            most_blocks: u64::MAX,
            headroom: 0,
        }
    }
}
