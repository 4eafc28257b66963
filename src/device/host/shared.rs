//! What the devices of one initialised host type share, and the gate through which every call passes.
//!
//! `finalize` closes the gate and waits for the calls inside, so that no call touches memory that is being released.
//! The gate is no lock: calls do not wait for each other.

use super::event::Event;
use super::granules::Granules;
use super::handles::HandleTable;
use super::memory::{Blocks, Budget};
use super::options::HostOptions;
use super::process::{self};
use super::staging::Staging;
use super::stream::{Backlog, Ended, Ends, Point, Serial, Stream, copied};
use crate::base::boxed::try_push;
use crate::base::error::{Error, Result, no_host_memory};
use crate::base::fork;
use crate::base::sync::system::{Mutex, MutexGuard, lock};
use crate::device::gate::{CallGate, CallPass};
use crate::device::no_stream;
use crate::locks;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// The streams of a device, and the threads of all streams that have not finished.
struct Streams {
    live: HandleTable<Stream>,
    threads: HashMap<Serial, (Arc<Stream>, JoinHandle<()>)>, // of live and destroyed streams
    last: Serial,                                            // of the stream that was made last
    born: u64,
}

impl Drop for Streams {
    fn drop(&mut self) {
        // In a forked child the threads do not exist, and their handles must not be touched.
        if fork::count() != self.born {
            std::mem::forget(std::mem::take(&mut self.threads));
        }
    }
}

/// The state of one device.
pub(super) struct State {
    pub(super) budget: Budget,
    pub(super) granules: Option<Granules>,
    pub(super) no_granules: Option<Error>, // why the system gives none, if they were wanted
    pub(super) staging: Arc<Staging>,
    streams: Mutex<Streams, locks::HostStreams>,
    ended: Ended,
    backlog: Arc<Backlog>,
    default_waits: Mutex<Vec<Point>>, // the next work on stream 0 waits for these
    default_waits_any: AtomicBool,    // whether there are any; changed under the lock
}

/// The state of an initialised type.
pub(super) struct Shared {
    pub(super) options: HostOptions,
    pub(super) devices: Vec<State>,
    pub(super) blocks: Blocks,
    pub(super) events: Mutex<HandleTable<Event>>,
    pub(super) panics: Arc<AtomicU64>, // callbacks that panicked
    gate: CallGate,
    born: u64, // `fork::count()` when the type was made
}

impl Shared {
    pub(super) fn new(options: HostOptions, born: u64) -> Arc<Shared> {
        let devices = (0..options.device_count).map(|ordinal| {
            // If the system refuses a memory file, the device offers segments and has no mapping facet.
            let made = options.mapping.then(|| Granules::new(options.capacity)).transpose();
            let (granules, no_granules) = match made {
                Ok(granules) => (granules, None),
                Err(e) => (None, Some(e)),
            };
            State {
                budget: Budget::new(ordinal, options.capacity),
                granules,
                no_granules,
                staging: Staging::new(),
                streams: Mutex::new(Streams {
                    live: HandleTable::new(),
                    threads: HashMap::new(),
                    last: 0,
                    born,
                }),
                ended: Ended::default(),
                backlog: Arc::default(),
                default_waits: Mutex::new(Vec::new()),
                default_waits_any: AtomicBool::new(false),
            }
        });
        Arc::new(Shared {
            devices: devices.collect(),
            options,
            blocks: Blocks::new(),
            events: Mutex::new(HandleTable::new()),
            panics: Arc::new(AtomicU64::new(0)),
            gate: CallGate::new("the host device type was finalised"),
            born,
        })
    }

    /// Lets a call in: refused in a forked child (checked first, before anything that could hang) and after `finalize`.
    pub(super) fn enter(&self) -> Result<CallPass<'_>> {
        process::check_fork(self.born)?;
        self.gate.enter()
    }

    /// Lets in a call that may wait for a stream: also refused inside a callback.
    pub(super) fn enter_blocking(&self) -> Result<CallPass<'_>> {
        let pass = self.enter()?;
        process::check_may_block()?;
        Ok(pass)
    }

    /// Ends everything: queued work completes, threads are joined, memory goes back. The caller has checked that this
    /// thread may block.
    pub(super) fn finish(&self) -> Result<()> {
        self.gate.close();
        self.devices.iter().for_each(State::close_streams);
        // Only now, since a stream may wait for a stream of another device.
        for device in &self.devices {
            let threads = std::mem::take(&mut lock(&device.streams).threads);
            for (_, thread) in threads.into_values() {
                // An error would be a panic outside callbacks; there is none.
                let _ = thread.join();
            }
        }
        // SAFETY: the gate is closed and empty, and all streams have ended: nothing touches blocks.
        unsafe { self.blocks.clear() };
        let mut result = Ok(());
        for device in &self.devices {
            if let Some(granules) = &device.granules {
                result = result.and(granules.close_window(&device.budget));
                granules.end();
            }
        }
        result
    }
}

impl State {
    /// Makes the streams take no more work; each ends when it has done what is queued.
    pub(super) fn close_streams(&self) {
        for (stream, _) in lock(&self.streams).threads.values() {
            stream.close();
        }
    }

    pub(super) fn add_stream(&self, panics: Arc<AtomicU64>) -> Result<u64> {
        self.reap();
        let serial = {
            let mut streams = lock(&self.streams);
            streams.last += 1;
            streams.last
        };
        let ends = Ends { of: serial, all: Arc::clone(&self.ended) };
        let (stream, thread) = Stream::start(Arc::clone(&self.backlog), panics, ends)?;
        let mut streams = lock(&self.streams);
        let id = streams.live.insert(Arc::clone(&stream));
        if id.is_err() {
            stream.close();
        }
        streams.threads.insert(serial, (stream, thread));
        id
    }

    pub(super) fn remove_stream(&self, id: u64) -> Result<()> {
        let stream = lock(&self.streams).live.remove(id).ok_or_else(|| no_stream(id))?;
        stream.close();
        self.reap();
        Ok(())
    }

    pub(super) fn stream(&self, id: u64) -> Result<Arc<Stream>> {
        lock(&self.streams).live.get(id).map(Arc::clone).ok_or_else(|| no_stream(id))
    }

    /// Joins the threads of destroyed streams that have ended. Returns how many it has looked at: only those that say so
    /// themselves.
    pub(super) fn reap(&self) -> usize {
        let said = std::mem::take(&mut *lock(&self.ended));
        if said.is_empty() {
            return 0;
        }
        let (mut done, mut soon) = (Vec::new(), Vec::new());
        {
            let threads = &mut lock(&self.streams).threads;
            for &serial in &said {
                match threads.get(&serial) {
                    Some((_, thread)) if thread.is_finished() => done.extend(threads.remove(&serial)),
                    Some(_) => soon.push(serial), // in its last steps, which may be long: nobody waits for them
                    None => {}                    // it could not be started, or `finish` has it
                }
            }
        }
        lock(&self.ended).extend(soon);
        for (_, thread) in done {
            let _ = thread.join();
        }
        said.len()
    }

    /// The number of threads that have not ended.
    pub(super) fn thread_count(&self) -> usize {
        lock(&self.streams).threads.values().filter(|(_, t)| !t.is_finished()).count()
    }

    /// The ends of all streams' queues, including destroyed streams', unless already done; and what stream 0 waits for. `None`:
    /// the host has no memory to list them.
    fn pending(&self) -> Option<Vec<Point>> {
        let mut points = self.default_pending()?;
        let streams = lock(&self.streams);
        let mut open = streams.threads.values().map(|(stream, _)| stream.point()).filter(|p| !p.done());
        open.all(|point| try_push(&mut points, point)).then_some(points)
    }

    /// One of them.
    pub(super) fn first_pending(&self) -> Option<Point> {
        let first = self.open_default_waits().first().cloned();
        first.or_else(|| {
            let streams = lock(&self.streams);
            streams.threads.values().map(|(stream, _)| stream.point()).find(|p| !p.done())
        })
    }

    /// What stream 0 waits for, unless already done. `None`: the host has no memory to list that.
    pub(super) fn default_pending(&self) -> Option<Vec<Point>> {
        copied(&self.open_default_waits())
    }

    /// The list of what stream 0 waits for, without what is done.
    fn open_default_waits(&self) -> MutexGuard<'_, Vec<Point>> {
        let mut waits = lock(&self.default_waits);
        waits.retain(|point| !point.done());
        // Release pairs with the Acquire in `is_idle`: what these points have done is visible.
        self.default_waits_any.store(!waits.is_empty(), Ordering::Release);
        waits
    }

    /// Makes the next work on stream 0 wait for these points too.
    pub(super) fn default_wait(&self, points: Vec<Point>) -> Result<()> {
        let mut waits = lock(&self.default_waits);
        waits.try_reserve(points.len()).map_err(|_| no_host_memory())?;
        waits.extend(points);
        self.default_waits_any.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether nothing is queued on any stream, destroyed ones included, and stream 0 waits for nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.backlog.is_empty() && !self.default_waits_any.load(Ordering::Acquire)
    }

    /// Waits for everything queued on the device so far; if the host has no memory to list that, also for what is queued
    /// meanwhile. The caller has checked that it may block.
    pub(super) fn drain(&self) {
        match self.pending() {
            Some(points) => points.iter().for_each(Point::wait),
            None => std::iter::from_fn(|| self.first_pending()).for_each(|point| point.wait()),
        }
    }
}
