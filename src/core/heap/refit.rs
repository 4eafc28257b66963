//! A block in a range of addresses where granules are mapped side by side, with other ends than the block before it had.
//!
//! What is mapped are whole granules; where in the first of them a block begins, and where in the last it ends, is free to
//! choose. So a range serves blocks of different sizes, and again after small blocks have taken other parts of its ends.

use super::super::units::{Extent, LARGE_UNITS, LARGE_UNITS_SHIFT};
use super::granules::{FreeBlock, are_free, block_at};
use super::scatter::cost_of_end;

/// How many granules break when `units` are taken of what is free of one.
fn breaks(have: u32, units: u32) -> u32 {
    (have == LARGE_UNITS && units < LARGE_UNITS).into()
}

/// How many break for a block that is put together from whole ones.
fn most_broken(units: u32) -> u32 {
    (!units.is_multiple_of(LARGE_UNITS)).into()
}

/// How a block may lie in a range; see the file's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refit {
    /// The first and the last piece; those between them stay as they are.
    pub first: Extent,
    pub last: Extent,
    /// How much free memory becomes hard to use, as [`cost_of_end`] counts it.
    pub cost: u32,
}

impl Refit {
    /// The best way in which a block of `units` touches each granule of `pieces`, of which `free` (a `free_list`) has all
    /// that it would take. `None`: there is none, or it would break more whole granules than a block that is put together
    /// from them.
    pub(crate) fn of(free: &[FreeBlock], pieces: &[Extent], units: u32) -> Option<Refit> {
        let [first, between @ .., last] = pieces else { return None };
        let (first, last) = (first.touched(), last.touched());
        // The ends of the first granule and of all that is mapped, and the start of the last one.
        let (head_end, from_end, end) = (
            (first.first + 1) << LARGE_UNITS_SHIFT,
            first.end() << LARGE_UNITS_SHIFT,
            last.end() << LARGE_UNITS_SHIFT,
        );
        let tail_start = end - LARGE_UNITS;
        // What is free of the first granule up to its end, and of the last one from its start.
        let front = block_at(free, head_end - 1).filter(|f| f.end() >= from_end)?;
        let back = block_at(free, tail_start).filter(|f| f.off <= last.first << LARGE_UNITS_SHIFT)?;
        let head = head_end - front.off.max(head_end - LARGE_UNITS);
        let tail = back.end().min(end) - tail_start;
        // What the two granules have of the block.
        let whole = first.count + last.count - 2;
        let inner = (whole << LARGE_UNITS_SHIFT) + between.iter().map(|p| p.units).sum::<u32>();
        let both = units.checked_sub(inner).filter(|&n| n >= 2 && n <= head + tail)?;
        // It may be the same granule.
        if head_end == end && both > LARGE_UNITS || !are_free(free, between) {
            return None;
        }
        // As much as possible of the one, or of the other: what lies between leaves a part of both.
        let ways = [head.min(both - 1), both - tail.min(both - 1)];
        let cost = |n: u32| cost_of_end(head, n) + cost_of_end(tail, both - n);
        let n = ways.into_iter().filter(|&n| breaks(head, n) + breaks(tail, both - n) <= most_broken(units));
        let n = n.min_by_key(|&n| cost(n))?;
        let start = head_end - n;
        Some(Refit {
            first: Extent::new(start, from_end - start),
            last: Extent::new(
                last.first << LARGE_UNITS_SHIFT,
                ((last.count - 1) << LARGE_UNITS_SHIFT) + both - n,
            ),
            cost: cost(n),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const G: u32 = LARGE_UNITS;

    fn free(parts: &[(u32, u32)]) -> Vec<FreeBlock> {
        parts.iter().map(|&(off, units)| FreeBlock { part: Extent::new(off, units), id: 1 }).collect()
    }

    fn refit(free: &[FreeBlock], pieces: &[(u32, u32)], units: u32) -> Option<[(u32, u32); 2]> {
        let pieces: Vec<Extent> = pieces.iter().map(|&(off, units)| Extent::new(off, units)).collect();
        Refit::of(free, &pieces, units).map(|r| [r.first, r.last].map(|p| (p.off, p.units)))
    }

    #[test]
    fn a_block_takes_what_is_free_of_the_ends() {
        // 20 units less are free at the front than the block before it took, and 40 more at the back.
        let all = free(&[(40, G - 40), (4 * G, G), (9 * G, 60)]);
        let before = [(20, G - 20), (4 * G, G), (9 * G, 20)];
        assert_eq!(refit(&all, &before, 2 * G), Some([(40, G - 40), (9 * G, 40)]));
        // All that is free, and one unit more.
        assert_eq!(refit(&all, &before, 2 * G + 20), Some([(40, G - 40), (9 * G, 60)]));
        assert_eq!(refit(&all, &before, 2 * G + 21), None);
        // The front alone would be enough, but each granule must be touched.
        assert_eq!(refit(&all, &before, G + 1), None);
        assert_eq!(refit(&all, &before, G + 2), Some([(G - 1, 1), (9 * G, 1)]));
        // A granule between them is not free.
        assert_eq!(refit(&free(&[(40, G - 40), (9 * G, 60)]), &before, 2 * G), None);
    }

    #[test]
    fn no_block_breaks_more_granules_than_one_of_whole_granules_does() {
        let all = free(&[(0, G), (4 * G, G), (9 * G, G)]);
        let before = [(20, G - 20), (4 * G, G), (9 * G, 20)];
        for units in [2 * G, 2 * G - 1, G + 2] {
            assert_eq!(refit(&all, &before, units), None, "{units} units");
        }
        assert_eq!(refit(&all, &before, 2 * G + 1), Some([(0, G), (9 * G, 1)]));
        // A part of a granule at one end, and a whole one at the other.
        let part = free(&[(40, G - 40), (4 * G, G), (9 * G, G)]);
        assert_eq!(refit(&part, &before, 2 * G), None);
        assert_eq!(refit(&part, &before, 2 * G + 1), Some([(40, G - 40), (9 * G, 41)]));
    }

    #[test]
    fn one_granule_may_be_the_first_and_the_last() {
        let before = [(100, 28), (4 * G, G), (0, 20)];
        let apart = free(&[(0, 30), (90, 38), (4 * G, G)]);
        assert_eq!(refit(&apart, &before, G + 68), Some([(90, 38), (0, 30)]));
        let whole = free(&[(0, G), (4 * G, G)]);
        assert_eq!(refit(&whole, &before, 2 * G), None, "it would break one at both ends");
        assert_eq!(refit(&whole, &before, 2 * G + 30), None, "it has no unit twice");
        let before = [(100, 28), (4 * G, G), (0, 20)];
        assert_eq!(
            refit(&free(&[(0, 60), (90, 38), (4 * G, G)]), &before, 2 * G - 30),
            Some([(90, 38), (0, 60)])
        );
    }

    fn touched(pieces: &[Extent]) -> Vec<u32> {
        pieces.iter().flat_map(|p| p.touched().granules()).collect()
    }

    proptest! {
        /// Found exactly if some start and end would do, and then it is free, of the right size, and on the same granules.
        #[test]
        fn nothing_is_missed_and_nothing_is_taken_that_is_not_free(
            front in (0u32..3, 0u32..G), back in (0u32..3, 1u32..=G), used in (0u32..G, 1u32..=G), units in 1u32..8 * G,
        ) {
            let (a, between, b) = (10 * G, 20 * G, 30 * G);
            let parts = [
                (a + front.1, G - front.1 + front.0 * G),
                (between, G),
                (b, back.0 * G + back.1),
            ];
            let all = free(&parts);
            let pieces = [
                Extent::new(a + used.0, G - used.0 + front.0 * G),
                Extent::new(between, G),
                Extent::new(b, back.0 * G + used.1),
            ];
            let inner = front.0 * G + G + back.0 * G;
            let possible = (1..=G - front.1).any(|x| {
                let ends = units.checked_sub(inner + x).filter(|y| (1..=back.1).contains(y));
                ends.is_some_and(|y| breaks(G - front.1, x) + breaks(back.1, y) <= most_broken(units))
            });
            let found = Refit::of(&all, &pieces, units);
            prop_assert_eq!(found.is_some(), possible);
            if let Some(r) = found {
                let now = [r.first, pieces[1], r.last];
                prop_assert!(are_free(&all, &now), "{:?} of {:?}", now, parts);
                prop_assert_eq!(now.iter().map(|p| p.units).sum::<u32>(), units);
                prop_assert_eq!(touched(&now), touched(&pieces));
            }
        }
    }
}
