//! The freed blocks of a heap that wait: they are not reusable yet.
//!
//! A block is on the list from its free until it is reusable, also while its fences are being made and while the device
//! is queried about them. So every thread that locks the heap sees it. The list is part of the heap's state, so its
//! methods need the heap's lock.

use super::super::desc::Id;
use super::super::order::{Fence, Waits};
use crate::base::boxed::try_push;
use crate::base::error::{Result, no_host_memory};
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

impl Waiting {
    /// Whether it is known to wait for nothing.
    fn is_ready(&self) -> bool {
        !self.unknown && self.waits.is_over() && self.exports.is_empty()
    }
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
    /// Some fences are not in `streams`: the host had no memory for that.
    unwatched: bool,
    last: u64,
}

/// The blocks whose waits are over.
#[derive(Default)]
pub(crate) struct Ready {
    /// Those that can be used again at once.
    pub blocks: Vec<Waiting>,
    /// Those that are segments of their own and go back to the device first.
    pub segments: Vec<Waiting>,
    /// There are more, which the host had no memory to list.
    pub more: bool,
}

impl WaitingList {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many wait, but for those that a thread has in hand: it makes their fences, or gives them back to the device.
    pub(crate) fn still(&self) -> usize {
        self.entries.iter().filter(|w| !w.unknown).count()
    }

    /// Makes room for one more block. `false`: the host has no memory for it.
    pub(crate) fn make_room(&mut self) -> bool {
        self.entries.try_reserve(1).is_ok()
    }

    /// Enters a freed block whose fences are not known yet. Returns its ticket.
    pub(crate) fn begin(&mut self, id: Id, exports: Vec<Fence>, direct: bool) -> u64 {
        self.last += 1;
        self.watch_all(&exports);
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
        self.watch_all(waits.fences());
        if let Ok(at) = self.find(ticket) {
            let w = &mut self.entries[at];
            w.waits = waits;
            w.unknown = false;
        }
    }

    /// Sets what a block waits for that was [`owing`](Self::owing) fences, as far as they were made meanwhile. If it owes none any
    /// more, another thread has done so, and may be giving it back by now.
    pub(crate) fn settled(&mut self, ticket: u64, waits: Waits) {
        if self.find(ticket).is_ok_and(|at| self.entries[at].waits.owes()) {
            self.known(ticket, waits);
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

    /// Adds fences to those of their streams, as long as the host has memory for that.
    fn watch_all(&mut self, fences: &[Fence]) {
        for fence in fences {
            self.unwatched |= !self.watch(fence);
        }
    }

    /// Adds a fence to those of its stream. `false`: the host has no memory for that.
    fn watch(&mut self, fence: &Fence) -> bool {
        let stream_serial = fence.stream_serial();
        let known = self.streams.iter().position(|s| s.stream_serial == stream_serial);
        if known.is_none()
            && !try_push(&mut self.streams, StreamFences { stream_serial, fences: VecDeque::new() })
        {
            return false;
        }
        let at = known.unwrap_or(self.streams.len() - 1);
        let fences = &mut self.streams[at].fences;
        let place = fences.partition_point(|f| f.serial() <= fence.serial());
        if place == 0 || fences[place - 1].serial() != fence.serial() {
            if fences.try_reserve(1).is_err() {
                return false;
            }
            fences.insert(place, fence.clone());
        }
        true
    }

    /// Adds the fences for which the host had no memory.
    fn watch_again(&mut self) {
        self.unwatched = false;
        let entries = std::mem::take(&mut self.entries);
        for fence in entries.iter().flat_map(|w| w.waits.fences().iter().chain(&w.exports)) {
            self.unwatched |= !fence.is_passed() && !self.watch(fence);
        }
        self.entries = entries;
    }

    /// The first fence of each stream that is not known to be passed: the ones to query, as many as the host has memory
    /// for.
    pub(crate) fn fronts(&mut self) -> Vec<Fence> {
        if self.unwatched {
            self.watch_again();
        }
        for s in &mut self.streams {
            while s.fences.front().is_some_and(Fence::is_passed) {
                s.fences.pop_front();
            }
        }
        self.streams.retain(|s| !s.fences.is_empty());
        let mut fronts = Vec::new();
        for fence in self.streams.iter().filter_map(|s| s.fences.front()) {
            try_push(&mut fronts, fence.clone());
        }
        fronts
    }

    /// The blocks with owed fences: their tickets, and what they wait for. `OutOfMemory` if the host has no memory for the
    /// list.
    pub(crate) fn owing(&self) -> Result<Vec<(u64, Waits)>> {
        let mut owing = Vec::new();
        for w in self.entries.iter().filter(|w| w.waits.owes()) {
            let waits = w.waits.try_clone().ok_or_else(no_host_memory)?;
            if !try_push(&mut owing, (w.ticket, waits)) {
                return Err(no_host_memory());
            }
        }
        Ok(owing)
    }

    /// Takes the blocks that are known to wait for nothing. Those that are segments of their own stay on the list, marked
    /// as unknown again, until [`finish`](Self::finish). A block stays as it is if the host has no memory to list it.
    pub(crate) fn take_ready(&mut self) -> Ready {
        let (mut ready, mut any) = (0, false);
        for w in &mut self.entries {
            w.waits.drop_passed(Fence::is_passed);
            w.exports.retain(|f| !f.is_passed());
            any |= w.is_ready();
            ready += usize::from(w.is_ready() && !w.direct);
        }
        if !any {
            return Ready::default();
        }
        let (mut blocks, mut segments) = (Vec::new(), Vec::new());
        let mut more = false;
        let mut room = if blocks.try_reserve_exact(ready).is_ok() { ready } else { 0 };
        let mut goes = |w: &mut Waiting| {
            if !w.is_ready() {
                return false;
            }
            if w.direct {
                // It waits for nothing, so the copy has no lists.
                w.unknown = try_push(&mut segments, w.clone());
                more |= !w.unknown;
                return false;
            }
            let listed = room > 0;
            room -= usize::from(listed);
            more |= !listed;
            listed
        };
        blocks.extend(self.entries.extract_if(.., |w| goes(w)));
        Ready { blocks, segments, more }
    }

    /// What the first block that waits for streams waits for; a block without owed fences is preferred. `OutOfMemory` if
    /// the host has no memory for that.
    pub(crate) fn first_open(&self) -> Result<Option<Waits>> {
        let open = || self.entries.iter().filter(|w| !w.unknown && !w.waits.is_over());
        let first = open().find(|w| !w.waits.owes()).or_else(|| open().next());
        first.map(|w| w.waits.try_clone().ok_or_else(no_host_memory)).transpose()
    }

    /// For the blocks that wait only for streams: the first fence of each stream, as many as the host has memory for.
    pub(crate) fn open_fences(&self) -> Vec<Fence> {
        let mut first: Vec<Fence> = Vec::new();
        for fence in
            self.entries.iter().filter(|w| !w.unknown && w.exports.is_empty()).flat_map(|w| w.waits.fences())
        {
            match first.iter_mut().find(|f| f.stream_serial() == fence.stream_serial()) {
                Some(f) if f.serial() <= fence.serial() => {}
                Some(f) => *f = fence.clone(),
                None => _ = try_push(&mut first, fence.clone()),
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
