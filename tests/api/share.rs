//! Memory of the host device between two real processes: contents, lifetimes beyond the exporter's free, importers
//! that die, and bytes and descriptors that are wrong.

use crate::sharing::*;
use millpond::capi::*;
use millpond::runtime;
use std::ffi::c_void;
use std::ptr::{null, null_mut, without_provenance};
use std::sync::MutexGuard;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

struct Host {
    device: *mut millpond_device,
    pool: *mut millpond_pool,
    _alone: MutexGuard<'static, ()>,
}

fn host() -> Host {
    let guard = crate::support::alone();
    let _ = runtime::finalize();
    let (mut device, mut pool) = (null_mut(), null_mut());
    ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut device) });
    ok(unsafe { millpond_device_get_default_pool(device, &mut pool) });
    Host { device, pool, _alone: guard }
}

impl Host {
    fn take(&self, bytes: usize) -> *mut c_void {
        let mut p = null_mut();
        ok(unsafe { millpond_pool_alloc(self.pool, bytes, null_mut(), &mut p) });
        p
    }
    fn free(&self, p: *mut c_void) {
        ok(unsafe { millpond_pool_free(self.pool, p, null_mut()) });
    }
    fn held(&self) -> (usize, u64) {
        let (mut n, mut bytes) = (0, 0);
        ok(unsafe { millpond_device_poll_exports(self.device, &mut n, &mut bytes) });
        (n, bytes)
    }
    fn active(&self) -> u64 {
        let mut s: millpond_stats = unsafe { std::mem::zeroed() };
        s.struct_size = size_of::<millpond_stats>();
        ok(unsafe { millpond_device_get_stats(self.device, &mut s) });
        s.active_bytes.current
    }
    fn importer(&self, p: *mut c_void, bytes: usize) -> Importer {
        Importer::start("share::importer", "host", export(p), bytes, &[])
    }
    /// Blocks of many sizes, written full: whatever is free is used.
    fn fill_up(&self) -> Vec<*mut c_void> {
        let sizes = [100, KIB, 3 * KIB, 20 * KIB, 300 * KIB, MIB, 2 * MIB, 5 * MIB];
        let all: Vec<_> = (0..64).map(|i| (self.take(sizes[i % 8]), sizes[i % 8])).collect();
        for (p, n) in &all {
            ok(unsafe { millpond_memset(self.device, *p, 0xEE, *n) });
        }
        all.into_iter().map(|(p, _)| p).collect()
    }
}

/// No test here: what the child of the others does.
#[test]
fn importer() {
    if is_importer() {
        obey(|| {});
    }
}

#[test]
fn contents_go_both_ways_for_every_kind_of_block() {
    let h = host();
    // Two granules that lie apart: fill what there is, and make two holes.
    ok(unsafe { millpond_device_set_limit(h.device, 8 * MIB as u64) });
    let parts: Vec<_> = (0..4).map(|_| h.take(2 * MIB)).collect();
    h.free(parts[0]);
    h.free(parts[2]);
    let scattered = h.take(4 * MIB);
    ok(unsafe { millpond_device_set_limit(h.device, 0) });
    // With others before and behind it in its granule.
    let _before = h.take(700);
    let (small, large) = (h.take(KIB), h.take(5 * MIB + 12345));
    let _behind = h.take(700);
    assert!(export(scattered).info.len() > export(large).info.len(), "it has more pieces");
    for (n, (p, bytes)) in
        [(small, KIB), (large, 5 * MIB + 12345), (scattered, 4 * MIB)].into_iter().enumerate()
    {
        let seed = n as u64;
        write(h.device, p, &pattern(seed, bytes));
        let mut other = h.importer(p, bytes);
        assert_eq!(other.ask(&format!("has {seed}")), "good");
        assert_eq!(other.ask("write 77"), "good");
        assert_eq!(read(h.device, p, bytes), pattern(77, bytes));
        assert_eq!(other.ask("fill 9"), "good");
        assert_eq!(read(h.device, p, bytes), vec![9; bytes]);
        other.end();
        h.free(p);
        assert_eq!(h.held(), (0, 0));
    }
}

#[test]
fn the_memory_is_not_used_again_before_the_importer_is_done() {
    let h = host();
    for (bytes, end) in [(KIB, "close"), (KIB, "end"), (KIB, "kill"), (3 * MIB, "close"), (3 * MIB, "kill")] {
        let _neighbour = h.take(600);
        let before = h.active();
        let p = h.take(bytes);
        write(h.device, p, &pattern(5, bytes));
        let mut other = h.importer(p, bytes);
        h.free(p);
        fails(unsafe { millpond_free(p) }, MILLPOND_E_DOUBLE_FREE);
        let (n, held) = h.held();
        assert!(n == 1 && held >= bytes as u64, "{n} {held}");
        assert_eq!(h.active(), before + held);
        let filled = h.fill_up();
        ok(unsafe { millpond_device_empty_cache(h.device) });
        assert_eq!(other.ask("has 5"), "good", "{bytes} bytes");
        filled.into_iter().for_each(|p| h.free(p));
        match end {
            "close" => {
                assert_eq!(other.ask("close"), "good");
                assert_eq!(h.held(), (0, 0));
                other.end();
            }
            "kill" => other.kill(),
            _ => other.end(),
        }
        assert_eq!(h.held(), (0, 0), "{end}");
        assert_eq!(h.active(), before);
    }
}

#[test]
fn several_importers_and_the_one_that_sends_all_count() {
    let h = host();
    let p = h.take(10 * KIB);
    write(h.device, p, &pattern(1, 10 * KIB));
    let (one, mut two) = (h.importer(p, 10 * KIB), h.importer(p, 10 * KIB));
    let kept = export(p);
    h.free(p);
    assert_eq!(h.held().0, 1);
    one.kill();
    assert_eq!(h.held().0, 1);
    assert_eq!(two.ask("has 1"), "good");
    two.end();
    assert_eq!(h.held().0, 1, "the exporter has descriptors that it did not close");
    // Here too: a second address of the same memory.
    let mut again = null_mut();
    ok(import_to(h.device, &kept.info, &kept.fds, &mut again));
    drop(kept);
    assert_eq!(h.held().0, 1);
    assert_eq!(read(h.device, again, 10 * KIB), pattern(1, 10 * KIB));
    let mut device = null_mut();
    ok(unsafe { millpond_import_close(again) });
    assert_eq!(h.held(), (0, 0));
    fails(unsafe { millpond_free(again) }, MILLPOND_E_UNKNOWN_POINTER);
    ok(unsafe { millpond_device_get(c"host".as_ptr(), 0, &mut device) });
    // Importers that have ended before the free cost nothing.
    let p = h.take(KIB);
    h.importer(p, KIB).end();
    h.free(p);
    assert_eq!(h.held(), (0, 0));
}

#[test]
fn a_forked_child_holds_what_it_inherits() {
    let h = host();
    let p = h.take(KIB);
    let sent = export(p);
    let child = match unsafe { libc::fork() } {
        0 => {
            unsafe { libc::alarm(60) }; // if the test fails, it does not stay
            loop {
                unsafe { libc::pause() };
            }
        }
        pid => pid,
    };
    drop(sent);
    h.free(p);
    assert_eq!(h.held().0, 1, "the child has copies");
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert_eq!(unsafe { libc::waitpid(child, &mut 0, 0) }, child);
    assert_eq!(h.held(), (0, 0));
}

#[test]
fn nothing_waits_for_importers() {
    let h = host();
    unsafe { libc::alarm(60) };
    let mut stream = null_mut();
    ok(unsafe { millpond_stream_create(h.device, &mut stream) });
    let (a, b) = (h.take(3 * MIB), h.take(3 * MIB));
    let before = h.active();
    let other = h.importer(a, 3 * MIB);
    // Both wait for the stream; the first one in the queue is exported.
    for p in [a, b] {
        ok(unsafe { millpond_record_stream(p, stream) });
        ok(unsafe { millpond_memset_async(h.device, stream, p, 1, 3 * MIB) });
        h.free(p);
    }
    ok(unsafe { millpond_stream_synchronize(h.device, stream) });
    assert_eq!(before - h.active(), 3 * MIB as u64, "the one behind it has come back");
    ok(unsafe { millpond_device_empty_cache(h.device) });
    ok(unsafe { millpond_device_synchronize(h.device) });
    ok(unsafe { millpond_stream_destroy(h.device, stream) });
    assert_eq!(h.held().0, 1);
    other.kill();
    // A request that finds nothing looks too.
    ok(unsafe { millpond_device_set_limit(h.device, 4 * MIB as u64) });
    let p = h.take(4 * MIB);
    h.free(p);
    unsafe { libc::alarm(0) };
}

#[test]
fn what_would_take_it_away_is_refused() {
    let h = host();
    let mut pool = null_mut();
    ok(unsafe { millpond_pool_create(h.device, null(), &mut pool) });
    let mut p = null_mut();
    let mut checkpoint = null_mut();
    ok(unsafe { millpond_pool_checkpoint(pool, &mut checkpoint) });
    ok(unsafe { millpond_pool_alloc(pool, 10 * KIB, null_mut(), &mut p) });
    write(h.device, p, &pattern(3, 10 * KIB));
    let mut other = h.importer(p, 10 * KIB);
    let restore = || unsafe { millpond_pool_restore(pool, checkpoint, None, null_mut()) };
    fails(unsafe { millpond_pool_sleep(pool, 0) }, MILLPOND_E_BUSY);
    fails(restore(), MILLPOND_E_BUSY);
    ok(unsafe { millpond_pool_free(pool, p, null_mut()) });
    fails(unsafe { millpond_pool_sleep(pool, 0) }, MILLPOND_E_BUSY);
    fails(restore(), MILLPOND_E_BUSY);
    fails(unsafe { millpond_pool_destroy(pool) }, MILLPOND_E_BUSY);
    assert_eq!(other.ask("has 3"), "good");
    other.kill();
    ok(restore());
    ok(unsafe { millpond_pool_sleep(pool, 0) });
    let (mut bytes, mut count) = (0, 0);
    fails(unsafe { millpond_export_get_size(p, &mut bytes, &mut count) }, MILLPOND_E_UNKNOWN_POINTER);
    ok(unsafe { millpond_checkpoint_destroy(checkpoint) });
    ok(unsafe { millpond_pool_destroy(pool) });
}

#[test]
fn the_end_of_the_exporters_library_leaves_importers_their_memory() {
    let h = host();
    let p = h.take(3 * MIB);
    write(h.device, p, &pattern(8, 3 * MIB));
    let mut other = h.importer(p, 3 * MIB);
    ok(millpond_finalize());
    drop(h);
    let h = host();
    h.fill_up();
    assert_eq!(other.ask("has 8"), "good");
    assert_eq!(other.ask("write 9"), "good");
    assert_eq!(h.held(), (0, 0), "a new device knows nothing of it");
    other.end();
}

#[test]
fn wrong_bytes_and_descriptors_get_a_status() {
    let h = host();
    let p = h.take(KIB);
    let good = export(p);
    let invalid = |info: &[u8], fds: &[i32]| {
        let mut out = null_mut();
        fails(import_to(h.device, info, fds, &mut out), MILLPOND_E_INVALID_ARGUMENT);
        assert!(out.is_null() && !message().is_empty());
    };
    invalid(&good.info[..good.info.len() - 1], &good.fds);
    invalid(&good.info[..7], &good.fds);
    invalid(&[0; 144], &good.fds);
    invalid(&good.info, &good.fds[..1]);
    invalid(&good.info, &[good.fds[0], good.fds[1], good.fds[1]]);
    invalid(&good.info, &[good.fds[1], good.fds[0]]);
    invalid(&good.info, &[good.fds[0], good.fds[0]]);
    invalid(&good.info, &[good.fds[1], good.fds[1]]);
    invalid(&good.info, &[good.fds[0], -1]);
    invalid(&good.info, &[good.fds[0], 9999]);
    // A file that could shrink under the importer, and one that is too short.
    let plain = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let fd = |f: &std::fs::File| std::os::fd::AsRawFd::as_raw_fd(f);
    invalid(&good.info, &[good.fds[0], fd(&plain)]);
    let loose: std::fs::File = unsafe {
        std::os::fd::FromRawFd::from_raw_fd(libc::memfd_create(c"x".as_ptr(), libc::MFD_ALLOW_SEALING))
    };
    loose.set_len(1 << 40).unwrap();
    invalid(&good.info, &[good.fds[0], fd(&loose)]);
    assert_eq!(unsafe { libc::fcntl(fd(&loose), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) }, 0);
    let mut other = null_mut();
    ok(import_to(h.device, &good.info, &[good.fds[0], fd(&loose)], &mut other));
    ok(unsafe { millpond_import_close(other) });
    let short: std::fs::File = unsafe {
        std::os::fd::FromRawFd::from_raw_fd(libc::memfd_create(c"x".as_ptr(), libc::MFD_ALLOW_SEALING))
    };
    short.set_len(4096).unwrap();
    assert_eq!(unsafe { libc::fcntl(fd(&short), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) }, 0);
    invalid(&good.info, &[good.fds[0], fd(&short)]);
    // Each byte of it changed: the checksum tells.
    for at in 0..good.info.len() {
        for value in [0, 1, 0x80, 0xFF] {
            let mut info = good.info.clone();
            if std::mem::replace(&mut info[at], value) != value {
                invalid(&info, &good.fds);
            }
            // With a checksum that fits again, it means something or nothing.
            let mut out = null_mut();
            if import_to(h.device, &sealed(info), &good.fds, &mut out) == C_Status::SUCCESS {
                ok(unsafe { millpond_memset(h.device, out, 0, 1) });
                ok(unsafe { millpond_import_close(out) });
            }
        }
    }
    let mut out = null_mut();
    let import = millpond_import;
    let (info, n) = (good.info.as_ptr().cast(), good.info.len());
    let bad = MILLPOND_E_INVALID_ARGUMENT;
    fails(unsafe { import(h.device, null(), n, good.fds.as_ptr(), 2, &mut out) }, bad);
    fails(unsafe { import(h.device, info, n, null(), 2, &mut out) }, bad);
    fails(unsafe { import(h.device, info, n, good.fds.as_ptr(), 2, null_mut()) }, bad);
    fails(unsafe { import(null_mut(), info, n, good.fds.as_ptr(), 2, &mut out) }, bad);
    fails(unsafe { millpond_import_close(p) }, MILLPOND_E_UNKNOWN_POINTER);
    fails(unsafe { millpond_import_close(null_mut()) }, MILLPOND_E_UNKNOWN_POINTER);
    // The exporter's side.
    let (mut bytes, mut count) = (0, 0);
    let size = millpond_export_get_size;
    fails(unsafe { size(null(), &mut bytes, &mut count) }, bad);
    fails(unsafe { size(without_provenance(4096), &mut bytes, &mut count) }, MILLPOND_E_UNKNOWN_POINTER);
    fails(unsafe { size(p.wrapping_byte_add(8), &mut bytes, &mut count) }, MILLPOND_E_UNKNOWN_POINTER);
    fails(unsafe { size(p, null_mut(), &mut count) }, bad);
    let (mut info, mut fds) = (vec![0u8; n + 1], vec![-1; 3]);
    let to = info.as_mut_ptr().cast();
    fails(unsafe { millpond_export(p, to, n + 1, fds.as_mut_ptr(), 2) }, bad);
    fails(unsafe { millpond_export(p, to, n, fds.as_mut_ptr(), 3) }, bad);
    fails(unsafe { millpond_export(p, null_mut(), n, fds.as_mut_ptr(), 2) }, bad);
    fails(unsafe { millpond_export(p, to, n, null_mut(), 2) }, bad);
    assert_eq!(fds, [-1; 3]);
    drop(good);
    h.free(p);
    assert_eq!(h.held(), (0, 0), "what failed holds nothing");
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn exports_that_are_over_keep_no_descriptors() {
    let h = host();
    let p = h.take(MIB);
    drop(export(p));
    let before = open_descriptors();
    for _ in 0..200 {
        drop(export(p)); // nobody took it
    }
    assert!(open_descriptors() <= before + 1, "{before} descriptors became {}", open_descriptors());
    // Of many blocks: they are looked at when descriptors run short.
    let blocks: Vec<_> = (0..40).map(|_| h.take(KIB)).collect();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
    let few = libc::rlimit { rlim_cur: open_descriptors() as u64 + 10, ..limit };
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &few) }, 0);
    for &b in &blocks {
        drop(export(b));
    }
    // Those in use are not ended for it.
    let mut held = Vec::new();
    let refused = loop {
        let (mut bytes, mut count) = (0, 0);
        ok(unsafe { millpond_export_get_size(p, &mut bytes, &mut count) });
        let (mut info, mut fds) = (vec![0u8; bytes], vec![-1; count]);
        let got = unsafe { millpond_export(p, info.as_mut_ptr().cast(), bytes, fds.as_mut_ptr(), count) };
        if got != C_Status::SUCCESS {
            break got;
        }
        held.push(Sent { info, fds });
        assert!(held.len() < 100);
    };
    fails(refused, MILLPOND_E_SYSTEM);
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    assert!(held.len() > 1, "{}", held.len());
    h.free(p);
    assert_eq!(h.held().0, 1);
    drop(held);
    assert_eq!(h.held().0, 0);
    blocks.into_iter().for_each(|b| h.free(b));
}

#[test]
fn devices_that_cannot_say_so() {
    let h = host();
    let (mut cpu, mut p) = (null_mut(), null_mut());
    ok(unsafe { millpond_device_get(c"cpu".as_ptr(), 0, &mut cpu) });
    ok(unsafe { millpond_alloc(cpu, 100, &mut p) });
    let (mut bytes, mut count) = (0, 0);
    ok(unsafe { millpond_export_get_size(p, &mut bytes, &mut count) });
    let (mut info, mut fds) = (vec![0u8; bytes], vec![-1; count]);
    let got = unsafe { millpond_export(p, info.as_mut_ptr().cast(), bytes, fds.as_mut_ptr(), count) };
    fails(got, MILLPOND_E_UNSUPPORTED);
    ok(unsafe { millpond_free(p) });
    // Devices of one kind share their memory; others do not.
    let (mut other, mut can) = (null_mut(), false);
    ok(unsafe { millpond_device_get(c"host".as_ptr(), 1, &mut other) });
    ok(unsafe { millpond_device_can_access_peer(h.device, other, &mut can) });
    assert!(can);
    ok(unsafe { millpond_device_enable_peer_access(h.device, other) });
    ok(unsafe { millpond_device_can_access_peer(h.device, cpu, &mut can) });
    assert!(!can);
    fails(unsafe { millpond_device_enable_peer_access(h.device, cpu) }, MILLPOND_E_UNSUPPORTED);
    let null_out = unsafe { millpond_device_can_access_peer(h.device, cpu, null_mut()) };
    fails(null_out, MILLPOND_E_INVALID_ARGUMENT);
}
