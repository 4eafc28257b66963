//! Blocks whose memory lies apart: whole granules, and the free ends of granules that others use too.

use super::*;

/// Halves of granules: `l` live, `f` freed afterwards; `L` and `F` for blocks of a whole granule. In pool `p`, on a
/// device of just that size.
fn halves(b: &mut Bench, p: PoolId, what: &str) {
    let mut freed = Vec::new();
    for (n, c) in what.chars().enumerate() {
        b.alloc(p, Some(0), if c.is_uppercase() { G } else { G / 2 }).unwrap();
        if c.eq_ignore_ascii_case(&'f') {
            freed.push(b.live[n].offset);
        }
    }
    for offset in freed {
        let at = b.live.iter().position(|x| x.offset == offset).unwrap();
        b.free(at, None);
    }
}

/// A device of so many granules and no spare numbers: the addresses of scattered blocks follow at once.
fn device(granules: u64) -> Config {
    Config {
        max_alloc: granules * G,
        max_chunk: granules * G,
        numbers: granules,
        ..config(true, granules * G)
    }
}

#[test]
fn scattered_granules_serve_a_block_that_no_hole_could() {
    let mut b = Bench::new(config(true, 32 << 20));
    halves(&mut b, PoolId::DEFAULT, &"LF".repeat(8));
    let i = b.alloc(PoolId::DEFAULT, Some(0), 16 << 20).expect("8 scattered granules are enough");
    assert!(b.live[i].offset >= 64 << 20, "it lies in the alias window");
    let calls = b.world.lock().unwrap().calls;
    let at = b.live[i].offset;
    b.free(i, None);
    b.pond.free(at, None, None).expect_err("it was freed");
    let a = b.alloc(PoolId::DEFAULT, Some(0), G).unwrap(); // pulls the scattered block apart
    b.free(a, None);
    let i = b.alloc(PoolId::DEFAULT, Some(0), 16 << 20).unwrap();
    assert_eq!(b.live[i].offset, at, "the same granules show at the same addresses");
    assert_eq!(b.world.lock().unwrap().calls, calls, "and at no cost");
    assert_eq!(b.pond.alloc(PoolId::DEFAULT, 0, 1).unwrap_err().code(), Code::OutOfMemory);
    b.finish();
}

/// Where in its first granule a block begins and where in its last it ends may differ each time: a range of addresses
/// serves blocks of other sizes without a call to the device.
#[test]
fn a_range_serves_blocks_that_begin_and_end_elsewhere() {
    const KIB: u64 = 1 << 10;
    // From a whole granule on, or from the free half of one whose start is used.
    for (what, bytes, from_half) in
        [("LFLFLFLFL", 3 * G + G / 2, false), ("lfLFLFLFL", 3 * G + 100 * KIB, true)]
    {
        let mut b = Bench::new(device(40));
        let p = b.pond.pool_create(0, false).unwrap();
        halves(&mut b, p, what);
        let i = b.alloc(p, Some(0), bytes).unwrap();
        let (at, calls) = (b.live[i].offset, b.world.lock().unwrap().calls);
        let saved = b.checkpoint(p);
        b.free(i, None);
        for more in [16, 200, 496, 900, 64].map(|kib| kib * KIB) {
            let i = b.alloc(p, Some(0), 3 * G + more).unwrap();
            let offset = b.live[i].offset;
            assert_eq!(offset / G, at / G, "{more} B more, in {what}");
            assert!(!from_half || offset % G >= G / 2, "at {offset:#x}");
            assert_eq!(b.pond.block(offset + 3 * G + more - 1).unwrap().base, offset);
            b.pond.ground().check();
            b.free(i, None);
            b.pond.free(offset, None, None).expect_err("it was freed");
        }
        // As it was, though others have begun elsewhere since.
        b.try_restore(&saved).unwrap();
        assert_eq!(b.pond.block(at + 3 * G).unwrap().base, at);
        assert_eq!(b.world.lock().unwrap().calls, calls, "no call to the device, in {what}");
        b.pond.checkpoints().destroy(saved.id).unwrap();
        b.finish();
    }
}

/// While most of a device is free, a block is not put together from more pieces than it needs; near the end, the
/// smallest pieces are used up first.
#[test]
fn a_block_lies_in_few_pieces_while_memory_is_plentiful() {
    for (granules, calls) in [(64, 2), (30, 6)] {
        let mut b = Bench::new(config(true, granules * G));
        halves(&mut b, PoolId::DEFAULT, &("LF".repeat(6) + "LFFFLFFFF" + "L"));
        assert_eq!(b.world.lock().unwrap().taken, 22 * G);
        let before = b.world.lock().unwrap().calls;
        b.alloc(PoolId::DEFAULT, Some(0), 6 * G).unwrap();
        assert_eq!(b.world.lock().unwrap().calls - before, calls, "on a device of {granules} granules");
        assert_eq!(b.world.lock().unwrap().taken, 22 * G);
        b.finish();
    }
}

/// Ranges that show freed blocks give way to a block that is asked for, the ones used last too.
#[test]
fn idle_ranges_never_stand_in_the_way_of_a_block() {
    let mut b = Bench::new(Config { most_pieces: 8, ..config(true, 32 << 20) });
    halves(&mut b, PoolId::DEFAULT, &"LF".repeat(8));
    // Two, two and four pieces of eight scattered granules, the four last.
    for granules in [2, 2, 4] {
        b.alloc(PoolId::DEFAULT, Some(0), granules * G).unwrap();
    }
    for _ in 0..3 {
        let small = b.live.iter().position(|x| x.bytes > G).unwrap();
        b.free(small, None);
    }
    b.alloc(PoolId::DEFAULT, Some(0), 7 * G).expect("8 scattered granules are enough");
    b.finish();
}

#[test]
fn a_block_begins_and_ends_in_granules_that_others_use() {
    let mut b = Bench::new(device(5));
    let p = b.pond.pool_create(0, false).unwrap();
    halves(&mut b, p, "lfLflFL");
    let window = 5 * G;
    for (granules, parts) in [(1, 2), (2, 3)] {
        let bytes = granules * G;
        if granules == 1 {
            b.alloc(p, Some(0), G).unwrap(); // the whole granule that is free
        }
        let i = b.alloc(p, Some(0), bytes).expect("the free halves serve it");
        let at = b.live[i].offset;
        assert!(at >= window && at % G == G / 2, "at {at:#x}");
        assert_eq!(b.live[i].ranges.len(), parts);
        for inside in [0, 1, G / 2 - 1, G / 2, bytes - 1] {
            assert_eq!(b.pond.block(at + inside).unwrap().base, at, "{inside} bytes into it");
        }
        for outside in [at - 1, at - G / 2, at + 1, at + G / 2, at + bytes] {
            assert_eq!(b.pond.free(outside, None, None).unwrap_err().code(), Code::UnknownPointer);
        }
        assert_eq!(b.pond.block(at - 1).unwrap_err().code(), Code::UnknownPointer);
        let pieces = b.pond.exports().pieces(at).unwrap();
        assert_eq!((pieces.skip, pieces.bytes), (G / 2, bytes));
        assert_eq!(pieces.granules.iter().map(|g| u64::from(g.count)).sum::<u64>(), granules + 1);
        b.pond.ground().check();
        b.free(i, None);
        if granules == 1 {
            b.free(b.live.iter().position(|x| x.offset == 3 * G).unwrap(), None);
        }
    }
    b.finish();
}

#[test]
fn such_a_block_comes_back_at_its_address() {
    let mut b = Bench::new(device(5));
    let p = b.pond.pool_create(0, false).unwrap();
    halves(&mut b, p, "lfLflFL");
    let i = b.alloc(p, Some(0), 2 * G).unwrap();
    let at = b.live[i].offset;
    let saved = b.checkpoint(p);
    b.sleep(p, true, true);
    b.wake(p);
    assert!(!b.pond.sleep().is_on(p));
    let calls = b.world.lock().unwrap().calls;
    b.free(i, None);
    let again = b.alloc(p, Some(0), 2 * G).unwrap();
    assert_eq!(b.live[again].offset, at, "what was shown is found again");
    b.free(again, None);
    for _ in 0..2 {
        b.alloc(p, Some(0), G / 2).unwrap(); // breaks what it lay in
    }
    b.try_restore(&saved).unwrap();
    assert_eq!(b.pond.block(at + G).unwrap().base, at);
    assert_eq!(b.world.lock().unwrap().calls, calls, "no driver call");
    b.pond.checkpoints().destroy(saved.id).unwrap();
    b.finish();
}

#[test]
fn where_memory_is_scarce_parts_of_granules_are_used_up_first() {
    let place = |scarce: bool| {
        let mut b = Bench::new(if scarce { device(9) } else { device(90) });
        halves(&mut b, PoolId::DEFAULT, "lfLflFFFFFF");
        // What is scarce is asked when the heap runs out.
        assert_eq!(b.alloc(PoolId::DEFAULT, Some(0), 9 * G).is_ok(), !scarce);
        let i = b.alloc(PoolId::DEFAULT, Some(0), G + G / 4).unwrap();
        let scattered = b.live[i].offset >= if scarce { 9 * G } else { 90 * G };
        b.alloc(PoolId::DEFAULT, Some(0), G + G / 2).unwrap();
        // As many whole granules as ever are left, where the halves were used.
        let left = (0..9).take_while(|_| b.alloc(PoolId::DEFAULT, Some(0), G).is_ok()).count();
        b.finish();
        (scattered, left)
    };
    assert_eq!(place(true), (true, 4));
    assert!(!place(false).0, "it costs driver calls, and there is memory enough");
}
