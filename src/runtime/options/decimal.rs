//! Fractions as text. The standard library reads and writes every `f64` in the shortest way, with 30 KB of code and tables;
//! options have a few digits.

use std::fmt;

/// Ten to the power of `n`: exact up to 22, infinite where an `f64` ends.
fn ten_to(n: i32) -> f64 {
    (0..n).fold(1.0, |x, _| x * 10.0)
}

/// Reads a number as `f64::from_str` does. Up to 15 digits and a power of ten up to 22, the result is the nearest `f64`; with
/// more it may be the one beside it.
pub(super) fn parse(text: &str) -> Option<f64> {
    let (negative, text) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let is = |word| text.eq_ignore_ascii_case(word);
    let value = match () {
        () if is("nan") => f64::NAN,
        () if is("inf") || is("infinity") => f64::INFINITY,
        () => finite(text)?,
    };
    Some(if negative { -value } else { value })
}

/// Digits with or without a point, and a power of ten.
fn finite(text: &str) -> Option<f64> {
    let (digits, power) = match text.split_once(['e', 'E']) {
        Some((digits, power)) => (digits, power.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (mut number, mut power, mut any, mut point) = (0u64, i64::from(power), false, false);
    for c in digits.bytes() {
        match c {
            b'0'..=b'9' => {
                any = true;
                // What a u64 has no room for is below the precision of an f64.
                let more = number.checked_mul(10).and_then(|n| n.checked_add((c - b'0').into()));
                number = more.unwrap_or(number);
                power += i64::from(more.is_none()) - i64::from(point);
            }
            b'.' if !point => point = true,
            _ => return None,
        }
    }
    if !any {
        return None;
    }
    let float = number as f64;
    let far = power.unsigned_abs().min(400) as i32;
    Some(match power {
        _ if number == 0 => 0.0,
        0.. => float * ten_to(far),
        // In two steps where one power would be infinite.
        _ if far > 300 => float / ten_to(300) / ten_to(far - 300),
        _ => float / ten_to(far),
    })
}

/// Writes a number from 0 to 1 with as few digits as lead back to it, 17 at most.
pub(super) struct Fraction(pub(super) f64);

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let x = self.0.clamp(0.0, 1.0);
        let digits = |places: i32| (x * ten_to(places)).round();
        let places = (0..17).find(|&n| digits(n) / ten_to(n) == x).unwrap_or(17);
        let one = 10u64.pow(places as u32);
        let all = digits(places) as u64;
        write!(f, "{}", all / one)?;
        match places {
            0 => Ok(()),
            n => write!(f, ".{:0width$}", all % one, width = n as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn it_reads_what_the_standard_library_reads() {
        let right = "0 1 0.8 .5 5. -0.0 +0.25 1e-3 1E2 25e-2 1e22 0.1e+1 inf -Infinity 0.333333333333333 00012.50 7e-400 1e400";
        for text in right.split(' ') {
            assert_eq!(parse(text), Some(text.parse().unwrap()), "{text}");
        }
        assert!(parse("NaN").unwrap().is_nan());
        for text in ["", ".", "-", "e5", "1e", "1.2.3", "0,5", "50%", "0x1", "1 ", "--1"] {
            assert_eq!(parse(text), None, "{text}");
        }
        let long = "0.12345678901234567890123456789";
        assert!((parse(long).unwrap() - long.parse::<f64>().unwrap()).abs() <= f64::EPSILON / 8.0);
    }

    proptest! {
        #[test]
        fn up_to_15_digits_are_read_and_written_as_the_standard_library_does(n in 0u64..1_000_000_000_000_000, places in 0usize..=15) {
            let text = format!("{}.{:0places$}", n / 10u64.pow(places as u32), n % 10u64.pow(places as u32));
            let x: f64 = text.parse().unwrap();
            prop_assert_eq!(parse(&text), Some(x));
            let part: f64 = format!("0.{n:015}").parse().unwrap();
            prop_assert_eq!(Fraction(part).to_string(), part.to_string());
        }

        #[test]
        fn what_is_written_is_read_as_the_same(x in 0.0..=1.0f64) {
            let back = parse(&Fraction(x).to_string()).unwrap();
            prop_assert!((back - x).abs() <= f64::EPSILON, "{} {}", x, back);
        }
    }
}
