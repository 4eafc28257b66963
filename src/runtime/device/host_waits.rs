//! What a freed block of host memory waits for: what was queued on the streams that used it, perhaps of other devices
//! than the one it was taken from.

use crate::base::sync::pause;
use crate::base::sync::system::{MutexGuard, lock};
use crate::core::Waits;
use crate::locks;
use crate::runtime::device::host_memory::HostMemory;
use crate::runtime::device::table::by_id;
use crate::runtime::entry::reentry::{InCall, is_in_call, may_block};
use crate::runtime::pinned::cache::{State, Use};
use crate::runtime::pinned::state::HostCache;

/// Rounds of asking, of at least 50 us each, after which freed blocks are waited for in turn.
const MOST_ASKED: u32 = 20_000;

/// A freed block that its thread looks at or gives to the device: neither waiting nor free, and not lost.
pub(super) struct InHand<'a> {
    host: &'a HostCache,
    _in: InCall,
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        lock(&self.host.state).in_hand -= 1;
        self.host.put_down.notify_all();
    }
}

impl HostCache {
    /// This thread has a freed block in hand until what it gets is dropped.
    pub(super) fn hand(&self, mut s: MutexGuard<'_, State, locks::Pinned>) -> InHand<'_> {
        s.in_hand += 1;
        InHand { host: self, _in: InCall::new(self) }
    }
}

impl HostMemory<'_> {
    /// Enters into `all`, which has an entry for each of the uses, what is queued now on the streams that have used a block;
    /// nothing is left where all of it is over.
    pub(super) fn add_waits(&self, uses: &[Use], all: &mut Vec<(u32, Waits)>) {
        for (by, (_, waits)) in uses.iter().zip(all.iter_mut()) {
            // All work of a device that has ended is over.
            if let Some(device) = by_id(by.device) {
                device.memory().order().add(&by.stream, waits);
            }
        }
        all.retain(|w| !w.1.is_over());
    }

    /// Looks at up to `most` freed blocks that wait, and waits for none. `true` when any can be used again.
    pub(super) fn settle(&self, most: usize) -> bool {
        let mut any = false;
        let most = lock(&self.0.host.state).waiting.len().min(most);
        for _ in 0..most {
            any |= self.look(false).unwrap_or(false);
        }
        any
    }

    /// Looks at the freed block that waits since longest, or waits for it: whether it can be used again; `None`: none
    /// waits.
    fn look(&self, wait: bool) -> Option<bool> {
        let mut s = lock(&self.0.host.state);
        let mut w = s.waiting.pop_front()?;
        let _hand = self.0.host.hand(s);
        w.waits.retain_mut(|(device, waits)| !self.is_over(*device, waits, wait));
        let mut s = lock(&self.0.host.state);
        let over = w.waits.is_empty() && s.give(w.addr, w.size);
        if over {
            s.stats.pending -= w.size;
        } else {
            // To the end: the next look is at others.
            s.waiting.push_back(w);
        }
        Some(over)
    }

    /// Waits for one freed block after the other, until one can be used again, or for `all`. Whether any can.
    pub(super) fn wait_in_turn(&self, all: bool) -> bool {
        let mut any = false;
        let count = lock(&self.0.host.state).waiting.len();
        for _ in 0..count {
            any |= self.look(true).unwrap_or(false);
            if any && !all {
                break;
            }
        }
        any
    }

    /// Waits until another thread that has a freed block in hand has done something with it. `false`: none has.
    pub(super) fn wait_for_hands(&self) -> bool {
        // A plugin may come here from within what this thread does with one.
        if may_block().is_err() || is_in_call(&self.0.host) {
            return false;
        }
        let s = lock(&self.0.host.state);
        if s.in_hand == 0 {
            return false;
        }
        drop(self.0.host.put_down.wait(s));
        true
    }

    /// Waits until freed memory can be used again, or is the device's: whichever is the first. `false`: none can be waited
    /// for.
    pub(super) fn wait_for_one(&self) -> bool {
        if may_block().is_err() || is_in_call(&self.0.host) {
            return false;
        }
        let count = || {
            let s = lock(&self.0.host.state);
            (s.waiting.len(), s.in_hand, s.returns)
        };
        let before = count().2;
        for round in 0..MOST_ASKED {
            if self.settle(usize::MAX) {
                return true;
            }
            match count() {
                (.., returns) if returns != before => return true,
                (0, 0, _) => return false,
                (0, ..) => _ = self.wait_for_hands(),
                (1, 0, _) => break,
                _ => pause(round),
            }
        }
        self.wait_in_turn(false) || count().2 != before
    }

    /// Whether what a block waits for on a device is over; with `wait`, waits for it on the host. A fence that only a wait
    /// can make is made all the same: a program whose callbacks free pinned memory would take more and more of it.
    pub(super) fn is_over(&self, device: u32, waits: &mut Waits, wait: bool) -> bool {
        let Some(device) = by_id(device) else { return true };
        let order = device.memory().order();
        order.settle_by_waits(waits) || wait && order.sync_waits(waits).is_ok()
    }
}
