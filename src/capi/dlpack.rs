//! DLPack, the exchange of tensors between frameworks: a block is exported as a tensor that owns it, and anybody's
//! tensor is checked before it is used.
//!
//! `dlpack_abi.rs` has the layouts, `dlpack_owner.rs` what an exported tensor owns. Nothing in a tensor is trusted but
//! its pointers, for which its producer vouches.

use crate::base::error::{Code, Error, Result};
use crate::capi::dlpack_abi::{self as dl, DlDevice, DlTensor, DlType, Legacy, Span};
use crate::capi::dlpack_owner::{Share, export_legacy, export_versioned};
use crate::capi::guard::{Out, OutStruct, Versioned, read_struct, run};
use crate::capi::handles;
use crate::capi::pool::to_ptr;
use crate::capi::types::{millpond_device, millpond_dlpack_options, millpond_dlpack_view};
use crate::fail;
use crate::paddle::abi::C_Status;
use crate::runtime::{self, BlockOnDevice, Caps, DeviceState};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::slice;
use std::sync::Arc;

// SAFETY: repr(C), `struct_size` first, integers, raw pointers and an optional function.
unsafe impl Versioned for millpond_dlpack_options {}
// SAFETY: repr(C), `struct_size` first; only ever written.
unsafe impl Versioned for millpond_dlpack_view {}

/// A tensor of DLPack 1 (dlpack.h has the members): `version`, `manager_ctx`, `deleter`, `flags`, `dl_tensor`.
pub struct DLManagedTensorVersioned(());

/// A tensor of DLPack before 1.0 (dlpack.h has the members): `dl_tensor`, `manager_ctx`, `deleter`.
pub struct DLManagedTensor(());

/// Exports the block that starts at `ptr` as a DLPack tensor. The tensor owns the block from now on: its deleter frees
/// it as `millpond_free` does, or calls the options' `release` instead. The caller gives the tensor to a consumer, or
/// ends it with `millpond_dlpack_destroy`. `options` may be NULL: all the block's bytes, in one dimension.
///
/// The deleter may be called from any thread and at any time: after the device has ended, and after the shared object
/// with this library was closed (the first export keeps its code loaded). The memory itself ends with the device. If
/// the block cannot be freed there (in a segment callback, or while the device refuses), a later call on its device
/// frees it;
/// `release` is called everywhere except in a forked child.
///
/// DLPack knows no streams. Before the consumer gets the tensor, its stream must wait for the work that writes the
/// block (`millpond_stream_wait_event`; for a consumer on the processor `millpond_stream_synchronize`). A consumer may
/// call the deleter while its own work is still queued: call `millpond_record_stream` for that stream first, and the
/// block is reused only after that work.
///
/// The device is kDLCPU, 0 for the types "host" and "cpu", whose memory any code can access; kDLCUDA and the ordinal
/// for "cuda"; kDLExtDev and the ordinal for every other type, since only its own library knows what its addresses
/// mean, unless the options name another.
///
/// Errors: UNKNOWN_POINTER, also for a pointer inside a block; OUT_OF_RANGE for a shape that exceeds the requested size
/// of the block; UNSUPPORTED for kDLCPU if the host cannot access the memory; INVALID_ARGUMENT; NOT_INITIALIZED. After
/// an error the block is still the caller's.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_dlpack_export(
    ptr: *mut c_void,
    options: *const millpond_dlpack_options,
    out_tensor: *mut *mut DLManagedTensorVersioned,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_tensor, "out_tensor") }?;
        // SAFETY: as above.
        let (tensor, flags, share) = unsafe { describe(ptr, options) }?;
        out.set(export_versioned(tensor, flags, share).cast());
        Ok(())
    })
}

/// As `millpond_dlpack_export`, in the layout of DLPack before 1.0, which has no flags.
///
/// Errors: as `millpond_dlpack_export`; INVALID_ARGUMENT for flags.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_dlpack_export_legacy(
    ptr: *mut c_void,
    options: *const millpond_dlpack_options,
    out_tensor: *mut *mut DLManagedTensor,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_tensor, "out_tensor") }?;
        // SAFETY: as above.
        let (tensor, flags, share) = unsafe { describe(ptr, options) }?;
        if flags != 0 {
            fail!(Code::InvalidArgument, "the flags {flags:#x}: a tensor before DLPack 1.0 has none");
        }
        out.set(export_legacy(tensor, share).cast());
        Ok(())
    })
}

/// Checks a tensor that this or another library made, for work of `device` (NULL: of any), and says where its memory
/// is. The tensor stays the caller's, who ends it with `millpond_dlpack_destroy` when no work uses it any more. The
/// caller sets `inout_view->struct_size`; as much as fits is written; the shape and the strides in it are borrowed from
/// the tensor.
///
/// If the memory is a block of this library, `inout_view->block` is not NULL: `millpond_record_stream` then makes its
/// reuse wait for a stream, and the tensor may be ended while work is queued there. Other memory may only be given back
/// when the work is done (`millpond_stream_synchronize`). If several devices have a block there, it is that of the
/// device that the tensor names, otherwise of `device`.
///
/// Errors: UNSUPPORTED for another major version than 1 (ending such a tensor is safe, nothing else is);
/// INVALID_ARGUMENT for NULL, a negative or too large number of dimensions (more than 64), a missing shape, a
/// negative size, no bits or lanes, elements without memory, and memory that `device` cannot use: it takes
/// the device type and number that `millpond_dlpack_export` gives it, any block of its own, and memory that
/// the device's processor shares (a CPU device: kDLCUDAHost, kDLROCMHost, kDLCUDAManaged; "cuda":
/// kDLCUDAManaged); OUT_OF_RANGE for elements that no memory could hold, or outside their block;
/// NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_dlpack_get_view(
    device: *const millpond_device,
    tensor: *const DLManagedTensorVersioned,
    inout_view: *mut millpond_dlpack_view,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { OutStruct::new(inout_view, "inout_view") }?;
        // SAFETY: as above.
        let head = unsafe { readable(tensor.cast::<dl::Versioned>()) }?;
        if head.major != dl::MAJOR {
            fail!(
                Code::Unsupported,
                "the tensor is of DLPack {}.{}; only 1.x can be read, give it back with millpond_dlpack_destroy",
                head.major,
                head.minor
            );
        }
        // SAFETY: the layout is known now; its producer vouches for the rest.
        out.set(unsafe { view(device, &head.tensor, head.flags) }?);
        Ok(())
    })
}

/// As `millpond_dlpack_get_view`, for a tensor of DLPack before 1.0.
///
/// Errors: as `millpond_dlpack_get_view`, except for the version, which this layout does not have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_dlpack_get_view_legacy(
    device: *const millpond_device,
    tensor: *const DLManagedTensor,
    inout_view: *mut millpond_dlpack_view,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { OutStruct::new(inout_view, "inout_view") }?;
        // SAFETY: as above.
        let head = unsafe { readable(tensor.cast::<Legacy>()) }?;
        // SAFETY: as above.
        out.set(unsafe { view(device, &head.tensor, 0) }?);
        Ok(())
    })
}

/// Gives a tensor back to its producer: calls its deleter, if it has one. Any version. NULL: no-op.
///
/// Errors: INVALID_ARGUMENT for a pointer that is not aligned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_dlpack_destroy(tensor: *mut DLManagedTensorVersioned) -> C_Status {
    run(|| {
        let tensor = tensor.cast::<dl::Versioned>();
        if tensor.is_null() {
            return Ok(());
        }
        // SAFETY: a tensor by the caller's promise; the deleter keeps its place in every version.
        if let Some(deleter) = unsafe { readable(tensor) }?.deleter {
            // SAFETY: the producer's function for this tensor, which the caller gives up here.
            unsafe { deleter(tensor) };
        }
        Ok(())
    })
}

/// As `millpond_dlpack_destroy`, for a tensor of DLPack before 1.0.
///
/// Errors: INVALID_ARGUMENT for a pointer that is not aligned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_dlpack_destroy_legacy(tensor: *mut DLManagedTensor) -> C_Status {
    run(|| {
        let tensor = tensor.cast::<Legacy>();
        if tensor.is_null() {
            return Ok(());
        }
        // SAFETY: a tensor by the caller's promise.
        if let Some(deleter) = unsafe { readable(tensor) }?.deleter {
            // SAFETY: the producer's function for this tensor, which the caller gives up here.
            unsafe { deleter(tensor) };
        }
        Ok(())
    })
}

/// Anybody's tensor, as a reference.
///
/// # Safety
/// A pointer that is not NULL and is aligned must be a tensor that lives for `'a`.
unsafe fn readable<'a, T>(tensor: *const T) -> Result<&'a T> {
    if !tensor.is_aligned() {
        return Err(Error::new(Code::InvalidArgument, "the tensor is not aligned"));
    }
    // SAFETY: not NULL or refused; the rest is the caller's promise.
    unsafe { tensor.as_ref() }.ok_or_else(|| Error::new(Code::InvalidArgument, "the tensor is NULL"))
}

/// The device of DLPack that stands for one of ours; see `millpond_dlpack_export`.
fn dl_device(device: &DeviceState) -> DlDevice {
    let id = i32::try_from(device.ordinal()).unwrap_or(i32::MAX);
    match device.type_name() {
        "host" | "cpu" => DlDevice { kind: dl::CPU, id: 0 },
        "cuda" => DlDevice { kind: dl::CUDA, id },
        _ => DlDevice { kind: dl::EXT_DEV, id },
    }
}

/// Whether work of `device` may use memory of the DLPack device `at`.
fn can_use(device: &DeviceState, at: DlDevice) -> bool {
    let own = dl_device(device);
    match own.kind {
        dl::CPU => [dl::CPU, dl::CUDA_HOST, dl::ROCM_HOST, dl::CUDA_MANAGED].contains(&at.kind),
        dl::CUDA => at == own || at.kind == dl::CUDA_MANAGED,
        _ => at == own,
    }
}

/// The dimensions that C gave, as slices.
///
/// # Safety
/// `shape`, and `strides` unless it is NULL, must be readable for `ndim` numbers.
unsafe fn extents<'a>(
    ndim: i32,
    shape: *const i64,
    strides: *const i64,
) -> Result<(&'a [i64], Option<&'a [i64]>)> {
    if !(0..=dl::MAX_DIMENSIONS).contains(&ndim) {
        fail!(Code::InvalidArgument, "{ndim} dimensions; 0 to {} are possible", dl::MAX_DIMENSIONS);
    }
    if ndim == 0 {
        return Ok((&[], Some(&[])));
    }
    if shape.is_null() {
        fail!(Code::InvalidArgument, "ndim is {ndim}, but the shape is NULL");
    }
    if !shape.is_aligned() || !strides.is_aligned() {
        return Err(Error::new(Code::InvalidArgument, "the shape or the strides are not aligned"));
    }
    let n = ndim as usize;
    // SAFETY: not NULL and aligned; readable by the caller's promise.
    let shape = unsafe { slice::from_raw_parts(shape, n) };
    // SAFETY: as above.
    let strides = (!strides.is_null()).then(|| unsafe { slice::from_raw_parts(strides, n) });
    Ok((shape, strides))
}

/// What an export consists of: the tensor without its extents, its flags, and what it owns.
///
/// # Safety
/// The promises of `millpond_dlpack_export`.
unsafe fn describe(
    ptr: *mut c_void,
    options: *const millpond_dlpack_options,
) -> Result<(DlTensor, u64, Share)> {
    // SAFETY: the caller's promise.
    let o = unsafe { read_struct(options, "options") }?;
    let addr = ptr.addr() as u64;
    let (device, block) = runtime::holder(addr)?;
    if block.base != addr {
        fail!(Code::UnknownPointer, "{addr:#x} lies inside the block at {:#x}: give its start", block.base);
    }
    let Some(flags) = dl::Flags::from_bits(o.flags) else {
        fail!(Code::InvalidArgument, "unknown DLPack flags in {:#x}", o.flags);
    };
    let dtype = match (o.dtype_code, o.dtype_bits, o.dtype_lanes) {
        (0, 0, 0) => DlType { code: 1, bits: 8, lanes: 1 },
        (code, bits, lanes) => DlType { code, bits, lanes: lanes.max(1) },
    };
    let padded = flags.contains(dl::Flags::SUBBYTE_PADDED);
    let Some(room) = block.requested.checked_sub(o.byte_offset) else {
        fail!(Code::OutOfRange, "byte_offset {} passes the block's size, {}", o.byte_offset, block.requested);
    };
    let all;
    let (shape, strides) = if o.shape.is_null() && o.ndim == 0 {
        let one = dl::span(dtype, &[], None, padded)?.after;
        all = [i64::try_from(room / one).unwrap_or(i64::MAX)];
        (&all[..], None)
    } else {
        // SAFETY: the caller's promise.
        unsafe { extents(o.ndim, o.shape, o.strides) }?
    };
    let span = dl::span(dtype, shape, strides, padded)?;
    if span.before > o.byte_offset || span.after > room {
        fail!(
            Code::OutOfRange,
            "the elements lie from {} B before byte_offset {} to {} B behind it; the block has {} B",
            span.before,
            o.byte_offset,
            span.after,
            block.requested
        );
    }
    let at = export_device(&device, o.device_type)?;
    let tensor = DlTensor {
        // DLPack wants NULL as the address of a tensor without elements. The offset is added here, as other producers
        // do: some consumers (PaddlePaddle up to 3.3, for one) ignore `byte_offset`.
        data: if span.count == 0 { null_mut() } else { to_ptr(addr + o.byte_offset) },
        device: at,
        ndim: shape.len() as i32,
        dtype,
        shape: null_mut(),
        strides: null_mut(),
        byte_offset: 0,
    };
    // Since DLPack 1.2 a consumer may expect strides, so they are always set.
    let strides = strides.map_or_else(|| compact_strides(shape), <[i64]>::to_vec);
    let share = Share {
        device,
        addr,
        release: o.release,
        user_data: o.user_data,
        extents: shape.iter().copied().chain(strides).collect(),
    };
    Ok((tensor, flags.bits(), share))
}

fn export_device(device: &DeviceState, wanted: u32) -> Result<DlDevice> {
    let own = dl_device(device);
    let Ok(kind) = i32::try_from(wanted) else {
        fail!(Code::InvalidArgument, "there is no DLPack device type {wanted}");
    };
    if kind == 0 || kind == own.kind {
        return Ok(own);
    }
    if kind != dl::CPU {
        return Ok(DlDevice { kind, id: i32::try_from(device.ordinal()).unwrap_or(i32::MAX) });
    }
    if !device.device().caps().contains(Caps::HOST_ACCESS) {
        fail!(Code::Unsupported, "kDLCPU: the host cannot touch memory of {}", device.type_name());
    }
    Ok(DlDevice { kind, id: 0 })
}

/// Row-major strides. Called only for a span that was found to fit, or that has no elements.
fn compact_strides(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1_i64; shape.len()];
    for n in (1..shape.len()).rev() {
        strides[n - 1] = strides[n].saturating_mul(shape[n].max(1));
    }
    strides
}

/// The block of this library that contains `addr`, if any. If several devices have one there, it is that of the device
/// that the tensor names, or of the one that is to use it.
fn holder_of(addr: u64, wanted: Option<&Arc<DeviceState>>, named: DlDevice) -> Result<Option<BlockOnDevice>> {
    let Ok(all) = runtime::holders(addr) else { return Ok(None) };
    let one = |is: &dyn Fn(&DeviceState) -> bool| {
        let mut found = all.iter().filter(|(d, _)| is(d));
        found.next().filter(|_| found.next().is_none()).cloned()
    };
    let found = one(&|_| true)
        .or_else(|| one(&|d| dl_device(d) == named))
        .or_else(|| one(&|d| wanted.is_some_and(|w| w.id() == d.id())));
    // The error names the devices.
    found.map_or_else(|| runtime::holder(addr).map(Some), |f| Ok(Some(f)))
}

/// # Safety
/// The tensor's shape and strides must be readable for as many numbers as it has dimensions.
unsafe fn view(device: *const millpond_device, t: &DlTensor, flags: u64) -> Result<millpond_dlpack_view> {
    let wanted = if device.is_null() { None } else { Some(handles::device(device)?) };
    // SAFETY: the caller's promise.
    let (shape, strides) = unsafe { extents(t.ndim, t.shape, t.strides) }?;
    let Span { before, after, count, compact } = dl::span(
        t.dtype,
        shape,
        strides,
        dl::Flags::from_bits_retain(flags).contains(dl::Flags::SUBBYTE_PADDED),
    )?;
    let first = (t.data.addr() as u64).checked_add(t.byte_offset);
    let bounds = first.and_then(|f| f.checked_sub(before).zip(f.checked_add(after)));
    let (Some(first), Some((start, end))) = (first, bounds) else {
        return Err(Error::new(Code::OutOfRange, "the tensor's elements pass the end of all addresses"));
    };
    if count != 0 && t.data.is_null() {
        fail!(Code::InvalidArgument, "the data of a tensor of size {count} is NULL");
    }
    // Looked up only if it is an address: other device types use handles.
    let is_address = [dl::CPU, dl::CUDA, dl::CUDA_HOST, dl::ROCM_HOST, dl::EXT_DEV, dl::CUDA_MANAGED]
        .contains(&t.device.kind);
    let ours = if count != 0 && is_address { holder_of(start, wanted, t.device)? } else { None };
    if let Some((_, block)) = &ours
        && end > block.base.saturating_add(block.requested)
    {
        fail!(
            Code::OutOfRange,
            "the elements end {} B behind the block at {:#x}",
            end - block.base - block.requested,
            block.base
        );
    }
    if let Some(wanted) = wanted {
        let same = ours.as_ref().map(|(holder, _)| holder.id() == wanted.id());
        if !same.unwrap_or_else(|| can_use(wanted, t.device)) {
            fail!(
                Code::InvalidArgument,
                "the tensor lies on DLPack device type {}, number {}; {}:{} cannot use it",
                t.device.kind,
                t.device.id,
                wanted.type_name(),
                wanted.ordinal()
            );
        }
    }
    let (pool, device) = match &ours {
        Some((d, block)) => (handles::of_pool(d, block.pool)?, handles::of_device(d)),
        None => (null_mut(), null_mut()),
    };
    Ok(millpond_dlpack_view {
        struct_size: size_of::<millpond_dlpack_view>(),
        data: if count == 0 { null_mut() } else { to_ptr(first) },
        start: if count == 0 { null_mut() } else { to_ptr(start) },
        size_bytes: end - start,
        element_count: count,
        flags,
        ndim: t.ndim,
        device_type: t.device.kind as u32,
        device_id: t.device.id,
        dtype_code: t.dtype.code,
        dtype_bits: t.dtype.bits,
        dtype_lanes: t.dtype.lanes,
        is_compact: u32::from(compact),
        shape: t.shape,
        strides: t.strides,
        block: ours.as_ref().map_or(null_mut(), |(_, b)| to_ptr(b.base)),
        pool,
        device,
    })
}
