//! Errors as status numbers, and the guard that keeps panics on our side of the border.

use super::abi::C_Status;
use crate::base::error::{Code, Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The status of a failed call: `C_FAILED` where the device or the system could not, `C_ERROR` for
/// the caller's mistakes, `C_INTERNAL_ERROR` for our own.
pub(crate) fn of(error: &Error) -> C_Status {
    match error.code() {
        Code::OutOfMemory | Code::Device | Code::System => C_Status::FAILED,
        Code::Internal => C_Status::INTERNAL_ERROR,
        _ => C_Status::ERROR,
    }
}

/// Runs the body of a callback. A panic becomes `C_INTERNAL_ERROR`.
pub(super) fn guard(body: impl FnOnce() -> Result<C_Status>) -> C_Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => of(&error),
        Err(_) => C_Status::INTERNAL_ERROR,
    }
}

/// [`guard`] for a body that has nothing but success to tell.
pub(super) fn done(body: impl FnOnce() -> Result<()>) -> C_Status {
    guard(|| body().map(|()| C_Status::SUCCESS))
}
