//! The report as text: in one line, in full, and advice.

use super::{OomHolder, OomMissing, OomReason, OomReport, OomStep, OomTried, OomWait, WaitsFor};
use crate::core::types::PoolId;
use std::fmt::{self, Display, Write};

/// How a program is run so that each block can be told by its callers.
const HISTORY: &str =
    "MILLPOND_HISTORY=run.history MILLPOND_HISTORY_FRAMES=24, then: millpond view --symbols run.history";

/// A size in the largest unit that fits.
struct Size(u64);

impl Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let unit = (self.0.max(1).ilog2() / 10) as usize;
        if unit == 0 {
            return write!(f, "{} B", self.0);
        }
        // One decimal, rounded down so that it never shows more than there is.
        let tenths = (u128::from(self.0) * 10) >> (10 * unit);
        write!(f, "{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
    }
}

/// A pool, by its name if it has one, else by its id.
struct Pool<'a>(&'a str, PoolId);

impl Display for Pool<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            ("", PoolId::DEFAULT) => f.write_str("the default pool"),
            ("", PoolId(n)) => write!(f, "pool {n}"),
            (name, _) => write!(f, "pool '{name}'"),
        }
    }
}

impl Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitsFor::Stream(0) => f.write_str("the default stream"),
            WaitsFor::Stream(s) => write!(f, "stream {s:#x}"),
            WaitsFor::AllStreams => f.write_str("all streams"),
            WaitsFor::Ended => f.write_str("streams that have ended"),
            WaitsFor::Exported => f.write_str("others who use it beside this process"),
            WaitsFor::Nothing => f.write_str("nothing known"),
        }
    }
}

impl OomHolder {
    fn sum(&self) -> u64 {
        self.live.saturating_add(self.waiting)
    }

    /// What it is, for a line of text.
    pub fn label(&self) -> String {
        if !self.said.is_empty() {
            return self.said.clone();
        }
        match (self.pool, self.stream) {
            (Some(pool), _) => Pool(&self.name, pool).to_string(),
            (None, _) if self.tag != 0 && self.name.is_empty() => format!("tag {}", self.tag),
            (None, _) if self.tag != 0 => format!("tag '{}'", self.name),
            (None, Some(0)) => "the default stream".to_owned(),
            (None, Some(s)) => format!("stream {s:#x}"),
            (None, None) => "blocks without a stream".to_owned(),
        }
    }
}

impl OomStep {
    /// What it is, for a line of text.
    pub fn label(self) -> &'static str {
        match self {
            OomStep::PoolIdle => "idle memory of other streams of the pool",
            OomStep::Collect => "unused memory back to the device, for garbage_collection_threshold",
            OomStep::Device => "more from the device",
            OomStep::Whole => "freed blocks kept whole by max_split_size_mb",
            OomStep::PoolBusy => "memory of busy streams of the pool, with a wait",
            OomStep::OthersIdle => "idle memory of other pools",
            OomStep::Ready => "freed blocks that wait for nothing any more",
            OomStep::Waiting => "a wait for freed blocks",
            OomStep::OthersBusy => "memory of busy streams of other pools, with a wait",
            OomStep::Trim => "idle segments back to the device",
            OomStep::Callbacks => "the program's out-of-memory callbacks",
        }
    }
}

impl OomReport {
    /// The request's pool, for a line of text.
    pub fn pool_label(&self) -> String {
        match self.pool_said.as_str() {
            "" => Pool(&self.pool_name, self.pool).to_string(),
            said => said.to_owned(),
        }
    }

    /// The pool and the device, for a line of text.
    fn place_label(&self) -> String {
        match self.device_name.as_str() {
            "" => self.pool_label(),
            device => format!("{} of {device}", self.pool_label()),
        }
    }

    /// [B] free in the request's pool.
    fn free_in_pool(&self) -> u64 {
        self.free_here.saturating_add(self.free_other_streams)
    }

    /// [B] that may be taken from the device at most: its limit or its size.
    fn most(&self) -> u64 {
        if self.device_limit == 0 { self.device_most } else { self.device_limit.min(self.device_most) }
    }

    /// The biggest holder to name: a pool if there are several; else the biggest tag, if it has more than what is not known
    /// to have one; else a stream if there are several; else the only pool.
    fn biggest(&self) -> Option<&OomHolder> {
        let several = |h: &&Vec<OomHolder>| h.len() > 1;
        let untagged = self.tags.iter().fold(self.live, |rest, t| rest.saturating_sub(t.live));
        let tagged = Some(&self.tags).filter(|t| t.first().is_some_and(|t| t.live >= untagged));
        let kinds = [Some(&self.pools).filter(several), tagged, Some(&self.streams).filter(several)];
        kinds.into_iter().flatten().next().unwrap_or(&self.pools).first().filter(|h| h.sum() > 0)
    }

    fn because(&self) -> String {
        let Self { pool_limit, device_limit, .. } = *self;
        match self.reason {
            OomReason::Bookkeeping => "the library cannot keep track of more".to_owned(),
            OomReason::LargerThanDevice => format!("the device has no more than {}", Size(self.device_most)),
            OomReason::AbovePoolLimit => format!("the pool's limit is {}", Size(pool_limit)),
            OomReason::AboveDeviceLimit => format!("the device's limit is {}", Size(device_limit)),
            OomReason::PoolLimit => {
                let (now, limit) = (Size(self.pool_reserved), Size(pool_limit));
                format!("the pool's limit is reached: {now} of {limit} reserved")
            }
            OomReason::DeviceLimit => "the device's limit is reached".to_owned(),
            OomReason::Waiting => "what is missing was freed, but waits".to_owned(),
            OomReason::Fragmented => match self.captured {
                true => "the stream is captured, and can wait for no other".to_owned(),
                false => "enough is free, but not in one piece that it may have".to_owned(),
            },
            OomReason::DeviceRefused => match self.device_said.as_str() {
                "" => "the device refused".to_owned(),
                said => format!("the device refused ({said})"),
            },
            OomReason::Exhausted => "the device is full".to_owned(),
        }
    }

    /// Whether memory is full of blocks of which neither a tag nor a pool says what they are, and nobody keeps a history.
    fn is_nameless(&self) -> bool {
        use OomReason::{DeviceLimit, DeviceRefused, Exhausted, PoolLimit};
        let full = matches!(self.reason, DeviceLimit | DeviceRefused | Exhausted | PoolLimit);
        full && self.live > 0 && self.tags.is_empty() && self.pools.len() <= 1 && !self.watched
    }

    /// The report in one line, with the reason and the biggest holder.
    pub fn line(&self) -> String {
        let mut out =
            format!("no room for {} in {}: {}", Size(self.requested), self.place_label(), self.because());
        let mut add = |part: fmt::Arguments<'_>| {
            let _ = write!(out, "; {part}"); // to a string: cannot fail
        };
        if self.missing.contains(OomMissing::ALL) {
            return out;
        }
        if self.reason != OomReason::DeviceRefused && !self.device_said.is_empty() {
            add(format_args!("the device says: {}", self.device_said));
        }
        add(format_args!("{} of {} reserved", Size(self.reserved), Size(self.most())));
        if let Some(w) = self.waits.first().filter(|w| w.on != WaitsFor::Nothing) {
            add(format_args!("{} waits for {}", Size(w.bytes), w.on));
        }
        if let Some(h) = self.biggest() {
            add(format_args!("biggest holder: {}, {}", h.label(), Size(h.sum())));
        }
        if self.is_nameless() {
            add(format_args!("to see who asked for it, run with {HISTORY}"));
        }
        out
    }

    /// The full report in several lines, with advice at the end.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let _ = self.write(&mut out); // to a string: cannot fail
        out
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let stream = match self.stream {
            None => "without a stream".to_owned(),
            Some(s) => WaitsFor::Stream(s).to_string(),
        };
        writeln!(out, "out of memory: {}", self.because())?;
        writeln!(
            out,
            "asked for: {} bytes ({}; {} after rounding), {}, {stream}",
            self.requested,
            Size(self.requested),
            self.rounded,
            self.place_label()
        )?;
        if !self.missing.contains(OomMissing::ALL) {
            self.write_memory(out)?;
        }
        if !self.tried.is_empty() {
            writeln!(out, "tried:")?;
            for t in &self.tried {
                t.write(out)?;
            }
        }
        for line in self.advice() {
            writeln!(out, "advice: {line}")?;
        }
        Ok(())
    }

    fn write_memory(&self, out: &mut String) -> fmt::Result {
        let limit =
            |bytes: u64| if bytes == 0 { "no limit".to_owned() } else { format!("limit {}", Size(bytes)) };
        let reserved = (Size(self.reserved), Size(self.device_most), limit(self.device_limit));
        writeln!(out, "reserved: {} of the device's {} ({})", reserved.0, reserved.1, reserved.2)?;
        writeln!(out, "  by the pool: {} ({})", Size(self.pool_reserved), limit(self.pool_limit))?;
        let largest = if self.missing.contains(OomMissing::LARGEST) { "at least " } else { "" };
        let rows = [
            ("in live blocks", self.live, String::new()),
            ("freed, and waits", self.waiting, format!("for {} streams", self.waiting_streams)),
            (
                "free here",
                self.free_here,
                format!("the largest that it could give: {largest}{}", Size(self.largest_here)),
            ),
            ("free on other streams of the pool", self.free_other_streams, String::new()),
            (
                "free in other pools",
                self.free_other_pools,
                format!("the largest elsewhere: {largest}{}", Size(self.largest_elsewhere)),
            ),
            ("in the hands of other threads", self.moving, String::new()),
        ];
        for (what, bytes, more) in rows {
            match (bytes, more.as_str()) {
                (0, _) => {}
                (_, "") => writeln!(out, "  {what}: {}", Size(bytes))?,
                _ => writeln!(out, "  {what}: {} ({more})", Size(bytes))?,
            }
        }
        writeln!(out, "not reserved: {} within the limits", Size(self.unreserved))?;
        if self.missing.contains(OomMissing::DEVICE_FREE) {
            writeln!(out, "  the device could not be asked what it has free")?;
        } else {
            writeln!(out, "  free on the device, as it says: {}", Size(self.device_free))?;
        }
        if self.sleeping > 0 {
            writeln!(out, "  of pools that sleep: {}", Size(self.sleeping))?;
        }
        for w in &self.waits {
            w.write(out)?;
        }
        if self.missing.contains(OomMissing::WAITS) {
            writeln!(out, "what the other freed blocks wait for was not looked at: there are too many")?;
        }
        for (kind, holders) in [("pools", &self.pools), ("streams", &self.streams), ("tags", &self.tags)] {
            if !holders.is_empty() {
                writeln!(out, "biggest {kind}:")?;
            }
            for h in holders {
                writeln!(out, "  {}: {} in {} blocks", h.label(), Size(h.live), h.blocks)?;
            }
        }
        Ok(())
    }

    /// What the user could do about it: one to three lines.
    pub fn advice(&self) -> Vec<String> {
        let mut lines = vec![self.first_advice()];
        let needed = self.rounded;
        if matches!(self.reason, OomReason::PoolLimit | OomReason::DeviceLimit | OomReason::Exhausted)
            && self.waiting >= needed / 2
            && self.waiting > 0
        {
            lines.push(self.about_waits());
        } else if matches!(self.reason, OomReason::DeviceLimit | OomReason::Exhausted)
            && let Some(h) = self.biggest()
        {
            lines.push(format!("the biggest holder is {}: {}", h.label(), Size(h.sum())));
        }
        if self.is_nameless() {
            lines.push(format!("to see who asked for it, tag what is allocated, or run with {HISTORY}"));
        }
        lines
    }

    fn about_waits(&self) -> String {
        if self.exported > self.waiting / 2 {
            let bytes = Size(self.exported);
            return format!("{bytes} is freed but used by others who imported it: let them close it");
        }
        let on = self.waits.first().map_or(WaitsFor::Nothing, |w| w.on);
        format!(
            "{} was freed and waits for {on}: synchronise it, or end uses earlier (millpond_record_end)",
            Size(self.waiting)
        )
    }

    fn first_advice(&self) -> String {
        match self.reason {
            OomReason::Bookkeeping => "use fewer blocks, streams or pools at a time".to_owned(),
            OomReason::LargerThanDevice => {
                "no freeing helps: split the request, or spread it over devices".to_owned()
            }
            OomReason::AbovePoolLimit => {
                format!("raise the pool's limit to {} at least (millpond_pool_set_limit)", Size(self.rounded))
            }
            OomReason::AboveDeviceLimit | OomReason::DeviceLimit => {
                "raise the device's limit (millpond_device_set_limit, or the option \
                 per_process_memory_fraction)"
                    .to_owned()
            }
            OomReason::PoolLimit => {
                "raise the pool's limit (millpond_pool_set_limit), or free blocks of this pool".to_owned()
            }
            OomReason::Waiting => self.about_waits(),
            OomReason::Fragmented if self.captured => {
                "allocate before the capture begins, or give the captured pool memory of its own".to_owned()
            }
            OomReason::Fragmented if self.could_map => {
                "the device can map, which makes one range of free pieces: set expandable_segments:True"
                    .to_owned()
            }
            OomReason::Fragmented if self.free_other_pools > self.free_in_pool() => format!(
                "{} is free in other pools, in too small pieces or kept for graphs: fewer pools would share it",
                Size(self.free_other_pools)
            ),
            OomReason::Fragmented if self.maps => {
                "what is free lies in granules that are partly used: free the small blocks between".to_owned()
            }
            OomReason::Fragmented => {
                "this device cannot map scattered memory into one range: allocate large \
                                      blocks first, or free what lies between"
                    .to_owned()
            }
            OomReason::DeviceRefused => {
                "other users of the device hold its memory, or its driver refuses: see what it says"
                    .to_owned()
            }
            OomReason::Exhausted if self.sleeping > 0 => {
                "free blocks; pools that sleep hold nothing already".to_owned()
            }
            OomReason::Exhausted => {
                "free blocks, make the work smaller, or let a pool sleep (millpond_pool_sleep)".to_owned()
            }
        }
    }
}

impl OomTried {
    fn write(&self, out: &mut String) -> fmt::Result {
        write!(out, "  {}: ", self.step.label())?;
        match (self.helped, self.bytes) {
            (0, 0) => writeln!(out, "nothing"),
            (n, 0) => writeln!(out, "helped {n} times"),
            (_, bytes) => writeln!(out, "{}", Size(bytes)),
        }
    }
}

impl OomWait {
    fn write(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "  {} in {} freed blocks waits for {}", Size(self.bytes), self.blocks, self.on)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn blocks_without_a_name_can_be_told_by_a_history() {
        let holder = |name: &str| OomHolder {
            pool: Some(PoolId::DEFAULT),
            name: name.to_owned(),
            live: 9,
            ..OomHolder::default()
        };
        let full = OomReport {
            reason: OomReason::Exhausted,
            live: 9,
            pools: vec![holder("")],
            ..OomReport::default()
        };
        let hint = "MILLPOND_HISTORY=run.history MILLPOND_HISTORY_FRAMES=24, then: millpond view --symbols run.history";
        let told = |r: &OomReport| (r.line().ends_with(hint), r.advice().iter().any(|a| a.ends_with(hint)));
        assert_eq!(told(&full), (true, true), "{}", full.line());
        let several = OomReport { pools: vec![holder("a"), holder("b")], ..full.clone() };
        let tagged = OomReport { tags: vec![OomHolder { tag: 1, ..holder("w") }], ..full.clone() };
        let watched = OomReport { watched: true, ..full.clone() };
        let larger = OomReport { reason: OomReason::LargerThanDevice, ..full };
        let of = |live| OomHolder { tag: 1, name: "w".to_owned(), live, ..OomHolder::default() };
        let named =
            |live: &[u64]| OomReport { tags: live.iter().map(|&n| of(n)).collect(), ..several.clone() };
        let named = |live: &[u64]| OomReport { pools: vec![holder("")], ..named(live) }.line();
        assert!(named(&[4, 3]).ends_with("biggest holder: tag 'w', 4 B"), "{}", named(&[4, 3]));
        assert!(named(&[4]).ends_with("biggest holder: the default pool, 9 B"), "{}", named(&[4]));
        for r in [several, tagged, watched, larger] {
            assert_eq!(told(&r), (false, false), "{}", r.line());
        }
    }

    #[test]
    fn sizes_are_said_as_people_say_them() {
        let said = |n: u64| Size(n).to_string();
        assert_eq!([said(0), said(1023), said(1024), said(1536)], ["0 B", "1023 B", "1.0 KiB", "1.5 KiB"]);
        assert_eq!([said((1 << 31) - 1), said(1 << 31), said(u64::MAX)], ["1.9 GiB", "2.0 GiB", "15.9 EiB"]);
    }
}
