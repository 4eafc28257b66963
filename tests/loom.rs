//! Models of everything that threads share without a plain mutex, run by `scripts/loom.sh`: loom tries every
//! interleaving of the threads (up to a number of preemptions), and every value that a load may see.
//! The models run the library's own code; `base::sync` gives it loom's atomics here.
//!
//! A fence that is sequentially consistent orders more under loom than in the language: all that came before
//! it is visible after any later one. The two sides of the barrier of `Biased` are such fences here. The system
//! call that stands for the seldom side gives that much; and an access that is too weak is still found where no
//! fence lies between the two threads' accesses.
#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

use loom::thread;
use millpond::base::biased::Biased;
use millpond::base::remote::Remote;
use millpond::base::sync::{AtomicU32, Lock, Ordering::Relaxed};
use std::sync::Arc;

/// Every access under the lock is a plain one: loom reports two that no lock orders.
#[test]
fn lock_excludes() {
    loom::model(|| {
        let l = Arc::new(Lock::new(0u32));
        let threads = [1, 2].map(|_| {
            let l = l.clone();
            thread::spawn(move || *l.lock() += 1)
        });
        if let Some(mut g) = l.try_lock() {
            *g += 10;
        } else {
            *l.lock() += 10;
        }
        threads.map(|t| t.join().unwrap());
        assert_eq!(*l.lock(), 12);
    });
}

/// Makes the calling thread the owner.
fn own(l: &Biased<u32>) {
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
