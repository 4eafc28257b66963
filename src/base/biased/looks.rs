//! Several locks that are looked at together. Each revocation of an owner takes a barrier that interrupts all processors on
//! which the process runs; here one serves all owners.
//!
//! A lock that is asked for keeps others out while its owner may still be inside one that was asked for before. So nobody may
//! hold one of the locks and want another, unless the two can never be here at the same time: as all who hold several take
//! turns by a lock of their own.

use super::parts::Seat;
use super::{Biased, Guard, pass_barrier};
use crate::base::sync::waited;

/// Locks that are taken together to be looked at, as [`Biased::look`] does it with one, and something of the caller's for each.
#[derive(Debug)]
pub struct Looks<'a, T, W, P> {
    asked: Vec<Asked<'a, T, W, P>>,
    /// Whether one of those that were taken last is looked at all the time.
    crowded: bool,
}

#[derive(Debug)]
struct Asked<'a, T, W, P> {
    /// Not used or dropped before `owner` was waited for.
    guard: Guard<'a, T, W>,
    /// The owner that was revoked, and may still be inside.
    owner: Option<&'a Seat<T, W>>,
    with: P,
}

impl<T, W, P> Default for Looks<'_, T, W, P> {
    fn default() -> Self {
        Looks { asked: Vec::new(), crowded: false }
    }
}

impl<'a, T, W, P> Looks<'a, T, W, P> {
    /// Makes room for so many locks in all. `false`: the host has no memory for it.
    pub fn make_room(&mut self, locks: usize) -> bool {
        self.asked.try_reserve(locks.saturating_sub(self.asked.len())).is_ok()
    }

    /// Takes one more lock, waiting for who holds it the usual way. Its owner, if it has one, may still be inside.
    pub fn ask(&mut self, lock: &'a Biased<T, W>, with: P) {
        let (guard, owner) = match lock.enter() {
            Some(own) => (own.into(), None),
            None => lock.begin_to_take(),
        };
        self.asked.push(Asked { guard, owner, with });
    }

    /// Waits until the owners are out of all of these locks, and hands the guards over in the order of asking. The list is empty
    /// afterwards and keeps its memory.
    pub fn take(&mut self) -> impl Iterator<Item = (Guard<'a, T, W>, P)> {
        self.await_owners();
        let Looks { asked, crowded } = self;
        *crowded = false;
        asked.drain(..).map(|mut asked| {
            asked.guard.only_looks();
            *crowded |= asked.guard.parts().is_looked_at_all_the_time();
            (asked.guard, asked.with)
        })
    }

    /// Whether one of the locks that were taken last is looked at so often that it has no owner. Who need not look gives way to
    /// other threads then, once it holds none: they would wait for it most of the time.
    pub fn crowded(&self) -> bool {
        self.crowded
    }

    fn await_owners(&mut self) {
        if self.asked.iter().all(|asked| asked.owner.is_none()) {
            return;
        }
        waited::timed(|| {
            let owners = self.asked.iter().filter_map(|asked| asked.owner);
            let answered = pass_barrier(&|number| owners.clone().all(|seat| seat.has_answered(number)));
            for asked in &mut self.asked {
                if let Some(seat) = asked.owner.take() {
                    asked.guard.answered = answered;
                    asked.guard.await_owner(seat);
                }
            }
        });
    }
}

impl<T, W, P> Drop for Looks<'_, T, W, P> {
    fn drop(&mut self) {
        self.await_owners(); // before the guards go, which make them owners again
    }
}
