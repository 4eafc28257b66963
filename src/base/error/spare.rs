//! Errors that are made beforehand, for requests that find no memory: the host may have none left either at that moment.
//! One that is dropped, and of whose detail nobody has a part any more, can be used again.

use super::code::Code;
use super::inner::{Detail, Inner};
use crate::base::sync::system::{Mutex, lock, try_lock};
use std::fmt;
use std::sync::Arc;

/// As many threads may fail for the first time before more are made.
const SPARE: usize = 8;
/// \[B\] of the message of one.
const ROOM: usize = 512;

static ALL: Spares = Spares(Mutex::new(Vec::new()));

#[expect(clippy::vec_box, reason = "an error is a box from the start")]
struct Spares(Mutex<Vec<Box<Inner>>>);

/// A text that ends with the room that it has.
pub(super) struct Within<'a>(pub(super) &'a mut String);

impl fmt::Write for Within<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let left = self.0.capacity() - self.0.len();
        let cut = (0..=s.len().min(left)).rev().find(|&n| s.is_char_boundary(n)).unwrap_or(0);
        self.0.push_str(&s[..cut]);
        // Nothing comes after what was cut.
        if cut < s.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

impl Spares {
    fn prepare<T: Detail>(&self, code: Code, make: impl Fn() -> T) {
        let mut all = lock(&self.0);
        if all.len() >= SPARE {
            return;
        }
        all.reserve(SPARE);
        while all.len() < SPARE {
            let text = String::with_capacity(ROOM);
            let detail: Option<Arc<dyn Detail>> = Some(Arc::new(make()));
            all.push(Box::new(Inner { detail, spare: true, ..Inner::new(code, text.into()) }));
        }
    }

    fn take(&self) -> Option<Box<Inner>> {
        lock(&self.0).pop()
    }

    fn give_back(&self, mut inner: Box<Inner>) {
        let is_free = inner.detail.as_mut().is_some_and(|d| Arc::get_mut(d).is_some());
        // Not waited for: in a forked child the lock may never be released.
        let all = try_lock(&self.0).filter(|all| is_free && all.len() < all.capacity());
        if let Some(mut all) = all {
            all.push(inner);
        } // else it is dropped, with the lock released
    }
}

/// Sees to it that there are some errors of that code. `make` makes what each carries.
pub(crate) fn prepare<T: Detail>(code: Code, make: impl Fn() -> T) {
    ALL.prepare(code, make);
}

/// One of them; `None`: there are none left.
#[cold]
pub(super) fn take() -> Option<Box<Inner>> {
    ALL.take()
}

/// One is no longer needed. It is not kept if somebody has its detail still.
#[cold]
pub(super) fn give_back(inner: Box<Inner>) {
    ALL.give_back(inner);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::fmt::Write;

    #[test]
    fn an_error_goes_back_when_nobody_has_its_detail() {
        let spares = Spares(Mutex::default());
        let count = || lock(&spares.0).len();
        spares.prepare(Code::Busy, || 0u32);
        assert_eq!(count(), SPARE);
        let mut inner = spares.take().unwrap();
        assert_eq!((inner.code, inner.spare), (Code::Busy, true));
        let detail = inner.detail.clone();
        let mut text = std::mem::take(&mut inner.message).into_owned();
        assert!(write!(Within(&mut text), "{}", "x".repeat(2 * ROOM)).is_err());
        assert_eq!(text.len(), ROOM, "as much as there is room for");
        spares.give_back(inner);
        assert_eq!(count(), SPARE - 1, "somebody has the detail");
        drop(detail);
        spares.give_back(spares.take().unwrap());
        assert_eq!(count(), SPARE - 1);
        spares.prepare(Code::Busy, || 0u32);
        assert_eq!(count(), SPARE);
    }
}
