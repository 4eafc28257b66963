//! The structs of DLPack 1, laid out as its header has them (dmlc/dlpack, include/dlpack/dlpack.h,
//! version 1.1), and the arithmetic of a tensor's extent.
//!
//! They are defined again here, so that building needs no header; the C++ tests compare each size and offset with the
//! real header. Input from another library is checked before it is used: an extent is computed in 128 bits, so no shape
//! can overflow it.

use crate::base::error::{Code, Error, Result};
use crate::fail;
use std::ffi::c_void;
use std::mem::{offset_of, size_of};

/// The major version that this library reads and writes; all 1.x have the same layout.
pub(crate) const MAJOR: u32 = 1;
/// The minor version that brought the newest part in use: the flag for padded types of less than a byte.
pub(crate) const MINOR: u32 = 1;
/// More dimensions than any framework has.
pub(crate) const MAX_DIMENSIONS: i32 = 64;

pub(crate) const CPU: i32 = 1;
pub(crate) const CUDA: i32 = 2;
pub(crate) const CUDA_HOST: i32 = 3;
pub(crate) const ROCM_HOST: i32 = 11;
pub(crate) const EXT_DEV: i32 = 12;
pub(crate) const CUDA_MANAGED: i32 = 13;

bitflags::bitflags! {
    /// `DLPACK_FLAG_BITMASK_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Flags: u64 {
        const READ_ONLY = 1;
        const IS_COPIED = 2;
        const SUBBYTE_PADDED = 4;
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DlDevice {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DlType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct DlTensor {
    pub(crate) data: *mut c_void,
    pub(crate) device: DlDevice,
    pub(crate) ndim: i32,
    pub(crate) dtype: DlType,
    pub(crate) shape: *mut i64,
    pub(crate) strides: *mut i64,
    pub(crate) byte_offset: u64,
}

/// `DLManagedTensor`, which knows neither version nor flags.
#[repr(C)]
pub(crate) struct Legacy {
    pub(crate) tensor: DlTensor,
    pub(crate) context: *mut c_void,
    pub(crate) deleter: Option<unsafe extern "C-unwind" fn(*mut Legacy)>,
}

/// `DLManagedTensorVersioned`. Everything before `flags` keeps its offset in every later version.
#[repr(C)]
pub(crate) struct Versioned {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) context: *mut c_void,
    pub(crate) deleter: Option<unsafe extern "C-unwind" fn(*mut Versioned)>,
    pub(crate) flags: u64,
    pub(crate) tensor: DlTensor,
}

const _: () = {
    assert!(size_of::<DlTensor>() == 48);
    assert!(offset_of!(DlTensor, device) == 8);
    assert!(offset_of!(DlTensor, ndim) == 16);
    assert!(offset_of!(DlTensor, dtype) == 20);
    assert!(offset_of!(DlTensor, shape) == 24);
    assert!(offset_of!(DlTensor, byte_offset) == 40);
    assert!(size_of::<Legacy>() == 64);
    assert!(size_of::<Versioned>() == 80);
    assert!(offset_of!(Versioned, deleter) == 16);
    assert!(offset_of!(Versioned, tensor) == 32);
};

/// Which bytes the elements of a tensor touch, counted from the address of its first element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Bytes from the lowest element to the first one; more than 0 only with negative strides.
    pub(crate) before: u64,
    /// Bytes from the first element to the end of the highest one.
    pub(crate) after: u64,
    /// Elements; 0 when any dimension is 0.
    pub(crate) count: u64,
    /// Whether the elements lie row by row without gaps.
    pub(crate) compact: bool,
}

fn too_large<T>() -> Result<T> {
    Err(Error::new(Code::OutOfRange, "the tensor's extent is more than any memory"))
}

/// The span of a tensor. `strides` are in elements; `None` is compact. `padded`: each element of less than a byte takes
/// one.
pub(crate) fn span(dtype: DlType, shape: &[i64], strides: Option<&[i64]>, padded: bool) -> Result<Span> {
    if dtype.bits == 0 || dtype.lanes == 0 {
        fail!(Code::InvalidArgument, "the dtype has bits {} and lanes {}", dtype.bits, dtype.lanes);
    }
    let mut bits = i128::from(dtype.bits) * i128::from(dtype.lanes);
    if padded || bits >= 8 {
        bits = (bits + 7) / 8 * 8; // DLPack counts whole bytes for an element of 8 bits and more
    }
    let (mut count, mut low, mut high) = (1_i128, 0_i128, 0_i128);
    let mut compact = true;
    for (n, &size) in shape.iter().enumerate().rev() {
        if size < 0 {
            fail!(Code::InvalidArgument, "dimension {n} of the shape is {size}");
        }
        let stride = strides.map_or(count, |s| i128::from(s[n]));
        compact &= size == 1 || stride == count;
        count *= i128::from(size);
        let last = i128::from(size - 1).max(0) * stride;
        low += last.min(0);
        high += last.max(0);
        if count > i128::from(u64::MAX) || high - low > i128::from(u64::MAX) {
            // Every later dimension could still be 0; no memory at all is touched then.
            if shape.contains(&0) {
                break;
            }
            return too_large();
        }
    }
    if shape.contains(&0) {
        return Ok(Span { before: 0, after: 0, count: 0, compact: true });
    }
    let before = u64::try_from((-low * bits + 7) / 8);
    let after = u64::try_from(((high + 1) * bits + 7) / 8);
    let (Ok(before), Ok(after), Ok(count)) = (before, after, u64::try_from(count)) else {
        return too_large();
    };
    if before.checked_add(after).is_none() {
        return too_large();
    }
    Ok(Span { before, after, count, compact })
}

#[cfg(test)]
mod tests {
    use super::*;

    const F32: DlType = DlType { code: 2, bits: 32, lanes: 1 };
    const F4: DlType = DlType { code: 17, bits: 4, lanes: 1 };

    fn is(dtype: DlType, shape: &[i64], strides: Option<&[i64]>, want: (u64, u64, u64, bool)) {
        let s = span(dtype, shape, strides, false).unwrap();
        assert_eq!((s.before, s.after, s.count, s.compact), want, "{shape:?} {strides:?}");
    }

    #[test]
    fn a_span_is_what_the_elements_touch() {
        is(F32, &[], None, (0, 4, 1, true));
        is(F32, &[3, 5], None, (0, 60, 15, true));
        is(F32, &[3, 5], Some(&[5, 1]), (0, 60, 15, true));
        is(F32, &[3, 5], Some(&[1, 3]), (0, 60, 15, false));
        is(F32, &[3, 5], Some(&[100, 1]), (0, 820, 15, false));
        is(F32, &[7], Some(&[-1]), (24, 4, 7, false));
        is(F32, &[7], Some(&[0]), (0, 4, 7, false));
        is(F32, &[1, 5], Some(&[i64::MAX, 1]), (0, 20, 5, true));
        is(F32, &[3, 0, i64::MAX, i64::MAX, i64::MAX], None, (0, 0, 0, true));
        is(F4, &[7], None, (0, 4, 7, true));
        assert_eq!(span(F4, &[7], None, true).unwrap().after, 7);
        is(DlType { code: 2, bits: 32, lanes: 4 }, &[2], None, (0, 32, 2, true));
        is(DlType { code: 6, bits: 9, lanes: 1 }, &[3], None, (0, 6, 3, true));
    }

    #[test]
    fn no_shape_overflows() {
        for (shape, strides) in [
            (vec![i64::MAX, i64::MAX], None),
            (vec![i64::MAX; 64], None),
            (vec![i64::MAX], None),
            (vec![2; 64], None),
            (vec![3, 3], Some(vec![i64::MAX, i64::MIN])),
            (vec![i64::MAX; 64], Some(vec![i64::MIN; 64])),
        ] {
            let e = span(F32, &shape, strides.as_deref(), false).unwrap_err();
            assert_eq!(e.code(), Code::OutOfRange, "{shape:?}");
        }
        assert_eq!(span(F32, &[-1], None, false).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(
            span(DlType { code: 2, bits: 0, lanes: 1 }, &[1], None, false).unwrap_err().code(),
            Code::InvalidArgument
        );
    }
}
