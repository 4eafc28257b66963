//! What becomes of a request that found no memory: its report, the callbacks that may free some, and the count.

use super::pooled::config_of;
use super::requests::Request;
use super::state::{How, Memory};
use crate::base::error::{Code, Error, Result};
use crate::core::{LiveAndFreed, OomReport, Pond, PoolId};
use crate::device::Device;
use crate::fail;
use crate::runtime::entry::tags;
use crate::runtime::oom::explain::ask_device;
use crate::runtime::oom::rescue::OomHandler;
use std::sync::Arc;

/// The out-of-memory callbacks of one device. Get it with [`Memory::oom_callbacks`].
#[derive(Clone, Copy)]
pub struct OomCallbacks<'a>(&'a Memory);

/// Whether the device's sizes can be pooled. It is not called.
fn could_pool(device: &dyn Device) -> bool {
    config_of(device, false).is_ok_and(|c| Pond::span(&c).is_ok())
}

impl Request {
    /// The error of a request, with a report where it is a lack of memory.
    #[cold]
    #[inline(never)]
    pub(super) fn explained(self, memory: &Memory, e: Error) -> Error {
        let asked = self.asked;
        let watched = memory.watchers().any();
        let complete = |r: &mut OomReport| {
            r.watched = watched;
            memory.names.complete(r);
        };
        match &memory.how {
            How::Pooled(p) => asked.explained(e, complete, || {
                let mut r = p.pond.explain(asked.pool, asked.stream, asked.bytes);
                ask_device(&mut r, &*p.device, &p.supply, p.pond.order());
                r
            }),
            How::Unpooled(u) => asked.explained(e, complete, || {
                let mut r = u.explain(asked.pool, asked.stream, asked.bytes);
                ask_device(&mut r, u.device(), u.supply(), u.order());
                r.could_pool = could_pool(u.device());
                r
            }),
        }
    }
}

impl How {
    /// How much is live, and how many blocks were ever freed. Does not query the device.
    pub(super) fn live_and_freed(&self) -> LiveAndFreed {
        match self {
            How::Pooled(p) => p.pond.statistics().live_and_freed(),
            How::Unpooled(u) => u.live_and_freed(),
        }
    }

    /// Gives a block that has no tag yet the one that the thread has in force.
    #[cold]
    pub(super) fn tag(&self, addr: u64) {
        match (tags::current(), self) {
            (0, _) => {}
            _ if addr == 0 => {}
            (tag, How::Pooled(p)) => _ = p.places.offset(addr).map(|offset| p.pond.tags().give(offset, tag)),
            (tag, How::Unpooled(u)) => u.tag(addr, tag),
        }
    }
}

impl Memory {
    /// Callbacks for requests that find no memory.
    pub fn oom_callbacks(&self) -> OomCallbacks<'_> {
        OomCallbacks(self)
    }
}

impl OomCallbacks<'_> {
    /// From now on a request that finds no memory calls `callback` with its bytes, on its own thread and
    /// with no lock held, after everything else was tried. When a callback returns true, for having freed
    /// something, the request is tried again; and if it still finds nothing, for want of more or because another
    /// thread was faster, they are called again, as long as one returns true and memory of the device was freed
    /// meanwhile, a thousand times at most. Callbacks are called oldest first; they may allocate and free, and a
    /// request that fails inside one calls none. A panic counts as false. Gives the number to remove it with.
    /// Callbacks end with the device.
    pub fn add(&self, callback: impl Fn(u64) -> bool + Send + Sync + 'static) -> Result<u64> {
        self.add_handler(move |report| callback(report.requested))
    }

    /// The same with the report of why there is no memory, of which pool and what else was tried. Neither is called for
    /// a request that no callback can help: one that is larger than the device, or than the limit of its pool.
    pub fn add_handler(&self, handler: impl Fn(&OomReport) -> bool + Send + Sync + 'static) -> Result<u64> {
        let handler: Arc<OomHandler> = Arc::new(handler);
        self.0.rescue.add(None, handler)
    }

    /// The same for requests that this pool should have served only. It ends with the pool.
    pub fn add_pool_handler(
        &self,
        pool: PoolId,
        handler: impl Fn(&OomReport) -> bool + Send + Sync + 'static,
    ) -> Result<u64> {
        let handler: Arc<OomHandler> = Arc::new(handler);
        let id = self.0.rescue.add(Some(pool), handler)?;
        if !self.0.pools().contains(pool) {
            self.0.rescue.end_pool(pool);
            fail!(Code::InvalidArgument, "the pool was destroyed");
        }
        Ok(id)
    }

    /// Removes a callback; waits for threads that are in it, except where it is called from within an out-of-memory
    /// callback or a hook. `InvalidArgument` for a number that is none; `NotPermitted` in a stream callback.
    pub fn remove(&self, id: u64) -> Result<()> {
        self.0.rescue.remove(id)
    }
}
