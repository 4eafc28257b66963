//! Physical memory separate from addresses, as GPUs have it: one sparse memory file per device is the physical memory,
//! in granules of 2 MiB, and a reserved window of addresses shows granules where `map` puts them. A granule may be
//! mapped at several addresses and is the same memory at each.
//!
//! Creating a granule only accounts for it: the system commits pages as they are touched. Releasing one punches its
//! bytes out of the file, so that the memory really goes back to the system and reads as zero later. System calls run
//! outside the lock; ranges that a call is working on are marked as busy.
//!
//! If the program has closed the file's descriptor, existing granules stay usable, also for new requests. Whatever
//! needs the file is refused before anything has changed, so memory cannot be given back either. The next start of the
//! type makes a new file.

use super::memory::Budget;
use super::pages;
use crate::base::descriptor::Descriptor;
use crate::base::error::{Code, Error, Result};
use crate::base::ordered::Map;
use crate::base::sync::system::{Mutex, lock};
use crate::device::sharing::{Exported, Imported, Piece, SharedKind};
use crate::device::{GRANULE, Run, slots_of};
use crate::fail;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Set in a slot while a call maps or unmaps it.
const BUSY: u32 = 1 << 31;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Granule {
    Absent,
    Present { mapped: u32 }, // the number of addresses at which it is mapped
    Releasing,
}

struct State {
    file: Option<Arc<Descriptor>>, // until the type ends
    /// Other processes may have the file: it never shrinks, and is replaced when the window is closed.
    exported: bool,
    /// The mappings that `open` has made: address -> bytes.
    opened: Map<u64, u64>,
    granules: Vec<Granule>,
    window: u64,     // address; 0: none
    slots: Vec<u32>, // for each granule of the window: the number of the granule mapped there + 1, 0 for none; BUSY
    working: u32,    // calls that are currently in a system call
}

/// The physical memory of one device, and its window.
pub(super) struct Granules {
    state: Mutex<State>,
}

/// Granule numbers for each granule of capacity: as much memory may sleep as the device has.
const NUMBERS: u64 = 2;

/// A sparse memory file of this length.
fn memory_file(bytes: u64) -> Result<Descriptor> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string; the call makes a new descriptor.
    let fd = unsafe { libc::memfd_create(c"millpond-host".as_ptr(), flags) };
    if fd < 0 {
        return Err(pages::os_error("memfd_create"));
    }
    // SAFETY: the descriptor was made just now, and nobody else owns it.
    let file = Descriptor::new(unsafe { OwnedFd::from_raw_fd(fd) }, "the memory file of a host device")?;
    set_length(file.get()?, bytes)?;
    Ok(file)
}

fn set_length(file: BorrowedFd<'_>, bytes: u64) -> Result<()> {
    // SAFETY: changes the length of this file only; the caller guarantees that nothing beyond the new end is used.
    if unsafe { libc::ftruncate(file.as_raw_fd(), bytes as i64) } != 0 {
        return Err(pages::os_error("ftruncate"));
    }
    Ok(())
}

/// Bytes of the file that the system has committed.
fn committed(file: BorrowedFd<'_>) -> Option<u64> {
    // SAFETY: all zeros is a value of this plain struct.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `about` is valid for writes.
    let rc = unsafe { libc::fstat(file.as_raw_fd(), &mut about) };
    u64::try_from(about.st_blocks).ok().filter(|_| rc == 0).map(|blocks| blocks * 512)
}

impl State {
    /// The file. Its descriptor must be checked before each use ([`Descriptor::get`]).
    fn file(&self) -> Result<Arc<Descriptor>> {
        self.file.clone().ok_or_else(|| Error::new(Code::NotInitialized, "the device has ended"))
    }

    /// Fails if the file's descriptor no longer belongs to us.
    fn check_file(&self) -> Result<()> {
        self.file()?.get().map(drop)
    }
}

impl Granules {
    /// Makes the sparse file for granules of `capacity` bytes; an error if the system has none to give.
    pub(super) fn new(capacity: u64) -> Result<Granules> {
        // A file above this limit would not be an error but a signal that ends the process.
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is valid for writes.
        let rc = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
        let fits = |bytes| limit.rlim_cur == libc::RLIM_INFINITY || limit.rlim_cur >= bytes;
        let span = capacity.saturating_mul(NUMBERS);
        let span = if fits(span) && i64::try_from(span).is_ok() { span } else { capacity };
        if rc != 0 || !fits(span) {
            return Err(Error::new(Code::System, "the file size limit is below the device's capacity"));
        }
        let state = State {
            file: Some(Arc::new(memory_file(span)?)),
            exported: false,
            opened: Map::new(),
            granules: vec![Granule::Absent; (span / GRANULE) as usize],
            window: 0,
            slots: Vec::new(),
            working: 0,
        };
        Ok(Granules { state: Mutex::new(state) })
    }

    /// Bytes of physical memory that the system has committed.
    pub(super) fn committed(&self) -> u64 {
        let file = lock(&self.state).file();
        file.ok().and_then(|f| committed(f.get().ok()?)).unwrap_or(0)
    }

    /// How many granule numbers there are.
    pub(super) fn numbers(&self) -> u64 {
        lock(&self.state).granules.len() as u64
    }

    pub(super) fn open_window(&self, bytes: u64) -> Result<u64> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) {
            fail!(Code::InvalidArgument, "a window of {bytes} bytes: not a multiple of 2 MiB");
        }
        let mut state = lock(&self.state);
        if state.window != 0 {
            return Err(Error::new(Code::Busy, "this device has a window already"));
        }
        let mut slots = Vec::new();
        if slots.try_reserve_exact((bytes / GRANULE) as usize).is_err() {
            return Err(Error::new(Code::OutOfMemory, "no host memory for a window of this size"));
        }
        let window = pages::map_anonymous(bytes, GRANULE, false)?;
        slots.resize((bytes / GRANULE) as usize, 0);
        state.window = window;
        state.slots = slots;
        Ok(window)
    }

    /// Releases the window and all granules.
    ///
    /// The caller guarantees that nothing touches the window any more.
    pub(super) fn close_window(&self, budget: &Budget) -> Result<()> {
        let mut state = lock(&self.state);
        if state.working != 0 {
            return Err(Error::new(Code::Busy, "another call is mapping memory of this device"));
        }
        let bytes = state.slots.len() as u64 * GRANULE;
        let window = std::mem::take(&mut state.window);
        state.slots = Vec::new();
        if window != 0 {
            // SAFETY: the window belonged to this table and was removed from it just now, under the lock; the caller
            // guarantees that nothing touches it.
            unsafe { pages::unmap(window, bytes) };
        }
        for (addr, bytes) in std::mem::take(&mut state.opened) {
            // SAFETY: `open` made the mapping, and it was removed from the table just now; the caller guarantees that
            // nothing touches it.
            unsafe { pages::unmap(addr, bytes) };
        }
        let mut present = 0;
        for granule in &mut state.granules {
            if *granule != Granule::Absent {
                *granule = Granule::Absent;
                present += 1;
            }
        }
        if state.exported || state.check_file().is_err() {
            // Other processes keep the old file, or it is lost. If no new one can be made, there are no granules any
            // more.
            let whole = state.granules.len() as u64 * GRANULE;
            budget.give(present * GRANULE);
            let made = memory_file(whole);
            if made.is_err() {
                state.granules = Vec::new();
            }
            state.file = Some(Arc::new(made?));
            state.exported = false;
        } else if present != 0 {
            // Truncating to nothing certainly empties the file; then it gets its sparse size back.
            let whole = state.granules.len() as u64 * GRANULE;
            let file = state.file()?;
            let cut = file.get().and_then(|f| set_length(f, 0).and_then(|()| set_length(f, whole)));
            budget.give(present * GRANULE);
            cut?;
        }
        Ok(())
    }

    /// Closes the file. Called after `close_window`, when no call comes any more. The devices of a type that has ended
    /// stay alive for late handles, but must not keep descriptors.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.file = None;
        state.granules = Vec::new();
    }

    pub(super) fn create(&self, budget: &Budget, first: u64, count: u64) -> Result<()> {
        let mut state = lock(&self.state);
        let range = granule_range(&state, first, count)?;
        if let Some(at) = range.clone().find(|i| state.granules[*i] != Granule::Absent) {
            fail!(Code::InvalidArgument, "granule {at} exists already");
        }
        state.check_file()?;
        budget.take(count * GRANULE)?;
        state.granules[range].fill(Granule::Present { mapped: 0 });
        Ok(())
    }

    pub(super) fn release(&self, budget: &Budget, first: u64, count: u64) -> Result<()> {
        let range = {
            let mut state = lock(&self.state);
            let range = granule_range(&state, first, count)?;
            for at in range.clone() {
                match state.granules[at] {
                    Granule::Present { mapped: 0 } => {}
                    Granule::Present { .. } => fail!(Code::Busy, "granule {at} is still mapped"),
                    _ => fail!(Code::InvalidArgument, "granule {at} does not exist"),
                }
            }
            state.granules[range.clone()].fill(Granule::Releasing);
            state.working += 1;
            range
        };
        let file = lock(&self.state).file();
        let punched = file.and_then(|f| punch(f.get()?, first * GRANULE, count * GRANULE));
        let mut state = lock(&self.state);
        state.working -= 1;
        let after = if punched.is_ok() { Granule::Absent } else { Granule::Present { mapped: 0 } };
        state.granules[range].fill(after);
        if punched.is_ok() {
            budget.give(count * GRANULE);
        }
        punched
    }

    pub(super) fn map(&self, offset: u64, first: u64, count: u64) -> Result<()> {
        let (addr, slots, file) = {
            let mut state = lock(&self.state);
            let file = state.file()?;
            file.get()?;
            let granules = granule_range(&state, first, count)?;
            let slots = slot_range(&state, offset, count.checked_mul(GRANULE))?;
            if let Some(at) =
                granules.clone().find(|i| !matches!(state.granules[*i], Granule::Present { .. }))
            {
                fail!(Code::InvalidArgument, "granule {at} does not exist");
            }
            if let Some(at) = slots.clone().find(|i| state.slots[*i] != 0) {
                fail!(Code::Busy, "offset {} of the window is mapped already", at as u64 * GRANULE);
            }
            for (granule, slot) in granules.zip(slots.clone()) {
                state.slots[slot] = (granule as u32 + 1) | BUSY;
                // Counted before it is mapped, so that no other call releases it meanwhile.
                if let Granule::Present { mapped } = &mut state.granules[granule] {
                    *mapped += 1;
                }
            }
            state.working += 1;
            (state.window + offset, slots, file)
        };
        let mapped = file.get().and_then(|f| {
            // SAFETY: the slots were free, and are marked as busy, so that this call owns the addresses.
            unsafe { pages::map_file(addr, count * GRANULE, f.as_raw_fd(), first * GRANULE) }
        });
        self.settle(slots, mapped.is_ok());
        mapped
    }

    /// Needs no file, but is refused without one, since what is unmapped could not be mapped again.
    pub(super) fn unmap(&self, offset: u64, bytes: u64) -> Result<()> {
        let (addr, slots) = {
            let mut state = lock(&self.state);
            let slots = slot_range(&state, offset, Some(bytes))?;
            if let Some(at) = slots.clone().find(|i| state.slots[*i] == 0) {
                fail!(Code::InvalidArgument, "offset {} of the window is not mapped", at as u64 * GRANULE);
            }
            if slots.clone().any(|i| state.slots[i] & BUSY != 0) {
                return Err(Error::new(Code::Busy, "another call is mapping these addresses"));
            }
            state.check_file()?;
            state.slots[slots.clone()].iter_mut().for_each(|slot| *slot |= BUSY);
            state.working += 1;
            (state.window + offset, slots)
        };
        // SAFETY: the slots were mapped, and are marked as busy, so that this call owns the addresses;
        // the caller of unmap promises that nothing touches them.
        let bare = unsafe { pages::reserve_again(addr, bytes) };
        self.settle(slots, bare.is_err());
        bare
    }

    /// Exports the file and the positions of these granules in it for another process. From now on the file cannot
    /// shrink, so that no process that maps it touches memory that is gone.
    pub(super) fn share(&self, granules: &[Run]) -> Result<Exported> {
        let mut state = lock(&self.state);
        let file = state.file()?;
        let mut pieces = Vec::new();
        for &Run { first, count } in granules {
            let range = granule_range(&state, first, count)?;
            if let Some(at) = range.clone().find(|i| !matches!(state.granules[*i], Granule::Present { .. })) {
                fail!(Code::InvalidArgument, "granule {at} does not exist");
            }
            pieces.push(Piece { fd: 0, offset: first * GRANULE, bytes: count * GRANULE });
        }
        let file = file.get()?;
        // SAFETY: changes the seals of this file only.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) } != 0 {
            return Err(pages::os_error("fcntl(F_ADD_SEALS)"));
        }
        let fd = file.try_clone_to_owned();
        let fd =
            fd.map_err(|e| Error::formatted(Code::System, format_args!("fcntl(F_DUPFD_CLOEXEC): {e}")))?;
        state.exported = true;
        Ok(Exported {
            kind: SharedKind::HostFile,
            identity: [0; 16],
            pieces,
            handle: [0; 64],
            fabric: Vec::new(),
            fds: vec![fd],
        })
    }

    /// Maps, side by side, what `share` of some process returned; returns the address.
    pub(super) fn open(&self, memory: &Imported<'_>) -> Result<u64> {
        let wrong = |what: &str| Err(Error::new(Code::InvalidArgument, what.to_owned()));
        if memory.kind != SharedKind::HostFile || memory.fds.len() != 1 {
            return wrong("this is not memory of a host device");
        }
        let bytes = memory.check_pieces(GRANULE)?;
        let fd = memory.fds[0].as_raw_fd();
        // SAFETY: asks about a descriptor.
        let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || seals & libc::F_SEAL_WRITE != 0 {
            return wrong("the descriptor is not a memory file of a host device");
        }
        // SAFETY: all zeros is a value of this plain struct.
        let mut about: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `about` is valid for writes.
        if unsafe { libc::fstat(fd, &mut about) } != 0 {
            return Err(pages::os_error("fstat"));
        }
        let size = u64::try_from(about.st_size).unwrap_or(0);
        if memory.pieces.iter().any(|p| p.offset + p.bytes > size) {
            return wrong("a piece lies past the end of the memory file");
        }
        let addr = pages::map_anonymous(bytes, GRANULE, false)?;
        let mut at = addr;
        for p in &memory.pieces {
            // SAFETY: the range was reserved just now, and nobody else has it.
            if let Err(e) = unsafe { pages::map_file(at, p.bytes, fd, p.offset) } {
                // SAFETY: as above.
                unsafe { pages::unmap(addr, bytes) };
                return Err(e);
            }
            at += p.bytes;
        }
        lock(&self.state).opened.insert(addr, bytes);
        Ok(addr)
    }

    /// Unmaps what `open` has mapped.
    ///
    /// The caller guarantees that nothing touches it any more.
    pub(super) fn close(&self, addr: u64) -> Result<()> {
        let Some(bytes) = lock(&self.state).opened.remove(&addr) else {
            fail!(Code::UnknownPointer, "{addr:#x} is not memory of another process");
        };
        // SAFETY: `open` made the mapping, and it was forgotten just now; the caller promises that nothing
        // touches it.
        unsafe { pages::unmap(addr, bytes) };
        Ok(())
    }

    /// Ends a call's hold on its slots: afterwards they show their granules (`shown`) or nothing.
    fn settle(&self, slots: Range<usize>, shown: bool) {
        let mut state = lock(&self.state);
        state.working -= 1;
        for slot in slots {
            let granule = (state.slots[slot] & !BUSY) as usize - 1;
            if shown {
                state.slots[slot] &= !BUSY;
                continue;
            }
            state.slots[slot] = 0;
            if let Granule::Present { mapped } = &mut state.granules[granule] {
                *mapped -= 1;
            }
        }
    }
}

fn punch(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    loop {
        // SAFETY: changes only this file, in a range that the state marks as being released.
        let rc = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, bytes as i64) };
        if rc == 0 {
            return Ok(());
        }
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return Err(pages::os_error("fallocate"));
        }
    }
}

fn granule_range(state: &State, first: u64, count: u64) -> Result<Range<usize>> {
    let total = state.granules.len() as u64;
    if count == 0 {
        return Err(Error::new(Code::InvalidArgument, "no granules asked for"));
    }
    match first.checked_add(count) {
        Some(end) if end <= total => Ok(first as usize..end as usize),
        _ => fail!(Code::OutOfRange, "{count} granules from {first} on: the device has {total}"),
    }
}

fn slot_range(state: &State, offset: u64, bytes: Option<u64>) -> Result<Range<usize>> {
    slots_of(state.window, state.slots.len(), offset, bytes)
}
