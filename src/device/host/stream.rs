//! One stream: a queue, and the thread that does the queued work in order.
//!
//! A position in a stream is a [`Point`]: "the first n pieces of work". An event is a point and a wait is for points,
//! so recording an event queues nothing. A point lies before everything that was queued to wait for it, so waits cannot
//! form a cycle. No lock is held while work runs.

use super::process::CallbackMark;
use super::staging::{self, Staged};
use super::times::Times;
use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::{Condvar, Mutex, lock};
use crate::base::{loaded, signals::without_signals};
use crate::device::StreamCallback;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// One piece of work. Its addresses have been checked for null and overflow; the caller who queued it guarantees that
/// they stay mapped until it is done.
pub(super) enum Work {
    /// Move bytes; the ranges may overlap.
    Move { dst: u64, src: u64, bytes: u64 },
    /// Move bytes that were read when the work was queued.
    Unstage { dst: u64, from: Staged },
    /// Fill with a byte.
    Fill { dst: u64, value: u8, bytes: u64 },
    /// Wait for other streams.
    Wait(Vec<Point>),
    /// Run a callback.
    Call(StreamCallback),
    /// Note the time for that record of an event.
    Reach(Arc<Times>, u64),
}

impl Work {
    /// Does the work, on the calling thread. `panics` counts callbacks that panicked.
    pub(super) fn run(self, panics: &AtomicU64) {
        match self {
            // SAFETY: the caller who queued the work guarantees mapped ranges (see `Work`).
            Work::Move { dst, src, bytes } => unsafe { staging::move_bytes(dst, src, bytes) },
            // SAFETY: as above for `dst`.
            Work::Unstage { dst, from } => unsafe { from.unload(dst) },
            // SAFETY: as above.
            Work::Fill { dst, value, bytes } => unsafe { staging::fill_bytes(dst, value, bytes) },
            Work::Wait(points) => points.iter().for_each(Point::wait),
            Work::Reach(times, record) => times.reach(record),
            Work::Call(callback) => {
                let _mark = CallbackMark::new();
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| callback(Ok(())))) {
                    panics.fetch_add(1, Ordering::Relaxed);
                    // Dropping an unknown payload could panic again, outside `catch_unwind`.
                    std::mem::forget(payload);
                }
            }
        }
    }
}

/// The first `count` pieces of work of a stream.
#[derive(Clone)]
pub(super) struct Point {
    stream: Arc<Stream>,
    count: u64,
}

impl Point {
    /// Whether all of it is done.
    pub(super) fn done(&self) -> bool {
        // Acquire pairs with the Release in `Stream::work_off`: the bytes are visible.
        self.stream.done.load(Ordering::Acquire) >= self.count
    }

    /// Blocks until all of it is done.
    pub(super) fn wait(&self) {
        if self.done() {
            return;
        }
        let mut queue = lock(&self.stream.queue);
        queue.waiters += 1;
        while !self.done() {
            queue = self.stream.progress.wait(queue);
        }
        queue.waiters -= 1;
    }
}

/// A copy of the list; `None`: the host has no memory for it.
pub(super) fn copied(points: &[Point]) -> Option<Vec<Point>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(points.len()).ok()?;
    copy.extend_from_slice(points);
    Some(copy)
}

struct Queue {
    work: VecDeque<Work>,
    pushed: u64,   // pieces ever queued
    closing: bool, // destroyed: takes no more, and the thread ends when the queue is empty
    asleep: bool,  // the worker waits for `more`; if it does not, waking it would waste a system call
    waiters: u32,  // the number of threads that wait for `progress`
}

/// How many pieces of work the streams of a device have still to do.
#[derive(Default)]
pub(super) struct Backlog(AtomicU64);

impl Backlog {
    /// Whether there is none. What was done is visible then.
    pub(super) fn is_empty(&self) -> bool {
        // Acquire pairs with the Release in `Stream::work_off`.
        self.0.load(Ordering::Acquire) == 0
    }
}

/// The number of a stream among all that its device has made.
pub(super) type Serial = u64;

/// The streams whose threads have ended, or are about to and do nothing more, until they are joined.
pub(super) type Ended = Arc<Mutex<Vec<Serial>>>;

/// Enters a stream there when its thread drops it.
pub(super) struct Ends {
    pub(super) of: Serial,
    pub(super) all: Ended,
}

impl Drop for Ends {
    fn drop(&mut self) {
        lock(&self.all).push(self.of);
    }
}

pub(super) struct Stream {
    queue: Mutex<Queue>,
    backlog: Arc<Backlog>, // of the device
    more: Condvar,         // work was queued, or `closing` set; the worker sleeps on it
    progress: Condvar,     // `done` grew; waiters sleep on it
    done: AtomicU64,       // pieces finished; written by the worker under the lock
}

impl Stream {
    /// A new stream and its thread, which drops `ends` last. `backlog` is the device's; `panics` counts callbacks that
    /// panicked.
    pub(super) fn start(
        backlog: Arc<Backlog>,
        panics: Arc<AtomicU64>,
        ends: Ends,
    ) -> Result<(Arc<Stream>, JoinHandle<()>)> {
        let stream = Arc::new(Stream {
            queue: Mutex::new(Queue {
                work: VecDeque::new(),
                pushed: 0,
                closing: false,
                asleep: false,
                waiters: 0,
            }),
            backlog,
            more: Condvar::new(),
            progress: Condvar::new(),
            done: AtomicU64::new(0),
        });
        let worker = Arc::clone(&stream);
        // The shared object with this code may be unloaded before the thread has begun.
        loaded::keep();
        let builder = std::thread::Builder::new().name("millpond-host".to_owned());
        let thread = without_signals(|| {
            builder.spawn(move || {
                let _ends = ends;
                worker.work_off(&panics);
            })
        })
        .map_err(|e| Error::formatted(Code::System, format_args!("no thread for a stream: {e}")))?;
        Ok((stream, thread))
    }

    fn work_off(&self, panics: &AtomicU64) {
        let mut queue = lock(&self.queue);
        loop {
            let Some(work) = queue.work.pop_front() else {
                if queue.closing {
                    return;
                }
                queue.asleep = true;
                queue = self.more.wait(queue);
                queue.asleep = false;
                continue;
            };
            drop(queue);
            work.run(panics);
            queue = lock(&self.queue);
            // Release pairs with the Acquire in `Point::done`.
            self.done.fetch_add(1, Ordering::Release);
            // Afterwards: a device without a backlog has no point that is not done. Release as above.
            self.backlog.0.fetch_sub(1, Ordering::Release);
            if queue.waiters != 0 {
                self.progress.notify_all();
            }
        }
    }

    /// Queues work; the returned point includes it. `None`: the stream was destroyed.
    pub(super) fn push(self: &Arc<Self>, work: Work) -> Result<Option<Point>> {
        let (count, asleep) = {
            let mut queue = lock(&self.queue);
            if queue.closing {
                return Ok(None);
            }
            if queue.work.try_reserve(1).is_err() {
                return Err(Error::new(Code::OutOfMemory, "no host memory for a stream's queue"));
            }
            // Relaxed: who comes to know of the work, sees it counted.
            self.backlog.0.fetch_add(1, Ordering::Relaxed);
            queue.work.push_back(work);
            queue.pushed += 1;
            (queue.pushed, queue.asleep)
        };
        if asleep {
            self.more.notify_one();
        }
        Ok(Some(Point { stream: Arc::clone(self), count }))
    }

    /// Everything queued so far.
    pub(super) fn point(self: &Arc<Self>) -> Point {
        let count = lock(&self.queue).pushed;
        Point { stream: Arc::clone(self), count }
    }

    /// Takes no more work; queued work still completes, then the thread ends.
    pub(super) fn close(&self) {
        lock(&self.queue).closing = true;
        self.more.notify_one();
    }
}
