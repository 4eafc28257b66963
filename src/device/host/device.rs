//! One host device, as the rest of the library sees it: each call passes the gate, checks its arguments, and is
//! delegated to the module that does the work.
//!
//! Stream 0 is like CUDA's legacy default stream: work on it first waits for all work queued on the
//! device, then runs on the calling thread and is complete on return. Blocking copies and fills are
//! work on stream 0. Inside a callback of any host stream, calls that could wait return `NotPermitted`.

use super::granules::Granules;
use super::memory::Kind;
use super::process;
use super::shared::{Shared, State};
use super::stream::{Point, Stream, Work};
use crate::base::boxed::text_if_it_fits;
use crate::base::error::{Code, Error, Result};
use crate::device::{
    Caps, CopyKind, Device, Facts, GRANULE, HostWish, Identity, Mapping, MemoryInfo, Peers, Registration,
    Sharing, Sizes, StreamId, Streams, Unified, Versions, no_stream,
};
use crate::fail;
use std::sync::{Arc, OnceLock};

/// [B] requests are rounded up to this; a multiple of the alignment that copies and kernels want.
const MIN_CHUNK: u64 = 512;
/// [B] taken from the system at once if granules cannot be mapped: large enough for few calls, small enough to leave
/// little idle. It is committed only as it is touched.
const SEGMENT: u64 = 64 << 20;
/// Without mapping, a block above 1 / this of the capacity is not kept when it is freed: one such block would make much
/// of the device unusable for requests of other sizes.
const MAX_CHUNK_PART: u64 = 4;
/// The version of this crate, as `major * 10000 + minor * 100 + patch`.
const VERSION: u64 = number(env!("CARGO_PKG_VERSION_MAJOR")) * 10000
    + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
    + number(env!("CARGO_PKG_VERSION_PATCH"));

const fn number(text: &str) -> u64 {
    let (digits, mut value, mut i) = (text.as_bytes(), 0, 0);
    while i < digits.len() {
        value = value * 10 + (digits[i] - b'0') as u64;
        i += 1;
    }
    value
}

/// One device of a host type.
pub(super) struct HostDevice {
    pub(super) shared: Arc<Shared>,
    pub(super) ordinal: usize,
}

impl HostDevice {
    pub(super) fn state(&self) -> &State {
        &self.shared.devices[self.ordinal]
    }

    /// Runs work as stream 0 does. First waits for all work of this device and of `also`, if given.
    pub(super) fn run_now(&self, work: Work, also: Option<&State>) -> Result<()> {
        process::check_may_block()?;
        self.state().drain();
        if let Some(other) = also {
            other.drain();
        }
        work.run(&self.shared.panics);
        Ok(())
    }

    /// Queues work, or runs it at once if it is for stream 0. The returned point, if any, includes the work.
    pub(super) fn queue(&self, stream: StreamId, work: Work) -> Result<Option<Point>> {
        if stream == 0 {
            return self.run_now(work, None).map(|()| None);
        }
        push(&self.state().stream(stream)?, stream, work).map(Some)
    }

    /// Checks the stream of a call that has nothing to queue.
    pub(super) fn check_stream(&self, stream: StreamId) -> Result<()> {
        if stream == 0 { Ok(()) } else { self.state().stream(stream).map(drop) }
    }

    pub(super) fn take_back(&self, kind: Kind, addr: u64, bytes: u64) -> Result<()> {
        // Queued copies may still access the memory; unmapped, it would crash the process.
        let _pass = self.shared.enter_blocking()?;
        self.shared.blocks.check(self.ordinal, kind, addr, bytes)?;
        self.shared.devices.iter().for_each(State::drain);
        self.shared.blocks.free(&self.state().budget, kind, addr, bytes)
    }

    pub(super) fn granules(&self) -> Result<&Granules> {
        let none = || Error::new(Code::Unsupported, "this host device cannot map memory");
        self.state().granules.as_ref().ok_or_else(none)
    }
}

/// The processor's name, as Linux tells it on x86.
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

pub(super) fn push(target: &Arc<Stream>, id: StreamId, work: Work) -> Result<Point> {
    target.push(work)?.ok_or_else(|| no_stream(id))
}

impl Device for HostDevice {
    fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Its name is the processor's.
    fn facts(&self) -> Facts {
        static NAME: OnceLock<String> = OnceLock::new();
        let known = NAME.get_or_init(|| processor().unwrap_or_default());
        let name = text_if_it_fits(known); // who sets a limit does not read it
        Facts {
            identity: Identity { name, ..Identity::default() },
            host_access: true,
            pinned: true,
            segments_grow: true,
            is_processor: true,
            ..Facts::default()
        }
    }

    fn lack(&self, cap: Caps) -> String {
        if cap == Caps::RDMA {
            return "it is the processor's memory, which every network library registers itself".to_owned();
        }
        match &self.state().no_granules {
            Some(e) => e.message().to_owned(),
            None => "it was made to serve segments, as `cpu` always is, and `host` with MILLPOND_HOST_MAPPING=0 or \
                     disable_mapping"
                .to_owned(),
        }
    }

    fn sizes(&self) -> Sizes {
        let all = self.shared.options.capacity;
        // With mapping, memory is taken by the granule, whatever these sizes say.
        let mapping = self.state().granules.is_some();
        let segment = if mapping { all } else { SEGMENT.min(all) };
        Sizes {
            min_chunk: MIN_CHUNK,
            max_chunk: if mapping { all } else { segment.max(all / MAX_CHUNK_PART / GRANULE * GRANULE) },
            max_alloc: all,
            padding: 0,
            init_alloc: segment,
            realloc: segment,
        }
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let _pass = self.shared.enter()?;
        let budget = &self.state().budget;
        Ok(MemoryInfo { total: budget.capacity(), free: budget.free() })
    }

    fn versions(&self) -> Versions {
        Versions { compute_capability: 0, runtime: VERSION, driver: VERSION }
    }

    fn set_current(&self) -> Result<()> {
        self.shared.enter().map(drop)
    }

    fn synchronize(&self) -> Result<()> {
        let _pass = self.shared.enter_blocking()?;
        self.state().drain();
        Ok(())
    }

    fn alloc(&self, bytes: u64) -> Result<u64> {
        let _pass = self.shared.enter()?;
        if !bytes.is_multiple_of(MIN_CHUNK) {
            fail!(Code::InvalidArgument, "{bytes} bytes asked for: not a multiple of {MIN_CHUNK}");
        }
        self.shared.blocks.alloc(&self.state().budget, Kind::Device, bytes)
    }

    fn free(&self, addr: u64, bytes: u64) -> Result<()> {
        let _pass = self.shared.enter()?;
        self.shared.blocks.free(&self.state().budget, Kind::Device, addr, bytes)
    }

    fn host_alloc(&self, bytes: u64, wish: HostWish) -> Result<u64> {
        let _pass = self.shared.enter()?;
        let threads = if wish.register { wish.threads.max(1) } else { 0 };
        self.shared.blocks.alloc_touched(&self.state().budget, Kind::Pinned, bytes, threads)
    }

    /// Waits for all work queued on the type's devices, which may still use the memory.
    fn host_free(&self, addr: u64, bytes: u64) -> Result<()> {
        self.take_back(Kind::Pinned, addr, bytes)
    }

    fn copy(&self, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        self.copy_now(kind, dst, src, bytes)
    }

    fn copy_async(&self, stream: StreamId, kind: CopyKind, dst: u64, src: u64, bytes: u64) -> Result<()> {
        self.queue_copy(stream, kind, dst, src, bytes)
    }

    fn memset(&self, dst: u64, value: u8, bytes: u64) -> Result<()> {
        self.fill_now(dst, value, bytes)
    }

    fn memset_async(&self, stream: StreamId, dst: u64, value: u8, bytes: u64) -> Result<()> {
        self.queue_fill(stream, dst, value, bytes)
    }

    fn streams(&self) -> &dyn Streams {
        self
    }

    fn mapping(&self) -> Option<&dyn Mapping> {
        self.state().granules.is_some().then_some(self)
    }

    fn unified(&self) -> Option<&dyn Unified> {
        Some(self)
    }

    fn registration(&self) -> Option<&dyn Registration> {
        Some(self)
    }

    fn sharing(&self) -> Option<&dyn Sharing> {
        self.state().granules.is_some().then_some(self)
    }

    fn peers(&self) -> Option<&dyn Peers> {
        Some(self)
    }
}
