//! File descriptors that the library keeps. The program may close any descriptor number, as a daemon does at its start,
//! and then get the same number for a file of its own. So the identity of the file is stored when a descriptor is
//! made, and compared before each use: a number that now belongs to the program is neither used nor closed.
//!
//! The program could still close it between the comparison and the use; no system call does both.

use super::error::{Code, Error, Result};
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
        let m = format!("file descriptor {number}, which was {what}, has been closed by somebody else");
        Err(Error::new(Code::System, m))
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
