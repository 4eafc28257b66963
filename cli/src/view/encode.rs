//! A record as the page takes it: one JSON with names and numbers of things, and columns of numbers, all in base64.
//!
//! A column is a row of LEB128 numbers, zigzag and each less the one before, so that a million events take a few MB.
//! Addresses become positions on one line: the ranges of memory side by side, without the empty space between them. A
//! position, and any other number here, is below 2^53, which is what a number of JavaScript holds exactly.

use super::record::{Kind, NEVER, Record};
use serde_json::json;

/// The greatest number that is written.
const MOST: u64 = (1 << 53) - 1;

/// Addresses that follow each other, and where they begin on the line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Region {
    host: bool,
    own: bool, // addresses of scattered blocks
    address: u64,
    bytes: u64,
    at: u64,
}

/// Where addresses are on the line.
struct Line(Vec<Region>);

impl Line {
    fn of(r: &Record) -> Line {
        let mut all: Vec<(bool, bool, u64, u64)> = r
            .ranges
            .iter()
            .filter(|x| x.bytes > 0)
            .map(|x| {
                let own = matches!(x.kind, Kind::Shown | Kind::Scattered);
                (x.host, own, x.address, x.address.saturating_add(x.bytes))
            })
            .collect();
        all.sort_unstable();
        let mut regions: Vec<Region> = Vec::new();
        for (host, own, from, to) in all {
            match regions.last_mut() {
                Some(l) if (l.host, l.own) == (host, own) && from <= l.address.saturating_add(l.bytes) => {
                    l.bytes = l.bytes.max(to - l.address);
                }
                _ => regions.push(Region { host, own, address: from, bytes: to - from, at: 0 }),
            }
        }
        let mut at = 0u64;
        for l in &mut regions {
            l.at = at;
            at = at.saturating_add(l.bytes);
        }
        Line(regions)
    }

    /// The position of an address, if it is in a range.
    fn at(&self, host: bool, address: u64) -> Option<u64> {
        // Addresses of scattered blocks and of other memory are apart.
        [false, true].iter().find_map(|&own| {
            let n = self.0.partition_point(|l| (l.host, l.own, l.address) <= (host, own, address));
            let l = self.0.get(n.checked_sub(1)?)?;
            let inside = (l.host, l.own) == (host, own) && address - l.address < l.bytes;
            inside.then(|| l.at.saturating_add(address - l.address))
        })
    }
}

/// The columns, each with its name and length.
#[derive(Default)]
struct Columns {
    bytes: Vec<u8>,
    names: Vec<(&'static str, usize)>,
}

impl Columns {
    fn add(&mut self, name: &'static str, numbers: impl Iterator<Item = u64>) {
        let start = self.bytes.len();
        let mut last = 0i64;
        for n in numbers {
            let n = n.min(MOST) as i64;
            let d = n - last;
            last = n;
            let mut z = ((d << 1) ^ (d >> 63)) as u64;
            while z >= 0x80 {
                self.bytes.push(z as u8 | 0x80);
                z >>= 7;
            }
            self.bytes.push(z as u8);
        }
        self.names.push((name, self.bytes.len() - start));
    }
}

/// The bytes of a record: the length of the JSON (4 bytes, the lowest first), the JSON, the columns.
pub(super) fn encode(r: &Record, version: &str) -> Vec<u8> {
    let line = Line::of(r);
    let (last, blocks, ranges) = (r.last(), &r.blocks, &r.ranges);
    // A moment that never comes is the one after the last.
    let moment = |m: u32| u64::from(if m == NEVER { last + 1 } else { m.min(last) });
    let mut c = Columns::default();
    c.add("times", r.times.iter().copied());
    c.add("block.at", blocks.iter().map(|b| line.at(b.host, b.address).unwrap_or(0)));
    c.add("block.bytes", blocks.iter().map(|b| b.bytes));
    c.add("block.spare", blocks.iter().map(|b| b.bytes.saturating_sub(b.requested)));
    c.add("block.born", blocks.iter().map(|b| moment(b.born)));
    c.add("block.lived", blocks.iter().map(|b| moment(b.asked) - moment(b.born).min(moment(b.asked))));
    c.add("block.waited", blocks.iter().map(|b| moment(b.done) - moment(b.asked).min(moment(b.done))));
    c.add("block.host", blocks.iter().map(|b| u64::from(b.host)));
    c.add("block.stream", blocks.iter().map(|b| b.stream.into()));
    c.add("block.pool", blocks.iter().map(|b| b.pool.into()));
    c.add("block.tag", blocks.iter().map(|b| b.tag.into()));
    c.add("block.thread", blocks.iter().map(|b| b.thread.into()));
    c.add("block.stack", blocks.iter().map(|b| b.stack.into()));
    c.add("block.freed_by", blocks.iter().map(|b| b.freed_by.into()));
    c.add("block.freed_stack", blocks.iter().map(|b| b.freed_stack.into()));
    c.add("block.line", blocks.iter().map(|b| b.line.into()));
    c.add("range.at", ranges.iter().map(|x| line.at(x.host, x.address).unwrap_or(0)));
    c.add("range.bytes", ranges.iter().map(|x| x.bytes));
    c.add("range.kind", ranges.iter().map(|x| x.kind as u64));
    c.add("range.host", ranges.iter().map(|x| u64::from(x.host)));
    c.add("range.born", ranges.iter().map(|x| moment(x.born)));
    c.add("range.died", ranges.iter().map(|x| moment(x.died)));
    // 0: not known.
    c.add(
        "range.home",
        ranges
            .iter()
            .map(|x| line.at(x.host, x.home).filter(|_| x.home != 0).map_or(0, |a| a.saturating_add(1))),
    );
    c.add("range.stream", ranges.iter().map(|x| x.stream.into()));
    c.add("range.pool", ranges.iter().map(|x| x.pool.into()));
    c.add("use.block", r.uses.iter().map(|u| u.block.into()));
    c.add("use.moment", r.uses.iter().map(|u| moment(u.moment)));
    c.add("use.stream", r.uses.iter().map(|u| u.stream.into()));
    c.add("use.thread", r.uses.iter().map(|u| u.thread.into()));
    let regions: Vec<_> = line
        .0
        .iter()
        .map(|l| json!([format!("{:x}", l.address), l.bytes.min(MOST), l.at.min(MOST), l.host, l.own]))
        .collect();
    let marks: Vec<_> = r.marks.iter().map(|m| json!([moment(m.moment), m.what, m.text])).collect();
    let head = json!({
        "title": r.title,
        "facts": r.facts,
        "notes": r.notes,
        "version": version,
        "timed": r.timed,
        "moments": r.times.len(),
        "blocks": blocks.len(),
        "ranges": ranges.len(),
        "uses": r.uses.len(),
        "columns": c.names,
        "regions": regions,
        "marks": marks,
        "names": {
            "stream": r.streams.all(),
            "pool": r.pools.all(),
            "tag": r.tags.all(),
            "thread": r.threads.all(),
        },
        "stacks": r.stacks.all(),
        "frames": r.texts.frames.all(),
    })
    .to_string();
    let mut out = (head.len() as u32).to_le_bytes().to_vec();
    out.extend(head.as_bytes());
    out.append(&mut c.bytes);
    out
}

/// Base64, with its padding.
pub(super) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0u32, |w, &b| w << 8 | u32::from(b)) << (8 * (3 - three.len()));
        for i in 0..4 {
            out.push(match i <= three.len() {
                true => char::from(DIGITS[(word >> (18 - 6 * i)) as usize & 63]),
                false => '=',
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::record::{Builder, Range, tests::block};
    use super::*;

    #[test]
    fn base64_is_padded() {
        for (text, wants) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(text.as_bytes()), wants);
        }
        assert_eq!(base64(&[255, 239, 190]), "/+++");
    }

    #[test]
    fn ranges_lie_side_by_side_on_the_line() {
        let mut b = Builder::new("x");
        b.added(Range::new(Kind::Memory, 1 << 40, 100));
        b.added(Range::new(Kind::Memory, (1 << 40) + 100, 50));
        b.added(Range::new(Kind::Memory, u64::MAX - 9, 100));
        b.added(Range { home: 1 << 40, ..Range::new(Kind::Shown, 1 << 50, 20) });
        b.came(block((1 << 40) + 120, 8, 0));
        let line = Line::of(&b.record);
        assert_eq!(line.at(false, (1 << 40) + 120), Some(120));
        assert_eq!(line.at(false, u64::MAX - 5), Some(154));
        assert_eq!(line.at(false, (1 << 50) + 1), Some(160));
        assert_eq!(
            (line.at(false, 7), line.at(true, 1 << 40), line.at(false, (1 << 40) + 150)),
            (None, None, None)
        );
        // The head says how long each column is, and nothing else follows.
        let bytes = encode(&b.record, "1");
        let length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
        let head: serde_json::Value = serde_json::from_slice(&bytes[4..4 + length]).unwrap();
        let columns = head["columns"].as_array().unwrap();
        let sum: u64 = columns.iter().map(|c| c[1].as_u64().unwrap()).sum();
        assert_eq!(4 + length + sum as usize, bytes.len());
    }

    #[test]
    fn numbers_are_differences() {
        let mut c = Columns::default();
        c.add("a", [5, 3, 3, 1000, u64::MAX].into_iter());
        assert_eq!(&c.bytes[..5], &[10, 3, 0, 0b1100_1010 | 0x80, 15]);
        assert_eq!(c.names, [("a", c.bytes.len())]);
    }
}
