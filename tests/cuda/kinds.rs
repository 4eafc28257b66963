//! Streams with priorities, and streams that are not ordered with NULL.

use crate::cuda::*;
use millpond::Code;
use millpond::runtime::{PoolId, StreamKind};

/// What the driver says of a stream: its priority, and its flags.
fn kind(fake: &Fake, stream: u64) -> (i32, u32) {
    let (mut priority, mut flags) = (9, 9);
    let ask: extern "C" fn(u64, *mut i32) -> u32 = fake.driver("cuStreamGetPriority");
    let look: extern "C" fn(u64, *mut u32) -> u32 = fake.driver("cuStreamGetFlags");
    fake.with_primary(0, || assert_eq!((ask(stream, &mut priority), look(stream, &mut flags)), (0, 0)));
    (priority, flags)
}

#[test]
fn a_stream_is_of_the_kind_that_was_asked_for() {
    let (fake, d) = one(&[]);
    let (least, greatest) = d.streams().priorities().unwrap();
    assert!(least == 0 && greatest < 0, "{least} {greatest}");
    let make =
        |priority, non_blocking| d.streams().create_with(StreamKind { priority, non_blocking }).unwrap();
    let all = [make(0, false), make(greatest, false), make(0, true), make(greatest, true), make(-99, false)];
    let kinds = all.map(|s| kind(&fake, s));
    assert_eq!(kinds, [(0, 0), (greatest, 0), (0, 1), (greatest, 1), (greatest, 0)]);
    // A stream that ended serves the next one of its kind, and no other.
    all.iter().for_each(|s| d.streams().destroy(*s).unwrap());
    assert_eq!(make(0, true), all[2]);
    assert_eq!(d.streams().create().unwrap(), all[0]);
    let fresh = d.streams().create().unwrap();
    assert!(!all.contains(&fresh) && kind(&fake, fresh) == (0, 0));
    assert_eq!(make(greatest, true), all[3]);
    assert_eq!(d.streams().query(all[1]).unwrap_err().code(), Code::UnknownStream);
    fake.end();
}

#[test]
fn memory_is_reused_in_order_whatever_the_kind() {
    let (fake, d) = one(&[("driver", "12080")]);
    let m = d.memory();
    let apart = d.streams().create_with(StreamKind { priority: 0, non_blocking: true }).unwrap();
    let at = m.alloc(PoolId::DEFAULT, apart, 40 * MIB).unwrap();
    fake.hold(true);
    d.memset_async(apart, at, 7, 40 * MIB).unwrap();
    m.free(at, Some(apart), None).unwrap();
    // NULL is not ordered with it by the driver: it waits for an event of it.
    let there = m.alloc(PoolId::DEFAULT, 0, 40 * MIB).unwrap();
    d.memset_async(0, there, 9, 40 * MIB).unwrap();
    fake.hold(false);
    d.synchronize().unwrap();
    assert_eq!(fake.read(0, there + 39 * MIB, 1), Ok(vec![9]));
    m.free(there, Some(0), None).unwrap();
    fake.end();
}

#[test]
fn a_blocking_copy_or_fill_waits_for_streams_of_every_kind() {
    let (fake, d) = one(&[("driver", "12080")]);
    let apart = d.streams().create_with(StreamKind { priority: 0, non_blocking: true }).unwrap();
    let at = d.memory().alloc(PoolId::DEFAULT, apart, MIB).unwrap();
    let read = || {
        let mut got = [0; 4];
        d.read(at, &mut got).unwrap();
        got
    };
    let calls: [(&dyn Fn(), [u8; 4]); 3] = [
        (&|| assert_eq!(read(), [7; 4]), [7; 4]),
        (&|| d.write(at, &[5; 4]).unwrap(), [5; 4]),
        (&|| d.memset(at, 6, MIB).unwrap(), [6; 4]),
    ];
    for (call, left) in calls {
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let wait = move |_: millpond::Result<()>| {
            let _ = gate.recv();
        };
        d.streams().callback(apart, Box::new(wait)).unwrap();
        d.memset_async(apart, at, 7, MIB).unwrap();
        std::thread::scope(|scope| {
            // If the call did not wait, the stream's fill would come last.
            scope.spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(50));
                drop(open);
            });
            call();
        });
        d.synchronize().unwrap();
        assert_eq!(read(), left);
    }
    fake.end();
}

/// Through the C API: on `cuda`, and on `host`, whose streams are all of one kind.
#[cfg(feature = "capi")]
#[test]
fn the_calls_of_c() {
    use millpond::capi::*;
    let (fake, _) = one(&[]);
    for (name, greatest) in [(c"cuda", -5), (c"host", 0)] {
        let (mut d, mut least, mut most) = (std::ptr::null_mut(), 9, 9);
        assert_eq!(unsafe { millpond_device_get(name.as_ptr(), 0, &mut d) }, C_Status::SUCCESS);
        let range = unsafe { millpond_device_get_stream_priority_range(d, &mut least, &mut most) };
        assert_eq!((range, least, most), (C_Status::SUCCESS, 0, greatest));
        let null = std::ptr::null_mut();
        let range = unsafe { millpond_device_get_stream_priority_range(d, null, null) };
        assert_eq!(range, C_Status::SUCCESS);
        let mut s = std::ptr::null_mut();
        let make = |flags, s: &mut C_Stream| unsafe { millpond_stream_create_with_priority(d, -1, flags, s) };
        assert_eq!(make(MILLPOND_STREAM_NON_BLOCKING, &mut s), C_Status::SUCCESS);
        assert_eq!(unsafe { millpond_stream_destroy(d, s) }, C_Status::SUCCESS);
        let before = s;
        assert_ne!(make(2, &mut s), C_Status::SUCCESS);
        assert_eq!((millpond_last_error_code(), s), (MILLPOND_E_INVALID_ARGUMENT, before));
    }
    fake.end();
}
