//! The output buffer: collects bytes into pieces, so that the receiver is called seldom.

use crate::base::error::Result;

/// [B] minimum size of a piece, except the last one.
const PIECE: usize = 64 << 10;

/// See the file's head.
pub(super) struct Sink<'a> {
    piece: Vec<u8>,
    to: &'a mut dyn FnMut(&[u8]) -> Result<()>,
}

impl<'a> Sink<'a> {
    pub(super) fn new(to: &'a mut dyn FnMut(&[u8]) -> Result<()>) -> Self {
        Sink { piece: Vec::with_capacity(PIECE + 4096), to }
    }

    /// Adds bytes. The caller calls `rest` now and then.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.piece.extend_from_slice(bytes);
    }

    /// Adds one byte.
    pub(super) fn byte(&mut self, byte: u8) {
        self.piece.push(byte);
    }

    /// Adds a number in decimal digits.
    pub(super) fn decimal(&mut self, mut n: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                break;
            }
        }
        self.put(&digits[at..]);
    }

    /// Hands out the piece, if it is large enough.
    pub(super) fn rest(&mut self) -> Result<()> {
        if self.piece.len() < PIECE { Ok(()) } else { self.hand_out() }
    }

    fn hand_out(&mut self) -> Result<()> {
        (self.to)(&self.piece)?;
        self.piece.clear();
        Ok(())
    }

    /// Hands out what is left.
    pub(super) fn end(mut self) -> Result<()> {
        if self.piece.is_empty() { Ok(()) } else { self.hand_out() }
    }
}
