//! The memory of one device in the words of NVTX: each range that has memory is a *heap*, and a block is a *region* of the
//! heap that it lies in. A block that lies in several heaps is a region in each.

use super::checker::Checker;
use crate::base::ordered::Map;
use crate::runtime::nvtx::Memory;

/// See the file's head.
pub(super) struct Heaps {
    tool: Memory,
    /// By address: bytes, and the tool's number.
    heaps: Map<u64, (u64, Option<usize>)>,
    blocks: Map<u64, u64>,
}

/// The entries of `map` that overlap a range. `bytes` gives the length of an entry.
fn over<T: Copy>(map: &Map<u64, T>, bytes: fn(T) -> u64, from: u64, to: u64) -> Vec<(u64, T)> {
    let before = map.range(..from).next_back();
    let all = before.into_iter().chain(map.range(from..to));
    all.map(|(&a, &t)| (a, t)).filter(|&(a, t)| a + bytes(t) > from).collect()
}

impl Heaps {
    pub(super) fn new(tool: Memory) -> Heaps {
        Heaps { tool, heaps: Map::new(), blocks: Map::new() }
    }

    /// The parts of `from .. to` that lie in heaps: the heap, and the part's address and bytes.
    fn parts(&self, from: u64, to: u64) -> Vec<(usize, u64, u64)> {
        let within = over(&self.heaps, |h| h.0, from, to);
        let part = |(a, (n, heap)): (u64, (u64, Option<usize>))| {
            let (start, end) = (a.max(from), (a + n).min(to));
            Some((heap?, start, end - start))
        };
        within.into_iter().filter_map(part).collect()
    }

    fn heap(&mut self, address: u64, bytes: u64) {
        let heap = self.tool.heap(address, bytes);
        self.heaps.insert(address, (bytes, heap));
        let Some(heap) = heap else { return };
        let end = address + bytes;
        for (a, n) in over(&self.blocks, |n| n, address, end) {
            let (start, stop) = (a.max(address), (a + n).min(end));
            self.tool.region(heap, start, stop - start);
        }
    }
}

impl Checker for Heaps {
    fn came(&mut self, address: u64, bytes: u64) {
        self.heap(address, bytes);
    }

    /// A heap cannot shrink: it ends, and the rest of its range becomes a new heap.
    fn went(&mut self, address: u64, bytes: u64) {
        let end = address + bytes;
        for (a, (n, heap)) in over(&self.heaps, |h| h.0, address, end) {
            self.heaps.remove(&a);
            if let Some(heap) = heap {
                self.tool.end_heap(heap);
            }
            if a < address {
                self.heap(a, address - a);
            }
            if a + n > end {
                self.heap(end, a + n - end);
            }
        }
    }

    fn close(&mut self, _: u64, _: u64) {}

    fn open(&mut self, _: u64, _: u64) {}

    fn give(&mut self, address: u64, bytes: u64) {
        self.blocks.insert(address, bytes);
        for (heap, at, n) in self.parts(address, address + bytes) {
            self.tool.region(heap, at, n);
        }
    }

    fn take(&mut self, address: u64, bytes: u64) {
        self.blocks.remove(&address);
        for (_, at, _) in self.parts(address, address + bytes) {
            self.tool.end_region(at);
        }
    }

    fn forget(&mut self, address: u64, bytes: u64) {
        self.take(address, bytes);
    }

    fn keep(&mut self, address: u64, bytes: u64) {
        self.give(address, bytes);
    }

    fn unkeep(&mut self, address: u64, bytes: u64) {
        self.take(address, bytes);
    }
}
