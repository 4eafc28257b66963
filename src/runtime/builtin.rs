//! The device types that are there from the start: `cpu` and `host`.
use crate::base::error::Result;
use crate::device::DeviceType;
use std::sync::Arc;

/// How the host device is (stand-in until device::host lands).
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    /// Devices.
    pub device_count: usize,
    /// Bytes.
    pub capacity: u64,
    /// Mapping.
    pub mapping: bool,
}
impl HostOptions {
    pub(crate) fn check(&self) -> Result<()> {
        Ok(())
    }
}

pub(crate) fn types(_host: Option<HostOptions>) -> Result<Vec<Arc<dyn DeviceType>>> {
    Ok(Vec::new())
}

/// Options.
pub fn host_options(device_count: u32, capacity: u64, disable_mapping: u32) -> Result<HostOptions> {
    Ok(HostOptions { device_count: device_count as usize, capacity, mapping: disable_mapping == 0 })
}
