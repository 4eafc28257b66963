//! The values of options, and how they are written.

use std::fmt;

/// Which allocator serves a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// The pond of this library.
    Native,
    /// The memory pool of the device's own driver.
    Driver,
    /// Each request goes to the device and each free back to it.
    None,
}

impl Backend {
    /// Names with their meaning; the first of each is the one that is shown.
    pub(super) const NAMES: [(&'static str, Backend); 6] = [
        ("native", Backend::Native),
        ("cudaMallocAsync", Backend::Driver),
        ("none", Backend::None),
        ("hipMallocAsync", Backend::Driver),
        ("pass-through", Backend::None),
        ("passthrough", Backend::None),
    ];
}

/// How blocks of a device that maps are exported to other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportHandle {
    /// By file descriptors.
    PosixFd,
    /// By fabric handles only.
    Fabric,
    /// By fabric handles if possible, otherwise by file descriptors.
    Auto,
}

impl ExportHandle {
    /// Names with their meaning.
    pub(super) const NAMES: [(&'static str, ExportHandle); 3] =
        [("posix_fd", ExportHandle::PosixFd), ("fabric", ExportHandle::Fabric), ("auto", ExportHandle::Auto)];
}

/// The number of parts into which each power of two is divided when sizes are rounded up: its log2, four bits for each
/// of 16 intervals. Interval 0 is all sizes below 2 MiB, interval i the sizes from 2^i MiB to twice that, interval 15
/// all from 32 GiB on. 0 (one part, or none): sizes are not rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Divisions(pub u64);

/// The number of intervals of [`Divisions`].
pub(super) const INTERVALS: u32 = 16;
/// The maximum number of parts of an interval.
pub(super) const MOST_PARTS: u64 = 1 << 15;

impl Divisions {
    /// Nothing is rounded.
    pub(crate) const NONE: Divisions = Divisions(0);

    /// log2 of the parts of an interval.
    pub(crate) fn log2(self, interval: u32) -> u32 {
        (self.0 >> (interval.min(INTERVALS - 1) * 4)) as u32 & 15
    }

    /// Sets the parts (0, or a power of two up to `MOST_PARTS`) of the intervals `from..to`.
    pub(super) fn set(&mut self, from: u32, to: u32, parts: u64) {
        let log2 = u64::from(parts.max(1).ilog2());
        for i in from..to {
            self.0 = self.0 & !(15 << (i * 4)) | log2 << (i * 4);
        }
    }
}

impl fmt::Display for Divisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.log2(0);
        if (0..INTERVALS).all(|i| self.log2(i) == first) {
            return write!(f, "{}", 1 << first);
        }
        // Every interval up to the last change, then the rest: parsing it gives the same value.
        let rest = self.log2(INTERVALS - 1);
        let last = (0..INTERVALS).rev().find(|&i| self.log2(i) != rest).unwrap_or(0);
        f.write_str("[")?;
        for i in 0..=last {
            write!(f, "{}:{},", 1u64 << i, 1 << self.log2(i))?;
        }
        write!(f, ">:{}]", 1 << rest)
    }
}

/// The value of one option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    /// An allocator.
    Backend(Backend),
    /// On or off.
    Switch(bool),
    /// The same, as `on` and `off`.
    OnOff(bool),
    /// [MiB]; `None` is the word that the key has for it.
    Mib(Option<u64>),
    /// A part of something, 0 to 1.
    Fraction(f64),
    /// A number of threads.
    Count(u32),
    /// How sizes are rounded.
    Divisions(Divisions),
    /// [MiB] or the word for the device's own size.
    Segment(Option<u64>),
    /// How blocks are exported.
    ExportHandle(ExportHandle),
    /// A NUMA node, or the word for the device's own.
    Node(Option<u32>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Backend(b) => {
                let name = Backend::NAMES.iter().find(|n| n.1 == *b).map_or("", |n| n.0);
                f.write_str(name)
            }
            Value::ExportHandle(h) => {
                let name = ExportHandle::NAMES.iter().find(|n| n.1 == *h).map_or("", |n| n.0);
                f.write_str(name)
            }
            Value::Switch(on) => f.write_str(if *on { "True" } else { "False" }),
            Value::OnOff(on) => f.write_str(if *on { "on" } else { "off" }),
            Value::Mib(Some(n)) | Value::Segment(Some(n)) => write!(f, "{n}"),
            Value::Mib(None) => f.write_str("unlimited"),
            Value::Segment(None) | Value::Node(None) => f.write_str("default"),
            Value::Node(Some(n)) => write!(f, "{n}"),
            Value::Fraction(x) => write!(f, "{x}"),
            Value::Count(n) => write!(f, "{n}"),
            Value::Divisions(d) => write!(f, "{d}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_are_written_as_briefly_as_can_be() {
        let mut d = Divisions::NONE;
        assert_eq!(d.to_string(), "1");
        d.set(0, INTERVALS, 4);
        assert_eq!(d.to_string(), "4");
        d.set(1, 3, 8);
        assert_eq!(d.to_string(), "[1:4,2:8,4:8,>:4]");
        assert_eq!((d.log2(0), d.log2(2), d.log2(15), d.log2(99)), (2, 3, 2, 2));
    }
}
