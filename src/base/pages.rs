//! Memory of the system in whole pages, huge ones where it has them.

use super::error::{Code, Result};
use crate::fail;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::with_exposed_provenance_mut;

/// \[B\] alignment, and the step in which pages are touched.
const PAGE: usize = 4096;

/// Page-aligned memory of the system, whose contents are undefined at first.
pub(crate) struct Pages {
    addr: usize,
    bytes: usize,
}

impl Pages {
    /// \[B\] of a huge page. Memory of at least one is aligned to it: with huge pages it is touched in a third of the time, and
    /// locked in half (docs/measurements.md).
    const HUGE: usize = 2 << 20;

    /// `bytes` of it, at least one. `OutOfMemory` if the system has no more.
    pub(crate) fn new(bytes: u64) -> Result<Pages> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).max(1);
        match raw::take(bytes) {
            Some(addr) => Ok(Pages { addr, bytes }),
            None => fail!(Code::OutOfMemory, "no {bytes} bytes of host memory"),
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.addr as u64
    }

    /// Writes to each page, on `threads` threads that end before this returns. If the system refuses a thread, its part
    /// stays untouched.
    pub(crate) fn touch(&mut self, threads: usize) {
        // SAFETY: `new` made this memory, and who has `&mut` of it has it alone.
        let all = unsafe {
            std::slice::from_raw_parts_mut(
                with_exposed_provenance_mut::<MaybeUninit<u8>>(self.addr),
                self.bytes,
            )
        };
        let part = self.bytes.div_ceil(threads.max(1)).next_multiple_of(PAGE);
        let touch = |part: &mut [MaybeUninit<u8>]| {
            part.iter_mut().step_by(PAGE).for_each(|b| {
                b.write(0);
            });
        };
        std::thread::scope(|scope| {
            let mut parts = all.chunks_mut(part);
            let own = parts.next();
            for p in parts {
                // What is not touched here, its user touches.
                let _ = std::thread::Builder::new().spawn_scoped(scope, move || touch(p));
            }
            own.into_iter().for_each(touch);
        });
    }

    /// Leaves the memory to the caller, who has to make it `Pages` `again`. Returns where it is.
    pub(crate) fn leave(self) -> u64 {
        ManuallyDrop::new(self).address()
    }

    /// Memory that was left to the caller.
    ///
    /// # Safety
    ///
    /// `leave` gave this address, `new` got this size, and nobody has made it `Pages` since, or uses it.
    pub(crate) unsafe fn again(addr: u64, bytes: u64) -> Pages {
        Pages { addr: addr as usize, bytes: usize::try_from(bytes).unwrap_or(usize::MAX).max(1) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        raw::give_back(self.addr, self.bytes);
    }
}

/// Mappings of their own, with huge pages from that size on. Neighbours are one mapping for the system, so that many take no
/// room between them, and few of the mappings that a process may have (65 530).
#[cfg(target_os = "linux")]
mod raw {
    use super::Pages;
    use std::ptr::{null_mut, with_exposed_provenance_mut};

    /// The start of fresh memory; `None`: there is none.
    pub(super) fn take(bytes: usize) -> Option<usize> {
        if bytes < Pages::HUGE {
            return map(bytes);
        }
        // SAFETY: asks a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(super::PAGE);
        let bytes = bytes.checked_next_multiple_of(page)?;
        // The system itself may align it, or the neighbour above may be aligned.
        let start = match map(bytes)? {
            at if at.is_multiple_of(Pages::HUGE) => at,
            at => {
                give_back(at, bytes);
                let length = bytes.checked_add(Pages::HUGE)?;
                // Where only so much fits, it lies where it fits.
                let Some(at) = map(length) else { return map(bytes) };
                // The last place that fits, since the system goes from the top down: so the next one fits below.
                let start = (at + length - bytes) & !(Pages::HUGE - 1);
                give_back(at, start - at);
                give_back(start + bytes, at + length - start - bytes);
                start
            }
        };
        // Only a hint; what follows the last whole huge page has small ones. All of it, so that neighbours are alike.
        // SAFETY: the range was just mapped by this call.
        unsafe { libc::madvise(with_exposed_provenance_mut(start), bytes, libc::MADV_HUGEPAGE) };
        Some(start)
    }

    fn map(bytes: usize) -> Option<usize> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh anonymous mapping; it touches no memory that exists.
        let at = unsafe { libc::mmap(null_mut(), bytes, access, flags, -1, 0) };
        (at != libc::MAP_FAILED).then(|| at.expose_provenance())
    }

    pub(super) fn give_back(start: usize, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let at = with_exposed_provenance_mut(start);
        // SAFETY: `take` mapped this range, and nobody uses it any more.
        if unsafe { libc::munmap(at, bytes) } != 0 {
            // The hole would be one mapping too many. So only the memory goes back, and the addresses stay taken.
            // SAFETY: as above.
            unsafe { libc::madvise(at, bytes, libc::MADV_DONTNEED) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod raw {
    use std::alloc::{Layout, alloc, dealloc};
    use std::ptr::with_exposed_provenance_mut;

    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes, super::PAGE).ok()
    }

    pub(super) fn take(bytes: usize) -> Option<usize> {
        // SAFETY: the size is not 0.
        let at = unsafe { alloc(layout(bytes)?) };
        (!at.is_null()).then(|| at.expose_provenance())
    }

    pub(super) fn give_back(start: usize, bytes: usize) {
        if let Some(layout) = layout(bytes) {
            // SAFETY: `take` allocated it with this layout, and nobody uses it any more.
            unsafe { dealloc(with_exposed_provenance_mut(start), layout) }
        }
    }
}

#[cfg(all(test, not(loom), target_os = "linux"))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// [KiB] of address space of this process.
    fn mapped() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|l| l.starts_with("VmSize:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn pages_are_aligned_and_many_of_them_take_little_more_than_their_bytes() {
        for bytes in [1, 5000, 1 << 20, 2 << 20, (5 << 20) + 4097] {
            let mut pages = Pages::new(bytes).unwrap();
            let align = if bytes >= 2 << 20 { Pages::HUGE } else { PAGE };
            assert_eq!(pages.address() as usize % align, 0, "{bytes} bytes");
            pages.touch(2);
        }
        let before = mapped();
        let many: Vec<Pages> = (0..500).map(|_| Pages::new(2 << 20).unwrap()).collect();
        // Other tests of this process map memory too.
        let each = (mapped() - before) / many.len();
        assert!(each < 3 << 10, "{each} KiB of address space for 2048");
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let number = |n: &str| u64::from_str_radix(n, 16).unwrap();
        let has_any = |l: &&str| {
            let (from, to) = l.split_once(' ').unwrap().0.split_once('-').unwrap();
            many.iter().any(|p| (number(from)..number(to)).contains(&p.address()))
        };
        let mappings = maps.lines().filter(has_any).count();
        assert!(mappings < many.len() / 4, "{mappings} mappings");
        drop(many);
        Pages::new(u64::MAX).map(|_| ()).unwrap_err();
    }
}
