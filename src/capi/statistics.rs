//! The statistics in full: as structs, by name, and as text.

use crate::base::error::{Code, Result};
use crate::base::room::{CALL_BYTES, check_room};
use crate::capi::guard::{Out, OutRecords, OutStruct, RecordNames, run, run_roomy, text};
use crate::capi::handles;
use crate::capi::types::{millpond_device, millpond_pool};
use crate::fail;
use crate::paddle::abi::{C_Status, C_Stream};
use crate::runtime::{HostMemoryStats, MemoryStats, StatsFormat, stats_text_of_all};
use std::ffi::{CString, c_char};
use std::mem::offset_of;
use std::ptr::null;
use std::sync::OnceLock;

/// `millpond_device_write_stats`: one JSON object.
pub const MILLPOND_STATS_JSON: u32 = 1;
/// The same: the text format of Prometheus, 0.0.4.
pub const MILLPOND_STATS_PROMETHEUS: u32 = 2;
/// May be added to either: what each stream has, too, with the price of `millpond_device_list_stream_stats`.
pub const MILLPOND_STATS_STREAMS: u32 = 256;

/// One quantity over time. As long as what is accumulated was not reset, `allocated - freed` is `current`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct millpond_flow {
    /// Its value now.
    pub current: u64,
    /// The highest value since the start or the last reset of the peaks.
    pub peak: u64,
    /// All that was ever added, since the start or the last reset of what is accumulated.
    pub allocated: u64,
    /// All that was ever taken away, since then.
    pub freed: u64,
}

/// A quantity of all memory, and of each class of it. The classes are Millpond's: `small_pool` is what lies in chunks
/// (granules of 2 MiB for blocks of up to 60 KiB, on devices whose sizes allow them), `large_pool` the rest.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct millpond_split {
    /// Of both.
    pub all: millpond_flow,
    /// Of blocks that lie in granules or segments themselves.
    pub large_pool: millpond_flow,
    /// Of blocks that lie in chunks.
    pub small_pool: millpond_flow,
}

/// The statistics of a device or of one of its pools, by PyTorch's names; docs/seeing.md has a table. What the heaps
/// count (`allocation`, `active`, `allocated_bytes`, `active_bytes`, `requested_bytes`) is exact, its peaks too, and of one
/// moment; `all` is the sum of its classes. What says how free memory lies is read heap by heap, a little later.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_memory_stats {
    /// sizeof(millpond_memory_stats)
    pub struct_size: usize,
    /// Live blocks.
    pub allocation: millpond_split,
    /// Pieces of memory held from the device: granules of 2 MiB where it maps; else segments, which are all of the
    /// `large_pool`.
    pub segment: millpond_split,
    /// Blocks that are live, or freed and still wait for a stream.
    pub active: millpond_split,
    /// Free pieces that cannot go back to the device, since they share a granule (where it maps) or a segment with what
    /// is in use. Counted at each reading: `peak`, `allocated` and `freed` are what the readings have seen.
    pub inactive_split: millpond_split,
    /// Bytes in live blocks after rounding.
    pub allocated_bytes: millpond_split,
    /// Bytes taken from the device. A granule that becomes a chunk, or stops being one, is freed of one class and
    /// allocated of the other.
    pub reserved_bytes: millpond_split,
    /// `allocated_bytes`, and bytes that are freed and still wait for a stream.
    pub active_bytes: millpond_split,
    /// Bytes of the pieces of `inactive_split`, read as these are; of the `small_pool` with what rounding to units costs.
    pub inactive_split_bytes: millpond_split,
    /// Bytes of the blocks of `active` as they were asked for.
    pub requested_bytes: millpond_split,
    /// Live blocks of at least `max_split_size` bytes, which stay whole when they are freed.
    pub oversize_allocations: millpond_flow,
    /// Segments of at least `max_split_size` bytes; none where the device maps.
    pub oversize_segments: millpond_flow,
    /// Bytes of memory that sleeps: given back to the device until its pool wakes.
    pub sleeping_bytes: millpond_flow,
    /// How often the device or a limit refused memory, and it was sought elsewhere.
    pub num_alloc_retries: u64,
    /// Requests that failed for lack of memory, a limit included.
    pub num_ooms: u64,
    /// How often the device was not asked for memory, since it had too little (`throw_on_cudamalloc_oom`); of the whole
    /// device, as the next three.
    pub num_oom_rejections: u64,
    /// Waits of the allocator for all streams of the device.
    pub num_sync_all_streams: u64,
    /// Calls to the device that have brought memory, or shown it.
    pub num_device_alloc: u64,
    /// Calls to the device that have given memory back, or hidden it.
    pub num_device_free: u64,
    /// Blocks of at least so many bytes stay whole when they are freed; UINT64_MAX: none do.
    pub max_split_size: u64,
    /// The limit of `reserved_bytes`; 0: none.
    pub limit_bytes: u64,
    /// Bytes that are reserved and free for the next request of some size.
    pub free_bytes: u64,
    /// Those that could go back to the device: free granules, or segments of which nothing is in use. Of a pool: with its
    /// own cache, so that a segment, or a large handle, of which several pools have free parts counts for none of them.
    /// On segments, and while granules are tied in large handles, small blocks that are freed count as in use until a
    /// search merges them: this and the next two are lower bounds there, `inactive_split` an upper one.
    pub releasable_bytes: u64,
    /// The largest request that can be served from what is reserved. Where the device maps, free granules are shown
    /// side by side for it, wherever they are. What lies beside live blocks in a granule, or in a segment, serves
    /// the stream that has them, so this and the next are what one stream could have, and others perhaps less.
    pub largest_cached_bytes: u64,
    /// The largest request that can be served with what the device says it has beside that, as far as the limits let it
    /// be taken. Nothing is taken to find out, and others may be faster. Large handles move between pools as wholes, so
    /// where a pool's own limit decides, somewhat more than this may be served.
    pub largest_free_bytes: u64,
    /// The part of `free_bytes` that no single request could have of what is reserved, in millionths: 0 where all of it could
    /// be one block.
    pub fragmentation_ppm: u64,
}

/// How long calls took, in microseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct millpond_times {
    /// All together.
    pub total: u64,
    /// The longest.
    pub max: u64,
    /// The shortest.
    pub min: u64,
    /// How many there were.
    pub count: u64,
    /// The mean.
    pub avg: u64,
}

/// The statistics of a device's pinned host memory, by PyTorch's names, all of one moment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_host_memory_stats {
    /// sizeof(millpond_host_memory_stats)
    pub struct_size: usize,
    /// Pieces of memory held from the device: blocks of their own, and slabs in which small blocks lie.
    pub allocations: millpond_flow,
    /// Bytes of these.
    pub allocated_bytes: millpond_flow,
    /// Blocks in use: live, or freed and still waiting for streams.
    pub active_requests: millpond_flow,
    /// Bytes of these after rounding.
    pub active_bytes: millpond_flow,
    /// Calls to the device for memory that gave some.
    pub host_alloc_time: millpond_times,
    /// Calls that gave memory back.
    pub host_free_time: millpond_times,
    /// How often the device gave memory.
    pub num_host_alloc: u64,
    /// How often it got some back.
    pub num_host_free: u64,
    /// Bytes that are freed and can be used again.
    pub cached_bytes: u64,
    /// Bytes that are freed and still wait for a stream.
    pub pending_bytes: u64,
}

/// What one stream has of a device's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_stream_stats {
    /// sizeof(millpond_stream_stats), or as much of it as was written.
    pub struct_size: usize,
    /// The stream; NULL for the default stream, and where `has_stream` is 0.
    pub stream: C_Stream,
    /// 0: blocks that every stream may use, and what streams have left that have ended.
    pub has_stream: u32,
    /// Live blocks.
    pub block_count: u64,
    /// Their bytes as they were asked for.
    pub requested_bytes: u64,
    /// Their bytes after rounding.
    pub allocated_bytes: u64,
    /// Blocks that are freed and still wait.
    pub waiting_count: u64,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// Free pieces that serve its requests first.
    pub free_count: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// All blocks that were ever allocated from what it has: less `block_count` they are those that were freed. 0 without
    /// pooling.
    pub total_count: u64,
    /// Their bytes after rounding.
    pub total_bytes: u64,
    /// The maximum of `block_count` since the peaks were reset, or since the stream began to use the pool. It is exact in a
    /// list of one pool; in a list of the device it is the sum over the pools that the stream uses, whose peaks need not
    /// lie at the same time. With `has_stream` 0 it is a sum likewise. 0 without pooling.
    pub peak_count: u64,
    /// The same of `requested_bytes`.
    pub peak_requested_bytes: u64,
    /// The same of `allocated_bytes`.
    pub peak_allocated_bytes: u64,
}

/// The names of a struct's numbers, in the order in which they lie there. They are made when one is first asked for.
struct Names {
    all: OnceLock<Vec<CString>>,
    values: fn() -> Vec<(String, u64)>,
}

impl Names {
    const fn of(values: fn() -> Vec<(String, u64)>) -> Names {
        Names { all: OnceLock::new(), values }
    }

    /// `OutOfMemory` if the host has no room for them.
    fn all(&self) -> Result<&[CString]> {
        if self.all.get().is_none() {
            check_room(CALL_BYTES)?;
        }
        let make = || (self.values)().into_iter().filter_map(|(name, _)| CString::new(name).ok()).collect();
        Ok(self.all.get_or_init(make))
    }
}

static MEMORY: Names = Names::of(|| MemoryStats::default().values());
static HOST: Names = Names::of(|| HostMemoryStats::default().values());

/// Where the first number lies; all that come after it lie side by side.
const MEMORY_AT: usize = offset_of!(millpond_memory_stats, allocation);
const HOST_AT: usize = offset_of!(millpond_host_memory_stats, allocations);

/// Looks a number up by its name.
///
/// # Safety
/// `stats` must be readable for as many bytes as its first field says, if it is not NULL and is aligned; `name` must be
/// NULL or a NUL-terminated string; `out_value` must be valid for a write, if it is not NULL and is aligned.
unsafe fn find<T>(
    all: &Names,
    at: usize,
    stats: *const T,
    name: *const c_char,
    out_value: *mut u64,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let wanted = unsafe { text(name, "name") }?;
    // SAFETY: as above.
    let out = unsafe { Out::new(out_value, "out_value") }?;
    if stats.is_null() || !stats.is_aligned() {
        fail!(Code::InvalidArgument, "stats is NULL, or not aligned");
    }
    let Some(n) = all.all()?.iter().position(|n| n.to_str() == Ok(wanted)) else {
        fail!(Code::InvalidArgument, "there is no statistic {wanted:?}");
    };
    // SAFETY: as above; `struct_size` comes first.
    let size = unsafe { stats.cast::<usize>().read() };
    let at = at + n * size_of::<u64>();
    if size < at + size_of::<u64>() {
        fail!(Code::OutOfRange, "{wanted} lies beyond the {size} bytes of stats->struct_size");
    }
    // SAFETY: the struct is that large, and all behind `struct_size` are aligned numbers of 64 bits.
    out.set(unsafe { stats.cast::<u8>().add(at).cast::<u64>().read() });
    Ok(())
}

fn name_at(all: &Names, index: usize) -> *const c_char {
    all.all().ok().and_then(|all| all.get(index)).map_or(null(), |n| n.as_ptr())
}

/// The statistics of all pools of the device together. The caller sets `inout_stats->struct_size`; as much as fits is
/// written. The device is asked how much it has. Other threads' allocations go on, but for the moment in which the sums
/// are taken; requests that need new memory from the device or from other streams wait until it is read
/// (docs/seeing.md).
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED; OUT_OF_MEMORY if the host has no memory for the lists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get_memory_stats(
    device: *const millpond_device,
    inout_stats: *mut millpond_memory_stats,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { OutStruct::new(inout_stats, "inout_stats") }?;
        out.set(handles::device(device)?.memory().statistics().full(None)?.into());
        Ok(())
    })
}

/// The statistics of the pool, as `millpond_device_get_memory_stats`.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED; OUT_OF_MEMORY if the host has no memory for the lists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_get_memory_stats(
    pool: *const millpond_pool,
    inout_stats: *mut millpond_memory_stats,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { OutStruct::new(inout_stats, "inout_stats") }?;
        let (device, id) = handles::pool(pool)?;
        out.set(device.memory().statistics().full(Some(id))?.into());
        Ok(())
    })
}

/// From now on `millpond_device_get_memory_stats` tells `allocated`, `freed` and the `num_` counters as if they began
/// now. Peaks stay (`millpond_device_reset_peaks`), and so do the pools' counters and the totals of `millpond_stats`.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_reset_accumulated(device: *mut millpond_device) -> C_Status {
    run(|| handles::device(device)?.memory().statistics().reset_accumulated(None))
}

/// The same for `millpond_pool_get_memory_stats` of the pool.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_reset_accumulated(pool: *mut millpond_pool) -> C_Status {
    run(|| {
        let (device, id) = handles::pool(pool)?;
        device.memory().statistics().reset_accumulated(Some(id))
    })
}

/// A number of `stats` by its name, such as "allocated_bytes.all.peak" or "num_ooms": `torch.cuda.memory_stats()` has the
/// same names, and `millpond_memory_stats_name` lists them.
///
/// Errors: INVALID_ARGUMENT, also for a name that there is not; OUT_OF_RANGE for one that lies beyond
/// `stats->struct_size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_stats_find(
    stats: *const millpond_memory_stats,
    name: *const c_char,
    out_value: *mut u64,
) -> C_Status {
    // SAFETY: C's promise, as the header states it.
    run(|| unsafe { find(&MEMORY, MEMORY_AT, stats, name, out_value) })
}

/// The names of all numbers of `millpond_memory_stats`, in the order in which they lie there; NULL past the last one,
/// and where the host has no memory to make the list, which is made once. Static: valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_memory_stats_name(index: usize) -> *const c_char {
    name_at(&MEMORY, index)
}

/// The statistics of the device's pinned host memory. The caller sets `inout_stats->struct_size`; as much as fits is
/// written.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get_host_memory_stats(
    device: *const millpond_device,
    inout_stats: *mut millpond_host_memory_stats,
) -> C_Status {
    run(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { OutStruct::new(inout_stats, "inout_stats") }?;
        out.set(handles::device(device)?.host_memory().full_stats()?.into());
        Ok(())
    })
}

/// From now on `millpond_device_get_host_memory_stats` tells `allocated`, `freed`, the times and the `num_` counters as if
/// they began now.
///
/// Errors: INVALID_ARGUMENT, NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_reset_host_accumulated(device: *mut millpond_device) -> C_Status {
    run(|| handles::device(device)?.host_memory().reset_accumulated())
}

/// A number of `stats` by its name, such as "active_bytes.peak", as `torch.cuda.host_memory_stats()` names them.
///
/// Errors: as `millpond_memory_stats_find`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_host_memory_stats_find(
    stats: *const millpond_host_memory_stats,
    name: *const c_char,
    out_value: *mut u64,
) -> C_Status {
    // SAFETY: C's promise, as the header states it.
    run(|| unsafe { find(&HOST, HOST_AT, stats, name, out_value) })
}

/// The names of all numbers of `millpond_host_memory_stats`; NULL as for
/// `millpond_memory_stats_name`. Static.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_host_memory_stats_name(index: usize) -> *const c_char {
    name_at(&HOST, index)
}

/// Writes what each stream has of the device, or of one of its pools (`pool` not NULL), into an array of the caller's, the
/// first `capacity` of them by stream, and their number, also of those that had no room, to `out_count`. What is live and
/// what waits is of one moment; how much is free is read before. `record_size` is sizeof(millpond_stream_stats).
///
/// Errors: INVALID_ARGUMENT, also for a `record_size` that is no size of this struct and a pool of another device;
/// OUT_OF_MEMORY for the list; NOT_INITIALIZED. After an error nothing was written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_list_stream_stats(
    device: *const millpond_device,
    pool: *const millpond_pool,
    records: *mut millpond_stream_stats,
    record_size: usize,
    capacity: usize,
    out_count: *mut usize,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_count, "out_count") }?;
        let names = RecordNames("records", "record_size", "millpond_stream_stats");
        // SAFETY: as above.
        let records = unsafe { OutRecords::new(records, record_size, capacity, &names) }?;
        let device = handles::device(device)?;
        let only = handles::pool_on(device, pool)?;
        let all = device.memory().statistics().by_stream(only)?;
        records.set(all.iter().map(millpond_stream_stats::from));
        out.set(all.len());
        Ok(())
    })
}

/// Writes the statistics of the device, of each of its pools and tags and of its pinned memory, and how long its
/// calls took if they were timed, as text with its NUL, in a MILLPOND_STATS_* format, into `buffer`, and how many
/// bytes it needs, the NUL among them, to `out_needed`. Where these are more than `capacity`, nothing is written but
/// that number. `buffer` may be NULL where `capacity` is 0. The text may be longer at the next call.
///
/// Errors: INVALID_ARGUMENT, also for another format; NOT_INITIALIZED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_write_stats(
    device: *const millpond_device,
    format: u32,
    buffer: *mut c_char,
    capacity: usize,
    out_needed: *mut usize,
) -> C_Status {
    run_roomy(|| {
        let written = |format, streams| {
            let device = handles::device(device)?;
            device.stats_text(format, streams, |pool| device.memory().pools().name(pool))
        };
        // SAFETY: C's promise, as the header states it.
        unsafe { write_text(format, written, buffer, capacity, out_needed) }
    })
}

/// The same for all devices that are open, in one text: as a page for Prometheus on which each family of samples has its
/// head once, as JSON an object with `version` and a list of `devices`, each as `millpond_device_write_stats` writes it. They
/// are read one after the other; a device that ends meanwhile is left out. No device is opened for it.
///
/// Errors: INVALID_ARGUMENT, also for another format.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_write_stats(
    format: u32,
    buffer: *mut c_char,
    capacity: usize,
    out_needed: *mut usize,
) -> C_Status {
    run_roomy(|| {
        let written = |format, streams| {
            stats_text_of_all(format, streams, |device, pool| device.memory().pools().name(pool))
        };
        // SAFETY: C's promise, as the header states it.
        unsafe { write_text(format, written, buffer, capacity, out_needed) }
    })
}

/// Writes a text of statistics in a format of C, whether with streams, into a buffer of C.
///
/// # Safety
/// `buffer` must be valid for writes of `capacity` bytes, and `out_needed` for one write, if they are not NULL.
unsafe fn write_text(
    format: u32,
    written: impl FnOnce(StatsFormat, bool) -> Result<String>,
    buffer: *mut c_char,
    capacity: usize,
    out_needed: *mut usize,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let out = unsafe { Out::new(out_needed, "out_needed") }?;
    if capacity > 0 && buffer.is_null() {
        fail!(Code::InvalidArgument, "buffer is NULL");
    }
    let streams = format & MILLPOND_STATS_STREAMS != 0;
    let format = match format & !MILLPOND_STATS_STREAMS {
        MILLPOND_STATS_JSON => StatsFormat::Json,
        MILLPOND_STATS_PROMETHEUS => StatsFormat::Prometheus,
        other => fail!(Code::InvalidArgument, "{other} is not a MILLPOND_STATS_* format"),
    };
    let text = written(format, streams)?;
    if text.len() < capacity {
        // SAFETY: the text and its NUL fit into the caller's buffer.
        unsafe {
            let at = buffer.cast::<u8>();
            std::ptr::copy_nonoverlapping(text.as_ptr(), at, text.len());
            at.add(text.len()).write(0);
        }
    }
    out.set(text.len() + 1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `n` for the `n`-th number of a struct.
    fn numbered(count: usize) -> Vec<u64> {
        (0..count as u64).collect()
    }

    #[test]
    fn names_are_in_the_order_of_the_struct() {
        let size = size_of::<millpond_memory_stats>();
        assert_eq!(MEMORY.all().unwrap().len() * 8 + MEMORY_AT, size);
        assert_eq!(HOST.all().unwrap().len() * 8 + HOST_AT, size_of::<millpond_host_memory_stats>());
        let mut words = vec![size as u64];
        words.extend(numbered(MEMORY.all().unwrap().len()));
        // SAFETY: as many numbers as the struct has, and every pattern is one of its values.
        let s = unsafe { words.as_ptr().cast::<millpond_memory_stats>().read() };
        let at =
            |name: &str| MEMORY.all().unwrap().iter().position(|n| n.to_str() == Ok(name)).unwrap() as u64;
        assert_eq!(s.allocation.all.current, at("allocation.all.current"));
        assert_eq!(s.active_bytes.small_pool.freed, at("active_bytes.small_pool.freed"));
        assert_eq!(s.requested_bytes.large_pool.peak, at("requested_bytes.large_pool.peak"));
        assert_eq!(s.oversize_segments.allocated, at("oversize_segments.allocated"));
        assert_eq!(s.num_ooms, at("num_ooms"));
        assert_eq!(s.largest_free_bytes, at("largest_free_bytes"));
    }
}
