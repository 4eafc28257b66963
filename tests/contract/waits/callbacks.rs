//! A thread is in a callback of the program's that the library has called: the others go on.

use super::*;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender};

/// What a callback and its test have between them: it tells that it runs, and stands until it hears something.
struct Stand {
    here: Sender<()>,
    go: Mutex<Receiver<()>>,
}

impl Stand {
    fn stop(&self) {
        let _ = self.here.send(());
        let _ = self.go.lock().unwrap().recv();
    }
}

/// Others, while a thread stands in the callback that `add` has added and `act` leads to.
fn while_inside(part: Part, add: impl FnOnce(&World, *mut c_void), act: fn(&World)) {
    let w = world(true);
    let ((here, is_here), (let_go, go)) = (channel(), channel::<()>());
    let stand: &'static Stand = Box::leak(Box::new(Stand { here, go: Mutex::new(go) }));
    add(&w, std::ptr::from_ref(stand).cast_mut().cast());
    let v = w.clone();
    let other = std::thread::spawn(move || act(&v));
    is_here.recv_timeout(Duration::from_secs(10)).expect("the callback is called");
    let waited = late(part(&w), Duration::from_secs(3));
    drop(let_go);
    other.join().unwrap();
    assert!(waited.is_empty(), "these wait for a thread that is in a callback: {waited:#?}");
}

unsafe extern "C-unwind" fn on_oom(data: *mut c_void, _: u64) -> bool {
    unsafe { &*data.cast::<Stand>() }.stop();
    false
}

unsafe extern "C-unwind" fn on_segment(data: *mut c_void, _: u32, _: *mut c_void, _: usize) {
    unsafe { &*data.cast::<Stand>() }.stop();
}

fn add_oom(w: &World, data: *mut c_void) {
    let mut id = 0;
    outcome(unsafe { millpond_device_add_oom_callback(ptr(w.d.0), Some(on_oom), data, &mut id) }).unwrap();
}

fn add_segment(w: &World, data: *mut c_void) {
    // It hears first of what is there already.
    let (d, data) = (w.d, data as usize);
    std::thread::spawn(move || {
        let mut id = 0;
        let add = unsafe {
            millpond_device_add_segment_callback(ptr(d.0), Some(on_segment), data as *mut c_void, &mut id)
        };
        outcome(add).unwrap();
    });
}

/// In an out-of-memory callback.
#[test]
fn while_an_out_of_memory_callback_runs() {
    apart(|| while_inside(all, add_oom, |w| assert!(w.pool.alloc(CAPACITY, w.a).is_err())));
}

/// During a segment callback, requests that need memory from the device wait for it, as the header says, and no others.
#[test]
fn while_a_segment_callback_runs() {
    apart(|| while_inside(easy, add_segment, |_| ()));
}
