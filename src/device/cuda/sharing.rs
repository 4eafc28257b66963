//! The facet of memory that is exported to other processes or imported from them: granules as file descriptors or
//! fabric handles if the device maps, otherwise whole segments by the driver's older handles.

use super::card::Card;
use super::granules::{Granules, Source};
use super::mapping::Mapping;
use crate::base::error::{Code, Error, Result};
use crate::base::ordered::Map;
use crate::base::sync::system::{Mutex, lock};
use crate::device::GRANULE;
use crate::device::Run;
use crate::device::sharing::{self, DmaBufs, Exported, Fabric, Imported, Piece, SharedKind};
use crate::fail;
use cudarc::driver::sys::CUdevice_attribute;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A piece for each handle of so many bytes; and the handles.
fn one_each<T>(shared: Vec<(T, u64)>) -> (Vec<Piece>, Vec<T>) {
    let piece = |(i, (handle, bytes))| (Piece { fd: i as u32, offset: 0, bytes }, handle);
    shared.into_iter().enumerate().map(piece).unzip()
}

/// Checks that each piece begins where an existing descriptor or handle does. How large that is only the driver knows.
fn check_granules(memory: &Imported<'_>) -> Result<()> {
    memory.check_pieces(GRANULE)?;
    if memory.pieces.iter().all(|p| p.offset == 0) {
        return Ok(());
    }
    Err(Error::new(Code::InvalidArgument, "each piece must be a handle of its own"))
}

/// Who can reach memory of a device beside its own process.
pub(super) struct Reach {
    /// Whether mapped memory goes to other processes. A segment has a handle of its own, whatever mapped memory has.
    pub exportable: bool,
    /// Whether others on the bus reach mapped memory.
    pub mapped_by_bus: bool,
    /// The same of memory that is not mapped.
    pub segments_by_bus: bool,
}

/// The sharing facet of one device.
pub(super) struct Sharing {
    card: Arc<Card>,
    granules: Option<Arc<Granules>>,
    mapping: Option<Arc<Mapping>>,
    reach: Reach,
    /// Open segments of other processes: address -> how often each is open.
    segments: Mutex<Map<u64, u32>>,
}

impl Sharing {
    pub(super) fn new(
        card: Arc<Card>,
        granules: Option<Arc<Granules>>,
        mapping: Option<Arc<Mapping>>,
        reach: Reach,
    ) -> Sharing {
        Sharing { card, granules, mapping, reach, segments: Mutex::default() }
    }

    /// Whether memory is mapped: the driver may refuse the window of addresses.
    fn maps(&self) -> bool {
        self.mapping.as_ref().is_some_and(|m| m.works())
    }

    fn mapped(&self) -> Result<&Granules> {
        let none = || Error::new(Code::Unsupported, "this CUDA device cannot map memory");
        self.granules.as_deref().ok_or_else(none)
    }

    fn open_fabric(&self, memory: &Imported<'_>) -> Result<u64> {
        check_granules(memory)?;
        let handle = |p: &Piece| (Source::Fabric(&memory.fabric[p.fd as usize]), p.bytes);
        let sources: Vec<_> = memory.pieces.iter().map(handle).collect();
        self.mapped()?.open_foreign(&sources).map_err(|e| {
            if e.code() != Code::NotPermitted {
                return e;
            }
            let hint = "this process needs the IMEX channel of the exporter's";
            Error::formatted(e.code(), format_args!("{e}; {hint}"))
        })
    }

    /// Closes all of them, at the end of the device. Returns the first failure.
    pub(super) fn clear(&self) -> Result<()> {
        let all = {
            let mut segments = lock(&self.segments);
            std::mem::take(&mut *segments)
        };
        let mut first = Ok(());
        for addr in all.into_iter().flat_map(|(addr, n)| (0..n).map(move |_| addr)) {
            first = first.and(self.card.driver().ipc_close(addr));
        }
        first
    }
}

impl sharing::Sharing for Sharing {
    fn exports(&self) -> bool {
        !self.maps() || self.reach.exportable
    }

    fn reached_by_bus(&self) -> bool {
        if self.maps() { self.reach.mapped_by_bus } else { self.reach.segments_by_bus }
    }

    fn by_granule(&self) -> bool {
        true
    }

    fn whole(&self, granules: &[Run]) -> Result<(u64, Vec<Run>)> {
        self.mapped()?.whole(granules)
    }

    fn granules(&self, granules: &[Run]) -> Result<Exported> {
        let _in = self.card.enter()?;
        let identity = self.card.driver().uuid(self.card.primary.device)?;
        let (pieces, fds) = one_each(self.mapped()?.export(granules)?);
        Ok(Exported {
            kind: SharedKind::CudaGranules,
            identity,
            pieces,
            handle: [0; 64],
            fabric: Vec::new(),
            fds,
        })
    }

    fn segment(&self, addr: u64) -> Result<Exported> {
        let _in = self.card.enter()?;
        Ok(Exported {
            kind: SharedKind::CudaSegment,
            identity: self.card.driver().uuid(self.card.primary.device)?,
            pieces: Vec::new(),
            handle: self.card.driver().ipc_handle(addr)?,
            fabric: Vec::new(),
            fds: Vec::new(),
        })
    }

    fn dma_bufs(&self) -> Option<&dyn DmaBufs> {
        let which = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;
        // A driver that does not know the attribute has no dma-buf.
        let known = self.card.driver().attribute(self.card.primary.device, which);
        (known.unwrap_or(0) != 0).then_some(self as _)
    }

    fn open(&self, memory: &Imported<'_>) -> Result<u64> {
        let _in = self.card.enter()?;
        if memory.kind == SharedKind::HostFile {
            return Err(Error::new(Code::InvalidArgument, "this is memory of a host device"));
        }
        if memory.kind == SharedKind::CudaFabric {
            return self.open_fabric(memory);
        }
        if memory.identity != self.card.driver().uuid(self.card.primary.device)? {
            return Err(Error::new(
                Code::InvalidArgument,
                "the memory lies on another card than this device",
            ));
        }
        if memory.kind == SharedKind::CudaSegment {
            let addr = self.card.driver().ipc_open(memory.handle).map_err(|e| {
                let hint = "the driver opens this in another process than its own only";
                Error::formatted(e.code(), format_args!("{e}; {hint}"))
            })?;
            let mut segments = lock(&self.segments);
            *segments.entry(addr).or_default() += 1;
            return Ok(addr);
        }
        check_granules(memory)?;
        let fd = |p: &Piece| (Source::Fd(memory.fds[p.fd as usize]), p.bytes);
        self.mapped()?.open_foreign(&memory.pieces.iter().map(fd).collect::<Vec<_>>())
    }

    fn close(&self, addr: u64) -> Result<()> {
        let _in = self.card.enter()?;
        self.card.rest()?;
        if let Some(done) = self.granules.as_ref().and_then(|g| g.close_foreign(addr)) {
            return done;
        }
        {
            let mut segments = lock(&self.segments);
            let Some(n) = segments.get_mut(&addr) else {
                fail!(Code::UnknownPointer, "{addr:#x} is not memory of another process");
            };
            *n -= 1;
            if *n == 0 {
                segments.remove(&addr);
            }
        }
        self.card.driver().ipc_close(addr).inspect_err(|_| {
            *lock(&self.segments).entry(addr).or_default() += 1; // it is still open
        })
    }

    fn fabric(&self) -> Option<&dyn Fabric> {
        self.granules.is_some().then_some(self)
    }
}

impl DmaBufs for Sharing {
    fn export(&self, addr: u64, bytes: u64) -> Result<OwnedFd> {
        let _in = self.card.enter()?;
        self.card.driver().range_export(addr, bytes).map_err(|e| {
            if e.code() != Code::InvalidArgument {
                return e;
            }
            let hint = "a block in several handles may be refused; one of a contiguous pool lies in one";
            Error::formatted(e.code(), format_args!("{e}; {hint}"))
        })
    }
}

impl Fabric for Sharing {
    fn make(&self, on: bool) {
        if let Some(g) = &self.granules {
            g.set_fabric(on);
        }
    }

    fn check(&self, granules: &[Run]) -> Result<()> {
        let _in = self.card.enter()?;
        self.mapped()?.check_fabric(granules)
    }

    /// Without the card's identity: other cards may open the memory, also on other machines.
    fn granules(&self, granules: &[Run]) -> Result<Exported> {
        let _in = self.card.enter()?;
        let (pieces, fabric) = one_each(self.mapped()?.export_fabric(granules)?);
        Ok(Exported {
            kind: SharedKind::CudaFabric,
            identity: [0; 16],
            pieces,
            handle: [0; 64],
            fabric,
            fds: Vec::new(),
        })
    }
}
