//! The few opcodes of Python's pickle, protocol 2, that plain data needs.
//!
//! Python reads them, and so does the viewer of PyTorch, which knows few opcodes beyond these: numbers have at most
//! 8 bytes, and lists are appended in batches. A word that is repeated (a key) is written once and then referred to by
//! its number. No class or function is named, so that loading a pickle calls nothing.

use super::sink::Sink;
use crate::base::error::Result;

/// The most elements of a list that are appended at once: the viewer passes them as arguments of one call.
const BATCH: usize = 1000;
/// The most words that get a number.
const MOST_WORDS: usize = 256;

/// See the file's head.
pub(super) struct Pickle<'a, 's> {
    out: &'a mut Sink<'s>,
    words: Vec<&'static str>,
    kept: u32,
}

/// A value that was written once and can be referred to.
#[derive(Clone, Copy)]
pub(super) struct Kept(u32);

impl<'a, 's> Pickle<'a, 's> {
    /// Begins a pickle.
    pub(super) fn new(out: &'a mut Sink<'s>) -> Self {
        out.put(b"\x80\x02"); // PROTO 2
        Pickle { out, words: Vec::new(), kept: 0 }
    }

    /// Ends the pickle, after one value.
    pub(super) fn end(self) {
        self.out.byte(b'.'); // STOP
    }

    /// A text that is repeated.
    pub(super) fn word(&mut self, word: &'static str) {
        if let Some(n) = self.words.iter().position(|w| *w == word) {
            self.out.put(&[b'h', n as u8]); // BINGET
            return;
        }
        self.text(word);
        if self.words.len() < MOST_WORDS {
            self.out.put(&[b'q', self.words.len() as u8]); // BINPUT
            self.words.push(word);
        }
    }

    /// Gives the value that was just written a number, so that it can be written again by that. None for the 2^32nd.
    pub(super) fn keep(&mut self) -> Option<Kept> {
        let number = (MOST_WORDS as u32).checked_add(self.kept)?; // behind those of words
        self.kept += 1;
        self.out.byte(b'r'); // LONG_BINPUT
        self.out.put(&number.to_le_bytes());
        Some(Kept(number))
    }

    /// That value once more.
    pub(super) fn again(&mut self, Kept(number): Kept) {
        self.out.byte(b'j'); // LONG_BINGET
        self.out.put(&number.to_le_bytes());
    }

    /// A text of less than 4 GiB; a longer one is written as "".
    pub(super) fn text(&mut self, text: &str) {
        let text = if u32::try_from(text.len()).is_ok() { text } else { "" };
        self.out.byte(b'X'); // BINUNICODE
        self.out.put(&(text.len() as u32).to_le_bytes());
        self.out.put(text.as_bytes());
    }

    /// A number.
    pub(super) fn int(&mut self, n: i64) {
        match n {
            0..=0xff => self.out.put(&[b'K', n as u8]), // BININT1
            0x100..=0xffff => {
                self.out.byte(b'M'); // BININT2
                self.out.put(&(n as u16).to_le_bytes());
            }
            _ if i32::try_from(n).is_ok() => {
                self.out.byte(b'J'); // BININT
                self.out.put(&(n as i32).to_le_bytes());
            }
            _ => {
                self.out.put(&[0x8a, 8]); // LONG1
                self.out.put(&n.to_le_bytes());
            }
        }
    }

    /// An unsigned number, written as PyTorch does: its 64 bits as a signed number.
    pub(super) fn size(&mut self, n: u64) {
        self.int(n as i64);
    }

    /// A number with a fraction.
    pub(super) fn float(&mut self, n: f64) {
        self.out.byte(b'G'); // BINFLOAT
        self.out.put(&n.to_be_bytes());
    }

    /// True or False.
    pub(super) fn flag(&mut self, yes: bool) {
        self.out.byte(if yes { 0x88 } else { 0x89 }); // NEWTRUE, NEWFALSE
    }

    /// Begins a dict; pairs of key and value follow.
    pub(super) fn open_dict(&mut self) {
        self.out.put(b"}("); // EMPTY_DICT, MARK
    }

    /// Ends it.
    pub(super) fn close_dict(&mut self) {
        self.out.byte(b'u'); // SETITEMS
    }

    /// Two numbers as a tuple.
    pub(super) fn pair(&mut self, a: i64, b: i64) {
        self.int(a);
        self.int(b);
        self.out.byte(0x86); // TUPLE2
    }

    /// A list; `each` writes one element.
    pub(super) fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut each: impl FnMut(&mut Self, T) -> Result<()>,
    ) -> Result<()> {
        self.out.byte(b']'); // EMPTY_LIST
        let mut n = 0;
        for item in items {
            if n == 0 {
                self.out.byte(b'('); // MARK
            }
            each(self, item)?;
            self.out.rest()?;
            n += 1;
            if n == BATCH {
                self.out.byte(b'e'); // APPENDS
                n = 0;
            }
        }
        if n > 0 {
            self.out.byte(b'e');
        }
        Ok(())
    }

    /// An empty list.
    pub(super) fn nothing(&mut self) {
        self.out.byte(b']'); // EMPTY_LIST
    }

    /// A key and a number.
    pub(super) fn item(&mut self, key: &'static str, n: u64) {
        self.word(key);
        self.size(n);
    }
}
