//! Two addresses of one memory where the documentation allows only one: in one operation, and in a grid that was on the
//! device before an operation that wrote there through another address was over.
//!
//! "Writes to one proxy of the allocation are considered inconsistent and incoherent with any other proxy of the same memory
//! until the writing device operation completes", and grids that were present before it are so for longer (CUDA programming
//! guide, 4.16.5.3, virtual aliasing support). Memory is compared in lines of the caches, 128 bytes: a line that is used at two
//! addresses at once counts, even if the bytes differ. What is found is counted and logged; nothing fails.
//!
//! Grids are named reads and writes (`fakecuda_kernel`), copies and memsets are what they are.

use std::ffi::c_void;
use std::rc::Rc;

use crate::code::*;
use crate::exec::{self, Work};
use crate::space::{self, Side};
use crate::sync::{Guard, lock};
use crate::world::{Answer, World};

/// Begins while the kernel before it in its stream still runs (programmatic dependent launch).
const EARLY: u32 = 1;
/// Stays on the device until `fakecuda_kernel_end`, and reads and writes only then.
const STAYS: u32 = 2;

/// [bytes] of a line of the caches.
const LINE: u64 = 128;

/// A range of addresses: the first one, and bytes.
pub(crate) type Span = [u64; 2];
type Kernel = unsafe extern "C" fn(*mut c_void);

/// A kernel, as far as memory is concerned.
#[derive(Clone)]
pub(crate) struct Grid {
    device: i32,
    reads: Rc<[Span]>, // shared under the one lock only
    writes: Rc<[Span]>,
    flags: u32,
    call: Option<(Kernel, *mut c_void)>, // a test's, run with it
}

impl Grid {
    pub(crate) fn is_early(&self) -> bool {
        self.flags & EARLY != 0
    }

    /// Whether it runs a function of the program's.
    pub(crate) fn has_call(&self) -> bool {
        self.call.is_some()
    }

    pub(crate) fn stays(&self) -> bool {
        self.flags & STAYS != 0
    }
}

/// Lines of physical memory, from an offset in their block to another, and the address that stands for the block's first byte:
/// two such addresses are two proxies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Way {
    block: u64,
    start: u64,
    end: u64,
    first: u64,
}

/// A grid on the device, with what others have written since it came.
pub(crate) struct Present {
    stream: u64,
    seq: u64,
    grid: Grid,
    written: Vec<Way>,
}

/// Through which addresses these ranges are seen, in order.
fn ways(world: &World, spans: &[Span]) -> Vec<Way> {
    let mut all = Vec::new();
    for &[start, bytes] in spans {
        let (mut at, end) = (start, start.saturating_add(bytes));
        while at < end {
            let Some((from, mapping)) = space::find(world, at).and_then(|range| range.mapping(at)) else {
                break;
            };
            let stop = end.min(from + mapping.size);
            let offset = |address: u64| mapping.offset + (address - from);
            all.push(Way {
                block: mapping.block,
                start: offset(at) & !(LINE - 1),
                end: offset(stop).next_multiple_of(LINE),
                first: from.wrapping_sub(mapping.offset),
            });
            at = stop;
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// Memory that both use, at different addresses: where it is in its block, and the two.
fn clash(one: &[Way], other: &[Way]) -> Option<(u64, Way, Way)> {
    one.iter().find_map(|a| {
        let from = other.partition_point(|b| b.block < a.block);
        let same = other[from..].iter().take_while(|b| b.block == a.block && b.start < a.end);
        let found = same.into_iter().find(|b| b.end > a.start && b.first != a.first)?;
        Some((a.start.max(found.start), *a, *found))
    })
}

fn report(world: &mut World, what: &str, (offset, one, other): (u64, Way, Way)) {
    let (one, other) = (one.first.wrapping_add(offset), other.first.wrapping_add(offset));
    world.control.aliases += 1;
    world.control.log_line(format!("alias: {what}: one memory at {one:#x} and at {other:#x}"));
}

/// An operation begins that reads and writes there; `beside` is what grids that still run have written. Returns what it
/// writes.
fn operation(
    world: &mut World,
    what: &str,
    reads: &[Span],
    writes: &[Span],
    beside: &[Vec<Way>],
) -> Vec<Way> {
    let (read, written) = (ways(world, reads), ways(world, writes));
    if let Some(found) = clash(&written, &read).or_else(|| clash(&written, &written)) {
        report(world, &format!("one {what} uses two addresses"), found);
    }
    for earlier in beside {
        if let Some(found) = clash(earlier, &read).or_else(|| clash(earlier, &written)) {
            report(world, &format!("a {what} begins before the grid that has written is over"), found);
        }
    }
    for present in &mut world.present {
        present.written.extend_from_slice(&written);
    }
    written
}

/// A copy or a memset runs.
pub(crate) fn plain(world: &mut World, what: &str, read: Option<Span>, written: Span) {
    operation(world, what, read.as_slice(), &[written], &[]);
}

/// Whether a grid finds memory wherever it looks, with the access that it needs.
fn check(world: &World, grid: &Grid) -> Answer {
    for (list, write) in [(&grid.reads, false), (&grid.writes, true)] {
        for &[at, bytes] in list.iter() {
            space::pieces(world, at, bytes, Side::Device(grid.device), write)?;
        }
    }
    OK
}

/// A grid runs, beside those that have written this and may still run. Returns what it writes.
pub(crate) fn run(world: &mut Guard, grid: &Grid, beside: &[Vec<Way>]) -> Result<Vec<Way>, u32> {
    check(world, grid)?;
    let written = operation(world, "kernel", &grid.reads, &grid.writes, beside);
    if let Some((function, data)) = grid.call {
        // SAFETY: the C caller of fakecuda_kernel promises that it may be called with this data.
        world.unlocked(|| unsafe { function(data) });
    }
    Ok(written)
}

/// A grid that stays comes to the device.
pub(crate) fn arrive(world: &mut World, stream: u64, seq: u64, grid: &Grid) {
    world.present.push(Present { stream, seq, grid: grid.clone(), written: Vec::new() });
}

/// It reads and writes, and is over.
fn leave(world: &mut Guard, stream: u64, seq: u64) -> Answer {
    let is_it = |present: &Present| (present.stream, present.seq) == (stream, seq);
    let index = world.present.iter().position(is_it).ok_or(INVALID_HANDLE)?;
    let Present { grid, mut written, .. } = world.present.swap_remove(index);
    written.sort_unstable();
    written.dedup();
    let result = run(world, &grid, &[written]);
    exec::ended(world, stream, seq, result.is_err());
    OK
}

/// Forgets all grids that stay: their streams and numbers.
pub(crate) fn gone(world: &mut World) -> Vec<(u64, u64)> {
    std::mem::take(&mut world.present).into_iter().map(|present| (present.stream, present.seq)).collect()
}

fn spans(from: *const Span, count: usize) -> Result<Rc<[Span]>, u32> {
    (0..count).map(|index| crate::gate::get(from.wrapping_add(index))).collect()
}

/// Queues a grid, or captures it. 0, or the code of the failure.
///
/// # Safety
/// The lists have as many pairs as told, `kernel` is null or may be called with `data` from any thread until it has been, and
/// `number` can be written or is null.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "a C function for tests, declared in fakecuda.h")]
pub unsafe extern "C" fn fakecuda_kernel(
    stream: u64,
    reads: *const Span,
    read_count: usize,
    writes: *const Span,
    write_count: usize,
    flags: u32,
    kernel: Option<Kernel>,
    data: *mut c_void,
    number: *mut u64,
) -> u32 {
    let mut world = lock();
    let mut launch = || {
        let (reads, writes) = (spans(reads, read_count)?, spans(writes, write_count)?);
        if flags > STAYS {
            return Err(INVALID_VALUE);
        }
        let entry = world.streams.get(&stream).filter(|entry| !entry.destroyed).ok_or(INVALID_HANDLE)?;
        if flags & STAYS != 0 && entry.capture.is_some() {
            return Err(NOT_SUPPORTED);
        }
        let grid = Grid { device: entry.device, reads, writes, flags, call: kernel.map(|f| (f, data)) };
        let seq = crate::stream::submit(&mut world, stream, Work::Grid(grid))?;
        crate::gate::put_optional(number, seq.unwrap_or(0));
        OK
    };
    launch().err().unwrap_or(0)
}

/// 1: this kernel is on the device, and stays.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_kernel_stays(stream: u64, number: u64) -> i32 {
    lock().present.iter().any(|present| (present.stream, present.seq) == (stream, number)).into()
}

/// Lets a kernel that stays end, which has begun. 0, or CUDA_ERROR_INVALID_HANDLE: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_kernel_end(stream: u64, number: u64) -> u32 {
    leave(&mut lock(), stream, number).err().unwrap_or(0)
}

/// How often memory was used at two addresses where only one is allowed, since the last `fakecuda_reset`.
#[unsafe(no_mangle)]
pub extern "C" fn fakecuda_aliases() -> u64 {
    lock().control.aliases
}
