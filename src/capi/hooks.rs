//! Hooks on each allocation and free.

use crate::base::error::{Code, Error};
use crate::capi::guard::{Out, UserData, answered, run, run_roomy};
use crate::capi::handles;
use crate::capi::pool::to_ptr;
use crate::capi::types::{millpond_device, millpond_pool};
use crate::ffi::exceptions;
use crate::paddle::abi::{C_Status, C_Stream};
use crate::runtime::{BlockEvent, BlockEventKind, DeviceState};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A block was allocated; the call that did it has not returned yet.
pub const MILLPOND_HOOK_ALLOC: u32 = 1;
/// A block is about to be freed: nobody else can have its memory yet.
pub const MILLPOND_HOOK_FREE: u32 = 2;
/// The free that was told of last for this block has failed: the block lives on.
pub const MILLPOND_HOOK_FREE_FAILED: u32 = 3;

const _: () = assert!(
    MILLPOND_HOOK_ALLOC == BlockEventKind::Alloc as u32
        && MILLPOND_HOOK_FREE == BlockEventKind::Free as u32
        && MILLPOND_HOOK_FREE_FAILED == BlockEventKind::FreeFailed as u32
);

/// What a hook is told. Valid during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct millpond_block_event {
    /// sizeof this struct in the library, which may be larger than the caller's.
    pub struct_size: usize,
    /// One of MILLPOND_HOOK_ALLOC, _FREE and _FREE_FAILED.
    pub kind: u32,
    /// 1 if the block has a stream, 0 if it has none.
    pub has_stream: u32,
    /// Where the block starts.
    pub ptr: *mut c_void,
    /// Its size as requested.
    pub requested_bytes: usize,
    /// Its size as charged to the pool.
    pub size_bytes: usize,
    /// The stream of the block; NULL also for a block without one.
    pub stream: C_Stream,
    /// Its pool; NULL if that has ended meanwhile.
    pub pool: *mut millpond_pool,
    /// Its device.
    pub device: *mut millpond_device,
}

/// Called with the pointer given to `millpond_device_add_hook` and the event, on the thread that allocates or frees, on
/// several at once. Millpond holds no lock. It may call everything that the caller of the allocation may call; what it
/// allocates and frees itself is not told to any hook. It should not throw: that is lost.
pub type millpond_hook =
    Option<unsafe extern "C-unwind" fn(user_data: *mut c_void, event: *const millpond_block_event)>;

/// Called once with the pointer given to `millpond_device_add_hook`, when no call of the hook runs or will come any more,
/// on whichever thread is the last that had to do with it. Millpond holds no lock, so it may free blocks. It should not
/// throw: that is lost.
pub type millpond_hook_destroy = Option<unsafe extern "C-unwind" fn(user_data: *mut c_void)>;

/// What a hook is called with, and what ends it.
struct Owned {
    data: UserData,
    destroy: millpond_hook_destroy,
    /// Set once the caller has the hook: what fails before leaves `data` to him.
    taken: AtomicBool,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // Relaxed: whoever gave up the last share of this has seen what was done with all others.
        if let (Some(destroy), true) = (self.destroy, self.taken.load(Relaxed)) {
            let _ = answered(|| {
                // SAFETY: the caller gave a function for exactly this call with this pointer.
                unsafe { destroy(self.data.0) };
                true
            });
        }
    }
}

fn event(device: &DeviceState, e: &BlockEvent) -> millpond_block_event {
    millpond_block_event {
        struct_size: size_of::<millpond_block_event>(),
        kind: e.kind as u32,
        has_stream: u32::from(e.stream.is_some()),
        ptr: to_ptr(e.address),
        requested_bytes: e.requested as usize,
        size_bytes: e.charged as usize,
        stream: to_ptr(e.stream.unwrap_or(0)).cast(),
        pool: handles::of_live_pool(device, e.pool).unwrap_or(std::ptr::null_mut()),
        device: handles::of_device(device),
    }
}

/// Registers a hook: from now on `hook` is called for each block of the device, of any pool, that is allocated, and for
/// each that is freed, whoever does it: after the allocation and before its caller has the block; before the free, as
/// long as nobody else can have the memory. So for each address the two come in turn. `millpond_try_expand` is told as a
/// free and an allocation of the same address: a free before a block gets shorter, which may be told as failed; both when
/// it has grown, and neither if it could not. A restore is told likewise, but only when it is done: what it has freed,
/// another thread may have by then, and may be told of first. Calls that are under way when a hook comes or goes may go
/// untold, and so do blocks that end with their device. Pinned host memory has no hooks. Hooks are called in the order of
/// their registration.
///
/// While a device has hooks, all its allocations and frees take the long way. A history
/// (`millpond_device_history_start`) sees the same for less, but is read later. The number in `out_id` is never 0. The
/// caller removes the hook with `millpond_device_remove_hook`; it ends with the device, but may still be running then on
/// another thread. `destroy` may be NULL; it tells when `user_data` is not used any more, after either end. If this call
/// fails, it is not called.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_add_hook(
    device: *mut millpond_device,
    hook: millpond_hook,
    user_data: *mut c_void,
    destroy: millpond_hook_destroy,
    out_id: *mut u64,
) -> C_Status {
    run_roomy(|| {
        let Some(call) = hook else {
            return Err(Error::new(Code::InvalidArgument, "hook is NULL"));
        };
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_id, "out_id") }?;
        let device = handles::device(device)?;
        let owned = Arc::new(Owned { data: UserData(user_data), destroy, taken: AtomicBool::new(false) });
        let held = owned.clone();
        let run_it = move |e: &BlockEvent| {
            let event = event(device, e);
            // SAFETY: the caller gave a function for exactly this call with this pointer.
            let _ = exceptions::caught(|| unsafe { call(held.data.0, &event) }); // what it throws is dropped
        };
        let id = device.memory().hooks().add_shared(Arc::new(run_it), destroy.is_some())?;
        owned.taken.store(true, Relaxed);
        out.set(id);
        Ok(())
    })
}

/// Removes a hook. When this returns, no thread is in it, and `user_data` may be destroyed. It does not wait for other
/// threads where it is called from within a hook or an out-of-memory callback, nor in a stream callback, since a thread in
/// the hook may wait for that stream: there `destroy` tells when none is in it. Else hold no lock that the hook takes.
///
/// Errors: INVALID_ARGUMENT if the number belongs to no hook, to a removed one, or to one of another device;
/// NOT_PERMITTED in a stream callback, and the hook stays, if it has no `destroy`; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_remove_hook(device: *mut millpond_device, id: u64) -> C_Status {
    run(|| handles::device(device)?.memory().hooks().remove(id))
}
