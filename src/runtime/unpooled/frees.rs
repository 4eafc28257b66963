//! Frees of memory that is not pooled: what a block waits for, and when the device gets it back.

use super::Unpooled;
use super::account::{Block, Freed};
use crate::base::error::{Code, Error, Result};
use crate::core::{BlockInfo, Stream, Waits};
use crate::device::StreamId;
use crate::fail;
use crate::runtime::{lock, reentry};
use std::sync::Arc;

/// Whether the device cannot be asked or waited for now, but may be later.
fn not_now(e: &Error) -> bool {
    matches!(e.code(), Code::Busy | Code::NotPermitted)
}

impl Unpooled {
    /// Ends the block that starts at `addr`; work queued so far may still use it. With `size`, that
    /// must be the size of the request. 0 is no block and does nothing.
    pub(crate) fn free(&self, addr: u64, stream: Option<StreamId>, size: Option<u64>) -> Result<()> {
        if addr == 0 {
            return self.lock().map(drop);
        }
        // The block's own stream need not be looked at.
        let own = self.lock()?.blocks.get(&addr).and_then(|b| b.own.clone());
        let own = own.filter(|s| s.end().is_none()).map(|s| s.id);
        let given = stream.filter(|&s| Some(s) != own).map(|s| self.order.user(s)).transpose()?;
        self.settle_freed();
        let block = {
            let mut a = self.lock()?;
            let Some(block) = a.blocks.get(&addr) else {
                return Err(a.not_live(addr));
            };
            if let Some(s) = size.filter(|&s| s != block.info.requested) {
                fail!(Code::WrongSize, "{s} bytes given at free, {} at allocation", block.info.requested);
            }
            let Some(block) = a.end(addr) else { return Err(a.not_live(addr)) };
            block
        };
        let waits = self.waits_of(&block, given);
        let mut freed = Freed { block, waits };
        let given = self.give_back(&mut freed);
        let mut a = lock(&self.account);
        match given {
            Ok(()) => Ok(()),
            // It is freed for the caller, and the device gets it later.
            Err(e) if not_now(&e) => {
                a.freed.push(freed);
                Ok(())
            }
            Err(e) => {
                // The device kept it: the block is live again, so that nothing is lost.
                a.revive(freed.block);
                Err(e)
            }
        }
    }

    /// What must have passed before the device gets the block back, beside what its own stream orders.
    fn waits_of(&self, block: &Block, given: Option<Arc<Stream>>) -> Waits {
        let mut waits = Waits::default();
        match &block.own {
            None => self.order.add_all(&mut waits),
            // The driver queues a free on the block's own stream, as long as there is one.
            Some(own) if !self.by_driver || own.end().is_some() => self.order.add(own, &mut waits),
            Some(_) => {}
        }
        for s in block.used_by.iter().chain(&given) {
            let covered = match &block.own {
                None => !s.elsewhere,
                Some(own) => s.lane == own.lane,
            };
            if !covered {
                self.order.add(s, &mut waits);
            }
        }
        waits
    }

    /// Gives a freed block to the device, which has it no more afterwards.
    fn give_back(&self, freed: &mut Freed) -> Result<()> {
        let info = freed.block.info;
        let mut home = 0;
        if self.by_driver {
            reentry::may_block()?;
            home = freed.block.own.as_ref().filter(|s| s.end().is_none()).map_or(0, |s| s.id);
            if freed.waits.owes() {
                self.order.sync_waits(&mut freed.waits)?;
            }
            for fence in freed.waits.fences() {
                match self.order.hold_back(home, &fence) {
                    Ok(true) => {}
                    // Also where the maker of the stream has ended it without a word.
                    _ => self.order.sync(&fence)?,
                }
            }
        } else {
            self.order.sync_waits(&mut freed.waits)?;
        }
        match self.device_free(&info, home) {
            // The maker of the stream has ended it without a word: what is queued there may still run, and only a wait
            // for the device covers it.
            Err(e) if self.by_driver && home != 0 && e.code() == Code::UnknownStream => {
                self.order.sync_device()?;
                self.device_free(&info, 0)?;
            }
            other => other?,
        }
        lock(&self.account).gone(&info);
        Ok(())
    }

    /// Gives memory to the device; `home` is the stream in whose order the driver's pool has it back.
    pub(super) fn device_free(&self, info: &BlockInfo, home: StreamId) -> Result<()> {
        let _call = self.supply.call()?;
        lock(&self.account).count_call(info.pool);
        if self.by_driver {
            self.device.pool_free(info.base, home)
        } else {
            self.device.free(info.base, info.size)
        }
    }

    /// Gives freed blocks to the device that wait for nothing any more.
    pub(super) fn settle_freed(&self) {
        if lock(&self.account).freed.is_empty() || reentry::may_block().is_err() {
            return;
        }
        let all = std::mem::take(&mut lock(&self.account).freed);
        for mut freed in all {
            if !self.order.settle(&mut freed.waits) || self.give_back(&mut freed).is_err() {
                lock(&self.account).freed.push(freed);
            }
        }
    }

    /// Waits on the host until the device has all freed blocks.
    pub(super) fn wait_for_freed(&self) -> Result<()> {
        let all = std::mem::take(&mut lock(&self.account).freed);
        let mut first = Ok(());
        for mut freed in all {
            let done = self.order.sync_waits(&mut freed.waits).and_then(|()| self.give_back(&mut freed));
            if done.is_err() {
                lock(&self.account).freed.push(freed);
            }
            first = first.and(done);
        }
        first
    }

    /// Gives everything back to the device; every later call gets `NotInitialized`. Idempotent.
    pub(crate) fn close(&self) -> Result<()> {
        let (blocks, freed) = {
            let Ok(mut a) = self.lock() else { return Ok(()) };
            a.closed = true;
            let live: Vec<u64> = a.blocks.keys().copied().collect();
            let blocks: Vec<Block> = live.into_iter().filter_map(|addr| a.end(addr)).collect();
            (blocks, std::mem::take(&mut a.freed))
        };
        self.order.close();
        // Also after a failure: what one block does the others have no part in.
        let mut first = Ok(());
        for block in blocks.into_iter().chain(freed.into_iter().map(|f| f.block)) {
            first = first.and(self.device_free(&block.info, 0));
            lock(&self.account).gone(&block.info);
        }
        first.and(self.supply.close())
    }
}
