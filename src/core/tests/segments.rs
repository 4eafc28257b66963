//! Segments as large as requests need them.

use super::*;

const MIB: u64 = 1 << 20;

fn bench(capacity: u64) -> Bench {
    Bench::new(Config { growing: true, init_alloc: 8 * MIB, realloc: 8 * MIB, ..config(false, capacity) })
}

fn reserved(b: &Bench) -> u64 {
    b.pond.stats(None).unwrap().reserved.current
}

/// Allocates, frees, and allocates less: what that takes from the device.
fn shrink(b: &mut Bench) {
    let i = b.alloc(PoolId::DEFAULT, Some(0), 40 * MIB).unwrap();
    b.free(i, None);
    b.alloc(PoolId::DEFAULT, Some(0), 30 * MIB).unwrap();
}

#[test]
fn a_whole_segment_is_cut_while_memory_is_plentiful() {
    let mut b = bench(1024 * MIB);
    shrink(&mut b);
    assert_eq!(reserved(&b), 40 * MIB);
    b.finish();
}

#[test]
fn a_whole_segment_goes_back_for_one_that_fits_while_memory_is_scarce() {
    let mut b = bench(64 * MIB);
    shrink(&mut b);
    assert_eq!(reserved(&b), 30 * MIB, "the segment of 40 MiB went back");
    // So there is room for what could not be had beside a cut segment.
    b.alloc(PoolId::DEFAULT, Some(0), 34 * MIB).unwrap();
    assert_eq!(reserved(&b), 64 * MIB);
    b.finish();
}

#[test]
fn a_whole_segment_is_cut_where_it_cannot_go_back() {
    let mut b = bench(64 * MIB);
    b.world.lock().unwrap().fail_release = true;
    shrink(&mut b);
    assert_eq!(reserved(&b), 40 * MIB);
    b.world.lock().unwrap().fail_release = false;
    b.finish();
}

#[test]
fn a_device_with_less_than_it_says_is_scarce_from_its_first_refusal() {
    let mut b = bench(1024 * MIB);
    b.world.lock().unwrap().capacity = 64 * MIB;
    let i = b.alloc(PoolId::DEFAULT, Some(0), 40 * MIB).unwrap();
    b.alloc(PoolId::DEFAULT, Some(0), 32 * MIB).unwrap_err();
    b.free(i, None);
    b.alloc(PoolId::DEFAULT, Some(0), 30 * MIB).unwrap();
    b.alloc(PoolId::DEFAULT, Some(0), 34 * MIB).expect("30 and 34 are 64");
    b.finish();
}

/// A program whose blocks grow by a little in each step, as key-value caches do, beside blocks that stay; the peak of
/// its live bytes.
fn growing(capacity: u64) -> Option<u64> {
    let mut b = bench(capacity);
    let (mut caches, mut peak) = ([None; 4], 0);
    for step in 0..40 {
        for (n, cache) in (0..).zip(&mut caches) {
            let bytes = (20 + step) * MIB / 4 + n * MIB / 16;
            let i = b.alloc(PoolId::DEFAULT, Some(0), bytes).ok()?;
            let before = cache.replace(b.live[i].offset);
            peak = peak.max(b.pond.stats(None).unwrap().allocated.current);
            if let Some(at) = before.and_then(|o| b.live.iter().position(|x| x.offset == o)) {
                b.free(at, None);
            }
        }
        if step % 8 == 0 {
            b.alloc(PoolId::DEFAULT, Some(0), 3 * MIB / 2).ok()?;
        }
    }
    b.finish();
    Some(peak)
}

#[test]
fn growing_blocks_fit_into_little_more_than_they_need() {
    let peak = growing(1 << 30).unwrap();
    growing(peak + peak / 20).expect("a twentieth more than it needs is enough");
}
