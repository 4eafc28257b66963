//! From text to values: `key:value,key:value`, where a value may be a list in brackets. Blanks mean nothing.

use super::Patch;
use super::keys::{Key, Kind, nearest_name};
use super::nearest::nearest;
use super::value::{Backend, Divisions, ExportHandle, INTERVALS, MOST_PARTS, Value};
use crate::base::error::{Code, Error, Result};

/// [threads] the maximum, as in PyTorch.
const MOST_THREADS: u64 = 128;
/// The highest number that a NUMA node may have; what is not there is as if none were named.
const MOST_NODES: u64 = 1023;

/// How unknown keys are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// They are errors.
    Exact,
    /// They are ignored: the text was written for another program.
    Foreign,
}

/// A part of the text: the column of its first character, from 1, and the part without blanks around it.
#[derive(Clone, Copy)]
struct Part<'a> {
    column: usize,
    text: &'a str,
}

impl<'a> Part<'a> {
    /// Without blanks around it.
    fn trim(self) -> Part<'a> {
        let lead = self.text.len() - self.text.trim_start().len();
        let column = self.column + self.text[..lead].chars().count();
        Part { column, text: self.text.trim() }
    }

    /// Splits it at the first character outside brackets for which `is` is true.
    fn cut(self, mut is: impl FnMut(char) -> bool) -> (Part<'a>, Option<Part<'a>>) {
        let mut depth = 0u32;
        for (n, (at, c)) in self.text.char_indices().enumerate() {
            match c {
                '[' => depth += 1,
                ']' => depth = depth.saturating_sub(1),
                _ if depth == 0 && is(c) => {
                    let after = Part { column: self.column + n + 1, text: &self.text[at + c.len_utf8()..] };
                    return (Part { text: &self.text[..at], ..self }, Some(after));
                }
                _ => {}
            }
        }
        (self, None)
    }

    /// An error about this part.
    fn wrong<T>(self, source: &str, why: impl AsRef<str>) -> Result<T> {
        let m = format!("{source}, column {}: {}", self.column, why.as_ref());
        Err(Error::new(Code::InvalidArgument, m))
    }
}

/// The values in a text. `source` names where it comes from in errors.
pub(crate) fn parse(text: &str, source: &str, strictness: Strictness) -> Result<Patch> {
    let mut patch = Patch::new();
    let mut rest = Some(Part { column: 1, text });
    while let Some(part) = rest {
        let (entry, after) = part.cut(|c| c == ',');
        rest = after;
        let entry = entry.trim();
        if entry.text.is_empty() {
            // PyTorch allows a comma at the end.
            if rest.is_none() {
                break;
            }
            return entry.wrong(source, "a key is missing between two commas");
        }
        let (key, value) = entry.cut(|c| c == ':');
        let key = key.trim();
        let Some(known) = Key::named(key.text) else {
            if strictness == Strictness::Foreign {
                continue;
            }
            if let Some((name, value)) = key.text.split_once('=')
                && Key::named(name.trim()).is_some()
            {
                let m = format!("a key and its value have a colon between them; write {name}:{value}");
                return key.wrong(source, m);
            }
            let near = nearest_name(key.text);
            return key.wrong(source, format!("there is no option {:?}; did you mean {near:?}?", key.text));
        };
        let info = known.info();
        let Some(value) = value.map(Part::trim).filter(|v| !v.text.is_empty()) else {
            let m = format!("{} has no value; as in {0}:{}", info.name, info.default);
            return Part { column: entry.column + entry.text.chars().count(), ..entry }.wrong(source, m);
        };
        patch.push((known, value_of(known, value, source)?));
    }
    Ok(patch)
}

fn value_of(key: Key, value: Part<'_>, source: &str) -> Result<Value> {
    let info = key.info();
    let text = value.text;
    // Every wrong value says what the key wants and the nearest value that would do.
    let wrong = |want: &str, near: &dyn std::fmt::Display| {
        value.wrong(source, format!("{} is {text:?}: want {want}; did you mean {near}?", info.name))
    };
    match info.kind {
        Kind::Backend => match Backend::NAMES.iter().find(|n| n.0 == text) {
            Some(n) => Ok(Value::Backend(n.1)),
            None => {
                let near = nearest(text, Backend::NAMES.iter().map(|n| n.0));
                wrong("native, cudaMallocAsync or none", &near)
            }
        },
        Kind::ExportHandle => match ExportHandle::NAMES.iter().find(|n| n.0 == text) {
            Some(n) => Ok(Value::ExportHandle(n.1)),
            None => {
                let near = nearest(text, ExportHandle::NAMES.iter().map(|n| n.0));
                wrong("posix_fd, fabric or auto", &near)
            }
        },
        Kind::Switch if text.eq_ignore_ascii_case("true") => Ok(Value::Switch(true)),
        Kind::Switch if text.eq_ignore_ascii_case("false") => Ok(Value::Switch(false)),
        Kind::Switch => {
            let likely_on = matches!(text.to_ascii_lowercase().as_str(), "1" | "yes" | "on" | "y" | "t");
            let near = if likely_on { "True" } else { nearest(text, ["False", "True"].into_iter()) };
            wrong("True or False", &near)
        }
        Kind::Mib { word: true, .. } if text == "unlimited" => Ok(Value::Mib(None)),
        Kind::Mib { least, word } => match mib(text) {
            Some(n) if n >= least => Ok(Value::Mib(Some(n))),
            n => {
                let or = if word { " or unlimited" } else { "" };
                let near = match n.or_else(|| leading(text)) {
                    None if word => "unlimited".to_owned(),
                    n => n.unwrap_or(least).max(least).to_string(),
                };
                wrong(&format!("whole MiB from {least}{or}"), &near)
            }
        },
        Kind::OnOff if text.eq_ignore_ascii_case("on") => Ok(Value::OnOff(true)),
        Kind::OnOff if text.eq_ignore_ascii_case("off") => Ok(Value::OnOff(false)),
        Kind::OnOff => {
            let likely_off = matches!(text.to_ascii_lowercase().as_str(), "0" | "no" | "false" | "n" | "f");
            wrong("on or off", &if likely_off { "off" } else { nearest(text, ["on", "off"].into_iter()) })
        }
        Kind::Segment { .. } if text == "default" => Ok(Value::Segment(None)),
        Kind::Segment { least } => match mib(text) {
            Some(n) if n >= least => Ok(Value::Segment(Some(n))),
            n => {
                let want = format!("whole MiB from {least} or default");
                match n.or_else(|| leading(text)) {
                    None => wrong(&want, &"default"),
                    Some(n) => wrong(&want, &n.max(least)),
                }
            }
        },
        Kind::Fraction { open } => {
            let most = if open { 0.999 } else { 1.0 };
            let want = if open { "a number from 0 (off) to less than 1" } else { "a number from 0 to 1" };
            match text.parse::<f64>() {
                Ok(x) if (0.0..=1.0).contains(&x) && !(open && x >= 1.0) => Ok(Value::Fraction(x.abs())),
                // From 2 on it looks like a percentage; below, like a little too much.
                Ok(x) if (2.0..=100.0).contains(&x) => wrong(want, &(x / 100.0).min(most)),
                Ok(x) if x > 0.0 => wrong(want, &most),
                Ok(_) => wrong(want, &0),
                Err(_) => match text.strip_suffix('%').and_then(|t| t.trim().parse::<f64>().ok()) {
                    Some(x) if (0.0..=100.0).contains(&x) => wrong(want, &(x / 100.0).min(most)),
                    _ => wrong(want, &info.default),
                },
            }
        }
        Kind::Node if text == "default" => Ok(Value::Node(None)),
        Kind::Node => match mib(text) {
            Some(n) if n <= MOST_NODES => Ok(Value::Node(Some(n as u32))),
            Some(_) => wrong("the number of a NUMA node or default", &MOST_NODES),
            None => wrong("the number of a NUMA node or default", &"default"),
        },
        Kind::Threads => match mib(text) {
            Some(n) if n.is_power_of_two() && n <= MOST_THREADS => Ok(Value::Count(n as u32)),
            n => {
                let near = near_power(n.or_else(|| leading(text)).unwrap_or(1), MOST_THREADS);
                wrong("a power of two up to 128", &near)
            }
        },
        Kind::Divisions => divisions(value, source).map(Value::Divisions),
    }
}

/// A whole number; one that does not fit becomes the largest.
fn mib(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// The number that a text starts with, as in `20MB` or `1.5`.
fn leading(text: &str) -> Option<u64> {
    mib(&text[..text.bytes().take_while(u8::is_ascii_digit).count()])
}

/// The power of two nearest to `n`, at most `most`.
fn near_power(n: u64, most: u64) -> u64 {
    let n = n.clamp(1, most);
    let below = 1 << n.ilog2();
    if n - below > below / 2 { (below * 2).min(most) } else { below }
}

/// One number of parts for all sizes, or a list `[256:1,512:2,>:8]`.
fn divisions(value: Part<'_>, source: &str) -> Result<Divisions> {
    let mut d = Divisions::NONE;
    let Some(inner) = value.text.strip_prefix('[') else {
        d.set(0, INTERVALS, parts(value, source)?);
        return Ok(d);
    };
    let Some(inner) = inner.strip_suffix(']') else {
        let end = Part { column: value.column + value.text.chars().count(), ..value };
        return end.wrong(source, "the list of roundup_power2_divisions has no end; did you mean \"]\"?");
    };
    let mut rest = Some(Part { column: value.column + 1, text: inner });
    let (mut first, mut last) = (true, 0);
    while let Some(part) = rest {
        let (entry, after) = part.cut(|c| c == ',');
        rest = after;
        let (size, number) = entry.cut(|c| c == ':');
        let size = size.trim();
        let Some(number) = number.map(Part::trim) else {
            return size
                .wrong(source, format!("{:?} is not a pair of MiB and a number, as in 512:2", size.text));
        };
        let number = parts(number, source)?;
        if size.text == ">" {
            d.set((last + 1).min(INTERVALS), INTERVALS, number);
            continue;
        }
        let Some(mib) = mib(size.text).filter(|n| n.is_power_of_two()) else {
            let near = leading(size.text).map_or(">".to_owned(), |n| near_power(n, 1 << 15).to_string());
            let m = format!(
                "{:?} does not start an interval: want MiB, a power of two, or >; did you mean {near}?",
                size.text
            );
            return size.wrong(source, m);
        };
        let i = mib.ilog2().min(INTERVALS - 1);
        // The first entry of a list applies to all smaller sizes too.
        d.set(if first { 0 } else { i }, i + 1, number);
        (first, last) = (false, i);
    }
    Ok(d)
}

/// A number of parts.
fn parts(value: Part<'_>, source: &str) -> Result<u64> {
    match mib(value.text) {
        Some(n) if n == 0 || n.is_power_of_two() && n <= MOST_PARTS => Ok(n),
        n => {
            let near = near_power(n.or_else(|| leading(value.text)).unwrap_or(1), MOST_PARTS);
            let m = format!(
                "a power of two is divided into {:?} parts: want 0, or a power of two up to {MOST_PARTS}; did you mean \
                 {near}?",
                value.text
            );
            value.wrong(source, m)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Value {
        parse(text, "test", Strictness::Exact).unwrap()[0].1
    }

    /// The message of a text that is wrong.
    fn error(text: &str) -> String {
        let e = parse(text, "T", Strictness::Exact).unwrap_err();
        assert_eq!(e.code(), Code::InvalidArgument);
        e.message().to_owned()
    }

    #[test]
    fn right_texts() {
        assert_eq!(parse("", "test", Strictness::Exact).unwrap(), []);
        assert_eq!(parse(" ", "test", Strictness::Exact).unwrap(), []);
        let two = parse(" max_split_size_mb : 200 ,expandable_segments:False, ", "test", Strictness::Exact);
        let want =
            [(Key::MaxSplitSizeMb, Value::Mib(Some(200))), (Key::ExpandableSegments, Value::Switch(false))];
        assert_eq!(two.unwrap(), want);
        assert_eq!(one("backend:cudaMallocAsync"), Value::Backend(Backend::Driver));
        assert_eq!(one("backend:none"), Value::Backend(Backend::None));
        assert_eq!(one("export_handle:auto"), Value::ExportHandle(ExportHandle::Auto));
        assert_eq!(one("max_split_size_mb:99999999999999999999999"), Value::Mib(Some(u64::MAX)));
        assert_eq!(one("max_split_size_mb:unlimited"), Value::Mib(None));
        assert_eq!(one("throw_on_cudamalloc_oom:true"), Value::Switch(true));
        assert_eq!(one("garbage_collection_threshold:0.8"), Value::Fraction(0.8));
        assert_eq!(one("garbage_collection_threshold:-0.0"), Value::Fraction(0.0));
        assert_eq!(
            one("garbage_collection_threshold:0.9999999999999999"),
            Value::Fraction(1.0f64.next_down())
        );
        assert_eq!(one("garbage_collection_threshold:1e-99999999999"), Value::Fraction(0.0));
        assert_eq!(one("per_process_memory_fraction:1"), Value::Fraction(1.0));
        assert_eq!(one("large_segment_size_mb:default"), Value::Segment(None));
        assert_eq!(one("pinned_use_hip_host_register:True"), Value::Switch(true));
    }

    #[test]
    fn divisions_follow_pytorch() {
        let log2 = |text: &str| match one(&format!("roundup_power2_divisions:{text}")) {
            Value::Divisions(d) => (0..16).map(|i| d.log2(i)).collect::<Vec<_>>(),
            v => panic!("{v}"),
        };
        assert_eq!(log2("4"), [2; 16]);
        assert_eq!(log2("0"), [0; 16]);
        // From 256 MiB on: 1, 2, 4, then 8.
        let mut want = [0; 16];
        want[9] = 1;
        want[10] = 2;
        want[11..].fill(3);
        assert_eq!(log2("[256:1,512:2,1024:4,>:8]"), want);
        // What a list leaves out between two entries is not rounded; the first speaks for what is smaller.
        let mut want = [0; 16];
        want[..=6].fill(3);
        want[8] = 2;
        assert_eq!(log2("[ 64:8 , 256:4 ]"), want);
    }

    #[test]
    fn wrong_texts_name_the_column_and_the_nearest() {
        for (text, want) in [
            (
                "max_splt_size_mb:20",
                "T, column 1: there is no option \"max_splt_size_mb\"; did you mean \"max_split_size_mb\"?",
            ),
            (
                "max_split_size_mb=20",
                "T, column 1: a key and its value have a colon between them; write max_split_size_mb:20",
            ),
            (
                "backend:native,  Backend:none",
                "T, column 18: there is no option \"Backend\"; did you mean \"backend\"?",
            ),
            (
                "backend:natvie",
                "T, column 9: backend is \"natvie\": want native, cudaMallocAsync or none; did you mean native?",
            ),
            (
                "export_handle:fabrik",
                "T, column 15: export_handle is \"fabrik\": want posix_fd, fabric or auto; did you mean fabric?",
            ),
            (
                "expandable_segments:yes",
                "T, column 21: expandable_segments is \"yes\": want True or False; did you mean True?",
            ),
            (
                "expandable_segments:Flase",
                "T, column 21: expandable_segments is \"Flase\": want True or False; did you mean False?",
            ),
            (
                "max_split_size_mb:0",
                "T, column 19: max_split_size_mb is \"0\": want whole MiB from 1 or unlimited; did you mean 1?",
            ),
            (
                "max_split_size_mb:20MB",
                "T, column 19: max_split_size_mb is \"20MB\": want whole MiB from 1 or unlimited; did you mean 20?",
            ),
            (
                "max_split_size_mb:-1",
                "T, column 19: max_split_size_mb is \"-1\": want whole MiB from 1 or unlimited; did you mean unlimited?",
            ),
            (
                "large_segment_size_mb:0",
                "T, column 23: large_segment_size_mb is \"0\": want whole MiB from 1 or default; did you mean 1?",
            ),
            (
                "garbage_collection_threshold:1",
                "T, column 30: garbage_collection_threshold is \"1\": want a number from 0 (off) to less than 1; did you mean 0.999?",
            ),
            (
                "per_process_memory_fraction:1.01",
                "T, column 29: per_process_memory_fraction is \"1.01\": want a number from 0 to 1; did you mean 1?",
            ),
            (
                "garbage_collection_threshold:80",
                "T, column 30: garbage_collection_threshold is \"80\": want a number from 0 (off) to less than 1; did you mean 0.8?",
            ),
            (
                "per_process_memory_fraction:nan",
                "T, column 29: per_process_memory_fraction is \"nan\": want a number from 0 to 1; did you mean 0?",
            ),
            (
                "per_process_memory_fraction:50%",
                "T, column 29: per_process_memory_fraction is \"50%\": want a number from 0 to 1; did you mean 0.5?",
            ),
            (
                "pinned_num_register_threads:6",
                "T, column 29: pinned_num_register_threads is \"6\": want a power of two up to 128; did you mean 4?",
            ),
            (
                "pinned_num_register_threads:300",
                "T, column 29: pinned_num_register_threads is \"300\": want a power of two up to 128; did you mean 128?",
            ),
            (
                "max_split_size_mb",
                "T, column 18: max_split_size_mb has no value; as in max_split_size_mb:unlimited",
            ),
            ("backend:none,,backend:none", "T, column 14: a key is missing between two commas"),
        ] {
            assert_eq!(error(text), want);
        }
        for (text, column, near) in [
            ("roundup_power2_divisions:3", 26, "did you mean 2?"),
            ("roundup_power2_divisions:[256:1,300:2]", 33, "did you mean 256?"),
            ("roundup_power2_divisions:[256:1,512:7]", 37, "did you mean 8?"),
            ("roundup_power2_divisions:[256]", 27, "as in 512:2"),
            ("roundup_power2_divisions:[256:1", 32, "did you mean \"]\"?"),
            ("backend:none,roundup_power2_divisions:[,]", 40, "as in 512:2"),
        ] {
            let e = error(text);
            assert!(e.starts_with(&format!("T, column {column}: ")) && e.ends_with(near), "{text}: {e}");
        }
        // Columns count characters.
        assert!(error("é:1").contains("column 1"));
        assert!(error("backend:none,é:1").contains("column 14"));
    }

    #[test]
    fn foreign_keys_are_passed_over_only_where_they_may_be() {
        let text = "expandable_segments_reserve_by_class:[a:0.5,b:40G],nonsense:1,backend:none";
        assert_eq!(parse(text, "T", Strictness::Foreign).unwrap().len(), 1);
        assert!(error(text).contains("expandable_segments"));
        assert!(parse("nonsense:1,backend:nine", "T", Strictness::Foreign).is_err());
    }
}
