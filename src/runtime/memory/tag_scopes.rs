//! Puts tags into force, and scopes that end them.

use crate::base::error::Result;
use crate::runtime::entry::fork;
use crate::runtime::entry::tags::{self, Tag};
use crate::runtime::memory::handle_cache;

use std::marker::PhantomData;

impl Tag {
    /// Gives this tag to all blocks that this thread allocates from now on, until [`pop_tag`](crate::runtime::pop_tag). Tags nest; the innermost
    /// counts.
    pub fn push(self) -> Result<()> {
        let _busy = fork::enter()?; // for the lock of the pools that were looked up
        if tags::begin(self)? {
            // From now on requests must go through `Memory`. Those of this thread do, even if another thread is just
            // entering a pool: it does so before this call, or finds the tag in force.
            handle_cache::bypass_everything();
            tags::looked_for();
        }
        Ok(())
    }

    /// The same, until the returned scope is dropped.
    pub fn scope(self) -> Result<TagScope> {
        self.push()?;
        Ok(TagScope(PhantomData))
    }
}

/// A tag that is in force on the thread that made this, until it is dropped.
#[must_use = "the tag ends with it"]
pub struct TagScope(PhantomData<*const ()>);

impl Drop for TagScope {
    fn drop(&mut self) {
        let _ = tags::pop_tag(); // it was pushed
    }
}
