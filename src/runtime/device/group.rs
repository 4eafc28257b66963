//! A device as a member of a group of programs that share its card.

use crate::base::error::{Code, Result};
use crate::fail;
use crate::runtime::device::state::DeviceState;
use crate::runtime::entry::fork;
use crate::runtime::group::card_of;
use crate::runtime::group::member::Joining;
use crate::runtime::memory::group::MemoryGroup;
use std::path::Path;
use std::time::Duration;

/// The group that a device is in: programs that share its card, and give each other what they do not use.
#[derive(Clone, Copy)]
pub struct DeviceGroup<'a>(&'a DeviceState);

/// Which card this is: its UUID, else something made of its name.
fn card(device: &DeviceState) -> [u8; 16] {
    device.device().facts().identity.uuid.unwrap_or_else(|| {
        let name = format!("{}:{}", device.type_name(), device.ordinal());
        let half = |seed: u64| {
            name.bytes().fold(seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
        };
        (u128::from(half(1)) << 64 | u128::from(half(2))).to_ne_bytes()
    })
}

impl<'a> DeviceGroup<'a> {
    /// That of a device.
    pub fn of(device: &'a DeviceState) -> DeviceGroup<'a> {
        DeviceGroup(device)
    }

    /// Joins the group whose file this is, which is made where there is none; returns the number of the member. From now
    /// on a request for which the card has too little asks the other members to give back what they do not use, and waits
    /// for that up to `wait`. `NotPermitted` if the device is in a group already; `InvalidArgument` for a file that is
    /// something else; `Busy` if the group has 64 members.
    pub fn join(self, path: &Path, name: &str, wait: Duration) -> Result<u64> {
        let _pass = self.0.enter()?;
        if wait > Duration::from_secs(3600) {
            fail!(Code::InvalidArgument, "a request waits for an hour at most, not for {wait:?}");
        }
        let device = format!("{}:{}", self.0.type_name(), self.0.ordinal());
        let joining = Joining { name, device: &device, card: card_of(card(self.0)), wait };
        MemoryGroup(self.0.memory()).join(path, joining)
    }

    /// Leaves the group. `NotPermitted` if the device is in none.
    pub fn leave(self) -> Result<()> {
        let _pass = self.0.enter()?;
        MemoryGroup(self.0.memory()).leave()
    }

    /// `NotPermitted` if the device is in no group.
    #[cfg(feature = "capi")]
    pub(crate) fn check(self) -> Result<()> {
        MemoryGroup(self.0.memory()).check()
    }

    /// Gives back what others of the group want and this device does not use, and follows a budget that was set from
    /// outside. Returns when something was done, or after `timeout`; the result is what went back, in bytes. The device may
    /// end meanwhile. `NotPermitted` if the device is in no group, or left it meanwhile.
    pub fn serve(self, timeout: Duration) -> Result<u64> {
        fork::check()?;
        MemoryGroup(self.0.memory()).serve(timeout)
    }
}
