//! Plain, unified and pinned blocks; the capacity that they count against.

use super::*;
use crate::device::HostWish;

#[test]
fn blocks_are_aligned_zeroed_and_counted() {
    for mapping in [true, false] {
        let (_host, a, b) = host_with(64 * MIB, mapping);
        let (small, big) = (a.alloc(512).unwrap(), a.alloc(3 * MIB).unwrap());
        assert_eq!((small % 4096, big % GRANULE), (0, 0));
        assert!(bytes(small, 512).iter().chain(bytes(big, 3 << 20).iter()).all(|b| *b == 0));
        bytes(big, 3 << 20).fill(7);
        let info = a.memory_info().unwrap();
        assert_eq!((info.total, info.free), (64 * MIB, 61 * MIB - 512));
        assert_eq!(b.memory_info().unwrap().free, 64 * MIB);
        a.free(big, 3 * MIB).unwrap();
        a.free(small, 512).unwrap();
        assert_eq!(a.memory_info().unwrap().free, 64 * MIB);
    }
}

#[test]
fn the_capacity_holds_for_plain_unified_and_granules_together() {
    let (_host, a, b) = host_with(8 * MIB, cfg!(target_os = "linux"));
    let plain = a.alloc(4 * MIB).unwrap();
    let unified = a.unified().unwrap().alloc(MIB).unwrap();
    refused(a.alloc(3 * MIB + 512), Code::OutOfMemory);
    refused(a.unified().unwrap().alloc(4 * MIB), Code::OutOfMemory);
    refused(a.alloc(u64::MAX - 511), Code::OutOfMemory);
    if cfg!(target_os = "linux") {
        a.mapping().unwrap().create(0, 1).unwrap();
        refused(a.mapping().unwrap().create(1, 1), Code::OutOfMemory);
        assert_eq!(a.memory_info().unwrap().free, MIB);
        a.mapping().unwrap().release(0, 1).unwrap();
    }
    assert_eq!(a.memory_info().unwrap().free, 3 * MIB);
    let rest = a.alloc(3 * MIB).unwrap();
    assert_eq!(a.memory_info().unwrap().free, 0);
    refused(a.alloc(512), Code::OutOfMemory);
    b.free(b.alloc(8 * MIB).unwrap(), 8 * MIB).unwrap();
    a.free(plain, 4 * MIB).unwrap();
    a.unified().unwrap().free(unified, MIB).unwrap();
    a.free(rest, 3 * MIB).unwrap();
    assert_eq!(a.memory_info().unwrap().free, 8 * MIB);
}

#[test]
fn bad_sizes_and_bad_frees_are_errors_and_change_nothing() {
    let (_host, a, b) = host();
    refused(a.alloc(0), Code::InvalidArgument);
    refused(a.alloc(1000), Code::InvalidArgument);
    refused(a.host_alloc(0, PLAIN), Code::InvalidArgument);
    refused(a.host_alloc(u64::MAX, PLAIN), Code::OutOfMemory);
    refused(a.host_alloc(1 << 62, PLAIN), Code::OutOfMemory);
    refused(a.unified().unwrap().alloc(0), Code::InvalidArgument);
    let block = a.alloc(1024).unwrap();
    refused(a.free(block + 512, 512), Code::UnknownPointer);
    refused(a.free(0, 0), Code::UnknownPointer);
    refused(a.free(block, 512), Code::WrongSize);
    refused(b.free(block, 1024), Code::UnknownPointer);
    refused(a.host_free(block, 1024), Code::UnknownPointer);
    refused(a.unified().unwrap().free(block, 1024), Code::UnknownPointer);
    assert_eq!(a.memory_info().unwrap().free, 256 * MIB - 1024);
    bytes(block, 1024).fill(1);
    a.free(block, 1024).unwrap();
    refused(a.free(block, 1024), Code::UnknownPointer);
    assert_eq!(a.memory_info().unwrap().free, 256 * MIB);
}

#[test]
fn pinned_memory_is_the_hosts_and_tells_whether_it_is_locked() {
    let (host, a, _) = host_with(4 * MIB, false);
    let small = a.host_alloc(100, PLAIN).unwrap();
    // More than the device has: it counts against nobody. Locked or not, it must work.
    let big = a.host_alloc(8 * MIB, PLAIN).unwrap();
    bytes(small, 100).fill(1);
    bytes(big, 8 << 20).fill(2);
    let stats = host.stats(0).unwrap();
    assert_eq!((stats.pinned_blocks, stats.pinned_bytes), (2, 8 * MIB + 100));
    assert!([0, 100, 8 * MIB, 8 * MIB + 100].contains(&stats.locked_bytes));
    assert_eq!(host.stats(1).unwrap().pinned_blocks, 0);
    assert_eq!(a.memory_info().unwrap().free, 4 * MIB);
    refused(a.host_free(big, MIB), Code::WrongSize);
    a.host_free(big, 8 * MIB).unwrap();
    a.host_free(small, 100).unwrap();
    refused(a.host_free(small, 100), Code::UnknownPointer);
    assert_eq!(host.stats(0).unwrap().pinned_blocks, 0);
}

#[test]
fn pinned_memory_beyond_the_machine_is_refused_and_not_touched() {
    let (host, a, _) = host_with(4 * MIB, false);
    for bytes in [crate::device::host::machine_memory() + 1, 1 << 46, u64::MAX] {
        refused(a.host_alloc(bytes, PLAIN), Code::OutOfMemory);
        let touched = HostWish { register: true, threads: 2 };
        refused(a.host_alloc(bytes, touched), Code::OutOfMemory);
    }
    assert_eq!(host.stats(0).unwrap().pinned_blocks, 0);
}

#[test]
#[cfg(target_os = "linux")]
fn locked_memory_is_what_the_system_says_it_is() {
    // Alone, so that no other test locks memory meanwhile.
    alone("memory::locked_memory_is_what_the_system_says_it_is", || {
        let locked_kib = || -> u64 {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find(|l| l.starts_with("VmLck:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let (host, a, _) = host();
        let block = a.host_alloc(MIB, PLAIN).unwrap();
        assert_eq!(locked_kib() * 1024, host.stats(0).unwrap().locked_bytes);
        a.host_free(block, MIB).unwrap();
        assert_eq!(locked_kib(), 0);
    });
}

#[test]
fn host_free_waits_for_copies_that_read_the_memory() {
    let (_host, a, b) = host();
    let s = b.streams().create().unwrap();
    let pinned = a.host_alloc(MIB, PLAIN).unwrap();
    bytes(pinned, 1 << 20).fill(9);
    let target = b.alloc(MIB).unwrap();
    let plug = Plug::new(&*b, s);
    b.copy_async(s, crate::device::CopyKind::HostToDevice, target, pinned, MIB).unwrap();
    let freer = std::thread::spawn(move || a.host_free(pinned, MIB));
    std::thread::sleep(Duration::from_millis(30));
    assert!(!freer.is_finished());
    plug.open();
    freer.join().unwrap().unwrap();
    assert!(bytes(target, 1 << 20).iter().all(|b| *b == 9));
}
