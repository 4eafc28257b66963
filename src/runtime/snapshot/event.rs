//! The events before a snapshot, as PyTorch's tools know them.

/// The kind of an event, with PyTorch's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A block was given out.
    Alloc,
    /// A block was freed by its owner.
    FreeRequested,
    /// A freed block can be used again.
    FreeCompleted,
    /// A segment was taken from the device.
    SegmentAlloc,
    /// A segment was given back.
    SegmentFree,
    /// A range of addresses was mapped.
    SegmentMap,
    /// A range of addresses was unmapped.
    SegmentUnmap,
    /// A request found no memory. The event's `address` is the number of bytes that the device had free.
    Oom,
    /// A snapshot was taken.
    Snapshot,
}

impl Action {
    /// PyTorch's name of the action.
    pub fn name(self) -> &'static str {
        match self {
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::SegmentAlloc => "segment_alloc",
            Action::SegmentFree => "segment_free",
            Action::SegmentMap => "segment_map",
            Action::SegmentUnmap => "segment_unmap",
            Action::Oom => "oom",
            Action::Snapshot => "snapshot",
        }
    }
}

/// An event before a snapshot, for [`Snapshot::write_with`](super::Snapshot::write_with).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub action: Action,
    /// When it happened, in microseconds since 1970.
    pub time_us: u64,
    /// Its address, except for [`Action::Oom`].
    pub address: u64,
    /// \[B\] of the block, of the segment or of the request.
    pub bytes: u64,
    /// The stream; 0 is the default one.
    pub stream: u64,
    /// Which of the snapshot's stacks of callers; 0: none is known.
    pub stack: u32,
}
