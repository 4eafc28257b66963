use super::*;
use proptest::prelude::*;

const CLASS: Class = Class::Large;

fn room(each: Triple) -> Grid {
    [each, each, each]
}

/// Counts a block in, as a request does. `true`: the ledger must be asked.
fn counted_in(c: &mut Counters, class: Class, charged: u64, requested: u64) -> bool {
    c.count_in(class, charged, requested) && c.take_more_of_all()
}

/// What is allocated of the class: bytes, requested bytes, blocks.
fn now(c: &Counters) -> Triple {
    c.current()[LARGE]
}

#[test]
fn sums_hold_when_the_words_wrap() {
    let mut c = Counters::default();
    let huge = 1u64 << 62;
    let mut wrapped = 0;
    for _ in 0..9 {
        c.set_room(room([huge as i64, 10, 10]), Grid::default(), 2);
        assert!(!counted_in(&mut c, CLASS, huge / 4, 1));
        assert_eq!(now(&c), [huge as i64 / 4, 1, 1]);
        c.count_out(CLASS, huge / 4, 1);
        c.set_room([[0; 3], [huge as i64, 10, 10], [huge as i64, 10, 10]], Grid::default(), 2);
        assert!(!counted_in(&mut c, CLASS, huge, 1));
        assert!(counted_in(&mut c, CLASS, 1, 1), "past the ceiling");
        c.count_out(CLASS, 1, 1);
        c.count_out(CLASS, huge, 1);
        assert_eq!(now(&c), [0; 3]);
        wrapped += u128::from(huge) + u128::from(huge / 4) + 1;
        assert_eq!(c.totals()[LARGE][0], wrapped);
        assert_eq!(c.totals()[ALL], c.totals()[LARGE]);
    }
    assert!(wrapped > u128::from(u64::MAX));
}

#[test]
fn a_block_that_waits_is_not_allocated_and_gives_no_room() {
    let mut c = Counters::default();
    c.set_room([[0; 3], [100; 3], [100; 3]], Grid::default(), 2);
    assert!(!counted_in(&mut c, CLASS, 100, 90));
    c.count_out_to_wait(CLASS, 100, 90);
    assert_eq!((now(&c), c.waiting()[LARGE]), ([0; 3], [100, 90, 1]));
    assert!(counted_in(&mut c, CLASS, 1, 1), "what waits may not be allocated again");
    c.count_out(CLASS, 1, 1);
    c.count_back(CLASS, 100, 90);
    assert_eq!((now(&c), c.waiting()), ([0; 3], <Grid>::default()));
    assert!(!counted_in(&mut c, CLASS, 100, 90));
}

#[test]
fn a_class_takes_no_more_from_the_other_than_it_may_have() {
    const MANY: i64 = 1 << 40;
    let mut c = Counters::default();
    counted_in(&mut c, Class::Small, 1000, 1); // the heap's own peak
    c.count_out(Class::Small, 1000, 1);
    c.set_room([[1000, MANY, MANY], [300, MANY, MANY], [1000, MANY, MANY]], Grid::default(), 1);
    for bytes in [800, 850, 900] {
        assert!(!counted_in(&mut c, Class::Small, bytes, 0), "what the other has left");
        c.count_out(Class::Small, bytes, 0);
    }
    assert!(!counted_in(&mut c, CLASS, 300, 0));
    assert!(counted_in(&mut c, CLASS, 1, 0), "past what the class may have");
}

#[test]
fn room_that_was_given_back_may_not_be_allocated() {
    let mut c = Counters::default();
    c.set_room([[0; 3], [1 << 20; 3], [1 << 20; 3]], Grid::default(), 2);
    assert!(!counted_in(&mut c, CLASS, 1 << 20, 1 << 20));
    c.set_room(Grid::default(), Grid::default(), 2);
    assert!(!c.has_surplus());
    c.count_out(CLASS, 1 << 20, 1 << 20);
    assert!(c.has_surplus(), "a peak came down by a megabyte");
    let given = c.give_surplus();
    assert_eq!((given[LARGE][0], given[ALL][1], given[SMALL]), (1 << 19, 1 << 19, [0; 3]));
    assert_eq!((c.room()[LARGE][0], c.room()[ALL][0]), (1 << 19, 1 << 19));
    assert!(!c.has_surplus());
    assert!(counted_in(&mut c, CLASS, (1 << 19) + 1, 1), "that is another heap's by now");
    c.set_room([[0; 3], [1 << 20; 3], [1 << 20; 3]], Grid::default(), 1);
    c.count_out(CLASS, (1 << 19) + 1, 1);
    assert!(!c.has_surplus(), "there is no other heap");
}

#[test]
fn a_class_gets_what_the_other_leaves_without_the_ledger() {
    let mut c = Counters::default();
    c.set_room(room([1000, 1000, 1000]), Grid::default(), 2);
    for n in 0..1000 {
        assert!(!counted_in(&mut c, CLASS, 1, 1), "after {n}");
    }
    assert!(counted_in(&mut c, Class::Small, 1, 1), "both together have all that they may");
    c.count_out(Class::Small, 1, 1);
    // Close to the peak the classes take turns; what one frees, the other may have.
    for turn in 0..100 {
        let (from, to) = if turn % 2 == 0 { (CLASS, Class::Small) } else { (Class::Small, CLASS) };
        c.count_out(from, 1, 1);
        assert!(!counted_in(&mut c, to, 1, 1), "turn {turn}");
        assert!(counted_in(&mut c, from, 1, 1), "past the peak of both in turn {turn}");
        c.count_out(from, 1, 1);
    }
}

#[test]
fn classes_exchange_room_and_look_for_a_surplus_now_and_then() {
    let mut c = Counters::default();
    c.set_room(room([100, 90, 1]), Grid::default(), 2);
    assert!(!counted_in(&mut c, CLASS, 100, 90));
    assert!(c.count_in_quick(Class::Small, 1, 1) && !c.exchange(), "nothing is left");
    c.count_out(Class::Small, 1, 1);
    c.count_out(CLASS, 100, 90);
    let turn = |c: &mut Counters, n: u32| {
        let class = if n.is_multiple_of(2) { Class::Small } else { CLASS };
        assert!(c.count_in_quick(class, 100, 90), "turn {n}: the other class has all");
        let exchanged = c.exchange();
        assert!(!c.over(), "turn {n}");
        c.count_out(class, 100, 90);
        exchanged
    };
    assert!((0..100).all(|n| turn(&mut c, n)), "no surplus");
    c.most[ALL][0] += 1 << 20; // as frees of much leave it
    let looks = (0..2 * u32::from(EXCHANGES_PER_LOOK)).filter(|&n| !turn(&mut c, n)).count();
    assert_eq!(looks, 2);
}

#[test]
fn peaks_that_are_reset_before_a_request_is_completed_are_exact() {
    let mut c = Counters::default();
    c.set_room(room([1000, 1000, 10]), Grid::default(), 2);
    for _ in 0..2 {
        assert!(!counted_in(&mut c, CLASS, 300, 300));
    }
    (0..2).for_each(|_| c.count_out(CLASS, 300, 300));
    assert!(c.count_in_quick(Class::Small, 100, 100), "the other class has all");
    c.reset_highest(); // by another thread
    if !c.exchange() {
        assert!(!c.take_more_of_all());
    }
    assert!(!counted_in(&mut c, CLASS, 200, 200));
    c.count_out(CLASS, 200, 200);
    assert_eq!(c.highest(), [300, 300, 2]);
}

proptest! {
    #[test]
    fn the_peak_of_both_classes_is_exact_whatever_room_there_is(
        steps in prop::collection::vec((0u8..9, any::<bool>(), 1u64..100), 1..300)
    ) {
        let mut c = Counters::default();
        let mut live: Vec<(Class, u64)> = Vec::new();
        let mut waiting = live.clone();
        let (mut now, mut peak) = (Triple::default(), Triple::default());
        for (what, small, n) in steps {
            let class = if small { Class::Small } else { Class::Large };
            let rooms = room([n as i64 * 3, n as i64, 2]);
            match what {
                0..=3 => {
                    live.push((class, n));
                    now = [now[0] + 2 * n as i64, now[1] + n as i64, now[2] + 1];
                    peak = std::array::from_fn(|d| peak[d].max(now[d]));
                    // As by a fast path, or at once under the lock of the heap.
                    let asks = match what {
                        0 | 1 => c.count_in_quick(class, 2 * n, n) && !c.exchange() && c.take_more_of_all(),
                        _ => counted_in(&mut c, class, 2 * n, n),
                    };
                    if asks {
                        c.set_room(rooms, Grid::default(), 2);
                    }
                }
                4..=6 => {
                    let Some((class, n)) = live.pop() else { continue };
                    now = [now[0] - 2 * n as i64, now[1] - n as i64, now[2] - 1];
                    if what == 4 {
                        c.count_out_to_wait(class, 2 * n, n);
                        waiting.push((class, n));
                    } else {
                        c.count_out(class, 2 * n, n);
                    }
                }
                7 => {
                    let Some((class, n)) = waiting.pop() else { continue };
                    c.count_back(class, 2 * n, n);
                }
                _ if n < 50 => c.set_room(rooms, Grid::default(), 2),
                _ => {
                    prop_assert_eq!(c.highest(), peak);
                    c.reset_highest();
                    peak = now;
                }
            }
            prop_assert_eq!(c.current()[ALL], now);
        }
        prop_assert_eq!(c.highest(), peak);
    }

    /// Between the two steps of a request by a fast path other threads may have the heap. Until then the request may come to
    /// the peak or not.
    #[test]
    fn no_peak_is_missed_whatever_happens_before_a_request_is_completed(
        steps in prop::collection::vec((0u8..12, any::<bool>(), 1u64..100), 1..400)
    ) {
        let mut c = Counters::default();
        let (mut live, mut waiting, mut begun) = (Vec::<(Class, u64)>::new(), Vec::new(), Vec::new());
        // What is there with and without requests that are not completed, and the peaks of both.
        let (mut now, mut peak) = ([Triple::default(); 2], [Triple::default(); 2]);
        for (what, small, n) in steps {
            let class = if small { Class::Small } else { Class::Large };
            let (rooms, returns) = (room([n as i64 * 3, n as i64, 2]), room([n as i64, n as i64 / 2, 1]));
            let add = |to: &mut Triple, n: u64| *to = [to[0] + 2 * n as i64, to[1] + n as i64, to[2] + 1];
            match what {
                0..=3 => {
                    add(&mut now[0], n);
                    if c.count_in_quick(class, 2 * n, n) {
                        begun.push((class, n));
                    } else {
                        live.push((class, n));
                        add(&mut now[1], n);
                    }
                }
                4 | 5 => {
                    if !c.exchange() && c.take_more_of_all() {
                        c.set_room(rooms, returns, 2);
                    }
                    prop_assert!(!c.over());
                    live.append(&mut begun);
                    now[1] = now[0];
                }
                6..=8 => {
                    let Some((class, n)) = live.pop() else { continue };
                    now = now.map(|now| [now[0] - 2 * n as i64, now[1] - n as i64, now[2] - 1]);
                    if what == 6 {
                        c.count_out_to_wait(class, 2 * n, n);
                        waiting.push((class, n));
                    } else {
                        c.count_out(class, 2 * n, n);
                    }
                }
                9 => {
                    let Some((class, n)) = waiting.pop() else { continue };
                    c.count_back(class, 2 * n, n);
                }
                _ if n < 30 => c.set_room(rooms, returns, 2),
                _ if n < 40 => _ = c.give_surplus(),
                _ => {
                    let highest = c.highest();
                    let fits = |d| (peak[1][d]..=peak[0][d]).contains(&highest[d]);
                    prop_assert!((0..3).all(fits), "{highest:?}: {peak:?}");
                    c.reset_highest();
                    peak = now;
                }
            }
            for (peak, now) in peak.iter_mut().zip(now) {
                *peak = std::array::from_fn(|d| peak[d].max(now[d]));
            }
            prop_assert_eq!(c.current()[ALL], now[0]);
            let fits = c.room().iter().flatten().all(|n| *n >= 0);
            prop_assert!(c.over() || fits, "it has more than it may, and does not ask");
        }
        let highest = c.highest();
        prop_assert!((0..3).all(|d| (peak[1][d]..=peak[0][d]).contains(&highest[d])), "{highest:?}: {peak:?}");
    }

    #[test]
    fn parts_never_pass_what_there_is(
        free in 0i64..1 << 40, wants: [u32; 2], needs: [u32; 2], asks in prop::option::of(0usize..2)
    ) {
        let wants = wants.map(i64::from);
        let parts = split(free, wants, needs.map(i64::from), asks);
        prop_assert!(parts.iter().zip(wants).all(|(&p, w)| (0..=w).contains(&p)), "{parts:?}");
        prop_assert_eq!(parts[0] + parts[1], free.min(wants[0] + wants[1]));
        if let Some(c) = asks {
            prop_assert!(parts[c] >= wants[c].min(free / 2), "{parts:?}");
        }
    }
}
