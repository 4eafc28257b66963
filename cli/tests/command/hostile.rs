//! What files can be made to take: memory for texts and values that they name again and again, and sums of sizes.

use super::{Folder, err, millpond};
use std::process::{Command, Output};

#[test]
fn sums_of_sizes_in_a_pickle_do_not_overflow() {
    let folder = Folder::new("sums");
    // Four segments of 2^63-1 bytes: {"device_traces": [[]], "segments": [s, s, s, s]}.
    let mut p = b"\x80\x02}(X\x0d\0\0\0device_traces](]eX\x08\0\0\0segments](".to_vec();
    p.extend(b"}(X\x06\0\0\0deviceK\0X\x0a\0\0\0total_size\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f");
    p.extend(b"X\x07\0\0\0addressK\0X\x06\0\0\0streamK\0uq\0h\0h\0h\0eu.");
    let file = folder.0.join("s.pickle");
    std::fs::write(&file, p).unwrap();
    let o = millpond(&["view", file.to_str().unwrap(), "-o", "-"]);
    assert!(o.status.success(), "{}", err(&o));
}

/// Runs it with so many bytes of addresses, beyond which its memory does not grow.
fn within(bytes: u64, args: &[&str]) -> Output {
    let script = format!("ulimit -v {}; exec \"$0\" \"$@\"", bytes / 1024);
    let mut c = Command::new("sh");
    c.args(["-c", &script, env!("CARGO_BIN_EXE_millpond")]).args(args);
    c.output().unwrap()
}

/// A name that is referred to sixty thousand times is kept once.
#[test]
fn a_caller_is_kept_once() {
    let folder = Folder::new("callers");
    let text = format!(
        r#"{{"schema":"millpond.snapshot","version":1,"segments":[],
            "frames":[{{"module":"{}","offset":16}}],"stacks":[[{}0]]}}"#,
        "m".repeat(100_000),
        "0,".repeat(60_000)
    );
    let file = folder.file("s.json", &text);
    let o = within(1 << 30, &["view", file.to_str().unwrap(), "-o", "-"]);
    assert!(o.status.success(), "{:?} {}", o.status, err(&o));
    assert!(o.stdout.ends_with(b"</html>\n") && o.stdout.len() < 2 << 20, "{} bytes", o.stdout.len());
}

/// Names that are made of one long text and a number are kept as far as there is room, and the page says so.
#[test]
fn callers_texts_have_a_bound() {
    let folder = Folder::new("texts");
    // One list of frames for each of 4000 blocks; each of its 2 frames has the same long file, and another line.
    let mut p = b"\x80\x02".to_vec();
    let mut text = |t: &str, n: u8| {
        p.push(b'X');
        p.extend((t.len() as u32).to_le_bytes());
        p.extend(t.as_bytes());
        p.extend([b'q', n, b'0']);
    };
    let long = "f".repeat(100_000);
    let keys = ["name", "filename", "line", "address", "size", "state", "frames", "active_allocated", &long];
    keys.iter().enumerate().for_each(|(n, t)| text(t, n as u8));
    let mut blocks = Vec::new();
    for n in 0..8000u16 {
        let [a, b] = n.to_le_bytes();
        let frame = [&b"}(h\x00h\x08h\x01h\x08h\x02M"[..], &[a, b], b"u"].concat();
        blocks.extend([&b"}(h\x03M"[..], &[a, b], b"h\x04K\x01h\x05h\x07h\x06](", &frame, b"eu"].concat());
    }
    p.extend(
        b"}(X\x0d\0\0\0device_traces](]eX\x08\0\0\0segments](}(X\x06\0\0\0deviceK\0X\x0a\0\0\0total_size",
    );
    p.extend(b"J\0\0\x10\0X\x07\0\0\0addressK\0X\x06\0\0\0streamK\0X\x06\0\0\0blocks](");
    p.extend(blocks);
    p.extend(b"eueu.");
    let file = folder.0.join("s.pickle");
    std::fs::write(&file, p).unwrap();
    let o = within(2 << 30, &["view", file.to_str().unwrap(), "-o", "-"]);
    assert!(o.status.success(), "{:?} {}", o.status, err(&o));
    assert!(
        err(&o).contains("note: the names of callers and the texts of notes have more than 64.00 MiB"),
        "{}",
        err(&o)
    );
}

#[test]
fn a_pickle_of_nothing_but_values_is_refused() {
    let folder = Folder::new("values");
    let file = folder.0.join("s.pickle");
    let many = |opcode: &[u8], count: usize| [&b"\x80\x04"[..], &opcode.repeat(count)].concat();
    for (bytes, wants) in [
        (many(b"]", 16 << 20), "values: a snapshot has fewer in so many bytes"),
        (many(b"(", 16 << 20), "more than 10000 lists, tuples and dicts are open"),
        (many(b"]\x94\x94\x94", 4 << 20), "is remembered more often than there are values"),
    ] {
        std::fs::write(&file, &bytes).unwrap();
        for command in ["view", "replay"] {
            let o = within(640 << 20, &[command, file.to_str().unwrap()]);
            assert_eq!(o.status.code(), Some(1), "{wants}: {:?} {}", o.status, err(&o));
            assert!(err(&o).contains(wants) && err(&o).contains("at byte "), "{}", err(&o));
        }
    }
}
