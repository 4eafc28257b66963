//! Other people's plugins as device types: the `DeviceType` and `Device` of the seam, built from the callbacks of a
//! `C_DeviceInterface`. What a plugin leaves out is built from what it has; `custom_runtime.h` documents each fallback
//! at its callback.
//!
//! Before each call the plugin's `set_device` makes the device the calling thread's current one. No lock is held across
//! a callback.

mod callbacks;
mod copies;
mod device;
mod given;
mod handles;
mod live;
mod peers;
mod plugin;
mod streams;
mod unified;
mod versions;

pub(crate) use plugin::Plugin;

use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::Mutex;
use crate::device::{Device, DeviceType};
use crate::fail;
use crate::runtime::lock;
use device::ForeignDevice;
use given::Pieces;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// More devices than any machine has; a larger count is a mistake of the plugin.
const DEVICES_MAX: usize = 1024;

/// The state from `initialize` to `finalize`.
struct Session {
    /// The plugin's id for each ordinal.
    ids: Arc<[c_int]>,
    /// Cleared by `finalize`; devices check it before each call.
    alive: Arc<AtomicBool>,
    /// Host memory that the plugin has handed out, for any device.
    host: Arc<Pieces>,
    devices: Vec<Option<Arc<ForeignDevice>>>,
}

/// The device type of a plugin.
pub(crate) struct ForeignType {
    plugin: Arc<Plugin>,
    session: Mutex<Option<Session>>,
}

impl ForeignType {
    pub(crate) fn new(plugin: Plugin) -> ForeignType {
        ForeignType { plugin: Arc::new(plugin), session: Mutex::new(None) }
    }

    fn not_initialized(&self) -> Error {
        Error::formatted(
            Code::NotInitialized,
            format_args!("the device type {:?} is not initialised", self.plugin.name()),
        )
    }

    /// Asks the plugin for the count and the ids.
    fn ids(&self) -> Result<Arc<[c_int]>> {
        let plugin = &self.plugin;
        let mut count = 0usize;
        if let Some(get_device_count) = plugin.table.get_device_count {
            // SAFETY: the plugin's contract; `count` lives for the call.
            let status = plugin.run("get_device_count", || unsafe { get_device_count(&mut count) })?;
            plugin.check("get_device_count", status)?;
        }
        if count > DEVICES_MAX {
            fail!(Code::PluginRefused, "plugin {:?}: get_device_count says {count}", plugin.name());
        }
        let mut ids: Vec<usize> = (0..count).collect();
        if let Some(get_device_list) = plugin.table.get_device_list
            && count > 0
        {
            // SAFETY: the plugin's contract; there is room for the `count` ids that it has.
            let status = plugin.run("get_device_list", || unsafe { get_device_list(ids.as_mut_ptr()) })?;
            plugin.check("get_device_list", status)?;
        }
        ids.iter()
            .map(|&id| {
                c_int::try_from(id).map_err(|_| {
                    Error::formatted(
                        Code::PluginRefused,
                        format_args!("plugin {:?}: get_device_list gave the id {id}", plugin.name()),
                    )
                })
            })
            .collect()
    }
}

impl DeviceType for ForeignType {
    fn name(&self) -> &str {
        self.plugin.name()
    }

    fn sub_name(&self) -> &str {
        self.plugin.sub_name()
    }

    fn initialize(&self) -> Result<()> {
        if lock(&self.session).is_some() {
            return Ok(());
        }
        if let Some(initialize) = self.plugin.table.initialize {
            // SAFETY: the plugin's contract; the registry calls this once.
            let status = self.plugin.run("initialize", || unsafe { initialize() })?;
            self.plugin.check("initialize", status)?;
        }
        let ids = match self.ids() {
            Ok(ids) => ids,
            Err(e) => {
                self.end_plugin().ok();
                return Err(e);
            }
        };
        let devices = ids.iter().map(|_| None).collect();
        let (alive, host) = (Arc::new(AtomicBool::new(true)), Arc::default());
        *lock(&self.session) = Some(Session { ids, alive, host, devices });
        Ok(())
    }

    fn finalize(&self) -> Result<()> {
        let Some(session) = lock(&self.session).take() else { return Ok(()) };
        // SeqCst: a call that starts after `finalize` has returned must see it.
        session.alive.store(false, Ordering::SeqCst);
        let mut result = Ok(());
        for device in session.devices.iter().flatten() {
            result = result.and(device.end());
        }
        result.and(self.end_plugin())
    }

    fn device_count(&self) -> Result<usize> {
        lock(&self.session).as_ref().map(|s| s.ids.len()).ok_or_else(|| self.not_initialized())
    }

    fn open(&self, ordinal: usize) -> Result<Arc<dyn Device>> {
        let (ids, alive, host) = {
            let session = lock(&self.session);
            let session = session.as_ref().ok_or_else(|| self.not_initialized())?;
            match session.devices.get(ordinal) {
                Some(Some(device)) => return Ok(device.clone()),
                Some(None) => (session.ids.clone(), session.alive.clone(), session.host.clone()),
                None => fail!(
                    Code::UnknownDevice,
                    "{:?} has no device {ordinal} (device count: {})",
                    self.plugin.name(),
                    session.ids.len()
                ),
            }
        };
        // Without the lock, since the plugin is called. If two threads open the same device at once, both ask, and the
        // first to come back wins.
        let device = Arc::new(ForeignDevice::open(self.plugin.clone(), ids, ordinal, alive, host)?);
        let mut session = lock(&self.session);
        let session = session.as_mut().ok_or_else(|| self.not_initialized())?;
        Ok(session.devices[ordinal].get_or_insert(device).clone())
    }
}

impl ForeignType {
    fn end_plugin(&self) -> Result<()> {
        let Some(finalize) = self.plugin.table.finalize else { return Ok(()) };
        // SAFETY: the plugin's contract; the session has ended, no call is made from now on.
        let status = self.plugin.run("finalize", || unsafe { finalize() });
        status.and_then(|s| self.plugin.check("finalize", s)).inspect_err(|_| self.plugin.keep_loaded())
    }
}

impl Drop for ForeignType {
    /// The registry has released the type. Its devices may live on, but make no more calls.
    fn drop(&mut self) {
        let _ = self.finalize();
        self.plugin.unload();
    }
}
