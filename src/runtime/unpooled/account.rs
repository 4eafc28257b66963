//! The account of unpooled memory: live blocks, freed ones that the device still has, and the sums.

use crate::base::error::{Code, Error, Result};
use crate::base::ordered::{Map, Set};
use crate::core::{BlockInfo, BlockRecord, BlockState, Class, PoolId, Stats, Stream, Tagged, Tags, Waits};
use std::collections::VecDeque;
use std::sync::Arc;

/// How many freed addresses are remembered, to tell a double free from an unknown pointer.
const GRAVES: usize = 1 << 16;

/// A live block.
#[derive(Clone)]
pub(super) struct Block {
    pub info: BlockInfo,
    /// The stream that orders it; none for a block that every stream may use.
    pub own: Option<Arc<Stream>>,
    /// Other streams that have used it (`record_stream`).
    pub used_by: Vec<Arc<Stream>>,
    /// What it is for; 0: nobody said.
    pub tag: u16,
}

impl Block {
    /// The block for the sums of its tag. Each has memory of its own, as a large one.
    pub(super) fn tagged(&self) -> Tagged {
        let BlockInfo { size, requested, .. } = self.info;
        Tagged { tag: self.tag, class: Class::Large, charged: size, requested }
    }

    /// The record of the block for a walk. Each block is a segment of its own.
    pub(super) fn record(&self, state: BlockState) -> BlockRecord {
        let BlockInfo { base, size, requested, stream, pool } = self.info;
        BlockRecord {
            base,
            size,
            requested,
            stream,
            pool: Some(pool),
            state,
            segment: Some(base),
            tag: self.tag,
        }
    }
}

/// A freed block that has not gone back to the device yet.
pub(super) struct Freed {
    pub block: Block,
    pub waits: Waits,
    /// The waits contain the work of the block's own stream.
    pub own_waited: bool,
}

/// The account of unpooled memory; see the head of this file.
#[derive(Default)]
pub(super) struct Account {
    pub blocks: Map<u64, Block>,
    graves: Set<u64>,
    /// Blocks that were freed when the device could not be called or waited for.
    pub freed: VecDeque<Freed>,
    /// The number of freed blocks that threads are giving back to the device, by pool.
    pub in_hand: Map<PoolId, u64>,
    /// The number of threads that are taking a block from the device.
    pub taking: u64,
    /// The number of blocks that have gone back to the device.
    pub given: u64,
    pub pools: Map<PoolId, Stats>,
    pub device: Stats,
    pub tags: Tags,
    /// Bytes that are being requested from the device, by pool: two threads must not pass a limit together.
    pub claims: Map<PoolId, u64>,
    pub next_pool: u32,
    pub careful: bool,
    pub closed: bool,
}

impl Account {
    pub(super) fn new() -> Account {
        Account {
            pools: Map::from([(PoolId::DEFAULT, Stats::default())]),
            next_pool: 1,
            ..Account::default()
        }
    }

    pub(super) fn stats(&mut self, pool: PoolId) -> Result<&mut Stats> {
        match self.pools.get_mut(&pool) {
            Some(s) => Ok(s),
            None => Err(Error::formatted(
                Code::InvalidArgument,
                format_args!("pool {} does not exist, or was destroyed", pool.0),
            )),
        }
    }

    /// The live block that contains `addr`.
    pub(super) fn holder(&self, addr: u64) -> Option<&Block> {
        let (_, b) = self.blocks.range(..=addr).next_back()?;
        (addr - b.info.base < b.info.size).then_some(b)
    }

    /// The error for `addr`, at which no live block of the device of that name starts.
    pub(super) fn not_live(&self, device: &str, addr: u64) -> Error {
        if let Some(b) = self.holder(addr) {
            Error::formatted(
                Code::UnknownPointer,
                format_args!("{addr:#x} lies inside the block at {:#x}, not at its start", b.info.base),
            )
        } else if self.graves.contains(&addr) {
            Error::formatted(Code::DoubleFree, format_args!("the block at {addr:#x} was freed before"))
        } else {
            Error::formatted(Code::UnknownPointer, format_args!("{addr:#x} is not a block of {device}"))
        }
    }

    fn sums(&mut self, pool: PoolId) -> impl Iterator<Item = &mut Stats> {
        self.pools.get_mut(&pool).into_iter().chain([&mut self.device])
    }

    /// Counts a call to the device for memory of a pool.
    pub(super) fn count_call(&mut self, pool: PoolId) {
        self.sums(pool).for_each(|s| s.driver_calls += 1);
    }

    /// Counts a request that has failed for good.
    pub(super) fn count_out_of_memory(&mut self, pool: PoolId) {
        self.sums(pool).for_each(|s| s.out_of_memory_count += 1);
    }

    /// Enters a new block.
    pub(super) fn add(&mut self, block: Block) {
        let info = block.info;
        self.reserve(&info);
        for s in self.sums(info.pool) {
            for (c, n) in
                [(&mut s.requested, info.requested), (&mut s.allocated, info.size), (&mut s.blocks, 1)]
            {
                c.add(n);
            }
        }
        self.enter(block);
    }

    fn enter(&mut self, block: Block) {
        self.graves.remove(&block.info.base);
        self.blocks.insert(block.info.base, block);
    }

    /// The device has given memory.
    pub(super) fn reserve(&mut self, info: &BlockInfo) {
        for s in self.sums(info.pool) {
            s.active.add(info.size);
            s.active_requested.add(info.requested);
            s.reserved.add(info.size);
            s.segments.add(1);
        }
    }

    /// Makes a block live again that the device refused to take back.
    pub(super) fn revive(&mut self, block: Block) {
        let info = block.info;
        for s in self.sums(info.pool) {
            for (c, n) in
                [(&mut s.requested, info.requested), (&mut s.allocated, info.size), (&mut s.blocks, 1)]
            {
                c.add_again(n);
            }
        }
        if block.tag != 0 {
            self.tags.count_again(block.tagged());
        }
        self.enter(block);
    }

    /// Frees the block that starts at `addr`; it has not gone back to the device yet.
    pub(super) fn end(&mut self, addr: u64) -> Option<Block> {
        let block = self.blocks.remove(&addr)?;
        let info = block.info;
        for s in self.sums(info.pool) {
            for (c, n) in
                [(&mut s.requested, info.requested), (&mut s.allocated, info.size), (&mut s.blocks, 1)]
            {
                c.sub(n);
            }
        }
        if block.tag != 0 {
            self.tags.count_out(block.tagged(), true);
        }
        if self.graves.len() >= GRAVES {
            self.graves.clear();
        }
        self.graves.insert(addr);
        Some(block)
    }

    /// Frees one block, whichever, at the end of all, when nobody asks any more which were freed before.
    pub(super) fn end_any(&mut self) -> Option<Block> {
        self.graves.clear();
        let first = *self.blocks.first_key_value()?.0;
        self.end(first)
    }

    /// The live block at `addr` is one of `bytes` now.
    pub(super) fn resize(&mut self, addr: u64, bytes: u64) {
        let Some(block) = self.blocks.get_mut(&addr) else { return };
        let (old, was) = (block.info, block.tagged());
        block.info.requested = bytes;
        let now = block.tagged();
        for s in self.sums(old.pool) {
            for (c, less, n) in [
                (&mut s.requested, old.requested, bytes),
                (&mut s.active_requested, old.requested, bytes),
                (&mut s.allocated, old.size, old.size),
                (&mut s.blocks, 1, 1),
            ] {
                c.sub(less);
                c.add(n);
            }
        }
        if now.tag != 0 {
            self.tags.count_out(was, false);
            self.tags.count_in(now);
        }
    }

    /// How many freed blocks threads are giving back, for a pool or for all.
    pub(super) fn hands(&self, pool: Option<PoolId>) -> u64 {
        match pool {
            Some(p) => self.in_hand.get(&p).copied().unwrap_or(0),
            None => self.in_hand.values().sum(),
        }
    }

    /// A freed block has gone back to the device.
    pub(super) fn gone(&mut self, block: &Block) {
        let info = &block.info;
        self.given += 1;
        if block.tag != 0 {
            self.tags.count_back(block.tagged());
        }
        for s in self.sums(info.pool) {
            s.active.sub(info.size);
            s.active_requested.sub(info.requested);
            s.reserved.sub(info.size);
            s.segments.sub(1);
        }
    }
}
