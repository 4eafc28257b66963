//! Routing by thread: while a *scope* is open, requests of its thread to the default pool of the device are served from
//! the scope's pool.
//!
//! The scopes of one thread form a stack; the innermost of a device counts. The hot path does not know them: the handle
//! cache does not find a default pool while any scope of its device is open, so such requests come here. A scope counts
//! as a user of its pool: a pool does not end while a thread is in a scope of it.

use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::base::ordered::Map;
use crate::base::sync::system::{Mutex, lock};
use crate::core::PoolId;
use crate::fail;
use crate::locks;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The count of a pool that is being destroyed.
const ENDING: u64 = u64::MAX;

/// The open scopes of one device's memory.
#[derive(Default)]
pub(crate) struct Scopes {
    open: AtomicU64,
    pools: Mutex<Map<PoolId, u64>, locks::Scopes>, // open scopes by pool
}

struct Scope {
    of: Arc<Scopes>,
    pool: PoolId,
}

impl Drop for Scope {
    fn drop(&mut self) {
        let mut pools = lock(&self.of.pools);
        if let Some(n) = pools.get_mut(&self.pool) {
            *n -= 1;
            if *n == 0 {
                pools.remove(&self.pool);
            }
        }
        // SeqCst with `any`; changed under the lock, so that the count never lags behind the map.
        self.of.open.fetch_sub(1, SeqCst);
    }
}

thread_local! {
    /// The scopes of this thread, innermost last. Those that a thread leaves open end with it.
    static STACK: RefCell<Vec<Scope>> = const { RefCell::new(Vec::new()) };
    /// Whether this thread has ever had one. No destructor: a thread that has not needs none of the host's memory to know.
    static USED: Cell<bool> = const { Cell::new(false) };
}

fn at_thread_exit<T>() -> Result<T> {
    Err(Error::new(Code::NotPermitted, "the thread is ending: it can open no scope"))
}

impl Scopes {
    /// Whether any thread has a scope open on this device.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.open.load(SeqCst) != 0
    }

    /// The pool that serves this thread's requests to the default pool.
    #[cold]
    pub(crate) fn route(self: &Arc<Self>) -> PoolId {
        let innermost = |stack: &RefCell<Vec<Scope>>| {
            let stack = stack.borrow();
            stack.iter().rev().find(|s| Arc::ptr_eq(&s.of, self)).map(|s| s.pool)
        };
        let used = USED.get().then(|| STACK.try_with(innermost).ok().flatten());
        used.flatten().unwrap_or(PoolId::DEFAULT)
    }

    /// Opens a scope of `pool` for this thread; `exists` checks that the pool exists, and calls no device.
    pub(crate) fn begin(self: &Arc<Self>, pool: PoolId, exists: impl FnOnce() -> Result<()>) -> Result<()> {
        let push = |stack: &RefCell<Vec<Scope>>| {
            {
                let mut pools = lock(&self.pools);
                exists()?;
                if stack.borrow_mut().try_reserve(1).is_err() || !pools.make_room() {
                    return Err(no_host_memory());
                }
                let n = pools.entry(pool).or_default();
                if *n == ENDING {
                    return Err(Error::new(Code::InvalidArgument, "the pool is being destroyed"));
                }
                *n += 1;
                self.open.fetch_add(1, SeqCst);
            }
            stack.borrow_mut().push(Scope { of: self.clone(), pool });
            Ok(())
        };
        USED.set(true);
        STACK.try_with(push).unwrap_or_else(|_| at_thread_exit())
    }

    /// Ends this thread's innermost scope of the device, which must be one of `pool`.
    pub(crate) fn end(self: &Arc<Self>, pool: PoolId) -> Result<()> {
        let pop = |stack: &RefCell<Vec<Scope>>| {
            let mut stack = stack.borrow_mut();
            let Some(at) = stack.iter().rposition(|s| Arc::ptr_eq(&s.of, self)) else {
                fail!(Code::NotPermitted, "this thread has no scope open on the pool's device");
            };
            if stack[at].pool != pool {
                fail!(Code::NotPermitted, "the innermost scope of this thread is one of another pool");
            }
            let scope = stack.remove(at);
            drop(stack);
            drop(scope);
            Ok(())
        };
        STACK.try_with(pop).unwrap_or_else(|_| at_thread_exit())
    }

    /// Runs `destroy` unless a thread is in a scope of the pool; none can be opened meanwhile.
    pub(crate) fn unless_used(&self, pool: PoolId, destroy: impl FnOnce() -> Result<()>) -> Result<()> {
        match lock(&self.pools).entry(pool).or_default() {
            n @ 0 => *n = ENDING,
            &mut ENDING => fail!(Code::Busy, "another thread is destroying the pool"),
            n => fail!(Code::Busy, "open scopes of the pool: {n}"),
        }
        let done = destroy();
        lock(&self.pools).remove(&pool);
        done
    }
}
