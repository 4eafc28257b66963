//! Memory that Millpond does not pool. A device whose sizes cannot be pooled (a min chunk that is no power of two) has
//! it, and programs can ask for it, with or without the driver's own pool.
//!
//! Each request goes straight to the device, and nothing is cached. A free first waits on the host for the streams that
//! used the block. With the driver's pool it does not: the free is queued on the block's stream, after events of the
//! other streams. If the device can neither be called nor waited for (in a callback, or while a stream is captured), a
//! freed block goes back to it later (`frees.rs`).
//!
//! One lock guards the account, which is exact: counters, limits, double frees, wrong sizes. The device is not called
//! under the lock: the account is changed first, and changed back if the device refuses.

use crate::base::error::{Code, Error, Result};
use crate::base::room::while_kept;
use crate::base::sync::system::{Condvar, Mutex, MutexGuard, lock};
use crate::core::{
    BlockInfo, BlockRecord, BlockState, BlockStates, Layout, LiveAndFreed, OomStep, Order, Owner, Place,
    Placed, PoolId, Stats, TagStats, Trials, Waits,
};
use crate::device::{Device, DriverPool, Sizes, StreamId};
use crate::fail;
use crate::locks;
use crate::runtime::backing::{DeviceBacking, Places, check_free};
use crate::runtime::entry::usage::Usage;
use crate::runtime::watch::event::{Event, EventKind};
use crate::runtime::watch::latency::Latency;
use crate::runtime::watch::observe::Observers;
use account::{Account, Block, Freed};
use std::collections::HashMap;
use std::sync::Arc;

mod account;
mod explain;
mod frees;

/// How often a request that finds too little memory tries again after other blocks have gone back. It may need several
/// tries, since other requests may get that memory.
const TRIES: u32 = 1000;

/// Where a request found too little.
enum Short {
    /// In its pool.
    OfPool,
    /// In the device.
    OfDevice,
    /// In any case: the request is larger than its limits allow, even if there were no other blocks.
    Hopeless,
}

/// The unpooled memory of one device. All calls may come from any thread.
pub(crate) struct Unpooled {
    device: Arc<dyn Device>,
    supply: Arc<DeviceBacking>,
    order: Order,
    sizes: Sizes,
    by_driver: bool,
    account: Mutex<Account, locks::Unpooled>,
    /// Signalled when a thread has finished giving back or taking a block.
    put_down: Condvar,
}

impl Unpooled {
    /// The memory of `device`, empty; `by_driver` with the driver's own pool behind it, which the device must have.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        usage: Arc<Usage>,
        observers: Arc<Observers>,
        by_driver: bool,
    ) -> Result<Unpooled> {
        let sizes = device.sizes();
        let supply =
            Arc::new(DeviceBacking::new(device.clone(), usage, observers, Arc::<Places>::default(), false));
        let order = Order::new(supply.clone());
        let (account, put_down) = (Mutex::new(Account::new()), Condvar::new());
        Ok(Unpooled { device, supply, order, sizes, by_driver, account, put_down })
    }

    /// The pool of the device's driver, if blocks come from it.
    fn driver_pool(&self) -> Result<&dyn DriverPool> {
        let none = || Error::new(Code::Unsupported, "this device's driver has no pool");
        self.device.driver_pool().ok_or_else(none)
    }

    /// Whether its driver's own pool keeps the memory.
    pub(crate) fn by_driver(&self) -> bool {
        self.by_driver
    }

    /// The order of the device's streams.
    pub(crate) fn order(&self) -> &Order {
        &self.order
    }

    /// Whose memory it is.
    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Its backing.
    pub(crate) fn supply(&self) -> &Arc<DeviceBacking> {
        &self.supply
    }

    fn lock(&self) -> Result<MutexGuard<'_, Account, locks::Unpooled>> {
        let a = lock(&self.account);
        if a.closed {
            fail!(Code::NotInitialized, "the device was finalised");
        }
        Ok(a)
    }

    /// Allocates memory for work queued on `stream` from now on. 0 bytes give address 0.
    pub(crate) fn alloc(&self, pool: PoolId, stream: StreamId, bytes: u64) -> Result<u64> {
        self.order.check_own(stream)?;
        // A stream that differs on each thread orders nothing.
        self.take(pool, Some(stream).filter(|&s| !self.device.is_per_thread(s)), bytes)
    }

    /// Allocates memory that every stream and the host may use at once. 0 bytes give address 0.
    pub(crate) fn alloc_unordered(&self, pool: PoolId, bytes: u64) -> Result<u64> {
        self.take(pool, None, bytes)
    }

    /// \[B\] that the device adds to each request for itself.
    pub(crate) fn padding(&self) -> u64 {
        self.sizes.padding
    }

    /// The bytes that a request takes; `None` if no device can have so many.
    fn rounded(&self, bytes: u64) -> Option<u64> {
        let padded = bytes.checked_add(self.sizes.padding)?;
        let chunk = self.sizes.min_chunk.max(1);
        padded.div_ceil(chunk).checked_mul(chunk).filter(|&n| n <= i64::MAX as u64)
    }

    fn take(&self, pool: PoolId, stream: Option<StreamId>, bytes: u64) -> Result<u64> {
        self.settle_freed();
        let mut trials = Trials::default();
        for _ in 0..TRIES {
            let mut short = Short::Hopeless;
            let (mut got, mut asked) = (Ok(0), false);
            trials.note(OomStep::Device, || {
                got = self.try_take(pool, stream, bytes, &mut short, &mut asked);
                got.is_ok()
            });
            match got {
                Err(e) if e.code() == Code::OutOfMemory => {
                    // Blocks that are freed but not back at the device may be what is missing.
                    let of = if matches!(short, Short::OfPool) { Some(pool) } else { None };
                    let may_come = !matches!(short, Short::Hopeless);
                    if may_come && trials.note(OomStep::Waiting, || self.wait_for_one(of)) {
                        continue;
                    }
                    if asked {
                        trials.device_said.set(&e);
                    }
                    trials.bytes = bytes;
                    trials.leave();
                    return Err(e);
                }
                other => return other,
            }
        }
        self.try_take(pool, stream, bytes, &mut Short::Hopeless, &mut false)
    }

    /// One try. Notes in `short` where it found too little memory, and in `asked` whether it came as far as asking the
    /// device.
    fn try_take(
        &self,
        pool: PoolId,
        stream: Option<StreamId>,
        bytes: u64,
        short: &mut Short,
        asked: &mut bool,
    ) -> Result<u64> {
        let own = stream.filter(|_| bytes > 0).map(|s| self.order.stream(s)).transpose()?;
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
        *asked = true;

        let call = self.supply.call();
        let checked = if careful { check_free(&*self.device, size, 0) } else { Ok(()) };
        let taken = call.and_then(|call| {
            checked?;
            lock(&self.account).count_call(pool);
            let taken = while_kept(|| self.device_alloc(stream, size));
            drop(call);
            taken
        });

        let mut a = lock(&self.account);
        if let Some(c) = a.claims.get_mut(&pool) {
            *c -= size;
        }
        let (base, ready) = taken?;
        let info = BlockInfo { base, size, requested: bytes, stream, pool };
        if let Err(e) = ready {
            // Nobody has used it; it goes back as soon as the device takes it.
            a.reserve(&info);
            let block = Block { info, own: None, used_by: Vec::new(), tag: 0 };
            self.tell(EventKind::SegmentAlloc, &info);
            a.freed.push_back(Freed { block, waits: Waits::default(), own_waited: false });
            drop(a);
            self.settle_freed();
            return Err(e);
        }
        a.add(Block { info, own, used_by: Vec::new(), tag: 0 });
        self.tell(EventKind::SegmentAlloc, &info);
        self.tell(EventKind::Alloc, &info);
        if a.closed {
            // It goes back with everything else that is left.
            fail!(Code::NotInitialized, "the device was finalised");
        }
        Ok(base)
    }

    /// Tells those who watch the memory of an event of this block.
    pub(super) fn tell(&self, kind: EventKind, block: &BlockInfo) {
        self.supply.observers.tell(Event::of(kind, block));
    }

    /// Counts a request that has failed for lack of memory.
    pub(crate) fn count_out_of_memory(&self, pool: PoolId) {
        lock(&self.account).count_out_of_memory(pool);
    }

    /// Takes memory from the device. The second result says whether it can be used; if not, it must be given back.
    fn device_alloc(&self, stream: Option<StreamId>, size: u64) -> Result<(u64, Result<()>)> {
        let latencies = self.supply.calls().latencies();
        if !self.by_driver {
            return match latencies.timed(Latency::DeviceAlloc, || self.device.alloc(size))? {
                0 => fail!(Code::OutOfMemory, "the device has no {size} bytes in one piece"),
                addr => Ok((addr, Ok(()))),
            };
        }
        let pool = self.driver_pool()?;
        let addr = latencies.timed(Latency::DeviceAlloc, || pool.alloc(stream.unwrap_or(0), size))?;
        // A block without a stream may be used on every stream at once, so the driver's allocation must be complete.
        let ready = match stream {
            None => latencies.timed(Latency::EventWait, || self.device.streams().synchronize(0)),
            Some(_) => Ok(()),
        };
        Ok((addr, ready))
    }

    /// Records that `stream` also uses the block: its reuse waits for what is queued there at the free.
    pub(crate) fn record_stream(&self, addr: u64, stream: StreamId) -> Result<()> {
        let stream = self.order.user(stream)?;
        let mut a = self.lock()?;
        match a.blocks.get_mut(&addr) {
            Some(b) if b.used_by.iter().any(|s| s.serial == stream.serial) => Ok(()),
            Some(b) => {
                b.used_by.push(stream);
                Ok(())
            }
            None => Err(a.not_live(self.supply.name(), addr)),
        }
    }

    /// Changes the requested size of the live block at `addr` to `bytes`, if the memory that it has suffices.
    pub(crate) fn resize(&self, addr: u64, bytes: u64) -> Result<()> {
        if bytes == 0 {
            fail!(Code::InvalidArgument, "a block cannot get a size of 0 bytes");
        }
        let mut a = self.lock()?;
        let Some(block) = a.blocks.get(&addr) else { return Err(a.not_live(self.supply.name(), addr)) };
        let has = block.info.size;
        if self.rounded(bytes).is_none_or(|n| n > has) {
            fail!(Code::OutOfMemory, "the block has {has} bytes, and memory that is not pooled cannot grow");
        }
        a.resize(addr, bytes);
        Ok(())
    }

    /// The live block that contains `addr`.
    pub(crate) fn block(&self, addr: u64) -> Result<BlockInfo> {
        let a = self.lock()?;
        match a.holder(addr) {
            Some(b) => Ok(b.info),
            None => Err(a.not_live(self.supply.name(), addr)),
        }
    }

    /// The blocks of one pool, or of all, that are in one of these states, sorted by address.
    pub(crate) fn blocks(&self, pool: Option<PoolId>, states: BlockStates) -> Result<Vec<BlockRecord>> {
        let mut a = self.lock()?;
        pool.map_or(Ok(()), |p| a.stats(p).map(drop))?;
        let waiting = a.freed.iter().map(|f| (&f.block, BlockState::Waiting));
        let all = a.blocks.values().map(|b| (b, BlockState::Live)).chain(waiting);
        let wanted =
            all.filter(|(b, s)| states.contains((*s).into()) && pool.is_none_or(|p| b.info.pool == p));
        let mut records: Vec<_> = wanted.map(|(b, state)| b.record(state)).collect();
        drop(a);
        BlockRecord::sort(&mut records);
        Ok(records)
    }

    /// Fails unless `addr .. addr + bytes` lies within the requested size of one live block.
    pub(crate) fn check_range(&self, addr: u64, bytes: u64) -> Result<()> {
        let b = self.block(addr).map_err(|e| match e.code() {
            Code::DoubleFree => {
                Error::formatted(Code::UnknownPointer, format_args!("the block at {addr:#x} was freed"))
            }
            _ => e,
        })?;
        b.check_room(addr, bytes)
    }

    /// A new pool whose reserved bytes never exceed `limit` (0: none).
    pub(crate) fn pool_create(&self, limit: u64) -> Result<PoolId> {
        let mut a = self.lock()?;
        let pool = PoolId(a.next_pool);
        a.next_pool = a.next_pool.checked_add(1).ok_or(Error::new(Code::System, "too many pools"))?;
        a.pools.insert(pool, Stats { limit, ..Stats::default() });
        Ok(pool)
    }

    /// Ends a pool. `Busy` while it has live blocks.
    pub(crate) fn pool_destroy(&self, pool: PoolId) -> Result<()> {
        self.wait_for_freed(Some(pool))?;
        let mut a = self.lock()?;
        let live = a.stats(pool)?.blocks.current;
        if pool == PoolId::DEFAULT {
            fail!(Code::InvalidArgument, "the default pool cannot be destroyed");
        }
        if live != 0 || a.claims.get(&pool).is_some_and(|&c| c != 0) || a.stats(pool)?.reserved.current != 0 {
            fail!(Code::Busy, "live blocks of the pool: {live}");
        }
        a.claims.remove(&pool);
        a.pools.remove(&pool);
        Ok(())
    }

    /// Limits what the pool reserves from now on; 0 means no limit.
    pub(crate) fn pool_set_limit(&self, pool: PoolId, bytes: u64) -> Result<()> {
        self.lock()?.stats(pool)?.limit = bytes;
        Ok(())
    }

    /// The account of a pool.
    pub(crate) fn pool_stats(&self, pool: PoolId) -> Result<Stats> {
        self.settle_freed();
        Ok(*self.lock()?.stats(pool)?)
    }

    /// All pools.
    pub(crate) fn pools(&self) -> Vec<PoolId> {
        lock(&self.account).pools.keys().copied().collect()
    }

    /// Fails unless there is such a pool.
    pub(crate) fn check_pool(&self, pool: PoolId) -> Result<()> {
        self.lock()?.stats(pool).map(drop)
    }

    /// Resets the peaks of a pool to the current values.
    pub(crate) fn pool_reset_peaks(&self, pool: PoolId) -> Result<()> {
        self.lock()?.stats(pool)?.reset_peaks();
        Ok(())
    }

    /// Gives unused memory of one pool, or of all, back to the device until no more than `keep` bytes of it are reserved.
    pub(crate) fn trim_to(&self, pool: Option<PoolId>, keep: u64) -> Result<()> {
        let reserved = match pool {
            Some(p) => self.lock()?.stats(p)?.reserved.current,
            None => self.stats().reserved.current,
        };
        if keep > 0 && reserved <= keep {
            return Ok(());
        }
        self.wait_for_freed(pool)?;
        if self.by_driver {
            // Freed memory is unused only once the streams have reached the frees.
            self.order.sync_device()?;
            let _call = self.supply.call()?;
            // What the driver keeps belongs to none of our pools. So for one pool the driver gives back all of it.
            self.driver_pool()?.trim(if pool.is_some() { 0 } else { keep })?;
        }
        Ok(())
    }

    /// The account of the device.
    pub(crate) fn stats(&self) -> Stats {
        self.settle_freed();
        let s = lock(&self.account).device;
        self.with_drivers(s)
    }

    /// Every block, each a segment of its own, and the account of the same moment.
    pub(crate) fn layout(&self) -> Result<Layout> {
        self.settle_freed();
        let a = self.lock()?;
        let waiting = a.freed.iter().map(|f| (&f.block, BlockState::Waiting));
        let all = a.blocks.values().map(|b| (b, BlockState::Live)).chain(waiting);
        let (mut owners, mut known) = (Vec::new(), HashMap::new());
        let placed = all.enumerate().map(|(n, (b, state))| {
            let BlockInfo { base, size, requested, stream, pool } = b.info;
            let owner = *known.entry((stream, pool)).or_insert_with(|| {
                owners.push(Owner { stream, pool: Some(pool), sleeps: false });
                owners.len() as u32 - 1
            });
            let (segment, place) = (n as u32, Place::Segment);
            Placed {
                address: base,
                span: size,
                requested,
                slack: 0,
                owner,
                segment,
                state,
                place,
                tag: b.tag,
            }
        });
        let blocks = placed.collect();
        let (device, pools) = (a.device, a.pools.iter().map(|(&p, &s)| (p, s)).collect());
        drop(a);
        Ok(Layout::new(blocks, owners, self.with_drivers(device), pools))
    }

    /// These sums with the reserved bytes of the driver's pool, if the memory comes from there.
    fn with_drivers(&self, mut s: Stats) -> Stats {
        if self.by_driver
            && let Ok(_call) = self.supply.call()
            && let Ok(d) = self.driver_pool().and_then(|p| p.stats())
        {
            // Memory that the driver's pool keeps is taken from the device, too.
            s.reserved.current = d.reserved;
            s.reserved.peak = d.reserved_peak;
        }
        s
    }

    /// Resets the peaks of the device to the current values.
    pub(crate) fn reset_peaks(&self) {
        lock(&self.account).device.reset_peaks();
    }

    /// Limits what the device reserves from now on (0: no limit), and sets whether the device's free memory is checked
    /// before a request.
    pub(crate) fn set_bounds(&self, limit: u64, careful: bool) {
        let mut a = lock(&self.account);
        a.device.limit = limit;
        a.careful = careful;
    }

    /// Gives a block that its owner does not know yet a tag that is not 0.
    pub(crate) fn tag(&self, addr: u64, tag: u16) {
        let mut a = lock(&self.account);
        let Some(block) = a.blocks.get_mut(&addr).filter(|b| b.tag == 0) else { return };
        block.tag = tag;
        let block = block.tagged();
        a.tags.count_in(block);
    }

    /// The sums of the blocks of each tag.
    pub(crate) fn tag_stats(&self) -> Vec<(u16, TagStats)> {
        self.settle_freed();
        lock(&self.account).tags.all()
    }

    /// How much is live, and how many blocks were ever freed.
    pub(crate) fn live_and_freed(&self) -> LiveAndFreed {
        let device = lock(&self.account).device;
        let freed_blocks = device.blocks.total.saturating_sub(device.blocks.current);
        LiveAndFreed { live_bytes: device.allocated.current, freed_blocks }
    }

    /// The number of live blocks.
    pub(crate) fn live_blocks(&self) -> u64 {
        lock(&self.account).device.blocks.current
    }
}
