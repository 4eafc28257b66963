//! How much more memory the device and its limits allow, and the library's own words for why there is no more.

use super::super::ground::Growing;
use super::super::state::growth::account::Taken;
use super::super::types::{COMMONS, PoolId};
use crate::base::error::{Code, Error, Fixed, Result};

/// The limits allow no more: the library's own reasons for not asking the device.
pub(super) const NO_MORE: &str = "the device has no more";
const DEVICE_LIMIT: &str = "the device's limit is reached";
const POOL_LIMIT: &str = "the pool's limit is reached";
/// The library's tables are full.
pub(super) const TOO_MANY_BLOCKS: &str = "more blocks than the library can keep track of";
pub(super) const TOO_MANY_SEGMENTS: &str = "too many segments";

const WORDS: [&str; 5] = [NO_MORE, DEVICE_LIMIT, POOL_LIMIT, TOO_MANY_BLOCKS, TOO_MANY_SEGMENTS];

/// The errors that say so. They take no memory of the host.
static ERRORS: [Fixed; 5] = [
    Fixed::new(Code::OutOfMemory, NO_MORE),
    Fixed::new(Code::OutOfMemory, DEVICE_LIMIT),
    Fixed::new(Code::OutOfMemory, POOL_LIMIT),
    Fixed::new(Code::OutOfMemory, TOO_MANY_BLOCKS),
    Fixed::new(Code::OutOfMemory, TOO_MANY_SEGMENTS),
];

/// The error of a request that found nothing. Its report has the words.
pub(super) static NO_ROOM: Fixed = Fixed::new(Code::OutOfMemory, "no room for the request");

/// The error with one of these reasons.
#[cold]
pub(super) fn error(why: &'static str) -> Error {
    let known = WORDS.iter().position(|w| *w == why);
    known.map_or_else(|| Error::new(Code::OutOfMemory, why), |n| ERRORS[n].error())
}

/// Whether an error says that the device was not asked since the limits allow no more.
pub(super) fn is_limit(e: &Error) -> bool {
    [NO_MORE, DEVICE_LIMIT, POOL_LIMIT].contains(&e.message())
}

/// Whether an error says that the library's tables are full.
pub(super) fn is_table(e: &Error) -> bool {
    [TOO_MANY_BLOCKS, TOO_MANY_SEGMENTS].contains(&e.message())
}

/// How much more a pool may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    pub bytes: u64,
    /// [B] what counts towards that limit now: of the device, or of the pool.
    pub taken: u64,
    /// Why not more.
    pub why: &'static str,
}

impl Allowed {
    /// `OutOfMemory` with the reason, unless so many bytes are allowed.
    pub(crate) fn check(self, bytes: u64) -> Result<()> {
        if bytes > self.bytes {
            return Err(error(self.why));
        }
        Ok(())
    }
}

impl Growing<'_> {
    /// How much more the limits allow a pool to take from the device.
    pub(crate) fn allowed(&self, pool: u32) -> Allowed {
        let ground = self.ground;
        let limit = ground.limit();
        let Taken { device: taken, pool: own } = self.account.taken(pool);
        let mut allowed =
            Allowed { bytes: ground.config.max_alloc.saturating_sub(taken), taken, why: NO_MORE };
        if limit > 0 {
            let bytes = limit.saturating_sub(taken);
            if bytes < allowed.bytes {
                allowed = Allowed { bytes, taken, why: DEVICE_LIMIT };
            }
        }
        let bytes = self.pool_room(pool);
        if bytes < allowed.bytes {
            allowed = Allowed { bytes, taken: own, why: POOL_LIMIT };
        }
        allowed
    }

    /// [B] what the device's size and its limit allow all pools to have together.
    fn device_most(&self) -> u64 {
        let limit = match self.ground.limit() {
            0 => u64::MAX,
            limit => limit,
        };
        self.ground.config.max_alloc.min(limit)
    }

    /// How many more bytes the device's size and its limit allow all pools to take together.
    pub(crate) fn device_room(&self) -> u64 {
        self.device_most().saturating_sub(self.account.taken(COMMONS).device)
    }

    /// How many bytes must go back before the device's size and its limit allow `bytes` to be taken. That may be more than
    /// `bytes`: a limit can be lower than what is taken already.
    pub(crate) fn device_lacks(&self, bytes: u64) -> u64 {
        self.account.taken(COMMONS).device.saturating_add(bytes).saturating_sub(self.device_most())
    }

    /// The same for a pool's own limit: how many of its own bytes must go back.
    pub(crate) fn pool_lacks(&self, pool: u32, bytes: u64) -> u64 {
        match self.pool_limit(pool) {
            0 => 0,
            limit => self.account.taken(pool).pool.saturating_add(bytes).saturating_sub(limit),
        }
    }

    /// [B] the pool's own limit; 0: it has none.
    fn pool_limit(&self, pool: u32) -> u64 {
        self.ground.pools().get(PoolId(pool)).map_or(0, |p| p.limit())
    }

    /// How many more bytes the pool's own limit allows it to have, from the device or from other pools.
    pub(crate) fn pool_room(&self, pool: u32) -> u64 {
        match self.pool_limit(pool) {
            0 => u64::MAX,
            limit => limit.saturating_sub(self.account.taken(pool).pool),
        }
    }
}

/// The error of a request that no device could serve.
#[cold]
#[inline(never)]
pub(crate) fn too_large<T>() -> Result<T> {
    Err(NO_ROOM.error())
}
