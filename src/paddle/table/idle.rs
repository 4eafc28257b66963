//! What happens to memory that the host has freed: it goes back to the device, for hosts that cache above
//! us, or stays in the pool.
//!
//! PaddlePaddle's strategies all keep a cache of their own, so what reaches `device_memory_deallocate` is
//! what that cache gave up: a second cache below it would only hide memory from everybody else. Small
//! requests are still packed together, since a device hands out whole granules; so the pool is emptied
//! once a granule's worth of frees has come together, and when the last block ends. That bounds what
//! stays by about two granules beside what live blocks pin down, and keeps the cost of a free small.

use super::options::Options;
use crate::device::host::MAX_DEVICES;
use crate::runtime::DeviceState;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// [B] frees that come together before the pool is emptied: the granule of the devices that map.
const BATCH: u64 = 2 << 20;

/// Bytes freed since the pool of each device was emptied. Relaxed: a count of its own, which two threads
/// may both find full, and then both empty the pool.
static FREED: [AtomicU64; MAX_DEVICES] = [const { AtomicU64::new(0) }; MAX_DEVICES];

/// To be called after the host has freed a block of `bytes`; 0 when it did not say how many.
///
/// Waits for the device when the pool is emptied, as `cudaFree` does. What cannot go back, or not now, stays
/// for the next request; that is no error of the free.
pub(super) fn freed(device: &DeviceState, bytes: u64) {
    if Options::get().keeps {
        return;
    }
    // More devices than the built-in types have share the last count.
    let freed = &FREED[device.ordinal().min(MAX_DEVICES - 1)];
    let bytes = if bytes == 0 { BATCH } else { bytes.min(u64::MAX / 2) };
    let enough = freed.fetch_add(bytes, Relaxed).saturating_add(bytes) >= BATCH;
    if !enough && device.memory().live_blocks() != 0 {
        return;
    }
    // Before the count starts again: inside a stream's callback nothing may wait, and the next free tries.
    if device.synchronize().is_err() {
        return;
    }
    freed.store(0, Relaxed);
    let _ = device.memory().empty_cache(None);
}
