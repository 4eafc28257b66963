//! Advice on managed memory, and where it was last prefetched to: remembered for each page, and told again. Nothing moves
//! here, since all memory is the host's; a prefetch is only something in its stream.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::{CUdeviceptr, CUmem_advise, CUmem_range_attribute, CUmemLocation, CUstream};

use crate::code::*;
use crate::exec::Work;
use crate::gate::{exports, put};
use crate::mapping::{self, Location};
use crate::physical::PAGE;
use crate::space::{self, Kind};
use crate::world::{Answer, World};

const CPU: c_int = -1; // CU_DEVICE_CPU
const NOWHERE: c_int = -2; // CU_DEVICE_INVALID

/// What is known of one page.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Page {
    read_mostly: bool,
    preferred: c_int,
    accessed_by: BTreeSet<c_int>,
    prefetched: c_int, // at once, not in the stream's order
}

impl Page {
    const NEW: Page =
        Page { read_mostly: false, preferred: NOWHERE, accessed_by: BTreeSet::new(), prefetched: NOWHERE };
}

/// The range of managed memory that has all of these addresses: where it starts, and its pages among them, numbered from
/// its start. "The start address and end address of the memory range will be rounded down and rounded up respectively to
/// be aligned to CPU page size."
fn pages(world: &World, at: u64, size: u64) -> Result<(u64, std::ops::Range<u64>), u32> {
    let range = space::find(world, at).ok_or(INVALID_VALUE)?;
    let end = at.checked_add(size).ok_or(INVALID_VALUE)?;
    if size == 0 || range.kind != Kind::Managed || end > range.end() {
        return Err(INVALID_VALUE);
    }
    Ok((range.start, (at - range.start) / PAGE..(end - range.start).div_ceil(PAGE)))
}

fn change(world: &mut World, at: u64, size: u64, set: impl Fn(&mut Page)) -> Answer {
    let (start, numbers) = pages(world, at, size)?;
    let known = &mut world.ranges.get_mut(&start).ok_or(INVALID_VALUE)?.pages;
    numbers.for_each(|n| set(known.entry(n).or_insert(Page::NEW)));
    OK
}

fn prefetch(world: &mut crate::sync::Guard, at: u64, size: u64, place: c_int, stream: CUstream) -> Answer {
    let key = crate::stream::find(world, stream)?;
    pages(world, at, size)?;
    if place != CPU {
        world.device(place)?;
    }
    // The attribute is that of all devices here: the destination's, and that of the stream's device.
    if world.config.no_concurrent {
        return Err(INVALID_DEVICE);
    }
    // No kind of node of a graph does this.
    world.refuse_stream_in_capture(key)?;
    crate::stream::submit(world, key, Work::Nothing)?;
    change(world, at, size, |page| page.prefetched = place)
}

fn advise(world: &mut World, at: u64, size: u64, advice: u32, place: c_int) -> Answer {
    world.current()?;
    pages(world, at, size)?;
    // "The device argument is ignored" where data is mostly read, and where a preferred place is unset. A device that is
    // not ignored must have concurrent managed access.
    if matches!(advice, 3 | 5 | 6) && place != CPU {
        world.device(place)?;
        if world.config.no_concurrent {
            return Err(INVALID_DEVICE);
        }
    }
    world.refuse_unsafe_in_capture()?;
    match advice {
        1 | 2 => change(world, at, size, |page| page.read_mostly = advice == 1),
        3 => change(world, at, size, |page| page.preferred = place),
        4 => change(world, at, size, |page| page.preferred = NOWHERE),
        5 => change(world, at, size, |page| _ = page.accessed_by.insert(place)),
        6 => change(world, at, size, |page| _ = page.accessed_by.remove(&place)),
        _ => Err(INVALID_VALUE),
    }
}

/// What all pages of a range have alike; a number of four bytes, or none where they differ.
fn alike(world: &World, at: u64, size: u64, what: impl Fn(&Page) -> c_int) -> Result<Option<c_int>, u32> {
    let (start, numbers) = pages(world, at, size)?;
    let known = &world.ranges.get(&start).ok_or(INVALID_VALUE)?.pages;
    let mut all = numbers.map(|n| what(known.get(&n).unwrap_or(&Page::NEW)));
    let first = all.next();
    Ok(first.filter(|first| all.all(|other| other == *first)))
}

/// The host's NUMA nodes are all of the host here.
fn place_of(location: &CUmemLocation) -> Result<c_int, u32> {
    // SAFETY: the same layout (checked in `mapping.rs`), read as plain numbers.
    let location = unsafe { std::ptr::from_ref(location).cast::<Location>().read() };
    match location.kind {
        mapping::DEVICE if location.id >= 0 => Ok(location.id),
        mapping::DEVICE => Err(INVALID_DEVICE),
        2..=4 => Ok(CPU), // host, a NUMA node of it, the nearest one
        _ => Err(INVALID_VALUE),
    }
}

exports! {
    8000 Normal fn cuMemPrefetchAsync(at: CUdeviceptr, size: usize, device: c_int, stream: CUstream) |w| {
        prefetch(w, at, size as u64, device, stream)
    }

    12020 Normal fn cuMemPrefetchAsync_v2(
        at: CUdeviceptr,
        size: usize,
        location: CUmemLocation,
        flags: c_uint,
        stream: CUstream,
    ) |w| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        prefetch(w, at, size as u64, place_of(&location)?, stream)
    }

    8000 Normal fn cuMemAdvise(at: CUdeviceptr, size: usize, advice: u32 as CUmem_advise, device: c_int) |w| {
        advise(w, at, size as u64, advice, device)
    }

    12020 Normal fn cuMemAdvise_v2(
        at: CUdeviceptr,
        size: usize,
        advice: u32 as CUmem_advise,
        location: CUmemLocation,
    ) |w| {
        advise(w, at, size as u64, advice, place_of(&location)?)
    }

    8000 Normal fn cuMemRangeGetAttribute(
        data: *mut c_void,
        data_size: usize,
        which: u32 as CUmem_range_attribute,
        at: CUdeviceptr,
        size: usize,
    ) |w| {
        w.current()?;
        if which == 3 {
            // "dataSize must be a multiple of 4 and non-zero"; what is left over is CU_DEVICE_INVALID.
            if data_size == 0 || !data_size.is_multiple_of(4) {
                return Err(INVALID_VALUE);
            }
            for n in 0..data_size / 4 {
                let nth = |page: &Page| page.accessed_by.iter().nth(n).copied().unwrap_or(NOWHERE);
                let found = alike(w, at, size as u64, nth)?.unwrap_or(NOWHERE);
                put(data.cast::<c_int>().wrapping_add(n), found)?;
            }
            return OK;
        }
        if data_size != 4 {
            return Err(INVALID_VALUE);
        }
        let (found, mixed) = match which {
            1 => (alike(w, at, size as u64, |page| page.read_mostly.into())?, 0),
            2 => (alike(w, at, size as u64, |page| page.preferred)?, NOWHERE),
            4 => (alike(w, at, size as u64, |page| page.prefetched)?, NOWHERE),
            _ => return Err(INVALID_VALUE),
        };
        put(data.cast::<c_int>(), found.unwrap_or(mixed))
    }
}
