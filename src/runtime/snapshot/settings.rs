//! The options that a snapshot in PyTorch's form has fields for.

use crate::runtime::options::{Key, Options, Value};

/// The options for which PyTorch has a field.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub all: String,
    pub max_split: i64, // [B] -1: none
    pub threshold: f64,
    pub expandable: bool,
    pub threads: u64,
    pub release_lock: bool,
    pub register: bool,
    pub stream_reuse: bool,
    pub divisions: Vec<u64>, // parts, by interval
}

impl Settings {
    pub(super) fn of(o: &Options) -> Settings {
        let divisions = o.divisions();
        Settings {
            all: o.to_string(),
            max_split: o.bytes(Key::MaxSplitSizeMb).map_or(-1, |n| n as i64),
            threshold: o.fraction(Key::GarbageCollectionThreshold),
            expandable: o.on(Key::ExpandableSegments),
            threads: match o.get(Key::PinnedNumRegisterThreads) {
                Value::Count(n) => u64::from(n),
                _ => 1,
            },
            release_lock: o.on(Key::ReleaseLockOnCudamalloc),
            register: o.on(Key::PinnedUseCudaHostRegister),
            stream_reuse: o.on(Key::GraphCaptureRecordStreamReuse),
            divisions: (0..16).map(|i| divisions.log2(i)).map(|n| if n == 0 { 0 } else { 1 << n }).collect(),
        }
    }
}
