//! Which calls on devices and which callbacks the calling thread is in.
//!
//! A plugin may call back into the library during a call; whatever would change memory of the same device is refused
//! there. In a stream callback and in a segment callback, every call that waits is refused, since it could wait for
//! itself. All of this is thread-local; no lock is involved.

use crate::base::error::{Code, Error, Result};
use crate::base::sync::levels::{Called, check_unlocked};
use crate::runtime::entry::tags;
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// The devices on which this thread is in a call, by the address of the object that backs their memory. No destructor, as
    /// all of these: it works at thread exit too, and its first use takes none of the host's memory.
    static CALLS: RefCell<Calls> = const { RefCell::new(Calls::NONE) };
    /// Whether this thread runs a stream callback.
    static IN_STREAM_CALLBACK: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread runs a segment callback, or is in an observer.
    static IN_SEGMENT_CALLBACK: Cell<bool> = const { Cell::new(false) };
    /// How many hooks and out-of-memory callbacks this thread is in.
    static IN_CALLS_OUT: Cell<u32> = const { Cell::new(0) };
}

/// Addresses, the newest last. The first few need no memory of the host, which may have none left when a request fails.
struct Calls {
    count: usize,
    first: [usize; 4],
    /// Has no memory while it is empty, as it is when the thread ends.
    more: ManuallyDrop<Vec<usize>>,
}

impl Calls {
    const NONE: Calls = Calls { count: 0, first: [0; 4], more: ManuallyDrop::new(Vec::new()) };

    fn push(&mut self, at: usize) {
        match self.first.get_mut(self.count) {
            Some(slot) => *slot = at,
            None => self.more.push(at),
        }
        self.count += 1;
    }

    fn pop(&mut self) {
        if self.more.len() <= 1 {
            drop(std::mem::take(&mut *self.more));
        } else {
            self.more.pop();
        }
        self.count = self.count.saturating_sub(1);
    }

    fn contains(&self, at: usize) -> bool {
        self.first.iter().take(self.count).chain(&*self.more).any(|&a| a == at)
    }
}

/// The thread is in a hook or an out-of-memory callback until this is dropped.
pub(crate) struct CallOut(());

impl CallOut {
    pub(crate) fn new() -> CallOut {
        IN_CALLS_OUT.set(IN_CALLS_OUT.get() + 1);
        CallOut(())
    }
}

impl Drop for CallOut {
    fn drop(&mut self) {
        IN_CALLS_OUT.set(IN_CALLS_OUT.get() - 1);
    }
}

/// Whether the removal of a hook or of an out-of-memory callback waits for the threads that run it. It does not within
/// such a callback, since two could wait for each other. `NotPermitted` in a stream callback: a thread that runs the
/// callback may wait for that stream.
pub(crate) fn waits_for_callbacks() -> Result<bool> {
    if IN_CALLS_OUT.get() > 0 { Ok(false) } else { may_block().map(|()| true) }
}

/// The thread is in a call on a device until this is dropped.
pub(crate) struct InCall(());

impl InCall {
    /// Notes a call on the device that `of` backs.
    pub(crate) fn new<T>(of: &T) -> InCall {
        let at = std::ptr::from_ref(of).addr();
        CALLS.with_borrow_mut(|c| c.push(at));
        InCall(())
    }
}

impl Drop for InCall {
    fn drop(&mut self) {
        CALLS.with_borrow_mut(Calls::pop);
    }
}

/// Whether this thread is in a call on the device that `of` backs.
pub(crate) fn is_in_call<T>(of: &T) -> bool {
    let at = std::ptr::from_ref(of).addr();
    CALLS.with_borrow(|c| c.contains(at))
}

/// Runs a stream callback. It may be called during a call on a device, but counts as outside of it. Tags that it leaves
/// in force end with it: the next callback on the thread may be anybody's. Catches panics.
pub(crate) fn in_stream_callback(callback: impl FnOnce()) {
    let tags = tags::depth();
    let outer = IN_STREAM_CALLBACK.with(|c| c.replace(true));
    let calls = CALLS.replace(Calls::NONE);
    call_foreign(callback);
    while tags::depth() > tags && tags::pop_tag().is_ok() {}
    CALLS.set(calls);
    IN_STREAM_CALLBACK.with(|c| c.set(outer));
}

/// Runs a segment callback. Catches panics.
pub(crate) fn in_segment_callback(callback: impl FnOnce()) {
    in_observer(|| _ = call_foreign(callback));
}

/// Tells an observer, which must not call the library either. It does not panic.
#[inline]
pub(crate) fn in_observer(tell: impl FnOnce()) {
    let outer = IN_SEGMENT_CALLBACK.replace(true);
    tell();
    IN_SEGMENT_CALLBACK.set(outer);
}

/// `NotPermitted` in a segment callback, and in an observer.
#[inline]
pub(crate) fn check_segment_callback() -> Result<()> {
    if IN_SEGMENT_CALLBACK.with(Cell::get) { in_segments() } else { Ok(()) }
}

#[cold]
#[inline(never)]
fn in_segments() -> Result<()> {
    Err(Error::new(Code::NotPermitted, "a segment callback or an observer must not call the library"))
}

/// `NotPermitted` on a thread that runs a stream or segment callback: a wait there could wait for itself.
pub(crate) fn may_block() -> Result<()> {
    check_segment_callback()?;
    if IN_STREAM_CALLBACK.with(Cell::get) {
        return Err(Error::new(Code::NotPermitted, "a stream callback must not make a call that waits"));
    }
    Ok(())
}

/// Calls a function of the program; `None` if it panics. The panic's payload is leaked, since its destructor may panic,
/// too. The calling thread holds no lock, since the program may call this library.
#[cfg_attr(debug_assertions, track_caller)]
pub(crate) fn call_foreign<R>(call: impl FnOnce() -> R) -> Option<R> {
    check_unlocked(Called::Callback);
    catch_unwind(AssertUnwindSafe(call)).map_err(std::mem::forget).ok()
}

/// Drops a value of the program, whose destructor is the program's code. A panic of it is swallowed, so that the current
/// call still returns its result.
#[cfg_attr(debug_assertions, track_caller)]
pub(crate) fn drop_foreign<T>(gone: T) {
    call_foreign(|| drop(gone));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::runtime::entry::tags::Tag;

    #[test]
    fn a_tag_that_a_stream_callback_leaves_in_force_ends_with_it() {
        let (outer, inner) = (Tag::new("outer").unwrap(), Tag::new("inner").unwrap());
        let scope = outer.scope().unwrap();
        in_stream_callback(|| {
            inner.push().unwrap();
            inner.push().unwrap();
            assert_eq!(tags::current(), inner.number());
        });
        assert_eq!(tags::current(), outer.number());
        drop(scope);
        assert_eq!(tags::current(), 0);
    }

    #[test]
    fn calls_nest_and_a_stream_callback_is_in_none_of_them() {
        let (a, b) = (1u64, 2u64);
        assert!(!is_in_call(&a) && may_block().is_ok());
        let outer = InCall::new(&a);
        let inner = InCall::new(&b);
        assert!(is_in_call(&a) && is_in_call(&b) && may_block().is_ok());
        in_stream_callback(|| {
            assert!(!is_in_call(&a) && may_block().is_err());
            let _again = InCall::new(&a);
            assert!(is_in_call(&a));
        });
        assert!(is_in_call(&a) && is_in_call(&b));
        drop(inner);
        assert!(is_in_call(&a) && !is_in_call(&b));
        drop(outer);
        in_segment_callback(|| assert!(may_block().is_err() && check_segment_callback().is_err()));
        assert!(may_block().is_ok() && check_segment_callback().is_ok());
    }
}
