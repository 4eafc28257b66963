//! Whether memory of a device can be created for fabric handles, which reach processes on other machines.
//!
//! This is determined when such memory is first wanted. The device's attribute is not enough: the driver refuses the
//! memory itself to a process without an IMEX channel. From then on all memory is created without fabric handles, and
//! the reason is kept for whoever asks for one.

use super::driver::{Driver, Failure, Physical, status};
use crate::base::error::{Code, Error};
use crate::device::GRANULE;
use cudarc::driver::sys::CUdevice_attribute as Attribute;

/// What is known so far.
#[derive(Default)]
pub(super) struct Fabric {
    /// Whether granules that are created now should support fabric handles.
    pub wanted: bool,
    /// Why fabric handles are impossible.
    refused: Option<String>,
    asked: bool,
}

impl Fabric {
    /// Whether the next granule is to be created with support for fabric handles.
    #[inline]
    pub(super) fn tries(&mut self, driver: Driver, physical: &Physical) -> bool {
        if !self.wanted {
            return false;
        }
        if !self.asked {
            self.asked = true;
            self.refused = ask(driver, physical).err();
        }
        self.refused.is_none()
    }

    /// A granule could be created only without support for fabric handles.
    #[cold]
    pub(super) fn refuse(&mut self, why: &Error) {
        let hint = if why.code() == Code::NotPermitted { "; this process needs an IMEX channel" } else { "" };
        self.refused = Some(format!("{}{hint}", why.message()));
    }

    /// Why a granule that was created without support has no fabric handle.
    pub(super) fn reason(&self) -> Error {
        let why = self.refused.as_deref().unwrap_or("the memory was made before they were asked for");
        Error::formatted(Code::Unsupported, format_args!("no fabric handles: {why}"))
    }
}

/// Whether a failure to create memory may be due to the fabric handles; then creation is tried without them.
pub(super) fn may_refuse(f: Failure) -> bool {
    f.status != status::OUT_OF_MEMORY
}

fn ask(driver: Driver, physical: &Physical) -> Result<(), String> {
    let known =
        driver.attribute(physical.device, Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
    match known {
        Ok(0) => return Err("the device has none".to_owned()),
        Ok(_) => {}
        Err(e) if e.code() == Code::InvalidArgument => {
            return Err("the driver is older than CUDA 12.3".to_owned());
        }
        Err(e) => return Err(e.message().to_owned()),
    }
    match driver.granularity(&Physical { fabric: true, ..*physical }) {
        Ok(g) if g != 0 && GRANULE.is_multiple_of(g) => Ok(()),
        Ok(g) => Err(format!("such memory comes in pieces of {g} bytes, not of 2 MiB")),
        Err(e) => Err(e.message().to_owned()),
    }
}
