//! Shared code of the tests of the device type `cuda`: the fake driver with its controls, and a fresh library over it
//! for each test.
//!
//! The fake is a shared library that cargo builds beside the tests. It is loaded by its path, so a real
//! driver of the machine is never touched; without its controls the tests fail, they are not skipped.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "every block is one call of the fake's C functions")]

#[macro_use]
#[path = "../../fakecuda/tests/common/controls.rs"]
mod controls;

use libloading::Library;
use millpond::runtime::{self, CudaOptions, DeviceState};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

pub const MIB: u64 = 1 << 20;
pub const GRANULE: u64 = 2 * MIB;

/// Where cargo put the fake driver.
pub fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let beside = exe.parent().unwrap().join("libcuda.so");
    assert!(beside.exists(), "the fake driver was not built: {}", beside.display());
    beside
}

/// Another name of it, under which its functions are looked up anew: those of this version.
fn library_of(version: &str) -> PathBuf {
    let link = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("libcuda-{version}.so"));
    if std::fs::read_link(&link).ok() != Some(library()) {
        let own = link.with_extension(std::process::id().to_string());
        std::os::unix::fs::symlink(library(), &own).unwrap();
        std::fs::rename(&own, &link).unwrap();
    }
    link
}

fn fake() -> &'static Library {
    static FAKE: OnceLock<Library> = OnceLock::new();
    FAKE.get_or_init(|| unsafe { Library::new(library()) }.unwrap())
}

fn control<T: Copy>(name: &str) -> T {
    *unsafe { fake().get::<T>(name.as_bytes()) }
        .unwrap_or_else(|_| panic!("{name} is missing: no fake driver"))
}

/// The fake, and the turn to use it: it is one for the process, as the library is.
pub struct Fake(#[allow(dead_code)] MutexGuard<'static, ()>);

impl Fake {
    /// A new driver and a library that has not been used.
    pub fn raw(settings: &[(&str, &str)]) -> Fake {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let fake = Fake(turn);
        fake.reset(settings);
        fake
    }

    fn reset(&self, settings: &[(&str, &str)]) {
        let _ = runtime::finalize();
        control::<extern "C" fn()>("fakecuda_reset")();
        self.unset_current();
        for (name, value) in settings {
            assert_eq!(self.set(name, value), 0, "{name}={value}");
        }
    }

    /// The same, and the library told to use it.
    pub fn new(settings: &[(&str, &str)], change: impl FnOnce(&mut CudaOptions)) -> Fake {
        let fake = Fake::raw(&[]);
        fake.renew(settings, change);
        fake
    }

    /// As `new`, within the same turn.
    pub fn renew(&self, settings: &[(&str, &str)], change: impl FnOnce(&mut CudaOptions)) {
        self.reset(settings);
        let version = settings.iter().find(|s| s.0 == "driver").map(|s| s.1);
        self.configure(|o| {
            o.library = Some(version.map_or_else(library, library_of).into());
            change(o);
        });
    }

    pub fn configure(&self, change: impl FnOnce(&mut CudaOptions)) {
        let mut options = CudaOptions { library: Some(library().into()), ..CudaOptions::default() };
        change(&mut options);
        runtime::configure_cuda(options).unwrap();
    }

    controls!();

    /// The `nth` call of `name` from now on fails; with `every`, all after it too.
    pub fn fail(&self, name: &str, nth: u64, code: u32, every: bool) {
        let name = CString::new(name).unwrap();
        let f: extern "C" fn(*const c_char, u64, u32, c_int) -> c_int = control("fakecuda_fail");
        assert_eq!(f(name.as_ptr(), nth, code, every.into()), 0);
    }

    pub fn fail_clear(&self) {
        control::<extern "C" fn()>("fakecuda_fail_clear")();
    }

    pub fn all_calls(&self) -> u64 {
        control::<extern "C" fn(*const c_char) -> u64>("fakecuda_calls")(std::ptr::null())
    }

    pub fn calls_reset(&self) {
        control::<extern "C" fn()>("fakecuda_calls_reset")();
    }

    /// One of the driver's own functions, for what a framework beside the library does.
    pub fn driver<T: Copy>(&self, name: &str) -> T {
        control(name)
    }

    /// The context that is current on this thread.
    pub fn current(&self) -> u64 {
        let mut c = 0_u64;
        self.driver::<extern "C" fn(*mut u64) -> u32>("cuCtxGetCurrent")(&mut c);
        c
    }

    fn unset_current(&self) {
        let pop: extern "C" fn(*mut u64) -> u32 = self.driver("cuCtxPopCurrent_v2");
        while pop(&mut 0) == 0 {}
    }

    /// A stream that a framework made in the primary context of `device`; `flags` 1: non-blocking.
    pub fn foreign_stream(&self, device: c_int, flags: u32) -> u64 {
        let mut stream = 0_u64;
        let create: extern "C" fn(*mut u64, u32) -> u32 = self.driver("cuStreamCreate");
        self.with_primary(device, || assert_eq!(create(&mut stream, flags), 0));
        stream
    }

    /// Runs `body` as a framework beside the library would: with the primary context current.
    pub fn with_primary(&self, device: c_int, body: impl FnOnce()) {
        let mut context = 0_u64;
        let init: extern "C" fn(u32) -> u32 = self.driver("cuInit");
        let retain: extern "C" fn(*mut u64, c_int) -> u32 = self.driver("cuDevicePrimaryCtxRetain");
        let release: extern "C" fn(c_int) -> u32 = self.driver("cuDevicePrimaryCtxRelease_v2");
        let push: extern "C" fn(u64) -> u32 = self.driver("cuCtxPushCurrent_v2");
        assert_eq!(init(0), 0);
        assert_eq!(retain(&mut context, device), 0);
        assert_eq!(push(context), 0);
        body();
        self.driver::<extern "C" fn(*mut u64) -> u32>("cuCtxPopCurrent_v2")(&mut 0);
        assert_eq!(release(device), 0);
    }

    /// A framework queues a call of the host in a stream of `device`.
    pub fn launch_host(&self, device: c_int, stream: u64, body: impl FnOnce() + Send + 'static) {
        type Body = Box<dyn FnOnce() + Send>;
        extern "C" fn call(data: *mut c_void) {
            // From `into_raw` below; the driver calls once.
            let body = unsafe { Box::from_raw(data.cast::<Body>()) };
            body();
        }
        let launch: extern "C" fn(u64, extern "C" fn(*mut c_void), *mut c_void) -> u32 =
            self.driver("cuLaunchHostFunc");
        let data = Box::into_raw(Box::new(Box::new(body) as Body));
        self.with_primary(device, || assert_eq!(launch(stream, call, data.cast()), 0));
    }

    /// A framework queues a copy between memory of two devices in a stream of its own, whose device is the last
    /// argument.
    pub fn copy_peer_async(
        &self,
        to: (c_int, u64),
        from: (c_int, u64),
        bytes: u64,
        stream: u64,
        device: c_int,
    ) {
        let copy: extern "C" fn(u64, u64, u64, u64, usize, u64) -> u32 = self.driver("cuMemcpyPeerAsync");
        let (mut to_context, mut from_context) = (0, 0);
        self.with_primary(to.0, || to_context = self.current());
        self.with_primary(from.0, || from_context = self.current());
        self.with_primary(device, || {
            assert_eq!(copy(to.1, to_context, from.1, from_context, bytes as usize, stream), 0);
        });
    }

    /// A framework queues a copy from host memory in a stream of `device`.
    pub fn copy_in_async(&self, device: c_int, to: u64, from: u64, bytes: u64, stream: u64) {
        let copy: extern "C" fn(u64, u64, usize, u64) -> u32 = self.driver("cuMemcpyHtoDAsync_v2");
        self.with_primary(device, || assert_eq!(copy(to, from, bytes as usize, stream), 0));
    }

    /// A framework waits for a stream of `device`: the driver's status.
    pub fn stream_sync(&self, device: c_int, stream: u64) -> u32 {
        let wait: extern "C" fn(u64) -> u32 = self.driver("cuStreamSynchronize");
        let mut status = 0;
        self.with_primary(device, || status = wait(stream));
        status
    }

    pub fn foreign_stream_end(&self, stream: u64) {
        let destroy: extern "C" fn(u64) -> u32 = self.driver("cuStreamDestroy_v2");
        self.with_primary(0, || assert_eq!(destroy(stream), 0));
    }

    /// The turn ends; the next one starts from new.
    pub fn end_quietly(self) {
        let _ = runtime::finalize();
        self.fail_clear();
    }

    /// The library ends, and nothing of it is left in the driver.
    #[track_caller]
    pub fn end(self) {
        runtime::finalize().unwrap();
        assert_eq!(self.leaks(), "");
    }
}

/// A library over one device of 64 MiB, and the device.
pub fn one(settings: &[(&str, &str)]) -> (Fake, Arc<DeviceState>) {
    let mut all = vec![("capacity", "64M")];
    all.extend_from_slice(settings);
    let fake = Fake::new(&all, |_| {});
    let device = runtime::device("cuda", 0).unwrap();
    (fake, device)
}
