//! Memory of a CUDA device for other processes, and theirs here: granules as file descriptors where the device
//! maps, else whole segments by the driver's older handles. And memory for other devices of the process.

use super::device::CudaDevice;
use super::mapping::GRANULE;
use crate::base::error::{Code, Error, Result};
use crate::device::share::{Exported, Imported, Piece, SharedKind};
use crate::fail;
use std::sync::PoisonError;

impl CudaDevice {
    pub(super) fn export_granules(&self, granules: &[(u64, u64)]) -> Result<Exported> {
        let identity = self.driver().uuid(self.primary().device)?;
        let fds = self.mapping()?.export(granules)?;
        let piece = |i| Piece { fd: i as u32, offset: 0, bytes: GRANULE };
        let pieces = (0..fds.len()).map(piece).collect();
        Ok(Exported { kind: SharedKind::CudaGranules, identity, pieces, handle: [0; 64], fds })
    }

    pub(super) fn export_segment(&self, addr: u64) -> Result<Exported> {
        Ok(Exported {
            kind: SharedKind::CudaSegment,
            identity: self.driver().uuid(self.primary().device)?,
            pieces: Vec::new(),
            handle: self.driver().ipc_handle(addr)?,
            fds: Vec::new(),
        })
    }

    pub(super) fn open_foreign(&self, memory: &Imported<'_>) -> Result<u64> {
        if memory.kind == SharedKind::HostFile {
            return Err(Error::new(Code::InvalidArgument, "this is memory of a host device"));
        }
        if memory.identity != self.driver().uuid(self.primary().device)? {
            return Err(Error::new(
                Code::InvalidArgument,
                "the memory lies on another card than this device",
            ));
        }
        if memory.kind == SharedKind::CudaSegment {
            let addr = self.driver().ipc_open(memory.handle).map_err(|e| {
                let hint = "the driver opens this in another process than its own only";
                Error::new(e.code(), format!("{e}; {hint}"))
            })?;
            let mut segments = self.foreign_segments().lock().unwrap_or_else(PoisonError::into_inner);
            *segments.entry(addr).or_default() += 1;
            return Ok(addr);
        }
        memory.check_pieces(GRANULE)?;
        let whole = |p: &Piece| p.offset == 0 && p.bytes == GRANULE;
        if !memory.pieces.iter().all(whole) {
            return Err(Error::new(Code::InvalidArgument, "each piece must be a granule of its own"));
        }
        let fds: Vec<_> = memory.pieces.iter().map(|p| memory.fds[p.fd as usize]).collect();
        self.mapping()?.open_foreign(&fds)
    }

    /// The device was waited for.
    pub(super) fn close_foreign(&self, addr: u64) -> Result<()> {
        if let Some(done) = self.mapping().ok().and_then(|m| m.close_foreign(addr)) {
            return done;
        }
        {
            let mut segments = self.foreign_segments().lock().unwrap_or_else(PoisonError::into_inner);
            let Some(n) = segments.get_mut(&addr) else {
                fail!(Code::UnknownPointer, "{addr:#x} is not memory of another process");
            };
            *n -= 1;
            if *n == 0 {
                segments.remove(&addr);
            }
        }
        self.driver().ipc_close(addr)
    }

    /// The end of the device: all of them. The first failure is returned.
    pub(super) fn close_foreign_segments(&self) -> Result<()> {
        let all = {
            let mut segments = self.foreign_segments().lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *segments)
        };
        let mut first = Ok(());
        for addr in all.into_iter().flat_map(|(addr, n)| (0..n).map(move |_| addr)) {
            first = first.and(self.driver().ipc_close(addr));
        }
        first
    }

    pub(super) fn could_admit(&self, peer: &CudaDevice) -> Result<bool> {
        Ok(self.is(peer) || self.driver().can_access_peer(peer.primary().device, self.primary().device)?)
    }

    /// The peer's context is current.
    pub(super) fn admit_peer(&self, peer: &CudaDevice) -> Result<()> {
        if !self.could_admit(peer)? {
            return Err(Error::new(Code::Unsupported, "the driver gives that device no access to this one"));
        }
        if self.is(peer) || peer.reach(self) {
            return Ok(());
        }
        // Tried before in vain, or refused now: the driver tells why.
        self.driver().enable_peer(self.primary().context)?;
        if let Ok(m) = self.mapping() {
            m.admit(peer.primary().device)?;
        }
        peer.note_reach(self);
        Ok(())
    }
}
