//! A framework passes a stream of one device to calls about memory of another: a copy from GPU 0 to GPU 1 runs on a
//! stream of GPU 1 and reads a block of GPU 0. Either the call is refused, and the framework takes care of the order
//! itself, or the block waits for that stream as for any other. The library must never take the stream for one that has
//! ended, and forget it.
//!
//! The driver refuses to record an event of one context in a stream of another (`CUDA_ERROR_INVALID_HANDLE`), as it
//! does for a stream that has ended; copies and waits it takes. (CUDA C++ Programming Guide, "Stream and Event
//! Behavior" of multi-device systems; `cuEventRecord` in the driver API.)

use crate::apart::{apart_for, step, until};
use crate::client::*;
use crate::cuda::{Fake, MIB};
use crate::recording::*;
use millpond::capi::*;
use std::ffi::c_int;
use std::time::Duration;

/// What a call may say that does not take a stream of another device.
const NOT_HERE: &[u32] = &[
    MILLPOND_E_UNKNOWN_STREAM,
    MILLPOND_E_INVALID_ARGUMENT,
    MILLPOND_E_UNSUPPORTED,
    MILLPOND_E_NOT_PERMITTED,
];

/// How long the framework's stream stands still. All that goes wrong goes wrong meanwhile.
const STANDS: Duration = Duration::from_millis(1500);

/// Whose the framework's stream is.
#[derive(Clone, Copy, PartialEq)]
enum Whose {
    OtherDevice,
    /// A context that the framework made itself on the same device.
    OtherContext,
}
use Whose::*;

struct Scene {
    fake: Fake,
    d0: Dev,
    /// A stream of device 0.
    near: u64,
    /// The framework's stream, and its device.
    far: u64,
    far_device: c_int,
    /// Memory there, that its work writes.
    target: u64,
}

const BYTES: u64 = 4 * MIB;

fn scene(backend: &str, whose: Whose) -> Scene {
    scene_with(backend, whose, &[])
}

fn scene_with(backend: &str, whose: Whose, more: &[(&str, &str)]) -> Scene {
    let fake = cuda("2", more);
    default_options("cuda", &format!("backend:{backend}"));
    let (d0, d1) = (device("cuda", 0), device("cuda", 1));
    let near = d0.stream();
    let (far, far_device, at) = match whose {
        OtherDevice => (fake.foreign_stream(1, 1), 1, d1),
        OtherContext => (own_context_stream(&fake), 0, d0),
    };
    let target = at.alloc(BYTES).unwrap();
    Scene { fake, d0, near, far, far_device, target }
}

/// A stream in a context of its own on device 0; the calling thread has no current context afterwards.
fn own_context_stream(fake: &Fake) -> u64 {
    let (mut context, mut s) = (0_u64, 0_u64);
    let create: extern "C" fn(*mut u64, u32, c_int) -> u32 = fake.driver("cuCtxCreate_v2");
    let make: extern "C" fn(*mut u64, u32) -> u32 = fake.driver("cuStreamCreate");
    let pop: extern "C" fn(*mut u64) -> u32 = fake.driver("cuCtxPopCurrent_v2");
    assert_eq!(create(&mut context, 0, 0), 0);
    assert_eq!((make(&mut s, 1), pop(&mut context)), (0, 0));
    s
}

impl Scene {
    /// The framework's stream stands still for a while, and copies the block out after that.
    fn far_reads(&self, p: u64) -> Gate {
        let gate = Gate::new();
        self.fake.launch_host(self.far_device, self.far, gate.wait());
        let to = (self.far_device, self.target);
        self.fake.copy_peer_async(to, (0, p), BYTES, self.far, self.far_device);
        gate.open_after(STANDS);
        gate
    }

    /// A block of device 0 that holds 7s.
    fn block(&self, pool: Pool, s: u64) -> Said<u64> {
        let p = pool.alloc(BYTES, s)?;
        self.fake.write(0, p, &vec![7; BYTES as usize]).unwrap();
        Ok(p)
    }

    /// Somebody else takes memory of device 0, as much as there is of it, and writes 9s.
    fn next_owner(&self, bytes: u64) {
        let Ok(q) = self.d0.pool().alloc(bytes, self.near) else { return };
        // It runs now, or when the framework's stream has got there.
        self.d0.memset_async(self.near, q, 9, bytes).unwrap();
        self.d0.settles(self.near, STANDS / 2);
    }

    /// What the framework has copied is what the block held when it was freed.
    #[track_caller]
    fn check(&self) {
        assert_eq!(self.fake.stream_sync(self.far_device, self.far), 0, "the framework's stream failed");
        for at in samples(self.target, BYTES) {
            assert_eq!(
                self.fake.read(self.far_device, at, 1).unwrap(),
                [7],
                "the copy read the next owner's bytes"
            );
        }
    }
}

/// A block of `near` that the framework's stream uses too, as `tell` says; then it is freed.
fn a_recorded_use(backend: &str, whose: Whose, tell: impl Fn(&Scene, u64) -> Said) {
    let s = scene(backend, whose);
    let p = s.block(s.d0.pool(), s.near).unwrap();
    let _gate = s.far_reads(p);
    step("tell of the use");
    let told = tell(&s, p);
    if told.is_err() {
        refused(told, NOT_HERE);
        assert_eq!(block(p).unwrap().base.addr() as u64, p, "after a refusal nothing has changed");
        assert_eq!(s.fake.stream_sync(s.far_device, s.far), 0); // so the framework waits by itself
        return s.d0.pool().free(p, s.near).unwrap();
    }
    step("free");
    s.d0.pool().free(p, s.near).unwrap();
    s.next_owner(BYTES);
    s.check();
}

/// `millpond_record_stream` with a stream of another device: refused, or the block's reuse waits for it.
#[test]
fn a_recorded_stream_of_another_device_is_waited_for_or_refused() {
    apart_for(60, || a_recorded_use("native", OtherDevice, |s, p| record_stream(p, s.far)));
}

/// The same for a stream of the same device that is one of another context than the primary one.
#[test]
fn a_recorded_stream_of_another_context_is_waited_for_or_refused() {
    apart_for(60, || a_recorded_use("native", OtherContext, |s, p| record_stream(p, s.far)));
}

/// The same where the driver's own pool keeps the memory.
#[test]
fn a_recorded_stream_of_another_device_is_waited_for_by_the_drivers_pool() {
    apart_for(60, || a_recorded_use("cudaMallocAsync", OtherDevice, |s, p| record_stream(p, s.far)));
}

/// The same where nobody keeps the memory, and each free gives it to the driver.
#[test]
fn a_recorded_stream_of_another_device_is_waited_for_without_a_pool() {
    apart_for(60, || a_recorded_use("none", OtherDevice, |s, p| record_stream(p, s.far)));
}

/// `millpond_record_end`: the use ends where the other device's stream is now, and that point is waited for.
#[test]
fn an_end_of_use_on_another_device_is_waited_for_or_refused() {
    apart_for(60, || a_recorded_use("native", OtherDevice, |s, p| record_end(p, s.far)));
}

/// `millpond_record_end_at` with an event of the other device, which can be asked from anywhere.
#[test]
fn an_end_of_use_at_an_event_of_another_device_is_waited_for_or_refused() {
    apart_for(60, || {
        a_recorded_use("native", OtherDevice, |s, p| {
            let create: extern "C" fn(*mut u64, u32) -> u32 = s.fake.driver("cuEventCreate");
            let record: extern "C" fn(u64, u64) -> u32 = s.fake.driver("cuEventRecord");
            let mut e = 0;
            s.fake.with_primary(1, || assert_eq!((create(&mut e, 2), record(e, s.far)), (0, 0)));
            record_end_at(p, s.far, e)
        });
    });
}

fn a_free_on(backend: &str, whose: Whose) {
    let s = scene(backend, whose);
    let pool = s.d0.pool();
    let p = s.block(pool, s.near).unwrap();
    let _gate = s.far_reads(p);
    let freed = pool.free(p, s.far);
    if freed.is_err() {
        refused(freed, NOT_HERE);
        assert_eq!(block(p).unwrap().base.addr() as u64, p, "after a refusal nothing was freed");
        assert_eq!(s.fake.stream_sync(s.far_device, s.far), 0);
        return pool.free(p, s.near).unwrap();
    }
    s.next_owner(BYTES);
    s.check();
}

/// `millpond_pool_free` that names a stream of another device is the free and the record in one.
#[test]
fn a_free_on_a_stream_of_another_device_waits_for_it_or_is_refused() {
    apart_for(60, || a_free_on("native", OtherDevice));
}

/// The same for a stream of another context of the same device.
#[test]
fn a_free_on_a_stream_of_another_context_waits_for_it_or_is_refused() {
    apart_for(60, || a_free_on("native", OtherContext));
}

/// The same where the driver's own pool keeps the memory.
#[test]
fn a_free_on_a_stream_of_another_device_waits_for_it_in_the_drivers_pool() {
    apart_for(60, || a_free_on("cudaMallocAsync", OtherDevice));
}

fn a_block_of(backend: &str, whose: Whose) {
    let s = scene(backend, whose);
    let pool = s.d0.pool();
    let p = match s.block(pool, s.far) {
        Ok(p) => p,
        no => return refused(no, NOT_HERE),
    };
    let rest = s.d0.info().total_bytes - s.d0.stats().unwrap().reserved_bytes.current - BYTES;
    let other = pool.alloc(rest, s.near);
    let _gate = s.far_reads(p);
    step("free");
    pool.free(p, s.far).unwrap();
    // The device has no other memory than the block's, so whoever needs more must wait for it.
    s.next_owner(2 * BYTES);
    s.check();
    pool.free(other.unwrap(), s.near).unwrap();
}

/// A block that was allocated for a stream of another device is ordered by that stream, or there is none.
#[test]
fn a_block_for_a_stream_of_another_device_is_ordered_by_it_or_refused() {
    apart_for(60, || a_block_of("native", OtherDevice));
}

/// The same for a stream of another context of the same device.
#[test]
fn a_block_for_a_stream_of_another_context_is_ordered_by_it_or_refused() {
    apart_for(60, || a_block_of("native", OtherContext));
}

/// A block without a stream waits for all streams of its device, which the framework's is not. So a record of it means
/// something, and is refused, or kept.
fn a_block_without_a_stream(whose: Whose) {
    let s = scene("native", whose);
    let p = s.d0.alloc(BYTES).unwrap();
    s.fake.write(0, p, &vec![7; BYTES as usize]).unwrap();
    let _gate = s.far_reads(p);
    let told = record_stream(p, s.far);
    if told.is_err() {
        refused(told, NOT_HERE);
        assert_eq!(s.fake.stream_sync(s.far_device, s.far), 0);
        return free(p).unwrap();
    }
    free(p).unwrap();
    let q = s.d0.alloc(BYTES).unwrap();
    s.d0.memset_async(s.near, q, 9, BYTES).unwrap();
    s.d0.settles(s.near, STANDS / 2);
    s.check();
}

/// `millpond_record_stream` of a block of `millpond_alloc` with a stream of another device.
#[test]
fn a_recorded_stream_of_another_device_is_waited_for_by_a_block_without_a_stream_or_refused() {
    apart_for(60, || a_block_without_a_stream(OtherDevice));
}

/// The same for a stream of another context of the same device.
#[test]
fn a_recorded_stream_of_another_context_is_waited_for_by_a_block_without_a_stream_or_refused() {
    apart_for(60, || a_block_without_a_stream(OtherContext));
}

/// The same where the stream is named by the free.
#[test]
fn a_free_of_a_block_without_a_stream_on_a_stream_of_another_device_waits_for_it_or_is_refused() {
    apart_for(60, || {
        for backend in ["native", "none", "cudaMallocAsync"] {
            step(backend);
            let s = scene(backend, OtherDevice);
            let p = s.d0.alloc(BYTES).unwrap();
            s.fake.write(0, p, &vec![7; BYTES as usize]).unwrap();
            let _gate = s.far_reads(p);
            let freed = s.d0.pool().free(p, s.far);
            if freed.is_err() {
                refused(freed, NOT_HERE);
                assert_eq!(s.fake.stream_sync(1, s.far), 0);
                free(p).unwrap();
            }
            s.next_owner(BYTES);
            s.check();
            said(millpond_finalize()).unwrap();
        }
    });
}

/// Pinned memory that the framework's stream reads, as `tell` says; then it is freed, and serves or leaves.
fn pinned(whose: Whose, tell: impl Fn(&Scene, u64) -> Said) {
    let s = scene("native", whose);
    let h = s.d0.host_alloc(BYTES).unwrap();
    fill(h, 7);
    let gate = Gate::new();
    s.fake.launch_host(s.far_device, s.far, gate.wait());
    let told = tell(&s, h);
    if told.is_err() {
        refused(told, NOT_HERE);
        gate.open();
        assert_eq!(s.fake.stream_sync(s.far_device, s.far), 0);
        return s.d0.host_free(h).unwrap();
    }
    gate.open_after(STANDS);
    step("free");
    s.d0.host_free(h).unwrap();
    let again = s.d0.host_alloc(BYTES).unwrap();
    fill(again, 9);
    s.d0.host_free(again).unwrap();
    step("give all pinned memory back");
    s.d0.empty_host_cache().unwrap();
    s.check();
}

fn fill(h: u64, value: u8) {
    let at: *mut u8 = std::ptr::with_exposed_provenance_mut(h as usize);
    unsafe { at.write_bytes(value, BYTES as usize) };
}

/// `millpond_host_record_stream` with a stream of another device than the one that is named: refused, or waited for.
#[test]
fn pinned_memory_waits_for_a_stream_of_another_device_or_the_record_is_refused() {
    apart_for(60, || {
        pinned(OtherDevice, |s, h| {
            s.fake.copy_in_async(1, s.target, h, BYTES, s.far);
            s.d0.host_record_stream(h, s.far)
        });
    });
}

/// The same for a stream of another context of the device that is named.
#[test]
fn pinned_memory_waits_for_a_stream_of_another_context_or_the_record_is_refused() {
    apart_for(60, || {
        pinned(OtherContext, |s, h| {
            s.fake.copy_in_async(0, s.target, h, BYTES, s.far);
            s.d0.host_record_stream(h, s.far)
        });
    });
}

/// Pinned memory of one device, used on a stream of the other and recorded there as it should be.
#[test]
fn pinned_memory_waits_for_a_stream_that_is_named_with_its_own_device() {
    apart_for(60, || {
        pinned(OtherDevice, |s, h| {
            s.fake.copy_in_async(1, s.target, h, BYTES, s.far);
            device("cuda", 1).host_record_stream(h, s.far)
        });
    });
}

/// `millpond_copy_async` on a stream of another device: refused, or its pinned end is kept until the copy is done.
#[test]
fn a_copy_on_a_stream_of_another_device_keeps_its_pinned_memory_or_is_refused() {
    apart_for(60, || {
        pinned(OtherDevice, |s, h| {
            let p = s.d0.alloc(BYTES).unwrap();
            // Device 1 may use memory of device 0.
            said(unsafe { millpond_device_enable_peer_access(s.d0.0, device("cuda", 1).0) }).unwrap();
            s.d0.copy_async(s.far, MILLPOND_COPY_H2D, p, h, BYTES)?;
            s.fake.copy_peer_async((1, s.target), (0, p), BYTES, s.far, 1);
            Ok(())
        });
    });
}

/// A stream of another device is no stream of this one: what is not the record of a use is refused.
#[test]
fn a_stream_of_another_device_is_refused_where_it_would_order_something() {
    apart_for(60, || {
        for whose in [OtherDevice, OtherContext] {
            let s = scene("native", whose);
            let p = s.d0.alloc(BYTES).unwrap();
            let e = s.d0.event();
            let own: &[u32] = &[MILLPOND_E_UNKNOWN_STREAM];
            refused(s.d0.pool().alloc(BYTES, s.far), own);
            refused(s.d0.new_pool().capture(s.far), own);
            refused(s.d0.memset_async(s.far, p, 1, BYTES), own);
            refused(s.d0.event_record(s.far, e), own);
            refused(s.d0.stream_sync(s.far), own);
            refused(s.d0.stream_forget(s.far), own);
            refused(s.d0.callback(s.far, |_| ()), own);
            // And an event of another context is none of this device's.
            let theirs = s.their_event();
            refused(s.d0.event_record(s.near, theirs), &[MILLPOND_E_UNKNOWN_EVENT]);
            said(millpond_finalize()).unwrap();
        }
    });
}

impl Scene {
    /// An event of the device of the framework's stream.
    fn their_event(&self) -> u64 {
        let create: extern "C" fn(*mut u64, u32) -> u32 = self.fake.driver("cuEventCreate");
        let mut e = 0;
        self.fake.with_primary(1, || assert_eq!(create(&mut e, 2), 0));
        e
    }

    /// Whether all memory of device 0 can be had for `near`.
    fn all_is_free_again(&self) -> bool {
        let got = self.d0.pool().alloc(self.d0.info().total_bytes, self.near);
        got.map(|p| self.d0.pool().free(p, self.near).unwrap()).is_ok()
    }
}

/// The recorded stream is ended by its maker, who has not told, before the block is freed. Its work is waited for.
#[test]
fn the_work_of_a_recorded_stream_of_another_device_is_waited_for_that_has_ended_without_a_word() {
    apart_for(60, || {
        for (whose, driver) in [(OtherDevice, "12080"), (OtherContext, "12080"), (OtherDevice, "11040")] {
            step(driver);
            // Without an event for a whole context only a driver that checks survives it.
            let ended = if driver == "11040" { "refuse" } else { "crash" };
            let s = scene_with("native", whose, &[("driver", driver), ("ended", ended)]);
            s.fake.write(s.far_device, s.target, &vec![0; BYTES as usize]).unwrap();
            let p = s.block(s.d0.pool(), s.near).unwrap();
            let _gate = s.far_reads(p);
            record_stream(p, s.far).unwrap();
            s.fake.foreign_stream_end(s.far);
            s.d0.pool().free(p, s.near).unwrap();
            s.next_owner(BYTES);
            device("cuda", 1).synchronize().unwrap();
            // The work of the other context, of which nobody knows.
            let copied = |at| s.fake.read(s.far_device, at, 1).unwrap();
            until("the copy", || samples(s.target, BYTES).into_iter().all(|at| copied(at) != [0]));
            for at in samples(s.target, BYTES) {
                assert_eq!(copied(at), [7], "the copy read the next owner's bytes");
            }
            let now = s.d0.stats().unwrap();
            assert_eq!(
                now.active_bytes.current, now.allocated_bytes.current,
                "what waited for it does not come back"
            );
            said(millpond_finalize()).unwrap();
        }
    });
}

/// Its maker tells the device that it belongs to, and a new stream may get its number.
#[test]
fn the_work_of_a_recorded_stream_of_another_device_is_waited_for_that_was_forgotten_there() {
    apart_for(60, || {
        let s = scene("native", OtherDevice);
        let d1 = device("cuda", 1);
        let p = s.block(s.d0.pool(), s.near).unwrap();
        let _gate = s.far_reads(p);
        record_stream(p, s.far).unwrap();
        d1.stream_forget(s.far).unwrap();
        s.d0.pool().free(p, s.near).unwrap();
        s.next_owner(BYTES);
        s.check();
    });
}

/// While it is captured no mark is made, and the capture comes to its good end; after it, the memory serves again.
#[test]
fn a_captured_stream_of_another_device_is_left_alone_and_its_memory_comes_back() {
    apart_for(60, || {
        for backend in ["native", "none", "cudaMallocAsync"] {
            step(backend);
            // Nobody announces the capture: the stream must be asked, and so must not end without notice.
            let s = scene(&format!("{backend},streams_announced:on"), OtherDevice);
            let p = s.d0.pool().alloc(BYTES, s.near).unwrap();
            record_stream(p, s.far).unwrap();
            record(&s.fake, s.far);
            s.d0.pool().free(p, s.near).unwrap();
            let _ = s.d0.empty_cache(); // it may be refused, as the block cannot be waited for
            if backend == "native" {
                assert!(!s.all_is_free_again(), "nobody has asked the captured stream");
            }
            graph_end(&s.fake, graph(&s.fake, s.far));
            assert!(backend != "native" || s.all_is_free_again());
            s.d0.empty_cache().unwrap();
            assert_eq!(s.d0.stats().unwrap().active_bytes.current, 0);
            said(millpond_finalize()).unwrap();
        }
    });
}

/// In a stream callback the driver cannot be asked: its last answer counts, and without one the record is refused.
#[test]
fn a_stream_of_another_device_is_recorded_in_a_callback_once_it_is_known() {
    apart_for(60, || {
        let s = scene("native", OtherDevice);
        let (p, q) = (s.block(s.d0.pool(), s.near).unwrap(), s.d0.pool().alloc(MIB, s.near).unwrap());
        let (tell, told) = std::sync::mpsc::channel();
        let in_a_callback = |p, far| {
            let tell = tell.clone();
            s.d0.callback(s.near, move |_| tell.send(record_stream(p, far)).unwrap()).unwrap();
            told.recv().unwrap()
        };
        refused(in_a_callback(p, s.far), NOT_HERE);
        record_stream(q, s.far).unwrap();
        in_a_callback(p, s.far).unwrap();
        let _gate = s.far_reads(p);
        s.d0.pool().free(p, s.near).unwrap();
        s.next_owner(BYTES);
        s.check();
    });
}

/// Nothing of what marks other devices' streams is left in the driver.
#[test]
fn marks_of_other_devices_streams_leave_nothing_in_the_driver() {
    apart_for(60, || {
        let s = scene("native", OtherDevice);
        let calls = |of: &str| s.fake.calls(of);
        for _ in 0..200 {
            let p = s.d0.pool().alloc(BYTES, s.near).unwrap();
            record_stream(p, s.far).unwrap();
            s.d0.pool().free(p, s.near).unwrap();
            assert_eq!(s.fake.stream_sync(1, s.far), 0);
            s.d0.synchronize().unwrap();
        }
        assert!(calls("cuStreamCreate") < 10, "{} streams for 200 marks", calls("cuStreamCreate"));
        assert!(calls("cuEventCreate") <= calls("cuEventDestroy_v2") + 10);
        said(millpond_finalize()).unwrap();
        assert_eq!(s.fake.leaks(), "");
    });
}

/// A pool sleeps when the other device's stream has done its work on the blocks, live or freed.
#[test]
fn a_pool_goes_to_sleep_after_the_work_of_a_stream_of_another_device() {
    apart_for(60, || {
        for freed in [false, true] {
            let s = scene("native", OtherDevice);
            let pool = s.d0.new_pool();
            let p = s.block(pool, s.near).unwrap();
            let _gate = s.far_reads(p);
            record_stream(p, s.far).unwrap();
            if freed {
                pool.free(p, s.near).unwrap();
            }
            pool.sleep().unwrap();
            s.next_owner(BYTES);
            s.check();
            pool.wake().unwrap();
            said(millpond_finalize()).unwrap();
        }
    });
}

/// The end of the library waits for the work of all devices before it takes memory from any.
#[test]
fn the_end_of_the_library_waits_for_the_work_of_another_devices_stream() {
    apart_for(60, || {
        let s = scene("native", OtherDevice);
        s.fake.set("keep_log", "1");
        let p = s.block(s.d0.pool(), s.near).unwrap();
        let _gate = s.far_reads(p);
        record_stream(p, s.far).unwrap();
        said(millpond_finalize()).unwrap();
        assert!(!s.fake.log().contains("memory that is not there"), "{}", s.fake.log());
    });
}
