//! One plugin: runs its `InitPlugin` on a table of ours, checks the result and keeps it.
//!
//! Required are `device_memory_allocate`, `device_memory_deallocate`, `memory_copy_h2d`, `memory_copy_d2h` and
//! `get_device_count`. Without the first two there is no memory, without the copies nobody could read results, and the
//! count cannot be guessed. All else is optional. Only the part of the table below [`KnownLayout::COMMON`] is trusted,
//! since a plugin may have been built for another release; the version queries beyond it are asked with care
//! (`versions.rs`).

use crate::base::error::{Code, Error, Result};
use crate::base::sync::system::Mutex;
use crate::device::MAX_TYPE_NAME;
use crate::fail;
use crate::ffi::exceptions;
use crate::paddle::abi::{
    C_DeviceInterface, C_Status, CustomRuntimeParams, CustomRuntimeVersion, InitPlugin, KnownLayout,
};
use crate::paddle::load::Library;
use crate::runtime;
use std::ffi::c_char;
use std::mem::size_of;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Spare bytes behind each struct that a plugin gets. A plugin that was built for a larger layout and clears "its"
/// struct overwrites these bytes instead of somebody's heap.
const SLACK: usize = 4096;

/// What `InitPlugin` sees: structs of the declared sizes, at most the largest release's, each with slack behind it.
#[repr(C)]
struct Room {
    params: CustomRuntimeParams,
    params_slack: [u8; SLACK],
    table: C_DeviceInterface,
    table_slack: [u8; SLACK],
}

impl Room {
    fn new() -> Box<Room> {
        // SAFETY: all zeroes is a valid `Room`: integers, null pointers, empty callbacks.
        Box::new(unsafe { std::mem::zeroed() })
    }

    /// Whether anything was written beyond the declared size, in an older release's smaller struct or behind ours.
    fn written_past(&self, table_size: usize, params_size: usize) -> bool {
        let tail = |start: *const u8, whole: usize, declared: usize| {
            // SAFETY: `start` is that of a struct of `whole` bytes, without padding, which were zeroed.
            let bytes = unsafe { std::slice::from_raw_parts(start, whole) };
            bytes[declared.min(whole)..].iter().any(|&b| b != 0)
        };
        tail((&raw const self.table).cast(), size_of::<C_DeviceInterface>(), table_size)
            || tail((&raw const self.params).cast(), size_of::<CustomRuntimeParams>(), params_size)
            || self.table_slack.iter().chain(&self.params_slack).any(|&b| b != 0)
    }
}

/// A checked plugin: its callbacks, its names, and the object that holds its code.
pub(crate) struct Plugin {
    pub(super) table: C_DeviceInterface,
    name: String,
    sub_name: String,
    /// The object that holds the code; taken by `unload`.
    library: Mutex<Option<Library>>,
}

// SAFETY: the table holds callbacks, which the plugin contract lets any thread call, and reserved
// pointers that are never looked at.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

fn refused<T>(what: impl std::fmt::Display) -> Result<T> {
    fail!(Code::PluginRefused, "plugin refused: {what}")
}

/// A C string of at most `max` bytes; `None` if it has not ended by then.
///
/// # Safety
///
/// `text` is not null and readable up to its zero byte or for `max + 1` bytes, whichever comes first.
unsafe fn bounded(text: *const c_char, max: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for i in 0..=max {
        // SAFETY: the caller vouches for the bytes up to the zero or `max + 1`.
        let byte = unsafe { *text.add(i) } as u8;
        if byte == 0 {
            return Some(bytes);
        }
        bytes.push(byte);
    }
    None
}

impl Plugin {
    /// Runs `init` and checks what it stored; the error says what is wrong.
    ///
    /// # Safety
    ///
    /// `init` and the callbacks that it stores follow the contract of `custom_runtime.h` and stay
    /// valid as long as the `Plugin` (and `library`, where that holds them) lives.
    pub(crate) unsafe fn from_init(init: InitPlugin, library: Option<Library>) -> Result<Plugin> {
        // The layout of our own header comes first, then older releases, newest first: a plugin that was built for a
        // release whose sizes both differ leaves the version at 0.0.0 and has done nothing.
        let mut room = Room::new();
        let mut sizes = (0, 0);
        for layout in KnownLayout::ALL.iter().rev() {
            room = Room::new();
            sizes = (layout.interface_size, layout.params_size);
            room.table.size = sizes.0;
            room.params.size = sizes.1;
            room.params.interface = &raw mut room.table;
            let params: *mut CustomRuntimeParams = &raw mut room.params;
            // SAFETY: both structs live for the call and have at least the sizes they declare; the caller
            // vouches for `init`.
            let call = || exceptions::caught(|| unsafe { init(params) });
            match catch_unwind(AssertUnwindSafe(call)) {
                Ok(Ok(())) => {}
                Ok(Err(thrown)) => return refused(format_args!("InitPlugin {thrown}")),
                Err(_) => return refused("InitPlugin panicked"),
            }
            if room.params.version.number() != 0 {
                break;
            }
        }
        let table: *mut C_DeviceInterface = &raw mut room.table;
        let (size, params_size) = sizes;

        let params = &room.params;
        // The version comes first: a plugin that rejects the sizes leaves it at 0.0.0.
        let CustomRuntimeVersion { major, minor, patch } = params.version;
        let number = params.version.number();
        if number == 0 {
            return refused(
                "InitPlugin left the version at 0.0.0, with the struct sizes of each release from 2.6 to 3.3: \
                 it does not serve this host",
            );
        }
        if number < CustomRuntimeVersion::CURRENT.number() {
            return refused(format_args!("version {major}.{minor}.{patch} is below 0.1.1"));
        }
        if params.size != params_size {
            return refused(format_args!(
                "CustomRuntimeParams.size was {params_size} and is now {}",
                params.size
            ));
        }
        if params.interface != table {
            return refused("CustomRuntimeParams.interface was changed");
        }
        // A plugin may clear the table and its size with it, or write the size for which it was built.
        let declared = room.table.size;
        if declared != 0 && !KnownLayout::ALL.iter().any(|l| l.interface_size == declared) {
            return refused(format_args!(
                "C_DeviceInterface.size was {size} and is now {declared}, which is that of no known release"
            ));
        }
        if room.written_past(size, params_size) {
            return refused(format_args!(
                "InitPlugin wrote past the {size} bytes of C_DeviceInterface or the {params_size} bytes of \
                 CustomRuntimeParams"
            ));
        }
        // SAFETY: a plugin stores C strings; no more than the given number of bytes is read.
        let name = unsafe { Self::type_name(params.device_type)? };
        // SAFETY: as above.
        let sub_name = unsafe { Self::sub(params.sub_device_type) };

        let raw = room.table;
        let required = [
            ("device_memory_allocate", raw.device_memory_allocate.is_some()),
            ("device_memory_deallocate", raw.device_memory_deallocate.is_some()),
            ("memory_copy_h2d", raw.memory_copy_h2d.is_some()),
            ("memory_copy_d2h", raw.memory_copy_d2h.is_some()),
            ("get_device_count", raw.get_device_count.is_some()),
        ];
        let missing: Vec<&str> = required.iter().filter(|(_, there)| !there).map(|(n, _)| *n).collect();
        if !missing.is_empty() {
            return refused(format_args!("{name:?} lacks the required {}", missing.join(", ")));
        }
        Ok(Plugin { table: raw, name, sub_name, library: Mutex::new(library) })
    }

    /// # Safety
    ///
    /// `text` is null or a C string.
    unsafe fn type_name(text: *const c_char) -> Result<String> {
        if text.is_null() {
            return refused("device_type is NULL");
        }
        // SAFETY: not null; the caller vouches for a C string.
        let Some(bytes) = (unsafe { bounded(text, MAX_TYPE_NAME) }) else {
            return refused(format_args!("device_type is longer than {MAX_TYPE_NAME} bytes"));
        };
        match String::from_utf8(bytes) {
            Ok(name) if name.is_empty() => refused("device_type is empty"),
            Ok(name) if name.chars().any(char::is_control) => {
                refused(format_args!("device_type {name:?} has control characters"))
            }
            Ok(name) => Ok(name),
            Err(_) => refused("device_type is not UTF-8"),
        }
    }

    /// # Safety
    ///
    /// `text` is null or a C string.
    unsafe fn sub(text: *const c_char) -> String {
        if text.is_null() {
            return String::new();
        }
        // SAFETY: not null; the caller vouches for a C string. One that is too long is ignored.
        let bytes = unsafe { bounded(text, 255) }.unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Closes the shared object. From then on no callback may be called: devices outlive their type, but make no calls
    /// once it has ended.
    pub(super) fn unload(&self) {
        // The lock is released before the object's destructors run.
        let library = runtime::lock(&self.library).take();
        drop(library);
    }

    /// Keeps the object loaded for good: it did not end cleanly, so its threads may still run.
    pub(super) fn keep_loaded(&self) {
        std::mem::forget(runtime::lock(&self.library).take());
    }

    /// The name of the device type.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The finer name, or an empty string.
    pub(super) fn sub_name(&self) -> &str {
        &self.sub_name
    }

    /// Runs a callback of the plugin; an exception that leaves it is caught and becomes an error.
    pub(super) fn run(&self, callback: &str, body: impl FnOnce() -> C_Status) -> Result<C_Status> {
        exceptions::caught(body).map_err(|thrown| {
            Error::formatted(Code::Device, format_args!("plugin {:?}: {callback} {thrown}", self.name))
        })
    }

    /// An error that names the plugin and the callback, unless the status is success.
    pub(super) fn check(&self, callback: &str, status: C_Status) -> Result<()> {
        if status == C_Status::SUCCESS {
            return Ok(());
        }
        Err(self.failed(callback, status))
    }

    /// The error for a callback that failed.
    pub(super) fn failed(&self, callback: &str, status: C_Status) -> Error {
        Error::formatted(
            Code::Device,
            format_args!("plugin {:?}: {callback} returned {} ({})", self.name, status.name(), status.0),
        )
    }
}
