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

#[macro_use]
#[path = "../src/core/tests/gives_all.rs"]
mod gives_all;
#[path = "loom/answers.rs"]
mod answers;
#[path = "loom/biased.rs"]
mod biased;
#[path = "loom/fast_path.rs"]
mod fast_path;
#[path = "loom/fences.rs"]
mod fences;

use loom::thread;
use millpond::base::changed::{Changed, Listed};
use millpond::base::error::Result;
use millpond::base::error::{Code, Error};
use millpond::base::range_map::{Changing, Memo, Range, RangeMap};
use millpond::base::remote::Remote;
use millpond::base::ring::{Ring, Seen};
use millpond::base::sync::{AtomicU32, Lock, Ordering::Relaxed, UnsafeCell};
use millpond::core::{Backing, Config, Order, Point, Points, Pond, PoolId, UNORDERED};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32 as PlainU32, Ordering::SeqCst};

/// A thread beside this one, which shares a value with it.
fn beside<T: Send + Sync + 'static, R: 'static>(
    shared: &Arc<T>,
    body: impl FnOnce(&T) -> R + 'static,
) -> thread::JoinHandle<R> {
    let shared = shared.clone();
    thread::spawn(move || body(&shared))
}

/// Every access under the lock is a plain one: loom reports two that no lock orders.
#[test]
fn lock_excludes() {
    loom::model(|| {
        let l = Arc::new(Lock::<u32>::new(0));
        let other = beside(&l, |l| {
            *l.lock() += 1;
            *l.lock() += 1;
        });
        *l.lock() += 10;
        other.join().unwrap();
        assert_eq!(*l.lock(), 12);
    });
}

/// Members of a list: the link, and something plain that the pusher writes and the drainer reads.
struct Members {
    list: Remote,
    link: [AtomicU32; 4],
    plain: [UnsafeCell<u32>; 4],
}
// SAFETY: loom reports accesses to `plain` that nothing orders; to find such is the model's purpose.
unsafe impl Sync for Members {}
// SAFETY: as above.
unsafe impl Send for Members {}

impl Members {
    fn push(&self, id: u32) {
        // SAFETY: the caller has the member, as `Remote::push` demands.
        self.plain[id as usize].with_mut(|p| unsafe { *p += 1 });
        self.list.push(id, |next| self.link[id as usize].store(next, Relaxed));
    }
    /// Takes the list; what was on it.
    fn take(&self) -> Vec<u32> {
        let mut found = Vec::new();
        if self.list.is_empty() {
            return found;
        }
        let mut id = self.list.take();
        while id != 0 {
            assert!(!found.contains(&id), "{id} is on the list twice: {found:?}");
            // SAFETY: whoever takes a member has it.
            self.plain[id as usize].with_mut(|p| unsafe { *p += 1 });
            found.push(id);
            id = self.link[id as usize].load(Relaxed);
        }
        found
    }
}

/// A member that changes again, for one who has seen it meanwhile, while its list is being taken: it is on the next
/// list, and takes nobody off this one.
#[test]
fn who_changes_while_its_list_is_taken_loses_nobody() {
    loom::model(|| {
        let both = Arc::new((Changed::<2>::default(), [Listed::<2>::default(), Listed::default()]));
        for n in 0..2 {
            both.0.note(n, &both.1[n as usize]);
        }
        let other = beside(&both, |both| {
            // The first of the list, whose link leads to the other.
            both.1[1].is_seen_by(0);
            both.0.note(1, &both.1[1]);
        });
        let (mut told, steps) = (Vec::new(), std::cell::Cell::new(0));
        let mut take = || {
            both.0.take(
                0,
                |n| {
                    steps.set(steps.get() + 1);
                    assert!(steps.get() < 9, "the list bites its tail");
                    Some(&both.1[n as usize])
                },
                &mut told,
            );
        };
        take();
        other.join().unwrap();
        take();
        assert_eq!(told.iter().filter(|&&n| n == 0).count(), 1, "{told:?}");
        assert!(told.contains(&1), "{told:?}");
    });
}

#[test]
fn remote_list_loses_nothing_and_gives_nothing_twice() {
    loom::model(|| {
        let m = Arc::new(Members {
            list: Remote::new(),
            link: std::array::from_fn(|_| AtomicU32::new(0)),
            plain: std::array::from_fn(|_| UnsafeCell::new(0)),
        });
        let pushers =
            [&[1, 2][..], &[3][..]].map(|ids| beside(&m, move |m| ids.iter().for_each(|&id| m.push(id))));
        let drainer = beside(&m, |m| {
            let mut found = m.take();
            if let Some(id) = found.pop() {
                m.push(id); // it comes back while others push: the head may be what they saw before
            }
            found.extend(m.take());
            found
        });
        for p in pushers {
            p.join().unwrap();
        }
        let mut found = drainer.join().unwrap();
        found.extend(m.take());
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3]);
    });
}

/// A device that gives what it is asked for. Stream 0 is idle; stream 1 has work until the model says that it is over,
/// and may end before that. What it knows is no part of the model: plain atomics, which loom does not see.
#[derive(Default)]
struct Giver {
    gone: AtomicBool,
    over: AtomicBool,
    /// Points on stream 1 that were made, and given back.
    made: PlainU32,
    given_back: PlainU32,
}

const BUSY: u64 = 1;

impl Points for Giver {
    fn passed(&self, _: Point) -> Result<bool> {
        Ok(self.over.load(SeqCst))
    }
    fn wait(&self, _: u64, _: Point) -> Result<()> {
        Ok(())
    }
    fn sync(&self, _: Point) -> Result<()> {
        self.over.store(true, SeqCst);
        Ok(())
    }
    fn forget(&self, _: Point) {
        self.given_back.fetch_add(1, SeqCst);
    }
}

impl Backing for Giver {
    gives_all!();

    fn mark(&self, stream: u64, _: bool) -> Result<Option<Point>> {
        if stream != BUSY || self.over.load(SeqCst) {
            return Ok(None);
        }
        if self.gone.load(SeqCst) {
            return Err(Error::new(Code::UnknownStream, "it has ended"));
        }
        Ok(Some(u64::from(self.made.fetch_add(1, SeqCst))))
    }
    fn sync_all(&self) -> Result<()> {
        self.over.store(true, SeqCst);
        Ok(())
    }
    fn sync_stream(&self, _: u64) -> Result<()> {
        self.over.store(true, SeqCst);
        Ok(())
    }
    fn streams(&self, each: &mut dyn FnMut(u64)) {
        if !self.gone.load(SeqCst) {
            each(BUSY);
        }
    }
}

/// Two threads ask for one fence and let go of it: its point goes back once, and not before it is passed or unwanted.
#[test]
fn a_fence_gives_its_point_back_once() {
    loom::model(|| {
        let giver = Arc::new(Giver::default());
        let fence = Order::new(giver.clone()).adopt(7);
        assert!(!fence.ask());
        assert_eq!(giver.given_back.load(SeqCst), 0);
        giver.over.store(true, SeqCst);
        let other = {
            let fence = fence.clone();
            thread::spawn(move || assert!(fence.ask(), "who asks after it was passed is told so"))
        };
        assert!(fence.ask());
        assert!(fence.is_passed());
        drop(fence);
        other.join().unwrap();
        assert_eq!(giver.given_back.load(SeqCst), 1);
    });
}

const POOL: PoolId = PoolId(0);
const STREAM: u64 = 0;
/// [B] a size of the small tier.
const SMALL: u64 = 512;

/// A pond, and blocks of it in the caller's hands; the calling thread owns their heap.
fn pond(blocks: usize) -> (Arc<Pond>, Vec<u64>) {
    pond_over(Arc::default(), blocks)
}

fn pond_over(giver: Arc<Giver>, blocks: usize) -> (Arc<Pond>, Vec<u64>) {
    let config = Config {
        min_chunk: 512,
        max_chunk: 1 << 30,
        max_alloc: 4 << 21,
        padding: 0,
        init_alloc: 2 << 20,
        realloc: 2 << 20,
        growing: false,
        mapping: true,
        numbers: 0,
        window: Pond::WINDOW,
        tie: 0,
        tie_growth: 0,
        most_pieces: 16_000,
        most_blocks: u64::MAX,
    };
    let pond = Arc::new(Pond::new(config, giver).unwrap());
    // One more, that goes back: the next request of that size is a hit.
    let mut live: Vec<u64> = (0..=blocks).map(|_| pond.alloc(POOL, STREAM, SMALL).unwrap()).collect();
    pond.free(live.pop().unwrap(), None, None).unwrap();
    (pond, live)
}

/// A thread with room on its stack for a pond.
fn spawn_big<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> thread::JoinHandle<R> {
    thread::Builder::new().stack_size(1 << 16).spawn(f).unwrap()
}

/// Runs a model of the whole pond, which takes more steps than loom expects.
fn pond_model(f: impl Fn() + Send + Sync + Copy + 'static) {
    bounded_pond_model(None, f);
}

/// The same with so many preemptions at most, for programs that take minutes with more.
fn bounded_pond_model(most: Option<usize>, f: impl Fn() + Send + Sync + Copy + 'static) {
    let mut model = loom::model::Builder::new();
    model.max_branches = 20_000;
    if let Some(most) = most {
        model.preemption_bound = Some(model.preemption_bound.map_or(most, |bound| bound.min(most)));
    }
    model.check(move || spawn_big(f).join().unwrap());
}

/// The pond gives so many blocks, none at one place with another or with those in `live`.
fn gives_apart(pond: &Pond, live: &[u64], count: usize) {
    let mut all = live.to_vec();
    all.extend((0..count).map(|_| pond.alloc(POOL, STREAM, SMALL).unwrap()));
    all.sort_unstable();
    assert!(all.windows(2).all(|w| w[1] - w[0] >= SMALL), "blocks overlap: {all:?}");
}

#[test]
fn blocks_freed_by_another_thread_come_back() {
    pond_model(|| {
        let (pond, live) = pond(2);
        let (a, b) = (live[0], live[1]);
        let other = {
            let pond = pond.clone();
            spawn_big(move || pond.free(a, None, None).unwrap())
        };
        pond.free(b, None, None).unwrap();
        // Statistics take in what is on the remote list.
        let early = pond.stats(None).unwrap().blocks.current;
        assert!(early <= 1, "{early} live blocks");
        let c = pond.alloc(POOL, STREAM, SMALL).unwrap();
        other.join().unwrap();
        let s = pond.stats(None).unwrap();
        assert_eq!((s.blocks.current, s.requested.current), (1, SMALL));
        gives_apart(&pond, &[c], 3);
    });
}

#[test]
fn of_two_frees_of_a_block_one_succeeds() {
    pond_model(|| {
        let (pond, live) = pond(2);
        let (a, b) = (live[0], live[1]);
        let other = {
            let pond = pond.clone();
            spawn_big(move || pond.free(a, None, None).is_ok())
        };
        let here = pond.free(a, None, None).is_ok();
        let there = other.join().unwrap();
        assert!(here != there, "one free succeeds, and one is told: {here}, {there}");
        let s = pond.stats(None).unwrap();
        assert_eq!(s.blocks.current, 1, "it is counted once");
        assert!(pond.free(a, None, None).is_err(), "and a third free is refused");
        gives_apart(&pond, &[b], 3);
    });
}

/// A thread looks up a stream's heap while a capture of the stream begins: no pool remembers the wrong heap afterwards.
#[test]
fn a_capture_takes_its_stream_over() {
    bounded_pond_model(Some(1), || {
        const CAPTURED: u64 = 1;
        let (pond, _) = pond(1);
        let own = pond.pool_create(0, false).unwrap();
        let other = {
            let pond = pond.clone();
            spawn_big(move || pond.alloc(POOL, CAPTURED, SMALL).unwrap())
        };
        let capture = pond.captures().begin(own, CAPTURED).unwrap();
        let mine = pond.alloc(POOL, CAPTURED, SMALL).unwrap();
        let theirs = other.join().unwrap();
        let later = pond.alloc(POOL, CAPTURED, SMALL).unwrap();
        let pool_of = |block| pond.block(block).unwrap().pool;
        assert_eq!((pool_of(mine), pool_of(later)), (own, own));
        pond.captures().end(capture).unwrap();
        let after = pond.alloc(POOL, CAPTURED, SMALL).unwrap();
        assert_eq!(pool_of(after), POOL);
        assert!(mine != theirs && later != theirs);
    });
}

/// A stream with work ends while a block without a stream is freed, which that work may use: the block waits, for its
/// mark or for what the stream leaves behind. So many steps of the end are taken before, as
/// loom does not reach those orders from the beginning in which the free comes late.
fn a_stream_ends_beside_a_free(before: u32) {
    let giver = Arc::new(Giver::default());
    let (pond, _) = pond_over(giver.clone(), 1);
    let block = pond.alloc(POOL, UNORDERED, SMALL).unwrap();
    let early = (before > 0).then(|| pond.order().ending(BUSY).unwrap());
    giver.gone.store(before > 1, SeqCst);
    let other = {
        let (pond, giver) = (pond.clone(), giver.clone());
        spawn_big(move || {
            let ending = early.unwrap_or_else(|| pond.order().ending(BUSY).unwrap());
            giver.gone.store(true, SeqCst);
            pond.stream_ended(ending);
        })
    };
    pond.free(block, None, None).unwrap();
    other.join().unwrap();
    assert_ne!(pond.alloc(POOL, UNORDERED, SMALL).unwrap(), block, "its memory is not idle");
    assert_eq!(pond.stats(None).unwrap().active.current, 2 * SMALL + SMALL);
    giver.over.store(true, SeqCst);
    assert_eq!(pond.stats(None).unwrap().active.current, 2 * SMALL);
    drop(pond);
    let (made, back) = (giver.made.load(SeqCst), giver.given_back.load(SeqCst));
    assert_eq!(made, back, "each point goes back once");
}

#[test]
fn the_end_of_a_stream_beside_a_free() {
    for before in 0..3 {
        bounded_pond_model(Some(2), move || a_stream_ends_beside_a_free(before));
    }
}

/// Freed blocks are looked at while their pool is restored: nothing is live twice, and nothing is lost. Whether what a
/// block waits for is over or not when both begin.
fn a_pool_is_restored_beside_a_poll(is_over: bool) {
    let giver = Arc::new(Giver::default());
    let (pond, _) = pond_over(giver.clone(), 0);
    let own = pond.pool_create(0, false).unwrap();
    let block = pond.alloc(own, STREAM, SMALL).unwrap();
    let checkpoint = pond.checkpoints().make(own).unwrap();
    pond.record_stream(block, BUSY).unwrap();
    pond.free(block, None, None).unwrap();
    giver.over.store(is_over, SeqCst);
    let other = {
        let pond = pond.clone();
        spawn_big(move || pond.checkpoints().restore(own, checkpoint, |at| at, |_| ()).unwrap().live)
    };
    assert!(pond.stats(Some(own)).unwrap().blocks.current <= 1);
    assert_eq!(other.join().unwrap(), [(block, SMALL)]);
    assert_eq!(pond.stats(Some(own)).unwrap().blocks.current, 1);
    assert_ne!(pond.alloc(own, STREAM, SMALL).unwrap(), block, "it is live");
    pond.free(block, None, None).unwrap();
    assert!(pond.free(block, None, None).is_err());
}

#[test]
fn a_restore_beside_a_poll() {
    for is_over in [false, true] {
        bounded_pond_model(Some(1), move || a_pool_is_restored_beside_a_poll(is_over));
    }
}

/// A writer has looked a ring up and writes when its user has given it back, and the next one has it: what that one reads
/// of its own positions is whole, and everything that was written there after it began, but for what was given up.
#[test]
fn a_ring_is_lent_again_while_a_late_writer_writes() {
    loom::model(|| {
        let ring = Arc::new(Ring::new(2, 2).unwrap());
        ring.push(&[1], &[!1]);
        let late = {
            let ring = ring.clone();
            thread::spawn(move || (0..2).for_each(|_| ring.push(&[2], &[!2])))
        };
        let first = ring.head(); // as `Lent` has it
        ring.push(&[3], &[!3]);
        let whole = |position| {
            let mut r = [0; 2];
            let seen = ring.read(position, &mut r) == Seen::Whole;
            assert!(!seen || r[0] == !r[1], "torn: {r:?}");
            seen.then_some(r[0])
        };
        whole(first);
        late.join().unwrap();
        assert_eq!(ring.head(), 4);
        let own: Vec<_> = (first..4).filter_map(whole).collect();
        assert!(!own.contains(&1), "of an earlier user: {own:?}");
    });
}

/// A writer is at work in a slot, or comes to it, while the ring's memory goes back to the system and the next user writes there:
/// what that one reads of its own positions is whole.
#[test]
fn a_ring_is_emptied_while_a_late_writer_writes() {
    loom::model(|| {
        let ring = Arc::new(Ring::new(2, 2).unwrap());
        let late = beside(&ring, |ring| ring.push(&[1], &[!1]));
        ring.empty(0);
        let first = ring.head(); // as `Lent` has it
        (2..4).for_each(|n| ring.push(&[n], &[!n]));
        for position in first..3 {
            let mut r = [0; 2];
            let seen = ring.read(position, &mut r);
            assert!(seen != Seen::Whole || r[0] == !r[1], "torn: {r:?}");
        }
        late.join().unwrap();
        for position in first..3 {
            let mut r = [0; 2];
            let seen = ring.read(position, &mut r);
            assert!(seen != Seen::Whole || r[0] == !r[1], "torn: {r:?}");
        }
    });
}

/// Threads write into a ring that is too small for them while another one reads: what it gets is whole, of the position
/// that it asked for, and after the end each position is there or was given up.
#[test]
fn a_ring_gives_whole_records() {
    loom::model(|| {
        let ring = Arc::new(Ring::new(2, 2).unwrap());
        let writer = |first: u64, count: u64| {
            let ring = ring.clone();
            thread::spawn(move || (first..first + count).for_each(|n| ring.push(&[n], &[!n])))
        };
        let (a, b) = (writer(10, 2), writer(20, 1));
        let whole = |position| {
            let mut r = [0; 2];
            let seen = ring.read(position, &mut r) == Seen::Whole;
            assert!(!seen || r[0] == !r[1], "torn: {r:?}");
            seen.then_some(r[0])
        };
        whole(0);
        whole(2);
        a.join().unwrap();
        b.join().unwrap();
        assert_eq!(ring.head(), 3);
        let left: Vec<_> = (0..3).filter_map(whole).collect();
        assert!(!left.is_empty() && left.len() <= 2, "{left:?}");
        assert!(left.len() < 2 || left[0] != left[1], "one record in two places: {left:?}");
    });
}

/// A record is read while a newer one takes its place: what is told as whole is whole.
#[test]
fn a_ring_is_read_while_it_is_overwritten() {
    loom::model(|| {
        let ring = Arc::new(Ring::new(2, 2).unwrap());
        ring.push(&[1], &[!1]);
        ring.push(&[2], &[!2]);
        let writer = beside(&ring, |ring| ring.push(&[3], &[!3]));
        let mut r = [0; 2];
        match ring.read(0, &mut r) {
            Seen::Whole => assert_eq!(r, [1, !1]),
            seen => assert_eq!(seen, Seen::Gone),
        }
        writer.join().unwrap();
        assert_eq!((ring.read(0, &mut r), ring.read(2, &mut r), r), (Seen::Gone, Seen::Whole, [3, !3]));
    });
}

const fn range(from: u64, to: u64) -> Range {
    Range { from, count: 10, to }
}

/// Ranges change beside a thread that looks. That one comes second: loom goes back to the last store for each of its loads, but
/// not to the loads of another thread for a store that comes after a load of the same thread.
fn ranges_model(
    before: Vec<Range>,
    change: impl Fn(&RangeMap) + Send + Sync + Copy + 'static,
    look: impl Fn(&RangeMap, &AtomicU32) + Send + Sync + Copy + 'static,
) {
    loom::model(move || {
        let shared = Arc::new((RangeMap::new(3).unwrap(), AtomicU32::new(0)));
        before.iter().for_each(|&r| assert!(shared.0.insert(r)));
        assert!(shared.0.insert(range(90, 0)) && shared.0.remove(90).is_some()); // its place is made here
        let reader = beside(&shared, move |(map, ending)| look(map, ending));
        shared.1.store(1, Relaxed);
        change(&shared.0);
        reader.join().unwrap();
    });
}

/// Whoever finds a range no more sees what was stored before it went.
#[test]
fn a_range_goes_beside_a_thread_that_looks() {
    ranges_model(
        vec![range(0, 100), range(20, 200)],
        |map| assert_eq!(map.remove(0), Some(range(0, 100))),
        |map, ending| match map.find(5) {
            Ok(None) => assert_eq!(ending.load(Relaxed), 1),
            found => assert!([Ok(Some(range(0, 100))), Err(Changing)].contains(&found), "{found:?}"),
        },
    );
}

#[test]
fn a_range_stays_while_another_one_comes_before_it() {
    ranges_model(
        vec![range(20, 200)],
        |map| assert!(map.insert(range(0, 100))),
        |map, _| {
            let found = map.find(25);
            assert!([Ok(Some(range(20, 200))), Err(Changing)].contains(&found), "{found:?}");
        },
    );
}

/// A remembered range is forgotten when it goes.
#[test]
fn a_remembered_range_goes() {
    ranges_model(
        vec![range(0, 100)],
        |map| assert_eq!(map.remove(0), Some(range(0, 100))),
        |map, _| {
            let mut memo = Memo::default();
            let (first, second) = (map.find_again(&mut memo, 5), map.find_again(&mut memo, 5));
            assert!(first != Ok(None) || second == Ok(None), "{second:?} after {first:?}");
            for found in [first, second] {
                assert!([Ok(Some(range(0, 100))), Ok(None), Err(Changing)].contains(&found), "{found:?}");
            }
        },
    );
}
