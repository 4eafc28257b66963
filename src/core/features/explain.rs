//! Why a request found no memory: collects the report that its error carries.
//!
//! Nearly everything comes from counters, so that it costs some microseconds for each heap and nothing for each live
//! block. Only waiting blocks ([`MOST_WAITS`] at most) and free blocks ([`MOST_FREE`] of a heap at most) are visited
//! one by one. The device is not called. All heaps are locked meanwhile, so that all parts belong to one moment and sum
//! up. Nothing is taken from the host's heap: it may have no memory left either.

use super::super::account::recycled;
use super::super::blocks::Blocks;
use super::super::ground::{Ground, Growing};
use super::super::heap::LockedHeap;
use super::super::heap::counters::ALL;
use super::super::report::{
    Numbers, OomHolder, OomMissing, OomReport, WaitSums, note_holder, note_tag, note_wait,
};
use super::super::shape::Tier;
use super::super::state::explaining::{Explaining, Share};
use super::super::supply::Trials;
use super::super::types::{NO_POOL, PoolId, RETIRED, UNORDERED};
use super::super::units::{GRANULE, LARGE_SHIFT, granule_bytes};
use crate::base::sort;

/// The most waiting blocks whose waits are read.
const MOST_WAITS: usize = 4096;
/// The most free blocks of a heap that are searched for the largest range.
const MOST_FREE: usize = 65_536;

/// The explanation of a failure of a pond.
#[derive(Clone, Copy)]
pub(crate) struct Explain<'a> {
    ground: &'a Ground,
}

impl<'a> Explain<'a> {
    pub(crate) fn of(ground: &'a Ground) -> Explain<'a> {
        Explain { ground }
    }

    /// The report of a request to the pool `named` that has just failed on this thread.
    #[cold]
    pub(crate) fn request(self, named: PoolId, stream: Option<u64>, bytes: u64) -> OomReport {
        let ground = self.ground;
        let pool = stream.and_then(|s| ground.order.route(s)).unwrap_or(named);
        let trials = Trials::last(bytes);
        let charged = Blocks::of(ground).charged(bytes, ground.config.max_alloc).unwrap_or(bytes);
        let mut r = OomReport {
            pool,
            stream,
            requested: bytes,
            rounded: charged,
            pool_limit: ground.pools().get(pool).map_or(0, |p| p.limit()),
            device_limit: ground.limit(),
            device_most: ground.config.max_alloc,
            maps: ground.config.mapping,
            max_split: ground.tuned.max_split(),
            no_scatter: ground.config.mapping && ground.tuned.in_one_piece(),
            contiguous: ground.pools().is_contiguous(pool.0),
            pooled: true,
            captured: stream.is_some_and(|s| ground.order.is_captured(s)),
            ..OomReport::default()
        };
        if let Some(t) = &trials {
            r.tried = t.tried();
            r.device_said = t.device_said;
        }
        let waits = {
            let g = ground.growing();
            let Explaining { locked, mut shares } = std::mem::take(&mut *ground.explaining());
            let mut locked = recycled(locked);
            let mut ledger = ground.ledger();
            ground.lock_all(&mut ledger, &mut locked);
            locked.iter_mut().for_each(|h| Blocks::of(ground).drain(h));
            let waits = self.note_waits(&mut r, &locked);
            self.shares(&mut r, &g, &locked, &mut shares);
            locked.clear();
            drop(ledger);
            self.note_sums(&mut r, &g, &shares);
            note_holders(&mut r, &mut shares);
            shares.clear();
            let mut explaining = ground.explaining();
            *explaining = Explaining { locked: recycled(locked), shares };
            // A heap that came meanwhile has made its room in the lists that are replaced here.
            let _ = explaining.make_room(ground.heaps().count() as usize);
            drop(explaining);
            waits
        };
        r.waits = waits.top(|serial| ground.order.id_of_serial(serial));
        ground.tags().lock().each(|tag, s| note_tag(&mut r.tags, tag, s));
        r.need = self.need_of(&r);
        r.reason = r.reason_for(r.need, trials.is_some_and(|t| !t.books));
        r
    }

    /// Reads each heap, in the order of their numbers.
    fn shares(self, r: &mut OomReport, g: &Growing<'_>, locked: &[LockedHeap<'_>], shares: &mut Vec<Share>) {
        for h in locked {
            let pool = h.heap.pool();
            if pool == NO_POOL {
                continue;
            }
            let [live, _, blocks] = h.counters.current()[ALL].map(|n| n.max(0) as u64);
            let sleeps = self.ground.pools().sleeps(PoolId(pool));
            let waiting = h.counters.waiting()[ALL][0].max(0) as u64;
            let room = h.free_room(MOST_FREE);
            if !room.complete {
                r.missing |= OomMissing::LARGEST;
            }
            // What lies apart helps where it can be put together.
            let whole = if self.ground.config.mapping { room.granules * GRANULE } else { 0 };
            let together = if h.contiguous || r.no_scatter { 0 } else { whole };
            let stays = pool != r.pool.0 && (r.contiguous || self.ground.pools().is_pinned(h.heap));
            shares.push(Share {
                heap: h.heap.index,
                pool,
                stream: h.heap.stream(),
                live,
                blocks,
                waiting,
                free: granule_bytes(1) * h.granules, // with what is in blocks, as yet
                largest: if sleeps { 0 } else { together.max(u64::from(room.largest) << LARGE_SHIFT) },
                whole: if sleeps || stays { 0 } else { whole },
                sleeps,
                beyond: 0,
            });
        }
        // A segment may end inside its last granule: the heap that owns this granule has that much less.
        for s in g.segments.iter() {
            let touched = s.part.touched();
            let owner = self.ground.maps.granule(touched.end() - 1).heap();
            if let Ok(n) = shares.binary_search_by_key(&owner, |s| s.heap) {
                shares[n].beyond += granule_bytes(touched.count) as i64 - s.bytes as i64;
            }
        }
        for s in shares {
            let owned = (s.free as i64 - s.beyond).max(0) as u64;
            s.free = if s.sleeps { 0 } else { owned.saturating_sub(s.live + s.waiting) };
        }
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
            r.whole_granules += h.whole;
        }
        r.moving = r.reserved.saturating_sub(known);
    }

    /// What the waiting blocks wait for, streams by their serials. The heaps are locked.
    fn note_waits(self, r: &mut OomReport, locked: &[LockedHeap<'_>]) -> WaitSums {
        let mut left = MOST_WAITS;
        let (mut sums, mut streams) = (WaitSums::default(), Numbers::default());
        for h in locked {
            let all = h.waiting.all();
            sums.more |= all.len() > left;
            for w in &all[..all.len().min(left)] {
                let charged = self.ground.maps.charge(w.id);
                let exported = w.exports.iter().any(|f| !f.is_passed());
                if exported {
                    r.exported += charged;
                }
                note_wait(&mut sums, &mut streams, w.waits.stream_serials(), exported, charged);
            }
            left -= all.len().min(left);
        }
        if sums.more {
            r.missing |= OomMissing::WAITS;
        }
        r.waiting_streams = streams.count() as u32;
        sums
    }

    /// \[B\] What the request needs if none of its stream's free memory helps.
    fn need_of(self, r: &OomReport) -> u64 {
        let (shape, config) = (&self.ground.maps.shape, &self.ground.config);
        let small = shape.size(r.rounded.min(config.max_alloc)).tier != Tier::Large;
        match config.mapping {
            _ if small => GRANULE,
            true => r.rounded.checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX),
            false => r.rounded,
        }
    }
}

/// The pools and streams that hold the most.
fn note_holders(r: &mut OomReport, heaps: &mut [Share]) {
    let sum = |heaps: &[Share], of: OomHolder| {
        heaps.iter().fold(of, |mut sum, h| {
            if !h.sleeps {
                sum.live += h.live;
                sum.blocks += h.blocks;
            }
            sum.waiting += h.waiting;
            sum.free += h.free;
            sum
        })
    };
    sort::by_key(heaps, |h| h.pool);
    for of_pool in heaps.chunk_by(|a, b| a.pool == b.pool) {
        let pool = of_pool.first().map(|h| PoolId(h.pool));
        note_holder(&mut r.pools, sum(of_pool, OomHolder { pool, ..OomHolder::default() }));
    }
    let stream = |h: &Share| Some(h.stream).filter(|&s| s != UNORDERED && s != RETIRED);
    sort::by_key(heaps, stream);
    for of_stream in heaps.chunk_by(|a, b| stream(a) == stream(b)) {
        let stream = of_stream.first().and_then(stream);
        note_holder(&mut r.streams, sum(of_stream, OomHolder { stream, ..OomHolder::default() }));
    }
}
