//! How the memory of a device is put together: a pond where its sizes and the options allow, else without pooling.

use super::deferred::DeferredFrees;
use super::marks::Marks;
use super::pooled::{Pooled, config_of};
use super::readings::Readings;
use super::released::Released;
use super::settings::{check_room_for, make_for_fabric};
use super::state::{How, Memory, Requested, Settings};
use crate::base::error::{Code, Error, Result};
use crate::base::room::while_kept;
use crate::base::sync::system::{Mutex, lock};
use crate::core::Pond;
use crate::device::{Device, MemoryInfo};
use crate::runtime::entry::usage::Usage;
use crate::runtime::group::membership::Membership;
use crate::runtime::oom::explain;
use crate::runtime::oom::rescue::Rescue;
use crate::runtime::options::{Backend, Key, Options, Value};
use crate::runtime::unpooled::Unpooled;
use crate::runtime::watch::hooks::Hooks;
use crate::runtime::watch::observe::Observers;
use std::sync::Arc;

/// A pond over the device; memory without pooling where its sizes do not allow one.
fn pond_over(
    device: &Arc<dyn Device>,
    usage: &Arc<Usage>,
    seen: &Arc<Observers>,
    expandable: bool,
) -> Result<How> {
    let config = config_of(&**device, expandable)?;
    if Pond::span(&config).is_err() {
        let unpooled = Unpooled::new(device.clone(), usage.clone(), seen.clone(), false)?;
        return Ok(How::Unpooled(Box::new(unpooled)));
    }
    let new = |config| Pooled::new(device.clone(), usage.clone(), seen.clone(), config);
    let pooled = match new(config) {
        // A device that says now that it cannot map after all gives segments.
        Err(_) if config.mapping && device.mapping().is_none() => new(config_of(&**device, expandable)?)?,
        other => other?,
    };
    Ok(How::Pooled(Box::new(pooled)))
}

impl Memory {
    /// The memory of `device`, empty, with the built-in options. A device whose sizes cannot be pooled is served
    /// without pooling.
    pub fn new(device: Arc<dyn Device>) -> Result<Memory> {
        Memory::with_options(device, Arc::new(Usage::new()), Options::default())
    }

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
        check_room_for(&options)?;
        explain::prepare();
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
            Backend::Native => pond_over(&device, &usage, &observers, options.on(Key::ExpandableSegments))?,
        };
        // From here on the options say what is in effect, not what was asked for.
        let maps = matches!(&how, How::Pooled(p) if p.maps);
        options.settle(Key::ExpandableSegments, Value::Switch(maps));
        if matches!(how, How::Unpooled(_)) && options.backend() == Backend::Native {
            options.settle(Key::Backend, Value::Backend(Backend::None));
        }
        // For a device that does not report its memory, the maximum that it would give.
        let told = while_kept(|| device.memory_info()).ok().and_then(MemoryInfo::known);
        let total = told.map_or(device.sizes().max_alloc, |m| m.total);
        let settings = Settings { total, requested: Mutex::new(Requested { options, limit: 0 }) };
        let memory = Memory {
            how,
            rescue: Rescue::default(),
            group: Membership::default(),
            scopes: Arc::default(),
            released: Released::default(),
            marks: Marks::default(),
            deferred: DeferredFrees::default(),
            observers,
            hooks: Hooks::default(),
            settings,
            names: Arc::default(),
            readings: Readings::default(),
        };
        memory.settings().act_on(&lock(&memory.settings.requested));
        Ok(memory)
    }
}
