//! What the pond remembers, as plain data: it calls nobody and locks nothing. Who acts on it stands above.

pub(crate) mod captures;
pub(crate) mod checkpoints;
pub(crate) mod growth;
pub(crate) mod pools;
pub(crate) mod sleeping;
pub(crate) mod tuned;
