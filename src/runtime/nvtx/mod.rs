//! NVTX, by which tools of NVIDIA see what a program does: ranges and marks in a domain "millpond", and, through its
//! memory extension, heaps and the regions in them.
//!
//! NVTX is no library. A tool that runs a program names a shared library of its own in `NVTX_INJECTION64_PATH`; whoever has
//! something to tell loads it, gives it tables, and calls the functions that the tool has put there (`attach.rs`). Without
//! that variable nothing is loaded, and each call here reads one flag.

mod abi;
mod attach;

use attach::Tool;
use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};

pub(crate) use attach::Memory;

static TOOL: OnceLock<Option<Tool>> = OnceLock::new();
/// Whether there is a tool.
static ON: AtomicBool = AtomicBool::new(false);

/// Looks for a tool, once in a process. The driver of the device that is to be watched has been started.
pub(crate) fn start() {
    let tool = TOOL.get_or_init(attach::find);
    ON.store(tool.is_some(), Release); // pairs with the Acquire in `tool`
}

#[inline]
fn tool() -> Option<&'static Tool> {
    if ON.load(Acquire) { TOOL.get()?.as_ref() } else { None }
}

/// The tool's memory extension, if it has that.
pub(crate) fn memory() -> Option<Memory> {
    tool()?.memory()
}

/// Marks a moment. The tool shows `value` with it.
pub(crate) fn mark(what: &'static CStr, value: u64) {
    if let Some(t) = tool() {
        t.mark(what, value);
    }
}

/// Begins a range, which ends when the result is dropped, on the same thread. Ranges nest.
pub(crate) fn range(what: &'static CStr, value: u64) -> Range {
    Range(tool().filter(|t| t.push(what, value)))
}

/// See [`range`].
pub(crate) struct Range(Option<&'static Tool>);

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(t) = self.0 {
            t.pop();
        }
    }
}
