//! Errors as status numbers, and the guard that keeps our panics out of foreign frames.

use super::abi::C_Status;
use crate::base::error::{Code, Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The status of a failed call: `C_FAILED` if the device or the system failed, `C_ERROR` for a mistake of the caller,
/// `C_INTERNAL_ERROR` for one of ours.
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

/// [`guard`] for a body that returns no status of its own.
pub(super) fn done(body: impl FnOnce() -> Result<()>) -> C_Status {
    guard(|| body().map(|()| C_Status::SUCCESS))
}
