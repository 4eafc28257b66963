//! Where a block starts, and what it is charged: both follow from its descriptor.

use super::super::shape::{Tier, shift_of};
use super::{ALIAS, Id, Maps};

impl Maps {
    /// [B] where a block starts.
    #[inline(always)]
    pub(crate) fn offset(&self, id: Id) -> u64 {
        let d = self.desc(id);
        u64::from(d.off()) << shift_of(d.tier_bits())
    }

    /// [B] that a live or waiting block is charged.
    pub(crate) fn charge(&self, id: Id) -> u64 {
        let d = self.desc(id);
        self.charge_of(d.tier_bits(), d.units(), d.requested())
    }

    /// [B] that a request of `bytes` is charged in a block of so many units: the charge of its size or, if the block is
    /// larger than that size needs, the units.
    pub(crate) fn charge_of(&self, tier_bits: u32, units: u32, bytes: u64) -> u64 {
        let plain = self.shape.charged_of(bytes);
        let size = self.shape.size(plain);
        let tier = if tier_bits == ALIAS { Tier::Large as u32 } else { tier_bits };
        if size.tier as u32 == tier && size.units == units {
            return plain;
        }
        u64::from(units) << shift_of(tier_bits)
    }
}
