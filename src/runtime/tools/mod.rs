//! Tools of others that are shown a device's memory: AddressSanitizer and memcheck, which are found at run time, or what
//! `MILLPOND_TOOLS` names of them.
//!
//! A tool watches the memory as a history does (`observe.rs`), so without one nothing is longer by an instruction.
//! AddressSanitizer and memcheck see what threads of this process do: all memory of the processor's devices, and the
//! pinned memory of every device.

use crate::base::checkers::{self, Checker};
use crate::base::error::{Code, Result};
use crate::core::PoolId;
use crate::fail;
use crate::runtime::backing::Supply;
use crate::runtime::device::DeviceState;
use crate::runtime::observe::{EventKind, Observer, Told};
use shade::Shade;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

mod shade;

const VARIABLE: &str = "MILLPOND_TOOLS";

bitflags::bitflags! {
    /// Tools that are shown memory, where they are there.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Tools: u8 {
        const ASAN = 1;
        const MEMCHECK = 2;
    }
}

impl Tools {
    /// Those that the environment names; all where it names none. `InvalidArgument` for another word.
    pub(crate) fn from_environment() -> Result<Tools> {
        match std::env::var_os(VARIABLE).filter(|v| !v.is_empty()) {
            None => Ok(Tools::all()),
            Some(text) => Tools::parse(&text.to_string_lossy()),
        }
    }

    fn parse(text: &str) -> Result<Tools> {
        let mut tools = Tools::empty();
        for word in text.split(',').map(str::trim) {
            tools |= match word {
                "asan" => Tools::ASAN,
                "memcheck" => Tools::MEMCHECK,
                "none" => Tools::empty(),
                _ => fail!(Code::InvalidArgument, "{VARIABLE} has {word:?}: want asan, memcheck or none"),
            };
        }
        Ok(tools)
    }

    /// From now on they see what happens to the device's memory.
    pub(crate) fn show(self, device: &DeviceState) -> Result<()> {
        let there =
            |tool, find: fn() -> Option<Box<dyn Checker>>| if self.contains(tool) { find() } else { None };
        let own = device.device().is_processor();
        let found = [there(Tools::ASAN, checkers::asan), there(Tools::MEMCHECK, checkers::memcheck)];
        for checker in found.into_iter().flatten() {
            let observer: Arc<dyn Observer> = Arc::new(Viewer {
                checker,
                supply: device.memory().supply().clone(),
                own,
                passing: AtomicBool::new(false),
                known: Mutex::default(),
            });
            device.memory().watch(&observer)?;
        }
        Ok(())
    }
}

impl DeviceState {
    /// The program has waited for the device, or seen that something is done: freed memory may be out of use now, and a
    /// tool wants to know.
    #[inline]
    pub(crate) fn has_waited(&self) {
        if self.memory().observers().curious() {
            self.look_again();
        }
    }

    #[cold]
    fn look_again(&self) {
        self.memory().stats(); // looks which frees have completed
        let _ = self.host_stats();
        self.memory().observers().breathe();
    }
}

/// A tool and one device's memory.
struct Viewer {
    checker: Box<dyn Checker>,
    supply: Arc<Supply>,
    /// Whether it sees the device's own memory, and not only pinned memory.
    own: bool,
    /// Whether freed memory may still be used by streams.
    passing: AtomicBool,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    shade: Shade,
    /// Pools that graphs keep.
    kept: BTreeSet<PoolId>,
}

impl Viewer {
    /// The innermost lock of all: nothing is called under it but the tool.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Viewer {
    fn saw(&self, told: &Told) {
        let Some(e) = told.event() else { return };
        if e.bytes == 0 || !(self.own || e.host) {
            return;
        }
        let (checker, at) = (&*self.checker, e.address);
        // Work on the NULL stream is done, whatever that may be for others.
        let stream = e.stream.filter(|&s| s != 0);
        let mut known = self.known();
        let kept = !e.host && known.kept.contains(&e.pool);
        let shade = &mut known.shade;
        match e.kind {
            EventKind::SegmentAlloc | EventKind::SegmentMap => shade.came(checker, at, e.bytes),
            EventKind::SegmentFree | EventKind::SegmentUnmap => shade.went(checker, at, e.bytes),
            EventKind::Alloc => shade.alloc(checker, at, e.requested),
            EventKind::FreeRequested if !e.at_once => shade.wait(at),
            EventKind::FreeCompleted if !shade.waits(at) => {} // the device was asked twice
            EventKind::FreeRequested | EventKind::FreeCompleted => shade.free(checker, at, stream, kept),
            EventKind::FreeRefused => shade.live_on(checker, at, e.requested),
            EventKind::Oom | EventKind::RecordStream | EventKind::Snapshot | EventKind::Annotate => {}
        }
        if stream.is_some() {
            self.passing.store(true, Relaxed);
        }
    }

    fn breathes(&self) -> bool {
        true
    }

    fn is_curious(&self) -> bool {
        true
    }

    fn breathe(&self) {
        if !self.passing.load(Relaxed) {
            return;
        }
        let streams = {
            let known = self.known();
            let streams = known.shade.streams();
            self.passing.store(!streams.is_empty(), Relaxed);
            streams
        };
        for (stream, number) in streams {
            if self.supply.is_idle(stream) {
                self.known().shade.passed(&*self.checker, stream, number);
            }
        }
    }

    fn reaches(&self, address: u64, bytes: u64, done: bool) {
        if self.own && bytes != 0 {
            let shade = &mut self.known().shade;
            match done {
                false => shade.lift(&*self.checker, address, bytes),
                true => shade.lower(&*self.checker, address, bytes),
            }
        }
    }

    fn keeps(&self, pool: PoolId) {
        self.known().kept.insert(pool);
    }

    fn left(&self) {
        self.known().shade.end(&*self.checker);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn words_name_tools() {
        assert_eq!(Tools::parse("asan , memcheck").unwrap(), Tools::all());
        assert_eq!(Tools::parse("none").unwrap(), Tools::empty());
        let e = Tools::parse("asan,memchek").unwrap_err();
        assert_eq!(e.code(), Code::InvalidArgument);
        assert!(e.message().contains("\"memchek\""), "{e}");
    }
}
