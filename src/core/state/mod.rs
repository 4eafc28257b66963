//! What the pond remembers, as plain data: it calls nothing and locks nothing. The code that acts on it is above.

pub(crate) mod captures;
pub(crate) mod checkpoints;
pub(crate) mod growth;
pub(crate) mod pools;
pub(crate) mod sleeping;
pub(crate) mod tags;
pub(crate) mod tuned;
