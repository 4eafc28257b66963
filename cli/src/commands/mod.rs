//! The commands: a file for each, with its arguments and what is done with them. What is computed is in the files beside
//! this folder.

pub(crate) mod bisect;
pub(crate) mod compare;
pub(crate) mod demo;
pub(crate) mod device;
pub(crate) mod group;
pub(crate) mod history;
pub(crate) mod info;
pub(crate) mod output;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod view;

/// What the commands that replay say of their ends.
pub(crate) const EXIT_STATUS: &str = "Exit status: 0 done, 1 error, 2 wrong arguments, 3 out of memory (also: the device, \
                                      or the machine, is too small to try).";

/// Why the program ends with another status than 0.
pub(crate) enum Failure {
    Error(anyhow::Error),
    OutOfMemory(String),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(e: E) -> Self {
        Failure::Error(e.into())
    }
}
