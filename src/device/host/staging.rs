//! Copies and fills bytes; also the staging buffers that hold a pageable source until its stream reaches the copy.
//!
//! Staged bytes of a device are bounded by [`STAGING_LIMIT`]; a copy that does not fit waits for its stream instead.
//! Copies take no lock.

use crate::base::error::{Code, Error, Result};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// [B] the maximum that queued copies of one device may hold in staging buffers.
pub(super) const STAGING_LIMIT: u64 = 64 << 20;

/// Checks one end of a copy of `bytes` (not 0): not null, no overflow.
pub(super) fn check_end(addr: u64, bytes: u64) -> Result<()> {
    if addr == 0 {
        return Err(Error::new(Code::InvalidArgument, "a copy from or to a null pointer"));
    }
    if bytes > isize::MAX as u64 || addr.checked_add(bytes).is_none() {
        return Err(Error::new(Code::OutOfRange, "a copy that runs past the end of the address space"));
    }
    Ok(())
}

/// Copies as if through a buffer: the ranges may overlap.
///
/// # Safety
/// Both ranges are mapped, the source readable and the destination writable.
pub(super) unsafe fn move_bytes(dst: u64, src: u64, bytes: u64) {
    let to: *mut u8 = ptr::with_exposed_provenance_mut(dst as usize);
    let from: *const u8 = ptr::with_exposed_provenance(src as usize);
    // SAFETY: the caller guarantees both ranges; `copy` allows overlap.
    unsafe { ptr::copy(from, to, bytes as usize) };
}

/// Fills a range with one byte.
///
/// # Safety
/// The range is mapped and writable.
pub(super) unsafe fn fill_bytes(dst: u64, value: u8, bytes: u64) {
    let to: *mut u8 = ptr::with_exposed_provenance_mut(dst as usize);
    // SAFETY: the caller guarantees the range.
    unsafe { ptr::write_bytes(to, value, bytes as usize) };
}

/// The staging buffers of one device.
pub(super) struct Staging {
    used: AtomicU64, // [B] in live buffers; a lone counter, so Relaxed throughout
}

impl Staging {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Staging { used: AtomicU64::new(0) })
    }

    /// Reads the source now. `None` if it does not fit within the limit (`force` ignores the limit) or if the process
    /// has no memory for it.
    ///
    /// # Safety
    /// The source range is mapped and readable.
    pub(super) unsafe fn stage(self: &Arc<Self>, src: u64, bytes: u64, force: bool) -> Option<Staged> {
        let fits = |used: u64| used.checked_add(bytes).filter(|n| force || *n <= STAGING_LIMIT);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        let mut staged = Staged { bytes: Vec::new(), counted: bytes, home: Arc::clone(self) };
        staged.bytes.try_reserve_exact(bytes as usize).ok()?;
        let from: *const u8 = ptr::with_exposed_provenance(src as usize);
        // SAFETY: the caller guarantees the source; the buffer was made `bytes` long just now, and a
        // new buffer does not overlap the caller's memory.
        unsafe { ptr::copy_nonoverlapping(from, staged.bytes.as_mut_ptr(), bytes as usize) };
        // SAFETY: the copy above initialised this many bytes, within the capacity.
        unsafe { staged.bytes.set_len(bytes as usize) };
        Some(staged)
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// A source that was read when its copy was queued. Dropping it returns its share of the limit.
pub(super) struct Staged {
    bytes: Vec<u8>,
    counted: u64, // [B] taken from the limit
    home: Arc<Staging>,
}

impl Staged {
    /// Writes the bytes to their destination.
    ///
    /// # Safety
    /// The destination is mapped and writable.
    pub(super) unsafe fn unload(&self, dst: u64) {
        let to: *mut u8 = ptr::with_exposed_provenance_mut(dst as usize);
        // SAFETY: the caller guarantees the destination; our private buffer does not overlap it.
        unsafe { ptr::copy_nonoverlapping(self.bytes.as_ptr(), to, self.bytes.len()) };
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.home.used.fetch_sub(self.counted, Ordering::Relaxed);
    }
}
