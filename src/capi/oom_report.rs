//! The report of a request that found no memory, between the library's own form and that of C.

use crate::base::inline::Text;
use crate::capi::handles;
use crate::capi::oom::*;
use crate::capi::pool::{stream_id, to_ptr};
use crate::runtime::{
    self, DeviceState, OOM_STEPS, OOM_TOP, OomHolder, OomMissing, OomReason, OomReport, OomStep, OomTried,
    OomWait, PoolId, WaitsFor,
};
use std::ffi::c_char;
use std::fmt::{Display, Write};
use std::ptr::null_mut;

/// As much of a text as fits, with its NUL. `N` is at most [`LONGEST`] and 1.
fn chars<const N: usize>(text: impl Display) -> [c_char; N] {
    let text = Text::<LONGEST>::of(text);
    let mut out = [0 as c_char; N];
    let end = (0..N.min(text.len() + 1)).rev().find(|&n| text.is_char_boundary(n)).unwrap_or(0);
    for (to, from) in out.iter_mut().zip(text.as_bytes().iter().take(end)) {
        *to = *from as c_char;
    }
    out
}

/// [B] of the longest text.
const LONGEST: usize = MILLPOND_OOM_WORDS - 1;

/// The text up to its NUL, or to the end.
fn text<const N: usize>(chars: &[c_char]) -> Text<N> {
    let mut bytes = [0; LONGEST + 1];
    let given = chars.iter().map(|&c| c as u8).take_while(|&c| c != 0);
    let count = bytes.iter_mut().zip(given).map(|(to, from)| *to = from).count();
    let mut out = Text::new();
    for part in bytes[..count].utf8_chunks() {
        let broken = if part.invalid().is_empty() { "" } else { "\u{fffd}" };
        let _ = write!(out, "{}{broken}", part.valid()); // what does not fit is left out
    }
    out
}

/// The first of them, and how many there are.
fn array<T, U, const N: usize>(all: &[T], none: U, to: impl Fn(&T) -> U) -> ([U; N], u32)
where
    U: Copy,
{
    let mut out = [none; N];
    for (slot, from) in out.iter_mut().zip(all) {
        *slot = to(from);
    }
    (out, all.len().min(N) as u32)
}

fn holder(device: Option<&DeviceState>, h: &OomHolder) -> millpond_oom_holder {
    let pool = device.zip(h.pool).and_then(|(d, p)| handles::of_live_pool(d, p));
    millpond_oom_holder {
        label: chars(h.label()),
        pool: pool.unwrap_or(null_mut()),
        stream: to_ptr(h.stream.unwrap_or(0)).cast(),
        live_bytes: h.live,
        block_count: h.blocks,
        waiting_bytes: h.waiting,
        free_bytes: h.free,
    }
}

fn wait(w: &OomWait) -> millpond_oom_wait {
    let (waits_for, stream) = match w.on {
        WaitsFor::Stream(s) => (MILLPOND_OOM_WAITS_FOR_STREAM, s),
        WaitsFor::AllStreams => (MILLPOND_OOM_WAITS_FOR_ALL_STREAMS, 0),
        WaitsFor::Ended => (MILLPOND_OOM_WAITS_FOR_ENDED, 0),
        WaitsFor::Exported => (MILLPOND_OOM_WAITS_FOR_OTHERS, 0),
        WaitsFor::Nothing => (MILLPOND_OOM_WAITS_FOR_NOTHING, 0),
    };
    let block_count = w.blocks.min(u32::MAX.into()) as u32;
    millpond_oom_wait { waits_for, block_count, stream: to_ptr(stream).cast(), bytes: w.bytes }
}

fn tried(t: &OomTried) -> millpond_oom_tried {
    let (step, try_count, helped_count) = (t.step as u32, t.tries, t.helped);
    millpond_oom_tried { step, try_count, helped_count, reserved: 0, bytes: t.bytes }
}

fn flags(r: &OomReport) -> u32 {
    let all = [
        (r.maps, MILLPOND_OOM_MAPS),
        (r.could_map, MILLPOND_OOM_COULD_MAP),
        (r.pooled, MILLPOND_OOM_POOLED),
        (r.watched, MILLPOND_OOM_WATCHED),
        (r.captured, MILLPOND_OOM_CAPTURED),
        (r.stream.is_some(), MILLPOND_OOM_HAS_STREAM),
        (r.no_scatter, MILLPOND_OOM_NO_SCATTER),
        (r.contiguous, MILLPOND_OOM_CONTIGUOUS),
        (r.could_pool, MILLPOND_OOM_COULD_POOL),
    ];
    all.into_iter().filter(|f| f.0).map(|f| f.1).sum()
}

impl From<&OomReport> for millpond_oom_report {
    fn from(r: &OomReport) -> Self {
        let device = r.device.and_then(runtime::by_id).map(|d| &**d);
        let no_holder = holder(None, &OomHolder::default());
        let of = |all: &[OomHolder]| array(all, no_holder, |h| holder(device, h));
        let ((pools, pool_count), (streams, stream_count), (tags, tag_count)) =
            (of(&r.pools), of(&r.streams), of(&r.tags));
        let (waits, wait_count) = array(&r.waits, wait(&OomWait::default()), wait);
        let none = OomTried { step: OomStep::PoolIdle, tries: 0, helped: 0, bytes: 0 };
        let (tried, tried_count) = array(&r.tried, tried(&none), tried);
        millpond_oom_report {
            struct_size: size_of::<millpond_oom_report>(),
            reason: r.reason as u32,
            missing: r.missing.bits(),
            flags: flags(r),
            waiting_stream_count: r.waiting_streams,
            device: device.map_or(null_mut(), handles::of_device),
            pool: device.and_then(|d| handles::of_live_pool(d, r.pool)).unwrap_or(null_mut()),
            pool_label: chars(r.pool_label()),
            stream: to_ptr(r.stream.unwrap_or(0)).cast(),
            requested_bytes: r.requested,
            rounded_bytes: r.rounded,
            pool_limit_bytes: r.pool_limit,
            device_limit_bytes: r.device_limit,
            device_most_bytes: r.device_most,
            pool_reserved_bytes: r.pool_reserved,
            reserved_bytes: r.reserved,
            live_bytes: r.live,
            waiting_bytes: r.waiting,
            exported_bytes: r.exported,
            free_here_bytes: r.free_here,
            free_other_streams_bytes: r.free_other_streams,
            free_other_pools_bytes: r.free_other_pools,
            moving_bytes: r.moving,
            sleeping_bytes: r.sleeping,
            unreserved_bytes: r.unreserved,
            device_free_bytes: r.device_free,
            largest_here_bytes: r.largest_here,
            largest_elsewhere_bytes: r.largest_elsewhere,
            device_said: chars(r.device_said),
            pool_count,
            stream_count,
            tag_count,
            wait_count,
            tried_count,
            reserved: 0,
            pools,
            streams,
            tags,
            waits,
            tried,
            whole_granule_bytes: r.whole_granules,
            headroom_bytes: r.headroom,
            max_split_bytes: r.max_split,
        }
    }
}

impl From<&millpond_oom_report> for OomReport {
    fn from(c: &millpond_oom_report) -> Self {
        let some = |n: u32, most: usize| (n as usize).min(most);
        let holders = |all: &[millpond_oom_holder], n: u32, is_pool: bool| {
            let from = |h: &millpond_oom_holder| OomHolder {
                name: text(&h.label),
                said: true,
                pool: is_pool.then(PoolId::default),
                live: h.live_bytes,
                blocks: h.block_count,
                waiting: h.waiting_bytes,
                free: h.free_bytes,
                ..OomHolder::default()
            };
            all[..some(n, all.len())].iter().map(from).collect()
        };
        let wait = |w: &millpond_oom_wait| OomWait {
            on: match w.waits_for {
                MILLPOND_OOM_WAITS_FOR_STREAM => WaitsFor::Stream(stream_id(w.stream)),
                MILLPOND_OOM_WAITS_FOR_ALL_STREAMS => WaitsFor::AllStreams,
                MILLPOND_OOM_WAITS_FOR_ENDED => WaitsFor::Ended,
                MILLPOND_OOM_WAITS_FOR_OTHERS => WaitsFor::Exported,
                _ => WaitsFor::Nothing,
            },
            bytes: w.bytes,
            blocks: w.block_count.into(),
        };
        let tried = |t: &millpond_oom_tried| {
            let step = OomStep::ALL.get(t.step as usize).copied()?;
            Some(OomTried { step, tries: t.try_count, helped: t.helped_count, bytes: t.bytes })
        };
        let has = |flag: u32| c.flags & flag != 0;
        OomReport {
            reason: OomReason::from_number(c.reason).unwrap_or_default(),
            missing: OomMissing::from_bits_truncate(c.missing),
            pool_name: text(&c.pool_label),
            pool_said: true,
            stream: has(MILLPOND_OOM_HAS_STREAM).then(|| stream_id(c.stream)),
            requested: c.requested_bytes,
            rounded: c.rounded_bytes,
            pool_limit: c.pool_limit_bytes,
            device_limit: c.device_limit_bytes,
            device_most: c.device_most_bytes,
            pool_reserved: c.pool_reserved_bytes,
            reserved: c.reserved_bytes,
            live: c.live_bytes,
            waiting: c.waiting_bytes,
            exported: c.exported_bytes,
            waiting_streams: c.waiting_stream_count,
            free_here: c.free_here_bytes,
            free_other_streams: c.free_other_streams_bytes,
            free_other_pools: c.free_other_pools_bytes,
            moving: c.moving_bytes,
            sleeping: c.sleeping_bytes,
            unreserved: c.unreserved_bytes,
            device_free: c.device_free_bytes,
            largest_here: c.largest_here_bytes,
            largest_elsewhere: c.largest_elsewhere_bytes,
            maps: has(MILLPOND_OOM_MAPS),
            could_map: has(MILLPOND_OOM_COULD_MAP),
            pooled: has(MILLPOND_OOM_POOLED),
            watched: has(MILLPOND_OOM_WATCHED),
            captured: has(MILLPOND_OOM_CAPTURED),
            no_scatter: has(MILLPOND_OOM_NO_SCATTER),
            contiguous: has(MILLPOND_OOM_CONTIGUOUS),
            could_pool: has(MILLPOND_OOM_COULD_POOL),
            whole_granules: c.whole_granule_bytes,
            headroom: c.headroom_bytes,
            max_split: c.max_split_bytes,
            device_said: text(&c.device_said),
            pools: holders(&c.pools, c.pool_count, true),
            streams: holders(&c.streams, c.stream_count, false),
            tags: holders(&c.tags, c.tag_count, false),
            waits: c.waits[..some(c.wait_count, OOM_TOP)].iter().map(wait).collect(),
            tried: c.tried[..some(c.tried_count, OOM_STEPS)].iter().filter_map(tried).collect(),
            ..OomReport::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters_and_end() {
        let cut: [c_char; 4] = chars("abé");
        let string = |chars: &[c_char]| text::<99>(chars).to_string();
        assert_eq!(string(&cut), "ab");
        assert_eq!(cut[3], 0);
        assert_eq!(string(&chars::<8>("pool 'x'")), "pool 'x");
        assert_eq!(string(&[b'a' as c_char, 0xff_u8 as c_char, b'b' as c_char, 0, 1]), "a\u{fffd}b");
    }
}
