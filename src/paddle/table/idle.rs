//! What happens to memory that the host has freed: it goes back to the device, for hosts with a cache of their own, or
//! stays in the pool.
//!
//! PaddlePaddle's strategies all have a cache of their own, so what reaches `device_memory_deallocate` is what that
//! cache has released: a second cache below it would only withhold memory from everybody else. Small requests are still
//! packed together, since a device hands out whole granules; so the pool is emptied once a granule's worth of frees has
//! accumulated, and when the last block is freed. That limits what stays to about two granules beyond what live blocks
//! pin, and keeps the cost of a free small.
//!
//! A host without a cache asks for the same memory again at once, and pays each time for taking it and giving it back.
//! If that is observed, up to 1/64 of the device stays.

use super::options::Options;
use crate::device::host::MAX_DEVICES;
use crate::runtime::DeviceState;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// [B] frees that accumulate before the pool is emptied: the granule of the devices that map.
const BATCH: u64 = 2 << 20;

/// At most 1 / this of the device stays if the host asks for it again and again.
const MOST_PART: u64 = 64;

/// The counters of one device. Relaxed: each is independent. Two threads may both find one full, and then both empty
/// the pool.
struct Count {
    /// [B] freed since the pool was last checked.
    freed: AtomicU64,
    /// [B] what the pool gave back when it was last emptied.
    given: AtomicU64,
    /// [B] what the pool had taken by then, in total.
    taken: AtomicU64,
    /// Whether something stays; then the end of the last block is no reason to empty the pool.
    stays: AtomicBool,
}

static COUNTS: [Count; MAX_DEVICES] = [const {
    Count {
        freed: AtomicU64::new(0),
        given: AtomicU64::new(0),
        taken: AtomicU64::new(0),
        stays: AtomicBool::new(false),
    }
}; MAX_DEVICES];

/// Must be called after the host has freed a block of `bytes`; 0 if it did not say how many.
///
/// Waits for the device if the pool is emptied, as `cudaFree` does. What cannot go back, or not now, stays for the next
/// request; that is no error of the free.
pub(super) fn freed(device: &DeviceState, bytes: u64) {
    if Options::get().keeps {
        return;
    }
    // All devices beyond what the built-in types have share the last entry.
    let c = &COUNTS[device.ordinal().min(MAX_DEVICES - 1)];
    let bytes = if bytes == 0 { BATCH } else { bytes.min(u64::MAX / 2) };
    let enough = c.freed.fetch_add(bytes, Relaxed).saturating_add(bytes) >= BATCH;
    if !enough && (c.stays.load(Relaxed) || device.memory().live_blocks() != 0) {
        return;
    }
    let before = device.memory().stats();
    let idle = before.reserved.current.saturating_sub(before.active.current);
    let given = c.given.load(Relaxed);
    let asked_again = given != 0 && before.reserved.total.saturating_sub(c.taken.load(Relaxed)) >= given;
    if asked_again && idle <= most(device) {
        c.stays.store(true, Relaxed);
        c.freed.store(0, Relaxed);
        return;
    }
    c.stays.store(false, Relaxed);
    // Before the counter restarts: a stream's callback must not wait, so there the next free tries again.
    if device.synchronize().is_err() {
        return;
    }
    c.freed.store(0, Relaxed);
    let _ = device.memory().empty_cache(None);
    let after = device.memory().stats().reserved;
    c.given.store(before.reserved.current.saturating_sub(after.current), Relaxed);
    c.taken.store(after.total, Relaxed);
}

/// [B] the most that may stay.
fn most(device: &DeviceState) -> u64 {
    device.info().map_or(0, |i| i.memory.total / MOST_PART)
}
