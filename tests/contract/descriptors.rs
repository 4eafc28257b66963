//! A program closes all descriptors, as a daemon does, and opens files of its own, which then get the numbers that ours
//! had. Whatever the library does afterwards, it touches none of those files: it has kept its own descriptors, or it
//! reports that they are gone. Memory that was there before stays.

use crate::apart::*;
use crate::api::*;
use crate::compilers::Scratch;
use millpond::capi::*;
use std::ffi::c_int;
use std::fs::File;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

const CAPACITY: usize = 32 * MIB;
/// Of the file: as much as a file of the device's can have.
const SIZE: usize = 2 * CAPACITY;
const BYTE: u8 = 0x5A;

/// The program's own file, open many times.
struct Own {
    path: PathBuf,
    inode: u64,
    fds: Vec<c_int>,
    _scratch: Scratch,
}

/// Closes everything but the three standard streams.
fn close_all() {
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
    assert_eq!(done, 0, "close_range: {}", std::io::Error::last_os_error());
}

impl Own {
    fn new(test: &str) -> Own {
        let scratch = Scratch::new(test);
        let path = scratch.path("own");
        std::fs::write(&path, vec![BYTE; SIZE]).unwrap();
        let inode = std::fs::metadata(&path).unwrap().ino();
        Own { path, inode, fds: Vec::new(), _scratch: scratch }
    }

    /// The program becomes a daemon and opens its file, as often as it takes to have all the numbers.
    fn take_all_numbers(&mut self) {
        close_all();
        for _ in 0..32 {
            let file = File::options().read(true).write(true).open(&self.path).unwrap();
            self.fds.push(file.into_raw_fd());
        }
        assert_eq!(self.fds[0], 3, "the numbers begin where the library's began");
    }

    /// The file has what it had, and each number is still the program's.
    #[track_caller]
    fn check(&self, after: &str) {
        for &fd in &self.fds {
            let mut about: libc::stat = unsafe { std::mem::zeroed() };
            let rc = unsafe { libc::fstat(fd, &mut about) };
            assert!(
                rc == 0 && about.st_ino == self.inode,
                "{after}: descriptor {fd} is not the program's any more"
            );
        }
        let file = File::open(&self.path).unwrap();
        assert_eq!(
            file.metadata().unwrap().len(),
            SIZE as u64,
            "{after}: the program's file has another size"
        );
        let mut bytes = vec![0; SIZE];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let wrong = bytes.iter().position(|b| *b != BYTE);
        assert_eq!(wrong, None, "{after}: the program's file has changed");
        assert!(file.as_raw_fd() > 2);
    }
}

/// A device with a block on it, and all descriptors gone.
fn daemon(test: &str) -> (Device, Own, usize) {
    let mut own = Own::new(test);
    let d = host(CAPACITY, true);
    let p = d.default_pool().alloc(MIB, NULL).unwrap();
    poke(p, 0x33, MIB);
    own.take_all_numbers();
    (d, own, p)
}

/// A failure that tells of it.
#[track_caller]
fn is_clear(f: &Failed) {
    assert!([MILLPOND_E_SYSTEM, MILLPOND_E_DEVICE, MILLPOND_E_OUT_OF_MEMORY].contains(&f.code), "{f:?}");
    assert!(
        f.message.contains("descriptor") || f.message.contains("file"),
        "does not say what is wrong: {f:?}"
    );
}

/// More memory is asked for: it is the device's, or there is none.
#[test]
fn more_memory_is_not_the_programs_file() {
    apart(|| {
        let (d, own, p) = daemon("more");
        match d.default_pool().alloc(8 * MIB, NULL) {
            Ok(q) => {
                own.check("a request");
                poke(q, 0x11, 8 * MIB);
                d.default_pool().free(q, NULL).unwrap();
            }
            Err(f) => is_clear(&f),
        }
        own.check("a request");
        assert_eq!(filled(p, MIB), Some(0x33), "memory that was there");
    });
}

/// Unused memory goes back to the system.
#[test]
fn memory_that_goes_back_makes_no_hole_in_the_programs_file() {
    apart(|| {
        let mut own = Own::new("back");
        let d = host(CAPACITY, true);
        let p = d.default_pool().alloc(16 * MIB, NULL).unwrap();
        own.take_all_numbers();
        d.default_pool().free(p, NULL).unwrap();
        if let Err(f) = d.empty_cache() {
            is_clear(&f);
        }
        own.check("giving memory back");
        // It is there as before, or it can be had anew.
        if let Ok(q) = d.default_pool().alloc(16 * MIB, NULL) {
            poke(q, 0x11, 16 * MIB);
        }
        own.check("a request");
    });
}

/// Blocks of granules that lie apart are shown side by side, out of the same file.
#[test]
fn scattered_memory_is_not_the_programs_file() {
    apart(|| {
        let mut own = Own::new("scattered");
        let d = host(CAPACITY, true);
        let pool = d.default_pool();
        let all: Vec<usize> = (0..16).map(|_| pool.alloc(2 * MIB, NULL).unwrap()).collect();
        own.take_all_numbers();
        all.iter().step_by(2).for_each(|&p| pool.free(p, NULL).unwrap());
        match pool.alloc(8 * MIB, NULL) {
            Ok(q) => poke(q, 0x11, 8 * MIB),
            Err(f) => is_clear(&f),
        }
        own.check("a request");
    });
}

/// A pool sleeps and wakes.
#[test]
fn a_pool_that_sleeps_does_not_wake_in_the_programs_file() {
    apart(|| {
        let mut own = Own::new("sleep");
        let d = host(CAPACITY, true);
        let pool = d.pool(0);
        let p = pool.alloc(4 * MIB, NULL).unwrap();
        poke(p, 0x33, 4 * MIB);
        own.take_all_numbers();
        match pool.sleep(true) {
            Ok(()) => {
                own.check("the sleep");
                match pool.wake() {
                    Ok(()) => assert_eq!(filled(p, 4 * MIB), Some(0x33), "what was kept"),
                    Err(f) => is_clear(&f),
                }
            }
            Err(f) => {
                is_clear(&f);
                assert_eq!(filled(p, 4 * MIB), Some(0x33), "after an error nothing has changed");
            }
        }
        own.check("the wake");
    });
}

/// The library ends: it closes its own descriptors, or none.
#[test]
fn the_end_of_the_library_leaves_the_programs_files_alone() {
    apart(|| {
        let (_, own, _) = daemon("end");
        let _ = millpond_finalize();
        own.check("the end");
        // A new start has new ones.
        let d = host(CAPACITY, true);
        let p = d.alloc(8 * MIB).unwrap();
        poke(p, 0x11, 8 * MIB);
        free(p).unwrap();
        d.empty_cache().unwrap();
        outcome(millpond_finalize()).unwrap();
        own.check("another start and end");
    });
}

/// Other processes are not given the program's memory file instead of the device's, and it is not sealed.
#[test]
fn the_programs_memory_is_not_exported() {
    apart(|| {
        let d = host(CAPACITY, true);
        let p = d.default_pool().alloc(MIB, NULL).unwrap();
        close_all();
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let own = unsafe { libc::memfd_create(c"own".as_ptr(), flags) };
        assert_eq!(own, 3, "the numbers begin where the library's began");
        assert_eq!(unsafe { libc::ftruncate(own, SIZE as i64) }, 0);
        (0..32).for_each(|_| assert!(unsafe { libc::dup(own) } > own));
        match export(p) {
            Ok((_, fds)) => {
                assert!(fds.iter().all(|&fd| inode(fd) != inode(own)), "the program's memory is exported")
            }
            Err(f) => is_clear(&f),
        }
        assert_eq!(unsafe { libc::fcntl(own, libc::F_GET_SEALS) }, 0, "the program's memory is sealed");
    });
}

fn inode(fd: c_int) -> u64 {
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    assert_eq!(unsafe { libc::fstat(fd, &mut about) }, 0);
    about.st_ino
}

fn export(p: usize) -> Outcome<(Vec<u8>, Vec<c_int>)> {
    let (mut bytes, mut count) = (0, 0);
    outcome(unsafe { millpond_export_get_size(ptr(p), &mut bytes, &mut count) })?;
    let (mut info, mut fds) = (vec![0u8; bytes], vec![-1; count]);
    let (to, many) = (info.as_mut_ptr().cast(), fds.as_mut_ptr());
    outcome(unsafe { millpond_export(ptr(p), to, bytes, many, count) })?;
    Ok((info, fds))
}

/// What keeps an exported block's memory is a descriptor of the library's, too: where it has gone, its number is not
/// closed when the block's time has come.
#[test]
fn the_end_of_an_export_closes_no_descriptor_of_the_program() {
    apart(|| {
        let mut own = Own::new("ticket");
        let d = host(CAPACITY, true);
        let p = d.default_pool().alloc(MIB, NULL).unwrap();
        export(p).unwrap();
        own.take_all_numbers(); // the exported ones are closed by that, too
        d.default_pool().free(p, NULL).unwrap();
        d.stats();
        own.check("statistics");
        let _ = d.empty_cache();
        own.check("giving memory back");
        let _ = millpond_finalize();
        own.check("the end");
    });
}

/// So does the end of an import.
#[test]
fn the_end_of_an_import_closes_no_descriptor_of_the_program() {
    apart(|| {
        let mut own = Own::new("import");
        let d = host(CAPACITY, true);
        let p = d.default_pool().alloc(MIB, NULL).unwrap();
        let (info, fds) = export(p).unwrap();
        let mut q = std::ptr::null_mut();
        let status = unsafe {
            millpond_import(ptr(d.0), info.as_ptr().cast(), info.len(), fds.as_ptr(), fds.len(), &mut q)
        };
        outcome(status).unwrap();
        own.take_all_numbers();
        outcome(unsafe { millpond_import_close(q) }).unwrap();
        own.check("the end of the import");
    });
}

/// Without files of its own, only with all descriptors closed, the program gets clear answers.
#[test]
fn without_its_descriptors_the_library_says_so() {
    apart(|| {
        let d = host(CAPACITY, true);
        let pool = d.default_pool();
        let p = pool.alloc(MIB, NULL).unwrap();
        poke(p, 0x33, MIB);
        close_all();
        match pool.alloc(8 * MIB, NULL) {
            Ok(q) => poke(q, 0x11, 8 * MIB),
            Err(f) => is_clear(&f),
        }
        assert_eq!(filled(p, MIB), Some(0x33));
        pool.free(p, NULL).unwrap();
        let _ = d.empty_cache();
        let _ = millpond_finalize();
    });
}
