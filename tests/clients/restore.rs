//! Checkpoints of a pool's layout. A restore frees the blocks allocated since, once the streams that use them are done,
//! and makes the blocks freed since live again. If those streams are idle, the restore succeeds, however often blocks
//! have come and gone at one address in between. (docs/pools.md, "Checkpoint and restore")

use crate::apart::{apart_for, step};
use crate::client::*;
use crate::cuda::MIB;
use std::time::{Duration, Instant};

/// A block of the checkpoint has gone, and another one lies where it was, of another size, which `t` uses too.
fn another_block_at_the_address(kind: &str, busy: bool) {
    let _fake = (kind == "cuda").then(|| cuda("1", &[]));
    if kind == "host" {
        configure_host(64 * MIB, true);
    }
    let d = device(kind, 0);
    let (s, t, pool) = (d.stream(), d.stream(), d.new_pool());
    let x = pool.alloc(3 * MIB, s).unwrap();
    let checkpoint = pool.checkpoint();
    pool.free(x, s).unwrap();
    let y = pool.alloc(3 * MIB - 1000, s).unwrap();
    assert_eq!(x, y, "the scene: another block at the same address");
    record_stream(y, t).unwrap();
    let start = Instant::now();
    let wait = Duration::from_millis(300);
    let _gate = busy.then(|| {
        let gate = Gate::hold(d, t);
        gate.open_after(wait);
        gate
    });
    step("restore");
    for round in 0..3 {
        pool.restore(checkpoint).unwrap_or_else(|e| panic!("in round {round}: {e:?}"));
        assert!(!busy || start.elapsed() >= wait, "a block was freed under work of a stream that uses it");
        let info = block(x).unwrap();
        assert_eq!((info.base.addr() as u64, info.requested_bytes as u64), (x, 3 * MIB));
        assert_eq!(pool.stats().unwrap().blocks.current, 1);
        // And again: the same in the next round.
        pool.free(x, s).unwrap();
        assert_eq!(pool.alloc(3 * MIB - 1000, s).unwrap(), x);
        record_stream(x, t).unwrap();
    }
}

#[test]
fn a_layout_comes_back_where_another_block_lies_that_a_stream_has_used() {
    apart_for(60, || another_block_at_the_address("cuda", false));
}

#[test]
fn a_layout_of_the_host_device_comes_back_where_another_block_lies_that_a_stream_has_used() {
    apart_for(60, || another_block_at_the_address("host", false));
}

/// The stream still uses that other block: the restore waits for it, and succeeds.
#[test]
fn a_restore_waits_for_the_stream_that_uses_another_block_at_the_address() {
    apart_for(60, || another_block_at_the_address("host", true));
}

/// A block of the checkpoint that is still the same one keeps its uses: nobody waits for them.
#[test]
fn a_restore_does_not_wait_for_blocks_that_stay() {
    apart_for(60, || {
        configure_host(64 * MIB, true);
        let d = device("host", 0);
        let (s, t, pool) = (d.stream(), d.stream(), d.new_pool());
        let x = pool.alloc(3 * MIB, s).unwrap();
        record_stream(x, t).unwrap();
        let checkpoint = pool.checkpoint();
        let gate = Gate::hold(d, t);
        let y = pool.alloc(MIB, s).unwrap();
        pool.restore(checkpoint).unwrap();
        assert!(!d.stream_done(t) && block(y).is_err());
        pool.free(x, s).unwrap();
        assert_ne!(pool.alloc(3 * MIB, s).unwrap(), x, "it is used by a stream that stands still");
        gate.open();
    });
}
