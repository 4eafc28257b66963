//! Collects every block and the whole account at one moment.

use super::super::desc::Id;
use super::super::ground::Ground;
use super::super::heap::counters::Grid;
use super::super::layout::{Layout, Owner, Place, Placed};
use super::super::shape::{Tier, shift_of};
use super::super::types::{BlockState, PoolId};
use super::walk::{Piece, reported_as};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::{Ordering::Relaxed, lock};

impl Ground {
    /// Collects the `Layout`. Nobody can allocate or free meanwhile, and the device is not called; before that, it is
    /// asked which waits are over. `locate` is as in `walk`.
    pub(crate) fn snapshot(&self, locate: impl Fn(u64) -> Result<u64>) -> Result<Layout> {
        let none = || Error::new(Code::OutOfMemory, "no host memory for the list of blocks");
        self.poll_all();
        let (mut blocks, mut full) = (Vec::<Placed>::new(), false);
        // Reserved beforehand, so that the list hardly ever grows while everybody waits.
        blocks.try_reserve(2 * self.live_blocks() as usize + 64).map_err(|_| none())?;
        let growth = self.growing();
        let mut ledger = lock(&self.ledger);
        let told = self.with_everything(&mut ledger, |ledger| {
            let mut owners = Vec::<Owner>::new(); // by number
            for h in self.all_heaps() {
                owners.resize(h.index as usize, Owner::default());
                owners.push(self.owner(h));
            }
            let pieces = self.pieces_taken(&growth, locate)?;
            self.each_block(
                &growth,
                |_| true,
                |id, heap, _| {
                    full = full
                        || blocks.len() == blocks.capacity() && blocks.try_reserve(blocks.len()).is_err();
                    let sleeps = owners.get(heap as usize).is_some_and(|o| o.sleeps);
                    if !full && let Some(b) = self.placed(id, heap, sleeps, &pieces) {
                        blocks.push(b);
                    }
                },
            );
            let named = self.all_pools().filter_map(|p| {
                let id = PoolId(p.id.load(Relaxed));
                let p = self.pool(id)?;
                let account = ledger.pools.get(&id.0).copied().unwrap_or_default();
                Some((id, self.stats_of(Some(p), &account, &Grid::default(), growth.holdings(id.0))))
            });
            let pools = named.collect();
            Ok((owners, pools, self.stats_of(None, &ledger.device, &ledger.gone, growth.device)))
        });
        drop(ledger);
        drop(growth);
        let (owners, pools, device) = told?;
        if full {
            return Err(none());
        }
        Ok(Layout::new(blocks, owners, device, pools))
    }

    /// The entry of a block, if it is reported; see `record`.
    fn placed(&self, id: Id, heap: u32, sleeps: bool, pieces: &[Piece]) -> Option<Placed> {
        let d = self.maps.desc(id);
        let state = reported_as(d.kind())?;
        let taken = state != BlockState::Free;
        if !taken && sleeps {
            return None;
        }
        let (tier_bits, units) = (d.tier_bits(), d.units());
        let requested = if taken { d.requested() } else { 0 };
        let offset = u64::from(d.off()) << shift_of(tier_bits);
        let segment = pieces.partition_point(|x| x.offset <= offset).checked_sub(1)?;
        let piece = pieces.get(segment).filter(|p| offset < p.end)?;
        let own = u64::from(units) << shift_of(tier_bits);
        // The last block of a segment ends with the segment, which may be before or after the end of its last unit.
        let span = if offset + own == piece.end { piece.bytes - (offset - piece.offset) } else { own };
        let size = if taken { self.charge_of(tier_bits, units, requested) } else { span };
        let span = span.max(size);
        Some(Placed {
            address: piece.at + (offset - piece.offset),
            span,
            requested,
            slack: u32::try_from(span - size).unwrap_or(0),
            owner: heap,
            segment: segment as u32,
            state,
            place: match tier_bits {
                _ if !self.config.mapping => Place::Segment,
                t if t == Tier::Large as u32 => Place::Large,
                t if t < Tier::Large as u32 => Place::Small,
                _ => Place::Scattered,
            },
            tag: if taken { self.tag_of(id) } else { 0 },
        })
    }
}
