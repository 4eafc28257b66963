//! Blocks that other processes use, and blocks of other processes: `docs/sharing.md` has the design.
//!
//! An export makes bytes ([`info`]) and file descriptors, the first of which is a ticket (`backing/points.rs`) that
//! keeps the block's memory from being used again; the core keeps the block for it (`core/features/exports.rs`). An
//! import opens the memory at an address of its own and keeps a copy of the ticket.

use crate::base::descriptor::Descriptor;
use crate::base::error::{Code, Error, Result};
use crate::core::{GRANULE, GranuleRun, Pieces};
use crate::device::Device;
use crate::device::sharing::{Fabric, Imported, Run, SharedKind, Sharing};
use crate::fail;
use crate::runtime::device::DeviceState;
use crate::runtime::options::{ExportHandle, Key};
use crate::runtime::reentry::may_block;
use std::os::fd::{BorrowedFd, OwnedFd};

pub(super) mod imports;
mod info;

use info::Info;

/// A block for other processes.
#[derive(Debug)]
pub struct Export {
    /// To be sent as they are.
    pub info: Vec<u8>,
    /// To be sent with them, in this order, and closed. As long as one copy of the first is open anywhere, the
    /// block's memory is not used again.
    pub fds: Vec<OwnedFd>,
}

/// A copy for ourselves, which programs that are started from here do not get.
fn copy_of(fd: BorrowedFd<'_>) -> Result<Descriptor> {
    let copy = fd.try_clone_to_owned();
    let copy = copy.map_err(|e| Error::new(Code::System, format!("fcntl(F_DUPFD_CLOEXEC): {e}")))?;
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

impl DeviceState {
    /// What another process needs to use the live block that starts at `addr`. It may be freed while others use
    /// it: its memory is used again when they have closed it or ended. `Unsupported` where the device cannot.
    pub fn export(&self, addr: u64) -> Result<Export> {
        let _pass = self.enter()?;
        self.memory().export(addr)
    }

    /// How many bytes of info and how many descriptors [`export`](Self::export) of this block gives.
    pub fn export_size(&self, addr: u64) -> Result<(usize, usize)> {
        let _pass = self.enter()?;
        let (granules, maps, fabric) = self.memory().export_pieces(addr)?;
        let count = granules.granules.len();
        let by_granule = self.device().sharing().is_some_and(Sharing::by_granule);
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
        let _pass = self.enter()?;
        let block = self.memory().block(addr)?;
        let end = addr.checked_add(bytes).filter(|_| bytes != 0);
        let Some(end) = end.filter(|&end| end <= block.base + block.size) else {
            fail!(
                Code::InvalidArgument,
                "{bytes} bytes at {addr:#x} do not lie in the block of {} bytes",
                block.size
            );
        };
        // SAFETY: asks for a constant of the system.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        let start = addr / page * page;
        let fd = sharing(self.device())?.dma_buf(start, end.next_multiple_of(page) - start)?;
        Ok((fd, addr - start))
    }

    /// Opens a block of another process (or of this one) at an address of its own, for work on this device. The
    /// descriptors stay the caller's. What goes by fabric handles may be opened without descriptors: then nothing here
    /// keeps the memory, and the exporter must. Ends with [`import_close`](Self::import_close).
    pub fn import(&self, info: &[u8], fds: &[BorrowedFd<'_>]) -> Result<u64> {
        let _pass = self.enter()?;
        let told = Info::decode(info)?;
        let m = told.memory;
        let away = m.kind == SharedKind::CudaFabric && fds.is_empty();
        if fds.len() != told.fd_count as usize && !away {
            let want = told.fd_count;
            fail!(Code::InvalidArgument, "{} file descriptors given, the export has {want}", fds.len());
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
        let at = sharing_in(self.device())?.open(&memory)?;
        self.imports.add(at + told.skip, told.bytes, at, ticket);
        Ok(at + told.skip)
    }

    /// Ends the import at `addr`, after a wait for all work of the device, which may still use it.
    pub fn import_close(&self, addr: u64) -> Result<()> {
        let _pass = self.enter()?;
        may_block()?;
        let (bytes, memory, ticket) = self.imports.take(addr)?;
        match sharing_in(self.device()).and_then(|s| s.close(memory)) {
            Ok(()) => Ok(()),
            Err(e) => {
                self.imports.add(addr, bytes, memory, ticket);
                Err(e)
            }
        }
    }

    /// Whether `addr` is in imported memory of this device.
    pub(crate) fn has_import(&self, addr: u64) -> bool {
        self.imports.check(addr, 0).is_some()
    }

    /// Freed blocks that other processes still use: how many, and their bytes. What they do not use any more can
    /// be used again from here on.
    pub fn poll_exports(&self) -> Result<(u64, u64)> {
        let _pass = self.enter()?;
        self.memory().poll_exports()
    }

    /// Whether work on `peer` could use memory of this device at its address.
    pub fn can_access(&self, peer: &DeviceState) -> Result<bool> {
        let _pass = self.enter()?;
        let _there = peer.enter()?;
        if self.id() == peer.id() || self.type_name() != peer.type_name() {
            return Ok(self.id() == peer.id());
        }
        self.device().peers().map_or(Ok(false), |p| p.can_admit(peer.device()))
    }

    /// From now on work on `peer` may use all pooled memory of this device at its address, what comes later too.
    /// `Unsupported` where it cannot.
    pub fn enable_peer_access(&self, peer: &DeviceState) -> Result<()> {
        let _pass = self.enter()?;
        let _there = peer.enter()?;
        if self.type_name() != peer.type_name() {
            fail!(Code::Unsupported, "{:?} and {:?} share no memory", self.type_name(), peer.type_name());
        }
        match self.device().peers() {
            Some(peers) => peers.admit(peer.device()),
            None if self.id() == peer.id() => Ok(()),
            None => fail!(Code::Unsupported, "that device cannot use memory of this one"),
        }
    }

    /// Lets the work of both devices use the memory of the other, as far as the driver can and unless an option of either
    /// says `peer_access:off`. What fails changes nothing, now or later: copies find another way, and try again.
    pub(crate) fn share_access_with(&self, other: &DeviceState) {
        let wanted = |d: &DeviceState| d.memory().options().on(Key::PeerAccess);
        if !wanted(self) || !wanted(other) {
            return;
        }
        for (of, to) in [(self, other), (other, self)] {
            if let Some(peers) = of.device().peers() {
                let _ = peers.invite(to.device());
            }
        }
    }

    /// The device ends.
    pub(crate) fn close_imports(&self) {
        self.imports.clear();
    }
}

/// How memory of the device goes to other processes.
fn sharing(device: &dyn Device) -> Result<&dyn Sharing> {
    let none =
        || Error::new(Code::Unsupported, "memory of this device cannot be shared with other processes");
    device.sharing().ok_or_else(none)
}

/// How memory of other processes comes to the device.
fn sharing_in(device: &dyn Device) -> Result<&dyn Sharing> {
    let none = || Error::new(Code::Unsupported, "this device cannot use memory of other processes");
    device.sharing().ok_or_else(none)
}

fn fabric(device: &dyn Device) -> Result<&dyn Fabric> {
    let none = || Error::new(Code::Unsupported, "no fabric handles: the memory of this device has none");
    device.sharing().and_then(Sharing::fabric).ok_or_else(none)
}

/// The granules, as a device wants them.
fn wide(pieces: &Pieces) -> Vec<Run> {
    pieces.granules.iter().map(|g| (g.first.into(), g.count.into())).collect()
}

/// The same memory, as the device shares it.
pub(super) fn whole(device: &dyn Device, mut pieces: Pieces) -> Result<Pieces> {
    if let Some(sharing) = device.sharing().filter(|_| !pieces.granules.is_empty()) {
        let (before, runs) = sharing.whole(&wide(&pieces))?;
        pieces.skip += before * GRANULE;
        pieces.granules = runs.iter().map(|r| GranuleRun { first: r.0 as u32, count: r.1 as u32 }).collect();
    }
    Ok(pieces)
}

/// Whether a block goes out by fabric handles. `Unsupported`, with the reason, where it must and cannot.
pub(super) fn by_fabric(
    device: &dyn Device,
    pieces: &Pieces,
    maps: bool,
    wish: ExportHandle,
) -> Result<bool> {
    if wish == ExportHandle::PosixFd {
        return Ok(false);
    }
    let can = if maps {
        fabric(device).and_then(|f| f.check(&wide(pieces)))
    } else {
        Err(Error::new(Code::Unsupported, "no fabric handles: the memory is not mapped"))
    };
    match can {
        Err(e) if wish == ExportHandle::Auto && e.code() == Code::Unsupported => Ok(false),
        other => other.map(|()| true),
    }
}

/// For `Memory::export`: what goes out for the memory that `device` has shared.
pub(super) fn export_of(
    device: &dyn Device,
    pieces: &Pieces,
    segment: Option<(u64, u64)>,
    by_fabric: bool,
    ticket: OwnedFd,
) -> Result<Export> {
    let (shared, skip) = match segment {
        Some((addr, skip)) => (sharing(device)?.segment(addr)?, skip),
        None if by_fabric => (fabric(device)?.granules(&wide(pieces))?, pieces.skip),
        None => (sharing(device)?.granules(&wide(pieces))?, pieces.skip),
    };
    let mut fds = vec![ticket];
    fds.extend(shared.fds);
    let memory = crate::device::sharing::Shared {
        kind: shared.kind,
        identity: shared.identity,
        pieces: shared.pieces,
        handle: shared.handle,
        fabric: shared.fabric,
        fds: Vec::new(),
    };
    let info = Info { bytes: pieces.bytes, skip, fd_count: fds.len() as u32, memory };
    Ok(Export { info: info.encode(), fds })
}
