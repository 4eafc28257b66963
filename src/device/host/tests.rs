//! Tests of the host device through the `Device` trait, one file per noun.

mod copies;
mod failures;
mod forks;
mod lifecycle;
mod mapping;
mod memory;
mod stress;
mod threads;

use super::{HostOptions, HostType};
use crate::base::error::{Code, Result};
use crate::device::{Device, DeviceType, HostWish};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const GRANULE: u64 = 2 * MIB;
/// Host memory as any device gives it.
const PLAIN: HostWish = HostWish { register: false, threads: 0 };

/// An initialised type of two devices with 256 MiB each.
fn host() -> (HostType, Arc<dyn Device>, Arc<dyn Device>) {
    host_with(256 * MIB, true)
}

fn host_with(capacity: u64, mapping: bool) -> (HostType, Arc<dyn Device>, Arc<dyn Device>) {
    let host = HostType::new("host", HostOptions { device_count: 2, capacity, mapping });
    host.initialize().unwrap();
    let (a, b) = (host.open(0).unwrap(), host.open(1).unwrap());
    (host, a, b)
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T>, code: Code) {
    assert_eq!(result.unwrap_err().code(), code);
}

/// Reads or writes device memory, which the host can.
fn bytes(addr: u64, len: usize) -> &'static mut [u8] {
    let start: *mut u8 = std::ptr::with_exposed_provenance_mut(addr as usize);
    // SAFETY: tests pass ranges that they have allocated, and hold one slice of a range at a time.
    unsafe { std::slice::from_raw_parts_mut(start, len) }
}

fn addr_of(data: &[u8]) -> u64 {
    data.as_ptr().expose_provenance() as u64
}

/// Holds a stream up with a callback until it is opened or dropped.
struct Plug(Sender<()>);

impl Plug {
    fn new(device: &dyn Device, stream: u64) -> Plug {
        let (open, wait): (_, Receiver<()>) = channel();
        device
            .streams()
            .callback(
                stream,
                Box::new(move |_| {
                    let _ = wait.recv();
                }),
            )
            .unwrap();
        Plug(open)
    }

    fn open(self) {
        let _ = self.0.send(());
    }
}

/// What callbacks have noted, in order.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<u32>>>);

impl Notes {
    fn add(&self, device: &dyn Device, stream: u64, number: u32, pause_ms: u64) {
        let notes = self.clone();
        let note = move |result: Result<()>| {
            result.unwrap();
            std::thread::sleep(Duration::from_millis(pause_ms));
            notes.0.lock().unwrap().push(number);
        };
        device.streams().callback(stream, Box::new(note)).unwrap();
    }

    fn read(&self) -> Vec<u32> {
        self.0.lock().unwrap().clone()
    }
}

/// Waits for a condition that other threads bring about.
#[track_caller]
fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < Duration::from_secs(10), "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `body` in a process of its own (this test alone, started anew), where it may count threads
/// or other things that belong to the process. `name` is the test's path below this module.
fn alone(name: &str, body: impl FnOnce()) {
    if std::env::var_os("MILLPOND_TEST_ALONE").is_some() {
        return body();
    }
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("device::host::tests::{name}"), "--test-threads=1"])
        .env("MILLPOND_TEST_ALONE", "1")
        .output()
        .unwrap();
    let (text, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && text.contains("1 passed"), "{}\n{text}{errors}", run.status);
}
