//! Blocks that other processes use, and blocks of other processes: `docs/sharing.md` has the design.
//!
//! An export makes bytes ([`info`]) and file descriptors, the first of which is a ticket (`backing/points.rs`) that
//! keeps the block's memory from being used again; the core keeps the block for it (`core/features/exports.rs`). An
//! import opens the memory at an address of its own and keeps a copy of the ticket.

use crate::base::error::{Code, Error, Result};
use crate::base::room::while_kept;
use crate::core::{GRANULE, GranuleRun, Pieces};
use crate::device::Device;
use crate::device::Run;
use crate::device::sharing::{Fabric, Sharing};
use crate::runtime::options::ExportHandle;
use std::os::fd::OwnedFd;

pub(super) mod imports;
pub(super) mod info;

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

/// How memory of the device goes to other processes.
pub(super) fn sharing(device: &dyn Device) -> Result<&dyn Sharing> {
    let none = || {
        Error::new(Code::Unsupported, "memory of the block's device cannot be shared with other processes")
    };
    device.sharing().ok_or_else(none)
}

/// How memory of other processes comes to the device.
pub(super) fn sharing_in(device: &dyn Device) -> Result<&dyn Sharing> {
    let none = || Error::new(Code::Unsupported, "this device cannot use memory of other processes");
    device.sharing().ok_or_else(none)
}

fn fabric(device: &dyn Device) -> Result<&dyn Fabric> {
    let none =
        || Error::new(Code::Unsupported, "no fabric handles: the memory of the block's device has none");
    device.sharing().and_then(Sharing::fabric).ok_or_else(none)
}

/// The granules, as a device wants them.
fn wide(pieces: &Pieces) -> Vec<Run> {
    pieces.granules.iter().map(|g| Run { first: g.first.into(), count: g.count.into() }).collect()
}

/// The same memory, as the device shares it.
pub(super) fn whole(device: &dyn Device, mut pieces: Pieces) -> Result<Pieces> {
    if let Some(sharing) = device.sharing().filter(|_| !pieces.granules.is_empty()) {
        let (before, runs) = while_kept(|| sharing.whole(&wide(&pieces)))?;
        pieces.skip += before * GRANULE;
        pieces.granules =
            runs.iter().map(|r| GranuleRun { first: r.first as u32, count: r.count as u32 }).collect();
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
        fabric(device).and_then(|f| while_kept(|| f.check(&wide(pieces))))
    } else {
        Err(Error::new(Code::Unsupported, "no fabric handles: the memory is not mapped"))
    };
    match can {
        Err(e) if wish == ExportHandle::Auto && e.code() == Code::Unsupported => Ok(false),
        other => other.map(|()| true),
    }
}

/// For `Exports::make`: what goes out for the memory that `device` has shared.
pub(super) fn export_of(
    device: &dyn Device,
    pieces: &Pieces,
    segment: Option<(u64, u64)>,
    by_fabric: bool,
    ticket: OwnedFd,
) -> Result<Export> {
    let (shared, skip) = match segment {
        Some((addr, skip)) => (while_kept(|| sharing(device)?.segment(addr))?, skip),
        None if by_fabric => (while_kept(|| fabric(device)?.granules(&wide(pieces)))?, pieces.skip),
        None => (while_kept(|| sharing(device)?.granules(&wide(pieces)))?, pieces.skip),
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
