//! The state of the backing of one device, and what each of its calls begins with.
//!
//! `call` keeps the device from ending (`entry/usage.rs`) and notes on the thread that it is inside. No lock is held while
//! the device runs: a debug build checks that.

use super::calls::{Calls, mapping_of};
use super::kept::Kept;
use super::places::Places;
use super::points::Points;
use super::refused::Refused;
use super::segments::Segments;
use crate::base::error::{Code, Error, Result};
use crate::base::ordered::{Map, Set};
use crate::base::sync::levels::{Called, check_unlocked};
use crate::base::sync::system::{Mutex, lock};
use crate::base::sync::thread_token;
use crate::core::GRANULE;
use crate::device::{Device, EventId, Mapping, StreamId};
use crate::runtime::entry::reentry::InCall;
use crate::runtime::entry::usage::{Pass, Usage};
use crate::runtime::watch::observe::Observers;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// The backing of one device's memory.
pub(crate) struct DeviceBacking {
    pub(super) device: Arc<dyn Device>,
    usage: Arc<Usage>,
    pub(crate) observers: Arc<Observers>,
    /// The thread that ends the device, whose calls are still allowed after that; 0: none.
    closer: AtomicU64,
    pub(super) places: Arc<Places>,
    pub(super) maps: bool,
    /// Whether the device's free memory is checked before a request is passed on.
    pub(super) careful: AtomicBool,
    pub(super) headroom: AtomicU64, // [B] of the device that are left to others
    pub(super) calls: Calls,
    pub(super) spare: Mutex<Vec<EventId>>, // events of ours that are not in use
    pub(super) made: AtomicUsize,          // how many there are of ours
    pub(super) dead: Mutex<Vec<EventId>>, // events that the caller has destroyed, to be destroyed with the next call
    pub(crate) points: Points,
    pub(crate) segments: Segments,
    pub(super) saved: Mutex<Map<u32, Kept>>, // contents of sleeping granules, by the first granule
    pub(super) refused_kept: Mutex<Vec<Kept>>, // of copies that are over: what the device refused to take back
    pub(super) refused: Refused,               // granules that the device did not take back
    pub(super) views: Refused,                 // addresses that are still mapped, though nobody uses them
    pub(super) streams: Mutex<Set<StreamId>>,
    owner: OnceLock<(u32, String)>, // the number and the name of the device
}

/// A call on the device. The device does not end before this is dropped, and the thread is known to be inside.
pub(crate) struct Call<'a> {
    pub(super) device: &'a dyn Device,
    _pass: Option<Pass<'a>>,
    _in: InCall,
}

impl DeviceBacking {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        usage: Arc<Usage>,
        observers: Arc<Observers>,
        places: Arc<Places>,
        maps: bool,
    ) -> DeviceBacking {
        DeviceBacking {
            device,
            usage,
            calls: Calls::new(observers.clone()),
            observers,
            closer: AtomicU64::new(0),
            places,
            maps,
            careful: AtomicBool::new(false),
            headroom: AtomicU64::new(0),
            spare: Mutex::default(),
            made: AtomicUsize::new(0),
            dead: Mutex::default(),
            points: Points::default(),
            segments: Segments::default(),
            saved: Mutex::default(),
            refused_kept: Mutex::default(),
            refused: Refused::default(),
            views: Refused::default(),
            streams: Mutex::new(Set::from([0])),
            owner: OnceLock::new(),
        }
    }

    /// The number of the device that it is of, and its name, as in `host:0`.
    pub(crate) fn set_owner(&self, device: u32, name: String) {
        let _ = self.owner.set((device, name)); // once
    }

    /// The number and the name of the device, if it has any.
    pub(crate) fn owner(&self) -> Option<&(u32, String)> {
        self.owner.get()
    }

    /// The name of the device, for messages.
    pub(crate) fn name(&self) -> &str {
        self.owner().map_or("the device", |(_, name)| name)
    }

    /// The error of a call that names a stream which the device does not have.
    #[cold]
    pub(crate) fn no_stream(&self, stream: StreamId) -> Error {
        let name = self.name();
        Error::formatted(
            Code::UnknownStream,
            format_args!("stream {stream:#x} is not a stream of {name}, or was destroyed"),
        )
    }

    /// Whether the device has begun to end: nobody new is let in, and those inside should leave.
    pub(crate) fn is_ending(&self) -> bool {
        !self.usage.is_open()
    }

    /// `NotInitialized` once the device ends, except for the thread that ends it.
    pub(crate) fn call(&self) -> Result<Call<'_>> {
        check_unlocked(Called::Device);
        let ends = self.closer.load(Relaxed) == thread_token();
        let pass = if ends { None } else { Some(self.usage.enter()?) };
        Ok(Call { device: &*self.device, _pass: pass, _in: InCall::new(self) })
    }

    /// Makes a call that creates or maps memory.
    pub(super) fn taking<T>(&self, call: impl FnOnce(&dyn Mapping) -> Result<T>) -> Result<T> {
        let c = self.call()?;
        self.calls.takes(|| call(mapping_of(c.device)?))
    }

    /// Makes a call that releases or unmaps it.
    pub(super) fn giving<T>(&self, call: impl FnOnce(&dyn Mapping) -> Result<T>) -> Result<T> {
        let c = self.call()?;
        self.calls.gives(|| call(mapping_of(c.device)?))
    }

    /// The calls to the device so far.
    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    pub(super) fn granule_at(&self, index: u32) -> u64 {
        u64::from(index) * GRANULE
    }

    /// [address] of an offset in the window, on a device that maps.
    pub(super) fn window_at(&self, offset: u64) -> u64 {
        self.places.window() + offset
    }

    /// From now on only this thread may call the device, which has ended for all others.
    pub(crate) fn begin_close(&self) {
        self.closer.store(thread_token(), Relaxed);
    }

    /// Gives everything back: spare events, and the window.
    pub(crate) fn close(&self) -> Result<()> {
        self.bury(&*self.device);
        self.points.borrowed.close(self.device.streams());
        self.drop_all_saved();
        let spare = std::mem::take(&mut *lock(&self.spare));
        for e in spare {
            let _ = self.device.streams().event_destroy(e); // a device that is ending may have lost it already
        }
        if self.maps && self.places.close_window() {
            return self.device.mapping().map_or(Ok(()), Mapping::close_window);
        }
        Ok(())
    }
}
