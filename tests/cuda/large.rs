//! Large handles of mapped memory: what becomes of those that are wholly free when memory is scarce, beside captures, which
//! a wait for the device would spoil.

use crate::cuda::*;
use millpond::runtime::{self, PoolId};
use millpond::{Code, DeviceState};
use std::sync::Arc;

const POOL: PoolId = PoolId::DEFAULT;

/// A card of 64 granules, all taken on a stream in handles of 8; the first, third, ... of them are free.
fn half_free(pool: impl FnOnce(&DeviceState) -> PoolId) -> (Fake, Arc<DeviceState>, PoolId, u64, Vec<u64>) {
    let fake = Fake::new(&[("capacity", "128M"), ("strict", "1")], |o| {
        o.tie = Some(8 * GRANULE);
        o.tie_growth = Some(GRANULE);
    });
    let d = runtime::device("cuda", 0).unwrap();
    let (p, s) = (pool(&d), d.streams().create().unwrap());
    let all: Vec<u64> = (0..8).map(|_| d.memory().alloc(p, s, 8 * GRANULE).unwrap()).collect();
    assert!(fake.calls("cuMemCreate") < 32, "{} handles", fake.calls("cuMemCreate"));
    all.iter().step_by(2).for_each(|&at| d.memory().free(at, Some(s), None).unwrap());
    let kept = all.into_iter().skip(1).step_by(2).collect();
    (fake, d, p, s, kept)
}

/// Writes something into each granule of a block, and reads it back.
fn use_all(fake: &Fake, at: u64, granules: u64) {
    for i in 0..granules {
        fake.write(0, at + i * GRANULE, &[i as u8 + 1; 3]).unwrap();
    }
    for i in 0..granules {
        assert_eq!(fake.read(0, at + i * GRANULE, 3).unwrap(), [i as u8 + 1; 3]);
    }
}

/// Runs `body` while a stream is captured in the strictest mode; the fake ends a capture that is disturbed.
fn beside_a_capture(fake: &Fake, s: u64, body: impl FnOnce()) {
    let begin: extern "C" fn(u64, u32) -> u32 = fake.driver("cuStreamBeginCapture_v2");
    let end: extern "C" fn(u64, *mut u64) -> u32 = fake.driver("cuStreamEndCapture");
    let destroy: extern "C" fn(u64) -> u32 = fake.driver("cuGraphDestroy");
    fake.with_primary(0, || assert_eq!(begin(s, 0), 0));
    body();
    let mut graph = 0;
    fake.with_primary(0, || {
        assert_eq!(end(s, &mut graph), 0, "the capture was disturbed");
        assert_eq!(destroy(graph), 0);
    });
}

/// Others get the memory of large handles that are wholly free, on any stream and in any pool.
#[test]
fn free_handles_serve_others_beside_a_capture() {
    for other in [false, true] {
        let (fake, d, p, s, kept) = half_free(|_| POOL);
        let m = d.memory();
        let q = if other { m.pools().create(0).unwrap() } else { p };
        let t = if other { d.streams().create().unwrap() } else { s };
        let captured = d.streams().create().unwrap();
        kept.iter().for_each(|&at| fake.write(0, at, b"kept").unwrap());
        beside_a_capture(&fake, captured, || {
            let at = m.alloc(q, t, 20 * GRANULE).expect("four times eight granules are free");
            use_all(&fake, at, 20);
            m.free(at, Some(t), None).unwrap();
        });
        kept.iter().for_each(|&at| assert_eq!(fake.read(0, at, 4).unwrap(), b"kept"));
        fake.end();
    }
}

/// So does a captured stream, once nothing is queued on theirs.
#[test]
fn free_handles_of_other_pools_serve_a_captured_stream() {
    let (fake, d, p, s, kept) = half_free(|d| d.memory().pools().create(0).unwrap());
    let m = d.memory();
    let (q, t) = (m.pools().create(0).unwrap(), d.streams().create().unwrap());
    let capture = m.captures().begin(q, t).unwrap();
    beside_a_capture(&fake, t, || {
        fake.hold(true);
        d.memset_async(s, kept[0], 7, 4).unwrap();
        assert_eq!(m.alloc(q, t, 20 * GRANULE).unwrap_err().code(), Code::OutOfMemory, "it is in use");
        fake.hold(false);
        d.streams().synchronize(s).unwrap();
        let at = m.alloc(q, t, 20 * GRANULE).expect("four times eight granules are free");
        use_all(&fake, at, 20);
        m.free(at, None, None).unwrap();
    });
    m.captures().end(capture).unwrap();
    m.captures().release(capture).unwrap();
    kept.iter().for_each(|&at| m.free(at, Some(s), None).unwrap());
    m.pools().destroy(p).unwrap();
    fake.end();
}

/// A captured stream, of which nothing can be asked, has its free handles as wholes.
#[test]
fn free_handles_serve_the_captured_stream() {
    let (fake, d, p, s, kept) = half_free(|d| d.memory().pools().create(0).unwrap());
    let m = d.memory();
    let capture = m.captures().begin(p, s).unwrap();
    beside_a_capture(&fake, s, || {
        fake.calls_reset();
        let at = m.alloc(p, s, 12 * GRANULE).expect("four times eight granules are free");
        let calls = ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap"].map(|name| fake.calls(name));
        assert_eq!(calls, [0, 2, 1, 0], "two handles, shown as wholes");
        use_all(&fake, at, 12);
        m.free(at, None, None).unwrap();
        assert_eq!(m.alloc(p, s, 12 * GRANULE).unwrap(), at, "and again, without a call");
        assert_eq!(fake.calls("cuMemMap"), 2);
        m.free(at, None, None).unwrap();
    });
    m.captures().end(capture).unwrap();
    m.captures().release(capture).unwrap();
    d.synchronize().unwrap();
    kept.iter().for_each(|&at| m.free(at, Some(s), None).unwrap());
    m.empty_cache(None).unwrap();
    assert_eq!(fake.used(0), 0, "also what was shown twice");
    fake.end();
}

/// On a card of 4 GiB or more large growth is in large handles; the option says otherwise.
#[test]
fn large_handles_are_the_default_on_large_cards() {
    for (capacity, tie, creates) in [("4G", None, 4), ("2G", None, 512), ("4G", Some(GRANULE), 512)] {
        let fake = Fake::new(&[("capacity", capacity), ("strict", "1")], |o| o.tie = tie);
        let d = runtime::device("cuda", 0).unwrap();
        fake.calls_reset();
        d.memory().alloc(POOL, 0, 1 << 30).unwrap();
        assert_eq!(fake.calls("cuMemCreate"), creates, "{capacity}, {tie:?}");
        fake.end();
    }
}
