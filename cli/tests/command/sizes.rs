//! Sizes in files that no device has, and what is said of them.

use super::{Folder, err, millpond, out};

#[test]
fn no_device_is_so_large() {
    let folder = Folder::new("huge");
    for (peak, told) in
        [(u64::MAX, "16777216.0 TiB"), (1 << 63, "8388608.0 TiB"), ((16 << 40) + 1, "16.00 TiB")]
    {
        let trace = folder.file("t.trace", &format!("a 1 {peak} 0\nf 1\n"));
        let trace = trace.to_str().unwrap();
        let o = millpond(&["replay", "-q", trace]);
        assert_eq!(o.status.code(), Some(3), "{peak}: {}", err(&o));
        assert!(err(&o).contains(&format!("holds {told} at its peak")), "{peak}: {}", err(&o));
        assert!(err(&o).contains("no host device has more than 16.00 TiB"), "{peak}: {}", err(&o));
        assert!(!err(&o).contains("--capacity"), "{peak}: {}", err(&o));
        for args in [&["bisect", trace][..], &["compare", trace, "--repeat", "1", "--with", "x="]] {
            let o = millpond(args);
            assert_eq!(o.status.code(), Some(1), "{args:?}: {}", err(&o));
            let all = out(&o) + &err(&o);
            let wants = format!(
                "no host device is large enough: it needs {told} at least, and the largest has 16.00 TiB"
            );
            assert!(all.contains(&wants), "{peak}, {args:?}: {all}");
        }
    }
    let trace = folder.file("t.trace", &format!("a 1 {} 0\nf 1\n", 16u64 << 40));
    let o = millpond(&["replay", "-q", trace.to_str().unwrap(), "--capacity", "1GiB"]);
    assert!(err(&o).contains("(--capacity 16384GiB for the host device"), "{}", err(&o));
}
