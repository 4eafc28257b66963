//! How free memory lies, for the statistics: each heap's free pieces.
//!
//! Nobody is held up for it. A heap is locked only as long as it takes to copy a few numbers, however much of it is free.
//! Free pieces are found by address in the descriptors, which are read as they are: no lock is held, so what others change
//! meanwhile may be seen or not, and a piece that moves may be missed. Where memory lies in segments or ties is looked up
//! some pieces at a time, each time under the lock of growth.

use super::super::blocks::Blocks;
use super::super::desc::{kind, use_of};
use super::super::ground::{Ground, Growing, gaps};
use super::super::heap::Space;
use super::super::shape::Tier;
use super::super::state::growth::ties::Piece;
use super::super::types::{NO_POOL, PoolId};
use super::super::units::{Extent, GRANULE, GranuleRun, LARGE_UNITS_SHIFT};
use crate::base::boxed::try_push;
use crate::base::error::{Result, no_host_memory};

/// So many pieces are looked up while growth is locked.
const AT_A_TIME: usize = 128;

/// The free memory of a heap.
#[derive(Default)]
pub(super) struct HeapSpace {
    /// The number of the heap, and the id of its pool.
    pub heap: u32,
    pub pool: u32,
    /// Its pool must stay as it is.
    pub pinned: bool,
    pub space: Space,
    /// The granules that could go back to the device, where these are asked for.
    pub idle: Vec<GranuleRun>,
}

/// Where to find the free memory of each heap that has a pool which is awake, by the number of the heap.
type Places = Vec<Option<usize>>;

/// The free memory of each heap, but of pools that sleep; with `idle` the granules that could go back are listed.
pub(super) fn heap_spaces(ground: &Ground, idle: bool) -> Result<Vec<HeapSpace>> {
    let mut all = Vec::new();
    // A part of a segment goes nowhere alone, nor does one of a tie.
    let alone = ground.config.mapping && !ground.shared().tied.any();
    for heap in ground.heaps().all() {
        let pool = heap.pool();
        if pool == NO_POOL || ground.pools().sleeps(PoolId(pool)) {
            continue;
        }
        let pinned = ground.pools().is_pinned(heap);
        let mut h = ground.look(heap);
        Blocks::of(ground).drain(&mut h);
        let mut space = h.fine_space(alone);
        drop(h);
        if pinned {
            // An empty chunk that is kept cannot go either.
            space.small += std::mem::take(&mut space.whole);
        }
        let entry = HeapSpace { heap: heap.index, pool, pinned, space, idle: Vec::new() };
        if !try_push(&mut all, entry) {
            return Err(no_host_memory());
        }
    }
    let mut places: Places = Vec::new();
    for (n, h) in all.iter().enumerate() {
        let more = (h.heap as usize + 1).saturating_sub(places.len());
        places.try_reserve(more).map_err(|_| no_host_memory())?;
        places.resize(h.heap as usize, None);
        places.push(Some(n));
    }
    let pieces = free_pieces(ground, &places)?;
    let shared = shared_wholes(ground, &all, &pieces)?;
    for some in pieces.chunks(AT_A_TIME) {
        gaps::here();
        let g = ground.growing();
        for &(n, piece) in some {
            if let Some(h) = all.get_mut(n) {
                g.add_piece(h, piece, idle, &shared);
            }
        }
    }
    Ok(all)
}

/// A tie or segment that is wholly free, but in several heaps: it goes back, and a tie to other heaps, as a whole.
#[derive(Clone, Copy)]
struct Shared {
    first: u32, // granule
    /// The heaps are of several pools.
    beyond: bool,
}

/// That with this first granule; they are sorted by it.
fn shared_at(shared: &[Shared], first: u32) -> Option<Shared> {
    shared.binary_search_by_key(&first, |s| s.first).ok().and_then(|n| shared.get(n)).copied()
}

/// The ties or segments that are wholly free, but in several heaps.
fn shared_wholes(ground: &Ground, all: &[HeapSpace], pieces: &[(usize, Extent)]) -> Result<Vec<Shared>> {
    // Where a whole begins, its size, the pool of a heap, and how much of it is free there.
    let mut parts: Vec<(u32, u32, u32, u32)> = Vec::new();
    let movable = |n: usize| all.get(n).filter(|h| !h.pinned).map(|h| h.pool);
    let any = !ground.config.mapping || ground.shared().tied.any();
    let of_movable = if any { pieces } else { &[] };
    for some in of_movable.chunks(AT_A_TIME) {
        gaps::here();
        let g = ground.growing();
        for (pool, piece) in some.iter().filter_map(|p| Some((movable(p.0)?, p.1))) {
            let mut add = |part| -> Result<()> {
                parts.try_reserve(1).map_err(|_| no_host_memory())?;
                parts.push(part);
                Ok(())
            };
            if !ground.config.mapping {
                let segment = g.segments.of(piece.touched().first).map(|s| s.part);
                if let Some(whole) = segment.filter(|&s| s != piece) {
                    add((whole.touched().first, whole.units, pool, piece.units))?;
                }
                continue;
            }
            let Some(run) = piece.whole() else { continue };
            let cut = g.ties.cut(run).into_iter().filter(|p| !p.is_whole());
            for (tie, part) in cut.filter_map(|p| Some((p.tie?, p.run))) {
                add((tie.first, tie.count, pool, part.count))?;
            }
        }
    }
    parts.sort_unstable();
    let mut free = Vec::new();
    for of in parts.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        let Some(&(first, size, pool, _)) = of.first() else { continue };
        if of.iter().map(|p| p.3).sum::<u32>() == size {
            free.try_reserve(1).map_err(|_| no_host_memory())?;
            free.push(Shared { first, beyond: of.iter().any(|p| p.2 != pool) });
        }
    }
    Ok(free)
}

/// The free pieces of the large tier: whose they are, by `places`, and where; what is side by side is one.
fn free_pieces(ground: &Ground, places: &Places) -> Result<Vec<(usize, Extent)>> {
    let maps = &ground.maps;
    let place = |heap: u32| places.get(heap as usize).copied().flatten();
    let runs = ground.growing().room.try_occupied(ground.memory_granules()).ok_or_else(no_host_memory)?;
    let mut free: Vec<(usize, Extent)> = Vec::new();
    for run in runs {
        let mut unit = 0;
        gaps::here();
        for granule in run.granules() {
            let u = maps.granule(granule);
            let Some(n) = place(u.heap()).filter(|_| u.use_() == use_of::LARGE) else { continue };
            unit = unit.max(granule << LARGE_UNITS_SHIFT);
            while unit < (granule + 1) << LARGE_UNITS_SHIFT {
                let id = maps.large_at(unit);
                let d = maps.desc(id);
                let (off, units, state) = (d.off(), d.units(), d.kind());
                if id == 0 || off != unit || units == 0 || d.tier_bits() != Tier::Large as u32 {
                    break; // a segment ends inside this granule, or somebody changes it
                }
                if matches!(state, kind::FREE | kind::FREED) {
                    free.try_reserve(1).map_err(|_| no_host_memory())?;
                    free.push((n, Extent::new(off, units)));
                }
                unit = unit.saturating_add(units);
            }
        }
    }
    // Of free scattered blocks the pieces.
    let pieces = ground.aliases().piece_count();
    free.try_reserve(pieces as usize + 64).map_err(|_| no_host_memory())?;
    ground.aliases().in_use(|id, granule, pieces| {
        if let Some(n) = place(maps.granule(granule).heap())
            && maps.desc(id).kind() == kind::FREED
        {
            free.extend(pieces.iter().map(|&p| (n, p)));
        }
    });
    free.sort_unstable();
    free.dedup_by(|(n, next), (m, piece)| {
        let beside = n == m && next.off <= piece.end();
        if beside {
            piece.units = piece.units.max(next.end() - piece.off);
        }
        beside
    });
    Ok(free)
}

impl Growing<'_> {
    /// Adds a free piece to what its heap has. `shared`: see `shared_wholes`.
    fn add_piece(&self, h: &mut HeapSpace, piece: Extent, idle: bool, shared: &[Shared]) {
        let mut found = Space { pieces: 1, longest: piece.bytes(), ..Space::default() };
        let mut beyond = 0;
        let mut add = |run: GranuleRun, tie: Option<GranuleRun>| {
            let count = u64::from(run.count);
            found.granules += count;
            if let Some(tie) = tie {
                found.tied += count;
                found.shared += if tie == run { 0 } else { count };
                let is_beyond = tie != run && shared_at(shared, tie.first).is_some_and(|s| s.beyond);
                beyond += if is_beyond { count * GRANULE } else { 0 };
                found.longest_tie = found.longest_tie.max(tie.count.into());
            }
            if idle && !h.pinned {
                h.idle.push(run);
            }
        };
        // Whole granules, but not those of ties that are partly used.
        match piece.whole() {
            None => {}
            Some(run) if self.ties.is_empty() => add(run, None),
            Some(run) => {
                let is_shared = |tie: GranuleRun| !h.pinned && shared_at(shared, tie.first).is_some();
                let goes = |p: &Piece| p.is_whole() || p.tie.is_some_and(is_shared);
                let parts = self.ties.cut(run).into_iter().filter(goes);
                parts.for_each(|p| add(p.run, p.tie));
            }
        }
        let goes = match () {
            () if h.pinned => 0,
            () if self.ground.config.mapping => found.granules * GRANULE,
            () => match self.whole_segment(piece, shared) {
                None => 0,
                Some(whole) => {
                    beyond = if whole.beyond { piece.bytes() } else { 0 };
                    piece.bytes()
                }
            },
        };
        found.whole = goes;
        found.beyond = if h.pinned { 0 } else { beyond };
        found.large = piece.bytes() - goes;
        found.large_pieces = u64::from(found.large > 0);
        found.beyond_pieces = u64::from(found.large == 0 && found.beyond > 0);
        // Only the ends of a piece are parts of ties: the rest is side by side.
        found.run = found.granules - found.shared;
        h.space.add(&found);
    }

    /// The segment that a free piece is, or a part of which it is if that is wholly free in several heaps.
    fn whole_segment(&self, piece: Extent, shared: &[Shared]) -> Option<Shared> {
        let segment = self.segments.of(piece.touched().first).map(|s| s.part)?;
        let first = segment.touched().first;
        if segment == piece { Some(Shared { first, beyond: false }) } else { shared_at(shared, first) }
    }
}
