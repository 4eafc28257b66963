//! Whether the host has memory for a call that could not say later that it has none.

use super::boxed::has_room;
use super::error::{Result, no_host_memory};

/// \[B\] of the host's memory without which a call is not begun that makes lists as it goes.
pub(crate) const CALL_BYTES: usize = 64 << 10;

/// `OutOfMemory` if the heap has no room for so many bytes: for a call that could not say so later, before it changes
/// anything. It holds as long as nobody else takes that memory meanwhile.
#[inline(never)]
pub(crate) fn check_room(bytes: usize) -> Result<()> {
    if has_room(bytes) { Ok(()) } else { Err(no_host_memory()) }
}
