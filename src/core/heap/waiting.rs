//! The freed blocks of a heap that still wait, and what for.
//!
//! A block is on the list from the moment of its free until it is reusable, also while its fences are being made and
//! while the device is asked about them. So whoever locks the heap sees it.

use super::super::desc::Id;
use super::super::order::{Fence, Waits};
use std::collections::VecDeque;

/// A freed block and what it waits for.
#[derive(Clone)]
pub(crate) struct Waiting {
    pub id: Id,
    /// Its number on the list, never used again.
    pub ticket: u64,
    pub waits: Waits,
    /// Others that use its memory past the free (`exports`); they are never waited for.
    pub exports: Vec<Fence>,
    /// Its fences are being made: what it waits for is not known yet.
    pub unknown: bool,
    /// A segment of its own: it goes back to the device, and is out of the account already.
    pub direct: bool,
}

/// See the file's head.
#[derive(Default)]
pub(crate) struct WaitingList {
    entries: Vec<Waiting>,
    /// The fences of the entries by lane, in the order in which they are passed.
    lanes: Vec<(u64, VecDeque<Fence>)>,
    last: u64,
}

impl WaitingList {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A block was freed, and what it waits for is not known yet. Its number.
    pub(crate) fn begin(&mut self, id: Id, exports: Vec<Fence>, direct: bool) -> u64 {
        self.last += 1;
        for fence in &exports {
            self.watch(fence.clone());
        }
        self.entries.push(Waiting {
            id,
            ticket: self.last,
            waits: Waits::default(),
            exports,
            unknown: true,
            direct,
        });
        self.last
    }

    /// What a block waits for is known now, or is known better.
    pub(crate) fn known(&mut self, ticket: u64, waits: Waits) {
        for fence in waits.fences() {
            self.watch(fence);
        }
        if let Ok(at) = self.find(ticket) {
            let w = &mut self.entries[at];
            w.waits = waits;
            w.unknown = false;
        }
    }

    /// Where the entry of that number is: they are in order.
    fn find(&self, ticket: u64) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&ticket, |w| w.ticket)
    }

    /// Takes out a block whose wait is over.
    pub(crate) fn finish(&mut self, ticket: u64) {
        if let Ok(at) = self.find(ticket) {
            self.entries.remove(at);
        }
    }

    fn watch(&mut self, fence: Fence) {
        let lane = fence.lane();
        let at = self.lanes.iter().position(|l| l.0 == lane).unwrap_or_else(|| {
            self.lanes.push((lane, VecDeque::new()));
            self.lanes.len() - 1
        });
        let fences = &mut self.lanes[at].1;
        let place = fences.partition_point(|f| f.serial() <= fence.serial());
        if place == 0 || fences[place - 1].serial() != fence.serial() {
            fences.insert(place, fence);
        }
    }

    /// Of each lane the first fence that is not known to be passed: the ones to ask about.
    pub(crate) fn fronts(&mut self) -> Vec<Fence> {
        for (_, fences) in &mut self.lanes {
            while fences.front().is_some_and(Fence::is_passed) {
                fences.pop_front();
            }
        }
        self.lanes.retain(|l| !l.1.is_empty());
        self.lanes.iter().filter_map(|l| l.1.front().cloned()).collect()
    }

    /// Blocks for which fences are still to be made: their numbers, and what they wait for.
    pub(crate) fn owing(&self) -> Vec<(u64, Waits)> {
        self.entries.iter().filter(|w| w.waits.owes()).map(|w| (w.ticket, w.waits.clone())).collect()
    }

    /// Takes out the blocks that are known to wait for nothing any more, into `ripe`. Those that are segments of their
    /// own go into `direct` and stay on the list, not known again, until [`finish`](Self::finish).
    pub(crate) fn take_ripe(&mut self, ripe: &mut Vec<Waiting>, direct: &mut Vec<Waiting>) {
        let mut is_ripe = |w: &mut Waiting| {
            let over = w.waits.drop_passed(Fence::is_passed);
            w.exports.retain(|f| !f.is_passed());
            if !over || w.unknown || !w.exports.is_empty() {
                return false;
            }
            if w.direct {
                direct.push(w.clone());
                w.unknown = true;
            }
            !w.direct
        };
        ripe.extend(self.entries.extract_if(.., |w| is_ripe(w)));
    }

    /// The first block that waits for streams, and what for; one whose fences are known, if there is any.
    pub(crate) fn first_open(&self) -> Option<Waits> {
        let open = || self.entries.iter().filter(|w| !w.unknown && !w.waits.is_over());
        let first = open().find(|w| !w.waits.owes()).or_else(|| open().next());
        first.map(|w| w.waits.clone())
    }

    /// Of the blocks that wait for streams alone, the first fence of each lane.
    pub(crate) fn open_fences(&self) -> Vec<Fence> {
        let mut first: Vec<Fence> = Vec::new();
        for fence in
            self.entries.iter().filter(|w| !w.unknown && w.exports.is_empty()).flat_map(|w| w.waits.fences())
        {
            match first.iter_mut().find(|f| f.lane() == fence.lane()) {
                Some(f) if f.serial() <= fence.serial() => {}
                Some(f) => *f = fence,
                None => first.push(fence),
            }
        }
        first
    }

    /// Blocks whose memory others use past the free.
    pub(crate) fn exported(&self) -> impl Iterator<Item = &Waiting> {
        self.entries.iter().filter(|w| !w.exports.is_empty())
    }
}
