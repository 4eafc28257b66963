//! The border to C and C++, which the C API and both sides of the custom-runtime interface share: what crosses it neither
//! prints nor unwinds unseen.
//!
//! - `exceptions`: calls into code that may throw a C++ exception
//! - `panics`: the library's own panics, which become statuses, print nothing
//!
//! Nothing here knows which interface is crossed: statuses and handles belong to `capi` and `paddle`.

pub(crate) mod exceptions;
#[cfg(any(feature = "capi", feature = "plugin"))]
pub(crate) mod panics;
