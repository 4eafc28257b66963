//! The events before a snapshot, as PyTorch's tools know them.

use crate::core::PoolId;

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
    /// A request found no memory.
    Oom,
    /// A snapshot was taken.
    Snapshot,
    /// A block is used by one more stream. PyTorch has no such event.
    RecordStream,
    /// The program has noted something. PyTorch keeps these apart, as `external_annotations`.
    Annotate,
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
            Action::RecordStream => "record_stream",
            Action::Annotate => "annotate",
        }
    }

    /// Whether it is about a block.
    pub(super) fn is_of_a_block(self) -> bool {
        matches!(self, Action::Alloc | Action::FreeRequested | Action::FreeCompleted)
    }
}

/// An event before a snapshot, for [`Snapshot::write_with`](super::Snapshot::write_with).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub action: Action,
    /// When it happened, in microseconds since 1970.
    pub time_us: u64,
    /// Its address; 0 where there is none.
    pub address: u64,
    /// \[B\] of the block, of the segment or of the request.
    pub bytes: u64,
    /// \[B\] as requested, of a block or a request; 0: not known.
    pub requested: u64,
    /// \[B\] that the device had free when a request failed, if it could be asked.
    pub device_free: Option<u64>,
    /// The stream; 0 is the default one.
    pub stream: u64,
    /// The pool of a block or a request.
    pub pool: Option<PoolId>,
    /// The system's number of the thread; 0: not known.
    pub thread: u32,
    /// The tag that the thread had in force; 0: none.
    pub tag: u16,
    /// Which of the snapshot's stacks of callers; 0: none is known.
    pub stack: u32,
    /// Which of the snapshot's notes, of [`Action::Annotate`]; 0: none.
    pub text: u32,
}

impl Event {
    /// An event of which no more is known.
    pub const fn new(action: Action, time_us: u64) -> Event {
        Event {
            action,
            time_us,
            address: 0,
            bytes: 0,
            requested: 0,
            device_free: None,
            stream: 0,
            pool: None,
            thread: 0,
            tag: 0,
            stack: 0,
            text: 0,
        }
    }
}
