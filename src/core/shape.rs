//! Sizes: how a request becomes a number of units in one of three tiers.
//!
//! A granule (2 MiB) is the quantum of ownership and of mapping. Large requests live in units of
//! 1/128 granule (16 KiB), side by side in the granules themselves. Medium and small ones live in
//! chunks, one granule each, in units of 4 KiB and 512 B. What a request is *charged* is its
//! contract size: bytes plus padding, rounded up to the device's min chunk; units only place it.

use crate::base::error::{Code, Error, Result};
use crate::base::sync::{AtomicU64, Ordering::Relaxed};

/// Which kind of granule a block lives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Tier {
    /// Chunks of 512 B units.
    Small = 0,
    /// Chunks of 4 KiB units.
    Medium = 1,
    /// Granules of 16 KiB units.
    Large = 2,
}

/// [units] of a granule in the large tier.
pub(crate) const LARGE_UNITS: u32 = 1 << LARGE_UNITS_SHIFT;
/// Its logarithm.
pub(crate) const LARGE_UNITS_SHIFT: u32 = 7;
/// [B] log2 of a small unit: the rounding that CUDA users know.
pub(crate) const SMALL_SHIFT: u32 = 9;
/// [B] log2 of a medium unit.
pub(crate) const MEDIUM_SHIFT: u32 = 12;
/// [B] largest contract size in the small tier.
const SMALL_MAX: u64 = 4096;
/// [B] largest contract size in the medium tier.
const MEDIUM_MAX: u64 = 60 << 10;
/// [B] log2 of a granule: 2 MiB, the mapping granularity of all CUDA devices so far.
pub(crate) const GRANULE_SHIFT: u32 = 21;
/// log2 of a unit of the large tier.
pub(crate) const LARGE_SHIFT: u32 = GRANULE_SHIFT - LARGE_UNITS_SHIFT;
/// log2 of the units that a block's offset counts, by tier bits; scattered blocks start at a granule.
const OFFSET_SHIFTS: [u8; 4] = [SMALL_SHIFT as u8, MEDIUM_SHIFT as u8, LARGE_SHIFT as u8, LARGE_SHIFT as u8];

/// [B] the sizes that are looked up; larger ones are all in the large tier.
const KEYS: usize = (MEDIUM_MAX >> SMALL_SHIFT) as usize + 1;

/// Units and tier in one word.
#[inline(always)]
pub(crate) fn key_of(tier: Tier, units: u32) -> u32 {
    units << 2 | tier as u32
}

/// The tier and the units of a key.
#[inline(always)]
pub(crate) fn of_key(key: u32) -> (Tier, u32) {
    let tier = match key & 3 {
        0 => Tier::Small,
        1 => Tier::Medium,
        _ => Tier::Large,
    };
    (tier, key >> 2)
}

/// The sizes of one device, reduced to what the hot path needs.
#[derive(Debug)]
pub(crate) struct Shape {
    /// [B] contract sizes up to this are small; 0 where the min chunk forbids the tier.
    small_max: u64,
    /// [B] contract sizes up to this are medium; 0 where the min chunk forbids the tier.
    medium_max: u64,
    /// [B] padding plus min chunk less one: what is added before rounding down.
    add: u64,
    /// The bits that rounding down to the min chunk keeps.
    keep: u64,
    /// [B] the largest request that the hot path serves: all that the device could, or less (`tuning`).
    largest: AtomicU64,
    /// The places of contract sizes up to `medium_max`, by small units.
    places: [Place; KEYS],
}

/// Where blocks of a size are found: their key (`units << 2 | tier`), and for the fine tiers the list of such
/// freed blocks and log2 of the unit; in one word, so that the hot path reads it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

impl Place {
    fn new(key: u32) -> Place {
        let tier = key & 3;
        if tier >= Tier::Large as u32 {
            return Place(key << 16);
        }
        Place(key << 16 | u32::from(OFFSET_SHIFTS[tier as usize]) << 8 | list_of(key >> 2, tier))
    }
    /// Units and tier.
    #[inline(always)]
    pub(crate) fn key(self) -> u32 {
        self.0 >> 16
    }
    /// The list of freed blocks; 0 in the large tier, which has none.
    #[inline(always)]
    pub(crate) fn list(self) -> usize {
        (self.0 & 0xff) as usize
    }
    /// log2 of a unit in bytes, in the fine tiers.
    #[inline(always)]
    pub(crate) fn shift(self) -> u32 {
        self.0 >> 8 & 0xff
    }
}

/// The list of freed blocks of a fine tier (bit 0 of `tier`) and size: 1 to 8 are small, 9 to 23 medium.
#[inline(always)]
pub(crate) fn list_of(units: u32, tier: u32) -> u32 {
    units + ((tier & 1) << 3)
}

impl Shape {
    /// Fails where the min chunk is not a power of two: such a device is served without pooling.
    pub(crate) fn new(min_chunk: u64, padding: u64, capacity: u64, small_ok: bool) -> Result<Shape> {
        if !min_chunk.is_power_of_two() || min_chunk > 1 << GRANULE_SHIFT {
            return Err(Error::new(Code::Unsupported, "pooling needs a min chunk that divides 2 MiB"));
        }
        let mut shape = Shape {
            small_max: if small_ok && min_chunk <= 1 << SMALL_SHIFT { SMALL_MAX } else { 0 },
            medium_max: if min_chunk <= 1 << MEDIUM_SHIFT { MEDIUM_MAX } else { 0 },
            add: padding + min_chunk - 1,
            keep: !(min_chunk - 1),
            largest: AtomicU64::new(capacity),
            places: [Place(0); KEYS],
        };
        shape.look_up();
        Ok(shape)
    }

    /// The same with the large tier only, for devices whose segments may be smaller than a granule: the
    /// chunks of the other tiers are whole granules.
    pub(crate) fn without_chunks(mut self) -> Shape {
        (self.small_max, self.medium_max) = (0, 0);
        self.look_up();
        self
    }

    fn look_up(&mut self) {
        for i in 1..KEYS {
            let (tier, units) = self.place_slow((i as u64) << SMALL_SHIFT);
            self.places[i] = Place::new(key_of(tier, units));
        }
    }

    /// [B] of a granule.
    #[inline]
    pub(crate) fn granule(&self) -> u64 {
        1 << GRANULE_SHIFT
    }

    /// log2 of the unit of a tier, in bytes.
    #[inline]
    pub(crate) fn unit_shift(&self, tier: Tier) -> u32 {
        match tier {
            Tier::Small => SMALL_SHIFT,
            Tier::Medium => MEDIUM_SHIFT,
            Tier::Large => LARGE_SHIFT,
        }
    }

    /// log2 of what a block's offset counts, by its tier bits: the [`Tier`], or 3 for a scattered block.
    #[inline(always)]
    pub(crate) fn shift_of(&self, tier_bits: u32) -> u32 {
        u32::from(OFFSET_SHIFTS[tier_bits as usize & 3])
    }

    /// [B] the largest request that the hot path serves.
    pub(crate) fn largest(&self) -> u64 {
        self.largest.load(Relaxed)
    }

    /// Sets it; at most the capacity.
    pub(crate) fn set_largest(&self, bytes: u64) {
        self.largest.store(bytes, Relaxed);
    }

    /// What a request of `bytes` is charged; `None` when the hot path does not serve it.
    #[inline]
    pub(crate) fn contract(&self, bytes: u64) -> Option<u64> {
        if bytes > self.largest() {
            return None; // which also keeps the sum below from passing 2^64
        }
        Some(self.contract_of(bytes))
    }

    /// The same for a size that was served before.
    #[inline]
    pub(crate) fn contract_of(&self, bytes: u64) -> u64 {
        (bytes + self.add) & self.keep
    }

    /// Tier and units of a contract size (not 0), as `units << 2 | tier`.
    #[inline(always)]
    pub(crate) fn key(&self, contract: u64) -> u32 {
        self.place(contract).map_or_else(|| Self::large_key(contract), Place::key)
    }

    /// The place of a contract size; `None` for one that is large on every device.
    #[inline(always)]
    pub(crate) fn place(&self, contract: u64) -> Option<Place> {
        self.places.get(((contract + (1 << SMALL_SHIFT) - 1) >> SMALL_SHIFT) as usize).copied()
    }

    /// The key of a contract size in the large tier.
    #[inline(always)]
    pub(crate) fn large_key(contract: u64) -> u32 {
        let shift = LARGE_SHIFT;
        key_of(Tier::Large, ((contract + (1 << shift) - 1) >> shift) as u32)
    }

    fn place_slow(&self, contract: u64) -> (Tier, u32) {
        let units = |shift: u32| ((contract + (1 << shift) - 1) >> shift) as u32;
        if contract <= self.small_max {
            (Tier::Small, units(SMALL_SHIFT))
        } else if contract <= self.medium_max {
            (Tier::Medium, units(MEDIUM_SHIFT))
        } else {
            (Tier::Large, units(LARGE_SHIFT))
        }
    }

    /// [B] the min chunk.
    pub(crate) fn min_chunk(&self) -> u64 {
        !self.keep + 1
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn contract_adds_padding_and_rounds_to_the_chunk() {
        let s = Shape::new(256, 100, 1 << 40, true).unwrap();
        assert_eq!(s.contract(1), Some(256));
        assert_eq!(s.contract(156), Some(256));
        assert_eq!(s.contract(157), Some(512));
        assert_eq!(s.contract(u64::MAX), None);
    }

    #[test]
    fn every_size_fits_its_units() {
        let s = Shape::new(512, 0, 1 << 40, true).unwrap();
        for bytes in (1..200_000).chain([1 << 20, (1 << 20) + 1, (2 << 20) - 1, 1 << 36]) {
            let c = s.contract(bytes).unwrap();
            let (t, u) = of_key(s.key(c));
            let room = u64::from(u) << s.unit_shift(t);
            assert!(room >= c && room - c < 1 << s.unit_shift(t), "{bytes}: {t:?} {u}");
        }
    }

    #[test]
    fn a_large_min_chunk_turns_the_fine_tiers_off() {
        let s = Shape::new(1 << 20, 0, 1 << 40, true).unwrap();
        assert_eq!(of_key(s.key(s.contract(1).unwrap())), (Tier::Large, 64));
        assert_eq!(
            of_key(Shape::new(256, 0, 1 << 40, true).unwrap().without_chunks().key(256)),
            (Tier::Large, 1)
        );
        assert!(Shape::new(8 << 20, 0, 1 << 40, true).is_err());
        assert!(Shape::new(768, 0, 1 << 40, true).is_err());
    }
}
