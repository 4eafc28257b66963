//! Sharing by fabric handles on the device type `cuda`, over the fake driver: two processes, with and without a ticket,
//! cards and drivers that cannot, options that change, every call that fails, and bytes that are no export.

use crate::cuda::Fake;
use crate::on_cuda::*;
use crate::sharing::*;
use millpond::capi::*;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const NOT_PERMITTED: u32 = 800;
/// The head of the info, and a piece with its handle.
const HEAD: usize = 128;
const EACH: usize = 24 + 64;

const CARD: [(&str, &str); 2] = [("capacity", "256M"), ("fabric", "1")];
const CHILD: (&str, &str) = ("FAKECUDA_FABRIC", "1");

/// A driver with these settings, and devices that export so.
fn fake(settings: &[(&str, &str)], export_handle: &CStr) -> Fake {
    let fake = Fake::new(settings, |_| {});
    ok(unsafe { millpond_set_default_options(null(), -1, export_handle.as_ptr()) });
    fake
}

const FABRIC: &CStr = c"export_handle:fabric";
const AUTO: &CStr = c"export_handle:auto";
const POSIX_FD: &CStr = c"export_handle:posix_fd";

fn set(device: *mut millpond_device, options: &CStr) {
    ok(unsafe { millpond_device_set_options(device, options.as_ptr()) });
}

/// Bytes and descriptors of an export; `None` when it is unsupported, which then has a reason.
fn sizes(p: *mut c_void) -> Option<(usize, usize)> {
    let (mut bytes, mut count) = (0, 0);
    let status = unsafe { millpond_export_get_size(p, &mut bytes, &mut count) };
    let mut info = [0u8; 4096];
    if status == C_Status::SUCCESS {
        return Some((bytes, count));
    }
    fails(status, MILLPOND_E_UNSUPPORTED);
    assert!(message().contains("no fabric handles: "), "{}", message());
    fails(unsafe { millpond_export(p, info.as_mut_ptr().cast(), HEAD, &mut 0, 1) }, MILLPOND_E_UNSUPPORTED);
    None
}

/// What an export of so many granules has by fabric handles, and by descriptors.
fn by_fabric(granules: usize) -> Option<(usize, usize)> {
    Some((HEAD + EACH * granules, 1))
}

fn by_fds(granules: usize) -> Option<(usize, usize)> {
    Some((HEAD + 24 * granules, 1 + granules))
}

/// No test here: what the child of the others does.
#[test]
fn importer() {
    if !is_importer() {
        return;
    }
    let mut fake = None;
    obey(|| fake = Some(Fake::new(&CARD[..1], |_| {})));
    fake.unwrap().end();
}

#[test]
fn with_a_ticket_between_two_processes() {
    two_processes("fabric::importer", fake(&CARD, FABRIC), &[CHILD], &[1000, 5 * MIB + 100]);
}

#[test]
fn without_a_ticket_the_exporter_keeps_it_and_the_card_is_another() {
    let fake = fake(&CARD, FABRIC);
    let d = device(0);
    let bytes = 5 * MIB + 100;
    let p = take(d, bytes);
    write(d, p, &pattern(1, bytes));
    let kept = export(p);
    assert_eq!((kept.info.len(), kept.fds.len()), by_fabric(3).unwrap());
    let away = || Sent { info: kept.info.clone(), fds: Vec::new() };
    // The importer sees another card only, as one on another machine does.
    let vars = [CHILD, ("FAKECUDA_DEVICES", "2"), ("CUDA_VISIBLE_DEVICES", "1")];
    let mut other = Importer::start("fabric::importer", "cuda", away(), bytes, &vars);
    assert_eq!(other.ask("has 1"), "good");
    assert_eq!(other.ask("write 2"), "good");
    assert_eq!(read(d, p, bytes), pattern(2, bytes));
    free(p);
    assert_eq!(held(d), 1);
    let mut all = Vec::new();
    let mut q = null_mut();
    while unsafe { millpond_alloc(d, 2 * MIB, &mut q) } == C_Status::SUCCESS {
        ok(unsafe { millpond_memset(d, q, 0xEE, 2 * MIB) });
        all.push(q);
    }
    assert!(all.len() > 100);
    assert_eq!(other.ask("has 2"), "good");
    all.into_iter().for_each(free);
    assert_eq!(other.ask("close"), "good");
    assert_eq!(held(d), 1, "the exporter itself still keeps it");
    drop(kept);
    assert_eq!(held(d), 0);
    other.end();
    fake.end();
}

#[test]
fn where_there_are_none_memory_is_made_without() {
    for (setting, value, why) in [
        ("fabric", "0", "the device has none"),
        ("driver", "12020", "older than CUDA 12.3"),
        ("imex", "none", "IMEX channel"),
        ("granularity", "2M", ""),
    ] {
        let settings = [CARD[0], CARD[1], (setting, value)];
        let fake = fake(&settings, AUTO);
        let d = device(0);
        fake.calls_reset();
        let p = take(d, 5 * MIB);
        // Asked once, and tried once.
        let tries = || fake.calls("cuMemCreate") - fake.used(0) / crate::cuda::GRANULE;
        assert_eq!(tries(), u64::from(setting == "imex"), "{setting}");
        assert_eq!(fake.calls("cuDeviceGetAttribute"), 1);
        write(d, p, &pattern(3, 5 * MIB));
        let q = take(d, 9 * MIB);
        assert_eq!(fake.calls("cuDeviceGetAttribute"), 1);
        assert_eq!(tries(), u64::from(setting == "imex"));
        assert_eq!(sizes(p), if why.is_empty() { by_fabric(3) } else { by_fds(3) }, "{setting}");
        let (sent, mut there) = (export(p), null_mut());
        ok(import_to(d, &sent.info, &sent.fds, &mut there));
        assert_eq!(read(d, there, 5 * MIB), pattern(3, 5 * MIB));
        ok(unsafe { millpond_import_close(there) });
        drop(sent);
        set(d, FABRIC);
        assert_eq!(sizes(p), if why.is_empty() { by_fabric(3) } else { None });
        assert!(why.is_empty() || message().contains(why), "{}", message());
        free(p);
        free(q);
        assert_eq!(held(d), 0);
        fake.end();
    }
}

#[test]
fn who_does_not_ask_for_them_pays_nothing() {
    let calls = [("0", POSIX_FD), ("1", POSIX_FD), ("1", FABRIC)].map(|(has, option)| {
        let fake = fake(&[CARD[0], ("fabric", has)], option);
        let d = device(0);
        for _ in 0..3 {
            free(take(d, 9 * MIB));
            ok(unsafe { millpond_device_empty_cache(d) });
        }
        let calls = fake.all_calls();
        fake.end();
        calls
    });
    assert_eq!(calls[0], calls[1]);
    assert_eq!(calls[2], calls[1] + 2, "the attribute and the granularity");
}

#[test]
fn what_was_made_before_the_option_goes_by_descriptors() {
    let fake = fake(&CARD, POSIX_FD);
    let d = device(0);
    let old = take(d, 4 * MIB);
    set(d, FABRIC);
    assert_eq!(sizes(old), None);
    assert!(message().contains("before they were asked for"), "{}", message());
    let new = take(d, 4 * MIB);
    assert_eq!(sizes(new), by_fabric(2));
    set(d, AUTO);
    assert_eq!((sizes(old), sizes(new)), (by_fds(2), by_fabric(2)));
    set(d, POSIX_FD);
    assert_eq!((sizes(old), sizes(new)), (by_fds(2), by_fds(2)));
    // A block over both kinds.
    free(old);
    free(new);
    let both = take(d, 8 * MIB);
    assert_eq!(sizes(both), by_fds(4));
    set(d, AUTO);
    assert_eq!(sizes(both), by_fds(4));
    set(d, FABRIC);
    assert_eq!(sizes(both), None);
    free(both);
    // What sleeps wakes up with what is asked for then.
    let mut pool = null_mut();
    ok(unsafe { millpond_pool_create(d, null(), &mut pool) });
    set(d, POSIX_FD);
    let mut p = null_mut();
    ok(unsafe { millpond_pool_alloc(pool, 20 * MIB, null_mut(), &mut p) });
    set(d, FABRIC);
    ok(unsafe { millpond_device_empty_cache(d) });
    ok(unsafe { millpond_pool_sleep(pool, 0) });
    ok(unsafe { millpond_pool_wake(pool) });
    assert_eq!(sizes(p), by_fabric(10));
    free(p);
    ok(unsafe { millpond_pool_destroy(pool) });
    fake.end();
}

#[test]
fn memory_that_has_no_fabric_handles_says_so() {
    let fake = fake(&CARD, FABRIC);
    let mut host = null_mut();
    ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut host) });
    let p = take(host, 1000);
    assert_eq!(sizes(p), None);
    set(host, AUTO);
    assert_eq!(sizes(p).map(|s| s.1), Some(2));
    free(p);
    fake.end();
    let fake = Fake::new(&CARD, |o| o.mapping = false);
    let d = device(0);
    set(d, FABRIC);
    let p = take(d, 1000);
    assert_eq!(sizes(p), None);
    set(d, AUTO);
    assert_eq!(sizes(p), Some((HEAD, 1)));
    free(p);
    fake.end();
}

#[test]
fn every_call_may_fail() {
    let fake = fake(&CARD, FABRIC);
    let d = device(0);
    // Out of memory is that, and tried no other way; what fails both ways says nothing about the handles.
    for code in [OUT_OF_MEMORY, NOT_PERMITTED] {
        fake.calls_reset();
        fake.fail("cuMemCreate", 1, code, true);
        let mut p = null_mut();
        assert_ne!(unsafe { millpond_alloc(d, 1000, &mut p) }, C_Status::SUCCESS);
        let name = if code == OUT_OF_MEMORY { "OUT_OF_MEMORY" } else { "NOT_PERMITTED" };
        assert!(message().contains(name), "{}", message());
        fake.fail_clear();
        let p = take(d, 1000);
        assert_eq!(sizes(p), by_fabric(1));
        free(p);
        ok(unsafe { millpond_device_empty_cache(d) });
    }
    let p = take(d, 5 * MIB);
    write(d, p, &pattern(1, 5 * MIB));
    let (bytes, count) = sizes(p).unwrap();
    let (mut info, mut fds) = (vec![0u8; bytes], vec![-1; count]);
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    for nth in 1..=3 {
        fake.fail("cuMemExportToShareableHandle", nth, INVALID_VALUE, false);
        let status = unsafe { millpond_export(p, info.as_mut_ptr().cast(), bytes, fds.as_mut_ptr(), count) };
        fails(status, MILLPOND_E_INVALID_ARGUMENT);
        fake.fail_clear();
        assert_eq!(descriptors(), before);
    }
    let sent = export(p);
    let used = fake.used(0);
    for (name, calls) in [
        ("cuMemAddressReserve", 1),
        ("cuMemImportFromShareableHandle", 3),
        ("cuMemMap", 3),
        ("cuMemSetAccess", 1),
    ] {
        for nth in 1..=calls {
            let before = descriptors();
            fake.fail(name, nth, OUT_OF_MEMORY, false);
            fails(import(d, &sent), MILLPOND_E_OUT_OF_MEMORY);
            assert!(message().contains(name), "{}", message());
            fake.fail_clear();
            assert_eq!(descriptors(), before, "{name} {nth}");
        }
    }
    let mut q = null_mut();
    ok(import_to(d, &sent.info, &[], &mut q));
    assert_eq!(read(d, q, 5 * MIB), pattern(1, 5 * MIB));
    assert_eq!(fake.used(0), used);
    free(p);
    drop(sent);
    assert_eq!(held(d), 0, "an import without a ticket holds nothing");
    ok(unsafe { millpond_import_close(q) });
    fake.end();
}

#[test]
fn an_import_whose_handle_the_driver_keeps_is_undone() {
    for option in [FABRIC, POSIX_FD] {
        let fake = fake(&CARD, option);
        let d = device(0);
        let p = take(d, 5 * MIB);
        let sent = export(p);
        let ranges = || fake.leaks().lines().filter(|l| l.starts_with("range")).count();
        let before = ranges();
        for nth in 1..=3 {
            fake.fail("cuMemRelease", nth, OUT_OF_MEMORY, false);
            fails(import(d, &sent), MILLPOND_E_OUT_OF_MEMORY);
            fake.fail_clear();
            assert_eq!(ranges(), before, "{nth}");
        }
        free(p);
        drop(sent);
        assert_eq!(held(d), 0);
        fake.end_quietly(); // the driver has kept the handles
    }
}

#[test]
fn what_is_no_export_is_refused() {
    let fake = fake(&[CARD[0], CARD[1], ("devices", "2")], FABRIC);
    let d = device(0);
    let p = take(d, 3 * MIB);
    write(d, p, &pattern(9, 3 * MIB));
    let sent = export(p);
    let mut out = null_mut();
    let mut refused = |info: &[u8], fds: &[i32], code| {
        let status = import_to(d, info, fds, &mut out);
        assert!(out.is_null(), "{info:?} {fds:?}");
        fails(status, code);
    };
    let handles = HEAD + 24 * ((sent.info.len() - HEAD) / EACH);
    for n in [1, HEAD - 1, HEAD, HEAD + 24, handles, handles + 64, sent.info.len() - 1] {
        refused(&sent.info[..n], &[], MILLPOND_E_INVALID_ARGUMENT);
        refused(&sent.info[..n], &sent.fds, MILLPOND_E_INVALID_ARGUMENT);
    }
    // Another version; more descriptors; a piece of a handle that is not there; not at a granule; half a granule;
    // two handles that the driver has not given.
    let bad =
        [(8, 1), (112, 2), (HEAD, 200), (HEAD + 9, 1), (HEAD + 18, 0x10), (handles, 0), (handles + 66, 9)];
    for (at, byte) in bad {
        let mut info = sent.info.clone();
        assert_ne!(std::mem::replace(&mut info[at], byte), byte, "byte {at}");
        refused(&info, &[], MILLPOND_E_INVALID_ARGUMENT);
        refused(&sealed(info), &[], MILLPOND_E_INVALID_ARGUMENT);
    }
    // As descriptors, or as a segment.
    for kind in [1, 2, 3, 5] {
        let mut info = sent.info.clone();
        info[12] = kind;
        let info = sealed(info);
        refused(&info, &[], MILLPOND_E_INVALID_ARGUMENT);
        refused(&info, &sent.fds, MILLPOND_E_INVALID_ARGUMENT);
    }
    // What is no ticket, and too many.
    let file = std::fs::File::open("/dev/null").unwrap();
    let other = std::os::fd::AsRawFd::as_raw_fd(&file);
    refused(&sent.info, &[other], MILLPOND_E_INVALID_ARGUMENT);
    refused(&sent.info, &[sent.fds[0], sent.fds[0]], MILLPOND_E_INVALID_ARGUMENT);
    let status =
        unsafe { millpond_import(d, sent.info.as_ptr().cast(), sent.info.len(), null(), 1, &mut out) };
    fails(status, MILLPOND_E_INVALID_ARGUMENT);
    // Another IMEX channel.
    for channel in ["none", "7"] {
        assert_eq!(fake.set("imex", channel), 0);
        fails(import(d, &sent), MILLPOND_E_NOT_PERMITTED);
        assert!(message().contains("IMEX"), "{}", message());
    }
    assert_eq!(fake.set("imex", "0"), 0);
    // Descriptors cannot stay away with any other kind.
    set(d, POSIX_FD);
    let plain = export(p);
    fails(import_to(d, &plain.info, &[], &mut out), MILLPOND_E_INVALID_ARGUMENT);
    let mut host = null_mut();
    ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut host) });
    fails(import_to(host, &sent.info, &[], &mut out), MILLPOND_E_INVALID_ARGUMENT);
    // Another card of this process, which reaches it; without descriptors, as a pointer that is NULL.
    let far = device(1);
    let (at, length) = (sent.info.as_ptr().cast(), sent.info.len());
    ok(unsafe { millpond_import(far, at, length, null(), 0, &mut out) });
    assert_eq!(read(far, out, 3 * MIB), pattern(9, 3 * MIB));
    ok(unsafe { millpond_import_close(out) });
    // Memory that is gone.
    free(p);
    drop(plain);
    let info = sent.info.clone();
    drop(sent);
    ok(unsafe { millpond_device_empty_cache(d) });
    out = null_mut();
    fails(import_to(d, &info, &[], &mut out), MILLPOND_E_INVALID_ARGUMENT);
    assert!(out.is_null());
    fake.end();
}
