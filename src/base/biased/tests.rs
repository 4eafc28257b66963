use super::*;

/// Without fast paths.
type Plain<T> = Biased<T>;

fn own<T>(l: &Biased<T>) {
    for _ in 0..=STREAK << MAX_LOSSES {
        drop(l.lock());
    }
}

#[test]
fn a_lone_thread_becomes_owner_and_loses_it_to_another() {
    let l = Plain::new(0u64);
    assert!(l.enter().is_none());
    own(&l);
    assert_eq!(l.enter().is_some(), barrier::works());
    std::thread::scope(|s| {
        s.spawn(|| *l.lock() += 1);
    });
    assert!(l.enter().is_none());
    assert_eq!(*l.lock(), 1);
}

#[test]
fn an_owner_that_was_looked_at_is_owner_again_unless_that_goes_on() {
    let l = Plain::new(0u64);
    own(&l);
    let look = |count| {
        std::thread::scope(|s| {
            s.spawn(|| (0..count).for_each(|_| *l.look() += 1));
        });
    };
    look(1);
    assert_eq!(l.enter().map(|g| *g), barrier::works().then_some(1), "and finds what was done");
    std::thread::sleep(2 * AGAIN);
    look(1);
    assert_eq!(l.enter().is_some(), barrier::works());
    look(10_000);
    assert!(l.enter().is_none(), "this would cost it more than to be owner saves");
    assert_eq!(*l.lock(), 10_002);
}

/// An owner that many look at for a moment, as while all streams of a program grow, is soon owner again, however often that
/// happens.
#[test]
fn an_owner_that_many_looked_at_is_owner_again_soon() {
    let l = Plain::new(0u64);
    let enter_often = || (0..=STREAK).for_each(|_| drop(l.lock()));
    let (mut round, mut seen) = (0, false);
    // Once at least this thread must have entered while the time was not over, on however slow a machine.
    while round < 10 || !seen {
        enter_often();
        assert_eq!(l.enter().is_some(), barrier::works(), "in round {round}");
        let from = Instant::now();
        std::thread::scope(|s| {
            s.spawn(|| (0..=LOOKS).for_each(|_| drop(l.look())));
        });
        enter_often();
        let is_owner = l.enter().is_some();
        if from.elapsed() < AGAIN {
            assert!(!is_owner, "in round {round}");
            seen = true;
        }
        std::thread::sleep(2 * AGAIN);
        round += 1;
    }
}

/// Whoever gives the lock up, the owner or a looker, the next entry comes through `lock`.
#[test]
fn owners_that_were_looked_at_together_are_owners_again() {
    let all = [Biased::new(0), Biased::new(0), Biased::new(0)];
    all.iter().take(2).for_each(own);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut looks = Looks::default();
            for round in 0..2 {
                all.iter().zip(0..).for_each(|(l, n)| looks.ask(l, n));
                let seen: Vec<i32> = looks.take().map(|(mut l, n)| (*l += 1, n).1).collect();
                assert_eq!(seen, [0, 1, 2], "round {round}");
            }
            // What was asked for and is not wanted any more is free again.
            all.iter().for_each(|l| looks.ask(l, 0));
        });
    });
    assert!(all[0].enter().is_some() && all[1].enter().is_some() && all[2].enter().is_none());
    let before = *all[0].lock();
    all.iter().for_each(|l| *l.lock() += 1);
    assert_eq!(*all[0].lock(), before + 1);
}

/// Whoever reads all the time is told so; not who owns the locks itself.
#[test]
fn locks_that_are_looked_at_all_the_time_are_crowded() {
    let all = [Plain::new(0), Plain::new(0)];
    own(&all[0]);
    let crowded = |times| {
        let mut looks = Looks::default();
        (0..times).any(|_| {
            all.iter().for_each(|l| looks.ask(l, ()));
            looks.take().for_each(drop);
            looks.crowded()
        })
    };
    assert!(!crowded(100), "this thread owns the first, and nobody the second");
    std::thread::scope(|s| {
        assert!(!s.spawn(|| crowded(LOOKS)).join().unwrap());
        assert_eq!(s.spawn(|| crowded(10_000)).join().unwrap(), barrier::works());
    });
    std::thread::sleep(2 * AGAIN);
    assert!(!crowded(1));
}

#[test]
fn what_rests_stays_without_an_owner_also_while_others_look() {
    let l = Plain::new(0u64);
    own(&l);
    std::thread::scope(|s| {
        s.spawn(|| l.look().rest());
    });
    assert!(l.enter().is_none());
    drop(l.lock());
    assert_eq!(l.enter().is_some(), barrier::works(), "its owner is owner again at once");
    let mut g = l.lock();
    g.rest();
    std::thread::scope(|s| {
        s.spawn(|| drop(l.look()));
        std::thread::sleep(Duration::from_millis(20)); // the looker waits by now
        drop(g);
    });
    assert!(l.enter().is_none());
}

#[test]
fn owner_and_others_exclude_each_other() {
    let l = Plain::new((0u64, 0u64));
    let turns = 200_000u64;
    std::thread::scope(|s| {
        s.spawn(|| {
            for i in 0..turns {
                let mut g = l.lock();
                g.0 += 1;
                std::hint::black_box(i);
                g.1 += 1;
            }
        });
        for _ in 0..2 {
            s.spawn(|| {
                for i in 0..turns / 100 {
                    let mut g = l.lock();
                    assert_eq!(g.0, g.1);
                    g.0 += 1;
                    std::hint::black_box(i);
                    g.1 += 1;
                    drop(g);
                    if i % 16 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert_eq!(*l.lock(), (turns + turns / 50, turns + turns / 50));
}

#[test]
fn four_threads_take_turns_at_owning() {
    let l = Plain::new([0u64; 2]);
    // Long runs of one thread, so that there are owners, at other times than those of the other threads.
    let (rounds, run) = (40u64, 2_000u64);
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let l = &l;
            s.spawn(move || {
                for round in 0..rounds {
                    for _ in 0..run / (1 + (t + round) % 4) {
                        let mut g = l.lock();
                        assert_eq!(g[0], g[1]);
                        g[0] += 1;
                        std::hint::black_box(&mut *g);
                        g[1] += 1;
                    }
                    if (t + round) % 2 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    let each: u64 = (1..=4).map(|d| rounds / 4 * (run / d)).sum();
    assert_eq!(*l.lock(), [4 * each; 2]);
}

#[test]
fn a_thread_that_lost_the_lock_and_stays_away_is_no_hindrance() {
    let l = Plain::new(());
    own(&l);
    let owns_there = || {
        std::thread::scope(|s| {
            let t = s.spawn(|| {
                own(&l);
                l.enter().is_some()
            });
            t.join().unwrap()
        })
    };
    // This thread lost the lock and may be on its way in, for all that the others know.
    for _ in 0..3 {
        assert_eq!(owns_there(), barrier::works());
    }
}

#[test]
fn a_rested_lock_has_no_owner_until_the_next_entry() {
    let l = Plain::new(0u64);
    own(&l);
    let mut g = l.lock();
    g.rest();
    *g += 1;
    drop(g);
    assert!(l.enter().is_none());
    drop(l.lock());
    assert_eq!(l.enter().is_some(), barrier::works(), "its owner is it again at once");
    let mut g = l.lock();
    g.rest();
    drop(g);
    std::thread::scope(|s| {
        s.spawn(|| {
            *l.lock() += 1;
            assert!(l.enter().is_none(), "another thread has to come by more often");
        });
    });
    assert_eq!(*l.lock(), 2);
}

#[test]
fn resting_and_taking_exclude_each_other() {
    let l = Plain::new([0u64; 2]);
    let turns = 20_000u64;
    std::thread::scope(|s| {
        for t in 0..2u64 {
            let l = &l;
            s.spawn(move || {
                for i in 0..turns {
                    let mut g = l.lock();
                    assert_eq!(g[0], g[1]);
                    g[0] += 1;
                    std::hint::black_box(&mut *g);
                    g[1] += 1;
                    if (i + t) % 3 == 0 {
                        g.rest();
                    }
                    drop(g);
                    if i % 64 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert_eq!(*l.lock(), [2 * turns; 2]);
}

#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn the_barrier_without_the_call_leaves_the_thread_where_it_may_run() {
    let processors = || std::thread::available_parallelism().unwrap();
    let before = processors();
    barrier::heavy_as_if_refused();
    assert_eq!(processors(), before);
}

#[test]
fn a_guard_of_the_owner_keeps_another_out() {
    let l = Plain::new(0u64);
    own(&l);
    let Some(mut g) = l.enter() else { return };
    std::thread::scope(|s| {
        let t = s.spawn(|| *l.lock());
        std::thread::sleep(std::time::Duration::from_millis(20));
        *g = 7;
        drop(g);
        assert_eq!(t.join().unwrap(), 7);
    });
}
