//! How hooks and out-of-memory callbacks end, from wherever a program may end them: no removal waits for itself, and what
//! a hook uses ends when nobody is in it. And what is told of blocks that get shorter, while others want their ends.

use crate::pools::*;
use crate::support::capi::{fails, ok};
use millpond::capi::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// How long a removal may take that waits for nobody.
const LONG: Duration = Duration::from_secs(5);

fn data<T>(of: &T) -> *mut c_void {
    std::ptr::from_ref(of).cast_mut().cast()
}

fn until(what: impl Fn() -> bool) -> bool {
    let end = Instant::now() + LONG;
    while Instant::now() < end {
        if what() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

/// A hook, or an out-of-memory callback, that another thread removes while it runs.
struct Removed {
    device: *mut millpond_device,
    stream: C_Stream,
    id: AtomicU64,
    other: AtomicU64,
    /// The error number of the removal, or 0; 99: it has not come back.
    answer: AtomicU32,
    returned: AtomicU32,
    ends: AtomicU32,
}

impl Removed {
    fn new(h: &Host, stream: C_Stream) -> Removed {
        let (id, other, ends) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU32::new(0));
        let (answer, returned) = (AtomicU32::new(99), AtomicU32::new(0));
        Removed { device: h.device, stream, id, other, answer, returned, ends }
    }
    fn said(&self, status: C_Status) {
        let code = if status == C_Status::SUCCESS { 0 } else { millpond_last_error_code() };
        self.answer.store(code, SeqCst);
    }
    /// What the callback does: queues its own removal, and waits for the stream as far as a test may.
    fn wait_for_stream(&self, remove: unsafe extern "C-unwind" fn(*mut c_void, C_Status)) {
        if self.returned.fetch_add(1, SeqCst) > 0 {
            return; // the test allocates once more
        }
        ok(unsafe { millpond_stream_add_callback(self.device, self.stream, Some(remove), data(self)) });
        until(|| self.answer.load(SeqCst) != 99);
        self.returned.store(2, SeqCst);
    }
}

unsafe extern "C-unwind" fn in_hook(r: *mut c_void, _: *const millpond_block_event) {
    unsafe extern "C-unwind" fn remove(r: *mut c_void, _: C_Status) {
        let r = unsafe { &*r.cast::<Removed>() };
        r.said(unsafe { millpond_device_remove_hook(r.device, r.id.load(SeqCst)) });
    }
    unsafe { &*r.cast::<Removed>() }.wait_for_stream(remove);
}

unsafe extern "C-unwind" fn in_oom(r: *mut c_void, _: u64) -> bool {
    unsafe extern "C-unwind" fn remove(r: *mut c_void, _: C_Status) {
        let r = unsafe { &*r.cast::<Removed>() };
        r.said(unsafe { millpond_device_remove_oom_callback(r.device, r.id.load(SeqCst)) });
    }
    unsafe { &*r.cast::<Removed>() }.wait_for_stream(remove);
    false
}

unsafe extern "C-unwind" fn ends(r: *mut c_void) {
    unsafe { &*r.cast::<Removed>() }.ends.fetch_add(1, SeqCst);
}

#[test]
fn a_stream_callback_does_not_wait_for_who_may_wait_for_its_stream() {
    everywhere(|h| {
        let stream = h.stream();
        for destroy in [None, Some(ends as unsafe extern "C-unwind" fn(*mut c_void))] {
            let r = Removed::new(&h, stream);
            let mut id = 0;
            ok(unsafe { millpond_device_add_hook(h.device, Some(in_hook), data(&r), destroy, &mut id) });
            r.id.store(id, SeqCst);
            free(pool_alloc(h.pool, 100, null_mut()));
            assert!(until(|| r.answer.load(SeqCst) != 99));
            assert_eq!(
                r.returned.load(SeqCst),
                if destroy.is_some() { 2 } else { 3 },
                "called after its end"
            );
            if destroy.is_none() {
                assert_eq!(r.answer.load(SeqCst), MILLPOND_E_NOT_PERMITTED, "its data would not be free");
                ok(unsafe { millpond_device_remove_hook(h.device, id) });
            } else {
                assert_eq!((r.answer.load(SeqCst), r.ends.load(SeqCst)), (0, 1), "it waited, or never ended");
            }
            fails(unsafe { millpond_device_remove_hook(h.device, id) }, MILLPOND_E_INVALID_ARGUMENT);
            ok(unsafe { millpond_device_synchronize(h.device) });
        }
        let r = Removed::new(&h, stream);
        let mut id = 0;
        ok(unsafe { millpond_device_add_oom_callback(h.device, Some(in_oom), data(&r), &mut id) });
        r.id.store(id, SeqCst);
        let (p, mut none) = (pool_alloc(h.pool, 40 * MIB, null_mut()), null_mut());
        ok(unsafe { millpond_device_set_limit(h.device, 64 << 20) });
        let too_much = unsafe { millpond_pool_alloc(h.pool, 60 * MIB, null_mut(), &mut none) };
        fails(too_much, MILLPOND_E_OUT_OF_MEMORY);
        assert_eq!(r.answer.load(SeqCst), MILLPOND_E_NOT_PERMITTED);
        ok(unsafe { millpond_device_set_limit(h.device, 0) });
        free(p);
        ok(unsafe { millpond_device_remove_oom_callback(h.device, id) });
        ok(unsafe { millpond_stream_destroy(h.device, stream) });
    });
}

/// Two threads, each in a callback of another kind, remove what the other is in: neither waits. The out-of-memory callback
/// stays, as nothing tells when the other thread has left it.
#[test]
fn a_hook_and_an_out_of_memory_callback_may_remove_each_other() {
    unsafe extern "C-unwind" fn hook(r: *mut c_void, _: *const millpond_block_event) {
        let r = unsafe { &*r.cast::<Removed>() };
        if r.returned.fetch_add(1, SeqCst) == 0 {
            assert!(until(|| r.ends.load(SeqCst) > 0), "the other thread is in its callback");
            r.said(unsafe { millpond_device_remove_oom_callback(r.device, r.other.load(SeqCst)) });
        }
    }
    unsafe extern "C-unwind" fn oom(r: *mut c_void, _: u64) -> bool {
        let r = unsafe { &*r.cast::<Removed>() };
        r.ends.fetch_add(1, SeqCst);
        until(|| r.returned.load(SeqCst) > 0);
        ok(unsafe { millpond_device_remove_hook(r.device, r.id.load(SeqCst)) });
        // On its own thread, whatever the other one does.
        r.ends.fetch_add(1, SeqCst);
        until(|| r.answer.load(SeqCst) != 99);
        false
    }
    let h = host(true);
    let p = pool_alloc(h.pool, 40 * MIB, null_mut());
    ok(unsafe { millpond_device_set_limit(h.device, 64 << 20) });
    let r = Removed::new(&h, null_mut());
    let (mut id, mut other) = (0, 0);
    ok(unsafe { millpond_device_add_hook(h.device, Some(hook), data(&r), None, &mut id) });
    ok(unsafe { millpond_device_add_oom_callback(h.device, Some(oom), data(&r), &mut other) });
    r.id.store(id, SeqCst);
    r.other.store(other, SeqCst);
    let (pool, begun) = (h.pool.addr(), Instant::now());
    std::thread::scope(|s| {
        s.spawn(move || free(pool_alloc(std::ptr::with_exposed_provenance_mut(pool), 100, null_mut())));
        s.spawn(move || {
            let (pool, mut none) = (std::ptr::with_exposed_provenance_mut(pool), null_mut());
            let too_much = unsafe { millpond_pool_alloc(pool, 60 * MIB, null_mut(), &mut none) };
            fails(too_much, MILLPOND_E_OUT_OF_MEMORY);
        });
    });
    assert_eq!((r.answer.load(SeqCst), r.ends.load(SeqCst)), (MILLPOND_E_NOT_PERMITTED, 2));
    assert!(begun.elapsed() < LONG, "one waited for the other");
    ok(unsafe { millpond_device_remove_oom_callback(h.device, other) });
    ok(unsafe { millpond_device_set_limit(h.device, 0) });
    free(p);
}

#[test]
fn what_a_hook_uses_ends_with_it_once() {
    unsafe extern "C-unwind" fn nothing(_: *mut c_void, _: *const millpond_block_event) {}
    unsafe extern "C-unwind" fn count(n: *mut c_void) {
        unsafe { &*n.cast::<AtomicU32>() }.fetch_add(1, SeqCst);
    }
    unsafe extern "C-unwind" fn thrown(n: *mut c_void) {
        unsafe { count(n) };
        std::panic::resume_unwind(Box::new("lost"));
    }
    let h = host(true);
    let n = AtomicU32::new(0);
    let add = |device, destroy, out: *mut u64| unsafe {
        millpond_device_add_hook(device, Some(nothing), data(&n), Some(destroy), out)
    };
    let mut id = 0;
    ok(add(h.device, count, &mut id));
    free(pool_alloc(h.pool, 100, null_mut()));
    assert_eq!(n.load(SeqCst), 0);
    ok(unsafe { millpond_device_remove_hook(h.device, id) });
    assert_eq!(n.load(SeqCst), 1);
    ok(add(h.device, thrown, &mut id));
    ok(unsafe { millpond_device_remove_hook(h.device, id) });
    assert_eq!(n.load(SeqCst), 2);
    // The caller keeps what could not be registered; the device ends what is left.
    fails(add(null_mut(), count, &mut id), MILLPOND_E_INVALID_ARGUMENT);
    fails(add(h.device, count, null_mut()), MILLPOND_E_INVALID_ARGUMENT);
    ok(add(h.device, count, &mut id));
    assert_eq!(n.load(SeqCst), 2);
    ok(millpond_finalize());
    assert_eq!(n.load(SeqCst), 3);
    fails(add(h.device, count, &mut id), MILLPOND_E_NOT_INITIALIZED);
    assert_eq!(n.load(SeqCst), 3);
}

/// What is told of a block while it gets shorter: nobody has its end before its free is told.
#[test]
fn a_block_is_told_as_free_before_its_end_is() {
    struct Seen(*mut millpond_pool, AtomicUsize, AtomicUsize, AtomicU32);
    unsafe extern "C-unwind" fn take_the_end(data: *mut c_void, event: *const millpond_block_event) {
        let (s, e) = (unsafe { &*data.cast::<Seen>() }, unsafe { *event });
        if e.kind != MILLPOND_HOOK_FREE || e.requested_bytes != 8 * MIB {
            return;
        }
        let q = pool_alloc(s.0, 6 * MIB, null_mut());
        s.1.store(q.addr(), SeqCst);
        s.2.store(e.ptr.addr(), SeqCst);
        s.3.fetch_add(1, SeqCst);
        free(q);
    }
    everywhere(|h| {
        free(pool_alloc(h.pool, 8 * MIB, null_mut()));
        let s = Seen(h.pool, AtomicUsize::new(0), AtomicUsize::new(0), AtomicU32::new(0));
        let mut id = 0;
        ok(unsafe { millpond_device_add_hook(h.device, Some(take_the_end), data(&s), None, &mut id) });
        let p = pool_alloc(h.pool, 8 * MIB, null_mut());
        ok(unsafe { millpond_try_expand(p, MIB) });
        let (q, at) = (s.1.load(SeqCst), s.2.load(SeqCst));
        assert_eq!((at, s.3.load(SeqCst)), (p.addr(), 1));
        assert!(
            q + 6 * MIB <= at || q >= at + 8 * MIB,
            "{q:#x} lies in the block at {at:#x}, which is told as live"
        );
        ok(unsafe { millpond_device_remove_hook(h.device, id) });
        free(p);
    });
}
