//! Scopes: the pool that serves a thread's requests to the default pool.

use crate::capi::guard::{run, run_entering};
use crate::capi::handles;
use crate::capi::types::millpond_pool;
use crate::paddle::abi::C_Status;

/// Serves the calling thread's requests to the default pool of `pool`'s device from `pool` from now on:
/// `millpond_alloc`,
/// `millpond_pool_alloc` on the default pool, and what is built on them. Requests that name another pool, other threads
/// and other devices are not affected, and blocks are freed as always. Scopes nest: the innermost of a device counts,
/// and one of the default pool itself ends the effect of outer ones. A scope that a thread leaves open ends with the
/// thread. While any thread has a scope open on a device, requests to its default pool take a few nanoseconds more.
///
/// Errors: INVALID_ARGUMENT for a pool that does not exist; NOT_PERMITTED for one that was released; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_scope_begin(pool: *mut millpond_pool) -> C_Status {
    run_entering(|| {
        let (device, id) = handles::pool(pool)?;
        device.memory().pools().begin_scope(id)
    })
}

/// Ends the calling thread's innermost scope of the device, which must be one of `pool`. While any thread has a scope
/// open, `millpond_pool_destroy` of its pool returns BUSY.
///
/// Errors: NOT_PERMITTED when this thread has no scope open on the device (perhaps another thread has), or
/// the innermost is one of another pool; INVALID_ARGUMENT; NOT_INITIALIZED. After an error no scope has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_scope_end(pool: *mut millpond_pool) -> C_Status {
    run(|| {
        let (device, id) = handles::pool(pool)?;
        device.memory().pools().end_scope(id)
    })
}
