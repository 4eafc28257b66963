use super::*;
use crate::view::record::Table;

// Made by cli/tests/torch/train.py, with PyTorch's own allocator; what PyTorch's statistics said of it is below.
const SEGMENTS: &[u8] = include_bytes!("../../../tests/torch/segments.pickle");
const EXPANDABLE: &[u8] = include_bytes!("../../../tests/torch/expandable.pickle");
// Written by the library's own test (src/runtime/snapshot/tests.rs).
const OURS: &[u8] = include_bytes!("../../../../torch/tests/small_snapshot.pickle");
const PEAK: u64 = 33_003_008;
const CURRENT: u64 = 24_002_560;

fn name<K: Clone + Eq + std::hash::Hash>(t: &Table<K>, n: u32) -> K {
    t.get(n).unwrap().clone()
}

/// What lives at a moment, and the most there ever was [B].
fn allocated(r: &Record) -> (u64, u64) {
    let at = |m: u32| r.blocks.iter().filter(|b| b.born <= m && m < b.asked).map(|b| b.bytes).sum::<u64>();
    (at(r.last()), (0..=r.last()).map(at).max().unwrap())
}

fn reserved(r: &Record) -> u64 {
    let now = |x: &&Range| x.born <= r.last() && r.last() < x.died && x.kind.counts();
    r.ranges.iter().filter(now).map(|x| x.bytes).sum()
}

#[test]
fn pytorchs_own_history_is_shown_as_it_was() {
    for (bytes, reserved_bytes) in [(SEGMENTS, 65_011_712), (EXPANDABLE, 67_108_864)] {
        let r = record("x", bytes, None).unwrap();
        assert_eq!((allocated(&r), reserved(&r)), ((CURRENT, PEAK), reserved_bytes));
        assert!(r.timed && r.times.is_sorted());
        let live: Vec<&Block> = r.blocks.iter().filter(|b| b.asked == NEVER).collect();
        assert_eq!(live.iter().map(|b| b.requested).sum::<u64>(), 24_000_000);
        // Who allocated it, innermost first; PyTorch has no stack of what is older than its record.
        let of = |requested: u64| *live.iter().find(|b| b.requested == requested).unwrap();
        let frames = name(&r.stacks, of(5_000_000).stack);
        let stack: Vec<String> = frames.iter().map(|&f| name(&r.texts.frames, f)).collect();
        let short: Vec<&str> = stack.iter().map(|f| f.split(" (").next().unwrap()).collect();
        assert_eq!(short, ["empty", "forward", "main", "<module>"]);
        assert!(stack[1].ends_with("train.py:24)"), "{}", stack[1]);
        assert_eq!((of(4_000_000).stack, of(4_000_000).born), (0, 0));
        // What the program said it was, and for which stream.
        assert_eq!(name(&r.tags, of(2_000_000).tag), "side");
        assert_ne!(of(2_000_000).stream, of(5_000_000).stream);
        assert_eq!(name(&r.streams, of(5_000_000).stream), "default stream");
        assert_eq!(name(&r.pools, of(5_000_000).pool), "default pool");
        // A free that waited for a stream, and one that did not.
        let waited = r.blocks.iter().find(|b| b.requested == 9_000_000).unwrap();
        assert!(waited.asked < waited.done && waited.done != NEVER && waited.freed_stack != 0);
        assert!(r.blocks.iter().any(|b| b.asked != NEVER && b.asked == b.done));
        let told: Vec<_> = r.marks.iter().map(|m| m.what).collect();
        assert_eq!(told, ["oom"]);
        assert!(
            r.marks[0].text.starts_with("out of memory: no room for 1.00 TiB; the device had "),
            "{:?}",
            r.marks
        );
        assert!(
            r.notes.iter().any(|n| n.ends_with("--ordinal shows: 1 (2.00 MiB reserved)")),
            "{:?}",
            r.notes
        );
        let other = record("x", bytes, Some(1)).unwrap();
        assert_eq!(allocated(&other), (5120, 5120));
        let e = format!("{:#}", record("x", bytes, Some(2)).unwrap_err());
        assert_eq!(e, "the pickle has no device 2; it has 2");
    }
}

/// What Millpond writes in that form keeps its tags, and is one moment without a history.
#[test]
fn millponds_own_pickle_keeps_its_tags() {
    let r = record("x", OURS, None).unwrap();
    assert!(r.facts.iter().any(|f| f.1 == "of Millpond, device 1"), "{:?}", r.facts);
    assert!(r.tags.all().len() > 1, "{:?}", r.tags);
    let cache = r.blocks.iter().find(|b| b.tag != 0 && b.bytes > 1 << 20).unwrap();
    assert_eq!((name(&r.tags, cache.tag).as_str(), cache.bytes, cache.stack), ("kv_cache", 3 << 20, 0));
    assert!(cache.asked != NEVER && cache.done == NEVER, "it waits: {cache:?}");
    assert!(r.last() > 0 && r.marks.iter().any(|m| m.what == "oom"));
    let alone = record("x", OURS, Some(0)).unwrap();
    assert_eq!((alone.last(), alone.timed), (0, false));
}

/// Cut off anywhere, or with any byte changed: an error with its place, or a record that can be drawn.
#[test]
fn damage_is_an_error_or_is_drawn() {
    let mut refused = 0;
    for n in 0..SEGMENTS.len() {
        let e = format!("{:#}", record("x", &SEGMENTS[..n], None).unwrap_err());
        assert!(e.contains("at byte ") || e.starts_with("this pickle is no snapshot"), "cut off at {n}: {e}");
    }
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    for bytes in [SEGMENTS, EXPANDABLE, OURS] {
        for n in (0..bytes.len()).step_by(3) {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let mut bad = bytes.to_vec();
            bad[n] ^= (seed % 255) as u8 + 1;
            match record("x", &bad, None) {
                Ok(r) => {
                    assert!(r.blocks.iter().all(|b| b.born <= b.asked && b.asked <= b.done), "byte {n}");
                    assert!(crate::view::page(&r, "1")[1].len() > 4);
                    assert!(crate::perfetto::export(&r).len() > 4);
                }
                Err(e) => {
                    refused += 1;
                    assert!(!format!("{e:#}").is_empty());
                }
            }
        }
    }
    assert!(refused > 300, "{refused}");
}

#[test]
fn other_pickles_are_refused() {
    for (bytes, wants) in [
        (&b"\x80\x02}."[..], "this pickle is no snapshot of PyTorch's memory"),
        (b"\x80\x02N.", "this pickle is no snapshot of PyTorch's memory"),
        (b"\x80\x02cos\nsystem\n.", "at byte 2: GLOBAL"),
    ] {
        let e = format!("{:#}", record("x", bytes, None).unwrap_err());
        assert!(e.contains(wants), "{e}");
    }
}
