//! Callbacks that throw a C++ exception or panic. Where a call hands something to its callback piece by piece, its caller
//! learns that it has not got all; where the call's work is done, or the callback is nobody's argument, the exception
//! is dropped. Needs a C++ compiler.

use crate::apart::*;
use crate::api::*;
use crate::compilers::{self, Scratch};
use libloading::Library;
use millpond::capi::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

const SOURCE: &str = r#"
#include <cstddef>
#include <stdexcept>
extern "C" bool takes_two(void *calls, const void *) {
  if (++*static_cast<std::size_t *>(calls) == 3) throw std::runtime_error("thrown on purpose");
  return true;
}
extern "C" bool takes_no_bytes(void *calls, const void *, std::size_t) {
  ++*static_cast<std::size_t *>(calls);
  throw 7;
}
extern "C" void takes_no_block(void *calls, void *, std::size_t, bool) {
  ++*static_cast<std::size_t *>(calls);
  throw 7;
}
extern "C" bool frees_nothing(void *calls, unsigned long) {
  ++*static_cast<std::size_t *>(calls);
  throw 7;
}
"#;

type Walk = unsafe extern "C-unwind" fn(*mut c_void, *const millpond_block_record) -> bool;
type Read = unsafe extern "C-unwind" fn(*mut c_void, *const millpond_history_event) -> bool;
type Write = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, usize) -> bool;
type Restore = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, usize, bool);
type Oom = unsafe extern "C-unwind" fn(*mut c_void, u64) -> bool;

/// The callbacks of one language, and what an error calls them.
struct Callbacks {
    walk: Walk,
    read: Read,
    write: Write,
    restore: Restore,
    oom: Oom,
    said: [&'static str; 2],
}

/// Counts a call.
fn count(calls: *mut c_void) -> usize {
    let calls = unsafe { &mut *calls.cast::<usize>() };
    *calls += 1;
    *calls
}

unsafe extern "C-unwind" fn two_blocks(calls: *mut c_void, _: *const millpond_block_record) -> bool {
    assert_ne!(count(calls), 3, "on purpose");
    true
}

unsafe extern "C-unwind" fn two_events(calls: *mut c_void, _: *const millpond_history_event) -> bool {
    assert_ne!(count(calls), 3, "on purpose");
    true
}

unsafe extern "C-unwind" fn no_bytes(calls: *mut c_void, _: *const c_void, _: usize) -> bool {
    panic!("on purpose, in call {}", count(calls));
}

unsafe extern "C-unwind" fn no_block(calls: *mut c_void, _: *mut c_void, _: usize, _: bool) {
    panic!("on purpose, in call {}", count(calls));
}

unsafe extern "C-unwind" fn nothing(calls: *mut c_void, _: u64) -> bool {
    panic!("on purpose, in call {}", count(calls));
}

const RUST: Callbacks = Callbacks {
    walk: two_blocks,
    read: two_events,
    write: no_bytes,
    restore: no_block,
    oom: nothing,
    said: ["the callback panicked"; 2],
};

fn cpp(library: &Library) -> Callbacks {
    unsafe {
        Callbacks {
            walk: *library.get(b"takes_two").unwrap(),
            read: *library.get(b"takes_two").unwrap(),
            write: *library.get(b"takes_no_bytes").unwrap(),
            restore: *library.get(b"takes_no_block").unwrap(),
            oom: *library.get(b"frees_nothing").unwrap(),
            said: [
                "the callback threw a C++ exception (St13runtime_error)",
                "the callback threw a C++ exception (i)",
            ],
        }
    }
}

/// Both languages.
fn for_each(body: impl Fn(&Callbacks)) {
    let scratch = Scratch::new("thrown");
    let object = scratch.path("thrown.so");
    let source = scratch.write("thrown.cc", SOURCE);
    compilers::compile_ok("-std=c++17", &source, &["-shared", "-fPIC", "-o", object.to_str().unwrap()]);
    let library = unsafe { Library::new(&object) }.unwrap();
    for callbacks in [RUST, cpp(&library)] {
        body(&callbacks);
    }
}

#[track_caller]
fn incomplete(done: Outcome<()>, said: &str) {
    let e = done.expect_err("the caller believes that it has seen everything");
    assert!(e.code == MILLPOND_E_SYSTEM && e.message.contains(said), "{}", e.message);
}

#[test]
fn what_is_handed_over_in_part_is_an_error() {
    apart(|| {
        for_each(|c| {
            let d = host(64 * MIB, true);
            outcome(unsafe { millpond_device_history_start(ptr(d.0), null()) }).unwrap();
            let blocks: Vec<usize> = (0..5).map(|_| d.alloc(1000).unwrap()).collect();
            let mut calls = 0_usize;
            let data: *mut c_void = (&raw mut calls).cast();

            let walk = |callback| {
                outcome(unsafe {
                    millpond_device_walk_blocks(ptr(d.0), null(), MILLPOND_BLOCK_LIVE, callback, data)
                })
            };
            incomplete(walk(Some(c.walk)), c.said[0]);
            assert_eq!(unsafe { data.cast::<usize>().replace(10) }, 3, "it ends the walk");
            walk(Some(c.walk)).unwrap();
            assert_eq!(unsafe { data.cast::<usize>().replace(0) }, 15, "another walk is whole");

            let mut dropped = 77;
            let read = |callback, dropped| {
                outcome(unsafe { millpond_device_history_read(ptr(d.0), callback, data, dropped) })
            };
            incomplete(read(Some(c.read), &raw mut dropped), c.said[0]);
            assert_eq!(unsafe { data.cast::<usize>().replace(10) }, 3, "it ends the reading");
            assert_eq!(dropped, 77, "outputs are written only on success");
            read(Some(c.read), &raw mut dropped).unwrap();
            assert_eq!(dropped, 0);
            assert!(unsafe { data.cast::<usize>().replace(0) } >= 15);

            let format = MILLPOND_SNAPSHOT_JSON;
            let sent = unsafe { millpond_device_send_snapshot(ptr(d.0), format, Some(c.write), data) };
            incomplete(outcome(sent), c.said[1]);
            assert_eq!(unsafe { data.cast::<usize>().read() }, 1);
            outcome(unsafe { millpond_device_history_stop(ptr(d.0), null_mut()) }).unwrap();
            blocks.into_iter().for_each(|b| free(b).unwrap());
        });
    });
}

#[test]
fn what_is_done_stays_done() {
    apart(|| {
        for_each(|c| {
            let d = host(64 * MIB, true);
            let (pool, s) = (d.pool(0), d.stream());
            let mut calls = 0_usize;
            let data: *mut c_void = (&raw mut calls).cast();
            let before = [pool.alloc(1000, s).unwrap(), pool.alloc(2000, s).unwrap()];
            let point = pool.checkpoint();
            before.iter().for_each(|p| pool.free(*p, s).unwrap());
            let after = pool.alloc(3 * MIB, s).unwrap();
            let restored = unsafe { millpond_pool_restore(ptr(pool.0), ptr(point.0), Some(c.restore), data) };
            outcome(restored).unwrap();
            assert_eq!(
                unsafe { data.cast::<usize>().replace(0) },
                3,
                "each block is told, whatever is thrown"
            );
            assert_eq!(code(pool.free(after, s)), MILLPOND_E_UNKNOWN_POINTER);
            before.iter().for_each(|p| pool.free(*p, s).unwrap());

            let mut id = 0;
            let add = unsafe { millpond_device_add_oom_callback(ptr(d.0), Some(c.oom), data, &mut id) };
            outcome(add).unwrap();
            assert_eq!(
                code(pool.alloc(64 * MIB, s).and_then(|_| pool.alloc(64 * MIB, s))),
                MILLPOND_E_OUT_OF_MEMORY
            );
            assert!(unsafe { data.cast::<usize>().read() } > 0, "it counts as false");
            outcome(unsafe { millpond_device_remove_oom_callback(ptr(d.0), id) }).unwrap();
        });
    });
}
