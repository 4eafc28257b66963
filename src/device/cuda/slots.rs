//! Which granules a device has, in which handles of the driver they lie, and what is mapped where.
//!
//! A granule has a handle of its own, or lies in a *tie*: one handle for a run of granules, which is mapped and unmapped
//! only as a whole, since the driver maps a handle from its start (`cuMemMap` takes an offset of 0 only).

use super::fabric::Fabric;
use crate::base::boxed::try_push;
use crate::base::error::{Code, Error, Result, no_host_memory};
use crate::base::ordered::{Map, Set};
use crate::device::{GRANULE, Run, slots_of};
use crate::fail;
use std::ops::Range;

/// A granule; of a tie the first one, which speaks for all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Granule {
    Absent,
    /// The driver's handle, and at how many addresses it is mapped.
    Present {
        handle: u64,
        shown: u32,
        /// Created with support for fabric handles.
        fabric: bool,
    },
    /// The driver has taken the memory back in a call that failed later; created again when it is to be mapped.
    Hollow,
    /// One of a tie, but not its first.
    Tied,
}

/// What the driver has refused to undo. Empty unless the device fails.
#[derive(Default)]
pub(super) struct Arrears {
    /// Slots that still map something but should map nothing.
    pub stale: Set<usize>,
    /// Handles that should have been released.
    pub handles: Vec<u64>,
}

/// Memory of another process, at an address of its own.
#[derive(Default)]
pub(super) struct Opened {
    pub bytes: u64,
    /// [B] the handles that are mapped, from the front.
    pub shown: Vec<u64>,
    /// It could not be opened as a whole: no caller has it, and it is only waiting to be closed.
    pub orphan: bool,
}

impl Opened {
    /// [B] how much of it is mapped.
    pub(super) fn mapped(&self) -> u64 {
        self.shown.iter().sum()
    }
}

/// See the file's head.
pub(super) struct State {
    pub window: u64, // address; 0: none
    pub granules: Vec<Granule>,
    /// By the first granule: of how many the tie is.
    pub ties: Map<usize, usize>,
    /// For each slot of the window, the number of the granule mapped there plus one; 0: none.
    pub slots: Vec<u32>,
    pub arrears: Arrears,
    /// Mapped memory of other processes, by address.
    pub opened: Map<u64, Opened>,
    /// The devices that may use the memory; this one first.
    pub readers: Vec<i32>,
    /// More of them, which nobody has asked for: where the driver refuses one, they are forgotten.
    pub guests: Vec<i32>,
    /// Those that were refused, and may use what was mapped before. They are guests again as soon as the driver takes them,
    /// which is tried when memory goes back to it.
    pub former_guests: Vec<i32>,
    pub fabric: Fabric,
    /// The driver unmaps one mapping with each call.
    pub one_by_one: bool,
}

fn outside<T>(what: &str) -> Result<T> {
    Err(Error::new(Code::OutOfRange, what.to_owned()))
}

impl State {
    /// The granules of the handle in which this one lies.
    pub(super) fn lot(&self, granule: usize) -> Range<usize> {
        match self.ties.range(..=granule).next_back() {
            Some((&first, &count)) if granule < first + count => first..first + count,
            _ => granule..granule + 1,
        }
    }

    /// The handles in which these granules lie. Fails if a tie is only partly among them, or the host has no memory for the
    /// list.
    pub(super) fn lots(&self, granules: Range<usize>) -> Result<Vec<Range<usize>>> {
        let (mut at, mut lots) = (granules.start, Vec::new());
        while at < granules.end {
            let lot = self.lot(at);
            if lot.start < at || lot.end > granules.end {
                fail!(Code::InvalidArgument, "granules {} to {} go together only", lot.start, lot.end - 1);
            }
            at = lot.end;
            if !try_push(&mut lots, lot) {
                return Err(no_host_memory());
            }
        }
        Ok(lots)
    }

    /// The slots of the mapping to which this one, where something is mapped, belongs.
    pub(super) fn mapping(&self, slot: usize) -> Range<usize> {
        let granule = self.slots[slot] as usize - 1;
        let lot = self.lot(granule);
        let start = slot - (granule - lot.start);
        start..start + lot.len()
    }

    /// The mappings in these slots, in each of which something is mapped. Fails if one is only partly among them.
    pub(super) fn mappings(&self, slots: Range<usize>) -> Result<Vec<Range<usize>>> {
        let (mut at, mut all) = (slots.start, Vec::new());
        while at < slots.end {
            let mapping = self.mapping(at);
            if mapping.start < at || mapping.end > slots.end {
                fail!(Code::InvalidArgument, "offset {} is in the midst of a mapping", at as u64 * GRANULE);
            }
            at = mapping.end;
            all.push(mapping);
        }
        Ok(all)
    }

    /// Nothing is mapped at a slot any more.
    pub(super) fn hidden(&mut self, slot: usize) {
        let granule = std::mem::take(&mut self.slots[slot]) as usize - 1;
        if let Granule::Present { shown, .. } = &mut self.granules[granule] {
            *shown -= 1;
        }
    }

    /// They exist, in one handle.
    pub(super) fn enter(&mut self, lot: Range<usize>, made: Granule) {
        self.granules[lot.clone()].fill(Granule::Tied);
        self.granules[lot.start] = made;
        if lot.len() > 1 {
            self.ties.insert(lot.start, lot.len());
        }
    }

    /// They exist no more.
    pub(super) fn gone(&mut self, granules: Range<usize>) {
        self.ties.retain(|first, _| !granules.contains(first));
        self.granules[granules].fill(Granule::Absent);
    }

    pub(super) fn granules(&self, Run { first, count }: Run) -> Result<Range<usize>> {
        let total = self.granules.len() as u64;
        if count == 0 {
            return Err(Error::new(Code::InvalidArgument, "no granules asked for"));
        }
        match first.checked_add(count) {
            Some(end) if end <= total => Ok(first as usize..end as usize),
            _ => outside(&format!("{count} granules from {first} on: there are {total} numbers")),
        }
    }

    /// The handles in which the granules lie, which must exist, as [`lots`](Self::lots) has them: the driver's number,
    /// whether it supports fabric handles, and its bytes.
    pub(super) fn present(&self, granules: &[Run]) -> Result<Vec<(u64, bool, u64)>> {
        let mut found = Vec::new();
        for run in granules {
            for lot in self.lots(self.granules(*run)?)? {
                let Granule::Present { handle, fabric, .. } = self.granules[lot.start] else {
                    fail!(Code::InvalidArgument, "granule {} does not exist", lot.start);
                };
                found.push((handle, fabric, lot.len() as u64 * GRANULE));
            }
        }
        Ok(found)
    }

    pub(super) fn fabric_handles(&self, granules: &[Run]) -> Result<Vec<(u64, u64)>> {
        let found = self.present(granules)?;
        if found.iter().all(|g| g.1) {
            return Ok(found.into_iter().map(|g| (g.0, g.2)).collect());
        }
        Err(self.fabric.reason())
    }

    pub(super) fn slots(&self, offset: u64, bytes: Option<u64>) -> Result<Range<usize>> {
        slots_of(self.window, self.slots.len(), offset, bytes)
    }

    /// The runs of addresses that are mapped and in use: (address, bytes). Each lies in one reservation.
    pub(super) fn shown_runs(&self) -> Vec<(u64, u64)> {
        let shown = self.opened.iter().filter(|o| o.1.mapped() > 0 && !o.1.orphan);
        let mut runs: Vec<(u64, u64)> = shown.map(|(&a, o)| (a, o.mapped())).collect();
        let others = runs.len();
        for (i, _) in self.slots.iter().enumerate().filter(|(_, s)| **s != 0) {
            if self.arrears.stale.contains(&i) {
                continue;
            }
            let addr = self.window + i as u64 * GRANULE;
            match runs[others..].last_mut() {
                Some(last) if last.0 + last.1 == addr => last.1 += GRANULE,
                _ => runs.push((addr, GRANULE)),
            }
        }
        runs
    }
}
