//! One open device and its memory. The files beside this one have the calls on it, by noun.
//!
//! A state outlives its device: after the end of the device each call gets `NotInitialized`.

use crate::base::error::{Code, Result};
use crate::device::{Caps, Device, Identity, MemoryInfo, Sizes, Versions};
use crate::fail;
use crate::runtime::entry::fork;
use crate::runtime::entry::reentry::may_block;
use crate::runtime::entry::usage::{Pass, Usage};
use crate::runtime::memory::Memory;
use crate::runtime::options::Options;
use crate::runtime::pinned::state::{HostCache, Table};
use crate::runtime::recording::tapes::Tapes;
use crate::runtime::share::imports::Imports;
use std::sync::Arc;

/// What a device tells about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The name of its type.
    pub type_name: String,
    /// Its ordinal within the type.
    pub ordinal: usize,
    /// What it can do.
    pub caps: Caps,
    /// Total and free memory, in bytes.
    pub memory: MemoryInfo,
    /// The sizes that shape allocation, in bytes.
    pub sizes: Sizes,
    /// Version numbers.
    pub versions: Versions,
    /// Which device of the machine it is.
    pub identity: Identity,
}

/// One open device. Get it with [`device`](crate::runtime::device()); all calls may come from any
/// thread. After the type ended, every call gets `NotInitialized`.
pub struct DeviceState {
    id: u32,
    type_name: String,
    ordinal: usize,
    device: Arc<dyn Device>,
    memory: Memory,
    usage: Arc<Usage>,
    pub(crate) host: HostCache,
    pub(crate) unified: Table,
    pub(crate) imports: Imports,
    pub(crate) tapes: Tapes,
}

impl DeviceState {
    pub(crate) fn new(
        id: u32,
        type_name: &str,
        device: Arc<dyn Device>,
        options: Options,
    ) -> Result<DeviceState> {
        let host = HostCache::default();
        host.configure(&options);
        let usage = Arc::new(Usage::new());
        let memory = Memory::with_options(device.clone(), usage.clone(), options)?;
        memory.backing().set_owner(id, format!("{type_name}:{}", device.ordinal()));
        host.tell_to(memory.watchers().list().clone());
        Ok(DeviceState {
            id,
            type_name: type_name.to_owned(),
            ordinal: device.ordinal(),
            memory,
            device,
            usage,
            host,
            unified: Table::default(),
            imports: Imports::default(),
            tapes: Tapes::default(),
        })
    }

    /// Its number among all devices that this process opened; never used again.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The name of its type.
    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    /// Its ordinal within the type.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// The device itself, for calls that this type does not check.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// The memory of the device.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Whether the device has not ended.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.usage.is_open()
    }

    /// The door, which its end holds and shuts.
    pub(crate) fn door(&self) -> &Usage {
        &self.usage
    }

    /// Blocks and host memory that the caller has not freed. Makes no call on the device.
    pub(crate) fn live(&self) -> u64 {
        self.memory.live_blocks() + (self.host.live() + self.unified.live()) as u64
    }

    /// Fails in a forked child and after the end of the device. The device does not end while the
    /// pass is held.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Pass<'_>> {
        fork::check()?;
        self.usage.enter()
    }

    /// What the device tells about itself, with the memory that is free now.
    pub fn info(&self) -> Result<DeviceInfo> {
        let _pass = self.enter()?;
        Ok(DeviceInfo {
            type_name: self.type_name.clone(),
            ordinal: self.ordinal,
            caps: self.device.caps(),
            memory: self.device.memory_info()?,
            sizes: self.device.sizes(),
            versions: self.device.versions(),
            identity: self.device.facts().identity,
        })
    }

    /// Why the device does not have a capability, for a person; `None` where it has it. `InvalidArgument` unless `cap` is
    /// one of [`Caps`].
    pub fn lack(&self, cap: Caps) -> Result<Option<String>> {
        let _pass = self.enter()?;
        if cap.bits().count_ones() != 1 || !Caps::all().contains(cap) {
            fail!(Code::InvalidArgument, "{:#x} is not one capability", cap.bits());
        }
        Ok((!self.device.caps().contains(cap)).then(|| self.device.lack(cap)))
    }

    /// Waits on the host for all work queued on the device.
    pub fn synchronize(&self) -> Result<()> {
        let _pass = self.enter()?;
        may_block()?;
        self.memory.free_deferred();
        self.device.synchronize()?;
        self.has_waited();
        Ok(())
    }

    /// The program has waited for the device, or seen that something is done: freed memory may be out of use now, and a
    /// tool may want to know.
    #[inline]
    pub(super) fn has_waited(&self) {
        if self.memory().watchers().list().curious() {
            self.look_again();
        }
    }

    #[cold]
    fn look_again(&self) {
        self.memory().stats(); // looks which frees have completed
        self.host_memory().settle(usize::MAX);
        self.memory().watchers().list().breathe();
    }
}
