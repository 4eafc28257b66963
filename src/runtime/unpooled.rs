//! Memory without pooling of ours: for a device whose sizes cannot be pooled (a min chunk that is no power
//! of two), and for whoever asks for it, with or without the driver's own pool behind it. With it, nothing
//! waits on the host: a free is queued on the block's stream, behind events of the other streams.
//!
//! Each request goes straight to the device, a free first waits for the streams that used the block,
//! and one lock guards the account. It is exact (counters, limits, double frees, wrong sizes) and keeps
//! nothing cached. No device call is made under the lock: the account is changed first and put back
//! when the device refuses.

use crate::base::error::{Code, Error, Result};
use crate::core::{BlockInfo, PoolId, Stats};
use crate::device::{Device, Sizes, StreamId};
use crate::fail;
use crate::runtime::supply::check_free;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many freed addresses are remembered to tell a double free from a foreign pointer.
const GRAVES: usize = 1 << 16;

struct Block {
    info: BlockInfo,
    /// The stream that a free is queued on, where the driver pools; another than the block's when that ended.
    home: StreamId,
    /// Other streams that have used it (`record_stream`).
    used_by: Vec<StreamId>,
}

struct Account {
    blocks: BTreeMap<u64, Block>,
    graves: BTreeSet<u64>,
    pools: BTreeMap<PoolId, Stats>,
    device: Stats,
    /// Bytes of requests that are with the device now, by pool: two threads must not pass a limit together.
    claims: BTreeMap<PoolId, u64>,
    next_pool: u32,
    careful: bool,
    closed: bool,
}

/// The unpooled memory of one device. All calls may come from any thread.
pub(crate) struct Unpooled {
    device: Arc<dyn Device>,
    sizes: Sizes,
    by_driver: bool,
    account: Mutex<Account>,
}

fn unknown_pool<T>(pool: PoolId) -> Result<T> {
    Err(Error::new(Code::InvalidArgument, format!("pool {} does not exist, or was destroyed", pool.0)))
}

impl Account {
    fn stats(&mut self, pool: PoolId) -> Result<&mut Stats> {
        match self.pools.get_mut(&pool) {
            Some(s) => Ok(s),
            None => unknown_pool(pool),
        }
    }

    /// The live block that holds `addr`.
    fn holder(&self, addr: u64) -> Option<&Block> {
        let (_, b) = self.blocks.range(..=addr).next_back()?;
        (addr - b.info.base < b.info.size).then_some(b)
    }

    /// Why `addr` is not the start of a live block.
    fn stranger(&self, addr: u64) -> Error {
        if let Some(b) = self.holder(addr) {
            let m = format!("{addr:#x} lies inside the block at {:#x}, not at its start", b.info.base);
            Error::new(Code::UnknownPointer, m)
        } else if self.graves.contains(&addr) {
            Error::new(Code::DoubleFree, format!("the block at {addr:#x} was freed before"))
        } else {
            Error::new(Code::UnknownPointer, format!("{addr:#x} is not a block of this device"))
        }
    }

    /// Counts a new block in (`sign` true) or out of the pool and the device.
    fn count(&mut self, info: &BlockInfo, add: bool) {
        let pool = self.pools.get_mut(&info.pool);
        for s in pool.into_iter().chain([&mut self.device]) {
            let rows = [
                (&mut s.requested, info.requested),
                (&mut s.allocated, info.size),
                (&mut s.active, info.size),
                (&mut s.reserved, info.size),
                (&mut s.blocks, 1),
                (&mut s.segments, 1),
            ];
            for (c, n) in rows {
                if add { c.add(n) } else { c.sub(n) }
            }
        }
    }
}

/// The maker of a stream has ended it without a word. What is queued there may still run, and only a wait for the
/// device covers it. (A wait for an event on a stream does not tell which of them is gone.)
fn ended(e: &Error) -> bool {
    matches!(e.code(), Code::UnknownStream | Code::UnknownEvent)
}

impl Unpooled {
    /// The memory of `device`, empty; `by_driver` with the driver's own pool behind it, which the device must have.
    pub(crate) fn new(device: Arc<dyn Device>, by_driver: bool) -> Result<Unpooled> {
        let sizes = device.sizes();
        let account = Account {
            blocks: BTreeMap::new(),
            graves: BTreeSet::new(),
            pools: BTreeMap::from([(PoolId::DEFAULT, Stats::default())]),
            device: Stats::default(),
            claims: BTreeMap::new(),
            next_pool: 1,
            careful: false,
            closed: false,
        };
        Ok(Unpooled { device, sizes, by_driver, account: Mutex::new(account) })
    }

    fn lock(&self) -> Result<MutexGuard<'_, Account>> {
        let a = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        if a.closed {
            fail!(Code::NotInitialized, "the device was finalised");
        }
        Ok(a)
    }

    /// Memory for work queued on `stream` from now on. 0 bytes give address 0.
    pub(crate) fn alloc(&self, pool: PoolId, stream: StreamId, bytes: u64) -> Result<u64> {
        if stream != 0 && !self.device.stream_exists(stream) {
            fail!(Code::UnknownStream, "stream {stream:#x} is not a stream of this device, or was destroyed");
        }
        // A stream that is another one on each thread orders nothing.
        self.take(pool, Some(stream).filter(|&s| !self.device.is_per_thread(s)), bytes)
    }

    /// Memory that every stream and the host may use at once. 0 bytes give address 0.
    pub(crate) fn alloc_unordered(&self, pool: PoolId, bytes: u64) -> Result<u64> {
        self.take(pool, None, bytes)
    }

    /// The bytes that a request takes, or `None` past what a device can have.
    fn rounded(&self, bytes: u64) -> Option<u64> {
        let padded = bytes.checked_add(self.sizes.padding)?;
        let chunk = self.sizes.min_chunk.max(1);
        padded.div_ceil(chunk).checked_mul(chunk).filter(|&n| n <= i64::MAX as u64)
    }

    fn take(&self, pool: PoolId, stream: Option<StreamId>, bytes: u64) -> Result<u64> {
        let mut a = self.lock()?;
        let limit_pool = a.stats(pool)?.limit;
        if bytes == 0 {
            return Ok(0);
        }
        let within =
            |n: u64, limit: u64, now: u64| limit == 0 || now.checked_add(n).is_some_and(|t| t <= limit);
        let pool_now = a.stats(pool)?.reserved.current + a.claims.get(&pool).copied().unwrap_or(0);
        let device_now = a.device.reserved.current + a.claims.values().sum::<u64>();
        let limit_device = a.device.limit;
        let size = self.rounded(bytes).filter(|&n| {
            within(n, limit_pool, pool_now)
                && within(n, limit_device, device_now)
                && within(n, self.sizes.max_alloc, device_now)
        });
        let Some(size) = size else {
            a.device.out_of_memory_count += 1;
            a.stats(pool)?.out_of_memory_count += 1;
            fail!(
                Code::OutOfMemory,
                "{bytes} bytes do not fit: {pool_now} bytes reserved in the pool (limit {limit_pool}), {device_now} \
                 in the device (limit {limit_device}, at most {})",
                self.sizes.max_alloc
            );
        };
        *a.claims.entry(pool).or_default() += size;
        let careful = a.careful;
        drop(a);

        let checked = if careful { check_free(&*self.device, size) } else { Ok(()) };
        let taken = checked.and_then(|()| {
            let mut a = self.account.lock().unwrap_or_else(PoisonError::into_inner);
            a.device.driver_calls += 1;
            if let Ok(s) = a.stats(pool) {
                s.driver_calls += 1;
            }
            drop(a);
            self.device_alloc(stream, size)
        });

        let mut a = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(c) = a.claims.get_mut(&pool) {
            *c -= size;
        }
        match taken {
            Ok(base) if !a.closed => {
                let info = BlockInfo { base, size, requested: bytes, stream, pool };
                a.count(&info, true);
                a.graves.remove(&base);
                let home = stream.unwrap_or(0);
                a.blocks.insert(base, Block { info, home, used_by: Vec::new() });
                Ok(base)
            }
            Ok(base) => {
                drop(a);
                self.device_free(base, size, stream.unwrap_or(0))?;
                fail!(Code::NotInitialized, "the device was finalised");
            }
            Err(e) => {
                if e.code() == Code::OutOfMemory {
                    a.device.out_of_memory_count += 1;
                    if let Ok(s) = a.stats(pool) {
                        s.out_of_memory_count += 1;
                    }
                }
                Err(e)
            }
        }
    }

    /// Ends the block that starts at `addr`; work queued so far may still use it. With `size`, that
    /// must be the size of the request. 0 is no block and does nothing.
    pub(crate) fn free(&self, addr: u64, stream: Option<StreamId>, size: Option<u64>) -> Result<()> {
        if let Some(s) = stream.filter(|&s| addr != 0 && s != 0 && !self.device.stream_exists(s)) {
            drop(self.lock()?);
            fail!(Code::UnknownStream, "stream {s:#x} is not a stream of this device, or was destroyed");
        }
        let mut a = self.lock()?;
        if addr == 0 {
            return Ok(());
        }
        let Some(block) = a.blocks.get(&addr) else {
            return Err(a.stranger(addr));
        };
        if let Some(s) = size.filter(|&s| s != block.info.requested) {
            fail!(Code::WrongSize, "{s} bytes given at free, {} at allocation", block.info.requested);
        }
        let Some(block) = a.blocks.remove(&addr) else {
            return Err(a.stranger(addr));
        };
        if a.graves.len() >= GRAVES {
            a.graves.clear();
        }
        a.graves.insert(addr);
        drop(a);

        let waited = if self.by_driver { self.order(&block, stream) } else { self.wait_for(&block, stream) };
        let given = waited.and_then(|()| self.device_free(addr, block.info.size, block.home));

        let mut a = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        a.device.driver_calls += 1;
        if let Ok(s) = a.stats(block.info.pool) {
            s.driver_calls += 1;
        }
        match given {
            Ok(()) => a.count(&block.info, false),
            Err(_) => {
                // The device kept it: the block is live again, so that nothing is lost.
                a.graves.remove(&addr);
                a.blocks.insert(addr, block);
            }
        }
        given
    }

    fn device_alloc(&self, stream: Option<StreamId>, size: u64) -> Result<u64> {
        if !self.by_driver {
            return self.device.alloc(size);
        }
        let addr = self.device.pool_alloc(stream.unwrap_or(0), size)?;
        if stream.is_none() {
            // Every stream may use it at once.
            self.device.stream_synchronize(0).inspect_err(|_| {
                let _ = self.device.pool_free(addr, 0);
            })?;
        }
        Ok(addr)
    }

    fn device_free(&self, addr: u64, size: u64, home: StreamId) -> Result<()> {
        if !self.by_driver {
            return self.device.free(addr, size);
        }
        match self.device.pool_free(addr, home) {
            Err(e) if home != 0 && ended(&e) => {
                self.device.synchronize()?;
                self.device.pool_free(addr, 0)
            }
            other => other,
        }
    }

    /// The block's home stream waits, on the device, for the other streams that have used it.
    fn order(&self, block: &Block, stream: Option<StreamId>) -> Result<()> {
        if block.info.stream.is_none() {
            return self.device.synchronize();
        }
        let mut others: Vec<StreamId> = stream.into_iter().chain(block.used_by.iter().copied()).collect();
        others.sort_unstable();
        others.dedup();
        for s in others.into_iter().filter(|&s| s != block.home) {
            let event = self.device.event_create()?;
            let waits = self
                .device
                .event_record(s, event)
                .and_then(|()| self.device.stream_wait_event(block.home, event))
                .or_else(|e| if ended(&e) { self.device.synchronize() } else { Err(e) });
            // A wait that is queued holds beyond the end of its event.
            waits.and(self.device.event_destroy(event))?;
        }
        Ok(())
    }

    /// Waits until no stream that may use the block has work left.
    fn wait_for(&self, block: &Block, stream: Option<StreamId>) -> Result<()> {
        let Some(own) = block.info.stream else { return self.device.synchronize() };
        let all = [own].into_iter().chain(stream).chain(block.used_by.iter().copied());
        let mut seen = Vec::new();
        for s in all {
            if !seen.contains(&s) && (s == 0 || self.device.stream_exists(s)) {
                match self.device.stream_synchronize(s) {
                    Err(e) if ended(&e) => return self.device.synchronize(),
                    other => other?,
                }
                seen.push(s);
            }
        }
        Ok(())
    }

    /// The block is also used by `stream`: its reuse waits for what is queued there at the free.
    pub(crate) fn record_stream(&self, addr: u64, stream: StreamId) -> Result<()> {
        if stream != 0 && !self.device.stream_exists(stream) {
            fail!(Code::UnknownStream, "stream {stream:#x} is not a stream of this device, or was destroyed");
        }
        let mut a = self.lock()?;
        match a.blocks.get_mut(&addr) {
            Some(b) if b.used_by.contains(&stream) => Ok(()),
            Some(b) => {
                b.used_by.push(stream);
                Ok(())
            }
            None => Err(a.stranger(addr)),
        }
    }

    /// The live block that holds `addr`.
    pub(crate) fn block(&self, addr: u64) -> Result<BlockInfo> {
        let a = self.lock()?;
        match a.holder(addr) {
            Some(b) => Ok(b.info),
            None => Err(a.stranger(addr)),
        }
    }

    /// Fails unless `addr .. addr + bytes` lies in one live block, as it was asked for.
    pub(crate) fn check_range(&self, addr: u64, bytes: u64) -> Result<()> {
        let b = self.block(addr).map_err(|e| match e.code() {
            Code::DoubleFree => Error::new(Code::UnknownPointer, format!("the block at {addr:#x} was freed")),
            _ => e,
        })?;
        let room = b.requested.saturating_sub(addr - b.base);
        if bytes > room {
            fail!(
                Code::OutOfRange,
                "{bytes} bytes at {addr:#x} pass the end of the block by {}",
                bytes - room
            );
        }
        Ok(())
    }

    /// A new pool whose reserved bytes never pass `limit` (0: none).
    pub(crate) fn pool_create(&self, limit: u64) -> Result<PoolId> {
        let mut a = self.lock()?;
        let pool = PoolId(a.next_pool);
        a.next_pool = a.next_pool.checked_add(1).ok_or(Error::new(Code::System, "too many pools"))?;
        a.pools.insert(pool, Stats { limit, ..Stats::default() });
        Ok(pool)
    }

    /// Ends a pool. `Busy` while blocks of it live.
    pub(crate) fn pool_destroy(&self, pool: PoolId) -> Result<()> {
        let mut a = self.lock()?;
        let live = a.stats(pool)?.blocks.current;
        if pool == PoolId::DEFAULT {
            fail!(Code::InvalidArgument, "the default pool cannot be destroyed");
        }
        if live != 0 || a.claims.get(&pool).is_some_and(|&c| c != 0) {
            fail!(Code::Busy, "{live} blocks of the pool are live");
        }
        a.claims.remove(&pool);
        a.pools.remove(&pool);
        Ok(())
    }

    /// Bounds what the pool reserves from now on; 0 is no bound.
    pub(crate) fn pool_set_limit(&self, pool: PoolId, bytes: u64) -> Result<()> {
        self.lock()?.stats(pool)?.limit = bytes;
        Ok(())
    }

    /// The account of a pool.
    pub(crate) fn pool_stats(&self, pool: PoolId) -> Result<Stats> {
        Ok(*self.lock()?.stats(pool)?)
    }

    /// The peaks of a pool start again.
    pub(crate) fn pool_reset_peaks(&self, pool: PoolId) -> Result<()> {
        self.lock()?.stats(pool)?.reset_peaks();
        Ok(())
    }

    /// Unused memory of one pool, or of all, goes back to the device.
    pub(crate) fn empty_cache(&self, pool: Option<PoolId>) -> Result<()> {
        pool.map_or(Ok(()), |p| self.lock()?.stats(p).map(|_| ()))?;
        if self.by_driver {
            // What was freed is unused only when the streams have got there.
            self.device.synchronize()?;
            self.device.pool_trim(0)?;
        }
        Ok(())
    }

    /// The account of the device.
    pub(crate) fn stats(&self) -> Stats {
        let mut s = self.account.lock().unwrap_or_else(PoisonError::into_inner).device;
        if self.by_driver
            && let Ok(d) = self.device.pool_stats()
        {
            // The pool's own numbers: what it keeps is taken from the device too.
            s.reserved.current = d.reserved;
            s.reserved.peak = d.reserved_peak;
        }
        s
    }

    /// The peaks of the device start again.
    pub(crate) fn reset_peaks(&self) {
        self.account.lock().unwrap_or_else(PoisonError::into_inner).device.reset_peaks();
    }

    /// Bounds what the device reserves from now on, 0 being no bound, and says whether the device is asked how
    /// much it has before it is asked for memory.
    pub(crate) fn set_bounds(&self, limit: u64, careful: bool) {
        let mut a = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        a.device.limit = limit;
        a.careful = careful;
    }

    /// To be called before the device ends `stream`.
    pub(crate) fn stream_destroyed(&self, stream: StreamId) {
        // Work that is queued there still runs, so blocks that it uses must wait for it now.
        let uses = match self.lock() {
            Ok(a) => a.blocks.values().any(|b| b.info.stream == Some(stream) || b.used_by.contains(&stream)),
            Err(_) => false,
        };
        if uses
            && self.device.stream_synchronize(stream).is_ok()
            && let Ok(mut a) = self.lock()
        {
            for b in a.blocks.values_mut() {
                b.used_by.retain(|&s| s != stream);
                if b.home == stream {
                    b.home = 0; // its work is over
                }
            }
        }
    }

    /// Blocks that are live.
    pub(crate) fn live_blocks(&self) -> u64 {
        self.account.lock().unwrap_or_else(PoisonError::into_inner).device.blocks.current
    }

    /// Gives everything back to the device; every later call gets `NotInitialized`. Idempotent.
    pub(crate) fn close(&self) -> Result<()> {
        let Ok(mut a) = self.lock() else { return Ok(()) };
        a.closed = true;
        let blocks = std::mem::take(&mut a.blocks);
        for b in blocks.values() {
            a.count(&b.info, false);
        }
        drop(a);
        // Also after a failure: what one block does the others have no part in.
        let mut first = Ok(());
        for b in blocks.values() {
            first = first.and(self.device_free(b.info.base, b.info.size, b.home));
        }
        first
    }
}
