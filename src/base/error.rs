//! The one error type of the library: a stable code, a message for a person, and whatever else the place that fails
//! wants to hand to the place that reports it. The codes are a list that the C API publishes; `base` itself returns few
//! of them. Only `capi` and `paddle` turn a code into a status number.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

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

/// A failed call: a [`Code`] and a message that names what was wrong.
///
/// One word, so that a `Result` of a call that succeeds travels in registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Inner>);

/// What an error carries beside its text.
pub(crate) trait Detail: Any + Send + Sync + UnwindSafe + RefUnwindSafe {}

impl<T: Any + Send + Sync + UnwindSafe + RefUnwindSafe> Detail for T {}

#[derive(Clone)]
struct Inner {
    code: Code,
    message: Cow<'static, str>,
    detail: Option<Arc<dyn Detail>>,
}

impl PartialEq for Inner {
    fn eq(&self, other: &Inner) -> bool {
        self.code == other.code && self.message == other.message
    }
}

impl Eq for Inner {}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}

/// What the inside of the library returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with a message.
    #[cold]
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Error(Box::new(Inner { code, message: message.into(), detail: None }))
    }

    /// The same error, which also carries `detail`.
    #[cold]
    pub(crate) fn with(mut self, detail: Arc<dyn Detail>) -> Self {
        self.0.detail = Some(detail);
        self
    }

    /// What it carries, if that is a `T`.
    pub(crate) fn detail<T: Any + Send + Sync>(&self) -> Option<Arc<T>>
    where
        Arc<T>: Any,
    {
        let all: Arc<dyn Any + Send + Sync> = self.0.detail.clone()?;
        all.downcast().ok()
    }

    /// The stable code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The message, for a person.
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {}

/// `Err(Error)` with a formatted message: `fail!(Code::OutOfMemory, "need {n} bytes")`.
#[macro_export]
#[doc(hidden)]
macro_rules! fail {
    ($code:expr, $($arg:tt)+) => {
        return Err($crate::base::error::Error::new($code, format!($($arg)+)))
    };
}
