//! What the host asks about devices. The sizes are those of the served device. A forked child gets what its parent had
//! been told.

use super::facts::{self, Fact};
use super::session::{device, device_count, forked, ordinal, served, store};
use crate::base::error::{Code, Error, Result};
use crate::device::MemoryInfo;
use crate::paddle::abi::{C_Device, C_Status};
use crate::paddle::status::done;

pub(super) unsafe extern "C-unwind" fn get_device_count(out: *mut usize) -> C_Status {
    done(|| store(out, device_count()?))
}

/// The ids are 0..count-1, as PaddlePaddle requires.
pub(super) unsafe extern "C-unwind" fn get_device_list(out: *mut usize) -> C_Status {
    done(|| {
        let count = device_count()?;
        // Checked even if there is no device to list.
        if out.is_null() {
            return Err(Error::new(Code::InvalidArgument, "the list is NULL"));
        }
        // SAFETY: by the ABI the host's list has room for `get_device_count` ids.
        (0..count).try_for_each(|i| store(unsafe { out.add(i) }, i))
    })
}

/// The memory of the device now; in a forked child, as it was last reported.
fn memory(d: C_Device) -> Result<MemoryInfo> {
    if forked() {
        served()?;
        let at = ordinal(d)?;
        let (total, free) = (facts::get(at, Fact::Total)?, facts::get(at, Fact::Free)?);
        return Ok(MemoryInfo { total: total as u64, free: free as u64 });
    }
    let device = device(d)?;
    let info = device.info()?;
    // Memory that we hold without a block in it is as available as the device's free memory.
    let pooled = device.memory().stats();
    let idle = pooled.reserved.current.saturating_sub(pooled.allocated.current);
    let memory =
        MemoryInfo { total: info.memory.total, free: (info.memory.free + idle).min(info.memory.total) };
    facts::note(device.ordinal(), &facts::numbers(&info.sizes, &info.versions), Some(memory));
    Ok(memory)
}

pub(super) unsafe extern "C-unwind" fn device_memory_stats(
    d: C_Device,
    total: *mut usize,
    free: *mut usize,
) -> C_Status {
    done(|| {
        let memory = memory(d)?;
        if total.is_null() || free.is_null() {
            return Err(Error::new(Code::InvalidArgument, "the place for the answer is NULL"));
        }
        store(total, memory.total as usize)?;
        store(free, memory.free as usize)
    })
}

fn number(d: C_Device, fact: Fact) -> Result<usize> {
    if forked() {
        served()?;
        return facts::get(ordinal(d)?, fact);
    }
    let state = device(d)?;
    let numbers = facts::numbers(&state.device().sizes(), &state.device().versions());
    Ok(numbers[fact as usize])
}

macro_rules! numbers {
    ($($name:ident = $fact:ident;)*) => {$(
        pub(super) unsafe extern "C-unwind" fn $name(d: C_Device, out: *mut usize) -> C_Status {
            done(|| store(out, number(d, Fact::$fact)?))
        }
    )*};
}

numbers! {
    device_min_chunk_size = MinChunk;
    device_max_chunk_size = MaxChunk;
    device_max_alloc_size = MaxAlloc;
    device_extra_padding_size = Padding;
    device_init_alloc_size = InitAlloc;
    device_realloc_size = Realloc;
    get_compute_capability = Capability;
    get_runtime_version = Runtime;
    get_driver_version = Driver;
}
