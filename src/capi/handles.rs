//! The numbers that C holds as `millpond_device *`, `millpond_pool *` and the like.
//!
//! A handle is never a pointer: its top 16 bits are a mark that no address of a process has, so a pointer of the
//! caller, a handle of another kind and an arbitrary value are all recognised. Below the mark, a device has its id
//! (never reused), a pool its slot and the slot's generation. A lookup is a few loads, takes no lock and follows no
//! pointer from C.

use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::Mutex;
use crate::capi::guard;
use crate::capi::types::{millpond_capture, millpond_checkpoint, millpond_device, millpond_pool};
use crate::paddle::abi::C_Status;
use crate::runtime::ladder::Caller;
use crate::runtime::{self, DeviceState, OomReport, PoolId, lock};
use std::collections::BTreeMap;
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

const _: () = assert!(size_of::<usize>() == 8, "handles need 64-bit pointers");

const DEVICE_MARK: u64 = 0xD1CE;
const DEFAULT_POOL_MARK: u64 = 0xDEF0;
const POOL_MARK: u64 = 0xB00C;
const MARK_SHIFT: u32 = 48;
/// Bits of a slot number in a pool handle; the 24 bits above are the generation.
const SLOT_BITS: u32 = 24;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;

/// The number of pool slots in a chunk; chunks are allocated as pools are created, and never freed.
const CHUNK: usize = 1024;
const CHUNKS: usize = 1024;

/// One pool. `generation` is odd while the pool lives; the other two fields are stable then.
#[derive(Default)]
struct Slot {
    generation: AtomicU32,
    device: AtomicU32,
    pool: AtomicU64,
}

static SLOTS: [OnceLock<Box<[Slot]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];

/// What is needed to create and end handles; lookups do not use it.
struct Book {
    free: Vec<u32>,
    used: u32,
    handles: BTreeMap<(u32, PoolId), u64>,
    names: BTreeMap<u64, String>,
}

static BOOK: Mutex<Book> =
    Mutex::new(Book { free: Vec::new(), used: 0, handles: BTreeMap::new(), names: BTreeMap::new() });

fn invalid<T>(message: &'static str) -> Result<T> {
    Err(Error::new(Code::InvalidArgument, message))
}

fn to_ptr<T>(mark: u64, rest: u64) -> *mut T {
    without_provenance_mut((mark << MARK_SHIFT | rest) as usize)
}

fn split<T>(handle: *const T) -> (u64, u64) {
    let bits = handle.addr() as u64;
    (bits >> MARK_SHIFT, bits & ((1 << MARK_SHIFT) - 1))
}

/// The handle of a device.
pub(crate) fn of_device(device: &DeviceState) -> *mut millpond_device {
    to_ptr(DEVICE_MARK, device.id().into())
}

/// The open device of a handle.
#[inline]
pub(crate) fn device(handle: *const millpond_device) -> Result<&'static Arc<DeviceState>> {
    match split(handle) {
        (DEVICE_MARK, id) => open_device(id),
        (0, 0) => invalid("the device is NULL"),
        _ => invalid("the device is not a handle that millpond_device_get gave"),
    }
}

#[inline]
fn open_device(id: u64) -> Result<&'static Arc<DeviceState>> {
    let Some(d) = u32::try_from(id).ok().and_then(runtime::by_id) else {
        return invalid("the handle's device was never opened");
    };
    if !d.is_open() {
        return Err(Error::new(
            Code::NotInitialized,
            "the device has ended; get it again with millpond_device_get",
        ));
    }
    Ok(d)
}

#[inline]
fn slot(number: u64) -> Option<&'static Slot> {
    SLOTS.get(number as usize / CHUNK)?.get()?.get(number as usize % CHUNK)
}

/// Something of a device that has a 32-bit number, which is never reused.
pub(crate) trait Numbered {
    /// The mark of its handles; no other kind has it.
    const MARK: u64;
    /// For messages.
    const WHAT: &'static str;
}

impl Numbered for millpond_capture {
    const MARK: u64 = 0xCA97;
    const WHAT: &'static str = "capture";
}

impl Numbered for millpond_checkpoint {
    const MARK: u64 = 0xCEC9;
    const WHAT: &'static str = "checkpoint";
}

/// The handle of a numbered thing of a device. The device's id must fit into 16 bits.
pub(crate) fn of_numbered<T: Numbered>(device: &DeviceState, number: u64) -> Result<*mut T> {
    if device.id() > 0xFFFF || number > u64::from(u32::MAX) {
        return Err(Error::new(Code::System, "there were too many of these on the device"));
    }
    Ok(to_ptr(T::MARK, u64::from(device.id()) << 32 | number))
}

/// The device and the number of such a handle. The device knows whether the number is still valid.
pub(crate) fn numbered<T: Numbered>(handle: *const T) -> Result<(&'static Arc<DeviceState>, u64)> {
    match split(handle) {
        (mark, rest) if mark == T::MARK => Ok((open_device(rest >> 32)?, rest & u64::from(u32::MAX))),
        (0, 0) => Err(Error::new(Code::InvalidArgument, format!("the {} is NULL", T::WHAT))),
        _ => Err(Error::new(Code::InvalidArgument, format!("the {0} is not a handle of a {0}", T::WHAT))),
    }
}

/// The open device and the pool of a handle.
#[inline]
pub(crate) fn pool(handle: *const millpond_pool) -> Result<(&'static Arc<DeviceState>, PoolId)> {
    match split(handle) {
        (POOL_MARK, rest) => {
            let generation = (rest >> SLOT_BITS) as u32;
            let Some(s) = slot(rest & SLOT_MASK) else { return invalid("the pool was never created") };
            // Acquire: with the release store in `new_pool`, so that the fields belong to it.
            let before = s.generation.load(Ordering::Acquire);
            let device = s.device.load(Ordering::Relaxed);
            let pool = s.pool.load(Ordering::Relaxed);
            // The fields were not changed while they were read: pairs with the fence in `new_pool`.
            fence(Ordering::Acquire);
            let after = s.generation.load(Ordering::Relaxed);
            if before != generation || after != generation || generation & 1 == 0 {
                return invalid("the pool was destroyed");
            }
            Ok((open_device(device.into())?, PoolId(pool as u32)))
        }
        (DEFAULT_POOL_MARK, id) => Ok((open_device(id)?, PoolId::DEFAULT)),
        (0, 0) => invalid("the pool is NULL"),
        _ => invalid("the pool is not a handle of a pool"),
    }
}

/// The handle of a pool of `device`: the same each time, created if there is none yet.
pub(crate) fn of_pool(device: &DeviceState, pool: PoolId) -> Result<*mut millpond_pool> {
    if pool == PoolId::DEFAULT {
        return Ok(to_ptr(DEFAULT_POOL_MARK, device.id().into()));
    }
    let mut book = lock(&BOOK);
    if let Some(&bits) = book.handles.get(&(device.id(), pool)) {
        return Ok(to_ptr(POOL_MARK, bits));
    }
    let number = match book.free.pop() {
        Some(n) => n,
        None if (book.used as usize) < CHUNK * CHUNKS => {
            book.used += 1;
            book.used - 1
        }
        None => return Err(Error::new(Code::System, "too many pools are alive")),
    };
    SLOTS[number as usize / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Slot::default()).collect());
    let Some(s) = slot(number.into()) else {
        return Err(Error::new(Code::Internal, "a pool slot is missing"));
    };
    // Only holders of the book's lock write slots.
    let generation = s.generation.load(Ordering::Relaxed).wrapping_add(1) & 0xFF_FFFF;
    // A reader that sees the new fields must see that the generation moved on: pairs with its fence.
    fence(Ordering::Release);
    s.device.store(device.id(), Ordering::Relaxed);
    s.pool.store(pool.0.into(), Ordering::Relaxed);
    s.generation.store(generation, Ordering::Release);
    let bits = u64::from(generation) << SLOT_BITS | u64::from(number);
    book.handles.insert((device.id(), pool), bits);
    Ok(to_ptr(POOL_MARK, bits))
}

/// The handle of the default pool of what may be a device.
#[inline(always)]
pub(crate) fn default_pool_of(device: *const millpond_device) -> *const millpond_pool {
    match split(device) {
        (DEVICE_MARK, id) => to_ptr::<millpond_pool>(DEFAULT_POOL_MARK, id),
        _ => std::ptr::null(),
    }
}

/// A pool, as C names it in an allocation or a free.
#[derive(Clone, Copy)]
pub(crate) struct Named(pub *const millpond_pool);

impl Caller for Named {
    type Failure = C_Status;
    const UNWINDS: bool = false;

    #[inline(always)]
    fn number(self) -> u64 {
        self.0.addr() as u64
    }

    #[inline(always)]
    fn with_number(self, number: u64) -> Self {
        Named(without_provenance_mut(number as usize))
    }

    fn pool(self) -> Result<(&'static Arc<DeviceState>, PoolId)> {
        pool(self.0)
    }

    fn may_call(self) -> Result<()> {
        guard::may_call()
    }

    fn refused(self, e: Error) -> Error {
        with_name(self.0, e)
    }

    fn guard<T>(self, body: impl FnOnce() -> Result<T>) -> Result<T, C_Status> {
        guard::guarded(body)
    }
}

/// The handle of a pool of `device`; none if the pool has ended meanwhile.
pub(crate) fn of_live_pool(device: &DeviceState, pool: PoolId) -> Option<*mut millpond_pool> {
    let known = lock(&BOOK).handles.get(&(device.id(), pool)).copied();
    match known {
        Some(bits) => Some(to_ptr(POOL_MARK, bits)),
        None if device.memory().has_pool(pool) => of_pool(device, pool).ok(),
        None => None,
    }
}

/// Ends the handles of the device's released pools that have no live blocks any more, with the pools.
pub(crate) fn end_released(device: &DeviceState) {
    for pool in device.memory().end_released() {
        end_pool(device, pool);
    }
}

/// Ends the handle of a pool that was destroyed.
pub(crate) fn end_pool(device: &DeviceState, pool: PoolId) {
    let mut book = lock(&BOOK);
    if let Some(bits) = book.handles.remove(&(device.id(), pool)) {
        retire(&mut book, bits);
    }
}

fn retire(book: &mut Book, bits: u64) {
    book.names.remove(&bits);
    if let Some(s) = slot(bits & SLOT_MASK) {
        let even = s.generation.load(Ordering::Relaxed).wrapping_add(1) & 0xFF_FFFF;
        s.generation.store(even, Ordering::Release);
        // A slot whose generations are used up is retired, so that no old handle becomes valid again.
        if even != 0 {
            book.free.push((bits & SLOT_MASK) as u32);
        }
    }
}

/// Ends the handles of pools whose device has ended. The slots keep the device's id until then, so that calls on them
/// can report that the device has ended.
pub(crate) fn end_pools_of_ended_devices() {
    let mut book = lock(&BOOK);
    let ended = |id: u32| runtime::by_id(id).is_none_or(|d| !d.is_open());
    let gone: Vec<_> = book.handles.keys().copied().filter(|k| ended(k.0)).collect();
    for key in gone {
        if let Some(bits) = book.handles.remove(&key) {
            book.names.remove(&bits);
        }
    }
}

/// Sets the name of a pool, for messages.
pub(crate) fn name_pool(handle: *const millpond_pool, name: &str) {
    lock(&BOOK).names.insert(split(handle).1, name.to_owned());
    runtime::name_pools_by(name_on);
}

/// The name of a pool of the device of that number, if it has one.
fn name_on(device: u32, pool: PoolId) -> Option<String> {
    let book = lock(&BOOK);
    book.names.get(book.handles.get(&(device, pool))?).cloned()
}

/// The name of a pool, if it has one.
pub(crate) fn name_of(device: &DeviceState, pool: PoolId) -> Option<String> {
    name_on(device.id(), pool)
}

/// The same report with the names of pools.
pub(crate) fn named_report(report: &OomReport) -> OomReport {
    let mut r = report.clone();
    let Some(device) = r.device.and_then(runtime::by_id) else { return r };
    r.pool_name = name_of(device, r.pool).unwrap_or_default();
    for h in &mut r.pools {
        h.name = h.pool.and_then(|p| name_of(device, p)).unwrap_or_default();
    }
    r
}

/// The same error, in whose report, if it has one, pools have their names.
#[cold]
pub(crate) fn named(e: Error) -> Error {
    match e.oom_report() {
        Some(report) => {
            let report = named_report(&report);
            Error::new(e.code(), report.line()).with(Arc::new(report))
        }
        None => e,
    }
}

/// The pools of a device that have this name.
pub(crate) fn pools_named(device: &DeviceState, name: &str) -> Vec<PoolId> {
    let book = lock(&BOOK);
    let of_device = book.handles.range((device.id(), PoolId(0))..=(device.id(), PoolId(u32::MAX)));
    let named = of_device.filter(|(_, bits)| book.names.get(bits).is_some_and(|n| n == name));
    named.map(|(key, _)| key.1).collect()
}

/// The same error, prefixed with the pool's name if it has one.
#[cold]
pub(crate) fn with_name(handle: *const millpond_pool, e: Error) -> Error {
    if e.oom_report().is_some() {
        return named(e);
    }
    let (POOL_MARK, bits) = split(handle) else { return e };
    match lock(&BOOK).names.get(&bits) {
        Some(name) => Error::new(e.code(), format!("pool {name:?}: {}", e.message())),
        None => e,
    }
}
