//! What a replay does with the memory it gets: writes to it, and with `--check` proves that nobody
//! else did. All of it goes through the block's stream, so that no order is assumed that the
//! library did not promise.
//!
//! A checked block carries a pattern of its own from birth to death: words of a hash of its number
//! at both ends, and (`--touch all`) one byte of the hash everywhere between. Before its free it is
//! read back on its stream. Beside that, a map of the live address ranges finds overlaps that no
//! write would show.

use crate::api::{ApiResult, Device, Readback, Stream};
use anyhow::{Result, bail};
use clap::ValueEnum;
use std::collections::BTreeMap;

/// [B] How much of each end of a block is written with `--touch edges`.
const EDGE: u64 = 256;
/// [B] How much is read back before the device is waited for.
const READBACK: usize = 32 << 20;

/// How much of each block is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Touch {
    /// Nothing: only the allocator runs
    None,
    /// The first and the last 256 bytes of each block
    Edges,
    /// Every byte of each block
    All,
}

/// What is proved about the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Nothing
    None,
    /// That their ranges are apart, and that what was written at their ends is still there at the free
    Ends,
    /// The same of all that was written
    All,
}

/// A live block of the trace.
#[derive(Clone, Copy)]
pub(crate) struct Live {
    pub(crate) addr: u64,      // device address; 0 for a block of 0 bytes
    pub(crate) bytes: u64,     // as asked for
    pub(crate) stream: Stream, // that it was allocated on
}

/// What the checks did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Checked {
    pub(crate) blocks: u64, // blocks whose range was compared with all live ones
    pub(crate) bytes: u64,  // read back and compared
}

/// A read that is under way, and what it must bring.
struct Pending {
    block: u32,   // number in the trace, for the message
    at: usize,    // where in the buffer
    bytes: usize, // how long
    offset: u64,  // of the first byte within its block
    wants: Wants, // what the bytes must be
}

enum Wants {
    Word([u8; 8]), // repeated
    Byte(u8),
}

/// Touches blocks, and checks them.
pub(crate) struct Toucher {
    device: Device,
    touch: Touch,
    check: Check,
    salt: u64,                         // another pattern in each pass
    ranges: BTreeMap<u64, (u64, u32)>, // live ranges: start -> end, block number
    readback: Readback,
    pending: Vec<Pending>,
    checked: Checked,
}

impl Toucher {
    /// For blocks of `device`.
    pub(crate) fn new(device: Device, touch: Touch, check: Check) -> Toucher {
        let buffer = if check != Check::None && touch != Touch::None { READBACK } else { 0 };
        Toucher {
            device,
            touch,
            check,
            salt: 0,
            ranges: BTreeMap::new(),
            readback: Readback::new(device, buffer),
            pending: Vec::new(),
            checked: Checked::default(),
        }
    }

    /// Begins a pass: patterns differ from those of the pass before.
    pub(crate) fn begin_pass(&mut self, pass: u64) {
        self.salt = pass << 32;
    }

    /// The block was allocated just now.
    pub(crate) fn born(&mut self, block: u32, live: Live) -> Result<()> {
        if live.bytes == 0 {
            return Ok(());
        }
        if self.check != Check::None {
            self.claim(block, live)?;
        }
        self.write(block, live)?;
        Ok(())
    }

    /// The block will be freed next.
    pub(crate) fn dies(&mut self, block: u32, live: Live) -> Result<()> {
        if live.bytes == 0 || self.check == Check::None {
            return Ok(());
        }
        self.ranges.remove(&live.addr);
        if self.touch != Touch::None {
            self.read_back(block, live)?;
        }
        Ok(())
    }

    /// Waits for all reads and compares them; says what was checked so far.
    pub(crate) fn settle(&mut self) -> Result<Checked> {
        self.compare()?;
        Ok(self.checked)
    }

    /// Enters the block's range and refuses overlaps.
    fn claim(&mut self, block: u32, live: Live) -> Result<()> {
        let (start, end) = (live.addr, live.addr + live.bytes);
        let below = self.ranges.range(..end).next_back();
        if let Some((&other_start, &(other_end, other))) = below
            && other_end > start
        {
            bail!(
                "CHECK FAILED: allocation {block} got {start:#x}..{end:#x}, \
                 but allocation {other} is alive at {other_start:#x}..{other_end:#x}"
            );
        }
        self.ranges.insert(start, (end, block));
        self.checked.blocks += 1;
        Ok(())
    }

    /// Head, middle and tail of a block: the ends are at most [`EDGE`] bytes each.
    fn parts(bytes: u64) -> (u64, u64, u64) {
        let head = bytes.min(EDGE);
        let tail = (bytes - head).min(EDGE);
        (head, bytes - head - tail, tail)
    }

    fn write(&self, block: u32, live: Live) -> ApiResult<()> {
        let hash = hash(u64::from(block) | self.salt);
        let Live { addr, bytes, stream } = live;
        let (head, middle, tail) = Self::parts(bytes);
        match (self.touch, self.check != Check::None) {
            (Touch::None, _) => return Ok(()),
            (Touch::All, false) => return self.device.memset_async(stream, addr, hash as u8, bytes),
            (Touch::Edges, false) => {
                self.device.memset_async(stream, addr, hash as u8, head)?;
                if tail > 0 {
                    self.device.memset_async(stream, addr + head + middle, hash as u8, tail)?;
                }
                return Ok(());
            }
            (Touch::All, true) if middle > 0 => {
                self.device.memset_async(stream, addr + head, hash as u8, middle)?;
            }
            (_, true) => {}
        }
        let mut words = [0u8; EDGE as usize];
        for word in words.chunks_exact_mut(8) {
            word.copy_from_slice(&hash.to_le_bytes());
        }
        self.device.write_async(stream, addr, &words[..head as usize])?;
        if tail > 0 {
            self.device.write_async(stream, addr + head + middle, &words[..tail as usize])?;
        }
        Ok(())
    }

    fn read_back(&mut self, block: u32, live: Live) -> Result<()> {
        let hash = hash(u64::from(block) | self.salt);
        let (head, middle, tail) = Self::parts(live.bytes);
        let word = || Wants::Word(hash.to_le_bytes());
        self.read_part(block, live, 0, head, word)?;
        if self.touch == Touch::All && self.check == Check::All {
            self.read_part(block, live, head, middle, || Wants::Byte(hash as u8))?;
        }
        self.read_part(block, live, head + middle, tail, word)
    }

    /// Queues the read of one part, in pieces where it is larger than the buffer.
    fn read_part(
        &mut self,
        block: u32,
        live: Live,
        mut offset: u64,
        mut bytes: u64,
        wants: impl Fn() -> Wants,
    ) -> Result<()> {
        while bytes > 0 {
            if self.readback.room() == 0 || (self.readback.room() as u64) < bytes.min(EDGE) {
                self.compare()?;
            }
            let piece = bytes.min(self.readback.room() as u64);
            let at = self.readback.read_async(live.stream, live.addr + offset, piece as usize)?;
            self.pending.push(Pending { block, at, bytes: piece as usize, offset, wants: wants() });
            offset += piece;
            bytes -= piece;
        }
        Ok(())
    }

    fn compare(&mut self) -> Result<()> {
        let bytes = self.readback.wait()?;
        for p in self.pending.drain(..) {
            let got = &bytes[p.at..p.at + p.bytes];
            let wrong = match p.wants {
                Wants::Byte(b) => got.iter().position(|&g| g != b),
                Wants::Word(w) => got.chunks(8).position(|g| g != &w[..g.len()]).map(|i| i * 8),
            };
            if let Some(i) = wrong {
                bail!(
                    "CHECK FAILED: allocation {} was overwritten while it was alive: byte {} of it is {:#04x}",
                    p.block,
                    p.offset + i as u64,
                    got[i]
                );
            }
            self.checked.bytes += p.bytes as u64;
        }
        Ok(())
    }
}

/// A hash with no fixed points that matter (the finaliser of splitmix64).
fn hash(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_block_once() {
        for bytes in [1, 7, EDGE - 1, EDGE, EDGE + 1, 2 * EDGE, 2 * EDGE + 1, 1 << 30] {
            let (head, middle, tail) = Toucher::parts(bytes);
            assert_eq!(head + middle + tail, bytes);
            assert!(head <= EDGE && tail <= EDGE);
            assert!(middle == 0 || (head == EDGE && tail == EDGE));
        }
    }

    #[test]
    fn hashes_differ() {
        let mut all: Vec<u64> = (0..10_000).map(hash).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 10_000);
    }

    fn live(addr: u64, bytes: u64) -> Live {
        Live { addr, bytes, stream: Stream::DEFAULT }
    }

    #[test]
    fn overlaps_are_found() {
        let device = Device::get("cpu", 0).unwrap();
        let mut t = Toucher::new(device, Touch::None, Check::All);
        t.born(0, live(1000, 100)).unwrap();
        t.born(1, live(1100, 50)).unwrap();
        t.born(2, live(900, 100)).unwrap();
        for (addr, bytes) in [(1000, 100), (1050, 1), (899, 2), (1149, 9), (500, 5000)] {
            let e = t.born(9, live(addr, bytes)).unwrap_err().to_string();
            assert!(e.contains("CHECK FAILED: allocation 9"), "{addr}+{bytes}: {e}");
        }
        t.dies(0, live(1000, 100)).unwrap();
        t.born(3, live(1000, 100)).unwrap();
    }

    #[test]
    fn foreign_writes_are_found() {
        let device = Device::get("cpu", 0).unwrap();
        let pool = device.default_pool().unwrap();
        const BYTES: u64 = 5000;
        for (touch, check, at, seen) in [
            (Touch::Edges, Check::All, 0, true),
            (Touch::Edges, Check::All, BYTES - 1, true),
            (Touch::Edges, Check::All, BYTES / 2, false), // not written, so not watched
            (Touch::All, Check::All, BYTES / 2, true),
            (Touch::All, Check::All, BYTES - 1, true),
            (Touch::All, Check::Ends, BYTES - 1, true),
            (Touch::All, Check::Ends, BYTES / 2, false), // written, but not read back
        ] {
            let mut t = Toucher::new(device, touch, check);
            let block = live(pool.alloc(BYTES, Stream::DEFAULT).unwrap(), BYTES);
            t.born(7, block).unwrap();
            // A byte that lies nowhere in the block.
            let hash = hash(7).to_le_bytes();
            let other = (0..=255u8).find(|b| !hash.contains(b)).unwrap();
            device.memset_async(Stream::DEFAULT, block.addr + at, other, 1).unwrap();
            t.dies(7, block).unwrap();
            let result = t.settle();
            assert_eq!(result.is_err(), seen, "{touch:?} at {at}");
            if let Err(e) = result {
                assert!(e.to_string().contains("allocation 7 was overwritten"), "{e}");
            }
            pool.free(block.addr, Stream::DEFAULT).unwrap();
        }
    }
}
