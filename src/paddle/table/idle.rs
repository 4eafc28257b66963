//! What happens to memory that the host has freed: it goes back to the device, for hosts that cache above
//! us, or stays in the pool.
//!
//! PaddlePaddle's strategies all keep a cache of their own, so what reaches `device_memory_deallocate` is
//! what that cache gave up: a second cache below it would only hide memory from everybody else. Small
//! requests are still packed together, since a device hands out whole granules; so the pool is emptied
//! once a granule's worth of frees has come together, and when the last block ends. That bounds what
//! stays by about two granules beside what live blocks pin down, and keeps the cost of a free small.
//!
//! A host without a cache asks for the same memory again at once, and each time pays for taking it and giving it back.
//! Where that is seen, up to 1/64 of the device stays.

use super::options::Options;
use crate::device::host::MAX_DEVICES;
use crate::runtime::DeviceState;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// [B] frees that come together before the pool is emptied: the granule of the devices that map.
const BATCH: u64 = 2 << 20;

/// How much of the device may stay where the host asks for it again and again: this part.
const MOST_PART: u64 = 64;

/// What is known of a device. Relaxed: counts of their own. Two threads may both find one full, and then both empty
/// the pool.
struct Count {
    /// [B] freed since the pool was looked at.
    freed: AtomicU64,
    /// [B] what the pool gave back when it was last emptied.
    given: AtomicU64,
    /// [B] what it had taken by then, in all.
    taken: AtomicU64,
    /// Whether something stays: then the end of the last block is no reason to look.
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

/// To be called after the host has freed a block of `bytes`; 0 when it did not say how many.
///
/// Waits for the device when the pool is emptied, as `cudaFree` does. What cannot go back, or not now, stays
/// for the next request; that is no error of the free.
pub(super) fn freed(device: &DeviceState, bytes: u64) {
    if Options::get().keeps {
        return;
    }
    // More devices than the built-in types have share the last count.
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
    // Before the count starts again: inside a stream's callback nothing may wait, and the next free tries.
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
