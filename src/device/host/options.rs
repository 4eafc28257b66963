//! How many host devices there are and how much memory each may allocate.
//!
//! By default the devices share half of the machine's memory. A container's memory limit (cgroup v1 and v2) counts as
//! the machine's memory if it is lower. Nothing here takes memory; a capacity is only an upper bound, committed page by
//! page as it is touched.

use crate::base::error::{Code, Result};
use crate::device::GRANULE;
use crate::fail;

/// \[B\] the capacities that a host device can have: at least a granule, and no more than a file can have on any system
/// that we run on.
pub const CAPACITIES: std::ops::RangeInclusive<u64> = GRANULE..=16 << 40;
/// The same range in words, for messages.
pub const CAPACITIES_WANTED: &str = "2 MiB to 16 TiB";
/// The maximum number of devices of one host type.
pub const MAX_DEVICES: usize = 64;
/// The number of devices if the options do not say.
const DEFAULT_DEVICES: usize = 2;

/// The shape of a host device type. `Default` gives two devices that share half the machine's
/// memory and can map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// How many devices: 1 to [`MAX_DEVICES`]; 0 means 2.
    pub device_count: usize,
    /// Bytes that each device may allocate, rounded down to a multiple of 2 MiB (at least 2 MiB). 0 means half of
    /// [`machine_memory`] divided by `device_count`. Committed only as it is touched.
    pub capacity: u64,
    /// Whether the devices can map physical granules (`Caps::MAPPING`). Without it they offer segments only. Ignored
    /// (no mapping) if the system has no `memfd_create`.
    pub mapping: bool,
}

impl Default for HostOptions {
    fn default() -> Self {
        HostOptions { device_count: DEFAULT_DEVICES, capacity: 0, mapping: true }
    }
}

impl HostOptions {
    /// The options with defaults filled in, or `InvalidArgument`.
    pub(super) fn resolve(self) -> Result<HostOptions> {
        let device_count = if self.device_count == 0 { DEFAULT_DEVICES } else { self.device_count };
        if device_count > MAX_DEVICES {
            fail!(Code::InvalidArgument, "{device_count} host devices asked for, at most {MAX_DEVICES}");
        }
        let asked = match self.capacity {
            0 => (machine_memory() / 2 / device_count as u64).max(GRANULE),
            n => n,
        };
        let capacity = asked / GRANULE * GRANULE;
        if !CAPACITIES.contains(&capacity) {
            fail!(Code::InvalidArgument, "a host device of {asked} B: need {CAPACITIES_WANTED}");
        }
        Ok(HostOptions { device_count, capacity, mapping: self.mapping })
    }
}

/// Bytes of memory that this process may count on: the machine's RAM, or the lowest memory limit of the control groups
/// that the process is in, as far as those can be read. At least 2 MiB.
pub fn machine_memory() -> u64 {
    let ram = physical_memory();
    let limit = std::fs::read_to_string("/proc/self/cgroup")
        .ok()
        .and_then(|groups| cgroup_limit("/sys/fs/cgroup", &groups));
    limit.map_or(ram, |l| l.min(ram)).max(GRANULE)
}

fn physical_memory() -> u64 {
    // SAFETY: sysconf reads a number and touches no memory of ours.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(pages).unwrap_or(0).saturating_mul(super::pages::page_size())
}

/// The lowest memory limit from the process's control groups (the text of `/proc/self/cgroup`) up to the root of the
/// hierarchy mounted at `mount`.
fn cgroup_limit(mount: &str, groups: &str) -> Option<u64> {
    let mut lowest: Option<u64> = None;
    for line in groups.lines() {
        // "0::/path" is version 2; "7:memory:/path" the memory controller of version 1.
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (root, file) = if controllers.is_empty() {
            (mount.to_owned(), "memory.max")
        } else if controllers.split(',').any(|c| c == "memory") {
            (format!("{mount}/memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        // A limit of any parent group applies too. Inside a container the path may not exist below the mount; the mount
        // itself is then the container's own group.
        let mut path = path.trim_end_matches('/');
        loop {
            let limit = std::fs::read_to_string(format!("{root}{path}/{file}")).ok();
            // "max" (no limit) does not parse; version 1 writes a huge number instead.
            if let Some(n) = limit.and_then(|text| text.trim().parse::<u64>().ok()) {
                lowest = Some(lowest.map_or(n, |l| l.min(n)));
            }
            match path.rfind('/') {
                Some(cut) => path = &path[..cut],
                None => break,
            }
        }
    }
    lowest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_share_half_the_machine() {
        let o = HostOptions::default().resolve().unwrap();
        assert_eq!(o.device_count, 2);
        assert!(o.mapping);
        assert_eq!(o.capacity, machine_memory() / 4 / GRANULE * GRANULE);
        let four = HostOptions { device_count: 4, ..HostOptions::default() }.resolve().unwrap();
        assert_eq!(four.capacity, machine_memory() / 8 / GRANULE * GRANULE);
    }

    #[test]
    fn odd_sizes_are_rounded_and_bad_ones_refused() {
        let with = |device_count, capacity| HostOptions { device_count, capacity, mapping: true }.resolve();
        assert_eq!(with(1, 3 * GRANULE - 1).unwrap().capacity, 2 * GRANULE);
        assert_eq!(with(0, GRANULE).unwrap().device_count, 2);
        assert_eq!(with(64, GRANULE).unwrap().device_count, 64);
        for bad in [with(65, GRANULE), with(1, GRANULE - 1), with(1, u64::MAX)] {
            assert_eq!(bad.unwrap_err().code(), Code::InvalidArgument);
        }
    }

    #[test]
    fn the_lowest_cgroup_limit_counts() {
        let root = std::env::temp_dir().join(format!("millpond-cgroup-{}", std::process::id()));
        let write = |dir: &str, file: &str, text: &str| {
            let dir = root.join(dir);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join(file), text).unwrap();
        };
        write("a/b", "memory.max", "max\n");
        write("a", "memory.max", "5000000\n");
        write("memory/c", "memory.limit_in_bytes", "4000000\n");
        let mount = root.to_str().unwrap();
        assert_eq!(cgroup_limit(mount, "0::/a/b\n"), Some(5_000_000));
        assert_eq!(cgroup_limit(mount, "0::/a/b\n3:cpu,memory:/c/gone\n"), Some(4_000_000));
        assert_eq!(cgroup_limit(mount, "0::/elsewhere\n4:cpu:/c\nnonsense\n"), None);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
