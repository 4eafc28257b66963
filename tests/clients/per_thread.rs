//! The per-thread default stream (`CU_STREAM_PER_THREAD`, the handle 2) is another stream on each thread. A framework
//! queues work there on one thread and frees what the work uses on another: a collector of garbage, a pool of
//! workers. Whichever thread frees, the memory is not used again under that work.
//!
//! (CUDA driver API, "Stream synchronization behavior": the per-thread default stream is local to the thread, and it
//! synchronises with the legacy default stream.)

use crate::apart::{apart_for, step};
use crate::client::*;
use crate::cuda::{Fake, MIB};
use millpond::capi::*;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// The handle of the calling thread's own default stream.
const PER_THREAD: u64 = 2;
const BYTES: u64 = 4 * MIB;
const STANDS: Duration = Duration::from_millis(1500);

struct Scene {
    fake: Fake,
    d: Dev,
    /// A block of device memory that the work writes.
    target: u64,
}

/// It stays for the rest of the process, as its threads do.
fn scene(backend: &str) -> &'static Scene {
    let fake = cuda("1", &[]);
    default_options("cuda", &format!("backend:{backend}"));
    let d = device("cuda", 0);
    let target = d.alloc(BYTES).unwrap();
    Box::leak(Box::new(Scene { fake, d, target }))
}

impl Scene {
    /// Runs `body` on a thread whose own stream stands still for a while, with what `body` queues behind; the thread
    /// lives until the sender goes.
    fn on_a_thread(&'static self, body: impl FnOnce() + Send + 'static) -> Sender<()> {
        let (end, ended) = channel::<()>();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            let gate = Gate::hold(self.d, PER_THREAD);
            gate.open_after(STANDS);
            body();
            tell.send(()).unwrap();
            let _ = ended.recv();
        });
        told.recv().expect("the thread could not queue its work");
        end
    }

    /// What the work has written are the bytes of before the free.
    #[track_caller]
    fn check(&self) {
        self.d.synchronize().unwrap();
        for at in samples(self.target, BYTES) {
            assert_eq!(self.fake.read(0, at, 1).unwrap(), [7], "the work read the next owner's bytes");
        }
    }
}

fn fill(h: u64, value: u8) {
    let at: *mut u8 = std::ptr::with_exposed_provenance_mut(h as usize);
    unsafe { at.write_bytes(value, BYTES as usize) };
}

/// Pinned memory that a thread's own stream reads is freed here after `between`; who gets it next writes.
fn pinned(record: bool, between: impl Fn(&Scene)) {
    let s = scene("native");
    let h = s.d.host_alloc(BYTES).unwrap();
    fill(h, 7);
    let _thread = s.on_a_thread(move || {
        if record {
            let copy: extern "C" fn(u64, u64, usize, u64) -> u32 = s.fake.driver("cuMemcpyHtoDAsync_v2");
            s.fake.with_primary(0, || assert_eq!(copy(s.target, h, BYTES as usize, PER_THREAD), 0));
            s.d.host_record_stream(h, PER_THREAD).unwrap();
        } else {
            s.d.copy_async(PER_THREAD, MILLPOND_COPY_H2D, s.target, h, BYTES).unwrap();
        }
    });
    between(s);
    step("free on another thread");
    s.d.host_free(h).unwrap();
    let again = s.d.host_alloc(BYTES).unwrap();
    fill(again, 9);
    s.check();
}

/// Pinned memory of a copy on one thread's own stream, freed by another thread, stays until the copy is done.
#[test]
fn pinned_memory_of_a_copy_waits_for_the_thread_that_queued_it() {
    apart_for(60, || pinned(false, |_| ()));
}

/// The same for a use that the program has recorded.
#[test]
fn a_recorded_use_of_pinned_memory_waits_for_the_thread_that_recorded_it() {
    apart_for(60, || pinned(true, |_| ()));
}

/// A thread that says that its own stream is about to end says nothing of another thread's.
#[test]
fn forgetting_the_own_stream_leaves_the_uses_of_other_threads() {
    apart_for(60, || {
        pinned(false, |s| {
            let _ = s.d.stream_forget(PER_THREAD); // it may be refused
        });
    });
}

/// A block of `near` that a thread's own stream reads, as it has recorded; freed here, and given out again.
fn device_block(backend: &str, between: impl Fn(&Scene)) {
    let s = scene(backend);
    let near = s.d.stream();
    let p = s.d.pool().alloc(BYTES, near).unwrap();
    s.fake.write(0, p, &vec![7; BYTES as usize]).unwrap();
    let _thread = s.on_a_thread(move || {
        s.d.copy_async(PER_THREAD, MILLPOND_COPY_D2D, s.target, p, BYTES).unwrap();
        record_stream(p, PER_THREAD).unwrap();
    });
    between(s);
    step("free on another thread");
    s.d.pool().free(p, near).unwrap();
    let again = s.d.pool().alloc(BYTES, near).unwrap();
    s.d.memset_async(near, again, 9, BYTES).unwrap();
    s.d.settles(near, STANDS / 2);
    s.check();
}

/// A block of the driver's pool that one thread's own stream uses, freed by another thread.
#[test]
fn a_block_of_the_drivers_pool_waits_for_the_thread_that_recorded_it() {
    apart_for(60, || device_block("cudaMallocAsync", |_| ()));
}

/// The same after another thread has said that *its* own stream ends.
#[test]
fn a_block_of_the_drivers_pool_keeps_its_uses_when_another_thread_forgets_its_stream() {
    apart_for(60, || {
        device_block("cudaMallocAsync", |s| {
            let _ = s.d.stream_forget(PER_THREAD);
        });
    });
}

/// The same where Millpond keeps the memory.
#[test]
fn a_block_waits_for_the_thread_that_recorded_it() {
    apart_for(60, || device_block("native", |s| _ = s.d.stream_forget(PER_THREAD)));
}
