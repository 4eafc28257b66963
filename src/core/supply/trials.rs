//! The steps that were tried for a request and what they brought, for the report of a request that fails.

use super::super::blocks::gained_so_far;
use super::super::report::{OOM_STEPS, OomStep, OomTried};

/// The outcome of all tries of one step.
#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    tries: u32,
    helped: u32,
    bytes: u64, // that it brought
}

/// See the file's head.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trials {
    each: [Tried; OOM_STEPS],
    /// The error of the last call that asked the device for memory; `None` if there was none or it succeeded.
    pub device_said: Option<String>,
    /// Whether the request failed because the library cannot keep track of more blocks or segments.
    pub books: bool,
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

    /// The device's error; "" if there was none.
    pub(crate) fn said(&self) -> String {
        self.device_said.clone().unwrap_or_default()
    }

    /// The steps that were tried.
    pub(crate) fn tried(&self) -> Vec<OomTried> {
        let all = OomStep::ALL.into_iter().zip(self.each);
        let tried = all.filter(|(_, t)| t.tries > 0);
        tried.map(|(step, Tried { tries, helped, bytes })| OomTried { step, tries, helped, bytes }).collect()
    }
}
