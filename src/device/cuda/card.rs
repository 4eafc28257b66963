//! One card: its primary context, with its streams and events. All facets of a device use it.

use super::callbacks;
use super::context::{Inside, Primary};
use super::driver::Driver;
use super::handles::{HandleTable, Makers};
use crate::base::error::{Code, Error, Result};
use crate::device::{StreamId, no_stream};
use crate::fail;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// One card.
pub(super) struct Card {
    pub(super) primary: Primary,
    pub(super) ordinal: usize,
    /// Distinguishes its callbacks from those of other devices.
    pub(super) number: usize,
    pub(super) handles: HandleTable,
    makers: Makers,
}

impl Drop for Card {
    fn drop(&mut self) {
        self.makers.closed(self.number);
    }
}

impl Card {
    pub(super) fn new(primary: Primary, ordinal: usize, makers: Makers) -> Card {
        static NUMBER: AtomicUsize = AtomicUsize::new(1);
        let number = NUMBER.fetch_add(1, Relaxed);
        makers.opened(number, primary.context);
        let handles = HandleTable::new(primary.driver, ordinal, makers.clone());
        Card { primary, ordinal, number, handles, makers }
    }

    pub(super) fn driver(&self) -> Driver {
        self.primary.driver
    }

    /// Lets a call in: see [`Primary::enter`].
    #[inline]
    pub(super) fn enter(&self) -> Result<Inside<'_>> {
        self.primary.enter()
    }

    /// Waits for the context. Not attempted while a stream is being captured: the wait would fail, and the driver would
    /// invalidate the capture.
    pub(super) fn rest(&self) -> Result<()> {
        self.not_captured()?;
        self.driver().context_synchronize().inspect_err(|e| {
            if e.code() == Code::Device {
                callbacks::fail(self.number, e);
            }
        })
    }

    pub(super) fn not_captured(&self) -> Result<()> {
        match self.handles.captured()? {
            None => Ok(()),
            Some(0) => Err(Error::new(
                Code::NotPermitted,
                "a blocking stream is being captured: the device cannot be waited for",
            )),
            Some(s) => {
                fail!(Code::NotPermitted, "stream {s:#x} is being captured: the device cannot be waited for")
            }
        }
    }

    /// Refuses work on NULL while a blocking stream is being captured, since it would invalidate the capture.
    pub(super) fn null_is_free(&self) -> Result<()> {
        if self.handles.capture_id(0)?.is_some() {
            return Err(Error::new(
                Code::NotPermitted,
                "a blocking stream is being captured: nothing can be done on the default stream",
            ));
        }
        Ok(())
    }

    /// Waits for the context before work on NULL that must come after everything: the driver orders NULL only with blocking
    /// streams. While a stream is captured the context cannot be waited for, and NULL's own order is all there is.
    pub(super) fn rest_or_null(&self) -> Result<()> {
        match self.rest() {
            Err(e) if e.code() == Code::NotPermitted => self.null_is_free(),
            done => done,
        }
    }

    pub(super) fn known(&self, stream: StreamId) -> Result<()> {
        if self.handles.exists(stream) {
            return Ok(());
        }
        Err(no_stream(stream))
    }
}
