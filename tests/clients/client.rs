//! The C API as these tests call it: statuses become results, addresses and streams are numbers, and devices and
//! pools may go to other threads, as their handles may in C. Nothing else is added.

use crate::cuda::{Fake, MIB};
use millpond::capi::*;
use std::ffi::{CStr, CString, c_void};
use std::mem::zeroed;
use std::ptr::{null, null_mut, with_exposed_provenance_mut, without_provenance_mut};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// The error of a failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub status: C_Status,
    pub code: u32,
    pub message: String,
}

pub type Said<T = ()> = Result<T, Refused>;

pub fn said(status: C_Status) -> Said {
    if status == C_Status::SUCCESS {
        return Ok(());
    }
    let message = unsafe { CStr::from_ptr(millpond_last_error_message()) };
    let message = message.to_string_lossy().into_owned();
    Err(Refused { status, code: millpond_last_error_code(), message })
}

/// The call was refused with one of these codes, and says why.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(said: Said<T>, codes: &[u32]) {
    let e = said.expect_err("the call should be refused");
    assert!(codes.contains(&e.code) && !e.message.is_empty(), "{e:?}");
}

pub fn stream(s: u64) -> C_Stream {
    without_provenance_mut(s as usize)
}

fn ptr(p: u64) -> *mut c_void {
    with_exposed_provenance_mut(p as usize)
}

fn number<T>(p: *mut T) -> u64 {
    p.expose_provenance() as u64
}

/// A device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dev(pub *mut millpond_device);
/// A pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool(pub *mut millpond_pool);

// SAFETY: handles are numbers, which any thread may use.
unsafe impl Send for Dev {}
// SAFETY: as above.
unsafe impl Sync for Dev {}
// SAFETY: as above.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

pub fn device(kind: &str, ordinal: i32) -> Dev {
    let (kind, mut d) = (CString::new(kind).unwrap(), null_mut());
    said(unsafe { millpond_device_get(kind.as_ptr(), ordinal, &mut d) }).unwrap();
    Dev(d)
}

/// Devices of the type `host` from here on.
pub fn configure_host(capacity: u64, mapping: bool) {
    let o = millpond_host_options {
        struct_size: size_of::<millpond_host_options>(),
        device_count: 2,
        capacity_bytes: capacity,
        disable_mapping: (!mapping).into(),
    };
    said(unsafe { millpond_host_configure(&o) }).unwrap();
}

pub fn default_options(kind: &str, options: &str) {
    let (kind, options) = (CString::new(kind).unwrap(), CString::new(options).unwrap());
    said(unsafe { millpond_set_default_options(kind.as_ptr(), -1, options.as_ptr()) }).unwrap();
}

pub fn unregister(kind: &str) -> Said {
    let kind = CString::new(kind).unwrap();
    said(unsafe { millpond_device_type_unregister(kind.as_ptr()) })
}

pub fn free(p: u64) -> Said {
    said(unsafe { millpond_free(ptr(p)) })
}

pub fn record_stream(p: u64, s: u64) -> Said {
    said(unsafe { millpond_record_stream(ptr(p), stream(s)) })
}

pub fn record_end(p: u64, s: u64) -> Said {
    said(unsafe { millpond_record_end(ptr(p), stream(s)) })
}

pub fn record_end_at(p: u64, s: u64, event: u64) -> Said {
    said(unsafe { millpond_record_end_at(ptr(p), stream(s), without_provenance_mut(event as usize)) })
}

pub fn block(p: u64) -> Said<millpond_block_info> {
    let mut info: millpond_block_info = unsafe { zeroed() };
    info.struct_size = size_of::<millpond_block_info>();
    said(unsafe { millpond_get_block(ptr(p), &mut info) })?;
    Ok(info)
}

impl Dev {
    pub fn pool(self) -> Pool {
        let mut pool = null_mut();
        said(unsafe { millpond_device_get_default_pool(self.0, &mut pool) }).unwrap();
        Pool(pool)
    }

    pub fn make_pool(self) -> Said<Pool> {
        let mut pool = null_mut();
        said(unsafe { millpond_pool_create(self.0, null(), &mut pool) })?;
        Ok(Pool(pool))
    }

    pub fn new_pool(self) -> Pool {
        self.make_pool().unwrap()
    }

    pub fn ask(self) -> Said<millpond_device_info> {
        let mut info: millpond_device_info = unsafe { zeroed() };
        info.struct_size = size_of::<millpond_device_info>();
        said(unsafe { millpond_device_get_info(self.0, &mut info) })?;
        Ok(info)
    }

    pub fn info(self) -> millpond_device_info {
        self.ask().unwrap()
    }

    pub fn stats(self) -> Said<millpond_stats> {
        let mut s: millpond_stats = unsafe { zeroed() };
        s.struct_size = size_of::<millpond_stats>();
        said(unsafe { millpond_device_get_stats(self.0, &mut s) })?;
        Ok(s)
    }

    pub fn host_stats(self) -> millpond_host_stats {
        let mut s: millpond_host_stats = unsafe { zeroed() };
        s.struct_size = size_of::<millpond_host_stats>();
        said(unsafe { millpond_device_get_host_stats(self.0, &mut s) }).unwrap();
        s
    }

    pub fn synchronize(self) -> Said {
        said(unsafe { millpond_device_synchronize(self.0) })
    }

    pub fn empty_cache(self) -> Said {
        said(unsafe { millpond_device_empty_cache(self.0) })
    }

    pub fn empty_host_cache(self) -> Said {
        said(unsafe { millpond_device_empty_host_cache(self.0) })
    }

    pub fn stream(self) -> u64 {
        let mut s = null_mut();
        said(unsafe { millpond_stream_create(self.0, &mut s) }).unwrap();
        number(s)
    }

    pub fn stream_end(self, s: u64) -> Said {
        said(unsafe { millpond_stream_destroy(self.0, stream(s)) })
    }

    pub fn stream_forget(self, s: u64) -> Said {
        said(unsafe { millpond_stream_forget(self.0, stream(s)) })
    }

    pub fn stream_sync(self, s: u64) -> Said {
        said(unsafe { millpond_stream_synchronize(self.0, stream(s)) })
    }

    pub fn stream_done(self, s: u64) -> bool {
        let mut done = false;
        said(unsafe { millpond_stream_query(self.0, stream(s), &mut done) }).unwrap();
        done
    }

    /// Whether the stream comes to rest within this time.
    pub fn settles(self, s: u64, within: Duration) -> bool {
        let start = Instant::now();
        while !self.stream_done(s) {
            if start.elapsed() > within {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    pub fn callback(self, s: u64, body: impl FnOnce(C_Status) + Send + 'static) -> Said {
        unsafe extern "C-unwind" fn call(data: *mut c_void, status: C_Status) {
            // SAFETY: from `into_raw` below; it is called once.
            let body = unsafe { Box::from_raw(data.cast::<Body>()) };
            body(status);
        }
        type Body = Box<dyn FnOnce(C_Status) + Send>;
        let data = Box::into_raw(Box::new(Box::new(body) as Body));
        said(unsafe { millpond_stream_add_callback(self.0, stream(s), Some(call), data.cast()) })
    }

    pub fn make_event(self) -> Said<u64> {
        let mut e = null_mut();
        said(unsafe { millpond_event_create(self.0, &mut e) })?;
        Ok(number(e))
    }

    pub fn event(self) -> u64 {
        self.make_event().unwrap()
    }

    pub fn event_record(self, s: u64, event: u64) -> Said {
        said(unsafe { millpond_event_record(self.0, stream(s), without_provenance_mut(event as usize)) })
    }

    pub fn event_done(self, event: u64) -> Said<bool> {
        let mut done = false;
        let event = without_provenance_mut(event as usize);
        said(unsafe { millpond_event_query(self.0, event, &mut done) }).map(|()| done)
    }

    pub fn event_sync(self, event: u64) -> Said {
        said(unsafe { millpond_event_synchronize(self.0, without_provenance_mut(event as usize)) })
    }

    pub fn event_end(self, event: u64) -> Said {
        said(unsafe { millpond_event_destroy(self.0, without_provenance_mut(event as usize)) })
    }

    /// Memory without a stream.
    pub fn alloc(self, bytes: u64) -> Said<u64> {
        let mut p = null_mut();
        said(unsafe { millpond_alloc(self.0, bytes as usize, &mut p) })?;
        Ok(number(p))
    }

    pub fn memset(self, p: u64, value: u8, bytes: u64) -> Said {
        said(unsafe { millpond_memset(self.0, ptr(p), value, bytes as usize) })
    }

    pub fn memset_async(self, s: u64, p: u64, value: u8, bytes: u64) -> Said {
        said(unsafe { millpond_memset_async(self.0, stream(s), ptr(p), value, bytes as usize) })
    }

    pub fn copy_async(self, s: u64, kind: u32, to: u64, from: u64, bytes: u64) -> Said {
        let (to, from) = (ptr(to), ptr(from));
        said(unsafe { millpond_copy_async(self.0, stream(s), kind, to, from, bytes as usize) })
    }

    /// The first bytes of a block; waits for the device.
    pub fn read(self, p: u64, bytes: usize) -> Said<Vec<u8>> {
        let mut to = vec![0_u8; bytes];
        let at = to.as_mut_ptr().cast();
        said(unsafe { millpond_copy(self.0, MILLPOND_COPY_D2H, at, ptr(p), bytes) })?;
        Ok(to)
    }

    pub fn host_alloc(self, bytes: u64) -> Said<u64> {
        let mut p = null_mut();
        said(unsafe { millpond_host_alloc(self.0, bytes as usize, &mut p) })?;
        Ok(number(p))
    }

    pub fn host_free(self, p: u64) -> Said {
        said(unsafe { millpond_host_free(self.0, ptr(p)) })
    }

    pub fn host_record_stream(self, p: u64, s: u64) -> Said {
        said(unsafe { millpond_host_record_stream(self.0, ptr(p), stream(s)) })
    }

    pub fn unified_alloc(self, bytes: u64) -> Said<u64> {
        let mut p = null_mut();
        said(unsafe { millpond_unified_alloc(self.0, bytes as usize, &mut p) })?;
        Ok(number(p))
    }

    pub fn unified_free(self, p: u64) -> Said {
        said(unsafe { millpond_unified_free(self.0, ptr(p)) })
    }
}

impl Pool {
    pub fn alloc(self, bytes: u64, s: u64) -> Said<u64> {
        let mut p = null_mut();
        said(unsafe { millpond_pool_alloc(self.0, bytes as usize, stream(s), &mut p) })?;
        Ok(number(p))
    }

    pub fn free(self, p: u64, s: u64) -> Said {
        said(unsafe { millpond_pool_free(self.0, ptr(p), stream(s)) })
    }

    pub fn destroy(self) -> Said {
        said(unsafe { millpond_pool_destroy(self.0) })
    }

    pub fn empty_cache(self) -> Said {
        said(unsafe { millpond_pool_empty_cache(self.0) })
    }

    pub fn stats(self) -> Said<millpond_stats> {
        let mut s: millpond_stats = unsafe { zeroed() };
        s.struct_size = size_of::<millpond_stats>();
        said(unsafe { millpond_pool_get_stats(self.0, &mut s) })?;
        Ok(s)
    }

    /// With what it holds.
    pub fn sleep(self) -> Said {
        said(unsafe { millpond_pool_sleep(self.0, MILLPOND_SLEEP_KEEP) })
    }

    pub fn wake(self) -> Said {
        said(unsafe { millpond_pool_wake(self.0) })
    }

    pub fn capture(self, s: u64) -> Said<Capture> {
        let mut c = null_mut();
        said(unsafe { millpond_capture_begin(self.0, stream(s), &mut c) })?;
        Ok(Capture(c))
    }

    pub fn checkpoint(self) -> *mut millpond_checkpoint {
        let mut c = null_mut();
        said(unsafe { millpond_pool_checkpoint(self.0, &mut c) }).unwrap();
        c
    }

    pub fn restore(self, c: *mut millpond_checkpoint) -> Said {
        said(unsafe { millpond_pool_restore(self.0, c, None, null_mut()) })
    }
}

/// A capture, and the graph that came of it.
#[derive(Clone, Copy, Debug)]
pub struct Capture(*mut millpond_capture);

impl Capture {
    pub fn end(self) -> Said {
        said(unsafe { millpond_capture_end(self.0) })
    }

    pub fn release(self) -> Said {
        said(unsafe { millpond_capture_release(self.0) })
    }
}

pub fn overlap(a: u64, a_bytes: u64, b: u64, b_bytes: u64) -> bool {
    a < b + b_bytes && b < a + a_bytes
}

/// Where work of a stream stops until the test says so. It opens when it goes.
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn new() -> Gate {
        Gate(Arc::default())
    }

    /// What waits for the gate; not for ever, so that a failed test ends.
    pub fn wait(&self) -> impl FnOnce() + Send + 'static {
        let gate = self.0.clone();
        move || {
            let open = gate.0.lock().unwrap();
            let _open = gate.1.wait_timeout_while(open, Duration::from_secs(100), |open| !*open).unwrap();
        }
    }

    pub fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    /// Opens it later, whatever the calling thread waits for then.
    pub fn open_after(&self, time: Duration) {
        let gate = Gate(self.0.clone());
        std::thread::spawn(move || {
            std::thread::sleep(time);
            gate.open();
        });
    }

    /// Work of this stream stops here.
    pub fn hold(device: Dev, s: u64) -> Gate {
        let gate = Gate::new();
        let wait = gate.wait();
        device.callback(s, move |_| wait()).unwrap();
        gate
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

/// The library over the fake driver, with so many devices of 64 MiB.
pub fn cuda(devices: &str, more: &[(&str, &str)]) -> Fake {
    let mut settings = vec![("devices", devices), ("capacity", "64M")];
    settings.extend_from_slice(more);
    Fake::new(&settings, |_| {})
}

/// A part of a block, in the middle of each of its MiB: enough to see who has written it.
pub fn samples(p: u64, bytes: u64) -> impl Iterator<Item = u64> {
    (0..bytes.div_ceil(MIB)).map(move |i| p + (i * MIB + MIB / 2).min(bytes - 16))
}
