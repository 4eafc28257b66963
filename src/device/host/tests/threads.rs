//! Streams, events and callbacks: order, concurrency, the default stream, and the threads behind.

use super::*;
use crate::device::CopyKind;

#[test]
fn a_stream_works_in_order_and_streams_beside_each_other() {
    let (_host, a, _) = host();
    let (s, t) = (a.streams().create().unwrap(), a.streams().create().unwrap());
    let notes = Notes::default();
    for n in 0..20 {
        notes.add(&*a, s, n, u64::from(n % 3));
    }
    a.streams().synchronize(s).unwrap();
    assert_eq!(notes.read(), (0..20).collect::<Vec<_>>());
    // Each of two streams waits for the other's callback: only possible side by side.
    let (to_t, from_s) = channel();
    let (to_s, from_t) = channel();
    let (done, both) = channel();
    let second = done.clone();
    let limit = Duration::from_secs(10);
    let ping = move |_| {
        to_t.send(()).unwrap();
        done.send(from_t.recv_timeout(limit).is_ok()).unwrap();
    };
    let pong = move |_| {
        to_s.send(()).unwrap();
        second.send(from_s.recv_timeout(limit).is_ok()).unwrap();
    };
    a.streams().callback(s, Box::new(ping)).unwrap();
    a.streams().callback(t, Box::new(pong)).unwrap();
    assert_eq!([both.recv().unwrap(), both.recv().unwrap()], [true, true]);
}

#[test]
fn events_order_work_across_streams_and_devices() {
    let (_host, a, b) = host();
    let (s, t, far) =
        (a.streams().create().unwrap(), a.streams().create().unwrap(), b.streams().create().unwrap());
    let (first, second) = (a.streams().event_create().unwrap(), a.streams().event_create().unwrap());
    let notes = Notes::default();
    notes.add(&*a, s, 1, 40);
    a.streams().event_record(s, first).unwrap();
    a.streams().wait_event(t, first).unwrap();
    notes.add(&*a, t, 2, 40);
    a.streams().event_record(t, second).unwrap();
    b.streams().wait_event(far, second).unwrap();
    notes.add(&*b, far, 3, 0);
    assert!(!a.streams().event_query(second).unwrap());
    b.streams().synchronize(far).unwrap();
    assert_eq!(notes.read(), [1, 2, 3]);
    assert!(a.streams().event_query(first).unwrap() && a.streams().event_query(second).unwrap());
}

#[test]
fn an_event_is_complete_until_recorded_and_then_waits_for_its_record_only() {
    let (_host, a, _) = host();
    let s = a.streams().create().unwrap();
    let event = a.streams().event_create().unwrap();
    assert!(a.streams().event_query(event).unwrap());
    a.streams().event_synchronize(event).unwrap();
    let first = Plug::new(&*a, s);
    a.streams().event_record(s, event).unwrap();
    let second = Plug::new(&*a, s);
    assert!(!a.streams().event_query(event).unwrap());
    first.open();
    a.streams().event_synchronize(event).unwrap();
    assert!(a.streams().event_query(event).unwrap());
    assert!(!a.streams().query(s).unwrap(), "what came after the record still runs");
    second.open();
}

#[test]
fn a_wait_keeps_what_the_event_had_recorded_when_it_was_queued() {
    let (_host, a, _) = host();
    let (s, t, u) =
        (a.streams().create().unwrap(), a.streams().create().unwrap(), a.streams().create().unwrap());
    let event = a.streams().event_create().unwrap();
    let early = Plug::new(&*a, s);
    a.streams().event_record(s, event).unwrap();
    a.streams().wait_event(t, event).unwrap();
    let notes = Notes::default();
    notes.add(&*a, t, 1, 0);
    // Recorded anew behind something that ends later, then destroyed: the queued wait stays as it was.
    let late = Plug::new(&*a, u);
    a.streams().event_record(u, event).unwrap();
    a.streams().event_destroy(event).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(notes.read(), [0; 0]);
    early.open();
    a.streams().synchronize(t).unwrap();
    assert_eq!(notes.read(), [1]);
    assert!(!a.streams().query(u).unwrap());
    late.open();
    refused(a.streams().event_query(event), Code::UnknownEvent);
}

#[test]
fn the_default_stream_waits_for_all_others_and_is_done_on_return() {
    let (_host, a, b) = host();
    let (s, gone) = (a.streams().create().unwrap(), a.streams().create().unwrap());
    let block = a.alloc(4096).unwrap();
    let notes = Notes::default();
    notes.add(&*a, s, 1, 30);
    a.streams().destroy(gone).unwrap();
    assert!(!a.streams().query(0).unwrap());
    a.memset_async(0, block, 6, 4096).unwrap();
    assert_eq!((notes.read(), bytes(block, 1)[0]), (vec![1], 6));
    assert!(a.streams().query(0).unwrap());
    notes.add(&*a, s, 2, 30);
    let here = std::thread::current().id();
    let same = Arc::new(Mutex::new(false));
    let seen = Arc::clone(&same);
    let callback = move |_| *seen.lock().unwrap() = std::thread::current().id() == here;
    a.streams().callback(0, Box::new(callback)).unwrap();
    assert_eq!(notes.read(), [1, 2]);
    assert!(*same.lock().unwrap(), "runs on the calling thread");
    notes.add(&*a, s, 3, 30);
    a.streams().synchronize(0).unwrap();
    assert_eq!(notes.read(), [1, 2, 3]);
    // An event recorded on it is complete at once, though another stream is held up.
    let event = a.streams().event_create().unwrap();
    let plug = Plug::new(&*a, s);
    a.streams().event_record(0, event).unwrap();
    assert!(a.streams().event_query(event).unwrap());
    plug.open();
    // A wait for another device's event holds for the next work on it, and does not block itself.
    let far = b.streams().create().unwrap();
    let (plug, event, after) =
        (Plug::new(&*b, far), b.streams().event_create().unwrap(), a.streams().event_create().unwrap());
    b.streams().event_record(far, event).unwrap();
    a.streams().wait_event(0, event).unwrap();
    a.streams().event_record(0, after).unwrap();
    assert!(!a.streams().event_query(after).unwrap(), "stands for the wait as well");
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        plug.open();
    });
    a.memset_async(0, block, 7, 4096).unwrap();
    assert!(b.streams().event_query(event).unwrap() && a.streams().event_query(after).unwrap());
    late.join().unwrap();
}

/// Where it is known that nothing is queued, a block without a stream takes the quick way.
#[test]
fn a_default_stream_that_is_found_done_makes_the_device_idle() {
    let (_host, a, b) = host();
    let far = b.streams().create().unwrap();
    let (plug, event) = (Plug::new(&*b, far), b.streams().event_create().unwrap());
    b.streams().event_record(far, event).unwrap();
    a.streams().wait_event(0, event).unwrap();
    assert!(!a.streams().query(0).unwrap() && !a.streams().idle());
    plug.open();
    b.streams().synchronize(far).unwrap();
    assert!(a.streams().query(0).unwrap() && a.streams().idle());
}

#[test]
fn synchronize_waits_for_every_stream() {
    let (_host, a, b) = host();
    let notes = Notes::default();
    for n in 0..4 {
        let s = a.streams().create().unwrap();
        notes.add(&*a, s, 0, 10 * n);
        if n % 2 == 0 {
            a.streams().destroy(s).unwrap();
        }
    }
    let far = b.streams().create().unwrap();
    let plug = Plug::new(&*b, far);
    a.synchronize().unwrap(); // does not wait for the other device
    assert_eq!(notes.read(), [0; 4]);
    plug.open();
}

#[test]
fn dead_and_foreign_handles_are_told_apart() {
    let (_host, a, b) = host();
    let (s, event) = (a.streams().create().unwrap(), a.streams().event_create().unwrap());
    assert!(a.streams().exists(s) && a.streams().exists(0) && !b.streams().exists(s));
    for bad in [1, s + 1, u64::MAX, event] {
        assert!(!a.streams().exists(bad));
        refused(a.streams().query(bad), Code::UnknownStream);
        refused(a.streams().synchronize(bad), Code::UnknownStream);
        refused(a.streams().destroy(bad), Code::UnknownStream);
        refused(a.streams().wait_event(bad, event), Code::UnknownStream);
        refused(a.streams().event_record(bad, event), Code::UnknownStream);
        refused(a.streams().callback(bad, Box::new(|_| ())), Code::UnknownStream);
    }
    refused(a.streams().destroy(0), Code::UnknownStream);
    for bad in [0, s, event + 1] {
        refused(a.streams().event_query(bad), Code::UnknownEvent);
        refused(a.streams().event_synchronize(bad), Code::UnknownEvent);
        refused(a.streams().event_record(s, bad), Code::UnknownEvent);
        refused(a.streams().wait_event(s, bad), Code::UnknownEvent);
        refused(a.streams().event_destroy(bad), Code::UnknownEvent);
    }
    let far = b.streams().create().unwrap();
    refused(b.streams().event_record(far, event), Code::UnknownEvent);
    refused(b.streams().event_query(event), Code::UnknownEvent);
    refused(b.streams().event_synchronize(event), Code::UnknownEvent);
    refused(b.streams().event_destroy(event), Code::UnknownEvent);
    b.streams().wait_event(far, event).unwrap();
    a.streams().destroy(s).unwrap();
    refused(a.streams().query(s), Code::UnknownStream);
    refused(a.streams().destroy(s), Code::UnknownStream);
    a.streams().event_destroy(event).unwrap();
    refused(a.streams().event_destroy(event), Code::UnknownEvent);
}

#[test]
fn destroying_a_stream_returns_at_once_and_loses_no_work() {
    let (host, a, _) = host();
    let s = a.streams().create().unwrap();
    let notes = Notes::default();
    let plug = Plug::new(&*a, s);
    notes.add(&*a, s, 1, 0);
    a.streams().destroy(s).unwrap();
    assert_eq!(notes.read(), [0; 0]);
    plug.open();
    eventually("the queued work is done", || notes.read() == [1]);
    eventually("the thread ends", || host.stats(0).unwrap().stream_threads == 0);
}

/// What the creation and the end of a stream look at does not grow with the streams that are there, or that have ended
/// with work queued.
#[test]
fn only_threads_that_have_ended_are_looked_at() {
    let (host, a, _) = host();
    let shared = host.running().unwrap();
    let state = &shared.devices[0];
    let stay: Vec<u64> = (0..200).map(|_| a.streams().create().unwrap()).collect();
    let held: Vec<Plug> = (0..50)
        .map(|_| {
            let s = a.streams().create().unwrap();
            let plug = Plug::new(&*a, s);
            a.streams().destroy(s).unwrap();
            plug
        })
        .collect();
    assert_eq!(state.thread_count(), 250);
    assert_eq!(state.reap(), 0, "of 200 streams that live, and 50 that have still work to do");
    held.into_iter().for_each(Plug::open);
    eventually("their threads end", || state.thread_count() == 200);
    assert!((1..=50).contains(&state.reap()));
    eventually("all are joined", || state.reap() == 0);
    stay.into_iter().for_each(|s| a.streams().destroy(s).unwrap());
    eventually("all threads end", || state.thread_count() == 0);
    eventually("all are joined", || state.reap() == 0);
}

#[test]
fn a_stream_may_be_destroyed_in_its_own_callback() {
    let (host, a, _) = host();
    let s = a.streams().create().unwrap();
    let (sent, got) = channel();
    let device = Arc::clone(&a);
    let callback = move |_| {
        let first = device.streams().destroy(s);
        let second = device.streams().destroy(s).map_err(|e| e.code());
        sent.send((first, second)).unwrap();
    };
    a.streams().callback(s, Box::new(callback)).unwrap();
    let limit = Duration::from_secs(10);
    assert_eq!(got.recv_timeout(limit).unwrap(), (Ok(()), Err(Code::UnknownStream)));
    eventually("the thread ends", || host.stats(0).unwrap().stream_threads == 0);
    host.finalize().unwrap();
}

#[test]
fn blocking_calls_in_a_callback_are_refused_and_others_work() {
    let (host, a, b) = host();
    let (s, t) = (a.streams().create().unwrap(), a.streams().create().unwrap());
    let event = a.streams().event_create().unwrap();
    let (block, pinned) = (a.alloc(4096).unwrap(), a.host_alloc(512, PLAIN).unwrap());
    let unified = a.unified().unwrap().alloc(512).unwrap();
    let host = Arc::new(host);
    for stream in [s, 0] {
        let (sent, got) = channel();
        let (host, a, b) = (Arc::clone(&host), Arc::clone(&a), Arc::clone(&b));
        let device = Arc::clone(&a);
        let callback = move |_| {
            let blocked = [
                a.synchronize(),
                a.streams().synchronize(s),
                a.streams().synchronize(0),
                a.streams().event_synchronize(event),
                a.copy(CopyKind::DeviceToDevice, block, block + 2048, 1),
                a.copy_async(0, CopyKind::DeviceToDevice, block, block + 2048, 1),
                a.peers().unwrap().copy(&*b, block, block + 2048, 1),
                a.peers().unwrap().copy_async(0, &*b, block, block + 2048, 1),
                a.memset(block, 1, 1),
                a.memset_async(0, block, 1, 1),
                a.streams().callback(0, Box::new(|_| ())),
                a.host_free(pinned, 512),
                a.unified().unwrap().free(unified, 512),
                a.mapping().unwrap().close_window(),
                host.finalize(),
            ];
            let codes: Vec<_> = blocked.into_iter().map(|r| r.map_err(|e| e.code())).collect();
            let data = vec![3u8; 4096];
            let fine = [
                a.streams().event_record(t, event),
                a.streams().wait_event(t, event),
                a.copy_async(t, CopyKind::HostToDevice, block, addr_of(&data), 4096),
                a.streams().query(t).map(drop),
                a.alloc(512).and_then(|p| a.free(p, 512)),
            ];
            sent.send((codes, fine)).unwrap();
        };
        device.streams().callback(stream, Box::new(callback)).unwrap();
        let (codes, fine) = got.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(codes, vec![Err(Code::NotPermitted); codes.len()]);
        assert!(fine.iter().all(Result::is_ok), "{fine:?}");
    }
    a.synchronize().unwrap(); // and this thread is free again
    assert!(bytes(block, 4096).iter().all(|b| *b == 3));
}

#[test]
fn a_panic_in_a_callback_ends_the_callback_only() {
    let (host, a, _) = host();
    let s = a.streams().create().unwrap();
    let notes = Notes::default();
    for stream in [s, 0] {
        // resume_unwind: a panic that prints nothing.
        a.streams().callback(stream, Box::new(|_| std::panic::resume_unwind(Box::new("boom")))).unwrap();
        notes.add(&*a, stream, 1, 0);
    }
    a.streams().synchronize(s).unwrap();
    assert_eq!(notes.read(), [1, 1]);
    assert_eq!(host.stats(0).unwrap().callback_panics, 2);
    a.synchronize().unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn threads_come_with_the_first_stream_and_go_with_the_last() {
    alone("threads::threads_come_with_the_first_stream_and_go_with_the_last", || {
        let tasks = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = tasks();
        let (host, a, b) = host();
        let block = a.alloc(4096).unwrap();
        a.memset_async(0, block, 1, 4096).unwrap();
        a.streams().callback(0, Box::new(|_| ())).unwrap();
        let event = a.streams().event_create().unwrap();
        a.streams().event_record(0, event).unwrap();
        assert_eq!(tasks(), before, "no thread before the first stream");
        let streams = [a.streams().create().unwrap(), a.streams().create().unwrap()];
        let far = b.streams().create().unwrap();
        assert_eq!(tasks(), before + 3);
        assert_eq!(host.stats(0).unwrap().stream_threads, 2);
        let plug = Plug::new(&*b, far);
        b.streams().destroy(far).unwrap();
        streams.iter().for_each(|s| a.streams().destroy(*s).unwrap());
        eventually("idle streams end", || tasks() == before + 1);
        plug.open();
        eventually("none after the last", || tasks() == before);
        for _ in 0..100 {
            a.streams().create().unwrap();
        }
        assert_eq!(tasks(), before + 100);
        host.finalize().unwrap();
        assert_eq!(tasks(), before, "finalize joins them");
    });
}

#[test]
#[cfg(target_os = "linux")]
fn stream_threads_take_no_signals() {
    let (_host, a, _) = host();
    let s = a.streams().create().unwrap();
    let (sent, got) = channel();
    let read = move |_| sent.send(std::fs::read_to_string("/proc/thread-self/status").unwrap()).unwrap();
    let mask = |status: &str| {
        let line = status.lines().find(|l| l.starts_with("SigBlk:")).unwrap().to_owned();
        u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()
    };
    a.streams().callback(s, Box::new(read)).unwrap();
    let theirs = mask(&got.recv().unwrap());
    let ours = mask(&std::fs::read_to_string("/proc/thread-self/status").unwrap());
    let term = 1 << (libc::SIGTERM - 1);
    assert_eq!((theirs & term, ours & term), (term, 0));
}
