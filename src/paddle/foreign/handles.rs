//! The streams and events of a plugin's device by the handles that users hold: what is known of them. `live.rs` acts on
//! it.
//!
//! Mostly the handle is the plugin's own; a plugin may answer null for all of its streams or events (it runs all work at
//! once), and then each gets a number of ours.

use crate::base::error::{Code, Error};
use crate::device::EventId;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Where the numbers of handles that are ours start; no address of a process has the top bit set.
const OURS: u64 = 1 << 63;

/// What an event stands for.
#[derive(Clone, Copy)]
pub(super) enum Recorded {
    /// Nothing, or work that was done when it was recorded.
    Done,
    /// What the plugin's event has.
    Native,
}

/// The live streams and events of a device.
#[derive(Default)]
pub(super) struct Handles {
    /// What the user holds -> what the plugin gets.
    pub(super) streams: HashMap<u64, Arc<u64>>,
    /// Streams that the user has ended, until no call uses them any more: by what the user held.
    pub(super) ending: Vec<(u64, Arc<u64>)>,
    /// Where streams have ended of a plugin that cannot wait for all of its work.
    pub(super) ends: Vec<Arc<End>>,
    /// What the user holds -> what the plugin gets (`None` where the plugin has no events).
    pub(super) events: HashMap<u64, (Option<u64>, Recorded)>,
    made: u64,
}

/// An event behind the last work of a stream that has ended.
pub(super) struct End {
    pub event: u64,
    pub passed: AtomicBool,
}

impl Handles {
    /// The plugin's handle where it is of use as a name, else a number of ours.
    pub(super) fn name(&mut self, native: u64, taken: impl Fn(&Handles, u64) -> bool) -> u64 {
        if native != 0 && native < OURS && !taken(self, native) {
            return native;
        }
        self.made += 1;
        OURS + self.made
    }
}

pub(super) fn unknown_event(event: EventId) -> Error {
    Error::formatted(Code::UnknownEvent, format_args!("event {event:#x} is unknown or was destroyed"))
}
