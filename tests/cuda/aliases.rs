//! Blocks of scattered granules under the guide's rule on virtual aliasing: what docs/cuda.md says that a program may do is
//! silent in the fake driver, and what it says that a program may not do without `scatter:off` is found there.

use crate::cuda::{Fake, GRANULE, MIB};
use millpond::core::PoolId;
use millpond::runtime::{self, DeviceState};
use std::ffi::c_void;
use std::sync::Arc;

const POOL: PoolId = PoolId::DEFAULT;
const EARLY: u32 = 1; // FAKECUDA_EARLY
const STAYS: u32 = 2; // FAKECUDA_STAYS

type Spans = *const [u64; 2];
type Launch =
    extern "C" fn(u64, Spans, usize, Spans, usize, u32, *const c_void, *const c_void, *mut u64) -> u32;

/// A kernel that reads and writes these blocks: its number in the stream.
fn kernel(fake: &Fake, stream: u64, reads: &[[u64; 2]], writes: &[[u64; 2]], flags: u32) -> u64 {
    let launch: Launch = fake.driver("fakecuda_kernel");
    let (none, mut number) = (std::ptr::null(), 0);
    let key = key(fake, stream);
    let (r, w) = (reads.as_ptr(), writes.as_ptr());
    assert_eq!(launch(key, r, reads.len(), w, writes.len(), flags, none, none, &mut number), 0);
    number
}

/// How the fake's controls know a stream.
fn key(fake: &Fake, stream: u64) -> u64 {
    let id: extern "C" fn(u64, *mut u64) -> u32 = fake.driver("cuStreamGetId");
    let mut key = 0;
    fake.with_primary(0, || assert_eq!(id(stream, &mut key), 0));
    key
}

fn found(fake: &Fake) -> u64 {
    fake.driver::<extern "C" fn() -> u64>("fakecuda_aliases")()
}

/// A device of 16 granules with one large block in every other pair of them, which are then written by a kernel and freed in
/// its stream: a block that is larger than any hole.
fn freed_with_holes(options: &str) -> (Fake, Arc<DeviceState>, u64, Vec<[u64; 2]>) {
    let fake = Fake::new(&[("capacity", "32M"), ("keep_log", "1")], |_| {});
    runtime::set_default_options(Some("cuda"), None, options).unwrap();
    let d = runtime::device("cuda", 0).unwrap();
    let s = d.streams().create().unwrap();
    let m = d.memory();
    let all: Vec<u64> = (0..8).map(|_| m.alloc(POOL, s, 2 * GRANULE).unwrap()).collect();
    let freed: Vec<[u64; 2]> = all.iter().step_by(2).map(|p| [*p, 2 * GRANULE]).collect();
    kernel(&fake, s, &[], &freed, 0);
    freed.iter().for_each(|p| m.free(p[0], Some(s), None).unwrap());
    (fake, d, s, freed)
}

#[test]
fn work_in_the_order_of_its_stream_may_use_scattered_blocks() {
    let (fake, d, s, _) = freed_with_holes("");
    let p = d.memory().alloc(POOL, s, 6 * MIB).unwrap();
    kernel(&fake, s, &[[p, 6 * MIB]], &[], 0);
    d.memset_async(s, p, 1, 6 * MIB).unwrap();
    d.streams().synchronize(s).unwrap();
    assert_eq!(found(&fake), 0, "{}", fake.log());
    fake.end();
}

#[test]
fn a_dependent_launch_on_a_scattered_block_is_found() {
    let (fake, d, s, _) = freed_with_holes("");
    let p = d.memory().alloc(POOL, s, 6 * MIB).unwrap();
    kernel(&fake, s, &[], &[[p, 6 * MIB]], EARLY);
    d.streams().synchronize(s).unwrap();
    assert_eq!(found(&fake), 1, "{}", fake.log());
    fake.end();
}

/// Without scattering the freed memory comes back at its own addresses, or as other memory.
#[test]
fn without_scattering_a_dependent_launch_is_safe() {
    let (fake, d, s, freed) = freed_with_holes("scatter:off");
    let p = d.memory().alloc(POOL, s, 2 * GRANULE).unwrap();
    assert!(freed.iter().any(|f| f[0] == p));
    kernel(&fake, s, &[[p, 2 * GRANULE]], &[[p, 2 * GRANULE]], EARLY);
    // No hole is as large: the rest goes to the driver, and comes anew in one piece.
    let q = d.memory().alloc(POOL, s, 6 * MIB).unwrap();
    kernel(&fake, s, &[[q, 6 * MIB]], &[[p, 2 * GRANULE]], EARLY);
    d.streams().synchronize(s).unwrap();
    assert_eq!(found(&fake), 0, "{}", fake.log());
    fake.end();
}

/// A kernel that never ends and is told of new blocks reads what was there before it was written at the other address.
#[test]
fn a_persistent_kernel_that_is_handed_a_scattered_block_is_found() {
    for (options, reports) in [("", 1), ("scatter:off", 0)] {
        let (fake, d, s, freed) = freed_with_holes(options);
        d.streams().synchronize(s).unwrap();
        let side = d.streams().create().unwrap();
        // It is handed the address of a block that lives when it ends: the one at its own place.
        let block = freed[1];
        let number = kernel(&fake, side, &[block], &[], STAYS);
        let there: extern "C" fn(u64, u64) -> i32 = fake.driver("fakecuda_kernel_stays");
        while there(key(&fake, side), number) == 0 {
            std::thread::yield_now();
        }
        let bytes = if reports == 1 { 6 * MIB } else { 2 * GRANULE };
        let all: Vec<u64> = std::iter::from_fn(|| d.memory().alloc(POOL, s, bytes).ok()).collect();
        for &p in &all {
            kernel(&fake, s, &[], &[[p, bytes]], 0);
        }
        d.streams().synchronize(s).unwrap();
        let end: extern "C" fn(u64, u64) -> u32 = fake.driver("fakecuda_kernel_end");
        assert_eq!(end(key(&fake, side), number), 0);
        d.streams().synchronize(side).unwrap();
        assert_eq!(found(&fake), reports, "{options}: {}", fake.log());
        fake.end();
    }
}
