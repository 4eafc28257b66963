//! The bytes that are written for small snapshots, and files that cannot be written.

use super::json::Json;
use super::*;
use crate::core::{BlockState, Layout, Owner, Place, Placed, Stats};
use crate::runtime::entry::tags::Tag;
use crate::runtime::pinned::cache::HostStats;

fn snapshot() -> Snapshot {
    let block = |address, span, slack, requested, owner, place, state| Placed {
        address,
        span,
        requested,
        slack,
        owner,
        segment: 0,
        state,
        place,
        tag: 0,
    };
    let mut blocks = vec![
        block(1 << 40, 512, 0, 100, 0, Place::Small, BlockState::Live),
        block((1 << 40) + 512, 1 << 20, 0, 0, 0, Place::Small, BlockState::Free),
        block(1 << 41, 3 << 20, 256, 3_000_000, 1, Place::Scattered, BlockState::Waiting),
        block(1 << 42, 4096, 0, 4000, 2, Place::Large, BlockState::Live),
    ];
    blocks[2].tag = Tag::new("kv_cache").unwrap().number();
    let owners = vec![
        Owner { stream: None, pool: Some(PoolId(0)), sleeps: false },
        Owner { stream: Some(77), pool: Some(PoolId(5)), sleeps: false },
        Owner { stream: None, pool: Some(PoolId(6)), sleeps: true },
    ];
    let pools = [0, 5, 6].map(|n| (PoolId(n), Stats::default())).to_vec();
    let mut s = Snapshot {
        layout: Layout::new(blocks, owners, Stats::default(), pools),
        type_name: "host".into(),
        ordinal: 1,
        time_us: 12,
        memory: None,
        options: vec![("backend", "native".into())],
        settings: Settings::of(&crate::runtime::options::Options::default()),
        pinned: HostStats::default(),
        names: BTreeMap::new(),
        kept: events::Kept::default(),
    };
    s.name_pools(|p| (p.0 == 5).then(|| "a \"name\"".into()));
    s
}

fn text(format: SnapshotFormat, events: &[Event]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut all = snapshot();
    all.kept.texts = vec!["epoch \"2\"".to_owned()];
    // An event with all that there is to tell.
    let tag = Tag::new("kv_cache").unwrap().number();
    let full = Event { requested: 500, pool: Some(PoolId(5)), thread: 8, tag, ..events[0] };
    all.write_with(format, [full].into_iter().chain(events[1..].iter().copied()), &mut out).unwrap();
    out
}

const EVENTS: [Event; 6] = [
    Event { address: 1 << 40, bytes: 512, stream: 77, ..Event::new(Action::Alloc, 1) },
    Event { address: 1 << 39, bytes: 256, ..Event::new(Action::FreeRequested, 1) },
    Event { address: 1 << 39, bytes: 256, ..Event::new(Action::FreeCompleted, 2) },
    Event { address: 1 << 40, stream: 78, thread: 9, ..Event::new(Action::RecordStream, 2) },
    Event { text: 1, thread: 9, ..Event::new(Action::Annotate, 2) },
    Event { device_free: Some(12345), bytes: 1 << 33, ..Event::new(Action::Oom, 2) },
];

#[test]
fn the_json_of_a_small_snapshot() {
    let all = String::from_utf8(text(SnapshotFormat::Json, &EVENTS)).unwrap();
    let want = [
        r#"{"schema":"millpond.snapshot","version":1,"library":""#,
        r#""time_us":12,"device":{"type":"host","ordinal":1,"total_bytes":null,"free_bytes":null}"#,
        r#""options":{"backend":"native"}"#,
        r#"{"id":5,"name":"a \"name\"","requested_bytes":{"current":0,"peak":0,"total":0}"#,
        r#"{"address":1099511627776,"size_bytes":1049088,"kind":"small","stream":null,"pool":0,"blocks":["#,
        r#"{"address":1099511627776,"size_bytes":512,"requested_bytes":100,"state":"live"},"#,
        r#"{"address":1099511628288,"size_bytes":1048576,"requested_bytes":0,"state":"free"}]}"#,
        r#""kind":"scattered","stream":77,"pool":5,"blocks":["#,
        r#""size_bytes":3145472,"span_bytes":3145728,"requested_bytes":3000000,"state":"waiting","tag":"kv_cache"}"#,
        r#""kind":"large","stream":null,"pool":6,"sleeps":true,"blocks":["#,
        r#""size_bytes":512,"requested_bytes":500,"stream":77,"pool":5,"thread":8,"tag":"kv_cache"},"#,
        r#"{"action":"free_requested","time_us":1,"address":549755813888,"size_bytes":256,"stream":0},"#,
        r#"{"action":"record_stream","time_us":2,"address":1099511627776,"size_bytes":0,"stream":78,"thread":9},"#,
        r#"{"action":"annotate","time_us":2,"text":"epoch \"2\"","size_bytes":0,"stream":0,"thread":9},"#,
        r#"{"action":"oom","time_us":2,"device_free_bytes":12345,"size_bytes":8589934592,"stream":0}]}"#,
    ];
    for part in want {
        assert!(all.contains(part), "{part} is not in\n{all}");
    }
}

/// Checks the keys, sizes and states in the bytes. torch/tests/test_snapshot.py reads the same bytes with Python and
/// with PyTorch's tools; `MILLPOND_BLESS=1` writes them for it.
#[test]
fn the_pickle_of_a_small_snapshot() {
    let all = text(SnapshotFormat::TorchPickle, &EVENTS);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("torch/tests/small_snapshot.pickle");
    if std::env::var_os("MILLPOND_BLESS").is_some() {
        std::fs::write(&file, &all).unwrap();
    }
    assert!(std::fs::read(&file).unwrap() == all, "MILLPOND_BLESS=1 writes the new bytes");
    assert!(all.starts_with(b"\x80\x02}(X\x08\0\0\0segmentsq\0]("));
    assert!(all.ends_with(b"u."));
    let find = |part: &[u8]| all.windows(part.len()).filter(|w| *w == part).count();
    assert_eq!(find(b"active_allocated"), 1, "written once");
    assert_eq!(find(b"active_pending_free"), 1);
    assert_eq!(find(&[0x8a, 8, 0, 0, 0, 0, 0, 1, 0, 0]), 3, "the address of segment, block and event");
    assert_eq!(find(&(1u64 << 42).to_le_bytes()), 0, "a pool that sleeps is left out");
    assert_eq!(find(b"device_free"), 1);
    assert_eq!(find(b"KMK\x05\x86"), 0);
    assert_eq!(find(b"K\0K\x05\x86"), 2, "the pool of a segment and of an event, as tuples");
    assert_eq!((find(b"kv_cache"), find(b"user_metadata")), (2, 1), "of a block's frames, and of the event");
    assert_eq!((find(b"epoch \"2\""), find(b"X\x0d\0\0\0record_stream"), find(b"START")), (1, 0, 1));
}

/// A history with callers: blocks and events have them, in the form that PyTorch's tools read, each written once.
#[test]
fn callers_are_in_both_forms() {
    use crate::runtime::recording::format::HistoryEvent;
    use crate::runtime::watch::event::{Event as Seen, EventKind};
    let code = libc::getpid as *const () as usize as u64 + 1; // a function that its module exports
    let at = |kind, address, frames: &[u64]| {
        let event = Seen { address, bytes: 64, ..Seen::new(kind) };
        HistoryEvent { event, stamp: 0, frames: frames.to_vec(), text: None }
    };
    let mut s = snapshot();
    let tagged = at(EventKind::Alloc, 1 << 41, &[code, 1]);
    let history = [at(EventKind::Alloc, 1 << 40, &[code, 1]), tagged, at(EventKind::Snapshot, 0, &[])];
    s.kept = events::of(&history, 0, 5, 5);
    let text = |format| {
        let mut out = Vec::new();
        s.write(format, &mut out).unwrap();
        out
    };
    let json = String::from_utf8(text(SnapshotFormat::Json)).unwrap();
    let want = [
        r#"getpid"},"#,
        r#"{"module":"","offset":0}],"stacks":[[],[0,1]],"events":["#,
        r#""requested_bytes":100,"state":"live","stack":1},"#,
        r#""requested_bytes":0,"state":"free"}"#,
        r#""state":"waiting","tag":"kv_cache","stack":1}"#,
        r#""address":1099511627776,"size_bytes":64,"stream":0,"pool":0,"stack":1},"#,
        r#""action":"snapshot","time_us":5,"address":0,"size_bytes":64,"stream":0}]}"#,
    ];
    for part in want {
        assert!(json.contains(part), "{part} is not in\n{json}");
    }
    let pickle = text(SnapshotFormat::TorchPickle);
    let find = |part: &[u8]| pickle.windows(part.len()).filter(|w| *w == part).count();
    assert_eq!((find(b"getpid"), find(b"\x03\0\0\0\x30x0")), (1, 1), "each frame once");
    assert_eq!(find(b"j\x02\x01\0\0"), 2, "two events have the stack of the first block");
    // The block with the tag has a list of its own, of frames that are there already.
    assert_eq!((find(b"j\0\x01\0\0"), find(b"j\x01\x01\0\0")), (1, 1));
}

#[test]
fn texts_in_json_are_escaped() {
    let mut out = Vec::new();
    let mut to = |piece: &[u8]| {
        out.extend_from_slice(piece);
        Ok(())
    };
    let mut sink = Sink::new(&mut to);
    Json::new(&mut sink).text("a\"\\\n\t\r\0\u{1f}\u{7f}\u{2028}é\u{1f600}");
    sink.end().unwrap();
    let want = r#""a\"\\\n\t\r\u0000\u001f\u007f\u2028é😀""#;
    assert_eq!(String::from_utf8(out).unwrap(), want);
}

/// Lists are appended in batches of a size that readers can take; numbers take the fewest bytes.
#[test]
fn the_numbers_and_lists_of_a_pickle() {
    let mut out = Vec::new();
    let mut to = |piece: &[u8]| {
        out.extend_from_slice(piece);
        Ok(())
    };
    let mut sink = Sink::new(&mut to);
    let mut p = pickle::Pickle::new(&mut sink);
    let numbers = [0, 255, 256, 65535, 65536, i64::from(i32::MAX), i64::from(i32::MAX) + 1, -1, i64::MIN];
    p.list(numbers, |p, n| {
        p.int(n);
        Ok(())
    })
    .unwrap();
    p.list(0..2001, |p, _| {
        p.flag(true);
        Ok(())
    })
    .unwrap();
    p.end();
    sink.end().unwrap();
    let head = b"\x80\x02](K\0K\xffM\0\x01M\xff\xffJ\0\0\x01\0J\xff\xff\xff\x7f\x8a\x08\0\0\0\x80\0\0\0\0J\xff\xff\xff\xff\x8a\x08\0\0\0\0\0\0\0\x80e";
    assert!(out.starts_with(head), "{out:x?}");
    let lists: Vec<usize> = out[head.len()..].split(|&b| b == b'(').skip(1).map(<[u8]>::len).collect();
    assert_eq!(lists, [1001, 1001, 3]);
}

#[test]
fn a_writer_that_fails_ends_the_writing() {
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Err(std::io::Error::from(std::io::ErrorKind::StorageFull))
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut full = Full(0);
    let e = snapshot().write(SnapshotFormat::Json, &mut full).unwrap_err();
    assert_eq!(e.code(), Code::System);
    assert!(e.message().starts_with("writing the snapshot: "), "{e}");
    assert!(full.0 > 0);
}
