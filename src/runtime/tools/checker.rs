//! Checkers of memory that others have made, and that may be in this process or run it: AddressSanitizer, and memcheck
//! of valgrind. Each is found at run time, and told which memory nobody may touch.
//!
//! Nothing here decides what is told when, and nothing keeps a table: see `runtime/tools/`.

/// What a checker is told. Ranges are addresses and bytes, never empty. Called under a lock: an answer takes no lock of
/// this library and calls nothing of it.
pub(crate) trait Checker: Send + Sync {
    /// A range of addresses has memory from now on.
    fn came(&self, _address: u64, _bytes: u64) {}
    /// It has none any more, or not for long.
    fn went(&self, _address: u64, _bytes: u64) {}
    /// Nobody may touch the range.
    fn close(&self, address: u64, bytes: u64);
    /// Everybody may touch it, and what it contains counts.
    fn open(&self, address: u64, bytes: u64);
    /// A block begins here, and belongs to the program. It contains nothing yet.
    fn give(&self, address: u64, bytes: u64);
    /// The block ends, and nobody may touch it.
    fn take(&self, address: u64, bytes: u64);
    /// The block ends. Who may touch its memory stays as it is.
    fn forget(&self, address: u64, bytes: u64);
    /// The range is left of a block that is told to be forgotten, and may be used still.
    fn keep(&self, _address: u64, _bytes: u64) {}
    /// Not any more, or there is another block.
    fn unkeep(&self, _address: u64, _bytes: u64) {}
}
