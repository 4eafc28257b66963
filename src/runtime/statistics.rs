//! The statistics of a device as text: JSON, and the text format of Prometheus.

use crate::base::error::Result;
use crate::core::{Flow, MemoryStats, PoolId};
use crate::runtime::device::DeviceState;
use crate::runtime::pinned::{HostMemoryStats, Times};
use std::fmt::{Display, Write};

/// What a text looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsFormat {
    /// One JSON object, without line breaks.
    Json,
    /// The text format 0.0.4 of Prometheus.
    Prometheus,
}

/// The version of the JSON's form; it grows when something goes, or changes its meaning.
const VERSION: u32 = 1;

/// One pool, to be told.
struct PoolStats {
    id: PoolId,
    name: Option<String>,
    memory: MemoryStats,
}

impl DeviceState {
    /// The statistics of the device, of its pools and of its pinned memory, as text; `name` says what a pool is called.
    /// The pools are read one after the other, after the device. A pool that ends meanwhile is left out.
    pub fn stats_text(&self, format: StatsFormat, name: impl Fn(PoolId) -> Option<String>) -> Result<String> {
        let memory = self.memory().memory_stats(None)?;
        let host = self.host_memory_stats()?;
        let pools: Vec<PoolStats> = self
            .memory()
            .pools()
            .into_iter()
            .filter_map(|id| {
                Some(PoolStats { id, name: name(id), memory: self.memory().memory_stats(Some(id)).ok()? })
            })
            .collect();
        let device = format!("{}:{}", self.type_name(), self.ordinal());
        Ok(match format {
            StatsFormat::Json => json(&device, &memory, &pools, &host),
            StatsFormat::Prometheus => prometheus(&device, &memory, &pools, &host),
        })
    }
}

// ---- JSON ----------------------------------------------------------------------------------------------

/// A text as a JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// An object of numbers, with what comes after them.
fn object(values: Vec<(String, u64)>, more: &str) -> String {
    // No bound, which not every reader of JSON could keep as a number.
    let told = |v: u64| if v == u64::MAX { "null".to_owned() } else { v.to_string() };
    let values: Vec<String> = values.into_iter().map(|(name, v)| format!("\"{name}\":{}", told(v))).collect();
    format!("{{{}{more}}}", values.join(","))
}

fn memory_object(m: &MemoryStats) -> String {
    object(m.values(), &format!(",\"fragmentation\":{:.6}", m.fragmentation()))
}

fn json(device: &str, memory: &MemoryStats, pools: &[PoolStats], host: &HostMemoryStats) -> String {
    let pool = |p: &PoolStats| {
        let name = p.name.as_deref().map_or("null".to_owned(), quoted);
        format!("{{\"pool\":{},\"name\":{name},\"memory\":{}}}", p.id.0, memory_object(&p.memory))
    };
    format!(
        "{{\"version\":{VERSION},\"device\":{},\"memory\":{},\"pools\":[{}],\"host\":{}}}",
        quoted(device),
        memory_object(memory),
        pools.iter().map(pool).collect::<Vec<_>>().join(","),
        object(host.values(), ""),
    )
}

// ---- Prometheus ----------------------------------------------------------------------------------------

/// What a quantity is called, and what it counts.
struct Family {
    of: &'static str,
    stem: &'static str,
    unit: &'static str,
    help: &'static str,
}

const fn family(of: &'static str, stem: &'static str, unit: &'static str, help: &'static str) -> Family {
    Family { of, stem, unit, help }
}

/// Quantities over time, of [`MemoryStats`].
const FLOWS: [Family; 12] = [
    family("allocation", "blocks", "", "Live blocks"),
    family("segment", "segments", "", "Pieces of memory held from the device"),
    family("active", "active_blocks", "", "Blocks that are live or wait for a stream"),
    family("inactive_split", "inactive_split_blocks", "", "Free pieces that cannot go back to the device"),
    family("allocated_bytes", "allocated", "_bytes", "Live blocks after rounding"),
    family("reserved_bytes", "reserved", "_bytes", "Memory taken from the device"),
    family("active_bytes", "active", "_bytes", "Blocks that are live or wait for a stream"),
    family(
        "inactive_split_bytes",
        "inactive_split",
        "_bytes",
        "Free memory that cannot go back to the device",
    ),
    family("requested_bytes", "requested", "_bytes", "Live blocks as they were asked for"),
    family("oversize_allocations", "oversize_blocks", "", "Live blocks that stay whole when they are freed"),
    family("oversize_segments", "oversize_segments", "", "Segments as large as blocks that stay whole"),
    family("sleeping_bytes", "sleeping", "_bytes", "Memory given back to the device until its pool wakes"),
];

/// Events so far, of [`MemoryStats`].
const EVENTS: [Family; 6] = [
    family(
        "num_alloc_retries",
        "alloc_retries_total",
        "",
        "Refusals after which memory was sought elsewhere",
    ),
    family("num_ooms", "out_of_memory_total", "", "Requests that found no memory"),
    family(
        "num_oom_rejections",
        "oom_rejections_total",
        "",
        "Requests the device was spared, having too little",
    ),
    family("num_sync_all_streams", "device_waits_total", "", "Waits of the allocator for the whole device"),
    family("num_device_alloc", "device_alloc_calls_total", "", "Calls that bring or show memory"),
    family("num_device_free", "device_free_calls_total", "", "Calls that give back or hide memory"),
];

/// Values of now, of [`MemoryStats`].
const GAUGES: [Family; 6] = [
    family("max_split_size", "max_split_bytes", "", "Blocks of at least this size stay whole"),
    family("limit_bytes", "limit_bytes", "", "The limit of reserved memory"),
    family("free_bytes", "free_bytes", "", "Reserved memory that is not active"),
    family("releasable_bytes", "releasable_bytes", "", "Free memory that could go back to the device"),
    family(
        "largest_cached_bytes",
        "largest_cached_request_bytes",
        "",
        "The largest request that needs no device",
    ),
    family(
        "largest_free_bytes",
        "largest_free_request_bytes",
        "",
        "The largest request that can be served now",
    ),
];

/// Quantities over time, of pinned memory.
const HOST_FLOWS: [Family; 4] = [
    family("allocations", "host_segments", "", "Pieces of pinned memory held from the device"),
    family("allocated_bytes", "host_reserved", "_bytes", "Pinned memory taken from the device"),
    family("active_requests", "host_active_blocks", "", "Pinned blocks that are live or wait for a stream"),
    family("active_bytes", "host_active", "_bytes", "Pinned blocks that are live or wait for a stream"),
];

/// A page that grows line by line.
struct Page {
    text: String,
    device: String,
}

/// A text as the value of a label.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP millpond_{name} {help}.\n# TYPE millpond_{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.text, "millpond_{name}{{device=\"{}\"{labels}}} {value}", self.device);
    }

    /// The four families of a quantity over time.
    fn flows(&mut self, f: &Family, rows: &[(String, Flow)]) {
        let Family { stem, unit, help, .. } = f;
        type Of = fn(&Flow) -> u64;
        let all: [(String, &str, &str, Of); 4] = [
            (format!("{stem}{unit}"), "gauge", "", |f| f.current),
            (format!("{stem}_peak{unit}"), "gauge", ", at most", |f| f.peak),
            (format!("{stem}_added{unit}_total"), "counter", ", all that were added", |f| f.allocated),
            (format!("{stem}_removed{unit}_total"), "counter", ", all that were taken away", |f| f.freed),
        ];
        for (name, kind, what, of) in all {
            self.head(&name, kind, &format!("{help}{what}"));
            rows.iter().for_each(|(labels, flow)| self.sample(&name, labels, of(flow)));
        }
    }

    fn values(&mut self, f: &Family, kind: &str, rows: &[(String, u64)]) {
        self.head(f.stem, kind, f.help);
        for (labels, value) in rows {
            // What there is none of has no bound.
            let unbounded = *value == u64::MAX || (f.of == "limit_bytes" && *value == 0);
            if unbounded && kind == "gauge" {
                self.sample(f.stem, labels, "+Inf");
            } else {
                self.sample(f.stem, labels, value);
            }
        }
    }

    fn times(&mut self, what: &str, help: &str, t: &Times) {
        let seconds = |us: u64| us as f64 / 1e6;
        let all = [
            ("seconds_total", "counter", "all together", seconds(t.total).to_string()),
            ("calls_total", "counter", "how many", t.count.to_string()),
            ("max_seconds", "gauge", "the longest", seconds(t.max).to_string()),
        ];
        for (name, kind, more, value) in all {
            self.head(&format!("{what}_{name}"), kind, &format!("{help}, {more}"));
            self.sample(&format!("{what}_{name}"), "", value);
        }
    }
}

/// The flows of one name, with the class of each as labels.
fn flows_of(m: &MemoryStats, name: &str) -> Vec<(&'static str, Flow)> {
    for (of, split) in m.splits() {
        if of == name {
            return vec![
                ("", split.all),
                (",class=\"large_pool\"", split.large_pool),
                (",class=\"small_pool\"", split.small_pool),
            ];
        }
    }
    m.flows().into_iter().filter(|f| f.0 == name).map(|f| ("", *f.1)).collect()
}

fn prometheus(device: &str, memory: &MemoryStats, pools: &[PoolStats], host: &HostMemoryStats) -> String {
    let mut page = Page { text: String::new(), device: label(device) };
    // Whose they are as labels: the device's have none.
    let mut all = vec![(String::new(), memory)];
    for p in pools {
        let name = p.name.as_deref().map_or(String::new(), |n| format!(",pool_name=\"{}\"", label(n)));
        all.push((format!(",pool=\"{}\"{name}", p.id.0), &p.memory));
    }
    for f in &FLOWS {
        let of = |(labels, m): &(String, &MemoryStats)| {
            let labels = labels.clone();
            flows_of(m, f.of).into_iter().map(move |(class, flow)| (format!("{labels}{class}"), flow))
        };
        page.flows(f, &all.iter().flat_map(of).collect::<Vec<_>>());
    }
    for (families, kind) in [(&EVENTS, "counter"), (&GAUGES, "gauge")] {
        for f in families {
            let value = |m: &MemoryStats| m.words().into_iter().find(|w| w.0 == f.of).map_or(0, |w| w.1);
            let of_device = matches!(
                f.of,
                "num_oom_rejections" | "num_sync_all_streams" | "num_device_alloc" | "num_device_free"
            );
            let told = if of_device { &all[..1] } else { &all[..] };
            let rows: Vec<(String, u64)> = told.iter().map(|(l, m)| (l.clone(), value(m))).collect();
            page.values(f, kind, &rows);
        }
    }
    page.head(
        "fragmentation_ratio",
        "gauge",
        "The part of the free memory that no single request could have",
    );
    all.iter().for_each(|(l, m)| page.sample("fragmentation_ratio", l, format!("{:.6}", m.fragmentation())));
    let flows = [host.allocations, host.allocated_bytes, host.active_requests, host.active_bytes];
    for (f, flow) in HOST_FLOWS.iter().zip(flows) {
        page.flows(f, &[(String::new(), flow)]);
    }
    for (name, help, value) in [
        ("host_cached_bytes", "Pinned memory that is freed and can be used again", host.cached_bytes),
        ("host_pending_bytes", "Pinned memory that is freed and waits for a stream", host.pending_bytes),
    ] {
        page.head(name, "gauge", help);
        page.sample(name, "", value);
    }
    page.times("host_alloc", "Calls to the device for pinned memory", &host.host_alloc_time);
    page.times("host_free", "Calls that gave pinned memory back", &host.host_free_time);
    page.text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statistic_has_a_family() {
        let m = MemoryStats::default();
        let flows: Vec<&str> = m.splits().iter().map(|s| s.0).chain(m.flows().iter().map(|f| f.0)).collect();
        assert_eq!(flows, FLOWS.iter().map(|f| f.of).collect::<Vec<_>>());
        let words: Vec<&str> = m.words().iter().map(|w| w.0).collect();
        assert_eq!(words, EVENTS.iter().chain(&GAUGES).map(|f| f.of).collect::<Vec<_>>());
    }

    #[test]
    fn names_are_quoted() {
        let pools = [PoolStats {
            id: PoolId(7),
            name: Some("a\"b\\c\nd".into()),
            memory: MemoryStats { limit_bytes: 5, ..MemoryStats::default() },
        }];
        let (m, h) = (MemoryStats::default(), HostMemoryStats::default());
        let text = prometheus("host:0", &m, &pools, &h);
        assert!(text.contains("millpond_limit_bytes{device=\"host:0\"} +Inf\n"));
        assert!(text.contains(
            "millpond_limit_bytes{device=\"host:0\",pool=\"7\",pool_name=\"a\\\"b\\\\c\\nd\"} 5\n"
        ));
        let text = json("host:0", &m, &pools, &h);
        assert!(text.contains(r#""pool":7,"name":"a\"b\\c\u000ad","memory":{"#), "{text}");
    }
}
