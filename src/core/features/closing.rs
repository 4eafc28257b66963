//! The end of a pond.

use super::super::blocks::WaitingBlocks;
use super::super::ground::Ground;
use super::super::heap::Heap;
use super::super::state::tags::Tags;
use super::super::supply::Trim;
use super::capture::CaptureCalls;
use crate::base::error::Result;

/// Gives everything back to the device, including live blocks. The device is idle, and nobody uses the pond.
pub(crate) fn close(ground: &Ground) -> Result<()> {
    ground.pools().all().for_each(|p| ground.evict_all(p));
    ground.heaps().all().for_each(Heap::close_fast_path);
    CaptureCalls::of(ground).forget_all();
    ground.order.close();
    // A thread that was in the device when its door was shut may not have placed yet what it has got or given back there.
    drop(ground.growing().wait_for_all_transits());
    // What is unused, while the host has memory for lists of it. The rest goes one by one, or with the window.
    if ground.check_host_room().is_ok() {
        let _ = Trim::of(ground).all(None);
    }
    WaitingBlocks::of(ground).forget_all();
    // Continues after a failure: the device may take the others. There may be no memory of the host for a list of them.
    let mut first = Ok(());
    while let Some(s) = { ground.growing().segments.pop() } {
        first = first.and(ground.backing.segment_release(s.offset(), s.bytes));
    }
    first
}

/// Gives the tables of the pond, nearly all of its host memory, back to the system. Called after [`close`], so much
/// later that hardly any thread is still in a call that began before. A call that is still in progress finds no
/// block: no heap has one, and no address leads to one. Therefore both are cleared together, with every heap
/// locked.
pub(crate) fn discard(ground: &Ground) {
    let _g = ground.growing();
    let mut ledger = ground.ledger();
    let mut locked = Vec::new();
    ground.lock_all(&mut ledger, &mut locked);
    for h in &mut locked {
        h.become_empty(ground.config.source());
    }
    ground.maps.discard();
    ground.shared().tied.discard();
    *ground.tags().lock() = Tags::default();
}
