//! The settings of a device's memory, from options and a limit, and how they configure its pond.

use super::readings::Readings;
use super::state::{How, Memory, Released, Requested, Settings};
use crate::base::clock;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::{Mutex, lock};
use crate::core::Tuning;
use crate::device::{Device, MemoryInfo, Sharing};
use crate::runtime::entry::usage::Usage;
use crate::runtime::memory::deferred::DeferredFrees;
use crate::runtime::oom::rescue::Rescue;
use crate::runtime::options::{Backend, ExportHandle, Key, Options, Source, Strictness, Value, parse};
use crate::runtime::unpooled::Unpooled;
use crate::runtime::watch::hooks::Hooks;
use crate::runtime::watch::observe::Observers;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

/// Makes granules from now on shareable as the options demand.
fn make_for_fabric(device: &dyn Device, options: &Options) {
    if let Some(fabric) = device.sharing().and_then(Sharing::fabric) {
        fabric.make(options.export_handle() != ExportHandle::PosixFd);
    }
}

impl Memory {
    /// The memory of `device` with these options. `Unsupported` for a backend that the device does not have.
    pub(crate) fn with_options(
        device: Arc<dyn Device>,
        usage: Arc<Usage>,
        mut options: Options,
    ) -> Result<Memory> {
        if options.backend() == Backend::Driver && device.driver_pool().is_none() {
            if !options.backend_is_wish {
                return Err(Error::new(
                    Code::Unsupported,
                    "backend is cudaMallocAsync, but the driver of this device has no memory pool; it can be native or \
                     none",
                ));
            }
            options.settle(Key::Backend, Value::Backend(Backend::Native));
        }
        // Before any memory is created.
        make_for_fabric(&*device, &options);
        let observers = Arc::<Observers>::default();
        let how = match options.backend() {
            Backend::None => {
                How::Unpooled(Box::new(Unpooled::new(device.clone(), usage, observers.clone(), false)?))
            }
            Backend::Driver => {
                How::Unpooled(Box::new(Unpooled::new(device.clone(), usage, observers.clone(), true)?))
            }
            Backend::Native => Self::pool(&device, &usage, &observers, options.on(Key::ExpandableSegments))?,
        };
        // From here on the options say what is in effect, not what was asked for.
        let maps = matches!(&how, How::Pooled(p) if p.maps);
        options.settle(Key::ExpandableSegments, Value::Switch(maps));
        if matches!(how, How::Unpooled(_)) && options.backend() == Backend::Native {
            options.settle(Key::Backend, Value::Backend(Backend::None));
        }
        // For a device that does not report its memory, the maximum that it would give.
        let told = device.memory_info().ok().and_then(MemoryInfo::known);
        let total = told.map_or(device.sizes().max_alloc, |m| m.total);
        let settings = Settings { total, requested: Mutex::new(Requested { options, limit: 0 }) };
        let memory = Memory {
            how,
            rescue: Rescue::default(),
            scopes: Arc::default(),
            released: Released::default(),
            marks: AtomicU8::new(0),
            deferred: DeferredFrees::default(),
            observers,
            hooks: Hooks::default(),
            settings,
            readings: Readings::default(),
        };
        memory.act_on(&lock(&memory.settings.requested));
        Ok(memory)
    }

    /// Makes the memory behave as the settings say.
    fn act_on(&self, s: &Requested) {
        let (o, total) = (&s.options, self.settings.total);
        let fraction = o.fraction(Key::PerProcessMemoryFraction);
        // 0 means no limit below; a device of which nothing may be used has a limit of one byte.
        let share = if fraction < 1.0 { ((total as f64 * fraction) as u64).max(1) } else { u64::MAX };
        let most = if s.limit == 0 { share } else { share.min(s.limit) };
        let limit = if most == u64::MAX { 0 } else { most };
        let careful = o.on(Key::ThrowOnCudamallocOom);
        self.time_calls(o.on(Key::LatencyHistograms));
        match &self.how {
            How::Pooled(p) => {
                let threshold = o.fraction(Key::GarbageCollectionThreshold);
                p.pond.set_limit(limit);
                p.supply.set_careful(careful);
                p.supply.set_headroom(o.bytes(Key::HeadroomMb).unwrap_or_else(|| p.device.headroom()));
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
        let s = lock(&self.settings.requested);
        let usual = if s.options.pytorch { (self.settings.total / 32).min(MOST) } else { 0 };
        s.options.bytes(Key::EmptyCacheFloorMb).unwrap_or(usual)
    }

    /// How blocks are exported.
    pub(super) fn export_handle(&self) -> ExportHandle {
        lock(&self.settings.requested).options.export_handle()
    }

    /// The options as they are now.
    pub(crate) fn options(&self) -> Options {
        lock(&self.settings.requested).options.clone()
    }

    /// Changes options, all or none; see `docs/options.md`. `InvalidArgument` for a malformed text, `Busy` for an
    /// option that an open device cannot change. Returns the resulting options.
    pub(crate) fn set_options(&self, text: &str) -> Result<Options> {
        self.open()?;
        let patch = parse(text, "options", Strictness::Exact)?;
        if patch.iter().any(|(key, _)| *key == Key::LatencyHistograms) {
            clock::rate(); // may sleep, at the first time, which nobody should wait for with the lock
        }
        let mut s = lock(&self.settings.requested);
        self.open()?; // the end of the device switches off under this lock what this may switch on
        let mut options = s.options.clone();
        options.apply(&patch, Source::Program);
        s.options.check_change(&options)?;
        s.options = options;
        self.act_on(&s);
        Ok(s.options.clone())
    }

    /// Limits what the device reserves from now on, in addition to `per_process_memory_fraction`; 0 means no limit.
    pub fn set_limit(&self, bytes: u64) -> Result<()> {
        self.open()?;
        let mut s = lock(&self.settings.requested);
        s.limit = bytes;
        self.act_on(&s);
        Ok(())
    }

    /// [`set_limit`](Self::set_limit), and unused memory goes back to the device where more is reserved than that; what
    /// is reserved beyond it all the same, in bytes. After an error of that the limit is in force.
    pub fn set_budget(&self, bytes: u64) -> Result<u64> {
        self.set_limit(bytes)?;
        if bytes == 0 {
            return Ok(0);
        }
        self.trim_to(None, bytes)?;
        Ok(self.stats().reserved.current.saturating_sub(bytes))
    }
}
