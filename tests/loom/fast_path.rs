//! Fast paths into biased locks: the owner enters by its own, while others take the lock, look, or close it.

use super::biased::own;
use loom::thread;
use millpond::base::biased::{Biased, Entry, FastPath};
use millpond::base::sync::AtomicU32;
use millpond::base::sync::Ordering::{Acquire, Relaxed, Release};
use millpond::base::sync::answers::{asleep, begin_to_ask};
use std::sync::Arc;

/// The name under which fast paths are opened here.
const NAME: [u64; 2] = [7, 9];

/// Opens the calling thread's fast path, if it owns the lock and `may` allows it.
fn opened<'a>(l: &'a Biased<u32, ()>, may: impl FnOnce() -> bool) -> Option<FastPath<'a, u32, ()>> {
    l.enter()?.open(NAME, (), may)
}

/// Adds 1 under the lock, by the fast path if that is open.
fn add_by(l: &Biased<u32, ()>, path: Option<FastPath<'_, u32, ()>>) {
    match path.and_then(|d| d.enter(NAME)) {
        Some(mut g) => *g += 1,
        None => *l.lock() += 1,
    }
}

/// The owner comes and goes by its fast path, and opens it again when it is owner again, while another thread takes the
/// lock.
#[test]
fn fast_paths_let_nobody_in_beside_another() {
    loom::model(|| {
        let l = Arc::new(Biased::new(0u32));
        own(&l);
        let other = {
            let l = l.clone();
            thread::spawn(move || *l.lock() += 1)
        };
        for _ in 0..2 {
            let path = opened(&l, || true);
            add_by(&l, path);
            add_by(&l, path);
        }
        other.join().unwrap();
        assert_eq!(*l.lock(), 7);
    });
}

/// A thread whose fast path is open under another name, or not at all, tries that name before it leaves, while another
/// thread takes the lock.
#[test]
fn a_second_name_lets_nobody_in_beside_another() {
    const OTHER: [u64; 2] = [8, 9];
    loom::model(|| {
        let l = Arc::new(Biased::new(0u32));
        own(&l);
        let path = l.enter().and_then(|mut g| g.open(OTHER, (), || true));
        let other = {
            let l = l.clone();
            thread::spawn(move || *l.lock() += 1)
        };
        for _ in 0..2 {
            let entered = path.and_then(|d| match d.enter_or_stay(NAME) {
                Entry::Open(_) => panic!("it has another name"),
                Entry::OtherName(seated) => seated.enter(OTHER),
                Entry::Elsewhere => None,
            });
            match entered {
                Some(mut g) => *g += 1,
                None => *l.lock() += 1,
            }
        }
        other.join().unwrap();
        assert_eq!(*l.lock(), 5);
    });
}

/// A looker gives the ownership back, and the fast path is open again, while the owner comes and goes by it: at once, or once
/// the owner comes by the lock.
#[test]
fn a_fast_path_is_open_again_after_a_look() {
    loom::model(|| {
        begin_to_ask();
        let l = Arc::new(Biased::new(0u32));
        own(&l);
        let path = opened(&l, || true);
        assert!(path.is_some());
        let other = {
            let l = l.clone();
            thread::spawn(move || *l.look() += 1)
        };
        add_by(&l, path);
        add_by(&l, path);
        other.join().unwrap();
        assert_eq!(*l.lock(), 5);
        let path = opened(&l, || true).expect("the owner has its ownership back, and may have its fast path");
        assert!(path.enter(NAME).is_some());
    });
}

/// Once a fast path that must not be open is closed, nobody enters by it, however late it was opened.
#[test]
fn a_closed_fast_path_stays_closed() {
    loom::model(|| {
        let l = Arc::new((Biased::new(0u32), AtomicU32::new(0), AtomicU32::new(0)));
        own(&l.0);
        let other = {
            let l = l.clone();
            thread::spawn(move || {
                l.1.store(1, Relaxed); // from here on it must not be open
                l.0.close_fast_path();
                l.2.store(1, Release); // and from here on it is not
            })
        };
        for _ in 0..2 {
            let path = opened(&l.0, || l.1.load(Relaxed) == 0);
            let over = l.2.load(Acquire) == 1;
            if let Some(mut g) = path.and_then(|d| d.enter(NAME)) {
                assert!(!over, "it was closed before");
                *g += 1;
            }
        }
        other.join().unwrap();
        assert!(opened(&l.0, || l.1.load(Relaxed) == 0).is_none());
    });
}

/// The same while a third thread looks, which would open the fast path again when it leaves.
#[test]
fn a_look_opens_no_fast_path_that_was_closed() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        begin_to_ask();
        let l = Arc::new((Biased::new(0u32), AtomicU32::new(0)));
        own(&l.0);
        let path = opened(&l.0, || true);
        let looks = {
            let l = l.clone();
            thread::spawn(move || *l.0.look() += 1)
        };
        let shuts = {
            let l = l.clone();
            thread::spawn(move || {
                l.0.close_fast_path();
                l.1.store(1, Release);
            })
        };
        let over = l.1.load(Acquire) == 1;
        if let Some(mut g) = path.and_then(|d| d.enter(NAME)) {
            assert!(!over, "it was closed before");
            *g += 1;
        }
        looks.join().unwrap();
        shuts.join().unwrap();
        assert!(path.is_none_or(|d| d.enter(NAME).is_none()));
    });
}

/// A lock that is given up has no open fast path, whoever gives it up: a looker, or the owner itself beside another
/// thread.
#[test]
fn a_fast_path_is_closed_when_the_lock_rests() {
    for by_owner in [false, true] {
        loom::model(move || {
            let l = Arc::new(Biased::new(0u32));
            own(&l);
            let path = opened(&l, || true);
            let other = {
                let l = l.clone();
                thread::spawn(move || match by_owner {
                    true => *l.lock() += 1,
                    false => l.look().rest(),
                })
            };
            if by_owner {
                let mut g = l.lock();
                g.rest();
                drop(g);
            }
            add_by(&l, path);
            other.join().unwrap();
            assert!(path.is_none_or(|d| d.enter(NAME).is_none()));
            assert_eq!(*l.lock(), 3 + u32::from(by_owner));
        });
    }
}

/// An owner that has its ownership back from a looker closes its fast path itself: the looker, which is on its way out,
/// does not open it again.
#[test]
fn a_looker_on_its_way_out_opens_no_fast_path_that_the_owner_has_closed() {
    loom::model(|| {
        begin_to_ask();
        let l = Arc::new(Biased::new(0u32));
        own(&l);
        let path = opened(&l, || true);
        let other = {
            let l = l.clone();
            thread::spawn(move || *l.look() += 1)
        };
        asleep(&mut || ()); // which answers
        l.close_fast_path();
        assert!(path.is_none_or(|d| d.enter(NAME).is_none()), "it was closed before");
        other.join().unwrap();
        assert!(path.is_none_or(|d| d.enter(NAME).is_none()), "it was closed before");
        assert_eq!(*l.lock(), 3);
    });
}
