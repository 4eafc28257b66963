//! A straightforward cache of device memory, of the kind that frameworks have: one mutex, ordered sets of free
//! blocks by stream and size, best fit, splitting, merging with the neighbours of the same segment, a table of live
//! blocks by address, counters with peaks; segments of 2 MiB for small requests, of 20 MiB for middle ones, of
//! their own size for large ones; and when the device is full, whole free segments go back to it.
//!
//! The device is a number: segments of 1 MiB and more take whole 2 MiB pages, and nothing is ever touched.

use super::{Account, Subject};
use std::collections::{BTreeSet, HashMap};
use std::ffi::c_void;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

const MIN: u64 = 512;
const SMALL: u64 = 1 << 20;
const SMALL_SEGMENT: u64 = 2 << 20;
const MIDDLE: u64 = 10 << 20;
const MIDDLE_SEGMENT: u64 = 20 << 20;
const PAGE: u64 = 2 << 20;
const NONE: u32 = u32::MAX;

/// Addresses are their own hash, spread by a multiplication: the table shall not be what is measured.
#[derive(Default)]
struct Spread(u64);
impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(u64::from(b));
        }
    }
    fn write_u64(&mut self, v: u64) {
        self.0 = (self.0 ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

#[derive(Clone, Copy, Default)]
struct Block {
    addr: u64,
    size: u64,
    requested: u64,
    stream: u32,
    prev: u32, // in the segment; `NONE`: first
    next: u32,
    free: bool,
    small: bool,
}

/// Current, peak, sum.
#[derive(Clone, Copy, Default)]
struct Count {
    now: u64,
    peak: u64,
    total: u64,
}
impl Count {
    fn add(&mut self, n: u64) {
        self.now += n;
        self.total += n;
        self.peak = self.peak.max(self.now);
    }
    fn sub(&mut self, n: u64) {
        self.now -= n;
    }
}

struct Cache {
    blocks: Vec<Block>,
    spare: Vec<u32>,
    free: [BTreeSet<(u32, u64, u64, u32)>; 2], // (stream, size, address, block), of large and of small segments
    live: HashMap<u64, u32, BuildHasherDefault<Spread>>,
    capacity: u64,
    top: u64, // addresses are never used twice
    calls: u64,
    reserved: Count,
    allocated: Count,
    requested: Count,
    count: Count,
}

static CACHE: Mutex<Option<Cache>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Cache>> {
    CACHE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn open(capacity: u64) -> Subject {
    *lock() = Some(Cache::new(capacity));
    Subject { alloc, free, account }
}

extern "C" fn alloc(bytes: usize, stream: u32, out: *mut *mut c_void) -> i32 {
    let mut guard = lock();
    let Some(cache) = guard.as_mut() else { return 2 };
    let Some(addr) = cache.alloc(bytes as u64, stream) else { return 1 };
    // SAFETY: the caller's own pointer.
    unsafe { out.write(std::ptr::without_provenance_mut(addr as usize)) };
    0
}

extern "C" fn free(ptr: *mut c_void, _bytes: usize, _stream: u32) -> i32 {
    let mut guard = lock();
    let Some(cache) = guard.as_mut() else { return 2 };
    i32::from(!cache.free(ptr.addr() as u64))
}

fn account() -> Account {
    let guard = lock();
    let Some(c) = guard.as_ref() else { return Account::default() };
    Account { reserved: c.reserved.now, peak_reserved: c.reserved.peak, driver_calls: c.calls }
}

impl Cache {
    fn new(capacity: u64) -> Cache {
        Cache {
            blocks: Vec::new(),
            spare: Vec::new(),
            free: Default::default(),
            live: HashMap::default(),
            capacity,
            top: 1 << 40,
            calls: 0,
            reserved: Count::default(),
            allocated: Count::default(),
            requested: Count::default(),
            count: Count::default(),
        }
    }

    fn id(&mut self, b: Block) -> u32 {
        match self.spare.pop() {
            Some(id) => {
                self.blocks[id as usize] = b;
                id
            }
            None => {
                self.blocks.push(b);
                (self.blocks.len() - 1) as u32
            }
        }
    }

    fn key(&self, id: u32) -> (u32, u64, u64, u32) {
        let b = &self.blocks[id as usize];
        (b.stream, b.size, b.addr, id)
    }

    fn segment(&mut self, size: u64, small: bool, stream: u32) -> Option<u32> {
        let bytes = match size {
            _ if small => SMALL_SEGMENT,
            s if s < MIDDLE => MIDDLE_SEGMENT,
            s => s.next_multiple_of(PAGE),
        };
        self.calls += 1;
        if self.reserved.now + bytes > self.capacity {
            self.give_back();
            self.calls += 1;
            if self.reserved.now + bytes > self.capacity {
                return None;
            }
        }
        self.reserved.add(bytes);
        let addr = self.top;
        self.top += bytes;
        Some(self.id(Block {
            addr,
            size: bytes,
            requested: 0,
            stream,
            prev: NONE,
            next: NONE,
            free: true,
            small,
        }))
    }

    /// Whole free segments go back to the device.
    fn give_back(&mut self) {
        for set in 0..2 {
            let whole: Vec<_> = self.free[set]
                .iter()
                .copied()
                .filter(|k| {
                    let b = &self.blocks[k.3 as usize];
                    b.prev == NONE && b.next == NONE
                })
                .collect();
            for k in whole {
                self.free[set].remove(&k);
                self.reserved.sub(k.1);
                self.spare.push(k.3);
                self.calls += 1;
            }
        }
    }

    fn alloc(&mut self, bytes: u64, stream: u32) -> Option<u64> {
        let size = bytes.max(1).next_multiple_of(MIN);
        let small = size <= SMALL;
        let set = usize::from(small);
        let found = self.free[set].range((stream, size, 0, 0)..).next().copied().filter(|k| k.0 == stream);
        let id = match found {
            Some(k) => {
                self.free[set].remove(&k);
                k.3
            }
            None => self.segment(size, small, stream)?,
        };
        let b = self.blocks[id as usize];
        let rest = b.size - size;
        if if small { rest >= MIN } else { rest > SMALL } {
            let next = b.next;
            let tail = self.id(Block { addr: b.addr + size, size: rest, prev: id, next, free: true, ..b });
            if next != NONE {
                self.blocks[next as usize].prev = tail;
            }
            let b = &mut self.blocks[id as usize];
            b.size = size;
            b.next = tail;
            let k = self.key(tail);
            self.free[set].insert(k);
        }
        let b = &mut self.blocks[id as usize];
        b.free = false;
        b.requested = bytes;
        let (addr, size) = (b.addr, b.size);
        self.live.insert(addr, id);
        self.allocated.add(size);
        self.requested.add(bytes);
        self.count.add(1);
        Some(addr)
    }

    fn free(&mut self, addr: u64) -> bool {
        let Some(mut id) = self.live.remove(&addr) else { return false };
        let b = self.blocks[id as usize];
        self.allocated.sub(b.size);
        self.requested.sub(b.requested);
        self.count.sub(1);
        let set = usize::from(b.small);
        self.blocks[id as usize].free = true;
        if b.next != NONE && self.blocks[b.next as usize].free {
            let k = self.key(b.next);
            self.free[set].remove(&k);
            self.join(id, b.next);
        }
        if b.prev != NONE && self.blocks[b.prev as usize].free {
            let k = self.key(b.prev);
            self.free[set].remove(&k);
            self.join(b.prev, id);
            id = b.prev;
        }
        let k = self.key(id);
        self.free[set].insert(k);
        true
    }

    /// The block `right` becomes a part of `left`, its neighbour.
    fn join(&mut self, left: u32, right: u32) {
        let r = self.blocks[right as usize];
        let l = &mut self.blocks[left as usize];
        l.size += r.size;
        l.next = r.next;
        if r.next != NONE {
            self.blocks[r.next as usize].prev = left;
        }
        self.spare.push(right);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Random requests against a list of what must be live; in the end nothing is lost.
    pub(in crate::subject) fn life() {
        let mut c = Cache::new(256 << 20);
        let mut r = crate::tools::Rng::new(7);
        let mut live: Vec<(u64, u64)> = Vec::new();
        let mut refused = 0;
        for _ in 0..20_000 {
            if live.len() > 100 || (r.below(2) == 0 && !live.is_empty()) {
                let (addr, _) = live.swap_remove(r.below(live.len() as u64) as usize);
                assert!(c.free(addr));
                assert!(!c.free(addr), "freed twice");
            } else {
                let bytes = r.log_uniform(1.0, f64::from(16 << 20));
                let Some(addr) = c.alloc(bytes, r.below(2) as u32) else {
                    refused += 1;
                    continue;
                };
                assert!(live.iter().all(|&(a, n)| addr + bytes <= a || a + n <= addr), "overlap");
                live.push((addr, bytes));
            }
            assert_eq!(c.count.now, live.len() as u64);
        }
        assert!(refused < 10_000);
        live.iter().for_each(|&(a, _)| assert!(c.free(a)));
        c.give_back();
        assert_eq!(
            (c.reserved.now, c.allocated.now, c.requested.now),
            (0, 0, 0),
            "everything merged and went back"
        );
        assert!(c.reserved.peak <= c.capacity && c.count.total > 1000);
    }
}
