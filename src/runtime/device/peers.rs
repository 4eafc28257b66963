//! What devices of one type may do with each other's memory.

use crate::base::error::{Code, Result};
use crate::fail;
use crate::runtime::device::state::DeviceState;
use crate::runtime::options::Key;

/// What devices of one type may do with memory of an open device. Get it with [`DeviceState::peer_access`].
#[derive(Clone, Copy)]
pub struct PeerAccess<'a>(pub(super) &'a DeviceState);

impl DeviceState {
    /// What other devices may do with memory of the device.
    pub fn peer_access(&self) -> PeerAccess<'_> {
        PeerAccess(self)
    }
}

impl PeerAccess<'_> {
    /// Whether work on `peer` could use memory of this device at its address.
    pub fn is_possible(&self, peer: &DeviceState) -> Result<bool> {
        let _pass = self.0.enter()?;
        let _there = peer.enter()?;
        if self.0.id() == peer.id() || self.0.type_name() != peer.type_name() {
            return Ok(self.0.id() == peer.id());
        }
        self.0.device().peers().map_or(Ok(false), |p| p.can_admit(peer.device()))
    }

    /// From now on work on `peer` may use all pooled memory of this device at its address, what comes later too.
    /// `Unsupported` where it cannot.
    pub fn enable(&self, peer: &DeviceState) -> Result<()> {
        let _pass = self.0.enter()?;
        let _there = peer.enter()?;
        if self.0.type_name() != peer.type_name() {
            fail!(Code::Unsupported, "{:?} and {:?} share no memory", self.0.type_name(), peer.type_name());
        }
        match self.0.device().peers() {
            Some(peers) => peers.admit(peer.device()),
            None if self.0.id() == peer.id() => Ok(()),
            None => fail!(Code::Unsupported, "that device cannot use memory of this one"),
        }
    }

    /// Lets the work of both devices use the memory of the other, as far as the driver can and unless an option of either
    /// says `peer_access:off`. What fails changes nothing, now or later: copies find another way, and try again.
    pub(crate) fn share_with(&self, other: &DeviceState) {
        let wanted = |d: &DeviceState| d.memory().settings().options().on(Key::PeerAccess);
        if !wanted(self.0) || !wanted(other) {
            return;
        }
        for (of, to) in [(self.0, other), (other, self.0)] {
            if let Some(peers) = of.device().peers() {
                let _ = peers.invite(to.device());
            }
        }
    }
}
