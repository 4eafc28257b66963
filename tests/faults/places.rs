//! What of a block a world writes and reads. All of it would commit every page of some 20 MiB for each call that fails,
//! which takes the system longer than all that is tested.
//!
//! The places lie at multiples of the same number of every block's addresses: if two blocks have that many bytes in common,
//! both write there.

use crate::api::{Device, NULL, Stream, outcome, ptr};
use millpond::capi::millpond_memset;

/// From one place of a block to the next [B].
const APART: usize = 512 << 10;
/// A block of this size has one place, all of it, and a larger one begins with such a place [B].
const WHOLE: usize = 8 << 10;
/// The size of any other place [B].
pub const PLACE: usize = 16;

/// (address, bytes) of each place: the beginning, the multiples, the middle and the end.
pub fn places(at: usize, bytes: usize) -> Vec<(usize, usize)> {
    let mut all = vec![(at, bytes.min(WHOLE))];
    if bytes > WHOLE {
        let last = at + bytes - PLACE;
        let multiples = (at + WHOLE).next_multiple_of(APART)..last;
        all.extend(multiples.step_by(APART).chain([at + bytes / 2, last]).map(|place| (place, PLACE)));
    }
    all
}

/// Fills the places of a block.
pub fn fill(d: Device, stream: Stream, at: usize, value: u8, bytes: usize) {
    for (at, bytes) in places(at, bytes) {
        match stream {
            NULL => outcome(unsafe { millpond_memset(ptr(d.0), ptr(at), value, bytes) }).unwrap(),
            _ => d.fill(stream, at, value, bytes),
        }
    }
}

/// What of a block is read: the beginning of each place, and the middle and the end.
pub fn looks(at: usize, bytes: usize) -> Vec<usize> {
    let starts = places(at, bytes).into_iter().map(|(at, _)| at);
    starts.chain([at + bytes / 2, at + bytes - PLACE]).collect()
}
