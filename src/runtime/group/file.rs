//! The file of a group, as one open file of one member or of somebody who only looks.
//!
//! A member holds a lock on the first byte of its slot (an open file description lock, which ends with the process, and
//! with this object). So a slot belongs to somebody as long as it is locked, however a program ends; only a child of
//! `fork` keeps its parent's slot until it ends, too. The file is read and written, never mapped: a file that somebody
//! cuts off is an error then, and no signal.

use super::record::{ANSWER_AT, FILE, HEAD, Note, ORDER_AT, Record, SLOT, SLOTS};
use crate::base::descriptor::Descriptor;
use crate::base::error::{Code, Error, Result};
use crate::fail;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The first bytes of the file; the last one is the version of what follows.
const MAGIC: [u8; 16] = *b"millpond group\0\x01";
/// Where the number of the member that joined last stands. [B]
const LAST_AT: u64 = 16;
/// How long the lock of the whole file is waited for, which is held for some microseconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// All records, as they were at one time.
pub(super) struct Seen([u8; FILE]);

/// The open file.
pub(super) struct GroupFile(Descriptor);

fn system(e: impl std::fmt::Display, what: &str) -> Error {
    Error::formatted(Code::System, format_args!("{what}: {e}"))
}

fn slot_at(slot: usize) -> u64 {
    (HEAD + slot * SLOT) as u64
}

impl Seen {
    fn slot(&self, slot: usize) -> &[u8] {
        &self.0[HEAD + slot * SLOT..][..SLOT]
    }

    /// The record in a slot, whether or not its member is still there.
    pub(super) fn record(&self, slot: usize) -> Option<Record> {
        Record::read(self.slot(slot))
    }

    /// The answer to the wish of the member in that slot.
    pub(super) fn answer(&self, slot: usize) -> Option<Note> {
        Note::read(&self.slot(slot)[ANSWER_AT..])
    }

    /// The last order to the member in that slot.
    pub(super) fn order(&self, slot: usize) -> Option<Note> {
        Note::read(&self.slot(slot)[ORDER_AT..])
    }
}

impl GroupFile {
    /// Opens a group's file. `writes`: for more than looking; and `makes` it where there is none. `InvalidArgument` for a
    /// file that is something else, which is left as it is; `System` where it cannot be opened.
    pub(super) fn open(path: &Path, writes: bool, makes: bool) -> Result<GroupFile> {
        let mut how = OpenOptions::new();
        how.read(true).write(writes).create(makes).mode(0o600);
        // Something that is no file could hold up whoever opens it.
        how.custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
        let file = how.open(path).map_err(|e| system(e, &format!("the group {}", path.display())))?;
        if !file.metadata().is_ok_and(|m| m.is_file()) {
            fail!(Code::InvalidArgument, "{} is not a file, as a group is", path.display());
        }
        let it = GroupFile(Descriptor::new(file.into(), "the file of a group")?);
        let mut magic = [0; MAGIC.len()];
        let mut there = it.0.read_at(&mut magic, 0)?;
        // Zeros: somebody is making it just now, or has ended in the middle of that.
        if makes && magic[..there].iter().all(|&byte| byte == 0) {
            there = it.whole(|| it.begin(&mut magic))?;
        }
        if there < magic.len() || magic[..15] != MAGIC[..15] {
            fail!(Code::InvalidArgument, "{} is not the file of a group", path.display());
        }
        if magic != MAGIC {
            fail!(Code::Unsupported, "{} is of a group of another version of Millpond", path.display());
        }
        Ok(it)
    }

    /// Fills a file that is empty, or has nothing but zeros and no more than fill it. Returns how much of `magic` was read.
    fn begin(&self, magic: &mut [u8; MAGIC.len()]) -> Result<usize> {
        let mut all = [0; FILE + 1];
        let there = self.0.read_at(&mut all, 0)?;
        if there <= FILE && all == [0; FILE + 1] {
            // All of it now, so that the disk is not full later; and its beginning last.
            self.0.write_at(&[0; FILE - HEAD], HEAD as u64)?;
            let mut head = [0; HEAD];
            head[..MAGIC.len()].copy_from_slice(&MAGIC);
            self.0.write_at(&head, 0)?;
        }
        self.0.read_at(magic, 0)
    }

    /// Runs `act` while nobody else is in here. `Busy` if somebody holds the lock for very long.
    fn whole<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let until = Instant::now() + PATIENCE;
        while !self.0.lock_byte(0)? {
            if Instant::now() > until {
                fail!(Code::Busy, "another program holds the lock of the group's file");
            }
            sleep(Duration::from_millis(1));
        }
        let done = act();
        self.0.unlock_byte(0)?;
        done
    }

    /// Takes a free slot and a number that nobody has had. `Busy` if there are as many members as there may be.
    pub(super) fn join(&self) -> Result<(usize, u64)> {
        self.whole(|| {
            let mut last = [0; 8];
            if self.0.read_at(&mut last, LAST_AT)? < last.len() {
                fail!(Code::System, "the file of the group was cut off");
            }
            let id = u64::from_ne_bytes(last).wrapping_add(1).max(1);
            for slot in 0..SLOTS {
                if self.0.lock_byte(slot_at(slot))? {
                    self.0.write_at(&id.to_ne_bytes(), LAST_AT)?;
                    self.0.write_at(&[0; SLOT], slot_at(slot))?;
                    return Ok((slot, id));
                }
            }
            fail!(Code::Busy, "the group has {SLOTS} members, which is as many as there may be")
        })
    }

    /// All records.
    pub(super) fn read(&self) -> Result<Seen> {
        let mut seen = Seen([0; FILE]);
        match self.0.read_at(&mut seen.0, 0)? {
            FILE => Ok(seen),
            _ => fail!(Code::System, "the file of the group was cut off"),
        }
    }

    /// Whether somebody holds a slot, by another open file than this one.
    pub(super) fn is_held(&self, slot: usize) -> bool {
        self.0.is_byte_locked(slot_at(slot)).unwrap_or(false)
    }

    /// Writes the record of a slot.
    pub(super) fn write(&self, slot: usize, record: &Record) -> Result<()> {
        self.0.write_at(&record.written(), slot_at(slot))
    }

    /// Answers the wish of the member in a slot.
    pub(super) fn answer(&self, slot: usize, answer: &Note) -> Result<()> {
        self.0.write_at(&answer.written(), slot_at(slot) + ANSWER_AT as u64)
    }

    /// Empties a slot and gives it up, for its member goes; nothing may be written into it afterwards.
    pub(super) fn leave(&self, slot: usize) -> Result<()> {
        let emptied = self.0.write_at(&[0; SLOT], slot_at(slot));
        // It is free with this, whatever still stands in it.
        self.0.unlock_byte(slot_at(slot)).and(emptied)
    }

    /// Leaves an order for the member with this number. `InvalidArgument` if there is none.
    pub(super) fn order(&self, member: u64, budget: u64) -> Result<()> {
        self.whole(|| {
            let seen = self.read()?;
            let slot = (0..SLOTS).find(|&s| seen.record(s).is_some_and(|r| r.id == member));
            let Some(slot) = slot.filter(|&s| self.is_held(s)) else {
                fail!(Code::InvalidArgument, "the group has no member {member}");
            };
            let last = seen.order(slot).filter(|o| o.who == member).map_or(0, |o| o.number);
            let order = Note { who: member, number: last.wrapping_add(1), bytes: budget };
            self.0.write_at(&order.written(), slot_at(slot) + ORDER_AT as u64)
        })
    }
}
