//! What happens to memory is told to who watches it: every allocation and every free in turn, whatever the way, so that
//! the sum of what is told is the account.

use crate::apart::*;
use crate::api::*;
use crate::held;
use millpond::capi::MILLPOND_E_NOT_PERMITTED;
use millpond::runtime::{self, DeviceState, Event, EventKind, EventKind::*, HistoryOptions, Observer, Told};
use millpond::{Code, PoolId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

/// Of a device by its handle.
pub fn state(d: Device) -> &'static Arc<DeviceState> {
    runtime::by_id(d.0 as u32).unwrap()
}

/// Writes everything down. (It may lock, as nothing of the library is called under that.)
#[derive(Default)]
struct Book(Mutex<Vec<Event>>);

impl Observer for Book {
    fn saw(&self, told: &Told) {
        self.0.lock().unwrap().push(told.event().unwrap());
    }
}

fn watch(d: Device) -> (Arc<Book>, Arc<dyn Observer>) {
    let book = Arc::<Book>::default();
    let observer: Arc<dyn Observer> = book.clone();
    state(d).memory().watchers().add(&observer).unwrap();
    (book, observer)
}

impl Book {
    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn kinds(&self) -> Vec<EventKind> {
        self.take().iter().map(|e| e.kind).collect()
    }
}

/// What the told events make of the account. `(allocated, active, reserved)`; fails where they cannot be.
pub fn sums(events: &[Event]) -> (u64, u64, u64) {
    let (mut live, mut waiting) = (BTreeMap::new(), BTreeMap::new());
    let mut segments = BTreeMap::new();
    let mut last = 0;
    for e in events {
        assert!(e.thread != 0 && e.time != 0, "{e:?}");
        last = last.max(e.time);
        match e.kind {
            Alloc => {
                waiting.remove(&e.address);
                assert!(live.insert(e.address, e.bytes).is_none(), "live already: {e:?}");
            }
            FreeRequested => {
                let bytes = live.remove(&e.address).unwrap_or_else(|| panic!("not live: {e:?}"));
                assert_eq!(bytes, e.bytes, "{e:?}");
                if !e.at_once {
                    waiting.insert(e.address, bytes);
                }
            }
            FreeCompleted => drop(waiting.remove(&e.address)),
            FreeRefused => {
                waiting.remove(&e.address);
                assert!(live.insert(e.address, e.bytes).is_none(), "live already: {e:?}");
            }
            SegmentAlloc => assert!(segments.insert(e.address, e.bytes).is_none(), "there already: {e:?}"),
            SegmentFree => {
                // A range may go in parts, and several at once.
                let (mut at, end) = (e.address, e.address + e.bytes);
                while at < end {
                    let (&from, &size) = segments.range(..=at).next_back().unwrap();
                    assert!(at < from + size, "not there: {e:?}");
                    let to = end.min(from + size);
                    segments.remove(&from);
                    if from < at {
                        segments.insert(from, at - from);
                    }
                    if to < from + size {
                        segments.insert(to, from + size - to);
                    }
                    at = to;
                }
            }
            _ => {}
        }
    }
    let sum = |m: &BTreeMap<u64, u64>| m.values().sum::<u64>();
    (sum(&live), sum(&live) + sum(&waiting), sum(&segments))
}

pub fn account(d: Device) -> (u64, u64, u64) {
    let s = d.stats();
    (s.allocated_bytes.current, s.active_bytes.current, s.reserved_bytes.current)
}

/// Every way to a block and back, and then the account.
fn every_way(d: Device) {
    let (book, observer) = watch(d);
    let (pool, own) = (d.default_pool(), d.pool(0));
    let (s, t) = (d.stream(), d.stream());
    let handle = state(d).pool(PoolId::DEFAULT).unwrap();
    let mut kept = Vec::new();
    for _ in 0..3 {
        for bytes in [1, 512, 5000, 100 * KIB, 3 * MIB, 70 * MIB] {
            let p = pool.alloc(bytes, s).unwrap();
            let q = own.alloc(bytes, s).unwrap();
            let r = d.alloc(bytes).unwrap();
            let h = handle.alloc(s.0 as u64, bytes as u64).unwrap();
            own.free(p, s).unwrap(); // of another pool
            record_stream(q, t).unwrap();
            own.free(q, s).unwrap();
            free(r).unwrap();
            handle.free(h, t.0 as u64).unwrap();
        }
        kept.push(own.alloc(MIB + 1, t).unwrap());
    }
    d.synchronize().unwrap();
    assert_eq!(sums(&book.0.lock().unwrap()), account(d));
    d.empty_cache().unwrap();
    let now = account(d);
    let told = book.take();
    assert_eq!(sums(&told), now);
    let pools: BTreeSet<_> = told.iter().filter(|e| e.kind == Alloc).map(|e| e.pool).collect();
    assert_eq!(pools.len(), 2);
    let at = |p: &usize| *told.iter().rfind(|e| e.kind == Alloc && e.address == *p as u64).unwrap();
    assert!(kept.iter().all(|p| at(p).requested == MIB as u64 + 1 && at(p).stream == Some(t.0 as u64)));
    assert!(told.iter().any(|e| e.kind == Alloc && e.stream.is_none()));
    assert!(told.iter().any(|e| e.kind == RecordStream && e.stream == Some(t.0 as u64)));

    // Frees that fail change nothing.
    assert!(own.free(kept[0] + 1, t).is_err() && free_sized(kept[0], 7).is_err() && free(0).is_ok());
    let refused = book.take();
    assert!(refused.iter().all(|e| matches!(e.kind, FreeRequested | FreeRefused)), "{refused:?}");
    let balance = |kind| refused.iter().filter(|e| e.kind == kind).count();
    assert_eq!(balance(FreeRequested), balance(FreeRefused));
    own.free(kept[0], t).unwrap();
    assert!(own.free(kept[0], t).is_err(), "a double free");
    assert_eq!(book.take().iter().filter(|e| e.kind == FreeRequested).count(), 1);

    // Too much.
    assert!(own.alloc(1 << 45, t).is_err());
    let told = book.take();
    let oom = told.iter().find(|e| e.kind == Oom).unwrap();
    assert_eq!((oom.requested, oom.stream), (1 << 45, Some(t.0 as u64)));

    state(d).memory().watchers().remove(&observer).unwrap();
    own.free(kept[1], t).unwrap();
    let p = own.alloc(512, t).unwrap();
    own.free(p, t).unwrap();
    assert_eq!(book.kinds(), []);
}

#[test]
fn everything_is_told_where_the_device_maps() {
    apart(|| every_way(host(4096 * MIB, true)));
}

#[test]
fn everything_is_told_with_segments() {
    apart(|| every_way(host(4096 * MIB, false)));
}

#[test]
fn everything_is_told_without_pooling() {
    apart(|| every_way(held::host_with(4096 * MIB, true, "backend:none").0));
}

/// Threads allocate and free, also each other's blocks, and what is told is the account.
#[test]
fn under_load_the_sum_of_what_is_told_is_the_account() {
    apart_for(60, || {
        let d = host(4096 * MIB, true);
        let (book, _observer) = watch(d);
        let pool = d.default_pool();
        let shared: Mutex<Vec<usize>> = Mutex::default();
        std::thread::scope(|s| {
            for t in 0..8 {
                let shared = &shared;
                s.spawn(move || {
                    let stream = d.stream();
                    for i in 0..800 {
                        let p = pool.alloc([700, 9000, 200 * KIB, 3 * MIB][(i + t) % 4], stream).unwrap();
                        let other = {
                            let mut all = shared.lock().unwrap();
                            all.push(p);
                            let at = i % all.len();
                            (i % 3 != 0).then(|| all.remove(at))
                        };
                        if i % 7 == 0 {
                            record_stream(p, NULL).unwrap_or(());
                        }
                        other.into_iter().for_each(|q| free(q).unwrap());
                    }
                });
            }
        });
        let now = account(d); // which looks at what waits
        assert_eq!(sums(&book.take()), now);
    });
}

/// Who comes and goes under load is told of nothing twice, and leaves the quickest way as it was.
#[test]
fn watching_begins_and_ends_under_load() {
    apart_for(60, || {
        let d = host(1024 * MIB, true);
        let stop = AtomicBool::new(false);
        let pool = d.default_pool();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    let stream = d.stream();
                    while !stop.load(Relaxed) {
                        let p = pool.alloc(5000, stream).unwrap();
                        pool.free(p, stream).unwrap();
                    }
                });
            }
            for _ in 0..rounds(200) {
                let (book, observer) = watch(d);
                std::thread::sleep(std::time::Duration::from_micros(300));
                state(d).memory().watchers().remove(&observer).unwrap();
                let told = book.take().len();
                std::thread::yield_now();
                assert_eq!(book.take().len(), 0, "told after the end; {told} before");
            }
            stop.store(true, Relaxed);
        });
        assert_eq!(d.stats().blocks.current, 0);
    });
}

/// Against its contract, an observer calls the library: it is refused, and waits neither for itself nor for who changes the
/// list of observers.
#[test]
fn an_observer_that_calls_the_library_is_refused() {
    #[derive(Default)]
    struct Caller(Mutex<Vec<u32>>, AtomicBool, OnceLock<Device>);
    impl Observer for Caller {
        fn saw(&self, told: &Told) {
            if told.event().unwrap().kind != FreeRequested || self.1.swap(true, Relaxed) {
                return;
            }
            let d = *self.2.get().unwrap();
            let more: Arc<dyn Observer> = Arc::<Book>::default();
            let mut said = self.0.lock().unwrap();
            said.push(state(d).memory().watchers().add(&more).unwrap_err().code() as u32);
            said.push(state(d).memory().watchers().remove(&more).unwrap_err().code() as u32);
            said.push(state(d).history_start(&HistoryOptions::default()).unwrap_err().code() as u32);
            said.push(state(d).history_stop().unwrap_err().code() as u32);
            said.push(state(d).record_start(Path::new("/dev/null")).unwrap_err().code() as u32);
            said.push(state(d).record_stop().unwrap_err().code() as u32);
            said.push(d.alloc(100).unwrap_err().code);
        }
    }
    apart(|| {
        let d = host(GIB, true);
        let caller = Arc::<Caller>::default();
        caller.2.set(d).unwrap();
        let observer: Arc<dyn Observer> = caller.clone();
        state(d).memory().watchers().add(&observer).unwrap();
        free(d.alloc(100).unwrap()).unwrap();
        state(d).memory().watchers().remove(&observer).unwrap();
        assert_eq!(*caller.0.lock().unwrap(), [MILLPOND_E_NOT_PERMITTED; 7]);
        // From outside it is as before.
        state(d).memory().watchers().add(&observer).unwrap();
        free(d.alloc(100).unwrap()).unwrap();
    });
}

/// A free that the device refuses was asked for, and is taken back.
#[test]
fn a_free_that_is_refused_is_taken_back() {
    apart(|| {
        let (d, control) = held::host_with(1024 * MIB, true, "backend:none");
        let (book, _observer) = watch(d);
        let p = d.alloc(MIB).unwrap();
        control.fail("free", 1, Code::Device);
        assert!(free(p).is_err());
        assert_eq!(sums(&book.0.lock().unwrap()), account(d));
        free(p).unwrap();
        assert_eq!(sums(&book.take()), (0, 0, 0));
    });
}

/// Writes down which streams have ended.
#[derive(Default)]
struct Ends(Mutex<Vec<u64>>);

impl Observer for Ends {
    fn saw(&self, _: &Told) {}

    fn is_curious(&self) -> bool {
        true
    }

    fn ended(&self, stream: u64) {
        self.0.lock().unwrap().push(stream);
    }
}

/// The frees of a stream's blocks name it, also once it has ended, whatever they wait for, and where a restore makes
/// them. That it has ended is told before.
#[test]
fn frees_name_the_stream_of_the_block_also_after_its_end() {
    apart(|| {
        for mapping in [true, false] {
            let d = host(64 * MIB, mapping);
            let (book, observer) = watch(d);
            let ends = Arc::<Ends>::default();
            state(d).memory().watchers().add(&(ends.clone() as Arc<dyn Observer>)).unwrap();
            let (pool, s, t) = (d.default_pool(), d.stream(), d.stream());
            let number = |s: Stream| s.0 as u64;
            let blocks = [(); 3].map(|()| pool.alloc(5000, s).unwrap());
            let gate = d.gate(t);
            pool.free(blocks[0], t).unwrap();
            d.end_stream(s).unwrap();
            assert_eq!(*ends.0.lock().unwrap(), [number(s)]);
            free(blocks[1]).unwrap();
            pool.free(blocks[2], t).unwrap();
            drop(gate);
            d.synchronize().unwrap();
            account(d); // looks what has completed
            let told = book.take();
            let of = |kind| {
                let of_kind = told.iter().filter(|e| e.kind == kind);
                of_kind.map(|e| (e.stream, e.ended, e.at_once)).collect::<Vec<_>>()
            };
            let s = Some(number(s));
            assert_eq!(of(FreeRequested), [(s, false, false), (s, true, true), (s, true, false)]);
            assert_eq!(of(FreeCompleted), [(s, true, false), (s, true, false)]);

            let own = d.pool(0);
            let then = own.checkpoint();
            let (p, q) = (own.alloc(5000, t).unwrap(), own.alloc(6000, NULL).unwrap());
            own.restore(then).unwrap();
            let told = book.take();
            let gone = told.iter().filter(|e| e.kind == FreeRequested);
            let gone: BTreeSet<_> = gone.map(|e| (e.address, e.stream, e.requested, e.at_once)).collect();
            let want = [(p as u64, Some(number(t)), 5000, true), (q as u64, Some(0), 6000, true)];
            assert_eq!(gone, BTreeSet::from(want));
            state(d).memory().watchers().remove(&observer).unwrap();
        }
    });
}

/// Pinned memory is told of as memory of the host.
#[test]
fn pinned_memory_is_told() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (book, _observer) = watch(d);
        let s = state(d);
        let (a, b) = (s.host_memory().alloc(1000).unwrap(), s.host_memory().alloc(3 << 20).unwrap());
        let now = s.host_memory().stats().unwrap();
        let told = book.0.lock().unwrap().clone();
        assert!(told.iter().all(|e| e.host), "{told:?}");
        assert_eq!(sums(&told), (now.allocated.current, now.allocated.current, now.reserved.current));
        s.host_memory().free(a).unwrap();
        s.host_memory().free(b).unwrap();
        s.host_memory().empty_cache().unwrap();
        assert_eq!(sums(&book.take()), (0, 0, 0));
    });
}

/// Holds a restore up that tells of its first free, until another thread has told of a block.
struct Dawdles {
    book: Book,
    go: std::sync::mpsc::SyncSender<()>,
    armed: AtomicBool,
}

impl Observer for Dawdles {
    fn saw(&self, told: &Told) {
        let event = told.event().unwrap();
        self.book.0.lock().unwrap().push(event);
        if event.kind == FreeRequested && self.armed.swap(false, Relaxed) {
            self.go.send(()).unwrap();
            let served = || self.book.0.lock().unwrap().last().is_some_and(|e| e.kind == Alloc);
            soon(LATE, served); // it need not be: the memory may be out of reach until then
        }
    }
}

/// The frees of a restore are told before another pool can have the memory, as any other free is.
#[test]
fn a_restore_tells_of_its_frees_before_the_memory_is_anybody_elses() {
    apart(|| {
        for mapping in [true, false] {
            const BLOCK: usize = 20 * MIB;
            let d = host(3 * BLOCK + 4 * MIB, mapping);
            let (pool, other, s) = (d.pool(0), d.pool(0), d.stream());
            let kept = pool.alloc(BLOCK, s).unwrap();
            let point = pool.checkpoint();
            let freed = [pool.alloc(BLOCK, s).unwrap(), pool.alloc(BLOCK, s).unwrap()];
            let (go, went) = std::sync::mpsc::sync_channel(1);
            let dawdles = Arc::new(Dawdles { book: Book::default(), go, armed: AtomicBool::new(true) });
            let observer: Arc<dyn Observer> = dawdles.clone();
            state(d).memory().watchers().add(&observer).unwrap();
            let taken = std::thread::scope(|scope| {
                let taker = scope.spawn(move || {
                    went.recv().unwrap();
                    until("there is memory", || other.alloc(BLOCK, s).is_ok());
                    until("there is memory", || other.alloc(BLOCK, s).is_ok());
                });
                pool.restore(point).unwrap();
                taker.join()
            });
            taken.unwrap();
            let events = dawdles.book.take();
            let at = |kind| events.iter().enumerate().filter(move |(_, e)| e.kind == kind).map(|(n, _)| n);
            let frees: Vec<u64> = at(FreeRequested).map(|n| events[n].address).collect();
            assert!(frees.len() == 2 && freed.iter().all(|p| frees.contains(&(*p as u64))), "{events:?}");
            assert_eq!(at(Alloc).count(), 2, "{events:?}");
            assert!(at(FreeRequested).max() < at(Alloc).min(), "told too late: {events:?}");
            state(d).memory().watchers().remove(&observer).unwrap();
            pool.free(kept, s).unwrap();
        }
    });
}

/// Threads one after the other, so that the system gives the next one what the last one had: each event names its own.
#[test]
fn events_name_the_thread_that_called() {
    apart(|| {
        let d = host(64 * MIB, true);
        let (pool, s) = (d.default_pool(), d.stream());
        crate::history::start(d, 1 << 14, 0, None);
        let work = move || {
            (0..200).for_each(|_| pool.free(pool.alloc(512, s).unwrap(), s).unwrap());
            unsafe { libc::gettid() as u32 }
        };
        let threads: Vec<u32> = (0..5).map(|_| std::thread::spawn(work).join().unwrap()).collect();
        let told = state(d).history().unwrap().events;
        for thread in threads {
            let blocks = told.iter().filter(|e| e.event.thread == thread && !e.event.is_segment());
            assert_eq!(blocks.count(), 400, "of thread {thread}");
        }
    });
}
