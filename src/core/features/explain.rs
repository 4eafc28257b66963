//! Why a request found no memory: collects the report that its error carries.
//!
//! Nearly everything comes from counters, so that it costs some microseconds for each heap and nothing for each live
//! block. Only waiting blocks ([`MOST_WAITS`] at most) and free blocks ([`MOST_FREE`] of a heap at most) are visited
//! one by one. The device is not called. All heaps are locked meanwhile, so that all parts belong to one moment and sum
//! up.

use super::super::blocks::Blocks;
use super::super::ground::{Ground, Growing};
use super::super::heap::LockedHeap;
use super::super::heap::counters::ALL;
use super::super::report::{OomHolder, OomMissing, OomReason, OomReport, OomWait, WaitsFor};
use super::super::shape::Tier;
use super::super::supply::Trials;
use super::super::types::{NO_POOL, PoolId, RETIRED, UNORDERED};
use super::super::units::{GRANULE, LARGE_SHIFT, granule_bytes};
use crate::base::error::Error;
use std::collections::{BTreeMap, BTreeSet};

/// The most waiting blocks whose waits are read.
const MOST_WAITS: usize = 4096;
/// The most free blocks of a heap that are searched for the largest range.
const MOST_FREE: usize = 65_536;

/// The part of the report that comes from one heap. Sizes are bytes.
struct Share {
    pool: u32,
    stream: u64,
    live: u64,
    blocks: u64,
    waiting: u64,
    free: u64,
    largest: u64,
    sleeps: bool,
}

/// The explanation of a failure of a pond.
#[derive(Clone, Copy)]
pub(crate) struct Explain<'a> {
    ground: &'a Ground,
}

impl<'a> Explain<'a> {
    pub(crate) fn of(ground: &'a Ground) -> Explain<'a> {
        Explain { ground }
    }

    /// The report of a request to the pool `named` that failed with `e`.
    #[cold]
    pub(crate) fn request(self, named: PoolId, stream: Option<u64>, bytes: u64, e: &Error) -> OomReport {
        let ground = self.ground;
        let pool = stream.and_then(|s| ground.order.route(s)).unwrap_or(named);
        let trials = e.detail::<Trials>();
        let charged = Blocks::of(ground).charged(bytes, ground.config.max_alloc).unwrap_or(bytes);
        let mut r = OomReport {
            pool,
            stream,
            requested: bytes,
            rounded: charged,
            pool_limit: ground.pool(pool).map_or(0, |p| p.limit()),
            device_limit: ground.limit(),
            device_most: ground.config.max_alloc,
            maps: ground.config.mapping,
            pooled: true,
            captured: stream.is_some_and(|s| ground.order.is_captured(s)),
            ..OomReport::default()
        };
        if let Some(t) = &trials {
            r.tried = t.tried();
            r.device_said = t.said();
        }
        let ids = ground.order.ids_by_serial();
        let heaps = {
            let g = ground.growing();
            let mut locked = ground.lock_all();
            locked.iter_mut().for_each(|h| Blocks::of(ground).drain(h));
            self.note_waits(&mut r, &locked, &ids);
            let heaps = self.shares(&mut r, &g, &locked);
            self.note_sums(&mut r, &g, &heaps);
            heaps
        };
        note_holders(&mut r, &heaps);
        r.tags = OomReport::tagged(ground.tags().lock().all());
        r.reason = self.reason_of(&r, trials.is_some_and(|t| !t.books));
        r
    }

    /// Reads each heap.
    fn shares(self, r: &mut OomReport, g: &Growing<'_>, locked: &[LockedHeap<'_>]) -> Vec<Share> {
        // A segment may end inside its last granule: the heap that owns this granule has that much less.
        let mut beyond: BTreeMap<u32, i64> = BTreeMap::new();
        for s in g.segments.iter() {
            let touched = s.part.touched();
            let more = granule_bytes(touched.count) as i64 - s.bytes as i64;
            *beyond.entry(self.ground.maps.granule(touched.end() - 1).heap()).or_default() += more;
        }
        let mut shares = Vec::with_capacity(locked.len());
        for h in locked {
            let pool = h.heap.pool();
            if pool == NO_POOL {
                continue;
            }
            let [live, _, blocks] = h.counters.current()[ALL].map(|n| n.max(0) as u64);
            let sleeps = self.ground.sleeps(PoolId(pool));
            let more = beyond.get(&h.heap.index).copied().unwrap_or(0);
            let owned = (granule_bytes(1) as i64 * h.granules as i64 - more).max(0) as u64;
            let waiting = h.counters.waiting()[ALL][0].max(0) as u64;
            let room = h.free_room(MOST_FREE);
            if !room.complete {
                r.missing |= OomMissing::LARGEST;
            }
            // What lies apart helps where it can be put together.
            let whole = if self.ground.config.mapping && !h.contiguous { room.granules * GRANULE } else { 0 };
            shares.push(Share {
                pool,
                stream: h.heap.stream(),
                live,
                blocks,
                waiting,
                free: if sleeps { 0 } else { owned.saturating_sub(live + waiting) },
                largest: if sleeps { 0 } else { whole.max(u64::from(room.largest) << LARGE_SHIFT) },
                sleeps,
            });
        }
        shares
    }

    fn note_sums(self, r: &mut OomReport, g: &Growing<'_>, heaps: &[Share]) {
        let taken = g.account.taken(r.pool.0).device;
        r.reserved = g.account.reserved();
        r.pool_reserved = g.account.of(r.pool.0).reserved.current;
        r.sleeping = g.account.device().sleeping.current;
        let most = match r.device_limit {
            0 => self.ground.config.max_alloc,
            limit => limit.min(self.ground.config.max_alloc),
        };
        r.unreserved = most.saturating_sub(taken);
        let stream = r.stream.filter(|&s| self.ground.backing.ordered_by(s)).unwrap_or(UNORDERED);
        let mut known = 0;
        for h in heaps {
            r.waiting += h.waiting;
            if h.sleeps {
                continue;
            }
            r.live += h.live;
            known += h.live + h.waiting + h.free;
            let (free, largest) = match (h.pool == r.pool.0, h.stream == stream) {
                (true, true) => (&mut r.free_here, &mut r.largest_here),
                (true, false) => (&mut r.free_other_streams, &mut r.largest_elsewhere),
                _ => (&mut r.free_other_pools, &mut r.largest_elsewhere),
            };
            *free += h.free;
            *largest = h.largest.max(*largest);
        }
        r.moving = r.reserved.saturating_sub(known);
    }

    /// Notes what the waiting blocks wait for. The heaps are locked.
    fn note_waits(self, r: &mut OomReport, locked: &[LockedHeap<'_>], ids: &BTreeMap<u64, u64>) {
        let mut left = MOST_WAITS;
        let mut by: BTreeMap<WaitsFor, (u64, u64)> = BTreeMap::new();
        let mut streams = BTreeSet::new();
        for h in locked {
            let all = h.waiting.all();
            if all.len() > left {
                r.missing |= OomMissing::WAITS;
            }
            for w in &all[..all.len().min(left)] {
                let charged = self.ground.maps.charge(w.id);
                let exported = w.exports.iter().any(|f| !f.is_passed());
                if exported {
                    r.exported += charged;
                }
                streams.extend(w.waits.stream_serials());
                let on = match w.waits.stream_serials().next() {
                    _ if exported => WaitsFor::Exported,
                    None => WaitsFor::Nothing,
                    Some(0) => WaitsFor::AllStreams,
                    Some(serial) => ids.get(&serial).map_or(WaitsFor::Ended, |&s| WaitsFor::Stream(s)),
                };
                let (bytes, blocks) = by.entry(on).or_default();
                *bytes += charged;
                *blocks += 1;
            }
            left -= all.len().min(left);
        }
        r.waiting_streams = streams.len() as u32;
        r.waits = OomWait::top(by);
    }

    /// Why the request failed. `searched`: every step was tried.
    fn reason_of(self, r: &OomReport, searched: bool) -> OomReason {
        // What the request needs if none of its stream's free memory helps.
        let (shape, config) = (&self.ground.maps.shape, &self.ground.config);
        let small = shape.size(r.rounded.min(config.max_alloc)).tier != Tier::Large;
        let need = match config.mapping {
            _ if small => GRANULE,
            true => r.rounded.checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX),
            false => r.rounded,
        };
        r.reason_for(need, searched)
    }
}

/// The pools and streams that hold the most.
fn note_holders(r: &mut OomReport, heaps: &[Share]) {
    let mut pools: BTreeMap<u32, OomHolder> = BTreeMap::new();
    let mut streams: BTreeMap<Option<u64>, OomHolder> = BTreeMap::new();
    for h in heaps {
        let stream = Some(h.stream).filter(|&s| s != UNORDERED && s != RETIRED);
        let of_stream = streams.entry(stream).or_insert(OomHolder { stream, ..OomHolder::default() });
        let pool = Some(PoolId(h.pool));
        let of_pool = pools.entry(h.pool).or_insert(OomHolder { pool, ..OomHolder::default() });
        for holder in [of_stream, of_pool] {
            if !h.sleeps {
                holder.live += h.live;
                holder.blocks += h.blocks;
            }
            holder.waiting += h.waiting;
            holder.free += h.free;
        }
    }
    r.pools = OomReport::top(pools.into_values());
    r.streams = OomReport::top(streams.into_values());
}
