//! What the fake pretends to be: devices, capacities, driver version, missing functions. Read from the environment when
//! the library is first called and after `fakecuda_reset`; `fakecuda_set` changes single settings after that.
//!
//! A setting has one name: `FAKECUDA_CAPACITY` in the environment is `capacity` for `fakecuda_set`.

use std::collections::HashSet;

pub(crate) const MIB: u64 = 1 << 20;

/// The names of all settings.
const NAMES: [&str; 33] = [
    "devices",
    "capacity",
    "driver",
    "granularity",
    "strict",
    "missing",
    "no_proc_address",
    "no_vmm",
    "no_pools",
    "no_fd",
    "no_peer",
    "peers",
    "no_concurrent",
    "low_handles",
    "ended",
    "reuse",
    "fabric",
    "imex",
    "staged",
    "rdma",
    "refuse_fd",
    "refuse_rdma",
    "most_handles",
    "most_mappings",
    "table_bytes",
    "one_unmap",
    "no_dmabuf",
    "one_dmabuf",
    "most_fds",
    "card",
    "log",
    "fail",
    "costs",
];

pub(crate) struct Config {
    pub(crate) devices: i32,
    pub(crate) capacities: Vec<u64>, // [B] the last one goes on for further devices
    pub(crate) driver: i32,          // as cuDriverGetVersion counts: 12080 is 12.8
    pub(crate) granularity: u64,     // [B] of the mapping calls
    pub(crate) strict: bool,         // device memory cannot be touched from the host
    pub(crate) missing: HashSet<String>,
    pub(crate) no_vmm: bool,
    pub(crate) no_pools: bool,
    pub(crate) no_fd: bool,
    no_peer: bool,
    peers: Option<Vec<[i32; 2]>>, // the pairs of devices that reach each other; None: all do
    pub(crate) no_concurrent: bool, // host and device do not use managed memory at the same time
    pub(crate) low_handles: bool, // handles count from 3, the first number that means no stream
    pub(crate) refuse_ended: bool, // a handle that means nothing is refused, instead of ending the process
    pub(crate) reuse: bool,       // the handle of an ended stream or event comes again
    pub(crate) fabric: bool,      // the devices know fabric handles
    pub(crate) imex: Option<i32>, // the IMEX channel that this process may use
    imex_is_set: bool,            // it was said, and does not follow from `fabric`
    pub(crate) staged: bool,      // pageable memory is read before an asynchronous copy returns
    pub(crate) rdma: bool,        // the devices say that memory of cuMemCreate may be reached from the bus
    pub(crate) refuse_fd: u32,    // what cuMemCreate fails with for memory with descriptors; 0: it does not
    pub(crate) refuse_rdma: u32,  // the same for memory that other devices on the bus may access
    pub(crate) most_handles: u64, // of cuMemCreate at a time, in the process
    pub(crate) most_mappings: u64, // with access at a time, in the process
    pub(crate) one_unmap: bool,   // cuMemUnmap takes one mapping only
    pub(crate) no_dmabuf: bool,   // the devices export no dma-buf
    pub(crate) one_dmabuf: bool,  // a dma-buf has memory of one handle only
    pub(crate) most_fds: u64,     // descriptors of handles and dma-bufs that the process may have been given
    pub(crate) table_bytes: u64,  // [B] of the device's memory that the page tables of one mapping take
    pub(crate) card: Option<String>, // a file of all processes that share the devices
    pub(crate) log: Option<String>, // a file that gets a line for each call
}

impl Config {
    /// The defaults, with the environment over them. What cannot be read is left out.
    pub(crate) fn from_environment() -> (Config, Vec<(String, String)>) {
        let mut config = Config {
            devices: 1,
            capacities: vec![8 << 30],
            driver: 12080,
            granularity: 2 * MIB,
            strict: false,
            missing: HashSet::new(),
            no_vmm: false,
            no_pools: false,
            no_fd: false,
            no_peer: false,
            peers: None,
            no_concurrent: false,
            low_handles: false,
            refuse_ended: false,
            reuse: true,
            // As a card of today without the service that sets up channels.
            fabric: true,
            imex: None,
            imex_is_set: false,
            staged: false,
            rdma: true,
            refuse_fd: 0,
            refuse_rdma: 0,
            most_handles: u64::MAX,
            most_mappings: 520_192, // what an H200 gave a context; the next 4096 were refused
            one_unmap: false,
            no_dmabuf: false,
            one_dmabuf: false,
            most_fds: u64::MAX,
            table_bytes: 0,
            card: None,
            log: None,
        };
        let mut rest = Vec::new();
        for name in NAMES {
            if let Ok(value) = std::env::var(format!("FAKECUDA_{}", name.to_uppercase()))
                && config.set(name, &value).is_none()
            {
                rest.push((name.to_string(), value));
            }
        }
        (config, rest)
    }

    /// Sets one setting; None if there is no such setting here, or the value cannot be read.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "devices" => self.devices = value.parse().ok().filter(|count| (0..=64).contains(count))?,
            "capacity" => {
                let all: Option<Vec<u64>> = value.split(',').map(bytes).collect();
                self.capacities = all.filter(|list| !list.is_empty())?;
            }
            "driver" => self.driver = value.parse().ok()?,
            "granularity" => {
                self.granularity = bytes(value).filter(|size| size.is_power_of_two() && *size >= 4096)?;
            }
            "strict" => self.strict = switch(value)?,
            "missing" => self.missing = value.split(',').map(|name| name.trim().to_string()).collect(),
            "no_proc_address" => {
                for name in ["cuGetProcAddress", "cuGetProcAddress_v2"] {
                    if switch(value)? {
                        self.missing.insert(name.to_string());
                    } else {
                        self.missing.remove(name);
                    }
                }
            }
            "no_vmm" => self.no_vmm = switch(value)?,
            "no_pools" => self.no_pools = switch(value)?,
            "no_fd" => self.no_fd = switch(value)?,
            "staged" => self.staged = switch(value)?,
            "rdma" => self.rdma = switch(value)?,
            "refuse_fd" => self.refuse_fd = value.parse().ok()?,
            "refuse_rdma" => self.refuse_rdma = value.parse().ok()?,
            "most_handles" => self.most_handles = value.parse().ok()?,
            "most_mappings" => self.most_mappings = value.parse().ok()?,
            "one_unmap" => self.one_unmap = switch(value)?,
            "no_dmabuf" => self.no_dmabuf = switch(value)?,
            "one_dmabuf" => self.one_dmabuf = switch(value)?,
            "most_fds" => self.most_fds = value.parse().ok()?,
            "table_bytes" => self.table_bytes = bytes(value)?,
            "no_peer" => self.no_peer = switch(value)?,
            "peers" if value == "all" => self.peers = None,
            "peers" => self.peers = Some(value.split(',').map(pair).collect::<Option<_>>()?),
            "no_concurrent" => self.no_concurrent = switch(value)?,
            "low_handles" => self.low_handles = switch(value)?,
            "ended" if value == "crash" => self.refuse_ended = false,
            "ended" if value == "refuse" => self.refuse_ended = true,
            "reuse" => self.reuse = switch(value)?,
            "fabric" => {
                self.fabric = switch(value)?;
                if !self.imex_is_set {
                    self.imex = self.fabric.then_some(0);
                }
            }
            "imex" => {
                let channel = || value.parse().ok().filter(|channel| *channel >= 0);
                self.imex = if value == "none" { None } else { Some(channel()?) };
                self.imex_is_set = true;
            }
            "card" => self.card = (!value.is_empty()).then(|| value.to_string()),
            "log" => self.log = (!value.is_empty()).then(|| value.to_string()),
            _ => return None,
        }
        Some(())
    }

    /// True if a function that came with the driver `since` does not exist here.
    pub(crate) fn lacks(&self, name: &str, since: i32) -> bool {
        since > self.driver || (!self.missing.is_empty() && self.missing.contains(name))
    }

    /// Whether the devices are apart: neither can use the other's memory.
    pub(crate) fn apart(&self, one: i32, other: i32) -> bool {
        let joined = |pairs: &Vec<[i32; 2]>| pairs.contains(&[one, other]) || pairs.contains(&[other, one]);
        one != other && (self.no_peer || !self.peers.as_ref().is_none_or(joined))
    }

    pub(crate) fn capacity(&self, device: usize) -> u64 {
        self.capacities.get(device).or(self.capacities.last()).copied().unwrap_or(0)
    }
}

/// A number of bytes, with K, M, G or T for powers of 1024.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let shift = match text.chars().last()?.to_ascii_uppercase() {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    digits.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Two numbers of devices, as in `0-1`.
fn pair(text: &str) -> Option<[i32; 2]> {
    let (one, other) = text.trim().split_once('-')?;
    Some([one.parse().ok()?, other.parse().ok()?])
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "1" | "yes" | "on" | "true" => Some(true),
        "0" | "no" | "off" | "false" | "" => Some(false),
        _ => None,
    }
}
