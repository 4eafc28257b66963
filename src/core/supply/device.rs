//! Memory from the device: how much the limits allow, granules where the device maps, segments elsewhere.

use super::*;

/// Where segments may grow, a later one takes this part of what is reserved: about the least memory on the
/// traces, of the parts from a half to a sixteenth.
const GROWTH_PART: u64 = 8;

impl Pond {
    /// How many bytes more the limits let a pool take.
    pub(in crate::core) fn allowed(&self, g: &Growth, pool: u32) -> (u64, &'static str) {
        let device = self.limit.load(Relaxed);
        let mut room = (self.config.max_alloc.saturating_sub(g.reserved.current), "the device has no more");
        if device > 0 {
            let r = device.saturating_sub(g.reserved.current);
            if r < room.0 {
                room = (r, "the device's limit is reached");
            }
        }
        let own = self.own_room(g, pool);
        if own < room.0 {
            room = (own, "the pool's limit is reached");
        }
        room
    }

    /// How many bytes more the pool's own limit lets it have, from the device or from other pools.
    pub(super) fn own_room(&self, g: &Growth, pool: u32) -> u64 {
        match self.pool(PoolId(pool)).map_or(0, |p| p.limit.load(Relaxed)) {
            0 => u64::MAX,
            limit => limit.saturating_sub(g.pools.get(&pool).map_or(0, |p| p.reserved.current)),
        }
    }

    /// Takes memory from the device for a heap.
    pub(super) fn grow(
        &self,
        g: &mut Growth,
        heap: &Heap,
        missing: u64,
        tier: Tier,
        contract: u64,
    ) -> Result<()> {
        let pool = heap.pool.load(Relaxed);
        let (allowed, why) = self.allowed(g, pool);
        if !self.config.mapping {
            return self.grow_segment(g, heap, tier, contract, allowed, why);
        }
        let shift = GRANULE_SHIFT;
        if missing > allowed >> shift {
            return Err(Error::new(Code::OutOfMemory, why));
        }
        let mut left = missing as u32;
        while left > 0 {
            let n = left.min(g.longest_room());
            let first = match (n, tier) {
                (0, _) => None,
                (_, Tier::Large) => g.take_room(n, self.end_of(heap)),
                _ => g.take_top(),
            };
            let Some(first) = first else {
                return Err(Error::new(Code::OutOfMemory, "the device has no more"));
            };
            if let Err(e) = self.backing.create(first, n) {
                g.give_room(first, n);
                return Err(e);
            }
            heap.inner.lock().give(&self.maps, heap.index, first, n, 0);
            g.hold(pool, u64::from(n) << shift, u64::from(n));
            left -= n;
        }
        Ok(())
    }

    /// The granule behind the last one that a heap owns: the best place for it to grow.
    pub(super) fn end_of(&self, heap: &Heap) -> Option<u32> {
        let mut last = None;
        heap.inner.lock().large.walk(&self.maps, 1, |id| {
            let d = self.maps.desc(id);
            last = last.max(Some((d.off() + d.units()) >> LARGE_UNITS_SHIFT));
            true
        });
        last
    }

    /// A new segment: of the init size at first, of the realloc size later, and never too small for the
    /// request.
    pub(super) fn grow_segment(
        &self,
        g: &mut Growth,
        heap: &Heap,
        tier: Tier,
        contract: u64,
        allowed: u64,
        why: &'static str,
    ) -> Result<()> {
        let shift = GRANULE_SHIFT;
        let unit = 1u64 << (shift - LARGE_UNITS_SHIFT);
        let chunk = self.maps.shape.min_chunk();
        // A fine tier needs a whole granule for its chunk, a large request its own units.
        let least = if tier == Tier::Large { contract.next_multiple_of(unit.max(chunk)) } else { 1 << shift };
        let usual = match self.tuned.segment.load(Relaxed) {
            0 if g.segments_held.is_empty() => self.config.init_alloc,
            // A block cannot lie across two segments: few large ones waste less than many small ones.
            0 if self.config.growing => {
                self.config.realloc.max(((g.reserved.current / GROWTH_PART) >> shift) << shift)
            }
            0 => self.config.realloc,
            tuned => tuned,
        };
        let mut sizes = [usual.max(least).min(allowed) / chunk * chunk, least];
        if sizes[0] < least {
            sizes[0] = least;
        }
        let mut refused = Error::new(Code::OutOfMemory, why);
        for bytes in sizes {
            if bytes > allowed {
                continue;
            }
            match self.take_segment(g, heap, bytes, (bytes >> (shift - LARGE_UNITS_SHIFT)) as u32) {
                Ok(first) => {
                    let units = (bytes >> (shift - LARGE_UNITS_SHIFT)) as u32;
                    let count = units.div_ceil(LARGE_UNITS);
                    for unit in units..count << LARGE_UNITS_SHIFT {
                        self.maps.set_large_at((first << LARGE_UNITS_SHIFT) + unit, 0);
                    }
                    let short = (count << LARGE_UNITS_SHIFT) - units;
                    heap.inner.lock().give(&self.maps, heap.index, first, count, short);
                    return Ok(());
                }
                Err(e) => refused = e,
            }
        }
        Err(refused)
    }

    /// One segment of `bytes` from the device, entered in the books; its first granule.
    pub(super) fn take_segment(&self, g: &mut Growth, heap: &Heap, bytes: u64, units: u32) -> Result<u32> {
        let count = units.div_ceil(LARGE_UNITS);
        // One granule more: segments that are not neighbours on the device must not look like it.
        let Some(first) = g.take_room(count + 1, None) else {
            fail!(Code::OutOfMemory, "too many segments");
        };
        let offset = u64::from(first) << GRANULE_SHIFT;
        if let Err(e) = self.backing.segment(offset, bytes) {
            g.give_room(first, count + 1);
            return Err(e);
        }
        let pool = heap.pool.load(Relaxed);
        g.last_serial += 1;
        g.segments_held.insert(first, Segment { first, units, bytes, serial: g.last_serial });
        g.hold(pool, bytes, 1);
        Ok(first)
    }

    /// A request beyond the max chunk: a segment of its own, for as long as the block lives.
    #[cold]
    pub(crate) fn alloc_direct(&self, heap: &Heap, units: u32, contract: u64, bytes: u64) -> Result<u64> {
        let mut g = self.hold_growth()?;
        let pool = heap.pool.load(Relaxed);
        let mut taken = Err(Error::new(Code::OutOfMemory, ""));
        for trimmed in [false, true] {
            let (allowed, why) = self.allowed(&g, pool);
            taken = if contract > allowed {
                Err(Error::new(Code::OutOfMemory, why))
            } else {
                self.take_segment(&mut g, heap, contract, units)
            };
            if taken.is_ok() || trimmed || !self.trim(&mut g, None).unwrap_or(false) {
                break;
            }
        }
        let first = match taken {
            Ok(first) => first,
            Err(e) => return self.out_of_memory(&g, heap, contract, bytes, Some(e)),
        };
        let mut h = heap.inner.lock();
        let Some(id) = h.take_id(&self.maps) else {
            drop(h);
            g.segment_gone(pool, first, contract);
            self.backing.segment_release(u64::from(first) << GRANULE_SHIFT, contract)?;
            fail!(Code::OutOfMemory, "more blocks than the library can keep track of");
        };
        h.enter_direct(&self.maps, heap.index, id, first, units);
        h.make_live_as(&self.maps, id, Tier::Large as u32, bytes);
        let d = self.maps.desc(id);
        d.set_state(d.state() | USES | DIRECT);
        let full = h.count_in(contract, bytes);
        drop(h);
        drop(g);
        if full {
            self.settle(heap);
        }
        Ok(self.offset(id))
    }
}
