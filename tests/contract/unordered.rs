//! Blocks without a stream: their free waits for the streams that have work, for all of it, and for nothing where
//! there is none. So a pair on an idle device costs the same beside any number of streams.

use crate::apart::*;
use crate::api::*;
use crate::held;
use millpond::capi::MILLPOND_E_UNKNOWN_STREAM;

const CAPACITY: usize = 64 * MIB;
const BYTES: usize = 64 * KIB;

/// A free of a block without a stream, and then a request for as much: whether that has the same memory.
#[track_caller]
fn comes_back(d: Device) -> bool {
    let p = d.alloc(BYTES).unwrap();
    free(p).unwrap();
    let q = d.alloc(BYTES).unwrap();
    free(q).unwrap();
    p == q
}

/// No event is made or recorded, and the memory is there at once.
#[test]
fn a_pair_on_an_idle_device_asks_it_nothing() {
    apart(|| {
        for mapping in [true, false] {
            let (_, control) = held::host(CAPACITY, mapping);
            let d = Device::get(held::NAME, 0).unwrap();
            let streams: Vec<Stream> = (0..64).map(|_| d.stream()).collect();
            for &s in &streams {
                d.fill(s, d.alloc(512).unwrap(), 1, 512);
            }
            d.synchronize().unwrap();
            for &s in &streams[32..] {
                d.end_stream(s).unwrap();
            }
            assert!(comes_back(d), "the fences of ended streams are passed");
            let calls = || ["event_create", "event_record", "event_query"].map(|name| control.calls(name));
            let before = calls();
            for _ in 0..100 {
                assert!(comes_back(d));
            }
            assert_eq!(calls(), before);
        }
    });
}

/// One of many streams has work: on it, behind its end, or on the default stream's account.
#[test]
fn work_on_any_stream_is_waited_for() {
    apart(|| {
        for mapping in [true, false] {
            let d = host(CAPACITY, mapping);
            let other = Device::get("host", 1).unwrap();
            let streams: Vec<Stream> = (0..16).map(|_| d.stream()).collect();
            assert!(comes_back(d));
            let works: [(&str, &dyn Fn() -> Gate); 4] = [
                ("a stream", &|| d.gate(streams[7])),
                ("a stream that has ended", &|| {
                    let s = d.stream();
                    let gate = d.gate(s);
                    d.end_stream(s).unwrap();
                    gate
                }),
                ("a stream that waits for another device", &|| {
                    let (s, e) = (other.stream(), other.event());
                    let gate = other.gate(s);
                    other.event_record(s, e).unwrap();
                    d.stream_wait(streams[3], e).unwrap();
                    gate
                }),
                ("the default stream, which waits for another device", &|| {
                    let (s, e) = (other.stream(), other.event());
                    let gate = other.gate(s);
                    other.event_record(s, e).unwrap();
                    d.stream_wait(NULL, e).unwrap();
                    gate
                }),
            ];
            for (what, work) in works {
                let gate = work();
                assert!(!comes_back(d), "{what} may still use the block");
                assert_eq!(d.default_pool().stats().blocks.current, 0);
                gate.open();
                d.synchronize().unwrap();
                other.synchronize().unwrap();
                assert!(comes_back(d), "{what}: the work is over");
            }
        }
    });
}

/// A captured stream has no work that could be seen.
#[test]
fn a_captured_stream_is_waited_for() {
    apart(|| {
        let d = host(CAPACITY, true);
        let (s, pool) = (d.stream(), d.pool(0));
        let capture = pool.capture(s).unwrap();
        assert!(!comes_back(d), "what is captured may use the block");
        capture.end().unwrap();
        assert!(comes_back(d));
        capture.release().unwrap();
    });
}

/// A stream that is named at the free changes nothing.
#[test]
fn a_stream_at_the_free_changes_nothing() {
    apart(|| {
        let d = host(CAPACITY, true);
        let (s, t) = (d.stream(), d.stream());
        for named in [NULL, s] {
            let p = d.alloc(BYTES).unwrap();
            d.default_pool().free(p, named).unwrap();
            assert_eq!(d.alloc(BYTES).unwrap(), p);
            let gate = d.gate(t);
            d.default_pool().free(p, named).unwrap();
            assert_ne!(d.alloc(BYTES).unwrap(), p, "another stream may still use the block");
            gate.open();
            d.synchronize().unwrap();
        }
    });
}

/// A thread that does not own the memory frees it.
#[test]
fn a_free_on_another_thread_is_as_good() {
    apart(|| {
        let d = host(CAPACITY, true);
        let t = d.stream();
        for _ in 0..100 {
            let p = d.alloc(BYTES).unwrap();
            std::thread::spawn(move || free(p).unwrap()).join().unwrap();
            assert_eq!(d.alloc(BYTES).unwrap(), p);
            free(p).unwrap();
        }
        let p = d.alloc(BYTES).unwrap();
        let gate = d.gate(t);
        std::thread::spawn(move || free(p).unwrap()).join().unwrap();
        assert_ne!(d.alloc(BYTES).unwrap(), p, "the stream may still use the block");
        gate.open();
    });
}

/// What programs have where there is no stream is no stream: no block comes from it, and none goes by it.
#[test]
fn a_number_that_is_no_stream_is_refused() {
    apart(|| {
        for mapping in [true, false] {
            let d = crate::api::host(4 * CAPACITY, mapping);
            let (s, pool) = (d.stream(), d.default_pool());
            // Blocks of a stream that has ended, and without one, both by the shortest ways there are.
            for _ in 0..100 {
                let p = pool.alloc(BYTES, s).unwrap();
                pool.free(p, s).unwrap();
                let q = d.alloc(BYTES).unwrap();
                free(q).unwrap();
            }
            let blocks = [pool.alloc(BYTES, s).unwrap(), d.alloc(BYTES).unwrap()];
            d.end_stream(s).unwrap();
            for number in [-1isize, -2, -3, -4, 0x5EED] {
                let no_stream = Stream(number as usize);
                for bytes in [0, 1000, BYTES, 5 * MIB] {
                    assert_eq!(code(pool.alloc(bytes, no_stream)), MILLPOND_E_UNKNOWN_STREAM, "{number}");
                }
                for p in blocks {
                    assert_eq!(code(pool.free(p, no_stream)), MILLPOND_E_UNKNOWN_STREAM, "{number}");
                    assert_eq!(code(record_stream(p, no_stream)), MILLPOND_E_UNKNOWN_STREAM, "{number}");
                }
            }
            blocks.into_iter().for_each(|p| free(p).unwrap());
        }
    });
}
