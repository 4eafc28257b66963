//! The driver's calls as ordinary functions that return a `Result`; an error's message contains the name of the call
//! and the driver's own name of the error. No other file calls through the table of `api.rs`.
//!
//! Addresses and handles are integers, as everywhere behind the device seam: the caller vouches for them, and the
//! driver refuses most wrong ones. Functions work on the current context (`context.rs` sets it), unless they name a
//! device or a context.

use super::api::{self, Table};
use crate::base::error::{Code, Error, Result};
use cudarc::driver::sys::*;
use std::ffi::{OsStr, c_void};
use std::ptr::null_mut;

/// A context, as an integer. 0: none.
pub(super) type Context = u64;

/// The statuses that callers here distinguish; `cuda.h` has all.
pub(super) mod status {
    pub(in super::super) const OUT_OF_MEMORY: u32 = 2;
    pub(in super::super) const INVALID_CONTEXT: u32 = 201;
    pub(in super::super) const CONTEXT_IS_DESTROYED: u32 = 709;
    pub(in super::super) const NOT_READY: u32 = 600;
    pub(in super::super) const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
}

/// A failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The function.
    pub call: &'static str,
    /// What it returned.
    pub status: u32,
}

/// What kind of handle a failed call had, which decides the code of the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// No handle, or a context.
    Other,
    /// A stream.
    Stream,
    /// An event.
    Event,
}

type Outcome<T> = std::result::Result<T, Failure>;

/// The driver of this process.
#[derive(Clone, Copy)]
pub(super) struct Driver(&'static Table);

/// Calls a function of the table. `Unsupported` if the driver does not have it.
macro_rules! call {
    ($self:ident.$name:ident($($arg:expr),* $(,)?)) => {{
        $crate::base::sync::levels::check_unlocked($crate::base::sync::levels::Called::Device);
        match $self.0.$name {
            // SAFETY: the table has the driver's signature. Out pointers are live locals of the caller, other
            // pointers are as its documentation says; device addresses and handles are checked by the driver.
            Some(f) => match unsafe { f($($arg),*) } {
                0 => Ok(()),
                status => Err(Failure { call: stringify!($name), status }),
            },
            None => Err(Failure { call: stringify!($name), status: ABSENT }),
        }
    }};
}

mod identity;
mod physical;
pub(super) use physical::Physical;

/// Not a status of the driver: the driver lacks the function.
const ABSENT: u32 = u32::MAX;

fn stream(s: u64) -> CUstream {
    s as usize as CUstream
}
fn event(e: u64) -> CUevent {
    e as usize as CUevent
}
fn context(c: Context) -> CUcontext {
    c as usize as CUcontext
}
fn host(addr: u64) -> *mut c_void {
    addr as usize as *mut c_void
}

impl Driver {
    /// Loads the named library, or the system's driver. This does not initialise CUDA.
    pub(super) fn load(library: Option<&OsStr>) -> Result<Driver> {
        api::load(library).map(Driver)
    }

    /// Whether the driver has `cuCtxRecordEvent` (CUDA 12.5).
    pub(super) fn records_contexts(&self) -> bool {
        self.0.cuCtxRecordEvent.is_some()
    }

    /// The library's error for a failed call.
    #[cold]
    pub(super) fn error(&self, f: Failure, about: About) -> Error {
        let code = match f.status {
            ABSENT => {
                return Error::formatted(
                    Code::Unsupported,
                    format_args!("this CUDA driver has no {}", f.call),
                );
            }
            1 => Code::InvalidArgument,
            status::OUT_OF_MEMORY => Code::OutOfMemory,
            3 | 4 => Code::NotInitialized,
            100 | 101 => Code::UnknownDevice,
            // The handle has ended or belongs to another context.
            400 | 709 if about == About::Stream => Code::UnknownStream,
            400 | 709 if about == About::Event => Code::UnknownEvent,
            400 => Code::InvalidArgument,
            712 => Code::Busy, // host memory is registered already
            // Not allowed while a stream is being captured.
            800 | 900 | 905..=908 => Code::NotPermitted,
            801 => Code::Unsupported,
            _ => Code::Device,
        };
        let name = self.0.error_name(f.status).unwrap_or("an error that the driver does not name");
        Error::formatted(code, format_args!("{}: {name} ({})", f.call, f.status))
    }

    /// The outcome as a result of the library.
    #[inline]
    pub(super) fn check<T>(&self, outcome: Outcome<T>) -> Result<T> {
        outcome.map_err(|f| self.error(f, About::Other))
    }
    #[inline]
    fn check_stream<T>(&self, outcome: Outcome<T>) -> Result<T> {
        outcome.map_err(|f| self.error(f, About::Stream))
    }
    #[inline]
    fn check_event<T>(&self, outcome: Outcome<T>) -> Result<T> {
        outcome.map_err(|f| self.error(f, About::Event))
    }

    // ---- the driver, devices ------------------------------------------------------------------

    pub(super) fn init(&self) -> Result<()> {
        self.check(call!(self.cuInit(0)))
    }
    /// As `major * 1000 + minor * 10`. Works before `init`.
    pub(super) fn version(&self) -> Result<i32> {
        let mut n = 0;
        self.check(call!(self.cuDriverGetVersion(&mut n)))?;
        Ok(n)
    }
    pub(super) fn device_count(&self) -> Result<usize> {
        let mut n = 0;
        self.check(call!(self.cuDeviceGetCount(&mut n)))?;
        Ok(usize::try_from(n).unwrap_or(0))
    }
    pub(super) fn device(&self, ordinal: usize) -> Result<i32> {
        let mut device = 0;
        self.check(call!(self.cuDeviceGet(&mut device, i32::try_from(ordinal).unwrap_or(-1))))?;
        Ok(device)
    }
    pub(super) fn attribute(&self, device: i32, which: CUdevice_attribute) -> Result<i32> {
        let mut value = 0;
        self.check(call!(self.cuDeviceGetAttribute(&mut value, which, device)))?;
        Ok(value)
    }
    pub(super) fn total_memory(&self, device: i32) -> Result<u64> {
        let mut bytes = 0;
        self.check(call!(self.cuDeviceTotalMem_v2(&mut bytes, device)))?;
        Ok(bytes as u64)
    }
    pub(super) fn can_access_peer(&self, device: i32, peer: i32) -> Result<bool> {
        let mut can = 0;
        self.check(call!(self.cuDeviceCanAccessPeer(&mut can, device, peer)))?;
        Ok(can != 0)
    }

    // ---- contexts -----------------------------------------------------------------------------

    pub(super) fn primary_retain(&self, device: i32) -> Result<Context> {
        let mut c = null_mut();
        self.check(call!(self.cuDevicePrimaryCtxRetain(&mut c, device)))?;
        Ok(c as usize as u64)
    }
    pub(super) fn primary_release(&self, device: i32) -> Result<()> {
        self.check(call!(self.cuDevicePrimaryCtxRelease_v2(device)))
    }
    #[inline]
    pub(super) fn context_current(&self) -> Result<Context> {
        let mut c = null_mut();
        self.check(call!(self.cuCtxGetCurrent(&mut c)))?;
        Ok(c as usize as u64)
    }
    pub(super) fn context_push(&self, c: Context) -> Result<()> {
        self.check(call!(self.cuCtxPushCurrent_v2(context(c))))
    }
    /// The same for a context of others; `false`: there is none any more, and no work of it.
    pub(super) fn context_push_if_there(&self, c: Context) -> Result<bool> {
        match call!(self.cuCtxPushCurrent_v2(context(c))) {
            Err(f) if [status::INVALID_CONTEXT, status::CONTEXT_IS_DESTROYED].contains(&f.status) => {
                Ok(false)
            }
            other => self.check(other).map(|()| true),
        }
    }
    pub(super) fn context_pop(&self) -> Result<()> {
        let mut c = null_mut();
        self.check(call!(self.cuCtxPopCurrent_v2(&mut c)))
    }
    pub(super) fn context_set(&self, c: Context) -> Result<()> {
        self.check(call!(self.cuCtxSetCurrent(context(c))))
    }
    pub(super) fn context_synchronize(&self) -> Result<()> {
        let _relaxed = self.relaxed();
        self.check(call!(self.cuCtxSynchronize()))
    }
    /// Makes the event stand for all work of the context so far.
    pub(super) fn context_record(&self, c: Context, e: u64) -> Result<()> {
        self.check_event(call!(self.cuCtxRecordEvent(context(c), event(e))))
    }
    /// Lets the current context use `peer`'s memory. Succeeds if that was already enabled.
    pub(super) fn enable_peer(&self, peer: Context) -> Result<()> {
        let _relaxed = self.relaxed();
        match call!(self.cuCtxEnablePeerAccess(context(peer), 0)) {
            Err(f) if f.status == status::PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            other => self.check(other),
        }
    }
    /// Swaps the thread's capture mode with `mode` (a `CUstreamCaptureMode` as an integer).
    fn exchange_capture_mode(&self, mode: &mut u32) {
        let at: *mut u32 = mode;
        // It can fail only for a NULL pointer; after a failure the stricter mode stays.
        let _ = call!(self.cuThreadExchangeStreamCaptureMode(at.cast()));
    }

    /// As long as the result lives, calls of this thread do not disturb captures of other threads.
    pub(super) fn relaxed(&self) -> Relaxed {
        let mut before = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32;
        self.exchange_capture_mode(&mut before);
        Relaxed { driver: *self, before }
    }

    // ---- memory -------------------------------------------------------------------------------

    /// (free, total)
    pub(super) fn memory_info(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        self.check(call!(self.cuMemGetInfo_v2(&mut free, &mut total)))?;
        Ok((free as u64, total as u64))
    }
    pub(super) fn alloc(&self, bytes: u64) -> Result<u64> {
        let _relaxed = self.relaxed();
        let mut at = 0;
        self.check(call!(self.cuMemAlloc_v2(&mut at, bytes as usize)))?;
        Ok(at)
    }
    /// Waits for the device, as the driver's call does.
    pub(super) fn free(&self, addr: u64) -> Result<()> {
        let _relaxed = self.relaxed();
        self.check(call!(self.cuMemFree_v2(addr)))
    }
    pub(super) fn managed_alloc(&self, bytes: u64) -> Result<u64> {
        let _relaxed = self.relaxed();
        let mut at = 0;
        let global = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL as u32;
        self.check(call!(self.cuMemAllocManaged(&mut at, bytes as usize, global)))?;
        Ok(at)
    }
    /// Whether it has the next two calls.
    pub(super) fn moves_managed(&self) -> bool {
        self.0.cuMemPrefetchAsync.is_some() && self.0.cuMemAdvise.is_some()
    }
    /// Moves pages of managed memory to a device, or to the processor, in the order of a stream.
    pub(super) fn managed_prefetch(&self, addr: u64, bytes: u64, to: i32, s: u64) -> Result<()> {
        let _relaxed = self.relaxed();
        self.check_stream(call!(self.cuMemPrefetchAsync(addr, bytes as usize, to, stream(s))))
    }
    pub(super) fn managed_advise(&self, addr: u64, bytes: u64, advice: CUmem_advise, by: i32) -> Result<()> {
        let _relaxed = self.relaxed();
        self.check(call!(self.cuMemAdvise(addr, bytes as usize, advice, by)))
    }
    /// Page-locked for all contexts.
    pub(super) fn host_alloc(&self, bytes: u64) -> Result<u64> {
        let _relaxed = self.relaxed();
        let mut at = null_mut();
        self.check(call!(self.cuMemHostAlloc(&mut at, bytes as usize, CU_MEMHOSTALLOC_PORTABLE)))?;
        Ok(at as usize as u64)
    }
    pub(super) fn host_free(&self, addr: u64) -> Result<()> {
        let _relaxed = self.relaxed();
        self.check(call!(self.cuMemFreeHost(host(addr))))
    }
    /// Locks pages of ordinary memory, for all contexts.
    pub(super) fn host_register(&self, addr: u64, bytes: u64) -> Result<()> {
        let _relaxed = self.relaxed();
        let portable = CU_MEMHOSTREGISTER_PORTABLE;
        self.check(call!(self.cuMemHostRegister_v2(host(addr), bytes as usize, portable)))
    }
    pub(super) fn host_unregister(&self, addr: u64) -> Result<()> {
        let _relaxed = self.relaxed();
        self.check(call!(self.cuMemHostUnregister(host(addr))))
    }
    /// Whether the driver knows the address: memory of its own, or page-locked by it.
    pub(super) fn is_known(&self, addr: u64) -> bool {
        let mut kind = 0u32;
        let out: *mut u32 = &mut kind;
        let which = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        call!(self.cuPointerGetAttribute(out.cast(), which, addr)).is_ok() && kind != 0
    }

    // ---- copies and fills ---------------------------------------------------------------------

    pub(super) fn copy_in(&self, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let _relaxed = self.relaxed();
        self.check(call!(self.cuMemcpyHtoD_v2(dst, host(src), bytes as usize)))
    }
    pub(super) fn copy_out(&self, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let _relaxed = self.relaxed();
        self.check(call!(self.cuMemcpyDtoH_v2(host(dst), src, bytes as usize)))
    }
    pub(super) fn copy_within(&self, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let _relaxed = self.relaxed();
        self.check(call!(self.cuMemcpyDtoD_v2(dst, src, bytes as usize)))
    }
    pub(super) fn copy_in_async(&self, dst: u64, src: u64, bytes: u64, s: u64) -> Result<()> {
        self.check_stream(call!(self.cuMemcpyHtoDAsync_v2(dst, host(src), bytes as usize, stream(s))))
    }
    pub(super) fn copy_out_async(&self, dst: u64, src: u64, bytes: u64, s: u64) -> Result<()> {
        self.check_stream(call!(self.cuMemcpyDtoHAsync_v2(host(dst), src, bytes as usize, stream(s))))
    }
    pub(super) fn copy_within_async(&self, dst: u64, src: u64, bytes: u64, s: u64) -> Result<()> {
        self.check_stream(call!(self.cuMemcpyDtoDAsync_v2(dst, src, bytes as usize, stream(s))))
    }
    /// From memory of the context `from` to memory of `to`, whether or not they can reach each other.
    pub(super) fn copy_peer_async(
        &self,
        (dst, to): (u64, Context),
        (src, from): (u64, Context),
        bytes: u64,
        s: u64,
    ) -> Result<()> {
        let (to, from) = (context(to), context(from));
        self.check_stream(call!(self.cuMemcpyPeerAsync(dst, to, src, from, bytes as usize, stream(s))))
    }
    pub(super) fn fill(&self, dst: u64, value: u8, bytes: u64) -> Result<()> {
        let _relaxed = self.relaxed();
        self.check(call!(self.cuMemsetD8_v2(dst, value, bytes as usize)))
    }
    pub(super) fn fill_async(&self, dst: u64, value: u8, bytes: u64, s: u64) -> Result<()> {
        self.check_stream(call!(self.cuMemsetD8Async(dst, value, bytes as usize, stream(s))))
    }

    // ---- streams and events -------------------------------------------------------------------

    /// A stream. Unless it is `non_blocking`, the legacy NULL stream waits for it, and it for the NULL stream.
    pub(super) fn stream_create(&self, priority: i32, non_blocking: bool) -> Result<u64> {
        let mut s = null_mut();
        let blocking = CUstream_flags::CU_STREAM_DEFAULT;
        let flags = if non_blocking { CUstream_flags::CU_STREAM_NON_BLOCKING } else { blocking } as u32;
        self.check(match priority {
            0 => call!(self.cuStreamCreate(&mut s, flags)),
            p => call!(self.cuStreamCreateWithPriority(&mut s, flags, p)),
        })?;
        Ok(s as usize as u64)
    }
    /// The numbers of the least and the greatest priority.
    pub(super) fn stream_priorities(&self) -> Result<(i32, i32)> {
        let (mut least, mut greatest) = (0, 0);
        self.check(call!(self.cuCtxGetStreamPriorityRange(&mut least, &mut greatest)))?;
        Ok((least, greatest))
    }
    /// The context of a stream. For a stream in a green context, the primary context of its device, if the driver
    /// reports it.
    pub(super) fn stream_context(&self, s: u64) -> Result<Context> {
        let _relaxed = self.relaxed();
        let (mut c, mut green) = (null_mut(), null_mut());
        self.check_stream(if self.0.cuStreamGetCtx_v2.is_some() {
            call!(self.cuStreamGetCtx_v2(stream(s), &mut c, &mut green))
        } else {
            call!(self.cuStreamGetCtx(stream(s), &mut c))
        })?;
        Ok(c as usize as u64)
    }
    pub(super) fn stream_destroy(&self, s: u64) -> Result<()> {
        self.check_stream(call!(self.cuStreamDestroy_v2(stream(s))))
    }
    pub(super) fn stream_query(&self, s: u64) -> Result<bool> {
        let _relaxed = self.relaxed();
        match call!(self.cuStreamQuery(stream(s))) {
            Err(f) if f.status == status::NOT_READY => Ok(false),
            other => self.check_stream(other).map(|()| true),
        }
    }
    pub(super) fn stream_synchronize(&self, s: u64) -> Result<()> {
        let _relaxed = self.relaxed();
        self.check_stream(call!(self.cuStreamSynchronize(stream(s))))
    }
    pub(super) fn stream_wait(&self, s: u64, e: u64) -> Result<()> {
        // The driver does not say which of the two handles was wrong.
        self.check_event(call!(self.cuStreamWaitEvent(stream(s), event(e), 0)))
    }
    /// Runs `f(data)` on a thread of the driver when the stream reaches it.
    pub(super) fn launch_host(
        &self,
        s: u64,
        f: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> Result<()> {
        self.check_stream(call!(self.cuLaunchHostFunc(stream(s), Some(f), data)))
    }
    /// The id of the capture that the stream is in, if any.
    pub(super) fn capture_id(&self, s: u64) -> Result<Option<u64>> {
        let (mut state, mut id) = (0u32, 0);
        let out: *mut u32 = &mut state;
        let none = null_mut();
        self.check_stream(call!(self.cuStreamGetCaptureInfo_v2(
            stream(s),
            out.cast(),
            &mut id,
            null_mut(),
            null_mut(),
            none
        )))?;
        Ok((state != 0).then_some(id))
    }
    pub(super) fn event_create(&self, timed: bool) -> Result<u64> {
        let mut e = null_mut();
        let flags =
            if timed { CUevent_flags::CU_EVENT_DEFAULT } else { CUevent_flags::CU_EVENT_DISABLE_TIMING }
                as u32;
        self.check(call!(self.cuEventCreate(&mut e, flags)))?;
        Ok(e as usize as u64)
    }
    pub(super) fn event_destroy(&self, e: u64) -> Result<()> {
        self.check_event(call!(self.cuEventDestroy_v2(event(e))))
    }
    pub(super) fn event_record(&self, e: u64, s: u64) -> Result<()> {
        self.check_stream(call!(self.cuEventRecord(event(e), stream(s))))
    }
    pub(super) fn event_query(&self, e: u64) -> Result<bool> {
        let _relaxed = self.relaxed();
        match call!(self.cuEventQuery(event(e))) {
            Err(f) if f.status == status::NOT_READY => Ok(false),
            other => self.check_event(other).map(|()| true),
        }
    }
    /// [ms] between two recorded events; `Busy` if one of them is not done.
    pub(super) fn event_elapsed(&self, start: u64, end: u64) -> Result<f32> {
        let _relaxed = self.relaxed();
        let mut ms = 0.0;
        match call!(self.cuEventElapsedTime(&mut ms, event(start), event(end))) {
            Err(f) if f.status == status::NOT_READY => {
                Err(Error::new(Code::Busy, "the work that an event recorded is not done"))
            }
            other => self.check_event(other).map(|()| ms),
        }
    }
    pub(super) fn event_synchronize(&self, e: u64) -> Result<()> {
        let _relaxed = self.relaxed();
        self.check_event(call!(self.cuEventSynchronize(event(e))))
    }

    // ---- the driver's own pools ---------------------------------------------------------------

    /// A pool of the device's memory that keeps up to `keep` unused bytes across waits.
    pub(super) fn pool_create(&self, device: i32, keep: u64) -> Result<u64> {
        let _relaxed = self.relaxed();
        let properties = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: location(device),
            win32SecurityAttributes: null_mut(),
            maxSize: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let mut pool = null_mut();
        self.check(call!(self.cuMemPoolCreate(&mut pool, &properties)))?;
        let mut keep = keep;
        let value: *mut u64 = &mut keep;
        let which = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let set = self.check(call!(self.cuMemPoolSetAttribute(pool, which, value.cast())));
        set.inspect_err(|_| {
            let _ = call!(self.cuMemPoolDestroy(pool));
        })?;
        Ok(pool as usize as u64)
    }
    /// Lets another device read and write all memory of the pool.
    pub(super) fn pool_admit(&self, pool: u64, device: i32) -> Result<()> {
        let _relaxed = self.relaxed();
        let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let description = CUmemAccessDesc { location: location(device), flags };
        self.check(call!(self.cuMemPoolSetAccess(pool as usize as CUmemoryPool, &description, 1)))
    }
    pub(super) fn pool_destroy(&self, pool: u64) -> Result<()> {
        let _relaxed = self.relaxed();
        self.check(call!(self.cuMemPoolDestroy(pool as usize as CUmemoryPool)))
    }
    pub(super) fn pool_alloc(&self, pool: u64, s: u64, bytes: u64) -> Result<u64> {
        let _relaxed = self.relaxed();
        let mut at = 0;
        let pool = pool as usize as CUmemoryPool;
        self.check_stream(call!(self.cuMemAllocFromPoolAsync(&mut at, bytes as usize, pool, stream(s))))?;
        Ok(at)
    }
    pub(super) fn pool_free(&self, addr: u64, s: u64) -> Result<()> {
        let _relaxed = self.relaxed();
        self.check_stream(call!(self.cuMemFreeAsync(addr, stream(s))))
    }
    pub(super) fn pool_trim(&self, pool: u64, keep: u64) -> Result<()> {
        let _relaxed = self.relaxed();
        self.check(call!(self.cuMemPoolTrimTo(pool as usize as CUmemoryPool, keep as usize)))
    }
    pub(super) fn pool_number(&self, pool: u64, which: CUmemPool_attribute) -> Result<u64> {
        let mut n = 0u64;
        let value: *mut u64 = &mut n;
        let pool = pool as usize as CUmemoryPool;
        self.check(call!(self.cuMemPoolGetAttribute(pool, which, value.cast())))?;
        Ok(n)
    }
}

fn location(device: i32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// See [`Driver::relaxed`].
pub(super) struct Relaxed {
    driver: Driver,
    before: u32,
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        self.driver.exchange_capture_mode(&mut self.before);
    }
}
