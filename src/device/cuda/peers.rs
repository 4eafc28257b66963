//! The facet of other devices of the type: copies, and access to each other's memory.

use super::card::Card;
use super::granules::Granules;
use super::pool::Pool;
use crate::base::error::{Code, Error, Result};
use crate::base::ordered::Map;
use crate::base::sync::system::{Mutex, lock};
use crate::device::{self, Device, StreamId};
use std::sync::{Arc, Weak};

/// The open devices of the type, by ordinal.
pub(super) type Siblings = Arc<Mutex<Map<usize, Weak<Peers>>>>;

/// A device as its siblings see it.
pub(super) struct Peers {
    card: Arc<Card>,
    granules: Option<Arc<Granules>>,
    pool: Option<Arc<Pool>>,
    /// Whether this device's context reaches another device's memory, by ordinal, where that is certain.
    reaches: Mutex<Map<usize, bool>>,
    siblings: Siblings,
}

impl Peers {
    pub(super) fn new(
        card: Arc<Card>,
        granules: Option<Arc<Granules>>,
        pool: Option<Arc<Pool>>,
        siblings: Siblings,
    ) -> Arc<Peers> {
        let ordinal = card.ordinal;
        let made = Arc::new(Peers { card, granules, pool, reaches: Mutex::default(), siblings });
        lock(&made.siblings).insert(ordinal, Arc::downgrade(&made));
        made
    }

    fn sibling(&self, of: &dyn Device) -> Result<Arc<Peers>> {
        let found = lock(&self.siblings).get(&of.ordinal()).and_then(Weak::upgrade);
        found.ok_or_else(|| Error::new(Code::InvalidArgument, "that device is not open"))
    }

    fn is(&self, other: &Peers) -> bool {
        self.card.ordinal == other.card.ordinal
    }

    /// Whether this device's context, which is current, can use the other's memory directly. What the driver says of the
    /// devices holds; where only the attempt failed, the next one may not.
    fn reach(&self, to: &Peers) -> Result<bool> {
        if let Some(&known) = lock(&self.reaches).get(&to.card.ordinal) {
            return Ok(known);
        }
        let driver = self.card.driver();
        let can = driver.can_access_peer(self.card.primary.device, to.card.primary.device)?;
        if can {
            driver.enable_peer(to.card.primary.context)?;
            if let Some(g) = &to.granules {
                g.admit(self.card.primary.device)?;
            }
            if let Some(p) = &to.pool {
                p.admit(self.card.primary.device)?;
            }
        }
        lock(&self.reaches).insert(to.card.ordinal, can);
        Ok(can)
    }

    /// Whether a copy may go directly; the driver has another way.
    fn goes_directly(&self, other: &Peers) -> bool {
        self.is(other) || self.reach(other).unwrap_or(false)
    }

    fn queue_to(&self, stream: StreamId, to: &Peers, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let driver = self.card.driver();
        if self.goes_directly(to) {
            return driver.copy_within_async(dst, src, bytes, stream);
        }
        let (there, here) = (to.card.primary.context, self.card.primary.context);
        driver.copy_peer_async((dst, there), (src, here), bytes, stream)
    }

    /// As `queue_to`, but on a stream of this device, which is the destination.
    fn queue_from(&self, stream: StreamId, from: &Peers, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let driver = self.card.driver();
        if self.goes_directly(from) {
            return driver.copy_within_async(dst, src, bytes, stream);
        }
        let (here, there) = (self.card.primary.context, from.card.primary.context);
        driver.copy_peer_async((dst, here), (src, there), bytes, stream)
    }

    fn could_admit(&self, peer: &Peers) -> Result<bool> {
        let (there, here) = (peer.card.primary.device, self.card.primary.device);
        Ok(self.is(peer) || self.card.driver().can_access_peer(there, here)?)
    }
}

impl device::Peers for Peers {
    fn copy(&self, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let to = self.sibling(to)?;
        let _there = to.card.enter()?;
        if bytes == 0 {
            return Ok(());
        }
        to.card.rest_or_null()?;
        self.card.driver().stream_synchronize(0)?; // the stream of the current context, which is the other device's
        let _in = self.card.enter()?;
        self.card.rest_or_null()?;
        self.queue_to(0, &to, dst, src, bytes)?;
        self.card.driver().stream_synchronize(0)
    }

    fn copy_async(&self, stream: StreamId, to: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let to = self.sibling(to)?;
        let _there = to.card.enter()?;
        let _in = self.card.enter()?;
        self.card.known(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        self.queue_to(stream, &to, dst, src, bytes)
    }

    fn copy_from_async(
        &self,
        stream: StreamId,
        from: &dyn Device,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()> {
        let from = self.sibling(from)?;
        let _there = from.card.enter()?;
        let _in = self.card.enter()?;
        self.card.known(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        self.queue_from(stream, &from, dst, src, bytes)
    }

    fn can_admit(&self, peer: &dyn Device) -> Result<bool> {
        let _in = self.card.enter()?;
        match self.sibling(peer) {
            Ok(peer) => self.could_admit(&peer),
            Err(_) => Ok(false),
        }
    }

    fn admit(&self, peer: &dyn Device) -> Result<()> {
        let peer = self.sibling(peer)?;
        let _here = self.card.enter()?;
        let _in = peer.card.enter()?; // its context is current
        if self.is(&peer) || peer.reach(self)? {
            return Ok(());
        }
        Err(Error::new(Code::Unsupported, "the driver gives that device no access to this one"))
    }

    fn invite(&self, peer: &dyn Device) -> Result<()> {
        let peer = self.sibling(peer)?;
        let _here = self.card.enter()?;
        let _in = peer.card.enter()?;
        // Asked first: for devices that do not reach each other, access to the driver's own pool may seem to be granted, and
        // the pool's next request fails.
        if self.is(&peer) || !self.could_admit(&peer)? {
            return Ok(());
        }
        self.card.driver().enable_peer(self.card.primary.context)?;
        let guest = peer.card.primary.device;
        let granules = self.granules.as_ref().map_or(Ok(()), |g| g.invite(guest));
        granules.and(self.pool.as_ref().map_or(Ok(()), |p| p.invite(guest)))
    }
}
