//! Whether the host has memory for a call that could not say later that it has none, and that it still has it when a device
//! has answered.

use super::boxed::has_room;
use super::error::{Result, no_host_memory};
use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::mem::ManuallyDrop;

/// \[B\] of the host's memory without which a call is not begun that makes lists as it goes.
pub(crate) const CALL_BYTES: usize = 64 << 10;

/// \[B\] of what was looked for that are left to the device, which may be one of this library's own, and as many as it needs at
/// least where others have taken some.
const DEVICE_BYTES: usize = CALL_BYTES / 2;
const DEVICE_LEAST: usize = 4 << 10;
/// \[B\] less than this need not be kept.
const LEAST_BYTES: usize = 1 << 10;

/// What a thread's call of the program has looked for.
#[derive(Clone, Copy)]
struct Looked {
    /// How many such calls are under way, one within a callback of the other.
    calls: u32,
    /// \[B\] the most that any of them has looked for.
    bytes: usize,
}

thread_local! {
    static LOOKED: Cell<Looked> = const { Cell::new(Looked { calls: 0, bytes: 0 }) };
}

/// What is noted needs no destructor, so it is there as long as the thread is.
fn note(change: impl FnOnce(Looked) -> Looked) {
    let _ = LOOKED.try_with(|looked| looked.set(change(looked.get())));
}

/// A call of the program begins that looks for room. Must be followed by [`end_call`].
#[cfg(feature = "capi")]
pub(crate) fn begin_call() {
    note(|l| Looked { calls: l.calls + 1, ..l });
}

/// It ends.
#[cfg(feature = "capi")]
pub(crate) fn end_call() {
    note(|l| match l.calls {
        0 | 1 => {
            // Nobody is in a device any more, but who has panicked there.
            let _ = KEPT.try_with(|kept| kept.borrow_mut().holders = 0);
            let_go();
            Looked { calls: 0, bytes: 0 }
        }
        calls => Looked { calls: calls - 1, ..l },
    });
}

/// `OutOfMemory` if the heap has no room for so many bytes: for a call that could not say so later, before it changes
/// anything. It holds as long as nobody else takes that memory meanwhile; while a device is called, [`while_kept`] holds it.
#[inline(never)]
pub(crate) fn check_room(bytes: usize) -> Result<()> {
    if !has_room(bytes) {
        return Err(no_host_memory());
    }
    note(|l| if l.calls == 0 { l } else { Looked { bytes: l.bytes.max(bytes), ..l } });
    Ok(())
}

/// What a thread keeps while a device is called.
struct Kept {
    /// It has no destructor here, so it is there as long as the thread is.
    room: ManuallyDrop<Vec<u8>>,
    /// How many keep it, one within the call of the other. Who panics does not let go: then the next call of the program does.
    holders: u32,
}

thread_local! {
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept { room: ManuallyDrop::new(Vec::new()), holders: 0 }) };
}

fn room_of(bytes: usize) -> Option<Vec<u8>> {
    let mut room = Vec::new();
    room.try_reserve_exact(bytes).ok()?;
    // Else a compiler may leave out an allocation that nobody uses.
    black_box(room.as_ptr());
    Some(room)
}

/// From here on the thread keeps `more`, or what it keeps already if that is larger, until [`let_go`].
fn hold(mut more: Vec<u8>) {
    let _ = KEPT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        kept.holders += 1;
        if kept.room.capacity() < more.capacity() {
            std::mem::swap(&mut *kept.room, &mut more);
        }
    });
    // `more` goes here, when nothing is borrowed: a program's own `free` may call this library.
}

/// What was kept for the thread's call is the heap's again, if nobody around this keeps it.
#[inline(never)]
pub(crate) fn let_go() {
    let gone = KEPT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        kept.holders = kept.holders.saturating_sub(1);
        if kept.holders == 0 { std::mem::take(&mut *kept.room) } else { Vec::new() }
    });
    drop(gone); // when nothing is borrowed, as above
}

/// Looks for so many bytes, and keeps half of them until [`let_go`]: the other half is for what a call on the device enters there.
/// `OutOfMemory` if the heap has no room for them.
#[inline(never)]
pub(crate) fn keep_half(bytes: usize) -> Result<()> {
    let room = if has_room(bytes) { room_of(bytes / 2) } else { None };
    room.map(hold).ok_or_else(no_host_memory)
}

/// Keeps what the thread's call has looked for, at least `least` bytes, or as much of it as there is, until [`let_go`]: the call is
/// under way.
#[inline(never)]
fn keep_what_is(least: usize) {
    let looked = LOOKED.try_with(|l| l.get().bytes).unwrap_or(0).max(least);
    let mut bytes = looked.saturating_sub(DEVICE_BYTES);
    let mut found = Vec::new();
    while bytes >= LEAST_BYTES {
        match room_of(bytes) {
            Some(room) if has_room(DEVICE_LEAST) => {
                found = room;
                break;
            }
            _ => bytes /= 4,
        }
    }
    hold(found);
}

/// Makes a call on a device, and keeps meanwhile what the thread's call has looked for. Kept by the thread and not by a value, so
/// that each of many such calls is two short ones longer, and not what cleans up after a panic.
#[inline]
pub(crate) fn while_kept<T>(call: impl FnOnce() -> T) -> T {
    keep_what_is(CALL_BYTES);
    let done = call();
    let_go();
    done
}

/// The same for a call that is short and made often: where nothing was looked for, nothing is kept.
#[inline]
pub(crate) fn while_kept_if_any<T>(call: impl FnOnce() -> T) -> T {
    keep_what_is(0);
    let done = call();
    let_go();
    done
}
