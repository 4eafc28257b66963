//! The one error type of the library: a stable code, a message for a person, and whatever else the place that fails
//! wants to hand to the place that reports it. The codes are a list that the C API publishes; `base` itself returns few
//! of them. Only `capi` and `paddle` turn a code into a status number.
//!
//! A call that fails since the host has no memory left must not end the process over its error. So what the heap has no
//! room for is replaced by an error of the same code that is always there (`Fixed`), and the errors of requests that
//! find no memory are made beforehand (`spare.rs`).

use held::Held;
use inner::{Detail, Growing, Inner, speechless};
use std::any::Any;
use std::borrow::Cow;
use std::fmt::{self, Write};
use std::sync::Arc;

pub use code::Code;

mod code;
mod held;
mod inner;
pub(crate) mod spare;

/// A failed call: a [`Code`] and a message that names what was wrong.
///
/// One word, so that a `Result` of a call that succeeds travels in registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Held);

/// An error without a detail that is always there.
#[derive(Debug)]
pub(crate) struct Fixed(Inner);

impl Fixed {
    /// An error that says this.
    pub(crate) const fn new(code: Code, message: &'static str) -> Fixed {
        Fixed(Inner::new(code, Cow::Borrowed(message)))
    }

    /// The error.
    #[cold]
    pub(crate) fn error(&'static self) -> Error {
        Error(Held::fixed(&self.0))
    }
}

/// What the inside of the library returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with a message.
    #[cold]
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Error::of(Inner::new(code, message.into()))
    }

    /// The same with a message that is put together for it.
    #[cold]
    #[doc(hidden)]
    pub fn formatted(code: Code, message: fmt::Arguments<'_>) -> Self {
        let mut text = Growing::default();
        let _ = text.write_fmt(message); // what has no room is left out
        Error::new(code, text.0)
    }

    /// One that was made beforehand ([`spare::prepare`]), to be [edited](Self::edit); `None`: there are none left.
    #[cold]
    pub(crate) fn spare() -> Option<Self> {
        Some(Error(Held::from(spare::take()?)))
    }

    fn of(inner: Inner) -> Self {
        let code = inner.code;
        Error(Held::new(inner).unwrap_or_else(|| Held::fixed(speechless(code))))
    }

    /// The same error, which also carries `detail`.
    #[cold]
    pub(crate) fn with(self, detail: Arc<dyn Detail>) -> Self {
        let mut it = self;
        match it.0.get_mut() {
            Some(inner) => inner.detail = Some(detail),
            None => {
                let said = &it.0.get().message;
                it = Error::of(Inner { detail: Some(detail), ..Inner::new(it.code(), said.clone()) });
            }
        }
        it
    }

    /// What it carries, if that is a `T`.
    pub(crate) fn detail<T: Any + Send + Sync>(&self) -> Option<Arc<T>>
    where
        Arc<T>: Any,
    {
        let all: Arc<dyn Any + Send + Sync> = self.0.get().detail.clone()?;
        all.downcast().ok()
    }

    /// Changes what it carries and says, if that is a `T` that nobody else has. `line` gives the new message, of which as
    /// much is kept as there is room for without the heap.
    pub(crate) fn edit<T: Any>(&mut self, change: impl FnOnce(&mut T, &mut dyn Write)) -> bool {
        let Some(inner) = self.0.get_mut() else { return false };
        let Some(detail) = inner.detail.as_mut().and_then(Arc::get_mut) else { return false };
        let Some(detail) = (detail as &mut dyn Any).downcast_mut::<T>() else { return false };
        let mut text = std::mem::take(&mut inner.message).into_owned();
        text.clear();
        change(detail, &mut spare::Within(&mut text));
        inner.message = text.into();
        true
    }

    /// The stable code.
    pub fn code(&self) -> Code {
        self.0.get().code
    }

    /// The message, for a person.
    pub fn message(&self) -> &str {
        &self.0.get().message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for Error {}

static NO_HOST_MEMORY: Fixed =
    Fixed::new(Code::OutOfMemory, "the host has no memory left for what this call needs");

/// The error of a call for which the host's own heap has no room. It needs none itself.
#[cold]
pub(crate) fn no_host_memory() -> Error {
    NO_HOST_MEMORY.error()
}

/// `Err(Error)` with a formatted message: `fail!(Code::OutOfMemory, "need {n} bytes")`.
#[macro_export]
#[doc(hidden)]
macro_rules! fail {
    ($code:expr, $($arg:tt)+) => {
        return Err($crate::base::error::Error::formatted($code, format_args!($($arg)+)))
    };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_word_whatever_it_is() {
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
        static NONE: Fixed = Fixed::new(Code::OutOfMemory, "no more");
        let fixed = NONE.error();
        assert_eq!((fixed.code(), fixed.message()), (Code::OutOfMemory, "no more"));
        assert_eq!(fixed, Error::new(Code::OutOfMemory, "no more"));
        let carries = fixed.clone().with(Arc::new(7u32));
        assert_eq!((carries.message(), carries.detail::<u32>().as_deref()), ("no more", Some(&7)));
        assert_eq!(carries.clone().detail::<u32>().as_deref(), Some(&7));
        assert_eq!((fixed.detail::<u32>(), carries.detail::<u64>()), (None, None));
    }

    #[test]
    fn what_an_error_carries_can_be_changed_by_its_only_owner() {
        let mut e = Error::new(Code::Busy, "a text of some length").with(Arc::new(1u32));
        let change = |n: &mut u32, out: &mut dyn Write| {
            *n += 1;
            let _ = write!(out, "{n}");
        };
        assert!(e.edit(change));
        assert_eq!((e.message(), e.detail::<u32>().as_deref()), ("2", Some(&2)));
        let other = e.clone();
        assert!(!e.edit(change), "another one has it");
        drop(other);
        assert!(e.edit(change) && !e.edit(|_: &mut u64, _| ()));
        assert_eq!(e.message(), "3");
    }
}
