//! The report as text: in one line, in full, and advice. All of it is written without the heap: the host may have no memory
//! left either.

use super::{
    Few, OOM_TOP, OomHolder, OomMissing, OomReason, OomReport, OomStep, OomTried, OomWait, WaitsFor,
};
use crate::base::inline::{s, said};
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
    pub fn label(&self) -> impl Display + '_ {
        said(|f| match (self.pool, self.stream) {
            _ if self.said => f.write_str(&self.name),
            (Some(pool), _) => Pool(&self.name, pool).fmt(f),
            (None, _) if self.tag != 0 && self.name.is_empty() => write!(f, "tag {}", self.tag),
            (None, _) if self.tag != 0 => write!(f, "tag '{}'", self.name),
            (None, Some(0)) => f.write_str("the default stream"),
            (None, Some(s)) => write!(f, "stream {s:#x}"),
            (None, None) => f.write_str("blocks without a stream"),
        })
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
    pub fn pool_label(&self) -> impl Display + '_ {
        said(|f| match self.pool_said {
            true => f.write_str(&self.pool_name),
            false => Pool(&self.pool_name, self.pool).fmt(f),
        })
    }

    /// The pool and the device, for a line of text.
    fn place_label(&self) -> impl Display + '_ {
        said(|f| match &*self.device_name {
            "" => self.pool_label().fmt(f),
            device => write!(f, "{} of {device}", self.pool_label()),
        })
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
    /// Where the pool's own limit stops a request, nobody but the pool itself counts.
    fn biggest(&self) -> Option<&OomHolder> {
        let room = self.pool_limit.saturating_sub(self.pool_reserved);
        if self.pool_limit != 0 && room < self.rounded {
            let own = self.pools.iter().find(|h| h.pool == Some(self.pool));
            if own.is_none() || self.pools.len() > 1 {
                return own;
            }
        }
        let several = |h: &&Few<OomHolder, OOM_TOP>| h.len() > 1;
        let untagged = self.tags.iter().fold(self.live, |rest, t| rest.saturating_sub(t.live));
        let tagged = Some(&self.tags).filter(|t| t.first().is_some_and(|t| t.live >= untagged));
        let kinds = [Some(&self.pools).filter(several), tagged, Some(&self.streams).filter(several)];
        kinds.into_iter().flatten().next().unwrap_or(&self.pools).first().filter(|h| h.sum() > 0)
    }

    fn because(&self) -> impl Display + '_ {
        said(|f| {
            let Self { pool_limit, device_limit, .. } = *self;
            match self.reason {
                OomReason::Bookkeeping => f.write_str("the library cannot keep track of more"),
                OomReason::LargerThanDevice => {
                    write!(f, "the device has no more than {}", Size(self.device_most))
                }
                OomReason::AbovePoolLimit => write!(f, "the pool's limit is {}", Size(pool_limit)),
                OomReason::AboveDeviceLimit => write!(f, "the device's limit is {}", Size(device_limit)),
                OomReason::PoolLimit => {
                    let (now, limit) = (Size(self.pool_reserved), Size(pool_limit));
                    write!(f, "the pool's limit is reached: {now} of {limit} reserved")
                }
                OomReason::DeviceLimit => f.write_str("the device's limit is reached"),
                OomReason::Waiting => f.write_str("what is missing was freed, but waits"),
                OomReason::Fragmented => f.write_str(match self.captured {
                    true => "the stream is captured, and can wait for no other",
                    false => "enough is free, but not in one piece that it may have",
                }),
                OomReason::DeviceRefused => match &*self.device_said {
                    "" => f.write_str("the device refused"),
                    said => write!(f, "the device refused ({said})"),
                },
                OomReason::Exhausted => f.write_str("the device is full"),
            }
        })
    }

    /// Whether memory is full of blocks of which neither a tag nor a pool says what they are, and nobody keeps a history.
    fn is_nameless(&self) -> bool {
        use OomReason::{DeviceLimit, DeviceRefused, Exhausted, PoolLimit};
        let full = matches!(self.reason, DeviceLimit | DeviceRefused | Exhausted | PoolLimit);
        full && self.live > 0 && self.tags.is_empty() && self.pools.len() <= 1 && !self.watched
    }

    /// The report in one line, with the reason and the biggest holder.
    pub fn line(&self) -> String {
        let mut out = String::new();
        let _ = self.write_line(&mut out); // to a string: cannot fail
        out
    }

    /// The same, where it is wanted.
    pub(crate) fn write_line(&self, out: &mut dyn Write) -> fmt::Result {
        write!(out, "no room for {} in {}: {}", Size(self.requested), self.place_label(), self.because())?;
        if self.missing.contains(OomMissing::ALL) {
            return Ok(());
        }
        if self.reason != OomReason::DeviceRefused && !self.device_said.is_empty() {
            write!(out, "; the device says: {}", self.device_said)?;
        }
        write!(out, "; {} of {} reserved", Size(self.reserved), Size(self.most()))?;
        if let Some(w) = self.waits.first().filter(|w| w.on != WaitsFor::Nothing) {
            write!(out, "; {} waits for {}", Size(w.bytes), w.on)?;
        }
        if let Some(h) = self.biggest() {
            write!(out, "; biggest holder: {}, {}", h.label(), Size(h.sum()))?;
        }
        if self.is_nameless() {
            write!(out, "; to see who asked for it, run with {HISTORY}")?;
        }
        Ok(())
    }

    /// The full report in several lines, with advice at the end.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let _ = self.write_text(&mut out); // to a string: cannot fail
        out
    }

    /// The same, where it is wanted.
    pub(crate) fn write_text(&self, out: &mut dyn Write) -> fmt::Result {
        writeln!(out, "out of memory: {}", self.because())?;
        write!(
            out,
            "asked for: {} byte{} ({}; {} after rounding), {}, ",
            self.requested,
            s(self.requested),
            Size(self.requested),
            self.rounded,
            self.place_label()
        )?;
        match self.stream {
            None => writeln!(out, "without a stream")?,
            Some(s) => writeln!(out, "{}", WaitsFor::Stream(s))?,
        }
        if !self.missing.contains(OomMissing::ALL) {
            self.write_memory(out)?;
        }
        if !self.tried.is_empty() {
            writeln!(out, "tried:")?;
            for t in self.tried.iter() {
                t.write(out)?;
            }
        }
        self.each_advice(|line| writeln!(out, "advice: {line}"))
    }

    fn write_memory(&self, out: &mut dyn Write) -> fmt::Result {
        let limit = |bytes: u64| {
            said(move |f| match bytes {
                0 => f.write_str("no limit"),
                n => write!(f, "limit {}", Size(n)),
            })
        };
        let reserved = (Size(self.reserved), Size(self.device_most), limit(self.device_limit));
        writeln!(out, "reserved: {} of the device's {} ({})", reserved.0, reserved.1, reserved.2)?;
        writeln!(out, "  by the pool: {} ({})", Size(self.pool_reserved), limit(self.pool_limit))?;
        let largest = if self.missing.contains(OomMissing::LARGEST) { "at least " } else { "" };
        let could = |what: &'static str, bytes: u64| {
            said(move |f| write!(f, " (the largest {what}: {largest}{})", Size(bytes)))
        };
        if self.live > 0 {
            writeln!(out, "  in live blocks: {}", Size(self.live))?;
        }
        if self.waiting > 0 {
            let (n, waiting) = (self.waiting_streams, Size(self.waiting));
            writeln!(out, "  freed, and waits: {waiting} (for {n} stream{})", s(n.into()))?;
        }
        if self.free_here > 0 {
            let more = could("that it could give", self.largest_here);
            writeln!(out, "  free here: {}{more}", Size(self.free_here))?;
        }
        if self.free_other_streams > 0 {
            writeln!(out, "  free on other streams of the pool: {}", Size(self.free_other_streams))?;
        }
        if self.free_other_pools > 0 {
            let more = could("elsewhere", self.largest_elsewhere);
            writeln!(out, "  free in other pools: {}{more}", Size(self.free_other_pools))?;
        }
        if self.moving > 0 {
            writeln!(out, "  in the hands of other threads: {}", Size(self.moving))?;
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
        for w in self.waits.iter() {
            w.write(out)?;
        }
        if self.missing.contains(OomMissing::WAITS) {
            writeln!(out, "what the other freed blocks wait for was not looked at: there are too many")?;
        }
        for (kind, holders) in [("pools", &self.pools), ("streams", &self.streams), ("tags", &self.tags)] {
            if !holders.is_empty() {
                writeln!(out, "biggest {kind}:")?;
            }
            for h in holders.iter() {
                writeln!(out, "  {}: {} in {} block{}", h.label(), Size(h.live), h.blocks, s(h.blocks))?;
            }
        }
        Ok(())
    }

    /// What the user could do about it: one to three lines.
    pub fn advice(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let _ = self.each_advice(|line| {
            lines.push(line.to_string());
            Ok(())
        });
        lines
    }

    fn each_advice(&self, mut each: impl FnMut(&dyn Display) -> fmt::Result) -> fmt::Result {
        each(&said(|f| self.first_advice(f)))?;
        if matches!(self.reason, OomReason::PoolLimit | OomReason::DeviceLimit | OomReason::Exhausted)
            && self.waiting >= self.rounded / 2
            && self.waiting > 0
        {
            each(&said(|f| self.about_waits(f)))?;
        } else if matches!(self.reason, OomReason::DeviceLimit | OomReason::Exhausted)
            && let Some(h) = self.biggest()
        {
            each(&format_args!("the biggest holder is {}: {}", h.label(), Size(h.sum())))?;
        }
        if self.is_nameless() {
            each(&format_args!("to see who asked for it, tag what is allocated, or run with {HISTORY}"))?;
        }
        Ok(())
    }

    /// Whether the device has enough for the request, but an option leaves it to others.
    fn is_left_to_others(&self) -> bool {
        self.headroom > 0
            && !self.missing.contains(OomMissing::DEVICE_FREE)
            && (self.rounded..self.rounded.saturating_add(self.headroom)).contains(&self.device_free)
    }

    fn about_waits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.exported > self.waiting / 2 {
            let bytes = Size(self.exported);
            return write!(f, "{bytes} is freed but used by others who imported it: let them close it");
        }
        let on = self.waits.first().map_or(WaitsFor::Nothing, |w| w.on);
        write!(
            f,
            "{} was freed and waits for {on}: synchronise it, or end uses earlier (millpond_record_end)",
            Size(self.waiting)
        )
    }

    fn first_advice(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fixed = match self.reason {
            OomReason::Bookkeeping => "use fewer blocks, streams or pools at a time",
            OomReason::LargerThanDevice => "no freeing helps: split the request, or spread it over devices",
            OomReason::AbovePoolLimit => {
                let bytes = Size(self.rounded);
                return write!(f, "raise the pool's limit to {bytes} at least (millpond_pool_set_limit)");
            }
            OomReason::AboveDeviceLimit | OomReason::DeviceLimit => {
                "raise the device's limit (millpond_device_set_limit, or the option per_process_memory_fraction)"
            }
            OomReason::PoolLimit => {
                "raise the pool's limit (millpond_pool_set_limit), or free blocks of this pool"
            }
            OomReason::Waiting => return self.about_waits(f),
            OomReason::Fragmented => return self.about_pieces(f),
            OomReason::DeviceRefused if self.is_left_to_others() => {
                let bytes = Size(self.headroom);
                return write!(
                    f,
                    "headroom_mb leaves {bytes} of the device to others: lower it, or free blocks"
                );
            }
            OomReason::DeviceRefused if self.could_pool && self.device_free >= self.rounded => {
                "the device has it free, but gave nothing: backend:native would pool its memory, and put blocks \
                 together from pieces where the device maps"
            }
            OomReason::DeviceRefused => {
                "other users of the device hold its memory, or its driver refuses: see what it says"
            }
            OomReason::Exhausted if !self.pooled => {
                "free blocks, or make the work smaller: nothing is kept that could be given back"
            }
            OomReason::Exhausted if self.sleeping > 0 => "free blocks; pools that sleep hold nothing already",
            OomReason::Exhausted => {
                "free blocks, make the work smaller, or let a pool sleep (millpond_pool_sleep)"
            }
        };
        f.write_str(fixed)
    }

    /// What to do about enough memory that is free in pieces.
    fn about_pieces(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PLAIN: &str = "this device cannot map scattered memory into one range: allocate large blocks first, or \
                             free what lies between";
        let there = self.whole_granules >= self.rounded;
        let fixed = match self.max_split {
            _ if self.captured => {
                "allocate before the capture begins, or give the captured pool memory of its own"
            }
            _ if self.could_map => {
                "the device can map, which makes one range of free pieces: set expandable_segments:True"
            }
            _ if self.contiguous && there => {
                "the pool is contiguous, with each of its blocks in one allocation: free what lies between, or use \
                 another pool"
            }
            _ if self.no_scatter && there => {
                "scatter:off keeps each block in granules that lie side by side: set scatter:on"
            }
            _ if self.free_other_pools > self.free_in_pool() => {
                let bytes = Size(self.free_other_pools);
                return write!(
                    f,
                    "{bytes} is free in other pools, in too small pieces or kept for graphs: fewer pools would \
                     share it"
                );
            }
            _ if self.maps => {
                "what is free lies in granules that are partly used: free the small blocks between"
            }
            0 => {
                return write!(
                    f,
                    "{PLAIN}; or set max_split_size_mb, so that freed blocks of this size are not cut for small \
                     requests"
                );
            }
            n if n > self.rounded => {
                let now = Size(n);
                return write!(
                    f,
                    "{PLAIN}; or lower max_split_size_mb (now {now}), so that freed blocks of this size are not cut \
                     for small requests"
                );
            }
            _ => PLAIN,
        };
        f.write_str(fixed)
    }
}

impl OomTried {
    fn write(&self, out: &mut dyn Write) -> fmt::Result {
        write!(out, "  {}: ", self.step.label())?;
        match (self.helped, self.bytes) {
            (0, 0) => writeln!(out, "nothing"),
            (n, 0) => writeln!(out, "helped {n} time{}", s(n.into())),
            (_, bytes) => writeln!(out, "{}", Size(bytes)),
        }
    }
}

impl OomWait {
    fn write(&self, out: &mut dyn Write) -> fmt::Result {
        let n = self.blocks;
        writeln!(out, "  {} in {n} freed block{} waits for {}", Size(self.bytes), s(n), self.on)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn blocks_without_a_name_can_be_told_by_a_history() {
        let holder = |name: &str| OomHolder {
            pool: Some(PoolId::DEFAULT),
            name: name.into(),
            live: 9,
            ..OomHolder::default()
        };
        let one = |h: OomHolder| std::iter::once(h).collect::<Few<_, OOM_TOP>>();
        let full = OomReport {
            reason: OomReason::Exhausted,
            live: 9,
            pools: one(holder("")),
            ..OomReport::default()
        };
        let hint = "MILLPOND_HISTORY=run.history MILLPOND_HISTORY_FRAMES=24, then: millpond view --symbols run.history";
        let told = |r: &OomReport| (r.line().ends_with(hint), r.advice().iter().any(|a| a.ends_with(hint)));
        assert_eq!(told(&full), (true, true), "{}", full.line());
        let several = OomReport { pools: ["a", "b"].into_iter().map(holder).collect(), ..full.clone() };
        let tagged = OomReport { tags: one(OomHolder { tag: 1, ..holder("w") }), ..full.clone() };
        let watched = OomReport { watched: true, ..full.clone() };
        let larger = OomReport { reason: OomReason::LargerThanDevice, ..full };
        let of = |live| OomHolder { tag: 1, name: "w".into(), live, ..OomHolder::default() };
        let named =
            |live: &[u64]| OomReport { tags: live.iter().map(|&n| of(n)).collect(), ..several.clone() };
        let named = |live: &[u64]| OomReport { pools: one(holder("")), ..named(live) }.line();
        assert!(named(&[4, 3]).ends_with("biggest holder: tag 'w', 4 B"), "{}", named(&[4, 3]));
        assert!(named(&[4]).ends_with("biggest holder: the default pool, 9 B"), "{}", named(&[4]));
        for r in [several, tagged, watched, larger] {
            assert_eq!(told(&r), (false, false), "{}", r.line());
        }
    }

    #[test]
    fn one_of_something_is_no_plural() {
        let said = |n: u64| {
            let holder = OomHolder { pool: Some(PoolId(3)), live: n, blocks: n, ..OomHolder::default() };
            let wait = OomWait { on: WaitsFor::Nothing, bytes: n, blocks: n };
            let tried = OomTried { tries: 9, helped: n as u32, ..OomTried::default() };
            OomReport {
                requested: n,
                waiting: n,
                waiting_streams: n as u32,
                pools: std::iter::once(holder).collect(),
                waits: std::iter::once(wait).collect(),
                tried: std::iter::once(tried).collect(),
                ..OomReport::default()
            }
            .text()
        };
        for part in
            ["1 byte (", "(for 1 stream)", "in 1 block\n", "helped 1 time\n", "in 1 freed block waits"]
        {
            assert!(said(1).contains(part), "{part}: {}", said(1));
        }
        for part in ["2 bytes (", "(for 2 streams)", "in 2 blocks\n", "helped 2 times\n", "in 2 freed blocks"]
        {
            assert!(said(2).contains(part), "{part}: {}", said(2));
        }
    }

    #[test]
    fn sizes_are_said_as_people_say_them() {
        let said = |n: u64| Size(n).to_string();
        assert_eq!([said(0), said(1023), said(1024), said(1536)], ["0 B", "1023 B", "1.0 KiB", "1.5 KiB"]);
        assert_eq!([said((1 << 31) - 1), said(1 << 31), said(u64::MAX)], ["1.9 GiB", "2.0 GiB", "15.9 EiB"]);
    }
}
