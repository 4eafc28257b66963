//! What an error is: its code, its message, and what it carries; and what is said where there is no room for that.

use super::code::Code;
use std::any::Any;
use std::borrow::Cow;
use std::fmt::{self, Write};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// What an error carries beside its text.
pub(crate) trait Detail: Any + Send + Sync + UnwindSafe + RefUnwindSafe {}

impl<T: Any + Send + Sync + UnwindSafe + RefUnwindSafe> Detail for T {}

/// What an error is.
pub(super) struct Inner {
    pub(super) code: Code,
    pub(super) message: Cow<'static, str>,
    pub(super) detail: Option<Arc<dyn Detail>>,
    /// It was made beforehand, and is used again.
    pub(super) spare: bool,
}

impl Inner {
    pub(super) const fn new(code: Code, message: Cow<'static, str>) -> Inner {
        Inner { code, message, detail: None, spare: false }
    }
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

/// What is said of a failure for which the host has no memory. One for each [`Code`], by its number.
static SPEECHLESS: [Inner; 17] = {
    use Code::*;
    const fn of(code: Code) -> Inner {
        Inner::new(code, Cow::Borrowed("the call failed, and the host has no memory to say why"))
    }
    [
        of(InvalidArgument),
        of(OutOfMemory),
        of(UnknownPointer),
        of(DoubleFree),
        of(UnknownStream),
        of(UnknownEvent),
        of(UnknownDevice),
        of(NotInitialized),
        of(Unsupported),
        of(OutOfRange),
        of(Device),
        of(System),
        of(PluginRefused),
        of(Busy),
        of(NotPermitted),
        of(WrongSize),
        of(Internal),
    ]
};

/// The one for a code.
pub(super) fn speechless(code: Code) -> &'static Inner {
    SPEECHLESS.get(code as usize - 1).unwrap_or(&SPEECHLESS[16])
}

/// A text on the heap that ends where there is no more room.
#[derive(Default)]
pub(super) struct Growing(pub(super) String);

impl Write for Growing {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0.try_reserve(s.len()).map_err(|_| fmt::Error)?;
        self.0.push_str(s);
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_an_error_that_is_always_there() {
        for (n, speechless) in SPEECHLESS.iter().enumerate() {
            assert_eq!(speechless.code as usize, n + 1);
        }
    }
}
