//! What devices of one type may do with each other's memory.

use crate::base::error::{Code, Result};
use crate::fail;
use crate::runtime::device::state::DeviceState;
use crate::runtime::options::Key;

impl DeviceState {
    /// Whether work on `peer` could use memory of this device at its address.
    pub fn can_access(&self, peer: &DeviceState) -> Result<bool> {
        let _pass = self.enter()?;
        let _there = peer.enter()?;
        if self.id() == peer.id() || self.type_name() != peer.type_name() {
            return Ok(self.id() == peer.id());
        }
        self.device().peers().map_or(Ok(false), |p| p.can_admit(peer.device()))
    }

    /// From now on work on `peer` may use all pooled memory of this device at its address, what comes later too.
    /// `Unsupported` where it cannot.
    pub fn enable_peer_access(&self, peer: &DeviceState) -> Result<()> {
        let _pass = self.enter()?;
        let _there = peer.enter()?;
        if self.type_name() != peer.type_name() {
            fail!(Code::Unsupported, "{:?} and {:?} share no memory", self.type_name(), peer.type_name());
        }
        match self.device().peers() {
            Some(peers) => peers.admit(peer.device()),
            None if self.id() == peer.id() => Ok(()),
            None => fail!(Code::Unsupported, "that device cannot use memory of this one"),
        }
    }

    /// Lets the work of both devices use the memory of the other, as far as the driver can and unless an option of either
    /// says `peer_access:off`. What fails changes nothing, now or later: copies find another way, and try again.
    pub(crate) fn share_access_with(&self, other: &DeviceState) {
        let wanted = |d: &DeviceState| d.memory().options().on(Key::PeerAccess);
        if !wanted(self) || !wanted(other) {
            return;
        }
        for (of, to) in [(self, other), (other, self)] {
            if let Some(peers) = of.device().peers() {
                let _ = peers.invite(to.device());
            }
        }
    }
}
