//! Freed blocks that stay whole (`tuning`): apart from the bins, in order of size, until they are given up.

use super::super::desc::{Id, Maps, kind};
use super::Inner;

impl Inner {
    /// Keeps a freed large block as it is.
    pub(crate) fn put_whole(&mut self, maps: &Maps, id: Id) {
        let d = maps.desc(id);
        d.set_kind(kind::QUICK);
        let entry = (d.units(), d.off(), id);
        let at = self.whole.partition_point(|w| *w < entry);
        self.whole.insert(at, entry);
    }

    /// The smallest kept block of `least` to `most` units, the lowest of equals; 0 when there is none.
    pub(crate) fn take_whole(&mut self, least: u32, most: u32) -> Id {
        let at = self.whole.partition_point(|w| w.0 < least);
        match self.whole.get(at) {
            Some(w) if w.0 <= most => self.whole.remove(at).2,
            _ => 0,
        }
    }

    /// Merges all kept blocks; `true` when there were any. Calls `idle` for each entry of the alias cache that
    /// falls idle.
    pub(crate) fn give_up_whole(&mut self, maps: &Maps, me: u32, mut idle: impl FnMut(u32)) -> bool {
        let all = std::mem::take(&mut self.whole);
        for &(_, _, id) in &all {
            if let Some(a) = self.merge(maps, me, id) {
                idle(a);
            }
        }
        !all.is_empty()
    }
}
