//! Sizes: how a request becomes a number of units in one of three tiers.
//!
//! Large blocks are placed in units of 16 KiB, side by side in the granules themselves. Medium and small blocks are
//! placed in chunks, one granule each, in units of 4 KiB and 512 B. What a request is *charged* is its size plus the
//! device's padding, rounded up to the device's min chunk; units only matter for placement.

use super::units::{GRANULE_SHIFT, LARGE_SHIFT};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::{AtomicU64, Ordering::Relaxed};

/// Which kind of granule a block is placed in.
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

/// The two kinds of memory that the account distinguishes: memory in chunks, and the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Of the small and the medium tier.
    Small = 0,
    /// Of the large tier, scattered blocks too.
    Large = 1,
}

impl Class {
    /// That of a block, by its tier bits.
    #[inline(always)]
    pub(crate) fn of(tier_bits: u32) -> Class {
        if tier_bits & Tier::Large as u32 != 0 { Class::Large } else { Class::Small }
    }
}

/// Where the tier bits of a block are in its state.
pub(crate) const TIER_SHIFT: u32 = 4;
/// The tier bits, at that place.
pub(crate) const TIER_MASK: u32 = 3 << TIER_SHIFT;

/// The tier bits in a state.
#[inline(always)]
pub(crate) fn tier_bits_of(state: u32) -> u32 {
    (state & TIER_MASK) >> TIER_SHIFT
}

/// log2 of the bytes of a small unit: the rounding that CUDA users know.
pub(crate) const SMALL_SHIFT: u32 = 9;
/// log2 of the bytes of a medium unit.
pub(crate) const MEDIUM_SHIFT: u32 = 12;
/// [B] largest charged size in the small tier.
const SMALL_MAX: u64 = 4096;
/// [B] largest charged size in the medium tier.
const MEDIUM_MAX: u64 = 60 << 10;
/// log2 of the unit in bytes of a block's offset, by tier bits; scattered blocks count as large ones.
const OFFSET_SHIFTS: [u8; 4] = [SMALL_SHIFT as u8, MEDIUM_SHIFT as u8, LARGE_SHIFT as u8, LARGE_SHIFT as u8];

/// The number of charged sizes in the lookup table, in small units, up to `MEDIUM_MAX`; larger ones are all in the large
/// tier. A power of two, so that indexing needs no bounds check.
const LOOKED_UP: usize = ((MEDIUM_MAX >> SMALL_SHIFT) as usize + 1).next_power_of_two();

/// The place in the lookup table of a charged size up to `MEDIUM_MAX`.
#[inline(always)]
fn looked_up(charged: u64) -> usize {
    ((charged + (1 << SMALL_SHIFT) - 1) >> SMALL_SHIFT) as usize % LOOKED_UP
}

/// log2 of the bytes of a tier's unit.
#[inline]
pub(crate) fn unit_shift(tier: Tier) -> u32 {
    u32::from(OFFSET_SHIFTS[tier as usize])
}

/// log2 of the unit of a block's offset, by its tier bits: the [`Tier`], or 3 for a scattered block.
#[inline(always)]
pub(crate) fn shift_of(tier_bits: u32) -> u32 {
    u32::from(OFFSET_SHIFTS[tier_bits as usize % OFFSET_SHIFTS.len()])
}

/// [units] of the large tier that a charged size needs.
#[inline(always)]
pub(crate) fn large_units(charged: u64) -> u32 {
    ((charged + (1 << LARGE_SHIFT) - 1) >> LARGE_SHIFT) as u32
}

/// What a request needs: a number of units of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub tier: Tier,
    pub units: u32,
}

/// The device's size rules, reduced to what the hot path needs.
#[derive(Debug)]
pub(crate) struct Shape {
    /// [B] charged sizes up to this are small; 0 if the tier is off.
    small_max: u64,
    /// [B] charged sizes up to this are medium; 0 if the tier is off.
    medium_max: u64,
    /// [B] padding plus min chunk minus one: added before rounding down.
    add: u64,
    /// The bits that rounding down to the min chunk keeps.
    keep: u64,
    /// [B] charged sizes up to this are of a fine tier; 0 if there is none.
    fine_max: u64,
    /// [B] larger charged sizes get a segment of their own.
    max_chunk: u64,
    /// [B] the largest request that the hot path serves: the device's maximum, or less (`tuned`).
    largest: AtomicU64,
    /// The classes of charged sizes up to `MEDIUM_MAX`, by small units.
    classes: [SizeClass; LOOKED_UP],
}

/// A size class: where blocks of a charged size are found. For the fine tiers: the list of freed blocks of that size,
/// log2 of the unit, and the units. For the large tier the list is 0.
///
/// One word: the shift is the low byte, the list the second, and the units are the rest. It is loaded once, and a
/// processor reads each of the two bytes without another instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizeClass(u32);

/// Where the list is in a size class.
const CLASS_LIST: u32 = 8;
/// Where the units are in a size class.
const CLASS_UNITS: u32 = 16;
/// The bits of the shift in a size class.
const CLASS_SHIFT_MASK: u32 = (1 << CLASS_LIST) - 1;

impl SizeClass {
    const NONE: SizeClass = SizeClass(0);

    fn new(size: Size) -> SizeClass {
        let Size { tier, units } = size;
        let fine = tier != Tier::Large;
        let list = if fine { list_of(units, (tier as u32) << TIER_SHIFT) } else { 0 };
        let shift = if fine { unit_shift(tier) } else { 0 };
        SizeClass(units << CLASS_UNITS | u32::from(list) << CLASS_LIST | shift)
    }
    #[inline(always)]
    pub(crate) fn units(&self) -> u32 {
        self.0 >> CLASS_UNITS
    }
    /// The list of freed blocks; 0 in the large tier, which has none.
    fn list(&self) -> u8 {
        (self.0 >> CLASS_LIST) as u8
    }
    /// log2 of a unit in bytes, in the fine tiers.
    #[inline(always)]
    fn shift(&self) -> u32 {
        self.0 & CLASS_SHIFT_MASK
    }
}

/// The list of freed blocks of a fine tier and size, by the state of such a block: 1 to 8 are small, 18 to 31 medium.
#[inline(always)]
pub(crate) fn list_of(units: u32, state: u32) -> u8 {
    // The tier's bit of the state counts 16.
    (units + (state & 1 << TIER_SHIFT)) as u8
}

/// Which of the fine tiers a device has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fine {
    pub small: bool,
    pub medium: bool,
}

/// Which requests the hot path serves, with what it needs of the [`Shape`] to tell.
#[derive(Debug)]
pub(crate) struct Served {
    /// [B] the largest.
    largest: u64,
    /// As in [`Shape`].
    fine_max: u64,
    add: u64,
    keep: u64,
    /// By charged size of the fine tiers, in small units: the list of freed blocks; 0, which is always empty, for sizes
    /// that are not served.
    lists: [u8; LOOKED_UP],
}

impl Served {
    /// No request.
    pub(crate) const NONE: Served =
        Served { largest: 0, fine_max: 0, add: 0, keep: !0, lists: [0; LOOKED_UP] };

    /// What a request of `bytes` is charged; `None` if that is more than 64 bits can say.
    #[inline(always)]
    pub(crate) fn charged(&self, bytes: u64) -> Option<u64> {
        Some(bytes.checked_add(self.add)? & self.keep)
    }

    /// The same for the size of a block.
    #[inline(always)]
    pub(crate) fn charged_of(&self, bytes: u64) -> u64 {
        bytes.wrapping_add(self.add) & self.keep
    }

    /// Whether a charged size is of a fine tier.
    #[inline(always)]
    pub(crate) fn is_fine(&self, charged: u64) -> bool {
        charged <= self.fine_max
    }

    /// [B] the largest request.
    #[inline(always)]
    pub(crate) fn largest(&self) -> u64 {
        self.largest
    }

    /// The list of freed blocks of a charged size of a fine tier.
    #[inline(always)]
    pub(crate) fn list(&self, charged: u64) -> usize {
        usize::from(self.lists[looked_up(charged)])
    }
}

impl Shape {
    /// Fails if the min chunk is not a power of two: such a device is served without pooling.
    pub(crate) fn new(min_chunk: u64, padding: u64, capacity: u64, fine: Fine) -> Result<Shape> {
        if !min_chunk.is_power_of_two() || min_chunk > 1 << GRANULE_SHIFT {
            return Err(Error::new(Code::Unsupported, "pooling needs a min chunk that divides 2 MiB"));
        }
        let mut shape = Shape {
            small_max: if fine.small && min_chunk <= 1 << SMALL_SHIFT { SMALL_MAX } else { 0 },
            medium_max: if fine.medium && min_chunk <= 1 << MEDIUM_SHIFT { MEDIUM_MAX } else { 0 },
            add: padding + min_chunk - 1,
            keep: !(min_chunk - 1),
            fine_max: 0,
            max_chunk: u64::MAX,
            largest: AtomicU64::new(capacity),
            classes: [SizeClass::NONE; LOOKED_UP],
        };
        shape.fine_max = shape.small_max.max(shape.medium_max);
        for i in 1..LOOKED_UP {
            shape.classes[i] = SizeClass::new(shape.find_size((i as u64) << SMALL_SHIFT));
        }
        shape.set_largest(capacity);
        Ok(shape)
    }

    /// The same where larger charged sizes than this get a segment of their own.
    pub(crate) fn with_max_chunk(self, max_chunk: u64) -> Shape {
        Shape { max_chunk, ..self }
    }

    /// [B] the largest request that the hot path serves.
    pub(crate) fn largest(&self) -> u64 {
        self.largest.load(Relaxed)
    }

    /// Sets it; at most the capacity.
    pub(crate) fn set_largest(&self, bytes: u64) {
        self.largest.store(bytes, Relaxed);
    }

    /// What the hot path serves now.
    pub(crate) fn served(&self) -> Served {
        let padding = self.add - (self.min_chunk() - 1);
        let largest = self.largest().min((self.max_chunk & self.keep).saturating_sub(padding));
        // Where there is padding, a request of 0 bytes has a class like any other, but is none that is served.
        let nothing = looked_up(self.charged_of(0));
        let list = |i: usize| {
            let all_served = (i as u64) << SMALL_SHIFT <= largest.saturating_add(padding);
            if i != 0 && i != nothing && all_served { self.classes[i].list() } else { 0 }
        };
        let &Shape { fine_max, add, keep, .. } = self;
        Served { largest, fine_max, add, keep, lists: std::array::from_fn(list) }
    }

    /// What a request of `bytes` is charged; `None` if the hot path does not serve it.
    #[inline]
    pub(crate) fn charged(&self, bytes: u64) -> Option<u64> {
        if bytes > self.largest() {
            return None; // this also keeps the sum below from overflowing
        }
        Some(self.charged_of(bytes))
    }

    /// The same for a size that has passed that check before.
    #[inline]
    pub(crate) fn charged_of(&self, bytes: u64) -> u64 {
        (bytes + self.add) & self.keep
    }

    /// Whether a block for `bytes` that is charged so much must be flagged: the hot path does not serve such a size, or the
    /// charge does not follow from the size alone.
    #[inline]
    pub(crate) fn is_tuned(&self, bytes: u64, charged: u64) -> bool {
        bytes > self.largest() || charged != self.charged_of(bytes)
    }

    /// Tier and units of a charged size (not 0).
    #[inline(always)]
    pub(crate) fn size(&self, charged: u64) -> Size {
        match self.size_class(charged) {
            Some(p) => {
                let tier = match p.shift() {
                    SMALL_SHIFT => Tier::Small,
                    MEDIUM_SHIFT => Tier::Medium,
                    _ => Tier::Large,
                };
                Size { tier, units: p.units() }
            }
            None => Size { tier: Tier::Large, units: large_units(charged) },
        }
    }

    /// The size class of a charged size; `None` for one that is large on every device.
    #[inline(always)]
    pub(crate) fn size_class(&self, charged: u64) -> Option<SizeClass> {
        (charged <= MEDIUM_MAX).then(|| self.classes[looked_up(charged)])
    }

    fn find_size(&self, charged: u64) -> Size {
        let tier = if charged <= self.small_max {
            Tier::Small
        } else if charged <= self.medium_max {
            Tier::Medium
        } else {
            Tier::Large
        };
        let shift = unit_shift(tier);
        Size { tier, units: ((charged + (1 << shift) - 1) >> shift) as u32 }
    }

    /// [B] the min chunk.
    pub(crate) fn min_chunk(&self) -> u64 {
        !self.keep + 1
    }

    /// [B] A segment for a large request is a multiple of this.
    pub(crate) fn segment_step(&self) -> u64 {
        (1u64 << LARGE_SHIFT).max(self.min_chunk())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const ALL: Fine = Fine { small: true, medium: true };

    #[test]
    fn charged_adds_padding_and_rounds_to_the_chunk() {
        let s = Shape::new(256, 100, 1 << 40, ALL).unwrap();
        assert_eq!(s.charged(1), Some(256));
        assert_eq!(s.charged(156), Some(256));
        assert_eq!(s.charged(157), Some(512));
        assert_eq!(s.charged(u64::MAX), None);
    }

    #[test]
    fn every_size_fits_its_units() {
        let s = Shape::new(512, 0, 1 << 50, ALL).unwrap();
        let large = [1 << 20, (1 << 20) + 1, (2 << 20) - 1, 1 << 36, 1 << 44, (1 << 44) + 1, 1 << 45];
        for bytes in (1..200_000).chain(large) {
            let c = s.charged(bytes).unwrap();
            let size = s.size(c);
            let unit = 1 << unit_shift(size.tier);
            let room = u64::from(size.units) * unit;
            assert!(room >= c && room - c < unit, "{bytes}: {size:?}");
        }
    }

    #[test]
    fn lists_are_those_of_the_fine_tiers_and_of_sizes_that_are_served() {
        let fines = [ALL, Fine { small: true, medium: false }, Fine { small: false, medium: true }];
        for (chunk, padding) in [(1, 0), (256, 0), (512, 0), (512, 100), (512, 5000), (4096, 0), (8192, 0)] {
            for (fine, largest) in fines.into_iter().flat_map(|f| [(f, 1 << 40), (f, 3000), (f, 0)]) {
                let s = Shape::new(chunk, padding, 1 << 40, fine).unwrap();
                s.set_largest(largest);
                let served = s.served();
                for bytes in (0..70_000).chain(u64::MAX - 70_000..=u64::MAX) {
                    let charged = served.charged(bytes);
                    match bytes < 1 << 50 {
                        true => assert_eq!(charged, Some(s.charged_of(bytes))),
                        false => assert!(charged.is_none_or(|c| c >= bytes)),
                    }
                    let list = charged.filter(|&c| served.is_fine(c)).map(|c| served.list(c));
                    let size = s.charged(bytes).filter(|_| bytes != 0).map(|c| s.size(c));
                    let Some(size) = size else {
                        assert!(list.is_none_or(|l| l == 0), "{bytes} is served");
                        continue;
                    };
                    let of_size = usize::from(list_of(size.units, (size.tier as u32) << TIER_SHIFT));
                    match list {
                        Some(0) => assert!(largest < 70_000 || padding > 0, "{bytes} is not served"),
                        Some(l) => assert_eq!(l, of_size),
                        None => assert_eq!(size.tier, Tier::Large),
                    }
                }
            }
        }
    }

    #[test]
    fn a_large_min_chunk_turns_the_fine_tiers_off() {
        let s = Shape::new(1 << 20, 0, 1 << 40, ALL).unwrap();
        assert_eq!(s.size(s.charged(1).unwrap()), Size { tier: Tier::Large, units: 64 });
        let none = Shape::new(256, 0, 1 << 40, Fine { small: false, medium: false }).unwrap();
        assert_eq!(none.size(256), Size { tier: Tier::Large, units: 1 });
        assert!(Shape::new(8 << 20, 0, 1 << 40, ALL).is_err());
        assert!(Shape::new(768, 0, 1 << 40, ALL).is_err());
    }
}
