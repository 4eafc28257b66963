//! The memory of one device as a member of a group of programs that share its card (`runtime/group/`).

use super::in_use;
use super::state::{How, Memory};
use crate::base::error::{Code, Error, Result};
use crate::core::{GRANULE, OomReason, OomReport, PoolId, Stats};
use crate::device::{Device, MemoryInfo};
use crate::fail;
use crate::runtime::backing::DeviceBacking;
use crate::runtime::entry::reentry;
use crate::runtime::group::member::{Joining, Member, Share, Stake};
use crate::runtime::group::membership::{Asks, Need};
use crate::runtime::nvtx;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The group that a device's memory is in, if any.
#[derive(Clone, Copy)]
pub(crate) struct MemoryGroup<'a>(pub &'a Memory);

impl Share for Memory {
    fn held(&self) -> Stake {
        let stats = self.stats();
        let Stats { reserved, .. } = stats;
        let returned = reserved.total.wrapping_sub(reserved.current);
        Stake { reserved: reserved.current, active: in_use(&stats), returned }
    }

    fn free(&self) -> Option<u64> {
        self.card().map(|info| info.free)
    }

    fn total(&self) -> Option<u64> {
        self.card().map(|info| info.total)
    }

    fn is_helped(&self, Need { pool, asleep, .. }: Need) -> bool {
        let pools = self.pools();
        pools.contains(pool) && pools.sleeps(pool) == asleep && !self.order().any_captured()
    }

    fn trim_to(&self, keep: u64) -> Result<()> {
        Memory::trim_to(self, None, keep)
    }

    fn set_budget(&self, bytes: u64) -> Result<()> {
        self.settings().set_budget(bytes).map(drop)
    }

    fn check(&self) -> Result<()> {
        self.open()?;
        // The memory is closed only when all have left, and the caller may be inside: a pool that wakes is.
        if self.device_and_supply().1.is_ending() {
            fail!(Code::NotInitialized, "the device has ended");
        }
        Ok(())
    }
}

impl Memory {
    fn device_and_supply(&self) -> (&dyn Device, &DeviceBacking) {
        match &self.how {
            How::Pooled(p) => (&*p.device, &p.supply),
            How::Unpooled(u) => (u.device(), u.supply()),
        }
    }

    /// What the card says of its memory, if it can be asked.
    fn card(&self) -> Option<MemoryInfo> {
        let (device, supply) = self.device_and_supply();
        let _call = supply.call().ok()?;
        device.memory_info().ok().and_then(MemoryInfo::known)
    }
}

/// How often others are asked for more than a request lacks, because the card refused it although it says that it has enough.
/// Once is enough where page tables take memory, too. But the card may also have got that memory just after the refusal.
const MOST_ASKS_FOR_MORE: u32 = 3;

/// Whether memory of the card could help.
fn curable(reason: OomReason) -> bool {
    use OomReason::{DeviceRefused, Exhausted, Fragmented, Waiting};
    matches!(reason, DeviceRefused | Exhausted | Fragmented | Waiting)
}

/// Whether it is the error of a request, or of a pool that wakes, that memory of the card could help.
fn lacks_memory(e: &Error) -> bool {
    e.code() == Code::OutOfMemory && e.oom_report().is_none_or(|r| curable(r.reason))
}

/// What the card has to give for a request that failed.
fn missing(r: &OomReport) -> Need {
    // A small block needs a whole granule of the card.
    let need = r.need.max(r.rounded);
    // A block is put together from free granules, wherever they lie. Where they would have been enough, something else is
    // in the way.
    let together = r.maps && !r.no_scatter && !r.contiguous && r.whole_granules < need;
    let own = if together { r.whole_granules } else { 0 };
    Need { bytes: (need - own).saturating_add(r.headroom), own, pool: r.pool, asleep: false }
}

impl MemoryGroup<'_> {
    fn member(&self) -> Result<Arc<dyn Asks<Memory>>> {
        self.0.open()?;
        self.0.group.get().ok_or_else(|| Error::new(Code::NotPermitted, "the device is in no group"))
    }

    /// Handles a request that ended with `error`: where the card had too little and others share it, asks them to give
    /// some back, and makes another `attempt` if they did, or there is enough by then. Again, if somebody else takes that first.
    #[cold]
    #[inline(never)]
    pub(super) fn ask(self, error: Error, attempt: impl FnMut() -> Result<u64>) -> Result<u64> {
        let Some(member) = self.0.group.get() else { return Err(error) };
        let need = |e: &Error| e.oom_report().filter(|r| curable(r.reason)).map(|r| missing(&r));
        self.ask_for(&*member, need, error, attempt)
    }

    /// The same for a pool that sleeps and finds no memory to wake.
    #[cold]
    pub(super) fn ask_to_wake(
        self,
        pool: PoolId,
        error: Error,
        wake: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let (Code::OutOfMemory, Some(member), How::Pooled(p)) =
            (error.code(), self.0.group.get(), &self.0.how)
        else {
            return Err(error);
        };
        let need = |_: &Error| {
            let stats = p.stats(Some(pool)).ok()?;
            let missing = stats.sleeping.current;
            let refused = |s: Stats| s.limit != 0 && s.reserved.current.saturating_add(missing) > s.limit;
            if refused(stats) || refused(self.0.stats()) {
                return None; // others' memory would not help
            }
            // What the program itself does not use has gone back to the card by now.
            let bytes = missing.saturating_add(p.supply.headroom());
            Some(Need { bytes, own: 0, pool, asleep: true })
        };
        self.ask_for(&*member, need, error, wake)
    }

    fn ask_for<T>(
        self,
        member: &dyn Asks<Memory>,
        need: impl Fn(&Error) -> Option<Need>,
        mut error: Error,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        if reentry::may_block().is_err() {
            return Err(error);
        }
        let need = |e: &Error| need(e).filter(|&need| self.0.is_helped(need));
        let Some(mut needs) = need(&error) else { return Err(error) };
        let _range = nvtx::range(c"ask the group", needs.bytes);
        let since = Instant::now();
        let mut asks_for_more = 0;
        loop {
            if member.ask(self.0, needs, since).is_none() {
                return Err(self.0.check().err().unwrap_or(error));
            }
            error = match attempt() {
                Err(e) if lacks_memory(&e) => e,
                done => return done,
            };
            let next = need(&error).and_then(|now| Some((now, Share::free(self.0)?)));
            let Some((now, free)) = next else { return Err(error) };
            needs = match free < now.bytes {
                // Somebody else was first. But what members of another card have given has come to nobody.
                true if self.card_is_known() => now,
                // Or it came just after the attempt.
                false if asks_for_more < MOST_ASKS_FOR_MORE => {
                    asks_for_more += 1;
                    match self.more(now, free) {
                        Some(more) => more,
                        None => return Err(error),
                    }
                }
                _ => return Err(error),
            };
        }
    }

    /// Whether the card can be told from others.
    fn card_is_known(self) -> bool {
        self.0.device_and_supply().0.facts().identity.uuid.is_some()
    }

    /// What to ask for if the card has enough for a request, this much, and refuses it all the same: it needs more than is
    /// asked of it, for page tables say. `None` if it can have no more.
    fn more(self, need: Need, free: u64) -> Option<Need> {
        let used = need.own.saturating_add(self.0.held().active);
        let most = self.0.total().map_or(u64::MAX, |total| total.saturating_sub(used));
        let bytes = free.saturating_add(need.bytes / 16).saturating_add(GRANULE).min(most);
        (bytes > free).then_some(Need { bytes, ..need })
    }

    /// Joins, and returns the number of the member. `NotPermitted` if the memory is in a group already.
    pub(crate) fn join(self, path: &Path, joining: Joining<'_>) -> Result<u64> {
        self.0.open()?;
        let member = self.0.group.begin(|| Member::join(path, joining))?;
        // The end of the memory has ended the membership that there was then.
        self.0.open().map(drop).inspect_err(|_| _ = self.0.group.end())?;
        Ok(member.id())
    }

    /// Leaves. `NotPermitted` if the memory is in no group.
    pub(crate) fn leave(self) -> Result<()> {
        self.member()?;
        self.0.group.end();
        Ok(())
    }

    /// `NotPermitted` if the memory is in no group.
    #[cfg(feature = "capi")]
    pub(crate) fn check(self) -> Result<()> {
        self.member().map(drop)
    }

    /// Gives back what others want, and follows orders, until something was done or `timeout` is over. Returns what went
    /// back, in bytes.
    pub(crate) fn serve(self, timeout: Duration) -> Result<u64> {
        reentry::may_block()?;
        self.member()?.serve(self.0, timeout)
    }
}
