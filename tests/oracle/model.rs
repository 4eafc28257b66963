//! The model: what a program has according to docs/streams.md and the header. Blocks and who may still use them,
//! streams, events, pools, captures, checkpoints. It never asks the library.
//!
//! A failure counts only if the program is correct: before a block is freed, each use by another stream is recorded, or
//! ended by `record_end`, or the block's own stream waits for it. `Block::open_uses` lists the uses that are not.

use super::api::{Capture, Checkpoint, Event, Pool};
use super::program::{CAPTURES, CHECKPOINTS, EVENTS, POOLS, STREAMS};
use super::world::{Clock, Place, World};
use std::collections::{BTreeMap, BTreeSet};

/// A live block.
#[derive(Clone, Debug, Default)]
pub struct Block {
    pub at: usize,
    pub bytes: usize,
    /// The pool that it came from, by its number among all pools.
    pub pool: u64,
    /// The line of its stream; `None`: it has none.
    pub line: Option<usize>,
    /// What comes before its first work.
    pub born: Clock,
    pub tag: u64,
    /// Its ends have the tag.
    pub written: bool,
    /// The capture that was under way on its stream when it was made.
    pub capture: Option<u64>,
    /// The last work of each other stream that uses it.
    pub uses: BTreeMap<usize, u64>,
    pub open: BTreeSet<usize>,
    /// The streams' uses have ended there.
    pub ended: BTreeMap<usize, u64>,
    /// Streams that ended when they were recorded.
    pub sure: BTreeSet<usize>,
    pub busy: bool,
    /// It is pinned memory of the host.
    pub pinned: bool,
}

impl Block {
    /// One that is just there, without a stream.
    pub fn new(at: usize, bytes: usize, pool: u64, tag: u64) -> Block {
        Block { at, bytes, pool, tag, ..Block::default() }
    }

    /// Streams with uses that the library does not know of.
    pub fn open_uses(&self, w: &World, freed_on: Option<usize>) -> Vec<usize> {
        // Without a stream, it waits for those of its own device.
        // CUDA's NULL stream is in the order of streams that are there: it is not in that of one that has ended.
        let own = self.line.filter(|&own| w.lines[own].alive || !w.cuda);
        let now = own.map(|own| w.now(own)).unwrap_or_default();
        let mut open = Vec::new();
        for (&line, &last) in &self.uses {
            let over = w.lines[line].done >= last;
            let told = self.open.contains(&line) || self.sure.contains(&line);
            let ended = self.ended.get(&line).is_some_and(|&e| e >= last);
            let ordered = match self.line {
                Some(own) => line == own || now.get(line).is_some_and(|&c| c >= last),
                None => !self.pinned && w.lines[line].device == 0,
            };
            let freed_on = freed_on.is_some_and(|l| w.meant(l).contains(&line));
            if !(over || told || ended || ordered || freed_on) {
                open.push(line);
            }
        }
        open
    }

    pub fn is(&self, other: &Block) -> bool {
        (self.at, self.bytes, self.line) == (other.at, other.bytes, other.line)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct PoolOf {
    pub pool: Pool,
    pub number: u64,
    pub bound: u64,
}

#[derive(Clone, Debug)]
pub struct EventOf {
    pub event: Event,
    /// What it stands for.
    pub clock: Clock,
}

#[derive(Clone, Debug)]
pub struct CaptureOf {
    pub capture: Capture,
    pub number: u64,
    pub pool: u64,
    pub line: usize,
    pub ended: bool,
    /// A restore has made blocks of other streams live in granules of its memory.
    pub lost: bool,
    /// The last work of each replay.
    pub replays: Vec<(usize, u64)>,
    /// What the graph's work uses, by addresses and by places.
    pub spans: Vec<(usize, usize)>,
    pub places: Vec<Place>,
}

#[derive(Clone, Debug)]
pub struct CheckpointOf {
    pub checkpoint: Checkpoint,
    pub pool: u64,
    pub blocks: Vec<Block>,
    /// The captures that kept the pool then.
    pub kept: Vec<u64>,
}

#[derive(Default)]
pub struct Model {
    /// There is a history; whether nothing else was under way as it began.
    pub history: Option<bool>,
    pub blocks: Vec<Option<Block>>,
    /// Slots whose block is being made.
    pub making: BTreeSet<usize>,
    /// The line of each stream slot.
    pub streams: [Option<usize>; STREAMS as usize + 1],
    pub pools: [Option<PoolOf>; POOLS as usize],
    pub events: [Option<EventOf>; EVENTS as usize],
    pub captures: [Option<CaptureOf>; CAPTURES as usize],
    /// Captures that were released while another one keeps their pool, with which they shared its memory.
    pub shared: Vec<CaptureOf>,
    pub checkpoints: [Option<CheckpointOf>; CHECKPOINTS as usize],
    /// Pools, by number, that sleep.
    pub asleep: BTreeSet<u64>,
    /// Pools that were released with blocks.
    pub released: bool,
    /// What others have, by its line, and the ticket that says so.
    pub exports: Vec<(usize, std::os::fd::OwnedFd)>,
    pub scopes: Vec<(Pool, u64)>,
    /// Lines and pools that calls under way name, and pools that one has for itself.
    pub using_lines: Vec<usize>,
    pub using_pools: Vec<u64>,
    pub own_pools: Vec<u64>,
    pub numbers: u64,
    /// By pool: requests that failed for lack of memory.
    pub refused: BTreeMap<u64, u64>,
    pub bound: u64,
    /// Something was set that lets requests fail although there is memory.
    pub limited: bool,
    pub options: bool,
    pub faulty: bool,
    /// Blocks are there again that had gone.
    pub restored: bool,
    pub granules: super::waits::Granules,
    /// Two operations are under way at a time.
    pub beside: bool,
    pub done: u64,
}

impl Model {
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// The captures that record now.
    pub fn recording(&self) -> impl Iterator<Item = &CaptureOf> {
        self.captures.iter().flatten().filter(|c| !c.ended)
    }

    pub fn recorded(&self, line: usize) -> Option<&CaptureOf> {
        self.recording().find(|c| c.line == line)
    }

    pub fn any_recorded(&self) -> bool {
        self.recording().next().is_some()
    }

    pub fn keeps(&self, pool: u64) -> bool {
        self.captures.iter().flatten().any(|c| c.pool == pool)
    }

    pub fn pool_slot(&self, number: u64) -> Option<&PoolOf> {
        self.pools.iter().flatten().find(|p| p.number == number)
    }

    /// Live blocks of the device.
    pub fn live(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter().flatten().filter(|b| !b.pinned)
    }

    pub fn stream_of(&self, w: &World, slot: u64) -> Option<(usize, u64)> {
        let line = self.streams[slot as usize]?;
        if !w.lines[line].thread {
            return Some((line, w.lines[line].handle));
        }
        let own = *w.meant(line).get(super::gpu::THREAD.get()?)?;
        Some((own, w.lines[own].handle))
    }

    /// The pool that serves a request, by its number.
    pub fn served_by(&self, asked: u64, line: Option<usize>, scopes: bool) -> u64 {
        if let Some(c) = line.and_then(|l| self.recorded(l)) {
            return c.pool;
        }
        match self.scopes.last() {
            Some(s) if asked == 0 && scopes => s.1,
            _ => asked,
        }
    }

    /// Replays of the pool's graphs on other streams, where the graph's own stream does not come after them: that
    /// stream, the other one, and the replay's last work.
    pub fn replays_elsewhere(&self, w: &World, pool: u64) -> Vec<(usize, usize, u64)> {
        let graphs = self.captures.iter().flatten().chain(&self.shared).filter(|c| c.pool == pool);
        let replays = graphs.flat_map(|c| c.replays.iter().map(|&(line, last)| (c.line, line, last)));
        let after = |&(own, line, last): &(usize, usize, u64)| {
            let ordered = || w.lines[own].alive && w.now(own).get(line).is_some_and(|&n| n >= last);
            w.lines[line].done >= last || ordered()
        };
        replays.filter(|r| !after(r)).collect()
    }

    /// Whether a graph of the pool and stream was replayed elsewhere, and the stream does not come after it.
    pub fn disordered(&self, w: &World, pool: u64, line: Option<usize>) -> bool {
        line.is_some_and(|line| self.replays_elsewhere(w, pool).iter().any(|r| r.0 == line))
    }

    /// Why a block that was just made must not be where it is.
    pub fn wrong_place(&self, w: &World, made: &Block) -> Option<String> {
        let places = w.places(made.at, made.bytes);
        if places.contains(&(0, 0)) {
            return Some("a block is handed out that no memory stands behind".to_owned());
        }
        for b in self.blocks.iter().flatten() {
            if made.at < b.at + b.bytes && b.at < made.at + made.bytes {
                return Some(format!("a block is handed out that overlaps a live one: {made:?} and {b:?}"));
            }
            let awake = !self.asleep.contains(&b.pool);
            if awake && touch(&w.places(b.at, b.bytes), &places) {
                return Some(format!(
                    "a block is handed out with the hardware of a live one: {made:?} and {b:?}"
                ));
            }
        }
        for c in self.captures.iter().flatten() {
            let same = c.pool == made.pool && made.line == Some(c.line);
            // While it sleeps, `cuda` gives the memory itself back, and not only the right to it.
            let gone = w.cuda && self.asleep.contains(&c.pool);
            if !same && !gone && touch(&c.places, &places) {
                return Some(format!(
                    "memory that a graph keeps is handed out: {made:?}, and the graph's {c:x?}"
                ));
            }
        }
        let to = made.line.map_or("everybody".to_owned(), |l| format!("stream line {l}"));
        let clock = made.line.map(|l| w.now(l));
        let found = w.unordered(&places, clock.as_ref())?;
        Some(format!("handed out too early: {} bytes at {:#x} to {to}, before {found}", made.bytes, made.at))
    }

    /// Bytes that live blocks can take of the device at the most, where it maps.
    pub fn footprint(&self) -> u64 {
        let g = super::world::GRANULE;
        self.live().map(|b| (b.bytes as u64).next_multiple_of(g) + g).sum()
    }
}

pub fn touch(a: &[Place], b: &[Place]) -> bool {
    a.iter().any(|x| b.iter().any(|y| x.0 < y.0 + y.1 && y.0 < x.0 + x.1))
}
