//! Files of every kind, cut off anywhere and with any of their bytes changed: each is read, or refused with a reason that
//! names the place. (Pickles: view/torch/tests.rs; the form of histories: the library's own tests.)

use super::*;

const TRACE: &str =
    "# name: tiny\n# step_starts: 0,2\na 1 100 0\na 2 5000 3\nf 1\na 3 20000000 0\nf 3\n# events: 5\n";
const CSV: &str = "Thread,Time,Action,Pointer,Size,Stream\n1,10:00:00:000001,allocate,0x10,512,0\n\
    2,10:00:00:000002,allocate,0x400,1024,7\n1,10:00:00:000003,free,0x10,512,0\n2,10:00:00:000004,allocate failure,(nil),99,7\n";
const JSON: &str = r#"{"schema":"millpond.snapshot","version":1,"time_us":5,
 "device":{"type":"host","ordinal":0,"total_bytes":1024,"free_bytes":null},
 "account":{"device":{},"pools":[{"id":0,"name":null},{"id":4,"name":"kv"}]},
 "segments":[{"address":4096,"size_bytes":200,"kind":"large","stream":7,"pool":4,"blocks":[
  {"address":4096,"size_bytes":100,"requested_bytes":90,"state":"live","tag":"w","stack":1},
  {"address":4196,"size_bytes":100,"requested_bytes":80,"state":"waiting"}]}],
 "frames":[{"module":"/x","offset":16,"function":"f"}],"stacks":[[],[0,0]],
 "events":[{"action":"alloc","time_us":3,"address":4096,"size_bytes":100,"stream":7},
  {"action":"oom","time_us":4,"address":0,"size_bytes":512,"stream":7}]}"#;

/// What is damaged in all sorts of ways.
fn damaged(good: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    let mut roll = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    let good = good.to_vec();
    (0..good.len() * 6).map(move |n| match n / good.len() {
        0 => good[..n].to_vec(),
        1 => [&good[..n % good.len()], &good[n % good.len() + 1..]].concat(),
        _ => {
            let mut bad = good.clone();
            for _ in 0..=roll(3) {
                let at = roll(bad.len());
                bad[at] = [b'9', b'-', b'\n', b',', b' ', b'"', b'}', 0xff, 0, b'a'][roll(10)];
            }
            bad
        }
    })
}

/// A reason that tells where, or that nothing of the kind is in the file at all.
fn tells_where(e: &anyhow::Error) -> bool {
    let text = format!("{e:#}");
    let places = ["line ", "byte ", "entry ", "segment ", "column ", "stack "];
    let whole = [
        "not one",
        "neither",
        "promises",
        "`schema`",
        "`version`",
        "version ",
        "file is empty",
        "not named",
        "ends in",
    ];
    places.iter().chain(&whole).any(|p| text.contains(p))
}

#[test]
fn damaged_traces_and_logs_are_refused_with_the_place() {
    let mut refused = 0;
    for good in [TRACE, CSV] {
        assert!(Trace::from_bytes("x", good.as_bytes()).is_ok());
        for bad in damaged(good.as_bytes()) {
            if let Err(e) = Trace::from_bytes("x", &bad) {
                refused += 1;
                assert!(tells_where(&e), "{e:#}: {:?}", String::from_utf8_lossy(&bad));
            }
        }
    }
    assert!(refused > 500, "{refused}");
}

/// The same of compressed ones.
#[test]
fn damaged_zstd_is_refused_or_read() {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    let text = format!("{TRACE}f 2\n").repeat(3).replace("# events: 5\n", "");
    let good = compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
    assert_eq!(Trace::from_bytes("x", &good).unwrap().events.len(), 18);
    let mut refused = 0;
    let flipped = (0..good.len() * 8).map(|n| {
        let mut bad = good.clone();
        bad[n / 8] ^= 1 << (n % 8);
        bad
    });
    for bad in damaged(&good).chain(flipped) {
        if let Err(e) = Trace::from_bytes("x", &bad) {
            refused += 1;
            let said = format!("{e:#}");
            assert!(tells_where(&e) || said.contains("the zstd data"), "{said}: {bad:x?}");
        }
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn damaged_snapshots_are_refused_with_the_place_or_drawn() {
    let mut refused = 0;
    assert!(snapshot::record("x", JSON.as_bytes(), false).is_ok());
    for bad in damaged(JSON.as_bytes()) {
        match snapshot::record("x", &bad, false) {
            Ok(r) => assert!(page(&r, "1")[1].len() > 4),
            Err(e) => {
                refused += 1;
                assert!(tells_where(&e), "{e:#}: {:?}", String::from_utf8_lossy(&bad));
            }
        }
    }
    assert!(refused > 2000, "{refused}");
}

/// Other versions are refused as such.
#[test]
fn other_versions_are_told() {
    let said = |text: String| format!("{:#}", snapshot::record("x", text.as_bytes(), false).unwrap_err());
    assert_eq!(
        said(JSON.replace("\"version\":1", "\"version\":2")),
        "the snapshot has version 2; this reads version 1"
    );
    assert_eq!(said(JSON.replace("\"version\":1,", "")), "the snapshot has no `version`");
}
