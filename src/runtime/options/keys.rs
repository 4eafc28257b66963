//! The option keys: their names, the values they take, and whether an open device can change them.

use super::nearest::nearest;
use super::value::{Backend, Divisions, ExportHandle, Value};

/// An option, by its name; the number is its index in [`KEYS`]. `docs/options.md` describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Backend,
    MaxSplitSizeMb,
    MaxNonSplitRoundingMb,
    RoundupPower2Divisions,
    GarbageCollectionThreshold,
    ExpandableSegments,
    LargeSegmentSizeMb,
    PerProcessMemoryFraction,
    ThrowOnCudamallocOom,
    PinnedUseCudaHostRegister,
    PinnedNumRegisterThreads,
    PinnedMaxCachedSizeMb,
    PinnedMaxRoundThresholdMb,
    PinnedReserveSegmentSizeMb,
    PinnedUseBackgroundThreads,
    PinnedFreeCatchAll,
    ReleaseLockOnCudamalloc,
    GraphCaptureRecordStreamReuse,
    ExportHandle,
    LatencyHistograms,
    HeadroomMb,
    Scatter,
    PeerAccess,
    EmptyCacheFloorMb,
    PinnedLimitMb,
    PinnedNumaNode,
    StreamsAnnounced,
}

/// The number of keys.
pub(super) const COUNT: usize = 27;

/// Which values a key takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// The name of an allocator.
    Backend,
    /// How blocks are exported.
    ExportHandle,
    /// `True` or `False`.
    Switch,
    /// Whole MiB from `least` on, or `unlimited` if `word` is set.
    Mib { least: u64, word: bool },
    /// Whole MiB from `least` on, or `default`.
    Segment { least: u64 },
    /// The number of a NUMA node, or `default`.
    Node,
    /// `on` or `off`.
    OnOff,
    /// A number from 0 to 1; with `open`, 1 is not allowed, and 0 means off.
    Fraction { open: bool },
    /// A power of two up to 128.
    Threads,
    /// One number for all sizes, or a list of `MiB:number`.
    Divisions,
}

/// One key.
pub(super) struct Info {
    pub key: Key,
    pub name: &'static str,
    pub kind: Kind,
    pub default: Value,
    /// Whether a device that is open can change it.
    pub changeable: bool,
}

const fn info(key: Key, name: &'static str, kind: Kind, default: Value) -> Info {
    let fixed = matches!(key, Key::Backend | Key::ExpandableSegments | Key::PeerAccess);
    Info { key, name, kind, default, changeable: !fixed }
}

const OFF: Value = Value::Switch(false);
const ON: Value = Value::Switch(true);

/// All keys, in the order of [`Key`].
pub(super) const KEYS: [Info; COUNT] = [
    info(Key::Backend, "backend", Kind::Backend, Value::Backend(Backend::Native)),
    info(Key::MaxSplitSizeMb, "max_split_size_mb", Kind::Mib { least: 1, word: true }, Value::Mib(None)),
    info(
        Key::MaxNonSplitRoundingMb,
        "max_non_split_rounding_mb",
        Kind::Mib { least: 0, word: false },
        Value::Mib(Some(20)),
    ),
    info(
        Key::RoundupPower2Divisions,
        "roundup_power2_divisions",
        Kind::Divisions,
        Value::Divisions(Divisions::NONE),
    ),
    info(
        Key::GarbageCollectionThreshold,
        "garbage_collection_threshold",
        Kind::Fraction { open: true },
        Value::Fraction(0.0),
    ),
    info(Key::ExpandableSegments, "expandable_segments", Kind::Switch, ON),
    info(Key::LargeSegmentSizeMb, "large_segment_size_mb", Kind::Segment { least: 1 }, Value::Segment(None)),
    info(
        Key::PerProcessMemoryFraction,
        "per_process_memory_fraction",
        Kind::Fraction { open: false },
        Value::Fraction(1.0),
    ),
    info(Key::ThrowOnCudamallocOom, "throw_on_cudamalloc_oom", Kind::Switch, OFF),
    info(Key::PinnedUseCudaHostRegister, "pinned_use_cuda_host_register", Kind::Switch, OFF),
    info(Key::PinnedNumRegisterThreads, "pinned_num_register_threads", Kind::Threads, Value::Count(1)),
    info(
        Key::PinnedMaxCachedSizeMb,
        "pinned_max_cached_size_mb",
        Kind::Mib { least: 0, word: true },
        Value::Mib(None),
    ),
    info(
        Key::PinnedMaxRoundThresholdMb,
        "pinned_max_round_threshold_mb",
        Kind::Mib { least: 0, word: true },
        Value::Mib(None),
    ),
    info(
        Key::PinnedReserveSegmentSizeMb,
        "pinned_reserve_segment_size_mb",
        Kind::Mib { least: 0, word: false },
        Value::Mib(Some(0)),
    ),
    info(Key::PinnedUseBackgroundThreads, "pinned_use_background_threads", Kind::Switch, OFF),
    info(Key::PinnedFreeCatchAll, "pinned_free_catch_all", Kind::Switch, OFF),
    info(Key::ReleaseLockOnCudamalloc, "release_lock_on_cudamalloc", Kind::Switch, OFF),
    info(Key::GraphCaptureRecordStreamReuse, "graph_capture_record_stream_reuse", Kind::Switch, OFF),
    info(Key::ExportHandle, "export_handle", Kind::ExportHandle, Value::ExportHandle(ExportHandle::PosixFd)),
    info(Key::LatencyHistograms, "latency_histograms", Kind::Switch, OFF),
    info(Key::HeadroomMb, "headroom_mb", Kind::Segment { least: 0 }, Value::Segment(None)),
    info(Key::Scatter, "scatter", Kind::OnOff, Value::OnOff(true)),
    info(Key::PeerAccess, "peer_access", Kind::OnOff, Value::OnOff(true)),
    info(Key::EmptyCacheFloorMb, "empty_cache_floor_mb", Kind::Segment { least: 0 }, Value::Segment(None)),
    info(Key::PinnedLimitMb, "pinned_limit_mb", Kind::Mib { least: 0, word: true }, Value::Mib(None)),
    info(Key::PinnedNumaNode, "pinned_numa_node", Kind::Node, Value::Node(None)),
    info(Key::StreamsAnnounced, "streams_announced", Kind::OnOff, Value::OnOff(false)),
];

// The number of a key is its index.
const _: () = {
    let mut i = 0;
    while i < COUNT {
        assert!(KEYS[i].key as usize == i);
        i += 1;
    }
};

/// Other names of keys, which PyTorch uses for devices of other makers.
const ALIASES: [(&str, Key); 3] = [
    ("pinned_use_hip_host_register", Key::PinnedUseCudaHostRegister),
    ("use_cuda_host_register", Key::PinnedUseCudaHostRegister),
    ("release_lock_on_hipmalloc", Key::ReleaseLockOnCudamalloc),
];

impl Key {
    /// The key of that name.
    pub(super) fn named(name: &str) -> Option<Key> {
        KEYS.iter()
            .find(|k| k.name == name)
            .map(|k| k.key)
            .or_else(|| ALIASES.iter().find(|a| a.0 == name).map(|a| a.1))
    }

    /// Its entry in [`KEYS`].
    pub(super) fn info(self) -> &'static Info {
        &KEYS[self as usize]
    }
}

/// The name of a key that is nearest to `wrong`.
pub(super) fn nearest_name(wrong: &str) -> &'static str {
    nearest(wrong, KEYS.iter().map(|k| k.name).chain(ALIASES.iter().map(|a| a.0)))
}
