//! DLPack through the C API: the fields of an export, ownership, and the errors of bad tensors.

use crate::support::capi::*;
use millpond::capi::*;
use std::ffi::c_void;
use std::mem::zeroed;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// The layout as a consumer has it, written from the standard and not from the library.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    flags: u64,
    tensor: Tensor,
}

#[repr(C)]
struct Old {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Old)>,
}

fn options() -> millpond_dlpack_options {
    millpond_dlpack_options { struct_size: size_of::<millpond_dlpack_options>(), ..unsafe { zeroed() } }
}

fn empty_view() -> millpond_dlpack_view {
    millpond_dlpack_view { struct_size: size_of::<millpond_dlpack_view>(), ..unsafe { zeroed() } }
}

fn export(ptr: *mut c_void, options: &millpond_dlpack_options) -> *mut Managed {
    let mut out = null_mut();
    ok(unsafe { millpond_dlpack_export(ptr, options, &mut out) });
    out.cast()
}

fn refused(ptr: *mut c_void, options: &millpond_dlpack_options, want: u32) {
    let mut out = null_mut();
    fails(unsafe { millpond_dlpack_export(ptr, options, &mut out) }, want);
    assert!(out.is_null());
}

fn delete(t: *mut Managed) {
    unsafe { (*t).deleter.unwrap()(t) }
}

fn host() -> *mut millpond_device {
    let mut device = null_mut();
    ok(unsafe { millpond_device_get(c"host".as_ptr(), 1, &mut device) });
    device
}

fn block(device: *mut millpond_device, bytes: usize) -> *mut c_void {
    let mut p = null_mut();
    ok(unsafe { millpond_alloc(device, bytes, &mut p) });
    p
}

fn blocks(device: *mut millpond_device) -> u64 {
    device_stats(device).blocks.current
}

#[test]
fn an_export_owns_the_block_until_its_deleter() {
    let f = fixture();
    let device = host();
    let p = block(device, 1000);
    let t = export(p, &options());
    {
        let m = unsafe { &*t };
        assert_eq!(m.version, [1, 1]);
        assert_eq!((m.tensor.data, m.tensor.byte_offset, m.flags), (p, 0, 0));
        assert!(!m.context.is_null(), "PaddlePaddle calls no deleter without a context");
        assert_eq!((m.tensor.device_type, m.tensor.device_id), (1, 0), "host memory is kDLCPU, 0");
        assert_eq!((m.tensor.code, m.tensor.bits, m.tensor.lanes, m.tensor.ndim), (1, 8, 1, 1));
        assert_eq!(unsafe { (*m.tensor.shape, *m.tensor.strides) }, (1000, 1));
    }
    assert_eq!(blocks(device), 1);
    delete(t);
    assert_eq!(blocks(device), 0);

    // A plugin's device is kDLExtDev with its ordinal, unless the caller knows better.
    let q = alloc(&f, 64);
    let t = export(q, &options());
    assert_eq!(unsafe { ((*t).tensor.device_type, (*t).tensor.device_id) }, (12, 0));
    ok(unsafe { millpond_dlpack_destroy(t.cast()) });
    let q = alloc(&f, 64);
    let t = export(q, &millpond_dlpack_options { device_type: 10, ..options() });
    assert_eq!(unsafe { (*t).tensor.device_type }, 10);
    delete(t);
    assert_eq!(blocks(f.device), 0);
}

#[test]
fn an_export_describes_what_was_asked_for() {
    let _f = fixture();
    let device = host();
    let p = block(device, 4 * 3 * 5 + 8);
    let (shape, strides) = ([3_i64, 5], [1_i64, 3]);
    let o = millpond_dlpack_options {
        dtype_code: 2,
        dtype_bits: 32,
        ndim: 2,
        shape: shape.as_ptr(),
        strides: strides.as_ptr(),
        byte_offset: 8,
        flags: 3,
        ..options()
    };
    let t = export(p, &o);
    let mut v = empty_view();
    ok(unsafe { millpond_dlpack_get_view(device, t.cast(), &mut v) });
    assert_eq!(v.data, p.wrapping_byte_add(8));
    assert_eq!((v.start, v.size_bytes, v.element_count, v.is_compact), (v.data, 60, 15, 0));
    assert_eq!(unsafe { (*t).tensor.byte_offset }, 0, "not every consumer adds it");
    assert_eq!((v.dtype_code, v.dtype_bits, v.dtype_lanes, v.flags), (2, 32, 1, 3));
    assert_eq!((v.block, v.device, v.ndim), (p, device, 2));
    assert_eq!(unsafe { (*v.shape.add(1), *v.strides.add(1)) }, (5, 3));
    delete(t);

    // One element, and none at all.
    let p = block(device, 4);
    let t = export(p, &millpond_dlpack_options { ndim: 0, byte_offset: 0, ..o });
    refused(p, &o, MILLPOND_E_OUT_OF_RANGE);
    assert_eq!(unsafe { (*t).tensor.ndim }, 0);
    delete(t);
}

#[test]
fn the_old_layout_does_the_same() {
    let _f = fixture();
    let device = host();
    let p = block(device, 64);
    let mut out = null_mut();
    let flagged = millpond_dlpack_options { flags: 1, ..options() };
    fails(unsafe { millpond_dlpack_export_legacy(p, &flagged, &mut out) }, MILLPOND_E_INVALID_ARGUMENT);
    ok(unsafe { millpond_dlpack_export_legacy(p, null(), &mut out) });
    let t: *mut Old = out.cast();
    assert_eq!(unsafe { ((*t).tensor.data, *(*t).tensor.shape) }, (p, 64));
    let mut v = empty_view();
    ok(unsafe { millpond_dlpack_get_view_legacy(null(), out, &mut v) });
    assert_eq!((v.block, v.size_bytes, v.flags), (p, 64, 0));
    unsafe { (*t).deleter.unwrap()(t) };
    assert_eq!(blocks(device), 0);
    let p = block(device, 64);
    ok(unsafe { millpond_dlpack_export_legacy(p, null(), &mut out) });
    ok(unsafe { millpond_dlpack_destroy_legacy(out) });
    assert_eq!(blocks(device), 0);
    ok(unsafe { millpond_dlpack_destroy_legacy(null_mut()) });
    ok(unsafe { millpond_dlpack_destroy(null_mut()) });
}

#[test]
fn an_owner_may_keep_its_block() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C-unwind" fn release(data: *mut c_void) {
        CALLS.fetch_add(data.addr() as u32, SeqCst);
    }
    let _f = fixture();
    let device = host();
    let p = block(device, 64);
    let o = millpond_dlpack_options {
        release: Some(release),
        user_data: std::ptr::without_provenance_mut(7),
        ..options()
    };
    delete(export(p, &o));
    delete(export(p, &o));
    assert_eq!((CALLS.load(SeqCst), blocks(device)), (14, 1));
    ok(unsafe { millpond_free(p) });
}

#[test]
fn a_deleter_may_come_late_and_from_anywhere() {
    let _f = fixture();
    let device = host();
    let (first, second) = (export(block(device, 64), &options()), export(block(device, 64), &options()));
    let (first, second) = (first.expose_provenance(), second.expose_provenance());
    let delete_at = |addr: usize| delete(std::ptr::with_exposed_provenance_mut(addr));
    std::thread::spawn(move || delete_at(first)).join().unwrap();
    assert_eq!(blocks(device), 1);
    millpond::runtime::finalize().unwrap();
    // The same address may be another block's by now: the late deleter must not touch that one.
    let again = host();
    let same: Vec<_> = (0..8).map(|_| block(again, 64)).collect();
    delete_at(second);
    assert_eq!(blocks(again), 8);
    for p in same {
        ok(unsafe { millpond_free(p) });
    }
}

#[test]
fn a_bad_export_leaves_the_block_with_the_caller() {
    let f = fixture();
    let device = host();
    let p = block(device, 100);
    let (bad, range) = (MILLPOND_E_INVALID_ARGUMENT, MILLPOND_E_OUT_OF_RANGE);
    let one = [50_i64];
    let good = millpond_dlpack_options {
        dtype_code: 0,
        dtype_bits: 16,
        dtype_lanes: 1,
        ndim: 1,
        shape: one.as_ptr(),
        ..options()
    };
    unsafe {
        fails(millpond_dlpack_export(p, &good, null_mut()), bad);
        fails(millpond_dlpack_export_legacy(p, &good, null_mut()), bad);
        fails(millpond_dlpack_export(p, &good, std::ptr::without_provenance_mut(4)), bad);
    }
    refused(null_mut(), &good, bad);
    refused(p.wrapping_byte_add(8), &good, MILLPOND_E_UNKNOWN_POINTER);
    refused((&raw const one).cast_mut().cast(), &good, MILLPOND_E_UNKNOWN_POINTER);
    refused(p, &millpond_dlpack_options { struct_size: 0, ..good }, bad);
    refused(p, &millpond_dlpack_options { ndim: -1, ..good }, bad);
    refused(p, &millpond_dlpack_options { ndim: 65, ..good }, bad);
    refused(p, &millpond_dlpack_options { shape: null(), ..good }, bad);
    refused(p, &millpond_dlpack_options { shape: one.as_ptr().wrapping_byte_add(1), ..good }, bad);
    refused(p, &millpond_dlpack_options { dtype_bits: 0, ..good }, bad);
    refused(p, &millpond_dlpack_options { flags: 8, ..good }, bad);
    refused(p, &millpond_dlpack_options { device_type: u32::MAX, ..good }, bad);
    for (shape, stride, offset, want) in [
        (51, 1, 0, range),
        (50, 1, 1, range),
        (2, 50, 0, range),
        (2, -1, 0, range),
        (-2, 1, 0, bad),
        (i64::MAX, i64::MAX, 0, range),
        (1, 1, 101, range),
        (1, 1, u64::MAX, range),
    ] {
        let (shape, strides) = ([shape], [stride]);
        let o = millpond_dlpack_options {
            shape: shape.as_ptr(),
            strides: strides.as_ptr(),
            byte_offset: offset,
            ..good
        };
        refused(p, &o, want);
    }
    // The device of the fixture cannot be touched by the host, and says so.
    let q = alloc(&f, 64);
    let mut info: millpond_device_info = unsafe { zeroed() };
    info.struct_size = size_of::<millpond_device_info>();
    ok(unsafe { millpond_device_get_info(f.device, &mut info) });
    if info.caps & MILLPOND_CAP_HOST_ACCESS == 0 {
        refused(q, &millpond_dlpack_options { device_type: 1, ..options() }, MILLPOND_E_UNSUPPORTED);
    }
    ok(unsafe { millpond_free(q) });
    ok(unsafe { millpond_free(p) });
    refused(p, &good, MILLPOND_E_UNKNOWN_POINTER);
    millpond::runtime::finalize().unwrap();
    refused(p, &good, MILLPOND_E_NOT_INITIALIZED);
}

#[test]
fn a_tensor_of_somebody_is_checked() {
    static DELETED: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn deleter(_: *mut Managed) {
        DELETED.fetch_add(1, SeqCst);
    }
    let f = fixture();
    let device = host();
    let mut data = [0_u32; 12];
    let (mut shape, mut strides) = ([3_i64, 4], [4_i64, 1]);
    let mut t = Managed {
        version: [1, 3],
        context: null_mut(),
        deleter: Some(deleter),
        flags: 1 << 40, // a later minor version may have more
        tensor: Tensor {
            data: (&raw mut data).cast(),
            device_type: 1,
            device_id: 0,
            ndim: 2,
            code: 1,
            bits: 32,
            lanes: 1,
            shape: shape.as_mut_ptr(),
            strides: strides.as_mut_ptr(),
            byte_offset: 0,
        },
    };
    let mut v = empty_view();
    let look = |t: &Managed, on: *mut millpond_device| {
        let mut v = empty_view();
        unsafe { millpond_dlpack_get_view(on, (&raw const *t).cast(), &mut v) }
    };
    ok(unsafe { millpond_dlpack_get_view(device, (&raw const t).cast(), &mut v) });
    assert_eq!((v.data, v.size_bytes, v.is_compact), (t.tensor.data, 48, 1));
    assert!(v.block.is_null() && v.pool.is_null() && v.device.is_null(), "the memory is not ours");

    let (bad, range) = (MILLPOND_E_INVALID_ARGUMENT, MILLPOND_E_OUT_OF_RANGE);
    unsafe {
        fails(millpond_dlpack_get_view(device, null(), &mut v), bad);
        fails(millpond_dlpack_get_view(device, std::ptr::without_provenance(12), &mut v), bad);
        fails(millpond_dlpack_get_view(device, (&raw const t).cast(), null_mut()), bad);
        fails(millpond_dlpack_get_view_legacy(device, null(), &mut v), bad);
        fails(millpond_dlpack_destroy(std::ptr::without_provenance_mut(12)), bad);
    }
    // The host device's work cannot use a GPU's memory, nor the test device the processor's.
    t.tensor.device_type = 2;
    fails(look(&t, device), bad);
    ok(look(&t, null_mut()));
    t.tensor.device_type = 3;
    ok(look(&t, device));
    t.tensor.device_type = 1;
    fails(look(&t, f.device), bad);
    t.tensor.device_type = 12;
    ok(look(&t, f.device));
    t.tensor.device_id = 1;
    fails(look(&t, f.device), bad);
    (t.tensor.device_type, t.tensor.device_id) = (1, 0);

    t.tensor.ndim = -1;
    fails(look(&t, device), bad);
    t.tensor.ndim = 65;
    fails(look(&t, device), bad);
    t.tensor.ndim = 2;
    t.tensor.lanes = 0;
    fails(look(&t, device), bad);
    t.tensor.lanes = 1;
    t.tensor.shape = null_mut();
    fails(look(&t, device), bad);
    t.tensor.shape = shape.as_mut_ptr();
    t.tensor.byte_offset = u64::MAX - 4;
    fails(look(&t, device), range);
    t.tensor.byte_offset = 0;
    t.tensor.data = null_mut();
    fails(look(&t, device), bad);
    unsafe { *t.tensor.shape = 0 };
    ok(look(&t, device));
    t.version = [2, 0];
    fails(look(&t, device), MILLPOND_E_UNSUPPORTED);
    assert_eq!(DELETED.load(SeqCst), 0, "a refused tensor stays the caller's");
    ok(unsafe { millpond_dlpack_destroy((&raw mut t).cast()) });
    assert_eq!(DELETED.load(SeqCst), 1);
    t.deleter = None;
    ok(unsafe { millpond_dlpack_destroy((&raw mut t).cast()) });
}

#[test]
fn a_block_of_ours_is_recognised_and_guarded() {
    let f = fixture();
    let device = host();
    let p = block(device, 4096);
    let t = export(p, &options());
    let mut v = empty_view();
    unsafe { *(*t).tensor.shape = 4000 };
    unsafe { (*t).tensor.byte_offset = 96 };
    ok(unsafe { millpond_dlpack_get_view(device, t.cast(), &mut v) });
    assert_eq!((v.block, v.device), (p, device));
    ok(unsafe { millpond_record_stream(v.block, null_mut()) });
    fails(unsafe { millpond_dlpack_get_view(f.device, t.cast(), &mut v) }, MILLPOND_E_INVALID_ARGUMENT);
    // A consumer that changed the shape for the worse.
    unsafe { *(*t).tensor.shape = 4001 };
    fails(unsafe { millpond_dlpack_get_view(device, t.cast(), &mut v) }, MILLPOND_E_OUT_OF_RANGE);
    delete(t);
}
