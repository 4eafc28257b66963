//! Blocks that are lent: others beside this process may use their memory. A lender's mark is passed when nobody
//! does any more, which may be never.
//!
//! So nothing ever waits for such a mark. A lent block that is freed is pending until its other marks are passed,
//! and is then *held*: out of the queue, so that blocks behind it come back, and looked at now and then. What would
//! take the memory from under others (sleep, restore, the end of the pool) is refused meanwhile.

use super::aliases::granules_of;
use super::desc::{ALIAS, Id, kind};
use super::heap::{Heap, Inner, Mark};
use super::pond::Pond;
use super::shape::GRANULE_SHIFT;
use super::types::PoolId;
use crate::base::error::{Code, Result};
use crate::base::sync::Ordering;
use crate::fail;

/// Where the memory of a block is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    /// Its bytes, as they were asked for.
    pub bytes: u64,
    /// Bytes from the start of the first granule to the block.
    pub skip: u64,
    /// Granules in the order of addresses: (first, count). Empty where the device does not map.
    pub granules: Vec<(u32, u32)>,
}

/// A freed block that is still lent.
#[derive(Debug)]
pub(crate) struct Held {
    pub id: Id,
    pub marks: Vec<Mark>,
    /// A segment of its own: it is out of the account already.
    pub direct: bool,
}

impl Pond {
    /// Where the memory of the live block at `offset` is. `NotPermitted` while its pool sleeps.
    pub fn pieces(&self, offset: u64) -> Result<Pieces> {
        let (id, heap) = self.used_block(offset)?;
        let h = heap.inner.lock();
        if !self.still_live(id, offset) {
            fail!(Code::UnknownPointer, "the block was freed meanwhile");
        }
        if self.sleeps(PoolId(heap.pool.load(Ordering::Relaxed))) {
            fail!(Code::NotPermitted, "the pool of the block sleeps");
        }
        let d = self.maps.desc(id);
        let bytes = d.requested();
        if !self.config.mapping {
            return Ok(Pieces { bytes, ..Pieces::default() });
        }
        if d.tier_bits() == ALIAS {
            let aliases = self.aliases.lock();
            let granules = aliases.pieces(d.aux()).iter().map(|&p| granules_of(p)).collect();
            return Ok(Pieces { bytes, skip: offset & ((1 << GRANULE_SHIFT) - 1), granules });
        }
        drop(h);
        let skip = offset & ((1 << GRANULE_SHIFT) - 1);
        let count = (skip + bytes).div_ceil(1 << GRANULE_SHIFT);
        Ok(Pieces { bytes, skip, granules: vec![((offset >> GRANULE_SHIFT) as u32, count as u32)] })
    }

    /// The live block at `offset` is lent until the mark is passed, which is the pond's from here on. On an error
    /// it is still the caller's.
    pub fn lend(&self, offset: u64, mark: Mark) -> Result<()> {
        let (id, heap) = self.used_block(offset)?;
        let mut h = heap.inner.lock();
        if !self.still_live(id, offset) || !self.maps.desc(id).flag_uses() {
            fail!(Code::UnknownPointer, "the block was freed meanwhile");
        }
        let marks = h.lent.entry(id).or_default();
        // A block that is lent again and again keeps no more than twice what is still in use, at a constant cost.
        if marks.len().is_power_of_two() {
            self.drop_passed(marks);
        }
        marks.push(mark);
        Ok(())
    }

    /// Holds a freed block that nothing else keeps. The heap is locked.
    pub(crate) fn hold(&self, h: &mut Inner, id: Id, marks: Vec<Mark>, direct: bool) {
        h.held.push(Held { id, marks, direct });
    }

    /// Brings back held blocks of a heap that nobody uses any more. Waits for nothing. `true` when any came back.
    pub(crate) fn poll_held(&self, heap: &Heap) -> bool {
        let mut h = heap.inner.lock();
        if h.held.is_empty() {
            return false;
        }
        let mut all = std::mem::take(&mut h.held);
        let before = all.len();
        for held in &mut all {
            self.drop_passed(&mut held.marks);
        }
        let (back, stay): (Vec<_>, Vec<_>) = all.into_iter().partition(|x| x.marks.is_empty());
        h.held = stay;
        for x in &back {
            if x.direct {
                let contract = self.charge(x.id);
                self.free_direct_after(heap, x.id, contract);
            } else {
                self.ripen(&mut h, x.id);
            }
        }
        before != h.held.len()
    }

    /// Unlike the marks of streams, these may be asked for with a heap locked: no device is called.
    pub(crate) fn drop_passed(&self, marks: &mut Vec<Mark>) {
        marks.retain(|&m| {
            let over = self.backing.passed(m).unwrap_or(false);
            if over {
                self.backing.forget(m);
            }
            !over
        });
    }

    /// Freed blocks that are still lent, of all pools or of one, and their bytes after rounding; and live ones.
    pub fn on_loan(&self, pool: Option<PoolId>) -> ((u64, u64), u64) {
        let (mut blocks, mut bytes, mut live) = (0, 0, 0);
        for i in 0..self.heap_count.load(Ordering::Acquire) as usize {
            let Some(heap) = self.heaps.get(i) else { continue };
            if pool.is_some_and(|p| p.0 != heap.pool.load(Ordering::Relaxed)) {
                continue;
            }
            self.poll_held(heap);
            let mut h = heap.inner.lock();
            let waiting = h.pending.iter().filter(|p| !p.lent.is_empty()).map(|p| p.id);
            for id in h.held.iter().map(|x| x.id).chain(waiting) {
                blocks += 1;
                bytes += self.charge(id);
            }
            h.lent.retain(|_, marks| {
                self.drop_passed(marks);
                !marks.is_empty()
            });
            live += h.lent.len() as u64;
        }
        ((blocks, bytes), live)
    }

    /// `Busy` while blocks of the pool are lent; with `freed`, only freed ones count.
    pub(crate) fn check_loans(&self, pool: PoolId, freed: bool) -> Result<()> {
        let ((blocks, _), live) = self.on_loan(Some(pool));
        let n = if freed { blocks } else { blocks + live };
        if n > 0 {
            fail!(Code::Busy, "{n} blocks of the pool are exported, and others still use them");
        }
        Ok(())
    }

    /// The device ends: what is lent goes with it, or stays with those who use it, as the device has it.
    pub(crate) fn forget_loans(&self) {
        for i in 0..self.heap_count.load(Ordering::Acquire) as usize {
            let Some(heap) = self.heaps.get(i) else { continue };
            let (lent, held) = {
                let mut h = heap.inner.lock();
                (std::mem::take(&mut h.lent), std::mem::take(&mut h.held))
            };
            let marks = lent.into_values().chain(held.into_iter().map(|x| x.marks));
            marks.flatten().for_each(|m| self.backing.forget(m));
        }
    }

    /// The block of a segment of its own was freed while it was lent: its segment stays until nobody uses it.
    pub(crate) fn hold_direct(&self, heap: &Heap, id: Id, marks: Vec<Mark>) {
        let (contract, bytes) = (self.charge(id), self.maps.desc(id).requested());
        let mut h = heap.inner.lock();
        debug_assert_eq!(self.maps.desc(id).kind(), kind::PENDING);
        h.count_out(contract, bytes);
        self.hold(&mut h, id, marks, true);
    }
}
