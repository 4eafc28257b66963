//! Tags: a thread's note of what its memory is for. A tag is a name with a small number; while a thread has one in
//! force, all blocks that it allocates get it, on every device.
//!
//! The hot path does not check for tags. While any thread has a tag in force, the handle cache (`memory/handle_cache.rs`)
//! finds no pools, so that every request goes through `Memory`, which does check.

use crate::base::boxed::try_push;
use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::base::room::check_room;
use crate::base::sync::system::{Mutex, lock};
use crate::fail;
use crate::runtime::entry::fork;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The most bytes of a name.
pub const MAX_TAG_NAME: usize = 31;

/// A name with the number that it has for the rest of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(u16);

/// Counts the threads that have a tag in force; the highest bit is [`LOOKED_FOR`].
struct Active(AtomicU64);

/// Set once the pools are out of the handle cache, so that requests check for tags. Cleared with the last thread's tag.
const LOOKED_FOR: u64 = 1 << 63;

impl Active {
    /// Counts a thread in. `true`: requests may not check for tags yet, because the thread that makes them do so has not
    /// finished. The caller must do it too.
    fn more(&self) -> bool {
        self.0.fetch_add(1, SeqCst) & LOOKED_FOR == 0
    }

    /// Requests check for tags from now on, until no thread has one. The calling thread has one.
    fn looked_for(&self) {
        self.0.fetch_or(LOOKED_FOR, SeqCst);
    }

    /// Counts a thread out.
    fn less(&self) {
        let less = |n: u64| match n - 1 {
            LOOKED_FOR => Some(0),
            rest => Some(rest),
        };
        let _ = self.0.fetch_update(SeqCst, SeqCst, less); // cannot fail: `less` always returns a value
    }

    #[inline]
    fn any(&self) -> bool {
        self.0.load(SeqCst) != 0
    }
}

static ACTIVE: Active = Active(AtomicU64::new(0));

/// \[B\] the most that one more name needs: a node on each level of the tree.
const NODES: usize = 5 << 10;

/// The names: number n is at n - 1.
struct Names {
    all: Vec<&'static CStr>,
    numbers: BTreeMap<&'static str, u16>,
}

static NAMES: Mutex<Names> = Mutex::new(Names { all: Vec::new(), numbers: BTreeMap::new() });

/// The tags of one thread, innermost last. Those still in force when the thread ends, end with it.
struct Stack(RefCell<Vec<u16>>);

impl Drop for Stack {
    fn drop(&mut self) {
        if !self.0.get_mut().is_empty() {
            CURRENT.set(0);
            ACTIVE.less();
        }
    }
}

thread_local! {
    static STACK: Stack = const { Stack(RefCell::new(Vec::new())) };
    /// The innermost of them; 0: none. It has no destructor, so that it can be read during thread exit too.
    static CURRENT: Cell<u16> = const { Cell::new(0) };
}

fn at_thread_exit<T>() -> Result<T> {
    Err(Error::new(Code::NotPermitted, "the thread is ending: it can have no tags"))
}

impl Tag {
    /// The tag with that name, which gets a number if it has none yet. `InvalidArgument` for a name that is empty, is
    /// longer than [`MAX_TAG_NAME`] or contains a NUL; `System` for more than 65 535 names;
    /// `NotPermitted` in a forked child.
    pub fn new(name: &str) -> Result<Tag> {
        let text = CString::new(name).ok().filter(|_| (1..=MAX_TAG_NAME).contains(&name.len()));
        let Some(text) = text else {
            fail!(Code::InvalidArgument, "the name of a tag has 1 to {MAX_TAG_NAME} bytes, none of them 0");
        };
        let _busy = fork::enter()?; // the lock may never be released
        let mut names = lock(&NAMES);
        if let Some(&n) = names.numbers.get(name) {
            return Ok(Tag(n));
        }
        let Ok(n) = u16::try_from(names.all.len() + 1) else {
            return Err(Error::new(Code::System, "there are too many names of tags"));
        };
        if names.all.try_reserve(1).is_err() {
            return Err(no_host_memory());
        }
        check_room(NODES)?;
        let text: &'static CStr = Box::leak(text.into_boxed_c_str());
        names.all.push(text);
        names.numbers.insert(text.to_str().unwrap_or_default(), n);
        Ok(Tag(n))
    }

    /// The tag with that number, if there is one.
    pub fn of_number(n: u16) -> Option<Tag> {
        c_name(n).map(|_| Tag(n))
    }

    /// Its number, never 0.
    pub fn number(self) -> u16 {
        self.0
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        name(self.0).unwrap_or_default()
    }

    /// Its name, for C.
    pub fn c_name(self) -> &'static CStr {
        c_name(self.0).unwrap_or_default()
    }
}

/// Gives this tag to all blocks that the thread allocates from now on. `true`: the caller must take the pools out of the
/// handle cache first, so that requests check for tags, and then call [`looked_for`].
pub(crate) fn begin(tag: Tag) -> Result<bool> {
    fork::check()?;
    let push = |s: &Stack| {
        let mut stack = s.0.borrow_mut();
        try_push(&mut stack, tag.0).then_some(stack.len() == 1)
    };
    let Ok(first) = STACK.try_with(push) else { return at_thread_exit() };
    let first = first.ok_or_else(no_host_memory)?;
    CURRENT.set(tag.0);
    Ok(first && ACTIVE.more())
}

/// Requests check for tags from now on, until no thread has one in force. The calling thread has one.
pub(crate) fn looked_for() {
    ACTIVE.looked_for();
}

/// Ends the calling thread's innermost tag; the one around it is in force again. `NotPermitted` if it has none.
pub fn pop_tag() -> Result<()> {
    let pop = |s: &Stack| {
        let mut stack = s.0.borrow_mut();
        stack.pop().map(|_| stack.last().copied().unwrap_or(0))
    };
    match STACK.try_with(pop) {
        Ok(Some(now)) => {
            CURRENT.set(now);
            if now == 0 {
                ACTIVE.less();
            }
            Ok(())
        }
        Ok(None) => fail!(Code::NotPermitted, "this thread has no tag in force"),
        Err(_) => at_thread_exit(),
    }
}

/// How many names there are.
pub(crate) fn count() -> usize {
    lock(&NAMES).all.len()
}

/// How many tags the calling thread has in force.
pub(crate) fn depth() -> usize {
    STACK.try_with(|s| s.0.borrow().len()).unwrap_or(0)
}

/// Whether any thread has a tag in force.
#[inline]
pub(crate) fn any() -> bool {
    ACTIVE.any()
}

/// The number of the calling thread's innermost tag; 0: none.
#[inline]
pub(crate) fn current() -> u16 {
    CURRENT.get()
}

/// The name of the tag with this number. None in a forked child, where the lock may never be released.
fn c_name(n: u16) -> Option<&'static CStr> {
    let _busy = fork::enter().ok()?;
    lock(&NAMES).all.get(usize::from(n).checked_sub(1)?).copied()
}

/// The name of the tag with this number.
pub(crate) fn name(n: u16) -> Option<&'static str> {
    c_name(n)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_relies_on_what_another_has_yet_to_do() {
        let active = Active(AtomicU64::new(0));
        for _ in 0..2 {
            assert!(!active.any());
            assert!(active.more());
            // A second thread, before the first has seen to it that requests look for tags.
            assert!(active.more());
            active.looked_for();
            active.looked_for();
            assert!(!active.more());
            (0..2).for_each(|_| active.less());
            assert!(active.any() && !active.more());
            (0..2).for_each(|_| active.less());
        }
        assert!(!active.any());
    }
}
