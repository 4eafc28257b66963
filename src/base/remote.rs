//! A list that any thread pushes to and one takes whole: how a freed block reaches the heap of another thread.
//!
//! It names its members by number and keeps no memory of its own: the link of a member is the user's. Since
//! nobody ever takes a single member, a head that comes back meanwhile (ABA) does no harm: the push that finds
//! it links to what is then on the list.

use crate::base::sync::{AtomicU32, Ordering};

/// The head of such a list. Members are numbers other than 0.
#[derive(Debug, Default)]
pub struct Remote(AtomicU32);

impl Remote {
    /// An empty list.
    pub fn new() -> Self {
        Remote(AtomicU32::new(0))
    }

    /// Whether it was empty at some time around the call. A hint.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Whether it is empty, in the one order that all threads see of this call, of pushes, and of other accesses that
    /// are sequentially consistent.
    pub fn is_empty_now(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }

    /// Puts `id` in front, which the caller hands over: it is on no list, and nobody else will push it.
    /// `link` sets which member comes after it (0: none); it may be called again with another one. What the
    /// caller wrote before is visible to who takes the list.
    #[inline(always)]
    pub fn push(&self, id: u32, link: impl Fn(u32)) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            link(head);
            // The Release in it pairs with the Acquire exchange in `take`: the link is visible there. Those of earlier
            // pushes are too, since an exchange continues the release sequence of the one it replaces. SeqCst for
            // `is_empty_now`.
            match self.0.compare_exchange_weak(head, id, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes the whole list: its first member, which leads to the others; 0 when it was empty.
    #[inline(always)]
    pub fn take(&self) -> u32 {
        // Acquire pairs with the Release exchange in `push`: the links are whole.
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
