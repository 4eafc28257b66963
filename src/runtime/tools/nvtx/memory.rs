//! The memory of one device as heaps and regions: each range that has memory is a heap, and a block is a region, or one
//! in each heap that it lies in.

use super::super::checker::Checker;
use super::attach::Memory;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the file's head.
pub(crate) struct Heaps {
    tool: Memory,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By address: bytes, and the tool's number.
    heaps: BTreeMap<u64, (u64, Option<usize>)>,
    blocks: BTreeMap<u64, u64>,
}

/// What of `map`, whose values are bytes, overlaps a range.
fn over<T: Copy>(map: &BTreeMap<u64, T>, bytes: fn(T) -> u64, from: u64, to: u64) -> Vec<(u64, T)> {
    let before = map.range(..from).next_back();
    let all = before.into_iter().chain(map.range(from..to));
    all.map(|(&a, &t)| (a, t)).filter(|&(a, t)| a + bytes(t) > from).collect()
}

impl Heaps {
    pub(super) fn new(tool: Memory) -> Heaps {
        Heaps { tool, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The parts of `from .. to` that lie in heaps, and these.
    fn parts(s: &State, from: u64, to: u64) -> Vec<(usize, u64, u64)> {
        let within = over(&s.heaps, |h| h.0, from, to);
        let part = |(a, (n, heap)): (u64, (u64, Option<usize>))| {
            let (start, end) = (a.max(from), (a + n).min(to));
            Some((heap?, start, end - start))
        };
        within.into_iter().filter_map(part).collect()
    }

    fn heap(&self, s: &mut State, address: u64, bytes: u64) {
        let heap = self.tool.heap(address, bytes);
        s.heaps.insert(address, (bytes, heap));
        let Some(heap) = heap else { return };
        let end = address + bytes;
        for (a, n) in over(&s.blocks, |n| n, address, end) {
            let (start, stop) = (a.max(address), (a + n).min(end));
            self.tool.region(heap, start, stop - start);
        }
    }
}

impl Checker for Heaps {
    fn came(&self, address: u64, bytes: u64) {
        self.heap(&mut self.state(), address, bytes);
    }

    /// Heaps cannot shrink: what is left of one becomes a new one.
    fn went(&self, address: u64, bytes: u64) {
        let (mut s, end) = (self.state(), address + bytes);
        for (a, (n, heap)) in over(&s.heaps, |h| h.0, address, end) {
            s.heaps.remove(&a);
            if let Some(heap) = heap {
                self.tool.end_heap(heap);
            }
            if a < address {
                self.heap(&mut s, a, address - a);
            }
            if a + n > end {
                self.heap(&mut s, end, a + n - end);
            }
        }
    }

    fn close(&self, _: u64, _: u64) {}

    fn open(&self, _: u64, _: u64) {}

    fn give(&self, address: u64, bytes: u64) {
        let mut s = self.state();
        s.blocks.insert(address, bytes);
        for (heap, at, n) in Self::parts(&s, address, address + bytes) {
            self.tool.region(heap, at, n);
        }
    }

    fn take(&self, address: u64, bytes: u64) {
        let mut s = self.state();
        s.blocks.remove(&address);
        for (_, at, _) in Self::parts(&s, address, address + bytes) {
            self.tool.end_region(at);
        }
    }

    fn forget(&self, address: u64, bytes: u64) {
        self.take(address, bytes);
    }

    fn keep(&self, address: u64, bytes: u64) {
        self.give(address, bytes);
    }

    fn unkeep(&self, address: u64, bytes: u64) {
        self.take(address, bytes);
    }
}
