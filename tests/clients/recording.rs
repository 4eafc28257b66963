//! Captures of the (fake) driver, as the framework that makes graphs has them. The fake ends a capture for each call
//! that the driver's documentation forbids in one; so a capture that ends well says that none was made.

use crate::cuda::Fake;

/// CU_STREAM_CAPTURE_MODE_RELAXED: no other thread's calls are forbidden.
const RELAXED: u32 = 2;

/// Calls one of the driver's functions with the primary context of device 0 current: its status.
pub fn driver(fake: &Fake, call: impl FnOnce() -> u32) -> u32 {
    let mut status = 0;
    fake.with_primary(0, || status = call());
    status
}

/// The driver records the stream's work from here on.
pub fn record(fake: &Fake, s: u64) {
    let begin: extern "C" fn(u64, u32) -> u32 = fake.driver("cuStreamBeginCapture_v2");
    assert_eq!(driver(fake, || begin(s, RELAXED)), 0);
}

/// Ends the recording, which must be whole, and makes a graph of it that can be launched.
#[track_caller]
pub fn graph(fake: &Fake, s: u64) -> u64 {
    let end: extern "C" fn(u64, *mut u64) -> u32 = fake.driver("cuStreamEndCapture");
    let make: extern "C" fn(*mut u64, u64, u64) -> u32 = fake.driver("cuGraphInstantiateWithFlags");
    let destroy: extern "C" fn(u64) -> u32 = fake.driver("cuGraphDestroy");
    let (mut graph, mut exec) = (0, 0);
    assert_eq!(driver(fake, || end(s, &mut graph)), 0, "the capture was disturbed");
    assert_eq!(driver(fake, || make(&mut exec, graph, 0)), 0);
    assert_eq!(driver(fake, || destroy(graph)), 0);
    exec
}

/// Launches a graph and waits for it: the driver's status.
pub fn replay(fake: &Fake, exec: u64, s: u64) -> u32 {
    let launch: extern "C" fn(u64, u64) -> u32 = fake.driver("cuGraphLaunch");
    match driver(fake, || launch(exec, s)) {
        0 => fake.stream_sync(0, s),
        status => status,
    }
}

pub fn graph_end(fake: &Fake, exec: u64) {
    let destroy: extern "C" fn(u64) -> u32 = fake.driver("cuGraphExecDestroy");
    assert_eq!(driver(fake, || destroy(exec)), 0);
}
