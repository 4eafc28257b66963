//! The statistics of a device, or of all that are open, as text: JSON (`json.rs`), and the text format of Prometheus
//! (`prometheus.rs`).

use crate::base::error::{Code, Result};
use crate::base::room::check_room;
use crate::core::PoolId;
use crate::runtime::device::state::DeviceState;
use crate::runtime::device::table;
use crate::runtime::device::tags::DeviceTagStats;
use told::{PoolStats, Told};

mod json;
mod prometheus;
mod told;

/// What a text looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsFormat {
    /// One JSON object, without line breaks.
    Json,
    /// The text format 0.0.4 of Prometheus.
    Prometheus,
}

impl DeviceState {
    /// The statistics of the device, of its pools, tags and pinned memory, and how long its calls took if they were timed,
    /// as text; `name` says what a pool is called. The pools are read one after the other, after the device. A pool that
    /// ends meanwhile is left out. With `streams`, what each stream has, too
    /// ([`MemoryStatistics::by_stream`](crate::runtime::MemoryStatistics::by_stream)).
    pub fn stats_text(
        &self,
        format: StatsFormat,
        streams: bool,
        name: impl Fn(PoolId) -> Option<String>,
    ) -> Result<String> {
        let told = told_of(self, streams, name)?;
        Ok(match format {
            StatsFormat::Json => json::of_one(&told),
            StatsFormat::Prometheus => prometheus::page(&[told]),
        })
    }
}

/// \[B\] of the host's memory for all that is put together of what is told of one pool, and of one tag or stream.
const LARGE_TEXT: usize = 64 << 10;
const SMALL_TEXT: usize = 8 << 10;

fn told_of(d: &DeviceState, streams: bool, name: impl Fn(PoolId) -> Option<String>) -> Result<Told> {
    let (pools, tags) = (d.memory().pools().all(), DeviceTagStats::all(d)?);
    let streams = streams.then(|| d.memory().statistics().by_stream(None)).transpose()?;
    let latencies = d.memory().statistics().latencies();
    // So that the text can be put together.
    let large = 4 + pools.len() + 4 * latencies.len();
    let small = tags.len() + streams.as_ref().map_or(0, Vec::len);
    check_room(large * LARGE_TEXT + small * SMALL_TEXT)?;
    let pool =
        |id| Some(PoolStats { id, name: name(id), memory: d.memory().statistics().full(Some(id)).ok()? });
    Ok(Told {
        device: format!("{}:{}", d.type_name(), d.ordinal()),
        memory: d.memory().statistics().full(None)?,
        host: d.host_memory().full_stats()?,
        pools: pools.into_iter().filter_map(pool).collect(),
        tags: tags.into_iter().map(|t| (t.tag.name(), t)).collect(),
        streams,
        latencies,
    })
}

/// The same of all devices that are open, one after the other, in one text; `name` says what a pool of a device is called. A
/// device that ends meanwhile is left out. `OutOfMemory` if the host has no memory for the text.
pub fn stats_text_of_all(
    format: StatsFormat,
    streams: bool,
    name: impl Fn(&DeviceState, PoolId) -> Option<String>,
) -> Result<String> {
    let mut all = Vec::new();
    for d in table::open_devices() {
        match told_of(d, streams, |pool| name(d, pool)) {
            Ok(told) => all.push(told),
            Err(e) if e.code() == Code::OutOfMemory => return Err(e),
            Err(_) => {}
        }
    }
    Ok(match format {
        StatsFormat::Json => json::of_all(&all),
        StatsFormat::Prometheus => prometheus::page(&all),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::histogram::Durations;
    use crate::core::MemoryStats;
    use crate::runtime::watch::latency::Latency;

    #[test]
    fn names_are_quoted() {
        let pools = vec![PoolStats {
            id: PoolId(7),
            name: Some("a\"b\\c\nd".into()),
            memory: MemoryStats { limit_bytes: 5, ..MemoryStats::default() },
        }];
        let told = Told { device: "host:0".into(), pools, ..Told::default() };
        let text = prometheus::page(std::slice::from_ref(&told));
        assert!(text.contains("millpond_limit_bytes{device=\"host:0\"} +Inf\n"));
        assert!(text.contains(
            "millpond_limit_bytes{device=\"host:0\",pool=\"7\",pool_name=\"a\\\"b\\\\c\\nd\"} 5\n"
        ));
        let text = json::of_one(&told);
        assert!(text.contains(r#""pool":7,"name":"a\"b\\c\u000ad","memory":{"#), "{text}");
    }

    /// Each family has its head once, and the samples of all devices stand below it.
    #[test]
    fn a_page_of_several_devices_has_each_head_once() {
        let host = |n| Told {
            device: format!("host:{n}"),
            tags: vec![("kv", DeviceTagStats::of(crate::runtime::Tag::new("kv").unwrap()))],
            latencies: vec![(Latency::Alloc, Durations::default())],
            ..Told::default()
        };
        let page = prometheus::page(&[host(0), host(1)]);
        let heads: Vec<&str> = page.lines().filter(|l| l.starts_with("# TYPE")).collect();
        let mut once = heads.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), heads.len());
        let mut of = "";
        for line in page.lines() {
            match line.strip_prefix("# TYPE ") {
                Some(head) => of = head.split(' ').next().unwrap(),
                None if line.starts_with("# HELP") => {}
                None => assert!(line.starts_with(of), "{line} below {of}"),
            }
        }
        let samples = |n| page.lines().filter(|l| l.contains(&format!("device=\"host:{n}\""))).count();
        assert!(samples(0) > 100 && samples(0) == samples(1), "{} {}", samples(0), samples(1));
        let both = json::of_all(&[host(0), host(1)]);
        assert!(
            both.starts_with("{\"version\":1,\"devices\":[{\"version\":1,\"device\":\"host:0\","),
            "{both}"
        );
    }
}
