//! Checkpoints: a layout that was kept comes back exactly, or nothing changes.

use super::super::state::checkpoints::CheckpointId;
use super::*;

/// A checkpoint, and what the test knows of that moment.
pub(super) struct Saved {
    pub(super) id: CheckpointId,
    pub(super) pool: PoolId,
    blocks: Vec<Block>,
}

fn key(b: &Block) -> (u64, u64) {
    (b.offset, b.bytes)
}

/// The heap of the block that was live at `offset` at the checkpoint.
fn heap_then(pond: &Pond, checkpoint: CheckpointId, offset: u64) -> Option<u32> {
    let all = pond.ground().checkpoints();
    all.all.get(&checkpoint)?.blocks.iter().find(|b| b.offset == offset).map(|b| b.heap)
}

impl Bench {
    pub(super) fn checkpoint(&mut self, pool: PoolId) -> Saved {
        let id = self.pond.checkpoints().make(pool).unwrap();
        Saved { id, pool, blocks: self.live.iter().filter(|x| x.pool == pool).cloned().collect() }
    }

    /// Restores, and checks the answer and the pond against the truth. Whether it was possible.
    pub(super) fn try_restore(&mut self, saved: &Saved) -> Result<()> {
        // The work that uses what is going to be freed is queued before.
        let before = self.pond.stats(Some(saved.pool)).unwrap();
        let want: BTreeSet<(u64, u64)> = saved.blocks.iter().map(key).collect();
        let have: BTreeSet<(u64, u64)> = self.live.iter().filter(|x| x.pool == saved.pool).map(key).collect();
        // Where the stream had ended, the block's heap may serve another stream now.
        let heap = |x: &Block| self.pond.ground().maps.find(x.offset).map(|f| f.heap);
        let adopted =
            |s: &Block, x: &Block| s.past.is_some() && heap_then(&self.pond, saved.id, s.offset) == heap(x);
        let fits = |s: &Block, x: &Block| {
            key(s) == key(x) && s.room == x.room && (s.stream == x.stream || adopted(s, x))
        };
        let same = |x: &Block| saved.blocks.iter().any(|s| fits(s, x));
        let gone: Vec<Block> =
            self.live.iter().filter(|x| x.pool == saved.pool && !same(x)).cloned().collect();
        let snapshot = (self.live.clone(), self.taken.clone(), self.dirty.clone(), self.requested);
        for b in &gone {
            let i = self.live.iter().position(|x| key(x) == key(b)).unwrap();
            self.leave(i, None);
        }
        let done = match self.pond.checkpoints().restore(saved.pool, saved.id, |offset| offset, |_| ()) {
            Ok(done) => done,
            Err(e) => {
                (self.live, self.taken, _, self.requested) = snapshot;
                let after = self.pond.stats(Some(saved.pool)).unwrap();
                assert_eq!((before.blocks, before.allocated), (after.blocks, after.allocated), "{e}");
                let still = |x: &&Block| self.pond.block(x.offset).is_ok_and(|i| i.requested == x.bytes);
                assert_eq!(self.live.iter().filter(still).count(), self.live.len(), "{e}");
                return Err(e);
            }
        };
        let freed: BTreeSet<(u64, u64)> = done.freed().into_iter().collect();
        assert_eq!(freed, gone.iter().map(key).collect());
        let live: BTreeSet<(u64, u64)> = done.live.iter().copied().collect();
        assert_eq!(live.len(), done.live.len());
        assert!(want.difference(&have).all(|k| live.contains(k)), "all that was gone is back");
        for b in &saved.blocks {
            if live.contains(&key(b)) {
                self.enter(Block { uses: vec![], ended: vec![], ..b.clone() });
            }
            let now = self.pond.block(b.offset).unwrap();
            assert_eq!((now.base, now.requested, now.pool), (b.offset, b.bytes, saved.pool));
            if b.past.is_none() {
                assert_eq!(now.stream, b.stream);
            }
        }
        assert_eq!(self.pond.stats(Some(saved.pool)).unwrap().blocks.current, saved.blocks.len() as u64);
        self.dirty.retain(|d| !self.world.lock().unwrap().passed(d.2, d.3));
        Ok(())
    }

    pub(super) fn restore(&mut self, saved: &Saved) {
        if let Err(e) = self.try_restore(saved) {
            let known = [Code::NotPermitted, Code::UnknownStream, Code::Busy, Code::OutOfMemory];
            assert!(known.contains(&e.code()), "{e}");
        }
    }
}

#[test]
fn every_tier_comes_back_where_it_was() {
    let mut b = Bench::new(config(true, 96 << 20));
    let p = b.pond.pool_create(0, false).unwrap();
    for bytes in [100, 512, 4096, 5000, 60 << 10, 100 << 10, 1 << 20, 3 << 20, (7 << 20) + 5] {
        for stream in [Some(0), Some(1), None] {
            b.alloc(p, stream, bytes).unwrap();
        }
    }
    let mut i = 0;
    while i < b.live.len() {
        b.free(i, None);
        i += 2;
    }
    b.alloc(p, Some(0), 17 << 20).unwrap();
    let saved = b.checkpoint(p);
    assert!(b.world.lock().unwrap().shown.len() > 1 || saved.blocks.len() > 5);
    // All else, in all tiers, over the same memory.
    while let Some(i) = b.live.iter().position(|x| x.pool == p) {
        b.free(i, None);
    }
    for bytes in [2 << 20, 50, 70_000, 5 << 20, 1234, 300_000] {
        b.alloc(p, Some(1), bytes).unwrap();
        b.alloc(p, Some(0), bytes).unwrap();
    }
    let calls = b.world.lock().unwrap().calls;
    for _ in 0..3 {
        b.try_restore(&saved).unwrap();
        b.pond.ground().check();
        b.alloc(p, Some(0), 999).unwrap();
        b.free(0, None);
    }
    assert_eq!(b.world.lock().unwrap().calls, calls, "no driver call");
    b.pond.checkpoints().destroy(saved.id).unwrap();
    assert_eq!(b.try_restore(&saved).unwrap_err().code(), Code::InvalidArgument);
    b.finish();
}

#[test]
fn scattered_blocks_come_back_at_their_addresses() {
    let mut b = Bench::new(config(true, 32 << 20));
    let p = b.pond.pool_create(0, false).unwrap();
    for _ in 0..16 {
        b.alloc(p, Some(0), G).unwrap();
    }
    for _ in 0..8 {
        let odd = b.live.iter().position(|x| (x.offset / G) % 2 == 1).unwrap();
        b.free(odd, None);
    }
    let i = b.alloc(p, Some(0), 16 << 20).unwrap();
    assert!(b.live[i].offset >= 64 << 20);
    let saved = b.checkpoint(p);
    let j = b.live.iter().position(|x| x.bytes == 16 << 20).unwrap();
    b.free(j, None);
    for _ in 0..5 {
        b.alloc(p, Some(0), G).unwrap();
    }
    b.try_restore(&saved).unwrap();
    b.pond.ground().check();
    // Once the addresses are gone, so is the way back; and nothing changes.
    let j = b.live.iter().position(|x| x.bytes == 16 << 20).unwrap();
    b.free(j, None);
    b.pond.empty_cache(None).unwrap();
    assert_eq!(b.try_restore(&saved).unwrap_err().code(), Code::NotPermitted);
    b.finish();
}

#[test]
fn addresses_of_a_restore_are_found_before_segments_can_go() {
    let b = Bench::new(config(false, 96 << 20));
    let p = b.pond.pool_create(0, false).unwrap();
    let id = b.pond.checkpoints().make(p).unwrap();
    let offset = b.pond.alloc(p, 1, 8 << 20).unwrap();
    let empties = std::sync::Barrier::new(2);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            empties.wait();
            b.pond.empty_cache(None).unwrap();
        });
        let place = |at| {
            empties.wait();
            std::thread::sleep(std::time::Duration::from_millis(50)); // the other one does what it can
            assert!(b.world.lock().unwrap().segments.contains_key(&at), "the segment has gone");
            at
        };
        let done = b.pond.checkpoints().restore(p, id, place, |_| ()).unwrap();
        assert_eq!(done.freed(), [(offset, 8 << 20)]);
    });
    b.finish();
}

#[test]
fn a_restore_that_cannot_be_changes_nothing() {
    for mapping in [true, false] {
        let mut c = config(mapping, 64 << 20);
        c.max_chunk = 16 << 20;
        let mut b = Bench::new(c);
        let p = b.pond.pool_create(0, false).unwrap();
        b.alloc(p, Some(0), 5 << 20).unwrap();
        let saved = b.checkpoint(p);
        b.free(0, None);
        b.pond.empty_cache(None).unwrap();
        b.alloc(p, Some(0), 1000).unwrap();
        assert_eq!(b.try_restore(&saved).unwrap_err().code(), Code::NotPermitted, "its memory has gone");
        b.alloc(p, Some(3), 1000).unwrap();
        let saved = b.checkpoint(p);
        let i = b.live.iter().position(|x| x.stream == Some(3)).unwrap();
        b.free(i, None);
        stream_ends(&b.pond, 3);
        assert_eq!(b.try_restore(&saved).unwrap_err().code(), Code::UnknownStream);
        let other = b.pond.pool_create(0, false).unwrap();
        let wrong = Saved { pool: other, ..saved };
        assert_eq!(b.try_restore(&wrong).unwrap_err().code(), Code::InvalidArgument);
        if !mapping {
            let i = b.alloc(p, Some(0), 20 << 20).unwrap(); // a segment of its own
            let saved = b.checkpoint(p);
            b.try_restore(&saved).unwrap();
            b.free(i, None);
            assert_eq!(b.try_restore(&saved).unwrap_err().code(), Code::NotPermitted);
            let without = b.checkpoint(p);
            b.alloc(p, Some(0), 20 << 20).unwrap();
            b.try_restore(&without).unwrap();
            b.pond.ground().backing.sync_all().unwrap();
            b.pond.stats(None).unwrap();
            assert!(b.world.lock().unwrap().taken < 20 << 20, "the segment went back");
        }
        b.finish();
    }
}

#[test]
fn a_kept_pool_can_always_be_restored() {
    let mut b = Bench::new(config(true, 64 << 20));
    let p = b.pond.pool_create(0, false).unwrap();
    let graph = b.pond.captures().begin(p, 1).unwrap();
    for i in 0..20u64 {
        b.alloc(p, Some(1), 1 + i * i * 9999 % (3 << 20)).unwrap();
    }
    b.pond.captures().end(graph).unwrap();
    let saved = b.checkpoint(p);
    while !b.live.is_empty() {
        b.free(0, None);
    }
    b.pond.empty_cache(None).unwrap();
    let _ = b.alloc(PoolId::DEFAULT, Some(1), 40 << 20);
    b.try_restore(&saved).unwrap();
    b.pond.ground().check();
    b.pond.captures().release(graph).unwrap();
    b.finish();
}
