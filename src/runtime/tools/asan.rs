//! AddressSanitizer. A program that is built with it contains its runtime, of which two functions mark memory as poisoned or
//! not. They are weak symbols here, so the library is built without any option for it.
//!
//! The runtime keeps one byte for each 8 bytes of memory, which says that the first n of them may be touched. Blocks begin at
//! multiples of 8, so the end of each is exact.

use super::checker::Checker;
use std::ffi::c_void;
use std::ptr;

type Mark = unsafe extern "C" fn(*const c_void, usize);

struct Asan {
    poison: Mark,
    unpoison: Mark,
}

pub(super) fn find() -> Option<Box<dyn Checker>> {
    let (poison, unpoison) = addresses();
    let (poison, unpoison) = (mark(poison)?, mark(unpoison)?);
    Some(Box::new(Asan { poison, unpoison }))
}

/// The two functions, or 0: weak symbols. (A look-up by `dlsym` would miss a runtime that is part of the program, as with
/// GCC's `-static-libasan`.)
#[cfg(target_arch = "x86_64")]
fn addresses() -> (usize, usize) {
    let (poison, unpoison): (usize, usize);
    // SAFETY: reads two addresses that the linker or the loader has filled in.
    unsafe {
        std::arch::asm!(
            ".weak __asan_poison_memory_region",
            ".weak __asan_unpoison_memory_region",
            "mov {0}, qword ptr [rip + __asan_poison_memory_region@GOTPCREL]",
            "mov {1}, qword ptr [rip + __asan_unpoison_memory_region@GOTPCREL]",
            out(reg) poison,
            out(reg) unpoison,
            options(nostack, preserves_flags, readonly),
        );
    }
    (poison, unpoison)
}

/// As above.
#[cfg(target_arch = "aarch64")]
fn addresses() -> (usize, usize) {
    let (poison, unpoison): (usize, usize);
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            ".weak __asan_poison_memory_region",
            ".weak __asan_unpoison_memory_region",
            "adrp {0}, :got:__asan_poison_memory_region",
            "ldr {0}, [{0}, :got_lo12:__asan_poison_memory_region]",
            "adrp {1}, :got:__asan_unpoison_memory_region",
            "ldr {1}, [{1}, :got_lo12:__asan_unpoison_memory_region]",
            out(reg) poison,
            out(reg) unpoison,
            options(nostack, preserves_flags, readonly),
        );
    }
    (poison, unpoison)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn addresses() -> (usize, usize) {
    (0, 0)
}

/// A function of the sanitizer's interface that marks memory, at its address.
fn mark(address: usize) -> Option<Mark> {
    let at: *const () = ptr::with_exposed_provenance(address);
    // SAFETY: names that begin with `__asan_` are the sanitizer's, and its published interface gives these two the type.
    (!at.is_null()).then(|| unsafe { std::mem::transmute::<*const (), Mark>(at) })
}

fn at(address: u64) -> *const c_void {
    ptr::without_provenance(address as usize)
}

impl Checker for Asan {
    fn close(&mut self, address: u64, bytes: u64) {
        // SAFETY: changes only what the sanitizer has noted of a range that is ours.
        unsafe { (self.poison)(at(address), bytes as usize) };
    }

    fn open(&mut self, address: u64, bytes: u64) {
        // SAFETY: as above.
        unsafe { (self.unpoison)(at(address), bytes as usize) };
    }

    fn went(&mut self, address: u64, bytes: u64) {
        // Somebody else may get these addresses next.
        self.open(address, bytes);
    }

    fn give(&mut self, address: u64, bytes: u64) {
        self.open(address, bytes);
    }

    fn take(&mut self, address: u64, bytes: u64) {
        self.close(address, bytes);
    }

    fn forget(&mut self, _: u64, _: u64) {}
}
