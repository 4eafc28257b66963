//! What is known of a single live block.

use super::super::blocks::Blocks;
use super::super::desc::{DIRECT, Found, USES, kind};
use super::super::ground::Ground;
use super::super::types::{BlockInfo, Freeing, PoolId, RETIRED, UNORDERED};
use crate::base::error::{Code, Error, Result};
use crate::fail;

/// What is reported of the free of the live block that starts at `offset`, before it is freed with that stream.
#[inline]
pub(crate) fn to_be_freed(ground: &Ground, offset: u64, stream: Option<u64>) -> Option<Freeing> {
    let f = ground.maps.find(offset)?;
    let state = f.desc.state();
    if state & kind::MASK != kind::LIVE {
        return None;
    }
    let heap = ground.heaps().get(f.heap)?;
    let at_once = state & (USES | DIRECT) == 0 && stream.is_none_or(|s| s == heap.stream());
    Some(Freeing { at_once, ..Blocks::of(ground).freeing(heap, f.id) })
}

/// The live block that contains `offset`.
pub(crate) fn block_at(ground: &Ground, offset: u64) -> Result<BlockInfo> {
    let live = |f: &Found<'_>| f.desc.kind() == kind::LIVE;
    let at = ground.maps.find(offset).filter(live);
    let Some(f) = at.or_else(|| ground.maps.find_holding(offset).filter(live)) else {
        fail!(Code::UnknownPointer, "no live block holds this address");
    };
    let Some(heap) = ground.heaps().get(f.heap) else {
        return Err(Error::new(Code::Internal, "a block without a heap"));
    };
    Ok(BlockInfo {
        base: ground.maps.offset(f.id),
        size: ground.maps.charge(f.id),
        requested: f.desc.requested(),
        stream: Some(heap.stream()).filter(|&s| s != UNORDERED && s != RETIRED),
        pool: PoolId(heap.pool()),
    })
}
