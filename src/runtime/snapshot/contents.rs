//! What a snapshot holds: copies, which nothing changes any more.

use super::events::Kept;
use super::settings::Settings;
use crate::core::{Layout, PoolId};
use crate::device::MemoryInfo;
#[cfg(doc)]
use crate::runtime::device::state::DeviceState;
use crate::runtime::pinned::cache::HostStats;
use std::collections::BTreeMap;

/// The memory of a device at one moment. Get it with [`DeviceState::snapshot`].
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Every block, and the account.
    pub layout: Layout,
    /// The type of the device.
    pub type_name: String,
    /// Its ordinal within the type.
    pub ordinal: usize,
    /// Microseconds since 1970.
    pub time_us: u64,
    pub(super) memory: Option<MemoryInfo>,
    pub(super) options: Vec<(&'static str, String)>,
    pub(super) settings: Settings,
    pub(super) pinned: HostStats,
    pub(super) names: BTreeMap<PoolId, String>,
    pub(super) kept: Kept,
}
