//! What the host asks about devices. The sizes are those of the served device.

use super::session::{device, served, store};
use crate::base::error::{Code, Error};
use crate::paddle::abi::{C_Device, C_Status};
use crate::paddle::status::done;
use crate::runtime;

pub(super) unsafe extern "C-unwind" fn get_device_count(out: *mut usize) -> C_Status {
    done(|| store(out, runtime::device_count(served()?)?))
}

/// The ids are 0..count-1, as PaddlePaddle insists.
pub(super) unsafe extern "C-unwind" fn get_device_list(out: *mut usize) -> C_Status {
    done(|| {
        let count = runtime::device_count(served()?)?;
        // The first store checks the pointer, also where there is no device to list.
        if out.is_null() {
            return Err(Error::new(Code::InvalidArgument, "the list is NULL"));
        }
        // SAFETY: by the ABI the host's list has room for `get_device_count` ids.
        (0..count).try_for_each(|i| store(unsafe { out.add(i) }, i))
    })
}

pub(super) unsafe extern "C-unwind" fn device_memory_stats(
    d: C_Device,
    total: *mut usize,
    free: *mut usize,
) -> C_Status {
    done(|| {
        let device = device(d)?;
        let memory = device.info()?.memory;
        // What we hold without a block in it can be had as what the device has free can.
        let pooled = device.memory().stats();
        let idle = pooled.reserved.current.saturating_sub(pooled.allocated.current);
        if total.is_null() || free.is_null() {
            return Err(Error::new(Code::InvalidArgument, "the place for the answer is NULL"));
        }
        store(total, memory.total as usize)?;
        store(free, (memory.free + idle).min(memory.total) as usize)
    })
}

macro_rules! numbers {
    ($($name:ident = |$state:ident| $value:expr;)*) => {$(
        pub(super) unsafe extern "C-unwind" fn $name(d: C_Device, out: *mut usize) -> C_Status {
            done(|| {
                let $state = device(d)?;
                store(out, $value as usize)
            })
        }
    )*};
}

numbers! {
    device_min_chunk_size = |s| s.device().sizes().min_chunk;
    device_max_chunk_size = |s| s.device().sizes().max_chunk;
    device_max_alloc_size = |s| s.device().sizes().max_alloc;
    device_extra_padding_size = |s| s.device().sizes().padding;
    device_init_alloc_size = |s| s.device().sizes().init_alloc;
    device_realloc_size = |s| s.device().sizes().realloc;
    get_compute_capability = |s| s.device().versions().compute_capability;
    get_runtime_version = |s| s.device().versions().runtime;
    get_driver_version = |s| s.device().versions().driver;
}
