//! What can be changed in a pond at any time, whether or not there are live blocks.
//!
//! - *Rounding*: sizes are rounded up to a fraction of a power of two, so that requests of nearly the same size fit
//!   into each other's blocks.
//! - *Whole blocks*: a block of at least `max_split` bytes stays whole when it is freed. It is kept apart, and serves
//!   requests that are also that large and at most `max_round` smaller than it. It is given up for merging when memory
//!   runs short, when unused memory is given back, and by the collector.
//! - *Collector*: unused memory goes back to the device before more is taken above a threshold.
//! - *Segment*: how much is taken from the device at a time.

use crate::base::sync::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// What can be tuned. All sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Blocks of at least this size stay whole; 0: none do.
    pub max_split: u64,
    /// The maximum by which a whole block may be larger than a request that it serves.
    pub max_round: u64,
    /// log2 of the number of parts into which a power of two is divided when sizes are rounded up: four bits each for
    /// sizes below 2 MiB, below 4 MiB, and so on; the last for all from 32 GiB on. 0: not rounded.
    pub divisions: u64,
    /// Above this many reserved bytes, unused memory is given back before more is taken; 0: never.
    pub collect_above: u64,
    /// The minimum that is taken from the device at a time, as far as the limits allow; 0: as the device says.
    pub segment: u64,
    /// No block is scattered from now on, even where memory would suffice otherwise.
    pub in_one_piece: bool,
}

/// The tuning of a pond. Each number is read on its own: a request that races with a change sees either value.
#[derive(Debug, Default)]
pub(crate) struct Tuned {
    max_split: AtomicU64,
    max_round: AtomicU64,
    divisions: AtomicU64,
    collect_above: AtomicU64,
    segment: AtomicU64,
    in_one_piece: AtomicBool,
}

/// [B] sizes up to this, times the number of parts, are not rounded, as in PyTorch.
const SMALLEST: u64 = 512;
/// log2 of the bytes at which the first interval starts.
const FIRST_INTERVAL: u32 = 20;

impl Tuned {
    pub(crate) fn set(&self, t: Tuning) {
        self.max_split.store(t.max_split, Relaxed);
        self.max_round.store(t.max_round, Relaxed);
        self.divisions.store(t.divisions, Relaxed);
        self.collect_above.store(t.collect_above, Relaxed);
        self.segment.store(t.segment, Relaxed);
        self.in_one_piece.store(t.in_one_piece, Relaxed);
    }

    /// [B] blocks of at least this size stay whole; 0: none do.
    pub(crate) fn max_split(&self) -> u64 {
        self.max_split.load(Relaxed)
    }

    /// Whether no block is to be scattered.
    pub(crate) fn in_one_piece(&self) -> bool {
        self.in_one_piece.load(Relaxed)
    }

    pub(crate) fn get(&self) -> Tuning {
        Tuning {
            max_split: self.max_split.load(Relaxed),
            max_round: self.max_round.load(Relaxed),
            divisions: self.divisions.load(Relaxed),
            collect_above: self.collect_above.load(Relaxed),
            segment: self.segment.load(Relaxed),
            in_one_piece: self.in_one_piece.load(Relaxed),
        }
    }
}

/// log2 of the number of parts for sizes around `bytes`.
fn parts_log2(divisions: u64, bytes: u64) -> u32 {
    let interval = bytes.max(1).ilog2().saturating_sub(FIRST_INTERVAL).min(15);
    (divisions >> (interval * 4)) as u32 & 15
}

impl Tuning {
    /// Rounds `bytes` up to the next part of the power of two below it.
    pub(crate) fn round_up(&self, bytes: u64) -> u64 {
        let log2 = parts_log2(self.divisions, bytes);
        if log2 == 0 || bytes <= SMALLEST << log2 {
            return bytes;
        }
        let part = (1u64 << bytes.ilog2()) >> log2;
        bytes.checked_next_multiple_of(part.max(1)).unwrap_or(bytes)
    }

    /// [B] the largest size that is never rounded.
    pub(crate) fn untouched(&self) -> u64 {
        let first = (0..16).find(|i| self.divisions >> (i * 4) & 15 != 0);
        match first {
            None => u64::MAX,
            Some(0) => SMALLEST << (self.divisions & 15),
            Some(i) => (1 << (FIRST_INTERVAL + i)) - 1,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn with(divisions: u64) -> Tuning {
        Tuning { divisions, ..Tuning::default() }
    }

    #[test]
    fn sizes_are_rounded_as_pytorch_documents() {
        // "if we need to round-up size of 1200 and if number of divisions is 4": 1280.
        let four = with(0x2222_2222_2222_2222);
        assert_eq!(four.round_up(1200 * MIB), 1280 * MIB);
        for same in [1, 512, 2048, 1024 * MIB, 1280 * MIB, 1536 * MIB, 1792 * MIB, 1 << 40] {
            assert_eq!(four.round_up(same), same);
        }
        assert_eq!(four.round_up(1793 * MIB), 2048 * MIB);
        assert_eq!(four.round_up(2049), 2560);
        assert_eq!(four.round_up(u64::MAX), u64::MAX);
        assert_eq!(with(0).round_up(1200 * MIB), 1200 * MIB);
        // Only from 512 MiB to 1 GiB.
        let some = with(1 << 36);
        assert_eq!(some.round_up(511 * MIB + 1), 511 * MIB + 1);
        assert_eq!(some.round_up(513 * MIB), 768 * MIB);
        assert_eq!(some.round_up(1025 * MIB), 1025 * MIB);
    }

    proptest! {
        #[test]
        fn what_is_untouched_is_not_rounded(divisions: u64, bytes in 1u64..1 << 45) {
            let rounded = with(divisions).round_up(bytes);
            prop_assert!(rounded >= bytes && rounded - bytes < bytes);
            if bytes <= with(divisions).untouched() {
                prop_assert_eq!(rounded, bytes);
            }
        }
    }
}
