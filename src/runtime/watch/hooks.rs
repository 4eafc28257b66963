//! Hooks: callbacks of the program that are told of each allocation and free of a device as they happen.
//!
//! An observer (`observe.rs`) may be told with locks held, and so calls nothing; a hook is the program's own code, and is
//! called with none. Therefore no first step serves a request or a free of a device that has hooks: its pools are in no
//! cache of look-ups, and every call comes by `memory/hooked.rs`. A device without hooks does not know of them.
//!
//! What a hook itself allocates and frees is not told, on any device: the thread is marked meanwhile.

use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::{Condvar, Mutex, lock};
use crate::core::{BlockInfo, PoolId};
use crate::device::StreamId;
use crate::fail;
use crate::runtime::entry::reentry::{CallOut, call_foreign, drop_foreign, waits_for_callbacks};
use crate::runtime::watch::numbers;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What happens to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum BlockEventKind {
    /// It was allocated; its caller does not have it yet.
    Alloc = 1,
    /// It is about to be freed: nobody else can have it yet.
    Free = 2,
    /// That free has failed: the block lives on.
    FreeFailed = 3,
}

/// One such event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEvent {
    /// What happens.
    pub kind: BlockEventKind,
    /// Where the block starts.
    pub address: u64,
    /// \[B\] as asked for.
    pub requested: u64,
    /// \[B\] as charged.
    pub charged: u64,
    /// The stream that orders it; `None`: a block without one.
    pub stream: Option<StreamId>,
    /// Its pool.
    pub pool: PoolId,
}

impl BlockEvent {
    pub(crate) fn of(kind: BlockEventKind, b: &BlockInfo) -> BlockEvent {
        let (address, requested, charged) = (b.base, b.requested, b.size);
        BlockEvent { kind, address, requested, charged, stream: b.stream, pool: b.pool }
    }
}

/// Called with what happens.
pub(crate) type Hook = dyn Fn(&BlockEvent) + Send + Sync;

thread_local! {
    /// Whether this thread runs a hook. No destructor, so it works at thread exit too.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

struct Added {
    id: u64,
    hook: Arc<Hook>,
    /// Whether the hook owns what it uses. Then its removal need not wait for the threads that run it: the last of them
    /// drops it.
    owned: bool,
}

#[derive(Default)]
struct State {
    /// In the order of their numbers, which is that of their registration.
    hooks: Vec<Added>,
    closed: bool,
}

/// The hooks of one device.
#[derive(Default)]
pub(crate) struct Hooks {
    any: AtomicBool,
    state: Mutex<State>,
    returned: Condvar,
}

impl Hooks {
    /// Whether there are any. Relaxed: a call that runs while a hook is added or removed may not be reported.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Adds a hook and returns its number, never 0 and never reused.
    pub(crate) fn add(&self, hook: Arc<Hook>, owned: bool) -> Result<u64> {
        let mut s = lock(&self.state);
        if s.closed {
            return Err(Error::new(Code::NotInitialized, "the device was finalised"));
        }
        let id = numbers::next();
        s.hooks.push(Added { id, hook, owned });
        self.any.store(true, Relaxed);
        Ok(id)
    }

    /// Removes a hook, and returns whether others are left. The hook is not called any more. This waits for the threads
    /// that run it, except within a callback that must not wait ([`waits_for_callbacks`]). In a stream callback a hook that
    /// is not `owned` stays, and the call returns `NotPermitted`.
    pub(crate) fn remove(&self, id: u64) -> Result<bool> {
        let mut s = lock(&self.state);
        let Some(at) = s.hooks.iter().position(|h| h.id == id) else {
            fail!(Code::InvalidArgument, "there is no hook {id}, or it was removed");
        };
        let waits = match waits_for_callbacks() {
            Err(_) if s.hooks[at].owned => false,
            waits => waits?,
        };
        let gone = s.hooks.remove(at);
        let left = !s.hooks.is_empty();
        self.any.store(left, Relaxed);
        // Each thread that runs it has a share of it.
        while waits && Arc::strong_count(&gone.hook) > 1 {
            s = self.returned.wait(s);
        }
        drop(s);
        drop_foreign(gone); // within a hook it is a part of that one
        Ok(left)
    }

    /// Starts no more hooks. Does not wait for those that are running: one of them may have led here.
    pub(crate) fn close(&self) {
        let gone = {
            let mut s = lock(&self.state);
            s.closed = true;
            self.any.store(false, Relaxed);
            std::mem::take(&mut s.hooks)
        };
        gone.into_iter().for_each(drop_foreign);
    }

    /// Calls all hooks, the oldest first, with no lock held: those that are there when it is their turn, since one may
    /// remove another. A panic ends that hook's call only.
    #[cold]
    pub(crate) fn tell(&self, event: &BlockEvent) {
        if INSIDE.get() {
            return;
        }
        INSIDE.set(true);
        let inside = CallOut::new();
        let (mut at, mut end) = (0, u64::MAX);
        loop {
            let hook = {
                let s = lock(&self.state);
                // One that is added meanwhile gets its turn at the next event.
                end = end.min(s.hooks.last().map_or(0, |h| h.id));
                let Some(due) = s.hooks.iter().find(|h| h.id > at && h.id <= end) else { break };
                at = due.id;
                due.hook.clone()
            };
            call_foreign(|| hook(event));
            ended(hook);
            // Under the lock `remove` has looked before, and waits, or looks after this.
            drop(lock(&self.state));
            self.returned.notify_all();
        }
        drop(inside);
        INSIDE.set(false);
    }
}

/// Drops what may be the last reference to a hook. Its destructor is the program's code: hooks are told what that frees.
fn ended<T>(hook: T) {
    let inside = INSIDE.replace(false);
    drop_foreign(hook);
    INSIDE.set(inside);
}
