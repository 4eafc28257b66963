//! Every block of the pond, as all of them are at one moment.

use super::super::desc::{Id, kind, use_of};
use super::super::ground::{Ground, Growing};
use super::super::heap::LockedHeap;
use super::super::shape::{Tier, shift_of};
use super::super::state::growth::Segment;
use super::super::types::{BlockRecord, BlockState, BlockStates, PoolId, RETIRED, UNORDERED};
use super::super::units::{Extent, GRANULE_SHIFT, LARGE_UNITS_SHIFT};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::Ordering::Acquire;

impl Ground {
    /// Calls `each` with the id, the number of the heap and the pieces (of a scattered block) of every block whose heap
    /// is `wanted`, whatever its state. Those heaps are locked.
    pub(super) fn each_block(
        &self,
        g: &Growing<'_>,
        wanted: impl Fn(u32) -> bool,
        mut each: impl FnMut(Id, u32, &[Extent]),
    ) {
        for run in g.occupied(self.real) {
            let mut unit = 0;
            for granule in run.granules() {
                let u = self.maps.granule(granule);
                if !wanted(u.heap()) {
                    continue;
                }
                match u.use_() {
                    use_of::LARGE => {
                        unit = unit.max(granule << LARGE_UNITS_SHIFT);
                        while unit < (granule + 1) << LARGE_UNITS_SHIFT {
                            let id = self.maps.large_at(unit);
                            let d = self.maps.desc(id);
                            if id == 0 || d.off() != unit || d.tier_bits() != Tier::Large as u32 {
                                break; // a segment ends inside this granule
                            }
                            each(id, u.heap(), &[]);
                            unit += d.units();
                        }
                    }
                    use_of::SMALL | use_of::MEDIUM => {
                        let mask = (1u32 << (GRANULE_SHIFT - u.shift())) - 1;
                        let mut at = 0;
                        while at <= mask {
                            let id = self.maps.at(u.low() + at);
                            each(id, u.heap(), &[]);
                            at += self.maps.desc(id).units().max(1);
                        }
                    }
                    _ => {}
                }
            }
        }
        self.aliases.lock().in_use(|id, granule, pieces| {
            let heap = self.maps.granule(granule).heap();
            if wanted(heap) {
                each(id, heap, pieces);
            }
        });
    }

    /// All heaps that there are, locked in the order of their numbers.
    fn lock_all(&self) -> Vec<LockedHeap<'_>> {
        let mut all: Vec<LockedHeap<'_>> = Vec::new();
        loop {
            let count = self.heap_count.load(Acquire);
            all.extend((0..count).filter_map(|i| self.heap(i)).map(|x| self.look(x)));
            // One that was made meanwhile may have taken memory from one that was not locked yet.
            if self.heap_count.load(Acquire) == count {
                return all;
            }
            all.clear();
        }
    }

    /// The blocks of one pool, or of all, that are in one of these states, by offset. Nothing is allocated or freed
    /// while they are collected; the device is not called.
    pub(crate) fn walk(&self, pool: Option<PoolId>, states: BlockStates) -> Result<Vec<BlockRecord>> {
        let mut records = Vec::new();
        let none = |_| Error::new(Code::OutOfMemory, "no host memory for the list of blocks");
        // Room beforehand, so that hardly any is sought while everybody waits.
        records.try_reserve(2 * self.live_blocks() as usize + 64).map_err(none)?;
        let mut room = Ok(());
        {
            let g = self.growing();
            pool.map(|p| self.live_pool(p)).transpose()?;
            let mut heaps = self.lock_all();
            heaps.iter_mut().for_each(|h| self.drain(h));
            let whose = |heap: u32| self.heap(heap).map(|x| x.pool());
            let wanted = |heap: u32| pool.is_none_or(|p| whose(heap) == Some(p.0));
            self.each_block(&g, wanted, |id, heap, _| {
                if let Some(record) = self.record(&g, id, heap).filter(|r| states.contains(r.state.into())) {
                    match records.try_reserve(1) {
                        Ok(()) => records.push(record),
                        Err(e) => room = Err(e),
                    }
                }
            });
        }
        room.map_err(none)?;
        records.sort_unstable_by_key(|r| r.base);
        Ok(records)
    }

    /// What a walk tells of a block.
    fn record(&self, g: &Growing<'_>, id: Id, heap: u32) -> Option<BlockRecord> {
        let d = self.maps.desc(id);
        let state = match d.kind() {
            // One that another thread has claimed is live until its heap has it back.
            kind::LIVE | kind::REMOTE => BlockState::Live,
            kind::WAITING => BlockState::Waiting,
            kind::FREE | kind::FREED => BlockState::Free,
            _ => return None,
        };
        let base = self.offset(id);
        let taken = state != BlockState::Free;
        let heap = self.heap(heap)?;
        if !taken && self.sleeps(PoolId(heap.pool())) {
            return None; // there is nothing behind it
        }
        let segment = g.segment_of((base >> GRANULE_SHIFT) as u32).map(Segment::offset);
        Some(BlockRecord {
            base,
            size: if taken { self.charge(id) } else { u64::from(d.units()) << shift_of(d.tier_bits()) },
            requested: if taken { d.requested() } else { 0 },
            stream: Some(heap.stream()).filter(|&s| s != UNORDERED && s != RETIRED),
            pool: Some(PoolId(heap.pool())).filter(|&p| self.pool(p).is_some()),
            state,
            segment: segment.filter(|_| !self.config.mapping),
        })
    }
}
