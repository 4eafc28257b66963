//! What freed memory waits for: fences, and fences that are still owed.

use super::fence::Fence;
use super::stream::Stream;
use std::sync::Arc;

/// A fence that could not be made, because the stream is captured or the device refused. Made as soon as possible, it
/// covers what was queued before it was owed; so does a wait for the device that begins later.
#[derive(Clone)]
pub(super) struct Owed {
    pub stream: Arc<Stream>,
    /// Its place in the sequence of serial numbers.
    pub since: u64,
}

/// A set of fences, made or owed. Empty: there is nothing to wait for.
#[derive(Clone, Default)]
pub(crate) struct Waits {
    fences: Vec<Fence>,
    owed: Vec<Owed>,
}

impl Waits {
    pub(crate) fn push(&mut self, fence: Fence) {
        if !fence.is_passed() && !self.fences.iter().any(|f| f.is(&fence)) {
            self.fences.push(fence);
        }
    }

    pub(super) fn owe(&mut self, stream: Arc<Stream>, since: u64) {
        self.owed.push(Owed { stream, since });
    }

    pub(super) fn owe_again(&mut self, owed: Owed) {
        self.owed.push(owed);
    }

    pub(super) fn take_owed(&mut self) -> Vec<Owed> {
        std::mem::take(&mut self.owed)
    }

    /// Whether fences are still owed.
    pub(crate) fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    pub(crate) fn fences(&self) -> Vec<Fence> {
        self.fences.clone()
    }

    /// The serial numbers of the streams that it waits for.
    pub(crate) fn stream_serials(&self) -> impl Iterator<Item = u64> {
        let open = self.fences.iter().filter(|f| !f.is_passed()).map(Fence::stream_serial);
        open.chain(self.owed.iter().map(|o| o.stream.serial))
    }

    /// Drops what is over. Returns whether nothing is left.
    pub(crate) fn drop_passed(&mut self, is_over: impl Fn(&Fence) -> bool) -> bool {
        self.fences.retain(|f| !is_over(f));
        self.is_over()
    }

    /// Whether there is nothing to wait for.
    pub(crate) fn is_over(&self) -> bool {
        self.fences.is_empty() && self.owed.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.fences.clear();
        self.owed.clear();
    }

    /// The lowest serial number among them.
    pub(crate) fn serial(&self) -> u64 {
        let fences = self.fences.iter().map(Fence::serial);
        fences.chain(self.owed.iter().map(|o| o.since)).min().unwrap_or(u64::MAX)
    }

    /// Also waits for what `other` waits for.
    pub(crate) fn append(&mut self, other: Waits) {
        other.fences.into_iter().for_each(|f| self.push(f));
        self.owed.extend(other.owed);
    }
}
