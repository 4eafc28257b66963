//! What the devices have reported, kept for forked children.
//!
//! PaddlePaddle's data loader asks for a device's padding and chunk sizes in the worker processes that it forks. A
//! child may take no lock and has no device, so the parent stores each answer here, and the child reads it. All atomics
//! are relaxed except `known`: a child's only thread sees what its parent's forking thread had seen, and other threads
//! of the parent write the same numbers again.

use crate::base::error::{Code, Error, Result};
use crate::device::host::MAX_DEVICES;
use crate::device::{MemoryInfo, Sizes, Versions};
use crate::fail;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The facts about one device, in the order of [`numbers`]; the last two are its memory.
#[derive(Clone, Copy)]
pub(super) enum Fact {
    MinChunk,
    MaxChunk,
    MaxAlloc,
    Padding,
    InitAlloc,
    Realloc,
    Capability,
    Runtime,
    Driver,
    Total,
    Free,
}

const NUMBERS: usize = Fact::Total as usize;
const FACTS: usize = Fact::Free as usize + 1;
/// More devices than the built-in types have; facts about further devices are not kept.
const KEPT: usize = MAX_DEVICES;
const UNKNOWN: usize = usize::MAX;

struct Facts {
    known: AtomicBool,
    values: [AtomicUsize; FACTS],
}

static DEVICES: [Facts; KEPT] =
    [const { Facts { known: AtomicBool::new(false), values: [const { AtomicUsize::new(0) }; FACTS] } }; KEPT];
/// How many devices the served type has.
static COUNT: AtomicUsize = AtomicUsize::new(UNKNOWN);

/// The facts about a device that do not change.
pub(super) fn numbers(s: &Sizes, v: &Versions) -> [usize; NUMBERS] {
    [
        s.min_chunk,
        s.max_chunk,
        s.max_alloc,
        s.padding,
        s.init_alloc,
        s.realloc,
        v.compute_capability,
        v.runtime,
        v.driver,
    ]
    .map(|n| n as usize)
}

pub(super) fn note_count(count: usize) {
    COUNT.store(count, Ordering::Relaxed);
}

/// Stores the facts about a device; `memory` is in bytes.
pub(super) fn note(ordinal: usize, numbers: &[usize; NUMBERS], memory: Option<MemoryInfo>) {
    let Some(facts) = DEVICES.get(ordinal) else { return };
    let memory = memory.map(|m| [m.total as usize, m.free as usize]);
    for (to, from) in facts.values.iter().zip(numbers.iter().chain(memory.iter().flatten())) {
        to.store(*from, Ordering::Relaxed);
    }
    // Release pairs with the Acquire in `get`: whoever sees the flag sees the numbers.
    facts.known.store(true, Ordering::Release);
}

pub(super) fn is_known(ordinal: usize) -> bool {
    DEVICES.get(ordinal).is_none_or(|f| f.known.load(Ordering::Acquire))
}

/// Forgets everything: the devices have ended, and the next ones may be others.
pub(super) fn forget() {
    COUNT.store(UNKNOWN, Ordering::Relaxed);
    DEVICES.iter().for_each(|f| f.known.store(false, Ordering::Release));
}

/// How many devices there were at the fork; `NotPermitted` if nobody had asked before it.
pub(super) fn count() -> Result<usize> {
    match COUNT.load(Ordering::Relaxed) {
        UNKNOWN => unasked(),
        n => Ok(n),
    }
}

/// What the device reported before the fork.
pub(super) fn get(ordinal: usize, fact: Fact) -> Result<usize> {
    let count = count()?;
    if ordinal >= count {
        fail!(Code::UnknownDevice, "there is no device {ordinal} (device count: {count})");
    }
    match DEVICES.get(ordinal) {
        Some(f) if f.known.load(Ordering::Acquire) => Ok(f.values[fact as usize].load(Ordering::Relaxed)),
        _ => unasked(),
    }
}

fn unasked<T>() -> Result<T> {
    Err(Error::new(Code::NotPermitted, "a forked child knows only what its parent had asked"))
}
