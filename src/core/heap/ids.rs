//! The ids of descriptors that a heap has in stock: a list linked by `next`, refilled in batches from those that no heap
//! holds. All methods work on a locked heap.

use super::super::desc::{ID_BATCH, Id, kind};
use super::granules::FreeBlock;
use super::{HeapState, LockedHeap};
use std::ops::DerefMut;

impl<G: DerefMut<Target = HeapState>> LockedHeap<'_, G> {
    /// Whether two ids are in stock: no cut takes more.
    pub(super) fn has_ids_to_cut(&self) -> bool {
        self.state.ids != 0 && self.maps().desc(self.state.ids).next() != 0
    }

    /// Makes sure that two ids are in stock.
    pub(super) fn stock_ids(&mut self) -> bool {
        if self.has_ids_to_cut() {
            return true;
        }
        self.fetch_ids();
        self.state.ids != 0 && (self.has_ids_to_cut() || self.fetch_ids())
    }

    /// Fetches a batch. `false`: none are left.
    fn fetch_ids(&mut self) -> bool {
        let first = self.maps().take_ids(ID_BATCH);
        let mut id = first;
        while id != 0 {
            let next = self.maps().desc(id).next();
            self.put_id(id);
            id = next;
        }
        first != 0
    }

    /// Returns an id that no block uses to the stock.
    pub(crate) fn put_id(&mut self, id: Id) {
        let d = self.maps().desc(id);
        d.set_state(kind::UNUSED);
        d.set_next(self.state.ids);
        self.state.ids = id;
    }

    /// Takes an id from the stock, after `stock_ids`.
    pub(super) fn pop_id(&mut self) -> Id {
        let id = self.state.ids;
        self.state.ids = self.maps().desc(id).next();
        id
    }

    /// Puts the ids of the list back into the stock, and moves so many out of it into the list: none if too few are left, or if the
    /// host has no memory for it.
    pub(crate) fn lend_ids(&mut self, count: u32, list: &mut Vec<Id>) {
        while let Some(id) = list.pop() {
            self.put_id(id);
        }
        if list.try_reserve(count as usize).is_ok() && self.stock(count) {
            for _ in 0..count {
                list.push(self.pop_id());
            }
        }
    }

    /// A block that was taken out of this heap with an id that was lent, under an id of this heap's again.
    #[inline(never)]
    pub(crate) fn with_own_id(&mut self, mut block: FreeBlock, lent: &mut Vec<Id>) -> FreeBlock {
        if lent.len() < lent.capacity() && self.state.ids != 0 {
            lent.push(std::mem::replace(&mut block.id, self.pop_id()));
        }
        block
    }

    /// Takes one id.
    #[inline]
    pub(crate) fn take_id(&mut self) -> Option<Id> {
        (self.state.ids != 0 || self.stock_ids()).then(|| self.pop_id())
    }

    /// Whether an id is in stock or can be fetched.
    #[inline]
    pub(super) fn has_id(&mut self) -> bool {
        self.state.ids != 0 || self.stock_ids()
    }

    /// Makes sure that `count` ids are in stock; `false`: none are left.
    pub(crate) fn stock(&mut self, count: u32) -> bool {
        loop {
            let (mut have, mut id) = (0, self.state.ids);
            while id != 0 && have < count {
                id = self.maps().desc(id).next();
                have += 1;
            }
            if have == count {
                return true;
            }
            if !self.fetch_ids() {
                return false;
            }
        }
    }

    /// Gives the whole stock back to the device, for any heap.
    pub(crate) fn give_ids_up(&mut self) {
        let first = std::mem::take(&mut self.state.ids);
        self.maps().give_ids(first);
    }
}
