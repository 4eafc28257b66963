//! The handles that plugins give to their streams and events are numbers of their own, and mean nothing to the library:
//! a block waits for a stream whatever number stands for it, and for the point in its work.

use crate::apart::{apart_for, step};
use crate::client::*;
use crate::cuda::MIB;
use crate::slow::{self, Manner};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// A block of `s` that `t` uses, behind a gate; with handles of this kind.
fn handles(handle: fn(u64) -> u64) {
    slow::register(Manner { handle, ..Manner::default() }, |_| ()).unwrap();
    let d = device(slow::NAME, 0);
    let (s, t, pool) = (d.stream(), d.stream(), d.pool());
    let bytes = 2 * MIB;
    for round in 0..4 {
        step(&format!("round {round}"));
        let p = pool.alloc(bytes, s).unwrap();
        let e = d.event();
        let gate = Gate::hold(d, t);
        d.memset_async(t, p, 7, bytes).unwrap();
        d.event_record(t, e).unwrap();
        assert!(!d.event_done(e).unwrap(), "the event has passed its stream");
        match round {
            0 => record_stream(p, t).unwrap(),
            1 => record_end(p, t).unwrap(),
            2 => record_end_at(p, t, e).unwrap(),
            _ => {}
        }
        if round == 3 {
            pool.free(p, t).unwrap();
        } else {
            pool.free(p, s).unwrap();
        }
        let q = pool.alloc(bytes, s).unwrap();
        assert_ne!(p, q, "the block is given out under the work of a stream that uses it");
        gate.open();
        d.event_sync(e).unwrap();
        assert!(d.event_done(e).unwrap());
        d.event_end(e).unwrap();
        d.stream_sync(t).unwrap();
        pool.free(q, s).unwrap();
        // As many as a segment has room for.
        let again: Vec<u64> = (0..4).map(|_| pool.alloc(bytes, s).unwrap()).collect();
        assert!(again.contains(&p), "the block does not come back");
        again.into_iter().for_each(|p| pool.free(p, s).unwrap());
    }
    d.stream_end(s).unwrap();
    d.stream_end(t).unwrap();
    unregister(slow::NAME).unwrap();
    assert_eq!(slow::faults(), [""; 0]);
}

/// Handles whose top bits are those of numbers that the library has for itself.
#[test]
fn handles_that_begin_as_our_own_tickets_do_are_handles() {
    apart_for(60, || handles(|n| 0x71C7 << 48 | n));
}

#[test]
fn handles_that_begin_as_our_own_borrowed_events_do_are_handles() {
    apart_for(60, || handles(|n| 0xCA11 << 48 | n));
}

/// The largest numbers there are, and the smallest.
#[test]
fn handles_may_be_the_largest_numbers() {
    apart_for(60, || handles(|n| u64::MAX - (n - 1)));
}

#[test]
fn handles_may_be_the_smallest_numbers() {
    apart_for(60, || handles(|n| n));
}

/// Numbers with each pattern of top bits.
#[test]
fn handles_may_have_any_top_bits() {
    apart_for(120, || {
        static TOP: AtomicU32 = AtomicU32::new(0);
        for top in [0x0001, 0x7fff, 0x8000, 0xffff, 0x71c6, 0x71c7, 0x71c8, 0xca10, 0xca11, 0xca12] {
            TOP.store(top, SeqCst);
            step(&format!("{top:#x}"));
            handles(|n| u64::from(TOP.load(SeqCst)) << 48 | n << 4);
        }
    });
}
