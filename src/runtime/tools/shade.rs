//! The state of a device's memory as a memory checker sees it: live blocks may be accessed, up to their requested size;
//! everything else may not, once no queued work can access it any more.
//!
//! A block that was freed on its stream is *passing* until the stream has been seen without work: that work may still use
//! it, though the next request may have the memory at once. What such a request covers belongs to the new block; the
//! rest of the old one, a *remnant*, goes on passing. A block that waits for other streams passes when its wait is over.

use super::checker::Checker;
use crate::base::ordered::Map;
use crate::base::sort;
use crate::core::EVERY;
use crate::device::StreamId;
use std::collections::BTreeSet;

/// Stands for all streams that have ended: another stream may have the number of one.
pub(super) const ENDED: StreamId = EVERY;

/// The work of a stream up to a moment. When the stream is seen idle, all work with a smaller number has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Passing {
    stream: StreamId,
    number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Live,
    Waiting,
    Passing(Passing),
}

#[derive(Clone, Copy, Debug)]
struct Block {
    bytes: u64,
    state: State,
}

/// The rest of a freed block whose memory a newer block has taken in part. `until` is `None` if it is unknown how long
/// work may still use it.
#[derive(Clone, Copy, Debug)]
struct Remnant {
    bytes: u64,
    until: Option<Passing>,
}

/// See the file's head. Addresses and bytes throughout.
#[derive(Default)]
pub(super) struct Shade {
    /// Ranges of addresses that have memory.
    ranges: Map<u64, u64>,
    blocks: Map<u64, Block>,
    remnants: Map<u64, Remnant>,
    /// The blocks and remnants that queued work may still use: stream, number, address.
    passing: BTreeSet<(StreamId, u64, u64)>,
    numbers: u64,
}

/// The parts of `from .. to` that lie outside of `inside`, which is sorted.
fn gaps(from: u64, to: u64, inside: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let (mut at, mut out) = (from, Vec::new());
    for (start, bytes) in inside {
        if start > at {
            out.push((at, start.min(to) - at));
        }
        at = at.max(start + bytes);
    }
    if at < to {
        out.push((at, to - at));
    }
    out
}

impl Shade {
    /// The range has memory from now on. Blocks may live there already, if it has slept.
    pub(super) fn came(&mut self, checker: &mut dyn Checker, address: u64, bytes: u64) {
        self.ranges.insert(address, bytes);
        checker.came(address, bytes);
        self.lower(checker, address, bytes);
    }

    /// The range has no memory any more, and nothing is queued that uses it. Live blocks sleep.
    pub(super) fn went(&mut self, checker: &mut dyn Checker, address: u64, bytes: u64) {
        let end = address + bytes;
        let over = |m: &Map<u64, u64>| -> Vec<(u64, u64)> {
            let before = m.range(..address).next_back();
            let all = before.into_iter().chain(m.range(address..end));
            all.map(|(&a, &n)| (a, n)).filter(|&(a, n)| a + n > address).collect()
        };
        for (a, n) in over(&self.ranges) {
            self.ranges.remove(&a);
            if a < address {
                self.ranges.insert(a, address - a);
            }
            if a + n > end {
                self.ranges.insert(end, a + n - end);
            }
        }
        let freed: Vec<u64> =
            self.blocks_in(address, end).filter(|b| b.1.state != State::Live).map(|b| b.0).collect();
        for a in freed {
            if let Some(b) = self.remove(a) {
                checker.forget(a, b.bytes);
            }
        }
        self.cut_remnants(checker, address, end);
        checker.went(address, bytes);
    }

    /// The library itself is about to read or write all of the range, also what is free.
    pub(super) fn lift(&mut self, checker: &mut dyn Checker, address: u64, bytes: u64) {
        checker.open(address, bytes);
    }

    /// It has done so. What lives in the range has contents.
    pub(super) fn lower(&mut self, checker: &mut dyn Checker, address: u64, bytes: u64) {
        let end = address + bytes;
        let mut used: Vec<(u64, u64)> = self.blocks_in(address, end).map(|(a, b)| (a, b.bytes)).collect();
        for &(a, n) in &used {
            let (from, to) = (a.max(address), (a + n).min(end));
            checker.open(from, to - from);
        }
        used.extend(self.remnants_in(address, end));
        sort::by_key(&mut used, |&u| u);
        gaps(address, end, used.into_iter()).into_iter().for_each(|(a, n)| checker.close(a, n));
    }

    /// A block was given out.
    pub(super) fn alloc(&mut self, checker: &mut dyn Checker, address: u64, bytes: u64) {
        let end = address + bytes;
        let old: Vec<u64> = self.blocks_in(address, end).map(|b| b.0).collect();
        for a in old {
            let Some(b) = self.remove(a) else { continue };
            checker.forget(a, b.bytes);
            let until = match b.state {
                State::Passing(p) => Some(p),
                State::Live | State::Waiting => None,
            };
            self.leave(checker, a, address, until);
            self.leave(checker, end, a + b.bytes, until);
        }
        self.cut_remnants(checker, address, end);
        self.blocks.insert(address, Block { bytes, state: State::Live });
        checker.give(address, bytes);
    }

    /// A live block is freed, and waits for other streams than its own.
    pub(super) fn wait(&mut self, address: u64) {
        if let Some(b) = self.blocks.get_mut(&address).filter(|b| b.state == State::Live) {
            b.state = State::Waiting;
        }
    }

    /// A freed block waits for nothing but its own stream, if it has one. `kept`: a graph may use it whenever it runs.
    pub(super) fn free(
        &mut self,
        checker: &mut dyn Checker,
        address: u64,
        stream: Option<StreamId>,
        kept: bool,
    ) {
        let Some(b) = self.blocks.get(&address).copied() else { return };
        if kept {
            self.remove(address);
            checker.forget(address, b.bytes);
            self.leave(checker, address, address + b.bytes, None);
            return;
        }
        match stream {
            Some(stream) => {
                self.numbers += 1;
                let passing = Passing { stream, number: self.numbers };
                self.remove(address);
                self.passing.insert((stream, self.numbers, address));
                self.blocks.insert(address, Block { bytes: b.bytes, state: State::Passing(passing) });
            }
            None => {
                self.remove(address);
                checker.take(address, b.bytes);
            }
        }
    }

    /// Whether the block is freed and waits for other streams.
    pub(super) fn waits(&self, address: u64) -> bool {
        self.blocks.get(&address).is_some_and(|b| b.state == State::Waiting)
    }

    /// A free has failed: the block lives on, with its contents.
    pub(super) fn live_on(&mut self, checker: &mut dyn Checker, address: u64, bytes: u64) {
        match self.remove(address) {
            Some(b) => _ = self.blocks.insert(address, Block { bytes: b.bytes, state: State::Live }),
            None => {
                self.alloc(checker, address, bytes);
                checker.open(address, bytes);
            }
        }
    }

    /// The streams that something passes on, and the number up to which it has passed if the stream is idle after this.
    pub(super) fn streams(&self) -> Vec<(StreamId, u64)> {
        let mut streams: Vec<StreamId> = self.passing.iter().map(|p| p.0).collect();
        streams.dedup();
        streams.into_iter().map(|s| (s, self.numbers)).collect()
    }

    /// The stream was idle when, or after, that number was the last one.
    pub(super) fn passed(&mut self, checker: &mut dyn Checker, stream: StreamId, number: u64) {
        let done: Vec<_> = self.passing.range((stream, 0, 0)..=(stream, number, u64::MAX)).copied().collect();
        for (_, _, address) in done {
            if let Some(b) = self.remove(address) {
                checker.take(address, b.bytes);
            } else if let Some(r) = self.remove_remnant(checker, address) {
                checker.close(address, r.bytes);
            }
        }
    }

    /// The stream has ended: what passes on it does so among the work of all that have.
    pub(super) fn ended(&mut self, stream: StreamId) {
        let all: Vec<_> =
            self.passing.range((stream, 0, 0)..=(stream, u64::MAX, u64::MAX)).copied().collect();
        for (_, number, address) in all {
            let now = Passing { stream: ENDED, number };
            self.passing.remove(&(stream, number, address));
            self.passing.insert((ENDED, number, address));
            if let Some(b) = self.blocks.get_mut(&address).filter(|b| matches!(b.state, State::Passing(_))) {
                b.state = State::Passing(now);
            } else if let Some(r) = self.remnants.get_mut(&address) {
                r.until = Some(now);
            }
        }
    }

    /// The device ends: everything may be touched again, as far as the checker is concerned.
    pub(super) fn end(&mut self, checker: &mut dyn Checker) {
        for (a, n) in std::mem::take(&mut self.ranges) {
            checker.went(a, n);
        }
        *self = Shade::default();
    }

    /// The blocks that overlap a range.
    fn blocks_in(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, Block)> + '_ {
        let before = self.blocks.range(..from).next_back();
        let all = before.into_iter().chain(self.blocks.range(from..to));
        all.map(|(&a, &b)| (a, b)).filter(move |(a, b)| a + b.bytes > from)
    }

    /// The remnants that overlap a range.
    fn remnants_in(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let before = self.remnants.range(..from).next_back();
        let all = before.into_iter().chain(self.remnants.range(from..to));
        all.map(|(&a, r)| (a, r.bytes)).filter(move |(a, n)| a + n > from)
    }

    fn remove(&mut self, address: u64) -> Option<Block> {
        let block = self.blocks.remove(&address)?;
        if let State::Passing(p) = block.state {
            self.passing.remove(&(p.stream, p.number, address));
        }
        Some(block)
    }

    fn remove_remnant(&mut self, checker: &mut dyn Checker, address: u64) -> Option<Remnant> {
        let remnant = self.remnants.remove(&address)?;
        checker.unkeep(address, remnant.bytes);
        if let Some(p) = remnant.until {
            self.passing.remove(&(p.stream, p.number, address));
        }
        Some(remnant)
    }

    /// `from .. to` is left of a block, if it is not empty.
    fn leave(&mut self, checker: &mut dyn Checker, from: u64, to: u64, until: Option<Passing>) {
        if from >= to {
            return;
        }
        if let Some(p) = until {
            self.passing.insert((p.stream, p.number, from));
        }
        self.remnants.insert(from, Remnant { bytes: to - from, until });
        checker.keep(from, to - from);
    }

    /// No remnant has any of the range any more.
    fn cut_remnants(&mut self, checker: &mut dyn Checker, from: u64, to: u64) {
        let all: Vec<u64> = self.remnants_in(from, to).map(|r| r.0).collect();
        for a in all {
            if let Some(r) = self.remove_remnant(checker, a) {
                self.leave(checker, a, from, r.until);
                self.leave(checker, to, a + r.bytes, r.until);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use proptest::prelude::*;

    const SIZE: usize = 1024;

    /// Which bytes may be touched, and the blocks that were begun and not ended.
    #[derive(Default)]
    struct Bytes {
        open: Vec<bool>,
        begun: Map<u64, u64>,
    }

    impl Bytes {
        fn all_open() -> Bytes {
            Bytes { open: vec![true; SIZE], ..Bytes::default() }
        }
        fn set(&mut self, address: u64, bytes: u64, to: bool) {
            assert!(bytes > 0);
            self.open[address as usize..(address + bytes) as usize].fill(to);
        }
        fn may(&self, at: u64) -> bool {
            self.open[at as usize]
        }
    }

    impl Checker for Bytes {
        fn close(&mut self, address: u64, bytes: u64) {
            self.set(address, bytes, false);
        }
        fn open(&mut self, address: u64, bytes: u64) {
            self.set(address, bytes, true);
        }
        fn went(&mut self, address: u64, bytes: u64) {
            self.set(address, bytes, true);
        }
        fn give(&mut self, address: u64, bytes: u64) {
            self.set(address, bytes, true);
            assert!(self.begun.range(..address + bytes).next_back().is_none_or(|(a, n)| a + n <= address));
            self.begun.insert(address, bytes);
        }
        fn take(&mut self, address: u64, bytes: u64) {
            assert_eq!(self.begun.remove(&address), Some(bytes));
            self.set(address, bytes, false);
        }
        fn forget(&mut self, address: u64, bytes: u64) {
            assert_eq!(self.begun.remove(&address), Some(bytes));
        }
        fn keep(&mut self, address: u64, bytes: u64) {
            self.give(address, bytes);
        }
        fn unkeep(&mut self, address: u64, bytes: u64) {
            self.forget(address, bytes);
        }
    }

    /// Who may use a byte: the block of that number, or the work of a stream.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum User {
        Nobody,
        Block(usize),
        Work(u64),
    }

    proptest! {
        /// Blocks come and go where no other one is, on two streams that are idle or end now and then, or on none. After each
        /// step exactly that may be touched which a block has, or which work of a stream may still use.
        #[test]
        fn what_somebody_uses_is_open_and_nothing_else(
            steps in prop::collection::vec((0u8..10, 0u64..64, 1u64..200, 0u64..3), 1..80)
        ) {
            let mut bytes = Bytes::all_open();
            let (mut shade, mut model) = (Shade::default(), [User::Nobody; SIZE]);
            let (mut live, mut waiting, mut count) = (Vec::new(), Vec::new(), 0);
            shade.came(&mut bytes, 0, SIZE as u64);
            for (what, place, n, s) in steps {
                let at = place * 16;
                let n = n.min(SIZE as u64 - at);
                let range = at as usize..(at + n) as usize;
                let freed = |model: &mut [User; SIZE], number| {
                    let then = if s > 0 { User::Work(s) } else { User::Nobody };
                    model.iter_mut().filter(|u| **u == User::Block(number)).for_each(|u| *u = then);
                };
                match what {
                    0..=2 if !model[range.clone()].iter().any(|u| matches!(u, User::Block(_))) => {
                        shade.alloc(&mut bytes, at, n);
                        count += 1;
                        model[range].fill(User::Block(count));
                        live.push((at, count));
                    }
                    3 if !live.is_empty() => {
                        let (at, number) = live.swap_remove(place as usize % live.len());
                        shade.free(&mut bytes, at, (s > 0).then_some(s), false);
                        freed(&mut model, number);
                    }
                    4 if !live.is_empty() => {
                        let block = live.swap_remove(place as usize % live.len());
                        shade.wait(block.0);
                        waiting.push(block);
                    }
                    5 if !waiting.is_empty() => {
                        let (at, number) = waiting.remove(0);
                        prop_assert!(shade.waits(at));
                        shade.free(&mut bytes, at, (s > 0).then_some(s), false);
                        freed(&mut model, number);
                    }
                    6 | 8 => {
                        let idle = if what == 6 { s } else { ENDED };
                        for (stream, number) in shade.streams().into_iter().filter(|a| a.0 == idle) {
                            shade.passed(&mut bytes, stream, number);
                        }
                        model.iter_mut().filter(|u| **u == User::Work(idle)).for_each(|u| *u = User::Nobody);
                    }
                    9 => {
                        shade.ended(s); // a new stream has its number
                        model.iter_mut().filter(|u| **u == User::Work(s)).for_each(|u| *u = User::Work(ENDED));
                    }
                    7 => {
                        shade.lift(&mut bytes, at, n);
                        shade.lower(&mut bytes, at, n);
                    }
                    _ => {}
                }
                for (b, user) in model.iter().enumerate() {
                    prop_assert_eq!(bytes.may(b as u64), *user != User::Nobody, "byte {}", b);
                }
            }
            shade.end(&mut bytes);
            prop_assert!((0..SIZE as u64).all(|b| bytes.may(b)));
        }
    }

    #[test]
    fn a_range_that_sleeps_comes_back_with_its_blocks() {
        let mut bytes = Bytes::all_open();
        let mut shade = Shade::default();
        shade.came(&mut bytes, 0, 512);
        shade.alloc(&mut bytes, 64, 10);
        shade.alloc(&mut bytes, 128, 10);
        shade.free(&mut bytes, 128, Some(7), false);
        shade.went(&mut bytes, 0, 512);
        shade.came(&mut bytes, 0, 512);
        assert!(bytes.may(64) && bytes.may(73) && !bytes.may(63) && !bytes.may(74));
        assert!(!bytes.may(128) && shade.streams().is_empty());
        // A graph may use what it had, until somebody else has it.
        shade.free(&mut bytes, 64, Some(7), true);
        shade.lower(&mut bytes, 0, 512);
        assert!(bytes.may(64) && shade.streams().is_empty());
        shade.alloc(&mut bytes, 64, 4);
        shade.free(&mut bytes, 64, None, false);
        assert!(!bytes.may(64) && bytes.may(68));
        // A free that failed.
        shade.alloc(&mut bytes, 200, 8);
        shade.free(&mut bytes, 200, None, false);
        shade.live_on(&mut bytes, 200, 8);
        assert!(bytes.may(200) && !bytes.may(208));
    }
}
