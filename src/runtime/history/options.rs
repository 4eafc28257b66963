//! What a program can choose for a history.

use std::path::PathBuf;

/// How a history is to be.
#[derive(Clone, Debug, Default)]
pub struct HistoryOptions {
    /// The newest so many events are kept, rounded up to a power of two; 0: 65 536. Each takes 64 bytes, and 8 for each
    /// caller.
    pub events: usize,
    /// Callers of each request, free and note; 0: none, 64 at most.
    pub frames: usize,
    /// All events go to this file, too. `%p` in it is the number of the process, `%d` the device.
    pub file: Option<PathBuf>,
}
