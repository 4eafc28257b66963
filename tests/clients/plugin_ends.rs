//! The end of a plugin, by `millpond_device_type_unregister` or `millpond_finalize`, while other threads are inside its
//! callbacks. A thread that is waiting in `device_memory_allocate` has code of the plugin on its stack: the end waits
//! for it, or is refused as BUSY. It never finalises or unmaps the plugin under it.

use crate::apart::{apart_for, step};
use crate::client::*;
use crate::compilers;
use crate::cuda::MIB;
use crate::slow::{self, Manner};
use millpond::capi::*;
use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::Duration;

/// How long the thread stays inside, if nothing wakes it: long enough for any end that does not wait.
const INSIDE: Duration = Duration::from_millis(700);

struct Scene {
    d: Dev,
    pool: Pool,
    s: u64,
    t: u64,
    /// A block of `s`, if the case wants one.
    p: u64,
}

/// One way into a callback.
struct Case {
    callback: &'static str,
    manner: fn() -> Manner,
    /// What was done before.
    prepare: fn(&mut Scene),
    act: fn(&Scene) -> Said,
}

fn nothing(_: &mut Scene) {}

fn free_memory(x: &mut Scene) {
    let p = x.pool.alloc(3 * MIB, x.s).unwrap();
    x.pool.free(p, x.s).unwrap();
}

fn recorded_block(x: &mut Scene) {
    x.p = x.pool.alloc(3 * MIB, x.s).unwrap();
    record_stream(x.p, x.t).unwrap();
}

fn free_it(x: &Scene) -> Said {
    x.pool.free(x.p, x.s)
}

fn allocate(x: &Scene) -> Said {
    let p = x.pool.alloc(8 * MIB, x.s)?;
    // The end may have come in between, and taken the block.
    let _ = x.pool.free(p, x.s);
    Ok(())
}

/// A min chunk that cannot be pooled.
fn unpooled() -> Manner {
    Manner { min_chunk: 4 << 20, ..Manner::default() }
}

/// A request of a device that pools.
const ALLOCATES: Case =
    Case { callback: "device_memory_allocate", manner: Manner::default, prepare: nothing, act: allocate };
/// One of a device that does not: no lock of ours is held meanwhile.
const ALLOCATES_UNPOOLED: Case =
    Case { callback: "device_memory_allocate", manner: unpooled, prepare: nothing, act: allocate };
const GIVES_BACK: Case = Case {
    callback: "device_memory_deallocate",
    manner: Manner::default,
    prepare: free_memory,
    act: |x| x.d.empty_cache(),
};
const WAITS_FOR_THE_DEVICE: Case = Case {
    callback: "synchronize_device",
    manner: Manner::default,
    prepare: free_memory,
    act: |x| x.d.empty_cache(),
};
/// A free of a block that another stream has used: it records an event there, and asks for it.
const RECORDS: Case =
    Case { callback: "record_event", manner: Manner::default, prepare: recorded_block, act: free_it };
const MAKES_AN_EVENT: Case =
    Case { callback: "create_event", manner: Manner::default, prepare: recorded_block, act: free_it };
const ASKS_FOR_AN_EVENT: Case =
    Case { callback: "query_event", manner: Manner::default, prepare: recorded_block, act: free_it };
/// The first request of a stream, which takes over memory of one that has ended with work queued.
const WAITS_FOR_AN_EVENT: Case = Case {
    callback: "stream_wait_event",
    // What it queues takes longer than the end would.
    manner: || Manner { latency: INSIDE / 4, ..Manner::default() },
    prepare: |x| {
        free_memory(x);
        let gate = Gate::hold(x.d, x.s);
        gate.open_after(INSIDE / 2);
        std::mem::forget(gate); // it opens by itself
        x.d.stream_end(x.s).unwrap();
        x.s = x.d.stream();
    },
    act: |x| {
        let p = x.pool.alloc(3 * MIB, x.s)?;
        let _ = x.pool.free(p, x.s);
        Ok(())
    },
};
const OTHERS: &[Case] = &[
    Case {
        callback: "synchronize_stream",
        manner: Manner::default,
        prepare: nothing,
        act: |x| x.d.stream_sync(x.s),
    },
    Case {
        callback: "create_stream",
        manner: Manner::default,
        prepare: nothing,
        act: |x| x.d.stream_end(x.d.stream()),
    },
    Case {
        callback: "device_memory_stats",
        manner: Manner::default,
        prepare: nothing,
        act: |x| {
            x.d.info();
            Ok(())
        },
    },
];

fn ends_while_inside(case: &Case, end: fn() -> Said) {
    slow::register((case.manner)(), |_| ()).unwrap();
    let d = device(slow::NAME, 0);
    let mut x = Scene { d, pool: d.pool(), s: d.stream(), t: d.stream(), p: 0 };
    (case.prepare)(&mut x);
    let (tell, told) = channel();
    let (armed, callback) = (AtomicBool::new(true), case.callback);
    slow::set_hook(Some(Arc::new(move |name| {
        if name == callback && armed.swap(false, SeqCst) {
            tell.send(()).unwrap();
            std::thread::sleep(INSIDE);
        }
    })));
    let act = case.act;
    let thread = std::thread::spawn(move || act(&x));
    told.recv_timeout(Duration::from_secs(10))
        .expect("no thread came into the callback, so the test shows nothing");
    step("end it");
    let ended = end();
    let acted = thread.join().unwrap();
    slow::set_hook(None);
    assert!(slow::faults().is_empty(), "{:?}; the end said {ended:?}, the call {acted:?}", slow::faults());
    if let Err(e) = ended {
        assert_eq!(e.code, MILLPOND_E_BUSY, "{e:?}");
    }
    // Nobody is inside any more. (A block may be lost to a free that came while it was ending.)
    let _ = said(millpond_finalize());
    assert!(slow::faults().is_empty(), "{:?}", slow::faults());
}

fn unregister_it() -> Said {
    unregister(slow::NAME)
}

fn finalize() -> Said {
    said(millpond_finalize())
}

/// A thread is in `device_memory_allocate`, for a request that found nothing.
#[test]
fn unregistering_waits_for_a_thread_that_allocates() {
    apart_for(60, || ends_while_inside(&ALLOCATES, unregister_it));
}

/// The same where each request is the plugin's.
#[test]
fn unregistering_waits_for_a_thread_that_allocates_without_pooling() {
    apart_for(60, || ends_while_inside(&ALLOCATES_UNPOOLED, unregister_it));
}

/// A thread is in `device_memory_deallocate`, or waits for the device before: it empties the cache.
#[test]
fn unregistering_waits_for_a_thread_that_gives_memory_back() {
    apart_for(60, || ends_while_inside(&GIVES_BACK, unregister_it));
}

#[test]
fn unregistering_waits_for_a_thread_that_waits_for_the_device() {
    apart_for(60, || ends_while_inside(&WAITS_FOR_THE_DEVICE, unregister_it));
}

/// A thread frees a block that another stream has used.
#[test]
fn unregistering_waits_for_a_thread_that_frees() {
    apart_for(60, || ends_while_inside(&RECORDS, unregister_it));
}

#[test]
fn unregistering_waits_for_a_thread_that_makes_an_event() {
    apart_for(60, || ends_while_inside(&MAKES_AN_EVENT, unregister_it));
}

#[test]
fn unregistering_waits_for_a_thread_that_asks_for_an_event() {
    apart_for(60, || ends_while_inside(&ASKS_FOR_AN_EVENT, unregister_it));
}

/// A thread makes its stream wait for one that has ended.
#[test]
fn unregistering_waits_for_a_thread_that_takes_over_memory() {
    apart_for(60, || ends_while_inside(&WAITS_FOR_AN_EVENT, unregister_it));
}

/// Threads in the calls that have nothing to do with memory.
#[test]
fn unregistering_waits_for_threads_in_other_calls() {
    apart_for(60, || OTHERS.iter().for_each(|case| ends_while_inside(case, unregister_it)));
}

/// The same for the end of the whole library, which takes live blocks with it.
#[test]
fn the_end_of_the_library_waits_for_a_thread_that_allocates() {
    apart_for(60, || ends_while_inside(&ALLOCATES, finalize));
}

#[test]
fn the_end_of_the_library_waits_for_a_thread_that_allocates_without_pooling() {
    apart_for(60, || ends_while_inside(&ALLOCATES_UNPOOLED, finalize));
}

#[test]
fn the_end_of_the_library_waits_for_a_thread_that_gives_memory_back() {
    apart_for(60, || ends_while_inside(&GIVES_BACK, finalize));
}

#[test]
fn the_end_of_the_library_waits_for_a_thread_that_frees() {
    apart_for(60, || ends_while_inside(&RECORDS, finalize));
}

#[test]
fn the_end_of_the_library_waits_for_a_thread_that_takes_over_memory() {
    apart_for(60, || ends_while_inside(&WAITS_FOR_AN_EVENT, finalize));
}

/// An end that is refused, as blocks live, is none: calls of other threads meanwhile succeed, or wait for its answer.
#[test]
fn a_refused_end_disturbs_no_other_thread() {
    apart_for(60, || {
        slow::register(Manner::default(), |_| ()).unwrap();
        let d = device(slow::NAME, 0);
        let (pool, s) = (d.pool(), d.stream());
        let [stays, goes] = [0, 1].map(|_| pool.alloc(MIB, s).unwrap());
        let (tell, told) = channel();
        let armed = AtomicBool::new(true);
        slow::set_hook(Some(Arc::new(move |name| {
            if name == "device_memory_allocate" && armed.swap(false, SeqCst) {
                tell.send(()).unwrap();
                std::thread::sleep(INSIDE);
            }
        })));
        // Where the end asks for what lives, it may have to wait for this thread.
        let allocates = std::thread::spawn(move || pool.alloc(20 * MIB, s).and_then(|p| pool.free(p, s)));
        told.recv().unwrap();
        let ends = std::thread::spawn(unregister_it);
        std::thread::sleep(INSIDE / 4);
        let got = [
            record_stream(stays, s),
            block(stays).map(drop),
            d.stats().map(drop),
            d.memset_async(s, stays, 1, MIB),
            d.stream_sync(s),
            free(goes),
        ];
        refused(ends.join().unwrap(), &[MILLPOND_E_BUSY]);
        assert_eq!(allocates.join().unwrap(), Ok(()));
        assert!(
            got.iter().all(Result::is_ok),
            "the device has not ended, and its calls were refused: {got:?}"
        );
        free(stays).unwrap();
        unregister(slow::NAME).unwrap();
    });
}

/// Other threads never stop calling: the end comes all the same, and no call is refused before.
#[test]
fn an_end_comes_while_other_threads_call_without_end() {
    apart_for(60, || {
        slow::register(Manner::default(), |_| ()).unwrap();
        let d = device(slow::NAME, 0);
        let last = d.pool().alloc(MIB, 0).unwrap();
        let (stop, refusals) = (AtomicBool::new(false), std::sync::Mutex::new(Vec::new()));
        std::thread::scope(|threads| {
            for _ in 0..6 {
                threads.spawn(|| {
                    while !stop.load(SeqCst) {
                        let event = d.make_event().and_then(|e| d.event_end(e));
                        if let Err(e) = event {
                            refusals.lock().unwrap().push(e);
                            break;
                        }
                    }
                });
            }
            for _ in 0..20 {
                refused(unregister(slow::NAME), &[MILLPOND_E_BUSY]);
            }
            assert_eq!(*refusals.lock().unwrap(), [], "refused while the device had not ended");
            d.pool().free(last, 0).unwrap();
            unregister(slow::NAME).unwrap();
            stop.store(true, SeqCst);
        });
        assert_eq!(slow::faults(), [""; 0]);
    });
}

/// A plugin in a shared object. Its `device_memory_allocate` takes its time; the object is unmapped at its end.
const OBJECT: &str = r#"
#include <millpond/custom_runtime.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int inside[2]; /* a pipe: a byte for each thread that is in the callback */
static C_Status count(size_t *out) { *out = 1; return C_SUCCESS; }
static C_Status allocate(C_Device d, void **out, size_t size) {
  struct timespec moment = {0, 700 * 1000 * 1000};
  (void)d;
  if (write(inside[1], "x", 1) != 1) return C_FAILED;
  nanosleep(&moment, 0);
  *out = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  return C_SUCCESS;
}
static C_Status deallocate(C_Device d, void *p, size_t size) { (void)d; (void)size; free(p); return C_SUCCESS; }
static C_Status copy(C_Device d, void *to, const void *from, size_t n) {
  (void)d; (void)to; (void)from; (void)n; return C_SUCCESS;
}
static C_Status min_chunk(C_Device d, size_t *out) { (void)d; *out = MIN_CHUNK; return C_SUCCESS; }
void InitPlugin(CustomRuntimeParams *params) {
  static char type[] = "object";
  MILLPOND_CUSTOM_RUNTIME_CHECK_COMMON(params);
  if (inside[1] == 0 && pipe(inside) != 0) return;
  params->device_type = type;
  params->interface->device_memory_allocate = allocate;
  params->interface->device_memory_deallocate = deallocate;
  params->interface->memory_copy_h2d = copy;
  params->interface->memory_copy_d2h = copy;
  params->interface->get_device_count = count;
  params->interface->device_min_chunk_size = min_chunk;
}
"#;

/// The end of a plugin in an object, with this min chunk, under a thread that allocates.
fn object_ends(min_chunk: &str, end: fn() -> Said) {
    let scratch = compilers::Scratch::new("clients-object");
    let (source, object) = (scratch.write("object.c", OBJECT), scratch.path("object.so"));
    let min_chunk = format!("-DMIN_CHUNK={min_chunk}");
    let flags = ["-D_POSIX_C_SOURCE=200809L", &min_chunk, "-shared", "-fPIC", "-o", object.to_str().unwrap()];
    compilers::compile_ok("-std=c11", &source, &flags);
    let path = CString::new(object.to_str().unwrap()).unwrap();
    said(unsafe { millpond_device_type_load(path.as_ptr(), null_mut(), 0) }).unwrap();
    // Its pipe tells when a thread is inside. Only looked up: the handle is given back before the end.
    let library = unsafe { libloading::Library::new(&object) }.unwrap();
    let pipe = unsafe { **library.get::<*const [i32; 2]>(b"inside").unwrap() };
    drop(library);
    let d = device("object", 0);
    let thread = std::thread::spawn(move || d.alloc(8 * MIB));
    let mut byte = [0_u8];
    assert_eq!(unsafe { libc::read(pipe[0], byte.as_mut_ptr().cast(), 1) }, 1);
    step("end it");
    let ended = end();
    let got = thread.join().unwrap(); // a block, or a status
    if let Err(e) = ended {
        assert_eq!(e.code, MILLPOND_E_BUSY, "{e:?}");
        free(got.unwrap()).unwrap();
        end().unwrap();
    }
    assert!(!compilers::is_mapped("object.so"), "the object is still loaded");
}

fn unregister_object() -> Said {
    unregister("object")
}

/// The object is not unmapped while a thread runs in it.
#[test]
fn an_object_is_not_unmapped_under_a_thread_when_its_type_is_unregistered() {
    apart_for(60, || object_ends("4096", unregister_object));
}

#[test]
fn an_object_that_is_not_pooled_is_not_unmapped_under_a_thread_when_its_type_is_unregistered() {
    apart_for(60, || object_ends("(4 << 20)", unregister_object));
}

/// The same at the end of the library.
#[test]
fn an_object_is_not_unmapped_under_a_thread_at_the_end_of_the_library() {
    apart_for(60, || object_ends("4096", finalize));
}

#[test]
fn an_object_that_is_not_pooled_is_not_unmapped_under_a_thread_at_the_end_of_the_library() {
    apart_for(60, || object_ends("(4 << 20)", finalize));
}
