//! Fences, what is owed and ends of streams, against points whose answers the test decides: also failures, which the
//! simulated device of `core/tests.rs` does not have.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use super::super::backing::{Backing, Point, Points};
use super::super::types::PoolId;
use super::{Fence, Order, Waits};
use crate::base::error::{Code, Error, Result};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct World {
    points: u64,
    passed: BTreeSet<Point>,
    given_back: Vec<Point>,
    calls: Vec<(&'static str, u64)>,
    capturing: BTreeSet<u64>,
    elsewhere: BTreeSet<u64>,
    /// Streams that may have ended without notice.
    unsure: BTreeSet<u64>,
    /// Calls that fail.
    refused: BTreeSet<&'static str>,
    in_callback: bool,
    during: Option<(&'static str, Hook)>,
    /// What is refused is a stream that the device does not know.
    unknown: bool,
    /// Marks are made by waits, as of a driver that has no event for all streams.
    marks_wait: bool,
}

#[derive(Default)]
struct Fake(Mutex<World>);

impl Fake {
    fn call(&self, name: &'static str, on: u64) -> Result<()> {
        let hook = {
            let mut w = self.0.lock().unwrap();
            w.calls.push((name, on));
            w.during.take_if(|d| d.0 == name)
        };
        if let Some((_, hook)) = hook {
            hook();
        }
        let w = self.0.lock().unwrap();
        if w.refused.contains(name) {
            let code = if w.unknown { Code::UnknownStream } else { Code::Device };
            return Err(Error::new(code, "refused"));
        }
        Ok(())
    }

    fn refuse(&self, calls: &[&'static str]) {
        self.0.lock().unwrap().refused = calls.iter().copied().collect();
    }

    fn unknown(&self, unknown: bool) {
        self.refuse(if unknown { &["mark"] } else { &[] });
        self.0.lock().unwrap().unknown = unknown;
    }

    fn count(&self, name: &str) -> usize {
        self.0.lock().unwrap().calls.iter().filter(|c| c.0 == name).count()
    }

    fn point(&self) -> Point {
        let mut w = self.0.lock().unwrap();
        w.points += 1;
        w.points
    }

    fn pass_all(&self) {
        let mut w = self.0.lock().unwrap();
        w.passed = (1..=w.points).collect();
    }
}

impl Points for Fake {
    fn passed(&self, point: Point) -> Result<bool> {
        self.call("passed", point)?;
        Ok(self.0.lock().unwrap().passed.contains(&point))
    }
    fn wait(&self, stream: u64, _: Point) -> Result<()> {
        self.call("wait", stream)
    }
    fn sync(&self, point: Point) -> Result<()> {
        self.call("sync", point)
    }
    fn forget(&self, point: Point) {
        self.0.lock().unwrap().given_back.push(point);
    }
}

impl Backing for Fake {
    gives_all!();

    fn mark(&self, stream: u64, may_wait: bool) -> Result<Option<Point>> {
        if !may_wait && self.0.lock().unwrap().marks_wait {
            return Err(Error::new(Code::NotPermitted, "only by a wait"));
        }
        self.call("mark", stream)?;
        Ok(Some(self.point()))
    }
    fn mark_elsewhere(&self, stream: u64, _: bool) -> Result<Option<Point>> {
        self.call("mark", stream)?;
        Ok(Some(self.point()))
    }
    fn capturing(&self, stream: u64) -> bool {
        let _ = self.call("capturing", stream);
        self.0.lock().unwrap().capturing.contains(&stream)
    }
    fn sync_all(&self) -> Result<()> {
        self.call("device", 0)
    }
    fn sync_stream(&self, stream: u64) -> Result<()> {
        self.call("stream", stream)
    }
    fn may_wait(&self) -> bool {
        !self.0.lock().unwrap().in_callback
    }
    fn lasts(&self, stream: u64) -> bool {
        !self.0.lock().unwrap().unsure.contains(&stream)
    }
    fn owns(&self, stream: u64) -> Result<bool> {
        Ok(!self.0.lock().unwrap().elsewhere.contains(&stream))
    }
    fn streams(&self, each: &mut dyn FnMut(u64)) {
        each(0);
        each(5);
    }
}

fn new() -> (Arc<Fake>, Arc<Order>) {
    let fake = Arc::new(Fake::default());
    (fake.clone(), Arc::new(Order::new(fake)))
}

fn fence(order: &Order, stream: u64) -> Fence {
    order.fence(&order.stream(stream).unwrap()).unwrap().unwrap()
}

fn all(order: &Order) -> Waits {
    let mut waits = Waits::default();
    order.add_all(&mut waits);
    waits
}

#[test]
fn an_error_says_nothing_about_a_fence() {
    let (fake, order) = new();
    fake.refuse(&["passed"]);
    let f = fence(&order, 5); // asked about as soon as it is made
    assert!(!f.ask() && f.try_ask().is_none() && !f.is_passed());
    let theirs = order.adopt(fake.point());
    fake.refuse(&["sync", "wait"]);
    assert!(order.sync(&theirs).is_err() && !theirs.is_passed());
    assert!(order.hold_back(6, &theirs).is_err());
    fake.pass_all();
    assert!(theirs.ask() && order.hold_back(6, &theirs).unwrap());
}

#[test]
fn a_wait_for_the_device_covers_what_was_there_before_it() {
    let (fake, order) = new();
    let (f, theirs) = (fence(&order, 5), order.adopt(fake.point()));
    let late = Arc::new(Mutex::new(None));
    let (there, kept) = (order.clone(), late.clone());
    let hook: Hook = Box::new(move || *kept.lock().unwrap() = Some(fence(&there, 6)));
    fake.0.lock().unwrap().during = Some(("device", hook));
    order.sync_device().unwrap();
    assert_eq!(fake.count("device"), 1);
    assert!(f.is_passed());
    assert!(!theirs.is_passed(), "nobody knows whose work it is");
    let late = late.lock().unwrap().take().unwrap();
    assert!(!late.is_passed(), "it was made during the wait");
}

#[test]
fn a_point_is_given_back_once() {
    let (fake, order) = new();
    let f = fence(&order, 5);
    let other = f.clone();
    drop(f);
    assert!(fake.0.lock().unwrap().given_back.is_empty());
    drop(other);
    assert_eq!(fake.0.lock().unwrap().given_back, [1]);
    let f = fence(&order, 5);
    fake.pass_all();
    assert!(f.ask());
    drop(f);
    assert_eq!(fake.0.lock().unwrap().given_back, [1, 2]);
}

#[test]
fn what_cannot_be_made_is_owed_until_it_is() {
    let (fake, order) = new();
    for which in 0..3 {
        fake.refuse(&["mark"]);
        let mut one = Waits::default();
        order.add(&order.stream(5).unwrap(), &mut one);
        let mut waits = match which {
            0 => one,
            1 => all(&order),
            _ => Waits::default(),
        };
        if which == 2 {
            let mut other = Waits::default();
            order.add(&order.stream(5).unwrap(), &mut other);
            waits.append(other);
        }
        assert!(waits.owes() && !waits.is_over() && !order.settle(&mut waits), "a mark cannot be made yet");
        let mut covered = waits.clone();
        fake.refuse(&[]);
        assert!(!order.settle(&mut waits) && !waits.owes(), "it is made, and not passed");
        fake.pass_all();
        assert!(order.settle(&mut waits));
        fake.refuse(&["mark"]);
        let before = fake.count("device");
        order.sync_waits(&mut covered).unwrap();
        assert!(covered.is_over() && fake.count("device") == before + 1);
    }
}

#[test]
fn what_another_devices_stream_owes_is_not_covered_by_a_wait_for_this_one() {
    let (fake, order) = new();
    fake.0.lock().unwrap().elsewhere.insert(8);
    let user = order.user(8).unwrap();
    fake.refuse(&["mark"]);
    let mut waits = Waits::default();
    order.add(&user, &mut waits);
    order.sync_device().unwrap();
    assert!(!order.settle(&mut waits));
    assert_eq!(order.sync_waits(&mut waits).unwrap_err().code(), Code::Busy);
    fake.refuse(&[]);
    order.ending_elsewhere(8);
    assert!(!order.settle(&mut waits) && !order.fence(&user).unwrap().unwrap().is_passed());
    fake.pass_all();
    assert!(order.settle(&mut waits) && order.fence(&user).unwrap().is_none());
}

#[test]
fn a_stream_that_has_ended_counts_until_its_work_is_over() {
    let (fake, order) = new();
    let stream = order.stream(7).unwrap(); // not one that the device lists
    order.ended(order.ending(7).unwrap());
    fake.pass_all();
    fake.0.lock().unwrap().passed.remove(&1);
    assert!(order.fence(&stream).unwrap().is_some());
    let mut waits = all(&order);
    fake.pass_all();
    fake.0.lock().unwrap().passed.remove(&1);
    assert!(!order.settle(&mut waits));
    fake.pass_all();
    assert!(order.settle(&mut waits) && order.fence(&stream).unwrap().is_none());

    order.note_foreign_work(fake.point());
    let mut waits = all(&order);
    let foreign = fake.0.lock().unwrap().points - 2; // before the two marks
    fake.pass_all();
    fake.0.lock().unwrap().passed.remove(&foreign);
    assert!(!order.settle(&mut waits), "the work of other devices counts, too");
}

/// Whatever number of other works is still open when such a work is noted.
#[test]
fn the_work_of_other_devices_is_asked_about_a_few_times_at_most() {
    for open in [0, 7, 127] {
        let (fake, order) = new();
        for _ in 0..open {
            order.note_foreign_work(fake.point());
        }
        fake.0.lock().unwrap().calls.clear();
        for _ in 0..1000 {
            let point = fake.point();
            fake.0.lock().unwrap().passed.insert(point);
            order.note_foreign_work(point);
        }
        let asked = fake.count("passed");
        assert!(asked <= 4000, "{open} open: asked {asked} times about 1000 works");
        let kept = 1000 + open - fake.0.lock().unwrap().given_back.len();
        assert!(kept <= 2 * open + 64, "{open} open: {kept} points are kept");
    }
}

#[test]
fn a_stream_that_cannot_be_marked_is_waited_for_as_it_ends() {
    let (fake, order) = new();
    fake.refuse(&["mark"]);
    let stream = order.stream(7).unwrap();
    let ending = order.ending(7).unwrap();
    assert_eq!(fake.count("stream"), 1);
    assert!(order.fence(&stream).unwrap().is_none());
    order.not_ended(ending);
    fake.refuse(&[]);
    assert!(order.fence(&stream).unwrap().is_some(), "it goes on");

    fake.refuse(&["mark", "stream"]);
    order.ended(order.ending(7).unwrap());
    let left = order.fence(&stream).unwrap().unwrap();
    assert!(!left.ask());
    let before = fake.count("device");
    order.sync(&left).unwrap();
    assert!(left.is_passed() && fake.count("device") == before + 1, "only the device tells");
}

#[test]
fn each_of_several_fences_is_waited_for() {
    let (fake, order) = new();
    let mut waits = all(&order);
    order.sync_waits(&mut waits).unwrap();
    assert!(waits.is_over() && fake.count("sync") == 2);
    let mut waits = all(&order);
    fake.0.lock().unwrap().in_callback = true;
    assert_eq!(order.sync_waits(&mut waits).unwrap_err().code(), Code::NotPermitted);
    assert!(!waits.is_over());
}

#[test]
fn an_owed_fence_is_not_made_by_a_wait() {
    let (fake, order) = new();
    let mut waits = Waits::default();
    fake.refuse(&["mark"]); // as in a callback
    order.add_all(&mut waits);
    fake.refuse(&[]);
    fake.0.lock().unwrap().marks_wait = true;
    assert!(!order.settle(&mut waits) && waits.owes(), "this looks, and waits for nothing");
    let before = fake.count("device");
    order.sync_waits(&mut waits).unwrap();
    assert!(waits.is_over() && fake.count("device") == before + 1);
}

#[test]
fn nothing_is_asked_of_a_stream_that_is_captured() {
    let (fake, order) = new();
    let busy = |e: Error| assert_eq!(e.code(), Code::Busy);
    let f = fence(&order, 6);
    let calls = || ["mark", "wait", "device"].map(|c| fake.count(c));
    let before = calls();
    // Nobody has announced this one.
    fake.0.lock().unwrap().capturing.insert(5);
    busy(order.fence(&order.stream(5).unwrap()).unwrap_err());
    busy(order.hold_back(5, &f).unwrap_err());
    busy(order.sync_device().unwrap_err());
    busy(order.check_end(5).unwrap_err());
    fake.0.lock().unwrap().capturing.clear();
    order.capture(5, PoolId(1)).unwrap();
    busy(order.fence(&order.stream(5).unwrap()).unwrap_err());
    busy(order.fence(&order.stream(0).unwrap()).unwrap_err());
    busy(order.sync_device().unwrap_err());
    busy(order.check_end(5).unwrap_err());
    assert_eq!(calls(), before);
    order.end_capture(5);
    order.check_end(5).unwrap();
    order.sync_device().unwrap();
}

#[test]
fn a_capture_waits_for_a_mark_that_is_being_made() {
    let (fake, order) = new();
    let began = Arc::new(AtomicBool::new(false));
    let (there, told) = (order.clone(), began.clone());
    let hook: Hook = Box::new(move || {
        let seen = told.clone();
        std::thread::spawn(move || {
            there.capture(5, PoolId(1)).unwrap();
            there.wait_for_marks(5);
            told.store(true, SeqCst);
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!seen.load(SeqCst), "the device would record beside the mark");
    });
    fake.0.lock().unwrap().during = Some(("mark", hook));
    fence(&order, 5);
    while !began.load(SeqCst) {
        std::thread::yield_now();
    }
}

#[test]
fn a_stream_that_is_about_to_end_counts_once_the_device_lists_it_no_more() {
    let (fake, order) = new();
    let stream = order.stream(7).unwrap(); // not one that the device lists
    let ending = order.ending(7).unwrap();
    fake.pass_all();
    fake.0.lock().unwrap().passed.remove(&1);
    let mut waits = all(&order);
    fake.pass_all();
    fake.0.lock().unwrap().passed.remove(&1);
    assert!(!order.settle(&mut waits), "what it leaves behind counts before its end is noted");
    assert_eq!(order.ending(7).err().unwrap().code(), Code::UnknownStream, "it is being ended");
    order.not_ended(ending);
    let mut waits = all(&order);
    fake.pass_all();
    fake.0.lock().unwrap().passed.remove(&1);
    assert!(order.settle(&mut waits), "it goes on, and has left nothing behind");
    assert!(stream.end().is_none());
    order.ended(order.ending(7).unwrap());
}

/// In a call that does not name the stream, whose creator may destroy it as soon as it has told of the end.
#[test]
fn a_stream_whose_end_was_told_is_not_given_to_the_device() {
    let (fake, order) = new();
    let (stream, f) = (order.stream(6).unwrap(), fence(&order, 5));
    assert!(order.hold_back_later(6, &f).unwrap() && !order.records_later(6));
    order.ended(order.ending(6).unwrap());
    drop(stream);
    fake.0.lock().unwrap().calls.clear();
    assert!(!order.hold_back_later(6, &f).unwrap(), "nothing can be queued there");
    assert!(!order.records_later(6) && !order.is_captured_later(6));
    let calls = std::mem::take(&mut fake.0.lock().unwrap().calls);
    assert!(calls.iter().all(|&(name, on)| name == "passed" || on != 6), "{calls:?}");
}

#[test]
fn the_end_of_a_stream_waits_for_who_asks_the_device_about_it() {
    for call in ["capturing", "wait"] {
        let (fake, order) = new();
        let (_, f) = (order.stream(6).unwrap(), fence(&order, 5));
        let ended = Arc::new(AtomicBool::new(false));
        let (there, told) = (order.clone(), ended.clone());
        let hook: Hook = Box::new(move || {
            let seen = told.clone();
            std::thread::spawn(move || {
                there.ended(there.ending(6).unwrap());
                told.store(true, SeqCst);
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!seen.load(SeqCst), "{call}: its creator would destroy it beside the call");
        });
        fake.0.lock().unwrap().during = Some((call, hook));
        match call {
            "capturing" => assert!(!order.records_later(6)),
            _ => assert!(order.hold_back_later(6, &f).unwrap()),
        }
        while !ended.load(SeqCst) {
            std::thread::yield_now();
        }
    }
}

/// A driver that says so does not make the stream one that nobody has used.
#[test]
fn a_stream_that_the_device_does_not_know_leaves_its_work_behind() {
    let (fake, order) = new();
    let stream = order.stream(6).unwrap();
    fake.unknown(true);
    assert!(!order.is_done(6));
    fake.unknown(false);
    let ending = order.ended_unnoticed(6).expect("what it has queued may still run");
    order.ended(ending);
    assert!(!order.fence(&stream).unwrap().unwrap().is_passed());
}

/// From the moment on at which its fence is left, until it is known that it goes on.
#[test]
fn a_stream_that_is_about_to_end_is_not_asked() {
    let (_, order) = new();
    assert!(!order.is_there(6)); // nobody has used it
    order.stream(6).unwrap();
    assert!(order.is_there(6));
    let ending = order.ending(6).unwrap();
    assert!(!order.is_there(6) && order.asking(6).is_none());
    order.not_ended(ending);
    assert!(order.is_there(6));
    order.ended(order.ending(6).unwrap());
    assert!(!order.is_there(6));
}

/// Nobody knows of it, and the device is left alone.
#[test]
fn a_stream_that_may_have_ended_is_not_found_idle() {
    let (fake, order) = new();
    order.stream(6).unwrap();
    fake.0.lock().unwrap().passed = (1..100).collect();
    assert!(order.is_done(6));
    fake.0.lock().unwrap().unsure.insert(6);
    let before = fake.0.lock().unwrap().calls.len();
    assert!(!order.is_done(6));
    assert_eq!(fake.0.lock().unwrap().calls.len(), before);
}

#[test]
fn a_new_stream_of_a_number_comes_after_the_end_of_the_old_one() {
    let (_, order) = new();
    order.made(7); // nobody had it
    let ending = order.ending(7).unwrap();
    let came = Arc::new(AtomicBool::new(false));
    let (there, told) = (order.clone(), came.clone());
    let maker = std::thread::spawn(move || {
        there.made(7);
        told.store(true, SeqCst);
    });
    std::thread::sleep(Duration::from_millis(50));
    assert!(!came.load(SeqCst), "the old stream's memory would be the new one's");
    order.ended(ending);
    maker.join().unwrap();
    assert!(order.stream(7).unwrap().end().is_none());
}
