//! A CUDA driver that may be missing, old, broken or shared with other code: finding it, counting devices without
//! starting it, forks, contexts, streams created elsewhere, captures, and a device that fails.

use crate::cuda::*;
use crate::{apart, compilers};
use millpond::runtime::{self, CopyKind, PoolId};
use millpond::{Code, Error};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, mpsc};

const POOL: PoolId = PoolId::DEFAULT;

/// There are no devices, and the reason has these words.
#[track_caller]
fn absent(words: &[&str]) {
    assert!(runtime::type_names().unwrap().contains(&"cuda".to_owned()), "the type is listed all the same");
    let before = runtime::absence("cuda").unwrap();
    assert_eq!(runtime::device_count("cuda").unwrap(), 0);
    let e = runtime::device("cuda", 0).err().unwrap();
    assert_eq!(e.code(), Code::UnknownDevice);
    let why = runtime::absence("cuda").unwrap().unwrap();
    for text in [&why, e.message()].into_iter().chain(before.as_deref()) {
        words.iter().for_each(|w| assert!(text.contains(w), "{w:?} is not in {text:?}"));
    }
    // The host does not mind.
    runtime::device("host", 0).unwrap();
}

#[test]
fn no_driver() {
    let fake = Fake::raw(&[]);
    fake.configure(|o| o.library = Some("/nowhere/libcuda.so.1".into()));
    absent(&["no CUDA driver", "/nowhere/libcuda.so.1"]);
    fake.end();
}

#[test]
fn a_library_that_is_no_driver() {
    let fake = Fake::raw(&[]);
    fake.configure(|o| o.library = Some("libm.so.6".into()));
    absent(&["lacks cuInit"]);
    fake.end();
}

#[test]
fn a_driver_that_is_too_old() {
    let fake = Fake::raw(&[("driver", "11030")]);
    let scratch = compilers::Scratch::new("cuda-too-old");
    let copy = scratch.path("link.so");
    std::os::unix::fs::symlink(library(), &copy).unwrap();
    fake.configure(|o| o.library = Some(copy.clone().into()));
    absent(&["CUDA 11.3", "11.4 or newer"]);
    fake.end();
}

#[test]
fn a_driver_without_a_function_that_is_needed() {
    // A copy, so that it is loaded anew.
    let fake = Fake::raw(&[("missing", "cuMemCreate,cuMemMap")]);
    let scratch = compilers::Scratch::new("cuda-missing");
    let copy = scratch.path("link.so");
    std::os::unix::fs::symlink(library(), &copy).unwrap();
    fake.configure(|o| o.library = Some(copy.clone().into()));
    absent(&["lacks cuMemCreate", "missing functions: 2"]);
    fake.end();
}

#[test]
fn drivers_that_serve() {
    let scratch = compilers::Scratch::new("cuda-old");
    for (i, settings) in [
        &[("driver", "11040")][..],
        &[("driver", "12000")],
        &[("driver", "13000")],
        &[("no_proc_address", "1")],
        &[("missing", "cuCtxRecordEvent")],
    ]
    .into_iter()
    .enumerate()
    {
        let fake = Fake::raw(settings);
        let copy = scratch.path(&format!("{i}.so"));
        std::os::unix::fs::symlink(library(), &copy).unwrap();
        fake.configure(|o| o.library = Some(copy.clone().into()));
        let d = runtime::device("cuda", 0).unwrap();
        let at = d.memory().alloc_unordered(POOL, 3 * MIB).unwrap();
        d.write(at, b"hello").unwrap();
        assert_eq!(fake.read(0, at, 5).unwrap(), b"hello");
        d.memory().free(at, None, None).unwrap();
        fake.end();
    }
}

#[test]
fn a_driver_without_a_device() {
    let fake = Fake::new(&[("devices", "0")], |_| {});
    absent(&["CUDA_ERROR_NO_DEVICE"]);
    fake.end();
}

#[test]
fn a_driver_that_does_not_start() {
    let fake = Fake::new(&[], |_| {});
    fake.fail("cuInit", 1, 803, true);
    absent(&["cuInit", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "803"]);
    // Once it is repaired, the library starts anew.
    fake.fail_clear();
    runtime::finalize().unwrap();
    fake.configure(|_| {});
    runtime::device("cuda", 0).unwrap();
    fake.end();
}

#[test]
fn an_error_that_nobody_knows() {
    let (fake, d) = one(&[]);
    fake.fail("cuMemGetInfo_v2", 1, 77_777, false);
    let e = d.info().unwrap_err();
    assert_eq!(e.code(), Code::Device);
    assert!(e.message().contains("cuMemGetInfo_v2") && e.message().contains("77777"), "{e}");
    fake.end();
}

/// A management library of three GPUs.
fn nvml(scratch: &compilers::Scratch) -> std::path::PathBuf {
    let source = scratch.write(
        "nvml.c",
        "int nvmlInit_v2(void);\nint nvmlInit_v2(void) { return 0; }\n\
         int nvmlShutdown(void);\nint nvmlShutdown(void) { return 0; }\n\
         int nvmlDeviceGetCount_v2(unsigned *n);\nint nvmlDeviceGetCount_v2(unsigned *n) { *n = 3; return 0; }\n\
         int nvmlDeviceGetHandleByIndex_v2(unsigned i, char **d);\n\
         int nvmlDeviceGetHandleByIndex_v2(unsigned i, char **d) { static char c[3]; *d = c + i; return 0; }\n\
         int nvmlDeviceGetUUID(char *d, char *to, unsigned n);\n\
         int nvmlDeviceGetUUID(char *d, char *to, unsigned n) {\n\
         (void)d; (void)n; to[0] = 'G'; to[1] = 'P'; to[2] = 'U'; to[3] = '-'; to[4] = 'a'; to[5] = 0; return 0; }\n",
    );
    let library = scratch.path("libnvml-test.so");
    compilers::compile_ok("-std=c11", &source, &["-shared", "-fPIC", "-o", library.to_str().unwrap()]);
    library
}

#[test]
fn counting_does_not_start_cuda() {
    let scratch = compilers::Scratch::new("cuda-count");
    let gpus = nvml(&scratch);
    let fake = Fake::new(&[("devices", "2")], |o| o.nvml = Some(gpus.clone().into()));
    fake.calls_reset();
    assert_eq!(runtime::device_count("cuda").unwrap(), 3, "as the management library says");
    assert_eq!(runtime::absence("cuda").unwrap(), None);
    assert_eq!(fake.calls("cuInit"), 0);
    // Opening a device starts the driver, and then CUDA itself is asked.
    runtime::device("cuda", 1).unwrap();
    assert_eq!(runtime::device_count("cuda").unwrap(), 2);
    assert_eq!(runtime::device("cuda", 2).err().unwrap().code(), Code::UnknownDevice);
    fake.end();
    // Where nobody else can tell, CUDA is started.
    let fake = Fake::new(&[("devices", "2")], |o| o.nvml = Some("/nowhere/libnvml.so".into()));
    assert_eq!(runtime::device_count("cuda").unwrap(), 2);
    assert_eq!(fake.calls("cuInit"), 1);
    fake.end();
}

#[test]
fn a_program_that_never_uses_cuda_never_loads_it() {
    let fake = Fake::new(&[], |_| {});
    fake.calls_reset();
    let d = runtime::device("host", 0).unwrap();
    let at = d.memory().alloc(POOL, 0, MIB).unwrap();
    d.memory().free(at, None, None).unwrap();
    runtime::type_names().unwrap();
    assert_eq!(fake.all_calls(), 0);
    fake.end();
}

/// Forks, runs `body` in the child, and returns whether it came out true.
fn forked(body: impl FnOnce() -> bool) -> bool {
    match unsafe { libc::fork() } {
        0 => {
            unsafe { libc::alarm(20) };
            let good = body();
            unsafe { libc::_exit(i32::from(!good)) }
        }
        pid => {
            let mut status = -1;
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            status == 0
        }
    }
}

#[test]
fn forks() {
    // In a process of its own, which has not used anything yet.
    const CASE: &str = "MILLPOND_TEST_CASE";
    if std::env::var_os(CASE).is_none() {
        let out = apart::program("driver::forks").env(CASE, "fork").output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        return;
    }
    let scratch = compilers::Scratch::new("cuda-fork");
    let gpus = nvml(&scratch);
    let fake = Fake::new(&[("capacity", "64M")], |o| o.nvml = Some(gpus.clone().into()));
    assert_eq!(runtime::device_count("cuda").unwrap(), 3);
    runtime::device_count("host").unwrap();
    // A process that has only counted devices may use CUDA in a child.
    assert!(forked(|| {
        let Ok(d) = runtime::device("cuda", 0) else { return false };
        let Ok(at) = d.memory().alloc(POOL, 0, MIB) else { return false };
        d.write(at, b"child").is_ok()
            && runtime::device("host", 0).is_ok_and(|h| h.memory().alloc(POOL, 0, 100).is_ok())
    }));
    let d = runtime::device("cuda", 0).unwrap();
    let at = d.memory().alloc(POOL, 0, MIB).unwrap();
    let refused = |r: Result<(), Error>| r.err().map(|e| e.code()) == Some(Code::NotPermitted);
    assert!(forked(|| {
        d.memory().alloc(POOL, 0, 40 * MIB).is_err()
            && refused(d.synchronize())
            && refused(d.memset(at, 1, 1))
            && refused(runtime::device("cuda", 0).map(drop))
            && refused(runtime::finalize())
    }));
    d.memory().free(at, None, None).unwrap();
    fake.end();
}

#[test]
fn the_callers_context_stays_current() {
    let (fake, d) = one(&[("devices", "2")]);
    let mut other = 0_u64;
    let create: extern "C" fn(*mut u64, u32, i32) -> u32 = fake.driver("cuCtxCreate_v2");
    let destroy: extern "C" fn(u64) -> u32 = fake.driver("cuCtxDestroy_v2");
    let everything = || {
        let s = d.streams().create().unwrap();
        let at = d.memory().alloc(POOL, s, 10 * MIB).unwrap();
        d.memset_async(s, at, 1, MIB).unwrap();
        d.write(at, b"x").unwrap();
        let e = d.events().create().unwrap();
        d.events().record(s, e).unwrap();
        d.events().synchronize(e).unwrap();
        d.memory().free(at, Some(s), None).unwrap();
        d.memory().empty_cache(None).unwrap();
        d.streams().destroy(s).unwrap();
        d.events().destroy(e).unwrap();
        let h = d.host_memory().alloc(100).unwrap();
        d.host_memory().free(h).unwrap();
        // Failures too.
        assert!(d.events().query(e).is_err());
        fake.fail("cuMemAllocManaged", 1, 2, false);
        assert!(d.unified_memory().alloc(1 << 20).is_err());
        d.info().unwrap();
        let peer = runtime::device("cuda", 1).unwrap();
        let (a, b) = (d.memory().alloc(POOL, 0, MIB).unwrap(), peer.memory().alloc(POOL, 0, MIB).unwrap());
        d.copy_peer(&peer, b, a, MIB).unwrap();
        d.memory().free(a, None, None).unwrap();
        peer.memory().free(b, None, None).unwrap();
    };
    assert_eq!(fake.current(), 0);
    everything();
    assert_eq!(fake.current(), 0, "none was current, and one is left");
    assert_eq!(create(&mut other, 0, 1), 0);
    assert_eq!(fake.current(), other);
    everything();
    assert_eq!(fake.current(), other);
    runtime::finalize().unwrap();
    assert_eq!(fake.current(), other);
    assert_eq!(destroy(other), 0);
    fake.end_quietly();
}

#[test]
fn only_primary_contexts_are_used_and_shared() {
    let (fake, d) = one(&[]);
    let at = d.memory().alloc(POOL, 0, MIB).unwrap();
    assert_eq!(fake.calls("cuCtxCreate_v2") + fake.calls("cuDevicePrimaryCtxReset_v2"), 0);
    // A framework that retains the primary context keeps it beyond our end.
    let mut context = 0_u64;
    let retain: extern "C" fn(*mut u64, i32) -> u32 = fake.driver("cuDevicePrimaryCtxRetain");
    assert_eq!(retain(&mut context, 0), 0);
    d.memory().free(at, None, None).unwrap();
    runtime::finalize().unwrap();
    assert_eq!(fake.leaks(), "primary context of device 0: retained 1 times");
    fake.end_quietly();
}

#[test]
fn streams_made_elsewhere() {
    for settings in [&[][..], &[("driver", "11040")]] {
        let (fake, d) = one(settings);
        let s = fake.foreign_stream(0, 1);
        let t = d.streams().create().unwrap();
        let at = d.memory().alloc(POOL, s, 3 * MIB).unwrap();
        d.memset_async(s, at, 1, MIB).unwrap();
        assert_eq!(d.memory().block(at).unwrap().stream, Some(s));
        // Used on a stream that we have never seen, freed by one that we know: the reuse waits.
        let b = d.memory().alloc(POOL, t, 3 * MIB).unwrap();
        fake.hold(true);
        d.memset_async(s, b, 9, 3 * MIB).unwrap();
        d.memory().record_stream(b, s).unwrap();
        d.memory().free(b, Some(t), None).unwrap();
        let c = d.memory().alloc(POOL, t, 3 * MIB).unwrap();
        assert_ne!(b, c, "a block that another stream still writes was given out");
        fake.hold(false);
        d.streams().synchronize(s).unwrap();
        assert_eq!(d.streams().destroy(s).unwrap_err().code(), Code::InvalidArgument);
        d.streams().forget(s).unwrap();
        fake.foreign_stream_end(s);
        // Nothing asks for it any more.
        d.memory().free(at, None, None).unwrap();
        d.memory().free(c, None, None).unwrap();
        let rest: Vec<u64> = (0..).map_while(|_| d.memory().alloc(POOL, t, 3 * MIB).ok()).collect();
        assert!(rest.len() >= 20, "only {} blocks", rest.len());
        fake.end();
    }
}

#[test]
fn a_block_without_a_stream_waits_for_streams_that_nobody_named() {
    for settings in [&[][..], &[("driver", "11040")]] {
        let (fake, d) = one(settings);
        let s = fake.foreign_stream(0, 1);
        let at = d.memory().alloc_unordered(POOL, 3 * MIB).unwrap();
        let fill: extern "C" fn(u64, u8, usize, u64) -> u32 = fake.driver("cuMemsetD8Async");
        let release = slow(&fake, s);
        with_primary(&fake, || assert_eq!(fill(at, 9, 3 << 20, s), 0));
        drop(release); // after a while
        d.memory().free(at, None, None).unwrap();
        let again: Vec<u64> = (0..).map_while(|_| d.memory().alloc_unordered(POOL, 3 * MIB).ok()).collect();
        assert!(again.contains(&at), "the block came back");
        for b in &again {
            assert_ne!(fake.read(0, *b, 1).unwrap(), [7]);
            fake.write(0, *b, &[7]).unwrap();
        }
        assert!(d.streams().query(s).unwrap(), "the memory was given out while a stream still wrote it");
        for b in again {
            assert_eq!(fake.read(0, b, 1).unwrap(), [7], "overwritten by old work");
        }
        d.streams().forget(s).unwrap();
        fake.foreign_stream_end(s);
        fake.end();
    }
}

/// The stream stands still for a moment after what this returns is dropped.
fn slow(fake: &Fake, stream: u64) -> mpsc::Sender<()> {
    let (tx, rx) = mpsc::channel::<()>();
    unsafe extern "C" fn run(data: *mut std::ffi::c_void) {
        let rx = unsafe { Box::from_raw(data.cast::<mpsc::Receiver<()>>()) };
        let _ = rx.recv();
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    type Launch =
        unsafe extern "C" fn(u64, unsafe extern "C" fn(*mut std::ffi::c_void), *mut std::ffi::c_void) -> u32;
    let launch: Launch = fake.driver("cuLaunchHostFunc");
    // Foreign streams belong to a context that must be current.
    with_primary(fake, || {
        assert_eq!(unsafe { launch(stream, run, Box::into_raw(Box::new(rx)).cast()) }, 0);
    });
    tx
}

fn with_primary(fake: &Fake, body: impl FnOnce()) {
    fake.with_primary(0, body);
}

#[test]
fn the_numbers_of_default_streams_mean_what_cuda_says() {
    let (fake, d) = one(&[]);
    for s in [0, 1, 2] {
        let at = d.memory().alloc(POOL, s, MIB).unwrap();
        d.memset_async(s, at, 3, MIB).unwrap();
        d.streams().synchronize(s).unwrap();
        assert_eq!(fake.read(0, at, 1).unwrap(), [3]);
        d.memory().free(at, Some(s), None).unwrap();
    }
    // The per-thread stream is another on each thread: what one thread has freed there, the next may not
    // have while the first still uses it.
    fake.hold(true);
    let at = d.memory().alloc(POOL, 2, 3 * MIB).unwrap();
    d.memset_async(2, at, 5, 3 * MIB).unwrap();
    d.memory().free(at, Some(2), None).unwrap();
    let other = d.clone();
    let b = std::thread::spawn(move || other.memory().alloc(POOL, 2, 3 * MIB).unwrap()).join().unwrap();
    assert_ne!(at, b);
    fake.hold(false);
    d.synchronize().unwrap();
    // A block recorded there and freed by another thread waits for the thread that used it.
    let s = d.streams().create().unwrap();
    let c = d.memory().alloc(POOL, s, 3 * MIB).unwrap();
    fake.hold(true);
    d.memset_async(2, c, 6, 3 * MIB).unwrap();
    d.memory().record_stream(c, 2).unwrap();
    let other = d.clone();
    let again = std::thread::spawn(move || {
        other.memory().free(c, Some(s), None).unwrap();
        other.memory().alloc(POOL, s, 3 * MIB).unwrap()
    });
    assert_ne!(again.join().unwrap(), c);
    fake.hold(false);
    d.synchronize().unwrap();
    fake.end();
}

#[test]
fn captures_are_told_and_not_disturbed() {
    let (fake, d) = one(&[]);
    let s = d.streams().create().unwrap();
    let external = d.device().external_streams().unwrap();
    assert_eq!(external.capture_id(s).unwrap(), None);
    assert_eq!(external.capture_id(0).unwrap(), None);
    let begin: extern "C" fn(u64, u32) -> u32 = fake.driver("cuStreamBeginCapture_v2");
    let end: extern "C" fn(u64, *mut u64) -> u32 = fake.driver("cuStreamEndCapture");
    let destroy: extern "C" fn(u64) -> u32 = fake.driver("cuGraphDestroy");
    with_primary(&fake, || assert_eq!(begin(s, 0), 0));
    let id = external.capture_id(s).unwrap().unwrap();
    // Calls that the driver forbids while any thread captures, made by this and by another thread.
    let work = {
        let d = d.clone();
        move || {
            let t = d.streams().create().unwrap();
            let at = d.memory().alloc(POOL, t, 9 * MIB).unwrap();
            let h = d.host_memory().alloc(MIB).unwrap();
            let m = d.unified_memory().alloc(MIB).unwrap();
            let e = d.events().create().unwrap();
            d.events().query(e).unwrap();
            d.streams().query(t).unwrap();
            d.memory().free(at, Some(t), None).unwrap();
            assert_eq!(d.synchronize().unwrap_err().code(), Code::NotPermitted);
            assert!(d.memory().empty_cache(None).is_err());
            d.host_memory().free(h).unwrap();
            d.unified_memory().free(m).unwrap();
            t
        }
    };
    let t = work();
    std::thread::spawn(work).join().unwrap();
    assert_eq!(external.capture_id(s).unwrap(), Some(id));
    assert_eq!(external.capture_id(t).unwrap(), None);
    assert_eq!(
        external.capture_id(0).unwrap(),
        Some(u64::MAX),
        "a blocking stream's capture forbids work on NULL"
    );
    let mut graph = 0_u64;
    with_primary(&fake, || {
        assert_eq!(end(s, &mut graph), 0, "the capture was disturbed");
        assert_eq!(destroy(graph), 0);
    });
    assert_eq!(external.capture_id(s).unwrap(), None);
    d.synchronize().unwrap();
    fake.end();
}

#[test]
fn a_device_that_fails_still_ends() {
    for settings in [&[][..], &[("no_vmm", "1")]] {
        let (fake, d) = one(settings);
        let s = d.streams().create().unwrap();
        let at = d.memory().alloc(POOL, s, 5 * MIB).unwrap();
        let kept = d.memory().alloc_unordered(POOL, 3 * MIB).unwrap();
        d.host_memory().alloc(100).unwrap();
        d.unified_memory().alloc(100).unwrap();
        let told = Arc::new(AtomicU64::new(0));
        fake.hold(true);
        let t = told.clone();
        d.streams().callback(s, Box::new(move |r| t.store(1 + u64::from(r.is_err()), SeqCst))).unwrap();
        fake.sticky(700);
        fake.hold(false);
        for e in [
            d.synchronize().unwrap_err(),
            d.memset(at, 1, 1).unwrap_err(),
            d.streams().query(s).unwrap_err(),
            unsafe { d.copy(CopyKind::DeviceToDevice, at, at + MIB, 10) }.unwrap_err(),
        ] {
            assert!(e.message().contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{e}");
        }
        // Frees are taken; the memory is nobody's concern any more.
        let _ = d.memory().free(at, Some(s), None);
        let _ = d.memory().free(kept, None, None);
        let e = runtime::finalize().unwrap_err();
        assert!(e.message().contains("700"), "{e}");
        assert_eq!(d.synchronize().unwrap_err().code(), Code::NotInitialized);
        assert_ne!(told.load(SeqCst), 0, "a callback was never told");
        assert_eq!(runtime::finalize().unwrap_err().code(), Code::NotInitialized);
        fake.end_quietly();
    }
}

#[test]
fn a_window_that_is_refused_is_made_smaller_and_then_not_at_all() {
    for (refusals, mapping) in [(1, true), (2, true), (3, false)] {
        let fake = Fake::new(&[("capacity", "256M")], |_| {});
        (1..=refusals).for_each(|n| fake.fail("cuMemAddressReserve", n, 2, false));
        let d = runtime::device("cuda", 0).unwrap();
        assert_eq!(d.info().unwrap().caps.contains(runtime::Caps::MAPPING), mapping, "{refusals}");
        let why = d.lack(runtime::Caps::MAPPING).unwrap();
        assert_eq!(why.is_some_and(|w| w.contains("refused to reserve the window")), !mapping);
        let s = d.streams().create().unwrap();
        let at = d.memory().alloc(POOL, s, 30 * MIB).unwrap();
        d.write(at + 30 * MIB - 5, b"works").unwrap();
        let held = fake.used(0);
        assert!(held < 200 * MIB, "{held} bytes taken for 30 MiB");
        d.memory().free(at, Some(s), None).unwrap();
        fake.end();
    }
}

#[test]
fn bad_pointers_and_streams() {
    // The program names a stream that it has destroyed: no driver must tell, but one that checks is believed.
    let (fake, d) = one(&[("devices", "2"), ("ended", "refuse")]);
    let other = runtime::device("cuda", 1).unwrap();
    let at = d.memory().alloc(POOL, 0, MIB).unwrap();
    let theirs = other.memory().alloc(POOL, 0, MIB).unwrap();
    assert_eq!(d.memory().free(theirs, None, None).unwrap_err().code(), Code::UnknownPointer);
    assert_eq!(d.memset(theirs, 1, 1).unwrap_err().code(), Code::UnknownPointer);
    assert_eq!(d.memset(at, 1, MIB + 1).unwrap_err().code(), Code::OutOfRange);
    assert_eq!(d.memory().free(at + 512, None, None).unwrap_err().code(), Code::UnknownPointer);
    let local = 7u64;
    let host = (&raw const local).expose_provenance() as u64;
    assert_eq!(d.memset(host, 1, 1).unwrap_err().code(), Code::UnknownPointer);
    assert_eq!(d.memory().free(host, None, None).unwrap_err().code(), Code::UnknownPointer);
    let mut raw = 0_u64;
    with_primary(&fake, || {
        let alloc: extern "C" fn(*mut u64, usize) -> u32 = fake.driver("cuMemAlloc_v2");
        assert_eq!(alloc(&mut raw, 4096), 0);
    });
    assert_eq!(d.memory().free(raw, None, None).unwrap_err().code(), Code::UnknownPointer);
    with_primary(&fake, || {
        assert_eq!(fake.driver::<extern "C" fn(u64) -> u32>("cuMemFree_v2")(raw), 0);
    });
    // A stream of the other device, and one that its maker has ended.
    let s = other.streams().create().unwrap();
    assert_eq!(d.memset_async(s, at, 1, 1).unwrap_err().code(), Code::UnknownStream);
    assert_eq!(d.memory().alloc(POOL, s, 1).unwrap_err().code(), Code::UnknownStream);
    let f = fake.foreign_stream(0, 0);
    fake.foreign_stream_end(f);
    let e = d.memset_async(f, at, 1, 1).unwrap_err();
    assert_eq!(e.code(), Code::UnknownStream, "{e}");
    let e = d.events().record(f, d.events().create().unwrap()).unwrap_err();
    assert_eq!(e.code(), Code::UnknownStream, "{e}");
    d.memory().free(at, None, None).unwrap();
    assert_eq!(d.memory().free(at, None, None).unwrap_err().code(), Code::DoubleFree);
    fake.end();
}
