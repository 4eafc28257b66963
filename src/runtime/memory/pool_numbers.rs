//! Numbers that stand for pools in the whole process, for languages that hold no Rust values: the C API makes its handles
//! of them.
//!
//! A number is a slot and its generation. The generation is odd while the pool lives, and a slot whose generations are
//! used up is not used again, so a number never comes to stand for another pool. A lookup takes no lock and a few loads;
//! only holders of the book's lock write slots.

use crate::base::error::{Code, Error, Result};
use crate::base::ordered::Map;
use crate::base::slots::AtomicRef;
use crate::base::sync::system::{Mutex, lock};
use crate::core::PoolId;
use crate::fail;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bits of the slot in a number; the 24 bits above are the generation.
const SLOT_BITS: u32 = 24;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const GENERATION_MASK: u32 = 0xFF_FFFF;

/// Slots in a chunk; chunks are allocated as pools get numbers, and never freed.
const CHUNK: usize = 1024;
const CHUNKS: usize = 1024;

/// One pool. `generation` is odd while the pool lives; the other two fields are stable then.
struct Slot {
    generation: AtomicU32,
    device: AtomicU32,
    pool: AtomicU64,
}

impl Slot {
    const fn new() -> Slot {
        Slot { generation: AtomicU32::new(0), device: AtomicU32::new(0), pool: AtomicU64::new(0) }
    }
}

// All zeros, so that the table takes no room in a program's file.
static SLOTS: [AtomicRef<[Slot; CHUNK]>; CHUNKS] = [const { AtomicRef::none() }; CHUNKS];

/// What is needed to give numbers and to end them; lookups do not use it.
struct Book {
    free: Vec<u32>,
    used: u32,
    numbers: Map<(u32, u32), u64>, // by device and pool
}

static BOOK: Mutex<Book> = Mutex::new(Book { free: Vec::new(), used: 0, numbers: Map::new() });

#[inline]
fn slot(number: u64) -> Option<&'static Slot> {
    let at = (number & SLOT_MASK) as usize;
    SLOTS.get(at / CHUNK)?.get()?.get(at % CHUNK)
}

/// The device and the pool that a number stands for. `InvalidArgument` if it stands for none any more.
#[inline]
pub(crate) fn find(number: u64) -> Result<(u32, PoolId)> {
    let generation = (number >> SLOT_BITS) as u32;
    let Some(s) = slot(number) else { fail!(Code::InvalidArgument, "the pool was never created") };
    // Acquire: with the release store in `give`, so that the fields belong to it.
    let before = s.generation.load(Ordering::Acquire);
    let device = s.device.load(Ordering::Relaxed);
    let pool = s.pool.load(Ordering::Relaxed);
    // The fields were not changed while they were read: pairs with the fence in `give`.
    fence(Ordering::Acquire);
    let after = s.generation.load(Ordering::Relaxed);
    if before != generation || after != generation || generation & 1 == 0 {
        fail!(Code::InvalidArgument, "the pool was destroyed");
    }
    Ok((device, PoolId(pool as u32)))
}

/// The number of a pool, if it has one.
pub(crate) fn known(device: u32, pool: PoolId) -> Option<u64> {
    lock(&BOOK).numbers.get(&(device, pool.0)).copied()
}

/// The number of a pool: the same each time, a new one if there is none yet.
pub(crate) fn give(device: u32, pool: PoolId) -> Result<u64> {
    let mut book = lock(&BOOK);
    if let Some(&number) = book.numbers.get(&(device, pool.0)) {
        return Ok(number);
    }
    let at = match book.free.pop() {
        Some(n) => n,
        None if (book.used as usize) < CHUNK * CHUNKS => {
            book.used += 1;
            book.used - 1
        }
        None => return Err(Error::new(Code::System, "too many pools are alive")),
    };
    SLOTS[at as usize / CHUNK].get_or_make(|| Box::new([const { Slot::new() }; CHUNK]));
    let Some(s) = slot(at.into()) else {
        return Err(Error::new(Code::Internal, "a pool slot is missing"));
    };
    let generation = s.generation.load(Ordering::Relaxed).wrapping_add(1) & GENERATION_MASK;
    // A reader that sees the new fields must see that the generation moved on: pairs with its fence.
    fence(Ordering::Release);
    s.device.store(device, Ordering::Relaxed);
    s.pool.store(pool.0.into(), Ordering::Relaxed);
    s.generation.store(generation, Ordering::Release);
    let number = u64::from(generation) << SLOT_BITS | u64::from(at);
    book.numbers.insert((device, pool.0), number);
    Ok(number)
}

/// The pool has ended, and its number stands for nothing any more.
pub(crate) fn end(device: u32, pool: PoolId) {
    let mut book = lock(&BOOK);
    let Some(number) = book.numbers.remove(&(device, pool.0)) else { return };
    if let Some(s) = slot(number) {
        let even = s.generation.load(Ordering::Relaxed).wrapping_add(1) & GENERATION_MASK;
        s.generation.store(even, Ordering::Release);
        // A slot whose generations are used up is retired, so that no old number becomes valid again.
        if even != 0 {
            book.free.push((number & SLOT_MASK) as u32);
        }
    }
}

/// The device has ended. The slots of its pools keep its number for ever, so that calls on them can tell that.
pub(crate) fn device_ended(device: u32) {
    lock(&BOOK).numbers.retain(|&(of, _), _| of != device);
}
