//! The out-of-memory report of a device without pooling. No free memory is kept there, so it consists of the limits,
//! the live and the waiting blocks, and the device's error.

use super::Unpooled;
use super::account::Account;
use crate::base::inline::Few;
use crate::base::sort;
use crate::base::sync::system::lock;
use crate::core::{
    Numbers, OomHolder, OomMissing, OomReason, OomReport, PoolId, Trials, WaitSums, note_holder, note_tag,
    note_wait,
};
use crate::device::StreamId;

/// The most blocks that are visited one by one.
const MOST: usize = 16_384;
/// The most streams whose blocks are told apart.
const MOST_STREAMS: usize = 64;

impl Unpooled {
    /// The report of a request that has just failed on this thread.
    pub(crate) fn explain(&self, pool: PoolId, stream: Option<StreamId>, bytes: u64) -> OomReport {
        let rounded = self.rounded(bytes);
        let mut r = OomReport::default();
        (r.pool, r.stream, r.requested) = (pool, stream, bytes);
        (r.rounded, r.device_most) = (rounded.unwrap_or(u64::MAX), self.sizes.max_alloc);
        if let Some(t) = Trials::last(bytes) {
            (r.tried, r.device_said) = (t.tried(), t.device_said);
        }
        let waits = {
            let mut a = lock(&self.account);
            note_sums(&mut r, &mut a);
            note_holders(&mut r, &a);
            note_waits(&mut r, &a)
        };
        r.waits = waits.top(|serial| self.order().id_of_serial(serial));
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
    for (&pool, s) in &a.pools {
        let waiting = s.active.current.saturating_sub(s.allocated.current);
        let (live, blocks) = (s.allocated.current, s.blocks.current);
        note_holder(
            &mut r.pools,
            OomHolder { pool: Some(pool), live, blocks, waiting, ..OomHolder::default() },
        );
    }
    a.tags.each(|tag, s| note_tag(&mut r.tags, tag, s));
    let mut streams = Few::<OomHolder, MOST_STREAMS>::new();
    let mut missing = a.blocks.len() > MOST;
    for b in a.blocks.values().take(MOST) {
        let stream = b.info.stream;
        if !streams.iter().any(|h| h.stream == stream)
            && !streams.push(OomHolder { stream, ..OomHolder::default() })
        {
            missing = true;
            continue;
        }
        if let Some(holder) = streams.iter_mut().find(|h| h.stream == stream) {
            holder.live += b.info.size;
            holder.blocks += 1;
        }
    }
    sort::by_key(&mut streams, |h| h.stream);
    streams.iter().for_each(|&h| note_holder(&mut r.streams, h));
    if missing {
        r.missing |= OomMissing::STREAMS;
    }
}

fn note_waits(r: &mut OomReport, a: &Account) -> WaitSums {
    let (mut sums, mut streams) = (WaitSums::default(), Numbers::default());
    sums.more |= a.freed.len() > MOST;
    for f in a.freed.iter().take(MOST) {
        note_wait(&mut sums, &mut streams, f.waits.stream_serials(), false, f.block.info.size);
    }
    if sums.more {
        r.missing |= OomMissing::WAITS;
    }
    r.waiting_streams = streams.count() as u32;
    sums
}
