//! Which free granules of a heap go to another one where some of them lie in ties: loose granules first; parts of ties only
//! within a pool, and only if they serve the request in place; whole ties only if nothing else serves.

use super::super::desc::Id;
use super::super::state::growth::ties::{Piece, Ties};
use super::super::tied::choose;
use super::super::units::GranuleRun;
use crate::base::sort;
use std::cmp::Reverse;

/// What is taken out of a heap.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub most: u64, // granules
    /// The granules may be in any number of runs. Otherwise exactly that many in one run are taken.
    pub apart: bool,
    /// Also of whole segments that must otherwise not be cut.
    pub cuts: bool,
    /// How many granules side by side, in ties or not, serve the request in place. `None`: parts of ties must not go, as
    /// the taker has another pool.
    pub in_place: Option<u64>,
    /// If nothing else serves, whole ties with at most so many granules in all; 0: none.
    pub ties: u64,
}

/// Sorts runs by size, of equal ones the lowest first. It stands once: the standard library's sort is 7 KB of code.
#[inline(never)]
pub(super) fn smallest_first(runs: &mut [(GranuleRun, Id)]) {
    runs.sort_unstable_by_key(|r| (r.0.count, r.0.first));
}

/// Which parts of a heap's free `runs` go to another heap, where there are ties, from the highest down: what is left in
/// front keeps the id of its block.
pub(super) fn parts_to_take(ties: &Ties, runs: &[(GranuleRun, Id)], wanted: Wanted) -> Vec<(GranuleRun, Id)> {
    let Wanted { most, apart, in_place, ties: room, .. } = wanted;
    let (mut loose, mut whole_ties, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for &(run, id) in runs {
        // Only the first and the last of the pieces may be parts of ties.
        let whole: Vec<Piece> = ties.cut(run).into_iter().filter(Piece::is_whole).collect();
        for piece in &whole {
            let list = if piece.tie.is_none() { &mut loose } else { &mut whole_ties };
            list.push((piece.run, id));
        }
        rows.push((whole, id));
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
        let beside = || rows.iter().filter_map(|(row, id)| Some((shortest(row, most, room)?, *id)));
        return one.or_else(serves).or_else(|| beside().min_by_key(|r| r.0.count)).into_iter().collect();
    }
    let all: u64 = loose.iter().map(count).sum();
    if all < most
        && let Some(one) = serves()
    {
        return vec![one];
    }
    whole_ties.retain(|t| count(t) <= room);
    let (mut taken, mut left, mut room) = (Vec::new(), most, room);
    let mut chosen = Vec::new();
    if room > 0 {
        choose(&mut whole_ties, |t| t.0, all, most, &mut chosen);
    }
    for tie in chosen {
        if count(&tie) <= room {
            room -= count(&tie);
            left = left.saturating_sub(count(&tie));
            taken.push(tie);
        }
    }
    smallest_first(&mut loose);
    for r in &loose {
        // From the end of the run: its owner continues from the front.
        let n = count(r).min(left);
        if n > 0 {
            taken.push(last(r, n));
        }
        left -= n;
    }
    sort::by_key(&mut taken, |r| Reverse(r.0.first));
    taken
}

/// The end of a row of adjacent pieces, each loose granules or a tie, with at least `least` granules and no more than
/// `most`.
fn shortest(row: &[Piece], least: u64, most: u64) -> Option<GranuleRun> {
    let end = row.last()?.run.end();
    let mut n = 0;
    for piece in row.iter().rev() {
        let all = u64::from(piece.run.count);
        n += if piece.tie.is_some() { all } else { all.min(least - n) };
        if n >= least {
            break;
        }
    }
    (n >= least && n <= most).then(|| GranuleRun::new(end - n as u32, n as u32))
}
