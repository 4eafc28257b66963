//! Unified memory: what host and device address alike. It goes straight to the device; here is only what is live.

use super::host_memory::sane;
use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::base::room::while_kept;
use crate::base::sync::system::lock;
use crate::device::{Advice, StreamId, Unified, UnifiedPlace};
use crate::fail;
use crate::runtime::device::by_address::{Kind, explained};
use crate::runtime::device::state::DeviceState;
use crate::runtime::device::table;
use crate::runtime::entry::tags;

/// The unified memory of an open device, which host and device address alike. Get it with [`DeviceState::unified_memory`].
#[derive(Clone, Copy)]
pub struct UnifiedMemory<'a>(pub(super) &'a DeviceState);

impl DeviceState {
    /// The unified memory of the device.
    pub fn unified_memory(&self) -> UnifiedMemory<'_> {
        UnifiedMemory(self)
    }
}

impl UnifiedMemory<'_> {
    pub(super) fn facet(&self) -> Result<&dyn Unified> {
        let none = || Error::new(Code::Unsupported, "this device has no unified memory");
        self.0.device().unified().ok_or_else(none)
    }

    /// Memory that host and device address alike. 0 bytes give address 0. `Unsupported` where the
    /// device has none. The caller gives it back with [`free`](Self::free).
    pub fn alloc(&self, bytes: u64) -> Result<u64> {
        let _pass = self.0.enter()?;
        sane(bytes, "unified")?;
        if bytes == 0 {
            return Ok(0);
        }
        let facet = self.facet()?;
        let _ = self.ask_again(); // what it still refuses stays for later
        lock(&self.0.unified.0).left.expect()?;
        let got = while_kept(|| facet.alloc(bytes));
        let tag = tags::current();
        let mut unified = lock(&self.0.unified.0);
        let addr = got.inspect_err(|_| unified.left.answered((0, 0), false))?;
        if !unified.make_room(tag) {
            drop(unified);
            let refused = facet.free(addr, bytes).is_err();
            lock(&self.0.unified.0).left.answered((addr, bytes), refused);
            return Err(no_host_memory());
        }
        unified.left.answered((addr, bytes), false);
        unified.ranges.put(addr, bytes, tag);
        unified.tags.count_in(tag, bytes);
        Ok(addr)
    }

    /// Gives back what [`alloc`](Self::alloc) returned; no queued work may still use
    /// it. Address 0 does nothing. Errors: `UnknownPointer`, `DoubleFree`.
    pub fn free(&self, addr: u64) -> Result<()> {
        let _pass = self.0.enter()?;
        if addr == 0 {
            return Ok(());
        }
        let taken = {
            let mut unified = lock(&self.0.unified.0);
            let taken = unified.ranges.take(addr, "unified");
            taken.inspect(|&(bytes, tag)| unified.tags.count_out(tag, bytes))
        };
        let (bytes, tag) = taken.map_err(|e| explained(addr, Kind::Unified, e))?;
        let freed = self.facet().and_then(|u| while_kept(|| u.free(addr, bytes)));
        freed.inspect_err(|_| {
            let mut unified = lock(&self.0.unified.0);
            unified.ranges.put(addr, bytes, tag);
            unified.tags.count_again(tag, bytes);
        })
    }

    /// Asks the device again to take back what it has refused although nobody has it.
    pub(super) fn ask_again(&self) -> Result<()> {
        loop {
            let Some((addr, bytes)) = lock(&self.0.unified.0).left.next() else { return Ok(()) };
            let freed = self.facet().and_then(|u| while_kept(|| u.free(addr, bytes)));
            lock(&self.0.unified.0).left.answered((addr, bytes), freed.is_err());
            freed?;
        }
    }

    /// Queues on `stream` that the pages of a range of unified memory go to `place`, so that work after it, there, finds
    /// them. The range lies in one allocation of this device or of another one of its type. 0 bytes do nothing. Errors:
    /// `UnknownPointer`, `OutOfRange`, `UnknownStream`; `Unsupported` where the device cannot move such memory.
    pub fn prefetch(&self, stream: StreamId, addr: u64, bytes: u64, place: UnifiedPlace) -> Result<()> {
        let _pass = self.0.enter()?;
        self.0.streams().check(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        self.check(addr, bytes)?;
        self.facet()?.prefetch(stream, addr, bytes, place)
    }

    /// Says how a range of unified memory will be used, which changes what is fast and never what is right. Ranges and
    /// errors as of [`prefetch`](Self::prefetch).
    pub fn advise(&self, addr: u64, bytes: u64, advice: Advice, place: UnifiedPlace) -> Result<()> {
        let _pass = self.0.enter()?;
        if bytes == 0 {
            return Ok(());
        }
        self.check(addr, bytes)?;
        self.facet()?.advise(addr, bytes, advice, place)
    }

    fn check(&self, addr: u64, bytes: u64) -> Result<()> {
        let own = self.0.unified.check(addr, bytes);
        let others = || {
            let alike = |d: &DeviceState| d.id() != self.0.id() && d.type_name() == self.0.type_name();
            table::open_devices().filter(|d| alike(d)).find_map(|d| d.unified.check(addr, bytes))
        };
        own.or_else(others).unwrap_or_else(|| {
            fail!(
                Code::UnknownPointer,
                "no live unified memory of a {:?} holds {addr:#x}",
                self.0.type_name()
            )
        })
    }
}
