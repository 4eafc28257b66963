//! Granules and the window: aliases, contents, memory that goes back, and every refusal.

#![cfg(target_os = "linux")]

use super::*;

#[test]
fn one_granule_at_two_addresses_is_one_memory() {
    let (_host, a, _) = host();
    let window = a.mapping().unwrap().open_window(16 * GRANULE).unwrap();
    assert_eq!(window % GRANULE, 0);
    a.mapping().unwrap().create(3, 2).unwrap();
    a.mapping().unwrap().map(0, 3, 2).unwrap();
    a.mapping().unwrap().map(8 * GRANULE, 3, 1).unwrap();
    let (first, alias) = (bytes(window, 16), window + 8 * GRANULE);
    first.copy_from_slice(b"sixteen bytes ..");
    assert_eq!(bytes(alias, 16), b"sixteen bytes ..");
    bytes(alias, 3).copy_from_slice(b"SIX");
    assert_eq!(bytes(window, 16), b"SIXteen bytes ..");
    assert_eq!(bytes(window + GRANULE, 1), [0], "the neighbour is another granule");
    // Moved to a third place, it is still the same memory.
    a.mapping().unwrap().unmap(0, 2 * GRANULE).unwrap();
    a.mapping().unwrap().unmap(8 * GRANULE, GRANULE).unwrap();
    a.mapping().unwrap().map(15 * GRANULE, 3, 1).unwrap();
    assert_eq!(bytes(window + 15 * GRANULE, 16), b"SIXteen bytes ..");
}

#[test]
fn released_memory_goes_back_to_the_system_and_reads_as_zero() {
    let (host, a, _) = host();
    let committed = || host.stats(0).unwrap().committed_bytes;
    let window = a.mapping().unwrap().open_window(32 * GRANULE).unwrap();
    a.mapping().unwrap().create(0, 8).unwrap();
    a.mapping().unwrap().map(0, 0, 8).unwrap();
    assert_eq!(committed(), 0, "nothing is committed before it is touched");
    bytes(window, 16 << 20).fill(0xab);
    assert_eq!(committed(), 16 * MIB);
    a.mapping().unwrap().unmap(2 * GRANULE, 3 * GRANULE).unwrap();
    a.mapping().unwrap().release(2, 3).unwrap();
    assert_eq!(committed(), 10 * MIB);
    assert_eq!(a.memory_info().unwrap().free, 246 * MIB);
    a.mapping().unwrap().create(2, 3).unwrap();
    a.mapping().unwrap().map(2 * GRANULE, 2, 3).unwrap();
    assert!(bytes(window + 2 * GRANULE, 6 << 20).iter().all(|b| *b == 0));
    assert_eq!(bytes(window, 1), [0xab]);
    a.mapping().unwrap().close_window().unwrap();
    assert_eq!((committed(), a.memory_info().unwrap().free), (0, 256 * MIB));
    // A new window starts from nothing.
    a.mapping().unwrap().open_window(GRANULE).unwrap();
    a.mapping().unwrap().create(0, 1).unwrap();
}

#[test]
fn addresses_without_a_granule_are_reserved_but_bare() {
    let (_host, a, _) = host();
    let window = a.mapping().unwrap().open_window(4 * GRANULE).unwrap();
    a.mapping().unwrap().create(0, 1).unwrap();
    a.mapping().unwrap().map(GRANULE, 0, 1).unwrap();
    let access = |addr: u64| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let found = maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ').unwrap();
            let (from, to) = range.split_once('-').unwrap();
            let parse = |text| u64::from_str_radix(text, 16).unwrap();
            (parse(from) <= addr && addr < parse(to)).then(|| rest[..4].to_owned())
        });
        found.unwrap_or_default()
    };
    assert_eq!(access(window), "---p");
    assert_eq!(access(window + GRANULE), "rw-s");
    a.mapping().unwrap().unmap(GRANULE, GRANULE).unwrap();
    assert_eq!(access(window + GRANULE), "---p");
    a.mapping().unwrap().close_window().unwrap();
    assert_ne!(access(window), "---p");
}

#[test]
fn closing_the_window_waits_for_work_that_uses_it() {
    let (_host, a, b) = host();
    let far = b.streams().create().unwrap();
    let window = a.mapping().unwrap().open_window(GRANULE).unwrap();
    a.mapping().unwrap().create(0, 1).unwrap();
    a.mapping().unwrap().map(0, 0, 1).unwrap();
    let plug = Plug::new(&*b, far);
    let source = b.alloc(4096).unwrap();
    b.peers().unwrap().copy_async(far, &*a, window, source, 4096).unwrap();
    // Were the window gone before, the copy behind this would end the process.
    let notes = Notes::default();
    notes.add(&*b, far, 1, 0);
    let closer = std::thread::spawn(move || a.mapping().unwrap().close_window());
    std::thread::sleep(Duration::from_millis(20));
    assert!(!closer.is_finished());
    plug.open();
    closer.join().unwrap().unwrap();
    assert_eq!(notes.read(), [1]);
}

#[test]
fn bad_granules_are_refused_and_nothing_is_half_done() {
    let (_host, a, _) = host(); // 128 granules
    let bad = Code::InvalidArgument;
    refused(a.mapping().unwrap().create(0, 0), bad);
    refused(a.mapping().unwrap().create(a.mapping().unwrap().numbers() - 1, 2), Code::OutOfRange);
    refused(a.mapping().unwrap().create(u64::MAX, 2), Code::OutOfRange);
    a.mapping().unwrap().create(4, 2).unwrap();
    refused(a.mapping().unwrap().create(4, 1), bad);
    refused(a.mapping().unwrap().create(2, 3), bad);
    assert_eq!(a.memory_info().unwrap().free, 252 * MIB);
    a.mapping().unwrap().create(2, 2).unwrap(); // 2 and 3 were left alone
    refused(a.mapping().unwrap().release(1, 2), bad);
    refused(a.mapping().unwrap().release(5, 2), bad);
    refused(a.mapping().unwrap().release(a.mapping().unwrap().numbers(), 1), Code::OutOfRange);
    assert_eq!(a.memory_info().unwrap().free, 248 * MIB);
    a.mapping().unwrap().release(2, 4).unwrap();
    refused(a.mapping().unwrap().release(2, 1), bad);
    assert_eq!(a.memory_info().unwrap().free, 256 * MIB);
}

#[test]
fn bad_maps_are_refused_and_nothing_is_half_done() {
    let (_host, a, _) = host();
    let bad = Code::InvalidArgument;
    a.mapping().unwrap().create(0, 4).unwrap();
    refused(a.mapping().unwrap().map(0, 0, 1), bad); // no window
    refused(a.mapping().unwrap().open_window(0), bad);
    refused(a.mapping().unwrap().open_window(GRANULE + 4096), bad);
    let window = a.mapping().unwrap().open_window(8 * GRANULE).unwrap();
    refused(a.mapping().unwrap().open_window(8 * GRANULE), Code::Busy);
    refused(a.mapping().unwrap().map(4096, 0, 1), bad);
    refused(a.mapping().unwrap().map(0, 0, 0), bad);
    refused(a.mapping().unwrap().map(0, 3, 2), bad); // 4 does not exist
    refused(a.mapping().unwrap().map(7 * GRANULE, 0, 2), Code::OutOfRange);
    refused(a.mapping().unwrap().map(u64::MAX - GRANULE + 1, 0, 2), Code::OutOfRange);
    a.mapping().unwrap().map(2 * GRANULE, 0, 1).unwrap();
    refused(a.mapping().unwrap().map(GRANULE, 1, 3), Code::Busy); // its middle is taken
    refused(a.mapping().unwrap().release(0, 2), Code::Busy);
    refused(a.mapping().unwrap().unmap(GRANULE, 2 * GRANULE), bad);
    refused(a.mapping().unwrap().unmap(2 * GRANULE, 0), bad);
    refused(a.mapping().unwrap().unmap(2 * GRANULE, 4096), bad);
    refused(a.mapping().unwrap().unmap(2 * GRANULE, 7 * GRANULE), Code::OutOfRange);
    bytes(window + 2 * GRANULE, 1)[0] = 5;
    a.mapping().unwrap().map(3 * GRANULE, 0, 1).unwrap();
    a.mapping().unwrap().unmap(2 * GRANULE, GRANULE).unwrap();
    refused(a.mapping().unwrap().release(0, 1), Code::Busy); // the alias still shows it
    assert_eq!(bytes(window + 3 * GRANULE, 1), [5]);
    a.mapping().unwrap().unmap(3 * GRANULE, GRANULE).unwrap();
    a.mapping().unwrap().release(0, 4).unwrap();
}

#[test]
fn many_threads_map_their_own_parts() {
    let (host, a, _) = host();
    let window = a.mapping().unwrap().open_window(128 * GRANULE).unwrap();
    std::thread::scope(|scope| {
        for t in 0..8u64 {
            let a = &a;
            scope.spawn(move || {
                let (first, mine) = (t * 16, window + t * 16 * GRANULE);
                for round in 0..50u64 {
                    let count = 1 + (round * 7 + t) % 16;
                    a.mapping().unwrap().create(first, count).unwrap();
                    a.mapping().unwrap().map(first * GRANULE, first, count).unwrap();
                    for g in 0..count {
                        let word = bytes(mine + g * GRANULE, 8);
                        assert_eq!(word, [0; 8]);
                        word.copy_from_slice(&(t << 32 | round << 8 | g).to_ne_bytes());
                    }
                    for g in 0..count {
                        let word = bytes(mine + g * GRANULE, 8);
                        assert_eq!(word, (t << 32 | round << 8 | g).to_ne_bytes());
                    }
                    a.mapping().unwrap().unmap(first * GRANULE, count * GRANULE).unwrap();
                    a.mapping().unwrap().release(first, count).unwrap();
                }
            });
        }
    });
    assert_eq!(host.stats(0).unwrap().committed_bytes, 0);
    assert_eq!(a.memory_info().unwrap().free, 256 * MIB);
}
