//! What messages say: which device was asked, which call frees what was given to another one, and no "1 blocks".

use crate::support::capi::*;
use millpond::capi::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut, without_provenance_mut};

#[test]
fn a_message_names_the_device_that_was_asked() {
    let f = fixture();
    let (mut other, mut pool) = (null_mut(), null_mut());
    ok(unsafe { millpond_device_get(c"host".as_ptr(), 1, &mut other) });
    ok(unsafe { millpond_device_get_default_pool(other, &mut pool) });
    let mut local = 0u64;
    let stranger: *mut c_void = (&raw mut local).cast();
    let nowhere = format!("no device has a live block at {stranger:?}");
    let says = |status, ending: &str| {
        fails(status, code());
        assert!(message().ends_with(ending) && !message().contains("this device"), "{}", message());
    };
    let mut info: millpond_block_info = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<millpond_block_info>();
    unsafe {
        // Whoever names no device is told of all.
        says(millpond_free(stranger), &nowhere);
        says(millpond_free_sized(stranger, 8), &nowhere);
        says(millpond_try_expand(stranger, 8), &nowhere);
        says(millpond_record_stream(stranger, null_mut()), &nowhere);
        says(millpond_get_block(stranger, &mut info), &nowhere);
        says(millpond_pool_free(f.pool, stranger, null_mut()), "is not a block of testdev:0");
        says(millpond_pool_free(pool, stranger, null_mut()), "is not a block of host:1");
        says(millpond_device_free(other, stranger), "is not a block of host:1");
        let nobody: C_Stream = without_provenance_mut(0x123_4560);
        for (pool, ending) in
            [(f.pool, "of testdev:0, or was destroyed"), (pool, "of host:1, or was destroyed")]
        {
            says(millpond_pool_alloc(pool, 8, nobody, &mut null_mut()), ending);
        }
        let p = alloc(&f, 8);
        says(millpond_pool_free(f.pool, p, nobody), "is not a stream of testdev:0, or was destroyed");
        says(millpond_record_stream(p, nobody), "is not a stream of testdev:0, or was destroyed");
        ok(millpond_free(p));
    }
}

#[test]
fn every_free_of_other_memory_says_which_call_frees_it() {
    let f = fixture();
    let (mut pinned, mut unified) = (null_mut(), null_mut());
    ok(unsafe { millpond_host_alloc(f.device, 100, &mut pinned) });
    ok(unsafe { millpond_unified_alloc(f.device, 100, &mut unified) });
    let block = alloc(&f, 100);
    let how = ["millpond_host_free frees it", "millpond_unified_free frees it", "millpond_free frees it"];
    let says = |status, how| {
        fails(status, MILLPOND_E_UNKNOWN_POINTER);
        assert!(message().ends_with(how), "{how}: {}", message());
    };
    let mut info: millpond_block_info = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<millpond_block_info>();
    // Twice: the first time the pool is not known by the first step of the ladder.
    for (p, how) in [(pinned, how[0]), (unified, how[1]), (pinned, how[0])] {
        unsafe {
            says(millpond_free(p), how);
            says(millpond_free_sized(p, 100), how);
            says(millpond_device_free(f.device, p), how);
            says(millpond_pool_free(f.pool, p, null_mut()), how);
            says(millpond_record_stream(p, null_mut()), how);
            says(millpond_get_block(p, &mut info), how);
            says(millpond_import_close(p), how);
        }
    }
    unsafe {
        says(millpond_host_free(f.device, unified), how[1]);
        says(millpond_unified_free(f.device, pinned), how[0]);
        for free in [millpond_host_free, millpond_unified_free] {
            says(free(f.device, block), how[2]);
        }
        says(millpond_import_close(block), how[2]);
        // A call that is the right one says what else is wrong.
        fails(millpond_host_free(f.device, pinned.wrapping_byte_add(1)), MILLPOND_E_UNKNOWN_POINTER);
        assert!(message().contains("not at its start"), "{}", message());
        fails(millpond_pool_free(f.pool, block.wrapping_byte_add(1), null_mut()), MILLPOND_E_UNKNOWN_POINTER);
        assert!(message().contains("inside a block"), "{}", message());
        ok(millpond_free(block));
        ok(millpond_host_free(f.device, pinned));
        ok(millpond_unified_free(f.device, unified));
    }
}

#[test]
fn one_of_something_is_no_plural() {
    let f = fixture();
    let mut pool = null_mut();
    ok(unsafe { millpond_pool_create(f.device, null(), &mut pool) });
    let mut p = null_mut();
    ok(unsafe { millpond_pool_alloc(pool, 1, null_mut(), &mut p) });
    let unknown = MILLPOND_E_UNKNOWN_POINTER;
    // `fails` looks at what each says.
    unsafe {
        fails(millpond_pool_destroy(pool), MILLPOND_E_BUSY);
        fails(millpond_device_type_unregister(NAME.as_ptr()), MILLPOND_E_BUSY);
        fails(millpond_free_sized(p, 2), MILLPOND_E_WRONG_SIZE);
        fails(millpond_pool_free(pool, p.wrapping_byte_add(1), null_mut()), unknown);
        fails(millpond_memset(f.device, p.wrapping_byte_add(1), 0, 1), MILLPOND_E_OUT_OF_RANGE);
        fails(millpond_memset(f.device, p, 0, 2), MILLPOND_E_OUT_OF_RANGE);
        fails(millpond_device_get(c"cpu".as_ptr(), 1, &mut null_mut()), MILLPOND_E_UNKNOWN_DEVICE);
        fails(millpond_device_type_get_name(0, p.cast(), 1), MILLPOND_E_INVALID_ARGUMENT);
        fails(millpond_host_register(f.device, null_mut(), 1), MILLPOND_E_INVALID_ARGUMENT);
        ok(millpond_free(p));
        ok(millpond_pool_destroy(pool));
    }
}
