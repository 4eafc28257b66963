//! Sharing on the device type `cuda`, over the fake driver: two processes with granules and with segments, every
//! call that fails, and access from other devices.

use crate::cuda::{Fake, GRANULE};
use crate::on_cuda::*;
use crate::sharing::*;
use millpond::capi::*;
use std::ffi::c_void;
use std::ptr::null_mut;

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;

const MAPPED: [(&str, &str); 1] = [("capacity", "256M")];
const SEGMENTS: &str = "MILLPOND_TEST_SEGMENTS";

/// No test here: what the child of the others does.
#[test]
fn importer() {
    if !is_importer() {
        return;
    }
    let mut fake = None;
    obey(|| {
        let maps = std::env::var_os(SEGMENTS).is_none();
        fake = Some(Fake::new(&MAPPED, |o| o.mapping = maps));
    });
    fake.unwrap().end();
}

#[test]
fn granules_between_two_processes() {
    two_processes("share::importer", Fake::new(&MAPPED, |_| {}), &[], &[1000, 5 * MIB + 100]);
}

/// What a network card's driver would find in a dma-buf.
fn bytes_in(fd: i32, offset: u64, bytes: usize) -> Vec<u8> {
    let mut seen = vec![0; bytes];
    assert_eq!(unsafe { libc::pread(fd, seen.as_mut_ptr().cast(), bytes, offset as i64) }, bytes as isize);
    seen
}

fn dmabuf(p: *const c_void, bytes: usize) -> Result<(i32, u64), C_Status> {
    let (mut fd, mut offset) = (-1, u64::MAX);
    match unsafe { millpond_export_dmabuf(p, bytes, &mut fd, &mut offset) } {
        C_Status::SUCCESS => Ok((fd, offset)),
        status => {
            assert_eq!((fd, offset), (-1, u64::MAX), "outputs are written on success only");
            Err(status)
        }
    }
}

#[test]
fn a_part_of_a_block_as_a_dma_buf() {
    for mapping in [true, false] {
        let fake = Fake::new(&MAPPED, |o| o.mapping = mapping);
        let d = device(0);
        for bytes in [700, 5000, 5 * MIB + 100] {
            let _neighbour = take(d, 1000);
            let p = take(d, bytes);
            let content = pattern(4, bytes);
            write(d, p, &content);
            for (skip, part) in [(0, bytes), (bytes / 3, bytes / 2)] {
                let (fd, offset) = dmabuf(p.wrapping_byte_add(skip), part).unwrap();
                assert!(offset < 4096);
                assert_eq!(bytes_in(fd, offset, part), content[skip..skip + part]);
                assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, libc::FD_CLOEXEC);
                assert_eq!(unsafe { libc::close(fd) }, 0);
            }
            assert!(dmabuf(p, 0).is_err() && dmabuf(p, usize::MAX).is_err());
            assert!(dmabuf(p.wrapping_byte_add(1), 8 * MIB).is_err(), "past the block");
            free(p);
            assert!(dmabuf(p, bytes).is_err());
        }
        fake.end_quietly();
    }
}

/// Where driver or device have none, and where a dma-buf has the memory of one handle only: then a block of a contiguous
/// pool is what remains.
#[test]
fn dma_bufs_that_are_refused() {
    let large = 5 * MIB;
    for (settings, whole, reason) in [
        (("no_dmabuf", "1"), false, "exports no dma-buf"),
        (("driver", "11060"), false, "exports no dma-buf"),
        (("one_dmabuf", "1"), true, "contiguous pool"),
        (("most_fds", "0"), false, "OPERATING_SYSTEM"),
    ] {
        let fake = Fake::new(&[MAPPED[0], settings], |_| {});
        let d = device(0);
        let p = take(d, large);
        assert!(dmabuf(p, large).is_err(), "{settings:?}");
        let said = runtime_message();
        assert!(said.contains(reason), "{settings:?}: {said}");
        let options = millpond_pool_options {
            struct_size: size_of::<millpond_pool_options>(),
            limit_bytes: 0,
            name: std::ptr::null(),
            flags: MILLPOND_POOL_CONTIGUOUS,
        };
        let (mut pool, mut q) = (null_mut(), null_mut());
        ok(unsafe { millpond_pool_create(d, &options, &mut pool) });
        ok(unsafe { millpond_pool_alloc(pool, large, null_mut(), &mut q) });
        let got = dmabuf(q, large);
        assert_eq!(got.is_ok(), whole, "{settings:?}");
        if let Ok((fd, _)) = got {
            assert_eq!(unsafe { libc::close(fd) }, 0);
        }
        fake.end_quietly();
    }
}

fn runtime_message() -> String {
    unsafe { std::ffi::CStr::from_ptr(millpond_last_error_message()) }.to_string_lossy().into_owned()
}

/// A block of a contiguous pool is one descriptor, wherever in it the block lies.
#[test]
fn a_contiguous_block_between_two_processes() {
    let fake = Fake::new(&MAPPED, |_| {});
    let d = device(0);
    let options = millpond_pool_options {
        struct_size: size_of::<millpond_pool_options>(),
        limit_bytes: 0,
        name: std::ptr::null(),
        flags: MILLPOND_POOL_CONTIGUOUS,
    };
    let mut pool = null_mut();
    ok(unsafe { millpond_pool_create(d, &options, &mut pool) });
    let mut blocks = Vec::new();
    for bytes in [3 * MIB, 5 * MIB + 100, 20 * MIB] {
        let mut p = null_mut();
        ok(unsafe { millpond_pool_alloc(pool, bytes, null_mut(), &mut p) });
        let (mut info, mut count) = (0, 0);
        ok(unsafe { millpond_export_get_size(p, &mut info, &mut count) });
        let sent = export(p);
        assert_eq!((count, sent.fds.len(), sent.info.len()), (2, 2, info), "the ticket and one handle");
        write(d, p, &pattern(4, bytes));
        let mut other = Importer::start("share::importer", "cuda", sent, bytes, &[]);
        assert_eq!(other.ask("has 4"), "good");
        assert_eq!(other.ask("write 5"), "good");
        assert_eq!(read(d, p, bytes), pattern(5, bytes));
        assert_eq!(other.ask("close"), "good");
        other.end();
        blocks.push(p);
    }
    blocks.into_iter().for_each(free);
    ok(unsafe { millpond_pool_destroy(pool) });
    fake.end();
}

#[test]
fn segments_between_two_processes() {
    // The last one is a segment of its own.
    let fake = Fake::new(&MAPPED, |o| o.mapping = false);
    two_processes("share::importer", fake, &[(SEGMENTS, "1")], &[1000, 5 * MIB + 100, 70 * MIB]);
}

#[test]
fn a_segment_is_not_opened_in_its_own_process() {
    let fake = Fake::new(&MAPPED, |o| o.mapping = false);
    let d = device(0);
    let p = take(d, 1000);
    let sent = export(p);
    assert_ne!(import(d, &sent), C_Status::SUCCESS);
    assert!(message().contains("another process"), "{}", message());
    drop(sent);
    free(p);
    assert_eq!(held(d), 0);
    fake.end();
}

#[test]
fn every_call_may_fail() {
    let fake = Fake::new(&MAPPED, |_| {});
    let d = device(0);
    let p = take(d, 5 * MIB);
    write(d, p, &pattern(1, 5 * MIB));
    let (mut bytes, mut count) = (0, 0);
    ok(unsafe { millpond_export_get_size(p, &mut bytes, &mut count) });
    assert!(count > 3, "a descriptor for each granule and one more");
    let (mut info, mut fds) = (vec![0u8; bytes], vec![-1; count]);
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    for name in ["cuMemExportToShareableHandle", "cuDeviceGetUuid_v2"] {
        let before = descriptors();
        for nth in 1..=if name.starts_with("cuMem") { 3 } else { 1 } {
            fake.fail(name, nth, INVALID_VALUE, false);
            let to = info.as_mut_ptr().cast();
            let status = unsafe { millpond_export(p, to, bytes, fds.as_mut_ptr(), count) };
            fails(status, MILLPOND_E_INVALID_ARGUMENT);
            assert!(message().contains("CUDA_ERROR_INVALID_VALUE"), "{}", message());
            fake.fail_clear();
        }
        assert_eq!(descriptors(), before, "{name}");
    }
    let sent = export(p);
    let calls = [
        "cuDeviceGetUuid_v2",
        "cuMemAddressReserve",
        "cuMemImportFromShareableHandle",
        "cuMemMap",
        "cuMemSetAccess",
    ];
    for name in calls {
        for nth in 1..=if ["cuMemImportFromShareableHandle", "cuMemMap"].contains(&name) { 3 } else { 1 } {
            let before = descriptors();
            fake.fail(name, nth, OUT_OF_MEMORY, false);
            fails(import(d, &sent), MILLPOND_E_OUT_OF_MEMORY);
            assert!(message().contains(name.trim_end_matches("_v2")), "{}", message());
            fake.fail_clear();
            assert_eq!(descriptors(), before, "{name} {nth}");
        }
    }
    let mut q = null_mut();
    ok(import_to(d, &sent.info, &sent.fds, &mut q));
    assert_eq!(read(d, q, 5 * MIB), pattern(1, 5 * MIB));
    free(p);
    drop(sent);
    assert_eq!(held(d), 1);
    // One that stays open goes with the device.
    fake.end();
}

#[test]
fn wrong_cards_and_drivers_that_cannot() {
    let fake = Fake::new(&[("capacity", "64M"), ("devices", "2")], |_| {});
    let p = take(device(0), 5 * MIB);
    let sent = export(p);
    fails(import(device(1), &sent), MILLPOND_E_INVALID_ARGUMENT);
    assert!(message().contains("card"), "{}", message());
    let mut host = null_mut();
    ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut host) });
    fails(import(host, &sent), MILLPOND_E_INVALID_ARGUMENT);
    // A descriptor that the driver does not know; one granule behind several addresses is allowed.
    let mut fds = sent.fds.clone();
    fds[2] = fds[0];
    let mut out = null_mut();
    assert_ne!(import_to(device(0), &sent.info, &fds, &mut out), C_Status::SUCCESS);
    drop(sent);
    // What the host shares is not for this device.
    let q = take(host, 100);
    fails(import(device(0), &export(q)), MILLPOND_E_INVALID_ARGUMENT);
    fake.end();

    let fake = Fake::new(&[("capacity", "64M"), ("no_fd", "1")], |_| {});
    let p = take(device(0), 100);
    let (mut bytes, mut count) = (0, 0);
    ok(unsafe { millpond_export_get_size(p, &mut bytes, &mut count) });
    let (mut info, mut fds) = (vec![0u8; bytes], vec![-1; count]);
    let status = unsafe { millpond_export(p, info.as_mut_ptr().cast(), bytes, fds.as_mut_ptr(), count) };
    fails(status, MILLPOND_E_UNSUPPORTED);
    free(p);
    assert_eq!(held(device(0)), 0);
    fake.end();
}

#[test]
fn access_from_another_device() {
    for maps in [true, false] {
        let fake = Fake::new(&[("capacity", "64M"), ("devices", "2")], |o| o.mapping = maps);
        ok(unsafe { millpond_set_default_options(c"cuda".as_ptr(), -1, c"peer_access:off".as_ptr()) });
        let (near, far) = (device(0), device(1));
        let p = take(near, 3 * MIB);
        write(near, p, &pattern(2, 3 * MIB));
        let seen = |p: *mut c_void| fake.read(1, p.addr() as u64, 64);
        // The fake's `cuMemAlloc` memory is open to copies, and so to this, at any time.
        let closed = |p| !maps || seen(p).is_err();
        assert!(closed(p), "no access yet");
        let mut can = false;
        ok(unsafe { millpond_device_can_access_peer(near, far, &mut can) });
        assert!(can && closed(p), "asking opens nothing");
        let call = if maps { "cuMemSetAccess" } else { "cuCtxEnablePeerAccess" };
        fake.fail(call, 1, OUT_OF_MEMORY, true);
        fails(unsafe { millpond_device_enable_peer_access(near, far) }, MILLPOND_E_OUT_OF_MEMORY);
        fake.fail_clear();
        assert!(closed(p));
        fake.calls_reset();
        for _ in 0..2 {
            ok(unsafe { millpond_device_enable_peer_access(near, far) });
            assert_eq!(seen(p).unwrap(), pattern(2, 64));
        }
        assert!(fake.calls("cuCtxEnablePeerAccess") > 0);
        let later = take(near, 7 * MIB);
        write(near, later, &pattern(3, 7 * MIB));
        let end = later.wrapping_byte_add(6 * MIB); // its start lies in a granule that was there
        assert_eq!(seen(end).unwrap(), pattern(3, 7 * MIB)[6 * MIB..][..64], "memory that came later");
        assert!(!maps || fake.read(0, take(far, 100).addr() as u64, 64).is_err(), "not the other way");
        ok(unsafe { millpond_device_enable_peer_access(near, near) });
        let mut host = null_mut();
        ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut host) });
        fails(unsafe { millpond_device_enable_peer_access(near, host) }, MILLPOND_E_UNSUPPORTED);
        fake.end();
    }
    let fake = Fake::new(&[("capacity", "64M"), ("devices", "2"), ("no_peer", "1")], |_| {});
    let mut can = true;
    ok(unsafe { millpond_device_can_access_peer(device(0), device(1), &mut can) });
    assert!(!can);
    fails(unsafe { millpond_device_enable_peer_access(device(0), device(1)) }, MILLPOND_E_UNSUPPORTED);
    fake.end();
}

#[test]
fn imported_memory_is_open_to_the_same_peers() {
    let fake = Fake::new(&[("capacity", "64M"), ("devices", "2")], |_| {});
    ok(unsafe { millpond_set_default_options(c"cuda".as_ptr(), -1, c"peer_access:off".as_ptr()) });
    let (near, far) = (device(0), device(1));
    let p = take(near, 1000);
    write(near, p, &pattern(6, 1000));
    let (sent, mut early, mut late) = (export(p), null_mut(), null_mut());
    ok(import_to(near, &sent.info, &sent.fds, &mut early));
    ok(unsafe { millpond_device_enable_peer_access(near, far) });
    ok(import_to(near, &sent.info, &sent.fds, &mut late));
    for q in [early, late] {
        assert_eq!(fake.read(1, q.addr() as u64, 64).unwrap(), pattern(6, 64));
        ok(unsafe { millpond_import_close(q) });
    }
    assert!(GRANULE as usize > 1000);
    fake.end();
}

#[test]
fn segment_callbacks_see_what_the_driver_refuses() {
    let fake = Fake::new(&MAPPED, |_| {});
    let d = device(0);
    unsafe extern "C-unwind" fn count(data: *mut c_void, event: u32, _: *mut c_void, bytes: usize) {
        let live = unsafe { &mut *data.cast::<i64>() };
        *live += if event == MILLPOND_SEGMENT_ADDED { bytes as i64 } else { -(bytes as i64) };
    }
    let live = Box::into_raw(Box::new(0i64));
    let mut id = 0;
    ok(unsafe { millpond_device_add_segment_callback(d, Some(count), live.cast(), &mut id) });
    let now = || unsafe { live.read() };
    let p = take(d, 5 * MIB);
    assert_eq!(now(), 6 * MIB as i64);
    for name in ["cuMemCreate", "cuMemMap", "cuMemSetAccess"] {
        fake.fail(name, 2, OUT_OF_MEMORY, true);
        let mut q = null_mut();
        let failed = unsafe { millpond_alloc(d, 7 * MIB, &mut q) } != C_Status::SUCCESS;
        fake.fail_clear();
        if !failed {
            free(q);
        }
        ok(unsafe { millpond_device_empty_cache(d) });
        assert_eq!(now(), 6 * MIB as i64, "{name}");
    }
    free(p);
    // All is unmapped by one call; INVALID_VALUE would be followed by an attempt for each granule.
    const LAUNCH_FAILED: u32 = 719;
    for (name, nth, code) in [("cuMemUnmap", 1, LAUNCH_FAILED), ("cuMemRelease", 2, INVALID_VALUE)] {
        fake.fail(name, nth, code, false);
        assert_ne!(unsafe { millpond_device_empty_cache(d) }, C_Status::SUCCESS);
        fake.fail_clear();
        assert_eq!(now(), 6 * MIB as i64, "{name}: it is there again");
    }
    ok(unsafe { millpond_device_empty_cache(d) });
    assert_eq!(now(), 0);
    ok(unsafe { millpond_device_remove_segment_callback(d, id) });
    drop(unsafe { Box::from_raw(live) });
    fake.end();
}
