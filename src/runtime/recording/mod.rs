//! How events get into a ring and into files. A tape is an observer of a device's memory (`watch/observe.rs`); it knows no
//! device. `history/` has the calls.

pub(super) mod files;
pub(super) mod format;
pub(super) mod output;
mod stack;
pub(super) mod tape;
pub(super) mod tapes;
pub(super) mod texts;
pub(super) mod trace;
