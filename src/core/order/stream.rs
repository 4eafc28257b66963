//! Streams as far as they matter for memory: from the first use of one until it ends.
//!
//! After a stream has ended, a new one may get its id. So whatever depends on a stream keeps the [`Stream`] object,
//! which knows whether the stream has ended, and holds the fence that it left behind.

use super::fence::Fence;
use crate::base::sync::{AtomicBool, Mutex, lock};
use crate::locks;
use std::sync::Arc;

/// A stream; see the head of this file.
pub(crate) struct Stream {
    pub id: u64,
    /// Its serial number among all streams ever used here.
    pub serial: u64,
    /// It belongs to another device or context: only its points are known here.
    pub elsewhere: bool,
    /// A thread is ending the stream, or has ended it. A stream elsewhere may have ended by then.
    pub(super) ends: AtomicBool,
    /// A fence for all its work; set when it is about to end.
    pub(super) end: Mutex<Option<Fence>, locks::StreamEnd>,
}

impl Stream {
    pub(super) fn new(id: u64, serial: u64) -> Stream {
        Stream { id, serial, elsewhere: false, ends: AtomicBool::new(false), end: Mutex::new(None) }
    }

    pub(super) fn elsewhere(id: u64, serial: u64) -> Stream {
        Stream { elsewhere: true, ..Stream::new(id, serial) }
    }

    /// The fence that it left behind, if it has ended or is about to.
    pub(crate) fn end(&self) -> Option<Fence> {
        lock(&self.end).clone()
    }
}

/// A stream that is about to end. Nobody queues more on it.
pub struct Ending {
    pub(crate) stream: Arc<Stream>,
}

impl Ending {
    /// The caller's id of the stream.
    pub fn id(&self) -> u64 {
        self.stream.id
    }
}
