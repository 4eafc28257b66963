//! A block has the tag that was in force on its thread when it was allocated, until it is reusable; and the sums of the
//! tags agree with the account.

use crate::apart::*;
use crate::api::*;
use crate::random::Random;
use millpond::capi::*;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const RECORD: usize = size_of::<millpond_block_record>();
const STATS: usize = size_of::<millpond_tag_stats>();

fn push(name: &str) {
    let name = CString::new(name).unwrap();
    outcome(unsafe { millpond_tag_push(name.as_ptr()) }).unwrap();
}

fn pop() {
    outcome(millpond_tag_pop()).unwrap();
}

pub fn tagged<T>(name: &str, body: impl FnOnce() -> T) -> T {
    push(name);
    let done = body();
    pop();
    done
}

fn name_of(tag: u32) -> String {
    unsafe { CStr::from_ptr(millpond_tag_get_name(tag)) }.to_str().unwrap().to_owned()
}

pub fn stats(d: Device) -> BTreeMap<String, millpond_tag_stats> {
    let mut all: Vec<millpond_tag_stats> = Vec::with_capacity(64);
    let mut count = 0;
    outcome(unsafe { millpond_device_list_tags(ptr(d.0), all.as_mut_ptr(), STATS, 64, &mut count) }).unwrap();
    unsafe { all.set_len(count) };
    all.into_iter().map(|s| (name_of(s.tag), s)).collect()
}

fn blocks(d: Device, states: u32) -> Vec<millpond_block_record> {
    let mut all: Vec<millpond_block_record> = Vec::with_capacity(4096);
    let (to, mut count) = (all.as_mut_ptr(), 0);
    outcome(unsafe { millpond_device_list_blocks(ptr(d.0), null(), states, to, RECORD, 4096, &mut count) })
        .unwrap();
    assert!(count <= 4096);
    unsafe { all.set_len(count) };
    all
}

/// Live bytes and blocks, and waiting bytes, of a tag.
fn sums(d: Device, name: &str) -> (u64, u64, u64) {
    let s = stats(d).get(name).copied();
    s.map_or((0, 0, 0), |s| (s.allocated_bytes.current, s.blocks.current, s.waiting_bytes))
}

/// The walk, the sums by tag and the account agree.
#[track_caller]
fn agrees(d: Device) {
    let account = d.stats();
    let mut by: BTreeMap<String, (u64, u64, u64, u64)> = BTreeMap::new();
    for b in blocks(d, MILLPOND_BLOCK_LIVE | MILLPOND_BLOCK_WAITING) {
        let s = by.entry(name_of(b.tag)).or_default();
        if b.state == MILLPOND_BLOCK_LIVE {
            (s.0, s.1, s.2) = (s.0 + b.size_bytes as u64, s.1 + 1, s.2 + b.requested_bytes as u64);
        } else {
            s.3 += b.size_bytes as u64;
        }
    }
    let live: u64 = by.values().map(|s| s.0).sum();
    assert_eq!(live, account.allocated_bytes.current);
    by.remove("");
    let told = stats(d).into_iter().map(|(name, s)| {
        assert_eq!(s.active_bytes.current, s.allocated_bytes.current + s.waiting_bytes, "{name}");
        assert!(s.active_bytes.peak >= s.allocated_bytes.peak && s.active_blocks.peak >= s.blocks.peak);
        assert!(
            s.small_allocated_bytes.current <= s.allocated_bytes.current
                && s.small_blocks.current <= s.blocks.current
        );
        let now = (s.allocated_bytes.current, s.blocks.current, s.requested_bytes.current, s.waiting_bytes);
        assert!(s.allocated_bytes.peak >= now.0 && s.allocated_bytes.total >= s.allocated_bytes.peak);
        (name, now)
    });
    let told: BTreeMap<_, _> = told.filter(|t| t.1 != (0, 0, 0, 0)).collect();
    assert_eq!(told, by);
}

const NAMES: [&str; 3] = ["weights", "kv_cache", "activations"];

/// Random programs on several threads, which free one another's blocks. Each knows what tag its blocks have.
fn program(d: Device, threads: usize, rounds: usize) {
    let pool = d.pool(0);
    let streams: Vec<Stream> = (0..threads).map(|_| d.stream()).collect();
    let shared = std::sync::Mutex::new(Vec::<(usize, Option<&'static str>, Stream)>::new());
    std::thread::scope(|scope| {
        for t in 0..threads {
            let (streams, shared) = (&streams, &shared);
            scope.spawn(move || {
                let mut random = Random(0x9E37_79B9 + t as u64 * 77);
                let s = streams[t];
                let mut stack: Vec<&'static str> = Vec::new();
                for _ in 0..rounds {
                    match random.below(10) {
                        0 if stack.len() < 4 => {
                            stack.push(NAMES[random.below(3)]);
                            push(stack.last().unwrap());
                        }
                        1 if !stack.is_empty() => {
                            stack.pop();
                            pop();
                        }
                        2..=5 => {
                            let bytes = [600, 5000, 70_000, 3 * MIB, 5 * MIB + 123][random.below(5)];
                            let unordered = random.below(4) == 0;
                            let p = if unordered { d.alloc(bytes) } else { pool.alloc(bytes, s) };
                            let Ok(p) = p else { continue };
                            if random.below(5) == 0 {
                                record_stream(p, streams[random.below(streams.len())]).unwrap();
                            }
                            shared.lock().unwrap().push((p, stack.last().copied(), s));
                        }
                        _ => {
                            let mut all = shared.lock().unwrap();
                            if all.is_empty() {
                                continue;
                            }
                            let at = random.below(all.len());
                            let (p, _, own) = all.swap_remove(at);
                            drop(all);
                            match random.below(3) {
                                0 => free(p).unwrap(),
                                1 => pool.free(p, own).unwrap(),
                                _ => pool.free(p, s).unwrap(),
                            }
                        }
                    }
                }
                stack.iter().for_each(|_| pop());
            });
        }
    });
    let left = shared.into_inner().unwrap();
    let mut want: BTreeMap<usize, &str> = left.iter().map(|&(p, tag, _)| (p, tag.unwrap_or(""))).collect();
    for b in blocks(d, MILLPOND_BLOCK_LIVE) {
        assert_eq!(want.remove(&b.ptr.addr()), Some(name_of(b.tag).as_str()), "{b:?}");
    }
    assert!(want.is_empty());
    d.synchronize().unwrap();
    agrees(d);
    left.into_iter().for_each(|(p, ..)| free(p).unwrap());
    d.synchronize().unwrap();
    agrees(d);
    assert!(stats(d).values().all(|s| s.blocks.current == 0 && s.waiting_bytes == 0));
    assert!(stats(d).values().any(|s| s.blocks.total > 10));
}

#[test]
fn random_programs_with_tags() {
    apart(|| {
        for mapping in [true, false] {
            program(host(64 * MIB, mapping), 1, 3000);
            program(host(64 * MIB, mapping), 4, 3000);
        }
    });
}

#[test]
fn random_programs_with_tags_where_memory_is_not_pooled() {
    apart(|| {
        program(unpooled_host(), 1, 500);
        program(Device::get("host", 1).unwrap(), 4, 500);
    });
}

#[test]
fn a_block_keeps_its_tag_while_it_waits() {
    apart(|| {
        for mapping in [true, false] {
            let d = host(64 * MIB, mapping);
            let (pool, s, t) = (d.pool(0), d.stream(), d.stream());
            let p = tagged("kv_cache", || pool.alloc(3 * MIB, s).unwrap());
            assert_eq!(sums(d, "kv_cache"), (3 << 20, 1, 0));
            record_stream(p, t).unwrap();
            let gate = d.gate(t);
            pool.free(p, s).unwrap();
            assert_eq!(sums(d, "kv_cache"), (0, 0, 3 << 20));
            let waits = blocks(d, MILLPOND_BLOCK_WAITING);
            assert_eq!((waits.len(), name_of(waits[0].tag)), (1, "kv_cache".into()));
            gate.open();
            d.synchronize().unwrap();
            assert_eq!(sums(d, "kv_cache"), (0, 0, 0));
            // The next owner of the memory has said nothing.
            let q = pool.alloc(3 * MIB, s).unwrap();
            assert_eq!(blocks(d, MILLPOND_BLOCK_LIVE)[0].tag, 0);
            pool.free(q, s).unwrap();
            agrees(d);
        }
    });
}

#[test]
fn sleep_and_restore_keep_tags() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (pool, s) = (d.pool(0), d.stream());
        let a = tagged("weights", || pool.alloc(3 * MIB, s).unwrap());
        let b = pool.alloc(5000, s).unwrap();
        pool.sleep(true).unwrap();
        assert_eq!(sums(d, "weights"), (3 << 20, 1, 0));
        pool.wake().unwrap();
        agrees(d);
        let then = pool.checkpoint();
        pool.free(a, s).unwrap();
        let c = tagged("kv_cache", || pool.alloc(3 * MIB, s).unwrap());
        assert_eq!(sums(d, "weights").1, 0);
        // What takes its place has another size, so the restore frees it and brings the first back.
        pool.free(c, s).unwrap();
        let e = tagged("activations", || pool.alloc(MIB, s).unwrap());
        pool.restore(then).unwrap();
        assert_eq!((sums(d, "weights"), sums(d, "activations")), ((3 << 20, 1, 0), (0, 0, 0)));
        let _ = e;
        agrees(d);
        pool.free(a, s).unwrap();
        pool.free(b, s).unwrap();
        agrees(d);
    });
}

/// The place and the size are the same, so the restore leaves the block alone; but what it is for is what it was for then.
#[test]
fn a_restore_brings_back_the_tag_of_a_block_whose_place_was_taken() {
    apart(|| {
        for (bytes, mapping) in [(1000, true), (3 * MIB, true), (1000, false), (3 * MIB, false)] {
            let d = host(64 * MIB, mapping);
            let (pool, s) = (d.pool(0), d.stream());
            for (then, later) in [("weights", "activations"), ("weights", ""), ("", "activations")] {
                let alloc = |tag| match tag {
                    "" => pool.alloc(bytes, s).unwrap(),
                    tag => tagged(tag, || pool.alloc(bytes, s).unwrap()),
                };
                let first = alloc(then);
                let checkpoint = pool.checkpoint();
                pool.free(first, s).unwrap();
                assert_eq!(alloc(later), first);
                pool.restore(checkpoint).unwrap();
                assert_eq!(name_of(blocks(d, MILLPOND_BLOCK_LIVE)[0].tag), then);
                agrees(d);
                pool.free(first, s).unwrap();
                agrees(d);
            }
        }
    });
}

#[test]
fn the_report_of_a_request_names_tags() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (pool, s) = (d.pool(0), d.stream());
        let p = tagged("kv_cache", || pool.alloc(48 * MIB, s).unwrap());
        let line = pool.alloc(32 * MIB, s).unwrap_err().message;
        assert!(line.contains("biggest holder: tag 'kv_cache', 48.0 MiB"), "{line}");
        pool.free(p, s).unwrap();
    });
}

#[test]
fn tags_of_threads_are_their_own_and_end_with_them() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (pool, s) = (d.pool(0), d.stream());
        let tag_now = || {
            let p = pool.alloc(1000, s).unwrap();
            let tag = blocks(d, MILLPOND_BLOCK_LIVE)[0].tag;
            pool.free(p, s).unwrap();
            name_of(tag)
        };
        assert_eq!(code(outcome(millpond_tag_pop())), MILLPOND_E_NOT_PERMITTED);
        push("weights");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(tag_now(), "");
                push("kv_cache"); // and left in force
                assert_eq!(tag_now(), "kv_cache");
            });
        });
        assert_eq!(tag_now(), "weights");
        push("kv_cache");
        assert_eq!(tag_now(), "kv_cache");
        pop();
        assert_eq!(tag_now(), "weights");
        pop();
        assert_eq!(tag_now(), "");
        // By number.
        let mut n = 0;
        outcome(unsafe { millpond_tag_get_number(c"weights".as_ptr(), &mut n) }).unwrap();
        outcome(millpond_tag_push_number(n)).unwrap();
        assert_eq!(tag_now(), "weights");
        pop();
        for bad in [0, 999, u32::MAX] {
            assert_eq!(code(outcome(millpond_tag_push_number(bad))), MILLPOND_E_INVALID_ARGUMENT);
            assert_eq!(name_of(bad), "");
        }
        let long = CString::new("x".repeat(32)).unwrap();
        for bad in [null(), c"".as_ptr(), long.as_ptr()] {
            assert_eq!(code(outcome(unsafe { millpond_tag_push(bad) })), MILLPOND_E_INVALID_ARGUMENT);
        }
        let list = |size, room, out: *mut usize| unsafe {
            outcome(millpond_device_list_tags(ptr(d.0), null_mut(), size, room, out))
        };
        let mut count = 0;
        list(STATS, 0, &mut count).unwrap();
        assert_eq!(count, 2);
        assert_eq!(code(list(STATS, 1, &mut count)), MILLPOND_E_INVALID_ARGUMENT);
        assert_eq!(code(list(3, 0, &mut count)), MILLPOND_E_INVALID_ARGUMENT);
        assert_eq!(code(list(STATS, 0, null_mut())), MILLPOND_E_INVALID_ARGUMENT);
    });
}

/// Another thread may hold the lock of the names at the fork.
#[test]
fn a_forked_child_waits_for_no_lock() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (pool, s) = (d.pool(0), d.stream());
        let p = tagged("parent", || pool.alloc(1000, s).unwrap());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut n = 0;
                    while !stop.load(Relaxed) {
                        outcome(unsafe { millpond_tag_get_number(c"parent".as_ptr(), &mut n) }).unwrap();
                    }
                });
            }
            push("scope");
            for round in 0..40 {
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    unsafe { libc::alarm(5) };
                    let name = unsafe { CStr::from_ptr(millpond_tag_get_name(1)) };
                    let done = [
                        outcome(unsafe { millpond_tag_push(c"child".as_ptr()) }),
                        outcome(millpond_tag_push_number(1)),
                        outcome(millpond_tag_pop()),
                        pool.alloc(1000, s).map(drop),
                        pool.free(p, s),
                    ];
                    let refused = done.into_iter().all(|r| code(r) == MILLPOND_E_NOT_PERMITTED);
                    unsafe { libc::_exit(i32::from(!refused || !name.is_empty())) };
                }
                let mut status = -1;
                assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                if status != 0 {
                    stop.store(true, Relaxed);
                }
                assert_eq!(status, 0, "in round {round}");
            }
            pop();
            stop.store(true, Relaxed);
        });
        pool.free(p, s).unwrap();
    });
}

#[test]
fn the_classes_and_the_active_blocks_of_a_tag_are_told() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (pool, s, side) = (d.default_pool(), d.stream(), d.stream());
        let (small, large) = tagged("mixed", || (pool.alloc(1000, s).unwrap(), pool.alloc(MIB, s).unwrap()));
        let told = |d| stats(d)["mixed"];
        let t = told(d);
        assert_eq!((t.blocks.current, t.small_blocks.current), (2, 1));
        assert_eq!((t.allocated_bytes.current, t.small_allocated_bytes.current), (MIB as u64 + 1024, 1024));
        // One that waits is active, and of no class any more.
        record_stream(small, side).unwrap();
        let gate = d.gate(side);
        pool.free(small, s).unwrap();
        let t = told(d);
        assert_eq!((t.active_blocks.current, t.blocks.current, t.small_blocks.current), (2, 1, 0));
        assert_eq!((t.active_bytes.current, t.waiting_bytes), (MIB as u64 + 1024, 1024));
        gate.open();
        d.synchronize().unwrap();
        pool.free(large, s).unwrap();
        let t = told(d);
        assert_eq!((t.active_bytes.current, t.active_blocks.current, t.waiting_bytes), (0, 0, 0));
        assert_eq!((t.active_blocks.peak, t.active_blocks.total), (2, 2));
    });
}

#[test]
fn pinned_and_unified_memory_of_a_tag_is_told_apart() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (mut pinned, mut unified) = (null_mut(), null_mut());
        tagged("staging", || {
            outcome(unsafe { millpond_host_alloc(ptr(d.0), 1000, &mut pinned) }).unwrap();
            outcome(unsafe { millpond_unified_alloc(ptr(d.0), 5000, &mut unified) }).unwrap();
        });
        let t = stats(d)["staging"];
        assert_eq!((t.host_bytes.current, t.host_blocks.current), (1000, 1));
        assert_eq!((t.unified_bytes.current, t.unified_blocks.current), (5000, 1));
        assert_eq!((t.allocated_bytes.total, t.blocks.total), (0, 0), "none of it is the device's memory");
        agrees(d);
        // Whoever frees it, and under whatever tag.
        tagged("other", || outcome(unsafe { millpond_host_free(ptr(d.0), pinned) }).unwrap());
        outcome(unsafe { millpond_unified_free(ptr(d.0), unified) }).unwrap();
        let t = stats(d)["staging"];
        assert_eq!((t.host_bytes.current, t.host_bytes.peak, t.host_blocks.total), (0, 1000, 1));
        assert_eq!((t.unified_bytes.current, t.unified_bytes.peak, t.unified_blocks.total), (0, 5000, 1));
        assert!(!stats(d).contains_key("other"));
    });
}
