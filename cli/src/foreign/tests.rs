use super::*;
use crate::trace::Event;

/// A pickle by protocol 2, made as short as it can be.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn text(&mut self, text: &str) {
        self.0.push(b'X');
        self.0.extend((text.len() as u32).to_le_bytes());
        self.0.extend(text.as_bytes());
    }
    fn int(&mut self, n: i64) {
        self.0.extend([0x8a, 8]);
        self.0.extend(n.to_le_bytes());
    }
    fn entry(&mut self, action: &str, addr: i64, size: i64, stream: i64) {
        self.0.extend(b"}(");
        self.text("action");
        self.text(action);
        for (key, n) in [("addr", addr), ("size", size), ("stream", stream)] {
            self.text(key);
            self.int(n);
        }
        self.0.push(b'u');
    }
}

/// A snapshot with these entries for device 1, and a segment at 0x1000 with a live block of 256 bytes (200 asked for), a
/// free one, and a live one of 512.
fn snapshot(entries: &[(&str, i64, i64, i64)]) -> Vec<u8> {
    let mut w = Writer(b"\x80\x02}(".to_vec());
    w.text("device_traces");
    w.0.extend(b"](](");
    w.0.extend(b"e](");
    entries.iter().for_each(|e| w.entry(e.0, e.1, e.2, e.3));
    w.0.extend(b"ee");
    w.text("segments");
    w.0.extend(b"](}(");
    for (key, n) in [("device", 1), ("address", 0x1000), ("stream", 7)] {
        w.text(key);
        w.int(n);
    }
    w.text("blocks");
    w.0.extend(b"](");
    for (size, requested, state) in
        [(256, 200, "active_allocated"), (64, 0, "inactive"), (512, 512, "active_allocated")]
    {
        w.0.extend(b"}(");
        w.text("size");
        w.int(size);
        w.text("requested_size");
        w.int(requested);
        w.text("state");
        w.text(state);
        w.0.push(b'u');
    }
    w.0.extend(b"euueu.");
    // `e` ends the blocks, `u` the segment's dict, `e` the segments, `u` the snapshot.
    let n = w.0.len();
    w.0.truncate(n - 6);
    w.0.extend(b"eueu.");
    w.0
}

fn error_of(bytes: &[u8]) -> String {
    format!("{:#}", Trace::from_bytes("x", bytes).unwrap_err())
}

#[test]
fn a_history_of_pytorch_becomes_a_trace() {
    let bytes = snapshot(&[
        ("segment_alloc", 0x1000, 2 << 20, 0),
        ("alloc", 0x9000, 100, 0),
        ("free_requested", 0x5000, 64, 77),
        ("free_completed", 0x5000, 64, 77),
        ("alloc", 0x5000, 300, -5),
        ("free_requested", 0x9000, 100, 0),
        ("snapshot", 0, 0, 0),
        ("free_completed", 0x9000, 100, 0),
    ]);
    let t = Trace::from_bytes("mine", &bytes).unwrap();
    assert_eq!(t.name, "mine");
    assert_eq!(
        t.source,
        "PyTorch's memory history of device 1; blocks older than the record: 3, 1 of them freed in it"
    );
    assert_eq!(
        t.events,
        [
            // Older than the record, by address: two that are live in the snapshot, and one that is freed later.
            Event::Alloc { block: 0, stream: 1, bytes: 200 },
            Event::Alloc { block: 1, stream: 1, bytes: 512 },
            Event::Alloc { block: 2, stream: 2, bytes: 64 },
            Event::Alloc { block: 3, stream: 0, bytes: 100 },
            Event::Free { block: 2 },
            Event::Alloc { block: 4, stream: 3, bytes: 300 },
            Event::Free { block: 3 },
        ]
    );
    assert_eq!((t.streams, t.left_live, t.peak_live_bytes), (4, 3, 1112));
    assert_eq!(t.lines[3..], [2, 4, 5, 8], "entries of the history");
}

#[test]
fn what_is_no_history_says_so() {
    let e = error_of(b"\x80\x04}.");
    assert!(e.contains("there is no list `device_traces`"), "{e}");
    let e = error_of(&snapshot(&[]));
    assert!(e.contains("no history") && e.contains("_record_memory_history()"), "{e}");
    let e = error_of(&snapshot(&[("oom", 1, 2, 3)]));
    assert!(e.contains("not one `alloc`"), "{e}");
    let e = error_of(&snapshot(&[("alloc", 1, -2, 3)]));
    assert!(e.contains("device 1, entry 1: `size` is negative"), "{e}");
    let e = error_of(&snapshot(&[("alloc", 1, 2, 3), ("alloc", 1, 2, 3)]));
    assert!(e.contains("entry 2: block 1 is allocated twice"), "{e}");
    let e = error_of(&snapshot(&[("free_completed", 1, 2, 3), ("free_completed", 1, 2, 3)]));
    assert!(e.contains("entry 2: the block at 0x1 is freed, but it is not live"), "{e}");
    let e = error_of(b"\x80\x02}(X\x0d\0\0\0device_traces](](}eeu.");
    assert!(e.contains("device 0, entry 1: `action` is missing"), "{e}");
    let e = error_of(b"\x80\x09N.");
    assert!(e.contains("protocol 9"), "{e}");
    let e = error_of(b"\x80\x02cos\nsystem\n)R.");
    assert!(e.contains("at byte 2: GLOBAL") && e.contains("it was not run"), "{e}");
}

/// A list that is named again and again stands for as many entries as one likes.
#[test]
fn what_would_go_on_for_ever_is_refused() {
    let mut w = Writer(b"\x80\x02}(".to_vec());
    w.text("device_traces");
    w.0.extend(b"](](");
    w.entry("alloc", 1, 2, 3);
    w.0.extend(b"q\0"); // the entry
    w.0.extend(b"h\0".repeat(1000));
    w.0.extend(b"eeu.");
    let e = error_of(&w.0);
    assert!(e.contains("more entries than the file has room for"), "{e}");
    // A history whose entries have a dict with thousands of keys.
    let mut w = Writer(b"\x80\x02}(".to_vec());
    w.text("device_traces");
    w.0.extend(b"](](}(");
    w.0.extend(b"K\0K\0".repeat(1000));
    w.0.extend(b"ueeu.");
    let e = error_of(&w.0);
    assert!(e.contains("entry 1: it has 1000 keys"), "{e}");
}

/// Bytes changed, left out and cut off: an answer every time, and never a panic.
#[test]
fn damaged_pickles_get_an_answer() {
    let good = snapshot(&[
        ("alloc", 0x9000, 100, 0),
        ("free_completed", 0x5000, 64, 77),
        ("alloc", 0x5000, 300, -5),
    ]);
    Trace::from_bytes("x", &good).unwrap();
    for n in 0..good.len() {
        assert!(Trace::from_bytes("x", &good[..n]).is_err(), "cut off at {n}");
    }
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    let mut next = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    let opcodes = b"(.0]})KMJXhqrjeuast1ld\x85\x86\x87\x88\x8a\x8c\x94N";
    let mut taken = 0;
    for _ in 0..100_000 {
        let mut bytes = good.clone();
        for _ in 0..1 + next(4) {
            let at = 2 + next(bytes.len() - 2);
            match next(4) {
                0 => bytes[at] = next(256) as u8,
                1 => bytes[at] = opcodes[next(opcodes.len())],
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, opcodes[next(opcodes.len())]),
            }
        }
        taken += usize::from(Trace::from_bytes("x", &bytes).is_ok());
    }
    assert!(taken > 100, "{taken}: the changes are too coarse to get far");
}

#[test]
fn a_log_of_rmm_becomes_a_trace() {
    let text = "Thread,Time,Action,Pointer,Size,Stream\n\
                12,10:00:00.000001,allocate,0x7f0000000000,1024,0\r\n\
                12,10:00:00.000002,allocate failure,(nil),99999999999,0\n\
                13,10:00:00.000003,allocate,0x7f0000000400,10,0x55d0\n\
                12,10:00:00.000004,free,0x7f0000000000,1024,0\n\
                12,10:00:00.000005,allocate,(nil),0,0\n\
                13,10:00:00.000006,free,0x7e0000000000,77,2\n\n";
    let t = Trace::from_bytes("log", text.as_bytes()).unwrap();
    assert_eq!(
        t.events,
        [
            Event::Alloc { block: 0, stream: 1, bytes: 77 },
            Event::Alloc { block: 1, stream: 0, bytes: 1024 },
            Event::Alloc { block: 2, stream: 2, bytes: 10 },
            Event::Free { block: 1 },
            Event::Free { block: 0 },
        ]
    );
    assert_eq!(t.lines, [7, 2, 4, 5, 7]);
    let when: Vec<_> = t.when.iter().map(|w| (w.time - 36_000_000_000_000, w.thread)).collect();
    assert_eq!(when, [(1000, 12), (1000, 12), (3000, 13), (4000, 12), (6000, 13)]);
    assert_eq!(t.source, "a log of RMM; blocks older than the record: 1, 1 of them freed in it");
    for (rows, wants) in [
        ("", "not one `allocate`"),
        ("1,2,allocate,0x1,8", "line 2: `1,2,allocate,0x1,8`: the stream is missing"),
        ("1,2,jump,0x1,8,0", "`jump` is no action of RMM"),
        ("1,2,allocate,0xzz,8,0", "the pointer `0xzz` is no number"),
        ("1,2,allocate,0x1,-8,0", "the size `-8` is no number"),
        ("1,2,allocate,0x1,99999999999999999999,0", "is no number"),
        ("1,2,allocate,0x1,8,0\n1,2,allocate,0x1,8,0", "line 3: block 1 is allocated twice"),
    ] {
        let e = error_of(format!("Thread,Time,Action,Pointer,Size,Stream\n{rows}\n").as_bytes());
        assert!(e.contains(wants), "`{e}` does not contain `{wants}`");
    }
}

/// What the logging adaptor of RMM 26.10 has written (tests/rmm/log.py).
#[test]
fn a_log_of_the_released_rmm_is_read() {
    let text = include_bytes!("../../tests/rmm/logged.csv");
    let t = Trace::from_bytes("logged", text).unwrap();
    assert_eq!((t.events.len(), t.allocs, t.left_live, t.streams), (9, 5, 1, 3));
    assert_eq!(t.peak_live_bytes, 100 + 1000 + 70_000 + (3 << 20) + 5000);
    let sizes = t.events.iter().filter_map(|e| match *e {
        Event::Alloc { stream, bytes, .. } => Some((stream, bytes)),
        Event::Free { .. } => None,
    });
    assert_eq!(sizes.collect::<Vec<_>>(), [(0, 100), (1, 1000), (2, 70_000), (0, 3 << 20), (2, 5000)]);
    assert_eq!(t.when.len(), 9);
    assert!(t.when.windows(2).all(|w| w[0].time <= w[1].time));
    assert_ne!(t.when[3].thread, t.when[4].thread);
}

#[test]
fn times_of_a_log_go_on_after_midnight_or_are_left_out() {
    let log = |times: [&str; 3]| {
        let rows: Vec<_> =
            times.iter().enumerate().map(|(n, t)| format!("7,{t},allocate,0x{n}1,8,0\n")).collect();
        let text = format!("Thread,Time,Action,Pointer,Size,Stream\n{}", rows.concat());
        Trace::from_bytes("x", text.as_bytes()).unwrap().when
    };
    let seconds = |times| log(times).iter().map(|w| w.time / 1_000_000_000).collect::<Vec<_>>();
    assert_eq!(seconds(["23:59:58.5", "23:59:58:400000", "00:00:01.0"]), [86_398, 86_398, 86_401]);
    for wrong in
        ["", "noon", "24:00:00.0", "10:00", "10:00:00.0.0", "10:00:-1.0", "1:2:3.0123456789", "9:9:9."]
    {
        assert!(log(["10:00:00.0", wrong, "10:00:00.0"]).is_empty(), "{wrong}");
    }
}

/// What Millpond itself writes, with events in it.
#[test]
fn a_snapshot_of_millpond_is_read() {
    let bytes = include_bytes!("../../../torch/tests/small_snapshot.pickle");
    let t = Trace::from_bytes("x", bytes).unwrap();
    assert_eq!((t.events.len(), t.allocs, t.left_live), (3, 2, 1));
    let e = error_of(&bytes[..bytes.len() - 1]);
    assert!(e.contains("cut off"), "{e}");
}
