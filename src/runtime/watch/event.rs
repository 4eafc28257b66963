//! Events of a device's memory: what happened, as a struct, and as the few words in which it is told and written down.

use crate::base::clock::{self, Span};
use crate::base::ring;
use crate::core::{BlockInfo, Freeing, Noted, PoolId};
use crate::device::StreamId;
use std::cell::Cell;
use std::num::NonZero;

/// What happened. The numbers stand in files and in the C API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    /// A request was served.
    Alloc = 1,
    /// A free was asked for; told before the memory can be used again.
    FreeRequested = 2,
    /// What the freed block waited for is over: it can be used again by anybody.
    FreeCompleted = 3,
    /// A free that was asked for has failed: the block lives on.
    FreeRefused = 4,
    /// Memory was taken from the device, and is at that address.
    SegmentAlloc = 5,
    /// Memory went back to the device.
    SegmentFree = 6,
    /// Memory that was there before is shown at that address, too.
    SegmentMap = 7,
    /// It is not shown there any more.
    SegmentUnmap = 8,
    /// A request has failed for lack of memory, whatever was tried.
    Oom = 9,
    /// A block is used by one more stream.
    RecordStream = 10,
    /// A snapshot was taken.
    Snapshot = 11,
    /// The program has noted something: its text has the number that stands for the address.
    Annotate = 12,
}

impl EventKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [EventKind; 12] = [
        EventKind::Alloc,
        EventKind::FreeRequested,
        EventKind::FreeCompleted,
        EventKind::FreeRefused,
        EventKind::SegmentAlloc,
        EventKind::SegmentFree,
        EventKind::SegmentMap,
        EventKind::SegmentUnmap,
        EventKind::Oom,
        EventKind::RecordStream,
        EventKind::Snapshot,
        EventKind::Annotate,
    ];

    /// Its name, as PyTorch has it where it has one.
    pub const fn name(self) -> &'static str {
        match self {
            EventKind::Alloc => "alloc",
            EventKind::FreeRequested => "free_requested",
            EventKind::FreeCompleted => "free_completed",
            EventKind::FreeRefused => "free_refused",
            EventKind::SegmentAlloc => "segment_alloc",
            EventKind::SegmentFree => "segment_free",
            EventKind::SegmentMap => "segment_map",
            EventKind::SegmentUnmap => "segment_unmap",
            EventKind::Oom => "oom",
            EventKind::RecordStream => "record_stream",
            EventKind::Snapshot => "snapshot",
            EventKind::Annotate => "annotate",
        }
    }
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// \[ns\] of the system's monotonic clock.
    pub time: u64,
    /// What happened.
    pub kind: EventKind,
    /// Whether it is pinned host memory.
    pub host: bool,
    /// Of `FreeRequested`: nothing had to be waited for, so it is `FreeCompleted` as well, which is not told.
    /// Of `Oom`: the device could be asked what it has free.
    pub at_once: bool,
    /// Where; 0 where there is no place. Of `Oom`: \[B\] that the device had free.
    pub address: u64,
    /// \[B\] as charged.
    pub bytes: u64,
    /// \[B\] as asked for.
    pub requested: u64,
    /// The stream of the block, or of the request; `None`: one without a stream.
    pub stream: Option<StreamId>,
    /// Of a free: that stream has ended, though its work may still run. Another one may have its number. Not kept in
    /// files.
    pub ended: bool,
    /// The pool that served it.
    pub pool: PoolId,
    /// The system's number of the thread.
    pub thread: u32,
    /// What the thread said that it is doing; 0: nothing.
    pub tag: u16,
    /// Of `SegmentMap`: where the memory has been from the start; 0: not told.
    pub home: u64,
}

impl Event {
    /// An event of that kind, with everything else 0.
    pub(crate) const fn new(kind: EventKind) -> Event {
        Event {
            time: 0,
            kind,
            host: false,
            at_once: false,
            address: 0,
            bytes: 0,
            requested: 0,
            stream: None,
            ended: false,
            pool: PoolId::DEFAULT,
            thread: 0,
            tag: 0,
            home: 0,
        }
    }

    /// Whether it is about a range of memory, not about a block or a request.
    pub const fn is_segment(&self) -> bool {
        use EventKind::{SegmentAlloc, SegmentFree, SegmentMap, SegmentUnmap};
        matches!(self.kind, SegmentAlloc | SegmentFree | SegmentMap | SegmentUnmap)
    }

    /// An event of that kind, about a block.
    pub(crate) fn of(kind: EventKind, b: &BlockInfo) -> Event {
        let (address, bytes, requested) = (b.base, b.size, b.requested);
        Event { address, bytes, requested, stream: b.stream, pool: b.pool, ..Event::new(kind) }
    }

    /// A free that is asked for.
    pub(crate) fn freeing(f: &Freeing) -> Event {
        Event { at_once: f.at_once, ended: f.ended, ..Event::of(EventKind::FreeRequested, &f.block) }
    }

    /// A request of so many bytes that failed, and what the device had free, if it could be asked.
    pub(crate) fn failure(device_free: Option<u64>, bytes: u64) -> Event {
        Event {
            at_once: device_free.is_some(),
            ..Event::range(EventKind::Oom, device_free.unwrap_or(0), bytes)
        }
    }

    /// \[B\] that the device had free when a request failed, if it could be asked.
    pub fn device_free(&self) -> Option<u64> {
        (self.kind == EventKind::Oom && self.at_once).then_some(self.address)
    }

    /// One about a range of memory.
    pub(crate) const fn range(kind: EventKind, address: u64, bytes: u64) -> Event {
        Event { address, bytes, requested: bytes, ..Event::new(kind) }
    }
}

/// The words of an event.
pub(crate) const WORDS: usize = ring::SHORT;

bitflags::bitflags! {
    /// What is true of an event: bits of its second word, which also has its kind and its thread.
    #[derive(Clone, Copy)]
    struct Flags: u64 {
        const HOST = 1 << 8;
        const AT_ONCE = 1 << 9;
        /// It has a stream.
        const STREAM = 1 << 10;
        const ENDED = 1 << 11;
    }
}

/// An event as it is told: few words, as many are written down in a second, and the time as the processor counts it.
#[derive(Clone, Copy, Debug)]
pub struct Told(pub(crate) [u64; WORDS]);

impl Told {
    pub(crate) fn new(e: &Event) -> Told {
        let mut flags = Flags::empty();
        flags.set(Flags::HOST, e.host);
        flags.set(Flags::AT_ONCE, e.at_once);
        flags.set(Flags::STREAM, e.stream.is_some());
        flags.set(Flags::ENDED, e.ended);
        let what = e.kind as u64 | flags.bits() | u64::from(e.thread) << 32;
        let pool = u64::from(e.pool.0) | u64::from(e.tag) << 32;
        // A range of memory has no stream.
        Told([e.time, what, e.address, e.bytes, e.requested, e.stream.unwrap_or(e.home), pool])
    }

    /// The thread that told.
    pub(super) fn thread(&self) -> u32 {
        (self.0[1] >> 32) as u32
    }

    /// What happened; `None` where these are not the words of an event.
    pub fn kind(&self) -> Option<EventKind> {
        EventKind::ALL.into_iter().find(|&k| k as u64 == self.0[1] & 0xFF)
    }

    /// The event; `None` where these are not the words of one.
    pub fn event(&self) -> Option<Event> {
        self.event_in(&Span::all())
    }

    /// The same, of a time in that span.
    pub(crate) fn event_in(&self, times: &Span) -> Option<Event> {
        let [ticks, what, address, bytes, requested, stream, pool] = self.0;
        let kind = self.kind()?;
        let flags = Flags::from_bits_truncate(what);
        Some(Event {
            time: times.ns_at(ticks),
            kind,
            host: flags.contains(Flags::HOST),
            at_once: flags.contains(Flags::AT_ONCE),
            address,
            bytes,
            requested,
            stream: flags.contains(Flags::STREAM).then_some(stream),
            ended: flags.contains(Flags::ENDED),
            pool: PoolId(pool as u32),
            thread: self.thread(),
            tag: (pool >> 32) as u16,
            home: if kind == EventKind::SegmentMap { stream } else { 0 },
        })
    }
}

/// The words of a request that was served, or of a free that waits for nothing: of a block that one stream has.
#[inline(always)]
pub(crate) fn words_of(kind: Quick, noted: Noted, stream: StreamId) -> [u64; WORDS] {
    words_at((clock::ticks(), thread_number()), kind, noted, stream)
}

/// The same of that time and thread.
#[inline(always)]
pub(crate) fn words_at(
    (ticks, thread): (u64, u32),
    kind: Quick,
    Noted { pool, address, charged, requested }: Noted,
    stream: StreamId,
) -> [u64; WORDS] {
    let what = kind as u64 | u64::from(thread) << 32;
    [ticks, what, address, charged, requested, stream, pool]
}

/// What [`words_of`] are about.
#[derive(Clone, Copy)]
#[repr(u64)]
pub(crate) enum Quick {
    Alloc = EventKind::Alloc as u64 | Flags::STREAM.bits(),
    Free = EventKind::FreeRequested as u64 | Flags::AT_ONCE.union(Flags::STREAM).bits(),
}

thread_local! {
    /// The number of this thread; 0: not asked yet. No destructor, so it works at thread exit too.
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// The same if it was asked before.
#[inline(always)]
pub(crate) fn known_thread_number() -> Option<NonZero<u32>> {
    NonZero::new(THREAD.get())
}

/// The system's number of the calling thread.
#[inline]
pub(crate) fn thread_number() -> u32 {
    match THREAD.get() {
        0 => ask_thread_number(),
        n => n,
    }
}

#[cold]
#[inline(never)]
fn ask_thread_number() -> u32 {
    // The call itself: the function for it is newer (glibc 2.30) than what we ask of the system otherwise.
    // SAFETY: takes nothing, and cannot fail.
    let n = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    THREAD.set(n);
    n
}
