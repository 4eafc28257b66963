//! The oracle: random programs over the C API, on devices whose time stands still until the program moves it, compared
//! with a small model of docs/streams.md. A program that fails is made smaller and goes into `corpus/`, which a test
//! replays.
//!
//! `MILLPOND_ORACLE_SECONDS` makes the runs longer, `MILLPOND_ORACLE_SEED` begins elsewhere, `MILLPOND_ORACLE_COUNT`
//! prints how many operations were run. `MILLPOND_ORACLE_FOUND` names a folder that collects every kind of failure
//! instead of stopping at the first; `MILLPOND_ORACLE_WITHOUT` leaves operations out (by name, with commas).
//! `MILLPOND_ORACLE_TIE` (granules of the largest handle) and `MILLPOND_ORACLE_CAPACITY` (MiB) change the device. For one
//! program, `MILLPOND_ORACLE_FILE=program.txt MILLPOND_ORACLE_TRACE=1 cargo test --test oracle corpus` prints what each
//! operation and the device do.
#![cfg(all(feature = "capi", target_os = "linux"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::undocumented_unsafe_blocks,
    unreachable_pub,
    reason = "a test fails by panicking, its helpers too; every block is one call of an interface under test"
)]

#[macro_use]
#[path = "../seam/reaches_itself.rs"]
mod reaches_itself;

mod accounts;
mod apart;
#[path = "../contract/api.rs"]
#[allow(dead_code, reason = "the contract's tests use all of it")]
mod api;
mod blocks;
mod cuda_only;
mod device;
mod features;
mod gpu;
mod kept;
mod model;
mod plugin;
mod program;
mod random;
mod run;
mod threads;
mod time;
mod waits;
mod world;

#[path = "../fakecuda/mod.rs"]
mod cuda;
#[path = "../fake/mod.rs"]
mod fake;
#[path = "../seam/mod.rs"]
mod seam;
#[path = "../contract/threads.rs"]
#[allow(dead_code, reason = "the contract's tests use all of it")]
mod threaded;

use apart::{apart, hunt};
use run::KINDS;
use world::Lie;

macro_rules! kinds {
    ($($(#[$more:meta])* $name:ident)*) => {$(
        /// Random programs on this kind of device.
        #[test]
        $(#[$more])*
        fn $name() {
            hunt(stringify!($name));
        }
    )*};
}

kinds! {
    mapping
    few_numbers
    ties
    small
    segments
    plugin
    odd_sizes
    no_events
    no_synchronize
    no_queries
    cuda
    cuda_two
    cuda_old
    cuda_announced
    cuda_ties
    cuda_unscattered
    cuda_segments
    cuda_none
    cuda_async
}

macro_rules! several {
    ($($(#[$more:meta])* $name:ident $kind:literal)*) => {$(
        /// Programs of several threads, with real time, on this kind of device.
        #[test]
        $(#[$more])*
        fn $name() {
            apart::several(stringify!($name), $kind);
        }
    )*};
}

several! {
    threads_mapping "mapping"
    threads_segments "segments"
    threads_plugin "plugin"
    threads_cuda "cuda"
}

/// Every kind of device has its test above.
#[test]
fn all_kinds_are_there() {
    assert_eq!(KINDS.len(), 19);
}

/// Programs that failed once.
#[test]
fn corpus() {
    apart::replay("corpus");
}

/// The oracle sees a device that lies about order.
#[test]
fn a_device_that_lies_is_found_out() {
    apart("a_device_that_lies_is_found_out", 120, || {
        for lie in [Lie::Passed, Lie::NoWait, Lie::Short, Lie::NoSync] {
            let seen = (0..3000).find_map(|seed| {
                let program = random::random(seed, 150, KINDS[0].taste());
                run::run(KINDS[0], &program, lie).err()
            });
            let failure = seen.unwrap_or_else(|| panic!("{lie:?} is not seen"));
            eprintln!("{lie:?}: {}", failure.text);
        }
    });
}
