//! Translates offsets into addresses and back, without a lock.
//!
//! If the device maps, a pond's offsets are one window of addresses, and the translation is an addition. Otherwise each
//! segment has its own address; the first, which is often the only one and begins at offset 0, is looked up like a window, and
//! the others in a table of granules and in one of addresses.

use crate::base::error::{Code, Error, Result};
use crate::base::mapped_array::MappedArray;
use crate::base::published::Published;
use crate::base::range_map::{Changing, Memo, Range, RangeMap};
use crate::base::sync::system::{Mutex, lock};
use crate::base::sync::{AtomicU64, Ordering::*};
use crate::core::GRANULE;
use crate::locks;
use std::sync::atomic::AtomicBool;

/// The maximum number of segments, if there are more granules.
const MOST: usize = 1 << 18;

/// The addresses of offsets.
#[derive(Default)]
pub(crate) struct Places {
    near: Published<Near>,
    far: Option<Far>,
    ending: AtomicBool,
}

/// The window, or the first segment: from offset 0 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Near {
    addr: u64,
    len: u64, // 0: none
}

/// All segments.
struct Far {
    /// The address at which each granule of offsets begins; 0: in no segment. What lies in a granule is asked for as long as its
    /// segment is there, so it is read without looking whether it changes.
    addr_of: MappedArray<AtomicU64>,
    by_addr: RangeMap,
    /// Held while they change. What is guarded: offset and address of the first segment ever.
    change: Mutex<Option<(u64, u64)>, locks::Places>,
}

impl Far {
    /// The segment of an address. Waits only if segments come and go again and again meanwhile.
    #[inline]
    fn segment_at(&self, addr: u64) -> Option<Range> {
        self.by_addr.find(addr).unwrap_or_else(|Changing| self.segment_at_locked(addr))
    }

    #[cold]
    #[inline(never)]
    fn segment_at_locked(&self, addr: u64) -> Option<Range> {
        let _nobody_changes = lock(&self.change);
        self.by_addr.find(addr).unwrap_or(None)
    }

    #[inline]
    fn address(&self, offset: u64) -> Option<u64> {
        let place = self.addr_of.get((offset / GRANULE) as usize)?;
        // Acquire: see `Places::end`.
        let begin = place.load(Acquire);
        (begin != 0).then(|| begin.wrapping_add(offset % GRANULE))
    }

    /// Sets where the granules of a segment begin.
    fn set(&self, offset: u64, bytes: u64, addr: impl Fn(u64) -> u64) {
        for within in (0..bytes).step_by(GRANULE as usize) {
            if let Some(place) = self.addr_of.get(((offset + within) / GRANULE) as usize) {
                place.store(addr(within), Release);
            }
        }
    }
}

impl Places {
    /// The places of segments, each of which begins with one of so many granules of offsets.
    pub(crate) fn of_segments(granules: usize) -> Result<Places> {
        let (addr_of, by_addr) = (MappedArray::new(granules)?, RangeMap::new(granules.min(MOST))?);
        Ok(Places { far: Some(Far { addr_of, by_addr, change: Mutex::new(None) }), ..Places::default() })
    }

    /// From now on segments may disappear while requests are in progress. Relaxed: a thread that misses a segment has
    /// read what was stored after this, in the table or as the length.
    pub(crate) fn end(&self) {
        self.ending.store(true, Relaxed);
    }

    /// The pond's offsets are one range of addresses.
    pub(crate) fn set_window(&self, addr: u64, bytes: u64) {
        self.near.set(Near { addr, len: bytes });
    }

    /// The first address of the window.
    pub(super) fn window(&self) -> u64 {
        self.near.get().addr
    }

    /// Removes the window. Returns whether there was one.
    pub(super) fn close_window(&self) -> bool {
        let was = *self.near.get();
        self.near.set(Near { len: 0, ..was });
        was.len != 0
    }

    /// The address of offset 0, and the length of the window or of the first segment; 0 if there is none.
    #[inline]
    pub(crate) fn near_range(&self) -> (u64, u64) {
        let near = self.near.get();
        (near.addr, near.len)
    }

    /// The offset of an address.
    #[inline(always)]
    pub(crate) fn offset(&self, addr: u64) -> Option<u64> {
        let near = self.near.get();
        let within = addr.wrapping_sub(near.addr);
        if within < near.len { Some(within) } else { self.offset_far(addr) }
    }

    /// The address of an offset in the window, or in the first segment.
    #[inline(always)]
    pub(crate) fn near_address(&self, offset: u64) -> Option<u64> {
        let near = self.near.get();
        (offset < near.len).then(|| near.addr + offset)
    }

    /// The offset of an address in a segment, for a user that remembers segments; `None` also where that could only be told
    /// after waiting.
    pub(crate) fn offset_again(&self, memo: &mut Memo, addr: u64) -> Option<u64> {
        self.far.as_ref()?.by_addr.find_again(memo, addr).ok()?.map(|segment| segment.leads(addr))
    }

    /// The segment that contains an offset, if there are segments: its address, and the bytes from there to the offset.
    pub(crate) fn segment_of(&self, offset: u64) -> Option<(u64, u64)> {
        let far = self.far.as_ref()?;
        let segment = far.segment_at(far.address(offset)?)?;
        Some((segment.from, offset - segment.to))
    }

    /// The same in any segment.
    pub(crate) fn address_now(&self, offset: u64) -> Option<u64> {
        self.far.as_ref()?.address(offset)
    }

    /// The address of an offset that the pond has handed out.
    #[inline(always)]
    pub(crate) fn address(&self, offset: u64) -> Result<u64> {
        self.near_address(offset).map_or_else(|| self.address_far(offset), Ok)
    }

    #[inline(never)]
    fn offset_far(&self, addr: u64) -> Option<u64> {
        let far = self.far.as_ref()?;
        far.segment_at(addr).map(|segment| segment.leads(addr))
    }

    #[inline(never)]
    fn address_far(&self, offset: u64) -> Result<u64> {
        self.far.as_ref().and_then(|far| far.address(offset)).ok_or_else(|| self.nowhere())
    }

    #[cold]
    fn nowhere(&self) -> Error {
        match self.ending.load(Relaxed) {
            // The device has ended while the request was in progress.
            true => Error::new(Code::NotInitialized, "the device was finalised"),
            false => Error::new(Code::Internal, "a block lies in no segment"),
        }
    }

    /// Adds a segment. `false`: there are as many as there may be.
    pub(super) fn add(&self, offset: u64, addr: u64, bytes: u64) -> bool {
        let Some(far) = &self.far else { return false };
        let mut first = lock(&far.change);
        if !far.by_addr.insert(Range { from: addr, count: bytes, to: offset }) {
            return false;
        }
        far.set(offset, bytes, |within| addr + within);
        // The first segment ever is found without the tables, and so is one that takes its place.
        if *first.get_or_insert((offset, addr)) == (offset, addr) && offset == 0 {
            self.near.set(Near { addr, len: bytes });
        }
        true
    }

    /// Removes the segment at `offset` and returns its address.
    pub(super) fn remove(&self, offset: u64) -> Option<u64> {
        let far = self.far.as_ref()?;
        let _changing = lock(&far.change);
        let addr = far.address(offset)?;
        let segment = far.by_addr.remove(addr)?;
        far.set(offset, segment.count, |_| 0);
        if self.near.get().addr == addr {
            self.near.set(Near::default());
        }
        Some(addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments at these addresses, each of one granule and a half, with a granule between their offsets.
    fn of(addrs: &[u64]) -> Places {
        let places = Places::of_segments(32).unwrap();
        for (n, &addr) in addrs.iter().enumerate() {
            assert!(places.add(n as u64 * 3 * GRANULE, addr, GRANULE / 2 * 3));
        }
        places
    }

    const ADDRS: [u64; 4] = [0x7000_0000_0100, 0x1000, 0x7fff_0000_0000, 0x7000_1000_0300];

    #[test]
    fn each_byte_of_a_segment_has_a_place_and_no_other_has() {
        let (places, mut memo) = (of(&ADDRS), Memo::default());
        for (n, &addr) in ADDRS.iter().enumerate() {
            let offset = n as u64 * 3 * GRANULE;
            for within in [0, 1, GRANULE - 1, GRANULE, GRANULE / 2 * 3 - 1] {
                assert_eq!(places.address(offset + within).unwrap(), addr + within);
                assert_eq!(places.address_now(offset + within), Some(addr + within));
                assert_eq!(places.segment_of(offset + within), Some((addr, within)));
                assert_eq!(places.offset(addr + within), Some(offset + within));
                assert_eq!(places.offset_again(&mut memo, addr + within), Some(offset + within));
            }
            for none in [addr - 1, addr + GRANULE / 2 * 3] {
                assert_eq!((places.offset(none), places.offset_again(&mut memo, none)), (None, None));
            }
            assert_eq!(places.address(offset + 2 * GRANULE).unwrap_err().code(), Code::Internal);
        }
    }

    #[test]
    fn what_is_remembered_of_a_segment_that_has_gone_leads_nowhere() {
        let (places, mut memo) = (of(&ADDRS), Memo::default());
        let offset = 6 * GRANULE;
        assert_eq!(places.offset_again(&mut memo, ADDRS[2] + 7), Some(offset + 7));
        assert_eq!((places.remove(offset), places.remove(offset)), (Some(ADDRS[2]), None));
        assert_eq!((places.offset_again(&mut memo, ADDRS[2] + 7), places.offset(ADDRS[2] + 7)), (None, None));
        assert_eq!((places.address_now(offset), places.segment_of(offset)), (None, None));
        // Another one has its offsets, and one its addresses.
        assert!(places.add(offset, 0x9000_0000, GRANULE) && places.add(12 * GRANULE, ADDRS[2], 10));
        assert_eq!(places.offset_again(&mut memo, ADDRS[2] + 7), Some(12 * GRANULE + 7));
        assert_eq!(places.offset_again(&mut memo, ADDRS[2] + 10), None);
        assert_eq!(places.address(offset + 7).unwrap(), 0x9000_0007);
        places.end();
        places.remove(offset);
        assert_eq!(places.address(offset).unwrap_err().code(), Code::NotInitialized);
    }

    #[test]
    fn the_first_segment_that_comes_back_is_near_again() {
        let places = of(&ADDRS);
        assert_eq!(places.near_range(), (ADDRS[0], GRANULE / 2 * 3));
        assert_eq!(
            (places.remove(0), places.near_range(), places.offset(ADDRS[0])),
            (Some(ADDRS[0]), (0, 0), None)
        );
        assert!(places.add(0, 0x5000, GRANULE));
        assert_eq!((places.near_range(), places.offset(0x5001)), ((0, 0), Some(1)));
        assert!(places.remove(0).is_some() && places.add(0, ADDRS[0], GRANULE));
        assert_eq!(places.near_range(), (ADDRS[0], GRANULE));
    }
}
