//! What an answer is worth (`base/sync/answers.rs`), without any barrier of the thread that answers: it enters what another closes.

use loom::thread;
use millpond::base::sync::Ordering::{Acquire, Relaxed, Release};
use millpond::base::sync::answers::{Answers, answer, ask, asleep, begin_to_ask};
use millpond::base::sync::{AtomicU32, UnsafeCell, thread_token};
use std::sync::Arc;

#[derive(Default)]
struct Room {
    closed: AtomicU32,
    inside: AtomicU32,
    /// Loom reports two accesses that nothing orders.
    value: UnsafeCell<u32>,
}

impl Room {
    /// Enters unless it is closed, with two plain stores and a load. Returns whether it was open.
    fn enter(&self) -> bool {
        self.inside.store(1, Relaxed);
        let open = self.closed.load(Relaxed) == 0;
        if open {
            // SAFETY: loom reports whoever is here beside this thread.
            self.value.with_mut(|v| unsafe { *v += 1 });
        }
        self.inside.store(0, Release);
        open
    }

    /// Closes it, and enters if that thread answers.
    fn close(&self, them: &'static Answers) {
        self.closed.store(1, Relaxed);
        if ask(&|number| them.has(number)) {
            while self.inside.load(Acquire) != 0 {
                thread::yield_now();
            }
            // SAFETY: as above.
            self.value.with_mut(|v| unsafe { *v += 1 });
        }
    }
}

/// A model of a thread that runs `body` while another closes the room.
fn check(body: fn(&Room)) {
    loom::model(move || {
        begin_to_ask();
        let room = Arc::new(Room::default());
        let mine = Answers::of(thread_token()).expect("there is room for two");
        let other = {
            let room = room.clone();
            thread::spawn(move || room.close(mine))
        };
        body(&room);
        other.join().unwrap();
    });
}

#[test]
fn who_answers_is_out_and_finds_closed_what_was_closed() {
    check(|room| {
        room.enter();
        answer();
        room.enter();
    });
}

#[test]
fn who_sleeps_is_out_and_finds_closed_what_was_closed() {
    check(|room| {
        room.enter();
        asleep(&mut || ());
        room.enter();
    });
}
