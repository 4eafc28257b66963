//! What the pond remembers, as plain data: nothing here takes a lock or calls anything above. `ground` has the locks.

pub(crate) mod captures;
pub(crate) mod checkpoints;
pub(crate) mod explaining;
pub(crate) mod growth;
pub(crate) mod pools;
pub(crate) mod sleeping;
pub(crate) mod tags;
pub(crate) mod tuned;
