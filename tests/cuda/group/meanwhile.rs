//! What happens to a pool while a request asks other programs for it: nobody waits or gives for a request that is over.

use super::*;

/// \[ms\] How long a request would wait.
const WAITS: u64 = 20_000;

fn alloc(pool: *mut millpond_pool) -> C_Status {
    let mut p = null_mut();
    unsafe { millpond_pool_alloc(pool, 150 * MIB, null_mut(), &mut p) }
}

fn wake(pool: *mut millpond_pool) -> C_Status {
    unsafe { millpond_pool_wake(pool) }
}

fn new_pool(d: *mut millpond_device) -> *mut millpond_pool {
    let mut pool = null_mut();
    ok(unsafe { millpond_pool_create(d, null(), &mut pool) });
    pool
}

/// A pool that has 100 MiB to wake up with.
fn asleep(d: *mut millpond_device) -> (*mut millpond_pool, *mut c_void) {
    let (pool, mut p) = (new_pool(d), null_mut());
    ok(unsafe { millpond_pool_alloc(pool, 100 * MIB, null_mut(), &mut p) });
    ok(unsafe { millpond_pool_sleep(pool, 0) });
    (pool, p)
}

/// Runs what needs memory of the other program, which does not look, and does something `meanwhile`: that is told at once.
/// Returns what the other one has reserved then, of 200 MiB. \[MiB\]
#[track_caller]
fn ends(
    other: &mut Neighbour,
    pool: *mut millpond_pool,
    needs: fn(*mut millpond_pool) -> C_Status,
    code: u32,
    meanwhile: impl FnOnce(&mut Neighbour),
) -> u64 {
    let (_, used) = other.ask("look");
    other.ask(&format!("take {}", 200 - used));
    assert_eq!(other.ask("free 150"), (200, 50));
    other.ask("look");
    let from = Instant::now();
    let asks = {
        let pool = pool as usize;
        std::thread::spawn(move || (needs(pool as *mut millpond_pool), millpond_last_error_code()))
    };
    std::thread::sleep(Duration::from_millis(200));
    assert!(!asks.is_finished(), "it waits for the other one");
    meanwhile(other);
    let (done, found) = asks.join().unwrap();
    assert!(from.elapsed() < Duration::from_millis(WAITS / 2), "it waited on");
    assert_ne!(done, C_Status::SUCCESS);
    assert_eq!(found, code);
    other.ask("look").0
}

#[test]
fn nobody_waits_for_what_has_become_of_no_use_or_gives_for_it() {
    let place = folder();
    let fake = card(place.path());
    let d = device(0);
    join(d, place.path(), WAITS);
    let ((limited, p), (ended, q)) = (asleep(d), asleep(d));
    let mut other = Neighbour::start(place.path());

    let pool = new_pool(d);
    let left = ends(&mut other, pool, alloc, MILLPOND_E_NOT_PERMITTED, |_| {
        ok(unsafe { millpond_pool_sleep(pool, 0) });
    });
    assert_eq!(left, 200);
    ok(unsafe { millpond_pool_wake(pool) });

    let (captured, mut stream, mut capture) = (new_pool(d), null_mut(), null_mut());
    ok(unsafe { millpond_stream_create(d, &mut stream) });
    let left = ends(&mut other, pool, alloc, MILLPOND_E_OUT_OF_MEMORY, |_| {
        ok(unsafe { millpond_capture_begin(captured, stream, &mut capture) });
    });
    assert_eq!(left, 200);
    ok(unsafe { millpond_capture_end(capture) });
    ok(unsafe { millpond_capture_release(capture) });
    ok(unsafe { millpond_stream_destroy(d, stream) });
    ok(unsafe { millpond_pool_destroy(captured) });

    let left = ends(&mut other, pool, alloc, MILLPOND_E_INVALID_ARGUMENT, |_| {
        ok(unsafe { millpond_pool_destroy(pool) });
    });
    assert_eq!(left, 200);

    let left = ends(&mut other, ended, wake, MILLPOND_E_INVALID_ARGUMENT, |_| {
        free(q);
        ok(unsafe { millpond_pool_destroy(ended) });
    });
    assert_eq!(left, 200);

    // It has given what it was asked for, and then the limit refuses.
    let left = ends(&mut other, limited, wake, MILLPOND_E_OUT_OF_MEMORY, |other| {
        ok(unsafe { millpond_device_set_limit(d, 50 << 20) });
        assert!((150..160).contains(&other.ask("look").0));
    });
    assert!((150..160).contains(&left), "{left}");
    ok(unsafe { millpond_device_set_limit(d, 0) });
    ok(unsafe { millpond_pool_wake(limited) });
    free(p);
    ok(unsafe { millpond_pool_destroy(limited) });
    other.end();
    fake.end();
}
