//! Why a call failed, as a number that never changes.

/// Why a call failed. The numbers are part of the C API (`MILLPOND_E_*`) and are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Code {
    /// An argument is outside its documented range (NULL, size 0 where not allowed, bad flag, overflow).
    InvalidArgument = 1,
    /// The device has not enough free memory, or a limit was reached.
    OutOfMemory = 2,
    /// The address is not the start of a live block of this library.
    UnknownPointer = 3,
    /// The block was freed before.
    DoubleFree = 4,
    /// The stream is not known to this device, or was destroyed.
    UnknownStream = 5,
    /// The event is not known to this device, or was destroyed.
    UnknownEvent = 6,
    /// No device type of that name, or no device of that ordinal.
    UnknownDevice = 7,
    /// The device or the device type is not initialised, or was finalised.
    NotInitialized = 8,
    /// The device type cannot do this.
    Unsupported = 9,
    /// A range runs past the end of its block.
    OutOfRange = 10,
    /// The driver or plugin reported a failure of its own.
    Device = 11,
    /// The operating system refused a call.
    System = 12,
    /// A custom-runtime plugin was refused: version, struct size or a missing function.
    PluginRefused = 13,
    /// The handle is still in use, or the name is taken.
    Busy = 14,
    /// The call is not allowed here (from a stream callback, or in a forked child).
    NotPermitted = 15,
    /// The size given at free differs from the size at allocation.
    WrongSize = 16,
    /// A defect of this library; please report it.
    Internal = 17,
}
