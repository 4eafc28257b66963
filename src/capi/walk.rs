//! Lists every block and every segment of a device, all at the same moment.

use crate::base::error::{Code, Result};
use crate::capi::guard::{Out, OutRecords, RecordNames, Versioned, answered, run_roomy};
use crate::capi::handles;
use crate::capi::pool::to_ptr;
use crate::capi::types::{
    MILLPOND_BLOCK_ANY, MILLPOND_BLOCK_FREE, MILLPOND_BLOCK_LIVE, MILLPOND_BLOCK_WAITING,
    millpond_block_record, millpond_device, millpond_pool, millpond_walk_callback,
};
use crate::fail;
use crate::paddle::abi::{C_Status, C_Stream};
use crate::runtime::{BlockRecord, BlockStates, DeviceState, Place, PoolId, SegmentRecord};
use std::ffi::c_void;
use std::ptr::null_mut;

/// Kind of a segment: memory taken from the device with one call, or the part of it that one stream has.
pub const MILLPOND_SEGMENT_KIND_WHOLE: u32 = 1;
/// Kind of a segment: granules of a device that maps, side by side, for blocks above 60 KiB.
pub const MILLPOND_SEGMENT_KIND_LARGE: u32 = 2;
/// Kind of a segment: the same, divided for smaller blocks.
pub const MILLPOND_SEGMENT_KIND_SMALL: u32 = 3;
/// Kind of a segment: a piece of a scattered block, at the addresses of the block.
pub const MILLPOND_SEGMENT_KIND_SCATTERED: u32 = 4;

/// One range of reserved memory, at the addresses at which it is used.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_segment_record {
    /// sizeof(millpond_segment_record), or as much of it as was written.
    pub struct_size: usize,
    /// First address.
    pub ptr: *mut c_void,
    /// Its length.
    pub size_bytes: usize,
    /// Where the memory has been from the start: `ptr`, but for a piece of a scattered block.
    pub home: *mut c_void,
    /// The stream that orders its reuse; NULL for the default stream, for all streams (`millpond_alloc`), and for one that
    /// has ended.
    pub stream: C_Stream,
    /// The pool to which it belongs; borrowed. NULL for memory of a pool that has ended.
    pub pool: *mut millpond_pool,
    /// A MILLPOND_SEGMENT_KIND_* number.
    pub kind: u32,
    /// 0.
    pub reserved: u32,
}

/// Called for each segment of `millpond_device_walk_segments`, with the pointer given there, on the thread of that call,
/// with no lock held. The record lives for the call. Returns whether to continue. If it throws, the walk ends with
/// MILLPOND_E_SYSTEM.
pub type millpond_segment_walk_callback = Option<
    unsafe extern "C-unwind" fn(user_data: *mut c_void, record: *const millpond_segment_record) -> bool,
>;

const _: () = {
    assert!(BlockStates::LIVE.bits() == MILLPOND_BLOCK_LIVE);
    assert!(BlockStates::WAITING.bits() == MILLPOND_BLOCK_WAITING);
    assert!(BlockStates::FREE.bits() == MILLPOND_BLOCK_FREE);
    assert!(BlockStates::all().bits() == MILLPOND_BLOCK_ANY);
};

// SAFETY: `repr(C)`, integers and pointers only, `struct_size` first.
unsafe impl Versioned for millpond_block_record {}
// SAFETY: as above.
unsafe impl Versioned for millpond_segment_record {}

/// How the blocks or segments of one call are reported.
struct Walk {
    device: &'static DeviceState,
    /// The only pool.
    only: Option<PoolId>,
    /// The handle that was made last, and its pool: most adjacent blocks belong to one pool.
    last: Option<(PoolId, *mut millpond_pool)>,
}

impl Walk {
    fn new(device: *const millpond_device, pool: *const millpond_pool) -> Result<Walk> {
        let device = handles::device(device)?;
        let only = handles::pool_on(device, pool)?;
        Ok(Walk { device, only, last: None })
    }

    fn blocks(&self, states: u32) -> Result<Vec<BlockRecord>> {
        let Some(states) = BlockStates::from_bits(states).filter(|s| !s.is_empty()) else {
            fail!(Code::InvalidArgument, "{states:#x} is not a set of MILLPOND_BLOCK_* bits");
        };
        self.device.memory().blocks(self.only, states)
    }

    fn segments(&self) -> Result<Vec<SegmentRecord>> {
        self.device.memory().statistics().segments(self.only)
    }

    fn segment(&mut self, s: &SegmentRecord) -> millpond_segment_record {
        millpond_segment_record {
            struct_size: size_of::<millpond_segment_record>(),
            ptr: to_ptr(s.base),
            size_bytes: s.size as usize,
            home: to_ptr(s.home),
            stream: to_ptr(s.stream.unwrap_or(0)).cast(),
            pool: s.pool.map_or(null_mut(), |p| self.pool(p)),
            kind: match s.place {
                Place::Segment => MILLPOND_SEGMENT_KIND_WHOLE,
                Place::Large => MILLPOND_SEGMENT_KIND_LARGE,
                Place::Small => MILLPOND_SEGMENT_KIND_SMALL,
                Place::Scattered => MILLPOND_SEGMENT_KIND_SCATTERED,
            },
            reserved: 0,
        }
    }

    /// Calls `call` with the record that `record` makes of each entry, until it returns false.
    fn tell<T, R>(
        mut self,
        entries: &[T],
        record: fn(&mut Walk, &T) -> R,
        mut call: impl FnMut(&R) -> bool,
    ) -> Result<()> {
        for entry in entries {
            let record = record(&mut self, entry);
            if !answered(|| call(&record))? {
                break;
            }
        }
        Ok(())
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

    fn block(&mut self, b: &BlockRecord) -> millpond_block_record {
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

/// Where a caller wants a list: its records, and how many there are in all.
struct List<R> {
    records: OutRecords<R>,
    count: Out<usize>,
}

impl<R: Versioned> List<R> {
    /// # Safety
    /// The promises of [`Out::new`] for `count`, and of [`OutRecords::new`] for the rest.
    unsafe fn new(
        records: *mut R,
        record_size: usize,
        capacity: usize,
        count: *mut usize,
        names: &RecordNames,
    ) -> Result<List<R>> {
        // SAFETY: promised by the caller.
        let count = unsafe { Out::new(count, "out_count") }?;
        // SAFETY: as above.
        let records = unsafe { OutRecords::new(records, record_size, capacity, names) }?;
        Ok(List { records, count })
    }

    /// Writes the record that `record` makes of each entry.
    fn write<T>(self, mut walk: Walk, entries: &[T], record: fn(&mut Walk, &T) -> R) {
        self.records.set(entries.iter().map(|entry| record(&mut walk, entry)));
        self.count.set(entries.len());
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
    run_roomy(|| {
        let Some(call) = callback else { fail!(Code::InvalidArgument, "callback is NULL") };
        let walk = Walk::new(device, pool)?;
        let blocks = walk.blocks(states)?;
        // SAFETY: the caller gave a function for exactly this call with this pointer.
        walk.tell(&blocks, Walk::block, |record| unsafe { call(user_data, record) })
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
    run_roomy(|| {
        let names = RecordNames("records", "record_size", "millpond_block_record");
        // SAFETY: C's promise, as the header states it.
        let list = unsafe { List::new(records, record_size, capacity, out_count, &names) }?;
        let walk = Walk::new(device, pool)?;
        let blocks = walk.blocks(states)?;
        list.write(walk, &blocks, Walk::block);
        Ok(())
    })
}

/// Calls `callback` for each range of reserved memory of the device, or of one of its pools (`pool` not NULL), sorted by
/// address, until it returns false: segments, or where the device maps granules that lie side by side, each of one stream
/// and one pool; and the pieces of scattered blocks, each at its place in the block, with the address where its memory has
/// been from the start. Memory is told once, where it is used. All of it is of one moment, and its sizes sum up to
/// `reserved_bytes` as that was then, but for what other threads were just moving. Costs what a snapshot costs
/// (docs/snapshots.md): nobody can allocate or free on the device while it is collected. `callback` runs after that, with
/// no lock held, and may call Millpond.
///
/// Errors: INVALID_ARGUMENT, also if `callback` is NULL or the pool is one of another device; SYSTEM if it threw, which
/// ends the walk; OUT_OF_MEMORY if the host has no memory for the list; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_walk_segments(
    device: *const millpond_device,
    pool: *const millpond_pool,
    callback: millpond_segment_walk_callback,
    user_data: *mut c_void,
) -> C_Status {
    run_roomy(|| {
        let Some(call) = callback else { fail!(Code::InvalidArgument, "callback is NULL") };
        let walk = Walk::new(device, pool)?;
        let segments = walk.segments()?;
        // SAFETY: the caller gave a function for exactly this call with this pointer.
        walk.tell(&segments, Walk::segment, |record| unsafe { call(user_data, record) })
    })
}

/// Writes the same segments to the array `records`: the first `capacity` of them, and to `out_count` how many there are in
/// all. `record_size` is sizeof(millpond_segment_record). `records` may be NULL if `capacity` is 0.
///
/// Errors: INVALID_ARGUMENT, also for a `record_size` that no version of this struct has; OUT_OF_MEMORY if the host has
/// no memory for the list; NOT_INITIALIZED. On an error nothing is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_list_segments(
    device: *const millpond_device,
    pool: *const millpond_pool,
    records: *mut millpond_segment_record,
    record_size: usize,
    capacity: usize,
    out_count: *mut usize,
) -> C_Status {
    run_roomy(|| {
        let names = RecordNames("records", "record_size", "millpond_segment_record");
        // SAFETY: C's promise, as the header states it.
        let list = unsafe { List::new(records, record_size, capacity, out_count, &names) }?;
        let walk = Walk::new(device, pool)?;
        let segments = walk.segments()?;
        list.write(walk, &segments, Walk::segment);
        Ok(())
    })
}
