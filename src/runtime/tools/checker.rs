//! What a tool that watches memory is told: AddressSanitizer, memcheck of valgrind, and tools that speak NVTX. Each is made
//! by others, may be in this process or run it, and is found at run time.
//!
//! When a tool is told what is decided in `mod.rs`, and `shade.rs` remembers what it has been told.

/// A tool. Ranges are addresses and bytes, and never empty. It is told under a lock (`locks::Tool`), and possibly under
/// others: it takes no lock of this library and calls nothing of it.
pub(crate) trait Checker: Send {
    /// A range of addresses has memory from now on.
    fn came(&mut self, _address: u64, _bytes: u64) {}
    /// The range has no memory any more, or is about to lose it.
    fn went(&mut self, _address: u64, _bytes: u64) {}
    /// Nobody may touch the range.
    fn close(&mut self, address: u64, bytes: u64);
    /// Everybody may touch the range, and its contents are valid.
    fn open(&mut self, address: u64, bytes: u64);
    /// A block was allocated: the program may touch it. Its contents are undefined.
    fn give(&mut self, address: u64, bytes: u64);
    /// The block was freed: nobody may touch it.
    fn take(&mut self, address: u64, bytes: u64);
    /// The block is no block any more. Who may touch its memory stays as it is.
    fn forget(&mut self, address: u64, bytes: u64);
    /// The range is the rest of a block that is forgotten, and work that is queued may still use it.
    fn keep(&mut self, _address: u64, _bytes: u64) {}
    /// No work uses the rest of that block any more, or another block lies there.
    fn unkeep(&mut self, _address: u64, _bytes: u64) {}
}
