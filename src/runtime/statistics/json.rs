//! Statistics as JSON.

use super::told::{PoolStats, TAG_FLOWS, Told, VERSION, stream_values};
use crate::base::histogram::Durations;
use crate::core::{Flow, MemoryStats, StreamStats};
use crate::runtime::device::tags::DeviceTagStats;
use crate::runtime::watch::latency::Latency;
use std::fmt::Write;

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

/// What is told of a tag, as [`MemoryStats`] names it.
fn tag_values(t: &DeviceTagStats) -> Vec<(String, u64)> {
    let all = TAG_FLOWS
        .iter()
        .flat_map(|f| Flow::from((f.of)(t)).values().map(|(what, v)| (format!("{}.{what}", f.name), v)));
    all.chain([("waiting_bytes".to_owned(), t.memory.waiting)]).collect()
}

/// All devices.
pub(super) fn of_all(all: &[Told]) -> String {
    let devices: Vec<String> = all.iter().map(of_one).collect();
    format!("{{\"version\":{VERSION},\"devices\":[{}]}}", devices.join(","))
}

/// One device.
pub(super) fn of_one(told: &Told) -> String {
    let pool = |p: &PoolStats| {
        let name = p.name.as_deref().map_or("null".to_owned(), quoted);
        format!("{{\"pool\":{},\"name\":{name},\"memory\":{}}}", p.id.0, memory_object(&p.memory))
    };
    let tag = |(name, s): &(&str, DeviceTagStats)| {
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
