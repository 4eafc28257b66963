//! Why a request found no memory, where only the pond itself can bring it about.

use super::super::report::OomReason;
use super::*;

#[test]
fn a_pond_that_cannot_count_more_blocks_says_so() {
    for mapping in [true, false] {
        let mut b = Bench::new(Config { most_blocks: 3000, ..config(mapping, 64 << 20) });
        let e = loop {
            if let Err(e) = b.alloc(PoolId::DEFAULT, Some(1), 512) {
                break e;
            }
        };
        let r = b.pond.explain(PoolId::DEFAULT, Some(1), 512);
        assert_eq!(r.reason, OomReason::Bookkeeping, "{e}");
        assert!(r.line().contains("keep track of more"), "{}", r.line());
        let s = b.pond.stats(None).unwrap();
        assert_eq!((r.live, r.reserved), (s.allocated.current, s.reserved.current));
        assert!(r.advice()[0].contains("fewer blocks"));
    }
}

#[test]
fn a_request_that_no_address_space_holds_is_larger_than_the_device() {
    for mapping in [true, false] {
        let mut b = Bench::new(config(mapping, 64 << 20));
        for bytes in [u64::MAX, u64::MAX - 511, 1 << 63] {
            let e = b.alloc(PoolId::DEFAULT, Some(1), bytes).unwrap_err();
            let r = b.pond.explain(PoolId::DEFAULT, Some(1), bytes);
            assert_eq!(
                (e.code(), r.reason),
                (Code::OutOfMemory, OomReason::LargerThanDevice),
                "{bytes}: {e}"
            );
        }
        b.finish();
    }
}
