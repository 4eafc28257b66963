//! Groups of members that share a simulated card.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;

use super::file::GroupFile;
use super::member::{Joining, Member, Share, Stake};
use super::membership::Need;
use super::record::{FILE, HEAD, Note, ORDER_AT, SLOT};
use super::*;
use crate::base::error::Code;
use crate::core::PoolId;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

const WAIT: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_secs(60);
const NOW: Duration = Duration::ZERO;

/// A file for a group, which goes with this.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("millpond-group-{}-{}", std::process::id(), NEXT.fetch_add(1, SeqCst));
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_file(&path);
        Place(path)
    }

    fn join(&self, name: &str, card: u64, wait: Duration) -> Member {
        Member::join(&self.0, Joining { name, device: "sim:0", card: [card, 0], wait }).unwrap()
    }

    /// Another test may just start a process, which has the place of one that has ended until it is a program of its own.
    fn wait_for_one_member(&self) {
        let until = Instant::now() + WAIT;
        while group_members(&self.0).unwrap().len() > 1 {
            assert!(Instant::now() < until);
            sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A card of so many bytes that are free.
struct Card(AtomicU64);

/// What one member has of a card.
struct Part<'a> {
    card: &'a Card,
    reserved: Mutex<u64>,
    returned: AtomicU64,
    active: u64,
    /// What the card has in all, if it says so.
    total: Option<u64>,
    budget: AtomicU64,
    ended: AtomicBool,
    /// Whether a request has become one that memory does not help.
    is_vain: AtomicBool,
    /// How often it was asked what it has.
    asked: AtomicUsize,
}

impl<'a> Part<'a> {
    fn new(card: &'a Card, reserved: u64, active: u64) -> Part<'a> {
        Part {
            card,
            reserved: Mutex::new(reserved),
            returned: AtomicU64::new(0),
            active,
            total: None,
            budget: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            is_vain: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
        }
    }
}

impl Share for Part<'_> {
    fn held(&self) -> Stake {
        self.asked.fetch_add(1, SeqCst);
        let reserved = *self.reserved.lock().unwrap();
        Stake { reserved, active: self.active, returned: self.returned.load(SeqCst) }
    }

    fn free(&self) -> Option<u64> {
        Some(self.card.0.load(SeqCst))
    }

    fn total(&self) -> Option<u64> {
        self.total
    }

    fn is_helped(&self, _: Need) -> bool {
        !self.is_vain.load(SeqCst)
    }

    fn trim_to(&self, keep: u64) -> Result<()> {
        let mut reserved = self.reserved.lock().unwrap();
        let left = (*reserved).min(keep.max(self.active));
        self.card.0.fetch_add(*reserved - left, SeqCst);
        self.returned.fetch_add(*reserved - left, SeqCst);
        *reserved = left;
        Ok(())
    }

    fn set_budget(&self, bytes: u64) -> Result<()> {
        self.budget.store(bytes, SeqCst);
        if bytes > 0 { self.trim_to(bytes) } else { Ok(()) }
    }

    fn check(&self) -> Result<()> {
        if self.ended.load(SeqCst) {
            crate::fail!(Code::NotInitialized, "ended");
        }
        Ok(())
    }
}

fn need(bytes: u64) -> Need {
    Need { bytes, own: 0, pool: PoolId::DEFAULT, asleep: false }
}

fn ask(member: &Member, share: &Part<'_>, bytes: u64) -> Option<u64> {
    member.ask(share, need(bytes), Instant::now())
}

/// Runs `act` while the others serve.
fn while_serving<T>(others: &[(&Member, &Part<'_>)], act: impl FnOnce() -> T) -> T {
    for (member, part) in others {
        member.serve(*part, NOW).unwrap(); // it has looked once
    }
    let done = &AtomicBool::new(false);
    thread::scope(|s| {
        for &(member, part) in others {
            s.spawn(move || {
                while !done.load(SeqCst) {
                    member.serve(part, Duration::from_millis(20)).unwrap();
                }
            });
        }
        let got = act();
        done.store(true, SeqCst);
        got
    })
}

#[test]
fn others_give_what_is_missing_and_no_more_the_one_with_the_most_first() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(5)));
    let (mine, little, much) =
        (Part::new(&card, 100, 100), Part::new(&card, 50, 30), Part::new(&card, 90, 10));
    let (me, a, b) = (place.join("me", 1, WAIT), place.join("a", 1, WAIT), place.join("b", 1, WAIT));
    let others = [(&a, &little), (&b, &much)];
    assert_eq!(while_serving(&others, || ask(&me, &mine, 45)), Some(40));
    assert_eq!((little.held().reserved, much.held().reserved, card.0.load(SeqCst)), (50, 50, 45));
    // More than one of them has.
    assert_eq!(while_serving(&others, || ask(&me, &mine, 100)), Some(55));
    assert_eq!((little.held().reserved, much.held().reserved, card.0.load(SeqCst)), (35, 10, 100));
    // More than there is.
    assert_eq!(while_serving(&others, || ask(&me, &mine, 1000)), Some(5));
    assert_eq!((little.held().reserved, much.held().reserved), (30, 10));
    let told = group_members(&place.0).unwrap();
    let sums: Vec<_> = told.iter().map(|m| (&*m.name, m.given_bytes, m.received_bytes)).collect();
    assert_eq!(sums, [("me", 0, 100), ("a", 20, 0), ("b", 80, 0)]);
    assert!(told[0].looked_ms.is_none() || told[0].looked_ms < Some(20_000));
    assert_eq!((told[2].reserved_bytes, told[2].unused_bytes, &*told[2].device), (10, 0, "sim:0"));
}

/// A program at its end asks for more than the card can ever have for it: the others keep what they have.
#[test]
fn nobody_gives_for_a_request_that_the_card_cannot_serve() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(10)));
    let mine = Part { total: Some(100), ..Part::new(&card, 65, 60) };
    let theirs = Part::new(&card, 25, 5);
    let (me, other) = (place.join("me", 1, WAIT), place.join("other", 1, WAIT));
    assert_eq!(while_serving(&[(&other, &theirs)], || ask(&me, &mine, 41)), None);
    // What this one does not use itself is a part of what the card can have for it.
    let need = Need { own: 6, ..need(35) };
    assert_eq!(while_serving(&[(&other, &theirs)], || me.ask(&mine, need, Instant::now())), None);
    assert_eq!((theirs.held().reserved, card.0.load(SeqCst)), (25, 10));
    // Whether the other one can give so much, only it can tell.
    assert_eq!(while_serving(&[(&other, &theirs)], || ask(&me, &mine, 40)), Some(20));
    assert_eq!((theirs.held().reserved, card.0.load(SeqCst)), (5, 30));
}

#[test]
fn whoever_does_not_look_is_not_waited_for() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let (mine, theirs) = (Part::new(&card, 1, 1), Part::new(&card, 99, 0));
    let (me, _other) = (place.join("me", 1, LONG), place.join("other", 1, LONG));
    let from = Instant::now();
    assert_eq!(ask(&me, &mine, 10), None);
    assert!(from.elapsed() < LONG / 2, "it waited for one that never looks");
    assert_eq!(theirs.held().reserved, 99);
}

#[test]
fn a_request_waits_as_long_as_it_was_told_for_one_that_has_stopped_to_look() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let (mine, theirs) = (Part::new(&card, 1, 1), Part::new(&card, 99, 0));
    let (me, other) = (place.join("me", 1, Duration::from_millis(100)), place.join("other", 1, WAIT));
    other.serve(&theirs, NOW).unwrap();
    let from = Instant::now();
    assert_eq!(ask(&me, &mine, 10), None);
    assert!(from.elapsed() >= Duration::from_millis(100), "it did not wait");
    assert!(from.elapsed() < LONG / 2);
    // What was wanted then is not given later.
    assert_eq!((other.serve(&theirs, NOW).unwrap(), theirs.held().reserved), (0, 99));
}

#[test]
fn one_that_has_stopped_to_look_leaves_time_to_ask_others() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let (mine, much, little) = (Part::new(&card, 1, 1), Part::new(&card, 99, 0), Part::new(&card, 50, 0));
    let me = place.join("me", 1, Duration::from_secs(4));
    let (stuck, other) = (place.join("stuck", 1, WAIT), place.join("other", 1, WAIT));
    stuck.serve(&much, NOW).unwrap();
    assert_eq!(while_serving(&[(&other, &little)], || ask(&me, &mine, 10)), Some(10));
    assert_eq!((much.held().reserved, little.held().reserved), (99, 40));
}

#[test]
fn a_request_waits_for_nobody_once_the_card_has_enough() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let (mine, theirs) = (Part::new(&card, 1, 1), Part::new(&card, 99, 0));
    let (me, stuck) = (place.join("me", 1, LONG), place.join("stuck", 1, WAIT));
    stuck.serve(&theirs, NOW).unwrap();
    let from = Instant::now();
    thread::scope(|s| {
        s.spawn(|| {
            sleep(Duration::from_millis(50));
            card.0.store(10, SeqCst); // a program of no group has ended
        });
        // The second waits for its turn, which the first does not give up: it wants more.
        let more = s.spawn(|| ask(&me, &mine, 11));
        sleep(Duration::from_millis(20));
        assert_eq!(ask(&me, &mine, 10), Some(0));
        assert!(from.elapsed() < LONG / 2, "it waited on for its turn");
        assert!(!more.is_finished());
        card.0.store(11, SeqCst);
        assert_eq!(more.join().unwrap(), Some(0));
    });
    assert!(from.elapsed() < LONG / 2, "it waited on");
}

#[test]
fn one_that_goes_is_not_waited_for() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let (mine, theirs) = (Part::new(&card, 1, 1), Part::new(&card, 99, 0));
    let (me, other) = (place.join("me", 1, LONG), place.join("other", 1, LONG));
    other.serve(&theirs, NOW).unwrap();
    let from = Instant::now();
    thread::scope(|s| {
        s.spawn(|| {
            sleep(Duration::from_millis(50));
            // As a process that is killed: the record stays, the lock goes.
            let record = fs::read(&place.0).unwrap();
            drop(other);
            fs::write(&place.0, record).unwrap();
        });
        assert_eq!(ask(&me, &mine, 10), None);
    });
    assert!(from.elapsed() < LONG / 2, "it waited for one that has gone");
    place.wait_for_one_member();
}

#[test]
fn one_that_leaves_is_not_waited_for_and_waits_no_more() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let (mine, theirs) = (Part::new(&card, 1, 1), Part::new(&card, 99, 0));
    for asker_leaves in [false, true] {
        let (me, other) = (place.join("me", 1, WAIT), place.join("other", 1, WAIT));
        other.serve(&theirs, NOW).unwrap();
        let from = Instant::now();
        thread::scope(|s| {
            // The second waits for its turn.
            let all = [(); 2].map(|()| s.spawn(|| ask(&me, &mine, 10)));
            sleep(Duration::from_millis(50));
            if asker_leaves {
                me.leave()
            } else {
                other.leave()
            }
            all.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), None));
        });
        assert!(from.elapsed() < WAIT / 2, "it waited on; the asker left: {asker_leaves}");
        assert_eq!(group_members(&place.0).unwrap().len(), 1, "the place is free at once");
    }
}

#[test]
fn what_one_that_has_ended_wanted_is_not_given() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let (mine, theirs) = (Part::new(&card, 1, 1), Part::new(&card, 99, 0));
    let (me, other) = (place.join("me", 1, Duration::from_millis(200)), place.join("other", 1, WAIT));
    other.serve(&theirs, NOW).unwrap();
    let wish = thread::scope(|s| {
        s.spawn(|| ask(&me, &mine, 10));
        sleep(Duration::from_millis(50));
        fs::read(&place.0).unwrap()
    });
    drop(me);
    fs::write(&place.0, wish).unwrap();
    place.wait_for_one_member();
    assert_eq!((other.serve(&theirs, NOW).unwrap(), theirs.held().reserved), (0, 99));
}

#[test]
fn a_request_is_tried_again_when_there_is_enough_though_nobody_gave() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(50)));
    let mine = Part::new(&card, 1, 1);
    let me = place.join("me", 1, WAIT);
    assert_eq!(ask(&me, &mine, 50), Some(0));
    assert_eq!(ask(&me, &mine, 51), None);
    // It has looked, but nobody can count on that.
    assert_eq!(group_members(&place.0).unwrap()[0].looked_ms, None);
}

#[test]
fn whoever_looks_all_the_time_is_asked_first() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let (mine, little, much) = (Part::new(&card, 1, 1), Part::new(&card, 20, 0), Part::new(&card, 90, 0));
    let (me, a, b) = (place.join("me", 1, WAIT), place.join("a", 1, WAIT), place.join("b", 1, WAIT));
    b.serve(&much, NOW).unwrap();
    sleep(Duration::from_millis(1100));
    let from = Instant::now();
    assert_eq!(while_serving(&[(&a, &little)], || ask(&me, &mine, 10)), Some(10));
    assert!(from.elapsed() < WAIT / 2, "it waited for one that does not look");
}

#[test]
fn a_look_at_which_nobody_wants_anything_leaves_the_memory_alone() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let part = Part::new(&card, 10, 0);
    let member = place.join("m", 1, WAIT);
    let from = Instant::now();
    for _ in 0..200 {
        member.serve(&part, NOW).unwrap();
    }
    let most = 2 + from.elapsed().as_millis() as usize / 250;
    assert!(part.asked.load(SeqCst) <= most, "{} times", part.asked.load(SeqCst));
}

#[test]
fn two_that_ask_each_other_both_go_on() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let (one, two) = (Part::new(&card, 100, 60), Part::new(&card, 100, 50));
    let (a, b) = (place.join("a", 1, Duration::from_secs(2)), place.join("b", 1, Duration::from_secs(2)));
    a.serve(&one, NOW).unwrap();
    b.serve(&two, NOW).unwrap();
    // No thread serves beside them.
    let (to_a, to_b) = thread::scope(|s| {
        let b = s.spawn(|| ask(&b, &two, 80).unwrap_or(0));
        (ask(&a, &one, 80).unwrap_or(0), b.join().unwrap())
    });
    // Who has its answer looks once more and then no longer, so a late one may be left without.
    assert!(to_a + to_b >= 40, "{to_a}, {to_b}");
}

#[test]
fn another_card_is_not_asked_and_one_that_is_not_shared_only_once() {
    let (place, card, apart) = (Place::new(), Card(AtomicU64::new(0)), Card(AtomicU64::new(0)));
    let mine = Part::new(&card, 1, 1);
    let (me, other) = (place.join("me", 1, WAIT), place.join("other", 2, WAIT));
    let theirs = Part::new(&apart, 99, 0);
    assert_eq!(while_serving(&[(&other, &theirs)], || ask(&me, &mine, 10)), None);
    assert_eq!(theirs.held().reserved, 99);
    // It says that it has this card, but what it gives back comes to nobody.
    let (liar, next) = (place.join("liar", 1, WAIT), place.join("next", 1, WAIT));
    let rest = Part::new(&apart, 50, 0);
    assert_eq!(while_serving(&[(&liar, &theirs), (&next, &rest)], || ask(&me, &mine, 10)), Some(10));
    assert_eq!((theirs.held().reserved, rest.held().reserved), (89, 50));
}

#[test]
fn a_budget_from_outside_is_followed_and_told() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let part = Part::new(&card, 100, 30);
    let member = place.join("m", 1, WAIT);
    assert_eq!(set_group_budget(&place.0, 77, 5).unwrap_err().code(), Code::InvalidArgument);
    set_group_budget(&place.0, member.id(), 80).unwrap();
    set_group_budget(&place.0, member.id(), 60).unwrap();
    assert_eq!(member.serve(&part, LONG).unwrap(), 40, "the last order counts");
    assert_eq!((part.held().reserved, part.budget.load(SeqCst)), (60, 60));
    assert_eq!(group_members(&place.0).unwrap()[0].budget_bytes, 60);
    assert_eq!(member.serve(&part, NOW).unwrap(), 0, "once");
    set_group_budget(&place.0, member.id(), 0).unwrap();
    assert_eq!((member.serve(&part, LONG).unwrap(), part.budget.load(SeqCst)), (0, 0));
    // Whatever number somebody has written, the next order counts.
    let order = Note { who: member.id(), number: u64::MAX, bytes: 50 };
    let file = fs::OpenOptions::new().write(true).open(&place.0).unwrap();
    file.write_all_at(&order.written(), (HEAD + ORDER_AT) as u64).unwrap();
    member.serve(&part, LONG).unwrap();
    set_group_budget(&place.0, member.id(), 40).unwrap();
    member.serve(&part, LONG).unwrap();
    assert_eq!(part.budget.load(SeqCst), 40);
    drop(member);
    let e = set_group_budget(&place.0, 1, 5).unwrap_err();
    assert_eq!(e.code(), Code::InvalidArgument, "{e}");
}

#[test]
fn who_serves_sees_that_it_has_left_and_that_the_device_has_ended() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let part = Part::new(&card, 10, 0);
    for leaves in [true, false] {
        let member = place.join("m", 1, WAIT);
        let told = thread::scope(|s| {
            let serves = s.spawn(|| member.serve(&part, LONG));
            sleep(Duration::from_millis(20));
            match leaves {
                true => member.leave(),
                false => part.ended.store(true, SeqCst),
            }
            serves.join().unwrap()
        });
        let code = if leaves { Code::NotPermitted } else { Code::NotInitialized };
        assert_eq!(told.unwrap_err().code(), code);
    }
}

#[test]
fn one_look_is_one_of_its_own() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let part = Part::new(&card, 10, 0);
    let member = place.join("m", 1, WAIT);
    thread::scope(|s| {
        let held_up = part.reserved.lock().unwrap();
        s.spawn(|| member.serve(&part, LONG));
        sleep(Duration::from_millis(50));
        let other = s.spawn(|| member.serve(&part, NOW).unwrap());
        sleep(Duration::from_millis(50));
        assert!(!other.is_finished(), "the look that was under way had not ended");
        drop(held_up);
        assert_eq!(other.join().unwrap(), 0);
        assert!(group_members(&place.0).unwrap()[0].looked_ms.is_some());
        member.leave();
    });
}

#[test]
fn there_is_room_for_64_and_slots_serve_again() {
    let place = Place::new();
    let mut all: Vec<Member> = (0..64).map(|_| place.join("m", 1, WAIT)).collect();
    let joining = Joining { name: "m", device: "sim:0", card: [1, 0], wait: WAIT };
    assert_eq!(Member::join(&place.0, joining).map(drop).unwrap_err().code(), Code::Busy);
    assert_eq!(group_members(&place.0).unwrap().len(), 64);
    drop(all.remove(10));
    assert_eq!(group_members(&place.0).unwrap().len(), 63);
    assert_eq!(place.join("again", 1, WAIT).id(), 65, "numbers are not used again");
}

#[test]
fn what_is_no_group_is_refused_and_left_alone() {
    let place = Place::new();
    let refused = |code| {
        let joining = Joining { name: "m", device: "sim:0", card: [1, 0], wait: WAIT };
        let e = Member::join(&place.0, joining).map(drop).unwrap_err();
        assert_eq!(e.code(), code, "{e}");
    };
    for text in ["x", "millpond group", &"a letter to somebody. ".repeat(1000)] {
        fs::write(&place.0, text).unwrap();
        refused(Code::InvalidArgument);
        assert_eq!(fs::read_to_string(&place.0).unwrap(), text);
    }
    fs::write(&place.0, b"millpond group\0\x02 and more").unwrap();
    refused(Code::Unsupported);
    fs::remove_file(&place.0).unwrap();
    assert_eq!(group_members(&place.0).unwrap_err().code(), Code::System, "nobody makes a file by looking");
    assert!(!place.0.exists());
    fs::create_dir(&place.0).unwrap();
    refused(Code::System);
    fs::remove_dir(&place.0).unwrap();
    // Zeros are a group that is not finished, unless there is more.
    let mut more = vec![0; FILE + 1];
    for last in [0, 1] {
        fs::write(&place.0, &more).unwrap();
        refused(Code::InvalidArgument);
        assert_eq!(fs::read(&place.0).unwrap(), more);
        more.pop();
        *more.last_mut().unwrap() = 1 - last;
    }
    for unfinished in [0, 5, HEAD + SLOT, FILE] {
        fs::write(&place.0, vec![0; unfinished]).unwrap();
        assert_eq!(place.join("m", 1, WAIT).id(), 1, "{unfinished}");
        assert_eq!(fs::metadata(&place.0).unwrap().len(), FILE as u64);
    }
}

#[test]
fn a_file_that_is_damaged_or_cut_off_costs_no_more_than_an_error() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let (mine, theirs) = (Part::new(&card, 1, 1), Part::new(&card, 99, 0));
    let (me, other) = (place.join("me", 1, WAIT), place.join("other", 1, WAIT));
    other.serve(&theirs, NOW).unwrap();
    let whole = fs::read(&place.0).unwrap();
    // Whatever stands there, nobody does more than give back what it does not use.
    for round in 0..200u64 {
        let mut damaged = whole.clone();
        for (at, byte) in damaged[HEAD..].iter_mut().enumerate() {
            if (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ round) >> 60 == 0 {
                *byte ^= (round + at as u64) as u8;
            }
        }
        fs::write(&place.0, &damaged).unwrap();
        other.serve(&theirs, NOW).unwrap();
        group_members(&place.0).unwrap();
    }
    fs::write(&place.0, &whole[..HEAD + SLOT]).unwrap();
    assert_eq!(other.serve(&theirs, NOW).unwrap_err().code(), Code::System);
    assert_eq!(ask(&me, &mine, 10), None);
    assert_eq!(group_members(&place.0).unwrap_err().code(), Code::System);
    fs::write(&place.0, b"").unwrap();
    assert_eq!(other.serve(&theirs, NOW).unwrap_err().code(), Code::System);
}

#[test]
fn several_threads_ask_and_serve_at_once() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let (mine, theirs) = (Part::new(&card, 0, 0), Part::new(&card, 10_000, 0));
    let (me, other) = (place.join("me", 1, LONG), place.join("other", 1, LONG));
    other.serve(&theirs, NOW).unwrap();
    let got: u64 = while_serving(&[(&other, &theirs), (&other, &theirs)], || {
        thread::scope(|s| {
            let take = || {
                let got = ask(&me, &mine, 10).unwrap_or(0);
                let _ = card.0.fetch_update(SeqCst, SeqCst, |free| free.checked_sub(10));
                got
            };
            let all: Vec<_> = (0..8).map(|_| s.spawn(take)).collect();
            all.into_iter().map(|t| t.join().unwrap()).sum()
        })
    });
    assert!((10..=80).contains(&got), "{got}");
    assert_eq!(theirs.held().reserved, 10_000 - got, "what they say that they have got was given");
}

#[test]
fn a_file_that_was_made_beforehand_is_a_group_of_nobody() {
    let place = Place::new();
    fs::write(&place.0, b"").unwrap();
    assert_eq!(group_members(&place.0).unwrap(), []);
    assert_eq!(place.join("m", 1, WAIT).id(), 1);
}

#[test]
fn a_new_file_is_one_for_all_who_come_at_once() {
    let place = Place::new();
    thread::scope(|s| {
        let all: Vec<_> = (0..16).map(|_| s.spawn(|| place.join("m", 1, WAIT))).collect();
        let mut ids: Vec<u64> = all.into_iter().map(|t| t.join().unwrap().id()).collect();
        ids.sort_unstable();
        assert_eq!(ids, (1..=16).collect::<Vec<u64>>());
    });
    drop(GroupFile::open(&place.0, true, true).unwrap());
}
