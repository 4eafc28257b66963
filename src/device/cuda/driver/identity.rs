//! Which card it is, as other libraries name it.

use super::{ABSENT, Driver, Failure};
use crate::base::error::Result;
use cudarc::driver::sys::*;
use std::ffi::{CStr, c_char, c_int};

/// [B] room for each text: names have at most 48 bytes today, bus ids 13, each with its NUL.
const ROOM: usize = 128;

/// What the driver has written, up to its NUL.
fn text(buffer: &[c_char; ROOM]) -> String {
    let bytes = buffer.map(|c| c as u8);
    CStr::from_bytes_until_nul(&bytes).map_or_else(|_| String::new(), |t| t.to_string_lossy().into_owned())
}

impl Driver {
    /// The card's product name.
    pub(in super::super) fn name(&self, device: i32) -> Result<String> {
        let mut buffer = [0; ROOM];
        self.check(call!(self.cuDeviceGetName(buffer.as_mut_ptr(), ROOM as c_int, device)))?;
        Ok(text(&buffer))
    }
    /// The card's place on the bus, as in `0000:3b:00.0`.
    pub(in super::super) fn pci_bus_id(&self, device: i32) -> Result<String> {
        let mut buffer = [0; ROOM];
        self.check(call!(self.cuDeviceGetPCIBusId(buffer.as_mut_ptr(), ROOM as c_int, device)))?;
        Ok(text(&buffer).to_ascii_lowercase())
    }
    /// Identifies the card among all cards.
    pub(in super::super) fn uuid(&self, device: i32) -> Result<[u8; 16]> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        self.check(call!(self.cuDeviceGetUuid_v2(&mut uuid, device)))?;
        Ok(uuid.bytes.map(|b| b as u8))
    }
}
