//! How the tuning affects growth.
//!
//! The collector: before more is taken from the device, unused memory goes back, so that at most a given part of the
//! device is reserved. It waits for the device, as freeing to a driver does.

use super::super::state::growth::Parts;
use super::super::units::GRANULE_SHIFT;
use super::Search;
use crate::base::error::Result;

impl Search<'_> {
    /// Gives unused memory back until `missing` granules (or a segment) could be taken without passing the threshold,
    /// as far as there is any. Returns whether anything became free, here or on the device: what was free in the
    /// taker's own heap stays there.
    pub(super) fn collect(&mut self, missing: u64) -> bool {
        let (ground, req) = (self.ground, self.req);
        let most = ground.tuned.get().collect_above;
        let wanted = if ground.config.mapping { missing << GRANULE_SHIFT } else { req.charged };
        let over = || (ground.growing().device.reserved.current + wanted).saturating_sub(most);
        if most == 0 || over() == 0 {
            return false;
        }
        let mut any = ground.give_up_whole();
        if ground.order.sync_device().is_err() {
            return any;
        }
        any |= ground.poll_all();
        // The device may refuse: then what was given back so far must do.
        let mut went = false;
        if ground.config.mapping {
            let granules = over().div_ceil(1 << GRANULE_SHIFT);
            let (taken, transit) = {
                let mut g = ground.growing();
                let taken = ground.take_free(&mut g, ground.heaps_but(req.heap), granules, false);
                let transit = (!taken.is_empty()).then(|| g.begin_transit(Parts::Any));
                (taken, transit)
            };
            let _ = ground.give_granules_back(taken, &mut went);
            if let Some(transit) = transit {
                transit.end(&mut ground.growing());
            }
        } else {
            let (mut taken, transit) = {
                let mut g = ground.growing();
                let taken = ground.take_all_free(&mut g, ground.heaps_in(None));
                let taken = ground.keep_whole(&g, taken);
                let transit = (!taken.is_empty()).then(|| g.begin_transit(Parts::Any));
                (taken, transit)
            };
            let _ = ground.give_segments_back(&mut taken, over(), &mut went);
            if let Some(transit) = transit {
                let mut g = ground.growing();
                ground.return_all(&g, taken);
                transit.end(&mut g);
            }
        }
        any || went
    }

    /// Takes memory from the device: as much at a time as the tuning says, otherwise what is missing.
    pub(super) fn grow_tuned(&mut self, missing: u64) -> Result<()> {
        let granules = self.ground.tuned.get().segment.div_ceil(1 << GRANULE_SHIFT);
        if self.ground.config.mapping && self.req.is_large() && granules > 1 {
            let more = missing.next_multiple_of(granules.min(1 << 24));
            if more > missing && self.grow(more).is_ok() {
                return Ok(());
            }
        }
        self.grow(missing)
    }
}
