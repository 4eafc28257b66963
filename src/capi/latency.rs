//! How long calls take: histograms.

use crate::base::error::{Code, Result};
use crate::base::histogram::{BUCKETS, Durations};
use crate::capi::guard::{Out, OutStruct, Versioned, run};
use crate::capi::handles;
use crate::capi::types::millpond_device;
use crate::fail;
use crate::paddle::abi::C_Status;
use crate::runtime::Latency;
use std::ffi::{CStr, c_char};
use std::ptr::null;

/// Requests for memory of the device, whatever came of them, with all that they waited for.
pub const MILLPOND_LATENCY_ALLOC: u32 = 1;
/// Frees of it.
pub const MILLPOND_LATENCY_FREE: u32 = 2;
/// Calls to the device that take memory from it, or map some.
pub const MILLPOND_LATENCY_DEVICE_ALLOC: u32 = 3;
/// Calls to the device that give memory back, or unmap it.
pub const MILLPOND_LATENCY_DEVICE_FREE: u32 = 4;
/// Calls to the device that create, record or query events of Millpond's own, or let a stream wait for one.
pub const MILLPOND_LATENCY_DEVICE_EVENT: u32 = 5;
/// Waits of Millpond on the host: for an event, a stream, or the device.
pub const MILLPOND_LATENCY_EVENT_WAIT: u32 = 6;
/// What one request or free has waited for Millpond's locks, and for what other threads do, all together; those that waited
/// for none are not counted.
pub const MILLPOND_LATENCY_LOCK_WAIT: u32 = 7;
/// The number of buckets of a histogram.
pub const MILLPOND_LATENCY_BUCKETS: usize = 160;

const _: () = assert!(MILLPOND_LATENCY_BUCKETS == BUCKETS);
const _: () = assert!(Latency::Alloc as u32 == MILLPOND_LATENCY_ALLOC);
const _: () = assert!(Latency::LockWait as u32 == MILLPOND_LATENCY_LOCK_WAIT);

/// How long calls of one kind took, in nanoseconds of the monotonic clock.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_latency {
    /// sizeof(millpond_latency)
    pub struct_size: usize,
    /// How many there were: the sum of all buckets.
    pub count: u64,
    /// All together.
    pub total_ns: u64,
    /// The shortest; 0 if there was none.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// How many there were in each bucket. Buckets 0 to 3 are of 0, 1, 2 and 3 ns. From then on each power of two has four of
    /// the same width: bucket i begins at (4 + i % 4) << (i / 4 - 1) ns and ends before the next one
    /// (`millpond_latency_bucket_start`). The last one has everything from 32 minutes on.
    pub buckets: [u64; MILLPOND_LATENCY_BUCKETS],
}

// SAFETY: repr(C), `struct_size` first, integers only.
unsafe impl Versioned for millpond_latency {}

impl From<&Durations> for millpond_latency {
    fn from(d: &Durations) -> Self {
        millpond_latency {
            struct_size: size_of::<millpond_latency>(),
            count: d.count,
            total_ns: d.total_ns,
            min_ns: d.min_ns,
            max_ns: d.max_ns,
            buckets: d.buckets,
        }
    }
}

fn kind(what: u32) -> Result<Latency> {
    match Latency::ALL.into_iter().find(|&l| l as u32 == what) {
        Some(l) => Ok(l),
        None => fail!(Code::InvalidArgument, "there is no latency {what}"),
    }
}

/// How long the device's calls of one kind (a MILLPOND_LATENCY_* number) took while the option `latency_histograms` was
/// on: since it first was, or since `millpond_device_reset_latencies`. Nothing, if it never was. The caller sets
/// `inout_latency->struct_size`; as much as fits is written. Other threads go on: one call that ends meanwhile may be in
/// `count` and not yet in `total_ns`.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get_latency(
    device: *const millpond_device,
    what: u32,
    inout_latency: *mut millpond_latency,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { OutStruct::new(inout_latency, "inout_latency") }?;
        out.set((&handles::device(device)?.memory().statistics().latency(kind(what)?)?).into());
        Ok(())
    })
}

/// All histograms of the device start again from nothing. What other threads add meanwhile may be lost.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_reset_latencies(device: *mut millpond_device) -> C_Status {
    run(|| handles::device(device)?.memory().statistics().reset_latencies())
}

/// A duration in nanoseconds that the part `part` (0 to 1; 0.99 is the 99th percentile) of these calls did not exceed: the
/// end of its bucket, so at most a quarter too long, and never above `max_ns`. 0 if there were no calls.
///
/// Errors: INVALID_ARGUMENT, also for a `part` that is not from 0 to 1 and a struct that is not whole.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_latency_quantile(
    latency: *const millpond_latency,
    part: f64,
    out_ns: *mut u64,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_ns, "out_ns") }?;
        if latency.is_null() || !latency.is_aligned() {
            fail!(Code::InvalidArgument, "latency is NULL, or not aligned");
        }
        // SAFETY: as above; `struct_size` comes first.
        let size = unsafe { latency.cast::<usize>().read() };
        if size < size_of::<millpond_latency>() {
            fail!(Code::InvalidArgument, "latency->struct_size is {size}: not a whole millpond_latency");
        }
        if !(0.0..=1.0).contains(&part) {
            fail!(Code::InvalidArgument, "part is {part}: want a number from 0 to 1");
        }
        // SAFETY: the struct is whole, aligned and of integers only.
        let l = unsafe { latency.read() };
        let d = Durations {
            count: l.count,
            total_ns: l.total_ns,
            min_ns: l.min_ns,
            max_ns: l.max_ns,
            buckets: l.buckets,
        };
        out.set(d.quantile(part));
        Ok(())
    })
}

/// The shortest duration of a bucket in nanoseconds; UINT64_MAX past the last bucket.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_latency_bucket_start(index: usize) -> u64 {
    Durations::start_of(index)
}

/// What a MILLPOND_LATENCY_* number is called in JSON and for Prometheus, such as "device_alloc"; NULL for other numbers.
/// Static.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_latency_name(what: u32) -> *const c_char {
    let name: &CStr = match kind(what) {
        Ok(Latency::Alloc) => c"alloc",
        Ok(Latency::Free) => c"free",
        Ok(Latency::DeviceAlloc) => c"device_alloc",
        Ok(Latency::DeviceFree) => c"device_free",
        Ok(Latency::DeviceEvent) => c"device_event",
        Ok(Latency::EventWait) => c"event_wait",
        Ok(Latency::LockWait) => c"lock_wait",
        Err(_) => return null(),
    };
    name.as_ptr()
}
