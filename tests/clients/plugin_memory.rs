//! Plugins that give bad memory: overlapping, given twice, not aligned to their own min chunk, or past the end of all
//! addresses. The library refuses it with a status, loses nothing that it has, and gives good memory back.

use crate::apart::{apart_for, step};
use crate::client::*;
use crate::cuda::MIB;
use crate::slow::{self, Answer, Manner};
use millpond::capi::*;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// Registers a plugin whose second answer to `callback` on device 0 is the address `bad`, for so many bytes; all others
/// are good.
fn bad_answer(manner: Manner, callback: &'static str, bad: impl Fn(usize) -> u64 + Send + Sync + 'static) {
    slow::register(manner, |t| {
        t.host_memory_allocate = Some(slow::host_memory_allocate);
        t.host_memory_deallocate = Some(slow::host_memory_deallocate);
        t.unified_memory_allocate = Some(slow::unified_memory_allocate);
        t.unified_memory_deallocate = Some(slow::unified_memory_deallocate);
    })
    .unwrap();
    ASKED.store(0, SeqCst);
    let answer: Answer = Arc::new(move |name, device, size| {
        let second = name == callback && device == 0 && ASKED.fetch_add(1, SeqCst) == 1;
        second.then(|| (C_Status::SUCCESS, bad(size)))
    });
    slow::set_answer(Some(answer));
}

/// Requests to the plugin since then.
static ASKED: AtomicU32 = AtomicU32::new(0);

/// What a request may say whose memory the plugin has not given as it should.
const BAD: &[u32] =
    &[MILLPOND_E_DEVICE, MILLPOND_E_OUT_OF_MEMORY, MILLPOND_E_PLUGIN_REFUSED, MILLPOND_E_OUT_OF_RANGE];

/// The address of the first block, for answers that depend on it.
static FIRST: Mutex<u64> = Mutex::new(0);

fn first() -> u64 {
    *FIRST.lock().unwrap()
}

const ONE: u64 = 8 * MIB;

/// The first block is there; the memory for the second is `bad`. It is refused, or the plugin is asked again and gives
/// better; the first block is as it was, and a third request is served.
fn memory_that_is_refused(manner: Manner, bad: impl Fn(usize) -> u64 + Send + Sync + 'static) {
    bad_answer(manner, "device_memory_allocate", bad);
    let d = device(slow::NAME, 0);
    let p = d.pool().alloc(ONE, 0).unwrap();
    *FIRST.lock().unwrap() = p;
    d.memset(p, 0x51, ONE).unwrap();
    step("the second request");
    let second = d.pool().alloc(ONE, 0);
    assert!(ASKED.load(SeqCst) > 1, "the plugin was not asked, so the test shows nothing");
    let mut live = vec![p];
    match second {
        Ok(q) => {
            assert!(q.checked_add(ONE).is_some(), "the block at {q:#x} passes the end of all addresses");
            assert!(!overlap(p, ONE, q, ONE), "two live blocks overlap: {p:#x} and {q:#x}");
            live.push(q);
        }
        no => {
            refused(no, BAD);
            assert_eq!(slow::held(), 1, "the plugin's good memory was given back with the bad");
        }
    }
    step("what is there goes on");
    live.push(d.pool().alloc(ONE, 0).unwrap());
    for &q in &live[1..] {
        d.memset(q, 0x53, ONE).unwrap();
    }
    for at in [p, p + ONE - 4] {
        assert_eq!(d.read(at, 4).unwrap(), [0x51; 4], "another block's contents");
    }
    assert_eq!(d.stats().unwrap().blocks.current, live.len() as u64);
    for q in live {
        d.pool().free(q, 0).unwrap();
    }
    unregister(slow::NAME).unwrap();
    assert_eq!(slow::held(), 0, "memory of the plugin was lost");
}

/// Small segments, so that each of these blocks asks the plugin.
fn pooled() -> Manner {
    Manner::default()
}

/// Each block is the plugin's own: its min chunk cannot be pooled.
fn unpooled() -> Manner {
    Manner { min_chunk: 4 << 20, ..Manner::default() }
}

/// The plugin gives the same memory twice.
#[test]
fn memory_that_is_given_twice_is_refused() {
    apart_for(60, || memory_that_is_refused(pooled(), |_| first()));
}

#[test]
fn memory_that_is_given_twice_is_refused_without_pooling() {
    apart_for(60, || memory_that_is_refused(unpooled(), |_| first()));
}

/// The plugin gives memory that begins inside other memory of it.
#[test]
fn memory_that_overlaps_from_above_is_refused() {
    apart_for(60, || memory_that_is_refused(pooled(), |_| first() + MIB));
}

/// The plugin gives memory that runs into other memory of it.
#[test]
fn memory_that_overlaps_from_below_is_refused() {
    apart_for(60, || memory_that_is_refused(pooled(), |_| first() - MIB));
}

#[test]
fn memory_that_overlaps_is_refused_without_pooling() {
    apart_for(60, || {
        memory_that_is_refused(unpooled(), |_| first() - MIB);
        memory_that_is_refused(unpooled(), |_| first() + 4 * MIB);
    });
}

/// The plugin gives memory that passes the end of all addresses.
#[test]
fn memory_that_wraps_around_is_refused() {
    apart_for(60, || memory_that_is_refused(pooled(), |size| (size as u64 / 2).wrapping_neg() / 512 * 512));
}

#[test]
fn memory_that_wraps_around_is_refused_without_pooling() {
    apart_for(60, || memory_that_is_refused(unpooled(), |_| (4 * MIB).wrapping_neg()));
}

/// The plugin gives nothing and calls it a success, as PaddlePaddle has it: out of memory.
#[test]
fn nothing_is_out_of_memory() {
    apart_for(60, || {
        memory_that_is_refused(pooled(), |_| 0);
        memory_that_is_refused(unpooled(), |_| 0);
    });
}

/// The plugin gives memory that is not aligned to its own min chunk. It is refused, and the plugin has it again; or it
/// is used so that the blocks are aligned all the same.
fn misaligned(manner: Manner) {
    slow::register(manner, |_| ()).unwrap();
    let d = device(slow::NAME, 0);
    let min = d.info().min_chunk_bytes;
    let asked = AtomicU32::new(0);
    slow::set_answer(Some(Arc::new(move |name, device, size| {
        let n = u64::from(asked.fetch_add(1, SeqCst));
        let at = 0x6000_0000_0000 + (n << 30) + 8;
        (name == "device_memory_allocate").then(|| {
            slow::give_at(device, at, size);
            (C_Status::SUCCESS, at)
        })
    })));
    for _ in 0..3 {
        match d.pool().alloc(ONE, 0) {
            Ok(p) => {
                assert!(p.is_multiple_of(min), "{p:#x} is not aligned to {min} bytes");
                d.memset(p, 1, ONE).unwrap();
                d.pool().free(p, 0).unwrap();
            }
            no => {
                refused(no, BAD);
                assert_eq!(slow::held(), 0, "memory of the plugin was lost");
            }
        }
    }
    slow::set_answer(None);
    let p = d.pool().alloc(ONE, 0).unwrap();
    d.memset(p, 1, ONE).unwrap();
    d.pool().free(p, 0).unwrap();
    unregister(slow::NAME).unwrap();
    assert_eq!((slow::held(), slow::faults()), (0, vec![]));
}

#[test]
fn memory_that_is_not_aligned_is_refused() {
    apart_for(60, || misaligned(pooled()));
}

#[test]
fn memory_that_is_not_aligned_is_refused_without_pooling() {
    apart_for(60, || misaligned(unpooled()));
}

/// Pinned and unified memory that the plugin gives twice.
#[test]
fn pinned_memory_that_is_given_twice_is_refused() {
    apart_for(60, || {
        bad_answer(pooled(), "host_memory_allocate", |_| first());
        let d = device(slow::NAME, 0);
        let h = d.host_alloc(MIB).unwrap();
        *FIRST.lock().unwrap() = h;
        refused(d.host_alloc(MIB), BAD);
        let third = d.host_alloc(MIB).unwrap();
        assert!(!overlap(h, MIB, third, MIB));
        d.host_free(h).unwrap();
        d.host_free(third).unwrap();
        assert_eq!(d.host_stats().blocks.current, 0);
    });
}

#[test]
fn unified_memory_that_is_given_twice_is_refused() {
    apart_for(60, || {
        bad_answer(pooled(), "unified_memory_allocate", |_| first());
        let d = device(slow::NAME, 0);
        let u = d.unified_alloc(MIB).unwrap();
        *FIRST.lock().unwrap() = u;
        refused(d.unified_alloc(MIB), BAD);
        let third = d.unified_alloc(MIB).unwrap();
        d.unified_free(u).unwrap();
        d.unified_free(third).unwrap();
    });
}

/// Pinned and unified memory are host memory, and so are those of the plugin's other device: none of them overlap.
#[test]
fn pinned_and_unified_memory_of_both_devices_do_not_overlap() {
    apart_for(60, || {
        bad_answer(pooled(), "unified_memory_allocate", |_| first() + 4096);
        let (d, other) = (device(slow::NAME, 0), device(slow::NAME, 1));
        let _good = d.unified_alloc(MIB).unwrap();
        let h = other.host_alloc(MIB).unwrap();
        *FIRST.lock().unwrap() = h;
        refused(d.unified_alloc(MIB), BAD);
        other.host_free(h).unwrap();
    });
}

/// A min chunk that is no power of two, and addresses that are multiples of it: blocks are aligned to the power above.
#[test]
fn memory_that_is_aligned_to_an_odd_min_chunk_is_aligned_up() {
    apart_for(60, || misaligned(Manner { min_chunk: 1536, ..pooled() }));
}

/// Memory that was refused is named with its plugin, its device and what it overlaps.
#[test]
fn the_error_says_what_is_wrong() {
    apart_for(60, || {
        bad_answer(unpooled(), "device_memory_allocate", |_| first() + MIB);
        let d = device(slow::NAME, 0);
        let p = d.pool().alloc(ONE, 0).unwrap();
        *FIRST.lock().unwrap() = p;
        let e = d.pool().alloc(ONE, 0).unwrap_err();
        for part in ["slow", "device 0", "device_memory_allocate", &format!("{p:#x}")] {
            assert!(e.message.contains(part), "{part:?} in {e:?}");
        }
    });
}
