//! Out-of-memory callbacks, which are called last before a request fails. A framework frees its own caches in them.
//!
//! They run on the request's thread without any lock, so they may allocate and free. A request that fails inside one
//! calls none: the thread is marked meanwhile.

use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::{Condvar, Mutex, lock};
use crate::base::sync::thread_token;
use crate::core::{LiveAndFreed, OomReport, OomStep, OomTried, PoolId};
use crate::fail;
use crate::runtime::entry::reentry::{CallOut, call_foreign, drop_foreign, waits_for_callbacks};
use crate::runtime::nvtx;
use crate::runtime::oom::explain::with_report;
use crate::runtime::watch::numbers;
use std::cell::Cell;
use std::sync::Arc;

/// Called with the report of why the request failed; true when it freed something.
pub(crate) type OomHandler = dyn Fn(&OomReport) -> bool + Send + Sync;

/// How often the callbacks are called for one request: one that says it frees something while other threads do must not hold
/// a request for ever.
const MOST_ROUNDS: usize = 1000;
/// How often in a row although no less was live afterwards. Other threads may have allocated what was freed; or a callback
/// frees only what it has allocated itself.
const MOST_IN_VAIN: u32 = 8;
/// As many threads may be in callbacks at once before the host's memory is needed for more.
const ROOM: usize = 16;

thread_local! {
    /// Whether this thread runs such a callback. No destructor, so it works at thread exit too.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

#[derive(Clone)]
struct Callback {
    id: u64,
    pool: Option<PoolId>, // None: of any pool of the device
    handler: Arc<OomHandler>,
}

#[derive(Default)]
struct State {
    /// In the order of their numbers, which is that of their registration.
    callbacks: Vec<Callback>,
    /// The number of each callback that is running, and the thread that is in it.
    running: Vec<(u64, u64)>,
    last: u64, // the newest number
    closed: bool,
}

impl State {
    /// Whether a thread is in this callback.
    fn is_running(&self, id: u64) -> bool {
        self.running.iter().any(|r| r.0 == id)
    }
}

fn gone(id: u64) -> Result<()> {
    fail!(Code::InvalidArgument, "there is no out-of-memory callback {id}, or it was removed")
}

/// The callbacks of one device.
#[derive(Default)]
pub(crate) struct Rescue {
    state: Mutex<State>,
    returned: Condvar,
}

impl Rescue {
    /// Adds a callback for requests to one pool, or to any, and returns its number, never 0 and never reused.
    pub(crate) fn add(&self, pool: Option<PoolId>, handler: Arc<OomHandler>) -> Result<u64> {
        let mut s = lock(&self.state);
        if s.closed {
            return Err(Error::new(Code::NotInitialized, "the device was finalised"));
        }
        s.running.reserve(ROOM);
        let id = numbers::next();
        s.last = id;
        s.callbacks.push(Callback { id, pool, handler });
        Ok(id)
    }

    /// Removes the callbacks of a pool that has ended. Does not wait for those that are running.
    pub(crate) fn end_pool(&self, pool: PoolId) {
        let gone: Vec<_> = lock(&self.state).callbacks.extract_if(.., |c| c.pool == Some(pool)).collect();
        gone.into_iter().for_each(|c| drop_foreign(c.handler));
    }

    /// Removes a callback. It is not called any more, and when this returns no thread is in it, unless this is called
    /// from within a callback or a hook: two of them could wait for each other. `NotPermitted` there if another thread is in
    /// it, and in a stream callback; it stays then. `InvalidArgument` for one that has ended with its pool, with the same
    /// promise.
    pub(crate) fn remove(&self, id: u64) -> Result<()> {
        let mut s = lock(&self.state);
        let at = s.callbacks.iter().position(|c| c.id == id);
        if at.is_none() && !s.is_running(id) {
            return gone(id);
        }
        let waits = waits_for_callbacks()?;
        let me = thread_token();
        if !waits && s.running.iter().any(|r| r.0 == id && r.1 != me) {
            fail!(Code::NotPermitted, "another thread is in the callback, and cannot be waited for in one");
        }
        let removed = at.map(|at| s.callbacks.remove(at));
        while waits && s.is_running(id) {
            s = self.returned.wait(s);
        }
        drop(s);
        match removed {
            Some(callback) => {
                drop_foreign(callback.handler);
                Ok(())
            }
            None => gone(id),
        }
    }

    /// Starts no more callbacks. Does not wait for those that are running: one of them may have led here.
    pub(crate) fn close(&self) {
        let gone = {
            let mut s = lock(&self.state);
            s.closed = true;
            std::mem::take(&mut s.callbacks)
        };
        gone.into_iter().for_each(|c| drop_foreign(c.handler));
    }

    /// Handles a request that ended with `error`: if a callback could free the missing memory, calls the callbacks, and
    /// makes another `attempt` if one says that it has freed something. That may have been too little, or another thread
    /// may have got it; so it goes on while blocks are freed in fact. The result is added to the report that the error
    /// carries. `live` returns how much is live and was freed so far.
    #[cold]
    #[inline(never)]
    pub(crate) fn retry(
        &self,
        error: Error,
        live: impl Fn() -> LiveAndFreed,
        mut attempt: impl FnMut() -> Result<u64>,
    ) -> Result<u64> {
        if INSIDE.with(Cell::get) || self.is_empty() {
            return Err(error);
        }
        let mut all = OomTried { step: OomStep::Callbacks, tries: 0, helped: 0, bytes: 0 };
        let mut end = error;
        let mut in_vain = 0;
        for _ in 0..MOST_ROUNDS {
            let curable = |r: &Arc<OomReport>| !r.reason.is_hopeless();
            let Some(report) = end.oom_report().filter(curable) else { break };
            let _range = nvtx::range(c"out-of-memory retry", report.requested);
            let before = live();
            let called = self.call_all(&report);
            drop(report); // so that the error can be used again
            let after = live();
            all.tries += called.tries;
            all.helped += called.helped;
            all.bytes += before.live_bytes.saturating_sub(after.live_bytes);
            if called.helped == 0 {
                break;
            }
            match attempt() {
                Err(e) => end = e,
                got => return got,
            }
            in_vain = if after.live_bytes < before.live_bytes { 0 } else { in_vain + 1 };
            if before.freed_blocks == after.freed_blocks || in_vain == MOST_IN_VAIN {
                break; // it was said only
            }
        }
        Err(if all.tries > 0 { with_report(end, |r| _ = r.tried.push(all)) } else { end })
    }

    fn is_empty(&self) -> bool {
        lock(&self.state).callbacks.is_empty()
    }

    /// Calls each callback that is registered now for the pool of the report, the oldest first. Returns how many there
    /// were, and how many freed something.
    fn call_all(&self, report: &OomReport) -> OomTried {
        // A callback that is added meanwhile gets its turn at the next request.
        let end = lock(&self.state).last;
        let mut at = 0;
        let mut called = OomTried { step: OomStep::Callbacks, tries: 0, helped: 0, bytes: 0 };
        loop {
            let Callback { id, handler, .. } = {
                let mut s = lock(&self.state);
                let concerned = |c: &&Callback| c.pool.is_none_or(|p| p == report.pool);
                let next = s.callbacks.iter().filter(concerned).find(|c| c.id > at && c.id <= end).cloned();
                // Where the host has no memory for one more thread, none is called.
                let Some(next) = next.filter(|_| s.running.try_reserve(1).is_ok()) else { return called };
                s.running.push((next.id, thread_token()));
                next
            };
            let inside = CallOut::new();
            INSIDE.with(|i| i.set(true));
            // A panicking callback has freed nothing, and must not leave the count wrong.
            let freed = call_foreign(|| handler(report)).unwrap_or(false);
            called.tries += 1;
            called.helped += u32::from(freed);
            // Dropped before it counts as returned, because `remove` guarantees that nothing of the callback is left.
            drop_foreign(handler);
            INSIDE.with(|i| i.set(false));
            drop(inside);
            let mut s = lock(&self.state);
            if let Some(i) = s.running.iter().position(|&r| r == (id, thread_token())) {
                s.running.swap_remove(i);
            }
            drop(s);
            self.returned.notify_all();
            at = id;
        }
    }
}
