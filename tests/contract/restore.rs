//! A freed block waits for a stream, and another thread is just querying the device about it. A restore or the end of
//! its pool must still know of the block meanwhile: it waits for the block, or fails with BUSY and changes nothing.

use crate::apart::*;
use crate::api::*;
use crate::held::{self, Control, Hold, victim};
use millpond::capi::*;
use std::sync::Arc;
use std::thread::JoinHandle;

const BYTES: usize = 3 * MIB;
const CAPACITY: usize = 64 * MIB;

struct World {
    d: Device,
    control: Arc<Control>,
    pool: Pool,
    a: Stream,
    b: Stream,
}

fn world() -> World {
    let (d, control) = held::host(CAPACITY, true);
    World { d, control, pool: d.pool(0), a: d.stream(), b: d.stream() }
}

impl World {
    /// Frees a block that is held up on the second stream.
    fn free_used(&self, p: usize) -> Gate {
        record_stream(p, self.b).unwrap();
        let gate = self.d.gate(self.b);
        self.d.fill(self.b, p, 0xAA, MIB);
        gate.open_after(2 * LATE);
        self.pool.free(p, self.a).unwrap();
        gate
    }

    /// Another thread, which looks at the statistics, stands before the question whether a freed block's stream is
    /// through. It goes on by itself a little later.
    fn someone_asks(&self) -> (JoinHandle<()>, Hold) {
        let asking = self.control.hold_before("event_query", 1);
        let d = self.d;
        let other = victim(move || _ = d.stats());
        asking.reached();
        (other, asking)
    }
}

/// A call that may wait for the thread that asks, or for the stream. Lets the thread go when the call takes long.
fn beside<T: Send + 'static>(asking: &Hold, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(call()));
    if let Ok(answer) = told.recv_timeout(LATE) {
        return answer;
    }
    asking.let_go();
    told.recv_timeout(LATE * 20).expect("the call does not come back")
}

/// After a restore that says that it has gone well, exactly the blocks of the checkpoint are live, and their memory is
/// given to nobody else.
fn check_restored(w: &World, blocks: &[(usize, usize)]) {
    for &(p, bytes) in blocks {
        let found = block(p).map_err(|e| e.message);
        assert_eq!(found, Ok((p, bytes)), "a block that the restore has made live");
        poke(p, 0x33, bytes);
    }
    let s = w.pool.stats();
    let sum: usize = blocks.iter().map(|b| b.1).sum();
    assert_eq!((s.blocks.current, s.requested_bytes.current), (blocks.len() as u64, sum as u64));
    // Nothing that can be had now is a part of them.
    let mut others = Vec::new();
    while let Ok(q) = w.pool.alloc(MIB, w.a) {
        assert!(blocks.iter().all(|&b| !overlap(b, (q, MIB))), "{q:#x} is memory of a live block");
        others.push(q);
    }
    others.iter().for_each(|&q| poke(q, 0x44, MIB));
    assert!(blocks.iter().all(|&(p, bytes)| filled(p, bytes) == Some(0x33)));
    others.iter().for_each(|&q| w.pool.free(q, w.a).unwrap());
    blocks.iter().for_each(|b| w.pool.free(b.0, w.a).unwrap());
    w.d.synchronize().unwrap();
    assert_eq!(w.d.stats().active_bytes.current, 0);
    assert_eq!(w.d.room_for(2 * MIB), CAPACITY / (2 * MIB));
}

/// The query is about the block that the restore should make live again.
#[test]
fn a_restore_knows_of_a_block_that_is_just_asked_about() {
    apart(|| {
        let w = world();
        let p = w.pool.alloc(BYTES, w.a).unwrap();
        let kept = w.pool.checkpoint();
        let gate = w.free_used(p);
        let (other, asking) = w.someone_asks();
        let (pool, gate_open) = (w.pool, gate.opener());
        let done = beside(&asking, move || pool.restore(kept));
        asking.let_go();
        other.join().unwrap();
        gate_open();
        w.d.synchronize().unwrap();
        match done {
            Ok(live) => assert_eq!(live, vec![p]),
            Err(e) => {
                assert_eq!(e.code, MILLPOND_E_BUSY, "{}", e.message);
                assert_eq!(w.pool.restore(kept).unwrap(), vec![p]);
            }
        }
        check_restored(&w, &[(p, BYTES)]);
    });
}

/// The block that is asked about is in the way: its granule, which has gone to another stream of the pool meanwhile,
/// would have to come back.
#[test]
fn a_restore_takes_no_granule_of_a_block_that_is_just_asked_about() {
    apart(|| {
        let w = world();
        let p = w.pool.alloc(2 * MIB, w.a).unwrap();
        let kept = w.pool.checkpoint();
        w.pool.free(p, w.a).unwrap();
        // The second stream gets the granule, and a third one uses its block.
        let (d, c) = (w.d, w.d.stream());
        let x = w.pool.alloc(MIB, w.b).unwrap();
        assert!(overlap((p, 2 * MIB), (x, MIB)), "the test is about one granule");
        record_stream(x, c).unwrap();
        let gate = d.gate(c);
        d.fill(c, x, 0xAA, MIB);
        gate.open_after(2 * LATE);
        w.pool.free(x, w.b).unwrap();
        let (other, asking) = w.someone_asks();
        let pool = w.pool;
        let done = beside(&asking, move || pool.restore(kept));
        let early = !gate.is_open();
        asking.let_go();
        other.join().unwrap();
        if let Ok(live) = &done {
            assert_eq!(*live, vec![p]);
            // The host may write it when its own stream is through: the restore has waited for the third one.
            d.fill(w.a, p, 0x33, 2 * MIB);
            d.stream_synchronize(w.a).unwrap();
            gate.open();
            d.synchronize().unwrap();
            assert_eq!(filled(p, 2 * MIB), Some(0x33), "work of another stream came later; early: {early}");
        } else {
            assert_eq!(code(done), MILLPOND_E_BUSY);
            gate.open();
            d.synchronize().unwrap();
            assert_eq!(w.pool.restore(kept).unwrap(), vec![p]);
        }
        check_restored(&w, &[(p, 2 * MIB)]);
    });
}

/// A pool ends while a block of it is asked about: it is BUSY, or the block's memory goes back with the pool's.
#[test]
fn the_end_of_a_pool_knows_of_a_block_that_is_just_asked_about() {
    apart(|| {
        let w = world();
        let p = w.pool.alloc(BYTES, w.a).unwrap();
        let gate = w.free_used(p);
        let (other, asking) = w.someone_asks();
        gate.open(); // the device is at rest: nothing else is left to wait for
        let pool = w.pool;
        let done = beside(&asking, move || pool.destroy());
        asking.let_go();
        other.join().unwrap();
        if done.is_err() {
            assert_eq!(code(done), MILLPOND_E_BUSY);
            w.pool.destroy().unwrap();
        }
        let s = w.d.stats();
        assert_eq!((s.active_bytes.current, s.reserved_bytes.current), (0, 0), "memory belongs to nobody");
        assert_eq!(w.d.room_for(2 * MIB), CAPACITY / (2 * MIB), "memory is lost");
    });
}

/// The next pool does not begin with what an ended one has left behind.
#[test]
fn a_new_pool_gets_nothing_of_one_that_ended_while_a_block_was_asked_about() {
    apart(|| {
        let w = world();
        let p = w.pool.alloc(BYTES, w.a).unwrap();
        let gate = w.free_used(p);
        let (other, asking) = w.someone_asks();
        gate.open(); // the device is at rest: nothing else is left to wait for
        let pool = w.pool;
        if beside(&asking, move || pool.destroy()).is_err() {
            asking.let_go();
            other.join().unwrap();
            w.pool.destroy().unwrap();
            return;
        }
        let next = w.d.pool(2 * MIB);
        let a = w.a;
        let first = in_time(5, move || next.alloc(MIB, a));
        asking.let_go();
        other.join().unwrap();
        let first = first.expect("a request of the new pool waits for the thread that asks");
        next.free(first.unwrap(), w.a).unwrap();
        w.d.stats();
        let s = next.stats();
        assert_eq!(s.active_bytes.current, 0);
        assert!(s.reserved_bytes.current <= 2 * MIB as u64);
        assert!(next.alloc(BYTES, w.a).is_err(), "more than the limit of 2 MiB");
        assert_eq!(w.d.stats().reserved_bytes.current, s.reserved_bytes.current);
    });
}

/// Whether a captured pool's freed blocks wait is known, too: a restore while another thread asks is exact.
#[test]
fn a_restore_of_a_kept_pool_knows_of_a_block_that_is_just_asked_about() {
    apart(|| {
        let w = world();
        let capture = w.pool.capture(w.a).unwrap();
        let p = w.pool.alloc(BYTES, w.a).unwrap();
        capture.end().unwrap();
        let kept = w.pool.checkpoint();
        let gate = w.free_used(p);
        let (other, asking) = w.someone_asks();
        let (pool, open) = (w.pool, gate.opener());
        let done = beside(&asking, move || pool.restore(kept));
        asking.let_go();
        other.join().unwrap();
        open();
        w.d.synchronize().unwrap();
        if done.is_err() {
            assert_eq!(code(done), MILLPOND_E_BUSY);
            w.pool.restore(kept).unwrap();
        }
        assert_eq!(block(p).map_err(|e| e.message), Ok((p, BYTES)), "a block that the restore has made live");
        w.pool.free(p, w.a).unwrap();
        capture.release().unwrap();
        w.d.stats();
        w.pool.destroy().unwrap();
        assert_eq!(w.d.stats().reserved_bytes.current, 0);
    });
}

/// The block of a pool that has ended goes back, or the pool still has it; the next pool has none of it.
fn none_is_lost(w: &World) {
    let d = w.d;
    d.synchronize().unwrap();
    assert_eq!(d.stats().active_bytes.current, 0);
    let next = d.pool(2 * MIB);
    assert!(next.alloc(BYTES, w.a).is_err(), "more than the limit of 2 MiB");
    next.destroy().unwrap();
    d.empty_cache().unwrap();
    assert_eq!(d.stats().reserved_bytes.current, 0);
    assert_eq!(d.room_for(2 * MIB), CAPACITY / (2 * MIB), "memory is lost");
}

/// A pool that was let go of ends when its last block is freed, and a thread is just freeing that one: it stands where
/// it marks the stream that has used the block. Whoever ends the pool meanwhile must know of the block.
#[test]
fn the_end_of_a_released_pool_knows_of_the_block_that_is_just_freed() {
    apart(|| {
        let w = world();
        let (d, p) = (w.d, w.pool.alloc(BYTES, w.a).unwrap());
        record_stream(p, w.b).unwrap();
        w.pool.release().unwrap();
        let marking = w.control.hold_before("event_record", 1);
        let other = victim(move || free(p).unwrap());
        marking.reached();
        // The end of a released pool comes with one of these.
        beside(&marking, move || d.empty_cache()).unwrap();
        marking.let_go();
        other.join().unwrap();
        none_is_lost(&w);
    });
}

/// The same where the block was freed on a stream that was captured then, and is marked when the capture has ended.
#[test]
fn the_end_of_a_released_pool_knows_of_the_block_that_is_just_marked() {
    apart(|| {
        let w = world();
        let (d, p) = (w.d, w.pool.alloc(BYTES, w.a).unwrap());
        record_stream(p, w.b).unwrap();
        let capture = d.pool(0).capture(w.b).unwrap();
        w.pool.free(p, w.a).unwrap();
        w.pool.release().unwrap();
        let marking = w.control.hold_before("event_record", 1);
        let other = victim(move || capture.end().unwrap());
        marking.reached();
        beside(&marking, move || d.empty_cache()).unwrap();
        marking.let_go();
        other.join().unwrap();
        capture.release().unwrap();
        none_is_lost(&w);
    });
}
