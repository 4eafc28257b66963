//! Tools of others that watch a device's memory: AddressSanitizer, memcheck, and tools that speak NVTX. Each is told if it is
//! there at run time, or only those that `MILLPOND_TOOLS` names.
//!
//! A tool watches memory as a history does (`watch/observe.rs`), so a program without one pays nothing. AddressSanitizer and
//! memcheck see what threads of this process do: they watch all memory of the processor's devices, and the pinned memory
//! of every device. Tools that speak NVTX watch the memory of all other devices.
//!
//! This file decides when a tool is told what. `shade.rs` remembers which memory may be touched; `checker.rs` is what a
//! tool can be told, and `asan.rs`, `memcheck.rs` and `heaps.rs` (for tools that speak NVTX) are the tools.

use crate::base::error::{Code, Result};
use crate::base::ordered::Set;
use crate::base::sync::system::{Mutex, MutexGuard, lock};
use crate::core::PoolId;
use crate::device::StreamId;
use crate::fail;
use crate::locks;
use crate::runtime::device::state::DeviceState;
use crate::runtime::nvtx;
use crate::runtime::watch::event::{EventKind, Told};
use crate::runtime::watch::observe::Observer;
use checker::Checker;
use heaps::Heaps;
use shade::{ENDED, Shade};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

mod asan;
mod checker;
mod heaps;
mod memcheck;
mod shade;

const VARIABLE: &str = "MILLPOND_TOOLS";

bitflags::bitflags! {
    /// Tools that are shown memory, where they are there.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Tools: u8 {
        const ASAN = 1;
        const MEMCHECK = 2;
        const NVTX = 4;
        /// Tools that speak NVTX are told of memory in mapped pieces, too. compute-sanitizer takes only heaps that are one
        /// whole `cuMemAlloc`, and counts each other one as an error of the program.
        const NVTX_MAPPED = 8;
    }
}

impl Tools {
    /// Those that the environment names; where it names none, all, as far as each takes what it is told. `InvalidArgument` for another word.
    pub(crate) fn from_environment() -> Result<Tools> {
        match std::env::var_os(VARIABLE).filter(|v| !v.is_empty()) {
            None => Ok(Tools::all() - Tools::NVTX_MAPPED),
            Some(text) => Tools::parse(&text.to_string_lossy()),
        }
    }

    fn parse(text: &str) -> Result<Tools> {
        let mut tools = Tools::empty();
        for word in text.split(',').map(str::trim) {
            tools |= match word {
                "asan" => Tools::ASAN,
                "memcheck" => Tools::MEMCHECK,
                "nvtx" => Tools::NVTX | Tools::NVTX_MAPPED,
                "none" => Tools::empty(),
                _ => {
                    fail!(Code::InvalidArgument, "{VARIABLE} has {word:?}: want asan, memcheck, nvtx or none")
                }
            };
        }
        Ok(tools)
    }

    /// From now on they see what happens to the device's memory.
    pub(crate) fn show(self, device: &Arc<DeviceState>) -> Result<()> {
        let own = device.device().facts().is_processor;
        let watch = |checker, own, pinned| {
            let observer: Arc<dyn Observer> = Arc::new(Viewer::new(checker, device, own, pinned));
            device.memory().watchers().add(&observer)
        };
        if self.contains(Tools::ASAN)
            && let Some(asan) = asan::find()
        {
            watch(asan, own, true)?;
        }
        if self.contains(Tools::MEMCHECK)
            && let Some(memcheck) = memcheck::find()
        {
            watch(memcheck, own, true)?;
        }
        if self.contains(Tools::NVTX) && !own {
            // Not sooner: compute-sanitizer wants CUDA to be started before.
            nvtx::start();
            let mapped = device.device().mapping().is_some();
            if let Some(memory) = nvtx::memory().filter(|_| !mapped || self.contains(Tools::NVTX_MAPPED)) {
                watch(Box::new(Heaps::new(memory)), true, false)?;
            }
        }
        Ok(())
    }
}

/// A tool and one device's memory.
struct Viewer {
    device: Weak<DeviceState>,
    /// Whether it sees the device's own memory.
    own: bool,
    /// Whether it sees the device's pinned memory.
    pinned: bool,
    /// Whether freed memory may still be used by streams.
    passing: AtomicBool,
    known: Mutex<Known, locks::Tool>,
}

/// The tool, and what it was told: under one lock, since the tool must hear of each range in the order of what happens.
struct Known {
    checker: Box<dyn Checker>,
    shade: Shade,
    /// Pools that graphs keep.
    kept: Set<PoolId>,
}

impl Viewer {
    fn new(checker: Box<dyn Checker>, device: &Arc<DeviceState>, own: bool, pinned: bool) -> Viewer {
        let known = Known { checker, shade: Shade::default(), kept: Set::new() };
        Viewer {
            device: Arc::downgrade(device),
            own,
            pinned,
            passing: AtomicBool::new(false),
            known: Mutex::new(known),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known, locks::Tool> {
        lock(&self.known)
    }
}

impl Observer for Viewer {
    fn saw(&self, told: &Told) {
        let Some(e) = told.event() else { return };
        if e.bytes == 0 || !(if e.host { self.pinned } else { self.own }) {
            return;
        }
        let at = e.address;
        let stream = if e.ended { Some(ENDED) } else { e.stream };
        let mut known = self.known();
        let Known { checker, shade, kept } = &mut *known;
        let checker = &mut **checker;
        let kept = !e.host && kept.contains(&e.pool);
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
        let Some(device) = self.device.upgrade() else { return };
        let memory = device.memory();
        let streams = {
            let known = self.known();
            let streams = known.shade.streams();
            self.passing.store(!streams.is_empty(), Relaxed);
            streams
        };
        for (stream, number) in streams {
            if memory.backing().is_idle(memory.order(), stream) {
                let known = &mut *self.known();
                known.shade.passed(&mut *known.checker, stream, number);
            }
        }
    }

    fn reaches(&self, address: u64, bytes: u64, done: bool) {
        if self.own && bytes != 0 {
            let known = &mut *self.known();
            match done {
                false => known.shade.lift(&mut *known.checker, address, bytes),
                true => known.shade.lower(&mut *known.checker, address, bytes),
            }
        }
    }

    fn keeps(&self, pool: PoolId) {
        self.known().kept.insert(pool);
    }

    fn ended(&self, stream: StreamId) {
        self.known().shade.ended(stream);
    }

    fn left(&self) {
        let known = &mut *self.known();
        known.shade.end(&mut *known.checker);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    use crate::runtime;
    use crate::runtime::watch::event::Event;
    use std::sync::Mutex;

    /// Counts what it is told.
    #[derive(Default)]
    struct Count(Arc<Mutex<Vec<u64>>>);

    impl Checker for Count {
        fn close(&mut self, address: u64, _: u64) {
            self.0.lock().unwrap().push(address);
        }
        fn open(&mut self, address: u64, _: u64) {
            self.0.lock().unwrap().push(address);
        }
        fn give(&mut self, address: u64, _: u64) {
            self.0.lock().unwrap().push(address);
        }
        fn take(&mut self, address: u64, _: u64) {
            self.0.lock().unwrap().push(address);
        }
        fn forget(&mut self, _: u64, _: u64) {}
    }

    /// Of a device whose memory is not the processor's a checker learns of pinned memory only.
    #[test]
    fn memory_of_other_devices_is_never_told_of() {
        let device = runtime::device("host", 0).unwrap();
        let heard = Arc::<Mutex<Vec<u64>>>::default();
        let viewer = |own| Viewer::new(Box::new(Count(heard.clone())), &device, own, true);
        let tell = |v: &Viewer, host| {
            let whole = Event { host, ..Event::range(EventKind::SegmentAlloc, 4096, 4096) };
            v.saw(&Told::new(&whole));
            v.saw(&Told::new(&Event { kind: EventKind::Alloc, requested: 10, ..whole }));
            v.reaches(4096, 100, false);
            std::mem::take(&mut *heard.lock().unwrap())
        };
        assert!(tell(&viewer(false), false).is_empty());
        assert_eq!(tell(&viewer(false), true), [4096, 4096]);
        assert_eq!(tell(&viewer(true), false), [4096, 4096, 4096]);
    }

    #[test]
    fn words_name_tools() {
        assert_eq!(Tools::parse("asan , memcheck,nvtx").unwrap(), Tools::all());
        assert_eq!(Tools::parse("none").unwrap(), Tools::empty());
        let e = Tools::parse("asan,memchek").unwrap_err();
        assert_eq!(e.code(), Code::InvalidArgument);
        assert!(e.message().contains("\"memchek\""), "{e}");
    }
}
