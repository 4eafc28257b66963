//! Addresses at which scattered granules are shown side by side.
//!
//! Showing them costs driver calls, so an address range stays as it is after its block is freed: the
//! next block that needs the very same granules in the same order takes it at no cost. A program
//! that repeats itself therefore makes few driver calls, or none, once it is warm.

use super::desc::Id;
use super::shape::{LARGE_UNITS, LARGE_UNITS_SHIFT};
use std::collections::{BTreeMap, HashMap};

/// Where one block lies: (offset, units), in units of the large tier, in the order of its addresses. Only the first may
/// begin inside a granule, and only the last may end in one.
pub(crate) type Pieces = Box<[(u32, u32)]>;

/// The granules that a piece lies in: the first, and how many.
pub(crate) fn granules_of((off, units): (u32, u32)) -> (u32, u32) {
    let first = off >> LARGE_UNITS_SHIFT;
    (first, (off + units).div_ceil(LARGE_UNITS) - first)
}

/// All granules that pieces lie in.
pub(crate) fn every_granule(pieces: &[(u32, u32)]) -> impl Iterator<Item = u32> {
    pieces.iter().map(|&p| granules_of(p)).flat_map(|(first, count)| first..first + count)
}

/// A range of addresses that shows a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub entry: u32,
    pub id: Id,
    pub granule: u32, // first granule of its addresses
    pub head: u32,    // units before the block starts
}

struct Entry {
    pieces: Pieces,
    id: Id,
    granule: u32, // first granule of its addresses
    count: u32,   // granules of addresses
    idle: bool,
    hidden: bool, // its granules sleep: it shows nothing now
    last: u64,    // when it was last taken
}

impl Entry {
    fn range(&self, index: u32) -> Range {
        let head = self.pieces.first().map_or(0, |p| p.0 & (LARGE_UNITS - 1));
        Range { entry: index, id: self.id, granule: self.granule, head }
    }
}

/// All ranges of one device.
pub(crate) struct Aliases {
    entries: Vec<Option<Entry>>,
    spare: Vec<u32>,
    by_pieces: HashMap<Pieces, u32>,
    by_units: HashMap<u32, Vec<u32>>,
    gaps: BTreeMap<u32, u32>, // addresses that show nothing: first granule -> count, never two side by side
    clock: u64,
    mapped_pieces: u64,
    most_pieces: u64,
}

/// A range that is to be unmapped and forgotten.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone {
    pub index: u32,
    pub granule: u32,
    pub count: u32,
    pub id: Id,
}

impl Aliases {
    /// Over `count` granules of addresses from `first` on; at most `most_pieces` are shown at a time, busy and idle.
    pub(crate) fn new(first: u32, count: u32, most_pieces: u64) -> Self {
        Aliases {
            entries: Vec::new(),
            spare: Vec::new(),
            by_pieces: HashMap::new(),
            by_units: HashMap::new(),
            gaps: BTreeMap::from([(first, count)]),
            clock: 0,
            mapped_pieces: 0,
            most_pieces,
        }
    }

    /// An idle range that shows exactly these pieces. It is busy then.
    pub(crate) fn take(&mut self, pieces: &[(u32, u32)]) -> Option<Range> {
        let &index = self.by_pieces.get(pieces)?;
        self.clock += 1;
        let e = self.entries[index as usize].as_mut()?;
        if !e.idle {
            return None;
        }
        e.idle = false;
        e.last = self.clock;
        Some(e.range(index))
    }

    /// Idle ranges for blocks of `units`, the latest used first, at most `most`, in `into`.
    pub(crate) fn idle_for(&self, units: u32, most: usize, into: &mut Vec<u32>) {
        into.clear();
        let Some(all) = self.by_units.get(&units) else { return };
        let is_idle = |i: &&u32| matches!(self.entries.get(**i as usize), Some(Some(e)) if e.idle);
        into.extend(all.iter().rev().filter(is_idle).take(most));
    }

    /// The pieces of a range.
    pub(crate) fn pieces(&self, index: u32) -> &[(u32, u32)] {
        self.entries.get(index as usize).and_then(|e| e.as_ref()).map_or(&[], |e| &e.pieces)
    }

    /// The range that starts at this granule of addresses: its number and its pieces.
    pub(crate) fn at(&self, granule: u32) -> Option<(u32, &[(u32, u32)])> {
        let here = |e: &Option<Entry>| e.as_ref().is_some_and(|e| e.granule == granule);
        let index = self.entries.iter().position(here)? as u32;
        Some((index, self.pieces(index)))
    }

    /// Calls `each` with the id and the pieces of every range that is in use.
    pub(crate) fn busy(&self, mut each: impl FnMut(Id, u32, &[(u32, u32)])) {
        self.entries.iter().flatten().filter(|e| !e.idle).for_each(|e| each(e.id, e.granule, &e.pieces));
    }

    /// Takes an idle range by its number, as `take` does.
    pub(crate) fn take_index(&mut self, index: u32) -> Option<Range> {
        self.clock += 1;
        let e = self.entries.get_mut(index as usize)?.as_mut().filter(|e| e.idle)?;
        e.idle = false;
        e.last = self.clock;
        let found = e.range(index);
        let units: u32 = e.pieces.iter().map(|p| p.1).sum();
        if let Some(all) = self.by_units.get_mut(&units)
            && let Some(at) = all.iter().position(|&i| i == index)
        {
            all[at..].rotate_left(1); // the latest used is tried first
        }
        Some(found)
    }

    /// Room for a new range of `count` granules of addresses. `None`: too much is mapped, or the window
    /// is full; forget some first.
    pub(crate) fn room(&mut self, count: u32, pieces: usize) -> Option<u32> {
        if self.mapped_pieces + pieces as u64 > self.most_pieces {
            return None;
        }
        let (&at, &room) = self.gaps.iter().find(|g| *g.1 >= count)?;
        self.gaps.remove(&at);
        if room > count {
            self.gaps.insert(at + count, room - count);
        }
        Some(at)
    }

    /// Gives unused room back.
    pub(crate) fn give_room(&mut self, mut granule: u32, mut count: u32) {
        if let Some((&at, &n)) = self.gaps.range(..granule).next_back()
            && at + n == granule
        {
            self.gaps.remove(&at);
            granule = at;
            count += n;
        }
        count += self.gaps.remove(&(granule + count)).unwrap_or(0);
        self.gaps.insert(granule, count);
    }

    /// Enters a range that is mapped and busy.
    pub(crate) fn enter(&mut self, pieces: &[(u32, u32)], id: Id, granule: u32, count: u32) -> Range {
        self.clock += 1;
        self.mapped_pieces += pieces.len() as u64;
        let entry =
            Entry { pieces: pieces.into(), id, granule, count, idle: false, hidden: false, last: self.clock };
        let index = self.spare.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.by_pieces.insert(entry.pieces.clone(), index);
        self.by_units.entry(pieces.iter().map(|p| p.1).sum()).or_default().push(index);
        let range = entry.range(index);
        self.entries[index as usize] = Some(entry);
        range
    }

    /// The block of this range was freed.
    pub(crate) fn set_idle(&mut self, index: u32) {
        if let Some(Some(e)) = self.entries.get_mut(index as usize) {
            e.idle = true;
        }
    }

    /// Idle ranges, the longest unused first, but for the `keep` last ones and for those whose pieces are
    /// `pinned`. They stay until `forget`.
    pub(crate) fn oldest_idle(&self, keep: usize, pinned: impl Fn(&[(u32, u32)]) -> bool) -> Vec<Gone> {
        let mut idle: Vec<(u64, u32)> = self
            .entries
            .iter()
            .enumerate()
            .filter_map(|(i, e)| {
                e.as_ref().filter(|e| e.idle && !e.hidden && !pinned(&e.pieces)).map(|e| (e.last, i as u32))
            })
            .collect();
        idle.sort_unstable();
        idle.truncate(idle.len().saturating_sub(keep));
        let gone = |(_, index): (u64, u32)| {
            let e = self.entries[index as usize].as_ref()?;
            Some(Gone { index, granule: e.granule, count: e.count, id: e.id })
        };
        idle.into_iter().filter_map(gone).collect()
    }

    /// Forgets a range; its addresses may be used for another.
    pub(crate) fn forget(&mut self, index: u32) {
        let Some(e) = self.entries.get_mut(index as usize).and_then(Option::take) else { return };
        self.spare.push(index);
        self.by_pieces.remove(&e.pieces);
        let units: u32 = e.pieces.iter().map(|p| p.1).sum();
        if let Some(all) = self.by_units.get_mut(&units) {
            all.retain(|&i| i != index);
            if all.is_empty() {
                self.by_units.remove(&units);
            }
        }
        self.mapped_pieces -= e.pieces.len() as u64;
        self.give_room(e.granule, e.count);
    }

    /// The ranges that show any granule which `sleeps`: first granule, granules, and their pieces.
    pub(crate) fn showing(&self, sleeps: impl Fn(u32) -> bool) -> Vec<(u32, u32, Pieces)> {
        let shows = |e: &&Entry| !e.hidden && every_granule(&e.pieces).any(&sleeps);
        let found = self.entries.iter().flatten().filter(shows);
        found.map(|e| (e.granule, e.count, e.pieces.clone())).collect()
    }

    /// The range at this granule of addresses shows nothing for now, or shows its pieces again.
    pub(crate) fn set_hidden(&mut self, granule: u32, hidden: bool) {
        if let Some(e) = self.entries.iter_mut().flatten().find(|e| e.granule == granule) {
            e.hidden = hidden;
        }
    }

    /// The range at this granule of addresses, if it is idle and hidden.
    pub(crate) fn hidden_idle(&self, granule: u32) -> Option<Gone> {
        let here = |e: &Option<Entry>| e.as_ref().is_some_and(|e| e.granule == granule && e.idle && e.hidden);
        let index = self.entries.iter().position(here)?;
        let e = self.entries[index].as_ref()?;
        Some(Gone { index: index as u32, granule: e.granule, count: e.count, id: e.id })
    }

    /// How many idle ranges there are.
    pub(crate) fn idle_count(&self) -> usize {
        self.entries.iter().flatten().filter(|e| e.idle).count()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn room_that_is_given_back_in_pieces_is_room_for_one() {
        let mut a = Aliases::new(100, 64, 1000);
        let at: Vec<_> = (0..8).map(|_| a.room(8, 1)).collect();
        assert_eq!(a.room(1, 1), None);
        for i in [3, 1, 0, 2, 7, 5, 6, 4] {
            a.give_room(at[i].expect("there is room"), 8);
        }
        assert_eq!(a.room(64, 1), Some(100));
    }
}
