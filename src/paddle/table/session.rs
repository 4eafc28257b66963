//! Initialisation and finalisation, the devices, and the calling thread's current device.

use super::facts;
use super::options::Options;
use crate::base::error::{Code, Error, Result};
use crate::fail;
use crate::paddle::abi::{C_Device, C_Status};
use crate::paddle::status::done;
use crate::runtime::{self, DeviceState};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const FRESH: u8 = 0;
const READY: u8 = 1;
const ENDED: u8 = 2;

/// The state of the host's session. SeqCst throughout: it is never on a hot path.
static STATE: AtomicU8 = AtomicU8::new(FRESH);

thread_local! {
    /// The ordinal that this thread set last. It has no destructor: threads may end after we are unloaded.
    static CURRENT: Cell<c_int> = const { Cell::new(0) };
}

fn ready() -> Result<()> {
    match STATE.load(Ordering::SeqCst) {
        READY => Ok(()),
        FRESH => Err(Error::new(Code::NotInitialized, "call initialize first")),
        _ => Err(Error::new(Code::NotInitialized, "the plugin was finalised")),
    }
}

/// Whether this is a forked child of a process that used us. It has the state but not the threads, and no work is or
/// can be queued there. Calls that wait for work, query it, order it or record it, and calls that give back what the
/// parent had, succeed there without doing anything, and take no lock, which a thread that does not exist could hold.
/// PaddlePaddle makes them when such a child exits, some in destructors, where a failure ends the process.
pub(super) fn forked() -> bool {
    runtime::check_fork().is_err()
}

/// Whether there is nothing left to end: after `finalize`, or in a forked child. Calls that end a stream, an event or a
/// device, and the wait for an event, then succeed: hosts do make them late, and PaddlePaddle ends the process if they
/// fail.
pub(super) fn gone() -> bool {
    STATE.load(Ordering::SeqCst) == ENDED || forked()
}

/// The name of the device type that is served; fails before `initialize` and after `finalize`.
pub(super) fn served() -> Result<&'static str> {
    ready()?;
    Ok(&Options::get().served)
}

/// How many devices are served. Also stores what a forked child may ask about each: hosts ask for the count before
/// anything else.
pub(super) fn device_count() -> Result<usize> {
    let served = served()?;
    if forked() {
        return facts::count();
    }
    let count = runtime::device_count(served)?;
    for i in (0..count).filter(|&i| !facts::is_known(i)) {
        // If a device cannot be asked, whoever uses it gets its error then.
        if let Ok((sizes, versions, memory)) = runtime::device_facts(served, i) {
            facts::note(i, &facts::numbers(&sizes, &versions), Some(memory));
        }
    }
    facts::note_count(count);
    Ok(count)
}

/// The ordinal of the device argument of a call.
pub(super) fn ordinal(device: C_Device) -> Result<usize> {
    if device.is_null() || !device.is_aligned() {
        return Err(Error::new(Code::InvalidArgument, "the device is NULL"));
    }
    // SAFETY: not null; by the ABI the host's struct lives for the call.
    let id = unsafe { (*device).id };
    match usize::try_from(id) {
        Ok(ordinal) => Ok(ordinal),
        Err(_) => fail!(Code::UnknownDevice, "there is no device {id}"),
    }
}

/// The device of a call, opened on first use.
pub(super) fn device(device: C_Device) -> Result<Arc<DeviceState>> {
    let served = served()?;
    runtime::device(served, ordinal(device)?)
}

/// Fails unless the call's device exists; does not open it.
fn check_device(device: C_Device) -> Result<usize> {
    let served = served()?;
    let ordinal = ordinal(device)?;
    let count = device_count()?;
    if ordinal >= count {
        fail!(Code::UnknownDevice, "{served:?} has no device {ordinal} (device count: {count})");
    }
    Ok(ordinal)
}

/// Stores an answer for the host; a null pointer is the caller's mistake.
pub(super) fn store<T>(out: *mut T, value: T) -> Result<()> {
    if out.is_null() || !out.is_aligned() {
        return Err(Error::new(Code::InvalidArgument, "the place for the answer is NULL"));
    }
    // SAFETY: not null; by the ABI the host passes a pointer to this type.
    unsafe { out.write(value) };
    Ok(())
}

/// Always possible, also after `finalize`: the runtime starts on first use.
pub(super) unsafe extern "C-unwind" fn initialize() -> C_Status {
    done(|| {
        runtime::check_fork()?;
        STATE.store(READY, Ordering::SeqCst);
        Ok(())
    })
}

/// Ends everything: memory is lost and our threads are joined, so that the host may unload us. A second call does
/// nothing, nor does a call in a forked child, which has the state but not the threads.
pub(super) unsafe extern "C-unwind" fn finalize() -> C_Status {
    done(|| {
        if forked() || STATE.swap(ENDED, Ordering::SeqCst) != READY {
            return Ok(());
        }
        facts::forget();
        match runtime::finalize() {
            // No device was ever used.
            Err(e) if e.code() == Code::NotInitialized => Ok(()),
            other => other,
        }
    })
}

pub(super) unsafe extern "C-unwind" fn init_device(d: C_Device) -> C_Status {
    done(|| {
        device(d)?;
        device_count().map(|_| ())
    })
}

pub(super) unsafe extern "C-unwind" fn set_device(d: C_Device) -> C_Status {
    done(|| {
        let ordinal = if forked() { ordinal(d)? } else { check_device(d)? };
        CURRENT.with(|c| c.set(ordinal as c_int));
        Ok(())
    })
}

/// Stores the calling thread's current ordinal: PaddlePaddle places results on this device.
pub(super) unsafe extern "C-unwind" fn get_device(d: C_Device) -> C_Status {
    done(|| {
        ready()?;
        if d.is_null() || !d.is_aligned() {
            return Err(Error::new(Code::InvalidArgument, "the device is NULL"));
        }
        let id = CURRENT.with(Cell::get);
        // SAFETY: not null; by the ABI the host's struct lives for the call.
        unsafe { (&raw mut (*d).id).write(id) };
        Ok(())
    })
}

/// Does nothing: the device ends with `finalize`, since the host may still hold its memory.
pub(super) unsafe extern "C-unwind" fn deinit_device(d: C_Device) -> C_Status {
    done(|| {
        if gone() {
            return Ok(());
        }
        check_device(d).map(|_| ())
    })
}
