//! What a request does when memory is short: unused memory goes back to the device, so that the device can give some that
//! suits the request; or adjacent free memory of several heaps moves to the request's heap.

use super::super::blocks::{WaitingBlocks, collect_ids};
use super::super::ground::{Ground, Growing};
use super::super::heap::Source;
use super::super::state::growth::joined;
use super::super::state::growth::transits::Parts;
use super::super::units::{Extent, GRANULE, GRANULE_SHIFT, LARGE_UNITS};
use super::limits::is_limit;
use super::search::Search;
use super::taken::{InTransit, Of, Taken, count};
use super::trim::{GivenBack, Trim};

impl<'a> Search<'a> {
    /// For a block that must lie in one piece, on a device that maps: gives unused granules back, once in a search, to get
    /// as many that lie side by side; as few as the request needs, and none if the limits would refuse it all the same.
    /// Waits for the device.
    pub(super) fn trim_for_one_piece(&mut self, missing: u64) -> bool {
        if std::mem::replace(&mut self.trimmed, true) || self.ground.order.check_wait().is_err() {
            return false;
        }
        // If the device refuses what the limits would then allow, others may have some of it: once more.
        self.trim_once(missing) || self.refused_by_device() && self.trim_once(missing)
    }

    /// Whether the device refused memory that the limits allow.
    pub(super) fn refused_by_device(&self) -> bool {
        self.refused.as_ref().is_some_and(|e| !is_limit(e))
    }

    /// Gives free memory back, taken out of the heaps, so that the device can give `missing` granules: as few as the limits
    /// demand, or as many if the device itself is short of them. Nothing if that would not be enough; but where there are no
    /// ids to cut all that is wanted, it goes in rounds, since what has gone back leaves its ids for the rest. Of ties, only
    /// whole ones go; otherwise the granules must be in a row. Whether anything went.
    pub(super) fn give_for_growth(
        &self,
        missing: u64,
        of: Of,
        give: fn(&Ground, Vec<Taken>) -> GivenBack,
    ) -> bool {
        let (mut any, mut before) = (false, 0);
        while let Some((mut held, is_enough)) = self.take_for_growth((missing, before), of) {
            before += count(&held.taken);
            let given = give(self.ground, std::mem::take(&mut held.taken));
            held.end(&mut self.ground.growing());
            any |= given.any;
            if is_enough || !given.any || given.done.is_err() {
                break;
            }
        }
        if any && self.ground.maps.ids_are_few() {
            collect_ids(&self.ground.growing()); // the request needs some, too
        }
        any
    }

    /// What goes back in one round, and whether it is the last; `before`: how many granules have gone in earlier ones.
    fn take_for_growth(&self, (missing, before): (u64, u64), of: Of) -> Option<(InTransit<'a>, bool)> {
        let (ground, pool) = (self.ground, self.req.heap.pool());
        let mut g = ground.growing();
        let row = missing + u64::from(self.contiguous); // with a number that stays empty
        let bytes = missing << GRANULE_SHIFT;
        let [own, any] =
            [g.pool_lacks(pool, bytes), g.device_lacks(bytes)].map(|lacks| lacks.div_ceil(GRANULE));
        let in_a_row = of == Of::Ties || u64::from(g.room.longest()) >= row;
        // What the device refuses although the limits allow it may be had for less than all that is missing.
        let (least, wanted) =
            if own == 0 && any == 0 { (0, missing.saturating_sub(before)) } else { (any, any) };
        let (own_most, most) = if in_a_row { (own, wanted) } else { (u64::MAX, u64::MAX) };
        let (mut taken, mut lacks_ids) = (Vec::new(), false);
        if own_most > 0 {
            taken = g.take_free(ground.heaps_of(pool), own_most, of);
            lacks_ids = g.lacks_ids;
        }
        let of_own = count(&taken);
        if of_own >= own && most > of_own {
            taken.extend(g.take_free(ground.heaps_in(None), most - of_own, of));
            lacks_ids |= g.lacks_ids;
        }
        let least = if lacks_ids { wanted } else { least };
        let longest = || g.longest_room_with(taken.iter().map(Taken::granules));
        let is_enough = of_own >= own && count(&taken) >= least && (in_a_row || longest() >= row);
        if taken.is_empty() || !is_enough && !lacks_ids {
            g.return_all(taken);
            return None;
        }
        Some((g.in_transit(taken, Parts::Any), is_enough))
    }

    fn trim_once(&mut self, missing: u64) -> bool {
        WaitingBlocks::of(self.ground).poll_all();
        self.give_for_growth(missing, Of::Any, |ground, taken| Trim::of(ground).give_granules_back(taken))
            && self.note_refusal(|s| s.grow(missing))
    }

    /// For segments: gives idle ones back to the device, so that it can give one that is large enough: as few as are
    /// needed, if that is known, and none where a limit refuses all the same. If that does not help, adjacent free memory of
    /// several heaps moves to the request's heap.
    pub(super) fn trim_and_grow(&mut self, missing: u64) -> bool {
        let ground = self.ground;
        if ground.order.sync_device().is_err() {
            return false;
        }
        WaitingBlocks::of(ground).poll_all();
        self.give_and_grow(missing, true) || self.give_and_grow(missing, false) || self.move_run()
    }

    /// Gives idle segments back and takes one for the request; returns whether it has one. `own`: see
    /// [`Serving::take_idle`](super::serve::Serving::take_idle).
    fn give_and_grow(&mut self, missing: u64, own: bool) -> bool {
        let ground = self.ground;
        let Some((mut held, lacks)) = self.serving.take_idle(self.least_segment(), own) else { return false };
        let lacks = lacks.filter(|_| ground.config.source() == Source::OwnSegments);
        let grown = match lacks {
            Some(lacks) => self.swap_for(missing, &lacks, &mut held.taken),
            None => {
                let given = Trim::of(ground).give_segments_back(&mut held.taken, u64::MAX);
                given.any && self.note_refusal(|s| s.grow(missing))
            }
        };
        held.end(&mut ground.growing());
        grown
    }

    /// Moves the smallest run that is long enough and that several heaps own to the request's heap, if the limit of its
    /// pool allows. Waits for the device, holding nothing but that run.
    fn move_run(&mut self) -> bool {
        let (ground, req) = (self.ground, self.req);
        let units = if req.is_large() { req.size.units } else { LARGE_UNITS };
        let mine = req.heap.pool();
        let fits = |g: &Growing<'_>, parts: &mut dyn Iterator<Item = &Taken>| {
            let others = parts.filter(|t| t.heap.pool() != mine);
            others.map(|t| g.segments.bytes_of(t.block.part)).sum::<u64>() <= g.pool_room(mine)
        };
        let inside = |run: Extent, part: Extent| run.off <= part.off && part.end() <= run.end();
        let mut held = {
            let mut g = ground.growing();
            let mut taken = g.take_all_free(ground.heaps_in(None));
            let runs = joined(taken.iter().map(|t| t.block.part));
            // Sorted by offset, so the parts of a run lie in a row.
            let parts_of = |run: Extent| {
                let first = taken.partition_point(|t| t.block.part.off < run.off);
                taken.iter().skip(first).take_while(move |t| inside(run, t.block.part))
            };
            let may_move = |run: &Extent| run.units >= units && fits(&g, &mut parts_of(*run));
            let run = runs.into_iter().filter(may_move).min_by_key(|r| r.units);
            let part_of_it = |t: &mut Taken| run.is_some_and(|r| inside(r, t.block.part));
            let parts: Vec<Taken> = taken.extract_if(.., part_of_it).collect();
            g.return_all(taken);
            if parts.is_empty() {
                return false;
            }
            g.in_transit(parts, Parts::Any)
        };
        let idle = ground.order.sync_device().is_ok();
        let mut g = ground.growing();
        // The limit is checked again: the pool may have grown meanwhile.
        let moves = idle && fits(&g, &mut held.taken.iter());
        if moves {
            for t in held.taken.drain(..) {
                let bytes = g.segments.bytes_of(t.block.part);
                g.account.move_between(t.heap.pool(), mine, bytes, 0);
                ground.lock(req.heap).give(t.block);
            }
        }
        held.end(&mut g);
        moves
    }
}
