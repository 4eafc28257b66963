//! What a pond can be told to do differently, at any time, live blocks or not.
//!
//! The hot path knows nothing of it but one number that it compares with anyway: the largest request that it
//! serves itself. Requests above that, which tuning may concern, come here. What they get is *odd*: a flag sends
//! its free the slow way, and its charge is that of its units where those are more than the request needs. So a
//! block is charged the same at its free as at its allocation, whatever was changed in between.
//!
//! - *Rounding*: sizes are raised to the next of so many parts of a power of two, so that requests of nearly the
//!   same size fit each other's blocks.
//! - *Whole blocks*: a block of at least `max_split` bytes stays whole when it is freed. It is kept apart, and
//!   serves requests that are also that large and at most `max_round` smaller than it. It is given up to be merged
//!   when memory runs short, when unused memory is given back, and by the collector.
//! - *Collector*: memory that nobody uses goes back to the device before more is taken above a threshold.
//! - *Segment*: how much is taken from the device at a time.

use super::desc::{Id, ODD};
use super::heap::{Heap, Inner};
use super::pond::Pond;
use super::shape::{LARGE_SHIFT, Tier, of_key};
use crate::base::error::Result;
use crate::base::sync::{AtomicU64, Ordering, Ordering::Relaxed};

/// What can be tuned. All sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Blocks of at least this size stay whole; 0: none do.
    pub max_split: u64,
    /// A whole block may be this much larger than a request that it serves, and not more.
    pub max_round: u64,
    /// log2 of the parts into which a power of two is divided when sizes are rounded up: four bits each for
    /// sizes below 2 MiB, below 4 MiB, and so on; the last for all from 32 GiB. 0: not rounded.
    pub divisions: u64,
    /// Above so many reserved bytes unused memory is given back before more is taken; 0: never.
    pub collect_above: u64,
    /// Taken from the device at a time at least, where the limits allow; 0: as the device says.
    pub segment: u64,
}

/// The tuning of a pond. Each number is read by itself: a request that races with a change sees either.
#[derive(Debug)]
pub(crate) struct Tuned {
    max_split: AtomicU64,
    max_round: AtomicU64,
    divisions: AtomicU64,
    pub collect_above: AtomicU64,
    pub segment: AtomicU64,
}

/// [B] sizes up to so many smallest blocks for each part are not rounded, as in PyTorch.
const SMALLEST: u64 = 512;
/// log2 of the bytes at which the first interval starts.
const FIRST_INTERVAL: u32 = 20;

impl Tuned {
    pub(crate) fn new() -> Self {
        let n = || AtomicU64::new(0);
        Tuned { max_split: n(), max_round: n(), divisions: n(), collect_above: n(), segment: n() }
    }
}

/// log2 of the parts for sizes around `bytes`.
fn parts_log2(divisions: u64, bytes: u64) -> u32 {
    let interval = bytes.max(1).ilog2().saturating_sub(FIRST_INTERVAL).min(15);
    (divisions >> (interval * 4)) as u32 & 15
}

/// `bytes` raised to the next of the parts of the power of two below it.
fn round_up(divisions: u64, bytes: u64) -> u64 {
    let log2 = parts_log2(divisions, bytes);
    if log2 == 0 || bytes <= SMALLEST << log2 {
        return bytes;
    }
    let part = (1u64 << bytes.ilog2()) >> log2;
    bytes.checked_next_multiple_of(part.max(1)).unwrap_or(bytes)
}

/// [B] the largest size that no division touches.
fn untouched(divisions: u64) -> u64 {
    let first = (0..16).find(|i| divisions >> (i * 4) & 15 != 0);
    match first {
        None => u64::MAX,
        Some(0) => SMALLEST << (divisions & 15),
        Some(i) => (1 << (FIRST_INTERVAL + i)) - 1,
    }
}

impl Pond {
    /// Changes what the pond does from now on.
    pub fn tune(&self, t: Tuning) {
        let to = &self.tuned;
        to.max_split.store(t.max_split, Relaxed);
        to.max_round.store(t.max_round, Relaxed);
        to.divisions.store(t.divisions, Relaxed);
        to.collect_above.store(t.collect_above, Relaxed);
        to.segment.store(t.segment, Relaxed);
        let whole = if t.max_split == 0 { u64::MAX } else { t.max_split - 1 };
        // A request is below `whole` when its charge is.
        let whole = whole.saturating_sub(self.config.padding + self.config.min_chunk);
        self.maps.shape.set_largest(self.config.max_alloc.min(whole).min(untouched(t.divisions)));
        if t.max_split == 0 {
            self.give_up_whole();
        }
    }

    /// A request that is larger than what the hot path serves.
    #[cold]
    #[inline(never)]
    pub(crate) fn alloc_tuned(&self, heap: &'static Heap, bytes: u64) -> Result<u64> {
        if bytes > self.config.max_alloc {
            return self.too_large(bytes);
        }
        let shape = &self.maps.shape;
        let plain = shape.contract_of(bytes);
        let rounded = shape.contract_of(round_up(self.tuned.divisions.load(Relaxed), bytes));
        // More than the device has helps nobody.
        let contract = if rounded > self.config.max_alloc { plain } else { rounded };
        let key = shape.key(contract);
        let contract = self.charge_of(key, bytes);
        let (tier, units) = of_key(key);
        let mut h = Self::lock_to_allocate(heap);
        let max_split = self.tuned.max_split.load(Relaxed);
        let mut id = 0;
        if max_split != 0 && contract >= max_split && tier == Tier::Large {
            let unit = LARGE_SHIFT;
            let more = (self.tuned.max_round.load(Relaxed) >> unit).min(u64::from(u32::MAX)) as u32;
            id = h.take_whole(units, units.saturating_add(more));
        }
        if id == 0 {
            id = h.pop(&self.maps, key).unwrap_or(0);
        }
        if id == 0 {
            return self.alloc_miss(heap, h, key, contract, bytes);
        }
        let d = self.maps.desc(id);
        let charge = self.charge_of(d.units() << 2 | d.tier_bits().min(Tier::Large as u32), bytes);
        Ok(self.finish(heap, h, id, d.tier_bits(), charge, bytes))
    }

    /// The charge of a request of `bytes` in a block of this key.
    fn charge_of(&self, key: u32, bytes: u64) -> u64 {
        let shape = &self.maps.shape;
        let plain = shape.contract_of(bytes);
        if shape.key(plain) == key {
            return plain;
        }
        let (tier, units) = of_key(key);
        u64::from(units) << shape.unit_shift(tier)
    }

    /// The charge of a block that is live or pending.
    pub(crate) fn charge(&self, id: Id) -> u64 {
        let d = self.maps.desc(id);
        self.charge_of(d.units() << 2 | d.tier_bits().min(Tier::Large as u32), d.requested())
    }

    /// Flags a block that has just become live with this charge, if its free must look at the tuning. Its heap is
    /// locked.
    pub(crate) fn flag_odd(&self, id: Id, charge: u64) {
        let (d, shape) = (self.maps.desc(id), &self.maps.shape);
        if d.requested() > shape.largest() || charge != shape.contract_of(d.requested()) {
            d.set_state(d.state() | ODD);
        }
    }

    /// Keeps a freed block whole, if it is one of those. The heap is locked.
    pub(crate) fn keep_whole(&self, h: &mut Inner, id: Id) -> bool {
        let max_split = self.tuned.max_split.load(Relaxed);
        let d = self.maps.desc(id);
        let unit = LARGE_SHIFT;
        if max_split == 0 || d.tier_bits() < Tier::Large as u32 || u64::from(d.units()) << unit < max_split {
            return false;
        }
        h.put_whole(&self.maps, id);
        true
    }

    /// Merges the whole blocks of all heaps, so that they may be split. `true` when there were any.
    pub(crate) fn give_up_whole(&self) -> bool {
        let mut any = false;
        for i in 0..self.heap_count.load(Ordering::Acquire) as usize {
            let Some(heap) = self.heaps.get(i) else { continue };
            let mut h = heap.inner.lock();
            any |= h.give_up_whole(&self.maps, heap.index, |a| self.aliases.lock().set_idle(a));
        }
        any
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn sizes_are_rounded_as_pytorch_documents() {
        // "if we need to round-up size of 1200 and if number of divisions is 4": 1280.
        let four = 0x2222_2222_2222_2222;
        assert_eq!(round_up(four, 1200 * MIB), 1280 * MIB);
        for same in [1, 512, 2048, 1024 * MIB, 1280 * MIB, 1536 * MIB, 1792 * MIB, 1 << 40] {
            assert_eq!(round_up(four, same), same);
        }
        assert_eq!(round_up(four, 1793 * MIB), 2048 * MIB);
        assert_eq!(round_up(four, 2049), 2560);
        assert_eq!(round_up(four, u64::MAX), u64::MAX);
        assert_eq!(round_up(0, 1200 * MIB), 1200 * MIB);
        // Only from 512 MiB to 1 GiB.
        let some = 1 << 36;
        assert_eq!(round_up(some, 511 * MIB + 1), 511 * MIB + 1);
        assert_eq!(round_up(some, 513 * MIB), 768 * MIB);
        assert_eq!(round_up(some, 1025 * MIB), 1025 * MIB);
    }

    proptest! {
        #[test]
        fn what_is_untouched_is_not_rounded(divisions: u64, bytes in 1u64..1 << 45) {
            let rounded = round_up(divisions, bytes);
            prop_assert!(rounded >= bytes && rounded - bytes < bytes);
            if bytes <= untouched(divisions) {
                prop_assert_eq!(rounded, bytes);
            }
        }
    }
}
