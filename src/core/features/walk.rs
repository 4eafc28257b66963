//! Lists every block of the pond, all at the same moment: under the growth lock, with all heaps locked in the order of
//! their numbers.

use super::super::account::Accounts;
use super::super::blocks::Blocks;
use super::super::desc::{Id, kind, use_of};
use super::super::ground::{Ground, Growing};
use super::super::heap::{Heap, LockedHeap};
use super::super::layout::Owner;
use super::super::shape::{Tier, shift_of};
use super::super::state::growth::segments::Segment;
use super::super::types::{BlockRecord, BlockState, BlockStates, PoolId, RETIRED, UNORDERED};
use super::super::units::{Extent, GRANULE_SHIFT, LARGE_UNITS_SHIFT};
use crate::base::error::{Code, Error, Result};

impl Growing<'_> {
    /// Calls `each` with the id, the heap's number and the pieces (of a scattered block) of every block whose heap
    /// `locked` has by its number, whatever the block's state.
    pub(super) fn each_block<'l, 'h: 'l>(
        &self,
        locked: impl Fn(u32) -> Option<&'l LockedHeap<'h>>,
        mut each: impl FnMut(Id, u32, &[Extent]),
    ) {
        let wanted = |heap: u32| locked(heap).is_some_and(|h| h.heap.index == heap);
        let (ground, maps) = (self.ground, &self.ground.maps);
        for run in self.room.occupied(ground.memory_granules()) {
            let mut unit = 0;
            for granule in run.granules() {
                let u = maps.granule(granule);
                if !wanted(u.heap()) {
                    continue;
                }
                match u.use_() {
                    use_of::LARGE => {
                        unit = unit.max(granule << LARGE_UNITS_SHIFT);
                        while unit < (granule + 1) << LARGE_UNITS_SHIFT {
                            let id = maps.large_at(unit);
                            let d = maps.desc(id);
                            if id == 0 || d.off() != unit || d.tier_bits() != Tier::Large as u32 {
                                break; // a segment ends inside this granule
                            }
                            each(id, u.heap(), &[]);
                            unit += d.units();
                        }
                    }
                    use_of::SMALL | use_of::MEDIUM => {
                        let per_chunk = GRANULE_SHIFT - u.shift();
                        let (first, mut at) = (granule << per_chunk, 0);
                        while at < 1 << per_chunk {
                            let id = maps.at(u.entry(first + at));
                            each(id, u.heap(), &[]);
                            at += maps.desc(id).units().max(1);
                        }
                    }
                    _ => {}
                }
            }
        }
        ground.aliases().in_use(|id, granule, pieces| {
            let heap = maps.granule(granule).heap();
            if wanted(heap) {
                each(id, heap, pieces);
            }
        });
    }

    /// The addresses of the offsets: of each segment, or of all if the device maps.
    pub(super) fn pieces_taken(&self, locate: impl Fn(u64) -> Result<u64>) -> Result<Vec<Piece>> {
        if self.ground.config.mapping {
            return Ok(vec![Piece { offset: 0, end: u64::MAX, bytes: u64::MAX, at: locate(0)? }]);
        }
        let piece = |s: &Segment| {
            let offset = s.offset();
            Ok(Piece { offset, end: offset + s.part.bytes(), bytes: s.bytes, at: locate(offset)? })
        };
        self.segments.iter().map(piece).collect()
    }
}

/// Room for blocks that are made while a list is prepared.
pub(super) const SPARE_ENTRIES: usize = 64;

/// The walk over all blocks of a pond.
#[derive(Clone, Copy)]
pub(crate) struct Walk<'a> {
    ground: &'a Ground,
}

impl<'a> Walk<'a> {
    pub(crate) fn of(ground: &'a Ground) -> Walk<'a> {
        Walk { ground }
    }

    /// The blocks of one pool, or of all, that are in one of these states, sorted by address. Nothing is allocated or
    /// freed while they are collected; the device is not called. `locate` translates an offset into an address: that
    /// may change as soon as a segment goes back to the device, so it is called while none can.
    pub(crate) fn blocks(
        self,
        pool: Option<PoolId>,
        states: BlockStates,
        locate: impl Fn(u64) -> Result<u64>,
    ) -> Result<Vec<BlockRecord>> {
        let (ground, maps) = (self.ground, &self.ground.maps);
        let none = || Error::new(Code::OutOfMemory, "no host memory for the list of blocks");
        let (mut seen, mut full) = (Vec::<Seen>::new(), false);
        // Reserved beforehand, so that hardly anything is allocated while everybody waits.
        let expected = 2 * Accounts::of(ground).live_blocks() as usize + SPARE_ENTRIES;
        seen.try_reserve(expected).map_err(|_| none())?;
        let mut heaps: Vec<Option<Owner>> = Vec::new(); // by number
        let pieces: Vec<Piece>;
        {
            let g = ground.growing();
            pool.map(|p| ground.pools().live(p)).transpose()?;
            let mut ledger = ground.ledger();
            let mut locked = Vec::new();
            ground.lock_all(&mut ledger, &mut locked);
            locked.iter_mut().for_each(|h| Blocks::of(ground).drain(h));
            for h in &locked {
                heaps.resize_with(h.heap.index as usize, || None);
                heaps.push(Some(owner(ground, h.heap)));
            }
            pieces = g.pieces_taken(locate)?;
            let of_pool = |o: &Owner| pool.is_none_or(|p| o.pool == Some(p));
            let wanted = |heap: u32| heaps.get(heap as usize).and_then(Option::as_ref).is_some_and(of_pool);
            // All heaps are locked, so that a heap's number is its place in the list.
            let locked = |heap: u32| locked.get(heap as usize).filter(|_| wanted(heap));
            g.each_block(locked, |id, heap, _| {
                let d = maps.desc(id);
                let Some(state) = reported_as(d.kind()).filter(|&s| states.contains(s.into())) else {
                    return;
                };
                full = full || seen.len() == seen.capacity() && seen.try_reserve(seen.len()).is_err();
                if !full {
                    let (off, units, requested) = (d.off(), d.units(), d.requested());
                    let (tier_bits, tag) = (d.tier_bits(), Blocks::of(ground).tag_of(id));
                    seen.push(Seen { off, units, heap, tier_bits, requested, state, tag });
                }
            });
        }
        if full {
            return Err(none());
        }
        let mut records = Vec::new();
        records.try_reserve_exact(seen.len()).map_err(|_| none())?;
        records.extend(
            seen.iter().filter_map(|s| self.record(s, heaps.get(s.heap as usize)?.as_ref()?, &pieces)),
        );
        BlockRecord::sort(&mut records);
        Ok(records)
    }

    /// What is reported of a block. Free memory in a sleeping pool has nothing behind it and is not reported; nor is a
    /// block that was a segment of its own, while it goes back to the device.
    fn record(self, s: &Seen, owner: &Owner, pieces: &[Piece]) -> Option<BlockRecord> {
        let taken = s.state != BlockState::Free;
        if !taken && owner.sleeps {
            return None;
        }
        let offset = u64::from(s.off) << shift_of(s.tier_bits);
        let after = pieces.partition_point(|x| x.offset <= offset);
        let piece = pieces.get(after.checked_sub(1)?).filter(|p| offset < p.end)?;
        Some(BlockRecord {
            base: piece.at + (offset - piece.offset),
            size: match taken {
                true => self.ground.maps.charge_of(s.tier_bits, s.units, s.requested),
                false => u64::from(s.units) << shift_of(s.tier_bits),
            },
            requested: if taken { s.requested } else { 0 },
            stream: owner.stream,
            pool: owner.pool,
            state: s.state,
            segment: (!self.ground.config.mapping).then_some(piece.at),
            tag: s.tag,
        })
    }
}

/// The owner of a heap's memory.
pub(super) fn owner(ground: &Ground, heap: &Heap) -> Owner {
    let pool = Some(PoolId(heap.pool())).filter(|&p| ground.pools().get(p).is_some());
    Owner {
        stream: Some(heap.stream()).filter(|&s| s != UNORDERED && s != RETIRED),
        pool,
        sleeps: pool.is_some_and(|p| ground.pools().sleeps(p)),
    }
}

/// What is read from a block while everybody waits.
struct Seen {
    off: u32, // as in its descriptor
    units: u32,
    heap: u32,
    tier_bits: u32,
    requested: u64,
    state: BlockState,
    tag: u16,
}

/// A range of offsets, and its address at that moment.
pub(super) struct Piece {
    pub offset: u64,
    pub end: u64,
    pub bytes: u64, // [B] that the device gave: its last unit may be cut off, or not be all
    pub at: u64,
}

/// The state that is reported for a block of that kind.
pub(super) fn reported_as(kind: u32) -> Option<BlockState> {
    match kind {
        // A block that another thread has claimed counts as live until its heap has taken it over.
        kind::LIVE | kind::REMOTE => Some(BlockState::Live),
        kind::WAITING => Some(BlockState::Waiting),
        kind::FREE | kind::FREED => Some(BlockState::Free),
        _ => None,
    }
}
