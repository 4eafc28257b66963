//! A list to which any thread pushes and which one thread takes whole.
//!
//! Members are numbers, and the list has no memory of its own: the user stores each member's link. Since nobody removes
//! a single member, ABA does no harm: a push that finds the same head again links to whatever is on the list by then.

use crate::base::sync::{AtomicU32, Ordering};

/// The head of such a list. A member is a number other than 0.
#[derive(Debug, Default)]
pub struct Remote(AtomicU32);

impl Remote {
    /// An empty list.
    pub fn new() -> Self {
        Remote(AtomicU32::new(0))
    }

    /// Whether the list was empty at some moment around the call. A hint.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Whether the list is empty, in the single total order of this call, of pushes, and of all other sequentially
    /// consistent accesses.
    pub fn is_empty_now(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }

    /// Pushes `id`, which must be on no list and must not be pushed by anybody else meanwhile. `link` stores which
    /// member follows it (0: none); it may be called more than once, with different members. What the caller wrote
    /// before is visible to the thread that takes the list.
    #[inline(always)]
    pub fn push(&self, id: u32, link: impl Fn(u32)) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            link(head);
            // Its Release pairs with the Acquire in `take`: the link is visible there. So are those of earlier
            // pushes, since an exchange continues the release sequence of the one it replaces. SeqCst is for
            // `is_empty_now`.
            match self.0.compare_exchange_weak(head, id, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes the whole list. Returns its first member, from which links lead to the others; 0 if it was empty.
    #[inline(always)]
    pub fn take(&self) -> u32 {
        // Acquire pairs with the Release exchange in `push`: the links are complete.
        self.0.swap(0, Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn gives_back_what_came_in_last_first() {
        let list = Remote::new();
        let links: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(9)).collect();
        assert!(list.is_empty());
        assert_eq!(list.take(), 0);
        for id in 1..4 {
            list.push(id, |next| links[id as usize].store(next, Ordering::Relaxed));
        }
        assert!(!list.is_empty());
        let mut id = list.take();
        for expected in [3, 2, 1] {
            assert_eq!(id, expected);
            id = links[id as usize].load(Ordering::Relaxed);
        }
        assert_eq!(id, 0);
        assert!(list.is_empty());
    }
}
