//! Tags: names that say what memory is for.

use crate::base::error::{Code, Error, Result};
use crate::capi::guard::{Out, OutRecords, RecordNames, Versioned, run, run_entering, run_roomy, text};
use crate::capi::handles;
use crate::capi::types::{millpond_counter, millpond_device};
use crate::paddle::abi::C_Status;
use crate::runtime::{self, DeviceTagStats, Tag};
use std::ffi::c_char;

/// The statistics of one tag on one device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_tag_stats {
    /// sizeof(millpond_tag_stats), or as much of it as was written.
    pub struct_size: usize,
    /// Its name, which is never freed.
    pub name: *const c_char,
    /// Its number.
    pub tag: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes in live blocks, as requested.
    pub requested_bytes: millpond_counter,
    /// Bytes in live blocks after rounding.
    pub allocated_bytes: millpond_counter,
    /// Live blocks.
    pub blocks: millpond_counter,
    /// Bytes in freed blocks that still wait, after rounding.
    pub waiting_bytes: u64,
    /// Bytes after rounding of live blocks, and of freed ones that wait.
    pub active_bytes: millpond_counter,
    /// Live blocks, and freed ones that wait.
    pub active_blocks: millpond_counter,
    /// What of `allocated_bytes` is in the `small_pool` of `millpond_memory_stats`; the rest is in the `large_pool`.
    pub small_allocated_bytes: millpond_counter,
    /// What of `blocks` is.
    pub small_blocks: millpond_counter,
    /// Bytes in live blocks of pinned memory, as requested.
    pub host_bytes: millpond_counter,
    /// Live blocks of pinned memory.
    pub host_blocks: millpond_counter,
    /// Bytes in live unified memory, as requested.
    pub unified_bytes: millpond_counter,
    /// Live blocks of unified memory.
    pub unified_blocks: millpond_counter,
}

// SAFETY: `repr(C)`, integers and a pointer only, `struct_size` first.
unsafe impl Versioned for millpond_tag_stats {}

impl From<&DeviceTagStats> for millpond_tag_stats {
    fn from(t: &DeviceTagStats) -> Self {
        let DeviceTagStats { tag, memory, pinned, unified } = t;
        millpond_tag_stats {
            struct_size: size_of::<millpond_tag_stats>(),
            name: millpond_tag_get_name(tag.number().into()),
            tag: tag.number().into(),
            reserved: 0,
            requested_bytes: memory.requested.into(),
            allocated_bytes: memory.allocated.into(),
            blocks: memory.blocks.into(),
            waiting_bytes: memory.waiting,
            active_bytes: memory.active.into(),
            active_blocks: memory.active_blocks.into(),
            small_allocated_bytes: memory.small_allocated.into(),
            small_blocks: memory.small_blocks.into(),
            host_bytes: pinned.requested.into(),
            host_blocks: pinned.blocks.into(),
            unified_bytes: unified.requested.into(),
            unified_blocks: unified.blocks.into(),
        }
    }
}

/// Gives the tag `name` to all blocks that this thread allocates from now on, on any device and from any pool, until
/// `millpond_tag_pop`. Tags nest, and the innermost counts; tags still in force when a thread ends, end with it. A name
/// has 1 to 31 bytes of UTF-8, and keeps its number for the rest of the process. Pinned and unified memory gets it, too,
/// and is counted apart (`millpond_device_list_tags`).
///
/// While any thread has a tag in force, allocations on all threads take a slower path; a program without tags pays
/// nothing.
///
/// Errors: INVALID_ARGUMENT; SYSTEM for more than 65535 names; NOT_PERMITTED on a thread that is ending.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_tag_push(name: *const c_char) -> C_Status {
    run_entering(|| {
        // SAFETY: C's promise, as the header states it.
        Tag::new(unsafe { text(name, "name") }?)?.push()
    })
}

/// Ends the calling thread's innermost tag; the one around it is in force again. Blocks keep their tags.
///
/// Errors: NOT_PERMITTED if the thread has none.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_tag_pop() -> C_Status {
    run(runtime::pop_tag)
}

/// Gets the number of a tag, for `millpond_tag_push_number`: always the same for the same name, and never 0.
///
/// Errors: INVALID_ARGUMENT; SYSTEM for more than 65535 names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_tag_get_number(name: *const c_char, out_tag: *mut u32) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_tag, "out_tag") }?;
        // SAFETY: as above.
        out.set(Tag::new(unsafe { text(name, "name") }?)?.number().into());
        Ok(())
    })
}

/// `millpond_tag_push` by number, which saves the lookup of the name.
///
/// Errors: INVALID_ARGUMENT for a number that no tag has; NOT_PERMITTED on a thread that is ending.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_tag_push_number(tag: u32) -> C_Status {
    run_entering(|| of_number(tag)?.push())
}

fn of_number(tag: u32) -> Result<Tag> {
    let none = || Error::new(Code::InvalidArgument, "no tag has this number");
    u16::try_from(tag).ok().and_then(Tag::of_number).ok_or_else(none)
}

/// Returns the name of a tag; "" for 0, for a number that no tag has, and in a forked child. Never NULL, and never freed.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_tag_get_name(tag: u32) -> *const c_char {
    let name = u16::try_from(tag).ok().and_then(runtime::Tag::of_number).map(runtime::Tag::c_name);
    name.unwrap_or(c"").as_ptr()
}

/// Writes the statistics of each tag that was ever used on the device to the array `stats`, sorted by number: the first
/// `capacity` of them, and to `out_count` how many there are. `stats_size` is sizeof(millpond_tag_stats). `stats` may
/// be NULL if `capacity` is 0. Blocks without a tag make up the rest of the device's account.
///
/// Errors: INVALID_ARGUMENT, also for a `stats_size` that no version of this struct has; NOT_INITIALIZED. On an error
/// nothing is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_list_tags(
    device: *const millpond_device,
    stats: *mut millpond_tag_stats,
    stats_size: usize,
    capacity: usize,
    out_count: *mut usize,
) -> C_Status {
    run_roomy(|| {
        // SAFETY: C's promise, as the header states it.
        let out = unsafe { Out::new(out_count, "out_count") }?;
        let names = RecordNames("stats", "stats_size", "millpond_tag_stats");
        // SAFETY: as above.
        let stats = unsafe { OutRecords::new(stats, stats_size, capacity, &names) }?;
        let all = DeviceTagStats::all(handles::device(device)?)?;
        stats.set(all.iter().map(millpond_tag_stats::from));
        out.set(all.len());
        Ok(())
    })
}
