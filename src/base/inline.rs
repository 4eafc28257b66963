//! Texts and lists of bounded length that need no heap: for what must be told when the host has no memory left either.

use std::fmt::{self, Debug, Display, Write};
use std::ops::{Deref, DerefMut};

/// A text that `f` writes.
pub(crate) fn said(f: impl Fn(&mut fmt::Formatter<'_>) -> fmt::Result) -> impl Display {
    struct Said<F>(F);
    impl<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> Display for Said<F> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            (self.0)(f)
        }
    }
    Said(f)
}

/// What a noun ends with after this number.
pub(crate) fn s(n: u64) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// A text of at most `N` bytes. What does not fit is cut off, between two characters.
#[derive(Clone, Copy)]
pub struct Text<const N: usize> {
    len: u16,
    bytes: [u8; N],
}

impl<const N: usize> Text<N> {
    /// "".
    pub const fn new() -> Self {
        assert!(N <= u16::MAX as usize);
        Text { len: 0, bytes: [0; N] }
    }

    /// As much of the text as fits.
    pub fn of(text: impl Display) -> Self {
        let mut it = Self::new();
        it.set(text);
        it
    }

    /// Replaces what it says.
    pub fn set(&mut self, text: impl Display) {
        self.len = 0;
        let _ = write!(self, "{text}"); // what does not fit is left out
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let len = usize::from(self.len);
        let cut = (0..=s.len().min(N - len)).rev().find(|&n| s.is_char_boundary(n)).unwrap_or(0);
        self.bytes[len..len + cut].copy_from_slice(&s.as_bytes()[..cut]);
        self.len += cut as u16;
        // Nothing comes after what was cut.
        if cut < s.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

impl<const N: usize> Deref for Text<N> {
    type Target = str;
    fn deref(&self) -> &str {
        // Only whole texts, or their beginnings, were written.
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl<const N: usize> Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl<const N: usize> Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(&**self, f)
    }
}

impl<const N: usize> PartialEq for Text<N> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<const N: usize> Eq for Text<N> {}

impl<const N: usize> PartialEq<str> for Text<N> {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl<const N: usize> PartialEq<&str> for Text<N> {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl<const N: usize> From<&str> for Text<N> {
    fn from(text: &str) -> Self {
        Text::of(text)
    }
}

/// A list of at most `N` elements.
#[derive(Clone, Copy)]
pub struct Few<T, const N: usize> {
    len: usize,
    all: [T; N],
}

impl<T: Copy + Default, const N: usize> Few<T, N> {
    /// An empty list.
    pub fn new() -> Self {
        Few { len: 0, all: [T::default(); N] }
    }

    /// Appends an element; `false`: there is no room.
    pub fn push(&mut self, one: T) -> bool {
        let Some(slot) = self.all.get_mut(self.len) else { return false };
        *slot = one;
        self.len += 1;
        true
    }

    /// Inserts an element where it belongs among others that are sorted by `size`, largest first; of equal ones the first
    /// stays before. The smallest leaves if there is no room.
    pub fn insert_by(&mut self, one: T, size: impl Fn(&T) -> u64) {
        let at = self.iter().position(|t| size(t) < size(&one)).unwrap_or(self.len);
        if at < N {
            self.len = (self.len + 1).min(N);
            self.all[at..self.len].rotate_right(1);
            self.all[at] = one;
        }
    }
}

impl<T: Copy + Default, const N: usize> Default for Few<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const N: usize> Deref for Few<T, N> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.all[..self.len]
    }
}

impl<T, const N: usize> DerefMut for Few<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.all[..self.len]
    }
}

impl<T: Debug, const N: usize> Debug for Few<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: PartialEq, const N: usize> PartialEq for Few<T, N> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq, const N: usize> Eq for Few<T, N> {}

/// As many as there is room for.
impl<T: Copy + Default, const N: usize> FromIterator<T> for Few<T, N> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let mut it = Self::new();
        all.into_iter().take(N).for_each(|one| _ = it.push(one));
        it
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters_and_takes_no_more() {
        let mut t = Text::<5>::of("abc");
        assert!(t.write_str("dé!").is_err());
        assert_eq!((&*t, t.to_string()), ("abcd", "abcd".to_owned()));
        t.set(format_args!("{}-{}", 1, 2));
        assert_eq!(format!("{t:?}"), "\"1-2\"");
        assert_eq!(Text::<0>::of("x"), Text::new());
        assert!(t == "1-2" && t != "1");
    }

    #[test]
    fn the_largest_stay_and_equal_ones_keep_their_order() {
        let mut few = Few::<(u64, char), 3>::new();
        for one in [(2, 'a'), (5, 'b'), (2, 'c'), (9, 'd'), (2, 'e'), (1, 'f')] {
            few.insert_by(one, |o| o.0);
        }
        assert_eq!(*few, [(9, 'd'), (5, 'b'), (2, 'a')]);
        assert!(!few.push((0, 'x')));
        assert_eq!((1..9).collect::<Few<u32, 4>>()[..], [1, 2, 3, 4]);
    }
}
