//! Counts who is inside a device, so that its end can wait for them.
//!
//! Every call on a device except the allocation path holds a pass: memory that a copy has been checked against must not
//! disappear. (The allocation path does without: `memory/mod.rs`.)
//!
//! The door is open or shut. A thread that wants to shut it only if nobody is inside holds it for a moment: others that
//! arrive wait for that moment at most, and notice nothing else.

use crate::base::error::{Code, Error, Result};
use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

thread_local! {
    /// The number of passes that this thread holds. It has no destructor, so it works at thread exit too.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// The time between two checks whether anybody is inside.
const LOOK: Duration = Duration::from_micros(50);

const OPEN: u8 = 0;
/// A thread is checking whether the door can be shut.
const HELD_SHUT: u8 = 1;
const SHUT: u8 = 2;

/// The door of one device.
pub(crate) struct Usage {
    door: AtomicU8,
    inside: AtomicU64,
}

/// The right to use the device, until it is dropped.
pub(crate) struct Pass<'a>(&'a Usage);

impl Usage {
    pub(crate) fn new() -> Usage {
        Usage { door: AtomicU8::new(OPEN), inside: AtomicU64::new(0) }
    }

    /// Whether the device has not ended.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        // Relaxed: only a hint for calls that race with the end.
        self.door.load(Ordering::Relaxed) != SHUT
    }

    /// Enters; `NotInitialized` once the door is shut.
    pub(crate) fn enter(&self) -> Result<Pass<'_>> {
        loop {
            // SeqCst with `hold` and `shut`: either they see this count, or this sees the door.
            self.inside.fetch_add(1, Ordering::SeqCst);
            let outer = HELD.with(|h| h.replace(h.get() + 1));
            let pass = Pass(self);
            match self.door.load(Ordering::SeqCst) {
                OPEN => return Ok(pass),
                // This thread is already inside a device, and the holder of the door may be waiting for it.
                HELD_SHUT if outer != 0 => return Ok(pass),
                HELD_SHUT => {
                    drop(pass);
                    std::thread::sleep(LOOK);
                }
                _ => return Err(Error::new(Code::NotInitialized, "the device has ended")),
            }
        }
    }

    /// Shuts the door and waits until everybody has left.
    pub(crate) fn shut(&self) {
        self.door.store(SHUT, Ordering::SeqCst);
        while self.inside.load(Ordering::SeqCst) != 0 {
            // Rare and short, but a stream may have to finish first: no reason to spin.
            std::thread::sleep(LOOK);
        }
    }

    /// Holds the door, to be opened or shut soon: threads that arrive wait for that. Meanwhile the caller must not wait
    /// for anybody who is not inside, so this is for a moment only.
    pub(crate) fn hold(&self) {
        self.door.store(HELD_SHUT, Ordering::SeqCst);
    }

    /// Whether everybody has left by that moment. The door is held.
    pub(crate) fn is_left_by(&self, moment: Instant) -> bool {
        loop {
            if self.inside.load(Ordering::SeqCst) == 0 {
                return true;
            }
            if Instant::now() >= moment {
                return false;
            }
            std::thread::yield_now();
        }
    }

    /// Opens the door again.
    pub(crate) fn reopen(&self) {
        self.door.store(OPEN, Ordering::SeqCst);
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        HELD.with(|h| h.set(h.get() - 1));
        // SeqCst: a thread that sees the count decrease sees what was done inside.
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// `NotPermitted` on a thread that is inside a device (a plugin that calls back): at the gate it could wait for an end
/// of devices that waits for it.
pub(crate) fn outside() -> Result<()> {
    if HELD.with(Cell::get) != 0 {
        return Err(Error::new(
            Code::NotPermitted,
            "devices cannot be started or ended from within a call on a device",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn a_held_door_makes_others_wait_and_lets_those_in_who_are_inside() {
        let (door, other) = (Usage::new(), Usage::new());
        let pass = door.enter().unwrap();
        let held = || Instant::now() + Duration::from_millis(2);
        door.hold();
        other.hold();
        assert!(!door.is_left_by(held()), "this thread is inside");
        drop(door.enter().unwrap());
        drop(other.enter().unwrap());
        std::thread::scope(|threads| {
            let comes = threads.spawn(|| door.enter().map(drop));
            std::thread::sleep(Duration::from_millis(5));
            assert!(!comes.is_finished());
            door.reopen();
            assert!(comes.join().unwrap().is_ok());
            door.hold();
            drop(pass);
            assert!(door.is_left_by(held()));
            let comes = threads.spawn(|| door.enter().map(drop));
            door.shut();
            assert_eq!(comes.join().unwrap().unwrap_err().code(), Code::NotInitialized);
        });
        assert!(!door.is_open());
    }
}
