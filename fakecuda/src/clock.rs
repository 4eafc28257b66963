//! Modelled time: what the calls that take, map and give back memory would have cost on a card. Nothing waits for it; it
//! is added up, so that two designs can be compared without a card.
//!
//! A call costs something in itself, something for each mapping that it touches, and something for each MiB. The
//! defaults were measured on a card, or are published; README.md says which. All other calls cost nothing.

use std::collections::HashMap;

/// What a function costs. All in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Cost {
    call: u64,
    mapping: u64,
    mib: u64,
}

/// The defaults: function, for a call, for each mapping, for each MiB.
const COSTS: [(&str, u64, u64, u64); 9] = [
    ("cuMemAddressReserve", 2_000, 0, 0),
    ("cuMemAddressFree", 1_000, 0, 0),
    ("cuMemCreate", 10_500, 0, 20),
    ("cuMemRelease", 11_000, 0, 750),
    ("cuMemMap", 0, 900, 0),
    ("cuMemSetAccess", 13_000, 26_000, 0),
    ("cuMemUnmap", 7_000, 16_500, 0),
    ("cuMemAlloc_v2", 40_000, 0, 54),
    ("cuMemFree_v2", 34_000, 0, 470),
];

pub(crate) struct Clock {
    costs: HashMap<String, Cost>,
    now: u64,
    by_name: HashMap<&'static str, u64>,
    /// What the call that is running has touched: mappings, and bytes.
    touched: (u64, u64),
}

impl Clock {
    pub(crate) fn new() -> Clock {
        let costs =
            COSTS.iter().map(|&(name, call, mapping, mib)| (name.to_owned(), Cost { call, mapping, mib }));
        Clock { costs: costs.collect(), now: 0, by_name: HashMap::new(), touched: (0, 0) }
    }

    /// `function:call:mapping:mib` in nanoseconds, many with commas between them; None for bad input, which changes
    /// nothing.
    pub(crate) fn set(&mut self, text: &str) -> Option<()> {
        let mut new = Vec::new();
        for one in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
            let mut parts = one.split(':');
            let name = parts.next().filter(|name| crate::driver::entry(name).is_some())?;
            let mut number = || parts.next()?.parse::<u64>().ok();
            let cost = Cost { call: number()?, mapping: number()?, mib: number()? };
            if parts.next().is_some() {
                return None;
            }
            new.push((name.to_owned(), cost));
        }
        self.costs.extend(new);
        Some(())
    }

    /// The running call touches so many mappings, and so much memory.
    pub(crate) fn touch(&mut self, mappings: u64, bytes: u64) {
        self.touched = (mappings, bytes);
    }

    /// A call has ended. One that was refused costs what a call costs.
    pub(crate) fn pass(&mut self, name: &'static str, done: bool) {
        let (mappings, bytes) = std::mem::take(&mut self.touched);
        let Some(cost) = self.costs.get(name) else { return };
        let mut time = cost.call;
        if done {
            time += cost.mapping * mappings
                + u64::try_from((u128::from(cost.mib) * u128::from(bytes)) >> 20).unwrap_or(0);
        }
        self.now += time;
        *self.by_name.entry(name).or_default() += time;
    }

    /// \[ns\] of one function, or of all.
    pub(crate) fn passed(&self, name: Option<&str>) -> u64 {
        name.map_or(self.now, |name| self.by_name.get(name).copied().unwrap_or(0))
    }
}
