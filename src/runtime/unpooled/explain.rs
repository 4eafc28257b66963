//! The out-of-memory report of a device without pooling. No free memory is kept there, so it consists of the limits,
//! the live and the waiting blocks, and the device's error.

use super::Unpooled;
use super::account::Account;
use crate::base::error::Error;
use crate::base::sync::system::lock;
use crate::core::{OomHolder, OomMissing, OomReason, OomReport, OomWait, PoolId, Trials, WaitsFor};
use crate::device::StreamId;
use std::collections::{BTreeMap, BTreeSet};

/// The most blocks that are visited one by one.
const MOST: usize = 16_384;

impl Unpooled {
    /// The report of a request that failed with `e`.
    pub(crate) fn explain(&self, pool: PoolId, stream: Option<StreamId>, bytes: u64, e: &Error) -> OomReport {
        let rounded = self.rounded(bytes);
        let mut r = OomReport::default();
        (r.pool, r.stream, r.requested) = (pool, stream, bytes);
        (r.rounded, r.device_most) = (rounded.unwrap_or(u64::MAX), self.sizes.max_alloc);
        let trials = e.detail::<Trials>();
        r.tried = trials.as_ref().map(|t| t.tried()).unwrap_or_default();
        r.device_said = trials.map_or(String::new(), |t| t.said());
        let streams = self.order().ids_by_serial();
        let mut a = lock(&self.account);
        note_sums(&mut r, &mut a);
        note_holders(&mut r, &a);
        note_waits(&mut r, &a, &streams);
        drop(a);
        r.reason = r.reason_for(r.rounded, true);
        if r.rounded > self.sizes.max_alloc {
            r.reason = OomReason::LargerThanDevice;
        }
        r
    }
}

fn note_sums(r: &mut OomReport, a: &mut Account) {
    let device = a.device;
    let own = a.pools.get(&r.pool).copied().unwrap_or_default();
    (r.pool_limit, r.device_limit) = (own.limit, device.limit);
    (r.reserved, r.pool_reserved) = (device.reserved.current, own.reserved.current);
    r.live = device.allocated.current;
    r.waiting = device.active.current.saturating_sub(device.allocated.current);
    r.moving = r.reserved.saturating_sub(r.live + r.waiting);
    let most = if device.limit == 0 { r.device_most } else { device.limit.min(r.device_most) };
    r.unreserved = most.saturating_sub(r.reserved + a.claims.values().sum::<u64>());
}

fn note_holders(r: &mut OomReport, a: &Account) {
    r.pools = OomReport::top(a.pools.iter().map(|(&pool, s)| OomHolder {
        pool: Some(pool),
        live: s.allocated.current,
        blocks: s.blocks.current,
        waiting: s.active.current.saturating_sub(s.allocated.current),
        ..OomHolder::default()
    }));
    r.tags = OomReport::tagged(a.tags.all());
    let mut streams: BTreeMap<Option<StreamId>, OomHolder> = BTreeMap::new();
    if a.blocks.len() > MOST {
        r.missing |= OomMissing::STREAMS;
    }
    for b in a.blocks.values().take(MOST) {
        let stream = b.info.stream;
        let holder = streams.entry(stream).or_insert(OomHolder { stream, ..OomHolder::default() });
        holder.live += b.info.size;
        holder.blocks += 1;
    }
    r.streams = OomReport::top(streams.into_values());
}

fn note_waits(r: &mut OomReport, a: &Account, ids: &BTreeMap<u64, u64>) {
    let mut by: BTreeMap<WaitsFor, (u64, u64)> = BTreeMap::new();
    let mut streams = BTreeSet::new();
    if a.freed.len() > MOST {
        r.missing |= OomMissing::WAITS;
    }
    for f in a.freed.iter().take(MOST) {
        streams.extend(f.waits.stream_serials());
        let on = match f.waits.stream_serials().next() {
            None => WaitsFor::Nothing,
            Some(0) => WaitsFor::AllStreams,
            Some(serial) => ids.get(&serial).map_or(WaitsFor::Ended, |&s| WaitsFor::Stream(s)),
        };
        let (bytes, blocks) = by.entry(on).or_default();
        *bytes += f.block.info.size;
        *blocks += 1;
    }
    r.waiting_streams = streams.len() as u32;
    r.waits = OomWait::top(by);
}
