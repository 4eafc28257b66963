//! Arrays that are mapped at their maximum length and use memory only for the pages that are touched. So a table can be
//! as long as it may ever get from the start: it needs no resize, no copy and no extra pointer.
//!
//! All values are zero at first ([`Zeroable`]). The array hands out shared references only, so its values are atomics.

use crate::base::error::Result;
#[cfg(not(loom))]
use crate::base::error::{Code, Error};
use crate::base::sync::{AtomicU32, AtomicU64};
#[cfg(not(loom))]
use std::{
    marker::PhantomData,
    ops::{Deref, Range},
};

/// Types for which all bits zero is a valid value, and which need no drop.
///
/// # Safety
/// The implementor guarantees both.
pub unsafe trait Zeroable: Sync {
    /// A zero. Loom's atomics are more than their bits and have to be constructed.
    #[cfg(loom)]
    fn zero() -> Self;
}
// SAFETY: an atomic integer is its integer, and 0 is one.
unsafe impl Zeroable for AtomicU32 {
    #[cfg(loom)]
    fn zero() -> Self {
        AtomicU32::new(0)
    }
}
// SAFETY: as above.
unsafe impl Zeroable for AtomicU64 {
    #[cfg(loom)]
    fn zero() -> Self {
        AtomicU64::new(0)
    }
}
// SAFETY: an array of zeroable values is zeroable.
unsafe impl<T: Zeroable, const N: usize> Zeroable for [T; N] {
    #[cfg(loom)]
    fn zero() -> Self {
        std::array::from_fn(|_| T::zero())
    }
}

/// Two values side by side, at a multiple of 32 bytes: where they are no longer than that, they share a cache line.
#[derive(Debug)]
#[repr(C, align(32))]
pub struct Pair<A, B> {
    /// The first value.
    pub first: A,
    /// The second value.
    pub second: B,
}
// SAFETY: both fields are zeroable.
unsafe impl<A: Zeroable, B: Zeroable> Zeroable for Pair<A, B> {
    #[cfg(loom)]
    fn zero() -> Self {
        Pair { first: A::zero(), second: B::zero() }
    }
}

/// An array of fixed length, zero at first; pages are committed as they are touched.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct MappedArray<T: Zeroable> {
    ptr: *mut T,
    len: usize,
    bytes: usize,
    _own: PhantomData<T>,
}

#[cfg(not(loom))]
// SAFETY: it hands out shared references only, and `T: Sync` (by `Zeroable`).
unsafe impl<T: Zeroable> Sync for MappedArray<T> {}
#[cfg(not(loom))]
// SAFETY: it owns its memory; any thread may release it.
unsafe impl<T: Zeroable> Send for MappedArray<T> {}

#[cfg(not(loom))]
impl<T: Zeroable> MappedArray<T> {
    /// An array of `len` zero values. Fails when the address space (or its limit) is used up.
    pub fn new(len: usize) -> Result<Self> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|&b| b < isize::MAX as usize)
            .ok_or_else(|| {
                Error::new(Code::InvalidArgument, "metadata array is larger than the address space")
            })?
            .max(1);
        let ptr = raw::take(bytes)?;
        Ok(MappedArray { ptr: ptr.cast(), len, bytes, _own: PhantomData })
    }

    /// Sets every value back to zero; until touched again, none costs memory. Other threads may read and write
    /// meanwhile: each value they see is one that was written, or zero.
    pub fn discard(&self) {
        raw::discard(self.ptr.cast(), self.bytes);
    }

    /// The same for some of the values, which take whole pages or come last. `false`: the system has refused, or has no
    /// such call, and they are as before.
    pub fn discard_some(&self, values: Range<usize>) -> bool {
        let of = |n: usize| n.min(self.len) * size_of::<T>();
        let (begin, end) = (of(values.start), of(values.end));
        // Within the array, or where it ends.
        begin >= end || raw::discard(self.ptr.wrapping_byte_add(begin).cast(), end - begin)
    }
}

#[cfg(not(loom))]
impl<T: Zeroable> Deref for MappedArray<T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` made room for `len` values at `ptr`, zero is a valid `T`, and it lives until drop.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }
}

#[cfg(not(loom))]
impl<T: Zeroable> Drop for MappedArray<T> {
    fn drop(&mut self) {
        raw::give_back(self.ptr.cast(), self.bytes);
    }
}

#[cfg(all(unix, not(loom)))]
mod raw {
    use super::{Code, Error, Result};

    /// [B] arrays from this size on ask for huge pages.
    #[cfg(target_os = "linux")]
    const HUGE: usize = 8 << 20;
    #[cfg(target_os = "linux")]
    const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    #[cfg(not(target_os = "linux"))]
    const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANON;

    pub(super) fn take(bytes: usize) -> Result<*mut u8> {
        // SAFETY: a fresh anonymous mapping; it touches no memory that exists.
        let p = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, FLAGS, -1, 0)
        };
        if p == libc::MAP_FAILED {
            return Err(Error::formatted(
                Code::System,
                format_args!(
                    "cannot reserve {bytes} bytes of address space for metadata: {}",
                    std::io::Error::last_os_error()
                ),
            ));
        }
        #[cfg(target_os = "linux")]
        if bytes >= HUGE {
            // Only a hint. Lookups by address are scattered; with small pages each would miss the TLB.
            // SAFETY: the range was just mapped by this call.
            unsafe {
                libc::madvise(p, bytes, libc::MADV_HUGEPAGE);
            }
        }
        Ok(p.cast())
    }

    pub(super) fn discard(ptr: *mut u8, bytes: usize) -> bool {
        // On other systems this call is only a hint that may leave the old values; there the array is left as it is.
        #[cfg(target_os = "linux")]
        // SAFETY: the range is in one that `take` returned, and its owner lives; private anonymous pages read as zero
        // afterwards.
        return unsafe { libc::madvise(ptr.cast(), bytes, libc::MADV_DONTNEED) } == 0;
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (ptr, bytes);
            false
        }
    }

    pub(super) fn give_back(ptr: *mut u8, bytes: usize) {
        // SAFETY: `take` returned this range, and its owner is being dropped.
        unsafe {
            libc::munmap(ptr.cast(), bytes);
        }
    }
}

#[cfg(loom)]
pub use modelled::MappedArray;

/// Under loom an element is made when it is first accessed: a model touches few of the millions.
#[cfg(loom)]
mod modelled {
    use super::{Result, Zeroable};
    use std::collections::HashMap;
    use std::sync::{Mutex, PoisonError};

    /// A fixed-length array, zero at first.
    #[derive(Debug)]
    pub struct MappedArray<T: Zeroable> {
        len: usize,
        made: Mutex<HashMap<usize, Box<T>>>,
    }

    impl<T: Zeroable> MappedArray<T> {
        /// An array of `len` zero values.
        pub fn new(len: usize) -> Result<Self> {
            Ok(MappedArray { len, made: Mutex::default() })
        }
        /// No model looks at what comes after the end of a device.
        pub fn discard(&self) {}
        /// The number of elements.
        pub fn len(&self) -> usize {
            self.len
        }
        /// One element.
        pub fn get(&self, index: usize) -> Option<&T> {
            if index >= self.len {
                return None;
            }
            let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            let it: *const T = &**made.entry(index).or_insert_with(|| Box::new(T::zero()));
            // SAFETY: no box leaves the map before the array is dropped, and only `&T` are ever given out.
            Some(unsafe { &*it })
        }
    }

    impl<T: Zeroable> std::ops::Index<usize> for MappedArray<T> {
        type Output = T;
        #[expect(clippy::panic, reason = "as with a slice")]
        fn index(&self, index: usize) -> &T {
            self.get(index).unwrap_or_else(|| panic!("index {index} of {}", self.len))
        }
    }
}

#[cfg(all(not(unix), not(loom)))]
mod raw {
    // Zeroed memory from the system allocator; large requests are committed as touched there too.
    use super::{Code, Error, Result};
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    fn layout(bytes: usize) -> Result<Layout> {
        Layout::from_size_align(bytes, 64)
            .map_err(|_| Error::new(Code::InvalidArgument, "metadata array too large"))
    }

    pub(super) fn take(bytes: usize) -> Result<*mut u8> {
        // SAFETY: the size is not 0 (`MappedArray::new`).
        let p = unsafe { alloc_zeroed(layout(bytes)?) };
        if p.is_null() { Err(Error::new(Code::System, "no memory for metadata")) } else { Ok(p) }
    }

    /// This system has no such call: the memory stays as it is.
    pub(super) fn discard(_ptr: *mut u8, _bytes: usize) -> bool {
        false
    }

    pub(super) fn give_back(ptr: *mut u8, bytes: usize) {
        if let Ok(l) = layout(bytes) {
            // SAFETY: `take` returned this pointer for this layout.
            unsafe { dealloc(ptr, l) }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::base::sync::Ordering;

    #[test]
    fn is_zero_long_and_lazy() {
        let a = MappedArray::<AtomicU32>::new(1 << 30).unwrap(); // 4 GiB, more than a test should touch
        assert_eq!(a.len(), 1 << 30);
        assert_eq!(a[(1 << 30) - 1].load(Ordering::Relaxed), 0);
        a[7].store(9, Ordering::Relaxed);
        assert_eq!(a[7].load(Ordering::Relaxed), 9);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_discarded_is_zero_again_and_usable() {
        let a = MappedArray::<AtomicU64>::new(4 << 20).unwrap();
        a.iter().step_by(512).for_each(|x| x.store(7, Ordering::Relaxed));
        a.discard();
        assert!(a.iter().step_by(512).all(|x| x.load(Ordering::Relaxed) == 0));
        a[5].store(1, Ordering::Relaxed);
        assert_eq!(a[5].load(Ordering::Relaxed), 1);
    }

    #[test]
    fn absurd_length_is_an_error() {
        assert!(MappedArray::<AtomicU64>::new(usize::MAX / 2).is_err());
    }
}
