//! What the viewer shows, whatever file it comes from: blocks and ranges of memory, each with the moments at which it came
//! and went, and the names that they refer to by number.
//!
//! Moments are counted: 0 is the state before the first event, and moment n the state after the n-th. A block that is
//! older than the record came at moment 0. Nothing here knows a file's form, nor how it is drawn.

pub(crate) use super::table::Table;
use super::texts::Texts;
use crate::units;
use std::collections::{BTreeMap, HashMap};

/// Of a moment: it has not come.
pub(crate) const NEVER: u32 = u32::MAX;

/// A block, from its allocation to the moment at which its memory could be used again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) bytes: u64,     // as charged
    pub(crate) requested: u64, // [B]
    pub(crate) host: bool,     // pinned host memory
    pub(crate) born: u32,      // 0: older than the record
    pub(crate) asked: u32,     // its free was asked for
    pub(crate) done: u32,      // it could be used again
    pub(crate) stream: u32,
    pub(crate) pool: u32,
    pub(crate) tag: u32,
    pub(crate) thread: u32, // that allocated it
    pub(crate) stack: u32,
    pub(crate) freed_by: u32, // the thread
    pub(crate) freed_stack: u32,
    pub(crate) line: u32, // of the file that told of it; 0: none
}

impl Block {
    /// A block of which only the address is known.
    pub(crate) fn at(address: u64) -> Block {
        Block {
            address,
            bytes: 0,
            requested: 0,
            host: false,
            born: 0,
            asked: NEVER,
            done: NEVER,
            stream: 0,
            pool: 0,
            tag: 0,
            thread: 0,
            stack: 0,
            freed_by: 0,
            freed_stack: 0,
            line: 0,
        }
    }
}

/// What a range of memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Taken from the device.
    Memory = 0,
    /// Memory that is shown at these addresses, too; it is counted where it has been from the start.
    Shown = 1,
    /// The addresses of a scattered block whose memory is in no other range.
    Scattered = 2,
    /// Addresses of a pool that sleeps, without memory.
    Asleep = 3,
}

impl Kind {
    /// Whether its bytes are reserved.
    pub(crate) fn counts(self) -> bool {
        matches!(self, Kind::Memory | Kind::Scattered)
    }
}

/// A range of memory, from the moment at which it came to that at which it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) host: bool,
    pub(crate) kind: Kind,
    pub(crate) born: u32,
    pub(crate) died: u32,
    pub(crate) home: u64, // of shown memory: where it has been from the start; 0: not known
    pub(crate) stream: u32,
    pub(crate) pool: u32,
}

impl Range {
    pub(crate) fn new(kind: Kind, address: u64, bytes: u64) -> Range {
        let (host, born, died, home) = (false, 0, NEVER, 0);
        Range { address, bytes, host, kind, born, died, home, stream: 0, pool: 0 }
    }

    fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }

    /// The part from `from` to `to`, which lie in it.
    fn part(&self, from: u64, to: u64) -> Range {
        let home = if self.home == 0 { 0 } else { self.home.saturating_add(from - self.address) };
        Range { address: from, bytes: to - from, home, ..self.clone() }
    }
}

/// Something that is worth a word at its moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) moment: u32,
    pub(crate) what: &'static str, // `note`, `oom`, `snapshot`, `refused`, `step`
    pub(crate) text: String,
}

/// One more stream uses a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) block: u32,
    pub(crate) moment: u32,
    pub(crate) stream: u32,
    pub(crate) thread: u32,
}

/// See the file's head.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) title: String,
    pub(crate) facts: Vec<(String, String)>,
    /// What whoever looks at it must know: what is missing, above all.
    pub(crate) notes: Vec<String>,
    /// [ns] since the first event, of each moment.
    pub(crate) times: Vec<u64>,
    /// Whether these are times of the program, and not of a replay.
    pub(crate) timed: bool,
    pub(crate) blocks: Vec<Block>,
    pub(crate) ranges: Vec<Range>,
    pub(crate) marks: Vec<Mark>,
    pub(crate) uses: Vec<Use>,
    pub(crate) streams: Table<String>,
    pub(crate) pools: Table<String>,
    pub(crate) tags: Table<String>,
    pub(crate) threads: Table<String>,
    pub(crate) texts: Texts,
    /// Of callers, by their numbers in the texts.
    pub(crate) stacks: Table<Vec<u32>>,
}

impl Record {
    pub(crate) fn new(title: &str) -> Record {
        let unknown = || Table::new("unknown".to_owned());
        Record {
            title: title.to_owned(),
            facts: Vec::new(),
            notes: Vec::new(),
            times: vec![0],
            timed: true,
            blocks: Vec::new(),
            ranges: Vec::new(),
            marks: Vec::new(),
            uses: Vec::new(),
            streams: unknown(),
            pools: unknown(),
            tags: Table::new(String::new()),
            threads: unknown(),
            texts: Texts::new(),
            stacks: Table::new(Vec::new()),
        }
    }

    /// The last moment.
    pub(crate) fn last(&self) -> u32 {
        self.times.len().saturating_sub(1) as u32
    }

    pub(crate) fn fact(&mut self, what: &str, value: impl Into<String>) {
        self.facts.push((what.to_owned(), value.into()));
    }

    /// Blocks that lie in no range: their memory was taken before the record began. It is given ranges that have been there
    /// from the start, as small as they can be. How many bytes these have.
    pub(crate) fn cover_older_blocks(&mut self) -> u64 {
        let mut covered: Vec<(bool, u64, u64)> =
            self.ranges.iter().map(|r| (r.host, r.address, r.end())).collect();
        covered.sort_unstable();
        // Each ends where those before it have ended at the latest, so that a look at one neighbour is enough.
        for i in 1..covered.len() {
            let before = covered[i - 1];
            if before.0 == covered[i].0 {
                covered[i].2 = covered[i].2.max(before.2);
            }
        }
        let lies_in = |b: &Block| {
            let n = covered.partition_point(|r| (r.0, r.1) <= (b.host, b.address));
            n > 0 && covered[n - 1].0 == b.host && b.address < covered[n - 1].2
        };
        let mut bare: Vec<(bool, u64, u64)> = self
            .blocks
            .iter()
            .filter(|b| !lies_in(b))
            .map(|b| (b.host, b.address, b.address.saturating_add(b.bytes)))
            .filter(|&(_, from, to)| from < to)
            .collect();
        bare.sort_unstable();
        let mut added: Vec<Range> = Vec::new();
        for (host, from, to) in bare {
            match added.last_mut() {
                Some(r) if r.host == host && from <= r.end() => r.bytes = r.bytes.max(to - r.address),
                _ => added.push(Range { host, ..Range::new(Kind::Memory, from, to - from) }),
            }
        }
        let bytes = added.iter().fold(0u64, |sum, r| sum.saturating_add(r.bytes));
        self.ranges.append(&mut added);
        bytes
    }
}

/// A record on its way, event by event.
pub(crate) struct Builder {
    pub(crate) record: Record,
    start: Option<u64>,                     // [ns] of the first event
    latest: HashMap<(bool, u64), u32>,      // the last block at each address
    open: BTreeMap<(bool, bool, u64), u32>, // ranges that are there: host, shown, address
    /// Blocks whose free is not in the record, though others have taken their place.
    pub(crate) lost_frees: u64,
    /// Blocks whose allocation is not in the record, though there were others before at their place.
    pub(crate) lost_allocs: u64,
    /// Blocks whose allocation is not in the record, as they are older.
    pub(crate) older: u64,
}

impl Builder {
    pub(crate) fn new(title: &str) -> Builder {
        Builder {
            record: Record::new(title),
            start: None,
            latest: HashMap::new(),
            open: BTreeMap::new(),
            lost_frees: 0,
            lost_allocs: 0,
            older: 0,
        }
    }

    /// The next moment, at that time [ns]; time does not run backwards here.
    pub(crate) fn moment(&mut self, time: u64) -> u32 {
        let start = *self.start.get_or_insert(time);
        let before = self.record.times.last().copied().unwrap_or(0);
        self.record.times.push(time.saturating_sub(start).max(before));
        self.record.last()
    }

    /// The last block that was told of at an address.
    pub(crate) fn latest(&self, host: bool, address: u64) -> Option<u32> {
        self.latest.get(&(host, address)).copied()
    }

    fn latest_block(&mut self, host: bool, address: u64) -> Option<&mut Block> {
        let n = self.latest(host, address)?;
        self.record.blocks.get_mut(n as usize)
    }

    /// A block that has come; its number.
    pub(crate) fn came(&mut self, block: Block) -> u32 {
        let now = block.born;
        let mut lost = false;
        if let Some(before) = self.latest_block(block.host, block.address) {
            lost = before.asked == NEVER;
            before.asked = before.asked.min(now);
            before.done = before.done.min(now);
        }
        self.lost_frees += u64::from(lost);
        let number = self.record.blocks.len() as u32;
        self.latest.insert((block.host, block.address), number);
        self.record.blocks.push(block);
        number
    }

    /// A block whose allocation is not in the record, which has come by now at the latest; its number.
    pub(crate) fn unseen(&mut self, now: u32, block: Block) -> u32 {
        let born = match self.latest_block(block.host, block.address) {
            None => {
                self.older += 1;
                0
            }
            Some(before) => {
                let end = before.done.min(now);
                self.lost_allocs += 1;
                end
            }
        };
        self.came(Block { born, ..block })
    }

    /// The free of a block was asked for. `block` is what is known of it where its allocation is not in the record.
    pub(crate) fn asked(&mut self, now: u32, at_once: bool, thread: u32, stack: u32, block: Block) {
        let (host, address) = (block.host, block.address);
        if self.latest_block(host, address).is_none_or(|b| b.asked != NEVER) {
            self.unseen(now, block);
        }
        if let Some(b) = self.latest_block(host, address) {
            b.asked = now;
            b.done = if at_once { now } else { NEVER };
            (b.freed_by, b.freed_stack) = (thread, stack);
        }
    }

    /// A block that waited can be used again.
    pub(crate) fn completed(&mut self, now: u32, host: bool, address: u64) {
        if let Some(b) = self.latest_block(host, address)
            && b.asked != NEVER
            && b.done == NEVER
        {
            b.done = now;
        }
    }

    /// The free that was asked for has failed.
    pub(crate) fn refused(&mut self, host: bool, address: u64) {
        if let Some(b) = self.latest_block(host, address) {
            (b.asked, b.done) = (NEVER, NEVER);
        }
    }

    /// A range has come.
    pub(crate) fn added(&mut self, range: Range) {
        let shown = range.kind == Kind::Shown;
        // It ends with the last address, whatever it says.
        let range = Range { bytes: range.end() - range.address, ..range };
        if range.bytes == 0 {
            return;
        }
        // What is there still has gone unseen.
        self.carve(range.born, range.host, shown, range.address, range.end(), None);
        self.open.insert((range.host, shown, range.address), self.record.ranges.len() as u32);
        self.record.ranges.push(range);
    }

    /// A range has gone, which may be a part of one that came, or of several.
    pub(crate) fn removed(&mut self, now: u32, host: bool, kind: Kind, address: u64, bytes: u64) {
        let older = Range { host, ..Range::new(kind, address, bytes) };
        self.carve(now, host, kind == Kind::Shown, address, address.saturating_add(bytes), Some(older));
    }

    /// A range that is there at the end. The parts of it whose coming is not in the record have been there from the start.
    pub(crate) fn was_there(&mut self, range: &Range) {
        let shown = range.kind == Kind::Shown;
        let (host, mut at, end) = (range.host, range.address, range.end());
        let start = self.open.range((host, shown, 0)..=(host, shown, at)).next_back().map_or(at, |r| r.0.2);
        let known: Vec<u32> =
            self.open.range((host, shown, start)..(host, shown, end)).map(|(_, &n)| n).collect();
        let mut gap = |from: u64, to: u64, all: &mut Vec<Range>| {
            if from < to {
                self.open.insert((host, shown, from), all.len() as u32);
                all.push(range.part(from, to));
            }
        };
        for n in known {
            let (from, to) = self.record.ranges.get(n as usize).map_or((at, at), |r| (r.address, r.end()));
            gap(at, from.min(end), &mut self.record.ranges);
            at = at.max(to);
        }
        gap(at, end, &mut self.record.ranges);
    }

    /// What whoever looks at the record must know of what it lacks.
    pub(crate) fn lacks(&self) -> Vec<String> {
        [
            (self.older, "block", "older than the record: nobody knows who allocated such a block"),
            (self.lost_allocs, "allocation", "missing: such a block begins where the one before it ends"),
            (self.lost_frees, "free", "missing: such a block ends where another one takes its place"),
        ]
        .into_iter()
        .filter(|lack| lack.0 > 0)
        .map(|(n, noun, what)| format!("{} {what}", units::are(n, noun)))
        .collect()
    }

    /// Ends what is there between two addresses; where nothing is, the part of `older`.
    fn carve(&mut self, now: u32, host: bool, shown: bool, from: u64, to: u64, older: Option<Range>) {
        if from >= to {
            return;
        }
        // The first one that may reach into it may begin before it.
        let start =
            self.open.range((host, shown, 0)..=(host, shown, from)).next_back().map_or(from, |r| r.0.2);
        let hit: Vec<((bool, bool, u64), u32)> =
            self.open.range((host, shown, start)..(host, shown, to)).map(|(k, &n)| (*k, n)).collect();
        let mut at = from;
        let bare = |from: u64, to: u64, ranges: &mut Vec<Range>| {
            if let Some(r) = older.as_ref().filter(|_| from < to) {
                ranges.push(Range { died: now, ..r.part(from, to) });
            }
        };
        for (key, n) in hit {
            let whole = self.record.ranges[n as usize].clone();
            if whole.end() <= from {
                continue;
            }
            self.open.remove(&key);
            bare(at, whole.address.max(at), &mut self.record.ranges);
            let (inner_from, inner_to) = (whole.address.max(from), whole.end().min(to));
            self.record.ranges[n as usize] = Range { died: now, ..whole.part(inner_from, inner_to) };
            for (a, b) in [(whole.address, inner_from), (inner_to, whole.end())] {
                if a < b {
                    self.open.insert((host, shown, a), self.record.ranges.len() as u32);
                    self.record.ranges.push(whole.part(a, b));
                }
            }
            at = inner_to;
        }
        bare(at, to, &mut self.record.ranges);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn block(address: u64, bytes: u64, born: u32) -> Block {
        Block { bytes, requested: bytes, born, ..Block::at(address) }
    }

    fn range(address: u64, bytes: u64, born: u32) -> Range {
        Range { born, ..Range::new(Kind::Memory, address, bytes) }
    }

    /// Ranges as (address, bytes, born, died).
    fn told(b: &Builder) -> Vec<(u64, u64, u32, u32)> {
        let mut all: Vec<_> = b.record.ranges.iter().map(|r| (r.address, r.bytes, r.born, r.died)).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn a_range_goes_in_parts() {
        let mut b = Builder::new("x");
        b.added(range(100, 100, 1));
        b.removed(2, false, Kind::Memory, 120, 30);
        b.removed(3, false, Kind::Memory, 90, 20);
        assert_eq!(
            told(&b),
            [(90, 10, 0, 3), (100, 10, 1, 3), (110, 10, 1, NEVER), (120, 30, 1, 2), (150, 50, 1, NEVER)]
        );
        b.removed(4, false, Kind::Memory, 0, 1000);
        let sum: u64 = b.record.ranges.iter().filter(|r| r.born == 1).map(|r| r.bytes).sum();
        assert_eq!(sum, 100);
        assert!(b.record.ranges.iter().all(|r| r.died != NEVER));
        assert!(b.open.is_empty());
    }

    #[test]
    fn what_is_there_at_the_end_has_come_or_was_there() {
        let mut b = Builder::new("x");
        b.added(range(120, 30, 1));
        b.added(range(180, 40, 2));
        b.was_there(&range(100, 100, 0));
        b.was_there(&range(300, 10, 0));
        b.was_there(&range(305, 10, 0));
        assert_eq!(
            told(&b),
            [
                (100, 20, 0, NEVER),
                (120, 30, 1, NEVER),
                (150, 30, 0, NEVER),
                (180, 40, 2, NEVER),
                (300, 10, 0, NEVER),
                (310, 5, 0, NEVER)
            ]
        );
    }

    #[test]
    fn shown_memory_keeps_its_home() {
        let mut b = Builder::new("x");
        b.added(Range { home: 5000, born: 1, ..Range::new(Kind::Shown, 100, 100) });
        b.removed(2, false, Kind::Shown, 150, 10);
        let homes: Vec<_> = b.record.ranges.iter().map(|r| (r.address, r.home)).collect();
        assert_eq!(homes, [(150, 5050), (100, 5000), (160, 5060)]);
    }

    #[test]
    fn what_is_not_in_the_record_is_made_up_for() {
        let mut b = Builder::new("x");
        assert_eq!((b.moment(50), b.moment(70), b.moment(60)), (1, 2, 3));
        assert_eq!(b.record.times, [0, 0, 20, 20]);
        b.asked(1, true, 0, 0, block(64, 8, 0)); // older
        b.came(block(64, 16, 2));
        b.came(block(64, 32, 3)); // its free was lost
        assert_eq!((b.older, b.lost_frees), (1, 1));
        let spans: Vec<_> = b.record.blocks.iter().map(|b| (b.bytes, b.born, b.asked, b.done)).collect();
        assert_eq!(spans, [(8, 0, 1, 1), (16, 2, 3, 3), (32, 3, NEVER, NEVER)]);
        b.asked(3, false, 0, 0, block(64, 32, 0));
        b.asked(4, true, 0, 0, block(64, 48, 0)); // its allocation was lost
        let lost = b.record.blocks.pop().unwrap();
        assert_eq!((b.lost_allocs, lost.born, lost.asked, b.record.blocks[2].done), (1, 4, 4, 4));
        b.latest.insert((false, 64), 2);
        b.completed(3, false, 999);
        b.refused(false, 64);
        assert_eq!(b.record.blocks[2].asked, NEVER);
    }

    #[test]
    fn bare_blocks_are_covered() {
        let mut b = Builder::new("x");
        b.added(range(100, 100, 1));
        for at in [100, 199, 200, 208, 300, 10] {
            b.came(block(at, 8, 1));
        }
        let bytes = b.record.cover_older_blocks();
        assert_eq!(bytes, 16 + 8 + 8);
        assert_eq!(
            told(&b),
            [(10, 8, 0, NEVER), (100, 100, 1, NEVER), (200, 16, 0, NEVER), (300, 8, 0, NEVER)]
        );
    }
}
