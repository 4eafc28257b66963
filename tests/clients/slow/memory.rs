//! Memory of the slow plugin, and copies. Device memory has addresses that no processor can touch; what was given back
//! stays for work that was queued before, as the interface asks of a plugin.

use super::streams::submit;
use super::{ANSWER, call, id, lock, put};
use millpond::paddle::abi::*;
use std::ffi::c_void;

/// The test's own answer, if it has one.
pub(super) fn answer(
    name: &'static str,
    d: C_Device,
    size: usize,
    out: *mut *mut c_void,
) -> Option<C_Status> {
    let answer = ANSWER.lock().unwrap().clone()?;
    let (status, address) = answer(name, id(d), size)?;
    put(out, address as usize as *mut c_void);
    Some(status)
}

pub(super) unsafe extern "C-unwind" fn device_memory_allocate(
    d: C_Device,
    out: *mut *mut c_void,
    size: usize,
) -> C_Status {
    call("device_memory_allocate", || {
        if let Some(status) = answer("device_memory_allocate", d, size, out) {
            return status;
        }
        let mut s = lock();
        let of = id(d) as usize;
        if s.taken(id(d)) + size > s.manner.capacity {
            return C_Status::FAILED;
        }
        let at = s.next_address[of];
        s.next_address[of] += size.next_multiple_of(4 << 20) as u64 + (4 << 20);
        s.live[of].insert(at, vec![0; size]);
        put(out, at as usize as *mut c_void)
    })
}

pub unsafe extern "C-unwind" fn device_memory_deallocate(
    d: C_Device,
    ptr: *mut c_void,
    size: usize,
) -> C_Status {
    call("device_memory_deallocate", || {
        let mut s = lock();
        let (of, at) = (id(d) as usize, ptr as usize as u64);
        match s.live[of].remove(&at) {
            Some(memory) if memory.len() == size => {
                s.gone[of].insert(at, memory);
                C_Status::SUCCESS
            }
            _ => {
                s.fault(format!("device {of}: {size} bytes at {at:#x} are given back, which nobody has"));
                C_Status::ERROR
            }
        }
    })
}

pub(super) unsafe extern "C-unwind" fn device_memory_set(
    d: C_Device,
    ptr: *mut c_void,
    value: u8,
    size: usize,
) -> C_Status {
    call("device_memory_set", || {
        let done = lock().bytes(id(d), ptr as usize as u64, size, |b| b.fill(value));
        if done.is_some() { C_Status::SUCCESS } else { C_Status::ERROR }
    })
}

/// A copy that is done at once; `device` is that of the ends that are on one.
pub(super) fn copy(device: i32, to: Option<u64>, from: Option<u64>, host: usize, size: usize) -> C_Status {
    let mut s = lock();
    let done = match (to, from) {
        (Some(to), None) => {
            // SAFETY: the host's source of this size.
            let source = unsafe { std::slice::from_raw_parts(host as *const u8, size) };
            s.bytes(device, to, size, |b| b.copy_from_slice(source))
        }
        (None, Some(from)) => {
            // SAFETY: the host's destination of this size.
            let target = unsafe { std::slice::from_raw_parts_mut(host as *mut u8, size) };
            s.bytes(device, from, size, |b| target.copy_from_slice(b))
        }
        (Some(to), Some(from)) => {
            let bytes = s.bytes(device, from, size, |b| b.to_vec());
            bytes.and_then(|bytes| s.bytes(device, to, size, |b| b.copy_from_slice(&bytes)))
        }
        (None, None) => None,
    };
    if done.is_some() { C_Status::SUCCESS } else { C_Status::ERROR }
}

pub(super) unsafe extern "C-unwind" fn memory_copy_h2d(
    d: C_Device,
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
) -> C_Status {
    call("memory_copy_h2d", || copy(id(d), Some(dst as usize as u64), None, src as usize, size))
}

pub(super) unsafe extern "C-unwind" fn memory_copy_d2h(
    d: C_Device,
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
) -> C_Status {
    call("memory_copy_d2h", || copy(id(d), None, Some(src as usize as u64), dst as usize, size))
}

pub(super) fn queue(
    d: C_Device,
    stream: C_Stream,
    job: impl FnOnce(i32) -> C_Status + Send + 'static,
) -> C_Status {
    let mut s = lock();
    let Some(number) = s.stream(d, stream) else { return C_Status::ERROR };
    let device = id(d);
    submit(&mut s, number, Box::new(move || _ = job(device)));
    C_Status::SUCCESS
}

/// The source has been read when this returns, as the interface asks.
pub(super) unsafe extern "C-unwind" fn async_memory_copy_h2d(
    d: C_Device,
    stream: C_Stream,
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
) -> C_Status {
    call("async_memory_copy_h2d", || {
        // SAFETY: the host's source of this size.
        let bytes = unsafe { std::slice::from_raw_parts(src.cast::<u8>(), size) }.to_vec();
        let to = dst as usize as u64;
        queue(d, stream, move |device| copy(device, Some(to), None, bytes.as_ptr() as usize, bytes.len()))
    })
}

pub(super) unsafe extern "C-unwind" fn async_memory_copy_d2h(
    d: C_Device,
    stream: C_Stream,
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
) -> C_Status {
    call("async_memory_copy_d2h", || {
        let (to, from) = (dst as usize, src as usize as u64);
        queue(d, stream, move |device| copy(device, None, Some(from), to, size))
    })
}

pub(super) unsafe extern "C-unwind" fn async_memory_copy_d2d(
    d: C_Device,
    stream: C_Stream,
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
) -> C_Status {
    call("async_memory_copy_d2d", || {
        let (to, from) = (dst as usize as u64, src as usize as u64);
        queue(d, stream, move |device| copy(device, Some(to), Some(from), 0, size))
    })
}

macro_rules! host_memory {
    ($($take:ident, $give:ident;)*) => {$(
        /// Ordinary memory, for tests that put it into the table.
        pub unsafe extern "C-unwind" fn $take(d: C_Device, out: *mut *mut c_void, size: usize) -> C_Status {
            call(stringify!($take), || {
                if let Some(status) = answer(stringify!($take), d, size, out) {
                    return status;
                }
                // SAFETY: the size is not 0; the alignment a power of two.
                let at = unsafe { std::alloc::alloc(layout(size)) };
                put(out, at.cast())
            })
        }

        /// Gives it back.
        pub unsafe extern "C-unwind" fn $give(_: C_Device, ptr: *mut c_void, size: usize) -> C_Status {
            call(stringify!($give), || {
                // SAFETY: from the function above, with this size.
                unsafe { std::alloc::dealloc(ptr.cast(), layout(size)) };
                C_Status::SUCCESS
            })
        }
    )*};
}

pub(super) fn layout(size: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(size, 4096).unwrap()
}

host_memory! {
    host_memory_allocate, host_memory_deallocate;
    unified_memory_allocate, unified_memory_deallocate;
}
