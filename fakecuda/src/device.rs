//! Devices: what there are, and what is known about each. `CUDA_VISIBLE_DEVICES` is read at `cuInit`, as documented:
//! ordinals or beginnings of UUIDs, in the caller's order; the list ends at the first that does not exist.

use std::ffi::{CStr, c_char, c_int};

use cudarc::driver::sys::{
    CUdevice_P2PAttribute, CUdevice_attribute, CUdevice_attribute_enum as Attribute, CUuuid,
};

use crate::card::Card;
use crate::code::*;
use crate::gate::{exports, put};
use crate::mapping;
use crate::physical::Arena;
use crate::world::{Answer, World};

pub(crate) struct Device {
    pub(crate) capacity: u64, // [B]
    pub(crate) used: u64,     // [B] physical memory, of all kinds
    pub(crate) used_peak: u64,
    pub(crate) taken: u64,         // [B] of `used`: by fakecuda_take
    pub(crate) card: Option<Card>, // where other processes use it, too
    pub(crate) arenas: Vec<Arena>,
    pub(crate) primary: u64,  // the handle of the primary context
    pub(crate) retained: u32, // how often it is retained
    pub(crate) index: i32,    // in the machine, whatever is visible
    pub(crate) default_pool: u64,
    pub(crate) pool: u64, // the current one, for cuMemAllocAsync
}

impl Device {
    /// [B] that nobody has.
    pub(crate) fn left(&self) -> u64 {
        let others = self.card.as_ref().map_or(0, Card::others);
        self.capacity.saturating_sub(self.used).saturating_sub(others)
    }

    /// Counts memory that is used from now on.
    pub(crate) fn take(&mut self, bytes: u64) {
        self.used += bytes;
        self.used_peak = self.used_peak.max(self.used);
        self.tell();
    }

    /// Counts memory that is used no more.
    pub(crate) fn give(&mut self, bytes: u64) {
        self.used -= bytes;
        self.tell();
    }

    fn tell(&self) {
        if let Some(card) = &self.card {
            card.tell(self.used);
        }
    }

    fn uuid(&self) -> [u8; 16] {
        let mut bytes = *b"fakecuda-device\0";
        bytes[15] = b'A' + self.index as u8;
        bytes
    }

    fn uuid_text(&self) -> String {
        let hex: Vec<String> = self.uuid().iter().map(|byte| format!("{byte:02x}")).collect();
        let part = |from: usize, to: usize| hex[from..to].concat();
        format!("GPU-{}-{}-{}-{}-{}", part(0, 4), part(4, 6), part(6, 8), part(8, 10), part(10, 16))
    }

    fn bus_id(&self) -> String {
        format!("0000:{:02X}:00.0", self.index + 1)
    }
}

/// Makes the devices that are visible.
pub(crate) fn make_all(world: &mut World) -> Answer {
    let mut visible: Vec<Device> = Vec::new();
    let all = |world: &World, index: i32| Device {
        capacity: world.config.capacity(index as usize),
        used: 0,
        used_peak: 0,
        taken: 0,
        card: None,
        arenas: Vec::new(),
        primary: 0,
        retained: 0,
        index,
        default_pool: 0,
        pool: 0,
    };
    let count = world.config.devices;
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Err(_) => visible.extend((0..count).map(|index| all(world, index))),
        Ok(list) => {
            for one in list.split(',').map(str::trim) {
                let index = match one.parse::<i32>() {
                    Ok(index) => Some(index).filter(|index| (0..count).contains(index)),
                    Err(_) if one.starts_with("GPU-") => {
                        (0..count).find(|index| all(world, *index).uuid_text().starts_with(one))
                    }
                    Err(_) => None,
                };
                let Some(index) = index else { break };
                if visible.iter().any(|device| device.index == index) {
                    visible.clear(); // named twice: no device at all
                    break;
                }
                visible.push(all(world, index));
            }
        }
    }
    if visible.is_empty() {
        return Err(NO_DEVICE);
    }
    for mut device in visible {
        let ordinal = world.devices.len() as i32;
        device.primary = crate::context::new_primary(world, ordinal);
        device.default_pool = crate::pool::new_default(world, ordinal);
        device.pool = device.default_pool;
        device.card = world.config.card.as_deref().and_then(|path| Card::open(path, device.index));
        world.devices.push(device);
    }
    OK
}

/// CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED
const FABRIC: u32 = 128;

fn attribute(world: &World, device: &Device, which: u32) -> Result<c_int, u32> {
    let vmm = c_int::from(!world.config.no_vmm);
    let pools = c_int::from(!world.config.no_pools);
    let fd = c_int::from(!world.config.no_fd && !world.config.no_vmm);
    let fabric = c_int::from(world.config.fabric && !world.config.no_vmm);
    let rdma = c_int::from(world.config.rdma && !world.config.no_vmm);
    let dmabuf = c_int::from(!world.config.no_dmabuf);
    let is = |attribute: Attribute| which == attribute as u32;
    Ok(match which {
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED) => vmm,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) => fd,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) => rdma,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) && world.config.driver < 11070 => {
            return Err(INVALID_VALUE);
        }
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) => dmabuf,
        FABRIC if world.config.driver < mapping::FABRIC_SINCE => return Err(INVALID_VALUE),
        FABRIC => fabric,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) => pools,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES) => pools & fd,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) => 8,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) => 0,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) => 1,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) => 1,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) => {
            c_int::from(!world.config.no_concurrent)
        }
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY) => 1,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) => 1,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) => 1,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED) => 1,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS) => 1,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT) => 3,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP) => 1,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE) => 32,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK) => 1024,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X) => 1024,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y) => 1024,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z) => 64,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X) => 0x7fff_ffff,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y) => 65535,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z) => 65535,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) => 108,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) => 2048,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT) => 512,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) => device.index + 1,
        // All other attributes that the documentation knows are "no" here.
        1..FABRIC | 129..=145 => 0,
        _ => return Err(INVALID_VALUE),
    })
}

fn copy_text(text: &str, to: *mut c_char, length: c_int) -> Answer {
    if to.is_null() || length <= 0 {
        return Err(INVALID_VALUE);
    }
    let count = text.len().min(length as usize - 1);
    // SAFETY: the C caller promises `length` bytes, and count + 1 <= length.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, count) };
    // SAFETY: as above.
    unsafe { to.add(count).write(0) };
    OK
}

exports! {
    2000 Query fn cuDeviceGetCount(count: *mut c_int) |w| {
        put(count, w.devices.len() as c_int)
    }

    2000 Query fn cuDeviceGet(device: *mut c_int, ordinal: c_int) |w| {
        w.device(ordinal)?;
        put(device, ordinal)
    }

    2000 Query fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) |w| {
        w.device(device)?;
        copy_text("Fake CUDA device", name, length)
    }

    2000 Query fn cuDeviceGetAttribute(value: *mut c_int, which: u32 as CUdevice_attribute, device: c_int) |w| {
        put(value, attribute(w, w.device(device)?, which)?)
    }

    3020 Query fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) |w| {
        put(bytes, w.device(device)?.capacity as usize)
    }

    9020 Query fn cuDeviceGetUuid(uuid: *mut CUuuid, device: c_int) |w| {
        put(uuid.cast(), w.device(device)?.uuid())
    }

    11040 Query fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: c_int) |w| {
        put(uuid.cast(), w.device(device)?.uuid())
    }

    4010 Query fn cuDeviceGetPCIBusId(bus: *mut c_char, length: c_int, device: c_int) |w| {
        let text = w.device(device)?.bus_id();
        if (length as usize) <= text.len() {
            return Err(INVALID_VALUE);
        }
        copy_text(&text, bus, length)
    }

    4010 Query fn cuDeviceGetByPCIBusId(device: *mut c_int, bus: *const c_char) |w| {
        if bus.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null; the C caller promises a string.
        let wanted = unsafe { CStr::from_ptr(bus) }.to_string_lossy().to_uppercase();
        let found = w.devices.iter().position(|device| device.bus_id() == wanted).ok_or(INVALID_DEVICE)?;
        put(device, found as c_int)
    }

    4000 Query fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) |w| {
        w.device(device)?;
        w.device(peer)?;
        put(can, c_int::from(device != peer && !w.config.apart(device, peer)))
    }

    8000 Query fn cuDeviceGetP2PAttribute(
        value: *mut c_int,
        which: u32 as CUdevice_P2PAttribute,
        from: c_int,
        to: c_int,
    ) |w| {
        w.device(from)?;
        w.device(to)?;
        if from == to {
            return Err(INVALID_DEVICE);
        }
        match which {
            1 => put(value, 0),                               // performance rank
            2 => put(value, c_int::from(!w.config.apart(from, to))), // access supported
            3 | 4 => put(value, 0),                           // atomics, arrays
            _ => Err(INVALID_VALUE),
        }
    }
}
