//! What every export runs inside: no panic leaves it, each failure becomes a status and the thread's last error, and
//! each pointer from C is checked before it is used.

use crate::base::error::{Code, Error, Result};
use crate::base::room::{CALL_BYTES, begin_call, check_room, end_call};
use crate::capi::end_room::{EndRoom, set_aside};
use crate::capi::last_error;
use crate::fail;
use crate::ffi::{exceptions, panics};
use crate::paddle::abi::C_Status;
use crate::paddle::status;
use crate::runtime;
use crate::runtime::entry::reentry;
use std::ffi::{CStr, c_char, c_void};
use std::mem::{MaybeUninit, align_of, size_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::NonNull;

/// \[B\] of the host's memory without which a call is not begun that enters one thing into lists and is made often. The heap has
/// so little at hand.
const ENTRY_BYTES: usize = 1000;

/// Runs the body of an export: refuses it in a forked child and in a segment callback, stores failures for the thread,
/// and turns panics into `C_INTERNAL_ERROR`.
#[inline]
pub(crate) fn run(body: impl FnOnce() -> Result<()>) -> C_Status {
    match guarded(|| may_call().and_then(|()| body())) {
        Ok(()) => C_Status::SUCCESS,
        Err(status) => status,
    }
}

/// [`run`] for a call that makes lists as it goes: it is refused where the host has no memory for them.
#[inline]
pub(crate) fn run_roomy(body: impl FnOnce() -> Result<()>) -> C_Status {
    run_with_room(CALL_BYTES, body)
}

/// The same for a call that ends something: it has room that was set aside where the host has none, since destructors make
/// it, which cannot say that it failed.
#[inline]
pub(crate) fn run_end(body: impl FnOnce() -> Result<()>) -> C_Status {
    match begin_end() {
        Ok(room) => end_end(room, guarded(body)),
        Err(status) => {
            end_call();
            status
        }
    }
}

/// The same for an end that is made often and enters one thing into lists. One that says that the host has no memory has changed
/// nothing: it is tried again with more.
#[inline]
pub(crate) fn run_end_entering(body: impl Fn() -> Result<()>) -> C_Status {
    run(|| match EndRoom::new(ENTRY_BYTES).and_then(|_room| body()) {
        Err(e) if e.code() == Code::OutOfMemory => EndRoom::lent(CALL_BYTES).and_then(|_room| body()),
        done => done,
    })
}

/// Out of line, as what comes first is.
#[inline(never)]
fn end_end(_room: EndRoom, done: std::result::Result<(), C_Status>) -> C_Status {
    end_call();
    done.err().unwrap_or(C_Status::SUCCESS)
}

#[inline(never)]
fn begin_end() -> std::result::Result<EndRoom, C_Status> {
    begin_call();
    guarded(|| may_call().and_then(|()| EndRoom::new(CALL_BYTES)))
}

/// [`run_roomy`] for a call that enters one thing into lists and is made often.
#[inline]
pub(crate) fn run_entering(body: impl FnOnce() -> Result<()>) -> C_Status {
    run_with_room(ENTRY_BYTES, body)
}

#[inline]
fn run_with_room(bytes: usize, body: impl FnOnce() -> Result<()>) -> C_Status {
    end_with_room(begin_with_room(bytes).and_then(|()| guarded(body)))
}

/// Out of line, as what comes first is.
#[inline(never)]
fn end_with_room(done: std::result::Result<(), C_Status>) -> C_Status {
    end_call();
    done.err().unwrap_or(C_Status::SUCCESS)
}

/// Apart, since a hundred calls begin with it.
#[inline(never)]
fn begin_with_room(bytes: usize) -> std::result::Result<(), C_Status> {
    begin_call();
    guarded(|| may_call().and_then(|()| check_room(bytes)).map(|()| set_aside()))
}

/// `NotPermitted` in a forked child and in a segment callback.
#[inline]
pub(crate) fn may_call() -> Result<()> {
    runtime::check_fork().and_then(|()| reentry::check_segment_callback())
}

/// [`run`] without that check, for a body that returns a value and makes the check itself.
#[inline]
pub(crate) fn guarded<T>(body: impl FnOnce() -> Result<T>) -> std::result::Result<T, C_Status> {
    // Unwind safe: locks are taken whether or not a panic has poisoned them, and the data under them is consistent
    // between any two steps.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(failed(e)),
        Err(payload) => Err(panicked(payload)),
    }
}

/// [`run`] for the exports that a program calls before all others: panics print nothing from here on.
pub(crate) fn run_first(body: impl FnOnce() -> Result<()>) -> C_Status {
    panics::silence();
    run_roomy(body)
}

#[cold]
fn failed(e: Error) -> C_Status {
    last_error::set(e.code(), e.message());
    let status = status::of(&e);
    last_error::note(Some(e));
    status
}

#[cold]
fn panicked(payload: Box<dyn std::any::Any + Send>) -> C_Status {
    let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(s), _) => s,
        (_, Some(s)) => s.as_str(),
        _ => "no message",
    };
    last_error::set(Code::Internal, "a defect in Millpond or in a device: ");
    last_error::append(text);
    last_error::note(None);
    // A payload may panic when it is dropped; a small leak does less harm.
    std::mem::forget(payload);
    C_Status::INTERNAL_ERROR
}

/// What a callback has answered that a call hands its results to. The caller must learn that it has not got all: an
/// exception or a panic is `System`.
pub(crate) fn answered(call: impl FnOnce() -> bool) -> Result<bool> {
    match catch_unwind(AssertUnwindSafe(|| exceptions::caught(call))) {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(thrown)) => fail!(Code::System, "the callback {thrown}"),
        Err(payload) => {
            std::mem::forget(payload); // as above
            Err(Error::new(Code::System, "the callback panicked"))
        }
    }
}

/// The caller's pointer, on its way to the thread that runs a callback.
pub(crate) struct UserData(pub(crate) *mut c_void);
// SAFETY: the caller gave the pointer for use on whichever thread runs the callback; it is only handed back.
unsafe impl Send for UserData {}
// SAFETY: as above; a callback that several threads may be in is documented so.
unsafe impl Sync for UserData {}

/// Out of line, so that the message costs nothing on success.
#[cold]
#[inline(never)]
fn null<T>(name: &str) -> Result<T> {
    Err(Error::formatted(Code::InvalidArgument, format_args!("{name} is NULL")))
}

#[cold]
#[inline(never)]
fn unaligned<T>(name: &str) -> Result<T> {
    Err(Error::formatted(Code::InvalidArgument, format_args!("{name} is not aligned")))
}

/// An out parameter: not NULL and aligned. Written once, after everything else has succeeded.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// # Safety
    /// A pointer that is not NULL and is aligned must be valid for one write of a `T`.
    pub(crate) unsafe fn new(ptr: *mut T, name: &str) -> Result<Out<T>> {
        match NonNull::new(ptr) {
            Some(p) if p.is_aligned() => Ok(Out(p)),
            Some(_) => unaligned(name),
            None => null(name),
        }
    }

    pub(crate) fn set(self, value: T) {
        // SAFETY: whoever called `new` promised that the pointer is valid for this write.
        unsafe { self.0.write(value) }
    }
}

/// A struct that starts with `struct_size`.
///
/// # Safety
/// `repr(C)`, first field `struct_size: usize`, no invalid bit patterns.
pub(crate) unsafe trait Versioned {}

/// An in-out struct whose `struct_size` the caller has set; written once, as far as the caller's version of it reaches.
pub(crate) struct OutStruct<T> {
    at: NonNull<T>,
    size: usize,
}

fn struct_size<T>(ptr: *const T, name: &str) -> Result<(NonNull<T>, usize)> {
    let Some(at) = NonNull::new(ptr.cast_mut()) else { return null(name) };
    if !at.is_aligned() {
        return unaligned(name);
    }
    // SAFETY: the callers of `OutStruct::new` and `read_struct` promise a readable first field.
    let size = unsafe { at.cast::<usize>().read() };
    if size < size_of::<usize>() {
        fail!(
            Code::InvalidArgument,
            "{name}->struct_size is {size}: set it to sizeof *{name} before the call"
        );
    }
    Ok((at, size))
}

impl<T: Versioned> OutStruct<T> {
    /// # Safety
    /// A pointer that is not NULL and is aligned must be valid for reads and writes of as many bytes
    /// as its `struct_size` says.
    pub(crate) unsafe fn new(ptr: *mut T, name: &str) -> Result<OutStruct<T>> {
        let (at, size) = struct_size(ptr, name)?;
        Ok(OutStruct { at, size })
    }

    /// Writes as much of `value` as fits, but the caller's `struct_size` stays. What a newer caller
    /// has beyond our struct is not touched.
    pub(crate) fn set(self, value: T) {
        let head = size_of::<usize>();
        let count = self.size.min(size_of::<T>()) - head;
        let from = (&raw const value).cast::<u8>();
        // SAFETY: both ends have `head + count` bytes: ours by its type, the caller's by the promise
        // made to `new`; they cannot overlap, as `value` is ours.
        unsafe {
            std::ptr::copy_nonoverlapping(from.add(head), self.at.as_ptr().cast::<u8>().add(head), count)
        }
    }
}

/// How the header calls an array of records, the size of one, and their type.
pub(crate) struct RecordNames(pub &'static str, pub &'static str, pub &'static str);

/// An array of the caller's for records, each of as many bytes as the caller's version of them has.
pub(crate) struct OutRecords<T> {
    at: *mut T,
    size: usize,
    capacity: usize,
}

impl<T: Versioned> OutRecords<T> {
    /// `at` may be NULL where `capacity` is 0.
    ///
    /// # Safety
    /// A pointer that is not NULL and is aligned must be valid for writes of `capacity` times `size` bytes.
    pub(crate) unsafe fn new(at: *mut T, size: usize, capacity: usize, names: &RecordNames) -> Result<Self> {
        let RecordNames(array, size_of_one, type_of_one) = names;
        if capacity > 0 && (at.is_null() || !at.is_aligned()) {
            return Err(Error::formatted(
                Code::InvalidArgument,
                format_args!("{array} is NULL, or not aligned"),
            ));
        }
        if size < size_of::<usize>() || !size.is_multiple_of(align_of::<T>()) {
            fail!(Code::InvalidArgument, "{size_of_one} is {size}: no size of a {type_of_one}");
        }
        Ok(OutRecords { at, size, capacity })
    }

    /// Writes the records as far as there is room; their `struct_size` becomes the number of bytes that are written.
    pub(crate) fn set(self, records: impl Iterator<Item = T>) {
        let count = self.size.min(size_of::<T>());
        for (n, record) in records.take(self.capacity).enumerate() {
            // SAFETY: inside the array, whose place `n` is below its capacity, by the promise made to `new`; both ends
            // have `count` bytes, which begin with `struct_size`, and every place is aligned as the first one is.
            unsafe {
                let to = self.at.cast::<u8>().add(n * self.size);
                std::ptr::copy_nonoverlapping((&raw const record).cast::<u8>(), to, count);
                to.cast::<usize>().write(count);
            }
        }
    }
}

/// An array of the caller's with `count` places; written once, after everything else has succeeded.
pub(crate) struct OutArray<T> {
    at: *mut T,
    count: usize,
}

impl<T> OutArray<T> {
    /// `at` may be NULL where `count` is 0.
    ///
    /// # Safety
    /// A pointer that is not NULL and is aligned must be valid for writes of `count` times a `T`.
    pub(crate) unsafe fn new(at: *mut T, count: usize, name: &str) -> Result<OutArray<T>> {
        check_array(at, count, name)?;
        Ok(OutArray { at, count })
    }

    /// Writes the values, as many as there are places.
    pub(crate) fn set(self, values: impl Iterator<Item = T>) {
        for (n, value) in values.take(self.count).enumerate() {
            // SAFETY: `n` is below the count of places, which are the caller's by the promise made to `new`.
            let at = unsafe { self.at.add(n) };
            // SAFETY: as above.
            unsafe { at.write(value) }
        }
    }
}

fn check_array<T>(at: *const T, count: usize, name: &str) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    if at.is_null() {
        return null(name);
    }
    if !at.is_aligned() {
        return unaligned(name);
    }
    if count > isize::MAX as usize / size_of::<T>() {
        fail!(Code::InvalidArgument, "{name} cannot have {count} places: no address space has so many");
    }
    Ok(())
}

/// An array from C. NULL is right where `count` is 0.
///
/// # Safety
/// A pointer that is not NULL and is aligned must be valid for reads of `count` times a `T` for `'a`, and nobody may
/// write there meanwhile.
pub(crate) unsafe fn array<'a, T>(at: *const T, count: usize, name: &str) -> Result<&'a [T]> {
    check_array(at, count, name)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's promise; the size was checked above.
    Ok(unsafe { std::slice::from_raw_parts(at, count) })
}

/// An options struct from C, with zeros for what an older caller does not have. NULL: all zeros.
///
/// # Safety
/// A pointer that is not NULL and is aligned must be readable for as many bytes as its
/// `struct_size` says.
pub(crate) unsafe fn read_struct<T: Versioned + Copy>(ptr: *const T, name: &str) -> Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    if !ptr.is_null() {
        let (at, size) = struct_size(ptr, name)?;
        let count = size.min(size_of::<T>());
        // SAFETY: the caller's side is readable for `count` bytes by the promise above, ours by its type.
        unsafe {
            std::ptr::copy_nonoverlapping(at.as_ptr().cast::<u8>(), value.as_mut_ptr().cast::<u8>(), count)
        };
    }
    // SAFETY: all bytes are set, and `Versioned` promises that every pattern is a value.
    Ok(unsafe { value.assume_init() })
}

/// A text from C.
///
/// # Safety
/// A pointer that is not NULL must point to a NUL-terminated string that lives for `'a`.
pub(crate) unsafe fn text<'a>(ptr: *const c_char, name: &str) -> Result<&'a str> {
    if ptr.is_null() {
        return null(name);
    }
    // SAFETY: the caller's promise.
    let c = unsafe { CStr::from_ptr(ptr) };
    c.to_str().map_err(|_| Error::formatted(Code::InvalidArgument, format_args!("{name} is not UTF-8")))
}

/// A file name from C: any bytes, if the system allows any.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn file_name<'a>(ptr: *const c_char, name: &str) -> Result<&'a Path> {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        if ptr.is_null() {
            return null(name);
        }
        // SAFETY: the caller's promise.
        let c = unsafe { CStr::from_ptr(ptr) };
        Ok(Path::new(std::ffi::OsStr::from_bytes(c.to_bytes())))
    }
    #[cfg(not(unix))]
    // SAFETY: the caller's promise.
    unsafe {
        text(ptr, name).map(Path::new)
    }
}

/// Writes `value` with its NUL, or nothing if it does not fit.
///
/// # Safety
/// `out` must be valid for writes of `capacity` bytes; it is not NULL.
pub(crate) unsafe fn write_text(out: NonNull<c_char>, capacity: usize, value: &str) -> Result<()> {
    if value.len() >= capacity {
        fail!(Code::InvalidArgument, "{value:?} and its NUL do not fit into {capacity} B");
    }
    let at = out.as_ptr().cast::<u8>();
    // SAFETY: `value.len() + 1 <= capacity`, checked above; the buffer is the caller's own.
    unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), at, value.len()) };
    // SAFETY: as above.
    unsafe { at.add(value.len()).write(0) };
    Ok(())
}
