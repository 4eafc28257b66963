//! Which streams are being captured: their work is recorded for later and not run now.
//!
//! A captured stream is left alone: no point is made on it, and it is not made to wait. While any stream is captured,
//! the device as a whole is not waited for, and the default stream is treated as captured. A thread that makes a point
//! or waits for the device notes that first; a capture that begins waits until no such note concerns it.

use super::super::types::{EVERY, PoolId};
use super::{Order, Recording};
use crate::base::error::{Code, Result, no_host_memory};
use crate::base::sync::{Ordering::Relaxed, lock, pause};
use crate::fail;

/// Notes, until dropped, that a thread makes a point on a stream or waits for it.
pub(super) struct Note<'a>(&'a Order, u64);

impl Drop for Note<'_> {
    fn drop(&mut self) {
        let mut r = lock(&self.0.recording);
        if let Some(at) = r.marking.iter().position(|&s| s == self.1) {
            r.marking.swap_remove(at);
        }
    }
}

impl Recording {
    fn mark(&mut self, stream: u64) -> Result<()> {
        self.marking.try_reserve(1).map_err(|_| no_host_memory())?;
        self.marking.push(stream);
        Ok(())
    }
}

impl Order {
    /// Whether a point on this stream involves all others, so that the capture of any stream forbids it.
    fn concerns_all(&self, stream: u64) -> bool {
        stream == EVERY || self.backing().is_default(stream)
    }

    /// Notes that the calling thread makes a point there, or waits. `Busy` if a capture forbids it.
    pub(super) fn note(&self, stream: u64) -> Result<Note<'_>> {
        let mut r = lock(&self.recording);
        if r.routes.contains_key(&stream) || !r.routes.is_empty() && self.concerns_all(stream) {
            fail!(Code::Busy, "a stream of the device is being captured: it cannot be waited for");
        }
        r.mark(stream)?;
        Ok(Note(self, stream))
    }

    /// Notes that the calling thread asks the device about a stream that the current call of the program does not name.
    /// A thread that announces the stream's end waits until the result is dropped. `None`: the stream has ended, or may
    /// have ended without notice.
    pub(crate) fn asking(&self, stream: u64) -> Option<impl Sized + '_> {
        let note = self.note_asking(stream).ok()?;
        self.is_there(stream).then_some(note)
    }

    /// The same for any stream, also one of another device.
    pub(super) fn note_asking(&self, stream: u64) -> Result<Note<'_>> {
        lock(&self.recording).mark(stream)?;
        Ok(Note(self, stream))
    }

    /// Holds announced captures off until the result is dropped, so that the whole device can be waited for. `Busy`
    /// while a stream is captured, announced or not.
    pub(crate) fn no_capture(&self) -> Result<impl Sized + '_> {
        let waiting = self.note(EVERY)?;
        if self.recorded_unannounced() {
            fail!(Code::Busy, "a stream of the device is being captured: the device cannot be waited for");
        }
        Ok(waiting)
    }

    /// The pool that serves a captured stream.
    pub(crate) fn route(&self, stream: u64) -> Option<PoolId> {
        // Relaxed: the thread that begins a capture orders its own requests after that.
        if self.captured.load(Relaxed) == 0 {
            return None;
        }
        lock(&self.recording).routes.get(&stream).copied()
    }

    /// Whether the stream's work is being recorded, even if only the device knows of the capture.
    pub(crate) fn records(&self, stream: u64) -> bool {
        !Self::is_word(stream) && (self.route(stream).is_some() || self.backing().capturing(stream))
    }

    /// The same for a stream that the current call of the program does not name. If it may have ended without notice,
    /// the answer is whether any stream is recorded.
    pub(crate) fn records_later(&self, stream: u64) -> bool {
        let asked = || {
            let asking = self.asking(stream);
            self.backing().capturing(if asking.is_some() { stream } else { EVERY })
        };
        !Self::is_word(stream) && (self.route(stream).is_some() || asked())
    }

    /// Whether the stream can currently neither be marked nor made to wait.
    pub(crate) fn is_captured(&self, stream: u64) -> bool {
        self.records(stream) || self.captured.load(Relaxed) > 0 && self.concerns_all(stream)
    }

    /// The same for a stream that the current call of the program does not name.
    pub(crate) fn is_captured_later(&self, stream: u64) -> bool {
        self.records_later(stream) || self.captured.load(Relaxed) > 0 && self.concerns_all(stream)
    }

    /// Whether the device knows of a capture that was not announced to us.
    pub(super) fn recorded_unannounced(&self) -> bool {
        let mut any = false;
        self.backing().streams(&mut |s| any = any || self.records_listed(s));
        any
    }

    /// Whether the device records the work of one of its streams, which may end meanwhile.
    fn records_listed(&self, stream: u64) -> bool {
        if Self::is_word(stream) || stream == EVERY {
            return self.backing().capturing(stream);
        }
        // A thread that ends the stream waits for this note. The note is refused if the stream's capture was announced.
        let Ok(_asking) = self.note(stream) else { return true };
        self.backing().lists(stream) && self.backing().capturing(stream)
    }

    /// Whether the device records the stream's work now, announced or not.
    pub(super) fn is_recorded(&self, stream: u64) -> bool {
        self.backing().capturing(stream)
    }

    /// Whether any stream of the device is captured.
    pub(crate) fn any_captured(&self) -> bool {
        self.captured.load(Relaxed) > 0 || self.recorded_unannounced()
    }

    /// Routes requests of `stream` to `pool` from now on and leaves the stream alone. `Busy`: it is captured already;
    /// `OutOfMemory`: the host has no memory to note it.
    pub(crate) fn capture(&self, stream: u64, pool: PoolId) -> Result<()> {
        let mut r = lock(&self.recording);
        if r.routes.contains_key(&stream) {
            fail!(Code::Busy, "stream {stream:#x} is captured already");
        }
        if !r.routes.make_room() {
            return Err(no_host_memory());
        }
        r.routes.insert(stream, pool);
        self.captured.store(r.routes.len() as u32, Relaxed);
        Ok(())
    }

    /// Waits for all threads that began to make a point on the stream, or to wait, before it was captured.
    pub(crate) fn wait_for_marks(&self, stream: u64) {
        let mut round = 0;
        while lock(&self.recording).marking.iter().any(|&s| s == stream || self.concerns_all(s)) {
            pause(round);
            round = round.saturating_add(1);
        }
    }

    /// Waits for all threads that began to ask the device about the stream before its end was noted.
    pub(super) fn wait_for_askers(&self, stream: u64) {
        let mut round = 0;
        while lock(&self.recording).marking.contains(&stream) {
            pause(round);
            round = round.saturating_add(1);
        }
    }

    /// The stream is an ordinary one again.
    pub(crate) fn end_capture(&self, stream: u64) {
        let mut r = lock(&self.recording);
        r.routes.remove(&stream);
        self.captured.store(r.routes.len() as u32, Relaxed);
    }

    pub(super) fn forget_captured(&self) {
        let mut r = lock(&self.recording);
        r.routes.clear();
        self.captured.store(0, Relaxed);
    }
}
