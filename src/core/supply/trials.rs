//! The steps that were tried for a request and what they brought, for the report of a request that fails.

use super::super::blocks::gained_so_far;
use super::super::report::{OOM_STEPS, OOM_WORDS, OomStep, OomTried};
use crate::base::inline::{Few, Text};
use std::cell::RefCell;

thread_local! {
    /// What the thread's last request tried that found no memory: the error itself has no room for it. No destructor, so
    /// it works at thread exit too.
    static LAST: RefCell<Option<Trials>> = const { RefCell::new(None) };
}

/// The outcome of all tries of one step.
#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    tries: u32,
    helped: u32,
    bytes: u64, // that it brought
}

/// See the file's head.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trials {
    each: [Tried; OOM_STEPS],
    /// The error of the last call that asked the device for memory; "" if there was none or it succeeded.
    pub device_said: Text<OOM_WORDS>,
    /// Whether the request failed because the library cannot keep track of more blocks or segments.
    pub books: bool,
    /// \[B\] of the request.
    pub bytes: u64,
}

impl Trials {
    /// Takes a step and records it. Returns whether it helped.
    pub(crate) fn note(&mut self, what: OomStep, take: impl FnOnce() -> bool) -> bool {
        let before = gained_so_far();
        let helped = take();
        let t = &mut self.each[what as usize];
        t.tries = t.tries.saturating_add(1);
        t.helped = t.helped.saturating_add(helped.into());
        t.bytes = t.bytes.saturating_add(gained_so_far().wrapping_sub(before));
        helped
    }

    /// Keeps them for the report of the request that fails.
    pub(crate) fn leave(self) {
        LAST.with_borrow_mut(|last| *last = Some(self));
    }

    /// Those of the calling thread's request for so many bytes, which has failed just now; `None` if it got nowhere.
    pub(crate) fn last(bytes: u64) -> Option<Trials> {
        LAST.take().filter(|t| t.bytes == bytes)
    }

    /// The steps that were tried.
    pub(crate) fn tried(&self) -> Few<OomTried, OOM_STEPS> {
        let all = OomStep::ALL.into_iter().zip(self.each);
        let tried = all.filter(|(_, t)| t.tries > 0);
        tried.map(|(step, Tried { tries, helped, bytes })| OomTried { step, tries, helped, bytes }).collect()
    }
}
