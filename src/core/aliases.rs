//! The alias cache: ranges of addresses at which scattered granules are mapped side by side.
//!
//! Mapping them costs driver calls, so a range stays mapped after its block is freed: the next block that needs exactly
//! the same pieces in the same order reuses it at no cost. A program that repeats itself therefore makes few driver
//! calls, or none, once it is warm.
//!
//! A range is in use, idle, or *leaving*, which means that it is being unmapped, by calls that are made with no lock
//! held. No search finds a range that is leaving; its addresses are free again when it is forgotten.

use super::desc::Id;
use super::units::{Extent, GranuleRun, GranuleSet, LARGE_UNITS, every_granule};
use crate::base::ordered::Map;
use crate::base::sort;
use std::collections::HashMap;

/// Where one block lies, in the order of its addresses. Only the first piece may begin inside a granule, and only the
/// last may end inside one.
pub(crate) type Pieces = Box<[Extent]>;

/// A range of addresses at which a block is mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub entry: u32,
    pub id: Id,
    pub granule: u32, // the first granule of its addresses
    pub head: u32,    // units from there to the start of the block
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InUse,
    Idle,
    Leaving,
}

struct Entry {
    pieces: Pieces,
    home: Option<[Extent; 2]>, // the first and the last piece as it is found by them, while its block has others
    id: Id,
    shown: GranuleRun, // its addresses
    state: State,
    hidden: bool, // its granules sleep: nothing is mapped here now
    last: u64,    // the time of its last use, by `clock`
}

impl Entry {
    fn range(&self, index: u32) -> Range {
        let head = self.pieces.first().map_or(0, |p| p.off & (LARGE_UNITS - 1));
        Range { entry: index, id: self.id, granule: self.shown.first, head }
    }
    fn units(&self) -> u32 {
        self.pieces.iter().map(|p| p.units).sum()
    }
    /// Exchanges the first and the last piece, of which there are two at least; returns what they were.
    fn set_ends(&mut self, ends: [Extent; 2]) -> Option<[Extent; 2]> {
        let [first, .., last] = &mut self.pieces[..] else { return None };
        Some([std::mem::replace(first, ends[0]), std::mem::replace(last, ends[1])])
    }
    fn gone(&self, index: u32) -> Gone {
        Gone { index, shown: self.shown, id: self.id }
    }
}

/// \[B\] the most that one entry takes of a list here, or one piece of a range.
const ENTRY_BYTES: usize = 128;
const _: () = assert!(size_of::<Option<Entry>>() <= ENTRY_BYTES && size_of::<(Pieces, u32)>() <= ENTRY_BYTES);

/// All ranges of one device.
pub(crate) struct Aliases {
    entries: Vec<Option<Entry>>,
    spare: Vec<u32>,
    by_pieces: HashMap<Pieces, u32>,
    by_units: HashMap<u32, Vec<u32>>,
    gaps: Map<u32, u32>, // addresses where nothing is mapped: first granule -> count; adjacent ones are joined
    clock: u64,
    mapped_pieces: u64,
    most_pieces: u64,
}

/// Whether a block of the pieces `b` can be where one of `a` was: it has the same granules, in the same order. Only of two
/// pieces or more may the ends differ.
pub(crate) fn show_the_same(a: &[Extent], b: &[Extent]) -> bool {
    a == b || b.len() > 1 && a.iter().map(|p| p.touched()).eq(b.iter().map(|p| p.touched()))
}

/// A range that is leaving.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone {
    pub index: u32,
    pub shown: GranuleRun,
    pub id: Id,
}

/// A range of addresses, and the pieces that are mapped there.
#[derive(Debug)]
pub(crate) struct Shown {
    pub at: GranuleRun,
    pub pieces: Pieces,
}

/// What is to be done with ranges whose granules go to sleep.
#[derive(Debug, Default)]
pub(crate) struct Showing {
    /// Ranges of sleeping granules only, which are mapped again at the same addresses later.
    pub hide: Vec<Shown>,
    /// Idle ranges that contain other granules too. No block can need them again; they are leaving.
    pub leave: Vec<Gone>,
}

impl Aliases {
    /// A cache over the addresses in `room`, which maps at most `most_pieces` pieces at a time.
    pub(crate) fn new(room: GranuleRun, most_pieces: u64) -> Self {
        Aliases {
            entries: Vec::new(),
            spare: Vec::new(),
            by_pieces: HashMap::new(),
            by_units: HashMap::new(),
            gaps: Map::from([(room.first, room.count)]),
            clock: 0,
            mapped_pieces: 0,
            most_pieces,
        }
    }

    fn entry(&self, index: u32) -> Option<&Entry> {
        self.entries.get(index as usize)?.as_ref()
    }

    fn find(&self, holds: impl Fn(&Entry) -> bool) -> Option<(u32, &Entry)> {
        let at = self.entries.iter().position(|e| e.as_ref().is_some_and(&holds))?;
        Some((at as u32, self.entries[at].as_ref()?))
    }

    /// Takes an idle range with exactly these pieces, which is in use from then on.
    pub(crate) fn take(&mut self, pieces: &[Extent]) -> Option<Range> {
        let &index = self.by_pieces.get(pieces)?;
        self.use_entry(index, None)
    }

    fn use_entry(&mut self, index: u32, ends: Option<[Extent; 2]>) -> Option<Range> {
        self.clock += 1;
        let clock = self.clock;
        let e = self.entries.get_mut(index as usize)?.as_mut().filter(|e| e.state == State::Idle)?;
        e.home = ends.and_then(|ends| e.set_ends(ends));
        e.state = State::InUse;
        e.last = clock;
        Some(e.range(index))
    }

    /// \[B\] the most that a new range of so many pieces needs of the host's memory.
    pub(crate) fn host_bytes(&self, pieces: usize) -> usize {
        // Its own lists; and lists that grow take twice what they have had, and once more while they move.
        ENTRY_BYTES * (2 * pieces + 4 * self.entries.len() + 64)
    }

    /// Stores up to `most` idle ranges for blocks of `units` in `into`, the most recently used first: none if the host has no
    /// memory for that.
    pub(crate) fn idle_for(&self, units: u32, most: usize, into: &mut Vec<u32>) {
        into.clear();
        let Some(all) = self.by_units.get(&units) else { return };
        if into.try_reserve(most.min(all.len())).is_err() {
            return;
        }
        let is_idle = |i: &&u32| self.entry(**i).is_some_and(|e| e.state == State::Idle);
        into.extend(all.iter().rev().filter(is_idle).take(most));
    }

    /// Stores idle ranges in `into` in which a block of `units` may touch each granule if it begins and ends at other places
    /// in the first and the last than the block before it: up to `most`, none if the host has no memory for that.
    pub(crate) fn idle_to_refit(&self, units: u32, most: usize, into: &mut Vec<u32>) {
        into.clear();
        if into.try_reserve(most).is_err() {
            return;
        }
        let least = units.div_ceil(LARGE_UNITS);
        for (index, e) in self.entries.iter().enumerate() {
            let Some(e) = e else { continue };
            // It may lie across one boundary more.
            if e.state == State::Idle && e.shown.count.wrapping_sub(least) <= 1 && into.len() < most {
                into.push(index as u32);
            }
        }
    }

    /// The pieces of a range.
    pub(crate) fn pieces(&self, index: u32) -> &[Extent] {
        self.entry(index).map_or(&[], |e| &e.pieces)
    }

    /// The range whose addresses start at this granule: its index and its pieces.
    pub(crate) fn at(&self, granule: u32) -> Option<(u32, &[Extent])> {
        let (index, e) = self.find(|e| e.shown.first == granule && e.state != State::Leaving)?;
        Some((index, &e.pieces))
    }

    /// How many pieces are mapped at present.
    pub(crate) fn piece_count(&self) -> u64 {
        self.mapped_pieces
    }

    /// Calls `each` with the id, the first granule of addresses and the pieces of every range in use.
    pub(crate) fn in_use(&self, mut each: impl FnMut(Id, u32, &[Extent])) {
        let used = self.entries.iter().flatten().filter(|e| e.state == State::InUse);
        used.for_each(|e| each(e.id, e.shown.first, &e.pieces));
    }

    /// Takes an idle range by its index, as `take` does. `ends`: its block has these as its first and its last piece, on the
    /// same granules, until it is freed.
    pub(crate) fn take_index(&mut self, index: u32, ends: Option<[Extent; 2]>) -> Option<Range> {
        let units = self.entry(index).map_or(0, Entry::units);
        let found = self.use_entry(index, ends)?;
        if let Some(all) = self.by_units.get_mut(&units)
            && let Some(at) = all.iter().position(|&i| i == index)
        {
            all[at..].rotate_left(1); // the most recently used range is tried first
        }
        Some(found)
    }

    /// Takes room for a new range of `count` granules of addresses. `None`: too much is mapped, or the window is full;
    /// forget some ranges first.
    pub(crate) fn room(&mut self, count: u32, pieces: usize) -> Option<u32> {
        if self.mapped_pieces + pieces as u64 > self.most_pieces {
            return None;
        }
        let (&at, &room) = self.gaps.iter().find(|g| *g.1 >= count)?;
        self.gaps.remove(&at);
        if room > count {
            self.gaps.insert(at + count, room - count);
        }
        self.mapped_pieces += pieces as u64;
        Some(at)
    }

    /// Returns room that was taken for so many pieces and not used.
    pub(crate) fn give_room(&mut self, room: GranuleRun, pieces: usize) {
        self.mapped_pieces -= pieces as u64;
        let GranuleRun { mut first, mut count } = room;
        if let Some((&at, &n)) = self.gaps.range(..first).next_back()
            && at + n == first
        {
            self.gaps.remove(&at);
            first = at;
            count += n;
        }
        count += self.gaps.remove(&(first + count)).unwrap_or(0);
        self.gaps.insert(first, count);
    }

    /// Enters a range, mapped and in use, in room that was taken for it.
    pub(crate) fn enter(&mut self, pieces: &[Extent], id: Id, shown: GranuleRun) -> Range {
        self.clock += 1;
        let (state, last) = (State::InUse, self.clock);
        let entry = Entry { pieces: pieces.into(), home: None, id, shown, state, hidden: false, last };
        let index = self.spare.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        let range = entry.range(index);
        self.entries[index as usize] = Some(entry);
        self.index(index);
        range
    }

    /// Makes a range findable.
    fn index(&mut self, index: u32) {
        let Some(e) = self.entries.get(index as usize).and_then(Option::as_ref) else { return };
        self.by_pieces.insert(e.pieces.clone(), index);
        self.by_units.entry(e.units()).or_default().push(index);
    }

    fn unindex(&mut self, index: u32) {
        let Some(e) = self.entries.get(index as usize).and_then(Option::as_ref) else { return };
        if self.by_pieces.get(&e.pieces) == Some(&index) {
            self.by_pieces.remove(&e.pieces);
        }
        let units = e.units();
        if let Some(all) = self.by_units.get_mut(&units) {
            all.retain(|&i| i != index);
            if all.is_empty() {
                self.by_units.remove(&units);
            }
        }
    }

    /// Whether the block in the range at this granule of addresses has other ends than the one for which it was mapped.
    #[cfg(test)]
    pub(crate) fn is_refitted(&self, granule: u32) -> bool {
        let found = self.find(|e| e.shown.first == granule && e.state == State::InUse);
        found.is_some_and(|(_, e)| {
            let ends = [e.pieces.first(), e.pieces.last()];
            e.home.is_some_and(|home| home.each_ref().map(Some) != ends)
        })
    }

    /// The block of this range was freed.
    pub(crate) fn set_idle(&mut self, index: u32) {
        if let Some(Some(e)) = self.entries.get_mut(index as usize) {
            if let Some(ends) = e.home.take() {
                e.set_ends(ends);
            }
            e.state = State::Idle;
        }
    }

    fn leave(&mut self, index: u32) -> Option<Gone> {
        self.unindex(index);
        let e = self.entries.get_mut(index as usize)?.as_mut()?;
        e.state = State::Leaving;
        Some(e.gone(index))
    }

    /// Takes idle ranges, the least recently used first, except the `keep` most recently used and those whose pieces
    /// are
    /// `kept`. The ranges are leaving from then on.
    pub(crate) fn take_idle(&mut self, keep: usize, kept: impl Fn(&[Extent]) -> bool) -> Vec<Gone> {
        let may_go = |e: &&Entry| e.state == State::Idle && !e.hidden && !kept(&e.pieces);
        let entries = self.entries.iter().enumerate();
        let mut idle: Vec<(u64, u32)> =
            entries.filter_map(|(i, e)| e.as_ref().filter(may_go).map(|e| (e.last, i as u32))).collect();
        sort::by_key(&mut idle, |&i| i);
        idle.truncate(idle.len().saturating_sub(keep));
        idle.into_iter().filter_map(|(_, index)| self.leave(index)).collect()
    }

    /// A leaving range could not be unmapped: makes it idle again.
    pub(crate) fn stay(&mut self, index: u32) {
        if let Some(Some(e)) = self.entries.get_mut(index as usize) {
            e.state = State::Idle;
        }
        self.index(index);
    }

    /// Forgets a leaving range that has been unmapped; its addresses are free.
    pub(crate) fn forget(&mut self, index: u32) {
        let Some(e) = self.entries.get_mut(index as usize).and_then(Option::take) else { return };
        self.spare.push(index);
        self.give_room(e.shown, e.pieces.len());
    }

    /// What is to be done with the ranges that contain any granule for which `sleeps` is true. `None`: another thread is
    /// just unmapping one of them.
    pub(crate) fn showing(&mut self, sleeps: impl Fn(u32) -> bool) -> Option<Showing> {
        let mut out = Showing::default();
        let mut leave = Vec::new();
        for (index, e) in self.entries.iter().enumerate() {
            let Some(e) = e.as_ref().filter(|e| !e.hidden && every_granule(&e.pieces).any(&sleeps)) else {
                continue;
            };
            if e.state == State::Leaving {
                return None;
            }
            if every_granule(&e.pieces).all(&sleeps) {
                out.hide.push(Shown { at: e.shown, pieces: e.pieces.clone() });
            } else if e.state == State::Idle {
                leave.push(index as u32);
            }
        }
        out.leave = leave.into_iter().filter_map(|i| self.leave(i)).collect();
        Some(out)
    }

    /// Sets whether the range at this granule of addresses is hidden, which means that its granules sleep.
    pub(crate) fn set_hidden(&mut self, granule: u32, hidden: bool) {
        let mut all = self.entries.iter_mut().flatten();
        if let Some(e) = all.find(|e| e.shown.first == granule && e.state != State::Leaving) {
            e.hidden = hidden;
        }
    }

    /// Takes the range at this granule of addresses if it is hidden and idle; it is leaving from then on.
    pub(crate) fn take_hidden(&mut self, granule: u32) -> Option<Gone> {
        let hidden = |e: &Entry| e.shown.first == granule && e.hidden && e.state == State::Idle;
        let index = self.find(hidden)?.0;
        self.leave(index)
    }

    /// Whether any of these granules is mapped in a range that no block needs, including ranges that are leaving.
    pub(crate) fn shows_unused(&self, granules: &GranuleSet) -> bool {
        self.unused_runs().any(|run| granules.overlaps(run))
    }

    /// What is mapped in ranges that no block needs, including ranges that are leaving. A granule that several of them show
    /// comes several times.
    pub(crate) fn unused_runs(&self) -> impl Iterator<Item = GranuleRun> + '_ {
        let unused = |e: &&Entry| e.state != State::InUse && !e.hidden;
        self.entries.iter().flatten().filter(unused).flat_map(|e| &*e.pieces).map(|piece| piece.touched())
    }

    /// How many idle ranges there are.
    pub(crate) fn idle_count(&self) -> usize {
        self.entries.iter().flatten().filter(|e| e.state == State::Idle).count()
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn room_that_is_given_back_in_pieces_is_room_for_one() {
        let mut a = Aliases::new(GranuleRun::new(100, 64), 1000);
        let at: Vec<_> = (0..8).map(|_| a.room(8, 1).unwrap()).collect();
        assert_eq!(a.room(1, 1), None);
        for i in [3, 1, 0, 2, 7, 5, 6, 4] {
            a.give_room(GranuleRun::new(at[i], 8), 1);
        }
        assert_eq!(a.room(64, 1), Some(100));
    }

    #[test]
    fn pieces_count_from_the_moment_that_room_is_taken_for_them() {
        let mut a = Aliases::new(GranuleRun::new(0, 64), 3);
        let at = a.room(2, 2).unwrap();
        assert_eq!(a.room(2, 2), None);
        a.give_room(GranuleRun::new(at, 2), 2);
        assert!(a.room(3, 3).is_some());
    }

    #[test]
    fn a_range_that_is_leaving_is_found_by_nobody() {
        let mut a = Aliases::new(GranuleRun::new(0, 64), 1000);
        let pieces = [Extent::new(0, 128), Extent::new(512, 128)];
        let at = a.room(2, 2).unwrap();
        let r = a.enter(&pieces, 7, GranuleRun::new(at, 2));
        assert!(a.take(&pieces).is_none(), "it is in use");
        a.set_idle(r.entry);
        let gone = a.take_idle(0, |_| false);
        assert_eq!(gone.len(), 1);
        let mut found = Vec::new();
        a.idle_for(256, 9, &mut found);
        assert!(a.take(&pieces).is_none() && found.is_empty() && a.at(at).is_none());
        // Another range for the same pieces is entered meanwhile, and stays when the first one is forgotten.
        let other = a.room(2, 2).unwrap();
        let second = a.enter(&pieces, 8, GranuleRun::new(other, 2));
        a.forget(gone[0].index);
        a.set_idle(second.entry);
        assert_eq!(a.take(&pieces).unwrap().id, 8);
    }

    #[test]
    fn a_range_with_other_ends_is_found_by_its_first_ones_again() {
        let mut a = Aliases::new(GranuleRun::new(0, 64), 1000);
        let pieces = [Extent::new(100, 28), Extent::new(512, 20)];
        let other = [Extent::new(90, 38), Extent::new(512, 10)];
        assert!(show_the_same(&pieces, &other) && !show_the_same(&pieces[..1], &other[..1]));
        let at = a.room(2, 2).unwrap();
        let r = a.enter(&pieces, 7, GranuleRun::new(at, 2));
        a.set_idle(r.entry);
        let mut found = Vec::new();
        for (units, n) in [(48, 1), (256, 1), (257, 0), (1, 1)] {
            a.idle_to_refit(units, 9, &mut found);
            assert_eq!(found.len(), n, "{units} units");
        }
        assert_eq!((a.take_index(r.entry, Some(other)).unwrap().head, a.pieces(r.entry)), (90, &other[..]));
        a.idle_to_refit(48, 9, &mut found);
        assert!(found.is_empty() && a.take(&pieces).is_none(), "it is in use");
        a.set_idle(r.entry);
        assert!(a.take(&other).is_none());
        assert_eq!((a.take(&pieces).unwrap().head, a.pieces(r.entry)), (100, &pieces[..]));
    }

    #[test]
    fn of_what_shows_sleeping_granules_only_what_shows_no_others_is_hidden() {
        let mut a = Aliases::new(GranuleRun::new(1000, 64), 1000);
        let mut range = |pieces: &[Extent], id| {
            let at = a.room(2, 2).unwrap();
            a.enter(pieces, id, GranuleRun::new(at, 2)).entry
        };
        let whole = range(&[Extent::new(0, 128), Extent::new(256, 128)], 1);
        let mixed = range(&[Extent::new(0, 128), Extent::new(128, 128)], 2);
        a.set_idle(mixed);
        let s = a.showing(|g| g != 1).unwrap();
        assert_eq!((s.hide.len(), s.leave.len()), (1, 1));
        assert_eq!((s.hide[0].at.first, s.leave[0].index), (1000, mixed));
        a.set_hidden(1000, true);
        assert!(a.take_hidden(1000).is_none(), "it is in use");
        a.set_idle(whole);
        assert_eq!(a.take_hidden(1000).unwrap().id, 1);
    }
}
