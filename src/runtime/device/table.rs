//! Every device that was ever opened, by number, so that a late handle finds a record and not a hole.
//!
//! A number is used once: a device that is opened again after `finalize` gets a new one. Records are
//! never freed (a few KiB per device and opening); that is what lets a stale handle, a static
//! destructor or a thread that comes late get a status without a lock or a count on the hot path.

use crate::base::error::{Code, Error, Result};
use crate::base::slots::AtomicRef;
use crate::runtime::device::state::DeviceState;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// Records of one chunk. Chunks are made as numbers are used.
const CHUNK: usize = 256;
/// Chunks at most: 65 536 openings in one process.
const CHUNKS: usize = 256;

type Chunk = [OnceLock<Arc<DeviceState>>; CHUNK];

// All zeros, so that the table takes no room in a program's file.
static TABLE: [AtomicRef<Chunk>; CHUNKS] = [const { AtomicRef::none() }; CHUNKS];
static NEXT: AtomicU32 = AtomicU32::new(0);
/// Devices below this number have all ended.
static FIRST: AtomicU32 = AtomicU32::new(0);

/// All devices are ending, or have ended, and none was opened since.
static ALL_END: AtomicBool = AtomicBool::new(false);

/// Whether any device has ever had an address space of its own: then one address may be that of several blocks.
static OWN_ADDRESSES: AtomicBool = AtomicBool::new(false);

/// Whether two devices may have blocks at one address.
#[inline]
pub(crate) fn own_addresses() -> bool {
    // Relaxed: who holds an address of a device learnt it after the device was kept.
    OWN_ADDRESSES.load(Ordering::Relaxed)
}

/// A number that no device had before.
pub(crate) fn next_id() -> Result<u32> {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    if id as usize >= CHUNK * CHUNKS {
        NEXT.fetch_sub(1, Ordering::Relaxed);
        return Err(Error::new(Code::System, "devices were opened too many times in this process"));
    }
    Ok(id)
}

/// Keeps `state` under its number for the rest of the process.
pub(crate) fn keep(state: &Arc<DeviceState>) {
    let id = state.id() as usize;
    ALL_END.store(false, Ordering::Relaxed);
    if state.device().facts().own_addresses {
        OWN_ADDRESSES.store(true, Ordering::Relaxed);
    }
    let chunk = TABLE[id / CHUNK].get_or_make(|| Box::new([const { OnceLock::new() }; CHUNK]));
    let _ = chunk[id % CHUNK].set(state.clone());
}

/// The device of that number, ended or not. Lock-free.
#[inline]
pub fn by_id(id: u32) -> Option<&'static Arc<DeviceState>> {
    TABLE.get(id as usize / CHUNK)?.get()?[id as usize % CHUNK].get()
}

/// All devices that are open now, oldest first. Lock-free.
pub(crate) fn open_devices() -> impl Iterator<Item = &'static Arc<DeviceState>> {
    // Relaxed: whoever holds an address of a device learnt it after the device was kept.
    (FIRST.load(Ordering::Relaxed)..NEXT.load(Ordering::Relaxed)).filter_map(by_id).filter(|d| d.is_open())
}

/// All devices are about to end, one after the other. Until another one is opened, what is not found on those that are open yet
/// may be on one that is not any more.
pub(crate) fn all_end() {
    // Relaxed: the doors are shut after this, by stores that release it. `not_found` has the other side.
    ALL_END.store(true, Ordering::Relaxed);
}

/// What a search says that has found nothing on the open devices.
pub(crate) fn not_found(worst: Option<Error>) -> Error {
    // If the search has passed over a device because its door is shut, this sees what was stored before.
    fence(Ordering::Acquire);
    worst
        .filter(|_| !ALL_END.load(Ordering::Relaxed))
        .unwrap_or_else(|| Error::new(Code::NotInitialized, "no device is open"))
}

/// All devices so far have ended: searches need not look at them again.
pub(crate) fn all_ended() {
    FIRST.store(NEXT.load(Ordering::Relaxed), Ordering::Relaxed);
}
