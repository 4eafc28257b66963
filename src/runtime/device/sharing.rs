//! Blocks of the device for other processes, and blocks of theirs for work on it.

use crate::base::descriptor::Descriptor;
use crate::base::error::{Code, Error, Result};
use crate::base::room::while_kept;
use crate::device::sharing::{Imported, SharedKind, Sharing};
use crate::fail;
use crate::runtime::device::state::DeviceState;
use crate::runtime::entry::reentry::may_block;
use crate::runtime::share::info::Info;
use crate::runtime::share::{Export, sharing, sharing_in};
use std::os::fd::{BorrowedFd, OwnedFd};

/// A copy for ourselves, which programs that are started from here do not get.
fn copy_of(fd: BorrowedFd<'_>) -> Result<Descriptor> {
    let copy = fd.try_clone_to_owned();
    let copy =
        copy.map_err(|e| Error::formatted(Code::System, format_args!("fcntl(F_DUPFD_CLOEXEC): {e}")))?;
    Descriptor::new(copy, "the ticket of an import")
}

/// A ticket must be the write end of a pipe: anything else would keep nothing.
fn check_ticket(fd: BorrowedFd<'_>) -> Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: all zeros is a value of this plain struct.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `about` is valid for writes.
    let rc = unsafe { libc::fstat(fd.as_raw_fd(), &mut about) };
    // SAFETY: asks about a descriptor.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    let writes = flags >= 0 && flags & libc::O_ACCMODE == libc::O_WRONLY;
    if rc != 0 || about.st_mode & libc::S_IFMT != libc::S_IFIFO || !writes {
        return Err(Error::new(
            Code::InvalidArgument,
            "the first file descriptor is not the one of the export",
        ));
    }
    Ok(())
}

/// Memory that an open device shares with other processes. Get it with [`DeviceState::shared_memory`].
#[derive(Clone, Copy)]
pub struct SharedMemory<'a>(pub(super) &'a DeviceState);

impl DeviceState {
    /// Memory that the device shares with other processes.
    pub fn shared_memory(&self) -> SharedMemory<'_> {
        SharedMemory(self)
    }
}

impl SharedMemory<'_> {
    /// What another process needs to use the live block that starts at `addr`. It may be freed while others use
    /// it: its memory is used again when they have closed it or ended. `Unsupported` where the device cannot.
    pub fn export(&self, addr: u64) -> Result<Export> {
        let _pass = self.0.enter()?;
        self.0.memory().exports().make(addr)
    }

    /// How many bytes of info and how many descriptors [`export`](Self::export) of this block gives.
    pub fn export_size(&self, addr: u64) -> Result<(usize, usize)> {
        let _pass = self.0.enter()?;
        let (granules, maps, fabric) = self.0.memory().exports().pieces(addr)?;
        let count = granules.granules.len();
        let by_granule = self.0.device().sharing().is_some_and(Sharing::by_granule);
        Ok(match (maps, by_granule) {
            (true, _) if fabric => (Info::length(count, true), 1),
            (true, true) => (Info::length(count, false), 1 + count),
            (true, false) => (Info::length(count, false), 2),
            (false, _) => (Info::length(0, false), 1),
        })
    }

    /// A dma-buf of `bytes` bytes at `addr`, which lie in one live block, and where in it they begin. The block must stay
    /// live as long as anybody uses it. `Unsupported` where device or driver have none.
    pub fn export_dma_buf(&self, addr: u64, bytes: u64) -> Result<(OwnedFd, u64)> {
        let _pass = self.0.enter()?;
        let block = self.0.memory().block(addr)?;
        let end = addr.checked_add(bytes).filter(|_| bytes != 0);
        let Some(end) = end.filter(|&end| end <= block.base + block.size) else {
            fail!(
                Code::InvalidArgument,
                "{bytes} B at {addr:#x} do not lie in the block of {} B",
                block.size
            );
        };
        // SAFETY: asks for a constant of the system.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        let start = addr / page * page;
        let Some(dma_bufs) = sharing(self.0.device())?.dma_bufs() else {
            fail!(Code::Unsupported, "the block's device exports no dma-buf");
        };
        let fd = dma_bufs.export(start, end.next_multiple_of(page) - start)?;
        Ok((fd, addr - start))
    }

    /// Opens a block of another process (or of this one) at an address of its own, for work on this device. The
    /// descriptors stay the caller's. What goes by fabric handles may be opened without descriptors: then nothing here
    /// keeps the memory, and the exporter must. Ends with [`close_import`](Self::close_import).
    pub fn import(&self, info: &[u8], fds: &[BorrowedFd<'_>]) -> Result<u64> {
        let _pass = self.0.enter()?;
        let told = Info::decode(info)?;
        let m = told.memory;
        let away = m.kind == SharedKind::CudaFabric && fds.is_empty();
        if fds.len() != told.fd_count as usize && !away {
            let want = told.fd_count;
            fail!(Code::InvalidArgument, "file descriptors given: {}; the export has {want}", fds.len());
        }
        let (ticket, files) = match fds.split_first() {
            Some((&ticket, files)) => {
                check_ticket(ticket)?;
                (Some(copy_of(ticket)?), files)
            }
            None => (None, fds),
        };
        let memory = Imported {
            kind: m.kind,
            identity: m.identity,
            pieces: m.pieces,
            handle: m.handle,
            fabric: m.fabric,
            fds: files.to_vec(),
        };
        let at = while_kept(|| sharing_in(self.0.device())?.open(&memory))?;
        self.0.imports.add(at + told.skip, told.bytes, at, ticket);
        Ok(at + told.skip)
    }

    /// Ends the import at `addr`, after a wait for all work of the device, which may still use it.
    pub fn close_import(&self, addr: u64) -> Result<()> {
        let _pass = self.0.enter()?;
        may_block()?;
        let (bytes, memory, ticket) = self.0.imports.take(addr)?;
        match sharing_in(self.0.device()).and_then(|s| s.close(memory)) {
            Ok(()) => Ok(()),
            Err(e) => {
                self.0.imports.add(addr, bytes, memory, ticket);
                Err(e)
            }
        }
    }

    /// Whether `addr` is in imported memory of this device.
    pub(crate) fn has_import(&self, addr: u64) -> bool {
        self.0.imports.check(addr, 0).is_some()
    }

    /// Freed blocks that other processes still use: how many, and their bytes. What they do not use any more can
    /// be used again from here on.
    pub fn poll_exports(&self) -> Result<(u64, u64)> {
        let _pass = self.0.enter()?;
        self.0.memory().exports().poll()
    }

    /// The device ends.
    pub(crate) fn close(&self) {
        self.0.imports.clear();
    }
}
