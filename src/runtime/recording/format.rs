//! Files of a device's history, to write and to read: `docs/history.md` describes the form.
//!
//! A file is a head and chunks. Each chunk has its length and a checksum and can be read by itself, so that a file whose
//! writer has ended in the middle is read up to its last whole chunk. Whatever the bytes are, reading ends with events
//! or with an error that names the place.

use crate::base::error::{Code, Error, Result};
use crate::core::PoolId;
use crate::fail;
use crate::runtime::watch::event::{Event, EventKind};
use std::collections::BTreeMap;

/// The first bytes of each file.
const MAGIC: [u8; 8] = *b"MPHIST\r\n";
/// Of the form. One that a reader does not know is refused.
const VERSION: u32 = 1;

/// Instead of the kind of an event: events were dropped here.
const DROPPED: u8 = 0;
/// The modules of the process follow.
const MODULES: u8 = 255;
/// The name of a tag follows.
const TAG_NAME: u8 = 254;
/// The name of a pool follows.
const POOL_NAME: u8 = 253;

const HOST: u8 = 1;
const AT_ONCE: u8 = 2;
const STREAM: u8 = 4;
const TAG: u8 = 8;
const FRAMES: u8 = 16;
const TEXT: u8 = 32;
const HOME: u8 = 64;

/// An event as it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEvent {
    /// The event.
    pub event: Event,
    /// When it happened, as [`history_stamp`](crate::runtime::history_stamp) tells it; 0 where it comes from a file.
    pub stamp: u64,
    /// The callers' return addresses, the innermost first, where they were asked for.
    pub frames: Vec<u64>,
    /// Of `Annotate`: what the program noted.
    pub text: Option<String>,
}

/// A file that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryFile {
    /// What its head says, as `key: value`.
    pub about: Vec<(String, String)>,
    /// All events, as they came.
    pub events: Vec<HistoryEvent>,
    /// Events that were dropped, as the writer could not keep up.
    pub dropped: u64,
    /// What is loaded where, as `/proc/self/maps` had it: for the addresses of callers.
    pub modules: String,
    /// The names of the tags of its events.
    pub tags: BTreeMap<u16, String>,
    /// The names of the pools of its events, those that have one.
    pub pools: BTreeMap<u32, String>,
    /// The file ends in the middle of a chunk: its writer ended, or still writes.
    pub cut_off: bool,
    /// \[B\] up to the end of its last whole chunk.
    pub whole_bytes: u64,
}

/// \[B\] of the head before what it says about the file.
pub(super) const BEFORE_ABOUT: usize = MAGIC.len() + 8;

/// The head of a file.
pub(super) fn head(about: &str) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend((about.len() as u32).to_le_bytes());
    out.extend(about.as_bytes());
    out
}

/// A chunk that is being written.
#[derive(Default)]
pub(super) struct Chunk {
    bytes: Vec<u8>,
    time: u64,
    address: u64,
}

fn zigzag(n: u64) -> u64 {
    let n = n as i64;
    (n << 1 ^ n >> 63) as u64
}

fn unzigzag(n: u64) -> u64 {
    n >> 1 ^ (n & 1).wrapping_neg()
}

impl Chunk {
    fn number(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.bytes.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.bytes.push(n as u8);
    }

    fn text(&mut self, t: &str) {
        self.number(t.len() as u64);
        self.bytes.extend(t.as_bytes());
    }

    pub(super) fn event(&mut self, e: &Event, frames: &[u64], text: Option<&str>) {
        let flag = |is: bool, bit| if is { bit } else { 0 };
        let flags = flag(e.host, HOST)
            | flag(e.at_once, AT_ONCE)
            | flag(e.stream.is_some(), STREAM)
            | flag(e.tag != 0, TAG)
            | flag(!frames.is_empty(), FRAMES)
            | flag(text.is_some(), TEXT)
            | flag(e.home != 0, HOME);
        self.bytes.extend([e.kind as u8, flags]);
        self.number(zigzag(e.time.wrapping_sub(self.time)));
        self.number(e.thread.into());
        self.number(zigzag(e.address.wrapping_sub(self.address)));
        self.number(e.bytes);
        self.number(zigzag(e.bytes.wrapping_sub(e.requested)));
        self.number(e.pool.0.into());
        (self.time, self.address) = (e.time, e.address);
        if let Some(s) = e.stream {
            self.number(s);
        }
        if e.tag != 0 {
            self.number(e.tag.into());
        }
        if !frames.is_empty() {
            self.number(frames.len() as u64);
            let mut last = 0u64;
            for &f in frames {
                self.number(zigzag(f.wrapping_sub(last)));
                last = f;
            }
        }
        text.into_iter().for_each(|t| self.text(t));
        if e.home != 0 {
            self.number(zigzag(e.home.wrapping_sub(e.address)));
        }
    }

    pub(super) fn tag_name(&mut self, number: u16, name: &str) {
        self.bytes.push(TAG_NAME);
        self.number(number.into());
        self.text(name);
    }

    pub(super) fn pool_name(&mut self, pool: PoolId, name: &str) {
        self.bytes.push(POOL_NAME);
        self.number(pool.0.into());
        self.text(name);
    }

    pub(super) fn dropped(&mut self, count: u64) {
        self.bytes.push(DROPPED);
        self.number(count);
    }

    pub(super) fn modules(&mut self, maps: &str) {
        self.bytes.push(MODULES);
        self.text(maps);
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// What goes into the file; empty where nothing was put in.
    pub(super) fn finish(self) -> Vec<u8> {
        if self.bytes.is_empty() {
            return self.bytes;
        }
        let mut out = Vec::with_capacity(self.bytes.len() + 8);
        out.extend((self.bytes.len() as u32).to_le_bytes());
        out.extend(crc32fast::hash(&self.bytes).to_le_bytes());
        out.extend(self.bytes);
        out
    }
}

/// Bytes that are read from the front.
struct Bytes<'a> {
    left: &'a [u8],
    /// Of `left` in the file.
    at: usize,
}

impl<'a> Bytes<'a> {
    fn wrong<T>(&self, what: &str) -> Result<T> {
        fail!(Code::InvalidArgument, "byte {}: {what}", self.at)
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8]> {
        let Some((taken, left)) = usize::try_from(count).ok().and_then(|n| self.left.split_at_checked(n))
        else {
            return self.wrong("the chunk ends in the middle of an item");
        };
        self.left = left;
        self.at += taken.len();
        Ok(taken)
    }

    fn word(&mut self) -> Result<u32> {
        let b = self.take(4)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> Result<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let b = self.byte()?;
            if shift == 63 && b > 1 {
                break;
            }
            n |= u64::from(b & 0x7F) << shift;
            if b & 0x80 == 0 {
                return Ok(n);
            }
        }
        self.wrong("a number is longer than 64 bits")
    }

    fn small<T: TryFrom<u64>>(&mut self, what: &str) -> Result<T> {
        let n = self.number()?;
        T::try_from(n).or_else(|_| self.wrong(&format!("{n} is too large for {what}")))
    }

    fn text(&mut self) -> Result<String> {
        let length = self.number()?;
        let b = self.take(length)?;
        Ok(String::from_utf8_lossy(b).into_owned())
    }
}

fn kind_of(byte: u8) -> Option<EventKind> {
    EventKind::ALL.into_iter().find(|&k| k as u8 == byte)
}

impl HistoryFile {
    /// Reads a file's bytes. `InvalidArgument`, with the place, for bytes that are no such file, one of another
    /// version, or a damaged one; one that only ends too early is read as far as it goes.
    pub fn parse(bytes: &[u8]) -> Result<HistoryFile> {
        let mut b = Bytes { left: bytes, at: 0 };
        if b.take(8).ok() != Some(&MAGIC[..]) {
            return Err(Error::new(
                Code::InvalidArgument,
                "this is no history of Millpond: it begins otherwise",
            ));
        }
        let mut file = HistoryFile::default();
        let (Ok(version), Ok(length)) = (b.word(), b.word()) else {
            file.cut_off = true;
            return Ok(file);
        };
        if version != VERSION {
            fail!(
                Code::InvalidArgument,
                "byte 8: the file has version {version}; this reads version {VERSION}"
            );
        }
        let Ok(about) = b.take(length.into()) else {
            file.cut_off = true;
            return Ok(file);
        };
        for line in String::from_utf8_lossy(about).lines() {
            // The line of a failure is filled with spaces.
            if let Some((k, v)) = line.trim_end_matches(' ').split_once(": ") {
                file.about.push((k.to_owned(), v.to_owned()));
            }
        }
        while !b.left.is_empty() {
            let start = b.at;
            file.whole_bytes = start as u64;
            let (Ok(length), Ok(sum)) = (b.word(), b.word()) else {
                file.cut_off = true;
                return Ok(file);
            };
            let Ok(chunk) = b.take(length.into()) else {
                file.cut_off = true;
                return Ok(file);
            };
            if crc32fast::hash(chunk) != sum {
                fail!(Code::InvalidArgument, "byte {start}: the chunk is damaged (its checksum is another)");
            }
            file.chunk(&mut Bytes { left: chunk, at: start + 8 })?;
        }
        file.whole_bytes = b.at as u64;
        Ok(file)
    }

    fn chunk(&mut self, b: &mut Bytes<'_>) -> Result<()> {
        let (mut time, mut address) = (0u64, 0u64);
        while !b.left.is_empty() {
            match b.byte()? {
                DROPPED => self.dropped += b.number()?,
                MODULES => self.modules = b.text()?,
                TAG_NAME => {
                    let number = b.small("a tag")?;
                    self.tags.insert(number, b.text()?);
                }
                POOL_NAME => {
                    let number = b.small("a pool")?;
                    self.pools.insert(number, b.text()?);
                }
                k => {
                    let Some(kind) = kind_of(k) else {
                        return b.wrong(&format!("there is no event of kind {k}"));
                    };
                    let flags = b.byte()?;
                    time = time.wrapping_add(unzigzag(b.number()?));
                    let thread = b.small("a thread")?;
                    address = address.wrapping_add(unzigzag(b.number()?));
                    let bytes = b.number()?;
                    let requested = bytes.wrapping_sub(unzigzag(b.number()?));
                    let pool = PoolId(b.small("a pool")?);
                    let stream = if flags & STREAM != 0 { Some(b.number()?) } else { None };
                    let tag = if flags & TAG != 0 { b.small("a tag")? } else { 0 };
                    let mut frames = Vec::new();
                    if flags & FRAMES != 0 {
                        let mut last = 0u64;
                        for _ in 0..b.number()? {
                            last = last.wrapping_add(unzigzag(b.number()?));
                            frames.push(last);
                        }
                    }
                    let text = if flags & TEXT != 0 { Some(b.text()?) } else { None };
                    let home =
                        if flags & HOME != 0 { address.wrapping_add(unzigzag(b.number()?)) } else { 0 };
                    let (host, at_once) = (flags & HOST != 0, flags & AT_ONCE != 0);
                    let event = Event {
                        time,
                        kind,
                        host,
                        at_once,
                        address,
                        bytes,
                        requested,
                        stream,
                        pool,
                        thread,
                        tag,
                        home,
                        ended: false, // not in files
                    };
                    self.events.push(HistoryEvent { event, stamp: 0, frames, text });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn events() -> Vec<HistoryEvent> {
        let e = |kind, n: u64| Event {
            time: (1 << 60) + n * 1000,
            at_once: n == 3,
            host: n == 5,
            stream: n.is_multiple_of(2).then_some(u64::MAX - n),
            pool: PoolId(n as u32 * 7),
            thread: u32::MAX - n as u32,
            tag: n as u16 % 3,
            requested: n * 77,
            home: if kind == EventKind::SegmentMap { n << 21 } else { 0 },
            ..Event::range(kind, (n << 40).wrapping_sub(n % 2), n * 512)
        };
        let of = |(n, kind): (usize, EventKind)| HistoryEvent {
            event: e(kind, n as u64),
            stamp: 0,
            frames: (0..n as u64 % 4).map(|i| 0x7f00_0000_1000 - i * i).collect(),
            text: (kind == EventKind::Annotate).then(|| "step 7: Größe".to_owned()),
        };
        EventKind::ALL.into_iter().enumerate().map(of).collect()
    }

    fn file() -> Vec<u8> {
        let mut out = head("device: host:0\nprogram: /a: b\n");
        for some in events().chunks(5) {
            let mut c = Chunk::default();
            some.iter().for_each(|e| c.event(&e.event, &e.frames, e.text.as_deref()));
            c.dropped(3);
            c.tag_name(2, "weights </script>\n");
            c.pool_name(PoolId(7), "kv");
            out.extend(c.finish());
        }
        let mut c = Chunk::default();
        c.modules("1000-2000 r-xp 0 /bin/x\n");
        out.extend(c.finish());
        out
    }

    #[test]
    fn what_is_written_is_read() {
        let f = HistoryFile::parse(&file()).unwrap();
        assert_eq!(f.events, events());
        assert_eq!((f.dropped, f.cut_off, &f.modules[..]), (9, false, "1000-2000 r-xp 0 /bin/x\n"));
        assert_eq!((f.tags[&2].as_str(), f.tags.len()), ("weights </script>\n", 1));
        assert_eq!(f.pools, BTreeMap::from([(7, "kv".to_owned())]));
        assert_eq!(f.whole_bytes, file().len() as u64);
        assert_eq!(f.about[1], ("program".to_owned(), "/a: b".to_owned()));
    }

    #[test]
    fn a_file_that_is_cut_off_is_read_as_far_as_it_goes() {
        let whole = file();
        let mut seen = 0;
        for n in 8..whole.len() {
            let f = HistoryFile::parse(&whole[..n]).unwrap();
            assert!(events().starts_with(&f.events));
            assert!(f.events.len() >= seen, "{n}");
            assert!(f.whole_bytes <= n as u64 && f.cut_off == (f.whole_bytes != n as u64), "{n}");
            seen = f.events.len();
        }
        assert_eq!(seen, events().len());
        assert!((0..8).all(|n| HistoryFile::parse(&whole[..n]).is_err()));
    }

    #[test]
    fn damage_is_an_error_with_its_place() {
        let whole = file();
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bad = whole.clone();
                bad[at] ^= 1 << bit;
                match HistoryFile::parse(&bad) {
                    Ok(f) => assert!(f.cut_off || f.events == events(), "byte {at}"),
                    Err(e) => assert!(at < 8 || e.message().starts_with("byte "), "{e}"),
                }
            }
        }
        let wrong = |chunk: &[u8]| {
            let mut out = head("");
            out.extend(Chunk { bytes: chunk.to_vec(), ..Chunk::default() }.finish());
            HistoryFile::parse(&out).unwrap_err().message().to_owned()
        };
        assert_eq!(wrong(&[77, 0]), "byte 25: there is no event of kind 77");
        assert!(wrong(&[1, 0, 5]).ends_with("the chunk ends in the middle of an item"));
        assert!(wrong(&[[0].as_slice(), &[255; 12]].concat()).ends_with("longer than 64 bits"));
        assert!(wrong(&[1, 0, 0, 255, 255, 255, 255, 255, 1]).ends_with("too large for a thread"));
        let frames = [1, FRAMES, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 1];
        assert!(wrong(&frames).ends_with("in the middle of an item"), "not as many as it says");
        let mut other = file();
        other[8] = 9;
        assert!(HistoryFile::parse(&other).unwrap_err().message().contains("version 9"));
    }
}
