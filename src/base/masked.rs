//! Arrays whose length is a power of two, so that an index needs no check: one beyond the end leads to another element.
//! They are for tables that hold what may be stale anyway, and whose users check what they find.

use super::error::Result;
use super::mapped_array::{MappedArray, Zeroable};

/// An array of a power of two elements, zero at first; pages are committed as they are touched.
#[derive(Debug)]
pub struct MaskedArray<T: Zeroable> {
    all: MappedArray<T>,
    mask: usize,
}

impl<T: Zeroable> MaskedArray<T> {
    /// An array of at least `len` zero values, and at most 2³². Fails when the address space (or its limit) is used up.
    pub fn new(len: usize) -> Result<Self> {
        let len = len.max(1).checked_next_power_of_two().unwrap_or(usize::MAX);
        Ok(MaskedArray { all: MappedArray::new(len)?, mask: len - 1 })
    }

    /// The element at an index, whose high bits do not count.
    #[inline(always)]
    pub fn at(&self, index: u32) -> &T {
        let index = index as usize & self.mask;
        #[cfg(not(loom))]
        {
            // SAFETY: the mask is the length less one, and `new` has made an array of that length.
            unsafe { self.all.get_unchecked(index) }
        }
        #[cfg(loom)]
        &self.all[index]
    }

    /// Sets every value back to zero; see [`MappedArray::discard`].
    pub fn discard(&self) {
        self.all.discard();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::base::sync::{AtomicU32, Ordering::Relaxed};

    #[test]
    fn every_index_leads_to_an_element() {
        for len in [0, 1, 2, 5, 1000] {
            let a = MaskedArray::<AtomicU32>::new(len).unwrap();
            let room = len.max(1).next_power_of_two() as u32;
            (0..room).for_each(|i| a.at(i).store(i, Relaxed));
            for i in (0..2 * room).chain(u32::MAX - room..=u32::MAX) {
                assert_eq!(a.at(i).load(Relaxed), i % room);
            }
        }
    }

    #[test]
    fn absurd_length_is_an_error() {
        assert!(MaskedArray::<AtomicU32>::new(usize::MAX / 2).is_err());
    }
}
