//! The offset-only allocator and the words it shares with its users.

pub mod types;

pub use types::{BlockInfo, Counter, PoolId, Stats};
