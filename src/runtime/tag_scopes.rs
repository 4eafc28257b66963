//! Tags that come into force, and scopes of them.

use crate::base::error::Result;
use crate::runtime::tags::{self, Tag};
use crate::runtime::{handle_cache, pop_tag};
use std::marker::PhantomData;

impl Tag {
    /// From now on what this thread allocates has this tag, until [`pop_tag`]. Tags nest; the innermost counts.
    pub fn push(self) -> Result<()> {
        if tags::begin(self)? {
            // From here on requests must come by `Memory`; this thread's do, whatever others enter now.
            handle_cache::bypass_everything();
        }
        Ok(())
    }

    /// The same until what it gives is dropped.
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
        let _ = pop_tag(); // it was pushed
    }
}
