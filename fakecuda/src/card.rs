//! One card that several processes use: how much each of them has of it stands in a file that they share.
//!
//! Each process has a place in it, with its number and its bytes. What a process that has died had is free again. Two
//! processes that take at the same moment may together get more than there is, which no real card gives; a test must not
//! depend on who of them was first.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

const PLACES: u64 = 64;
const PLACE: usize = 16; // [B] the process, and its bytes

/// The place of this process on a card.
pub(crate) struct Card {
    file: File,
    /// Where the card's places begin. [B]
    from: u64,
    /// Where this process's is. [B]
    own: u64,
}

fn read(file: &File, at: u64) -> [u64; 2] {
    let mut bytes = [0; PLACE];
    let got = file.read_at(&mut bytes, at).unwrap_or(0);
    let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
    if got == PLACE { [word(0), word(8)] } else { [0, 0] }
}

fn write(file: &File, at: u64, [process, bytes]: [u64; 2]) {
    let both = [process.to_ne_bytes(), bytes.to_ne_bytes()].concat();
    let _ = file.write_at(&both, at);
}

fn lives(process: u64) -> bool {
    // SAFETY: signal 0 only asks.
    process != 0 && unsafe { libc::kill(process as libc::pid_t, 0) } == 0
}

impl Card {
    /// A place on the card with this number in the machine. `None` if the file cannot be used, or is full.
    pub(crate) fn open(path: &str, index: i32) -> Option<Card> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).ok()?;
        let from = index as u64 * PLACES * PLACE as u64;
        // SAFETY: locks and unlocks a file of ours.
        unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
        let own = (0..PLACES).map(|p| from + p * PLACE as u64).find(|&at| !lives(read(&file, at)[0]));
        if let Some(at) = own {
            write(&file, at, [u64::from(std::process::id()), 0]);
        }
        // SAFETY: as above.
        unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
        Some(Card { from, own: own?, file })
    }

    /// \[B\] that other processes have.
    pub(crate) fn others(&self) -> u64 {
        let places = (0..PLACES).map(|p| self.from + p * PLACE as u64).filter(|&at| at != self.own);
        places.map(|at| read(&self.file, at)).filter(|p| lives(p[0])).map(|p| p[1]).sum()
    }

    /// Says how much this process has.
    pub(crate) fn tell(&self, bytes: u64) {
        write(&self.file, self.own, [u64::from(std::process::id()), bytes]);
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        write(&self.file, self.own, [0, 0]);
    }
}
