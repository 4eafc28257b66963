//! Which device call fails. The thread that runs an operation arms a fault; the calls that it makes from then on are
//! counted, and the one that is due fails. Calls of other threads are not concerned.

use millpond::Code;
use std::cell::RefCell;
use std::cmp::Ordering;

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Once, for lack of memory.
    NoMemory,
    /// Once.
    Passing,
    /// And so does every call after it.
    Sticky,
    /// It succeeds, and then the host's memory is gone.
    Greedy,
    /// It succeeds, others have all of the host's memory by then, and every call after it fails.
    Grasping,
}

pub const WAYS: [Way; 3] = [Way::NoMemory, Way::Passing, Way::Sticky];

impl Way {
    pub fn code(self) -> Code {
        if self == Way::NoMemory { Code::OutOfMemory } else { Code::Device }
    }
}

#[derive(Default)]
struct Plan {
    due: Option<(usize, Way)>,
    count: usize,
    /// Their names, if they are wanted: they take memory.
    seen: Option<Vec<String>>,
}

thread_local! {
    static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
}

/// From here on calls of this thread are counted, and the one with this number fails, if any; the first is 1.
pub fn arm(due: Option<(usize, Way)>) {
    PLAN.set(Some(Plan { due, count: 0, seen: Some(Vec::new()) }));
}

/// The same without their names.
pub fn arm_unnamed(due: Option<(usize, Way)>) {
    PLAN.set(Some(Plan { due, count: 0, seen: None }));
}

/// Nothing fails any more. The names of the calls since `arm`.
pub fn disarm() -> Vec<String> {
    PLAN.take().and_then(|plan| plan.seen).unwrap_or_default()
}

/// Nothing fails any more. The number of calls since `arm_unnamed`.
pub fn disarm_unnamed() -> usize {
    PLAN.take().map_or(0, |plan| plan.count)
}

/// One call: whether it fails.
pub fn refused(name: &str) -> Option<Way> {
    PLAN.with_borrow_mut(|plan| {
        let plan = plan.as_mut()?;
        plan.count += 1;
        if let Some(seen) = &mut plan.seen {
            seen.push(name.to_owned());
        }
        let (due, way) = plan.due?;
        match plan.count.cmp(&due) {
            Ordering::Less => None,
            Ordering::Equal => Some(way),
            Ordering::Greater => [Way::Sticky, Way::Grasping].contains(&way).then_some(Way::Sticky),
        }
    })
}
