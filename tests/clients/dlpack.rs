//! The deleter of an exported tensor. Its consumer calls it once, when it likes and from where it likes, and a deleter
//! cannot say no: DLPack gives it no status. So a block whose free is not possible there is freed later, by itself.

use crate::apart::{apart_for, step};
use crate::client::*;
use crate::cuda::{Fake, MIB};
use crate::slow::{self, Manner};
use millpond::capi::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// What a consumer sees of a tensor, from DLPack 1.0 on: `DLManagedTensorVersioned` up to its deleter.
#[repr(C)]
struct Managed {
    version: [u32; 2],
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut Managed),
}

/// A tensor over a block, as a number that may go to other threads.
fn export(p: u64) -> usize {
    let mut tensor = null_mut();
    let at = std::ptr::with_exposed_provenance_mut(p as usize);
    said(unsafe { millpond_dlpack_export(at, std::ptr::null(), &mut tensor) }).unwrap();
    tensor.expose_provenance()
}

/// The consumer gives the tensor back.
fn delete(tensor: usize) {
    let tensor: *mut Managed = std::ptr::with_exposed_provenance_mut(tensor);
    unsafe { ((*tensor).deleter)(tensor) }
}

/// With what a program does anyway, the block is freed before long, and its memory serves again.
#[track_caller]
fn check_freed(d: Dev, kept: u64) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        d.synchronize().unwrap();
        let p = d.pool().alloc(MIB, 0).unwrap();
        d.pool().free(p, 0).unwrap();
        if start.elapsed() > Duration::from_secs(1) {
            d.empty_cache().unwrap();
        }
        if d.stats().unwrap().blocks.current == kept {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let s = d.stats().unwrap();
    let (blocks, bytes) = (s.blocks.current - kept, s.allocated_bytes.current);
    panic!("{blocks} blocks live for ever, with {bytes} bytes");
}

fn open(backend: &str) -> (Fake, Dev) {
    let fake = cuda("1", &[]);
    default_options("cuda", &format!("backend:{backend}"));
    let d = device("cuda", 0);
    (fake, d)
}

/// Three tensors come back inside callbacks of a stream: over a block of it, one without a stream, one of another
/// stream.
fn in_a_stream_callback(backend: &str) {
    let (_fake, d) = open(backend);
    let (s, t) = (d.stream(), d.stream());
    let blocks = [d.pool().alloc(3 * MIB, s), d.alloc(3 * MIB), d.pool().alloc(3 * MIB, t)];
    for p in blocks {
        let tensor = export(p.unwrap());
        let (tell, told) = channel();
        d.callback(s, move |_| {
            delete(tensor);
            tell.send(()).unwrap();
        })
        .unwrap();
        told.recv().unwrap();
    }
    step("afterwards");
    d.stream_sync(s).unwrap();
    check_freed(d, 0);
}

/// In a stream callback CUDA allows no call of its driver, which each free of this backend is.
#[test]
fn a_block_whose_tensor_comes_back_in_a_stream_callback_is_freed_without_a_pool() {
    apart_for(60, || in_a_stream_callback("none"));
}

#[test]
fn a_block_whose_tensor_comes_back_in_a_stream_callback_is_freed_by_the_drivers_pool() {
    apart_for(60, || in_a_stream_callback("cudaMallocAsync"));
}

#[test]
fn a_block_whose_tensor_comes_back_in_a_stream_callback_is_freed_by_our_pools() {
    apart_for(60, || in_a_stream_callback("native"));
}

/// A tensor comes back in a segment callback: a library that registers memory drops what it had cached of the range.
fn in_a_segment_callback(kind: &str) {
    static TENSOR: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C-unwind" fn told(_: *mut c_void, _: u32, _: *mut c_void, _: usize) {
        match TENSOR.swap(0, SeqCst) {
            0 => {}
            tensor => delete(tensor),
        }
    }
    let _fake = (kind == "cuda").then(|| cuda("1", &[]));
    if kind == "host" {
        configure_host(64 * MIB, true);
    }
    let d = device(kind, 0);
    let s = d.stream();
    let mut id = 0;
    said(unsafe { millpond_device_add_segment_callback(d.0, Some(told), null_mut(), &mut id) }).unwrap();
    for p in [d.pool().alloc(3 * MIB, s), d.alloc(3 * MIB)] {
        TENSOR.store(export(p.unwrap()), SeqCst);
        step("memory comes");
        let more = d.pool().alloc(20 * MIB, s).unwrap();
        assert_eq!(TENSOR.load(SeqCst), 0, "nothing was told, so the test shows nothing");
        d.pool().free(more, s).unwrap();
        d.empty_cache().unwrap();
    }
    check_freed(d, 0);
}

#[test]
fn a_block_whose_tensor_comes_back_in_a_segment_callback_is_freed() {
    apart_for(60, || in_a_segment_callback("cuda"));
}

#[test]
fn a_block_of_the_host_whose_tensor_comes_back_in_a_segment_callback_is_freed() {
    apart_for(60, || in_a_segment_callback("host"));
}

/// The exporter's own release is called there as anywhere: what it may do is its own affair.
#[test]
fn a_release_is_called_in_a_segment_callback() {
    static TENSOR: AtomicUsize = AtomicUsize::new(0);
    static RELEASED: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C-unwind" fn told(_: *mut c_void, _: u32, _: *mut c_void, _: usize) {
        match TENSOR.swap(0, SeqCst) {
            0 => {}
            tensor => delete(tensor),
        }
    }
    unsafe extern "C-unwind" fn release(data: *mut c_void) {
        RELEASED.store(data.addr(), SeqCst);
    }
    apart_for(60, || {
        configure_host(64 * MIB, true);
        let d = device("host", 0);
        let p = d.alloc(3 * MIB).unwrap();
        let mut options: millpond_dlpack_options = unsafe { std::mem::zeroed() };
        options.struct_size = size_of::<millpond_dlpack_options>();
        options.release = Some(release);
        options.user_data = std::ptr::without_provenance_mut(7);
        let mut tensor = null_mut();
        let at = std::ptr::with_exposed_provenance_mut(p as usize);
        said(unsafe { millpond_dlpack_export(at, &options, &mut tensor) }).unwrap();
        TENSOR.store(tensor.expose_provenance(), SeqCst);
        let mut id = 0;
        said(unsafe { millpond_device_add_segment_callback(d.0, Some(told), null_mut(), &mut id) }).unwrap();
        d.pool().alloc(20 * MIB, 0).unwrap();
        assert_eq!((TENSOR.load(SeqCst), RELEASED.load(SeqCst)), (0, 7));
        free(p).unwrap();
    });
}

/// What is to be freed later does not stand against the end of its pool, nor of its type.
#[test]
fn a_tensor_that_came_back_does_not_keep_its_pool_or_its_type_busy() {
    static TENSORS: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());
    unsafe extern "C-unwind" fn told(_: *mut c_void, _: u32, _: *mut c_void, _: usize) {
        let all = std::mem::take(&mut *TENSORS.lock().unwrap());
        all.into_iter().for_each(delete);
    }
    apart_for(60, || {
        for min_chunk in [512, 4 << 20] {
            slow::register(Manner { min_chunk, ..Manner::default() }, |_| ()).unwrap();
            let d = device(slow::NAME, 0);
            let pool = d.make_pool().unwrap();
            let pooled = min_chunk == 512;
            if pooled {
                let mut id = 0;
                said(unsafe { millpond_device_add_segment_callback(d.0, Some(told), null_mut(), &mut id) })
                    .unwrap();
                let blocks = [pool.alloc(MIB, 0).unwrap(), d.alloc(MIB).unwrap()];
                TENSORS.lock().unwrap().extend(blocks.map(export));
                let more = d.pool().alloc(30 * MIB, 0).unwrap();
                assert_eq!(TENSORS.lock().unwrap().len(), 0, "nothing was told, so the test shows nothing");
                d.pool().free(more, 0).unwrap();
            }
            pool.destroy().unwrap();
            if pooled {
                let last = export(d.alloc(MIB).unwrap());
                TENSORS.lock().unwrap().push(last);
                // Memory goes back at the free, and is told of.
                d.empty_cache().unwrap();
                let own = d.pool().alloc(30 * MIB, 0).unwrap();
                d.pool().free(own, 0).unwrap();
                assert_eq!(TENSORS.lock().unwrap().len(), 0);
            }
            unregister(slow::NAME).unwrap();
            assert_eq!((slow::held(), slow::faults()), (0, vec![]));
        }
    });
}

/// The device does not take the memory back at that moment: a block that is a segment of its own, and one that is not
/// pooled. It is offered again.
fn the_device_refuses_once(manner: Manner, bytes: u64) {
    /// The address that is refused once.
    static REFUSE: AtomicU64 = AtomicU64::new(0);
    slow::register(manner, |t| {
        unsafe extern "C-unwind" fn deallocate(
            d: millpond::paddle::abi::C_Device,
            p: *mut c_void,
            size: usize,
        ) -> C_Status {
            let this = p.expose_provenance() as u64;
            if REFUSE.compare_exchange(this, 0, SeqCst, SeqCst).is_ok() {
                return C_Status::FAILED;
            }
            unsafe { slow::device_memory_deallocate(d, p, size) }
        }
        t.device_memory_deallocate = Some(deallocate);
    })
    .unwrap();
    let d = device(slow::NAME, 0);
    let p = d.alloc(bytes).unwrap();
    let tensor = export(p);
    REFUSE.store(p, SeqCst);
    delete(tensor);
    check_freed(d, 0);
    assert_eq!(REFUSE.load(SeqCst), 0, "the plugin was not asked, so the test shows nothing");
    unregister(slow::NAME).unwrap();
    assert_eq!(slow::held(), 0);
}

#[test]
fn a_large_block_whose_tensor_comes_back_while_the_device_refuses_is_freed_later() {
    apart_for(60, || the_device_refuses_once(Manner::default(), 20 * MIB));
}

#[test]
fn an_unpooled_block_whose_tensor_comes_back_while_the_device_refuses_is_freed_later() {
    apart_for(60, || the_device_refuses_once(Manner { min_chunk: 4 << 20, ..Manner::default() }, 8 * MIB));
}

/// Many threads give tensors back at a time, beside requests of their device.
#[test]
fn tensors_come_back_on_many_threads() {
    apart_for(60, || {
        let (_fake, d) = open("native");
        let d = Arc::new(d);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..50 {
                        delete(export(d.alloc(MIB).unwrap()));
                    }
                });
            }
        });
        check_freed(*d, 0);
    });
}
