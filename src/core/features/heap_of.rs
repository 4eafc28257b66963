//! Which heap serves a stream of a pool, where the pool's cache does not have it: one that exists, one whose stream has
//! ended, or a new one. Decided under the lock of the pool's streams.

use super::super::blocks::{Blocks, ReleasedPools};
use super::super::ground::{Ground, Pool};
use super::super::heap::Heap;
use super::super::order::not_now;
use super::super::state::pools::PoolStreams;
use super::super::types::{PoolId, UNORDERED};
use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::fail;

/// See the head of this file.
#[derive(Clone, Copy)]
pub(crate) struct HeapOf<'a> {
    ground: &'a Ground,
    stream: u64,
}

impl<'a> HeapOf<'a> {
    /// For a stream, or for requests without one (`UNORDERED`).
    pub(crate) fn stream(ground: &'a Ground, stream: u64) -> HeapOf<'a> {
        HeapOf { ground, stream }
    }

    /// Finds, adopts or makes the heap; also returns the pool that it is of.
    #[cold]
    pub(crate) fn pool(self, pool: PoolId) -> Result<(&'static Heap, PoolId)> {
        let HeapOf { ground, stream } = self;
        let mut tried = false;
        ReleasedPools::of(ground).poll(); // after this, a heap may serve its stream again
        loop {
            // The capture's pool serves all requests of a captured stream. The named pool does not cache the heap, so
            // that each request comes here.
            let served = ground.order.route(stream).unwrap_or(pool);
            let p = ground.pools().live(served)?;
            let may_adopt = !tried && self.may_adopt(p);
            let mut streams = p.streams();
            if p.id() != served.0 {
                fail!(Code::InvalidArgument, "the pool was destroyed meanwhile");
            }
            p.check_awake()?;
            if ground.order.route(stream).is_some_and(|to| to != served) {
                // A capture has begun meanwhile. Its begin takes this lock to evict the stream, so whatever is cached
                // below before that is removed again.
                continue;
            }
            let index = match streams.heaps.get(&stream) {
                Some(&i) => i,
                None => {
                    if streams.heaps.try_reserve(1).is_err() || streams.moving.try_reserve(1).is_err() {
                        return Err(no_host_memory());
                    }
                    let orphan =
                        if may_adopt && !p.is_pinned() { self.take_orphan(&mut streams) } else { None };
                    match orphan {
                        Some(orphan) if stream == UNORDERED => {
                            streams.heaps.insert(stream, orphan.index);
                            orphan.index
                        }
                        Some(orphan) => {
                            streams.moving.push(orphan.index);
                            drop(streams);
                            self.adopt(p, served, orphan);
                            tried = true;
                            continue;
                        }
                        None => {
                            let i = ground.new_heap(served.0, stream)?.index;
                            streams.heaps.insert(stream, i);
                            i
                        }
                    }
                }
            };
            let Some(heap) = ground.heaps().get(index) else {
                return Err(Error::new(Code::Internal, "a heap is missing"));
            };
            p.remember(&streams, stream, heap);
            return Ok((heap, served));
        }
    }

    /// Whether the stream may adopt a heap that serves no stream.
    fn may_adopt(self, p: &Pool) -> bool {
        // A captured stream cannot wait. Memory kept for a graph may be in use whenever the graph is replayed, on any
        // stream.
        !p.is_pinned() && !p.streams().orphans.is_empty() && !self.ground.order.is_captured(self.stream)
    }

    /// Takes a heap that serves no stream: for requests without a stream one of blocks without a stream, whose memory is
    /// idle at once, otherwise one whose stream has ended. (A heap that was detached for a graph may belong to a live
    /// stream, which goes on using the blocks that live in it.)
    fn take_orphan(self, streams: &mut PoolStreams) -> Option<&'static Heap> {
        let ground = self.ground;
        let unordered = self.stream == UNORDERED;
        let has_ended = |x| ground.look(x).stream.as_ref().is_none_or(|s| s.end().is_some());
        let fits = |&i: &u32| {
            ground.heaps().get(i).is_some_and(|x| (x.stream() == UNORDERED) == unordered && has_ended(x))
        };
        let at = streams.orphans.iter().rposition(fits)?;
        ground.heaps().get(streams.orphans.swap_remove(at))
    }

    /// Gives the stream the heap of one that has ended, with all its free memory; the new stream waits on the device for
    /// the old one's work. If that is impossible, the heap goes on serving no stream.
    fn adopt(self, p: &Pool, pool: PoolId, heap: &'static Heap) {
        let HeapOf { ground, stream } = self;
        let before = ground.look(heap).stream.clone();
        let is_over = match before.map(|s| ground.order.fence(&s)) {
            Some(Ok(Some(fence))) => match ground.order.hold_back(stream, &fence) {
                Ok(true) => true,
                Err(e) if not_now(&e) => false,
                _ => ground.order.sync(&fence).is_ok(),
            },
            Some(Err(_)) => false,
            _ => true,
        };
        let of = ground.order.stream(stream);
        let mut streams = p.streams();
        let at = streams.moving.iter().position(|&i| i == heap.index);
        let Some(at) = at.filter(|_| p.id() == pool.0) else {
            return; // the pool has ended meanwhile
        };
        streams.moving.swap_remove(at);
        let has_room = streams.heaps.try_reserve(1).is_ok();
        let of = match of {
            Ok(of) if is_over && has_room && !streams.heaps.contains_key(&stream) && !p.is_pinned() => of,
            _ => return streams.orphans.push(heap.index),
        };
        let mut h = ground.lock(heap);
        Blocks::of(ground).drain(&mut h); // so that they are no part of this stream's peak
        h.inherited |= !h.counters.is_empty();
        h.serve(pool.0, stream, Some(of), 0);
        drop(h);
        streams.heaps.insert(stream, heap.index);
    }
}
