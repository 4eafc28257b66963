//! Who has changed since somebody looked: lists that any thread enters a member on, and that their looker takes whole.
//!
//! Several lookers look at the same members, each by a list of its own, and each member stands on a list at most once.
//! A looker that has seen all there is to see of a member says so, and is told of its next change from then on.

use super::remote::Remote;
use super::sync::AtomicU32;
use super::sync::Ordering::{AcqRel, Relaxed, SeqCst};

/// What is kept in a member, for so many lookers.
#[derive(Debug)]
pub struct Listed<const LOOKERS: usize> {
    /// Two bits for each looker: whether it knows, or is told, that the member may have changed, and whether the member
    /// stands on its list. A looker that has taken the member off its list has not always looked yet.
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

    /// Whether all lookers know, or are told, that the member may have changed.
    #[inline(always)]
    pub fn is_known(&self) -> bool {
        self.bits.load(SeqCst) & Self::ALL_TOLD == Self::ALL_TOLD
    }

    /// The looker has seen all, and is to be told of the next change. Whoever changes the member either finds this, or is
    /// found by what the looker reads of the member afterwards, as far as both are sequentially consistent.
    #[inline(always)]
    pub fn is_seen_by(&self, looker: usize) {
        self.bits.fetch_and(!(1 << looker), SeqCst);
    }
}

/// The lists, one a looker.
#[derive(Debug)]
pub struct Changed<const LOOKERS: usize>([Remote; LOOKERS]);

impl<const LOOKERS: usize> Default for Changed<LOOKERS> {
    fn default() -> Self {
        Changed(std::array::from_fn(|_| Remote::new()))
    }
}

impl<const LOOKERS: usize> Changed<LOOKERS> {
    /// The member of that number may have changed: it goes on each list on which it is missing.
    pub fn note(&self, number: u32, member: &Listed<LOOKERS>) {
        let before = member.bits.fetch_or(Listed::<LOOKERS>::ALL_TOLD, SeqCst);
        for (looker, list) in self.0.iter().enumerate() {
            let (told, listed) = (1 << looker, 1 << (LOOKERS + looker));
            if before & told == 0 && member.bits.fetch_or(listed, AcqRel) & listed == 0 {
                list.push(number + 1, |next| member.next[looker].store(next, Relaxed));
            }
        }
    }

    /// Takes the members on a looker's list, by number, into `into`.
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
            // AcqRel, in `note` too: the link is read before the next one who lists the member writes it.
            member.bits.fetch_and(!(1 << (LOOKERS + looker)), AcqRel);
        }
    }
}
