//! Pools that sleep. A pool gives its memory back and later has it again at the same addresses with the same contents,
//! whatever other pools do meanwhile: end, lose their graphs, or sleep themselves.

use crate::apart::{apart_for, step};
use crate::client::*;
use crate::cuda::{GRANULE, MIB};

/// Two pools that graphs keep. The first once had a block that was shown over two granules of its own, far apart; one
/// of the granules has gone to the second pool since.
struct Scene {
    d: Dev,
    first: Pool,
    second: Pool,
    graph_of_second: Capture,
    /// Live blocks of the first pool, each a granule, and what they hold.
    kept: Vec<(u64, u8)>,
    /// The block of the second pool.
    taken: u64,
    s: u64,
}

const CAPACITY: u64 = 16 * MIB;

fn scene(kind: &str) -> Scene {
    let _fake = (kind == "cuda").then(|| cuda("1", &[("capacity", "16M")]));
    if kind == "host" {
        configure_host(CAPACITY, true);
    }
    let d = device(kind, 0);
    let (first, second, s) = (d.new_pool(), d.new_pool(), d.stream());
    let singles: Vec<u64> = (0..4).map(|_| first.alloc(GRANULE, s).unwrap()).collect();
    first.free(singles[0], s).unwrap();
    first.free(singles[2], s).unwrap();
    let scattered = first.alloc(2 * GRANULE, s).unwrap();
    assert!(!overlap(scattered, 2 * GRANULE, singles[0], 3 * GRANULE), "it should be shown elsewhere");
    first.free(scattered, s).unwrap();
    // The second pool finds the device full, and takes a granule of the first.
    let rest = d.pool().alloc(CAPACITY - 4 * GRANULE, s).unwrap();
    let taken = second.alloc(GRANULE, s).unwrap();
    assert!(
        overlap(taken, GRANULE, singles[0], 3 * GRANULE),
        "it should be one of the first pool's granules"
    );
    d.pool().free(rest, s).unwrap();
    // Both pools have a graph.
    let keep = |p: Pool| {
        let capture = p.capture(d.stream()).unwrap();
        capture.end().unwrap();
        capture
    };
    keep(first);
    let graph_of_second = keep(second);
    let kept = vec![(singles[1], 0x31), (singles[3], 0x33)];
    for &(p, value) in &kept {
        d.memset(p, value, GRANULE).unwrap();
    }
    Scene { d, first, second, graph_of_second, kept, taken, s }
}

impl Scene {
    #[track_caller]
    fn check_the_first_wakes(&self) {
        step("wake the first pool");
        self.first.wake().unwrap();
        for &(p, value) in &self.kept {
            assert_eq!(self.d.read(p, 2).unwrap(), [value; 2], "what slept has lost its contents");
        }
    }

    fn end_the_second(&self) {
        self.second.free(self.taken, self.s).unwrap();
        self.graph_of_second.release().unwrap();
        self.second.destroy().unwrap();
    }
}

/// A pool wakes although another one, which had taken a granule from it before, has lost its graph and ended.
fn the_other_pool_ends(kind: &str) {
    let x = scene(kind);
    x.first.sleep().unwrap();
    x.end_the_second();
    x.check_the_first_wakes();
}

#[test]
fn a_pool_wakes_after_another_pool_has_ended() {
    apart_for(60, || the_other_pool_ends("cuda"));
}

#[test]
fn a_pool_of_the_host_device_wakes_after_another_pool_has_ended() {
    apart_for(60, || the_other_pool_ends("host"));
}

/// A pool wakes while another one sleeps that had taken a granule from it before, and that one wakes after it.
fn both_sleep(kind: &str) {
    let x = scene(kind);
    x.d.memset(x.taken, 0x44, GRANULE).unwrap();
    x.first.sleep().unwrap();
    x.second.sleep().unwrap();
    x.check_the_first_wakes();
    x.second.wake().unwrap();
    assert_eq!(x.d.read(x.taken, 2).unwrap(), [0x44; 2]);
    x.first.sleep().unwrap();
    x.check_the_first_wakes();
}

#[test]
fn a_pool_wakes_while_another_one_sleeps() {
    apart_for(60, || both_sleep("cuda"));
}

#[test]
fn a_pool_of_the_host_device_wakes_while_another_one_sleeps() {
    apart_for(60, || both_sleep("host"));
}

/// The other way round: the pool that took the granule sleeps over the end of the one that had it.
#[test]
fn a_pool_wakes_after_the_end_of_the_one_that_it_took_memory_from() {
    apart_for(60, || {
        let x = scene("cuda");
        x.d.memset(x.taken, 0x44, GRANULE).unwrap();
        x.second.sleep().unwrap();
        for &(p, _) in &x.kept {
            x.first.free(p, x.s).unwrap();
        }
        x.d.empty_cache().unwrap();
        x.second.wake().unwrap();
        assert_eq!(x.d.read(x.taken, 2).unwrap(), [0x44; 2]);
    });
}
