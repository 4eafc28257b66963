//! Initialise, finalise, start anew; what old devices and handles answer then.

use super::*;
use crate::device::{Caps, Versions};

#[test]
fn a_type_that_is_not_initialised_answers_so() {
    let host = HostType::new("host", HostOptions::default());
    refused(host.device_count(), Code::NotInitialized);
    refused(host.open(0).map(drop), Code::NotInitialized);
    refused(host.finalize(), Code::NotInitialized);
    refused(host.stats(0), Code::NotInitialized);
    host.initialize().unwrap();
    refused(host.initialize(), Code::Busy);
    assert_eq!(host.device_count().unwrap(), 2);
    refused(host.open(2).map(drop), Code::UnknownDevice);
    refused(host.stats(2), Code::UnknownDevice);
}

#[test]
fn one_device_for_each_ordinal() {
    let (host, a, b) = host();
    assert_eq!((host.name(), a.ordinal(), b.ordinal()), ("host", 0, 1));
    assert!(Arc::ptr_eq(&a, &host.open(0).unwrap()));
    let sizes = a.sizes();
    assert_eq!((sizes.min_chunk, sizes.padding), (512, 0));
    assert_eq!([sizes.max_chunk, sizes.max_alloc, sizes.init_alloc, sizes.realloc], [256 * MIB; 4]);
    assert_eq!(a.versions(), Versions { compute_capability: 0, runtime: 100, driver: 100 });
    a.set_current().unwrap();
}

#[test]
fn capabilities_tell_segments_from_mapping() {
    let all = Caps::all() - Caps::RDMA;
    let (_host, a, _) = host_with(16 * MIB, false);
    assert_eq!(a.caps(), all - Caps::MAPPING - Caps::EXPORT);
    assert!(a.mapping().is_none() && a.sharing().is_none());
    #[cfg(target_os = "linux")]
    assert_eq!(host().1.caps(), all);
}

#[test]
fn after_finalize_everything_is_refused_and_a_new_start_works() {
    let (host, old, _) = host();
    let stream = old.streams().create().unwrap();
    let event = old.streams().event_create().unwrap();
    let block = old.alloc(GRANULE).unwrap();
    host.finalize().unwrap();

    let none = Code::NotInitialized;
    refused(old.memory_info(), none);
    refused(old.set_current(), none);
    refused(old.synchronize(), none);
    refused(old.alloc(512), none);
    refused(old.free(block, GRANULE), none);
    refused(old.host_alloc(512, PLAIN), none);
    refused(old.host_free(block, 512), none);
    refused(old.unified().unwrap().alloc(512), none);
    refused(old.unified().unwrap().free(block, 512), none);
    refused(old.memset(block, 0, 1), none);
    refused(old.memset_async(0, block, 0, 1), none);
    refused(old.streams().create(), none);
    refused(old.streams().query(stream), none);
    refused(old.streams().callback(stream, Box::new(|_| ())), none);
    refused(old.streams().event_record(stream, event), none);
    refused(old.mapping().unwrap().open_window(GRANULE), none);
    refused(old.mapping().unwrap().close_window(), none);
    assert!(!old.streams().exists(stream) && !old.streams().exists(0));
    refused(host.finalize(), none);

    host.initialize().unwrap();
    let new = host.open(0).unwrap();
    assert!(!Arc::ptr_eq(&old, &new));
    refused(old.memory_info(), none);
    // Handles of the former life are not mistaken for new ones.
    let fresh = new.streams().create().unwrap();
    assert_ne!(fresh, stream);
    refused(new.streams().query(stream), Code::UnknownStream);
    refused(new.streams().event_query(event), Code::UnknownEvent);
    assert_eq!(new.memory_info().unwrap().free, 256 * MIB);
}

#[test]
fn finalize_finishes_queued_work_of_live_and_destroyed_streams() {
    let (host, a, b) = host();
    let notes = Notes::default();
    let (s, t) = (a.streams().create().unwrap(), b.streams().create().unwrap());
    notes.add(&*a, s, 1, 50);
    let event = a.streams().event_create().unwrap();
    a.streams().event_record(s, event).unwrap();
    b.streams().wait_event(t, event).unwrap();
    notes.add(&*b, t, 2, 20);
    b.streams().destroy(t).unwrap();
    host.finalize().unwrap();
    assert_eq!(notes.read(), [1, 2]);
}

#[test]
fn finalize_lets_running_calls_end() {
    let (host, a, _) = host();
    let s = a.streams().create().unwrap();
    let plug = Plug::new(&*a, s);
    let waiter = {
        let a = Arc::clone(&a);
        std::thread::spawn(move || a.streams().synchronize(s))
    };
    std::thread::sleep(Duration::from_millis(20));
    let ender = std::thread::spawn(move || host.finalize());
    eventually("calls are refused", || a.memory_info().is_err());
    assert!(!ender.is_finished());
    plug.open();
    ender.join().unwrap().unwrap();
    waiter.join().unwrap().unwrap();
}

#[test]
fn finalize_lets_work_on_the_default_stream_end() {
    // Such work runs on a thread that finalize cannot join; its call must be waited for.
    let (host, a, _) = host();
    let block = a.alloc(4096).unwrap();
    let ((open, wait), (begin, begun)) = (channel(), channel());
    let caller = {
        let a = Arc::clone(&a);
        let touch = move |_| {
            begin.send(()).unwrap();
            let _: Result<(), _> = wait.recv();
            bytes(block, 4096).fill(1);
        };
        std::thread::spawn(move || a.streams().callback(0, Box::new(touch)))
    };
    begun.recv().unwrap();
    let ender = std::thread::spawn(move || host.finalize());
    eventually("calls are refused", || a.memory_info().is_err());
    std::thread::sleep(Duration::from_millis(20));
    assert!(!ender.is_finished());
    open.send(()).unwrap();
    caller.join().unwrap().unwrap();
    ender.join().unwrap().unwrap();
}

#[test]
fn dropping_the_type_in_its_own_callback_does_not_hang() {
    let (host, a, _) = host();
    let s = a.streams().create().unwrap();
    let (sent, got) = channel();
    let last = move |_: Result<()>| {
        drop(host);
        sent.send(()).unwrap();
    };
    a.streams().callback(s, Box::new(last)).unwrap();
    got.recv_timeout(Duration::from_secs(10)).unwrap();
}
