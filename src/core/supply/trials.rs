//! The steps that were tried for a request and what they brought, for the report of a request that fails.

use super::super::report::{OOM_STEPS, OomStep, OomTried};
use super::gained::so_far;
use super::{Step, Terms};

/// See the file's head.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trials {
    each: [(u32, u32, u64); OOM_STEPS], // tries, how often they helped, bytes
    /// The error of the last call that asked the device for memory; `None` if there was none or it succeeded.
    pub device_said: Option<String>,
    /// Whether the request failed because the library cannot keep track of more blocks or segments.
    pub books: bool,
}

impl Step {
    fn number(self) -> OomStep {
        match self {
            Step::Steal { same_pool: true, terms: Terms::Idle } => OomStep::PoolIdle,
            Step::Steal { same_pool: true, terms: Terms::Wait } => OomStep::PoolBusy,
            Step::Steal { same_pool: false, terms: Terms::Idle } => OomStep::OthersIdle,
            Step::Steal { same_pool: false, terms: Terms::Wait } => OomStep::OthersBusy,
            Step::Collect => OomStep::Collect,
            Step::Device => OomStep::Device,
            Step::Whole => OomStep::Whole,
            Step::Ready => OomStep::Ready,
            Step::Waiting => OomStep::Waiting,
            Step::Swap | Step::Untie | Step::Ties | Step::Trim => OomStep::Trim,
        }
    }
}

impl Trials {
    /// Takes a step and records it. Returns whether it helped.
    pub(super) fn step(&mut self, what: Step, take: impl FnOnce() -> bool) -> bool {
        self.note(what.number(), take)
    }

    /// The same for a step that is not one of a search.
    pub(crate) fn note(&mut self, what: OomStep, take: impl FnOnce() -> bool) -> bool {
        let before = so_far();
        let helped = take();
        let (tries, helps, bytes) = &mut self.each[what as usize];
        *tries = tries.saturating_add(1);
        *helps = helps.saturating_add(helped.into());
        *bytes = bytes.saturating_add(so_far().wrapping_sub(before));
        helped
    }

    /// The device's error; "" if there was none.
    pub(crate) fn said(&self) -> String {
        self.device_said.clone().unwrap_or_default()
    }

    /// The steps that were tried.
    pub(crate) fn tried(&self) -> Vec<OomTried> {
        let all = OomStep::ALL.into_iter().zip(self.each);
        let tried = all.filter(|(_, t)| t.0 > 0);
        tried.map(|(step, (tries, helped, bytes))| OomTried { step, tries, helped, bytes }).collect()
    }
}
