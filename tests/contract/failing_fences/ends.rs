//! A stream ends, and its last point cannot be had or waited for.

use super::*;

/// A stream ends with work queued while no event can be made. `next` requests its memory, on a stream.
fn ends_without_a_point(why: Code, next: impl FnOnce(Device, Pool) -> (Stream, usize)) {
    let (d, control, pool) = world();
    let a = d.stream();
    let all = pool.alloc(CAPACITY, a).unwrap();
    let gate = d.gate(a);
    d.fill(a, all, 0xAA, CAPACITY);
    pool.free(all, a).unwrap();
    gate.open_after(2 * LATE);
    no_events(&control, why);
    let ended = d.end_stream(a);
    control.mend();

    let (c, q) = next(d, pool);
    if c == NULL {
        poke(q, 0x11, BYTES);
    } else {
        d.fill(c, q, 0x11, BYTES);
        std::thread::sleep(LATE / 4);
    }
    gate.open();
    d.synchronize().unwrap();
    assert_eq!(filled(q, BYTES), Some(0x11), "work of the ended stream came after that of the next owner");
    free(q).unwrap();
    if ended.is_err() {
        d.end_stream(a).unwrap(); // after an error it is as it was
    }
    all_is_back(d);
}

/// The next stream of the pool takes over what the ended one has left.
#[test]
fn a_stream_that_ends_when_no_event_can_be_made_is_waited_for_by_the_next() {
    apart(|| {
        ends_without_a_point(Code::OutOfMemory, |d, pool| {
            let c = d.stream();
            (c, pool.alloc(BYTES, c).unwrap())
        });
    });
}

/// The same where the device fails in another way.
#[test]
fn a_stream_that_ends_when_the_device_fails_is_waited_for_by_the_next() {
    apart(|| {
        ends_without_a_point(Code::Device, |d, pool| {
            let c = d.stream();
            (c, pool.alloc(BYTES, c).unwrap())
        });
    });
}

/// A stream of another pool takes what the ended one has left.
#[test]
fn a_stream_that_ends_when_no_event_can_be_made_is_waited_for_by_another_pool() {
    apart(|| {
        ends_without_a_point(Code::OutOfMemory, |d, _| {
            let c = d.stream();
            (c, d.pool(0).alloc(BYTES, c).unwrap())
        });
    });
}

/// A request without a stream, which the host may use at once, takes it.
#[test]
fn a_stream_that_ends_when_no_event_can_be_made_is_waited_for_by_the_host() {
    apart(|| ends_without_a_point(Code::OutOfMemory, |d, _| (NULL, d.alloc(BYTES).unwrap())));
}

/// A stream that has used a block of another one ends while the device fails as `fail` says. The block waits for its
/// work all the same.
fn a_use_ends(fail: impl FnOnce(&Control)) {
    let (d, control, pool) = world();
    let (a, b) = (d.stream(), d.stream());
    let p = pool.alloc(BYTES, a).unwrap();
    record_stream(p, b).unwrap();
    let gate = d.gate(b);
    d.fill(b, p, 0xAA, BYTES);
    gate.open_after(2 * LATE);
    fail(&control);
    let ended = d.end_stream(b);
    control.mend();

    pool.free(p, a).unwrap();
    let q = pool.alloc(BYTES, a).unwrap();
    d.fill(a, q, 0x11, BYTES);
    std::thread::sleep(LATE / 4);
    gate.open();
    d.synchronize().unwrap();
    assert_eq!(filled(q, BYTES), Some(0x11), "work of the ended stream came after the next owner's");
    free(q).unwrap();
    if ended.is_err() {
        d.end_stream(b).unwrap();
    }
    all_is_back(d);
}

/// No event can be made.
#[test]
fn a_use_on_a_stream_that_ends_when_no_event_can_be_made_is_waited_for() {
    apart(|| a_use_ends(|control| no_events(control, Code::OutOfMemory)));
}

/// Events can be made, and the wait for one fails.
#[test]
fn a_use_on_a_stream_whose_end_cannot_be_waited_for_is_not_over() {
    apart(|| a_use_ends(|control| control.fail_all("event_synchronize", Code::Device)));
}
