//! Whether memory is scarce, and what a request does then to spare it.

use super::super::blocks::Blocks;
use super::super::ground::Ground;
use super::super::heap::{Heap, LockedHeap, Runs, WORTH_MAPPING};
use super::super::units::LARGE_SHIFT;

/// Memory is scarce when less than 1 / this of what is reserved may still be taken. Both are the pool's where its own limit is the
/// nearest, else the device's: 1/64 of a device can be most of a small pool.
const SCARCE_PART: u64 = 3;

/// The same for a program that has needed so many mappings only to spare memory while none was missing: it has what it needs.
/// Each such mapping is several calls to the device, and a warm program would make them in every step, up to 11 000 a pass of
/// a trace (docs/decisions/mapping.md).
const SCARCE_PART_WARM: u64 = 64;
const SPARED_ENOUGH: u64 = 16;

/// A heap is ragged when more than 1 / this of what is reserved is free in its partly used granules. Twice as much
/// costs some programs 1 % of the device; half as much gains as often as it loses, and maps more.
const RAGGED_PART: u64 = 100;

/// How a request spares memory that is scarce.
#[derive(Clone, Copy)]
pub(super) struct Scarcity {
    /// Uses up parts of granules rather than break a whole one: memory is scarce and the heap ragged.
    pub spares: bool,
    /// Which granules it takes. Driver calls are saved only as long as no more than half of what may be had is reserved.
    pub runs: Runs,
}

impl Scarcity {
    /// For a request of less than a granule, to which it makes no difference.
    pub(super) const NONE: Scarcity = Scarcity { spares: false, runs: Runs::SmallestFirst };

    /// Updates whether memory is scarce and the heap of a request ragged.
    pub(super) fn note(ground: &Ground, heap: &'static Heap) -> Scarcity {
        let (allowed, reserved, spared) = {
            let g = ground.growing();
            (g.allowed(heap.pool()), g.account.reserved(), g.times_spared(heap.pool()))
        };
        let part = if spared < SPARED_ENOUGH { SCARCE_PART } else { SCARCE_PART_WARM };
        let scarce = ground.config.mapping && allowed.bytes < allowed.taken / part;
        // Heaps take whole granules from each other: if there are several, blocks are scattered over parts of granules
        // more sparingly.
        let part = if ground.heaps().count() > 1 { RAGGED_PART / 2 } else { RAGGED_PART };
        let most = if scarce { (reserved >> LARGE_SHIFT) / part } else { u64::MAX };
        ground.hints.set_most_ragged(most);
        let mut h = ground.lock(heap);
        h.note_ragged(most);
        let runs = if allowed.bytes < reserved { Runs::SmallestFirst } else { Runs::Few };
        Scarcity { spares: h.ragged, runs }
    }
}

/// The maximum that scattering a block may cost to be better than the best fit. `None`: there is no fit, or it is as
/// good.
pub(super) fn sparing_limit(ground: &Ground, h: &mut LockedHeap<'_>, units: u32) -> Option<u32> {
    Blocks::of(ground).drain(h);
    h.flush_large();
    h.fit_cost(units)?.checked_sub(WORTH_MAPPING).filter(|&c| c > 0)
}
