//! The steps of a request and of a free that name a pool: what the C API and [`PoolHandle`](super::PoolHandle) have in
//! common.
//!
//! The first step looks the pool up in `handle_cache.rs` and takes a block from the calling thread's own heap, or puts
//! one back. It never panics, and runs unguarded. Everything else goes through [`Memory::alloc_from`] or
//! [`Memory::free_block`], and so do all calls on a device's [`Memory`] itself (`memory/requests.rs`).

use crate::base::biased::Name;
use crate::base::error::{Code, Error, Result};
use crate::core::{
    EnteredHeap, Fast, FastFreed, Freed, FreedNoted, Heap, HeapEntry, Outside, PoolId, Reused, SeatedAtHeap,
    UNORDERED,
};
use crate::device::StreamId;
use crate::runtime::device::by_address::{Kind, explained};
use crate::runtime::device::state::DeviceState;
#[cfg(doc)]
use crate::runtime::memory::Memory;
use crate::runtime::memory::fast_paths;
use crate::runtime::memory::handle_cache::{self, Entry};
use crate::runtime::memory::{Block, Given, Pooled, watched};
use crate::runtime::watch::latency::Latency;
use std::sync::Arc;

/// A caller that names a pool: the C API or a [`PoolHandle`](super::PoolHandle).
pub(crate) trait Caller: Copy {
    /// Its own form of an error.
    type Failure;

    /// Whether a panic passes its [`guard`](Self::guard).
    const UNWINDS: bool;

    /// Its number for the pool, which never stands for another pool; 0: none.
    fn number(self) -> u64;

    /// The same caller, known to have this number. A caller that is nothing but its number is made of it, and so need not
    /// be kept.
    fn with_number(self, number: u64) -> Self {
        let _ = number;
        self
    }

    /// The pool and its device, which is open.
    fn pool(self) -> Result<(&'static Arc<DeviceState>, PoolId)>;

    /// Fails if this thread must not make calls that may reach the device.
    fn may_call(self) -> Result<()>;

    /// Completes the error of a request to the pool.
    fn refused(self, e: Error) -> Error {
        e
    }

    /// Runs `body`, which may fail or panic.
    fn guard<T>(self, body: impl FnOnce() -> Result<T>) -> Result<T, Self::Failure>;
}

/// Defines a function that takes the steps after the first, out of line. For a caller who lets no panic pass it cannot
/// unwind: then the first step jumps there as its last instruction, and needs no frame. (It has one as soon as the
/// compiler has to reckon with a panic after the jump, for which it then does nothing but end the process, as this does.)
macro_rules! out_of_line {
    ($name:ident => $then:ident, $done:ty, $($arg:ident: $type:ty),*; $($rest:ident: $more:ty),*) => {
        #[inline(always)]
        fn $name<C: Caller, A>(
            caller: C,
            $($arg: $type,)*
            answer: impl Fn(Result<$done, C::Failure>) -> A + Copy,
            $($rest: $more,)*
        ) -> A {
            #[cold]
            #[inline(never)]
            #[allow(improper_ctypes_definitions, reason = "only this file calls it")]
            extern "C" fn jump<C: Caller, A, F: Fn(Result<$done, C::Failure>) -> A + Copy>(
                caller: C,
                $($arg: $type,)*
                answer: F,
                $($rest: $more,)*
            ) -> A {
                $then(caller, $($arg,)* answer, $($rest,)*)
            }
            #[cold]
            #[inline(never)]
            fn call<C: Caller, A, F: Fn(Result<$done, C::Failure>) -> A + Copy>(
                caller: C,
                $($arg: $type,)*
                answer: F,
                $($rest: $more,)*
            ) -> A {
                $then(caller, $($arg,)* answer, $($rest,)*)
            }
            match C::UNWINDS {
                true => call(caller, $($arg,)* answer, $($rest,)*),
                false => jump(caller, $($arg,)* answer, $($rest,)*),
            }
        }
    };
}

// `answer` of the C API is an out pointer, which is the fourth argument of all of them, as it is of the caller: so it stays
// where it is.
out_of_line!(alloc_by_other_name => alloc_noted, u64, bytes: u64, stream: StreamId; seated: SeatedAtHeap);
out_of_line!(alloc_by_number => alloc_found, u64, bytes: u64, stream: StreamId;);
out_of_line!(alloc_almost_noted => complete_noted, u64, bytes: u64, stream: StreamId; block: Reused, heap: &'static Heap);
out_of_line!(alloc_on => alloc_rest, u64, bytes: u64, stream: StreamId; heap: Option<&'static Heap>);
out_of_line!(alloc_complete => complete_fast, u64, block: Reused; heap: &'static Heap, stream: StreamId);
out_of_line!(free_by_other_name => free_noted, (), addr: u64, stream: StreamId; seated: SeatedAtHeap);
out_of_line!(free_in_segment => free_far, (), addr: u64, stream: StreamId; seated: SeatedAtHeap);
out_of_line!(free_in_segment_noted => free_far_noted, (), addr: u64, stream: StreamId; seated: SeatedAtHeap);
out_of_line!(free_by_number => free_found, (), addr: u64, stream: StreamId;);

/// Allocates memory for work queued on `stream` from now on. 0 bytes give address 0. `answer` converts the result.
#[inline(always)]
pub(crate) fn alloc<C: Caller, A>(
    caller: C,
    stream: StreamId,
    bytes: u64,
    answer: impl Fn(Result<u64, C::Failure>) -> A + Copy,
) -> A {
    let name = [caller.number(), stream];
    let heap = match fast_paths::find(name).enter_or_stay(name) {
        HeapEntry::Open(heap) => heap,
        HeapEntry::OtherName(seated) => return alloc_by_other_name(caller, bytes, stream, answer, seated),
        HeapEntry::Elsewhere => return alloc_by_number(caller, bytes, stream, answer),
    };
    match heap.alloc(bytes) {
        Fast::Block(addr) => answer(Ok(addr)),
        Fast::Almost(block, heap, [number, stream]) => {
            alloc_complete(caller.with_number(number), block, answer, heap, stream)
        }
        Fast::Missed(heap, [number, stream]) => {
            alloc_on(caller.with_number(number), bytes, stream, answer, Some(heap))
        }
    }
}

/// The first step of a request without a fast path: there may be one on which requests are noted. It does nothing else, so
/// that it needs few registers.
#[inline(always)]
fn alloc_noted<C: Caller, A>(
    caller: C,
    bytes: u64,
    stream: StreamId,
    answer: impl Fn(Result<u64, C::Failure>) -> A + Copy,
    seated: SeatedAtHeap,
) -> A {
    let name = fast_paths::noted([caller.number(), stream]);
    match watched::alloc_noted(seated, name, bytes, stream) {
        Some(Fast::Block(addr)) => answer(Ok(addr)),
        Some(Fast::Almost(block, heap, _)) => alloc_almost_noted(caller, bytes, stream, answer, block, heap),
        Some(Fast::Missed(..)) | None => alloc_by_number(caller, bytes, stream, answer),
    }
}

/// Notes and completes a request that a noted fast path has served but for its address, or whose accounts are to be settled.
#[inline(always)]
fn complete_noted<C: Caller, A>(
    caller: C,
    bytes: u64,
    stream: StreamId,
    answer: impl Fn(Result<u64, C::Failure>) -> A + Copy,
    block: Reused,
    heap: &'static Heap,
) -> A {
    let name = fast_paths::noted([caller.number(), stream]);
    if let Reused::Block(offset) = block
        && let Some(addr) = watched::note_far((heap, offset), name, bytes, stream)
    {
        return answer(Ok(addr));
    }
    if let Some(outside) = heap.outside() {
        let (Reused::Block(offset) | Reused::Full(offset)) = block;
        outside.note(heap, offset, bytes, stream);
    }
    complete_by(caller, block, answer, heap, name)
}

/// The first step of a request without any fast path: opens one, for it and for those that follow.
#[inline(always)]
fn alloc_found<C: Caller, A>(
    caller: C,
    bytes: u64,
    stream: StreamId,
    answer: impl Fn(Result<u64, C::Failure>) -> A + Copy,
) -> A {
    let Some(entry) = handle_cache::find(caller.number()) else {
        return alloc_watched(caller, bytes, stream, answer);
    };
    match entry.open_fast_path(caller.number(), stream) {
        Ok(path) => {
            let name = [caller.number(), stream];
            fast_paths::remember(name, path);
            let entered = EnteredHeap::by(path, name);
            match entered.map(|heap| heap.alloc(bytes)) {
                Some(Fast::Block(addr)) => answer(Ok(addr)),
                Some(Fast::Almost(block, heap, _)) => complete_fast(caller, block, answer, heap, stream),
                Some(Fast::Missed(heap, _)) => alloc_on(caller, bytes, stream, answer, Some(heap)),
                None => alloc_on(caller, bytes, stream, answer, None), // closed since
            }
        }
        Err(heap) => alloc_on(caller, bytes, stream, answer, heap),
    }
}

/// The first step of a request without a stream; `None`: it has done nothing, and the caller goes on with
/// [`Memory::alloc_unordered`] and [`remember`].
#[inline(always)]
pub(crate) fn alloc_unordered<C: Caller>(caller: C, bytes: u64) -> Option<u64> {
    let name = [caller.number(), UNORDERED];
    let heap = fast_paths::enter(name).or_else(|| open_unordered(name))?;
    match heap.alloc(bytes) {
        Fast::Block(addr) => Some(addr),
        Fast::Almost(block, heap, _) => complete_fast(caller, block, |got| got.ok(), heap, UNORDERED),
        Fast::Missed(..) => None,
    }
}

/// Opens the fast path of requests without a stream, and enters.
#[inline(never)]
fn open_unordered(name: Name) -> Option<EnteredHeap> {
    let entry = handle_cache::find(name[0])?;
    let path = entry.open_fast_path(name[0], name[1]).ok()?;
    fast_paths::remember(name, path);
    EnteredHeap::by(path, name)
}

/// Makes the first step find the pool of `device` that `caller` names.
pub(crate) fn remember<C: Caller>(caller: C, device: &'static Arc<DeviceState>, pool: PoolId) {
    if handle_cache::find(caller.number()).is_none() {
        handle_cache::enter(caller.number(), device.memory(), pool);
    }
}

/// A request to a pool that was not found: its device may be watched.
#[inline(always)]
fn alloc_watched<C: Caller, A>(
    caller: C,
    bytes: u64,
    stream: StreamId,
    answer: impl Fn(Result<u64, C::Failure>) -> A + Copy,
) -> A {
    let found = handle_cache::find_watched(caller.number());
    let Some((entry, pool)) = found.and_then(|e| Some((e, e.pool(caller.number())?))) else {
        return alloc_timed(caller, stream, bytes, answer);
    };
    let pooled = entry.pooled();
    if let Some(path) = entry.open_noted_path(caller.number(), stream) {
        fast_paths::remember([caller.number(), stream], path); // for the requests that follow
    }
    match pooled.alloc_quick_watched(pool, stream, bytes) {
        Given::Block(addr) => answer(Ok(addr)),
        Given::Almost(offset, heap) => complete(caller, pooled, offset, heap, answer),
        Given::Missed => alloc_first(caller, stream, bytes, answer),
    }
}

/// A request to a pool that was not found among those either: its device's calls may be timed.
#[cold]
#[inline(never)]
fn alloc_timed<C: Caller, A>(
    caller: C,
    stream: StreamId,
    bytes: u64,
    answer: impl Fn(Result<u64, C::Failure>) -> A + Copy,
) -> A {
    let found = handle_cache::find_timed(caller.number());
    let Some((pooled, pool)) = found.map(|e| (e.pooled(), e.place())) else {
        return alloc_first(caller, stream, bytes, answer);
    };
    let begun = pooled.observers.latencies.begin();
    let done = match pooled.alloc_quick_timed(pool, stream, bytes) {
        Given::Block(addr) => answer(Ok(addr)),
        Given::Almost(offset, heap) => complete(caller, pooled, offset, heap, answer),
        // Timed as a whole there.
        Given::Missed => return alloc_first(caller, stream, bytes, answer),
    };
    if let Some(begun) = begun {
        begun.end(Latency::Alloc);
    }
    done
}

/// Completes a first step on the fast path.
#[inline(always)]
fn complete_fast<C: Caller, A>(
    caller: C,
    block: Reused,
    answer: impl Fn(Result<u64, C::Failure>) -> A,
    heap: &'static Heap,
    stream: StreamId,
) -> A {
    let name = [caller.number(), stream];
    complete_by(caller, block, answer, heap, name)
}

/// Completes a first step on the fast path under this name.
#[inline(always)]
fn complete_by<C: Caller, A>(
    caller: C,
    block: Reused,
    answer: impl Fn(Result<u64, C::Failure>) -> A,
    heap: &'static Heap,
    name: Name,
) -> A {
    let (offset, full) = match block {
        Reused::Block(offset) => match heap.far_address(offset) {
            Some(addr) => return answer(Ok(addr)),
            None => (offset, None),
        },
        Reused::Full(offset) => {
            // In most programs one class takes the place of another then.
            if let Some(addr) = exchange(name[0], name[1], heap, offset) {
                return answer(Ok(addr));
            }
            (offset, Some(heap))
        }
    };
    match heap.outside() {
        Some(outside) => complete(caller, outside, offset, full, answer),
        // Not so, since the heap has a fast path.
        None => answer(caller.guard(|| Err(Error::new(Code::Internal, "a heap has no device")))),
    }
}

/// The address of a block with which a ceiling of the heap was reached, if its classes can settle that among themselves.
/// Out of line: there is one for all callers.
#[inline(never)]
fn exchange(number: u64, stream: StreamId, heap: &'static Heap, offset: u64) -> Option<u64> {
    fast_paths::enter([number, stream])?.exchange(heap, offset)
}

/// Completes a first step that has given a block, but not its address, or that asks for the accounts to be settled.
#[cold]
#[inline(never)]
fn complete<C: Caller, A>(
    caller: C,
    outside: &'static dyn Outside,
    offset: u64,
    heap: Option<&'static Heap>,
    answer: impl Fn(Result<u64, C::Failure>) -> A,
) -> A {
    let found = outside.address(offset);
    if let Some(heap) = heap {
        // An error here is ignored: the caller has the block already.
        let _ = caller.guard(|| {
            outside.settle(heap);
            Ok(())
        });
    }
    match found {
        Ok(addr) => answer(Ok(addr)),
        // The device has just ended.
        Err(e) => answer(caller.guard(|| Err(caller.pool().err().unwrap_or_else(|| caller.refused(e))))),
    }
}

/// Takes the other steps of a request; the first has missed.
#[inline(always)]
fn alloc_rest<C: Caller, A>(
    caller: C,
    bytes: u64,
    stream: StreamId,
    answer: impl Fn(Result<u64, C::Failure>) -> A + Copy,
    heap: Option<&'static Heap>,
) -> A {
    // The second step. Whatever must see more of requests has closed the fast path.
    let cut = || Ok(fast_paths::enter([caller.number(), stream]).map(|heap| heap.alloc_best_fit(bytes)));
    match caller.guard(cut) {
        Ok(Some(Fast::Block(addr))) => return answer(Ok(addr)),
        Ok(Some(Fast::Almost(block, heap, _))) => return complete_fast(caller, block, answer, heap, stream),
        Ok(_) => {}
        Err(failure) => return answer(Err(failure)),
    }
    let found = handle_cache::find(caller.number());
    let (Some((memory, pool)), 1..) =
        (found.and_then(|e| Some((e.memory(), e.pool(caller.number())?))), bytes)
    else {
        return alloc_first(caller, stream, bytes, answer);
    };
    answer(caller.guard(|| {
        let got = memory.alloc_from(pool, stream, bytes, heap, || caller.may_call());
        // If the call itself is not permitted, that is the error to report.
        got.map_err(|e| caller.may_call().err().unwrap_or_else(|| caller.refused(e)))
    }))
}

/// A request to a pool that is not in the cache, or of 0 bytes.
#[cold]
#[inline(never)]
fn alloc_first<C: Caller, A>(
    caller: C,
    stream: StreamId,
    bytes: u64,
    answer: impl Fn(Result<u64, C::Failure>) -> A,
) -> A {
    answer(caller.guard(|| {
        caller.may_call()?;
        let first = || {
            let (device, pool) = caller.pool()?;
            let addr = device.memory().alloc(pool, stream, bytes)?;
            handle_cache::enter(caller.number(), device.memory(), pool);
            Ok(addr)
        };
        first().map_err(|e| caller.refused(e))
    }))
}

/// Frees a block of the pool's device in stream order. Address 0 does nothing. `answer` converts the result.
#[inline(always)]
pub(crate) fn free<C: Caller, A>(
    caller: C,
    addr: u64,
    stream: StreamId,
    answer: impl Fn(Result<(), C::Failure>) -> A + Copy,
) -> A {
    let name = [caller.number(), stream];
    let heap = match fast_paths::find(name).enter_or_stay(name) {
        HeapEntry::Open(heap) => heap,
        HeapEntry::OtherName(seated) => return free_by_other_name(caller, addr, stream, answer, seated),
        HeapEntry::Elsewhere => return free_by_number(caller, addr, stream, answer),
    };
    match heap.free(addr) {
        FastFreed::Done => answer(Ok(())),
        FastFreed::Far(seated) => free_in_segment(caller, addr, stream, answer, seated),
        FastFreed::Missed([number, stream]) => {
            free_by_number(caller.with_number(number), addr, stream, answer)
        }
    }
}

/// Continues a free on the fast path whose address is in another segment than the first, if in any.
#[inline(always)]
fn free_far<C: Caller, A>(
    caller: C,
    addr: u64,
    stream: StreamId,
    answer: impl Fn(Result<(), C::Failure>) -> A + Copy,
    seated: SeatedAtHeap,
) -> A {
    match seated.enter([caller.number(), stream]).is_some_and(|heap| heap.free_far(addr)) {
        true => answer(Ok(())),
        false => free_by_number(caller, addr, stream, answer),
    }
}

/// The first step of a free without a fast path: there may be one on which frees are noted.
#[inline(always)]
fn free_noted<C: Caller, A>(
    caller: C,
    addr: u64,
    stream: StreamId,
    answer: impl Fn(Result<(), C::Failure>) -> A + Copy,
    seated: SeatedAtHeap,
) -> A {
    let name = fast_paths::noted([caller.number(), stream]);
    match watched::free_noted(seated, name, addr, stream) {
        FreedNoted::Done => answer(Ok(())),
        FreedNoted::Far(seated) => free_in_segment_noted(caller, addr, stream, answer, seated),
        FreedNoted::Missed => free_by_number(caller, addr, stream, answer),
    }
}

/// Continues a free that is noted and whose address is in another segment than the first, if in any.
#[inline(always)]
fn free_far_noted<C: Caller, A>(
    caller: C,
    addr: u64,
    stream: StreamId,
    answer: impl Fn(Result<(), C::Failure>) -> A + Copy,
    seated: SeatedAtHeap,
) -> A {
    match watched::free_far_noted(seated, fast_paths::noted([caller.number(), stream]), addr, stream) {
        true => answer(Ok(())),
        false => free_by_number(caller, addr, stream, answer),
    }
}

/// The first step of a free without any fast path, or that the fast path has missed.
#[inline(always)]
fn free_found<C: Caller, A>(
    caller: C,
    addr: u64,
    stream: StreamId,
    answer: impl Fn(Result<(), C::Failure>) -> A + Copy,
) -> A {
    let Some(entry) = handle_cache::find(caller.number()) else {
        return free_watched(caller, addr, stream, answer);
    };
    let pooled = entry.pooled();
    let Some(offset) = pooled.offset(addr) else {
        return free_rest(caller, pooled, Block::At(addr), stream, answer);
    };
    match pooled.free_quick(offset, stream) {
        Freed::Done => answer(Ok(())),
        Freed::Missed(heap) => free_rest(caller, pooled, Block::Missed { offset, heap }, stream, answer),
    }
}

/// A free that names a pool that was not found: its device may be watched.
#[inline(always)]
fn free_watched<C: Caller, A>(
    caller: C,
    addr: u64,
    stream: StreamId,
    answer: impl Fn(Result<(), C::Failure>) -> A + Copy,
) -> A {
    match handle_cache::find_watched(caller.number()).map(Entry::pooled) {
        Some(pooled) if pooled.free_quick_watched(addr, stream) => answer(Ok(())),
        Some(_) => free_first(caller, addr, stream, answer),
        None => free_timed(caller, addr, stream, answer),
    }
}

/// A free that names a pool that was not found among those either: its device's calls may be timed.
#[cold]
#[inline(never)]
fn free_timed<C: Caller, A>(
    caller: C,
    addr: u64,
    stream: StreamId,
    answer: impl Fn(Result<(), C::Failure>) -> A,
) -> A {
    match handle_cache::find_timed(caller.number()).map(Entry::pooled) {
        Some(pooled) if pooled.free_quick_timed(addr, stream) => answer(Ok(())),
        _ => free_first(caller, addr, stream, answer),
    }
}

fn free_rest<C: Caller, A>(
    caller: C,
    pooled: &'static Pooled,
    block: Block,
    stream: StreamId,
    answer: impl Fn(Result<(), C::Failure>) -> A,
) -> A {
    answer(caller.guard(|| {
        caller.may_call()?;
        let done = match pooled.whole.get() {
            Some(whole) => whole.free_with_all_steps(block, stream),
            // Not so, since its pool was found.
            None => caller.pool()?.0.memory().free_block(block, Some(stream), None),
        };
        match block {
            Block::At(addr) => done.map_err(|e| explained(addr, Kind::Block, e)),
            _ => done,
        }
    }))
}

/// A free that names a pool which is not in the cache.
#[cold]
#[inline(never)]
fn free_first<C: Caller, A>(
    caller: C,
    addr: u64,
    stream: StreamId,
    answer: impl Fn(Result<(), C::Failure>) -> A,
) -> A {
    answer(caller.guard(|| {
        caller.may_call()?;
        let done = caller.pool()?.0.memory().free(addr, Some(stream), None);
        done.map_err(|e| explained(addr, Kind::Block, e))
    }))
}
