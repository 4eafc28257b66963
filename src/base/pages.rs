//! Memory of the system in whole pages, huge ones where it has them.

use super::error::{Code, Error, Result};
use crate::fail;
use std::alloc::{Layout, alloc, dealloc};
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

    fn layout(bytes: usize) -> Result<Layout> {
        Layout::from_size_align(bytes, if bytes >= Self::HUGE { Self::HUGE } else { PAGE })
            .map_err(|_| Error::new(Code::OutOfMemory, format!("{bytes} bytes of host memory asked for")))
    }

    /// `bytes` of it, at least one. `OutOfMemory` if the system has no more.
    pub(crate) fn new(bytes: u64) -> Result<Pages> {
        let bytes = (bytes as usize).max(1);
        // SAFETY: the size is not 0.
        let p = unsafe { alloc(Self::layout(bytes)?) };
        if p.is_null() {
            fail!(Code::OutOfMemory, "no {bytes} bytes of host memory");
        }
        #[cfg(target_os = "linux")]
        if bytes >= Self::HUGE {
            // Only a hint; what follows the last whole huge page has small ones.
            // SAFETY: whole pages of the memory that was just allocated here, which stays what it is.
            unsafe { libc::madvise(p.cast(), bytes & !(Self::HUGE - 1), libc::MADV_HUGEPAGE) };
        }
        Ok(Pages { addr: p.expose_provenance(), bytes })
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
        Pages { addr: addr as usize, bytes: (bytes as usize).max(1) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let Ok(layout) = Self::layout(self.bytes) {
            // SAFETY: `new` allocated it with this layout, and whoever had it is done with it.
            unsafe { dealloc(with_exposed_provenance_mut(self.addr), layout) }
        }
    }
}
