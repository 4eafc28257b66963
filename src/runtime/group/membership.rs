//! Which group something is in, if any.

use crate::base::error::{Code, Result};
use crate::base::sync::system::{Mutex, lock};
use crate::core::PoolId;
use crate::fail;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a request is short of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// \[B\] that the card is to have free.
    pub bytes: u64,
    /// \[B\] of the member's own unused memory that serve the same request.
    pub own: u64,
    /// Whose request it is, and whether that pool sleeps until then.
    pub pool: PoolId,
    pub asleep: bool,
}

/// A member of a group, to the memory `S` that it is for. Whoever only holds one does not name the member's type, so that a
/// program in which nobody joins links none of its code.
pub(crate) trait Asks<S>: Send + Sync {
    /// See [`Member::ask`](super::member::Member::ask).
    fn ask(&self, share: &S, need: Need, since: Instant) -> Option<u64>;

    /// See [`Member::serve`](super::member::Member::serve).
    fn serve(&self, share: &S, timeout: Duration) -> Result<u64>;

    /// See [`Member::leave`](super::member::Member::leave).
    fn leave(&self);
}

/// The membership of one device's memory.
pub(crate) struct Membership<S>(Mutex<Option<Arc<dyn Asks<S>>>>);

impl<S> Default for Membership<S> {
    fn default() -> Self {
        Membership(Mutex::new(None))
    }
}

impl<S> Membership<S> {
    /// The member that it is now.
    pub(crate) fn get(&self) -> Option<Arc<dyn Asks<S>>> {
        lock(&self.0).clone()
    }

    /// Becomes the member that `join` makes. `NotPermitted` for one that is in a group already.
    pub(crate) fn begin<M: Asks<S> + 'static>(&self, join: impl FnOnce() -> Result<M>) -> Result<Arc<M>> {
        if self.get().is_some() {
            return taken();
        }
        let member = Arc::new(join()?);
        let mut it = lock(&self.0);
        if it.is_some() {
            drop(it);
            Asks::leave(&*member);
            return taken();
        }
        *it = Some(member.clone());
        Ok(member)
    }

    /// Leaves; `false` if it is in no group.
    pub(crate) fn end(&self) -> bool {
        let gone = lock(&self.0).take();
        gone.inspect(|member| member.leave()).is_some()
    }
}

fn taken<T>() -> Result<T> {
    fail!(Code::NotPermitted, "the device is in a group already")
}
