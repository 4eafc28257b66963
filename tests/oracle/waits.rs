//! No request waits longer than necessary: while enough memory is left that no slow stream may still use, no request
//! waits for a slow stream. The program says which streams are slow. When a call waits without naming a stream, all
//! other streams advance first.
//!
//! The memory that can be had without a slow stream is estimated low: a granule does not count if a block lies in it,
//! if a freed block there waits for a slow stream's work, or if its last stream is not idle. For a request without a
//! stream, which may wait on the host for any stream that has memory, only memory that waits for nothing counts.

use super::model::{Block, Model};
use super::run::{IN_CALLBACK, Run};
use super::world::{Clock, GRANULE, Place, World, join, world};
use std::collections::{BTreeMap, BTreeSet};

/// What the device's granules were used for.
#[derive(Default)]
pub struct Granules {
    /// The line of the stream that had it last, if it was one's.
    owners: BTreeMap<u64, Option<usize>>,
    /// Streams that asked in vain, and may have gathered what there was.
    gathered: BTreeSet<usize>,
    /// Freed blocks, what they wait for, and how many there are of the same.
    freed: Vec<(BTreeSet<u64>, Clock, usize)>,
}

fn granules_of(w: &World, b: &Block) -> BTreeSet<u64> {
    granules(w, &w.places(b.at, b.bytes))
}

/// The granules of these places; those of a segment begin where it begins.
pub fn granules(w: &World, places: &[Place]) -> BTreeSet<u64> {
    let of = |p: &Place| {
        let segment = w.segments.range(..=p.0 as usize).next_back();
        let base = segment.filter(|s| p.0 < (s.0 + s.1) as u64).map_or(0, |s| *s.0 as u64 % GRANULE);
        (p.0 - base) / GRANULE..=(p.0 - base + p.1.max(1) - 1) / GRANULE
    };
    places.iter().flat_map(of).collect()
}

impl Granules {
    /// A block is made.
    pub fn made(&mut self, w: &World, b: &Block) {
        for granule in granules_of(w, b) {
            self.owners.insert(granule, b.line);
        }
    }

    /// A request finds nothing.
    pub fn refused(&mut self, line: Option<usize>) {
        self.gathered.extend(line);
    }

    /// A block is freed, on a stream or not.
    pub fn freed(&mut self, w: &World, b: &Block, on: Option<usize>) {
        self.freed.retain(|f| !w.is_over(&f.1));
        let mut clock = Clock::new();
        let known = b.uses.keys().chain(&b.open).chain(b.ended.keys()).chain(&b.sure).copied();
        let lines: Vec<usize> = match b.line {
            Some(_) => known.chain(on).collect(),
            None => known.chain(0..w.lines.len()).collect(),
        };
        lines.into_iter().filter(|&l| !w.lines[l].importer).for_each(|l| join(&mut clock, &w.now(l)));
        if !w.is_over(&clock) {
            let granules = granules_of(w, b);
            // A program that repeats itself frees the same block very often.
            match self.freed.iter_mut().rev().find(|f| f.1 == clock && f.0 == granules) {
                Some(same) => same.2 += 1,
                None => self.freed.push((granules, clock, 1)),
            }
        }
    }

    /// How many granules cannot be had, or not without a slow stream's work.
    fn held_up(&self, m: &Model, w: &World, waits_on_host: bool) -> u64 {
        let mut all: BTreeSet<u64> = m.live().flat_map(|b| granules_of(w, b)).collect();
        let waits = |clock: &Clock| w.is_held_up(clock) || waits_on_host && !w.is_over(clock);
        all.extend(self.freed.iter().filter(|f| waits(&f.1)).flat_map(|f| &f.0));
        for (&granule, &line) in &self.owners {
            // The memory of a stream that has ended is another's, who may be any.
            let lines = line.map_or(0..0, |l| if w.lines[l].alive { l..l + 1 } else { 0..w.lines.len() });
            if lines.into_iter().any(|l| !w.lines[l].importer && !w.is_over(&w.now(l))) {
                all.insert(granule);
            }
        }
        all.len() as u64
    }
}

impl Granules {
    /// How many freed blocks may still wait for anything.
    pub fn waiting(&self, w: &World) -> usize {
        self.freed.iter().filter(|f| !w.is_over(&f.1)).map(|f| f.2).sum()
    }
}

impl Run {
    pub fn slow(&self, s: u64) {
        let line = self.m().stream_of(&world(), s);
        let mut w = world();
        if let Some((line, _)) = line.filter(|l| l.0 != 0 && !w.lines[l.0].thread) {
            w.lines[line].slow = true;
        }
    }

    /// Before a request: what slow streams have to do next. None where anything else may make it wait.
    pub fn slow_before(&self, bytes: u64, unordered: bool) -> Option<Vec<(usize, u64)>> {
        let m = self.m();
        let free = m.limited || m.beside || m.faulty || m.options || m.released || m.restored;
        let kept = m.captures.iter().any(Option::is_some) || !m.exports.is_empty() || !m.asleep.is_empty();
        if !self.kind.maps
            || self.kind.tie > 0
            || self.kind.numbers.is_some()
            || free
            || kept
            || IN_CALLBACK.get()
        {
            return None;
        }
        let w = world();
        // Of streams that others end without a word, a driver may tell only by a wait for the device.
        if !w.lines.iter().any(|l| l.slow) || w.lines.iter().any(|l| l.vanished) {
            return None;
        }
        if m.granules.gathered.iter().any(|&l| !w.is_over(&w.now(l))) {
            return None;
        }
        let need = bytes.div_ceil(GRANULE) + 1 + m.granules.held_up(&m, &w, unordered);
        (need <= self.kind.capacity as u64 / GRANULE).then(|| w.slow_left())
    }

    /// After it.
    pub fn slow_after(&self, before: Option<Vec<(usize, u64)>>) {
        let mut w = world();
        if before.is_some_and(|left| left.iter().any(|&(line, next)| w.lines[line].done >= next)) {
            w.violate(
                "a request waits for a slow stream, and there is memory that has nothing to do with it",
            );
        }
    }
}
