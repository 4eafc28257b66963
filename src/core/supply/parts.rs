//! Which of the free granules of a heap go to another one where some lie in ties: loose granules first; parts of ties only
//! within a pool, and only if they serve the request in place; ties as wholes only if nothing else serves.

use super::super::desc::Id;
use super::super::ground::Growing;
use super::super::tied::choose;
use super::super::units::GranuleRun;
use std::cmp::Reverse;

/// What is taken out of a heap.
#[derive(Clone, Copy)]
pub(super) struct Runs {
    pub most: u64, // granules
    /// In any number of runs; otherwise only that many in one.
    pub apart: bool,
    /// Also of whole segments that had better be spared.
    pub cuts: bool,
    /// So many granules that lie side by side, in ties or not: they serve in place. `None`: what is tied may not go in
    /// parts, as the taker has another pool.
    pub in_place: Option<u64>,
    /// Ties as wholes, with no more granules than that in all, if nothing else serves; 0: none.
    pub ties: u64,
}

/// Which parts of a heap's free `runs` go to another heap, where there are ties, from the highest down: what is left in
/// front keeps the id of its block.
pub(super) fn parts_to_take(
    g: &Growing<'_>,
    runs: &[(GranuleRun, Id)],
    wanted: Runs,
) -> Vec<(GranuleRun, Id)> {
    let Runs { most, apart, in_place, ties: room, .. } = wanted;
    let (mut loose, mut ties, mut lots) = (Vec::new(), Vec::new(), Vec::new());
    for &(run, id) in runs {
        let cut = g.cut_at_ties(run).into_iter();
        // Only the first and the last of them may be parts of ties.
        let whole: Vec<_> = cut.filter(|(piece, tie)| tie.is_none_or(|t| t == *piece)).collect();
        for &(piece, tie) in &whole {
            if tie.is_none() { loose.push((piece, id)) } else { ties.push((piece, id)) }
        }
        lots.push((whole, id));
    }
    let count = |r: &(GranuleRun, Id)| u64::from(r.0.count);
    let size = |r: &&(GranuleRun, Id)| (r.0.count, r.0.first);
    let last = |r: &(GranuleRun, Id), n: u64| (r.0.last(n as u32), r.1);
    let serves = || {
        let n = in_place?;
        runs.iter().filter(|r| count(r) >= n).min_by_key(size).map(|r| last(r, n))
    };
    if !apart {
        let one = loose.iter().filter(|r| count(r) >= most).max_by_key(size).map(|r| last(r, most));
        let beside = || lots.iter().filter_map(|(lots, id)| Some((shortest(lots, most, room)?, *id)));
        return one.or_else(serves).or_else(|| beside().min_by_key(|r| r.0.count)).into_iter().collect();
    }
    let all: u64 = loose.iter().map(count).sum();
    if all < most
        && let Some(one) = serves()
    {
        return vec![one];
    }
    ties.retain(|t| count(t) <= room);
    let (mut taken, mut left, mut room) = (Vec::new(), most, room);
    for tie in if room > 0 { choose(&mut ties, |t| t.0, all, most) } else { Vec::new() } {
        if count(&tie) <= room {
            room -= count(&tie);
            left = left.saturating_sub(count(&tie));
            taken.push(tie);
        }
    }
    loose.sort_unstable_by_key(|r| (r.0.count, r.0.first));
    for r in &loose {
        // From the end of the run: its owner continues from the front.
        let n = count(r).min(left);
        if n > 0 {
            taken.push(last(r, n));
        }
        left -= n;
    }
    taken.sort_unstable_by_key(|r| Reverse(r.0.first));
    taken
}

/// The end of adjacent lots, each loose granules or a tie, with at least `least` granules and no more than `most`.
fn shortest(lots: &[(GranuleRun, Option<GranuleRun>)], least: u64, most: u64) -> Option<GranuleRun> {
    let end = lots.last()?.0.end();
    let mut n = 0;
    for &(lot, tie) in lots.iter().rev() {
        let all = u64::from(lot.count);
        n += if tie.is_some() { all } else { all.min(least - n) };
        if n >= least {
            break;
        }
    }
    (n >= least && n <= most).then(|| GranuleRun::new(end - n as u32, n as u32))
}
