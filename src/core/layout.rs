//! All memory of a device at one moment: where every block lies, who owns it, and the account of the same moment.
//!
//! This is plain data, so slow work (sorting, writing it out) is done with no lock held. A block takes 40 bytes.
//! Segments are not stored: they are found again while the blocks are read in order.

use super::types::{BlockState, PoolId, Stats};

/// What kind of memory a block lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A segment: memory taken from the device with one call.
    Segment,
    /// Granules of a device that maps, for large blocks.
    Large,
    /// Granules of a device that maps, divided for small blocks.
    Small,
    /// Addresses of its own, at which granules from several places are mapped side by side.
    Scattered,
}

/// One block, live, waiting or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its first address.
    pub address: u64,
    /// \[B\] up to the next block: its size, and the unusable rest after it.
    pub span: u64,
    /// \[B\] that were requested; 0 for a free block.
    pub requested: u64,
    /// \[B\] of the span that the account does not count as allocated.
    pub slack: u32,
    /// Its owner: an index into the owners.
    pub owner: u32,
    /// The number of the segment that it lies in; blocks of different segments may lie side by side.
    pub segment: u32,
    /// Live, waiting or free.
    pub state: BlockState,
    /// The kind of memory that it lies in.
    pub place: Place,
    /// The number of its tag; 0 for none, and for a free one.
    pub tag: u16,
}

impl Placed {
    /// \[B\] as the account counts it; the length of a free block.
    pub fn size(&self) -> u64 {
        self.span - u64::from(self.slack)
    }
}

/// A piece of a scattered block: memory that is shown at addresses of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScatteredPiece {
    /// Where the block begins.
    pub block: u64,
    /// Where the piece begins in it.
    pub address: u64,
    /// \[B\] of it.
    pub bytes: u64,
    /// Where the memory has been from the start.
    pub home: u64,
}

/// The owner of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The stream that orders its reuse. `None`: every stream, or one that has ended.
    pub stream: Option<u64>,
    /// The pool; `None` for free memory that belongs to no pool.
    pub pool: Option<PoolId>,
    /// Whether the pool sleeps: its blocks then have addresses, but no memory.
    pub sleeps: bool,
}

/// A range of reserved memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRecord {
    /// Its first address.
    pub base: u64,
    /// \[B\] of it.
    pub size: u64,
    /// The stream that orders its reuse. `None`: every stream, or one that has ended.
    pub stream: Option<u64>,
    /// The pool; `None` for free memory that belongs to no pool.
    pub pool: Option<PoolId>,
    /// The kind of memory.
    pub place: Place,
    /// Where the memory has been from the start: the same address, but for a piece of a scattered block.
    pub home: u64,
}

/// See the file's head.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    blocks: Vec<Placed>,
    owners: Vec<Owner>,
    pieces: Vec<ScatteredPiece>,
    /// The account of the device.
    pub device: Stats,
    /// The accounts of its pools.
    pub pools: Vec<(PoolId, Stats)>,
}

/// Blocks side by side in memory of one kind and one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span<'a> {
    /// Where the first one begins.
    pub address: u64,
    /// \[B\] of all of them.
    pub bytes: u64,
    /// The kind of memory that they lie in.
    pub place: Place,
    /// Their owner.
    pub owner: Owner,
    /// The blocks, each of which begins where the one before ends.
    pub blocks: &'a [Placed],
    /// Of a scattered block: its pieces, in the order of their addresses.
    pub pieces: &'a [ScatteredPiece],
}

impl Span<'_> {
    /// \[B\] of its blocks in one of these states, as the account counts them.
    pub fn bytes_in(&self, wanted: impl Fn(BlockState) -> bool) -> u64 {
        self.blocks.iter().filter(|b| wanted(b.state)).map(Placed::size).sum()
    }
}

impl Layout {
    /// Makes a layout from blocks in any order. A block whose owner is not in `owners` gets the default `Owner`.
    pub fn new(
        mut blocks: Vec<Placed>,
        owners: Vec<Owner>,
        device: Stats,
        pools: Vec<(PoolId, Stats)>,
    ) -> Layout {
        blocks.sort_unstable_by_key(|b| b.address);
        Layout { blocks, owners, pieces: Vec::new(), device, pools }
    }

    /// The same with the pieces of its scattered blocks, in any order.
    pub fn with_pieces(mut self, mut pieces: Vec<ScatteredPiece>) -> Layout {
        pieces.sort_unstable_by_key(|p| (p.block, p.address));
        self.pieces = pieces;
        self
    }

    /// The pieces of the scattered block at an address.
    fn pieces_of(&self, block: u64) -> &[ScatteredPiece] {
        let from = self.pieces.partition_point(|p| p.block < block);
        let count = self.pieces[from..].partition_point(|p| p.block == block);
        &self.pieces[from..from + count]
    }

    /// All memory that is reserved, by the addresses at which it is used: segments, or granules side by side, of one owner;
    /// and each piece of a scattered block, whose memory is in no other of them. Memory of pools that sleep is not there.
    pub fn segments(&self) -> impl Iterator<Item = SegmentRecord> {
        self.spans().filter(|s| !s.owner.sleeps).flat_map(|s| {
            let Owner { stream, pool, .. } = s.owner;
            let whole = SegmentRecord {
                base: s.address,
                size: s.bytes,
                stream,
                pool,
                place: s.place,
                home: s.address,
            };
            let piece = move |p: &ScatteredPiece| SegmentRecord {
                base: p.address,
                size: p.bytes,
                home: p.home,
                ..whole
            };
            let whole = s.pieces.is_empty().then_some(whole);
            whole.into_iter().chain(s.pieces.iter().map(piece))
        })
    }

    /// All blocks, by address.
    pub fn blocks(&self) -> &[Placed] {
        &self.blocks
    }

    fn owner(&self, block: &Placed) -> Owner {
        self.owners.get(block.owner as usize).copied().unwrap_or_default()
    }

    /// All blocks by address, grouped: blocks that lie side by side in memory of one kind and one owner form a span. A
    /// scattered block is a span of its own.
    pub fn spans(&self) -> impl Iterator<Item = Span<'_>> {
        let next_to = |a: &Placed, b: &Placed| {
            a.address + a.span == b.address
                && (a.segment, a.place) == (b.segment, b.place)
                && a.place != Place::Scattered
                && (a.owner == b.owner || self.owner(a) == self.owner(b))
        };
        self.blocks.chunk_by(next_to).filter_map(|blocks| {
            let (first, last) = (blocks.first()?, blocks.last()?);
            Some(Span {
                address: first.address,
                bytes: last.address + last.span - first.address,
                place: first.place,
                owner: self.owner(first),
                blocks,
                pieces: if first.place == Place::Scattered { self.pieces_of(first.address) } else { &[] },
            })
        })
    }

    /// \[B\] that are reserved but in no block: in transit, in the hands of requests under way at that moment.
    pub fn in_transit(&self) -> u64 {
        let there = self.blocks.iter().filter(|b| !self.owner(b).sleeps);
        self.device.reserved.current.saturating_sub(there.map(|b| b.span).sum())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn block(address: u64, span: u64, owner: u32, segment: u32, place: Place) -> Placed {
        Placed {
            address,
            span,
            requested: span,
            slack: 0,
            owner,
            segment,
            state: BlockState::Live,
            place,
            tag: 0,
        }
    }

    /// A million of them are kept while a snapshot is written.
    #[test]
    fn a_block_takes_few_bytes() {
        assert!(size_of::<Placed>() <= 40, "{}", size_of::<Placed>());
    }

    #[test]
    fn blocks_stand_together_that_are_of_one_kind_and_one_owner() {
        let a = Owner { stream: Some(1), ..Owner::default() };
        let b = Owner { stream: Some(2), ..Owner::default() };
        let blocks = vec![
            block(0, 10, 0, 0, Place::Large),
            block(10, 10, 2, 0, Place::Large), // another heap of the same owner
            block(20, 10, 1, 0, Place::Large),
            block(30, 10, 1, 0, Place::Small),
            block(50, 10, 1, 0, Place::Small), // not beside it
            block(60, 10, 1, 1, Place::Small), // another segment
            block(70, 10, 1, 1, Place::Scattered),
            block(80, 10, 1, 1, Place::Scattered),
        ];
        let device =
            Stats { reserved: crate::core::Counter { current: 100, peak: 0, total: 0 }, ..Stats::default() };
        let all = Layout::new(blocks.into_iter().rev().collect(), vec![a, b, a], device, vec![]);
        let found: Vec<_> =
            all.spans().map(|s| (s.address, s.bytes, s.owner.stream, s.blocks.len())).collect();
        let (a, b) = (a.stream, b.stream);
        let want = [
            (0, 20, a, 2),
            (20, 10, b, 1),
            (30, 10, b, 1),
            (50, 10, b, 1),
            (60, 10, b, 1),
            (70, 10, b, 1),
            (80, 10, b, 1),
        ];
        assert_eq!(found, want);
        assert_eq!(all.in_transit(), 20);
        let piece = |block, address, bytes, home| ScatteredPiece { block, address, bytes, home };
        let all = all.with_pieces(vec![piece(80, 84, 6, 900), piece(70, 70, 10, 500), piece(80, 80, 4, 700)]);
        let told: Vec<_> = all.segments().map(|s| (s.base, s.size, s.home)).skip(5).collect();
        assert_eq!(told, [(70, 10, 500), (80, 4, 700), (84, 6, 900)]);
        assert_eq!(all.segments().map(|s| s.size).sum::<u64>(), 80);
    }
}
