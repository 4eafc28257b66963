//! Which group something is in, if any.

use super::member::Member;
use crate::base::error::Code;
use crate::base::error::Result;
use crate::base::sync::system::{Mutex, lock};
use crate::fail;
use std::sync::Arc;

/// The membership of one device's memory.
#[derive(Default)]
pub(crate) struct Membership(Mutex<Option<Arc<Member>>>);

impl Membership {
    /// The member that it is now.
    pub(crate) fn get(&self) -> Option<Arc<Member>> {
        lock(&self.0).clone()
    }

    /// Becomes the member that `join` makes. `NotPermitted` for one that is in a group already.
    pub(crate) fn begin(&self, join: impl FnOnce() -> Result<Member>) -> Result<Arc<Member>> {
        if self.get().is_some() {
            return taken();
        }
        let member = Arc::new(join()?);
        let mut it = lock(&self.0);
        if it.is_some() {
            drop(it);
            member.leave();
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
