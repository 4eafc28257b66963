//! Statistics in full, by the names that users of PyTorch know.

use super::counter::Counter;

/// One quantity over time. As long as what is accumulated is not reset, `allocated - freed` is `current`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Its value now.
    pub current: u64,
    /// The highest value since the start or the last reset of the peaks.
    pub peak: u64,
    /// All that was ever added, since the start or the last reset of what is accumulated.
    pub allocated: u64,
    /// All that was ever taken away, since then.
    pub freed: u64,
}

impl Flow {
    /// The four values with their names, in order.
    pub fn values(&self) -> [(&'static str, u64); 4] {
        [("current", self.current), ("peak", self.peak), ("allocated", self.allocated), ("freed", self.freed)]
    }

    fn take_away(&mut self, before: &Flow) {
        self.allocated = self.allocated.saturating_sub(before.allocated);
        self.freed = self.freed.saturating_sub(before.freed);
    }
}

impl From<Counter> for Flow {
    fn from(c: Counter) -> Flow {
        // A total stays at the highest number that there is.
        let freed = c.total.saturating_sub(c.current);
        Flow { current: c.current, peak: c.peak.max(c.current), allocated: c.total, freed }
    }
}

/// A quantity of all memory, and of each class of it.
///
/// The classes are those of Millpond: `small_pool` is what lies in chunks, blocks of up to 60 KiB (where the device's
/// sizes allow chunks), `large_pool` the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Of both classes.
    pub all: Flow,
    /// What lies in granules or segments themselves.
    pub large_pool: Flow,
    /// What lies in chunks.
    pub small_pool: Flow,
}

impl Split {
    /// The three parts with their names, in order.
    pub fn parts(&self) -> [(&'static str, &Flow); 3] {
        [("all", &self.all), ("large_pool", &self.large_pool), ("small_pool", &self.small_pool)]
    }

    fn take_away(&mut self, before: &Split) {
        self.all.take_away(&before.all);
        self.large_pool.take_away(&before.large_pool);
        self.small_pool.take_away(&before.small_pool);
    }
}

macro_rules! memory_stats {
    (splits { $($(#[doc = $sd:expr])+ $s:ident)+ } flows { $($(#[doc = $fd:expr])+ $f:ident)+ } words { $($(#[doc = $wd:expr])+ $w:ident)+ }) => {
        /// The statistics of a device or of one of its pools, all of one moment but where it says otherwise. Bytes, or
        /// how many.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct MemoryStats {
            $($(#[doc = $sd])+ pub $s: Split,)+
            $($(#[doc = $fd])+ pub $f: Flow,)+
            $($(#[doc = $wd])+ pub $w: u64,)+
        }

        impl MemoryStats {
            /// Quantities that are reported of each class, with their names, in order.
            pub fn splits(&self) -> Vec<(&'static str, &Split)> {
                vec![$((stringify!($s), &self.$s)),+]
            }

            /// Quantities that are reported as a whole, with their names, in order.
            pub fn flows(&self) -> Vec<(&'static str, &Flow)> {
                vec![$((stringify!($f), &self.$f)),+]
            }

            /// Single numbers, with their names, in order.
            pub fn words(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($w), self.$w)),+]
            }

            /// Takes away what was accumulated of quantities before.
            fn take_away(&mut self, before: &MemoryStats) {
                $(self.$f.take_away(&before.$f);)+
                $(self.$s.take_away(&before.$s);)+
            }
        }
    };
}

memory_stats! {
    splits {
        /// Live blocks.
        allocation
        /// Pieces of memory held from the device: granules of 2 MiB where it maps, else segments, which are all of the
        /// `large_pool`.
        segment
        /// Blocks that are live, or freed and still wait for a stream.
        active
        /// Free pieces that cannot go back to the device, since they share a granule (where it maps) or a segment with
        /// blocks that are in use. Counted when it is read, heap by heap; `peak`, `allocated` and `freed` are what the
        /// readings have seen.
        inactive_split
        /// Bytes in live blocks after rounding.
        allocated_bytes
        /// Bytes taken from the device. A granule changes its class when it becomes a chunk or stops being one, which
        /// counts as freed of the one and allocated of the other.
        reserved_bytes
        /// `allocated_bytes`, and bytes that are freed and still wait for a stream.
        active_bytes
        /// Bytes of the pieces of `inactive_split`; of the `small_pool`, with what rounding to units costs.
        inactive_split_bytes
        /// Bytes of the blocks of `active` as they were asked for.
        requested_bytes
    }
    flows {
        /// Live blocks of at least `max_split_size` bytes, which stay whole when they are freed.
        oversize_allocations
        /// Segments of at least `max_split_size` bytes; none where the device maps.
        oversize_segments
        /// Bytes of live blocks' memory that was given back to the device until their pool wakes.
        sleeping_bytes
    }
    words {
        /// How often the device or a limit refused memory, and it was sought elsewhere: in other heaps and pools, in freed
        /// blocks that wait.
        num_alloc_retries
        /// Requests that failed for lack of memory, a limit included.
        num_ooms
        /// Requests for device memory that were not made, since the device had too little (`throw_on_cudamalloc_oom`); of
        /// the whole device.
        num_oom_rejections
        /// Waits of the allocator for all streams of the device; of the whole device.
        num_sync_all_streams
        /// Calls to the device that have brought memory, or shown it; of the whole device.
        num_device_alloc
        /// Calls that have given memory back, or hidden it; of the whole device.
        num_device_free
        /// Blocks of at least so many bytes stay whole (`max_split_size_mb`); the highest number that there is: none do.
        max_split_size
        /// The limit of reserved bytes; 0: none.
        limit_bytes
        /// Bytes that are reserved and not active, free for the next request of some size.
        free_bytes
        /// Those of them that could go back to the device: free granules, or segments of which nothing is in use.
        releasable_bytes
        /// The largest request that can be served from what is reserved already. Where the device maps, free granules
        /// are shown side by side for it, wherever they are.
        largest_cached_bytes
        /// The largest request that can be served with what the device has beside that, as far as the limits let it be
        /// taken. Nothing is taken to find out, and others may be faster.
        largest_free_bytes
        /// The part of `free_bytes` that no single request could have from what is reserved, in millionths: 0 where all of
        /// it could be one block.
        fragmentation_ppm
    }
}

impl MemoryStats {
    /// Takes away what was accumulated before: what these statistics were when that was reset.
    pub fn since(mut self, before: &MemoryStats) -> MemoryStats {
        let mut then = *before;
        self.take_away(before);
        for (now, then) in self.events_mut().into_iter().zip(then.events_mut()) {
            *now = now.saturating_sub(*then);
        }
        self
    }

    fn events_mut(&mut self) -> [&mut u64; 6] {
        [
            &mut self.num_alloc_retries,
            &mut self.num_ooms,
            &mut self.num_oom_rejections,
            &mut self.num_sync_all_streams,
            &mut self.num_device_alloc,
            &mut self.num_device_free,
        ]
    }

    /// All values with their names, in order.
    pub fn values(&self) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        for (name, split) in self.splits() {
            for (part, flow) in split.parts() {
                all.extend(flow.values().map(|(what, v)| (format!("{name}.{part}.{what}"), v)));
            }
        }
        for (name, flow) in self.flows() {
            all.extend(flow.values().map(|(what, v)| (format!("{name}.{what}"), v)));
        }
        all.extend(self.words().into_iter().map(|(name, v)| (name.to_owned(), v)));
        all
    }

    /// Sets `fragmentation_ppm` by what else is told.
    pub(crate) fn fragmented(mut self) -> MemoryStats {
        let stray = self.free_bytes.saturating_sub(self.largest_cached_bytes);
        self.fragmentation_ppm = match self.free_bytes {
            0 => 0,
            free => (u128::from(stray) * 1_000_000 / u128::from(free)) as u64,
        };
        self
    }

    /// The part of the free bytes that no single request could have, of 1: 0 where all of it could be one block.
    pub fn fragmentation(&self) -> f64 {
        self.fragmentation_ppm as f64 / 1e6
    }
}
