//! Many blocks, and a large device: what the tables of a pond can hold. Each test stands for a device that maps and for
//! one that gives segments, so that the two run beside each other.

use super::*;

const TIB: u64 = 1 << 40;

/// A device that gives everything and remembers nothing.
struct Generous;
runs_nothing!(Generous);

fn pond(mapping: bool, capacity: u64) -> Pond {
    let config =
        Config { growing: true, init_alloc: 64 << 20, realloc: 64 << 20, ..config(mapping, capacity) };
    Pond::new(config, Arc::new(Generous)).unwrap()
}

fn ten_million_live_blocks(mapping: bool) {
    let count = part_of(10_000_000);
    let pond = pond(mapping, 80 << 30);
    let bytes = |i: usize| [1, 512, 513, 1000, 4096][i % 5];
    let mut blocks: Vec<u64> =
        (0..count).map(|i| pond.alloc(PoolId::DEFAULT, 1, bytes(i)).unwrap()).collect();
    assert_eq!(pond.stats(None).unwrap().blocks.current, count as u64);
    // Every second one goes, and comes back elsewhere or not; no two may share their start.
    for i in (0..count).step_by(2) {
        pond.free(blocks[i], Some(1), None).unwrap();
    }
    for i in (0..count).step_by(2) {
        blocks[i] = pond.alloc(PoolId::DEFAULT, 1, bytes(i + 1)).unwrap();
    }
    let asked: u64 = (0..count).map(|i| bytes(i + (i + 1) % 2)).sum();
    assert_eq!(pond.stats(None).unwrap().requested.current, asked);
    let mut sorted = blocks.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), count, "{mapping}: two live blocks at one place");
    blocks.into_iter().for_each(|b| pond.free(b, Some(1), None).unwrap());
    pond.empty_cache(None).unwrap();
    let s = pond.stats(None).unwrap();
    assert_eq!((s.blocks.current, s.reserved.current), (0, 0));
}

#[test]
fn ten_million_live_blocks_on_a_mapping_device() {
    ten_million_live_blocks(true);
}

#[test]
fn ten_million_live_blocks_in_segments() {
    ten_million_live_blocks(false);
}

fn a_device_of_two_tebibytes(mapping: bool) {
    let pond = pond(mapping, 2 * TIB);
    let get = |bytes| pond.alloc(PoolId::DEFAULT, 1, bytes);
    // As a whole, in halves, and with what is left beside the largest blocks.
    let all = get(2 * TIB).unwrap();
    // As copies ask, one part after the other: each in a few steps, or this would take days.
    for inside in (0..2 * TIB).step_by(2 << 20) {
        assert_eq!(pond.block(all + inside + (1 << 20)).unwrap().base, all);
    }
    assert_eq!(pond.block(all + 2 * TIB - 1).unwrap().base, all);
    assert_eq!(get(1).unwrap_err().code(), Code::OutOfMemory);
    pond.free(all, Some(1), None).unwrap();
    assert_eq!(get(2 * TIB + 1).unwrap_err().code(), Code::OutOfMemory);
    let blocks: Vec<u64> = [TIB, TIB / 2, TIB / 4, (100 << 30) + 1, 3 << 20, 512, 1]
        .into_iter()
        .map(|n| get(n).unwrap())
        .collect();
    for &b in &blocks {
        assert_eq!(pond.block(b).unwrap().base, b);
    }
    blocks.iter().for_each(|&b| pond.free(b, Some(1), None).unwrap());
    // Granules by the million, as weights and activations take them; then one block over all their holes.
    let some: Vec<u64> = (0..40_000).map(|_| get(24 << 20).unwrap()).collect();
    some.iter().step_by(2).for_each(|&b| pond.free(b, Some(1), None).unwrap());
    assert_eq!(pond.stats(None).unwrap().allocated.current, 20_000 * (24 << 20));
    if mapping {
        let wide = get(TIB).unwrap();
        pond.free(wide, Some(1), None).unwrap();
    }
    some.iter().skip(1).step_by(2).for_each(|&b| pond.free(b, Some(1), None).unwrap());
    pond.empty_cache(None).unwrap();
    assert_eq!(pond.stats(None).unwrap().reserved.current, 0);
    pond.ground().check();
}

#[test]
fn a_device_of_two_tebibytes_on_a_mapping_device() {
    a_device_of_two_tebibytes(true);
}

#[test]
fn a_device_of_two_tebibytes_in_segments() {
    a_device_of_two_tebibytes(false);
}

fn a_device_can_be_full_of_blocks_of_one_size(mapping: bool) {
    for bytes in [512, 4096, 8192, 32 << 10, 64 << 10] {
        let capacity = part_of(512 << 20) as u64;
        let pond = pond(mapping, capacity);
        let mut blocks = Vec::new();
        while let Ok(b) = pond.alloc(PoolId::DEFAULT, 1, bytes) {
            blocks.push(b);
        }
        assert_eq!(blocks.len() as u64 * bytes, capacity, "{mapping}: blocks of {bytes} bytes");
        blocks.into_iter().for_each(|b| pond.free(b, Some(1), None).unwrap());
    }
}

#[test]
fn a_device_can_be_full_of_blocks_of_one_size_on_a_mapping_device() {
    a_device_can_be_full_of_blocks_of_one_size(true);
}

#[test]
fn a_device_can_be_full_of_blocks_of_one_size_in_segments() {
    a_device_can_be_full_of_blocks_of_one_size(false);
}
