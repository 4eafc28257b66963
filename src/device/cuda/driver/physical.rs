//! Calls for physical memory: mapping, and sharing between processes. The caller of a mapping call holds `relaxed` over
//! all the calls that belong together.

use super::{ABSENT, Driver, Failure, Outcome, location};
use crate::base::error::Result;
use cudarc::driver::sys::*;
use std::ffi::{c_char, c_int};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

impl Driver {
    pub(in super::super) fn reserve(&self, bytes: u64, align: u64) -> Result<u64> {
        let mut at = 0;
        self.check(call!(self.cuMemAddressReserve(&mut at, bytes as usize, align as usize, 0, 0)))?;
        Ok(at)
    }
    pub(in super::super) fn reserve_end(&self, addr: u64, bytes: u64) -> Result<()> {
        self.check(call!(self.cuMemAddressFree(addr, bytes as usize)))
    }
    /// [B] the size of the smallest piece of physical memory.
    pub(in super::super) fn granularity(&self, kind: &Physical) -> Result<u64> {
        let mut bytes = 0;
        let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        self.check(call!(self.cuMemGetAllocationGranularity(&mut bytes, &kind.properties(), least)))?;
        Ok(bytes as u64)
    }
    pub(in super::super) fn physical_create(&self, bytes: u64, kind: &Physical) -> Outcome<u64> {
        let mut handle = 0;
        call!(self.cuMemCreate(&mut handle, bytes as usize, &kind.properties(), 0))?;
        Ok(handle)
    }
    pub(in super::super) fn physical_release(&self, handle: u64) -> Result<()> {
        self.check(call!(self.cuMemRelease(handle)))
    }
    pub(in super::super) fn map(&self, addr: u64, bytes: u64, handle: u64) -> Result<()> {
        self.check(call!(self.cuMemMap(addr, bytes as usize, 0, handle, 0)))
    }
    pub(in super::super) fn unmap(&self, addr: u64, bytes: u64) -> Result<()> {
        self.check(call!(self.cuMemUnmap(addr, bytes as usize)))
    }
    /// Lets the devices read and write the range from now on or, with `open` false, takes the access away.
    pub(in super::super) fn set_access(
        &self,
        addr: u64,
        bytes: u64,
        devices: &[i32],
        open: bool,
    ) -> Result<()> {
        let flags = if open {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        } else {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE
        };
        let of = |&id| CUmemAccessDesc { location: location(id), flags };
        let descriptions: Vec<CUmemAccessDesc> = devices.iter().map(of).collect();
        let (at, n) = (descriptions.as_ptr(), descriptions.len());
        self.check(call!(self.cuMemSetAccess(addr, bytes as usize, at, n)))
    }
}

/// Sharing between processes.
impl Driver {
    /// A new file descriptor for a granule.
    pub(in super::super) fn physical_export(&self, handle: u64) -> Result<OwnedFd> {
        let mut fd: c_int = -1;
        let out: *mut c_int = &mut fd;
        self.check(call!(self.cuMemExportToShareableHandle(out.cast(), handle, POSIX_FD, 0)))?;
        // SAFETY: the driver has made the descriptor for this call; nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // Not inherited by programs that this process starts.
        // SAFETY: changes a flag of our own descriptor.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        Ok(fd)
    }
    /// Imports a granule of another process; the descriptor stays the caller's.
    pub(in super::super) fn physical_import(&self, fd: BorrowedFd<'_>) -> Result<u64> {
        let mut handle = 0;
        let source = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
        self.check(call!(self.cuMemImportFromShareableHandle(&mut handle, source, POSIX_FD)))?;
        Ok(handle)
    }
    /// A dma-buf of a range of whole pages of the host.
    pub(in super::super) fn range_export(&self, addr: u64, bytes: u64) -> Result<OwnedFd> {
        let mut fd: c_int = -1;
        let (out, kind): (*mut c_int, _) =
            (&mut fd, CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
        self.check(call!(self.cuMemGetHandleForAddressRange(out.cast(), addr, bytes as usize, kind, 0)))?;
        // SAFETY: the driver has made the descriptor for this call; nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: changes a flag of our own descriptor.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        Ok(fd)
    }
    /// The fabric handle of a granule that supports one: bytes that identify it but do not keep it alive.
    pub(in super::super) fn fabric_export(&self, handle: u64) -> Result<[u8; 64]> {
        let mut bytes = [0; 64];
        let out: *mut [u8; 64] = &mut bytes;
        self.check(call!(self.cuMemExportToShareableHandle(out.cast(), handle, FABRIC, 0)))?;
        Ok(bytes)
    }
    /// Imports a granule of another process, perhaps on another machine.
    pub(in super::super) fn fabric_import(&self, bytes: &[u8; 64]) -> Result<u64> {
        let mut handle = 0;
        // The driver's signature lacks `const`, but it only reads.
        let source = std::ptr::from_ref(bytes).cast_mut().cast();
        self.check(call!(self.cuMemImportFromShareableHandle(&mut handle, source, FABRIC)))?;
        Ok(handle)
    }
    /// The handle of a whole block that `alloc` returned.
    pub(in super::super) fn ipc_handle(&self, addr: u64) -> Result<[u8; 64]> {
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        self.check(call!(self.cuIpcGetMemHandle(&mut handle, addr)))?;
        Ok(handle.reserved.map(|b| b as u8))
    }
    /// Opens such a handle of another process. Opening it again returns the same address, and is counted.
    pub(in super::super) fn ipc_open(&self, handle: [u8; 64]) -> Result<u64> {
        let handle = CUipcMemHandle { reserved: handle.map(|b| b as c_char) };
        let lazy = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut at = 0;
        self.check(call!(self.cuIpcOpenMemHandle_v2(&mut at, handle, lazy)))?;
        Ok(at)
    }
    pub(in super::super) fn ipc_close(&self, addr: u64) -> Result<()> {
        self.check(call!(self.cuIpcCloseMemHandle(addr)))
    }
}

const POSIX_FD: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

const FABRIC: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
const _: () = assert!(size_of::<CUmemFabricHandle>() == 64);

/// The properties of physical memory.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Physical {
    /// The device on which it lies.
    pub device: i32,
    /// It can be given to another process as a file descriptor.
    pub exportable: bool,
    /// It can be given to processes that the fabric reaches, by a handle.
    pub fabric: bool,
    /// Other devices on the bus may be given access (GPUDirect RDMA).
    pub rdma: bool,
}

impl Physical {
    fn properties(&self) -> CUmemAllocationProp {
        // The field is a mask, though its type is that of one kind.
        let part = |on: bool, kind: CUmemAllocationHandleType| if on { kind.0 } else { 0 };
        let handles = CUmemAllocationHandleType(part(self.exportable, POSIX_FD) | part(self.fabric, FABRIC));
        CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: handles,
            location: location(self.device),
            win32HandleMetaData: null_mut(),
            allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: u8::from(self.rdma),
                usage: 0,
                reserved: [0; 4],
            },
        }
    }
}
