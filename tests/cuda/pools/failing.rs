//! Each call of the driver fails once. These tests take longest, so that each runs apart: beside others, not in turn.

use super::sleep::full_pool;
use super::*;
use crate::apart::apart_for;

/// CUDA_ERROR_LAUNCH_FAILED, here as an ordinary failure; and CUDA_ERROR_OUT_OF_MEMORY.
const FAILED: u32 = 719;
const NO_MEMORY: u32 = 2;
/// [s] that a test may take on a machine that does much else.
const LONGEST: u64 = 900;

/// Every call of the driver in `step` fails once: what it leaves is as it was, or as it should be.
fn step_fails(settings: &[(&str, &str)], step: impl Fn(&DeviceState, PoolId, u64) -> Result<()>) {
    let mut all = vec![("keep_log", "1")];
    all.extend_from_slice(settings);
    let mut seen = 0;
    for code in [FAILED, NO_MEMORY] {
        // The second code ends in the same places: some of them.
        for call in (0..).step_by(if code == FAILED { 1 } else { 7 }) {
            let (fake, d) = one(&all);
            let m = d.memory();
            let s = d.streams().create().unwrap();
            let (p, content) = full_pool(&fake, &d, s, true);
            // One that sleeps, for steps that wake.
            let (q, asleep) = {
                let q = m.pools().create(0).unwrap();
                let mut c = Others { sparse: true, ..Others::default() };
                c.put(&fake, m.alloc(q, s, 5 * MIB).unwrap(), 5 * MIB);
                (q, c)
            };
            d.pools().sleep(&[q], true).unwrap();
            fake.calls_reset();
            fake.fail("*", call + 1, code, false);
            let done = step(&d, p, s);
            let made = fake.all_calls();
            fake.fail_clear();
            if made <= call {
                done.unwrap();
                fake.end_quietly();
                assert!(call > 3, "too few calls to call this a test");
                break;
            }
            seen += u32::from(done.is_err());
            if m.pools().sleeps(p) {
                d.pools().wake(&[p]).unwrap_or_else(|e| panic!("call {call} ({code}): {done:?}, then {e}"));
            }
            content.check(&fake);
            d.pools().wake(&[q]).unwrap_or_else(|e| panic!("call {call} ({code}): {done:?}, then {e}"));
            asleep.check(&fake);
            // And the step can be done now.
            step(&d, p, s).unwrap_or_else(|e| panic!("call {call} ({code}): {done:?}, again: {e}"));
            if m.pools().sleeps(p) {
                d.pools().wake(&[p]).unwrap();
            }
            content.check(&fake);
            content.free(&d);
            asleep.free(&d);
            m.empty_cache(None).unwrap();
            assert_eq!((m.stats().reserved.current, fake.used(0)), (0, 0), "call {call} ({code}): {done:?}");
            fake.end();
        }
    }
    assert!(seen > 3, "only {seen} failures came out");
}

#[test]
fn every_call_of_a_sleep_may_fail() {
    apart_for(LONGEST, || step_fails(&[], |d, p, _| d.pools().sleep(&[p], true)));
}

#[test]
fn every_call_of_a_wake_may_fail() {
    apart_for(LONGEST, || {
        step_fails(&[], |d, p, _| {
            if !d.memory().pools().sleeps(p) {
                d.pools().sleep(&[p], true)?;
            }
            d.pools().wake(&[p])
        });
    });
}

/// Two pools sleep together and wake; the contents of one are so large that they are in pinned memory.
#[test]
fn every_call_of_two_pools_that_sleep_in_pinned_memory_may_fail() {
    apart_for(LONGEST, || {
        let mut seen = 0;
        for code in [FAILED, NO_MEMORY] {
            // As above.
            for call in (0..).step_by(if code == FAILED { 1 } else { 7 }) {
                let fake = Fake::new(&[("capacity", "64M"), ("keep_log", "1")], |_| {});
                let d = millpond::runtime::device("cuda", 0).unwrap();
                let m = d.memory();
                let mut content = Others { sparse: true, ..Others::default() };
                let pools = [33 * MIB, 3 * MIB].map(|bytes| {
                    let p = m.pools().create(0).unwrap();
                    content.put(&fake, m.alloc(p, 0, bytes).unwrap(), bytes);
                    p
                });
                let both = || d.pools().sleep(&pools, true).and_then(|()| d.pools().wake(&pools));
                let registered = fake.calls("cuMemHostRegister_v2");
                fake.calls_reset();
                fake.fail("*", call + 1, code, false);
                let done = both();
                let made = fake.all_calls();
                fake.fail_clear();
                let wake = |why: &str| {
                    for &p in pools.iter().filter(|&&p| m.pools().sleeps(p)) {
                        d.pools().wake(&[p]).unwrap_or_else(|e| panic!("call {call} ({code}), {why}: {e}"));
                    }
                };
                wake("after the failure");
                content.check(&fake);
                both().unwrap_or_else(|e| panic!("call {call} ({code}): {done:?}, again: {e}"));
                content.check(&fake);
                assert!(fake.calls("cuMemHostRegister_v2") > registered, "it is not about pinned memory");
                content.free(&d);
                pools.iter().for_each(|&p| m.pools().destroy(p).unwrap());
                m.empty_cache(None).unwrap();
                assert_eq!(fake.used(0), 0, "call {call} ({code}): {done:?}");
                fake.end();
                if made <= call {
                    done.unwrap();
                    break;
                }
                seen += u32::from(done.is_err());
            }
        }
        assert!(seen > 20, "only {seen} failures came out");
    });
}

#[test]
fn every_call_of_a_capture_may_fail() {
    apart_for(LONGEST, || {
        step_fails(&[], |d, _, s| {
            let m = d.memory();
            let p = m.pools().create(0)?;
            let t = d.streams().create()?;
            let c = m.captures().begin(p, s)?;
            let work = || {
                m.captures().add(c, t)?;
                let a = m.alloc(POOL, s, 3 * MIB)?;
                let b = m.alloc(POOL, t, 70_000);
                let x = m.alloc_unordered(POOL, 5000);
                let freed = x.and_then(|x| m.free(x, None, None)).and(m.free(a, Some(t), None));
                b.and_then(|b| m.free(b, Some(t), None)).and(freed)
            };
            let done = work();
            m.captures().end(c)?;
            m.captures().release(c)?;
            let ended = d.streams().destroy(t);
            done.and(ended).and(m.pools().destroy(p))
        });
    });
}

#[test]
fn every_call_of_a_restore_may_fail() {
    apart_for(LONGEST, || {
        step_fails(&[], |d, p, s| {
            let m = d.memory();
            let t = d.streams().create()?;
            let saved = m.checkpoints().make(p)?;
            let a = m.alloc(p, s, 70_000)?;
            let done = m.record_stream(a, t).and_then(|()| d.pools().restore(p, saved)).map(drop);
            if done.is_err() {
                m.free(a, Some(s), None)?;
            }
            m.checkpoints().destroy(saved)?;
            done.and(d.streams().destroy(t))
        });
    });
}
