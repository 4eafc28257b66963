//! The kinds of devices, and one test for each. A kind opens a fresh device, lets its calls fail, and knows how much
//! memory the library has from it.

use crate::api::{Device, MIB};
use crate::cuda::{Fake, library};
use crate::fault::{self, Way};
use crate::faulty::{self, Shared, look};
use crate::slow::{self, Manner};
use millpond::capi::millpond_finalize;
use millpond::device::host::HostType;
use millpond::device::{DeviceType, Sizes};
use millpond::paddle::abi::{C_DeviceInterface, C_Status};
use millpond::{CudaOptions, HostOptions, runtime};
use std::sync::Arc;

/// [B] of each device.
pub const CAPACITY: usize = 48 * MIB;
/// A larger block is a segment of its own, where there are segments [B].
pub const MAX_CHUNK: usize = 4 * MIB;
const SEGMENT: usize = 8 * MIB;

/// An open device of some kind.
pub struct Opened {
    pub device: Device,
    pub type_name: &'static str,
    truth: Truth,
}

enum Truth {
    Seam(Shared),
    Plugin,
    Driver(Fake),
}

/// A kind: what it is called, how it starts.
pub struct Kind {
    pub name: &'static str,
    pub open: fn() -> Opened,
    /// Whether blocks come from Millpond's pools, so that the account is exact.
    pub pooled: bool,
    /// Whether single calls of a driver fail, and not whole calls of the device.
    pub by_driver: bool,
}

fn small_segments(own: Sizes) -> Sizes {
    Sizes { max_chunk: MAX_CHUNK as u64, init_alloc: SEGMENT as u64, realloc: MAX_CHUNK as u64, ..own }
}

fn behind_seam(inner: Arc<dyn DeviceType>, sizes: Option<fn(Sizes) -> Sizes>, options: &str) -> Opened {
    let _ = millpond_finalize();
    let book = faulty::register(inner, sizes);
    if !options.is_empty() {
        runtime::set_default_options(Some(faulty::NAME), None, options).unwrap();
    }
    let device = Device::get(faulty::NAME, 0).unwrap();
    Opened { device, type_name: faulty::NAME, truth: Truth::Seam(book) }
}

fn host(mapping: bool) -> Arc<dyn DeviceType> {
    let options = HostOptions { device_count: 2, capacity: CAPACITY as u64, mapping };
    Arc::new(HostType::new("behind", options))
}

fn plugin(tweak: fn(&mut C_DeviceInterface)) -> Opened {
    let _ = millpond_finalize();
    let manner = Manner { capacity: CAPACITY, max_chunk: MAX_CHUNK, segment: SEGMENT, ..Manner::default() };
    slow::register(manner, tweak).unwrap();
    slow::set_refusal(Some(Arc::new(|name| {
        // Plugins say "not yet" with any status but success: a query that fails for ever is work that never ends.
        if name.starts_with("query_") {
            return None;
        }
        let way = fault::refused(name)?;
        Some(if way == Way::NoMemory { C_Status::FAILED } else { C_Status::ERROR })
    })));
    Opened { device: Device::get(slow::NAME, 0).unwrap(), type_name: slow::NAME, truth: Truth::Plugin }
}

fn without_events(t: &mut C_DeviceInterface) {
    (t.create_event, t.destroy_event, t.record_event) = (None, None, None);
    (t.query_event, t.synchronize_event, t.stream_wait_event) = (None, None, None);
}

fn without_streams(t: &mut C_DeviceInterface) {
    without_events(t);
    (t.create_stream, t.destroy_stream, t.query_stream) = (None, None, None);
    (t.synchronize_stream, t.stream_add_callback) = (None, None);
}

fn driver(settings: &[(&str, &str)], options: &str) -> Opened {
    driver_in(settings, options, None)
}

/// Mapped memory in handles of so many bytes at most.
fn driver_in(settings: &[(&str, &str)], options: &str, tie: Option<u64>) -> Opened {
    let capacity = format!("{}M", CAPACITY / MIB);
    let mut all = vec![("capacity", capacity.as_str()), ("devices", "2"), ("keep_log", "1")];
    all.extend_from_slice(settings);
    let fake = Fake::new(&all, |o| (o.tie, o.tie_growth) = (tie, tie));
    runtime::set_default_options(Some("cuda"), None, options).unwrap();
    Opened { device: Device::get("cuda", 0).unwrap(), type_name: "cuda", truth: Truth::Driver(fake) }
}

/// `cuda` behind the seam: what the library sees when a whole call of the device fails.
fn cuda_behind_seam() -> Opened {
    // The fake is set up, and then the library is told of another type over it.
    let fake = Fake::new(&[("capacity", "48M"), ("devices", "2")], |_| {});
    let inner = CudaOptions { library: Some(library().into()), ..CudaOptions::default() };
    let opened = behind_seam(Arc::new(millpond::device::cuda::CudaType::new(inner)), None, "");
    drop(fake); // one world at a time is all that the turn is for
    opened
}

impl Opened {
    /// From here on calls are counted, and one fails.
    pub fn arm(&self, due: Option<(usize, Way)>) {
        match &self.truth {
            Truth::Driver(fake) => {
                fake.calls_reset();
                if let Some((nth, way)) = due {
                    let code = if way == Way::NoMemory { 2 } else { 719 };
                    fake.fail("*", nth as u64, code, way == Way::Sticky);
                }
            }
            _ => fault::arm(due),
        }
    }

    /// Nothing fails any more. The names of the calls since `arm`.
    pub fn heal(&self) -> Vec<String> {
        match &self.truth {
            Truth::Driver(fake) => {
                fake.fail_clear();
                let names = fake.log();
                let names = names.lines().filter(|l| l.starts_with("cu"));
                names.map(|l| l.split('(').next().unwrap_or(l).to_owned()).collect()
            }
            _ => fault::disarm(),
        }
    }

    /// [B] that the library has from device 0.
    pub fn bytes(&self) -> u64 {
        match &self.truth {
            Truth::Seam(book) => look(book).bytes,
            Truth::Plugin => slow::held_bytes(0) as u64,
            Truth::Driver(fake) => fake.used(0),
        }
    }

    /// [B] of host and unified memory, where that is known.
    pub fn host_bytes(&self) -> u64 {
        match &self.truth {
            Truth::Seam(book) => look(book).host,
            _ => 0,
        }
    }

    /// Streams and events that the library has, where that is known.
    pub fn handles(&self) -> (usize, usize) {
        match &self.truth {
            Truth::Seam(book) => {
                let book = look(book);
                (book.streams.len(), book.events.len())
            }
            Truth::Plugin => (slow::streams(), slow::events()),
            Truth::Driver(_) => (0, 0),
        }
    }

    /// What the library has done wrong, and, at its end, what is left of it.
    pub fn faults(&self, ended: bool) -> String {
        match &self.truth {
            Truth::Seam(_) => String::new(),
            Truth::Plugin => slow::faults().join("; "),
            Truth::Driver(fake) if ended => fake.leaks(),
            Truth::Driver(_) => String::new(),
        }
    }
}

macro_rules! kinds_without_heap {
    ($($name:ident: $pooled:expr, $open:expr;)*) => {
        $(
            #[test]
            fn $name() {
                static KIND: Kind = Kind { name: stringify!($name), open: || $open, pooled: $pooled, by_driver: false };
                crate::apart::apart_told(600, "faults", || crate::without_heap::all(&KIND));
            }
        )*
    };
}

macro_rules! kinds {
    ($($name:ident: $pooled:expr, $by_driver:expr, $open:expr;)*) => {
        $(
            #[test]
            fn $name() {
                static KIND: Kind = Kind { name: stringify!($name), open: || $open, pooled: $pooled, by_driver: $by_driver };
                let seconds = if std::env::var_os("FAULTS_ALL").is_some() { 3600 } else { 300 };
                crate::apart::apart_told(seconds, "faults", || crate::each::all(&KIND));
            }
        )*
    };
}

kinds! {
    host_that_maps: true, false, behind_seam(host(true), None, "");
    host_in_segments: true, false, behind_seam(host(false), Some(small_segments), "");
    host_without_pools: false, false, behind_seam(host(true), None, "backend:none");
    a_plugin: true, false, plugin(|_| ());
    a_plugin_without_events: true, false, plugin(without_events);
    a_plugin_without_streams: true, false, plugin(without_streams);
    cuda_that_maps: true, false, cuda_behind_seam();
    cuda_driver: true, true, driver(&[], "");
    cuda_driver_in_large_handles: true, true, driver_in(&[], "", Some(6 << 20));
    cuda_driver_without_mapping: true, true, driver(&[("no_vmm", "1"), ("capacity", "192M")], "");
    cuda_driver_pool: false, true, driver(&[], "backend:cudaMallocAsync");
}

/// Kinds whose layers do not allocate themselves, with a heap of the host that ends.
mod with_a_heap_that_ends {
    use super::*;

    kinds_without_heap! {
        host_that_maps: true, behind_seam(host(true), None, "");
        host_in_segments: true, behind_seam(host(false), Some(small_segments), "");
        host_without_pools: false, behind_seam(host(true), None, "backend:none");
        cuda_that_maps: true, driver(&[], "");
    }
}
