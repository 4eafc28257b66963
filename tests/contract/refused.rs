//! The device refuses to take memory back, and takes it at the next try. A thread that needs this memory while another
//! one is retrying waits for the result, instead of failing on a device that works.

use crate::apart::*;
use crate::api::*;
use crate::held::{self, Control, victim};
use millpond::Code;
use std::sync::Arc;

/// A device that sees nothing of this any more: a pool sleeps there, could not be woken, and its memory did not go
/// back.
fn asleep() -> (Device, Arc<Control>, Pool, usize) {
    let (d, control) = held::host(16 * MIB, true);
    let (pool, s) = (d.pool(0), d.stream());
    let block = pool.alloc(4 * MIB, s).unwrap();
    poke(block, 7, 4 * MIB);
    pool.sleep(true).unwrap();
    control.fail_all("copy", Code::Device);
    control.fail_all("granules_release", Code::Device);
    pool.wake().unwrap_err();
    control.mend();
    (d, control, pool, block)
}

/// Something beside a thread that is held while it asks the device again.
fn beside_who_asks(call: &str, something: fn(Device, Pool) -> Outcome<()>) {
    let (d, control, pool, block) = asleep();
    let hold = control.hold_before(call, 1);
    let first = victim(move || d.alloc(4 * MIB));
    hold.reached();
    let second = std::thread::spawn(move || something(d, pool));
    std::thread::sleep(LATE / 2);
    hold.let_go();
    free(first.join().unwrap().unwrap()).unwrap();
    second.join().unwrap().unwrap();
    assert_eq!(filled(block, 4 * MIB), Some(7));
    free(block).unwrap();
    pool.destroy().unwrap();
    d.empty_cache().unwrap();
    assert_eq!(d.stats().reserved_bytes.current, 0);
}

#[test]
fn a_wake_beside_a_thread_that_asks_again() {
    apart(|| beside_who_asks("granules_release", |_, pool| pool.wake()));
}
