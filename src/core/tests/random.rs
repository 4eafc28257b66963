//! A small generator of the same numbers on every run, for programs in which several threads or failing calls meet.

pub(super) struct Random(pub u64);

impl Random {
    /// A number from 0 to `n` - 1.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}
