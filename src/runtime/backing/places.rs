//! Translates offsets into addresses and back.
//!
//! If the device maps, a pond's offsets are one window of addresses, and the translation is an addition. Otherwise each
//! segment has its own address; the first, which is usually the only one and begins at offset 0, is looked up like a window.

use crate::base::error::{Code, Error, Result};
use crate::base::ordered::Map;
use crate::base::published::Published;
use crate::base::sync::system::RwLock;
use crate::locks;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The addresses of offsets. Reading the window, or the first segment, takes no lock.
#[derive(Default)]
pub(crate) struct Places {
    near: Published<Near>,
    more: RwLock<More, locks::Places>,
    ending: AtomicBool,
}

/// The window, or the first segment: from offset 0 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Near {
    addr: u64,
    len: u64, // 0: none
}

#[derive(Default)]
struct More {
    by_offset: Map<u64, (u64, u64)>, // offset -> (address, bytes)
    by_addr: Map<u64, (u64, u64)>,   // address -> (offset, bytes)
    first: Option<(u64, u64)>,       // offset and address of the first segment ever
}

impl Places {
    /// From now on segments may disappear while requests are in progress. Relaxed: a thread that misses a segment has
    /// read what was stored after this, under the lock or through the length.
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

    /// The offset of an address in the window, or in the first segment.
    #[inline(always)]
    pub(crate) fn near(&self, addr: u64) -> Option<u64> {
        let near = self.near.get();
        let within = addr.wrapping_sub(near.addr);
        (within < near.len).then_some(within)
    }

    /// The address of an offset in the window, or in the first segment.
    #[inline(always)]
    pub(crate) fn near_address(&self, offset: u64) -> Option<u64> {
        let near = self.near.get();
        (offset < near.len).then(|| near.addr + offset)
    }

    /// The offset of an address.
    #[inline(always)]
    pub(crate) fn offset(&self, addr: u64) -> Option<u64> {
        self.near(addr).or_else(|| self.offset_far(addr))
    }

    /// The segment that contains an offset, if there are segments: its address, and the bytes from there to the offset.
    pub(crate) fn segment_of(&self, offset: u64) -> Option<(u64, u64)> {
        let more = self.more.read();
        let (&o, &(addr, bytes)) = more.by_offset.range(..=offset).next_back()?;
        (offset - o < bytes).then_some((addr, offset - o))
    }

    /// The address of an offset that the pond has handed out.
    #[inline(always)]
    pub(crate) fn address(&self, offset: u64) -> Result<u64> {
        self.near_address(offset).map_or_else(|| self.address_far(offset), Ok)
    }

    #[cold]
    fn offset_far(&self, addr: u64) -> Option<u64> {
        let more = self.more.read();
        let (&a, &(offset, bytes)) = more.by_addr.range(..=addr).next_back()?;
        (addr - a < bytes).then(|| offset + (addr - a))
    }

    #[cold]
    fn address_far(&self, offset: u64) -> Result<u64> {
        let more = self.more.read();
        match more.by_offset.range(..=offset).next_back() {
            Some((&o, &(addr, bytes))) if offset - o < bytes => Ok(addr + (offset - o)),
            // The device has ended while the request was in progress.
            _ if self.ending.load(Relaxed) => {
                Err(Error::new(Code::NotInitialized, "the device was finalised"))
            }
            _ => Err(Error::new(Code::Internal, "a block lies in no segment")),
        }
    }

    pub(super) fn add(&self, offset: u64, addr: u64, bytes: u64) {
        let mut more = self.more.write();
        more.by_offset.insert(offset, (addr, bytes));
        more.by_addr.insert(addr, (offset, bytes));
        // The first segment ever is read without a lock, and so is one that takes its place.
        if *more.first.get_or_insert((offset, addr)) == (offset, addr) && offset == 0 {
            self.near.set(Near { addr, len: bytes });
        }
    }

    /// Removes the segment at `offset` and returns its address.
    pub(super) fn remove(&self, offset: u64) -> Option<u64> {
        let mut more = self.more.write();
        let (addr, _) = more.by_offset.remove(&offset)?;
        more.by_addr.remove(&addr);
        if self.near.get().addr == addr {
            self.near.set(Near::default());
        }
        Some(addr)
    }
}
