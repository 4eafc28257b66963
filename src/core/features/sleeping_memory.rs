//! The calls of the device that take the memory of a pool away and bring it back, each all or nothing. No lock is held
//! while the device is called; nobody else touches memory of a pool that is moving.

use super::super::ground::Ground;
use super::super::state::sleeping::SleepingMemory;
use super::super::supply::Ranges;
use super::super::units::GranuleRun;
use crate::base::error::{Error, Result};

/// Why the memory could not be taken away.
pub(super) struct Failed {
    pub error: Error,
    /// Everything is as it was. Otherwise the record of the sleeping memory says what sleeps.
    pub undone: bool,
}

/// See the head of this file.
#[derive(Clone, Copy)]
pub(super) struct PhysicalMemory<'a> {
    ground: &'a Ground,
}

impl<'a> PhysicalMemory<'a> {
    pub(super) fn of(ground: &'a Ground) -> PhysicalMemory<'a> {
        PhysicalMemory { ground }
    }

    /// Takes the memory away.
    pub(super) fn take_away(self, a: &mut SleepingMemory) -> Result<(), Failed> {
        let backing = &self.ground.backing;
        if a.saved {
            for (n, run) in a.runs.iter().enumerate() {
                if let Err(error) = backing.save(run.first, run.count) {
                    self.drop_saved(&a.runs[..n]);
                    return Err(Failed { error, undone: true });
                }
            }
        }
        let mut failed = None;
        let mut hidden = 0;
        for shown in &a.shown {
            if let Err(e) = backing.unalias(shown.at.offset(), shown.at.bytes()) {
                failed = Some(e);
                break;
            }
            self.ground.aliases().set_hidden(shown.at.first, true);
            hidden += 1;
        }
        let mut released = 0;
        let mut lost = false;
        for run in a.runs.iter().take_while(|_| failed.is_none()) {
            if let Err(e) = backing.release(run.first, run.count) {
                // Memory that the device took and had to give back is there, but empty.
                lost = a.saved && backing.load(run.first, run.count).is_err();
                failed = Some(e);
                break;
            }
            released += 1;
        }
        let Some(mut error) = failed else { return Ok(()) };
        if lost {
            error =
                Error::formatted(error.code(), format_args!("{error}; some of what the pool held is lost"));
        }
        if a.saved {
            self.drop_saved(&a.runs[released..]);
        }
        a.runs.truncate(released);
        a.shown.truncate(hidden);
        let undone = self.bring_back(a).is_ok();
        Err(Failed { error, undone })
    }

    /// Drops what was saved of these granules.
    pub(super) fn drop_saved(self, runs: &[GranuleRun]) {
        runs.iter().for_each(|run| self.ground.backing.drop_saved(run.first, run.count));
    }

    /// Brings the memory back, with its contents, and maps it where it was mapped.
    pub(super) fn bring_back(self, a: &SleepingMemory) -> Result<()> {
        let backing = &self.ground.backing;
        for (n, run) in a.runs.iter().enumerate() {
            let tied = self.ground.growing().ties.of(run.first).is_some();
            let back = backing.create_again(run.first, run.count, tied).and_then(|()| match a.saved {
                true => backing.load(run.first, run.count).inspect_err(|_| {
                    backing.discard(run.first, run.count); // nobody has used it
                }),
                false => Ok(()),
            });
            if let Err(e) = back {
                self.discard(a, n, 0);
                return Err(e);
            }
        }
        for (n, shown) in a.shown.iter().enumerate() {
            if let Err(e) = Ranges::of(self.ground).map_at(shown.at.first, &shown.pieces) {
                self.discard(a, a.runs.len(), n);
                return Err(e);
            }
        }
        if a.saved {
            self.drop_saved(&a.runs);
        }
        let mut aliases = self.ground.aliases();
        a.shown.iter().for_each(|s| aliases.set_hidden(s.at.first, false));
        Ok(())
    }

    /// Gives the first `shown` ranges and the first `runs` runs that were brought back up again; nobody has used them.
    fn discard(self, a: &SleepingMemory, runs: usize, shown: usize) {
        for shown in &a.shown[..shown] {
            self.ground.backing.discard_view(shown.at.offset(), shown.at.bytes());
        }
        for run in &a.runs[..runs] {
            self.ground.backing.discard(run.first, run.count);
        }
    }
}
