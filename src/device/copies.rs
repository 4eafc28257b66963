//! What is said of a copy, and of host memory for copies.

/// Where the two ends of a copy lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CopyKind {
    /// Host memory to device memory.
    HostToDevice = 0,
    /// Device memory to host memory.
    DeviceToHost = 1,
    /// Within one device.
    DeviceToDevice = 2,
}

/// How host memory should be allocated; a device honours what it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostWish {
    /// Ordinary memory that is touched and then locked, instead of memory from the driver.
    pub register: bool,
    /// With `register`: how many threads touch the pages, at least 1.
    pub threads: u32,
}
