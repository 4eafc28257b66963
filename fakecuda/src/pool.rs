//! Memory pools and stream-ordered allocation. A pool holds chunks of physical memory and cuts them; freed parts are
//! used again by the stream that freed them at once, by others when the free has run, or, if that is allowed and
//! nothing else is left, after a wait in the stream.
//!
//! Unused chunks above the release threshold go back to the device at every synchronisation, as documented.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::rc::Rc;

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemLocation, CUmemPool_attribute, CUmemPoolProps,
    CUmemoryPool, CUstream,
};

use crate::code::*;
use crate::exec::{self, Work};
use crate::gate::{exports, get, put};
use crate::graph::GraphMemory;
use crate::mapping::{AccessDesc, Location};
use crate::memory::place;
use crate::physical::{self, round_up};
use crate::space::{self, Kind, READ_WRITE};
use crate::sync::Guard;
use crate::world::{Answer, World};

const UNIT: u64 = 512; // [B] what allocations start at
const CHUNK: u64 = 32 << 20; // [B] the least that a pool takes, if the device has that much
const GRANULE: u64 = 2 << 20;

/// A part of a chunk.
struct Part {
    size: u64,
    state: State,
}

enum State {
    Used {
        asked: u64,
    },
    /// Freed in a stream: others must wait for it.
    Free {
        by: Option<(u64, u64)>,
    },
    /// Belongs to a graph; freed with it.
    Graph {
        asked: u64,
    },
}

struct Chunk {
    size: u64,
    parts: BTreeMap<u64, Part>, // by address; they fill the chunk
}

pub(crate) struct Pool {
    device: i32,
    is_default: bool,
    destroyed: bool, // no handle any more, but allocations
    chunks: BTreeMap<u64, Chunk>,
    access: BTreeMap<i32, u32>,
    reuse: [c_int; 3], // event dependencies, opportunistic, internal dependencies
    threshold: u64,    // [B] kept at synchronisations
    max_size: u64,     // [B] 0: no limit
    reserved: u64,
    reserved_high: u64,
    used: u64,
    used_high: u64,
}

fn new(device: i32, is_default: bool, max_size: u64) -> Pool {
    Pool {
        device,
        is_default,
        destroyed: false,
        chunks: BTreeMap::new(),
        access: BTreeMap::from([(device, READ_WRITE)]),
        reuse: [1; 3],
        threshold: 0,
        max_size,
        reserved: 0,
        reserved_high: 0,
        used: 0,
        used_high: 0,
    }
}

/// A device's default pool.
pub(crate) fn new_default(world: &mut World, device: i32) -> u64 {
    let handle = world.new_handle();
    world.pools.insert(handle, new(device, true, 0));
    handle
}

impl Chunk {
    fn is_unused(&self, world: &World) -> bool {
        self.parts.values().all(|part| match part.state {
            State::Free { by } => by.is_none_or(|(key, seq)| exec::has_run(world, key, seq)),
            _ => false,
        })
    }
}

fn pool_at(world: &World, at: u64) -> Option<(u64, u64)> {
    let range = space::find(world, at)?;
    match range.kind {
        Kind::Pool(pool) => Some((pool, range.start)),
        _ => None,
    }
}

/// The allocation that holds an address: its first address and its size.
pub(crate) fn allocation(world: &World, at: u64) -> Option<(u64, u64)> {
    let (pool, chunk) = pool_at(world, at)?;
    let (start, part) = world.pools.get(&pool)?.chunks.get(&chunk)?.parts.range(..=at).next_back()?;
    match part.state {
        State::Used { asked } | State::Graph { asked } if at < start + asked => Some((*start, asked)),
        _ => None,
    }
}

/// Joins free neighbours that nobody has to wait for any more.
fn merge(world: &mut World, pool: u64) {
    let streams = &world.streams;
    let Some(pool) = world.pools.get_mut(&pool) else { return };
    let settled = |by: (u64, u64)| streams.get(&by.0).is_none_or(|stream| stream.completed >= by.1);
    for chunk in pool.chunks.values_mut() {
        let mut previous: Option<u64> = None;
        let starts: Vec<u64> = chunk.parts.keys().copied().collect();
        for start in starts {
            let Some(part) = chunk.parts.get_mut(&start) else { continue };
            let State::Free { by } = &mut part.state else {
                previous = None;
                continue;
            };
            if by.is_some_and(settled) {
                *by = None;
            }
            if by.is_some() {
                previous = None;
                continue;
            }
            let size = part.size;
            match previous {
                Some(before) => {
                    chunk.parts.remove(&start);
                    if let Some(before) = chunk.parts.get_mut(&before) {
                        before.size += size;
                    }
                }
                None => previous = Some(start),
            }
        }
    }
}

/// Where memory is free: the chunk, the part's address, and what must have run before.
type Found = (u64, u64, Option<(u64, u64)>);

/// A free part of this size. `waits`: also one that needs a wait, which is the second result.
fn find_free(world: &World, pool: u64, size: u64, stream: u64, waits: bool) -> Option<Found> {
    let pool = world.pools.get(&pool)?;
    for (chunk, entry) in &pool.chunks {
        for (start, part) in &entry.parts {
            let State::Free { by } = part.state else { continue };
            if part.size < size {
                continue;
            }
            match by {
                Some((other, _)) if other != stream => {
                    if waits {
                        return Some((*chunk, *start, by));
                    }
                }
                _ => return Some((*chunk, *start, None)),
            }
        }
    }
    None
}

fn grow(world: &mut World, key: u64, size: u64) -> Answer {
    let pool = world.pools.get(&key).ok_or(INVALID_VALUE)?;
    let (device, room) = (pool.device, pool.max_size.checked_sub(pool.reserved));
    let limit = if pool.max_size == 0 { u64::MAX } else { room.unwrap_or(0) };
    let exact = round_up(size, GRANULE).ok_or(OUT_OF_MEMORY)?;
    if exact > limit {
        return Err(OUT_OF_MEMORY);
    }
    let admitted = world.pools.get(&key).into_iter().flat_map(|pool| &pool.access);
    if admitted.into_iter().any(|(peer, flags)| *flags != 0 && world.config.apart(*peer, device)) {
        return Err(INVALID_DEVICE);
    }
    let owner = world.device(device)?;
    let wanted = exact.max(CHUNK).min(limit);
    let size = if wanted <= owner.left() { wanted } else { exact };
    let primary = owner.primary;
    let block = physical::create(world, device, size, 0)?;
    let start = place(world, Kind::Pool(key), device, primary, size, block)
        .inspect_err(|_| physical::release(world, block))?;
    let Some(pool) = world.pools.get_mut(&key) else { return Err(INVALID_VALUE) };
    let access = pool.access.clone();
    let parts = BTreeMap::from([(start, Part { size, state: State::Free { by: None } })]);
    pool.chunks.insert(start, Chunk { size, parts });
    pool.reserved += size;
    pool.reserved_high = pool.reserved_high.max(pool.reserved);
    for mapping in world.ranges.get_mut(&start).into_iter().flat_map(|range| range.maps.values_mut()) {
        mapping.access = access.clone();
    }
    OK
}

fn alloc(world: &mut Guard, out: *mut CUdeviceptr, asked: u64, pool: u64, stream: CUstream) -> Answer {
    let key = crate::stream::find(world, stream)?;
    if world.config.no_pools {
        return Err(NOT_SUPPORTED);
    }
    if out.is_null() || asked == 0 {
        return Err(INVALID_VALUE);
    }
    let entry = world.pools.get(&pool).filter(|pool| !pool.destroyed).ok_or(INVALID_VALUE)?;
    if asked > world.device(entry.device)?.capacity {
        return Err(OUT_OF_MEMORY);
    }
    let internal_waits = entry.reuse[2] != 0;
    let captured = world.valid_capture(key)?;
    if captured.is_none() {
        world.capture_node(key, &Work::Nothing)?; // refuses the legacy stream beside a capture
        world.refuse_unsafe_in_capture()?; // also where another stream is captured, as a card was seen to do
    }
    let size = round_up(asked, UNIT).ok_or(OUT_OF_MEMORY)?;
    merge(world, pool);
    let mut found = find_free(world, pool, size, key, false);
    if found.is_none() {
        if let Err(code) = grow(world, pool, size) {
            // The last way: memory that another stream frees, with a wait for it.
            found = if internal_waits { find_free(world, pool, size, key, true) } else { None };
            if found.is_none() {
                return Err(code);
            }
        } else {
            found = find_free(world, pool, size, key, false);
        }
    }
    let (chunk, start, wait) = found.ok_or(OUT_OF_MEMORY)?;
    take(world, pool, chunk, start, size, asked, captured.is_some());
    if let Some(id) = captured {
        world.capture_node(key, &Work::Nothing)?;
        let graph = world.captures.get(&id).map(|capture| capture.graph);
        if let Some(graph) = graph.and_then(|graph| world.graphs.get_mut(&graph)) {
            graph.memory.push(Rc::new(GraphMemory { start }));
        }
    } else if let Some(wait) = wait {
        exec::submit(world, key, vec![wait], Work::Nothing);
    }
    put(out, start)
}

fn take(world: &mut World, pool: u64, chunk: u64, start: u64, size: u64, asked: u64, graph: bool) {
    let Some(pool) = world.pools.get_mut(&pool) else { return };
    let Some(chunk) = pool.chunks.get_mut(&chunk) else { return };
    let Some(part) = chunk.parts.get_mut(&start) else { return };
    let (whole, old) = (part.size, std::mem::replace(&mut part.state, State::Used { asked }));
    if graph {
        part.state = State::Graph { asked };
    }
    part.size = size;
    if whole > size {
        chunk.parts.insert(start + size, Part { size: whole - size, state: old });
    }
    pool.used += size;
    pool.used_high = pool.used_high.max(pool.used);
}

/// Frees a part. `by`: the stream's work that it follows.
fn give(world: &mut World, at: u64, by: Option<(u64, u64)>) -> Answer {
    let (key, chunk) = pool_at(world, at).ok_or(INVALID_VALUE)?;
    let pool = world.pools.get_mut(&key).ok_or(INVALID_VALUE)?;
    let part = pool.chunks.get_mut(&chunk).and_then(|chunk| chunk.parts.get_mut(&at)).ok_or(INVALID_VALUE)?;
    if matches!(part.state, State::Free { .. }) {
        return Err(INVALID_VALUE);
    }
    part.state = State::Free { by };
    pool.used -= part.size;
    OK
}

/// A free has run, or needs none.
pub(crate) fn given_back(world: &mut World, at: u64) {
    if let Some((key, _)) = pool_at(world, at) {
        merge(world, key);
        drop_if_over(world, key);
    }
}

/// A destroyed pool goes with its last allocation.
fn drop_if_over(world: &mut World, key: u64) {
    let over = world.pools.get(&key).is_some_and(|pool| {
        pool.destroyed && pool.used == 0 && pool.chunks.values().all(|chunk| chunk.is_unused(world))
    });
    if over {
        drop_unused(world, key, 0);
        world.pools.remove(&key);
    }
}

/// The memory of a graph that is gone.
pub(crate) fn graph_memory_gone(world: &mut World, at: u64) {
    if give(world, at, None).is_ok() {
        given_back(world, at);
    }
}

/// Gives unused chunks back until the pool has no more than `keep` bytes.
fn drop_unused(world: &mut World, key: u64, keep: u64) {
    merge(world, key);
    loop {
        let Some(pool) = world.pools.get(&key) else { return };
        if pool.reserved <= keep {
            return;
        }
        let unused = pool.chunks.iter().find(|(_, chunk)| chunk.is_unused(world)).map(|(start, _)| *start);
        let Some(start) = unused else { return };
        if let Some(pool) = world.pools.get_mut(&key)
            && let Some(chunk) = pool.chunks.remove(&start)
        {
            pool.reserved -= chunk.size;
        }
        space::drop_range(world, start);
    }
}

/// Pools that have something allocated, or that a caller made, with the bytes in use.
pub(crate) fn used(world: &World) -> impl Iterator<Item = (u64, u64)> {
    world
        .pools
        .iter()
        .filter(|(_, pool)| pool.used > 0 || !pool.is_default)
        .map(|(key, pool)| (*key, pool.used))
}

/// What every synchronisation does.
pub(crate) fn trim_all(world: &mut World) {
    let over: Vec<(u64, u64)> = world
        .pools
        .iter()
        .filter(|(_, pool)| pool.reserved > pool.threshold)
        .map(|(key, pool)| (*key, pool.threshold))
        .collect();
    for (key, threshold) in over {
        drop_unused(world, key, threshold);
    }
    let destroyed: Vec<u64> =
        world.pools.iter().filter(|(_, pool)| pool.destroyed).map(|(key, _)| *key).collect();
    for key in destroyed {
        drop_if_over(world, key);
    }
}

/// Gives all unused memory of a device's pools back.
pub(crate) fn give_up_unused(world: &mut World, device: i32) {
    let keys: Vec<u64> =
        world.pools.iter().filter(|(_, pool)| pool.device == device).map(|(key, _)| *key).collect();
    for key in keys {
        drop_unused(world, key, 0);
    }
}

/// cuMemFree of memory of a pool: at once, without waiting for anything.
pub(crate) fn free_now(world: &mut World, at: u64) -> Answer {
    give(world, at, None)?;
    given_back(world, at);
    OK
}

/// All pools lose their chunks: their context is gone.
pub(crate) fn forget_chunks(world: &mut World, device: i32) {
    for pool in world.pools.values_mut().filter(|pool| pool.device == device) {
        pool.chunks.clear();
        (pool.reserved, pool.used) = (0, 0);
    }
}

fn handle(world: &World, pool: CUmemoryPool) -> Result<u64, u32> {
    if world.config.no_pools {
        return Err(NOT_SUPPORTED);
    }
    let key = pool as u64;
    world.pools.get(&key).filter(|pool| !pool.destroyed).map(|_| key).ok_or(INVALID_VALUE)
}

/// CUmemPoolProps with plain numbers; `max_size` is the first field that newer versions took from the reserved ones.
#[derive(Clone, Copy)]
#[repr(C)]
struct Props {
    kind: u32,
    handle_types: u32,
    location: Location,
    security: usize,
    max_size: usize,
    usage: u16,
    reserved: [u8; 54],
}

const _: () = assert!(size_of::<Props>() == size_of::<CUmemPoolProps>());

exports! {
    11020 Query fn cuDeviceGetDefaultMemPool(out: *mut CUmemoryPool, device: c_int) |w| {
        if w.config.no_pools {
            return Err(NOT_SUPPORTED);
        }
        put(out, w.device(device)?.default_pool as CUmemoryPool)
    }

    11020 Query fn cuDeviceGetMemPool(out: *mut CUmemoryPool, device: c_int) |w| {
        if w.config.no_pools {
            return Err(NOT_SUPPORTED);
        }
        put(out, w.device(device)?.pool as CUmemoryPool)
    }

    11020 Query fn cuDeviceSetMemPool(device: c_int, pool: CUmemoryPool) |w| {
        let key = handle(w, pool)?;
        w.device(device)?;
        if w.pools.get(&key).is_none_or(|pool| pool.device != device) {
            return Err(INVALID_DEVICE);
        }
        w.device_mut(device)?.pool = key;
        OK
    }

    11020 Normal fn cuMemPoolCreate(out: *mut CUmemoryPool, props: *const CUmemPoolProps) |w| {
        if w.config.no_pools {
            return Err(NOT_SUPPORTED);
        }
        let props = get(props.cast::<Props>())?;
        if props.kind != 1 || props.reserved != [0; 54] {
            return Err(INVALID_VALUE);
        }
        let device = props.location.device(w)?;
        if props.handle_types > 1 || (props.handle_types == 1 && w.config.no_fd) {
            return Err(NOT_SUPPORTED);
        }
        let key = w.new_handle();
        put(out, key as CUmemoryPool)?;
        w.pools.insert(key, new(device, false, props.max_size as u64));
        OK
    }

    11020 Normal fn cuMemPoolDestroy(pool: CUmemoryPool) |w| {
        let key = handle(w, pool)?;
        let Some(entry) = w.pools.get_mut(&key) else { return Err(INVALID_VALUE) };
        if entry.is_default {
            return Err(INVALID_VALUE);
        }
        entry.destroyed = true;
        let owner = entry.device;
        let owner = w.device_mut(owner)?;
        if owner.pool == key {
            owner.pool = owner.default_pool;
        }
        drop_unused(w, key, 0);
        drop_if_over(w, key);
        OK
    }

    11020 Normal fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) |w| {
        let key = handle(w, pool)?;
        w.refuse_unsafe_in_capture()?;
        drop_unused(w, key, keep as u64);
        OK
    }

    11020 Normal fn cuMemPoolGetAttribute(pool: CUmemoryPool, which: u32 as CUmemPool_attribute, value: *mut c_void) |w| {
        let pool = w.pools.get(&handle(w, pool)?).ok_or(INVALID_VALUE)?;
        match which {
            1..=3 => put(value.cast(), pool.reuse[which as usize - 1]),
            4 => put(value.cast(), pool.threshold),
            5 => put(value.cast(), pool.reserved),
            6 => put(value.cast(), pool.reserved_high),
            7 => put(value.cast(), pool.used),
            8 => put(value.cast(), pool.used_high),
            _ => Err(INVALID_VALUE),
        }
    }

    11020 Normal fn cuMemPoolSetAttribute(pool: CUmemoryPool, which: u32 as CUmemPool_attribute, value: *mut c_void) |w| {
        let key = handle(w, pool)?;
        let pool = w.pools.get_mut(&key).ok_or(INVALID_VALUE)?;
        match which {
            1..=3 => pool.reuse[which as usize - 1] = get(value.cast::<c_int>())?,
            4 => pool.threshold = get(value.cast::<u64>())?,
            // The high marks can be set back, to zero only, which means to now.
            6 if get(value.cast::<u64>())? == 0 => pool.reserved_high = pool.reserved,
            8 if get(value.cast::<u64>())? == 0 => pool.used_high = pool.used,
            _ => return Err(INVALID_VALUE),
        }
        OK
    }

    11020 Normal fn cuMemPoolSetAccess(pool: CUmemoryPool, list: *const CUmemAccessDesc, count: usize) |w| {
        let key = handle(w, pool)?;
        let owner = w.pools.get(&key).ok_or(INVALID_VALUE)?.device;
        let mut wanted = Vec::new();
        for index in 0..count.min(64) {
            let one = get(list.cast::<AccessDesc>().wrapping_add(index))?;
            let device = one.location.device(w)?;
            if !matches!(one.flags, 0 | 3) || (device == owner && one.flags == 0) {
                return Err(INVALID_VALUE);
            }
            // For a pool without memory it may succeed all the same, as documented; then the next allocation fails.
            if w.config.apart(device, owner) && w.pools.get(&key).is_some_and(|pool| !pool.chunks.is_empty()) {
                return Err(INVALID_DEVICE);
            }
            wanted.push((device, one.flags));
        }
        let pool = w.pools.get_mut(&key).ok_or(INVALID_VALUE)?;
        pool.access.extend(wanted);
        let access = pool.access.clone();
        let chunks: Vec<u64> = pool.chunks.keys().copied().collect();
        for chunk in chunks {
            for mapping in w.ranges.get_mut(&chunk).into_iter().flat_map(|range| range.maps.values_mut()) {
                mapping.access = access.clone();
            }
        }
        OK
    }

    11020 Normal fn cuMemPoolGetAccess(out: *mut CUmemAccess_flags, pool: CUmemoryPool, location: *mut CUmemLocation) |w| {
        let key = handle(w, pool)?;
        let device = get(location.cast::<Location>())?.device(w)?;
        let pool = w.pools.get(&key).ok_or(INVALID_VALUE)?;
        put(out.cast::<u32>(), pool.access.get(&device).copied().unwrap_or(0))
    }

    11020 Normal fn cuMemAllocAsync(out: *mut CUdeviceptr, size: usize, stream: CUstream) |w| {
        let key = crate::stream::find(w, stream)?;
        let device = w.streams.get(&key).ok_or(INVALID_HANDLE)?.device;
        let pool = w.device(device)?.pool;
        alloc(w, out, size as u64, pool, stream)
    }

    11020 Normal fn cuMemAllocFromPoolAsync(
        out: *mut CUdeviceptr,
        size: usize,
        pool: CUmemoryPool,
        stream: CUstream,
    ) |w| {
        w.current()?;
        let key = handle(w, pool)?;
        alloc(w, out, size as u64, key, stream)
    }

    11020 Normal fn cuMemFreeAsync(at: CUdeviceptr, stream: CUstream) |w| {
        let key = crate::stream::find(w, stream)?;
        if w.config.no_pools {
            return Err(NOT_SUPPORTED);
        }
        if at == 0 {
            return Err(INVALID_VALUE);
        }
        let (start, _) = allocation(w, at).ok_or(INVALID_VALUE)?;
        if start != at {
            return Err(INVALID_VALUE);
        }
        if w.valid_capture(key)?.is_some() {
            // A free node: the memory stays the graph's, and its addresses stay for the replays.
            w.capture_node(key, &Work::Nothing)?;
            return OK;
        }
        w.capture_node(key, &Work::Nothing)?;
        w.refuse_unsafe_in_capture()?;
        let seq = exec::submit(w, key, Vec::new(), Work::Give(at));
        give(w, at, Some((key, seq)))
    }
}
