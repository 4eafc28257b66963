//! Memory without pooling of ours: for a device whose sizes cannot be pooled (a min chunk that is no power
//! of two), and for whoever asks for it, with or without the driver's own pool behind it. With it, nothing
//! waits on the host: a free is queued on the block's stream, behind events of the other streams.
//!
//! Each request goes straight to the device, a free first waits for the streams that used the block,
//! and one lock guards the account. It is exact (counters, limits, double frees, wrong sizes) and keeps
//! nothing cached. No device call is made under the lock: the account is changed first and put back
//! when the device refuses. Where the device can neither be called nor waited for (in a callback, or while a stream is
//! captured), a freed block stays the device's until it can be (`frees.rs`).

use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::{Condvar, Mutex, MutexGuard};
use crate::core::{BlockInfo, BlockRecord, BlockState, BlockStates, Order, PoolId, Stats, Waits};
use crate::device::{Device, DriverPool, Sizes, StreamId};
use crate::fail;
use crate::runtime::backing::{Places, Supply, check_free};
use crate::runtime::lock;
use crate::runtime::usage::Usage;
use account::{Account, Block, Freed};
use std::sync::Arc;

mod account;
mod frees;

/// How often a request that finds too little looks again after other blocks have gone back: others may take what comes.
const TRIES: u32 = 1000;

/// Where a request has too little.
enum Short {
    /// In its pool.
    OfPool,
    /// In the device.
    OfDevice,
    /// It would have too little even if there were no blocks.
    Hopeless,
}

/// The unpooled memory of one device. All calls may come from any thread.
pub(crate) struct Unpooled {
    device: Arc<dyn Device>,
    supply: Arc<Supply>,
    order: Order,
    sizes: Sizes,
    by_driver: bool,
    account: Mutex<Account>,
    /// A thread has no block in hand any more that it had.
    put_down: Condvar,
}

impl Unpooled {
    /// The memory of `device`, empty; `by_driver` with the driver's own pool behind it, which the device must have.
    pub(crate) fn new(device: Arc<dyn Device>, usage: Arc<Usage>, by_driver: bool) -> Result<Unpooled> {
        let sizes = device.sizes();
        let supply = Arc::new(Supply::new(device.clone(), usage, Arc::<Places>::default(), false));
        let order = Order::new(supply.clone());
        let (account, put_down) = (Mutex::new(Account::new()), Condvar::new());
        Ok(Unpooled { device, supply, order, sizes, by_driver, account, put_down })
    }

    /// The pool of the device's driver, where blocks come from it.
    fn driver_pool(&self) -> Result<&dyn DriverPool> {
        let none = || Error::new(Code::Unsupported, "this device's driver has no pool");
        self.device.driver_pool().ok_or_else(none)
    }

    /// The order of the device's streams.
    pub(crate) fn order(&self) -> &Order {
        &self.order
    }

    /// What stands behind it.
    pub(crate) fn supply(&self) -> &Supply {
        &self.supply
    }

    fn lock(&self) -> Result<MutexGuard<'_, Account>> {
        let a = lock(&self.account);
        if a.closed {
            fail!(Code::NotInitialized, "the device was finalised");
        }
        Ok(a)
    }

    /// Memory for work queued on `stream` from now on. 0 bytes give address 0.
    pub(crate) fn alloc(&self, pool: PoolId, stream: StreamId, bytes: u64) -> Result<u64> {
        self.order.check_own(stream)?;
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
        self.settle_freed();
        for _ in 0..TRIES {
            let mut short = Short::Hopeless;
            match self.try_take(pool, stream, bytes, &mut short) {
                Err(e) if e.code() == Code::OutOfMemory => match short {
                    // What is freed, and only not yet the device's, may be what is missing.
                    Short::OfPool if self.wait_for_one(Some(pool)) => {}
                    Short::OfDevice if self.wait_for_one(None) => {}
                    _ => return Err(e),
                },
                other => return other,
            }
        }
        self.try_take(pool, stream, bytes, &mut Short::Hopeless)
    }

    fn try_take(&self, pool: PoolId, stream: Option<StreamId>, bytes: u64, short: &mut Short) -> Result<u64> {
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
        let fits = |n: u64, pool: u64, device: u64| {
            within(n, limit_pool, pool)
                && within(n, limit_device, device)
                && within(n, self.sizes.max_alloc, device)
        };
        let size = self.rounded(bytes).filter(|&n| fits(n, 0, 0));
        if let Some(n) = size {
            *short = if within(n, limit_pool, pool_now) { Short::OfDevice } else { Short::OfPool };
        }
        let size = size.filter(|&n| fits(n, pool_now, device_now));
        let Some(size) = size else {
            fail!(
                Code::OutOfMemory,
                "{bytes} bytes do not fit: {pool_now} bytes reserved in the pool (limit {limit_pool}), {device_now} \
                 in the device (limit {limit_device}, at most {})",
                self.sizes.max_alloc
            );
        };
        *a.claims.entry(pool).or_default() += size;
        let _taking = self.taking(&mut a);
        let careful = a.careful;
        drop(a);

        let call = self.supply.call();
        let checked = if careful { check_free(&*self.device, size) } else { Ok(()) };
        let taken = call.and_then(|call| {
            checked?;
            lock(&self.account).count_call(pool);
            let taken = self.device_alloc(stream, size);
            drop(call);
            taken
        });

        let own = stream.map(|s| self.order.stream(s));
        let mut a = lock(&self.account);
        if let Some(c) = a.claims.get_mut(&pool) {
            *c -= size;
        }
        let (base, ready) = taken?;
        let info = BlockInfo { base, size, requested: bytes, stream, pool };
        if let Err(e) = ready {
            // Nobody had it; the device has it back as soon as it takes it.
            a.reserve(&info);
            let block = Block { info, own: None, used_by: Vec::new() };
            a.freed.push_back(Freed { block, waits: Waits::default() });
            drop(a);
            self.settle_freed();
            return Err(e);
        }
        a.add(Block { info, own, used_by: Vec::new() });
        if a.closed {
            // With everything else that is left, it goes back.
            fail!(Code::NotInitialized, "the device was finalised");
        }
        Ok(base)
    }

    /// A request has failed for lack of memory, whatever was tried.
    pub(crate) fn count_out_of_memory(&self, pool: PoolId) {
        lock(&self.account).count_out_of_memory(pool);
    }

    /// Memory of the device, and whether it can be used: if not, the device has it to be given back.
    fn device_alloc(&self, stream: Option<StreamId>, size: u64) -> Result<(u64, Result<()>)> {
        if !self.by_driver {
            return match self.device.alloc(size)? {
                0 => fail!(Code::OutOfMemory, "the device has no {size} bytes in one piece"),
                addr => Ok((addr, Ok(()))),
            };
        }
        let addr = self.driver_pool()?.alloc(stream.unwrap_or(0), size)?;
        // Every stream may use a block without one at once.
        let ready = if stream.is_none() { self.device.streams().synchronize(0) } else { Ok(()) };
        Ok((addr, ready))
    }

    /// The block is also used by `stream`: its reuse waits for what is queued there at the free.
    pub(crate) fn record_stream(&self, addr: u64, stream: StreamId) -> Result<()> {
        let stream = self.order.user(stream)?;
        let mut a = self.lock()?;
        match a.blocks.get_mut(&addr) {
            Some(b) if b.used_by.iter().any(|s| s.lane == stream.lane) => Ok(()),
            Some(b) => {
                b.used_by.push(stream);
                Ok(())
            }
            None => Err(a.not_live(addr)),
        }
    }

    /// The live block that holds `addr`.
    pub(crate) fn block(&self, addr: u64) -> Result<BlockInfo> {
        let a = self.lock()?;
        match a.holder(addr) {
            Some(b) => Ok(b.info),
            None => Err(a.not_live(addr)),
        }
    }

    /// The blocks of one pool, or of all, that are in one of these states, by address.
    pub(crate) fn blocks(&self, pool: Option<PoolId>, states: BlockStates) -> Result<Vec<BlockRecord>> {
        let mut a = self.lock()?;
        pool.map_or(Ok(()), |p| a.stats(p).map(drop))?;
        let waiting = a.freed.iter().map(|f| (&f.block, BlockState::Waiting));
        let all = a.blocks.values().map(|b| (b, BlockState::Live)).chain(waiting);
        let wanted =
            all.filter(|(b, s)| states.contains((*s).into()) && pool.is_none_or(|p| b.info.pool == p));
        let mut records: Vec<_> = wanted.map(|(b, state)| b.record(state)).collect();
        drop(a);
        records.sort_unstable_by_key(|r| r.base);
        Ok(records)
    }

    /// Fails unless `addr .. addr + bytes` lies in one live block, as it was asked for.
    pub(crate) fn check_range(&self, addr: u64, bytes: u64) -> Result<()> {
        let b = self.block(addr).map_err(|e| match e.code() {
            Code::DoubleFree => Error::new(Code::UnknownPointer, format!("the block at {addr:#x} was freed")),
            _ => e,
        })?;
        b.check_room(addr, bytes)
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
        self.wait_for_freed(Some(pool))?;
        let mut a = self.lock()?;
        let live = a.stats(pool)?.blocks.current;
        if pool == PoolId::DEFAULT {
            fail!(Code::InvalidArgument, "the default pool cannot be destroyed");
        }
        if live != 0 || a.claims.get(&pool).is_some_and(|&c| c != 0) || a.stats(pool)?.reserved.current != 0 {
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
        self.settle_freed();
        Ok(*self.lock()?.stats(pool)?)
    }

    /// Fails unless there is such a pool.
    pub(crate) fn check_pool(&self, pool: PoolId) -> Result<()> {
        self.lock()?.stats(pool).map(drop)
    }

    /// The peaks of a pool start again.
    pub(crate) fn pool_reset_peaks(&self, pool: PoolId) -> Result<()> {
        self.lock()?.stats(pool)?.reset_peaks();
        Ok(())
    }

    /// Unused memory of one pool, or of all, goes back to the device.
    pub(crate) fn empty_cache(&self, pool: Option<PoolId>) -> Result<()> {
        pool.map_or(Ok(()), |p| self.lock()?.stats(p).map(|_| ()))?;
        self.wait_for_freed(pool)?;
        if self.by_driver {
            // What was freed is unused only when the streams have got there.
            self.order.sync_device()?;
            let _call = self.supply.call()?;
            self.driver_pool()?.trim(0)?;
        }
        Ok(())
    }

    /// The account of the device.
    pub(crate) fn stats(&self) -> Stats {
        self.settle_freed();
        let mut s = lock(&self.account).device;
        if self.by_driver
            && let Ok(_call) = self.supply.call()
            && let Ok(d) = self.driver_pool().and_then(|p| p.stats())
        {
            // The pool's own numbers: what it keeps is taken from the device too.
            s.reserved.current = d.reserved;
            s.reserved.peak = d.reserved_peak;
        }
        s
    }

    /// The peaks of the device start again.
    pub(crate) fn reset_peaks(&self) {
        lock(&self.account).device.reset_peaks();
    }

    /// Bounds what the device reserves from now on, 0 being no bound, and says whether the device is asked how
    /// much it has before it is asked for memory.
    pub(crate) fn set_bounds(&self, limit: u64, careful: bool) {
        let mut a = lock(&self.account);
        a.device.limit = limit;
        a.careful = careful;
    }

    /// Blocks that are live.
    pub(crate) fn live_blocks(&self) -> u64 {
        lock(&self.account).device.blocks.current
    }
}
