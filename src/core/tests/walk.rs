//! A walk tells of every block what the model knows, and counts what the account counts.

use super::super::layout::Placed;
use super::super::types::{BlockRecord, BlockState, BlockStates, Stats};
use super::*;

impl Bench {
    pub(super) fn check_walk(&self, pools: &[PoolId]) {
        let s = self.pond.stats(None).unwrap(); // which asks about what waits
        let all = self.pond.walk(None, BlockStates::all(), Ok).unwrap();
        assert!(all.is_sorted_by_key(|r| r.base));
        let of = |state| all.iter().filter(move |r: &&BlockRecord| r.state == state);
        let sum = |state| of(state).map(|r| r.size).sum::<u64>();
        let mut told: Vec<_> = of(BlockState::Live).map(|r| (r.base, r.requested, r.pool)).collect();
        let mut known: Vec<_> = self.live.iter().map(|b| (b.offset, b.bytes, Some(b.pool))).collect();
        told.sort_unstable();
        known.sort_unstable();
        assert_eq!(told, known, "live blocks");
        for r in of(BlockState::Live) {
            assert_eq!((r.size, r.stream), self.pond.block(r.base).map(|b| (b.size, b.stream)).unwrap());
        }
        assert_eq!(sum(BlockState::Live), s.allocated.current);
        assert_eq!(sum(BlockState::Live) + sum(BlockState::Waiting), s.active.current);
        // What is free is there, and neither live nor free twice.
        let w = self.world.lock().unwrap();
        let mut taken = self.taken.clone();
        for r in of(BlockState::Free) {
            for (a, n) in w.behind(r.base, r.size) {
                let before = taken.range(..a + n).next_back();
                assert!(before.is_none_or(|(_, &end)| end <= a), "{r:?} overlaps {before:?}");
                taken.insert(a, a + n);
            }
        }
        drop(w);
        // A part is what the whole says of it.
        for &pool in pools {
            let part = self.pond.walk(Some(pool), BlockStates::LIVE | BlockStates::FREE, Ok).unwrap();
            let same = all.iter().filter(|r| r.pool == Some(pool) && r.state != BlockState::Waiting);
            assert!(part.iter().eq(same), "pool {pool:?}");
        }
        self.check_snapshot(pools);
    }
}

impl Bench {
    /// A snapshot tells the same blocks, with the account, and no byte of the memory is missing or told twice.
    fn check_snapshot(&self, pools: &[PoolId]) {
        let layout = self.pond.snapshot(Ok).unwrap(); // which asks about what waits
        let all = self.pond.walk(None, BlockStates::all(), Ok).unwrap();
        let stats = layout.device;
        let told = |b: &Placed| (b.address, b.size(), b.requested, b.state);
        let known = all.iter().map(|r| (r.base, r.size, r.requested, r.state));
        if self.pond.ground().config.mapping {
            assert!(layout.blocks().iter().map(told).eq(known), "blocks");
        } // else free memory is told with what its segment has beyond its units
        let sums = |pool: Option<PoolId>| {
            let of = layout
                .spans()
                .filter(|s| pool.is_none_or(|p| s.owner.pool == Some(p)))
                .flat_map(|s| s.blocks);
            of.filter(|b| b.state != BlockState::Free).fold([0; 4], |[n, r, a, w], b| match b.state {
                BlockState::Live => [n + 1, r + b.requested, a + b.size(), w + b.size()],
                _ => [n, r, a, w + b.size()],
            })
        };
        let counted = |s: &Stats| [s.blocks, s.requested, s.allocated, s.active].map(|c| c.current);
        assert_eq!(counted(&stats), sums(None), "the account is of the same moment");
        for &(pool, account) in &layout.pools {
            assert!(pools.contains(&pool));
            assert_eq!(counted(&account), sums(Some(pool)), "pool {pool:?}");
        }
        assert_eq!(layout.pools.len(), pools.len());
        assert_eq!(layout.in_transit(), 0, "every byte is told");
        let there = layout.spans().filter(|s| !s.owner.sleeps);
        assert_eq!(there.map(|s| s.bytes).sum::<u64>(), stats.reserved.current, "and none twice");
        assert_eq!(layout.spans().map(|s| s.blocks.len()).sum::<usize>(), layout.blocks().len());
        for s in layout.spans() {
            assert!(s.blocks.windows(2).all(|w| w[0].address + w[0].span == w[1].address), "{s:?}");
            if !s.pieces.is_empty() {
                let apart = s.pieces.iter().map(|p| (p.address, p.bytes));
                let end = apart.fold(s.address, |at, (address, bytes)| {
                    assert_eq!(address, at, "{s:?}");
                    at + bytes
                });
                assert_eq!(end, s.address + s.bytes, "{s:?}");
            }
            let w = self.world.lock().unwrap();
            for p in s.pieces.iter().filter(|_| !s.owner.sleeps) {
                let told = w.behind(p.home, p.bytes);
                assert_eq!(w.behind(p.address, p.bytes), told, "the memory behind {p:?}");
            }
        }
    }
}

#[test]
fn a_walk_of_no_pool_is_refused() {
    let b = Bench::new(config(true, 96 << 20));
    assert_eq!(
        b.pond.walk(Some(PoolId(9)), BlockStates::all(), Ok).unwrap_err().code(),
        Code::InvalidArgument
    );
    assert_eq!(b.pond.walk(None, BlockStates::all(), Ok), Ok(vec![]));
}
