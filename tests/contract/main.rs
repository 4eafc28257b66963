//! Checks the contract of streams and memory where streams end, calls fail, threads race and work is slow: memory is
//! not handed out while earlier work may touch it, it comes back afterwards, no call waits for work that does not
//! concern it, and the account is exact.
#![cfg(all(feature = "capi", target_os = "linux"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::undocumented_unsafe_blocks,
    unreachable_pub,
    reason = "a test fails by panicking, its helpers too; every block is one call of an interface under test"
)]

#[macro_use]
#[path = "../seam/reaches_itself.rs"]
mod reaches_itself;

mod api;
mod counted;
mod held;
mod threads;

#[path = "../apart/mod.rs"]
mod apart;
#[path = "../compilers/mod.rs"]
mod compilers;
#[path = "../fakecuda/mod.rs"]
mod cuda;
#[path = "../fake/mod.rs"]
mod fake;
#[path = "../random/mod.rs"]
mod random;
#[path = "../seam/mod.rs"]
mod seam;

mod accounts;
mod all_beside;
mod boundaries;
mod by_signal;
mod bystanders;
mod callbacks;
mod captures;
mod checkers;
mod descriptors;
mod double_free;
mod ends_beside;
mod events;
mod exports_meet;
mod failing_fences;
mod far_again;
mod far_random;
mod far_segments;
mod far_threads;
mod fast_path;
mod forks_beside;
mod handlers;
mod history;
mod history_threads;
mod host_ends;
mod last_marks;
mod last_words;
mod latency;
mod membarrier;
mod observers;
mod oom;
mod peer_copies;
mod pinned;
mod readers;
mod refused;
mod released;
mod restore;
mod scattered;
mod segment_walk;
mod shared_segments;
mod sizes;
mod slow_files;
mod snapshots;
mod statistics;
mod stream_ends;
mod tags;
mod thrown;
mod unload;
mod unordered;
mod unpooled;
mod waiting_blocks;
mod waits;
mod walk;
