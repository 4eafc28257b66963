//! The handles of streams and events. A card's driver gives the handle of an ended one to the next that is made, and reads
//! through a handle that means nothing: so both happen here, where the settings do not say otherwise. Inside the driver
//! streams and events have numbers that never come again (`cuStreamGetId` tells a stream's).

use std::cell::Cell;
use std::collections::HashMap;

use crate::code::INVALID_HANDLE;
use crate::world::World;

/// What a handle means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    Stream,
    Event,
}

/// The handles of one kind.
#[derive(Default)]
pub(crate) struct Names {
    numbers: HashMap<u64, u64>, // by handle
    free: Vec<u64>,             // the last that was given back is the first to come again
}

impl Names {
    /// Forgets the handles whose numbers are gone; they do not come again.
    pub(crate) fn keep(&mut self, there: impl Fn(u64) -> bool) {
        self.numbers.retain(|_, number| there(*number));
    }
}

thread_local! {
    static CALL: Cell<&'static str> = const { Cell::new("") };
}

/// Runs the body of an export, whose name is told if it meets a handle that means nothing.
pub(crate) fn within<T>(name: &'static str, body: impl FnOnce() -> T) -> T {
    let before = CALL.replace(name);
    let result = body();
    CALL.set(before);
    result
}

impl World {
    fn names(&mut self, what: Named) -> &mut Names {
        match what {
            Named::Stream => &mut self.stream_names,
            Named::Event => &mut self.event_names,
        }
    }

    /// A handle for the stream or event with this number.
    pub(crate) fn name(&mut self, what: Named, number: u64) -> u64 {
        let again = if self.config.reuse { self.names(what).free.pop() } else { None };
        let handle = again.unwrap_or(number);
        self.names(what).numbers.insert(handle, number);
        handle
    }

    /// The number of the stream or event that a handle means. Where it means none, a card's driver crashes, and so does this
    /// one, unless it is told to refuse.
    pub(crate) fn named(&mut self, what: Named, handle: u64) -> Result<u64, u32> {
        match self.names(what).numbers.get(&handle) {
            Some(number) => Ok(*number),
            None => Err(self.means_nothing(what, handle)),
        }
    }

    /// The stream or event ends: its handle may come again at once, or never, as the settings are now.
    pub(crate) fn unname(&mut self, what: Named, handle: u64) {
        let reuse = self.config.reuse;
        let names = self.names(what);
        if names.numbers.remove(&handle).is_some() && reuse {
            names.free.push(handle);
        }
    }

    #[expect(
        clippy::print_stderr,
        reason = "the last words of a process that the card's driver would end without any"
    )]
    fn means_nothing(&self, what: Named, handle: u64) -> u32 {
        let call = CALL.get();
        if self.config.refuse_ended || call.is_empty() {
            return INVALID_HANDLE;
        }
        let what = if what == Named::Stream { "stream" } else { "event" };
        eprintln!(
            "fakecuda: {call}: {what} {handle:#x} has ended, or never was one. A card's driver crashes here; \
             FAKECUDA_ENDED=refuse makes this one answer CUDA_ERROR_INVALID_HANDLE."
        );
        let trace = std::backtrace::Backtrace::capture();
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            eprintln!("{trace}");
        }
        // SAFETY: the default action for the signal, which ends the process.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        // SAFETY: as above.
        unsafe { libc::raise(libc::SIGSEGV) };
        std::process::abort()
    }
}
