//! The system refuses: each refusal is an error or a lesser device, and nothing is half done. Each
//! test runs in a process of its own, since it takes the process's limits away.

#![cfg(target_os = "linux")]

use super::*;
use crate::device::Caps;

fn limit(which: libc::__rlimit_resource_t, soft: u64) {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `now` is valid for writes.
    assert_eq!(unsafe { libc::getrlimit(which, &mut now) }, 0);
    now.rlim_cur = soft.min(now.rlim_max);
    // SAFETY: `now` is valid for reads.
    assert_eq!(unsafe { libc::setrlimit(which, &now) }, 0);
}

#[test]
fn without_a_memory_file_the_device_gives_segments() {
    alone("failures::without_a_memory_file_the_device_gives_segments", || {
        for which in [libc::RLIMIT_FSIZE, libc::RLIMIT_NOFILE] {
            limit(which, 0);
            let (_host, a, _) = host();
            // Restored first: the harness wants to write its report.
            limit(which, u64::MAX);
            assert!(!a.caps().contains(Caps::MAPPING));
            assert!(a.mapping().is_none() && a.sharing().is_none());
            a.free(a.alloc(GRANULE).unwrap(), GRANULE).unwrap();
        }
    });
}

#[test]
fn without_address_space_calls_fail_and_give_back_what_they_took() {
    alone("failures::without_address_space_calls_fail_and_give_back_what_they_took", || {
        let (host, a, _) = host();
        let stream = a.streams().create().unwrap();
        // Its thread runs: one that is only starting asks for a signal stack, and ends the process where it gets none.
        let (tell, told) = std::sync::mpsc::channel();
        a.streams().callback(stream, Box::new(move |_| tell.send(()).unwrap())).unwrap();
        told.recv().unwrap();
        limit(libc::RLIMIT_AS, 1 << 20);
        let results = [
            a.alloc(64 * MIB).map(drop),
            a.unified().unwrap().alloc(64 * MIB).map(drop),
            a.host_alloc(64 * MIB, PLAIN).map(drop),
            a.mapping().unwrap().open_window(64 * MIB).map(drop),
        ];
        let thread = a.streams().create();
        limit(libc::RLIMIT_AS, u64::MAX);
        for result in results {
            refused(result, Code::OutOfMemory);
        }
        refused(thread, Code::System);
        assert_eq!(a.memory_info().unwrap().free, 256 * MIB);
        let stats = host.stats(0).unwrap();
        assert_eq!((stats.stream_threads, stats.pinned_blocks), (1, 0));
        a.streams().synchronize(stream).unwrap();
        a.mapping().unwrap().open_window(64 * MIB).unwrap();
    });
}

/// Takes all mappings that the system allows a process, until dropped.
struct Splinters(u64, u64);

impl Splinters {
    fn new() -> Splinters {
        let len = 1 << 30;
        let base = super::super::pages::map_anonymous(len, 4096, true).unwrap();
        for page in (0..len / 4096).step_by(2) {
            let at: *mut libc::c_void = std::ptr::with_exposed_provenance_mut((base + page * 4096) as usize);
            // SAFETY: the page belongs to the mapping made above, which nobody uses.
            if unsafe { libc::mprotect(at, 4096, libc::PROT_NONE) } != 0 {
                return Splinters(base, len);
            }
        }
        panic!("the system has no limit of mappings");
    }
}

impl Drop for Splinters {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own.
        unsafe { super::super::pages::unmap(self.0, self.1) };
    }
}

#[test]
fn without_mappings_map_and_unmap_change_nothing() {
    alone("failures::without_mappings_map_and_unmap_change_nothing", || {
        let (_host, a, _) = host();
        let window = a.mapping().unwrap().open_window(16 * GRANULE).unwrap();
        a.mapping().unwrap().create(0, 6).unwrap();
        a.mapping().unwrap().map(8 * GRANULE, 0, 3).unwrap();
        bytes(window + 9 * GRANULE, 1)[0] = 77;
        let splinters = Splinters::new();
        let (mapped, unmapped) =
            (a.mapping().unwrap().map(2 * GRANULE, 4, 1), a.mapping().unwrap().unmap(9 * GRANULE, GRANULE));
        drop(splinters);
        refused(mapped, Code::OutOfMemory);
        refused(unmapped, Code::OutOfMemory);
        assert_eq!(bytes(window + 9 * GRANULE, 1), [77], "still mapped");
        refused(a.mapping().unwrap().release(1, 1), Code::Busy);
        a.mapping().unwrap().release(4, 1).unwrap(); // not mapped after all
        a.mapping().unwrap().create(4, 1).unwrap();
        a.mapping().unwrap().map(2 * GRANULE, 4, 1).unwrap();
        a.mapping().unwrap().unmap(9 * GRANULE, GRANULE).unwrap();
        a.mapping().unwrap().release(1, 1).unwrap();
        a.mapping().unwrap().close_window().unwrap();
        assert_eq!(a.memory_info().unwrap().free, 256 * MIB);
    });
}

#[test]
fn pinned_memory_that_may_not_be_locked_is_plain_memory() {
    alone("failures::pinned_memory_that_may_not_be_locked_is_plain_memory", || {
        limit(libc::RLIMIT_MEMLOCK, 0);
        // SAFETY: changes this process only, which runs this test alone. Root may lock without limit.
        if unsafe { libc::geteuid() } == 0 {
            // SAFETY: as above.
            assert_eq!(unsafe { libc::setuid(65534) }, 0);
        }
        let (host, a, _) = host();
        let block = a.host_alloc(MIB, PLAIN).unwrap();
        bytes(block, 1 << 20).fill(1);
        let stats = host.stats(0).unwrap();
        assert_eq!((stats.pinned_blocks, stats.pinned_bytes, stats.locked_bytes), (1, MIB, 0));
        a.host_free(block, MIB).unwrap();
    });
}
