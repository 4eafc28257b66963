//! Tickets: how a process learns that no other one uses a block any more, also when they have died.
//!
//! A ticket is a pipe. Its write end goes with the block, and is copied by whoever imports it; the read end stays
//! here. When the last write end is closed, by a close, by the end of a process, or because the message that carried
//! it was never taken, the read end hangs up. Nothing is ever written. No thread waits: it is asked now and then.

use crate::base::error::{Code, Error, Result};
use crate::core::Mark;
use crate::runtime::lock;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;

/// The high bits of a mark that stands for a ticket; no event, pointer or other mark has them.
const TAG: u64 = 0x71C7 << 48;
const TAG_MASK: u64 = 0xFFFF << 48;

#[derive(Default)]
struct State {
    by_mark: BTreeMap<Mark, OwnedFd>,
    last: u64,
}

/// The tickets that one device has given out.
#[derive(Default)]
pub(crate) struct Tickets(Mutex<State>);

/// Both ends of a new pipe: read, write.
fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: the array has room for the two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        let e = std::io::Error::last_os_error();
        return Err(Error::new(Code::System, format!("pipe2: {e}")));
    }
    // SAFETY: made just now, and nobody else owns it.
    let read = unsafe { OwnedFd::from_raw_fd(ends[0]) };
    // SAFETY: as above.
    Ok((read, unsafe { OwnedFd::from_raw_fd(ends[1]) }))
}

impl Tickets {
    pub(crate) fn is_mark(mark: Mark) -> bool {
        mark & TAG_MASK == TAG
    }

    /// A new ticket: its mark, and the end that whoever uses the block keeps open.
    pub(crate) fn issue(&self) -> Result<(Mark, OwnedFd)> {
        let (read, write) = pipe()?;
        let mut s = lock(&self.0);
        s.last += 1;
        let mark = TAG | s.last;
        s.by_mark.insert(mark, read);
        Ok((mark, write))
    }

    /// Whether nobody has the other end any more.
    pub(crate) fn passed(&self, mark: Mark) -> bool {
        let s = lock(&self.0);
        let Some(fd) = s.by_mark.get(&mark) else { return true };
        let mut ask = libc::pollfd { fd: fd.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one entry, which is ours; does not wait. The descriptor is open while the lock is held.
        let n = unsafe { libc::poll(&mut ask, 1, 0) };
        n == 1 && ask.revents & libc::POLLHUP != 0
    }

    /// The mark is not needed any more.
    pub(crate) fn forget(&self, mark: Mark) {
        let gone = lock(&self.0).by_mark.remove(&mark);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn a_ticket_is_passed_when_its_last_copy_is_closed() {
        let t = Tickets::default();
        let (mark, first) = t.issue().unwrap();
        let second = first.try_clone().unwrap();
        assert!(Tickets::is_mark(mark) && !t.passed(mark));
        drop(first);
        assert!(!t.passed(mark));
        drop(second);
        assert!(t.passed(mark));
        t.forget(mark);
        assert!(t.passed(mark), "what is forgotten keeps nobody");
        assert_ne!(t.issue().unwrap().0, mark);
    }
}
