use super::*;
use crate::base::sync::AtomicU32;

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

/// Whether the lock has an owner.
fn is_owned<T>(l: &Plain<T>) -> bool {
    !l.owner.load(Ordering::Relaxed).is_null()
}

/// An owner that does not answer is interrupted once. It is owner again when it comes again.
#[test]
fn an_idle_owner_is_interrupted_once_and_owner_again_when_it_comes() {
    let l = Plain::new(0u64);
    own(&l);
    std::thread::scope(|s| {
        s.spawn(|| (0..100).for_each(|_| *l.look() += 1));
    });
    assert!(!is_owned(&l));
    assert_eq!(*l.lock(), 100, "it finds what was done");
    assert_eq!(l.enter().is_some(), barrier::works());
    if barrier::works() {
        // SAFETY: nobody holds the lock.
        let seen = unsafe { &*l.value.get() };
        assert_eq!((seen.looks, seen.interrupts), (1, 1));
    }
}

/// An owner that comes to the lock while it is looked at answers, and is owner again as soon as the looker leaves.
#[test]
fn a_busy_owner_answers_and_keeps_the_lock() {
    let (l, stop) = (Plain::new(0u64), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                *l.lock() += 1;
            }
        });
        let mut answered = !barrier::works();
        while !answered {
            while !is_owned(&l) {
                std::thread::yield_now();
            }
            let guard = l.look();
            answered = guard.answered;
            drop(guard);
            assert!(!answered || is_owned(&l));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// An owner that lookers interrupt again and again, and that comes in between, is no owner for a while, and soon one again,
/// however often that happens.
#[test]
fn an_owner_that_is_interrupted_all_the_time_is_owner_again_soon() {
    let l = Plain::new(0u64);
    let enter_often = || (0..=STREAK).for_each(|_| drop(l.lock()));
    let (mut round, mut seen) = (0, !barrier::works());
    // Once at least this thread must have entered while the time was not over, on however slow a machine.
    while round < 10 || !seen {
        enter_often();
        assert_eq!(l.enter().is_some(), barrier::works(), "in round {round}");
        let (turn, from) = (AtomicU32::new(0), Instant::now());
        let mine = |odd: u32| {
            while turn.load(Ordering::Acquire) % 2 != odd {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|s| {
            s.spawn(|| {
                for _ in 0..=LOOKS {
                    drop(l.look());
                    turn.fetch_add(1, Ordering::AcqRel);
                    mine(0);
                }
            });
            for _ in 0..=LOOKS {
                mine(1);
                drop(l.lock());
                turn.fetch_add(1, Ordering::AcqRel);
            }
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
    let before = *all[0].lock();
    all.iter().for_each(|l| *l.lock() += 1);
    assert_eq!(*all[0].lock(), before + 1);
    assert!(all[0].enter().is_some() && all[1].enter().is_some() && all[2].enter().is_none());
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
    assert!(!crowded(100), "this thread owns the first, and nobody comes to the second");
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(all[1].lock());
            }
        });
        while barrier::works() && !crowded(10 * LOOKS) {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
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
