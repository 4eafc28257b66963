//! A plugin whose work takes as long as the test says: two devices, each with addresses of its own that no processor
//! can touch, and streams that run on threads, one each. It does what `custom_runtime.h` requires of a plugin, and no
//! more. Before the registration a test can change that: leave a callback out, make it answer differently, or run
//! something at the start of each callback.
//!
//! It records what a host must not do (`faults`): end the plugin while a thread is in a callback or work is queued,
//! call it after that, use addresses without memory, give memory back twice.

use crate::client::{Refused, said};
use millpond::capi::millpond_device_type_register;
use millpond::paddle::abi::*;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::CString;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

#[path = "slow/memory.rs"]
mod memory;
#[path = "slow/streams.rs"]
mod streams;

use memory::*;
pub use memory::{
    device_memory_deallocate, host_memory_allocate, host_memory_deallocate, unified_memory_allocate,
    unified_memory_deallocate,
};
use streams::*;

type Job = Box<dyn FnOnce() + Send>;

/// One stream. It stays until it was ended and its work is done.
#[derive(Default)]
struct Stream {
    device: i32,
    queue: VecDeque<Job>,
    submitted: u64,
    completed: u64,
    ended: bool,
}

/// A device, and what the host has for a stream or event of it.
type Handle = (i32, u64);

/// What an event has recorded: (stream's number, how far).
type Recorded = Option<(u64, u64)>;

#[derive(Default)]
struct State {
    /// Memory of each device by its address. What was given back stays for work that was queued before.
    live: [BTreeMap<u64, Vec<u8>>; 2],
    gone: [BTreeMap<u64, Vec<u8>>; 2],
    next_address: [u64; 2],
    streams: BTreeMap<u64, Stream>, // by a number of ours
    handles: HashMap<Handle, u64>,  // of streams that have not ended -> the number
    events: HashMap<Handle, Recorded>,
    made: [u64; 2],
    numbers: u64,
    inside: usize, // threads that are in a callback
    ended: bool,
    faults: Vec<String>,
    manner: Manner,
}

/// How the plugin is.
#[derive(Clone)]
pub struct Manner {
    /// Both devices give out the same addresses.
    pub same_addresses: bool,
    pub min_chunk: usize,
    pub max_chunk: usize,
    /// Of the first segment and of later ones.
    pub segment: usize,
    /// The handle of the nth stream or event.
    pub handle: fn(u64) -> u64,
    /// Each device counts for itself, so that they have the same handles.
    pub same_handles: bool,
    /// How long each piece of work takes at least.
    pub latency: Duration,
    /// [B] of memory of each device.
    pub capacity: usize,
}

impl Default for Manner {
    fn default() -> Manner {
        let mib = 1 << 20;
        Manner {
            same_addresses: false,
            min_chunk: 512,
            max_chunk: 16 * mib,
            segment: 8 * mib,
            handle: |n| 0x1000 + n * 16,
            same_handles: false,
            latency: Duration::ZERO,
            capacity: 256 * mib,
        }
    }
}

/// What to do at the start of each callback, by its name.
pub type Hook = Arc<dyn Fn(&'static str) + Send + Sync>;
/// What `device_memory_allocate` and its sisters answer instead of their own: (status, address), from the callback's
/// name, the device and the bytes. `None`: what they would have.
pub type Answer = Arc<dyn Fn(&'static str, i32, usize) -> Option<(C_Status, u64)> + Send + Sync>;
/// What a callback answers instead of doing anything, by its name. `None`: it goes on.
pub type Refusal = Arc<dyn Fn(&'static str) -> Option<C_Status> + Send + Sync>;
/// Which callbacks there are.
pub type Tweak = Box<dyn Fn(&mut C_DeviceInterface) + Send>;

static STATE: Mutex<Option<State>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();
static HOOK: Mutex<Option<Hook>> = Mutex::new(None);
static ANSWER: Mutex<Option<Answer>> = Mutex::new(None);
static REFUSAL: Mutex<Option<Refusal>> = Mutex::new(None);
static TWEAK: Mutex<Option<(CString, Tweak)>> = Mutex::new(None);

thread_local! {
    /// Callbacks that this thread is in: a hook may lead into another one.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// The name of the device type.
pub const NAME: &str = "slow";

struct Locked(MutexGuard<'static, Option<State>>);

impl std::ops::Deref for Locked {
    type Target = State;
    fn deref(&self) -> &State {
        self.0.as_ref().unwrap()
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().unwrap()
    }
}

fn lock() -> Locked {
    let mut s = STATE.lock().unwrap_or_else(|e| e.into_inner());
    s.get_or_insert_default();
    Locked(s)
}

fn wait(s: Locked) -> Locked {
    Locked(CHANGED.wait(s.0).unwrap_or_else(|e| e.into_inner()))
}

/// Registers the plugin as new.
pub fn register(
    manner: Manner,
    tweak: impl Fn(&mut C_DeviceInterface) + Send + 'static,
) -> Result<(), Refused> {
    // Device memory comes from the system each time, zeros that nobody has touched. Once the C library keeps large blocks that
    // come back, it clears all of one for the next.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20) };
    let base = 0x7000_0000_0000;
    let second = if manner.same_addresses { base } else { 0x7100_0000_0000 };
    let mut s = lock();
    // Threads of streams that have ended may not have noticed yet: their numbers are not used again.
    let numbers = s.numbers;
    *s = State { manner, next_address: [base, second], numbers, ..State::default() };
    drop(s);
    *TWEAK.lock().unwrap() = Some((CString::new(NAME).unwrap(), Box::new(tweak)));
    said(unsafe { millpond_device_type_register(Some(init), std::ptr::null_mut(), 0) })
}

pub fn set_hook(hook: Option<Hook>) {
    *HOOK.lock().unwrap() = hook;
}

pub fn set_answer(answer: Option<Answer>) {
    *ANSWER.lock().unwrap() = answer;
}

#[allow(dead_code, reason = "not every program has callbacks refuse")]
pub fn set_refusal(refusal: Option<Refusal>) {
    *REFUSAL.lock().unwrap() = refusal;
}

/// [B] of memory of a device that the host has and has not given back.
#[allow(dead_code, reason = "as above")]
pub fn held_bytes(device: i32) -> usize {
    lock().taken(device)
}

/// Streams that the host has and has not destroyed.
#[allow(dead_code, reason = "as above")]
pub fn streams() -> usize {
    lock().handles.len()
}

/// What the host has done wrong.
pub fn faults() -> Vec<String> {
    lock().faults.clone()
}

/// Pieces of memory that the host has and has not given back.
pub fn held() -> usize {
    lock().live.iter().map(BTreeMap::len).sum()
}

/// Events that the host has and has not destroyed.
pub fn events() -> usize {
    lock().events.len()
}

/// Memory that a test's own answer gives out: the plugin knows it from then on, and takes it back.
pub fn give_at(device: i32, at: u64, bytes: usize) {
    lock().live[device as usize].insert(at, vec![0; bytes]);
}

/// Whether any work is queued.
pub fn busy() -> bool {
    lock().busy()
}

impl State {
    /// [B] that the host has of a device.
    fn taken(&self, device: i32) -> usize {
        self.live[device as usize].values().map(Vec::len).sum()
    }

    fn busy(&self) -> bool {
        self.streams.values().any(|s| s.completed < s.submitted)
    }

    fn fault(&mut self, what: String) {
        self.faults.push(what);
    }

    /// Runs `body` with the bytes at an address; a fault where there is no memory.
    fn bytes<R>(
        &mut self,
        device: i32,
        at: u64,
        count: usize,
        body: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        let of = device as usize;
        for spaces in [&mut self.live, &mut self.gone] {
            if let Some((&start, memory)) = spaces[of].range_mut(..=at).next_back()
                && let Some(piece) = memory.get_mut((at - start) as usize..(at - start) as usize + count)
            {
                return Some(body(piece));
            }
        }
        self.fault(format!("device {device}: there are no {count} bytes at {at:#x}"));
        None
    }

    /// The number of a stream of the host's.
    fn stream(&mut self, d: C_Device, stream: C_Stream) -> Option<u64> {
        let handle = (id(d), stream as usize as u64);
        let found = self.handles.get(&handle).copied();
        if found.is_none() {
            self.fault(format!("device {} has no stream {:#x}", handle.0, handle.1));
        }
        found
    }

    fn new_handle(&mut self, d: C_Device) -> Handle {
        let of = if self.manner.same_handles { id(d) as usize } else { 0 };
        self.made[of] += 1;
        (id(d), (self.manner.handle)(self.made[of]))
    }
}

/// Everything passes here.
fn call(name: &'static str, body: impl FnOnce() -> C_Status) -> C_Status {
    {
        let mut s = lock();
        if DEPTH.get() == 0 {
            s.inside += 1;
        }
        if s.ended {
            s.fault(format!("{name} is called after the plugin has ended"));
        }
    }
    DEPTH.set(DEPTH.get() + 1);
    let hook = HOOK.lock().unwrap().clone();
    if let Some(hook) = hook {
        hook(name);
    }
    let refusal = REFUSAL.lock().unwrap().clone();
    let status = refusal.and_then(|refusal| refusal(name)).unwrap_or_else(body);
    DEPTH.set(DEPTH.get() - 1);
    let mut s = lock();
    if DEPTH.get() == 0 {
        s.inside -= 1;
    }
    if s.ended && name != "finalize" {
        s.fault(format!("the plugin was ended while a thread was in {name}"));
    }
    status
}

fn id(d: C_Device) -> i32 {
    // SAFETY: the host gives a device for the length of the call.
    unsafe { (*d).id }
}

unsafe extern "C-unwind" fn init(params: *mut CustomRuntimeParams) {
    // SAFETY: the host's contract.
    let params = unsafe { &mut *params };
    // SAFETY: as above.
    let t = unsafe { &mut *params.interface };
    params.version = CustomRuntimeVersion::CURRENT;
    t.initialize = Some(initialize);
    t.finalize = Some(finalize);
    t.deinit_device = Some(deinit_device);
    t.create_stream = Some(create_stream);
    t.destroy_stream = Some(destroy_stream);
    t.query_stream = Some(query_stream);
    t.stream_add_callback = Some(stream_add_callback);
    t.synchronize_stream = Some(synchronize_stream);
    t.synchronize_device = Some(synchronize_device);
    t.create_event = Some(create_event);
    t.destroy_event = Some(destroy_event);
    t.record_event = Some(record_event);
    t.query_event = Some(query_event);
    t.synchronize_event = Some(synchronize_event);
    t.stream_wait_event = Some(stream_wait_event);
    t.device_memory_allocate = Some(device_memory_allocate);
    t.device_memory_deallocate = Some(device_memory_deallocate);
    t.device_memory_set = Some(device_memory_set);
    t.memory_copy_h2d = Some(memory_copy_h2d);
    t.memory_copy_d2h = Some(memory_copy_d2h);
    t.async_memory_copy_h2d = Some(async_memory_copy_h2d);
    t.async_memory_copy_d2h = Some(async_memory_copy_d2h);
    t.async_memory_copy_d2d = Some(async_memory_copy_d2d);
    t.get_device_count = Some(get_device_count);
    t.device_memory_stats = Some(device_memory_stats);
    t.device_min_chunk_size = Some(device_min_chunk_size);
    t.device_max_chunk_size = Some(device_max_chunk_size);
    t.device_init_alloc_size = Some(segment_size);
    t.device_realloc_size = Some(segment_size);
    let tweak = TWEAK.lock().unwrap();
    let (name, tweak) = tweak.as_ref().unwrap();
    params.device_type = name.clone().into_raw(); // a few bytes for each registration
    tweak(t);
}

unsafe extern "C-unwind" fn initialize() -> C_Status {
    call("initialize", || C_Status::SUCCESS)
}

/// Everything must be over by now, of all devices or of one.
fn check_end(name: &str, device: Option<i32>) {
    let mut s = lock();
    if s.inside > 1 && device.is_none() {
        let others = s.inside - 1;
        s.fault(format!("{name} comes while {others} threads are in callbacks"));
    }
    if s.streams.values().any(|s| s.completed < s.submitted && device.is_none_or(|d| s.device == d)) {
        s.fault(format!("{name} comes while work is queued"));
    }
}

unsafe extern "C-unwind" fn finalize() -> C_Status {
    call("finalize", || {
        check_end("finalize", None);
        lock().ended = true;
        C_Status::SUCCESS
    })
}

unsafe extern "C-unwind" fn deinit_device(d: C_Device) -> C_Status {
    call("deinit_device", || {
        check_end("deinit_device", Some(id(d)));
        C_Status::SUCCESS
    })
}

fn put<T>(out: *mut T, value: T) -> C_Status {
    // SAFETY: the host's place for the answer.
    unsafe { *out = value };
    C_Status::SUCCESS
}

unsafe extern "C-unwind" fn get_device_count(out: *mut usize) -> C_Status {
    call("get_device_count", || put(out, 2))
}

unsafe extern "C-unwind" fn device_memory_stats(
    d: C_Device,
    total: *mut usize,
    free: *mut usize,
) -> C_Status {
    call("device_memory_stats", || {
        let s = lock();
        put(total, s.manner.capacity);
        put(free, s.manner.capacity - s.taken(id(d)))
    })
}

unsafe extern "C-unwind" fn device_min_chunk_size(_: C_Device, out: *mut usize) -> C_Status {
    call("device_min_chunk_size", || put(out, lock().manner.min_chunk))
}

unsafe extern "C-unwind" fn device_max_chunk_size(_: C_Device, out: *mut usize) -> C_Status {
    call("device_max_chunk_size", || put(out, lock().manner.max_chunk))
}

unsafe extern "C-unwind" fn segment_size(_: C_Device, out: *mut usize) -> C_Status {
    call("device_init_alloc_size", || put(out, lock().manner.segment))
}
