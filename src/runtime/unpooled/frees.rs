//! Frees of unpooled memory: what a block waits for, and when it goes back to the device.

use super::Unpooled;
use super::account::{Account, Block, Freed};
use crate::base::boxed::has_room;
use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::base::room::CALL_BYTES;
use crate::base::sync::pause;
use crate::base::sync::system::lock;
use crate::core::{BlockInfo, PoolId, Stream, Waits};
use crate::device::StreamId;
use crate::fail;
use crate::runtime::entry::reentry;
use crate::runtime::watch::event::EventKind;
use crate::runtime::watch::latency::Latency;
use std::sync::Arc;

/// The number of rounds of queries, at least 50 us each, after which freed blocks are waited for in turn.
const MOST_ASKED: u32 = 20_000;

/// A block that its thread is giving back to the device, or taking from it: it is neither live nor waiting.
pub(super) struct InHand<'a> {
    memory: &'a Unpooled,
    /// The pool of a block that is being given back; `None`: a block is being taken.
    given: Option<PoolId>,
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        let mut a = lock(&self.memory.account);
        match self.given {
            None => a.taking -= 1,
            Some(pool) => {
                if let Some(n) = a.in_hand.get_mut(&pool) {
                    *n -= 1;
                }
                a.in_hand.retain(|_, n| *n != 0);
            }
        }
        drop(a);
        self.memory.put_down.notify_all();
    }
}

/// Whether the device cannot be called or waited for now, but may be later.
fn not_now(e: &Error) -> bool {
    matches!(e.code(), Code::Busy | Code::NotPermitted)
}

impl Unpooled {
    /// Frees the block that starts at `addr`; work queued so far may still use it. `size`, if given, must be the size
    /// of the request. Address 0 does nothing.
    pub(crate) fn free(&self, addr: u64, stream: Option<StreamId>, size: Option<u64>) -> Result<()> {
        if addr == 0 {
            return self.lock().map(drop);
        }
        // If the given stream is the block's own, it need not be checked.
        let own = self.lock()?.blocks.get(&addr).and_then(|b| b.own.clone());
        let own = own.filter(|s| s.end().is_none()).map(|s| s.id);
        let given = stream.filter(|&s| Some(s) != own).map(|s| self.order.user(s)).transpose()?;
        self.settle_freed();
        let mut waits = Waits::default();
        let (block, _hand) = {
            let mut a = self.lock()?;
            let Some(block) = a.blocks.get(&addr) else {
                return Err(a.not_live(self.supply.name(), addr));
            };
            if let Some(s) = size.filter(|&s| s != block.info.requested) {
                let bytes = block.info.requested;
                fail!(Code::WrongSize, "the block was asked for with size {bytes}, not {s}");
            }
            // For its fences, as in the pond: its uses, its own stream's, that of the free, and all streams together.
            let fences = block.used_by.len() + 3;
            if !waits.make_room(fences) || a.freed.try_reserve(1).is_err() || !has_room(CALL_BYTES) {
                return Err(no_host_memory());
            }
            let Some(block) = a.end(addr) else { return Err(a.not_live(self.supply.name(), addr)) };
            self.tell(EventKind::FreeRequested, &block.info);
            let hand = self.hand(&mut a, block.info.pool);
            (block, hand)
        };
        let named = own.is_some() && stream == own;
        self.add_waits_of(&block, given, &mut waits);
        let mut freed = Freed { block, waits, own_waited: false };
        let given = self.give_back(&mut freed, named);
        let mut a = lock(&self.account);
        match given {
            Ok(()) => Ok(()),
            // For the caller it is freed; it goes back to the device later.
            Err(e) if not_now(&e) => {
                // By then nobody names the block's stream.
                if let Some(own) = freed.block.own.as_ref().filter(|_| named) {
                    self.order.owe(own, &mut freed.waits);
                }
                a.freed.push_back(freed);
                Ok(())
            }
            Err(e) => {
                // The device refused it: the block is live again, so that nothing is lost.
                let info = freed.block.info;
                a.revive(freed.block);
                self.tell(EventKind::FreeRefused, &info);
                Err(e)
            }
        }
    }

    /// Notes that this thread is giving back a freed block of the pool, until the result is dropped.
    fn hand(&self, a: &mut Account, pool: PoolId) -> InHand<'_> {
        *a.in_hand.entry(pool).or_default() += 1;
        InHand { memory: self, given: Some(pool) }
    }

    /// Notes that this thread is taking a block from the device, until the result is dropped.
    pub(super) fn taking(&self, a: &mut Account) -> InHand<'_> {
        a.taking += 1;
        InHand { memory: self, given: None }
    }

    /// Whether the driver can queue a free on the block's own stream; `named`: by the program's call.
    fn takes_frees(&self, own: &Stream, named: bool) -> bool {
        own.end().is_none() && (named || self.order.is_there(own.id))
    }

    /// Adds what must have passed before the block goes back to the device; `waits` has room for it. Where the driver's pool
    /// takes it, `give_back` sees to the block's own stream, which may end until then.
    fn add_waits_of(&self, block: &Block, given: Option<Arc<Stream>>, waits: &mut Waits) {
        if let Some(own) = block.own.as_ref().filter(|_| !self.by_driver) {
            self.order.add(own, waits);
        }
        for s in block.used_by.iter().chain(&given) {
            let covered = match &block.own {
                None => !s.elsewhere,
                Some(own) => s.serial == own.serial,
            };
            if !covered {
                self.order.add(s, waits);
            }
        }
        // Last: the others have the room that was made.
        if block.own.is_none() {
            self.order.add_all(waits);
        }
    }

    /// Gives a freed block back to the device; `named`: the program's call names its stream.
    fn give_back(&self, freed: &mut Freed, named: bool) -> Result<()> {
        let info = freed.block.info;
        if self.by_driver {
            reentry::may_block()?;
            while !self.give_to_driver(freed, named)? {}
        } else {
            self.order.sync_waits(&mut freed.waits)?;
            self.device_free(&info, 0)?;
        }
        lock(&self.account).gone(&freed.block);
        Ok(())
    }

    /// The same for the driver's pool, in the order of the block's own stream, or of the default one where that has ended.
    /// `false`: it has ended meanwhile.
    fn give_to_driver(&self, freed: &mut Freed, named: bool) -> Result<bool> {
        let (info, own) = (freed.block.info, freed.block.own.clone());
        let home = own.as_ref().filter(|s| self.takes_frees(s, named)).map_or(0, |s| s.id);
        // The default stream waits for none that does not block.
        if let Some(own) = own.as_ref().filter(|s| s.id != home && !freed.own_waited) {
            self.order.add(own, &mut freed.waits);
            freed.own_waited = true;
        }
        if freed.waits.owes() {
            self.order.sync_waits(&mut freed.waits)?;
        }
        for fence in freed.waits.fences() {
            let held = match named {
                true => self.order.hold_back(home, fence),
                false => self.order.hold_back_later(home, fence),
            };
            match held {
                Ok(true) => {}
                // This also covers a stream that its creator has destroyed without notice.
                _ => self.order.sync(fence)?,
            }
        }
        // Another thread may tell of the stream's end, and its creator destroy it then.
        let asking = (home != 0 && !named).then(|| self.order.asking(home));
        let has_ended = || own.as_ref().is_some_and(|s| s.end().is_some());
        if asking.as_ref().is_some_and(|asking| asking.is_none() || has_ended()) {
            return Ok(false);
        }
        match self.device_free(&info, home) {
            // The creator of the stream has destroyed it without notice: its work may still run, and only a wait for
            // the device covers that.
            Err(e) if home != 0 && e.code() == Code::UnknownStream => {
                drop(asking);
                self.order.sync_device()?;
                self.device_free(&info, 0)?;
            }
            other => other?,
        }
        Ok(true)
    }

    /// Gives memory back to the device; `home` is the stream in whose order the driver's pool takes it.
    pub(super) fn device_free(&self, info: &BlockInfo, home: StreamId) -> Result<()> {
        let _call = self.supply.call()?;
        lock(&self.account).count_call(info.pool);
        // Before another thread can have its address.
        self.tell(EventKind::FreeCompleted, info);
        self.tell(EventKind::SegmentFree, info);
        let done = self.supply.calls().latencies().timed(Latency::DeviceFree, || match self.by_driver {
            true => self.driver_pool().and_then(|p| p.free(info.base, home)),
            false => self.device.free(info.base, info.size),
        });
        done.inspect_err(|_| self.tell(EventKind::SegmentAlloc, info))
    }

    /// Takes a freed block that has not gone back yet, of a pool or of any.
    fn take_freed(&self, pool: Option<PoolId>) -> Option<(Freed, InHand<'_>)> {
        let mut a = lock(&self.account);
        let at = a.freed.iter().position(|f| pool.is_none_or(|p| f.block.info.pool == p))?;
        let freed = a.freed.remove(at)?;
        let hand = self.hand(&mut a, freed.block.info.pool);
        Some((freed, hand))
    }

    /// Gives back freed blocks that wait for nothing any more. Returns whether there were any.
    pub(super) fn settle_freed(&self) -> bool {
        let mut any = false;
        let count = lock(&self.account).freed.len();
        if count == 0 || reentry::may_block().is_err() {
            return false;
        }
        for _ in 0..count {
            let Some((mut freed, _hand)) = self.take_freed(None) else { break };
            if self.order.settle(&mut freed.waits) && self.give_back(&mut freed, false).is_ok() {
                any = true;
            } else {
                lock(&self.account).freed.push_back(freed);
            }
        }
        any
    }

    /// Waits on the host until all freed blocks of a pool, or of all pools, have gone back to the device.
    pub(super) fn wait_for_freed(&self, pool: Option<PoolId>) -> Result<()> {
        let mut first = Ok(());
        let mut left = usize::MAX; // once one has failed, each of the others is tried once
        while left > 0 {
            let Some((mut freed, _hand)) = self.take_freed(pool) else {
                if first.is_err() || !self.wait_for_hands(pool) {
                    break;
                }
                continue;
            };
            left -= 1;
            let done =
                self.order.sync_waits(&mut freed.waits).and_then(|()| self.give_back(&mut freed, false));
            if done.is_err() {
                let mut a = lock(&self.account);
                left = left.min(a.freed.len());
                a.freed.push_back(freed);
            }
            first = first.and(done);
        }
        first
    }

    /// Waits until another thread that is giving a block back, of a pool or of any, has finished. `false`: there is
    /// none, or waiting is not permitted here.
    fn wait_for_hands(&self, pool: Option<PoolId>) -> bool {
        if self.order.check_wait().is_err() {
            return false;
        }
        let a = lock(&self.account);
        if a.hands(pool) == 0 {
            return false;
        }
        drop(self.put_down.wait(a));
        true
    }

    /// Waits on the host until a freed block, of a pool or of any, goes back to the device, whichever is first.
    /// `false`: none can be waited for.
    pub(super) fn wait_for_one(&self, pool: Option<PoolId>) -> bool {
        if self.order.check_wait().is_err() {
            return false;
        }
        let of_pool = |f: &&Freed| pool.is_none_or(|p| f.block.info.pool == p);
        let count = || {
            let a = lock(&self.account);
            (a.freed.iter().filter(of_pool).count(), a.hands(pool), a.given)
        };
        let before = count().2;
        for round in 0..MOST_ASKED {
            if self.settle_freed() {
                return true;
            }
            match count() {
                (.., given) if given != before => return true,
                (0, 0, _) => return false,
                (0, ..) => _ = self.wait_for_hands(pool),
                (1, 0, _) => break,
                _ => pause(round),
            }
        }
        for _ in 0..count().0 {
            let Some((mut freed, _hand)) = self.take_freed(pool) else { break };
            let done =
                self.order.sync_waits(&mut freed.waits).and_then(|()| self.give_back(&mut freed, false));
            if done.is_ok() {
                return true;
            }
            lock(&self.account).freed.push_back(freed);
        }
        count().2 != before
    }

    /// Gives everything back to the device; every later call returns `NotInitialized`. Idempotent.
    pub(crate) fn close(&self) -> Result<()> {
        let freed = {
            let Ok(mut a) = self.lock() else { return Ok(()) };
            a.closed = true;
            // A thread in the middle of an operation finds the device ended, and leaves its block here.
            while a.hands(None) != 0 || a.taking != 0 {
                a = self.put_down.wait(a);
            }
            std::mem::take(&mut a.freed)
        };
        self.order.close();
        // One after the other: the host may have no memory for a list.
        let next = || lock(&self.account).end_any();
        // Continues after a failure: the blocks are independent of each other.
        let mut first = Ok(());
        for block in std::iter::from_fn(next).chain(freed.into_iter().map(|f| f.block)) {
            first = first.and(self.device_free(&block.info, 0));
            lock(&self.account).gone(&block);
        }
        first.and(self.supply.close())
    }
}
