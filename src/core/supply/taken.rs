//! Taking free memory out of heaps, so that it goes to another heap or back to the device, and returning it.
//!
//! The growth lock is held while memory is taken and returned. In between the operation owns it, as memory in transit
//! ([`InTransit`]).

use super::super::blocks::{Blocks, collect_ids};
use super::super::ground::{Growing, Transit};
use super::super::heap::{FreeBlock, Heap};
use super::super::state::growth::joined;
use super::super::state::growth::ties::Piece;
use super::super::state::growth::transits::Parts;
use super::super::tied::choose;
use super::super::types::COMMONS;
use super::super::units::{Extent, GranuleRun, GranuleSet};
use crate::base::ordered::{Map, Set};
use crate::base::sort;

/// Free memory that was taken out of a heap.
#[derive(Clone, Copy)]
pub(super) struct Taken {
    pub heap: &'static Heap,
    pub block: FreeBlock,
}

impl Taken {
    /// Its granules.
    pub(super) fn granules(&self) -> GranuleRun {
        self.block.part.touched()
    }
}

/// What goes back to the device with one call, and the parts of it.
pub(super) struct Lot {
    pub run: GranuleRun,
    pub parts: Vec<Taken>,
}

/// Whether ties are among what is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// Loose granules, and ties where these are not enough.
    Any,
    /// Ties only.
    Ties,
}

/// The number of granules that were taken.
pub(super) fn count(taken: &[Taken]) -> u64 {
    taken.iter().map(|t| u64::from(t.granules().count)).sum()
}

/// What an operation has taken. What is still there in the end goes back to the heaps that had it.
pub(super) struct InTransit<'a> {
    pub taken: Vec<Taken>,
    /// Nobody has to wait for an operation that holds nothing.
    transit: Option<Transit<'a>>,
}

impl InTransit<'_> {
    /// Returns what is left to its heaps, and ends the transit.
    pub(super) fn end(self, g: &mut Growing<'_>) {
        g.return_all(self.taken);
        if let Some(transit) = self.transit {
            transit.end(g);
        }
    }
}

impl<'a> Growing<'a> {
    /// Makes what was taken memory in transit.
    pub(super) fn in_transit(&mut self, taken: Vec<Taken>, parts: Parts) -> InTransit<'a> {
        let transit = (!taken.is_empty()).then(|| self.begin_transit(parts));
        InTransit { taken, transit }
    }

    /// Merges everything that was freed so far in those heaps, and drops the pinned ones from the list.
    fn merge_freed(&self, mut heaps: Vec<&'static Heap>) -> Vec<&'static Heap> {
        let ground = self.ground;
        if ground.maps.ids_are_few() {
            collect_ids(self);
        }
        heaps.retain(|x| !ground.pools().is_pinned(x));
        for &heap in &heaps {
            let mut h = ground.lock(heap);
            Blocks::of(ground).drain(&mut h);
            h.give_up_whole();
            h.flush();
            h.give_ids_up(); // others may need some to split their blocks
        }
        heaps
    }

    /// Takes `most` free granules out of the heaps, or as many as there are. Of a tie it takes none or all, so it may take
    /// some more, but as few as possible. Nobody else can use them then, but work that was queued before they were freed
    /// still may. What there are no ids to cut stays, and `lacks_ids` says so.
    pub(super) fn take_free(&mut self, heaps: Vec<&'static Heap>, most: u64, of: Of) -> Vec<Taken> {
        let heaps = self.merge_freed(heaps);
        self.lacks_ids = false;
        let chosen = match self.ties.is_empty() {
            true => Set::new(),
            false => self.choose_free_ties(&heaps, most, of),
        };
        let of_ties: u64 = chosen.iter().map(|t| u64::from(t.count)).sum();
        let mut left = if of == Of::Ties { 0 } else { most.saturating_sub(of_ties) };
        let mut taken = Vec::new();
        let mut cut = Set::new(); // ties of which a heap has only some
        for &heap in &heaps {
            let mut h = self.ground.lock(heap);
            let mut runs = Vec::new();
            h.free_runs(&mut runs);
            for (run, id) in runs {
                // From the end of the run: its owner continues from the front.
                for piece in self.ties.cut(run).into_iter().rev() {
                    let n = match piece.tie {
                        None => u64::from(piece.run.count).min(left) as u32,
                        Some(tie) if !chosen.contains(&tie) => 0,
                        Some(tie) if tie == piece.run => piece.run.count,
                        Some(tie) => {
                            cut.insert(tie);
                            0
                        }
                    };
                    if n == 0 {
                        continue;
                    }
                    let Some(block) = h.take_part(id, piece.run.last(n).extent()) else {
                        self.lacks_ids = true;
                        continue;
                    };
                    taken.push(Taken { heap, block });
                    left -= if piece.tie.is_none() { u64::from(n) } else { 0 };
                }
            }
        }
        if !cut.is_empty() {
            self.take_cut_ties(&heaps, &cut, &mut taken);
        }
        taken
    }

    /// The ties that are taken if `most` granules are: ties that are wholly free, if need be in several heaps, where loose
    /// granules are not enough.
    fn choose_free_ties(&self, heaps: &[&'static Heap], most: u64, of: Of) -> Set<GranuleRun> {
        let (loose, free) = self.free_ties(heaps);
        let loose = if of == Of::Ties { 0 } else { loose };
        // Those that no idle range shows go back without a wait for the device, which a capture forbids.
        let unused: GranuleSet = self.ground.aliases().unused_runs().collect();
        let (mut shown, mut ties): (Vec<_>, Vec<_>) = free.into_iter().partition(|&t| unused.overlaps(t));
        let enough = loose + ties.iter().map(|t| u64::from(t.count)).sum::<u64>() >= most;
        if !enough {
            ties.append(&mut shown);
        }
        let mut chosen = Vec::new();
        choose(&mut ties, |t| *t, loose, most, &mut chosen);
        chosen.into_iter().collect()
    }

    /// The free granules of a heap, cut where ties begin and end.
    fn free_pieces(&self, heap: &'static Heap) -> impl Iterator<Item = Piece> {
        let mut runs = Vec::new();
        self.ground.look(heap).free_runs(&mut runs);
        runs.into_iter().flat_map(|(run, _)| self.ties.cut(run))
    }

    /// How many free granules lie in no tie, and the ties that are wholly free, if need be in several heaps.
    fn free_ties(&self, heaps: &[&'static Heap]) -> (u64, Set<GranuleRun>) {
        let (mut loose, mut free) = (0, Map::<GranuleRun, u32>::new());
        for &heap in heaps {
            for piece in self.free_pieces(heap) {
                match piece.tie {
                    None => loose += u64::from(piece.run.count),
                    Some(tie) => *free.entry(tie).or_default() += piece.run.count,
                }
            }
        }
        (loose, free.into_iter().filter(|(tie, n)| *n == tie.count).map(|t| t.0).collect())
    }

    /// Takes wholly free ties of which no heap has all, as few as have `missing` granules; unless these may lie `apart`, one
    /// tie that has them. Those of other pools than the taker's may have no more than the room that its pool has: `mine` has
    /// its number and that room, in granules.
    pub(super) fn take_shared_ties(
        &mut self,
        heaps: Vec<&'static Heap>,
        (missing, apart): (u64, bool),
        mine: (u32, u64),
    ) -> Vec<Taken> {
        let heaps = self.merge_freed(heaps);
        let mut shared = self.free_ties(&heaps).1;
        shared.retain(|tie| apart || u64::from(tie.count) >= missing);
        for &heap in &heaps {
            for piece in self.free_pieces(heap) {
                let Some(tie) = piece.tie else { continue };
                if piece.is_whole() || heap.pool() != mine.0 && u64::from(tie.count) > mine.1 {
                    shared.remove(&tie);
                }
            }
        }
        let (mut shared, mut chosen) = (shared.into_iter().collect(), Vec::new());
        choose(&mut shared, |t| *t, 0, missing, &mut chosen);
        let mut left = mine.1;
        let mut taken = Vec::new();
        for tie in chosen {
            let own = self.pool_of(tie.first) == Some(mine.0);
            let room = if own { u64::MAX } else { left };
            if u64::from(tie.count) <= room {
                left -= if own { 0 } else { u64::from(tie.count) };
                self.take_cut_ties(&heaps, &Set::from([tie]), &mut taken);
            }
        }
        taken
    }

    /// The pool that has a granule.
    fn pool_of(&self, granule: u32) -> Option<u32> {
        self.ground.heaps().get(self.ground.maps.granule(granule).heap()).map(Heap::pool)
    }

    /// Takes ties of which several heaps have parts (after a theft or a restore), if all their parts are free.
    fn take_cut_ties(&mut self, heaps: &[&'static Heap], ties: &Set<GranuleRun>, taken: &mut Vec<Taken>) {
        let mut parts: Map<GranuleRun, Vec<Taken>> = Map::new();
        for &heap in heaps {
            let mut h = self.ground.lock(heap);
            let mut runs = Vec::new();
            h.free_runs(&mut runs);
            for (run, id) in runs {
                for piece in self.ties.cut(run).into_iter().rev() {
                    let Some(tie) = piece.tie.filter(|t| ties.contains(t)) else { continue };
                    match h.take_part(id, piece.run.extent()) {
                        Some(block) => parts.entry(tie).or_default().push(Taken { heap, block }),
                        None => self.lacks_ids = true,
                    }
                }
            }
        }
        for (tie, parts) in parts {
            match parts.iter().map(|t| t.block.part.units).sum::<u32>() == tie.extent().units {
                true => taken.extend(parts),
                false => self.return_all(parts),
            }
        }
    }

    /// Sorts what was taken by what goes back to the device together.
    pub(super) fn lots_of(&self, taken: Vec<Taken>) -> Vec<Lot> {
        let mut lots: Vec<Lot> = Vec::new();
        for t in taken {
            let own = t.granules();
            let run = self.ties.of(own.first).unwrap_or(own);
            let known = if run == own { None } else { lots.iter_mut().find(|l| l.run == run) };
            match known {
                Some(l) => l.parts.push(t),
                None => lots.push(Lot { run, parts: vec![t] }),
            }
        }
        lots
    }

    /// For segments: takes all free memory out of the heaps, sorted by offset.
    pub(super) fn take_all_free(&mut self, heaps: Vec<&'static Heap>) -> Vec<Taken> {
        let mut taken = Vec::new();
        for heap in self.merge_freed(heaps) {
            let blocks = self.ground.lock(heap).take_all(|granule| self.segments.end_of(granule));
            taken.extend(blocks.into_iter().map(|block| Taken { heap, block }));
        }
        sort::by_key(&mut taken, |t| t.block.part.off);
        taken
    }

    /// For segments: takes those out of the heaps that are wholly free, so that they can go back to the device.
    pub(super) fn take_whole_segments(&mut self, heaps: Vec<&'static Heap>, parts: Parts) -> InTransit<'a> {
        let whole = self.take_wholly_free(heaps);
        self.in_transit(whole, parts)
    }

    /// The same for a caller who may give them back to the heaps at once.
    pub(super) fn take_wholly_free(&mut self, heaps: Vec<&'static Heap>) -> Vec<Taken> {
        let taken = self.take_all_free(heaps);
        self.keep_whole(taken)
    }

    /// Keeps those parts of `taken` that make up complete segments. Returns the rest to its heaps, so that nobody has to
    /// wait for it.
    fn keep_whole(&self, mut taken: Vec<Taken>) -> Vec<Taken> {
        let runs = joined(taken.iter().map(|t| t.block.part));
        let whole: Vec<Extent> =
            self.segments.iter().map(|s| s.part).filter(|p| runs.binary_search(p).is_ok()).collect();
        let inside = |part: Extent| {
            let at = whole.partition_point(|s| s.off <= part.off);
            at > 0 && part.end() <= whole[at - 1].end()
        };
        let rest = taken.extract_if(.., |t| !inside(t.block.part)).collect();
        self.return_all(rest);
        taken
    }

    /// Returns memory that was taken to the heaps that had it.
    pub(super) fn return_all(&self, taken: Vec<Taken>) {
        for Taken { heap, block } in taken {
            self.ground.lock(heap).give(block);
        }
    }

    /// Makes memory of a pool unowned. No work that was queued before may use it.
    pub(crate) fn give_to_nobody(&mut self, pool: u32, commons: &'static Heap, block: FreeBlock) {
        let bytes = self.segments.bytes_of(block.part);
        let pieces = if self.ground.config.mapping { u64::from(block.part.touched().count) } else { 0 };
        self.account.move_between(pool, COMMONS, bytes, pieces);
        let _ = self.stock.note(COMMONS, commons.index); // else its next change is
        self.ground.lock(commons).give(block);
    }
}
