//! The C API of Millpond in safe Rust: every call of this command into the library goes through
//! here, and so through the same `millpond_*` functions that a C program links.
//!
//! The library checks handles, streams and ranges itself and answers with a status, so that most
//! calls are safe with any argument. What it cannot check is host memory; that stays inside
//! [`Readback`] and borrowed slices. All `unsafe` of this command is in this file,
//! but for that of signals (`child.rs`).

use crate::options::items;
use millpond::capi::{self as c, C_Status, C_Stream};
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::mem::size_of;
use std::path::Path;
use std::ptr;

/// A call that failed: which, its stable code and name, and the library's message.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    call: &'static str,
    code: u32,
    name: String,
    message: String,
}

impl ApiError {
    /// Whether the device (or a limit) had no room.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.code == c::MILLPOND_E_OUT_OF_MEMORY
    }

    /// The library's message alone.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.call, self.message, self.name)
    }
}

impl std::error::Error for ApiError {}

pub(crate) type ApiResult<T> = Result<T, ApiError>;

/// Turns a status into a result, with the thread's last error.
fn check(call: &'static str, status: C_Status) -> ApiResult<()> {
    if status == C_Status::SUCCESS {
        return Ok(());
    }
    let code = c::millpond_last_error_code();
    Err(ApiError {
        call,
        code,
        name: text(c::millpond_error_name(code)),
        message: text(c::millpond_last_error_message()),
    })
}

/// A copy of a C string of the library.
fn text(s: *const c_char) -> String {
    if s.is_null() {
        return String::new();
    }
    // SAFETY: the library returns NUL-ended strings that live at least until the next failing call
    // of this thread; it is copied before that.
    unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned()
}

/// Runs a call that writes a name into a buffer.
fn name_from(call: &'static str, f: impl FnOnce(*mut c_char, usize) -> C_Status) -> ApiResult<String> {
    let mut buffer = [0 as c_char; 256];
    check(call, f(buffer.as_mut_ptr(), buffer.len()))?;
    buffer[255] = 0;
    Ok(text(buffer.as_ptr()))
}

/// A C string from a Rust one; an inner NUL cannot be part of any name, so it ends the string.
fn c_string(s: &str) -> CString {
    CString::new(s.split('\0').next().unwrap_or("")).unwrap_or_default()
}

/// The library's version.
pub(crate) fn version() -> String {
    text(c::millpond_version())
}

/// Sets how many embedded host devices there are and how much each holds. Before their first use only.
pub(crate) fn configure_host(device_count: u32, capacity_bytes: u64) -> ApiResult<()> {
    let options = c::millpond_host_options {
        struct_size: size_of::<c::millpond_host_options>(),
        device_count,
        capacity_bytes,
        disable_mapping: 0,
    };
    // SAFETY: `options` is a live struct of the size that it declares.
    check("millpond_host_configure", unsafe { c::millpond_host_configure(&options) })
}

/// Sets options of the devices that are opened from now on.
pub(crate) fn set_default_options(options: &str) -> ApiResult<()> {
    let options = c_string(options);
    check("millpond_set_default_options", {
        // SAFETY: NULL stands for all types, `options` is a C string.
        unsafe { c::millpond_set_default_options(ptr::null(), -1, options.as_ptr()) }
    })
}

/// The names of all device types.
pub(crate) fn type_names() -> ApiResult<Vec<String>> {
    let mut count = 0;
    // SAFETY: `count` is writable.
    check("millpond_device_type_get_count", unsafe { c::millpond_device_type_get_count(&mut count) })?;
    (0..count)
        .map(|i| {
            name_from("millpond_device_type_get_name", |p, n| {
                // SAFETY: `p` is writable for `n` bytes.
                unsafe { c::millpond_device_type_get_name(i, p, n) }
            })
        })
        .collect()
}

/// Loads a custom-runtime plugin and returns the name of its device type.
pub(crate) fn load_plugin(path: &Path) -> ApiResult<String> {
    let path = c_string(&path.to_string_lossy());
    name_from("millpond_device_type_load", |p, n| {
        // SAFETY: `path` is a C string and `p` is writable for `n` bytes. The plugin's own code is
        // trusted by the user who named it.
        unsafe { c::millpond_device_type_load(path.as_ptr(), p, n) }
    })
}

/// Why a type has no devices; empty when it has some.
pub(crate) fn reason(type_name: &str) -> ApiResult<String> {
    let name = c_string(type_name);
    let mut buffer = [0 as c_char; 1024];
    check("millpond_device_type_get_reason", {
        // SAFETY: `name` is a C string, `buffer` is writable for its length.
        unsafe { c::millpond_device_type_get_reason(name.as_ptr(), buffer.as_mut_ptr(), buffer.len()) }
    })?;
    Ok(self::text(buffer.as_ptr()))
}

/// How many devices a type has.
pub(crate) fn device_count(type_name: &str) -> ApiResult<usize> {
    let name = c_string(type_name);
    let mut count = 0;
    // SAFETY: `name` is a C string, `count` is writable.
    check("millpond_device_get_count", unsafe { c::millpond_device_get_count(name.as_ptr(), &mut count) })?;
    Ok(count)
}

/// Ends the library: threads joined, memory given back. Handles are refused from then on.
pub(crate) fn finalize() -> ApiResult<()> {
    check("millpond_finalize", c::millpond_finalize())
}

/// One counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counter {
    pub(crate) current: u64,
    pub(crate) peak: u64,
    pub(crate) total: u64,
}

impl From<c::millpond_counter> for Counter {
    fn from(c: c::millpond_counter) -> Self {
        Counter { current: c.current, peak: c.peak, total: c.total }
    }
}

/// The counters of a device; see `millpond_stats` in the header.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) requested: Counter,       // [B]
    pub(crate) allocated: Counter,       // [B]
    pub(crate) active: Counter,          // [B]
    pub(crate) reserved: Counter,        // [B]
    pub(crate) blocks: Counter,          // live blocks
    pub(crate) segments: Counter,        // pieces of device memory
    pub(crate) driver_calls: u64,        // since the device was opened
    pub(crate) out_of_memory_count: u64, // requests that failed for lack of memory
}

impl Stats {
    /// The same, with totals that begin where `before` ended. Peaks are those since they were last reset.
    pub(crate) fn since(mut self, before: &Stats) -> Stats {
        let own = |now: &mut Counter, then: Counter| now.total = now.total.saturating_sub(then.total);
        own(&mut self.requested, before.requested);
        own(&mut self.allocated, before.allocated);
        own(&mut self.active, before.active);
        own(&mut self.reserved, before.reserved);
        own(&mut self.blocks, before.blocks);
        own(&mut self.segments, before.segments);
        self.driver_calls = self.driver_calls.saturating_sub(before.driver_calls);
        self.out_of_memory_count = self.out_of_memory_count.saturating_sub(before.out_of_memory_count);
        self
    }
}

/// What a device is and can; see `millpond_device_info` in the header. Sizes in bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Info {
    pub(crate) caps: u32,
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) min_chunk: u64,
    pub(crate) max_chunk: u64,
    pub(crate) max_alloc: u64,
    pub(crate) padding: u64,
    pub(crate) init_alloc: u64,
    pub(crate) realloc: u64,
    pub(crate) compute_capability: u64,
    pub(crate) runtime_version: u64,
    pub(crate) driver_version: u64,
    pub(crate) product: String,
    pub(crate) pci_bus_id: String,
    pub(crate) uuid: [u8; 16], // all 0 if unknown
}

impl Info {
    const CAPS: [(u32, &str); 8] = [
        (c::MILLPOND_CAP_MAPPING, "mapping"),
        (c::MILLPOND_CAP_HOST_ACCESS, "host access"),
        (c::MILLPOND_CAP_UNIFIED, "unified memory"),
        (c::MILLPOND_CAP_PINNED, "pinned memory"),
        (c::MILLPOND_CAP_STREAMS, "streams"),
        (c::MILLPOND_CAP_CALLBACKS, "callbacks"),
        (c::MILLPOND_CAP_EXPORT, "export"),
        (c::MILLPOND_CAP_RDMA, "RDMA"),
    ];

    /// Whether its memory is this machine's own.
    pub(crate) fn host_access(&self) -> bool {
        self.caps & c::MILLPOND_CAP_HOST_ACCESS != 0
    }

    /// Whether it has streams beside the default one.
    pub(crate) fn streams(&self) -> bool {
        self.caps & c::MILLPOND_CAP_STREAMS != 0
    }
}

/// A capability that a device may have.
#[derive(Clone, Debug)]
pub(crate) struct Capability {
    pub(crate) name: &'static str,
    pub(crate) lack: Option<String>, // why the device does not have it
}

/// An option of a device's allocator.
#[derive(Clone, Debug)]
pub(crate) struct OptionValue {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) source: String, // as in "built in" or "MILLPOND_ALLOC_CONF"
}

/// A stream of a device; the default one is [`Stream::DEFAULT`].
#[derive(Clone, Copy)]
pub(crate) struct Stream(C_Stream);

impl Stream {
    /// The device's default stream.
    pub(crate) const DEFAULT: Stream = Stream(ptr::null_mut());
}

/// A device, borrowed from the library until [`finalize`]; the library refuses it after that.
#[derive(Clone, Copy)]
pub(crate) struct Device(*mut c::millpond_device);

/// A device's default pool, borrowed like the device.
#[derive(Clone, Copy)]
pub(crate) struct Pool<'d>(*mut c::millpond_pool, PhantomData<&'d Device>);

impl Device {
    /// Opens a device.
    pub(crate) fn get(type_name: &str, ordinal: i32) -> ApiResult<Device> {
        let name = c_string(type_name);
        let mut device = ptr::null_mut();
        // SAFETY: `name` is a C string, `device` is writable.
        check("millpond_device_get", unsafe { c::millpond_device_get(name.as_ptr(), ordinal, &mut device) })?;
        Ok(Device(device))
    }

    /// What it is and can.
    pub(crate) fn info(&self) -> ApiResult<Info> {
        // SAFETY: the struct is plain numbers and characters, for which zero is a value.
        let mut i: c::millpond_device_info = unsafe { std::mem::zeroed() };
        i.struct_size = size_of::<c::millpond_device_info>();
        // SAFETY: `i` is writable for the size that it declares.
        check("millpond_device_get_info", unsafe { c::millpond_device_get_info(self.0, &mut i) })?;
        Ok(Info {
            caps: i.caps,
            total: i.total_bytes,
            free: i.free_bytes,
            min_chunk: i.min_chunk_bytes,
            max_chunk: i.max_chunk_bytes,
            max_alloc: i.max_alloc_bytes,
            padding: i.extra_padding_bytes,
            init_alloc: i.init_alloc_bytes,
            realloc: i.realloc_bytes,
            compute_capability: i.compute_capability,
            runtime_version: i.runtime_version,
            driver_version: i.driver_version,
            product: text(i.name.as_ptr()),
            pci_bus_id: text(i.pci_bus_id.as_ptr()),
            uuid: i.uuid,
        })
    }

    /// All capabilities that there are, with the reason for each that it lacks.
    pub(crate) fn capabilities(&self, info: &Info) -> ApiResult<Vec<Capability>> {
        let lack = |bit: u32| {
            let mut buffer = [0 as c_char; 1024];
            // SAFETY: the library checks the handle, `buffer` is writable for its length.
            let status =
                unsafe { c::millpond_device_get_reason(self.0, bit, buffer.as_mut_ptr(), buffer.len()) };
            check("millpond_device_get_reason", status).map(|()| text(buffer.as_ptr()))
        };
        let all = Info::CAPS.iter().map(|&(bit, name)| {
            let has = info.caps & bit != 0;
            Ok(Capability { name, lack: if has { None } else { Some(lack(bit)?) } })
        });
        all.collect()
    }

    /// All options as they are in effect.
    pub(crate) fn options(&self) -> ApiResult<Vec<OptionValue>> {
        let mut buffer = [0 as c_char; c::MILLPOND_OPTIONS_BYTES];
        check("millpond_device_get_options", {
            // SAFETY: the library checks the handle, `buffer` is writable for its length.
            unsafe { c::millpond_device_get_options(self.0, buffer.as_mut_ptr(), buffer.len()) }
        })?;
        let all = text(buffer.as_ptr());
        let pairs = items(&all).into_iter().filter_map(|i| i.split_once(':'));
        pairs
            .map(|(key, value)| {
                let name = c_string(key);
                let mut source = [0 as c_char; c::MILLPOND_OPTION_BYTES];
                check("millpond_device_get_option_source", {
                    let (to, room) = (source.as_mut_ptr(), source.len());
                    // SAFETY: the library checks the handle, `name` is a C string, `source` is writable for its length.
                    unsafe { c::millpond_device_get_option_source(self.0, name.as_ptr(), to, room) }
                })?;
                Ok(OptionValue { key: key.into(), value: value.into(), source: text(source.as_ptr()) })
            })
            .collect()
    }

    /// Its counters now.
    pub(crate) fn stats(&self) -> ApiResult<Stats> {
        // SAFETY: the struct is plain numbers, for which zero is a value.
        let mut s: c::millpond_stats = unsafe { std::mem::zeroed() };
        s.struct_size = size_of::<c::millpond_stats>();
        // SAFETY: `s` is writable for the size that it declares.
        check("millpond_device_get_stats", unsafe { c::millpond_device_get_stats(self.0, &mut s) })?;
        Ok(Stats {
            requested: s.requested_bytes.into(),
            allocated: s.allocated_bytes.into(),
            active: s.active_bytes.into(),
            reserved: s.reserved_bytes.into(),
            blocks: s.blocks.into(),
            segments: s.segments.into(),
            driver_calls: s.driver_calls,
            out_of_memory_count: s.out_of_memory_count,
        })
    }

    /// Waits for all work on it.
    pub(crate) fn synchronize(&self) -> ApiResult<()> {
        // SAFETY: the library checks the handle.
        check("millpond_device_synchronize", unsafe { c::millpond_device_synchronize(self.0) })
    }

    /// Bounds what the library takes from it; 0 lifts the bound.
    pub(crate) fn set_limit(&self, bytes: u64) -> ApiResult<()> {
        // SAFETY: the library checks the handle.
        check("millpond_device_set_limit", unsafe { c::millpond_device_set_limit(self.0, bytes) })
    }

    /// Starts the peaks anew from the present values.
    pub(crate) fn reset_peaks(&self) -> ApiResult<()> {
        // SAFETY: the library checks the handle.
        check("millpond_device_reset_peaks", unsafe { c::millpond_device_reset_peaks(self.0) })
    }

    /// Gives unused memory back to the device.
    pub(crate) fn empty_cache(&self) -> ApiResult<()> {
        // SAFETY: the library checks the handle.
        check("millpond_device_empty_cache", unsafe { c::millpond_device_empty_cache(self.0) })
    }

    /// Its default pool.
    pub(crate) fn default_pool(&self) -> ApiResult<Pool<'_>> {
        let mut pool = ptr::null_mut();
        // SAFETY: the library checks the handle, `pool` is writable.
        let status = unsafe { c::millpond_device_get_default_pool(self.0, &mut pool) };
        check("millpond_device_get_default_pool", status)?;
        Ok(Pool(pool, PhantomData))
    }

    /// A new stream.
    pub(crate) fn stream_create(&self) -> ApiResult<Stream> {
        let mut stream = ptr::null_mut();
        // SAFETY: the library checks the handle, `stream` is writable.
        check("millpond_stream_create", unsafe { c::millpond_stream_create(self.0, &mut stream) })?;
        Ok(Stream(stream))
    }

    /// Ends a stream.
    pub(crate) fn stream_destroy(&self, stream: Stream) -> ApiResult<()> {
        // SAFETY: the library checks handle and stream.
        check("millpond_stream_destroy", unsafe { c::millpond_stream_destroy(self.0, stream.0) })
    }

    /// Queues a fill of `bytes` bytes at a device address.
    pub(crate) fn memset_async(&self, stream: Stream, at: u64, value: u8, bytes: u64) -> ApiResult<()> {
        let at = at as usize as *mut c_void;
        // SAFETY: the library checks handle and stream, and that the range lies in one live block.
        let status = unsafe { c::millpond_memset_async(self.0, stream.0, at, value, bytes as usize) };
        check("millpond_memset_async", status)
    }

    /// Queues a copy of `data` to a device address.
    pub(crate) fn write_async(&self, stream: Stream, at: u64, data: &[u8]) -> ApiResult<()> {
        let at = at as usize as *mut c_void;
        // SAFETY: the library checks the device range as above; ordinary host memory such as `data`
        // has been read when the call returns, as the header promises.
        let status = unsafe {
            let from = data.as_ptr().cast();
            c::millpond_copy_async(self.0, stream.0, c::MILLPOND_COPY_H2D, at, from, data.len())
        };
        check("millpond_copy_async", status)
    }
}

impl Pool<'_> {
    /// A block for work on `stream`: its device address, 0 for 0 bytes.
    #[inline]
    pub(crate) fn alloc(&self, bytes: u64, stream: Stream) -> ApiResult<u64> {
        let mut block = ptr::null_mut();
        // SAFETY: the library checks pool and stream, `block` is writable.
        let status = unsafe { c::millpond_pool_alloc(self.0, bytes as usize, stream.0, &mut block) };
        check("millpond_pool_alloc", status)?;
        Ok(block as usize as u64)
    }

    /// Frees a block, ordered on `stream`.
    #[inline]
    pub(crate) fn free(&self, block: u64, stream: Stream) -> ApiResult<()> {
        // SAFETY: the library checks that `block` is a live one of its own. Nobody holds a
        // reference into device memory here.
        let status = unsafe { c::millpond_pool_free(self.0, block as usize as *mut c_void, stream.0) };
        check("millpond_pool_free", status)
    }
}

/// Host memory that copies from the device arrive in, some time before [`Readback::wait`] returns.
pub(crate) struct Readback {
    device: Device,
    buffer: *mut u8, // owned; a raw pointer, because device threads write to it
    capacity: usize, // [B]
    used: usize,     // [B] queued since the last `wait`
}

impl Readback {
    /// Room for `capacity` bytes.
    pub(crate) fn new(device: Device, capacity: usize) -> Readback {
        let buffer = Box::into_raw(vec![0u8; capacity].into_boxed_slice()).cast();
        Readback { device, buffer, capacity, used: 0 }
    }

    /// Bytes that can be queued before the next wait.
    pub(crate) fn room(&self) -> usize {
        self.capacity - self.used
    }

    /// Queues a copy of `bytes` bytes (at most [`Readback::room`]) from a device address; returns where in the buffer
    /// they will be.
    pub(crate) fn read_async(&mut self, stream: Stream, at: u64, bytes: usize) -> ApiResult<usize> {
        assert!(bytes <= self.room(), "the caller waits first");
        let offset = self.used;
        // SAFETY: offset + bytes <= capacity, asserted above.
        let to = unsafe { self.buffer.add(offset) };
        // SAFETY: the library checks the device range; the host range is ours, no reference into it
        // exists until `wait`, and it is not reused or freed before the device is done (`wait`, `drop`).
        let status = unsafe {
            let from = at as usize as *const c_void;
            c::millpond_copy_async(self.device.0, stream.0, c::MILLPOND_COPY_D2H, to.cast(), from, bytes)
        };
        check("millpond_copy_async", status)?;
        self.used += bytes;
        Ok(offset)
    }

    /// Waits for the queued copies and shows what came; the buffer is free for new ones afterwards.
    pub(crate) fn wait(&mut self) -> ApiResult<&[u8]> {
        self.device.synchronize()?;
        let used = std::mem::take(&mut self.used);
        // SAFETY: `used` bytes are initialised (zeroed at birth) and the device has nothing queued
        // that writes to them; the borrow of `self` keeps new copies away.
        Ok(unsafe { std::slice::from_raw_parts(self.buffer, used) })
    }
}

impl Drop for Readback {
    fn drop(&mut self) {
        if self.used > 0 && self.device.synchronize().is_err() {
            return; // copies may still come: the buffer is left to them
        }
        // SAFETY: made by `Box::into_raw` in `new` with this length; nothing writes to it any more.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(self.buffer, self.capacity)) });
    }
}
