//! Statistics in the text format of Prometheus.

use super::told::{TAG_FLOWS, Told, stream_values};
use crate::base::histogram::Durations;
use crate::core::{Flow, MemoryStats, StreamStats};
use crate::runtime::device::tags::DeviceTagStats;
use crate::runtime::pinned::numbers::Times;
use crate::runtime::watch::latency::Latency;
use std::collections::HashMap;
use std::fmt::{Display, Write};

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
const GAUGES: [Family; 7] = [
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
    family(
        "fragmentation_ppm",
        "fragmentation_ratio",
        "",
        "The part of the free memory that no single request could have",
    ),
];

/// Quantities over time, of pinned memory.
const HOST_FLOWS: [Family; 4] = [
    family("allocations", "host_segments", "", "Pieces of pinned memory held from the device"),
    family("allocated_bytes", "host_reserved", "_bytes", "Pinned memory taken from the device"),
    family("active_requests", "host_active_blocks", "", "Pinned blocks that are live or wait for a stream"),
    family("active_bytes", "host_active", "_bytes", "Pinned blocks that are live or wait for a stream"),
];

/// Ends of the buckets that Prometheus gets: powers of two, from 32 ns to 69 s.
const LEAST_POWER: u32 = 5;
/// See [`LEAST_POWER`].
const MOST_POWER: u32 = 36;

/// A page that grows line by line. All samples of a family stand side by side, whatever devices they are of.
#[derive(Default)]
struct Page {
    /// The lines of each family, in the order in which they came up.
    families: Vec<String>,
    numbers: HashMap<String, usize>,
    /// The family whose samples come now.
    now: usize,
    device: String,
}

/// A text as the value of a label.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Page {
    /// The samples of this family come now.
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.now = *self.numbers.entry(name.to_owned()).or_insert_with(|| {
            self.families.push(format!("# HELP millpond_{name} {help}.\n# TYPE millpond_{name} {kind}\n"));
            self.families.len() - 1
        });
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        if let Some(lines) = self.families.get_mut(self.now) {
            let _ = writeln!(lines, "millpond_{name}{{device=\"{}\"{labels}}} {value}", self.device); // into a string
        }
    }

    /// The four families of a quantity over time.
    fn flows(&mut self, f: &Family, rows: &[(String, Flow)]) {
        let Family { stem, unit, help, .. } = *f;
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
            } else if f.of == "fragmentation_ppm" {
                self.sample(f.stem, labels, format!("{:.6}", *value as f64 / 1e6));
            } else {
                self.sample(f.stem, labels, value);
            }
        }
    }

    fn latencies(&mut self, all: &[(Latency, Durations)]) {
        self.head("latency_seconds", "histogram", "How long calls of each kind took");
        for (l, d) in all {
            let op = format!(",op=\"{}\"", l.name());
            let (mut count, mut bucket) = (0, 0);
            for power in LEAST_POWER..=MOST_POWER {
                while bucket < d.buckets.len() && Durations::start_of(bucket + 1) <= 1 << power {
                    count += d.buckets[bucket];
                    bucket += 1;
                }
                let end = (1u64 << power) as f64 / 1e9;
                self.sample("latency_seconds_bucket", &format!("{op},le=\"{end}\""), count);
            }
            self.sample("latency_seconds_bucket", &format!("{op},le=\"+Inf\""), d.count);
            self.sample("latency_seconds_sum", &op, d.total_ns as f64 / 1e9);
            self.sample("latency_seconds_count", &op, d.count);
        }
    }

    fn tags(&mut self, all: &[(&'static str, DeviceTagStats)]) {
        let labels = |name, class: Option<&str>| {
            let class = class.map_or(String::new(), |c| format!(",class=\"{c}\""));
            format!(",tag=\"{}\"{class}", label(name))
        };
        for f in &TAG_FLOWS {
            let rows: Vec<_> =
                all.iter().map(|(name, t)| (labels(name, f.class), Flow::from((f.of)(t)))).collect();
            self.flows(&family(f.name, f.stem, f.unit, f.help), &rows);
        }
        self.head("tag_waiting_bytes", "gauge", "Blocks with the tag that are freed and wait");
        for (name, t) in all {
            self.sample("tag_waiting_bytes", &labels(name, None), t.memory.waiting);
        }
    }

    fn streams(&mut self, all: &[StreamStats]) {
        const HELP: [&str; 12] = [
            "Live blocks of the stream",
            "Live blocks of the stream as they were asked for",
            "Live blocks of the stream after rounding",
            "Blocks of the stream that are freed and wait",
            "Blocks of the stream that are freed and wait",
            "Free pieces that serve the stream first",
            "Free pieces that serve the stream first",
            "Blocks of the stream, all that were added",
            "Blocks of the stream after rounding, all that were added",
            "Peak of the live blocks of the stream",
            "Peak of the live blocks of the stream as they were asked for",
            "Peak of the live blocks of the stream after rounding",
        ];
        for (i, help) in HELP.into_iter().enumerate() {
            let name = format!("stream_{}", stream_values(&StreamStats::default())[i].0);
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            self.head(&name, kind, help);
            for s in all {
                let stream = s.stream.map_or("none".to_owned(), |s| format!("{s:#x}"));
                self.sample(&name, &format!(",stream=\"{stream}\""), stream_values(s)[i].1);
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

/// The page of some devices.
pub(super) fn page(all: &[Told]) -> String {
    let mut page = Page::default();
    all.iter().for_each(|told| tell(&mut page, told));
    page.families.concat()
}

fn tell(page: &mut Page, told: &Told) {
    let Told { device, memory, pools, host, .. } = told;
    page.device = label(device);
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
    for (families, kind) in [(&EVENTS[..], "counter"), (&GAUGES[..], "gauge")] {
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
    if !told.tags.is_empty() {
        page.tags(&told.tags);
    }
    if let Some(streams) = &told.streams {
        page.streams(streams);
    }
    if !told.latencies.is_empty() {
        page.latencies(&told.latencies);
    }
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
}
