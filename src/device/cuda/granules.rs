//! Physical granules of 2 MiB and a window of addresses to map them in.
//!
//! A granule has a driver handle of its own, so that it can be mapped anywhere and given back alone, or shares the
//! handle of its tie (`slots.rs`).
//!
//! Every call here is a transaction: if the driver refuses a step, the earlier steps are undone, and everything is as
//! before. What it refuses to undo is recorded (`Arrears`) and tried again at the next call, so that a device that
//! recovers gets everything back. The caller repeats whole calls that were refused (`runtime/backing/refused.rs`, which
//! says why there are two such lists).
//!
//! Work in flight: `map` touches no address that is in use. `unmap` removes mappings at once, since the driver waits
//! for no work. So its caller must have waited for the device. The core waits (`sync_all`) before it forgets idle
//! ranges and before it gives granules back; what it unmaps without a wait was never handed out.
//!
//! The lock is held across the driver's calls (`docs/architecture.md`, "Locks", says why); the driver calls nobody back in
//! them.

use super::driver::{About, Driver, Physical};
use super::fabric::{self, Fabric};
use super::granted::Granted;
use super::slots::{Arrears, Granule, Opened, State};
use crate::base::error::{Code, Error, Result};
use crate::base::ordered::Map;
use crate::base::sync::system::{Mutex, MutexGuard, lock};
use crate::device::{GRANULE, Run};
use crate::fail;
use crate::locks;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The maximum number of mappings that a context is asked for. The documentation names no bound; an H200 refused more than
/// 520 192 (docs/measurements.md). A window of 6 times the memory of an 80 GiB card takes 245 000.
const MOST_MAPPINGS: u64 = 500_000;

/// What another process has sent to identify a granule.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Fd(BorrowedFd<'a>),
    Fabric(&'a [u8; 64]),
}

/// The mapped memory of one device.
pub(super) struct Granules {
    driver: Driver,
    physical: Physical,
    no_export: String, // why the memory has no file descriptors, where it has none
    state: Mutex<State, locks::CudaGranules>,
}

impl Granules {
    pub(super) fn new(driver: Driver, granted: &Granted, capacity: u64) -> Granules {
        let physical = granted.physical;
        let state = State {
            window: 0,
            // Twice as many numbers as granules of memory: sleeping memory keeps its numbers.
            granules: vec![Granule::Absent; (2 * capacity / GRANULE) as usize],
            ties: Map::new(),
            slots: Vec::new(),
            arrears: Arrears { handles: granted.left.into_iter().collect(), ..Arrears::default() },
            opened: Map::new(),
            readers: vec![physical.device],
            guests: Vec::new(),
            former_guests: Vec::new(),
            fabric: Fabric::default(),
            one_by_one: false,
        };
        Granules { driver, physical, no_export: granted.no_export.clone(), state: Mutex::new(state) }
    }

    /// How many granule numbers there are.
    pub(super) fn numbers(&self) -> u64 {
        self.lock().granules.len() as u64
    }

    fn lock(&self) -> MutexGuard<'_, State, locks::CudaGranules> {
        lock(&self.state)
    }

    pub(super) fn open_window(&self, bytes: u64) -> Result<u64> {
        let mut s = self.lock();
        let _relaxed = self.driver.relaxed();
        if s.window != 0 {
            return Err(Error::new(Code::Busy, "this device has a window already"));
        }
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) || bytes / GRANULE >= u64::from(u32::MAX) {
            fail!(Code::InvalidArgument, "a window of {bytes} bytes: not whole granules of 2 MiB");
        }
        // At the most, all memory is mapped at its own place, and the rest of the window is full of second addresses.
        let numbers = s.granules.len() as u64;
        let views = (bytes / GRANULE).saturating_sub(numbers);
        if numbers / 2 + views > MOST_MAPPINGS && views > numbers / 2 {
            fail!(Code::OutOfMemory, "a window of {bytes} bytes needs more mappings than a context can have");
        }
        s.window = self.driver.reserve(bytes, GRANULE)?;
        s.slots = vec![0; (bytes / GRANULE) as usize];
        Ok(s.window)
    }

    /// Gives everything back, whatever the driver says: what it refuses is not tried again. Returns the first failure.
    pub(super) fn close_window(&self) -> Result<()> {
        let mut s = self.lock();
        let _relaxed = self.driver.relaxed();
        let mut first = Ok(());
        let mut note = |r: Result<()>| {
            if first.is_ok() {
                first = r;
            }
        };
        let mut next = 0;
        while let Some(start) = (next..s.slots.len()).find(|&i| s.slots[i] != 0) {
            next = (start..s.slots.len()).find(|&i| s.slots[i] == 0).unwrap_or(s.slots.len());
            if matches!(self.hide_run(&mut s, start..next), Ok(true)) {
                continue;
            }
            for mapping in s.mappings(start..next).unwrap_or_default() {
                let (at, bytes) = (mapping.start as u64 * GRANULE, mapping.len() as u64 * GRANULE);
                note(self.driver.unmap(s.window + at, bytes));
            }
            s.slots[start..next].fill(0);
        }
        for (addr, o) in std::mem::take(&mut s.opened) {
            let mut at = addr;
            for bytes in o.shown {
                note(self.driver.unmap(at, bytes));
                at += bytes;
            }
            note(self.driver.reserve_end(addr, o.bytes));
        }
        for handle in std::mem::take(&mut s.arrears).handles {
            note(self.driver.physical_release(handle));
        }
        for g in &mut s.granules {
            if let Granule::Present { handle, .. } = std::mem::replace(g, Granule::Absent) {
                note(self.driver.physical_release(handle));
            }
        }
        if s.window != 0 {
            note(self.driver.reserve_end(s.window, s.slots.len() as u64 * GRANULE));
        }
        s.ties.clear();
        s.window = 0;
        s.slots = Vec::new();
        first
    }

    /// Creates granules, with one handle for every `each` of them. The last handle may have fewer.
    pub(super) fn create(&self, first: u64, count: u64, each: u64) -> Result<()> {
        let mut s = self.lock();
        let _relaxed = self.driver.relaxed();
        let _ = self.settle(&mut s);
        let range = s.granules(Run { first, count })?;
        if let Some(at) = range.clone().find(|i| s.granules[*i] != Granule::Absent) {
            fail!(Code::InvalidArgument, "granule {at} exists already");
        }
        for at in range.clone().step_by(each.max(1) as usize) {
            let lot = at..range.end.min(at + each as usize);
            match self.make_one(&mut s, lot.len() as u64) {
                Ok(made) => s.enter(lot, made),
                Err(e) => {
                    let made: Vec<Granule> = s.granules[range.start..at].to_vec();
                    s.gone(range.start..at);
                    made.into_iter().for_each(|g| self.give(&mut s, g));
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// Whether granules created from now on should support fabric handles.
    pub(super) fn set_fabric(&self, wanted: bool) {
        self.lock().fabric.wanted = wanted;
    }

    /// Creates a handle with memory for that many granules. It supports fabric handles if that is wanted and the driver
    /// grants it.
    fn make_one(&self, s: &mut State, granules: u64) -> Result<Granule> {
        let make = |kind: &Physical| self.driver.physical_create(granules * GRANULE, kind);
        let mut refused = None;
        if s.fabric.tries(self.driver, &self.physical) {
            match make(&Physical { fabric: true, ..self.physical }) {
                Ok(handle) => {
                    s.arrears.handles.retain(|&h| h != handle);
                    return Ok(Granule::Present { handle, shown: 0, fabric: true });
                }
                Err(f) if fabric::may_refuse(f) => refused = Some(f),
                Err(f) => return self.driver.check(Err(f)),
            }
        }
        let handle = self.driver.check(make(&self.physical))?;
        s.arrears.handles.retain(|&h| h != handle); // the driver did release it, although it reported a failure
        if let Some(f) = refused {
            s.fabric.refuse(&self.driver.error(f, About::Other));
        }
        Ok(Granule::Present { handle, shown: 0, fabric: false })
    }

    /// Gives a handle back to the driver, now or later.
    fn give(&self, s: &mut State, granule: Granule) {
        if let Granule::Present { handle, .. } = granule {
            let _ = self.release_handle(s, handle);
        }
    }

    fn release_handle(&self, s: &mut State, handle: u64) -> Result<()> {
        self.driver.physical_release(handle).inspect_err(|_| s.arrears.handles.push(handle))
    }

    /// Tries again what the driver has refused to undo. Returns the error if it still refuses.
    fn settle(&self, s: &mut State) -> Result<()> {
        let mut done = Ok(());
        let mut stale = std::mem::take(&mut s.arrears.stale);
        while let Some(slot) = stale.pop_first() {
            let mapping = s.mapping(slot);
            stale.retain(|i| !mapping.contains(&i));
            if let Err(e) = self.hide(s, mapping.clone()) {
                s.arrears.stale.extend(mapping);
                done = Err(e);
            }
        }
        for handle in std::mem::take(&mut s.arrears.handles) {
            let _ = self.release_handle(s, handle);
        }
        let orphans: Vec<u64> = s.opened.iter().filter(|o| o.1.orphan).map(|o| *o.0).collect();
        for addr in orphans {
            done = done.and(self.end_opened(s, addr));
        }
        done
    }

    /// Gives the memory of granules back. If the driver refuses a granule, the caller still has the whole range. Those
    /// already released are *hollow* then: without memory until they are mapped again.
    pub(super) fn release(&self, first: u64, count: u64) -> Result<()> {
        let mut s = self.lock();
        let _relaxed = self.driver.relaxed();
        let settled = self.settle(&mut s);
        let range = s.granules(Run { first, count })?;
        let lots = s.lots(range.clone())?;
        for at in lots.iter().map(|lot| lot.start) {
            match s.granules[at] {
                Granule::Present { shown: 0, .. } | Granule::Hollow => {}
                Granule::Present { .. } | Granule::Tied => {
                    settled?; // it may be mapped only because the driver did not undo a mapping
                    fail!(Code::Busy, "granule {at} is still mapped");
                }
                Granule::Absent => fail!(Code::InvalidArgument, "granule {at} does not exist"),
            }
        }
        for at in lots.iter().map(|lot| lot.start) {
            if let Granule::Present { handle, .. } = s.granules[at] {
                self.driver.physical_release(handle)?;
                s.granules[at] = Granule::Hollow;
            }
        }
        s.gone(range);
        self.invite_again(&mut s);
        Ok(())
    }

    /// Opens the memory to former guests again. The driver may have refused one for lack of memory, and has more now.
    fn invite_again(&self, s: &mut State) {
        for peer in std::mem::take(&mut s.former_guests) {
            s.former_guests.push(peer); // as long as it is one, `open_to` takes nothing from it
            if self.open_to(s, peer).is_ok() {
                s.former_guests.pop();
                s.guests.push(peer);
            }
        }
    }

    /// Maps runs of granules side by side from `offset` on, and gives access to all of them with one call.
    pub(super) fn map(&self, offset: u64, runs: &[Run]) -> Result<()> {
        let mut s = self.lock();
        let _relaxed = self.driver.relaxed();
        let settled = self.settle(&mut s);
        let (mut lots, mut count) = (Vec::new(), 0u64);
        for run in runs {
            lots.extend(s.lots(s.granules(*run)?)?);
            count += run.count;
        }
        let slots = s.slots(offset, count.checked_mul(GRANULE))?;
        if let Some(lot) = lots.iter().find(|lot| s.granules[lot.start] == Granule::Absent) {
            fail!(Code::InvalidArgument, "granule {} does not exist", lot.start);
        }
        if let Some(at) = slots.clone().find(|i| s.slots[*i] != 0) {
            if s.arrears.stale.contains(&at) {
                settled?;
            }
            fail!(Code::Busy, "offset {} of the window is mapped already", at as u64 * GRANULE);
        }
        let (at, bytes) = (s.window + offset, count * GRANULE);
        let (mut done, mut slot) = (Ok(()), slots.start);
        for lot in lots {
            done = self.show(&mut s, lot.start, slot);
            if done.is_err() {
                break;
            }
            slot += lot.len();
        }
        done = done.and_then(|()| self.open(&mut s, at, bytes));
        if done.is_err() {
            let shown: Vec<usize> = slots.filter(|&i| s.slots[i] != 0).collect();
            s.arrears.stale.extend(shown);
            let _ = self.settle(&mut s);
        }
        done
    }

    /// Gives all devices that may use the memory access to it. If the driver refuses that for a guest, the guest loses
    /// its invitation, and the call succeeds.
    fn open(&self, s: &mut State, addr: u64, bytes: u64) -> Result<()> {
        if s.guests.is_empty() {
            return self.driver.set_access(addr, bytes, &s.readers, true);
        }
        let all = [&s.readers[..], &s.guests[..]].concat();
        if self.driver.set_access(addr, bytes, &all, true).is_ok() {
            return Ok(());
        }
        self.driver.set_access(addr, bytes, &s.readers, true)?;
        let refused = |guest: &mut i32| self.driver.set_access(addr, bytes, &[*guest], true).is_err();
        let gone: Vec<i32> = s.guests.extract_if(.., refused).collect();
        s.former_guests.extend(gone);
        Ok(())
    }

    /// Maps the handle that begins with this granule, from this slot on.
    fn show(&self, s: &mut State, granule: usize, slot: usize) -> Result<()> {
        let lot = s.lot(granule);
        if s.granules[granule] == Granule::Hollow {
            s.granules[granule] = self.make_one(s, lot.len() as u64)?;
        }
        let Granule::Present { handle, shown, .. } = &mut s.granules[granule] else {
            return Err(Error::new(Code::Internal, "a granule without memory"));
        };
        self.driver.map(s.window + slot as u64 * GRANULE, lot.len() as u64 * GRANULE, *handle)?;
        *shown += 1;
        for (slot, granule) in (slot..).zip(lot) {
            s.slots[slot] = granule as u32 + 1;
        }
        Ok(())
    }

    /// Unmaps one mapping.
    fn hide(&self, s: &mut State, slots: Range<usize>) -> Result<()> {
        self.driver.unmap(s.window + slots.start as u64 * GRANULE, slots.len() as u64 * GRANULE)?;
        slots.for_each(|slot| s.hidden(slot));
        Ok(())
    }

    /// Unmaps a run of slots with one call, as the driver's own sample does with a range of several mappings
    /// (vectorAddMMAP). The documentation can also be read so that a call takes only one mapping; a driver that does it
    /// that way gets them one by one from then on. `false`: nothing is unmapped, and the caller must do it one by one.
    fn hide_run(&self, s: &mut State, slots: Range<usize>) -> Result<bool> {
        if s.one_by_one || slots.len() < 2 {
            return Ok(false);
        }
        let (at, bytes) = (s.window + slots.start as u64 * GRANULE, slots.len() as u64 * GRANULE);
        match self.driver.unmap(at, bytes) {
            Ok(()) => slots.for_each(|slot| s.hidden(slot)),
            Err(e) if e.code() == Code::InvalidArgument => {
                s.one_by_one = true;
                return Ok(false);
            }
            Err(e) => return Err(e),
        }
        Ok(true)
    }

    /// Unmaps what is mapped at `offset`. If the driver refuses a slot, the earlier ones are mapped again. If it
    /// refuses that, too, the call succeeds all the same: what is still mapped goes to the arrears.
    pub(super) fn unmap(&self, offset: u64, bytes: u64) -> Result<()> {
        let mut s = self.lock();
        let _relaxed = self.driver.relaxed();
        let _ = self.settle(&mut s);
        let slots = s.slots(offset, Some(bytes))?;
        if let Some(at) = slots.clone().find(|i| s.slots[*i] == 0 || s.arrears.stale.contains(i)) {
            fail!(Code::InvalidArgument, "offset {} of the window is not mapped", at as u64 * GRANULE);
        }
        let mappings = s.mappings(slots.clone())?;
        if mappings.len() > 1 && self.hide_run(&mut s, slots.clone())? {
            return Ok(());
        }
        let before: Vec<u32> = s.slots[slots.clone()].to_vec();
        for (n, mapping) in mappings.iter().enumerate() {
            let Err(e) = self.hide(&mut s, mapping.clone()) else { continue };
            let hidden = (mapping.start - slots.start) as u64 * GRANULE;
            let mut again = Ok(());
            for slot in mappings[..n].iter().map(|m| m.start) {
                let granule = before[slot - slots.start] as usize - 1;
                again = again.and_then(|()| self.show(&mut s, granule, slot));
            }
            if hidden > 0 {
                again = again.and_then(|()| {
                    let at = s.window + offset;
                    self.open(&mut s, at, hidden)
                });
            }
            if again.is_ok() {
                return Err(e);
            }
            let shown: Vec<usize> = slots.filter(|&i| s.slots[i] != 0).collect();
            s.arrears.stale.extend(shown);
            return Ok(());
        }
        Ok(())
    }

    /// The handles that have these granules, each as the run of all its granules. The number says how many granules of
    /// the first handle come before the first of these.
    pub(super) fn whole(&self, granules: &[Run]) -> Result<(u64, Vec<Run>)> {
        let s = self.lock();
        let (mut before, mut all) = (0, Vec::new());
        for run in granules {
            let range = s.granules(*run)?;
            let mut at = range.start;
            while at < range.end {
                let lot = s.lot(at);
                if all.is_empty() {
                    before = (at - lot.start) as u64;
                }
                at = lot.end;
                all.push(Run { first: lot.start as u64, count: lot.len() as u64 });
            }
        }
        Ok((before, all))
    }

    /// A file descriptor for each handle of these granules, in order, and its bytes.
    pub(super) fn export(&self, granules: &[Run]) -> Result<Vec<(OwnedFd, u64)>> {
        if !self.physical.exportable {
            fail!(Code::Unsupported, "the memory has no file descriptors: {}", self.no_export);
        }
        let found = self.lock().present(granules)?;
        let export = |(handle, _, bytes)| Ok((self.driver.physical_export(handle)?, bytes));
        found.into_iter().map(export).collect()
    }

    /// Fails, with the reason, unless fabric handles can share these granules.
    pub(super) fn check_fabric(&self, granules: &[Run]) -> Result<()> {
        self.lock().fabric_handles(granules).map(drop)
    }

    /// A fabric handle for each handle of these granules, in order, and its bytes.
    pub(super) fn export_fabric(&self, granules: &[Run]) -> Result<Vec<([u8; 64], u64)>> {
        let found = self.lock().fabric_handles(granules)?;
        let export = |(handle, bytes)| Ok((self.driver.fabric_export(handle)?, bytes));
        found.into_iter().map(export).collect()
    }

    /// Maps handles of another process, each with its size in bytes, side by side at new addresses outside the window.
    pub(super) fn open_foreign(&self, sources: &[(Source<'_>, u64)]) -> Result<u64> {
        let mut s = self.lock();
        let _relaxed = self.driver.relaxed();
        let _ = self.settle(&mut s);
        let bytes = sources.iter().map(|s| s.1).sum();
        let addr = self.driver.reserve(bytes, GRANULE)?;
        s.opened.insert(addr, Opened { bytes, orphan: true, ..Opened::default() });
        let mut done = Ok(());
        for &source in sources {
            done = done.and_then(|()| self.show_foreign(&mut s, source, addr));
        }
        match done.and_then(|()| self.open(&mut s, addr, bytes)) {
            Ok(()) => {
                if let Some(o) = s.opened.get_mut(&addr) {
                    o.orphan = false;
                }
                Ok(addr)
            }
            Err(e) => {
                let _ = self.settle(&mut s);
                Err(e)
            }
        }
    }

    /// Maps one more handle of another process in the range at `addr`.
    fn show_foreign(&self, s: &mut State, (source, bytes): (Source<'_>, u64), addr: u64) -> Result<()> {
        let handle = match source {
            Source::Fd(fd) => self.driver.physical_import(fd)?,
            Source::Fabric(handle) => self.driver.fabric_import(handle)?,
        };
        let Some(o) = s.opened.get_mut(&addr) else {
            return Err(Error::new(Code::Internal, "addresses of an import are missing"));
        };
        let shown = self.driver.map(addr + o.mapped(), bytes, handle);
        if shown.is_ok() {
            o.shown.push(bytes);
        }
        // The mapping keeps the memory alive.
        shown.and(self.release_handle(s, handle))
    }

    /// Unmaps what is mapped at `addr` and releases the addresses. After a failure, what is still mapped stays so.
    fn end_opened(&self, s: &mut State, addr: u64) -> Result<()> {
        let Some(o) = s.opened.get_mut(&addr) else { return Ok(()) };
        if !s.one_by_one && o.shown.len() > 1 {
            match self.driver.unmap(addr, o.mapped()) {
                Ok(()) => o.shown.clear(),
                Err(e) if e.code() == Code::InvalidArgument => s.one_by_one = true,
                Err(e) => return Err(e),
            }
        }
        while let Some(&last) = o.shown.last() {
            self.driver.unmap(addr + o.mapped() - last, last)?;
            o.shown.pop();
        }
        self.driver.reserve_end(addr, o.bytes)?;
        s.opened.remove(&addr);
        Ok(())
    }

    /// Ends what `open_foreign` has mapped; can be repeated after a failure. `None`: `addr` is not from `open_foreign`.
    pub(super) fn close_foreign(&self, addr: u64) -> Option<Result<()>> {
        let mut s = self.lock();
        s.opened.get(&addr).filter(|o| !o.orphan)?;
        let _relaxed = self.driver.relaxed();
        let _ = self.settle(&mut s);
        Some(self.end_opened(&mut s, addr))
    }

    /// Lets `peer` use the memory from now on, including what is mapped later. All or nothing.
    pub(super) fn admit(&self, peer: i32) -> Result<()> {
        let mut s = self.lock();
        if s.readers.contains(&peer) {
            return Ok(());
        }
        if !s.guests.contains(&peer) {
            self.open_to(&s, peer)?;
        }
        s.guests.retain(|&guest| guest != peer);
        s.former_guests.retain(|&guest| guest != peer);
        s.readers.push(peer);
        Ok(())
    }

    /// As `admit`, but makes `peer` a guest: if the driver refuses to give it access to what is mapped later, that
    /// request succeeds, and the guest loses its access to new memory.
    pub(super) fn invite(&self, peer: i32) -> Result<()> {
        let mut s = self.lock();
        if !s.readers.contains(&peer) && !s.guests.contains(&peer) {
            self.open_to(&s, peer)?;
            s.former_guests.retain(|&guest| guest != peer);
            s.guests.push(peer);
        }
        Ok(())
    }

    /// Gives one more device access to all that is mapped now, or to nothing of it.
    fn open_to(&self, s: &State, peer: i32) -> Result<()> {
        let _relaxed = self.driver.relaxed();
        let runs = s.shown_runs();
        for (i, &(addr, bytes)) in runs.iter().enumerate() {
            if let Err(e) = self.driver.set_access(addr, bytes, &[peer], true) {
                // A former guest keeps what it has: its work may be using it.
                let opened = if s.former_guests.contains(&peer) { &[] } else { &runs[..i] };
                for &(addr, bytes) in opened {
                    let _ = self.driver.set_access(addr, bytes, &[peer], false);
                }
                return Err(e);
            }
        }
        Ok(())
    }
}
