//! Programs that share a card, and give each other the memory that they do not use.
//!
//! They join a *group*, which is a file (`record.rs` has what stands in it, `file.rs` how it is read and written); a
//! [`Member`](member::Member) asks others and is asked. It knows memory by the trait [`Share`](member::Share) only.

use crate::base::clock::monotonic;
use crate::base::error::Result;
use file::GroupFile;
use record::{SLOTS, shown};
use std::path::Path;

mod file;
pub(crate) mod member;
pub(crate) mod membership;
mod record;
#[cfg(test)]
mod tests;

/// A member of a group, as everybody sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// Its number in the group, which no other one ever gets.
    pub id: u64,
    /// Its process, as it sees it itself.
    pub process: u64,
    /// Which card its device is: its UUID, or a number made of its name where it has none.
    pub card: [u8; 16],
    /// Its name, cut after 32 bytes.
    pub name: String,
    /// Its name of the device, such as `cuda:0`.
    pub device: String,
    /// \[B\] taken from the card, when it last looked.
    pub reserved_bytes: u64,
    /// \[B\] of these in no block.
    pub unused_bytes: u64,
    /// \[B\] of the last budget that it was given through the group; 0: none.
    pub budget_bytes: u64,
    /// \[B\] that it has given back for others.
    pub given_bytes: u64,
    /// \[B\] that others have given back for it.
    pub received_bytes: u64,
    /// \[ms\] since it last looked for what others want, to some 250; `None`: it never did.
    pub looked_ms: Option<u64>,
}

/// The members of the group whose file this is, in the order of their numbers. The file is only read.
pub fn group_members(path: &Path) -> Result<Vec<GroupMember>> {
    // Made beforehand, and nobody has joined.
    if std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == 0) {
        return Ok(Vec::new());
    }
    let file = GroupFile::open(path, false, false)?;
    let seen = file.read()?;
    let now = monotonic() / 1_000_000;
    let mut all: Vec<GroupMember> = (0..SLOTS)
        .filter_map(|slot| Some((slot, seen.record(slot)?)))
        .filter(|&(slot, _)| file.is_held(slot))
        .map(|(_, r)| GroupMember {
            id: r.id,
            process: r.process,
            card: card_bytes(r.card),
            name: shown(&r.name).to_owned(),
            device: shown(&r.device).to_owned(),
            reserved_bytes: r.reserved,
            unused_bytes: r.reserved.saturating_sub(r.active),
            budget_bytes: r.budget,
            given_bytes: r.given,
            received_bytes: r.received,
            looked_ms: (r.looked != 0).then(|| now.saturating_sub(r.looked)),
        })
        .collect();
    all.sort_by_key(|m| m.id);
    Ok(all)
}

/// Tells a member of the group to keep below a budget, which it does when it next looks; 0: no bound. `InvalidArgument`
/// if the group has no such member.
pub fn set_group_budget(path: &Path, member: u64, budget_bytes: u64) -> Result<()> {
    GroupFile::open(path, true, false)?.order(member, budget_bytes)
}

/// A card's identity as two numbers.
pub(crate) fn card_of(bytes: [u8; 16]) -> [u64; 2] {
    let [a, b] = [&bytes[..8], &bytes[8..]].map(|half| half.try_into().map_or(0, u64::from_ne_bytes));
    [a, b]
}

fn card_bytes([a, b]: [u64; 2]) -> [u8; 16] {
    let mut all = [0; 16];
    all[..8].copy_from_slice(&a.to_ne_bytes());
    all[8..].copy_from_slice(&b.to_ne_bytes());
    all
}
