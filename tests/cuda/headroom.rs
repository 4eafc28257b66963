//! Memory of the card that is left to others: to modules that the driver loads late, to the workspaces of libraries.

use crate::cuda::*;
use millpond::Code;
use millpond::runtime::{self, PoolId};

const GIB: u64 = 1 << 30;
const POOL: PoolId = PoolId::DEFAULT;

#[test]
fn the_headroom_of_a_card_is_never_taken() {
    let fake = Fake::new(&[("capacity", "4G"), ("strict", "1"), ("no_fd", "1")], |_| {});
    let d = runtime::device("cuda", 0).unwrap();
    let m = d.memory();
    assert_eq!(d.options().value("headroom_mb").unwrap(), "default");
    let mut all = Vec::new();
    let e = loop {
        match m.alloc(POOL, 0, 64 * MIB) {
            Ok(at) => all.push(at),
            Err(e) => break e,
        }
    };
    assert_eq!(e.code(), Code::OutOfMemory);
    assert!(e.message().contains("headroom_mb"), "{e}");
    assert_eq!(all.len() as u64 * 64 * MIB, 4 * GIB - 128 * MIB);
    assert_eq!(m.statistics().full(None).unwrap().largest_free_bytes, 0);
    // We hold everything, and a module can still be loaded. What others take then is theirs.
    assert_eq!(fake.take(0, 100 * MIB), 0);
    m.free(all.pop().unwrap(), Some(0), None).unwrap();
    assert_eq!(m.alloc(POOL, 0, 64 * MIB + GRANULE).unwrap_err().code(), Code::OutOfMemory);
    all.push(m.alloc(POOL, 0, 64 * MIB).unwrap());
    // Off, and everything can be had.
    d.options().set("headroom_mb:0").unwrap();
    all.push(m.alloc(POOL, 0, 28 * MIB).unwrap());
    assert_eq!(fake.used(0), 4 * GIB);
    all.into_iter().for_each(|at| m.free(at, Some(0), None).unwrap());
    fake.end();
}

#[test]
fn a_headroom_of_ones_own_with_segments_too() {
    for mapping in [true, false] {
        let fake = Fake::new(&[("capacity", "64M")], |o| o.mapping = mapping);
        let d = runtime::device("cuda", 0).unwrap();
        // A small card has none by default, since nobody would expect it there.
        let at = d.memory().alloc(POOL, 0, 62 * MIB).unwrap();
        d.memory().free(at, Some(0), None).unwrap();
        d.memory().empty_cache(None).unwrap();
        d.options().set("headroom_mb:8").unwrap();
        assert_eq!(d.memory().alloc(POOL, 0, 58 * MIB).unwrap_err().code(), Code::OutOfMemory);
        let at = d.memory().alloc(POOL, 0, 56 * MIB).unwrap();
        d.memory().free(at, Some(0), None).unwrap();
        fake.end();
    }
}

#[test]
fn what_a_pool_had_before_it_slept_comes_back_whatever_the_headroom() {
    let (fake, d) = one(&[]);
    let m = d.memory();
    d.options().set("headroom_mb:8").unwrap();
    let p = m.pools().create(0).unwrap();
    let at = m.alloc(p, 0, 24 * MIB).unwrap();
    d.memset(at, 7, 24 * MIB).unwrap();
    d.pools().sleep(&[p], true).unwrap();
    // Others leave room for it, but not for as much more.
    assert_eq!(fake.take(0, 36 * MIB), 0);
    d.pools().wake(&[p]).unwrap();
    assert_eq!(fake.read(0, at + 24 * MIB - 1, 1), Ok(vec![7]));
    assert_eq!(m.alloc(p, 0, GRANULE).unwrap_err().code(), Code::OutOfMemory, "growth leaves it alone");
    m.free(at, Some(0), None).unwrap();
    fake.end();
}

#[test]
fn without_scattering_each_block_is_in_one_piece_of_addresses_of_its_granules() {
    let (fake, d) = one(&[]);
    let m = d.memory();
    d.options().set("scatter:off").unwrap();
    let all: Vec<u64> = (0..32).map(|_| m.alloc(POOL, 0, GRANULE).unwrap()).collect();
    all.iter().step_by(2).for_each(|at| m.free(*at, Some(0), None).unwrap());
    // 16 granules are free, no two side by side. Giving them back gets others that are.
    let maps = fake.calls("cuMemMap");
    let at = m.alloc(POOL, 0, 16 * GRANULE).unwrap();
    assert_eq!(fake.calls("cuMemMap") - maps, 16);
    assert_eq!(m.stats().reserved.current, 64 * MIB);
    assert_eq!(fake.calls("cuMemCreate") - fake.calls("cuMemRelease"), 32);
    m.free(at, Some(0), None).unwrap();
    // Only half of what is free can be kept in one piece; no request turns for ever.
    assert_eq!(m.alloc(POOL, 0, 17 * GRANULE).unwrap_err().code(), Code::OutOfMemory);
    d.options().set("scatter:on").unwrap();
    let at = m.alloc(POOL, 0, 16 * GRANULE).unwrap();
    m.free(at, Some(0), None).unwrap();
    all.iter().skip(1).step_by(2).for_each(|at| m.free(*at, Some(0), None).unwrap());
    fake.end();
}
