//! How long calls take: each call is counted once, whatever its way, where calls are timed, and none elsewhere; what is
//! slow lies in the bucket in which it belongs.

use crate::apart::*;
use crate::api::*;
use crate::held::{self, victim};
use crate::seam::{Hook, SeamType};
use crate::statistics::text::{Json, parse, value, written};
use millpond::device::host::HostType;
use millpond::{HostOptions, PoolId, Result, capi::*, runtime};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const ON: &str = "latency_histograms:true";
const OFF: &str = "latency_histograms:false";

const ALL: [u32; 7] = [
    MILLPOND_LATENCY_ALLOC,
    MILLPOND_LATENCY_FREE,
    MILLPOND_LATENCY_DEVICE_ALLOC,
    MILLPOND_LATENCY_DEVICE_FREE,
    MILLPOND_LATENCY_DEVICE_EVENT,
    MILLPOND_LATENCY_EVENT_WAIT,
    MILLPOND_LATENCY_LOCK_WAIT,
];

fn empty() -> millpond_latency {
    let mut l: millpond_latency = unsafe { std::mem::zeroed() };
    l.struct_size = size_of::<millpond_latency>();
    l
}

fn read(d: Device, what: u32) -> millpond_latency {
    let mut l = empty();
    outcome(unsafe { millpond_device_get_latency(ptr(d.0), what, &mut l) }).unwrap();
    assert_eq!(l.buckets.iter().sum::<u64>(), l.count);
    assert!(l.min_ns <= l.max_ns && l.max_ns <= l.total_ns, "{} {} {}", l.min_ns, l.max_ns, l.total_ns);
    l
}

fn counts(d: Device) -> [u64; 2] {
    [read(d, MILLPOND_LATENCY_ALLOC).count, read(d, MILLPOND_LATENCY_FREE).count]
}

fn reset(d: Device) {
    outcome(unsafe { millpond_device_reset_latencies(ptr(d.0)) }).unwrap();
}

fn quantile(l: &millpond_latency, part: f64) -> Outcome<u64> {
    let mut ns = 0;
    outcome(unsafe { millpond_latency_quantile(l, part, &mut ns) })?;
    Ok(ns)
}

/// Every way to a block and back; how many of each there were.
fn every_way(d: Device, rounds: u64) -> u64 {
    let (pool, own) = (d.default_pool(), d.pool(0));
    let (s, t) = (d.stream(), d.stream());
    let handle = runtime::by_id(d.0 as u32).unwrap().pool(PoolId::DEFAULT).unwrap();
    let sizes = [1, 512, 5000, 100 * KIB, 3 * MIB];
    for _ in 0..rounds {
        for bytes in sizes {
            let p = pool.alloc(bytes, s).unwrap();
            let q = own.alloc(bytes, s).unwrap();
            let r = d.alloc(bytes).unwrap();
            let h = handle.alloc(s.0 as u64, bytes as u64).unwrap();
            own.free(p, s).unwrap(); // of another pool
            record_stream(q, t).unwrap();
            own.free(q, s).unwrap();
            free_sized(r, bytes).unwrap();
            handle.free(h, t.0 as u64).unwrap();
        }
    }
    // Neither of these is a request or a free of anything.
    assert_eq!(pool.alloc(0, s).unwrap(), 0);
    free(0).unwrap();
    own.destroy().unwrap();
    rounds * sizes.len() as u64 * 4
}

fn each_call_is_timed_once_while_that_is_on(d: Device) {
    every_way(d, 3);
    assert!(ALL.iter().all(|&what| read(d, what).count == 0), "it is off by default");
    d.set_options(ON).unwrap();
    let n = every_way(d, 3);
    assert_eq!(counts(d), [n, n]);
    d.set_options(ON).unwrap(); // changes nothing
    let m = every_way(d, 1);
    assert_eq!(counts(d), [n + m, n + m]);
    d.set_options(OFF).unwrap();
    every_way(d, 2);
    assert_eq!(counts(d), [n + m, n + m], "what it has stays, and nothing is added");
    d.set_options(ON).unwrap();
    reset(d);
    assert!(ALL.iter().all(|&what| read(d, what).count == 0));
    let n = every_way(d, 1);
    assert_eq!(counts(d), [n, n]);
    // A request that fails takes its time, too.
    d.default_pool().alloc(1 << 50, NULL).unwrap_err();
    free(0x1234).unwrap_err();
    assert_eq!(counts(d)[0], n + 1);
}

#[test]
fn each_call_is_timed_once_on_a_device_that_maps() {
    apart(|| each_call_is_timed_once_while_that_is_on(host(256 * MIB, true)));
}

#[test]
fn each_call_is_timed_once_in_segments() {
    apart(|| each_call_is_timed_once_while_that_is_on(host(256 * MIB, false)));
}

#[test]
fn each_call_is_timed_once_without_pooling() {
    apart(|| each_call_is_timed_once_while_that_is_on(unpooled_host()));
}

#[test]
fn calls_are_timed_while_they_are_watched_scoped_and_tagged() {
    apart(|| {
        let d = host(256 * MIB, true);
        d.set_options(ON).unwrap();
        let (pool, s) = (d.pool(0), d.stream());
        let mut n = 0;
        let mut some = || {
            for _ in 0..50 {
                let all = [pool.alloc(1000, s), d.default_pool().alloc(1000, s)];
                all.into_iter().for_each(|at| pool.free(at.unwrap(), s).unwrap());
                n += 2;
            }
            n
        };
        outcome(unsafe { millpond_device_history_start(ptr(d.0), std::ptr::null()) }).unwrap();
        let watched = some();
        assert_eq!(counts(d), [watched; 2]);
        outcome(unsafe { millpond_device_history_stop(ptr(d.0), std::ptr::null_mut()) }).unwrap();
        outcome(unsafe { millpond_scope_begin(ptr(pool.0)) }).unwrap();
        some();
        outcome(unsafe { millpond_scope_end(ptr(pool.0)) }).unwrap();
        outcome(unsafe { millpond_tag_push(c"tagged".as_ptr()) }).unwrap();
        some();
        outcome(millpond_tag_pop()).unwrap();
        let all = some();
        assert_eq!(counts(d), [all; 2]);
    });
}

#[test]
fn threads_lose_none_and_nothing_outlasts_the_device() {
    apart(|| {
        let d = host(256 * MIB, true);
        d.set_options(ON).unwrap();
        let pool = d.default_pool();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let s = d.stream();
                    for _ in 0..5000 {
                        pool.free(pool.alloc(5000, s).unwrap(), s).unwrap();
                    }
                });
            }
        });
        assert_eq!(counts(d), [20_000; 2]);
        let _ = millpond_finalize();
        let code_of =
            |what| code(outcome(unsafe { millpond_device_get_latency(ptr(d.0), what, &mut empty()) }));
        assert_eq!(code_of(1), MILLPOND_E_NOT_INITIALIZED);
        let d = host(64 * MIB, true);
        every_way(d, 1);
        assert_eq!(counts(d), [0; 2]);
    });
}

#[test]
fn the_environment_switches_it_on() {
    apart_with(&[("MILLPOND_ALLOC_CONF", ON)], || {
        let d = Device::get("host", 0).unwrap();
        free(d.alloc(1000).unwrap()).unwrap();
        assert_eq!(counts(d), [1, 1]);
    });
}

// ---- slow devices ----------------------------------------------------------------------------------------------

/// A device whose calls of some names take so long; and how long they did take, at least.
#[derive(Default)]
struct Slow {
    delays: Mutex<BTreeMap<&'static str, Duration>>,
    took: Mutex<BTreeMap<&'static str, Vec<u64>>>,
}

impl Hook for Slow {
    fn pass<T>(&self, name: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let from = Instant::now();
        let delay = self.delays.lock().unwrap().get(name).copied();
        if let Some(delay) = delay {
            std::thread::sleep(delay);
        }
        let done = call();
        if delay.is_some() {
            self.took.lock().unwrap().entry(name).or_default().push(from.elapsed().as_nanos() as u64);
        }
        done
    }
}

fn slow(mapping: bool) -> (Device, Arc<Slow>) {
    let hook = Arc::<Slow>::default();
    let options = HostOptions { device_count: 1, capacity: 64 << 20, mapping };
    let inner = Arc::new(HostType::new("behind", options));
    runtime::register_type(Arc::new(SeamType { name: "slow", inner, hook: hook.clone() })).unwrap();
    let d = Device::get("slow", 0).unwrap();
    d.set_options(ON).unwrap();
    (d, hook)
}

/// The calls that took at least so long lie where they belong: none is shorter than the device was at it, none is longer
/// than the whole.
#[track_caller]
fn lies_right(d: Device, what: u32, took: &[u64], whole: Duration) {
    let l = read(d, what);
    let (least, most) = (*took.iter().min().unwrap(), whole.as_nanos() as u64);
    // The clocks may differ by a thousandth.
    let (from, to) = (least - least / 1000, most + most / 1000);
    let in_bucket = |ns| (0..).find(|&i| millpond_latency_bucket_start(i + 1) > ns).unwrap();
    let slow: u64 = l.buckets[in_bucket(from)..=in_bucket(to)].iter().sum();
    assert_eq!(slow, took.len() as u64, "from {from} to {to}: {:?}", filled(&l));
    assert!((from..=to).contains(&l.max_ns), "{from} {} {to}", l.max_ns);
    assert!(l.total_ns >= took.iter().sum::<u64>() / 1000 * 999);
    let highest = quantile(&l, 1.0).unwrap();
    assert_eq!(highest, l.max_ns);
}

fn filled(l: &millpond_latency) -> Vec<(u64, u64)> {
    let all = l.buckets.iter().enumerate().filter(|b| *b.1 != 0);
    all.map(|(i, &n)| (millpond_latency_bucket_start(i), n)).collect()
}

#[test]
fn slow_calls_of_a_device_lie_in_their_buckets() {
    alone(60, || {
        const LONG: Duration = Duration::from_millis(30);
        for (mapping, takes, gives) in
            [(true, "granules_create", "granules_release"), (false, "alloc", "free")]
        {
            let _ = millpond_finalize();
            let (d, hook) = slow(mapping);
            let (pool, s) = (d.default_pool(), d.stream());
            *hook.delays.lock().unwrap() = [takes, gives].map(|name| (name, LONG)).into();
            let (whole, at) = timed(|| pool.alloc(3 * MIB, s).unwrap());
            let took = hook.took.lock().unwrap()[takes].clone();
            lies_right(d, MILLPOND_LATENCY_DEVICE_ALLOC, &took, whole);
            lies_right(d, MILLPOND_LATENCY_ALLOC, &[took.iter().sum()], whole);
            assert_eq!(read(d, MILLPOND_LATENCY_LOCK_WAIT).count, 0);
            pool.free(at, s).unwrap();
            assert!(read(d, MILLPOND_LATENCY_FREE).max_ns < LONG.as_nanos() as u64, "nothing goes back yet");
            let (whole, ()) = timed(|| d.empty_cache().unwrap());
            let took = hook.took.lock().unwrap()[gives].clone();
            lies_right(d, MILLPOND_LATENCY_DEVICE_FREE, &took, whole);
            assert_eq!(counts(d), [1, 1]);
        }
    });
}

#[test]
fn waits_for_streams_and_slow_events_lie_in_their_buckets() {
    alone(60, || {
        const LONG: Duration = Duration::from_millis(40);
        let (d, hook) = slow(true);
        let (pool, s, t) = (d.default_pool(), d.stream(), d.stream());
        let at = pool.alloc(60 * MIB, s).unwrap();
        *hook.delays.lock().unwrap() = [("event_record", LONG)].into();
        let gate = d.gate(t);
        record_stream(at, t).unwrap();
        let (whole, ()) = timed(|| pool.free(at, s).unwrap());
        let took = hook.took.lock().unwrap()["event_record"].clone();
        lies_right(d, MILLPOND_LATENCY_DEVICE_EVENT, &took, whole);
        lies_right(d, MILLPOND_LATENCY_FREE, &[took.iter().sum()], whole);
        hook.delays.lock().unwrap().clear();
        // On a machine that is busy the thread may come so late that there is little or nothing to wait for.
        let (mut gate, mut longest) = (gate, Duration::ZERO);
        for attempt in 0.. {
            gate.open_after(LONG);
            // Nothing but a wait brings this.
            let (whole, at) = timed(|| pool.alloc(60 * MIB, s).unwrap());
            longest = longest.max(whole);
            let waited = read(d, MILLPOND_LATENCY_EVENT_WAIT);
            assert!(waited.max_ns <= longest.as_nanos() as u64, "{waited:?} of {longest:?}");
            if waited.max_ns >= LONG.as_nanos() as u64 / 5 {
                pool.free(at, s).unwrap();
                break;
            }
            assert!(attempt < 20, "{waited:?} of {longest:?}");
            gate = d.gate(t);
            record_stream(at, t).unwrap();
            pool.free(at, s).unwrap();
        }
    });
}

/// A request that needs what another thread is just taking from the device waits for that thread.
#[test]
fn waits_for_other_threads_are_told_of_the_request_that_waits() {
    alone(60, || {
        const LONG: Duration = Duration::from_millis(50);
        let (d, control) = held::host(8 * MIB, true);
        d.set_options(ON).unwrap();
        let (pool, s, t) = (d.default_pool(), d.stream(), d.stream());
        let hold = control.hold_before("granules_create", 1);
        let first = victim(move || pool.alloc(8 * MIB, s));
        hold.reached();
        let second = std::thread::spawn(move || timed(|| pool.alloc(2 * MIB, t)));
        std::thread::sleep(LONG);
        hold.let_go();
        let (whole, got) = second.join().unwrap();
        // Either may have got what the device gave.
        let first = first.join().unwrap();
        assert!(first.is_ok() || got.is_ok());
        let l = read(d, MILLPOND_LATENCY_LOCK_WAIT);
        // The second thread may have started late.
        let least = LONG.as_nanos() as u64 / 5;
        assert!((least..=whole.as_nanos() as u64).contains(&l.max_ns), "{:?} of {whole:?}", filled(&l));
    });
}

// ---- as text, and what is refused ------------------------------------------------------------------------------

#[test]
fn histograms_and_tags_are_told_as_text() {
    apart(|| {
        let d = host(64 * MIB, true);
        let json = |d| match value(&written(d, MILLPOND_STATS_JSON)) {
            Some((Json::Object(all), "")) => all,
            other => panic!("{other:?}"),
        };
        let page = |d| parse(&written(d, MILLPOND_STATS_PROMETHEUS)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((&json(d)["latency"], &json(d)["tags"]), (&Json::Null, &Json::List(Vec::new())));
        assert!(!page(d).keys().any(|k| k.0.contains("latency") || k.0.contains("tag_")));
        d.set_options(ON).unwrap();
        outcome(unsafe { millpond_tag_push(c"kv \"cache\"".as_ptr()) }).unwrap();
        let blocks: Vec<usize> = (0..10).map(|_| d.alloc(5000).unwrap()).collect();
        outcome(millpond_tag_pop()).unwrap();
        free(d.alloc(3 * MIB).unwrap()).unwrap();
        d.set_options(OFF).unwrap();
        let l = read(d, MILLPOND_LATENCY_ALLOC);
        assert_eq!(l.count, 11);
        let all = json(d);
        let Json::Object(latency) = &all["latency"] else { panic!("{all:?}") };
        assert_eq!(latency.len(), ALL.len());
        for what in ALL {
            let name = unsafe { CStr::from_ptr(millpond_latency_name(what)) }.to_str().unwrap();
            let (Json::Object(told), l) = (&latency[name], read(d, what)) else { panic!("{all:?}") };
            for (key, want) in [
                ("count", l.count),
                ("total_ns", l.total_ns),
                ("min_ns", l.min_ns),
                ("max_ns", l.max_ns),
                ("p99_ns", quantile(&l, 0.99).unwrap()),
            ] {
                assert_eq!(told[key], Json::Number(want as f64), "{name} {key}");
            }
            let number = |n: u64| Json::Number(n as f64);
            let buckets = filled(&l).into_iter().map(|(from, n)| Json::List(vec![number(from), number(n)]));
            assert_eq!(told["buckets"], Json::List(buckets.collect()));
        }
        let Json::List(tags) = &all["tags"] else { panic!("{all:?}") };
        let Json::Object(tag) = &tags[0] else { panic!("{all:?}") };
        let Json::Object(memory) = &tag["memory"] else { panic!("{all:?}") };
        assert_eq!((tags.len(), &tag["tag"]), (1, &Json::Text("kv \"cache\"".into())));
        assert_eq!(memory["requested_bytes.current"], Json::Number(50_000.0));
        assert_eq!(memory["allocation.peak"], Json::Number(10.0));
        let samples = page(d);
        let at = |metric: &str, labels: &[(&str, &str)]| {
            let labels = labels.iter().chain(&[("device", "host:0")]);
            let labels = labels.map(|&(n, v)| (n.to_owned(), v.to_owned())).collect();
            samples[&(format!("millpond_{metric}"), labels)]
        };
        assert_eq!(at("latency_seconds_count", &[("op", "alloc")]), 11.0);
        assert_eq!(at("latency_seconds_bucket", &[("op", "alloc"), ("le", "+Inf")]), 11.0);
        assert_eq!(at("latency_seconds_sum", &[("op", "alloc")]), l.total_ns as f64 / 1e9);
        let below = l.buckets.iter().enumerate().filter(|b| millpond_latency_bucket_start(b.0) < 1 << 14);
        let below: u64 = below.map(|b| b.1).sum();
        assert_eq!(at("latency_seconds_bucket", &[("op", "alloc"), ("le", "0.000016384")]), below as f64);
        assert_eq!(
            at("tag_allocated_bytes", &[("tag", "kv \"cache\"")]),
            memory_number(&memory["allocated_bytes.current"])
        );
        blocks.into_iter().for_each(|at| free(at).unwrap());
    });
}

fn memory_number(j: &Json) -> f64 {
    match j {
        Json::Number(n) => *n,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_no_histogram_is_refused() {
    apart(|| {
        let d = host(64 * MIB, true);
        let get = |what, at: *mut millpond_latency| {
            code(outcome(unsafe { millpond_device_get_latency(ptr(d.0), what, at) }))
        };
        for what in [0, 8, u32::MAX] {
            assert_eq!(get(what, &mut empty()), MILLPOND_E_INVALID_ARGUMENT);
            assert!(millpond_latency_name(what).is_null());
        }
        assert_eq!(get(1, std::ptr::null_mut()), MILLPOND_E_INVALID_ARGUMENT);
        // An older program knows a shorter struct.
        let mut short = empty();
        (short.struct_size, short.max_ns) = (std::mem::offset_of!(millpond_latency, max_ns), 77);
        outcome(unsafe { millpond_device_get_latency(ptr(d.0), 1, &mut short) }).unwrap();
        assert_eq!(short.max_ns, 77);
        assert_eq!(code(quantile(&short, 0.5)), MILLPOND_E_INVALID_ARGUMENT);
        for part in [-0.1, 1.1, f64::NAN] {
            assert_eq!(code(quantile(&empty(), part)), MILLPOND_E_INVALID_ARGUMENT);
        }
        assert_eq!(quantile(&empty(), 0.5).unwrap(), 0);
        assert_eq!(millpond_latency_bucket_start(MILLPOND_LATENCY_BUCKETS), u64::MAX);
        // As the header says it.
        for i in 4..MILLPOND_LATENCY_BUCKETS {
            assert_eq!(millpond_latency_bucket_start(i), (4 + i as u64 % 4) << (i / 4 - 1), "{i}");
        }
        assert_eq!([0, 1, 2, 3].map(|i| millpond_latency_bucket_start(i)), [0, 1, 2, 3]);
    });
}
