//! Thin wrappers of the system's page calls: reserve, map a file, give back.
//!
//! Sizes and addresses are in bytes and multiples of the page size unless said otherwise. Nothing here keeps a table:
//! `memory.rs` and `granules.rs` own the ranges and guarantee the unsafe contracts.

use crate::base::error::{Code, Error, Result};
use crate::fail;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's page size, in bytes.
pub(super) fn page_size() -> u64 {
    static CACHED: AtomicU64 = AtomicU64::new(0);
    match CACHED.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: sysconf reads a number and touches no memory of ours.
            let n = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            let n = u64::try_from(n).unwrap_or(4096);
            CACHED.store(n, Ordering::Relaxed);
            n
        }
        n => n,
    }
}

/// `bytes` rounded up to whole pages; `None` on overflow.
pub(super) fn whole_pages(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(page_size())
}

/// The error of the system call `what`, which has just failed on this thread.
pub(super) fn os_error(what: &str) -> Error {
    let e = std::io::Error::last_os_error();
    let code = if e.raw_os_error() == Some(libc::ENOMEM) { Code::OutOfMemory } else { Code::System };
    Error::formatted(code, format_args!("{what}: {e}"))
}

fn at(addr: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(addr as usize)
}

/// Private zeroed pages at a multiple of `align` (a power of two), not committed until touched. With `access` false
/// only the addresses are reserved, and every touch faults.
pub(super) fn map_anonymous(bytes: u64, align: u64, access: bool) -> Result<u64> {
    let page = page_size();
    let slack = align.saturating_sub(page);
    let Some(span) = bytes.checked_add(slack).filter(|s| *s <= isize::MAX as u64) else {
        fail!(Code::OutOfMemory, "{bytes} bytes of addresses do not exist");
    };
    let prot = if access { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice changes no existing one.
    let base = unsafe { libc::mmap(ptr::null_mut(), span as usize, prot, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(os_error("mmap"));
    }
    let base = base.expose_provenance() as u64;
    let start = base.next_multiple_of(align.max(page));
    let (end, span_end) = (start + bytes, base + span);
    if start > base {
        // SAFETY: `base..start` is the head of the mapping made above, which nobody else knows.
        unsafe { unmap(base, start - base) };
    }
    if span_end > end {
        // SAFETY: `end..span_end` is the tail of the mapping made above, which nobody else knows.
        unsafe { unmap(end, span_end - end) };
    }
    Ok(start)
}

/// Ends a mapping.
///
/// # Safety
/// The caller owns `addr .. addr + bytes`, and nothing uses it from now on.
pub(super) unsafe fn unmap(addr: u64, bytes: u64) {
    // SAFETY: the caller owns the range.
    let rc = unsafe { libc::munmap(at(addr), bytes as usize) };
    // It fails only for a malformed range, or if splitting a range would exceed the kernel's limit of mappings; the
    // range then stays reserved, which does no harm.
    debug_assert!(rc == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM));
}

/// Maps the bytes of file `fd` from `offset` on at `addr .. addr + bytes`, shared.
///
/// # Safety
/// The caller owns the range, and nothing uses what is mapped there now.
#[cfg(target_os = "linux")]
pub(super) unsafe fn map_file(addr: u64, bytes: u64, fd: i32, offset: u64) -> Result<()> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the caller owns the range; MAP_FIXED replaces nothing outside it.
    let got = unsafe { libc::mmap(at(addr), bytes as usize, prot, flags, fd, offset as libc::off_t) };
    if got != libc::MAP_FAILED {
        return Ok(());
    }
    let error = os_error("mmap of device memory");
    // Older kernels may have removed the reservation before they failed: put it back.
    // SAFETY: the caller owns the range.
    let _ = unsafe { reserve_again(addr, bytes) };
    Err(error)
}

/// Turns `addr .. addr + bytes` back into a bare reservation.
///
/// # Safety
/// The caller owns the range, and nothing uses what is mapped there now.
#[cfg(target_os = "linux")]
pub(super) unsafe fn reserve_again(addr: u64, bytes: u64) -> Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the caller owns the range; MAP_FIXED replaces nothing outside it.
    let got = unsafe { libc::mmap(at(addr), bytes as usize, libc::PROT_NONE, flags, -1, 0) };
    if got == libc::MAP_FAILED { Err(os_error("mmap of a reservation")) } else { Ok(()) }
}

/// [B] the minimum that one thread touches: less is not worth a thread.
const SHARE: u64 = 1 << 20;

/// Commits pages of zeros; each of `threads` (1 or more) threads touches a part. If a thread cannot be started, its
/// part stays uncommitted until first use. All threads have ended when this returns.
///
/// # Safety
/// The caller owns `addr .. addr + bytes`, whole pages of zeros that nobody else uses yet.
pub(super) unsafe fn touch(addr: u64, bytes: u64, threads: u32) {
    let page = page_size();
    let part = bytes.div_ceil(u64::from(threads.max(1))).max(SHARE).next_multiple_of(page);
    let touch_part = |from: u64| {
        for offset in (from..bytes.min(from + part)).step_by(page as usize) {
            let p: *mut u8 = at(addr + offset).cast();
            // SAFETY: the caller owns the range, and each part is touched by one thread only; the byte is 0 already.
            unsafe { p.write_volatile(0) };
        }
    };
    std::thread::scope(|s| {
        for from in (part..bytes).step_by(part as usize) {
            let _ = std::thread::Builder::new().spawn_scoped(s, move || touch_part(from));
        }
        touch_part(0);
    });
}

/// Locks pages into RAM; `false` if the limit (`RLIMIT_MEMLOCK`) forbids it.
pub(super) fn lock_pages(addr: u64, bytes: u64) -> bool {
    // SAFETY: mlock changes residency only, never contents; a bad range is an error.
    unsafe { libc::mlock(at(addr), bytes as usize) == 0 }
}
