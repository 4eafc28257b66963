//! The built-in device types `cpu`, `host` and `cuda`, and the environment variables that set their defaults:
//!
//! - `MILLPOND_HOST_DEVICES`: how many devices `host` has
//! - `MILLPOND_HOST_CAPACITY`: bytes of each, with an optional suffix K, M or G (powers of 1024)
//! - `MILLPOND_HOST_MAPPING`: 0 or 1, whether they can map; `cpu` never does
//! - `MILLPOND_CUDA_LIBRARY`: the CUDA driver library to load instead of the system's
//! - `MILLPOND_NVML_LIBRARY`: the management library to count GPUs with instead of the system's
//! - `MILLPOND_CUDA_MAPPING`: 0 or 1, whether `cuda` maps where it can
//! - `MILLPOND_CUDA_HANDLE`: bytes of the largest handles of its mapped memory, with such a suffix
//!
//! An unset or empty variable means the built-in default. A bad value makes the first use of the library fail, with an
//! error that names the variable.

use crate::base::error::{Code, Error, Result};
use crate::device::DeviceType;
use crate::device::cuda::{CudaOptions, CudaType};
use crate::device::host::{
    CAPACITIES, CAPACITIES_WANTED, HostOptions, HostType, MAX_DEVICES, machine_memory,
};
use crate::fail;
use std::sync::Arc;

const DEVICES: &str = "MILLPOND_HOST_DEVICES";
const CAPACITY: &str = "MILLPOND_HOST_CAPACITY";
const MAPPING: &str = "MILLPOND_HOST_MAPPING";
const CUDA_LIBRARY: &str = "MILLPOND_CUDA_LIBRARY";
const NVML_LIBRARY: &str = "MILLPOND_NVML_LIBRARY";
const CUDA_MAPPING: &str = "MILLPOND_CUDA_MAPPING";
const CUDA_HANDLE: &str = "MILLPOND_CUDA_HANDLE";

/// The value of a variable; `None` when it is unset or empty.
fn read<T>(name: &str, parse: impl FnOnce(&str) -> Option<T>, want: &str) -> Result<Option<T>> {
    let Some(value) = std::env::var_os(name).filter(|v| !v.is_empty()) else { return Ok(None) };
    match value.to_str().and_then(|v| parse(v.trim())) {
        Some(v) => Ok(Some(v)),
        None => fail!(Code::InvalidArgument, "the environment variable {name} is {value:?}: want {want}"),
    }
}

fn parse_devices(text: &str) -> Option<usize> {
    text.parse().ok().filter(|n| (1..=MAX_DEVICES).contains(n))
}

/// Parses `"512M"` and the like into bytes; not 0.
fn parse_bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let n: u64 = digits.trim_end().parse().ok()?;
    n.checked_mul(1 << shift).filter(|&n| n != 0)
}

fn parse_switch(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn mapping_of_environment() -> Result<bool> {
    Ok(read(MAPPING, parse_switch, "0 or 1")?.unwrap_or(true))
}

/// The options of `cuda` from the environment.
fn cuda_options() -> Result<CudaOptions> {
    let path = |name| std::env::var_os(name).filter(|v| !v.is_empty());
    Ok(CudaOptions {
        library: path(CUDA_LIBRARY),
        nvml: path(NVML_LIBRARY),
        mapping: read(CUDA_MAPPING, parse_switch, "0 or 1")?.unwrap_or(true),
        tie: read(CUDA_HANDLE, parse_bytes, "bytes, such as 64M")?,
        ..CudaOptions::default()
    })
}

/// The options of `host`; the environment's defaults replace zeros. `disable_mapping` is 0 or 1. The C API uses this
/// for [`configure_host`](crate::runtime::configure_host).
pub fn host_options(device_count: u32, capacity: u64, disable_mapping: u32) -> Result<HostOptions> {
    let device_count = match device_count as usize {
        0 => {
            let want = format!("a number from 1 to {MAX_DEVICES}");
            read(DEVICES, parse_devices, &want)?.unwrap_or(0)
        }
        n => n,
    };
    let capacity = match capacity {
        0 => {
            let parse = |t: &str| parse_bytes(t).filter(|n| CAPACITIES.contains(n));
            let want = format!("{CAPACITIES_WANTED} in bytes, as 1073741824, 1024M or 1G");
            read(CAPACITY, parse, &want)?.unwrap_or(0)
        }
        n => n,
    };
    let mapping = match disable_mapping {
        0 => mapping_of_environment()?,
        1 => false,
        n => fail!(Code::InvalidArgument, "disable_mapping is {n}: want 0 or 1"),
    };
    Ok(HostOptions { device_count, capacity, mapping })
}

/// Fails for options that no host device can have.
pub(crate) fn check(options: &HostOptions) -> Result<()> {
    if options.device_count > MAX_DEVICES {
        fail!(
            Code::InvalidArgument,
            "{} host devices asked for, at most {MAX_DEVICES}",
            options.device_count
        );
    }
    let n = options.capacity;
    if n != 0 && !CAPACITIES.contains(&n) {
        return Err(Error::formatted(
            Code::InvalidArgument,
            format_args!("a host device of {n} B: need {CAPACITIES_WANTED}"),
        ));
    }
    Ok(())
}

/// The built-in types, with the options that the user set, or those of the environment.
pub(crate) fn types(
    host: Option<HostOptions>,
    cuda: Option<CudaOptions>,
) -> Result<Vec<Arc<dyn DeviceType>>> {
    let host = match host {
        Some(o) => o,
        None => host_options(0, 0, 0)?,
    };
    check(&host)?;
    // Without mapping, so that a forked child has its own copy of the parent's blocks, as of all other host memory.
    let cpu = HostOptions { device_count: 1, capacity: machine_memory(), mapping: false };
    let cuda = match cuda {
        Some(o) => o,
        None => cuda_options()?,
    };
    Ok(vec![
        Arc::new(HostType::new("cpu", cpu)),
        Arc::new(HostType::new("host", host)),
        Arc::new(CudaType::new(cuda)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_suffixes() {
        assert_eq!(parse_bytes("4096"), Some(4096));
        assert_eq!(parse_bytes("3k"), Some(3 << 10));
        assert_eq!(parse_bytes("512M"), Some(512 << 20));
        assert_eq!(parse_bytes("2 G"), Some(2 << 30));
        for bad in ["", "G", "0", "-1", "1T", "1.5G", "0x10", "99999999999999999999", "18446744073709551615K"]
        {
            assert_eq!(parse_bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn device_counts_and_switches() {
        assert_eq!(parse_devices("64"), Some(64));
        for bad in ["0", "65", "two", "-1"] {
            assert_eq!(parse_devices(bad), None, "{bad}");
        }
        assert_eq!((parse_switch("0"), parse_switch("1")), (Some(false), Some(true)));
        assert_eq!(parse_switch("yes"), None);
    }

    #[test]
    fn options_out_of_range_are_refused() {
        for (devices, capacity, disable) in [(65, 0, 0), (1, 4096, 0), (1, u64::MAX, 0), (1, 1 << 30, 2)] {
            let e = host_options(devices, capacity, disable).and_then(|o| check(&o)).unwrap_err();
            assert_eq!(e.code(), Code::InvalidArgument);
        }
    }
}
