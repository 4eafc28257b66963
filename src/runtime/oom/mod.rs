//! A request that found no memory: the report of why, and the callbacks that may free some.

pub(super) mod explain;
pub(super) mod rescue;
