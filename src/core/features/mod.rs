//! What the pond can do besides allocating and freeing.

mod account;
mod blocks;
mod capture;
mod checkpoint;
mod explain;
mod exports;
mod pools;
mod resize;
mod restore;
mod sleep;
mod snapshot;
mod statistics;
mod streams;
mod tags;
mod tuning;
mod waiting;
mod walk;

pub use checkpoint::Restored;
pub use exports::{Exported, Pieces};
