//! Very large devices and blocks: what is reserved and charged is what was asked for, at every size up to the whole
//! device.

use crate::apart::*;
use crate::api::*;
use crate::counted::Counted;
use millpond::capi::*;
use std::ffi::CString;
use std::ptr::null_mut;

/// Requested, allocated, active and reserved bytes, and blocks, now.
fn sums(s: &millpond_stats) -> [u64; 5] {
    [s.requested_bytes, s.allocated_bytes, s.active_bytes, s.reserved_bytes, s.blocks].map(|c| c.current)
}

/// A block of this size on a device that maps: all of it is reserved, in the account of the device and of its pool;
/// nothing that another block lies in; and it all goes back.
fn one_block(d: Device, bytes: usize) {
    let pool = d.default_pool();
    let p = pool.alloc(bytes, NULL).unwrap();
    let n = bytes as u64;
    for s in [d.stats(), pool.stats()] {
        assert_eq!(sums(&s), [n, n, n, n, 1], "{bytes} bytes");
    }
    assert_eq!(block(p + bytes - 1).unwrap(), (p, bytes), "its last byte");
    assert!(block(p + bytes).is_err(), "the byte behind it");
    pool.free(p, NULL).unwrap();
    d.empty_cache().unwrap();
    for s in [d.stats(), pool.stats()] {
        assert_eq!(sums(&s), [0; 5], "{bytes} bytes, freed");
    }
}

fn whole_and_parts(d: Device, capacity: usize) {
    for bytes in [capacity / 2, capacity - 4 * MIB, capacity - 2 * MIB, capacity] {
        one_block(d, bytes);
    }
    assert_eq!(code(d.alloc(capacity + 1)), MILLPOND_E_OUT_OF_MEMORY);
    assert_eq!(code(d.alloc(usize::MAX)), MILLPOND_E_OUT_OF_MEMORY);
    // Two halves are the whole, and then there is no more.
    let halves: Vec<usize> = (0..2).map(|_| d.alloc(capacity / 2).unwrap()).collect();
    assert!(!overlap((halves[0], capacity / 2), (halves[1], capacity / 2)));
    assert_eq!(d.stats().reserved_bytes.current, capacity as u64);
    assert_eq!(code(d.alloc(1)), MILLPOND_E_OUT_OF_MEMORY);
    halves.iter().for_each(|&p| free(p).unwrap());
}

/// A device of 8 TiB that maps, all of it in one block.
#[test]
fn all_of_a_device_of_8_tib() {
    apart(|| whole_and_parts(Counted::mapped(8 * TIB).open(), 8 * TIB));
}

/// A device of 16 TiB that maps.
#[test]
fn all_of_a_device_of_16_tib() {
    apart(|| whole_and_parts(Counted::mapped(16 * TIB).open(), 16 * TIB));
}

/// A device of 24 TiB that maps: sizes around 16 TiB, and all of it.
#[test]
fn all_of_a_device_of_24_tib() {
    apart(|| {
        let d = Counted::mapped(24 * TIB).open();
        for bytes in [16 * TIB - 2 * MIB, 16 * TIB, 16 * TIB + 2 * MIB, 20 * TIB] {
            one_block(d, bytes);
        }
        whole_and_parts(d, 24 * TIB);
    });
}

/// A device of 40 TiB that maps.
#[test]
fn all_of_a_device_of_40_tib() {
    apart(|| whole_and_parts(Counted::mapped(40 * TIB).open(), 40 * TIB));
}

/// Devices that give segments, each block a segment of its own.
#[test]
fn all_of_a_device_of_16_tib_in_segments() {
    apart(|| {
        let how = Counted { max_chunk: 64 * MIB as u64, ..Counted::in_segments(16 * TIB, 64 * MIB) };
        whole_and_parts(how.open(), 16 * TIB);
    });
}

/// The same with 40 TiB.
#[test]
fn all_of_a_device_of_40_tib_in_segments() {
    apart(|| {
        let how = Counted { max_chunk: 64 * MIB as u64, ..Counted::in_segments(40 * TIB, 64 * MIB) };
        whole_and_parts(how.open(), 40 * TIB);
    });
}

/// A device that gives all of itself as one segment.
#[test]
fn all_of_a_device_of_16_tib_in_one_segment() {
    apart(|| {
        let d = Counted::in_segments(16 * TIB, 16 * TIB).open();
        one_block(d, 16 * TIB);
        let halves = [(); 2].map(|()| d.alloc(8 * TIB).unwrap());
        assert!(!overlap((halves[0], 8 * TIB), (halves[1], 8 * TIB)));
        assert_eq!(code(d.alloc(1)), MILLPOND_E_OUT_OF_MEMORY);
    });
}

/// A request that rounding raises to the next part of a power of two (an option) is served, and charged as served.
#[test]
fn rounded_sizes_near_the_end_of_a_device_of_16_tib() {
    apart(|| {
        let d = Counted::mapped(16 * TIB).open();
        d.set_options("roundup_power2_divisions:4").unwrap();
        let pool = d.default_pool();
        let p = pool.alloc(15 * TIB, NULL).unwrap();
        assert_eq!(sums(&d.stats()), [15, 16, 16, 16, 0].map(|n| n * TIB as u64 + u64::from(n == 0)));
        pool.free(p, NULL).unwrap();
        d.empty_cache().unwrap();
        assert_eq!(sums(&d.stats()), [0; 5]);
    });
}

/// What the message about a wrong capacity of the host device names as the most can be had, all of it in one block.
#[test]
fn the_largest_host_device_that_a_message_names_can_be_had() {
    apart_with(&[("MILLPOND_HOST_CAPACITY", "1")], || {
        let refused = Device::get("host", 0).unwrap_err();
        let most = most_of(&refused.message);
        // What the program sets itself does not need the variable.
        let wrong = configure(4 * most as u64).unwrap_err();
        assert_eq!(most_of(&wrong.message), most, "two messages: {:?}, {:?}", wrong.message, refused.message);
        configure(most as u64).unwrap();
        let d = Device::get("host", 0).unwrap();
        whole_and_parts(d, most);
    });
}

/// [B] from "... 2 MiB to 64 TiB ...".
fn most_of(message: &str) -> usize {
    let words: Vec<&str> = message.split_whitespace().collect();
    let at = words.iter().position(|w| w.starts_with("TiB")).unwrap_or_else(|| panic!("{message}"));
    words[at - 1].parse::<usize>().unwrap() * TIB
}

fn configure(bytes: u64) -> Outcome<()> {
    let options = millpond_host_options {
        struct_size: size_of::<millpond_host_options>(),
        device_count: 1,
        capacity_bytes: bytes,
        disable_mapping: 0,
    };
    outcome(unsafe { millpond_host_configure(&options) })?;
    let name = CString::new("host").unwrap();
    let mut count = 0;
    outcome(unsafe { millpond_device_get_count(name.as_ptr(), &mut count) })
}

/// Blocks of all sizes with this alignment, with and without a stream: each grows to its usable size, and no further.
fn grow_to_their_usable_size(d: Device, s: Stream, alignment: usize) {
    const SIZES: [usize; 14] = [
        1,
        400,
        512,
        1000,
        4000,
        4096,
        5000,
        50_000,
        61_000,
        61_440,
        100_000,
        MIB,
        5 * MIB - 3,
        40 * MIB + 7,
    ];
    let pool = ptr(d.default_pool().0);
    for (bytes, ordered) in SIZES.into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let (mut p, mut usable) = (null_mut(), 0);
        let got = match ordered {
            true => unsafe { millpond_pool_alloc_aligned(pool, bytes, alignment, ptr(s.0), &mut p) },
            false => unsafe { millpond_pool_alloc_unordered_aligned(pool, bytes, alignment, &mut p) },
        };
        match outcome(got) {
            Err(e) if alignment > 1 => assert_eq!(e.code, MILLPOND_E_UNSUPPORTED, "{}", e.message),
            got => {
                got.unwrap();
                outcome(unsafe { millpond_get_usable_size(p, &mut usable) }).unwrap();
                assert!(usable >= bytes);
                outcome(unsafe { millpond_try_expand(p, usable) }).unwrap();
                let before = usable;
                outcome(unsafe { millpond_get_usable_size(p, &mut usable) }).unwrap();
                assert_eq!(usable, before);
                free(p.expose_provenance()).unwrap();
            }
        }
    }
}

/// What a device has of each block for itself is not the caller's.
#[test]
fn the_usable_size_is_there_beside_padding() {
    apart(|| {
        for padding in [0, 1, 100, 512, 4096] {
            let mapped = Counted { padding, ..Counted::mapped(GIB) };
            let in_segments = Counted { max_chunk: 32 * MIB as u64, ..Counted::in_segments(GIB, 64 * MIB) };
            let unpooled = Counted { min_chunk: 1536, ..mapped };
            for how in [mapped, Counted { padding, ..in_segments }, unpooled] {
                let d = how.open();
                let s = d.stream();
                for options in
                    ["roundup_power2_divisions:0", "roundup_power2_divisions:2", "max_split_size_mb:20"]
                {
                    if how.min_chunk.is_power_of_two() {
                        d.set_options(options).unwrap();
                    }
                    [1, 4096, 2 * MIB].into_iter().for_each(|to| grow_to_their_usable_size(d, s, to));
                }
            }
        }
    });
}
