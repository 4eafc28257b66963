//! The freed blocks of a heap that wait: they are not reusable yet.
//!
//! A block is on the list from its free until it is reusable, also while its fences are being made and while the device
//! is queried about them. So every thread that locks the heap sees it. The list is part of the heap's state, so its
//! methods need the heap's lock.

use super::super::desc::Id;
use super::super::order::{Fence, Waits};
use std::collections::VecDeque;

/// A freed block and what it waits for.
#[derive(Clone)]
pub(crate) struct Waiting {
    pub id: Id,
    /// Its number on the list, never reused.
    pub ticket: u64,
    pub waits: Waits,
    /// Exports: others may use its memory beyond the free. The host never waits for them.
    pub exports: Vec<Fence>,
    /// Its fences are still being made, so what it waits for is not known yet.
    pub unknown: bool,
    /// It is a segment of its own: it goes back to the device, and no longer counts in the account.
    pub direct: bool,
}

/// The fences of one stream, in the order in which they are passed.
struct StreamFences {
    stream_serial: u64,
    fences: VecDeque<Fence>,
}

/// The waiting blocks of a heap; see the head of this file.
#[derive(Default)]
pub(crate) struct WaitingList {
    entries: Vec<Waiting>,
    /// The fences of all entries.
    streams: Vec<StreamFences>,
    last: u64,
}

/// The blocks whose waits are over.
#[derive(Default)]
pub(crate) struct Ready {
    /// Those that can be used again at once.
    pub blocks: Vec<Waiting>,
    /// Those that are segments of their own and go back to the device first.
    pub segments: Vec<Waiting>,
}

impl WaitingList {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Enters a freed block whose fences are not known yet. Returns its ticket.
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

    /// Sets what a block waits for, once or again.
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

    /// The index of a ticket's entry: tickets ascend.
    fn find(&self, ticket: u64) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&ticket, |w| w.ticket)
    }

    /// Removes a block whose wait is over.
    pub(crate) fn finish(&mut self, ticket: u64) {
        if let Ok(at) = self.find(ticket) {
            self.entries.remove(at);
        }
    }

    /// Adds a fence to those of its stream.
    fn watch(&mut self, fence: Fence) {
        let stream_serial = fence.stream_serial();
        let at = self.streams.iter().position(|s| s.stream_serial == stream_serial).unwrap_or_else(|| {
            self.streams.push(StreamFences { stream_serial, fences: VecDeque::new() });
            self.streams.len() - 1
        });
        let fences = &mut self.streams[at].fences;
        let place = fences.partition_point(|f| f.serial() <= fence.serial());
        if place == 0 || fences[place - 1].serial() != fence.serial() {
            fences.insert(place, fence);
        }
    }

    /// The first fence of each stream that is not known to be passed: the ones to query.
    pub(crate) fn fronts(&mut self) -> Vec<Fence> {
        for s in &mut self.streams {
            while s.fences.front().is_some_and(Fence::is_passed) {
                s.fences.pop_front();
            }
        }
        self.streams.retain(|s| !s.fences.is_empty());
        self.streams.iter().filter_map(|s| s.fences.front().cloned()).collect()
    }

    /// The blocks with owed fences: their tickets, and what they wait for.
    pub(crate) fn owing(&self) -> Vec<(u64, Waits)> {
        self.entries.iter().filter(|w| w.waits.owes()).map(|w| (w.ticket, w.waits.clone())).collect()
    }

    /// Takes the blocks that are known to wait for nothing. Those that are segments of their own stay on the list, marked
    /// as unknown again, until [`finish`](Self::finish).
    pub(crate) fn take_ready(&mut self) -> Ready {
        let mut segments = Vec::new();
        let mut is_ready = |w: &mut Waiting| {
            let over = w.waits.drop_passed(Fence::is_passed);
            w.exports.retain(|f| !f.is_passed());
            if !over || w.unknown || !w.exports.is_empty() {
                return false;
            }
            if w.direct {
                segments.push(w.clone());
                w.unknown = true;
            }
            !w.direct
        };
        let blocks = self.entries.extract_if(.., |w| is_ready(w)).collect();
        Ready { blocks, segments }
    }

    /// What the first block that waits for streams waits for; a block without owed fences is preferred.
    pub(crate) fn first_open(&self) -> Option<Waits> {
        let open = || self.entries.iter().filter(|w| !w.unknown && !w.waits.is_over());
        let first = open().find(|w| !w.waits.owes()).or_else(|| open().next());
        first.map(|w| w.waits.clone())
    }

    /// For the blocks that wait only for streams: the first fence of each stream.
    pub(crate) fn open_fences(&self) -> Vec<Fence> {
        let mut first: Vec<Fence> = Vec::new();
        for fence in
            self.entries.iter().filter(|w| !w.unknown && w.exports.is_empty()).flat_map(|w| w.waits.fences())
        {
            match first.iter_mut().find(|f| f.stream_serial() == fence.stream_serial()) {
                Some(f) if f.serial() <= fence.serial() => {}
                Some(f) => *f = fence,
                None => first.push(fence),
            }
        }
        first
    }

    /// All of them, in the order of their frees.
    pub(crate) fn all(&self) -> &[Waiting] {
        &self.entries
    }

    /// Blocks whose memory others use beyond the free.
    pub(crate) fn exported(&self) -> impl Iterator<Item = &Waiting> {
        self.entries.iter().filter(|w| !w.exports.is_empty())
    }
}
