//! Collects every block and the whole account at one moment: under the growth lock and the ledger, with all heaps locked.

use super::super::account::Accounts;
use super::super::blocks::{Blocks, WaitingBlocks};
use super::super::desc::Id;
use super::super::ground::Ground;
use super::super::heap::counters::Grid;
use super::super::layout::{Layout, Owner, Place, Placed, ScatteredPiece};
use super::super::shape::{Tier, shift_of};
use super::super::types::{BlockState, PoolId};
use super::super::units::LARGE_SHIFT;
use super::walk::{Piece, SPARE_ENTRIES, owner, reported_as};
use crate::base::error::{Code, Error, Result};

/// The snapshot of a pond.
#[derive(Clone, Copy)]
pub(crate) struct Snapshot<'a> {
    ground: &'a Ground,
}

impl<'a> Snapshot<'a> {
    pub(crate) fn of(ground: &'a Ground) -> Snapshot<'a> {
        Snapshot { ground }
    }

    /// Collects the `Layout`. Nobody can allocate or free meanwhile, and the device is not called; before that, it is
    /// asked which waits are over. `locate` is as in `walk`.
    pub(crate) fn take(self, locate: impl Fn(u64) -> Result<u64>) -> Result<Layout> {
        let ground = self.ground;
        let accounts = Accounts::of(ground);
        let none = || Error::new(Code::OutOfMemory, "no host memory for the list of blocks");
        WaitingBlocks::of(ground).poll_all();
        let (mut blocks, mut full) = (Vec::<Placed>::new(), false);
        let mut shown = Vec::<ScatteredPiece>::new();
        // Reserved beforehand, so that the list hardly ever grows while everybody waits.
        let expected = 2 * accounts.live_blocks() as usize + SPARE_ENTRIES;
        blocks.try_reserve(expected).map_err(|_| none())?;
        let pieces = ground.aliases().piece_count() as usize;
        shown.try_reserve(pieces + pieces / 8 + SPARE_ENTRIES).map_err(|_| none())?;
        let growth = ground.growing();
        let mut ledger = ground.ledger();
        let collected = accounts.with_everything(&mut ledger, |ledger, locked| {
            let mut owners = Vec::<Owner>::new(); // by number
            for h in ground.heaps().all() {
                owners.resize(h.index as usize, Owner::default());
                owners.push(owner(ground, h));
            }
            let pieces = growth.pieces_taken(locate)?;
            let window = pieces.first().map_or(0, |p| p.at); // where a device maps, all offsets are in one
            growth.each_block(
                |heap| locked.heap(heap),
                |id, heap, parts| {
                    full = full
                        || blocks.len() == blocks.capacity() && blocks.try_reserve(blocks.len()).is_err()
                        || shown.len() + parts.len() > shown.capacity()
                            && shown.try_reserve(shown.len() + parts.len()).is_err();
                    let sleeps = owners.get(heap as usize).is_some_and(|o| o.sleeps);
                    if !full && let Some(b) = self.placed(id, heap, sleeps, &pieces) {
                        blocks.push(b);
                        let mut at = b.address;
                        for part in parts {
                            let home = window + (u64::from(part.off) << LARGE_SHIFT);
                            shown.push(ScatteredPiece {
                                block: b.address,
                                address: at,
                                bytes: part.bytes(),
                                home,
                            });
                            at += part.bytes();
                        }
                    }
                },
            );
            let named = ground.pools().all().filter_map(|p| {
                let id = PoolId(p.id());
                let p = ground.pools().get(id)?;
                let account = ledger.pools.get(&id.0).copied().unwrap_or_default();
                Some((id, accounts.stats_of(Some(p), &account, &Grid::default(), growth.account.of(id.0))))
            });
            let pools = named.collect();
            Ok((
                owners,
                pools,
                accounts.stats_of(None, &ledger.device, &ledger.gone, growth.account.device()),
            ))
        });
        drop(ledger);
        drop(growth);
        let (owners, pools, device) = collected?;
        if full {
            return Err(none());
        }
        Ok(Layout::new(blocks, owners, device, pools).with_pieces(shown))
    }

    /// The entry of a block, if it is reported; see `record`.
    fn placed(self, id: Id, heap: u32, sleeps: bool, pieces: &[Piece]) -> Option<Placed> {
        let d = self.ground.maps.desc(id);
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
        let size = if taken { self.ground.maps.charge_of(tier_bits, units, requested) } else { span };
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
                _ if !self.ground.config.mapping => Place::Segment,
                t if t == Tier::Large as u32 => Place::Large,
                t if t < Tier::Large as u32 => Place::Small,
                _ => Place::Scattered,
            },
            tag: if taken { Blocks::of(self.ground).tag_of(id) } else { 0 },
        })
    }
}
