//! What a call finds out about its thread before it does anything: whether the process is a forked child, whether the
//! thread is inside a callback or a device already, and the tag that it has in force.

pub(super) mod fork;
pub(crate) mod reentry;
pub(super) mod tags;
pub(super) mod usage;
