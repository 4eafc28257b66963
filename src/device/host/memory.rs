//! The memory that the devices of one type have allocated: a budget for each device, and one table of the blocks that
//! came straight from the system (plain device memory, unified memory, and pinned host memory).
//!
//! The table makes a wrong pointer or size at free an error, and tells a copy whether its host end may still be read
//! later. System calls are made outside its lock. Granules are in `granules.rs`; they count against the same budget.

use super::options::machine_memory;
use super::pages;
use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::base::ordered::Map;
use crate::base::sync::system::{Mutex, lock};
use crate::device::GRANULE;
use crate::fail;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many bytes one device may still allocate.
pub(super) struct Budget {
    ordinal: usize,
    capacity: u64,    // [B]
    taken: AtomicU64, // [B] never above `capacity`; a lone counter, so Relaxed throughout
}

impl Budget {
    pub(super) fn new(ordinal: usize, capacity: u64) -> Self {
        Budget { ordinal, capacity, taken: AtomicU64::new(0) }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn free(&self) -> u64 {
        self.capacity - self.taken.load(Ordering::Relaxed)
    }

    /// Takes `bytes`, or nothing and `OutOfMemory`.
    pub(super) fn take(&self, bytes: u64) -> Result<()> {
        let more = |taken: u64| taken.checked_add(bytes).filter(|n| *n <= self.capacity);
        match self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(()),
            Err(taken) => fail!(
                Code::OutOfMemory,
                "host device {}: {bytes} bytes asked for, {} of {} free",
                self.ordinal,
                self.capacity - taken,
                self.capacity
            ),
        }
    }

    /// Gives back what was taken before.
    pub(super) fn give(&self, bytes: u64) {
        let before = self.taken.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "more given back than taken");
    }
}

/// How a block was allocated. It must be freed through the matching call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `alloc`: counted against the device.
    Device,
    /// `unified_alloc`: counted against the device.
    Unified,
    /// `host_alloc`: memory of the host, counted against nobody.
    Pinned,
    /// `register`: memory of the caller, who keeps it.
    Callers,
}

struct Block {
    bytes: u64,   // [B] as asked for
    ordinal: u32, // the device that it was asked from
    kind: Kind,
    locked: bool, // the system agreed to keep it in RAM
}

/// The pinned memory at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pinned {
    pub(super) blocks: u64,
    pub(super) bytes: u64,        // [B]
    pub(super) locked_bytes: u64, // [B] of these, what the system locked
}

/// The blocks of all devices of a type, by address.
pub(super) struct Blocks(Mutex<Map<u64, Block>>);

impl Blocks {
    pub(super) fn new() -> Self {
        Blocks(Mutex::new(Map::new()))
    }

    /// Zeroed memory from the system, at a multiple of the power of two that it fits into, from a page to 2 MiB: blocks
    /// cut from a small segment can then be aligned as those from a large one can.
    pub(super) fn alloc(&self, budget: &Budget, kind: Kind, bytes: u64) -> Result<u64> {
        self.alloc_touched(budget, kind, bytes, 0)
    }

    /// As `alloc`; the pages are touched by `threads` threads.
    pub(super) fn alloc_touched(&self, budget: &Budget, kind: Kind, bytes: u64, threads: u32) -> Result<u64> {
        if bytes == 0 {
            return Err(Error::new(Code::InvalidArgument, "an allocation of 0 bytes"));
        }
        if !lock(&self.0).make_room() {
            return Err(no_host_memory());
        }
        let counted = kind != Kind::Pinned;
        if counted {
            budget.take(bytes)?;
        } else if bytes > GRANULE && bytes > machine_memory() {
            // The system would hand out the addresses, but end the process when they are touched or locked.
            let all = machine_memory();
            fail!(Code::OutOfMemory, "{bytes} bytes of pinned memory, and the machine has {all}");
        }
        let align =
            if bytes >= GRANULE { GRANULE } else { pages::page_size().max(bytes.next_power_of_two()) };
        let mapped = pages::whole_pages(bytes)
            .ok_or_else(|| Error::new(Code::OutOfMemory, "an allocation of nearly 2^64 bytes"))
            .and_then(|n| pages::map_anonymous(n, align, true).map(|addr| (addr, n)));
        let (addr, span) = match mapped {
            Ok(got) => got,
            Err(e) => {
                if counted {
                    budget.give(bytes);
                }
                return Err(e);
            }
        };
        if threads > 0 {
            // SAFETY: the mapping was made just now, and nobody else knows it.
            unsafe { pages::touch(addr, span, threads) };
        }
        // Locking commits the memory and may take long: none of our locks is held here.
        let locked = kind == Kind::Pinned && pages::lock_pages(addr, span);
        let block = Block { bytes, ordinal: budget.ordinal as u32, kind, locked };
        lock(&self.0).insert(addr, block);
        Ok(addr)
    }

    /// Checks that a free with these arguments would succeed now.
    pub(super) fn check(&self, ordinal: usize, kind: Kind, addr: u64, bytes: u64) -> Result<()> {
        Self::find(&lock(&self.0), ordinal, kind, addr, bytes)
    }

    fn find(map: &Map<u64, Block>, ordinal: usize, kind: Kind, addr: u64, bytes: u64) -> Result<()> {
        let Some(block) = map.get(&addr) else {
            fail!(Code::UnknownPointer, "no block starts at {addr:#x}");
        };
        if block.ordinal as usize != ordinal || block.kind != kind {
            let (kind, owner) = (block.kind, block.ordinal);
            fail!(Code::UnknownPointer, "{addr:#x} is a {kind:?} block of device {owner}, freed as another");
        }
        if block.bytes != bytes {
            let size = block.bytes;
            fail!(Code::WrongSize, "{addr:#x} has {size} bytes, freed with {bytes}");
        }
        Ok(())
    }

    /// Frees a block. An error changes nothing.
    pub(super) fn free(&self, budget: &Budget, kind: Kind, addr: u64, bytes: u64) -> Result<()> {
        {
            let mut map = lock(&self.0);
            Self::find(&map, budget.ordinal, kind, addr, bytes)?;
            map.remove(&addr);
        }
        // SAFETY: the table owned the mapping, and the entry was removed just now, so no other call frees it; the
        // caller of free guarantees that nothing uses it.
        unsafe { pages::unmap(addr, pages::whole_pages(bytes).unwrap_or(bytes)) };
        if kind != Kind::Pinned {
            budget.give(bytes);
        }
        Ok(())
    }

    /// Enters memory of the caller. It is not locked: locks of the system do not nest, so an end would unlock pages that
    /// others hold.
    pub(super) fn register(&self, ordinal: usize, addr: u64, bytes: u64) -> Result<()> {
        let mut map = lock(&self.0);
        let before = map.range(..addr + bytes).next_back();
        if let Some((&start, _)) = before.filter(|(start, block)| *start + block.bytes > addr) {
            fail!(
                Code::Busy,
                "{bytes} B at {addr:#x} overlap memory at {start:#x} that is registered, or is the library's own"
            );
        }
        map.insert(addr, Block { bytes, ordinal: ordinal as u32, kind: Kind::Callers, locked: false });
        Ok(())
    }

    /// Removes it again.
    pub(super) fn unregister(&self, ordinal: usize, addr: u64) -> Result<()> {
        let mut map = lock(&self.0);
        if !map.get(&addr).is_some_and(|b| b.kind == Kind::Callers && b.ordinal as usize == ordinal) {
            fail!(Code::UnknownPointer, "no registered memory of device {ordinal} begins at {addr:#x}");
        }
        map.remove(&addr);
        Ok(())
    }

    /// Whether all these bytes lie in one pinned or unified block, so that they may be read later.
    pub(super) fn stays_readable(&self, addr: u64, bytes: u64) -> bool {
        let map = lock(&self.0);
        let Some((start, block)) = map.range(..=addr).next_back() else { return false };
        block.kind != Kind::Device && addr - start <= block.bytes && bytes <= block.bytes - (addr - start)
    }

    /// The pinned memory that was allocated through device `ordinal`.
    pub(super) fn pinned(&self, ordinal: usize) -> Pinned {
        let mut sum = Pinned::default();
        for block in lock(&self.0).values() {
            if block.kind == Kind::Pinned && block.ordinal as usize == ordinal {
                sum.blocks += 1;
                sum.bytes += block.bytes;
                sum.locked_bytes += if block.locked { block.bytes } else { 0 };
            }
        }
        sum
    }

    /// Frees all blocks.
    ///
    /// # Safety
    /// No running call and no queued work touches a block.
    pub(super) unsafe fn clear(&self) {
        let map = std::mem::take(&mut *lock(&self.0));
        for (addr, block) in map {
            if block.kind == Kind::Callers {
                continue;
            }
            // SAFETY: the table owned the mapping; the caller guarantees that nothing uses it.
            unsafe { pages::unmap(addr, pages::whole_pages(block.bytes).unwrap_or(block.bytes)) };
        }
    }
}
