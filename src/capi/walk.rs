//! Lists every block of a device, all at the same moment.

use crate::base::error::{Code, Result};
use crate::capi::guard::{Out, OutRecords, RecordNames, Versioned, answered, run};
use crate::capi::handles;
use crate::capi::pool::to_ptr;
use crate::capi::types::{
    MILLPOND_BLOCK_ANY, MILLPOND_BLOCK_FREE, MILLPOND_BLOCK_LIVE, MILLPOND_BLOCK_WAITING,
    millpond_block_record, millpond_device, millpond_pool, millpond_walk_callback,
};
use crate::fail;
use crate::paddle::abi::C_Status;
use crate::runtime::{BlockRecord, BlockStates, DeviceState, PoolId};
use std::ffi::c_void;
use std::ptr::null_mut;

const _: () = {
    assert!(BlockStates::LIVE.bits() == MILLPOND_BLOCK_LIVE);
    assert!(BlockStates::WAITING.bits() == MILLPOND_BLOCK_WAITING);
    assert!(BlockStates::FREE.bits() == MILLPOND_BLOCK_FREE);
    assert!(BlockStates::all().bits() == MILLPOND_BLOCK_ANY);
};

// SAFETY: `repr(C)`, integers and pointers only, `struct_size` first.
unsafe impl Versioned for millpond_block_record {}

/// The blocks of one call, and how they are reported.
struct Walk {
    device: &'static DeviceState,
    blocks: Vec<BlockRecord>,
    /// The handle that was made last, and its pool: most adjacent blocks belong to one pool.
    last: Option<(PoolId, *mut millpond_pool)>,
}

impl Walk {
    fn new(device: *const millpond_device, pool: *const millpond_pool, states: u32) -> Result<Walk> {
        let device = handles::device(device)?;
        let Some(states) = BlockStates::from_bits(states).filter(|s| !s.is_empty()) else {
            fail!(Code::InvalidArgument, "{states:#x} is not a set of MILLPOND_BLOCK_* bits");
        };
        let only = handles::pool_on(device, pool)?;
        Ok(Walk { device, blocks: device.memory().blocks(only, states)?, last: None })
    }

    fn pool(&mut self, pool: PoolId) -> *mut millpond_pool {
        if let Some((id, handle)) = self.last
            && id == pool
        {
            return handle;
        }
        // A pool that has ended since has no handle.
        let handle = handles::of_live_pool(self.device, pool).unwrap_or(null_mut());
        self.last = Some((pool, handle));
        handle
    }

    fn record(&mut self, b: &BlockRecord) -> millpond_block_record {
        millpond_block_record {
            struct_size: size_of::<millpond_block_record>(),
            ptr: to_ptr(b.base),
            size_bytes: b.size as usize,
            requested_bytes: b.requested as usize,
            stream: to_ptr(b.stream.unwrap_or(0)).cast(),
            pool: b.pool.map_or(null_mut(), |p| self.pool(p)),
            segment: to_ptr(b.segment.unwrap_or(0)),
            state: b.state as u32,
            tag: b.tag.into(),
        }
    }
}

/// Calls `callback` for each block of the device, or of one of its pools (`pool` not NULL), that is in one of `states`
/// (MILLPOND_BLOCK_* bits), sorted by address, until it returns false. All blocks are reported as of the same moment:
/// nobody can allocate or free on the device while they are collected, which takes some 25 ms for a million blocks
/// (docs/seeing.md); no device is called. `callback` runs after that, with no lock held, and may call Millpond; a block
/// may have been freed by then. MILLPOND_BLOCK_WAITING is as of the last check of what the block waits for; reading the
/// statistics checks.
///
/// Errors: INVALID_ARGUMENT, also if `callback` is NULL or the pool is one of another device; SYSTEM if it threw, which
/// ends the walk; OUT_OF_MEMORY if the host has no memory for the list; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_walk_blocks(
    device: *const millpond_device,
    pool: *const millpond_pool,
    states: u32,
    callback: millpond_walk_callback,
    user_data: *mut c_void,
) -> C_Status {
    run(|| {
        let Some(call) = callback else { fail!(Code::InvalidArgument, "callback is NULL") };
        let mut walk = Walk::new(device, pool, states)?;
        for b in std::mem::take(&mut walk.blocks) {
            let record = walk.record(&b);
            // SAFETY: the caller gave a function for exactly this call with this pointer.
            if !answered(|| unsafe { call(user_data, &record) })? {
                break;
            }
        }
        Ok(())
    })
}

/// Writes the same blocks to the array `records`: the first `capacity` of them, and to `out_count` how many there are
/// in all. `record_size` is sizeof(millpond_block_record). `records` may be NULL if `capacity` is 0.
///
/// Errors: INVALID_ARGUMENT, also for a `record_size` that no version of this struct has; OUT_OF_MEMORY if the host has
/// no memory for the list; NOT_INITIALIZED. On an error nothing is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_list_blocks(
    device: *const millpond_device,
    pool: *const millpond_pool,
    states: u32,
    records: *mut millpond_block_record,
    record_size: usize,
    capacity: usize,
    out_count: *mut usize,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_count, "out_count") }?;
        let names = RecordNames("records", "record_size", "millpond_block_record");
        // SAFETY: as above.
        let records = unsafe { OutRecords::new(records, record_size, capacity, &names) }?;
        let mut walk = Walk::new(device, pool, states)?;
        let blocks = std::mem::take(&mut walk.blocks);
        records.set(blocks.iter().map(|b| walk.record(b)));
        out.set(blocks.len());
        Ok(())
    })
}
