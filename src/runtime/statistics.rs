//! The statistics of a device as text: JSON, and the text format of Prometheus.

use crate::base::error::Result;
use crate::base::histogram::Durations;
use crate::core::{Counter, Flow, MemoryStats, PoolId, TagStats};
use crate::runtime::device::state::DeviceState;
use crate::runtime::memory::statistics::StreamStats;
use crate::runtime::pinned::numbers::{HostMemoryStats, Times};
use crate::runtime::watch::latency::Latency;
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

/// All that is told of a device.
#[derive(Default)]
struct Told {
    device: String,
    memory: MemoryStats,
    pools: Vec<PoolStats>,
    host: HostMemoryStats,
    /// Tags that were ever used, by name.
    tags: Vec<(&'static str, TagStats)>,
    /// `None`: not asked for.
    streams: Option<Vec<StreamStats>>,
    /// Nothing, if calls were never timed.
    latencies: Vec<(Latency, Durations)>,
}

impl DeviceState {
    /// The statistics of the device, of its pools, tags and pinned memory, and how long its calls took if they were timed,
    /// as text; `name` says what a pool is called. The pools are read one after the other, after the device. A pool that
    /// ends meanwhile is left out. With `streams`, what each stream has, too, with the price of
    /// [`MemoryStatistics::by_stream`](crate::runtime::MemoryStatistics::by_stream).
    pub fn stats_text(
        &self,
        format: StatsFormat,
        streams: bool,
        name: impl Fn(PoolId) -> Option<String>,
    ) -> Result<String> {
        let memory = self.memory().statistics().full(None)?;
        let host = self.host_memory().full_stats()?;
        let pools: Vec<PoolStats> = self
            .memory()
            .pools()
            .all()
            .into_iter()
            .filter_map(|id| {
                Some(PoolStats {
                    id,
                    name: name(id),
                    memory: self.memory().statistics().full(Some(id)).ok()?,
                })
            })
            .collect();
        let device = format!("{}:{}", self.type_name(), self.ordinal());
        let tags = self.memory().statistics().by_tag()?.into_iter().map(|(t, s)| (t.name(), s)).collect();
        let streams = streams.then(|| self.memory().statistics().by_stream(None)).transpose()?;
        let told = Told {
            device,
            memory,
            pools,
            host,
            tags,
            streams,
            latencies: self.memory().statistics().latencies(),
        };
        Ok(match format {
            StatsFormat::Json => json(&told),
            StatsFormat::Prometheus => prometheus(&told),
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

/// What is told of a tag, as [`MemoryStats`] names it.
fn tag_values(s: &TagStats) -> Vec<(String, u64)> {
    let flows =
        [("allocation", s.blocks), ("allocated_bytes", s.allocated), ("requested_bytes", s.requested)];
    let all = flows.into_iter().flat_map(|(name, counter)| {
        Flow::from(counter).values().map(|(what, v)| (format!("{name}.{what}"), v))
    });
    all.chain([("waiting_bytes".to_owned(), s.waiting)]).collect()
}

/// What is told of a stream: the names are the same in JSON and for Prometheus.
fn stream_values(s: &StreamStats) -> [(&'static str, u64); 7] {
    [
        ("blocks", s.blocks),
        ("requested_bytes", s.requested_bytes),
        ("allocated_bytes", s.allocated_bytes),
        ("waiting_blocks", s.waiting_blocks),
        ("waiting_bytes", s.waiting_bytes),
        ("free_blocks", s.free_blocks),
        ("free_bytes", s.free_bytes),
    ]
}

fn latency_object(d: &Durations) -> String {
    let quantile = |name: &str, part| (name.to_owned(), d.quantile(part));
    let values = vec![
        ("count".to_owned(), d.count),
        ("total_ns".to_owned(), d.total_ns),
        ("min_ns".to_owned(), d.min_ns),
        ("max_ns".to_owned(), d.max_ns),
        quantile("p50_ns", 0.5),
        quantile("p90_ns", 0.9),
        quantile("p99_ns", 0.99),
        quantile("p999_ns", 0.999),
    ];
    let filled = d.buckets.iter().enumerate().filter(|b| *b.1 != 0);
    let buckets: Vec<String> = filled.map(|(i, n)| format!("[{},{n}]", Durations::start_of(i))).collect();
    object(values, &format!(",\"buckets\":[{}]", buckets.join(",")))
}

fn json(told: &Told) -> String {
    let pool = |p: &PoolStats| {
        let name = p.name.as_deref().map_or("null".to_owned(), quoted);
        format!("{{\"pool\":{},\"name\":{name},\"memory\":{}}}", p.id.0, memory_object(&p.memory))
    };
    let tag = |(name, s): &(&str, TagStats)| {
        format!("{{\"tag\":{},\"memory\":{}}}", quoted(name), object(tag_values(s), ""))
    };
    let stream = |s: &StreamStats| {
        let name = s.stream.map_or("null".to_owned(), |s| s.to_string());
        let values = stream_values(s).map(|(name, v)| (name.to_owned(), v));
        format!("{{\"stream\":{name},\"memory\":{}}}", object(values.into(), ""))
    };
    let streams = told.streams.as_ref().map_or("null".to_owned(), |all| {
        format!("[{}]", all.iter().map(stream).collect::<Vec<_>>().join(","))
    });
    let latency = |(l, d): &(Latency, Durations)| format!("\"{}\":{}", l.name(), latency_object(d));
    let latencies: Vec<String> = told.latencies.iter().map(latency).collect();
    format!(
        "{{\"version\":{VERSION},\"device\":{},\"memory\":{},\"pools\":[{}],\"tags\":[{}],\"streams\":{streams},\"host\":{},\"latency\":{}}}",
        quoted(&told.device),
        memory_object(&told.memory),
        told.pools.iter().map(pool).collect::<Vec<_>>().join(","),
        told.tags.iter().map(tag).collect::<Vec<_>>().join(","),
        object(told.host.values(), ""),
        if told.latencies.is_empty() { "null".to_owned() } else { format!("{{{}}}", latencies.join(",")) },
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

/// Quantities over time, of a tag.
const TAG_FLOWS: [Family; 3] = [
    family("allocation", "tag_blocks", "", "Live blocks with the tag"),
    family("allocated_bytes", "tag_allocated", "_bytes", "Live blocks with the tag after rounding"),
    family("requested_bytes", "tag_requested", "_bytes", "Live blocks with the tag as they were asked for"),
];

/// Ends of the buckets that Prometheus gets: powers of two, from 32 ns to 69 s.
const LEAST_POWER: u32 = 5;
/// See [`LEAST_POWER`].
const MOST_POWER: u32 = 36;

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

    fn tags(&mut self, all: &[(&'static str, TagStats)]) {
        let counters: [fn(&TagStats) -> Counter; 3] = [|s| s.blocks, |s| s.allocated, |s| s.requested];
        let labels = |name| format!(",tag=\"{}\"", label(name));
        for (f, of) in TAG_FLOWS.iter().zip(counters) {
            let rows: Vec<_> = all.iter().map(|(name, s)| (labels(name), Flow::from(of(s)))).collect();
            self.flows(f, &rows);
        }
        self.head("tag_waiting_bytes", "gauge", "Blocks with the tag that are freed and wait");
        all.iter().for_each(|(name, s)| self.sample("tag_waiting_bytes", &labels(name), s.waiting));
    }

    fn streams(&mut self, all: &[StreamStats]) {
        const HELP: [&str; 7] = [
            "Live blocks of the stream",
            "Live blocks of the stream as they were asked for",
            "Live blocks of the stream after rounding",
            "Blocks of the stream that are freed and wait",
            "Blocks of the stream that are freed and wait",
            "Free pieces that serve the stream first",
            "Free pieces that serve the stream first",
        ];
        for (i, help) in HELP.into_iter().enumerate() {
            let name = format!("stream_{}", stream_values(&StreamStats::default())[i].0);
            self.head(&name, "gauge", help);
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

fn prometheus(told: &Told) -> String {
    let Told { device, memory, pools, host, .. } = told;
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
    if !told.tags.is_empty() {
        page.tags(&told.tags);
    }
    if let Some(streams) = &told.streams {
        page.streams(streams);
    }
    if !told.latencies.is_empty() {
        page.latencies(&told.latencies);
    }
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
        let pools = vec![PoolStats {
            id: PoolId(7),
            name: Some("a\"b\\c\nd".into()),
            memory: MemoryStats { limit_bytes: 5, ..MemoryStats::default() },
        }];
        let told = Told { device: "host:0".into(), pools, ..Told::default() };
        let text = prometheus(&told);
        assert!(text.contains("millpond_limit_bytes{device=\"host:0\"} +Inf\n"));
        assert!(text.contains(
            "millpond_limit_bytes{device=\"host:0\",pool=\"7\",pool_name=\"a\\\"b\\\\c\\nd\"} 5\n"
        ));
        let text = json(&told);
        assert!(text.contains(r#""pool":7,"name":"a\"b\\c\u000ad","memory":{"#), "{text}");
    }
}
