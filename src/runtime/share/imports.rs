//! Blocks of other processes that are open here. They are no blocks of the allocator: only copies and fills know
//! them, and what closes them.

use crate::base::descriptor::Descriptor;
use crate::base::error::{Code, Error, Result};
use crate::base::ordered::Map;
use crate::base::sync::system::{Mutex, lock};
use crate::core::past_end;
use crate::fail;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// One block. The same one may be open several times at one address.
struct Import {
    bytes: u64,
    /// For each time: the address for the device, and the ticket, if one came along.
    opened: Vec<(u64, Option<Descriptor>)>,
}

/// What one device has open.
#[derive(Default)]
pub(crate) struct Imports {
    count: AtomicUsize,
    by_addr: Mutex<Map<u64, Import>>,
}

impl Imports {
    pub(crate) fn add(&self, addr: u64, bytes: u64, memory: u64, ticket: Option<Descriptor>) {
        let mut all = lock(&self.by_addr);
        let i = all.entry(addr).or_insert_with(|| Import { bytes, opened: Vec::new() });
        i.bytes = i.bytes.max(bytes);
        i.opened.push((memory, ticket));
        self.count.store(all.len(), Relaxed);
    }

    /// Takes out one opening of the block at `addr`.
    pub(crate) fn take(&self, addr: u64) -> Result<(u64, u64, Option<Descriptor>)> {
        let mut all = lock(&self.by_addr);
        let Some(i) = all.get_mut(&addr) else {
            fail!(Code::UnknownPointer, "{addr:#x} is not the start of imported memory");
        };
        let bytes = i.bytes;
        let Some((memory, ticket)) = i.opened.pop() else {
            return Err(Error::new(Code::Internal, "an import without memory"));
        };
        if i.opened.is_empty() {
            all.remove(&addr);
        }
        self.count.store(all.len(), Relaxed);
        Ok((bytes, memory, ticket))
    }

    /// Everything is closed by the end of the device: the tickets go.
    pub(crate) fn clear(&self) {
        let gone = std::mem::take(&mut *lock(&self.by_addr));
        self.count.store(0, Relaxed);
        drop(gone);
    }

    /// `None` when the address is in none of them; else whether the range is inside.
    pub(crate) fn check(&self, addr: u64, bytes: u64) -> Option<Result<()>> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        let all = lock(&self.by_addr);
        let (&base, i) = all.range(..=addr).next_back()?;
        let room = i.bytes.checked_sub(addr - base).filter(|&r| r > 0)?;
        if bytes <= room {
            return Some(Ok(()));
        }
        Some(Err(past_end(addr, bytes, room)))
    }
}
