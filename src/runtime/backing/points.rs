//! The points for which freed memory waits: events of ours, events of the caller, tickets of exports, and visits of
//! other devices.
//!
//! A point is an index into this table with a generation. After it was given back it leads nowhere, so a point that is
//! queried too late is not mistaken for one that is passed.

use super::borrowed::Borrowed;
use crate::base::boxed::try_push;
use crate::base::descriptor::Descriptor;
use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::base::sync::system::{Mutex, lock};
use crate::core::{Order, Point, Waits};
use crate::device::{EventId, Streams};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// What a point stands for.
enum What {
    /// Nothing: the entry is free.
    Nothing,
    /// An event of ours.
    Event(EventId),
    /// An event of the caller, by its number among the borrowed ones.
    Borrowed(u64),
    /// The read end of a pipe. It is passed when nobody has the write end any more, which means that no other process
    /// uses the block. The write end goes with the block, and each importer has a copy. Nothing is ever written.
    Ticket(Descriptor),
    /// Work of another device's stream, about which that device is asked.
    Visit(Arc<Visit>),
}

/// Work of a stream of another device on memory of this one.
pub(super) struct Visit {
    order: &'static Order, // of the other device
    waits: Mutex<Waits>,
}

impl Visit {
    /// Whether the work is over; with `wait`, waits for it on the host. No lock is held meanwhile: threads that do this
    /// at the same time do it independently.
    fn is_over(&self, wait: bool) -> Result<bool> {
        let mut waits = lock(&self.waits).clone();
        let mut over = self.order.settle(&mut waits);
        if !over && wait {
            self.order.sync_waits(&mut waits)?;
            over = true;
        }
        // The old waits are dropped without the lock.
        let before = std::mem::replace(&mut *lock(&self.waits), waits);
        drop(before);
        Ok(over)
    }

    /// Whether the work is over.
    pub(super) fn passed(&self) -> Result<bool> {
        self.is_over(false)
    }

    /// Waits for it on the host.
    pub(super) fn sync(&self) -> Result<()> {
        self.is_over(true).map(drop)
    }
}

/// What must be asked to learn about a point.
pub(super) enum Query {
    Event(EventId),
    Borrowed(u64),
    Visit(Arc<Visit>),
    /// No device needs to be asked: whether the point is passed.
    Answer(bool),
}

struct Entry {
    generation: u32,
    what: What,
}

#[derive(Default)]
struct Table {
    places: Vec<Entry>,
    free: Vec<u32>,
}

/// The points of one device.
#[derive(Default)]
pub(crate) struct Points {
    table: Mutex<Table>,
    pub(super) borrowed: Borrowed,
}

fn split(point: Point) -> (usize, u32) {
    ((point & u64::from(u32::MAX)) as usize, (point >> 32) as u32)
}

/// Both ends of a new pipe: read, write.
fn pipe() -> Result<(Descriptor, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: the array has room for the two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        let e = std::io::Error::last_os_error();
        return Err(Error::formatted(Code::System, format_args!("pipe2: {e}")));
    }
    // SAFETY: made just now, and nobody else owns it.
    let read = unsafe { OwnedFd::from_raw_fd(ends[0]) };
    // SAFETY: as above.
    let write = unsafe { OwnedFd::from_raw_fd(ends[1]) };
    Ok((Descriptor::new(read, "the ticket of an export")?, write))
}

/// Whether the other end of a pipe is closed. Unknown (`false`) if the program has closed this end.
fn has_hung_up(fd: &Descriptor) -> bool {
    let Ok(fd) = fd.get() else { return false };
    let mut ask = libc::pollfd { fd: fd.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one entry, which is ours; does not wait. The descriptor is open while it is borrowed.
    let n = unsafe { libc::poll(&mut ask, 1, 0) };
    n == 1 && ask.revents & libc::POLLHUP != 0
}

impl Table {
    /// A place that is free. A new one has room among the free ones, so that to give it back needs no memory.
    fn place(&mut self) -> Option<u32> {
        if let Some(at) = self.free.pop() {
            return Some(at);
        }
        let at = self.places.len();
        self.free.try_reserve(at + 1).ok()?;
        try_push(&mut self.places, Entry { generation: 0, what: What::Nothing }).then_some(at as u32)
    }

    /// A point at a place that is free.
    fn enter(&mut self, at: u32, what: What) -> Point {
        let place = &mut self.places[at as usize];
        place.generation = place.generation.wrapping_add(1);
        place.what = what;
        u64::from(place.generation) << 32 | u64::from(at)
    }
}

impl Points {
    fn add(&self, what: What) -> Result<Point> {
        let mut t = lock(&self.table);
        let Some(at) = t.place() else {
            drop(t);
            if let What::Borrowed(number) = what {
                self.borrowed.forget(number);
            }
            return Err(no_host_memory());
        };
        Ok(t.enter(at, what))
    }

    /// A point at an event of ours, which was just recorded.
    pub(super) fn of_event(&self, event: EventId) -> Result<Point> {
        self.add(What::Event(event))
    }

    /// A point at an event of the caller; `None`: it has completed.
    pub(super) fn borrow(&self, streams: &dyn Streams, event: EventId) -> Result<Option<Point>> {
        self.borrowed.borrow(streams, event)?.map(|number| self.add(What::Borrowed(number))).transpose()
    }

    /// A new ticket: its point, and the end of the pipe that the users of the block keep open.
    pub(crate) fn issue_ticket(&self) -> Result<(Point, OwnedFd)> {
        let (read, write) = pipe()?;
        Ok((self.add(What::Ticket(read))?, write))
    }

    /// A point that is passed when `waits`, of a device with that order of streams, is over.
    pub(super) fn visit(&self, order: &'static Order, waits: Waits) -> Point {
        let visit = What::Visit(Arc::new(Visit { order, waits: Mutex::new(waits) }));
        let mut t = lock(&self.table);
        // The work is there already, and must not be forgotten.
        let at = t.place().unwrap_or_else(|| {
            let at = t.places.len();
            t.free.reserve(at + 1);
            t.places.push(Entry { generation: 0, what: What::Nothing });
            at as u32
        });
        t.enter(at, visit)
    }

    /// What must be asked to learn about a point.
    pub(super) fn get(&self, point: Point) -> Result<Query> {
        let (at, generation) = split(point);
        let t = lock(&self.table);
        match t.places.get(at).filter(|p| p.generation == generation).map(|p| &p.what) {
            Some(What::Event(e)) => Ok(Query::Event(*e)),
            Some(What::Borrowed(n)) => Ok(Query::Borrowed(*n)),
            Some(What::Visit(v)) => Ok(Query::Visit(v.clone())),
            Some(What::Ticket(fd)) => Ok(Query::Answer(has_hung_up(fd))),
            Some(What::Nothing) | None => {
                Err(Error::new(Code::Internal, "a point was asked about after its end"))
            }
        }
    }

    /// Gives a point back; returns what must be done with its event.
    pub(super) fn take(&self, point: Point) -> Taken {
        let (at, generation) = split(point);
        let what = {
            let mut t = lock(&self.table);
            let Some(place) = t.places.get_mut(at).filter(|p| p.generation == generation) else {
                return Taken::Nothing;
            };
            let what = std::mem::replace(&mut place.what, What::Nothing);
            if !matches!(what, What::Nothing) {
                t.free.push(at as u32);
            }
            what
        };
        match what {
            What::Event(e) => Taken::Ours(e),
            What::Borrowed(n) => self.borrowed.forget(n).map_or(Taken::Nothing, Taken::Theirs),
            What::Ticket(_) | What::Visit(_) | What::Nothing => Taken::Nothing,
        }
    }
}

/// What must be done with the event of a point that was given back.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Nothing,
    /// An event of ours, to be reused.
    Ours(EventId),
    /// An event to be destroyed: the caller has destroyed it while it was needed.
    Theirs(EventId),
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn a_ticket_is_passed_when_its_last_copy_is_closed() {
        let t = Points::default();
        let passed = |p| matches!(t.get(p), Ok(Query::Answer(true)));
        let (point, first) = t.issue_ticket().unwrap();
        let second = first.try_clone().unwrap();
        assert!(!passed(point));
        drop(first);
        assert!(!passed(point));
        drop(second);
        assert!(passed(point));
        assert_eq!(t.take(point), Taken::Nothing);
    }

    #[test]
    fn a_point_that_was_given_back_leads_nowhere() {
        let t = Points::default();
        for event in [0x71C7 << 48, 0xCA11 << 48, u64::MAX, 1] {
            let point = t.of_event(event).unwrap();
            assert!(matches!(t.get(point), Ok(Query::Event(e)) if e == event), "{event:#x}");
            assert_eq!(t.take(point), Taken::Ours(event));
            assert_eq!(t.take(point), Taken::Nothing, "it is given back once");
            let other = t.of_event(7).unwrap();
            assert!(t.get(point).is_err(), "its place is another's now");
            assert_eq!(t.take(point), Taken::Nothing, "nor is that one given back");
            assert_eq!(t.take(other), Taken::Ours(7));
        }
    }
}
