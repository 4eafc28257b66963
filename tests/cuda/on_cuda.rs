//! Shared code of the tests of sharing on the device type `cuda`.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "every block is one call of the C API under test")]

use crate::cuda::Fake;
use crate::sharing::*;
use millpond::capi::*;
use std::ffi::c_void;
use std::ptr::null_mut;

pub const MIB: usize = 1 << 20;

pub fn device(ordinal: i32) -> *mut millpond_device {
    let mut d = null_mut();
    ok(unsafe { millpond_device_get(c"cuda".as_ptr(), ordinal, &mut d) });
    d
}

pub fn take(device: *mut millpond_device, bytes: usize) -> *mut c_void {
    let mut p = null_mut();
    ok(unsafe { millpond_alloc(device, bytes, &mut p) });
    p
}

pub fn free(p: *mut c_void) {
    ok(unsafe { millpond_free(p) });
}

pub fn held(device: *mut millpond_device) -> usize {
    let (mut n, mut bytes) = (0, 0);
    ok(unsafe { millpond_device_poll_exports(device, &mut n, &mut bytes) });
    n
}

/// Blocks of these sizes, to a process that runs that test with these variables: contents both ways, a free before the
/// import ends while everything else is written, and an importer that is killed.
pub fn two_processes(test: &str, fake: Fake, vars: &[(&str, &str)], sizes: &[usize]) {
    let d = device(0);
    for &bytes in sizes {
        let _neighbour = take(d, 700);
        let p = take(d, bytes);
        write(d, p, &pattern(4, bytes));
        let mut other = Importer::start(test, "cuda", export(p), bytes, vars);
        assert_eq!(other.ask("has 4"), "good");
        assert_eq!(other.ask("write 5"), "good");
        assert_eq!(read(d, p, bytes), pattern(5, bytes));
        free(p);
        assert_eq!(held(d), 1);
        // All that can be had is taken and written.
        let mut all = Vec::new();
        for size in [8 * MIB, MIB, 1000] {
            let mut q = null_mut();
            while all.len() < 64 && unsafe { millpond_alloc(d, size, &mut q) } == C_Status::SUCCESS {
                ok(unsafe { millpond_memset(d, q, 0xEE, size) });
                all.push(q);
            }
        }
        assert_eq!(other.ask("has 5"), "good");
        all.into_iter().for_each(free);
        other.kill();
        assert_eq!(held(d), 0);
        ok(unsafe { millpond_device_empty_cache(d) });
        let p = take(d, bytes);
        let mut other = Importer::start(test, "cuda", export(p), bytes, vars);
        assert_eq!(other.ask("fill 6"), "good");
        assert_eq!(read(d, p, bytes), vec![6; bytes]);
        free(p);
        assert_eq!(other.ask("close"), "good");
        assert_eq!(held(d), 0);
        other.end();
    }
    fake.end();
}
