//! What freed memory waits for: fences, and fences that are still owed.

use super::fence::Fence;
use super::stream::Stream;
use crate::base::boxed::try_push;
use std::sync::Arc;

/// A fence that could not be made, because the stream is captured or the device refused. Made as soon as possible, it
/// covers what was queued before it was owed; so does a wait for the device that begins later.
#[derive(Clone)]
pub(super) struct Owed {
    pub stream: Arc<Stream>,
    /// Its place in the sequence of serial numbers.
    pub since: u64,
    /// It also stands for what is left behind on the device.
    pub left: bool,
}

/// A set of fences, made or owed. Empty: there is nothing to wait for.
#[derive(Clone, Default)]
pub(crate) struct Waits {
    fences: Vec<Fence>,
    owed: Vec<Owed>,
}

impl Waits {
    /// Makes room for so many more fences, made or owed. `false`: the host has no memory for that.
    pub(crate) fn make_room(&mut self, more: usize) -> bool {
        self.fences.try_reserve_exact(more).is_ok() && self.owed.try_reserve_exact(more).is_ok()
    }

    /// A copy; `None`: the host has no memory for it.
    pub(crate) fn try_clone(&self) -> Option<Waits> {
        let mut copy = Waits::default();
        copy.fences.try_reserve_exact(self.fences.len()).ok()?;
        copy.owed.try_reserve_exact(self.owed.len()).ok()?;
        copy.fences.extend_from_slice(&self.fences);
        copy.owed.extend_from_slice(&self.owed);
        Some(copy)
    }

    pub(crate) fn push(&mut self, fence: Fence) {
        if !fence.is_passed() && !self.fences.iter().any(|f| f.is(&fence)) {
            self.fences.push(fence);
        }
    }

    /// Waits for the fence, too. `false`: the host has no memory for that.
    pub(super) fn try_push(&mut self, fence: Fence) -> bool {
        let has_room = self.fences.try_reserve(1).is_ok();
        if has_room {
            self.push(fence);
        }
        has_room
    }

    /// Also waits for the fences of `other`, which owes none. `false`: the host has no memory for that.
    pub(super) fn try_append(&mut self, other: &Waits) -> bool {
        let has_room = self.fences.try_reserve(other.fences.len()).is_ok();
        if has_room {
            other.fences.iter().for_each(|f| self.push(f.clone()));
        }
        has_room
    }

    pub(super) fn owe(&mut self, stream: Arc<Stream>, since: u64) {
        self.owed.push(Owed { stream, since, left: false });
    }

    /// The same; `false`: the host has no memory for that and for one more.
    pub(super) fn try_owe(&mut self, stream: Arc<Stream>, since: u64) -> bool {
        self.owed.try_reserve(2).is_ok() && try_push(&mut self.owed, Owed { stream, since, left: false })
    }

    /// Owes what stands for all streams together and for what is left behind.
    pub(super) fn owe_all(&mut self, every: Arc<Stream>, since: u64) {
        self.owed.push(Owed { stream: every, since, left: true });
    }

    pub(super) fn take_owed(&mut self) -> Vec<Owed> {
        std::mem::take(&mut self.owed)
    }

    /// Puts back what is still owed of what was taken.
    pub(super) fn still_owe(&mut self, owed: Vec<Owed>) {
        self.owed = owed;
    }

    /// Whether fences are still owed.
    pub(crate) fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    pub(crate) fn fences(&self) -> &[Fence] {
        &self.fences
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
