//! One device of a plugin: its sizes, its memory, and the way into its callbacks.

use super::given::{Piece, Pieces};
use super::handles::Handles;
use super::plugin::Plugin;
use super::versions;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::Mutex;
use crate::device::{
    Caps, CopyKind, Device, Facts, GRANULE, HostWish, MemoryInfo, Peers, Sizes, StreamId, Streams, Unified,
    Versions, as_ptr,
};
use crate::fail;
use crate::paddle::abi::{C_Device, C_Device_st, C_Status};
use crate::runtime::may_block;
use std::alloc::Layout;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, Ordering::Relaxed};

/// Min chunk of a plugin that does not say (bytes): keeps blocks as aligned as kernels like them,
/// where the plugin's own addresses are.
const MIN_CHUNK_DEFAULT: u64 = 256;
/// The max alloc size of a plugin that tells neither it nor its free memory (bytes): more than devices have
/// today, but not so much that the pool must keep its books more coarsely.
const MAX_ALLOC_UNKNOWN: u64 = 768 << 30;
/// The init and the realloc size of a plugin that does not say (bytes), and the part of its memory that they take at
/// most: a small request leaves the rest of the device to others.
const SEGMENT_DEFAULT: u64 = 64 << 20;
const SEGMENT_PART: u64 = 16;
/// A min chunk beyond this is a mistake (bytes).
const MIN_CHUNK_MOST: u64 = 1 << 40;
/// A padding beyond this is one, too (bytes).
const PADDING_MOST: u64 = 1 << 40;
/// Alignment of host memory that stands in for pinned memory (bytes).
const HOST_ALIGN: usize = 64;

/// Calls a callback of the plugin on this device: `None` when the plugin leaves it null, else its
/// result. The expression borrows nothing of the device's locks.
macro_rules! call {
    ($self:expr, $callback:ident ( $($arg:expr),* $(,)? )) => {
        match $self.plugin.table.$callback {
            None => None,
            Some(callback) => Some($self.enter().and_then(|mut device| {
                // SAFETY: the plugin's contract (`Plugin::from_init`): callable from any thread with
                // a device and arguments that live for the call; the caller checked addresses.
                let call = || unsafe { callback(&mut device, $($arg),*) };
                let status = $self.plugin.run(stringify!($callback), call)?;
                $self.plugin.check(stringify!($callback), status)
            })),
        }
    };
}
pub(super) use call;

/// One device of a plugin.
pub(super) struct ForeignDevice {
    pub(super) plugin: Arc<Plugin>,
    pub(super) ids: Arc<[c_int]>,
    ordinal: usize,
    alive: Arc<AtomicBool>,
    sizes: Sizes,
    /// Whether the plugin leaves the size of later segments to us.
    growing: bool,
    /// The plugin's own min chunk, of which `sizes.min_chunk` is the next power of two (bytes).
    unit: u64,
    versions: Versions,
    /// Device memory that the plugin has given.
    given: Pieces,
    /// Host memory that it has given, for any of its devices.
    host: Arc<Pieces>,
    /// Whether its device memory was less aligned than it should be: then it is asked for more.
    crooked: AtomicBool,
    pub(super) handles: Mutex<Handles>,
}

/// One of the three callbacks that give memory.
type Allocate = unsafe extern "C-unwind" fn(C_Device, *mut *mut std::ffi::c_void, usize) -> C_Status;

impl ForeignDevice {
    pub(super) fn open(
        plugin: Arc<Plugin>,
        ids: Arc<[c_int]>,
        ordinal: usize,
        alive: Arc<AtomicBool>,
        host: Arc<Pieces>,
    ) -> Result<ForeignDevice> {
        let mut device = ForeignDevice {
            plugin,
            ids,
            ordinal,
            alive,
            sizes: Sizes { min_chunk: 1, max_chunk: 1, max_alloc: 1, padding: 0, init_alloc: 1, realloc: 1 },
            growing: false,
            unit: 1,
            versions: Versions::default(),
            given: Pieces::default(),
            host,
            crooked: AtomicBool::new(false),
            handles: Mutex::default(),
        };
        call!(device, init_device()).transpose()?;
        device.versions = versions::query(&device.plugin, device.id());
        (device.sizes, device.unit, device.growing) = device.ask_sizes().inspect_err(|_| {
            let _ = device.end(); // as if it had never begun
        })?;
        Ok(device)
    }

    /// Whether the plugin has pinned memory.
    fn pins(&self) -> bool {
        let table = &self.plugin.table;
        table.host_memory_allocate.is_some() && table.host_memory_deallocate.is_some()
    }

    /// The plugin's own id.
    fn id(&self) -> c_int {
        // `open` is only called for ordinals that `ids` has.
        self.ids.get(self.ordinal).copied().unwrap_or(0)
    }

    /// What comes before each callback: the type is alive, and the device is the thread's current one.
    pub(super) fn enter(&self) -> Result<C_Device_st> {
        // SeqCst: pairs with the store in `ForeignType::finalize`.
        if !self.alive.load(Ordering::SeqCst) {
            fail!(Code::NotInitialized, "the device type {:?} was finalised", self.plugin.name());
        }
        let mut device = C_Device_st { id: self.id() };
        if let Some(set_device) = self.plugin.table.set_device {
            // SAFETY: the plugin's contract; `device` lives for the call.
            let status = self.plugin.run("set_device", || unsafe { set_device(&mut device) })?;
            self.plugin.check("set_device", status)?;
        }
        Ok(device)
    }

    /// Called by the type's `finalize`, when `alive` is cleared.
    pub(super) fn end(&self) -> Result<()> {
        let mut device = C_Device_st { id: self.id() };
        if let Some(set_device) = self.plugin.table.set_device {
            // SAFETY: the plugin's contract; the plugin itself ends after its devices.
            let _ = self.plugin.run("set_device", || unsafe { set_device(&mut device) });
        }
        let Some(deinit_device) = self.plugin.table.deinit_device else { return Ok(()) };
        // SAFETY: as above.
        let status = self.plugin.run("deinit_device", || unsafe { deinit_device(&mut device) })?;
        self.plugin.check("deinit_device", status)
    }

    /// A size that the plugin tells; `None` when it leaves the callback null or answers 0.
    fn ask(
        &self,
        name: &str,
        callback: Option<unsafe extern "C-unwind" fn(C_Device, *mut usize) -> C_Status>,
    ) -> Result<Option<u64>> {
        let Some(callback) = callback else { return Ok(None) };
        let mut device = self.enter()?;
        let mut value = 0usize;
        // SAFETY: the plugin's contract; both pointers live for the call.
        let status = self.plugin.run(name, || unsafe { callback(&mut device, &mut value) })?;
        self.plugin.check(name, status)?;
        Ok((value != 0).then_some(value as u64))
    }

    /// The sizes with their defaults, the plugin's own min chunk, and whether segments may grow.
    fn ask_sizes(&self) -> Result<(Sizes, u64, bool)> {
        let table = &self.plugin.table;
        let unit =
            self.ask("device_min_chunk_size", table.device_min_chunk_size)?.unwrap_or(MIN_CHUNK_DEFAULT);
        let Some(min_chunk) = unit.checked_next_power_of_two().filter(|&c| c <= MIN_CHUNK_MOST) else {
            fail!(Code::PluginRefused, "plugin {:?}: device_min_chunk_size says {unit}", self.plugin.name());
        };
        let free = self.memory_info()?.known().map(|m| m.free);
        let told = self.ask("device_max_alloc_size", table.device_max_alloc_size)?;
        let max_alloc = told.or(free.filter(|&f| f > 0)).unwrap_or(MAX_ALLOC_UNKNOWN);
        let part = (max_alloc / SEGMENT_PART / GRANULE * GRANULE).max(GRANULE);
        let segment = SEGMENT_DEFAULT.min(part);
        let padding = self.ask("device_extra_padding_size", table.device_extra_padding_size)?.unwrap_or(0);
        if padding > PADDING_MOST {
            fail!(
                Code::PluginRefused,
                "plugin {:?}: device_extra_padding_size says {padding}",
                self.plugin.name()
            );
        }
        let chunk = |asked: Option<u64>, otherwise: u64| asked.unwrap_or(otherwise).min(max_alloc);
        let realloc = self.ask("device_realloc_size", table.device_realloc_size)?;
        let sizes = Sizes {
            min_chunk,
            max_chunk: chunk(self.ask("device_max_chunk_size", table.device_max_chunk_size)?, max_alloc),
            max_alloc,
            padding,
            init_alloc: chunk(self.ask("device_init_alloc_size", table.device_init_alloc_size)?, segment),
            realloc: chunk(realloc, segment),
        };
        Ok((sizes, unit, realloc.is_none()))
    }

    /// What the plugin is asked for when the library wants `bytes`: a multiple of its own min chunk.
    fn wire_size(&self, bytes: u64) -> Result<usize> {
        bytes.checked_next_multiple_of(self.unit).and_then(|b| usize::try_from(b).ok()).ok_or_else(|| {
            Error::formatted(Code::OutOfMemory, format_args!("{bytes} bytes are more than any device has"))
        })
    }

    fn out_of_memory(&self, what: &str, bytes: usize) -> Error {
        Error::formatted(
            Code::OutOfMemory,
            format_args!(
                "plugin {:?}, device {}: no {bytes} bytes of {what}",
                self.plugin.name(),
                self.ordinal
            ),
        )
    }

    /// Allocates through a callback of the three kinds of memory.
    fn take(&self, name: &str, what: &str, callback: Allocate, bytes: usize) -> Result<u64> {
        let mut device = self.enter()?;
        let mut out = std::ptr::null_mut();
        // SAFETY: the plugin's contract; both pointers live for the call.
        let status = self.plugin.run(name, || unsafe { callback(&mut device, &mut out, bytes) })?;
        // Plugins say "out of memory" in two ways: C_FAILED, and success without an address.
        if status == C_Status::FAILED || (status == C_Status::SUCCESS && out.is_null()) {
            return Err(self.out_of_memory(what, bytes));
        }
        self.plugin.check(name, status)?;
        Ok(out as usize as u64)
    }

    /// What the plugin has done wrong, with its name.
    fn wrong(&self, callback: &str, what: &Error) -> Error {
        let (name, n) = (self.plugin.name(), self.ordinal);
        Error::formatted(
            what.code(),
            format_args!("plugin {name:?}, device {n}: {callback} gave {}", what.message()),
        )
    }

    /// Device memory of so many bytes. `None`: what the plugin gave was not aligned, and it has it again.
    fn take_device(&self, size: usize) -> Result<Option<u64>> {
        let piece = self.ask_device(size)?;
        let addr = piece.addr;
        self.enter_device(piece, addr)?;
        if addr.is_multiple_of(self.sizes.min_chunk) {
            return Ok(Some(addr));
        }
        Device::free(self, addr, piece.bytes).map(|()| None)
    }

    /// The same, from the first aligned address on.
    fn take_spare(&self, size: usize) -> Result<u64> {
        let piece = self.ask_device(size)?;
        // Where there is none, the piece passes the end of all addresses, which is refused.
        let start = piece.addr.checked_next_multiple_of(self.sizes.min_chunk).unwrap_or(piece.addr);
        self.enter_device(piece, start)?;
        Ok(start)
    }

    fn ask_device(&self, size: usize) -> Result<Piece> {
        let callback =
            self.plugin.table.device_memory_allocate.ok_or_else(|| missing("device_memory_allocate"))?;
        self.given.make_room()?;
        let addr = self.take("device_memory_allocate", "device memory", callback, size)?;
        Ok(Piece { addr, bytes: size as u64 })
    }

    fn enter_device(&self, piece: Piece, start: u64) -> Result<()> {
        self.given.enter(piece, start).map_err(|e| self.wrong("device_memory_allocate", &e))
    }

    fn give_device(&self, piece: Piece) -> Result<()> {
        call!(self, device_memory_deallocate(as_ptr(piece.addr), piece.bytes as usize))
            .unwrap_or_else(|| Err(missing("device_memory_deallocate")))
    }

    /// Pinned or unified memory from the plugin.
    pub(super) fn take_host(&self, name: &str, what: &str, callback: Allocate, bytes: usize) -> Result<u64> {
        let addr = self.take(name, what, callback, bytes)?;
        self.host.enter(Piece { addr, bytes: bytes as u64 }, addr).map_err(|e| self.wrong(name, &e))?;
        Ok(addr)
    }

    /// Gives pinned or unified memory back.
    pub(super) fn give_host(&self, addr: u64, give: impl FnOnce() -> Result<()>) -> Result<()> {
        // First: once the plugin has it, it may give it to another thread.
        let piece = self.host.take(addr);
        give().inspect_err(|_| piece.into_iter().for_each(|p| self.host.put_back(p, addr)))
    }

    pub(super) fn host_layout(bytes: u64) -> Result<Layout> {
        usize::try_from(bytes)
            .ok()
            .filter(|&b| b > 0)
            .and_then(|b| Layout::from_size_align(b, HOST_ALIGN).ok())
            .ok_or_else(|| Error::formatted(Code::InvalidArgument, format_args!("{bytes} B of host memory")))
    }
}

pub(super) fn missing(callback: &str) -> Error {
    // Required callbacks are checked at registration, optional ones through `Caps`.
    Error::formatted(Code::Unsupported, format_args!("the plugin has no {callback}"))
}

impl Device for ForeignDevice {
    fn ordinal(&self) -> usize {
        self.ordinal
    }

    fn facts(&self) -> Facts {
        // Its addresses may be those of others, unless the plugin knows better, which it cannot say.
        let (pinned, segments_grow) = (self.pins(), self.growing);
        Facts { pinned, segments_grow, own_addresses: true, ..Facts::default() }
    }

    fn lack(&self, cap: Caps) -> String {
        let table = &self.plugin.table;
        let lacks = |callbacks: &[(&'static str, bool)]| {
            let missing: Vec<_> = callbacks.iter().filter(|c| !c.1).map(|c| c.0).collect();
            format!("the plugin has no {}", missing.join(" and no "))
        };
        match cap {
            Caps::MAPPING | Caps::EXPORT | Caps::RDMA => {
                "the custom-runtime interface has no calls for it".to_owned()
            }
            Caps::HOST_ACCESS => {
                "a plugin cannot say whether the host can access its memory, so it is not assumed".to_owned()
            }
            Caps::UNIFIED => lacks(&[
                ("unified_memory_allocate", table.unified_memory_allocate.is_some()),
                ("unified_memory_deallocate", table.unified_memory_deallocate.is_some()),
            ]),
            Caps::PINNED => lacks(&[
                ("host_memory_allocate", table.host_memory_allocate.is_some()),
                ("host_memory_deallocate", table.host_memory_deallocate.is_some()),
            ]),
            Caps::STREAMS => {
                let waits = table.synchronize_stream.is_some() || table.synchronize_device.is_some();
                lacks(&[
                    ("create_stream", table.create_stream.is_some()),
                    ("synchronize_stream or synchronize_device", waits),
                ])
            }
            _ => "the plugin has none".to_owned(),
        }
    }

    fn sizes(&self) -> Sizes {
        self.sizes
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let (mut total, mut free) = (0usize, 0usize);
        match call!(self, device_memory_stats(&mut total, &mut free)) {
            Some(result) => {
                result?;
                Ok(MemoryInfo { total: total as u64, free: free as u64 })
            }
            None => Ok(MemoryInfo::UNKNOWN),
        }
    }

    fn versions(&self) -> Versions {
        self.versions
    }

    fn set_current(&self) -> Result<()> {
        self.enter().map(|_| ())
    }

    fn synchronize(&self) -> Result<()> {
        may_block()?;
        if let Some(result) = call!(self, synchronize_device()) {
            return result;
        }
        // Work only ever runs on streams that were made here: the default stream is blocking.
        self.wait_all_streams()
    }

    fn alloc(&self, bytes: u64) -> Result<u64> {
        let size = self.wire_size(bytes)?;
        if !self.crooked.load(Relaxed) {
            if let Some(addr) = self.take_device(size)? {
                return Ok(addr);
            }
            self.crooked.store(true, Relaxed);
        }
        // What it gives may begin anywhere. Of so much more, enough is aligned.
        self.take_spare(self.wire_size((size as u64).saturating_add(self.sizes.min_chunk))?)
    }

    fn free(&self, addr: u64, _: u64) -> Result<()> {
        let Some(piece) = self.given.take(addr) else {
            fail!(Code::Internal, "plugin {:?} has given no memory at {addr:#x}", self.plugin.name());
        };
        self.give_device(piece).inspect_err(|_| self.given.put_back(piece, addr))
    }

    fn host_alloc(&self, bytes: u64, _: HostWish) -> Result<u64> {
        let layout = Self::host_layout(bytes)?;
        if self.pins()
            && let Some(callback) = self.plugin.table.host_memory_allocate
        {
            return self.take_host("host_memory_allocate", "pinned memory", callback, layout.size());
        }
        // SAFETY: the size is not 0.
        let memory = unsafe { std::alloc::alloc(layout) };
        if memory.is_null() {
            return Err(self.out_of_memory("host memory", layout.size()));
        }
        Ok(memory as usize as u64)
    }

    fn host_free(&self, addr: u64, bytes: u64) -> Result<()> {
        let layout = Self::host_layout(bytes)?;
        if self.pins() {
            return self.give_host(addr, || {
                call!(self, host_memory_deallocate(as_ptr(addr), layout.size()))
                    .unwrap_or_else(|| Err(missing("host_memory_deallocate")))
            });
        }
        // SAFETY: from `host_alloc`, which took it with this layout; the runtime's table vouches for
        // address and size.
        unsafe { std::alloc::dealloc(as_ptr(addr).cast(), layout) };
        Ok(())
    }

    fn copy(&self, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        Device::synchronize(self)?;
        self.copy_now(kind, dst, src, bytes)
    }

    fn copy_async(&self, stream: StreamId, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        self.queue_copy(stream, kind, dst, src, bytes)
    }

    fn memset(&self, dst: u64, value: u8, bytes: u64) -> Result<()> {
        Device::synchronize(self)?;
        self.fill_now(dst, value, bytes)
    }

    fn memset_async(&self, stream: StreamId, dst: u64, value: u8, bytes: u64) -> Result<()> {
        self.queue_fill(stream, dst, value, bytes)
    }

    fn streams(&self) -> &dyn Streams {
        self
    }

    fn unified(&self) -> Option<&dyn Unified> {
        let table = &self.plugin.table;
        let whole = table.unified_memory_allocate.is_some() && table.unified_memory_deallocate.is_some();
        whole.then_some(self)
    }

    fn peers(&self) -> Option<&dyn Peers> {
        Some(self)
    }
}
