//! Room of the host's that is set aside for calls that end something. A program makes them just when it has run out of memory,
//! from destructors, which cannot say that they failed.
//!
//! A call that finds no room lends some of it to the heap, and sets aside what is left of that afterwards. Who makes anything
//! fills up what is missing. No thread waits for another here.

use crate::base::error::Result;
use crate::base::room::{CALL_BYTES, check_room};
use crate::base::sync::system::{Mutex, try_lock};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// \[B\] that are set aside for one end: what an end keeps of it, such as a fence, leaves room for the next ones.
const ASIDE_BYTES: usize = 2 * CALL_BYTES;
/// \[B\] by which it shrinks then.
const STEP_BYTES: usize = 4 << 10;

/// So many threads may end something at once where the host has no memory.
const ASIDE: usize = 2;

/// What is set aside. A list without room stands for what is in use, or could not be had.
static ASIDES: [Mutex<Vec<u8>>; ASIDE] = [const { Mutex::new(Vec::new()) }; ASIDE];
/// Whether all of it is there: then nobody looks.
static WHOLE: AtomicBool = AtomicBool::new(false);

/// Sets aside what is missing of the room for ends, as far as the heap has it.
pub(crate) fn set_aside() {
    // Relaxed: a hint.
    if !WHOLE.load(Relaxed) {
        fill();
    }
}

#[cold]
fn fill() {
    let mut is_whole = true;
    for aside in &ASIDES {
        // Who has the lock looks, too. In a forked child it may never be released.
        let Some(mut room) = try_lock(aside) else {
            is_whole = false;
            continue;
        };
        // Room that shrank serves, until there is more again.
        if room.capacity() < ASIDE_BYTES {
            let mut more = Vec::new();
            match more.try_reserve_exact(ASIDE_BYTES) {
                Ok(()) => *room = more,
                Err(_) => is_whole = false,
            }
        }
    }
    WHOLE.store(is_whole, Relaxed);
}

/// The heap has room for one end, until this is dropped.
pub(crate) struct EndRoom {
    is_lent: bool,
}

impl EndRoom {
    /// `OutOfMemory` if neither the heap has so many bytes, at most `CALL_BYTES`, nor any are set aside, or others have taken
    /// them.
    pub(crate) fn new(bytes: usize) -> Result<EndRoom> {
        if check_room(bytes).is_ok() {
            set_aside();
            return Ok(EndRoom { is_lent: false });
        }
        EndRoom::lent(bytes)
    }

    /// The same, in any case with some of what is set aside: so many bytes were too few.
    #[cold]
    pub(crate) fn lent(bytes: usize) -> Result<EndRoom> {
        let lent = ASIDES.iter().find_map(|aside| {
            let mut room = try_lock(aside)?;
            (room.capacity() >= bytes).then(|| drop(std::mem::take(&mut *room)))
        });
        let lent = EndRoom { is_lent: lent.is_some() };
        check_room(bytes).map(|()| lent)
    }
}

impl Drop for EndRoom {
    fn drop(&mut self) {
        if !self.is_lent {
            return;
        }
        WHOLE.store(false, Relaxed);
        // What the end has kept is missing.
        let mut back = Vec::new();
        let mut bytes = ASIDE_BYTES;
        while bytes > 0 && back.try_reserve_exact(bytes).is_err() {
            bytes -= STEP_BYTES;
        }
        let free = ASIDES.iter().filter_map(try_lock).find(|room| room.capacity() == 0);
        if let Some(mut room) = free {
            *room = back;
        }
    }
}
