//! Silences the library's own panics. The C interfaces turn such a panic into a status with its text; Rust's panic hook
//! would print it to standard error first. Panics of other code reach the hook as before.

use std::panic::Location;

/// The path prefix of this library's sources, as panics report it.
const OURS: &str = {
    let here = file!().as_bytes();
    let (head, _) = here.split_at(here.len() - "ffi/panics.rs".len());
    match std::str::from_utf8(head) {
        Ok(head) => head,
        Err(_) => file!(),
    }
};

fn ours(at: Option<&Location<'_>>) -> bool {
    at.is_some_and(|l| l.file().starts_with(OURS))
}

/// From now on this library's own panics print nothing. Called by the C interfaces, which turn each into a status; a
/// Rust caller gets the panic itself and wants its text.
pub(crate) fn silence() {
    // Not in the library's unit tests: their failures are panics in these very files.
    #[cfg(not(test))]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(hush);
    }
}

/// Installs a hook in front of the current one.
fn hush() {
    // A panicking thread may not change the hook; the attempt would end the process.
    if std::thread::panicking() {
        return;
    }
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |about| {
        if !ours(about.location()) {
            others(about);
        }
    }));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
    use super::*;
    use std::panic::catch_unwind;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static SEEN: AtomicUsize = AtomicUsize::new(0);

    #[test]
    fn only_panics_of_other_code_reach_the_hook() {
        let before = std::panic::take_hook();
        // Tests that fail meanwhile on other threads print nothing, but fail all the same.
        let me = std::thread::current().id();
        std::panic::set_hook(Box::new(move |_| {
            if std::thread::current().id() == me {
                SEEN.fetch_add(1, Ordering::Relaxed);
            }
        }));
        hush();
        let mine = catch_unwind(|| panic!("ours"));
        let seen_of_mine = SEEN.load(Ordering::Relaxed);
        // The location is one in the standard library, as for code of another crate.
        let theirs = catch_unwind(|| "x".repeat(usize::MAX / 2 + 1).repeat(2).len());
        let seen_of_theirs = SEEN.load(Ordering::Relaxed);
        std::panic::set_hook(before);
        assert!(mine.is_err() && theirs.is_err());
        assert_eq!(mine.unwrap_err().downcast_ref::<&str>(), Some(&"ours"));
        assert_eq!((seen_of_mine, seen_of_theirs), (0, 1));
    }
}
