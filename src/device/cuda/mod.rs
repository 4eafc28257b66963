//! The device type `cuda`: NVIDIA GPUs over the CUDA driver API, found at run time.
//!
//! Building needs nothing of CUDA, and nothing is loaded before the type is asked for. Without a driver, without a
//! device, or with a driver before CUDA 11.4 the type has no devices, and says why (`DeviceType::absence`). Counting
//! devices does not start CUDA; opening one does.
//!
//! `api.rs` finds the driver's functions, and only `driver.rs` calls them. `context.rs` is the way in, `card.rs` what
//! all facets share; `device.rs` is the front; `streams`, `mapping`, `pool`, `sharing` and `peers` are its facets;
//! `memory`,
//! `granules`, `granted`, `fabric`, `handles` and `callbacks` do the work. `docs/cuda.md` is for users.
//!
//! All calls return `NotPermitted` in a forked child of a process that has started CUDA, and in host callbacks of the
//! driver; after `finalize` they return `NotInitialized`.

mod api;
mod callbacks;
mod card;
mod common;
mod context;
mod copies;
mod device;
mod driver;
mod fabric;
mod granted;
mod granules;
mod handles;
mod mapping;
mod memory;
mod nvml;
mod peers;
mod pool;
mod probe;
mod registration;
mod sharing;
mod slots;
mod streams;
mod unified;

use crate::base::error::{Code, Error, Result};
use crate::base::fork;
use crate::base::sync::system::{Mutex, MutexGuard, lock};
use crate::device::{Device, DeviceType};
use crate::fail;
use crate::locks;
pub use common::CudaOptions;
use common::Family;
use device::CudaDevice;
use driver::Driver;
use std::ffi::OsStr;
use std::sync::Arc;

/// CUDA in this process.
struct Started {
    driver: Driver,
    count: usize,
    devices: Vec<Option<Arc<CudaDevice>>>,
    family: Family,
}

enum State {
    /// Nobody has asked for a device yet.
    Asleep,
    Awake(Started),
    /// It cannot start, for this reason.
    Absent(String),
}

/// The device type.
pub struct CudaType {
    options: CudaOptions,
    state: Mutex<State, locks::CudaType>,
}

impl CudaType {
    /// The type, asleep.
    pub fn new(options: CudaOptions) -> CudaType {
        CudaType { options, state: Mutex::new(State::Asleep) }
    }

    fn lock(&self) -> MutexGuard<'_, State, locks::CudaType> {
        lock(&self.state)
    }

    fn library(&self) -> Option<&OsStr> {
        self.options.library.as_deref()
    }

    fn start(&self) -> Result<Started> {
        fork::watch()?;
        let driver = Driver::load(self.library())?;
        driver.init()?;
        let count = driver.device_count()?;
        if count == 0 {
            fail!(Code::UnknownDevice, "the CUDA driver shows no device{}", hint());
        }
        let family = Family { born: fork::count(), makers: Arc::default(), siblings: Arc::default() };
        Ok(Started { driver, count, devices: vec![None; count], family })
    }

    /// How many devices there will be, if that can be told without starting CUDA.
    fn foreseen(&self) -> Result<Option<usize>> {
        Driver::load(self.library())?;
        Ok(probe::count(self.options.nvml.as_deref(), self.options.library.is_none()))
    }

    fn wake_up<'a>(&self, state: &'a mut State) -> &'a mut State {
        if let State::Asleep = state {
            *state = match self.start() {
                Ok(started) => State::Awake(started),
                Err(e) => State::Absent(e.message().to_owned()),
            };
        }
        state
    }
}

/// A hint for error messages: what may have hidden the devices.
fn hint() -> String {
    match std::env::var_os("CUDA_VISIBLE_DEVICES") {
        Some(v) => format!(" (CUDA_VISIBLE_DEVICES is {v:?})"),
        None => String::new(),
    }
}

impl DeviceType for CudaType {
    fn name(&self) -> &str {
        "cuda"
    }

    /// Does nothing: CUDA is started by `wake`.
    fn initialize(&self) -> Result<()> {
        Ok(())
    }

    /// Gives everything back, even if the driver fails meanwhile; then returns the first failure.
    fn finalize(&self) -> Result<()> {
        let state = std::mem::replace(
            &mut *self.lock(),
            State::Absent("the device type \"cuda\" was finalised".to_owned()),
        );
        let State::Awake(started) = state else { return Ok(()) };
        let devices: Vec<_> = started.devices.into_iter().flatten().collect();
        devices.iter().for_each(|d| d.shut());
        let mut first = Ok(());
        for d in devices {
            first = first.and(d.end());
        }
        first
    }

    fn device_count(&self) -> Result<usize> {
        let mut state = self.lock();
        if let State::Asleep = *state {
            match self.foreseen() {
                Ok(Some(n)) => return Ok(n),
                Ok(None) => {}
                Err(_) => return Ok(0),
            }
        }
        match self.wake_up(&mut state) {
            State::Awake(s) => Ok(s.count),
            _ => Ok(0),
        }
    }

    fn wake(&self) {
        self.wake_up(&mut self.lock());
    }

    fn absence(&self) -> Option<String> {
        match &*self.lock() {
            State::Awake(_) => None,
            State::Absent(why) => Some(why.clone()),
            State::Asleep => match self.foreseen() {
                Err(e) => Some(e.message().to_owned()),
                Ok(Some(0)) => Some(format!("the machine shows no NVIDIA GPU{}", hint())),
                Ok(_) => None,
            },
        }
    }

    fn open(&self, ordinal: usize) -> Result<Arc<dyn Device>> {
        let mut state = self.lock();
        let started = match self.wake_up(&mut state) {
            State::Awake(s) => s,
            State::Absent(why) => return Err(Error::new(Code::UnknownDevice, why.clone())),
            State::Asleep => return Err(Error::new(Code::Internal, "CUDA did not wake up")),
        };
        let Some(slot) = started.devices.get_mut(ordinal) else {
            fail!(Code::UnknownDevice, "CUDA has no device {ordinal} (device count: {})", started.count);
        };
        let device = match slot {
            Some(d) => d.clone(),
            None => {
                let d = CudaDevice::open(started.driver, ordinal, &started.family, &self.options)?;
                slot.insert(Arc::new(d)).clone()
            }
        };
        Ok(device)
    }
}
