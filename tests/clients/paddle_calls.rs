//! Millpond as a plugin, called as PaddlePaddle 2.6 to 3.3 call it, over the table that `InitPlugin` fills.
//!
//! A copy between two devices of a type: `memory::Copy` of two places of one type makes the source the current device
//! and calls the source's `MemoryCopyP2P` with the stream of the context that it was given, and `Tensor::copy_to`
//! gives it the context of the *destination* (paddle/phi/core/memory/memcpy.cc, paddle/phi/core/tensor_utils.cc,
//! paddle/phi/api/lib/tensor_method.cc). A blocking copy has no stream, and calls `memory_copy_p2p`.
//!
//! The end of a tensor in a forked child: PaddlePaddle 2.6's `StreamSafeCustomDeviceAllocation` makes an event, records
//! it on the tensor's stream and asks for it, in a destructor; a status other than `C_SUCCESS` is an exception
//! there, which ends the process (seen with the released wheel of 2.6.2).

use crate::apart::{apart_for, step};
use crate::client::Gate;
use millpond::paddle::abi::*;
use millpond::paddle::init_plugin;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::mpsc::channel;
use std::time::Duration;

const OK: C_Status = C_Status::SUCCESS;
const BYTES: usize = 1 << 20;

/// The table, initialised, over three devices of the host. It lives as long as the process.
fn table() -> Table {
    for (name, value) in [("MILLPOND_HOST_DEVICES", "3"), ("MILLPOND_HOST_CAPACITY", "64M")] {
        // SAFETY: the process is this test's own, and nothing has been started in it.
        unsafe { std::env::set_var(name, value) };
    }
    let layout = KnownLayout::ALL.iter().max_by_key(|l| l.interface_size).unwrap();
    let (params, table) = (vec![0_u64; 512].leak(), vec![0_u64; 512].leak());
    (params[0], table[0]) = (layout.params_size as u64, layout.interface_size as u64);
    params[1] = table.as_mut_ptr() as usize as u64;
    unsafe { init_plugin(params.as_mut_ptr().cast()) };
    // SAFETY: 4 KiB, aligned, zeros or callbacks.
    let t = Table(unsafe { &*table.as_ptr().cast::<C_DeviceInterface>() });
    assert_eq!(unsafe { t.initialize.unwrap()() }, OK);
    t
}

/// The table of callbacks, which any thread may call.
#[derive(Clone, Copy)]
struct Table(&'static C_DeviceInterface);

// SAFETY: by the contract of the interface; its reserved pointers are not looked at.
unsafe impl Send for Table {}

impl std::ops::Deref for Table {
    type Target = C_DeviceInterface;
    fn deref(&self) -> &C_DeviceInterface {
        self.0
    }
}

fn dev(id: i32) -> C_Device_st {
    C_Device_st { id }
}

fn stream(t: Table, id: i32) -> C_Stream {
    let mut s = null_mut();
    assert_eq!(unsafe { t.create_stream.unwrap()(&mut dev(id), &mut s) }, OK);
    s
}

fn alloc(t: Table, id: i32) -> *mut c_void {
    let mut p = null_mut();
    assert_eq!(unsafe { t.device_memory_allocate.unwrap()(&mut dev(id), &mut p, BYTES) }, OK);
    assert!(!p.is_null());
    p
}

fn upload(t: Table, id: i32, to: *mut c_void, value: u8) {
    let bytes = vec![value; BYTES];
    assert_eq!(unsafe { t.memory_copy_h2d.unwrap()(&mut dev(id), to, bytes.as_ptr().cast(), BYTES) }, OK);
}

/// What the block holds, without waiting for anything but the call itself.
fn peek(p: *mut c_void) -> u8 {
    // SAFETY: memory of the host's devices, of `BYTES` bytes.
    unsafe { p.cast::<u8>().add(BYTES - 1).read_volatile() }
}

/// The stream stops here until the gate opens.
fn hold(t: Table, id: i32, s: C_Stream) -> Gate {
    unsafe extern "C-unwind" fn call(_: C_Device, _: C_Stream, data: *mut c_void, _: *mut C_Status) {
        // SAFETY: from `into_raw` below, for one call.
        let wait = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce()>>()) };
        wait();
    }
    let gate = Gate::new();
    let wait: Box<Box<dyn FnOnce()>> = Box::new(Box::new(gate.wait()));
    let data = Box::into_raw(wait).cast();
    assert_eq!(unsafe { t.stream_add_callback.unwrap()(&mut dev(id), s, Some(call), data) }, OK);
    gate
}

fn sync(t: Table, id: i32, s: C_Stream) {
    assert_eq!(unsafe { t.synchronize_stream.unwrap()(&mut dev(id), s) }, OK);
}

fn copy_p2p(t: Table, to: (i32, *mut c_void), from: (i32, *mut c_void), s: C_Stream) -> C_Status {
    // The source is made current first, as PaddlePaddle does.
    assert_eq!(unsafe { t.set_device.unwrap()(&mut dev(from.0)) }, OK);
    unsafe { t.async_memory_copy_p2p.unwrap()(&mut dev(to.0), &mut dev(from.0), s, to.1, from.1, BYTES) }
}

/// The copy runs on the destination's stream, in its order: after what was queued there, before what comes.
#[test]
fn a_copy_between_devices_runs_on_the_destinations_stream() {
    apart_for(60, || {
        let t = table();
        let (from, to, s) = (alloc(t, 0), alloc(t, 1), stream(t, 1));
        upload(t, 0, from, 7);
        upload(t, 1, to, 1);
        let gate = hold(t, 1, s);
        assert_eq!(copy_p2p(t, (1, to), (0, from), s), OK);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(peek(to), 1, "the copy ran before what was queued on the stream");
        let mut down = vec![0_u8; BYTES];
        let at = down.as_mut_ptr().cast();
        assert_eq!(unsafe { t.async_memory_copy_d2h.unwrap()(&mut dev(1), s, at, to, BYTES) }, OK);
        gate.open();
        sync(t, 1, s);
        assert!(down.iter().all(|&b| b == 7), "later work of the stream came before the copy");
        // And back, and on: each time on the stream of where it goes.
        let (third, u) = (alloc(t, 2), stream(t, 2));
        assert_eq!(copy_p2p(t, (2, third), (1, to), u), OK);
        sync(t, 2, u);
        assert_eq!(peek(third), 7);
        assert_eq!(unsafe { t.finalize.unwrap()() }, OK);
    });
}

/// Its source is freed when the copy is queued, as PaddlePaddle does with a tensor that nobody holds any more: the
/// memory is not used again before the copy has read it.
#[test]
fn the_source_of_a_copy_between_devices_may_be_freed_at_once() {
    apart_for(60, || {
        let t = table();
        let (from, to, s) = (alloc(t, 0), alloc(t, 1), stream(t, 1));
        upload(t, 0, from, 7);
        let gate = hold(t, 1, s);
        assert_eq!(copy_p2p(t, (1, to), (0, from), s), OK);
        gate.open_after(Duration::from_millis(800)); // the free may wait for the copy
        step("free the source");
        assert_eq!(unsafe { t.device_memory_deallocate.unwrap()(&mut dev(0), from, BYTES) }, OK);
        for _ in 0..4 {
            upload(t, 0, alloc(t, 0), 9);
        }
        sync(t, 1, s);
        assert_eq!(peek(to), 7, "the copy has read the next owner's bytes");
        assert_eq!(unsafe { t.finalize.unwrap()() }, OK);
    });
}

/// The same for the destination: freed before the copy has run, it is not used again before that.
#[test]
fn the_destination_of_a_copy_between_devices_may_be_freed_at_once() {
    apart_for(60, || {
        let t = table();
        let (from, to, s) = (alloc(t, 0), alloc(t, 1), stream(t, 1));
        upload(t, 0, from, 7);
        let gate = hold(t, 1, s);
        assert_eq!(copy_p2p(t, (1, to), (0, from), s), OK);
        gate.open_after(Duration::from_millis(800));
        assert_eq!(unsafe { t.device_memory_deallocate.unwrap()(&mut dev(1), to, BYTES) }, OK);
        let next: Vec<_> = (0..4).map(|_| alloc(t, 1)).collect();
        next.iter().for_each(|&p| upload(t, 1, p, 9));
        sync(t, 1, s);
        assert!(next.iter().all(|&p| peek(p) == 9), "the copy wrote into the next block");
        assert_eq!(unsafe { t.finalize.unwrap()() }, OK);
    });
}

/// PaddlePaddle keeps freed memory in a cache of its own, and uses it again in the order of the source's streams, which
/// know nothing of the copy: what comes next on the source's device, of whichever kind, comes after it.
#[test]
fn what_comes_next_on_the_sources_device_comes_after_a_copy_on_the_destinations_stream() {
    apart_for(60, || {
        let t = table();
        let (from, to, s, near) = (alloc(t, 0), alloc(t, 1), stream(t, 1), stream(t, 0));
        for queued in [false, true] {
            upload(t, 0, from, 7);
            upload(t, 1, to, 1);
            let gate = hold(t, 1, s);
            assert_eq!(copy_p2p(t, (1, to), (0, from), s), OK);
            gate.open_after(Duration::from_millis(300));
            if queued {
                let bytes = vec![9_u8; BYTES];
                let at = bytes.as_ptr().cast();
                assert_eq!(
                    unsafe { t.async_memory_copy_h2d.unwrap()(&mut dev(0), near, from, at, BYTES) },
                    OK
                );
                sync(t, 0, near);
            } else {
                upload(t, 0, from, 9);
            }
            sync(t, 1, s);
            assert_eq!(peek(to), 7, "the copy has read what came later");
            assert_eq!(peek(from), 9);
        }
        assert_eq!(unsafe { t.finalize.unwrap()() }, OK);
    });
}

/// And what is queued there already makes the bytes that are copied.
#[test]
fn a_copy_on_the_destinations_stream_comes_after_work_on_the_sources_device() {
    apart_for(60, || {
        let t = table();
        let (from, to, s, near) = (alloc(t, 0), alloc(t, 1), stream(t, 1), stream(t, 0));
        upload(t, 0, from, 1);
        let gate = hold(t, 0, near);
        let bytes = vec![7_u8; BYTES];
        let at = bytes.as_ptr().cast();
        assert_eq!(unsafe { t.async_memory_copy_h2d.unwrap()(&mut dev(0), near, from, at, BYTES) }, OK);
        assert_eq!(copy_p2p(t, (1, to), (0, from), s), OK);
        std::thread::sleep(Duration::from_millis(50));
        gate.open();
        sync(t, 1, s);
        assert_eq!(peek(to), 7, "the copy came before the work that makes its bytes");
        assert_eq!(unsafe { t.finalize.unwrap()() }, OK);
    });
}

/// The source's stream and the default one serve as well; that of a third device does not.
#[test]
fn a_copy_between_devices_runs_on_the_sources_stream_too() {
    apart_for(60, || {
        let t = table();
        let (from, to) = (alloc(t, 0), alloc(t, 1));
        let s = stream(t, 0);
        upload(t, 0, from, 7);
        assert_eq!(copy_p2p(t, (1, to), (0, from), s), OK);
        sync(t, 0, s);
        assert_eq!(peek(to), 7);
        upload(t, 1, to, 1);
        assert_eq!(copy_p2p(t, (1, to), (0, from), null_mut()), OK);
        sync(t, 0, null_mut());
        sync(t, 1, null_mut());
        assert_eq!(peek(to), 7);
        assert_eq!(copy_p2p(t, (1, to), (0, from), stream(t, 2)), C_Status::ERROR);
        assert_eq!(unsafe { t.finalize.unwrap()() }, OK);
    });
}

/// Runs `checks` in a forked child: (what, whether it holds). Those that do not hold come back.
fn in_child(checks: impl FnOnce() -> Vec<(&'static str, bool)>) -> Vec<&'static str> {
    let mut pipe = [0; 2];
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        unsafe { libc::alarm(20) };
        for (i, (what, good)) in checks().into_iter().enumerate() {
            let number = [i as u8];
            if !good {
                println!("in the child: {what}");
                unsafe { libc::write(pipe[1], number.as_ptr().cast(), 1) };
            }
        }
        unsafe { libc::_exit(0) }
    }
    let mut status = -1;
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    unsafe { libc::close(pipe[1]) };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child hung or crashed: {status}");
    let mut bad = [0_u8; 256];
    let n = unsafe { libc::read(pipe[0], bad.as_mut_ptr().cast(), bad.len()) };
    vec!["see above"; n.max(0) as usize]
}

/// In a forked child there is no work: what only waits for work, asks for it or ends something has nothing to do, and
/// succeeds. PaddlePaddle makes these calls while such a child leaves.
#[test]
fn what_only_waits_or_ends_succeeds_in_a_forked_child() {
    apart_for(60, || {
        let t = table();
        let (p, s) = (alloc(t, 0), stream(t, 0));
        let (mut e, mut other, mut pinned) = (null_mut(), null_mut(), null_mut());
        unsafe {
            assert_eq!(t.create_event.unwrap()(&mut dev(0), &mut e), OK);
            assert_eq!(t.create_event.unwrap()(&mut dev(0), &mut other), OK);
            assert_eq!(t.host_memory_allocate.unwrap()(&mut dev(0), &mut pinned, BYTES), OK);
        }
        // Work is under way at the fork; it is the parent's.
        let gate = hold(t, 0, s);
        assert_eq!(unsafe { t.record_event.unwrap()(&mut dev(0), s, e) }, OK);
        let bad = in_child(|| {
            let mut d = dev(0);
            let (mut fresh, mut current) = (null_mut(), dev(-1));
            unsafe {
                vec![
                    ("set_device", t.set_device.unwrap()(&mut d) == OK),
                    ("get_device", t.get_device.unwrap()(&mut current) == OK),
                    // How PaddlePaddle 2.6 lets a tensor go.
                    ("create_event", t.create_event.unwrap()(&mut d, &mut fresh) == OK),
                    ("record_event", t.record_event.unwrap()(&mut d, s, fresh) == OK),
                    ("query_event", t.query_event.unwrap()(&mut d, fresh) == OK),
                    ("destroy_event of a new one", t.destroy_event.unwrap()(&mut d, fresh) == OK),
                    ("device_memory_deallocate", t.device_memory_deallocate.unwrap()(&mut d, p, BYTES) == OK),
                    // What was made before the fork.
                    ("query_event of the parent's", t.query_event.unwrap()(&mut d, e) == OK),
                    ("query_stream", t.query_stream.unwrap()(&mut d, s) == OK),
                    ("stream_wait_event", t.stream_wait_event.unwrap()(&mut d, s, e) == OK),
                    ("record_event of the parent's", t.record_event.unwrap()(&mut d, s, other) == OK),
                    ("synchronize_event", t.synchronize_event.unwrap()(&mut d, e) == OK),
                    ("synchronize_stream", t.synchronize_stream.unwrap()(&mut d, s) == OK),
                    ("synchronize_stream of NULL", t.synchronize_stream.unwrap()(&mut d, null_mut()) == OK),
                    ("synchronize_device", t.synchronize_device.unwrap()(&mut d) == OK),
                    (
                        "host_memory_deallocate",
                        t.host_memory_deallocate.unwrap()(&mut d, pinned, BYTES) == OK,
                    ),
                    ("destroy_event", t.destroy_event.unwrap()(&mut d, e) == OK),
                    ("destroy_stream", t.destroy_stream.unwrap()(&mut d, s) == OK),
                    ("deinit_device", t.deinit_device.unwrap()(&mut d) == OK),
                    ("finalize", t.finalize.unwrap()() == OK),
                    // And what comes after that, from other destructors.
                    ("synchronize_device, late", t.synchronize_device.unwrap()(&mut d) == OK),
                    ("query_event, late", t.query_event.unwrap()(&mut d, other) == OK),
                ]
            }
        });
        gate.open();
        assert!(bad.is_empty(), "{} calls failed in the child, see above", bad.len());
        // The parent has lost nothing by it.
        sync(t, 0, s);
        upload(t, 0, p, 3);
        assert_eq!(peek(p), 3);
        assert_eq!(unsafe { t.finalize.unwrap()() }, OK);
    });
}

/// A child that was forked while other threads are inside the plugin: nothing there may hang on a lock of theirs.
#[test]
fn a_forked_child_does_not_hang_on_the_locks_of_threads_that_it_has_not() {
    apart_for(60, || {
        let t = table();
        let s = stream(t, 0) as usize;
        let (stop, stopped) = channel::<()>();
        let busy = std::thread::spawn(move || {
            while stopped.try_recv().is_err() {
                let p = alloc(t, 0);
                let mut e = null_mut();
                unsafe {
                    assert_eq!(t.create_event.unwrap()(&mut dev(0), &mut e), OK);
                    assert_eq!(t.record_event.unwrap()(&mut dev(0), s as C_Stream, e), OK);
                    t.query_event.unwrap()(&mut dev(0), e);
                    assert_eq!(t.destroy_event.unwrap()(&mut dev(0), e), OK);
                    assert_eq!(t.device_memory_deallocate.unwrap()(&mut dev(0), p, BYTES), OK);
                }
            }
        });
        for _ in 0..20 {
            let bad = in_child(|| {
                let (mut d, mut e) = (dev(0), null_mut());
                unsafe {
                    vec![
                        ("create_event", t.create_event.unwrap()(&mut d, &mut e) == OK),
                        ("record_event", t.record_event.unwrap()(&mut d, s as C_Stream, e) == OK),
                        ("query_event", t.query_event.unwrap()(&mut d, e) == OK),
                        ("synchronize_event", t.synchronize_event.unwrap()(&mut d, e) == OK),
                        ("destroy_event", t.destroy_event.unwrap()(&mut d, e) == OK),
                    ]
                }
            });
            if !bad.is_empty() {
                stop.send(()).unwrap();
                busy.join().unwrap();
                panic!("{} calls failed in the child, see above", bad.len());
            }
        }
        stop.send(()).unwrap();
        busy.join().unwrap();
        assert_eq!(unsafe { t.finalize.unwrap()() }, OK);
    });
}
