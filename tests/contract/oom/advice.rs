//! The advice of an out-of-memory report knows the options that stand in the way, and helps.

use super::*;

/// What would serve is there, in granules that lie apart, and an option or the pool forbids to put them together.
#[test]
fn memory_that_may_not_be_put_together() {
    apart(|| {
        for (options, contiguous, advice) in
            [("scatter:off", false, "set scatter:on"), ("", true, "each of its blocks in one allocation")]
        {
            let d = host(64 * MIB, true);
            if !options.is_empty() {
                d.set_options(options).unwrap();
            }
            let (pool, s, u) =
                (if contiguous { d.contiguous_pool() } else { d.pool(0) }, d.stream(), d.stream());
            let all = fill(pool, s, 2 * MIB);
            assert!(all.len() >= 30, "{options}: {}", all.len());
            all.iter().step_by(2).for_each(|&p| pool.free(p, s).unwrap());
            d.synchronize().unwrap();
            // In a callback of a stream nothing can go back to the device to be taken in one piece.
            let (tell, told) = channel();
            d.call(u, move || {
                let e = pool.alloc(8 * MIB, s).unwrap_err();
                tell.send((e.message, Sent(last(d).unwrap()))).unwrap();
            });
            let (line, Sent(r)) = told.recv().unwrap();
            assert_eq!(r.reason, MILLPOND_OOM_FRAGMENTED, "{line}");
            assert_eq!(r.largest_here_bytes, 2 << 20, "{options}: nothing larger can be had");
            assert!(r.whole_granule_bytes >= 28 << 20, "{}", r.whole_granule_bytes);
            let flags = [MILLPOND_OOM_NO_SCATTER, MILLPOND_OOM_CONTIGUOUS].map(|f| r.flags & f != 0);
            assert_eq!(flags, [!contiguous, contiguous]);
            let text = words(&r);
            tells(&text, &["enough is free, but not in one piece", advice]);
            assert!(!text.contains("partly used"), "the granules are wholly free:\n{text}");
            // The advice helps.
            let other = if contiguous { d.pool(0) } else { pool };
            if !contiguous {
                d.set_options("scatter:on").unwrap();
            } else {
                all.iter().skip(1).step_by(2).for_each(|&p| pool.free(p, s).unwrap());
            }
            let (tell, told) = channel();
            d.call(u, move || tell.send(other.alloc(8 * MIB, s).is_ok()).unwrap());
            assert!(told.recv().unwrap(), "{options}");
        }
    });
}

/// The option that keeps large blocks whole would have kept one of the request's size.
#[test]
fn memory_that_small_requests_have_cut() {
    apart(|| {
        for (options, says) in [
            ("", "set max_split_size_mb"),
            ("max_split_size_mb:12", "lower max_split_size_mb (now 12.0 MiB)"),
            ("max_split_size_mb:8", "allocate large blocks first"),
        ] {
            let d = host(64 * MIB, false);
            d.set_options("large_segment_size_mb:64").unwrap();
            if !options.is_empty() {
                d.set_options(options).unwrap();
            }
            let (pool, s) = (d.pool(0), d.stream());
            let kept = holes(d, pool, s);
            let (_, r) = failure(d, pool.alloc(8 * MIB, s));
            assert_eq!(r.reason, MILLPOND_OOM_FRAGMENTED, "{options}");
            let text = words(&r);
            tells(&text, &["this device cannot map", says]);
            let says_it = ["or set max_split", "or lower max_split"].iter().any(|w| text.contains(w));
            assert_eq!(says_it, !options.ends_with(":8"), "{text}");
            kept.into_iter().for_each(|p| pool.free(p, s).unwrap());
        }
    });
}

/// What is left to others is there, and the request may not have it.
#[test]
fn memory_that_is_left_to_others() {
    apart(|| {
        for mapping in [true, false] {
            let d = host(64 * MIB, mapping);
            d.set_options("headroom_mb:32").unwrap();
            let (pool, s) = (d.pool(0), d.stream());
            let all = fill(pool, s, 2 * MIB);
            assert!((8..=16).contains(&all.len()), "{}", all.len());
            let (line, r) = failure(d, pool.alloc(16 * MIB, s));
            assert_eq!((r.reason, r.headroom_bytes), (MILLPOND_OOM_DEVICE_REFUSED, 32 << 20));
            tells(&line, &["headroom_mb"]);
            let text = words(&r);
            tells(&text, &["headroom_mb leaves 32.0 MiB of the device to others: lower it"]);
            assert!(!text.contains("other users of the device hold"), "{text}");
            d.set_options("headroom_mb:0").unwrap();
            let p = pool.alloc(16 * MIB, s).unwrap();
            pool.free(p, s).unwrap();
            all.into_iter().for_each(|p| pool.free(p, s).unwrap());
        }
    });
}
