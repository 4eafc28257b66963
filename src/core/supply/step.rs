//! The steps that a request takes which finds no memory in its heap, and their order.

use super::super::report::OomStep;

/// Under which condition memory may be taken from a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terms {
    /// The giver's stream has nothing queued.
    Idle,
    /// The same, and the giver's stream is not the taker's, which is captured: its replays need not be in order with its work.
    Replayed,
    /// The taker waits for the giver's stream, on the device (a taker without a stream: on the host).
    Wait,
}

/// One step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Free granules of other heaps, of the same pool or of others.
    Steal { same_pool: bool, terms: Terms },
    /// Unused memory goes back to the device, if the tuning sets a threshold.
    Collect,
    /// More memory from the device.
    Device,
    /// Blocks that were kept whole are given up for merging.
    Whole,
    /// Idle segments go back to the device for one of the right size, on devices whose segments are as large as requests
    /// need.
    Swap,
    /// Ties that are wholly free go back to the device for granules that can be mapped anywhere.
    Untie,
    /// From now on, whole free ties may be used, also those of other pools and as pieces of a scattered block.
    Ties,
    /// Freed blocks whose waits are over.
    Ready,
    /// Waiting for freed blocks, the first that is ready; then for the memory of released captures.
    Waiting,
    /// Unused memory goes back to the device, so that it can give some in one piece.
    Trim,
}

/// The steps of most requests, the cheapest first.
const STEPS: [Step; 12] = [
    Step::Steal { same_pool: true, terms: Terms::Idle },
    Step::Collect,
    Step::Device,
    Step::Whole,
    Step::Swap,
    Step::Steal { same_pool: true, terms: Terms::Wait },
    Step::Steal { same_pool: false, terms: Terms::Idle },
    Step::Waiting,
    Step::Steal { same_pool: false, terms: Terms::Wait },
    Step::Untie,
    Step::Ties,
    Step::Trim,
];

/// The steps of a request without a stream. It waits on the host where others make their stream wait, so memory that is
/// ready somewhere comes before any wait.
const UNORDERED_STEPS: [Step; 13] = [
    Step::Steal { same_pool: true, terms: Terms::Idle },
    Step::Collect,
    Step::Device,
    Step::Whole,
    Step::Swap,
    Step::Ready,
    Step::Steal { same_pool: false, terms: Terms::Idle },
    Step::Steal { same_pool: true, terms: Terms::Wait },
    Step::Waiting,
    Step::Steal { same_pool: false, terms: Terms::Wait },
    Step::Untie,
    Step::Ties,
    Step::Trim,
];

/// The steps of a request for a captured stream, which can neither be marked nor wait. Other streams of its pool may have what
/// graphs use.
const CAPTURED_STEPS: [Step; 3] =
    [Step::Device, Step::Steal { same_pool: false, terms: Terms::Replayed }, Step::Ties];

/// The index of [`Step::Device`] in the first two lists.
const DEVICE: usize = 2;
/// The index of the step of the first list to go on from when waiting blocks have come back: they may be in any heap, and
/// may have stayed whole.
const AFTER_WAITING: usize = 3;

/// Where a search is in its list of steps.
pub(super) struct Steps {
    list: &'static [Step],
    at: usize,
    /// Where [`Step::Device`] is in it.
    device: usize,
    /// Where to go on when waiting blocks have come back.
    after_waiting: usize,
    /// The number of granules that the device was asked for last.
    asked_for: u64,
}

impl Steps {
    fn new(list: &'static [Step], device: usize, after_waiting: usize) -> Steps {
        Steps { list, at: 0, device, after_waiting, asked_for: u64::MAX }
    }

    /// Those of a request for a stream.
    pub(super) fn ordered() -> Steps {
        Steps::new(&STEPS, DEVICE, AFTER_WAITING)
    }

    /// Those of a request without a stream.
    pub(super) fn unordered() -> Steps {
        Steps::new(&UNORDERED_STEPS, DEVICE, 0)
    }

    /// Those of a request for a captured stream.
    pub(super) fn captured() -> Steps {
        Steps::new(&CAPTURED_STEPS, 0, 0)
    }

    /// The step to take for so many granules that are missing. `None`: all were taken, and helped no more.
    pub(super) fn next(&mut self, missing: u64) -> Option<Step> {
        if self.at > self.device && missing < self.asked_for {
            self.at = self.device; // others gave a part, and the device may have the rest
        }
        let step = *self.list.get(self.at)?;
        if matches!(step, Step::Device) {
            self.asked_for = missing;
        }
        Some(step)
    }

    /// Notes whether a step helped. If it did, it is tried again, as long as it keeps helping.
    pub(super) fn note(&mut self, step: Step, helped: bool) {
        match step {
            _ if !helped => self.at += 1,
            Step::Ties => self.at = 0,
            Step::Ready | Step::Waiting => self.at = self.after_waiting,
            _ => (),
        }
    }

    pub(super) fn begin_again(&mut self) {
        self.at = 0;
    }
}

impl Step {
    /// What the step is called in the report of a request that fails.
    pub(super) fn reported(self) -> OomStep {
        match self {
            Step::Steal { same_pool: true, terms: Terms::Idle | Terms::Replayed } => OomStep::PoolIdle,
            Step::Steal { same_pool: true, terms: Terms::Wait } => OomStep::PoolBusy,
            Step::Steal { same_pool: false, terms: Terms::Idle | Terms::Replayed } => OomStep::OthersIdle,
            Step::Steal { same_pool: false, terms: Terms::Wait } => OomStep::OthersBusy,
            Step::Collect => OomStep::Collect,
            Step::Device => OomStep::Device,
            Step::Whole => OomStep::Whole,
            Step::Ready => OomStep::Ready,
            Step::Waiting => OomStep::Waiting,
            Step::Swap | Step::Untie | Step::Ties | Step::Trim => OomStep::Trim,
        }
    }

    /// Whether memory was just taken from the device if the step helped.
    pub(super) fn brings_new_memory(self) -> bool {
        matches!(self, Step::Device | Step::Swap | Step::Trim)
    }
}
