//! The tapes that a device has: the one of its history, and the one of its recording.

use super::tape::Tape;
use crate::base::sync::system::Mutex;
use crate::locks;
use crate::runtime::watch::observe::Observer;
use std::sync::Arc;

/// A tape of a device, and whether it is told still.
#[derive(Clone)]
pub(crate) struct Running {
    pub tape: Arc<Tape>,
    pub observer: Arc<dyn Observer>,
    pub told: bool,
}

/// The tapes of one device.
#[derive(Default)]
pub(crate) struct Tapes {
    /// Whose turn it is to begin or end one: a file is opened, and a thread waited for. Nobody else needs it.
    pub(crate) turn: Mutex<(), locks::TapeTurn>,
    pub(crate) history: Mutex<Option<Running>>,
    pub(crate) record: Mutex<Option<Running>>,
}
