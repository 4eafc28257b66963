//! Captures, sleep and restore on the device type `cuda`: real captures of the (fake) driver beside Millpond's
//! pools, replays whose results are read back, and memory that goes and comes back.
//!
//! The fake ends a capture for every call that the driver's documentation forbids in one, so a capture that
//! ends well says that none was made.

mod failing;
mod graphs;
mod sleep;

use crate::cuda::*;
use millpond::runtime::{self, CopyKind, PoolId};
use millpond::{Code, DeviceState, Result};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const POOL: PoolId = PoolId::DEFAULT;
/// CU_STREAM_CAPTURE_MODE_*.
const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
/// Memory in granules that are mapped; and in segments of 64 MiB, of which each pool takes its own.
const MAPPED: &[(&str, &str)] = &[("driver", "12080")];
const SEGMENTS: &[(&str, &str)] = &[("no_vmm", "1"), ("capacity", "320M")];
/// A driver without `cuCtxRecordEvent`.
const OLD: &[(&str, &str)] = &[("driver", "11040")];

/// Who has made a stream that is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    Here,
    ElsewhereBlocking,
    ElsewhereNonBlocking,
}
use Made::*;

/// Everything under all drivers, for all streams that can be captured, in both modes.
fn everywhere(test: impl Fn(&'static [(&'static str, &'static str)], Made, u32)) {
    for settings in [MAPPED, SEGMENTS, OLD] {
        for made in [Here, ElsewhereBlocking, ElsewhereNonBlocking] {
            for mode in [GLOBAL, THREAD_LOCAL] {
                test(settings, made, mode);
            }
        }
    }
}

fn stream(fake: &Fake, d: &DeviceState, made: Made) -> u64 {
    match made {
        Here => d.streams().create().unwrap(),
        ElsewhereBlocking => fake.foreign_stream(0, 0),
        ElsewhereNonBlocking => fake.foreign_stream(0, 1),
    }
}

/// [`everywhere`], over a new library with one device, on a stream that was made so.
fn on_streams(test: impl Fn(Fake, Arc<DeviceState>, u64, Made, u32)) {
    everywhere(|settings, made, mode| {
        let (fake, d) = one(settings);
        let s = stream(&fake, &d, made);
        test(fake, d, s, made, mode);
    });
}

fn stream_end(fake: &Fake, d: &DeviceState, made: Made, s: u64) {
    if made == Here {
        d.streams().destroy(s).unwrap();
    } else {
        d.streams().forget(s).unwrap();
        fake.foreign_stream_end(s);
    }
}

/// Calls one of the driver's functions, as the framework that makes graphs does.
fn driver(fake: &Fake, call: impl FnOnce() -> u32) -> std::result::Result<(), u32> {
    let mut code = 0;
    fake.with_primary(0, || code = call());
    if code == 0 { Ok(()) } else { Err(code) }
}

fn record(fake: &Fake, s: u64, mode: u32) {
    let begin: extern "C" fn(u64, u32) -> u32 = fake.driver("cuStreamBeginCapture_v2");
    driver(fake, || begin(s, mode)).unwrap();
}

/// The graph, or why there is none.
fn recorded(fake: &Fake, s: u64) -> std::result::Result<u64, u32> {
    let end: extern "C" fn(u64, *mut u64) -> u32 = fake.driver("cuStreamEndCapture");
    let mut graph = 0;
    driver(fake, || end(s, &mut graph)).map(|()| graph)
}

/// Ends the capture, which must be valid, and makes it executable.
#[track_caller]
fn graph(fake: &Fake, s: u64) -> u64 {
    let graph =
        recorded(fake, s).unwrap_or_else(|code| panic!("the capture was disturbed: {code}\n{}", fake.log()));
    let make: extern "C" fn(*mut u64, u64, u64) -> u32 = fake.driver("cuGraphInstantiateWithFlags");
    let drop: extern "C" fn(u64) -> u32 = fake.driver("cuGraphDestroy");
    let mut exec = 0;
    driver(fake, || make(&mut exec, graph, 0)).unwrap();
    driver(fake, || drop(graph)).unwrap();
    exec
}

fn replay(fake: &Fake, exec: u64, s: u64) {
    let launch: extern "C" fn(u64, u64) -> u32 = fake.driver("cuGraphLaunch");
    let wait: extern "C" fn(u64) -> u32 = fake.driver("cuStreamSynchronize");
    driver(fake, || launch(exec, s)).unwrap();
    driver(fake, || wait(s)).unwrap();
}

fn graph_end(fake: &Fake, exec: u64) {
    let drop: extern "C" fn(u64) -> u32 = fake.driver("cuGraphExecDestroy");
    driver(fake, || drop(exec)).unwrap();
}

fn reserved(d: &DeviceState, p: PoolId) -> u64 {
    d.memory().pools().stats(p).unwrap().reserved.current
}

/// Blocks of others, and what they hold: everywhere, or (`sparse`) at a few places of each granule.
#[derive(Default)]
struct Others {
    blocks: Vec<(u64, usize, u8)>,
    sparse: bool,
}

impl Others {
    fn put(&mut self, fake: &Fake, at: u64, bytes: u64) {
        self.blocks.push((at, bytes as usize, 0x40 + (self.blocks.len() % 100) as u8));
        self.fill(fake, self.blocks.len() - 1);
    }
    /// The places of a block that are written and read: (address, bytes).
    fn places(&self, (at, bytes, _): (u64, usize, u8)) -> Vec<(u64, usize)> {
        if !self.sparse {
            return vec![(at, bytes)];
        }
        (0..bytes).step_by(512 << 10).map(|i| (at + i as u64, 64.min(bytes - i))).collect()
    }
    fn fill(&self, fake: &Fake, i: usize) {
        let block = self.blocks[i];
        for (at, bytes) in self.places(block) {
            fake.write(0, at, &vec![block.2; bytes]).unwrap();
        }
    }
    /// Takes all that the device still has.
    fn take_all(&mut self, fake: &Fake, d: &DeviceState, pool: PoolId, stream: u64) {
        while let Ok(at) = d.memory().alloc(pool, stream, GRANULE) {
            self.put(fake, at, GRANULE);
        }
    }
    #[track_caller]
    fn check(&self, fake: &Fake) {
        for &block in &self.blocks {
            for (at, bytes) in self.places(block) {
                let as_put = fake.read(0, at, bytes).unwrap() == vec![block.2; bytes];
                assert!(as_put, "memory of somebody else was written");
            }
        }
    }
    fn free(self, d: &DeviceState) {
        self.blocks.iter().for_each(|b| d.memory().free(b.0, None, None).unwrap());
    }
}

/// Work for a graph, in a pool's memory that comes and goes: `result` gets 1000 times `value`, then `value` + 1.
fn work(d: &DeviceState, s: u64, p: PoolId, result: u64, value: u8) -> Vec<u64> {
    let m = d.memory();
    let mut at = Vec::new();
    for (i, bytes) in [3 * MIB, 9 * MIB + 100].into_iter().enumerate() {
        let a = m.alloc(POOL, s, bytes).unwrap();
        assert_eq!(m.block(a).unwrap().pool, p, "a request of a captured stream");
        d.memset_async(s, a, value + i as u8, bytes).unwrap();
        let from = a + bytes - 1000;
        unsafe { d.copy_async(s, CopyKind::DeviceToDevice, result + i as u64 * 1000, from, 1000).unwrap() };
        m.free(a, Some(s), None).unwrap();
        at.push(a);
    }
    at
}

#[track_caller]
fn check_result(fake: &Fake, result: u64, value: u8) {
    let holds = fake.read(0, result, 2000).unwrap();
    assert!(
        holds[..1000].iter().all(|&b| b == value) && holds[1000..].iter().all(|&b| b == value + 1),
        "a replay"
    );
    fake.write(0, result, &[0; 2000]).unwrap();
}
