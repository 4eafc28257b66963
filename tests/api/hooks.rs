//! Hooks: each allocation and free is told once, in turn for each address, with no lock held.

use crate::pools::*;
use crate::support::capi::{alloc, fails, fixture, ok};
use millpond::capi::*;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc;

const ALLOC: u32 = MILLPOND_HOOK_ALLOC;
const FREE: u32 = MILLPOND_HOOK_FREE;

type Said = (u32, usize, usize, usize, Option<usize>, usize);

#[derive(Default)]
struct Book(Mutex<Vec<Said>>);

impl Book {
    fn data(&self) -> *mut c_void {
        (&raw const *self).cast_mut().cast()
    }
    fn take(&self) -> Vec<Said> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

unsafe extern "C-unwind" fn note(data: *mut c_void, event: *const millpond_block_event) {
    let e = unsafe { *event };
    assert_eq!(e.struct_size, size_of::<millpond_block_event>());
    let stream = (e.has_stream == 1).then(|| e.stream.addr());
    let said = (e.kind, e.ptr.addr(), e.requested_bytes, e.size_bytes, stream, e.pool.addr());
    unsafe { &*data.cast::<Book>() }.0.lock().unwrap().push(said);
}

fn hook(device: *mut millpond_device, f: millpond_hook, data: *mut c_void) -> u64 {
    let mut id = 0;
    ok(unsafe { millpond_device_add_hook(device, f, data, None, &mut id) });
    assert_ne!(id, 0);
    id
}

fn unhook(device: *mut millpond_device, id: u64) {
    ok(unsafe { millpond_device_remove_hook(device, id) });
}

#[test]
fn each_call_is_told_once() {
    everywhere(|h| {
        let (book, pool, stream) = (Book::default(), h.new_pool(), h.stream());
        let before = pool_alloc(h.pool, 700, null_mut()); // known to the hot path
        let id = hook(h.device, Some(note), book.data());
        let p = pool_alloc(pool, 700, stream);
        assert_eq!(book.take(), [(ALLOC, p.addr(), 700, 1024, Some(stream.addr()), pool.addr())]);
        ok(unsafe { millpond_pool_free(pool, p, stream) });
        assert_eq!(book.take(), [(FREE, p.addr(), 700, 1024, Some(stream.addr()), pool.addr())]);
        let p = device_alloc(h.device, 3 << 20);
        assert_eq!(book.take(), [(ALLOC, p.addr(), 3 << 20, 3 << 20, None, h.pool.addr())]);
        free(p);
        assert_eq!(book.take(), [(FREE, p.addr(), 3 << 20, 3 << 20, None, h.pool.addr())]);
        free(before);
        assert_eq!(book.take(), [(FREE, before.addr(), 700, 1024, Some(0), h.pool.addr())]);
        // What fails before it begins, and what does nothing, is not told.
        fails(unsafe { millpond_free(before) }, MILLPOND_E_DOUBLE_FREE);
        free(null_mut());
        let mut none = null_mut();
        ok(unsafe { millpond_pool_alloc(h.pool, 0, null_mut(), &mut none) });
        fails(
            unsafe { millpond_pool_alloc(h.pool, usize::MAX, null_mut(), &mut none) },
            MILLPOND_E_OUT_OF_MEMORY,
        );
        let p = pool_alloc(h.pool, 700, null_mut());
        assert_eq!(book.take().len(), 1);
        fails(unsafe { millpond_free_sized(p, 701) }, MILLPOND_E_WRONG_SIZE);
        assert_eq!(book.take(), []);
        // A block that changes its size.
        ok(unsafe { millpond_try_expand(p, 1000) });
        let told: Vec<_> = book.take().iter().map(|s| (s.0, s.1, s.2)).collect();
        assert_eq!(told, [(FREE, p.addr(), 700), (ALLOC, p.addr(), 1000)]);
        free(p);
        book.take();
        unhook(h.device, id);
        for _ in 0..3 {
            free(pool_alloc(pool, 700, null_mut()));
        }
        assert_eq!(book.take(), []);
        fails(unsafe { millpond_device_remove_hook(h.device, id) }, MILLPOND_E_INVALID_ARGUMENT);
        ok(unsafe { millpond_stream_destroy(h.device, stream) });
        ok(unsafe { millpond_pool_destroy(pool) });
    });
}

#[test]
fn a_restore_is_told() {
    let h = host(true);
    let (book, pool) = (Book::default(), h.new_pool());
    let p = pool_alloc(pool, 5000, null_mut());
    let mut checkpoint = null_mut();
    ok(unsafe { millpond_pool_checkpoint(pool, &mut checkpoint) });
    free(p);
    let q = pool_alloc(pool, 100_000, null_mut());
    let id = hook(h.device, Some(note), book.data());
    ok(unsafe { millpond_pool_restore(pool, checkpoint, None, null_mut()) });
    let told: Vec<_> = book.take().iter().map(|s| (s.0, s.1, s.2)).collect();
    assert_eq!(told, [(FREE, q.addr(), 100_000), (ALLOC, p.addr(), 5000)]);
    unhook(h.device, id);
    free(p);
    ok(unsafe { millpond_checkpoint_destroy(checkpoint) });
    ok(unsafe { millpond_pool_destroy(pool) });
}

/// A hook calls the library, which needs each of its locks.
unsafe extern "C-unwind" fn meddle(data: *mut c_void, event: *const millpond_block_event) {
    let e = unsafe { *event };
    unsafe { &*data.cast::<AtomicU64>() }.fetch_add(1, SeqCst);
    let mut p = null_mut();
    ok(unsafe { millpond_pool_alloc(e.pool, 5 << 20, null_mut(), &mut p) });
    ok(unsafe { millpond_free(p) });
    let mut info: millpond_block_info = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<millpond_block_info>();
    ok(unsafe { millpond_get_block(e.ptr, &mut info) }); // live before the free, too
    ok(unsafe { millpond_device_empty_cache(e.device) });
}

#[test]
fn a_hook_may_call_everything() {
    everywhere(|h| {
        let count = AtomicU64::new(0);
        let id = hook(h.device, Some(meddle), (&raw const count).cast_mut().cast());
        for bytes in [100, 70_000, 9 << 20] {
            free(pool_alloc(h.pool, bytes, null_mut()));
            free(device_alloc(h.device, bytes));
        }
        assert_eq!(count.load(SeqCst), 12, "its own calls are not told");
        unhook(h.device, id);
    });
}

#[test]
fn each_address_comes_and_goes_in_turn() {
    everywhere(|h| {
        let book = Book::default();
        let id = hook(h.device, Some(note), book.data());
        let pool = h.pool as usize;
        std::thread::scope(|s| {
            let (give, take) = mpsc::channel::<usize>();
            for n in 0..3 {
                let give = give.clone();
                s.spawn(move || {
                    for i in 0..300 {
                        let p = pool_alloc(pool as *mut _, 600 + 100 * (i % 3), null_mut());
                        match (i + n) % 2 {
                            0 => free(p),
                            _ => give.send(p.addr()).unwrap(),
                        }
                    }
                });
            }
            drop(give);
            s.spawn(move || take.iter().for_each(|p| free(std::ptr::with_exposed_provenance_mut(p))));
        });
        let mut live = BTreeMap::new();
        let told = book.take();
        assert_eq!(told.len(), 1800);
        for (kind, at, bytes, ..) in told {
            match kind {
                ALLOC => assert_eq!(live.insert(at, bytes), None, "given twice"),
                _ => assert_eq!(live.remove(&at), Some(bytes), "freed, and not there"),
            }
        }
        assert!(live.is_empty());
        unhook(h.device, id);
    });
}

/// A hook that is removed is left by all threads, and may remove itself.
#[test]
fn removal() {
    struct Slow(AtomicU64, Mutex<mpsc::Receiver<()>>);
    unsafe extern "C-unwind" fn slow(data: *mut c_void, _: *const millpond_block_event) {
        let s = unsafe { &*data.cast::<Slow>() };
        s.0.store(1, SeqCst);
        s.1.lock().unwrap().recv().unwrap();
        s.0.store(2, SeqCst);
    }
    struct Own(*mut millpond_device, AtomicU64);
    unsafe extern "C-unwind" fn remove_me(data: *mut c_void, _: *const millpond_block_event) {
        let own = unsafe { &*data.cast::<Own>() };
        unhook(own.0, own.1.swap(0, SeqCst));
    }
    let h = host(true);
    let (go, wait) = mpsc::channel();
    let s = Slow(AtomicU64::new(0), Mutex::new(wait));
    let id = hook(h.device, Some(slow), (&raw const s).cast_mut().cast());
    let pool = h.pool as usize;
    let caller = std::thread::spawn(move || pool_alloc(pool as *mut _, 100, null_mut()).addr());
    while s.0.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    let open = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(30));
        go.send(()).unwrap();
    });
    unhook(h.device, id);
    assert_eq!(s.0.load(SeqCst), 2, "a thread was in it");
    open.join().unwrap();
    free(std::ptr::with_exposed_provenance_mut(caller.join().unwrap()));
    let own = Own(h.device, AtomicU64::new(0));
    own.1.store(hook(h.device, Some(remove_me), (&raw const own).cast_mut().cast()), SeqCst);
    free(pool_alloc(h.pool, 100, null_mut()));
    assert_eq!(own.1.load(SeqCst), 0);
}

/// What one hook removes is not called any more, not even for the event that they were told of.
#[test]
fn a_hook_may_remove_the_next_one() {
    struct Two(*mut millpond_device, AtomicU64, AtomicU64);
    unsafe extern "C-unwind" fn first(data: *mut c_void, _: *const millpond_block_event) {
        let two = unsafe { &*data.cast::<Two>() };
        unhook(two.0, two.1.load(SeqCst));
    }
    unsafe extern "C-unwind" fn second(data: *mut c_void, _: *const millpond_block_event) {
        unsafe { &*data.cast::<Two>() }.2.fetch_add(1, SeqCst);
    }
    let h = host(true);
    let two = Two(h.device, AtomicU64::new(0), AtomicU64::new(0));
    let data = (&raw const two).cast_mut().cast();
    let one = hook(h.device, Some(first), data);
    two.1.store(hook(h.device, Some(second), data), SeqCst);
    let p = pool_alloc(h.pool, 100, null_mut());
    assert_eq!(two.2.load(SeqCst), 0, "a removed hook was called");
    unhook(h.device, one);
    free(p);
}

#[test]
fn a_free_that_fails_is_taken_back() {
    let f = fixture();
    let book = Book::default();
    let p = alloc(&f, 70 << 20); // a segment of its own, which goes back at the free
    let id = hook(f.device, Some(note), book.data());
    let mut s = null_mut();
    ok(unsafe { millpond_stream_create(f.device, &mut s) });
    ok(unsafe { millpond_stream_destroy(f.device, s) });
    fails(unsafe { millpond_pool_free(f.pool, p, s) }, MILLPOND_E_UNKNOWN_STREAM);
    let kinds: Vec<_> = book.take().iter().map(|s| (s.0, s.1)).collect();
    assert_eq!(kinds, [(FREE, p.addr()), (MILLPOND_HOOK_FREE_FAILED, p.addr())]);
    ok(unsafe { millpond_free(p) });
    assert_eq!(book.take().len(), 1);
    unhook(f.device, id);
    let mut id = 0;
    let bad = MILLPOND_E_INVALID_ARGUMENT;
    fails(unsafe { millpond_device_add_hook(f.device, None, null_mut(), None, &mut id) }, bad);
    fails(unsafe { millpond_device_add_hook(null_mut(), Some(note), null_mut(), None, &mut id) }, bad);
    fails(unsafe { millpond_device_add_hook(f.device, Some(note), null_mut(), None, null_mut()) }, bad);
    assert_eq!(id, 0);
}
