//! Biased locks: the owner, others who take the lock, and others who only look.

use loom::thread;
use millpond::base::biased::{Biased, Looks};
use millpond::base::sync::answers::begin_to_ask;
use std::sync::Arc;

/// Makes the calling thread the owner.
pub(crate) fn own(l: &Biased<u32, ()>) {
    for _ in 0..2 {
        *l.lock() += 1;
    }
    assert!(l.enter().is_some(), "two entries in a row make an owner");
}

#[test]
fn biased_owner_and_another_exclude_each_other() {
    loom::model(|| {
        let l = Arc::new(Biased::new(0u32));
        own(&l);
        let other = {
            let l = l.clone();
            thread::spawn(move || *l.lock() += 1)
        };
        // As owner; or, after the loss of it, the usual way; or as owner again.
        for _ in 0..3 {
            *l.lock() += 1;
        }
        other.join().unwrap();
        assert_eq!(*l.lock(), 6);
    });
}

#[test]
fn biased_lock_changes_owners() {
    loom::model(|| {
        let l = Arc::new(Biased::new(0u32));
        own(&l);
        let other = {
            let l = l.clone();
            thread::spawn(move || {
                for _ in 0..3 {
                    *l.lock() += 1;
                }
            })
        };
        for _ in 0..2 {
            *l.lock() += 1;
        }
        other.join().unwrap();
        assert_eq!(*l.lock(), 7);
    });
}

/// The owner gives its right up at the end of a hold, while another thread takes it away.
#[test]
fn biased_owner_rests_the_lock() {
    loom::model(|| {
        let l = Arc::new(Biased::new(0u32));
        own(&l);
        let other = {
            let l = l.clone();
            thread::spawn(move || {
                *l.lock() += 1;
                *l.lock() += 1;
            })
        };
        let mut g = l.lock();
        *g += 1;
        g.rest();
        drop(g);
        *l.lock() += 1;
        other.join().unwrap();
        assert_eq!(*l.lock(), 6);
    });
}

/// Lookers give the ownership back, once and then no more, while the owner comes and goes.
#[test]
fn biased_lookers_give_the_ownership_back() {
    loom::model(|| {
        begin_to_ask();
        let l = Arc::new(Biased::new(0u32));
        own(&l);
        let other = {
            let l = l.clone();
            thread::spawn(move || {
                *l.look() += 1;
                *l.look() += 1;
            })
        };
        for _ in 0..3 {
            *l.lock() += 1;
        }
        other.join().unwrap();
        assert_eq!(*l.lock(), 7);
    });
}

/// A lock that its owner gives up stays without one, though somebody looks at that moment.
#[test]
fn biased_lookers_do_not_undo_a_rest() {
    loom::model(|| {
        begin_to_ask();
        let l = Arc::new(Biased::new(0u32));
        own(&l);
        let other = {
            let l = l.clone();
            thread::spawn(move || *l.look() += 1)
        };
        let mut g = l.lock();
        *g += 1;
        g.rest();
        drop(g);
        other.join().unwrap();
        assert!(l.enter().is_none());
        assert_eq!(*l.lock(), 4);
    });
}

/// Two locks that are looked at together, while the owner of both comes and goes; then both are its own again.
#[test]
fn biased_looks_at_two_locks_take_one_barrier() {
    loom::model(|| {
        begin_to_ask();
        let all = Arc::new([Biased::new(0u32), Biased::new(0u32)]);
        all.iter().for_each(own);
        let other = {
            let all = all.clone();
            thread::spawn(move || {
                let mut looks = Looks::default();
                all.iter().for_each(|l| looks.ask(l, ()));
                for (mut l, ()) in looks.take() {
                    *l += 1;
                }
            })
        };
        for l in all.iter() {
            *l.lock() += 1;
        }
        other.join().unwrap();
        all.iter().for_each(|l| assert_eq!(*l.lock(), 4));
    });
}
