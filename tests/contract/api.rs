//! The C API in a form that is handy for tests: handles are plain numbers that any thread may use, and a call returns
//! its result or the error. Nothing is checked or hidden on the way.

use millpond::capi::*;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut, with_exposed_provenance_mut};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;
pub const GIB: usize = 1 << 30;
pub const TIB: usize = 1 << 40;

/// A call that failed.
#[derive(Clone, Debug)]
pub struct Failed {
    pub code: u32,
    pub message: String,
}

pub type Outcome<T> = Result<T, Failed>;

thread_local! {
    /// What the thread calls when a call has failed, before that is put into words.
    pub static BEFORE_WORDS: Cell<fn()> = const { Cell::new(|| ()) };
}

/// What a status means, with the thread's last error if it is one. The two must fit.
#[track_caller]
pub fn outcome(status: C_Status) -> Outcome<()> {
    if status == C_Status::SUCCESS {
        return Ok(());
    }
    BEFORE_WORDS.get()();
    let message = unsafe { CStr::from_ptr(millpond_last_error_message()) }.to_string_lossy().into_owned();
    let code = millpond_last_error_code();
    let fits = match code {
        MILLPOND_E_OUT_OF_MEMORY | MILLPOND_E_DEVICE | MILLPOND_E_SYSTEM => C_Status::FAILED,
        MILLPOND_E_INTERNAL => C_Status::INTERNAL_ERROR,
        _ => C_Status::ERROR,
    };
    assert_eq!(status, fits, "code {code}: {message}");
    Err(Failed { code, message })
}

/// The code of a failure.
#[track_caller]
pub fn code<T: std::fmt::Debug>(result: Outcome<T>) -> u32 {
    result.expect_err("the call should have failed").code
}

pub fn ptr<T>(number: usize) -> *mut T {
    with_exposed_provenance_mut(number)
}

fn number<T>(p: *mut T) -> usize {
    p.expose_provenance()
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub usize);
    )*};
}

handles! {
    /// A `millpond_device *`.
    Device,
    /// A `millpond_pool *`.
    Pool,
    /// A `C_Stream` of the device that made it.
    Stream,
    /// A `C_Event`.
    Event,
    /// A `millpond_capture *`.
    Capture,
    /// A `millpond_checkpoint *`.
    Checkpoint
}

/// The default stream.
pub const NULL: Stream = Stream(0);

/// Device 0 of the type `host`, two devices of so many bytes, freshly started.
pub fn host(capacity: usize, mapping: bool) -> Device {
    let _ = millpond_finalize();
    let options = millpond_host_options {
        struct_size: size_of::<millpond_host_options>(),
        device_count: 2,
        capacity_bytes: capacity as u64,
        disable_mapping: u32::from(!mapping),
    };
    outcome(unsafe { millpond_host_configure(&options) }).unwrap();
    Device::get("host", 0).unwrap()
}

/// Device 0 of the type `host`, freshly started, whose memory is not pooled; as device 1 is.
pub fn unpooled_host() -> Device {
    let _ = millpond_finalize();
    millpond::runtime::set_default_options(Some("host"), None, "backend:none").unwrap();
    Device::get("host", 0).unwrap()
}

impl Device {
    pub fn get(name: &str, ordinal: i32) -> Outcome<Device> {
        let name = CString::new(name).unwrap();
        let mut d = null_mut();
        outcome(unsafe { millpond_device_get(name.as_ptr(), ordinal, &mut d) })?;
        Ok(Device(number(d)))
    }

    pub fn default_pool(self) -> Pool {
        let mut p = null_mut();
        outcome(unsafe { millpond_device_get_default_pool(ptr(self.0), &mut p) }).unwrap();
        Pool(number(p))
    }

    /// A new pool; a limit of 0 is none.
    pub fn pool(self, limit: usize) -> Pool {
        self.pool_with(limit, 0)
    }

    /// A new pool each of whose blocks lies in one allocation of the device.
    pub fn contiguous_pool(self) -> Pool {
        self.pool_with(0, MILLPOND_POOL_CONTIGUOUS)
    }

    fn pool_with(self, limit: usize, flags: u64) -> Pool {
        let options = millpond_pool_options {
            struct_size: size_of::<millpond_pool_options>(),
            limit_bytes: limit as u64,
            name: null(),
            flags,
        };
        let mut p = null_mut();
        outcome(unsafe { millpond_pool_create(ptr(self.0), &options, &mut p) }).unwrap();
        Pool(number(p))
    }

    pub fn stream(self) -> Stream {
        self.try_stream().unwrap()
    }

    pub fn try_stream(self) -> Outcome<Stream> {
        let mut s: C_Stream = null_mut();
        outcome(unsafe { millpond_stream_create(ptr(self.0), &mut s) })?;
        Ok(Stream(number(s)))
    }

    pub fn end_stream(self, stream: Stream) -> Outcome<()> {
        outcome(unsafe { millpond_stream_destroy(ptr(self.0), ptr(stream.0)) })
    }

    pub fn stream_wait(self, stream: Stream, event: Event) -> Outcome<()> {
        outcome(unsafe { millpond_stream_wait_event(ptr(self.0), ptr(stream.0), ptr(event.0)) })
    }

    pub fn stream_synchronize(self, stream: Stream) -> Outcome<()> {
        outcome(unsafe { millpond_stream_synchronize(ptr(self.0), ptr(stream.0)) })
    }

    pub fn synchronize(self) -> Outcome<()> {
        outcome(unsafe { millpond_device_synchronize(ptr(self.0)) })
    }

    pub fn event(self) -> Event {
        let mut e: C_Event = null_mut();
        outcome(unsafe { millpond_event_create(ptr(self.0), &mut e) }).unwrap();
        Event(number(e))
    }

    pub fn end_event(self, event: Event) -> Outcome<()> {
        outcome(unsafe { millpond_event_destroy(ptr(self.0), ptr(event.0)) })
    }

    pub fn event_record(self, stream: Stream, event: Event) -> Outcome<()> {
        outcome(unsafe { millpond_event_record(ptr(self.0), ptr(stream.0), ptr(event.0)) })
    }

    pub fn event_query(self, event: Event) -> Outcome<bool> {
        let mut done = false;
        outcome(unsafe { millpond_event_query(ptr(self.0), ptr(event.0), &mut done) })?;
        Ok(done)
    }

    pub fn event_synchronize(self, event: Event) -> Outcome<()> {
        outcome(unsafe { millpond_event_synchronize(ptr(self.0), ptr(event.0)) })
    }

    /// A block without a stream; its address.
    pub fn alloc(self, bytes: usize) -> Outcome<usize> {
        let mut p = null_mut();
        outcome(unsafe { millpond_alloc(ptr(self.0), bytes, &mut p) })?;
        Ok(number(p))
    }

    pub fn empty_cache(self) -> Outcome<()> {
        outcome(unsafe { millpond_device_empty_cache(ptr(self.0)) })
    }

    pub fn trim_to(self, keep: usize) -> Outcome<()> {
        outcome(unsafe { millpond_device_trim_to(ptr(self.0), keep as u64) })
    }

    pub fn set_budget(self, bytes: usize) -> Outcome<usize> {
        let mut above = 0;
        outcome(unsafe { millpond_device_set_budget(ptr(self.0), bytes as u64, &mut above) })?;
        Ok(above as usize)
    }

    pub fn set_limit(self, bytes: usize) -> Outcome<()> {
        outcome(unsafe { millpond_device_set_limit(ptr(self.0), bytes as u64) })
    }

    pub fn set_options(self, text: &str) -> Outcome<()> {
        let text = CString::new(text).unwrap();
        outcome(unsafe { millpond_device_set_options(ptr(self.0), text.as_ptr()) })
    }

    pub fn stats(self) -> millpond_stats {
        let mut s: millpond_stats = unsafe { std::mem::zeroed() };
        s.struct_size = size_of::<millpond_stats>();
        outcome(unsafe { millpond_device_get_stats(ptr(self.0), &mut s) }).unwrap();
        s
    }

    /// Queues a fill.
    #[track_caller]
    pub fn fill(self, stream: Stream, at: usize, value: u8, bytes: usize) {
        outcome(unsafe { millpond_memset_async(ptr(self.0), ptr(stream.0), ptr(at), value, bytes) }).unwrap();
    }

    /// Queues a copy from one block to another.
    #[track_caller]
    pub fn copy(self, stream: Stream, to: usize, from: usize, bytes: usize) {
        let kind = MILLPOND_COPY_D2D;
        let status = unsafe {
            millpond_copy_async(ptr(self.0), ptr(stream.0), kind, ptr(to), ptr::<c_void>(from), bytes)
        };
        outcome(status).unwrap();
    }

    /// Queues a function.
    #[track_caller]
    pub fn call(self, stream: Stream, body: impl FnOnce() + Send + 'static) {
        type Body = Box<dyn FnOnce() + Send>;
        unsafe extern "C-unwind" fn run(data: *mut c_void, _: C_Status) {
            let body = unsafe { Box::from_raw(data.cast::<Body>()) };
            body();
        }
        let data: *mut c_void = Box::into_raw(Box::new(Box::new(body) as Body)).cast();
        outcome(unsafe { millpond_stream_add_callback(ptr(self.0), ptr(stream.0), Some(run), data) })
            .unwrap();
    }

    /// From here on nothing that is queued on the stream runs before the gate is open.
    #[track_caller]
    pub fn gate(self, stream: Stream) -> Gate {
        let gate = Gate::default();
        let bars = gate.0.clone();
        self.call(stream, move || bars.wait());
        gate
    }

    /// How many blocks of this size the device can give now, without a stream. They are freed again.
    pub fn room_for(self, bytes: usize) -> usize {
        let all: Vec<usize> = std::iter::from_fn(|| self.alloc(bytes).ok()).collect();
        all.iter().for_each(|&p| free(p).unwrap());
        all.len()
    }
}

impl Pool {
    pub fn alloc(self, bytes: usize, stream: Stream) -> Outcome<usize> {
        let mut p = null_mut();
        outcome(unsafe { millpond_pool_alloc(ptr(self.0), bytes, ptr(stream.0), &mut p) })?;
        Ok(number(p))
    }

    pub fn free(self, at: usize, stream: Stream) -> Outcome<()> {
        outcome(unsafe { millpond_pool_free(ptr(self.0), ptr(at), ptr(stream.0)) })
    }

    pub fn destroy(self) -> Outcome<()> {
        outcome(unsafe { millpond_pool_destroy(ptr(self.0)) })
    }

    /// Lets go of the pool: it ends with its last block.
    pub fn release(self) -> Outcome<()> {
        outcome(unsafe { millpond_pool_release(ptr(self.0)) })
    }

    pub fn empty_cache(self) -> Outcome<()> {
        outcome(unsafe { millpond_pool_empty_cache(ptr(self.0)) })
    }

    pub fn trim_to(self, keep: usize) -> Outcome<()> {
        outcome(unsafe { millpond_pool_trim_to(ptr(self.0), keep as u64) })
    }

    pub fn set_limit(self, bytes: usize) -> Outcome<()> {
        outcome(unsafe { millpond_pool_set_limit(ptr(self.0), bytes as u64) })
    }

    pub fn sleep(self, keep: bool) -> Outcome<()> {
        outcome(unsafe { millpond_pool_sleep(ptr(self.0), if keep { MILLPOND_SLEEP_KEEP } else { 0 }) })
    }

    pub fn wake(self) -> Outcome<()> {
        outcome(unsafe { millpond_pool_wake(ptr(self.0)) })
    }

    pub fn stats(self) -> millpond_stats {
        let mut s: millpond_stats = unsafe { std::mem::zeroed() };
        s.struct_size = size_of::<millpond_stats>();
        outcome(unsafe { millpond_pool_get_stats(ptr(self.0), &mut s) }).unwrap();
        s
    }

    pub fn capture(self, stream: Stream) -> Outcome<Capture> {
        let mut c = null_mut();
        outcome(unsafe { millpond_capture_begin(ptr(self.0), ptr(stream.0), &mut c) })?;
        Ok(Capture(number(c)))
    }

    pub fn checkpoint(self) -> Checkpoint {
        let mut c = null_mut();
        outcome(unsafe { millpond_pool_checkpoint(ptr(self.0), &mut c) }).unwrap();
        Checkpoint(number(c))
    }

    /// Goes back to a checkpoint; the blocks that this has made live, as it tells.
    pub fn restore(self, to: Checkpoint) -> Outcome<Vec<usize>> {
        unsafe extern "C-unwind" fn note(data: *mut c_void, at: *mut c_void, _: usize, live: bool) {
            if live {
                unsafe { &mut *data.cast::<Vec<usize>>() }.push(at.expose_provenance());
            }
        }
        let mut live = Vec::<usize>::new();
        let data = (&raw mut live).cast();
        outcome(unsafe { millpond_pool_restore(ptr(self.0), ptr(to.0), Some(note), data) })?;
        Ok(live)
    }
}

impl Capture {
    pub fn end(self) -> Outcome<()> {
        outcome(unsafe { millpond_capture_end(ptr(self.0)) })
    }

    pub fn release(self) -> Outcome<()> {
        outcome(unsafe { millpond_capture_release(ptr(self.0)) })
    }
}

/// `millpond_free`.
pub fn free(at: usize) -> Outcome<()> {
    outcome(unsafe { millpond_free(ptr(at)) })
}

/// `millpond_free_sized`.
pub fn free_sized(at: usize, bytes: usize) -> Outcome<()> {
    outcome(unsafe { millpond_free_sized(ptr(at), bytes) })
}

/// The block is used by the stream, too.
pub fn record_stream(at: usize, stream: Stream) -> Outcome<()> {
    outcome(unsafe { millpond_record_stream(ptr(at), ptr(stream.0)) })
}

/// The stream's use of the block ends with what is queued now.
pub fn record_end(at: usize, stream: Stream) -> Outcome<()> {
    outcome(unsafe { millpond_record_end(ptr(at), ptr(stream.0)) })
}

/// The stream's use of the block ends where the event was recorded.
pub fn record_end_at(at: usize, stream: Stream, event: Event) -> Outcome<()> {
    outcome(unsafe { millpond_record_end_at(ptr(at), ptr(stream.0), ptr(event.0)) })
}

/// The start and the size of the live block that holds an address.
pub fn block(at: usize) -> Outcome<(usize, usize)> {
    let mut i: millpond_block_info = unsafe { std::mem::zeroed() };
    i.struct_size = size_of::<millpond_block_info>();
    outcome(unsafe { millpond_get_block(ptr(at), &mut i) })?;
    Ok((number(i.base), i.requested_bytes))
}

// ---- contents, as the host sees them at once, whatever is queued -----------------------------------------------

/// The host writes.
pub fn poke(at: usize, value: u8, bytes: usize) {
    unsafe { ptr::<u8>(at).write_bytes(value, bytes) };
}

/// The byte that fills the memory, if it is one.
pub fn filled(at: usize, bytes: usize) -> Option<u8> {
    let memory = unsafe { std::slice::from_raw_parts(ptr::<u8>(at), bytes) };
    memory.iter().all(|b| *b == memory[0]).then(|| memory[0])
}

/// Whether two ranges have a byte in common.
pub fn overlap(a: (usize, usize), b: (usize, usize)) -> bool {
    a.0 < b.0 + b.1 && b.0 < a.0 + a.1
}

// ---- time ------------------------------------------------------------------------------------------------------

/// Long enough for what does not wait to be done, also on a machine with much else to do.
pub const LATE: Duration = Duration::from_millis(400);

#[derive(Default)]
struct Bars {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Bars {
    fn wait(&self) {
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.changed.wait(open).unwrap();
        }
    }
}

/// Holds up a stream until it is opened, or dropped.
#[derive(Default)]
pub struct Gate(Arc<Bars>);

impl Gate {
    pub fn open(&self) {
        *self.0.open.lock().unwrap() = true;
        self.0.changed.notify_all();
    }

    pub fn is_open(&self) -> bool {
        *self.0.open.lock().unwrap()
    }

    /// Opens by itself after so long: a call that waits for the stream is no failure, it only takes its time.
    pub fn open_after(&self, delay: Duration) {
        let bars = self.0.clone();
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            Gate(bars).open();
        });
    }

    /// Another hold on the same gate, for a closure.
    pub fn opener(&self) -> impl Fn() + Send + Sync + use<> {
        let bars = self.0.clone();
        move || {
            *bars.open.lock().unwrap() = true;
            bars.changed.notify_all();
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

/// What a piece of work took.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Of its thread. Other programs on the machine make that little longer.
    processor: Duration,
    /// Also what waits without working, and what others do meanwhile.
    clock: Duration,
}

impl Cost {
    pub fn of<T>(body: impl FnOnce() -> T) -> (Cost, T) {
        let from = thread_time();
        let (clock, answer) = timed(body);
        (Cost { processor: thread_time() - from, clock }, answer)
    }

    pub fn least(self, other: Cost) -> Cost {
        Cost { processor: self.processor.min(other.processor), clock: self.clock.min(other.clock) }
    }

    /// Whether it is at most so many times the other; by the clock, with five times that.
    pub fn is_within(self, times: f64, other: Cost) -> bool {
        self.processor <= other.processor.mul_f64(times) && self.clock <= other.clock.mul_f64(5.0 * times)
    }
}

fn thread_time() -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes a time into a place of ours.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) }, 0);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// How long the body took, and what it gave.
pub fn timed<T>(body: impl FnOnce() -> T) -> (Duration, T) {
    let from = Instant::now();
    let answer = body();
    (from.elapsed(), answer)
}
