//! What all devices of the type share.

use super::handles::Makers;
use super::peers::Siblings;
use std::ffi::OsString;

/// The settings of the device type `cuda`. Fixed when the library is first used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// A driver library to load instead of the system's.
    pub library: Option<OsString>,
    /// A management library (NVML) to count GPUs with, instead of the system's.
    pub nvml: Option<OsString>,
    /// Whether devices that can map memory do so.
    pub mapping: bool,
    /// \[B\] of the handles in which mapped memory is taken at most while there is plenty; less than two granules: each
    /// granule has a handle of its own. `None`: 64 MiB on devices of 4 GiB or more, a granule on others.
    pub tie: Option<u64>,
    /// \[B\] that must be taken at once for that. `None`: four such handles.
    pub tie_growth: Option<u64>,
    /// With the option `backend:cudaMallocAsync`: unused bytes beyond this go back to the device at each wait.
    pub release_threshold: u64,
}

impl Default for CudaOptions {
    fn default() -> CudaOptions {
        CudaOptions {
            library: None,
            nvml: None,
            mapping: true,
            tie: None,
            tie_growth: None,
            release_threshold: u64::MAX,
        }
    }
}

/// What the devices of the type share.
pub(super) struct Family {
    pub born: u64, // `fork::count()` when CUDA was started
    pub makers: Makers,
    pub siblings: Siblings,
}
