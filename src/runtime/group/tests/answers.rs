//! Answers that come late, or over each other.

use super::*;

#[test]
fn an_answer_that_a_late_one_has_overwritten_is_given_again() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let (one, two) = (Part::new(&card, 100, 100), Part::new(&card, 100, 50));
    let (a, b) = (place.join("a", 1, LONG), place.join("b", 1, LONG));
    b.serve(&two, NOW).unwrap();
    thread::scope(|s| {
        let asking = s.spawn(|| ask(&a, &one, 80));
        while b.serve(&two, NOW).unwrap() == 0 {
            thread::yield_now();
        }
        // Another one had begun to answer an earlier wish of A, which has stopped waiting for that.
        let file = GroupFile::open(&place.0, true, false).unwrap();
        file.answer(0, &Note { who: a.id() + 7, number: 1, bytes: 0 }).unwrap(); // A came first
        let from = Instant::now();
        while !asking.is_finished() && from.elapsed() < LONG / 6 {
            b.serve(&two, Duration::from_millis(20)).unwrap();
        }
        a.leave(); // or it would wait on
        assert_eq!(asking.join().unwrap(), Some(50));
    });
}

/// What of a program's memory is not as it seems.
struct Changing<'a> {
    part: Part<'a>,
    /// What it gives back, another thread of its own takes at once.
    is_taken_back: bool,
    /// So often it is asked before it has anything that it does not use.
    is_used: AtomicUsize,
    /// So often the card has 10 bytes more, which somebody else takes at once.
    flickers: AtomicUsize,
}

impl<'a> Changing<'a> {
    fn new(card: &'a Card, reserved: u64) -> Changing<'a> {
        Changing {
            part: Part::new(card, reserved, 0),
            is_taken_back: false,
            is_used: AtomicUsize::new(0),
            flickers: AtomicUsize::new(0),
        }
    }
}

impl Share for Changing<'_> {
    fn held(&self) -> Stake {
        self.part.held()
    }

    fn free(&self) -> Option<u64> {
        let more = self.flickers.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).map_or(0, |_| 10);
        self.part.free().map(|free| free + more)
    }

    fn total(&self) -> Option<u64> {
        self.part.total()
    }

    fn is_helped(&self, need: Need) -> bool {
        self.part.is_helped(need)
    }

    fn trim_to(&self, keep: u64) -> Result<()> {
        if self.is_used.load(SeqCst) > 0 {
            self.is_used.fetch_sub(1, SeqCst);
            return Ok(());
        }
        self.part.trim_to(keep)?;
        if self.is_taken_back {
            *self.part.reserved.lock().unwrap() += self.part.card.0.swap(0, SeqCst);
        }
        Ok(())
    }

    fn set_budget(&self, bytes: u64) -> Result<()> {
        self.part.set_budget(bytes)
    }

    fn check(&self) -> Result<()> {
        self.part.check()
    }
}

/// An answer of nothing would end the asking, though the next request may be the first at the card.
#[test]
fn what_somebody_takes_back_was_given_all_the_same() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let mine = Part::new(&card, 1, 1);
    let theirs = Changing { is_taken_back: true, ..Changing::new(&card, 90) };
    let (me, other) = (place.join("me", 1, WAIT), place.join("other", 1, WAIT));
    other.serve(&theirs, NOW).unwrap();
    let got = thread::scope(|s| {
        s.spawn(|| assert_eq!(other.serve(&theirs, WAIT).unwrap(), 10));
        ask(&me, &mine, 10)
    });
    assert_eq!((got, theirs.held().reserved), (Some(10), 90));
}

/// Then nobody was asked, and the request is tried again: it may be the first the next time.
#[test]
fn a_card_that_had_enough_for_a_moment_ends_no_request() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    for (flickers, got) in [(0, None), (1, Some(0))] {
        let mine = Changing { flickers: AtomicUsize::new(flickers), ..Changing::new(&card, 1) };
        let me = place.join("me", 1, WAIT);
        assert_eq!(me.ask(&mine, need(10), Instant::now()), got);
    }
}

/// The card has enough each time that it is asked, and the request is too late for it each time.
#[test]
fn a_request_that_comes_late_to_all_that_it_sees_asks_no_oftener_than_others_look() {
    const WAITS: Duration = Duration::from_millis(400);
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let mine = Changing { flickers: AtomicUsize::new(usize::MAX), ..Changing::new(&card, 1) };
    let me = place.join("me", 1, WAITS);
    let (since, mut asks, mut first) = (Instant::now(), 0, None);
    while me.ask(&mine, need(10), since) == Some(0) {
        first.get_or_insert(since.elapsed());
        asks += 1;
    }
    let took = since.elapsed();
    assert!(took >= WAITS && took < LONG / 2, "{took:?}");
    assert!((10..200).contains(&asks), "{asks} times");
    assert!(first < Some(WAITS / 4), "the first time it waits for nothing: {first:?}");
}

/// Its pool has ended, say. It is tried at once, and told so.
#[test]
fn a_request_that_memory_no_longer_helps_waits_for_nobody() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let (mine, theirs) = (Part::new(&card, 1, 1), Part::new(&card, 99, 0));
    let (me, stuck) = (place.join("me", 1, WAIT), place.join("stuck", 1, WAIT));
    stuck.serve(&theirs, NOW).unwrap();
    let from = Instant::now();
    thread::scope(|s| {
        // The second waits for its turn.
        let all = [(); 2].map(|()| s.spawn(|| ask(&me, &mine, 10)));
        sleep(Duration::from_millis(50));
        assert!(!all.iter().any(|t| t.is_finished()));
        mine.is_vain.store(true, SeqCst);
        all.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), Some(0)));
    });
    assert!(from.elapsed() < WAIT / 2, "it waited on");
    // Nor is anybody asked.
    assert_eq!(while_serving(&[(&stuck, &theirs)], || ask(&me, &mine, 10)), Some(0));
    assert_eq!(theirs.held().reserved, 99);
}

/// While the second is asked, the first may free what it used.
#[test]
fn if_nobody_had_anything_all_are_asked_once_more() {
    for (used, given) in [(1, Some(10)), (2, None)] {
        let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
        let mine = Part::new(&card, 1, 1);
        let theirs = Changing { is_used: AtomicUsize::new(used), ..Changing::new(&card, 90) };
        let (me, other) = (place.join("me", 1, WAIT), place.join("other", 1, WAIT));
        other.serve(&theirs, NOW).unwrap();
        let got = thread::scope(|s| {
            s.spawn(|| (0..2).for_each(|_| _ = other.serve(&theirs, WAIT).unwrap()));
            ask(&me, &mine, 10)
        });
        assert_eq!(got, given, "{used}");
    }
}

/// What a program gives back, of which another thread of the one that asks takes everything at once.
struct Snatched<'a>(Part<'a>, &'a Part<'a>);

impl Share for Snatched<'_> {
    fn held(&self) -> Stake {
        self.0.held()
    }

    fn free(&self) -> Option<u64> {
        self.0.free()
    }

    fn total(&self) -> Option<u64> {
        self.0.total()
    }

    fn is_helped(&self, need: Need) -> bool {
        self.0.is_helped(need)
    }

    fn trim_to(&self, keep: u64) -> Result<()> {
        self.0.trim_to(keep)?;
        *self.1.reserved.lock().unwrap() += self.0.card.0.swap(0, SeqCst);
        Ok(())
    }

    fn set_budget(&self, bytes: u64) -> Result<()> {
        self.0.set_budget(bytes)
    }

    fn check(&self) -> Result<()> {
        self.0.check()
    }
}

#[test]
fn what_another_thread_takes_of_what_was_given_does_not_end_the_asking() {
    let (place, card) = (Place::new(), Card(AtomicU64::new(0)));
    let mine = Part::new(&card, 1, 1);
    let (much, little) = (Snatched(Part::new(&card, 90, 0), &mine), Part::new(&card, 20, 0));
    let (me, a, b) = (place.join("me", 1, WAIT), place.join("a", 1, WAIT), place.join("b", 1, WAIT));
    a.serve(&much, NOW).unwrap();
    let got = thread::scope(|s| {
        s.spawn(|| a.serve(&much, WAIT).unwrap());
        while_serving(&[(&b, &little)], || ask(&me, &mine, 10))
    });
    assert_eq!((got, card.0.load(SeqCst)), (Some(20), 10));
}
