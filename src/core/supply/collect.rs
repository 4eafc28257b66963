//! How the tuning affects growth.
//!
//! The collector: before more is taken from the device, unused memory goes back, so that at most a given part of the
//! device is reserved. It waits for the device, as freeing to a driver does.

use super::super::blocks::{WaitingBlocks, give_up_whole};
use super::super::state::growth::transits::Parts;
use super::super::units::GRANULE_SHIFT;
use super::search::Search;
use super::taken::Of;
use super::trim::Trim;
use crate::base::error::Result;

/// The maximum number of granules in a segment that the tuning asks for.
const MOST_GRANULES: u64 = 1 << 24;

impl Search<'_> {
    /// Gives unused memory back until `missing` granules (or a segment) could be taken without passing the threshold,
    /// as far as there is any. Returns whether anything became free, here or on the device: what was free in the
    /// taker's own heap stays there.
    pub(super) fn collect(&mut self, missing: u64) -> bool {
        let (ground, req) = (self.ground, self.req);
        let most = ground.tuned.get().collect_above;
        let wanted = if ground.config.mapping { missing << GRANULE_SHIFT } else { req.charged };
        let over = || (ground.growing().account.reserved() + wanted).saturating_sub(most);
        if most == 0 || over() == 0 {
            return false;
        }
        let mut any = give_up_whole(ground);
        if ground.order.sync_device().is_err() {
            return any;
        }
        any |= WaitingBlocks::of(ground).poll_all();
        // The device may refuse: then what was given back so far must do.
        let trim = Trim::of(ground);
        let (given, held) = if ground.config.mapping {
            let granules = over().div_ceil(1 << GRANULE_SHIFT);
            let others = ground.heaps().all().filter(|x| x.index != req.heap.index).collect();
            let mut held = {
                let mut g = ground.growing();
                let taken = g.take_free(others, granules, Of::Any);
                g.in_transit(taken, Parts::Any)
            };
            (trim.give_granules_back(std::mem::take(&mut held.taken)), held)
        } else {
            let mut held = ground.growing().take_whole_segments(ground.heaps_in(None), Parts::Any);
            (trim.give_segments_back(&mut held.taken, over()), held)
        };
        held.end(&mut ground.growing());
        any || given.any
    }

    /// Takes memory from the device: as much at a time as the tuning says, otherwise what is missing.
    pub(super) fn grow_tuned(&mut self, missing: u64) -> Result<()> {
        let granules = self.ground.tuned.get().segment.div_ceil(1 << GRANULE_SHIFT);
        if self.ground.config.mapping && self.req.is_large() && granules > 1 {
            let more = missing.next_multiple_of(granules.min(MOST_GRANULES));
            if more > missing && self.grow(more).is_ok() {
                return Ok(());
            }
        }
        self.grow(missing)
    }
}
