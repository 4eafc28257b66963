//! Free blocks of one tier by size: a bitmap of bitmaps over lists, so that a fit is found with two bit scans however
//! many blocks there are. Sizes below 32 units have a list each; above, each power of two has 32 lists. In the large
//! tier the lists are sorted by size, then offset, so that the first block that fits is the best fit at the lowest
//! offset. Each step along a list may be a cache miss, so at most `LOOK` are made; the fine tiers, where placement
//! matters little, make none.
//!
//! [`Bins`] are the heads of the lists, which run through the descriptors of the blocks. What is done with a list needs
//! both: [`Linked`]. The bins are part of the state of a heap, so the heap is locked.

use super::desc::{Descs, Id};
use std::ops::Deref;

/// log2 of the number of lists for each power of two.
const COLS_SHIFT: u32 = 5;
/// The number of lists for each power of two.
const COLS: usize = 1 << COLS_SHIFT;

/// The heads of the lists. `ROWS` = log2 of the largest block in units - 3.
#[derive(Debug)]
pub(crate) struct Bins<const ROWS: usize, const LOOK: usize> {
    rows: u32, // bit r: row r has a block
    inserted: u32,
    cols: [u32; ROWS],
    head: [[Id; COLS]; ROWS],
}

/// Those of the small tier.
pub(crate) type SmallBins = Bins<10, 1>;
/// Those of the medium tier.
pub(crate) type MediumBins = Bins<7, 1>;
/// Those of the large tier.
pub(crate) type LargeBins = Bins<28, 16>;

/// Bins with the descriptors that their lists run through.
pub(crate) struct Linked<'a, B> {
    bins: B,
    descs: Descs<'a>,
}

#[inline(always)]
fn class(units: u32) -> (usize, usize) {
    if units < COLS as u32 {
        (0, units as usize)
    } else {
        let log = 31 - units.leading_zeros();
        ((log - COLS_SHIFT + 1) as usize, (units >> (log - COLS_SHIFT)) as usize & (COLS - 1))
    }
}

impl<const ROWS: usize, const LOOK: usize> Bins<ROWS, LOOK> {
    pub(crate) fn new() -> Self {
        Bins { rows: 0, inserted: 0, cols: [0; ROWS], head: [[0; COLS]; ROWS] }
    }

    /// How many blocks were ever inserted. It may wrap.
    pub(crate) fn inserted(&self) -> u32 {
        self.inserted
    }

    /// The lists, to read.
    #[inline(always)]
    pub(crate) fn linked<'a>(&'a self, descs: Descs<'a>) -> Linked<'a, &'a Self> {
        Linked { bins: self, descs }
    }

    /// The lists, to change.
    #[inline(always)]
    pub(crate) fn linked_mut<'a>(&'a mut self, descs: Descs<'a>) -> Linked<'a, &'a mut Self> {
        Linked { bins: self, descs }
    }

    /// Whether the bins are empty.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Removes the first block of a list; `next` is the one after it.
    #[inline(always)]
    fn behead(&mut self, descs: Descs<'_>, r: usize, c: usize, next: Id) {
        self.head[r][c] = next;
        if next != 0 {
            descs.of(next).set_prev(0);
            return;
        }
        self.cols[r] &= !(1 << c);
        if self.cols[r] == 0 {
            self.rows &= !(1 << r);
        }
    }

    /// The first of the leading entries of a list that holds `units`.
    #[inline]
    fn first(&self, descs: Descs<'_>, r: usize, c: usize, units: u32) -> Id {
        let mut id = self.head[r][c];
        for _ in 0..LOOK.max(2) {
            if id == 0 {
                return 0;
            }
            let d = descs.of(id);
            if d.units() >= units {
                return id;
            }
            id = d.next();
        }
        0
    }

    /// A block of at least `units`, left in the bins, and its list if it is the first there; 0 if there is none.
    #[inline(always)]
    fn look(&self, descs: Descs<'_>, units: u32) -> (Id, usize, usize) {
        let (r, c) = class(units);
        if self.cols[r] & (1 << c) != 0 {
            let id = self.first(descs, r, c, units);
            if id != 0 {
                return (id, r, c);
            }
        }
        // Every list above contains only blocks that fit.
        let right = self.cols[r] & (!1u32 << c);
        if right != 0 {
            let c = right.trailing_zeros() as usize % COLS;
            return (self.head[r][c], r, c);
        }
        let up = self.rows & (!1u32).checked_shl(r as u32).unwrap_or(0);
        if up == 0 {
            return (0, 0, 0);
        }
        let r = up.trailing_zeros() as usize;
        let c = self.cols[r].trailing_zeros() as usize % COLS;
        (self.head[r][c], r, c)
    }
}

impl<const ROWS: usize, const LOOK: usize> Linked<'_, &mut Bins<ROWS, LOOK>> {
    /// Inserts a block, whose size must be set.
    pub(crate) fn insert(self, id: Id) {
        let Linked { bins, descs } = self;
        let d = descs.of(id);
        let (r, c) = class(d.units());
        bins.inserted = bins.inserted.wrapping_add(1);
        let (mut before, mut next) = (0, bins.head[r][c]);
        if LOOK > 1 && next != 0 {
            // Sorted by size, then offset, as far as `LOOK` steps reach.
            let mine = (d.units(), d.off());
            for _ in 0..LOOK {
                let n = descs.of(next);
                if mine < (n.units(), n.off()) {
                    break;
                }
                (before, next) = (next, n.next());
                if next == 0 {
                    break;
                }
            }
        }
        d.set_next(next);
        d.set_prev(before);
        if next != 0 {
            descs.of(next).set_prev(id);
        }
        if before != 0 {
            descs.of(before).set_next(id);
            return; // the list was not empty
        }
        bins.head[r][c] = id;
        bins.cols[r] |= 1 << c;
        bins.rows |= 1 << r;
    }

    /// Removes a block.
    pub(crate) fn remove(self, id: Id) {
        let Linked { bins, descs } = self;
        let d = descs.of(id);
        let (next, prev) = (d.next(), d.prev());
        if prev != 0 {
            if next != 0 {
                descs.of(next).set_prev(prev);
            }
            descs.of(prev).set_next(next);
            return;
        }
        let (r, c) = class(d.units());
        bins.behead(descs, r, c, next);
    }

    /// Changes a block's offset and size; it keeps its place in its list if possible.
    pub(crate) fn resize(self, id: Id, off: u32, units: u32) {
        let Linked { bins, descs } = self;
        let d = descs.of(id);
        let stays = LOOK <= 1 && class(d.units()) == class(units);
        if !stays {
            bins.linked_mut(descs).remove(id);
        }
        d.set_off(off);
        d.set_units(units);
        if !stays {
            bins.linked_mut(descs).insert(id);
        }
    }

    /// Takes a block of at least `units` out of the bins; 0 if there is none.
    #[inline]
    pub(crate) fn take(self, units: u32) -> Id {
        let Linked { bins, descs } = self;
        let (id, r, c) = bins.look(descs, units);
        if id == 0 {
            return 0;
        }
        let d = descs.of(id);
        let (next, prev) = (d.next(), d.prev());
        if prev == 0 {
            bins.behead(descs, r, c, next);
        } else {
            bins.linked_mut(descs).remove(id);
        }
        id
    }
}

impl<const ROWS: usize, const LOOK: usize, B: Deref<Target = Bins<ROWS, LOOK>>> Linked<'_, B> {
    /// A block of at least `units`, left in the bins; 0 if there is none.
    #[inline]
    pub(crate) fn find(&self, units: u32) -> Id {
        self.bins.look(self.descs, units).0
    }

    /// Calls `each` for every block of at least `units`, smallest lists first, until it answers `false`.
    pub(crate) fn walk(&self, units: u32, mut each: impl FnMut(Id) -> bool) {
        let Linked { bins, descs } = self;
        let (r0, c0) = class(units);
        let mut rows = bins.rows & (!0u32 << r0);
        while rows != 0 {
            let r = rows.trailing_zeros() as usize;
            rows &= rows - 1;
            let mut cols = bins.cols[r] & if r == r0 { !0u32 << c0 } else { !0 };
            while cols != 0 {
                let c = cols.trailing_zeros() as usize;
                cols &= cols - 1;
                let mut id = bins.head[r][c];
                while id != 0 {
                    let next = descs.of(id).next();
                    if descs.of(id).units() >= units && !each(id) {
                        return;
                    }
                    id = next;
                }
            }
        }
    }

    /// [units] the largest block; 0 when there is none. A list is in order as far as `LOOK` steps reach, so no more than
    /// `most` blocks of the last one are visited.
    pub(crate) fn largest(&self, most: usize) -> u32 {
        let Linked { bins, descs } = self;
        let Some(r) = bins.rows.checked_ilog2() else { return 0 };
        let Some(c) = bins.cols[r as usize].checked_ilog2() else { return 0 };
        let first = bins.head[r as usize][c as usize];
        let list = std::iter::successors(Some(first), |&id| Some(descs.of(id).next()));
        list.take_while(|&id| id != 0).take(most).map(|id| descs.of(id).units()).max().unwrap_or(0)
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]
mod tests {
    use super::*;
    use crate::core::desc::Maps;
    use crate::core::shape::{Fine, Shape};
    use proptest::prelude::*;

    fn maps() -> Maps {
        Maps::new(Shape::new(512, 0, 1 << 40, Fine { small: true, medium: true }).unwrap(), 16, 0, u64::MAX)
            .unwrap()
    }

    #[test]
    fn classes_are_in_order() {
        let mut last = (0, 0);
        for u in 1..100_000 {
            let c = class(u);
            assert!(c >= last, "{u}");
            last = c;
        }
    }

    proptest! {
        #[test]
        fn find_fits_and_never_misses(sizes in prop::collection::vec(1u32..5000, 1..60), want in 1u32..5000) {
            let m = maps();
            let mut b = Bins::<12, 8>::new();
            for (i, &s) in sizes.iter().enumerate() {
                let id = i as u32 + 1;
                m.desc(id).set_units(s);
                m.desc(id).set_off(i as u32 * 10);
                b.linked_mut(m.descs()).insert(id);
            }
            let found = b.linked(m.descs()).find(want);
            let (r, c) = class(want);
            // A block in a higher list is always found; in the list of `want` itself only the first few are seen.
            let sure = sizes.iter().any(|&s| class(s) > (r, c));
            prop_assert!(!sure || found != 0);
            if found != 0 {
                prop_assert!(m.desc(found).units() >= want);
            }
            // The block that `take` removes is the one that `find` returned.
            prop_assert_eq!(b.linked_mut(m.descs()).take(want), found);
            for id in (1..=sizes.len() as u32).filter(|&id| id != found) { b.linked_mut(m.descs()).remove(id); }
            prop_assert!(b.is_empty());
            prop_assert_eq!(b.linked(m.descs()).find(1), 0);
        }

        #[test]
        fn a_resized_block_is_found_by_its_new_size(
            sizes in prop::collection::vec((1u32..5000, 1u32..5000), 1..40), want in 1u32..5000
        ) {
            let m = maps();
            let (mut ordered, mut any) = (Bins::<12, 8>::new(), Bins::<12, 1>::new());
            let half = sizes.len() as u32;
            for (i, &(s, _)) in sizes.iter().enumerate() {
                for (id, b) in [(i as u32 + 1, true), (i as u32 + 1 + half, false)] {
                    m.desc(id).set_units(s);
                    m.desc(id).set_off(id * 10);
                    if b { ordered.linked_mut(m.descs()).insert(id) } else { any.linked_mut(m.descs()).insert(id) }
                }
            }
            for (i, &(_, s)) in sizes.iter().enumerate() {
                let id = i as u32 + 1;
                ordered.linked_mut(m.descs()).resize(id, id * 10 + 1, s);
                any.linked_mut(m.descs()).resize(id + half, id * 10 + 1, s);
            }
            let sure = sizes.iter().any(|&(_, s)| class(s) > class(want));
            for found in [ordered.linked(m.descs()).find(want), any.linked(m.descs()).find(want)] {
                prop_assert!(!sure || found != 0);
                prop_assert!(found == 0 || m.desc(found).units() >= want);
            }
            let mut last = (0, 0);
            ordered.linked(m.descs()).walk(1, |id| {
                let now = class(m.desc(id).units());
                assert!(now >= last);
                last = now;
                true
            });
            for id in 1..=half {
                ordered.linked_mut(m.descs()).remove(id);
                any.linked_mut(m.descs()).remove(id + half);
            }
            prop_assert!(ordered.is_empty() && any.is_empty());
        }
    }
}
