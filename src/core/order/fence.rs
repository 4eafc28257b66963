//! Fences: shared points in the work of streams, with their state.
//!
//! A fence is made once, shared by everything that waits for it, and gives its point back once: when it is seen to be
//! passed, or when its last user drops it. It counts as passed once the device has said so or, if it stands for work of
//! the device's own streams, once a wait for the whole device that began after the fence was made has returned. An
//! error says nothing: the fence is then not passed. (A thread that queries a point just as another thread gives it
//! back gets an error too, since the backing recognises a stale point. The fence is known to be passed by then.)

use super::super::backing::{Backing, Point};
use crate::base::error::Result;
use crate::base::sync::{
    AtomicBool, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::fmt;
use std::sync::Arc;

/// What all fences of a device share.
pub(super) struct Source {
    pub(super) backing: Arc<dyn Backing>,
    serial: AtomicU64,
    /// Everything with a lower serial number is passed.
    synced: AtomicU64,
}

impl Source {
    pub(super) fn new(backing: Arc<dyn Backing>) -> Source {
        Source { backing, serial: AtomicU64::new(1), synced: AtomicU64::new(0) }
    }

    /// A number higher than all earlier ones.
    pub(super) fn next(&self) -> u64 {
        // Relaxed: if one thread numbers and another waits, the locks between them order the two.
        self.serial.fetch_add(1, Relaxed)
    }

    pub(super) fn synced(&self) -> u64 {
        // Acquire, with the Release below: as in `Fence::set_passed`.
        self.synced.load(Acquire)
    }

    /// A wait for the device has returned that began after `serial` was issued.
    pub(super) fn note_synced(&self, serial: u64) {
        self.synced.fetch_max(serial, Release);
    }

    /// A fence at a point that was just made on a stream; without a point, only a wait for the device passes it.
    pub(super) fn fence(self: &Arc<Self>, stream: u64, point: Option<Point>) -> Fence {
        self.new_fence(stream, point.unwrap_or(NO_POINT), false)
    }

    /// A fence at a point whose work may belong to anybody.
    pub(super) fn foreign_fence(self: &Arc<Self>, stream: u64, point: Point) -> Fence {
        self.new_fence(stream, point, true)
    }

    fn new_fence(self: &Arc<Self>, stream: u64, point: Point, foreign: bool) -> Fence {
        let serial = self.next(); // after the point was made
        let (point, passed) = (AtomicU64::new(point), AtomicBool::new(false));
        Fence(Arc::new(Life { source: self.clone(), stream, point, serial, foreign, passed }))
    }
}

/// Not a point of any backing.
const NO_POINT: u64 = u64::MAX;

struct Life {
    source: Arc<Source>,
    /// The serial number of the stream. Fences of one stream are passed in the order of their serial numbers.
    stream: u64,
    /// `NO_POINT`: the fence has none, or has given it back.
    point: AtomicU64,
    serial: u64,
    /// It may stand for work elsewhere, which a wait for the device does not cover.
    foreign: bool,
    passed: AtomicBool,
}

impl Life {
    fn point(&self) -> Option<Point> {
        Some(self.point.load(Acquire)).filter(|&p| p != NO_POINT)
    }

    /// Gives the point back: the fence is passed, or nobody uses it any more.
    fn give_back(&self) {
        // AcqRel, paired with the load above: whoever finds the point given back finds the fence passed.
        let point = self.point.swap(NO_POINT, AcqRel);
        if point != NO_POINT {
            self.source.backing.forget(point);
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// A fence; see the head of this file. Clones are the same fence.
#[derive(Clone)]
pub struct Fence(Arc<Life>);

impl Fence {
    /// Whether it is known to be passed. Does not query the device.
    pub fn is_passed(&self) -> bool {
        self.0.passed.load(Acquire) || !self.0.foreign && self.0.serial < self.0.source.synced()
    }

    /// Queries the device whether it is passed.
    pub fn ask(&self) -> bool {
        self.try_ask() == Some(true)
    }

    /// The same; `None`: the device cannot be queried now.
    pub(crate) fn try_ask(&self) -> Option<bool> {
        let mut said = None;
        if !self.is_passed()
            && let Some(point) = self.0.point()
        {
            said = self.0.source.backing.passed(point).ok();
            if said == Some(true) {
                self.set_passed();
            }
        }
        if self.is_passed() {
            self.0.give_back();
            said = Some(true);
        }
        said
    }

    /// Waits on the host. `Ok(false)`: it has no point to wait for.
    pub(super) fn sync(&self) -> Result<bool> {
        let Some(point) = self.0.point() else { return Ok(self.is_passed()) };
        match self.0.source.backing.sync(point) {
            Err(e) if !self.is_passed() => Err(e),
            _ => {
                self.set_passed();
                self.0.give_back();
                Ok(true)
            }
        }
    }

    /// Makes work queued on `stream` from now on wait for it, on the device. `Ok(false)`: that is not possible.
    pub(super) fn hold_back(&self, stream: u64) -> Result<bool> {
        if self.is_passed() {
            return Ok(true);
        }
        let Some(point) = self.0.point() else { return Ok(self.is_passed()) };
        match self.0.source.backing.wait(stream, point) {
            Err(e) if !self.is_passed() => Err(e),
            _ => Ok(true),
        }
    }

    /// Marks it as passed: its work is already done.
    pub(super) fn set_passed(&self) {
        // Release, with the Acquire in `is_passed`: a device's work may be that of threads, and who hears from this fence
        // that it is done must see it as the thread does to which the device has said so.
        self.0.passed.store(true, Release);
    }

    /// The serial number of its stream.
    pub(crate) fn stream_serial(&self) -> u64 {
        self.0.stream
    }

    pub(crate) fn serial(&self) -> u64 {
        self.0.serial
    }

    /// Whether it may stand for work elsewhere, which a wait for the device does not cover.
    pub(super) fn is_foreign(&self) -> bool {
        self.0.foreign
    }

    pub(super) fn is(&self, other: &Fence) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passed = if self.is_passed() { "passed" } else { "open" };
        write!(f, "fence {} of stream {}, {passed}", self.0.serial, self.0.stream)
    }
}
