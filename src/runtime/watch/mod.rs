//! Who is told what happens to a device's memory: observers (a history, a recording, a checker of memory), hooks of the
//! program, and the times that calls take.

pub(super) mod event;
pub(super) mod hooks;
pub(super) mod latency;
pub(super) mod numbers;
pub(super) mod observe;
pub(super) mod pool_names;
