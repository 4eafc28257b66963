//! Contiguous pools: what a library that registers memory sees of a block by its address, and what becomes of such memory.

use crate::apart::apart_for;
use crate::cuda::*;
use millpond::runtime::{self, PoolId};
use millpond::{Code, DeviceState, Result};

const POOL: PoolId = PoolId::DEFAULT;
const CARD: &[(&str, &str)] = &[("capacity", "256M"), ("keep_log", "1")];
/// CUDA_ERROR_LAUNCH_FAILED and CUDA_ERROR_OUT_OF_MEMORY.
const FAILED: u32 = 719;
const NO_MEMORY: u32 = 2;
const BUFFER_ID: u32 = 7; // CU_POINTER_ATTRIBUTE_BUFFER_ID

/// What `cuMemGetAddressRange` says: where the allocation begins and ends.
fn range(fake: &Fake, at: u64) -> (u64, u64) {
    let ask: extern "C" fn(*mut u64, *mut usize, u64) -> u32 = fake.driver("cuMemGetAddressRange_v2");
    let (mut base, mut bytes) = (0, 0);
    fake.with_primary(0, || assert_eq!(ask(&mut base, &mut bytes, at), 0));
    (base, base + bytes as u64)
}

fn buffer_id(fake: &Fake, at: u64) -> u64 {
    let ask: extern "C" fn(*mut u64, u32, u64) -> u32 = fake.driver("cuPointerGetAttribute");
    let mut id = 0;
    fake.with_primary(0, || assert_eq!(ask(&mut id, BUFFER_ID, at), 0));
    id
}

/// What a pool does on a stream.
type Step = fn(&Fake, &DeviceState, PoolId, u64) -> Result<()>;

/// Whether all of a block is one allocation, as NCCL, UCX and others find out before they register it.
fn is_one(fake: &Fake, at: u64, bytes: u64) -> bool {
    let (base, end) = range(fake, at);
    let whole = base <= at && at + bytes <= end;
    assert_eq!(whole, range(fake, at + bytes - 1) == (base, end));
    assert_eq!(whole, buffer_id(fake, at) == buffer_id(fake, at + bytes - 1));
    whole
}

/// The first and the last two bytes of blocks, with a value of each.
#[derive(Default)]
struct Marked(Vec<(u64, u64)>);

impl Marked {
    fn put(&mut self, fake: &Fake, at: u64, bytes: u64) {
        self.0.push((at, bytes));
        let mark = [self.0.len() as u8, 77];
        [at, at + bytes - 2].iter().for_each(|&place| fake.write(0, place, &mark).unwrap());
    }

    #[track_caller]
    fn check(&self, fake: &Fake) {
        for (i, &(at, bytes)) in self.0.iter().enumerate() {
            for place in [at, at + bytes - 2] {
                assert_eq!(fake.read(0, place, 2).unwrap(), [i as u8 + 1, 77], "block {i}");
            }
        }
    }

    fn free(&self, d: &DeviceState) {
        self.0.iter().for_each(|b| d.memory().free(b.0, None, None).unwrap());
    }
}

/// Blocks of all kinds, with holes between them.
fn fill(fake: &Fake, d: &DeviceState, p: PoolId, s: u64) -> Result<Marked> {
    let m = d.memory();
    let (mut marked, mut holes) = (Marked::default(), Vec::new());
    let mut done = Ok(());
    for bytes in [3 * MIB, 100, 5 * MIB, 70_000, 3 * MIB, 20 * MIB, 3 * MIB, 2 * MIB, 3 * MIB] {
        match m.alloc(p, s, bytes) {
            Ok(at) if bytes == 3 * MIB => holes.push(at),
            Ok(at) => marked.put(fake, at, bytes),
            Err(e) => done = Err(e),
        }
    }
    holes.iter().for_each(|&at| m.free(at, Some(s), None).unwrap());
    match done {
        Ok(()) => Ok(marked),
        Err(e) => {
            marked.free(d);
            Err(e)
        }
    }
}

#[test]
fn a_registration_spans_a_block_of_a_contiguous_pool_and_cuts_others_off() {
    let (fake, d) = one(CARD);
    let m = d.memory();
    let (p, s) = (m.pools().create_contiguous(0).unwrap(), d.streams().create().unwrap());
    let at = m.alloc(POOL, s, 40 * MIB).unwrap();
    assert!(!is_one(&fake, at, 40 * MIB), "handles of 2 MiB, each for itself");
    assert_eq!(range(&fake, at).1 - range(&fake, at).0, GRANULE);
    m.free(at, Some(s), None).unwrap();
    let blocks = fill(&fake, &d, p, s).unwrap();
    for round in 0..3 {
        for &(at, bytes) in &blocks.0 {
            assert!(is_one(&fake, at, bytes), "{bytes} bytes in round {round}");
        }
        for bytes in [40 * MIB, 6 * MIB, 8 * MIB] {
            let at = m.alloc(p, s, bytes).unwrap();
            assert!(is_one(&fake, at, bytes), "{bytes} bytes in round {round}");
            m.free(at, Some(s), None).unwrap();
        }
        d.pools().sleep(&[p], true).unwrap();
        d.pools().wake(&[p]).unwrap();
        blocks.check(&fake);
    }
    // A checkpoint's blocks come back where they were.
    let checkpoint = m.checkpoints().make(p).unwrap();
    let last = *blocks.0.last().unwrap();
    m.free(last.0, Some(s), None).unwrap();
    m.alloc(p, s, 1000).unwrap();
    m.checkpoints().restore(p, checkpoint).unwrap();
    assert!(is_one(&fake, last.0, last.1));
    m.checkpoints().destroy(checkpoint).unwrap();
    blocks.free(&d);
    m.pools().destroy(p).unwrap();
    m.empty_cache(None).unwrap();
    assert_eq!(fake.used(0), 0);
    fake.end();
}

/// One handle, one mapping, one access, and back by as many calls.
#[test]
fn a_block_takes_as_many_calls_as_a_segment() {
    let (fake, d) = one(CARD);
    let m = d.memory();
    let p = m.pools().create_contiguous(0).unwrap();
    fake.calls_reset();
    let at = m.alloc(p, 0, 100 * MIB).unwrap();
    m.free(at, Some(0), None).unwrap();
    m.empty_cache(Some(p)).unwrap();
    for name in ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"] {
        assert_eq!(fake.calls(name), 1, "{name}");
    }
    fake.end();
}

#[test]
fn a_capture_into_a_contiguous_pool_gets_its_memory_in_one_piece() {
    let (fake, d) = one(CARD);
    let m = d.memory();
    let (p, s) = (m.pools().create_contiguous(0).unwrap(), d.streams().create().unwrap());
    let c = m.captures().begin(p, s).unwrap();
    let at = m.alloc(POOL, s, 30 * MIB).unwrap();
    assert!(is_one(&fake, at, 30 * MIB));
    m.free(at, Some(s), None).unwrap();
    m.captures().end(c).unwrap();
    m.captures().release(c).unwrap();
    assert_eq!(fake.used(0), 0);
    fake.end();
}

#[test]
fn other_devices_may_use_memory_of_a_contiguous_pool() {
    let fake = Fake::new(&[("capacity", "256M"), ("devices", "2")], |_| {});
    runtime::set_default_options(Some("cuda"), None, "peer_access:off").unwrap();
    let (d, peer) = (runtime::device("cuda", 0).unwrap(), runtime::device("cuda", 1).unwrap());
    let m = d.memory();
    let p = m.pools().create_contiguous(0).unwrap();
    let before = m.alloc(p, 0, 30 * MIB).unwrap();
    assert!(fake.read(1, before, 1).is_err());
    d.peer_access().enable(&peer).unwrap();
    let after = m.alloc(p, 0, 30 * MIB).unwrap();
    for at in [before, after] {
        fake.write(0, at + 29 * MIB, &[5]).unwrap();
        assert_eq!(fake.read(1, at + 29 * MIB, 1).unwrap(), [5]);
    }
    fake.end();
}

#[test]
fn where_nothing_is_mapped_every_pool_is_so() {
    let fake = Fake::new(CARD, |o| o.mapping = false);
    let d = runtime::device("cuda", 0).unwrap();
    for p in [POOL, d.memory().pools().create_contiguous(0).unwrap()] {
        let at = d.memory().alloc(p, 0, 70 * MIB).unwrap();
        assert!(is_one(&fake, at, 70 * MIB));
        d.memory().free(at, Some(0), None).unwrap();
    }
    fake.end();
    for (backend, refused) in [("backend:none", false), ("backend:cudaMallocAsync", true)] {
        let fake = Fake::new(CARD, |_| {});
        runtime::set_default_options(Some("cuda"), None, backend).unwrap();
        let d = runtime::device("cuda", 0).unwrap();
        let made = d.memory().pools().create_contiguous(0);
        assert_eq!(made.err().map(|e| e.code()), refused.then_some(Code::Unsupported), "{backend}");
        runtime::set_default_options(Some("cuda"), None, "").unwrap();
        fake.end();
    }
}

/// Every call of the driver fails once in something that such a pool does: the account is right then, the memory is as it
/// was, and a second attempt succeeds.
fn every_call_may_fail(name: &str, step: Step) {
    let mut seen = 0;
    for code in [FAILED, NO_MEMORY] {
        // The second code ends in the same places: some of them.
        for call in (0..).step_by(if code == FAILED { 1 } else { 7 }) {
            let (fake, d) = one(CARD);
            let m = d.memory();
            let (p, s) = (m.pools().create_contiguous(0).unwrap(), d.streams().create().unwrap());
            let kept = fill(&fake, &d, p, s).unwrap();
            fake.calls_reset();
            fake.fail("*", call + 1, code, false);
            let done = step(&fake, &d, p, s);
            let made = fake.all_calls();
            fake.fail_clear();
            if made <= call {
                done.unwrap();
                fake.end_quietly();
                assert!(call > 5, "{name}: too few calls to call this a test");
                break;
            }
            seen += u32::from(done.is_err());
            let what = format!("{name}, call {call} ({code}): {done:?}");
            if m.pools().sleeps(p) {
                d.pools().wake(&[p]).unwrap_or_else(|e| panic!("{what}, then {e}"));
            }
            kept.check(&fake);
            assert!(kept.0.iter().all(|b| is_one(&fake, b.0, b.1)), "{what}");
            step(&fake, &d, p, s).unwrap_or_else(|e| panic!("{what}, again: {e}"));
            if m.pools().sleeps(p) {
                d.pools().wake(&[p]).unwrap();
            }
            kept.check(&fake);
            kept.free(&d);
            m.empty_cache(None).unwrap();
            assert_eq!((m.stats().reserved.current, fake.used(0)), (0, 0), "{what}");
            fake.end();
        }
    }
    assert!(seen > 3, "{name}: only {seen} failures came out");
}

#[test]
fn every_call_may_fail_of_blocks_that_come_and_go() {
    apart_for(900, || {
        every_call_may_fail("blocks", |fake, d, p, s| {
            let blocks = fill(fake, d, p, s)?;
            blocks.check(fake);
            blocks.free(d);
            d.memory().empty_cache(Some(p))
        });
    });
}

#[test]
fn every_call_may_fail_of_a_sleep() {
    apart_for(900, || every_call_may_fail("sleep", |_, d, p, _| d.pools().sleep(&[p], true)));
}

#[test]
fn every_call_may_fail_of_a_wake() {
    apart_for(900, || {
        every_call_may_fail("wake", |_, d, p, _| {
            if !d.memory().pools().sleeps(p) {
                d.pools().sleep(&[p], true)?;
            }
            d.pools().wake(&[p])
        });
    });
}
