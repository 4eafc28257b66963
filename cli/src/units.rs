//! Numbers for people: byte sizes in and out, grouped counts, times.

use anyhow::{Result, bail};

const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

/// `1.85 GiB`, `512 B`: three or four significant digits in the largest unit that fits.
pub(crate) fn bytes(n: u64) -> String {
    for (unit, shift) in UNITS {
        if shift > 0 && n >= 1 << shift {
            let value = n as f64 / (1u64 << shift) as f64;
            let digits = if value < 100.0 { 2 } else { 1 };
            return format!("{value:.digits$} {unit}");
        }
    }
    format!("{n} B")
}

/// `1 234 567`, with narrow gaps of one space each three digits.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(c);
    }
    out
}

/// `1 block`, `1 234 blocks`.
pub(crate) fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// `1 block is`, `1 234 blocks are`.
pub(crate) fn are(n: u64, noun: &str) -> String {
    format!("{} {}", counted(n, noun), if n == 1 { "is" } else { "are" })
}

/// `85 ns`, `1.25 µs`, `3.40 ms`, `2.10 s`.
pub(crate) fn nanoseconds(ns: f64) -> String {
    match ns {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{:.2} µs", n / 1e3),
        n if n < 1e9 => format!("{:.2} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

/// Reads a size: `4294967296`, `4096MiB`, `4GiB`, `4g`, `1.5 GiB`. `K`, `M`, `G`, `T` are powers of 1024.
pub(crate) fn parse_bytes(text: &str) -> Result<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        other => bail!("`{other}` is not a unit; use KiB, MiB, GiB or TiB, as in 4GiB"),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return match whole.checked_mul(1 << shift) {
            Some(n) => Ok(n),
            None => bail!("`{text}` is more than 2^64 bytes"),
        };
    }
    match number.parse::<f64>().map(|value| value * (1u64 << shift) as f64) {
        Ok(bytes) if bytes < u64::MAX as f64 => Ok(bytes as u64),
        Ok(_) => bail!("`{text}` is more than 2^64 bytes"),
        _ => bail!("`{text}` is not a size; write it as in 4GiB or 1500MiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        for (n, wants) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1_981_984_222, "1.85 GiB"),
            (512 << 20, "512.0 MiB"),
            (3 << 40, "3.00 TiB"),
        ] {
            assert_eq!(bytes(n), wants);
        }
    }

    #[test]
    fn counts_are_grouped() {
        for (n, wants) in
            [(0, "0"), (999, "999"), (1000, "1 000"), (192_460, "192 460"), (1_234_567, "1 234 567")]
        {
            assert_eq!(count(n), wants);
        }
    }

    #[test]
    fn times_change_unit() {
        for (n, wants) in [(85.4, "85 ns"), (1250.0, "1.25 µs"), (3.4e6, "3.40 ms"), (2.1e9, "2.10 s")] {
            assert_eq!(nanoseconds(n), wants);
        }
    }

    #[test]
    fn sizes_are_read() {
        for (text, wants) in [
            ("0", 0),
            ("4096", 4096),
            ("4GiB", 4 << 30),
            ("4g", 4 << 30),
            (" 12 MiB ", 12 << 20),
            ("1.5K", 1536),
            ("2TB", 2 << 40),
        ] {
            assert_eq!(parse_bytes(text).unwrap(), wants, "{text}");
        }
        for bad in ["", "GiB", "1.2.3", "-5", "7 parsecs", "99999999999T", "1e9"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
        for large in ["18446744073709551616", "16777216T", "99999999999999999999999GiB"] {
            let e = parse_bytes(large).unwrap_err().to_string();
            assert!(e.contains(&format!("`{large}` is more than 2^64")), "{e}");
        }
    }
}
