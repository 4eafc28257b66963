//! What was tried for one request, and what it gave: for the report of one that fails in the end.

use super::super::report::{OOM_STEPS, OomStep, OomTried};
use super::gained::so_far;
use super::{Step, Terms};

/// See the file's head.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trials {
    each: [(u32, u32, u64); OOM_STEPS], // tries, how often they helped, bytes
    /// What the device said when it was asked last; nothing where it was not asked, or has given.
    pub device_said: Option<String>,
    /// That is what the library's own books have no room for.
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
            Step::Trim => OomStep::Trim,
        }
    }
}

impl Trials {
    /// Takes a step; whether it brought something.
    pub(super) fn step(&mut self, what: Step, take: impl FnOnce() -> bool) -> bool {
        self.note(what.number(), take)
    }

    /// The same for one that has no place among the steps of a search.
    pub(crate) fn note(&mut self, what: OomStep, take: impl FnOnce() -> bool) -> bool {
        let before = so_far();
        let helped = take();
        let (tries, helps, bytes) = &mut self.each[what as usize];
        *tries = tries.saturating_add(1);
        *helps = helps.saturating_add(helped.into());
        *bytes = bytes.saturating_add(so_far().wrapping_sub(before));
        helped
    }

    /// What the device said; "" for nothing.
    pub(crate) fn said(&self) -> String {
        self.device_said.clone().unwrap_or_default()
    }

    /// What was tried.
    pub(crate) fn tried(&self) -> Vec<OomTried> {
        let all = OomStep::ALL.into_iter().zip(self.each);
        let tried = all.filter(|(_, t)| t.0 > 0);
        tried.map(|(step, (tries, helped, bytes))| OomTried { step, tries, helped, bytes }).collect()
    }
}
