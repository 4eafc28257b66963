//! Change lists: which members have changed since a looker last looked. Any thread enters a member; the looker takes
//! its whole list.
//!
//! Several lookers watch the same members, each through a list of its own, and a member is on each list at most once.
//! A looker that has seen everything in a member says so ([`Listed::is_seen_by`]); the next change of that member
//! enters it on the looker's list again.

use super::remote::Remote;
use super::sync::AtomicU32;
use super::sync::Ordering::{AcqRel, Relaxed, SeqCst};

/// The part of this that is stored in a member, for `LOOKERS` lookers.
#[derive(Debug)]
pub struct Listed<const LOOKERS: usize> {
    /// Two bits for each looker. The first says that the looker knows, or will find out, that the member may have
    /// changed; the second that the member is on its list. A looker that has taken a member off its list may not have
    /// looked at it yet.
    bits: AtomicU32,
    /// The links of those lists.
    next: [AtomicU32; LOOKERS],
}

impl<const LOOKERS: usize> Default for Listed<LOOKERS> {
    fn default() -> Self {
        Listed { bits: AtomicU32::new(0), next: std::array::from_fn(|_| AtomicU32::new(0)) }
    }
}

impl<const LOOKERS: usize> Listed<LOOKERS> {
    const ALL_TOLD: u32 = (1 << LOOKERS) - 1;

    /// Whether all lookers know, or will find out, that the member may have changed.
    #[inline(always)]
    pub fn is_known(&self) -> bool {
        self.bits.load(SeqCst) & Self::ALL_TOLD == Self::ALL_TOLD
    }

    /// The looker has seen everything and wants to hear of the next change. A thread that changes the member either
    /// sees this bit cleared, or its change is seen by what the looker reads afterwards, provided that both sides use
    /// sequentially consistent accesses.
    #[inline(always)]
    pub fn is_seen_by(&self, looker: usize) {
        self.bits.fetch_and(!(1 << looker), SeqCst);
    }
}

/// The lists, one for each looker.
#[derive(Debug)]
pub struct Changed<const LOOKERS: usize>([Remote; LOOKERS]);

impl<const LOOKERS: usize> Default for Changed<LOOKERS> {
    fn default() -> Self {
        Changed(std::array::from_fn(|_| Remote::new()))
    }
}

impl<const LOOKERS: usize> Changed<LOOKERS> {
    /// Member `number` may have changed: enters it on each list that needs it.
    pub fn note(&self, number: u32, member: &Listed<LOOKERS>) {
        let before = member.bits.fetch_or(Listed::<LOOKERS>::ALL_TOLD, SeqCst);
        for (looker, list) in self.0.iter().enumerate() {
            let (told, listed) = (1 << looker, 1 << (LOOKERS + looker));
            if before & told == 0 && member.bits.fetch_or(listed, AcqRel) & listed == 0 {
                list.push(number + 1, |next| member.next[looker].store(next, Relaxed));
            }
        }
    }

    /// Takes the numbers of all members on a looker's list and appends them to `into`.
    pub fn take<'a>(
        &self,
        looker: usize,
        get: impl Fn(u32) -> Option<&'a Listed<LOOKERS>>,
        into: &mut Vec<u32>,
    ) {
        let mut at = self.0[looker].take();
        while at != 0 {
            into.push(at - 1);
            let Some(member) = get(at - 1) else { return };
            at = member.next[looker].load(Relaxed);
            // AcqRel, in `note` too: the link is read before the next thread that lists the member overwrites it.
            member.bits.fetch_and(!(1 << (LOOKERS + looker)), AcqRel);
        }
    }
}
