//! How idle segments make room for a new one: which of them, and that none goes back where a limit refuses all the same.

use super::super::ground::Growing;
use super::super::heap::Source;
use super::super::state::growth::transits::Parts;
use super::search::Search;
use super::segments::Segments;
use super::serve::Serving;
use super::taken::{InTransit, Taken};
use super::trim::Trim;
use crate::base::sort;

/// How much must go back to the device before it can give a segment, in bytes.
pub(super) struct Lacks {
    /// Of the memory of the request's pool, for the limit of that pool.
    own: u64,
    /// Of anyone's memory.
    any: u64,
}

impl Lacks {
    fn is_nothing(&self) -> bool {
        self.own == 0 && self.any == 0
    }

    /// Whether only the limit of the request's pool refuses, so that memory of others is no help.
    fn is_of_pool_only(&self) -> bool {
        self.own > 0 && self.any == 0
    }
}

impl<'a> Serving<'a> {
    /// What must go back so that the device can give a segment of `wanted` bytes for the request, as far as is known.
    fn lacks(&self, g: &Growing<'_>, wanted: u64) -> Lacks {
        let pool = self.req.heap.pool();
        let then = g.account.taken(pool).device.saturating_add(wanted);
        Lacks { own: g.pool_lacks(pool, wanted), any: then.saturating_sub(Segments::of(self.ground).most()) }
    }

    /// Whether a limit refuses a segment of `wanted` bytes for the request even if all of these go back.
    fn is_refused_without(&self, g: &Growing<'_>, taken: &[Taken], wanted: u64) -> bool {
        let own = g.pool_lacks(self.req.heap.pool(), wanted);
        !self.suffices(g, taken, &Lacks { own, any: g.device_lacks(wanted) })
    }

    /// Whether these are what is lacking.
    fn suffices(&self, g: &Growing<'_>, taken: &[Taken], lacks: &Lacks) -> bool {
        let pool = self.req.heap.pool();
        let own = taken.iter().filter(|t| t.heap.pool() == pool);
        bytes_of(g, own) >= lacks.own && bytes_of(g, taken) >= lacks.any
    }

    /// Takes the idle segments out of the heaps, so that they can go back for one of `wanted` bytes; with how much has to,
    /// where that is known. `None`: a limit refuses all the same. With `own`, only segments of the request's pool are taken,
    /// and only if no more than that pool's limit is known to refuse.
    pub(super) fn take_idle(&self, wanted: u64, own: bool) -> Option<(InTransit<'a>, Option<Lacks>)> {
        let (ground, pool) = (self.ground, self.req.heap.pool());
        let mut g = ground.growing();
        let lacks = self.lacks(&g, wanted);
        if own && !lacks.is_of_pool_only() {
            return None;
        }
        let heaps = if own { ground.heaps_of(pool) } else { ground.heaps_in(None) };
        let whole = g.take_wholly_free(heaps);
        if self.is_refused_without(&g, &whole, wanted) {
            g.return_all(whole);
            return None;
        }
        // Once its own segments have not helped a pool, all go back.
        let is_known = own || !lacks.is_of_pool_only() && self.suffices(&g, &whole, &lacks);
        Some((g.in_transit(whole, Parts::Any), Some(lacks).filter(|_| is_known)))
    }
}

impl Search<'_> {
    /// Gives idle segments back to the device, so that one of the request's size can be had, if that is enough. Waits
    /// for the device.
    pub(super) fn swap_segments(&mut self, missing: u64) -> bool {
        let (ground, req) = (self.ground, self.req);
        if ground.config.source() != Source::OwnSegments || !req.is_large() {
            return false;
        }
        let Some(lacks) = self.lacks_for_segment() else { return false };
        let mut held = {
            let mut g = ground.growing();
            // Where only the pool's own limit refuses, nobody else has to wait.
            let heaps = match lacks.any {
                0 => ground.heaps_of(req.heap.pool()),
                _ => ground.heaps_in(None),
            };
            g.take_whole_segments(heaps, Parts::Any)
        };
        let grown = !held.taken.is_empty() && self.swap_for(missing, &lacks, &mut held.taken);
        held.end(&mut ground.growing());
        grown
    }

    /// What must go back so that the device can give a segment for the request; `None`: nothing that helps can, or only
    /// segments that are free in parts of several heaps.
    fn lacks_for_segment(&self) -> Option<Lacks> {
        let (ground, pool) = (self.ground, self.req.heap.pool());
        let segments = Segments::of(ground);
        let lacks = self.serving.lacks(&ground.growing(), self.least_segment());
        if lacks.is_nothing() {
            return None;
        }
        // The memory of other pools is no help where the pool's own limit refuses.
        let own = || segments.free_whole(ground.heaps_of(pool));
        let any = || segments.free_whole(ground.heaps_in(None));
        let helps = (lacks.own == 0 || own() >= lacks.own) && (lacks.any == 0 || any() >= lacks.any);
        helps.then_some(lacks)
    }

    /// Gives as few bytes back as are needed; all, if the device cannot use the space that this makes. Then takes a
    /// segment.
    pub(super) fn swap_for(&mut self, missing: u64, lacks: &Lacks, taken: &mut Vec<Taken>) -> bool {
        let (trim, pool) = (Trim::of(self.ground), self.req.heap.pool());
        let bytes = |taken: &[Taken]| bytes_of(&self.ground.growing(), taken);
        let mut own: Vec<Taken> = taken.extract_if(.., |t| t.heap.pool() == pool).collect();
        let before = bytes(&own);
        let mut given = trim.give_segments_back(&mut own, lacks.own);
        let gone = before - bytes(&own);
        taken.append(&mut own);
        sort::by_key(taken, |t| t.block.part.off);
        for wanted in [lacks.any.saturating_sub(gone), u64::MAX] {
            if given.done.is_ok() {
                let more = trim.give_segments_back(taken, wanted);
                given.any |= more.any;
                given.done = more.done;
            }
            if given.any && self.note_refusal(|s| s.grow(missing)) {
                return true;
            }
            if given.done.is_err() || lacks.any == 0 {
                break;
            }
        }
        false
    }
}

/// [B] that free memory counts in the accounts of its pools.
fn bytes_of<'t>(g: &Growing<'_>, taken: impl IntoIterator<Item = &'t Taken>) -> u64 {
    taken.into_iter().map(|t| g.segments.bytes_of(t.block.part)).sum()
}
