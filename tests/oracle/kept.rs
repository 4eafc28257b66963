//! A program's operations on pools that are kept: captures and replays, checkpoints, sleep.

use super::api::{self, Stream};
use super::gpu;
use super::model::{Block, CaptureOf, CheckpointOf, Model};
use super::run::{Run, remove};
use super::waits::granules;
use super::world::{self, Clock, world};
use millpond::capi::*;

impl Run {
    pub fn capture(&self, slot: usize, pool: usize, s: u64) {
        if self.kind.backend() {
            return;
        }
        {
            let m = self.m();
            let asleep = m.pools[pool].is_some_and(|p| m.asleep.contains(&p.number));
            if m.captures[slot].is_some() || m.beside || asleep {
                return;
            }
        }
        let Some((line, stream)) = self.stream(s) else { return };
        if let Some(p) = self.pool(pool).filter(|_| !world().lines[line].thread) {
            match p.pool.capture(stream) {
                Ok(capture) => {
                    let mut m = self.m();
                    let number = m.number();
                    let made = CaptureOf {
                        capture,
                        number,
                        pool: p.number,
                        line,
                        ended: false,
                        lost: false,
                        replays: Vec::new(),
                        spans: Vec::new(),
                        places: Vec::new(),
                    };
                    m.captures[slot] = Some(made);
                    world().lines[line].captured = true;
                    if self.kind.cuda.is_some() {
                        gpu::capture_begin(stream.0 as u64);
                    }
                }
                Err(e) => self.refused("a capture", &e, &[]),
            }
            self.pool_done(p);
        }
        self.done_with(line);
    }

    pub fn capture_end(&self, slot: usize) {
        let (capture, line) = {
            let mut m = self.m();
            if m.beside {
                return;
            }
            let Some(c) = m.captures[slot].as_mut().filter(|c| !c.ended) else { return };
            c.ended = true;
            (c.capture, c.line)
        };
        self.recorded(line);
        if let Err(e) = capture.end() {
            self.refused("the end of a capture", &e, &[]);
        }
    }

    /// A stream is captured no more.
    fn recorded(&self, line: usize) {
        let handle = {
            let mut w = world();
            w.lines[line].captured = false;
            w.lines[line].handle
        };
        if self.kind.cuda.is_some() && !gpu::capture_end(handle) {
            self.violate("a capture was ended by a call that it forbids");
        }
    }

    /// The graph's work, on the stream that was captured or on another.
    pub fn replay(&self, slot: usize, on: Option<u64>) {
        let mut m = self.m();
        let m = &mut *m;
        let Some(c) = m.captures[slot].as_ref().filter(|c| c.ended && !c.lost) else { return };
        let line = match on {
            None => c.line,
            Some(s) => match m.stream_of(&world(), s) {
                Some((line, _)) if line != 0 => line,
                _ => return,
            },
        };
        let mut w = world();
        let asleep = m.asleep.contains(&c.pool) || m.own_pools.contains(&c.pool);
        let here = w.lines[line].device == 0 && w.lines[line].alive && !w.lines[line].captured;
        // One replay comes after the other, and after the work that was recorded before it.
        let now = w.now(line);
        let after =
            |&(l, last): &(usize, u64)| w.lines[l].done >= last || now.get(l).is_some_and(|&n| n >= last);
        if asleep || !here || !c.replays.iter().all(after) {
            return;
        }
        for &(at, bytes) in &c.spans {
            let taken = w.segments.range(..=at).next_back().is_some_and(|(a, b)| at + bytes <= a + b);
            let lost = !self.kind.maps && !w.cuda && !taken;
            if lost || w.places(at, bytes).iter().any(|p| !c.places.contains(p)) {
                w.violate("memory of a graph is not what it was");
                return;
            }
            w.queue(line, world::Work::Use { at, bytes, tag: 0, look: false, check: false });
        }
        let (number, last) = (c.number, w.lines[line].queued());
        if line != c.line {
            for b in m.blocks.iter_mut().flatten().filter(|b| b.capture == Some(number)) {
                b.uses.insert(line, last);
            }
        }
        m.captures[slot].as_mut().unwrap().replays.push((line, last));
    }

    pub fn capture_release(&self, slot: usize) {
        let c = {
            let mut m = self.m();
            if m.beside {
                return;
            }
            let Some(c) = m.captures[slot].take() else { return };
            if !c.ended {
                self.recorded(c.line);
            }
            for b in m.blocks.iter_mut().flatten().filter(|b| b.capture == Some(c.number)) {
                b.written = false;
            }
            match m.keeps(c.pool) {
                true => m.shared.push(c.clone()),
                // The library waits for all replays before anything gets their memory.
                false => m.shared.retain(|s| s.pool != c.pool),
            }
            c
        };
        if let Err(e) = c.capture.release() {
            self.refused("the release of a capture", &e, &[]);
        }
    }

    // ---- checkpoints -------------------------------------------------------------------------------------------

    pub fn checkpoint(&self, slot: usize, pool: usize) {
        // Backends that keep no memory have none.
        if self.m().checkpoints[slot].is_some() || self.m().beside || self.kind.backend() {
            return;
        }
        let Some(p) = self.pool(pool) else { return };
        let made = p.pool.checkpoint();
        self.pool_done(p);
        let mut m = self.m();
        let blocks = m.live().filter(|b| b.pool == p.number).cloned().collect();
        let kept = m.captures.iter().flatten().filter(|c| c.pool == p.number).map(|c| c.number).collect();
        m.checkpoints[slot] = Some(CheckpointOf { checkpoint: made, pool: p.number, blocks, kept });
    }

    /// Makes the streams of the pool's graphs come after replays on other streams, of which the library does not know,
    /// or waits for these. Whether that was possible.
    fn order_replays(&self, pool: u64) -> bool {
        let open = self.m().replays_elsewhere(&world(), pool);
        for (own, line, last) in open {
            let (handle, both) = {
                let w = world();
                (w.lines[own].handle, w.lines[own].alive && w.lines[line].alive)
            };
            let mut born: Clock = vec![0; line + 1];
            born[line] = last;
            let replay = Block { line: Some(line), born, ..Block::default() };
            let wait = || !self.m().beside && !self.m().any_recorded() && self.d.synchronize().is_ok();
            if !(if both { self.order(&replay, own, handle) } else { wait() }) {
                return false;
            }
        }
        true
    }

    pub fn restore(&self, slot: usize) {
        let Some(pool) = self.m().checkpoints[slot].as_ref().map(|k| k.pool) else { return };
        if !self.order_replays(pool) {
            return;
        }
        let (k, pool, must) = {
            let mut m = self.m();
            let m = &mut *m;
            let Some(k) = m.checkpoints[slot].clone() else { return };
            let Some(&pool) = m.pool_slot(k.pool) else { return };
            let taken = m.using_pools.contains(&k.pool) || m.own_pools.contains(&k.pool);
            if taken || m.live().any(|b| b.pool == k.pool && b.busy) {
                return;
            }
            let w = world();
            if !m.replays_elsewhere(&w, k.pool).is_empty() {
                return; // another thread's
            }
            let mut tell = Vec::new();
            for b in m.blocks.iter_mut().flatten().filter(|b| b.pool == k.pool) {
                let open = b.open_uses(&w, None);
                tell.extend(open.into_iter().map(|l| (b.at, l, w.lines[l].handle, w.lines[l].alive)));
            }
            let alive = k.blocks.iter().filter_map(|b| b.line).all(|l| w.lines[l].alive);
            drop(w);
            for (at, line, handle, alive) in tell {
                if !alive || api::record_stream(at, Stream(handle as usize)).is_err() {
                    return;
                }
                let b = m.blocks.iter_mut().flatten().find(|b| b.at == at).unwrap();
                b.open.insert(line);
                b.ended.remove(&line);
            }
            let kept = m.captures.iter().flatten().any(|c| k.kept.contains(&c.number));
            let large =
                self.kind.plugin.map_or(usize::MAX, |p| if p.max_chunk == 0 { 8 << 20 } else { p.max_chunk });
            let fits = k.blocks.iter().all(|b| b.bytes < large);
            let easy = !m.any_recorded()
                && !m.asleep.contains(&k.pool)
                && !m.faulty
                && !m.beside
                && !m.limited
                && m.exports.is_empty();
            m.own_pools.push(k.pool);
            (k, pool, kept && alive && fits && easy)
        };
        let done = pool.pool.restore(k.checkpoint);
        let mut m = self.m();
        let m = &mut *m;
        remove(&mut m.own_pools, &k.pool);
        m.restored = true;
        let told = match done {
            Ok(told) => told,
            Err(e) => {
                const RIGHT: &[u32] = &[
                    MILLPOND_E_NOT_PERMITTED,
                    MILLPOND_E_OUT_OF_MEMORY,
                    MILLPOND_E_UNKNOWN_STREAM,
                    MILLPOND_E_UNSUPPORTED,
                ];
                let busy =
                    e.code == MILLPOND_E_BUSY && (m.any_recorded() || m.beside || !m.exports.is_empty());
                if must || !RIGHT.contains(&e.code) && !busy && !m.faulty {
                    self.violate(format!("a restore fails with code {}: {}", e.code, e.message));
                }
                return;
            }
        };
        let mut made = Vec::new();
        for old in m.blocks.iter_mut().filter(|b| b.as_ref().is_some_and(|b| b.pool == k.pool)) {
            if !k.blocks.iter().any(|n| n.is(old.as_ref().unwrap())) {
                *old = None;
            }
        }
        for b in &k.blocks {
            if m.live().any(|x| x.is(b)) {
                continue;
            }
            // A block of a stream that has ended may be taken for one of the stream that has its memory now, at that
            // place.
            let of_ended = b.line.is_some_and(|l| !world().lines[l].alive);
            if !of_ended || told.contains(&b.at) {
                made.push(b.at);
            }
            self.restored(m, b);
        }
        let mut told: Vec<usize> = told;
        told.sort_unstable();
        made.sort_unstable();
        if told != made {
            self.violate(format!("a restore tells that {told:x?} are live, and it is {made:x?}"));
        }
    }

    /// A block is live again.
    pub fn restored(&self, m: &mut Model, b: &Block) {
        let mut w = world();
        let mut b = b.clone();
        b.born = b.line.map_or(Clock::new(), |l| w.now(l));
        (b.written, b.busy, b.capture) = (false, false, None);
        b.uses.clear();
        b.open.clear();
        b.ended.clear();
        b.sure.clear();
        b.tag = 0x7A6_0000_0000 + m.number();
        // A graph of another stream that was captured since then has lost its memory in these granules, and is not
        // replayed.
        let back = granules(&w, &w.places(b.at, b.bytes));
        let others = m.captures.iter_mut().flatten().filter(|c| c.pool == b.pool && b.line != Some(c.line));
        for c in others.filter(|c| !granules(&w, &c.places).is_disjoint(&back)) {
            c.lost = true;
            c.places.clear();
        }
        // Its own graph has used the memory.
        if let Some(text) = m.wrong_place(&w, &b) {
            w.violate(format!("restored: {text}"));
        }
        let free = (0..m.blocks.len()).find(|i| m.blocks[*i].is_none() && !m.making.contains(i));
        match free {
            Some(slot) => m.blocks[slot] = Some(b),
            None => m.blocks.push(Some(b)),
        }
    }

    /// A pool has been asleep, or may have: on CUDA other hardware stands behind its addresses.
    fn seen_anew(&self, pool: u64) {
        let mut m = self.m();
        if self.kind.cuda.is_none() || m.asleep.contains(&pool) {
            return;
        }
        let w = world();
        for c in m.captures.iter_mut().flatten().filter(|c| c.pool == pool && !c.lost) {
            c.places = c.spans.iter().flat_map(|&(at, bytes)| w.places(at, bytes)).collect();
        }
    }

    // ---- sleep -------------------------------------------------------------------------------------------------

    pub fn sleep(&self, slot: usize, keep: bool) {
        if self.m().beside {
            return;
        }
        let Some(p) = self.pool(slot) else { return };
        // Of other devices' work on live blocks that nobody told of, the program must see the end itself.
        let far = {
            let m = self.m();
            let w = world();
            let far = |b: &Block| b.open_uses(&w, None).iter().any(|&l| w.lines[l].device != 0);
            m.live().any(|b| b.pool == p.number && far(b))
        };
        if far {
            return self.pool_done(p);
        }
        let asleep = self.m().asleep.contains(&p.number);
        let recorded = self.m().any_recorded();
        match p.pool.sleep(keep) {
            Ok(()) => {
                let mut m = self.m();
                if asleep || recorded {
                    self.violate("a pool that sleeps, or while a stream is captured, is put to sleep");
                }
                m.asleep.insert(p.number);
                if !keep {
                    m.blocks
                        .iter_mut()
                        .flatten()
                        .filter(|b| b.pool == p.number)
                        .for_each(|b| b.written = false);
                }
            }
            Err(e) => {
                let mut right = vec![MILLPOND_E_OUT_OF_MEMORY];
                right.extend((!self.kind.maps).then_some(MILLPOND_E_UNSUPPORTED));
                right.extend(asleep.then_some(MILLPOND_E_NOT_PERMITTED));
                right.extend((!self.m().exports.is_empty()).then_some(MILLPOND_E_BUSY));
                right.extend(recorded.then_some(MILLPOND_E_BUSY));
                self.refused("a sleep", &e, &right);
                let slept = p.pool.stats().sleeping_bytes.current > 0;
                let mut m = self.m();
                if slept && m.faulty {
                    m.asleep.insert(p.number);
                    m.blocks
                        .iter_mut()
                        .flatten()
                        .filter(|b| b.pool == p.number)
                        .for_each(|b| b.written = false);
                } else if m.faulty && !asleep && !keep {
                    m.blocks
                        .iter_mut()
                        .flatten()
                        .filter(|b| b.pool == p.number)
                        .for_each(|b| b.written = false);
                }
            }
        }
        self.seen_anew(p.number);
        self.pool_done(p);
    }

    pub fn wake(&self, slot: usize) {
        if self.m().beside {
            return;
        }
        let Some(p) = self.pool(slot) else { return };
        let asleep = self.m().asleep.contains(&p.number);
        let recorded = self.m().any_recorded();
        match p.pool.wake() {
            Ok(()) => {
                let mut m = self.m();
                if !asleep {
                    self.violate("a pool wakes that does not sleep");
                }
                m.asleep.remove(&p.number);
            }
            Err(e) => {
                let mut right = vec![];
                right.extend((!self.kind.maps).then_some(MILLPOND_E_UNSUPPORTED));
                right.extend((!asleep).then_some(MILLPOND_E_NOT_PERMITTED));
                right.extend(recorded.then_some(MILLPOND_E_BUSY));
                right.extend(asleep.then_some(MILLPOND_E_OUT_OF_MEMORY));
                self.refused("a wake", &e, &right);
            }
        }
        self.seen_anew(p.number);
        self.pool_done(p);
    }
}
