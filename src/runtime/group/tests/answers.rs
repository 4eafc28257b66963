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
