//! A table of objects by handle. A handle is a 64-bit number that a process never issues twice, so a destroyed or
//! foreign handle is recognised.

use crate::base::boxed::try_push;
use crate::base::error::{Code, Error, Result, no_host_memory};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The low bits of a handle are the slot; the rest is a serial number, from 1 up. So a handle is never 0, and never
/// equal to the small values that drivers use for special streams.
const SLOT_BITS: u32 = 20;
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Live objects by handle. A lookup is an index and a comparison.
pub(super) struct HandleTable<T> {
    entries: Vec<(u64, Option<Arc<T>>)>, // (handle of the current or last owner, object)
    free: Vec<u32>,                      // slots without an object
}

impl<T> HandleTable<T> {
    pub(super) fn new() -> Self {
        HandleTable { entries: Vec::new(), free: Vec::new() }
    }

    /// Adds an object and returns its handle.
    pub(super) fn insert(&mut self, object: Arc<T>) -> Result<u64> {
        let slot = match self.free.pop() {
            Some(slot) => slot as usize,
            None if self.entries.len() < 1 << SLOT_BITS => {
                // Room for its end, too.
                let has_room = self.free.try_reserve(self.entries.len() + 1).is_ok();
                if !has_room || !try_push(&mut self.entries, (0, None)) {
                    return Err(no_host_memory());
                }
                self.entries.len() - 1
            }
            None => return Err(Error::new(Code::OutOfMemory, "a million streams or events are alive")),
        };
        // Relaxed: only uniqueness matters.
        let id = NEXT.fetch_add(1, Ordering::Relaxed) << SLOT_BITS | slot as u64;
        self.entries[slot] = (id, Some(object));
        Ok(id)
    }

    /// The live object of this handle.
    pub(super) fn get(&self, id: u64) -> Option<&Arc<T>> {
        let (owner, object) = self.entries.get(id as usize & ((1 << SLOT_BITS) - 1))?;
        if *owner == id { object.as_ref() } else { None }
    }

    /// Removes the object; its handle is dead from now on.
    pub(super) fn remove(&mut self, id: u64) -> Option<Arc<T>> {
        let slot = id as usize & ((1 << SLOT_BITS) - 1);
        let (owner, object) = self.entries.get_mut(slot)?;
        let object = if *owner == id { object.take() } else { None };
        if object.is_some() {
            self.free.push(slot as u32);
        }
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_handle_never_finds_the_next_owner_of_its_slot() {
        let mut slots = HandleTable::new();
        let a = slots.insert(Arc::new(1)).unwrap();
        let b = slots.insert(Arc::new(2)).unwrap();
        assert!(a >= 1 << SLOT_BITS && a != b);
        assert_eq!(slots.remove(a).as_deref(), Some(&1));
        assert!(slots.remove(a).is_none());
        let c = slots.insert(Arc::new(3)).unwrap();
        assert_eq!(a & 0xfffff, c & 0xfffff, "the slot is reused");
        assert!(slots.get(a).is_none());
        assert_eq!(slots.get(b).map(|v| **v), Some(2));
        assert_eq!(slots.get(c).map(|v| **v), Some(3));
        assert!(slots.get(0).is_none() && slots.get(u64::MAX).is_none());
    }
}
