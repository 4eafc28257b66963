//! Memory of a CUDA device for other processes, and theirs here: granules as file descriptors or by fabric handles
//! where the device maps, else whole segments by the driver's older handles. And memory for other devices of the
//! process.

use super::device::CudaDevice;
use super::mapping::{GRANULE, Source};
use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::lock;
use crate::device::share::{Exported, Imported, Piece, SharedKind};
use crate::fail;

fn one_each(granules: usize) -> Vec<Piece> {
    (0..granules).map(|i| Piece { fd: i as u32, offset: 0, bytes: GRANULE }).collect()
}

/// Each piece must be a granule of its own, of a descriptor or handle that is there.
fn check_granules(memory: &Imported<'_>) -> Result<()> {
    memory.check_pieces(GRANULE)?;
    if memory.pieces.iter().all(|p| p.offset == 0 && p.bytes == GRANULE) {
        return Ok(());
    }
    Err(Error::new(Code::InvalidArgument, "each piece must be a granule of its own"))
}

impl CudaDevice {
    pub(super) fn export_granules(&self, granules: &[(u64, u64)]) -> Result<Exported> {
        let identity = self.driver().uuid(self.primary().device)?;
        let fds = self.mapping()?.export(granules)?;
        Ok(Exported {
            kind: SharedKind::CudaGranules,
            identity,
            pieces: one_each(fds.len()),
            handle: [0; 64],
            fabric: Vec::new(),
            fds,
        })
    }

    /// Without the card's identity: the memory may be used from other cards, and from those of other machines.
    pub(super) fn export_fabric(&self, granules: &[(u64, u64)]) -> Result<Exported> {
        let fabric = self.mapping()?.export_fabric(granules)?;
        Ok(Exported {
            kind: SharedKind::CudaFabric,
            identity: [0; 16],
            pieces: one_each(fabric.len()),
            handle: [0; 64],
            fabric,
            fds: Vec::new(),
        })
    }

    pub(super) fn export_segment(&self, addr: u64) -> Result<Exported> {
        Ok(Exported {
            kind: SharedKind::CudaSegment,
            identity: self.driver().uuid(self.primary().device)?,
            pieces: Vec::new(),
            handle: self.driver().ipc_handle(addr)?,
            fabric: Vec::new(),
            fds: Vec::new(),
        })
    }

    pub(super) fn open_foreign(&self, memory: &Imported<'_>) -> Result<u64> {
        if memory.kind == SharedKind::HostFile {
            return Err(Error::new(Code::InvalidArgument, "this is memory of a host device"));
        }
        if memory.kind == SharedKind::CudaFabric {
            return self.open_fabric(memory);
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
            let mut segments = lock(self.foreign_segments());
            *segments.entry(addr).or_default() += 1;
            return Ok(addr);
        }
        check_granules(memory)?;
        let fd = |p: &Piece| Source::Fd(memory.fds[p.fd as usize]);
        self.mapping()?.open_foreign(&memory.pieces.iter().map(fd).collect::<Vec<_>>())
    }

    fn open_fabric(&self, memory: &Imported<'_>) -> Result<u64> {
        check_granules(memory)?;
        let handle = |p: &Piece| Source::Fabric(&memory.fabric[p.fd as usize]);
        let sources: Vec<_> = memory.pieces.iter().map(handle).collect();
        self.mapping()?.open_foreign(&sources).map_err(|e| {
            if e.code() != Code::NotPermitted {
                return e;
            }
            let hint = "this process needs the IMEX channel of the exporter's";
            Error::new(e.code(), format!("{e}; {hint}"))
        })
    }

    /// The device was waited for.
    pub(super) fn close_foreign(&self, addr: u64) -> Result<()> {
        if let Some(done) = self.mapping().ok().and_then(|m| m.close_foreign(addr)) {
            return done;
        }
        {
            let mut segments = lock(self.foreign_segments());
            let Some(n) = segments.get_mut(&addr) else {
                fail!(Code::UnknownPointer, "{addr:#x} is not memory of another process");
            };
            *n -= 1;
            if *n == 0 {
                segments.remove(&addr);
            }
        }
        self.driver().ipc_close(addr).inspect_err(|_| {
            *lock(self.foreign_segments()).entry(addr).or_default() += 1; // it is still open
        })
    }

    /// The end of the device: all of them. The first failure is returned.
    pub(super) fn close_foreign_segments(&self) -> Result<()> {
        let all = {
            let mut segments = lock(self.foreign_segments());
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
