//! The settings of a device's memory, from options and a limit, and how they configure its pond.

use super::state::{How, Memory, Requested};
use crate::base::clock;
use crate::base::error::Result;
use crate::base::room::check_room;
use crate::base::sync::system::lock;
use crate::core::Tuning;
use crate::device::{Device, Sharing};
use crate::runtime::options::{ExportHandle, Key, Options, Source, Strictness, parse};
use crate::runtime::watch::latency;

/// Makes granules from now on shareable as the options demand.
pub(super) fn make_for_fabric(device: &dyn Device, options: &Options) {
    if let Some(fabric) = device.sharing().and_then(Sharing::fabric) {
        fabric.make(options.export_handle() != ExportHandle::PosixFd);
    }
}

/// Whether the host has memory for what the options switch on.
pub(super) fn check_room_for(options: &Options) -> Result<()> {
    if options.on(Key::LatencyHistograms) { check_room(latency::ROOM) } else { Ok(()) }
}

/// The settings of one device's memory. Get it with [`Memory::settings`].
#[derive(Clone, Copy)]
pub struct MemorySettings<'a>(pub(super) &'a Memory);

impl Memory {
    /// The settings.
    pub fn settings(&self) -> MemorySettings<'_> {
        MemorySettings(self)
    }
}

impl MemorySettings<'_> {
    /// Makes the memory behave as the settings say.
    pub(super) fn act_on(&self, s: &Requested) {
        let (o, total) = (&s.options, self.0.settings.total);
        let fraction = o.fraction(Key::PerProcessMemoryFraction);
        // 0 means no limit below; a device of which nothing may be used has a limit of one byte.
        let share = if fraction < 1.0 { ((total as f64 * fraction) as u64).max(1) } else { u64::MAX };
        let most = if s.limit == 0 { share } else { share.min(s.limit) };
        let limit = if most == u64::MAX { 0 } else { most };
        let careful = o.on(Key::ThrowOnCudamallocOom);
        self.time_calls(o.on(Key::LatencyHistograms));
        let device = match &self.0.how {
            How::Pooled(p) => &*p.device,
            How::Unpooled(u) => u.device(),
        };
        if let Some(external) = device.external_streams() {
            external.set_announced(o.on(Key::StreamsAnnounced));
        }
        match &self.0.how {
            How::Pooled(p) => {
                let threshold = o.fraction(Key::GarbageCollectionThreshold);
                p.pond.set_limit(limit);
                p.supply.set_careful(careful);
                p.supply.set_headroom(o.bytes(Key::HeadroomMb).unwrap_or_else(|| p.device.facts().headroom));
                make_for_fabric(&*p.device, o);
                p.pond.tune(Tuning {
                    max_split: o.bytes(Key::MaxSplitSizeMb).unwrap_or(0),
                    max_round: o.bytes(Key::MaxNonSplitRoundingMb).unwrap_or(0),
                    divisions: o.divisions().0,
                    collect_above: if threshold > 0.0 {
                        ((most.min(total) as f64 * threshold) as u64).max(1)
                    } else {
                        0
                    },
                    segment: o.bytes(Key::LargeSegmentSizeMb).unwrap_or(0),
                    in_one_piece: !o.on(Key::Scatter),
                });
            }
            How::Unpooled(u) => u.set_bounds(limit, careful),
        }
    }

    /// [B] how much unused memory `empty_cache` leaves. PyTorch calls it before each capture of a graph, which would pay
    /// for all memory again: there it is by default a 32nd of the device, and 2 GiB at most.
    pub(super) fn empty_cache_floor(&self) -> u64 {
        const MOST: u64 = 2 << 30;
        let s = lock(&self.0.settings.requested);
        let usual = if s.options.pytorch { (self.0.settings.total / 32).min(MOST) } else { 0 };
        s.options.bytes(Key::EmptyCacheFloorMb).unwrap_or(usual)
    }

    /// How blocks are exported.
    pub(super) fn export_handle(&self) -> ExportHandle {
        lock(&self.0.settings.requested).options.export_handle()
    }

    /// \[B\] of each block's charge that the device has for itself.
    pub(crate) fn padding(&self) -> u64 {
        match &self.0.how {
            How::Pooled(p) => p.pond.special().padding(),
            How::Unpooled(u) => u.padding(),
        }
    }

    /// The options as they are now.
    pub(crate) fn options(&self) -> Options {
        lock(&self.0.settings.requested).options.clone()
    }

    /// Changes options, all or none; see `docs/options.md`. `InvalidArgument` for a malformed text, `Busy` for an
    /// option that an open device cannot change. Returns the resulting options.
    pub(crate) fn set_options(&self, text: &str) -> Result<Options> {
        self.0.open()?;
        let patch = parse(text, "options", Strictness::Exact)?;
        if patch.iter().any(|(key, _)| *key == Key::LatencyHistograms) {
            clock::rate(); // may sleep, at the first time, which nobody should wait for with the lock
        }
        let mut s = lock(&self.0.settings.requested);
        self.0.open()?; // the end of the device switches off under this lock what this may switch on
        let mut options = s.options.clone();
        options.apply(&patch, Source::Program);
        s.options.check_change(&options)?;
        check_room_for(&options)?;
        s.options = options;
        self.act_on(&s);
        Ok(s.options.clone())
    }

    /// Limits what the device reserves from now on, in addition to `per_process_memory_fraction`; 0 means no limit.
    pub fn set_limit(&self, bytes: u64) -> Result<()> {
        self.0.open()?;
        let mut s = lock(&self.0.settings.requested);
        s.limit = bytes;
        self.act_on(&s);
        Ok(())
    }

    /// [`set_limit`](Self::set_limit), and unused memory goes back to the device where more is reserved than that; what
    /// is reserved beyond it all the same, in bytes. After an error of that the limit is in force.
    pub fn set_budget(&self, bytes: u64) -> Result<u64> {
        self.set_limit(bytes)?;
        if bytes == 0 {
            self.0.pools().end_released();
            return Ok(0);
        }
        self.0.trim_to(None, bytes)?;
        Ok(self.0.stats().reserved.current.saturating_sub(bytes))
    }
}
