//! The texts of notes, each once, for as long as the process lives. An event has only the number of one.

use crate::base::sync::system::{Mutex, lock};
use std::collections::HashMap;
use std::sync::Arc;

/// Texts of notes that are kept; later ones have none.
const MOST_TEXTS: usize = 1 << 16;

/// The texts of notes, each once.
#[derive(Default)]
struct Texts {
    all: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u64>,
}

static TEXTS: std::sync::LazyLock<Mutex<Texts>> = std::sync::LazyLock::new(Mutex::default);

/// The number of a text; 0 where there are too many.
pub(crate) fn number_of(text: &str) -> u64 {
    let mut texts = lock(&TEXTS);
    if let Some(&n) = texts.numbers.get(text) {
        return n;
    }
    if texts.all.len() >= MOST_TEXTS {
        return 0;
    }
    let text: Arc<str> = text.into();
    texts.all.push(text.clone());
    let n = texts.all.len() as u64;
    texts.numbers.insert(text, n);
    n
}

/// The text of a note.
pub(crate) fn text_of(number: u64) -> Option<String> {
    let at = usize::try_from(number).ok()?.checked_sub(1)?;
    lock(&TEXTS).all.get(at).map(|t| t.to_string())
}
