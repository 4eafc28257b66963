//! Who is inside a device now, so that its end can wait for them.
//!
//! Every call on a device but the allocation path holds a pass: a copy that has been checked against
//! the live blocks must not find them gone. (The allocation path is the business of `memory.rs`.)

use crate::base::error::{Code, Error, Result};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

thread_local! {
    /// Passes that this thread holds. No destructor, so it works at thread exit too.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// The door of one device.
pub(crate) struct Usage {
    open: AtomicBool,
    inside: AtomicU64,
}

/// The right to use the device, until it is dropped.
pub(crate) struct Pass<'a>(&'a Usage);

impl Usage {
    pub(crate) fn new() -> Usage {
        Usage { open: AtomicBool::new(true), inside: AtomicU64::new(0) }
    }

    /// Whether the device has not ended.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        // Relaxed: only a hint for calls that race with the end.
        self.open.load(Ordering::Relaxed)
    }

    /// Goes in; `NotInitialized` once the door is shut.
    pub(crate) fn enter(&self) -> Result<Pass<'_>> {
        // SeqCst with `shut`: either it sees this count, or this sees the shut door.
        self.inside.fetch_add(1, Ordering::SeqCst);
        HELD.with(|h| h.set(h.get() + 1));
        let pass = Pass(self);
        if !self.open.load(Ordering::SeqCst) {
            return Err(Error::new(Code::NotInitialized, "the device has ended"));
        }
        Ok(pass)
    }

    /// Shuts the door and waits until everybody is out.
    pub(crate) fn shut(&self) {
        self.open.store(false, Ordering::SeqCst);
        while self.inside.load(Ordering::SeqCst) != 0 {
            // Rare and short, but a stream may have to finish first: no reason to spin.
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Opens the door again.
    pub(crate) fn reopen(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        HELD.with(|h| h.set(h.get() - 1));
        // SeqCst: what was done inside is seen by whoever sees the count go down.
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// `NotPermitted` on a thread that is inside a device (a plugin that calls back): at the gate it could
/// wait for an end of devices that waits for it.
pub(crate) fn outside() -> Result<()> {
    if HELD.with(Cell::get) != 0 {
        return Err(Error::new(
            Code::NotPermitted,
            "devices cannot be started or ended from within a call on a device",
        ));
    }
    Ok(())
}
