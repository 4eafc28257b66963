//! File descriptors that the library keeps. The program may close any descriptor number, as a daemon does at its start,
//! and then get the same number for a file of its own. So the identity of the file is stored when a descriptor is
//! made, and compared before each use: a number that now belongs to the program is neither used nor closed.
//!
//! The program could still close it between the comparison and the use; no system call does both.

use super::error::{Code, Result};
use crate::fail;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The file behind a descriptor. No two files that exist at the same time have equal identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: libc::dev_t,
    inode: libc::ino_t,
}

fn identity(fd: BorrowedFd<'_>) -> std::io::Result<Identity> {
    // SAFETY: all zeros is a value of this plain struct.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `about` is valid for writes; a number that is no descriptor is an error.
    if unsafe { libc::fstat(fd.as_raw_fd(), &mut about) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(Identity { device: about.st_dev, inode: about.st_ino })
}

/// A descriptor of the library's own. Dropping it closes it, unless the number belongs to somebody else by then.
#[derive(Debug)]
pub(crate) struct Descriptor {
    fd: ManuallyDrop<OwnedFd>,
    identity: Identity,
    what: &'static str,
}

impl Descriptor {
    /// Keeps a descriptor that was just made; error messages name it by `what`.
    pub(crate) fn new(fd: OwnedFd, what: &'static str) -> Result<Descriptor> {
        match identity(fd.as_fd()) {
            Ok(identity) => Ok(Descriptor { fd: ManuallyDrop::new(fd), identity, what }),
            Err(e) => fail!(Code::System, "fstat of {what}: {e}"),
        }
    }

    /// Whether the number still leads to the same file.
    pub(crate) fn is_ours(&self) -> bool {
        identity(self.fd.as_fd()).is_ok_and(|now| now == self.identity)
    }

    /// The descriptor, for immediate use. `System` if the program has closed it.
    pub(crate) fn get(&self) -> Result<BorrowedFd<'_>> {
        if self.is_ours() {
            return Ok(self.fd.as_fd());
        }
        let (number, what) = (self.fd.as_raw_fd(), self.what);
        fail!(Code::System, "file descriptor {number}, which was {what}, has been closed by somebody else")
    }

    /// Reads from the file at `offset` until `into` is full or the file ends; returns how much that was.
    pub(crate) fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while let rest @ [_, ..] = &mut into[done..] {
            let (at, len) = (rest.as_mut_ptr(), rest.len());
            let from = (offset + done as u64) as libc::off_t;
            // SAFETY: `rest` is valid for writes of its length.
            let got = unsafe { libc::pread(self.get()?.as_raw_fd(), at.cast(), len, from) };
            match usize::try_from(got) {
                Ok(0) => break,
                Ok(more) => done += more,
                Err(_) => self.failed("reading")?,
            }
        }
        Ok(done)
    }

    /// Writes all of `from` into the file at `offset`.
    pub(crate) fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while let rest @ [_, ..] = &from[done..] {
            let to = (offset + done as u64) as libc::off_t;
            // SAFETY: `rest` is valid for reads of its length.
            let put = unsafe { libc::pwrite(self.get()?.as_raw_fd(), rest.as_ptr().cast(), rest.len(), to) };
            match usize::try_from(put) {
                Ok(0) => fail!(Code::System, "writing {}: nothing was written", self.what),
                Ok(more) => done += more,
                Err(_) => self.failed("writing")?,
            }
        }
        Ok(())
    }

    /// Locks one byte of the file for this open file alone; `false` if another one has it. The lock ends with the open
    /// file, at the latest with the process and the children that it has forked.
    pub(crate) fn lock_byte(&self, at: u64) -> Result<bool> {
        self.byte(libc::F_OFD_SETLK, libc::F_WRLCK, at).map(|lock| lock.is_some())
    }

    /// Ends a lock of [`lock_byte`](Self::lock_byte).
    pub(crate) fn unlock_byte(&self, at: u64) -> Result<()> {
        self.byte(libc::F_OFD_SETLK, libc::F_UNLCK, at).map(drop)
    }

    /// Whether another open file has locked the byte.
    pub(crate) fn is_byte_locked(&self, at: u64) -> Result<bool> {
        let found = self.byte(libc::F_OFD_GETLK, libc::F_WRLCK, at)?;
        Ok(found.is_some_and(|lock| lock.l_type != libc::F_UNLCK as libc::c_short))
    }

    /// `None`: somebody else has the lock.
    fn byte(&self, what: libc::c_int, kind: libc::c_int, at: u64) -> Result<Option<libc::flock>> {
        // SAFETY: all zeros is a value of this plain struct.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        (lock.l_start, lock.l_len) = (at as libc::off_t, 1);
        loop {
            // SAFETY: `lock` is valid for both; it describes a lock of this open file.
            if unsafe { libc::fcntl(self.get()?.as_raw_fd(), what, &raw mut lock) } == 0 {
                return Ok(Some(lock));
            }
            if matches!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) {
                return Ok(None);
            }
            self.failed("locking")?;
        }
    }

    /// The error of the system's last call, unless a signal has only interrupted it.
    fn failed(&self, doing: &str) -> Result<()> {
        let e = std::io::Error::last_os_error();
        match e.kind() {
            std::io::ErrorKind::Interrupted => Ok(()),
            _ => fail!(Code::System, "{doing} {}: {e}", self.what),
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: dropped once, here; nobody uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use std::fs::File;

    #[test]
    fn a_number_that_has_become_anothers_is_neither_used_nor_closed() {
        let ours = Descriptor::new(File::open("/dev/null").unwrap().into(), "the test's").unwrap();
        let number = ours.get().unwrap().as_raw_fd();
        let theirs = File::open("/dev/zero").unwrap();
        // SAFETY: both are open; the number leads to the other file from now on.
        assert_eq!(unsafe { libc::dup2(theirs.as_raw_fd(), number) }, number);
        let told = ours.get().map(drop).unwrap_err();
        assert_eq!(told.code(), Code::System);
        assert!(told.to_string().contains("descriptor"), "{told}");
        drop(ours);
        // SAFETY: asks about a number.
        assert!(unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0, "it was closed");
        // SAFETY: from `dup2` above, and nobody else has it.
        unsafe { libc::close(number) };
    }

    #[test]
    fn ours_is_closed() {
        let (ours, end) = std::io::pipe().unwrap();
        drop(Descriptor::new(ours.into(), "the test's").unwrap());
        let mut ask = libc::pollfd { fd: end.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one entry, which is ours.
        assert_eq!(unsafe { libc::poll(&mut ask, 1, 0) }, 1);
        assert!(ask.revents & libc::POLLERR != 0, "nobody reads any more");
    }
}
