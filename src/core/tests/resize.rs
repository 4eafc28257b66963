//! Blocks of the model that get another size where they are.

use super::*;

impl Bench {
    /// The block gets another size where it is, or stays as it is.
    pub(super) fn resize(&mut self, i: usize, bytes: u64) -> Result<()> {
        let (before, was) = (self.pond.stats(None)?, self.live[i].clone());
        // The work that has used what it gives away is queued before.
        let used = was.stream.filter(|_| bytes < was.bytes && was.past.is_none()).map(|s| {
            let mut w = self.world.lock().unwrap();
            let st = w.streams.entry(s).or_default();
            st.queued += 1;
            (s, st.queued)
        });
        if let Err(e) = self.pond.special().resize(was.offset, bytes) {
            let after = self.pond.stats(None)?;
            assert_eq!((after.requested, after.allocated), (before.requested, before.allocated));
            return Err(e);
        }
        let b = self.live.swap_remove(i);
        for (a, n) in b.ranges.iter().copied() {
            assert_eq!(self.taken.remove(&a), Some(a + n));
            self.dirty.extend(used.map(|(s, q)| (a, a + n, s, q)));
        }
        self.requested -= b.bytes;
        // What it held and did not use was its own, too.
        let (had, at) = (b.room.min(bytes), self.live.len());
        self.enter_beyond(Block { bytes, ..b }, had);
        self.live.swap(i, at);
        assert_eq!(self.pond.block(self.live[i].offset)?.requested, bytes);
        Ok(())
    }
}
