//! What is measured: allocators behind two C functions, called through pointers, so that every one pays the same
//! for the call and none is inlined into a loop.

mod best_fit;
mod floor;
mod host;
mod pond;

use anyhow::{Result, bail};
use std::ffi::c_void;
use std::hint::black_box;

/// 0: done, and `*out` is set; 1: out of memory; else a failure.
pub(crate) type Alloc = extern "C" fn(bytes: usize, stream: u32, out: *mut *mut c_void) -> i32;
/// 0: done. `bytes` and `stream` are those of the allocation.
pub(crate) type Free = extern "C" fn(ptr: *mut c_void, bytes: usize, stream: u32) -> i32;

/// What an allocator says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    /// [B] held from the device.
    pub(crate) reserved: u64,
    /// [B] its peak.
    pub(crate) peak_reserved: u64,
    /// Calls into the driver so far.
    pub(crate) driver_calls: u64,
}

/// An opened subject.
pub(crate) struct Subject {
    pub(crate) alloc: Alloc,
    pub(crate) free: Free,
    account: fn() -> Account,
}

/// What a subject can be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A caching allocator of device memory: everything.
    Device,
    /// Allocates the process's own memory: no traces, no million blocks.
    Host,
    /// No allocator at all, what the bench itself costs, or the least that a call could.
    Floor,
}

/// The subjects, in the order of the tables: name, kind, and a word.
pub(crate) const SUBJECTS: [(&str, Kind, &str); 7] = [
    ("millpond", Kind::Device, "host device, mapping"),
    ("segments", Kind::Device, "Millpond on a device that cannot map"),
    ("best fit", Kind::Device, "a locked best-fit cache of the usual kind, in this program"),
    ("glibc", Kind::Host, "malloc"),
    ("mimalloc", Kind::Host, "of the system, where it is installed"),
    ("floor", Kind::Floor, "one atomic exchange in each call"),
    ("null", Kind::Floor, "two empty calls: the bench itself"),
];

/// The kind of a subject.
pub(crate) fn kind(name: &str) -> Option<Kind> {
    SUBJECTS.iter().find(|s| s.0 == name).map(|s| s.1)
}

/// Opens a subject; once in a process. `capacity` in bytes matters to [`Kind::Device`] only.
pub(crate) fn open(name: &str, streams: u32, capacity: u64) -> Result<Subject> {
    let s = match name {
        "millpond" => pond::open(streams, capacity, true)?,
        "segments" => pond::open(streams, capacity, false)?,
        "best fit" => best_fit::open(capacity),
        "glibc" => host::glibc(),
        "mimalloc" => host::mimalloc()?,
        "floor" => floor::exchange(),
        "null" => floor::null(),
        _ => bail!("no subject {name:?}; there are: {}", SUBJECTS.map(|s| s.0).join(", ")),
    };
    // The compiler must not know which functions these are.
    Ok(Subject { alloc: black_box(s.alloc), free: black_box(s.free), account: s.account })
}

/// Out of memory, or a failure, in the middle of a workload that has room enough: nothing to go on with.
#[cold]
#[inline(never)]
fn broken(what: &str, status: i32) -> ! {
    eprintln!("{what} returned {status}");
    std::process::exit(3)
}

impl Subject {
    /// Allocates, or ends the process.
    #[inline(always)]
    pub(crate) fn alloc(&self, bytes: u64, stream: u32) -> *mut c_void {
        let mut p = std::ptr::null_mut();
        let status = (self.alloc)(bytes as usize, stream, &mut p);
        if status != 0 {
            broken("alloc", status);
        }
        p
    }
    /// Frees, or ends the process.
    #[inline(always)]
    pub(crate) fn free(&self, p: *mut c_void, bytes: u64, stream: u32) {
        let status = (self.free)(p, bytes as usize, stream);
        if status != 0 {
            broken("free", status);
        }
    }
    pub(crate) fn account(&self) -> Account {
        (self.account)()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_fit_splits_merges_and_gives_back() {
        best_fit::tests::life();
    }

    #[test]
    fn an_unknown_subject_is_an_error() {
        assert!(open("jemalloc", 1, 1).is_err());
        assert_eq!(kind("glibc"), Some(Kind::Host));
    }
}
