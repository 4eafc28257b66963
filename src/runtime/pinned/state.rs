//! What a device has of host and of unified memory, each under its lock.

use super::cache::State;
use super::left::Left;
use super::ranges::Ranges;
use super::tags::TagSums;
use crate::base::error::Result;
use crate::base::sync::system::{Condvar, Mutex, lock};
use crate::locks;
use crate::runtime::options::{Key, Options, Value};
use crate::runtime::watch::observe::Observers;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Live unified memory.
#[derive(Default)]
pub(crate) struct UnifiedState {
    /// Each range with its tag.
    pub(crate) ranges: Ranges<u16>,
    pub(crate) tags: TagSums,
    /// Neither live nor the device's.
    pub(crate) left: Left,
}

impl UnifiedState {
    /// Makes room for one more range with that tag. `false`: the host has no memory for it.
    pub(crate) fn make_room(&mut self, tag: u16) -> bool {
        self.tags.make_room(tag) && self.ranges.make_room()
    }
}

/// The unified memory of one device.
#[derive(Default)]
pub(crate) struct Table(pub(crate) Mutex<UnifiedState>);

impl Table {
    /// `None` when no live range holds `addr`; else whether `addr .. addr + bytes` lies in it.
    pub(crate) fn check(&self, addr: u64, bytes: u64) -> Option<Result<()>> {
        lock(&self.0).ranges.check(addr, bytes)
    }

    /// Live ranges.
    pub(crate) fn live(&self) -> usize {
        lock(&self.0).ranges.len()
    }
}

/// The pinned memory of one device.
#[derive(Default)]
pub(crate) struct HostCache {
    pub(crate) state: Mutex<State, locks::Pinned>,
    /// A thread has nothing in hand any more that it had.
    pub(crate) put_down: Condvar,
    /// Options, each read by itself.
    pub(crate) most_cached: AtomicU64, // [B]
    pub(crate) exact_above: AtomicU64, // [B]
    pub(crate) register: AtomicBool,
    pub(crate) threads: AtomicU64,
    pub(crate) most: AtomicU64, // [B]
    pub(crate) node: AtomicU64, // a NUMA node; `u64::MAX`: the device's own
}

impl HostCache {
    /// Takes over what the options say; acts from the next call on.
    pub(crate) fn configure(&self, o: &Options) {
        self.most_cached.store(o.bytes(Key::PinnedMaxCachedSizeMb).unwrap_or(u64::MAX), Relaxed);
        self.exact_above.store(o.bytes(Key::PinnedMaxRoundThresholdMb).unwrap_or(u64::MAX), Relaxed);
        self.register.store(o.on(Key::PinnedUseCudaHostRegister), Relaxed);
        let threads = match o.get(Key::PinnedNumRegisterThreads) {
            Value::Count(n) => u64::from(n),
            _ => 1,
        };
        self.threads.store(threads, Relaxed);
        self.most.store(o.bytes(Key::PinnedLimitMb).unwrap_or(u64::MAX), Relaxed);
        let node = match o.get(Key::PinnedNumaNode) {
            Value::Node(Some(n)) => u64::from(n),
            _ => u64::MAX,
        };
        self.node.store(node, Relaxed);
    }

    /// Who is told of what happens, from now on.
    pub(crate) fn tell_to(&self, observers: Arc<Observers>) {
        lock(&self.state).observers = observers;
    }

    /// Live blocks.
    pub(crate) fn live(&self) -> usize {
        lock(&self.state).live.len()
    }
}
