//! The time between events, on the processor's devices and where there is none.

use crate::pools::*;
use crate::support::capi::{fails, fixture, ok};
use millpond::capi::*;
use std::ptr::{dangling_mut, null_mut};
use std::time::{Duration, Instant};

fn timed(device: *mut millpond_device) -> C_Event {
    let mut event = null_mut();
    ok(unsafe { millpond_event_create_timed(device, &mut event) });
    event
}

fn elapsed(h: &Host, start: C_Event, end: C_Event) -> f32 {
    let mut ms = f32::NAN;
    ok(unsafe { millpond_event_get_elapsed(h.device, start, end, &mut ms) });
    ms
}

#[test]
fn as_long_as_the_work_between_takes() {
    everywhere(|h| {
        let (stream, [start, end]) = (h.stream(), [timed(h.device), timed(h.device)]);
        let mut ms = 7.0;
        let mut get =
            |code| fails(unsafe { millpond_event_get_elapsed(h.device, start, end, &mut ms) }, code);
        get(MILLPOND_E_INVALID_ARGUMENT); // recorded nothing yet
        let begun = Instant::now();
        ok(unsafe { millpond_event_record(h.device, stream, start) });
        ok(unsafe { millpond_event_synchronize(h.device, start) });
        get(MILLPOND_E_INVALID_ARGUMENT);
        let gate = Gate::new(h.device, stream);
        ok(unsafe { millpond_event_record(h.device, stream, end) });
        get(MILLPOND_E_BUSY);
        assert_eq!(ms, 7.0);
        let gone = timed(h.device);
        ok(unsafe { millpond_event_destroy(h.device, gone) });
        for (a, b) in [(end, gone), (gone, end)] {
            fails(unsafe { millpond_event_get_elapsed(h.device, a, b, &mut ms) }, MILLPOND_E_UNKNOWN_EVENT);
        }
        std::thread::sleep(Duration::from_millis(30));
        gate.open();
        ok(unsafe { millpond_event_synchronize(h.device, end) });
        let whole = begun.elapsed().as_secs_f32() * 1e3;
        let ms = elapsed(&h, start, end);
        assert!(ms > 25.0 && ms <= whole, "{ms} ms of {whole}");
        assert_eq!(elapsed(&h, end, start), -ms);
        assert_eq!(elapsed(&h, end, end), 0.0);
        // Recorded again, on the default stream, it is a later time.
        ok(unsafe { millpond_event_record(h.device, null_mut(), start) });
        assert!(elapsed(&h, end, start) >= 0.0);
        // It serves as any other event.
        let mut done = false;
        ok(unsafe { millpond_event_query(h.device, end, &mut done) });
        ok(unsafe { millpond_stream_wait_event(h.device, stream, end) });
        ok(unsafe { millpond_stream_synchronize(h.device, stream) });
        assert!(done);
        for e in [start, end] {
            ok(unsafe { millpond_event_destroy(h.device, e) });
        }
        ok(unsafe { millpond_stream_destroy(h.device, stream) });
    });
}

#[test]
fn what_has_no_time() {
    let h = host(true);
    let (timed, mut plain, mut ms) = (timed(h.device), null_mut(), 0.0);
    ok(unsafe { millpond_event_create(h.device, &mut plain) });
    for e in [timed, plain] {
        ok(unsafe { millpond_event_record(h.device, null_mut(), e) });
    }
    let mut get = |a, b| unsafe { millpond_event_get_elapsed(h.device, a, b, &mut ms) };
    fails(get(timed, plain), MILLPOND_E_INVALID_ARGUMENT);
    fails(get(null_mut(), timed), MILLPOND_E_INVALID_ARGUMENT);
    ok(unsafe { millpond_event_destroy(h.device, plain) });
    fails(get(timed, plain), MILLPOND_E_UNKNOWN_EVENT);
    fails(
        unsafe { millpond_event_get_elapsed(h.device, timed, timed, null_mut()) },
        MILLPOND_E_INVALID_ARGUMENT,
    );
    ok(unsafe { millpond_event_destroy(h.device, timed) });
    drop(h);
    let f = fixture(); // a device that notes no times
    let mut event = dangling_mut();
    fails(unsafe { millpond_event_create_timed(f.device, &mut event) }, MILLPOND_E_UNSUPPORTED);
    assert_eq!(event, dangling_mut());
}
